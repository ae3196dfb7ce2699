package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/testenv"
	"github.com/carboy/carboy/internal/wire"
	"github.com/carboy/carboy/internal/wire/wiretest"
)

// testTimeout bounds every wait; it is only reached when something is broken.
var testTimeout = testenv.Patience(2 * time.Minute)

// bottle is a gateway with a network stack at the other end of its wire, configured
// like the one of the embedded kernel.
type bottle struct {
	t        testing.TB
	gw       *Gateway
	stack    *stack.Stack
	channels *wire.BottleChannels // nil: connections go as packets
	proxy    string               // the address of the proxy, by which connections go; empty: none
	world    *world
	end      *os.File // for packets made by hand

	stop sync.Once

	mu     sync.Mutex
	events []Event
}

// world is the outside: names, and which address leads to which listener.
type world struct {
	mu      sync.Mutex
	names   map[string][][]netip.Addr // answers in turn; the last one repeats
	servers map[netip.AddrPort]string // address to loopback listener
	lookups []string
	dialled []netip.AddrPort
}

func newWorld() *world {
	return &world{names: map[string][][]netip.Addr{}, servers: map[netip.AddrPort]string{}}
}

func (w *world) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	host = strings.TrimSuffix(host, ".")
	w.lookups = append(w.lookups, host)
	answers := w.names[host]
	if len(answers) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	if len(answers) > 1 {
		w.names[host] = answers[1:]
	}
	return answers[0], nil
}

func (w *world) dial(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	w.mu.Lock()
	w.dialled = append(w.dialled, addr)
	to, ok := w.servers[addr]
	w.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("connect %v: refused", addr)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", to)
}

// name adds an answer of the outside resolver.
func (w *world) name(host string, addrs ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []netip.Addr
	for _, a := range addrs {
		list = append(list, netip.MustParseAddr(a))
	}
	w.names[host] = append(w.names[host], list)
}

// serve makes addr lead to a handler of connections.
func (w *world) serve(t testing.TB, addr string, handle func(net.Conn)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	w.mu.Lock()
	w.servers[netip.MustParseAddrPort(addr)] = l.Addr().String()
	w.mu.Unlock()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go handle(c)
		}
	}()
}

func (w *world) point(addr, to string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.servers[netip.MustParseAddrPort(addr)] = to
}

func (w *world) dials() []netip.AddrPort {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]netip.AddrPort(nil), w.dialled...)
}

func (w *world) looked() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.lookups...)
}

