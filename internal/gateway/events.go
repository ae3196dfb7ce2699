package gateway

import (
	"net/netip"
	"time"

	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/tokens"
)

// Reason says why something was refused or ended. The values are stable:
// receipts hold them. Those of package policy are reasons too.
type Reason string

// The gateway's own reasons.
const (
	ReasonOK              Reason = ""
	ReasonUnknownAddress  Reason = "unknown-address"   // a synthetic address that no name was given
	ReasonGatewayAddress  Reason = "gateway-address"   // the gateway itself serves nothing there
	ReasonUDP             Reason = "udp"               // UDP other than DNS
	ReasonICMP            Reason = "icmp"              // ICMP other than echo to the gateway
	ReasonIPProtocol      Reason = "ip-protocol"       // neither TCP, UDP nor ICMP
	ReasonServerFirst     Reason = "server-first"      // the client waits for the server: no web protocol
	ReasonSlowStart       Reason = "slow-start"        // the first bytes did not come in time
	ReasonProtocol        Reason = "protocol"          // first bytes are neither TLS nor HTTP/1
	ReasonSSH             Reason = "ssh"               // SSH on a route for the web
	ReasonHTTP2Plain      Reason = "http2-plain"       // HTTP/2 with prior knowledge
	ReasonHelloInvalid    Reason = "hello-invalid"     // not a valid ClientHello
	ReasonSNIAbsent       Reason = "sni-absent"        // no server name, or none to be had (ECH)
	ReasonSNIMismatch     Reason = "sni-mismatch"      // server name is not the name of the address
	ReasonECH             Reason = "ech"               // Encrypted ClientHello hides the name
	ReasonTLS             Reason = "tls"               // the handshake failed; see Detail
	ReasonUpstreamTLS     Reason = "upstream-tls"      // upstream's certificate or handshake is not good
	ReasonCredential      Reason = "credential"        // a credential could not be put on; see Detail
	ReasonReply           Reason = "reply"             // upstream's answer could not be looked at
	ReasonSecret          Reason = "secret"            // a secret was on its way out
	ReasonInjection       Reason = "injection"         // instructions to an agent were on their way in
	ReasonScan            Reason = "scan"              // what could not be scanned does not pass; see Detail
	ReasonHTTPMalformed   Reason = "http-malformed"    // ambiguous or invalid framing
	ReasonHostMismatch    Reason = "host-mismatch"     // authority is not the name of the address
	ReasonConnect         Reason = "connect-method"    // CONNECT
	ReasonGitPush         Reason = "git-push"          // git pushes by the git gate alone
	ReasonGitFetch        Reason = "git-fetch"         // the route does not permit git to fetch
	ReasonNotPublic       Reason = "not-public"        // the name resolved to addresses that are not public
	ReasonResolveFailed   Reason = "resolve-failed"    // the name does not resolve outside
	ReasonDialFailed      Reason = "dial-failed"       // no address accepted the connection
	ReasonReset           Reason = "reset"             // either side reset the connection
	ReasonClosing         Reason = "closing"           // the gateway closed
	ReasonLimitConns      Reason = "limit-connections" // see Limits.Conns
	ReasonLimitRequests   Reason = "limit-requests"    // see Limits.Requests
	ReasonLimitUp         Reason = "limit-bytes-up"    // see Limits.BytesUp
	ReasonLimitDown       Reason = "limit-bytes-down"  // see Limits.BytesDown
	ReasonLimitHost       Reason = "limit-bytes-host"  // see Limits.HostBytes
	ReasonLimitIdle       Reason = "limit-idle"        // see Limits.Idle
	ReasonLimitLifetime   Reason = "limit-lifetime"    // see Limits.Lifetime
	ReasonLimitNames      Reason = "limit-names"       // see Limits.Names
	ReasonLimitQueryRate  Reason = "limit-query-rate"  // see Limits.QueryRate
	ReasonLimitQueries    Reason = "limit-queries"     // see Limits.Queries
	ReasonLimitHead       Reason = "limit-head"        // see Limits.HeadBytes
	ReasonSpoofedSource   Reason = "spoofed-source"    // packet from another address than the bottle's
	ReasonFragment        Reason = "fragment"          // IP fragment
	ReasonMalformedPacket Reason = "malformed-packet"  // headers that do not hold together
	ReasonBadDestination  Reason = "bad-destination"   // multicast, broadcast, loopback, unspecified
)

