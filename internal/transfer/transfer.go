// Package transfer copies files out of a bottle, and into it, as tar streams.
//
// A stream that comes out of a bottle is not trusted: neither its format, names, links and
// modes nor its length. Out writes only below one new directory, which gets its final name
// when the copy is complete, and never changes existing files. It creates links last, so
// that it follows none, and only those that stay within the copy. It omits and reports
// set-user-id bits, devices, pipes and unprintable names.
//
// Start reading at [Out].
package transfer

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/progress"
	"github.com/carboy/carboy/internal/safetext"
)

// Bounds limits a copy. The zero value of a field is its default.
type Bounds struct {
	Bytes   int64 // sum of file sizes, holes included; default 10 GiB
	Entries int64 // default 500,000
}

func (l Bounds) orDefaults() Bounds {
	if l.Bytes == 0 {
		l.Bytes = 10 << 30
	}
	if l.Entries == 0 {
		l.Entries = 500_000
	}
	return l
}

// maxPath bounds a path within the copy, in bytes; maxDepth bounds its components.
const (
	maxPath  = 3000
	maxDepth = 200
)

// Report says what was copied.
type Report struct {
	Entries, Bytes int64
	Left           []string // what was omitted and why, printable; at most 20
	More           int64    // number of further omissions
}

const maxLeft = 20

func (r *Report) left(name, why string) {
	if len(r.Left) < maxLeft {
		r.Left = append(r.Left, safetext.Path([]byte(name[:min(len(name), maxPath)]))+": "+why)
		return
	}
	r.More++
}

// Error says why a stream was rejected.
type Error struct {
	Name   string // of the entry; "" if it concerns the whole stream
	Reason string
	Err    error
}

func (e *Error) Error() string {
	s := e.Reason
	if e.Name != "" {
		s = safetext.Path([]byte(e.Name[:min(len(e.Name), maxPath)])) + ": " + s
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Out reads a tar stream from r, whose entries must all be at or below the name base, and
// writes it to the directory dir under a new name. Before the copy gets that name, Out calls
// whole, unless it is nil, which returns an error if the stream is incomplete.
func Out(ctx context.Context, r io.Reader, base, dir, name string, l Bounds, whole func() error) (Report, error) {
	o := &out{ctx: ctx, in: tar.NewReader(progress.Reader(ctx, reader{ctx, r})), base: base, limits: l.orDefaults(), links: map[string]string{}, whole: whole}
	if err := o.into(dir, name); err != nil {
		return o.report, err
	}
	return o.report, nil
}

// out copies one tree out of a bottle.
type out struct {
	ctx    context.Context
	in     *tar.Reader
	base   string
	limits Bounds
	report Report
	whole  func() error

	root  *os.Root
	dirs  []dirMode
	links map[string]string // created last
}

type dirMode struct {
	name string
	mode fs.FileMode
}

// top is the name of the tree until it is complete.
const top = "it"

func (o *out) into(dir, name string) (err error) {
	parent, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("open %s: %w", safetext.Path([]byte(dir)), err)
	}
	defer parent.Close()
	if _, err := parent.Lstat(name); err == nil {
		return &fs.PathError{Op: "copy", Path: filepath.Join(dir, name), Err: fs.ErrExist}
	}
	tmp := ".carboy-cp-" + rand.Text()
	if err := parent.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, parent.RemoveAll(tmp)) }()
	if o.root, err = parent.OpenRoot(tmp); err != nil {
		return err
	}
	defer o.root.Close()
	if err := o.read(); err != nil {
		return err
	}
	if err := o.finish(); err != nil {
		return err
	}
	if o.whole != nil {
		if err := o.whole(); err != nil {
			return err
		}
	}
	if _, err := o.root.Lstat(top); err != nil {
		return &Error{Reason: "nothing that can be taken out came" + o.first()}
	}
	at, err := parent.Open(".")
	if err != nil {
		return err
	}
	defer at.Close()
	if err := unix.Renameat2(int(at.Fd()), tmp+"/"+top, int(at.Fd()), name, unix.RENAME_NOREPLACE); err != nil {
		return &fs.PathError{Op: "copy", Path: filepath.Join(dir, name), Err: err}
	}
	return nil
}

