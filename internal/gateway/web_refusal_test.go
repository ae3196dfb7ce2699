package gateway

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// request sends bytes on a new connection and reads one answer.
func (b *bottle) request(t *testing.T, host string, raw string) (*http.Response, string) {
	t.Helper()
	c := b.mustDial(host, 80)
	defer c.Close()
	if _, err := io.WriteString(c, raw); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%.60q: %v", raw, err)
	}
	body, _ := io.ReadAll(res.Body)
	return res, string(body)
}

func TestAuthority(t *testing.T) {
	w := webWorld(t)
	w.name("other.example.com", publicAddr)
	b := newBottle(t, w, routes(t, "api.example.com", "other.example.com", "1.2.3.4:80"))
	for _, ok := range []string{
		"GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: api.example.com:80\r\n\r\n",
		"GET / HTTP/1.0\r\nHost: API.EXAMPLE.COM.\r\n\r\n",
		"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
	} {
		if res, body := b.request(t, "api.example.com", ok); res.StatusCode != 200 {
			t.Errorf("%q: %d %s", ok, res.StatusCode, body)
		}
	}
	dialled := len(w.dials())
	for _, tt := range []struct {
		raw    string
		status int
	}{
		{"GET / HTTP/1.1\r\nHost: other.example.com\r\n\r\n", 421},
		{"GET / HTTP/1.1\r\nHost: evil.com\r\n\r\n", 421},
		{"GET / HTTP/1.1\r\nHost: api.example.com:81\r\n\r\n", 421},
		{"GET / HTTP/1.1\r\nHost: api.example.com@evil.com\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost: api.example.com, evil.com\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost: 1.2.3.4\r\n\r\n", 421},
		{"GET / HTTP/1.1\r\nHost:\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost: api.example.com\r\nHost: evil.com\r\n\r\n", 400},
		{"GET http://evil.com/ HTTP/1.1\r\nHost: evil.com\r\n\r\n", 421},
		{"GET http://evil.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n", 400},
		{"GET http://api.example.com/ HTTP/1.1\r\nHost: evil.com\r\n\r\n", 400},
		{"GET https://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n", 400},
		{"GET http://u:p@api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n", 400},
		{"CONNECT evil.com:443 HTTP/1.1\r\nHost: evil.com:443\r\n\r\n", 403},
		{"CONNECT api.example.com:80 HTTP/1.1\r\nHost: api.example.com:80\r\n\r\n", 403},
		{"OPTIONS * HTTP/1.1\r\nHost: api.example.com\r\n\r\n", 400},
		{"CARBOY-REFUSED / HTTP/1.1\r\nHost: api.example.com\r\n\r\n", 400},
	} {
		res, body := b.request(t, "api.example.com", tt.raw)
		if res.StatusCode != tt.status || !strings.Contains(body, "carboy") && tt.status != 400 {
			t.Errorf("%q: %d %s", tt.raw, res.StatusCode, body)
		}
	}
	if len(w.dials()) != dialled {
		t.Errorf("a refused request was dialled")
	}

	// The text for people and the fields for programs.
	_, body := b.request(t, "api.example.com", "GET / HTTP/1.1\r\nHost: evil.com\r\n\r\n")
	if !strings.Contains(body, "--allow evil.com:80") || !strings.Contains(body, "host-mismatch") {
		t.Errorf("refusal: %s", body)
	}
	_, body = b.request(t, "api.example.com", "GET / HTTP/1.1\r\nHost: evil.com\r\nAccept: application/json\r\n\r\n")
	var r refusal
	if err := json.Unmarshal([]byte(body), &r); err != nil || r.Reason != reasonHostMismatch || r.Host != "api.example.com" || r.Allow != "--allow evil.com:80" {
		t.Errorf("refusal: %s", body)
	}
}

// TestKeptConnection: each request of a connection is judged, not only the first.
func TestKeptConnection(t *testing.T) {
	b := newBottle(t, webWorld(t), routes(t, "api.example.com", "other.example.com"))
	c := b.mustDial("api.example.com", 80)
	br := bufio.NewReader(c)
	do := func(host string) int {
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host)
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		return res.StatusCode
	}
	for range 3 {
		if s := do("api.example.com"); s != 200 {
			t.Fatalf("allowed: %d", s)
		}
	}
	if s := do("other.example.com"); s != 421 {
		t.Errorf("another host: %d", s)
	}
	if _, err := br.ReadByte(); err != io.EOF {
		t.Errorf("the connection lives: %v", err)
	}

	// Pipelined: the answer to the good request, then the refusal.
	c = b.mustDial("api.example.com", 80)
	io.WriteString(c, "GET /1 HTTP/1.1\r\nHost: api.example.com\r\n\r\nGET /2 HTTP/1.1\r\nHost: api.example.com\r\nHost: x\r\n\r\n")
	br = bufio.NewReader(c)
	for _, want := range []int{200, 400} {
		res, err := http.ReadResponse(br, nil)
		if err != nil || res.StatusCode != want {
			t.Fatalf("pipelined: %v, %v; want %d", res, err, want)
		}
		io.Copy(io.Discard, res.Body)
	}
}

