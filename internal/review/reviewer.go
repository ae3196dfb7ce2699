// Package review shows the changes that runs made to their workspaces, and lands, undoes
// or removes them. Start reading at [Reviewer].
package review

import "github.com/carboy/carboy/internal/host"

// Reviewer reads and lands the runs of one user. Its methods may be called concurrently.
type Reviewer struct {
	*host.Host
}

// New returns a Reviewer for the runs in h's store.
func New(h *host.Host) *Reviewer { return &Reviewer{h} }
