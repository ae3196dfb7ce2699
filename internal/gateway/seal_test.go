package gateway

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/carboy/carboy/internal/wire"
)

func echoServer(c net.Conn) {
	defer c.Close()
	_, _ = io.Copy(c, c)
}

func mustEcho(t *testing.T, c net.Conn) {
	t.Helper()
	// A connection that is reset may say so at either.
	if _, err := c.Write([]byte("ping")); err != nil {
		t.Fatalf("echo: %v", err)
	}
	buf := make([]byte, 4)
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "ping" {
		t.Fatalf("echo: %q, %v", buf, err)
	}
}

// mustRefuse checks that a connection attempt is reset at once.
func (b *bottle) mustRefuse(addr netip.AddrPort) {
	b.t.Helper()
	if _, err := b.connect(addr); err == nil || !strings.Contains(err.Error(), "refused") {
		b.t.Errorf("connect %v: %v; want refused", addr, err)
	}
}

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func TestLiterals(t *testing.T) {
	w := newWorld()
	w.serve(t, "1.2.3.4:7000", echoServer)
	w.serve(t, "[2606:4700::1]:7000", echoServer)
	w.serve(t, "10.0.0.5:7000", echoServer)
	b := newBottle(t, w, routes(t, "1.2.3.4:7000 tcp", "[2606:4700::1]:7000 tcp", "10.0.0.5:7000 tcp", "api.example.com"))
	for _, addr := range []string{"1.2.3.4:7000", "[2606:4700::1]:7000", "10.0.0.5:7000"} {
		c, err := b.connect(ap(addr))
		if err != nil {
			t.Fatalf("%s: %v", addr, err)
		}
		mustEcho(t, c)
	}
	dialled := len(w.dials())
	for _, addr := range []string{
		"1.2.3.4:7001", "1.2.3.5:7000", "10.0.0.6:7000", "[2606:4700::2]:7000", "[2606:4700::1]:443",
		"169.254.169.254:80", "192.168.0.1:80", "172.17.0.1:2375", "[fd00:ec2::254]:80", "[fe80::1]:80",
		"[64:ff9b::102:304]:7000", "[2002:102:304::1]:7000",
		// The gateway itself, and synthetic addresses without a name.
		"198.18.0.3:80", "198.18.0.3:7000", "[fd63:6172:626f:7900::1]:443", "198.18.1.0:443", "198.19.255.255:443",
	} {
		b.mustRefuse(ap(addr))
	}
	if got := len(w.dials()); got != dialled {
		t.Errorf("a refused connection was dialled: %v", w.dials())
	}
	c := b.waitConn("literal", func(c ConnSummary) bool { return c.Name == "169.254.169.254" })
	if c.Allowed || c.Reason != "literal" || c.Port != 80 || c.Family != "ipv4" {
		t.Errorf("record: %+v", c)
	}
}

func TestPorts(t *testing.T) {
	w := newWorld()
	w.name("api.example.com", publicAddr)
	w.serve(t, publicAddr+":7000", echoServer)
	w.serve(t, publicAddr+":22", echoServer)
	b := newBottle(t, w, routes(t, "api.example.com:7000 tcp"))
	mustEcho(t, b.mustDial("api.example.com", 7000))
	addr, _ := b.resolve("api.example.com")
	for _, port := range []uint16{22, 80, 443, 7001, 853} {
		b.mustRefuse(netip.AddrPortFrom(addr, port))
	}
	if c := b.waitReason("port"); c.Name != "api.example.com" || c.Rule != "--allow api.example.com:7000" {
		t.Errorf("record: %+v", c)
	}
	if len(w.dials()) != 1 {
		t.Errorf("dialled %v", w.dials())
	}
}

