package gateway

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/netip"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/policy"
)

// webServer serves HTTP, in the clear and inside intercepted TLS. It parses each
// request, compares its authority with the name of the connection's address, judges it
// by the routes, and builds a new request to upstream. Nothing is relayed as it came.
// The bottle and upstream may speak different versions, HTTP/1 or 2.
type webServer struct {
	g      *Gateway
	server *http.Server
	proxy  *httputil.ReverseProxy
	// busy counts the requests that are under way.
	busy atomic.Int64
	// live holds the *exchange of each admitted request until it is done.
	live  sync.Map
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// transports holds the upstream connections of one version of the routes. A request
// under newer routes does not use connections that only older ones allowed.
type transports struct {
	direct *http.Transport
	// upstreams connects to routes' upstreams. These may be where no other route
	// leads, so it has its own connections.
	upstreams *http.Transport
}

type (
	flowKey     struct{}
	routeKey    struct{}
	exchangeKey struct{}
)

func newWebServer(g *Gateway) *webServer {
	w := &webServer{g: g, conns: make(chan net.Conn), done: make(chan struct{})}
	quiet := log.New(io.Discard, "", 0)
	w.proxy = &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      signing{},
		FlushInterval:  -1,
		ErrorLog:       quiet,
		BufferPool:     bufferPool{},
		ModifyResponse: answered,
		ErrorHandler:   w.failed,
	}
	w.server = &http.Server{
		Handler:           w,
		ReadHeaderTimeout: g.limits.Sniff,
		IdleTimeout:       min(g.limits.Idle, 2*time.Minute),
		MaxHeaderBytes:    g.limits.HeadBytes,
		// OPTIONS * is judged like any other request.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     quiet,
		Protocols:                    webProtocols(),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          100,
			MaxReceiveBufferPerConnection: 1 << 20,
			MaxReceiveBufferPerStream:     256 << 10,
		},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if t, ok := c.(*tls.Conn); ok {
				c = t.NetConn()
			}
			return context.WithValue(ctx, flowKey{}, c.(*webConn))
		},
	}
	return w
}

// newTransport returns a connection pool that uses dial. It ignores the proxy settings
// of the environment. Its addresses come from rewrite.
func (w *webServer) newTransport(dial func(ctx context.Context, name string, port uint16) (*upstream, error)) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			host, p, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			port, err := strconv.ParseUint(p, 10, 16)
			if err != nil {
				return nil, err
			}
			up, err := dial(ctx, host, uint16(port))
			if err != nil {
				return nil, err
			}
			return up, nil
		},
		DisableCompression:     true,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        30 * time.Second,
		MaxResponseHeaderBytes: int64(w.g.limits.HeadBytes) * 4,
		ExpectContinueTimeout:  time.Second,
		TLSHandshakeTimeout:    w.g.limits.Dial,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: w.g.roots},
		Protocols:              webProtocols(),
	}
}

// roundTrip sends a request to the host, or to the upstream of its route.
func (a *admission) roundTrip(req *http.Request) (*http.Response, error) {
	if a.route.Options().Upstream.IsZero() {
		return a.out.direct.RoundTrip(req)
	}
	return a.out.upstreams.RoundTrip(req)
}

func (w *webServer) newTransports() *transports {
	return &transports{w.newTransport(w.g.dial), w.newTransport(w.g.dialUpstream)}
}

func (t *transports) closeIdle() {
	t.direct.CloseIdleConnections()
	t.upstreams.CloseIdleConnections()
}

// webProtocols returns HTTP/1 and, inside TLS, HTTP/2.
func webProtocols() *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	return &p
}

// webConn is a connection of the HTTP server: for HTTP/1 the linted one, for HTTP/2
// the one below TLS.
type webConn struct {
	net.Conn
	lint   *lintConn // nil: HTTP/2, whose framing is not ambiguous
	flow   *flow
	secure bool
}

// Close ends the flow.
func (c *webConn) Close() error {
	err := c.Conn.Close()
	c.flow.finish()
	return err
}

