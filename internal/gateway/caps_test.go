package gateway

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gobwas/ws"

	"github.com/carboy/carboy/internal/policy"
	routefile "github.com/carboy/carboy/internal/routes"
)

func tableOf(t testing.TB, file string) *policy.Table {
	t.Helper()
	f, err := routefile.Parse("r.yaml", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	table, err := policy.Compile(f.Routes...)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// get makes one request and returns its status, the reason of a refusal, and the body.
func get(t testing.TB, c *http.Client, method, url string, body io.Reader) (int, string, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Do(req)
	if err != nil {
		return 0, "", err.Error()
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return res.StatusCode, res.Header.Get("Carboy-Refused"), fmt.Sprintf("%d bytes, then %v", len(b), err)
	}
	return res.StatusCode, res.Header.Get("Carboy-Refused"), string(b)
}

func (b *bottle) limitHits(r Reason) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.events {
		if h, ok := e.(LimitHit); ok && h.Limit == r && h.Name == "api.example.com" {
			n++
		}
	}
	return n
}

// TestRequestsPerMinute: the cap holds over all connections and versions of HTTP, for
// every minute, and after a reload of the routes.
func TestRequestsPerMinute(t *testing.T) {
	const file = "routes:\n  - {host: api.example.com, matches: [{paths: [{value: /v1}]}], limits: {requests_per_minute: %d}}\n  - {host: api.example.com}\n"
	var reached atomic.Int64
	o := newTLSWorld(t, fmt.Sprintf(file, 20), http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1") {
			reached.Add(1)
		}
	}))
	var now atomic.Int64
	now.Store(int64(90 * time.Second))
	o.gw.caps.now = func() time.Duration { return time.Duration(now.Load()) }
	// Parallel requests do not exceed it.
	var ok, refused atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		c := o.client(i%2 == 0)
		wg.Go(func() {
			for range 10 {
				status, why, body := get(t, c, "GET", "https://api.example.com/v1/x", nil)
				switch {
				case status == 200:
					ok.Add(1)
				case status == 429 && why == string(reasonLimitRouteRequests) && strings.Contains(body, "requests_per_minute of 20") && strings.Contains(body, "rule: r.yaml:2"):
					refused.Add(1)
				default:
					t.Errorf("%d %s %s", status, why, body)
				}
			}
		})
	}
	wg.Wait()
	if ok.Load() != 20 || refused.Load() != 60 || reached.Load() != 20 {
		t.Errorf("%d answered, %d refused, %d reached upstream", ok.Load(), refused.Load(), reached.Load())
	}
	if n := o.limitHits(reasonLimitRouteRequests); n != 6 { // the 1st, 2nd, 4th, … 32nd
		t.Errorf("%d events", n)
	}
	// The other route has no cap.
	if status, _, _ := get(t, o.client(true), "GET", "https://api.example.com/v2", nil); status != 200 {
		t.Errorf("the route beside it: %d", status)
	}
	ask := func(want int) {
		t.Helper()
		res, err := o.client(false).Get("https://api.example.com/v1/x")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want || want == 429 && res.Header.Get("Retry-After") == "" {
			t.Errorf("%d %v, want %d", res.StatusCode, res.Header, want)
		}
	}
	// Reloaded from another place in the file, the usage is kept; a larger cap adds to
	// it.
	o.gw.SetRoutes(tableOf(t, "log: 1\n\n"+fmt.Sprintf(file, 20)), nil, nil)
	ask(429)
	o.gw.SetRoutes(tableOf(t, fmt.Sprintf(file, 22)), nil, nil)
	ask(200)
	ask(200)
	ask(429)
	now.Add(int64(60 * time.Second))
	ask(429)
	now.Add(int64(time.Second))
	ask(200)
	// Other conditions make another route.
	o.gw.SetRoutes(tableOf(t, strings.Replace(fmt.Sprintf(file, 1), "/v1", "/v1/x", 1)), nil, nil)
	ask(200)
	ask(429)
}

// TestRateWindow: at any pace no 60 seconds exceed the cap, and the reported waiting
// time is long enough.
func TestRateWindow(t *testing.T) {
	for _, step := range []time.Duration{time.Millisecond, 400 * time.Millisecond, 1500 * time.Millisecond, 7 * time.Second, 2 * time.Minute} {
		var w rateWindow
		var admitted []time.Duration
		const limit = 10
		for now := 55 * time.Second; now < 20*time.Minute && len(admitted) < 500; now += step {
			retry, ok := w.admit(now, limit)
			if ok {
				admitted = append(admitted, now)
				if n := len(admitted); n > limit && now-admitted[n-1-limit] < time.Minute {
					t.Fatalf("step %v: %d requests in %v", step, limit+1, now-admitted[n-1-limit])
				}
				continue
			}
			if retry < 1 || retry > 61 {
				t.Fatalf("step %v: retry after %d", step, retry)
			}
			w2 := w.copy()
			if _, ok := w2.admit(now+time.Duration(retry)*time.Second, limit); !ok {
				t.Fatalf("step %v at %v: not admitted after %d s", step, now, retry)
			}
			if step < time.Second {
				now += 100 * time.Millisecond
			}
		}
		if len(admitted) < 10 {
			t.Errorf("step %v: %d admitted", step, len(admitted))
		}
	}
}

