package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/testenv"
)

// newProxied returns a bottle whose connections go by a proxy, whatever carries those of
// other tests.
func newProxied(t testing.TB, w *world, allow []string, opts ...option) *bottle {
	t.Helper()
	t.Setenv(carriedBy, "proxy")
	return newBottle(t, w, routes(t, allow...), opts...)
}

// say sends bytes to the proxy and returns all that it answers.
func (b *bottle) say(raw string) string {
	b.t.Helper()
	c, err := b.toProxy()
	if err != nil {
		b.t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, raw); err != nil {
		b.t.Fatal(err)
	}
	c.CloseWrite()
	answer, err := io.ReadAll(c)
	if err != nil && !isReset(err) {
		b.t.Errorf("%.60q: %v", raw, err)
	}
	return string(answer)
}

// proxyClient is an HTTP client that is told to use the proxy.
func (b *bottle) proxyClient(scheme string) *http.Client {
	tr := &http.Transport{
		Proxy:           http.ProxyURL(&url.URL{Scheme: scheme, Host: b.proxy}),
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
	b.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: testTimeout}
}

// Clients that are told of the proxy reach what routes allow, by http and by https, also
// one host after another.
func TestProxyClients(t *testing.T) {
	w := webWorld(t)
	w.name("other.example.com", publicAddr)
	b := newProxied(t, w, []string{"api.example.com", "other.example.com"})
	for _, scheme := range []string{"http", "socks5"} {
		c := b.proxyClient(scheme)
		for _, u := range []string{"http://api.example.com/a", "http://other.example.com/b?c", "https://api.example.com/d", "http://api.example.com/e"} {
			res, err := c.Get(u)
			if err != nil {
				t.Fatalf("%s by %s: %v", u, scheme, err)
			}
			body, _ := io.ReadAll(res.Body)
			res.Body.Close()
			parsed, _ := url.Parse(u)
			if want := fmt.Sprintf("GET %s %s 0", parsed.Host, parsed.RequestURI()); string(body) != want {
				t.Errorf("%s by %s: %d %q, want %q", u, scheme, res.StatusCode, body, want)
			}
		}
		// A refusal of a URL has the words of the wire's.
		res, err := c.Post("http://evil.com/x", "text/plain", strings.NewReader("body"))
		if scheme == "socks5" {
			if err == nil {
				t.Errorf("evil.com by SOCKS5: %s", res.Status)
			}
			c.CloseIdleConnections()
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 403 || res.Header.Get("Carboy-Refused") != "no-route" || !strings.Contains(string(body), "carboy: refused: no-route") || !strings.Contains(string(body), "--allow evil.com") {
			t.Errorf("evil.com: %s %v %s", res.Status, res.Header, body)
		}
		c.CloseIdleConnections()
	}
	b.waitConn("https", func(c ConnSummary) bool { return c.Protocol == "tls" && c.Name == "api.example.com" })
	if l := w.looked(); strings.Contains(fmt.Sprint(l), "evil") {
		t.Errorf("resolved %q", l)
	}
}

// A refusal names why, in the record and, in HTTP, to the client. Nothing is dialled.
func TestProxyRefusals(t *testing.T) {
	w := webWorld(t)
	b := newProxied(t, w, []string{"api.example.com", "raw.example.com:7000 tcp", "*.wild.example.com"})
	w.name("raw.example.com", publicAddr)
	get := func(target, host string) string {
		return fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, host)
	}
	connect := func(target string) string {
		return fmt.Sprintf("CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
	}
	_, own, _ := net.SplitHostPort(b.proxy)
	for _, x := range []struct {
		raw    string
		status int
		reason string
	}{
		{connect("evil.com:443"), 403, "no-route"},
		{connect("api.example.com:22"), 403, "port"},
		{connect("API.example.com.:22"), 403, "port"},
		{connect("10.0.0.1:443"), 403, "literal"},
		{connect("8.8.8.8:443"), 403, "literal"},
		{connect("[2606:4700::1]:443"), 403, "literal"},
		{connect("169.254.169.254:80"), 403, "literal"},
		// Loopback in every spelling: this machine, other bottles, the proxy itself.
		{connect("127.0.0.1:" + own), 403, "bad-destination"},
		{connect("127.0.0.17:3128"), 403, "bad-destination"},
		{connect("[::1]:443"), 403, "bad-destination"},
		{connect("[::ffff:127.0.0.1]:443"), 403, "bad-destination"},
		{connect("0.0.0.0:443"), 403, "bad-destination"},
		{connect("[::]:443"), 403, "bad-destination"},
		{connect("224.0.0.1:443"), 403, "bad-destination"},
		{connect("127.1:443"), 403, "bad-name"},
		{connect("0x7f.1:443"), 403, "bad-name"},
		{connect("2130706433:443"), 403, "bad-name"},
		{connect("0177.0.0.1:443"), 403, "bad-name"},
		{connect("localhost:443"), 403, "no-route"},
		{connect("host.carboy.internal:443"), 403, "no-route"},
		// The gateway itself, and addresses that stand for no name.
		{connect("198.18.0.3:80"), 403, "gateway-address"},
		{connect("198.19.255.1:80"), 403, "unknown-address"},
		{connect("git.carboy.internal:80"), 403, "no-route"},
		{connect("egress.carboy.internal:443"), 403, "port"},

		{connect("api.example.com"), 400, "http-malformed"},
		{connect("api.example.com:0"), 400, "http-malformed"},
		{connect("api.example.com:65536"), 400, "http-malformed"},
		{connect("api.example.com:-1"), 400, "http-malformed"},
		{connect(":443"), 400, "http-malformed"},
		{connect("[api.example.com]:443"), 400, "http-malformed"},
		{connect("http://api.example.com:443/"), 400, "http-malformed"},
		{connect("/"), 400, "http-malformed"},
		{connect("user@api.example.com:443"), 403, "bad-name"},
		{"CONNECT api.example.com:443 HTTP/1.1\r\nHost: evil.com:443\r\n\r\n", 400, "host-mismatch"},
		{"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:80\r\n\r\n", 400, "host-mismatch"},
		{"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com\r\nHost: evil.com\r\n\r\n", 400, "http-malformed"},
		{"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\nContent-Length: 5\r\n\r\nhello", 400, "http-malformed"},
		{"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "http-malformed"},
		{"CONNECT api.example.com:443 HTTP/1.1\nHost: api.example.com:443\n\n", 400, "http-malformed"},
		{"CONNECT api.example.com:443 HTTP/1.1\r\n Host: api.example.com:443\r\n\r\n", 400, "http-malformed"},
		{"CONNECT  api.example.com:443 HTTP/1.1\r\n\r\n", 400, "http-malformed"},
		{"CONNECT api.example.com:443 HTTP/2.0\r\n\r\n", 400, "http-malformed"},

		{get("http://evil.com/", "evil.com"), 403, "no-route"},
		{get("http://api.example.com:81/", "api.example.com:81"), 403, "port"},
		{get("http://127.0.0.1/", "127.0.0.1"), 403, "bad-destination"},
		{get("http://api.example.com/", "evil.com"), 400, "http-malformed"},
		{get("http://raw.example.com:7000/", "raw.example.com:7000"), 403, "proxy-request"},
		{get("https://api.example.com/", "api.example.com"), 400, "proxy-request"},
		{get("ftp://api.example.com/", "api.example.com"), 400, "proxy-request"},
		{get("http://u:p@api.example.com/", "api.example.com"), 400, "proxy-request"},
		{get("http:///", "x"), 400, "proxy-request"},
		{get("/", "api.example.com"), 400, "proxy-request"},
		{get("*", "api.example.com"), 400, "proxy-request"},
		{"GET http://api.example.com/ HTTP/1.1\r\n\r\n", 400, "http-malformed"},
		{"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400, "http-malformed"},
		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "http-malformed"},
		{"GET http://" + strings.Repeat("a", 70<<10) + "/ HTTP/1.1\r\n\r\n", 431, "limit-head"},
	} {
		answer := b.say(x.raw)
		if want := fmt.Sprintf("HTTP/1.1 %d ", x.status); !strings.HasPrefix(answer, want) || !strings.Contains(answer, "\r\nCarboy-Refused: "+x.reason+"\r\n") || !strings.Contains(answer, "carboy: refused: "+x.reason) {
			t.Errorf("%.80q: want %d %s, got %.300q", x.raw, x.status, x.reason, answer)
		}
	}
	// JSON for those who ask for it.
	if a := b.say("CONNECT evil.com:443 HTTP/1.1\r\nHost: evil.com:443\r\nAccept: application/json\r\n\r\n"); !strings.Contains(a, "application/json") || !strings.Contains(a, `"reason":"no-route"`) {
		t.Errorf("json: %q", a)
	}
	if d := w.dials(); len(d) > 0 {
		t.Errorf("dialled %v", d)
	}
	if l := w.looked(); len(l) > 0 {
		t.Errorf("resolved %q", l)
	}
	for _, r := range []Reason{"port", "literal", reasonProxy, ReasonHTTPMalformed, ReasonLimitHead} {
		b.waitReason(r)
	}
}

// SOCKS5 serves CONNECT without authentication and refuses everything else with the code
// of RFC 1928.
func TestProxySOCKS(t *testing.T) {
	w := newWorld()
	w.name("api.example.com", publicAddr)
	w.serve(t, publicAddr+":7000", echoServer)
	w.serve(t, "1.2.3.4:7000", echoServer)
	w.serve(t, "[2606:4700::1]:7000", echoServer)
	b := newProxied(t, w, []string{"api.example.com:7000 tcp", "1.2.3.4:7000 tcp", "[2606:4700::1]:7000 tcp"})
	name := func(s string) []byte { return append([]byte{byte(len(s))}, s...) }
	v6 := netip.MustParseAddr("2606:4700::1")
	for _, x := range []struct {
		kind byte
		dest []byte
	}{{3, name("api.example.com")}, {3, name("API.Example.com.")}, {3, name("1.2.3.4")}, {1, []byte{1, 2, 3, 4}}, {4, v6.AsSlice()}} {
		c, err := b.socks(x.kind, x.dest, 7000)
		if err != nil {
			t.Fatalf("%d %q: %v", x.kind, x.dest, err)
		}
		mustEcho(t, c)
	}
	dialled := len(w.dials())
	port := func(req string, p uint16) string { return string(binary.BigEndian.AppendUint16([]byte(req), p)) }
	hello := "\x05\x01\x00"
	for _, x := range []struct {
		what, raw, answer string
	}{
		{"a name without a route", port(hello+"\x05\x01\x00\x03\x08evil.com", 443), "\x05\x00\x05\x02"},
		{"another port", port(hello+"\x05\x01\x00\x03\x0fapi.example.com", 443), "\x05\x00\x05\x02"},
		{"an address without a route", port(hello+"\x05\x01\x00\x01\x0a\x00\x00\x01", 443), "\x05\x00\x05\x02"},
		{"loopback", port(hello+"\x05\x01\x00\x01\x7f\x00\x00\x01", 443), "\x05\x00\x05\x02"},
		{"mapped loopback", port(hello+"\x05\x01\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x7f\x00\x00\x01", 443), "\x05\x00\x05\x02"},
		{"a name that is an odd address", port(hello+"\x05\x01\x00\x03\x05127.1", 443), "\x05\x00\x05\x02"},
		{"a name with a zero byte", port(hello+"\x05\x01\x00\x03\x10api.example.com\x00", 7000), "\x05\x00\x05\x02"},
		{"no name", port(hello+"\x05\x01\x00\x03\x00", 443), "\x05\x00\x05\x01"},
		{"no port", port(hello+"\x05\x01\x00\x03\x0fapi.example.com", 0), "\x05\x00\x05\x01"},
		{"BIND", port(hello+"\x05\x02\x00\x03\x0fapi.example.com", 7000), "\x05\x00\x05\x07"},
		{"UDP ASSOCIATE", port(hello+"\x05\x03\x00\x01\x00\x00\x00\x00", 0), "\x05\x00\x05\x07"},
		{"Tor's RESOLVE", port(hello+"\x05\xf0\x00\x03\x0fapi.example.com", 0), "\x05\x00\x05\x07"},
		{"another type of address", port(hello+"\x05\x01\x00\x02\x00", 7000), "\x05\x00\x05\x08"},
		{"another version in the request", port(hello+"\x04\x01\x00\x03\x0fapi.example.com", 7000), "\x05\x00\x05\x01"},
		{"a reserved byte", port(hello+"\x05\x01\x01\x03\x0fapi.example.com", 7000), "\x05\x00\x05\x01"},
		{"authentication only", "\x05\x01\x02", "\x05\xff"},
		{"no method", "\x05\x00", "\x05\xff"},
		{"SOCKS4", "\x04\x01\x1b\x58\x01\x02\x03\x04\x00", "\x00\x5b"},
		{"TLS", "\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", "\x15\x03\x03\x00\x02\x02\x31"},
		{"an unfinished greeting", "\x05\x05\x00", ""},
		{"an unfinished request", hello + "\x05\x01\x00\x03\xffapi", "\x05\x00"},
		{"a control byte", "\x01\x02\x03", "HTTP/1.1 400 "},
		{"nothing", "", ""},
	} {
		if answer := b.say(x.raw); !strings.HasPrefix(answer, x.answer) || x.answer == "" && answer != "" {
			t.Errorf("%s: got %.100q, want %q", x.what, answer, x.answer)
		}
	}
	if d := len(w.dials()); d != dialled {
		t.Errorf("a refused connection was dialled: %v", w.dials())
	}
	b.waitReason(reasonUDP)
}

// What a client sends is read in pieces of any size, and may be ahead of the answer.
func TestProxySplit(t *testing.T) {
	w := newWorld()
	w.name("api.example.com", publicAddr)
	w.serve(t, publicAddr+":7000", echoServer)
	b := newProxied(t, w, []string{"api.example.com:7000 tcp"})
	const text = "sent ahead"
	for what, raw := range map[string]string{
		"CONNECT": "CONNECT api.example.com:7000 HTTP/1.1\r\nHost: api.example.com:7000\r\nProxy-Connection: keep-alive\r\nProxy-Authorization: Basic eDp5\r\n\r\n",
		// Old clients send no Host header.
		"old":   "CONNECT api.example.com:7000 HTTP/1.0\r\n\r\n",
		"SOCKS": "\x05\x02\x00\x02\x05\x01\x00\x03\x0fapi.example.com\x1b\x58",
	} {
		all := raw + text
		for _, size := range []int{1, 2, 7, len(all)} {
			c, err := b.toProxy()
			if err != nil {
				t.Fatal(err)
			}
			c.SetNoDelay(true)
			for i := 0; i < len(all); i += size {
				if _, err := io.WriteString(c, all[i:min(i+size, len(all))]); err != nil {
					t.Fatal(err)
				}
			}
			c.CloseWrite()
			got, err := io.ReadAll(c)
			if err != nil || !strings.HasSuffix(string(got), text) {
				t.Errorf("%s in pieces of %d: %q, %v", what, size, got, err)
			}
		}
	}
	if c := b.waitConn("echo", func(c ConnSummary) bool { return c.Count == 12 }); c.Up != int64(12*len(text)) || c.Down != c.Up {
		t.Errorf("record: %+v", c)
	}
}

// Inside a tunnel nothing is a proxy, and what goes in is judged as on the wire.
func TestProxyNested(t *testing.T) {
	w := webWorld(t)
	w.name("other.example.com", publicAddr)
	b := newProxied(t, w, []string{"api.example.com", "other.example.com"})
	for _, x := range []struct {
		raw, want string
	}{
		{"CONNECT other.example.com:80 HTTP/1.1\r\nHost: other.example.com:80\r\n\r\n", "connect-method"},
		{"GET http://other.example.com/ HTTP/1.1\r\nHost: other.example.com\r\n\r\n", "host-mismatch"},
		{"GET / HTTP/1.1\r\nHost: other.example.com\r\n\r\n", "host-mismatch"},
		{"GET http://api.example.com/x HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n", "GET api.example.com /x 0"},
	} {
		c, err := b.tunnel("api.example.com:80")
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, x.raw)
		if got, _ := io.ReadAll(c); !strings.Contains(string(got), x.want) {
			t.Errorf("%.60q: got %.300q, want %s", x.raw, got, x.want)
		}
	}
	c, err := b.tunnel("api.example.com:80")
	if err != nil {
		t.Fatal(err)
	}
	c.Write([]byte("\x05\x01\x00"))
	if got, _ := io.ReadAll(c); len(got) > 0 {
		t.Errorf("SOCKS5 inside a tunnel: %q", got)
	}
	b.waitReason(reasonProtocol)
}

// After one URL the connection is closed, so that a second, for another host, is never
// read as one for the first.
func TestProxyOneURL(t *testing.T) {
	w := webWorld(t)
	w.name("other.example.com", publicAddr)
	b := newProxied(t, w, []string{"api.example.com", "other.example.com"})
	const two = "GET http://other.example.com/two HTTP/1.1\r\nHost: other.example.com\r\n\r\n"
	for _, x := range []struct{ method, headers, body string }{
		{"POST", "Proxy-Authorization: Basic eDp5\r\nContent-Length: 3\r\n", "abc"},
		// Offers of another protocol, which upstream does not take.
		{"GET", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n", ""},
		{"GET", "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", ""},
	} {
		c, err := b.toProxy()
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, x.method+" http://api.example.com/one HTTP/1.1\r\nHost: api.example.com\r\n"+x.headers+"\r\n"+x.body+two)
		r := bufio.NewReader(c)
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		if want := fmt.Sprintf("%s api.example.com /one %d", x.method, len(x.body)); string(body) != want || !res.Close {
			t.Errorf("%s %q, close %t", res.Status, body, res.Close)
		}
		if rest, _ := io.ReadAll(r); len(rest) > 0 {
			t.Errorf("%s: after it come %q", x.headers, rest)
		}
	}
}

// The requests that carboy answers itself are reached through the proxy too.
func TestProxyInside(t *testing.T) {
	b := newProxied(t, newWorld(), []string{"api.example.com"}, func(c *Config) {
		c.Inside = map[string]http.Handler{GitName: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, "the gate") })}
	})
	c := b.proxyClient("http")
	for u, want := range map[string]string{"http://" + GitName + "/x": "the gate", "http://egress.carboy.internal/allowlist": "api.example.com", "http://_egress.local/allowlist": "api.example.com"} {
		res, err := c.Get(u)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if !strings.Contains(string(body), want) {
			t.Errorf("%s: %s %s", u, res.Status, body)
		}
	}
}

