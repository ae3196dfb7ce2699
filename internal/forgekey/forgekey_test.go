package forgekey

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/secret"
)

const token = "forge-token-8Zq1xkLmP04wT"

// fakeForge serves the documented part of the APIs about deploy keys: Gitea's and GitHub's
// under /repos, GitLab's under /projects.
type fakeForge struct {
	t        testing.TB
	provider string
	repo     string

	mu    sync.Mutex
	next  int64
	keys  []fakeKey
	calls []string
	// before and after may answer a request in its place, before and after it was carried
	// out. They return true if they did.
	before, after func(w http.ResponseWriter, r *http.Request) bool
}

type fakeKey struct {
	ID       int64  `json:"id"`
	Title    string `json:"title"`
	Key      string `json:"key"`
	ReadOnly bool   `json:"read_only"`
	CanPush  bool   `json:"can_push"`
}

func (f *fakeForge) signed(h http.Header) bool {
	switch f.provider {
	case "gitea":
		return h.Get("Authorization") == "token "+token
	case "github":
		return h.Get("Authorization") == "Bearer "+token
	}
	return h.Get("Private-Token") == token
}

func (f *fakeForge) base() string {
	if f.provider == "gitlab" {
		return "/api/projects/" + url.PathEscape(f.repo) + "/deploy_keys"
	}
	return "/api/repos/" + f.repo + "/keys"
}

func (f *fakeForge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, r.Method)
	body, _ := io.ReadAll(r.Body)
	if f.before != nil && f.before(w, r) {
		return
	}
	rec := httptest.NewRecorder()
	f.serve(rec, r, body)
	if f.after != nil && f.after(w, r) {
		return
	}
	w.WriteHeader(rec.Code)
	w.Write(rec.Body.Bytes())
}

func (f *fakeForge) serve(w http.ResponseWriter, r *http.Request, body []byte) {
	say := func(code int, v any) {
		w.WriteHeader(code)
		json.NewEncoder(w).Encode(v)
	}
	rest, ok := strings.CutPrefix(r.URL.EscapedPath(), f.base())
	switch {
	case !f.signed(r.Header):
		say(401, map[string]string{"message": "bad credentials"})
	case !ok:
		say(404, map[string]string{"message": "not found"})
	case r.Method == http.MethodGet && rest == "":
		page, _ := strconv.Atoi(r.URL.Query().Get("page"))
		const size = 3 // smaller than requested, as a forge may do
		lo, hi := min((page-1)*size, len(f.keys)), min(page*size, len(f.keys))
		say(200, f.keys[lo:hi])
	case r.Method == http.MethodPost && rest == "":
		var k fakeKey
		if json.Unmarshal(body, &k) != nil || k.Title == "" || !strings.HasPrefix(k.Key, "ssh-ed25519 ") {
			say(422, map[string]string{"message": "bad key"})
			return
		}
		f.next++
		k.ID = f.next
		f.keys = append(f.keys, k)
		say(201, k)
	case r.Method == http.MethodDelete:
		id := strings.TrimPrefix(rest, "/")
		n := len(f.keys)
		f.keys = slices.DeleteFunc(f.keys, func(k fakeKey) bool { return fmt.Sprint(k.ID) == id })
		if len(f.keys) == n {
			say(404, nil)
			return
		}
		w.WriteHeader(204)
	default:
		say(405, nil)
	}
}

func (f *fakeForge) titled(title string) (out []fakeKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range f.keys {
		if k.Title == title {
			out = append(out, k)
		}
	}
	return out
}

