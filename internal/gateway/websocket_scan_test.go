package gateway

import (
	"bufio"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/gobwas/ws"
)

const wsScanRoutes = `routes:
  - host: api.example.com
    matches: [{paths: [{value: /redact}]}]
    dlp: {outbound_on_match: redact}
  - host: api.example.com
    matches: [{paths: [{value: /off}]}]
    dlp: {outbound_detectors: false, inbound_detectors: false}
  - {host: api.example.com}
`

// TestWebSocketSecrets: a secret in a message, however it is split and wherever it is
// in a frame, ends the WebSocket before upstream has it. If the route says so it is
// masked or passes.
func TestWebSocketSecrets(t *testing.T) {
	cut := func(v string, n int) []ws.Frame {
		fs := []ws.Frame{ws.NewFrame(ws.OpText, false, []byte("note "))}
		for ; len(v) > n; v = v[n:] {
			fs = append(fs, ws.NewFrame(ws.OpContinuation, false, []byte(v[:n])), ws.NewPingFrame(nil))
		}
		return append(fs, ws.NewFrame(ws.OpContinuation, true, []byte(v)))
	}
	ways := map[string]func(v string) []ws.Frame{
		"text":   func(v string) []ws.Frame { return []ws.Frame{ws.NewTextFrame([]byte(`{"a":"` + v + `"}`))} },
		"binary": func(v string) []ws.Frame { return []ws.Frame{ws.NewBinaryFrame([]byte("\x00\xff" + v))} },
		"hex":    func(v string) []ws.Frame { return []ws.Frame{ws.NewTextFrame([]byte(hex.EncodeToString([]byte(v))))} },
		"bytes":  func(v string) []ws.Frame { return cut(v, 1) },
		"halves": func(v string) []ws.Frame { return cut(v, len(v)/2) },
		"large":  func(v string) []ws.Frame { return []ws.Frame{ws.NewTextFrame([]byte(padding + v + padding))} },
		"two messages": func(v string) []ws.Frame {
			return []ws.Frame{ws.NewTextFrame([]byte(v[:14])), ws.NewTextFrame([]byte(v[14:]))}
		},
		"ping":  func(v string) []ws.Frame { return []ws.Frame{ws.NewPingFrame([]byte(v))} },
		"pong":  func(v string) []ws.Frame { return []ws.Frame{ws.NewPongFrame([]byte(v))} },
		"close": func(v string) []ws.Frame { return []ws.Frame{ws.NewCloseFrame(ws.NewCloseFrameBody(1000, v))} },
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			got := make(chan string, 1)
			o := newTLSWorld(t, wsScanRoutes, wsServer(func(c net.Conn, in *bufio.Reader, r *http.Request) {
				io.WriteString(c, accept(r)+"\r\n")
				var b strings.Builder
				for {
					h, p, err := readFrame(in)
					b.Write(p)
					if err != nil || h.OpCode == ws.OpClose {
						got <- b.String()
						return
					}
				}
			}), watching)
			send := func(path, v string, end bool) (*wsClient, string) {
				c, res := o.webSocket(t, path, "")
				if res.StatusCode != 101 {
					t.Fatal(res.StatusCode)
				}
				for _, f := range way(v) {
					ws.WriteFrame(c, ws.MaskFrame(f))
				}
				if end && name != "close" {
					c.send(ws.NewCloseFrame(nil))
				}
				return c, <-got
			}
			if _, s := send("/", harmlessValue, true); !strings.Contains(s, harmlessValue) && name != "hex" || strings.Contains(s, "carboy") {
				t.Errorf("the neighbour: %.200q", s)
			}
			c, s := send("/", watchedValue, false)
			if code, why := c.closedWith(); code != 1008 || !strings.HasPrefix(why, "carboy: secret: ") {
				t.Errorf("the bottle was told %d %q", code, why)
			}
			if holds(s, watchedValue) || !strings.Contains(s, "carboy: secret: ") {
				t.Errorf("upstream got %.200q", s)
			}
			found := false
			for _, e := range o.allEvents() {
				f, ok := e.(Found)
				found = found || ok && f.Place == "message" && f.Action == FoundBlocked && !f.Inbound && f.What != ""
			}
			if !found {
				t.Errorf("no event: %+v", o.gw.Summary().Found)
			}
			if _, s := send("/off", watchedValue, true); !strings.Contains(s, watchedValue[:14]) && name != "hex" {
				t.Errorf("not looked for: %.200q", s)
			}
			switch name {
			case "text", "binary", "bytes", "halves", "large", "ping", "pong", "close":
				if _, s := send("/redact", watchedValue, true); holds(s, watchedValue) || !strings.Contains(s, strings.Repeat("*", 10)) {
					t.Errorf("masked: %.200q", s)
				}
			}
		})
	}
}

// TestWebSocketInjections: a server's messages are scanned like answers.
func TestWebSocketInjections(t *testing.T) {
	bad := "Dear reader. " + takesOver + " and " + disclose + ". Thank you."
	o := newTLSWorld(t, wsScanRoutes, wsServer(func(c net.Conn, in *bufio.Reader, r *http.Request) {
		io.WriteString(c, accept(r)+"\r\n")
		ws.WriteFrame(c, ws.NewTextFrame([]byte("good day")))
		ws.WriteFrame(c, ws.NewFrame(ws.OpText, false, []byte(bad[:40])))
		ws.WriteFrame(c, ws.NewFrame(ws.OpContinuation, true, []byte(bad[40:])))
		ws.WriteFrame(c, ws.NewCloseFrame(nil))
		io.Copy(io.Discard, in)
	}))
	c, _ := o.webSocket(t, "/", "")
	if _, got := c.message(); got != "good day" {
		t.Errorf("the neighbour: %q", got)
	}
	if code, why := c.closedWith(); code != 1008 || !strings.HasPrefix(why, "carboy: injection: ") {
		t.Errorf("%d %q", code, why)
	}
	c, _ = o.webSocket(t, "/off", "")
	c.message()
	if _, got := c.message(); got != bad {
		t.Errorf("not looked for: %q", got)
	}
}
