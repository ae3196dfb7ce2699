package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/rawfile"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// A virtual machine's network card speaks Ethernet. With MAC addresses in its Config,
// a Link puts a header before each packet and takes it off again, and answers the two
// questions that a kernel asks about its neighbours. Nothing else of Ethernet exists:
// both MAC addresses are fixed, and a frame that says otherwise is dropped.

const (
	// frameHeader is the size of an Ethernet header.
	frameHeader = header.EthernetMinimumSize

	// framePayload is the shortest payload of a frame on a real line (IEEE 802.3
	// section 3.2.8). Cards pad shorter ones.
	framePayload = 46
)

// MAC is an Ethernet address. The zero value is none.
type MAC [6]byte

func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// group reports whether m names several receivers.
func (m MAC) group() bool { return m[0]&1 != 0 }

// Framed returns c for a bottle whose card speaks Ethernet. Both addresses are locally
// administered ones, the same for each bottle, since no two share a wire. The MTU leaves
// room for the frame's header in the largest frame that a virtual card takes.
func (c Config) Framed() Config {
	c.BottleMAC, c.GatewayMAC = MAC{2, 0, 0, 0, 0, 2}, MAC{2, 0, 0, 0, 0, 3}
	c.MTU = min(c.MTU, MTU-frameHeader)
	return c
}

// validateMACs returns an error if the addresses can't be those of two cards.
func (c Config) validateMACs() error {
	switch none := (MAC{}); {
	case c.BottleMAC == none && c.GatewayMAC == none:
		return nil
	case c.BottleMAC == none || c.GatewayMAC == none || c.BottleMAC == c.GatewayMAC:
		return fmt.Errorf("wire: MAC addresses %v and %v: not those of two cards", c.BottleMAC, c.GatewayMAC)
	case c.BottleMAC.group() || c.GatewayMAC.group():
		return fmt.Errorf("wire: MAC addresses %v and %v: one is a group's", c.BottleMAC, c.GatewayMAC)
	case c.MTU > MTU-frameHeader:
		return fmt.Errorf("wire: mtu %d: above %d, which leaves room for the Ethernet header", c.MTU, MTU-frameHeader)
	}
	return nil
}

// framing holds what the Ethernet mode of a link needs. It is immutable.
type framing struct {
	cfg          Config
	head4, head6 [frameHeader]byte // of frames to the bottle
}

// newFraming returns nil if cfg has no MAC addresses: the wire carries IP packets.
func newFraming(cfg Config) *framing {
	if cfg.BottleMAC == (MAC{}) {
		return nil
	}
	f := &framing{cfg: cfg}
	f.head4 = f.head(header.IPv4ProtocolNumber)
	f.head6 = f.head(header.IPv6ProtocolNumber)
	return f
}

func (f *framing) head(proto tcpip.NetworkProtocolNumber) (h [frameHeader]byte) {
	copy(h[:], f.cfg.BottleMAC[:])
	copy(h[6:], f.cfg.GatewayMAC[:])
	binary.BigEndian.PutUint16(h[12:], uint16(proto))
	return h
}

// iovec returns the header for an IP packet that begins with first.
func (f *framing) iovec(first byte) unix.Iovec {
	v := unix.Iovec{Base: &f.head4[0]}
	if first>>4 == header.IPv6Version {
		v.Base = &f.head6[0]
	}
	v.SetLen(frameHeader)
	return v
}

// fate says what becomes of a frame.
type fate int

const (
	_          fate = iota
	fateIP          // it holds an IP packet for the gateway, which the filter judges
	fateGroup       // it holds one for a group: the filter judges it, the stack never sees it
	fateAnswer      // it asks for a neighbour, and is answered
	fateQuiet       // a kernel sends it by itself, and needs no answer
	fateBad         // it should not exist
)

// judge says what becomes of the frame with this header. head holds the beginning of
// its payload, size the payload's length.
func (f *framing) judge(frame *[frameHeader]byte, head []byte, size int) fate {
	to, from := MAC(frame[0:6]), MAC(frame[6:12])
	if size <= 0 || from != f.cfg.BottleMAC || to != f.cfg.GatewayMAC && !to.group() {
		return fateBad
	}
	switch proto := tcpip.NetworkProtocolNumber(binary.BigEndian.Uint16(frame[12:])); {
	case proto == header.ARPProtocolNumber:
		return f.judgeARP(head)
	case proto == header.IPv4ProtocolNumber && head[0]>>4 == header.IPv4Version && len(head) >= header.IPv4MinimumSize:
		return f.judgeIPv4(head, to.group())
	case proto == header.IPv6ProtocolNumber && head[0]>>4 == header.IPv6Version && len(head) >= header.IPv6MinimumSize:
		return f.judgeIPv6(head, size, to.group())
	}
	return fateBad
}

