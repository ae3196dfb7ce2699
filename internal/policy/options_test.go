package policy

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

func TestParseUpstream(t *testing.T) {
	for in, want := range map[string]string{
		"Example.com:443":          "example.com:443",
		"https://example.com:443/": "example.com:443",
		"http://example.com:80":    "http://example.com:80",
		"10.0.0.5:8080":            "10.0.0.5:8080",
		"http://[::1]:8080/":       "http://[::1]:8080",
	} {
		u, err := ParseUpstream(in)
		if err != nil || u.String() != want || u.IsZero() {
			t.Errorf("%s: %v, %v", in, u, err)
			continue
		}
		if again, err := ParseUpstream(u.String()); err != nil || again != u {
			t.Errorf("%s: parsing %s gives %v, %v", in, u, again, err)
		}
	}
	for in, want := range map[string]string{
		"":                       "empty",
		"example.com":            "needs a port",
		"example.com:0":          "not a number",
		"exa mple.com:1":         "spaces",
		"a..b:443":               "empty label",
		"224.0.0.1:443":          "no connection",
		"0.0.0.0:80":             "no connection",
		"http://example.com:80/": "", // a slash at the end is allowed
		"http://example.com:1/x": "query",
	} {
		_, err := ParseUpstream(in)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", in, err, want)
		}
	}
	if !(Upstream{}).IsZero() {
		t.Error("the zero upstream is not zero")
	}
}

