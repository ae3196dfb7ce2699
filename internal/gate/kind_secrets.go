package gate

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
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
	// Passing are contents and commits that are not in the change itself, and come with
	// its history.
	Passing int `json:"history_scanned"`
	// Allowed lie in files that the catalog excepts.
	Allowed int `json:"allowed"`
}

func (f secretFacts) Positive() bool { return f.Looked && f.Found == 0 }

// maxKnown bounds how many of a change's secrets are looked for in the base; more of them
// count as new. maxHits bounds how many a change may have to be told one by one.
const (
	maxKnown = 256
	maxHits  = 10_000
)

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
	// What is a secret, and on the base already, is known there: also when it moves.
	type hit struct {
		Finding
		text []byte
	}
	var hits []hit
	look := func(p string, b []byte, say string) error {
		f.Bytes += int64(len(b))
		found, err := rules.Check(scan.Options{Place: "file", Action: scan.Report}, b)
		if err != nil {
			return fmt.Errorf("scan %s: %w", p, err)
		}
		slices.SortStableFunc(found, func(a, b scan.Finding) int { return cmp.Compare(a.Offset, b.Offset) })
		line, till := 1, int64(0)
		for _, h := range found {
			if h.Warning {
				continue
			}
			if len(hits) >= maxHits {
				f.Found++ // as a new one
				continue
			}
			at := min(max(h.Offset, 0), int64(len(b)))
			x := hit{Finding{ID: h.Rule, File: p, Text: say}, bytes.Clone(b[at:min(at+int64(h.Length), int64(len(b)))])}
			if say == inFile {
				line, till = line+bytes.Count(b[till:at], []byte("\n")), at
				x.Line = line
			}
			hits = append(hits, x)
		}
		return nil
	}
	for _, d := range diff {
		if d.Change == nil {
			continue
		}
		if err := look(d.Path, []byte(d.Path), inName); err != nil {
			return f, nil, err
		}
	}
	err = c.Change.Each(ctx, func(x File) bool { return changed[x.Path] }, func(x File, b []byte) error {
		f.Files++
		return look(x.Path, b, inFile)
	})
	if err != nil {
		return f, nil, err
	}
	err = c.Change.Passed(ctx, c.Base, func(p Passing, b []byte) error {
		f.Passing++
		if p.Commit {
			return look("", b, fmt.Sprintf(inCommit, cut(p.ID, 12)))
		}
		return look(p.Path, b, inHistory)
	})
	if err != nil {
		return f, nil, err
	}
	known := map[string]bool{}
	for _, h := range hits {
		if len(h.text) > 0 && len(known) < maxKnown {
			known[string(h.text)] = false
		}
	}
	if len(known) > 0 {
		err = c.Base.Each(ctx, func(File) bool { return true }, func(_ File, b []byte) error {
			for text, is := range known {
				known[text] = is || bytes.Contains(b, []byte(text))
			}
			return nil
		})
		if err != nil {
			return f, nil, err
		}
	}
	var found []Finding
	for _, h := range hits {
		switch {
		case known[string(h.text)]:
			continue
		case h.File != "" && matches(allow, h.File):
			h.Noted = true
			f.Allowed++
		default:
			f.Found++
		}
		found = append(found, h.Finding)
	}
	return f, found, nil
}

// Where a secret was found.
const (
	inFile    = "looks like a secret; whoever can read the repository has it"
	inName    = "the file's name looks like a secret"
	inHistory = "a commit on the way has what looks like a secret; that a later one removes it takes it from nobody"
	inCommit  = "the text of commit %s has what looks like a secret"
)