// spoiled sets before and after, or removes them with nil.
func (f *fakeForge) spoiled(before, after func(w http.ResponseWriter, r *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after = before, after
}

const title = "carboy:reviewer:app"

func newForge(t testing.TB, provider string) (*fakeForge, Options, forge.Target) {
	f := &fakeForge{t: t, provider: provider, repo: "org/app", next: 40}
	// Add keys of people, and one of another machine's bottle with the same name.
	for i := range 4 {
		f.next++
		f.keys = append(f.keys, fakeKey{ID: f.next, Title: title, Key: fmt.Sprintf("ssh-ed25519 AAAAother%d other", i)})
	}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	to, err := forge.Resolve(provider, "git@forge.example:org/app.git", s.URL+"/api/")
	if err != nil {
		t.Fatal(err)
	}
	return f, Options{Dir: filepath.Join(t.TempDir(), "keys"), Token: secret.NewString(token), Timeout: 10 * time.Second}, to
}

func others(f *fakeForge) int { return 4 }

func make1(o Options, to forge.Target) (*Key, error) {
	return Make(context.Background(), o, "app", title, to, "FORGE_TOKEN")
}

// nothingLeft fails if the forge or the disk has a key of this test.
func nothingLeft(t *testing.T, f *fakeForge, o Options) {
	t.Helper()
	if n := len(f.titled(title)); n != others(f) {
		t.Errorf("the forge has %d keys of that title, want the %d of others", n, others(f))
	}
	entries, err := os.ReadDir(o.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) || len(entries) > 0 {
		t.Errorf("left on disk: %v %v", entries, err)
	}
}

func TestForges(t *testing.T) {
	for _, provider := range forge.Providers() {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			f, o, to := newForge(t, provider)
			k, err := make1(o, to)
			if err != nil {
				t.Fatal(err)
			}
			at := f.titled(title)
			if len(at) != others(f)+1 {
				t.Fatalf("the forge has %+v", at)
			}
			got := at[len(at)-1]
			public, _, _, _, err := ssh.ParseAuthorizedKey([]byte(got.Key))
			if err != nil || ssh.FingerprintSHA256(public) != ssh.FingerprintSHA256(k.Signer.PublicKey()) || k.Record.Fingerprint() != ssh.FingerprintSHA256(public) {
				t.Errorf("another key: %v", err)
			}
			if got.ReadOnly || provider == "gitlab" && !got.CanPush || k.Record.ID != fmt.Sprint(got.ID) {
				t.Errorf("the forge has %+v, the record %+v", got, k.Record)
			}
			fi, err := os.Stat(filepath.Join(o.Dir, "app.key"))
			if err != nil || fi.Mode().Perm() != 0o600 {
				t.Errorf("the private key's file: %v %v", fi, err)
			}
			if di, err := os.Stat(o.Dir); err != nil || di.Mode().Perm() != 0o700 {
				t.Errorf("its directory: %v %v", di, err)
			}
			text, err := os.ReadFile(filepath.Join(o.Dir, "app.key"))
			if s, perr := ssh.ParsePrivateKey(text); err != nil || perr != nil || s.PublicKey().Type() != ssh.KeyAlgoED25519 {
				t.Errorf("%v %v", err, perr)
			}
			if b, err := os.ReadFile(filepath.Join(o.Dir, "app.json")); err != nil || strings.Contains(string(b), token) {
				t.Errorf("the record: %s %v", b, err)
			}
			left, err := Left(o.Dir)
			if err != nil || len(left) != 1 {
				t.Fatalf("%v %v", left, err)
			}
			if err := Revoke(t.Context(), o, left[0]); err != nil {
				t.Fatal(err)
			}
			nothingLeft(t, f, o)
			if err := Revoke(t.Context(), o, left[0]); err != nil {
				t.Errorf("once more: %v", err)
			}
		})
	}
}

func answer(code int, body string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(code)
		io.WriteString(w, body)
		return true
	}
}

// on restricts an answer to one method.
func on(method string, f func(http.ResponseWriter, *http.Request) bool) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool { return r.Method == method && f(w, r) }
}

func hang(w http.ResponseWriter, r *http.Request) bool {
	<-r.Context().Done()
	return true
}

