package gitgate

import (
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/gitgate/gittest"
	"github.com/carboy/carboy/internal/secret"
)

const someID = "1234567890123456789012345678901234567890"

func advert(lines ...string) string {
	s := line("# service=git-upload-pack\n") + "0000"
	for i, l := range lines {
		if i == 0 {
			l += "\x00side-band-64k ofs-delta"
		}
		s += line(l + "\n")
	}
	return s + "0000"
}

const v2Advert = "000eversion 2\n" + "0012fetch=shallow\n" + "000cls-refs\n" + "0000"

// hostileUpstreams lists answers that no upstream should give, each with git's message.
var hostileUpstreams = map[string]struct {
	says  string
	serve func(w http.ResponseWriter, r *http.Request)
}{
	"says nothing":      {"sent nothing for too long", func(_ http.ResponseWriter, r *http.Request) { hang(r) }},
	"stops in the list": {"sent nothing for too long", func(w http.ResponseWriter, r *http.Request) { refs(w, "00", r); flushNow(w); hang(r) }},
	"ends in the list": {"EOF", func(w http.ResponseWriter, r *http.Request) {
		refs(w, line(someID+" refs/heads/a\x00side-band-64k"), r)
	}},
	"lists without end":         {"too much", func(w http.ResponseWriter, r *http.Request) { endlessRefs(w, r) }},
	"lists nothing":             {"lists no capabilities", func(w http.ResponseWriter, r *http.Request) { refs(w, "0000", r) }},
	"sends lengths of none":     {"malformed", func(w http.ResponseWriter, r *http.Request) { refs(w, "zzzzhello", r) }},
	"sends lines that are long": {"malformed", func(w http.ResponseWriter, r *http.Request) { refs(w, "ffff"+strings.Repeat("x", 70000), r) }},
	"names a reference upward":  {"malformed", func(w http.ResponseWriter, r *http.Request) { refs(w, advert(someID+" refs/heads/../../x"), r) }},
	"names one with an escape":  {"malformed", func(w http.ResponseWriter, r *http.Request) { refs(w, advert(someID+" refs/heads/\x1b[2J"), r) }},
	"names one without an id":   {"malformed", func(w http.ResponseWriter, r *http.Request) { refs(w, advert("x refs/heads/a"), r) }},
	"has ids of two lengths":    {"malformed", func(w http.ResponseWriter, r *http.Request) { refs(w, advert(someID+someID[:24]+" refs/heads/a"), r) }},
	"has objects of a new kind": {"format", func(w http.ResponseWriter, r *http.Request) {
		refs(w, line("version 2\n")+line("object-format=sha3\n")+"0000", r)
	}},
	"says an error with an escape": {`\x1b[2J`, func(w http.ResponseWriter, r *http.Request) { refs(w, line("ERR no\x1b[2J\u202etxt"), r) }},
	"answers with a page":          {"is the URL that of a repository", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }},
	"answers with 500":             {"HTTP 500", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "\x1b[2J", 500) }},
	"takes no token":               {"does not accept the declared token", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }},
	"leads to a page of itself":    {"something other than a list of references", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", http.StatusFound) }},
	"leads in circles": {"in circles", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.RequestURI(), http.StatusFound)
	}},
	"breaks off in the answer":     {"EOF", answering(line("packfile\n") + "0fff\x01PACK")},
	"stops in the answer":          {"sent nothing for too long", answeringThen(line("packfile\n")+line("\x01PACK"), hang)},
	"answers without end":          {"", answeringThen(line("packfile\n")+line("\x01PACK"), nil)},
	"answers with nothing":         {"nothing", answering("")},
	"answers with what is no line": {"malformed", answering("PACK\x00\x00\x00\x02")},
	"answers with an escape":       {"malformed", answering(line("\x1b[2J") + "0000")},
	"says an error in a band":      {`\x1b[2J`, answering(line("packfile\n") + line("\x03gone\x1b[2J") + "0000")},
	"sends a pack that is none":    {"", answering(line("packfile\n") + line("\x01this is no pack") + "0000")},
}

