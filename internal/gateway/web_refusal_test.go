package gateway

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/policy"
)

// clientHello returns the first flight of a client with this server name.
func clientHello(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	a, b := net.Pipe()
	go func() {
		_ = tls.Client(a, cfg).Handshake()
		a.Close()
	}()
	buf := make([]byte, 16<<10)
	b.SetReadDeadline(time.Now().Add(testTimeout))
	n, err := b.Read(buf)
	b.Close()
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

// mustAlert wants a TLS alert and the end of the connection.
func mustAlert(t *testing.T, c net.Conn, want byte) {
	t.Helper()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, alert(want)) {
		t.Errorf("got %x, %v; want alert %d", got, err, want)
	}
}

func TestServerName(t *testing.T) {
	w := webWorld(t)
	w.name("other.example.com", publicAddr)
	w.point("1.2.3.4:443", w.servers[ap(publicAddr+":443")])
	b := newBottle(t, w, routes(t, "api.example.com", "other.example.com", "1.2.3.4:443", "fails.example.com"))

	handshake := func(c net.Conn, name string) error {
		tc := tls.Client(c, &tls.Config{ServerName: name, InsecureSkipVerify: true})
		return tc.Handshake()
	}
	for _, name := range []string{"api.example.com", "API.Example.com"} {
		if err := handshake(b.mustDial("api.example.com", 443), name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	literal := func() net.Conn {
		c, err := b.connect(ap("1.2.3.4:443"))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if err := handshake(literal(), "1.2.3.4"); err != nil {
		t.Errorf("literal: %v", err)
	}
	dialled := len(w.dials())

	// Another allowed name on this one's address; a name that is not
	// allowed; a part; none.
	for _, name := range []string{"other.example.com", "evil.com", "example.com", "x.api.example.com", "api.example.com.evil.com"} {
		c := b.mustDial("api.example.com", 443)
		c.Write(clientHello(t, &tls.Config{ServerName: name}))
		mustAlert(t, c, alertUnrecognizedName)
	}
	c := b.mustDial("api.example.com", 443)
	c.Write(clientHello(t, &tls.Config{InsecureSkipVerify: true}))
	mustAlert(t, c, alertUnrecognizedName)
	b.waitReason(ReasonSNIAbsent)
	l := literal()
	l.Write(clientHello(t, &tls.Config{ServerName: "api.example.com"}))
	mustAlert(t, l, alertUnrecognizedName)
	if got := b.waitConn("fronting", func(c ConnSummary) bool { return c.Reason == ReasonSNIMismatch && c.Name == "1.2.3.4" }); got.Allowed {
		t.Errorf("record: %+v", got)
	}
	if len(w.dials()) != dialled {
		t.Errorf("a refused connection was dialled")
	}

	// A name that does not resolve outside.
	c = b.mustDial("fails.example.com", 443)
	c.Write(clientHello(t, &tls.Config{ServerName: "fails.example.com"}))
	mustAlert(t, c, alertInternalError)
	b.waitReason(ReasonResolveFailed)
}

func TestEncryptedHello(t *testing.T) {
	b := newBottle(t, webWorld(t), routes(t, "api.example.com"))
	hello := clientHello(t, &tls.Config{ServerName: "api.example.com"})
	c := b.mustDial("api.example.com", 443)
	c.Write(addExtension(hello, extensionECH, make([]byte, 60)))
	// crypto/tls may see that this one is not well-formed; either way it
	// does not pass.
	got, _ := io.ReadAll(c)
	if len(got) != 7 || got[0] != recordAlert {
		t.Errorf("got %x", got)
	}
	// The neighbour: any other extension that we don't know.
	c = b.mustDial("api.example.com", 443)
	c.Write(addExtension(hello, 0xfafa, make([]byte, 60)))
	got = make([]byte, 1)
	if _, err := io.ReadFull(c, got); err != nil || got[0] != recordHandshake {
		t.Errorf("got %x, %v", got, err)
	}
}

// addExtension appends an extension to a ClientHello record.
func addExtension(hello []byte, id uint16, body []byte) []byte {
	h := bytes.Clone(hello)
	ext := append([]byte{byte(id >> 8), byte(id), byte(len(body) >> 8), byte(len(body))}, body...)
	// record(5) handshake(4) version(2) random(32) session ciphers compression extensions
	p := 5 + 4 + 2 + 32
	p += 1 + int(h[p])
	p += 2 + int(h[p])<<8 + int(h[p+1])
	p += 1 + int(h[p])
	add := func(at, size int) {
		n := 0
		for i := range size {
			n = n<<8 | int(h[at+i])
		}
		n += len(ext)
		for i := size - 1; i >= 0; i-- {
			h[at+i] = byte(n)
			n >>= 8
		}
	}
	add(3, 2)
	add(6, 3)
	add(p, 2)
	return append(h, ext...)
}

// TestHelloInPieces: a hello that is split over segments and records passes;
// one that never ends does not.
func TestHelloInPieces(t *testing.T) {
	b := newBottle(t, webWorld(t), routes(t, "api.example.com"), withLimits(Limits{Sniff: 500 * time.Millisecond}))
	hello := clientHello(t, &tls.Config{ServerName: "api.example.com"})

	c := b.mustDial("api.example.com", 443)
	for i := range hello {
		if i%97 == 0 || i < 20 {
			c.Write(hello[i:min(i+1, len(hello))])
			continue
		}
		if i%97 == 1 || i == 20 {
			end := min(i-i%97+97, len(hello))
			c.Write(hello[i:end])
		}
	}
	got := make([]byte, 1)
	if _, err := io.ReadFull(c, got); err != nil || got[0] != recordHandshake {
		t.Errorf("split over segments: %x, %v", got, err)
	}

	var records []byte
	for rest := hello[5:]; len(rest) > 0; {
		n := min(50, len(rest))
		records = append(records, recordHandshake, 3, 1, 0, byte(n))
		records = append(records, rest[:n]...)
		rest = rest[n:]
	}
	c = b.mustDial("api.example.com", 443)
	c.Write(records)
	if _, err := io.ReadFull(c, got); err != nil || got[0] != recordHandshake {
		t.Errorf("split over records: %x, %v", got, err)
	}

	c = b.mustDial("api.example.com", 443)
	c.Write(hello[:50])
	if n, err := c.Read(got); err == nil {
		t.Errorf("half a hello: read %d", n)
	}
	b.waitReason(ReasonSlowStart)

	c = b.mustDial("api.example.com", 443)
	c.Write([]byte("\x16\x03\x01\x00\x05hello"))
	mustAlert(t, c, alertDecodeError)
	b.waitReason(ReasonHelloInvalid)

	// A hello as large as the format allows, beyond our bound.
	c = b.mustDial("api.example.com", 443)
	big := []byte{1, 0, 0xff, 0xff}
	big = append(big, make([]byte, 0xffff)...)
	for len(big) > 0 {
		n := min(16<<10, len(big))
		c.Write([]byte{recordHandshake, 3, 1, byte(n >> 8), byte(n)})
		if _, err := c.Write(big[:n]); err != nil {
			break
		}
		big = big[n:]
	}
	if _, err := io.ReadAll(c); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("huge hello: %v", err)
	}
	b.waitReason(ReasonLimitHead)
}

func TestOtherProtocols(t *testing.T) {
	w := webWorld(t)
	b := newBottle(t, w, routes(t, "api.example.com", "api.example.com:8443"), withLimits(Limits{Sniff: 300 * time.Millisecond}))
	for _, tt := range []struct {
		send   string
		reason Reason
	}{
		{"SSH-2.0-OpenSSH_9.2\r\n", ReasonSSH},
		{http2Preface + "\r\nSM\r\n\r\n", ReasonHTTP2Plain},
		{"\x00\x01\x02\x03", ReasonProtocol},
		{"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10", ReasonProtocol}, // SSLv2
		{"\x05\x01\x00", ReasonProtocol},                                 // SOCKS5
		{"*1\r\n$4\r\nPING\r\n", ReasonProtocol},                         // Redis
		{"\x00\x16\x03\x01", ReasonProtocol},
		{"GET\t/ HTTP/1.1\r\n", ReasonProtocol},
		{strings.Repeat("A", 100), ReasonProtocol},
		{"GET", ReasonSlowStart},
		{"SSH", ReasonSlowStart},
		{"", ReasonServerFirst},
	} {
		c := b.mustDial("api.example.com", 443)
		c.Write([]byte(tt.send))
		got, _ := io.ReadAll(c)
		if tt.reason == ReasonHTTP2Plain {
			if !bytes.Contains(got, []byte("carboy")) {
				t.Errorf("%q: got %q", tt.send, got)
			}
		} else if len(got) > 0 {
			t.Errorf("%q: got %q", tt.send, got)
		}
		b.waitReason(tt.reason)
	}
	if d := w.dials(); len(d) != 0 {
		t.Errorf("dialled %v", d)
	}
}

// request sends bytes on a new connection and reads one answer.
func (b *bottle) request(t *testing.T, host string, raw string) (*http.Response, string) {
	t.Helper()
	c := b.mustDial(host, 80)
	defer c.Close()
	if _, err := io.WriteString(c, raw); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%.60q: %v", raw, err)
	}
	body, _ := io.ReadAll(res.Body)
	return res, string(body)
}

func TestAuthority(t *testing.T) {
	w := webWorld(t)
	w.name("other.example.com", publicAddr)
	b := newBottle(t, w, routes(t, "api.example.com", "other.example.com", "1.2.3.4:80"))
	for _, ok := range []string{
		"GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: api.example.com:80\r\n\r\n",
		"GET / HTTP/1.0\r\nHost: API.EXAMPLE.COM.\r\n\r\n",
		"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
	} {
		if res, body := b.request(t, "api.example.com", ok); res.StatusCode != 200 {
			t.Errorf("%q: %d %s", ok, res.StatusCode, body)
		}
	}
	dialled := len(w.dials())
	for _, tt := range []struct {
		raw    string
		status int
	}{
		{"GET / HTTP/1.1\r\nHost: other.example.com\r\n\r\n", 421},
		{"GET / HTTP/1.1\r\nHost: evil.com\r\n\r\n", 421},
		{"GET / HTTP/1.1\r\nHost: api.example.com:81\r\n\r\n", 421},
		{"GET / HTTP/1.1\r\nHost: api.example.com@evil.com\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost: api.example.com, evil.com\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost: 1.2.3.4\r\n\r\n", 421},
		{"GET / HTTP/1.1\r\nHost:\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost: api.example.com\r\nHost: evil.com\r\n\r\n", 400},
		{"GET http://evil.com/ HTTP/1.1\r\nHost: evil.com\r\n\r\n", 421},
		{"GET http://evil.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n", 400},
		{"GET http://api.example.com/ HTTP/1.1\r\nHost: evil.com\r\n\r\n", 400},
		{"GET https://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n", 400},
		{"GET http://u:p@api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n", 400},
		{"CONNECT evil.com:443 HTTP/1.1\r\nHost: evil.com:443\r\n\r\n", 403},
		{"CONNECT api.example.com:80 HTTP/1.1\r\nHost: api.example.com:80\r\n\r\n", 403},
		{"OPTIONS * HTTP/1.1\r\nHost: api.example.com\r\n\r\n", 400},
		{"CARBOY-REFUSED / HTTP/1.1\r\nHost: api.example.com\r\n\r\n", 400},
	} {
		res, body := b.request(t, "api.example.com", tt.raw)
		if res.StatusCode != tt.status || !strings.Contains(body, "carboy") && tt.status != 400 {
			t.Errorf("%q: %d %s", tt.raw, res.StatusCode, body)
		}
	}
	if len(w.dials()) != dialled {
		t.Errorf("a refused request was dialled")
	}

	// What the refusal says, to people and to programs.
	_, body := b.request(t, "api.example.com", "GET / HTTP/1.1\r\nHost: evil.com\r\n\r\n")
	if !strings.Contains(body, "--allow evil.com:80") || !strings.Contains(body, "host-mismatch") {
		t.Errorf("refusal: %s", body)
	}
	_, body = b.request(t, "api.example.com", "GET / HTTP/1.1\r\nHost: evil.com\r\nAccept: application/json\r\n\r\n")
	var r refusal
	if err := json.Unmarshal([]byte(body), &r); err != nil || r.Reason != ReasonHostMismatch || r.Host != "api.example.com" || r.Allow != "--allow evil.com:80" {
		t.Errorf("refusal: %s", body)
	}
}

// TestKeptConnection: each request of a connection is judged, not the first.
func TestKeptConnection(t *testing.T) {
	b := newBottle(t, webWorld(t), routes(t, "api.example.com", "other.example.com"))
	c := b.mustDial("api.example.com", 80)
	br := bufio.NewReader(c)
	do := func(host string) int {
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host)
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		return res.StatusCode
	}
	for range 3 {
		if s := do("api.example.com"); s != 200 {
			t.Fatalf("allowed: %d", s)
		}
	}
	if s := do("other.example.com"); s != 421 {
		t.Errorf("another host: %d", s)
	}
	if _, err := br.ReadByte(); err != io.EOF {
		t.Errorf("the connection lives: %v", err)
	}

	// Pipelined: the answer to the good one, then the refusal.
	c = b.mustDial("api.example.com", 80)
	io.WriteString(c, "GET /1 HTTP/1.1\r\nHost: api.example.com\r\n\r\nGET /2 HTTP/1.1\r\nHost: api.example.com\r\nHost: x\r\n\r\n")
	br = bufio.NewReader(c)
	for _, want := range []int{200, 400} {
		res, err := http.ReadResponse(br, nil)
		if err != nil || res.StatusCode != want {
			t.Fatalf("pipelined: %v, %v; want %d", res, err, want)
		}
		io.Copy(io.Discard, res.Body)
	}
}

