package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/supervise"
)

// Bounds of the file's values.
const (
	maxList      = 200
	minPoll      = 10 * time.Second
	maxPoll      = time.Hour
	minWatchdog  = time.Minute
	maxWatchdog  = 24 * time.Hour
	maxSlots     = 64
	maxAttempts  = 3 // as many as carboy work makes before a person decides
	maxNamedPath = 4096
)

var (
	loginLike = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}(\[bot\])?$`) })
	partLike  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9._][A-Za-z0-9._-]{0,99}$`) })
	nameLike  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`) })
	labelLike = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9 ._/-]{0,38}:$`) })
	varLike   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`) })
)

// parser reads one file.
type parser struct {
	c    *Config
	env  func(string) string
	home string
	bad  []document.Problem // of variables
}

// Parse reads the text of an orchestrate.yaml; file is its name in errors. Where the text is
// silent, these variables count: FORGE_ORG (organisation), FORGE_GITEA_API (forge.api, and
// gitea as its provider), FORGE_OWNER and FORGE_REPO (a repository), and
// FORGE_WATCHDOG_TIMEOUT (watchdog: seconds, or a number with a unit such as 30m).
func Parse(file string, data []byte, env func(string) string) (*Config, error) {
	doc, top, err := document.Parse(file, data)
	if err != nil {
		return nil, err
	}
	p := &parser{c: &Config{File: file, From: map[string]string{}, Tokens: map[Role]Source{}, env: env}, env: env, home: env("HOME")}
	m := top.Mapping("forge", "organisation", "labels", "bots", "repositories", "tokens", "app", "webhooks", "poll", "watchdog", "slots", "attempts", "bundle_key", "people")
	p.forge(m)
	p.organisation(m.Get("organisation"))
	p.c.Labels = p.labels(m.Get("labels"))
	p.c.Bots = p.names(m.Get("bots"), loginLike(), "a login")
	p.repositories(m)
	p.credentials(m)
	p.webhooks(m.Get("webhooks"))
	p.c.Poll = p.between(m.Get("poll"), DefaultPoll, minPoll, maxPoll)
	p.watchdog(m.Get("watchdog"))
	p.c.Slots = int(m.Get("slots").Int(DefaultSlots, 1, maxSlots))
	p.people(m.Get("people"))
	p.c.BundleKey = p.file(m.Get("bundle_key"))
	p.c.Attempts = int(m.Get("attempts").Int(0, 1, maxAttempts))
	if err := doc.Err(); err != nil {
		return nil, document.Error(append(slices.Clone(err.(document.Error)), p.bad...))
	}
	if len(p.bad) > 0 {
		return nil, document.Error(p.bad)
	}
	return p.c, nil
}

// variable returns the value of a variable for a field on which the file is silent, and
// notes that.
func (p *parser) variable(v document.Value, field, name string) string {
	if v.Present() {
		return ""
	}
	s := strings.TrimSpace(p.env(name))
	if s != "" {
		p.c.From[field] = name
	}
	return s
}

// badVariable reports a variable that is not fit for its field.
func (p *parser) badVariable(name, field, what, advice string) {
	p.bad = append(p.bad, document.Problem{File: "the environment's " + name, Field: field, What: what, Advice: advice})
}

func (p *parser) forge(top document.Mapping) {
	v := top.Get("forge")
	m := v.Mapping("provider", "api", "login", "ca_file")
	api := m.Get("api")
	old := p.variable(api, "forge.api", "FORGE_GITEA_API")
	if !v.Present() {
		top.Need("forge")
		return
	}
	if provider := m.Get("provider"); provider.Present() || old == "" {
		p.c.Provider = m.Need("provider").OneOf("gitea", "github", "gitlab")
	} else {
		p.c.Provider, p.c.From["forge.provider"] = "gitea", "FORGE_GITEA_API"
	}
	if old == "" {
		m.Need("api")
		p.c.API = strings.TrimRight(api.Text(), "/")
		if why := badAPI(p.c.API); why != "" && api.Present() {
			api.Bad(why, "")
		}
	} else {
		p.c.API = strings.TrimRight(old, "/")
		if why := badAPI(old); why != "" {
			p.badVariable("FORGE_GITEA_API", "forge.api", why, "")
		} else if p.c.Provider != "gitea" {
			p.badVariable("FORGE_GITEA_API", "forge.api", "is the address of a Gitea, and forge.provider is "+p.c.Provider, "write forge.api into "+p.c.File)
		}
	}
	login := m.Need("login")
	if p.c.Login = login.Text(); login.Present() && !loginLike().MatchString(p.c.Login) {
		login.Bad("is no login", "the name of the robot's account at the forge")
	}
	p.c.CAFile = p.file(m.Get("ca_file"))
}

// badAPI returns why s is not the address of an API, or "".
func badAPI(s string) string {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return "is no address of a forge's API, such as https://gitea.example.org/api/v1"
	case u.Scheme == "http" && public(u.Hostname()):
		return "is plain HTTP to a public address, which would show the tokens: write https"
	}
	return ""
}

// public reports whether host is a literal address that is neither of this machine nor of a
// private network.
func public(host string) bool {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false // what it resolves to is checked when it is called
	}
	class := policy.Classify(ip)
	return class != policy.ClassLoopback && class != policy.ClassPrivate
}

func (p *parser) organisation(v document.Value) {
	switch old := p.variable(v, "organisation", "FORGE_ORG"); {
	case old != "":
		if p.c.Organisation = old; !partLike().MatchString(old) && !groupLike(p.c.Provider, old) {
			p.badVariable("FORGE_ORG", "organisation", "is no name of an organisation", "")
		}
	case v.Present():
		if p.c.Organisation = v.Text(); p.c.Organisation == "" || !partLike().MatchString(p.c.Organisation) && !groupLike(p.c.Provider, p.c.Organisation) {
			v.Bad("is no name of an organisation", "as it stands in its address at the forge")
		}
	default:
		p.c.Organisation = DefaultOrganisation
	}
}

// groupLike reports whether s is a path of groups, which GitLab has in place of
// organisations.
func groupLike(provider, s string) bool {
	if provider != "gitlab" {
		return false
	}
	return !slices.ContainsFunc(strings.Split(s, "/"), func(part string) bool { return !partLike().MatchString(part) })
}

func (p *parser) labels(v document.Value) []string {
	if !v.Present() {
		return []string{"carboy:", "bot-bottle:"}
	}
	out := v.Strings()
	if len(out) == 0 {
		v.Bad("is empty", "without a prefix no issue is ever worked on; leave it out for carboy: and bot-bottle:")
	}
	for _, s := range out {
		if !labelLike().MatchString(s) {
			v.Bad(fmt.Sprintf("has %.60q, which is no prefix of a label", s), "it ends with a colon, such as carboy:")
		}
		for _, o := range out {
			if o != s && strings.EqualFold(o, s) {
				v.Bad(fmt.Sprintf("has %.60q and %.60q, which forges take for the same", s, o), "")
			}
		}
	}
	return out
}

// names reads a list of names of one form.
func (p *parser) names(v document.Value, like *regexp.Regexp, what string) []string {
	out := v.Strings()
	if len(out) > maxList {
		v.Bad(fmt.Sprintf("has more than %d entries", maxList), "")
	}
	for _, s := range out {
		if !like.MatchString(s) {
			v.Bad(fmt.Sprintf("has %.60q, which is not %s", s, what), "")
		}
	}
	return out
}

func (p *parser) repositories(top document.Mapping) {
	v := top.Get("repositories")
	if !v.Present() {
		owner, name := strings.TrimSpace(p.env("FORGE_OWNER")), strings.TrimSpace(p.env("FORGE_REPO"))
		switch {
		case owner == "" && name == "":
			top.Need("repositories")
		case !partLike().MatchString(owner) || !partLike().MatchString(name):
			p.badVariable("FORGE_OWNER and FORGE_REPO", "repositories", "are not both a name", "or write repositories into "+p.c.File)
		default:
			p.c.From["repositories"] = "FORGE_OWNER and FORGE_REPO"
			p.c.Repositories = []Repository{{Owner: owner, Name: name, Base: DefaultBase}}
		}
		return
	}
	keys, values := v.Entries()
	if len(keys) == 0 {
		v.Bad("is empty", "name a repository, such as acme/web: {}")
	}
	if len(keys) > maxList {
		v.Bad(fmt.Sprintf("has more than %d entries", maxList), "")
		return
	}
	for i, key := range keys {
		p.repository(key, values[i])
	}
	slices.SortFunc(p.c.Repositories, func(a, b Repository) int { return strings.Compare(a.Path(), b.Path()) })
}

func (p *parser) repository(key string, v document.Value) {
	owner, name, ok := cutLast(key)
	parts := strings.Split(key, "/")
	if !ok || slices.ContainsFunc(parts, func(s string) bool { return !partLike().MatchString(s) || strings.Trim(s, ".") == "" }) || len(parts) > 2 && p.c.Provider != "gitlab" {
		v.Bad(fmt.Sprintf("%.100q is not the path of a repository", key), "its owner and its name, such as acme/web")
		return
	}
	if _, twice := p.c.Find(key); twice {
		v.Bad("is there twice, with letters of another case", "")
	}
	r := Repository{Owner: owner, Name: name}
	m := v.Mapping("base", "gate", "agents", "bottles")
	if r.Base = text(m.Get("base"), DefaultBase); badBranch(r.Base) {
		m.Get("base").Bad("is no name of a branch", "")
	}
	r.Gate = p.file(m.Get("gate"))
	r.Agents = p.names(m.Get("agents"), nameLike(), "the name of an agent")
	r.Bottles = p.names(m.Get("bottles"), nameLike(), "the name of a bottle")
	p.c.Repositories = append(p.c.Repositories, r)
}

func cutLast(s string) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, '/')
	if i < 0 {
		return "", "", false
	}
	return s[:i], s[i+1:], true
}

func text(v document.Value, absent string) string {
	if !v.Present() {
		return absent
	}
	return v.Text()
}

// badBranch reports whether git would not take s as the name of a branch.
func badBranch(s string) bool {
	return s == "" || len(s) > 200 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune("~^:?*[\\", r) }) ||
		strings.HasPrefix(s, "-") || strings.HasPrefix(s, "/") || strings.HasSuffix(s, "/") || strings.HasSuffix(s, ".") || strings.HasSuffix(s, ".lock") ||
		strings.Contains(s, "..") || strings.Contains(s, "//") || strings.Contains(s, "@{") || strings.Contains(s, "/.") || strings.HasPrefix(s, ".") || s == "@"
}

func (p *parser) webhooks(v document.Value) {
	if !v.Present() {
		return
	}
	m := v.Mapping("listen", "url", "secret")
	w := &Webhooks{Listen: text(m.Get("listen"), DefaultListen), URL: m.Get("url").Text()}
	if why := badListen(w.Listen); why != "" {
		m.Get("listen").Bad(why, "such as "+DefaultListen)
	}
	if u, err := url.Parse(w.URL); w.URL != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "") {
		m.Get("url").Bad("is no address", "where the forge sends its deliveries, such as https://carboy.example.org/hook")
	} else if w.URL != "" && u.Scheme == "http" && public(u.Hostname()) {
		m.Get("url").Bad("is plain HTTP to a public address", "let a proxy speak TLS there, and write https")
	}
	w.Secret = p.source(m.Need("secret"))
	p.c.Webhooks = w
}

// badListen returns why s is not an address to listen at, or "". Deliveries come over plain
// HTTP, so it must be of this machine or of a private network.
func badListen(s string) string {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "is not an address and a port"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "has no port from 1 to 65535"
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case host == "localhost":
		return ""
	case err != nil:
		return "is not a numeric address"
	case ip.IsUnspecified():
		return "would take plain HTTP from everywhere: name one address of this machine; a proxy that speaks TLS can stand before it"
	case public(host):
		return "is a public address, and what comes there is plain HTTP: listen at 127.0.0.1, behind a proxy that speaks TLS"
	}
	return ""
}

func (p *parser) between(v document.Value, absent, least, most time.Duration) time.Duration {
	if !v.Present() {
		return absent
	}
	d := v.Duration()
	if d != 0 && (d < least || d > most) {
		v.Bad(fmt.Sprintf("is not between %v and %v", least, most), "")
	}
	return d
}

func (p *parser) watchdog(v document.Value) {
	old := p.variable(v, "watchdog", "FORGE_WATCHDOG_TIMEOUT")
	if old == "" {
		p.c.Watchdog = p.between(v, DefaultWatchdog, minWatchdog, maxWatchdog)
		return
	}
	d, err := time.ParseDuration(old)
	if n, nerr := strconv.ParseUint(old, 10, 31); nerr == nil {
		d, err = time.Duration(n)*time.Second, nil
	}
	if p.c.Watchdog = d; err != nil || d < minWatchdog || d > maxWatchdog {
		p.badVariable("FORGE_WATCHDOG_TIMEOUT", "watchdog", fmt.Sprintf("is no time between %v and %v", minWatchdog, maxWatchdog), "a number of seconds, or such as 30m")
	}
}

func (p *parser) people(v document.Value) {
	m := v.Mapping("wait", "policy", "max_attempts")
	p.c.People = People{
		Wait: p.between(m.Get("wait"), 0, time.Second, supervise.MaxTimeout), Policy: p.file(m.Get("policy")),
		MaxAttempts: int(m.Get("max_attempts").Int(0, 1, maxAttempts+supervise.MaxMoreAttempts)),
	}
}

// file reads the path of a file on this machine; ~/ is the user's home.
func (p *parser) file(v document.Value) string {
	s := v.Text()
	if s == "" {
		if v.Present() && v.IsEmptyText() {
			v.Bad("is empty", "name a file in full, or with ~/")
		}
		return ""
	}
	if rest, ok := strings.CutPrefix(s, "~/"); ok && filepath.IsAbs(p.home) {
		s = filepath.Join(p.home, rest)
	}
	if !filepath.IsAbs(s) || len(s) > maxNamedPath {
		v.Bad("is not an absolute path", "name a file in full, or with ~/")
	}
	return s
}