// CloseWrite lets the server end its last answer before it closes.
func (c *webConn) CloseWrite() error {
	if h, ok := c.Conn.(halfCloser); ok {
		return h.CloseWrite()
	}
	return nil
}

// badHead returns why the last head was refused, if it was.
func (c *webConn) badHead() (string, bool) {
	if c.lint != nil {
		if p := c.lint.bad.Load(); p != nil {
			return *p, true
		}
	}
	return "", false
}

// accept hands a flow that speaks HTTP/1 to the HTTP server, which finishes it by
// closing. inside is the connection, or the content of its TLS; first was already read
// from it.
func (w *webServer) accept(f *flow, inside net.Conn, first []byte) {
	l := newLintConn(inside, first, w.g.limits.HeadBytes)
	l.flow = f
	_, secure := inside.(*tls.Conn)
	w.enter(&webConn{Conn: l, lint: l, flow: f, secure: secure})
}

// enter hands a connection to the HTTP server: a webConn, or TLS over one.
func (w *webServer) enter(c net.Conn) {
	select {
	case w.conns <- c:
	case <-w.done:
		_ = c.Close()
	}
}

func (w *webServer) serve() { _ = w.server.Serve(channelListener{w}) }

func (w *webServer) close() {
	w.once.Do(func() { close(w.done) })
	_ = w.server.Close()
	w.g.rules.Load().out.closeIdle()
}

type channelListener struct{ w *webServer }

func (l channelListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.w.conns:
		return c, nil
	case <-l.w.done:
		return nil, net.ErrClosed
	}
}

func (l channelListener) Close() error {
	l.w.once.Do(func() { close(l.w.done) })
	return nil
}

func (l channelListener) Addr() net.Addr { return &net.TCPAddr{} }

// maxAttempts bounds the connections on which one request is tried.
const maxAttempts = 8

// maxEarly bounds the informational (1xx) answers to one request.
const maxEarly = 32

// ServeHTTP judges one request. Each request of a kept connection comes here.
func (w *webServer) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(flowKey{}).(*webConn)
	if !ok {
		http.Error(rw, "carboy: no connection", http.StatusForbidden)
		return
	}
	f := c.flow
	if c.lint != nil {
		defer c.lint.asked.Add(-1)
	}
	if f.single && !isWebSocket(r) {
		rw.Header().Set("Connection", "close")
	}
	seen := newExchange(rw, r, c)
	defer seen.record() // also when the proxy panics to abort the answer
	if insideName(f.name) != "" {
		w.serveInside(seen, r)
		return
	}
	dropHops(r.Header)
	busy := w.busy.Add(1)
	defer w.busy.Add(-1)
	allowed, why := w.admit(c, seen, r, busy)
	if why != nil {
		w.refuse(seen, r, why)
		return
	}
	f.requests.Add(1)
	seen.recordAdmission(allowed)
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), routeKey{}, allowed))
	defer cancel()
	seen.ctx = ctx
	seen.trackReloads(policyRequest(r), allowed, cancel)
	if r.ProtoMajor == 1 {
		// Upstream may answer before the request has ended.
		_ = http.NewResponseController(rw).EnableFullDuplex()
	}
	ctx = context.WithValue(ctx, exchangeKey{}, seen)
	w.proxy.ServeHTTP(seen, r.WithContext(httptrace.WithClientTrace(ctx, seen.trace(cancel))))
}

// admit judges a request and counts it against the limits and caps. busy is the number
// of requests that are under way, with this one.
func (w *webServer) admit(c *webConn, seen *exchange, r *http.Request, busy int64) (*admission, *refusal) {
	allowed, why := judge(c, r)
	if why == nil && busy > int64(w.g.limits.Requests) {
		why = &refusal{Status: http.StatusServiceUnavailable, Error: "refused", Reason: reasonLimitRequests, Host: c.flow.name, Rule: c.flow.verdict.Rule,
			Detail: fmt.Sprintf("%d requests are under way", w.g.limits.Requests)}
		seen.Header().Set("Retry-After", "1")
	}
	if why == nil {
		why = w.upgrade(c, r, allowed)
	}
	if why == nil {
		why = w.charge(c, seen, r, allowed)
	}
	return allowed, why
}

