package policy

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func TestNormalPath(t *testing.T) {
	for in, want := range map[string]string{
		"/":                         "/",
		"/a/b":                      "/a/b",
		"/a/b/":                     "/a/b/",
		"/%61/%7Eb":                 "/a/~b",
		"/a%2db":                    "/a-b",
		"/caf%c3%a9":                "/caf%C3%A9",
		"/a%20b":                    "/a%20b",
		"/a;v=1/b":                  "/a;v=1/b",
		"/@scope/name":              "/@scope/name",
		"/100%25":                   "/100%25",
		"/a.b/..c/...":              "/a.b/..c/...",
		"/v1:run":                   "/v1:run",
		"/a+b,c=d&e!$'()*":          "/a+b,c=d&e!$'()*",
		"/" + url.PathEscape(`"<>`): "/%22%3C%3E",
	} {
		got, err := NormalPath(in)
		if err != nil || got != want {
			t.Errorf("NormalPath(%q) = %q, %v", in, got, err)
		}
		if again, err := NormalPath(got); err != nil || again != got {
			t.Errorf("NormalPath(%q) is not stable: %q, %v", got, again, err)
		}
	}
	for _, in := range []string{
		"", "a", "*", "http://x/", "/..", "/.", "/a/../b", "/a/./b", "/a/%2e%2e/b", "/a/.%2E/b", "/%2e", "//", "//a", "/a//b",
		"/a%2fb", "/a%2Fb", "/a%5cb", `/a\b`, "/a%00", "/a%0a", "/a%7f", "/a%", "/a%4", "/a%zz", "/a%u002f",
		"/a b", "/é", "/a\x00b", "/a\tb", "/a#b", "/a?b", "/a%252fb", "/a%252e%252e/b", "/..;/b", "/..;x=1/b", "/..%3b/b", "/.;/b", "/a/..;",
		`/a"b`, "/a|b", "/a[0]", "/a{b}",
	} {
		if got, err := NormalPath(in); err == nil {
			t.Errorf("NormalPath(%q) = %q; wanted a refusal", in, got)
		}
	}
}

// FuzzNormalPath: a path that is accepted has only one reading. Go's parser reads the
// same path, with as many segments, and finds no dot segment.
func FuzzNormalPath(f *testing.F) {
	for _, s := range []string{"/", "/a/%2e/b", "/%41", "/a%2Fb", "/..;/", "/%252f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := NormalPath(s)
		if err != nil {
			return
		}
		if again, err := NormalPath(n); err != nil || again != n {
			t.Fatalf("%q: not stable: %q, %v", s, again, err)
		}
		a, err := url.PathUnescape(s)
		if err != nil {
			t.Fatalf("%q: Go does not read it", s)
		}
		if b, err := url.PathUnescape(n); err != nil || a != b {
			t.Fatalf("%q: %q is another path", s, n)
		}
		if strings.Count(a, "/") != strings.Count(s, "/") || strings.Contains(a, "//") || strings.ContainsAny(a, "\\\x00") {
			t.Fatalf("%q has other segments", s)
		}
		for seg := range strings.SplitSeq(a, "/") {
			if seg, _, _ = strings.Cut(seg, ";"); seg == "." || seg == ".." {
				t.Fatalf("%q: a dot segment", s)
			}
		}
	})
}

