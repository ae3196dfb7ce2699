// Package program holds the built guest program (package agent), compressed, for the
// architecture that carboy was built for.
//
// It is a file of its own, and not carboy, since it is copied into each virtual machine's
// memory: it has 3 MB where carboy has 60. `go generate` makes it; the test says when that
// is needed.
package program

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"sync"
)

//go:generate go test -count=1 -run TestCurrent -update .

// maxSize bounds the program, bytes.
const maxSize = 8 << 20

// Binary returns the program: a static ELF file for Linux. Callers do not change it.
func Binary() ([]byte, error) { return unpack() }

// Digest returns the program's SHA-256, in hexadecimal.
func Digest() (string, error) {
	b, err := Binary()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

var unpack = sync.OnceValues(func() ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("the guest program: %w", err)
	}
	b, err := io.ReadAll(io.LimitReader(r, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("the guest program: %w", err)
	}
	if len(b) > maxSize {
		return nil, fmt.Errorf("the guest program has more than %d bytes", maxSize)
	}
	return b, nil
})
