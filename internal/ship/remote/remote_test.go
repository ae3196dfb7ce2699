package remote_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/carboy/carboy/internal/ship/hosts"
	"github.com/carboy/carboy/internal/ship/remote"
	"github.com/carboy/carboy/internal/ship/shiptest"
	"github.com/carboy/carboy/internal/testenv"
)

// shells returns the shells to test; Quote must work in all of them.
func shells() (out []string) {
	for _, s := range []string{"sh", "dash", "bash"} {
		if p := testenv.Look(s); p != "" {
			out = append(out, p)
		}
	}
	return out
}

var nasty = []string{"", "'", "''", `'\''`, "$(id)", "`id`", "$HOME", "a b", "a\nb", "\n", "-n", "--", "*", "~", "!x", "\\", `\'`, `"`, ";id", "&&id", "|id", "\x1b[2J", "\xff\xfe", "é", "#", "a'b'c", strings.Repeat("'", 50)}

// TestP3Quote: whatever a value holds, a shell reads it as that one word.
func TestP3Quote(t *testing.T) {
	for _, sh := range shells() {
		var script strings.Builder
		var want bytes.Buffer
		for _, s := range nasty {
			q, err := remote.Quote(s)
			if err != nil {
				t.Fatal(err)
			}
			script.WriteString("printf '%s\\0' " + q + "\n")
			want.WriteString(s + "\x00")
		}
		out, err := exec.Command(sh, "-c", script.String()).Output()
		if err != nil || !bytes.Equal(out, want.Bytes()) {
			t.Errorf("%s reads %q, want %q (%v)", sh, out, want.Bytes(), err)
		}
	}
	if _, err := remote.Quote("a\x00b"); err == nil {
		t.Error("a zero byte was quoted")
	}
	if _, err := remote.Assign([]string{"a;id"}, map[string]string{"a;id": "x"}); err == nil {
		t.Error("a variable's name was taken as it is")
	}
}

func FuzzQuote(f *testing.F) {
	for _, s := range nasty {
		f.Add(s)
	}
	all := shells()
	f.Fuzz(func(t *testing.T, s string) {
		q, err := remote.Quote(s)
		if strings.Contains(s, "\x00") {
			if err == nil {
				t.Fatal("a zero byte was quoted")
			}
			return
		}
		script, aerr := remote.Assign([]string{"x"}, map[string]string{"x": s})
		if err != nil || aerr != nil {
			t.Fatal(err, aerr)
		}
		for _, sh := range all {
			out, err := exec.Command(sh, "-c", "printf %s "+q+"\n"+script+`printf %s "$x"`).Output()
			if err != nil || string(out) != s+s {
				t.Fatalf("%s reads %q as %q (%v)", sh, s, out, err)
			}
		}
	})
}

