// Package bottles manages named bottles: it starts, resumes, freezes, exports, imports,
// lists and destroys them. An agent of the user's manifests works in each. Start reading
// at [Keeper.Start].
package bottles

import (
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/review"
	"github.com/carboy/carboy/internal/run"
)

// Keeper manages the bottles of one user. Its methods may be called concurrently.
type Keeper struct {
	*host.Host
	review *review.Reviewer
	runs   *run.Runner
}

// New returns a Keeper that runs its bottles with runs.
func New(h *host.Host, r *review.Reviewer, runs *run.Runner) *Keeper { return &Keeper{h, r, runs} }
