package policy

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Options are the settings of a route besides its host and ports. The zero value
// allows all requests, adds no credential and inspects everything.
type Options struct {
	// Matches are alternatives; with none, every request matches.
	Matches []Match
	// Opaque passes TLS through after the checks of name and address. It excludes all
	// options that need the decrypted content.
	Opaque bool
	// Credential is added to requests; zero: none.
	Credential Credential
	// OwnCredentials are names of headers, parameters and fields of bodies in which the
	// agent may send credentials of its own beside it.
	OwnCredentials []string
	// Upstream is the server that requests are sent to; zero: the host itself.
	Upstream Upstream
	// GitFetch says whether git may fetch. Pushing over HTTPS is never allowed.
	GitFetch GitFetch
	Scan     Scan
	Caps     Caps
}

// GitFetch says whether git may fetch on a route.
type GitFetch uint8

// By default a route without any other option lets git fetch; see [Route.Fetches].
const (
	FetchByDefault GitFetch = iota
	FetchAllowed
	FetchRefused
)

// Scheme is the way a credential is written into a request.
type Scheme string

// Credential refers to a credential for a route's requests. It does not hold the
// value.
type Credential struct {
	Scheme Scheme
	// Env is the variable on the host that holds the value; Name is an entry of the
	// credential store. Exactly one of them is set.
	Env, Name string
	// Field is the header or query parameter, for schemes that need one.
	Field string
	// Insecure allows plain HTTP to a public address.
	Insecure bool
	// OAuth is set for the scheme that needs it.
	OAuth OAuth
}

// OAuth says where access tokens come from. The refresh token is in the variable Env
// of its Credential, or in File.
type OAuth struct {
	TokenURL, ClientID string
	SecretEnv          string // the variable with the client's secret; empty: none
	File               string // a path on the host
	Scopes             string // separated by spaces
	InBody             bool   // send the client's ID and secret in the body, not by Basic
}

// IsZero reports whether c refers to no credential.
func (c Credential) IsZero() bool { return c == Credential{} }

// Upstream is a server on the host's side.
type Upstream struct {
	Host  string // canonical name, or a literal
	Port  uint16
	Plain bool // HTTP instead of TLS
}

// IsZero reports whether requests go to the host itself.
func (u Upstream) IsZero() bool { return u == Upstream{} }

// String returns u in the syntax of ParseUpstream.
func (u Upstream) String() string {
	s := net.JoinHostPort(u.Host, strconv.Itoa(int(u.Port)))
	if u.Plain {
		s = "http://" + s
	}
	return s
}

// ParseUpstream parses HOST:PORT, which is reached by TLS, or http://HOST:PORT.
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
		case classMulticast, classBroadcast, classUnspecified, classReserved, ClassUnknown:
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

// Action is the reaction to a secret in outgoing data.
type Action uint8

// Actions. Ask means Block if nobody can be asked.
const (
	Ask Action = iota
	Block
	Redact
)

func (a Action) String() string { return [...]string{"supervise", "block", "redact"}[a] }

// Incoming is the reaction to injected instructions in incoming data.
type Incoming uint8

// Reactions to injected instructions. ByDefault means BlockIncoming, except where a model
// answers: see package agent.
const (
	ByDefault Incoming = iota
	BlockIncoming
	ReportIncoming
)

func (i Incoming) String() string { return [...]string{"", "block", "report"}[i] }

// Scan selects what is scanned for. The zero value is the default.
type Scan struct {
	NoTokens    bool // don't look for token patterns in outgoing data
	NoSecrets   bool // don't look for known secrets in outgoing data
	Entropy     bool // look for random strings in outgoing data
	NoInjection bool // don't look for injected instructions in incoming data
	OnMatch     Action
	OnInjection Incoming
}

// Caps limits the use of a route; a zero field means no limit.
type Caps struct {
	BytesOut, BytesIn int64 // over the bottle's life
	RequestsPerMinute int64
}

// WithOptions returns the route with these options. It fails if they contradict the
// route or each other.
func (r Route) WithOptions(o Options) (Route, error) {
	if r.protocol == ProtocolTCP || o.Opaque {
		what := "an opaque route"
		if r.protocol == ProtocolTCP {
			what = "a tcp route"
		}
		for _, need := range []struct {
			name string
			set  bool
		}{
			{"matches", len(o.Matches) > 0},
			{"credential", !o.Credential.IsZero()},
			{"git", o.GitFetch != FetchByDefault},
			{"upstream", !o.Upstream.IsZero()},
			{"requests_per_minute", o.Caps.RequestsPerMinute > 0},
			{"scan", o.Scan != Scan{}},
		} {
			if need.set {
				return Route{}, fmt.Errorf("%s can't have %s: what is spoken on it is not seen", what, need.name)
			}
		}
	}
	if len(o.OwnCredentials) > 0 && o.Credential.IsZero() {
		return Route{}, errors.New("own_credentials is about a route with a credential: others keep the agent's own")
	}
	r.opts = o
	return r, nil
}

// Plain reports whether the route has no options.
func (r Route) Plain() bool {
	o := r.opts
	return len(o.Matches) == 0 && !o.Opaque && o.Credential.IsZero() && o.Upstream.IsZero() && o.GitFetch == FetchByDefault && o.Scan == Scan{} && o.Caps == Caps{}
}

// Fetches reports whether git may fetch on the route. Who allows a host and says nothing
// more allows it as a whole; who says more says this too.
func (r Route) Fetches() bool { return r.opts.GitFetch == FetchAllowed || r.Plain() }

// Options returns the route's options.
func (r Route) Options() Options { return r.opts }
