package gvisor

import (
	"sync/atomic"
	"unsafe"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/limits"
	syslinux "gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	"github.com/carboy/carboy/internal/trace"
)

// The first write through each open of a file is a fact. Writing calls name a
// descriptor, and another thread can put another file behind it between our
// lookup and gVisor's. So the common ones are served here, with one lookup.

//go:linkname sysWrite gvisor.dev/gvisor/pkg/sentry/syscalls/linux.write
func sysWrite(t *kernel.Task, file *vfs.FileDescription, src usermem.IOSequence, opts vfs.WriteOptions) (int64, error)

//go:linkname sysPwrite gvisor.dev/gvisor/pkg/sentry/syscalls/linux.pwrite
func sysPwrite(t *kernel.Task, file *vfs.FileDescription, src usermem.IOSequence, offset int64, opts vfs.WriteOptions) (int64, error)

//go:linkname submitCallback gvisor.dev/gvisor/pkg/sentry/syscalls/linux.submitCallback
func submitCallback(t *kernel.Task, id uint64, cb *linux.IOCallback, cbAddr hostarch.Addr) error

// markSet remembers open descriptions by address, without holding them. The low
// bit of an address means that only a claim was reported so far. The set may
// forget one, which costs a second fact, but it never confuses two: an address
// is removed before a new description there has a descriptor. It is bounded: 64
// Ki addresses.
type markSet struct {
	sets [1 << 14]markWays
	next atomic.Uint32
}

type markWays [4]atomic.Uintptr

// ways spreads addresses by Fibonacci hashing. No attacker chooses them.
func (m *markSet) ways(addr uintptr) *markWays {
	return &m.sets[uint64(addr)*0x9e3779b97f4a7c15>>(64-14)]
}

// onlyClaimed marks an address; addresses of descriptions are even.
const onlyClaimed = 1

// add reports whether file was absent, or was present as claimed only and is
// not any more.
func (m *markSet) add(file *vfs.FileDescription, claimed bool) bool {
	addr := uintptr(unsafe.Pointer(file))
	ws := m.ways(addr)
	for i := range ws {
		switch v := ws[i].Load(); {
		case v == addr, v == addr|onlyClaimed && claimed:
			return false
		case v == addr|onlyClaimed:
			return ws[i].CompareAndSwap(v, addr)
		}
	}
	mark := addr
	if claimed {
		mark |= onlyClaimed
	}
	for i := range ws {
		if ws[i].CompareAndSwap(0, mark) {
			return true
		}
	}
	ws[m.next.Add(1)%uint32(len(ws))].Store(mark)
	return true
}

func (m *markSet) forget(file *vfs.FileDescription) {
	addr := uintptr(unsafe.Pointer(file))
	ws := m.ways(addr)
	for i := range ws {
		ws[i].CompareAndSwap(addr, 0)
		ws[i].CompareAndSwap(addr|onlyClaimed, 0)
	}
}

// once emits op about file on its first call for this open description. It
// ignores files outside a file system, such as pipes and sockets.
func (w *factWriter) once(t *kernel.Task, op trace.Op, file *vfs.FileDescription) {
	w.onceClaimed(t, op, file, 0)
}

func (w *factWriter) onceClaimed(t *kernel.Task, op trace.Op, file *vfs.FileDescription, fl trace.Flags) {
	if !w.marks.add(file, fl&trace.Claimed != 0) {
		return
	}
	if op == trace.Write && special(t, file) {
		return
	}
	f := trace.Fact{Op: op, PID: pidOf(t)}
	f.Path, f.Flags = truePath(t, file.VirtualDentry())
	f.Flags |= fl
	w.emit(&f)
}

// special reports whether file is known to store nothing.
func special(t *kernel.Task, file *vfs.FileDescription) bool {
	st, err := file.Stat(t, vfs.StatOptions{Mask: linux.STATX_TYPE})
	if err != nil {
		return false
	}
	switch st.Mode & linux.S_IFMT {
	case linux.S_IFREG, linux.S_IFDIR, linux.S_IFBLK:
		return false
	}
	return true
}