// first returns the first omission, for a copy with nothing else.
func (o *out) first() string {
	if len(o.report.Left) == 0 {
		return ""
	}
	return " (" + o.report.Left[0] + ")"
}

func (o *out) read() error {
	for {
		h, err := o.in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			if cause := context.Cause(o.ctx); cause != nil {
				return cause
			}
			return &Error{Reason: "what came is no archive", Err: err}
		}
		if o.report.Entries++; o.report.Entries > o.limits.Entries {
			return &Error{Reason: fmt.Sprintf("more than %d files", o.limits.Entries)}
		}
		name, err := o.name(h.Name)
		if err != nil {
			return err
		}
		if err := o.entry(name, h); err != nil {
			return err
		}
	}
}

// name returns the path of an entry below root. An entry outside of base is an error.
func (o *out) name(s string) (string, error) {
	if len(s) > maxPath || strings.Count(s, "/") > maxDepth {
		return "", &Error{Name: s, Reason: "its name is too long or too deep"}
	}
	clean := strings.TrimSuffix(strings.TrimPrefix(s, "./"), "/")
	if clean == "" || path.IsAbs(s) || path.Clean(clean) != clean || clean == ".." || strings.HasPrefix(clean, "../") || strings.ContainsRune(clean, 0) {
		return "", &Error{Name: s, Reason: "is no name that was asked for"}
	}
	first, rest, below := strings.Cut(clean, "/")
	if first != o.base {
		return "", &Error{Name: s, Reason: "was not asked for"}
	}
	if below {
		return top + "/" + rest, nil
	}
	return top, nil
}

// given returns an entry's name in the bottle, for messages.
func (o *out) given(name string) string { return o.base + strings.TrimPrefix(name, top) }

func (o *out) entry(name string, h *tar.Header) error {
	if !safetext.Clean(strings.TrimPrefix(name, top)) {
		o.report.left(o.given(name), "its name does not show as it is")
		return nil
	}
	mode := fs.FileMode(h.Mode) & 0o755 // others never get write permission
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		if err = o.root.Mkdir(name, 0o700); err == nil {
			o.dirs = append(o.dirs, dirMode{name, mode | 0o700})
		}
	case tar.TypeReg, tar.TypeGNUSparse:
		err = o.file(name, mode|0o600, h.Size)
	case tar.TypeSymlink:
		if _, twice := o.links[name]; twice {
			err = fs.ErrExist
		} else if !within(name, h.Linkname) {
			o.report.left(o.given(name), "it is a link that leads out of what was copied")
		} else {
			o.links[name] = h.Linkname
		}
	case tar.TypeLink:
		err = o.hard(name, h.Linkname)
	default:
		o.report.left(o.given(name), "it is neither a file, nor a directory, nor a link")
	}
	if err == nil {
		return nil
	}
	var mine *Error
	switch {
	case errors.As(err, &mine):
		return err
	case errors.Is(err, fs.ErrExist):
		return &Error{Name: o.given(name), Reason: "comes twice"}
	case errors.Is(err, fs.ErrNotExist):
		return &Error{Name: o.given(name), Reason: "comes without its directory"}
	}
	return &Error{Name: o.given(name), Reason: "can't be written", Err: err}
}

func (o *out) file(name string, mode fs.FileMode, size int64) error {
	if size > o.limits.Bytes-o.report.Bytes {
		return &Error{Name: o.given(name), Reason: fmt.Sprintf("with it there are more than %d bytes (--max-bytes)", o.limits.Bytes)}
	}
	f, err := o.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(o.in, size))
	o.report.Bytes += n
	return errors.Join(err, f.Close())
}

