package policy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// HostGateway is the name by which a bottle reaches servers on the host's own
// loopback, when a private route names it. 127.0.0.1 can't be: inside a bottle
// that is the bottle.
const HostGateway = "host.carboy.internal"

// Protocol is what may be spoken on a route.
type Protocol uint8

const (
	// ProtocolWeb is TLS or HTTP/1, told apart by the first bytes. Anything
	// else is refused.
	ProtocolWeb Protocol = iota
	// ProtocolTCP passes bytes unseen. Nothing but the address and the caps
	// is checked then.
	ProtocolTCP
)

func (p Protocol) String() string {
	switch p {
	case ProtocolWeb:
		return "web"
	case ProtocolTCP:
		return "tcp"
	default:
		return "unknown"
	}
}

// defaultPorts are those of a route that names none: HTTPS, and HTTP for the
// redirects to it.
var defaultPorts = []uint16{443, 80}

// Route is one permission: a host and its ports. The zero value matches
// nothing. Values are immutable.
type Route struct {
	name     string     // canonical name; for a wildcard what follows "*."
	wildcard bool       // matches one or more labels before name
	addr     netip.Addr // instead of name: a literal
	ports    []uint16
	private  bool
	protocol Protocol
	rule     string
	opts     Options
	order    int // among a table's routes
}

// ParseAllow reads HOST[:PORT][/PATH] as `--allow` takes it. HOST is a name (in any
// script, any case, with or without a trailing dot), a wildcard *.NAME that
// stands for one or more labels, an IPv4 address or an IPv6 address in
// brackets. Without PORT the route covers 443 and 80. TLS and HTTP may be
// spoken on it; HOST:PORT/tcp passes anything, unseen. With PATH only requests for
// it and what is below it are allowed, as by a [Prefix].
//
// A literal names its address, so it is permission for it even where it is
// private; a name that resolves to a private address needs
// [ParseAllowPrivate].
func ParseAllow(s string) (Route, error) { return parse("--allow", s, false) }

// ParseAllowPrivate reads HOST[:PORT][/PATH] as `--allow-private` takes it: like
// [ParseAllow], but the name may resolve to loopback, private, link-local and
// other addresses that are not public.
func ParseAllowPrivate(s string) (Route, error) { return parse("--allow-private", s, true) }

func parse(flag, s string, private bool) (Route, error) {
	host, path := splitPath(s)
	var m PathMatch
	r, err := parseRoute(host, private)
	if err == nil && path != "" {
		m, err = parsePath(path)
	}
	if err != nil {
		return Route{}, fmt.Errorf("%s %.120q: %w", flag, s, err)
	}
	r.rule = flag + " " + r.String()
	if m.value != "" {
		r.opts.Matches = []Match{{Paths: []PathMatch{m}}}
		r.rule += m.value
	}
	return r, nil
}

// splitPath takes the path off, which begins at the first slash. What is left for
// the host is judged there.
func splitPath(s string) (host, path string) {
	if strings.Contains(s, "://") || strings.HasSuffix(s, tcpSuffix) && strings.Count(s, "/") == 1 { // judged by the host's parser
		return s, ""
	}
	i := strings.IndexByte(s, '/')
	if i < 0 {
		return s, ""
	}
	return s[:i], s[i:]
}

func parsePath(path string) (PathMatch, error) {
	if strings.ContainsAny(path, "?#") {
		return PathMatch{}, errors.New("a path is given without query and fragment")
	}
	if strings.HasSuffix(path, "/*") || strings.HasSuffix(path, "/…") {
		return PathMatch{}, errors.New("a path covers what is below it; leave out the last segment")
	}
	switch first, _, _ := strings.Cut(path[1:], "/"); first {
	case "tcp", "udp":
		return PathMatch{}, fmt.Errorf("/%s is a protocol, and tcp the only one: HOST:PORT/tcp; a path that begins so is given in a route file", first)
	}
	return NewPathMatch(Prefix, path)
}

