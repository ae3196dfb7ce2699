package gvisor

import (
	"bufio"
	"fmt"
	"io"
	"sort"
	"strings"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
)

// The exporter writes a part of the overlay's upper layer as a tar stream. It
// runs inside the sentry, because only there the layer's names exist. It
// replaces gVisor's own TarRootfsUpperLayer, which holds every file completely
// in memory: one sparse file of a terabyte would end the sandbox and lose all
// changes.
//
// The stream: names are "./" and the path from the bottle's root; directories
// end in a slash; parents come before children, children in byte order; a
// directory above the exported one appears alone, for its attributes. A deleted
// file is a character device 0,0. An opaque directory has the record
// SCHILY.xattr.trusted.overlay.opaque=y. Sparse files are GNU 1.0. Sockets
// cannot be in a tar and are written as deletions with the record
// CARBOY.type=socket: what they replaced is gone.
//
// Nothing that the bottle made can stop the export. Attributes that do not fit
// are left out and counted in CARBOY.dropped-xattrs. A directory whose path is
// longer than maxExportPath is written without its contents; its name, too long
// for a reader of the stream to accept, reports that.
//
// A checkpoint's stream has more: see package checkpoint.

const (
	maxExportPath = 4096 // PATH_MAX; a deeper file could not be created from its name
	copyBuffer    = 256 << 10
	// minHole is the smallest total of holes for which a file is written as
	// sparse: a map costs three blocks.
	minHole = 4 * tarBlock

	recOpaque  = "SCHILY.xattr.trusted.overlay.opaque"
	recXattr   = "SCHILY.xattr."
	recType    = "CARBOY.type"
	recDropped = "CARBOY.dropped-xattrs"
)

type exporter struct {
	ctx   context.Context
	vfs   *vfs.VirtualFilesystem
	creds *auth.Credentials
	root  vfs.VirtualDentry // of the upper layer
	tw    *tarWriter
	first map[uint64]string // first name of files with several
	buf   []byte
	files int64
	since *since // nil: this is no checkpoint
}

// exportUpper writes the upper layer below prefix, an absolute and clean path
// inside; "/" for all of it. With since, files that have not changed come without content.
func exportUpper(k *kernel.Kernel, prefix string, w io.Writer, since *since) (int64, error) {
	ctx := k.SupervisorContext()
	root, err := upperRoot(k)
	if err != nil {
		return 0, err
	}
	defer root.DecRef(ctx)
	bw := bufio.NewWriterSize(w, copyBuffer)
	x := &exporter{
		ctx: ctx, vfs: k.VFS(), creds: auth.NewRootCredentials(k.RootUserNamespace()), root: root,
		tw: &tarWriter{w: bw}, first: map[uint64]string{}, buf: make([]byte, copyBuffer), since: since,
	}
	if err := x.descend(prefix); err != nil {
		return x.files, err
	}
	if err := x.tw.close(); err != nil {
		return x.files, err
	}
	return x.files, bw.Flush()
}

// descend writes the directories above prefix, then prefix with all below it.
func (x *exporter) descend(prefix string) error {
	at, name := x.root, "."
	at.IncRef()
	defer func() { at.DecRef(x.ctx) }()
	for _, part := range strings.Split(strings.Trim(prefix, "/"), "/") {
		if part == "" {
			break
		}
		st, err := x.stat(at, "")
		if err != nil {
			return err
		}
		e, err := x.entry(at, "", name, &st)
		if err != nil {
			return err
		}
		x.tw.header(e)
		next, err := x.get(at, part)
		if linuxerr.Equals(linuxerr.ENOENT, err) {
			return nil // nothing was written there
		}
		if err != nil {
			return fmt.Errorf("look up %q: %w", name+"/"+part, err)
		}
		at.DecRef(x.ctx)
		at, name = next, name+"/"+part
		if st, err = x.stat(at, ""); err != nil {
			return err
		}
		if st.Mode&linux.S_IFMT != linux.S_IFDIR {
			return x.one(at, "", name)
		}
	}
	return x.one(at, "", name)
}

