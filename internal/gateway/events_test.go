package gateway

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// TestEvents: single events are reported once, repeated ones ever more rarely, and the
// summary has the full count.
func TestEvents(t *testing.T) {
	w := newWorld()
	w.name("api.example.com", publicAddr)
	w.serve(t, publicAddr+":7000", echoServer)
	b := newBottle(t, w, routes(t, "api.example.com:7000 tcp"))
	c := b.mustDial("api.example.com", 7000)
	mustEcho(t, c)
	c.Close()
	for range 100 {
		b.resolve("evil.com")
		b.mustRefuse(ap("10.0.0.1:443"))
	}
	b.waitConn("echo", func(c ConnSummary) bool { return c.Name == "api.example.com" && c.Up == 4 && c.Down == 4 })
	var names, refused int
	var echo *Conn
	b.mu.Lock()
	for _, e := range b.events {
		switch e := e.(type) {
		case NameAsked:
			if e.Name == "evil.com" {
				names++
			}
		case Conn:
			if !e.Allowed {
				refused++
			} else {
				echo = &e
			}
		}
	}
	b.mu.Unlock()
	if names != 7 || refused != 7 {
		t.Errorf("100 refusals were told %d and %d times, want 7", names, refused)
	}
	if echo == nil || echo.Rule != "--allow api.example.com:7000" || echo.Upstream != ap(publicAddr+":7000") || echo.Protocol != "tcp" {
		t.Errorf("connection: %+v", echo)
	}

	s := b.gw.Summary()
	for _, n := range s.Names {
		if n.Name == "evil.com" && (n.Count != 100 || n.Allowed) {
			t.Errorf("name: %+v", n)
		}
	}
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{
		`"names":[`, `"names_dropped":0`, `"connections":[`, `"connections_dropped":0`, `"limits":[]`, `"bytes_up":4`, `"bytes_down":4`,
		`"packets":{`, `"rule":"--allow api.example.com:7000"`, `"protocol":"tcp"`, `"family":"ipv4"`, `"upstreams":["` + publicAddr + `:7000"]`, `"reason":"literal"`,
	} {
		if !strings.Contains(string(raw), field) {
			t.Errorf("summary lacks %s: %s", field, raw)
		}
	}
}

func TestLedgerIsBounded(t *testing.T) {
	l := newLedger(nil)
	long := strings.Repeat("x", 10000)
	for i := range 2 * maxSummaryConns {
		l.conn(Conn{Name: long, Detail: long, Addr: netip.AddrPortFrom(netip.IPv6Loopback(), uint16(i))}, true)
	}
	s := l.summary()
	if len(s.Conns) != maxSummaryConns || s.ConnsDropped != maxSummaryConns || len(s.Conns[0].Name) != maxText || len(s.Conns[0].Detail) != maxText {
		t.Errorf("%d connections, %d dropped", len(s.Conns), s.ConnsDropped)
	}
}

// TestHalfOpen: a SYN alone causes nothing outside, and many of them keep no honest
// connection out.
func TestHalfOpen(t *testing.T) {
	w := newWorld()
	w.serve(t, "1.2.3.4:7000", echoServer)
	b := newBottle(t, w, routes(t, "1.2.3.4:7000 tcp"))
	me, dst := b.gw.wire.Bottle4.Addr(), netip.MustParseAddr("1.2.3.4")
	for i := range 100 {
		p, tr := buildIP(me, dst, header.TCPProtocolNumber, header.TCPMinimumSize)
		h := header.TCP(tr)
		h.Encode(&header.TCPFields{SrcPort: uint16(1000 + i), DstPort: 7000, SeqNum: 1, DataOffset: 20, Flags: header.TCPFlagSyn, WindowSize: 1000})
		b.sendRaw(p)
	}
	c, err := b.connect(ap("1.2.3.4:7000"))
	if err != nil {
		t.Fatal(err)
	}
	mustEcho(t, c)
	if len(w.dials()) != 1 {
		t.Errorf("half-open connections were dialled: %v", w.dials())
	}
}

// TestCloseWhileBusy: the gateway closes while connections are made, sniffed, dialled
// and relayed.
func TestCloseWhileBusy(t *testing.T) {
	w := webWorld(t)
	w.name("slow.example.com", "93.184.216.99")
	w.serve(t, publicAddr+":7000", source)
	b := newBottle(t, w, routes(t, "api.example.com", "api.example.com:7000 tcp", "slow.example.com"))
	b.mustDial("api.example.com", 7000) // nobody reads
	b.mustDial("api.example.com", 443)  // sends nothing
	b.mustDial("api.example.com", 80).Write([]byte("GET / HTTP/1.1\r\n"))
	me, dst := b.gw.wire.Bottle4.Addr(), netip.MustParseAddr(publicAddr)
	p, tr := buildIP(me, dst, header.TCPProtocolNumber, header.TCPMinimumSize)
	header.TCP(tr).Encode(&header.TCPFields{SrcPort: 9, DstPort: 443, DataOffset: 20, Flags: header.TCPFlagSyn})
	b.sendRaw(p)
	b.stopClient()
	done := make(chan struct{})
	go func() { b.gw.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(testTimeout):
		t.Fatal("close hangs")
	}
}

// TestRoutesChangeOnAKeptConnection: a later request on it is judged by the routes at
// that time.
func TestRoutesChangeOnAKeptConnection(t *testing.T) {
	b := newBottle(t, webWorld(t), routes(t, "api.example.com"))
	const request = "GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n"
	c := b.mustDial("api.example.com", 80)
	br := bufio.NewReader(c)
	do := func() int {
		io.WriteString(c, request)
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		return res.StatusCode
	}
	if got := do(); got != 200 {
		t.Fatalf("allowed: %d", got)
	}
	b.gw.SetRoutes(nil, nil, nil)
	if got := do(); got != 403 {
		t.Errorf("taken away: %d", got)
	}
}
