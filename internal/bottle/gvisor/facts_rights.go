package gvisor

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"github.com/carboy/carboy/internal/trace"
)

// Rights, other processes, mounts. gVisor serves these calls. The facts hold
// numbers from registers, which no other thread can change, and the caller's
// credentials after the call.

type sysControl = *kernel.SyscallControl

var rightsCalls = map[string]around{
	"setuid": setID, "setreuid": setID, "setresuid": setID,
	"setgid": setID, "setregid": setID, "setresgid": setID, "setgroups": setID,
	"capset": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		r, c, err := orig(t, no, a)
		now := t.Credentials()
		w.emit(&trace.Fact{Op: trace.Caps, PID: pidOf(t), Errno: errnoOf(err), Path: "capset",
			B: uint64(now.EffectiveCaps), C: uint64(now.PermittedCaps)})
		return r, c, err
	},
	"prctl": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		r, c, err := orig(t, no, a)
		switch option := a[0].Int(); option {
		case linux.PR_CAPBSET_DROP, linux.PR_SET_KEEPCAPS, linux.PR_SET_SECUREBITS, linux.PR_CAP_AMBIENT:
			w.emit(&trace.Fact{Op: trace.Caps, PID: pidOf(t), Errno: errnoOf(err), Path: "prctl", A: uint64(option), B: a[1].Uint64(), C: a[2].Uint64()})
		}
		return r, c, err
	},
	"unshare": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		r, c, err := orig(t, no, a)
		w.emit(&trace.Fact{Op: trace.Caps, PID: pidOf(t), Errno: errnoOf(err), Path: "unshare", A: uint64(a[0].Uint())})
		return r, c, err
	},
	// On success gVisor's own trace point reports it.
	"clone": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		r, c, err := orig(t, no, a)
		if flags := a[0].Uint64(); err != nil && flags&newSpaces != 0 {
			w.emit(&trace.Fact{Op: trace.Caps, PID: pidOf(t), Errno: errnoOf(err), Path: "clone", A: flags})
		}
		return r, c, err
	},
	"clone3": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		var flags [8]byte
		_, unread := t.CopyInBytes(a[0].Pointer(), flags[:]) // its first field
		r, c, err := orig(t, no, a)
		if f := hostarch.ByteOrder.Uint64(flags[:]); err != nil && unread == nil && f&newSpaces != 0 {
			w.emit(&trace.Fact{Op: trace.Caps, Flags: trace.Claimed, PID: pidOf(t), Errno: errnoOf(err), Path: "clone", A: f})
		}
		return r, c, err
	},
	"setns": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		r, c, err := orig(t, no, a)
		w.emit(&trace.Fact{Op: trace.Caps, PID: pidOf(t), Errno: errnoOf(err), Path: "setns", A: uint64(a[1].Uint())})
		return r, c, err
	},
	"ptrace": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		f := trace.Fact{Op: trace.Ptrace, PID: pidOf(t), A: uint64(a[0].Int64())}
		switch a[0].Int64() {
		case linux.PTRACE_TRACEME:
			if p := t.Parent(); p != nil {
				f.B = uint64(pidOf(p))
			}
		case linux.PTRACE_ATTACH, linux.PTRACE_SEIZE:
			f.B = otherTask(t, a[1].Int())
			// gVisor decides after this call, by the same test.
			f.Flags = trace.Claimed
			if o := t.PIDNamespace().TaskWithID(kernel.ThreadID(a[1].Int())); o != nil && !t.CanTrace(o, true) {
				f.Errno = uint32(linuxerr.EPERM.Errno())
			}
		default:
			// A tracer's later actions concern the process to which it has
			// attached.
			return orig(t, no, a)
		}
		r, c, err := orig(t, no, a)
		if err != nil {
			f.Errno = errnoOf(err)
		}
		w.emit(&f)
		return r, c, err
	},
	"ioctl": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		r, c, err := orig(t, no, a)
		if name, ok := typingRequests[a[1].Uint()]; ok {
			w.emit(&trace.Fact{Op: trace.Refused, PID: pidOf(t), Errno: errnoOf(err), Path: name})
		}
		return r, c, err
	},
	"process_vm_readv":  otherMemory("process_vm_readv"),
	"process_vm_writev": otherMemory("process_vm_writev"),
	"pidfd_getfd": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		r, c, err := orig(t, no, a)
		w.emit(&trace.Fact{Op: trace.Ptrace, PID: pidOf(t), Errno: errnoOf(err), Path: "pidfd_getfd"})
		return r, c, err
	},
	"kill": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		pid := a[0].Int()
		own := t.PIDNamespace().IDOfThreadGroup(t.ThreadGroup())
		if pid == int32(own) {
			return orig(t, no, a)
		}
		root, b := t.Kernel().RootPIDNamespace(), int64(pid)
		switch {
		case pid > 0:
			b = int64(otherTask(t, pid))
		case pid == 0:
			b = -int64(root.IDOfProcessGroup(t.ThreadGroup().ProcessGroup()))
		case pid < -1:
			if g := t.PIDNamespace().ProcessGroupWithID(kernel.ProcessGroupID(-pid)); g != nil {
				b = -int64(root.IDOfProcessGroup(g))
			}
		}
		r, c, err := orig(t, no, a)
		w.emit(&trace.Fact{Op: trace.Kill, PID: pidOf(t), Errno: errnoOf(err), A: uint64(a[1].Int()), B: uint64(b)})
		return r, c, err
	},
	"tkill":             signalTask(0, 1),
	"tgkill":            signalTask(1, 2),
	"rt_sigqueueinfo":   signalTask(0, 1),
	"rt_tgsigqueueinfo": signalTask(1, 2),
	"pidfd_send_signal": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		r, c, err := orig(t, no, a)
		w.emit(&trace.Fact{Op: trace.Kill, PID: pidOf(t), Errno: errnoOf(err), Path: "pidfd_send_signal", A: uint64(a[1].Int())})
		return r, c, err
	},

	// Their paths are copied separately, and are reported as requested.
	"mount": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		f := trace.Fact{Op: trace.Mount, Path: askedText(t, a[1].Pointer()), Path2: askedText(t, a[0].Pointer()), A: a[3].Uint64()}
		if typ := askedText(t, a[2].Pointer()); typ != "" {
			f.Args = []string{typ}
		}
		return w.asked(t, &f, no, a, orig)
	},
	"umount2": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		return w.asked(t, &trace.Fact{Op: trace.Umount, Path: askedText(t, a[0].Pointer()), A: uint64(a[1].Uint())}, no, a, orig)
	},
	"chroot": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		return w.asked(t, &trace.Fact{Op: trace.Chroot, Path: askedText(t, a[0].Pointer())}, no, a, orig)
	},
	"pivot_root": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		return w.asked(t, &trace.Fact{Op: trace.Chroot, Path: askedText(t, a[0].Pointer()), Path2: askedText(t, a[1].Pointer())}, no, a, orig)
	},
	"move_mount": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		f := trace.Fact{Op: trace.Mount, Path: askedText(t, a[3].Pointer()), Path2: askedText(t, a[1].Pointer()), Args: []string{"move_mount"}, A: uint64(a[4].Uint())}
		return w.asked(t, &f, no, a, orig)
	},
	"open_tree": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		return w.asked(t, &trace.Fact{Op: trace.Mount, Path: askedText(t, a[1].Pointer()), Args: []string{"open_tree"}, A: uint64(a[2].Uint())}, no, a, orig)
	},
	"fsopen": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		return w.asked(t, &trace.Fact{Op: trace.Mount, Args: []string{"fsopen", askedText(t, a[0].Pointer())}}, no, a, orig)
	},
	"fsmount": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		return w.asked(t, &trace.Fact{Op: trace.Mount, Args: []string{"fsmount"}}, no, a, orig)
	},
}

