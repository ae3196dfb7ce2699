package gvisor

import (
	"strings"
	"sync/atomic"
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/abi/linux"
	gverr "gvisor.dev/gvisor/pkg/errors"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"github.com/carboy/carboy/internal/trace"
)

// The calls that name a file are served here instead of by gVisor's own
// functions, with the same steps (pkg/sentry/syscalls/linux: sys_file.go,
// sys_stat.go). A wrapper around those could not tell the truth: the path lies
// in memory that another thread writes to, so a copy made before or after the
// call need not be what the call saw, and the descriptor that an open returned
// may be another file by the time it is looked up. Here the path is copied
// once, and the object that answers is the object that is reported.

//go:linkname convertStatxToUserStat gvisor.dev/gvisor/pkg/sentry/syscalls/linux.convertStatxToUserStat
func convertStatxToUserStat(t *kernel.Task, statx *linux.Statx, stat *linux.Stat)

//go:linkname userifyStatx gvisor.dev/gvisor/pkg/sentry/syscalls/linux.userifyStatx
func userifyStatx(t *kernel.Task, statx *linux.Statx)

type call = kernel.SyscallFn

// factCalls are our versions by name. A call that isn't there on an
// architecture is simply not found in its table.
var factCalls = map[string]func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error){
	"open": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return w.open(t, linux.AT_FDCWD, a[0].Pointer(), a[1].Uint(), a[2].ModeT())
	},
	"openat": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return w.open(t, a[0].Int(), a[1].Pointer(), a[2].Uint(), a[3].ModeT())
	},
	"creat": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return w.open(t, linux.AT_FDCWD, a[0].Pointer(), linux.O_WRONLY|linux.O_CREAT|linux.O_TRUNC, a[1].ModeT())
	},
	// Its arguments lie in the bottle's memory and its options limit the
	// resolution. Programs that use it know kernels that lack it.
	"openat2": func(*factWriter, *kernel.Task, arch.SyscallArguments) (uintptr, error) {
		return 0, linuxerr.ENOSYS
	},
	"stat": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.stat(t, linux.AT_FDCWD, a[0].Pointer(), a[1].Pointer(), 0)
	},
	"lstat": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.stat(t, linux.AT_FDCWD, a[0].Pointer(), a[1].Pointer(), linux.AT_SYMLINK_NOFOLLOW)
	},
	"newfstatat": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.stat(t, a[0].Int(), a[1].Pointer(), a[2].Pointer(), a[3].Int())
	},
	"fstatat": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.stat(t, a[0].Int(), a[1].Pointer(), a[2].Pointer(), a[3].Int())
	},
	"statx": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.statx(t, a[0].Int(), a[1].Pointer(), a[2].Int(), a[3].Uint(), a[4].Pointer())
	},
	"access": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.access(t, linux.AT_FDCWD, a[0].Pointer(), a[1].Uint(), 0)
	},
	"faccessat": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.access(t, a[0].Int(), a[1].Pointer(), a[2].Uint(), 0)
	},
	"faccessat2": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.access(t, a[0].Int(), a[1].Pointer(), a[2].Uint(), a[3].Int())
	},
	"readlink": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return w.readlink(t, linux.AT_FDCWD, a[0].Pointer(), a[1].Pointer(), a[2].SizeT())
	},
	"readlinkat": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return w.readlink(t, a[0].Int(), a[1].Pointer(), a[2].Pointer(), a[3].SizeT())
	},
	"unlink": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.unlink(t, linux.AT_FDCWD, a[0].Pointer(), 0)
	},
	"rmdir": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.unlink(t, linux.AT_FDCWD, a[0].Pointer(), linux.AT_REMOVEDIR)
	},
	"unlinkat": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.unlink(t, a[0].Int(), a[1].Pointer(), a[2].Int())
	},
	"rename": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.rename(t, linux.AT_FDCWD, a[0].Pointer(), linux.AT_FDCWD, a[1].Pointer(), 0)
	},
	"renameat": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.rename(t, a[0].Int(), a[1].Pointer(), a[2].Int(), a[3].Pointer(), 0)
	},
	"renameat2": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.rename(t, a[0].Int(), a[1].Pointer(), a[2].Int(), a[3].Pointer(), a[4].Uint())
	},
}

