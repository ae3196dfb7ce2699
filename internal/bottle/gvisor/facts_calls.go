package gvisor

import (
	"bytes"
	"encoding/binary"
	"strings"
	"sync"
	"sync/atomic"
	_ "unsafe" // for go:linkname

	"golang.org/x/sys/unix"

	"gvisor.dev/gvisor/pkg/abi/linux"
	gverr "gvisor.dev/gvisor/pkg/errors"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/tmpfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	"github.com/carboy/carboy/internal/bottle/posture"
	"github.com/carboy/carboy/internal/trace"
)

// The calls that name a file are served here instead of by gVisor's own
// functions, with the same steps (pkg/sentry/syscalls/linux: sys_file.go,
// sys_stat.go). A wrapper around those could not report the truth: the path
// lies in memory that another thread may write to, so a copy made before or
// after the call may differ from the call's own, and by the time that a
// descriptor is looked up, it may be another file. Here the path is copied
// once, and the object that is used is the object that is reported.

//go:linkname convertStatxToUserStat gvisor.dev/gvisor/pkg/sentry/syscalls/linux.convertStatxToUserStat
func convertStatxToUserStat(t *kernel.Task, statx *linux.Statx, stat *linux.Stat)

//go:linkname copyInOpenHow gvisor.dev/gvisor/pkg/sentry/syscalls/linux.copyInOpenHow
func copyInOpenHow(t *kernel.Task, addr hostarch.Addr, size uint) (linux.OpenHow, error)

//go:linkname userifyStatx gvisor.dev/gvisor/pkg/sentry/syscalls/linux.userifyStatx
func userifyStatx(t *kernel.Task, statx *linux.Statx)

type call = kernel.SyscallFn

// served replaces gVisor's call. around calls gVisor's, for what can be
// reported without access to its internals.
type (
	served func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error)
	around func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, *kernel.SyscallControl, error)
)

// wrapFacts returns the function for the call of this name, or nil for gVisor's
// own. A call that an architecture lacks is not found in its table.
func wrapFacts(name string, orig call) call {
	for _, m := range []map[string]served{lookCalls, changeCalls, writeCalls, netCalls} {
		if ours, ok := m[name]; ok {
			return func(t *kernel.Task, no uintptr, a arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
				w := facts.Load()
				if w == nil {
					return orig(t, no, a)
				}
				w.began(t)
				r, err := ours(w, t, a)
				return r, nil, err
			}
		}
	}
	for _, m := range []map[string]around{processCalls, rightsCalls, passCalls, sendCalls} {
		if ours, ok := m[name]; ok {
			return func(t *kernel.Task, no uintptr, a arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
				w := facts.Load()
				if w == nil {
					return orig(t, no, a)
				}
				w.began(t)
				return ours(w, t, no, a, orig)
			}
		}
	}
	if refusedCalls[name] {
		return refuse(name, orig)
	}
	return nil
}

// lookCalls are the calls that open and look.
var lookCalls = map[string]served{
	"open": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return w.open(t, linux.AT_FDCWD, a[0].Pointer(), a[1].Uint(), a[2].ModeT(), 0)
	},
	"openat": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return w.open(t, a[0].Int(), a[1].Pointer(), a[2].Uint(), a[3].ModeT(), 0)
	},
	"creat": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return w.open(t, linux.AT_FDCWD, a[0].Pointer(), linux.O_WRONLY|linux.O_CREAT|linux.O_TRUNC, a[1].ModeT(), 0)
	},
	"openat2": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		how, err := copyInOpenHow(t, a[2].Pointer(), a[3].SizeT())
		if err != nil {
			return 0, err
		}
		if err := checkOpenHow(&how); err != nil {
			return 0, err
		}
		return w.open(t, a[0].Int(), a[1].Pointer(), uint32(how.Flags), uint(how.Mode), how.Resolve)
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
	"getdents": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return w.list(t, a, false)
	},
	"getdents64": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return w.list(t, a, true)
	},
	"chdir": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.chdir(t, a[0].Pointer())
	},
	"fchdir": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.fchdir(t, a[0].Int())
	},
}