func TestAllowPath(t *testing.T) {
	for _, x := range []struct{ in, rule, err string }{
		{in: "a.example.com/v1", rule: "--allow a.example.com/v1"},
		{in: "a.example.com/v1/", rule: "--allow a.example.com/v1"},
		{in: "a.example.com:8443/%76%31/x%2a", rule: "--allow a.example.com:8443/v1/x%2A"},
		{in: "*.example.com/v1", rule: "--allow *.example.com/v1"},
		{in: "[2001:db8::7]:80/v1", rule: "--allow [2001:db8::7]:80/v1"},
		{in: "a.example.com/", rule: "--allow a.example.com"},
		{in: "a.example.com:5432/tcp", rule: "--allow a.example.com:5432/tcp"},
		{in: "a.example.com/v1/../v2", err: "dot segment"},
		{in: "a.example.com/v1/%2e%2e", err: "dot segment"},
		{in: "a.example.com//v1", err: "empty segment"},
		{in: "a.example.com/v1%2fv2", err: "%2F"},
		{in: `a.example.com/v1\v2`, err: "percent-encoded"},
		{in: "a.example.com/%2541", err: "encoded twice"},
		{in: "a.example.com/a b", err: "percent-encoded"},
		{in: "a.example.com/v1?x=y", err: "without query"},
		{in: "a.example.com/v1/*", err: "what is below it"},
		{in: "a.example.com/udp", err: "protocol"},
		{in: "a.example.com:1/tcp/x", err: "protocol"},
		{in: "https://a.example.com/v1", err: "not a URL"},
		{in: "/v1", err: "host"},
	} {
		r, err := ParseAllow(x.in)
		if x.err != "" {
			if err == nil || !strings.Contains(err.Error(), x.err) || !r.IsZero() {
				t.Errorf("%s: %v, %v; want an error about %q", x.in, r, err, x.err)
			}
			continue
		}
		if err != nil || r.Rule() != x.rule {
			t.Errorf("%s: %q, %v; want %q", x.in, r.Rule(), err, x.rule)
		}
	}
	var rs []Route
	for _, s := range []string{"a.example.com/v1", "a.example.com/v2/x", "b.example.com"} {
		r, err := ParseAllow(s)
		if err != nil {
			t.Fatal(err)
		}
		rs = append(rs, r)
	}
	tab, err := Compile(rs...)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		host, path, flag string
		reason           Reason
	}{
		{"a.example.com", "/v1", "", ReasonRoute},
		{"a.example.com", "/%761/x", "", ReasonRoute},
		{"a.example.com", "/v2/x/y", "", ReasonRoute},
		{"b.example.com", "//..", "", ReasonRoute},
		{"a.example.com", "/v1x", "--allow a.example.com:443/v1x", ReasonRequest},
		{"a.example.com", "/v2", "--allow a.example.com:443/v2", ReasonRequest},
		{"a.example.com", "/v3/$(x)/y", "--allow a.example.com:443/v3", ReasonRequest},
		{"a.example.com", "/$(x)", "", ReasonRequest},
		{"a.example.com", "/'", "", ReasonRequest},
		{"a.example.com", "/tcp", "", ReasonRequest},
		{"a.example.com", "/v1/%2e%2e/v3", "", ReasonAmbiguous},
	} {
		v := tab.DecideRequest(x.host, 443, &Request{Method: "GET", Path: x.path})
		flag, hint := v.Remedy(x.host, 443, x.path, false)
		if v.Reason != x.reason || flag != x.flag || hint != "" {
			t.Errorf("%s%s: %v, %q, %q", x.host, x.path, v, flag, hint)
		}
		// The advised flag allows the request.
		if flag == "" {
			continue
		}
		r, err := ParseAllow(strings.TrimPrefix(flag, "--allow "))
		if err != nil {
			t.Errorf("%s: %v", flag, err)
			continue
		}
		with, _ := Compile(r)
		if v := with.DecideRequest(x.host, 443, &Request{Method: "GET", Path: x.path}); !v.Allowed {
			t.Errorf("%s does not allow %s", flag, x.path)
		}
	}

}

// TestAmbiguousPathsMeetNoLaterRoute: a request with an ambiguous path may belong to
// an earlier route with path conditions, so no later route may allow it.
func TestAmbiguousPathsMeetNoLaterRoute(t *testing.T) {
	v1, err := NewPathMatch(Prefix, "/v1")
	if err != nil {
		t.Fatal(err)
	}
	first, err := ParseAllow("a.example.com")
	if err != nil {
		t.Fatal(err)
	}
	second := first
	if first, err = first.WithOptions(Options{Matches: []Match{{Paths: []PathMatch{v1}}}}); err != nil {
		t.Fatal(err)
	}
	table, err := Compile(first, second)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]Reason{"/v1/x": ReasonRoute, "/v2": ReasonRoute, "/x/../v1/y": ReasonAmbiguous, "/x%2f..%2fv1": ReasonAmbiguous, "//v1": ReasonAmbiguous} {
		if v := table.DecideRequest("a.example.com", 443, &Request{Method: "GET", Path: path}); v.Reason != want || v.Allowed != (want == ReasonRoute) {
			t.Errorf("%s: allowed %v, %s, want %s", path, v.Allowed, v.Reason, want)
		}
	}
	table, err = Compile(second)
	if err != nil {
		t.Fatal(err)
	}
	if v := table.DecideRequest("a.example.com", 443, &Request{Method: "GET", Path: "/x/../v1/y"}); !v.Allowed {
		t.Errorf("where no path matters: %+v", v)
	}
}

// TestOverrides: the path or method that a header overrides must be allowed too.
func TestOverrides(t *testing.T) {
	path, err := NewPathMatch(Prefix, "/v1")
	if err != nil {
		t.Fatal(err)
	}
	r, err := ParseAllow("api.example.com")
	if err != nil {
		t.Fatal(err)
	}
	with := func(m Match) *Table {
		r, err := r.WithOptions(Options{Matches: []Match{m}})
		if err != nil {
			t.Fatal(err)
		}
		table, err := Compile(r)
		if err != nil {
			t.Fatal(err)
		}
		return table
	}
	methods, paths := with(Match{Methods: []string{"GET", "POST"}}), with(Match{Paths: []PathMatch{path}})
	for _, x := range []struct {
		table       *Table
		name, value string
		allowed     bool
	}{
		{methods, "X-Http-Method-Override", "DELETE", false},
		{methods, "X-Http-Method", "delete", false},
		{methods, "X_http_method_override", "PUT", false},
		{methods, "X-Method-Override", "GET", true},
		{methods, "X-Original-Url", "/admin", true},
		{paths, "X-Original-Url", "/admin", false},
		{paths, "X-Rewrite-Url", "/admin", false},
		{paths, "X-Http-Method-Override", "DELETE", true},
		{paths, "X-Original", "/admin", true},
	} {
		v := x.table.DecideRequest("api.example.com", 443, &Request{Method: "POST", Path: "/v1/x", Header: http.Header{x.name: {x.value}}})
		if v.Allowed != x.allowed || !x.allowed && !strings.Contains(v.Missed, x.name) {
			t.Errorf("%s: %s: %+v", x.name, x.value, v)
		}
	}
}
