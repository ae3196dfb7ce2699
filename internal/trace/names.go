package trace

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrnoName returns the symbolic name of an errno, such as ENOENT; "" for 0.
func ErrnoName(n uint32) string {
	if n == 0 {
		return ""
	}
	if s := unix.ErrnoName(unix.Errno(n)); s != "" {
		return s
	}
	return fmt.Sprintf("errno %d", n)
}

// SignalName returns a signal's name, such as SIGTERM; "" for 0.
func SignalName(n uint64) string {
	if n == 0 {
		return ""
	}
	if s := unix.SignalName(unix.Signal(n & 0xffff)); s != "" {
		return s
	}
	return fmt.Sprintf("signal %d", n)
}

var families = map[uint64]string{
	unix.AF_UNIX: "unix", unix.AF_INET: "inet", unix.AF_INET6: "inet6", unix.AF_NETLINK: "netlink", unix.AF_PACKET: "packet",
	unix.AF_VSOCK: "vsock", unix.AF_ALG: "alg", unix.AF_BLUETOOTH: "bluetooth", unix.AF_CAN: "can", unix.AF_KEY: "key",
	unix.AF_XDP: "xdp", unix.AF_TIPC: "tipc",
}

var sockTypes = map[uint64]string{
	unix.SOCK_STREAM: "stream", unix.SOCK_DGRAM: "dgram", unix.SOCK_RAW: "raw", unix.SOCK_SEQPACKET: "seqpacket", unix.SOCK_RDM: "rdm",
}

// FamilyName returns the name of a socket family.
func FamilyName(n uint64) string {
	if n == ^uint64(0) {
		return "others"
	}
	return nameOr(families, n)
}

// SocketTypeName returns the name of a socket type.
func SocketTypeName(n uint64) string {
	if n == 0 {
		return ""
	}
	return nameOr(sockTypes, n)
}

func nameOr(names map[uint64]string, n uint64) string {
	if s, ok := names[n]; ok {
		return s
	}
	return fmt.Sprint(n)
}

var ptraces = map[uint64]string{
	unix.PTRACE_TRACEME: "TRACEME", unix.PTRACE_PEEKTEXT: "PEEKTEXT", unix.PTRACE_PEEKDATA: "PEEKDATA", unix.PTRACE_POKETEXT: "POKETEXT",
	unix.PTRACE_POKEDATA: "POKEDATA", unix.PTRACE_CONT: "CONT", unix.PTRACE_KILL: "KILL", unix.PTRACE_ATTACH: "ATTACH",
	unix.PTRACE_DETACH: "DETACH", unix.PTRACE_SEIZE: "SEIZE", unix.PTRACE_GETREGS: "GETREGS", unix.PTRACE_SETREGS: "SETREGS",
}

var openFlags = []struct {
	bit  uint64
	name string
}{
	{unix.O_CREAT, "create"}, {unix.O_EXCL, "new"}, {unix.O_TRUNC, "truncate"}, {unix.O_APPEND, "append"},
	{unix.O_PATH, "path"}, {unix.O_DIRECTORY, "directory"},
}

// Detail describes in a few words what the fact's path does not say, or returns
// "". It may contain text chosen by the workload.
func (f *Fact) Detail() string {
	switch f.Op {
	case Open:
		words := []string{[]string{"read", "write", "read and write", "neither"}[f.A&accMode]}
		for _, x := range openFlags {
			if f.A&x.bit != 0 {
				words = append(words, x.name)
			}
		}
		return strings.Join(words, ", ")
	case Exit:
		if f.B != 0 {
			return SignalName(f.B)
		}
		return fmt.Sprintf("code %d", f.A)
	case Fork:
		return fmt.Sprintf("of %d", f.PPID)
	case Access:
		return accessMode(f.A)
	case Truncate:
		return fmt.Sprintf("to %d bytes", f.A)
	case Mkdir, Chmod:
		return fmt.Sprintf("%04o", f.A&0o7777)
	case Mknod:
		switch f.A & unix.S_IFMT {
		case unix.S_IFCHR:
			return fmt.Sprintf("character device %d:%d", unix.Major(f.B), unix.Minor(f.B))
		case unix.S_IFBLK:
			return fmt.Sprintf("block device %d:%d", unix.Major(f.B), unix.Minor(f.B))
		}
	case Chown:
		return idPair("uid", f.A, "gid", f.B)
	case Xattr:
		return map[uint64]string{1: "set ", 2: "removed "}[f.A] + f.Path2
	case Mount:
		return strings.Join(f.Args, " ") + " on " + f.Path
	case SetID:
		return fmt.Sprintf("uid %d, euid %d, gid %d, egid %d", f.UID, f.EUID, f.A, f.B)
	case Caps:
		return capsCall(f.Path, f.A)
	case Ptrace:
		if f.Path != "" {
			return f.Path
		}
		return nameOr(ptraces, f.A)
	case Kill:
		sig := SignalName(f.A)
		if f.A == 0 {
			sig = "signal 0" // it only checks that the process exists
		}
		if int64(f.B) < 0 {
			return fmt.Sprintf("%s to group %d", sig, -int64(f.B))
		}
		return fmt.Sprintf("%s to %d", sig, f.B)
	case Socket:
		return FamilyName(f.A) + " " + SocketTypeName(f.B&0xf)
	case Umount, Chroot:
		return f.Path
	}
	return ""
}

var (
	prctls = map[uint64]string{
		unix.PR_CAPBSET_DROP: "CAPBSET_DROP", unix.PR_SET_KEEPCAPS: "SET_KEEPCAPS",
		unix.PR_SET_SECUREBITS: "SET_SECUREBITS", unix.PR_CAP_AMBIENT: "CAP_AMBIENT",
	}
	namespaces = []struct {
		bit  uint64
		name string
	}{
		{unix.CLONE_NEWUSER, "user"}, {unix.CLONE_NEWNS, "mount"}, {unix.CLONE_NEWPID, "pid"}, {unix.CLONE_NEWNET, "network"},
		{unix.CLONE_NEWIPC, "ipc"}, {unix.CLONE_NEWUTS, "uts"}, {unix.CLONE_NEWCGROUP, "cgroup"}, {unix.CLONE_NEWTIME, "time"},
	}
)

// capsCall names the purpose of a capability call.
func capsCall(call string, a uint64) string {
	words := []string{call}
	if call == "prctl" {
		return call + " " + nameOr(prctls, a)
	}
	for _, x := range namespaces {
		if a&x.bit != 0 {
			words = append(words, x.name)
			a &^= x.bit
		}
	}
	if a != 0 {
		words = append(words, fmt.Sprintf("%#x", a))
	}
	return strings.Join(words, " ")
}

func accessMode(a uint64) string {
	if a == 0 {
		return "exists"
	}
	s := ""
	for i, c := range "rwx" {
		if a&(4>>i) != 0 {
			s += string(c)
		}
	}
	return s
}

func idPair(a string, x uint64, b string, y uint64) string {
	var out []string
	const leave = 1<<32 - 1
	if x != leave {
		out = append(out, fmt.Sprintf("%s %d", a, x))
	}
	if y != leave {
		out = append(out, fmt.Sprintf("%s %d", b, y))
	}
	return strings.Join(out, ", ")
}
