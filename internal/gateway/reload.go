package gateway

import (
	"github.com/gobwas/ws"

	"github.com/carboy/carboy/internal/policy"
)

// What is under way when the routes are read again may go on for hours: a WebSocket,
// a stream, a download, a connection that passes unseen. It goes on as long as the
// new routes allow it and treat it in the same way. Else it ends, and whoever asked
// may ask again: nothing outlives a route by being slow. Secrets that are newly
// watched for are looked for from the next message on.

// ReasonRoutes ends what the routes, read again, allow only in another way.
const ReasonRoutes Reason = "routes-changed"

// reconsider asks the routes of this moment about all that is under way.
func (g *Gateway) reconsider() {
	for _, f := range g.flows.all() {
		f.reconsider()
	}
	g.web.live.Range(func(x, _ any) bool { x.(*exchange).reconsider(); return true })
}

// unseen is how a connection passes that is not looked into.
type unseen struct {
	rules   *rules
	account *routeAccount
}

// passes notes that a flow passes unseen, from before it is dialled.
func (f *flow) passes(now *rules, a *routeAccount) {
	f.unseen.Store(&unseen{now, a})
	if f.g.rules.Load() != now {
		f.reconsider()
	}
}

// reconsider ends a flow that passes unseen and must not any more.
func (f *flow) reconsider() {
	was := f.unseen.Load()
	if was == nil {
		return
	}
	_, _, v, reason := f.g.place(f.addr)
	if reason != ReasonOK {
		f.abort(reason, "the routes were read again, and don't allow the connection any more")
		return
	}
	asked, _ := f.request(&policy.Request{})
	account := f.g.caps.of(asked.Route)
	if v.Protocol != f.verdict.Protocol || f.verdict.Private && !v.Private || account != nil && account != was.account ||
		v.Protocol != policy.ProtocolTCP && !v.Opaque && f.g.authority != nil {
		f.abort(ReasonRoutes, "the routes were read again, and allow the connection in another way")
	}
}

// underWay has an exchange reconsidered whenever the routes are read again, until
// done. end ends it.
func (x *exchange) underWay(asked *policy.Request, a *admitted, end func()) {
	x.asked, x.end = asked, end
	x.now.Store(a)
	x.c.flow.g.web.live.Store(x, nil)
	if x.c.flow.g.rules.Load() != a.rules {
		x.reconsider()
	}
}

func (x *exchange) reconsider() {
	f, was := x.c.flow, x.now.Load()
	v, now := f.request(x.asked)
	switch {
	case !v.Allowed:
		x.cut(fromPolicy(v.Reason), "the routes were read again, and don't allow this any more")
	case !was.same(f.g, now):
		x.cut(ReasonRoutes, "the routes were read again, and allow this in another way")
	default:
		now.account = was.account
		x.now.Store(now)
	}
}

// same reports whether routes that were read again treat what was admitted as before.
func (a *admitted) same(g *Gateway, now *admitted) bool {
	was, is := a.route.Options(), now.route.Options()
	if was.Credential != is.Credential || was.Upstream != is.Upstream || was.Scan != is.Scan || a.route.Private() && !now.route.Private() {
		return false
	}
	// The values are the same: the host's variables don't change.
	for c := range now.beside {
		if _, ok := a.beside[c]; !ok {
			return false
		}
	}
	account := g.caps.of(now.route)
	return account == nil || account == a.account
}

// cut ends an exchange amid what it does.
func (x *exchange) cut(reason Reason, detail string) {
	_ = x.stop(refuse(reason, "%s", detail))
	s := x.socket.Load()
	if s == nil {
		x.end()
		return
	}
	// Telling both sides may take a moment, and others wait to be reconsidered.
	flows := &x.c.flow.g.flows
	if !flows.enter() {
		return // all ends
	}
	go func() { // ends within wsGoodbye
		defer flows.served.Done()
		s.refuses(&webSocketError{reason: reason, code: ws.StatusPolicyViolation, detail: detail})
	}()
}

// current is what a message that begins now is looked at with.
func (w *watch) current() (*watch, error) {
	now := w.x.now.Load()
	if now == nil || now.detectors == w.d {
		return w, nil
	}
	rules, err := now.detectors.outbound(w.scan)
	if err != nil {
		return nil, refuse(ReasonScan, "what is looked for can't be prepared: %w", err)
	}
	return &watch{x: w.x, d: now.detectors, scan: w.scan, route: w.route, rules: rules}, nil
}
