package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/carboy/carboy/internal/ca"
)

// brokenUpstreams maps a name to what a server does instead of answering. When serve
// returns, the connection is reset, or closed if close is set.
var brokenUpstreams = map[string]struct {
	do    func(c net.Conn)
	close bool
	// cut: the answer had begun and must end as cut off.
	cut bool
}{
	"reset":                 {do: func(c net.Conn) {}},
	"closed":                {do: func(c net.Conn) {}, close: true},
	"reset in the head":     {do: say("HTTP/1.1 200 OK\r\nX: ")},
	"closed in the head":    {do: say("HTTP/1.1 200 OK\r\nX: "), close: true},
	"reset in the body":     {do: say("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"), cut: true},
	"too short":             {do: say("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"), close: true, cut: true},
	"closed in a chunk":     {do: say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"), close: true, cut: true},
	"no last chunk":         {do: say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"), close: true, cut: true},
	"bad chunk":             {do: say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n"), cut: true},
	"huge chunk":            {do: say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"), cut: true},
	"two lengths":           {do: say("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nabcde")},
	"negative length":       {do: say("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nabc")},
	"unknown encoding":      {do: say("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n")},
	"no http":               {do: say("SSH-2.0-OpenSSH\r\n")},
	"http 0.9":              {do: say("<html>"), close: true},
	"no status":             {do: say("HTTP/1.1 OK\r\n\r\n")},
	"split status":          {do: say("HTTP/1.1 200 OK\rX: y\r\nno header\r\n\r\n")},
	"nul in a value":        {do: say("HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 0\r\n\r\n")},
	"endless line":          {do: forever("HTTP/1.1 200 OK\r\nX: ", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx")},
	"endless headers":       {do: forever("HTTP/1.1 200 OK\r\n", "X-Header: some more of it\r\n")},
	"endless hints":         {do: forever("", "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n")},
	"endless continues":     {do: forever("", "HTTP/1.1 100 Continue\r\n\r\n")},
	"switch":                {do: say("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")},
	"endless trailers":      {do: forever("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n", "X-Trailer: some more of it\r\n"), cut: true},
	"endless chunk nothing": {do: forever("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"), cut: true},
}

func say(s string) func(net.Conn) {
	return func(c net.Conn) { io.WriteString(c, s) }
}

func forever(first, then string) func(net.Conn) {
	return func(c net.Conn) {
		io.WriteString(c, first)
		b := []byte(strings.Repeat(then, 256))
		for range 4000 { // at least 24 MiB, which must not be buffered
			if _, err := c.Write(b); err != nil {
				return
			}
		}
		c.Write([]byte("never read"))
	}
}

// TestBrokenUpstreams: each failure is reported as what it is, or ends the answer as
// cut off, never as complete. Memory stays flat, and the next request is served.
func TestBrokenUpstreams(t *testing.T) {
	w := newWorld()
	w.name("api.example.com", publicAddr)
	w.serve(t, publicAddr+":80", func(c net.Conn) {
		defer c.Close()
		in := bufio.NewReader(c)
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		name := r.URL.Query().Get("do")
		if name == "" {
			say("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine")(c)
			return
		}
		x := brokenUpstreams[name]
		x.do(c)
		if !x.close {
			// A reset may overtake the answer.
			c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			_, _ = io.Copy(io.Discard, in)
			reset(c)
		}
	})
	b := newBottle(t, w, routes(t, "api.example.com"))
	heap := watchHeap(t)
	for name, x := range brokenUpstreams {
		c := b.httpClient()
		res, err := c.Post("http://api.example.com/?do="+strings.ReplaceAll(name, " ", "+"), "text/plain", strings.NewReader("x"))
		switch {
		case err != nil && x.cut: // before the head was flushed
		case err != nil:
			t.Errorf("%s: %v", name, err)
		default:
			body, rerr := io.ReadAll(res.Body)
			res.Body.Close()
			why := Reason(res.Header.Get("Carboy-Refused"))
			switch {
			case !x.cut && (res.StatusCode != 502 || why != reasonUpstream && why != reasonWebSocket):
				t.Errorf("%s: %d %s %q", name, res.StatusCode, why, body)
			case x.cut && rerr == nil && res.StatusCode != 502:
				t.Errorf("%s: %d %q looks whole", name, res.StatusCode, body)
			}
			if len(body) > 4096 {
				t.Errorf("%s: %d bytes", name, len(body))
			}
		}
		if status, _, body := get(t, c, "GET", "http://api.example.com/", nil); status != 200 || body != "fine" {
			t.Errorf("after %s: %d %q", name, status, body)
		}
		c.CloseIdleConnections()
	}
	heap.check(32 << 20)
}

// TestLongAnswers: bytes after a complete answer belong neither to it nor to an answer
// of another host at the same address. For the same host, HTTP/1.1 can't tell them
// from an answer to the next request.
func TestLongAnswers(t *testing.T) {
	w := newWorld()
	hosts := []string{"api.example.com", "other.example.com"}
	for _, h := range hosts {
		w.name(h, publicAddr)
	}
	w.serve(t, publicAddr+":80", func(c net.Conn) {
		defer c.Close()
		in := bufio.NewReader(c)
		for {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			poison := "poison of " + r.Host
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX: a\r\nSet-Cookie: b\r\n\r\n%sHTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(r.URL.Path), r.URL.Path, len(poison), poison)
		}
	})
	b := newBottle(t, w, routes(t, hosts...))
	c := b.httpClient()
	for i := range 20 {
		for _, h := range hosts {
			path := fmt.Sprintf("/%d", i)
			status, why, body := get(t, c, "GET", "http://"+h+path, nil)
			if body != path && body != "poison of "+h && (status != 502 || why != string(reasonUpstream)) {
				t.Fatalf("%s%s: %d %q", h, path, status, body)
			}
		}
	}
}

// TestSlowUpstream: a head that arrives byte by byte without end is a timeout for the
// bottle.
func TestSlowUpstream(t *testing.T) {
	w := newWorld()
	w.name("api.example.com", publicAddr)
	w.serve(t, publicAddr+":80", func(c net.Conn) {
		defer c.Close()
		http.ReadRequest(bufio.NewReader(c))
		io.WriteString(c, "HTTP/1.1 200 OK\r\nX: ")
		for {
			if _, err := io.WriteString(c, "x"); err != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	b := newBottle(t, w, routes(t, "api.example.com"), withLimits(Limits{Idle: 300 * time.Millisecond}))
	if status, _, body := get(t, b.httpClient(), "GET", "http://api.example.com/", nil); status == 200 {
		t.Errorf("%d %s", status, body)
	}
	b.waitReason(reasonLimitIdle)
}

// TestExpiredUpstream: the gateway checks the dates of certificates, which the client
// can't.
func TestExpiredUpstream(t *testing.T) {
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com}\n  - {host: old.example.com}\n", http.HandlerFunc(echo))
	then := func() time.Time { return time.Now().Add(-2 * 365 * 24 * time.Hour) }
	old, err := ca.New("the world, long ago", then)
	if err != nil {
		t.Fatal(err)
	}
	o.gw.roots.AddCert(old.Certificate())
	leaf, err := old.Leaf("old.example.com")
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(echo))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{*leaf}}
	s.Config.ErrorLog = quiet
	s.StartTLS()
	defer s.Close()
	o.world.name("old.example.com", "93.184.216.36")
	o.world.point("93.184.216.36:443", s.Listener.Addr().String())
	if status, why, body := get(t, o.client(true), "GET", "https://old.example.com/", nil); status != 502 || why != string(reasonUpstreamTLS) || !strings.Contains(body, "expired") {
		t.Errorf("%d %s %s", status, why, body)
	}
	if status, _, _ := get(t, o.client(true), "GET", "https://api.example.com/", nil); status != 200 {
		t.Errorf("the neighbour: %d", status)
	}
}

// h2Attack does one step of an attack on the other side of a connection.
type h2Attack func(f *http2.Framer, head func(stream uint32, end bool)) error

// h2Floods are attacks that either side can make.
var h2Floods = map[string]h2Attack{
	"settings": func(f *http2.Framer, _ func(uint32, bool)) error {
		return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 70_000})
	},
	"pings": func(f *http2.Framer, _ func(uint32, bool)) error { return f.WritePing(false, [8]byte{}) },
	"resets of nothing": func(f *http2.Framer, _ func(uint32, bool)) error {
		return f.WriteRSTStream(1, http2.ErrCodeCancel)
	},
	"unknown frames": func(f *http2.Framer, _ func(uint32, bool)) error {
		return f.WriteRawFrame(0xfe, 0, 0, make([]byte, 1000))
	},
	"empty data": func(f *http2.Framer, _ func(uint32, bool)) error { return f.WriteData(1, false, nil) },
}

// runFlood repeats an attack until the other side ends it or enough was sent.
func runFlood(c net.Conn, f *http2.Framer, once func() error) (ended bool) {
	go func() { // so that its answers don't block it
		for {
			if _, err := f.ReadFrame(); err != nil {
				return
			}
		}
	}()
	for range 20_000 {
		_ = c.SetWriteDeadline(time.Now().Add(2 * time.Second))
		if once() != nil {
			return true
		}
	}
	return false
}

// TestFloodsFromInside: a client's HTTP/2 floods use no memory, reach upstream only in
// small numbers, and leave others served.
func TestFloodsFromInside(t *testing.T) {
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com}\n", http.HandlerFunc(echo))
	dial := func() (net.Conn, *http2.Framer, func(uint32, bool)) {
		c := tls.Client(o.mustDial("api.example.com", 443), &tls.Config{ServerName: "api.example.com", RootCAs: o.inside, NextProtos: []string{"h2"}})
		io.WriteString(c, http2.ClientPreface)
		f := http2.NewFramer(c, bufio.NewReader(c))
		if err := f.WriteSettings(); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		enc := hpack.NewEncoder(&b)
		return c, f, func(id uint32, end bool) {
			b.Reset()
			for _, h := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "api.example.com"}, {":path", "/x"}} {
				_ = enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
			}
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b.Bytes(), EndHeaders: true, EndStream: end})
		}
	}
	heap := watchHeap(t)
	for name, once := range h2Floods {
		c, f, head := dial()
		head(1, false)
		runFlood(c, f, func() error { return once(f, head) })
		c.Close()
		if status, _, _ := get(t, o.client(true), "GET", "https://api.example.com/", nil); status != 200 {
			t.Errorf("after %s: %d", name, status)
		}
	}
	// Rapid reset: streams that are cancelled as soon as they begin.
	c, f, head := dial()
	id := uint32(1)
	if !runFlood(c, f, func() error {
		head(id, true)
		err := f.WriteRSTStream(id, http2.ErrCodeCancel)
		id += 2
		return err
	}) {
		t.Logf("rapid reset: %d streams were taken", id/2)
	}
	c.Close()
	// A head that never ends.
	c, f, head = dial()
	first := true
	if !runFlood(c, f, func() error {
		if first {
			first = false
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}, EndHeaders: false})
		}
		return f.WriteContinuation(1, false, bytes.Repeat([]byte{0, 1, 'x', 1, 'y'}, 2000))
	}) {
		t.Error("a head of 200 MB was taken")
	}
	c.Close()
	if status, _, _ := get(t, o.client(true), "GET", "https://api.example.com/", nil); status != 200 {
		t.Errorf("at the end: %d", status)
	}
	heap.check(128 << 20)
}

