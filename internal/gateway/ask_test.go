package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gobwas/ws"

	"github.com/carboy/carboy/internal/secret"
)

// person answers by a function and records the questions.
type person struct {
	answer func(ctx context.Context, h Held) Answer

	mu    sync.Mutex
	asked []Held
}

func (p *person) Ask(ctx context.Context, h Held) Answer {
	p.mu.Lock()
	p.asked = append(p.asked, h)
	p.mu.Unlock()
	return p.answer(ctx, h)
}

func (p *person) take() []Held {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() { p.asked = nil }()
	return p.asked
}

func saying(r Ruling) func(context.Context, Held) Answer {
	return func(context.Context, Held) Answer { return Answer{Ruling: r, Message: "said somebody"} }
}

func (p *person) option(c *Config) { c.Ask = p }

const askRoutes = "routes:\n  - {host: api.example.com, dlp: {outbound_on_match: supervise}}\n"

// TestHeld: wherever in a request a secret is, a person is asked before any of it has
// left, and the answer is applied.
func TestHeld(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2 %v", h2), func(t *testing.T) { testHeld(t, h2) })
	}
}

func testHeld(t *testing.T, h2 bool) {
	up := &recordingUpstream{}
	var leaked, now atomic.Value // string, Ruling
	p := &person{}
	p.answer = func(_ context.Context, h Held) Answer {
		up.mu.Lock()
		defer up.mu.Unlock()
		if got := up.got.String(); holds(got, watchedValue) {
			leaked.Store(got)
		}
		return Answer{Ruling: now.Load().(Ruling), Message: "said somebody"}
	}
	o := newTLSWorld(t, askRoutes, up, watching, p.option)
	c := o.client(h2)
	for _, s := range sendings {
		for _, ruling := range []Ruling{RulingPass, RulingMask, rulingBlock} {
			now.Store(ruling)
			name := fmt.Sprintf("%s, http2 %v, ruling %d", s.name, h2, ruling)
			res, err := c.Do(s.make(watchedValue))
			status, body := 0, ""
			if err == nil {
				b, _ := io.ReadAll(res.Body)
				res.Body.Close()
				status, body = res.StatusCode, string(b)
			}
			asked, got := p.take(), up.take()
			if got := leaked.Load(); got != nil {
				t.Fatalf("%s: left before the answer: %.200q", name, got)
			}
			if len(asked) == 0 {
				t.Errorf("%s: nobody was asked: %d", name, status)
				continue
			}
			text, _ := json.Marshal(asked)
			if h := asked[0]; h.Host != "api.example.com" || h.Secret != "deploy-key" || h.Place == "" || h.Digest == "" || holds(string(text), watchedValue) {
				t.Errorf("%s: asked %s", name, text)
			}
			switch ruling {
			case RulingPass:
				if status != 200 {
					t.Errorf("%s: %d %s", name, status, body)
				}
			case RulingMask:
				if holds(got, watchedValue) {
					t.Errorf("%s: upstream saw it: %.200q", name, got)
				}
			default:
				if status == 200 || holds(got, watchedValue) || status != 0 && !strings.Contains(body, "said somebody") {
					t.Errorf("%s: %d %s; upstream saw %.200q", name, status, body, got)
				}
			}
			if status != 200 {
				c.CloseIdleConnections()
			}
		}
	}
	o.unrecorded(watchedValue)
}

// TestHeldByValue: an approved value passes, and no other. A value has the same digest
// everywhere, and different values have different ones.
func TestHeldByValue(t *testing.T) {
	up := &recordingUpstream{}
	var approved atomic.Value // string
	p := &person{}
	p.answer = func(_ context.Context, h Held) Answer {
		if h.Digest == approved.Load() {
			return Answer{Ruling: RulingPass}
		}
		return Answer{}
	}
	second := "kX2-secondly-Vb7nR4m-known-Dq9"
	o := newTLSWorld(t, askRoutes, up, p.option, func(c *Config) {
		c.Secrets = map[string]secret.Value{"one": secret.NewString(watchedValue), "two": secret.NewString(second)}
	})
	c := o.client(true)
	send := func(body string) int {
		t.Helper()
		r := post(strings.NewReader(body))
		r.Header.Set("X-Note", "by "+body[:min(40, len(body))])
		res, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
		return res.StatusCode
	}
	if send(watchedValue) == 200 {
		t.Fatal("not approved")
	}
	approved.Store(p.take()[0].Digest)
	if s := send(watchedValue); s != 200 {
		t.Errorf("approved: %d", s)
	}
	if s := send(strings.Repeat("x", 50) + watchedValue + padding + second); s == 200 || holds(up.take(), second) {
		t.Errorf("another one beside it: %d", s)
	}
	token := func(c string) string { return "gh" + "p_" + strings.Repeat(c+"B3dE5gH7j", 4)[:36] }
	if send("token: "+token("a")+"\n") == 200 {
		t.Fatal("not approved")
	}
	asked := p.take()
	approved.Store(asked[len(asked)-1].Digest)
	if s := send("token: " + token("a") + "\n"); s != 200 {
		t.Errorf("a token that was approved: %d", s)
	}
	if s := send("token: " + token("z") + "\n"); s == 200 {
		t.Errorf("another token of the same form: %d", s)
	}
}

// TestHeldBlocks: without an Asker, or where the route says so, a secret is blocked and
// nobody is asked.
func TestHeldBlocks(t *testing.T) {
	p := &person{answer: saying(RulingPass)}
	for file, opt := range map[string]option{
		askRoutes: func(*Config) {},
		"routes:\n  - {host: api.example.com, dlp: {outbound_on_match: block}}\n": p.option,
	} {
		t.Run("", func(t *testing.T) {
			up := &recordingUpstream{}
			o := newTLSWorld(t, file, up, watching, opt)
			res, err := o.client(true).Do(post(strings.NewReader(watchedValue)))
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != 403 || up.take() != "" {
				t.Errorf("%q: %d", file, res.StatusCode)
			}
		})
	}
	if n := len(p.take()); n > 0 {
		t.Errorf("asked %d times", n)
	}
}