// smuggling lists requests with two readings.
var smuggling = map[string]string{
	"two lengths":            "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
	"two equal lengths":      "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
	"list of lengths":        "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3, 3\r\n\r\nabc",
	"length and chunks":      "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"chunks and length":      "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
	"two encodings":          "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
	"identity":               "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: identity\r\n\r\n",
	"encoding list":          "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
	"encoding with tab":      "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n",
	"encoding, space, colon": "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
	"chunks in 1.0":          "POST / HTTP/1.0\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"plus length":            "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: +3\r\n\r\nabc",
	"negative length":        "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: -1\r\n\r\n",
	"hex length":             "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 0x3\r\n\r\nabc",
	"empty length":           "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length:\r\n\r\n",
	"huge length":            "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 99999999999999999999\r\n\r\n",
	"folded":                 "GET / HTTP/1.1\r\nHost: api.example.com\r\nX: a\r\n b\r\n\r\n",
	"folded host":            "GET / HTTP/1.1\r\nHost:\r\n api.example.com\r\n\r\n",
	"bare lf":                "GET / HTTP/1.1\nHost: api.example.com\n\n",
	"one bare lf":            "GET / HTTP/1.1\r\nHost: api.example.com\nX: y\r\n\r\n",
	"bare lf end":            "GET / HTTP/1.1\r\nHost: api.example.com\n\nGET /evil HTTP/1.1\r\n\r\n",
	"bare cr":                "GET / HTTP/1.1\r\nHost: api.example.com\r\nX: a\rY: b\r\n\r\n",
	"nul":                    "GET / HTTP/1.1\r\nHost: api.example.com\r\nX: a\x00b\r\n\r\n",
	"no colon":               "GET / HTTP/1.1\r\nHost: api.example.com\r\nX\r\n\r\n",
	"space in name":          "GET / HTTP/1.1\r\nHost: api.example.com\r\nX y: z\r\n\r\n",
	"first line folded":      "GET / HTTP/1.1\r\n X: y\r\nHost: api.example.com\r\n\r\n",
	"two spaces":             "GET  / HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
	"space in target":        "GET /a b HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
	"raw bytes in target":    "GET /\xff HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
	"version 0.9":            "GET /\r\n\r\n",
	"version 1.2":            "GET / HTTP/1.2\r\nHost: api.example.com\r\n\r\n",
	"version 2.0":            "GET / HTTP/2.0\r\nHost: api.example.com\r\n\r\n",
	"version lower case":     "GET / http/1.1\r\nHost: api.example.com\r\n\r\n",
}

