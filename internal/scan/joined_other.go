//go:build !amd64

package scan

func join(dst, b []byte) []byte { return joinInGo(dst, b) }
