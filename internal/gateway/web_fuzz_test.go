package gateway

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"

	"github.com/carboy/carboy/internal/policy"
)

// memConn reads from a byte slice.
type memConn struct {
	net.Conn
	r io.Reader
}

func (m memConn) Read(b []byte) (int, error) { return m.r.Read(b) }
func (m memConn) Close() error               { return nil }

// FuzzLint: Go's parser reads what the linter passes as exactly the bytes that came,
// request by request.
func FuzzLint(f *testing.F) {
	for _, raw := range smuggling {
		f.Add([]byte(raw), 1)
	}
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\nPOST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n"), 3)
	f.Fuzz(func(t *testing.T, in []byte, step int) {
		if step < 1 || len(in) > 32<<10 {
			return
		}
		c := newLintConn(memConn{r: &stepReader{in, step}}, nil, 8<<10)
		c.flow = flowOf(t, true)
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
		// What was delivered before the refusal has one length, and no header that the
		// linter should have refused.
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

// FuzzSniff: the limit holds, nothing is lost, and a name that is found is also found
// by a second reading.
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
		read := func(step int) (protocol, Reason, hello2, []byte) {
			s := newSniffer(&stepReader{in, step}, limit)
			k, reason := s.protocol()
			var h hello2
			if k == protoTLS {
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
