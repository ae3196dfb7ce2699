package gateway

import (
	"net/netip"
	"time"

	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/tokens"
)

// Reason says why something was refused or ended. The values are stable: receipts hold
// them. The reasons of package policy are reasons here too.
type Reason string

// The gateway's own reasons.
const (
	ReasonOK              Reason = ""
	reasonUnknownAddress  Reason = "unknown-address"   // a synthetic address that no name was given
	reasonGatewayAddress  Reason = "gateway-address"   // the gateway itself serves nothing there
	reasonUDP             Reason = "udp"               // UDP other than DNS
	reasonICMP            Reason = "icmp"              // ICMP other than echo to the gateway
	reasonIPProtocol      Reason = "ip-protocol"       // neither TCP, UDP nor ICMP
	reasonServerFirst     Reason = "server-first"      // the client waits for the server: no web protocol
	reasonSlowStart       Reason = "slow-start"        // the first bytes did not come in time
	reasonProtocol        Reason = "protocol"          // first bytes are neither TLS nor HTTP/1
	reasonSSH             Reason = "ssh"               // SSH on a route for the web
	reasonHTTP2Plain      Reason = "http2-plain"       // HTTP/2 with prior knowledge
	reasonHelloInvalid    Reason = "hello-invalid"     // not a valid ClientHello
	reasonSNIAbsent       Reason = "sni-absent"        // no server name, or none to be had (ECH)
	reasonSNIMismatch     Reason = "sni-mismatch"      // server name is not the name of the address
	reasonECH             Reason = "ech"               // Encrypted ClientHello hides the name
	reasonTLS             Reason = "tls"               // the handshake failed; see Detail
	reasonUpstreamTLS     Reason = "upstream-tls"      // upstream's certificate or handshake is not good
	reasonCredential      Reason = "credential"        // a credential could not be put on; see Detail
	reasonReply           Reason = "reply"             // upstream's answer could not be looked at
	reasonSecret          Reason = "secret"            // a secret was on its way out
	reasonInjection       Reason = "injection"         // instructions to an agent were on their way in
	reasonScan            Reason = "scan"              // what could not be scanned does not pass; see Detail
	ReasonHTTPMalformed   Reason = "http-malformed"    // ambiguous or invalid framing
	reasonHostMismatch    Reason = "host-mismatch"     // authority is not the name of the address
	reasonConnect         Reason = "connect-method"    // CONNECT inside a connection
	reasonProxy           Reason = "proxy-request"     // nothing that the proxy front serves; see Detail
	reasonGitPush         Reason = "git-push"          // git pushes by the git gate alone
	reasonGitFetch        Reason = "git-fetch"         // the route does not permit git to fetch
	reasonNotPublic       Reason = "not-public"        // the name resolved to addresses that are not public
	reasonResolveFailed   Reason = "resolve-failed"    // the name does not resolve outside
	reasonDialFailed      Reason = "dial-failed"       // no address accepted the connection
	reasonReset           Reason = "reset"             // either side reset the connection
	reasonClosing         Reason = "closing"           // the gateway closed
	reasonLimitConns      Reason = "limit-connections" // see Limits.Conns
	reasonLimitRequests   Reason = "limit-requests"    // see Limits.Requests
	reasonLimitUp         Reason = "limit-bytes-up"    // see Limits.BytesUp
	reasonLimitDown       Reason = "limit-bytes-down"  // see Limits.BytesDown
	reasonLimitHost       Reason = "limit-bytes-host"  // see Limits.HostBytes
	reasonLimitIdle       Reason = "limit-idle"        // see Limits.Idle
	reasonLimitLifetime   Reason = "limit-lifetime"    // see Limits.Lifetime
	reasonLimitNames      Reason = "limit-names"       // see Limits.Names
	reasonLimitQueryRate  Reason = "limit-query-rate"  // see Limits.QueryRate
	reasonLimitQueries    Reason = "limit-queries"     // see Limits.Queries
	ReasonLimitHead       Reason = "limit-head"        // see Limits.HeadBytes
	reasonSpoofedSource   Reason = "spoofed-source"    // packet from another address than the bottle's
	reasonFragment        Reason = "fragment"          // IP fragment
	reasonMalformedPacket Reason = "malformed-packet"  // headers that do not hold together
	reasonBadDestination  Reason = "bad-destination"   // multicast, broadcast, loopback, unspecified
)

