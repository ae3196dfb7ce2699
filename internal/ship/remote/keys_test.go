package remote_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/carboy/carboy/internal/ship/hosts"
	"github.com/carboy/carboy/internal/ship/remote"
	"github.com/carboy/carboy/internal/ship/shiptest"
)

// serveAgent serves an SSH agent with some keys, and returns its socket.
func serveAgent(t *testing.T, keys ...any) string {
	t.Helper()
	ring := agent.NewKeyring()
	for _, k := range keys {
		if err := ring.Add(agent.AddedKey{PrivateKey: k}); err != nil {
			t.Fatal(err)
		}
	}
	name := t.TempDir() + "/s"
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go accept(l, func(c net.Conn) { agent.ServeAgent(ring, c) })
	return name
}

// TestSigner: a key comes from its file, or from the agent that holds it; each
// failure says what to do.
func TestSigner(t *testing.T) {
	dir := t.TempDir()
	priv, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, text []byte, mode os.FileMode) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, text, mode); err != nil {
			t.Fatal(err)
		}
		return name
	}
	block, err := ssh.MarshalPrivateKey(priv, "")
	if err != nil {
		t.Fatal(err)
	}
	locked, err := ssh.MarshalPrivateKeyWithPassphrase(priv, "", []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	plain := pem.EncodeToMemory(block)
	pub := write("key.pub", ssh.MarshalAuthorizedKey(signer.PublicKey()), 0o644)
	for name, x := range map[string]struct{ file, socket, says string }{
		"a file":          {write("key", plain, 0o600), "", ""},
		"the agent":       {pub, serveAgent(t, priv), ""},
		"readable by all": {write("open", plain, 0o644), "", "chmod 600"},
		"writable by all": {write("wide", plain, 0o600), "", ""},
		"a passphrase":    {write("locked", pem.EncodeToMemory(locked), 0o600), "", "ssh-add"},
		"no key":          {write("none", []byte("hello"), 0o600), "", "not a private key"},
		"missing":         {dir + "/missing", "", "no such file"},
		"no agent":        {pub, "", "SSH_AUTH_SOCK"},
		"a dead agent":    {pub, dir + "/nobody", "ssh agent"},
		"an empty agent":  {pub, serveAgent(t), "holds no key"},
		"another key":     {write("other.pub", []byte(otherKey(t)), 0o644), serveAgent(t, priv), "does not hold"},
	} {
		if strings.HasSuffix(x.file, "/wide") {
			os.Chmod(x.file, 0o622)
			x.says = "others can write"
		}
		s, done, err := remote.Keys{AgentSocket: x.socket}.Signer(context.Background(), x.file)
		if x.says != "" {
			if err == nil || !strings.Contains(err.Error(), x.says) {
				t.Errorf("%s: %v, want an error that says %q", name, err, x.says)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		sig, err := s.Sign(rand.Reader, []byte("text"))
		if err != nil || signer.PublicKey().Verify([]byte("text"), sig) != nil {
			t.Errorf("%s: signed with another key: %v", name, err)
		}
		done()
	}
}

func otherKey(t *testing.T) string {
	pub, _ := shiptest.NewKey(t, t.TempDir()+"/other")
	return pub
}

// sshServer serves SSH connections with a host key, and returns an entry for it in
// hosts.yaml.
func sshServer(t *testing.T, key ssh.Signer, serve func(*ssh.ServerConn, <-chan ssh.NewChannel, <-chan *ssh.Request)) string {
	t.Helper()
	conf := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return nil, nil }}
	conf.AddHostKey(key)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go accept(l, func(c net.Conn) {
		if conn, chans, reqs, err := ssh.NewServerConn(c, conf); err == nil {
			serve(conn, chans, reqs)
		}
	})
	return entry(l.Addr(), key.PublicKey())
}

func entry(at net.Addr, key ssh.PublicKey) string {
	_, port, _ := net.SplitHostPort(at.String())
	return "hosts:\n  one:\n    address: 127.0.0.1\n    port: " + port + "\n    user: me\n    host_keys: [" + strconv.Quote(strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))) + "]\n    allowed_roots: [/srv]\n"
}