// TestMakeHalfWay breaks the answer to the creation of a key, before and after the forge
// did it. The key must then be known, or be nowhere.
func TestMakeHalfWay(t *testing.T) {
	post, get := http.MethodPost, http.MethodGet
	elsewhere := func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, "https://elsewhere.example/api", http.StatusTemporaryRedirect)
		return true
	}
	for _, c := range []struct {
		name          string
		before, after func(http.ResponseWriter, *http.Request) bool
		made          bool
		says          string
		left          bool // the result is unknown, so the record stays
	}{
		{name: "nothing is wrong", made: true},
		{name: "500 after it was made", after: on(post, answer(500, "oops")), made: true},
		{name: "no answer after it was made", after: on(post, hang), made: true},
		{name: "no JSON after it was made", after: on(post, answer(201, "<html>")), made: true},
		{name: "null after it was made", after: on(post, answer(201, "null")), made: true},
		{name: "another key's id", after: on(post, answer(201, `{"id":41,"title":"x","key":"ssh-ed25519 AAAAother0"}`)), made: true},
		{name: "too long an answer after it was made", after: on(post, answer(201, strings.Repeat(" ", 32<<20+1))), made: true},
		{name: "forbidden", before: on(post, answer(403, `{"message":"no"}`)), says: "may not do this"},
		{name: "not authorized", before: answer(401, ""), says: "not valid"},
		{name: "made, they say", before: on(post, answer(201, `{"id":7,"key":"ssh-ed25519 AAAAx"}`)), says: "does not have the key"},
		{name: "refused", before: on(post, answer(422, `{"message":{"key":["is taken"]}}`)), says: "is taken"},
		{name: "redirected", before: on(post, elsewhere), says: "redirects to https://elsewhere.example"},
		{name: "all redirected", before: elsewhere, says: "redirects", left: true},
		{name: "made, and then the forge is gone", after: answer(500, ""), says: "500", left: true},
		{name: "made, and its keys are never told", after: func(w http.ResponseWriter, r *http.Request) bool {
			return on(post, answer(500, ""))(w, r) || on(get, answer(404, ""))(w, r)
		}, says: "404", left: true},
		{name: "made, and its keys have no end", after: func(w http.ResponseWriter, r *http.Request) bool {
			page := r.URL.Query().Get("page")
			return on(post, answer(500, ""))(w, r) || on(get, answer(200, `[{"id":1`+page+`,"key":"x y"}]`))(w, r)
		}, says: "pages", left: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f, o, to := newForge(t, "gitea")
			if strings.HasPrefix(c.name, "no answer") {
				o.Timeout = 100 * time.Millisecond
			}
			f.spoiled(c.before, c.after)
			k, err := make1(o, to)
			var left *LeftError
			if (err == nil) != c.made || errors.As(err, &left) != c.left || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Fatalf("%v", err)
			}
			if err != nil && strings.Contains(err.Error(), token) {
				t.Errorf("the token is shown: %v", err)
			}
			f.spoiled(nil, nil)
			o.Timeout = 10 * time.Second
			switch {
			case c.made:
				at := f.titled(title)
				if got := at[len(at)-1]; k.Record.ID != fmt.Sprint(got.ID) || !sameKey(got.Key, k.Record.Public) {
					t.Errorf("the record has %+v, the forge %+v", k.Record, got)
				}
				if err := Revoke(t.Context(), o, k.Record); err != nil {
					t.Error(err)
				}
			case c.left:
				if !strings.Contains(left.Advice(), "/org/app/settings/keys") || !strings.Contains(left.Advice(), "FORGE_TOKEN") {
					t.Errorf("advice %q", left.Advice())
				}
				// The forge is back, and the next Make finds the key.
				if _, err := make1(o, to); err != nil {
					t.Fatal(err)
				}
				if n := len(f.titled(title)); n != others(f)+1 {
					t.Errorf("the forge has %d keys, want one of ours", n-others(f))
				}
				recs, err := Left(o.Dir)
				if err != nil || len(recs) != 1 {
					t.Fatalf("%v %v", recs, err)
				}
				if err := Revoke(t.Context(), o, recs[0]); err != nil {
					t.Error(err)
				}
			}
			nothingLeft(t, f, o)
		})
	}
}