// A secret in a name that the bottle chose goes nowhere, and is not repeated.
func TestProxySecretInName(t *testing.T) {
	w := newWorld()
	b := newProxied(t, w, []string{"*.example.com"}, func(c *Config) {
		c.Secrets = map[string]secret.Value{"deploy-key": secret.NewString(watchedValue)}
	})
	for _, raw := range []string{
		"CONNECT " + watchedValue + ".example.com:443 HTTP/1.1\r\n\r\n",
		"GET http://" + watchedValue + ".example.com/ HTTP/1.1\r\nHost: " + watchedValue + ".example.com\r\n\r\n",
		"CONNECT " + watchedValue + ".evil.com:443 HTTP/1.1\r\n\r\n",
	} {
		if a := b.say(raw); !strings.HasPrefix(a, "HTTP/1.1 403 ") || strings.Contains(a, watchedValue) {
			t.Errorf("%.80q: %q", raw, a)
		}
	}
	if l := w.looked(); len(l) > 0 {
		t.Errorf("resolved %q", l)
	}
	if s := fmt.Sprintf("%+v", b.gw.Summary()); strings.Contains(s, watchedValue) {
		t.Error("the record holds the secret")
	}
}

// A client that says nothing, or too little, is cut off in time; so are those beyond the
// number of clients who may be undecided.
func TestProxySlow(t *testing.T) {
	b := newProxied(t, newWorld(), nil, withLimits(Limits{Sniff: 300 * time.Millisecond}))
	for _, begin := range []string{"", "C", "CONNECT api.example.com:443 HTTP/1.1\r\nX: ", "\x05", "\x05\x01\x00\x05\x01\x00\x03\x40api"} {
		c, err := b.toProxy()
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, begin)
		stop := make(chan struct{})
		go func() { // a drop now and then does not buy time
			for len(begin) > 0 && begin[0] == 'C' {
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Millisecond):
					io.WriteString(c, "a")
				}
			}
		}()
		if _, err := io.Copy(io.Discard, c); errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
			t.Errorf("%q: not cut off", begin)
		}
		close(stop)
	}
	b.waitReason(reasonServerFirst)
	b.waitReason(reasonSlowStart)
}