func wrapFacts(name string, orig call) call {
	ours, ok := factCalls[name]
	if !ok {
		return nil
	}
	return func(t *kernel.Task, no uintptr, a arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		w := facts.Load()
		if w == nil {
			return orig(t, no, a)
		}
		r, err := ours(w, t, a)
		return r, nil, err
	}
}

// place is one path argument: the bytes, copied once, and where they begin.
type place struct {
	t           *kernel.Task
	raw         string
	root, start vfs.VirtualDentry
	creds       *auth.Credentials
}

func newPlace(t *kernel.Task, dirfd int32, addr hostarch.Addr, allowEmpty bool) (*place, error) {
	raw, err := t.CopyInString(addr, linux.PATH_MAX)
	if err != nil {
		return nil, err
	}
	p := &place{t: t, raw: raw, root: t.FSContext().RootDirectory(), creds: t.Credentials()}
	switch {
	case raw == "" && !allowEmpty:
		err = linuxerr.ENOENT
	case strings.HasPrefix(raw, "/"):
		p.start = p.root
		p.start.IncRef()
	case dirfd == linux.AT_FDCWD:
		p.start = t.FSContext().WorkingDirectory()
	default:
		f := t.GetFile(dirfd)
		if f == nil {
			err = linuxerr.EBADF
			break
		}
		p.start = f.VirtualDentry()
		p.start.IncRef()
		f.DecRef(t)
	}
	if err != nil {
		p.root.DecRef(t)
		return nil, err
	}
	return p, nil
}

func (p *place) release() {
	p.root.DecRef(p.t)
	p.start.DecRef(p.t)
}

func (p *place) pop(follow bool) *vfs.PathOperation {
	return &vfs.PathOperation{Root: p.root, Start: p.start, Path: fspath.Parse(p.raw), FollowFinalSymlink: follow}
}

// split cuts the last component off: its directory ("" when there is none) and
// its name, trailing slashes kept.
func split(raw string) (dir, name string) {
	end := len(strings.TrimRight(raw, "/"))
	i := strings.LastIndexByte(raw[:end], '/') + 1
	return raw[:i], raw[i:]
}

// pin resolves the directory of the last component, so that what is reported
// about the name is about this very directory.
func (p *place) pin() (*place, error) {
	dir, name := split(p.raw)
	q := &place{t: p.t, raw: name, root: p.root, start: p.start, creds: p.creds}
	q.root.IncRef()
	if dir == "" || name == "" {
		q.start.IncRef()
		return q, nil
	}
	var err error
	q.start, err = p.t.Kernel().VFS().GetDentryAt(p.t, p.creds, &vfs.PathOperation{
		Root: p.root, Start: p.start, Path: fspath.Parse(dir), FollowFinalSymlink: true,
	}, &vfs.GetDentryOptions{CheckSearchable: true})
	if err != nil {
		q.root.DecRef(p.t)
		return nil, err
	}
	return q, nil
}

// try runs op at p's last component with its directory pinned. When that name
// is missing, miss says where.
func (p *place) try(op func(*place) error) (miss *place, err error) {
	q, err := p.pin()
	if err != nil {
		return nil, err
	}
	if err = op(q); linuxerr.Equals(linuxerr.ENOENT, err) {
		return q, err
	}
	q.release()
	return nil, err
}

// rootFS is the file system of the bottle's root.
var rootFS atomic.Pointer[vfs.Filesystem]

func learnRoot(t *kernel.Task) *vfs.Filesystem {
	if fs := rootFS.Load(); fs != nil {
		return fs
	}
	init := t.Kernel().GlobalInit()
	if init == nil || init.Leader() == nil {
		return nil
	}
	ns := init.Leader().MountNamespace()
	if ns == nil || !ns.TryIncRef() {
		return nil
	}
	defer ns.DecRef(t)
	root := ns.Root(t)
	defer root.DecRef(t)
	rootFS.Store(root.Mount().Filesystem())
	return rootFS.Load()
}

