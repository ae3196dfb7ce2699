package gateway

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/ca"
	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/policy"
	routefile "github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/secret"
)

// tlsWorld is a world with an HTTP/1 and HTTP/2 server whose certificate the gateway
// trusts, and a bottle that trusts the gateway.
type tlsWorld struct {
	*bottle
	server *httptest.Server
	inside *x509.CertPool
	only1  atomic.Bool // the server speaks HTTP/1 only
}

const otherAddr = "93.184.216.35"

func newTLSWorld(t testing.TB, file string, h http.Handler, opts ...option) *tlsWorld {
	t.Helper()
	w := newWorld()
	outside, err := ca.New("the world", nil)
	if err != nil {
		t.Fatal(err)
	}
	o := &tlsWorld{inside: x509.NewCertPool()}
	o.server = httptest.NewUnstartedServer(h)
	o.server.EnableHTTP2 = true
	o.server.TLS = &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if h.ServerName == "wrong.example.com" {
			return outside.Leaf("other.example.com")
		}
		return outside.Leaf(h.ServerName)
	}}
	o.server.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		if !o.only1.Load() {
			return nil, nil
		}
		c := o.server.TLS.Clone()
		c.NextProtos = []string{"http/1.1"}
		return c, nil
	}
	o.server.Config.ErrorLog = quiet
	o.server.StartTLS()
	t.Cleanup(o.server.Close)
	plain := httptest.NewServer(h)
	t.Cleanup(plain.Close)
	for _, n := range []string{"api.example.com", "wrong.example.com", "opaque.example.com"} {
		w.name(n, publicAddr)
	}
	w.name("untrusted.example.com", otherAddr)
	untrusted := httptest.NewTLSServer(h)
	untrusted.Config.ErrorLog = quiet
	t.Cleanup(untrusted.Close)
	w.point(publicAddr+":443", o.server.Listener.Addr().String())
	w.point(publicAddr+":80", plain.Listener.Addr().String())
	w.point(otherAddr+":443", untrusted.Listener.Addr().String())
	roots := x509.NewCertPool()
	roots.AddCert(outside.Certificate())
	authority, err := ca.New("bottle", nil)
	if err != nil {
		t.Fatal(err)
	}
	o.inside.AddCert(authority.Certificate())
	f, err := routefile.Parse("r.yaml", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	table, err := policy.Compile(f.Routes...)
	if err != nil {
		t.Fatal(err)
	}
	o.bottle = newBottle(t, w, table, append(opts, func(c *Config) { c.Authority, c.Roots = authority, roots })...)
	return o
}

// client returns a client inside the bottle that trusts only the bottle's authority.
func (o *tlsWorld) client(h2 bool) *http.Client {
	tr := o.httpClient().Transport.(*http.Transport)
	tr.TLSClientConfig = &tls.Config{RootCAs: o.inside}
	var p http.Protocols
	p.SetHTTP1(!h2)
	p.SetHTTP2(h2)
	tr.Protocols = &p
	return &http.Client{Transport: tr, Timeout: testTimeout}
}

func echo(rw http.ResponseWriter, r *http.Request) {
	n, _ := io.Copy(io.Discard, r.Body)
	fmt.Fprintf(rw, "%s %s %s %d", r.Method, r.Host, r.URL.RequestURI(), n)
}

const openRoutes = `routes:
  - host: api.example.com
    matches:
      - paths: [{value: /v1}, {value: /}]
        methods: [GET, POST]
  - {host: wrong.example.com}
  - {host: untrusted.example.com}
  - {host: opaque.example.com, inspect: false}
`

