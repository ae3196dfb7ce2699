package gateway

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/scan"
)

// signing is the transport of the HTTP proxy. It scans a judged and rebuilt request,
// adds the route's credential, sends it, removes the credential from the answer and
// scans that. Redirects are left to the client, whose next request is judged like any
// other.
type signing struct{}

// RoundTrip implements http.RoundTripper.
func (s signing) RoundTrip(req *http.Request) (*http.Response, error) {
	a, _ := req.Context().Value(routeKey{}).(*admission)
	if a == nil {
		return nil, refusedf(reasonCredential, "the request was not judged")
	}
	x, _ := req.Context().Value(exchangeKey{}).(*exchange)
	if x == nil {
		return nil, refusedf(reasonScan, "the request is not recorded")
	}
	w, err := newInspector(x, a.detectors, a.route.Options().Scan)
	if err != nil {
		return nil, err
	}
	want, c := a.route.Options().Credential, a.credential
	if c != nil {
		var ask func(string) bool
		if w.asksPerson() {
			ask = w.askOwn
		}
		w.fields = c.Fields(req.Header.Values("Content-Type"), a.route.Options().OwnCredentials, ask)
	}
	if want.IsZero() {
		if err := w.request(req); err != nil {
			return nil, err
		}
		if len(a.beside) > 0 {
			return s.roundTripScrubbed(a, w, req)
		}
		w.limitAcceptEncoding(req.Header)
		res, err := s.send(a, x, nil, req)
		return scanReply(w, res, err)
	}
	if c == nil {
		return nil, refusedf(reasonCredential, "the route's credential is not there")
	}
	if req.URL.Scheme != "https" && !want.Insecure && !isLocalHost(req.URL.Hostname()) {
		return nil, refusedf(reasonCredential, "a credential is not put on plain HTTP; use https, or say insecure: true")
	}
	// req is the proxy's own copy.
	if err := c.Sign(req, a.route.Options().OwnCredentials, w.request); err != nil {
		var stop *refusedError
		if errors.As(err, &stop) {
			return nil, err
		}
		return nil, &refusedError{reasonCredential, err}
	}
	return s.roundTripScrubbed(a, w, req)
}

// scrubber removes all credentials that an answer may contain; nil: there are none.
func (a *admission) scrubber() *credential.Scrubber {
	if a.credential == nil && len(a.beside) == 0 {
		return nil
	}
	cs := slices.Collect(maps.Values(a.beside))
	if a.credential != nil {
		cs = append(cs, a.credential)
	}
	return credential.NewScrubber(cs...)
}

// roundTripScrubbed sends a request with a credential and removes the credential from
// the answer.
func (s signing) roundTripScrubbed(a *admission, w *inspector, req *http.Request) (*http.Response, error) {
	// Ask for a form that can be searched. Clients that asked for gzip accept plain
	// text too.
	req.Header.Set("Accept-Encoding", "identity")
	if req.Header.Get("Grpc-Accept-Encoding") != "" {
		req.Header.Set("Grpc-Accept-Encoding", "identity")
	}
	if a.route.Options().Credential.Scheme != credential.AWS {
		// A credential split over two range requests would not be found. Servers may
		// ignore a range.
		req.Header.Del("Range")
		req.Header.Del("If-Range")
	}
	scrubber := a.scrubber()
	res, err := s.send(a, w.x, scrubber, req)
	if err != nil {
		// The error repeats what upstream sent if that is not HTTP, and the bottle is
		// told the error.
		if told := scrubber.Text(err.Error()); told != err.Error() {
			return nil, errors.New(told)
		}
		return nil, err
	}
	if a.credential != nil {
		a.credential.Answered(req, res.StatusCode)
	}
	if err := scrubReply(w, scrubber, res); err != nil {
		_ = res.Body.Close()
		return nil, err
	}
	return scanReply(w, res, nil)
}

// send sends the request. It also handles informational (1xx) answers, of which there
// may be many: the proxy's own hook would pass them on unscrubbed. scrubber may be
// nil.
func (s signing) send(a *admission, x *exchange, scrubber *credential.Scrubber, req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context()) // also ends with its parent
	early := &httptrace.ClientTrace{WroteHeaders: func() {
		if a.credential != nil {
			name := a.credential.Name()
			x.signed.Store(&name)
		}
	}, Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
		if scrubber != nil && scrubber.Header(http.Header(h), credential.Look{}) != nil {
			clear(h)
		}
		const line = len("HTTP/1.1 103 Early Hints\r\n\r\n")
		if m := a.account.incoming().takeAll(int64(line) + headerBytes(http.Header(h))); m != nil {
			// The error of an outer hook is ignored, so cancel the request.
			clear(h)
			_ = x.overCap(m)
			cancel()
		}
		return nil
	}}
	return a.roundTrip(req.WithContext(httptrace.WithClientTrace(ctx, early)))
}

