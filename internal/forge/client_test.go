package forge

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/testenv"
)

type (
	rw  = http.ResponseWriter
	req = http.Request
)

func answer(code int, body string) func(rw, *req) bool {
	return func(w rw, _ *req) bool {
		w.WriteHeader(code)
		io.WriteString(w, body)
		return true
	}
}

func hang(_ rw, r *req) bool {
	<-r.Context().Done()
	return true
}

// torn ends the connection in the middle of an answer.
func torn(w rw, _ *req) bool {
	w.Header().Set("Content-Length", "1000")
	w.WriteHeader(200)
	io.WriteString(w, `{"id": 1`)
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// cut ends the connection without an answer.
func cut(rw, *req) bool { panic(http.ErrAbortHandler) }

func huge(w rw, _ *req) bool {
	space := strings.Repeat(" ", 1<<20)
	for range maxAnswer>>20 + 1 {
		if _, err := io.WriteString(w, space); err != nil {
			break
		}
	}
	return true
}

// TestBrokenForge has each call answered wrongly. It fails within its bounds, says what
// failed and where, and leaves nothing running.
func TestBrokenForge(t *testing.T) {
	var stray []string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ rw, r *req) { stray = append(stray, r.Header.Get("Authorization")) }))
	defer elsewhere.Close()
	spoils := map[string]struct {
		do    func(rw, *req) bool
		says  string
		fine  bool // an empty answer is one to some calls
		quick bool
	}{
		"500":       {do: answer(500, `{"message":"the disk is full"}`), says: "500 Internal Server Error: the disk is full"},
		"403":       {do: answer(403, `{"message":"no"}`), says: "403 Forbidden (the token or its user may not do this): no"},
		"an echo":   {do: answer(400, `{"message":"bad token `+fakeToken+`"}`), says: "400 Bad Request"},
		"an escape": {do: answer(400, `{"message":"\u001b[2Jx"}`), says: `\x1b[2Jx`},
		"hang":      {do: hang, says: "did not answer within", quick: true},
		"elsewhere": {do: func(w rw, r *req) bool {
			http.Redirect(w, r, elsewhere.URL+"/api/x", http.StatusTemporaryRedirect)
			return true
		}, says: "redirects to " + elsewhere.URL + ", where the token is not sent"},
		"renamed": {do: func(w rw, r *req) bool {
			http.Redirect(w, r, "/api/repos/org/new", http.StatusMovedPermanently)
			return true
		}, says: "/api/repos/org/new, where"},
		"nowhere":     {do: answer(307, ""), says: "redirects, where"},
		"huge":        {do: huge, says: "more than "},
		"HTML":        {do: answer(200, "<html>"), says: "not what its API documents"},
		"a text":      {do: answer(200, `"x"`), says: "not what its API documents"},
		"wrong types": {do: answer(200, `{"number":{},"id":"x","iid":[],"login":5,"username":5,"permission":[],"protected":"x"}`), says: "not what its API documents"},
		"null":        {do: answer(200, "null"), fine: true},
		"[null]":      {do: answer(200, "[null]"), fine: true},
		"torn":        {do: torn, says: "EOF"},
		"cut":         {do: cut, says: "EOF"},
		"no content":  {do: answer(200, ""), says: "not what its API documents"},
	}
	each(t, func(t *testing.T, f *fake, c *Client) {
		c.pageSize = smallPage
		for name, spoil := range spoils {
			for call, v := range calls {
				c.timeout = 20 * time.Second
				if spoil.quick {
					c.timeout = 30 * time.Millisecond
				}
				switch {
				case (call == "Lacks" || call == "RemoveDeployKey") && (name == "HTML" && call != "Lacks" || name == "a text" || name == "wrong types" || name == "no content"), // it does not look
					name == "huge" && call != "Issue" && call != "Comments" && call != "PostOnce": // which takes its time
					continue
				}
				c.login = me
				f.spoil(spoil.do, nil)
				before := len(f.seen(""))
				err := v.do(t.Context(), c, repo)
				if n := len(f.seen("")) - before; n > 6 && (name != "huge" || n > maxLarge+1) { // smaller pages are tried
					t.Errorf("%s, %s: %d requests", name, call, n)
				}
				switch {
				case err == nil && (spoil.fine || (call == "Member" || call == "Access") && name != "hang"):
				case err == nil && call == "Member" || err == nil:
					t.Errorf("%s, %s: no error", name, call)
				case spoil.says != "" && !strings.Contains(err.Error(), spoil.says) && !(name == "no content" || name == "HTML" || name == "a text" || name == "wrong types"):
					t.Errorf("%s, %s: %v", name, call, err)
				case !strings.Contains(err.Error(), c.provider+": ") || strings.Contains(err.Error(), fakeToken) || strings.Contains(err.Error(), "\x1b"):
					t.Errorf("%s, %s: %v", name, call, err)
				}
			}
		}
	})
	t.Cleanup(func() {
		if len(stray) > 0 {
			t.Errorf("the token was sent elsewhere: %q", stray)
		}
	})
}

