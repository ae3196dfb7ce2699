package gateway

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carboy/carboy/internal/policy"
)

// The caps of a route hold for the bottle's whole life, over all of its connections.
// They survive a reload of the routes: usage is kept as long as a route has the same
// [policy.Route.Identity]. The bytes counted are the heads, bodies and trailers of
// requests and answers, and WebSocket frames; on a connection that is not opened,
// everything it carries.
//
// [Limits.Egress] caps what the bottle as a whole sends. It counts the same bytes,
// over all routes together.

// routeAccounts holds the usage of the routes that have caps. The route files bound
// their number.
type routeAccounts struct {
	now func() time.Duration // monotonic, since an arbitrary moment
	// all counts what leaves by any route; nil: there is no such cap.
	all *routeMeter

	mu sync.Mutex
	by map[string]*routeAccount
}

func newRouteAccounts(egress int64) *routeAccounts {
	start := time.Now()
	as := &routeAccounts{now: func() time.Duration { return time.Since(start) }, by: map[string]*routeAccount{}}
	if egress != 0 {
		as.all = &routeMeter{why: reasonLimitEgress, cap: "the bottle's limits.egress_bytes of %d bytes"}
		as.all.limit.Store(egress)
	}
	return as
}

// outgoing returns the meters for what leaves by a route.
func (as *routeAccounts) outgoing(a *routeAccount) meters {
	var out meters
	if a != nil {
		out = append(out, &a.out)
	}
	if as.all != nil {
		out = append(out, as.all)
	}
	return out
}

// set applies the caps of a new table, also to requests that are under way.
func (as *routeAccounts) set(t *policy.Table) {
	as.mu.Lock()
	defer as.mu.Unlock()
	known := map[string]bool{}
	for _, r := range t.Routes() {
		id := r.Identity()
		if known[id] {
			continue // the first route with this identity decides
		}
		known[id] = true
		caps := r.Options().Caps
		a := as.by[id]
		if a == nil {
			if caps == (policy.Caps{}) {
				continue
			}
			a = newRouteAccount()
			as.by[id] = a
		}
		a.out.limit.Store(caps.BytesOut)
		a.in.limit.Store(caps.BytesIn)
		a.requests.Store(caps.RequestsPerMinute)
	}
}

// of returns a route's account; nil: the route has no caps.
func (as *routeAccounts) of(r *policy.Route) *routeAccount {
	if r == nil || r.Options().Caps == (policy.Caps{}) {
		return nil
	}
	as.mu.Lock()
	defer as.mu.Unlock()
	return as.by[r.Identity()]
}

// routeAccount counts the usage of one route.
type routeAccount struct {
	out, in  routeMeter
	requests atomic.Int64 // per minute; 0: any number
	window   rateWindow
}

func newRouteAccount() *routeAccount {
	return &routeAccount{
		out: routeMeter{why: reasonLimitRouteOut, cap: "the route's limits.bytes_out of %d bytes"},
		in:  routeMeter{why: reasonLimitRouteIn, cap: "the route's limits.bytes_in of %d bytes"},
	}
}

func (a *routeAccount) incoming() meters {
	if a == nil {
		return nil
	}
	return meters{&a.in}
}

func (a *routeAccount) perMinute() int64 {
	if a == nil {
		return 0
	}
	return a.requests.Load()
}

// meters is a list of meters for the same bytes. A byte passes only if each meter has
// room for it. What the earlier meters took and a later one refused is given back.
type meters []*routeMeter

// take takes up to n bytes. If it takes less, short is the meter that is full.
func (ms meters) take(n int64) (got int64, short *routeMeter) {
	got = n
	for i, m := range ms {
		less := m.take(got)
		if less == got {
			continue
		}
		for _, before := range ms[:i] {
			before.used.Add(less - got)
		}
		got, short = less, m
	}
	return got, short
}

// fits returns a meter that has no room for n bytes, or nil. It reserves nothing.
func (ms meters) fits(n int64) (short *routeMeter) {
	for _, m := range ms {
		if !m.fits(n) {
			return m
		}
	}
	return nil
}

