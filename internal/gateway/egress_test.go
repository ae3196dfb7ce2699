package gateway

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/carboy/carboy/internal/policy"
	routefile "github.com/carboy/carboy/internal/routes"
)

const egressTestRoutes = `routes:
  - host: api.example.com
    token_env: KEY
    upstream: http://10.0.0.5:8080
    limits: {bytes_out: 1000, requests_per_minute: 60}
    matches:
      - paths: [{value: /v1}, {type: exact, value: /health}, {type: regex, value: "/a/[0-9]+: #x"}]
        methods: [GET, POST]
      - paths: [{value: /}]
        headers: [{name: X-Team, value: blue-herring}]
  - {host: "*.cdn.example.com:8443", inspect: false}
  - {host: wiki.corp.example, private: true, credential: wiki, auth_scheme: header, auth_field: X-Key}
  - {host: "git.example.org:22/tcp", limits: {bytes_in: 5}}
  - {host: "[2001:db8::7]:443"}
  - {host: "192.0.2.7"}
  - {host: fetch.example.com, git: {fetch: true}, dlp: {outbound_detectors: [known_secrets], inbound_detectors: false, outbound_on_match: block}}
  - {host: never.example.com, git: {fetch: false}}
`

// TestAllowlist: the current routes can be read from inside, as an equivalent route
// file without what is kept from the bottle. Nothing leaves for it.
func TestAllowlist(t *testing.T) {
	w := newWorld()
	table := tableOf(t, egressTestRoutes)
	b := newBottle(t, w, table)
	c := b.httpClient()
	ask := func(method, url, accept string) (*http.Response, string) {
		t.Helper()
		req, _ := http.NewRequest(method, url, nil)
		req.Header.Set("Accept", accept)
		res, err := c.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		return res, string(body)
	}
	for _, accept := range []string{"*/*", "application/json"} {
		for _, host := range []string{"egress.carboy.internal", "_egress.local", "EGRESS.carboy.internal."} {
			res, body := ask("GET", "http://"+host+"/allowlist", accept)
			if res.StatusCode != 200 || strings.HasPrefix(res.Header.Get("Content-Type"), "application/json") != (accept != "*/*" || host == "_egress.local") {
				t.Fatalf("%s: %d %s", host, res.StatusCode, body)
			}
			for _, kept := range []string{"10.0.0.5", "8080", "upstream", "blue-herring"} {
				if strings.Contains(body, kept) {
					t.Errorf("%s stands in it: %s", kept, body)
				}
			}
			f, err := routefile.Parse("inside", []byte(body))
			if err != nil {
				t.Fatalf("it can't be read: %v\n%s", err, body)
			}
			if len(f.Routes) != len(table.Routes()) {
				t.Fatalf("%d routes: %s", len(f.Routes), body)
			}
			for i, want := range table.Routes() {
				got := f.Routes[i]
				g, o := got.Options(), want.Options()
				if got.String() != want.String() || got.Private() != want.Private() || g.Opaque != o.Opaque || g.Caps != o.Caps ||
					g.Credential != o.Credential || g.GitFetch != o.GitFetch || g.Scan != o.Scan || len(g.Matches) != len(o.Matches) {
					t.Errorf("%v %+v, want %v %+v", got, g, want, o)
				}
				for k := range o.Matches {
					if fmt.Sprint(g.Matches[k].Paths, g.Matches[k].Methods) != fmt.Sprint(o.Matches[k].Paths, o.Matches[k].Methods) || len(g.Matches[k].Headers) != len(o.Matches[k].Headers) {
						t.Errorf("%v, want %v", g.Matches[k], o.Matches[k])
					}
				}
			}
			if accept == "*/*" && host != "_egress.local" && !strings.Contains(body, "# r.yaml:2\n") {
				t.Errorf("no rule is cited: %s", body)
			}
		}
	}
	for _, x := range []struct {
		method, url string
		status      int
	}{
		{"GET", "http://egress.carboy.internal/", 404},
		{"GET", "http://egress.carboy.internal/allowlist/x", 404},
		{"POST", "http://egress.carboy.internal/allowlist", 405},
		{"HEAD", "http://_egress.local/allowlist", 200},
	} {
		if res, body := ask(x.method, x.url, ""); res.StatusCode != x.status {
			t.Errorf("%s %s: %d %s", x.method, x.url, res.StatusCode, body)
		}
	}
	for raw, status := range map[string]int{
		"GET /allowlist HTTP/1.1\r\nHost: evil.example\r\n\r\n":                        421,
		"GET /allowlist HTTP/1.1\r\nHost: _egress.local:81\r\n\r\n":                    421,
		"GET /allowlist HTTP/1.1\r\nHost: _egress.local\r\nContent-Length: +1\r\n\r\n": 400,
	} {
		if res, _ := b.request(t, "_egress.local", raw); res.StatusCode != status {
			t.Errorf("%q: %d", raw, res.StatusCode)
		}
	}
	if _, err := b.dial("egress.carboy.internal", 443); err == nil {
		t.Error("it has another port")
	}
	conn := b.mustDial("_egress.local", 80)
	conn.Write(clientHello(t, &tls.Config{ServerName: egressName}))
	if got, _ := io.ReadAll(conn); len(got) > 7 {
		t.Errorf("it speaks TLS: %x", got)
	}
	if r := b.ask("egress.carboy.internal", dns.TypeAAAA); r.Rcode != dns.RcodeSuccess || len(r.Answer) != 0 {
		t.Errorf("%v", r)
	}
	for _, other := range []string{"x.egress.carboy.internal", "egress.local", "carboy.internal"} {
		if _, err := b.resolve(other); err != errNXDomain {
			t.Errorf("%s: %v", other, err)
		}
	}
	// As a program of bot-bottle reads it.
	var earlier struct {
		Routes []struct {
			Host string
			Git  *struct{ Fetch bool }
		}
	}
	for _, host := range []string{"_egress.local", "_EGRESS.local.", "_egress.local:80"} {
		_, body := ask("GET", "http://"+host+"/allowlist", "")
		if err := json.Unmarshal([]byte(body), &earlier); err != nil || earlier.Routes[0].Host != "api.example.com" || earlier.Routes[0].Git != nil ||
			!earlier.Routes[6].Git.Fetch || earlier.Routes[7].Git.Fetch {
			t.Errorf("%s: %v in %s", host, err, body)
		}
	}
	// It follows the routes, and exists without any.
	b.gw.SetRoutes(nil, nil, nil)
	if _, body := ask("GET", "http://egress.carboy.internal/allowlist", ""); !strings.Contains(body, "routes: []") {
		t.Errorf("without routes: %s", body)
	}
	if _, body := ask("GET", "http://_egress.local/allowlist", ""); body != "{\"routes\":[]}\n" {
		t.Errorf("without routes: %s", body)
	}
	if len(w.dials()) != 0 || len(w.looked()) != 0 {
		t.Errorf("dialled %v, looked up %v", w.dials(), w.looked())
	}
	c.CloseIdleConnections()
	b.waitConn("allowed", func(c ConnSummary) bool { return c.Name == egressName && c.Allowed && c.Rule == egressRule })
}

// TestAllowlistAddress: the endpoint has an address of its own, also when all others
// are used.
func TestAllowlistAddress(t *testing.T) {
	n := newNames(netip.MustParsePrefix("198.18.0.0/22"), 2)
	at, ok := n.assign(egressName)
	for i := range 5 {
		if a, ok := n.assign(fmt.Sprint("n", i)); ok != (i < 2) || ok && (a == at || n.lookup(a) == egressName) {
			t.Errorf("name %d: %v %v", i, a, ok)
		}
	}
	if again, _ := n.assign(egressName); !ok || again != at || n.lookup(at) != egressName || n.lookup(at.Next()) != GitName {
		t.Errorf("%v %v, %q", at, again, n.lookup(at))
	}
	if !policy.Classify(at).Permits(true) {
		t.Errorf("%v", at)
	}
}
