package credential

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/secret"
)

// memory stores a refresh token in memory.
type memory struct {
	mu   sync.Mutex
	v    string
	puts []string
	fail error
}

func (m *memory) Take(context.Context) (secret.Value, func(), error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return secret.NewString(m.v), func() {}, nil
}

func (m *memory) Put(v secret.Value) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.v = v.UnsafeString()
	m.puts = append(m.puts, m.v)
	return m.fail
}

// tokens is a token server. With rotation each refresh token works once.
type tokens struct {
	*httptest.Server
	mu     sync.Mutex
	asked  []url.Values
	basic  []string
	answer func(n int, w http.ResponseWriter, r *http.Request)
}

func tokenServer(t *testing.T) *tokens {
	s := &tokens{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.ParseForm()
		u, p, _ := r.BasicAuth()
		s.mu.Lock()
		s.asked = append(s.asked, r.PostForm)
		s.basic = append(s.basic, u+":"+p)
		n := len(s.asked)
		s.mu.Unlock()
		if s.answer != nil {
			s.answer(n, w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"access-%d-zq7x","token_type":"bearer","expires_in":3600}`, n)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // for handshakes that must fail
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func (s *tokens) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked)
}

const refreshToken, clientSecret = "refresh-0-zq7x", "client-secret-zq7x"

func (s *tokens) open(t *testing.T, m *memory, change ...func(*policy.Credential, *OAuthOptions)) *Credential {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	c := policy.Credential{Scheme: OAuth, Env: "R", OAuth: policy.OAuth{TokenURL: s.URL + "/token", ClientID: "me", Scopes: "a b"}}
	o := OAuthOptions{Refresh: m, ClientSecret: secret.NewString(clientSecret), Roots: pool}
	for _, f := range change {
		f(&c, &o)
	}
	out, err := OpenOAuth("R", c, o)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// put signs a request and returns the credential on it.
func put(c *Credential) (string, *http.Request, error) {
	req := httptest.NewRequest("GET", "https://api.example.com/v1", nil)
	req.Header.Set("Authorization", "Bearer the-agents-own")
	err := c.Sign(req, nil, nil)
	return req.Header.Get("Authorization"), req, err
}

func wantPut(t *testing.T, c *Credential, want string) *http.Request {
	t.Helper()
	got, req, err := put(c)
	if err != nil || got != "Bearer "+want {
		t.Fatalf("%q, %v; want %q", got, err, want)
	}
	return req
}

func TestOAuthIsKeptUntilItExpires(t *testing.T) {
	s, m := tokenServer(t), &memory{v: refreshToken}
	c := s.open(t, m)
	if s.count() != 0 {
		t.Error("asked before it was needed")
	}
	now := time.Now()
	c.signer.(*oauth).now = func() time.Time { return now }
	wantPut(t, c, "access-1-zq7x")
	wantPut(t, c, "access-1-zq7x")
	now = now.Add(time.Hour - skew - time.Minute)
	wantPut(t, c, "access-1-zq7x")
	now = now.Add(2 * time.Minute)
	wantPut(t, c, "access-2-zq7x")
	f := s.asked[0]
	if f.Get("grant_type") != "refresh_token" || f.Get("refresh_token") != refreshToken || s.basic[0] != "me:"+clientSecret || f.Get("client_secret") != "" {
		t.Errorf("%v %q", f, s.basic[0])
	}
	// Neither of the tokens may get into the bottle, nor the previous one.
	got := map[string]bool{}
	for _, v := range c.Secrets() {
		got[v.UnsafeString()] = true
	}
	for _, v := range []string{refreshToken, clientSecret, "access-1-zq7x", "access-2-zq7x"} {
		if !got[v] {
			t.Errorf("%s may come back in", v)
		}
	}
	h := http.Header{"X": {"a access-2-zq7x b"}}
	if err := c.Scrubber().Header(h, Look{}); err != nil || strings.Contains(h.Get("X"), "zq7x") {
		t.Errorf("%v", h)
	}
}

func TestOAuthClientInTheBody(t *testing.T) {
	s := tokenServer(t)
	wantPut(t, s.open(t, &memory{v: refreshToken}, func(c *policy.Credential, _ *OAuthOptions) { c.OAuth.InBody = true }), "access-1-zq7x")
	wantPut(t, s.open(t, &memory{v: refreshToken}, func(_ *policy.Credential, o *OAuthOptions) { o.ClientSecret = secret.Value{} }), "access-2-zq7x")
	if f := s.asked[0]; f.Get("client_id") != "me" || f.Get("client_secret") != clientSecret || s.basic[0] != ":" {
		t.Errorf("%v", f)
	}
	if f := s.asked[1]; f.Get("client_id") != "me" || f.Has("client_secret") || s.basic[1] != ":" {
		t.Errorf("%v", f)
	}
}

// TestOAuthRefreshesOnce: however many requests need a new token, one refresh is made.
func TestOAuthRefreshesOnce(t *testing.T) {
	s := tokenServer(t)
	c := s.open(t, &memory{v: refreshToken})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if got, _, err := put(c); err != nil || got != "Bearer access-1-zq7x" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	wg.Wait()
	if n := s.count(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// TestOAuthGivesUp: a cancelled request does not wait, and does not cancel the
// refresh.
func TestOAuthGivesUp(t *testing.T) {
	s := tokenServer(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	s.answer = func(n int, w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-leave
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"access_token":"access-1-zq7x","token_type":"Bearer","refresh_token":"refresh-1-zq7x"}`)
	}
	m := &memory{v: refreshToken}
	c := s.open(t, m)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- c.Sign(httptest.NewRequest("GET", "https://a.example.com/", nil).WithContext(ctx), nil, nil)
	}()
	<-entered
	gone, stop := context.WithCancel(context.Background())
	stop()
	if err := c.Sign(httptest.NewRequest("GET", "https://a.example.com/", nil).WithContext(gone), nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	cancel()
	close(leave)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(m.puts) != 1 || m.puts[0] != "refresh-1-zq7x" {
		t.Errorf("the new token is lost: %v", m.puts)
	}
}

