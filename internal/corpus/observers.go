package corpus

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// canary is a Unix socket of the host that nobody inside may reach.
type canary struct {
	network, addr string
	hits          atomic.Int64
	close         func()
}

// alive connects to the canary from the host, and reports whether the canary noticed.
func (c *canary) alive() bool {
	before := c.hits.Load()
	conn, err := net.Dial(c.network, c.addr)
	if err != nil {
		return false
	}
	defer conn.Close()
	conn.Write([]byte("x"))
	return eventually(func() bool { return c.hits.Load() > before })
}

// listen makes a canary of a stream or datagram socket, or of a UDP port.
func listen(network, addr string) (*canary, error) {
	c := &canary{network: network, addr: addr}
	done := make(chan struct{})
	if network == "unixgram" || network == "udp" {
		pc, err := net.ListenPacket(network, addr)
		if err != nil {
			return nil, err
		}
		go func() { // ends when pc is closed
			defer close(done)
			b := make([]byte, 2000)
			for {
				n, from, err := pc.ReadFrom(b)
				if err != nil {
					return
				}
				c.hits.Add(1)
				pc.WriteTo(b[:n], from)
			}
		}()
		c.close = func() { pc.Close(); <-done }
		return c, nil
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		return nil, err
	}
	go func() { // ends when l is closed
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.hits.Add(1)
			conn.Close()
		}
	}()
	c.close = func() { l.Close(); <-done }
	return c, nil
}

// web is an HTTP server on the loopback that notes its requests.
type web struct {
	port  string
	close func()

	mu     sync.Mutex
	hosts  map[string]int // requests by their authority
	firsts []string       // what connections began with, for plain HTTP
}

func (w *web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	w.hosts[r.Host]++
	w.mu.Unlock()
	io.WriteString(rw, "served\n")
}

// strangers returns the authorities and first bytes that differ from want's.
func (w *web) strangers(want string) (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for h := range w.hosts {
		if !strings.EqualFold(h, want) {
			out = append(out, "a request for "+strconv.Quote(h))
		}
	}
	for _, f := range w.firsts {
		if !strings.Contains(f, "Host: "+want) {
			out = append(out, "a connection that began with "+strconv.Quote(f))
		}
	}
	return out
}

func (w *web) requests() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.hosts {
		n += c
	}
	return n
}

// noting keeps the first bytes of a connection.
type noting struct {
	net.Conn
	w    *web
	once sync.Once
}

func (c *noting) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.once.Do(func() {
			c.w.mu.Lock()
			defer c.w.mu.Unlock()
			if len(c.w.firsts) < 1000 {
				c.w.firsts = append(c.w.firsts, string(b[:min(n, 200)]))
			}
		})
	}
	return n, err
}

type notingListener struct {
	net.Listener
	w *web
}

func (l notingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &noting{Conn: c, w: l.w}, nil
}

func serveWeb(conf *tls.Config) (*web, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &web{hosts: map[string]int{}}
	_, w.port, _ = net.SplitHostPort(l.Addr().String())
	if conf != nil {
		l = tls.NewListener(l, conf)
	} else {
		l = notingListener{l, w}
	}
	// Kept connections would hide where the next one would have led.
	srv := &http.Server{Handler: w, ReadHeaderTimeout: 30 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	srv.SetKeepAlivesEnabled(false)
	done := make(chan struct{})
	go func() { defer close(done); srv.Serve(l) }() // ends when srv is closed
	w.close = func() { srv.Close(); <-done }
	return w, nil
}

// nameServer is the only resolver of the gateway. It counts the names.
type nameServer struct {
	mu    sync.Mutex
	names map[string][]netip.Addr // the last one repeats
	asked []string
}

func (n *nameServer) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, host)
	a := n.names[host]
	if len(a) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	if len(a) > 1 {
		n.names[host] = a[1:]
	}
	return a[:1], nil
}

func (n *nameServer) set(host string, addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range addrs {
		n.names[host] = append(n.names[host], netip.MustParseAddr(a))
	}
}

// matching returns the names that were asked for and contain text.
func (n *nameServer) matching(text string) (out []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range n.asked {
		if strings.Contains(a, strings.ToLower(text)) {
			out = append(out, a)
		}
	}
	return out
}

// Tree describes a directory: paths, modes, sizes, contents and links.
func Tree(root string) (string, error) {
	var out strings.Builder
	err := filepath.Walk(root, func(path string, fi fs.FileInfo, err error) error {
		if err != nil {
			return err
		}
		fmt.Fprintf(&out, "%s %v", path, fi.Mode())
		switch {
		case fi.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&out, " %q", b)
		case fi.Mode()&os.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&out, " -> %s", to)
		}
		out.WriteString("\n")
		return nil
	})
	return out.String(), err
}

// difference returns the first line in which two trees differ.
func difference(before, after string) string {
	b, a := strings.Split(before, "\n"), strings.Split(after, "\n")
	for i := range max(len(a), len(b)) {
		var x, y string
		if i < len(b) {
			x = b[i]
		}
		if i < len(a) {
			y = a[i]
		}
		if x != y {
			return fmt.Sprintf("%.200s is now %.200s", x, y)
		}
	}
	return ""
}

// hostAddresses returns this machine's addresses, without link-local ones.
func hostAddresses() (out []string) {
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
			out = append(out, n.IP.String())
		}
	}
	return out
}

// use holds a bottle's use of the host.
type use struct {
	processes int
	memory    int64 // anonymous, in bytes
}

// below measures the living descendants of this process.
func below() (u use) {
	ents, err := os.ReadDir("/proc")
	if err != nil {
		return u
	}
	parents := map[int]int{}
	for _, e := range ents {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
		if len(f) < 2 || string(f[0]) == "Z" {
			continue
		}
		parents[pid], _ = strconv.Atoi(string(f[1]))
	}
	own := os.Getpid()
	for pid := range parents {
		for up, n := parents[pid], 0; up > 1 && n < 100; up, n = parents[up], n+1 {
			if up == own {
				u.processes++
				u.memory += anonymous(pid)
				break
			}
		}
	}
	return u
}

func anonymous(pid int) int64 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kb, _ := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			return kb << 10
		}
	}
	return 0
}

// onDisk returns the disk space of the files below dir, in bytes.
func onDisk(dir string) (n int64) {
	filepath.Walk(dir, func(_ string, fi fs.FileInfo, err error) error {
		if err == nil && fi.Mode().IsRegular() {
			n += blocks(fi) * 512
		}
		return nil
	})
	return n
}
