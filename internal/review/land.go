package review

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/store"
)

// RecoverLandings completes or rolls back the landings of processes that died. It skips a
// landing in progress, which holds its workspace's lock.
func (c *Reviewer) RecoverLandings(ctx context.Context) error {
	marks, err := store.Glob(c.StateDir(), "runs/*/land")
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range marks {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		rep, err := change.Recover(ctx, filepath.Dir(dir))
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			errs = append(errs, err)
			continue
		}
		if rep != nil && len(rep.Left) > 0 {
			c.Log.Warn("old files could not be put back", "run", filepath.Base(filepath.Dir(dir)), "paths", rep.Left)
		}
	}
	return errors.Join(errs...)
}
