package gateway

import (
	"io"
	"net"
	"testing"
	"time"
)

func TestConnectionLimit(t *testing.T) {
	w := newWorld()
	w.name("api.example.com", publicAddr)
	w.serve(t, publicAddr+":7000", echoServer)
	b := newBottle(t, w, routes(t, "api.example.com:7000 tcp"), withLimits(Limits{Conns: 4}))
	var open []conn
	for range 4 {
		c := b.mustDial("api.example.com", 7000)
		mustEcho(t, c)
		open = append(open, c)
	}
	for range 20 {
		if c, err := b.dial("api.example.com", 7000); err == nil {
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("a connection beyond the limit works")
			}
		}
	}
	b.waitLimit(reasonLimitConns, 20)
	mustEcho(t, open[0])
	open[0].Close()
	b.waitConn("closed", func(c ConnSummary) bool { return c.Allowed && c.Count == 1 })
	mustEcho(t, b.mustDial("api.example.com", 7000))
}

func TestByteLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		limits Limits
		reason Reason
		echo   bool
	}{
		"up":   {Limits{BytesUp: 100 << 10}, reasonLimitUp, false},
		"down": {Limits{BytesDown: 100 << 10}, reasonLimitDown, true},
		"host": {Limits{HostBytes: 100 << 10}, reasonLimitHost, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.name("api.example.com", publicAddr)
			w.serve(t, publicAddr+":7000", func(c net.Conn) {
				defer c.Close()
				if tt.echo {
					echoServer(c)
				} else {
					io.Copy(io.Discard, c)
				}
			})
			b := newBottle(t, w, routes(t, "api.example.com:7000 tcp"), withLimits(tt.limits))
			c := b.mustDial("api.example.com", 7000)
			go io.Copy(io.Discard, c)
			chunk := make([]byte, 10<<10)
			var err error
			for range 10000 {
				if _, err = c.Write(chunk); err != nil {
					break
				}
			}
			if err == nil {
				t.Error("the limit does not end the connection")
			}
			b.waitLimit(tt.reason, 1)
			b.waitReason(tt.reason)
			if s := b.gw.Summary(); s.BytesUp > 300<<10 && !tt.echo {
				t.Errorf("%d bytes left", s.BytesUp)
			}
		})
	}
}

func TestIdleAndLifetime(t *testing.T) {
	for reason, limits := range map[Reason]Limits{
		reasonLimitIdle:     {Idle: 100 * time.Millisecond},
		reasonLimitLifetime: {Lifetime: 100 * time.Millisecond},
	} {
		t.Run(string(reason), func(t *testing.T) {
			w := newWorld()
			w.name("api.example.com", publicAddr)
			w.serve(t, publicAddr+":7000", echoServer)
			b := newBottle(t, w, routes(t, "api.example.com:7000 tcp"), withLimits(limits))
			c := b.mustDial("api.example.com", 7000)
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Errorf("%s: the connection lives", reason)
			}
			b.waitReason(reason)
		})
	}
}

// TestMemoryAfterMany: after most of many connections are gone, their memory is
// returned to the system; not after a few, and not repeatedly.
func TestMemoryAfterMany(t *testing.T) {
	x := connPeak{interval: 30}
	for i, c := range []struct {
		open int
		now  int64
		want bool
	}{{100, 1, false}, {0, 2, false}, {400, 3, false}, {200, 4, false}, {100, 5, true}, {90, 6, false}, {400, 7, false}, {0, 8, false}, {0, 34, false}, {0, 35, true}, {0, 100, false}} {
		if got := x.release(c.open, c.now); got != c.want {
			t.Errorf("%d: %+v: %v", i, c, got)
		}
	}
	w := newWorld()
	w.name("api.example.com", publicAddr)
	w.serve(t, publicAddr+":7000", echoServer)
	b := newBottle(t, w, routes(t, "api.example.com:7000 tcp"), withLimits(Limits{Lifetime: 10 * time.Second}))
	var conns []conn
	for range minPeak + 20 {
		c := b.mustDial("api.example.com", 7000)
		mustEcho(t, c)
		conns = append(conns, c)
	}
	waitFor(t, "all connections", func() bool { return len(b.gw.flows.all()) >= len(conns) })
	// Wait for a whole tick, so that the peak is noticed.
	tick := b.gw.flows.tick.Load()
	waitFor(t, "two ticks", func() bool { return b.gw.flows.tick.Load() >= tick+2 })
	for _, c := range conns {
		c.Close()
	}
	waitFor(t, "memory to be returned", func() bool { return b.gw.memoryReleases.Load() > 0 })
}
