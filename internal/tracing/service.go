// Package tracing runs scenarios of a program in bottles and reports what they touched.
// Start reading at [Tracer.TraceScenarios].
package tracing

import (
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/review"
	"github.com/carboy/carboy/internal/run"
)

// Tracer runs scenarios for one user. Its methods may be called concurrently.
type Tracer struct {
	*host.Host
	review *review.Reviewer
	runs   *run.Runner
}

// New returns a Tracer that runs its scenarios with runs.
func New(h *host.Host, r *review.Reviewer, runs *run.Runner) *Tracer { return &Tracer{h, r, runs} }
