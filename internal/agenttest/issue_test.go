package agenttest

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/forge/giteatest"
	"github.com/carboy/carboy/internal/testenv"
)

// issueDone reports that the work is done, as an MCP client does.
const issueDone = `printf '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"signal_done","arguments":{"status":"success","summary":"Function add adds."}}}' | ` +
	`curl -sS -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' --data-binary @- http://supervise.carboy.internal/mcp && echo signalled`

// TestIssueNPMAgent leads an issue at a real Gitea to a pull request by a real agent. The
// forge sends no webhooks, so that it is polled, and git speaks HTTPS with a token.
func TestIssueNPMAgent(t *testing.T) {
	const name = "pi-coding-agent"
	a := agents[slices.IndexFunc(agents, func(a agent) bool { return a.name == name && a.api == "anthropic messages" })]
	a.with(t, name, func(t *testing.T, dir string) {
		testenv.Need(t, "node", "apt-get install nodejs")
		testenv.Need(t, "git", "apt-get install git")
		testenv.Need(t, "curl", "apt-get install curl")
		g := giteatest.New(t)
		h := newHost(t)
		n := issueAtGitea(t, g, h)
		key := newKey(t)
		h.vars["MY_KEY"] = key
		h.install(dir)
		server := New(t, key, Script{
			Steps: []Step{
				{Run: "sed -i 's/a - b/a + b/' calc.js && node test.js", Expect: "all tests pass"},
				{Run: issueDone, Expect: "signalled"},
			},
			Final: final,
		})
		front := https(t, g.URL)
		server.Roots.AddCert(front.Certificate())
		h.manifests(t, map[string]string{
			"bottles/js.md": fmt.Sprintf("---\nagent_provider: {template: pi}\negress:\n  routes: [{host: %s, upstream: %q, token_env: MY_KEY, auth_scheme: x-api-key}]\ngit-gate:\n  user: {name: Coder, email: coder@x.example}\n  repos: {app: {url: \"%s/acme/app.git\", token_env: CARBOY_GIT}}\n---\n", a.host, server.Addr, front.URL),
			"agents/fix.md": "---\nbottle: js\nmodel: anthropic/claude-sonnet-4-5\n---\n",
		})
		h.open(t, server)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var out testenv.Buffer
		ended := make(chan error, 1)
		go func() { // ends with ctx
			ended <- h.client.ServeIssues(ctx, carboy.ServeOptions{Log: slog.New(slog.NewTextHandler(&out, nil)), Output: &out, OnEvent: func(issue string, e carboy.Event) { fmt.Fprintln(&out, "event:", issue, e.Kind, e.Text) }})
		}()
		var pulls []struct {
			Number      int
			Title, Body string
			Head        struct{ Ref, SHA string }
		}
		appears := testenv.Poll(patience, func() bool {
			g.Must("GET", "/repos/acme/app/pulls?state=all", nil, &pulls, http.StatusOK)
			return len(pulls) > 0 || len(ended) > 0
		})
		cancel()
		if err := <-ended; err != nil || !appears || len(pulls) != 1 {
			t.Fatalf("serve ended with %v, and the pull requests are %+v; it said:\n%.6000s", err, pulls, out.String())
		}
		p := pulls[0]
		for _, want := range []string{fmt.Sprintf("Closes #%d", n), "> Function add adds.", "`calc.js`", "Gate verdict `"} {
			if !strings.Contains(p.Body, want) {
				t.Errorf("the description has no %q:\n%s", want, p.Body)
			}
		}
		var combined struct {
			Statuses []struct{ Context, Status string }
		}
		g.Must("GET", "/repos/acme/app/commits/"+p.Head.SHA+"/status", nil, &combined, http.StatusOK)
		if len(combined.Statuses) != 1 || combined.Statuses[0].Context != "carboy/gate" || combined.Statuses[0].Status != "success" || p.Head.Ref != fmt.Sprintf("carboy/%d-mend-add", n) {
			t.Errorf("%+v %+v", p, combined)
		}
		if !slices.ContainsFunc(server.Requests(), func(r Request) bool {
			return strings.Contains(string(r.Body), "It subtracts.") && strings.Contains(string(r.Body), "You work on issue #")
		}) {
			t.Error("the model was not told of the issue")
		}
		for _, p := range server.Problems() {
			t.Error(p)
		}
		if t.Failed() {
			t.Logf("it said:\n%.6000s", out.String())
		}
	})
}

// https speaks TLS before a server.
func https(t *testing.T, to string) *httptest.Server {
	t.Helper()
	at, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewTLSServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(at) }})
	t.Cleanup(front.Close)
	return front
}

// issueAtGitea makes a repository with an issue for the agent fix, and what the operator of h
// writes for it.
func issueAtGitea(t *testing.T, g *giteatest.Server, h *host) (issue int) {
	t.Helper()
	g.User("robot", "ada")
	g.Org("bots", "robot")
	g.Org("acme")
	g.Repo("acme", "app", map[string]string{"robot": "write", "ada": "write"})
	for _, name := range []string{"calc.js", "test.js"} {
		g.Commit("acme/app", "main", name, read(t, filepath.Join(h.ws, name)))
	}
	g.Commit("acme/app", "main", ".carboy/gate.yaml", "version: 1\nsignals:\n  - {name: test, kind: build, command: [node, test.js]}\n")
	for name, scopes := range map[string][]string{
		"SERVICE": {"write:issue", "read:repository"}, "SHIPPER": {"write:repository"}, "ORCHESTRATOR": {"read:issue", "read:organization"},
	} {
		h.vars["CARBOY_FORGE_"+name] = g.Token("robot", scopes...)
	}
	h.vars["CARBOY_GIT"] = g.Token("robot", "write:repository")
	conf := filepath.Join(h.base, "config/carboy")
	if err := os.MkdirAll(conf, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, conf+"/orchestrate.yaml", fmt.Sprintf(`forge: {provider: gitea, api: %q, login: robot}
organisation: bots
repositories: {acme/app: {}}
tokens:
  service: {env: CARBOY_FORGE_SERVICE}
  shipper: {env: CARBOY_FORGE_SHIPPER}
  orchestrator: {env: CARBOY_FORGE_ORCHESTRATOR}
poll: 10s
`, g.API))
	var label struct {
		ID int64 `json:"id"`
	}
	g.Must("POST", "/repos/acme/app/labels", map[string]any{"name": "carboy:fix", "color": "#00aabb"}, &label, http.StatusCreated)
	var out struct {
		Number int `json:"number"`
	}
	g.MustAs("ada:"+giteatest.Password("ada"), "POST", "/repos/acme/app/issues", map[string]any{
		"title": "Mend add", "body": "It subtracts.", "assignees": []string{"robot"}, "labels": []int64{label.ID},
	}, &out, http.StatusCreated)
	return out.Number
}