// reasonWebSocket refuses an upgrade or a frame that RFC 6455 does not allow.
const reasonWebSocket Reason = "websocket"

// reasonUpstream says that upstream sent an invalid answer, or closed before it
// answered.
const reasonUpstream Reason = "upstream-broken"

// The caps of a route, see [policy.Caps].
const (
	reasonLimitRouteOut      Reason = "limit-route-bytes-out"
	reasonLimitRouteIn       Reason = "limit-route-bytes-in"
	reasonLimitRouteRequests Reason = "limit-route-requests"
)

// reasonLimitEgress is the bottle's own cap, see Limits.Egress.
const reasonLimitEgress Reason = "limit-egress"

// Event is one of [NameAsked], [Conn], [Request], [Found] and [LimitHit].
type Event interface{ event() }

// Observer receives events as they happen, from many goroutines at once. It must not
// block, because it is called on the packet path. A repeated event is reported at its
// 1st, 2nd, 4th, 8th … time, with the count.
//
// Names come from the bottle: they are hostile, bounded in length and not escaped.
type Observer func(Event)

// NameAsked is a DNS question about a name.
type NameAsked struct {
	Name    string // at most 253 bytes, in the presentation form of RFC 1035
	Type    string // A, AAAA, …
	Allowed bool
	Rule    string
	Reason  Reason
	Count   uint64 // how often this name was asked for so far
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
	Detail   string // for people: what exactly was wrong
	Up, Down int64
	Requests int64 // HTTP requests served
	Duration time.Duration
	Upstream netip.AddrPort // the address that was dialled
	Count    uint64         // for refusals before a connection existed: how often so far
}

// Request is an HTTP request that was answered, refused or cut off. Its connection
// follows later, as a Conn.
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
	// Status is the status of the answer that the bottle got; 0: none.
	Status     int
	Credential string // the name of the credential that was added
	Up, Down   int64  // bytes of the bodies, as the bottle's connection carries them
	// Digest is the SHA-256 of the answer's body as the bottle got it, in hexadecimal.
	// It is empty without Config.DigestAnswers and if there was no answer.
	Digest string
	// Tokens is the usage that upstream's answer reported for a model, where a
	// credential was added; nil: it reported none. Upstream may lie, so decide nothing
	// by it.
	Tokens   *tokens.Usage
	Duration time.Duration
}

// Found is a scanner's finding. It never holds the value itself.
type Found struct {
	Time   time.Time
	Name   string // the host
	Port   uint16
	Method string
	Rule   string // the route
	// Inbound says that it was found in an answer, not in a request.
	Inbound bool
	What    string // the rule of a token or phrase, known-secret, pieces-of-secret, high-entropy, unreadable
	Secret  string // the name of a known secret
	// Transform is the encoding of the value: plain, base64, gzip > hex, …
	// Place is its location: path, query, header X, body, trailer X, message.
	Transform, Place string
	Action           FoundAction
	Count            uint64 // how often this was found so far
}

// FoundAction is the reaction to a finding.
type FoundAction string

// The actions.
const (
	FoundBlocked  FoundAction = "blocked"
	FoundRedacted FoundAction = "redacted"
	FoundReported FoundAction = "reported" // it passed: the finding alone is no reason to block
	foundAllowed  FoundAction = "allowed"  // it passed: a person was asked and allowed it
)

// LimitHit says that a limit ended or refused something.
type LimitHit struct {
	Limit Reason
	Name  string // the host it was about, if any
	Count uint64 // how often so far
}

func (NameAsked) event() {}
func (Conn) event()      {}
func (Request) event()   {}
func (Found) event()     {}
func (LimitHit) event()  {}

func fromPolicy(r policy.Reason) Reason { return Reason(r) }
