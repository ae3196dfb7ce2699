package change

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	snapshotFile = "names"
	begunFile    = "begun.json"
)

// Baseline records the state of a workspace when its run began.
type Baseline struct {
	ID Identity

	marker marker
	runDir string
	root   int

	cancel context.CancelFunc
	done   chan struct{}
	err    error // of the snapshot, valid when done is closed
}

// Begin checks dir (see CheckWorkspace) and records its identity and the time
// of its file system. It starts to record the names below dir in runDir/upper
// in the background and returns within milliseconds. The caller must close the
// Baseline when the run is over; cancelling ctx also stops the recording.
func Begin(ctx context.Context, dir, runDir string) (*Baseline, error) {
	real, err := CheckWorkspace(dir)
	if err != nil {
		return nil, err
	}
	up := filepath.Join(runDir, upperDir)
	if err := os.MkdirAll(up, 0o700); err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	fd, id, err := openRoot(real)
	if err != nil {
		return nil, err
	}
	b := &Baseline{ID: id, runDir: runDir, root: fd, done: make(chan struct{})}
	if b.marker, err = takeMarker(ctx, fd, up); err != nil {
		unix.Close(fd)
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(up, snapshotFile), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("begin: %w", err)
	}
	ctx, b.cancel = context.WithCancel(ctx)
	go b.record(ctx, f) // ends by itself, by ctx or by Close, which waits
	return b, nil
}

func (b *Baseline) record(ctx context.Context, f *os.File) {
	defer close(b.done)
	b.err = writeSnapshot(ctx, b.root, f)
	b.err = errors.Join(b.err, f.Close())
}

// Wait blocks until all names are recorded. An error means that the record is
// incomplete: changes by the host are then detected by ctime alone.
func (b *Baseline) Wait(ctx context.Context) error {
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// begun is the content of begunFile.
type begun struct {
	Workspace Identity `json:"workspace"`
	Marker    marker   `json:"marker"`
	Boot      string   `json:"boot"` // of the host
}

// Save waits for the recording and writes to disk what Reopen needs.
func (b *Baseline) Save(ctx context.Context) error {
	if err := b.Wait(ctx); err != nil {
		return err
	}
	up := filepath.Join(b.runDir, upperDir)
	f, err := os.Open(filepath.Join(up, snapshotFile))
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	return writeJSON(filepath.Join(up, begunFile), &begun{b.ID, b.marker, bootID()})
}

// Reopen returns the Baseline that an earlier process saved in runDir. It fails with
// ErrWorkspaceReplaced if another directory is in the workspace's place. The caller must
// close it.
func Reopen(runDir string) (*Baseline, error) {
	name := filepath.Join(runDir, upperDir, begunFile)
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var was begun
	if err := json.Unmarshal(data, &was); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", show(name), ErrCorrupt, err)
	}
	b := &Baseline{ID: was.Workspace, marker: was.Marker, runDir: runDir, cancel: func() {}, done: make(chan struct{})}
	close(b.done)
	if was.Boot != bootID() {
		// How the clock went while the host was down is not known.
		b.marker.Offset = clockOffset()
	}
	b.root, err = reopenRoot(b.ID)
	return b, err
}

// bootID returns what identifies the time since the host was started.
func bootID() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
}

// Close stops the recording, waits for its end and releases the workspace.
func (b *Baseline) Close() error {
	b.cancel()
	<-b.done
	if b.root < 0 {
		return nil
	}
	err := unix.Close(b.root)
	b.root = -1
	return err
}

// writeJSON atomically replaces the file name with v in JSON, and syncs it.
func writeJSON(name string, v any) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".tmp-")
	if err != nil {
		return fmt.Errorf("write %s: %w", show(name), err)
	}
	err = json.NewEncoder(f).Encode(v)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", show(name), err)
	}
	return syncDir(filepath.Dir(name))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
