package policy

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Options are what a route says beside its host and ports. The zero value is a
// route on which everything may be asked for, nothing is put on, and everything is
// inspected.
type Options struct {
	// Matches are alternatives; none: every request.
	Matches []Match
	// Opaque passes TLS through after the checks of name and address. Nothing
	// that needs the inside of it can be had then.
	Opaque bool
	// Credential is put on requests; the zero value is none.
	Credential Credential
	// Upstream is where the requests really go; the zero value: the host itself.
	Upstream Upstream
	// GitFetch permits git to fetch. Pushing over HTTPS is never permitted.
	GitFetch bool
	Scan     Scan
	Caps     Caps
}

// Scheme is how a credential stands in a request.
type Scheme string

// Credential names what is put on a route's requests. Its value is elsewhere.
type Credential struct {
	Scheme Scheme
	// Env is the variable on the host that has the value; Name is an entry of
	// the credential store. One of them.
	Env, Name string
	// Field is the header or query parameter of schemes that need one.
	Field string
	// Insecure permits plain HTTP to an address that is not private.
	Insecure bool
	// OAuth is of the scheme that needs it.
	OAuth OAuth
}

// OAuth says where access tokens come from. Env of its Credential, or File, has the
// refresh token.
type OAuth struct {
	TokenURL, ClientID string
	SecretEnv          string // the variable with the client's secret; empty: there is none
	File               string // a path on the host
	Scopes             string // between spaces
	InBody             bool   // the client names itself in the body, not by Basic
}

// IsZero reports whether there is none.
func (c Credential) IsZero() bool { return c == Credential{} }

// Upstream is a server on the host's side.
type Upstream struct {
	Host  string // canonical name, or a literal
	Port  uint16
	Plain bool // HTTP instead of TLS
}

// IsZero reports whether the host itself is meant.
func (u Upstream) IsZero() bool { return u == Upstream{} }

// String returns it as ParseUpstream reads it.
func (u Upstream) String() string {
	s := net.JoinHostPort(u.Host, strconv.Itoa(int(u.Port)))
	if u.Plain {
		s = "http://" + s
	}
	return s
}

// ParseUpstream reads HOST:PORT, which is spoken to by TLS, or http://HOST:PORT.
func ParseUpstream(s string) (Upstream, error) {
	rest, plain := strings.CutPrefix(s, "http://")
	if !plain {
		rest = strings.TrimPrefix(rest, "https://")
	}
	host, port, bracketed, err := splitHostPort(strings.TrimSuffix(rest, "/"))
	if err != nil {
		return Upstream{}, err
	}
	if port == "" {
		return Upstream{}, errors.New("needs a port")
	}
	n, err := parsePort(port)
	if err != nil {
		return Upstream{}, err
	}
	u := Upstream{Port: n, Plain: plain}
	if a, ok := parseLiteral(host, bracketed); ok {
		switch Classify(a) {
		case ClassMulticast, ClassBroadcast, ClassUnspecified, ClassReserved, ClassUnknown:
			return Upstream{}, fmt.Errorf("no connection can go to %v", a)
		}
		u.Host = a.String()
		return u, nil
	}
	if u.Host, err = CanonicalName(host); err != nil {
		return Upstream{}, err
	}
	return u, nil
}

// Action is what is done about a secret on its way out.
type Action uint8

// The actions. Ask is Block where nobody can be asked.
const (
	Ask Action = iota
	Block
	Redact
)

func (a Action) String() string { return [...]string{"supervise", "block", "redact"}[a] }

// Scan says what bytes are looked at for. The zero value is the default.
type Scan struct {
	NoTokens    bool // token patterns out
	NoSecrets   bool // known secrets out
	Entropy     bool // random-looking strings out
	NoInjection bool // phrases in
	OnMatch     Action
}

// Caps bound a route; zero fields do not.
type Caps struct {
	BytesOut, BytesIn int64 // bytes, over the bottle's life
	RequestsPerMinute int64
}

// WithOptions returns the route with these options, or an error when they can't
// be kept together.
func (r Route) WithOptions(o Options) (Route, error) {
	if r.protocol == ProtocolTCP || o.Opaque {
		what := "an opaque route"
		if r.protocol == ProtocolTCP {
			what = "a tcp route"
		}
		for need, has := range map[string]bool{
			"matches": len(o.Matches) > 0, "credential": !o.Credential.IsZero(), "git": o.GitFetch, "upstream": !o.Upstream.IsZero(),
			"requests_per_minute": o.Caps.RequestsPerMinute > 0, "scan": o.Scan != Scan{},
		} {
			if has {
				return Route{}, fmt.Errorf("%s can't have %s: what is spoken on it is not seen", what, need)
			}
		}
	}
	r.opts = o
	return r, nil
}

// Plain reports whether the route says nothing beside its host and ports.
func (r Route) Plain() bool {
	o := r.opts
	return len(o.Matches) == 0 && !o.Opaque && o.Credential.IsZero() && o.Upstream.IsZero() && !o.GitFetch && o.Scan == Scan{} && o.Caps == Caps{}
}

// Options returns what the route says beside its host and ports.
func (r Route) Options() Options { return r.opts }
