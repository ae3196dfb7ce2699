package run

import (
	"context"
	"fmt"

	"github.com/carboy/carboy/internal/backends"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
)

// on returns a Runner whose bottles the named backend holds. An empty name is c's own.
func (c *Runner) on(backend string) (*Runner, error) {
	if backend == "" || backend == c.Backend.Name() {
		return c, nil
	}
	b, err := backends.ByName(backend)
	if err != nil {
		return nil, err
	}
	h := *c.Host
	h.Backend = b
	c.Close() // what was begun ahead is of c's backend
	return &Runner{Host: &h, review: c.review}, nil
}

// admit refuses a plan that the backend can't carry out here, or not behind a boundary that
// is strong enough. Nothing was started for it.
func (c *Runner) admit(ctx context.Context, p *plan.Plan, floor bottle.Floor) error {
	if err := c.Backend.Check(ctx); err != nil {
		return err
	}
	if err := p.Floor.Stronger(floor).Check(c.Backend.Name(), c.Backend.Isolation()); err != nil {
		return err
	}
	if p.Building() && !c.Backend.Capabilities().Builds {
		return &fault.OptionError{Option: "--backend", Value: c.Backend.Name(), Reason: "can't build images", Advice: "the embedded kernel, gvisor, can"}
	}
	why, missing := c.Backend.Capabilities().Lacks(bottle.CapReadWrite)
	if !missing {
		return nil
	}
	refuse := func(option, value string) error {
		return &fault.OptionError{Option: option, Value: value, Reason: fmt.Sprintf("would let the bottle write to the host's directory, which the backend %s can't: %s", c.Backend.Name(), why), Advice: "use --workspace overlay or copy, and mounts with :ro, or another --backend"}
	}
	if p.Mode == store.Bind {
		return refuse("--mode", string(store.Bind))
	}
	for _, m := range p.Mounts {
		if m.Access == bottle.AccessReadWrite {
			return refuse("--mount", m.Source+":"+m.Target)
		}
	}
	return nil
}

// floor returns the weakest class of isolation that this run may have.
func (s *Session) floor(users bottle.Floor) bottle.Floor { return s.Plan.Floor.Stronger(users) }
