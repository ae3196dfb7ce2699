package gateway

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

const publicAddr = "93.184.216.34"

func webWorld(t testing.TB) *world {
	w := newWorld()
	h := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(rw, "%s %s %s %d", r.Method, r.Host, r.URL.RequestURI(), n)
	})
	plain := httptest.NewServer(h)
	secure := httptest.NewTLSServer(h)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	w.name("api.example.com", publicAddr)
	w.point(publicAddr+":80", plain.Listener.Addr().String())
	w.point(publicAddr+":443", secure.Listener.Addr().String())
	return w
}

func TestPassThrough(t *testing.T) {
	b := newBottle(t, webWorld(t), routes(t, "api.example.com"))
	t.Run("http", func(t *testing.T) {
		c := b.mustDial("api.example.com", 80)
		for range 2 {
			fmt.Fprintf(c, "POST /x//y?a;b HTTP/1.1\r\nHost: API.example.com.\r\nContent-Length: 3\r\n\r\nabc")
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			if got := string(body); got != "POST api.example.com /x//y?a;b 3" {
				t.Fatalf("got %d %q", res.StatusCode, got)
			}
		}
		c.Close()
		b.waitConn("http", func(c ConnSummary) bool { return c.Protocol == "http" && c.Allowed && c.Requests == 2 })
	})
	t.Run("tls", func(t *testing.T) {
		res, err := b.httpClient().Get("https://api.example.com/hi")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if !strings.Contains(string(body), "/hi") {
			t.Fatalf("got %q", body)
		}
	})
}

func (b *bottle) httpClient() *http.Client {
	tr := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: func(_ context.Context, _, addr string) (net.Conn, error) {
			host, port, _ := net.SplitHostPort(addr)
			var p uint16
			fmt.Sscan(port, &p)
			return b.dial(host, p)
		},
	}
	b.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: testTimeout}
}

// flowOf returns a flow of a connection that a test reads by itself, over or not.
func flowOf(t *testing.T, over bool) *flow {
	ctx, cancel := context.WithCancel(t.Context())
	if over {
		cancel()
	}
	return &flow{g: &Gateway{limits: Limits{Idle: testTimeout}}, ctx: ctx, cancel: cancel}
}

// TestHalfClosedAtOnce: of a request without a body, the server looks for the connection's
// end before it calls the handler. A client that half-closed is not taken to be gone.
func TestHalfClosedAtOnce(t *testing.T) {
	const head = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	c := newLintConn(memConn{r: strings.NewReader(head)}, nil, 8<<10)
	c.flow = flowOf(t, false)
	b := make([]byte, 100)
	if n, err := c.Read(b); string(b[:n]) != head || err != nil {
		t.Fatalf("%q %v", b[:n], err)
	}
	ended := make(chan error)
	go func() {
		_, err := c.Read(b)
		ended <- err
	}()
	c.woken <- struct{}{} // as the server does it when the answer is out
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the read ended with %v", err)
	}
	c.asked.Add(-1) // as the handler's end does it
	if _, err := c.Read(b); err != io.EOF {
		t.Errorf("after the answer the read ended with %v", err)
	}
}

// TestHalfClosed: a client that half-closes after a request gets the answer, and one
// that is gone is not waited for.
func TestHalfClosed(t *testing.T) {
	gone := make(chan struct{}, 10)
	answer := make(chan struct{}, 10)
	o := newTLSWorld(t, apiRoutes, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		select {
		case <-answer:
			fmt.Fprintf(rw, "%d bytes came", n)
		case <-r.Context().Done():
			gone <- struct{}{}
		}
	}), withLimits(Limits{Idle: 10 * time.Second}))
	begin := func(port uint16, body string) (net.Conn, func()) {
		raw := o.mustDial("api.example.com", port)
		c := net.Conn(raw)
		if port == 443 {
			c = tls.Client(raw, &tls.Config{ServerName: "api.example.com", RootCAs: o.inside})
		}
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		return c, func() { raw.CloseWrite() }
	}
	for _, port := range []uint16{80, 443} {
		for _, body := range []string{"", "hello", strings.Repeat("x", 100_000)} {
			c, half := begin(port, body)
			half()
			time.AfterFunc(100*time.Millisecond, func() { answer <- struct{}{} })
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(port, len(body), err)
			}
			text, err := io.ReadAll(res.Body)
			if res.StatusCode != 200 || err != nil || string(text) != fmt.Sprintf("%d bytes came", len(body)) {
				t.Errorf("port %d, %d bytes: %s %s %v", port, len(body), res.Status, text, err)
			}
			if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
				t.Errorf("port %d: after the answer come %q, %v", port, rest, err)
			}
			c.Close()
		}
		c, half := begin(port, "x")
		half() // and neither sends nor reads any more
		select {
		case <-gone:
		case <-time.After(testTimeout):
			t.Errorf("port %d: upstream is waited for without an end", port)
		}
		c.Close()
	}
}