// TestNullEverywhere sets all fields to null that are not the thing's number.
func TestNullEverywhere(t *testing.T) {
	var nulled func(v any) any
	nulled = func(v any) any {
		switch v := v.(type) {
		case []any:
			for i := range v {
				v[i] = nulled(v[i])
			}
		case map[string]any:
			for k := range v {
				if k != "number" && k != "iid" && k != "id" && k != "login" && k != "username" && k != "permission" {
					v[k] = nil
				}
			}
		}
		return v
	}
	each(t, func(t *testing.T, f *fake, c *Client) {
		f.branch = map[string]any{"protected": true}
		f.change = func(_ *req, v any) any { return nulled(v) }
		for name, call := range calls {
			whole := name == "Repository" || name == "Commit" && f.provider != "gitlab" // which tell one thing from another
			if err := call.do(t.Context(), c, repo); (err != nil) != whole && !call.write {
				t.Errorf("%s: %v", name, err)
			}
		}
		i := must[*Issue](t)(c.Issue(t.Context(), repo, issue7))
		same(t, "issue", *i, Issue{Number: 7})
		p := must[*PullRequest](t)(c.PullRequest(t.Context(), repo, 9))
		same(t, "pull request", *p, PullRequest{Number: 9, Fork: true})
		for _, m := range commentsOf(t, c, issue7, time.Time{}) {
			same(t, "comment", m, Comment{ID: m.ID})
		}
		f.change = func(*req, any) any { return nil }
		same(t, "no list", len(must[[]Issue](t)(c.Changed(t.Context(), repo, fakeTime))), 0)
	})
}

// TestAnotherNumber has the forge answer with another issue than was asked for.
func TestAnotherNumber(t *testing.T) {
	each(t, func(t *testing.T, f *fake, c *Client) {
		f.change = func(_ *req, v any) any {
			m := v.(map[string]any)
			m["number"], m["iid"] = 99, 99
			return m
		}
		_, err := c.Issue(t.Context(), repo, issue7)
		_, err2 := c.PullRequest(t.Context(), repo, 8)
		err3 := c.UpdateDescription(t.Context(), repo, issue7, "x", "")
		for _, err := range []error{err, err2, err3} {
			if err == nil || !strings.Contains(err.Error(), "number 99") {
				t.Errorf("%v", err)
			}
		}
		if len(f.seen("PATCH"))+len(f.seen("PUT")) > 0 {
			t.Error("it was written")
		}
	})
}

