// Package mirror keeps a directory of one machine equal to a directory of another, over
// frames: it brings the changes that were made there, then sends what is here. Start
// reading at [Take] and [Give], which are this side's, and [Offer] and [Receive], which are
// the machine's.
package mirror

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/carboy/carboy/internal/safetext"
)

// Bounds of one directory.
const (
	maxEntries = 2 << 20
	maxPath    = 4096
	maxBytes   = 256 << 30
)

// Kind says what a path leads to. Sockets, devices and pipes are left out.
type Kind string

// Kinds of paths.
const (
	File Kind = "f"
	Dir  Kind = "d"
	Link Kind = "l"
)

// Entry describes one path of a directory.
type Entry struct {
	Path   string `json:"p"` // relative, with slashes
	Kind   Kind   `json:"k"`
	Mode   uint32 `json:"m,omitempty"` // permissions; not of links
	Size   int64  `json:"s,omitempty"` // bytes; of files
	Time   int64  `json:"t,omitempty"` // of the last change of content, in ns since 1970; of files
	Target string `json:"l,omitempty"` // of links
	// Touched dates the machine's last change of the file or of what it knows of it, in
	// ns since 1970. Only the machine compares it, with what it noted itself.
	Touched int64 `json:"c,omitempty"`
}

// same reports whether a and b are equal, as far as the two machines can tell.
func same(a, b *Entry) bool {
	if a == nil || b == nil {
		return a == b
	}
	if a.Kind != b.Kind {
		return false
	}
	switch a.Kind {
	case File:
		return a.Size == b.Size && a.Time == b.Time && a.Mode == b.Mode
	case Link:
		return a.Target == b.Target
	}
	return true
}

// index returns entries by their paths.
func index(all []Entry) map[string]*Entry {
	out := make(map[string]*Entry, len(all))
	for i := range all {
		out[all[i].Path] = &all[i]
	}
	return out
}

// check refuses an entry that can't be one of a directory.
func (e *Entry) check() error {
	if e == nil {
		return nil
	}
	if e.Path == "" || e.Path == "." || len(e.Path) > maxPath || !utf8.ValidString(e.Path) || strings.Contains(e.Path, "\x00") || !filepath.IsLocal(e.Path) || filepath.Clean(e.Path) != e.Path {
		return fmt.Errorf("%s is not a path inside a directory", quoted(e.Path))
	}
	if e.Kind != File && e.Kind != Dir && e.Kind != Link || e.Mode&^0o777 != 0 || e.Size < 0 || len(e.Target) > maxPath || strings.Contains(e.Target, "\x00") || (e.Kind == Link) == (e.Target == "") {
		return fmt.Errorf("%s is described as something that is neither file, directory nor link", quoted(e.Path))
	}
	return nil
}

func quoted(path string) string { return `"` + safetext.String(path, 200) + `"` }

// Scan lists what is in dir, each directory before what is in it. It leaves out what is not
// a file, directory or link, and names that are not UTF-8, which macOS can't have. A
// missing dir is an empty one.
func Scan(ctx context.Context, dir string) ([]Entry, error) {
	var out []Entry
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, fs.ErrNotExist):
			return nil // removed meanwhile
		case err != nil:
			return err
		case path == dir && !d.IsDir():
			return &fs.PathError{Op: "list", Path: dir, Err: errors.New("is not a directory")}
		case path == dir:
			return nil
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if !utf8.ValidString(rel) {
			return skip(d)
		}
		fi, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		e, err := describe(rel, fi, func() (string, error) { return os.Readlink(path) })
		if err != nil || e == nil {
			return err
		}
		if len(out) == maxEntries {
			return fmt.Errorf("%s holds more than %d paths, too many to copy: share it with the machine instead", dir, maxEntries)
		}
		out = append(out, *e)
		return nil
	})
	return out, err
}

func skip(d fs.DirEntry) error {
	if d.IsDir() {
		return fs.SkipDir
	}
	return nil
}

// describe returns the entry of path, or nil if it is left out.
func describe(path string, fi fs.FileInfo, readlink func() (string, error)) (*Entry, error) {
	e := &Entry{Path: path, Mode: uint32(fi.Mode().Perm()), Touched: touched(fi)}
	switch {
	case fi.Mode().IsRegular():
		e.Kind, e.Size, e.Time = File, fi.Size(), fi.ModTime().UnixNano()
	case fi.IsDir():
		e.Kind, e.Touched = Dir, 0
	case fi.Mode()&fs.ModeSymlink != 0:
		target, err := readlink()
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		e.Kind, e.Mode, e.Target, e.Touched = Link, 0, target, 0
	default:
		return nil, nil
	}
	return e, nil
}

// look returns the entry of path below root, nil if there is none or it is left out.
func look(root *os.Root, path string) (e *Entry, there bool, err error) {
	fi, err := root.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	e, err = describe(path, fi, func() (string, error) { return root.Readlink(path) })
	return e, true, err
}
