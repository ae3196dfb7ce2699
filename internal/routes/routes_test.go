package routes

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/policy"
)

const example = `# what an agent may reach
log: 2
routes:
  - host: api.example.com
    auth_scheme: bearer
    token_env: API_KEY
    matches:
      - paths: [{value: /v1}]
        methods: [GET, POST]
      - paths: [{type: exact, value: /health}]
  - host: "*.cdn.example.com:8443"
    inspect: false
    limits: {bytes_in: 1000000}
  - host: registry.example.org
    matches:
      - paths: [{type: regex, value: '/[a-z]+(/-/.*)?'}]
        headers: [{name: accept, value: application/json}]
    dlp: {outbound_detectors: [known_secrets, entropy], inbound_detectors: false, outbound_on_match: redact}
  - host: git.example.org
    git: {fetch: true}
  - host: internal.corp
    private: true
    upstream: http://10.0.0.5:8080
    dlp: {outbound_detectors: false}
    limits: {bytes_out: 1000, requests_per_minute: 60}
`

func TestExample(t *testing.T) {
	f, err := Parse("r.yaml", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	if f.Log != 2 || len(f.Routes) != 5 || f.Name != "r.yaml" {
		t.Errorf("%+v", f)
	}
	tab, err := policy.Compile(f.Routes...)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		method, host, path, accept string
		port                       uint16
		rule                       string
		reason                     policy.Reason
	}{
		{"GET", "api.example.com", "/v1", "", 443, "r.yaml:4", policy.ReasonRoute},
		{"POST", "api.example.com", "/v1/messages", "", 443, "r.yaml:4", policy.ReasonRoute},
		{"POST", "api.example.com", "/%761/messages", "", 443, "r.yaml:4", policy.ReasonRoute},
		{"DELETE", "api.example.com", "/health", "", 443, "r.yaml:4", policy.ReasonRoute},
		{"DELETE", "api.example.com", "/v1/messages", "", 443, "r.yaml:4", policy.ReasonRequest},
		{"get", "api.example.com", "/v1", "", 443, "r.yaml:4", policy.ReasonRequest},
		{"GET", "api.example.com", "/v1x", "", 443, "r.yaml:4", policy.ReasonRequest},
		{"GET", "api.example.com", "/health/x", "", 443, "r.yaml:4", policy.ReasonRequest},
		{"GET", "api.example.com", "/v1/../admin", "", 443, "r.yaml:4", policy.ReasonAmbiguous},
		{"GET", "api.example.com", "/v1/%2e%2e/admin", "", 443, "r.yaml:4", policy.ReasonAmbiguous},
		{"GET", "api.example.com", "/v1%2f..%2fadmin", "", 443, "r.yaml:4", policy.ReasonAmbiguous},
		{"GET", "api.example.com", "//v1", "", 443, "r.yaml:4", policy.ReasonAmbiguous},
		{"GET", "registry.example.org", "/left", "application/json", 443, "r.yaml:14", policy.ReasonRoute},
		{"GET", "registry.example.org", "/left", "", 443, "r.yaml:14", policy.ReasonRequest},
		{"GET", "registry.example.org", "/left/x", "application/json", 443, "r.yaml:14", policy.ReasonRequest},
		{"GET", "internal.corp", "/a//%2F..", "", 80, "r.yaml:21", policy.ReasonRoute},
		{"GET", "other.example.com", "/", "", 443, "", policy.ReasonNoRoute},
		{"GET", "api.example.com", "/v1", "", 8080, "", policy.ReasonNoRoute},
	} {
		h := http.Header{}
		if x.accept != "" {
			h.Set("Accept", x.accept)
		}
		v := tab.DecideRequest(x.host, x.port, &policy.Request{Method: x.method, Path: x.path, Header: h})
		if v.Reason != x.reason || v.Rule != x.rule || v.Allowed != (x.reason == policy.ReasonRoute) || (v.Route != nil) != v.Allowed || (v.Missed == "") != (v.Allowed || v.Reason == policy.ReasonNoRoute) {
			t.Errorf("%s %s%s: %+v", x.method, x.host, x.path, v)
		}
	}
	if v := tab.Decide("a.cdn.example.com", 8443); !v.Allowed || !v.Opaque {
		t.Errorf("%+v", v)
	}
	o := f.Routes[4].Options()
	if o.Upstream != (policy.Upstream{Host: "10.0.0.5", Port: 8080, Plain: true}) || !o.Scan.NoTokens || !o.Scan.NoSecrets || o.Scan.NoInjection || o.Caps != (policy.Caps{BytesOut: 1000, RequestsPerMinute: 60}) || !f.Routes[4].Private() {
		t.Errorf("%+v", o)
	}
	o = f.Routes[2].Options()
	if o.Scan != (policy.Scan{NoTokens: true, Entropy: true, NoInjection: true, OnMatch: policy.Redact}) {
		t.Errorf("%+v", o.Scan)
	}
	if c := f.Routes[0].Options().Credential; c != (policy.Credential{Scheme: "bearer", Env: "API_KEY"}) || f.Routes[3].Options().GitFetch != policy.FetchAllowed {
		t.Errorf("%+v", c)
	}
}