// TestPages has lists without an end, with one page again and again, and that grow.
func TestPages(t *testing.T) {
	each(t, func(t *testing.T, f *fake, c *Client) {
		ctx := t.Context()
		key := map[bool]string{true: "iid", false: "number"}[f.provider == "gitlab"]
		endless := func(w rw, r *req) bool {
			w.Header().Set("Link", `<x>; rel="next"`)
			page, _ := strconv.Atoi(r.URL.Query().Get("page"))
			json.NewEncoder(w).Encode([]any{map[string]any{key: page}})
			return true
		}
		f.spoil(endless, nil)
		if _, err := c.Changed(ctx, repo, fakeTime); err == nil || !strings.Contains(err.Error(), "more than 100 pages") {
			t.Errorf("%v", err)
		}
		again := func(w rw, r *req) bool { return answer(200, `[{"`+key+`":1},{"`+key+`":2}]`)(w, r) }
		f.spoil(again, nil)
		before := len(f.seen(""))
		got := must[[]Issue](t)(c.Changed(ctx, repo, fakeTime))
		lists := map[bool]int{true: 2, false: 1}[f.provider == "gitlab"]
		if len(got) != 2*lists || len(f.seen(""))-before != 2*lists {
			t.Errorf("%d entries after %d requests", len(got), len(f.seen(""))-before)
		}
		f.spoil(nil, nil)
		f.size = 1
		// An issue is opened between two pages; the list begins with the newest.
		f.after = func(rw, *req) bool {
			f.after = nil
			f.issues = append([]*fakeThread{{number: 70, state: "open", updated: fakeTime.Add(time.Hour)}}, f.issues...)
			return false
		}
		n := map[int]int{}
		for _, i := range must[[]Issue](t)(c.Changed(ctx, repo, fakeTime)) {
			n[i.Number]++
		}
		if n[7] != 1 || n[8] != 1 || n[9] != 1 {
			t.Errorf("%v", n)
		}
	})
}

// TestRateLimits checks that a limit is waited for as long as the forge says and the caller
// has time, for writes too, since nothing was done.
func TestRateLimits(t *testing.T) {
	soon := strconv.FormatInt(time.Now().Add(40*time.Second).Unix(), 10)
	for _, v := range []struct {
		name     string
		code     int
		header   map[string]string
		min, max time.Duration
	}{
		{"Retry-After", 429, map[string]string{"Retry-After": "7"}, 7 * time.Second, 7 * time.Second},
		{"secondary limit", 403, map[string]string{"Retry-After": "60"}, time.Minute, time.Minute},
		{"primary limit", 403, map[string]string{"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": soon}, 30 * time.Second, 42 * time.Second},
		{"GitLab's", 429, map[string]string{"RateLimit-Reset": soon}, 30 * time.Second, 42 * time.Second},
		{"without a time", 429, nil, time.Minute, time.Minute},
		{"of the past", 429, map[string]string{"X-RateLimit-Reset": "5"}, time.Second, time.Second},
		{"nonsense", 429, map[string]string{"Retry-After": "-4", "X-RateLimit-Reset": "x"}, time.Minute, time.Minute},
	} {
		each(t, func(t *testing.T, f *fake, c *Client) {
			var waited []time.Duration
			c.pause = func(ctx context.Context, d time.Duration) error {
				waited = append(waited, d)
				return ctx.Err()
			}
			limit := func(n int) {
				waited = nil
				f.spoil(func(w rw, r *req) bool {
					if n--; n < 0 || r.Method == "GET" {
						return false
					}
					for k, v := range v.header {
						w.Header().Set(k, v)
					}
					return answer(v.code, `{"message":"slow down"}`)(w, r)
				}, nil)
			}
			c.login = me
			limit(4) // GETs count, too
			if err := calls["PostOnce"].do(t.Context(), c, repo); err != nil || len(f.issues[0].comments) != 4 {
				t.Errorf("%s: %v", v.name, err)
			}
			for _, d := range waited {
				if d < v.min || d > v.max {
					t.Errorf("%s: waited %v", v.name, d)
				}
			}
			if len(waited) == 0 {
				t.Errorf("%s: did not wait", v.name)
			}
			limit(1000)
			if _, err := c.PostOnce(t.Context(), repo, issue7, "key-2", "x"); err == nil || !strings.Contains(err.Error(), "slow down") || len(waited) != maxWaits {
				t.Errorf("%s: for ever: %v, waited %v", v.name, err, waited)
			}
			limit(1000)
			short, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
			defer cancel()
			if _, err := c.PostOnce(short, repo, issue7, "key-3", "x"); err == nil || !strings.Contains(err.Error(), "asks to wait for") || len(waited) > 0 {
				t.Errorf("%s: no time: %v, waited %v", v.name, err, waited)
			}
		})
	}
	_, c := newFake(t, "github")
	c.pause = func(context.Context, time.Duration) error { t.Error("waited"); return nil }
	h := http.Header{"Retry-After": {"2000000000"}}
	if d, told := later(429, h); !told || d < maxWait {
		t.Errorf("%v %v", d, told)
	}
}

