package bottles

import (
	"context"
	"errors"
	"slices"
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
	_, err = c.Expire(ctx, "")
	errs = append(errs, err, c.forgetBottles(ctx))
	// Killed processes of the pool leave their sockets.
	if dir, err := store.RuntimeDir(c.Env); err == nil {
		_, err = pool.Sweep(dir)
		errs = append(errs, err)
	}
	return removed, errors.Join(errs...)
}

// Expire forgets bottles that ended: those that were kept for longer than the configuration
// says, and the oldest if all together take more than it says. They can't be resumed then;
// their changes stay. It leaves the bottle but and those in use, and returns the others.
func (c *Keeper) Expire(ctx context.Context, but string) (forgotten []string, err error) {
	list, _, err := c.Store.Bottles(ctx)
	if err != nil {
		return nil, err
	}
	type held struct {
		slug string
		at   time.Time
		size int64
	}
	var all []held
	for _, b := range list {
		if k, _, err := c.Store.Kept(b.Slug); err == nil && k != nil { // what can't be read is not removed
			h := held{slug: b.Slug, at: k.At}
			for _, p := range k.Parts() {
				h.size += p.Size
			}
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b held) int { return b.at.Compare(a.at) })
	var total int64
	for i, h := range all {
		total += h.size
		if h.slug == but || time.Since(h.at) <= c.Config.KeepFor() && (i == 0 || total <= c.Config.KeepMax()) {
			continue
		}
		err := c.forget(ctx, h.slug, h.at)
		if errors.Is(err, store.ErrBottleBusy) || errors.Is(err, store.ErrNoBottle) {
			continue
		}
		if err != nil {
			return forgotten, err
		}
		forgotten = append(forgotten, h.slug)
	}
	return forgotten, nil
}

// forget removes what is kept of a bottle since at.
func (c *Keeper) forget(ctx context.Context, slug string, at time.Time) error {
	lock, err := c.Store.LockBottle(slug)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	if k, _, err := c.Store.Kept(slug); err != nil || k == nil || !k.At.Equal(at) {
		return err // it was resumed meanwhile
	}
	if err := lock.Forget(); err != nil {
		return err
	}
	return c.review.NoteKept(ctx, slug, "", "forgotten: it was kept since "+at.UTC().Format(time.RFC3339))
}

// until returns when a kept bottle is forgotten.
func (c *Keeper) until(k *store.Kept) time.Time { return k.At.Add(c.Config.KeepFor()) }

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
