package agent

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// siginfoPID returns si_pid, which package unix does not name. It is the first field
// after the three of every siginfo, aligned to 8 bytes.
func siginfoPID(i *unix.Siginfo) int {
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(i), 16)))
}
