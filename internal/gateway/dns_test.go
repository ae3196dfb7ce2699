package gateway

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/carboy/carboy/internal/policy"
)

func extendedError(m *dns.Msg) *dns.EDNS0_EDE {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				return e
			}
		}
	}
	return nil
}

func TestNames(t *testing.T) {
	w := newWorld()
	b := newBottle(t, w, routes(t, "api.example.com", "*.cdn.example.com"))

	first, err := b.resolve("api.example.com")
	if err != nil || !defaultRange.Contains(first) {
		t.Fatalf("resolve: %v, %v", first, err)
	}
	if again, _ := b.resolve("API.Example.COM"); again != first {
		t.Errorf("not stable: %v, then %v", first, again)
	}
	if other, _ := b.resolve("a.cdn.example.com"); other == first || !other.IsValid() {
		t.Errorf("two names share %v", other)
	}

	for _, name := range []string{"evil.com", "example.com", "cdn.example.com", "x.api.example.com", "com", ".", "a b.com", "2130706433"} {
		r := b.ask(name, dns.TypeA)
		e := extendedError(r)
		if r.Rcode != dns.RcodeNameError || len(r.Answer) != 0 || e == nil || e.InfoCode != 15 {
			t.Errorf("%s: rcode %d, answer %v, extended error %v", name, r.Rcode, r.Answer, e)
		}
		for _, rr := range r.Ns {
			if rr.Header().Ttl != 0 {
				t.Errorf("%s: refusal has ttl %d", name, rr.Header().Ttl)
			}
		}
	}
	if e := extendedError(b.ask("www.example.com", dns.TypeA)); e == nil || !strings.Contains(e.ExtraText, "--allow api.example.com") {
		t.Errorf("refusal does not name the nearest rule: %v", e)
	}

	// An allowed name has no records of other types; a refused name does not exist.
	for _, qtype := range []uint16{dns.TypeAAAA, dns.TypeHTTPS, dns.TypeSVCB, dns.TypeTXT, dns.TypeMX, dns.TypeNS, dns.TypeSRV} {
		if r := b.ask("api.example.com", qtype); r.Rcode != dns.RcodeSuccess || len(r.Answer) != 0 {
			t.Errorf("%s of an allowed name: %v", dns.TypeToString[qtype], r)
		}
		if r := b.ask("evil.com", qtype); r.Rcode != dns.RcodeNameError || len(r.Answer) != 0 {
			t.Errorf("%s of a refused name: %v", dns.TypeToString[qtype], r)
		}
	}

	ptr, _ := dns.ReverseAddr(first.String())
	if r := b.ask(ptr, dns.TypePTR); len(r.Answer) != 1 || r.Answer[0].(*dns.PTR).Ptr != "api.example.com." {
		t.Errorf("reverse of a synthetic address: %v", r)
	}
	ptr, _ = dns.ReverseAddr("8.8.8.8")
	if r := b.ask(ptr, dns.TypePTR); r.Rcode != dns.RcodeNameError {
		t.Errorf("reverse of another address: %v", r)
	}
	if r := b.ask("localhost", dns.TypeA); len(r.Answer) != 1 || !r.Answer[0].(*dns.A).A.IsLoopback() {
		t.Errorf("localhost: %v", r)
	}
	if got := w.looked(); len(got) != 0 {
		t.Errorf("names were asked outside: %q", got)
	}
}

// TestQueriesCarryNothingOut: whatever the labels of refused and allowed names
// contain, nothing is resolved outside until a connection is dialled.
func TestQueriesCarryNothingOut(t *testing.T) {
	w := newWorld()
	b := newBottle(t, w, routes(t, "api.example.com", "*.cdn.example.com"))
	for i := range 50 {
		secret := strings.Repeat(fmt.Sprintf("%x", i+16), 20)
		for _, zone := range []string{"evil.com", "api.example.com", "cdn.example.com"} {
			for _, qtype := range []uint16{dns.TypeA, dns.TypeTXT, dns.TypeNULL, dns.TypeCNAME} {
				b.ask(secret+"."+zone, qtype)
			}
		}
	}
	if got := w.looked(); len(got) != 0 {
		t.Fatalf("asked outside: %q", got)
	}
	s := b.gw.Summary()
	if len(s.Names) != 150 {
		t.Errorf("%d names recorded, want 150", len(s.Names))
	}
	for _, n := range s.Names {
		if n.Count != 4 || len(n.Types) != 4 || n.Allowed != strings.HasSuffix(n.Name, ".cdn.example.com") {
			t.Errorf("record %+v", n)
			break
		}
	}
}

