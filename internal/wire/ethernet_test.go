package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"
	"sync"
	"testing"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

var framed = DefaultConfig().Framed()

// heard collects what a filter was asked.
type heard struct {
	mu   sync.Mutex
	seen [][]byte
}

func (h *heard) filter(head []byte, size int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = append(h.seen, append([]byte(nil), head...))
	return true
}

func (h *heard) last() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.seen) == 0 {
		return nil
	}
	return h.seen[len(h.seen)-1]
}

func (h *heard) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.seen)
}

func newFramedLink(t *testing.T, filter Filter) (*Link, *os.File, dispatcher) {
	t.Helper()
	p, err := New()
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewLink(p.Host, framed, filter)
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

// frame puts an Ethernet header before payload.
func frame(to, from MAC, proto uint16, payload []byte) []byte {
	b := append(append([]byte(nil), to[:]...), from[:]...)
	return append(binary.BigEndian.AppendUint16(b, proto), payload...)
}

// sent returns the frame in which an honest bottle sends an IP packet.
func sent(packet []byte) []byte {
	proto := uint16(header.IPv4ProtocolNumber)
	if packet[0]>>4 == 6 {
		proto = uint16(header.IPv6ProtocolNumber)
	}
	return frame(framed.GatewayMAC, framed.BottleMAC, proto, packet)
}

func write(t *testing.T, f *os.File, b []byte) {
	t.Helper()
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
}

// received reads one frame that the link sent.
func received(t *testing.T, f *os.File) []byte {
	t.Helper()
	b := make([]byte, 70000)
	n, err := f.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return b[:n]
}

func TestFramedConfig(t *testing.T) {
	if err := framed.Validate(); err != nil {
		t.Error(err)
	}
	if framed.MTU != 65521 || framed.BottleMAC.String() != "02:00:00:00:00:02" || framed.GatewayMAC.group() {
		t.Errorf("the configuration is %+v", framed)
	}
	small := DefaultConfig()
	small.MTU = 1500
	if got := small.Framed().MTU; got != 1500 {
		t.Errorf("a small MTU became %d", got)
	}
	for name, edit := range map[string]func(*Config){
		"no bottle":    func(c *Config) { c.BottleMAC = MAC{} },
		"no gateway":   func(c *Config) { c.GatewayMAC = MAC{} },
		"the same":     func(c *Config) { c.GatewayMAC = c.BottleMAC },
		"bottle group": func(c *Config) { c.BottleMAC[0] |= 1 },
		"broadcast":    func(c *Config) { c.GatewayMAC = MAC{255, 255, 255, 255, 255, 255} },
		"large mtu":    func(c *Config) { c.MTU = 65522 },
	} {
		c := framed
		edit(&c)
		if c.Validate() == nil {
			t.Errorf("%s: valid", name)
		}
		if p, err := New(); err != nil {
			t.Error(err)
		} else if _, err := NewLink(p.Host, c, all); err == nil {
			t.Errorf("%s: makes a link", name)
		} else {
			p.Close()
		}
	}
	b, err := json.Marshal(framed)
	if err != nil {
		t.Fatal(err)
	}
	var back Config
	if err := json.Unmarshal(b, &back); err != nil || back != framed {
		t.Errorf("through JSON: %+v, %v", back, err)
	}
}

// packet6 is packet for IPv6.
func packet6(n int) []byte {
	b := packet(n)
	b[0] = 0x60
	return b
}

// TestFrames: packets of every size arrive whole, in both directions and in one piece
// or several, with the header of their kind.
func TestFrames(t *testing.T) {
	l, bottle, d := newFramedLink(t, all)
	for _, n := range []int{40, 46, 47, 60, 1500, 2034, 2048, 2049, 18432, 18433, 34816, 34817, 65521} {
		for _, want := range [][]byte{packet(n), packet6(n)} {
			write(t, bottle, sent(want))
			if got := <-d.got; string(got) != string(want) {
				t.Errorf("in, %d bytes: %d came", n, len(got))
			}
			l.Inject(want)
			head := frame(framed.BottleMAC, framed.GatewayMAC, binary.BigEndian.Uint16(sent(want)[12:]), nil)
			if got := received(t, bottle); string(got) != string(head)+string(want) {
				t.Errorf("out, %d bytes: %d came, % x", n, len(got), got[:14])
			}
		}
	}
	for _, count := range []int{1, 100} {
		var list stack.PacketBufferList
		for range count {
			list.PushBack(stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(packet(100))}))
		}
		if n, err := l.WritePackets(list); n != count || err != nil {
			t.Errorf("%d packets: %d, %v", count, n, err)
		}
		list.Reset()
		for range count {
			got := received(t, bottle)
			if string(got) != string(frame(framed.BottleMAC, framed.GatewayMAC, 0x0800, packet(100))) {
				t.Fatalf("of %d: % x", count, got)
			}
		}
	}
}

