package gateway

import (
	"context"
	"net"
	"net/netip"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/policy"
)

// flow is one connection from the bottle, from its acceptance to its end. Its name and
// verdict are fixed before the first byte; nothing that the client sends changes them.
type flow struct {
	g       *Gateway
	name    string // canonical name, or the literal
	literal bool
	addr    netip.AddrPort // where the bottle connected to
	verdict policy.Verdict
	start   time.Time
	host    *hostAccount
	// single says that a client asked for one URL as of a proxy: its next request may be
	// for another host, so the connection ends with this answer.
	single bool

	ctx    context.Context
	cancel context.CancelFunc
	conn   *bottleConn

	up, down, requests atomic.Int64
	touched            atomic.Int64           // tick of the last byte
	waiting            atomic.Int64           // requests that wait for a person's answer
	tunnel             atomic.Pointer[tunnel] // nil: the connection is opened, or nothing passes yet

	mu       sync.Mutex
	proto    string
	allowed  bool
	reason   Reason
	detail   string
	upstream netip.AddrPort
	finished bool
}

// judgeAddr decides whether a connection to addr is allowed. It is if the reason is
// empty.
func (g *Gateway) judgeAddr(addr netip.AddrPort) (name string, literal bool, v policy.Verdict, reason Reason) {
	a := addr.Addr()
	switch {
	case a == g.wire.Gateway4 || a == g.wire.Gateway6:
		return a.String(), true, policy.Verdict{}, reasonGatewayAddress
	case g.names.contains(a):
		name = g.names.lookup(a)
		if name == "" {
			return a.String(), true, policy.Verdict{}, reasonUnknownAddress
		}
		if insideName(name) != "" {
			v, reason = g.judgeInside(name, addr.Port())
			return name, false, v, reason
		}
		if g.serviceName(name) != "" {
			v, reason = g.judgeService(name, addr.Port())
			return name, false, v, reason
		}
		v = g.table().Decide(name, addr.Port())
	default:
		name, literal = a.String(), true
		v = g.table().DecideAddr(a, addr.Port())
	}
	if !v.Allowed {
		reason = fromPolicy(v.Reason)
		if reason == ReasonOK {
			reason = Reason(policy.ReasonNoRoute)
		}
	}
	return name, literal, v, reason
}

// recordRefusedAddr records a refusal before any connection existed.
func (g *Gateway) recordRefusedAddr(addr netip.AddrPort, proto string, reason Reason) {
	name := g.names.lookup(addr.Addr())
	if name == "" {
		name = addr.Addr().String()
	}
	g.ledger.conn(Conn{Time: time.Now(), Name: name, Addr: addr, Protocol: proto, Reason: reason}, true)
}

// stillAllowed reports whether the current routes allow the connection. It is asked
// again for each later request.
func (f *flow) stillAllowed() bool {
	_, _, _, reason := f.g.judgeAddr(f.addr)
	return reason == ReasonOK
}

// request judges a request by the current routes. If the request is allowed, a says
// how it is handled.
func (f *flow) request(r *policy.Request) (v policy.RequestVerdict, a *admission) {
	now := f.g.rules.Load()
	if f.literal {
		v = now.table.DecideAddrRequest(f.addr.Addr(), f.addr.Port(), r)
	} else {
		v = now.table.DecideRequest(f.name, f.addr.Port(), r)
	}
	if !v.Allowed {
		return v, nil
	}
	a = &admission{rules: now, route: v.Route, credential: now.credentials[v.Route.Options().Credential], detectors: now.detectors, out: now.out}
	if len(now.credentials) == 0 {
		return v, a
	}
	same := now.table.RoutesOf(f.name)
	if f.literal {
		same = now.table.RoutesOfAddr(f.addr.Addr())
	}
	for _, other := range same {
		want := other.Options().Credential
		if c := now.credentials[want]; c != nil && c != a.credential {
			if a.beside == nil {
				a.beside = map[policy.Credential]*credential.Credential{}
			}
			a.beside[want] = c
		}
	}
	return v, a
}

