package policy

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Reasons for refusing a request.
const (
	ReasonRequest   Reason = "request"        // the host is allowed, this request is not
	ReasonAmbiguous Reason = "ambiguous-path" // rules of paths can't be kept for it
)

// MatchType is the way a value is compared.
type MatchType uint8

// Types of [PathMatch] and [HeaderMatch]. A prefix covers whole segments: /v1 matches
// /v1 and /v1/x, but not /v1x. A regular expression (RE2) must match the whole value.
const (
	Prefix MatchType = iota
	Exact
	Regexp
)

// PathMatch compares the path of a request, as [NormalPath] spells it. Create it with
// [NewPathMatch].
type PathMatch struct {
	typ   MatchType
	value string
	re    *regexp.Regexp
}

// NewPathMatch returns a match, or an error if no path can have this value.
func NewPathMatch(typ MatchType, value string) (PathMatch, error) {
	m := PathMatch{typ: typ, value: value}
	var err error
	if typ == Regexp {
		m.re, err = compileWhole(value)
		return m, err
	}
	if m.value, err = NormalPath(value); err != nil {
		return PathMatch{}, err
	}
	if typ == Prefix {
		m.value = strings.TrimSuffix(m.value, "/")
	}
	return m, nil
}

// maxPattern bounds a regular expression, in bytes.
const maxPattern = 1000

// compileWhole compiles a pattern that must match the whole value. Matching a part,
// /safe would allow /admin?/safe.
func compileWhole(pattern string) (*regexp.Regexp, error) {
	if len(pattern) > maxPattern {
		return nil, fmt.Errorf("regular expression is longer than %d bytes", maxPattern)
	}
	if _, err := regexp.Compile(pattern); err != nil {
		return nil, err
	}
	return regexp.Compile(`\A(?:` + pattern + `)\z`)
}

// String returns the type as it is written in route files.
func (t MatchType) String() string { return [...]string{"prefix", "exact", "regex"}[t] }

// Type returns the way the path is compared.
func (m PathMatch) Type() MatchType { return m.typ }

// Value returns the value for NewPathMatch.
func (m PathMatch) Value() string {
	if m.typ == Prefix && m.value == "" {
		return "/"
	}
	return m.value
}

// Name returns the name of the header.
func (m HeaderMatch) Name() string { return m.name }

// Type returns the way the value is compared.
func (m HeaderMatch) Type() MatchType {
	if m.re != nil {
		return Regexp
	}
	return Exact
}

// Value returns the value for NewHeaderMatch.
func (m HeaderMatch) Value() string { return m.value }

func (m PathMatch) match(path string) bool {
	switch m.typ {
	case Exact:
		return path == m.value
	case Regexp:
		return m.re.MatchString(path)
	}
	rest, ok := strings.CutPrefix(path, m.value)
	return ok && (rest == "" || rest[0] == '/')
}

func (m PathMatch) String() string {
	switch m.typ {
	case Exact:
		return "path = " + m.value
	case Regexp:
		return "path ~ " + m.value
	}
	return "path " + m.value + "/…"
}

// HeaderMatch compares a header. The header must be in the request exactly once.
// Create it with [NewHeaderMatch].
type HeaderMatch struct {
	name, value string
	re          *regexp.Regexp
}

