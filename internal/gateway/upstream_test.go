package gateway

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/secret"
)

const upstreamRoutes = `routes:
  - {host: api.example.com, upstream: "http://10.0.0.5:8080", token_env: KEY, matches: [{paths: [{value: /plain}]}]}
  - {host: api.example.com, upstream: "inner.corp.example:8443", token_env: KEY, matches: [{paths: [{value: /tls}]}]}
  - {host: api.example.com, upstream: "10.0.0.6:8443", matches: [{paths: [{value: /wrong}]}]}
  - {host: api.example.com, upstream: "http://93.184.216.40:80", token_env: KEY, matches: [{paths: [{value: /open}]}]}
  - {host: api.example.com, upstream: "metadata.example.com:8443", matches: [{paths: [{value: /metadata}]}]}
  - {host: api.example.com}
  - {host: "inner.corp.example:8443"}
`

// TestUpstream: requests of a route with an upstream go there and nowhere else,
// unchanged; others go to the host. The private upstream is open to no other request.
func TestUpstream(t *testing.T) {
	const value = "the-real-key-4711"
	want := policy.Credential{Scheme: credential.Bearer, Env: "KEY"}
	c, err := credential.Open("key", want, secret.NewString(value))
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan string, 20)
	o := newTLSWorld(t, upstreamRoutes, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		name := "plain"
		if r.TLS != nil {
			name = r.TLS.ServerName
		}
		seen <- fmt.Sprintf("%s %s %s %s", name, r.Host, r.URL.RequestURI(), r.Header.Get("Authorization"))
	}), func(cfg *Config) { cfg.Credentials = Credentials{want: c} })
	w := o.world
	w.point("10.0.0.5:8080", w.servers[ap(publicAddr+":80")])
	w.point("10.0.0.6:8443", w.servers[ap(publicAddr+":443")])
	w.name("inner.corp.example", "10.0.0.6")
	w.name("metadata.example.com", "169.254.169.254")
	for _, h2 := range []bool{false, true} {
		for _, x := range []struct {
			url    string
			status int
			want   string // what the server saw, or the client was told
		}{
			{"https://api.example.com/plain/a?b=c", 200, "plain api.example.com /plain/a?b=c Bearer " + value},
			{"https://api.example.com/tls", 200, "inner.corp.example api.example.com /tls Bearer " + value},
			{"http://api.example.com/tls", 200, "inner.corp.example api.example.com /tls Bearer " + value},
			{"https://api.example.com/else", 200, "api.example.com api.example.com /else "},
			// A client that names the upstream itself can't use the kept connection.
			{"https://inner.corp.example:8443/tls", 403, string(reasonNotPublic)},
			{"https://api.example.com/wrong", 502, string(reasonUpstreamTLS)},
			{"https://api.example.com/open", 403, "plain HTTP"},
			{"https://api.example.com/metadata", 502, "the route's upstream: resolves to a metadata address only\nrule: r.yaml:6"},
		} {
			res, err := o.client(h2 && strings.HasPrefix(x.url, "https")).Get(x.url)
			if err != nil {
				t.Fatalf("%s: %v", x.url, err)
			}
			b, _ := io.ReadAll(res.Body)
			res.Body.Close()
			got := string(b)
			if x.status == 200 {
				got = ""
				if res.StatusCode == 200 {
					got = <-seen
				}
			}
			if res.StatusCode != x.status || x.status == 200 && got != x.want || !strings.Contains(got, x.want) {
				t.Errorf("%s: %d %q (%s), want %d %q", x.url, res.StatusCode, got, b, x.status, x.want)
			}
		}
	}
	if len(seen) != 0 {
		t.Errorf("a refused request was sent: %s", <-seen)
	}
	for _, name := range w.looked() {
		if name != "api.example.com" && name != "inner.corp.example" && name != "metadata.example.com" {
			t.Errorf("looked up %s", name)
		}
	}

	before := len(w.looked())
	res, err := o.client(false).Get("https://api.example.com/plain")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	<-seen
	if l := w.looked()[before:]; len(l) != 0 {
		t.Errorf("the host was looked up, which the request did not go to: %v", l)
	}
}