func routes(t testing.TB, allow ...string) *policy.Table {
	t.Helper()
	var rs []policy.Route
	for _, s := range allow {
		parse := policy.ParseAllow
		s, private := strings.CutSuffix(s, " private")
		if private {
			parse = policy.ParseAllowPrivate
		}
		s, raw := strings.CutSuffix(s, " tcp")
		r, err := parse(s)
		if err != nil {
			t.Fatal(err)
		}
		if raw {
			r = r.WithProtocol(policy.ProtocolTCP)
		}
		rs = append(rs, r)
	}
	table, err := policy.Compile(rs...)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

type option func(*Config)

func withLimits(l Limits) option { return func(c *Config) { c.Limits = l } }

func newBottle(t testing.TB, w *world, table *policy.Table, opts ...option) *bottle {
	t.Helper()
	checkLeaks(t)
	pair, err := wire.New()
	if err != nil {
		t.Fatal(err)
	}
	b := &bottle{t: t, world: w, end: pair.Bottle}
	cfg := Config{Host: pair.Host, Table: table, Resolver: w, Dial: w.dial, Observer: b.observe}
	switch os.Getenv(carriedBy) {
	case "":
		cfg.Channels, b.channels = wiretest.Channels(t)
	case "frames":
		cfg.Wire = wire.DefaultConfig().Framed()
	}
	for _, o := range opts {
		o(&cfg)
	}
	gw, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.gw = gw
	if os.Getenv(carriedBy) == "proxy" {
		b.serveProxy()
	}
	served := make(chan error, 1)
	go func() { served <- gw.Serve(context.Background()) }()
	b.stack = clientStack(t, pair.Bottle, gw.wire)
	t.Cleanup(func() {
		b.stopClient()
		gw.Close()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		pair.Bottle.Close()
	})
	return b
}

// stopClient ends the bottle's stack. Call it before the gateway closes: fdbased spins
// at the end of a wire and can't be stopped then.
func (b *bottle) stopClient() { b.stop.Do(b.stack.Destroy) }

// clientStack returns a stack configured like the sentry's: fdbased, recvmmsg, both
// checksum offloads. If the wire carries Ethernet, it is like a virtual machine's.
func clientStack(t testing.TB, end *os.File, cfg wire.Config) *stack.Stack {
	t.Helper()
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
		HandleLocal:        true,
	})
	sack, moderate := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(true)
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &sack)
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &moderate)
	var fd int
	raw, err := end.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(f uintptr) { fd = int(f) })
	framed := cfg.BottleMAC != wire.MAC{}
	o := &fdbased.Options{
		FDs: []int{fd}, MTU: cfg.MTU, PacketDispatchMode: fdbased.RecvMMsg,
		TXChecksumOffload: !framed, RXChecksumOffload: !framed,
	}
	if framed {
		o.EthernetHeader, o.Address = true, tcpip.LinkAddress(cfg.BottleMAC[:])
	}
	ep, err := fdbased.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.CreateNIC(1, ep); err != nil {
		t.Fatal(err)
	}
	for _, p := range []netip.Prefix{cfg.Bottle4, cfg.Bottle6} {
		proto := ipv4.ProtocolNumber
		if p.Addr().Is6() {
			proto = ipv6.ProtocolNumber
		}
		pa := tcpip.ProtocolAddress{Protocol: proto, AddressWithPrefix: tcpip.AddressWithPrefix{Address: toTCPIP(p.Addr()), PrefixLen: p.Bits()}}
		if err := s.AddProtocolAddress(1, pa, stack.AddressProperties{}); err != nil {
			t.Fatal(err)
		}
	}
	s.SetRouteTable([]tcpip.Route{
		{Destination: header.IPv4EmptySubnet, Gateway: toTCPIP(cfg.Gateway4), NIC: 1},
		{Destination: header.IPv6EmptySubnet, Gateway: toTCPIP(cfg.Gateway6), NIC: 1},
	})
	return s
}

func (b *bottle) observe(e Event) {
	b.mu.Lock()
	b.events = append(b.events, e)
	b.mu.Unlock()
}

func (b *bottle) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	b.t.Cleanup(cancel)
	return ctx
}

func protoOf(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is6() {
		return ipv6.ProtocolNumber
	}
	return ipv4.ProtocolNumber
}

// carriedBy names, in the environment, what carries a bottle's connections: "packets",
// "frames" (Ethernet), or "proxy" for requests to a proxy: a name by HTTP's CONNECT, an
// address by SOCKS5. Without it channels do.
const carriedBy = "CARBOY_TEST_CARRIED_BY"

// TestByPackets, TestByFrames and TestByProxy run the tests of this package again without
// channels, so that connections come as packets, bare or in Ethernet frames, or by a proxy.
func TestByPackets(t *testing.T) { againBy(t, "packets") }

func TestByFrames(t *testing.T) { againBy(t, "frames") }

func TestByProxy(t *testing.T) { againBy(t, "proxy") }

func againBy(t *testing.T, carrier string) {
	if testing.Short() {
		t.Skip("all tests once more: leave out -short")
	}
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.skip=^TestBy(Packets|Frames|Proxy)$", "-test.failfast", "-test.timeout=10m", fmt.Sprintf("-test.short=%t", !testenv.Exhaustive()))
	c.Env = append(os.Environ(), carriedBy+"="+carrier)
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// serveProxy lets the bottle's connections go by a proxy.
func (b *bottle) serveProxy() {
	b.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	b.proxy = l.Addr().String()
	done := make(chan error, 1)
	go func() { done <- b.gw.ServeProxy(l) }()
	b.t.Cleanup(func() { // runs after the gateway has closed
		if err := <-done; err != nil && !errors.Is(err, errClosed) {
			b.t.Errorf("proxy: %v", err)
		}
	})
}

// toProxy opens a connection to the proxy itself.
func (b *bottle) toProxy() (*net.TCPConn, error) {
	c, err := net.Dial("tcp", b.proxy)
	if err != nil {
		return nil, err
	}
	b.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(testTimeout))
	return c.(*net.TCPConn), nil
}