func setID(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
	r, c, err := orig(t, no, a)
	now := t.Credentials()
	f := trace.Fact{Op: trace.SetID, PID: pidOf(t), Errno: errnoOf(err), A: uint64(now.RealKGID), B: uint64(now.EffectiveKGID)}
	f.UID, f.EUID = uint32(now.RealKUID), uint32(now.EffectiveKUID)
	w.emit(&f)
	return r, c, err
}

// otherTask translates tid from t's PID namespace to the root's. If there is no
// such task, it returns tid.
func otherTask(t *kernel.Task, tid int32) uint64 {
	if o := t.PIDNamespace().TaskWithID(kernel.ThreadID(tid)); o != nil {
		return uint64(pidOf(o))
	}
	return uint64(uint32(tid))
}

func otherMemory(name string) around {
	return func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		other := otherTask(t, a[0].Int())
		r, c, err := orig(t, no, a)
		w.emit(&trace.Fact{Op: trace.Ptrace, PID: pidOf(t), Errno: errnoOf(err), Path: name, B: other})
		return r, c, err
	}
}

// signalTask handles calls that signal one task; id and sig are the positions
// of these arguments. Signals within a process are not reported.
func signalTask(id, sig int) around {
	return func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		tid := a[id].Int()
		o := t.PIDNamespace().TaskWithID(kernel.ThreadID(tid))
		if o != nil && o.ThreadGroup() == t.ThreadGroup() {
			return orig(t, no, a)
		}
		b := uint64(uint32(tid))
		if o != nil {
			b = uint64(pidOf(o))
		}
		r, c, err := orig(t, no, a)
		w.emit(&trace.Fact{Op: trace.Kill, PID: pidOf(t), Errno: errnoOf(err), A: uint64(a[sig].Int()), B: b})
		return r, c, err
	}
}

