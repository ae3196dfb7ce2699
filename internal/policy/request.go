package policy

import (
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Reasons of verdicts about requests.
const (
	ReasonRequest   Reason = "request"        // the host is allowed, this request is not
	ReasonAmbiguous Reason = "ambiguous-path" // rules of paths can't be kept for it
)

// MatchType says how a value is compared.
type MatchType uint8

// The types of [PathMatch] and [HeaderMatch]. A prefix is whole segments: /v1
// matches /v1 and /v1/x and not /v1x. A regular expression (RE2) must match all
// of the value.
const (
	Prefix MatchType = iota
	Exact
	Regexp
)

// PathMatch compares a request's path, in the spelling of [NormalPath]. Make it
// with [NewPathMatch].
type PathMatch struct {
	kind  MatchType
	value string
	re    *regexp.Regexp
}

// NewPathMatch refuses a value that no path could be equal to.
func NewPathMatch(kind MatchType, value string) (PathMatch, error) {
	m := PathMatch{kind: kind, value: value}
	var err error
	if kind == Regexp {
		m.re, err = wholly(value)
		return m, err
	}
	if m.value, err = NormalPath(value); err != nil {
		return PathMatch{}, err
	}
	if kind == Prefix {
		m.value = strings.TrimSuffix(m.value, "/")
	}
	return m, nil
}

// maxPattern bounds a regular expression, in bytes.
const maxPattern = 1000

// wholly compiles a pattern that must match everything: one that matched a part
// would let /safe through in /admin?/safe's place.
func wholly(pattern string) (*regexp.Regexp, error) {
	if len(pattern) > maxPattern {
		return nil, fmt.Errorf("regular expression is longer than %d bytes", maxPattern)
	}
	if _, err := regexp.Compile(pattern); err != nil {
		return nil, err
	}
	return regexp.Compile(`\A(?:` + pattern + `)\z`)
}

// String returns the type as route files write it.
func (t MatchType) String() string { return [...]string{"prefix", "exact", "regex"}[t] }

// Type says how the path is compared.
func (m PathMatch) Type() MatchType { return m.kind }

// Value is what NewPathMatch makes the same match of.
func (m PathMatch) Value() string {
	if m.kind == Prefix && m.value == "" {
		return "/"
	}
	return m.value
}

// Name is the header's.
func (m HeaderMatch) Name() string { return m.name }

// Type says how the value is compared.
func (m HeaderMatch) Type() MatchType {
	if m.re != nil {
		return Regexp
	}
	return Exact
}

// Value is what NewHeaderMatch makes the same match of.
func (m HeaderMatch) Value() string { return m.value }

func (m PathMatch) match(path string) bool {
	switch m.kind {
	case Exact:
		return path == m.value
	case Regexp:
		return m.re.MatchString(path)
	}
	rest, ok := strings.CutPrefix(path, m.value)
	return ok && (rest == "" || rest[0] == '/')
}

func (m PathMatch) String() string {
	switch m.kind {
	case Exact:
		return "path = " + m.value
	case Regexp:
		return "path ~ " + m.value
	}
	return "path " + m.value + "/…"
}

// HeaderMatch compares a header that stands in the request once. Make it with
// [NewHeaderMatch].
type HeaderMatch struct {
	name, value string
	re          *regexp.Regexp
}

// NewHeaderMatch makes an [Exact] or [Regexp] match.
func NewHeaderMatch(kind MatchType, name, value string) (HeaderMatch, error) {
	m := HeaderMatch{name: http.CanonicalHeaderKey(name), value: value}
	if !isToken(name) {
		return HeaderMatch{}, fmt.Errorf("%.40q is no header name", name)
	}
	switch m.name {
	case "Host", "Content-Length", "Transfer-Encoding", "Connection", "Trailer", "Te", "Upgrade", "Keep-Alive", "Expect", "Accept-Encoding",
		"Proxy-Connection", "Proxy-Authorization", "Proxy-Authenticate", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto":
		// Upstream does not get it as it came.
		return HeaderMatch{}, fmt.Errorf("%s is the gateway's own and can't be a condition", m.name)
	}
	var err error
	switch kind {
	case Exact:
	case Regexp:
		m.re, err = wholly(value)
	default:
		err = fmt.Errorf("a header is matched exactly or by a regular expression")
	}
	return m, err
}

func (m HeaderMatch) match(h http.Header) bool {
	vs := h[m.name]
	if len(vs) != 1 {
		return false
	}
	if m.re != nil {
		return m.re.MatchString(vs[0])
	}
	return vs[0] == m.value
}

// twin is a header that some servers take for the one of m, if h has one.
func (m HeaderMatch) twin(h http.Header) string {
	for name := range h {
		if name != m.name && SameHeader(name, m.name) {
			return name
		}
	}
	return ""
}

// SameHeader reports whether some servers take two names of headers for the same:
// behind CGI, WSGI and the like, X_Env and X.Env are X-Env.
func SameHeader(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if plainHeader(a[i]) != plainHeader(b[i]) {
			return false
		}
	}
	return true
}

func plainHeader(c byte) byte {
	switch {
	case 'A' <= c && c <= 'Z':
		return c + 'a' - 'A'
	case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		return c
	}
	return '-'
}

func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte("()<>@,;:\\\"/[]?={}", c) >= 0 {
			return false
		}
	}
	return s != ""
}

// Match is met by a request that meets one of Paths, one of Methods and all of
// Headers; each that is empty is met by every request.
type Match struct {
	Paths   []PathMatch
	Methods []string
	Headers []HeaderMatch
}