// TestRevokeHalfWay checks that a key counts as revoked only when the forge lists its keys
// without it.
func TestRevokeHalfWay(t *testing.T) {
	del, get := http.MethodDelete, http.MethodGet
	for _, c := range []struct {
		name          string
		before, after func(http.ResponseWriter, *http.Request) bool
		tune          func(*Options, *fakeForge)
		says          string // empty if the key is revoked
	}{
		{name: "nothing is wrong"},
		{name: "500 after it was removed", after: on(del, answer(500, ""))},
		{name: "it was removed by hand", tune: func(_ *Options, f *fakeForge) { f.keys = f.keys[:4] }},
		{name: "removed, they say", before: on(del, answer(204, "")), says: "lists it still"},
		{name: "404 for who may not", before: on(del, answer(404, "")), says: "404"},
		{name: "forbidden", before: on(del, answer(403, "")), says: "403"},
		{name: "no token", tune: func(o *Options, _ *fakeForge) { o.Token = secret.Value{} }, says: "FORGE_TOKEN, which had the forge's token, is not set"},
		{name: "another token", tune: func(o *Options, _ *fakeForge) { o.Token = secret.NewString("other-token-1234567") }, says: "401"},
		{name: "the list can't be had", before: on(get, answer(500, "")), says: "500"},
		{name: "an echo of the token", before: on(get, answer(400, `{"message":"bad token `+token+`"}`)), says: "400"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f, o, to := newForge(t, "gitea")
			k, err := make1(o, to)
			if err != nil {
				t.Fatal(err)
			}
			good := o
			if c.tune != nil {
				f.mu.Lock()
				c.tune(&o, f)
				f.mu.Unlock()
			}
			f.spoiled(c.before, c.after)
			err = Revoke(t.Context(), o, k.Record)
			f.spoiled(nil, nil)
			if c.says == "" {
				if err != nil {
					t.Fatal(err)
				}
				nothingLeft(t, f, good)
				return
			}
			var left *LeftError
			if err == nil {
				t.Fatal("it counts as revoked, and is there")
			}
			if !errors.As(err, &left) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), token) {
				t.Fatalf("%v", err)
			}
			if !strings.Contains(err.Error(), "id "+k.Record.ID) || !strings.Contains(err.Error(), "org/app") {
				t.Errorf("the error names too little: %v", err)
			}
			if err := Revoke(t.Context(), good, k.Record); err != nil {
				t.Fatal(err)
			}
			nothingLeft(t, f, good)
		})
	}
}

// TestTokenStaysHome checks that the token goes to the forge alone, and never in the clear
// to a machine outside of private networks.
func TestTokenStaysHome(t *testing.T) {
	f, o, _ := newForge(t, "gitea")
	public := to(t, "http://forge.example:1/api")
	o.Resolver = fixed("203.0.113.9")
	if _, err := make1(o, public); err == nil || !strings.Contains(err.Error(), "plain HTTP would show the token") {
		t.Errorf("plain HTTP to a public address: %v", err)
	}
	secure := httptest.NewTLSServer(f)
	defer secure.Close()
	o.Resolver = nil
	o.Dir = t.TempDir()
	if _, err := make1(o, to(t, secure.URL+"/api")); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a certificate of nobody: %v", err)
	}
	if len(f.calls) > 0 {
		t.Errorf("the forge was asked: %q", f.calls)
	}
	o.Roots = secure.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	o.Dir = t.TempDir()
	if _, err := make1(o, to(t, secure.URL+"/api")); err != nil {
		t.Errorf("a forge whose certificate is trusted: %v", err)
	}
}

func to(t *testing.T, api string) forge.Target {
	x, err := forge.Resolve("gitea", "ssh://git@forge.example/org/app", api)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

type fixed string

func (f fixed) LookupHost(context.Context, string) ([]string, error) { return []string{string(f)}, nil }

// TestRecords checks that a record that cannot be read is an error, and not taken for a
// missing one.
func TestRecords(t *testing.T) {
	_, o, to := newForge(t, "gitea")
	if _, err := make1(o, to); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(o.Dir, "app.json")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"torn": string(whole[:len(whole)/2]), "empty": "", "of another": strings.Replace(string(whole), `"name": "app"`, `"name": "b"`, 1),
		"of no forge": strings.Replace(string(whole), `"provider": "gitea"`, `"provider": "x"`, 1), "without a key": strings.Replace(string(whole), "ssh-ed25519 ", "", 1),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := Left(o.Dir); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
		if _, err := make1(o, to); err == nil {
			t.Errorf("%s: another key was made over it", name)
		}
	}
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Left(o.Dir); err != nil || len(got) != 1 {
		t.Errorf("put right again: %+v %v", got, err)
	}
	if _, err := Make(t.Context(), o, "../x", title, to, "T"); err == nil {
		t.Error("a name that leads elsewhere")
	}
}
