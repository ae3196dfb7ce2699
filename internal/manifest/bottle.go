package manifest

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/scan"
	"github.com/carboy/carboy/internal/secret"
)

// The keys of manifests; the schemas have the same, which a test holds them to.
var (
	bottleKeys = []string{"extends", "env", "agent_provider", "git-gate", "egress", "services", "supervise", "limits", "workspace", "backend", "isolation"}
	agentKeys  = []string{"bottle", "skills", "git-gate", "name", "description", "model", "color", "tools", "memory"}
	vendorKeys = agentKeys[3:]
	repoKeys   = []string{"url", "identity", "host_key", "key", "token_env", "token_user", "aliases"}
	limitKeys  = []string{"memory", "pids", "disk", "cpus", "timeout", "output", "egress_bytes", "approval"}
)

// keyProviders lists the sources of deploy keys.
var keyProviders = []string{"static", "gitea", "github", "gitlab"}

// gone maps keys that bottles once had to their replacements.
var gone = map[string]string{
	"runtime":  "it is backend: NAME now (or carboy start --backend NAME), and the image with agent_provider.image or dockerfile",
	"ssh":      "keys and hosts of repositories are git-gate.repos.NAME: {url, identity, host_key}",
	"git":      "repositories are git-gate.repos.NAME: {url, identity, host_key}",
	"git_user": "it is git-gate.user: {name, email} now",
}

// notAgents lists the keys by which an agent would widen its bottle.
var notAgents = func() map[string]string {
	m := map[string]string{}
	for k, v := range gone {
		m[k] = v
	}
	for _, k := range bottleKeys {
		if k != "git-gate" {
			m[k] = "it belongs into a bottle: an agent chooses one (bottle: NAME) and can't widen it"
		}
	}
	return m
}()

// reader reads one file.
type reader struct {
	s *Set
	k kind
}

// readBottle reads a bottle's file.
func (s *Set) readBottle(f *found) (*Bottle, error) {
	front, _, _, err := split(f.path, f.text)
	if err != nil {
		return nil, err
	}
	d, root, err := document.Parse(f.path, front)
	if err != nil {
		return nil, err
	}
	r := &reader{s, f.kind}
	m := root.MappingWithout(gone, bottleKeys...)
	services := r.services(m.Get("services"))
	own := services.values()
	b := &Bottle{
		Extends: r.names(m.Get("extends")),
		Env: r.variables(m.Get("env"), func(name, value string) string {
			if own[value] {
				return "" // it opens a service, and nothing else
			}
			return name
		}),
		Services: services,
		Provider: r.provider(m.Get("agent_provider")),
		Git:      r.git(m.Get("git-gate")),
		Egress:   r.egress(m.Get("egress")),
		Limits:   r.limits(m.Get("limits"), limitKeys),
	}
	b.Supervise = said(m.Get("supervise"), m.Get("supervise").Bool(true))
	if w := m.Get("workspace"); w.Present() {
		b.Workspace = said(w, r.word(w, []string{"overlay", "copy", "bind", "none"}))
	}
	if v := m.Get("backend"); v.Present() {
		b.Backend = said(v, r.word(v, Backends))
	}
	if v := m.Get("isolation"); v.Present() {
		b.Isolation = said(v, r.word(v, Isolations))
	}
	return b, d.Err()
}

// word reads one of some words, and suggests the nearest in its error.
func (r *reader) word(v document.Value, words []string) string {
	s := v.Text()
	for _, w := range words {
		if s == w {
			return s
		}
	}
	if s != "" {
		advice := "known: " + strings.Join(words, ", ")
		if near := document.Nearest(s, words); near != "" {
			advice = "did you mean " + near + "? (" + advice + ")"
		}
		v.Bad(fmt.Sprintf("%.40q is none of them", s), advice)
	} else if v.Present() {
		v.Bad("is empty", "known: "+strings.Join(words, ", "))
	}
	return words[0]
}

