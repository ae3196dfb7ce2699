package credential

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// oauth sets access tokens, which it requests with a refresh token (RFC 6749 section
// 6). The request comes from the host, never from the bottle, and the server's
// certificate is verified. Neither token gets into the bottle. Errors contain neither
// a token nor text of that server.
//
// A bottle can make any number of requests, and can cause 401 answers to some. To
// protect the token server there is only one refresh at a time, a failure is kept for
// failsFor, and after a 401 a token is not replaced while it is younger than
// trustedFor.
type oauth struct {
	conf   oauth2.Config
	client *http.Client
	source RefreshSource
	now    func() time.Time
	// headers are set in addition to the token.
	headers map[string]string

	turn chan struct{} // semaphore of one for refreshing

	mu      sync.Mutex
	first   secret.Value // the first refresh token
	access  secret.Value
	was     secret.Value // the previous access token: it may still be in replies
	changed int          // how often access has changed
	expires time.Time    // zero: unknown
	got     time.Time    // when access was received
	stale   bool         // upstream rejected access
	err     error        // of the last refresh
	failed  time.Time    // when err occurred
	warning error
}

const (
	// skew is the time before its expiry at which a token is no longer used.
	skew       = 30 * time.Second
	failsFor   = 5 * time.Second
	trustedFor = 30 * time.Second
	// refreshIn bounds one refresh.
	refreshIn = 30 * time.Second
)

// RefreshSource stores a refresh token.
type RefreshSource interface {
	// Take returns the token and reserves it until done is called. ctx bounds the
	// wait.
	Take(ctx context.Context) (v secret.Value, done func(), err error)
	// Put replaces the token by a new one from the server. After an error this run
	// continues with the new one all the same.
	Put(v secret.Value) error
}

// Tokens is the answer of a token server.
type Tokens struct {
	Access, Refresh secret.Value // Refresh is empty if the old one stays valid
	ID              string       // OpenID Connect ID token, or empty
}

// Sharer is a RefreshSource that is shared with other programs: one on the host that
// has signed in, and refreshes on its own.
type Sharer interface {
	RefreshSource
	// Access returns the stored access token and its expiry; zero: unknown. It is
	// called between Take and done.
	Access() (secret.Value, time.Time)
	// PutAll stores all tokens from the server.
	PutAll(Tokens) error
}

// OAuthOptions are the settings of an OAuth credential that are not in its route.
type OAuthOptions struct {
	Refresh      RefreshSource
	ClientSecret secret.Value   // may be empty
	Roots        *x509.CertPool // nil: the roots of the host
	// JSON sends the token request as JSON, not as a form.
	JSON bool
	// Headers are set on each request in addition to the token.
	Headers map[string]string
}

// OpenOAuth is [Open] for the scheme [OAuth]. It does not contact the server.
func OpenOAuth(name string, c policy.Credential, o OAuthOptions) (*Credential, error) {
	ctx, cancel := context.WithTimeout(context.Background(), refreshIn)
	defer cancel()
	v, done, err := o.Refresh.Take(ctx)
	if err != nil {
		return nil, fmt.Errorf("credential %s: %w", name, err)
	}
	var access secret.Value
	var expires time.Time
	if shared, ok := o.Refresh.(Sharer); ok {
		access, expires = shared.Access()
	}
	done()
	if v.Empty() {
		return nil, fmt.Errorf("%s: %w", name, ErrEmpty)
	}
	for _, v := range []secret.Value{v, access, o.ClientSecret} {
		if err := printable(v); err != nil {
			return nil, fmt.Errorf("credential %s: %w", name, err)
		}
	}
	if err := CheckTokenURL(c.OAuth.TokenURL); err != nil {
		return nil, fmt.Errorf("credential %s: %w", name, err)
	}
	s := &oauth{source: o.Refresh, now: time.Now, turn: make(chan struct{}, 1), first: v, client: tokenClient(o.Roots), access: access, expires: usable(time.Now(), expires), headers: o.Headers}
	if o.JSON {
		s.client.Transport = inJSON{s.client.Transport}
	}
	s.conf = oauth2.Config{
		ClientID: c.OAuth.ClientID, ClientSecret: o.ClientSecret.UnsafeString(), Scopes: strings.Fields(c.OAuth.Scopes),
		Endpoint: oauth2.Endpoint{TokenURL: c.OAuth.TokenURL, AuthStyle: oauth2.AuthStyleInHeader},
	}
	if c.OAuth.InBody || o.ClientSecret.Empty() {
		s.conf.Endpoint.AuthStyle = oauth2.AuthStyleInParams
	}
	return &Credential{name: name, scheme: c.Scheme, signer: s, placeholder: newPlaceholder(v.Len())}, nil
}

// CheckTokenURL refuses URLs that tokens must not be sent to.
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

// tokenClient returns a client for a token server. It follows no redirects: tokens go
// to the server in the route file and to no other.
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

func (o *oauth) sign(req *http.Request, _ *removed) error {
	v, err := o.token(req.Context())
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+v.UnsafeString())
	for name, value := range o.headers {
		req.Header.Set(name, value)
	}
	return nil
}

