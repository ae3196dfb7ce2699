// Package operator gives package ship the user's hosts, keys and approvals. Start reading
// at [Operator.Ship].
package operator

import "github.com/carboy/carboy/internal/host"

// Operator ships for one user. Its methods may be called concurrently.
type Operator struct {
	*host.Host
}

// New returns an Operator.
func New(h *host.Host) *Operator { return &Operator{h} }