// TestPadding: what follows a short packet in the shortest frame is no part of it.
func TestPadding(t *testing.T) {
	h := &heard{}
	_, bottle, d := newFramedLink(t, h.filter)
	four := make([]byte, 46)
	header.IPv4(four).Encode(&header.IPv4Fields{TotalLength: 28})
	six := make([]byte, 46)
	header.IPv6(six).Encode(&header.IPv6Fields{PayloadLength: 4})
	for _, c := range []struct {
		name string
		sent []byte
		want int
	}{
		{"IPv4", four, 28},
		{"IPv6", six, 44},
		{"beyond the shortest frame", append(append([]byte(nil), four...), 0), 47}, // the filter sees the contradiction
		{"a length below a header's", func() []byte {
			b := append([]byte(nil), four...)
			header.IPv4(b).SetTotalLength(7)
			return b
		}(), 46},
		{"a length beyond the frame", func() []byte {
			b := append([]byte(nil), four...)
			header.IPv4(b).SetTotalLength(900)
			return b
		}(), 46},
	} {
		write(t, bottle, sent(c.sent))
		if got := <-d.got; len(got) != c.want || len(h.last()) != c.want {
			t.Errorf("%s: %d bytes were delivered and %d judged, want %d", c.name, len(got), len(h.last()), c.want)
		}
	}
}

