package gitgate

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/gitgate/gittest"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/secret"
)

func TestNewRefusesConfig(t *testing.T) {
	runner, err := hostexec.New(hostexec.Options{})
	if err != nil {
		t.Fatal(err)
	}
	good, open := filepath.Join(t.TempDir(), "good"), filepath.Join(t.TempDir(), "open")
	for dir, mode := range map[string]os.FileMode{good: 0o700, open: 0o755} {
		if err := os.Mkdir(dir, mode); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(good, "file")
	write(t, file, "")
	local := Repo{Name: "app", URL: "/srv/app.git"}
	for _, x := range []struct {
		name string
		cfg  Config
		err  string
	}{
		{"no runner", Config{Dir: good}, "no runner for git"},
		{"a relative directory", Config{Git: runner, Dir: "x"}, "not a clean absolute path"},
		{"an unclean directory", Config{Git: runner, Dir: good + "/"}, "not a clean absolute path"},
		{"no directory", Config{Git: runner, Dir: good + "/none"}, "no such file"},
		{"a file", Config{Git: runner, Dir: file}, "not a directory"},
		{"a directory that is open to others", Config{Git: runner, Dir: open}, "closed to others"},
		{"a bad name", Config{Git: runner, Dir: good, Repos: []Repo{{Name: "-x", URL: local.URL}}}, "does not begin with"},
		{"a name with a slash", Config{Git: runner, Dir: good, Repos: []Repo{{Name: "a/b", URL: local.URL}}}, "letters, digits"},
		{"a name twice", Config{Git: runner, Dir: good, Repos: []Repo{local, local}}, "declared twice"},
		{"no URL", Config{Git: runner, Dir: good, Repos: []Repo{{Name: "app"}}}, "no URL"},
		{"ssh without a key", Config{Git: runner, Dir: good, Repos: []Repo{{Name: "app", URL: "ssh://example.org/x"}}}, "ssh needs a key"},
		{"ssh without a pinned key", Config{Git: runner, Dir: good, Repos: []Repo{{Name: "app", URL: "ssh://example.org/x", SSH: &SSHAccess{Signer: gittest.Key(t, "")}}}}, "no host key is pinned"},
		{"a user with a colon", Config{Git: runner, Dir: good, Repos: []Repo{{Name: "app", URL: "https://example.org/x", TokenUser: "a:b", Token: secret.New([]byte("token"))}}}, "has a colon"},
	} {
		g, err := New(x.cfg)
		if err == nil {
			_ = g.Close()
		}
		if err == nil || !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: %v, want %q", x.name, err, x.err)
		}
	}
}

// A gate removes the files of an earlier one, and no others.
func TestNewCleans(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/push-1/pack", "x")
	write(t, dir+"/base-app/HEAD", "x")
	write(t, dir+"/other", "x")
	newGate(t, Config{Dir: dir})
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "other" {
		t.Errorf("%v %v", left, err)
	}
}

