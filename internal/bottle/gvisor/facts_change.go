package gvisor

import (
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/tmpfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"github.com/carboy/carboy/internal/trace"
)

// Calls that change names and metadata. gVisor's own helpers copy arguments
// that are structures in memory (times, attributes) once, and the copy is used.

//go:linkname populateSetStatOptionsForChown gvisor.dev/gvisor/pkg/sentry/syscalls/linux.populateSetStatOptionsForChown
func populateSetStatOptionsForChown(t *kernel.Task, owner, group int32, opts *vfs.SetStatOptions) error

//go:linkname populateSetStatOptionsForUtimes gvisor.dev/gvisor/pkg/sentry/syscalls/linux.populateSetStatOptionsForUtimes
func populateSetStatOptionsForUtimes(t *kernel.Task, timesAddr hostarch.Addr, opts *vfs.SetStatOptions) error

//go:linkname populateSetStatOptionsForUtimens gvisor.dev/gvisor/pkg/sentry/syscalls/linux.populateSetStatOptionsForUtimens
func populateSetStatOptionsForUtimens(t *kernel.Task, timesAddr hostarch.Addr, opts *vfs.SetStatOptions) error

//go:linkname handleSetSizeError gvisor.dev/gvisor/pkg/sentry/syscalls/linux.handleSetSizeError
func handleSetSizeError(t *kernel.Task, err error) error

//go:linkname copyInXattrName gvisor.dev/gvisor/pkg/sentry/syscalls/linux.copyInXattrName
func copyInXattrName(t *kernel.Task, nameAddr hostarch.Addr) (string, error)

//go:linkname copyInXattrValue gvisor.dev/gvisor/pkg/sentry/syscalls/linux.copyInXattrValue
func copyInXattrValue(t *kernel.Task, valueAddr hostarch.Addr, size uint) (string, error)

const chmodMask = 0777 | linux.S_ISUID | linux.S_ISGID | linux.S_ISVTX