func TestOpenTLS(t *testing.T) {
	o := newTLSWorld(t, strings.Replace(openRoutes, ", {value: /}", "", 1), http.HandlerFunc(echo))
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("http2 ", h2), func(t *testing.T) {
			c := o.client(h2)
			for _, x := range []struct {
				method, path string
				status       int
				body         string
			}{
				{"GET", "/v1/a?b=%2F", 200, "GET api.example.com /v1/a?b=%2F 0"},
				{"POST", "/v1", 200, "POST api.example.com /v1 3"},
				{"PUT", "/v1/a", 403, "rule: r.yaml:2"},
				{"GET", "/v2", 403, "carboy: refused: request: the route wants path /v1/…"},
				{"GET", "/v1/%2e%2e/v2", 403, "ambiguous-path"},
				{"GET", "/v1%2f..%2fv2", 403, "ambiguous-path"},
			} {
				var body io.Reader
				if x.method != "GET" {
					body = strings.NewReader("abc")
				}
				req, _ := http.NewRequest(x.method, "https://api.example.com"+x.path, body)
				res, err := c.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				b, _ := io.ReadAll(res.Body)
				res.Body.Close()
				if res.StatusCode != x.status || !strings.Contains(string(b), x.body) || res.ProtoMajor != map[bool]int{true: 2, false: 1}[h2] {
					t.Errorf("%s %s: %s %d %s", x.method, x.path, res.Proto, res.StatusCode, b)
				}
			}
			// Another name on this connection.
			req, _ := http.NewRequest("GET", "https://api.example.com/v1", nil)
			req.Host = "opaque.example.com"
			res, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != http.StatusMisdirectedRequest {
				t.Errorf("fronting: %d", res.StatusCode)
			}
			c.CloseIdleConnections()
			o.waitConn("https", func(c ConnSummary) bool {
				return c.Name == "api.example.com" && c.Protocol == map[bool]string{true: "h2", false: "https"}[h2] && c.Requests > 0 && c.Allowed
			})
		})
	}
}