// AllowFlag is the flag that would allow a request, or nothing when there is none
// that a person could take as it stands: name and path come from inside, and are
// meant for a shell. Of the path the first segments are taken that are plain.
func AllowFlag(host string, port uint16, path string, private bool) string {
	flag := "--allow"
	if private {
		flag = "--allow-private"
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	host += ":" + strconv.Itoa(int(port))
	if path != "" {
		normal, err := NormalPath(path)
		if err != nil {
			return ""
		}
		plain := ""
		for seg := range strings.SplitSeq(strings.TrimPrefix(normal, "/"), "/") {
			if seg == "" || len(plain)+len(seg) > maxAdvised || strings.Trim(seg, plainBytes) != "" {
				break
			}
			plain += "/" + seg
		}
		if plain == "" || plain == tcpSuffix { // that would allow all
			return ""
		}
		host += plain
	}
	r, err := parse(flag, host, private)
	if err != nil || r.wildcard {
		return ""
	}
	return r.rule
}

// maxAdvised bounds the path of an advice, in bytes.
const maxAdvised = 120

const plainBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~%+="

// tcpSuffix asks for a route on which anything may be spoken.
const tcpSuffix = "/tcp"

func parseRoute(s string, private bool) (Route, error) {
	s, tcp := strings.CutSuffix(s, tcpSuffix)
	host, port, bracketed, err := splitHostPort(s)
	if err != nil {
		return Route{}, err
	}
	r := Route{ports: defaultPorts, private: private}
	if tcp {
		if port == "" {
			return Route{}, fmt.Errorf("a %s route needs a port", tcpSuffix)
		}
		r.protocol = ProtocolTCP
	}
	if port != "" {
		n, err := parsePort(port)
		if err != nil {
			return Route{}, err
		}
		r.ports = []uint16{n}
	}
	if addr, ok := parseLiteral(host, bracketed); ok {
		r.addr = addr
		r.private = true
		return r, checkLiteral(addr, private)
	}
	if bracketed {
		return Route{}, fmt.Errorf("%q in brackets is not an ipv6 address", host)
	}
	return parseName(r, host)
}

func parseName(r Route, host string) (Route, error) {
	base, wildcard := strings.CutPrefix(host, "*.")
	if strings.Contains(base, "*") {
		return Route{}, errors.New("a wildcard must be the whole first label, as in *.example.com")
	}
	name, err := CanonicalName(base)
	if err != nil {
		return Route{}, err
	}
	r.name, r.wildcard = name, wildcard
	if wildcard {
		return r, checkWildcard(name, r.private)
	}
	switch {
	case r.private:
		return r, nil
	case name == HostGateway:
		return Route{}, errors.New("the host's own loopback needs --allow-private")
	case name == "localhost" || strings.HasSuffix(name, ".localhost"):
		return Route{}, fmt.Errorf("inside a bottle %s is the bottle itself; for a server on this machine use --allow-private %s:PORT", name, HostGateway)
	}
	return r, nil
}

// splitHostPort is stricter than net.SplitHostPort: it explains what people
// type by mistake.
func splitHostPort(s string) (host, port string, bracketed bool, err error) {
	switch {
	case s == "":
		return "", "", false, errEmptyHost
	case strings.Contains(s, "://"):
		return "", "", false, errors.New("give HOST[:PORT][/PATH], not a URL")
	case strings.ContainsAny(s, "/?#@ \t\r\n\x00"):
		return "", "", false, errors.New("give HOST[:PORT], without query, user or spaces")
	case strings.Contains(s, "%"):
		return "", "", false, errors.New("zones and percent signs are not allowed")
	}
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return "", "", false, errors.New("bracket is not closed")
		}
		host, rest := s[1:end], s[end+1:]
		if rest == "" {
			return host, "", true, nil
		}
		port, ok := strings.CutPrefix(rest, ":")
		if !ok || port == "" {
			return "", "", false, errors.New("after the bracket only :PORT may follow")
		}
		return host, port, true, nil
	}
	switch strings.Count(s, ":") {
	case 0:
		return s, "", false, nil
	case 1:
		host, port, _ = strings.Cut(s, ":")
		if port == "" {
			return "", "", false, errors.New("port is empty")
		}
		return host, port, false, nil
	default:
		return "", "", false, errors.New("an ipv6 address needs brackets, as in [2001:db8::1]:443")
	}
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s != strconv.FormatUint(n, 10) {
		return 0, fmt.Errorf("port %.20q is not a number from 1 to 65535", s)
	}
	return uint16(n), nil
}

