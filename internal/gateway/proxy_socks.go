package gateway

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Numbers of RFC 1928.
const (
	socksVersion    = 5
	socks4Version   = 4
	socksNoAuth     = 0
	socksNoMethod   = 0xff
	socksConnect    = 1
	socksUDP        = 3
	socksIPv4       = 1
	socksName       = 3
	socksIPv6       = 4
	socksGranted    = 0
	socksFailure    = 1
	socksForbidden  = 2
	socksNoCommand  = 7
	socksNoAddrType = 8
)

// socks4Refused is the answer to a request of SOCKS4.
var socks4Refused = []byte{0, 0x5b, 0, 0, 0, 0, 0, 0}

// socksVoice answers a client that speaks SOCKS5.
type socksVoice struct{}

func (socksVoice) accepted() []byte { return socksReply(socksGranted) }

func (socksVoice) refused(v *refusal) []byte {
	if v.Reason == reasonClosing {
		return socksReply(socksFailure)
	}
	return socksReply(socksForbidden)
}

// socksReply returns a reply. The address in it is of no use to a client.
func socksReply(code byte) []byte {
	return []byte{socksVersion, code, 0, socksIPv4, 0, 0, 0, 0, 0, 0}
}

// negotiateSOCKS reads a greeting, answers it, and reads the request. It returns the
// connection that the client asks for, or the refusal. A client that sends everything at
// once is served too.
func (g *Gateway) negotiateSOCKS(s *sniffer, c net.Conn) (*proxyRequest, []byte) {
	fail := func(reason Reason, detail string, no []byte) (*proxyRequest, []byte) {
		g.recordProxy(reason, detail)
		return nil, no
	}
	at := 0
	// take returns the next n bytes of the stream.
	take := func(n int) ([]byte, error) {
		for len(s.buf) < at+n {
			if err := s.more(); err != nil {
				return nil, err
			}
		}
		at += n
		return s.buf[at-n : at], nil
	}
	head, err := take(2)
	if err != nil {
		return fail(s.startReason(err), "", nil)
	}
	methods, err := take(int(head[1]))
	if err != nil {
		return fail(s.startReason(err), "", nil)
	}
	if !slices.Contains(methods, socksNoAuth) {
		return fail(reasonProxy, "SOCKS5 with authentication only", []byte{socksVersion, socksNoMethod})
	}
	if _, err := c.Write([]byte{socksVersion, socksNoAuth}); err != nil {
		return fail(reasonReset, "", nil)
	}
	if head, err = take(4); err != nil {
		return fail(s.startReason(err), "", nil)
	}
	switch command, kind := head[1], head[3]; {
	case head[0] != socksVersion || head[2] != 0:
		return fail(reasonProxy, "SOCKS5 request is invalid", socksReply(socksFailure))
	case command == socksUDP:
		return fail(reasonUDP, "SOCKS5 UDP ASSOCIATE", socksReply(socksNoCommand))
	case command != socksConnect:
		return fail(reasonProxy, "SOCKS5 command other than CONNECT", socksReply(socksNoCommand))
	case kind != socksIPv4 && kind != socksIPv6 && kind != socksName:
		return fail(reasonProxy, "SOCKS5 address type", socksReply(socksNoAddrType))
	}
	host, port, err := socksAddress(head[3], take)
	if err != nil {
		return fail(s.startReason(err), "", nil)
	}
	if host == "" || port == 0 {
		return fail(reasonProxy, "SOCKS5 request without a destination", socksReply(socksFailure))
	}
	addr, v := g.proxyAddr(host, port)
	if v != nil {
		return nil, socksVoice{}.refused(v)
	}
	s.buf = s.buf[at:]
	return &proxyRequest{dst: addr, voice: socksVoice{}}, nil
}

// socksAddress reads the destination of a request.
func socksAddress(kind byte, take func(int) ([]byte, error)) (host string, port uint16, err error) {
	var b []byte
	switch kind {
	case socksIPv4:
		if b, err = take(4); err == nil {
			host = netip.AddrFrom4([4]byte(b)).String()
		}
	case socksIPv6:
		if b, err = take(16); err == nil {
			host = netip.AddrFrom16([16]byte(b)).String()
		}
	case socksName:
		if b, err = take(1); err == nil {
			if b, err = take(int(b[0])); err == nil {
				host = strings.Clone(string(b))
			}
		}
	}
	if err != nil {
		return "", 0, err
	}
	if b, err = take(2); err != nil {
		return "", 0, err
	}
	return host, binary.BigEndian.Uint16(b), nil
}
