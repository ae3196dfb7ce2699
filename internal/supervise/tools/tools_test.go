package tools

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const testName = "supervise.carboy.internal"

// fake is a Host that records its calls.
type fake struct {
	mu    sync.Mutex
	told  []string
	block func(ctx context.Context)
}

func (f *fake) note(s string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = append(f.told, s)
}

func (f *fake) all() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.told, "\n")
}

func (f *fake) Routes(context.Context) (string, error) { return "routes: []\n", nil }

func (f *fake) Allow(ctx context.Context, r Route) (Decision, error) {
	f.note("allow " + r.Host + " " + strings.Join(r.Methods, ",") + " " + strings.Join(r.Paths, ",") + " " + r.Reason + r.YAML)
	if f.block != nil {
		f.block(ctx)
	}
	if ctx.Err() != nil {
		return Decision{}, ctx.Err()
	}
	return Decision{"01", "approved", "Approved: go on."}, nil
}

func (f *fake) Block(_ context.Context, r Route) (Decision, error) {
	f.note("block " + r.Host + " " + r.Reason + r.YAML)
	return Decision{"02", "rejected", "Rejected."}, nil
}

func (f *fake) Done(_ context.Context, s Status, summary string) error {
	f.note("done " + string(s) + " " + summary)
	if summary == "full" {
		return errors.New("it can't be taken down")
	}
	return nil
}

// through sends requests to a server under a name that does not resolve.
type through struct{ url string }

func (t through) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Host = testName
	r.URL.Host = strings.TrimPrefix(t.url, "http://")
	return http.DefaultTransport.RoundTrip(r)
}

func serve(t *testing.T, f *fake, alive time.Duration) *http.Client {
	t.Helper()
	srv := httptest.NewServer(New(f, Options{Name: testName, Version: "v1", Alive: alive}))
	t.Cleanup(srv.Close)
	return &http.Client{Transport: through{srv.URL}}
}

func connect(t *testing.T, c *http.Client) *mcp.ClientSession {
	t.Helper()
	s, err := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, nil).Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: "http://" + testName + Path, HTTPClient: c, DisableStandaloneSSE: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

type object = map[string]any

func words(r *mcp.CallToolResult) string {
	var b strings.Builder
	for _, c := range r.Content {
		if x, ok := c.(*mcp.TextContent); ok {
			b.WriteString(x.Text)
		}
	}
	return b.String()
}

// TestTools checks that a client finds the four tools and can use each.
func TestTools(t *testing.T) {
	f := &fake{}
	s := connect(t, serve(t, f, 0))
	list, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, x := range list.Tools {
		names = append(names, x.Name)
	}
	if got := strings.Join(names, " "); got != "egress-allow egress-block list-egress-routes signal-done" {
		t.Errorf("tools %s", got)
	}
	for _, x := range []struct {
		tool string
		args any
		want string
		bad  bool
	}{
		{"list-egress-routes", nil, "routes: []", false},
		{"egress-allow", object{"host": "a.example.com", "methods": []string{"GET"}, "paths": []string{"/v1/"}, "reason": "needed"}, "Approved", false},
		{"egress-block", object{"host": "a.example.com", "reason": "done with it"}, "Rejected", false},
		{"signal-done", object{"status": "done", "summary": "all of it"}, "taken down", false},
		{"signal-done", object{"status": "done", "summary": "full"}, "can't be taken down", true},
		{"signal-done", object{"status": "approved", "summary": "x"}, "status", true},
		{"egress-allow", object{"host": "a.example.com"}, "reason", true},
		{"egress-allow", object{"host": "", "reason": "x"}, "host", true},
		{"egress-allow", object{"host": strings.Repeat("a", 300), "reason": "x"}, "host", true},
		{"egress-allow", object{"host": "a.example.com", "reason": strings.Repeat("x", maxReason+1)}, "reason", true},
		{"egress-allow", object{"host": "a.example.com", "reason": "x", "approve": true}, "approve", true},
		{"egress-allow", object{"host": "a.example.com", "reason": "x", "paths": make([]string, 17)}, "paths", true},
		{"list-egress-routes", object{"bottle": "another"}, "bottle", true},
		// The arguments of bot-bottle's tools.
		{"egress-allow", object{"routes_yaml": "routes: [{host: a.example.com}]", "justification": "needed"}, "Approved", false},
		{"egress-allow", object{"host": "a.example.com", "justification": "needed"}, "Approved", false},
		{"egress-block", object{"routes_yaml": "routes: [{host: a.example.com}]", "justification": "done"}, "Rejected", false},
		{"egress-allow", object{"routes_yaml": "routes: [{host: a.example.com}]"}, "reason", true},
		{"egress-allow", object{"justification": "x"}, "host", true},
		{"egress-allow", object{"routes_yaml": "routes: []", "host": "a.example.com", "reason": "x"}, "routes_yaml", true},
		{"egress-allow", object{"routes_yaml": "routes: []", "methods": []string{"GET"}, "reason": "x"}, "routes_yaml", true},
		{"egress-allow", object{"host": "a.example.com", "reason": "x", "justification": "y"}, "justification", true},
		{"egress-allow", object{"routes_yaml": strings.Repeat("#", maxYAML+1), "reason": "x"}, "routes_yaml", true},
		{"egress-block", object{"host": "a.example.com", "methods": []string{"GET"}, "reason": "x"}, "methods", true},
	} {
		before := f.all()
		r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: x.tool, Arguments: x.args})
		if err != nil {
			t.Errorf("%s %v: %v", x.tool, x.args, err)
			continue
		}
		if r.IsError != x.bad || !strings.Contains(words(r), x.want) {
			t.Errorf("%s %v: %v %q", x.tool, x.args, r.IsError, words(r))
		}
		if x.bad && x.want != "can't be taken down" && f.all() != before {
			t.Errorf("%s %v was passed on", x.tool, x.args)
		}
	}
	if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "egress-approve", Arguments: object{"id": "01"}}); err == nil {
		t.Error("a tool that answers")
	}
}