// TestHostileFrames: frames that no honest kernel sends reach neither the stack nor
// get an answer, and the filter hears of each as of an empty packet.
func TestHostileFrames(t *testing.T) {
	h := &heard{}
	l, bottle, d := newFramedLink(t, h.filter)
	gw, me := framed.GatewayMAC, framed.BottleMAC
	other, all, multi := MAC{2, 0, 0, 0, 0, 9}, MAC{255, 255, 255, 255, 255, 255}, MAC{0x33, 0x33, 0, 0, 0, 1}
	ip := packet(60)
	bad := map[string][]byte{
		"one byte":                   {2},
		"a cut header":               sent(ip)[:13],
		"a header alone":             sent(ip)[:14],
		"a cut IPv4 header":          sent(ip[:19]),
		"a cut IPv6 header":          sent(packet6(39)),
		"a spoofed source":           frame(gw, other, 0x0800, ip),
		"the gateway as source":      frame(gw, gw, 0x0800, ip),
		"no source":                  frame(gw, MAC{}, 0x0800, ip),
		"a group as source":          frame(gw, all, 0x0800, ip),
		"another receiver":           frame(other, me, 0x0800, ip),
		"itself as receiver":         frame(me, me, 0x0800, ip),
		"no receiver":                frame(MAC{}, me, 0x0800, ip),
		"unicast IPv4 to all":        frame(all, me, 0x0800, ip),
		"unicast IPv6 to a group":    frame(multi, me, 0x86dd, packet6(60)),
		"IPv6 called IPv4":           frame(gw, me, 0x0800, packet6(60)),
		"IPv4 called IPv6":           frame(gw, me, 0x86dd, ip),
		"neither version":            frame(gw, me, 0x0800, make([]byte, 60)),
		"VLAN":                       frame(gw, me, 0x8100, append([]byte{0, 1, 8, 0}, ip...)),
		"VLAN in VLAN":               frame(gw, me, 0x88a8, append([]byte{0, 1, 0x81, 0, 0, 1, 8, 0}, ip...)),
		"LLDP":                       frame(MAC{1, 0x80, 0xc2, 0, 0, 14}, me, 0x88cc, ip),
		"a length for a type":        frame(gw, me, 60, ip),
		"MACsec":                     frame(gw, me, 0x88e5, ip),
		"PPPoE":                      frame(gw, me, 0x8863, ip),
		"MPLS":                       frame(gw, me, 0x8847, ip),
		"reverse ARP":                frame(gw, me, 0x8035, question(nil)),
		"a cut ARP":                  frame(gw, me, 0x0806, question(nil)[:27]),
		"ARP of another card":        frame(gw, me, 0x0806, question(func(a header.ARP) { copy(a.HardwareAddressSender(), other[:]) })),
		"ARP of another address":     frame(all, me, 0x0806, question(func(a header.ARP) { copy(a.ProtocolAddressSender(), []byte{198, 18, 0, 9}) })),
		"ARP as the gateway":         frame(all, me, 0x0806, question(func(a header.ARP) { copy(a.ProtocolAddressSender(), a.ProtocolAddressTarget()) })),
		"ARP for another protocol":   frame(all, me, 0x0806, question(func(a header.ARP) { a[2] = 0x86 })),
		"ARP for long addresses":     frame(all, me, 0x0806, question(func(a header.ARP) { a[4] = 255 })),
		"an ARP reply as another":    frame(gw, me, 0x0806, question(func(a header.ARP) { a.SetOp(header.ARPReply); copy(a.ProtocolAddressSender(), []byte{8, 8, 8, 8}) })),
		"solicitation of a stranger": frame(gw, other, 0x86dd, solicitation(nil)),
	}
	for name, b := range bad {
		before, filtered := h.count(), l.Stats().Filtered.Load()
		write(t, bottle, b)
		waitFor(t, name, func() bool { return l.Stats().Filtered.Load() == filtered+1 })
		if h.count() != before+1 || len(h.last()) != 0 {
			t.Errorf("%s: the filter heard %d times of it, and last % x", name, h.count()-before, h.last())
		}
	}
	write(t, bottle, sent(ip))
	if got := <-d.got; string(got) != string(ip) {
		t.Error("the control was not delivered")
	}
	s := l.Stats()
	if n := uint64(len(bad)); s.In.Load() != n+1 || s.Out.Load() != 0 || s.Neighbour.Load() != 0 || s.Quiet.Load() != 0 {
		t.Errorf("in %d, out %d, answered %d, quiet %d", s.In.Load(), s.Out.Load(), s.Neighbour.Load(), s.Quiet.Load())
	}
	if len(d.got) != 0 {
		t.Errorf("%d more were delivered", len(d.got))
	}
}

// TestNilFilterFrames: without a filter bad frames harm nothing.
func TestNilFilterFrames(t *testing.T) {
	l, bottle, d := newFramedLink(t, nil)
	write(t, bottle, []byte{1})
	write(t, bottle, sent(packet(60)))
	waitFor(t, "both", func() bool { return l.Stats().Filtered.Load() == 2 })
	if len(d.got) != 0 {
		t.Error("a packet was delivered without a filter")
	}
}

// TestLongFrame: a frame that is longer than the link's buffers is delivered as what
// fits, so the filter finds that its length contradicts its header.
func TestLongFrame(t *testing.T) {
	var size int
	done := make(chan struct{})
	_, bottle, _ := newFramedLink(t, func(_ []byte, n int) bool { size = n; close(done); return false })
	write(t, bottle, sent(packet(70000)))
	<-done
	if size != 67584 {
		t.Errorf("the filter was told of %d bytes", size)
	}
}

// question returns an ARP request for the gateway's address.
func question(edit func(header.ARP)) header.ARP {
	a := header.ARP(make([]byte, header.ARPSize))
	a.SetIPv4OverEthernet()
	a.SetOp(header.ARPRequest)
	copy(a.HardwareAddressSender(), framed.BottleMAC[:])
	copy(a.ProtocolAddressSender(), framed.Bottle4.Addr().AsSlice())
	copy(a.ProtocolAddressTarget(), framed.Gateway4.AsSlice())
	if edit != nil {
		edit(a)
	}
	return a
}

