// Package gittest runs real upstreams for tests of the git gate, on loopback: OpenSSH's
// sshd with its own configuration, as the user of the tests, and git http-backend behind
// TLS. They end with the test.
package gittest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/subtle"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/testenv"
)

// T is the part of testing.TB that this package uses. A benchmark program can implement it
// too.
type T interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
	TempDir() string
	Cleanup(func())
	Context() context.Context
}

// missing skips a test that lacks a program, and ends another caller.
func missing(t T, what, install string) {
	if tb, ok := t.(testing.TB); ok {
		testenv.Missing(tb, what, install)
	}
	t.Fatalf("%s is missing: %s", what, install)
}

// Key returns a new ed25519 key. It writes it to file, unless that is empty.
func Key(t T, file string) ssh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if file != "" {
		block, err := ssh.MarshalPrivateKey(key, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// SSH is a running sshd.
type SSH struct {
	Addr, User string
	HostKey    ssh.PublicKey
	Client     ssh.Signer // a key that it accepts
	ClientFile string     // the same, as a file for ssh(1)
	Dir        string
}

// StartSSH starts sshd. lines are added to its configuration.
func StartSSH(t T, lines ...string) *SSH {
	t.Helper()
	const sshd = "/usr/sbin/sshd"
	if _, err := os.Stat(sshd); err != nil {
		missing(t, "sshd", "apt-get install openssh-server")
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	if me.Uid == "0" {
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	s := &SSH{User: me.Username, Dir: dir, HostKey: Key(t, dir+"/host").PublicKey(), ClientFile: dir + "/client"}
	s.Client = Key(t, s.ClientFile)
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("authorized", string(ssh.MarshalAuthorizedKey(s.Client.PublicKey())))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.Addr = l.Addr().String()
	_ = l.Close()
	_, port, _ := net.SplitHostPort(s.Addr)
	write("config", strings.Join(append([]string{
		"Port " + port, "ListenAddress 127.0.0.1", "HostKey " + dir + "/host", "PidFile none", "UsePAM no", "StrictModes no",
		"PasswordAuthentication no", "KbdInteractiveAuthentication no", "AuthorizedKeysFile " + dir + "/authorized",
		"LogLevel QUIET", "UseDNS no", "PrintMotd no",
	}, lines...), "\n")+"\n")
	run(t, exec.CommandContext(t.Context(), sshd, "-D", "-e", "-f", dir+"/config"), s.Addr)
	return s
}

// run starts a server and blocks until it listens.
func run(t T, c *exec.Cmd, addr string) {
	t.Helper()
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = c.Wait(); close(ended) }()
	t.Cleanup(func() { _ = c.Process.Kill(); <-ended })
	for {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-ended:
			t.Fatalf("%s ended: %v", c.Path, c.ProcessState)
		case <-time.After(10 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("not listening")
		}
	}
}

// URL returns the URL of a path on the server.
func (s *SSH) URL(path string) string { return "ssh://" + s.User + "@" + s.Addr + path }

// HTTPS is git http-backend behind TLS.
type HTTPS struct {
	URL   string
	Roots *x509.CertPool
	Cert  []byte // the same, as a file for git, in PEM
}

// StartHTTPS serves the repositories below root. Clients must send the token, unless it is
// empty.
func StartHTTPS(t T, root, token string) *HTTPS {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	path, err := exec.CommandContext(ctx, "git", "--exec-path").Output()
	if err != nil {
		missing(t, "git", "apt-get install git")
	}
	backend := filepath.Join(strings.TrimSpace(string(path)), "git-http-backend")
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, pass, _ := r.BasicAuth()
		if token != "" && subtle.ConstantTimeCompare([]byte(pass), []byte(token)) != 1 {
			w.Header().Set("WWW-Authenticate", "Basic")
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		// CGI needs the length of the request. Production servers handle chunked bodies
		// themselves.
		if r.ContentLength < 0 {
			if err := spool(t, r); err != nil {
				http.Error(w, "spool", http.StatusInternalServerError)
				return
			}
		}
		(&cgi.Handler{Path: backend, Env: []string{
			"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=tester", "GIT_PROTOCOL=" + r.Header.Get("Git-Protocol"),
			"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		}, InheritEnv: []string{"PATH"}}).ServeHTTP(w, r)
	}))
	s.StartTLS()
	t.Cleanup(s.Close)
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return &HTTPS{URL: s.URL, Roots: pool, Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})}
}

func spool(t T, r *http.Request) error {
	f, err := os.CreateTemp(t.TempDir(), "body")
	if err != nil {
		return err
	}
	n, err := f.ReadFrom(r.Body)
	if err != nil {
		return err
	}
	if _, err := f.Seek(0, 0); err != nil {
		return err
	}
	r.Body, r.ContentLength, r.TransferEncoding = f, n, nil
	return nil
}

// Env returns an environment for git as a client: no configuration of the machine, a fixed
// author, no upkeep after each command, and GIT_SSH_COMMAND for s unless that is nil.
func Env(s *SSH) []string {
	env := append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@example.org",
		"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=gc.auto", "GIT_CONFIG_VALUE_0=0", "GIT_CONFIG_KEY_1=maintenance.auto", "GIT_CONFIG_VALUE_1=false")
	if s != nil {
		env = append(env, fmt.Sprintf("GIT_SSH_COMMAND=ssh -F none -i %s -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR", s.ClientFile))
	}
	return env
}
