package erofs

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// TreeOptions say how a tree of this machine appears in an image.
type TreeOptions struct {
	// Owner maps the ids of a file; nil keeps them.
	Owner func(uid, gid uint32) (uint32, uint32)
	// Readable reports whether a file or directory may be read inside. Whoever has the
	// image has all of it, so what may not is left empty. Nil: it may be.
	Readable func(mode, uid, gid uint32) bool
	// Empty are directories whose contents are left out, by their paths in the tree.
	Empty []string
	// Opaque marks the tree's directory, see Attr.
	Opaque bool
}

// tree is a directory or file of this machine. Its files' contents are read when the
// image is written.
type tree struct {
	top  *os.File // opened with O_PATH or for reading
	file bool
	opt  TreeOptions
	seen map[[2]uint64]*node // files with several names
	sum  hash.Hash           // of what was found
}

// Tree adds the directory or regular file that from refers to, at p, in place of what
// is there. It follows no links. Set-id bits, devices and attributes beyond Attr are
// left out; what may not be read, by this process or inside, is empty and has no
// permissions. Tree reads
// directories now and files in [Builder.Write], so from must stay open until then. A path
// that is too long for the system's calls is an error.
//
// The digest that it returns changes if any file of the tree does: it covers names,
// attributes, and times of change, not contents.
func (b *Builder) Tree(p string, from *os.File, o TreeOptions) (digest [32]byte, err error) {
	t := &tree{top: from, opt: o, seen: map[[2]uint64]*node{}, sum: sha256.New()}
	var st unix.Stat_t
	if err := unix.Fstat(int(from.Fd()), &st); err != nil {
		return digest, &os.PathError{Op: "stat", Path: from.Name(), Err: err}
	}
	var n *node
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		t.file = true
		n = t.node("", ".", &st)
	case unix.S_IFDIR:
		if n = t.node("", ".", &st); n.shut {
			break
		}
		fd, err := openBelow(from, ".", unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return digest, &os.PathError{Op: "open", Path: from.Name(), Err: err}
		}
		if err := t.fill(n, fd, ""); err != nil {
			return digest, fmt.Errorf("read %s: %w", from.Name(), err)
		}
	default:
		return digest, fmt.Errorf("%s is neither a directory nor a regular file", from.Name())
	}
	n.opaque = o.Opaque && n.dir()
	if p == "/" {
		if !n.dir() {
			return digest, fmt.Errorf("%s can't be the root of an image", from.Name())
		}
		b.root = n
	} else {
		at, name, err := b.parent(p)
		if err != nil {
			return digest, err
		}
		n.name = name
		at.put(n)
	}
	return [32]byte(t.sum.Sum(nil)), nil
}

// openBelow opens a path of a tree. No part of it may be a link.
func openBelow(top *os.File, rel string, flags uint64) (*os.File, error) {
	fd, err := unix.Openat2(int(top.Fd()), rel, &unix.OpenHow{
		Flags:   flags | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), rel), nil
}

// node makes the node of a file and adds it to the digest.
func (t *tree) node(name, rel string, st *unix.Stat_t) *node {
	n := &node{
		name: name, mode: st.Mode &^ (unix.S_ISUID | unix.S_ISGID), uid: st.Uid, gid: st.Gid,
		sec: st.Mtim.Sec, nsec: uint32(st.Mtim.Nsec),
	}
	if t.opt.Owner != nil {
		n.uid, n.gid = t.opt.Owner(n.uid, n.gid)
	}
	if kind := n.mode & unix.S_IFMT; kind != unix.S_IFLNK && t.opt.Readable != nil && !t.opt.Readable(st.Mode, st.Uid, st.Gid) {
		n.mode, n.shut = kind, true
	} else if kind == unix.S_IFREG {
		n.size, n.tree, n.rel = st.Size, t, rel
	}
	var b [80]byte
	for i, v := range []uint64{uint64(n.mode), uint64(n.uid)<<32 | uint64(n.gid), uint64(st.Size), st.Ino, uint64(st.Dev),
		uint64(st.Mtim.Sec), uint64(st.Mtim.Nsec), uint64(st.Ctim.Sec), uint64(st.Ctim.Nsec), uint64(len(rel))} {
		binary.LittleEndian.PutUint64(b[8*i:], v)
	}
	if n.dir() {
		clear(b[16:24]) // a directory's size says nothing about its files
	}
	t.sum.Write(b[:])
	io.WriteString(t.sum, rel)
	return n
}

