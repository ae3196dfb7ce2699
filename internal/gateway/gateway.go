// Package gateway is the only way out of a bottle: the other end of its wire, where
// the policy is enforced. It is a network stack in this process; there is no host
// interface, no privileged helper and no firewall rule.
//
// Guarantees. A name that no route allows is not resolved, and a query carries nothing
// out: names are answered here, with synthetic addresses ([names]). A connection to
// such an address is accepted only if its name and port are allowed. It is passed on
// only if the TLS server name or the HTTP authority is the same name. The gateway
// dials it: to an address that it resolved and classified, never to one that the
// client chose. Literal addresses need a route of their own. UDP, ICMP and other
// protocols do not leave; each refusal is immediate. Memory per connection is bounded.
//
// A bottle without packets asks for its connections as of a proxy ([Gateway.ServeProxy]).
//
// Start reading at [Gateway.filter] (packets), [Gateway.answerDNS] (names),
// [Gateway.handleSYN] (connections), [Gateway.serveFlow] (protocols) and
// [Gateway.dial] (the way out).
package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/scan"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/wire"
)

// defaultRange is the default prefix of the synthetic addresses.
var defaultRange = netip.MustParsePrefix("198.18.0.0/15")

const nicID tcpip.NICID = 1

// Resolver finds the addresses of a name, outside the bottle. *net.Resolver
// is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Authority issues certificates that the bottle trusts.
type Authority interface {
	Leaf(name string) (*tls.Certificate, error)
}

// Credentials maps a route's reference to a credential to the credential.
type Credentials map[policy.Credential]*credential.Credential

// Config configures a gateway. Host is required; a nil Table refuses everything.
type Config struct {
	// Host is the host's end of the wire. The gateway takes ownership, also
	// when New fails.
	Host *os.File
	// Channels are the wire's shared-memory channels; the gateway takes ownership, also
	// when New fails. If zero, all connections come as packets.
	Channels wire.ChannelFiles
	// Wire is the configuration that both ends share; zero means wire.DefaultConfig.
	Wire wire.Config
	// Table holds the routes.
	Table *policy.Table
	// Range is the prefix of the synthetic addresses: IPv4, at most 22 bits. Zero
	// means DefaultRange.
	Range netip.Prefix
	// Limits bound the bottle; zero fields mean their defaults.
	Limits Limits
	// Resolver defaults to net.DefaultResolver.
	Resolver Resolver
	// Dial connects to an address that was already judged. It defaults to a
	// net.Dialer. It must not resolve names.
	Dial func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
	// Authority issues the certificates with which TLS is intercepted, except on
	// opaque routes. nil: no TLS is intercepted.
	Authority Authority
	// Credentials are added to requests by the routes that refer to them. A route
	// whose credential is missing refuses every request.
	Credentials Credentials
	// Secrets are looked for in everything that leaves, keyed by the name to report.
	// The caller keeps them alive.
	Secrets map[string]secret.Value
	// Roots verify the certificates of upstream servers; nil: the roots of the host.
	Roots *x509.CertPool
	// Inside maps [GitName] and [SuperviseName] to the handlers that answer in this
	// process, over HTTP on port 80. A handler that panics ends its connection. A name
	// without a handler does not exist in the bottle.
	Inside map[string]http.Handler
	// Services maps names to servers in other bottles; see Service.
	Services map[string]Service
	// Ask is asked where a route says supervise; nil: what would be asked about is
	// blocked. AskKey is the key of Held.Digest; empty: a random one.
	Ask    Asker
	AskKey []byte
	// Declared says that the routes come from a bottle's manifests: refusals name the
	// manifests' key and no flag.
	Declared bool
	// DigestAnswers enables Request.Digest.
	DigestAnswers bool
	// Observer receives events; it may be nil.
	Observer Observer
}

