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
	MaxFiles     = 200_000
	MaxFileBytes = 128 << 20 // of one file
	MaxTreeBytes = 4 << 30
)

// FileMode is what a tree says of a file's type, as git does.
type FileMode uint32

// The modes that a file of a tree can have.
const (
	Regular    FileMode = 0o100644
	Executable FileMode = 0o100755
	Link       FileMode = 0o120000
)

// File is a file of a tree. Its content is with the tree's source; of a link it is
// where it leads.
type File struct {
	Path string // relative, slash-separated, without "." or ".."
	Mode FileMode
	Size int64
	// id is the source's name for the content; kind is git's for what it is, empty for
	// a blob.
	id, kind string
}

// source has the contents of files, in whatever order it likes.
type source interface {
	each(ctx context.Context, files []File, f func(File, []byte) error) error
}

// summed is a source that knows the SHA-256 of some of its contents.
type summed interface {
	sum(File) ([sha256.Size]byte, bool)
}

// Tree is the files of a commit, a directory or a run, as they are judged. It does not
// change.
type Tree struct {
	// Name is what was asked for, and Commit what that was, if it was one.
	Name, Commit string
	Run          string // the run whose changes are in it, or empty
	Files        []File // by path
	src          source
	repo         *Repository                  // nil: not a commit's
	sums         map[string][sha256.Size]byte // by path, once hashed

	// What was looked at to judge, beside what phases were seen to open. whole: all
	// of it.
	mu    sync.Mutex
	looks map[string]bool
	whole bool
}

// note remembers that a judgement depends on a file.
func (t *Tree) note(p string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.looks == nil {
		t.looks = map[string]bool{}
	}
	t.looks[p] = true
}

func (t *Tree) noteAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.whole = true
}

// TreeError is a tree that is not judged.
type TreeError struct {
	Tree, Path, Why string
}

func (e *TreeError) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("%s: %s", e.Tree, e.Why)
	}
	return fmt.Sprintf("%s: %q: %s", e.Tree, e.Path, e.Why)
}

