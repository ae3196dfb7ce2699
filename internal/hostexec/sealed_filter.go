package hostexec

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
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
func callFilter() []unix.SockFilter {
	const (
		load = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		jeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		jge  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		jset = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		ret  = unix.BPF_RET | unix.BPF_K

		number, arch, first = 0, 4, 16 // offsets in struct seccomp_data; first argument's lower half
		x32                 = 0x4000_0000
	)
	refuse := func(e unix.Errno) unix.SockFilter {
		return unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(e)}
	}
	allow := unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW}
	own := uint32(unix.AUDIT_ARCH_X86_64)
	if runtime.GOARCH == "arm64" {
		own = unix.AUDIT_ARCH_AARCH64
	}
	p := []unix.SockFilter{
		{Code: load, K: arch}, {Code: jeq, Jt: 1, K: own}, refuse(unix.ENOSYS),
		{Code: load, K: number}, {Code: jge, Jf: 1, K: x32}, refuse(unix.ENOSYS),
	}
	for _, n := range refusedCalls {
		p = append(p, unix.SockFilter{Code: jeq, Jf: 1, K: n}, refuse(unix.ENOSYS))
	}
	return append(p,
		unix.SockFilter{Code: jeq, Jf: 4, K: unix.SYS_CLONE},
		unix.SockFilter{Code: load, K: first}, unix.SockFilter{Code: jset, Jf: 1, K: newNamespaces}, refuse(unix.EPERM), allow,
		unix.SockFilter{Code: jeq, Jf: 3, K: unix.SYS_SOCKET},
		unix.SockFilter{Code: load, K: first}, unix.SockFilter{Code: jeq, Jt: 1, K: unix.AF_UNIX}, refuse(unix.EAFNOSUPPORT),
		allow,
	)
}

// filterCalls installs the filter for this thread, which executes the program.
func filterCalls() error {
	p := callFilter()
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	_, _, e := unix.Syscall(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(p)
	if e != 0 {
		return fmt.Errorf("filter of system calls: %w", e)
	}
	return nil
}
