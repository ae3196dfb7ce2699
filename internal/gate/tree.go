package gate

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/change"
)

// Bounds of a tree.
const (
	maxFiles     = 200_000
	maxFileBytes = 128 << 20 // of one file
	maxTreeBytes = 4 << 30
)

// FileMode is git's mode of a file.
type FileMode uint32

// The modes of files in a tree.
const (
	regular    FileMode = 0o100644
	executable FileMode = 0o100755
	Link       FileMode = 0o120000
)

// File is a file of a tree. The tree's source has its content; that of a link is its
// target.
type File struct {
	Path string // relative, slash-separated, without "." or ".."
	Mode FileMode
	Size int64
	// id is the source's name of the content. kind is git's type of the object, empty for
	// a blob.
	id, kind string
}

// source reads the contents of files, in any order.
type source interface {
	each(ctx context.Context, files []File, f func(File, []byte) error) error
}

// summedSource is a source that knows the SHA-256 of some contents.
type summedSource interface {
	sum(File) ([sha256.Size]byte, bool)
}

// Tree is an immutable list of the files of a commit, a directory or a run.
type Tree struct {
	// Name is the name that the user gave, and Commit the commit, if it is one.
	Name, Commit string
	Run          string // the run whose changes are in it, or empty
	Files        []File // by path
	src          source
	repo         *Repository                  // nil: not from a commit
	sums         map[string][sha256.Size]byte // by path, after hash

	// The files that evaluators read, beside those that phases opened. allRead: all of
	// them.
	mu      sync.Mutex
	read    map[string]bool
	allRead bool
}

// noteRead records that the verdict depends on a file.
func (t *Tree) noteRead(p string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.read == nil {
		t.read = map[string]bool{}
	}
	t.read[p] = true
}

func (t *Tree) noteAllRead() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.allRead = true
}

// TreeError means that a tree is refused.
type TreeError struct {
	Tree, Path, Why string
}

func (e *TreeError) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("%s: %s", e.Tree, e.Why)
	}
	return fmt.Sprintf("%s: %q: %s", e.Tree, e.Path, e.Why)
}

