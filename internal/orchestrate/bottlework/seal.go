package bottlework

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/carboy/carboy/internal/orchestrate"
	"github.com/carboy/carboy/internal/provenance"
	"github.com/carboy/carboy/internal/store"
)

// Seal writes and signs the provenance of a merged pull request, and returns its digest. The
// facts of runs come from the records of the issue's turns: seal before Destroy.
func (b *Bottles) Seal(ctx context.Context, m orchestrate.Merge) (digest string, err error) {
	dir, err := b.dir(m.Issue)
	if err != nil {
		return "", err
	}
	at, err := url.Parse(m.URL)
	if err != nil {
		return "", fmt.Errorf("the pull request's address: %w", err)
	}
	h := b.o.Host
	f := &provenance.Facts{
		Forge: (&url.URL{Scheme: at.Scheme, Host: at.Host}).String(), Owner: m.Issue.Owner, Repo: m.Issue.Repo, Issue: m.Issue.Number, Pull: int64(m.Pull), URL: m.URL,
		Base: m.Base, Branch: m.Branch, Head: m.Head, Commit: m.Commit, Merged: m.Merged,
		Agent: m.Agent, Bottles: m.Bottles, Slug: m.Slug, Backend: h.Backend.Name(), Operations: m.Operations, Watchdog: m.WatchdogFired,
	}
	for _, r := range m.Reviews {
		f.Reviews = append(f.Reviews, provenance.Review(r))
	}
	records, err := turnsOf(dir)
	if err != nil {
		return "", err
	}
	for i, t := range m.Turns {
		x := provenance.Turn{
			ID: fmt.Sprint(i + 1), Work: t.Work, Began: t.Began, Ended: t.Ended, Exit: t.Exit, Outcome: t.Outcome, Why: t.Why,
			Verdict: t.Verdict, VerdictSHA256: t.Digest, Commit: t.Commit, Moved: t.Moved, Tokens: t.Tokens,
		}
		if rec := records[t.Work]; rec != nil {
			x.ID, x.Runs = rec.Turn, rec.Runs
		} else {
			for _, id := range t.Runs {
				x.Runs = append(x.Runs, provenance.Run{ID: id})
			}
		}
		f.Turns = append(f.Turns, x)
	}
	return provenance.Open(h.StateDir(), h.Audit).Seal(ctx, f, provenance.SealOptions{Build: h.Build, BundleKey: b.o.BundleKey})
}

// turnsOf reads the records of an issue's turns, by their work.
func turnsOf(dir string) (map[string]*turnRecord, error) {
	files, err := store.Glob(filepath.Join(dir, turnsDir), "*.json")
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	out := map[string]*turnRecord{}
	for _, name := range files {
		rec := &turnRecord{}
		if err := store.ReadJSON(name, turnKind, rec); err != nil {
			return nil, fmt.Errorf("turn %s: %w", strings.TrimSuffix(filepath.Base(name), ".json"), err)
		}
		out[rec.Work] = rec
	}
	return out, nil
}
