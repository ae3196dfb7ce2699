package attacker

import (
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
)

// What Brotli packs, the library unpacks, and no word of it can be read before.
func TestBrotli(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 2, 5, 6, 7, 8, 9, 25, 26, 129, 130, 193, 194, 577, 578, 2113, 2114, 6209, 6210, 22593, 22594, 1<<16 - 1, 1 << 16, 1<<16 + 1, 3 << 16} {
		random := make([]byte, n)
		for i := range random {
			random[i] = byte(rng.Uint32())
		}
		for _, s := range []string{string(random), strings.Repeat("secret, ", n/8+1)[:n]} {
			packed := Brotli(s)
			got, err := io.ReadAll(brotli.NewReader(strings.NewReader(packed)))
			if err != nil || string(got) != s {
				t.Fatalf("%d bytes: %d came back, %v", n, len(got), err)
			}
			if strings.Contains(packed, "secret") {
				t.Fatalf("%d bytes: the packed form shows them", n)
			}
		}
	}
}