// TestFloodsFromUpstream: the same floods from a server, and a GOAWAY before each
// answer.
func TestFloodsFromUpstream(t *testing.T) {
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com}\n  - {host: evil.example.com}\n", http.HandlerFunc(echo))
	var now atomic.Pointer[string] // the flood
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: o.server.TLS.GetCertificate, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	defer func() { l.Close(); <-done }()
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.SetReadDeadline(time.Now().Add(testTimeout))
			_, _ = io.ReadFull(c, make([]byte, len(http2.ClientPreface)))
			f := http2.NewFramer(c, bufio.NewReader(c))
			_ = f.WriteSettings()
			for {
				fr, err := f.ReadFrame()
				if err != nil {
					break
				}
				if h, ok := fr.(*http2.HeadersFrame); ok {
					id := h.StreamID
					switch how := *now.Load(); how {
					case "goaway":
						_ = f.WriteGoAway(0, http2.ErrCodeNo, nil)
					case "reset":
						_ = f.WriteRSTStream(id, http2.ErrCodeInternal)
						continue
					case "endless head":
						first := true
						runFlood(c, f, func() error {
							if first {
								first = false
								return f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x88}, EndHeaders: false})
							}
							return f.WriteContinuation(id, false, bytes.Repeat([]byte{0, 1, 'x', 1, 'y'}, 2000))
						})
					case "upper case":
						_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x88, 0, 1, 'X', 1, 'y'}, EndHeaders: true, EndStream: true})
						continue
					case "line end in a value":
						_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x88, 0, 1, 'x', 4, 'y', '\r', '\n', 'z'}, EndHeaders: true, EndStream: true})
						continue
					default:
						once := h2Floods[how]
						runFlood(c, f, func() error { return once(f, nil) })
					}
					break
				}
			}
			_ = c.Close()
		}
	}()
	o.world.name("evil.example.com", "93.184.216.37")
	o.world.point("93.184.216.37:443", l.Addr().String())
	for _, how := range []string{"goaway", "reset", "endless head", "upper case", "line end in a value", "settings", "pings", "resets of nothing", "unknown frames", "empty data"} {
		now.Store(&how)
		heap := watchHeap(t)
		status, why, body := get(t, o.client(true), "POST", "https://evil.example.com/", strings.NewReader("x"))
		if status == 200 || status == 502 && why != string(reasonUpstream) {
			t.Errorf("%s: %d %s %.200s", how, status, why, body)
		}
		if status, _, _ := get(t, o.client(true), "GET", "https://api.example.com/", nil); status != 200 {
			t.Errorf("after %s: %d", how, status)
		}
		heap.check(128 << 20)
	}
}

