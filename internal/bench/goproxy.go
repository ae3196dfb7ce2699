package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
)

// proxyArg makes this program the peer that the gateway should not be slower than:
// Go's own reverse proxy between two TLS connections, with nothing looked at, judged
// or written down.
const proxyArg = "-proxy"

// runProxy serves until its input ends; it prints its port first.
func runProxy(args []string, in io.Reader, out io.Writer) int {
	if len(args) != 1 {
		return 2
	}
	ca, err := readCertAuthority(args[0])
	if err == nil {
		err = serveProxy(ca, in, out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "proxy:", err)
		return 1
	}
	return 0
}

func serveProxy(ca *certAuthority, in io.Reader, out io.Writer) error {
	leaf, err := ca.leaf("localhost")
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	quiet := log.New(io.Discard, "", 0)
	both := new(http.Protocols)
	both.SetHTTP1(true)
	both.SetHTTP2(true)
	inner := &http.Server{ErrorLog: quiet, Protocols: both, Handler: &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) { p.Out.URL.Scheme, p.Out.URL.Host = "https", p.In.Host },
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots}, Protocols: both, MaxIdleConnsPerHost: 64, DisableCompression: true,
		},
		ErrorLog: quiet,
	}}
	opened := &handed{make(chan net.Conn)}
	go inner.Serve(opened) // ends with the process
	config := &tls.Config{Certificates: []tls.Certificate{*leaf}, NextProtos: []string{"h2", "http/1.1"}}
	outer := &http.Server{ErrorLog: quiet, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			http.Error(w, "CONNECT only", http.StatusMethodNotAllowed)
			return
		}
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
			c.Close()
			return
		}
		t := tls.Server(c, config)
		if t.Handshake() != nil {
			c.Close()
			return
		}
		opened.conns <- t
	})}
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go outer.Serve(ln) // ends with the process
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	fmt.Fprintln(out, port)
	io.Copy(io.Discard, in)
	return nil
}

// handed is a listener of connections that were accepted elsewhere.
type handed struct{ conns chan net.Conn }

func (h *handed) Accept() (net.Conn, error) { return <-h.conns, nil }
func (h *handed) Close() error              { return nil }
func (h *handed) Addr() net.Addr            { return &net.TCPAddr{} }
