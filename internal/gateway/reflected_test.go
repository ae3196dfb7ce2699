package gateway

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"

	"github.com/gobwas/ws"

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/secret"
)

// Two values of one form. The second belongs to nobody: an answer may well hold it.
const (
	reflectedKey = "Kx7Qm2Zp9Rt4Vb6Nc1Ld8Hs3Wf5Gj0YeUaToXi"
	anothersKey  = "Bd3Lk8Tq1Xn6Zw9Pv4Jm7Cs2Rh5Gf0QyEuAiOo"
)

func zipped(s string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, s)
	z.Close()
	return b.String()
}

// grpcMessage returns a message of gRPC.
func grpcMessage(flag byte, s string) string {
	head := binary.BigEndian.AppendUint32([]byte{flag}, uint32(len(s)))
	return string(head) + s
}

func based(s string) string { return base64.StdEncoding.EncodeToString([]byte("x-token:" + s)) }

// reflector answers with the key in the way that the path names, and with anothersKey
// below /other.
func reflector(heard <-chan struct{}) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		way, key := strings.TrimPrefix(r.URL.Path, "/own/"), strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if other, ok := strings.CutPrefix(r.URL.Path, "/other/"); ok {
			way, key = other, anothersKey
		}
		h, flush := rw.Header(), func() { _ = http.NewResponseController(rw).Flush() }
		switch way {
		case "base64", "long-base64":
			h.Set("Content-Type", "application/json")
			text, _ := json.Marshal(map[string]string{"auth": based(key), "rest": strings.Repeat("0", len(way)/11*maxHeldBody)})
			h.Set("Content-Length", fmt.Sprint(len(text)))
			rw.Write(text)
		case "hex", "capitals":
			io.WriteString(rw, map[string]string{"hex": hex.EncodeToString([]byte(key)), "capitals": strings.ToUpper(key)}[way])
		case "gzip":
			h.Set("Content-Type", "application/json")
			body := zipped(`{"key":"` + key + `"}`)
			h.Set("Content-Length", fmt.Sprint(len(body)))
			io.WriteString(rw, body)
		case "streamed-gzip":
			for _, c := range []byte(zipped(`{"key":"` + key + `"}` + strings.Repeat("more ", 100))) {
				rw.Write([]byte{c})
				flush()
			}
		case "gzip-in-gzip":
			h.Set("Content-Encoding", "gzip")
			io.WriteString(rw, zipped(zipped(key)))
		case "header":
			h.Set("X-Echo", based(key))
		case "header-name":
			h.Set("X-"+hex.EncodeToString([]byte(key)), "1")
		case "early":
			h.Set("Link", "<"+based(key)+">")
			rw.WriteHeader(http.StatusEarlyHints)
			h.Del("Link")
		case "trailer":
			h.Set("Trailer", "X-Echo")
			io.WriteString(rw, "body")
			h.Set("X-Echo", hex.EncodeToString([]byte(key)))
		case "grpc":
			h.Set("Content-Type", "application/grpc")
			io.WriteString(rw, grpcMessage(0, based(key)))
		case "grpc-gzip":
			h.Set("Content-Type", "application/grpc+proto")
			h.Set("Grpc-Encoding", "gzip")
			io.WriteString(rw, grpcMessage(1, zipped("\x0a\x04"+key)))
		case "events":
			h.Set("Content-Type", "text/event-stream")
			for _, data := range []string{`{"text":"x^`, based(key), `{"text":"\u0041 deltaNode`, key[:12]} {
				fmt.Fprintf(rw, "data: %s\n\n", data)
				flush()
				select {
				case <-heard:
				case <-r.Context().Done():
				}
			}
		}
	}
}

func keyed(t testing.TB, value string) (policy.Credential, *credential.Credential, option) {
	t.Helper()
	want := policy.Credential{Scheme: credential.Bearer, Env: "KEY"}
	c, err := credential.Open("key", want, secret.NewString(value))
	if err != nil {
		t.Fatal(err)
	}
	return want, c, func(cfg *Config) { cfg.Credentials = Credentials{want: c} }
}

