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
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/secret"
)

// appForge is GitHub for an app: it makes installation tokens, and takes the last one.
type appForge struct {
	t       *testing.T
	key     *rsa.PublicKey
	mu      sync.Mutex
	made    int
	asked   map[string]any
	last    time.Duration // how long a token is good
	spoil   func(rw, *req) bool
	granted map[string]string
}

func (a *appForge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if a.spoil != nil && a.spoil(w, r) {
		return
	}
	own := r.URL.Path == "/api/app" || strings.HasPrefix(r.URL.Path, "/api/app/")
	switch {
	case own && !a.valid(token):
		say(w, 401, map[string]any{"message": "A JSON web token could not be decoded"})
	case r.URL.Path == "/api/app":
		say(w, 200, map[string]any{"slug": "carboy-bot"})
	case r.URL.Path == "/api/app/installations/42/access_tokens" && r.Method == http.MethodPost:
		a.asked = decode(w, r)
		a.made++
		say(w, 201, map[string]any{"token": fmt.Sprintf("ghs_installation%d", a.made), "expires_at": when(time.Now().Add(a.last)), "permissions": a.granted})
	case token != fmt.Sprintf("ghs_installation%d", a.made):
		say(w, 401, map[string]any{"message": "Bad credentials " + token})
	default:
		say(w, 200, map[string]any{"number": 7})
	}
}

// valid checks a JSON web token as GitHub documents it.
func (a *appForge) valid(token string) bool {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return false
	}
	sig, err := base64.RawURLEncoding.DecodeString(parts[2])
	text, err2 := base64.RawURLEncoding.DecodeString(parts[1])
	head, err3 := base64.RawURLEncoding.DecodeString(parts[0])
	var claims struct {
		Iat, Exp int64
		Iss      string
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	now := time.Now().Unix()
	return err == nil && err2 == nil && err3 == nil && strings.Contains(string(head), `"RS256"`) && json.Unmarshal(text, &claims) == nil &&
		rsa.VerifyPKCS1v15(a.key, crypto.SHA256, sum[:], sig) == nil && claims.Iss == "Iv1.app" && claims.Iat <= now && claims.Exp > now && claims.Exp <= now+600
}

func newApp(t *testing.T, pkcs8 bool) (*appForge, *Client) {
	key := must[*rsa.PrivateKey](t)(rsa.GenerateKey(rand.Reader, 2048))
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	if pkcs8 {
		block = &pem.Block{Type: "PRIVATE KEY", Bytes: must[[]byte](t)(x509.MarshalPKCS8PrivateKey(key))}
	}
	a := &appForge{t: t, key: &key.PublicKey, last: time.Hour, granted: map[string]string{"issues": "write", "pull_requests": "read", "metadata": "read"}}
	srv := httptest.NewServer(a)
	t.Cleanup(srv.Close)
	c := must[*Client](t)(Open(Options{Provider: "github", API: srv.URL + "/api", App: &App{
		ID: "Iv1.app", Installation: 42, Key: secret.New(pem.EncodeToMemory(block)), Repositories: []string{"app"}, Permissions: map[string]string{"issues": "write"},
	}}))
	t.Cleanup(c.Close)
	c.pause = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	return a, c
}

func TestApp(t *testing.T) {
	a, c := newApp(t, false)
	ctx := t.Context()
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if _, err := c.Issue(ctx, repo, issue7); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if a.made != 1 || fmt.Sprint(a.asked) != "map[permissions:map[issues:write] repositories:[app]]" {
		t.Errorf("%d tokens, asked for %v", a.made, a.asked)
	}
	acc := must[Account](t)(c.Account(ctx))
	if acc.Login != "carboy-bot[bot]" || !slices.Equal(acc.Scopes, []string{"issues:write", "metadata:read", "pull_requests:read"}) || time.Until(acc.Expires) < 50*time.Minute {
		t.Errorf("%+v", acc)
	}
	lacks, unknown, err := c.Lacks(ctx, repo, "bots", ReadIssues, WriteIssues, ReadRepository, WriteRepository, ReadMembers, ReadAccount)
	if err != nil || unknown != nil || !slices.Equal(lacks, []string{"pull_requests:write and statuses:write", "members:read"}) {
		t.Errorf("%q %q %v", lacks, unknown, err)
	}

	// It is renewed before it ends, and after the forge refuses it.
	c.app.until = time.Now().Add(4 * time.Minute)
	must[*Issue](t)(c.Issue(ctx, repo, issue7))
	if a.made != 2 {
		t.Errorf("%d tokens", a.made)
	}
	a.made = 7 // another's is the last
	_, err = c.Issue(ctx, repo, issue7)
	if !is(err, 401) || strings.Contains(err.Error(), "ghs_") {
		t.Errorf("%v", err)
	}
	must[*Issue](t)(c.Issue(ctx, repo, issue7))
}

func TestAppRefused(t *testing.T) {
	a, c := newApp(t, true)
	must[*Issue](t)(c.Issue(t.Context(), repo, issue7)) // the control
	for name, v := range map[string]struct {
		do   func(rw, *req) bool
		says string
	}{
		"null":       {answer(201, "null"), "no token that is good now"},
		"expired":    {answer(201, `{"token":"ghs_installation1","expires_at":"2020-01-01T00:00:00Z"}`), "is this machine's clock right"},
		"no time":    {answer(201, `{"token":"ghs_installation1"}`), "no token that is good now"},
		"suspended":  {answer(403, `{"message":"This installation has been suspended"}`), "suspended"},
		"wrong key":  {answer(401, `{"message":"bad"}`), "401"},
		"wrong type": {answer(201, `{"token":{}}`), "not what its API documents"},
		"500":        {answer(500, ""), "500"},
		"an echo":    {func(w rw, r *req) bool { return answer(400, `{"message":"`+r.Header.Get("Authorization")+`"}`)(w, r) }, "400 Bad Request"},
	} {
		c.app.token = secret.Value{}
		a.spoil = v.do
		_, err := c.Issue(t.Context(), repo, issue7)
		if err == nil || !strings.Contains(err.Error(), v.says) || strings.Contains(err.Error(), "eyJ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// One who waits for another's token may leave.
	a.spoil = nil
	c.app.turn <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Issue(ctx, repo, issue7); err == nil {
		t.Error("no error")
	}
	<-c.app.turn
	must[*Issue](t)(c.Issue(t.Context(), repo, issue7))
}