// Gateway serves one bottle. Create it with [New]; its methods are safe for concurrent
// use.
type Gateway struct {
	wire     wire.Config
	limits   Limits
	resolver Resolver
	connect  func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
	rules    atomic.Pointer[ruleSet]
	ledger   *ledger
	names    *names
	caps     *routeAccounts

	authority Authority
	roots     *x509.CertPool
	handlers  map[string]http.Handler // by their names in the bottle
	services  map[string]Service
	asking    *asking
	issued    issued
	digests   bool // compute the digests of answers
	declared  bool // Config.Declared

	// proxied says that the bottle's connections come as requests to a proxy.
	proxied      atomic.Bool
	link         *wire.Link
	channels     *wire.HostChannels // nil: none
	channelSlots chan struct{}      // semaphore of maxChannelGoroutines
	stack        *stack.Stack

	queries        atomic.Int64
	queryRate      *rate.Limiter
	icmpRate       *rate.Limiter
	answered       atomic.Uint64
	up, down       atomic.Int64
	memoryReleases atomic.Int64 // how often memory was returned to the system

	// ctx ends all work. It is a field because packets arrive without a context.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // every goroutine that the gateway started

	flows     flows
	web       *webServer
	closeOnce sync.Once
}

// errClosed is returned by the methods of a closed gateway.
var errClosed = errors.New("gateway: closed")

// errNoWayIn is returned for a bottle that has no packets.
var errNoWayIn = errors.New("gateway: this bottle is reached through a proxy only: none of its ports can be published")

// New starts a gateway. It serves the wire until [Gateway.Close].
func New(cfg Config) (*Gateway, error) {
	if cfg.Host == nil {
		_ = cfg.Channels.Close()
		return nil, errors.New("gateway: the wire's host end is missing")
	}
	g, err := newGateway(cfg)
	if err != nil {
		_ = cfg.Host.Close()
		_ = cfg.Channels.Close()
		return nil, err
	}
	if err := g.start(cfg.Host, cfg.Channels); err != nil {
		_ = cfg.Host.Close()
		_ = cfg.Channels.Close()
		return nil, err
	}
	return g, nil
}

func newGateway(cfg Config) (*Gateway, error) {
	if cfg.Wire == (wire.Config{}) {
		cfg.Wire = wire.DefaultConfig()
	}
	if err := cfg.Wire.Validate(); err != nil {
		return nil, err
	}
	if !cfg.Range.IsValid() {
		cfg.Range = defaultRange
	}
	if !cfg.Range.Addr().Is4() || cfg.Range.Bits() > 22 {
		return nil, fmt.Errorf("gateway: range %v: not an ipv4 prefix of at most 22 bits", cfg.Range)
	}
	if err := errors.Join(checkInside(cfg.Inside), checkServices(cfg.Services)); err != nil {
		return nil, err
	}
	g := &Gateway{
		wire:     cfg.Wire,
		limits:   cfg.Limits.withDefaults(),
		resolver: cfg.Resolver,
		connect:  cfg.Dial,
		ledger:   newLedger(cfg.Observer),
		icmpRate: rate.NewLimiter(500, 100),

		authority: cfg.Authority,
		digests:   cfg.DigestAnswers,
		declared:  cfg.Declared,
		roots:     cfg.Roots,
		handlers:  maps.Clone(cfg.Inside),
		asking:    newAsking(&cfg),
	}
	if g.resolver == nil {
		g.resolver = net.DefaultResolver
	}
	if g.connect == nil {
		g.connect = dialAddr
	}
	g.caps = newRouteAccounts(g.limits.Egress)
	g.caps.set(cfg.Table)
	g.names = newNames(cfg.Range, g.limits.Names)
	if err := g.addServices(maps.Clone(cfg.Services)); err != nil {
		return nil, err
	}
	g.queryRate = rate.NewLimiter(rate.Limit(g.limits.QueryRate), int(2*g.limits.QueryRate)+1)
	g.rules.Store(&ruleSet{table: cfg.Table, credentials: cfg.Credentials, detectors: newDetectors(cfg.Secrets, scan.NewCoverage(), scan.NewSpare(time.Now))})
	g.flows.init()
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g, nil
}

