package wire

import (
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// SetChecksum writes the TCP or UDP checksum of an IP packet, which a [Link] without
// frames leaves out. Fragments, other protocols and what is no whole packet stay as they
// are.
func SetChecksum(p []byte) {
	var ip header.Network
	switch header.IPVersion(p) {
	case header.IPv4Version:
		h := header.IPv4(p)
		if !h.IsValid(len(p)) || h.More() || h.FragmentOffset() != 0 {
			return
		}
		ip = h
	case header.IPv6Version:
		h := header.IPv6(p)
		if !h.IsValid(len(p)) {
			return
		}
		ip = h
	default:
		return
	}
	body, proto := ip.Payload(), ip.TransportProtocol()
	sum := func() uint16 {
		return ^checksum.Checksum(body, header.PseudoHeaderChecksum(proto, ip.SourceAddress(), ip.DestinationAddress(), uint16(len(body))))
	}
	switch {
	case proto == header.TCPProtocolNumber && len(body) >= header.TCPMinimumSize:
		h := header.TCP(body)
		h.SetChecksum(0)
		h.SetChecksum(sum())
	case proto == header.UDPProtocolNumber && len(body) >= header.UDPMinimumSize:
		h := header.UDP(body)
		h.SetChecksum(0)
		c := sum()
		if c == 0 {
			c = 0xffff // 0 means that there is none
		}
		h.SetChecksum(c)
	}
}