// advise names the key of the manifests in place of a flag that their commands have not.
func (g *Gateway) advise(v *refusal) {
	if !g.declared || v.Allow == "" {
		return
	}
	hint := "whoever runs this can name it in egress.routes of the bottle"
	if strings.HasPrefix(v.Allow, "--allow-private") {
		hint += ", with private: true"
	}
	v.Hint, v.Allow = strings.TrimSuffix(hint+"; "+v.Hint, "; "), ""
}

// refuse records a refusal and answers with it.
func (w *webServer) refuse(seen *exchange, r *http.Request, why *refusal) {
	f := seen.c.flow
	w.g.advise(why)
	if why.Reason == ReasonLimitHead || why.Reason == reasonLimitRequests {
		w.g.ledger.limit(why.Reason, f.name)
	}
	seen.hideRequestLine()
	told, noted := *why, *why
	if why.Allow != "" {
		noted.Detail = strings.TrimPrefix(why.Detail+"; allowed with "+why.Allow, "; ")
	}
	told.Detail, noted.Detail = w.g.hidden(why.Detail), w.g.hidden(noted.Detail)
	f.note(noted.Reason, noted.Detail)
	seen.recordRefusal(&noted)
	refuseHTTP(seen, r, &told)
}

// trace returns hooks that record upstream's address, and that end the exchange if
// upstream sends too many informational answers or closes too many connections.
func (x *exchange) trace(cancel func()) *httptrace.ClientTrace {
	var attempts, early atomic.Int64
	return &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error {
		// Transports count these only if there is no hook.
		if early.Add(1) > maxEarly {
			return x.stop(refusedf(reasonUpstream, "upstream announces an answer more than %d times", maxEarly))
		}
		return nil
	}, GotConn: func(info httptrace.GotConnInfo) {
		// A server that closes each connection with a graceful GOAWAY would be tried
		// for ever, because that says that nothing was processed.
		if attempts.Add(1) > maxAttempts {
			_ = x.stop(refusedf(reasonUpstream, "upstream gave up %d connections in a row", maxAttempts))
			cancel()
		}
		c := info.Conn
		if t, ok := c.(*tls.Conn); ok {
			c = t.NetConn()
		}
		if up, ok := c.(*upstream); ok {
			x.c.flow.setUpstream(up.addr)
		}
	}}
}

// dropHops removes the headers that apply to one connection only (RFC 9110 section
// 7.6.1). They are not forwarded, so they must not satisfy a route's conditions.
func dropHops(h http.Header) {
	for _, v := range h["Connection"] {
		for name := range strings.SplitSeq(v, ",") {
			if name = strings.TrimSpace(name); !strings.EqualFold(name, "upgrade") {
				h.Del(name)
			}
		}
	}
}

// refusal is the answer to a refused request.
type refusal struct {
	Status int    `json:"-"`
	Error  string `json:"error"`
	Reason Reason `json:"reason"`
	Detail string `json:"detail,omitempty"`
	Host   string `json:"host"`
	Rule   string `json:"rule,omitempty"`
	Allow  string `json:"allow,omitempty"` // the flag that would allow it
	Hint   string `json:"hint,omitempty"`  // what else a person could do
	retry  int64  // in how many seconds it may be tried again; 0: never
}

// hints say what a person can do about a finding.
var hints = map[Reason]string{
	reasonSecret:    "leave it out; whoever runs this may have it masked by `dlp: {outbound_on_match: redact}` on the route, or name the detectors with outbound_detectors",
	reasonInjection: "whoever runs this may switch it off by `dlp: {inbound_detectors: false}` on the route",
	reasonScan:      "send it without compression, or in a smaller piece",
}

// proposeHint tells an agent how to ask for a route.
const proposeHint = "or propose it: the tool egress-allow of the MCP server http://" + SuperviseName + "/mcp; a person answers with `carboy supervise`"