func hang(r *http.Request)                  { <-r.Context().Done() }
func flushNow(w http.ResponseWriter)        { _ = http.NewResponseController(w).Flush() }
func typed(w http.ResponseWriter, s string) { w.Header().Set("Content-Type", s) }

func refs(w http.ResponseWriter, body string, _ *http.Request) {
	typed(w, "application/x-git-upload-pack-advertisement")
	_, _ = io.WriteString(w, body)
}

func endlessRefs(w http.ResponseWriter, r *http.Request) {
	refs(w, advert(someID + " refs/heads/a")[:len(advert(someID+" refs/heads/a"))-4], r)
	for i := 0; r.Context().Err() == nil; i++ {
		if _, err := io.WriteString(w, line(fmt.Sprintf("%s refs/heads/b%d\n", someID, i))); err != nil {
			return
		}
	}
}

// answering serves version 2 with one branch, and answers a fetch with body.
func answering(body string) func(http.ResponseWriter, *http.Request) {
	return answeringThen(body, func(*http.Request) {})
}

func answeringThen(body string, then func(*http.Request)) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			refs(w, v2Advert, r)
			return
		}
		typed(w, "application/x-git-upload-pack-result")
		req, _ := io.ReadAll(r.Body)
		if strings.Contains(string(req), "ls-refs") {
			_, _ = io.WriteString(w, line(someID+" HEAD symref-target:refs/heads/a\n")+line(someID+" refs/heads/a\n")+"0000")
			return
		}
		_, _ = io.WriteString(w, body)
		flushNow(w)
		if then != nil {
			then(r)
			return
		}
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, line("\x01"+strings.Repeat("x", 1000))); err != nil {
				return
			}
		}
	}
}

// Whatever upstream does, git ends soon, with a message that names the fault, and no escape
// sequence reaches the terminal. The counter-check is a real upstream with the same limits.
func TestHostileUpstreams(t *testing.T) {
	t.Parallel()
	limits := Bounds{Idle: 300 * time.Millisecond, Advert: 1 << 20, Fetch: 4 << 20}
	for name, c := range hostileUpstreams {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewTLSServer(http.HandlerFunc(c.serve))
			t.Cleanup(s.Close)
			_, url := newGate(t, Config{Repos: []Repo{{Name: "app", URL: s.URL + "/app", Token: secret.NewString("the-token")}}, Roots: roots(s), Limits: limits})
			out, err := tryGit(t, t.TempDir(), "clone", url+"/app.git", "c")
			if err == nil || !strings.Contains(out, c.says) {
				t.Errorf("git does not say %q: %v\n%s", c.says, err, out)
			}
			if strings.ContainsAny(strings.ReplaceAll(out, "\x1b[K", ""), "\x1b\u202e") || strings.Contains(out, "the-token") {
				t.Errorf("it shows %q", out)
			}
		})
	}
	t.Run("neighbour", func(t *testing.T) {
		t.Parallel()
		repo, cfg := transports["https"](t, newUpstreamRepo(t))
		cfg.Repos, cfg.Limits = []Repo{repo}, Bounds{Advert: 1 << 20, Fetch: 4 << 20}
		_, url := newGate(t, cfg)
		cloneOf(t, url)
	})
}

func roots(s *httptest.Server) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(s.Certificate())
	return p
}

// Upstream's progress messages are made safe and shown.
func TestProgressIsCleaned(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(http.HandlerFunc(answering(line("packfile\n") + line("\x02hello \x1b]0;title\x07 there\r50%\n") + line("\x03end"))))
	t.Cleanup(s.Close)
	_, url := newGate(t, Config{Repos: []Repo{{Name: "app", URL: s.URL + "/app"}}, Roots: roots(s)})
	out, _ := tryGit(t, t.TempDir(), "clone", "--progress", url+"/app.git", "c")
	if !strings.Contains(out, `hello \x1b]0;title\x07 there`) || !strings.Contains(out, "50%") {
		t.Errorf("%q", out)
	}
}