// TestEveryServerIsOurs: the gateway answers for any DNS server, over UDP and TCP,
// IPv4 and IPv6.
func TestEveryServerIsOurs(t *testing.T) {
	b := newBottle(t, newWorld(), routes(t, "api.example.com"))
	want, err := b.resolve("api.example.com")
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range []string{"8.8.8.8", "1.1.1.1", "192.168.1.1", "198.18.0.3", "198.19.7.7", "2606:4700:4700::1111", "fd63:6172:626f:7900::1"} {
		addr := netip.AddrPortFrom(netip.MustParseAddr(server), 53)
		for _, network := range []string{"udp", "tcp"} {
			var c interface {
				io.ReadWriteCloser
				SetDeadline(time.Time) error
			}
			if network == "udp" {
				c = b.udp(addr)
			} else if c, err = b.connect(addr); err != nil {
				t.Fatalf("%s %s: %v", network, server, err)
			}
			for name, rcode := range map[string]int{"api.example.com.": dns.RcodeSuccess, "evil.com.": dns.RcodeNameError} {
				m := new(dns.Msg)
				m.SetQuestion(name, dns.TypeA)
				r := exchangeOn(t, c, m, network == "tcp")
				if r.Rcode != rcode {
					t.Errorf("%s %s %s: %v", network, server, name, r)
				}
				if rcode == dns.RcodeSuccess && r.Answer[0].(*dns.A).A.String() != want.String() {
					t.Errorf("%s %s: %v, want %v", network, server, r.Answer[0], want)
				}
			}
			c.Close()
		}
	}
}