// solicitation returns an IPv6 packet that asks for the gateway's address.
func solicitation(edit func(ip header.IPv6, m header.ICMPv6)) []byte {
	return message6(framed.Bottle6.Addr(), netip.MustParseAddr("ff02::1:ff00:1"), 135, edit)
}

// message6 returns an ICMPv6 message about the gateway's address, with a right checksum
// after edit.
func message6(src, dst netip.Addr, kind byte, edit func(ip header.IPv6, m header.ICMPv6)) []byte {
	const size = 32
	b := make([]byte, header.IPv6MinimumSize+size)
	ip, m := header.IPv6(b), header.ICMPv6(b[header.IPv6MinimumSize:])
	ip.Encode(&header.IPv6Fields{PayloadLength: size, TransportProtocol: 58, HopLimit: 255, SrcAddr: tcpip.AddrFrom16(src.As16()), DstAddr: tcpip.AddrFrom16(dst.As16())})
	m.SetType(header.ICMPv6Type(kind))
	copy(m[8:], framed.Gateway6.AsSlice())
	m[24], m[25] = 1, 1
	copy(m[26:], framed.BottleMAC[:])
	if edit != nil {
		edit(ip, m)
	}
	m.SetChecksum(0)
	m.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: m, Src: ip.SourceAddress(), Dst: ip.DestinationAddress()}))
	return b
}

// TestARP: the link answers for every address but the bottle's own.
func TestARP(t *testing.T) {
	h := &heard{}
	l, bottle, _ := newFramedLink(t, h.filter)
	broadcast := MAC{255, 255, 255, 255, 255, 255}
	want := question(func(a header.ARP) {
		a.SetOp(header.ARPReply)
		copy(a.HardwareAddressSender(), framed.GatewayMAC[:])
		copy(a.ProtocolAddressSender(), framed.Gateway4.AsSlice())
		copy(a.HardwareAddressTarget(), framed.BottleMAC[:])
		copy(a.ProtocolAddressTarget(), framed.Bottle4.Addr().AsSlice())
	})
	pad := make([]byte, 18) // a real card sends 60 bytes
	for _, to := range []MAC{broadcast, framed.GatewayMAC} {
		write(t, bottle, append(frame(to, framed.BottleMAC, 0x0806, question(nil)), pad...))
		if got := received(t, bottle); string(got) != string(frame(framed.BottleMAC, framed.GatewayMAC, 0x0806, want)) {
			t.Errorf("the answer is % x", got)
		}
	}
	// A probe comes from no address (RFC 5227).
	write(t, bottle, frame(broadcast, framed.BottleMAC, 0x0806, question(func(a header.ARP) { clear(a.ProtocolAddressSender()) })))
	if got := header.ARP(received(t, bottle)[14:]); got.Op() != header.ARPReply || [4]byte(got.ProtocolAddressTarget()) != [4]byte{} {
		t.Errorf("the answer to a probe is % x", got)
	}
	write(t, bottle, frame(broadcast, framed.BottleMAC, 0x0806, question(func(a header.ARP) { copy(a.ProtocolAddressTarget(), []byte{10, 0, 0, 1}) })))
	if got := header.ARP(received(t, bottle)[14:]); got.Op() != header.ARPReply || [4]byte(got.ProtocolAddressSender()) != [4]byte{10, 0, 0, 1} {
		t.Errorf("the answer for another address is % x", got)
	}
	quiet := map[string]func(header.ARP){
		"its own address": func(a header.ARP) { copy(a.ProtocolAddressTarget(), a.ProtocolAddressSender()) },
		"a probe of its own": func(a header.ARP) {
			copy(a.ProtocolAddressTarget(), a.ProtocolAddressSender())
			clear(a.ProtocolAddressSender())
		},
		"a group":             func(a header.ARP) { copy(a.ProtocolAddressTarget(), []byte{224, 0, 0, 1}) },
		"all":                 func(a header.ARP) { copy(a.ProtocolAddressTarget(), []byte{255, 255, 255, 255}) },
		"no address":          func(a header.ARP) { clear(a.ProtocolAddressTarget()) },
		"an unasked reply":    func(a header.ARP) { a.SetOp(header.ARPReply) },
		"an unknown question": func(a header.ARP) { a.SetOp(77) },
	}
	for name, edit := range quiet {
		before := l.Stats().Quiet.Load()
		write(t, bottle, frame(broadcast, framed.BottleMAC, 0x0806, question(edit)))
		waitFor(t, name, func() bool { return l.Stats().Quiet.Load() == before+1 })
	}
	if s := l.Stats(); s.Neighbour.Load() != 4 || s.Out.Load() != 4 || s.Filtered.Load() != 0 || h.count() != 0 {
		t.Errorf("answered %d, out %d, filtered %d, heard %d", s.Neighbour.Load(), s.Out.Load(), s.Filtered.Load(), h.count())
	}
}

