package agent

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The filter takes from commands what a kernel offers beyond what programs need, and
// where it has had most of its faults. It stands beside the engine's own, if there is one.

// refusedCalls answer ENOSYS, as if the kernel did not have them: programs then do
// without.
var refusedCalls = []uint32{
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_USERFAULTFD, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN,
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
	unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE,
	unix.SYS_FSOPEN, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_FSCONFIG, unix.SYS_MOUNT_SETATTR,
	unix.SYS_SETNS, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD,
	unix.SYS_VMSPLICE, unix.SYS_MIGRATE_PAGES, unix.SYS_MOVE_PAGES,
}

const (
	seccompNr   = 0 // offsets in struct seccomp_data
	seccompArch = 4
	seccompArg0 = 16 // the lower half: both architectures are little-endian
	seccompArg2 = 32
	// x32Bit marks system calls of the x32 ABI on amd64.
	x32Bit = 0x4000_0000
)

func auditArch() uint32 {
	if runtime.GOARCH == "arm64" {
		return unix.AUDIT_ARCH_AARCH64
	}
	return unix.AUDIT_ARCH_X86_64
}

// filterProgram returns the filter: calls of another architecture and of x32, and those of
// the list, answer ENOSYS. Sockets of unusual families and transports, through which many
// kernels were broken, are refused. Everything else is allowed.
func filterProgram() []unix.SockFilter {
	const (
		load = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		jeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		jge  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		ret  = unix.BPF_RET | unix.BPF_K
	)
	refuse := unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)}
	p := []unix.SockFilter{
		{Code: load, K: seccompArch},
		{Code: jeq, Jt: 1, K: auditArch()},
		refuse,
		{Code: load, K: seccompNr},
		{Code: jge, Jf: 1, K: x32Bit},
		refuse,
	}
	for _, n := range refusedCalls {
		p = append(p, unix.SockFilter{Code: jeq, Jf: 1, K: n}, refuse)
	}
	allow := unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW}
	p = append(p, unix.SockFilter{Code: jeq, Jt: 1, K: unix.SYS_SOCKET}, allow)
	// Sockets: of these families only, and on IP of the usual transports.
	none := unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)}
	unknown := unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPROTONOSUPPORT)}
	p = append(p,
		unix.SockFilter{Code: load, K: seccompArg0},
		unix.SockFilter{Code: jeq, Jf: 1, K: unix.AF_UNIX}, allow,
		unix.SockFilter{Code: jeq, Jt: 7, K: unix.AF_INET},
		unix.SockFilter{Code: jeq, Jt: 6, K: unix.AF_INET6},
		unix.SockFilter{Code: jeq, Jt: 1, K: unix.AF_NETLINK}, none,
		unix.SockFilter{Code: load, K: seccompArg2},
		unix.SockFilter{Code: jeq, Jt: 1, K: unix.NETLINK_ROUTE}, unknown, allow,
		unix.SockFilter{Code: load, K: seccompArg2},
	)
	for _, n := range []uint32{0, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6} {
		p = append(p, unix.SockFilter{Code: jeq, Jf: 1, K: n}, allow)
	}
	return append(p, unknown)
}

// filterCalls installs the filter for this thread, which executes the command.
func filterCalls() error {
	p := filterProgram()
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	_, _, e := unix.Syscall(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(p)
	if e != 0 {
		return fmt.Errorf("filter of system calls: %w", e)
	}
	return nil
}