// fill reads the directory d, and those in it, into n. It closes d.
func (t *tree) fill(n *node, d *os.File, rel string) error {
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	slices.Sort(names)
	n.kids = make([]*node, 0, len(names))
	for _, name := range names {
		kid, err := t.kid(d, name, strings.TrimPrefix(rel+"/"+name, "/"))
		if err != nil {
			return err
		}
		if kid != nil {
			n.kids = append(n.kids, kid)
		}
	}
	return nil
}

// kid returns the node of one name in d; nil: it is gone, or nothing for an image.
func (t *tree) kid(d *os.File, name, rel string) (*node, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil, nil
		}
		return nil, &os.PathError{Op: "stat", Path: rel, Err: err}
	}
	if len(rel) >= unix.PathMax {
		return nil, fmt.Errorf("the path %.100q… has more than %d bytes: remove or rename what is there", rel, unix.PathMax-1)
	}
	n := t.node(name, rel, &st)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if st.Nlink > 1 {
			id := [2]uint64{uint64(st.Dev), st.Ino}
			if first := t.seen[id]; first != nil {
				n.same = first
			} else {
				t.seen[id] = n
			}
		}
	case unix.S_IFLNK:
		to, err := readlink(d, name)
		if err != nil {
			return nil, &os.PathError{Op: "readlink", Path: rel, Err: err}
		}
		n.text, n.size = to, int64(len(to))
		t.sum.Write(to)
	case unix.S_IFDIR:
		if n.shut || slices.Contains(t.opt.Empty, rel) {
			return n, nil
		}
		next, err := openBelow(d, name, unix.O_RDONLY|unix.O_DIRECTORY)
		if errors.Is(err, unix.EACCES) {
			n.mode &= unix.S_IFMT
			return n, nil
		}
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: rel, Err: err}
		}
		return n, t.fill(n, next, rel)
	case unix.S_IFIFO, unix.S_IFSOCK:
	default:
		return nil, nil // a device
	}
	return n, nil
}

func readlink(d *os.File, name string) ([]byte, error) {
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(d.Fd()), name, b)
	if err != nil {
		return nil, err
	}
	return slices.Clone(b[:n]), nil
}

// open opens the content of a file; nil: this process may not read it, or it is gone.
func (n *node) open() (*os.File, error) {
	t := n.tree
	if t.file {
		f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", t.top.Fd()), os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil, err
		}
		return regular(f)
	}
	f, err := openBelow(t.top, n.rel, unix.O_RDONLY)
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return nil, nil
	case err != nil:
		return nil, &os.PathError{Op: "open", Path: n.rel, Err: err}
	}
	return regular(f)
}

// regular closes what is no regular file any more.
func regular(f *os.File) (*os.File, error) {
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		f.Close()
		return nil, err
	}
	return f, nil
}

// TreeSize returns the bytes of the files in a tree, or a number above limit as soon as
// there are more.
func TreeSize(from *os.File, limit int64) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(from.Fd()), &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: from.Name(), Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return st.Size, nil
	}
	d, err := openBelow(from, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: from.Name(), Err: err}
	}
	return sizeOf(d, limit)
}

// sizeOf closes d.
func sizeOf(d *os.File, limit int64) (total int64, err error) {
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		var st unix.Stat_t
		if unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			total += st.Size
		case unix.S_IFDIR:
			next, err := openBelow(d, name, unix.O_RDONLY|unix.O_DIRECTORY)
			if err != nil {
				continue // Tree says why, if it matters
			}
			n, err := sizeOf(next, limit-total)
			if err != nil {
				return 0, err
			}
			total += n
		}
		if total > limit {
			break
		}
	}
	return total, nil
}