func TestSmuggling(t *testing.T) {
	w := webWorld(t)
	b := newBottle(t, w, routes(t, "api.example.com"))
	for name, raw := range smuggling {
		if res, body := b.request(t, "api.example.com", raw); res.StatusCode != 400 {
			t.Errorf("%s: %d %s", name, res.StatusCode, body)
		}
	}
	if d := w.dials(); len(d) != 0 {
		t.Fatalf("dialled %v", d)
	}
	for name, raw := range map[string]string{
		"length":   "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3\r\n\r\nabc",
		"chunks":   "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
		"trailer":  "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n",
		"bytes":    "POST / HTTP/1.1\r\nHost: api.example.com\r\nX: \xff\t \xc3\xa9\r\nContent-Length: 3\r\n\r\na\n\x00",
		"continue": "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc",
	} {
		if res, body := b.request(t, "api.example.com", raw); res.StatusCode != 200 || !strings.HasSuffix(body, " 3") {
			t.Errorf("%s: %d %s", name, res.StatusCode, body)
		}
	}
	// Chunks that go wrong after the request was passed on: it must not be
	// answered as if it had been whole.
	for name, chunks := range map[string]string{
		"extension":     "3;a=b\r\nabc\r\n0\r\n\r\n",
		"bare lf":       "3\nabc\r\n0\r\n\r\n",
		"wrong size":    "2\r\nabc\r\n0\r\n\r\n",
		"signed":        "+3\r\nabc\r\n0\r\n\r\n",
		"prefixed":      "0x3\r\nabc\r\n0\r\n\r\n",
		"underscore":    "1_0\r\nabcabcabcabcabca\r\n0\r\n\r\n",
		"overflow":      "ffffffffffffffff3\r\nabc\r\n0\r\n\r\n",
		"empty":         "\r\nabc\r\n0\r\n\r\n",
		"bad trailer":   "3\r\nabc\r\n0\r\nX y\r\n\r\n",
		"space in size": "3 \r\nabc\r\n0\r\n\r\n",
	} {
		c := b.mustDial("api.example.com", 80)
		io.WriteString(c, "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n"+chunks)
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err == nil && res.StatusCode < 400 {
			t.Errorf("chunks, %s: %d", name, res.StatusCode)
		}
		c.Close()
	}
}