// FuzzFramesFromInside: arbitrary HTTP/2 frames end at most their own connection, and
// upstream gets nothing that its route does not allow.
func FuzzFramesFromInside(f *testing.F) {
	f.Add([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 0, 5, 1, 5, 0, 0, 0, 1, 0x82, 0x87, 0x84, 0x41, 0x00})
	f.Add([]byte{0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82, 0, 0, 1, 9, 0, 0, 0, 0, 1, 0x87})
	f.Add([]byte{0, 0, 4, 8, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff})
	f.Add([]byte{0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	asked := make(chan string, 1000)
	o := newTLSWorld(f, "routes:\n  - {host: api.example.com, matches: [{paths: [{value: /v1}]}]}\n", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- r.Host + " " + r.URL.Path
	}))
	cl := o.client(true)
	cl.Transport.(*http.Transport).DisableKeepAlives = true // so that a test's connections end with it
	addr, err := o.resolve("api.example.com")
	if err != nil {
		f.Fatal(err)
	}
	at := netip.AddrPortFrom(addr, 443)
	cl.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) { return o.connect(at) }
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 64<<10 {
			return
		}
		o.t = t
		c, err := o.connect(at)
		if err != nil {
			t.Fatal(err)
		}
		tc := tls.Client(c, &tls.Config{ServerName: "api.example.com", RootCAs: o.inside, NextProtos: []string{"h2"}})
		if err := tc.Handshake(); err != nil {
			t.Fatal(err)
		}
		_, _ = tc.Write(append([]byte(http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"), in...))
		_ = tc.CloseWrite()
		_ = c.CloseWrite()
		_, _ = io.CopyN(io.Discard, tc, 64<<10)
		_ = c.Close()
		res, err := cl.Get("https://api.example.com/v1")
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("the neighbour: %v %v", res, err)
		}
		res.Body.Close()
		for len(asked) > 0 {
			if got := <-asked; !strings.HasPrefix(got, "api.example.com /v1") {
				t.Fatalf("upstream was asked %q", got)
			}
		}
	})
}
