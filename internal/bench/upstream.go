package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/websocket"
)

// upstream is the server at the end of every path, HTTP/1 and 2 over TLS.
type upstream struct {
	port   string
	server *http.Server
}

const postAnswer = `{"ok":true}`

// Bodies repeat textBlock: the sort of text that agents send, in which
// there is nothing to find.
var textBlock = sync.OnceValue(func() []byte {
	var w bytes.Buffer
	for i := 0; w.Len() < 256<<10; i++ {
		fmt.Fprintf(&w, "func (s *section%d) add(name string, n int) error {\n\tif n > %d {\n\t\treturn fmt.Errorf(\"section %%q: %%d is too many\", name, n)\n\t}\n\ts.names = append(s.names, name)\n\treturn nil\n}\n\n", i, i*7)
	}
	return w.Bytes()[:256<<10]
})

func text(n int) []byte { return textBlock()[:n] }

// texts reads as that block over and over.
type texts struct{ at int }

func (t *texts) Read(b []byte) (int, error) {
	n := copy(b, textBlock()[t.at:])
	t.at = (t.at + n) % len(textBlock())
	return n, nil
}

func newUpstream(ca *certAuthority) (*upstream, error) {
	cert, err := ca.leaf("localhost", "host.carboy.internal")
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	u := &upstream{server: &http.Server{
		Handler: upstreamHandler(), ErrorLog: log.New(io.Discard, "", 0), Protocols: new(http.Protocols),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{*cert}},
		// A window that does not bound what is measured, see docs/benchmarks.md.
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerConnection: 8 << 20, MaxReceiveBufferPerStream: 4 << 20, MaxConcurrentStreams: 250},
	}}
	u.server.Protocols.SetHTTP1(true)
	u.server.Protocols.SetHTTP2(true)
	_, u.port, _ = net.SplitHostPort(ln.Addr().String())
	go u.server.ServeTLS(ln, "", "") // ended by close
	return u, nil
}

func (u *upstream) close() error { return u.server.Close() }

func upstreamHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /post", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, postAnswer)
	})
	mux.HandleFunc("GET /bytes", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.ParseInt(r.FormValue("n"), 10, 64)
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		for block := textBlock(); n > 0; n -= int64(len(block)) {
			if _, err := w.Write(block[:min(n, int64(len(block)))]); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("PUT /sink", func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r.Body}, make([]byte, 256<<10))
		fmt.Fprint(w, n)
	})
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.FormValue("n"))
		w.Header().Set("Content-Type", "text/event-stream")
		tick := time.NewTicker(eventPeriod)
		defer tick.Stop()
		for range n {
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return
			}
			fmt.Fprintf(w, "data: %d\n\n", time.Now().UnixNano())
			if http.NewResponseController(w).Flush() != nil {
				return
			}
		}
	})
	mux.HandleFunc("GET /reset", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100000")
		w.Write(text(1000))
		panic(http.ErrAbortHandler)
	})
	mux.Handle("GET /socket", websocket.Server{Handler: func(c *websocket.Conn) {
		var s string
		for websocket.Message.Receive(c, &s) == nil && websocket.Message.Send(c, s) == nil {
		}
	}})
	return mux
}

const eventPeriod = 20 * time.Millisecond

// certAuthority signs for the server and for those peers that answer in its place.
// It lives as long as one benchmark.
type certAuthority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newCertAuthority() (*certAuthority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "carboy bench"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &certAuthority{cert, key}, err
}

func (c *certAuthority) leaf(names ...string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, c.cert, &key.PublicKey, c.key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

func (c *certAuthority) certPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.cert.Raw})
}

func (c *certAuthority) keyPEM() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.key)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}

// readCertAuthority reads the authority from a file, in a peer with a process of its own.
func readCertAuthority(file string) (*certAuthority, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(b, b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s: not an ECDSA key", file)
	}
	return &certAuthority{pair.Leaf, key}, nil
}