// finish sorts and judges what a source listed.
func (t *Tree) finish() (*Tree, error) {
	slices.SortFunc(t.Files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	if len(t.Files) > MaxFiles {
		return nil, &TreeError{t.Name, "", fmt.Sprintf("has more than %d files", MaxFiles)}
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
		if f.Size > MaxFileBytes {
			return nil, &TreeError{t.Name, f.Path, fmt.Sprintf("has %d bytes; a gate takes files up to %d", f.Size, MaxFileBytes)}
		}
		if sum += f.Size; sum > MaxTreeBytes {
			return nil, &TreeError{t.Name, f.Path, fmt.Sprintf("the tree has more than %d bytes", int64(MaxTreeBytes))}
		}
	}
	return t, nil
}

// maxDepth bounds the names of a path.
const maxDepth = 255

// badPath says why a name cannot be laid out, or nothing. git itself may hold any.
func badPath(p string) string {
	switch {
	case p == "" || p == "." || len(p) > 4000 || strings.HasPrefix(p, "/") || path.Clean(p) != p:
		return "is no relative path"
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

// Lookup finds a file by its path.
func (t *Tree) Lookup(p string) (File, bool) {
	i, ok := slices.BinarySearchFunc(t.Files, p, func(f File, p string) int { return cmp.Compare(f.Path, p) })
	if !ok {
		return File{}, false
	}
	return t.Files[i], true
}

// names are the paths of its files, and of the directories that these lie in.
func (t *Tree) names() map[string]bool {
	out := map[string]bool{}
	for _, f := range t.Files {
		for p := f.Path; p != "." && !out[p]; p = path.Dir(p) {
			out[p] = true
		}
	}
	return out
}

// Read is the content of one file, fs.ErrNotExist when there is none.
func (t *Tree) Read(ctx context.Context, p string) ([]byte, error) {
	t.note(p)
	f, ok := t.Lookup(p)
	if !ok || f.Mode == Link {
		return nil, &fs.PathError{Op: "read", Path: p + " of " + t.Name, Err: fs.ErrNotExist}
	}
	var out []byte
	err := t.contents().each(ctx, []File{f}, func(_ File, b []byte) error { out = b; return nil })
	return out, err
}

// sameSource gives contents only as they were when the tree was hashed: a file of a
// directory can be exchanged between two looks, and what runs would not be what was
// judged.
type sameSource struct{ t *Tree }

func (s sameSource) each(ctx context.Context, files []File, f func(File, []byte) error) error {
	return s.t.src.each(ctx, files, func(x File, b []byte) error {
		if sum, ok := s.t.sums[x.Path]; ok && sum != sha256.Sum256(b) {
			return &TreeError{s.t.Name, x.Path, "was changed while it was judged; judge it again"}
		}
		return f(x, b)
	})
}

func (t *Tree) contents() source { return sameSource{t} }

// Each gives the contents of the files that pick chooses, in no order. The bytes are
// f's until it returns.
func (t *Tree) Each(ctx context.Context, pick func(File) bool, f func(File, []byte) error) error {
	return t.each(ctx, func(x File) bool {
		if !pick(x) {
			return false
		}
		t.note(x.Path)
		return true
	}, f)
}

func (t *Tree) each(ctx context.Context, pick func(File) bool, f func(File, []byte) error) error {
	var want []File
	for _, x := range t.Files {
		if pick(x) {
			want = append(want, x)
		}
	}
	return t.contents().each(ctx, want, f)
}

// hash computes the SHA-256 of every file, once.
func (t *Tree) hash(ctx context.Context) error {
	if t.sums != nil {
		return nil
	}
	sums := make(map[string][sha256.Size]byte, len(t.Files))
	var want []File
	for _, f := range t.Files {
		src, ok := t.src.(summed)
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

// sumOf are the SHA-256 of some files, by path; what is not there is left out.
func (t *Tree) sumOf(ctx context.Context, paths []string) (map[string][sha256.Size]byte, error) {
	out := map[string][sha256.Size]byte{}
	var want []File
	for _, p := range paths {
		f, ok := t.Lookup(p)
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

// Digest names all files with their modes and contents, in hexadecimal digits.
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

// Listing sums up the names of all files with modes and sizes, and where links lead.
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

// Difference is a path that is not the same in two trees. A nil side is absent.
type Difference struct {
	Path         string
	Base, Change *File
}

// Differences lists what differs from base to t, by path.
func (t *Tree) Differences(ctx context.Context, base *Tree) ([]Difference, error) {
	if err := errors.Join(base.hash(ctx), t.hash(ctx)); err != nil {
		return nil, err
	}
	base.noteAll()
	t.noteAll()
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

// laidOut is the time of every file of a tree that was laid out: times are inputs of
// what runs on it, and must not vary. Where phases have a cache of the base's, what is
// not the base's has another time: programs take a file for the same one by its time
// and size.
var (
	laidOut    = time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	laidOutNew = laidOut.Add(24 * time.Hour)
)

// sameAs reports for each file whether the other tree has the very same.
func (t *Tree) sameAs(ctx context.Context, other *Tree) (func(File) bool, error) {
	if err := errors.Join(t.hash(ctx), other.hash(ctx)); err != nil {
		return nil, err
	}
	return func(f File) bool {
		o, ok := other.Lookup(f.Path)
		return ok && o.Mode == f.Mode && other.sums[f.Path] == t.sums[f.Path]
	}, nil
}

// differing sums up the names of files that the base has not, or not so.
func (t *Tree) differing(ctx context.Context, base *Tree) (string, error) {
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

// LayOut writes the tree into dir, which it makes. Nothing is written outside of it,
// whatever the tree's links and names are. With base, files that are not as there have
// another time than the others.
func (t *Tree) LayOut(ctx context.Context, dir string, base *Tree) error {
	at := func(File) time.Time { return laidOut }
	if base != nil {
		same, err := t.sameAs(ctx, base)
		if err != nil {
			return err
		}
		at = func(f File) time.Time {
			if same(f) {
				return laidOut
			}
			return laidOutNew
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
		if f.Mode == Executable {
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
		if err := root.Chtimes(d, laidOut, laidOut); err != nil {
			return err
		}
	}
	return nil
}

// dirSource has the files of a directory.
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
	n, err := io.Copy(&b, io.LimitReader(r, MaxFileBytes+1))
	if err == nil && n > MaxFileBytes {
		err = fmt.Errorf("read %s: has more than %d bytes", x.Path, MaxFileBytes)
	}
	return b.Bytes(), err
}

// DirTree is the tree of a directory's files: those of paths, or all when that is nil.
// What is no file and no link is left out.
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
			return nil // listed, and deleted
		}
		if err != nil {
			return err
		}
		f := File{Path: p, Size: fi.Size()}
		switch {
		case fi.Mode().IsRegular() && fi.Mode()&0o100 != 0:
			f.Mode = Executable
		case fi.Mode().IsRegular():
			f.Mode = Regular
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
		return t.finish()
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
	return t.finish()
}

// overlaySource has changed files in one source and the others in another.
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