// askedText copies a string for a report only.
func askedText(t *kernel.Task, addr hostarch.Addr) string {
	if addr == 0 {
		return ""
	}
	s, err := t.CopyInString(addr, linux.PATH_MAX)
	if err != nil {
		return ""
	}
	return s
}

func (w *factWriter) asked(t *kernel.Task, f *trace.Fact, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
	r, c, err := orig(t, no, a)
	f.PID, f.Errno, f.Flags = pidOf(t), errnoOf(err), trace.Asked|trace.Claimed
	w.emit(f)
	return r, c, err
}

// refusedCalls request rights that a bottle does not grant. carboy's kernel
// only refuses them or pretends; the attempt is a fact.
var refusedCalls = map[string]bool{
	"bpf": true, "perf_event_open": true, "userfaultfd": true,
	"io_uring_setup": true, "io_uring_enter": true, "io_uring_register": true,
	"keyctl": true, "add_key": true, "request_key": true,
	"init_module": true, "finit_module": true, "delete_module": true, "create_module": true,
	"kexec_load": true, "kexec_file_load": true, "reboot": true,
	"swapon": true, "swapoff": true, "acct": true, "quotactl": true,
	"iopl": true, "ioperm": true, "modify_ldt": true,
	"open_by_handle_at": true, "name_to_handle_at": true, "lookup_dcookie": true,
	"fanotify_init": true, "fanotify_mark": true, "fspick": true, "vhangup": true, "syslog": true,
	"settimeofday": true, "clock_settime": true, "adjtimex": true, "clock_adjtime": true,
	"sethostname": true, "setdomainname": true, "kcmp": true, "nfsservctl": true, "sysctl": true, "uselib": true,
	"setfsuid": true, "setfsgid": true,
}

// typingRequests names terminal requests that inject typed characters. gVisor's
// terminals implement neither.
var typingRequests = map[uint32]string{linux.TIOCSTI: "ioctl TIOCSTI", tiocLinux: "ioctl TIOCLINUX"}

const tiocLinux = 0x541c

// missingCalls request such rights too but are not in gVisor's tables. Numbers from
// 424 on are the same on all architectures.
var missingCalls = map[uintptr]string{
	440: "process_madvise", 442: "mount_setattr", 443: "quotactl_fd", 447: "memfd_secret", 467: "open_tree_attr",
}

func refuse(name string, orig call) call {
	return func(t *kernel.Task, no uintptr, a arch.SyscallArguments) (uintptr, sysControl, error) {
		w := facts.Load()
		if w == nil {
			return orig(t, no, a)
		}
		w.began(t)
		r, c, err := orig(t, no, a)
		w.emit(&trace.Fact{Op: trace.Refused, PID: pidOf(t), Errno: errnoOf(err), Path: name})
		return r, c, err
	}
}

type missingFn = func(t *kernel.Task, no uintptr, a arch.SyscallArguments) (uintptr, error)

func wrapMissing(orig missingFn) missingFn {
	return func(t *kernel.Task, no uintptr, a arch.SyscallArguments) (uintptr, error) {
		r, err := orig(t, no, a)
		if name, ok := missingCalls[no]; ok {
			if w := facts.Load(); w != nil {
				w.emit(&trace.Fact{Op: trace.Refused, PID: pidOf(t), Errno: errnoOf(err), Path: name})
			}
		}
		return r, err
	}
}
