package review

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/carboy/carboy/internal/store"
)

// CheckpointFile names the audit log's checkpoint among the evidence of a run.
const CheckpointFile = "checkpoint"

// AnsweredFile marks the directory of a run whose caller already has the result, while
// its records are still being written. Whoever reads the records waits for them.
const AnsweredFile = ".answered"

// settleIn bounds that wait: for the audit log, the receipt and the end of the bottle.
const settleIn = 30 * time.Second

// Settled returns m. If the records of its run are still being written (AnsweredFile), it
// waits for them and returns m as it is then.
func (c *Reviewer) Settled(ctx context.Context, m store.Meta) (store.Meta, error) {
	if m.State.Over() {
		return m, nil
	}
	if _, err := os.Lstat(filepath.Join(c.Store.RunDir(m.ID), AnsweredFile)); err != nil {
		return m, nil
	}
	ctx, cancel := context.WithTimeout(ctx, settleIn)
	defer cancel()
	if err := c.Store.Await(ctx, m.ID); err != nil {
		return m, fmt.Errorf("wait for the records of run %s: %w", m.ID, err)
	}
	return c.Store.Get(m.ID)
}
