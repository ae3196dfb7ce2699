package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
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

// bottleSide is the bottle's end of a connection: packets or a lane.
type bottleSide interface {
	net.Conn
	halfCloser
	Abort() // resets it
	// Ended reports whether the bottle has said its last, or is gone.
	Ended() bool
}

// knock is a connection that the bottle asks for.
type knock interface {
	to() netip.AddrPort
	accept() (bottleSide, bool)
	refuse()
}

// synKnock asks with a packet.
type synKnock struct{ r *tcp.ForwarderRequest }

func (k synKnock) to() netip.AddrPort {
	id := k.r.ID()
	return netip.AddrPortFrom(fromTCPIP(id.LocalAddress), id.LocalPort)
}

func (k synKnock) refuse() { k.r.Complete(true) }

func (k synKnock) accept() (bottleSide, bool) {
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

// tcpSide is a connection of packets, with what a gonet.TCPConn can't do.
type tcpSide struct {
	*gonet.TCPConn
	ep tcpip.Endpoint
}

func (c tcpSide) Abort() { c.ep.Abort() }

func (c tcpSide) Ended() bool { return tcp.EndpointState(c.ep.State()) != tcp.StateEstablished }

// laneKnock asks on a lane.
type laneKnock struct{ lane *wire.Lane }

func (k laneKnock) to() netip.AddrPort { return k.lane.To() }

func (k laneKnock) refuse() { k.lane.Refuse() }

func (k laneKnock) accept() (bottleSide, bool) {
	k.lane.Accept()
	return k.lane, true
}

// handleSYN is called by the stack on a goroutine of its own, of which there
// are at most maxHandshakes.
func (g *Gateway) handleSYN(r *tcp.ForwarderRequest) { g.handleKnock(synKnock{r}) }

// maxKnocks bounds the goroutines that serve lanes: one for each, and as many again
// for those that have just been refused.
const maxKnocks = 2 * wire.LaneCount

// handleLane is called by the one goroutine that listens to the lanes.
func (g *Gateway) handleLane(l *wire.Lane) {
	select {
	case g.knocks <- struct{}{}:
		g.wg.Go(func() {
			defer func() { <-g.knocks }()
			g.handleKnock(laneKnock{l})
		})
	default:
		l.Refuse()
	}
}

// handleKnock decides about a connection before it exists.
func (g *Gateway) handleKnock(k knock) {
	if !g.flows.enter() {
		k.refuse()
		return
	}
	defer g.flows.served.Done()
	addr := k.to()
	// Of packets this was seen to before.
	if g.badDestination(addr.Addr()) || addr.Port() == 0 {
		k.refuse()
		g.ledger.packet(ReasonBadDestination)
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
	name, literal, v, reason := g.place(addr)
	if reason != ReasonOK {
		k.refuse()
		g.ledger.conn(Conn{Time: time.Now(), Name: name, Addr: addr, Protocol: "tcp", Rule: v.Rule, Reason: reason}, true)
		return
	}
	g.accept(k, g.newFlow(addr, name, literal, v), g.serveFlow)
}

func (g *Gateway) newFlow(addr netip.AddrPort, name string, literal bool, v policy.Verdict) *flow {
	f := &flow{g: g, name: name, literal: literal, addr: addr, verdict: v, start: time.Now()}
	f.ctx, f.cancel = context.WithCancel(g.ctx)
	f.touched.Store(g.flows.tick.Load())
	return f
}

// accept completes the handshake and serves the flow to its end. serve may
// hand the connection on to the web server, which then finishes it.
func (g *Gateway) accept(k knock, f *flow, serve func(*flow)) {
	side, ok := k.accept()
	if !ok {
		f.cancel()
		return
	}
	f.conn = &bottleConn{bottleSide: side, flow: f}
	// Admitted after the handshake, so that half-open connections are
	// bounded by maxHandshakes and whole ones by the limit.
	if reason := g.flows.add(f, g.limits.Conns); reason != ReasonOK {
		f.conn.Abort()
		f.cancel()
		if reason == ReasonLimitConns {
			g.ledger.limit(reason, f.name)
			g.ledger.conn(Conn{Time: f.start, Name: f.name, Addr: f.addr, Protocol: "tcp", Rule: f.verdict.Rule, Reason: reason}, true)
		}
		return
	}
	serve(f)
}

// serveFlow finds out what is spoken and passes it on or refuses it.
func (g *Gateway) serveFlow(f *flow) {
	if f.verdict.Protocol == policy.ProtocolTCP {
		f.setProtocol("tcp")
		g.passTCP(f)
		return
	}
	s := newSniffer(f.conn, g.limits.HeadBytes)
	_ = f.conn.SetReadDeadline(time.Now().Add(g.limits.Sniff))
	kind, reason := s.kind()
	if reason != ReasonOK {
		g.refuseBytes(f, reason, nil)
		return
	}
	switch kind {
	case kindTLS:
		f.setProtocol("tls")
		if insideName(f.name) != "" {
			g.refuseBytes(f, ReasonProtocol, alert(alertAccessDenied))
			return
		}
		if g.authority != nil && !f.verdict.Opaque {
			g.openTLS(f, s)
		} else {
			g.passTLS(f, s)
		}
	case kindHTTP1:
		f.setProtocol("http")
		_ = f.conn.SetReadDeadline(time.Time{})
		g.web.accept(f, f.conn, s.seen())
	case kindHTTP2:
		f.setProtocol("http2")
		g.refuseBytes(f, ReasonHTTP2Plain, http2GoAway)
	case kindSSH:
		f.setProtocol("ssh")
		g.refuseBytes(f, ReasonSSH, nil)
	default:
		f.setProtocol("unknown")
		g.refuseBytes(f, ReasonProtocol, nil)
	}
}

// refuseBytes says goodbye in the client's own protocol, if it has a word for
// it, and closes. What the client still sends is read for a moment: closing
// over unread bytes would be a reset, which can overtake the goodbye.
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

// readHello reads the hello and compares its server name with the name of the
// flow's address, or refuses the flow.
func (g *Gateway) readHello(f *flow, s *sniffer, opened bool) bool {
	hello, err := s.hello()
	if err != nil {
		var le limitError
		switch {
		case errors.As(err, &le):
			g.refuseBytes(f, Reason(le), alert(alertIllegalParameter))
		case isTimeout(err):
			g.refuseBytes(f, ReasonSlowStart, nil)
		default:
			f.note(ReasonHelloInvalid, err.Error())
			g.refuseBytes(f, ReasonHelloInvalid, alert(alertDecodeError))
		}
		return false
	}
	// Where we answer, what an encrypted hello hides is not used.
	hello.ech = hello.ech && !opened
	if reason, a := checkHello(f, hello); reason != ReasonOK {
		f.note(reason, "server name "+hello.name)
		g.refuseBytes(f, reason, alert(a))
		return false
	}
	return true
}

// passTLS passes a TLS connection on, unseen, after its server name was found to
// be the name that its address stands for.
func (g *Gateway) passTLS(f *flow, s *sniffer) {
	if !g.readHello(f, s, false) {
		return
	}
	end, ok := helloEnd(s.seen())
	if !ok {
		f.note(ReasonHelloInvalid, "hello shares its record")
		g.refuseBytes(f, ReasonHelloInvalid, alert(alertDecodeError))
		return
	}
	_ = f.conn.SetReadDeadline(time.Time{})
	refuse := func(reason Reason) { g.refuseBytes(f, reason, alert(dialAlert(reason))) }
	account, ok := f.account(refuse)
	if !ok {
		return
	}
	up := g.reach(f, refuse)
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

// checkHello compares the server name with the name of the address. An IP
// address is never a server name (RFC 6066 section 3), so a literal has none.
func checkHello(f *flow, h hello) (Reason, byte) {
	switch {
	case h.ech:
		return ReasonECH, alertAccessDenied
	case f.literal && h.name == "":
		return ReasonOK, 0
	case h.name == "":
		return ReasonSNIAbsent, alertUnrecognizedName
	case f.literal:
		return ReasonSNIMismatch, alertUnrecognizedName
	}
	name, err := policy.CanonicalName(h.name)
	if err != nil || name != f.name {
		return ReasonSNIMismatch, alertUnrecognizedName
	}
	return ReasonOK, 0
}

func (g *Gateway) passTCP(f *flow) {
	refuse := func(reason Reason) { g.refuseBytes(f, reason, nil) }
	account, ok := f.account(refuse)
	if !ok {
		return
	}
	up := g.reach(f, refuse)
	if up == nil {
		return
	}
	defer f.finish()
	out, in := f.metered(account, f.conn, up)
	relay(f, up, out, in)
}

// reach dials for a flow, or refuses it and returns nil.
func (g *Gateway) reach(f *flow, refuse func(Reason)) net.Conn {
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
