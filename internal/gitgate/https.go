package gitgate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/carboy/carboy/internal/secret"
)

// httpsUpstream speaks smart HTTP, and adds a token.
type httpsUpstream struct {
	user   string
	token  secret.Value
	client *http.Client
	limits Bounds

	mu   sync.Mutex
	base *url.URL // of the repository; a redirect may change its path
}

func newHTTPS(a address, r Repo, cfg *Config) (*httpsUpstream, error) {
	u := &httpsUpstream{user: r.TokenUser, token: r.Token, limits: cfg.Limits}
	if u.user == "" {
		u.user = "x-access-token"
	}
	if strings.ContainsAny(u.user, ":\r\n") {
		return nil, errors.New("the token's user has a colon or a new line")
	}
	base, err := url.Parse(strings.TrimSuffix(r.URL, "/"))
	if err != nil {
		return nil, errors.New("not a URL")
	}
	u.base = base
	u.client = &http.Client{
		Transport: &http.Transport{
			DialContext:            (&net.Dialer{Timeout: cfg.Limits.Connect}).DialContext,
			TLSClientConfig:        &tls.Config{RootCAs: cfg.Roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    cfg.Limits.Connect,
			ForceAttemptHTTP2:      true,
			MaxIdleConnsPerHost:    8,
			IdleConnTimeout:        cfg.Limits.Idle,
			ResponseHeaderTimeout:  answerPatience * cfg.Limits.Idle,
			MaxResponseHeaderBytes: 64 << 10,
			DisableCompression:     true,
			WriteBufferSize:        64 << 10,
			ReadBufferSize:         64 << 10,
		},
		CheckRedirect: sameHost,
	}
	return u, nil
}

// sameHost allows a redirect of the list of references on the same host: forges send one
// for a renamed repository. A credential is never sent to another host.
func sameHost(next *http.Request, via []*http.Request) error {
	first := via[0].URL
	switch {
	case next.URL.Scheme != first.Scheme || next.URL.Host != first.Host:
		return fmt.Errorf("it redirects to another host, %q: declare that one, if it is meant", next.URL.Host)
	case len(via) > 3:
		return errors.New("it redirects in circles")
	case next.URL.RawQuery != first.RawQuery || !strings.HasSuffix(next.URL.Path, "/info/refs") || next.URL.User != nil:
		return errors.New("it redirects to something other than a list of references")
	}
	return nil
}

func (u *httpsUpstream) Close() error {
	u.client.CloseIdleConnections()
	return nil
}

func (u *httpsUpstream) at() url.URL {
	u.mu.Lock()
	defer u.mu.Unlock()
	return *u.base
}

func (u *httpsUpstream) advertise(ctx context.Context, service string, v version) (io.ReadCloser, error) {
	to := u.at()
	to = *to.JoinPath("info/refs")
	to.RawQuery = "service=" + service
	res, err := u.do(ctx, http.MethodGet, to, service, "advertisement", v, nil, 0)
	if err != nil {
		return nil, err
	}
	moved := *res.Request.URL
	moved.RawQuery, moved.RawPath = "", ""
	moved.Path = strings.TrimSuffix(moved.Path, "/info/refs")
	u.mu.Lock()
	u.base = &moved
	u.mu.Unlock()
	return res.Body, nil
}

func (u *httpsUpstream) call(ctx context.Context, service string, v version, body io.Reader, size int64) (io.ReadCloser, error) {
	to := u.at()
	res, err := u.do(ctx, http.MethodPost, *to.JoinPath(service), service, "result", v, body, size)
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

func (u *httpsUpstream) do(ctx context.Context, method string, to url.URL, service, form string, v version, body io.Reader, size int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, to.String(), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "git/carboy")
	if v == 2 {
		req.Header.Set("Git-Protocol", "version=2")
	}
	if body != nil {
		req.ContentLength = size
		req.GetBody = nil
		req.Header.Set("Content-Type", "application/x-"+service+"-request")
		req.Header.Set("Accept", "application/x-"+service+"-result")
	}
	u.token.UnsafeReveal(func(b []byte) {
		if len(b) > 0 {
			req.SetBasicAuth(u.user, string(b))
		}
	})
	res, err := u.client.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // leaves out the URL: the bottle knows the repository under another
		}
		return nil, err
	}
	want := "application/x-" + service + "-" + form
	if got := res.Header.Get("Content-Type"); res.StatusCode != http.StatusOK || got != want {
		_ = res.Body.Close()
		return nil, httpRefusal(res.StatusCode, got, want, u.token.Empty())
	}
	return res, nil
}

// httpRefusal returns an error that explains an answer that is not git's.
func httpRefusal(code int, got, want string, bare bool) error {
	switch {
	case code == http.StatusOK:
		return fmt.Errorf("it answers with %q and not with %q: is the URL that of a repository?", got, want)
	case (code == http.StatusUnauthorized || code == http.StatusForbidden) && bare:
		return fmt.Errorf("it wants a credential (HTTP %d), and none is declared for this repository", code)
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return fmt.Errorf("it does not accept the declared token (HTTP %d)", code)
	case code == http.StatusNotFound:
		return errors.New("it has no such repository, or shows it to others only (HTTP 404)")
	}
	return fmt.Errorf("it answers with HTTP %d", code)
}
