package scan

import "golang.org/x/sys/cpu"

// join is joinInGo, for dst with room for joinedRoom bytes more.
func join(dst, b []byte) []byte {
	n := len(dst)
	switch blocks := len(b) / joinedRoom; {
	case blocks == 0:
	case cpu.X86.HasAVX512VBMI2 && cpu.X86.HasAVX512BW:
		dst = dst[:n+joinedRoom*blocks+joinedRoom]
		dst = dst[:n+joinVBMI2(&dst[n], &b[0], blocks)]
		b = b[joinedRoom*blocks:]
	case cpu.X86.HasBMI2 && cpu.X86.HasAVX2 && cpu.X86.HasPOPCNT:
		dst = dst[:n+joinedRoom*blocks+joinedRoom]
		dst = dst[:n+joinAVX2(&dst[n], &b[0], 2*blocks)]
		b = b[joinedRoom*blocks:]
	}
	return joinInGo(dst, b)
}

// joinAVX2 appends the letters and digits of blocks of 32 bytes, joinVBMI2 those of
// blocks of 64.
//
//go:noescape
func joinAVX2(dst, b *byte, blocks int) int

//go:noescape
func joinVBMI2(dst, b *byte, blocks int) int