var changeCalls = map[string]served{
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
	"link": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.link(t, linux.AT_FDCWD, a[0].Pointer(), linux.AT_FDCWD, a[1].Pointer(), 0)
	},
	"linkat": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.link(t, a[0].Int(), a[1].Pointer(), a[2].Int(), a[3].Pointer(), a[4].Int())
	},
	"symlink": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.symlink(t, a[0].Pointer(), linux.AT_FDCWD, a[1].Pointer())
	},
	"symlinkat": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.symlink(t, a[0].Pointer(), a[1].Int(), a[2].Pointer())
	},
	"mkdir": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.mkdir(t, linux.AT_FDCWD, a[0].Pointer(), a[1].ModeT())
	},
	"mkdirat": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.mkdir(t, a[0].Int(), a[1].Pointer(), a[2].ModeT())
	},
	"mknod": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.mknod(t, linux.AT_FDCWD, a[0].Pointer(), linux.FileMode(a[1].ModeT()), a[2].Uint())
	},
	"mknodat": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.mknod(t, a[0].Int(), a[1].Pointer(), linux.FileMode(a[2].ModeT()), a[3].Uint())
	},
	"truncate": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		size := a[1].Int64()
		if size < 0 {
			return 0, linuxerr.EINVAL
		}
		return 0, handleSetSizeError(t, w.setStat(t, &trace.Fact{Op: trace.Truncate, A: uint64(size)},
			linux.AT_FDCWD, a[0].Pointer(), false, true, &vfs.SetStatOptions{
				Stat: linux.Statx{Mask: linux.STATX_SIZE, Size: uint64(size)}, NeedWritePerm: true, ClearPrivs: true,
			}))
	},
	"chmod": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.chmod(t, linux.AT_FDCWD, a[0].Pointer(), a[1].ModeT())
	},
	"fchmodat": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.chmod(t, a[0].Int(), a[1].Pointer(), a[2].ModeT())
	},
	"fchmod": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		f, opts := chmodFact(a[1].ModeT())
		return 0, w.setStatFile(t, f, a[0].Int(), opts)
	},
	"chown": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.chown(t, linux.AT_FDCWD, a[0].Pointer(), a[1].Int(), a[2].Int(), 0)
	},
	"lchown": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.chown(t, linux.AT_FDCWD, a[0].Pointer(), a[1].Int(), a[2].Int(), linux.AT_SYMLINK_NOFOLLOW)
	},
	"fchownat": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.chown(t, a[0].Int(), a[1].Pointer(), a[2].Int(), a[3].Int(), a[4].Int())
	},
	"fchown": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		owner, group := a[1].Int(), a[2].Int()
		file := t.GetFile(a[0].Int())
		if file == nil {
			return 0, linuxerr.EBADF
		}
		defer file.DecRef(t)
		var opts vfs.SetStatOptions
		if err := populateSetStatOptionsForChown(t, owner, group, &opts); err != nil {
			return 0, err
		}
		return 0, w.reportFile(t, chownFact(owner, group), file, file.SetStat(t, opts))
	},
	"utime": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		opts := vfs.SetStatOptions{Stat: linux.Statx{Mask: linux.STATX_ATIME | linux.STATX_MTIME}}
		if a[1].Pointer() == 0 {
			opts.Stat.Atime.Nsec, opts.Stat.Mtime.Nsec = linux.UTIME_NOW, linux.UTIME_NOW
		} else {
			var times linux.Utime
			if _, err := times.CopyIn(t, a[1].Pointer()); err != nil {
				return 0, err
			}
			opts.Stat.Atime.Sec, opts.Stat.Mtime.Sec = times.Actime, times.Modtime
		}
		return 0, w.utimes(t, linux.AT_FDCWD, a[0].Pointer(), false, true, &opts)
	},
	"utimes": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		var opts vfs.SetStatOptions
		if err := populateSetStatOptionsForUtimes(t, a[1].Pointer(), &opts); err != nil {
			return 0, err
		}
		return 0, w.utimes(t, linux.AT_FDCWD, a[0].Pointer(), false, true, &opts)
	},
	"futimesat": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		var opts vfs.SetStatOptions
		if err := populateSetStatOptionsForUtimes(t, a[2].Pointer(), &opts); err != nil {
			return 0, err
		}
		return 0, w.utimes(t, a[0].Int(), a[1].Pointer(), false, true, &opts)
	},
	"utimensat": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		var opts vfs.SetStatOptions
		if err := populateSetStatOptionsForUtimens(t, a[2].Pointer(), &opts); err != nil || opts.Stat.Mask == 0 {
			return 0, err
		}
		flags := a[3].Int()
		if flags&^(linux.AT_SYMLINK_NOFOLLOW|linux.AT_EMPTY_PATH) != 0 {
			return 0, linuxerr.EINVAL
		}
		return 0, w.utimes(t, a[0].Int(), a[1].Pointer(), flags&linux.AT_EMPTY_PATH != 0, flags&linux.AT_SYMLINK_NOFOLLOW == 0, &opts)
	},
	"setxattr": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.setXattr(t, a, true)
	},
	"lsetxattr": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.setXattr(t, a, false)
	},
	"fsetxattr": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		if a[4].Int()&^(linux.XATTR_CREATE|linux.XATTR_REPLACE) != 0 {
			return 0, linuxerr.EINVAL
		}
		file := t.GetFile(a[0].Int())
		if file == nil {
			return 0, linuxerr.EBADF
		}
		defer file.DecRef(t)
		opts, err := copyXattr(t, a)
		if err != nil {
			return 0, err
		}
		return 0, w.reportFile(t, &trace.Fact{Op: trace.Xattr, A: 1, Path2: opts.Name}, file, file.SetXattr(t, opts))
	},
	"removexattr": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.removeXattr(t, a, true)
	},
	"lremovexattr": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.removeXattr(t, a, false)
	},
	"fremovexattr": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		file := t.GetFile(a[0].Int())
		if file == nil {
			return 0, linuxerr.EBADF
		}
		defer file.DecRef(t)
		name, err := copyInXattrName(t, a[1].Pointer())
		if err != nil {
			return 0, err
		}
		return 0, w.reportFile(t, &trace.Fact{Op: trace.Xattr, A: 2, Path2: name}, file, file.RemoveXattr(t, name))
	},
	"memfd_create": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return w.memfd(t, a[0].Pointer(), a[1].Uint())
	},
}

// reportFile emits f about file, which a descriptor named, and returns err.
func (w *factWriter) reportFile(t *kernel.Task, f *trace.Fact, file *vfs.FileDescription, err error) error {
	f.PID, f.Errno = pidOf(t), errnoOf(err)
	f.Path, f.Flags = truePath(t, file.VirtualDentry())
	w.emit(f)
	return err
}

