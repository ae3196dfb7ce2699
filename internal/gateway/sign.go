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
)

// signing is the way out of the HTTP proxy: it puts a route's credential on, after
// the request was judged and rebuilt, and takes it out of what comes back; what
// leaves before it is on, and what enters, is scanned. A redirect is the client's to
// follow, by a request of its own that is judged.
type signing struct{}

// RoundTrip implements http.RoundTripper.
func (s signing) RoundTrip(req *http.Request) (*http.Response, error) {
	a, _ := req.Context().Value(routeKey{}).(*admitted)
	if a == nil {
		return nil, refuse(ReasonCredential, "the request was not judged")
	}
	x, _ := req.Context().Value(exchangeKey{}).(*exchange)
	if x == nil {
		return nil, refuse(ReasonScan, "the request is not recorded")
	}
	w, err := newWatch(x, a.detectors, a.route.Options().Scan)
	if err != nil {
		return nil, err
	}
	want, c := a.route.Options().Credential, a.credential
	if want.IsZero() {
		if err := w.request(req); err != nil {
			return nil, err
		}
		if len(a.beside) > 0 {
			return s.scrubbing(a, w, req)
		}
		w.wants(req.Header)
		res, err := s.send(a, x, nil, req)
		return watched(w, res, err)
	}
	if c == nil {
		return nil, refuse(ReasonCredential, "the route's credential is not there")
	}
	if req.URL.Scheme != "https" && !want.Insecure && !staysHere(req.URL.Hostname()) {
		return nil, refuse(ReasonCredential, "a credential is not put on plain HTTP; use https, or say insecure: true")
	}
	// It is the proxy's own copy.
	if err := c.Sign(req, w.request); err != nil {
		var stop *refusedError
		if errors.As(err, &stop) {
			return nil, err
		}
		return nil, &refusedError{ReasonCredential, err}
	}
	return s.scrubbing(a, w, req)
}

// scrubber is of all credentials that an answer may have; nil: of none.
func (a *admitted) scrubber() *credential.Scrubber {
	if a.credential == nil && len(a.beside) == 0 {
		return nil
	}
	cs := slices.Collect(maps.Values(a.beside))
	if a.credential != nil {
		cs = append(cs, a.credential)
	}
	return credential.NewScrubber(cs...)
}

// scrubbing sends a request to whom a credential was told, and takes that out of the
// answer.
func (s signing) scrubbing(a *admitted, w *watch, req *http.Request) (*http.Response, error) {
	// So that the reply can be looked at; a client that asked for gzip takes plain
	// text, too.
	req.Header.Set("Accept-Encoding", "identity")
	if a.route.Options().Credential.Scheme != credential.AWS {
		// Two parts have a value that neither has. Nobody need heed a range.
		req.Header.Del("Range")
		req.Header.Del("If-Range")
	}
	scrubber := a.scrubber()
	res, err := s.send(a, w.x, scrubber, req)
	if err != nil {
		// What is no HTTP is repeated in the error, which the bottle is told.
		if told := scrubber.Text(err.Error()); told != err.Error() {
			return nil, errors.New(told)
		}
		return nil, err
	}
	if a.credential != nil {
		a.credential.Answered(req, res.StatusCode)
	}
	if err := s.scrub(scrubber, res); err != nil {
		_ = res.Body.Close()
		return nil, err
	}
	return watched(w, res, nil)
}

// send also sees to the answers before the answer, of which there may be any number,
// before the proxy passes them on, which its own hook does. scrubber may be nil.
func (s signing) send(a *admitted, x *exchange, scrubber *credential.Scrubber, req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context()) // else ends with its parent
	early := &httptrace.ClientTrace{WroteHeaders: func() {
		if a.credential != nil {
			name := a.credential.Name()
			x.signed.Store(&name)
		}
	}, Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
		if scrubber != nil {
			scrubber.Header(http.Header(h))
		}
		const line = len("HTTP/1.1 103 Early Hints\r\n\r\n")
		if m := a.account.incoming().whole(int64(line) + headerBytes(http.Header(h))); m != nil {
			// What an outer hook returns is not heeded.
			clear(h)
			_ = x.overCap(m)
			cancel()
		}
		return nil
	}}
	return a.roundTrip(req.WithContext(httptrace.WithClientTrace(ctx, early)))
}

// watched is what upstream answered, looked at as it enters.
func watched(w *watch, res *http.Response, err error) (*http.Response, error) {
	if err != nil {
		return nil, err
	}
	if err := w.reply(res); err != nil {
		_ = res.Body.Close()
		return nil, err
	}
	return res, nil
}

// staysHere reports whether a host is an address of this machine or its network.
func staysHere(host string) bool {
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

// scrub takes the credential out of a reply.
func (s signing) scrub(scrubber *credential.Scrubber, res *http.Response) error {
	scrubber.Header(res.Header)
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
		return refuse(ReasonReply, "upstream answers encoded (%.60q), though it was asked not to, so its answer can't be searched for the credential", strings.Join(codings, ", "))
	}
	res.Body = &trailers{ReadCloser: scrubber.Body(res.Body, func(int) {}), res: res, scrubber: scrubber}
	return nil
}

// trailers scrubs those, which are known at the body's end.
type trailers struct {
	io.ReadCloser
	res      *http.Response
	scrubber *credential.Scrubber
}

func (t *trailers) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err == io.EOF {
		t.scrubber.Header(t.res.Trailer)
	}
	return n, err
}

// gunzip decodes one gzip member after the other, and reads no more than it must
// before there is something.
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
