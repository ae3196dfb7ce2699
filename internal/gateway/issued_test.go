package gateway

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/carboy/carboy/internal/secret"
)

// TestIssuedTokens: a Bearer token that a server gave the bottle may leave as such, also
// to another server; one that nobody gave, or a known secret that a server repeats, may not.
func TestIssuedTokens(t *testing.T) {
	const longSecret = "hV7Zk3qP9xLw0aB5cD8eF2gH6jK4mN1pQrS7tU0"
	opaque := func(c string) string { return strings.Repeat(c+"7fQ2x", 8) }
	var told, got atomic.Value
	up := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/token" {
			got.Store(r.Header.Get("Authorization"))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		out := io.Writer(w)
		if r.Header.Get("Accept-Encoding") == "gzip" {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			defer z.Close()
			out = z
		}
		for _, part := range strings.SplitAfter(told.Load().(string), ":") { // in pieces, of unknown length
			io.WriteString(out, part)
			w.(http.Flusher).Flush()
		}
	})
	check := func(t *testing.T, action string) {
		o := newTLSWorld(t, "routes:\n  - {host: \"*.example.com\", dlp: {outbound_on_match: "+action+"}}\n", up, func(c *Config) {
			c.Secrets = map[string]secret.Value{"short": secret.NewString(watchedValue), "opaque": secret.NewString(longSecret)}
		})
		for _, h2 := range []bool{false, true} {
			c := o.client(h2)
			get := func(host, path, auth, coding string) int {
				r, _ := http.NewRequest("GET", "https://"+host+path, nil)
				if auth != "" {
					r.Header.Set("Authorization", auth)
				}
				if coding != "" {
					r.Header.Set("Accept-Encoding", coding)
				}
				res, err := c.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				io.Copy(io.Discard, res.Body)
				return res.StatusCode
			}
			masked := map[bool]int{true: 403, false: 200}[action == "block"]
			n := 0
			for _, answer := range []string{`{"token": %q}`, `{"access_token": %q, "expires_in": 300}`, `{"token": %q, "a": {"b": "}"}}`} {
				for _, coding := range []string{"", "gzip"} {
					n++
					given := opaque(fmt.Sprintf("%s%vg%d", action, h2, n))
					if status := get("opaque.example.com", "/pull", "Bearer "+given, ""); status != masked {
						t.Errorf("%s, before it was given: %d", action, status)
					}
					told.Store(fmt.Sprintf(answer, given))
					get("api.example.com", "/token", "", coding)
					up := get("opaque.example.com", "/pull", "Bearer "+given, "")
					if up != 200 || got.Load() != "Bearer "+given {
						t.Errorf("%s, http2 %v, %s, %q: %d %v", action, h2, answer, coding, up, got.Load())
					}
					if status := get("opaque.example.com", "/pull", "Bearer "+opaque("other"), ""); status != masked {
						t.Errorf("%s, another: %d", action, status)
					}
				}
			}
			for _, known := range []string{watchedValue, longSecret} {
				told.Store(fmt.Sprintf(`{"token": %q}`, known))
				get("api.example.com", "/token", "", "")
				got.Store("")
				if status := get("opaque.example.com", "/pull", "Bearer "+known, ""); status != masked || strings.Contains(got.Load().(string), known) {
					t.Errorf("%s, a known secret: %d, and upstream got %q", action, status, got.Load())
				}
			}
			for _, nested := range []string{`{"a": {"token": %q}}`, `[{"token": %q}]`, `{"key": %q}`} {
				n++
				v := opaque(fmt.Sprintf("%s%vn%d", action, h2, n))
				told.Store(fmt.Sprintf(nested, v))
				get("api.example.com", "/token", "", "")
				if status := get("opaque.example.com", "/pull", "Bearer "+v, ""); status != masked {
					t.Errorf("%s, %s: %d", action, nested, status)
				}
			}
		}
	}
	for _, action := range []string{"block", "redact"} {
		t.Run(action, func(t *testing.T) { check(t, action) })
	}
}