// text reads one line that is not empty.
func (r *reader) text(v document.Value) Value[string] {
	s := v.Text()
	switch {
	case v.Present() && s == "":
		v.Bad("is empty", "leave it out, or say something")
	case strings.ContainsAny(s, "\r\n\x00"):
		v.Bad("has a line end in it", "write it in one line")
	}
	return said(v, s)
}

func (r *reader) args(v document.Value) Value[[]string] {
	var out []string
	hidden := len(r.s.hidden)
	for _, e := range v.List() {
		s := e.Text()
		if strings.ContainsRune(s, 0) {
			e.Bad("holds a NUL byte", "")
		}
		r.noSecret(e, "", s, "let a route put it on (egress.routes: token_env), so that it stays outside")
		out = append(out, s)
	}
	if len(r.s.hidden) > hidden {
		r.s.hidden[originOf(v)] = true
	}
	return said(v, out)
}

// names reads one name or a list of them.
func (r *reader) names(v document.Value) []Value[string] {
	list := []document.Value{v}
	if v.IsList() {
		list = v.List()
	}
	var out []Value[string]
	for _, e := range list {
		s := e.Text()
		switch {
		case s == "":
			if e.Present() {
				e.Bad("is no name", "")
			}
			continue
		case !validName(s):
			e.Bad(fmt.Sprintf("%.40q is no name of a bottle", s), "names are [a-z][a-z0-9-]*, as their files are called")
			continue
		}
		for _, o := range out {
			if o.V == s {
				e.Bad(fmt.Sprintf("%q is given twice", s), "")
			}
		}
		out = append(out, said(e, s))
	}
	return out
}

var envForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`) })

// envName reads the name of a host's variable. An invalid name may be the secret
// value itself, so no message repeats it.
func (r *reader) envName(v document.Value) Value[string] {
	s := v.Text()
	if v.Present() && !envForm().MatchString(s) {
		v.Bad("this is no name of an environment variable", "if it is the value itself: put that into a variable, and the variable's name here")
	}
	return said(v, s)
}

// variables reads variables of commands. named returns the name by which a value may be told
// to be a secret; "": its form alone does.
func (r *reader) variables(v document.Value, named func(name, value string) string) map[string]Value[string] {
	read := v.Entries
	if r.k == legacy {
		read = v.EntriesOrEmpty
	}
	keys, values := read()
	if len(keys) == 0 {
		return nil
	}
	out := map[string]Value[string]{}
	for i, k := range keys {
		e := values[i]
		if !envForm().MatchString(k) {
			e.Bad(fmt.Sprintf("%.40q is no name of a variable", k), "")
			continue
		}
		s := e.Text()
		message, ask := Asked(s)
		if ask && strings.TrimSpace(message) == "" {
			e.Bad("asks without words", "write ?WHAT TO ASK")
		}
		if strings.ContainsRune(s, 0) {
			e.Bad("holds a NUL byte", "")
		}
		if e.Present() {
			r.noSecret(e, named(k, s), s, "let a route put it on (egress.routes: token_env), so that it stays outside")
		}
		out[k] = said(e, s)
	}
	return out
}

// tokens compiles the rules for keys and tokens on first use.
var tokens = sync.OnceValues(func() (*scan.Rules, error) { return scan.NewRules(scan.Config{Tokens: true}) })

// minToken is a lower bound for the length of tokens.
const minToken = 12

// LooksSecret says why a value must not come into a bottle: it has the form of a secret.
// It returns "" if it has not.
func LooksSecret(value string) string {
	if len(value) < minToken {
		return ""
	}
	rules, err := tokens()
	if err == nil {
		var hits []scan.Finding
		if hits, err = rules.Check(scan.Options{Place: "env"}, []byte(value)); len(hits) > 0 {
			return "looks like a secret (" + hits[0].Rule + "), and the command could read it"
		}
	}
	if err != nil {
		return "can't be looked at for secrets: " + err.Error()
	}
	return ""
}

// noSecret refuses a value that looks like a secret, or whose name suggests one,
// except where bot-bottle accepted it.
func (r *reader) noSecret(v document.Value, name, value, advice string) {
	what := LooksSecret(value)
	if secret.NameSays(name) {
		what = "its name says that it is a secret, and the command could read it"
	}
	switch {
	case what == "":
	case r.k == legacy:
		r.s.hidden[originOf(v)] = true
		r.s.warnAt(originOf(v).problem(what, advice))
	default:
		v.Bad(what, advice)
	}
}

func (r *reader) egress(v document.Value) (e Egress) {
	dialect := routes.Carboy
	if r.k == legacy {
		dialect = routes.BotBottle
	}
	f := routes.Read(v, dialect)
	e.behind = r.k == legacy
	at := func(p routes.Place, field string) Origin {
		return Origin{File: v.File(), Line: p.Line, Column: p.Column, Field: "egress." + field}
	}
	if f.LogAt.Line > 0 {
		e.Log = Value[int]{V: f.Log, From: at(f.LogAt, "log")}
	}
	for i, x := range f.Routes {
		route := Route{Route: x, From: at(f.At[i], fmt.Sprintf("routes[%d]", i)), id: x.Identity()}
		for _, port := range x.Ports() {
			route.ports = append(route.ports, fmt.Sprintf("%s %d", x.Host(), port))
		}
		e.Routes = append(e.Routes, route)
	}
	return e
}

const (
	// minMemory is the least memory of a bottle, in bytes.
	minMemory = 64 << 20
	// maxApproval is the longest that package supervise waits for an answer.
	maxApproval = 24 * time.Hour
)

// limits reads those of the limits that keys lists.
func (r *reader) limits(v document.Value, keys []string) (l Limits) {
	m := v.Mapping(keys...)
	size := func(key string) Value[int64] { return said(m.Get(key), m.Get(key).Size()) }
	l.Memory, l.Disk, l.Output, l.EgressBytes = size("memory"), size("disk"), size("output"), size("egress_bytes")
	if x := l.Memory.V; x != 0 && x < minMemory {
		m.Get("memory").Bad("is below the minimum of 64MiB", "")
	}
	l.Pids = said(m.Get("pids"), m.Get("pids").Int(0, 1, 1<<22))
	l.CPUs = said(m.Get("cpus"), m.Get("cpus").Int(0, 1, 4096))
	l.Timeout = said(m.Get("timeout"), m.Get("timeout").Duration())
	l.Approval = said(m.Get("approval"), m.Get("approval").Duration())
	if l.Approval.V > maxApproval {
		m.Get("approval").Bad("is longer than a day", "")
	}
	return l
}

func (r *reader) user(v document.Value) (u User) {
	m := v.Mapping("name", "email")
	u.Name, u.Email = r.text(m.Get("name")), r.text(m.Get("email"))
	for _, x := range []struct {
		v document.Value
		s string
	}{{m.Get("name"), u.Name.V}, {m.Get("email"), u.Email.V}} {
		if strings.ContainsAny(x.s, "<>") {
			x.v.Bad("has a character that git does not take there", "leave < and > out")
		}
	}
	return u
}

var repoName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`) })

func (r *reader) git(v document.Value) (g Git) {
	m := v.Mapping("user", "repos")
	g.User = r.user(m.Get("user"))
	rv := m.Get("repos")
	if rv.IsEmpty() && !rv.IsList() {
		g.Cleared = originOf(rv)
	}
	keys, values := rv.Entries()
	for i, name := range keys {
		e := values[i]
		if !repoName().MatchString(name) || strings.Contains(strings.ToLower(name), ".git") {
			e.Bad(fmt.Sprintf("%.40q is no name of a repository", name), "letters, digits, dots and dashes, without .git")
			continue
		}
		if e.IsEmpty() {
			e.Bad("says nothing", "name a url; repos: {} gives up all of the bottles before")
			continue
		}
		if g.Repos == nil {
			g.Repos = map[string]Repo{}
		}
		g.Repos[name] = r.repo(e)
	}
	return g
}

