package tools

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

var update = flag.Bool("update", false, "rewrite testdata/plain.txt")

// seenBy returns what a server tells of itself and its tools.
func seenBy(t *testing.T, c *http.Client) string {
	t.Helper()
	var out strings.Builder
	for _, q := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`,
	} {
		r, err := http.NewRequest("POST", "http://"+testName+Path, strings.NewReader(q))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		res, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		out.Write(b)
	}
	return out.String()
}

// TestWithoutForge checks that a bottle without a forge is told byte for byte what it was
// told before there were forges.
func TestWithoutForge(t *testing.T) {
	got := seenBy(t, serve(t, &fake{}, 0))
	const golden = "testdata/plain.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("a bottle without a forge is told\n%s\nnot\n%s", got, want)
	}
}

// fakeForge is a Forge that records its calls beside those of a fake.
type fakeForge struct{ *fake }

func (f fakeForge) say(format string, a ...any) (string, error) {
	f.note(fmt.Sprintf(format, a...))
	return "It is done.", nil
}

func (f fakeForge) ReadIssue(_ context.Context, n int) (string, error) {
	return f.say("read issue %d", n)
}
func (f fakeForge) ReadPullRequest(_ context.Context, n int) (string, error) {
	return f.say("read pull request %d", n)
}
func (f fakeForge) ReadComments(_ context.Context, n int, kind string) (string, error) {
	return f.say("read comments %d %s", n, kind)
}
func (f fakeForge) PostComment(_ context.Context, n int, kind, body string) (string, error) {
	if n == 99 {
		return "", errors.New("write to #99 denied")
	}
	return f.say("post %d %s %s", n, kind, body)
}
func (f fakeForge) UpdateDescription(_ context.Context, n int, kind, body string) (string, error) {
	return f.say("update %d %s %s", n, kind, body)
}
func (f fakeForge) SignalDone(_ context.Context, status, summary string) (string, error) {
	return f.say("signal %s %s", status, summary)
}

func (f fakeForge) Guard(func(context.Context, string) error) {}

// TestForgeTools checks the tools of a forge, and that they pass on nothing else.
func TestForgeTools(t *testing.T) {
	f := &fake{}
	srv := httptest.NewServer(New(f, Options{Name: testName, Version: "v1", Forge: fakeForge{f}}))
	defer srv.Close()
	c := &http.Client{Transport: through{srv.URL}}
	if said := seenBy(t, c); !strings.Contains(said, "assigned issue") {
		t.Errorf("nothing is said of the forge: %s", said)
	}
	s := connect(t, c)
	list, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, x := range list.Tools {
		names = append(names, x.Name)
	}
	if got := strings.Join(names, " "); got != "egress-allow egress-block list-egress-routes post_comment read_comments read_issue read_pr signal-done signal_done update_description" {
		t.Errorf("tools %s", got)
	}
	for _, x := range []struct {
		tool string
		args object
		told string // what is passed on; empty: nothing
		bad  bool
	}{
		{"read_issue", object{"number": 7}, "read issue 7", false},
		{"read_pr", object{"number": 8}, "read pull request 8", false},
		{"read_comments", object{"number": 7}, "read comments 7 ", false},
		{"read_comments", object{"number": 7, "kind": "pull_request"}, "read comments 7 pull_request", false},
		{"post_comment", object{"number": 7, "body": "hello"}, "post 7  hello", false},
		{"post_comment", object{"number": 7, "body": strings.Repeat("\n", maxPosted/2-1) + "x"}, "post 7  " + strings.Repeat("\n", maxPosted/2-1) + "x", false},
		{"update_description", object{"number": 8, "kind": "pull_request", "body": "new"}, "update 8 pull_request new", false},
		{"signal_done", object{"status": "success", "summary": "all"}, "done done all\nsignal done all", false},
		{"signal_done", object{"status": "blocked", "summary": "no"}, "done blocked no\nsignal blocked no", false},
		{"signal-done", object{"status": "done", "summary": "all"}, "done done all\nsignal done all", false},
		{"signal_done", object{"status": "done", "summary": "full"}, "done done full", true}, // the host can't take it down
		{"signal_done", object{"status": "merged", "summary": "all"}, "", true},
		{"signal_done", object{"status": "success", "summary": ""}, "", true},
		{"signal_done", object{"status": "success", "summary": strings.Repeat("x", maxSummary+1)}, "", true},
		{"read_issue", object{"number": 0}, "", true},
		{"read_issue", object{"number": -7}, "", true},
		{"read_issue", object{}, "", true},
		{"read_issue", object{"number": 7.5}, "", true},
		{"read_issue", object{"number": "7/../8"}, "", true},
		{"read_issue", object{"number": 7, "kind": "issue"}, "", true},
		{"read_issue", object{"number": 7, "repo": "org/other"}, "", true},
		{"read_comments", object{"number": 7, "kind": "commit"}, "", true},
		{"post_comment", object{"number": 7}, "", true},
		{"post_comment", object{"number": 7, "body": " \n"}, "", true},
		{"post_comment", object{"number": 7, "body": strings.Repeat("x", maxPosted+1)}, "", true},
		{"post_comment", object{"number": 7, "body": "x", "key": "mine"}, "", true},
		{"post_comment", object{"number": 99, "body": "x"}, "", true},
		{"update_description", object{"number": 8, "body": "x", "block": "Closes #99"}, "", true},
		{"update_description", object{"number": 8, "body": "x", "kind": "repo"}, "", true},
	} {
		f.mu.Lock()
		f.told = nil
		f.mu.Unlock()
		r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: x.tool, Arguments: x.args})
		if err != nil {
			t.Errorf("%s %.100v: %v", x.tool, x.args, err)
			continue
		}
		if r.IsError != x.bad || f.all() != x.told {
			t.Errorf("%s %.100v: %v %q; passed on %.200q", x.tool, x.args, r.IsError, words(r), f.all())
		}
	}
	for _, name := range []string{"open_pull_request", "merge", "set_status", "add_deploy_key"} {
		if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: object{"number": 7}}); err == nil {
			t.Errorf("a tool %s", name)
		}
	}
}