// hard creates another name of an earlier file.
func (o *out) hard(name, target string) error {
	to, err := o.name(target)
	if err != nil {
		return &Error{Name: o.given(name), Reason: "it is a link to what was not asked for"}
	}
	fi, err := o.root.Lstat(to)
	if err != nil || !fi.Mode().IsRegular() {
		o.report.left(o.given(name), "it is a link to what did not come")
		return nil
	}
	return o.root.Link(to, name)
}

// within reports whether a symbolic link at name stays below top. The target may have ".."
// only at its beginning, where it passes directories that Out created: after another
// component, which may be a link, ".." could lead elsewhere.
func within(name, target string) bool {
	if target == "" || path.IsAbs(target) || len(target) > maxPath || !safetext.Clean(target) {
		return false
	}
	depth, down := strings.Count(name, "/"), false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if depth--; down || depth < 1 {
				return false
			}
		default:
			down = true
		}
	}
	return depth >= 1
}

// finish creates the links and then sets the modes of directories, deepest first.
func (o *out) finish() error {
	names := make([]string, 0, len(o.links))
	for name := range o.links {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := context.Cause(o.ctx); err != nil {
			return err
		}
		err := o.root.Symlink(o.links[name], name)
		switch {
		case errors.Is(err, fs.ErrExist):
			return &Error{Name: o.given(name), Reason: "comes twice"}
		case err != nil:
			return &Error{Name: o.given(name), Reason: "can't be written", Err: err}
		}
	}
	for _, d := range slices.Backward(o.dirs) {
		if err := o.root.Chmod(d.name, d.mode); err != nil {
			return err
		}
	}
	return nil
}

// In writes the file or directory src to w as a tar stream under a name. It does not follow
// links.
func In(ctx context.Context, w io.Writer, src, name string, l Bounds) (Report, error) {
	l = l.orDefaults()
	var r Report
	out := tar.NewWriter(w)
	dir, base := filepath.Split(filepath.Clean(src))
	if dir == "" {
		dir = "."
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return r, err
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), base, func(p string, d fs.DirEntry, err error) error {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if r.Entries++; r.Entries > l.Entries {
			return &Error{Reason: fmt.Sprintf("more than %d files", l.Entries)}
		}
		fi, err := root.Lstat(p)
		if err != nil {
			return err
		}
		h := &tar.Header{Name: "./" + name + strings.TrimPrefix(p, base), Mode: int64(fi.Mode().Perm()), ModTime: fi.ModTime(), Format: tar.FormatPAX}
		switch {
		case fi.IsDir():
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		case fi.Mode()&fs.ModeSymlink != 0:
			h.Typeflag = tar.TypeSymlink
			if h.Linkname, err = root.Readlink(p); err != nil {
				return err
			}
		case fi.Mode().IsRegular():
			return inFile(ctx, out, root, p, h, &r, l)
		default:
			r.left(p, "it is neither a file, nor a directory, nor a link")
			return nil
		}
		return out.WriteHeader(h)
	})
	return r, errors.Join(err, out.Close())
}

// inFile writes a file, up to the size that it has when it is opened.
func inFile(ctx context.Context, out *tar.Writer, root *os.Root, p string, h *tar.Header, r *Report, l Bounds) error {
	f, err := root.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		return &Error{Name: p, Reason: "was replaced"}
	}
	if h.Typeflag, h.Size = tar.TypeReg, fi.Size(); h.Size > l.Bytes-r.Bytes {
		return &Error{Name: p, Reason: fmt.Sprintf("with it there are more than %d bytes (--max-bytes)", l.Bytes)}
	}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.CopyN(out, progress.Reader(ctx, reader{ctx, f}), h.Size)
	r.Bytes += n
	if err == io.EOF {
		return &Error{Name: p, Reason: "got shorter while it was read"}
	}
	return err
}

// reader reads until its context ends.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(b []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}
