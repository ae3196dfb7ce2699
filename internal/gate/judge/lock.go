package judge

import (
	"context"
	"errors"
	"time"
)

// gateLockLook is the interval at which awaitGateLock tries again.
const gateLockLook = 100 * time.Millisecond

// awaitGateLock locks dir as GateLock does. If another gate holds the lock and waits is not
// nil, it calls waits once and blocks until the other gate is over.
func (c *Judge) awaitGateLock(ctx context.Context, dir string, waits func()) (func(), error) {
	unlock, err := c.GateLock(dir)
	if waits == nil || !errors.Is(err, ErrGateLocked) {
		return unlock, err
	}
	waits()
	for errors.Is(err, ErrGateLocked) {
		select {
		case <-time.After(gateLockLook):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		unlock, err = c.GateLock(dir)
	}
	return unlock, err
}
