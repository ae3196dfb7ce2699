package gateway

import (
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/secret"
)

// TestNamesOfTrailers: a secret is found in the name of a trailer that was not
// announced, which the gateway sees only at the body's end.
func TestNamesOfTrailers(t *testing.T) {
	up := &recordingUpstream{}
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com}\n", up, watching)
	for v, want := range map[string]int{harmlessValue: 200, watchedValue: 403} {
		c := tls.Client(o.mustDial("api.example.com", 443), &tls.Config{ServerName: "api.example.com", RootCAs: o.inside})
		fmt.Fprintf(c, "POST /v1 HTTP/1.1\r\nHost: api.example.com\r\nTrailer: X-End\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\nx\r\n0\r\nX-End: 1\r\nX-%s: 1\r\n\r\n", hex.EncodeToString([]byte(v)))
		b, _ := io.ReadAll(c)
		c.Close()
		passed := strings.HasPrefix(string(b), "HTTP/1.1 200")
		if got := up.take(); passed != (want == 200) || want == 403 && holds(got, v) {
			t.Errorf("want %d: %.30q, and upstream saw %.300q", want, b, got)
		}
	}
}

// TestUpstreamNonsense: errors for the bottle and the record repeat what upstream sent
// if it is not HTTP, but no secret.
func TestUpstreamNonsense(t *testing.T) {
	const value = "the-real-key-4711"
	want := policy.Credential{Scheme: credential.Bearer, Env: "KEY"}
	c, err := credential.Open("key", want, secret.NewString(value))
	if err != nil {
		t.Fatal(err)
	}
	var said atomic.Value
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com, token_env: KEY}\n", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		conn, _, err := rw.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, said.Load().(string), strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	}), func(cfg *Config) { cfg.Credentials = Credentials{want: c} })
	o.only1.Store(true)
	for text := range map[string]bool{"NOT HTTP %s\r\n\r\n": true, "HTTP/1.1 200 OK\r\nX %[1]s: \x00%[1]s\r\n\r\n": true, "HTTP/1.1 2%s OK\r\n\r\n": true, "HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n": true, "HTTP/1.1 200 OK\r\nTransfer-Encoding: %s\r\n\r\n": true} {
		said.Store(text)
		res, err := o.client(false).Get("https://api.example.com/v1")
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 502 || strings.Contains(string(b), value) {
			t.Errorf("%q: %d, the bottle is told %s", text, res.StatusCode, b)
		}
	}
	text, _ := json.Marshal([]any{o.gw.Summary(), o.allEvents()})
	if strings.Contains(string(text), value) {
		t.Errorf("the record has the value: %s", text)
	}
}

// TestPiecesOverReload: pieces that have left are remembered over a reload of the
// routes.
func TestPiecesOverReload(t *testing.T) {
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com}\n", &recordingUpstream{}, watching)
	c := o.client(false)
	send := func(v string) int {
		res, err := c.Do(post(strings.NewReader("note=" + v)))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	reload := func() {
		now := o.gw.rules.Load()
		o.gw.SetRoutes(now.table, now.credentials, now.detectors.secrets)
	}
	third := len(watchedValue) / 3
	if got := send(watchedValue[:third]); got != 200 {
		t.Fatalf("the first piece: %d", got)
	}
	reload()
	if got := send(harmlessValue[third : 2*third]); got != 200 {
		t.Errorf("the neighbour: %d", got)
	}
	if got := send(watchedValue[third : 2*third]); got != 403 {
		t.Errorf("the second piece: %d", got)
	}
}

// TestBesideTheRoute: a server can't return the credential of one route through
// another route of the same host, nor in two halves.
func TestBesideTheRoute(t *testing.T) {
	const value = "the-real-key-4711-and-more"
	want := policy.Credential{Scheme: credential.Bearer, Env: "KEY"}
	c, err := credential.Open("key", want, secret.NewString(value))
	if err != nil {
		t.Fatal(err)
	}
	var kept atomic.Value
	kept.Store("")
	o := newTLSWorld(t, "routes:\n  - host: api.example.com\n    token_env: KEY\n    matches: [{paths: [{value: /cred}]}]\n  - {host: api.example.com}\n",
		http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/cred/keep" {
				kept.Store(r.Header.Get("Authorization"))
			}
			http.ServeContent(rw, r, "a.txt", time.Time{}, strings.NewReader(kept.Load().(string)+" and what follows"))
		}), func(cfg *Config) { cfg.Credentials = Credentials{want: c} })
	for _, path := range []string{"/cred/keep", "/cred/again", "/plain"} {
		got := ""
		for _, part := range []string{"bytes=0-19", "bytes=20-", ""} {
			r, _ := http.NewRequest("GET", "https://api.example.com"+path, nil)
			if part != "" {
				r.Header.Set("Range", part)
			}
			res, err := o.client(true).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || !strings.HasSuffix(string(b), " and what follows") {
				t.Errorf("%s %s: %d %q, %v", path, part, res.StatusCode, b, err)
			}
			got += string(b)
		}
		for i := 0; i+8 <= len(value); i++ {
			if strings.Contains(got, value[i:i+8]) {
				t.Fatalf("%s: the value came in: %q", path, got)
			}
		}
	}
	if kept.Load() != "Bearer "+value {
		t.Errorf("upstream was told %q", kept.Load())
	}
}
