// Package credential puts real credentials on requests that leave, in the place of
// what the bottle sent. Inside there is a placeholder that is worth nothing.
//
// It promises that whatever the agent itself put where credentials stand is gone
// from a request before the real one is set, so that a route's requests are made
// as the route says and never as somebody else; that a value is read once, on the
// host, and shown to nobody; and that a request that can't be signed is refused
// rather than sent as it is.
//
// Each scheme is a file of its own. Start reading at [Open] and [Credential.Sign].
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

// The schemes of [policy.Credential].
const (
	Bearer = policy.Scheme("bearer")    // Authorization: Bearer VALUE (RFC 6750)
	Token  = policy.Scheme("token")     // Authorization: token VALUE, as forges have it
	Basic  = policy.Scheme("basic")     // Authorization: Basic, of USER:PASSWORD (RFC 7617)
	APIKey = policy.Scheme("x-api-key") // X-Api-Key: VALUE
	Header = policy.Scheme("header")    // any header
	Query  = policy.Scheme("query")     // a parameter of the URL
	AWS    = policy.Scheme("aws-sigv4") // ID:SECRET or ID:SECRET:TOKEN
	OAuth  = policy.Scheme("oauth2")    // Bearer, got for a refresh token, see OpenOAuth
	// Codex is what the host's codex has signed in with. Nobody writes it in a file.
	Codex = policy.Scheme("codex-login")
)

// Signer sets a real credential on a request.
type signer interface {
	// sign changes req, from which every credential was taken. was are those
	// headers and parameters, for schemes that read their shape.
	sign(req *http.Request, was *taken) error
	// secrets are the values that must not come back in.
	secrets() []secret.Value
}

// Credential is one that routes may put on. It is safe for concurrent use.
type Credential struct {
	name        string
	placeholder string
	signer      signer
	field       string // of Header and Query
	scheme      policy.Scheme

	mu       sync.Mutex
	scrubber *Scrubber // nil: not made yet
	scrubs   int       // the edition of the secrets that it is of
}

// ErrEmpty is of a credential without a value.
var ErrEmpty = errors.New("credential has no value")

// Open makes the credential that c describes of its value. name is by what records
// cite it. The caller keeps value alive.
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
	case Token:
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

// printable refuses a value that would not be one header's value: a line end, as
// files have at their end, most often.
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

// newPlaceholder is text as long as the value where that is long enough to be told
// from others. What checks only the length and the letters of a key takes it.
func newPlaceholder(n int) string {
	const prefix = "carboy-placeholder-"
	s := prefix + strings.ToLower(rand.Text())
	for len(s) < n {
		s += strings.ToLower(rand.Text())
	}
	return s[:max(n, len(prefix)+16)]
}

// Name is by what records cite the credential.
func (c *Credential) Name() string { return c.name }

// Keep makes the placeholder one that the same seed and name always give.
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

// Placeholder is what stands inside. It is worth nothing anywhere.
func (c *Credential) Placeholder() string { return c.placeholder }

// Secrets are the values that must not come back in, as they stand in requests.
func (c *Credential) Secrets() []secret.Value { return c.signer.secrets() }

// ownHeaders are where programs put credentials.
var ownHeaders = []string{
	"Authorization", "Proxy-Authorization", "X-Api-Key", "Api-Key", "X-Auth-Token", "X-Access-Token", "Private-Token",
	"Job-Token", "Deploy-Token", "X-Goog-Api-Key", "X-Amz-Security-Token", "X-Github-Token", "X-Gitlab-Token",
	"Ocp-Apim-Subscription-Key", "X-Figma-Token", "X-Shopify-Access-Token", "Circle-Token", "X-Vault-Token", "Cookie",
}

// ownParams are the same in URLs.
var ownParams = []string{
	"access_token", "api_key", "apikey", "key", "private_token", "token", "auth", "sig", "signature",
	"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature", "X-Amz-Security-Token",
}

// taken is what of a request was taken away.
type taken struct {
	header http.Header
	query  url.Values
}

// Sign takes the agent's own credentials off req, lets the caller look at what is
// left, and change it, and puts the real one on. The caller has verified that req
// goes where the credential's route leads. req is changed; after an error, which
// may be look's own, it must not be sent.
func (c *Credential) Sign(req *http.Request, look func(*http.Request) error) error {
	was, err := c.strip(req)
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

// keeper is a signer that puts a part of the agent's own credential on again.
type keeper interface{ kept(was *taken) string }

// lookAt also shows what of the agent's own credential leaves after all.
func (c *Credential) lookAt(req *http.Request, was *taken, look func(*http.Request) error) error {
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

func (c *Credential) strip(req *http.Request) (*taken, error) {
	was := &taken{header: http.Header{}, query: url.Values{}}
	own := ownHeaders
	if c.scheme == Header {
		own = append(slices.Clone(own), textproto.CanonicalMIMEHeaderKey(c.field))
	}
	for h, v := range req.Header {
		if i := slices.IndexFunc(own, func(o string) bool { return policy.SameHeader(o, h) }); i >= 0 {
			was.header[own[i]] = append(was.header[own[i]], v...)
			delete(req.Header, h)
		}
	}
	if req.Trailer != nil && req.Body != nil {
		without := func() {
			for h := range req.Trailer {
				if slices.ContainsFunc(own, func(o string) bool { return policy.SameHeader(o, h) }) {
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
	params := ownParams
	if c.scheme == Query {
		params = append(slices.Clone(params), c.field)
	}
	// Parameter by parameter, so that the others stay as they were written.
	var kept []string
	for p := range strings.SplitSeq(req.URL.RawQuery, "&") {
		name, value, _ := strings.Cut(p, "=")
		plain, err := url.QueryUnescape(name)
		if err != nil || strings.Contains(p, ";") {
			// Upstream may read another name there than we do.
			return nil, fmt.Errorf("credential %s: the query is ambiguous near %.40q", c.name, name)
		}
		if slices.ContainsFunc(params, func(o string) bool { return sameParam(o, plain) }) {
			value, _ = url.QueryUnescape(value)
			was.query[plain] = append(was.query[plain], value)
			continue
		}
		kept = append(kept, p)
	}
	req.URL.RawQuery = strings.Join(kept, "&")
	return was, nil
}

// trailed is a body at whose end trailers are known, which some servers take for
// headers: those that were not announced, too.
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

// sameParam compares a parameter that we know with one that was sent as lenient
// servers do, to which " access.token[]" is access_token.
func sameParam(own, sent string) bool {
	sent, _, _ = strings.Cut(sent, "[")
	return policy.SameHeader(own, strings.Trim(sent, " ?\x00"))
}