// scanReply scans upstream's answer on its way in.
func scanReply(w *inspector, res *http.Response, err error) (*http.Response, error) {
	if err != nil {
		return nil, err
	}
	if err := w.reply(res); err != nil {
		_ = res.Body.Close()
		return nil, err
	}
	return res, nil
}

// isLocalHost reports whether host is this machine or an address of a private network.
func isLocalHost(host string) bool {
	if host == policy.HostGateway {
		return true
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	switch policy.Classify(a) {
	case policy.ClassLoopback, policy.ClassPrivate, policy.ClassUniqueLocal:
		return true
	}
	return false
}

// look returns the settings of a search of the answer for credentials.
func (w *inspector) look() credential.Look {
	return credential.Look{Spare: w.d.spare, Found: func(f scan.Finding) { w.found(f, scan.Redact, true) }}
}

// reflectedError turns an error of such a search into the end of the exchange, and leaves
// others as they are.
func (w *inspector) reflectedError(err error) error {
	var found *scan.FoundError
	switch {
	case errors.As(err, &found):
		return w.x.stop(refusedf(reasonReply, "the answer repeats a credential in its %s, written as %s, where it can't be masked", found.Finding.Place, found.Finding.Transform))
	case isScan(err):
		return w.x.stop(refusedf(reasonReply, "the answer can't be searched for the credential: %w", err))
	}
	return err
}

// scrubReply removes the credential from an answer.
func scrubReply(w *inspector, scrubber *credential.Scrubber, res *http.Response) error {
	if err := scrubber.Header(res.Header, w.look()); err != nil {
		return w.reflectedError(err)
	}
	if res.StatusCode == http.StatusSwitchingProtocols || res.Body == nil || res.Body == http.NoBody {
		return nil
	}
	switch codings := res.Header.Values("Content-Encoding"); {
	case len(codings) == 0 || len(codings) == 1 && strings.EqualFold(strings.TrimSpace(codings[0]), "identity"):
	case len(codings) == 1 && strings.EqualFold(strings.TrimSpace(codings[0]), "gzip") && res.Request.Method != http.MethodHead:
		res.Body = &gunzip{body: res.Body}
		res.Header.Del("Content-Encoding")
		res.Header.Del("Content-Length")
		res.ContentLength = -1
	default:
		return refusedf(reasonReply, "upstream answers encoded (%.60q), though it was asked not to, so its answer can't be searched for the credential", strings.Join(codings, ", "))
	}
	b := &scrubbedReply{w: w, res: res, src: res.Body, scrubber: scrubber}
	contentType := res.Header.Get("Content-Type")
	if isGRPC(contentType) && res.ContentLength < 0 {
		m := scrubber.Messages(w.look())
		b.messages = m
		b.r = newGRPCBody(res.Body, m, strings.ToLower(res.Header.Get("Grpc-Encoding")))
	} else {
		body := scrubber.Body(res.Body, w.look(), isText(contentType))
		b.r, b.src = body, body
	}
	if res.Body = b; w.scan.NoInjection {
		return w.holdReply(res, b) // otherwise what looks for injections does
	}
	return nil
}

// scrubbedReply is the body of an answer without credentials. At its end it scrubs the
// trailers, which are known then.
type scrubbedReply struct {
	w        *inspector
	res      *http.Response
	r        io.Reader
	src      io.Closer
	messages *credential.Messages // of gRPC
	scrubber *credential.Scrubber
}

func (b *scrubbedReply) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err == io.EOF {
		if herr := b.scrubber.Header(b.res.Trailer, b.w.look()); herr != nil {
			clear(b.res.Trailer)
			n, err = 0, herr
		}
	}
	return n, b.w.reflectedError(err)
}

func (b *scrubbedReply) Close() error {
	if b.messages != nil {
		b.messages.Close()
	}
	return b.src.Close()
}

// gunzip decodes one gzip member after the other. It reads no more than it needs to
// return something.
type gunzip struct {
	body io.ReadCloser
	r    *gzip.Reader
}

func (g *gunzip) Read(p []byte) (int, error) {
	if g.r == nil {
		r, err := gzip.NewReader(g.body)
		if err != nil {
			if errors.Is(err, io.EOF) {
				return 0, io.EOF // an empty body
			}
			return 0, err
		}
		g.r = r
	}
	return g.r.Read(p)
}

func (g *gunzip) Close() error { return g.body.Close() }