// ReasonWebSocket refuses an upgrade or a frame that RFC 6455 does not allow.
const ReasonWebSocket Reason = "websocket"

// ReasonUpstream: what upstream did is no answer, or it gave up before one.
const ReasonUpstream Reason = "upstream-broken"

// The caps of a route, see [policy.Caps].
const (
	ReasonLimitRouteOut      Reason = "limit-route-bytes-out"
	ReasonLimitRouteIn       Reason = "limit-route-bytes-in"
	ReasonLimitRouteRequests Reason = "limit-route-requests"
)

// ReasonLimitEgress is the bottle's own cap, see Limits.Egress.
const ReasonLimitEgress Reason = "limit-egress"

// Event is one of [NameAsked], [Conn], [Request], [Found] and [LimitHit].
type Event interface{ event() }

// Observer receives events as they happen, from many goroutines at once. It
// must not block: it stands on the packet path. What repeats is reported at
// its 1st, 2nd, 4th, 8th … time, with the count.
//
// Names come from inside the bottle: hostile text, bounded in length, not
// escaped.
type Observer func(Event)

// NameAsked is a DNS question about a name.
type NameAsked struct {
	Name    string // at most 253 bytes, in the presentation form of RFC 1035
	Type    string // A, AAAA, …
	Allowed bool
	Rule    string
	Reason  Reason
	Count   uint64 // times this name was asked for so far
}

// Conn is a connection that ended or was refused.
type Conn struct {
	Time     time.Time
	Name     string // the name its address stood for, or the literal
	Addr     netip.AddrPort
	Protocol string // tls (passed unseen), https, h2, http, websocket, tcp, dns, udp, icmp, publish; empty when nothing was sent
	Allowed  bool
	Rule     string
	Reason   Reason
	Detail   string // for people: what exactly did not fit
	Up, Down int64
	Requests int64 // HTTP requests served
	Duration time.Duration
	Upstream netip.AddrPort // the address that was dialled
	Count    uint64         // for refusals before a connection existed: times so far
}

// Request is an HTTP request that was answered, by upstream or with a refusal, or
// cut off. Its connection is a Conn, later.
type Request struct {
	Time    time.Time
	Name    string
	Port    uint16
	Version string // h1, h2
	Secure  bool
	Method  string
	Path    string // as it was written, without the query, bounded; hostile text
	Allowed bool
	Rule    string
	Reason  Reason
	Detail  string
	// Status is what the bottle was answered; 0 when it was cut off before.
	Status     int
	Credential string // the name of the one that was put on
	Up, Down   int64  // bytes of the bodies, as the bottle's connection carries them
	// Digest is the SHA-256 of the answer's body as the bottle had it, in hexadecimal
	// digits; empty without Config.DigestAnswers, and where none was answered.
	Digest string
	// Tokens is what upstream says a model took for the answer, where a credential was
	// put on; nil: it said nothing that is known. Nothing may be decided by it.
	Tokens   *tokens.Usage
	Duration time.Duration
}

// Found is something that a scanner found in what went out or came in. It never
// holds the value itself.
type Found struct {
	Time   time.Time
	Name   string // the host
	Port   uint16
	Method string
	Rule   string // the route
	// Inbound: in what came in, else in what went out.
	Inbound bool
	What    string // the rule of a token or phrase, known-secret, pieces-of-secret, high-entropy, unreadable
	Secret  string // the name of a known secret
	// Transform is how it was written: plain, base64, gzip > hex, …; Place where:
	// path, query, header X, body, trailer X, message.
	Transform, Place string
	Action           FoundAction
	Count            uint64 // times this was found so far
}

// FoundAction is what was done about it.
type FoundAction string

// The actions.
const (
	FoundBlocked  FoundAction = "blocked"
	FoundRedacted FoundAction = "redacted"
	FoundReported FoundAction = "reported" // it passed: no reason to block by itself
	FoundAllowed  FoundAction = "allowed"  // it passed: somebody was asked and allowed it
)

// LimitHit says that a limit ended or refused something.
type LimitHit struct {
	Limit Reason
	Name  string // the host it was about, if any
	Count uint64 // times so far
}

func (NameAsked) event() {}
func (Conn) event()      {}
func (Request) event()   {}
func (Found) event()     {}
func (LimitHit) event()  {}

func fromPolicy(r policy.Reason) Reason { return Reason(r) }
