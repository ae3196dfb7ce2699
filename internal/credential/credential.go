// Package credential puts real credentials on requests that leave a bottle. The bottle
// has only placeholders, which are worth nothing.
//
// Before the real credential is set, everything is removed from a request that the
// agent put where credentials go. So a route's requests are made with the route's
// credential and never with another. A value is read once, on the host, and shown to
// nobody. A request that can't be signed is refused, not sent unsigned.
//
// Each scheme has its own file. Start reading at [Open] and [Credential.Sign].
package credential

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/secret"
)

// Schemes of [policy.Credential].
const (
	Bearer = policy.Scheme("bearer")    // Authorization: Bearer VALUE (RFC 6750)
	token  = policy.Scheme("token")     // Authorization: token VALUE, used by forges
	Basic  = policy.Scheme("basic")     // Authorization: Basic, with USER:PASSWORD (RFC 7617)
	APIKey = policy.Scheme("x-api-key") // X-Api-Key: VALUE
	Header = policy.Scheme("header")    // any header
	Query  = policy.Scheme("query")     // a parameter of the URL
	AWS    = policy.Scheme("aws-sigv4") // ID:SECRET or ID:SECRET:TOKEN
	OAuth  = policy.Scheme("oauth2")    // an access token as Bearer, see OpenOAuth
	// Codex uses the login of the host's codex. It is not for route files.
	Codex = policy.Scheme("codex-login")
)

// signer sets a real credential on a request.
type signer interface {
	// sign sets the credential on req, from which all credentials were removed. was
	// holds the removed ones, for schemes that need their form.
	sign(req *http.Request, was *removed) error
	// secrets returns the values that must not get into the bottle.
	secrets() []secret.Value
}

// Credential is a real credential for routes. It is safe for concurrent use.
type Credential struct {
	name        string
	placeholder string
	signer      signer
	field       string // for Header and Query
	scheme      policy.Scheme

	mu       sync.Mutex
	scrubber *Scrubber            // nil: not created yet
	scrubs   int                  // the edition of the secrets in scrubber
	joint    map[string]*Scrubber // of this and others, by all of their own ones
}

// ErrEmpty says that a credential has no value.
var ErrEmpty = errors.New("credential has no value")

// Open returns the credential that c describes, with this value. Records cite it by
// name. The caller keeps value alive.
func Open(name string, c policy.Credential, value secret.Value) (*Credential, error) {
	out := &Credential{name: name, field: c.Field, scheme: c.Scheme}
	if value.Empty() {
		return nil, fmt.Errorf("%s: %w", name, ErrEmpty)
	}
	if err := printable(value); err != nil {
		return nil, fmt.Errorf("credential %s: %w", name, err)
	}
	var err error
	switch c.Scheme {
	case Bearer:
		out.signer = fixed{header: "Authorization", prefix: "Bearer ", value: value}
	case token:
		out.signer = fixed{header: "Authorization", prefix: "token ", value: value}
	case APIKey:
		out.signer = fixed{header: "X-Api-Key", value: value}
	case Header:
		out.signer = fixed{header: textproto.CanonicalMIMEHeaderKey(c.Field), value: value}
	case Basic:
		out.signer, err = newBasic(value)
	case Query:
		out.signer = query{field: c.Field, value: value}
	case AWS:
		out.signer, err = newAWS(value)
	default:
		err = fmt.Errorf("unknown scheme %q", c.Scheme)
	}
	if err != nil {
		return nil, fmt.Errorf("credential %s: %w", name, err)
	}
	out.placeholder = newPlaceholder(value.Len())
	return out, nil
}

// printable refuses a value that can't be in a header. The usual case is the line end
// of a file.
func printable(v secret.Value) (err error) {
	v.UnsafeReveal(func(b []byte) {
		for _, c := range b {
			if c < ' ' || c == 0x7f {
				err = errors.New("the value has a line end or control character in it (a file's last line end, perhaps)")
			}
		}
	})
	return err
}

// newPlaceholder returns random text, as long as the value if that is long enough to
// be unique. Programs that only check the length and the characters of a key accept
// it.
func newPlaceholder(n int) string {
	const prefix = "carboy-placeholder-"
	s := prefix + strings.ToLower(rand.Text())
	for len(s) < n {
		s += strings.ToLower(rand.Text())
	}
	return s[:max(n, len(prefix)+16)]
}

// Name returns the name that records cite.
func (c *Credential) Name() string { return c.name }

// Keep replaces the placeholder by one that depends only on seed and name.
func (c *Credential) Keep(seed []byte) error {
	const prefix = "carboy-placeholder-"
	raw, err := hkdf.Key(sha256.New, seed, nil, "placeholder "+string(c.scheme)+" "+c.field+" "+c.name, min(len(c.placeholder), 4096))
	if err != nil {
		return fmt.Errorf("credential %s: %w", c.name, err)
	}
	text := strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(raw))
	n := len(c.placeholder)
	c.placeholder = (prefix + strings.Repeat(text, n/len(text)+1))[:n]
	return nil
}

