package wire

import (
	"errors"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
)

const testTimeout = 30 * time.Second

// waitFor polls until f is true.
func waitFor(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}

// dispatcher collects the packets that the link delivers.
type dispatcher struct{ got chan []byte }

func (d dispatcher) DeliverNetworkPacket(_ tcpip.NetworkProtocolNumber, p *stack.PacketBuffer) {
	v := p.ToView()
	d.got <- append([]byte(nil), v.AsSlice()...)
	v.Release()
}

func (dispatcher) DeliverLinkPacket(tcpip.NetworkProtocolNumber, *stack.PacketBuffer) {}

func newTestLink(t *testing.T, filter Filter) (*Link, *os.File, dispatcher) {
	t.Helper()
	p, err := New()
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewLink(p.Host, DefaultConfig(), filter)
	if err != nil {
		t.Fatal(err)
	}
	d := dispatcher{make(chan []byte, 64)}
	l.Attach(d)
	t.Cleanup(func() {
		l.Shutdown()
		p.Close()
	})
	return l, p.Bottle, d
}

func all([]byte, int) bool { return true }

func packet(n int) []byte {
	b := make([]byte, n)
	b[0] = 0x45
	for i := 1; i < n; i++ {
		b[i] = byte(i * 7)
	}
	return b
}

func TestConfig(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	for name, edit := range map[string]func(*Config){
		"zero":             func(c *Config) { *c = Config{} },
		"mtu":              func(c *Config) { c.MTU = 576 },
		"large mtu":        func(c *Config) { c.MTU = 65536 },
		"no ipv6":          func(c *Config) { c.Bottle6 = netip.Prefix{} },
		"gateway is there": func(c *Config) { c.Gateway4 = c.Bottle4.Addr() },
		"gateway apart":    func(c *Config) { c.Gateway6 = netip.MustParseAddr("fd00::1") },
		"families":         func(c *Config) { c.Gateway4 = c.Gateway6 },
	} {
		c := DefaultConfig()
		edit(&c)
		if c.Validate() == nil {
			t.Errorf("%s: valid", name)
		}
	}
}

// TestPackets: packets of every size arrive whole, in both directions.
func TestPackets(t *testing.T) {
	l, bottle, d := newTestLink(t, all)
	for _, n := range []int{1, 20, 1500, 2048, 2049, 18432, 18433, 34816, 34817, 65535} {
		want := packet(n)
		if _, err := bottle.Write(want); err != nil {
			t.Fatal(err)
		}
		if got := <-d.got; string(got) != string(want) {
			t.Errorf("in, %d bytes: %d came", n, len(got))
		}
		l.Inject(want)
		buf := make([]byte, 70000)
		m, err := bottle.Read(buf)
		if err != nil || string(buf[:m]) != string(want) {
			t.Errorf("out, %d bytes: %d came, %v", n, m, err)
		}
	}
	var list stack.PacketBufferList
	for range 100 {
		list.PushBack(stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(packet(100))}))
	}
	if n, err := l.WritePackets(list); n != 100 || err != nil {
		t.Errorf("batch: %d, %v", n, err)
	}
	list.Reset()
	buf := make([]byte, 200)
	for range 100 {
		if n, err := bottle.Read(buf); n != 100 || err != nil {
			t.Fatalf("batch: %d, %v", n, err)
		}
	}
}

func TestFilterAndGarbage(t *testing.T) {
	l, bottle, d := newTestLink(t, func(head []byte, size int) bool { return size != 21 })
	for _, p := range [][]byte{{1}, make([]byte, 10), packet(21), {0xf0, 1}} {
		if _, err := bottle.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	bottle.Write(packet(22))
	if got := <-d.got; len(got) != 22 {
		t.Errorf("got %d bytes", len(got))
	}
	if s := l.Stats(); s.In.Load() != 5 || s.Filtered.Load() != 4 {
		t.Errorf("in %d, filtered %d", s.In.Load(), s.Filtered.Load())
	}
}

// TestDescriptorsDoNotCross: descriptors that are sent over the socket never arrive.
func TestDescriptorsDoNotCross(t *testing.T) {
	_, bottle, d := newTestLink(t, all)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	raw, err := bottle.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		err = unix.Sendmsg(int(fd), packet(20), syscall.UnixRights(int(w.Fd())), nil, 0)
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	<-d.got
	// If this process still had the write end, this would block.
	r.SetReadDeadline(time.Now().Add(testTimeout))
	if _, err := r.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the descriptor lives: %v", err)
	}
}

