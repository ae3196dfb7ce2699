package hostile

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var quiet = log.New(io.Discard, "", 0)

// canary is a listener that nobody may reach.
type canary struct {
	l    net.Listener
	hits atomic.Int64
}

func newCanary(t testing.TB, network, addr string) *canary {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	c := &canary{l: l}
	done := make(chan struct{})
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
	t.Cleanup(func() { l.Close(); <-done })
	return c
}

func (c *canary) untouched(t testing.TB) {
	t.Helper()
	if n := c.hits.Load(); n != 0 {
		t.Errorf("%v was reached %d times", c.l.Addr(), n)
	}
}

// web is an HTTP server on this machine's loopback that notes what it saw.
type web struct {
	port string
	mu   sync.Mutex
	seen []string // Host, method and path
}

func (w *web) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	w.seen = append(w.seen, r.Host+" "+r.Method+" "+r.RequestURI)
	w.mu.Unlock()
	rw.Write([]byte("served\n"))
}

func (w *web) requests() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.seen)
}

func (w *web) hosts() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]int{}
	for _, s := range w.seen {
		out[s]++
	}
	return out
}

func newWeb(t testing.TB) *web { return serve(t, nil) }

func newTLSWeb(t testing.TB) *web {
	return serve(t, &tls.Config{Certificates: []tls.Certificate{selfSigned(t)}})
}

func serve(t testing.TB, conf *tls.Config) *web {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &web{}
	_, w.port, _ = net.SplitHostPort(l.Addr().String())
	if conf != nil {
		l = tls.NewListener(l, conf)
	}
	srv := &http.Server{Handler: w, ErrorLog: quiet}
	done := make(chan struct{})
	go func() { defer close(done); srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); <-done })
	return w
}

func selfSigned(t testing.TB) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"tls.test"}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// udpCanary counts the datagrams that reach it.
type udpCanary struct{ hits atomic.Int64 }

func newUDPCanary(t testing.TB, addr string) *udpCanary {
	t.Helper()
	pc, err := net.ListenPacket("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c := &udpCanary{}
	done := make(chan struct{})
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
	t.Cleanup(func() { pc.Close(); <-done })
	return c
}