// TestNeighbourSolicitation: the link answers sound questions for every IPv6 address but
// the bottle's own. Others go the way of their kind.
func TestNeighbourSolicitation(t *testing.T) {
	h := &heard{}
	l, bottle, d := newFramedLink(t, h.filter)
	group, local := MAC{0x33, 0x33, 0xff, 0, 0, 1}, netip.MustParseAddr("fe80::1234")
	asked := func(to MAC, packet []byte) { write(t, bottle, frame(to, framed.BottleMAC, 0x86dd, packet)) }
	for name, c := range map[string]struct {
		to     MAC
		packet []byte
	}{
		"to the group":        {group, solicitation(nil)},
		"to the gateway":      {framed.GatewayMAC, message6(framed.Bottle6.Addr(), framed.Gateway6, 135, nil)},
		"another address":     {group, solicitation(func(_ header.IPv6, m header.ICMPv6) { copy(m[8:], netip.MustParseAddr("fe80::1").AsSlice()) })},
		"from the link-local": {group, message6(local, netip.MustParseAddr("ff02::1:ff00:1"), 135, nil)},
	} {
		asked(c.to, c.packet)
		got := received(t, bottle)
		if head := frame(framed.BottleMAC, framed.GatewayMAC, 0x86dd, nil); string(got[:14]) != string(head) {
			t.Errorf("%s: the frame begins with % x", name, got[:14])
		}
		ip := header.IPv6(got[14:])
		m := header.ICMPv6(ip.Payload())
		na := header.NDPNeighborAdvert(m.MessageBody())
		target := tcpip.AddrFrom16Slice(c.packet[48:64])
		if !ip.IsValid(len(ip)) || ip.HopLimit() != 255 || ip.SourceAddress() != target || ip.DestinationAddress() != header.IPv6(c.packet).SourceAddress() {
			t.Errorf("%s: the packet is % x", name, []byte(ip))
		}
		sum := header.PseudoHeaderChecksum(58, ip.SourceAddress(), ip.DestinationAddress(), uint16(len(m)))
		if m.Type() != header.ICMPv6NeighborAdvert || checksum.Checksum(m, sum) != 0xffff || !na.SolicitedFlag() || !na.OverrideFlag() || na.RouterFlag() ||
			na.TargetAddress() != target || string(m[24:]) != "\x02\x01"+string(framed.GatewayMAC[:]) {
			t.Errorf("%s: the message is % x", name, []byte(m))
		}
	}
	if l.Stats().Neighbour.Load() != 4 {
		t.Errorf("%d answers", l.Stats().Neighbour.Load())
	}
	// To a group these are what a kernel sends; to the gateway alone the filter judges.
	odd := map[string][]byte{
		"duplicate detection": message6(netip.IPv6Unspecified(), netip.MustParseAddr("ff02::1:ff00:1"), 135, nil),
		"its own address":     solicitation(func(_ header.IPv6, m header.ICMPv6) { copy(m[8:], framed.Bottle6.Addr().AsSlice()) }),
		"no address":          solicitation(func(_ header.IPv6, m header.ICMPv6) { clear(m[8:24]) }),
		"a group's address":   solicitation(func(_ header.IPv6, m header.ICMPv6) { copy(m[8:], netip.MustParseAddr("ff02::1").AsSlice()) }),
		"from afar":           solicitation(func(ip header.IPv6, _ header.ICMPv6) { ip.SetHopLimit(254) }),
		"a code":              solicitation(func(_ header.IPv6, m header.ICMPv6) { m[1] = 1 }),
		"another source":      message6(netip.MustParseAddr("fd63:6172:626f:7900::9"), netip.MustParseAddr("ff02::1:ff00:1"), 135, nil),
		"too short":           solicitation(func(ip header.IPv6, _ header.ICMPv6) { ip.SetPayloadLength(23) }),
		"too long":            solicitation(func(ip header.IPv6, _ header.ICMPv6) { ip.SetPayloadLength(33) }),
		"a wrong checksum": func() []byte {
			b := solicitation(nil)
			b[len(b)-1] ^= 1
			return b
		}(),
	}
	for name, packet := range odd {
		before := l.Stats().Quiet.Load()
		asked(group, packet)
		waitFor(t, name, func() bool { return l.Stats().Quiet.Load() == before+1 })
		asked(framed.GatewayMAC, packet)
		if got := <-d.got; string(got) != string(packet) || string(h.last()) != string(packet) {
			t.Errorf("%s: to the gateway alone, % x is delivered and % x judged", name, got, h.last())
		}
	}
	if s := l.Stats(); s.Neighbour.Load() != 4 || s.Out.Load() != 4 || s.Filtered.Load() != 0 {
		t.Errorf("answered %d, out %d, filtered %d", s.Neighbour.Load(), s.Out.Load(), s.Filtered.Load())
	}
}