// admission holds the handling of an allowed request. All fields come from the same
// rule set.
type admission struct {
	rules      *ruleSet
	route      *policy.Route
	credential *credential.Credential
	// beside holds the credentials of the host's other routes: its answers may contain
	// them too.
	beside    map[policy.Credential]*credential.Credential
	detectors *detectors
	out       *transports
	account   *routeAccount // nil: the route has no caps
}

// judge admits a request, or returns its refusal.
func judge(c *webConn, r *http.Request) (*admission, *refusal) {
	f := c.flow
	no := func(status int, reason Reason, detail string) *refusal {
		return &refusal{Status: status, Error: "refused", Reason: reason, Detail: detail, Host: f.name, Rule: f.verdict.Rule}
	}
	switch {
	case r.Method == refusedMethod:
		detail, bad := c.badHead()
		if !bad {
			detail = "invalid method"
		}
		if detail == string(ReasonLimitHead) {
			return nil, no(http.StatusRequestHeaderFieldsTooLarge, ReasonLimitHead, "")
		}
		return nil, no(http.StatusBadRequest, ReasonHTTPMalformed, detail)
	case !f.stillAllowed():
		v := no(http.StatusForbidden, Reason(policy.ReasonNoRoute), "the route was taken away")
		v.Allow = allowFlag(r.Host, f.addr.Port())
		return nil, v
	case r.Method == http.MethodConnect:
		return nil, no(http.StatusForbidden, reasonConnect, noProxy)
	case !sameAuthority(c, r.Host):
		v := no(http.StatusMisdirectedRequest, reasonHostMismatch, fmt.Sprintf("host %.100q on a connection to %s", r.Host, authority(f.name, f.addr.Port())))
		v.Allow = allowFlag(r.Host, f.addr.Port())
		return nil, v
	case !strings.HasPrefix(r.URL.Path, "/"):
		return nil, no(http.StatusBadRequest, ReasonHTTPMalformed, "request target has no path")
	}
	v, a := f.request(policyRequest(r))
	if !v.Allowed {
		detail := v.Missed
		if v.Reason == policy.ReasonRequest {
			detail = "the route wants " + detail
		}
		why := no(http.StatusForbidden, fromPolicy(v.Reason), bound(detail))
		why.Rule = v.Rule
		why.Allow, why.Hint = v.Remedy(f.name, f.addr.Port(), r.URL.EscapedPath(), f.verdict.Private)
		if f.g.handlers[SuperviseName] != nil {
			if why.Hint != "" {
				why.Hint += "; "
			}
			why.Hint += proposeHint
		}
		return nil, why
	}
	if reason, detail, hint := RefuseOn(a.route, r); reason != ReasonOK {
		why := no(http.StatusForbidden, reason, detail)
		why.Rule, why.Hint = a.route.Rule(), hint
		return nil, why
	}
	return a, nil
}

// policyRequest returns the parts of a request that routes match.
func policyRequest(r *http.Request) *policy.Request {
	return &policy.Request{Method: r.Method, Path: r.URL.EscapedPath(), Header: r.Header}
}

// sameAuthority reports whether a Host header names the flow's host and port.
func sameAuthority(c *webConn, host string) bool {
	f := c.flow
	name, port, ok := splitAuthority(host, defaultPort(c.secure))
	if !ok || port != f.addr.Port() {
		return false
	}
	if f.literal {
		a, err := netip.ParseAddr(name)
		return err == nil && a == f.addr.Addr() && a.Is6() == strings.HasPrefix(host, "[")
	}
	canonical, err := policy.CanonicalName(name)
	return err == nil && canonical == f.name
}

// splitAuthority splits HOST[:PORT] of a URL.
func splitAuthority(s string, absent uint16) (name string, port uint16, ok bool) {
	name, tail := s, ""
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return "", 0, false
		}
		name, tail = s[1:end], s[end+1:]
	} else if i := strings.IndexByte(s, ':'); i >= 0 {
		name, tail = s[:i], s[i:]
	}
	if tail == "" {
		return name, absent, true
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(tail, ":"), 10, 16)
	if err != nil || tail[0] != ':' {
		return "", 0, false
	}
	return name, uint16(n), true
}