// hidden returns text for the record or for the bottle, or a placeholder if it
// contains a secret: details repeat what the bottle or upstream wrote.
func (g *Gateway) hidden(text string) string { return g.rules.Load().detectors.hidden(text) }

// note sets the recorded reason. Only the first call counts: later reasons are
// consequences.
func (f *flow) note(reason Reason, detail string) {
	detail = f.g.hidden(detail)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reason == ReasonOK {
		f.reason, f.detail = reason, bound(detail)
	}
}

func (f *flow) setProtocol(p string) {
	f.mu.Lock()
	f.proto = p
	f.mu.Unlock()
}

// setUpstream records that the flow was allowed, and where it was connected.
func (f *flow) setUpstream(a netip.AddrPort) {
	f.mu.Lock()
	f.upstream, f.allowed = a, true
	f.mu.Unlock()
}

// abort ends the flow with a reset.
func (f *flow) abort(reason Reason, detail string) {
	f.note(reason, detail)
	f.cancel()
	f.conn.Abort()
}

// finish records the flow and frees its place; only the first call counts.
func (f *flow) finish() {
	f.mu.Lock()
	if f.finished {
		f.mu.Unlock()
		return
	}
	f.finished = true
	e := Conn{
		Time: f.start, Name: f.name, Addr: f.addr, Protocol: f.proto, Allowed: f.allowed,
		Rule: f.verdict.Rule, Reason: f.reason, Detail: f.detail,
		Up: f.up.Load(), Down: f.down.Load(), Requests: f.requests.Load(),
		Duration: time.Since(f.start), Upstream: f.upstream,
	}
	f.mu.Unlock()
	f.cancel()
	f.g.flows.remove(f)
	f.g.ledger.conn(e, false)
}

// count adds bytes to the accounts and returns the limit that they break, if any.
func (f *flow) count(up, down int64) Reason {
	g := f.g
	f.touched.Store(g.flows.tick.Load())
	f.up.Add(up)
	f.down.Add(down)
	switch {
	case g.up.Add(up) > g.limits.BytesUp:
		return reasonLimitUp
	case g.down.Add(down) > g.limits.BytesDown:
		return reasonLimitDown
	case f.host.bytes.Add(up+down) > g.limits.HostBytes:
		return reasonLimitHost
	}
	return ReasonOK
}

// hitLimit ends the flow because of a limit.
func (f *flow) hitLimit(reason Reason) {
	f.g.ledger.limit(reason, f.name)
	f.abort(reason, "")
}

type hostAccount struct{ bytes atomic.Int64 }

// flows is the set of open connections.
type flows struct {
	tick atomic.Int64 // advanced by watchFlows

	mu     sync.Mutex
	open   map[*flow]struct{}
	hosts  map[string]*hostAccount
	closed bool
	// served counts the goroutines that serve connections. It is only added to under
	// mu while closed is false, so that close can wait for it.
	served sync.WaitGroup
}

func (fs *flows) init() {
	fs.open = map[*flow]struct{}{}
	fs.hosts = map[string]*hostAccount{}
}

// enter counts a goroutine that serves a connection. If it returns false, the
// goroutine must not serve.
func (fs *flows) enter() bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.closed {
		return false
	}
	fs.served.Add(1)
	return true
}

// add admits a flow. Accounts of hosts live as long as the bottle; the names and the
// literal routes bound their number.
func (fs *flows) add(f *flow, limit int) Reason {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.closed {
		return reasonClosing
	}
	if len(fs.open) >= limit {
		return reasonLimitConns
	}
	acct := fs.hosts[f.name]
	if acct == nil {
		acct = &hostAccount{}
		fs.hosts[f.name] = acct
	}
	f.host = acct
	fs.open[f] = struct{}{}
	return ReasonOK
}

func (fs *flows) remove(f *flow) {
	fs.mu.Lock()
	delete(fs.open, f)
	fs.mu.Unlock()
}

func (fs *flows) all() []*flow {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	out := make([]*flow, 0, len(fs.open))
	for f := range fs.open {
		out = append(out, f)
	}
	return out
}

