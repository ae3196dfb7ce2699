package docker

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolSetGSO is ETHTOOL_SGSO: whether the card is given segments that are larger than its
// MTU.
const ethtoolSetGSO = 0x24

// ethtool sets a value of a network card. fd is any socket of its network.
func ethtool(fd int, card string, command, value uint32) error {
	v := &struct{ command, value uint32 }{command, value}
	r := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(v)}
	copy(r.name[:unix.IFNAMSIZ-1], card)
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r)))
	runtime.KeepAlive(v)
	if e != 0 {
		return e
	}
	return nil
}
