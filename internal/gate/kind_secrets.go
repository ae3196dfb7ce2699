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
	register(SignalKind{Name: "secrets", Summary: "no key or token is in what the change adds", Final: true, Keys: []string{"allow"}}, func(_ *Signal, m document.Mapping) Judge[secretFacts] {
		allow := m.Get("allow").Strings()
		return func(ctx context.Context, c *Case) (secretFacts, []Finding, error) {
			return findSecrets(ctx, c, allow)
		}
	})
}

type secretFacts struct {
	Looked bool  `json:"looked"`
	Files  int   `json:"files_scanned"`
	Bytes  int64 `json:"bytes_scanned"`
	Found  int   `json:"found"`
	// History counts commits, and contents of the change's history that are not in the
	// change itself.
	History int `json:"history_scanned"`
	// Allowed counts secrets in files that the catalog exempts.
	Allowed int `json:"allowed"`
}

func (f secretFacts) Positive() bool { return f.Looked && f.Found == 0 }

// maxBaseSecrets bounds how many of a change's secrets are looked up in the base; the
// rest count as new. maxHits bounds how many secrets of a change are listed.
const (
	maxBaseSecrets = 256
	maxHits        = 10_000
)

var tokenRules = sync.OnceValues(func() (*scan.Rules, error) { return scan.NewRules(scan.Config{Tokens: true}) })

// findSecrets reports the secrets that the change has and the base has not. Whoever
// reads the base knows its secrets already, so they are no fault of the change, also
// where it moves them.
func findSecrets(ctx context.Context, c *Case, allow []string) (secretFacts, []Finding, error) {
	rules, err := tokenRules()
	if err != nil {
		return secretFacts{}, nil, err
	}
	diff, err := c.Change.Differences(ctx, c.Base)
	if err != nil {
		return secretFacts{}, nil, err
	}
	s := secretSearch{rules: rules, f: secretFacts{Looked: true}}
	if err := s.change(ctx, c, diff); err != nil {
		return s.f, nil, err
	}
	known, err := s.inBase(ctx, c.Base)
	if err != nil {
		return s.f, nil, err
	}
	var found []Finding
	for _, h := range s.hits {
		switch {
		case known[string(h.text)]:
			continue
		case h.File != "" && matches(allow, h.File):
			h.Noted = true
			s.f.Allowed++
		default:
			s.f.Found++
		}
		found = append(found, h.Finding)
	}
	return s.f, found, nil
}

type secretSearch struct {
	rules *scan.Rules
	f     secretFacts
	hits  []secretHit
}

type secretHit struct {
	Finding
	text []byte // the secret
}

// change scans the names and contents of changed files, and the commits between base and
// change.
func (s *secretSearch) change(ctx context.Context, c *Case, diff []Difference) error {
	changed := map[string]bool{}
	for _, d := range diff {
		if d.Change == nil {
			continue
		}
		changed[d.Path] = true
		if err := s.scan(d.Path, []byte(d.Path), inName); err != nil {
			return err
		}
	}
	err := c.Change.Each(ctx, func(x File) bool { return changed[x.Path] }, func(x File, b []byte) error {
		s.f.Files++
		return s.scan(x.Path, b, inFile)
	})
	if err != nil {
		return err
	}
	return c.Change.history(ctx, c.Base, func(p HistoryObject, b []byte) error {
		s.f.History++
		if p.Commit {
			return s.scan("", b, fmt.Sprintf(inCommit, truncate(p.ID, 12)))
		}
		return s.scan(p.Path, b, inHistory)
	})
}

// scan adds the secrets of b, which is the file at p, its name, or a commit's text.
func (s *secretSearch) scan(p string, b []byte, text string) error {
	s.f.Bytes += int64(len(b))
	found, err := s.rules.Check(scan.Options{Place: "file", Action: scan.Report}, b)
	if err != nil {
		return fmt.Errorf("scan %s: %w", p, err)
	}
	slices.SortStableFunc(found, func(a, b scan.Finding) int { return cmp.Compare(a.Offset, b.Offset) })
	line, counted := 1, int64(0)
	for _, h := range found {
		if h.Warning {
			continue
		}
		if len(s.hits) >= maxHits {
			s.f.Found++ // it counts as new
			continue
		}
		at := min(max(h.Offset, 0), int64(len(b)))
		x := secretHit{Finding{ID: h.Rule, File: p, Text: text}, bytes.Clone(b[at:min(at+int64(h.Length), int64(len(b)))])}
		if text == inFile {
			line, counted = line+bytes.Count(b[counted:at], []byte("\n")), at
			x.Line = line
		}
		s.hits = append(s.hits, x)
	}
	return nil
}

// inBase returns the secrets that some file of the base has, too.
func (s *secretSearch) inBase(ctx context.Context, base *Tree) (map[string]bool, error) {
	known := map[string]bool{}
	for _, h := range s.hits {
		if len(h.text) > 0 && len(known) < maxBaseSecrets {
			known[string(h.text)] = false
		}
	}
	if len(known) == 0 {
		return nil, nil
	}
	return known, base.Each(ctx, func(File) bool { return true }, func(_ File, b []byte) error {
		for text, is := range known {
			known[text] = is || bytes.Contains(b, []byte(text))
		}
		return nil
	})
}

// Texts of findings, by where the secret is.
const (
	inFile    = "looks like a secret; whoever can read the repository has it"
	inName    = "the file's name looks like a secret"
	inHistory = "a commit on the way has what looks like a secret; that a later one removes it takes it from nobody"
	inCommit  = "the text of commit %s has what looks like a secret"
)
