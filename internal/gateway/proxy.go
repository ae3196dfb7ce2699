package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/policy"
)

// Some bottles have no packets: what holds them passes TCP connections on to a listener
// of the host. For these the gateway is a proxy, of HTTP (CONNECT, and requests for http
// URLs) and of SOCKS5 (RFC 1928, CONNECT alone). A client asks for a name, gets its
// synthetic address assigned and is then treated like a connection to that address, by
// [Gateway.handleConnRequest].

// ServeProxy serves each connection that l accepts as one of the bottle's, as a proxy. It
// takes ownership of l, whose connections must be TCP. It returns nil when l or the
// gateway is closed. Whoever can connect to l acts as the bottle.
func (g *Gateway) ServeProxy(l net.Listener) error {
	defer l.Close()
	if !g.flows.enter() {
		return errClosed
	}
	defer g.flows.served.Done()
	g.proxied.Store(true)
	stop := context.AfterFunc(g.ctx, func() { _ = l.Close() })
	defer stop()
	slots := make(chan struct{}, maxHandshakes)
	for {
		c, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ECONNABORTED):
			select { // other connections must end first
			case <-time.After(50 * time.Millisecond):
			case <-g.ctx.Done():
			}
			continue
		case err != nil:
			return fmt.Errorf("gateway: accept for proxy: %w", err)
		}
		tcp, ok := c.(*net.TCPConn)
		if !ok {
			_ = c.Close()
			return fmt.Errorf("gateway: proxy on %T, which is not TCP", c)
		}
		g.handleProxyConn(tcp, slots)
	}
}

// handleProxyConn serves one connection in a goroutine of its own. slots bounds the
// connections that have not said yet what they want.
func (g *Gateway) handleProxyConn(c *net.TCPConn, slots chan struct{}) {
	select {
	case slots <- struct{}{}:
	default:
		g.ledger.limit(reasonLimitConns, "")
		reset(c)
		return
	}
	var once sync.Once
	free := func() { once.Do(func() { <-slots }) }
	if !g.flows.enter() {
		free()
		reset(c)
		return
	}
	go func() { // ends with the connection, which Close ends
		defer g.flows.served.Done()
		defer free()
		g.negotiate(c, free)
	}()
}

// proxyRequest is a connection that a client asked a proxy for.
type proxyRequest struct {
	g    *Gateway
	side *proxySide
	dst  netip.AddrPort
	// voice speaks the protocol of the client.
	voice proxyVoice
	// single says that the client asked for a URL: see flow.single.
	single bool
	free   func() // gives the place among those who negotiate back
}

// proxyVoice answers in a client's protocol.
type proxyVoice interface {
	// accepted returns what is sent before the connection carries the client's bytes.
	accepted() []byte
	refused(v *refusal) []byte
}

func (k *proxyRequest) to() netip.AddrPort { return k.dst }

func (k *proxyRequest) accept() (bottleSide, bool) {
	defer k.free()
	if _, err := k.side.TCPConn.Write(k.voice.accepted()); err != nil {
		k.side.Abort()
		return nil, false
	}
	if k.side.detach() {
		_ = k.side.SetDeadline(time.Time{})
		return k.side, true
	}
	k.side.Abort()
	return nil, false
}

// refuse answers and closes. It reads for a moment what the client still sends: see
// refuseBytes.
func (k *proxyRequest) refuse(v *refusal) {
	defer k.free()
	if slices.Contains([]Reason{Reason(policy.ReasonNoRoute), Reason(policy.ReasonLiteral), Reason(policy.ReasonPort)}, v.Reason) {
		v.Allow = policy.AllowFlag(v.Host, k.dst.Port(), "", false)
	}
	k.g.answerProxy(k.side, k.voice.refused(k.g.toldToProxy(v)))
}

// toldToProxy returns the refusal as the bottle may see it.
func (g *Gateway) toldToProxy(v *refusal) *refusal {
	told := *v
	g.advise(&told)
	told.Host, told.Detail = bound(g.hidden(v.Host)), bound(g.hidden(v.Detail))
	if told.Host != v.Host {
		told.Allow = "" // it repeats the host
	}
	return &told
}

func (g *Gateway) answerProxy(c *proxySide, goodbye []byte) {
	defer c.detach()
	if len(goodbye) == 0 {
		c.Abort()
		return
	}
	_ = c.SetDeadline(time.Now().Add(time.Second))
	_, _ = c.TCPConn.Write(goodbye)
	_ = c.CloseWrite()
	_, _ = io.CopyN(io.Discard, c.TCPConn, 256<<10)
	_ = c.Close()
}

