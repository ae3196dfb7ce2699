package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/carboy/carboy/internal/secret"
)

// beside is a server in another bottle: it repeats what it gets, on any port.
func beside(t *testing.T, ports ...uint16) Service {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.WriteString(c, "first\n") // as MySQL does, and SMTP
				io.Copy(c, c)
			}()
		}
	}()
	return Service{Ports: ports, Dial: func(ctx context.Context, _ uint16) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	}}
}

// TestW8Services: a service has a name and its ports, for its bottle alone.
func TestW8Services(t *testing.T) {
	w := newWorld()
	var addr netip.Addr
	t.Run("its bottle", func(t *testing.T) { addr = reaches(t, w) })
	t.Run("another", func(t *testing.T) {
		// It has no such name, and the same address leads nowhere there.
		b := newBottle(t, w, routes(t, "example.org"))
		if _, err := b.resolve("db"); err != errNXDomain {
			t.Errorf("%v", err)
		}
		if c, err := b.connect(netip.AddrPortFrom(addr, 5432)); err == nil {
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("it reaches the service by its address")
			}
		}
	})
	if len(w.dials()) != 0 || len(w.looked()) != 0 {
		t.Errorf("dialled %v, looked up %v", w.dials(), w.looked())
	}
}

// reaches tries what a bottle reaches of its services, and returns the address of one.
func reaches(t *testing.T, w *world) netip.Addr {
	const known = "d0ne-with-all-of-this-secret"
	b := newBottle(t, w, routes(t, "example.org"), func(c *Config) {
		c.Services = map[string]Service{"db": beside(t, 5432, 80), "down": {Ports: []uint16{1}, Dial: func(context.Context, uint16) (net.Conn, error) { return nil, errors.New("it is down") }}}
		c.Secrets = map[string]secret.Value{"KNOWN": secret.NewString(known)}
		c.Limits.Idle, c.Limits.Names = 100*time.Millisecond, 4
	})
	for _, name := range []string{"db", "DB", "db."} {
		for _, port := range []uint16{5432, 80} {
			c := b.mustDial(name, port)
			// Neither the protocol nor the content matters: it can't leave.
			text := "first\nGET / HTTP/1.1 " + known + "\n"
			if _, err := io.WriteString(c, strings.TrimPrefix(text, "first\n")); err != nil {
				t.Fatal(err)
			}
			if err := c.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(c); string(got) != text || err != nil {
				t.Errorf("%s:%d: %q %v", name, port, got, err)
			}
		}
	}
	sum := b.waitConn("of the service", func(c ConnSummary) bool { return c.Name == "db" && c.Port == 5432 && c.Count == 3 })
	if sum.Protocol != "tcp" || !sum.Allowed || sum.Rule != "service db" || sum.Up == 0 || sum.Down <= sum.Up {
		t.Errorf("%+v", sum)
	}
	// A pool's connection may be silent for longer than others.
	pooled := b.mustDial("db", 5432)
	line := make([]byte, 6)
	if _, err := io.ReadFull(pooled, line); err != nil {
		t.Fatal(err)
	}
	at := b.gw.flows.tick.Load()
	waitFor(t, "four times that silence", func() bool { return b.gw.flows.tick.Load() > at+16 })
	if _, err := pooled.Write([]byte("again\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(pooled, line); string(line) != "again\n" || err != nil {
		t.Errorf("%q %v", line, err)
	}

	for _, port := range []uint16{5433, 22, 443} {
		if c, err := b.dial("db", port); err == nil {
			if n, err := c.Read(line); err == nil {
				t.Errorf("port %d, which is not listed: %q", port, line[:n])
			}
		}
	}
	b.waitConn("of another port", func(c ConnSummary) bool {
		return c.Name == "db" && c.Port == 22 && !c.Allowed && c.Reason == reasonServicePort
	})
	if c, err := b.dial("down", 1); err == nil {
		if _, err := c.Read(line); err == nil {
			t.Error("a service that is down answers")
		}
	}
	b.waitConn("of one that is down", func(c ConnSummary) bool { return c.Name == "down" && c.Reason == reasonDialFailed })
	if r := b.ask("db", dns.TypeAAAA); r.Rcode != dns.RcodeSuccess || len(r.Answer) != 0 {
		t.Errorf("%v", r)
	}
	if b.proxy == "" {
		for _, name := range []string{"x.db", "db.example.org", "db2"} {
			if _, err := b.resolve(name); err != errNXDomain {
				t.Errorf("%s: %v", name, err)
			}
		}
	}

	addr, err := b.resolve("db")
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// What can't be a service's name is refused.
func TestServiceNames(t *testing.T) {
	dial := func(context.Context, uint16) (net.Conn, error) { return nil, nil }
	for name, ok := range map[string]bool{"db": true, "my-db2": true, "": false, "Db": false, "my_db": false, "-db": false, "1db": false, "a.b": false, "localhost": false, "carboy": false, GitName: false, strings.Repeat("a", 64): false} {
		if err := checkServices(map[string]Service{name: {Dial: dial}}); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
	if checkServices(map[string]Service{"db": {}}) == nil {
		t.Error("a service without a way to it")
	}
}