// errProxyRefused is the error of a connection that the proxy does not make.
var errProxyRefused = errors.New("refused by the proxy")

// socks connects to a destination of a type of address by SOCKS5.
func (b *bottle) socks(kind byte, dest []byte, port uint16) (conn, error) {
	c, err := b.toProxy()
	if err != nil {
		return nil, err
	}
	req := append([]byte{5, 1, 0, 5, 1, 0, kind}, dest...)
	if _, err := c.Write(binary.BigEndian.AppendUint16(req, port)); err != nil {
		return nil, err
	}
	var reply [12]byte
	if _, err := io.ReadFull(c, reply[:]); err != nil {
		return nil, err
	}
	if reply[3] != 0 {
		return nil, fmt.Errorf("%w: code %d", errProxyRefused, reply[3])
	}
	return c, nil
}

func (b *bottle) socksAddr(addr netip.AddrPort) (conn, error) {
	kind := byte(1)
	if addr.Addr().Is6() {
		kind = 4
	}
	return b.socks(kind, addr.Addr().AsSlice(), addr.Port())
}

// tunnel connects by HTTP's CONNECT.
func (b *bottle) tunnel(authority string) (conn, error) {
	c, err := b.toProxy()
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", authority, authority); err != nil {
		return nil, err
	}
	// Byte by byte: what follows the head is the tunnel's.
	var head []byte
	for one := make([]byte, 1); !bytes.HasSuffix(head, []byte("\r\n\r\n")); head = append(head, one[0]) {
		if _, err := io.ReadFull(c, one); err != nil {
			return nil, fmt.Errorf("after %q: %w", head, err)
		}
	}
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 200 ")) {
		return nil, fmt.Errorf("%w: %s", errProxyRefused, head)
	}
	return c, nil
}

// conn is a program's end of a connection.
type conn interface {
	net.Conn
	halfCloser
}

// connect opens a TCP connection from inside the bottle.
func (b *bottle) connect(addr netip.AddrPort) (conn, error) {
	if b.proxy != "" {
		return b.socksAddr(addr)
	}
	if b.channels != nil {
		switch c, err := wiretest.Dial(b.channels, addr, time.Now().Add(testTimeout)); {
		case err != nil:
			return nil, err
		case c != nil:
			b.t.Cleanup(func() { c.Close() })
			return c, nil
		}
	}
	return b.connectByPackets(addr)
}

func (b *bottle) connectByPackets(addr netip.AddrPort) (*gonet.TCPConn, error) {
	c, err := gonet.DialContextTCP(b.ctx(), b.stack, tcpip.FullAddress{Addr: toTCPIP(addr.Addr()), Port: addr.Port()}, protoOf(addr.Addr()))
	if err == nil {
		c.SetDeadline(time.Now().Add(testTimeout))
		b.t.Cleanup(func() { c.Close() })
	}
	return c, err
}

// dial resolves a name and connects from inside the bottle.
func (b *bottle) dial(host string, port uint16) (conn, error) {
	if b.proxy != "" {
		return b.tunnel(net.JoinHostPort(host, strconv.Itoa(int(port))))
	}
	addr, err := b.resolve(host)
	if err != nil {
		return nil, err
	}
	return b.connect(netip.AddrPortFrom(addr, port))
}

func (b *bottle) mustDial(host string, port uint16) conn {
	b.t.Helper()
	c, err := b.dial(host, port)
	if err != nil {
		b.t.Fatalf("dial %s:%d: %v", host, port, err)
	}
	return c
}

