package gateway

import (
	"bufio"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/secret"
)

// speak sends a request written by hand inside TLS and returns the answer.
func (o *tlsWorld) speak(host, request string) string {
	o.t.Helper()
	c := tls.Client(o.mustDial(host, 443), &tls.Config{RootCAs: o.inside, ServerName: host})
	defer c.Close()
	if _, err := io.WriteString(c, request); err != nil {
		o.t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return fmt.Sprintln(res.StatusCode, res.Header, string(b))
}

// unrecorded fails the test if the summary or the events contain value.
func (o *tlsWorld) unrecorded(value string) {
	o.t.Helper()
	text, _ := json.Marshal([]any{o.gw.Summary(), o.allEvents()})
	if i := held(string(text), value); i >= 0 {
		o.t.Errorf("the record repeats it: %s", text[max(0, i-200):min(len(text), i+100)])
	}
}

// TestTrailersThatWereNotAnnounced: they are scanned too. HTTP/1 forwards them once
// one trailer was announced.
func TestTrailersThatWereNotAnnounced(t *testing.T) {
	up := &recordingUpstream{}
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com, dlp: {outbound_on_match: block}}\n", up, watching)
	o.only1.Store(true)
	send := func(trailer string) string {
		return o.speak("api.example.com", "POST /v1 HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTrailer: X-A\r\n\r\n1\r\nx\r\n0\r\nX-A: 1\r\n"+trailer+"\r\n\r\n")
	}
	send("X-" + harmlessValue + ": 1")
	if got := up.take(); !holds(got, harmlessValue) {
		t.Errorf("the neighbour: %q", got)
	}
	for _, trailer := range []string{"X-" + watchedValue + ": 1", "X-B: " + watchedValue, "X-A" + hex.EncodeToString([]byte(watchedValue)) + ":"} {
		send(trailer)
		time.Sleep(5 * time.Millisecond)
		if got := up.take(); holds(got, watchedValue) || holds(got, hex.EncodeToString([]byte(watchedValue))) {
			t.Errorf("upstream saw it: %.300q", got)
		}
	}
	o.unrecorded(watchedValue)
}

// TestPlacesAreNoSecrets: the place of a finding, which the bottle names, is recorded
// without secrets.
func TestPlacesAreNoSecrets(t *testing.T) {
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com, dlp: {outbound_on_match: block}}\n", &recordingUpstream{}, watching)
	for _, name := range []string{"X-" + watchedValue, "X-" + hex.EncodeToString([]byte(watchedValue))} {
		r := post(nil)
		r.Header.Set(name, watchedValue)
		res, err := o.client(false).Do(r)
		if err != nil || res.StatusCode != 403 {
			t.Fatalf("%v %v", res, err)
		}
		res.Body.Close()
	}
	c := tls.Client(o.mustDial("api.example.com", 443), &tls.Config{InsecureSkipVerify: true, ServerName: hex.EncodeToString([]byte(watchedValue)) + ".example.com"})
	_ = c.Handshake()
	c.Close()
	o.waitReason(reasonSNIMismatch)
	o.ask(hex.EncodeToString([]byte(watchedValue))+".in-addr.arpa", dns.TypePTR)
	o.unrecorded(watchedValue)
}

// TestConditionsHoldForWhatIsSent: a header that is removed as hop-by-hop does not
// satisfy a condition.
func TestConditionsHoldForWhatIsSent(t *testing.T) {
	up := &recordingUpstream{}
	o := newTLSWorld(t, "routes:\n  - host: api.example.com\n    matches: [{headers: [{name: X-Env, value: test}]}]\n", up)
	ask := func(head string) (string, string) {
		said := o.speak("api.example.com", "GET /v1 HTTP/1.1\r\nHost: api.example.com\r\nX-Env: test\r\n"+head+"\r\n\r\n")
		return said, up.take()
	}
	if said, got := ask("Connection: close"); !strings.Contains(got, "X-Env: test") {
		t.Errorf("the neighbour: %s %q", said, got)
	}
	if said, got := ask("Connection: close, x-env"); got != "" || !strings.Contains(said, "403") {
		t.Errorf("upstream got %q; %s", got, said)
	}
}

// TestErrorsRepeatNoCredential: an upstream that sends back whatever it was sent
// reveals it neither to the bottle nor to the record.
func TestErrorsRepeatNoCredential(t *testing.T) {
	const value = "the-real/key+4711=and-more"
	want := policy.Credential{Scheme: credential.Query, Env: "KEY", Field: "api"}
	c, err := credential.Open("key", want, secret.NewString(value))
	if err != nil {
		t.Fatal(err)
	}
	with := func(cfg *Config) {
		cfg.Credentials = Credentials{want: c}
		cfg.Secrets = map[string]secret.Value{"key": secret.NewString(value)}
	}
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com, token_env: KEY, auth_scheme: query, auth_field: api, upstream: \"http://10.0.0.7:81\"}\n", http.HandlerFunc(echo), with)
	for name, answer := range map[string]func(line string) string{
		"status line": func(line string) string { return line + "\r\n\r\n" },
		"header line": func(line string) string { return "HTTP/1.1 200 OK\r\n" + line + "\r\n\r\n" },
		"length":      func(line string) string { return "HTTP/1.1 200 OK\r\nContent-Length: " + line + "\r\n\r\n" },
		"redirect": func(line string) string {
			return "HTTP/1.1 302 Found\r\nLocation: " + strings.Fields(line)[1] + "\r\nContent-Length: 0\r\n\r\n"
		},
		"body": func(line string) string { return "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\nno " + line },
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		o.world.point("10.0.0.7:81", l.Addr().String())
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				line, _ := bufio.NewReader(c).ReadString('\n')
				_, _ = io.WriteString(c, answer(strings.TrimSpace(line)))
				c.Close()
			}
		}()
		said := o.speak("api.example.com", "GET /v1 HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n")
		if holds(said, value) || holds(said, "the-real%2Fkey%2B4711%3Dand-more") {
			t.Errorf("%s: %s", name, said)
		}
		o.gw.rules.Load().out.closeIdle()
	}
	o.unrecorded(value)
	o.unrecorded("the-real%2Fkey%2B4711%3Dand-more")
}

// TestScopeOfASignature: region and service of the agent's own signature go into the
// new one, so they are scanned.
func TestScopeOfASignature(t *testing.T) {
	up := &recordingUpstream{}
	want := policy.Credential{Scheme: credential.AWS, Env: "KEY"}
	c, err := credential.Open("key", want, secret.NewString("AKIDEXAMPLE:wJalrXUtnFEMI-the-secret-part"))
	if err != nil {
		t.Fatal(err)
	}
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com, token_env: KEY, auth_scheme: aws-sigv4, dlp: {outbound_on_match: block}}\n", up, watching,
		func(cfg *Config) { cfg.Credentials = Credentials{want: c} })
	for region, status := range map[string]int{"eu-west-1": 200, hex.EncodeToString([]byte(watchedValue)): 403} {
		r := post(nil)
		r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=X/20260101/"+region+"/s3/aws4_request, SignedHeaders=host, Signature=00")
		res, err := o.client(false).Do(r)
		if err != nil || res.StatusCode != status {
			t.Errorf("%s: %v %v", region, res, err)
		}
		if got := up.take(); holds(got, hex.EncodeToString([]byte(watchedValue))) || status == 200 && !strings.Contains(got, region) {
			t.Errorf("upstream saw %q", got)
		}
	}
	o.unrecorded(watchedValue)
}