func (w *factWriter) unlink(t *kernel.Task, dirfd int32, addr hostarch.Addr, flags int32) error {
	if flags&^linux.AT_REMOVEDIR != 0 {
		return linuxerr.EINVAL
	}
	f := trace.Fact{Op: trace.Unlink}
	remove := t.Kernel().VFS().UnlinkAt
	if flags&linux.AT_REMOVEDIR != 0 {
		f.Op, remove = trace.Rmdir, t.Kernel().VFS().RmdirAt
	}
	return w.onName(t, &f, dirfd, addr, func(q *place) error {
		return w.names.removing(q, func() error { return remove(t, q.creds, q.pop(false)) })
	})
}

// onName runs op on the name that the path at addr gives, in its pinned
// directory, and emits f about this name.
func (w *factWriter) onName(t *kernel.Task, f *trace.Fact, dirfd int32, addr hostarch.Addr, op func(*place) error) error {
	p, err := newPlace(t, dirfd, addr, false)
	if err != nil {
		return err
	}
	defer p.release()
	return w.onPlace(f, p, op)
}

func (w *factWriter) onPlace(f *trace.Fact, p *place, op func(*place) error) error {
	q, err := p.pin()
	if err == nil {
		err = op(q)
	}
	w.reportName(f, p, q, nil, nil, err)
	return err
}

// reportName is report for calls on names rather than objects. q and q2 are the
// pinned places, nil when their directory was not found. It releases them.
func (w *factWriter) reportName(f *trace.Fact, p, q, p2, q2 *place, err error) {
	f.PID, f.Errno = pidOf(p.t), errnoOf(err)
	var fl, fl2 trace.Flags
	f.Path, fl = p.nameBy(q)
	if p2 != nil {
		f.Path2, fl2 = p2.nameBy(q2)
	}
	f.Flags |= fl | fl2
	w.emit(f)
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
			err = w.names.removing(q2, func() error {
				return t.Kernel().VFS().RenameAt(t, q.creds, q.pop(false), q2.pop(false), &vfs.RenameOptions{Flags: flags})
			})
		}
	}
	w.reportName(&trace.Fact{Op: trace.Rename, A: uint64(flags)}, p, q, p2, q2, err)
	return err
}

func (w *factWriter) link(t *kernel.Task, olddir int32, old hostarch.Addr, newdir int32, new hostarch.Addr, flags int32) error {
	if flags&^(linux.AT_EMPTY_PATH|linux.AT_SYMLINK_FOLLOW) != 0 {
		return linuxerr.EINVAL
	}
	p, err := newPlace(t, olddir, old, flags&linux.AT_EMPTY_PATH != 0)
	if err != nil {
		return err
	}
	defer p.release()
	if flags&linux.AT_EMPTY_PATH != 0 && !p.absolute() && olddir != linux.AT_FDCWD {
		// gVisor makes the same test: whoever opened the file may link it.
		file := t.GetFile(olddir)
		if file == nil {
			return linuxerr.EBADF
		}
		owner := file.Credentials()
		p.start.DecRef(t)
		p.start = file.VirtualDentry()
		p.start.IncRef()
		file.DecRef(t)
		if owner != p.creds && !t.HasCapabilityIn(linux.CAP_DAC_READ_SEARCH, owner.UserNamespace) {
			return linuxerr.ENOENT
		}
	}
	p2, err := newPlace(t, newdir, new, false)
	if err != nil {
		return err
	}
	defer p2.release()
	f := trace.Fact{Op: trace.Link}
	vd, err := w.find(&f, p, flags&linux.AT_SYMLINK_FOLLOW != 0, &vfs.GetDentryOptions{})
	if err != nil {
		return err
	}
	defer vd.DecRef(t)
	q2, err := p2.pin()
	if err == nil {
		err = t.Kernel().VFS().LinkAt(t, p.creds, p.of(vd), q2.pop(false))
	}
	f.Path2, f.Flags = p2.nameBy(q2)
	w.report(&f, p, nil, vd, err)
	return err
}