// TestResolvedAddresses: an allowed name that resolves, or later resolves, to an
// address that is not allowed.
func TestResolvedAddresses(t *testing.T) {
	private := []string{
		"127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
		"198.18.0.3", "::1", "fd00::1", "fe80::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "fd00:ec2::254",
	}
	w := newWorld()
	for i, a := range private {
		w.name(fmt.Sprintf("n%d.example.com", i), a)
		w.serve(t, netip.AddrPortFrom(netip.MustParseAddr(a).Unmap(), 7000).String(), echoServer)
	}
	w.serve(t, publicAddr+":7000", echoServer)
	w.name("mixed.example.com", "10.0.0.1", publicAddr, "::1")
	w.name("rebind.example.com", publicAddr)
	w.name("rebind.example.com", "127.0.0.1")
	w.name("db.corp.example", "10.0.0.1")
	w.name("meta.corp.example", "169.254.169.254")
	b := newBottle(t, w, routes(t, "*.example.com:7000 tcp", "*.corp.example:7000 tcp private"))

	for i, a := range private {
		c := b.mustDial(fmt.Sprintf("n%d.example.com", i), 7000)
		if n, err := c.Read(make([]byte, 1)); err == nil || n > 0 {
			t.Errorf("%s: read %d, %v", a, n, err)
		}
	}
	if d := w.dials(); len(d) != 0 {
		t.Fatalf("dialled %v", d)
	}
	// Controls: a public address among others is used, and only that; a private route
	// reaches private addresses.
	mustEcho(t, b.mustDial("mixed.example.com", 7000))
	mustEcho(t, b.mustDial("rebind.example.com", 7000))
	if d := w.dials(); len(d) != 2 || d[0] != ap(publicAddr+":7000") || d[1] != d[0] {
		t.Fatalf("dialled %v", d)
	}
	mustEcho(t, b.mustDial("db.corp.example", 7000))
	// After rebinding, refused at the next connect.
	for _, host := range []string{"rebind.example.com", "meta.corp.example"} {
		c := b.mustDial(host, 7000)
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s is reached", host)
		}
	}
	if d := w.dials(); len(d) != 3 {
		t.Fatalf("dialled %v", d)
	}
	if c := b.waitConn("rebound", func(c ConnSummary) bool { return c.Name == "rebind.example.com" && !c.Allowed }); c.Reason != reasonNotPublic {
		t.Errorf("record: %+v", c)
	}
}

// TestDialsWhatWasChecked: each dial resolves once, so that no second answer comes
// between check and use.
func TestDialsWhatWasChecked(t *testing.T) {
	w := newWorld()
	w.name("api.example.com", publicAddr)
	w.name("api.example.com", "127.0.0.1")
	w.serve(t, publicAddr+":7000", echoServer)
	b := newBottle(t, w, routes(t, "api.example.com:7000 tcp"))
	mustEcho(t, b.mustDial("api.example.com", 7000))
	if l := w.looked(); len(l) != 1 {
		t.Errorf("resolved %d times", len(l))
	}
}

func TestUDPIsRefusedAtOnce(t *testing.T) {
	b := newBottle(t, newWorld(), routes(t, "api.example.com"))
	synthetic, err := b.resolve("api.example.com")
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range []netip.AddrPort{
		netip.AddrPortFrom(synthetic, 443), ap("8.8.8.8:443"), ap("1.1.1.1:853"), ap("8.8.8.8:123"), ap("[2606:4700::1]:443"), ap("198.18.0.3:67"),
	} {
		if err := b.udpError(addr); err == nil || !strings.Contains(err.String(), "refused") {
			t.Errorf("udp %v: %v; want refused", addr, err)
		}
	}
	if c := b.waitConn("udp", func(c ConnSummary) bool { return c.Protocol == "udp" && c.Name == "api.example.com" }); c.Reason != reasonUDP || c.Port != 443 {
		t.Errorf("record: %+v", c)
	}
}

