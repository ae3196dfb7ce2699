package credential

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"

	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/secret"
)

// oauth puts on access tokens, which it gets for a refresh token (RFC 6749 section
// 6): by a request of the host's own, never through the bottle, to a server whose
// certificate is verified. Neither token enters, and no error holds one or repeats
// what that server wrote.
//
// The bottle can make requests, and can have some of them answered with 401, as
// often as it likes. It must not hammer the token server with that: there is one
// refresh at a time, a failure stands for failsFor, and after a 401 a token that is
// younger than trustedFor is not changed.
type oauth struct {
	conf   oauth2.Config
	client *http.Client
	source RefreshSource
	now    func() time.Time

	turn chan struct{} // holds one: whose turn it is to refresh

	mu      sync.Mutex
	first   secret.Value // as it was opened
	access  secret.Value
	was     secret.Value // the access token before: replies to it still come
	changed int          // how often access did
	expires time.Time    // zero: the server does not say
	got     time.Time    // when access came
	stale   bool         // upstream did not take it
	err     error        // of the last refresh
	failed  time.Time    // when
	warning error
}

const (
	// skew is how long before its end a token is not used any more.
	skew       = 30 * time.Second
	failsFor   = 5 * time.Second
	trustedFor = 30 * time.Second
	// refreshIn bounds one refresh.
	refreshIn = 30 * time.Second
)

// RefreshSource is where a refresh token is kept.
type RefreshSource interface {
	// Take returns it, and keeps others from using it until done is called. ctx
	// bounds the wait.
	Take(ctx context.Context) (v secret.Value, done func(), err error)
	// Put keeps the one that the server gave instead. An error does not keep this
	// run from going on with it.
	Put(v secret.Value) error
}

// OAuthOptions are what an OAuth credential needs beside its route.
type OAuthOptions struct {
	Refresh      RefreshSource
	ClientSecret secret.Value   // may be empty
	Roots        *x509.CertPool // nil: whom this machine trusts
}

// OpenOAuth is [Open] for the scheme [OAuth]. Nothing is asked of the server yet.
func OpenOAuth(name string, c policy.Credential, o OAuthOptions) (*Credential, error) {
	ctx, cancel := context.WithTimeout(context.Background(), refreshIn)
	defer cancel()
	v, done, err := o.Refresh.Take(ctx)
	if err != nil {
		return nil, fmt.Errorf("credential %s: %w", name, err)
	}
	done()
	if v.Empty() {
		return nil, fmt.Errorf("%s: %w", name, ErrEmpty)
	}
	for _, v := range []secret.Value{v, o.ClientSecret} {
		if err := printable(v); err != nil {
			return nil, fmt.Errorf("credential %s: %w", name, err)
		}
	}
	if err := CheckTokenURL(c.OAuth.TokenURL); err != nil {
		return nil, fmt.Errorf("credential %s: %w", name, err)
	}
	s := &oauth{source: o.Refresh, now: time.Now, turn: make(chan struct{}, 1), first: v, client: tokenClient(o.Roots)}
	s.conf = oauth2.Config{
		ClientID: c.OAuth.ClientID, ClientSecret: o.ClientSecret.UnsafeString(), Scopes: strings.Fields(c.OAuth.Scopes),
		Endpoint: oauth2.Endpoint{TokenURL: c.OAuth.TokenURL, AuthStyle: oauth2.AuthStyleInHeader},
	}
	if c.OAuth.InBody || o.ClientSecret.Empty() {
		s.conf.Endpoint.AuthStyle = oauth2.AuthStyleInParams
	}
	return &Credential{name: name, scheme: c.Scheme, signer: s, placeholder: newPlaceholder(v.Len())}, nil
}

// CheckTokenURL refuses what tokens must not be sent to.
func CheckTokenURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https":
		return errors.New("token_url is not an https URL")
	case u.User != nil || u.Fragment != "" || u.RawQuery != "":
		return errors.New("token_url has a user, a query or a fragment")
	}
	return nil
}

// tokenClient speaks to a token server. It follows no redirect: a token is sent to
// the server that the route file names, and to no other.
func tokenClient(roots *x509.CertPool) *http.Client {
	return &http.Client{
		Timeout: refreshIn,
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: refreshIn / 3}).DialContext,
			TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout: refreshIn / 3, DisableKeepAlives: true, ForceAttemptHTTP2: true, MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (o *oauth) sign(req *http.Request, _ *taken) error {
	v, err := o.token(req.Context())
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+v.UnsafeString())
	return nil
}

func (o *oauth) secrets() []secret.Value {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := []secret.Value{o.first}
	for _, v := range []secret.Value{o.access, o.was, secret.NewString(o.conf.ClientSecret)} {
		if !v.Empty() {
			out = append(out, v)
		}
	}
	return out
}

// edition is another one when secrets are others.
func (o *oauth) edition() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changed
}