// place is one path argument: its bytes, copied once, and the directory where
// it begins.
type place struct {
	t           *kernel.Task
	raw         string
	root, start vfs.VirtualDentry
	creds       *auth.Credentials
	scoped      bool // an absolute path begins at start, see RESOLVE_IN_ROOT
}

// newScopedPlace is newPlace for openat2, whose options say where a path begins.
func newScopedPlace(t *kernel.Task, dirfd int32, addr hostarch.Addr, resolve uint64) (*place, error) {
	p, err := newPlace(t, dirfd, addr, false)
	if err != nil || resolve&(linux.RESOLVE_BENEATH|linux.RESOLVE_IN_ROOT) == 0 || !p.absolute() {
		return p, err
	}
	defer p.release()
	if resolve&linux.RESOLVE_BENEATH != 0 {
		return nil, linuxerr.EXDEV
	}
	q, err := placeAt(t, dirfd, p.raw, false)
	if err == nil {
		q.scoped = true
	}
	return q, err
}

func newPlace(t *kernel.Task, dirfd int32, addr hostarch.Addr, allowEmpty bool) (*place, error) {
	raw, err := t.CopyInString(addr, linux.PATH_MAX)
	if err != nil {
		return nil, err
	}
	if raw == "" && !allowEmpty {
		return nil, linuxerr.ENOENT
	}
	return placeAt(t, dirfd, raw, strings.HasPrefix(raw, "/"))
}

// placeAt returns the place of a path that was copied; fromRoot: it begins at
// the root.
func placeAt(t *kernel.Task, dirfd int32, raw string, fromRoot bool) (*place, error) {
	p := &place{t: t, raw: raw, root: t.FSContext().RootDirectory(), creds: t.Credentials()}
	switch {
	case fromRoot:
		p.start = p.root
		p.start.IncRef()
	case dirfd == linux.AT_FDCWD:
		p.start = t.FSContext().WorkingDirectory()
	default:
		f := t.GetFile(dirfd)
		if f == nil {
			p.root.DecRef(t)
			return nil, linuxerr.EBADF
		}
		p.start = f.VirtualDentry()
		p.start.IncRef()
		f.DecRef(t)
	}
	return p, nil
}

func (p *place) absolute() bool { return strings.HasPrefix(p.raw, "/") }

func (p *place) release() {
	p.root.DecRef(p.t)
	p.start.DecRef(p.t)
}

func (p *place) pop(follow bool) *vfs.PathOperation {
	return &vfs.PathOperation{Root: p.root, Start: p.start, Path: fspath.Parse(p.raw), FollowFinalSymlink: follow}
}

// split separates the last component: its directory ("" when there is none) and
// its name, trailing slashes kept.
func split(raw string) (dir, name string) {
	end := len(strings.TrimRight(raw, "/"))
	i := strings.LastIndexByte(raw[:end], '/') + 1
	return raw[:i], raw[i:]
}

// pin resolves the directory of the last component, so that the report on the
// name concerns this very directory.
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

// try runs op on p. If op finds no such name, or may not do its work, try pins
// the directory of the last component and runs op again. Only the second answer
// counts, and where is its place. An op that fails in this way has no effect,
// so the first attempt leaves no trace. A path that exists, the usual case, is
// resolved only once.
func (p *place) try(op func(*place) error) (where *place, err error) {
	if err = op(p); !nothingDone(err) || p.raw == "" {
		return nil, err
	}
	q, err := p.pin()
	if err != nil {
		return nil, err
	}
	if err = op(q); nothingDone(err) {
		return q, err
	}
	q.release()
	return nil, err
}

