package hostile

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/corpus"
	"github.com/carboy/carboy/internal/corpus/attacker"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/testenv"
)

func TestMain(m *testing.M) {
	carboy.Main()
	attacker.Main()
	victimMain()
	testenv.OwnMounts()
	upstreamDNS.start()
	dir, err := copyGuest()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// backend names the backend under attack; empty: the default.
var backend = os.Getenv("CARBOY_TEST_BACKEND")

// patience bounds every wait; it is reached only when something hangs.
var patience = testenv.Patience(2 * time.Minute)

const mib = 1 << 20

// guestFile is this binary where the bottle's user can read it, guestPath
// where it stands inside.
var guestFile string

const guestPath = attacker.Path

func copyGuest() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "hostile"); err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return dir, err
	}
	in, err := os.Open("/proc/self/exe")
	if err != nil {
		return dir, err
	}
	defer in.Close()
	guestFile = filepath.Join(dir, "attacker")
	out, err := os.OpenFile(guestFile, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return dir, err
	}
	if _, err := io.Copy(out, in); err != nil {
		return dir, err
	}
	return dir, out.Close()
}

// host is a user's machine: a state directory and a workspace.
type host struct {
	t      testing.TB
	client *carboy.Client
	ws     string
	vars   map[string]string
}

func newHost(t testing.TB) *host {
	t.Helper()
	h := &host{t: t, ws: t.TempDir(), vars: map[string]string{
		"XDG_STATE_HOME": t.TempDir(), "XDG_RUNTIME_DIR": shortDir(t), "PATH": os.Getenv("PATH"), "HOME": os.Getenv("HOME"),
	}}
	h.write("a.txt", "hello\n")
	var err error
	if h.client, err = carboy.Open(t.Context(), carboy.Options{Backend: backend, Env: h.env}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.client.Close() })
	return h
}

func (h *host) env(name string) string { return h.vars[name] }