// TestToolsWait checks that a waiting tool writes to its stream, and stops waiting when the
// request ends.
func TestToolsWait(t *testing.T) {
	over := make(chan struct{})
	f := &fake{block: func(ctx context.Context) { <-ctx.Done(); close(over) }}
	c := serve(t, f, 5*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	q, _ := http.NewRequestWithContext(ctx, "POST", "http://"+testName+Path, strings.NewReader(call("egress-allow", `{"host":"a.example.com","reason":"x"}`)))
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("Accept", "application/json, text/event-stream")
	res, err := c.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	buf := make([]byte, 100)
	n, err := io.ReadAtLeast(res.Body, buf, 20)
	if err != nil || !bytes.HasPrefix(buf[:n], []byte(": ")) {
		t.Errorf("%q %v", buf[:n], err)
	}
	cancel()
	<-over
}

func call(tool, args string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + args + `}}`
}

// TestRequests checks that the server refuses requests that an agent does not make, and
// passes none of them on.
func TestRequests(t *testing.T) {
	f := &fake{}
	c := serve(t, f, 0)
	good := call("egress-block", `{"host":"a.example.com","reason":"x"}`)
	for name, x := range map[string]struct {
		method, path, body string
		header             http.Header
		want               int
	}{
		"the neighbour":  {"POST", Path, good, nil, 200},
		"its own origin": {"POST", Path, good, http.Header{"Origin": {"http://" + testName}}, 200},
		"another origin": {"POST", Path, good, http.Header{"Origin": {"https://evil.example.com"}}, 403},
		"no origin":      {"POST", Path, good, http.Header{"Origin": {"null"}}, 403},
		"two origins":    {"POST", Path, good, http.Header{"Origin": {"http://" + testName, "null"}}, 403},
		"a form":         {"POST", Path, good, http.Header{"Content-Type": {"text/plain"}}, 415},
		"a listener":     {"GET", Path, "", nil, 405},
		"a session":      {"DELETE", Path, "", http.Header{"Mcp-Session-Id": {"1"}}, 405},
		"another path":   {"POST", "/approve", good, nil, 404},
		"the queue":      {"GET", "/../waiting", "", nil, 404},
		"too large":      {"POST", Path, good + strings.Repeat(" ", maxBody), nil, 413},
		"not JSON":       {"POST", Path, strings.Repeat("[", 5000), nil, 400},
	} {
		f.mu.Lock()
		f.told = nil
		f.mu.Unlock()
		q, _ := http.NewRequest(x.method, "http://"+testName+x.path, strings.NewReader(x.body))
		q.Header.Set("Content-Type", "application/json")
		q.Header.Set("Accept", "application/json, text/event-stream")
		for k, v := range x.header {
			q.Header[k] = v
		}
		res, err := c.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != x.want || (f.all() != "") != (x.want == 200) {
			t.Errorf("%s: %d %.200q; passed on %q", name, res.StatusCode, b, f.all())
		}
	}
	other := httptest.NewServer(New(f, Options{Name: testName}))
	defer other.Close()
	res, err := http.Post(other.URL+Path, "application/json", strings.NewReader(good))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("by another name: %d", res.StatusCode)
	}
}

// TestFloods checks that calls beyond the bound are refused, and that the others go on.
func TestFloods(t *testing.T) {
	release, entered := make(chan struct{}), make(chan struct{}, maxCalls)
	f := &fake{block: func(ctx context.Context) { entered <- struct{}{}; <-release }}
	h := New(f, Options{Name: testName}).(*server)
	h.limit.SetBurst(10 * maxCalls)
	h.limit.SetLimit(1e6)
	post := func() int {
		q := httptest.NewRequest("POST", "http://"+testName+Path, strings.NewReader(call("egress-allow", `{"host":"a.example.com","reason":"x"}`)))
		q.Header.Set("Content-Type", "application/json")
		q.Header.Set("Accept", "application/json, text/event-stream")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, q)
		return w.Code
	}
	var wg sync.WaitGroup
	for range maxCalls {
		wg.Go(func() {
			if s := post(); s != 200 {
				t.Errorf("one that waited: %d", s)
			}
		})
	}
	for range maxCalls {
		<-entered
	}
	if s := post(); s != http.StatusTooManyRequests {
		t.Errorf("one more: %d", s)
	}
	close(release)
	wg.Wait()
	h.limit.SetBurst(0)
	if s := post(); s != http.StatusTooManyRequests {
		t.Errorf("too soon: %d", s)
	}
}