// udpError sends one datagram and returns the error that comes back.
func (b *bottle) udpError(addr netip.AddrPort) tcpip.Error {
	var wq waiter.Queue
	ep, err := b.stack.NewEndpoint(header.UDPProtocolNumber, protoOf(addr.Addr()), &wq)
	if err != nil {
		return err
	}
	defer ep.Close()
	entry, ch := waiter.NewChannelEntry(waiter.EventErr)
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)
	if err := ep.Connect(tcpip.FullAddress{Addr: toTCPIP(addr.Addr()), Port: addr.Port()}); err != nil {
		return err
	}
	if _, err := ep.Write(strings.NewReader("quic"), tcpip.WriteOptions{}); err != nil {
		return err
	}
	select {
	case <-ch:
		return ep.LastError()
	case <-time.After(testTimeout):
		return &tcpip.ErrTimeout{}
	}
}

func (b *bottle) ping(to netip.Addr, wait time.Duration) error {
	var wq waiter.Queue
	proto, net := icmp.ProtocolNumber4, ipv4.ProtocolNumber
	if to.Is6() {
		proto, net = icmp.ProtocolNumber6, header.IPv6ProtocolNumber
	}
	ep, terr := b.stack.NewEndpoint(proto, net, &wq)
	if terr != nil {
		return errors.New(terr.String())
	}
	c := gonet.NewUDPConn(&wq, ep)
	defer c.Close()
	if terr := ep.Connect(tcpip.FullAddress{Addr: toTCPIP(to)}); terr != nil {
		return errors.New(terr.String())
	}
	c.SetDeadline(time.Now().Add(wait))
	msg := []byte{8, 0, 0, 0, 0, 0, 0, 1}
	if to.Is6() {
		msg[0] = 128
	}
	if _, err := c.Write(msg); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 64))
	return err
}

func TestPing(t *testing.T) {
	b := newBottle(t, newWorld(), routes(t, "api.example.com"))
	for _, a := range []netip.Addr{b.gw.wire.Gateway4, b.gw.wire.Gateway6} {
		if err := b.ping(a, testTimeout); err != nil {
			t.Errorf("ping gateway %v: %v", a, err)
		}
	}
	synthetic, _ := b.resolve("api.example.com")
	for i, a := range []netip.Addr{synthetic, netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr("2606:4700::1")} {
		// The error is sent at once, as for UDP, and is lost in the bottle: HandleError of
		// gVisor's ping sockets does nothing, and only a false reply would end a wait. In a
		// bottle, iputils' ping -c1 -W2 ends after its own 2 s, and one more of its own;
		// busybox's wants a raw socket, is told that it may not, and ends after 0.1 s.
		if err := b.ping(a, 50*time.Millisecond); err == nil {
			t.Errorf("ping %v is answered", a)
		}
		waitFor(t, fmt.Sprintf("an error for the ping to %v", a), func() bool { return b.gw.Summary().Packets.Answered == uint64(i+1) })
	}
	b.waitReason(reasonICMP)
}