// udp opens a socket that is connected to addr.
func (b *bottle) udp(addr netip.AddrPort) *gonet.UDPConn {
	b.t.Helper()
	c, err := gonet.DialUDP(b.stack, nil, &tcpip.FullAddress{Addr: toTCPIP(addr.Addr()), Port: addr.Port()}, protoOf(addr.Addr()))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(testTimeout))
	return c
}

var errNXDomain = errors.New("no such name")

func (b *bottle) ask(name string, qtype uint16) *dns.Msg {
	b.t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), qtype)
	m.SetEdns0(1232, false)
	return b.exchange(m)
}

func (b *bottle) exchange(m *dns.Msg) *dns.Msg {
	b.t.Helper()
	q, err := m.Pack()
	if err != nil {
		b.t.Fatal(err)
	}
	c := b.udp(netip.AddrPortFrom(b.gw.wire.DNS, 53))
	defer c.Close()
	if _, err := c.Write(q); err != nil {
		b.t.Fatal(err)
	}
	buf := make([]byte, 65535)
	n, err := c.Read(buf)
	if err != nil {
		b.t.Fatalf("dns %s: %v", m.Question[0].Name, err)
	}
	r := new(dns.Msg)
	if err := r.Unpack(buf[:n]); err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *bottle) resolve(name string) (netip.Addr, error) {
	r := b.ask(name, dns.TypeA)
	if r.Rcode == dns.RcodeNameError {
		return netip.Addr{}, errNXDomain
	}
	for _, rr := range r.Answer {
		if a, ok := rr.(*dns.A); ok {
			addr, _ := netip.AddrFromSlice(a.A.To4())
			return addr, nil
		}
	}
	return netip.Addr{}, errors.New("no address")
}

// waitConn waits for a connection record that satisfies want, and returns it.
func (b *bottle) waitConn(what string, want func(ConnSummary) bool) ConnSummary {
	b.t.Helper()
	var found ConnSummary
	waitFor(b.t, "a connection record: "+what, func() bool {
		conns := b.gw.Summary().Conns
		i := slices.IndexFunc(conns, want)
		if i >= 0 {
			found = conns[i]
		}
		return i >= 0
	}, func() any { return b.gw.Summary().Conns })
	return found
}

// waitFor polls until f is true. If it never is, the test fails and prints what
// have returns.
func waitFor(t testing.TB, what string, f func() bool, have ...func() any) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			for _, h := range have {
				t.Logf("have %+v", h())
			}
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}

func (b *bottle) waitReason(r Reason) ConnSummary {
	b.t.Helper()
	return b.waitConn(string(r), func(c ConnSummary) bool { return c.Reason == r })
}

// checkLeaks fails the test if goroutines of the gateway or the wire outlive it.
func checkLeaks(t testing.TB) {
	t.Cleanup(func() {
		waitFor(t, "goroutines to end", func() bool { return ourGoroutines() == "" }, func() any { return ourGoroutines() })
	})
}

func ourGoroutines() string {
	buf := make([]byte, 4<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var left []string
	for _, g := range strings.Split(string(buf), "\n\n") {
		if strings.Contains(g, "ourGoroutines") || strings.Contains(g, "testing.tRunner(") || strings.Contains(g, "_test.go") ||
			strings.Contains(g, "link/fdbased") || // the client's; one of its dispatchers never ends
			strings.Contains(g, "(*BottleChannels).Listen") {
			continue
		}
		if strings.Contains(g, "carboy/internal/gateway.") || strings.Contains(g, "carboy/internal/wire.") ||
			strings.Contains(g, "gvisor.dev/gvisor/pkg/tcpip") {
			left = append(left, g)
		}
	}
	return strings.Join(left, "\n\n")
}

// dialsWait waits for the first dial and returns its address.
func (w *world) dialsWait(t testing.TB) netip.AddrPort {
	t.Helper()
	waitFor(t, "a dial", func() bool { return len(w.dials()) > 0 })
	return w.dials()[0]
}
