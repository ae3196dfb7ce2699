package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/wire"
)

// bottleSide is the bottle's side of a connection: TCP packets or a channel.
type bottleSide interface {
	net.Conn
	halfCloser
	Abort() // resets the connection
	// Ended reports whether the bottle has ended its side or is gone.
	Ended() bool
}

// connRequest is a connection that the bottle asks for.
type connRequest interface {
	to() netip.AddrPort
	accept() (bottleSide, bool)
	// refuse ends the attempt. v says why, where the way of asking has words for it.
	refuse(v *refusal)
}

// synRequest is a request by a SYN packet.
type synRequest struct{ r *tcp.ForwarderRequest }

func (k synRequest) to() netip.AddrPort {
	id := k.r.ID()
	return netip.AddrPortFrom(fromTCPIP(id.LocalAddress), id.LocalPort)
}

func (k synRequest) refuse(*refusal) { k.r.Complete(true) }

func (k synRequest) accept() (bottleSide, bool) {
	var wq waiter.Queue
	ep, err := k.r.CreateEndpoint(&wq)
	if err != nil {
		k.r.Complete(true)
		return nil, false
	}
	k.r.Complete(false)
	ep.SocketOptions().SetDelayOption(false)
	return tcpSide{gonet.NewTCPConn(&wq, ep), ep}, true
}

// tcpSide is a TCP connection with access to its endpoint.
type tcpSide struct {
	*gonet.TCPConn
	ep tcpip.Endpoint
}

func (c tcpSide) Abort() { c.ep.Abort() }

func (c tcpSide) Ended() bool { return tcp.EndpointState(c.ep.State()) != tcp.StateEstablished }

// channelRequest is a request on a channel.
type channelRequest struct{ channel *wire.Channel }

func (k channelRequest) to() netip.AddrPort { return k.channel.To() }

func (k channelRequest) refuse(*refusal) { k.channel.Refuse() }

func (k channelRequest) accept() (bottleSide, bool) {
	k.channel.Accept()
	return k.channel, true
}

// handleSYN handles one SYN. The stack calls it on a goroutine of its own, of which
// there are at most maxHandshakes.
func (g *Gateway) handleSYN(r *tcp.ForwarderRequest) { g.handleConnRequest(synRequest{r}) }

// maxChannelGoroutines bounds the goroutines that serve channels: one for each, and as
// many again for those that were just refused.
const maxChannelGoroutines = 2 * wire.ChannelCount

// handleChannel handles a connection request on a channel. Only the goroutine that
// listens to the channels calls it.
func (g *Gateway) handleChannel(l *wire.Channel) {
	select {
	case g.channelSlots <- struct{}{}:
		g.wg.Go(func() {
			defer func() { <-g.channelSlots }()
			g.handleConnRequest(channelRequest{l})
		})
	default:
		l.Refuse()
	}
}

// handleConnRequest decides about a connection before it exists.
func (g *Gateway) handleConnRequest(k connRequest) {
	refuse := func(reason Reason, name, rule string) {
		k.refuse(&refusal{Status: http.StatusForbidden, Error: "refused", Reason: reason, Host: name, Rule: rule})
	}
	if !g.flows.enter() {
		refuse(reasonClosing, "", "")
		return
	}
	defer g.flows.served.Done()
	addr := k.to()
	// For packets, filter has already checked this.
	if g.badDestination(addr.Addr()) || addr.Port() == 0 {
		g.ledger.packet(reasonBadDestination)
		refuse(reasonBadDestination, addr.Addr().String(), "")
		return
	}
	if addr.Port() == 53 {
		g.accept(k, g.newFlow(addr, "dns", true, policy.Verdict{Allowed: true}), func(f *flow) {
			defer f.finish()
			f.setProtocol("dns")
			f.setUpstream(netip.AddrPort{})
			g.serveDNS(f.conn)
		})
		return
	}
	name, literal, v, reason := g.judgeAddr(addr)
	p, byProxy := k.(*proxyRequest)
	single := byProxy && p.single
	if reason == ReasonOK && single && v.Protocol == policy.ProtocolTCP {
		reason = reasonProxy // a request for a proxy is not what such an upstream reads
	}
	if reason != ReasonOK {
		g.ledger.conn(Conn{Time: time.Now(), Name: name, Addr: addr, Protocol: "tcp", Rule: v.Rule, Reason: reason}, true)
		refuse(reason, name, v.Rule)
		return
	}
	f := g.newFlow(addr, name, literal, v)
	f.single = single
	g.accept(k, f, g.serveFlow)
}

