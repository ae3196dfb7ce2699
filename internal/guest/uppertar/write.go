package uppertar

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	maxPath    = 4096 // PATH_MAX; a deeper file could not be created from its name
	copyBuffer = 256 << 10
	// minHole is the smallest total of holes for which a file is written as
	// sparse: a map costs three blocks.
	minHole = 4 * tarBlock

	attrOpaque = "trusted.overlay.opaque"
	recXattr   = "SCHILY.xattr."
	recOpaque  = recXattr + attrOpaque
	recType    = "CARBOY.type"
	recDropped = "CARBOY.dropped-xattrs"
)

// Writer packs layers into one stream. What the bottle made cannot stop it: attributes
// that do not fit are left out and counted in CARBOY.dropped-xattrs, and a directory whose
// path is too long is written without its contents.
type Writer struct {
	bw  *bufio.Writer
	tw  *tarWriter
	buf []byte
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer {
	bw := bufio.NewWriterSize(w, copyBuffer)
	return &Writer{bw: bw, tw: &tarWriter{w: bw}, buf: make([]byte, copyBuffer)}
}

// Close ends the stream.
func (w *Writer) Close() error {
	if err := w.tw.close(); err != nil {
		return err
	}
	return w.bw.Flush()
}

// Layer packs the directory fd and all below it. Names in the stream are below at, a
// path without leading slash; empty for the root.
func (w *Writer) Layer(fd int, at string) error {
	path := "."
	if at != "" {
		path = "./" + at
	}
	p := &packer{Writer: w, first: map[inode]string{}}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	// Its own description: reading a directory moves its offset.
	dir, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return p.dir(dir, path, &st)
}

// Below packs the directory at of the layer fd, a path without leading slash, and all below
// it. The stream has the directories above it too, without what else is in them: one may hide
// what was there. Where one of these is gone, or is no directory any more, the stream says
// that and ends.
func (w *Writer) Below(fd int, at string) error {
	dir, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { unix.Close(dir) }()
	p := &packer{Writer: w, first: map[inode]string{}}
	path := "."
	for at != "" {
		name, rest, more := strings.Cut(at, "/")
		at, path = rest, path+"/"+name
		var st unix.Stat_t
		if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return gone(err)
		}
		if !more || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return p.one(dir, name, path)
		}
		next, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return gone(err)
		}
		unix.Close(dir)
		dir = next
		e, err := entry(&st, path)
		if err != nil {
			return err
		}
		attributes(dir, e)
		if p.tw.header(e); p.tw.err != nil {
			return p.tw.err
		}
	}
	return w.Layer(dir, "")
}

type inode struct{ dev, ino uint64 }

type packer struct {
	*Writer
	first map[inode]string // first name of files with several
}

// one packs the entry name of the directory at.
func (p *packer) one(at int, name, path string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return gone(err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return gone(err)
		}
		return p.dir(fd, path, &st)
	}
	if st.Nlink > 1 && !whiteout(&st) {
		key := inode{uint64(st.Dev), st.Ino}
		if first, ok := p.first[key]; ok {
			p.tw.header(&tarEntry{typ: tarLink, name: path, link: first, mode: st.Mode & 0o7777})
			return p.tw.err
		}
		p.first[key] = path
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		return p.file(at, name, path, &st)
	}
	e, err := entry(&st, path)
	if err != nil {
		return err
	}
	if e.typ == tarSymlink {
		if e.link, err = readlink(at, name); err != nil {
			return gone(err)
		}
	}
	p.tw.header(e)
	return p.tw.err
}

