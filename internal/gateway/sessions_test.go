package gateway

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
	"github.com/klauspost/compress/zstd"

	"github.com/carboy/carboy/internal/agenttest/sessiontest"
	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/secret"
)

// recordedAgents lists whose sessions are recorded.
var recordedAgents = []string{"claude-code", "codex", "gemini-cli", "opencode-ai", "pi-coding-agent"}

// sessionKeys says how the vendors of the recorded sessions take their keys.
var sessionKeys = map[string]policy.Credential{
	"api.anthropic.com":                 {Scheme: credential.APIKey, Env: "KEY"},
	"api.openai.com":                    {Scheme: credential.Bearer, Env: "KEY"},
	"api.groq.com":                      {Scheme: credential.Bearer, Env: "KEY"},
	"generativelanguage.googleapis.com": {Scheme: credential.Header, Env: "KEY", Field: "x-goog-api-key"},
}

// replayed is a stand-in for a vendor that gives the recorded answers.
type replayed struct {
	mu   sync.Mutex
	x    *sessiontest.Exchange // the next one
	got  *http.Request
	body []byte // or the messages of a WebSocket
}

func (v *replayed) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	v.mu.Lock()
	x := v.x
	v.got = r
	v.mu.Unlock()
	heard := func(p []byte) {
		v.mu.Lock()
		v.body = append(v.body, p...)
		v.mu.Unlock()
	}
	if x.Messages != nil {
		c, _, _, err := ws.UpgradeHTTP(r, rw)
		if err != nil {
			return
		}
		defer c.Close()
		for _, m := range x.Messages {
			if m.FromServer {
				if wsutil.WriteServerText(c, m.Text) != nil {
					return
				}
				continue
			}
			p, err := wsutil.ReadClientText(c)
			heard(p)
			if err != nil {
				return
			}
		}
		_, _ = wsutil.ReadClientText(c) // the end
		return
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Body.Read(buf)
		heard(buf[:n])
		if err == io.EOF {
			break
		}
		if err != nil {
			return
		}
	}
	maps.Copy(rw.Header(), x.AnswerHeader)
	rw.WriteHeader(x.Status)
	flush := http.NewResponseController(rw)
	for event := range bytes.SplitAfterSeq(x.Answer, []byte("\n\n")) {
		if _, err := rw.Write(event); err != nil {
			return
		}
		_ = flush.Flush()
	}
}

// take returns what has arrived since the last call.
func (v *replayed) take(next *sessiontest.Exchange) (*http.Request, []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	r, body := v.got, v.body
	v.x, v.got, v.body = next, nil, nil
	return r, body
}

// session is a gateway between a recorded agent and its vendor, with the scanning that is
// the default.
type session struct {
	*tlsWorld
	vendor *replayed
	person *person
	keys   map[policy.Credential]*credential.Credential
}

func newSession(t *testing.T) *session {
	t.Helper()
	s := &session{vendor: &replayed{}, person: &person{answer: saying(rulingBlock)}}
	file := "routes:\n"
	all := Credentials{}
	for _, host := range slices.Sorted(maps.Keys(sessionKeys)) {
		want := sessionKeys[host]
		file += fmt.Sprintf("  - {host: %s, token_env: KEY, auth_scheme: %s", host, want.Scheme)
		if want.Field != "" {
			file += ", auth_field: " + want.Field
		}
		file += "}\n"
		c, err := credential.Open("key", want, secret.NewString(reflectedKey))
		if err != nil {
			t.Fatal(err)
		}
		all[want] = c
	}
	s.keys = all
	s.tlsWorld = newTLSWorld(t, file, s.vendor, watching, s.person.option, func(c *Config) {
		c.Credentials = all
		c.Secrets["key"] = secret.NewString(reflectedKey)
	})
	for host := range sessionKeys {
		s.world.name(host, publicAddr)
	}
	return s
}

// placed returns text with the placeholder that the bottle has for the key of a host.
func (s *session) placed(text, host string) string {
	return strings.ReplaceAll(text, sessiontest.Key, s.keys[sessionKeys[host]].Placeholder())
}

// ofConnection reports whether a header is about the connection and no part of what an
// agent says.
func ofConnection(name string) bool {
	return slices.Contains([]string{"Connection", "Upgrade", "Content-Length", "Accept-Encoding", "Te", "Date"}, name) ||
		strings.HasPrefix(name, "Sec-Websocket-") && name != "Sec-Websocket-Protocol"
}

