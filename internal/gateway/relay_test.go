package gateway

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/waiter"
)

func TestHalfCloseAndReset(t *testing.T) {
	w := newWorld()
	w.name("api.example.com", publicAddr)
	w.serve(t, publicAddr+":7000", func(c net.Conn) {
		defer c.Close()
		got, _ := io.ReadAll(c) // until the bottle's half-close
		c.Write([]byte(fmt.Sprintf("%d bytes", len(got))))
	})
	w.serve(t, publicAddr+":7001", func(c net.Conn) {
		c.Write([]byte("x"))
		io.ReadFull(c, make([]byte, 1))
		reset(c)
	})
	aborted := make(chan error, 1)
	w.serve(t, publicAddr+":7002", func(c net.Conn) {
		defer c.Close()
		c.Write([]byte("x"))
		_, err := c.Read(make([]byte, 1))
		aborted <- err
	})
	b := newBottle(t, w, routes(t, "api.example.com:7000 tcp", "api.example.com:7001 tcp", "api.example.com:7002 tcp"))

	c := b.mustDial("api.example.com", 7000)
	c.Write(make([]byte, 300<<10))
	c.CloseWrite()
	if got, err := io.ReadAll(c); err != nil || string(got) != "307200 bytes" {
		t.Errorf("half-close: %q, %v", got, err)
	}

	c = b.mustDial("api.example.com", 7001)
	io.ReadFull(c, make([]byte, 1))
	c.Write([]byte("y"))
	if _, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("a reset upstream reads as %v", err)
	}

	addr, _ := b.resolve("api.example.com")
	var wq waiter.Queue
	ep, _ := b.stack.NewEndpoint(header.TCPProtocolNumber, ipv4.ProtocolNumber, &wq)
	entry, ch := waiter.NewChannelEntry(waiter.ReadableEvents)
	wq.EventRegister(&entry)
	ep.Connect(tcpip.FullAddress{Addr: toTCPIP(addr), Port: 7002})
	<-ch
	ep.Abort()
	select {
	case err := <-aborted:
		if err == nil || err == io.EOF {
			t.Errorf("the bottle's reset arrives as %v", err)
		}
	case <-time.After(testTimeout):
		t.Error("the bottle's reset does not arrive")
	}
}

// TestBackPressure: a client that does not read stops the server.
func TestBackPressure(t *testing.T) {
	w := newWorld()
	w.name("api.example.com", publicAddr)
	sent := make(chan int, 1)
	w.serve(t, publicAddr+":7000", func(c net.Conn) {
		defer c.Close()
		buf := make([]byte, 64<<10)
		total := 0
		for {
			c.SetWriteDeadline(time.Now().Add(2 * time.Second))
			n, err := c.Write(buf)
			total += n
			if err != nil {
				sent <- total
				return
			}
		}
	})
	b := newBottle(t, w, routes(t, "api.example.com:7000 tcp"))
	c := b.mustDial("api.example.com", 7000)
	total := <-sent
	if total > 64<<20 {
		t.Errorf("%d bytes were taken from the server without a reader", total)
	}
	got, _ := io.Copy(io.Discard, c)
	if got == 0 {
		t.Error("nothing arrived")
	}
}

// TestPortIsFreeAtOnce: a port whose connection has just ended can be used again. A
// gateway in TIME-WAIT would swallow the first packet of the new connection.
func TestPortIsFreeAtOnce(t *testing.T) {
	w := newWorld()
	w.name("api.example.com", publicAddr)
	w.serve(t, publicAddr+":7000", func(c net.Conn) { c.Close() })
	b := newBottle(t, w, routes(t, "api.example.com:7000 tcp"))
	addr, err := b.resolve("api.example.com")
	if err != nil {
		t.Fatal(err)
	}
	from := tcpip.FullAddress{Addr: toTCPIP(b.gw.wire.Bottle4.Addr()), Port: 40000}
	again := func() (sent uint64) {
		before := b.stack.Stats().TCP.SegmentsSent.Value()
		dial := func() (*gonet.TCPConn, error) {
			return gonet.DialTCPWithBind(b.ctx(), b.stack, from, tcpip.FullAddress{Addr: toTCPIP(addr), Port: 7000}, ipv4.ProtocolNumber)
		}
		c, err := dial()
		// On a busy machine the bottle's own stack may not have seen the end yet.
		waitFor(t, "the port to be free", func() bool {
			if err != nil && strings.Contains(err.Error(), "in use") {
				c, err = dial()
				return false
			}
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(testTimeout))
		if _, err := io.ReadAll(c); err != nil {
			t.Fatal(err)
		}
		return b.stack.Stats().TCP.SegmentsSent.Value() - before
	}
	// The first connection from a port, then five more from the same one. A swallowed
	// packet would cost two more segments (after one and three seconds). Otherwise
	// there are no more, unless the machine is so busy that an acknowledgement came
	// late.
	first := again()
	swallowed := 0
	for range 5 {
		waitFor(t, "the connection to end", func() bool { return len(b.gw.flows.all()) == 0 })
		if again() >= first+2 {
			swallowed++
		}
	}
	if swallowed > 3 {
		t.Errorf("%d segments for a connection, two more and beyond for %d of five from the same port", first, swallowed)
	}
}
