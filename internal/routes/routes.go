// Package routes reads route files: what a bottle may reach, and how, in the style of
// the Gateway API's HTTPRoute.
//
// A file is accepted whole or not at all, and every mistake in it is reported with its
// position. An option that could not take effect is an error. No secret is read: files
// name environment variables, whose values are read elsewhere.
//
// Start reading at [Parse].
package routes

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/policy"
)

// File is a parsed route file.
type File struct {
	Name   string
	Log    int // 0 nothing, 1 refusals, 2 every request
	Routes []policy.Route
	Sum    [sha256.Size]byte // digest of the text

	LogAt Place   // position of log; zero: not given
	At    []Place // positions of Routes
}

// Place is a position in a file, counted from 1.
type Place struct{ Line, Column int }

// DefaultLog is the log level of a file that sets none.
const DefaultLog = 1

// maxRoutes bounds the routes of a file.
const maxRoutes = 2000

// Schemes lists the values of auth_scheme.
var Schemes = []string{"bearer", "token", "basic", "x-api-key", "header", "query", "aws-sigv4", "oauth2"}

// Parse parses a route file. name is used in messages. The error is a
// [document.Error].
func Parse(name string, data []byte) (*File, error) {
	d, root, err := document.Parse(name, data)
	if err != nil {
		return nil, err
	}
	f := Read(root, Carboy)
	f.Name, f.Sum = name, sha256.Sum256(data)
	if err := d.Err(); err != nil {
		return nil, err
	}
	return f, nil
}

// Load parses the file at path.
func Load(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil {
		return nil, err
	} else if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, document.MaxSize+1))
	if err != nil {
		return nil, err
	}
	return Parse(path, text)
}

// Dialect says for which program a text was written.
type Dialect uint8

// BotBottle differs from Carboy where the same words meant something else: an empty list
// sets no condition, or no detector, and git fetches only where a route says so.
const (
	Carboy Dialect = iota
	BotBottle
)

// Read parses routes in a part of a document, such as a bottle's egress. It reports
// errors to the document.
func Read(v document.Value, d Dialect) *File {
	m := v.Mapping("log", "routes")
	f := &File{Log: int(m.Get("log").Int(DefaultLog, 0, 2)), LogAt: Place{m.Get("log").Line(), m.Get("log").Column()}}
	list := m.Get("routes").List()
	if len(list) > maxRoutes {
		m.Get("routes").Bad(fmt.Sprintf("more than %d routes", maxRoutes), "")
		return f
	}
	opaque := map[string]document.Value{}
	var values []document.Value
	for _, rv := range list {
		if r, ok := d.readRoute(rv, opaque); ok {
			f.Routes, f.At, values = append(f.Routes, r), append(f.At, Place{rv.Line(), rv.Column()}), append(values, rv)
		}
	}
	if table, err := policy.Compile(f.Routes...); err == nil {
		for i, r := range f.Routes {
			if by, ok := table.Shadowed(r); ok {
				values[i].Bad("never decides: a connection to it is of the kind that "+by+" says", "let both agree about private and inspect")
			}
		}
	}
	return f
}

var routeKeys = []string{"host", "matches", "auth_scheme", "token_env", "credential", "auth_field", "oauth", "insecure", "own_credentials",
	"git", "inspect", "dlp", "limits", "upstream", "private"}

func (d Dialect) readRoute(v document.Value, kinds map[string]document.Value) (policy.Route, bool) {
	m := v.Mapping(routeKeys...)
	host := m.Need("host")
	if !host.Present() {
		return policy.Route{}, false
	}
	parse := policy.ParseAllow
	if m.Get("private").Bool(false) {
		parse = policy.ParseAllowPrivate
	}
	r, err := parse(host.Text())
	if err != nil {
		if host.Text() != "" {
			host.Bad(trimFlag(err), "")
		}
		return policy.Route{}, false
	}
	if len(r.Options().Matches) > 0 {
		host.Bad("has a path", "name paths with matches: [{paths: [{value: /…}]}]")
		return policy.Route{}, false
	}
	o := policy.Options{
		Opaque:     !m.Get("inspect").Bool(true),
		Matches:    d.readMatches(m.Get("matches")),
		Credential: readCredential(m),

		OwnCredentials: readNames(m.Get("own_credentials")),
		Upstream:       readUpstream(m.Get("upstream")),
		Scan:           d.readScan(m.Get("dlp")),
		Caps:           readCaps(m.Get("limits")),
	}
	if !o.Opaque && r.Protocol() == policy.ProtocolWeb || m.Get("git").Present() {
		o.GitFetch = d.readGit(m.Get("git"))
	}
	if before, ok := kinds[r.String()]; ok && (before.Present() && !before.Bool(true)) != o.Opaque {
		m.Get("inspect").Bad(fmt.Sprintf("another route for %s says otherwise", r), "a connection is inspected or is not")
	} else {
		kinds[r.String()] = m.Get("inspect")
	}
	r, err = r.WithOptions(o)
	if err != nil {
		v.Bad(err.Error(), "")
		return policy.Route{}, false
	}
	return r.WithRule(fmt.Sprintf("%s:%d", v.File(), v.Line())), true
}