// TestReflected: a credential does not come back, however upstream writes it and wherever
// it stands in the answer. An answer with another value is not changed.
func TestReflected(t *testing.T) {
	heard := make(chan struct{})
	_, _, with := keyed(t, reflectedKey)
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com, token_env: KEY}\n", reflector(heard), with)
	for _, h2 := range []bool{false, true} {
		for way, refused := range map[string]bool{
			"base64": false, "long-base64": false, "hex": false, "capitals": false, "gzip": true, "streamed-gzip": true, "gzip-in-gzip": true, "header": false,
			"header-name": false, "early": false, "trailer": false, "grpc": false, "grpc-gzip": true,
		} {
			seen := map[bool]string{}
			for _, other := range []bool{false, true} {
				var early []string
				req, _ := http.NewRequest("GET", "https://api.example.com/"+map[bool]string{true: "other/", false: "own/"}[other]+way, nil)
				req = req.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
					early = append(early, fmt.Sprint(h))
					return nil
				}}))
				res, err := o.client(h2).Do(req)
				if err != nil {
					if !refused || other {
						t.Fatalf("%s: %v", way, err)
					}
					continue // it was cut before its head had left
				}
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				res.Header.Del("Date")
				what := fmt.Sprint(res.StatusCode, early, res.Header, string(body), res.Trailer)
				seen[other] = what
				ended := err != nil || res.Header.Get("Carboy-Refused") == string(reasonReply)
				if ended != (refused && !other) {
					t.Errorf("%s, HTTP/2 %v, another's %v: %v: %s", way, h2, other, err, what)
				}
				if way == "gzip" && ended && res.StatusCode != http.StatusForbidden {
					t.Errorf("a short answer is not refused as a whole: %d, %v", res.StatusCode, err)
				}
			}
			for _, form := range []string{reflectedKey, based(reflectedKey)[12:50], hex.EncodeToString([]byte(reflectedKey)), strings.ToUpper(reflectedKey), zipped(`{"key":"` + reflectedKey + `"}`)[20:40]} {
				if strings.Contains(strings.ToLower(seen[false]), strings.ToLower(form)) {
					t.Errorf("%s, HTTP/2 %v: it came in: %.300q", way, h2, seen[false])
				}
			}
			if !refused && len(seen[false]) != len(seen[true]) && way != "header-name" {
				t.Errorf("%s: %d and %d bytes: %.300q", way, len(seen[false]), len(seen[true]), seen[false]+seen[true])
			}
		}
	}
	var found int
	for _, f := range o.gw.Summary().Found {
		if f.Inbound && f.Secret == "key" && f.What == "known-secret" {
			found++
		}
	}
	if found == 0 {
		t.Error("nothing is recorded")
	}
	// Each event comes before the next is sent, also one in which something seems to begin.
	for _, path := range []string{"/own/events", "/other/events"} {
		res, err := o.client(false).Get("https://api.example.com" + path)
		if err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(res.Body)
		for i := range 4 {
			line, err := in.ReadString('\n')
			if end, _ := in.ReadString('\n'); err != nil || end != "\n" || strings.Contains(line, based(reflectedKey)[12:50]) {
				t.Fatalf("event %d: %q, %v; %+v", i, line, err, o.gw.Summary().Requests)
			}
			heard <- struct{}{}
		}
		res.Body.Close()
	}
}

// TestReflectedMessages: nor does it come back in a message or control frame of a
// WebSocket.
func TestReflectedMessages(t *testing.T) {
	_, _, with := keyed(t, reflectedKey)
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com, token_env: KEY}\n", wsServer(func(c net.Conn, in *bufio.Reader, r *http.Request) {
		io.WriteString(c, accept(r)+"\r\n")
		key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		form := based(key)
		for _, f := range []ws.Frame{
			ws.NewTextFrame([]byte("x^")), ws.NewFrame(ws.OpText, false, []byte(form[:20])), ws.NewPingFrame([]byte(form)), ws.NewFrame(ws.OpContinuation, true, []byte(form[20:])),
			ws.NewTextFrame([]byte(based(anothersKey))), ws.NewBinaryFrame([]byte(zipped(anothersKey))), ws.NewBinaryFrame([]byte(zipped(key))),
		} {
			if ws.WriteFrame(c, f) != nil {
				return
			}
		}
		io.Copy(io.Discard, in)
	}), with)
	c, _ := o.webSocket(t, "/", "")
	for i, want := range []string{"x^", "", "", based(anothersKey), zipped(anothersKey)} {
		_, got := c.message()
		if want != "" && got != want || strings.Contains(got, based(reflectedKey)[12:40]) || want == "" && len(got) != len(based(reflectedKey)) {
			t.Errorf("message %d: %q", i, got)
		}
	}
	if code, why := c.closedWith(); code != ws.StatusPolicyViolation || !strings.Contains(why, string(reasonReply)) {
		t.Errorf("closed with %d %s", code, why)
	}
}

func eachByte(format string) func(string) string {
	return func(s string) string {
		var b strings.Builder
		for i := range len(s) {
			fmt.Fprintf(&b, format, s[i])
		}
		return b.String()
	}
}

// writings are ways to write a key that is repeated. Some hold bytes that headers do not.
var writings = map[string]struct {
	write func(string) string
	bytes bool
}{
	"plain": {func(s string) string { return s }, false}, "capitals": {strings.ToUpper, false}, "base64": {based, false},
	"base64 in JSON":   {func(s string) string { return `{"auths":{"h":{"auth":"` + based(s) + `"}}}` }, false},
	"hex":              {func(s string) string { return hex.EncodeToString([]byte(s)) }, false},
	"escapes":          {eachByte(`\u%04x`), false},
	"percent":          {eachByte("%%%02X"), false},
	"entities":         {eachByte("&#%d;"), false},
	"UTF-16":           {eachByte("%c\x00"), true},
	"gzip":             {zipped, true},
	"all but one":      {func(s string) string { return s[:19] + s[20:] }, false},
	"another amid it":  {func(s string) string { return s[:19] + "~" + s[20:] }, false},
	"without its last": {func(s string) string { return s[:len(s)-1] }, false},
}

