package scan

import "golang.org/x/sys/cpu"

func oddBlocks(b []byte, n int) (block int, mask uint32) {
	if !cpu.X86.HasAVX2 {
		return oddInGo(b, n)
	}
	_ = b[n*oddLen+1]
	return oddAVX2(&b[0], n)
}

//go:noescape
func oddAVX2(b *byte, n int) (block int, mask uint32)