func (r *reader) repo(v document.Value) Repo {
	m := v.Mapping(repoKeys...)
	out := Repo{
		From: originOf(v), URL: r.text(m.Get("url")), Identity: r.text(m.Get("identity")), HostKey: r.text(m.Get("host_key")),
		TokenEnv: r.envName(m.Get("token_env")), TokenUser: r.text(m.Get("token_user")), legacy: r.k == legacy,
	}
	if av := m.Get("aliases"); av.Present() {
		out.Aliases = said(av, []string{})
		for _, e := range av.List() {
			if s := e.Text(); !hostForm().MatchString(s) {
				e.Bad(fmt.Sprintf("%.40q is no name of a host", s), "such as forge, or git.example.org")
			} else {
				out.Aliases.V = append(out.Aliases.V, s)
			}
		}
	}
	if u := out.TokenUser.V; strings.ContainsAny(u, ":\t ") {
		m.Get("token_user").Bad("has a character that no user's name has there", "leave it out unless the forge asks for one")
	}
	if u := m.Get("url"); u.Present() && out.URL.V != "" {
		if why := badGitURL(out.URL.V); why != "" {
			u.Bad(why, "such as ssh://git@host/path.git, git@host:path.git or https://host/path.git")
		}
	}
	k := m.Get("key")
	if k.Present() {
		if m.Get("identity").Present() {
			k.Bad("key and identity are both given", "keep one")
		}
		out.Key = said(k, r.key(k))
	}
	return out
}

func (r *reader) key(v document.Value) Key {
	m := v.Mapping("provider", "path", "forge_token_env", "api_url")
	pv := m.Need("provider")
	k := Key{Path: r.text(m.Get("path")).V, ForgeTokenEnv: r.envName(m.Get("forge_token_env")).V, APIURL: r.text(m.Get("api_url")).V}
	if !pv.Present() {
		return k
	}
	k.Provider = r.word(pv, keyProviders)
	static := k.Provider == "static"
	switch {
	case static && !m.Get("path").Present():
		v.Bad("a static key needs path, the private key's file", "")
	case !static && !m.Get("forge_token_env").Present():
		v.Bad("a key that a forge makes needs forge_token_env, the variable with its token", "")
	case static && m.Get("forge_token_env").Present():
		m.Get("forge_token_env").Bad("a static key needs no token", "leave it out")
	case static && m.Get("api_url").Present():
		m.Get("api_url").Bad("a static key asks no forge", "leave it out")
	case !static && m.Get("path").Present():
		m.Get("path").Bad("a key that a forge makes has no file", "leave it out")
	}
	if k.APIURL != "" {
		if u, err := url.Parse(k.APIURL); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil {
			m.Get("api_url").Bad("is no address of a forge", "such as https://gitea.example.org/api/v1")
		}
	}
	return k
}

var scpForm = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*@[A-Za-z0-9][A-Za-z0-9.-]*:[^-:][^:]*$`)
})

var hostForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$`) })

// badGitURL returns why s is not a valid upstream, or "". It does not repeat s, which
// may hold a password.
func badGitURL(s string) string {
	if strings.ContainsAny(s, " \t\r\n\x00\\") {
		return "has a character that no address has"
	}
	if scpForm().MatchString(s) {
		return ""
	}
	u, err := url.Parse(s)
	if err != nil {
		return "is no address of a repository"
	}
	if _, has := u.User.Password(); has {
		return "has a password in it"
	}
	switch u.Scheme {
	case "http", "git":
		return "is spoken to by nothing that says who answers"
	case "ssh", "https":
		if u.Host == "" || strings.HasPrefix(u.Host, "-") || strings.HasPrefix(u.User.Username(), "-") || strings.Trim(u.Path, "/") == "" {
			return "names no host or no repository"
		}
	case "file":
		if u.Host != "" || !path.IsAbs(u.Path) {
			return "is no absolute path"
		}
	default:
		return "is no address of a repository"
	}
	return ""
}
