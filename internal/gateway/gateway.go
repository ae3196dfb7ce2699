// Package gateway is the other end of a bottle's wire: the only way out, and
// the place where the policy is kept. It is a network stack in this process;
// there is no host interface, no privileged helper and no firewall rule.
//
// What it promises. A name that no route allows is not resolved, and a query
// carries nothing out, since names are answered here with addresses of our own
// ([names]). A connection to such an address is accepted only when its name and
// port are allowed, is passed on only when the TLS server name or the HTTP
// authority says the same name, and is dialled by us: to an address that we
// resolved and classified, never to one that the client chose. Literal
// addresses need a route of their own. UDP, ICMP and other protocols do not
// leave; each refusal is immediate. Memory per connection is bounded.
//
// Start reading at [Gateway.filter] (packets), [Gateway.answerDNS] (names),
// [Gateway.handleSYN] (connections) and [Gateway.dial] (the way out). The next
// layers, TLS interception, credentials and scanning, belong between
// [Gateway.serveFlow] and [Gateway.dial].
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

// DefaultRange is where synthetic addresses come from.
var DefaultRange = netip.MustParsePrefix("198.18.0.0/15")

const nicID tcpip.NICID = 1

// Resolver finds the addresses of a name, outside the bottle. *net.Resolver
// is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Authority makes a certificate for a name, or a literal, that the bottle trusts.
type Authority interface {
	Leaf(name string) (*tls.Certificate, error)
}

// Credentials are by what a route says of its own.
type Credentials map[policy.Credential]*credential.Credential

// Config is what a gateway needs. Host is required; a nil Table refuses
// everything.
type Config struct {
	// Host is the host's end of the wire. The gateway takes ownership, also
	// when New fails.
	Host *os.File
	// Lanes are the wire's fast part; the gateway takes ownership, also when
	// New fails. The zero value: all connections come as packets.
	Lanes wire.LaneFiles
	// Wire is what both ends agree about; zero means wire.DefaultConfig.
	Wire wire.Config
	// Table holds the routes.
	Table *policy.Table
	// Range is where synthetic addresses come from; an IPv4 prefix of at
	// most 22 bits. Zero means DefaultRange.
	Range netip.Prefix
	// Limits bound the bottle; zero fields mean their defaults.
	Limits Limits
	// Resolver defaults to net.DefaultResolver.
	Resolver Resolver
	// Dial connects to an address that was already judged. It defaults to
	// a net.Dialer, and must not resolve anything.
	Dial func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
	// Authority makes the certificates with which TLS is answered and opened,
	// except on opaque routes. nil: TLS passes unseen.
	Authority Authority
	// Credentials are what routes put on, by what they say of it. A route whose
	// credential is missing refuses every request.
	Credentials Credentials
	// Secrets are watched for in what leaves, by the names under which they are
	// cited. The caller keeps them alive.
	Secrets map[string]secret.Value
	// Roots are whom upstream's certificates must come from; nil: whom this
	// machine trusts.
	Roots *x509.CertPool
	// Inside are what answers in this process for [GitName] and [SuperviseName], on
	// port 80, in HTTP. A handler that panics ends its connection. A name without
	// one does not exist in the bottle.
	Inside map[string]http.Handler
	// Ask is asked where a route says supervise; nil: what would be asked about is
	// blocked. AskKey is of the digests that it is given; empty: one of this gateway's
	// own.
	Ask    Asker
	AskKey []byte
	// DigestAnswers has Request.Digest filled in.
	DigestAnswers bool
	// Observer receives events; it may be nil.
	Observer Observer
}

// Gateway serves one bottle. Make it with [New]; its methods are safe for
// concurrent use.
type Gateway struct {
	wire     wire.Config
	limits   Limits
	resolver Resolver
	connect  func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
	rules    atomic.Pointer[rules]
	ledger   *ledger
	names    *names
	caps     *routeAccounts

	authority Authority
	roots     *x509.CertPool
	handlers  map[string]http.Handler // by names inside
	asking    *asking
	digests   bool // of answers

	link   *wire.Link
	lanes  *wire.HostLanes // nil: none
	knocks chan struct{}   // holds maxKnocks
	stack  *stack.Stack

	queries   atomic.Int64
	queryRate *rate.Limiter
	icmpRate  *rate.Limiter
	answered  atomic.Uint64
	up, down  atomic.Int64
	givenBack atomic.Int64 // how often memory was, after many connections

	// ctx ends all work; it is a field because packets arrive without one.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // every goroutine that the gateway started

	flows     flows
	web       *webServer
	closeOnce sync.Once
}

// ErrClosed is returned by methods of a gateway that was closed.
var ErrClosed = errors.New("gateway: closed")