// start creates the stack and starts the goroutines. It cleans up when it fails.
func (g *Gateway) start(host *os.File, files wire.ChannelFiles) error {
	link, err := wire.NewLink(host, g.wire, g.filter)
	if err != nil {
		g.cancel()
		return err
	}
	g.link = link
	s, err := newStack()
	if err != nil {
		g.cancel()
		return err
	}
	g.stack = s
	g.web = newWebServer(g)
	g.rules.Load().out = g.web.newTransports()
	fwd := tcp.NewForwarder(s, receiveWindow, maxHandshakes, g.handleSYN)
	s.SetTransportProtocolHandler(tcp.ProtocolNumber, fwd.HandlePacket)
	if err := g.attach(); err != nil {
		g.cancel()
		g.link.Shutdown()
		s.Destroy()
		return err
	}
	if files.Mem != nil {
		if g.channels, err = wire.NewHostChannels(files, g.handleChannel); err != nil {
			g.cancel()
			g.link.Shutdown()
			s.Destroy()
			return err
		}
		g.channelSlots = make(chan struct{}, maxChannelGoroutines)
		g.wg.Go(g.channels.Listen)
	}
	g.wg.Go(g.web.serve)
	g.wg.Go(g.watchFlows)
	return nil
}

const (
	// receiveWindow bounds the unread bytes that a connection has in flight towards
	// the gateway, and so its memory.
	receiveWindow = 1 << 20
	// maxHandshakes bounds the connections that are being accepted.
	maxHandshakes = 512
)

func newStack() (*stack.Stack, error) {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	sack, moderate := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(true)
	recv := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: 512 << 10, Max: receiveWindow}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: 1 << 20, Max: 1 << 20}
	// The wire keeps the order of packets and never delivers an old one, so TIME-WAIT
	// protects from nothing. It would only delay a bottle that reuses the port of a
	// connection just ended, by seconds; at some hundred connections a second that is
	// soon.
	wait := tcpip.TCPTimeWaitTimeoutOption(0)
	// For the same reason a late acknowledgement never means a lost packet, as RACK
	// and its probes would assume.
	recovery := tcpip.TCPRecovery(0)
	for _, opt := range []tcpip.SettableTransportProtocolOption{&sack, &moderate, &recv, &send, &wait, &recovery} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, opt); err != nil {
			s.Destroy()
			return nil, fmt.Errorf("gateway: stack option %T: %s", opt, err)
		}
	}
	return s, nil
}

// attach connects the stack to the wire. Promiscuous mode accepts packets for every
// address; spoofing lets the stack answer from any.
func (g *Gateway) attach() error {
	s := g.stack
	for _, r := range []tcpip.Route{
		{Destination: header.IPv4EmptySubnet, NIC: nicID},
		{Destination: header.IPv6EmptySubnet, NIC: nicID},
	} {
		s.AddRoute(r)
	}
	if err := s.CreateNIC(nicID, g.link); err != nil {
		return fmt.Errorf("gateway: create card: %s", err)
	}
	if err := s.SetPromiscuousMode(nicID, true); err != nil {
		return fmt.Errorf("gateway: promiscuous mode: %s", err)
	}
	if err := s.SetSpoofing(nicID, true); err != nil {
		return fmt.Errorf("gateway: spoofing: %s", err)
	}
	for _, a := range []struct {
		addr  netip.Addr
		bits  int
		proto tcpip.NetworkProtocolNumber
	}{
		{g.wire.Gateway4, g.wire.Bottle4.Bits(), ipv4.ProtocolNumber},
		{g.wire.Gateway6, g.wire.Bottle6.Bits(), ipv6.ProtocolNumber},
	} {
		pa := tcpip.ProtocolAddress{
			Protocol:          a.proto,
			AddressWithPrefix: tcpip.AddressWithPrefix{Address: toTCPIP(a.addr), PrefixLen: a.bits},
		}
		if err := s.AddProtocolAddress(nicID, pa, stack.AddressProperties{}); err != nil {
			return fmt.Errorf("gateway: add address %v: %s", a.addr, err)
		}
	}
	return nil
}

// Serve blocks until ctx ends or the bottle's end of the wire is gone, then closes the
// gateway. In the second case, the normal end, it returns nil.
func (g *Gateway) Serve(ctx context.Context) error {
	defer g.Close()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-g.ctx.Done():
		return nil
	case <-g.link.Done():
		if err := g.link.Err(); err != nil && !errors.Is(err, wire.ErrPeerClosed) && g.ctx.Err() == nil {
			return err
		}
		return nil
	}
}

