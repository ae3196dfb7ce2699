// Package judge judges changes by the gate of their base, and keeps the verdicts, with
// records, evidence, baselines, warm caches and bundles. Start reading at [Judge.Gate].
package judge

import (
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/review"
	"github.com/carboy/carboy/internal/run"
)

// Judge judges changes for one user. Its methods may be called concurrently.
type Judge struct {
	*host.Host
	review *review.Reviewer
	runs   *run.Runner
}

// New returns a Judge that runs its phases with runs.
func New(h *host.Host, r *review.Reviewer, runs *run.Runner) *Judge { return &Judge{h, r, runs} }