func exchangeOn(t *testing.T, c io.ReadWriter, m *dns.Msg, tcp bool) *dns.Msg {
	t.Helper()
	q, _ := m.Pack()
	if tcp {
		q = append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...)
	}
	if _, err := c.Write(q); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 65535)
	n := 0
	var err error
	if tcp {
		if _, err = io.ReadFull(c, buf[:2]); err == nil {
			n, err = io.ReadFull(c, buf[:binary.BigEndian.Uint16(buf)])
		}
	} else {
		n, err = c.Read(buf)
	}
	if err != nil {
		t.Fatal(err)
	}
	r := new(dns.Msg)
	if err := r.Unpack(buf[:n]); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestQueryLimits(t *testing.T) {
	w := newWorld()
	b := newBottle(t, w, routes(t, "*.cdn.example.com"), withLimits(Limits{Names: 3, Queries: 8, QueryRate: 1e6}))
	for i := range 3 {
		if _, err := b.resolve(fmt.Sprintf("n%d.cdn.example.com", i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.resolve("n3.cdn.example.com"); err != errNXDomain {
		t.Errorf("a name beyond the limit: %v", err)
	}
	if _, err := b.resolve("n0.cdn.example.com"); err != nil {
		t.Errorf("a known name at the limit: %v", err)
	}
	// Beyond the limit nothing is answered.
	q := new(dns.Msg)
	q.SetQuestion("n0.cdn.example.com.", dns.TypeA)
	raw, _ := q.Pack()
	c := b.udp(netip.AddrPortFrom(b.gw.wire.DNS, 53))
	for range 100 {
		c.Write(raw)
	}
	b.waitLimit(reasonLimitQueries, 97)
	if got := b.gw.Summary().Limits; len(got) != 2 || got[0].Limit != reasonLimitNames {
		t.Errorf("limits: %+v", got)
	}
}

func (b *bottle) waitLimit(r Reason, n uint64) {
	b.t.Helper()
	waitFor(b.t, fmt.Sprintf("limit %s to be hit %d times", r, n), func() bool {
		return slices.ContainsFunc(b.gw.Summary().Limits, func(l LimitSummary) bool { return l.Limit == r && l.Count >= n })
	}, func() any { return b.gw.Summary().Limits })
}

// TestFloodOfNames: the summary stays bounded and counts what it left out.
func TestFloodOfNames(t *testing.T) {
	g := bareGateway(t, routes(t, "api.example.com"))
	var wg sync.WaitGroup
	for k := range 4 {
		wg.Go(func() {
			for i := range 2000 {
				q := new(dns.Msg)
				q.SetQuestion(fmt.Sprintf("%d-%d.evil.com.", k, i), dns.TypeA)
				raw, _ := q.Pack()
				g.answerDNS(raw, false)
			}
		})
	}
	wg.Wait()
	s := g.ledger.summary()
	if len(s.Names) != maxSummaryNames || s.NamesDropped != 8000-maxSummaryNames {
		t.Errorf("%d names, %d dropped", len(s.Names), s.NamesDropped)
	}
}

// bareGateway is a gateway without a wire, for tests that need none.
func bareGateway(t testing.TB, table *policy.Table) *Gateway {
	g, err := newGateway(Config{Table: table, Resolver: newWorld(), Limits: Limits{QueryRate: 1e9, Queries: 1 << 40}})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestMalformedQueries(t *testing.T) {
	g := bareGateway(t, routes(t, "api.example.com"))
	good := new(dns.Msg)
	good.SetQuestion("api.example.com.", dns.TypeA)
	raw, _ := good.Pack()
	if r := g.answerDNS(raw, false); r == nil {
		t.Fatal("a good query is not answered")
	}
	response := append([]byte(nil), raw...)
	response[2] |= 0x80
	for name, q := range map[string][]byte{
		"empty": nil, "short": raw[:11], "response": response, "long": append(raw, make([]byte, maxQuery)...),
	} {
		if r := g.answerDNS(q, false); r != nil {
			t.Errorf("%s: answered", name)
		}
	}
	loop := append(append([]byte(nil), raw[:12]...), 0xc0, 12, 0, 1, 0, 1)
	noQuestion := append([]byte(nil), raw[:12]...)
	noQuestion[5] = 0
	update := append([]byte(nil), raw...)
	update[2] = 5 << 3
	chaos := append([]byte(nil), raw...)
	chaos[len(chaos)-1] = 3
	for name, q := range map[string][]byte{
		"cut": raw[:20], "pointer loop": loop, "no question": noQuestion, "update": update, "chaos": chaos,
	} {
		r := new(dns.Msg)
		b := g.answerDNS(q, false)
		if b == nil || r.Unpack(b) != nil || r.Rcode == dns.RcodeSuccess || len(r.Answer) > 0 {
			t.Errorf("%s: %x %v", name, b, r)
		}
	}
}

func FuzzAnswerDNS(f *testing.F) {
	for _, name := range []string{"api.example.com.", "evil.com.", "a.cdn.example.com.", "1.0.0.127.in-addr.arpa.", "localhost.", "."} {
		for _, t := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypePTR, dns.TypeHTTPS, dns.TypeANY} {
			m := new(dns.Msg)
			m.SetQuestion(name, t)
			m.SetEdns0(1232, true)
			raw, _ := m.Pack()
			f.Add(raw, true)
		}
	}
	f.Add([]byte{0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 0x0c, 0, 1, 0, 1}, false)
	g := bareGateway(f, routes(f, "api.example.com", "*.cdn.example.com"))
	w := g.resolver.(*world)
	f.Fuzz(func(t *testing.T, q []byte, tcp bool) {
		b := g.answerDNS(q, tcp)
		if len(w.looked()) != 0 {
			t.Fatal("asked outside")
		}
		if b == nil {
			return
		}
		if !tcp && len(b) > 1232 {
			t.Fatalf("answer of %d bytes", len(b))
		}
		r := new(dns.Msg)
		if err := r.Unpack(b); err != nil {
			t.Fatalf("unreadable answer: %v", err)
		}
		for _, rr := range r.Answer {
			a, ok := rr.(*dns.A)
			if !ok || a.A.IsLoopback() {
				continue
			}
			addr, _ := netip.AddrFromSlice(a.A.To4())
			name := g.names.lookup(addr)
			if !g.table().DecideName(name).Allowed {
				t.Fatalf("an address for %q", name)
			}
		}
	})
}
