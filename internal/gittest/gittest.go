// Package gittest has upstreams for tests of the git gate: a real OpenSSH server, git's
// own HTTP backend behind TLS, and a forge that lets deploy keys into the former. It is
// for tests alone.
package gittest

import (
	"bufio"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/testenv"
)

// Git runs git on the host, in dir, and returns what it says.
func Git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := TryGit(dir, args...)
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(out)
}

// TryGit is Git that may fail.
func TryGit(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@x.example", "GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@x.example")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Bare makes a bare repository with one commit on main, and returns its path. args are
// git init's.
func Bare(t testing.TB, path string, args ...string) string {
	t.Helper()
	work := filepath.Join(t.TempDir(), "work")
	Git(t, "/", append([]string{"init", "-q", "-b", "main", work}, args...)...)
	Write(t, filepath.Join(work, "README"), "one\ntwo\n")
	Git(t, work, "add", ".")
	Git(t, work, "commit", "-qm", "first")
	Git(t, "/", "clone", "-q", "--bare", work, path)
	for _, c := range [][2]string{{"uploadpack.allowFilter", "true"}, {"receive.advertisePushOptions", "true"}, {"http.receivepack", "true"}, {"core.hooksPath", "hooks"}} {
		Git(t, path, "config", c[0], c[1])
	}
	return path
}

// Write writes a file.
func Write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// SSHD is a server on loopback that logs this process' user in.
type SSHD struct {
	Addr    string // 127.0.0.1:PORT
	User    string
	HostKey string // as in known_hosts, without a name

	mu   sync.Mutex
	keys map[string]string // of authorized_keys, by id
	file string
}

// NewSSHD starts one, which ends with the test. It is skipped where there is none.
func NewSSHD(t testing.TB) *SSHD {
	t.Helper()
	const program = "/usr/sbin/sshd" // which is not on everybody's PATH
	if _, err := os.Stat(program); err != nil {
		testenv.Missing(t, program, "apt-get install openssh-server")
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &SSHD{Addr: l.Addr().String(), User: me.Username, keys: map[string]string{}, file: filepath.Join(dir, "authorized")}
	l.Close()
	if os.Geteuid() == 0 {
		_ = os.MkdirAll("/run/sshd", 0o755) // it wants that as root
	}
	_, private := NewKey(t)
	host := filepath.Join(dir, "host")
	if err := os.WriteFile(host, private, 0o600); err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.ParsePrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	s.HostKey = strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
	s.write(t)
	_, port, _ := net.SplitHostPort(s.Addr)
	conf := filepath.Join(dir, "conf")
	Write(t, conf, "Port "+port+"\nListenAddress 127.0.0.1\nHostKey "+host+"\nAuthorizedKeysFile "+s.file+
		"\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPidFile none\nPermitRootLogin yes\nAcceptEnv GIT_PROTOCOL\nMaxStartups 200\nLogLevel ERROR\n")
	cmd := exec.Command(program, "-D", "-e", "-f", conf, "-o", "LogLevel=INFO")
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	said := make(chan string, 1)
	go func() { // ends with sshd
		var all strings.Builder
		sc := bufio.NewScanner(errs)
		up := false
		for sc.Scan() {
			all.WriteString(sc.Text() + "\n")
			if !up && strings.Contains(sc.Text(), "Server listening") {
				up = true
				said <- ""
			}
		}
		if !up {
			said <- all.String()
		}
	}()
	select {
	case why := <-said:
		if why != "" {
			t.Fatalf("sshd: %s", why)
		}
	case <-time.After(testenv.Patience(time.Minute)):
		t.Fatal("sshd says nothing")
	}
	return s
}

// NewKey makes a key: the line of authorized_keys, and the private half's file.
func NewKey(t testing.TB) (public string, private []byte) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey()))), pem.EncodeToMemory(block)
}

