package bottlework

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/carboy/carboy/internal/bottles"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/orchestrate"
	"github.com/carboy/carboy/internal/run/repos"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// fetchLabel ends the label of a bottle that only fetches. Nothing runs in it: it has the
// access of the issue's bottles, with a deploy key of its own.
const fetchLabel = "-fetch"

// upstream is the repository of an issue, reached through a git gate.
type upstream struct {
	gate *repos.Gate
	repo repos.Repo
	tip  string // of the base branch
	at   string // of the turn's branch; empty: it is not there
	// format is the form of objects' names.
	format string
}

const heads = "refs/heads/"

// withUpstream opens the git gate that the turn's bottles have, asks for the base and the
// branch, calls f, and closes the gate. Its deploy key is revoked before it returns.
func (b *Bottles) withUpstream(ctx context.Context, t *orchestrate.Turn, dir string, f func(*upstream) error) error {
	p, err := b.o.Keeper.Preflight(bottles.StartOptions{Agent: t.Agent, Bottles: t.Bottles, Dir: dir})
	if err != nil {
		return err
	}
	repo, err := p.Grant.Git.Of(t.Issue.Owner + "/" + t.Issue.Repo)
	if err != nil {
		return err
	}
	if err := b.sweepFetches(ctx, dir); err != nil {
		return err
	}
	ws, err := store.ResolveWorkspace(dir)
	if err != nil {
		return err
	}
	h := b.o.Host
	label := fmt.Sprintf("%.20s-%d%s", t.Agent, t.Issue.Number, fetchLabel)
	box, err := h.Store.CreateBottle(ctx, store.Bottle{Label: label, Agent: t.Agent, Bottles: p.Bottles, Mode: store.None, Workspace: ws, Build: h.Build, Backend: p.Backend})
	if err != nil {
		return err
	}
	lock, err := h.Store.LockBottle(box.Slug)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	u := &upstream{repo: *repo}
	u.gate, err = repos.Open(ctx, h, &repos.Repos{Repos: []repos.Repo{*repo}}, lock, box.Slug, dir, false)
	if err == nil {
		if err = u.look(ctx, t); err == nil {
			err = f(u)
		}
		u.gate.End(context.WithoutCancel(ctx))
		if len(u.gate.Left) > 0 {
			err = errors.Join(err, &repos.KeysLeftError{Bottle: box.Slug, Left: u.gate.Left})
		}
	}
	if !repos.HasKeys(h, box.Slug) { // else revoking them needs its record
		_, rerr := h.Store.RemoveBottle(context.WithoutCancel(ctx), box.Slug)
		err = errors.Join(err, rerr)
	}
	return err
}

// isFetch reports whether x is a bottle that only fetches.
func isFetch(x store.Bottle) bool {
	return x.Mode == store.None && strings.HasSuffix(x.Label, fetchLabel)
}

// sweepFetches removes what fetches of this issue left when carboy died, keys included.
func (b *Bottles) sweepFetches(ctx context.Context, dir string) error {
	list, _, err := b.o.Host.Store.Bottles(ctx)
	if err != nil {
		return err
	}
	dir = fault.RealPath(dir)
	for _, x := range list {
		if string(x.Workspace.Path) != dir || !isFetch(x) {
			continue
		}
		if _, err := b.o.Keeper.Destroy(ctx, x.Slug, bottles.DestroyOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func (u *upstream) look(ctx context.Context, t *orchestrate.Turn) error {
	got, err := u.gate.Refs(ctx, u.repo.Name, heads+t.Base, heads+t.Branch)
	if err != nil {
		return err
	}
	u.tip, u.at, u.format = got.Refs[heads+t.Base], got.Refs[heads+t.Branch], got.Format
	if u.tip == "" {
		return fmt.Errorf("upstream has no branch %s", safetext.String(t.Base, 200))
	}
	return nil
}

// wanted returns the commits that a workspace needs.
func (u *upstream) wanted() []string {
	if u.at == "" || u.at == u.tip {
		return []string{u.tip}
	}
	return []string{u.tip, u.at}
}

// Conflicts reports whether the issue's branch no longer merges into its base without a
// person or an agent. It asks upstream for both. A branch that is not there has none.
func (b *Bottles) Conflicts(ctx context.Context, t orchestrate.Turn) (bool, error) {
	dir, err := b.issueDir(&t)
	if err != nil {
		return false, err
	}
	conflicts := false
	err = b.withUpstream(ctx, &t, dir, func(u *upstream) error {
		if u.at == "" || u.at == u.tip {
			return nil
		}
		return u.in(ctx, dir, func(top string) (err error) {
			conflicts, err = tryMerge(ctx, top, u.tip, u.at)
			return err
		})
	})
	return conflicts, err
}

// in calls f with a repository that has the commits of the base and the branch: the issue's
// workspace, or a clone that is removed again.
func (u *upstream) in(ctx context.Context, dir string, f func(top string) error) error {
	st, err := readState(dir)
	if err != nil {
		return err
	}
	top := filepath.Join(dir, repoDir)
	if st == nil { // the bottle and its workspace were destroyed
		top = filepath.Join(dir, triedDir)
		defer fault.RemoveTree(top)
		err = u.clone(ctx, top)
	} else {
		err = u.update(ctx, dir, st)
	}
	if err != nil {
		return err
	}
	return f(top)
}

// tryMerge reports whether two commits conflict.
func tryMerge(ctx context.Context, top, a, b string) (bool, error) {
	r, err := hostexec.New(hostexec.Options{Untrusted: []string{top}})
	if err != nil {
		return false, err
	}
	defer r.Close(context.WithoutCancel(ctx))
	_, err = r.Run(ctx, hostexec.Command{Program: hostexec.GitLand, Args: []string{"conflicts", a, b}, Dir: top, Timeout: gitTimeout})
	var failed *hostexec.FailedError
	if errors.As(err, &failed) && failed.Outcome == hostexec.Exited && failed.Code == 1 {
		return true, nil
	}
	return false, err
}

// issueDir makes the directory of a turn's issue.
func (b *Bottles) issueDir(t *orchestrate.Turn) (string, error) {
	dir, err := b.dir(t.Issue)
	if err != nil {
		return "", err
	}
	if t.Base == "" || t.Branch == "" || t.Base == t.Branch {
		return "", errors.New("a turn has a branch to push, and another as its base")
	}
	return dir, os.MkdirAll(filepath.Join(dir, turnsDir), 0o700)
}