// TestUpstreamCertificate: the gateway verifies upstream's certificate, which the
// bottle's client can't see.
func TestUpstreamCertificate(t *testing.T) {
	reached := make(chan string, 10)
	o := newTLSWorld(t, openRoutes, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { reached <- r.Host }))
	for host, ok := range map[string]bool{"api.example.com": true, "wrong.example.com": false, "untrusted.example.com": false} {
		res, err := o.client(false).Get("https://" + host + "/")
		if err != nil {
			t.Fatalf("%s: %v", host, err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if (res.StatusCode == 200) != ok || !ok && (res.StatusCode != 502 || !bytes.Contains(b, []byte(reasonUpstreamTLS))) {
			t.Errorf("%s: %d %s", host, res.StatusCode, b)
		}
	}
	if got := <-reached; got != "api.example.com" || len(reached) != 0 {
		t.Errorf("a request reached %s, and %d more did", got, len(reached))
	}
}

// TestNothingDialled: nothing is dialled before a request was judged.
func TestNothingDialled(t *testing.T) {
	o := newTLSWorld(t, strings.Replace(openRoutes, ", {value: /}", "", 1), http.HandlerFunc(echo))
	res, err := o.client(true).Get("https://api.example.com/no")
	if err != nil || res.StatusCode != 403 {
		t.Fatalf("%v, %v", res, err)
	}
	res.Body.Close()
	if d := o.world.dials(); len(d) != 0 {
		t.Errorf("dialled %v", d)
	}
	if l := o.world.looked(); len(l) != 0 {
		t.Errorf("looked up %v", l)
	}
}

// TestOpaque: on an opaque route the client sees the server's own certificate.
func TestOpaque(t *testing.T) {
	o := newTLSWorld(t, openRoutes, http.HandlerFunc(echo))
	issuer := func(host string) string {
		c := tls.Client(o.mustDial(host, 443), &tls.Config{ServerName: host, InsecureSkipVerify: true})
		defer c.Close()
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		return c.ConnectionState().PeerCertificates[0].Issuer.CommonName
	}
	if got := issuer("opaque.example.com"); !strings.Contains(got, "the world") {
		t.Errorf("opaque: %s", got)
	}
	if got := issuer("api.example.com"); !strings.Contains(got, "bottle") {
		t.Errorf("inspected: %s", got)
	}
}

// TestDistrust: the record names a client that does not trust the gateway.
func TestDistrust(t *testing.T) {
	o := newTLSWorld(t, openRoutes, http.HandlerFunc(echo))
	c := tls.Client(o.mustDial("api.example.com", 443), &tls.Config{ServerName: "api.example.com", RootCAs: x509.NewCertPool()})
	if err := c.Handshake(); err == nil {
		t.Fatal("trusted")
	}
	c.Close()
	got := o.waitReason(reasonTLS)
	if !strings.Contains(got.Detail, "inspect: false") {
		t.Errorf("%+v", got)
	}
	// Neither another ALPN protocol nor TLS 1.1 is accepted.
	for _, cfg := range []*tls.Config{{NextProtos: []string{"irc"}}, {MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}} {
		cfg.ServerName, cfg.RootCAs = "api.example.com", o.inside
		if err := tls.Client(o.mustDial("api.example.com", 443), cfg).Handshake(); err == nil {
			t.Errorf("%+v: accepted", cfg)
		}
	}
}

// TestStreams: data arrives at once, in both directions, for each pair of versions;
// trailers arrive too.
func TestStreams(t *testing.T) {
	for _, up2 := range []bool{false, true} {
		for _, in2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("inside %v upstream %v", in2, up2), func(t *testing.T) {
				o := newTLSWorld(t, openRoutes, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					if (r.ProtoMajor == 2) != up2 {
						t.Errorf("upstream speaks %s", r.Proto)
					}
					c := http.NewResponseController(rw)
					_ = c.EnableFullDuplex()
					rw.Header().Set("Trailer", "X-Sum")
					rw.WriteHeader(200)
					_ = c.Flush()
					in := bufio.NewReader(r.Body)
					n := 0
					for {
						line, err := in.ReadString('\n')
						if err != nil {
							break
						}
						n++
						fmt.Fprintf(rw, "got %s", line)
						_ = c.Flush()
					}
					rw.Header().Set("X-Sum", fmt.Sprint(n, " ", r.Trailer.Get("X-End")))
				}))
				o.only1.Store(!up2)
				pr, pw := io.Pipe()
				req, _ := http.NewRequest("POST", "https://api.example.com/v1/stream", pr)
				req.Trailer = http.Header{"X-End": nil}
				type answer struct {
					res *http.Response
					err error
				}
				got := make(chan answer, 1)
				go func() {
					res, err := o.client(in2).Do(req)
					got <- answer{res, err}
				}()
				fmt.Fprintln(pw, "first")
				var a answer
				select {
				case a = <-got:
				case <-time.After(testTimeout):
					t.Fatal("no answer before the request's end")
				}
				if a.err != nil {
					t.Fatal(a.err)
				}
				out := bufio.NewReader(a.res.Body)
				for _, word := range []string{"first", "second", "third"} {
					if word != "first" {
						fmt.Fprintln(pw, word)
					}
					if line, err := out.ReadString('\n'); err != nil || line != "got "+word+"\n" {
						t.Fatalf("%q, %v", line, err)
					}
				}
				req.Trailer.Set("X-End", "done")
				pw.Close()
				if _, err := io.ReadAll(out); err != nil {
					t.Fatal(err)
				}
				if sum := a.res.Trailer.Get("X-Sum"); sum != "3 done" {
					t.Errorf("trailer %q of %v", sum, a.res.Trailer)
				}
			})
		}
	}
}