// half reports whether half of form or more stands in text.
func half(text, form string) bool {
	for n := 0; n+len(form)/2 <= len(form); n++ {
		if strings.Contains(text, form[n:n+len(form)/2]) {
			return true
		}
	}
	return false
}

// TestReflectedInEveryPlace: each form is found in each place of an answer, byte by byte
// too, by HTTP/1 and 2; another's key comes in unchanged.
func TestReflectedInEveryPlace(t *testing.T) {
	_, _, with := keyed(t, reflectedKey)
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com, token_env: KEY}\n", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if r.Header.Get("X-Other") != "" {
			key = anothersKey
		}
		form := writings[r.Header.Get("X-Form")].write(key)
		h, send := rw.Header(), func(s string) {
			io.WriteString(rw, s)
			_ = http.NewResponseController(rw).Flush()
		}
		switch r.Header.Get("X-Place") {
		case "body":
			h.Set("Content-Length", fmt.Sprint(len(form)))
			io.WriteString(rw, form)
		case "binary":
			h.Set("Content-Type", "application/octet-stream")
			send(form)
		case "bytes":
			for _, c := range []byte(form) {
				send(string([]byte{c}))
			}
		case "event":
			h.Set("Content-Type", "text/event-stream")
			send("data: " + form + "\n\n")
			send("data: the end\n\n")
		case "X-Echo", "Set-Cookie":
			h.Set(r.Header.Get("X-Place"), "a="+form)
		case "Location":
			h.Set("Location", "https://api.example.com/?t="+form)
			rw.WriteHeader(http.StatusFound)
		case "trailer":
			h.Set("Trailer", "X-Echo")
			send("body")
			h.Set("X-Echo", form)
		}
	}), with)
	for _, h2 := range []bool{false, true} {
		c := o.client(h2)
		c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		for name, form := range writings {
			for _, place := range []string{"body", "binary", "bytes", "event", "X-Echo", "Set-Cookie", "Location", "trailer"} {
				inHead := place == "X-Echo" || place == "Set-Cookie" || place == "Location" || place == "trailer"
				if form.bytes && (inHead || place == "event") {
					continue
				}
				for _, other := range []bool{false, true} {
					req, _ := http.NewRequest("GET", "https://api.example.com/", nil)
					req.Header.Set("X-Form", name)
					req.Header.Set("X-Place", place)
					if other {
						req.Header.Set("X-Other", "1")
					}
					what := fmt.Sprintf("%s in %s, HTTP/2 %v, another's %v", name, place, h2, other)
					res, err := c.Do(req)
					if err != nil {
						if other {
							t.Errorf("%s: %v", what, err)
						}
						continue
					}
					body, err := io.ReadAll(res.Body)
					res.Body.Close()
					seen := fmt.Sprint(res.Header, string(body), res.Trailer)
					if own := form.write(reflectedKey); half(seen, own) {
						t.Errorf("%s: it came in: %q", what, seen)
					}
					if other && (err != nil || !strings.Contains(seen, form.write(anothersKey))) {
						t.Errorf("%s: %v: %q", what, err, seen)
					}
				}
			}
		}
	}
}

// TestReflectedInEveryMessage: each form is found in a message of a WebSocket, in frames of
// one byte, and in one message after the other.
func TestReflectedInEveryMessage(t *testing.T) {
	_, _, with := keyed(t, reflectedKey)
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com, token_env: KEY}\n", wsServer(func(c net.Conn, in *bufio.Reader, r *http.Request) {
		io.WriteString(c, accept(r)+"\r\n")
		key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if r.Header.Get("X-Other") != "" {
			key = anothersKey
		}
		form := writings[r.Header.Get("X-Form")].write(key)
		for i := range len(form) {
			op := ws.OpContinuation
			if i == 0 {
				op = ws.OpBinary
			}
			if ws.WriteFrame(c, ws.NewFrame(op, i == len(form)-1, []byte{form[i]})) != nil {
				return
			}
		}
		_ = ws.WriteFrame(c, ws.NewTextFrame([]byte("the end")))
		_ = ws.WriteFrame(c, ws.NewCloseFrame(ws.NewCloseFrameBody(ws.StatusNormalClosure, "")))
		io.Copy(io.Discard, in)
	}), with)
	for name, form := range writings {
		for _, other := range []bool{false, true} {
			headers := "X-Form: " + name + "\r\n"
			if other {
				headers += "X-Other: 1\r\n"
			}
			c, _ := o.webSocket(t, "/", headers)
			var seen strings.Builder
			for {
				h, p, err := readFrame(c.in)
				if err != nil || h.OpCode == ws.OpClose {
					break
				}
				seen.Write(p)
			}
			c.Close()
			if half(seen.String(), form.write(reflectedKey)) {
				t.Errorf("%s: it came in: %q", name, seen.String())
			}
			if other && seen.String() != form.write(anothersKey)+"the end" {
				t.Errorf("%s: another's is changed: %q", name, seen.String())
			}
		}
	}
}
