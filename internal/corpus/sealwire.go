package corpus

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/corpus/attacker"
	"github.com/carboy/carboy/internal/receipt"
)

// canaryVariable names a variable that is set in this process while the seal is attacked.
const canaryVariable = "CARBOY_ESCAPE_TEST_CANARY"

// seal makes one bottle without any route and attacks its walls.
func seal(l *lab, chosen []attacker.Attack) error {
	os.Setenv(canaryVariable, l.marker+l.token)
	defer os.Unsetenv(canaryVariable)
	rel, err := filepath.Rel(l.ws, l.secret)
	if err != nil {
		return err
	}
	for link, to := range map[string]string{"link-to-secret": l.secret, "relative-link": rel, "link-to-dir": l.outside, "root-link": "/", "link-to-allowed": "a.txt"} {
		if err := os.Symlink(to, filepath.Join(l.ws, link)); err != nil {
			return err
		}
	}
	unixSockets, err := l.plantSockets()
	if err != nil {
		return err
	}
	var signals atomic.Int64
	defer countSignals(&signals)()
	before, err := Tree(l.readOnly)
	if err != nil {
		return err
	}
	w := &attacker.World{
		Workspace: l.ws, Secret: l.secret, SecretIno: inode(l.secret), Marker: reversed(l.marker), ReadOnly: givenAt,
		HostPIDs: []int{os.Getpid(), os.Getppid()}, Abstract: filepath.Base(l.dir),
		HostSockets: []string{l.ws + "/host.sock", givenAt + "/host.sock", l.ws + "/dgram.sock", l.readOnly + "/host.sock"},
	}
	r, err := l.attack(chosen, w, nil)
	if err != nil {
		return err
	}
	if !r.exited() {
		return fmt.Errorf("the bottle ended with %s", r.ended())
	}
	after, err := Tree(l.readOnly)
	if err != nil {
		return err
	}
	if d := difference(before, after); d != "" {
		l.accuse("a directory that was given read-only changed: "+d, "host-files/read-only-mount", "namespaces/remount-writable")
	}
	if b, err := os.ReadFile(l.secret); err != nil || string(b) != l.marker+l.token {
		l.accuse("a file of the host outside of the workspace changed", l.judgedOf("host-files", "namespaces")...)
	}
	watched := []string{"sockets/path", "sockets/through-links", "sockets/abstract", "sockets/pass-descriptors", "sockets/carboy-itself"}
	for name, c := range unixSockets {
		if n := c.hits.Load(); n > 0 {
			l.accuse(fmt.Sprintf("the host's socket %s was reached %d times", name, n), watched...)
		}
		if !c.alive() {
			l.doubt("the host's socket "+name+" answers nobody", watched...)
		}
	}
	if n := signals.Load(); n > 0 {
		l.accuse(fmt.Sprintf("carboy itself got the signal %d times", n), "host-processes/signal-all")
	}
	syscall.Kill(os.Getpid(), syscall.SIGCONT)
	if !eventually(func() bool { return signals.Load() > 0 }) {
		l.doubt("carboy does not notice the signal", "host-processes/signal-all")
	}
	return nil
}