func mustPath(t *testing.T, typ MatchType, value string) PathMatch {
	t.Helper()
	m, err := NewPathMatch(typ, value)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestPathMatch(t *testing.T) {
	for _, x := range []struct {
		typ           MatchType
		value         string
		str           string
		meets, misses []string
	}{
		{Prefix, "/v1/", "path /v1/…", []string{"/v1", "/v1/", "/v1/x"}, []string{"/v1x", "/", "/v2"}},
		{Prefix, "/", "path /…", []string{"/", "/x"}, nil},
		{Exact, "/v1", "path = /v1", []string{"/v1"}, []string{"/v1/", "/v1/x", "/"}},
		{Regexp, "/v[12]", "path ~ /v[12]", []string{"/v1", "/v2"}, []string{"/v1/x", "/x/v1", "/v3"}},
		{Regexp, "/a|/b", "path ~ /a|/b", []string{"/a", "/b"}, []string{"/a/x", "/x/b"}},
	} {
		m := mustPath(t, x.typ, x.value)
		if m.String() != x.str || m.Type() != x.typ {
			t.Errorf("%s %s: it is %q, of type %s", x.typ, x.value, m, m.Type())
		}
		if again := mustPath(t, m.Type(), m.Value()); again.String() != m.String() {
			t.Errorf("%s: its value %s makes %s", m, m.Value(), again)
		}
		for _, p := range x.meets {
			if !m.match(p) {
				t.Errorf("%s: not met by %s", m, p)
			}
		}
		for _, p := range x.misses {
			if m.match(p) {
				t.Errorf("%s: met by %s", m, p)
			}
		}
	}
	for value, typ := range map[string]MatchType{"v1": Prefix, "/a/../b": Exact, "/(": Regexp, strings.Repeat("a", maxPattern+1): Regexp} {
		if m, err := NewPathMatch(typ, value); err == nil {
			t.Errorf("%s %.20s: makes %v", typ, value, m)
		}
	}
}

func TestHeaderMatch(t *testing.T) {
	exact, err := NewHeaderMatch(Exact, "x-env", "test")
	if err != nil {
		t.Fatal(err)
	}
	pattern, err := NewHeaderMatch(Regexp, "X-Env", "te.*")
	if err != nil {
		t.Fatal(err)
	}
	if exact.Name() != "X-Env" || exact.Type() != Exact || exact.Value() != "test" || pattern.Type() != Regexp || pattern.Value() != "te.*" {
		t.Errorf("%s %s %s, %s %s", exact.Name(), exact.Type(), exact.Value(), pattern.Type(), pattern.Value())
	}
	for _, x := range []struct {
		values         []string
		exact, pattern bool
	}{
		{[]string{"test"}, true, true},
		{[]string{"tea"}, false, true},
		{[]string{"a test"}, false, false},
		{[]string{"test", "test"}, false, false}, // servers differ about which one counts
		{nil, false, false},
	} {
		h := http.Header{"X-Env": x.values}
		if exact.match(h) != x.exact || pattern.match(h) != x.pattern {
			t.Errorf("%q: exact %v, pattern %v", x.values, exact.match(h), pattern.match(h))
		}
	}
	for name, typ := range map[string]MatchType{"": Exact, "a b": Exact, "a:b": Exact, "Über": Exact, "Host": Exact, "x-forwarded-for": Exact, "X-Prefix": Prefix, "X-Regexp": Regexp} {
		if m, err := NewHeaderMatch(typ, name, "("); err == nil {
			t.Errorf("%q: makes %v", name, m)
		}
	}
}

func TestWithOptions(t *testing.T) {
	plain := allowRoute(t, "example.com")
	if !plain.Plain() || !plain.Options().Credential.IsZero() {
		t.Error("a route without options is not plain")
	}
	options := map[string]Options{
		"matches":             {Matches: []Match{{Methods: []string{"GET"}}}},
		"credential":          {Credential: Credential{Env: "TOKEN"}},
		"git":                 {GitFetch: FetchAllowed},
		"upstream":            {Upstream: Upstream{Host: "example.org", Port: 443}},
		"requests_per_minute": {Caps: Caps{RequestsPerMinute: 1}},
		"scan":                {Scan: Scan{OnMatch: Block}},
	}
	tcp := allowRoute(t, "example.com:5432/tcp")
	for name, o := range options {
		r, err := plain.WithOptions(o)
		if err != nil || r.Plain() {
			t.Errorf("%s: plain %v, %v", name, r.Plain(), err)
		}
		if _, err := tcp.WithOptions(o); err == nil || !strings.Contains(err.Error(), "a tcp route can't have "+name) {
			t.Errorf("%s on a tcp route: %v", name, err)
		}
		o.Opaque = true
		if _, err := plain.WithOptions(o); err == nil || !strings.Contains(err.Error(), "an opaque route can't have "+name) {
			t.Errorf("%s on an opaque route: %v", name, err)
		}
	}
	all := Options{Opaque: true, Matches: options["matches"].Matches, GitFetch: FetchAllowed, Scan: Scan{OnMatch: Block}}
	for range 20 {
		if _, err := plain.WithOptions(all); err == nil || !strings.Contains(err.Error(), "can't have matches") {
			t.Fatalf("several options: %v, want always the first", err)
		}
	}
	r, err := plain.WithOptions(Options{Opaque: true, Caps: Caps{BytesOut: 1}})
	if err != nil || r.Plain() || r.Options().Caps.BytesOut != 1 {
		t.Errorf("an opaque route with a cap: %+v, %v", r.Options(), err)
	}
}

// TestFetches: git fetches where a route allows a host as a whole, or says so.
func TestFetches(t *testing.T) {
	plain := allowRoute(t, "example.com")
	matches := []Match{{Methods: []string{"GET"}}}
	for _, x := range []struct {
		o    Options
		want bool
	}{
		{Options{}, true}, {Options{GitFetch: FetchAllowed}, true}, {Options{GitFetch: FetchRefused}, false},
		{Options{Matches: matches}, false}, {Options{Matches: matches, GitFetch: FetchAllowed}, true}, {Options{Matches: matches, GitFetch: FetchRefused}, false},
	} {
		r, err := plain.WithOptions(x.o)
		if err != nil || r.Fetches() != x.want {
			t.Errorf("%+v: %t, %v", x.o, r.Fetches(), err)
		}
	}
}

// TestIdentity: routes share an account if they cover the same requests.
func TestIdentity(t *testing.T) {
	header, err := NewHeaderMatch(Exact, "X-Env", "test")
	if err != nil {
		t.Fatal(err)
	}
	with := func(o Options) Route {
		r, err := allowRoute(t, "example.com").WithOptions(o)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	match := func(m Match) Route { return with(Options{Matches: []Match{m}}) }
	base := allowRoute(t, "example.com")
	if other := with(Options{Caps: Caps{BytesIn: 1}, Scan: Scan{Entropy: true}}).WithRule("routes.yaml:7"); other.Identity() != base.Identity() || other.Rule() != "routes.yaml:7" {
		t.Errorf("caps, scan or rule change the identity %s to %s", base.Identity(), other.Identity())
	}
	seen := map[string]int{}
	for i, r := range []Route{
		base,
		allowRoute(t, "example.com:443"),
		allowRoute(t, "*.example.com"),
		allowRoute(t, "example.com:443/tcp"),
		allowRoute(t, "[2606:4700::1111]:443"),
		with(Options{Upstream: Upstream{Host: "example.org", Port: 443}}),
		match(Match{Methods: []string{"GET"}}),
		match(Match{Paths: []PathMatch{mustPath(t, Prefix, "/v1")}}),
		match(Match{Paths: []PathMatch{mustPath(t, Exact, "/v1")}}),
		match(Match{Headers: []HeaderMatch{header}}),
	} {
		if first, ok := seen[r.Identity()]; ok {
			t.Errorf("routes %d and %d have the identity %s", first, i, r.Identity())
		}
		seen[r.Identity()] = i
	}
}

// TestDecideRequest: the first route that a request matches allows it, and a refusal
// names the nearest.
func TestDecideRequest(t *testing.T) {
	get := mustPath(t, Prefix, "/api")
	const literal = "10.0.0.5"
	var routes []Route
	for _, host := range []string{"example.com", literal} {
		r, err := allowRoute(t, host).WithOptions(Options{Matches: []Match{
			{Paths: []PathMatch{get}, Methods: []string{"GET"}},
			{Paths: []PathMatch{mustPath(t, Exact, "/login")}, Methods: []string{"POST"}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		routes = append(routes, r.WithRule("routes.yaml:1"))
	}
	tab, err := Compile(routes...)
	if err != nil {
		t.Fatal(err)
	}
	if got := tab.Routes(); len(got) != 2 || len(tab.RoutesOf("example.com")) != 1 || len(tab.RoutesOfAddr(netip.MustParseAddr(literal))) != 1 {
		t.Errorf("the table has the routes %v", got)
	}
	for _, x := range []struct {
		method, path string
		reason       Reason
		missed       string
	}{
		{"GET", "/api/users", ReasonRoute, ""},
		{"POST", "/login", ReasonRoute, ""},
		{"POST", "/api/users", ReasonRequest, "method GET"},
		{"GET", "/login", ReasonRequest, "method POST"},
		{"DELETE", "/x", ReasonRequest, "path /api/…; method GET"},
		{"GET", "/api//users", ReasonAmbiguous, "empty segment"},
	} {
		r := &Request{Method: x.method, Path: x.path}
		for _, v := range []RequestVerdict{
			tab.DecideRequest("example.com", 443, r),
			tab.DecideAddrRequest(netip.MustParseAddr(literal), 443, r),
		} {
			if v.Reason != x.reason || v.Allowed != (x.reason == ReasonRoute) || (v.Route != nil) != v.Allowed || !strings.Contains(v.Missed, x.missed) {
				t.Errorf("%s %s: %+v", x.method, x.path, v)
			}
			flag, hint := v.Remedy("example.com", 443, x.path, false)
			if want := x.reason == ReasonRequest; flag != "" || (hint != "") != want {
				t.Errorf("%s %s: flag %q, hint %q", x.method, x.path, flag, hint)
			}
		}
	}
	r := &Request{Method: "GET", Path: "/api"}
	for name, v := range map[string]RequestVerdict{
		"another name": tab.DecideRequest("example.org", 443, r),
		"no name":      tab.DecideRequest("a..b", 443, r),
		"another port": tab.DecideRequest("example.com", 8443, r),
		"another addr": tab.DecideAddrRequest(netip.MustParseAddr("10.0.0.6"), 443, r),
		"nil table":    (*Table)(nil).DecideRequest("example.com", 443, r),
	} {
		if v.Allowed || v.Reason != ReasonNoRoute {
			t.Errorf("%s: %+v", name, v)
		}
	}
	var none *Table
	if none.Routes() != nil || none.RoutesOf("example.com") != nil || none.RoutesOfAddr(netip.MustParseAddr(literal)) != nil {
		t.Error("the nil table has routes")
	}
}

// TestRemedy: the advice fits the kind of rule that refused.
func TestRemedy(t *testing.T) {
	v := RequestVerdict{Verdict: Verdict{Reason: ReasonRequest, Rule: "--allow example.com/v1"}, Missed: "path /v1/…"}
	if flag, hint := v.Remedy("example.com", 443, "/v2/x", false); flag != "--allow example.com:443/v2/x" || hint != "" {
		t.Errorf("by a flag: %q, %q", flag, hint)
	}
	if flag, _ := v.Remedy("::1", 443, "/v2", true); flag != "" {
		t.Errorf("for the bottle's own loopback: %q", flag)
	}
	v.Rule = "--credential example.com/v1"
	if flag, hint := v.Remedy("example.com", 443, "/v2", false); flag != "" || !strings.Contains(hint, v.Rule) {
		t.Errorf("by a credential: %q, %q", flag, hint)
	}
	v.Rule = ""
	if flag, hint := v.Remedy("example.com", 443, "/v2", false); flag != "" || hint != "" {
		t.Errorf("by no rule: %q, %q", flag, hint)
	}
}

// TestShadowed: another route decides the connections of a shadowed one.
func TestShadowed(t *testing.T) {
	opaque := func(r Route) Route {
		r, err := r.WithOptions(Options{Opaque: true})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	private, err := ParseAllowPrivate("db.example.com")
	if err != nil {
		t.Fatal(err)
	}
	routes := []Route{
		allowRoute(t, "example.com").WithRule("first"),
		opaque(allowRoute(t, "example.com")),
		allowRoute(t, "*.example.org").WithRule("all"),
		opaque(allowRoute(t, "*.example.org")),
		opaque(allowRoute(t, "www.example.org")),
		allowRoute(t, "1.1.1.1").WithRule("literal"),
		opaque(allowRoute(t, "1.1.1.1")),
		allowRoute(t, "db.example.com"),
		private.WithRule("private"),
		allowRoute(t, "example.com:8443"),
	}
	want := []string{"", "first", "", "all", "all", "", "literal", "private", "", ""}
	tab, err := Compile(routes...)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range routes {
		if by, ok := tab.Shadowed(r); by != want[i] || ok != (want[i] != "") {
			t.Errorf("route %d, %s: shadowed %v by %q", i, r, ok, by)
		}
	}
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		classPublic.String():   "public",
		classReserved.String(): "reserved",
		Class(200).String():    "unknown",
		ProtocolWeb.String():   "web",
		ProtocolTCP.String():   "tcp",
		Protocol(9).String():   "unknown",
		Ask.String():           "supervise",
		Block.String():         "block",
		Redact.String():        "redact",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for name, want := range map[string]string{
		strings.Repeat("ü", 2000):         "too long",
		"ü" + strings.Repeat("a", 70):     "host name",
		strings.Repeat("a.", 130) + "com": "253",
	} {
		if c, err := CanonicalName(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20s…: %q, %v", name, c, err)
		}
	}
}