func TestLargeHeads(t *testing.T) {
	b := newBottle(t, webWorld(t), routes(t, "api.example.com"), withLimits(Limits{HeadBytes: 8 << 10, Sniff: 300 * time.Millisecond}))
	head := func(n int) string {
		return "GET / HTTP/1.1\r\nHost: api.example.com\r\nX: " + strings.Repeat("y", n) + "\r\n\r\n"
	}
	if res, _ := b.request(t, "api.example.com", head(4<<10)); res.StatusCode != 200 {
		t.Errorf("a head within the bound: %d", res.StatusCode)
	}
	if res, _ := b.request(t, "api.example.com", head(9<<10)); res.StatusCode != 431 {
		t.Errorf("a head beyond the bound: %d", res.StatusCode)
	}
	b.waitLimit(ReasonLimitHead, 1)
	// One that never ends, byte by byte.
	c := b.mustDial("api.example.com", 80)
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: api.example.com\r\n")
	if got, _ := io.ReadAll(c); bytes.Contains(got, []byte("200")) {
		t.Errorf("a slow head: %s", got)
	}
}

func TestRefusedUpstream(t *testing.T) {
	w := newWorld()
	w.name("inner.example.com", "10.0.0.1")
	w.name("down.example.com", publicAddr)
	b := newBottle(t, w, routes(t, "inner.example.com", "down.example.com", "gone.example.com"))
	for host, want := range map[string]struct {
		status int
		text   string
	}{
		"inner.example.com": {403, "--allow-private inner.example.com:80"},
		"down.example.com":  {502, "dial-failed"},
		"gone.example.com":  {502, "resolve-failed"},
	} {
		res, body := b.request(t, host, "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
		if res.StatusCode != want.status || !strings.Contains(body, want.text) {
			t.Errorf("%s: %d %s", host, res.StatusCode, body)
		}
	}
}

func TestHopByHopHeaders(t *testing.T) {
	w := newWorld()
	w.name("api.example.com", publicAddr)
	got := make(chan http.Header, 1)
	w.serve(t, publicAddr+":80", func(c net.Conn) {
		defer c.Close()
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		got <- r.Header
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	})
	b := newBottle(t, w, routes(t, "api.example.com"))
	b.request(t, "api.example.com", "GET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: X-Hop, Upgrade, HTTP2-Settings\r\nX-Hop: 1\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n"+
		"Proxy-Authorization: Basic x\r\nProxy-Connection: keep-alive\r\nKeep-Alive: 5\r\nX-Forwarded-For: 1.1.1.1\r\nAuthorization: Bearer t\r\n\r\n")
	h := <-got
	for _, name := range []string{"X-Hop", "Upgrade", "Http2-Settings", "Proxy-Authorization", "Proxy-Connection", "Keep-Alive", "X-Forwarded-For", "Via"} {
		if v := h.Get(name); v != "" {
			t.Errorf("%s: %q went out", name, v)
		}
	}
	if h.Get("Authorization") != "Bearer t" {
		t.Error("an end-to-end header was lost")
	}
}

func TestWebSocket(t *testing.T) {
	w := newWorld()
	w.name("api.example.com", publicAddr)
	w.serve(t, publicAddr+":80", func(c net.Conn) {
		defer c.Close()
		br := bufio.NewReader(c)
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("X-Want"))
		io.Copy(c, br)
	})
	b := newBottle(t, w, routes(t, "api.example.com"))
	try := func(want string) (*http.Response, net.Conn, *bufio.Reader) {
		c := b.mustDial("api.example.com", 80)
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Want: %s\r\n\r\n", want)
		br := bufio.NewReader(c)
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		return res, c, br
	}
	res, c, br := try("websocket")
	if res.StatusCode != 101 {
		t.Fatalf("status %d", res.StatusCode)
	}
	frame := []byte("\x81\x84\n\r\x00\xff\x01GET")
	c.Write(frame)
	got := make([]byte, len(frame))
	if _, err := io.ReadFull(br, got); err != nil || !bytes.Equal(got, frame) {
		t.Errorf("frame: %x, %v", got, err)
	}
	c.Close()
	b.waitConn("websocket", func(c ConnSummary) bool { return c.Protocol == "websocket" && c.Allowed })
	if res, _, _ := try("h2c"); res.StatusCode != 502 {
		t.Errorf("a switch to another protocol: %d", res.StatusCode)
	}
}

