package forge

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/secret"
)

// Bounds of a call.
const (
	callIn    = 30 * time.Second
	maxAnswer = 32 << 20 // bytes
	maxTries  = 3        // of a request that fails
	maxWaits  = 3        // of one that is told to come later
	maxWait   = 65 * time.Minute
)

// Resolver resolves a name to addresses. *net.Resolver implements it.
type Resolver interface {
	LookupHost(ctx context.Context, host string) ([]string, error)
}

// Client calls one forge with one token. It may be used concurrently.
type Client struct {
	provider string
	vendor   vendor
	base     string
	token    secret.Value
	app      *appTokens // nil: token is used
	http     *http.Client
	timeout  time.Duration
	backoff  time.Duration // before the second try; it doubles
	pageSize int           // maxPage
	textSize int           // maxText
	pause    func(ctx context.Context, d time.Duration) error

	mu    sync.Mutex
	login string
}

// Open returns a Client. It sends nothing yet. Close ends its connections.
func Open(o Options) (*Client, error) {
	v, err := vendorOf(o.Provider)
	if err != nil {
		return nil, err
	}
	u, err := parseAPI(o.API)
	if err != nil {
		return nil, err
	}
	if o.Timeout <= 0 {
		o.Timeout = callIn
	}
	if o.Resolver == nil {
		o.Resolver = net.DefaultResolver
	}
	c := &Client{
		provider: o.Provider, vendor: v, base: strings.TrimRight(o.API, "/"), token: o.Token,
		timeout: o.Timeout, backoff: time.Second / 2, pause: pause, login: o.Login,
		pageSize: maxPage, textSize: maxText,
	}
	switch {
	case o.App != nil && o.Provider != "github":
		return nil, fmt.Errorf("%s has no apps: it needs a token", o.Provider)
	case o.App != nil:
		if c.app, err = newAppTokens(*o.App); err != nil {
			return nil, err
		}
	case o.Token.Empty():
		return nil, fmt.Errorf("%s needs a token, and there is none", o.Provider)
	}
	t := &http.Transport{
		// Use no proxy from the environment: it would see the token.
		DialContext:            dialer(o.Resolver, u.Scheme == "http"),
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.Roots},
		TLSHandshakeTimeout:    o.Timeout,
		IdleConnTimeout:        time.Minute,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
	}
	c.http = &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return c, nil
}

// NumbersApart reports whether the forge numbers issues and pull requests apart.
func (c *Client) NumbersApart() bool { return c.provider == "gitlab" }

// Close ends the connections that no call uses.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// notSentError is an error from before anything of a request was sent.
type notSentError struct {
	error
	final bool // it will be the same at the next try
}

func (e notSentError) Unwrap() error { return e.error }

// dialer tries the addresses of a name in turn. With plain set there is no TLS, and the
// token can be read on the way. Then it dials only private addresses.
func dialer(r Resolver, plain bool) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		addrs := []string{host}
		if _, perr := netip.ParseAddr(host); perr != nil {
			if addrs, err = r.LookupHost(ctx, host); err != nil {
				return nil, notSentError{err, false}
			}
		}
		err, final := fmt.Errorf("%s has no address", safetext.String(host, 200)), false
		for _, a := range addrs {
			ip, perr := netip.ParseAddr(a)
			if perr != nil {
				continue
			}
			if class := policy.Classify(ip); plain && class != policy.ClassLoopback && class != policy.ClassPrivate {
				err = errors.New("plain HTTP would show the token on its way there: use https in api_url")
				final = true
				continue
			}
			final = false
			var conn net.Conn
			if conn, err = (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(ip.String(), port)); err == nil {
				return conn, nil
			}
		}
		return nil, notSentError{err, final}
	}
}

// Error is a call that failed.
type Error struct {
	Provider, Method, Path string
	Code                   int    // of the answer; 0: there was none, or Err says why it is no good
	Needs                  string // the scope or permission that the forge says is missing
	Said                   string // the forge's own words, safe to show
	Err                    error

	broken bool // the connection failed, and a second try may succeed
}