func checkLiteral(addr netip.Addr, private bool) error {
	if addr.Is4In6() {
		return fmt.Errorf("write the address as %v", addr.Unmap())
	}
	switch class := Classify(addr); class {
	case ClassLoopback:
		return fmt.Errorf("inside a bottle %v is the bottle itself; for a server on this machine use --allow-private %s:PORT", addr, HostGateway)
	case ClassMulticast, ClassBroadcast, ClassUnspecified, ClassReserved, ClassUnknown:
		return fmt.Errorf("%v is a %s address, which no connection can go to", addr, class)
	case ClassMetadata, ClassTranslated:
		if !private {
			return fmt.Errorf("%v is a %s address; it needs --allow-private", addr, class)
		}
	}
	return nil
}

// checkWildcard refuses wildcards under which anybody can register a name: to
// allow them is to allow the whole internet.
func checkWildcard(base string, private bool) error {
	suffix, icann := publicsuffix.PublicSuffix(base)
	if suffix != base {
		return nil
	}
	if icann || strings.Contains(base, ".") {
		return fmt.Errorf("anybody can own a name under %s; name the domain", base)
	}
	if !private {
		return fmt.Errorf("*.%s covers a whole top-level domain; for a private one use --allow-private", base)
	}
	return nil
}

// WithProtocol returns the route with what may be spoken on it.
func (r Route) WithProtocol(p Protocol) Route {
	r.protocol = p
	return r
}

// WithRule returns the route with the text by which refusals and receipts cite
// it, such as a file and line.
func (r Route) WithRule(rule string) Route {
	r.rule = rule
	return r
}

// Rule returns the text by which the route is cited.
func (r Route) Rule() string { return r.rule }

// Identity says what is asked of whom by the requests that the route is about: its
// host and ports, what is spoken, its conditions, and where they go. Two routes that
// agree about it are one route to whoever counts, however else they differ and
// wherever they stand.
func (r Route) Identity() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %v %v", r, r.ports, r.opts.Upstream)
	for _, m := range r.opts.Matches {
		fmt.Fprintf(&b, " | %q %q", m.Paths, m.Methods)
		for _, h := range m.Headers {
			fmt.Fprintf(&b, " %q=%q~%v", h.name, h.value, h.re != nil)
		}
	}
	return b.String()
}

// Private reports whether the route permits addresses that are not public.
func (r Route) Private() bool { return r.private }

// Protocol returns what may be spoken on the route.
func (r Route) Protocol() Protocol { return r.protocol }

// Ports returns the ports of the route.
func (r Route) Ports() []uint16 { return slices.Clone(r.ports) }

// IsZero reports whether the route matches nothing.
func (r Route) IsZero() bool { return r.name == "" && !r.addr.IsValid() }

// String returns HOST:PORT, or HOST for the default ports, in the canonical
// spelling and with /tcp when anything may be spoken.
func (r Route) String() string {
	host := r.Host()
	if len(r.ports) == 1 {
		host = net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(int(r.ports[0])))
	}
	if r.protocol == ProtocolTCP {
		host += tcpSuffix
	}
	return host
}

// Host returns the name, *.NAME or address, in the canonical spelling.
func (r Route) Host() string {
	switch {
	case r.addr.IsValid() && r.addr.Is6():
		return "[" + r.addr.String() + "]"
	case r.addr.IsValid():
		return r.addr.String()
	case r.wildcard:
		return "*." + r.name
	}
	return r.name
}
