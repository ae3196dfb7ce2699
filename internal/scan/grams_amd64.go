package scan

import "golang.org/x/sys/cpu"

func skipGrams(f []uint64, shift uint, b []byte, n, step int) int {
	if !cpu.X86.HasBMI2 || n == 0 {
		return skipGramsInGo(f, shift, b, n, step)
	}
	_, _ = b[(4*n-1)*step+gramLen-1], f[^uint64(0)>>shift>>6]
	switch step {
	case 1:
		return skipEachBMI2(&f[0], shift, &b[0], n)
	case joinedStride:
		return skipFarBMI2(&f[0], shift, &b[0], n)
	}
	return skipGramsBMI2(&f[0], shift, &b[0], n)
}

//go:noescape
func skipGramsBMI2(f *uint64, shift uint, b *byte, n int) int

//go:noescape
func skipEachBMI2(f *uint64, shift uint, b *byte, n int) int

//go:noescape
func skipFarBMI2(f *uint64, shift uint, b *byte, n int) int