// Request is what rules look at.
type Request struct {
	Method string
	// Path is as it stood on the request line, without the query.
	Path   string
	Header http.Header
}

// miss says what of m the request does not meet: nothing when it does. The
// smaller the number, the nearer it came.
func (m Match) miss(r *Request, path string) (n int, what string) {
	var missed []string
	if len(m.Paths) > 0 && !slices.ContainsFunc(m.Paths, func(p PathMatch) bool { return p.match(path) }) {
		n += 4
		missed = append(missed, m.Paths[0].String())
	} else if name := elsewhere(r.Header, overridesPath, nil); len(m.Paths) > 0 && name != "" {
		n += 4
		missed = append(missed, "no header "+name+", which names another path")
	}
	if len(m.Methods) > 0 && !slices.Contains(m.Methods, r.Method) {
		n += 2
		missed = append(missed, "method "+strings.Join(m.Methods, ", "))
	} else if name := elsewhere(r.Header, overridesMethod, m.Methods); len(m.Methods) > 0 && name != "" {
		n += 2
		missed = append(missed, "no header "+name+", which names another method")
	}
	for _, h := range m.Headers {
		if !h.match(r.Header) {
			n++
			missed = append(missed, "header "+h.name)
		}
	}
	return n, strings.Join(missed, "; ")
}

// What some servers serve instead of what the request line says.
var (
	overridesMethod = []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"}
	overridesPath   = []string{"X-Original-Url", "X-Rewrite-Url"}
)

// elsewhere is the header of these that names something that is not allowed, if one
// does. Lenient servers take X_HTTP_Method for the same.
func elsewhere(h http.Header, names, allowed []string) string {
	for name, values := range h {
		if !slices.ContainsFunc(names, func(n string) bool { return SameHeader(n, name) }) {
			continue
		}
		if slices.ContainsFunc(values, func(v string) bool { return !slices.Contains(allowed, strings.ToUpper(v)) }) {
			return name
		}
	}
	return ""
}

// RequestVerdict is the answer about one request. The zero value refuses.
type RequestVerdict struct {
	Verdict
	// Route is the one that allows; nil in a refusal.
	Route *Route
	// Missed says what the request did not meet of the nearest route.
	Missed string
}

// Remedy is what would allow a request that was refused: a flag, or words about the
// route that came nearest, which a file may have written; at most one of them.
func (v RequestVerdict) Remedy(host string, port uint16, path string, private bool) (flag, hint string) {
	switch {
	case v.Allowed, v.Reason != ReasonRequest:
	case strings.HasPrefix(v.Rule, "--allow"):
		flag = AllowFlag(host, port, path, private)
	case strings.HasPrefix(v.Rule, "--credential"):
		hint = "the path of " + v.Rule + " does not cover it"
	case v.Rule != "":
		hint = "the matches of " + v.Rule + " would have to name it: " + v.Missed
	}
	return flag, hint
}

// DecideRequest says whether a request may be made to name on port, a connection
// to which [Table.Decide] allowed: by the first route, in their order, that it
// meets.
func (t *Table) DecideRequest(name string, port uint16, r *Request) RequestVerdict {
	return decideRequest(t.candidates(name, netip.Addr{}, port), r)
}

// DecideAddrRequest is DecideRequest for a literal.
func (t *Table) DecideAddrRequest(addr netip.Addr, port uint16, r *Request) RequestVerdict {
	return decideRequest(t.candidates("", addr, port), r)
}

func decideRequest(routes []*Route, r *Request) RequestVerdict {
	if len(routes) == 0 {
		return RequestVerdict{Verdict: Verdict{Reason: ReasonNoRoute}}
	}
	var (
		path    string
		pathErr error
		normal  bool
		byPath  bool // a route so far has conditions about paths
		near    *Route
		least   int
		missed  string
	)
	if name := twinned(routes, r.Header); name != "" {
		return RequestVerdict{Verdict: refuse(ReasonAmbiguous, *routes[0]), Missed: "some servers take the header " + name + " for one that the routes are about"}
	}
	for _, route := range routes {
		if len(route.opts.Matches) == 0 {
			if pathErr != nil && byPath {
				break // it may be what an earlier route is about
			}
			return allowed(route)
		}
		if !normal {
			path, pathErr = NormalPath(r.Path)
			normal = true
		}
		for _, m := range route.opts.Matches {
			byPath = byPath || len(m.Paths) > 0
			if pathErr != nil && len(m.Paths) > 0 {
				continue
			}
			n, what := m.miss(r, path)
			if n == 0 {
				return allowed(route)
			}
			if near == nil || n < least {
				near, least, missed = route, n, what
			}
		}
	}
	if pathErr != nil {
		return RequestVerdict{Verdict: refuse(ReasonAmbiguous, *routes[0]), Missed: pathErr.Error()}
	}
	return RequestVerdict{Verdict: refuse(ReasonRequest, *near), Missed: missed}
}

func allowed(r *Route) RequestVerdict {
	return RequestVerdict{
		Verdict: Verdict{Allowed: true, Private: r.private, Protocol: r.protocol, Opaque: r.opts.Opaque, Rule: r.rule, Reason: ReasonRoute},
		Route:   r,
	}
}

// twinned is a header that some servers take for one that a route has a condition
// about: what the routes see of the request may not be what the server sees.
func twinned(routes []*Route, h http.Header) string {
	for _, route := range routes {
		for _, m := range route.opts.Matches {
			for _, hm := range m.Headers {
				if name := hm.twin(h); name != "" {
					return name
				}
			}
		}
	}
	return ""
}