// Close ends every connection and waits for every goroutine. It may be called more
// than once. End the bottle first: an embedded kernel whose wire is gone uses a whole
// processor until it is killed (its dispatcher takes the end of the stream for
// packets).
func (g *Gateway) Close() error {
	g.closeOnce.Do(func() {
		g.cancel()
		g.link.Hurry()
		g.flows.close()
		g.web.close()
		g.stack.Close()
		g.link.Shutdown()
		g.abortHandshakes()
		if g.channels != nil {
			g.channels.Close()
		}
		g.wg.Wait()
		g.stack.Wait()
	})
	return nil
}

// abortHandshakes waits for connections to end. A handshake that was under way while
// the stack closed would otherwise wait two minutes for the bottle's answer.
func (g *Gateway) abortHandshakes() {
	done := make(chan struct{})
	go func() { g.flows.served.Wait(); close(done) }() // ends with the last connection
	for {
		select {
		case <-done:
			return
		case <-time.After(20 * time.Millisecond):
			for _, e := range g.stack.RegisteredEndpoints() {
				e.Abort()
			}
		}
	}
}

// ruleSet holds what SetRoutes replaces at once.
type ruleSet struct {
	table       *policy.Table
	credentials Credentials
	detectors   *detectors
	out         *transports
}

// table returns the current routes.
func (g *Gateway) table() *policy.Table { return g.rules.Load().table }

// SetRoutes replaces the routes, the credentials and the secrets to look for. Each
// decision sees either all old or all new values. Connections and requests that are
// under way are judged again, see reload.go.
func (g *Gateway) SetRoutes(t *policy.Table, c Credentials, secrets map[string]secret.Value) {
	g.caps.set(t)
	now := g.rules.Load()
	// A kept upstream connection may lead where only the old routes go.
	g.rules.Store(&ruleSet{t, c, newDetectors(secrets, now.detectors.coverage, now.detectors.spare), g.web.newTransports()})
	now.out.closeIdle()
	g.reconsider()
}

// Summary returns what has happened so far.
func (g *Gateway) Summary() Summary {
	s := g.ledger.summary()
	s.BytesUp, s.BytesDown = g.up.Load(), g.down.Load()
	st := g.link.Stats()
	s.Packets.In, s.Packets.Out, s.Packets.Lost = st.In.Load(), st.Out.Load(), st.WriteDropped.Load()
	s.Packets.Answered = g.answered.Load()
	return s
}

// DialBottle connects to a TCP server inside the bottle that listens on all addresses
// or on the bottle's own. The connection comes from the gateway's address. Published
// ports use it.
func (g *Gateway) DialBottle(ctx context.Context, port uint16) (net.Conn, error) {
	if g.ctx.Err() != nil {
		return nil, errClosed
	}
	if g.proxied.Load() {
		return nil, errNoWayIn
	}
	start := time.Now()
	c, err := g.dialInside(ctx, g.wire.Gateway4, g.wire.Bottle4.Addr(), port)
	if err != nil && ctx.Err() == nil {
		// The server may listen on IPv6 alone.
		if c6, err6 := g.dialInside(ctx, g.wire.Gateway6, g.wire.Bottle6.Addr(), port); err6 == nil {
			c, err = c6, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("gateway: dial port %d in bottle: %w", port, err)
	}
	return newPublished(g, c, port, start), nil
}

func (g *Gateway) dialInside(ctx context.Context, from, to netip.Addr, port uint16) (*gonet.TCPConn, error) {
	proto := ipv4.ProtocolNumber
	if to.Is6() {
		proto = ipv6.ProtocolNumber
	}
	return gonet.DialTCPWithBind(ctx, g.stack,
		tcpip.FullAddress{NIC: nicID, Addr: toTCPIP(from)},
		tcpip.FullAddress{NIC: nicID, Addr: toTCPIP(to), Port: port}, proto)
}

var _ http.Handler = (*webServer)(nil)
