// Package doctor checks whether this machine can run bottles, describes sandboxes, and
// removes what dead commands left. Start reading at [Doctor.Doctor].
package doctor

import (
	"github.com/carboy/carboy/internal/gate/judge"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/review"
	"github.com/carboy/carboy/internal/run"
	"github.com/carboy/carboy/internal/work"
)

// Doctor checks and cleans up one user's state. Its methods may be called concurrently.
type Doctor struct {
	*host.Host
	review *review.Reviewer
	runs   *run.Runner
	judge  *judge.Judge
	worker *work.Worker
}

// New returns a Doctor that works with these services.
func New(h *host.Host, r *review.Reviewer, runs *run.Runner, j *judge.Judge, w *work.Worker) *Doctor {
	return &Doctor{h, r, runs, j, w}
}
