package gvisor

import (
	"context"

	"github.com/carboy/carboy/internal/bottle"
)

// Check implements bottle.Backend.
func (b Backend) Check(ctx context.Context) error { return nil }

func unavailable(err error) error {
	return &bottle.UnavailableError{Backend: name, Reason: "cannot create user namespaces", Err: err}
}