// trimFlag removes the flag that policy puts before its errors.
func trimFlag(err error) string {
	s := err.Error()
	if _, after, ok := strings.Cut(s, `": `); ok && strings.HasPrefix(s, "--") {
		return after
	}
	return s
}

func (d Dialect) readGit(v document.Value) policy.GitFetch {
	fetch := v.Mapping("fetch").Get("fetch")
	switch {
	case fetch.Bool(false):
		return policy.FetchAllowed
	case fetch.Present() || d == BotBottle:
		return policy.FetchRefused
	}
	return policy.FetchByDefault
}

func (d Dialect) readMatches(v document.Value) []policy.Match {
	var out []policy.Match
	all := false
	for _, mv := range d.nonEmpty(v) {
		m := mv.Mapping("paths", "methods", "headers")
		match := policy.Match{Methods: d.readMethods(m.Get("methods"))}
		for _, p := range d.nonEmpty(m.Get("paths")) {
			pm := p.Mapping("type", "value")
			value := pm.Need("value")
			kind := map[string]policy.MatchType{"prefix": policy.Prefix, "exact": policy.Exact, "regex": policy.Regexp}[pm.Get("type").OneOf("prefix", "exact", "regex")]
			if s := value.Text(); s != "" {
				if path, err := policy.NewPathMatch(kind, s); err != nil {
					value.Bad(err.Error(), "")
				} else {
					match.Paths = append(match.Paths, path)
				}
			} else if value.Present() {
				value.Bad("is empty", "")
			}
		}
		for _, h := range d.nonEmpty(m.Get("headers")) {
			hm := h.Mapping("name", "value", "type")
			kind := map[string]policy.MatchType{"exact": policy.Exact, "regex": policy.Regexp}[hm.Get("type").OneOf("exact", "regex")]
			name, value := hm.Need("name"), hm.Need("value")
			if !name.Present() || !value.Present() {
				continue
			}
			if header, err := policy.NewHeaderMatch(kind, name.Text(), value.Text()); err != nil {
				h.Bad(err.Error(), "")
			} else {
				match.Headers = append(match.Headers, header)
			}
		}
		if len(match.Paths)+len(match.Methods)+len(match.Headers) == 0 {
			all = true
			if d != BotBottle && mv.IsEmpty() {
				mv.Bad("matches every request", "leave it out, or name paths, methods or headers")
			}
		}
		out = append(out, match)
	}
	if all {
		return nil
	}
	return out
}

// readMethods reads methods in any case. A method that is none is not let through
// unseen: it would be a condition that no request meets.
func (d Dialect) readMethods(v document.Value) []string {
	var out []string
	for _, e := range d.nonEmpty(v) {
		s := strings.ToUpper(e.Text())
		switch {
		case s == "" && !e.IsEmptyText():
		case s == "CONNECT":
			e.Bad("CONNECT is always refused", "")
		case !slices.Contains(methods, s):
			advice := "known: " + strings.Join(methods, ", ")
			if near := document.Nearest(s, methods); near != "" {
				advice = "did you mean " + near + "?"
			}
			e.Bad(fmt.Sprintf("%.40q is no method", s), advice)
		case slices.Contains(out, s):
			e.Bad("given twice", "")
		default:
			out = append(out, s)
		}
	}
	return out
}

