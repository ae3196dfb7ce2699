package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"os"
	"strings"
	"testing"
	"time"
)

// eachPair runs a test for each pair of HTTP versions inside and upstream.
func eachPair(t *testing.T, h http.HandlerFunc, test func(t *testing.T, o *tlsWorld, c *http.Client), opts ...option) {
	for _, up2 := range []bool{false, true} {
		for _, in2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("inside 2 %v, upstream 2 %v", in2, up2), func(t *testing.T) {
				o := newTLSWorld(t, "routes:\n  - {host: api.example.com}\n", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					if (r.ProtoMajor == 2) != up2 {
						t.Errorf("upstream speaks %s", r.Proto)
					}
					h(rw, r)
				}), opts...)
				o.only1.Store(!up2)
				test(t, o, o.client(in2))
			})
		}
	}
}

// TestServerSentEvents: each event arrives before the next one is sent.
func TestServerSentEvents(t *testing.T) {
	next := make(chan struct{})
	eachPair(t, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		for i := range 20 {
			fmt.Fprintf(rw, "event: tick\ndata: {\"n\": %d}\n\n", i)
			_ = http.NewResponseController(rw).Flush()
			select {
			case <-next:
			case <-r.Context().Done():
				return
			}
		}
	}, func(t *testing.T, o *tlsWorld, c *http.Client) {
		res, err := c.Get("https://api.example.com/events")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		in := bufio.NewReader(res.Body)
		for i := range 20 {
			var got string
			for range 3 {
				line, err := in.ReadString('\n')
				if err != nil {
					t.Fatalf("event %d: %v", i, err)
				}
				got += line
			}
			if got != fmt.Sprintf("event: tick\ndata: {\"n\": %d}\n\n", i) {
				t.Fatalf("event %d: %q", i, got)
			}
			next <- struct{}{}
		}
		if rest, err := io.ReadAll(in); err != nil || len(rest) != 0 {
			t.Errorf("%q, %v", rest, err)
		}
	})
}

// grpcFrame frames a message for gRPC.
func grpcFrame(s string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(s))), s...)
}

func readGRPC(r io.Reader) (string, error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(r, head); err != nil {
		return "", err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > 1<<20 {
		return "", fmt.Errorf("a message of %d bytes", n)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return string(b), err
}

// TestGRPC: what gRPC needs of HTTP/2 works: te: trailers, streams in both directions
// at once, and the status in trailers, also without a body.
func TestGRPC(t *testing.T) {
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com}\n", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 || r.Header.Get("Te") != "trailers" || r.Header.Get("Content-Type") != "application/grpc" {
			t.Errorf("upstream got %s %v", r.Proto, r.Header)
		}
		rw.Header().Set("Content-Type", "application/grpc")
		if r.URL.Path == "/svc/Missing" {
			rw.Header().Set("Grpc-Status", "12")
			rw.Header().Set("Grpc-Message", "no such method")
			return
		}
		rw.Header().Set("Trailer", "Grpc-Status")
		for n := 0; ; n++ {
			m, err := readGRPC(r.Body)
			if err != nil {
				rw.Header().Set("Grpc-Status", fmt.Sprint(n%2))
				rw.Header().Set(http.TrailerPrefix+"Grpc-Message", "said late")
				return
			}
			rw.Write(grpcFrame("re: " + m))
			_ = http.NewResponseController(rw).Flush()
		}
	}), watching)
	call := func(path string, body io.Reader) *http.Response {
		t.Helper()
		req, _ := http.NewRequest("POST", "https://api.example.com"+path, body)
		req.Header.Set("Content-Type", "application/grpc")
		req.Header.Set("Te", "trailers")
		req.Header.Set("Grpc-Encoding", "gzip")
		res, err := o.client(true).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { res.Body.Close() })
		return res
	}
	// Unary.
	res := call("/svc/Do", bytes.NewReader(grpcFrame("one")))
	m, err := readGRPC(res.Body)
	rest, _ := io.ReadAll(res.Body)
	if m != "re: one" || err != nil || len(rest) != 0 || res.Trailer.Get("Grpc-Status") != "1" || res.Trailer.Get("Grpc-Message") != "said late" {
		t.Errorf("unary: %q %v %v", m, err, res.Trailer)
	}
	// Both directions: each answer before the next question.
	pr, pw := io.Pipe()
	go pw.Write(grpcFrame("0"))
	res = call("/svc/Stream", pr)
	for i := range 20 {
		if m, err := readGRPC(res.Body); m != fmt.Sprintf("re: %d", i) {
			t.Fatalf("message %d: %q %v", i, m, err)
		}
		if i < 19 {
			pw.Write(grpcFrame(fmt.Sprint(i + 1)))
		}
	}
	pw.Close()
	if rest, err := io.ReadAll(res.Body); len(rest) != 0 || err != nil || res.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("stream: %q %v %v", rest, err, res.Trailer)
	}
	// A message with a secret, and a malformed one.
	packed := func(s string) string { b := grpcFrame(s); b[0] = 1; return string(b) }
	for body, why := range map[string]Reason{
		string(grpcFrame("key: " + watchedValue)): reasonSecret, packed(string(gzipped("key: " + watchedValue))): reasonSecret,
		packed(string(gzipped("key: " + harmlessValue))): "", "zzzz no gRPC": reasonScan, packed("no gzip"): reasonScan,
	} {
		if res := call("/svc/Do", struct{ io.Reader }{strings.NewReader(body)}); why == "" && res.StatusCode != 200 || res.StatusCode == 403 && res.Header.Get("Carboy-Refused") != string(why) {
			t.Errorf("%q: %d %v", why, res.StatusCode, res.Header)
		} else if m, _ := readGRPC(res.Body); (m != "") != (why == "") && res.StatusCode != 403 {
			// It may have answered that nothing came before it was told.
			t.Errorf("%q: upstream got a message: %q", why, m)
		}
	}
	// Only a status.
	res = call("/svc/Missing", bytes.NewReader(grpcFrame("x")))
	if b, err := io.ReadAll(res.Body); len(b) != 0 || err != nil || res.Header.Get("Grpc-Status") != "12" {
		t.Errorf("status alone: %q %v %v", b, err, res.Header)
	}
}