func (fs *flows) close() {
	fs.mu.Lock()
	fs.closed = true
	fs.mu.Unlock()
	for _, f := range fs.all() {
		f.abort(reasonClosing, "")
	}
}

// watchFlows ends connections that are idle or too old. One ticker for all is cheaper
// than a deadline at each read.
func (g *Gateway) watchFlows() {
	period := min(time.Second, max(10*time.Millisecond, min(g.limits.Idle, g.limits.Lifetime)/4))
	idle := int64((g.limits.Idle + period - 1) / period)
	life := int64((g.limits.Lifetime + period - 1) / period)
	born := map[*flow]int64{}
	peak := connPeak{interval: int64(releaseInterval / period)}
	t := time.NewTicker(period)
	defer t.Stop()
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-t.C:
		}
		now := g.flows.tick.Add(1)
		open := g.flows.all()
		seen := make(map[*flow]int64, len(open))
		for _, f := range open {
			first, ok := born[f]
			if !ok {
				first = now
			}
			seen[f] = first
			switch {
			case now-f.touched.Load() > idle && f.waiting.Load() == 0:
				f.hitLimit(reasonLimitIdle)
			case now-first > life:
				f.hitLimit(reasonLimitLifetime)
			}
		}
		born = seen
		if peak.release(len(open), now) {
			// Two collections are needed to free what is in a sync.Pool.
			runtime.GC()
			debug.FreeOSMemory()
			g.memoryReleases.Add(1)
		}
	}
}

// connPeak tracks the number of open connections. Each uses tens of KiB. After many
// have ended, the runtime would return their memory late, and not at all while nothing
// happens.
type connPeak struct {
	interval int64 // ticks between two releases
	peak     int   // most open connections since the last release
	last     int64 // tick of the last release
}

const (
	minPeak         = 128              // fewer connections are not worth a collection
	releaseInterval = 30 * time.Second // each release costs two collections
)

// release reports whether memory should be returned now: there were many connections,
// and most are gone.
func (t *connPeak) release(open int, now int64) bool {
	t.peak = max(t.peak, open)
	if t.peak < minPeak || open > t.peak/4 || t.last > 0 && now-t.last < t.interval {
		return false
	}
	t.peak, t.last = open, now
	return true
}

// bottleConn is the bottle's side of a connection. It counts bytes.
type bottleConn struct {
	bottleSide
	flow *flow
}

func (c *bottleConn) Read(b []byte) (int, error) {
	n, err := c.bottleSide.Read(b)
	if n > 0 {
		if r := c.flow.count(int64(n), 0); r != ReasonOK {
			c.flow.hitLimit(r)
			return 0, net.ErrClosed
		}
	}
	return n, err
}

func (c *bottleConn) Write(b []byte) (int, error) {
	if r := c.flow.count(0, int64(len(b))); r != ReasonOK {
		c.flow.hitLimit(r)
		return 0, net.ErrClosed
	}
	return c.bottleSide.Write(b)
}

// published is a connection into the bottle. It is recorded when it is closed.
type published struct {
	*gonet.TCPConn
	g        *Gateway
	port     uint16
	start    time.Time
	up, down atomic.Int64
	once     sync.Once
}

func newPublished(g *Gateway, c *gonet.TCPConn, port uint16, start time.Time) *published {
	return &published{TCPConn: c, g: g, port: port, start: start}
}

func (p *published) Read(b []byte) (int, error) {
	n, err := p.TCPConn.Read(b)
	p.up.Add(int64(n))
	return n, err
}

func (p *published) Write(b []byte) (int, error) {
	n, err := p.TCPConn.Write(b)
	p.down.Add(int64(n))
	return n, err
}

func (p *published) Close() error {
	p.once.Do(func() {
		p.g.ledger.conn(Conn{
			Time: p.start, Name: "bottle", Addr: netip.AddrPortFrom(p.g.wire.Bottle4.Addr(), p.port),
			Protocol: "publish", Allowed: true, Up: p.up.Load(), Down: p.down.Load(), Duration: time.Since(p.start),
		}, false)
	})
	return p.TCPConn.Close()
}