// gone returns nil for a file that has vanished meanwhile.
func gone(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func whiteout(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

func readlink(at int, name string) (string, error) {
	buf := make([]byte, maxPath+1)
	n, err := unix.Readlinkat(at, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func entry(st *unix.Stat_t, path string) (*tarEntry, error) {
	e := &tarEntry{
		name: path, mode: st.Mode & 0o7777, uid: st.Uid, gid: st.Gid, mtime: max(int64(st.Mtim.Sec), 0),
		major: unix.Major(uint64(st.Rdev)), minor: unix.Minor(uint64(st.Rdev)),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		e.typ, e.name = tarDir, path+"/"
	case unix.S_IFREG:
		e.typ, e.size = tarRegular, st.Size
	case unix.S_IFLNK:
		e.typ = tarSymlink
	case unix.S_IFIFO:
		e.typ = tarFifo
	case unix.S_IFBLK:
		e.typ = tarBlockDev
	case unix.S_IFCHR:
		e.typ = tarChar
	case unix.S_IFSOCK:
		e.typ, e.major, e.minor = tarChar, 0, 0
		e.pax = map[string]string{recType: "socket"}
	default:
		return nil, fmt.Errorf("%q: unknown file type %o", path, st.Mode)
	}
	return e, nil
}

// dir packs a directory and closes fd.
func (p *packer) dir(fd int, path string, st *unix.Stat_t) error {
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	e, err := entry(st, path)
	if err != nil {
		return err
	}
	attributes(fd, e)
	p.tw.header(e)
	if p.tw.err != nil || len(path) > maxPath {
		return p.tw.err
	}
	names, err := f.Readdirnames(-1)
	if err != nil {
		return gone(err)
	}
	sort.Strings(names)
	for _, n := range names {
		if err := p.one(fd, n, path+"/"+n); err != nil {
			return err
		}
	}
	return nil
}

// attributes adds the extended attributes of fd to e: the user's, and the mark of an
// opaque directory. The overlay's others belong to this mount.
func attributes(fd int, e *tarEntry) {
	list := make([]byte, 64<<10)
	n, err := unix.Flistxattr(fd, list)
	if err != nil || n == 0 {
		return // not every kind of file can have any
	}
	names := strings.Split(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00")
	sort.Strings(names)
	e.pax = map[string]string{}
	size, dropped := 0, 0
	for _, name := range names {
		if name == attrOpaque {
			e.pax[recOpaque] = "y"
			continue
		}
		if !strings.HasPrefix(name, "user.") {
			continue
		}
		v := make([]byte, 64<<10)
		n, err := unix.Fgetxattr(fd, name, v)
		if err != nil {
			continue
		}
		key := recXattr + name
		// A reader would take an empty value for "no record".
		if n == 0 || strings.Contains(name, "=") || size+len(key)+n > maxPax-maxPath*4 {
			dropped++
			continue
		}
		size += len(key) + n + 16
		e.pax[key] = string(v[:n])
	}
	if dropped > 0 {
		e.pax[recDropped] = fmt.Sprint(dropped)
	}
}

func (p *packer) file(at int, name, path string, st *unix.Stat_t) error {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return gone(err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	// Another file may stand there by now.
	if err := unix.Fstat(fd, st); err != nil {
		return err
	}
	e, err := entry(st, path)
	if err != nil || e.typ != tarRegular {
		return err
	}
	attributes(fd, e)
	data, err := extents(fd, e.size)
	if err != nil {
		return fmt.Errorf("read %q: %w", path, err)
	}
	var stored int64
	for _, d := range data {
		stored += d.len
	}
	if e.size-stored < minHole {
		data = []extent{{0, e.size}}
		p.tw.header(e)
	} else {
		p.tw.sparseHeader(e, e.size, data)
	}
	for _, d := range data {
		if err := p.copy(f, d); err != nil {
			return fmt.Errorf("read %q: %w", path, err)
		}
	}
	p.tw.pad()
	return p.tw.err
}

// extents returns where fd has data. After maxExtents the rest counts as data.
func extents(fd int, size int64) (out []extent, err error) {
	for off := int64(0); off < size; {
		from, err := unix.Seek(fd, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil { // this file system cannot tell
			return []extent{{0, size}}, nil
		}
		to, err := unix.Seek(fd, from, unix.SEEK_HOLE)
		if err != nil {
			return nil, err
		}
		from, to = min(from, size), min(to, size)
		if len(out) == maxExtents-1 {
			to = size
		}
		if to > from {
			out = append(out, extent{from, to - from})
		}
		off = to
	}
	return out, nil
}

// copy writes exactly d.len bytes. If the file was truncated meanwhile, it writes zeros.
func (p *packer) copy(f *os.File, d extent) error {
	for d.len > 0 && p.tw.err == nil {
		b := p.buf[:min(d.len, int64(len(p.buf)))]
		n, err := f.ReadAt(b, d.off)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		clear(b[n:])
		p.tw.Write(b)
		d.off, d.len = d.off+int64(len(b)), d.len-int64(len(b))
	}
	return p.tw.err
}
