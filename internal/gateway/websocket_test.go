package gateway

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws"

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/secret"
)

// wsServer upgrades correctly, and then calls serve.
func wsServer(serve func(c net.Conn, in *bufio.Reader, r *http.Request)) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			echo(rw, r)
			return
		}
		c, buf, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		serve(c, buf.Reader, r)
	}
}

func accept(r *http.Request) string {
	rec := httptest.NewRecorder()
	fmt.Fprintf(rec, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n", acceptOf(r.Header.Get("Sec-WebSocket-Key")))
	return rec.Body.String()
}

// acceptOf returns Sec-WebSocket-Accept for the key of these tests (RFC 6455 section
// 1.3).
func acceptOf(key string) string {
	if key != "dGhlIHNhbXBsZSBub25jZQ==" {
		return "?"
	}
	return "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
}

const wsRequest = "GET %s HTTP/1.1\r\nHost: api.example.com\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"

// wsClient is a bottle's end of a WebSocket.
type wsClient struct {
	t testing.TB
	net.Conn
	in *bufio.Reader

	op   ws.OpCode // of the current message, and its text so far
	text []byte
}

func (o *tlsWorld) webSocket(t testing.TB, path, more string) (*wsClient, *http.Response) {
	t.Helper()
	c := tls.Client(o.mustDial("api.example.com", 443), &tls.Config{ServerName: "api.example.com", RootCAs: o.inside})
	t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, wsRequest+more+"\r\n", path)
	in := bufio.NewReader(c)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &wsClient{t: t, Conn: c, in: in}, res
}

func (c *wsClient) send(f ws.Frame) {
	c.t.Helper()
	if err := ws.WriteFrame(c, ws.MaskFrame(f)); err != nil {
		c.t.Fatal(err)
	}
}

func readFrame(r io.Reader) (h ws.Header, p []byte, err error) {
	if h, err = ws.ReadHeader(r); err != nil {
		return h, nil, err
	}
	p = make([]byte, h.Length)
	_, err = io.ReadFull(r, p)
	if h.Masked {
		ws.Cipher(p, h.Mask, 0)
	}
	return h, p, err
}

// message reads frames until a message or a control frame is complete.
func (c *wsClient) message() (ws.OpCode, string) {
	c.t.Helper()
	for {
		h, p, err := readFrame(c.in)
		if err != nil {
			c.t.Fatalf("after %d bytes: %v", len(c.text), err)
		}
		if h.OpCode.IsControl() {
			return h.OpCode, string(p)
		}
		if h.OpCode != ws.OpContinuation {
			c.op, c.text = h.OpCode, nil
		}
		if c.text = append(c.text, p...); h.Fin {
			return c.op, string(c.text)
		}
	}
}

// closedWith reads up to the close frame and returns it.
func (c *wsClient) closedWith() (code ws.StatusCode, reason string) {
	for {
		h, p, err := readFrame(c.in)
		if err != nil {
			return 0, err.Error()
		}
		if h.OpCode == ws.OpClose {
			return ws.ParseCloseFrameData(p)
		}
	}
}

func wsEcho(c net.Conn, in *bufio.Reader, r *http.Request) {
	io.WriteString(c, accept(r)+"\r\n")
	for {
		h, p, err := readFrame(in)
		if err != nil {
			return
		}
		if ws.WriteFrame(c, ws.Frame{Header: ws.Header{Fin: h.Fin, OpCode: h.OpCode, Length: int64(len(p))}, Payload: p}) != nil || h.OpCode == ws.OpClose {
			return
		}
	}
}