// allowFlag returns the command-line flag that would allow a host, if one would.
func allowFlag(host string, port uint16) string {
	name, _, ok := splitAuthority(host, port)
	if !ok {
		return ""
	}
	return policy.AllowFlag(name, port, "", false)
}

func (c *webConn) scheme() string {
	if c.secure {
		return "https"
	}
	return "http"
}

func defaultPort(secure bool) uint16 {
	if secure {
		return 443
	}
	return 80
}

func authority(name string, port uint16) string {
	return net.JoinHostPort(name, strconv.Itoa(int(port)))
}

// rewrite builds the outgoing request. Its host comes from the flow, not from the
// client's spelling.
func rewrite(p *httputil.ProxyRequest) {
	c := p.In.Context().Value(flowKey{}).(*webConn)
	f := c.flow
	p.Out.URL.Scheme = c.scheme()
	p.Out.URL.Host = authority(f.name, f.addr.Port())
	p.Out.URL.RawQuery = p.In.URL.RawQuery
	p.Out.Host = p.Out.URL.Host
	if f.addr.Port() == defaultPort(c.secure) {
		p.Out.Host = strings.TrimSuffix(p.Out.Host, ":"+strconv.Itoa(int(f.addr.Port())))
	}
	if a, ok := p.In.Context().Value(routeKey{}).(*admission); ok {
		if u := a.route.Options().Upstream; !u.IsZero() {
			// The upstream changes where the request goes, not its Host header.
			p.Out.URL.Scheme, p.Out.URL.Host = "https", authority(u.Host, u.Port)
			if u.Plain {
				p.Out.URL.Scheme = "http"
			}
		}
	}
	// A clone would miss trailers that are known only at the body's end.
	p.Out.Trailer = p.In.Trailer
	p.Out.Header.Del("Proxy-Authorization")
	p.Out.Header.Del("Proxy-Connection")
}

// answered processes each response before the proxy copies it.
func answered(res *http.Response) error {
	c := res.Request.Context().Value(flowKey{}).(*webConn)
	a := res.Request.Context().Value(routeKey{}).(*admission)
	seen := res.Request.Context().Value(exchangeKey{}).(*exchange)
	if len(res.Trailer) > 0 && c.lint != nil {
		// HTTP/1 allows trailers only with chunked framing, HTTP/2 also with a length.
		res.Header.Del("Content-Length")
	}
	if err := chargeAnswer(a, seen, res); err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		return err
	}
	upstream, ok := res.Body.(io.ReadWriteCloser)
	if !ok || c.lint == nil {
		return upgradeError(http.StatusBadGateway, "upstream switched protocols inside http/2")
	}
	if err := checkSwitch(res); err != nil {
		return err
	}
	s, err := newWebSocket(c, seen, a, upstream)
	if err != nil {
		return err
	}
	c.flow.setProtocol("websocket")
	c.lint.raw.Store(true)
	seen.status.Store(http.StatusSwitchingProtocols)
	seen.socket.Store(s)
	res.Body = s
	return nil
}