// truePath names an object by its file system, not by the mounts and the root
// that the caller sees, which it may have arranged itself.
func truePath(t *kernel.Task, vd vfs.VirtualDentry) (string, trace.Flags) {
	v := t.Kernel().VFS()
	if vd.Mount().Filesystem() == learnRoot(t) {
		s, err := v.PathnameInFilesystem(t, vd)
		if err == nil {
			return s, 0
		}
	}
	root := t.FSContext().RootDirectory()
	defer root.DecRef(t)
	s, err := v.PathnameWithDeleted(t, root, vd)
	if err != nil {
		return "?", trace.Foreign
	}
	return s, trace.Foreign
}

// name is the path of p's last component in p's directory.
func (p *place) name() (string, trace.Flags) {
	dir, fl := truePath(p.t, p.start)
	return strings.TrimSuffix(dir, "/") + "/" + strings.TrimRight(p.raw, "/"), fl
}

// asked is the path as it was asked for, made absolute.
func (p *place) asked() (string, trace.Flags) {
	if strings.HasPrefix(p.raw, "/") {
		return p.raw, trace.Asked
	}
	dir, fl := truePath(p.t, p.start)
	return strings.TrimSuffix(dir, "/") + "/" + p.raw, fl | trace.Asked
}

func errnoOf(err error) uint32 {
	if err == nil {
		return 0
	}
	if e, ok := err.(*gverr.Error); ok {
		return uint32(e.Errno())
	}
	return uint32(linuxerr.EIO.Errno())
}

// report says how a call on p ended: with the object vd, with a name that was
// missing, or otherwise.
func (w *factWriter) report(op trace.Op, p, miss *place, vd vfs.VirtualDentry, err error, path2 string) {
	f := trace.Fact{Op: op, PID: uint32(p.t.TGIDInRoot()), Errno: errnoOf(err), Path2: path2}
	switch {
	case vd.Ok():
		f.Path, f.Flags = truePath(p.t, vd)
	case miss != nil:
		f.Path, f.Flags = miss.name()
		f.Flags |= trace.Miss
	default:
		f.Path, f.Flags = p.asked()
	}
	w.emit(&f)
	if miss != nil {
		miss.release()
	}
}

func (w *factWriter) open(t *kernel.Task, dirfd int32, addr hostarch.Addr, flags uint32, mode uint) (uintptr, error) {
	p, err := newPlace(t, dirfd, addr, false)
	if err != nil {
		return 0, err
	}
	defer p.release()
	var file *vfs.FileDescription
	miss, err := p.try(func(q *place) (err error) {
		file, err = t.Kernel().VFS().OpenAt(t, q.creds, q.pop(flags&linux.O_NOFOLLOW == 0), &vfs.OpenOptions{
			Flags: flags | linux.O_LARGEFILE,
			Mode:  linux.FileMode(mode & (0777 | linux.S_ISUID | linux.S_ISGID | linux.S_ISVTX) &^ t.FSContext().Umask()),
		})
		return err
	})
	if err != nil {
		w.report(trace.Open, p, miss, vfs.VirtualDentry{}, err, "")
		return 0, err
	}
	defer file.DecRef(t)
	w.report(trace.Open, p, nil, file.VirtualDentry(), nil, "")
	fd, err := t.NewFDFrom(0, file, kernel.FDFlags{CloseOnExec: flags&linux.O_CLOEXEC != 0})
	return uintptr(fd), err
}

// find is the object that p names. The reference belongs to the caller.
func (w *factWriter) find(op trace.Op, p *place, follow bool) (vfs.VirtualDentry, error) {
	var vd vfs.VirtualDentry
	miss, err := p.try(func(q *place) (err error) {
		vd, err = q.t.Kernel().VFS().GetDentryAt(q.t, q.creds, q.pop(follow), &vfs.GetDentryOptions{})
		return err
	})
	if err != nil {
		w.report(op, p, miss, vfs.VirtualDentry{}, err, "")
	}
	return vd, err
}