// TestRetries checks which requests are sent again.
func TestRetries(t *testing.T) {
	each(t, func(t *testing.T, f *fake, c *Client) {
		var slept []time.Duration
		c.pause = func(ctx context.Context, d time.Duration) error {
			slept = append(slept, d)
			return ctx.Err()
		}
		n := 0
		twice := func(do func(rw, *req) bool) func(rw, *req) bool {
			n = 2
			return func(w rw, r *req) bool { n--; return n >= 0 && do(w, r) }
		}
		for name, do := range map[string]func(rw, *req) bool{"500": answer(500, ""), "503": answer(503, ""), "torn": torn, "cut": cut} {
			slept = nil
			f.spoil(twice(do), nil)
			if _, err := c.Issue(t.Context(), repo, issue7); err != nil || len(slept) != 2 && name != "cut" || len(slept) == 2 && slept[1] != 2*slept[0] { // net/http tries a connection that is cut again, too
				t.Errorf("%s: %v, slept %v", name, err, slept)
			}
		}
		f.spoil(twice(answer(404, "")), nil)
		if _, err := c.Issue(t.Context(), repo, issue7); err == nil || n != 1 {
			t.Errorf("404 was tried again: %v", err)
		}
		f.spoil(twice(func(w rw, r *req) bool { w.Header().Set("Retry-After", "9"); return answer(503, "")(w, r) }), nil)
		slept = nil
		if _, err := c.Issue(t.Context(), repo, issue7); err != nil || slept[0] != 9*time.Second {
			t.Errorf("503 with a time: %v, slept %v", err, slept)
		}
		ctx, cancel := context.WithCancel(t.Context())
		f.spoil(func(w rw, r *req) bool { cancel(); return answer(500, "")(w, r) }, nil)
		before := len(f.seen(""))
		if _, err := c.Issue(ctx, repo, issue7); err == nil || len(f.seen(""))-before != 1 {
			t.Errorf("a caller who left: %v", err)
		}
	})
}

