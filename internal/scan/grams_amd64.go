package scan

import "golang.org/x/sys/cpu"

func skipGrams(f []uint64, shift uint, b []byte, n int) int {
	if !cpu.X86.HasBMI2 {
		return skipGramsInGo(f, shift, b, n)
	}
	_, _ = b[n*4*stride-2], f[^uint64(0)>>shift>>6]
	return skipGramsBMI2(&f[0], shift, &b[0], n)
}

//go:noescape
func skipGramsBMI2(f *uint64, shift uint, b *byte, n int) int