func TestWebSocket(t *testing.T) {
	o := newTLSWorld(t, openRoutes, wsServer(wsEcho))
	c, res := o.webSocket(t, "/v1/ws", "")
	if res.StatusCode != 101 {
		t.Fatalf("status %d", res.StatusCode)
	}
	big := strings.Repeat("grüße, 世界 🌍 ", 20_000)
	c.send(ws.NewTextFrame([]byte("hello")))
	c.send(ws.NewPingFrame([]byte("are you there")))
	c.send(ws.NewBinaryFrame(nil))
	c.send(ws.NewFrame(ws.OpText, false, []byte("one \xe4")))
	c.send(ws.NewPongFrame([]byte("amid")))
	c.send(ws.NewFrame(ws.OpContinuation, false, nil))
	c.send(ws.NewFrame(ws.OpContinuation, true, []byte("\xb8\x96 two")))
	c.send(ws.NewTextFrame([]byte(big)))
	c.send(ws.NewBinaryFrame([]byte("\xff\x00")))
	c.send(ws.NewCloseFrame(ws.NewCloseFrameBody(1000, "thanks")))
	for _, want := range []struct {
		op   ws.OpCode
		text string
	}{
		{ws.OpText, "hello"}, {ws.OpPing, "are you there"}, {ws.OpBinary, ""}, {ws.OpPong, "amid"}, {ws.OpText, "one 世 two"},
		{ws.OpText, big}, {ws.OpBinary, "\xff\x00"}, {ws.OpClose, "\x03\xe8thanks"},
	} {
		op, got := c.message()
		if op != want.op || got != want.text {
			t.Fatalf("got %x %.40q, want %x %.40q", op, got, want.op, want.text)
		}
	}
	if _, err := c.in.ReadByte(); err == nil {
		t.Error("open after both closed")
	}
	o.waitConn("websocket", func(c ConnSummary) bool { return c.Protocol == "websocket" && c.Allowed && c.Reason == ReasonOK })
	for _, r := range o.gw.Summary().Requests {
		if r.Failed != 0 || r.Up < int64(len(big)) || r.Down < int64(len(big)) {
			t.Errorf("%+v", r)
		}
	}
}