// Placeholder returns the text that the bottle gets instead of the value. It is worth
// nothing.
func (c *Credential) Placeholder() string { return c.placeholder }

// Secrets returns the values that must not get into the bottle, in the form that
// requests have.
func (c *Credential) Secrets() []secret.Value { return c.signer.secrets() }

// ownHeaders are headers in which programs send credentials, some by names that
// namesCredential does not know.
var ownHeaders = []string{
	"Authorization", "Proxy-Authorization", "X-Api-Key", "Api-Key", "X-Auth-Token", "X-Access-Token", "Private-Token",
	"Job-Token", "Deploy-Token", "X-Goog-Api-Key", "X-Amz-Security-Token", "X-Github-Token", "X-Gitlab-Token",
	"Ocp-Apim-Subscription-Key", "X-Figma-Token", "X-Shopify-Access-Token", "Circle-Token", "X-Vault-Token", "Cookie",
}

// ownParams are the same for URL parameters.
var ownParams = []string{
	"access_token", "api_key", "apikey", "key", "private_token", "token", "auth", "sig", "signature",
	"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature", "X-Amz-Security-Token",
}

// removed holds what was removed from a request.
type removed struct {
	header http.Header
	query  url.Values
}

// Sign removes the agent's own credentials from req but those of the names own, calls look, which may inspect and
// change the rest, and then sets the real credential. The caller has verified that req
// goes where the credential's route leads. req is changed. After an error, which may
// come from look, it must not be sent.
func (c *Credential) Sign(req *http.Request, own Own, look func(*http.Request) error) error {
	was, err := c.strip(req, own)
	if err != nil {
		return err
	}
	if look != nil {
		if err := c.lookAt(req, was, look); err != nil {
			return err
		}
	}
	if err := c.signer.sign(req, was); err != nil {
		return fmt.Errorf("credential %s: %w", c.name, err)
	}
	return nil
}

// keeper is a signer that reuses a part of the agent's own credential.
type keeper interface{ kept(was *removed) string }

// lookAt calls look. It also shows it the part of the agent's own credential that will
// leave.
func (c *Credential) lookAt(req *http.Request, was *removed, look func(*http.Request) error) error {
	k, ok := c.signer.(keeper)
	if !ok {
		return look(req)
	}
	kept := k.kept(was)
	req.Header["Authorization"] = []string{kept}
	if err := look(req); err != nil {
		return err
	}
	if req.Header.Get("Authorization") != kept {
		return fmt.Errorf("credential %s: a secret in what the request's own signature says can't be masked", c.name)
	}
	delete(req.Header, "Authorization")
	return nil
}

func (c *Credential) strip(req *http.Request, own Own) (*removed, error) {
	was := &removed{header: http.Header{}, query: url.Values{}}
	for h, v := range req.Header {
		if c.ownHeader(h, own) {
			name := h
			if i := slices.IndexFunc(ownHeaders, func(o string) bool { return policy.SameHeader(o, h) }); i >= 0 {
				name = ownHeaders[i]
			}
			was.header[name] = append(was.header[name], v...)
			delete(req.Header, h)
		}
		if h == "Sec-Websocket-Protocol" {
			if kept := withoutOwn(v, own); len(kept) > 0 {
				req.Header[h] = []string{strings.Join(kept, ", ")}
			} else {
				req.Header.Del(h)
			}
		}
	}
	if req.Trailer != nil && req.Body != nil {
		without := func() {
			for h := range req.Trailer {
				if c.ownHeader(h, own) {
					delete(req.Trailer, h)
				}
			}
		}
		without()
		req.Body = &trailed{req.Body, without}
	}
	if req.URL.RawQuery == "" {
		return was, nil
	}
	// One by one, so that the other parameters stay as they were written.
	var kept []string
	for p := range strings.SplitSeq(req.URL.RawQuery, "&") {
		name, value, _ := strings.Cut(p, "=")
		plain, err := url.QueryUnescape(name)
		if err != nil || strings.Contains(p, ";") {
			// Upstream may parse another name there.
			return nil, fmt.Errorf("credential %s: the query is ambiguous near %.40q", c.name, name)
		}
		if c.ownParam(plain, own) {
			value, _ = url.QueryUnescape(value)
			was.query[plain] = append(was.query[plain], value)
			continue
		}
		kept = append(kept, p)
	}
	req.URL.RawQuery = strings.Join(kept, "&")
	return was, nil
}

// trailed removes credentials from the trailers at the end of a body, when they are
// known: some servers treat trailers, also unannounced ones, as headers.
type trailed struct {
	io.ReadCloser
	without func()
}

func (t *trailed) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err == io.EOF {
		t.without()
	}
	return n, err
}

// sameParam reports whether lenient servers treat the parameter sent as own. To some,
// " access.token[]" is access_token.
func sameParam(own, sent string) bool {
	sent, _, _ = strings.Cut(sent, "[")
	return policy.SameHeader(own, strings.Trim(sent, " ?\x00"))
}