func TestProxyManyUndecided(t *testing.T) {
	w := newWorld()
	w.name("api.example.com", publicAddr)
	w.serve(t, publicAddr+":7000", echoServer)
	b := newProxied(t, w, []string{"api.example.com:7000 tcp"}, withLimits(Limits{Sniff: testTimeout}))
	var idle []net.Conn
	for range maxHandshakes {
		c, err := b.toProxy()
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
	}
	waitFor(t, "the limit to be met", func() bool {
		c, err := b.toProxy()
		if err != nil {
			return false
		}
		defer c.Close()
		c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		_, err = c.Read(make([]byte, 1))
		return err != nil && !isTimeout(err)
	})
	for _, c := range idle {
		c.Close()
	}
	waitFor(t, "places to be free", func() bool {
		c, err := b.tunnel("api.example.com:7000")
		if err != nil {
			return false
		}
		mustEcho(t, c)
		return true
	})
	if len(b.gw.Summary().Limits) == 0 {
		t.Error("the limit is not recorded")
	}
}

// Close of the gateway ends the listener, undecided clients and tunnels.
func TestProxyCloses(t *testing.T) {
	w := newWorld()
	w.name("api.example.com", publicAddr)
	w.serve(t, publicAddr+":7000", echoServer)
	b := newProxied(t, w, []string{"api.example.com:7000 tcp"})
	undecided, err := b.toProxy()
	if err != nil {
		t.Fatal(err)
	}
	tunnel, err := b.tunnel("api.example.com:7000")
	if err != nil {
		t.Fatal(err)
	}
	mustEcho(t, tunnel)
	b.stopClient()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { b.toProxy() })
	}
	b.gw.Close()
	for _, c := range []net.Conn{undecided, tunnel} {
		if _, err := io.Copy(io.Discard, c); isTimeout(err) {
			t.Error("a connection outlives the gateway")
		}
	}
	wg.Wait()
	if c, err := b.toProxy(); err == nil {
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("a closed gateway sends %d bytes", n)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.gw.ServeProxy(l); !errors.Is(err, errClosed) {
		t.Errorf("a closed gateway serves: %v", err)
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("its listener is open")
	}
}

