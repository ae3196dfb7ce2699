package carboy

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/testenv"
)

func TestFileToken(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "refresh")
	f := &plan.FileToken{Path: path}
	ctx := context.Background()
	take := func() (string, error) {
		v, done, err := f.Take(ctx)
		if err == nil {
			done()
			done() // twice does no harm
		}
		return v.UnsafeString(), err
	}
	for _, x := range []struct {
		text string
		mode os.FileMode
		want string
	}{
		{"a-token\n", 0o600, ""},
		{"a-token", 0o400, ""},
		{"a-token\n", 0o640, "others may read it (mode 0640)"},
		{"a-token\n", 0o604, "others may read it"},
		{" \n", 0o600, "is empty"},
		{strings.Repeat("x", plan.MaxTokenFile+1), 0o600, "more than"},
	} {
		os.Remove(path)
		if err := os.WriteFile(path, []byte(x.text), x.mode); err != nil {
			t.Fatal(err)
		}
		os.Chmod(path, x.mode)
		got, err := take()
		if x.want == "" && (err != nil || got != "a-token") || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "a-token")) {
			t.Errorf("%.20q %o: %q, %v; want %q", x.text, x.mode, got, err, x.want)
		}
	}
	os.Remove(path)
	if _, err := take(); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("%v", err)
	}
	// A successor is there whole, for the user alone, and others wait for it.
	os.WriteFile(path, []byte("a-token\n"), 0o600)
	_, done, err := f.Take(ctx)
	if err != nil {
		t.Fatal(err)
	}
	other := &plan.FileToken{Path: path}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, _, err := other.Take(short); err == nil || !strings.Contains(err.Error(), "another run") {
		t.Errorf("two at once: %v", err)
	}
	if err := f.Put(secret.NewString("another-token")); err != nil {
		t.Error(err)
	}
	done()
	v, done, err := other.Take(ctx)
	if err != nil || v.UnsafeString() != "another-token" {
		t.Fatalf("%v", err)
	}
	done()
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", fi.Mode(), err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("%v", left)
	}
	// What can't be written is used by this run, and said.
	f.Path = filepath.Join(dir, "gone", "refresh")
	if err := f.Put(secret.NewString("third-token")); err == nil || strings.Contains(err.Error(), "third-token") || !strings.Contains(err.Error(), f.Path) || !errors.Is(err, unix.ENOENT) {
		t.Errorf("%v", err)
	}
	f.Path = path
	if got, err := take(); err != nil || got != "third-token" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestOAuthInABottle: access tokens are got outside and put on; a refresh token that
// the server changes is written back; nothing of it is inside or in a record.
func TestOAuthInABottle(t *testing.T) {
	testenv.Need(t, "curl", "apt-get install curl")
	var mu sync.Mutex
	valid, issued := "refresh-0-zq7xk", 0
	token := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if r.ParseForm(); r.PostForm.Get("refresh_token") != valid {
			w.WriteHeader(400)
			io.WriteString(w, `{"error":"invalid_grant","error_description":"`+r.PostForm.Get("refresh_token")+`"}`)
			return
		}
		issued++
		valid = fmt.Sprintf("refresh-%d-zq7xk", issued)
		fmt.Fprintf(w, `{"access_token":"access-%d-zq7xk","token_type":"Bearer","expires_in":3600,"refresh_token":%q}`, issued, valid)
	}))
	defer token.Close()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer access-") {
			w.WriteHeader(401)
		}
		fmt.Fprintln(w, "you said", r.Header.Get("Authorization")) // a server that repeats it
	}))
	defer api.Close()

	w := newWorld(t)
	home := filepath.Dir(w.ws)
	pool := x509.NewCertPool()
	pool.AddCert(token.Certificate())
	w.c.host.Opened.Roots = pool
	keep := filepath.Join(home, "refresh")
	os.WriteFile(keep, []byte("refresh-0-zq7xk\n"), 0o600)
	routeFile := filepath.Join(home, "r.yaml")
	writeRoutes := func(file string) {
		os.WriteFile(routeFile, []byte(fmt.Sprintf(`log: 2
routes:
  - host: api.example.com
    upstream: %s
    insecure: true
    auth_scheme: oauth2
    oauth: {token_url: "%s/token", client_id: me, refresh_token_file: %s, scopes: [read]}
`, api.URL, token.URL, file)), 0o600)
	}
	writeRoutes("~/refresh")
	with := func(o *plan.Options) { o.Routes = routeFile }
	r, out := w.ok(`for i in 1 2 3; do curl -sS -H 'Authorization: Bearer mine' https://api.example.com/; done; env`, with)
	if strings.Contains(out, "zq7xk") || strings.Count(out, "you said Bearer carboy-place") != 3 {
		t.Errorf("%s", out)
	}
	if b, _ := os.ReadFile(keep); string(b) != "refresh-1-zq7xk\n" || issued != 1 {
		t.Errorf("the file holds %q after %d refreshes", b, issued)
	}
	if n := r.Network; len(n.Credentials) != 1 || n.Credentials[0].Name != "refresh" || n.Credentials[0].Requests != 3 {
		t.Errorf("%+v", n.Credentials)
	}
	// The next run goes on from there. One whose token is over is told what to do.
	w.ok(`curl -sSf https://api.example.com/`, with)
	mu.Lock()
	valid = "something-else"
	mu.Unlock()
	_, out = w.ok(`curl -sS -w '%{http_code}' https://api.example.com/`, with)
	if !strings.Contains(out, "not valid any more") || !strings.Contains(out, "sign in again") || !strings.Contains(out, "403") || strings.Contains(out, "zq7xk") {
		t.Errorf("%s", out)
	}
	filepath.WalkDir(w.c.StateDir(), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if b, _ := os.ReadFile(path); strings.Contains(string(b), "zq7xk") {
				t.Errorf("%s holds a token", path)
			}
		}
		return nil
	})
	// Where the command could read it, no run begins.
	os.WriteFile(filepath.Join(w.ws, "refresh"), []byte("refresh-0-zq7xk\n"), 0o600)
	writeRoutes(filepath.Join(w.ws, "refresh"))
	var bad *fault.OptionError
	if _, _, err := w.sh("true", with); !errors.As(err, &bad) || !strings.Contains(err.Error(), "can read it") {
		t.Errorf("%v", err)
	}
}

// TestOAuthGoesOn: when a route file is read again, a credential that may have
// changed its token is the same, and one of another route is not.
func TestOAuthGoesOn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "r.yaml")
	read := func(id string, had gateway.Credentials) gateway.Credentials {
		t.Helper()
		os.WriteFile(file, []byte("routes: [{host: a.example.com, auth_scheme: oauth2, token_env: R, oauth: {token_url: 'https://t.example.com/', client_id: "+id+"}}]"), 0o600)
		f, err := routes.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		c, err := (&plan.CredentialReader{Lookup: func(string) string { return "a-refresh-token" }, Had: had}).Read(f.Routes)
		if err != nil {
			t.Fatal(err)
		}
		return c.Of
	}
	one := func(c gateway.Credentials) *credential.Credential {
		for _, x := range c {
			return x
		}
		return nil
	}
	first := read("me", nil)
	if again := read("me", first); one(again) != one(first) {
		t.Error("another credential, which has the token that the variable had")
	}
	if other := read("you", first); one(other) == one(first) {
		t.Error("the same credential for another client")
	}
}