// shortDir is a private directory with a short name: a socket goes there.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hx")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (h *host) write(name, content string) {
	h.t.Helper()
	path := filepath.Join(h.ws, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// outcome holds a run's output, receipt and files.
type outcome struct {
	t        testing.TB
	rec      *receipt.Receipt
	err      error
	out, msg string
}

// limits are enough for honest work and small enough that floods end soon.
func limits() bottle.Limits {
	return bottle.Limits{Timeout: patience, Memory: 512 * mib, Pids: 200, Disk: 128 * mib, Output: 16 * mib, OpenFiles: 1024, FileSize: 64 * mib, CPUs: 2}
}

// run runs a command in a bottle; tune may widen or narrow what it may do.
func (h *host) run(tune func(*carboy.RunOptions), command ...string) *outcome {
	h.t.Helper()
	var out, msg testenv.Buffer
	o := carboy.RunOptions{
		Command: command, Workspace: h.ws, Limits: limits(), Stdout: &out, Stderr: &msg,
		Mounts: []string{guestFile + ":" + guestPath + ":ro"},
	}
	if tune != nil {
		tune(&o)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	rec, err := h.client.Run(ctx, o)
	if ctx.Err() != nil {
		h.t.Fatalf("%.200q hangs: %v", command, err)
	}
	return &outcome{t: h.t, rec: rec, err: err, out: out.String(), msg: msg.String()}
}

// sh runs a script that must succeed.
func (h *host) sh(tune func(*carboy.RunOptions), script string) *outcome {
	h.t.Helper()
	x := h.run(tune, "/bin/sh", "-c", script)
	x.exited(0)
	return x
}

func (x *outcome) exited(code int) {
	x.t.Helper()
	if x.err != nil || x.rec == nil || x.rec.Exit.Reason != receipt.Exited || x.rec.Exit.Code != code {
		x.t.Fatalf("the run ended with %v, %+v, want exit code %d; it said %.2000s%.2000s", x.err, exitOf(x.rec), code, x.out, x.msg)
	}
}

func exitOf(r *receipt.Receipt) receipt.Exit {
	if r == nil {
		return receipt.Exit{}
	}
	return r.Exit
}

// hit reports whether the receipt names a limit.
func (x *outcome) hit(limit string) bool {
	if x.rec == nil {
		return false
	}
	for _, h := range x.rec.Limits.Hit {
		if h.Limit == limit {
			return true
		}
	}
	return false
}

// refused reports whether the receipt says that a name or a connection was
// refused, by name.
func (x *outcome) refused(name string) bool {
	for _, n := range x.rec.Network.Names {
		if n.Name == name && n.Verdict == receipt.Refused {
			return true
		}
	}
	for _, c := range x.rec.Network.Connections {
		if c.Name == name && c.Verdict == receipt.Refused {
			return true
		}
	}
	return false
}

// contained runs families of the corpus, which users run too with carboy
// escape-test: every attack must have been made and have failed.
func contained(t *testing.T, families ...string) {
	t.Helper()
	hold(t, corpus.Options{Families: families})
}

func hold(t *testing.T, o corpus.Options) {
	t.Helper()
	o.Backend = backend
	rep, err := corpus.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rep.Results {
		if r.Outcome != corpus.Contained {
			t.Errorf("%s %s: %s: %s", r.Outcome, r.ID, r.Technique, r.Detail)
		}
	}
	t.Logf("%+v: %+v in %v", o, rep.Counts, rep.Took)
}

// upstreamDNS is the only name server that this process asks. It counts.
var upstreamDNS = &nameServer{names: map[string][]netip.Addr{}}

type nameServer struct {
	addr string

	mu      sync.Mutex
	names   map[string][]netip.Addr
	turns   map[string][]netip.Addr // one address for each query, the last repeats
	queries []string
}

// start listens on the loopback and makes the process's resolver ask there.
func (n *nameServer) start() {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, "fake name server:", err)
		os.Exit(1)
	}
	n.addr = pc.LocalAddr().String()
	n.turns = map[string][]netip.Addr{}
	go (&dns.Server{PacketConn: pc, Handler: n}).ActivateAndServe()
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", n.addr)
	}}
}

func (n *nameServer) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	name := strings.TrimSuffix(strings.ToLower(q.Question[0].Name), ".")
	n.mu.Lock()
	n.queries = append(n.queries, name)
	addrs, known := n.names[name]
	if turn := n.turns[name]; len(turn) > 0 && q.Question[0].Qtype == dns.TypeA {
		addrs, known = turn[:1], true
		if len(turn) > 1 {
			n.turns[name] = turn[1:]
		}
	}
	_, turning := n.turns[name]
	n.mu.Unlock()
	if !known && !turning {
		m.Rcode = dns.RcodeNameError
	}
	for _, a := range addrs {
		h := dns.RR_Header{Name: q.Question[0].Name, Class: dns.ClassINET, Ttl: 1}
		switch {
		case a.Is4() && q.Question[0].Qtype == dns.TypeA:
			h.Rrtype = dns.TypeA
			m.Answer = append(m.Answer, &dns.A{Hdr: h, A: a.AsSlice()})
		case a.Is6() && q.Question[0].Qtype == dns.TypeAAAA:
			h.Rrtype = dns.TypeAAAA
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: h, AAAA: a.AsSlice()})
		}
	}
	w.WriteMsg(m)
}

func (n *nameServer) set(name string, addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.names[name] = parseAddrs(addrs)
}

func (n *nameServer) rebind(name string, addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.turns[name] = parseAddrs(addrs)
}

func parseAddrs(ss []string) (out []netip.Addr) {
	for _, s := range ss {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// asked returns the queries that contain text, so far.
func (n *nameServer) asked(text string) (out []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, q := range n.queries {
		if strings.Contains(q, strings.ToLower(text)) {
			out = append(out, q)
		}
	}
	return out
}

// tree is corpus.Tree of a directory that can be read.
func tree(t testing.TB, root string) string {
	t.Helper()
	s, err := corpus.Tree(root)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
