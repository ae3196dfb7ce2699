package agent

import (
	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/seccomp"
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

// filterProgram returns the filter: calls of another architecture and of x32, and those of
// the list, answer ENOSYS. Sockets of unusual families and transports, through which many
// kernels were broken, are refused. Everything else is allowed.
func filterProgram() []unix.SockFilter {
	p := append(seccomp.Unknown(refusedCalls), unix.SockFilter{Code: seccomp.IfEq, Jt: 1, K: unix.SYS_SOCKET}, seccomp.Allow)
	// Sockets: of these families only, and on IP of the usual transports.
	unknown := seccomp.Refuse(unix.EPROTONOSUPPORT)
	protocol := unix.SockFilter{Code: seccomp.Load, K: seccomp.Arg(2)}
	p = append(p,
		unix.SockFilter{Code: seccomp.Load, K: seccomp.Arg(0)},
		unix.SockFilter{Code: seccomp.IfEq, Jf: 1, K: unix.AF_UNIX}, seccomp.Allow,
		unix.SockFilter{Code: seccomp.IfEq, Jt: 7, K: unix.AF_INET},
		unix.SockFilter{Code: seccomp.IfEq, Jt: 6, K: unix.AF_INET6},
		unix.SockFilter{Code: seccomp.IfEq, Jt: 1, K: unix.AF_NETLINK}, seccomp.Refuse(unix.EAFNOSUPPORT),
		protocol,
		unix.SockFilter{Code: seccomp.IfEq, Jt: 1, K: unix.NETLINK_ROUTE}, unknown, seccomp.Allow,
		protocol,
	)
	for _, n := range []uint32{0, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6} {
		p = append(p, unix.SockFilter{Code: seccomp.IfEq, Jf: 1, K: n}, seccomp.Allow)
	}
	return append(p, unknown)
}