func (w *factWriter) symlink(t *kernel.Task, target hostarch.Addr, dirfd int32, addr hostarch.Addr) error {
	to, err := t.CopyInString(target, linux.PATH_MAX)
	if err != nil {
		return err
	}
	if to == "" {
		return linuxerr.ENOENT
	}
	return w.onName(t, &trace.Fact{Op: trace.Symlink, Path2: to}, dirfd, addr, func(q *place) error {
		return t.Kernel().VFS().SymlinkAt(t, q.creds, q.pop(false), to)
	})
}

func (w *factWriter) mkdir(t *kernel.Task, dirfd int32, addr hostarch.Addr, mode uint) error {
	return w.onName(t, &trace.Fact{Op: trace.Mkdir, A: uint64(mode)}, dirfd, addr, func(q *place) error {
		return t.Kernel().VFS().MkdirAt(t, q.creds, q.pop(false), &vfs.MkdirOptions{
			Mode: linux.FileMode(mode & (0777 | linux.S_ISVTX) &^ t.FSContext().Umask()),
		})
	})
}

func (w *factWriter) mknod(t *kernel.Task, dirfd int32, addr hostarch.Addr, mode linux.FileMode, dev uint32) error {
	f := trace.Fact{Op: trace.Mknod, A: uint64(mode), B: uint64(dev)}
	p, err := newPlace(t, dirfd, addr, false)
	if err != nil {
		return err
	}
	defer p.release()
	switch ft := mode.FileType(); ft {
	case 0:
		mode |= linux.ModeRegular
	case linux.ModeCharacterDevice, linux.ModeBlockDevice:
		whiteout := ft == linux.ModeCharacterDevice && dev == linux.WHITEOUT_DEV
		if !whiteout && !t.HasRootCapability(linux.CAP_MKNOD) {
			w.report(&f, p, nil, vfs.VirtualDentry{}, linuxerr.EPERM)
			return linuxerr.EPERM
		}
	}
	return w.onPlace(&f, p, func(q *place) error {
		major, minor := linux.DecodeDeviceID(dev)
		return t.Kernel().VFS().MknodAt(t, q.creds, q.pop(false), &vfs.MknodOptions{
			Mode: mode &^ linux.FileMode(t.FSContext().Umask()), DevMajor: uint32(major), DevMinor: minor,
		})
	})
}

// setStat serves the calls that set what stat reads.
func (w *factWriter) setStat(t *kernel.Task, f *trace.Fact, dirfd int32, addr hostarch.Addr, allowEmpty, follow bool, opts *vfs.SetStatOptions) error {
	p, err := newPlace(t, dirfd, addr, allowEmpty)
	if err != nil {
		return err
	}
	defer p.release()
	if p.raw == "" && dirfd != linux.AT_FDCWD {
		return w.setStatFile(t, f, dirfd, opts)
	}
	if p.raw == "" {
		err = t.Kernel().VFS().SetStatAt(t, p.creds, p.of(p.start), opts)
		w.report(f, p, nil, p.start, err)
		return err
	}
	vd, err := w.find(f, p, follow, &vfs.GetDentryOptions{})
	if err != nil {
		return err
	}
	defer vd.DecRef(t)
	err = t.Kernel().VFS().SetStatAt(t, p.creds, p.of(vd), opts)
	w.report(f, p, nil, vd, err)
	return err
}

// setStatFile is setStat for a descriptor.
func (w *factWriter) setStatFile(t *kernel.Task, f *trace.Fact, fd int32, opts *vfs.SetStatOptions) error {
	file := t.GetFile(fd)
	if file == nil {
		return linuxerr.EBADF
	}
	defer file.DecRef(t)
	return w.reportFile(t, f, file, file.SetStat(t, *opts))
}

func chmodFact(mode uint) (*trace.Fact, *vfs.SetStatOptions) {
	return &trace.Fact{Op: trace.Chmod, A: uint64(mode & chmodMask)},
		&vfs.SetStatOptions{Stat: linux.Statx{Mask: linux.STATX_MODE, Mode: uint16(mode & chmodMask)}}
}

func (w *factWriter) chmod(t *kernel.Task, dirfd int32, addr hostarch.Addr, mode uint) error {
	f, opts := chmodFact(mode)
	return w.setStat(t, f, dirfd, addr, false, true, opts)
}

func chownFact(owner, group int32) *trace.Fact {
	return &trace.Fact{Op: trace.Chown, A: uint64(uint32(owner)), B: uint64(uint32(group))}
}