// eventually waits for a short time until f returns true.
func eventually(f func() bool) bool {
	for end := time.Now().Add(settle); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// plantSockets listens on sockets that the attacker will try.
func (l *lab) plantSockets() (map[string]*canary, error) {
	out := map[string]*canary{}
	abstract := "@" + filepath.Base(l.dir)
	for _, s := range []struct{ network, addr string }{
		{"unix", l.ws + "/host.sock"}, {"unix", l.readOnly + "/host.sock"}, {"unixgram", l.ws + "/dgram.sock"}, {"unix", abstract}, {"unixgram", abstract + "-dgram"},
	} {
		c, err := listen(s.network, s.addr)
		if err != nil {
			return nil, err
		}
		l.closers = append(l.closers, c.close)
		out[s.addr] = c
		if s.addr[0] == '/' {
			if err := os.Chmod(s.addr, 0o777); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// countSignals counts the signals that signal-all sends. They do no harm.
func countSignals(n *atomic.Int64) (stop func()) {
	c := make(chan os.Signal, 16)
	signal.Notify(c, syscall.SIGCONT)
	end, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		for {
			select {
			case <-c:
				n.Add(1)
			case <-end:
				return
			}
		}
	}()
	return func() { signal.Stop(c); close(end); <-done }
}

func reversed(s string) string {
	b := make([]byte, len(s))
	for i := range s {
		b[len(s)-1-i] = s[i]
	}
	return string(b)
}

// wire makes one bottle with a few routes to servers on the loopback, and tries to reach
// what the routes do not allow.
func wire(l *lab, chosen []attacker.Attack) error {
	conf := &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return l.issuer.Leaf(h.ServerName) }}
	var plain, second, tls1, tls2 *web
	for _, s := range []struct {
		to  **web
		tls bool
	}{{&plain, false}, {&second, false}, {&tls1, true}, {&tls2, true}} {
		c := conf
		if !s.tls {
			c = nil
		}
		var err error
		if *s.to, err = serveWeb(c); err != nil {
			return err
		}
		l.closers = append(l.closers, (*s.to).close)
	}
	// As a server that speaks QUIC beside TCP has it.
	udp, err := listen("udp", "127.0.0.1:"+plain.port)
	if err != nil {
		return err
	}
	l.closers = append(l.closers, udp.close)
	for _, n := range []string{"open.test", "second.test", "tls.test", "tls2.test", "inner.test"} {
		l.names.set(n, "127.0.0.1")
	}
	l.names.set("meta.test", "169.254.169.254")
	l.names.set("rebind.test", "127.0.0.1", "169.254.169.254")
	w := &attacker.World{
		Workspace: l.ws, HostAddrs: hostAddresses(), Port: plain.port, Exfil: "exfil.test",
		Open: "open.test:" + plain.port, Second: "second.test:" + second.port, TLS: "tls.test:" + tls1.port, TLS2: "tls2.test:" + tls2.port,
		Private: "inner.test:" + plain.port, Meta: "meta.test:80", Rebind: "rebind.test:" + second.port,
	}
	r, err := l.attack(chosen, w, func(o *carboy.RunOptions) {
		o.AllowPrivate = []string{w.Open, "open.test:443", w.Second, w.TLS, w.TLS2, w.Meta, w.Rebind}
		o.Allow = []string{w.Private}
	})
	if err != nil {
		return err
	}
	if !r.exited() {
		return fmt.Errorf("the bottle ended with %s", r.ended())
	}
	l.observeWire(r, w, plain, second, tls1, tls2, udp)
	return nil
}

func (l *lab) observeWire(r *ran, w *attacker.World, plain, second, tls1, tls2 *web, udp *canary) {
	if got := l.names.matching("exfil7f3a"); len(got) > 0 {
		l.accuse(fmt.Sprintf("data left in a question: %q", got[0]), l.judgedOf("names")...)
	}
	for _, s := range plain.strangers(w.Open) {
		ids := l.judgedOf("http")
		switch {
		case strings.Contains(s, `"x"`) || strings.Contains(s, "Host: x"):
			ids = l.judgedOf("host-ports", "literals")
		case strings.Contains(s, w.Private):
			ids = []string{"private-names/private"}
		}
		l.accuse("the server on the loopback saw "+s, ids...)
	}
	for _, s := range second.strangers(w.Second) {
		if !strings.Contains(s, w.Rebind) { // its first answer is allowed
			l.accuse("the second server on the loopback saw "+s, l.judgedOf("http", "private-names")...)
		}
	}
	for _, s := range append(tls1.strangers(w.TLS), tls2.strangers(w.TLS2)...) {
		l.accuse("a TLS server on the loopback saw "+s, l.judgedOf("tls")...)
	}
	if n := udp.hits.Load(); n > 0 {
		l.accuse(fmt.Sprintf("%d datagrams reached the host", n), l.judgedOf("datagrams")...)
	}
	// Observers that see nothing prove nothing: the controls must have been seen.
	if !udp.alive() {
		l.doubt("the host's UDP port answers nobody", l.judgedOf("datagrams")...)
	}
	if plain.requests() == 0 {
		l.doubt("the server on the loopback was never reached", l.judgedOf("host-ports", "literals", "private-names", "http")...)
	}
	if tls1.requests() == 0 {
		l.doubt("the TLS server on the loopback was never reached", l.judgedOf("tls")...)
	}
	if ids := l.judgedOf("names"); len(ids) > 0 && plain.requests() > 0 && len(l.names.matching("open.test")) == 0 {
		l.doubt("the name server was never asked", ids...)
	}
	// What led to a place of private use, the gateway itself must have noted as
	// refused, and never as allowed.
	for id, host := range map[string]string{"private-names/metadata": hostName(w.Meta), "private-names/private": hostName(w.Private)} {
		for _, c := range r.rec.Network.Connections {
			if c.Name == host && c.Verdict == receipt.Allowed {
				l.accuse(fmt.Sprintf("the gateway allowed a connection to %s: %+v", host, c), id)
			}
		}
	}
}

func hostName(addr string) string {
	h, _, _ := net.SplitHostPort(addr)
	return h
}

// settle bounds the time until the host is as it was before.
const settle = 3 * time.Second