// TestHeldIsGivenUp: when the client is gone, or the routes no longer allow the
// request, the question is withdrawn, and a late answer lets nothing out.
func TestHeldIsGivenUp(t *testing.T) {
	ways := map[string]func(context.CancelFunc, *tlsWorld){
		"gone":   func(cancel context.CancelFunc, _ *tlsWorld) { cancel() },
		"reload": func(_ context.CancelFunc, o *tlsWorld) { o.reload(otherRoutes, nil) },
		"blocked": func(_ context.CancelFunc, o *tlsWorld) {
			o.reload(strings.Replace(askRoutes, "supervise", "block", 1), nil)
		},
	}
	for name, way := range ways {
		for _, h2 := range []bool{false, true} {
			for what, body := range map[string]func(context.Context) io.Reader{
				"head":  func(context.Context) io.Reader { return nil },
				"body":  func(context.Context) io.Reader { return strings.NewReader(watchedValue) },
				"large": func(context.Context) io.Reader { return strings.NewReader(padding + watchedValue + padding[:20<<10]) },
				"open": func(ctx context.Context) io.Reader {
					r, w := io.Pipe()
					go io.WriteString(w, padding+watchedValue+" and more") // the request does not end
					context.AfterFunc(ctx, func() { w.CloseWithError(ctx.Err()) })
					return r
				},
			} {
				t.Run(fmt.Sprintf("%s, %s, http2 %v", name, what, h2), func(t *testing.T) {
					up := &recordingUpstream{}
					asked, over := make(chan struct{}), make(chan struct{})
					p := &person{answer: func(ctx context.Context, _ Held) Answer {
						close(asked)
						<-ctx.Done()
						close(over)
						return Answer{Ruling: RulingPass}
					}}
					o := newTLSWorld(t, askRoutes, up, watching, p.option)
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					r := post(body(ctx)).WithContext(ctx)
					if what == "head" {
						r.Header.Set("X-Note", watchedValue)
					}
					done := make(chan error, 1)
					go func() {
						res, err := o.client(h2).Do(r)
						if err == nil {
							if res.StatusCode == 200 {
								err = fmt.Errorf("answered %s", res.Status)
							}
							res.Body.Close()
						}
						done <- err
					}()
					<-asked
					way(cancel, o)
					<-over
					if err := <-done; err != nil && strings.HasPrefix(err.Error(), "answered") {
						t.Error(err)
					}
					o.stopClient()
					o.gw.Close()
					if got := up.take(); holds(got, watchedValue) {
						t.Errorf("it left: %.200q", got)
					}
				})
			}
		}
	}
}

// TestHeldIsBounded: no more than maxAsking requests wait at once.
func TestHeldIsBounded(t *testing.T) {
	asked, release := make(chan struct{}, maxAsking), make(chan struct{})
	var all atomic.Int64
	p := &person{answer: func(context.Context, Held) Answer {
		if all.Add(1) <= maxAsking {
			asked <- struct{}{}
			<-release
		}
		return Answer{Ruling: RulingPass}
	}}
	o := newTLSWorld(t, askRoutes, &recordingUpstream{}, watching, p.option)
	c := o.client(true)
	send := func() int {
		res, err := c.Do(post(strings.NewReader(watchedValue)))
		if err != nil {
			t.Error(err)
			return 0
		}
		res.Body.Close()
		return res.StatusCode
	}
	var wg sync.WaitGroup
	for range maxAsking {
		wg.Go(func() {
			if s := send(); s != 200 {
				t.Errorf("one that waited: %d", s)
			}
		})
		<-asked
	}
	if s := send(); s != 403 {
		t.Errorf("one more: %d", s)
	}
	close(release)
	wg.Wait()
}

// TestHeldMessage: a WebSocket message waits too, and goes on.
func TestHeldMessage(t *testing.T) {
	var now atomic.Value // Ruling
	p := &person{}
	p.answer = func(_ context.Context, h Held) Answer {
		return Answer{Ruling: now.Load().(Ruling), Message: "said somebody"}
	}
	o := newTLSWorld(t, askRoutes, wsServer(func(c net.Conn, in *bufio.Reader, r *http.Request) {
		fmt.Fprint(c, accept(r)+"\r\n")
		io.Copy(c, unmasked{in})
	}), watching, p.option)
	for _, ruling := range []Ruling{RulingPass, RulingMask, rulingBlock} {
		now.Store(ruling)
		c, res := o.webSocket(t, "/", "")
		if res.StatusCode != http.StatusSwitchingProtocols {
			t.Fatal(res.Status)
		}
		c.send(ws.NewTextFrame([]byte("with " + watchedValue)))
		switch ruling {
		case RulingPass:
			if _, got := c.message(); got != "with "+watchedValue {
				t.Errorf("approved: %q", got)
			}
		case RulingMask:
			if _, got := c.message(); got != "with "+strings.Repeat("*", len(watchedValue)) {
				t.Errorf("masked: %q", got)
			}
		default:
			if code, why := c.closedWith(); code != ws.StatusPolicyViolation || !strings.Contains(why, string(reasonSecret)) {
				t.Errorf("refused: %d %q", code, why)
			}
		}
		if n := len(p.take()); n == 0 {
			t.Errorf("ruling %d: nobody was asked", ruling)
		}
	}
}