// smuggling lists requests that can be read in two ways.
var smuggling = map[string]string{
	"two lengths":            "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
	"two equal lengths":      "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
	"list of lengths":        "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3, 3\r\n\r\nabc",
	"length and chunks":      "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"chunks and length":      "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
	"two encodings":          "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
	"identity":               "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: identity\r\n\r\n",
	"encoding list":          "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
	"encoding with tab":      "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n",
	"encoding, space, colon": "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
	"chunks in 1.0":          "POST / HTTP/1.0\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"plus length":            "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: +3\r\n\r\nabc",
	"negative length":        "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: -1\r\n\r\n",
	"hex length":             "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 0x3\r\n\r\nabc",
	"empty length":           "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length:\r\n\r\n",
	"huge length":            "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 99999999999999999999\r\n\r\n",
	"folded":                 "GET / HTTP/1.1\r\nHost: api.example.com\r\nX: a\r\n b\r\n\r\n",
	"folded host":            "GET / HTTP/1.1\r\nHost:\r\n api.example.com\r\n\r\n",
	"bare lf":                "GET / HTTP/1.1\nHost: api.example.com\n\n",
	"one bare lf":            "GET / HTTP/1.1\r\nHost: api.example.com\nX: y\r\n\r\n",
	"bare lf end":            "GET / HTTP/1.1\r\nHost: api.example.com\n\nGET /evil HTTP/1.1\r\n\r\n",
	"bare cr":                "GET / HTTP/1.1\r\nHost: api.example.com\r\nX: a\rY: b\r\n\r\n",
	"nul":                    "GET / HTTP/1.1\r\nHost: api.example.com\r\nX: a\x00b\r\n\r\n",
	"no colon":               "GET / HTTP/1.1\r\nHost: api.example.com\r\nX\r\n\r\n",
	"space in name":          "GET / HTTP/1.1\r\nHost: api.example.com\r\nX y: z\r\n\r\n",
	"first line folded":      "GET / HTTP/1.1\r\n X: y\r\nHost: api.example.com\r\n\r\n",
	"two spaces":             "GET  / HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
	"space in target":        "GET /a b HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
	"raw bytes in target":    "GET /\xff HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
	"version 0.9":            "GET /\r\n\r\n",
	"version 1.2":            "GET / HTTP/1.2\r\nHost: api.example.com\r\n\r\n",
	"version 2.0":            "GET / HTTP/2.0\r\nHost: api.example.com\r\n\r\n",
	"version lower case":     "GET / http/1.1\r\nHost: api.example.com\r\n\r\n",
}

func TestSmuggling(t *testing.T) {
	w := webWorld(t)
	b := newBottle(t, w, routes(t, "api.example.com"))
	for _, name := range slices.Sorted(maps.Keys(smuggling)) {
		if res, body := b.request(t, "api.example.com", smuggling[name]); res.StatusCode != 400 {
			t.Errorf("%s: %d %s", name, res.StatusCode, body)
		}
	}
	if d := w.dials(); len(d) != 0 {
		t.Fatalf("dialled %v", d)
	}
	for name, raw := range map[string]string{
		"length":   "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3\r\n\r\nabc",
		"chunks":   "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
		"trailer":  "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n",
		"bytes":    "POST / HTTP/1.1\r\nHost: api.example.com\r\nX: \xff\t \xc3\xa9\r\nContent-Length: 3\r\n\r\na\n\x00",
		"continue": "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc",
	} {
		if res, body := b.request(t, "api.example.com", raw); res.StatusCode != 200 || !strings.HasSuffix(body, " 3") {
			t.Errorf("%s: %d %s", name, res.StatusCode, body)
		}
	}
	// Chunks that go wrong after the request was passed on: it must not be answered as
	// a complete one.
	for name, chunks := range map[string]string{
		"extension":     "3;a=b\r\nabc\r\n0\r\n\r\n",
		"bare lf":       "3\nabc\r\n0\r\n\r\n",
		"wrong size":    "2\r\nabc\r\n0\r\n\r\n",
		"signed":        "+3\r\nabc\r\n0\r\n\r\n",
		"prefixed":      "0x3\r\nabc\r\n0\r\n\r\n",
		"underscore":    "1_0\r\nabcabcabcabcabca\r\n0\r\n\r\n",
		"overflow":      "ffffffffffffffff3\r\nabc\r\n0\r\n\r\n",
		"empty":         "\r\nabc\r\n0\r\n\r\n",
		"bad trailer":   "3\r\nabc\r\n0\r\nX y\r\n\r\n",
		"space in size": "3 \r\nabc\r\n0\r\n\r\n",
	} {
		c := b.mustDial("api.example.com", 80)
		io.WriteString(c, "POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n"+chunks)
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err == nil && res.StatusCode < 400 {
			t.Errorf("chunks, %s: %d", name, res.StatusCode)
		}
		c.Close()
	}
}