// TestPacketsByHand sends packets that only a compromised kernel in a bottle would
// send.
func TestPacketsByHand(t *testing.T) {
	w := newWorld()
	w.serve(t, "1.2.3.4:7000", echoServer)
	b := newBottle(t, w, routes(t, "1.2.3.4:7000 tcp"))
	me, other := b.gw.wire.Bottle4.Addr(), netip.MustParseAddr("198.18.0.9")
	dst := netip.MustParseAddr("1.2.3.4")
	syn := func(src, dst netip.Addr) []byte {
		p, tr := buildIP(src, dst, header.TCPProtocolNumber, header.TCPMinimumSize)
		h := header.TCP(tr)
		h.Encode(&header.TCPFields{SrcPort: 999, DstPort: 7000, SeqNum: 1, DataOffset: 20, Flags: header.TCPFlagSyn, WindowSize: 1000})
		h.SetChecksum(^h.CalculateChecksum(header.PseudoHeaderChecksum(header.TCPProtocolNumber, toTCPIP(src), toTCPIP(dst), 20)))
		return p
	}
	edit := func(p []byte, f func(header.IPv4)) []byte {
		h := header.IPv4(p)
		f(h)
		h.SetChecksum(0)
		h.SetChecksum(^checksum.Checksum(p[:20], 0))
		return p
	}
	v6me := b.gw.wire.Bottle6.Addr()
	v6frag := syn(v6me, netip.MustParseAddr("2606:4700::1"))
	v6frag[6] = 44
	v6short := syn(v6me, netip.MustParseAddr("2606:4700::1"))[:30]
	tests := []struct {
		name   string
		packet []byte
		reason Reason
	}{
		{"spoofed source", syn(other, dst), reasonSpoofedSource},
		{"spoofed as gateway", syn(b.gw.wire.Gateway4, dst), reasonSpoofedSource},
		{"spoofed v6", syn(netip.MustParseAddr("fd63:6172:626f:7900::9"), netip.MustParseAddr("2606:4700::1")), reasonSpoofedSource},
		{"first fragment", edit(syn(me, dst), func(h header.IPv4) { h.SetFlagsFragmentOffset(header.IPv4FlagMoreFragments, 0) }), reasonFragment},
		{"later fragment", edit(syn(me, dst), func(h header.IPv4) { h.SetFlagsFragmentOffset(0, 8) }), reasonFragment},
		{"v6 fragment", v6frag, reasonFragment},
		{"loopback", syn(me, netip.MustParseAddr("127.0.0.1")), reasonBadDestination},
		{"v6 loopback", syn(v6me, netip.IPv6Loopback()), reasonBadDestination},
		{"v4-mapped", syn(v6me, netip.MustParseAddr("::ffff:1.2.3.4")), reasonBadDestination},
		{"multicast", syn(me, netip.MustParseAddr("224.0.0.251")), reasonBadDestination},
		{"broadcast", syn(me, netip.MustParseAddr("255.255.255.255")), reasonBadDestination},
		{"to itself", syn(me, me), reasonBadDestination},
		{"land", syn(dst, dst), reasonSpoofedSource},
		{"options", edit(syn(me, dst), func(h header.IPv4) { h[0] = 0x46 }), reasonMalformedPacket},
		{"no header length", edit(syn(me, dst), func(h header.IPv4) { h[0] = 0x40 }), reasonMalformedPacket},
		{"length too long", edit(syn(me, dst), func(h header.IPv4) { h.SetTotalLength(1000) }), reasonMalformedPacket},
		{"length too short", edit(syn(me, dst), func(h header.IPv4) { h.SetTotalLength(30) }), reasonMalformedPacket},
		{"cut", syn(me, dst)[:10], reasonMalformedPacket},
		{"no transport", edit(syn(me, dst)[:20], func(h header.IPv4) { h.SetTotalLength(20) }), reasonMalformedPacket},
		{"v6 cut", v6short, reasonMalformedPacket},
		{"version", []byte{0x00, 1, 2, 3}, reasonMalformedPacket},
		{"sctp", edit(syn(me, dst), func(h header.IPv4) { h[9] = 132 }), reasonIPProtocol},
		{"ip in ip", edit(syn(me, dst), func(h header.IPv4) { h[9] = 4 }), reasonIPProtocol},
		{"redirect", func() []byte {
			p, tr := buildIP(me, b.gw.wire.Gateway4, header.ICMPv4ProtocolNumber, 8)
			tr[0] = 5
			return p
		}(), reasonICMP},
	}
	for _, tt := range tests {
		before := b.gw.Summary().Packets.Refused[tt.reason]
		b.sendRaw(tt.packet)
		refused := func() any { return b.gw.Summary().Packets.Refused }
		waitFor(t, fmt.Sprintf("%s to be counted as %s", tt.name, tt.reason), func() bool { return b.gw.Summary().Packets.Refused[tt.reason] == before+1 }, refused)
	}
	// Packets shorter than an IP header end nothing.
	b.end.Write([]byte{1})
	// Control: after all this an honest connection works.
	c, err := b.connect(ap("1.2.3.4:7000"))
	if err != nil {
		t.Fatal(err)
	}
	mustEcho(t, c)
	if d := w.dials(); len(d) != 1 {
		t.Errorf("dialled %v", d)
	}
}