func (p *place) of(vd vfs.VirtualDentry) *vfs.PathOperation {
	return &vfs.PathOperation{Root: p.root, Start: vd}
}

// look serves stat and statx.
func (w *factWriter) look(t *kernel.Task, dirfd int32, addr hostarch.Addr, flags int32, opts *vfs.StatOptions) (linux.Statx, error) {
	p, err := newPlace(t, dirfd, addr, flags&linux.AT_EMPTY_PATH != 0)
	if err != nil {
		return linux.Statx{}, err
	}
	defer p.release()
	if p.raw == "" {
		return lookFile(p, dirfd, opts)
	}
	vd, err := w.find(trace.Stat, p, flags&linux.AT_SYMLINK_NOFOLLOW == 0)
	if err != nil {
		return linux.Statx{}, err
	}
	defer vd.DecRef(t)
	st, err := t.Kernel().VFS().StatAt(t, p.creds, p.of(vd), opts)
	w.report(trace.Stat, p, nil, vd, err, "")
	return st, err
}

func lookFile(p *place, dirfd int32, opts *vfs.StatOptions) (linux.Statx, error) {
	if dirfd != linux.AT_FDCWD {
		f := p.t.GetFile(dirfd)
		if f == nil {
			return linux.Statx{}, linuxerr.EBADF
		}
		defer f.DecRef(p.t)
		return f.Stat(p.t, *opts)
	}
	return p.t.Kernel().VFS().StatAt(p.t, p.creds, p.of(p.start), opts)
}

func (w *factWriter) stat(t *kernel.Task, dirfd int32, addr, to hostarch.Addr, flags int32) error {
	flags &^= linux.AT_NO_AUTOMOUNT
	if flags&^(linux.AT_EMPTY_PATH|linux.AT_SYMLINK_NOFOLLOW) != 0 {
		return linuxerr.EINVAL
	}
	stx, err := w.look(t, dirfd, addr, flags, &vfs.StatOptions{Mask: linux.STATX_BASIC_STATS})
	if err != nil {
		return err
	}
	var st linux.Stat
	convertStatxToUserStat(t, &stx, &st)
	_, err = st.CopyOut(t, to)
	return err
}

func (w *factWriter) statx(t *kernel.Task, dirfd int32, addr hostarch.Addr, flags int32, mask uint32, to hostarch.Addr) error {
	flags &^= linux.AT_NO_AUTOMOUNT
	sync := flags & linux.AT_STATX_SYNC_TYPE
	if flags&^(linux.AT_EMPTY_PATH|linux.AT_SYMLINK_NOFOLLOW|linux.AT_STATX_SYNC_TYPE) != 0 ||
		sync&(sync-1) != 0 || mask&linux.STATX__RESERVED != 0 {
		return linuxerr.EINVAL
	}
	stx, err := w.look(t, dirfd, addr, flags, &vfs.StatOptions{Mask: mask, Sync: uint32(sync)})
	if err != nil {
		return err
	}
	userifyStatx(t, &stx)
	_, err = stx.CopyOut(t, to)
	return err
}

func (w *factWriter) access(t *kernel.Task, dirfd int32, addr hostarch.Addr, mode uint32, flags int32) error {
	if mode&^7 != 0 || flags&^(linux.AT_EACCESS|linux.AT_SYMLINK_NOFOLLOW|linux.AT_EMPTY_PATH) != 0 {
		return linuxerr.EINVAL
	}
	p, err := newPlace(t, dirfd, addr, flags&linux.AT_EMPTY_PATH != 0)
	if err != nil {
		return err
	}
	defer p.release()
	if flags&linux.AT_EACCESS == 0 {
		p.creds = realCreds(p.creds)
	}
	if p.raw == "" {
		return t.Kernel().VFS().AccessAt(t, p.creds, vfs.AccessTypes(mode), p.of(p.start))
	}
	vd, err := w.find(trace.Access, p, flags&linux.AT_SYMLINK_NOFOLLOW == 0)
	if err != nil {
		return err
	}
	defer vd.DecRef(t)
	err = t.Kernel().VFS().AccessAt(t, p.creds, vfs.AccessTypes(mode), p.of(vd))
	w.report(trace.Access, p, nil, vd, err, "")
	return err
}