func TestPeerCloses(t *testing.T) {
	l, bottle, _ := newTestLink(t, all)
	if l.Err() != nil {
		t.Errorf("err before the end: %v", l.Err())
	}
	bottle.Close()
	select {
	case <-l.Done():
	case <-time.After(testTimeout):
		t.Fatal("the end is not seen")
	}
	if !errors.Is(l.Err(), ErrPeerClosed) {
		t.Errorf("err: %v", l.Err())
	}
	l.Inject(packet(20)) // must not crash
}

// TestShutdownWakesWriters: a bottle that does not read delays writers for a bounded
// time, and Shutdown not at all.
func TestShutdownWakesWriters(t *testing.T) {
	l, _, _ := newTestLink(t, all)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				l.Inject(packet(65535))
			}
		})
	}
	waitFor(t, "the socket to fill", func() bool { return l.Stats().WriteWaits.Load() > 0 })
	l.Shutdown()
	l.Shutdown()
	wg.Wait()
	if n, err := l.WritePackets(stack.PacketBufferList{}); n != 0 || err != nil {
		t.Errorf("nothing to write: %d, %v", n, err)
	}
}

// TestHurry: after Hurry nobody waits for a bottle that does not read.
func TestHurry(t *testing.T) {
	l, _, _ := newTestLink(t, all)
	l.Hurry()
	for l.Stats().WriteDropped.Load() < 100 {
		l.Inject(packet(65535))
	}
}

// TestSlowReaderLosesNothing: the writer waits for a slow reader.
func TestSlowReaderLosesNothing(t *testing.T) {
	l, bottle, _ := newTestLink(t, all)
	const n = 400
	go func() {
		for range n {
			l.Inject(packet(65535))
		}
	}()
	buf := make([]byte, 70000)
	for i := range n {
		if i == 0 {
			waitFor(t, "the socket to fill", func() bool { return l.Stats().WriteWaits.Load() > 0 })
		}
		if m, err := bottle.Read(buf); m != 65535 || err != nil {
			t.Fatalf("packet %d: %d, %v", i, m, err)
		}
	}
	if d := l.Stats().WriteDropped.Load(); d != 0 {
		t.Errorf("%d lost", d)
	}
}

func TestNewLinkChecks(t *testing.T) {
	p, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := NewLink(p.Host, Config{}, all); err == nil {
		t.Error("the zero configuration is taken")
	}
	// It must stay out of Go's poller, which would wake the gateway for each packet
	// that the bottle takes.
	raw, _ := p.Host.SyscallConn()
	raw.Control(func(fd uintptr) {
		if flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK != 0 {
			t.Errorf("the host's end does not block: flags %#x, %v", flags, err)
		}
	})
	// Closed on exec: a child process must not hold the bottle's way out.
	for _, f := range []*os.File{p.Host, p.Bottle} {
		raw, _ := f.SyscallConn()
		raw.Control(func(fd uintptr) {
			flags, err := unix.FcntlInt(fd, unix.F_GETFD, 0)
			if err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("%s survives exec", f.Name())
			}
		})
	}
}

