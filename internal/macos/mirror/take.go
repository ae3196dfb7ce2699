package mirror

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/carboy/carboy/internal/macos/frames"
	"github.com/carboy/carboy/internal/rootfile"
)

// change is one path that differs from what both sides had.
type change struct {
	Old *Entry `json:"old,omitempty"` // nil: the path is new
	New *Entry `json:"new,omitempty"` // nil: the path is gone
}

// Offer sends what changed in dir since base was noted, and returns what is there now. It
// blocks until the other side has taken it.
func Offer(ctx context.Context, p frames.Peer, dir string, base []Entry) ([]Entry, error) {
	now, err := Scan(ctx, dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		root, now, base = nil, nil, nil // nothing is known, so nothing was removed either
	} else if err != nil {
		return nil, err
	} else {
		defer root.Close()
	}
	for _, c := range changes(base, now) {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		if err := p.SendJSON(frames.Change, c); err != nil {
			return nil, err
		}
		if c.New != nil && c.New.Kind == File {
			if err := sendFile(p, root, c.New, true); err != nil {
				return nil, err
			}
		}
	}
	if err := p.Send(frames.End, nil); err != nil {
		return nil, err
	}
	_, err = frames.Expect(p, frames.Result)
	return now, err
}

// changes returns what makes base into now: removals from the depth up, then the rest from
// the top down. A path that became something else is removed first.
func changes(base, now []Entry) []change {
	was := index(base)
	var gone, rest []change
	for i := range now {
		e := &now[i]
		old := was[e.Path]
		delete(was, e.Path)
		switch {
		case old != nil && same(old, e) && old.Touched == e.Touched:
		case old != nil && old.Kind != e.Kind:
			gone = append(gone, change{Old: old})
			rest = append(rest, change{New: e})
		default:
			rest = append(rest, change{Old: old, New: e})
		}
	}
	for _, e := range was {
		gone = append(gone, change{Old: e})
	}
	slices.SortFunc(gone, func(a, b change) int { return -bytes.Compare([]byte(a.Old.Path), []byte(b.Old.Path)) })
	return append(gone, rest...)
}

// sendFile sends the content of a file, at most as much as e says. One that was removed
// meanwhile, or became a pipe or the like, is empty. If whole is set, less than e says is
// an error, and the other side's file stays.
func sendFile(p frames.Peer, root *os.Root, e *Entry, whole bool) error {
	sent := int64(0)
	f, err := root.OpenFile(e.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err == nil {
		defer f.Close()
		if fi, serr := f.Stat(); serr == nil && fi.Mode().IsRegular() {
			sent, err = io.CopyBuffer(dataWriter{p}, io.LimitReader(f, e.Size), make([]byte, frames.Chunk))
		}
	}
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case whole && sent < e.Size:
		return fmt.Errorf("%s changed while it was read; try again", quoted(e.Path))
	}
	return p.Send(frames.Data, nil)
}

// dataWriter sends what is written as pieces of a file.
type dataWriter struct{ p frames.Peer }

func (w dataWriter) Write(b []byte) (int, error) { return len(b), w.p.Send(frames.Data, b) }

// Taken says what [Take] did not do.
type Taken struct {
	// Kept are paths that changed on both sides. This side's stayed.
	Kept []string
	// Aside is the directory with the machine's files of those paths; empty: none was
	// written.
	Aside string
}

// Take receives the changes that [Offer] sends, and makes them in dir, where the path is
// still what both sides had. Otherwise it puts the machine's file below aside. Nothing is
// written outside these two directories, whatever the machine sends.
func Take(p frames.Peer, dir, aside string) (*Taken, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	t := &taker{Taken: &Taken{}, p: p, root: root, aside: aside}
	for n := 0; ; n++ {
		k, b, err := p.Recv()
		switch {
		case err != nil:
			return t.Taken, err
		case k == frames.Fail:
			return t.Taken, &frames.FailError{Text: string(b)}
		case k == frames.End:
			return t.Taken, p.Send(frames.Result, nil)
		case k != frames.Change || n == maxEntries:
			return t.Taken, fmt.Errorf("the machine sent %q where a change was due", byte(k))
		}
		if err := t.one(b); err != nil {
			return t.Taken, err
		}
	}
}

type taker struct {
	*Taken
	p     frames.Peer
	root  *os.Root
	aside string
	bytes int64
}

func (t *taker) one(b []byte) error {
	var c change
	if err := json.Unmarshal(b, &c); err != nil {
		return fmt.Errorf("the machine sent a change that is none: %w", err)
	}
	if err := errors.Join(c.Old.check(), c.New.check()); err != nil {
		return fmt.Errorf("the machine sent a change that was not made: %w", err)
	}
	if c.Old == nil && c.New == nil || c.Old != nil && c.New != nil && c.Old.Path != c.New.Path {
		return errors.New("the machine sent a change of no path or of two")
	}
	path := c.path()
	here, there, err := look(t.root, path)
	if err != nil {
		return err
	}
	ours := there && here == nil // a socket or the like, which only this side has
	// Such a file's content changed, and its size and time were put back.
	hidden := c.Old != nil && same(c.Old, c.New)
	switch {
	case !ours && same(here, c.New) && !hidden:
		return t.drop(c.New)
	case ours || !same(here, c.Old):
		return t.keep(c.New, path)
	case c.New == nil:
		return t.remove(path)
	}
	return t.write(t.root, c.New, true)
}

func (c change) path() string {
	if c.New != nil {
		return c.New.Path
	}
	return c.Old.Path
}

// drop reads the content of a file that is here already.
func (t *taker) drop(e *Entry) error {
	if e == nil || e.Kind != File {
		return nil
	}
	return t.content(io.Discard)
}

// keep leaves this side's path, and puts the machine's aside.
func (t *taker) keep(e *Entry, path string) error {
	t.Kept = append(t.Kept, path)
	if e == nil || e.Kind != File || t.aside == "" {
		return t.drop(e)
	}
	if err := os.MkdirAll(t.aside, 0o700); err != nil {
		return err
	}
	t.Aside = t.aside
	root, err := os.OpenRoot(t.aside)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return t.write(root, e, true)
}

func (t *taker) remove(path string) error {
	if err := t.root.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Kept = append(t.Kept, path) // such as a directory with files that only this side has
	}
	return nil
}

// write makes e below root. A file is on the disk before it has its name.
func (t *taker) write(root *os.Root, e *Entry, durable bool) error {
	switch e.Kind {
	case Dir:
		if err := root.Mkdir(e.Path, fs.FileMode(e.Mode)|0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return root.Chmod(e.Path, fs.FileMode(e.Mode)|0o700)
	case Link:
		return rootfile.Replace(root, e.Path, func(temporary string) error { return root.Symlink(e.Target, temporary) })
	}
	return rootfile.Replace(root, e.Path, func(temporary string) error {
		f, err := root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		err = t.content(f)
		if durable {
			err = errors.Join(err, f.Sync())
		}
		if err = errors.Join(err, f.Chmod(fs.FileMode(e.Mode)), f.Close()); err != nil {
			return err
		}
		return root.Chtimes(temporary, time.Now(), time.Unix(0, e.Time))
	})
}

// content copies the data of one file to w.
func (t *taker) content(w io.Writer) error {
	for {
		b, err := frames.Expect(t.p, frames.Data)
		if err != nil {
			return err
		}
		if len(b) == 0 {
			return nil
		}
		if t.bytes += int64(len(b)); t.bytes > maxBytes {
			return fmt.Errorf("more than %d bytes at once: share the directory with the machine instead", int64(maxBytes))
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
}
