package gitgate

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"
)

// scheme is a transport to an upstream.
type scheme uint8

const (
	local scheme = iota + 1
	overSSH
	overHTTP
)

// address is a parsed URL.
type address struct {
	scheme scheme
	plain  bool   // http, not https
	user   string // for ssh
	host   string
	port   string // "" means the scheme's default
	path   string // as sent to the other side
}

// parseURL parses a URL in one of the forms of Repo.URL.
func parseURL(s string) (address, error) {
	switch {
	case s == "":
		return address{}, errors.New("no URL")
	case len(s) > 2048:
		return address{}, errors.New("a URL of more than 2048 bytes")
	case strings.ContainsFunc(s, func(r rune) bool { return r < 0x21 || r == 0x7f || r >= 0x80 }):
		return address{}, errors.New("a URL with a space, a new line, a control character or one that is not ASCII: write it as %20 and the like")
	case strings.HasPrefix(s, "/"):
		return localAddress(s)
	case !strings.Contains(s, "://"):
		return scpAddress(s)
	}
	u, err := url.Parse(s)
	if err != nil {
		return address{}, errors.New("not a URL") // the parser's error would repeat the URL
	}
	if u.RawQuery != "" || u.Fragment != "" || strings.HasSuffix(s, "?") || strings.HasSuffix(s, "#") {
		return address{}, errors.New("a URL with a query or a fragment")
	}
	if u.User != nil {
		if _, has := u.User.Password(); has {
			return address{}, errors.New("a URL with a password: name the variable that holds it instead")
		}
	}
	a := address{host: strings.ToLower(u.Hostname()), port: u.Port(), path: u.Path}
	switch u.Scheme {
	case "file":
		if u.Host != "" {
			return address{}, errors.New("a file URL with a host: write file:///path")
		}
		return localAddress(u.Path)
	case "ssh", "git+ssh", "ssh+git":
		a.scheme, a.user = overSSH, "git"
		if u.User != nil && u.User.Username() != "" {
			a.user = u.User.Username()
		}
		if strings.HasPrefix(a.path, "/~") {
			a.path = a.path[1:]
		}
	case "https", "http":
		a.scheme, a.plain = overHTTP, u.Scheme == "http"
		if u.User != nil {
			return address{}, errors.New("a URL with a user: https upstreams take a token, which is named apart")
		}
		if a.plain && !isLoopback(a.host) {
			return address{}, errors.New("http to another machine can be read and changed on the way: write https")
		}
		a.path = u.EscapedPath()
	default:
		return address{}, errors.New("the scheme is none of ssh, https and file")
	}
	return a, a.check()
}

func localAddress(p string) (address, error) {
	a := address{scheme: local, path: strings.TrimSuffix(p, "/")}
	if !path.IsAbs(a.path) || path.Clean(a.path) != a.path || a.path == "/" || strings.IndexByte(a.path, 0) >= 0 {
		return address{}, errors.New("a path that is not absolute and clean")
	}
	return a, nil
}

// scpAddress parses user@host:path.
func scpAddress(s string) (address, error) {
	where, p, ok := strings.Cut(s, ":")
	if strings.HasPrefix(s, "[") {
		where, p, ok = strings.Cut(s, "]:")
		where += "]"
	}
	if !ok || strings.Contains(where, "/") || strings.HasPrefix(p, ":") { // name::… would start a helper of git
		return address{}, errors.New("neither a URL, nor user@host:path, nor an absolute path")
	}
	a := address{scheme: overSSH, user: "git", path: p}
	if u, h, ok := strings.Cut(where, "@"); ok {
		a.user, where = u, h
	}
	a.host = strings.ToLower(strings.Trim(where, "[]"))
	return a, a.check()
}

func (a address) check() error {
	if a.host == "" || len(a.host) > 253 || a.host[0] == '-' || strings.ContainsFunc(a.host, func(r rune) bool {
		return r > 0x7f || !isAlnum(byte(r)) && !strings.ContainsRune(".-_:", r)
	}) {
		return errors.New("the host is not a name or an address")
	}
	if a.port != "" {
		if _, err := net.LookupPort("tcp", a.port); err != nil {
			return errors.New("the port is not a number")
		}
	}
	if a.scheme == overSSH && (a.user == "" || a.user[0] == '-' || strings.ContainsFunc(a.user, func(r rune) bool {
		return r > 0x7f || !isAlnum(byte(r)) && !strings.ContainsRune(".-_+", r)
	})) {
		return errors.New("the user name has characters that are not allowed")
	}
	p := strings.TrimPrefix(a.path, "/")
	if p == "" || p[0] == '-' || strings.IndexByte(a.path, 0) >= 0 || slices.ContainsFunc(strings.Split(p, "/"), func(s string) bool { return s == ".." }) {
		return errors.New("the path is empty, leads upward or begins with a hyphen")
	}
	if strings.ContainsFunc(a.path, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
		return errors.New("the path has control characters")
	}
	return nil
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// CheckURL returns an error if s cannot be the URL of a Repo.
func CheckURL(s string) error {
	_, err := parseURL(s)
	return err
}

// Rewrites returns the URL prefixes that mean r, for url.<gate>.insteadOf. They are the
// declared URL and the other forms of it over ssh, scp-like and https, with and without
// .git, user and port, at its host and each alias. git uses the longest prefix that
// matches.
func Rewrites(r Repo) []string {
	a, err := parseURL(r.URL)
	if err != nil {
		return nil
	}
	set := map[string]bool{}
	add := func(format string, args ...any) {
		s := fmt.Sprintf(format, args...)
		set[s] = true
		if short, ok := strings.CutSuffix(s, ".git"); ok {
			set[short] = true
		} else {
			set[s+".git"] = true
		}
	}
	add("%s", strings.TrimSuffix(r.URL, "/"))
	if a.scheme == local {
		add("file://%s", (&url.URL{Path: a.path}).EscapedPath())
		add("%s", a.path)
		return sorted(set)
	}
	p := strings.TrimSuffix(strings.TrimPrefix(a.path, "/"), "/")
	user := a.user
	if user == "" {
		user = "git"
	}
	for _, host := range append([]string{a.host}, r.Aliases...) {
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		ports := []string{"", ":22"}
		if a.scheme == overSSH && a.port != "" {
			ports = append(ports, ":"+a.port)
		}
		for _, port := range ports {
			add("ssh://%s@%s%s/%s", user, host, port, p)
			add("ssh://%s%s/%s", host, port, p)
			add("git+ssh://%s@%s%s/%s", user, host, port, p)
			add("ssh+git://%s@%s%s/%s", user, host, port, p)
		}
		add("%s@%s:%s", user, host, p)
		add("%s@%s:/%s", user, host, p)
		add("%s:%s", host, p)
		ports = []string{"", ":443"}
		if a.scheme == overHTTP && a.port != "" {
			ports = append(ports, ":"+a.port)
		}
		for _, port := range ports {
			add("https://%s%s/%s", host, port, p)
			add("https://git@%s%s/%s", host, port, p)
		}
		add("http://%s/%s", host, p)
		add("git://%s/%s", host, p)
	}
	return sorted(set)
}

func sorted(set map[string]bool) []string {
	out := make([]string, 0, len(set))
	for s := range set {
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}