func (e *Error) Error() string {
	s := e.Provider + ": " + e.Method + " " + safetext.String(e.Path, 300) + ": "
	if e.Err != nil {
		return s + e.Err.Error()
	}
	s += strconv.Itoa(e.Code) + " " + http.StatusText(e.Code)
	switch {
	case e.Needs != "":
		s += " (the token needs " + e.Needs + ")"
	case e.Code == http.StatusUnauthorized:
		s += " (the token is not valid there)"
	case e.Code == http.StatusForbidden:
		s += " (the token or its user may not do this)"
	case e.Code == http.StatusNotFound:
		s += " (there is no such thing, or the token may not see it)"
	}
	if e.Said != "" {
		s += ": " + e.Said
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// declined reports whether err means that the forge did nothing.
func declined(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code >= 400 && e.Code < 500 && e.Code != http.StatusRequestTimeout || errors.As(err, new(notSentError))
}

// is reports whether err is an answer with one of these codes.
func is(err error, codes ...int) bool {
	var e *Error
	return errors.As(err, &e) && slices.Contains(codes, e.Code)
}

// request is one call of the API.
type request struct {
	method, path string // the path with its query
	in, into     any    // as JSON; nil: none
	ok           []int  // the codes that mean success; nil: 200
	// again is set if the request may be carried out twice.
	again bool
	token secret.Value // in place of the client's own
	most  int          // bytes of the answer; 0: maxAnswer
}

// tooLargeError is an answer of more bytes than are read.
type tooLargeError int

func (e tooLargeError) Error() string {
	return fmt.Sprintf("the forge answers with more than %d bytes", int(e))
}

func (c *Client) get(ctx context.Context, path string, into any) error {
	_, err := c.do(ctx, request{method: http.MethodGet, path: path, into: into, again: true})
	return err
}

// do sends a request, again where that helps and changes nothing more, and reads its answer.
func (c *Client) do(ctx context.Context, r request) (http.Header, error) {
	for tries, waits, backoff := 1, 0, c.backoff; ; backoff *= 2 {
		h, err := c.once(ctx, r)
		var (
			e      *Error
			unsent notSentError
		)
		if err == nil || !errors.As(err, &e) || ctx.Err() != nil {
			return h, err
		}
		d, told := later(e.Code, h)
		switch {
		case told && waits < maxWaits:
			waits++
			if end, bound := ctx.Deadline(); d > maxWait || bound && time.Until(end) < d {
				e.Said = strings.TrimSpace(e.Said + fmt.Sprintf(" [it asks to wait for %v]", d.Round(time.Second)))
				return h, err
			}
		case !told && tries < maxTries && (r.again && (e.broken || e.Code >= 500 || e.Code == http.StatusRequestTimeout) || errors.As(err, &unsent) && !unsent.final):
			tries++
			d = max(backoff, d)
		default:
			return h, err
		}
		if c.pause(ctx, d) != nil {
			return h, err
		}
	}
}

// later returns how long a forge asks to wait, and whether it says by that that it did
// nothing yet.
func later(code int, h http.Header) (time.Duration, bool) {
	if h == nil {
		return 0, false
	}
	limited := code == http.StatusTooManyRequests || code == http.StatusForbidden && (h.Get("Retry-After") != "" || h.Get("X-RateLimit-Remaining") == "0")
	if !limited && code != http.StatusServiceUnavailable {
		return 0, false
	}
	if s, err := strconv.ParseInt(h.Get("Retry-After"), 10, 32); err == nil && s >= 0 {
		return time.Duration(s) * time.Second, limited
	}
	for _, name := range []string{"X-RateLimit-Reset", "RateLimit-Reset"} {
		if s, err := strconv.ParseInt(h.Get(name), 10, 64); err == nil && s > 0 && s < 1<<40 {
			return max(time.Until(time.Unix(s, 0)), 0) + time.Second, limited
		}
	}
	if limited {
		return time.Minute, true // as GitHub asks for when it says no time
	}
	return 0, false
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Client) once(ctx context.Context, r request) (http.Header, error) {
	path, _, _ := strings.Cut(r.path, "?")
	fail := func(err error) error {
		return &Error{Provider: c.provider, Method: r.method, Path: path, Err: err}
	}
	token := r.token
	if token.Empty() {
		var err error
		if token, err = c.current(ctx); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var body io.Reader
	if r.in != nil {
		b, err := json.Marshal(r.in)
		if err != nil {
			return nil, fail(err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, c.base+r.path, body)
	if err != nil {
		return nil, fail(errors.New("the address is not valid"))
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "carboy")
	if r.in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	c.vendor.sign(req.Header, token.UnsafeString())
	res, err := c.http.Do(req)
	if err == nil {
		defer res.Body.Close()
		var text []byte
		if r.most == 0 {
			r.most = maxAnswer
		}
		if text, err = io.ReadAll(io.LimitReader(res.Body, int64(r.most)+1)); err == nil {
			return c.answer(r, path, token, res, text)
		}
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // leaves out the address
	}
	if errors.As(err, new(*tls.CertificateVerificationError)) {
		err = notSentError{err, true}
	}
	broken := !errors.As(err, new(notSentError))
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		// Not tried again: the caller has waited long enough.
		err, broken = fmt.Errorf("the forge did not answer within %v", c.timeout), false
	}
	return nil, &Error{Provider: c.provider, Method: r.method, Path: path, Err: err, broken: broken}
}

// answer reads an answer that has arrived whole.
func (c *Client) answer(r request, path string, token secret.Value, res *http.Response, text []byte) (http.Header, error) {
	e := &Error{Provider: c.provider, Method: r.method, Path: path, Code: res.StatusCode}
	ok := r.ok
	if ok == nil {
		ok = []int{http.StatusOK}
	}
	switch {
	case res.StatusCode < 300 && len(text) > r.most:
		e.Code, e.Err = 0, tooLargeError(r.most)
		return res.Header, e
	case slices.Contains(ok, res.StatusCode):
	case res.StatusCode >= 300 && res.StatusCode < 400:
		to := ""
		if l, err := res.Location(); err == nil {
			to = l.Scheme + "://" + l.Host
			if strings.HasPrefix(l.String(), c.base+"/") {
				to = l.Scheme + "://" + l.Host + l.Path // the repository has another name now
			}
			to = " to " + quoted(to, token)
		}
		e.Err = fmt.Errorf("the forge redirects%s, where the token is not sent: say the address and name that it has now", to)
		return res.Header, e
	default:
		if _, limited := later(res.StatusCode, res.Header); res.StatusCode == http.StatusForbidden && !limited {
			e.Needs = quoted(c.vendor.needs(res.Header, text), token)
		}
		e.Said = quoted(message(text), token)
		if res.StatusCode == http.StatusUnauthorized && r.token.Empty() {
			c.app.forget(token)
		}
		return res.Header, e
	}
	if r.into != nil && json.Unmarshal(text, r.into) != nil {
		e.Code, e.Err = 0, errors.New("the forge's answer is not what its API documents (is api_url right?)")
		return res.Header, e
	}
	return res.Header, nil
}

// current returns the token of the next request.
func (c *Client) current(ctx context.Context) (secret.Value, error) {
	if c.app == nil {
		return c.token, nil
	}
	return c.app.current(ctx, c)
}

// quoted returns a forge's own text in a form that an error may repeat: nothing of it if it
// has the token, or if the token is too short to be found.
func quoted(s string, token secret.Value) string {
	r, err := secret.NewRedactor(map[string]secret.Value{"token": token})
	if err != nil || r.In(s) {
		return ""
	}
	return safetext.String(s, 300)
}

// message returns the error message in an answer, which may hold anything.
func message(text []byte) string {
	var m struct {
		Message     any `json:"message"`
		Error       any `json:"error"`
		Description any `json:"error_description"`
		Errors      any `json:"errors"`
	}
	if json.Unmarshal(text, &m) != nil {
		return ""
	}
	var out []string
	for _, v := range []any{m.Message, m.Error, m.Description, m.Errors} {
		switch v := v.(type) {
		case string:
			out = append(out, v)
		case nil:
		default:
			b, _ := json.Marshal(v)
			out = append(out, string(b))
		}
	}
	return strings.Join(out, ": ")
}