func (w *rateWindow) copy() *rateWindow { return &rateWindow{counts: w.counts, last: w.last} }

// TestRouteBytes: both directions are cut at the cap, over all connections together. A
// request that is known to be too long does not begin.
func TestRouteBytes(t *testing.T) {
	const file = "routes:\n  - {host: api.example.com, matches: [{paths: [{value: /v1}]}], limits: {bytes_out: 100000, bytes_in: 200000}}\n  - {host: api.example.com}\n"
	var sent atomic.Int64 // bytes of bodies that reached upstream
	upstream := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		buf := make([]byte, 4096)
		for {
			n, err := r.Body.Read(buf)
			sent.Add(int64(n))
			if err != nil {
				break
			}
		}
		switch {
		case strings.HasSuffix(r.URL.Path, "/known"):
			rw.Header().Set("Content-Length", "300000")
			io.CopyN(rw, zeros{}, 300000)
		case strings.HasSuffix(r.URL.Path, "/stream"):
			rw.WriteHeader(200)
			_ = http.NewResponseController(rw).Flush()
			for range 50 {
				if _, err := io.CopyN(rw, zeros{}, 10000); err != nil {
					return
				}
				_ = http.NewResponseController(rw).Flush()
			}
		case strings.HasSuffix(r.URL.Path, "/head"):
			rw.Header().Set("Content-Length", "300000")
		}
	})
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("out, http2 ", h2), func(t *testing.T) {
			sent.Store(0)
			o := newTLSWorld(t, file, upstream)
			url := "https://api.example.com/v1/x"
			if status, why, body := get(t, o.client(h2), "POST", url, strings.NewReader(strings.Repeat("x", 100_001))); status != 403 || why != string(reasonLimitRouteOut) || !strings.Contains(body, "limits.bytes_out of 100000 bytes leaves 100000, and this request has 100") {
				t.Errorf("known to be too much: %d %s %s", status, why, body)
			}
			if sent.Load() != 0 || len(o.world.dials()) != 0 {
				t.Error("it was sent")
			}
			if status, _, _ := get(t, o.client(h2), "POST", url, strings.NewReader(strings.Repeat("x", 1000))); status != 200 || sent.Load() != 1000 {
				t.Errorf("a part of it: %d", status)
			}
			if status, _, _ := get(t, o.client(h2), "POST", url, io.LimitReader(zeros{}, 60_000)); status != 200 {
				t.Errorf("what fits: %d", status)
			}
			var wg sync.WaitGroup
			for range 6 {
				wg.Go(func() {
					status, why, body := get(t, o.client(h2), "POST", url, io.LimitReader(zeros{}, 60_000))
					if status == 200 || status == 403 && why == string(reasonLimitRouteOut) || status == 0 {
						return
					}
					t.Errorf("%d %s %s", status, why, body)
				})
			}
			wg.Wait()
			// Of a request that is cut, upstream may have read less than was sent.
			if n := sent.Load(); n > 100_000 || n < 61_000 {
				t.Errorf("%d bytes of bodies left", n)
			}
			if got := o.gw.caps.by[o.gw.table().Routes()[0].Identity()].out.used.Load(); got != 100_000 {
				t.Errorf("%d bytes counted", got)
			}
			if status, why, _ := get(t, o.client(h2), "GET", url, nil); status != 403 || why != string(reasonLimitRouteOut) {
				t.Errorf("after the cap: %d %s", status, why)
			}
			if status, _, _ := get(t, o.client(h2), "POST", "https://api.example.com/v2", strings.NewReader(strings.Repeat("x", 200_000))); status != 200 {
				t.Errorf("the route beside it: %d", status)
			}
			o.gw.SetRoutes(tableOf(t, "\n"+file), nil, nil)
			if status, why, _ := get(t, o.client(h2), "GET", url, nil); status != 403 || why != string(reasonLimitRouteOut) {
				t.Errorf("after the routes were read again: %d %s", status, why)
			}
			if o.limitHits(reasonLimitRouteOut) == 0 {
				t.Error("no event")
			}
			found := false
			for _, r := range o.gw.Summary().Requests {
				found = found || r.Reason == reasonLimitRouteOut && !r.Allowed && r.Detail != ""
			}
			if !found {
				t.Errorf("no record: %+v", o.gw.Summary().Requests)
			}
		})
		t.Run(fmt.Sprint("in, http2 ", h2), func(t *testing.T) {
			o := newTLSWorld(t, file, upstream)
			url := "https://api.example.com/v1"
			if status, why, _ := get(t, o.client(h2), "HEAD", url+"/head", nil); status != 200 {
				t.Errorf("a head: %d %s", status, why)
			}
			if status, why, body := get(t, o.client(h2), "GET", url+"/known", nil); status != 403 || why != string(reasonLimitRouteIn) || !strings.Contains(body, "limits.bytes_in") {
				t.Errorf("known to be too much: %d %s %s", status, why, body)
			}
			var wg sync.WaitGroup
			var came atomic.Int64
			for range 3 {
				c := o.client(h2)
				wg.Go(func() {
					res, err := c.Get(url + "/stream")
					if errors.Is(err, io.EOF) {
						return // cut before its head had left
					}
					if err != nil {
						t.Error(err)
						return
					}
					defer res.Body.Close()
					n, err := io.Copy(io.Discard, res.Body)
					if res.StatusCode == 200 {
						came.Add(n)
					}
					if res.StatusCode == 200 && err == nil {
						t.Errorf("a cut answer of %d bytes looks whole", n)
					}
				})
			}
			wg.Wait()
			if n := came.Load(); n > 200_000 || n < 150_000 {
				t.Errorf("%d bytes came", n)
			}
			if got := o.gw.caps.by[o.gw.table().Routes()[0].Identity()].in.used.Load(); got != 200_000 {
				t.Errorf("%d bytes counted", got)
			}
			if status, why, _ := get(t, o.client(h2), "GET", url, nil); status != 403 || why != string(reasonLimitRouteIn) {
				t.Errorf("after the cap: %d %s", status, why)
			}
		})
	}
}