// judgeARP accepts requests of the bottle (RFC 826). The gateway is its neighbour at every
// address, so that what is refused is refused at once. Its kernel also asks for and
// announces its own address, which needs no answer.
func (f *framing) judgeARP(b []byte) fate {
	h := header.ARP(b)
	if !h.IsValid() || MAC(h.HardwareAddressSender()) != f.cfg.BottleMAC {
		return fateBad
	}
	own := f.cfg.Bottle4.Addr().As4()
	sender, target := [4]byte(h.ProtocolAddressSender()), [4]byte(h.ProtocolAddressTarget())
	if sender != own && sender != [4]byte{} {
		return fateBad
	}
	if h.Op() == header.ARPRequest && target != own && neighbour(netip.AddrFrom4(target)) {
		return fateAnswer
	}
	return fateQuiet
}

// neighbour reports whether a host can have the address.
func neighbour(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// quietIPv4 are the groups of one network (RFC 5771 section 4), in which hosts report
// their memberships.
var quietIPv4 = netip.MustParsePrefix("224.0.0.0/24")

const protocolIGMP = 2

func (f *framing) judgeIPv4(b []byte, group bool) fate {
	h := header.IPv4(b)
	to := netip.AddrFrom4(h.DestinationAddress().As4())
	switch {
	case !group:
		return fateIP
	case h.Protocol() == protocolIGMP && quietIPv4.Contains(to):
		return fateQuiet
	case to.IsMulticast() || to == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fateGroup
	}
	return fateBad
}

func (f *framing) judgeIPv6(b []byte, size int, group bool) fate {
	h := header.IPv6(b)
	to := netip.AddrFrom16(h.DestinationAddress().As16())
	kind, message := icmp6(b)
	switch {
	case kind == header.ICMPv6NeighborSolicit && f.asks(h, message, size):
		return fateAnswer
	case !group:
		return fateIP
	case !to.IsMulticast():
		return fateBad
	case to.IsLinkLocalMulticast() && kernelSends(kind):
		return fateQuiet
	}
	return fateGroup
}

// icmp6 returns the type and the bytes of an ICMPv6 message; zero if b is something
// else. Listener reports have a hop-by-hop header, always of eight bytes (RFC 3810
// section 5).
func icmp6(b []byte) (header.ICMPv6Type, []byte) {
	next, at := b[6], header.IPv6MinimumSize
	if next == uint8(header.IPv6HopByHopOptionsExtHdrIdentifier) && len(b) >= at+8 && b[at+1] == 0 {
		next, at = b[at], at+8
	}
	if next != uint8(header.ICMPv6ProtocolNumber) || len(b) < at+header.ICMPv6MinimumSize {
		return 0, nil
	}
	return header.ICMPv6Type(b[at]), b[at:]
}

// kernelSends reports whether a kernel sends such messages to groups by itself when its
// card comes up: listener reports, router and neighbour solicitations, advertisements.
func kernelSends(t header.ICMPv6Type) bool {
	switch t {
	case header.ICMPv6MulticastListenerReport, header.ICMPv6MulticastListenerV2Report, header.ICMPv6MulticastListenerDone,
		header.ICMPv6RouterSolicit, header.ICMPv6NeighborSolicit, header.ICMPv6NeighborAdvert:
		return true
	}
	return false
}

// asks reports whether the message is a whole, sound solicitation of an address other than
// the bottle's, from one that an answer can reach (RFC 4861 section 7.1.1).
func (f *framing) asks(h header.IPv6, m []byte, size int) bool {
	const need = header.ICMPv6NeighborSolicitMinimumSize
	from := netip.AddrFrom16(h.SourceAddress().As16())
	if h.HopLimit() != header.NDPHopLimit || h.NextHeader() != uint8(header.ICMPv6ProtocolNumber) || len(m) < need ||
		int(h.PayloadLength()) > len(m) || int(h.PayloadLength()) < need || header.IPv6MinimumSize+int(h.PayloadLength()) > size {
		return false
	}
	if from != f.cfg.Bottle6.Addr() && !from.IsLinkLocalUnicast() || m[1] != 0 {
		return false
	}
	if target := netip.AddrFrom16([16]byte(m[8:24])); target == f.cfg.Bottle6.Addr() || target == from || !neighbour(target) {
		return false
	}
	m = m[:h.PayloadLength()]
	sum := header.PseudoHeaderChecksum(header.ICMPv6ProtocolNumber, h.SourceAddress(), h.DestinationAddress(), uint16(len(m)))
	return checksum.Checksum(m, sum) == 0xffff
}

// answer returns the frame that answers a question which judge has accepted.
func (f *framing) answer(frame *[frameHeader]byte, head []byte) []byte {
	if tcpip.NetworkProtocolNumber(binary.BigEndian.Uint16(frame[12:])) == header.ARPProtocolNumber {
		return f.answerARP(head)
	}
	return f.answerSolicitation(header.IPv6(head))
}

func (f *framing) answerARP(question header.ARP) []byte {
	top := f.head(header.ARPProtocolNumber)
	b := append(top[:], make([]byte, header.ARPSize)...)
	h := header.ARP(b[frameHeader:])
	h.SetIPv4OverEthernet()
	h.SetOp(header.ARPReply)
	copy(h.HardwareAddressSender(), f.cfg.GatewayMAC[:])
	copy(h.ProtocolAddressSender(), question.ProtocolAddressTarget())
	copy(h.HardwareAddressTarget(), f.cfg.BottleMAC[:])
	copy(h.ProtocolAddressTarget(), question.ProtocolAddressSender())
	return b
}

// answerSolicitation makes a neighbour advertisement (RFC 4861 section 4.4).
func (f *framing) answerSolicitation(question header.IPv6) []byte {
	const option = 8 // target's link-layer address
	const size = header.ICMPv6NeighborAdvertMinimumSize + option
	b := make([]byte, frameHeader+header.IPv6MinimumSize+size)
	copy(b, f.head6[:])
	ip := header.IPv6(b[frameHeader:])
	target := [16]byte(question.Payload()[8:24])
	from := tcpip.AddrFrom16(target)
	ip.Encode(&header.IPv6Fields{
		PayloadLength: size, TransportProtocol: header.ICMPv6ProtocolNumber, HopLimit: header.NDPHopLimit,
		SrcAddr: from, DstAddr: question.SourceAddress(),
	})
	m := header.ICMPv6(ip[header.IPv6MinimumSize:])
	m.SetType(header.ICMPv6NeighborAdvert)
	m[4] = 0x60 // solicited, override
	copy(m[8:], target[:])
	m[24], m[25] = 2, 1 // the option's type, and its length in units of eight bytes
	copy(m[26:], f.cfg.GatewayMAC[:])
	m.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: m, Src: from, Dst: question.SourceAddress()}))
	return b
}

