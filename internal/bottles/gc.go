package bottles

import (
	"context"
	"errors"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/pool"
	"github.com/carboy/carboy/internal/run/repos"
	"github.com/carboy/carboy/internal/store"
)

// GC removes the runs of a plan and records each removal. It also removes empty bottle
// records and what dead processes of the pool left.
func (c *Keeper) GC(ctx context.Context, p store.Plan) ([]store.ID, error) {
	removed, err := c.Store.ApplyGC(ctx, p)
	errs := []error{err}
	for _, x := range p.Remove {
		for _, id := range removed {
			if id == x.Meta.ID {
				errs = append(errs, c.review.NoteReview(ctx, audit.RunRemoved, audit.Allowed, x.Meta, x.Why))
			}
		}
	}
	errs = append(errs, c.forgetBottles(ctx))
	// Killed processes of the pool leave their sockets.
	if dir, err := store.RuntimeDir(c.Env); err == nil {
		_, err = pool.Sweep(dir)
		errs = append(errs, err)
	}
	return removed, errors.Join(errs...)
}

// beginsWithin bounds the time between the record of a bottle and that of its run.
const beginsWithin = time.Hour

// forgetBottles removes the records of bottles that have no runs and nothing kept.
func (c *Keeper) forgetBottles(ctx context.Context) error {
	list, _, err := c.Store.Bottles(ctx)
	for _, b := range list {
		if err != nil {
			return err
		}
		k, _, kerr := c.Store.Kept(b.Slug)
		if repos.HasKeys(c.Host, b.Slug) {
			continue
		}
		if kerr != nil || k != nil || time.Since(b.Created) < beginsWithin {
			continue
		}
		var runs []store.Meta
		if runs, err = c.Store.RunsOf(ctx, b); err == nil && len(runs) == 0 {
			_, err = c.Store.RemoveBottle(ctx, b.Slug)
		}
	}
	return err
}
