package gateway

import (
	"net/http"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/policy"
)

// TestGitLeavesByTheGate: no route allows a push, in any spelling that some server
// accepts. A fetch needs a route that allows it explicitly, or one that allows
// everything.
func TestGitLeavesByTheGate(t *testing.T) {
	w := webWorld(t)
	route := func(host string, o policy.Options) policy.Route {
		r, err := policy.ParseAllow(host)
		if err == nil {
			r, err = r.WithOptions(o)
		}
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	get := policy.Match{Methods: []string{"GET", "POST"}}
	for _, host := range []string{"fetch.example.com", "some.example.com", "never.example.com"} {
		w.name(host, publicAddr)
	}
	table, err := policy.Compile(
		route("api.example.com", policy.Options{}),
		route("fetch.example.com", policy.Options{Matches: []policy.Match{get}, GitFetch: policy.FetchAllowed}),
		route("never.example.com", policy.Options{GitFetch: policy.FetchRefused}),
		route("some.example.com", policy.Options{Matches: []policy.Match{get}}))
	if err != nil {
		t.Fatal(err)
	}
	b := newBottle(t, w, table)
	for _, c := range []struct{ host, request, refused string }{
		{"api.example.com", "GET /o/r.git/info/refs?service=git-upload-pack", ""},
		{"fetch.example.com", "GET /o/r.git/info/refs?service=git-upload-pack", ""},
		{"fetch.example.com", "POST /o/r.git/git-upload-pack", ""},
		{"never.example.com", "GET /o/r.git/HEAD", ""},
		{"never.example.com", "GET /o/r.git/info/refs?service=git-upload-pack", "git-fetch"},
		{"never.example.com", "POST /o/r.git/git-upload-pack", "git-fetch"},
		{"some.example.com", "GET /o/r.git/info/refs", ""},
		{"some.example.com", "GET /docs/git-push?about=git-receive", ""},
		{"some.example.com", "GET /o/r.git/info/refs?service=git-upload-pack", "git-fetch"},
		{"some.example.com", "POST /o/r.git/git-upload-pack", "git-fetch"},
		{"api.example.com", "GET /o/r.git/info/refs?service=git-receive-pack", "git-push"},
		{"fetch.example.com", "GET /o/r.git/info/refs?service=git-receive-pack", "git-push"},
		{"fetch.example.com", "GET /o/r.git/info/refs?service=git-upload-pack&service=git-receive-pack", "git-push"},
		{"fetch.example.com", "GET /o/r.git/info/refs?service=git%2Dreceive%2dpack", "git-push"},
		{"fetch.example.com", "GET /o/r.git/info/refs?serv%69ce=git-receive-pack", "git-push"},
		{"fetch.example.com", "POST /o/r.git/git-receive-pack", "git-push"},
		{"fetch.example.com", "POST /o/r.git/git-receive-pack/", "git-push"},
		{"fetch.example.com", "POST /o/r.git/git-rece%69ve-pack", "git-push"},
		{"fetch.example.com", "POST /o/r.git/GIT-RECEIVE-PACK;x", "git-push"},
		{"fetch.example.com", "POST /o/r.git/x HTTP/1.1\r\nContent-Type: application/x-git-receive-pack-request", "git-push"},
	} {
		line, rest, _ := strings.Cut(c.request, " HTTP/1.1")
		dialled := len(w.dials())
		res, body := b.request(t, c.host, line+" HTTP/1.1\r\nHost: "+c.host+rest+"\r\nContent-Length: 0\r\n\r\n")
		switch {
		case c.refused == "" && res.StatusCode != 200:
			t.Errorf("%s of %s: %d %s", c.request, c.host, res.StatusCode, body)
		case c.refused != "" && (res.StatusCode != 403 || res.Header.Get("Carboy-Refused") != c.refused || !strings.Contains(body, "git-gate.repos") || len(w.dials()) != dialled):
			t.Errorf("%s of %s: %d %s", c.request, c.host, res.StatusCode, body)
		}
	}
}

// TestRefuseOn: a proxy is refused on any route, and what asks for neither is not.
func TestRefuseOn(t *testing.T) {
	route, err := policy.ParseAllow("api.example.com")
	if err != nil {
		t.Fatal(err)
	}
	for method, want := range map[string]Reason{http.MethodConnect: reasonConnect, http.MethodGet: ReasonOK} {
		r, _ := http.NewRequest(method, "https://api.example.com/x", nil)
		if got, _, _ := RefuseOn(&route, r); got != want {
			t.Errorf("%s: %q", method, got)
		}
	}
}
