package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"time"
)

// protocol is a protocol that the first bytes of a connection show.
type protocol uint8

const (
	protoUnknown protocol = iota
	protoTLS
	protoHTTP1
	protoHTTP2
	protoSSH
)

const (
	http2Preface = "PRI * HTTP/2.0\r\n"
	sshPreface   = "SSH-"

	// maxMethod bounds an HTTP method; the longest registered one has 17
	// characters.
	maxMethod = 24
)

// limitError says that a limit was reached while reading.
type limitError Reason

func (e limitError) Error() string { return string(e) }

// sniffer reads the beginning of a connection. It keeps what it read, so that it can
// be passed on unchanged.
type sniffer struct {
	src   io.Reader
	limit int
	buf   []byte
	err   error
}

func newSniffer(src io.Reader, limit int) *sniffer { return &sniffer{src: src, limit: limit} }

// seen returns all bytes read so far.
func (s *sniffer) seen() []byte { return s.buf }

// more reads once, up to the limit.
func (s *sniffer) more() error {
	if s.err != nil {
		return s.err
	}
	if len(s.buf) >= s.limit {
		return limitError(ReasonLimitHead)
	}
	// Room for one packet: a ClientHello is often one or two.
	s.buf = slices.Grow(s.buf, min(2048, s.limit-len(s.buf)))
	n, err := s.src.Read(s.buf[len(s.buf):min(cap(s.buf), s.limit)])
	s.buf = s.buf[:len(s.buf)+n]
	if n > 0 {
		s.err = err
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	s.err = err
	return err
}

// protocol reads until it knows the protocol.
func (s *sniffer) protocol() (protocol, Reason) {
	for {
		if k, sure := classifyStart(s.buf); sure {
			return k, ReasonOK
		}
		if err := s.more(); err != nil {
			return protoUnknown, s.startReason(err)
		}
	}
}

func (s *sniffer) startReason(err error) Reason {
	var le limitError
	switch {
	case errors.As(err, &le):
		return Reason(le)
	case isTimeout(err) && len(s.buf) == 0:
		return reasonServerFirst
	case isTimeout(err):
		return reasonSlowStart
	default:
		return reasonProtocol
	}
}

// classifyStart returns the protocol that b begins with. sure says that more bytes
// could not change that.
func classifyStart(b []byte) (k protocol, sure bool) {
	if len(b) == 0 {
		return protoUnknown, false
	}
	if b[0] == recordHandshake {
		return protoTLS, true
	}
	for k, preface := range map[protocol]string{protoHTTP2: http2Preface, protoSSH: sshPreface} {
		if len(b) < len(preface) && bytes.HasPrefix([]byte(preface), b) {
			return protoUnknown, false
		}
		if bytes.HasPrefix(b, []byte(preface)) {
			return k, true
		}
	}
	for i, c := range b {
		switch {
		case c == ' ' && i > 0:
			return protoHTTP1, true
		case c < 'A' || c > 'Z' && c != '_' && c < 'a' || c > 'z':
			if c == '-' && i > 0 {
				continue
			}
			return protoUnknown, true
		case i >= maxMethod:
			return protoUnknown, true
		}
	}
	return protoUnknown, false
}

// hello holds the relevant fields of a TLS ClientHello.
type hello struct {
	name string
	ech  bool
}

const (
	recordHandshake = 0x16
	recordAlert     = 0x15

	// extensionECH is encrypted_client_hello (RFC 9849). Browsers also send it with
	// random contents ("GREASE"). The two can't be told apart, so neither may pass
	// unopened.
	extensionECH uint16 = 0xfe0d
)

var errHelloSeen = errors.New("hello seen")

// hello reads a whole ClientHello with the parser of crypto/tls, which refuses
// repeated extensions, several server names and other double meanings.
func (s *sniffer) hello() (hello, error) {
	var h hello
	found := false
	cfg := &tls.Config{GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
		found = true
		h.name = info.ServerName
		h.ech = slices.Contains(info.Extensions, extensionECH)
		return nil, errHelloSeen
	}}
	err := tls.Server(&replay{s: s}, cfg).HandshakeContext(context.Background())
	if found {
		return h, nil
	}
	if err == nil {
		err = errors.New("handshake without hello")
	}
	return hello{}, err
}

// replay is the connection that the TLS parser reads from: first the buffered bytes,
// then more. It drops what the parser writes.
type replay struct {
	s   *sniffer
	off int
}

func (r *replay) Read(b []byte) (int, error) {
	if r.off == len(r.s.buf) {
		if err := r.s.more(); err != nil {
			return 0, err
		}
	}
	n := copy(b, r.s.buf[r.off:])
	r.off += n
	return n, nil
}

func (r *replay) Write(b []byte) (int, error)      { return len(b), nil }
func (r *replay) Close() error                     { return nil }
func (r *replay) LocalAddr() net.Addr              { return nil }
func (r *replay) RemoteAddr() net.Addr             { return nil }
func (r *replay) SetDeadline(time.Time) error      { return nil }
func (r *replay) SetReadDeadline(time.Time) error  { return nil }
func (r *replay) SetWriteDeadline(time.Time) error { return nil }

// TLS alerts (RFC 8446 section 6).
const (
	alertIllegalParameter = 47
	alertAccessDenied     = 49
	alertDecodeError      = 50
	alertInternalError    = 80
	alertUnrecognizedName = 112
)

// alert returns a fatal alert as a record.
func alert(description byte) []byte {
	return []byte{recordAlert, 3, 3, 0, 2, 2, description}
}

func dialAlert(r Reason) byte {
	if r == reasonDialFailed || r == reasonResolveFailed {
		return alertInternalError
	}
	return alertAccessDenied
}

// http2GoAway is a complete HTTP/2 server's answer: empty settings, then GOAWAY with
// HTTP_1_1_REQUIRED (RFC 9113 section 7) and a text for people.
var http2GoAway = func() []byte {
	const text = "carboy: use http/1.1 or tls"
	b := []byte{0, 0, 0, 4, 0, 0, 0, 0, 0}
	b = append(b, 0, 0, byte(8+len(text)), 7, 0, 0, 0, 0, 0)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0x0d)
	return append(b, text...)
}()