func (x *exporter) pop(at vfs.VirtualDentry, name string) *vfs.PathOperation {
	return &vfs.PathOperation{Root: x.root, Start: at, Path: fspath.Parse(name)}
}

func (x *exporter) get(at vfs.VirtualDentry, name string) (vfs.VirtualDentry, error) {
	return x.vfs.GetDentryAt(x.ctx, x.creds, x.pop(at, name), &vfs.GetDentryOptions{})
}

func (x *exporter) stat(at vfs.VirtualDentry, name string) (linux.Statx, error) {
	return x.vfs.StatAt(x.ctx, x.creds, x.pop(at, name), &vfs.StatOptions{Mask: linux.STATX_BASIC_STATS})
}

// one writes the entry name of the directory at, whose path in the stream is
// path, and everything below it. Without a pause, files may vanish meanwhile,
// which is no error.
func (x *exporter) one(at vfs.VirtualDentry, name, path string) error {
	st, err := x.stat(at, name)
	if err != nil {
		return gone(err)
	}
	x.files++
	if st.Mode&linux.S_IFMT == linux.S_IFDIR {
		return x.dir(at, name, path, &st)
	}
	if st.Nlink > 1 && !isWhiteoutStat(&st) {
		if first, ok := x.first[st.Ino]; ok {
			x.tw.header(&tarEntry{typ: tarLink, name: path, link: first, mode: uint32(st.Mode)})
			return x.tw.err
		}
		x.first[st.Ino] = path
	}
	e, err := x.entry(at, name, path, &st)
	if err != nil {
		return gone(err)
	}
	if e.typ == tarRegular {
		return x.file(at, name, e, &st)
	}
	if x.since != nil {
		x.since.same(&st, 0)
	}
	x.tw.header(e)
	return x.tw.err
}

func gone(err error) error {
	if linuxerr.Equals(linuxerr.ENOENT, err) {
		return nil
	}
	return err
}

func isWhiteoutStat(st *linux.Statx) bool {
	return st.Mode&linux.S_IFMT == linux.S_IFCHR && st.RdevMajor == 0 && st.RdevMinor == 0
}

func (x *exporter) entry(at vfs.VirtualDentry, name, path string, st *linux.Statx) (*tarEntry, error) {
	e := &tarEntry{
		name: path, mode: uint32(st.Mode) & 0o7777, uid: st.UID, gid: st.GID, mtime: max(st.Mtime.Sec, 0),
		major: st.RdevMajor, minor: st.RdevMinor,
	}
	switch st.Mode & linux.S_IFMT {
	case linux.S_IFDIR:
		e.typ, e.name = tarDir, path+"/"
	case linux.S_IFREG:
		e.typ, e.size = tarRegular, int64(st.Size)
	case linux.S_IFLNK:
		to, err := x.vfs.ReadlinkAt(x.ctx, x.creds, x.pop(at, name))
		if err != nil {
			return nil, err
		}
		e.typ, e.link = tarSymlink, to
	case linux.S_IFIFO:
		e.typ = tarFifo
	case linux.S_IFBLK:
		e.typ = tarBlockDev
	case linux.S_IFCHR:
		e.typ = tarChar
	case linux.S_IFSOCK:
		e.typ, e.major, e.minor = tarChar, 0, 0
		e.pax = map[string]string{recType: "socket"}
		return e, nil
	default:
		return nil, fmt.Errorf("%q: unknown file type %o", path, st.Mode)
	}
	return e, x.xattrs(at, name, e)
}

