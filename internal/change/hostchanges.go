package change

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// HostChange is one path of the host's directory that changed since the run
// began.
type HostChange struct {
	Path Bytes `json:"path"`
	Kind Kind  `json:"kind"` // Add, Modify (content, mode or both), Delete, Retype
	Type Type  `json:"type"` // the present type; for a deletion, the former one
}

// HostChanges lists the paths that changed in a workspace that the bottle
// shared (bind), for the receipt. It cannot tell who changed them, and the old
// contents are gone. A deleted directory is one change; a new directory is one
// change for each file in it. At most max changes are listed
// (DefaultMaxEntries if max is not positive); a note says when there are more,
// or why something may be missing.
func HostChanges(ctx context.Context, b *Baseline, max int) (changes []HostChange, notes []string, err error) {
	if max <= 0 {
		max = defaultMaxEntries
	}
	if err := b.Wait(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		notes = append(notes, "the names that existed when the run began were not all recorded: "+err.Error())
	}
	h := &hostDiff{ctx: ctx, t: tree{b.root}, max: max, buf: make([]byte, 64<<10)}
	var note string
	if h.threshold, note = b.marker.threshold(clockOffset()); note != "" {
		notes = append(notes, note)
	}
	f, err := os.Open(filepath.Join(b.runDir, upperDir, snapshotFile))
	if err != nil {
		return nil, notes, fmt.Errorf("compare workspace: %w", err)
	}
	defer f.Close()
	err = h.all(bufio.NewReaderSize(f, 256<<10))
	slices.SortFunc(h.out, func(a, b HostChange) int { return pathCompare(string(a.Path), string(b.Path)) })
	switch {
	case err == errStop:
		notes = append(notes, fmt.Sprintf("more than %d paths changed; the rest is not listed", max))
	case err != nil:
		return nil, notes, fmt.Errorf("compare workspace: %w", err)
	}
	return h.out, notes, nil
}

type hostDiff struct {
	ctx       context.Context
	t         tree
	threshold int64
	max       int
	buf       []byte
	out       []HostChange
}

func (h *hostDiff) add(rel string, k Kind, t Type) error {
	if len(h.out) >= h.max {
		return errStop
	}
	h.out = append(h.out, HostChange{Bytes(rel), k, t})
	return nil
}

// all compares the snapshot with the host one directory at a time, so that
// memory does not grow with the workspace.
func (h *hostDiff) all(r *bufio.Reader) error {
	magic := make([]byte, len(snapshotMagic))
	if _, err := io.ReadFull(r, magic); err != nil || string(magic) != snapshotMagic {
		return ErrCorrupt
	}
	for {
		if err := h.ctx.Err(); err != nil {
			return err
		}
		if b, err := r.Peek(len(snapshotMagic)); err != nil || string(b) == snapshotMagic {
			return nil
		}
		dir, was, err := readSnapshotDir(r, func(string) bool { return true })
		if err != nil {
			return nil // torn: what was read counts
		}
		if err := h.dir(dir, was); err != nil {
			return err
		}
	}
}

func (h *hostDiff) dir(dir string, was map[string]dirent) error {
	now := map[string]dirent{}
	err := h.t.list(dir, h.buf, func(e dirent) error { now[e.name] = e; return nil })
	if err != nil {
		return nil // gone or no directory any more: reported with its parent
	}
	for name, e := range was {
		if _, ok := now[name]; !ok {
			if err := h.add(join(dir, name), Delete, e.typ); err != nil {
				return err
			}
		}
	}
	for name, e := range now {
		if err := h.name(join(dir, name), e, was); err != nil {
			return err
		}
	}
	return nil
}

func (h *hostDiff) name(rel string, now dirent, was map[string]dirent) error {
	old, existed := was[now.name]
	st, err := h.t.lstat(rel)
	if err != nil {
		return nil // just deleted, or a mount point
	}
	typ := typeOfMode(st.Mode)
	moved := existed && old.ino != now.ino && usualIno(old.ino) && usualIno(now.ino)
	switch {
	case !existed:
		if err := h.add(rel, Add, typ); err != nil {
			return err
		}
	case old.typ != "" && old.typ != typ:
		if err := h.add(rel, Retype, typ); err != nil {
			return err
		}
	case typ != Dir && (moved || st.Ctim.Nano() >= h.threshold):
		return h.add(rel, Modify, typ)
	}
	if typ == Dir && (!existed || old.typ != Dir) {
		return h.fresh(rel)
	}
	return nil
}

// fresh adds everything below a directory that is not in the snapshot.
func (h *hostDiff) fresh(dir string) error {
	if strings.Count(dir, "/") >= maxDepth {
		return nil
	}
	var subs []dirent
	err := h.t.list(dir, h.buf, func(e dirent) error { subs = append(subs, e); return nil })
	if err != nil {
		return nil
	}
	for _, e := range subs {
		if err := h.ctx.Err(); err != nil {
			return err
		}
		rel := join(dir, e.name)
		st, err := h.t.lstat(rel)
		if err == unix.ENOENT {
			continue
		}
		typ := e.typ
		if err == nil {
			typ = typeOfMode(st.Mode)
		}
		if err := h.add(rel, Add, typ); err != nil {
			return err
		}
		if typ == Dir {
			if err := h.fresh(rel); err != nil {
				return err
			}
		}
	}
	return nil
}