func dial(t *testing.T, op *shiptest.Operator, name string) (*remote.Conn, error) {
	t.Helper()
	all, err := hosts.Load(op.Config)
	if err != nil {
		t.Fatal(err)
	}
	h, ok := all.Find(name)
	if !ok {
		t.Fatal(name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience(time.Minute))
	defer cancel()
	return remote.Dial(ctx, all, h, remote.Keys{})
}

func say(t *testing.T, c *remote.Conn, text string, within time.Duration, input ...[]byte) (string, error) {
	t.Helper()
	var b strings.Builder
	err := c.Run(context.Background(), remote.Script{Text: text, Input: input, Within: within}, func(l remote.Line) { b.WriteString(l.Word + "<" + l.Rest + ">") })
	return b.String(), err
}

// TestP1HostKey: a host that shows another key than the pinned one learns nothing.
func TestP1HostKey(t *testing.T) {
	h, op := shiptest.NewHost(t, "one", nil), shiptest.NewOperator(t)
	op.Add(t, h)
	c, err := dial(t, op, "one")
	if err != nil {
		t.Fatal(err)
	}
	text, err := remote.Assign([]string{"x"}, map[string]string{"x": "it's $HOME"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := say(t, c, text+"echo @word \"$x\"; cat; echo '| @word no'", time.Minute, []byte("in\n")); err != nil || got != "@word<it's $HOME><in><@word no>" {
		t.Errorf("%q %v", got, err)
	}
	c.Close()
	before, _ := os.ReadFile(h.Dir + "/sshd.log")
	pub, _ := shiptest.NewKey(t, t.TempDir()+"/other")
	op.Write(t, "hosts.yaml", strings.Replace(string(read(t, op.Config+"/hosts.yaml")), h.KeyPub, pub, 1))
	if _, err := dial(t, op, "one"); !errors.Is(err, remote.ErrHostKey) {
		t.Errorf("another key: %v", err)
	}
	if log := string(read(t, h.Dir+"/sshd.log")[len(before):]); strings.Contains(log, "Accepted") {
		t.Errorf("signed in to it: %s", log)
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestJump: the host on the way is held to its key as well.
func TestJump(t *testing.T) {
	way, end, op := shiptest.NewHost(t, "way", nil), shiptest.NewHost(t, "end", nil), shiptest.NewOperator(t)
	op.Add(t, way)
	op.Add(t, end, "jump: way")
	c, err := dial(t, op, "end")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := say(t, c, `echo "@home $HOME"`, time.Minute); err != nil || got != "@home<"+end.Home+">" {
		t.Errorf("%q %v", got, err)
	}
	pub, _ := shiptest.NewKey(t, t.TempDir()+"/other")
	op.Write(t, "hosts.yaml", strings.Replace(string(read(t, op.Config+"/hosts.yaml")), way.KeyPub, pub, 1))
	if _, err := dial(t, op, "end"); !errors.Is(err, remote.ErrHostKey) {
		t.Errorf("another key on the way: %v", err)
	}
}

// TestP4Bounds: a host that says too much, or nothing, does not hold us.
func TestP4Bounds(t *testing.T) {
	h, op := shiptest.NewHost(t, "one", nil), shiptest.NewOperator(t)
	op.Add(t, h)
	for name, x := range map[string]struct {
		text   string
		within time.Duration
	}{
		"silence":     {"sleep 600", time.Second},
		"a flood":     {"yes", time.Minute},
		"a long line": {"head -c 20000000 /dev/zero | tr '\\0' x; sleep 600", time.Minute},
		"its death":   {"kill -9 $$", time.Minute},
	} {
		c, err := dial(t, op, "one")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		err = c.Run(context.Background(), remote.Script{Text: x.text, Within: x.within}, func(l remote.Line) { n += len(l.Rest) })
		if !errors.Is(err, remote.ErrCut) || n > remote.MaxOutput {
			t.Errorf("%s: %v after %d bytes", name, err, n)
		}
		c.Close()
	}
}

// deaf is an SSH agent that holds a key but never answers a request to sign.
type deaf struct {
	agent.Agent
	over <-chan struct{}
}

func (d deaf) Sign(ssh.PublicKey, []byte) (*ssh.Signature, error) {
	<-d.over
	return nil, errors.New("over")
}

// TestP4Deaf: neither an agent nor a host that takes what it is asked and answers nothing
// holds us.
func TestP4Deaf(t *testing.T) {
	over := make(chan struct{})
	defer close(over)
	_, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	held := agent.NewKeyring()
	if err := held.Add(agent.AddedKey{PrivateKey: priv}); err != nil {
		t.Fatal(err)
	}
	socket := func(serve func(net.Conn)) string {
		name := t.TempDir() + "/s"
		l, err := net.Listen("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go accept(l, serve)
		return name
	}
	agents := map[string]string{
		"answers nothing": socket(func(c net.Conn) { <-over }),
		"does not sign":   socket(func(c net.Conn) { agent.ServeAgent(deaf{held, over}, c) }),
		"signs":           socket(func(c net.Conn) { agent.ServeAgent(held, c) }),
	}
	// A host that lets in who signs, and answers no channel.
	pub, key := shiptest.NewKey(t, t.TempDir()+"/host")
	conf := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return nil, nil }}
	conf.AddHostKey(key)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go accept(l, func(c net.Conn) {
		if _, _, reqs, err := ssh.NewServerConn(c, conf); err == nil {
			ssh.DiscardRequests(reqs)
		}
	})
	op := shiptest.NewOperator(t)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	op.Write(t, "hosts.yaml", "hosts:\n  one:\n    address: 127.0.0.1\n    port: "+port+"\n    user: me\n    host_keys: ["+strconv.Quote(pub)+"]\n    allowed_roots: [/srv]\n")
	all, err := hosts.Load(op.Config)
	if err != nil {
		t.Fatal(err)
	}
	h, _ := all.Find("one")
	var c *remote.Conn
	for _, name := range []string{"answers nothing", "does not sign", "signs"} {
		patience := testenv.Patience(20 * time.Second)
		if name != "signs" {
			patience = 500 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		c, err = remote.Dial(ctx, all, h, remote.Keys{AgentSocket: agents[name]})
		if name != "signs" && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an agent that %s: %v", name, err)
		}
		cancel()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := say(t, c, "true", 500*time.Millisecond); !errors.Is(err, remote.ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a host that answers no channel: %v", err)
	}
}

// accept serves each connection until its other side is gone.
func accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			serve(c)
		}()
	}
}