// sendRaw writes a packet to the wire, past the bottle's stack.
func (b *bottle) sendRaw(p []byte) {
	b.t.Helper()
	if c := b.gw.wire; c.BottleMAC != (wire.MAC{}) {
		proto := header.IPv4ProtocolNumber
		if p[0]>>4 == 6 {
			proto = header.IPv6ProtocolNumber
		}
		head := slices.Concat(c.GatewayMAC[:], c.BottleMAC[:])
		p = append(binary.BigEndian.AppendUint16(head, uint16(proto)), p...)
	}
	if _, err := b.end.Write(p); err != nil {
		b.t.Fatal(err)
	}
}

func TestDialBottle(t *testing.T) {
	b := newBottle(t, newWorld(), nil)
	if b.proxy != "" {
		waitFor(t, "the proxy", b.gw.proxied.Load)
		if c, err := b.gw.DialBottle(b.ctx(), 8000); !errors.Is(err, errNoWayIn) {
			t.Errorf("dial a bottle without packets: %v, %v", c, err)
		}
		return
	}
	for _, addr := range []netip.Addr{b.gw.wire.Bottle4.Addr(), b.gw.wire.Bottle6.Addr()} {
		port := uint16(8000)
		if addr.Is6() {
			port = 8001
		}
		l, err := gonet.ListenTCP(b.stack, tcpip.FullAddress{Addr: toTCPIP(addr), Port: port}, protoOf(addr))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go echoServer(c)
			}
		}()
		t.Cleanup(func() { l.Shutdown(); l.Close() })
		c, err := b.gw.DialBottle(b.ctx(), port)
		if err != nil {
			t.Fatal(err)
		}
		mustEcho(t, c)
		c.Close()
	}
	if c, err := b.gw.DialBottle(b.ctx(), 8002); err == nil {
		c.Close()
		t.Error("dialled a port nobody listens on")
	}
	b.waitConn("publish", func(c ConnSummary) bool { return c.Protocol == "publish" && c.Up == 4 && c.Down == 4 })
	b.stopClient()
	b.gw.Close()
	if _, err := b.gw.DialBottle(b.ctx(), 8000); !errors.Is(err, errClosed) {
		t.Errorf("after close: %v", err)
	}
}

func TestNoRoutes(t *testing.T) {
	b := newBottle(t, newWorld(), nil)
	if _, err := b.resolve("example.com"); err != errNXDomain {
		t.Errorf("resolve: %v", err)
	}
	b.mustRefuse(ap("1.1.1.1:443"))
	b.mustRefuse(ap("[2606:4700::1]:443"))
}

// TestSwapRoutes: a route that was removed no longer allows connections, although its
// name has an address.
func TestSwapRoutes(t *testing.T) {
	w := newWorld()
	w.name("api.example.com", publicAddr)
	w.serve(t, publicAddr+":7000", echoServer)
	b := newBottle(t, w, routes(t, "api.example.com:7000 tcp"))
	mustEcho(t, b.mustDial("api.example.com", 7000))
	addr, _ := b.resolve("api.example.com")
	b.gw.SetRoutes(routes(t, "other.example.com"), nil, nil)
	b.mustRefuse(netip.AddrPortFrom(addr, 7000))
	if _, err := b.resolve("api.example.com"); err != errNXDomain {
		t.Errorf("resolve: %v", err)
	}
	if _, err := b.resolve("other.example.com"); err != nil {
		t.Errorf("resolve: %v", err)
	}
}

func TestServeEnds(t *testing.T) {
	checkLeaks(t)
	w := newWorld()
	b := newBottle(t, w, nil)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	b.stopClient()
	if err := b.gw.Serve(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("serve: %v", err)
	}
}