// writesTo handles calls that gVisor serves: it looks up fd before do, and
// reports the file if do wrote. If no other task shares the descriptor table,
// gVisor sees the same file.
func (w *factWriter) writesTo(t *kernel.Task, fd int32, do func() (wrote bool)) {
	file := t.GetFile(fd)
	if file == nil {
		do()
		return
	}
	defer file.DecRef(t)
	var fl trace.Flags
	if t.FDTable().ReadRefs() > 1 {
		fl = trace.Claimed
	}
	if do() && file.IsWritable() {
		w.onceClaimed(t, trace.Write, file, fl)
	}
}

// writeCalls are served here. A write of nothing, or one that fails, is no
// fact.
var writeCalls = map[string]served{
	"write": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return w.write(t, a[0].Int(), single(a[1].Pointer(), a[2].SizeT()), -1, 0, "write")
	},
	"pwrite64": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		off := a[3].Int64()
		if off < 0 {
			return 0, badOffset(t, a[0].Int())
		}
		return w.write(t, a[0].Int(), single(a[1].Pointer(), a[2].SizeT()), off, 0, "pwrite64")
	},
	"writev": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return w.write(t, a[0].Int(), vector(a[1].Pointer(), a[2].Int()), -1, 0, "writev")
	},
	"pwritev": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		off := a[3].Int64()
		if off < 0 {
			return 0, badOffset(t, a[0].Int())
		}
		return w.write(t, a[0].Int(), vector(a[1].Pointer(), a[2].Int()), off, 0, "pwritev")
	},
	"pwritev2": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		off := a[3].Int64()
		if off < -1 {
			return 0, badOffset(t, a[0].Int())
		}
		return w.write(t, a[0].Int(), vector(a[1].Pointer(), a[2].Int()), off, uint32(a[5].Int()), "pwritev2")
	},
	"ftruncate": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		size := a[1].Int64()
		if size < 0 {
			return 0, linuxerr.EINVAL
		}
		file := t.GetFile(a[0].Int())
		if file == nil {
			return 0, linuxerr.EBADF
		}
		defer file.DecRef(t)
		if !file.IsWritable() {
			return 0, linuxerr.EINVAL
		}
		err := file.SetStat(t, vfs.SetStatOptions{
			Stat: linux.Statx{Mask: linux.STATX_SIZE, Size: uint64(size)}, ClearPrivs: true,
		})
		if err == nil {
			w.once(t, trace.Write, file)
		}
		return 0, handleSetSizeError(t, err)
	},
	"fallocate": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.fallocate(t, a[0].Int(), a[1].Uint64(), a[2].Int64(), a[3].Int64())
	},
	"io_submit": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return w.ioSubmit(t, a[0].Uint64(), a[1].Int(), a[2].Pointer())
	},
}

// source describes the bytes to write: n bytes at addr, or n vectors.
type source struct {
	addr   hostarch.Addr
	n      int
	vector bool
}

func single(addr hostarch.Addr, n uint) source  { return source{addr, int(n), false} }
func vector(addr hostarch.Addr, n int32) source { return source{addr, int(n), true} }

// sequence is made only after the descriptor was found valid: Linux returns
// errors in this order.
func (s source) sequence(t *kernel.Task, off int64) (usermem.IOSequence, error) {
	if s.vector {
		return t.IovecsIOSequence(s.addr, s.n, usermem.IOOpts{})
	}
	if s.n < 0 || off >= 0 && off+int64(s.n) < 0 {
		return usermem.IOSequence{}, linuxerr.EINVAL
	}
	return t.SingleIOSequence(s.addr, s.n, usermem.IOOpts{})
}

func badOffset(t *kernel.Task, fd int32) error {
	file := t.GetFile(fd)
	if file == nil {
		return linuxerr.EBADF
	}
	file.DecRef(t)
	return linuxerr.EINVAL
}

// write serves all calls that write from memory. off below zero: at the file's
// position.
func (w *factWriter) write(t *kernel.Task, fd int32, from source, off int64, flags uint32, name string) (uintptr, error) {
	file := t.GetFile(fd)
	if file == nil {
		return 0, linuxerr.EBADF
	}
	defer file.DecRef(t)
	src, err := from.sequence(t, off)
	if err != nil {
		return 0, err
	}
	var n int64
	if off < 0 {
		n, err = sysWrite(t, file, src, vfs.WriteOptions{Flags: flags})
	} else {
		n, err = sysPwrite(t, file, src, off, vfs.WriteOptions{Flags: flags})
	}
	if n > 0 {
		w.once(t, trace.Write, file)
	}
	t.IOUsage().AccountWriteSyscall(n)
	return uintptr(n), syslinux.HandleIOError(t, n != 0, err, linuxerr.ERESTARTSYS, name, file)
}