func nothingDone(err error) bool {
	return linuxerr.Equals(linuxerr.ENOENT, err) || linuxerr.Equals(linuxerr.EACCES, err) || linuxerr.Equals(linuxerr.EPERM, err)
}

// rootOf holds the bottle's root, as the plan arranged it.
type rootOf struct {
	fs *vfs.Filesystem
	vd vfs.VirtualDentry // held until the process ends
	// fixed holds the other file systems that the plan shows read-only and
	// nowhere else otherwise. Their mounts belong to init's namespace, over
	// which nothing inside has rights.
	fixed map[*vfs.Filesystem]bool
}

var theRoot atomic.Pointer[rootOf]

func learnRoot(t *kernel.Task) *rootOf {
	if r := theRoot.Load(); r != nil {
		return r
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
	r := &rootOf{vd: ns.Root(t)}
	r.fs = r.vd.Mount().Filesystem()
	r.fixed = fixedMounts(t, r.vd)
	if !theRoot.CompareAndSwap(nil, r) {
		r.vd.DecRef(t)
	}
	return theRoot.Load()
}

// fixedMounts returns the file systems whose mounts below root are all
// read-only. If one cannot be examined, it returns none.
func fixedMounts(t *kernel.Task, root vfs.VirtualDentry) map[*vfs.Filesystem]bool {
	v := t.Kernel().VFS()
	ctx := t.Kernel().SupervisorContext()
	creds := auth.NewRootCredentials(t.Kernel().RootUserNamespace())
	var text bytes.Buffer
	if err := v.GenerateProcMountInfo(ctx, root, &text); err != nil {
		return nil
	}
	fixed := map[*vfs.Filesystem]bool{}
	for _, line := range strings.Split(strings.TrimSpace(text.String()), "\n") {
		f := strings.Fields(line)
		if len(f) < 6 {
			return nil
		}
		vd, err := v.GetDentryAt(ctx, creds, &vfs.PathOperation{Root: root, Start: root, Path: fspath.Parse(posture.UnescapeMount(f[4]))}, &vfs.GetDentryOptions{})
		if err != nil {
			return nil
		}
		fs, ro := vd.Mount().Filesystem(), vd.Mount().ReadOnly()
		vd.DecRef(ctx)
		if was, seen := fixed[fs]; seen {
			ro = ro && was
		}
		fixed[fs] = ro
	}
	return fixed
}

// unreachable starts the path of an object on a mount that the workload made:
// the bottle's root does not lead there.
const unreachable = "(unreachable)"

// truePath names an object by its file system. The mounts and the root that the
// caller sees may be of its own making.
func truePath(t *kernel.Task, vd vfs.VirtualDentry) (string, trace.Flags) {
	v := t.Kernel().VFS()
	var fl trace.Flags
	if vd.Dentry().IsDead() || tmpfs.IsMemfdDentry(vd.Dentry()) {
		fl = trace.Deleted
	}
	r := learnRoot(t)
	if r == nil {
		return "?", fl | trace.Foreign
	}
	if vd.Mount().Filesystem() == r.fs {
		s, err := v.PathnameInFilesystem(t, vd)
		if err == nil {
			if fl != 0 {
				s = strings.TrimSuffix(s, "//deleted")
			}
			return s, fl
		}
	}
	s, err := v.PathnameWithDeleted(t, r.vd, vd)
	if err != nil {
		return "?", fl | trace.Foreign
	}
	if fl != 0 {
		s = strings.TrimSuffix(s, " (deleted)")
	}
	// An object outside any tree, such as a pipe, has a name without a slash or
	// a path that only names its kind.
	if strings.HasPrefix(s, "/") && !tmpfs.IsMemfdDentry(vd.Dentry()) {
		if p, err := v.PathnameReachable(t, r.vd, vd); err == nil && p == "" {
			s = unreachable + s
		}
	}
	return s, fl | trace.Foreign
}

// name returns the path of p's last component in p's directory.
func (p *place) name() (string, trace.Flags) {
	dir, fl := truePath(p.t, p.start)
	return strings.TrimSuffix(dir, "/") + "/" + strings.TrimRight(p.raw, "/"), fl
}

// nameBy returns the name by q, p's pinned place, and releases q. If q is nil,
// because the directory was not found, it returns the requested path.
func (p *place) nameBy(q *place) (string, trace.Flags) {
	if q == nil {
		return p.asked()
	}
	defer q.release()
	return q.name()
}

// asked returns the requested path after the directory in which the kernel
// began to resolve it.
func (p *place) asked() (string, trace.Flags) {
	from := p.start
	if p.absolute() && !p.scoped {
		from = p.root
	}
	if r := learnRoot(p.t); p.absolute() && r != nil && from.Mount().Filesystem() == r.fs && from.Dentry() == r.vd.Dentry() {
		return p.raw, trace.Asked
	}
	dir, fl := truePath(p.t, from)
	if p.absolute() {
		return strings.TrimSuffix(dir, "/") + p.raw, fl | trace.Asked
	}
	return strings.TrimSuffix(dir, "/") + "/" + p.raw, fl | trace.Asked
}

func errnoOf(err error) uint32 {
	if err == nil {
		return 0
	}
	if e, ok := err.(*gverr.Error); ok {
		if n := uint32(e.Errno()); n < 512 {
			return n
		}
		// It was interrupted, and may be restarted.
		return uint32(unix.EINTR)
	}
	if e, ok := err.(unix.Errno); ok {
		return uint32(e)
	}
	return uint32(unix.EIO)
}

func pidOf(t *kernel.Task) uint32 { return uint32(t.TGIDInRoot()) }

// report completes f with the result of a call on p and emits it. The path comes
// from the object vd, from try's place, or from the request. It releases the
// place.
func (w *factWriter) report(f *trace.Fact, p, where *place, vd vfs.VirtualDentry, err error) {
	f.PID, f.Errno = pidOf(p.t), errnoOf(err)
	var fl trace.Flags
	switch {
	case vd.Ok():
		f.Path, fl = truePath(p.t, vd)
	case where != nil:
		f.Path, fl = where.name()
		if linuxerr.Equals(linuxerr.ENOENT, err) {
			fl |= trace.Miss
		} else {
			fl |= trace.Asked // it may be a link, and what that leads to
		}
		where.release()
	default:
		f.Path, fl = p.asked()
	}
	f.Flags |= fl
	w.emit(f)
}

// checkOpenHow makes the checks of openat2 that openat lacks.
func checkOpenHow(how *linux.OpenHow) error {
	const known = linux.RESOLVE_BENEATH | linux.RESOLVE_IN_ROOT | linux.RESOLVE_CACHED | linux.RESOLVE_NO_MAGICLINKS | linux.RESOLVE_NO_SYMLINKS | linux.RESOLVE_NO_XDEV
	f, res := how.Flags, how.Resolve
	switch {
	case res&^known != 0,
		res&linux.RESOLVE_BENEATH != 0 && res&linux.RESOLVE_IN_ROOT != 0,
		f&^linux.ValidOpenFlags != 0,
		f&(linux.O_DIRECTORY|linux.O_CREAT) == linux.O_DIRECTORY|linux.O_CREAT,
		f&linux.O_PATH == linux.O_PATH && f&^linux.ValidOPathFlags != 0,
		f&(linux.O_CREAT|linux.O_TMPFILE) == 0 && how.Mode != 0,
		how.Mode&^0o7777 != 0:
		return linuxerr.EINVAL
	case res&linux.RESOLVE_CACHED != 0 && f&(linux.O_TRUNC|linux.O_CREAT|linux.O_TMPFILE) != 0:
		return linuxerr.EAGAIN
	}
	return nil
}

func (w *factWriter) open(t *kernel.Task, dirfd int32, addr hostarch.Addr, flags uint32, mode uint, resolve uint64) (uintptr, error) {
	p, err := newScopedPlace(t, dirfd, addr, resolve)
	if err != nil {
		return 0, err
	}
	defer p.release()
	var file *vfs.FileDescription
	opts := vfs.OpenOptions{
		Flags: flags | linux.O_LARGEFILE,
		Mode:  linux.FileMode(mode & (0777 | linux.S_ISUID | linux.S_ISGID | linux.S_ISVTX) &^ t.FSContext().Umask()),
	}
	open := func(q *place) (err error) {
		pop := q.pop(flags&linux.O_NOFOLLOW == 0)
		pop.ResolveFlags = resolve
		file, err = t.Kernel().VFS().OpenAt(t, q.creds, pop, &opts)
		return err
	}
	var where *place
	if resolve == 0 {
		where, err = p.try(open)
	} else {
		// Its limits apply to the whole path, so the directory cannot be
		// pinned.
		err = open(p)
	}
	f := trace.Fact{Op: trace.Open, A: uint64(flags), B: uint64(mode)}
	if err != nil {
		w.report(&f, p, where, vfs.VirtualDentry{}, err)
		return 0, err
	}
	defer file.DecRef(t)
	w.seen(t, file.VirtualDentry())
	w.marks.forget(file)
	if flags&(linux.O_CREAT|linux.O_TRUNC) != 0 && special(t, file) {
		f.Flags |= trace.Special
	}
	// Report before another thread can use the file. If no descriptor is left,
	// that shows only afterwards: the file was still opened, and made or
	// truncated.
	w.report(&f, p, nil, file.VirtualDentry(), nil)
	fd, err := t.NewFDFrom(0, file, kernel.FDFlags{CloseOnExec: flags&linux.O_CLOEXEC != 0})
	return uintptr(fd), err
}

// find returns the object that p names. The reference belongs to the caller. On
// failure it emits f.
func (w *factWriter) find(f *trace.Fact, p *place, follow bool, opts *vfs.GetDentryOptions) (vfs.VirtualDentry, error) {
	var vd vfs.VirtualDentry
	where, err := p.try(func(q *place) (err error) {
		vd, err = q.t.Kernel().VFS().GetDentryAt(q.t, q.creds, q.pop(follow), opts)
		return err
	})
	if err != nil {
		w.report(f, p, where, vfs.VirtualDentry{}, err)
		return vd, err
	}
	w.seen(p.t, vd)
	return vd, nil
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
	f := trace.Fact{Op: trace.Stat}
	vd, err := w.find(&f, p, flags&linux.AT_SYMLINK_NOFOLLOW == 0, &vfs.GetDentryOptions{})
	if err != nil {
		return linux.Statx{}, err
	}
	defer vd.DecRef(t)
	st, err := t.Kernel().VFS().StatAt(t, p.creds, p.of(vd), opts)
	w.report(&f, p, nil, vd, err)
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
	f := trace.Fact{Op: trace.Access, A: uint64(mode)}
	vd, err := w.find(&f, p, flags&linux.AT_SYMLINK_NOFOLLOW == 0, &vfs.GetDentryOptions{})
	if err != nil {
		return err
	}
	defer vd.DecRef(t)
	err = t.Kernel().VFS().AccessAt(t, p.creds, vfs.AccessTypes(mode), p.of(vd))
	w.report(&f, p, nil, vd, err)
	return err
}

// realCreds returns the credentials that access(2) checks: those of the real
// ids.
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
	f := trace.Fact{Op: trace.Readlink}
	vd := p.start
	vd.IncRef()
	if p.raw != "" {
		vd.DecRef(t)
		if vd, err = w.find(&f, p, false, &vfs.GetDentryOptions{}); err != nil {
			return 0, err
		}
	}
	defer vd.DecRef(t)
	f.Path2, err = t.Kernel().VFS().ReadlinkAt(t, p.creds, p.of(vd))
	target := f.Path2
	w.report(&f, p, nil, vd, err)
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

func (w *factWriter) chdir(t *kernel.Task, addr hostarch.Addr) error {
	p, err := newPlace(t, linux.AT_FDCWD, addr, false)
	if err != nil {
		return err
	}
	defer p.release()
	f := trace.Fact{Op: trace.Chdir}
	vd, err := w.find(&f, p, true, &vfs.GetDentryOptions{CheckSearchable: true})
	if err != nil {
		return err
	}
	defer vd.DecRef(t)
	t.FSContext().SetWorkingDirectory(t, vd)
	w.report(&f, p, nil, vd, nil)
	return nil
}

func (w *factWriter) fchdir(t *kernel.Task, fd int32) error {
	p, err := placeAt(t, fd, "", false)
	if err != nil {
		return err
	}
	defer p.release()
	vd, err := t.Kernel().VFS().GetDentryAt(t, p.creds, p.of(p.start), &vfs.GetDentryOptions{CheckSearchable: true})
	if err == nil {
		t.FSContext().SetWorkingDirectory(t, vd)
		vd.DecRef(t)
	}
	w.report(&trace.Fact{Op: trace.Chdir}, p, nil, p.start, err)
	return err
}

// dirents serves getdents: it lays out the entries of a directory's iterator.
type dirents struct {
	buf    []byte
	copied int
	asked  int // the caller's buffer size
	wide   bool
}

// Handle implements vfs.IterDirentsCallback.
func (d *dirents) Handle(e vfs.Dirent) error {
	// linux_dirent64 is 8 ino, 8 off, 2 reclen, 1 type, the name and its
	// terminator; linux_dirent has the type in its last byte instead.
	const fixed = 8 + 8 + 2 + 1 + 1
	size := (fixed + len(e.Name) + 7) &^ 7
	if size > len(d.buf)-d.copied {
		if d.copied == 0 && d.asked >= size {
			return linuxerr.EFAULT
		}
		return linuxerr.EINVAL
	}
	b := d.buf[d.copied : d.copied+size]
	clear(b)
	binary.LittleEndian.PutUint64(b, e.Ino)
	binary.LittleEndian.PutUint64(b[8:], uint64(e.NextOff))
	binary.LittleEndian.PutUint16(b[16:], uint16(size))
	if d.wide {
		b[18] = e.Type
		copy(b[19:], e.Name)
	} else {
		copy(b[18:], e.Name)
		b[size-1] = e.Type
	}
	d.copied += size
	return nil
}

var direntsPool = sync.Pool{New: func() any { return &dirents{} }}

// list serves getdents and getdents64. It reports the first read through a
// description.
func (w *factWriter) list(t *kernel.Task, a arch.SyscallArguments, wide bool) (uintptr, error) {
	addr, size := a[1].Pointer(), a[2].Int()
	if size < 8+8+2+1+1 {
		return 0, linuxerr.EINVAL
	}
	file := t.GetFile(a[0].Int())
	if file == nil {
		return 0, linuxerr.EBADF
	}
	defer file.DecRef(t)
	room, err := t.MemoryManager().EnsurePMAsExist(t, addr, int64(size), usermem.IOOpts{})
	if room == 0 {
		return 0, err
	}
	d := direntsPool.Get().(*dirents)
	defer direntsPool.Put(d)
	if cap(d.buf) < int(room) {
		d.buf = make([]byte, room)
	}
	d.buf, d.copied, d.asked, d.wide = d.buf[:room], 0, int(size), wide
	err = file.IterDirents(t, d)
	if err == nil || d.copied > 0 {
		w.once(t, trace.List, file)
	}
	n, _ := t.CopyOutBytes(addr, d.buf[:d.copied])
	if n == 0 {
		return 0, err
	}
	return uintptr(n), nil
}