// Only TCP can be served.
func TestProxyOnUnixSocket(t *testing.T) {
	b := newProxied(t, newWorld(), nil)
	path := t.TempDir() + "/s"
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- b.gw.ServeProxy(l) }()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "not TCP") {
		t.Errorf("got %v", err)
	}
}

// FuzzProxy: whatever a client sends is answered or cut off, and dials nothing that no
// route names.
func FuzzProxy(f *testing.F) {
	for _, s := range []string{
		"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n\x16\x03\x01", "GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
		"\x05\x01\x00\x05\x01\x00\x03\x08evil.com\x01\xbb", "\x04\x01", "CONNECT [::1]:1 HTTP/1.0\r\n\r\n", "CONNECT evil.com:53 HTTP/1.0\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	w := newWorld()
	w.name("api.example.com", publicAddr)
	table := routes(f, "api.example.com")
	f.Setenv(carriedBy, "proxy")
	b := newBottle(f, w, table, withLimits(Limits{Sniff: testenv.Patience(time.Second)}))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := net.Dial("tcp", b.proxy)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(testTimeout))
		c.Write(data)
		c.(*net.TCPConn).CloseWrite()
		answer, err := io.ReadAll(c)
		if isTimeout(err) {
			t.Errorf("%q hangs after %q", data, answer)
		}
		if bytes.HasPrefix(answer, []byte("HTTP/1.1 200 Connection")) && !bytes.Contains(bytes.ToLower(data), []byte("api.example.com")) && !bytes.Contains(data, []byte(":53")) {
			t.Errorf("%q is granted", data)
		}
		for _, d := range w.dials() {
			if d.Addr() != netip.MustParseAddr(publicAddr) {
				t.Errorf("%q dials %v", data, d)
			}
		}
	})
}