// send sends a recorded request as the agent did, and returns the answer, or the messages
// from the server. status is 0 if the exchange broke off.
func (s *session) send(t *testing.T, x *sessiontest.Exchange, h2 bool) (status int, header http.Header, answer []byte) {
	t.Helper()
	h := http.Header{}
	for name, values := range x.Header {
		for _, v := range values {
			if !ofConnection(name) {
				h.Add(name, s.placed(v, x.Host))
			}
		}
	}
	if x.Messages != nil {
		return s.converse(t, x, h)
	}
	req, err := http.NewRequestWithContext(t.Context(), x.Method, "https://"+x.Host+s.placed(x.Path, x.Host), strings.NewReader(s.placed(string(x.Body), x.Host)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = h
	if coding := x.Header.Get("Accept-Encoding"); coding != "" {
		req.Header.Set("Accept-Encoding", coding)
	}
	c := s.client(h2)
	res, err := c.Do(req)
	if err != nil {
		return 0, nil, nil
	}
	defer c.CloseIdleConnections()
	defer res.Body.Close()
	answer, err = io.ReadAll(res.Body)
	if err != nil {
		return 0, res.Header, answer
	}
	return res.StatusCode, res.Header, answer
}

// converse plays the messages of a WebSocket.
func (s *session) converse(t *testing.T, x *sessiontest.Exchange, h http.Header) (status int, header http.Header, answer []byte) {
	t.Helper()
	c := tls.Client(s.mustDial(x.Host, 443), &tls.Config{ServerName: x.Host, RootCAs: s.inside})
	defer c.Close()
	d := ws.Dialer{Header: ws.HandshakeHeaderHTTP(h)}
	u, err := url.Parse("wss://" + x.Host + s.placed(x.Path, x.Host))
	if err != nil {
		t.Fatal(err)
	}
	in, _, err := d.Upgrade(c, u)
	if err != nil {
		return 0, nil, nil
	}
	if in != nil {
		t.Fatal("a message before the first request")
	}
	for _, m := range x.Messages {
		if !m.FromServer {
			if wsutil.WriteClientText(c, []byte(s.placed(string(m.Text), x.Host))) != nil {
				return 0, nil, answer
			}
			continue
		}
		p, err := wsutil.ReadServerText(c)
		if answer = append(answer, p...); err != nil {
			return 0, nil, answer
		}
	}
	return http.StatusSwitchingProtocols, nil, answer
}

// said returns what an agent says in an exchange, and what it is answered.
func said(x *sessiontest.Exchange) (out, in []byte) {
	if x.Messages == nil {
		return x.Body, x.Answer
	}
	for _, m := range x.Messages {
		if m.FromServer {
			in = append(in, m.Text...)
		} else {
			out = append(out, m.Text...)
		}
	}
	return out, in
}

// TestRecordedSessions: in the sessions of real agents nothing is found, asked,
// refused or changed but the key, in either direction.
func TestRecordedSessions(t *testing.T) {
	var names []string
	for _, rec := range sessiontest.All(t) {
		names = append(names, rec.Name)
		t.Run(rec.Name, func(t *testing.T) {
			s := newSession(t)
			requests, bytesOut, bytesIn := 0, 0, 0
			for i, x := range rec.Exchanges {
				s.vendor.take(x)
				status, header, answer := s.send(t, x, i%2 == 1)
				got, body := s.vendor.take(nil)
				what := fmt.Sprintf("%d: %s %s%s", i, x.Method, x.Host, x.Path)
				out, in := said(x)
				if status != x.Status || !bytes.Equal(answer, in) {
					t.Fatalf("%s: the answer is %d, %.300q, and not %d, %.300q", what, status, answer, x.Status, in)
				}
				if got == nil || got.Method != x.Method || got.RequestURI != x.Path || string(body) != s.placed(string(out), x.Host) {
					t.Fatalf("%s: something else arrived: %.300q", what, body)
				}
				want := sessionKeys[x.Host]
				keyHeader := map[policy.Scheme]string{credential.Bearer: "Authorization", credential.APIKey: "X-Api-Key", credential.Header: "X-Goog-Api-Key"}[want.Scheme]
				if !strings.HasSuffix(got.Header.Get(keyHeader), reflectedKey) {
					t.Errorf("%s: without the key", what)
				}
				compare := func(what string, want, got http.Header) {
					for _, h := range []http.Header{want, got} {
						maps.DeleteFunc(h, func(name string, _ []string) bool { return ofConnection(name) || name == keyHeader })
					}
					if !maps.EqualFunc(want, got, slices.Equal[[]string]) {
						t.Errorf("%s: headers %v and not %v", what, got, want)
					}
				}
				compare(what, x.Header.Clone(), got.Header.Clone())
				if header != nil {
					compare(what+", answer", x.AnswerHeader.Clone(), header)
				}
				bytesOut, bytesIn = bytesOut+len(out), bytesIn+len(in)
				requests++
				for _, m := range x.Messages {
					if !m.FromServer {
						requests++
					}
				}
			}
			sum := s.gw.Summary()
			for _, f := range sum.Found {
				t.Errorf("found: %+v", f)
			}
			for _, h := range s.person.take() {
				t.Errorf("asked: %+v", h)
			}
			if requests < 10 || bytesOut < 100<<10 {
				t.Errorf("only %d requests of %d bytes", requests, bytesOut)
			}
			t.Logf("%d requests, %d bytes out and %d in", requests, bytesOut, bytesIn)
		})
	}
	if slices.Sort(names); !slices.Equal(names, recordedAgents) {
		t.Errorf("sessions of %v are recorded", names)
	}
}

// planted returns a copy of x with v in one place of the request, or in the answer.
func planted(t *testing.T, x *sessiontest.Exchange, place, v string) *sessiontest.Exchange {
	t.Helper()
	c := *x
	c.Header, c.AnswerHeader, c.Messages = x.Header.Clone(), x.AnswerHeader.Clone(), slices.Clone(x.Messages)
	path, query, _ := strings.Cut(x.Path, "?")
	// into puts v in a string of JSON, in the middle of text.
	into := func(text []byte) []byte {
		at := len(text) / 2
		n := bytes.Index(text[at:], []byte(`":"`))
		if n < 0 {
			at, n = 0, bytes.Index(text, []byte(`":"`))
		}
		if n < 0 {
			t.Fatalf("no string in %.100q", text)
		}
		at += n + 3
		return slices.Concat(text[:at], []byte(v+" "), text[at:])
	}
	message := func(fromServer bool) {
		most := -1
		for i, m := range c.Messages {
			if m.FromServer == fromServer && (most < 0 || len(m.Text) > len(c.Messages[most].Text)) {
				most = i
			}
		}
		c.Messages[most].Text = into(c.Messages[most].Text)
	}
	switch place {
	case "header":
		c.Header.Set("X-Session-Note", "of "+v)
	case "path":
		c.Path = path + "/" + v
		if query != "" {
			c.Path += "?" + query
		}
	case "query":
		c.Path = path + "?" + strings.TrimPrefix(query+"&q="+v, "&")
	case "body":
		if x.Messages != nil {
			message(false)
			break
		}
		if x.Header.Get("Content-Encoding") != "" {
			z, _ := zstd.NewReader(nil)
			defer z.Close()
			plain, err := z.DecodeAll(x.Body, nil)
			if err != nil {
				t.Fatal(err)
			}
			z2, _ := zstd.NewWriter(nil)
			defer z2.Close()
			c.Body = z2.EncodeAll(into(plain), nil)
			break
		}
		c.Body = into(x.Body)
	case "answer":
		if x.Messages != nil {
			message(true)
			break
		}
		c.Answer = into(x.Answer)
	}
	return &c
}

// vendorToken returns what looks like a token of a vendor, and belongs to nobody.
func vendorToken() string { return "gh" + "p_" + "Bd3Lk8Tq1Xn6Zw9Pv4Jm7Cs2Rh5Gf0QyEuAi" }

// TestRecordedSessionsWithSecrets is the control of TestRecordedSessions. In the same
// requests a known secret and a token by its form are found wherever they are, before
// upstream has them. In the same answers the key is masked and an injection cut. Answers
// are not searched for tokens by their form.
func TestRecordedSessionsWithSecrets(t *testing.T) {
	for _, rec := range sessiontest.All(t) {
		t.Run(rec.Name, func(t *testing.T) {
			s := newSession(t)
			size := func(x *sessiontest.Exchange) int { out, _ := said(x); return len(out) }
			x := slices.MaxFunc(rec.Exchanges, func(a, b *sessiontest.Exchange) int { return size(a) - size(b) })
			for i, place := range []string{"header", "path", "query", "body"} {
				for rule, v := range map[string]string{"known-secret": watchedValue, "github-pat": vendorToken()} {
					bad := planted(t, x, place, v)
					s.vendor.take(bad)
					status, _, _ := s.send(t, bad, i%2 == 1)
					asked := s.person.take()
					if len(asked) == 0 || asked[0].What != rule {
						t.Errorf("%s, %s: %d, nobody was asked: %+v", rule, place, status, asked)
					}
					if status == http.StatusOK || status == http.StatusSwitchingProtocols {
						t.Errorf("%s, %s: the answer is %d", rule, place, status)
					}
					got, body := s.vendor.take(nil)
					if bytes.Contains(body, []byte(v)) || got != nil && strings.Contains(fmt.Sprint(got.Header, got.URL), v) {
						t.Errorf("%s, %s: upstream has it", rule, place)
					}
				}
			}
			_, in := said(x)
			bad := planted(t, x, "answer", reflectedKey)
			s.vendor.take(bad)
			status, _, answer := s.send(t, bad, false)
			if status != x.Status || len(answer) != len(in)+len(reflectedKey)+1 || bytes.Contains(answer, []byte(reflectedKey)) {
				t.Errorf("the key in the answer: %d, %d bytes of %d", status, len(answer), len(in))
			}
			bad = planted(t, x, "answer", takesOver+" and "+disclose+".")
			s.vendor.take(bad)
			if status, _, answer = s.send(t, bad, true); status == x.Status || len(answer) >= len(in) {
				t.Errorf("an injection in the answer: %d, %d bytes of %d", status, len(answer), len(in))
			}
			// The gateway still lets the same pass.
			s.vendor.take(x)
			if status, _, _ = s.send(t, x, true); status != x.Status {
				t.Errorf("afterwards: %d", status)
			}
		})
	}
}
