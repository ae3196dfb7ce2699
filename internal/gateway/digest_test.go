package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"sync"
	"testing"
)

// TestAnswersAreDigested: what a bottle was answered is on record by digest where that is
// asked for, and nowhere else.
func TestAnswersAreDigested(t *testing.T) {
	for _, digests := range []bool{true, false} {
		var mu sync.Mutex
		got := map[string]string{}
		o := newOpened(t, openRoutes, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			rw.Write([]byte("body of " + r.URL.Path))
		}), func(c *Config) {
			c.DigestAnswers = digests
			c.Observer = func(ev Event) {
				if r, ok := ev.(Request); ok {
					mu.Lock()
					defer mu.Unlock()
					got[r.Path] = r.Digest
				}
			}
		})
		for _, p := range []string{"/v1/a", "/v1/b"} {
			if status, why, _ := get(t, o.client(true), "GET", "https://api.example.com"+p, nil); status != 200 {
				t.Fatal(status, why)
			}
		}
		o.gw.Close()
		mu.Lock()
		for _, p := range []string{"/v1/a", "/v1/b"} {
			sum := sha256.Sum256([]byte("body of " + p))
			want := hex.EncodeToString(sum[:])
			if !digests {
				want = ""
			}
			if d, ok := got[p]; !ok || d != want {
				t.Errorf("%s: %q, want %q", p, d, want)
			}
		}
		mu.Unlock()
	}
}