// takeAll takes n bytes or none. It returns the meter that had no room, or nil.
func (ms meters) takeAll(n int64) (short *routeMeter) {
	for i, m := range ms {
		if m.takeAll(n) {
			continue
		}
		for _, before := range ms[:i] {
			before.used.Add(-n)
		}
		return m
	}
	return nil
}

// routeMeter counts bytes in one direction.
type routeMeter struct {
	why         Reason
	cap         string       // text with a %d for the limit
	used, limit atomic.Int64 // a limit of 0 means no limit
}

func (m *routeMeter) explain() string {
	limit := m.limit.Load()
	return fmt.Sprintf(m.cap+" leaves %d", limit, max(0, limit-m.used.Load()))
}

// take takes up to n bytes. All connections together never get more than the limit.
func (m *routeMeter) take(n int64) int64 {
	for {
		used := m.used.Load()
		got := n
		if limit := m.limit.Load(); limit > 0 {
			got = max(0, min(n, limit-used))
		}
		if m.used.CompareAndSwap(used, used+got) {
			return got
		}
	}
}

// fits reports whether n bytes are left. It reserves nothing.
func (m *routeMeter) fits(n int64) bool {
	limit := m.limit.Load()
	return limit == 0 || n <= limit-m.used.Load()
}

// takeAll takes n bytes or none, and reports whether it took them.
func (m *routeMeter) takeAll(n int64) bool {
	for {
		used, limit := m.used.Load(), m.limit.Load()
		if limit > 0 && n > limit-used {
			return false
		}
		if m.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// rateWindow counts requests per second. It sums the last 60 whole seconds and the
// current one, so no minute, wherever it begins, exceeds the cap.
type rateWindow struct {
	mu     sync.Mutex
	counts [61]int64
	last   int64
}

// admit counts a request, or returns the seconds until the next one may be admitted.
func (w *rateWindow) admit(now time.Duration, limit int64) (retry int64, ok bool) {
	second := int64(now / time.Second)
	w.mu.Lock()
	defer w.mu.Unlock()
	slots := int64(len(w.counts))
	for s := max(w.last+1, second-slots+1); s <= second; s++ {
		w.counts[s%slots] = 0
	}
	w.last = max(w.last, second)
	sum, oldest := int64(0), int64(-1)
	for s := max(0, w.last-slots+1); s <= w.last; s++ {
		n := w.counts[s%slots]
		if sum += n; n > 0 && oldest < 0 {
			oldest = s
		}
	}
	if sum >= limit {
		return max(1, oldest+slots-w.last), false
	}
	w.counts[w.last%slots]++
	return 0, true
}

// charge counts an admitted request against the caps, or refuses it.
func (w *webServer) charge(c *webConn, seen *exchange, r *http.Request, a *admission) *refusal {
	account := w.g.caps.of(a.route)
	a.account = account
	out := w.g.caps.outgoing(account)
	no := func(status int, reason Reason, detail string) *refusal {
		w.g.ledger.limit(reason, c.flow.name)
		return &refusal{Status: status, Error: "refused", Reason: reason, Detail: detail, Host: c.flow.name, Rule: a.route.Rule()}
	}
	head := int64(len(r.Method)+len(r.URL.RequestURI())+len(r.Host)) + headerBytes(r.Header)
	length := head + max(0, r.ContentLength)
	if m := account.incoming().fits(1); m != nil {
		return no(http.StatusForbidden, m.why, m.explain())
	}
	if m := out.fits(length); m != nil {
		return no(http.StatusForbidden, m.why, fmt.Sprintf("%s, and this request has %d", m.explain(), length))
	}
	if limit := account.perMinute(); limit > 0 {
		if retry, ok := account.window.admit(w.g.caps.now(), limit); !ok {
			v := no(http.StatusTooManyRequests, reasonLimitRouteRequests, fmt.Sprintf("the route's limits.requests_per_minute of %d is used up; try again in %d s", limit, retry))
			v.retry = retry
			return v
		}
	}
	if m := out.takeAll(head); m != nil {
		return no(http.StatusForbidden, m.why, m.explain())
	}
	if out != nil && r.Body != nil && r.Body != http.NoBody {
		r.Body = &meteredBody{ReadCloser: r.Body, ms: out, trailer: func() http.Header { return r.Trailer }, over: seen.overCap}
	}
	return nil
}

// chargeAnswer counts an answer against the caps, or refuses it.
func chargeAnswer(a *admission, seen *exchange, res *http.Response) error {
	in := a.account.incoming()
	if in == nil {
		return nil
	}
	head := int64(len(res.Status)) + headerBytes(res.Header)
	body := max(0, res.ContentLength)
	if res.Request.Method == http.MethodHead || res.Body == nil || res.Body == http.NoBody {
		body = 0
	}
	m := in.fits(head + body)
	if m == nil {
		m = in.takeAll(head)
	}
	if m != nil {
		return seen.overCap(m)
	}
	if res.Body != nil && res.Body != http.NoBody && res.StatusCode != http.StatusSwitchingProtocols {
		res.Body = &meteredBody{ReadCloser: res.Body, ms: in, trailer: func() http.Header { return res.Trailer }, over: seen.overCap}
	}
	return nil
}

// headerBytes returns the size of headers as HTTP/1 writes them, for any version.
func headerBytes(h http.Header) (n int64) {
	for k, vs := range h {
		for _, v := range vs {
			n += int64(len(k) + len(v) + len(": \r\n"))
		}
	}
	return n
}

// meteredBody counts a body. At the cap its reads fail, so that a truncated body does
// not look complete.
type meteredBody struct {
	io.ReadCloser
	ms      meters
	trailer func() http.Header
	over    func(*routeMeter) error
	err     error
}

func (b *meteredBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.ReadCloser.Read(p)
	got, short := b.ms.take(int64(n))
	if short == nil && err == io.EOF {
		short = b.ms.takeAll(headerBytes(b.trailer()))
	}
	if short == nil {
		return n, err
	}
	b.err = b.over(short)
	return int(got), b.err
}

// meteredFlow counts one direction of a connection that is not opened.
type meteredFlow struct {
	io.Reader
	f    *flow
	ms   meters
	full *routeMeter // the meter that is full
}

func (r *meteredFlow) Read(p []byte) (int, error) {
	if m := r.full; m != nil {
		r.f.g.ledger.limit(m.why, r.f.name)
		r.f.note(m.why, m.explain())
		return 0, errors.New(string(m.why))
	}
	n, err := r.Reader.Read(p)
	got, short := r.ms.take(int64(n))
	if r.full = short; short != nil {
		// Deliver what still fits; the next read fails.
		return int(got), nil
	}
	return n, err
}

// metered wraps both directions of a connection in the caps of the bottle and of the
// route.
func (f *flow) metered(a *routeAccount, fromBottle, fromUpstream io.Reader) (io.Reader, io.Reader) {
	out, in := f.g.caps.outgoing(a), a.incoming()
	if out == nil && in == nil {
		return fromBottle, fromUpstream
	}
	return &meteredFlow{Reader: fromBottle, f: f, ms: out}, &meteredFlow{Reader: fromUpstream, f: f, ms: in}
}

// account returns the account of the route that a tunnelled flow uses. It refuses the
// flow if one of the caps is already reached.
func (f *flow) account(refuse func(Reason)) (*routeAccount, bool) {
	v, by := f.request(&policy.Request{})
	if !v.Allowed {
		refuse(fromPolicy(v.Reason))
		return nil, false
	}
	a := f.g.caps.of(v.Route)
	for _, m := range append(f.g.caps.outgoing(a), a.incoming()...) {
		if !m.fits(1) {
			f.g.ledger.limit(m.why, f.name)
			f.note(m.why, m.explain())
			refuse(m.why)
			return nil, false
		}
	}
	f.startTunnel(by.rules, a)
	return a, true
}

// overCap ends an exchange because m is full.
func (x *exchange) overCap(m *routeMeter) error {
	mine := &refusedError{m.why, errors.New(m.explain())}
	err := x.stop(mine)
	if err == error(mine) {
		x.c.flow.g.ledger.limit(m.why, x.c.flow.name)
	}
	return err
}

func retryAfter(h http.Header, v *refusal) {
	if v.retry > 0 {
		h.Set("Retry-After", strconv.FormatInt(v.retry, 10))
	}
}
