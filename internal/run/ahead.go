package run

import (
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
)

// Ahead is the first process of a bottle, started before its run. Of the run it knows
// only the user.
type Ahead struct {
	id   plan.User
	warm bottle.Warm
}

// Begin starts what a run with o needs in any case; nil, when there is nothing to start.
// Whatever is wrong with o is said when the run is asked for.
func Begin(backend bottle.Backend, o *plan.Options) *Ahead {
	w, ok := backend.(bottle.Warmer)
	if o == nil || !ok {
		return nil
	}
	dir := o.Workspace
	switch {
	case o.Mode == store.None:
		dir = ""
	case dir == "":
		dir = "."
	}
	id, err := plan.Whoami(dir)
	if err != nil {
		return nil
	}
	return &Ahead{id, w.Warm(id.User, id.HostUID, id.HostGID)}
}

// Drop ends the process of a. a may be nil.
func (a *Ahead) Drop() {
	if a != nil {
		a.warm.Close()
	}
}

// Waiting reports whether what Begin started still waits for a run.
func (c *Runner) Waiting() bool { return c.ahead.Load() != nil }