// TestFirstMatch: the order of the file decides. A request that the first route does
// not match may match a later one.
func TestFirstMatch(t *testing.T) {
	f, err := Parse("r.yaml", []byte(`routes:
  - {host: a.example.com, matches: [{methods: [GET]}]}
  - {host: "*.example.com", matches: [{paths: [{value: /x}]}]}
  - {host: a.example.com, matches: [{methods: [PUT]}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	tab, _ := policy.Compile(f.Routes...)
	for want, r := range map[string]policy.Request{
		"r.yaml:2": {Method: "GET", Path: "/x"},
		"r.yaml:3": {Method: "PUT", Path: "/x"},
		"r.yaml:4": {Method: "PUT", Path: "/y"},
	} {
		if v := tab.DecideRequest("a.example.com", 443, &r); v.Rule != want || !v.Allowed {
			t.Errorf("%v: %+v, wanted %s", r, v, want)
		}
	}
}

func TestRefused(t *testing.T) {
	for _, x := range []struct{ text, want string }{
		{"route: []", "did you mean routes?"},
		{"log: 3", "from 0 to 2"},
		{"routes:\n  - {hots: a.com}", "r.yaml:2:6: routes[0].hots: unknown key; did you mean host?"},
		{"routes:\n  - {inspect: true}", "routes[0]: needs host"},
		{"routes: [{host: 'https://a.com'}]", "not a URL"},
		{"routes: [{host: 127.0.0.1}]", "bottle itself"},
		{"routes: [{host: '*.com'}]", "anybody"},
		{"routes: [{host: a.com, matches: []}]", "would match nothing"},
		{"routes: [{host: a.com, matches: [{}]}]", "matches every request"},
		{"routes: [{host: a.com, matches: [{methods: []}]}]", "would match nothing"},
		{"routes: [{host: a.com, matches: [{paths: []}]}]", "would match nothing"},
		{"routes: [{host: a.com, matches: [{methods: [GTE]}]}]", "did you mean GET?"},
		{"routes: [{host: a.com, matches: [{methods: [frobnicate]}]}]", "is no method; known: GET, HEAD,"},
		{"routes: [{host: a.com, matches: [{methods: ['']}]}]", "is no method"},
		{"routes: [{host: a.com, matches: [{methods: [GET, get]}]}]", "twice"},
		{"routes: [{host: a.com, matches: [{headers: [{name: '', value: x}]}]}]", "no header name"},
		{"routes: [{host: a.com, inspect: false, git: {fetch: false}}]", "opaque route can't have git"},
		{"routes: [{host: a.com, dlp: {outbound_detectors: []}}]", "would look for nothing; write false"},
		{"routes: [{host: a.com, dlp: {inbound_detectors: []}}]", "would look for nothing; write false"},
		{"routes: [{host: a.com, matches: [{methods: [CONNECT]}]}]", "always refused"},
		{"routes: [{host: a.com, matches: [{methods: [GET, GET]}]}]", "twice"},
		{"routes: [{host: a.com, matches: [{paths: [{value: /a/../b}]}]}]", "ambiguous"},
		{"routes: [{host: a.com, matches: [{paths: [{value: a}]}]}]", "slash"},
		{"routes: [{host: a.com, matches: [{paths: [{type: glob, value: /a}]}]}]", `"glob" is none of prefix, exact, regex`},
		{"routes: [{host: a.com, matches: [{paths: [{type: regex, value: '('}]}]}]", "missing closing"},
		{"routes: [{host: a.com, matches: [{headers: [{name: host, value: x}]}]}]", "gateway's own"},
		{"routes: [{host: a.com, matches: [{headers: [{name: 'a b', value: x}]}]}]", "no header name"},
		{"routes: [{host: a.com, auth_scheme: bearer}]", "token_env"},
		{"routes: [{host: a.com, auth_scheme: digest, token_env: A}]", "none of"},
		{"routes: [{host: a.com, auth_scheme: header, token_env: A}]", "needs auth_field"},
		{"routes: [{host: a.com, own_credentials: [password]}]", "own_credentials is about a route with a credential"},
		{"routes: [{host: a.com, token_env: A, own_credentials: []}]", "an empty list"},
		{"routes: [{host: a.com, token_env: A, own_credentials: [a b]}]", "is no name of a header"},
		{"routes: [{host: a.com, token_env: A, own_credentials: [x, x]}]", "given twice"},
		{"routes: [{host: a.com, auth_scheme: bearer, auth_field: X, token_env: A}]", "only header and query"},
		{"routes: [{host: a.com, token_env: A, credential: b}]", "both given"},
		{"routes: [{host: a.com, token_env: 'a b'}]", "no name"},
		{"routes: [{host: a.com/v1}]", "has a path; name paths with matches"},
		{"routes: [{host: a.com, auth_scheme: oauth, token_env: A}]", "none of"},
		{"routes: [{host: a.com, auth_scheme: oauth2, token_env: A}]", "oauth2 needs oauth: {token_url"},
		{"routes: [{host: a.com, token_env: A, oauth: {token_url: 'https://b.com/', client_id: x}}]", "routes[0].oauth: is about auth_scheme: oauth2"},
		{"routes: [{host: a.com, auth_scheme: oauth2, oauth: {token_url: 'https://b.com/', client_id: x}}]", "needs the refresh token"},
		{"routes: [{host: a.com, auth_scheme: oauth2, token_env: A, oauth: {token_url: 'https://b.com/', client_id: x, refresh_token_file: /a}}]", "needs the refresh token"},
		{"routes: [{host: a.com, auth_scheme: oauth2, oauth: {token_url: 'https://b.com/', client_id: x, refresh_token_file: a}}]", "oauth.refresh_token_file: is not an absolute path"},
		{"routes: [{host: a.com, auth_scheme: oauth2, token_env: A, oauth: {token_url: 'http://b.com/', client_id: x}}]", "oauth.token_url: is not an https URL"},
		{"routes: [{host: a.com, auth_scheme: oauth2, token_env: A, oauth: {token_url: 'https://b.com/?k=v', client_id: x}}]", "a query"},
		{"routes: [{host: a.com, auth_scheme: oauth2, token_env: A, oauth: {token_url: 'https://b.com/'}}]", "needs client_id"},
		{"routes: [{host: a.com, auth_scheme: oauth2, token_env: A, oauth: {tokenurl: 'https://b.com/', client_id: x}}]", "routes[0].oauth.tokenurl: unknown key; did you mean token_url?"},
		{"routes: [{host: a.com, auth_scheme: oauth2, token_env: A, oauth: {token_url: 'https://b.com/', client_id: x, scopes: ['a b']}}]", "is no scope"},
		{"routes: [{host: a.com, auth_scheme: oauth2, token_env: A, oauth: {token_url: 'https://b.com/', client_id: x, scopes: []}}]", "would match nothing"},
		{"routes: [{host: a.com, auth_scheme: oauth2, token_env: A, oauth: {token_url: 'https://b.com/', client_id: x, client_auth: post}}]", "none of basic, body"},
		{"routes: [{host: a.com, auth_scheme: oauth2, token_env: A, auth_field: x, oauth: {token_url: 'https://b.com/', client_id: x}}]", "oauth2 does not have it"},
		{"routes: [{host: a.com, auth_scheme: oauth2, token_env: A, oauth: x}]", "oauth"},
		{"routes: [{host: a.com, oauth: {}}]", "oauth"},
		{"routes: [{host: a.com, upstream: 'ftp://x'}]", "http://host:port"},
		{"routes: [{host: a.com, upstream: 'x'}]", "needs a port"},
		{"routes: [{host: a.com, inspect: false, upstream: 'b.com:443'}]", "opaque route can't have upstream"},
		{"routes: [{host: a.com, inspect: false, token_env: A}]", "opaque route can't have credential"},
		{"routes: [{host: a.com, inspect: false, matches: [{methods: [GET]}]}]", "can't have matches"},
		{"routes: [{host: 'a.com:5432/tcp', dlp: {outbound_on_match: block}}]", "can't have scan"},
		{"routes: [{host: a.com}, {host: a.com, inspect: false}]", "says otherwise"},
		{"routes: [{host: a.com, dlp: {outbound_detectors: [tokens]}}]", "unknown detector"},
		{"routes: [{host: a.com, dlp: {outbound_detectors: [known_secret]}}]", "did you mean known_secrets?"},
		{"routes: [{host: a.com, dlp: {outbound_detectors: false, outbound_on_match: block}}]", "nothing is looked for"},
		{"routes: [{host: a.com, dlp: {outbound_on_match: warn}}]", "none of supervise, block, redact"},
		{"routes: [{host: a.com, limits: {bytes_out: 0}}]", "at least 1"},
		{"routes: [{host: a.com, limits: {bytes_out: 1MB}}]", "whole number"},
	} {
		if f, err := Parse("r.yaml", []byte(x.text)); err == nil || !strings.Contains(err.Error(), x.want) || !strings.HasPrefix(err.Error(), "r.yaml:") {
			t.Errorf("%s:\n%v, %v; wanted %q", x.text, f, err, x.want)
		}
	}
	f, err := Parse("r.yaml", []byte("routes: [{host: a.com, auth_scheme: oauth2, token_env: A, oauth: {token_url: 'https://b.com/t', client_id: x, client_secret_env: B, scopes: [r, w], client_auth: body}}]"))
	if err != nil {
		t.Fatal(err)
	}
	if c := f.Routes[0].Options().Credential; c != (policy.Credential{Scheme: "oauth2", Env: "A", OAuth: policy.OAuth{TokenURL: "https://b.com/t", ClientID: "x", SecretEnv: "B", Scopes: "r w", InBody: true}}) {
		t.Errorf("%+v", c)
	}
	// A secret in place of a variable's name is not repeated.
	value := "sk-" + strings.Repeat("a1", 20)
	for _, text := range []string{
		"routes: [{host: a.com, token_env: " + value + "}]", "routes: [{host: a.com, token_env: sk-1}]",
		"routes: [{host: a.com, auth_scheme: oauth2, token_env: A, oauth: {token_url: 'https://b.com/', client_id: x, client_secret_env: " + value + "}}]",
	} {
		if _, err := Parse("r.yaml", []byte(text)); err == nil || strings.Contains(err.Error(), value[:8]) || strings.Contains(err.Error(), "sk-1") || !strings.Contains(err.Error(), "the value itself") {
			t.Errorf("%v", err)
		}
	}
}

// TestCase: methods and schemes are taken in any case, and what was meant is compared.
func TestCase(t *testing.T) {
	for _, text := range []string{
		"routes: [{host: a.com, auth_scheme: Bearer, token_env: A, matches: [{methods: [get, Propfind]}]}]",
		"routes: [{host: a.com, auth_scheme: BEARER, token_env: A, matches: [{methods: [GET, PROPFIND]}]}]",
	} {
		f, err := Parse("r.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		tab, err := policy.Compile(f.Routes...)
		if err != nil {
			t.Fatal(err)
		}
		if s := f.Routes[0].Options().Credential.Scheme; s != "bearer" {
			t.Errorf("%s: scheme %s", text, s)
		}
		for method, want := range map[string]bool{"GET": true, "PROPFIND": true, "POST": false, "get": false} {
			if v := tab.DecideRequest("a.com", 443, &policy.Request{Method: method, Path: "/"}); v.Allowed != want {
				t.Errorf("%s: %s: %t", text, method, v.Allowed)
			}
		}
	}
	oauth := "routes: [{host: a.com, auth_scheme: OAuth2, token_env: A, oauth: {token_url: 'https://b.com/t', client_id: x}}]"
	if _, err := Parse("r.yaml", []byte(oauth)); err != nil {
		t.Error(err)
	}
}

// TestGitFetch: who says more than a host says whether git may fetch, and false is obeyed.
// A description says it as the route does.
func TestGitFetch(t *testing.T) {
	for text, want := range map[string]bool{
		"{host: a.com}":                                                  true,
		"{host: a.com, git: {}}":                                         true,
		"{host: a.com, git: {fetch: true}}":                              true,
		"{host: a.com, git: {fetch: false}}":                             false,
		"{host: a.com, limits: {bytes_out: 1}}":                          false,
		"{host: a.com, matches: [{methods: [GET]}]}":                     false,
		"{host: a.com, git: {fetch: true}, matches: [{methods: [GET]}]}": true,
	} {
		f, err := Parse("r.yaml", []byte("routes: ["+text+"]"))
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Routes[0].Fetches(); got != want {
			t.Errorf("%s: %t", text, got)
		}
		b, err := json.Marshal(map[string]any{"routes": []Description{Describe(f.Routes[0])}})
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse("again.yaml", b)
		if err != nil || !reflect.DeepEqual(again.Routes[0].Options(), f.Routes[0].Options()) {
			t.Errorf("%s: described as %s: %v", text, b, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte("routes: [{host: a.com, matches: [{paths: [{type: regex, value: '(a+)+'}]}]}]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := Parse("r", b)
		if err != nil {
			return
		}
		tab, err := policy.Compile(file.Routes...)
		if err != nil {
			t.Fatalf("read, and not compiled: %v", err)
		}
		for _, r := range tab.Routes() {
			if r.Rule() == "" {
				t.Fatal("a route that nothing cites")
			}
		}
		tab.DecideRequest("a.com", 443, &policy.Request{Method: "GET", Path: "/a"})
	})
}

// TestShadowed: a route that never judges a request is an error. A connection is
// private or not, and inspected or not, and the first route decides that.
func TestShadowed(t *testing.T) {
	for file, wrong := range map[string]string{
		"routes:\n  - {host: api.corp.example, token_env: K, dlp: {outbound_on_match: block}}\n  - {host: \"*.corp.example\", private: true, inspect: false}\n":    "r.yaml:2",
		"routes:\n  - {host: \"api.example.com:443\", inspect: false}\n  - {host: \"api.example.com:443/tcp\"}\n":                                                  "r.yaml:3",
		"routes:\n  - {host: \"*.example.com\", inspect: false}\n  - {host: \"*.a.example.com\", matches: [{methods: [GET]}]}\n":                                   "r.yaml:3",
		"routes:\n  - {host: \"api.example.com:443\", inspect: false}\n  - {host: api.example.com, matches: [{methods: [GET]}]}\n":                                 "",
		"routes:\n  - {host: api.corp.example, private: true, token_env: K}\n  - {host: \"*.corp.example\", private: true}\n":                                      "",
		"routes:\n  - {host: a.example.com, inspect: false}\n  - {host: \"*.example.com\"}\n  - {host: 192.0.2.1}\n  - {host: \"*.com.example\", private: true}\n": "",
	} {
		_, err := Parse("r.yaml", []byte(file))
		if wrong == "" && err != nil || wrong != "" && (err == nil || !strings.HasPrefix(err.Error(), wrong) || !strings.Contains(err.Error(), "never decides")) {
			t.Errorf("%s%v", file, err)
		}
	}
}