func (w *factWriter) fallocate(t *kernel.Task, fd int32, mode uint64, off, size int64) error {
	file := t.GetFile(fd)
	if file == nil {
		return linuxerr.EBADF
	}
	defer file.DecRef(t)
	switch {
	case !file.IsWritable():
		return linuxerr.EBADF
	case mode != 0:
		return linuxerr.ENOTSUP
	case off < 0 || size <= 0:
		return linuxerr.EINVAL
	case off+size < 0:
		return linuxerr.EFBIG
	case uint64(off+size) >= limits.FromContext(t).Get(limits.FileSize).Cur:
		t.SendSignal(&linux.SignalInfo{Signo: int32(linux.SIGXFSZ), Code: linux.SI_USER})
		return linuxerr.EFBIG
	}
	err := file.Allocate(t, mode, uint64(off), uint64(size))
	if err == nil {
		w.once(t, trace.Write, file)
	}
	return err
}

// ioSubmit copies each request once, but leaves the work to gVisor, which looks
// up the descriptor again.
func (w *factWriter) ioSubmit(t *kernel.Task, id uint64, n int32, addr hostarch.Addr) (uintptr, error) {
	if n < 0 {
		return 0, linuxerr.EINVAL
	}
	for i := range n {
		err := func() error {
			var at [8]byte
			if _, err := t.CopyInBytes(addr, at[:]); err != nil {
				return err
			}
			cbAddr := hostarch.Addr(hostarch.ByteOrder.Uint64(at[:]))
			var cb linux.IOCallback
			if _, err := cb.CopyIn(t, cbAddr); err != nil {
				return err
			}
			if cb.OpCode != linux.IOCB_CMD_PWRITE && cb.OpCode != linux.IOCB_CMD_PWRITEV {
				return submitCallback(t, id, &cb, cbAddr)
			}
			var err error
			w.writesTo(t, cb.FD, func() bool {
				err = submitCallback(t, id, &cb, cbAddr)
				return err == nil
			})
			return err
		}()
		if err != nil {
			if i > 0 {
				return uintptr(i), nil
			}
			return 0, err
		}
		addr += 8
	}
	return uintptr(n), nil
}

// passCalls are gVisor's, after a lookup of the descriptor.
var passCalls = map[string]around{
	"sendfile":        passWrite(0),
	"splice":          passWrite(2),
	"copy_file_range": passWrite(2),
	"mmap": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (r uintptr, c *kernel.SyscallControl, err error) {
		flags := a[3].Int()
		if flags&linux.MAP_ANONYMOUS != 0 {
			return orig(t, no, a)
		}
		do := func() bool {
			r, c, err = orig(t, no, a)
			return err == nil
		}
		if a[2].Int()&linux.PROT_EXEC != 0 {
			do = w.loads(t, a[4].Int(), do)
		}
		// Without PROT_WRITE too: mprotect can add it.
		if flags&linux.MAP_SHARED == 0 {
			do()
		} else {
			w.writesTo(t, a[4].Int(), do)
		}
		return r, c, err
	},
}

// loads returns do with a lookup of the descriptor before it, and reports the
// file if do mapped it. Code that a program copies into memory itself, or makes
// executable later, no longer belongs to a file; its open was a fact of its
// own.
func (w *factWriter) loads(t *kernel.Task, fd int32, do func() bool) func() bool {
	return func() bool {
		file := t.GetFile(fd)
		if file == nil {
			return do()
		}
		defer file.DecRef(t)
		if !do() {
			return false
		}
		f := trace.Fact{Op: trace.Load, PID: pidOf(t)}
		f.Path, f.Flags = truePath(t, file.VirtualDentry())
		if t.FDTable().ReadRefs() > 1 {
			f.Flags |= trace.Claimed
		}
		if !fixed(t, file) {
			f.Flags |= trace.Mutable
		}
		w.emit(&f)
		return true
	}
}

// passWrite handles calls that write to the descriptor in this argument and
// return the count.
func passWrite(arg int) around {
	return func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (r uintptr, c *kernel.SyscallControl, err error) {
		w.writesTo(t, a[arg].Int(), func() bool {
			r, c, err = orig(t, no, a)
			return int64(r) > 0
		})
		return r, c, err
	}
}
