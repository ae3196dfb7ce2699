package gateway

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"
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

// mustAlert checks for a TLS alert and then the end of the connection.
func mustAlert(t *testing.T, c net.Conn, want byte) {
	t.Helper()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, alert(want)) {
		t.Errorf("got %.20x, %v; want alert %d", got, err, want)
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

	// Another allowed name on this one's address, a refused name, a part of the name,
	// and none.
	for _, name := range []string{"other.example.com", "evil.com", "example.com", "x.api.example.com", "api.example.com.evil.com"} {
		c := b.mustDial("api.example.com", 443)
		c.Write(clientHello(t, &tls.Config{ServerName: name}))
		mustAlert(t, c, alertUnrecognizedName)
	}
	c := b.mustDial("api.example.com", 443)
	c.Write(clientHello(t, &tls.Config{InsecureSkipVerify: true}))
	mustAlert(t, c, alertUnrecognizedName)
	b.waitReason(reasonSNIAbsent)
	l := literal()
	l.Write(clientHello(t, &tls.Config{ServerName: "api.example.com"}))
	mustAlert(t, l, alertUnrecognizedName)
	if got := b.waitConn("fronting", func(c ConnSummary) bool { return c.Reason == reasonSNIMismatch && c.Name == "1.2.3.4" }); got.Allowed {
		t.Errorf("record: %+v", got)
	}
	if len(w.dials()) != dialled {
		t.Errorf("a refused connection was dialled")
	}

	// A name that does not resolve outside.
	c = b.mustDial("fails.example.com", 443)
	c.Write(clientHello(t, &tls.Config{ServerName: "fails.example.com"}))
	mustAlert(t, c, alertInternalError)
	b.waitReason(reasonResolveFailed)
}

func TestEncryptedHello(t *testing.T) {
	b := newBottle(t, webWorld(t), routes(t, "api.example.com"))
	hello := clientHello(t, &tls.Config{ServerName: "api.example.com"})
	c := b.mustDial("api.example.com", 443)
	c.Write(addExtension(hello, extensionECH, make([]byte, 60)))
	// crypto/tls may notice that this one is malformed; either way it does not pass.
	got, _ := io.ReadAll(c)
	if len(got) != 7 || got[0] != recordAlert {
		t.Errorf("got %x", got)
	}
	// Control: any other unknown extension passes.
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

// TestHelloInPieces: a hello that is split over segments and records passes; one that
// never ends does not.
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
	b.waitReason(reasonSlowStart)

	c = b.mustDial("api.example.com", 443)
	c.Write([]byte("\x16\x03\x01\x00\x05hello"))
	mustAlert(t, c, alertDecodeError)
	b.waitReason(reasonHelloInvalid)

	// A hello of the largest size that the format allows exceeds the limit.
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
		{"SSH-2.0-OpenSSH_9.2\r\n", reasonSSH},
		{http2Preface + "\r\nSM\r\n\r\n", reasonHTTP2Plain},
		{"\x00\x01\x02\x03", reasonProtocol},
		{"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10", reasonProtocol}, // SSLv2
		{"\x05\x01\x00", reasonProtocol},                                 // SOCKS5
		{"*1\r\n$4\r\nPING\r\n", reasonProtocol},                         // Redis
		{"\x00\x16\x03\x01", reasonProtocol},
		{"GET\t/ HTTP/1.1\r\n", reasonProtocol},
		{strings.Repeat("A", 100), reasonProtocol},
		{"GET", reasonSlowStart},
		{"SSH", reasonSlowStart},
		{"", reasonServerFirst},
	} {
		c := b.mustDial("api.example.com", 443)
		c.Write([]byte(tt.send))
		got, _ := io.ReadAll(c)
		if tt.reason == reasonHTTP2Plain {
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