func TestLargeHeads(t *testing.T) {
	b := newBottle(t, webWorld(t), routes(t, "api.example.com"), withLimits(Limits{HeadBytes: 8 << 10, Sniff: 300 * time.Millisecond}))
	head := func(n int) string {
		return "GET / HTTP/1.1\r\nHost: api.example.com\r\nX: " + strings.Repeat("y", n) + "\r\n\r\n"
	}
	if res, _ := b.request(t, "api.example.com", head(4<<10)); res.StatusCode != 200 {
		t.Errorf("a head within the bound: %d", res.StatusCode)
	}
	if res, _ := b.request(t, "api.example.com", head(9<<10)); res.StatusCode != 431 {
		t.Errorf("a head beyond the bound: %d", res.StatusCode)
	}
	b.waitLimit(ReasonLimitHead, 1)
	// A head that never ends, byte by byte.
	c := b.mustDial("api.example.com", 80)
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: api.example.com\r\n")
	if got, _ := io.ReadAll(c); bytes.Contains(got, []byte("200")) {
		t.Errorf("a slow head: %s", got)
	}
}

func TestRefusedUpstream(t *testing.T) {
	w := newWorld()
	w.name("inner.example.com", "10.0.0.1")
	w.name("down.example.com", publicAddr)
	b := newBottle(t, w, routes(t, "inner.example.com", "down.example.com", "gone.example.com"))
	for host, want := range map[string]struct {
		status int
		text   string
	}{
		"inner.example.com": {403, "--allow-private inner.example.com:80"},
		"down.example.com":  {502, "dial-failed"},
		"gone.example.com":  {502, "resolve-failed"},
	} {
		res, body := b.request(t, host, "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
		if res.StatusCode != want.status || !strings.Contains(body, want.text) {
			t.Errorf("%s: %d %s", host, res.StatusCode, body)
		}
	}
}

func TestHopByHopHeaders(t *testing.T) {
	w := newWorld()
	w.name("api.example.com", publicAddr)
	got := make(chan http.Header, 1)
	w.serve(t, publicAddr+":80", func(c net.Conn) {
		defer c.Close()
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		got <- r.Header
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	})
	b := newBottle(t, w, routes(t, "api.example.com"))
	b.request(t, "api.example.com", "GET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: X-Hop, Upgrade, HTTP2-Settings\r\nX-Hop: 1\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n"+
		"Proxy-Authorization: Basic x\r\nProxy-Connection: keep-alive\r\nKeep-Alive: 5\r\nX-Forwarded-For: 1.1.1.1\r\nAuthorization: Bearer t\r\n\r\n")
	h := <-got
	for _, name := range []string{"X-Hop", "Upgrade", "Http2-Settings", "Proxy-Authorization", "Proxy-Connection", "Keep-Alive", "X-Forwarded-For", "Via"} {
		if v := h.Get(name); v != "" {
			t.Errorf("%s: %q went out", name, v)
		}
	}
	if h.Get("Authorization") != "Bearer t" {
		t.Error("an end-to-end header was lost")
	}
}

func TestStreaming(t *testing.T) {
	w := newWorld()
	w.name("api.example.com", publicAddr)
	w.serve(t, publicAddr+":80", func(c net.Conn) {
		defer c.Close()
		br := bufio.NewReader(c)
		if _, err := http.ReadRequest(br); err != nil {
			return
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
		io.Copy(io.Discard, br)
	})
	b := newBottle(t, w, routes(t, "api.example.com"))
	c := b.mustDial("api.example.com", 80)
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	// The first event arrives while the server still holds the stream.
	got := make([]byte, 9)
	if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != "data: 1\n\n" {
		t.Errorf("%q, %v", got, err)
	}
}