// failed answers when upstream did not.
func (w *webServer) failed(rw http.ResponseWriter, r *http.Request, err error) {
	c := r.Context().Value(flowKey{}).(*webConn)
	f := c.flow
	v := &refusal{Status: http.StatusBadGateway, Error: "failed", Reason: failReason(r, err), Detail: err.Error(), Host: f.name, Rule: f.verdict.Rule}
	if a, ok := r.Context().Value(routeKey{}).(*admission); ok {
		v.Rule = a.route.Rule()
	}
	seen := r.Context().Value(exchangeKey{}).(*exchange)
	if halt := seen.halt.Load(); halt != nil {
		err = halt // the transport replaced the original error by its own
	}
	var de *dialError
	var stop *refusedError
	var we *webSocketError
	why, bad := c.badHead()
	switch {
	case bad:
		v.Status, v.Error, v.Reason, v.Detail = http.StatusBadRequest, "refused", ReasonHTTPMalformed, why
	case errors.As(err, &stop):
		v.Status, v.Error, v.Reason, v.Detail = http.StatusForbidden, "refused", stop.reason, stop.Error()
		v.Hint = hints[stop.reason]
		if stop.reason == reasonUpstream {
			v.Status, v.Error = http.StatusBadGateway, "failed"
		}
	case errors.As(err, &we):
		v.Status, v.Reason = we.status, we.reason
	case isCertificate(err):
		v.Reason = reasonUpstreamTLS
	case errors.As(err, &de) && de.upstream:
		// No flag would allow it: the route itself says where to go.
	case errors.As(err, &de) && de.reason == reasonNotPublic:
		v.Status, v.Error = http.StatusForbidden, "refused"
		v.Allow = "--allow-private " + authority(f.name, f.addr.Port())
	case errors.As(err, &de) && de.reason != reasonDialFailed && de.reason != reasonResolveFailed:
		v.Status, v.Error = http.StatusForbidden, "refused"
		v.Allow = "--allow " + authority(f.name, f.addr.Port())
	}
	w.g.advise(v)
	// A transport's error repeats what upstream wrote, perhaps the request with its
	// credential.
	told := *v
	if told.Detail = withoutAddresses(v.Detail); !bad && errors.As(err, &de) {
		told.Detail = de.forBottle()
	}
	told.Detail, v.Detail = bound(w.g.hidden(told.Detail)), bound(w.g.hidden(v.Detail))
	f.note(v.Reason, v.Detail)
	seen.recordRefusal(v)
	refuseHTTP(rw, r, &told)
}

// failReason returns the reason for a failed round trip.
func failReason(r *http.Request, err error) Reason {
	var de *dialError
	switch {
	case errors.As(err, &de):
		return de.reason
	case r.Context().Err() != nil:
		return reasonReset // the client is gone
	}
	return reasonUpstream
}

// isCertificate reports whether the TLS handshake with upstream failed.
func isCertificate(err error) bool {
	var (
		cert   *tls.CertificateVerificationError
		alert  tls.AlertError
		record tls.RecordHeaderError
	)
	return errors.As(err, &cert) || errors.As(err, &alert) || errors.As(err, &record)
}

// refuseHTTP answers with the refusal, as text or JSON, and ends the connection.
func refuseHTTP(rw http.ResponseWriter, r *http.Request, v *refusal) {
	body, err := json.Marshal(v)
	if err != nil {
		body = []byte("{}")
	}
	h := rw.Header()
	h.Set("Connection", "close")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Carboy-Refused", string(v.Reason))
	retryAfter(h, v)
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		h.Set("Content-Type", "application/json")
		rw.WriteHeader(v.Status)
		_, _ = rw.Write(append(body, '\n'))
		return
	}
	h.Set("Content-Type", "text/plain; charset=utf-8")
	rw.WriteHeader(v.Status)
	_, _ = fmt.Fprintf(rw, "%s\n%s\n", v.text(), body)
}

// text returns the refusal for people, without the last line end.
func (v *refusal) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "carboy: %s: %s", v.Error, v.Reason)
	for _, part := range []struct{ before, what string }{
		{": ", v.Detail}, {"\nrule: ", v.Rule}, {"\nto allow it: carboy run ", v.Allow}, {"\nhint: ", v.Hint},
	} {
		if part.what != "" {
			b.WriteString(part.before + part.what)
		}
	}
	return b.String()
}

type bufferPool struct{}

func (bufferPool) Get() []byte { return relayBuffers.Get().(*[relayBuffer]byte)[:] }

func (bufferPool) Put(b []byte) {
	if cap(b) >= relayBuffer {
		relayBuffers.Put((*[relayBuffer]byte)(b[:relayBuffer]))
	}
}