// methods lists the methods that a route may name: those of IANA's registry but CONNECT,
// and two that servers are known to take (LIST, PURGE).
var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE",
	"ACL", "BASELINE-CONTROL", "BIND", "CHECKIN", "CHECKOUT", "COPY", "LABEL", "LINK", "LIST", "LOCK", "MERGE", "MKACTIVITY", "MKCALENDAR",
	"MKCOL", "MKREDIRECTREF", "MKWORKSPACE", "MOVE", "ORDERPATCH", "PROPFIND", "PROPPATCH", "PURGE", "QUERY", "REBIND", "REPORT", "SEARCH",
	"UNBIND", "UNCHECKOUT", "UNLINK", "UNLOCK", "UPDATE", "UPDATEREDIRECTREF", "VERSION-CONTROL"}

// nonEmpty returns a list. In carboy's files an empty one is an error: one reader takes
// it for everything, and another for nothing.
func (d Dialect) nonEmpty(v document.Value) []document.Value {
	l := v.List()
	if v.IsList() && len(l) == 0 && d != BotBottle {
		v.Bad("an empty list would match nothing", "leave it out to match everything")
	}
	return l
}

func readCredential(m document.Mapping) policy.Credential {
	scheme, env, name := m.Get("auth_scheme"), m.Get("token_env"), m.Get("credential")
	field, insecure := m.Get("auth_field"), m.Get("insecure")
	flow := m.Get("oauth")
	if flow.Present() {
		return readOAuth(m, flow)
	}
	if !env.Present() && !name.Present() {
		for _, v := range []document.Value{scheme, field, flow, insecure} {
			if v.Present() {
				v.Bad("there is no credential that it could be about", "name its variable with token_env")
			}
		}
		return policy.Credential{}
	}
	if env.Present() && name.Present() {
		name.Bad("token_env and credential are both given", "keep one")
	}
	c := policy.Credential{
		Scheme: policy.Scheme(scheme.OneOfFold(Schemes...)), Env: env.Text(), Name: name.Text(),
		Field: field.Text(), Insecure: insecure.Bool(false),
	}
	if c.Scheme == "oauth2" {
		scheme.Bad("oauth2 needs oauth: {token_url: …, client_id: …}", "")
	}
	checkEnv(env)
	needs := c.Scheme == "header" || c.Scheme == "query"
	switch {
	case needs && c.Field == "":
		scheme.Bad(string(c.Scheme)+" needs auth_field, the name of the "+map[policy.Scheme]string{"header": "header", "query": "parameter"}[c.Scheme], "")
	case !needs && field.Present():
		field.Bad("only header and query have a field", "")
	}
	return c
}

// checkEnv reports a name that is not one of an environment variable.
func checkEnv(env document.Value) {
	if env.Present() && env.Text() != "" && !envName().MatchString(env.Text()) {
		// It may be the value itself, so the message must not repeat it.
		env.Bad("this is no name of an environment variable", "if it is the value itself: put that into a variable, and the variable's name here")
	}
}

// readOAuth reads a credential of the scheme oauth2. Its refresh token is in the
// variable that token_env names, or in a file.
func readOAuth(m document.Mapping, flow document.Value) policy.Credential {
	scheme, env := m.Get("auth_scheme"), m.Get("token_env")
	f := flow.Mapping("token_url", "client_id", "client_secret_env", "refresh_token_file", "scopes", "client_auth")
	url, id, file := f.Need("token_url"), f.Need("client_id"), f.Get("refresh_token_file")
	c := policy.Credential{Scheme: "oauth2", Env: env.Text(), Insecure: m.Get("insecure").Bool(false)}
	c.OAuth = policy.OAuth{
		TokenURL: url.Text(), ClientID: id.Text(), SecretEnv: f.Get("client_secret_env").Text(), File: file.Text(),
		InBody: f.Get("client_auth").OneOf("basic", "body") == "body",
	}
	if !scheme.Present() || !strings.EqualFold(scheme.Text(), "oauth2") {
		flow.Bad("is about auth_scheme: oauth2", "")
	}
	for _, v := range []document.Value{m.Get("credential"), m.Get("auth_field")} {
		if v.Present() {
			v.Bad("oauth2 does not have it", "")
		}
	}
	checkEnv(env)
	checkEnv(f.Get("client_secret_env"))
	switch {
	case env.Present() == file.Present():
		flow.Bad("needs the refresh token: in the variable that token_env names, or in refresh_token_file", "one of them")
	case file.Present() && c.OAuth.File != "" && !strings.HasPrefix(c.OAuth.File, "/") && !strings.HasPrefix(c.OAuth.File, "~/"):
		file.Bad("is not an absolute path", "write /… or ~/…")
	}
	if c.OAuth.TokenURL != "" {
		if err := credential.CheckTokenURL(c.OAuth.TokenURL); err != nil {
			url.Bad(strings.TrimPrefix(err.Error(), "token_url "), "tokens are sent there: https://…, without user, query and fragment")
		}
	}
	if id.Present() && c.OAuth.ClientID == "" {
		id.Bad("is empty", "")
	}
	var scopes []string
	if sv := f.Get("scopes"); sv.Present() {
		for _, v := range Carboy.nonEmpty(sv) {
			if s := v.Text(); s != "" && strings.Trim(s, scopeBytes) != "" {
				v.Bad("is no scope", "one scope without spaces for each entry")
			} else {
				scopes = append(scopes, s)
			}
		}
	}
	c.OAuth.Scopes = strings.Join(scopes, " ")
	return c
}