// A gate refuses requests beyond its bound, and all of them after it was closed.
func TestFullAndClosed(t *testing.T) {
	g, _ := newGate(t, Config{Repos: []Repo{{Name: "app", URL: newUpstreamRepo(t)}}, Limits: Bounds{Concurrent: 1}})
	list := func() (int, string) {
		w := httptest.NewRecorder()
		g.ServeHTTP(w, httptest.NewRequest("GET", "/app.git/info/refs?service=git-upload-pack", nil))
		return w.Code, w.Body.String()
	}
	leave, err := g.enter()
	if err != nil {
		t.Fatal(err)
	}
	if code, text := list(); code != http.StatusServiceUnavailable || !strings.Contains(text, "serves 1 requests already") {
		t.Errorf("full: %d %q", code, text)
	}
	leave()
	if code, text := list(); code != http.StatusOK {
		t.Errorf("free again: %d %q", code, text)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if code, text := list(); code != http.StatusServiceUnavailable || !strings.Contains(text, "closed") {
		t.Errorf("closed: %d %q", code, text)
	}
}

func TestCheckURL(t *testing.T) {
	for s, want := range map[string]string{
		"ssh://git@example.org:2222/org/app.git": "",
		"git@example.org:org/app.git":            "",
		"[::1]:org/app.git":                      "",
		"ssh://[::1]/~me/app.git":                "",
		"https://example.org/org/app":            "",
		"http://localhost:3000/app":              "",
		"http://127.0.0.1/app":                   "",
		"file:///srv/app.git":                    "",
		"/srv/app.git":                           "",
		"":                                       "no URL",
		"https://" + strings.Repeat("x", 2048):   "more than 2048 bytes",
		"https://example.org/a b":                "a URL with a space",
		"https://example.org/%zz":                "not a URL",
		"https://example.org/x?a=b":              "a query",
		"https://example.org/x#a":                "a fragment",
		"https://me:pass@example.org/x":          "a password",
		"https://me@example.org/x":               "a URL with a user",
		"http://example.org/x":                   "write https",
		"file://host/x":                          "a file URL with a host",
		"ftp://example.org/x":                    "the scheme",
		"ext::sh -c x":                           "a URL with a space",
		"ext::sh":                                "neither a URL",
		"app.git":                                "neither a URL",
		"/":                                      "not absolute and clean",
		"/srv/../x":                              "not absolute and clean",
		"ssh://-oProxy/x":                        "the host",
		"ssh://example.org:99999/x":              "the port",
		"ssh://-x@example.org/x":                 "the user",
		"git@example.org:-x":                     "the path",
		"git@example.org:a/../../b":              "the path",
		"ssh://example.org/%01":                  "control characters",
	} {
		err := CheckURL(s)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.60q: %v, want %q", s, err, want)
		}
	}
}

func TestRewritesOfOtherURLs(t *testing.T) {
	for url, want := range map[string][]string{
		"/srv/app.git":                  {"/srv/app", "/srv/app.git", "file:///srv/app", "file:///srv/app.git"},
		"https://example.org:8443/o/a/": {"https://example.org:8443/o/a.git", "https://example.org/o/a", "git@example.org:o/a.git", "ssh://git@example.org/o/a"},
		"ssh://git@[::1]:2222/o/a":      {"ssh://git@[::1]:2222/o/a.git", "git@[::1]:o/a", "https://[::1]/o/a"},
	} {
		got := Rewrites(Repo{Name: "app", URL: url})
		for _, s := range want {
			if !slices.Contains(got, s) {
				t.Errorf("%s is not among the rewrites of %s: %v", s, url, got)
			}
		}
	}
}

func TestParseHostKeys(t *testing.T) {
	a, b := gittest.Key(t, "").PublicKey(), gittest.Key(t, "").PublicKey()
	line := func(k ssh.PublicKey) string { return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k))) }
	keys, err := parseHostKeys("# a comment\n\n" + line(a) + " me@here\nexample.org,10.0.0.1 " + line(b) + "\n")
	if err != nil || len(keys) != 2 || string(keys[0].Marshal()) != string(a.Marshal()) || string(keys[1].Marshal()) != string(b.Marshal()) {
		t.Errorf("%v %v", keys, err)
	}
	for text, want := range map[string]string{
		"":                                    "no host key",
		"# only a comment\n":                  "no host key",
		line(a) + "\nnot a key":               "line 2: not a host key",
		"@cert-authority *.org " + line(a):    "line 1: certificates and revoked keys",
		"example.org ssh-ed25519 AAAAC3Nzabc": "line 1: not a host key",
	} {
		if _, err := parseHostKeys(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// The error for an answer of a web server says what a person can do.
func TestHTTPRefusal(t *testing.T) {
	for _, x := range []struct {
		code int
		bare bool
		want string
	}{
		{200, false, "is the URL that of a repository?"},
		{401, true, "none is declared"},
		{403, true, "none is declared"},
		{401, false, "does not accept the declared token"},
		{404, false, "no such repository"},
		{502, false, "HTTP 502"},
	} {
		if err := httpRefusal(x.code, "text/html", "application/x-git", x.bare); !strings.Contains(err.Error(), x.want) {
			t.Errorf("%d: %v, want %q", x.code, err, x.want)
		}
	}
}