func TestStreaming(t *testing.T) {
	w := newWorld()
	w.name("api.example.com", publicAddr)
	w.serve(t, publicAddr+":80", func(c net.Conn) {
		defer c.Close()
		br := bufio.NewReader(c)
		if _, err := http.ReadRequest(br); err != nil {
			return
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
		io.Copy(io.Discard, br)
	})
	b := newBottle(t, w, routes(t, "api.example.com"))
	c := b.mustDial("api.example.com", 80)
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	// The first event arrives while the server still holds the stream.
	got := make([]byte, 9)
	if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != "data: 1\n\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// memConn feeds bytes to a parser.
type memConn struct {
	net.Conn
	r io.Reader
}

func (m memConn) Read(b []byte) (int, error) { return m.r.Read(b) }
func (m memConn) Close() error               { return nil }

// FuzzLint holds that what the linter lets through is read by Go's parser as
// exactly the bytes that came, request by request.
func FuzzLint(f *testing.F) {
	for _, raw := range smuggling {
		f.Add([]byte(raw), 1)
	}
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\nPOST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n"), 3)
	f.Fuzz(func(t *testing.T, in []byte, step int) {
		if step < 1 || len(in) > 32<<10 {
			return
		}
		c := newLintConn(memConn{r: &stepReader{in, step}}, nil, 8<<10, func() {})
		out, err := io.ReadAll(c)
		if err != nil && c.bodyErr == nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("read: %v", err)
		}
		kept, refused := bytes.CutSuffix(out, []byte(refusedHead))
		if refused && c.bad.Load() == nil && !bytes.HasPrefix(in, out) {
			t.Fatal("refused without a reason")
		}
		if !bytes.HasPrefix(in, kept) && !bytes.HasPrefix(in, out) {
			t.Fatalf("delivered %q of %q", kept, in)
		}
		// Whatever was delivered before the refusal has one length, and no
		// header that the linter should have seen.
		br := bufio.NewReader(bytes.NewReader(kept))
		for {
			r, err := http.ReadRequest(br)
			if err != nil {
				break
			}
			if len(r.TransferEncoding) > 0 && r.Header.Get("Content-Length") != "" || len(r.Header["Content-Length"]) > 1 {
				t.Fatalf("two lengths in %q", kept)
			}
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				break
			}
		}
	})
}