// validate sorts the listed files, and checks their names and sizes.
func (t *Tree) validate() (*Tree, error) {
	slices.SortFunc(t.Files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	if len(t.Files) > maxFiles {
		return nil, &TreeError{t.Name, "", fmt.Sprintf("has more than %d files", maxFiles)}
	}
	var sum int64
	dirs := map[string]bool{}
	for _, f := range t.Files {
		for d := path.Dir(f.Path); d != "." && d != "/" && !dirs[d]; d = path.Dir(d) {
			dirs[d] = true
		}
	}
	for i, f := range t.Files {
		if why := badPath(f.Path); why != "" {
			return nil, &TreeError{t.Name, f.Path, why}
		}
		if i > 0 && t.Files[i-1].Path == f.Path || dirs[f.Path] {
			return nil, &TreeError{t.Name, f.Path, "is there twice"}
		}
		if f.Size > maxFileBytes {
			return nil, &TreeError{t.Name, f.Path, fmt.Sprintf("has %d bytes; a gate takes files up to %d", f.Size, maxFileBytes)}
		}
		if sum += f.Size; sum > maxTreeBytes {
			return nil, &TreeError{t.Name, f.Path, fmt.Sprintf("the tree has more than %d bytes", int64(maxTreeBytes))}
		}
	}
	return t, nil
}

// maxDepth bounds the elements of a path.
const maxDepth = 255

// badPath says why a path cannot be laid out, or returns nothing. git objects can hold
// any name.
func badPath(p string) string {
	switch {
	case p == "" || p == "." || len(p) > 4000 || strings.HasPrefix(p, "/") || path.Clean(p) != p:
		return "is not a clean relative path"
	case strings.IndexByte(p, 0) >= 0:
		return "has a NUL"
	}
	if strings.Count(p, "/") >= maxDepth {
		return "lies in more than 254 directories"
	}
	for _, e := range strings.Split(p, "/") {
		if e == ".." || change.SameName(e, ".git") {
			return "leads out of the tree, or into git's own files"
		}
	}
	return ""
}

// lookup returns the file at a path.
func (t *Tree) lookup(p string) (File, bool) {
	i, ok := slices.BinarySearchFunc(t.Files, p, func(f File, p string) int { return cmp.Compare(f.Path, p) })
	if !ok {
		return File{}, false
	}
	return t.Files[i], true
}

// names returns the paths of files and of their parent directories.
func (t *Tree) names() map[string]bool {
	out := map[string]bool{}
	for _, f := range t.Files {
		for p := f.Path; p != "." && !out[p]; p = path.Dir(p) {
			out[p] = true
		}
	}
	return out
}

// Read returns the content of a file. The error is fs.ErrNotExist if there is none, also
// for a link.
func (t *Tree) Read(ctx context.Context, p string) ([]byte, error) {
	t.noteRead(p)
	f, ok := t.lookup(p)
	if !ok || f.Mode == Link {
		return nil, &fs.PathError{Op: "read", Path: p + " of " + t.Name, Err: fs.ErrNotExist}
	}
	var out []byte
	err := t.contents().each(ctx, []File{f}, func(_ File, b []byte) error { out = b; return nil })
	return out, err
}

// verifiedSource fails if a content is not the one that was hashed: a file of a directory
// can be replaced between two reads, and then a phase would run other content than was
// judged.
type verifiedSource struct{ t *Tree }

func (s verifiedSource) each(ctx context.Context, files []File, f func(File, []byte) error) error {
	return s.t.src.each(ctx, files, func(x File, b []byte) error {
		if sum, ok := s.t.sums[x.Path]; ok && sum != sha256.Sum256(b) {
			return &TreeError{s.t.Name, x.Path, "was changed while it was judged; judge it again"}
		}
		return f(x, b)
	})
}

func (t *Tree) contents() source { return verifiedSource{t} }

// Each calls f with the content of each file that selected reports, in any order. f must not
// keep the bytes.
func (t *Tree) Each(ctx context.Context, selected func(File) bool, f func(File, []byte) error) error {
	return t.each(ctx, func(x File) bool {
		if !selected(x) {
			return false
		}
		t.noteRead(x.Path)
		return true
	}, f)
}

func (t *Tree) each(ctx context.Context, selected func(File) bool, f func(File, []byte) error) error {
	var want []File
	for _, x := range t.Files {
		if selected(x) {
			want = append(want, x)
		}
	}
	return t.contents().each(ctx, want, f)
}

// hash computes the SHA-256 of all files, once.
func (t *Tree) hash(ctx context.Context) error {
	if t.sums != nil {
		return nil
	}
	sums := make(map[string][sha256.Size]byte, len(t.Files))
	var want []File
	for _, f := range t.Files {
		src, ok := t.src.(summedSource)
		if ok {
			sums[f.Path], ok = src.sum(f)
		}
		if !ok {
			delete(sums, f.Path)
			want = append(want, f)
		}
	}
	err := t.src.each(ctx, want, func(f File, b []byte) error {
		sums[f.Path] = sha256.Sum256(b)
		return nil
	})
	if err == nil && len(sums) != len(t.Files) {
		err = &TreeError{t.Name, "", "some of its files can't be read"}
	}
	if err == nil {
		t.sums = sums
	}
	return err
}

// sumOf returns the SHA-256 of some files, by path. It leaves out missing files.
func (t *Tree) sumOf(ctx context.Context, paths []string) (map[string][sha256.Size]byte, error) {
	out := map[string][sha256.Size]byte{}
	var want []File
	for _, p := range paths {
		f, ok := t.lookup(p)
		if !ok {
			continue
		}
		if s, ok := t.sums[p]; ok {
			out[p] = s
		} else {
			want = append(want, f)
		}
	}
	if len(want) == 0 {
		return out, nil
	}
	err := t.contents().each(ctx, want, func(f File, b []byte) error { out[f.Path] = sha256.Sum256(b); return nil })
	return out, err
}

// Digest returns a digest of all paths, modes and contents, in hexadecimal digits.
func (t *Tree) Digest(ctx context.Context) (string, error) {
	if err := t.hash(ctx); err != nil {
		return "", err
	}
	h := sha256.New()
	for _, f := range t.Files {
		s := t.sums[f.Path]
		fmt.Fprintf(h, "%o %x %d %s\x00", f.Mode, s, f.Size, f.Path)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Listing returns a digest of all paths, modes, sizes and link targets, in hexadecimal
// digits.
func (t *Tree) Listing(ctx context.Context) (string, error) {
	links := map[string]string{}
	err := t.each(ctx, func(f File) bool { return f.Mode == Link }, func(f File, b []byte) error {
		links[f.Path] = string(b)
		return nil
	})
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, f := range t.Files {
		fmt.Fprintf(h, "%o %d %q %q\n", f.Mode, f.Size, f.Path, links[f.Path])
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Difference is a path that differs between two trees; nil: it is missing there.
type Difference struct {
	Path         string
	Base, Change *File
}

// Differences returns what differs from base to t, sorted by path.
func (t *Tree) Differences(ctx context.Context, base *Tree) ([]Difference, error) {
	if err := errors.Join(base.hash(ctx), t.hash(ctx)); err != nil {
		return nil, err
	}
	base.noteAllRead()
	t.noteAllRead()
	var out []Difference
	i, j := 0, 0
	for i < len(base.Files) || j < len(t.Files) {
		switch {
		case j == len(t.Files) || i < len(base.Files) && base.Files[i].Path < t.Files[j].Path:
			out = append(out, Difference{base.Files[i].Path, &base.Files[i], nil})
			i++
		case i == len(base.Files) || base.Files[i].Path > t.Files[j].Path:
			out = append(out, Difference{t.Files[j].Path, nil, &t.Files[j]})
			j++
		default:
			a, b := &base.Files[i], &t.Files[j]
			if a.Mode != b.Mode || base.sums[a.Path] != t.sums[b.Path] {
				out = append(out, Difference{a.Path, a, b})
			}
			i, j = i+1, j+1
		}
	}
	return out, nil
}

// baseFileTime is the time of all files of a tree in a bottle, since file times are
// inputs, too, and must not vary. In a bottle with a cache of the base, files that differ
// from the base have changedFileTime: programs recognize an unchanged file by time and
// size.
var (
	baseFileTime    = time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	changedFileTime = baseFileTime.Add(24 * time.Hour)
)

// sameAs returns a function that reports whether the other tree has the same file.
func (t *Tree) sameAs(ctx context.Context, other *Tree) (func(File) bool, error) {
	if err := errors.Join(t.hash(ctx), other.hash(ctx)); err != nil {
		return nil, err
	}
	return func(f File) bool {
		o, ok := other.lookup(f.Path)
		return ok && o.Mode == f.Mode && other.sums[f.Path] == t.sums[f.Path]
	}, nil
}

// differingDigest returns a digest of the paths that are not the same in base.
func (t *Tree) differingDigest(ctx context.Context, base *Tree) (string, error) {
	same, err := t.sameAs(ctx, base)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, f := range t.Files {
		if !same(f) {
			fmt.Fprintf(h, "%q\n", f.Path)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// LayOut creates dir and writes the tree into it. Links and names of the tree cannot make
// it write elsewhere. If base is not nil, files that differ from it get a time of their
// own.
func (t *Tree) LayOut(ctx context.Context, dir string, base *Tree) error {
	at := func(File) time.Time { return baseFileTime }
	if base != nil {
		same, err := t.sameAs(ctx, base)
		if err != nil {
			return err
		}
		at = func(f File) time.Time {
			if same(f) {
				return baseFileTime
			}
			return changedFileTime
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	dirs := map[string]bool{".": true}
	write := func(f File, b []byte) error {
		if d := path.Dir(f.Path); !dirs[d] {
			if err := root.MkdirAll(d, 0o755); err != nil {
				return err
			}
			for ; !dirs[d]; d = path.Dir(d) {
				dirs[d] = true
			}
		}
		if f.Mode == Link {
			return root.Symlink(string(b), f.Path)
		}
		w, err := root.OpenFile(f.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = w.Write(b)
		mode := fs.FileMode(0o644)
		if f.Mode == executable {
			mode = 0o755
		}
		return errors.Join(err, w.Chmod(mode), w.Close())
	}
	// Links come last, so that no file is written through one.
	for _, links := range []bool{false, true} {
		if err := t.each(ctx, func(f File) bool { return (f.Mode == Link) == links }, write); err != nil {
			return fmt.Errorf("lay out %s: %w", t.Name, err)
		}
	}
	return setTimes(root, t.Files, dirs, at)
}

func setTimes(root *os.Root, files []File, dirs map[string]bool, at func(File) time.Time) error {
	for _, f := range files {
		if f.Mode == Link {
			d, err := root.Open(path.Dir(f.Path))
			if err != nil {
				return err
			}
			ts := []unix.Timespec{unix.NsecToTimespec(at(f).UnixNano()), unix.NsecToTimespec(at(f).UnixNano())}
			err = unix.UtimesNanoAt(int(d.Fd()), path.Base(f.Path), ts, unix.AT_SYMLINK_NOFOLLOW)
			if d.Close(); err != nil {
				return err
			}
			continue
		}
		if err := root.Chtimes(f.Path, at(f), at(f)); err != nil {
			return err
		}
	}
	deep := make([]string, 0, len(dirs))
	for d := range dirs {
		deep = append(deep, d)
	}
	slices.SortFunc(deep, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, d := range deep {
		if err := root.Chtimes(d, baseFileTime, baseFileTime); err != nil {
			return err
		}
	}
	return nil
}

// dirSource reads contents from a directory.
type dirSource struct{ dir string }

func (s dirSource) each(ctx context.Context, files []File, f func(File, []byte) error) error {
	root, err := os.OpenRoot(s.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, x := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		b, err := readIn(root, x)
		if err != nil {
			return err
		}
		if err := f(x, b); err != nil {
			return err
		}
	}
	return nil
}

func readIn(root *os.Root, x File) ([]byte, error) {
	if x.Mode == Link {
		to, err := root.Readlink(x.Path)
		return []byte(to), err
	}
	r, err := root.OpenFile(x.Path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var b bytes.Buffer
	n, err := io.Copy(&b, io.LimitReader(r, maxFileBytes+1))
	if err == nil && n > maxFileBytes {
		err = fmt.Errorf("read %s: has more than %d bytes", x.Path, maxFileBytes)
	}
	return b.Bytes(), err
}

// DirTree returns the tree of a directory: its files at paths, or all if paths is nil. It
// leaves out everything but regular files and links.
func DirTree(name, dir string, paths []string) (*Tree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	t := &Tree{Name: name, src: dirSource{dir}}
	add := func(p string) error {
		fi, err := root.Lstat(p)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // deleted since it was listed
		}
		if err != nil {
			return err
		}
		f := File{Path: p, Size: fi.Size()}
		switch {
		case fi.Mode().IsRegular() && fi.Mode()&0o100 != 0:
			f.Mode = executable
		case fi.Mode().IsRegular():
			f.Mode = regular
		case fi.Mode()&fs.ModeSymlink != 0:
			f.Mode = Link
		default:
			return nil
		}
		t.Files = append(t.Files, f)
		return nil
	}
	if paths != nil {
		for _, p := range paths {
			if why := badPath(p); why != "" {
				return nil, &TreeError{name, p, why}
			}
			if err := add(p); err != nil {
				return nil, err
			}
		}
		return t.validate()
	}
	err = fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.EqualFold(d.Name(), ".git"):
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		return add(p)
	})
	if err != nil {
		return nil, err
	}
	return t.validate()
}

// overlaySource reads changed files from one source and the others from another.
type overlaySource struct {
	base    source
	changed map[string]func() (io.ReadCloser, error)
}

func (s overlaySource) each(ctx context.Context, files []File, f func(File, []byte) error) error {
	var rest []File
	for _, x := range files {
		open := s.changed[x.Path]
		if open == nil {
			rest = append(rest, x)
			continue
		}
		b, err := readAll(open, x)
		if err != nil {
			return err
		}
		if err := f(x, b); err != nil {
			return err
		}
	}
	return s.base.each(ctx, rest, f)
}

func readAll(open func() (io.ReadCloser, error), x File) ([]byte, error) {
	r, err := open()
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(r, x.Size+1))
	if err = errors.Join(err, r.Close()); err == nil && int64(len(b)) != x.Size {
		err = fmt.Errorf("read %s: its size is not what was recorded", x.Path)
	}
	return b, err
}