// TestFlatMemory: a gigabyte in each direction is never buffered.
func TestFlatMemory(t *testing.T) {
	size := int64(1 << 30)
	if testing.Short() || os.Getenv(carriedBy) != "" {
		size = 64 << 20
	}
	eachPair(t, func(rw http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		rw.Header().Set("Content-Type", "application/octet-stream")
		if n > 0 {
			fmt.Fprint(rw, n)
			return
		}
		_, _ = io.CopyN(rw, zeros{}, size/4)
	}, func(t *testing.T, o *tlsWorld, c *http.Client) {
		w := watchHeap(t)
		res, err := c.Post("https://api.example.com/up", "application/octet-stream", struct{ io.Reader }{io.LimitReader(zeros{}, size/4)})
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if string(b) != fmt.Sprint(size/4) {
			t.Errorf("upstream got %s", b)
		}
		if res, err = c.Get("https://api.example.com/down"); err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if n != size/4 || err != nil {
			t.Errorf("%d bytes came, %v", n, err)
		}
		w.check(32 << 20)
	})
}

// TestResumed: a download that broke off can be resumed.
func TestResumed(t *testing.T) {
	data := make([]byte, 3<<20)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	eachPair(t, func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Range") == "" {
			rw.Header().Set("Accept-Ranges", "bytes")
			rw.Header().Set("Content-Length", fmt.Sprint(len(data)))
			_, _ = rw.Write(data[:1<<20])
			_ = http.NewResponseController(rw).Flush()
			panic(http.ErrAbortHandler)
		}
		rw.Header().Set("Etag", `"v1"`)
		http.ServeContent(rw, r, "x.bin", time.Time{}, bytes.NewReader(data))
	}, func(t *testing.T, o *tlsWorld, c *http.Client) {
		res, err := c.Get("https://api.example.com/x.bin")
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err == nil || len(got) >= len(data) {
			t.Fatalf("%d bytes came, %v", len(got), err)
		}
		req, _ := http.NewRequest("GET", "https://api.example.com/x.bin", nil)
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", len(got)))
		req.Header.Set("If-Range", `"v1"`)
		if res, err = c.Do(req); err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 206 || err != nil || sha256.Sum256(append(got, rest...)) != sha256.Sum256(data) {
			t.Errorf("%d %v, %d and %d bytes", res.StatusCode, err, len(got), len(rest))
		}
	})
}