func (x *exporter) xattrs(at vfs.VirtualDentry, name string, e *tarEntry) error {
	names, err := x.vfs.ListXattrAt(x.ctx, x.creds, x.pop(at, name), 0)
	if len(names) == 0 || err != nil {
		return nil // not every kind of file can have any
	}
	sort.Strings(names)
	e.pax = map[string]string{}
	size, dropped := 0, 0
	for _, n := range names {
		v, err := x.vfs.GetXattrAt(x.ctx, x.creds, x.pop(at, name), &vfs.GetXattrOptions{Name: n})
		if err != nil {
			continue
		}
		key := recXattr + n
		// A reader would take an empty value for "no record".
		if key != recOpaque && (v == "" || strings.Contains(n, "=") || size+len(key)+len(v) > maxPax-maxExportPath*4) {
			dropped++
			continue
		}
		size += len(key) + len(v) + 16
		e.pax[key] = v
	}
	if dropped > 0 {
		e.pax[recDropped] = fmt.Sprint(dropped)
	}
	return nil
}

func (x *exporter) dir(at vfs.VirtualDentry, name, path string, st *linux.Statx) error {
	e, err := x.entry(at, name, path, st)
	if err != nil {
		return gone(err)
	}
	x.tw.header(e)
	if x.since != nil {
		x.since.same(st, 0)
		if x.since.skip[path] {
			return x.tw.err
		}
	}
	if x.tw.err != nil || len(path) > maxExportPath {
		return x.tw.err
	}
	fd, err := x.vfs.OpenAt(x.ctx, x.creds, x.pop(at, name), &vfs.OpenOptions{Flags: linux.O_RDONLY | linux.O_DIRECTORY | linux.O_NOFOLLOW})
	if err != nil {
		return gone(err)
	}
	defer fd.DecRef(x.ctx)
	var l lister
	if err := fd.IterDirents(x.ctx, &l); err != nil {
		return err
	}
	sort.Strings(l.names)
	for _, n := range l.names {
		if err := x.one(fd.VirtualDentry(), n, path+"/"+n); err != nil {
			return err
		}
	}
	return nil
}

type lister struct{ names []string }

// Handle implements vfs.IterDirentsCallback.
func (l *lister) Handle(d vfs.Dirent) error {
	if d.Name != "." && d.Name != ".." {
		l.names = append(l.names, d.Name)
	}
	return nil
}

func (x *exporter) file(at vfs.VirtualDentry, name string, e *tarEntry, st *linux.Statx) error {
	fd, err := x.vfs.OpenAt(x.ctx, x.creds, x.pop(at, name), &vfs.OpenOptions{Flags: linux.O_RDONLY | linux.O_NOFOLLOW})
	if err != nil {
		return gone(err)
	}
	defer fd.DecRef(x.ctx)
	data, err := extents(fd, e.size, maxExtents)
	if err != nil {
		return err
	}
	var stored int64
	for _, d := range data {
		stored += d.len
	}
	var holes []byte
	if e.size-stored < minHole {
		data = []extent{{0, e.size}}
	} else {
		holes = sparse(e, data)
	}
	if x.since != nil {
		sum, err := x.sum(fd, data)
		if err != nil {
			return fmt.Errorf("read %q: %w", e.name, err)
		}
		e.major, e.minor = uint32(st.Ino>>21), uint32(st.Ino&(1<<21-1))
		if x.since.same(st, sum) {
			e.typ, data, holes = tarSame, nil, nil
		}
	}
	x.tw.header(e)
	x.tw.Write(holes)
	for _, d := range data {
		if err := x.copy(fd, d); err != nil {
			return fmt.Errorf("read %q: %w", e.name, err)
		}
	}
	x.tw.pad()
	return x.tw.err
}

// copy writes exactly d.len bytes. If the file was truncated meanwhile, it
// writes zeros.
func (x *exporter) copy(fd *vfs.FileDescription, d extent) error {
	for d.len > 0 && x.tw.err == nil {
		b := x.buf[:min(d.len, int64(len(x.buf)))]
		n, err := fd.PRead(x.ctx, usermem.BytesIOSequence(b), d.off, vfs.ReadOptions{})
		if err != nil && err != io.EOF {
			return err
		}
		clear(b[n:])
		x.tw.Write(b)
		d.off, d.len = d.off+int64(len(b)), d.len-int64(len(b))
	}
	return x.tw.err
}