func (w *factWriter) chown(t *kernel.Task, dirfd int32, addr hostarch.Addr, owner, group, flags int32) error {
	if flags&^(linux.AT_EMPTY_PATH|linux.AT_SYMLINK_NOFOLLOW) != 0 {
		return linuxerr.EINVAL
	}
	var opts vfs.SetStatOptions
	if err := populateSetStatOptionsForChown(t, owner, group, &opts); err != nil {
		return err
	}
	return w.setStat(t, chownFact(owner, group), dirfd, addr, flags&linux.AT_EMPTY_PATH != 0, flags&linux.AT_SYMLINK_NOFOLLOW == 0, &opts)
}

func (w *factWriter) utimes(t *kernel.Task, dirfd int32, addr hostarch.Addr, allowEmpty, follow bool, opts *vfs.SetStatOptions) error {
	f := trace.Fact{Op: trace.Utimes}
	if dirfd != linux.AT_FDCWD && addr == 0 {
		return w.setStatFile(t, &f, dirfd, opts)
	}
	return w.setStat(t, &f, dirfd, addr, allowEmpty, follow, opts)
}

func copyXattr(t *kernel.Task, a arch.SyscallArguments) (*vfs.SetXattrOptions, error) {
	name, err := copyInXattrName(t, a[1].Pointer())
	if err != nil {
		return nil, err
	}
	value, err := copyInXattrValue(t, a[2].Pointer(), a[3].SizeT())
	if err != nil {
		return nil, err
	}
	return &vfs.SetXattrOptions{Name: name, Value: value, Flags: uint32(a[4].Int())}, nil
}

func (w *factWriter) setXattr(t *kernel.Task, a arch.SyscallArguments, follow bool) error {
	if a[4].Int()&^(linux.XATTR_CREATE|linux.XATTR_REPLACE) != 0 {
		return linuxerr.EINVAL
	}
	p, err := newPlace(t, linux.AT_FDCWD, a[0].Pointer(), false)
	if err != nil {
		return err
	}
	defer p.release()
	opts, err := copyXattr(t, a)
	if err != nil {
		return err
	}
	f := trace.Fact{Op: trace.Xattr, A: 1, Path2: opts.Name}
	vd, err := w.find(&f, p, follow, &vfs.GetDentryOptions{})
	if err != nil {
		return err
	}
	defer vd.DecRef(t)
	err = t.Kernel().VFS().SetXattrAt(t, p.creds, p.of(vd), opts)
	w.report(&f, p, nil, vd, err)
	return err
}

func (w *factWriter) removeXattr(t *kernel.Task, a arch.SyscallArguments, follow bool) error {
	p, err := newPlace(t, linux.AT_FDCWD, a[0].Pointer(), false)
	if err != nil {
		return err
	}
	defer p.release()
	name, err := copyInXattrName(t, a[1].Pointer())
	if err != nil {
		return err
	}
	f := trace.Fact{Op: trace.Xattr, A: 2, Path2: name}
	vd, err := w.find(&f, p, follow, &vfs.GetDentryOptions{})
	if err != nil {
		return err
	}
	defer vd.DecRef(t)
	err = t.Kernel().VFS().RemoveXattrAt(t, p.creds, p.of(vd), name)
	w.report(&f, p, nil, vd, err)
	return err
}

func (w *factWriter) memfd(t *kernel.Task, addr hostarch.Addr, flags uint32) (uintptr, error) {
	const prefix = "memfd:"
	if flags&^(linux.MFD_CLOEXEC|linux.MFD_ALLOW_SEALING) != 0 {
		return 0, linuxerr.EINVAL
	}
	name, err := t.CopyInString(addr, linux.NAME_MAX-len(prefix))
	if err != nil {
		return 0, err
	}
	f := trace.Fact{Op: trace.Memfd, PID: pidOf(t), Path: name, A: uint64(flags)}
	file, err := tmpfs.NewMemfd(t, t.Credentials(), t.Kernel().ShmMount(), flags&linux.MFD_ALLOW_SEALING != 0, prefix+name)
	f.Errno = errnoOf(err)
	w.emit(&f)
	if err != nil {
		return 0, err
	}
	defer file.DecRef(t)
	w.marks.forget(file)
	fd, err := t.NewFDFrom(0, file, kernel.FDFlags{CloseOnExec: flags&linux.MFD_CLOEXEC != 0})
	return uintptr(fd), err
}