// usable returns when a token with this expiry is no longer used.
func usable(now, expires time.Time) time.Time {
	if expires.IsZero() {
		return expires
	}
	// A short-lived token is used for half of its life.
	life := expires.Sub(now)
	return now.Add(max(life-skew, life/2))
}

// kept returns the stored access token if another program has refreshed it: if it
// differs from the rejected one and has not expired.
func (o *oauth) kept(s Sharer) (secret.Value, time.Time, bool) {
	v, expires := s.Access()
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.now()
	until := usable(now, expires)
	if v.Empty() || printable(v) != nil || v.Equal(o.access) || !expires.IsZero() && !now.Before(until) {
		return secret.Value{}, time.Time{}, false
	}
	return v, until, true
}

func (o *oauth) secrets() []secret.Value {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := []secret.Value{signature(o.first)}
	for _, v := range []secret.Value{o.access, o.was, secret.NewString(o.conf.ClientSecret)} {
		if !v.Empty() {
			out = append(out, signature(v))
		}
	}
	return out
}

// signature returns the secret part of a token. The first two parts of a JSON Web
// Token (RFC 7519) are public, and similar in other tokens of its server. Without the
// third part, which is long enough with any kind of signature, they are worthless.
func signature(v secret.Value) secret.Value {
	parts := strings.Split(v.UnsafeString(), ".")
	if len(parts) != 3 || !strings.HasPrefix(parts[0], "ey") || !strings.HasPrefix(parts[1], "ey") || len(parts[2]) < minSignature {
		return v
	}
	return secret.NewString(parts[2])
}

// minSignature is the length of the shortest signature, of HS256, in base64.
const minSignature = 43

// edition returns a number that changes with the secrets.
func (o *oauth) edition() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changed
}

// current returns a usable token, or an error that is still kept. It returns false if
// there is neither.
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
	if v, ok, err := o.current(); ok { // another goroutine has refreshed it
		return v, err
	}
	// If the bottle gives up during a refresh, a token that the server has replaced
	// must not be lost.
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
	shared, isShared := o.source.(Sharer)
	if isShared {
		if v, until, ok := o.kept(shared); ok {
			return v, until, nil
		}
	}
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
	next := secret.NewString(t.RefreshToken)
	if next.Equal(v) {
		next = secret.Value{}
	}
	switch id, _ := t.Extra("id_token").(string); {
	case isShared:
		err = shared.PutAll(Tokens{Access: got, Refresh: next, ID: id})
	case !next.Empty():
		err = o.source.Put(next)
	}
	if err != nil {
		o.mu.Lock()
		o.warning = err
		o.mu.Unlock()
	}
	expires := t.Expiry
	if expires.IsZero() && isShared {
		if v, at := shared.Access(); v.Equal(got) {
			expires = at // from the token itself
		}
	}
	return got, usable(asked, expires), nil
}

// inJSON sends a form as JSON.
type inJSON struct{ http.RoundTripper }

func (t inJSON) RoundTrip(req *http.Request) (*http.Response, error) {
	defer req.Body.Close()
	b, err := io.ReadAll(io.LimitReader(req.Body, maxForm))
	if err != nil {
		return nil, err
	}
	defer clear(b)
	form, err := url.ParseQuery(string(b))
	if err != nil {
		return nil, errors.New("the request is no form")
	}
	fields := map[string]string{}
	for name := range form {
		fields[name] = form.Get(name)
	}
	b, _ = json.Marshal(fields) // strings can always be encoded
	req = req.Clone(req.Context())
	req.Body, req.ContentLength, req.GetBody = io.NopCloser(bytes.NewReader(b)), int64(len(b)), nil
	req.Header.Set("Content-Type", "application/json")
	return t.RoundTripper.RoundTrip(req)
}

// maxForm bounds a request to a token server, in bytes.
const maxForm = 128 << 10

func (o *oauth) host() string {
	u, _ := url.Parse(o.conf.Endpoint.TokenURL) // CheckTokenURL has parsed it before
	return u.Host
}

// errorCodes are the codes of RFC 6749 section 5.2. Other text of a server may contain
// anything.
var errorCodes = []string{"invalid_request", "invalid_client", "unauthorized_client", "unsupported_grant_type", "invalid_scope"}

// plain returns err without text from the server.
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

// rejected records that upstream rejected the token in req.
func (o *oauth) rejected(req *http.Request) {
	used, ok := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
	o.mu.Lock()
	defer o.mu.Unlock()
	if ok && o.access.EqualBytes([]byte(used)) && o.now().Sub(o.got) >= trustedFor {
		o.stale = true
	}
}

// Answered tells the credential the status of the answer to a signed request. After a
// 401 it gets a new token before the next request.
func (c *Credential) Answered(req *http.Request, status int) {
	if s, ok := c.signer.(*oauth); ok && status == http.StatusUnauthorized {
		s.rejected(req)
	}
}

// Warning returns a problem that a person should know about at the end of a run, or
// nil. It contains no secret.
func (c *Credential) Warning() error {
	s, ok := c.signer.(*oauth)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.warning
}