// TestContinue: a client that sent Expect: 100-continue gets upstream's decision.
func TestContinue(t *testing.T) {
	const size = 200_000 // more than is buffered
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com}\n", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			rw.Header().Set("Connection", "close")
			http.Error(rw, "too large", http.StatusRequestEntityTooLarge)
			return
		}
		echo(rw, r)
	}))
	for path, want := range map[string]string{"/yes": "100 200", "/no": "413"} {
		c := o.mustDial("api.example.com", 80)
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", path, size)
		in := bufio.NewReader(c)
		var got []string
		for {
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			// A slow upstream is told to go on by the gateway as well, so a second 100
			// may follow: clients take any number (RFC 9110 section 15.2).
			if again := res.StatusCode == 100 && len(got) > 0; again {
				continue
			}
			got = append(got, fmt.Sprint(res.StatusCode))
			if res.StatusCode != 100 {
				body, _ := io.ReadAll(res.Body)
				if path == "/yes" && !strings.HasSuffix(string(body), fmt.Sprint(" ", size)) {
					t.Errorf("upstream got %s", body)
				}
				break
			}
			io.CopyN(c, zeros{}, size)
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: %s, want %s", path, s, want)
		}
		c.Close()
	}
}

// TestHeads: answers without a body keep their Content-Length, and early hints arrive
// early.
func TestHeads(t *testing.T) {
	eachPair(t, func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/head":
			rw.Header().Set("Content-Length", "12345")
		case "/304":
			rw.Header().Set("Etag", `"x"`)
			rw.WriteHeader(304)
		case "/204":
			rw.WriteHeader(204)
		case "/hints":
			rw.Header().Set("Link", "</a.css>; rel=preload")
			rw.WriteHeader(103)
			fmt.Fprint(rw, "page")
		case "/trailers":
			_, _ = io.Copy(io.Discard, r.Body)
			rw.Header().Set("Trailer", "X-Sum, X-None")
			fmt.Fprint(rw, "body")
			rw.Header().Set("X-Sum", "7 "+r.Trailer.Get("X-End"))
			rw.Header().Set(http.TrailerPrefix+"X-Late", "not announced")
		}
	}, func(t *testing.T, o *tlsWorld, c *http.Client) {
		do := func(method, path string, body io.Reader) (*http.Response, string) {
			t.Helper()
			req, _ := http.NewRequest(method, "https://api.example.com"+path, body)
			if body != nil {
				req.Trailer = http.Header{"X-End": {"done"}}
			}
			res, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			return res, string(b)
		}
		if res, b := do("HEAD", "/head", nil); res.StatusCode != 200 || res.ContentLength != 12345 || b != "" {
			t.Errorf("head: %d %d %q", res.StatusCode, res.ContentLength, b)
		}
		if res, b := do("GET", "/304", nil); res.StatusCode != 304 || res.Header.Get("Etag") != `"x"` || b != "" {
			t.Errorf("not modified: %d %q", res.StatusCode, b)
		}
		if res, b := do("DELETE", "/204", nil); res.StatusCode != 204 || b != "" {
			t.Errorf("no content: %d %q", res.StatusCode, b)
		}
		if res, b := do("POST", "/trailers", struct{ io.Reader }{strings.NewReader("x")}); b != "body" || res.Trailer.Get("X-Sum") != "7 done" || res.Trailer.Get("X-Late") != "not announced" {
			t.Errorf("trailers: %q %v", b, res.Trailer)
		}
		var hints []string
		ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			hints = append(hints, fmt.Sprint(code, h.Get("Link")))
			return nil
		}})
		req, _ := http.NewRequestWithContext(ctx, "GET", "https://api.example.com/hints", nil)
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if len(hints) != 1 || hints[0] != "103</a.css>; rel=preload" || string(b) != "page" {
			t.Errorf("hints: %q %q", hints, b)
		}
	})
}