// NewHeaderMatch returns an [Exact] or [Regexp] match. It refuses headers that the
// gateway sets or removes.
func NewHeaderMatch(typ MatchType, name, value string) (HeaderMatch, error) {
	m := HeaderMatch{name: http.CanonicalHeaderKey(name), value: value}
	if !httpguts.ValidHeaderFieldName(name) {
		return HeaderMatch{}, fmt.Errorf("%.40q is no header name", name)
	}
	switch m.name {
	case "Host", "Content-Length", "Transfer-Encoding", "Connection", "Trailer", "Te", "Upgrade", "Keep-Alive", "Expect", "Accept-Encoding",
		"Proxy-Connection", "Proxy-Authorization", "Proxy-Authenticate", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto":
		// The gateway changes these on the way to upstream.
		return HeaderMatch{}, fmt.Errorf("%s is the gateway's own and can't be a condition", m.name)
	}
	var err error
	switch typ {
	case Exact:
	case Regexp:
		m.re, err = compileWhole(value)
	default:
		err = errors.New("a header is matched exactly or by a regular expression")
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

// lookalike returns the name of a header in h that some servers confuse with that of
// m; "": none.
func (m HeaderMatch) lookalike(h http.Header) string {
	for name := range h {
		if name != m.name && SameHeader(name, m.name) {
			return name
		}
	}
	return ""
}

// SameHeader reports whether some servers treat two header names as the same: behind
// CGI, WSGI and the like, X_Env and X.Env are X-Env.
func SameHeader(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if foldHeaderByte(a[i]) != foldHeaderByte(b[i]) {
			return false
		}
	}
	return true
}

func foldHeaderByte(c byte) byte {
	switch {
	case 'A' <= c && c <= 'Z':
		return c + 'a' - 'A'
	case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		return c
	}
	return '-'
}

// Match requires one of Paths, one of Methods and all of Headers. Each that is empty
// is always met.
type Match struct {
	Paths   []PathMatch
	Methods []string
	Headers []HeaderMatch
}

// Request holds the parts of a request that rules compare.
type Request struct {
	Method string
	// Path comes from the request line, without the query.
	Path   string
	Header http.Header
}

// mismatch says which conditions of m the request does not meet. n is 0 if it meets
// all; a smaller n means a nearer miss.
func (m Match) mismatch(r *Request, path string) (n int, what string) {
	var missed []string
	if len(m.Paths) > 0 && !slices.ContainsFunc(m.Paths, func(p PathMatch) bool { return p.match(path) }) {
		n += 4
		missed = append(missed, m.Paths[0].String())
	} else if name := override(r.Header, overridesPath, nil); len(m.Paths) > 0 && name != "" {
		n += 4
		missed = append(missed, "no header "+name+", which names another path")
	}
	if len(m.Methods) > 0 && !slices.Contains(m.Methods, r.Method) {
		n += 2
		missed = append(missed, "method "+strings.Join(m.Methods, ", "))
	} else if name := override(r.Header, overridesMethod, m.Methods); len(m.Methods) > 0 && name != "" {
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

// override returns the name of a header in h that overrides the method or path with a
// value that is not allowed; "": none. Lenient servers accept X_HTTP_Method too.
func override(h http.Header, names, allowed []string) string {
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

// RequestVerdict is the verdict about a request. The zero value refuses.
type RequestVerdict struct {
	Verdict
	// Route is the route that allows the request; nil in a refusal.
	Route *Route
	// Missed says which conditions of the nearest route the request does not meet.
	Missed string
}

// Remedy says what would allow a refused request: a flag, or a hint about the nearest
// route, which may come from a file. At most one is set.
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

// DecideRequest decides about a request to name on port. The connection must have been
// allowed by [Table.Decide]. The first route that the request matches allows it.
func (t *Table) DecideRequest(name string, port uint16, r *Request) RequestVerdict {
	return decideRequest(t.candidates(name, netip.Addr{}, port), r)
}

// DecideAddrRequest is DecideRequest for a literal address.
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
		byPath  bool // a previous route has path conditions
		near    *Route
		least   int
		missed  string
	)
	if name := headerLookalike(routes, r.Header); name != "" {
		return RequestVerdict{Verdict: refusal(ReasonAmbiguous, *routes[0]), Missed: "some servers take the header " + name + " for one that the routes are about"}
	}
	for _, route := range routes {
		if len(route.opts.Matches) == 0 {
			if pathErr != nil && byPath {
				break // an earlier route may be meant for this path
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
			n, what := m.mismatch(r, path)
			if n == 0 {
				return allowed(route)
			}
			if near == nil || n < least {
				near, least, missed = route, n, what
			}
		}
	}
	if pathErr != nil {
		return RequestVerdict{Verdict: refusal(ReasonAmbiguous, *routes[0]), Missed: pathErr.Error()}
	}
	return RequestVerdict{Verdict: refusal(ReasonRequest, *near), Missed: missed}
}

func allowed(r *Route) RequestVerdict {
	return RequestVerdict{
		Verdict: Verdict{Allowed: true, Private: r.private, Protocol: r.protocol, Opaque: r.opts.Opaque, Rule: r.rule, Reason: ReasonRoute},
		Route:   r,
	}
}

// headerLookalike returns a header that some servers confuse with one that a route has
// a condition about; "": none. The server may then see another value than the routes
// did.
func headerLookalike(routes []*Route, h http.Header) string {
	for _, route := range routes {
		for _, m := range route.opts.Matches {
			for _, hm := range m.Headers {
				if name := hm.lookalike(h); name != "" {
					return name
				}
			}
		}
	}
	return ""
}
