package gateway

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"time"
)

// openTLS intercepts a TLS connection: it answers with a certificate that the bottle
// trusts, and hands the content to the HTTP server. Nothing is dialled before a
// request was judged.
func (g *Gateway) openTLS(f *flow, s *sniffer) {
	if !g.readHello(f, s, true) {
		return
	}
	cert, err := g.authority.Leaf(f.name)
	if err != nil {
		f.note(reasonTLS, err.Error())
		g.refuseBytes(f, reasonTLS, alert(alertInternalError))
		return
	}
	below := &webConn{Conn: &resumed{bottleConn: f.conn, first: bytes.NewReader(s.seen())}, flow: f, secure: true}
	conn := tls.Server(below, &tls.Config{
		Certificates: []tls.Certificate{*cert},
		NextProtos:   []string{"h2", "http/1.1"},
		MinVersion:   tls.VersionTLS12,
		// A ticket would outlive the check of the name, and costs memory.
		SessionTicketsDisabled: true,
	})
	_ = f.conn.SetDeadline(time.Now().Add(g.limits.Sniff))
	if err := conn.HandshakeContext(f.ctx); err != nil {
		f.note(reasonTLS, handshakeDetail(err))
		_ = below.Close()
		return
	}
	_ = f.conn.SetDeadline(time.Time{})
	if conn.ConnectionState().NegotiatedProtocol == "h2" {
		f.setProtocol("h2")
		g.web.enter(conn)
		return
	}
	f.setProtocol("https")
	g.web.accept(f, conn, nil)
}

// handshakeDetail says what a person can do about a failed handshake.
func handshakeDetail(err error) string {
	s := err.Error()
	var remote *net.OpError
	if errors.As(err, &remote) || strings.HasPrefix(s, "remote error") {
		if strings.Contains(s, "unknown certificate authority") || strings.Contains(s, "bad certificate") || strings.Contains(s, "certificate unknown") {
			return "the client does not trust this bottle's certificate authority: it has a trust store of its own, or pins the server's; a route with `inspect: false` lets it through unseen"
		}
	}
	if errors.Is(err, io.EOF) {
		return "the client hung up in the handshake; one that does not trust the bottle's certificate authority may"
	}
	return s
}

// resumed is a connection whose first bytes were already read.
type resumed struct {
	*bottleConn
	first *bytes.Reader
}

func (r *resumed) Read(b []byte) (int, error) {
	if r.first.Len() > 0 {
		return r.first.Read(b)
	}
	return r.bottleConn.Read(b)
}
