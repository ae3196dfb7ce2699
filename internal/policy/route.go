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

// HostGateway is the name for servers on the host's own loopback, for a private route.
// 127.0.0.1 would not do: inside a bottle that is the bottle.
const HostGateway = "host.carboy.internal"

// Protocol is the protocol that a route allows.
type Protocol uint8

const (
	// ProtocolWeb allows TLS and HTTP/1, detected by the first bytes, and nothing
	// else.
	ProtocolWeb Protocol = iota
	// ProtocolTCP passes any bytes. Only the address and the caps are checked.
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

// defaultPorts are the ports of a route without a port: HTTPS, and HTTP for the
// redirects to it.
var defaultPorts = []uint16{443, 80}

// Route allows a host and some of its ports. The zero value matches nothing. Routes
// are immutable.
type Route struct {
	name     string     // canonical; for a wildcard the part after "*."
	wildcard bool       // matches one or more labels before name
	addr     netip.Addr // of a literal; name is then empty
	ports    []uint16
	private  bool
	protocol Protocol
	rule     string
	opts     Options
	order    int // index in its table
}

// ParseAllow parses HOST[:PORT][/PATH], the argument of `--allow`. HOST is a name (in
// any script, any case, with or without a trailing dot), a wildcard *.NAME that stands
// for one or more labels, an IPv4 address or an IPv6 address in brackets. Without PORT
// the route covers 443 and 80. It allows TLS and HTTP; HOST:PORT/tcp allows any
// protocol, without inspection. With PATH it allows only requests for that path and
// those below it, like a [Prefix].
//
// A literal address is allowed even if it is private, because it was named. A name
// that resolves to a private address needs [ParseAllowPrivate].
func ParseAllow(s string) (Route, error) { return parse("--allow", s, false) }

// ParseAllowPrivate parses HOST[:PORT][/PATH], the argument of `--allow-private`. It
// differs from [ParseAllow] in that the name may resolve to loopback, private,
// link-local and other addresses that are not public.
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

// splitPath splits the argument at the first slash. The host's parser reports errors
// in the rest.
func splitPath(s string) (host, path string) {
	if strings.Contains(s, "://") || strings.HasSuffix(s, tcpSuffix) && strings.Count(s, "/") == 1 { // the host's parser reports it
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

// AllowFlag returns the flag that would allow a request, or "" if none can be shown to
// a person as it is: name and path come from the bottle, and the flag is for a shell.
// It uses the leading path segments that consist of plain characters.
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
		if plain == "" || plain == tcpSuffix { // it would allow every path
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

// maxAdvised bounds the path in an advised flag, in bytes.
const maxAdvised = 120

const plainBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~%+="

// tcpSuffix marks a route that allows any protocol.
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

// howPrivate says how a flag and a file name what is private.
const howPrivate = "--allow-private, or private: true in a file"

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
		return Route{}, errors.New("the host's own loopback needs " + howPrivate)
	case name == "localhost" || strings.HasSuffix(name, ".localhost"):
		return Route{}, fmt.Errorf("inside a bottle %s is the bottle itself; for a server on this machine name %s:PORT, with %s", name, HostGateway, howPrivate)
	}
	return r, nil
}

// splitHostPort is stricter than net.SplitHostPort, and its errors explain common
// mistakes.
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
		return fmt.Errorf("inside a bottle %v is the bottle itself; for a server on this machine name %s:PORT, with %s", addr, HostGateway, howPrivate)
	case classMulticast, classBroadcast, classUnspecified, classReserved, ClassUnknown:
		return fmt.Errorf("%v is a %s address, which no connection can go to", addr, class)
	case classMetadata, classTranslated:
		if !private {
			return fmt.Errorf("%v is a %s address; it needs %s", addr, class, howPrivate)
		}
	}
	return nil
}

// checkWildcard refuses wildcards under which anybody can register a name, since they
// would allow the whole internet.
func checkWildcard(base string, private bool) error {
	suffix, icann := publicsuffix.PublicSuffix(base)
	if suffix != base {
		return nil
	}
	if icann || strings.Contains(base, ".") {
		return fmt.Errorf("anybody can own a name under %s; name the domain", base)
	}
	if !private {
		return fmt.Errorf("*.%s covers a whole top-level domain; a private one needs %s", base, howPrivate)
	}
	return nil
}

// WithProtocol returns the route with what may be spoken on it.
func (r Route) WithProtocol(p Protocol) Route {
	r.protocol = p
	return r
}

// WithRule returns the route with the text that refusals and receipts cite, such as a
// file and line.
func (r Route) WithRule(rule string) Route {
	r.rule = rule
	return r
}

// Rule returns the text that refusals and receipts cite.
func (r Route) Rule() string { return r.rule }

// Identity returns a key for the requests that the route covers: host, ports,
// protocol, conditions and upstream. Routes with the same key share one account of
// usage, whatever their other options and their order.
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

// Private reports whether the route allows addresses that are not public.
func (r Route) Private() bool { return r.private }

// Protocol returns the protocol that the route allows.
func (r Route) Protocol() Protocol { return r.protocol }

// Ports returns the ports of the route.
func (r Route) Ports() []uint16 { return slices.Clone(r.ports) }

// IsZero reports whether the route matches nothing.
func (r Route) IsZero() bool { return r.name == "" && !r.addr.IsValid() }

// String returns HOST:PORT, or HOST for the default ports, in canonical spelling, with
// the suffix /tcp if any protocol is allowed.
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
