package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gobwas/ws"
)

func egressOf(n int64) option { return func(c *Config) { c.Limits.Egress = n } }

// TestEgressBytes: all routes together never send more than the bottle's cap: with and
// without caps of their own, over every version of HTTP, in WebSocket messages and in
// tunnels. A reload of the routes forgets nothing.
func TestEgressBytes(t *testing.T) {
	const limit = 100_000
	const file = "routes:\n  - {host: api.example.com, matches: [{paths: [{value: /v1}]}], limits: {bytes_out: 60000}}\n  - {host: api.example.com}\n  - {host: db.example.com:5432/tcp}\n"
	var sent atomic.Int64
	o := newTLSWorld(t, file, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		buf := make([]byte, 4096)
		for {
			n, err := r.Body.Read(buf)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}), egressOf(limit))
	o.world.name("db.example.com", otherAddr)
	o.world.serve(t, otherAddr+":5432", func(c net.Conn) {
		defer c.Close()
		n, _ := io.Copy(io.Discard, c)
		sent.Add(n)
	})
	post := func(h2 bool, path string, n int64) (int, string, string) {
		return get(t, o.client(h2), "POST", "https://api.example.com"+path, io.LimitReader(zeros{}, n))
	}
	if status, why, body := get(t, o.client(false), "POST", "https://api.example.com/v2", strings.NewReader(strings.Repeat("x", limit))); status != 403 || why != string(reasonLimitEgress) || !strings.Contains(body, "limits.egress_bytes of 100000 bytes leaves 100000, and this request has 100") {
		t.Errorf("known to be too much: %d %s %s", status, why, body)
	}
	if sent.Load() != 0 {
		t.Error("it was sent")
	}
	// The route's own cap is reached first, and costs the bottle only what left.
	for range 8 {
		if status, why, _ := post(false, "/v1", 20_000); status != 200 && why != string(reasonLimitRouteOut) && status != 0 {
			t.Errorf("a route with a cap: %d %s", status, why)
		}
	}
	if used := o.gw.caps.all.used.Load(); used > 60_000 || used < 40_000 {
		t.Errorf("%d bytes are counted of a route with a cap of 60000", used)
	}
	var wg sync.WaitGroup
	for i := range 6 {
		c := o.client(i%2 == 0)
		wg.Go(func() {
			status, why, body := get(t, c, "POST", "https://api.example.com/v2", io.LimitReader(zeros{}, 20_000))
			if status != 200 && status != 0 && why != string(reasonLimitEgress) {
				t.Errorf("%d %s %s", status, why, body)
			}
		})
		wg.Go(func() {
			if c, err := o.dial("db.example.com", 5432); err == nil {
				io.CopyN(c, zeros{}, 20_000)
				c.CloseWrite()
				io.Copy(io.Discard, c)
			}
		})
	}
	wg.Wait()
	if n := sent.Load(); n > limit || n < limit*8/10 {
		t.Errorf("%d bytes left, with a cap of %d", n, limit)
	}
	if n := o.gw.caps.all.used.Load(); n != limit {
		t.Errorf("%d bytes are counted", n)
	}
	after := func(when string) {
		t.Helper()
		before := sent.Load()
		for _, h2 := range []bool{false, true} {
			if status, why, _ := post(h2, "/v2", 1); status != 403 || why != string(reasonLimitEgress) {
				t.Errorf("%s: %d %s", when, status, why)
			}
		}
		if c, err := o.dial("db.example.com", 5432); err == nil {
			io.CopyN(c, zeros{}, 10)
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Errorf("%s: a connection that passes unseen is open", when)
			}
		}
		if sent.Load() != before {
			t.Errorf("%s: %d bytes left", when, sent.Load()-before)
		}
	}
	after("after the cap")
	o.gw.SetRoutes(tableOf(t, "routes:\n  - {host: api.example.com, private: true}\n  - {host: db.example.com:5432/tcp}\n"), nil, nil)
	after("with other routes")
	if o.limitHits(reasonLimitEgress) == 0 {
		t.Error("no event")
	}
	recorded := false
	for _, r := range o.gw.Summary().Requests {
		recorded = recorded || r.Reason == reasonLimitEgress && !r.Allowed && r.Detail != ""
	}
	if !recorded {
		t.Errorf("no record: %+v", o.gw.Summary().Requests)
	}
	// DNS questions cost nothing: a query goes nowhere.
	if _, err := o.resolve("api.example.com"); err != nil {
		t.Errorf("a name, after the cap: %v", err)
	}
}

// TestEgressBytesOfMessages: the cap ends an open WebSocket, like a route's cap.
func TestEgressBytesOfMessages(t *testing.T) {
	got := make(chan int, 1)
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com}\n", wsServer(func(c net.Conn, in *bufio.Reader, r *http.Request) {
		io.WriteString(c, accept(r)+"\r\n")
		for n := 0; ; {
			h, p, err := readFrame(in)
			if err != nil || h.OpCode == ws.OpClose {
				got <- n
				return
			}
			n += len(p) + ws.HeaderSize(h)
		}
	}), egressOf(5000))
	c, res := o.webSocket(t, "/ws", "")
	if res.StatusCode != 101 {
		t.Fatal(res.StatusCode)
	}
	for range 6 {
		c.send(ws.NewBinaryFrame(make([]byte, 1000)))
	}
	if code, reason := c.closedWith(); code != 1008 || !strings.HasPrefix(reason, "carboy: limit-egress: the bottle's limits.egress_bytes of 5000 bytes leaves 0") {
		t.Errorf("%d %s", code, reason)
	}
	if n := <-got; n > 5000 || n < 4000 {
		t.Errorf("%d bytes left", n)
	}
}

// TestNoEgressBytes: the default is no cap, and incoming bytes do not count.
func TestNoEgressBytes(t *testing.T) {
	for _, limit := range []int64{0, 50_000} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			o := newTLSWorld(t, "routes:\n  - {host: api.example.com}\n", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				io.CopyN(rw, zeros{}, 200_000)
			}), egressOf(limit))
			size := int64(40_000)
			if limit == 0 {
				size = 400_000
			}
			if status, why, body := get(t, o.client(true), "POST", "https://api.example.com/", io.LimitReader(zeros{}, size)); status != 200 || len(body) != 200_000 {
				t.Errorf("%d %s, %d bytes came", status, why, len(body))
			}
		})
	}
}

// TestMeters: whichever of two caps is smaller, both count the same bytes.
func TestMeters(t *testing.T) {
	for _, x := range []struct{ a, b, want int64 }{{0, 0, 50}, {30, 0, 30}, {0, 30, 30}, {30, 20, 20}, {20, 30, 20}, {50, 50, 50}} {
		for _, whole := range []bool{false, true} {
			a, b := &routeMeter{}, &routeMeter{}
			a.limit.Store(x.a)
			b.limit.Store(x.b)
			ms, want := meters{a, b}, x.want
			var short *routeMeter
			if whole {
				if short = ms.takeAll(50); short != nil {
					want = 0
				}
				if fits := ms.fits(50) == nil; x.want < 50 && fits {
					t.Errorf("%+v: 50 bytes fit", x)
				}
			} else {
				var got int64
				if got, short = ms.take(50); got != want {
					t.Errorf("%+v: took %d", x, got)
				}
			}
			if a.used.Load() != want || b.used.Load() != want {
				t.Errorf("%+v, whole %v: %d and %d are counted, not %d", x, whole, a.used.Load(), b.used.Load(), want)
			}
			if (short != nil) != (x.want < 50) {
				t.Errorf("%+v: %v", x, short)
			}
		}
	}
}