// negotiate reads what a client wants, within the time and the bytes in which a
// connection must show its protocol, and hands the connection on or refuses it.
func (g *Gateway) negotiate(c *net.TCPConn, free func()) {
	side := &proxySide{TCPConn: c}
	side.detach = context.AfterFunc(g.ctx, side.Abort)
	_ = c.SetDeadline(time.Now().Add(g.limits.Sniff))
	s := newSniffer(c, g.limits.HeadBytes)
	if err := s.more(); err != nil {
		g.recordProxy(s.startReason(err), "")
		side.detach()
		side.Abort()
		return
	}
	var k *proxyRequest
	var no []byte
	switch s.buf[0] {
	case socksVersion:
		k, no = g.negotiateSOCKS(s, c)
	case socks4Version:
		g.recordProxy(reasonProxy, "SOCKS4")
		no = socks4Refused
	case recordHandshake:
		g.recordProxy(reasonProxy, "TLS to the proxy itself")
		no = alert(alertAccessDenied)
	default:
		k, no = g.negotiateHTTP(s)
	}
	if k == nil {
		g.answerProxy(side, no)
		return
	}
	side.first = s.buf
	k.g, k.side, k.free = g, side, free
	g.handleConnRequest(k)
}

// recordProxy records a refusal of what asks for no destination.
func (g *Gateway) recordProxy(reason Reason, detail string) {
	if reason == ReasonLimitHead {
		g.ledger.limit(reason, "")
	}
	g.ledger.conn(Conn{Time: time.Now(), Name: "proxy", Protocol: "proxy", Reason: reason, Detail: g.hidden(detail)}, true)
}

// proxyAddr returns the address that a destination of a client stands for: a synthetic
// one for a name, else the literal. It refuses names that no route allows.
func (g *Gateway) proxyAddr(host string, port uint16) (netip.AddrPort, *refusal) {
	no := func(reason Reason, rule string) (netip.AddrPort, *refusal) {
		v := &refusal{Status: http.StatusForbidden, Error: "refused", Reason: reason, Host: host, Rule: rule}
		if reason == reasonSecret {
			v.Host, v.Hint = withheld, hints[reason]
		}
		return netip.AddrPort{}, v
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return netip.AddrPortFrom(a, port), nil // judged as an address
	}
	if inside := insideName(host); g.servesInside(inside) {
		a, _ := g.names.assign(inside)
		return netip.AddrPortFrom(a, port), nil
	}
	if service := g.serviceName(host); service != "" {
		a, _ := g.names.assign(service)
		return netip.AddrPortFrom(a, port), nil
	}
	v := g.table().DecideName(host)
	a, reason := g.decideName(host, "proxy", v, true)
	if reason != ReasonOK {
		return no(reason, v.Rule)
	}
	return netip.AddrPortFrom(a, port), nil
}

// proxySide is a client's connection to the proxy.
type proxySide struct {
	*net.TCPConn
	first []byte // read while negotiating, not delivered yet
	// detach ends the watch by which Close ends a negotiation; false: it has ended it.
	detach func() bool
}

func (c *proxySide) Read(b []byte) (int, error) {
	if len(c.first) == 0 {
		return c.TCPConn.Read(b)
	}
	n := copy(b, c.first)
	if c.first = c.first[n:]; len(c.first) == 0 {
		c.first = nil
	}
	return n, nil
}

// Abort resets the connection.
func (c *proxySide) Abort() { reset(c.TCPConn) }

// Ended implements bottleSide.
func (c *proxySide) Ended() bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	const established = 1 // TCP_ESTABLISHED of the kernel
	ended := true
	if err := raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		ended = err != nil || info.State != established
	}); err != nil {
		return true
	}
	return ended
}

// proxyHead reads a whole request head, and returns it without its last line end. What
// follows it stays in s.
func proxyHead(s *sniffer) (head string, err error) {
	judged := 0 // bytes; a client that sends single ones must not have all judged again
	for {
		from := max(0, judged-3)
		end := bytes.Index(s.buf[from:], []byte("\r\n\r\n"))
		scan := s.buf[judged:]
		if end >= 0 {
			end += from
			scan = s.buf[judged : end+4]
		}
		if err := strictBytes(scan, end < 0); err != nil {
			return "", err
		}
		if end >= 0 {
			return string(s.buf[:end]), nil
		}
		judged = len(s.buf)
		if s.buf[judged-1] == '\r' {
			judged-- // with what follows it
		}
		if err := s.more(); err != nil {
			return "", err
		}
	}
}