func host(t *testing.T, yaml string) (*hosts.File, *hosts.Host) {
	t.Helper()
	all, err := hosts.Parse("hosts.yaml", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	h, _ := all.Find("one")
	return all, h
}

// TestDialFails: a host that is not there, that ends the handshake, or for which there is no
// key, is one with which nothing was done.
func TestDialFails(t *testing.T) {
	priv, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewSignerFromKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go accept(l, func(c net.Conn) { io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") })
	rude := entry(l.Addr(), key.PublicKey())
	defer l.Close()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := entry(gone.Addr(), key.PublicKey())
	gone.Close()
	keys := remote.Keys{AgentSocket: serveAgent(t, priv)}
	for name, x := range map[string]struct {
		yaml string
		keys remote.Keys
		kind error
	}{
		"not there":    {nobody, keys, remote.ErrUnreachable},
		"no SSH":       {rude, keys, remote.ErrUnreachable},
		"no agent":     {rude, remote.Keys{}, nil},
		"no such file": {rude + "    key: /nowhere/key\n", keys, os.ErrNotExist},
	} {
		all, h := host(t, x.yaml)
		_, err := remote.Dial(context.Background(), all, h, x.keys)
		var e *remote.Error
		if !errors.As(err, &e) || e.Host != "one" || x.kind != nil && !errors.Is(err, x.kind) || !strings.HasPrefix(err.Error(), "host one: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	all, h := host(t, nobody)
	h.Jump = "lost"
	if _, err := remote.Dial(context.Background(), all, h, keys); err == nil || !strings.Contains(err.Error(), "no host lost") {
		t.Errorf("through a host that is not in the file: %v", err)
	}
}

// TestRunFails: how a script, its session or its connection can end, and what is said of it.
func TestRunFails(t *testing.T) {
	priv, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewSignerFromKey(priv) // RSA: signed with SHA-2
	if err != nil {
		t.Fatal(err)
	}
	keys := remote.Keys{AgentSocket: serveAgent(t, priv)}
	status := func(ch ssh.Channel, code byte) {
		ch.SendRequest("exit-status", false, []byte{0, 0, 0, code})
		ch.Close()
	}
	for name, x := range map[string]struct {
		start func(r *ssh.Request, ch ssh.Channel, conn *ssh.ServerConn)
		kind  error
		says  string
	}{
		"well":        {func(r *ssh.Request, ch ssh.Channel, _ *ssh.ServerConn) { r.Reply(true, nil); status(ch, 0) }, nil, ""},
		"not allowed": {func(r *ssh.Request, ch ssh.Channel, _ *ssh.ServerConn) { r.Reply(false, nil) }, remote.ErrUnreachable, "start"},
		"with an exit": {func(r *ssh.Request, ch ssh.Channel, _ *ssh.ServerConn) {
			r.Reply(true, nil)
			io.WriteString(ch.Stderr(), "sh: no\nluck\n")
			status(ch, 7)
		}, remote.ErrCut, "ended with 7: [sh: no; luck]"},
		"much noise": {func(r *ssh.Request, ch ssh.Channel, _ *ssh.ServerConn) {
			r.Reply(true, nil)
			io.WriteString(ch.Stderr(), strings.Repeat("x", 10000))
			status(ch, 7)
		}, remote.ErrCut, "ended with 7: [x"},
		"cut":       {func(r *ssh.Request, ch ssh.Channel, c *ssh.ServerConn) { r.Reply(true, nil); c.Close() }, remote.ErrCut, ""},
		"no status": {func(r *ssh.Request, ch ssh.Channel, _ *ssh.ServerConn) { r.Reply(true, nil); ch.Close() }, remote.ErrCut, ""},
	} {
		yaml := sshServer(t, key, func(conn *ssh.ServerConn, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) {
			go ssh.DiscardRequests(reqs)
			for c := range chans {
				ch, reqs, err := c.Accept()
				if err != nil {
					return
				}
				for r := range reqs {
					x.start(r, ch, conn)
				}
			}
		})
		all, h := host(t, yaml)
		c, err := remote.Dial(context.Background(), all, h, keys)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		redact := func(s string) string { return "[" + s + "]" }
		err = c.Run(context.Background(), remote.Script{Text: "true", Within: time.Minute, Redact: redact}, func(remote.Line) {})
		c.Close()
		if x.kind == nil && err != nil || x.kind != nil && (!errors.Is(err, x.kind) || !strings.Contains(err.Error(), x.says)) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && len(err.Error()) > 5000 {
			t.Errorf("%s: %d bytes of error", name, len(err.Error()))
		}
	}
}