// current is the token that can be used, or the error that stands, or neither.
func (o *oauth) current() (secret.Value, bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.now()
	switch {
	case !o.access.Empty() && !o.stale && (o.expires.IsZero() || now.Before(o.expires)):
		return o.access, true, nil
	case o.err != nil && now.Sub(o.failed) < failsFor:
		return secret.Value{}, true, o.err
	}
	return secret.Value{}, false, nil
}

func (o *oauth) token(ctx context.Context) (secret.Value, error) {
	if v, ok, err := o.current(); ok {
		return v, err
	}
	select {
	case o.turn <- struct{}{}:
		defer func() { <-o.turn }()
	case <-ctx.Done():
		return secret.Value{}, context.Cause(ctx)
	}
	if v, ok, err := o.current(); ok { // another had it done meanwhile
		return v, err
	}
	// A bottle that gives up amid a refresh must not lose a token that the server
	// has changed.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshIn)
	defer cancel()
	v, expires, err := o.refresh(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err = err; err != nil {
		o.failed = o.now()
		return secret.Value{}, err
	}
	o.was, o.access, o.expires, o.got, o.stale = o.access, v, expires, o.now(), false
	o.changed++
	return v, nil
}

func (o *oauth) refresh(ctx context.Context) (secret.Value, time.Time, error) {
	no := func(err error) (secret.Value, time.Time, error) { return secret.Value{}, time.Time{}, err }
	v, done, err := o.source.Take(ctx)
	if err != nil {
		return no(err)
	}
	defer done()
	asked := o.now()
	ctx = context.WithValue(ctx, oauth2.HTTPClient, o.client)
	t, err := o.conf.TokenSource(ctx, &oauth2.Token{RefreshToken: v.UnsafeString()}).Token()
	if err != nil {
		return no(o.plain(err))
	}
	got := secret.NewString(t.AccessToken)
	if !strings.EqualFold(t.Type(), "Bearer") {
		return no(fmt.Errorf("the token server %s gives no bearer token", o.host()))
	}
	if printable(got) != nil || strings.Contains(t.AccessToken, " ") {
		return no(fmt.Errorf("the token server %s gives a token that is none", o.host()))
	}
	if next := secret.NewString(t.RefreshToken); !next.Empty() && !next.Equal(v) {
		if err := o.source.Put(next); err != nil {
			o.mu.Lock()
			o.warning = err
			o.mu.Unlock()
		}
	}
	if t.Expiry.IsZero() {
		return got, time.Time{}, nil
	}
	// Of a token that lives no longer than that, half of the time is used.
	life := t.Expiry.Sub(asked)
	return got, asked.Add(max(life-skew, life/2)), nil
}

func (o *oauth) host() string {
	if u, err := url.Parse(o.conf.Endpoint.TokenURL); err == nil {
		return u.Host
	}
	return ""
}

// errorCodes are those of RFC 6749 section 5.2; other words of a server may hold
// anything.
var errorCodes = []string{"invalid_request", "invalid_client", "unauthorized_client", "unsupported_grant_type", "invalid_scope"}

// plain is err without what the server wrote.
func (o *oauth) plain(err error) error {
	var said *oauth2.RetrieveError
	if errors.As(err, &said) {
		switch {
		case said.ErrorCode == "invalid_grant":
			return fmt.Errorf("the refresh token is not valid any more, says %s (invalid_grant): sign in again and put the new one in its place", o.host())
		case slices.Contains(errorCodes, said.ErrorCode):
			return fmt.Errorf("the token server %s refuses (%s)", o.host(), said.ErrorCode)
		case said.Response != nil:
			return fmt.Errorf("the token server %s answers with status %d", o.host(), said.Response.StatusCode)
		}
	}
	var cert *tls.CertificateVerificationError
	var failed *url.Error
	switch {
	case errors.As(err, &cert):
		return fmt.Errorf("the certificate of the token server %s is not good: %w", o.host(), cert.Err)
	case errors.As(err, &failed):
		return fmt.Errorf("the token server %s can't be asked: %w", o.host(), failed.Err)
	}
	return fmt.Errorf("the token server %s gives an answer that can't be read", o.host())
}

// rejected notes that upstream did not take the token that stands in req.
func (o *oauth) rejected(req *http.Request) {
	used, ok := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
	o.mu.Lock()
	defer o.mu.Unlock()
	if ok && o.access.EqualBytes([]byte(used)) && o.now().Sub(o.got) >= trustedFor {
		o.stale = true
	}
}

// Answered tells the credential how upstream answered a request that it signed: a
// token that is not taken is changed before the next one.
func (c *Credential) Answered(req *http.Request, status int) {
	if s, ok := c.signer.(*oauth); ok && status == http.StatusUnauthorized {
		s.rejected(req)
	}
}

// Warning is what a person should know about the credential when a run is over, or
// nil. It holds no secret.
func (c *Credential) Warning() error {
	s, ok := c.signer.(*oauth)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.warning
}
