package gate

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/scan"
)

func init() {
	Register(Kind{Name: "secrets", Summary: "no key or token is in what the change adds", Final: true, Keys: []string{"allow"}}, func(_ *Signal, m document.Mapping) Judge[secretFacts] {
		allow := m.Get("allow").Strings()
		return func(ctx context.Context, c *Case) (secretFacts, []Finding, error) {
			return lookForSecrets(ctx, c, allow)
		}
	})
}

type secretFacts struct {
	Looked bool  `json:"looked"`
	Files  int   `json:"files_scanned"`
	Bytes  int64 `json:"bytes_scanned"`
	Found  int   `json:"found"`
	// Allowed lie in files that the catalog excepts.
	Allowed int `json:"allowed"`
}

func (f secretFacts) Positive() bool { return f.Looked && f.Found == 0 }

var tokenRules = sync.OnceValues(func() (*scan.Rules, error) { return scan.NewRules(scan.Config{Tokens: true}) })

// lookForSecrets reports what the change has and the base has not. The base's own are
// known there already, and it is not this change that made them so.
func lookForSecrets(ctx context.Context, c *Case, allow []string) (secretFacts, []Finding, error) {
	rules, err := tokenRules()
	if err != nil {
		return secretFacts{}, nil, err
	}
	diff, err := c.Change.Differences(ctx, c.Base)
	if err != nil {
		return secretFacts{}, nil, err
	}
	f := secretFacts{Looked: true}
	changed := map[string]bool{}
	for _, d := range diff {
		if d.Change != nil {
			changed[d.Path] = true
		}
	}
	old := map[string][]byte{}
	err = c.Base.Each(ctx, func(x File) bool { return changed[x.Path] }, func(x File, b []byte) error {
		old[x.Path] = bytes.Clone(b)
		return nil
	})
	if err != nil {
		return f, nil, err
	}
	var found []Finding
	err = c.Change.Each(ctx, func(x File) bool { return changed[x.Path] }, func(x File, b []byte) error {
		f.Files++
		f.Bytes += int64(len(b))
		hits, err := rules.Check(scan.Options{Place: "file", Action: scan.Report}, b)
		if err != nil {
			return fmt.Errorf("scan %s: %w", x.Path, err)
		}
		for _, h := range hits {
			at := min(max(h.Offset, 0), int64(len(b)))
			text := b[at:min(at+int64(h.Length), int64(len(b)))]
			if h.Warning || len(text) > 0 && bytes.Contains(old[x.Path], text) {
				continue
			}
			hit := Finding{ID: h.Rule, File: x.Path, Line: 1 + bytes.Count(b[:at], []byte("\n")), Text: "looks like a secret; whoever can read the repository has it"}
			if matches(allow, x.Path) {
				hit.Noted = true
				f.Allowed++
			} else {
				f.Found++
			}
			found = append(found, hit)
		}
		return nil
	})
	return f, found, err
}