// TestRouteBytesInHeads: request targets and headers count too.
func TestRouteBytesInHeads(t *testing.T) {
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com, limits: {bytes_out: 2000}}\n", http.HandlerFunc(echo))
	long := "https://api.example.com/?" + strings.Repeat("x", 900)
	for i, want := range []int{200, 200, 403} {
		if status, why, _ := get(t, o.client(false), "GET", long, nil); status != want || want == 403 && why != string(reasonLimitRouteOut) {
			t.Errorf("request %d: %d %s", i, status, why)
		}
	}
}

func TestRouteBytesInAnswersHeads(t *testing.T) {
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com, limits: {bytes_in: 1000}}\n", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/in" {
			rw.Header().Set("X", strings.Repeat("x", 1000))
		}
	}))
	if status, why, _ := get(t, o.client(false), "GET", "https://api.example.com/in", nil); status != 403 || why != string(reasonLimitRouteIn) {
		t.Errorf("an answer's head: %d %s", status, why)
	}
	if status, _, _ := get(t, o.client(false), "GET", "https://api.example.com/", nil); status != 200 {
		t.Errorf("a smaller one: %d", status)
	}
}

// TestRouteBytesUnseen: in a tunnel all bytes count.
func TestRouteBytesUnseen(t *testing.T) {
	w := newWorld()
	w.name("db.example.com", publicAddr)
	var got atomic.Int64
	counts := make(chan int64, 10)
	w.serve(t, publicAddr+":5432", func(c net.Conn) {
		defer c.Close()
		in := bufio.NewReader(c)
		if b, err := in.Peek(1); err == nil && b[0] == 'd' {
			io.CopyN(c, zeros{}, 50_000)
			return
		}
		n, _ := io.Copy(io.Discard, in)
		got.Add(n)
		counts <- n
	})
	b := newBottle(t, w, tableOf(t, "routes:\n  - {host: db.example.com:5432/tcp, limits: {bytes_out: 10000, bytes_in: 20000}}\n"))
	c := b.mustDial("db.example.com", 5432)
	c.Write([]byte("down"))
	n, err := io.Copy(io.Discard, c)
	if n > 20_000 || err == nil {
		t.Errorf("%d bytes came, %v", n, err)
	}
	b.waitReason(reasonLimitRouteIn)
	if c, err := b.dial("db.example.com", 5432); err == nil {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("open after the cap")
		}
	}
	b.gw.SetRoutes(tableOf(t, "routes:\n  - {host: db.example.com:5432/tcp, limits: {bytes_out: 10000}}\n"), nil, nil)
	var wg sync.WaitGroup
	for range 3 {
		c := b.mustDial("db.example.com", 5432)
		wg.Go(func() { io.CopyN(c, zeros{}, 6000); c.CloseWrite() })
	}
	wg.Wait()
	b.waitReason(reasonLimitRouteOut)
	for range 3 {
		select {
		case <-counts:
		case <-time.After(time.Second): // refused before it was dialled
		}
	}
	if n := got.Load(); n > 10_000-4 || n < 6000 {
		t.Errorf("%d bytes left", n)
	}
}

