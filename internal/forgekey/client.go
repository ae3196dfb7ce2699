package forgekey

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
	"strconv"
	"time"

	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/secret"
)

// Bounds of a forge's answers.
const (
	maxAnswer = 4 << 20 // bytes
	maxPages  = 100     // of a list of keys
	perPage   = 50
)

// forge holds the differences between forges: addresses and names of fields. Errors are
// handled elsewhere.
type forge interface {
	// api returns the base URL of the API of a forge on host.
	api(host string) string
	// settings returns the path of the page with a repository's keys.
	settings(repo string) string
	// sign adds the token.
	sign(h http.Header, token string)
	list(ctx context.Context, c *client, repo string, page int) ([]deployKey, error)
	create(ctx context.Context, c *client, repo, title, public string) (deployKey, error)
	remove(ctx context.Context, c *client, repo, id string) error
}

// deployKey is a key as a forge lists it.
type deployKey struct{ ID, Title, Key string }

// keyAnswer is the JSON of a key. All forges use the same.
type keyAnswer struct {
	ID    int64  `json:"id"`
	Title string `json:"title"`
	Key   string `json:"key"`
}

func (a keyAnswer) key() deployKey {
	k := deployKey{Title: a.Title, Key: a.Key}
	if a.ID > 0 {
		k.ID = strconv.FormatInt(a.ID, 10)
	}
	return k
}

func keysOf(list []keyAnswer) []deployKey {
	out := make([]deployKey, len(list))
	for i, a := range list {
		out[i] = a.key()
	}
	return out
}

// client calls one forge with one token.
type client struct {
	forge   forge
	base    string
	token   secret.Value
	redact  *secret.Redactor
	http    *http.Client
	timeout time.Duration
}

func dial(o Options, to Target) (*client, error) {
	f, ok := forges[to.Provider]
	if !ok {
		return nil, fmt.Errorf("%.40q is not a known forge", to.Provider)
	}
	u, err := url.Parse(to.API)
	if err != nil {
		return nil, errors.New("the forge's address is not valid")
	}
	c := &client{forge: f, base: to.API, token: o.Token, timeout: o.Timeout}
	if c.redact, err = secret.NewRedactor(map[string]secret.Value{"token": o.Token}); err != nil {
		// The token is too short to be found in a text. So errors repeat nothing of an
		// answer.
		c.redact = nil
	}
	t := &http.Transport{
		// Use no proxy from the environment: it would see the token.
		DialContext:            dialer(o.Resolver, u.Scheme == "http"),
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.Roots},
		TLSHandshakeTimeout:    o.Timeout,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
	}
	c.http = &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return c, nil
}

func (c *client) close() { c.http.CloseIdleConnections() }

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
				return nil, err
			}
		}
		err = fmt.Errorf("%s has no address", safetext.String(host, 200))
		for _, a := range addrs {
			ip, perr := netip.ParseAddr(a)
			if perr != nil {
				continue
			}
			if class := policy.Classify(ip); plain && class != policy.ClassLoopback && class != policy.ClassPrivate {
				err = errors.New("plain HTTP would show the token on its way there: use https in api_url")
				continue
			}
			var conn net.Conn
			if conn, err = (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(ip.String(), port)); err == nil {
				return conn, nil
			}
		}
		return nil, err
	}
}

// statusError is an answer with an unexpected status.
type statusError struct {
	code int
	said string
}

func (e *statusError) Error() string {
	s := fmt.Sprintf("the forge answers %d %s", e.code, http.StatusText(e.code))
	switch e.code {
	case http.StatusUnauthorized:
		s += " (the token is not valid there)"
	case http.StatusForbidden:
		s += " (the token may not manage the repository's deploy keys)"
	case http.StatusNotFound:
		s += " (there is no such repository, or the token may not see it)"
	}
	if e.said != "" {
		s += ": " + e.said
	}
	return s
}

// call sends one request. want lists the statuses that mean success. into may be nil.
func (c *client) call(ctx context.Context, method, path string, in, into any, want ...int) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "carboy")
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	c.forge.sign(req.Header, c.token.UnsafeString())
	res, err := c.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // leaves out the address, which may hold a secret
		}
		if ctx.Err() != nil && errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("the forge did not answer within %v", c.timeout)
		}
		return fmt.Errorf("%s %s: %w", method, safetext.String(c.base+path, 300), err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s %s: read the answer: %w", method, safetext.String(c.base+path, 300), err)
	case res.StatusCode >= 300 && res.StatusCode < 400:
		to := ""
		if l, err := res.Location(); err == nil {
			to = " to " + c.quoted(l.Scheme+"://"+l.Host)
		}
		return fmt.Errorf("the forge redirects%s, where the token is not sent: say the address that it means in api_url", to)
	}
	ok := false
	for _, w := range want {
		ok = ok || res.StatusCode == w
	}
	switch {
	case !ok:
		return &statusError{res.StatusCode, c.quoted(message(text))}
	case len(text) > maxAnswer:
		return fmt.Errorf("the forge answers with more than %d bytes", maxAnswer)
	case into == nil:
		return nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return errors.New("the forge's answer is not what its API documents (is api_url right?)")
	}
	return nil
}

// quoted returns a forge's own text in a form that an error may repeat.
func (c *client) quoted(s string) string {
	if c.redact == nil || c.redact.In(s) {
		return ""
	}
	return safetext.String(s, 200)
}

// message returns the error message in an answer, which may hold anything.
func message(text []byte) string {
	var m struct {
		Message any `json:"message"`
		Error   any `json:"error"`
	}
	if json.Unmarshal(text, &m) != nil {
		return ""
	}
	for _, v := range []any{m.Message, m.Error} {
		switch v := v.(type) {
		case string:
			return v
		case nil:
		default:
			b, _ := json.Marshal(v)
			return string(b)
		}
	}
	return ""
}

// find lists the forge's keys that are r's public key. A key with only the same title
// belongs to another machine's bottle of that name.
func (c *client) find(ctx context.Context, r *KeyRecord) ([]deployKey, error) {
	var found []deployKey
	seen := map[string]bool{}
	for page := 1; page <= maxPages; page++ {
		keys, err := c.forge.list(ctx, c, r.Target.Repo, page)
		if err != nil {
			return nil, err
		}
		fresh := false // a forge without pages returns the same list again
		for _, k := range keys {
			if k.ID == "" {
				return nil, errors.New("the forge lists a key without an id")
			}
			if seen[k.ID] {
				continue
			}
			seen[k.ID], fresh = true, true
			if sameKey(k.Key, r.Public) {
				found = append(found, k)
			}
		}
		if !fresh {
			return found, nil
		}
	}
	return nil, fmt.Errorf("the forge lists more than %d pages of keys", maxPages)
}