// TestStack: a network stack works over the link. It answers an echo request.
func TestStack(t *testing.T) {
	p, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	cfg := DefaultConfig()
	l, err := NewLink(p.Host, cfg, all)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Shutdown()
	if l.IsAttached() {
		t.Error("attached to nothing")
	}
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{icmp.NewProtocol4},
	})
	defer s.Destroy()
	if err := s.CreateNIC(1, l); err != nil {
		t.Fatal(err)
	}
	gateway, bottle := tcpip.AddrFrom4(cfg.Gateway4.As4()), tcpip.AddrFrom4(cfg.Bottle4.Addr().As4())
	if err := s.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: gateway.WithPrefix()}, stack.AddressProperties{}); err != nil {
		t.Fatal(err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
	info := s.NICInfo()[1]
	if !l.IsAttached() || info.MTU != MTU || info.LinkAddress != "" || info.ARPHardwareType != header.ARPHardwareNone {
		t.Errorf("the card is %+v", info)
	}

	const size = header.IPv4MinimumSize + header.ICMPv4MinimumSize
	echo := make([]byte, size)
	header.IPv4(echo).Encode(&header.IPv4Fields{TotalLength: size, TTL: 64, Protocol: uint8(header.ICMPv4ProtocolNumber), SrcAddr: bottle, DstAddr: gateway})
	header.IPv4(echo).SetChecksum(^header.IPv4(echo).CalculateChecksum())
	m := header.ICMPv4(echo[header.IPv4MinimumSize:])
	m.SetType(header.ICMPv4Echo)
	m.SetIdent(7)
	m.SetChecksum(header.ICMPv4Checksum(m, 0))
	if _, err := p.Bottle.Write(echo); err != nil {
		t.Fatal(err)
	}
	reply := make([]byte, MTU)
	n, err := p.Bottle.Read(reply)
	if err != nil || n != size {
		t.Fatalf("%d bytes, %v", n, err)
	}
	if m := header.ICMPv4(reply[header.IPv4MinimumSize:n]); header.IPv4(reply).SourceAddress() != gateway || m.Type() != header.ICMPv4EchoReply || m.Ident() != 7 {
		t.Errorf("the reply is % x", reply[:n])
	}
	if err := s.SetNICMTU(1, 1500); err != nil || l.MTU() != 1500 {
		t.Errorf("MTU %d, %v", l.MTU(), err)
	}
	if err := s.RemoveNIC(1); err != nil {
		t.Error(err)
	}
	if l.IsAttached() {
		t.Error("attached after the card was removed")
	}
}

// TestDetached: packets are dropped while nothing is attached, and the link goes on.
func TestDetached(t *testing.T) {
	l, bottle, d := newTestLink(t, all)
	l.Attach(nil)
	other := packet(40)
	other[0] = 0x10 // neither IPv4 nor IPv6
	for _, b := range [][]byte{packet(20), other} {
		if _, err := bottle.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "the packets to be dropped", func() bool { return l.Stats().In.Load() == 2 && l.Stats().Filtered.Load() == 1 })
	l.Attach(d)
	if _, err := bottle.Write(packet(30)); err != nil {
		t.Fatal(err)
	}
	if got := <-d.got; len(got) != 30 {
		t.Errorf("%d bytes arrived, want 30", len(got))
	}
	l.Inject(nil) // writes nothing
	if n := l.Stats().Out.Load(); n != 0 {
		t.Errorf("%d packets left", n)
	}
}

// TestEmptyPacket: the reader can't tell an empty packet from the end.
func TestEmptyPacket(t *testing.T) {
	l, bottle, d := newTestLink(t, all)
	if _, err := bottle.Write(packet(20)); err != nil {
		t.Fatal(err)
	}
	<-d.got
	raw, err := bottle.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = unix.Sendto(int(fd), nil, 0, nil) })
	if err != nil {
		t.Fatal(err)
	}
	<-l.Done()
	if !errors.Is(l.Err(), ErrPeerClosed) {
		t.Errorf("err: %v", l.Err())
	}
}

// TestClosedFiles: ends that are closed already are refused, and closing twice is
// no error.
func TestClosedFiles(t *testing.T) {
	p, err := New()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := NewLink(p.Host, DefaultConfig(), all); err == nil {
		t.Error("a closed file makes a link")
	}
	if err := (&Pair{}).Close(); err != nil {
		t.Error(err)
	}
}