// TestLargeBodies: they arrive intact in both directions, and are not buffered.
func TestLargeBodies(t *testing.T) {
	const size = 32 << 20
	o := newTLSWorld(t, openRoutes, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		rw.Header().Set("X-Got", fmt.Sprint(n))
		_, _ = io.CopyN(rw, zeros{}, size)
	}))
	for _, h2 := range []bool{false, true} {
		res, err := o.client(h2).Post("https://api.example.com/v1", "application/octet-stream", io.LimitReader(zeros{}, size))
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if err != nil || n != size || res.Header.Get("X-Got") != fmt.Sprint(size) {
			t.Errorf("http2 %v: %d down, %s up, %v", h2, n, res.Header.Get("X-Got"), err)
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// TestClosesWithOpen: closing the gateway ends intercepted connections too.
func TestClosesWithOpen(t *testing.T) {
	began := make(chan struct{}, 2)
	o := newTLSWorld(t, openRoutes, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.WriteHeader(200)
		_ = http.NewResponseController(rw).Flush()
		began <- struct{}{}
		<-r.Context().Done()
	}))
	for _, h2 := range []bool{false, true} {
		res, err := o.client(h2).Get("https://api.example.com/v1/slow")
		if err != nil {
			t.Fatal(err)
		}
		<-began
		defer res.Body.Close()
	}
	o.stopClient()
	o.gw.Close()
	for _, c := range o.gw.Summary().Conns {
		if (c.Protocol == "https" || c.Protocol == "h2") && c.Requests != 1 {
			t.Errorf("%+v", c)
		}
	}
}

var quiet = log.New(io.Discard, "", 0)

// TestCredential: upstream sees the real credential and not the agent's. The bottle
// sees neither, whatever upstream repeats, and wherever.
func TestCredential(t *testing.T) {
	const value = "the-real-key-4711"
	var how atomic.Value
	how.Store("")
	got := make(chan http.Header, 100)
	upstream := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		got <- r.Header.Clone()
		auth := r.Header.Get("Authorization")
		switch how.Load() {
		case "header":
			rw.Header().Set("X-Echo", auth)
		case "redirect":
			http.Redirect(rw, r, "/elsewhere?"+auth, http.StatusFound)
			return
		case "early":
			rw.Header().Set("Link", "<"+auth+">")
			rw.WriteHeader(http.StatusEarlyHints)
			rw.Header().Del("Link")
		case "trailer":
			rw.Header().Set("Trailer", "X-Echo")
			defer rw.Header().Set("X-Echo", auth)
		case "gzip":
			rw.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(rw)
			defer z.Close()
			fmt.Fprint(z, "you sent ", auth)
			return
		case "br":
			rw.Header().Set("Content-Encoding", "br")
		case "pieces":
			for i := range auth {
				fmt.Fprint(rw, auth[i:i+1])
				_ = http.NewResponseController(rw).Flush()
			}
			return
		}
		fmt.Fprint(rw, "you sent ", auth)
	})
	want := policy.Credential{Scheme: credential.Bearer, Env: "KEY"}
	c, err := credential.Open("key", want, secret.NewString(value))
	if err != nil {
		t.Fatal(err)
	}
	with := func(cfg *Config) { cfg.Credentials = Credentials{want: c} }
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com, token_env: KEY, matches: [{paths: [{value: /v1}]}]}\n  - {host: api.example.com}\n  - {host: other.example.com, token_env: MISSING}\n", upstream, with)
	o.world.name("other.example.com", publicAddr)
	ask := func(h2 bool, url string) (*http.Response, string, error) {
		req, _ := http.NewRequest("GET", url, nil)
		req.Header.Set("Authorization", "Bearer "+c.Placeholder())
		req.Header.Set("X-Api-Key", "agents-own")
		cl := o.client(h2)
		cl.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		var early []string
		req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
			early = append(early, fmt.Sprint(h))
			return nil
		}}))
		res, err := cl.Do(req)
		if err != nil {
			return nil, "", err
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		return res, fmt.Sprint(early, res.Header, string(b), res.Trailer), err
	}
	for _, h2 := range []bool{false, true} {
		for _, x := range []string{"", "header", "redirect", "early", "trailer", "gzip", "pieces"} {
			how.Store(x)
			res, seen, err := ask(h2, "https://api.example.com/v1/x")
			if err != nil {
				t.Fatalf("%s: %v", x, err)
			}
			h := <-got
			if h.Get("Authorization") != "Bearer "+value || h.Get("X-Api-Key") != "" {
				t.Errorf("%s: upstream got %v", x, h)
			}
			if strings.Contains(seen, value) || !strings.Contains(seen, "Bearer carboy-place") || res.StatusCode >= 400 {
				t.Errorf("%s: %d %s", x, res.StatusCode, seen)
			}
		}
		how.Store("br")
		if res, seen, _ := ask(h2, "https://api.example.com/v1/x"); res.StatusCode != 403 || strings.Contains(seen, value) {
			t.Errorf("br: %d %s", res.StatusCode, seen)
		}
		<-got
		how.Store("")
		// The other route has none: the agent's own credential stays, and is worth
		// nothing.
		if _, _, err := ask(h2, "https://api.example.com/other"); err != nil {
			t.Fatal(err)
		}
		if h := <-got; h.Get("Authorization") != "Bearer "+c.Placeholder() || h.Get("X-Api-Key") != "agents-own" {
			t.Errorf("the other route: %v", h)
		}
		for url, reason := range map[string]string{
			"https://other.example.com/":  "not there",
			"http://api.example.com/v1/x": "plain HTTP",
		} {
			if res, seen, err := ask(false, url); err != nil || res.StatusCode != 403 || !strings.Contains(seen, reason) || !strings.Contains(seen, string(reasonCredential)) {
				t.Errorf("%s: %v %s", url, err, seen)
			}
		}
		if len(got) != 0 {
			t.Errorf("%d refused requests were sent", len(got))
		}
	}
}

