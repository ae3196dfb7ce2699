package gvisor

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/carboy/carboy/internal/bottle"
)

// A checkpoint of the files is an export during which all tasks stand still, so it is what
// the disk of a machine would hold after a power failure. The sentry remembers what each
// file was, so the next one has the contents of those only that have changed.

// stamp differs once a file has changed. The kernel inside sets ctime, to the nanosecond;
// no program inside can.
type stamp struct {
	ctime, size int64
	// sum is a digest of a file that programs map for writing: such writes change no time.
	// It is 0 for other files.
	sum uint64
}

// since compares files with those of the last checkpoint. Its inode numbers belong to one
// tmpfs, which uses none twice.
type since struct {
	last, now map[uint64]stamp
	skip      map[string]bool // paths in the stream whose contents are left out
}

// same notes a file, and reports whether it is what it was at the last checkpoint.
func (c *since) same(st *linux.Statx, sum uint64) bool {
	s := stamp{st.Ctime.Sec*1e9 + int64(st.Ctime.Nsec), int64(st.Size), sum}
	c.now[st.Ino] = s
	was, ok := c.last[st.Ino]
	return ok && was == s
}

// changed reports whether any file was made, changed or removed. Removing one changes its
// directory's ctime.
func (c *since) changed() bool {
	if len(c.last) != len(c.now) {
		return true
	}
	for ino, s := range c.now {
		if was, ok := c.last[ino]; !ok || was != s {
			return true
		}
	}
	return false
}

// sum returns a digest of an open tmpfs file's data if a program maps it so that it can
// write to it, else 0.
func (x *exporter) sum(fd *vfs.FileDescription, data []extent) (uint64, error) {
	pages, err := reach[uint64](fd.Dentry().Impl(), "inode", "impl", "writableMappingPages")
	if err != nil || *pages == 0 {
		return 0, err
	}
	h := sha256.New()
	hashed := &exporter{ctx: x.ctx, buf: x.buf, tw: &tarWriter{w: h}}
	for _, d := range data {
		fmt.Fprintln(h, d.off, d.len)
		if err := hashed.copy(fd, d); err != nil {
			return 0, err
		}
	}
	return binary.LittleEndian.Uint64(h.Sum(nil)) | 1, nil
}

// CheckpointArgs are the arguments of Side.Checkpoint; the file is the destination.
type CheckpointArgs struct {
	bottle.CheckpointOptions
	urpc.FilePayload
}

// Checkpoint pauses the kernel, writes the upper layer to the file, and lets it go on.
func (s *Side) Checkpoint(a *CheckpointArgs, r *bottle.Checkpointed) (err error) {
	if len(a.Files) != 1 {
		return fmt.Errorf("a checkpoint needs 1 file, got %d", len(a.Files))
	}
	k := sentryKernel.Load()
	if k == nil {
		return errors.New("the bottle has not started")
	}
	if a.Whole {
		s.last = nil
	}
	c := &since{last: s.last, now: make(map[uint64]stamp, len(s.last)), skip: map[string]bool{}}
	for _, p := range a.Skip {
		c.skip["."+p] = true
	}
	began := time.Now()
	k.Pause()
	defer func() {
		k.Unpause()
		if p := recover(); p != nil {
			err = fmt.Errorf("checkpoint: %v", p)
		}
		if r.Paused = time.Since(began); err == nil {
			r.Changed, s.last = c.changed(), c.now
		}
	}()
	_, err = exportUpper(k, "/", a.Files[0], c)
	return err
}

// Checkpoint implements bottle.Bottle.
func (x *box) Checkpoint(ctx context.Context, o bottle.CheckpointOptions, w io.Writer) (r bottle.Checkpointed, err error) {
	err = x.export(ctx, callCheckpoint, o, &r, w)
	return r, err
}

func (s *shim) checkpoint(body []byte, files []*os.File) (any, error) {
	var a CheckpointArgs
	if err := json.Unmarshal(body, &a.CheckpointOptions); err != nil {
		return nil, err
	}
	a.Files = files
	var r bottle.Checkpointed
	err := callSide("Checkpoint", &a, &r)
	return r, err
}