type stepReader struct {
	b    []byte
	step int
}

func (s *stepReader) Read(b []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b, s.b[:min(s.step, len(s.b))])
	s.b = s.b[n:]
	return n, nil
}

// FuzzSniff holds that the bound is kept, that nothing is lost, and that a
// name that is found is one that a second reading finds too.
func FuzzSniff(f *testing.F) {
	hello := clientHello(f, &tls.Config{ServerName: "api.example.com"})
	f.Add(hello, 1000)
	f.Add(hello[:100], 7)
	f.Add(addExtension(hello, extensionECH, make([]byte, 40)), 100)
	f.Add(addExtension(hello, 0, []byte{0, 4, 0, 0, 1, 'x'}), 100)
	f.Add([]byte("GET / HTTP/1.1\r\n"), 1)
	f.Add([]byte(http2Preface), 3)
	f.Add([]byte("SSH-2.0"), 2)
	f.Fuzz(func(t *testing.T, in []byte, step int) {
		if step < 1 {
			return
		}
		const limit = 8 << 10
		read := func(step int) (kind, Reason, hello2, []byte) {
			s := newSniffer(&stepReader{in, step}, limit)
			k, reason := s.kind()
			var h hello2
			if k == kindTLS {
				h.h, h.err = s.hello()
			}
			return k, reason, h, s.seen()
		}
		k, reason, h, seen := read(step)
		if len(seen) > limit || !bytes.HasPrefix(in, seen) {
			t.Fatalf("%d bytes seen", len(seen))
		}
		k2, reason2, h2, _ := read(1 << 20)
		if k != k2 || reason != reason2 || (h.err == nil) != (h2.err == nil) || h.h != h2.h {
			t.Fatalf("two readings: %v %v %v, %v %v %v", k, reason, h, k2, reason2, h2)
		}
		if h.err == nil && h.h.name != "" {
			if _, err := netip.ParseAddr(h.h.name); err == nil {
				t.Fatalf("an address as server name: %q", h.h.name)
			}
			_, _ = policy.CanonicalName(h.h.name)
		}
	})
}

type hello2 struct {
	h   hello
	err error
}