// A token goes to its host, and to no other host that this one redirects to.
func TestRedirects(t *testing.T) {
	t.Parallel()
	var stolen atomic.Int32
	thief := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		stolen.Add(1)
	}))
	t.Cleanup(thief.Close)
	up := newUpstreamRepo(t)
	repo, cfg := transports["https"](t, up)
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, thief.URL+r.URL.RequestURI(), http.StatusFound)
	}))
	t.Cleanup(s.Close)
	cfg.Roots.AddCert(s.Certificate())
	cfg.Roots.AddCert(thief.Certificate())
	repo.Name = "good"
	cfg.Repos = []Repo{{Name: "app", URL: s.URL + "/app", Token: secret.NewString("the-token")}, repo}
	_, url := newGate(t, cfg)
	for _, args := range [][]string{{"ls-remote", url + "/app.git"}, {"-c", "protocol.version=0", "ls-remote", url + "/app.git"}} {
		if out, err := tryGit(t, t.TempDir(), args...); err == nil || !strings.Contains(out, "another host") {
			t.Errorf("%v: %s", err, out)
		}
	}
	if stolen.Load() != 0 {
		t.Error("the other host was asked")
	}
	git(t, t.TempDir(), "ls-remote", url+"/good.git")
	// A certificate of an unknown CA.
	_, url = newGate(t, Config{Repos: []Repo{{Name: "app", URL: s.URL + "/app"}}, Roots: x509.NewCertPool()})
	if out, err := tryGit(t, t.TempDir(), "ls-remote", url+"/app.git"); err == nil || !strings.Contains(out, "certificate") {
		t.Errorf("%v: %s", err, out)
	}
}

// hostilePushes lists answers to a valid push.
var hostilePushes = map[string]struct{ answer, says string }{
	"says nothing of the reference":   {report1("unpack ok\n"), "says nothing of it"},
	"speaks of another":               {report1("unpack ok\n", "ok refs/heads/other\n"), "says nothing of it"},
	"refuses it with an escape":       {report1("unpack ok\n", "ng refs/heads/trunk no\x1b[2J\n"), `no\x1b[2J`},
	"can't unpack it":                 {report1("unpack failed\n", "ok refs/heads/trunk\n"), "can't unpack"},
	"says what is no report":          {report1("hello\n"), "git gate: upstream"},
	"says an error":                   {line("\x03gone\x1b[2J"), `gone\x1b[2J`},
	"breaks off":                      {line("\x01000eunpack ok\n"), "git gate: upstream"},
	"sends what is no line":           {"hello", "git gate: upstream"},
	"sends a band that there is not":  {line("\x09x") + "0000", "git gate: upstream"},
	"neighbour":                       {report1("unpack ok\n", "ok refs/heads/trunk\n"), ""},
	"neighbour that speaks to people": {line("\x02hello\x1b[2J\n") + report1("unpack ok\n", "ok refs/heads/trunk\n"), ""},
}

func report1(lines ...string) string {
	s := ""
	for _, l := range lines {
		s += line(l)
	}
	return line("\x01"+s+"0000") + "0000"
}

// A push is never reported as done if upstream did not take it.
func TestHostileReports(t *testing.T) {
	t.Parallel()
	seed := newUpstreamRepo(t)
	id := strings.TrimSpace(git(t, seed, "rev-parse", "trunk"))
	for name, c := range hostilePushes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					typed(w, "application/x-git-receive-pack-advertisement")
					_, _ = io.WriteString(w, line("# service=git-receive-pack\n")+"0000"+line(id+" refs/heads/trunk\x00report-status side-band-64k delete-refs ofs-delta\n")+"0000")
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				typed(w, "application/x-git-receive-pack-result")
				_, _ = io.WriteString(w, c.answer)
			}))
			t.Cleanup(s.Close)
			_, url := newGate(t, Config{Repos: []Repo{{Name: "app", URL: s.URL + "/app"}}, Roots: roots(s)})
			w := t.TempDir() + "/w"
			git(t, ".", "clone", "-q", seed, w)
			commitFile(t, w, "a", "a\n")
			out, err := tryGit(t, w, "push", url+"/app.git", "trunk")
			if pushed := err == nil; pushed != (c.says == "") || !strings.Contains(out, c.says) {
				t.Errorf("pushed: %v, without %q\n%s", pushed, c.says, out)
			}
			if strings.Contains(strings.ReplaceAll(out, "\x1b[K", ""), "\x1b") {
				t.Errorf("it shows %q", out)
			}
		})
	}
}