// hopByHop puts the header of listener reports before an ICMPv6 message.
func hopByHop(packet []byte, length byte) []byte {
	b := append([]byte(nil), packet[:40]...)
	b = append(b, 58, length, 5, 2, 0, 0, 1, 0)
	b = append(b, packet[40:]...)
	b[6] = 0
	header.IPv6(b).SetPayloadLength(uint16(len(b) - 40))
	return b
}

// TestGroups: what kernels send to groups by themselves is dropped without a word.
// What a program sends to a group is judged, and never delivered.
func TestGroups(t *testing.T) {
	h := &heard{}
	l, bottle, d := newFramedLink(t, h.filter)
	local, reports, routers := netip.MustParseAddr("fe80::1"), netip.MustParseAddr("ff02::16"), netip.MustParseAddr("ff02::2")
	group6 := MAC{0x33, 0x33, 0, 0, 0, 0x16}
	igmp := func(dst []byte, proto byte) []byte {
		b := make([]byte, 40)
		header.IPv4(b).Encode(&header.IPv4Fields{TotalLength: 40, TTL: 1, Protocol: proto, SrcAddr: tcpip.AddrFrom4(framed.Bottle4.Addr().As4()), DstAddr: tcpip.AddrFrom4Slice(dst)})
		return b
	}
	group4 := MAC{1, 0, 0x5e, 0, 0, 0x16}
	v6 := func(b []byte) []byte { return frame(group6, framed.BottleMAC, 0x86dd, b) }
	v4 := func(b []byte) []byte { return frame(group4, framed.BottleMAC, 0x0800, b) }
	for name, b := range map[string][]byte{
		"listener report v2":    v6(hopByHop(message6(local, reports, 143, nil), 0)),
		"listener report v1":    v6(hopByHop(message6(local, reports, 131, nil), 0)),
		"listener done":         v6(hopByHop(message6(local, routers, 132, nil), 0)),
		"before an address":     v6(hopByHop(message6(netip.IPv6Unspecified(), reports, 143, nil), 0)),
		"router solicitation":   v6(message6(local, routers, 133, nil)),
		"unasked advertisement": v6(message6(local, netip.MustParseAddr("ff02::1"), 136, nil)),
		"membership report":     v4(igmp([]byte{224, 0, 0, 22}, 2)),
	} {
		before := l.Stats().Quiet.Load()
		write(t, bottle, b)
		waitFor(t, name, func() bool { return l.Stats().Quiet.Load() == before+1 })
	}
	if h.count() != 0 {
		t.Errorf("the filter heard of % x", h.last())
	}
	for name, packet := range map[string][]byte{
		"mDNS":                       igmp([]byte{224, 0, 0, 251}, 17),
		"membership beyond the link": igmp([]byte{239, 1, 2, 3}, 2),
		"limited broadcast":          igmp([]byte{255, 255, 255, 255}, 17),
		"echo to all nodes":          message6(framed.Bottle6.Addr(), netip.MustParseAddr("ff02::1"), 128, nil),
		"a router advertisement":     message6(local, netip.MustParseAddr("ff02::1"), 134, nil),
		"a redirect":                 message6(local, netip.MustParseAddr("ff02::1"), 137, nil),
		"a report beyond the link":   message6(local, netip.MustParseAddr("ff05::16"), 143, nil),
		"a longer hop-by-hop header": hopByHop(message6(local, reports, 143, nil), 1),
		"a report's header alone":    hopByHop(message6(local, reports, 143, nil), 0)[:48],
		"UDP to all nodes":           message6(local, netip.MustParseAddr("ff02::1"), 143, func(ip header.IPv6, _ header.ICMPv6) { ip[6] = 17 }),
	} {
		before := l.Stats().Filtered.Load()
		b := v4(packet)
		if packet[0]>>4 == 6 {
			b = v6(packet)
		}
		write(t, bottle, b)
		waitFor(t, name, func() bool { return l.Stats().Filtered.Load() == before+1 })
		if string(h.last()) != string(packet) {
			t.Errorf("%s: the filter heard of % x", name, h.last())
		}
	}
	if len(d.got) != 0 || l.Stats().Out.Load() != 0 {
		t.Errorf("%d were delivered, %d answered", len(d.got), l.Stats().Out.Load())
	}
}

