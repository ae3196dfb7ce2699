package hostexec

import (
	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/seccomp"
)

// refusedCalls answer a sealed program ENOSYS, as if the kernel had none. They make
// namespaces, mounts and keys, reach into other processes, or have been ways into kernels,
// and a virtual machine's monitor does without. The program's own filter comes on top.
var refusedCalls = []uint32{
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_CLONE3, // clone's flags are looked at below
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE,
	unix.SYS_FSOPEN, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_FSCONFIG, unix.SYS_MOUNT_SETATTR,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_USERFAULTFD, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_VMSPLICE, unix.SYS_MIGRATE_PAGES, unix.SYS_MOVE_PAGES,
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_KCMP, unix.SYS_PIDFD_GETFD,
	unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD,
	unix.SYS_QUOTACTL, unix.SYS_ACCT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_REBOOT, unix.SYS_SYSLOG,
}

// newNamespaces are the flags of clone(2) that make namespaces.
const newNamespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUTS | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP

// callFilter returns the filter. Calls of another architecture and of x32 are refused too,
// and sockets other than Unix ones: those of virtual machines (vsock) have no namespaces.
// The program can't give up the signal that ends it with carboy. It loses the signal when
// a thread other than its first executes a program, which no program of the closed set does.
func callFilter() []unix.SockFilter {
	first := unix.SockFilter{Code: seccomp.Load, K: seccomp.Arg(0)}
	second := unix.SockFilter{Code: seccomp.Load, K: seccomp.Arg(1)}
	return append(seccomp.Unknown(refusedCalls),
		unix.SockFilter{Code: seccomp.IfEq, Jf: 6, K: unix.SYS_PRCTL},
		first, unix.SockFilter{Code: seccomp.IfEq, Jf: 3, K: unix.PR_SET_PDEATHSIG},
		second, unix.SockFilter{Code: seccomp.IfEq, Jt: 1, K: uint32(unix.SIGKILL)}, seccomp.Refuse(unix.EPERM), seccomp.Allow,
		unix.SockFilter{Code: seccomp.IfEq, Jf: 4, K: unix.SYS_CLONE},
		first, unix.SockFilter{Code: seccomp.IfAny, Jf: 1, K: newNamespaces}, seccomp.Refuse(unix.EPERM), seccomp.Allow,
		unix.SockFilter{Code: seccomp.IfEq, Jf: 3, K: unix.SYS_SOCKET},
		first, unix.SockFilter{Code: seccomp.IfEq, Jt: 1, K: unix.AF_UNIX}, seccomp.Refuse(unix.EAFNOSUPPORT),
		seccomp.Allow,
	)
}
