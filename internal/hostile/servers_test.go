package hostile

import (
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"testing"
)

var quiet = log.New(io.Discard, "", 0)

// web is an HTTP server on this machine that notes what it saw.
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

func newWeb(t testing.TB) *web {
	t.Helper()
	return newWebAt(t, "127.0.0.1")
}

// newWebAt serves at one of this machine's addresses.
func newWebAt(t testing.TB, addr string) *web {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		t.Fatal(err)
	}
	w := &web{}
	_, w.port, _ = net.SplitHostPort(l.Addr().String())
	srv := &http.Server{Handler: w, ErrorLog: quiet}
	done := make(chan struct{})
	go func() { defer close(done); srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); <-done })
	return w
}
