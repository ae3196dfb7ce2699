package forge

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/secret"
)

// App is an installation of a GitHub App. Its tokens last for an hour, and are limited to
// Repositories and Permissions where these are set.
type App struct {
	ID           string // of the app, or its client id
	Installation int64
	Key          secret.Value // PEM
	Repositories []string     // names without the owner
	Permissions  map[string]string
}

// appTokens makes installation tokens and keeps the present one.
type appTokens struct {
	app App
	key *rsa.PrivateKey

	turn    chan struct{} // holds an element while one asks for a token
	mu      sync.Mutex
	token   secret.Value
	until   time.Time
	granted []string // such as "issues:write"
}

func newAppTokens(a App) (*appTokens, error) {
	block, _ := pem.Decode([]byte(a.Key.UnsafeString()))
	if block == nil {
		return nil, errors.New("the app's key is not PEM")
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return &appTokens{app: a, key: key, turn: make(chan struct{}, 1)}, nil
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(*rsa.PrivateKey)
	if err != nil || !ok {
		return nil, errors.New("the app's key is not an RSA key")
	}
	return &appTokens{app: a, key: key, turn: make(chan struct{}, 1)}, nil
}

// jwt returns the app's own token, by which it asks for others.
func (t *appTokens) jwt(now time.Time) (secret.Value, error) {
	enc := base64.RawURLEncoding
	claims, err := json.Marshal(map[string]any{"iat": now.Add(-time.Minute).Unix(), "exp": now.Add(8 * time.Minute).Unix(), "iss": t.app.ID})
	if err != nil {
		return secret.Value{}, err
	}
	text := enc.EncodeToString([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + enc.EncodeToString(claims)
	sum := sha256.Sum256([]byte(text))
	sig, err := rsa.SignPKCS1v15(rand.Reader, t.key, crypto.SHA256, sum[:])
	if err != nil {
		return secret.Value{}, err
	}
	return secret.NewString(text + "." + enc.EncodeToString(sig)), nil
}

// current returns a token that is good for a few minutes at least.
func (t *appTokens) current(ctx context.Context, c *Client) (secret.Value, error) {
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return secret.Value{}, ctx.Err()
	}
	t.mu.Lock()
	token, until := t.token, t.until
	t.mu.Unlock()
	if !token.Empty() && time.Until(until) > 5*time.Minute {
		return token, nil
	}
	own, err := t.jwt(time.Now())
	if err != nil {
		return secret.Value{}, err
	}
	in := struct {
		Repositories []string          `json:"repositories,omitempty"`
		Permissions  map[string]string `json:"permissions,omitempty"`
	}{t.app.Repositories, t.app.Permissions}
	var out struct {
		Token       string            `json:"token"`
		Expires     time.Time         `json:"expires_at"`
		Permissions map[string]string `json:"permissions"`
	}
	path := "/app/installations/" + strconv.FormatInt(t.app.Installation, 10) + "/access_tokens"
	if _, err := c.do(ctx, request{method: http.MethodPost, path: path, in: in, into: &out, ok: []int{http.StatusCreated}, again: true, token: own}); err != nil {
		return secret.Value{}, err
	}
	if out.Token == "" || time.Until(out.Expires) < time.Minute {
		return secret.Value{}, errors.New("github: POST " + path + ": the answer has no token that is good now (is this machine's clock right?)")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.token, t.until, t.granted = secret.NewString(out.Token), out.Expires, nil
	for k, v := range out.Permissions {
		t.granted = append(t.granted, k+":"+v)
	}
	slices.Sort(t.granted)
	return t.token, nil
}

// grants reports whether the present token has a permission such as "issues:write".
func (t *appTokens) grants(want string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	name, level, _ := strings.Cut(want, ":")
	return slices.Contains(t.granted, want) || level == "read" && slices.Contains(t.granted, name+":write") || slices.Contains(t.granted, name+":admin")
}

// forget drops a token that the forge no longer takes.
func (t *appTokens) forget(token secret.Value) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token.Equal(token) {
		t.token = secret.Value{}
	}
}
