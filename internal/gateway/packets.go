package gateway

import (
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// packet holds what the filter needs from a packet whose headers are consistent.
type packet struct {
	src, dst netip.Addr
	proto    tcpip.TransportProtocolNumber
	whole    []byte // from the IP header on, as far as it is contiguous
	payload  []byte // transport header and payload, as far as contiguous
}

// filter sees each packet from the bottle before the stack does. It passes only TCP,
// and echo requests to the gateway. It answers UDP and everything else itself, packet
// by packet, without state that a flood could fill.
func (g *Gateway) filter(head []byte, size int) bool {
	p, reason := parsePacket(head, size)
	if reason == ReasonOK {
		reason = g.checkAddresses(p)
	}
	if reason != ReasonOK {
		g.ledger.packet(reason)
		return false
	}
	switch p.proto {
	case header.TCPProtocolNumber:
		return true
	case header.UDPProtocolNumber:
		g.handleUDP(p)
	case header.ICMPv4ProtocolNumber, header.ICMPv6ProtocolNumber:
		return g.handleICMP(p)
	default:
		g.refusePacket(p, reasonIPProtocol, "")
	}
	return false
}

// parsePacket checks headers against each other and against the length. It refuses
// options, extension headers and fragments: no program in a bottle needs them, and
// each is a way to make two readers disagree.
func parsePacket(b []byte, size int) (packet, Reason) {
	if len(b) == 0 {
		return packet{}, reasonMalformedPacket
	}
	switch b[0] >> 4 {
	case 4:
		return parseIPv4(b, size)
	case 6:
		return parseIPv6(b, size)
	default:
		return packet{}, reasonMalformedPacket
	}
}

func parseIPv4(b []byte, size int) (packet, Reason) {
	if len(b) < header.IPv4MinimumSize || b[0] != 0x45 {
		return packet{}, reasonMalformedPacket
	}
	h := header.IPv4(b)
	if int(h.TotalLength()) != size {
		return packet{}, reasonMalformedPacket
	}
	if h.More() || h.FragmentOffset() != 0 {
		return packet{}, reasonFragment
	}
	return packet{
		src:     netip.AddrFrom4([4]byte(b[12:16])),
		dst:     netip.AddrFrom4([4]byte(b[16:20])),
		proto:   h.TransportProtocol(),
		whole:   b,
		payload: b[header.IPv4MinimumSize:],
	}, transportFits(h.TransportProtocol(), b[header.IPv4MinimumSize:])
}

func parseIPv6(b []byte, size int) (packet, Reason) {
	if len(b) < header.IPv6MinimumSize {
		return packet{}, reasonMalformedPacket
	}
	h := header.IPv6(b)
	if int(h.PayloadLength())+header.IPv6MinimumSize != size {
		return packet{}, reasonMalformedPacket
	}
	if h.NextHeader() == uint8(header.IPv6FragmentExtHdrIdentifier) {
		return packet{}, reasonFragment
	}
	// Extension headers are not followed: a packet with some has no protocol that is
	// served.
	proto := tcpip.TransportProtocolNumber(h.NextHeader())
	return packet{
		src:     netip.AddrFrom16([16]byte(b[8:24])),
		dst:     netip.AddrFrom16([16]byte(b[24:40])),
		proto:   proto,
		whole:   b,
		payload: b[header.IPv6MinimumSize:],
	}, transportFits(proto, b[header.IPv6MinimumSize:])
}

// transportFits checks that b holds a whole transport header.
func transportFits(proto tcpip.TransportProtocolNumber, b []byte) Reason {
	need := 0
	switch proto {
	case header.TCPProtocolNumber:
		need = header.TCPMinimumSize
	case header.UDPProtocolNumber:
		need = header.UDPMinimumSize
	case header.ICMPv4ProtocolNumber, header.ICMPv6ProtocolNumber:
		need = header.ICMPv4MinimumSize
	}
	if len(b) < need {
		return reasonMalformedPacket
	}
	return ReasonOK
}

func (g *Gateway) checkAddresses(p packet) Reason {
	if p.src != g.wire.Bottle4.Addr() && p.src != g.wire.Bottle6.Addr() {
		// Neighbour discovery and listener reports use other addresses and need no
		// answer on this wire.
		if p.proto == header.ICMPv6ProtocolNumber || p.dst.IsMulticast() {
			return reasonBadDestination
		}
		return reasonSpoofedSource
	}
	if g.badDestination(p.dst) {
		return reasonBadDestination
	}
	return ReasonOK
}

// badDestination reports whether a is an address that no route can allow.
func (g *Gateway) badDestination(a netip.Addr) bool {
	return !a.IsValid() || a.IsMulticast() || a.IsLoopback() || a.IsUnspecified() || a.Is4In6() || a.Zone() != "" ||
		a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) || a == g.wire.Bottle4.Addr() || a == g.wire.Bottle6.Addr()
}

func (g *Gateway) handleUDP(p packet) {
	h := header.UDP(p.payload)
	if int(h.Length()) < header.UDPMinimumSize || int(h.Length()) > len(p.payload) {
		// A DNS question is never so long.
		if h.DestinationPort() == 53 {
			g.ledger.packet(reasonMalformedPacket)
			return
		}
		g.refusePacket(p, reasonUDP, "udp")
		return
	}
	if h.DestinationPort() != 53 {
		g.refusePacket(p, reasonUDP, "udp")
		return
	}
	reply := g.answerDNS(p.payload[header.UDPMinimumSize:h.Length()], false)
	if reply == nil {
		return
	}
	g.link.Inject(buildUDP(netip.AddrPortFrom(p.dst, 53), netip.AddrPortFrom(p.src, h.SourcePort()), reply))
}