// TestWebSocketOffers: malformed upgrades of either side are refused.
func TestWebSocketOffers(t *testing.T) {
	reached := make(chan http.Header, 20)
	o := newTLSWorld(t, openRoutes, wsServer(func(c net.Conn, in *bufio.Reader, r *http.Request) {
		reached <- r.Header
		switch r.URL.Path {
		case "/v1/accept":
			io.WriteString(c, strings.Replace(accept(r), "s3p", "S3p", 1)+"\r\n")
		case "/v1/none":
			io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		case "/v1/deflate":
			io.WriteString(c, accept(r)+"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n")
		case "/v1/sub":
			io.WriteString(c, accept(r)+"Sec-WebSocket-Protocol: c\r\n\r\n")
		case "/v1/h2c":
			io.WriteString(c, strings.Replace(accept(r), "websocket", "h2c", 1)+"\r\n")
		case "/v1/ok":
			io.WriteString(c, accept(r)+"Sec-WebSocket-Protocol: b\r\n\r\n")
		case "/v1/no":
			io.WriteString(c, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")
		}
	}))
	for path, want := range map[string]struct {
		status int
		text   string
	}{
		"accept": {502, "does not fit the key"}, "none": {502, "does not fit the key"}, "deflate": {502, "extensions"}, "sub": {502, "subprotocol"},
		"h2c": {502, "another protocol"}, "ok": {101, ""}, "no": {401, "no"},
	} {
		c, res := o.webSocket(t, "/v1/"+path, "Sec-WebSocket-Protocol: a, b\r\nSec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\nSec-WebSocket-Extensions: x\r\n")
		body := ""
		if res.StatusCode != 101 {
			b, _ := io.ReadAll(res.Body)
			body = string(b)
		}
		if res.StatusCode != want.status || !strings.Contains(body, want.text) || want.status == 502 && !strings.Contains(body, string(reasonWebSocket)) {
			t.Errorf("%s: %d %s", path, res.StatusCode, body)
		}
		if h := <-reached; h.Get("Sec-WebSocket-Extensions") != "" {
			t.Errorf("extensions were offered: %v", h)
		}
		c.Close()
	}
	c := o.client(false)
	for name, x := range map[string]struct {
		set    func(h http.Header)
		status int
	}{
		"version 8":     {func(h http.Header) { h.Set("Sec-WebSocket-Version", "8") }, 426},
		"two versions":  {func(h http.Header) { h.Add("Sec-WebSocket-Version", "8") }, 426},
		"no version":    {func(h http.Header) { h.Del("Sec-WebSocket-Version") }, 426},
		"no key":        {func(h http.Header) { h.Del("Sec-WebSocket-Key") }, 400},
		"two keys":      {func(h http.Header) { h.Add("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==") }, 400},
		"short key":     {func(h http.Header) { h.Set("Sec-WebSocket-Key", "AAAA") }, 400},
		"trailing bits": {func(h http.Header) { h.Set("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAB==") }, 400},
		"other upgrade": {func(h http.Header) { h.Set("Upgrade", "h2c") }, 200},
	} {
		req, _ := http.NewRequest("GET", "https://api.example.com/v1/ok", nil)
		req.Header = http.Header{"Upgrade": {"websocket"}, "Connection": {"Upgrade"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}}
		x.set(req.Header)
		res, err := c.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		res.Body.Close()
		if res.StatusCode != x.status || x.status >= 400 && res.Header.Get("Carboy-Refused") != string(reasonWebSocket) {
			t.Errorf("%s: %d %v", name, res.StatusCode, res.Header)
		}
	}
	if len(reached) != 0 {
		t.Errorf("a refused offer was passed on: %v", <-reached)
	}
}

// badFrames are frames that no side may send, masked as the bottle sends them.
var badFrames = map[string]struct {
	frames []ws.Frame
	code   ws.StatusCode
}{
	"compressed":          {[]ws.Frame{{Header: ws.Header{Fin: true, Rsv: 4, OpCode: ws.OpText, Length: 2}, Payload: []byte("ab")}}, 1002},
	"second bit":          {[]ws.Frame{{Header: ws.Header{Fin: true, Rsv: 2, OpCode: ws.OpText, Length: 2}, Payload: []byte("ab")}}, 1002},
	"compressed fragment": {[]ws.Frame{ws.NewFrame(ws.OpBinary, false, []byte("a")), {Header: ws.Header{Fin: true, Rsv: 4, OpCode: ws.OpContinuation}}}, 1002},
	"opcode 3":            {[]ws.Frame{ws.NewFrame(3, true, nil)}, 1002},
	"opcode 11":           {[]ws.Frame{ws.NewFrame(11, true, nil)}, 1002},
	"long ping":           {[]ws.Frame{ws.NewPingFrame(make([]byte, 126))}, 1002},
	"ping in parts":       {[]ws.Frame{ws.NewFrame(ws.OpPing, false, nil)}, 1002},
	"close with a byte":   {[]ws.Frame{ws.NewFrame(ws.OpClose, true, []byte{3})}, 1002},
	"close with 1005":     {[]ws.Frame{ws.NewCloseFrame(ws.NewCloseFrameBody(1005, ""))}, 1002},
	"close with latin 1":  {[]ws.Frame{ws.NewCloseFrame(ws.NewCloseFrameBody(1000, "\xe9t\xe9"))}, 1002},
	"begins in the midst": {[]ws.Frame{ws.NewFrame(ws.OpContinuation, true, nil)}, 1002},
	"two at once":         {[]ws.Frame{ws.NewFrame(ws.OpText, false, nil), ws.NewTextFrame(nil)}, 1002},
	"no text":             {[]ws.Frame{ws.NewTextFrame([]byte("caf\xe9"))}, 1007},
	"surrogate":           {[]ws.Frame{ws.NewTextFrame([]byte("\xed\xa0\x80"))}, 1007},
	"half a character":    {[]ws.Frame{ws.NewFrame(ws.OpText, false, []byte("\xe4\xb8")), ws.NewFrame(ws.OpContinuation, true, nil)}, 1007},
	"spoilt character":    {[]ws.Frame{ws.NewFrame(ws.OpText, false, []byte("\xe4\xb8")), ws.NewFrame(ws.OpContinuation, true, []byte("x"))}, 1007},
	"huge length":         {[]ws.Frame{{Header: ws.Header{Fin: true, OpCode: ws.OpPing, Length: 1 << 62}}}, 1002},
}

// TestWebSocketFrames: frames that RFC 6455 does not allow, from the bottle or from
// upstream, end the WebSocket for both sides with a reason.
func TestWebSocketFrames(t *testing.T) {
	type ended struct {
		code   ws.StatusCode
		reason string
	}
	up := make(chan ended, 10)
	o := newTLSWorld(t, openRoutes, wsServer(func(c net.Conn, in *bufio.Reader, r *http.Request) {
		io.WriteString(c, accept(r)+"\r\n")
		if name := r.URL.Query().Get("send"); name != "" {
			for _, f := range badFrames[name].frames {
				ws.WriteFrame(c, f)
			}
		}
		if r.URL.Query().Get("masked") != "" {
			ws.WriteFrame(c, ws.MaskFrame(ws.NewTextFrame([]byte("x"))))
		}
		s := &wsClient{t: t, Conn: c, in: in}
		code, reason := s.closedWith()
		up <- ended{code, reason}
	}))
	check := func(name string, c *wsClient, code ws.StatusCode) {
		t.Helper()
		got, reason := c.closedWith()
		if _, err := c.in.ReadByte(); err != io.EOF {
			t.Errorf("%s: after the goodbye: %v", name, err)
		}
		if got != code || !strings.HasPrefix(reason, "carboy: websocket: ") {
			t.Errorf("%s: the bottle was told %d %q", name, got, reason)
		}
		c.Close()
		if e := <-up; e.code != code || e.reason != reason {
			t.Errorf("%s: upstream was told %d %q", name, e.code, e.reason)
		}
	}
	for name, x := range badFrames {
		c, _ := o.webSocket(t, "/v1/ws", "")
		for _, f := range x.frames {
			ws.WriteFrame(c, ws.MaskFrame(f))
		}
		check("bottle: "+name, c, x.code)
		c, _ = o.webSocket(t, "/v1/ws?send="+strings.ReplaceAll(name, " ", "+"), "")
		check("upstream: "+name, c, x.code)
	}
	c, _ := o.webSocket(t, "/v1/ws", "")
	ws.WriteFrame(c, ws.NewTextFrame([]byte("bare")))
	check("not masked", c, 1002)
	c, _ = o.webSocket(t, "/v1/ws?masked=1", "")
	check("masked", c, 1002)
	got := o.waitConn("all of them", func(c ConnSummary) bool { return c.Reason == reasonWebSocket && c.Count == uint64(2*len(badFrames)+2) })
	if got.Protocol != "websocket" || !got.Allowed {
		t.Errorf("%+v", got)
	}
	for _, r := range o.gw.Summary().Requests {
		if r.Reason != reasonWebSocket || r.Allowed || r.Count != uint64(2*len(badFrames)+2) {
			t.Errorf("%+v", r)
		}
	}
}

// TestWebSocketEnds: a side that disconnects, amid a frame or not, ends the other too.
// Bytes after a close frame are not passed on.
func TestWebSocketEnds(t *testing.T) {
	up := make(chan string, 10)
	o := newTLSWorld(t, openRoutes, wsServer(func(c net.Conn, in *bufio.Reader, r *http.Request) {
		io.WriteString(c, accept(r)+"\r\n")
		switch r.URL.Query().Get("go") {
		case "gone":
			return
		case "amid":
			c.Write([]byte{0x81, 10, 'a'})
			return
		}
		b, _ := io.ReadAll(in)
		up <- fmt.Sprintf("%d", len(b))
	}))
	for _, how := range []string{"gone", "amid"} {
		c, _ := o.webSocket(t, "/v1/ws?go="+how, "")
		if b, _ := io.ReadAll(c.in); len(b) != 0 {
			t.Errorf("%s: %x", how, b)
		}
	}
	c, _ := o.webSocket(t, "/v1/ws", "")
	c.Close()
	if got := <-up; got != "0" {
		t.Errorf("upstream got %s", got)
	}
	c, _ = o.webSocket(t, "/v1/ws", "")
	c.send(ws.NewCloseFrame(nil))
	c.send(ws.NewTextFrame([]byte("afterwards")))
	c.Close()
	if got := <-up; got != "6" {
		t.Errorf("upstream got %s bytes", got)
	}
}

// TestWebSocketScrubbed: the credential is removed from what a server repeats: in one
// message or over two, in a ping, and in the reason of a close.
func TestWebSocketScrubbed(t *testing.T) {
	const value = "the-real-key-4711"
	want := policy.Credential{Scheme: credential.Bearer, Env: "KEY"}
	cred, err := credential.Open("key", want, secret.NewString(value))
	if err != nil {
		t.Fatal(err)
	}
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com, token_env: KEY}\n", wsServer(func(c net.Conn, in *bufio.Reader, r *http.Request) {
		io.WriteString(c, accept(r)+"\r\n")
		auth := r.Header.Get("Authorization")
		ws.WriteFrame(c, ws.NewTextFrame([]byte("you sent "+auth+"!")))
		ws.WriteFrame(c, ws.NewFrame(ws.OpText, false, []byte(auth[:12])))
		ws.WriteFrame(c, ws.NewPingFrame([]byte(auth)))
		ws.WriteFrame(c, ws.NewFrame(ws.OpContinuation, true, []byte(auth[12:])))
		ws.WriteFrame(c, ws.NewTextFrame([]byte(auth[:14])))
		ws.WriteFrame(c, ws.NewTextFrame([]byte(auth[14:])))
		ws.WriteFrame(c, ws.NewTextFrame([]byte("the-real-kettle")))
		ws.WriteFrame(c, ws.NewCloseFrame(ws.NewCloseFrameBody(1000, auth)))
		io.Copy(io.Discard, in)
	}), func(cfg *Config) { cfg.Credentials = Credentials{want: cred} })
	c, res := o.webSocket(t, "/v1/ws", "")
	if res.StatusCode != 101 {
		t.Fatalf("status %d", res.StatusCode)
	}
	mark := (cred.Placeholder() + cred.Placeholder())[:len(value)]
	half := value[:7]
	for _, want := range []string{
		"you sent Bearer " + mark + "!", "Bearer " + mark, "Bearer " + mark, "Bearer " + half, mark[7:], "the-real-kettle", "\x03\xe8Bearer " + mark,
	} {
		if _, got := c.message(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// wordScan refuses a word, and holds back what may be its beginning.
type wordScan struct {
	word string
	held []byte
	kept []byte // released at the end of a message
}

func (s *wordScan) Push(dst, p []byte) ([]byte, error) {
	s.held = append(s.held, p...)
	if bytes.Contains(append(bytes.Clone(s.kept), s.held...), []byte(s.word)) {
		return dst, refusedf("word", "%s was said", strings.ToUpper(s.word))
	}
	n := len(s.held)
	for k := min(len(s.word)-1, n); k > 0; k-- {
		if strings.HasPrefix(s.word, string(s.held[n-k:])) {
			n -= k
			break
		}
	}
	dst = append(dst, s.held[:n]...)
	if n > 0 {
		s.kept = nil
	}
	s.held = append([]byte(nil), s.held[n:]...)
	return dst, nil
}

func (s *wordScan) End(dst []byte) ([]byte, error) {
	dst = append(dst, s.held...)
	s.kept, s.held = append(s.kept, s.held...), nil
	return dst, nil
}

// TestFrameWayScans: what a scan holds back comes at the message's end at the latest,
// and what it refuses does not pass.
func TestFrameWayScans(t *testing.T) {
	run := func(frames ...ws.Frame) (string, error) {
		var in, out bytes.Buffer
		for _, f := range frames {
			ws.WriteFrame(&in, ws.MaskFrame(f))
		}
		scan := &wordScan{word: "secret"}
		d := newFrameCopier(&out, ws.StateServerSide, frameScan{data: scan, control: func(p []byte) error {
			if bytes.Contains(p, []byte("secret")) {
				return errors.New("in a control frame")
			}
			return nil
		}}, nil)
		err := d.copyFrames(&in)
		var got []string
		for out.Len() > 0 {
			h, p, err := readFrame(&out)
			if err != nil || !h.Masked {
				t.Fatalf("%+v %v", h, err)
			}
			got = append(got, fmt.Sprintf("%x%v:%s", h.OpCode, map[bool]string{true: "!", false: ""}[h.Fin], p))
		}
		return strings.Join(got, " "), err
	}
	for _, x := range []struct {
		frames []ws.Frame
		want   string
		err    string
	}{
		{[]ws.Frame{ws.NewTextFrame([]byte("a sec"))}, "1!:a sec", ""},
		{[]ws.Frame{ws.NewFrame(ws.OpText, false, []byte("a sec")), ws.NewFrame(ws.OpContinuation, true, []byte("ond"))}, "1:a  0!:second", ""},
		{[]ws.Frame{ws.NewFrame(ws.OpText, false, []byte("sec")), ws.NewFrame(ws.OpContinuation, true, []byte("ond"))}, "1!:second", ""},
		{[]ws.Frame{ws.NewFrame(ws.OpText, false, []byte("a sec")), ws.NewFrame(ws.OpContinuation, true, []byte("ret"))}, "1:a ", "SECRET"},
		{[]ws.Frame{ws.NewTextFrame([]byte("a sec")), ws.NewTextFrame([]byte("ret"))}, "1!:a sec", "SECRET"},
		{[]ws.Frame{ws.NewPingFrame([]byte("secret"))}, "", "control"},
		{[]ws.Frame{ws.NewCloseFrame(ws.NewCloseFrameBody(1000, "a secret"))}, "", "control"},
	} {
		got, err := run(x.frames...)
		if got != x.want || x.err == "" != (err == io.EOF) || !strings.Contains(fmt.Sprint(err), x.err) {
			t.Errorf("%s, %v; want %s, %s", got, err, x.want, x.err)
		}
		var e *webSocketError
		if x.err != "" && (!errors.As(err, &e) || e.code != 1008) {
			t.Errorf("%v has no code", err)
		}
	}
}

// TestWebSocketMemory: a frame of hundreds of megabytes, in either direction, needs
// memory for one piece only.
func TestWebSocketMemory(t *testing.T) {
	size := int64(256 << 20)
	if testing.Short() || os.Getenv(carriedBy) != "" {
		size = 64 << 20 // slow through packets
	}
	o := newTLSWorld(t, openRoutes, wsServer(func(c net.Conn, in *bufio.Reader, r *http.Request) {
		io.WriteString(c, accept(r)+"\r\n")
		var got int64
		for got < size {
			h, err := ws.ReadHeader(in)
			if err != nil {
				return
			}
			if _, err := io.CopyN(io.Discard, in, h.Length); err != nil {
				return
			}
			got += h.Length
		}
		ws.WriteHeader(c, ws.Header{Fin: true, OpCode: ws.OpBinary, Length: size})
		io.CopyN(c, zeros{}, size)
		io.Copy(io.Discard, in)
	}))
	c, _ := o.webSocket(t, "/v1/ws", "")
	watch := watchHeap(t)
	head := []byte{0x82, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4}
	binary.BigEndian.PutUint64(head[2:], uint64(size))
	go func() {
		c.Write(head)
		io.CopyN(c, zeros{}, size)
	}()
	var got int64
	for got < size {
		h, err := ws.ReadHeader(c.in)
		if err != nil {
			t.Fatalf("after %d: %v", got, err)
		}
		if _, err := io.CopyN(io.Discard, c.in, h.Length); err != nil {
			t.Fatal(err)
		}
		got += h.Length
	}
	watch.check(32 << 20)
}

// heapWatch measures the largest growth of the heap.
type heapWatch struct {
	t      testing.TB
	before uint64
	stop   chan struct{}
	most   chan uint64
}

func watchHeap(t testing.TB) *heapWatch {
	live := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapInuse
	}
	w := &heapWatch{t: t, before: live(), stop: make(chan struct{}), most: make(chan uint64)}
	go func() {
		var most uint64
		for {
			select {
			case <-w.stop:
				w.most <- most
				return
			case <-time.After(100 * time.Millisecond):
				most = max(most, live())
			}
		}
	}()
	return w
}

// check fails if the heap grew by more than bound bytes.
func (w *heapWatch) check(bound uint64) {
	w.t.Helper()
	close(w.stop)
	most := <-w.most
	grew := int64(most) - int64(w.before)
	w.t.Logf("the heap grew by %d KiB", grew>>10)
	if grew > int64(bound) {
		w.t.Errorf("the heap grew by %d bytes, more than %d", grew, bound)
	}
}

// FuzzWebSocketFrames: whatever is sent, only what RFC 6455 allows passes: frames in
// order, unfragmented control frames, valid text. The payload is a part of what a
// second reader makes of the input.
func FuzzWebSocketFrames(f *testing.F) {
	for _, x := range badFrames {
		var in bytes.Buffer
		for _, fr := range x.frames {
			ws.WriteFrame(&in, ws.MaskFrame(fr))
		}
		f.Add(in.Bytes(), 3, false)
	}
	var in bytes.Buffer
	for _, fr := range []ws.Frame{ws.NewTextFrame([]byte("grüße")), ws.NewPingFrame([]byte("x")), ws.NewFrame(ws.OpBinary, false, make([]byte, 300)), ws.NewFrame(ws.OpContinuation, true, make([]byte, 70_000)), ws.NewCloseFrame(ws.NewCloseFrameBody(1000, ""))} {
		ws.WriteFrame(&in, fr)
	}
	f.Add(in.Bytes(), 1000, true)
	f.Fuzz(func(t *testing.T, in []byte, step int, server bool) {
		if step < 1 || len(in) > 256<<10 {
			return
		}
		side, other := ws.StateServerSide, ws.StateServerSide
		if server {
			side, other = ws.StateClientSide, ws.StateClientSide
		}
		var out bytes.Buffer
		d := newFrameCopier(&out, side, frameScan{}, nil)
		_ = d.copyFrames(&stepReader{in, step})
		var plain, text []byte
		state, isText, closed := other, false, false
		for out.Len() > 0 {
			h, err := ws.ReadHeader(&out)
			if err != nil || int64(out.Len()) < h.Length || closed {
				t.Fatalf("header %+v, %v", h, err)
			}
			if err := ws.CheckHeader(h, state); err != nil {
				t.Fatalf("%+v: %v", h, err)
			}
			p := out.Next(int(h.Length))
			if h.Masked {
				ws.Cipher(p, h.Mask, 0)
			}
			plain = append(plain, p...)
			if h.OpCode.IsControl() {
				closed = h.OpCode == ws.OpClose
				continue
			}
			if h.OpCode != ws.OpContinuation {
				isText, text = h.OpCode == ws.OpText, nil
			}
			if text = append(text, p...); isText && h.Fin && !bytes.Equal(text, bytes.ToValidUTF8(text, []byte("\xff"))) {
				t.Fatalf("invalid text %q", text)
			}
			if state = other; !h.Fin {
				state = state.Set(ws.StateFragmented)
			}
		}
		var all []byte
		for r := bytes.NewReader(in); ; {
			h, err := ws.ReadHeader(r)
			if err != nil {
				break
			}
			p := make([]byte, min(h.Length, int64(r.Len())))
			io.ReadFull(r, p)
			if h.Masked {
				ws.Cipher(p, h.Mask, 0)
			}
			all = append(all, p...)
		}
		if !bytes.HasPrefix(all, plain) {
			t.Fatalf("passed %q of %q", plain, all)
		}
	})
}
