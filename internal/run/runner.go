// Package run carries out one run: it makes the bottle from a plan, runs the command,
// mediates its requests, takes its changes and writes its records. Start reading at
// [Runner.Run].
package run

import (
	"sync/atomic"

	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/review"
	"github.com/carboy/carboy/internal/store"
)

// Runner makes runs. Its methods may be called concurrently.
type Runner struct {
	*host.Host
	review *review.Reviewer
	ahead  atomic.Pointer[Ahead] // nil: none, or a run has it
	lost   []store.Meta
}

// New returns a Runner. a is what Begin returned, or nil.
func New(h *host.Host, r *review.Reviewer, a *Ahead) *Runner {
	c := &Runner{Host: h, review: r}
	if a != nil {
		c.ahead.Store(a)
	}
	return c
}

// Lost returns the runs that Recover found to have died with their carboy.
func (c *Runner) Lost() []store.Meta { return c.lost }

// Close ends a prepared first process that no run took.
func (c *Runner) Close() { c.ahead.Swap(nil).Drop() }