// realCreds are those that access(2) checks with: the real ids.
func realCreds(c *auth.Credentials) *auth.Credentials {
	c = c.Fork()
	c.EffectiveKUID, c.EffectiveKGID = c.RealKUID, c.RealKGID
	c.EffectiveCaps = 0
	if c.EffectiveKUID.In(c.UserNamespace) == auth.RootUID {
		c.EffectiveCaps = c.PermittedCaps
	}
	return c
}

func (w *factWriter) readlink(t *kernel.Task, dirfd int32, addr, to hostarch.Addr, size uint) (uintptr, error) {
	if int(size) <= 0 {
		return 0, linuxerr.EINVAL
	}
	p, err := newPlace(t, dirfd, addr, true)
	if err != nil {
		return 0, err
	}
	defer p.release()
	if p.raw == "" && dirfd == linux.AT_FDCWD {
		return 0, linuxerr.ENOENT
	}
	vd := p.start
	vd.IncRef()
	if p.raw != "" {
		vd.DecRef(t)
		if vd, err = w.find(trace.Readlink, p, false); err != nil {
			return 0, err
		}
	}
	defer vd.DecRef(t)
	target, err := t.Kernel().VFS().ReadlinkAt(t, p.creds, p.of(vd))
	w.report(trace.Readlink, p, nil, vd, err, target)
	if err != nil {
		return 0, err
	}
	if uint(len(target)) > size {
		target = target[:size]
	}
	n, err := t.CopyOutBytes(to, []byte(target))
	if n == 0 {
		return 0, err
	}
	return uintptr(n), nil
}

func (w *factWriter) unlink(t *kernel.Task, dirfd int32, addr hostarch.Addr, flags int32) error {
	if flags&^linux.AT_REMOVEDIR != 0 {
		return linuxerr.EINVAL
	}
	p, err := newPlace(t, dirfd, addr, false)
	if err != nil {
		return err
	}
	defer p.release()
	q, err := p.pin()
	if err == nil {
		if flags&linux.AT_REMOVEDIR != 0 {
			err = t.Kernel().VFS().RmdirAt(t, q.creds, q.pop(false))
		} else {
			err = t.Kernel().VFS().UnlinkAt(t, q.creds, q.pop(false))
		}
	}
	w.reportName(trace.Unlink, p, q, nil, nil, err)
	return err
}

func (w *factWriter) rename(t *kernel.Task, olddir int32, old hostarch.Addr, newdir int32, new hostarch.Addr, flags uint32) error {
	p, err := newPlace(t, olddir, old, false)
	if err != nil {
		return err
	}
	defer p.release()
	p2, err := newPlace(t, newdir, new, false)
	if err != nil {
		return err
	}
	defer p2.release()
	q, err := p.pin()
	var q2 *place
	if err == nil {
		if q2, err = p2.pin(); err == nil {
			err = t.Kernel().VFS().RenameAt(t, q.creds, q.pop(false), q2.pop(false), &vfs.RenameOptions{Flags: flags})
		}
	}
	w.reportName(trace.Rename, p, q, p2, q2, err)
	return err
}

// reportName is report for calls on names rather than objects: q and q2 are
// the pinned places, nil when their directory was not found.
func (w *factWriter) reportName(op trace.Op, p, q, p2, q2 *place, err error) {
	f := trace.Fact{Op: op, PID: uint32(p.t.TGIDInRoot()), Errno: errnoOf(err)}
	say := func(p, q *place) (s string, fl trace.Flags) {
		if q == nil {
			return p.asked()
		}
		defer q.release()
		return q.name()
	}
	f.Path, f.Flags = say(p, q)
	if p2 != nil {
		var fl trace.Flags
		f.Path2, fl = say(p2, q2)
		f.Flags |= fl
	}
	w.emit(&f)
}
