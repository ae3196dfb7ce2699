package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"testing"
)

// TestAnswersAreDigested: with DigestAnswers each answer is recorded by its digest,
// without it none.
func TestAnswersAreDigested(t *testing.T) {
	for _, digests := range []bool{true, false} {
		t.Run(fmt.Sprint(digests), func(t *testing.T) {
			o := newTLSWorld(t, openRoutes, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				rw.Write([]byte("body of " + r.URL.Path))
			}), func(c *Config) { c.DigestAnswers = digests })
			paths := []string{"/v1/a", "/v1/b"}
			for _, p := range paths {
				if status, why, _ := get(t, o.client(true), "GET", "https://api.example.com"+p, nil); status != 200 {
					t.Fatal(status, why)
				}
			}
			// A request is recorded shortly after its answer.
			got := map[string]string{}
			waitFor(t, "the records", func() bool {
				for _, ev := range o.allEvents() {
					if r, ok := ev.(Request); ok {
						got[r.Path] = r.Digest
					}
				}
				return len(got) == len(paths)
			})
			for _, p := range paths {
				sum := sha256.Sum256([]byte("body of " + p))
				want := hex.EncodeToString(sum[:])
				if !digests {
					want = ""
				}
				if d, ok := got[p]; !ok || d != want {
					t.Errorf("%s: %q, want %q", p, d, want)
				}
			}
		})
	}
}
