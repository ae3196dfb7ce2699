package gateway

import (
	"bytes"
	"crypto/tls"
	"io"
	"net/http/httptest"
	"testing"
)

// retryWorld has a server that asks every client for a second hello.
func retryWorld(t *testing.T) *world {
	w := newWorld()
	s := httptest.NewUnstartedServer(nil)
	s.TLS = &tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP521}, MinVersion: tls.VersionTLS13}
	s.StartTLS()
	t.Cleanup(s.Close)
	w.name("api.example.com", publicAddr)
	w.point(publicAddr+":443", s.Listener.Addr().String())
	return w
}

func TestSecondHello(t *testing.T) {
	b := newBottle(t, retryWorld(t), routes(t, "api.example.com", "other.example.com"))
	cfg := &tls.Config{
		ServerName: "api.example.com", InsecureSkipVerify: true,
		CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP521},
	}
	c := tls.Client(b.mustDial("api.example.com", 443), cfg)
	if err := c.Handshake(); err != nil {
		t.Fatalf("an honest retry: %v", err)
	}
	if !c.ConnectionState().HelloRetryRequest {
		t.Fatal("the server did not ask for a second hello")
	}

	evil := cfg.Clone()
	evil.ServerName = "other.example.com"
	second := clientHello(t, evil)
	for name, pipelined := range map[string]bool{"after the request": false, "at once": true} {
		c := b.mustDial("api.example.com", 443)
		first := clientHello(t, cfg)
		if pipelined {
			c.Write(append(first, second...))
		} else {
			c.Write(first)
			if _, err := io.ReadFull(c, make([]byte, 60)); err != nil {
				t.Fatal(err)
			}
			c.Write(second)
		}
		if _, err := io.ReadAll(c); err == nil {
			t.Errorf("%s: no reset", name)
		}
	}
	got := b.waitConn("two second hellos", func(c ConnSummary) bool { return c.Reason == reasonSNIMismatch && c.Count == 2 })
	if got.Name != "api.example.com" {
		t.Errorf("record: %+v", got)
	}
}

// TestTLS12: handshake records of TLS 1.2 pass.
func TestTLS12(t *testing.T) {
	b := newBottle(t, webWorld(t), routes(t, "api.example.com"))
	cache := tls.NewLRUClientSessionCache(1)
	for i := range 2 {
		c := tls.Client(b.mustDial("api.example.com", 443), &tls.Config{
			ServerName: "api.example.com", InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, ClientSessionCache: cache,
		})
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		if c.ConnectionState().DidResume != (i == 1) {
			t.Errorf("handshake %d: resumed %v", i, i == 0)
		}
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n")
		if got, err := io.ReadAll(c); err != nil || !bytes.Contains(got, []byte("200 OK")) {
			t.Errorf("%q, %v", got, err)
		}
	}
}

func TestHelloEnd(t *testing.T) {
	hello := clientHello(t, &tls.Config{ServerName: "a.example.com"})
	if n, ok := helloEnd(append(bytes.Clone(hello), 1, 2, 3)); !ok || n != len(hello) {
		t.Errorf("a hello and more: %d, %v", n, ok)
	}
	// A second message in the record of the hello.
	shared := bytes.Clone(hello)
	shared = append(shared, 1, 0, 0, 0)
	n := len(shared) - recordHeader
	shared[3], shared[4] = byte(n>>8), byte(n)
	if _, ok := helloEnd(shared); ok {
		t.Error("a record with two messages")
	}
	if _, ok := helloEnd(hello[:len(hello)-1]); ok {
		t.Error("a cut hello")
	}
	b := newBottle(t, webWorld(t), routes(t, "api.example.com"))
	c := b.mustDial("api.example.com", 443)
	h := clientHello(t, &tls.Config{ServerName: "api.example.com"})
	h = append(h, 1, 0, 0, 0)
	n = len(h) - recordHeader
	h[3], h[4] = byte(n>>8), byte(n)
	c.Write(h)
	mustAlert(t, c, alertDecodeError)
}

// FuzzHelloGuard: after a request for a second hello, a handshake record passes only
// with the same server name, and nothing is changed on the way.
func FuzzHelloGuard(f *testing.F) {
	same := clientHello(f, &tls.Config{ServerName: "api.example.com"})
	other := clientHello(f, &tls.Config{ServerName: "other.example.com"})
	f.Add(same, 100)
	f.Add(other, 100)
	f.Add(append([]byte{0x14, 3, 3, 0, 1, 1}, other...), 3)
	f.Add(append([]byte{0x17, 3, 3, 0, 2, 1, 1}, same...), 3)
	g := bareGateway(f, routes(f, "api.example.com"))
	f.Fuzz(func(t *testing.T, in []byte, step int) {
		if step < 1 {
			return
		}
		fl := g.newFlow(ap("198.18.1.0:443"), "api.example.com", false, g.table().Decide("api.example.com", 443))
		defer fl.cancel()
		w := newHelloWatch(nil)
		w.retry = true
		w.once.Do(func() { close(w.decided) })
		out, _ := io.ReadAll(&helloGuard{src: &stepReader{in, step}, flow: fl, watch: w})
		if !bytes.HasPrefix(in, out) {
			t.Fatalf("changed: %x, %x", in, out)
		}
		for at := 0; len(out)-at >= recordHeader; {
			if out[at] == recordHandshake {
				s := newSniffer(bytes.NewReader(out[at:]), 1<<20)
				h, err := s.hello()
				if err != nil || h.name != "api.example.com" {
					t.Fatalf("passed: %x", out)
				}
				return
			}
			at += recordHeader + (int(out[at+3])<<8 | int(out[at+4]))
		}
	})
}
