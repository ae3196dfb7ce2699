package bottles

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/run/repos"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// Called returns the slug of the bottle that a person means by a name, for a command on
// bottles in these states. It is the bottle of exactly that name if that runs or is in one
// of the states; then others lists those of the same label that would fit too. Else it is
// the only one of the same label that fits, and several are an error. If none fits, it is
// the name itself.
func (c *Keeper) Called(ctx context.Context, name string, states ...BottleState) (slug string, others []string, err error) {
	if !store.ValidSlug(name) {
		return name, nil, nil
	}
	list, _, err := c.Bottles(ctx)
	if err != nil {
		return name, nil, err
	}
	own := false
	for _, b := range list {
		fits := slices.Contains(states, b.State)
		switch {
		case b.Slug == name:
			own = fits || b.State == BottleRunning
		case fits && store.SlugOf(b.Label) == name:
			others = append(others, b.Slug)
		}
	}
	switch {
	case own || len(others) == 0:
		return name, others, nil
	case len(others) == 1:
		return others[0], nil, nil
	}
	return name, nil, &fault.OptionError{
		Option: "bottle", Value: safetext.String(name, 80), Reason: "could be " + some(others) + ": each of them is " + oneOf(states),
		Advice: "say which one; carboy list --bottles shows where they work",
	}
}

// some lists the first of some names.
func some(names []string) string {
	const shown = 10
	if n := len(names) - shown; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), n)
	}
	return strings.Join(names, ", ")
}

// oneOf returns states as words.
func oneOf(states []BottleState) string {
	return strings.Join(fault.Mapped(states, func(s BottleState) string { return string(s) }), " or ")
}

// bury removes the records of a label's bottles that are over and of which nothing is left
// to take, so that a new bottle can have their name. Their runs stay until carboy gc.
func (c *Keeper) bury(ctx context.Context, label string) error {
	list, _, err := c.Bottles(ctx)
	for _, b := range list {
		if err == nil && b.State == BottleOver && store.SlugOf(b.Label) == store.SlugOf(label) {
			err = c.buryOne(ctx, b.Slug)
		}
	}
	return err
}

func (c *Keeper) buryOne(ctx context.Context, slug string) error {
	lock, err := c.Store.LockBottle(slug)
	if errors.Is(err, store.ErrBottleBusy) || errors.Is(err, store.ErrNoBottle) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Unlock()
	b, err := c.Store.Bottle(slug)
	if err != nil {
		return err
	}
	k, _, err := c.Store.Kept(slug)
	if err != nil || k != nil || repos.HasKeys(c.Host, slug) {
		return err // it has been resumed meanwhile, or revoking its keys needs the record
	}
	runs, err := c.Store.RunsOf(ctx, b)
	begins := len(runs) == 0 && time.Since(b.Created) < beginsWithin
	if err != nil || begins || slices.ContainsFunc(runs, func(m store.Meta) bool { return !m.State.Over() || c.holdsChanges(m) }) {
		return err
	}
	_, err = c.Store.RemoveBottle(ctx, slug)
	return err
}