// New makes a gateway that serves the wire at once, until [Gateway.Close].
func New(cfg Config) (*Gateway, error) {
	if cfg.Host == nil {
		_ = cfg.Lanes.Close()
		return nil, errors.New("gateway: the wire's host end is missing")
	}
	g, err := newGateway(cfg)
	if err != nil {
		_ = cfg.Host.Close()
		_ = cfg.Lanes.Close()
		return nil, err
	}
	if err := g.start(cfg.Host, cfg.Lanes); err != nil {
		_ = cfg.Host.Close()
		_ = cfg.Lanes.Close()
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
		cfg.Range = DefaultRange
	}
	if !cfg.Range.Addr().Is4() || cfg.Range.Bits() > 22 {
		return nil, fmt.Errorf("gateway: range %v: not an ipv4 prefix of at most 22 bits", cfg.Range)
	}
	if err := checkInside(cfg.Inside); err != nil {
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
	g.queryRate = rate.NewLimiter(rate.Limit(g.limits.QueryRate), int(2*g.limits.QueryRate)+1)
	g.rules.Store(&rules{table: cfg.Table, credentials: cfg.Credentials, detectors: newDetectors(cfg.Secrets, scan.NewCoverage(), scan.NewSpare(time.Now))})
	g.flows.init()
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g, nil
}

// start makes the stack and the goroutines. Nothing is left behind when it
// fails.
func (g *Gateway) start(host *os.File, lanes wire.LaneFiles) error {
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
	if lanes.Mem != nil {
		if g.lanes, err = wire.NewHostLanes(lanes, g.handleLane); err != nil {
			g.cancel()
			g.link.Shutdown()
			s.Destroy()
			return err
		}
		g.knocks = make(chan struct{}, maxKnocks)
		g.wg.Go(g.lanes.Listen)
	}
	g.wg.Go(g.web.serve)
	g.wg.Go(g.watchFlows)
	return nil
}

const (
	// receiveWindow is what a connection may have in flight towards us
	// before it is read, in bytes; it bounds memory per connection.
	receiveWindow = 1 << 20
	// maxHandshakes bounds connections that are being accepted.
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
	// The wire keeps the order and loses nothing that is taken up, so that
	// nothing old can arrive. Waiting for it would only make a bottle that
	// happens to choose the port of a connection just ended (which at some
	// hundred a second is soon) wait in its turn, for seconds.
	wait := tcpip.TCPTimeWaitTimeoutOption(0)
	// For the same reason a late acknowledgement is never a lost packet, which
	// RACK and its probes would take it for.
	recovery := tcpip.TCPRecovery(0)
	for _, opt := range []tcpip.SettableTransportProtocolOption{&sack, &moderate, &recv, &send, &wait, &recovery} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, opt); err != nil {
			s.Destroy()
			return nil, fmt.Errorf("gateway: stack option %T: %s", opt, err)
		}
	}
	return s, nil
}

// attach connects the stack to the wire. Promiscuous, it takes packets for
// every address; spoofing, it answers as any.
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

// Serve waits until ctx ends or the bottle's end of the wire is gone, then
// closes the gateway. The latter is the normal end and no error.
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

// Close ends every connection and waits for every goroutine. It may be called
// more than once. End the bottle first: an embedded kernel whose wire is gone
// burns a processor until it is killed (its dispatcher takes the end of the
// stream for packets).
func (g *Gateway) Close() error {
	g.closeOnce.Do(func() {
		g.cancel()
		g.link.Hurry()
		g.flows.close()
		g.web.close()
		g.stack.Close()
		g.link.Shutdown()
		g.abortHandshakes()
		if g.lanes != nil {
			g.lanes.Close()
		}
		g.wg.Wait()
		g.stack.Wait()
	})
	return nil
}

// abortHandshakes waits for connections to end. One that was being made while the
// stack closed escapes it, and would wait two minutes for the bottle's answer.
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

// rules are what is swapped together.
type rules struct {
	table       *policy.Table
	credentials Credentials
	detectors   *detectors
	out         *transports
}

// table returns the routes of this moment.
func (g *Gateway) table() *policy.Table { return g.rules.Load().table }

// SetRoutes swaps the routes, what they put on, and what is watched for. A question
// that is being decided sees either the old or the new ones. What is under way is
// reconsidered, see reload.go.
func (g *Gateway) SetRoutes(t *policy.Table, c Credentials, secrets map[string]secret.Value) {
	g.caps.set(t)
	now := g.rules.Load()
	// A kept upstream connection may lead where only the old ones went.
	g.rules.Store(&rules{t, c, newDetectors(secrets, now.detectors.coverage, now.detectors.spare), g.web.newTransports()})
	now.out.closeIdle()
	g.reconsider()
}

// Summary returns what happened so far.
func (g *Gateway) Summary() Summary {
	s := g.ledger.summary()
	s.BytesUp, s.BytesDown = g.up.Load(), g.down.Load()
	st := g.link.Stats()
	s.Packets.In, s.Packets.Out, s.Packets.Lost = st.In.Load(), st.Out.Load(), st.WriteDropped.Load()
	s.Packets.Answered = g.answered.Load()
	return s
}

// DialBottle connects to a TCP server inside the bottle that listens on all
// addresses or on the bottle's own, from the gateway's address. It is the seam
// for published ports: the caller splices.
func (g *Gateway) DialBottle(ctx context.Context, port uint16) (net.Conn, error) {
	if g.ctx.Err() != nil {
		return nil, ErrClosed
	}
	start := time.Now()
	c, err := g.dialInside(ctx, g.wire.Gateway4, g.wire.Bottle4.Addr(), port)
	if err != nil && ctx.Err() == nil {
		// A server that listens on IPv6 alone.
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