func (g *Gateway) newFlow(addr netip.AddrPort, name string, literal bool, v policy.Verdict) *flow {
	f := &flow{g: g, name: name, literal: literal, addr: addr, verdict: v, start: time.Now()}
	f.ctx, f.cancel = context.WithCancel(g.ctx)
	f.touched.Store(g.flows.tick.Load())
	return f
}

// accept completes the handshake and calls serve. serve may hand the connection to the
// web server, which then finishes it.
func (g *Gateway) accept(k connRequest, f *flow, serve func(*flow)) {
	side, ok := k.accept()
	if !ok {
		f.cancel()
		return
	}
	f.conn = &bottleConn{bottleSide: side, flow: f}
	// Count it after the handshake: maxHandshakes bounds half-open connections, the
	// limit the complete ones.
	if reason := g.flows.add(f, g.limits.Conns); reason != ReasonOK {
		f.conn.Abort()
		f.cancel()
		if reason == reasonLimitConns {
			g.ledger.limit(reason, f.name)
			g.ledger.conn(Conn{Time: f.start, Name: f.name, Addr: f.addr, Protocol: "tcp", Rule: f.verdict.Rule, Reason: reason}, true)
		}
		return
	}
	serve(f)
}

// serveFlow detects the protocol, then passes the flow on or refuses it.
func (g *Gateway) serveFlow(f *flow) {
	if s, ok := g.services[f.name]; ok {
		g.passService(f, s)
		return
	}
	if f.verdict.Protocol == policy.ProtocolTCP {
		f.setProtocol("tcp")
		g.passTCP(f)
		return
	}
	s := newSniffer(f.conn, g.limits.HeadBytes)
	_ = f.conn.SetReadDeadline(time.Now().Add(g.limits.Sniff))
	kind, reason := s.protocol()
	if reason != ReasonOK {
		g.refuseBytes(f, reason, nil)
		return
	}
	switch kind {
	case protoTLS:
		f.setProtocol("tls")
		if insideName(f.name) != "" {
			g.refuseBytes(f, reasonProtocol, alert(alertAccessDenied))
			return
		}
		if g.authority != nil && !f.verdict.Opaque {
			g.openTLS(f, s)
		} else {
			g.passTLS(f, s)
		}
	case protoHTTP1:
		f.setProtocol("http")
		_ = f.conn.SetReadDeadline(time.Time{})
		g.web.accept(f, f.conn, s.seen())
	case protoHTTP2:
		f.setProtocol("http2")
		g.refuseBytes(f, reasonHTTP2Plain, http2GoAway)
	case protoSSH:
		f.setProtocol("ssh")
		g.refuseBytes(f, reasonSSH, nil)
	default:
		f.setProtocol("unknown")
		g.refuseBytes(f, reasonProtocol, nil)
	}
}

// refuseBytes sends goodbye, a refusal in the client's protocol, and closes. It reads
// for a moment what the client still sends: closing with unread bytes causes a reset,
// which can overtake the refusal.
func (g *Gateway) refuseBytes(f *flow, reason Reason, goodbye []byte) {
	f.note(reason, "")
	defer f.finish()
	if reason == ReasonLimitHead {
		g.ledger.limit(reason, f.name)
	}
	if len(goodbye) == 0 {
		f.conn.Abort()
		return
	}
	_ = f.conn.SetDeadline(time.Now().Add(time.Second))
	_, _ = f.conn.Write(goodbye)
	_ = f.conn.CloseWrite()
	_, _ = io.CopyN(io.Discard, f.conn, 256<<10)
	_ = f.conn.Close()
}

