//go:build !amd64

package scan

func oddBlocks(b []byte, n int) (block int, mask uint32) { return oddInGo(b, n) }
