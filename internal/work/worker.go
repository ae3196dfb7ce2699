// Package work repeats an agent's attempts until a gate passes its change, with feedback
// between them, and pushes the result. Start reading at [Worker.Work].
package work

import (
	"github.com/carboy/carboy/internal/bottles"
	"github.com/carboy/carboy/internal/gate/judge"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/review"
	"github.com/carboy/carboy/internal/run"
)

// Worker runs the work of one user. Its methods may be called concurrently.
type Worker struct {
	*host.Host
	review  *review.Reviewer
	runs    *run.Runner
	bottles *bottles.Keeper
	judge   *judge.Judge
}

// New returns a Worker that starts bottles with b and judges changes with j.
func New(h *host.Host, r *review.Reviewer, runs *run.Runner, b *bottles.Keeper, j *judge.Judge) *Worker {
	return &Worker{h, r, runs, b, j}
}
