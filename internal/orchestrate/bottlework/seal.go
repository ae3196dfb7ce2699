package bottlework

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/carboy/carboy/internal/orchestrate"
	"github.com/carboy/carboy/internal/provenance"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/work"
)

// Seal writes and signs the provenance of a merged pull request, and returns its digest. The
// facts of runs come from the records of the issue's turns: seal before Destroy. A record of
// the same pull request that is there already stands: what the forge tells may have changed
// since. The tree of the merge commit is in the record if the commit could be fetched.
func (b *Bottles) Seal(ctx context.Context, m orchestrate.Merge) (digest string, err error) {
	h := b.o.Host
	records := provenance.Open(h.StateDir(), h.Audit)
	f, err := records.Sealed(ctx, m.Issue.Owner, m.Issue.Repo, m.Commit)
	if err != nil {
		return "", err
	}
	if f == nil || f.Issue != m.Issue.Number || f.Pull != int64(m.Pull) {
		if f, err = b.facts(m); err != nil {
			return "", err
		}
		if f.Tree, err = b.treeOf(ctx, m); err != nil {
			if ctx.Err() != nil {
				return "", context.Cause(ctx)
			}
			h.Log.Warn("a merge commit can't be read, and its record will say so", "issue", m.Issue.String(), "err", err)
		}
	}
	return records.Seal(ctx, f, provenance.SealOptions{Build: h.Build, BundleKey: b.o.BundleKey})
}

// treeOf returns the tree of the merge commit, read from the object that the git gate
// fetched. It is empty with an error.
func (b *Bottles) treeOf(ctx context.Context, m orchestrate.Merge) (tree string, err error) {
	if !work.ValidBranch(m.Base) || !work.ValidBranch(m.Branch) {
		return "", fmt.Errorf("%q and %q: one is no name for a branch", safetext.String(m.Base, 100), safetext.String(m.Branch, 100))
	}
	t := &orchestrate.Turn{Issue: m.Issue, Agent: m.Agent, Bottles: m.Bottles, Base: m.Base, Branch: m.Branch}
	dir, err := b.issueDir(t)
	if err != nil {
		return "", err
	}
	err = b.withUpstream(ctx, t, dir, func(u *upstream) error {
		return u.in(ctx, dir, func(top string) (err error) {
			tree, err = provenance.ReadTree(ctx, top, m.Commit)
			return err
		})
	})
	return tree, err
}

// facts returns what is known of a merged pull request, without its tree.
func (b *Bottles) facts(m orchestrate.Merge) (*provenance.Facts, error) {
	dir, err := b.dir(m.Issue)
	if err != nil {
		return nil, err
	}
	at, err := url.Parse(m.URL)
	if err != nil {
		return nil, fmt.Errorf("the pull request's address: %w", err)
	}
	f := &provenance.Facts{
		Forge: (&url.URL{Scheme: at.Scheme, Host: at.Host}).String(), Owner: m.Issue.Owner, Repo: m.Issue.Repo, Issue: m.Issue.Number, Pull: int64(m.Pull), URL: m.URL,
		Base: m.Base, Branch: m.Branch, Head: m.Head, Commit: m.Commit, Merged: m.Merged,
		Agent: m.Agent, Bottles: m.Bottles, Slug: m.Slug, Backend: b.o.Host.Backend.Name(), Operations: m.Operations, Watchdog: m.WatchdogFired,
	}
	for _, r := range m.Reviews {
		f.Reviews = append(f.Reviews, provenance.Review(r))
	}
	records, err := turnsOf(dir)
	if err != nil {
		return nil, err
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
		for _, r := range x.Runs {
			f.Backend = cmp.Or(r.Backend, f.Backend) // the last that is known
		}
	}
	return f, nil
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