// Over SSH, the host must have the pinned key, accept the gate's key, and answer.
func TestHostileSSH(t *testing.T) {
	t.Parallel()
	up := newUpstreamRepo(t)
	s := gittest.StartSSH(t, "AcceptEnv GIT_PROTOCOL")
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	good := overSSHTo(s, up)
	other := gittest.Key(t, "")
	for name, c := range map[string]struct {
		repo func() Repo
		says string
	}{
		"another host key":       {func() Repo { return sshRepo(good.URL, s.Client, other.PublicKey()) }, "host key is not the one"},
		"a key it does not take": {func() Repo { return sshRepo(good.URL, other, s.HostKey) }, "does not accept the key"},
		"no such repository":     {func() Repo { return sshRepo(s.URL("/no/such"), s.Client, s.HostKey) }, "does not appear to be a git repository"},
		"a host that is silent":  {func() Repo { return sshRepo("ssh://git@"+silent.Addr().String()+"/x", s.Client, s.HostKey) }, "sent nothing for too long"},
		"nobody there":           {func() Repo { return sshRepo("ssh://git@127.0.0.1:1/x", s.Client, s.HostKey) }, "refused"},
		"a path with a command":  {func() Repo { return sshRepo(s.URL("/x';touch%20"+s.Dir+"/pwned;'"), s.Client, s.HostKey) }, "upstream"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := newGate(t, Config{Repos: []Repo{c.repo()}, Limits: Bounds{Connect: 2 * time.Second}})
			for _, args := range [][]string{{"ls-remote", url + "/app.git"}, {"push", url + "/app.git", "trunk:refs/heads/x"}} {
				if out, err := tryGit(t, up, args...); err == nil || !strings.Contains(out, c.says) {
					t.Errorf("git %s does not say %q: %v\n%s", args[0], c.says, err, out)
				}
			}
		})
	}
	t.Run("neighbour", func(t *testing.T) {
		t.Parallel()
		_, url := newGate(t, Config{Repos: []Repo{good}, Limits: Bounds{Connect: 10 * time.Second}})
		git(t, up, "ls-remote", url+"/app.git")
		git(t, up, "push", "-q", url+"/app.git", "trunk:refs/heads/x")
	})
}

func sshRepo(url string, key ssh.Signer, host ssh.PublicKey) Repo {
	return Repo{Name: "app", URL: url, SSH: &SSHAccess{Signer: key, HostKeys: []ssh.PublicKey{host}}}
}

