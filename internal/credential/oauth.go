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
	// headers are set beside the token.
	headers map[string]string

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

// Tokens are what a token server gave.
type Tokens struct {
	Access, Refresh secret.Value // Refresh is empty when the one that was used stays
	ID              string       // of OpenID Connect, or empty
}

// Sharer is a RefreshSource whose file others use as well: a program of the host's
// that has signed in, and that refreshes when carboy does not.
type Sharer interface {
	RefreshSource
	// Access is the access token that is kept there, and until when it is good; zero:
	// it does not say. It is asked for after Take, before done.
	Access() (secret.Value, time.Time)
	// PutAll is Put for all that the server gave.
	PutAll(Tokens) error
}

// OAuthOptions are what an OAuth credential needs beside its route.
type OAuthOptions struct {
	Refresh      RefreshSource
	ClientSecret secret.Value   // may be empty
	Roots        *x509.CertPool // nil: whom this machine trusts
	// JSON asks the server in JSON instead of in a form.
	JSON bool
	// Headers are set on each request beside the token.
	Headers map[string]string
}

// OpenOAuth is [Open] for the scheme [OAuth]. Nothing is asked of the server yet.
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
	for name, value := range o.headers {
		req.Header.Set(name, value)
	}
	return nil
}

// usable is when a token that is good until expires is not used any more.
func usable(now, expires time.Time) time.Time {
	if expires.IsZero() {
		return expires
	}
	// Of a token that lives no longer than that, half of the time is used.
	life := expires.Sub(now)
	return now.Add(max(life-skew, life/2))
}

// kept is the access token that stands with the refresh token, when it is another one
// than was refused, and still good: somebody else has refreshed meanwhile.
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

// signature is what of a token is secret. A JSON Web Token (RFC 7519) says in its
// first two parts what anybody may know, and others of its server say the same; it is
// worth nothing without the third, which a signature of any kind makes long enough.
func signature(v secret.Value) secret.Value {
	parts := strings.Split(v.UnsafeString(), ".")
	if len(parts) != 3 || !strings.HasPrefix(parts[0], "ey") || !strings.HasPrefix(parts[1], "ey") || len(parts[2]) < minSignature {
		return v
	}
	return secret.NewString(parts[2])
}

// minSignature is the length of the shortest one, HS256's, in base64.
const minSignature = 43

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
			expires = at // that the token itself says
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
	if b, err = json.Marshal(fields); err != nil {
		return nil, err
	}
	req = req.Clone(req.Context())
	req.Body, req.ContentLength, req.GetBody = io.NopCloser(bytes.NewReader(b)), int64(len(b)), nil
	req.Header.Set("Content-Type", "application/json")
	return t.RoundTripper.RoundTrip(req)
}

// maxForm bounds what is asked of a token server, in bytes.
const maxForm = 128 << 10

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