func (g *Gateway) handleICMP(p packet) bool {
	four := p.proto == header.ICMPv4ProtocolNumber && p.src.Is4()
	six := p.proto == header.ICMPv6ProtocolNumber && p.src.Is6()
	echo := four && header.ICMPv4(p.payload).Type() == header.ICMPv4Echo ||
		six && header.ICMPv6(p.payload).Type() == header.ICMPv6EchoRequest
	if !echo {
		// No answer is due to errors and advertisements (RFC 1122 section 3.2.2).
		g.ledger.packet(reasonICMP)
		return false
	}
	if p.dst == g.wire.Gateway4 || p.dst == g.wire.Gateway6 {
		return true
	}
	g.refusePacket(p, reasonICMP, "icmp")
	return false
}

// refusePacket records a refusal and tells the bottle at once, so that tools fall back
// instead of waiting.
func (g *Gateway) refusePacket(p packet, reason Reason, proto string) {
	g.ledger.packet(reason)
	var port uint16
	if proto == "udp" {
		port = header.UDP(p.payload).DestinationPort()
	}
	g.recordRefusedAddr(netip.AddrPortFrom(p.dst, port), proto, reason)
	if !g.icmpRate.Allow() {
		return
	}
	g.answered.Add(1)
	g.link.Inject(buildUnreachable(p, reason == reasonUDP))
}

// buildUDP makes a UDP packet.
func buildUDP(src, dst netip.AddrPort, payload []byte) []byte {
	b, transport := buildIP(src.Addr(), dst.Addr(), header.UDPProtocolNumber, header.UDPMinimumSize+len(payload))
	u := header.UDP(transport)
	u.Encode(&header.UDPFields{SrcPort: src.Port(), DstPort: dst.Port(), Length: uint16(len(transport))})
	copy(u.Payload(), payload)
	sum := header.PseudoHeaderChecksum(header.UDPProtocolNumber, toTCPIP(src.Addr()), toTCPIP(dst.Addr()), uint16(len(transport)))
	sum = checksum.Checksum(transport, sum)
	u.SetChecksum(^sum)
	if u.Checksum() == 0 {
		u.SetChecksum(0xffff)
	}
	return b
}

// buildUnreachable makes the ICMP error for a packet: port unreachable for UDP, which
// every program notices at once; else administratively prohibited.
func buildUnreachable(p packet, port bool) []byte {
	if p.dst.Is4() {
		quoted := p.whole[:min(len(p.whole), header.IPv4MinimumSize+64)]
		b, t := buildIP(p.dst, p.src, header.ICMPv4ProtocolNumber, header.ICMPv4MinimumSize+len(quoted))
		h := header.ICMPv4(t)
		h.SetType(header.ICMPv4DstUnreachable)
		h.SetCode(header.ICMPv4HostProhibited)
		if port {
			h.SetCode(header.ICMPv4PortUnreachable)
		}
		copy(t[header.ICMPv4MinimumSize:], quoted)
		h.SetChecksum(^checksum.Checksum(t, 0))
		return b
	}
	quoted := p.whole[:min(len(p.whole), 1232-header.ICMPv6MinimumSize)]
	b, t := buildIP(p.dst, p.src, header.ICMPv6ProtocolNumber, header.ICMPv6DstUnreachableMinimumSize+len(quoted))
	h := header.ICMPv6(t)
	h.SetType(header.ICMPv6DstUnreachable)
	h.SetCode(header.ICMPv6Prohibited)
	if port {
		h.SetCode(header.ICMPv6PortUnreachable)
	}
	copy(t[header.ICMPv6DstUnreachableMinimumSize:], quoted)
	h.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: h, Src: toTCPIP(p.dst), Dst: toTCPIP(p.src)}))
	return b
}

// buildIP makes an IP packet with room for n bytes of transport, and returns both.
func buildIP(src, dst netip.Addr, proto tcpip.TransportProtocolNumber, n int) (whole, transport []byte) {
	if src.Is4() {
		b := make([]byte, header.IPv4MinimumSize+n)
		h := header.IPv4(b)
		h.Encode(&header.IPv4Fields{
			TotalLength: uint16(len(b)), TTL: 64, Protocol: uint8(proto),
			SrcAddr: toTCPIP(src), DstAddr: toTCPIP(dst),
		})
		h.SetChecksum(^h.CalculateChecksum())
		return b, b[header.IPv4MinimumSize:]
	}
	b := make([]byte, header.IPv6MinimumSize+n)
	b[0] = 0x60
	binary.BigEndian.PutUint16(b[4:], uint16(n))
	b[6], b[7] = uint8(proto), 64
	s, d := src.As16(), dst.As16()
	copy(b[8:], s[:])
	copy(b[24:], d[:])
	return b, b[header.IPv6MinimumSize:]
}

func toTCPIP(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }

func fromTCPIP(a tcpip.Address) netip.Addr {
	addr, _ := netip.AddrFromSlice(a.AsSlice())
	return addr
}
