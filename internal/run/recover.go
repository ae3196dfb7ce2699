package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/run/repos"
	"github.com/carboy/carboy/internal/store"
)

// Recover marks lost runs and removes what they left: the control socket and changes
// that were only partly collected. A bottle's processes and mounts end with its
// namespaces.
func (c *Runner) Recover(ctx context.Context) error {
	r, err := c.Store.Recover(ctx)
	errs := []error{err, c.SweepPool()}
	if n := hostexec.Sweep(); n > 0 {
		c.Log.Warn("host commands of a dead carboy were killed", "count", n)
	}
	for _, m := range r.Lost {
		if err := c.recoverLost(ctx, m.ID); err != nil {
			errs = append(errs, fmt.Errorf("run %s: %w", m.ID, err))
		}
	}
	repos.RecoverKeys(ctx, c.Host)
	return errors.Join(append(errs, c.review.RecoverLandings(ctx))...)
}

// recoverLost takes what a lost run has left, and removes the rest.
func (c *Runner) recoverLost(ctx context.Context, id store.ID) error {
	m, release, err := c.Store.HoldLost(ctx, id)
	if err != nil || release == nil {
		return err
	}
	defer release()
	if m.Socket != "" {
		os.Remove(string(m.Socket))
	} else if dir, err := store.RuntimeDir(c.Env); err == nil {
		os.Remove(filepath.Join(dir, SocketName(m.ID))) // made, and not recorded yet
	}
	again := m.Cleaned
	if m, err = c.restore(ctx, m); err != nil {
		return err
	}
	if again && m.CopyError != "" {
		return nil // it was said before
	}
	if err := c.review.CleanLost(ctx, m); err != nil {
		return err
	}
	c.lost = append(c.lost, m)
	return c.Store.Cleaned(ctx, m.ID)
}

// Over reports whether a run is over. It marks a run whose carboy has died as lost, and
// returns true for it.
func (c *Runner) Over(ctx context.Context, id store.ID) (bool, error) {
	m, err := c.Store.Get(id)
	if err != nil || m.State.Over() {
		return err == nil, err
	}
	rerr := c.Recover(ctx)
	if m, err = c.Store.Get(id); err != nil {
		return false, err
	}
	if m.State.Over() {
		return true, nil
	}
	return false, rerr
}
