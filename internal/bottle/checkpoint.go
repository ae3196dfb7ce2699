package bottle

import (
	"context"
	"crypto/sha256"
	"io"
	"sync"
	"time"
)

// CheckpointOptions configures Bottle.Checkpoint.
type CheckpointOptions struct {
	Whole bool // write the contents of all files
	// Skip lists directories, absolute and clean paths inside, whose contents may be left
	// out.
	Skip []string
}

// Checkpointed describes a copy.
type Checkpointed struct {
	// Changed is false if nothing has changed since the last Checkpoint.
	Changed bool          `json:"changed"`
	Paused  time.Duration `json:"paused"` // how long the processes stood still
}

// WholeCopies makes the checkpoints of a bottle whose backend can't tell what has changed:
// each has all contents. The zero value is ready. It is safe for concurrent use.
type WholeCopies struct {
	mu   sync.Mutex
	last [sha256.Size]byte
}

// goOnIn bounds the time for processes to go on.
const goOnIn = time.Minute

// Checkpoint implements Bottle.Checkpoint by functions that pause the bottle, write all of
// it, and let it go on.
func (c *WholeCopies) Checkpoint(ctx context.Context, pause, goOn func(context.Context) error, export func(context.Context, io.Writer) error, o CheckpointOptions, w io.Writer) (r Checkpointed, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	began := time.Now()
	if err := pause(ctx); err != nil {
		return r, err
	}
	sum := sha256.New()
	err = export(ctx, io.MultiWriter(w, sum))
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), goOnIn)
	defer cancel()
	if gerr := goOn(late); err == nil {
		err = gerr
	}
	r.Paused = time.Since(began)
	if err != nil {
		return r, err
	}
	now := [sha256.Size]byte(sum.Sum(nil))
	r.Changed, c.last = o.Whole || now != c.last, now
	return r, nil
}