func TestRouteBytesOfTLS(t *testing.T) {
	counts := make(chan int64, 1)
	o := newTLSWorld(t, "routes:\n  - {host: opaque.example.com, inspect: false, limits: {bytes_out: 50000}}\n", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		counts <- n
	}))
	tc := tls.Client(o.mustDial("opaque.example.com", 443), &tls.Config{ServerName: "opaque.example.com", InsecureSkipVerify: true})
	fmt.Fprintf(tc, "POST / HTTP/1.1\r\nHost: opaque.example.com\r\nContent-Length: 100000\r\n\r\n")
	io.CopyN(tc, zeros{}, 100_000)
	if n := <-counts; n > 50_000 || n < 20_000 {
		t.Errorf("%d bytes left by tls", n)
	}
	o.waitConn("tls", func(c ConnSummary) bool {
		return c.Protocol == "tls" && c.Reason == reasonLimitRouteOut && c.Detail != ""
	})
}

// TestRouteBytesOfMessages: WebSocket frames count, and the first one beyond the cap
// is cut.
func TestRouteBytesOfMessages(t *testing.T) {
	counts := make(chan string, 10)
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com, limits: {bytes_out: 5000, bytes_in: 50000}}\n", wsServer(func(c net.Conn, in *bufio.Reader, r *http.Request) {
		io.WriteString(c, accept(r)+"\r\n")
		n := 0
		for {
			h, p, err := readFrame(in)
			if err != nil || h.OpCode == ws.OpClose {
				code, reason := ws.ParseCloseFrameData(p)
				counts <- fmt.Sprint(code, reason)
				break
			}
			n += len(p) + ws.HeaderSize(h)
		}
		counts <- fmt.Sprint(n > 4000 && n <= 5000)
	}))
	c, res := o.webSocket(t, "/ws", "")
	if res.StatusCode != 101 {
		t.Fatal(res.StatusCode)
	}
	for range 6 {
		c.send(ws.NewBinaryFrame(make([]byte, 1000)))
	}
	ws.WriteFrame(c, ws.MaskFrame(ws.NewCloseFrame(nil)))
	code, reason := c.closedWith()
	c.Close()
	if code != 1008 || !strings.HasPrefix(reason, "carboy: limit-route-bytes-out: the route's limits.bytes_out of 5000 bytes leaves 0") {
		t.Errorf("%d %s", code, reason)
	}
	if got := <-counts; got != fmt.Sprint(code, reason) {
		t.Errorf("upstream was told %s", got)
	}
	if got := <-counts; got != "true" {
		t.Error("too much or too little left")
	}
	if o.limitHits(reasonLimitRouteOut) != 1 {
		t.Error("no event")
	}
}

// TestRouteBytesInEarlyAnswers: informational answers count; an upstream may send
// many.
func TestRouteBytesInEarlyAnswers(t *testing.T) {
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com, limits: {bytes_in: 10000}}\n", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		n := 5
		if r.URL.Path == "/many" {
			n = 1000
		}
		rw.Header().Set("Link", strings.Repeat("x", 500))
		for range n {
			if r.Context().Err() != nil {
				return
			}
			rw.WriteHeader(http.StatusEarlyHints)
		}
		rw.Header().Del("Link")
	}))
	if status, _, _ := get(t, o.client(false), "GET", "https://api.example.com/few", nil); status != 200 {
		t.Errorf("a few: %d", status)
	}
	for _, h2 := range []bool{false, true} {
		o.only1.Store(!h2)
		o.gw.rules.Load().out.closeIdle()
		req, _ := http.NewRequest("GET", "https://api.example.com/many", nil)
		entered := 0
		req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
			entered += len(h.Get("Link"))
			return nil
		}}))
		res, err := o.client(h2).Do(req)
		if err == nil {
			res.Body.Close()
		}
		if entered > 10000 || err == nil && (res.StatusCode != 403 || res.Header.Get("Carboy-Refused") != string(reasonLimitRouteIn)) {
			t.Errorf("http2 %v: %d bytes entered; %v %v", h2, entered, res, err)
		}
	}
}