// TestFloodOfQuestions: a bottle that asks and does not read makes nobody wait, and
// the link goes on.
func TestFloodOfQuestions(t *testing.T) {
	l, bottle, _ := newFramedLink(t, all)
	ask := frame(framed.GatewayMAC, framed.BottleMAC, 0x0806, question(nil))
	for l.Stats().WriteDropped.Load() == 0 {
		write(t, bottle, ask)
	}
	if n := l.Stats().WriteWaits.Load(); n != 0 {
		t.Errorf("the reader waited %d times for the bottle", n)
	}
	for range l.Stats().Out.Load() {
		if got := received(t, bottle); len(got) != 42 {
			t.Fatalf("% x", got)
		}
	}
	l.Shutdown()
	l.trySend(ask) // after the end: nothing happens
}

// FuzzFrames: no frame crashes the link or, if it is not from the bottle's card to the
// gateway's, reaches the stack.
func FuzzFrames(f *testing.F) {
	fr := newFraming(framed)
	for _, b := range [][]byte{
		sent(packet(60)), sent(packet6(60)), sent(solicitation(nil)), frame(framed.GatewayMAC, framed.BottleMAC, 0x0806, question(nil)),
		frame(MAC{0x33, 0x33}, framed.BottleMAC, 0x86dd, hopByHop(solicitation(nil), 0)), {1, 2, 3},
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var head [frameHeader]byte
		copy(head[:], b)
		body := b[min(len(b), frameHeader):]
		size := len(b) - frameHeader
		got := fr.judge(&head, body[:min(len(body), readSizes[0])], size)
		to, from, kind := MAC(head[:6]), MAC(head[6:12]), binary.BigEndian.Uint16(head[12:])
		switch {
		case got == 0:
			t.Fatal("no fate")
		case got == fateBad:
			return
		case size <= 0 || from != framed.BottleMAC:
			t.Fatalf("fate %d for a frame of %v with %d bytes", got, from, size)
		}
		switch got {
		case fateIP:
			if to != framed.GatewayMAC || kind == 0x0800 && body[0]>>4 != 4 || kind == 0x86dd && body[0]>>4 != 6 || kind != 0x0800 && kind != 0x86dd {
				t.Fatalf("% x is delivered", b)
			}
			if n := unpad(body, size); n < 20 || n > size {
				t.Fatalf("of %d bytes %d are the packet", size, n)
			}
		case fateAnswer:
			answer := fr.answer(&head, body)
			if MAC(answer[:6]) != framed.BottleMAC || MAC(answer[6:12]) != framed.GatewayMAC || len(answer) > 14+40+32 {
				t.Fatalf("the answer is % x", answer)
			}
		}
	})
}

