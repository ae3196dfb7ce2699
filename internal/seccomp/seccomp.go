// Package seccomp builds and installs filters of system calls (seccomp(2)) in the kernel's own
// instructions. What a filter refuses is its user's matter.
//
// Start reading at [Install].
package seccomp

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Codes of instructions.
const (
	Load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	IfEq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	IfGe  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	IfAny = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	ret   = unix.BPF_RET | unix.BPF_K
)

// Offsets in struct seccomp_data.
const (
	Number = 0 // of the system call
	arch   = 4
)

// Arg returns the offset of the lower half of argument n, which counts from 0: the
// architectures that carboy knows are little-endian.
func Arg(n int) uint32 { return 16 + 8*uint32(n) }

// Allow is the instruction that lets the call through.
var Allow = unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW}

// Refuse returns the instruction that makes the call fail with e.
func Refuse(e unix.Errno) unix.SockFilter {
	return unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(e)}
}

// Unknown returns the beginning of a filter that answers ENOSYS to calls of other
// architectures, of x32, and to these numbers, as if the kernel had none. The number is
// loaded behind it.
func Unknown(calls []uint32) []unix.SockFilter {
	const x32 = 0x4000_0000 // marks calls of that ABI on amd64
	own := uint32(unix.AUDIT_ARCH_X86_64)
	if runtime.GOARCH == "arm64" {
		own = unix.AUDIT_ARCH_AARCH64
	}
	none := Refuse(unix.ENOSYS)
	p := []unix.SockFilter{
		{Code: Load, K: arch}, {Code: IfEq, Jt: 1, K: own}, none,
		{Code: Load, K: Number}, {Code: IfGe, Jf: 1, K: x32}, none,
	}
	for _, n := range calls {
		p = append(p, unix.SockFilter{Code: IfEq, Jf: 1, K: n}, none)
	}
	return p
}

// Install installs a filter for this thread, and for those that it starts; with the flag
// SECCOMP_FILTER_FLAG_TSYNC for all of the process.
func Install(p []unix.SockFilter, flags uintptr) error {
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(p)
	if e != 0 {
		return fmt.Errorf("filter of system calls: %w", e)
	}
	return nil
}