// TestUnreachable has a forge where nobody listens: nothing was sent, so a write is tried
// again, and does not count as one that may have arrived.
func TestUnreachable(t *testing.T) {
	srv := httptest.NewServer(nil)
	addr := srv.URL
	srv.Close()
	c := must[*Client](t)(Open(Options{Provider: "gitea", API: addr, Token: secret.NewString(fakeToken), Login: me}))
	defer c.Close()
	n := 0
	c.pause = func(context.Context, time.Duration) error { n++; return nil }
	if _, err := c.do(t.Context(), request{method: "POST", path: "/x"}); err == nil || n != 2 || !declined(err) {
		t.Errorf("%v after %d pauses", err, n)
	}
	n = 0
	for name, o := range map[string]Options{
		"a public address": {API: "http://forge.example/api", Resolver: fixed("203.0.113.9")},
		"no address":       {API: "http://forge.example/api", Resolver: fixed("x")},
	} {
		o.Provider, o.Token = "gitea", secret.NewString(fakeToken)
		c := must[*Client](t)(Open(o))
		defer c.Close()
		c.pause = func(context.Context, time.Duration) error { n++; return nil }
		_, err := c.Issue(t.Context(), repo, issue7)
		if err == nil || !strings.Contains(err.Error(), map[string]string{"a public address": "plain HTTP would show the token", "no address": "forge.example has no address"}[name]) {
			t.Errorf("%s: %v", name, err)
		}
	}
	secure := httptest.NewTLSServer(nil)
	defer secure.Close()
	c2 := must[*Client](t)(Open(Options{Provider: "gitea", API: secure.URL, Token: secret.NewString(fakeToken)}))
	defer c2.Close()
	c2.pause = func(context.Context, time.Duration) error {
		t.Error("a certificate that is no good was tried again")
		return nil
	}
	if _, err := c2.Issue(t.Context(), repo, issue7); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("%v", err)
	}
}

type fixed string

func (f fixed) LookupHost(context.Context, string) ([]string, error) { return []string{string(f)}, nil }

func TestOpenRefuses(t *testing.T) {
	token := secret.NewString(fakeToken)
	for _, v := range []struct {
		o    Options
		says string
	}{
		{Options{Provider: "bitbucket", API: "https://x/api", Token: token}, "there are gitea, github, gitlab"},
		{Options{Provider: "gitea", API: "ftp://x", Token: token}, "api_url"},
		{Options{Provider: "gitea", API: "https://u:p@x/api", Token: token}, "api_url"},
		{Options{Provider: "gitea", API: "https://x/api"}, "needs a token"},
		{Options{Provider: "gitea", API: "https://x/api", App: &App{}}, "no apps"},
		{Options{Provider: "github", API: "https://x/api", App: &App{Key: secret.NewString("x")}}, "not PEM"},
		{Options{Provider: "github", API: "https://x/api", App: &App{Key: secret.NewString("-----BEGIN X-----\nAAAA\n-----END X-----\n")}}, "not an RSA key"},
	} {
		if _, err := Open(v.o); err == nil || !strings.Contains(err.Error(), v.says) {
			t.Errorf("%+v: %v", v.o.Provider, err)
		}
	}
}

// TestNothingLeft checks that calls, also those that fail, leave nothing running after Close.
func TestNothingLeft(t *testing.T) {
	for _, p := range Providers() {
		f, c := newFake(t, p)
		c.timeout = 100 * time.Millisecond
		for _, do := range []func(rw, *req) bool{nil, hang, torn, cut, answer(500, "")} {
			f.spoil(do, nil)
			for _, call := range calls {
				_ = call.do(t.Context(), c, repo)
			}
		}
		c.Close()
		running := func() string {
			b := make([]byte, 1<<20)
			var out []string
			for _, g := range strings.Split(string(b[:runtime.Stack(b, true)]), "\n\n") {
				if strings.Contains(g, "persistConn") || strings.Contains(g, "forge.(*Client)") {
					out = append(out, g)
				}
			}
			return strings.Join(out, "\n\n")
		}
		if !testenv.Poll(10*time.Second, func() bool { return running() == "" }) {
			t.Errorf("%s: left running:\n%s", p, running())
		}
	}
}

func TestErrorIs(t *testing.T) {
	_, c := newFake(t, "gitea")
	_, err := c.Issue(t.Context(), repo, Thread{404, false})
	var e *Error
	if !errors.As(err, &e) || e.Code != 404 || e.Provider != "gitea" || e.Method != "GET" || e.Path != "/repos/org/app/issues/404" || e.Said != "Not Found" {
		t.Errorf("%#v", err)
	}
	if want := "gitea: GET /repos/org/app/issues/404: 404 Not Found (there is no such thing, or the token may not see it): Not Found"; err.Error() != want {
		t.Errorf("%v", err)
	}
}