// TestSlowStreams: a stream with occasional data stays open. A silent one ends, and the
// record says why.
func TestSlowStreams(t *testing.T) {
	eachPair(t, func(rw http.ResponseWriter, r *http.Request) {
		for i := range 8 {
			fmt.Fprintf(rw, "tick %d\n", i)
			_ = http.NewResponseController(rw).Flush()
			select {
			case <-time.After(100 * time.Millisecond):
			case <-r.Context().Done():
				return
			}
		}
		<-r.Context().Done()
	}, func(t *testing.T, o *tlsWorld, c *http.Client) {
		res, err := c.Get("https://api.example.com/ticks")
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err == nil || !strings.HasSuffix(string(b), "tick 7\n") {
			t.Errorf("%q, %v", b, err)
		}
		o.waitReason(reasonLimitIdle)
		o.waitLimit(reasonLimitIdle, 1)
	}, withLimits(Limits{Idle: 700 * time.Millisecond}))
}

// TestOldClients: HTTP/1.0, connections kept after a refusal, and half-closed clients
// work.
func TestOldClients(t *testing.T) {
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com, matches: [{paths: [{value: /v1}]}]}\n", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(rw).Flush() // of unknown length
		echo(rw, r)
	}))
	c := o.mustDial("api.example.com", 80)
	fmt.Fprintf(c, "GET /v1 HTTP/1.0\r\nHost: api.example.com\r\n\r\n")
	b, err := io.ReadAll(c)
	if err != nil || !bytes.HasPrefix(b, []byte("HTTP/1.0 200")) || bytes.Contains(b, []byte("chunked")) || !bytes.HasSuffix(b, []byte("\r\n\r\nGET api.example.com /v1 0")) {
		t.Errorf("1.0: %q, %v", b, err)
	}
	for _, h2 := range []bool{false, true} {
		cl := o.client(h2)
		for i, path := range []string{"/v1", "/v2", "/v1", "/v2", "/v1"} {
			if status, _, _ := get(t, cl, "GET", "https://api.example.com"+path, nil); status != map[string]int{"/v1": 200, "/v2": 403}[path] {
				t.Errorf("request %d: %d", i, status)
			}
		}
	}
}

// TestRedirects: the client follows redirects by requests that are judged.
func TestRedirects(t *testing.T) {
	targets := []string{"http://10.0.0.1/", "http://169.254.169.254/latest/meta-data/", "http://127.0.0.1:1/", "http://inner.corp.example/", "https://wrong.example.com/", "http://api.example.com:8080/"}
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com}\n  - {host: inner.corp.example}\n", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if to := r.URL.Query().Get("to"); to != "" {
			http.Redirect(rw, r, to, http.StatusTemporaryRedirect)
			return
		}
		fmt.Fprint(rw, "home")
	}))
	o.world.name("inner.corp.example", "10.0.0.1")
	o.world.point("10.0.0.1:80", o.world.servers[ap(publicAddr+":80")])
	for _, to := range targets {
		c := o.client(false)
		c.Timeout = 5 * time.Second // packets to a loopback address are dropped, not refused
		c.Transport.(*http.Transport).DialContext = func(_ context.Context, _, addr string) (net.Conn, error) {
			host, port, _ := net.SplitHostPort(addr)
			var p uint16
			fmt.Sscan(port, &p)
			if a, err := parseAddrPort(host, p); err == nil {
				return o.connect(a)
			}
			return o.dial(host, p)
		}
		if status, why, body := get(t, c, "GET", "https://api.example.com/?to="+to, nil); status == 200 || status != 0 && why != string(reasonNotPublic) {
			t.Errorf("%s: %d %s %s", to, status, why, body)
		}
	}
	for _, d := range o.world.dials() {
		if d.Addr().String() != publicAddr {
			t.Errorf("dialled %v", d)
		}
	}
	if _, _, body := get(t, o.client(false), "GET", "https://api.example.com/?to=http://api.example.com/", nil); body != "home" {
		t.Errorf("the neighbour: %s", body)
	}
}

func parseAddrPort(host string, port uint16) (netip.AddrPort, error) {
	a, err := netip.ParseAddr(host)
	return netip.AddrPortFrom(a, port), err
}