// unpad returns the length of the IP packet in a payload, which padding can follow if
// the payload is as short as a frame allows. Other lengths are left for the filter.
func unpad(b []byte, size int) int {
	if size > framePayload || len(b) < header.IPv4MinimumSize {
		return size
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	if b[0]>>4 == header.IPv6Version {
		n = header.IPv6MinimumSize + int(binary.BigEndian.Uint16(b[4:]))
	}
	if n >= header.IPv4MinimumSize && n < size {
		return n
	}
	return size
}

// openFrame returns the length of the IP packet in a frame of size bytes, or 0: there
// is none for the stack. The filter is told of a bad frame as an empty packet.
func (l *Link) openFrame(s *slot, size int) int {
	size -= frameHeader
	head := s.views[0].AsSlice()[:max(0, min(size, readSizes[0]))]
	switch l.frames.judge(&s.frame, head, size) {
	case fateIP:
		return unpad(head, size)
	case fateAnswer:
		l.stats.Neighbour.Add(1)
		l.trySend(l.frames.answer(&s.frame, head))
		return 0
	case fateQuiet:
		l.stats.Quiet.Add(1)
		return 0
	case fateGroup:
		size = unpad(head, size)
		head = head[:min(len(head), size)]
	default:
		head, size = nil, max(size, 0)
	}
	l.stats.Filtered.Add(1)
	if l.filter != nil {
		l.filter(head, size)
	}
	return 0
}

// trySend writes a frame if the socket takes it at once. Whoever asked will ask again.
func (l *Link) trySend(frame []byte) {
	v := unix.Iovec{Base: &frame[0]}
	v.SetLen(len(frame))
	var hdr [1]rawfile.MMsgHdr
	hdr[0].Msg.Iov = &v
	hdr[0].Msg.SetIovlen(1)
	l.fdMu.RLock()
	defer l.fdMu.RUnlock()
	if l.closed {
		return
	}
	if n, _ := rawfile.NonBlockingSendMMsg(l.fd, hdr[:]); n == 1 {
		l.stats.Out.Add(1)
		return
	}
	l.stats.WriteDropped.Add(1)
}
