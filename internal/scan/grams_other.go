//go:build !amd64

package scan

func skipGrams(f []uint64, shift uint, b []byte, n, step int) int {
	return skipGramsInGo(f, shift, b, n, step)
}
