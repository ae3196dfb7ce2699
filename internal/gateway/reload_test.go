package gateway

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gobwas/ws"

	"github.com/carboy/carboy/internal/secret"
)

// reload sets the routes of a file, and the secrets to look for.
func (o *tlsWorld) reload(file string, secrets map[string]secret.Value) {
	o.t.Helper()
	o.gw.SetRoutes(tableOf(o.t, file), Credentials{}, secrets)
}

func watchedSecrets() map[string]secret.Value {
	return map[string]secret.Value{"NEW": secret.NewString(watchedValue)}
}

const (
	apiRoutes   = "routes:\n  - {host: api.example.com}\n"
	otherRoutes = "routes:\n  - {host: other.example.com}\n"
)

// TestReloadedWebSocket: a WebSocket continues if the new routes treat it as before,
// and new secrets no longer leave in it. It ends with a reason if its route is gone or
// different.
func TestReloadedWebSocket(t *testing.T) {
	o := newTLSWorld(t, apiRoutes, wsServer(func(c net.Conn, in *bufio.Reader, r *http.Request) {
		fmt.Fprint(c, accept(r)+"\r\n")
		io.Copy(c, unmasked{in})
	}))
	begin := func() *wsClient {
		o.reload(apiRoutes, nil)
		c, res := o.webSocket(t, "/", "")
		if res.StatusCode != http.StatusSwitchingProtocols {
			t.Fatal(res.Status)
		}
		return c
	}
	says := func(c *wsClient, text string) {
		t.Helper()
		c.send(ws.NewTextFrame([]byte(text)))
		if _, got := c.message(); got != text {
			t.Fatalf("%q came back as %q", text, got)
		}
	}
	c := begin()
	says(c, "before "+watchedValue)
	o.reload(apiRoutes+"  - {host: other.example.com}\n", watchedSecrets())
	says(c, "after "+harmlessValue)
	c.send(ws.NewTextFrame([]byte("after " + watchedValue)))
	if code, why := c.closedWith(); code != ws.StatusPolicyViolation || !strings.Contains(why, string(reasonSecret)) {
		t.Errorf("a secret that is watched for by now: %d %s", code, why)
	}
	for file, reason := range map[string]Reason{
		otherRoutes: "no-route", "routes:\n  - {host: api.example.com, matches: [{paths: [{value: /v2}]}]}\n": "request",
		"routes:\n  - {host: api.example.com, dlp: {outbound_detectors: [entropy]}}\n": reasonRoutes,
		"routes:\n  - {host: api.example.com, limits: {bytes_out: 100000}}\n":          reasonRoutes,
		"routes:\n  - {host: api.example.com, token_env: KEY}\n":                       reasonRoutes,
	} {
		c := begin()
		says(c, "hello")
		o.reload(file, nil)
		code, why := c.closedWith()
		if code != ws.StatusPolicyViolation || !strings.Contains(why, string(reason)) || !strings.Contains(why, "read again") {
			t.Errorf("%s: closed with %d %s", file, code, why)
		}
		o.waitReason(reason)
	}
}

// unmasked turns a client's frames into those of a server.
type unmasked struct{ in *bufio.Reader }

func (unmasked) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func (u unmasked) WriteTo(w io.Writer) (int64, error) {
	for {
		h, p, err := readFrame(u.in)
		if err != nil {
			return 0, nil
		}
		if err := ws.WriteFrame(w, ws.NewFrame(h.OpCode, h.Fin, p)); err != nil {
			return 0, nil
		}
	}
}

// TestReloadedStreams: an answer continues if the new routes treat it as before, and
// is cut if they don't allow it.
func TestReloadedStreams(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("http2 ", h2), func(t *testing.T) {
			var mores sync.Map // by path: what a server says next
			o := newTLSWorld(t, apiRoutes, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				more, _ := mores.Load(r.URL.Path)
				for {
					select {
					case s := <-more.(chan string):
						io.WriteString(rw, s)
						http.NewResponseController(rw).Flush()
					case <-r.Context().Done():
						return
					}
				}
			}))
			for file, goesOn := range map[string]bool{apiRoutes + "  - {host: other.example.com}\n": true, otherRoutes: false, "routes:\n  - {host: api.example.com, dlp: {inbound_detectors: false}}\n": false} {
				o.reload(apiRoutes, nil)
				more := make(chan string, 1)
				mores.Store(fmt.Sprintf("/%d", len(file)), more)
				more <- "one."
				res, err := o.client(h2).Get(fmt.Sprintf("https://api.example.com/%d", len(file)))
				if err != nil {
					t.Fatal(err)
				}
				buf := make([]byte, 4)
				if _, err := io.ReadFull(res.Body, buf); err != nil {
					t.Fatal(err)
				}
				o.reload(file, nil)
				if goesOn {
					more <- "two."
					if _, err := io.ReadFull(res.Body, buf); err != nil || string(buf) != "two." {
						t.Errorf("after a change elsewhere: %q %v", buf, err)
					}
				} else if rest, err := io.ReadAll(res.Body); err == nil {
					t.Errorf("%s: it looks whole: %q", file, rest)
				}
				res.Body.Close()
			}
			found := map[Reason]bool{}
			for _, r := range o.gw.Summary().Requests {
				found[r.Reason] = true
			}
			if !found["no-route"] || !found[reasonRoutes] {
				t.Errorf("recorded are %v", found)
			}
		})
	}
}

// TestReloadedUnseen: the same for tunnels.
func TestReloadedUnseen(t *testing.T) {
	const file = "routes:\n  - {host: opaque.example.com, inspect: false}\n  - {host: db.example.com:7000/tcp}\n"
	o := newTLSWorld(t, file, http.HandlerFunc(echo))
	o.world.name("db.example.com", publicAddr)
	o.world.serve(t, publicAddr+":7000", echoServer)
	asks := func(c net.Conn, in *bufio.Reader) error {
		c.SetDeadline(time.Now().Add(testTimeout))
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: opaque.example.com\r\n\r\n")
		res, err := http.ReadResponse(in, nil)
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
		}
		return err
	}
	for change, reason := range map[string]Reason{
		file + "  - {host: other.example.com}\n": ReasonOK, otherRoutes: "no-route",
		"routes:\n  - {host: opaque.example.com}\n  - {host: db.example.com:7000}\n": reasonRoutes,
	} {
		o.reload(file, nil)
		c := tls.Client(o.mustDial("opaque.example.com", 443), &tls.Config{ServerName: "opaque.example.com", InsecureSkipVerify: true})
		in := bufio.NewReader(c)
		if err := asks(c, in); err != nil {
			t.Fatal(err)
		}
		raw := o.mustDial("db.example.com", 7000)
		mustEcho(t, raw)
		o.reload(change, nil)
		if reason == ReasonOK {
			mustEcho(t, raw)
			if err := asks(c, in); err != nil {
				t.Errorf("after a change elsewhere: %v", err)
			}
			c.Close()
			raw.Close()
			continue
		}
		if err := asks(c, in); err == nil {
			t.Errorf("%s: TLS goes on", change)
		}
		raw.Write([]byte("ping"))
		if _, err := io.ReadFull(raw, make([]byte, 4)); err == nil {
			t.Errorf("%s: TCP goes on", change)
		}
		for _, p := range []string{"tls", "tcp"} {
			o.waitConn(p+" "+string(reason), func(s ConnSummary) bool { return s.Protocol == p && s.Reason == reason })
		}
	}
}
