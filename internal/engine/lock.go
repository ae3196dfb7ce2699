package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// A HeldError says that another process has the store, and which.
type HeldError struct {
	Path   string
	Holder Holder
}

// A Holder is a process that has a store. It is zero if the process has not said yet who it is.
type Holder struct {
	PID   int       `json:"pid"`
	Since time.Time `json:"since"`
}

func (e *HeldError) Error() string {
	if e.Holder.PID == 0 {
		return fmt.Sprintf("%s is held by another process", e.Path)
	}
	return fmt.Sprintf("%s is held by process %d since %s", e.Path, e.Holder.PID, e.Holder.Since.Format(time.DateTime))
}

// lock is the right to run what is in a store. The kernel takes it back when the process
// dies, in whatever way, and never while it lives, however long it is frozen.
type lock struct{ f *os.File }

// take takes the lock at path. It waits for nobody.
func take(ctx context.Context, path string) (*lock, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	for ctx.Err() == nil {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EWOULDBLOCK):
			held := &HeldError{Path: path}
			b, err := io.ReadAll(io.LimitReader(f, 4096))
			if err == nil && json.Unmarshal(b, &held.Holder) != nil {
				held.Holder = Holder{} // it is writing it
			}
			return nil, errors.Join(held, err, f.Close())
		case errors.Is(err, unix.EINTR):
			f.Close()
			continue
		case err != nil:
			f.Close()
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		// Whoever holds a file that was removed holds nothing.
		mine, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, err
		}
		if there, err := os.Stat(path); err != nil || !os.SameFile(mine, there) {
			f.Close()
			continue
		}
		b, err := json.Marshal(Holder{PID: os.Getpid(), Since: time.Now()})
		if err == nil {
			err = f.Truncate(0)
		}
		if err == nil {
			_, err = f.WriteAt(b, 0)
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return &lock{f}, nil
	}
	return nil, ctx.Err()
}

func (l *lock) release() error { return l.f.Close() }