// TestCredentialCounts: on a route with a credential, the requests that were sent with
// it are counted, whatever upstream answered.
func TestCredentialCounts(t *testing.T) {
	want := policy.Credential{Scheme: credential.Bearer, Env: "KEY"}
	c, err := credential.Open("key", want, secret.NewString("the-real-key-4711"))
	if err != nil {
		t.Fatal(err)
	}
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com, token_env: KEY, dlp: {outbound_on_match: block}}\n", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			rw.WriteHeader(http.StatusNotFound)
		}
	}), watching, func(cfg *Config) { cfg.Credentials = Credentials{want: c} })
	for _, x := range []struct {
		path, body string
		status     int
	}{{"/", "", 200}, {"/no", "", 404}, {"/", watchedValue, 403}, {"/" + watchedValue, "", 403}, {"/?a=b;key=c", "", 403}} {
		if status, why, _ := get(t, o.client(true), "POST", "https://api.example.com"+x.path, strings.NewReader(x.body)); status != x.status {
			t.Errorf("%s: %d %s", x.path, status, why)
		}
	}
	with, without := uint64(0), uint64(0)
	for _, r := range o.gw.Summary().Requests {
		if r.Credential == "key" {
			with += r.Count
		} else {
			without += r.Count
		}
	}
	if with != 2 || without != 3 {
		t.Errorf("%d were sent with it and %d were not: %+v", with, without, o.gw.Summary().Requests)
	}
}

// TestRequestsAtOnce: an HTTP/2 connection from the bottle can't make as many requests
// upstream as it has streams.
func TestRequestsAtOnce(t *testing.T) {
	began, release := make(chan struct{}, 10), make(chan struct{})
	o := newTLSWorld(t, openRoutes, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-release
	}), func(c *Config) { c.Limits.Requests = 3 })
	c := o.client(true)
	var done sync.WaitGroup
	for range 3 {
		done.Go(func() {
			if res, err := c.Get("https://api.example.com/v1"); err != nil || res.StatusCode != 200 {
				t.Errorf("%v, %v", res, err)
			} else {
				res.Body.Close()
			}
		})
		<-began
	}
	res, err := c.Get("https://api.example.com/v1")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if res.StatusCode != 503 || res.Header.Get("Retry-After") == "" || !bytes.Contains(b, []byte(reasonLimitRequests)) {
		t.Errorf("%d %s", res.StatusCode, b)
	}
	close(release)
	done.Wait()
	if res, err := c.Get("https://api.example.com/v1"); err != nil || res.StatusCode != 200 {
		t.Errorf("afterwards: %v, %v", res, err)
	} else {
		res.Body.Close()
	}
}