// machine returns a network stack that is like a virtual machine's: it speaks Ethernet,
// finds its neighbours and verifies checksums.
func machine(t *testing.T, end *os.File) *stack.Stack {
	t.Helper()
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	var fd int
	raw, err := end.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(f uintptr) { fd = int(f) })
	ep, err := fdbased.New(&fdbased.Options{
		FDs: []int{fd}, MTU: framed.MTU, PacketDispatchMode: fdbased.RecvMMsg,
		EthernetHeader: true, Address: tcpip.LinkAddress(framed.BottleMAC[:]),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.CreateNIC(1, ep); err != nil {
		t.Fatal(err)
	}
	addTo(t, s, ipv4.ProtocolNumber, framed.Bottle4)
	addTo(t, s, ipv6.ProtocolNumber, framed.Bottle6)
	s.SetRouteTable([]tcpip.Route{
		{Destination: header.IPv4EmptySubnet, Gateway: tcpip.AddrFrom4(framed.Gateway4.As4()), NIC: 1},
		{Destination: header.IPv6EmptySubnet, Gateway: tcpip.AddrFrom16(framed.Gateway6.As16()), NIC: 1},
	})
	return s
}

func addTo(t *testing.T, s *stack.Stack, proto tcpip.NetworkProtocolNumber, p netip.Prefix) {
	t.Helper()
	a := tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(p.Addr().AsSlice()), PrefixLen: p.Bits()}
	if err := s.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: proto, AddressWithPrefix: a}, stack.AddressProperties{}); err != nil {
		t.Fatal(err)
	}
}

// TestFramedStacks: TCP connections work both ways between the gateway's stack and one
// like a virtual machine's, which finds the gateway by ARP and by neighbour discovery.
func TestFramedStacks(t *testing.T) {
	p, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	l, err := NewLink(p.Host, framed, all)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Shutdown()
	gw := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	defer gw.Destroy()
	if err := gw.CreateNIC(1, l); err != nil {
		t.Fatal(err)
	}
	addTo(t, gw, ipv4.ProtocolNumber, netip.PrefixFrom(framed.Gateway4, 31))
	addTo(t, gw, ipv6.ProtocolNumber, netip.PrefixFrom(framed.Gateway6, 64))
	gw.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}, {Destination: header.IPv6EmptySubnet, NIC: 1}})
	vm := machine(t, p.Bottle)
	defer vm.Destroy()

	text := packet(1 << 20)
	for _, c := range []struct {
		name     string
		from, to *stack.Stack
		addr     netip.Addr
		proto    tcpip.NetworkProtocolNumber
	}{
		{"out by IPv4", vm, gw, framed.Gateway4, ipv4.ProtocolNumber},
		{"out by IPv6", vm, gw, framed.Gateway6, ipv6.ProtocolNumber},
		{"in by IPv4", gw, vm, framed.Bottle4.Addr(), ipv4.ProtocolNumber},
		{"in by IPv6", gw, vm, framed.Bottle6.Addr(), ipv6.ProtocolNumber},
	} {
		at := tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFromSlice(c.addr.AsSlice()), Port: 7}
		ln, err := gonet.ListenTCP(c.to, at, c.proto)
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() {
			conn, err := ln.Accept()
			if err == nil {
				_, err = io.Copy(conn, io.LimitReader(conn, int64(len(text))))
				err = errors.Join(err, conn.Close())
			}
			served <- err
		}()
		conn, err := gonet.DialContextTCP(t.Context(), c.from, at, c.proto)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		go conn.Write(text)
		got, err := io.ReadAll(conn)
		if err != nil || string(got) != string(text) {
			t.Errorf("%s: %d bytes came back, %v", c.name, len(got), err)
		}
		if err := <-served; err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		conn.Close()
		ln.Close()
	}
	if l.Stats().Neighbour.Load() < 2 {
		t.Errorf("%d questions for neighbours were answered, want one of each kind", l.Stats().Neighbour.Load())
	}
	for _, n := range []uint64{vm.Stats().TCP.ChecksumErrors.Value(), gw.Stats().TCP.ChecksumErrors.Value()} {
		if n != 0 {
			t.Errorf("%d wrong checksums", n)
		}
	}
}