// scopeBytes are the characters of RFC 6749 section 3.3.
const scopeBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'()*+,-./:;<=>?@[]^_`{|}~"

var envName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`) })

// readNames reads names of headers, parameters or fields.
func readNames(v document.Value) (out []string) {
	if !v.Present() {
		return nil
	}
	for _, e := range Carboy.nonEmpty(v) {
		switch s := e.Text(); {
		case s == "":
		case len(s) > 100 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
			e.Bad("is no name of a header, parameter or field", "")
		case slices.Contains(out, s):
			e.Bad("given twice", "")
		default:
			out = append(out, s)
		}
	}
	return out
}

func readUpstream(v document.Value) policy.Upstream {
	if v.Text() == "" {
		return policy.Upstream{}
	}
	u, err := policy.ParseUpstream(v.Text())
	if err != nil {
		v.Bad(err.Error(), "write host:port, or http://host:port")
	}
	return u
}

func (d Dialect) readScan(v document.Value) policy.Scan {
	keys := []string{"outbound_detectors", "inbound_detectors", "outbound_on_match"}
	if d != BotBottle {
		keys = append(keys, "inbound_on_match")
	}
	m := v.Mapping(keys...)
	var s policy.Scan
	if out := m.Get("outbound_detectors"); out.Present() {
		on := d.detectors(out, "token_patterns", "known_secrets", "entropy")
		s.NoTokens, s.NoSecrets, s.Entropy = !on["token_patterns"], !on["known_secrets"], on["entropy"]
		if len(on) == 0 && m.Get("outbound_on_match").Present() && d != BotBottle {
			m.Get("outbound_on_match").Bad("nothing is looked for", "")
		}
	}
	if in := m.Get("inbound_detectors"); in.Present() {
		s.NoInjection = !d.detectors(in, "naive_injection_detection")["naive_injection_detection"]
	}
	switch m.Get("outbound_on_match").OneOf("supervise", "block", "redact") {
	case "block":
		s.OnMatch = policy.Block
	case "redact":
		s.OnMatch = policy.Redact
	}
	if on := m.Get("inbound_on_match"); on.Present() {
		if s.OnInjection = policy.BlockIncoming; on.OneOf("block", "report") == "report" {
			s.OnInjection = policy.ReportIncoming
		}
		if s.NoInjection {
			on.Bad("nothing is looked for", "")
		}
	}
	return s
}

// detectors reads false, or a list of these names.
func (d Dialect) detectors(v document.Value, names ...string) map[string]bool {
	on := map[string]bool{}
	if v.IsFalse() {
		return on
	}
	if v.IsEmpty() && v.IsList() && d != BotBottle {
		v.Bad("an empty list would look for nothing", "write false if that is meant")
	}
	for _, e := range v.List() {
		s := e.Text()
		switch {
		case s == "":
		case !slices.Contains(names, s):
			advice := "known: " + strings.Join(names, ", ")
			if near := document.Nearest(s, names); near != "" {
				advice = "did you mean " + near + "?"
			}
			e.Bad(fmt.Sprintf("unknown detector %.40q", s), advice)
		case on[s]:
			e.Bad("given twice", "")
		default:
			on[s] = true
		}
	}
	return on
}

func readCaps(v document.Value) policy.Caps {
	m := v.Mapping("bytes_out", "bytes_in", "requests_per_minute")
	return policy.Caps{
		BytesOut:          m.Get("bytes_out").Int(0, 1, math.MaxInt64),
		BytesIn:           m.Get("bytes_in").Int(0, 1, math.MaxInt64),
		RequestsPerMinute: m.Get("requests_per_minute").Int(0, 1, 1_000_000),
	}
}
