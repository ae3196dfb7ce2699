package run

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/egresslog"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/supervise"
)

// past remembers requests, connections and names of the last hour. The zero value is
// ready.
type past struct {
	mu   sync.Mutex
	seen map[string]*pastRequest
}

// pastRequest is a request, a connection or a name that was refused or allowed.
type pastRequest struct {
	what    string
	host    string
	port    uint16
	request *policy.Request // nil: it did not get so far
	rule    string
	count   int
	last    time.Time
}

const (
	// maxPast bounds what is remembered.
	maxPast = 2000
	pastFor = time.Hour
	// maxShown bounds what a proposal shows of it.
	maxShown = 50
)

// put remembers one more. total is how often there was one so far, where that is known.
func (l *past) put(p *pastRequest, total uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.seen[p.what]
	if old == nil {
		if len(l.seen) >= maxPast {
			l.forget()
		}
		if len(l.seen) >= maxPast {
			return
		}
		if l.seen == nil {
			l.seen = map[string]*pastRequest{}
		}
		l.seen[p.what], old = p, p
	}
	old.count++
	if c := int(min(total, 1<<30)); c > old.count {
		old.count = c
	}
	old.rule, old.last = p.rule, time.Now()
}

// forget drops what is older than an hour.
func (l *past) forget() {
	maps.DeleteFunc(l.seen, func(_ string, p *pastRequest) bool { return time.Since(p.last) > pastFor })
}

// of returns what is remembered and wanted, sorted.
func (l *past) of(wanted func(*pastRequest) bool) []supervise.PastRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget()
	var out []supervise.PastRequest
	for _, k := range slices.Sorted(maps.Keys(l.seen)) {
		if p := l.seen[k]; len(out) < maxShown && wanted(p) {
			out = append(out, supervise.PastRequest{What: p.what, Count: p.count})
		}
	}
	return out
}

// noteRefused remembers what was refused. It was cleaned of secrets.
func (a *approvals) noteRefused(r *egresslog.Entry) {
	p := &pastRequest{host: r.Host, port: r.Port}
	switch r.Kind {
	case egresslog.Request:
		p.request = &policy.Request{Method: r.Method, Path: r.Path}
		p.what = fmt.Sprintf("%s %s:%d%s", r.Method, r.Host, r.Port, r.Path)
	case egresslog.Connection:
		p.what = fmt.Sprintf("connect %s:%d", r.Host, r.Port)
	case egresslog.Name:
		p.what = "resolve " + r.Host
	default:
		return
	}
	p.what = fault.Fit(safetext.String(p.what, 900), 1024)
	a.refused.put(p, r.Count)
}

// noteAllowed remembers what was allowed. It is on the packet path, so nothing is cleaned
// before it is shown.
func (a *approvals) noteAllowed(ev gateway.Event) {
	p := &pastRequest{}
	switch e := ev.(type) {
	case gateway.Request:
		if !e.Allowed {
			return
		}
		p.what, p.rule = fmt.Sprintf("%s %s:%d%s", e.Method, e.Name, e.Port, fault.Fit(e.Path, 900)), e.Rule
	case gateway.Conn:
		if !e.Allowed || e.Requests > 0 || e.Up == 0 {
			return // its requests stand for it
		}
		p.what, p.rule = fmt.Sprintf("connect %s:%d", e.Name, e.Addr.Port()), e.Rule
	default:
		return
	}
	a.allowed.put(p, 0)
}

// didAllow returns what the routes with these rules allowed in the last hour.
func (a *approvals) didAllow(rules map[string]bool) []supervise.PastRequest {
	out := a.allowed.of(func(p *pastRequest) bool { return rules[p.rule] })
	n := egressNotes{s: a.s}
	for i := range out {
		out[i].What = fault.Fit(safetext.String(n.cleaned(out[i].What), 900), 1024)
	}
	return out
}

// wouldAllow returns the refusals of the last hour that rs would have allowed.
func (a *approvals) wouldAllow(before *policy.Table, rs []policy.Route) []supervise.PastRequest {
	after, err := policy.Compile(append(before.Routes(), rs...)...)
	if err != nil {
		return nil
	}
	allows := func(t *policy.Table, p *pastRequest) bool {
		switch {
		case p.request != nil:
			return t.DecideRequest(p.host, p.port, p.request).Allowed
		case p.port != 0:
			return t.Decide(p.host, p.port).Allowed
		}
		return t.DecideName(p.host).Allowed
	}
	return a.refused.of(func(p *pastRequest) bool { return allows(after, p) && !allows(before, p) })
}