// TestOAuthRotates: a new refresh token replaces the old one. If it can't be stored it
// is used all the same, with a warning that does not contain it.
func TestOAuthRotates(t *testing.T) {
	s := tokenServer(t)
	s.answer = func(n int, w http.ResponseWriter, r *http.Request) {
		if want := fmt.Sprintf("refresh-%d-zq7x", n-1); r.PostForm.Get("refresh_token") != want {
			w.WriteHeader(400)
			io.WriteString(w, `{"error":"invalid_grant"}`)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"access-%d-zq7x","token_type":"Bearer","expires_in":60,"refresh_token":"refresh-%d-zq7x"}`, n, n)
	}
	m := &memory{v: refreshToken}
	c := s.open(t, m)
	now := time.Now()
	c.signer.(*oauth).now = func() time.Time { return now }
	for n := 1; n <= 3; n++ {
		if n == 3 {
			m.fail = errors.New("disk full")
		}
		wantPut(t, c, fmt.Sprintf("access-%d-zq7x", n))
		now = now.Add(time.Minute)
		if w := c.Warning(); (w != nil) != (n == 3) || w != nil && strings.Contains(w.Error(), "zq7x") {
			t.Errorf("after %d: %v", n, w)
		}
	}
	wantPut(t, c, "access-4-zq7x")
	if len(m.puts) != 4 {
		t.Errorf("%v", m.puts)
	}
}

// TestOAuthAfter401: a rejected token is replaced once. A bottle that causes 401
// answers does not keep the token server busy.
func TestOAuthAfter401(t *testing.T) {
	s := tokenServer(t)
	c := s.open(t, &memory{v: refreshToken})
	now := time.Now()
	c.signer.(*oauth).now = func() time.Time { return now }
	first := wantPut(t, c, "access-1-zq7x")
	c.Answered(first, 401) // it is too new to be replaced
	wantPut(t, c, "access-1-zq7x")
	now = now.Add(trustedFor)
	c.Answered(first, 403)
	wantPut(t, c, "access-1-zq7x")
	c.Answered(first, 401)
	second := wantPut(t, c, "access-2-zq7x")
	for range 10 {
		c.Answered(first, 401) // answers to the old one
		c.Answered(second, 401)
		wantPut(t, c, "access-2-zq7x")
	}
	if n := s.count(); n != 2 {
		t.Errorf("asked %d times", n)
	}
	// Other schemes ignore it.
	b, err := Open("B", policy.Credential{Scheme: Bearer, Env: "B"}, secret.NewString("something"))
	if err != nil {
		t.Fatal(err)
	}
	b.Answered(first, 401)
}

// TestOAuthFailures: each failure has a text of our own, with neither a token nor the
// server's text. It is kept for a while, and then forgotten.
func TestOAuthFailures(t *testing.T) {
	status := func(code int, body string) func(int, http.ResponseWriter, *http.Request) {
		return func(_ int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			io.WriteString(w, strings.ReplaceAll(body, "ECHO", r.PostForm.Get("refresh_token")+clientSecret))
		}
	}
	for name, x := range map[string]struct {
		answer func(int, http.ResponseWriter, *http.Request)
		want   string
	}{
		"expired":      {status(400, `{"error":"invalid_grant","error_description":"ECHO is over"}`), "not valid any more"},
		"wrong client": {status(401, `{"error":"invalid_client","error_description":"ECHO"}`), "refuses (invalid_client)"},
		"words":        {status(400, `{"error":"ECHO"}`), "status 400"},
		"broken":       {status(500, `ECHO`), "status 500"},
		"not JSON":     {status(200, `ECHO`), "can't be read"},
		"no token":     {status(200, `{"x":"ECHO"}`), "can't be read"},
		"another type": {status(200, `{"access_token":"ECHO","token_type":"mac"}`), "no bearer token"},
		"a line end":   {status(200, `{"access_token":"ECHO\r\nX: y","token_type":"Bearer"}`), "that is none"},
		"two words":    {status(200, `{"access_token":"a ECHO","token_type":"Bearer"}`), "that is none"},
		"endless":      {status(200, `{"access_token":"`+strings.Repeat("ECHO", 1<<19)+`"}`), "can't be read"},
		"redirected": {func(_ int, w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, "status 307"},
		"cut off":        {func(int, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "can't be asked"},
		"OAuth 1's form": {status(200, `error=invalid_grant&error_description=ECHO`), "can't be read"},
	} {
		t.Run(name, func(t *testing.T) {
			s := tokenServer(t)
			s.answer = x.answer
			c := s.open(t, &memory{v: refreshToken})
			now := time.Now()
			c.signer.(*oauth).now = func() time.Time { return now }
			got, _, err := put(c)
			if err == nil || !strings.Contains(err.Error(), x.want) || strings.Contains(err.Error(), "zq7x") || got != "" {
				t.Errorf("%q, %.300v; want %q", got, err, x.want)
			}
			n := s.count()
			if _, _, again := put(c); again == nil || s.count() != n {
				t.Errorf("asked again at once (%d): %v", s.count(), again)
			}
			s.answer = nil
			now = now.Add(failsFor)
			if got, _, err := put(c); err != nil || !strings.HasPrefix(got, "Bearer access-") {
				t.Errorf("afterwards: %q, %v", got, err)
			}
		})
	}
	t.Run("certificate", func(t *testing.T) {
		s := tokenServer(t)
		c := s.open(t, &memory{v: refreshToken}, func(_ *policy.Credential, o *OAuthOptions) { o.Roots = x509.NewCertPool() })
		if _, _, err := put(c); err == nil || !strings.Contains(err.Error(), "certificate") || s.count() != 0 {
			t.Errorf("%v, asked %d times", err, s.count())
		}
	})
	for _, u := range []string{"http://a.example.com/t", "https://u:p@a.example.com/t", "https:///t", "https://a.example.com/t?x", "x", ""} {
		c := policy.Credential{Scheme: OAuth, Env: "R", OAuth: policy.OAuth{TokenURL: u, ClientID: "me"}}
		if _, err := OpenOAuth("R", c, OAuthOptions{Refresh: &memory{v: refreshToken}}); err == nil {
			t.Errorf("%s was taken", u)
		}
	}
	if _, err := OpenOAuth("R", policy.Credential{}, OAuthOptions{Refresh: &memory{}}); !errors.Is(err, ErrEmpty) {
		t.Errorf("%v", err)
	}
}

// TestScrubberIsMadeOnce: it serves all requests until the token changes.
func TestScrubberIsMadeOnce(t *testing.T) {
	fixed, err := Open("KEY", policy.Credential{Scheme: Bearer}, secret.NewString("the/real key 4711"))
	if err != nil {
		t.Fatal(err)
	}
	both := NewScrubber(fixed, fixed)
	if fixed.Scrubber() != NewScrubber(fixed) || both != NewScrubber(fixed, fixed) || both.Text("the/real key 4711") == "the/real key 4711" {
		t.Error("the forms are made for each request")
	}
	o := &oauth{first: secret.NewString("the-refresh-token")}
	c := &Credential{signer: o, placeholder: newPlaceholder(20)}
	before := c.Scrubber()
	if before != c.Scrubber() {
		t.Error("the forms of tokens are made for each request")
	}
	o.mu.Lock()
	o.access = secret.NewString("the-access-token")
	o.changed++
	o.mu.Unlock()
	if c.Scrubber().Text("the-access-token") == "the-access-token" || c.Scrubber().Text("the-refresh-token") == "the-refresh-token" {
		t.Error("a token is not known")
	}
}

// sharing stores a refresh token in memory, with an access token that another program
// may have refreshed.
type sharing struct {
	memory
	access  string
	expires time.Time
	put     []Tokens
}

func (s *sharing) Access() (secret.Value, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return secret.NewString(s.access), s.expires
}

func (s *sharing) PutAll(t Tokens) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put = append(s.put, t)
	s.access, s.expires = t.Access.UnsafeString(), time.Time{}
	return s.fail
}

// TestOAuthShared: a stored access token is used, also one that another program got
// meanwhile. The server is asked only if there is none.
func TestOAuthShared(t *testing.T) {
	s := tokenServer(t)
	var body []byte
	s.answer = func(n int, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"access-%d-zq7x","token_type":"Bearer","refresh_token":"next-zq7x","id_token":"id-zq7x"}`, n)
	}
	real := s.Config.Handler
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ = io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(""))
		real.ServeHTTP(w, r)
	})
	now := time.Now()
	m := &sharing{memory: memory{v: refreshToken}, access: "kept-zq7x", expires: now.Add(time.Hour)}
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	c, err := OpenOAuth("R", policy.Credential{Scheme: Codex, OAuth: policy.OAuth{TokenURL: s.URL + "/token", ClientID: "me", InBody: true}}, OAuthOptions{
		Refresh: m, Roots: pool, JSON: true, Headers: map[string]string{"Account": "mine"},
	})
	if err != nil {
		t.Fatal(err)
	}
	o := c.signer.(*oauth)
	o.now = func() time.Time { return now }
	if got := fmt.Sprint(len(c.Secrets())); got != "2" {
		t.Errorf("%s secrets before the first request", got)
	}
	req := wantPut(t, c, "kept-zq7x")
	if req.Header.Get("Account") != "mine" || s.count() != 0 {
		t.Errorf("%v, asked %d times", req.Header, s.count())
	}
	// Upstream rejects it, and the other program has a new one.
	c.Answered(req, http.StatusUnauthorized)
	m.access, m.expires = "others-zq7x", now.Add(time.Minute)
	wantPut(t, c, "others-zq7x")
	if s.count() != 0 {
		t.Errorf("asked %d times", s.count())
	}
	// It expires, and there is no new one.
	now = now.Add(2 * time.Minute)
	wantPut(t, c, "access-1-zq7x")
	if want := `{"client_id":"me","grant_type":"refresh_token","refresh_token":"` + refreshToken + `"}`; string(body) != want {
		t.Errorf("asked with %s", body)
	}
	if len(m.put) != 1 || m.put[0].Refresh.UnsafeString() != "next-zq7x" || m.put[0].ID != "id-zq7x" || m.put[0].Access.UnsafeString() != "access-1-zq7x" || len(m.puts) != 0 {
		t.Errorf("%d %v", len(m.put), m.puts)
	}
	if c.Warning() != nil {
		t.Error(c.Warning())
	}
}

// TestOAuthSignature: the secret part of a JSON Web Token is its signature. Other
// tokens of the same server, which are similar, are not replaced.
func TestOAuthSignature(t *testing.T) {
	long := strings.Repeat("s", minSignature)
	for token, want := range map[string]string{
		"eyJhbGciOiJSUzI1NiJ9.eyJleHAiOjF9." + long:        long,
		"eyJhbGciOiJSUzI1NiJ9.eyJleHAiOjF9." + long[1:]:    "eyJhbGciOiJSUzI1NiJ9.eyJleHAiOjF9." + long[1:],
		"eyJhbGciOiJSUzI1NiJ9.x." + long:                   "eyJhbGciOiJSUzI1NiJ9.x." + long,
		"opaque.token.of-" + long:                          "opaque.token.of-" + long,
		"eyJhbGciOiJSUzI1NiJ9.eyJleHAiOjF9." + long + ".x": "eyJhbGciOiJSUzI1NiJ9.eyJleHAiOjF9." + long + ".x",
	} {
		if got := signature(secret.NewString(token)).UnsafeString(); got != want {
			t.Errorf("%s: %s", token, got)
		}
	}
}
