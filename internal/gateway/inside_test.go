package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// TestInside: one of carboy's own names is answered by its handler, which can stream
// both ways. Without a handler it does not exist. No route is asked and nothing is
// dialled.
func TestInside(t *testing.T) {
	w := newWorld()
	b := newBottle(t, w, nil, func(c *Config) {
		c.Inside = map[string]http.Handler{GitName: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/panic" {
				panic(http.ErrAbortHandler)
			}
			fmt.Fprintf(rw, "%s %s\n", r.Method, r.URL)
			http.NewResponseController(rw).Flush()
			for in := bufio.NewReader(r.Body); ; http.NewResponseController(rw).Flush() {
				line, err := in.ReadString('\n')
				if io.WriteString(rw, line); err != nil {
					return
				}
			}
		})}
	})
	c := b.httpClient()
	pr, pw := io.Pipe()
	req, _ := http.NewRequest("POST", "http://GIT.carboy.internal/a.git/x?y=1", pr)
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(res.Body)
	// The answer begins before the request has ended.
	for _, say := range []string{"", "one\n", "two\n"} {
		if io.WriteString(pw, say); say == "" {
			say = "POST /a.git/x?y=1\n"
		}
		if got, err := in.ReadString('\n'); got != say {
			t.Errorf("%q, %v; want %q", got, err, say)
		}
	}
	pw.Close()
	res.Body.Close()
	c.CloseIdleConnections()
	for raw, status := range map[string]int{
		"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n":                             421,
		"GET / HTTP/1.1\r\nHost: supervise.carboy.internal\r\n\r\n":                421,
		"GET / HTTP/1.1\r\nHost: git.carboy.internal:81\r\n\r\n":                   421,
		"GET / HTTP/1.1\r\nHost: git.carboy.internal\r\nContent-Length: +\r\n\r\n": 400,
		"GET / HTTP/1.1\r\nHost: git.carboy.internal\r\n\r\n":                      200,
	} {
		if res, _ := b.request(t, GitName, raw); res.StatusCode != status {
			t.Errorf("%q: %d", raw, res.StatusCode)
		}
	}
	if _, err := c.Get("http://" + GitName + "/panic"); err == nil {
		t.Error("a panic was answered")
	}
	if _, err := b.dial(GitName, 443); err == nil {
		t.Error("it has another port")
	}
	if r := b.ask(GitName, dns.TypeAAAA); r.Rcode != dns.RcodeSuccess || len(r.Answer) != 0 {
		t.Errorf("%v", r)
	}
	if _, err := b.resolve(SuperviseName); err != errNXDomain {
		t.Errorf("a name without a handler: %v", err)
	}
	if len(w.dials()) != 0 || len(w.looked()) != 0 {
		t.Errorf("dialled %v, looked up %v", w.dials(), w.looked())
	}
	b.waitConn("allowed", func(c ConnSummary) bool { return c.Name == GitName && c.Allowed && c.Rule == "carboy: "+GitName })
	for _, name := range []string{"x.example", egressName, "GIT.carboy.internal", ""} {
		if err := checkInside(map[string]http.Handler{name: http.NotFoundHandler()}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