// Permit lets a key in; an empty one takes id's away again.
func (s *SSHD) Permit(t testing.TB, id, public string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[id] = public
	s.write(t)
}

func (s *SSHD) write(t testing.TB) {
	var b strings.Builder
	for _, k := range s.keys {
		if k != "" {
			b.WriteString("restrict " + k + "\n")
		}
	}
	if err := os.WriteFile(s.file, []byte(b.String()), 0o600); err != nil {
		t.Error(err)
	}
}

// URL is the address of a repository of this machine by way of s.
func (s *SSHD) URL(path string) string { return "ssh://" + s.User + "@" + s.Addr + path }

// NewHTTPS serves the repositories below root by TLS to who signs in as user with token.
func NewHTTPS(t testing.TB, root, user, token string) (at string, roots *x509.CertPool) {
	t.Helper()
	core, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	back := &cgi.Handler{Path: filepath.Join(strings.TrimSpace(string(core)), "git-http-backend"), Dir: root,
		Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=" + user, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}}
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, ok := r.BasicAuth(); !ok || u != user || p != token {
			w.Header().Set("WWW-Authenticate", "Basic")
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		if v := r.Header.Get("Git-Protocol"); v != "" {
			b := *back
			b.Env = append(slices.Clone(back.Env), "GIT_PROTOCOL="+v)
			b.ServeHTTP(w, r)
			return
		}
		back.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, srv.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
}

// Forge speaks GitLab's API, whose paths may be long, about one repository's deploy keys, which it lets into an
// SSHD.
type Forge struct {
	URL string // of the API

	t     testing.TB
	sshd  *SSHD
	repo  string
	token string

	mu   sync.Mutex
	next int
	keys []ForgeKey
	down bool
}

// ForgeKey is one that a Forge has.
type ForgeKey struct {
	ID    int    `json:"id"`
	Title string `json:"title"`
	Key   string `json:"key"`
}

// NewForge starts one for the repository at path.
func NewForge(t testing.TB, s *SSHD, path, token string) *Forge {
	f := &Forge{t: t, sshd: s, repo: url.PathEscape(strings.TrimSuffix(strings.Trim(path, "/"), ".git")), token: token}
	srv := httptest.NewServer(f)
	t.Cleanup(srv.Close)
	f.URL = srv.URL
	return f
}

// Keys are those that it has.
func (f *Forge) Keys() []ForgeKey {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.keys)
}

// Down has it answer 503 to everything, or not any more.
func (f *Forge) Down(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

func (f *Forge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rest, ok := strings.CutPrefix(r.URL.EscapedPath(), "/projects/"+f.repo+"/deploy_keys")
	switch {
	case f.down:
		http.Error(w, "down", http.StatusServiceUnavailable)
	case r.Header.Get("Private-Token") != f.token:
		http.Error(w, "{}", http.StatusUnauthorized)
	case !ok:
		http.Error(w, "{}", http.StatusNotFound)
	case r.Method == http.MethodGet:
		list := []ForgeKey{}
		if p := r.URL.Query().Get("page"); p == "" || p == "1" {
			list = f.keys
		}
		_ = json.NewEncoder(w).Encode(list)
	case r.Method == http.MethodPost:
		var k ForgeKey
		if err := json.NewDecoder(r.Body).Decode(&k); err != nil {
			http.Error(w, "{}", http.StatusUnprocessableEntity)
			return
		}
		f.next++
		k.ID = f.next
		f.keys = append(f.keys, k)
		f.sshd.Permit(f.t, fmt.Sprint("forge-", k.ID), k.Key)
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(k)
	case r.Method == http.MethodDelete:
		id, _ := strconv.Atoi(strings.TrimPrefix(rest, "/"))
		f.keys = slices.DeleteFunc(f.keys, func(k ForgeKey) bool { return k.ID == id })
		f.sshd.Permit(f.t, fmt.Sprint("forge-", id), "")
		w.WriteHeader(http.StatusNoContent)
	}
}
