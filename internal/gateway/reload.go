package gateway

import (
	"slices"

	"github.com/gobwas/ws"

	"github.com/carboy/carboy/internal/policy"
)

// A WebSocket, a stream, a download or a tunnel may last for hours. When the routes
// are reloaded it continues only if the new routes allow it and treat it the same way.
// Otherwise it ends, and the client may try again, so nothing outlives its route by
// being slow. New secrets are looked for from the next message on.

// reasonRoutes ends what the reloaded routes allow only in another way.
const reasonRoutes Reason = "routes-changed"

// reconsider judges everything that is under way by the current routes.
func (g *Gateway) reconsider() {
	for _, f := range g.flows.all() {
		f.reconsider()
	}
	g.web.live.Range(func(x, _ any) bool { x.(*exchange).reconsider(); return true })
}

// tunnel holds the rules under which a connection is passed on without being opened.
type tunnel struct {
	rules   *ruleSet
	account *routeAccount
}

// startTunnel marks a flow as a tunnel. Call it before dialling.
func (f *flow) startTunnel(now *ruleSet, a *routeAccount) {
	f.tunnel.Store(&tunnel{now, a})
	if f.g.rules.Load() != now {
		f.reconsider()
	}
}

// reconsider ends a tunnel that the current routes do not allow in the same way.
func (f *flow) reconsider() {
	was := f.tunnel.Load()
	if was == nil {
		return
	}
	_, _, v, reason := f.g.judgeAddr(f.addr)
	if reason != ReasonOK {
		f.abort(reason, "the routes were read again, and don't allow the connection any more")
		return
	}
	asked, _ := f.request(&policy.Request{})
	account := f.g.caps.of(asked.Route)
	if v.Protocol != f.verdict.Protocol || f.verdict.Private && !v.Private || account != nil && account != was.account ||
		v.Protocol != policy.ProtocolTCP && !v.Opaque && f.g.authority != nil {
		f.abort(reasonRoutes, "the routes were read again, and allow the connection in another way")
	}
}

// trackReloads judges the exchange again at each reload, until record. end ends the
// request.
func (x *exchange) trackReloads(asked *policy.Request, a *admission, end func()) {
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
		x.cut(reasonRoutes, "the routes were read again, and allow this in another way")
	default:
		now.account = was.account
		x.now.Store(now)
	}
}

// same reports whether the new routes treat an admitted request as before.
func (a *admission) same(g *Gateway, now *admission) bool {
	was, is := a.route.Options(), now.route.Options()
	if was.Credential != is.Credential || was.Upstream != is.Upstream || was.Scan != is.Scan || !slices.Equal(was.OwnCredentials, is.OwnCredentials) || a.route.Private() && !now.route.Private() {
		return false
	}
	// Equal references mean equal values: the host's environment does not change.
	for c := range now.beside {
		if _, ok := a.beside[c]; !ok {
			return false
		}
	}
	account := g.caps.of(now.route)
	return account == nil || account == a.account
}

// cut ends an exchange that is under way.
func (x *exchange) cut(reason Reason, detail string) {
	_ = x.stop(refusedf(reason, "%s", detail))
	s := x.socket.Load()
	if s == nil {
		x.end()
		return
	}
	// Closing may take a moment, and other exchanges wait to be reconsidered.
	flows := &x.c.flow.g.flows
	if !flows.enter() {
		return // the gateway closes
	}
	go func() { // ends within wsCloseReadTime
		defer flows.served.Done()
		s.refuses(&webSocketError{reason: reason, code: ws.StatusPolicyViolation, detail: detail})
	}()
}

// current returns the inspector for a message that begins now.
func (w *inspector) current() (*inspector, error) {
	now := w.x.now.Load()
	if now == nil || now.detectors == w.d {
		return w, nil
	}
	rules, err := now.detectors.outbound(w.scan)
	if err != nil {
		return nil, refusedf(reasonScan, "what is looked for can't be prepared: %w", err)
	}
	return &inspector{x: w.x, d: now.detectors, scan: w.scan, route: w.route, rules: rules}, nil
}