func TestHappyEyeballs(t *testing.T) {
	w := newWorld()
	w.name("api.example.com", "2606:4700::1", "93.184.216.1", publicAddr)
	w.serve(t, publicAddr+":7000", echoServer)
	b := newBottle(t, w, routes(t, "api.example.com:7000 tcp"))
	mustEcho(t, b.mustDial("api.example.com", 7000))
	if d := w.dials(); len(d) != 3 || !d[0].Addr().Is6() {
		t.Errorf("dialled %v", d)
	}
}

func FuzzFilter(f *testing.F) {
	me, dst := netip.MustParseAddr("198.18.0.2"), netip.MustParseAddr("1.2.3.4")
	p, _ := buildIP(me, dst, header.TCPProtocolNumber, 20)
	f.Add(p)
	p, _ = buildIP(me, dst, header.UDPProtocolNumber, 8)
	f.Add(p)
	p, _ = buildIP(netip.MustParseAddr("fd63:6172:626f:7900::2"), netip.MustParseAddr("2606:4700::1"), header.ICMPv6ProtocolNumber, 8)
	f.Add(p)
	b := newBottle(f, newWorld(), routes(f, "api.example.com"))
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) == 0 || len(p) > 2048 {
			return
		}
		if !b.gw.filter(p, len(p)) {
			return
		}
		q, reason := parsePacket(p, len(p))
		if reason != ReasonOK || q.src != me && q.src != b.gw.wire.Bottle6.Addr() {
			t.Fatalf("let through: %x", p)
		}
		if q.proto != header.TCPProtocolNumber && q.dst != b.gw.wire.Gateway4 && q.dst != b.gw.wire.Gateway6 {
			t.Fatalf("let through: %x", p)
		}
	})
}

// TestHostAddressesStayOutside: the bottle's error texts reveal nothing about the
// host's network; the record has everything.
func TestHostAddressesStayOutside(t *testing.T) {
	dial := func(_ context.Context, a netip.AddrPort) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 40123}, Addr: net.TCPAddrFromAddrPort(a),
			Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	resolve := resolverFunc(func(host string) ([]netip.Addr, error) {
		if host == "gone.example.com." {
			return nil, &net.DNSError{Err: "no such host", Name: host, Server: "10.9.8.7:53", IsNotFound: true}
		}
		return []netip.Addr{netip.MustParseAddr(publicAddr)}, nil
	})
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com}\n  - {host: up.example.com, upstream: \"127.0.0.1:9\"}\n  - {host: gone.example.com}\n", http.HandlerFunc(echo),
		func(c *Config) { c.Dial, c.Resolver = dial, resolve })
	for host, want := range map[string]string{"api.example.com": "connection refused", "up.example.com": "the route's upstream: connection refused", "gone.example.com": "no such host"} {
		status, _, body := get(t, o.client(false), "GET", "https://"+host+"/", nil)
		if status != http.StatusBadGateway || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", host, status, body)
		}
		for _, ip := range []string{"10.1.2.3", "10.9.8.7", publicAddr, "127.0.0.1", "40123"} {
			if strings.Contains(body, ip) {
				t.Errorf("%s: the bottle is told %s: %s", host, ip, body)
			}
		}
	}
	recorded := fmt.Sprint(o.gw.Summary().Requests)
	for _, ip := range []string{"10.1.2.3", "10.9.8.7", publicAddr} {
		if !strings.Contains(recorded, ip) {
			t.Errorf("%s is not recorded: %s", ip, recorded)
		}
	}
	for text, want := range map[string]string{
		"read tcp 10.0.0.5:40000->1.2.3.4:443: read: connection reset by peer":                  "read read: connection reset by peer",
		"credential X: dial tcp [fe80::1%eth0]:443: connect: no route to host":                  "credential X: dial connect: no route to host",
		"the time is 10:30:15 and the version 1.2.3":                                            "the time is 10:30:15 and the version 1.2.3",
		"http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=NO_ERROR": "http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=NO_ERROR",
	} {
		if got := withoutAddresses(text); got != want {
			t.Errorf("%q became %q", text, got)
		}
	}
}

type resolverFunc func(host string) ([]netip.Addr, error)

func (f resolverFunc) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	return f(host)
}