// An unsafe configuration is refused before any connection.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	key, host := gittest.Key(t, ""), gittest.Key(t, "").PublicKey()
	access := &SSHAccess{Signer: key, HostKeys: []ssh.PublicKey{host}}
	for name, r := range map[string]Repo{
		"no host key":              {Name: "a", URL: "ssh://git@h/x", SSH: &SSHAccess{Signer: key}},
		"no key":                   {Name: "a", URL: "git@h:x", SSH: &SSHAccess{HostKeys: []ssh.PublicKey{host}}},
		"no access":                {Name: "a", URL: "git@h:x"},
		"a new line":               {Name: "a", URL: "ssh://git@h/x\ny", SSH: access},
		"an escape of one":         {Name: "a", URL: "ssh://git@h/x%0ay", SSH: access},
		"a password":               {Name: "a", URL: "https://u:p@h/x"},
		"a user over https":        {Name: "a", URL: "https://u@h/x"},
		"http to another host":     {Name: "a", URL: "http://example.org/x"},
		"ext":                      {Name: "a", URL: "ext::sh -c id"},
		"git without a proof":      {Name: "a", URL: "git://h/x"},
		"a host that is an option": {Name: "a", URL: "ssh://-oProxyCommand=id/x", SSH: access},
		"a user that is an option": {Name: "a", URL: "-oProxyCommand=id@h:x", SSH: access},
		"a path that is an option": {Name: "a", URL: "git@h:--upload-pack=id", SSH: access},
		"a path upward":            {Name: "a", URL: "ssh://git@h/a/../b", SSH: access},
		"a local path upward":      {Name: "a", URL: "/a/../b"},
		"a file of a host":         {Name: "a", URL: "file://h/x"},
		"a query":                  {Name: "a", URL: "https://h/x?y"},
		"a name with a slash":      {Name: "a/b", URL: "/x"},
		"a name that is hidden":    {Name: ".a", URL: "/x"},
		"no name":                  {Name: "", URL: "/x"},
		"no URL":                   {Name: "a"},
	} {
		if _, err := New(Config{Dir: privateDir(t), Repos: []Repo{r}, Git: newRunner(t)}); err == nil {
			t.Errorf("%s is admitted", name)
		}
	}
	for _, r := range []Repo{
		{Name: "a", URL: "ssh://git@h:2222/x.git", SSH: access}, {Name: "a", URL: "git@h:org/x.git", SSH: access}, {Name: "a-b_c.d", URL: "https://h/x"},
		{Name: "a", URL: "file:///x/y"}, {Name: "a", URL: "/x/y"}, {Name: "a", URL: "[::1]:x", SSH: access}, {Name: "a", URL: "ssh://h/~u/x", SSH: access},
		{Name: "a", URL: "http://127.0.0.1:3000/x"},
	} {
		if g, err := New(Config{Dir: privateDir(t), Repos: []Repo{r}, Git: newRunner(t)}); err != nil {
			t.Errorf("%s: %v", r.URL, err)
		} else if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := New(Config{Dir: privateDir(t)}); err == nil {
		t.Error("without git")
	}
}

// A gate is killed between quarantine and upstream. The next one removes what it left.
func TestKilledGate(t *testing.T) {
	t.Parallel()
	dir := privateDir(t)
	write(t, dir+"/push-123/objects/pack/pack-x.pack", "secret")
	write(t, dir+"/base-app/config", "")
	write(t, dir+"/kept", "")
	g, err := New(Config{Dir: dir, Git: newRunner(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if got := listed(t, dir); got != "kept" {
		t.Errorf("there is %q", got)
	}
}

// Without upstream, a fetch fails and shows no old state.
func TestUpstreamGone(t *testing.T) {
	t.Parallel()
	up := newUpstreamRepo(t)
	s := httptest.NewTLSServer(nil)
	repo, cfg := transports["https"](t, up)
	_ = s
	cfg.Repos = []Repo{repo, {Name: "gone", URL: s.URL + "/x"}}
	_, url := newGate(t, cfg)
	s.Close()
	git(t, up, "ls-remote", url+"/app.git")
	for _, args := range [][]string{{"ls-remote", url + "/gone.git"}, {"push", url + "/gone.git", "trunk"}} {
		if out, err := tryGit(t, up, args...); err == nil || !strings.Contains(out, "remote error: git gate: upstream: list: ") {
			t.Errorf("%v: %s", err, out)
		}
	}
}

func TestRewrites(t *testing.T) {
	t.Parallel()
	have := map[string]bool{}
	for _, s := range Rewrites(Repo{Name: "app", URL: "ssh://git@Example.org:2222/org/app.git", Aliases: []string{"ex"}}) {
		have[s] = true
	}
	for _, s := range []string{
		"ssh://git@Example.org:2222/org/app.git", "ssh://git@example.org:2222/org/app", "git@example.org:org/app.git", "git@example.org:org/app", "git@ex:org/app.git",
		"https://example.org/org/app.git", "https://example.org/org/app", "ssh://git@example.org/org/app.git", "ssh://git@ex:2222/org/app", "example.org:org/app.git", "git@example.org:/org/app",
	} {
		if !have[s] {
			t.Errorf("not among them: %s", s)
		}
	}
	if Rewrites(Repo{URL: "ext::sh"}) != nil {
		t.Error("rewrites of what is no URL")
	}
}