// readHello reads the hello and compares its server name with the name of the flow's
// address. It refuses the flow if they differ.
func (g *Gateway) readHello(f *flow, s *sniffer, opened bool) bool {
	hello, err := s.hello()
	if err != nil {
		var le limitError
		switch {
		case errors.As(err, &le):
			g.refuseBytes(f, Reason(le), alert(alertIllegalParameter))
		case isTimeout(err):
			g.refuseBytes(f, reasonSlowStart, nil)
		default:
			f.note(reasonHelloInvalid, err.Error())
			g.refuseBytes(f, reasonHelloInvalid, alert(alertDecodeError))
		}
		return false
	}
	// The gateway answers itself, so the encrypted part of a hello is not used.
	hello.ech = hello.ech && !opened
	if reason, a := checkHello(f, hello); reason != ReasonOK {
		f.note(reason, "server name "+hello.name)
		g.refuseBytes(f, reason, alert(a))
		return false
	}
	return true
}

// passTLS tunnels a TLS connection whose server name is the name of its address.
func (g *Gateway) passTLS(f *flow, s *sniffer) {
	if !g.readHello(f, s, false) {
		return
	}
	end, ok := helloEnd(s.seen())
	if !ok {
		f.note(reasonHelloInvalid, "hello shares its record")
		g.refuseBytes(f, reasonHelloInvalid, alert(alertDecodeError))
		return
	}
	_ = f.conn.SetReadDeadline(time.Time{})
	refuse := func(reason Reason) { g.refuseBytes(f, reason, alert(dialAlert(reason))) }
	account, ok := f.account(refuse)
	if !ok {
		return
	}
	up := g.dialOrRefuse(f, refuse)
	if up == nil {
		return
	}
	defer f.finish()
	first, rest := s.seen()[:end], s.seen()[end:]
	watch := newHelloWatch(up)
	guard := &helloGuard{src: io.MultiReader(bytes.NewReader(rest), f.conn), flow: f, watch: watch}
	out, in := f.metered(account, io.MultiReader(bytes.NewReader(first), guard), watch)
	relay(f, up, out, in)
}

// checkHello compares the server name with the name of the address. A literal address
// has no server name (RFC 6066 section 3).
func checkHello(f *flow, h hello) (Reason, byte) {
	switch {
	case h.ech:
		return reasonECH, alertAccessDenied
	case f.literal && h.name == "":
		return ReasonOK, 0
	case h.name == "":
		return reasonSNIAbsent, alertUnrecognizedName
	case f.literal:
		return reasonSNIMismatch, alertUnrecognizedName
	}
	name, err := policy.CanonicalName(h.name)
	if err != nil || name != f.name {
		return reasonSNIMismatch, alertUnrecognizedName
	}
	return ReasonOK, 0
}

func (g *Gateway) passTCP(f *flow) {
	refuse := func(reason Reason) { g.refuseBytes(f, reason, nil) }
	account, ok := f.account(refuse)
	if !ok {
		return
	}
	up := g.dialOrRefuse(f, refuse)
	if up == nil {
		return
	}
	defer f.finish()
	out, in := f.metered(account, f.conn, up)
	relay(f, up, out, in)
}

// dialOrRefuse dials for a flow. If that fails, it refuses the flow and returns nil.
func (g *Gateway) dialOrRefuse(f *flow, refuse func(Reason)) net.Conn {
	up, err := g.dial(f.ctx, f.name, f.addr.Port())
	if err != nil {
		reason := dialReason(err)
		f.note(reason, err.Error())
		refuse(reason)
		return nil
	}
	f.setUpstream(up.addr)
	return up.Conn
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func isReset(err error) bool {
	return err != nil && strings.Contains(err.Error(), "reset")
}
