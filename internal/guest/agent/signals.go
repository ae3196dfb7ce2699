package agent

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigaction is the kernel's struct, with room for every architecture's.
type sigaction struct {
	handler, flags, restorer, mask uintptr
}

// ignoreSignals takes Go's handlers away from the first process. The kernel then drops
// what commands send to it, as for every init; Go's own handlers would end the program.
// What the runtime needs stays: it takes such signals from anybody without harm.
func ignoreSignals() {
	for sig := uintptr(1); sig <= 64; sig++ {
		switch unix.Signal(sig) {
		case unix.SIGURG, unix.SIGCHLD, 32, 33, 34:
			continue
		}
		var standard sigaction
		// It fails for those that nobody can handle.
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&standard)), 0, 8, 0, 0)
	}
}
