package agenttest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/supervise"
	"github.com/carboy/carboy/internal/testenv"
)

// nowhere is a resolver that finds no name.
type nowhere struct{}

func (nowhere) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// TestAgentsAsk starts each agent as carboy start does. A host is refused to it, it
// proposes the host with carboy's tool, waits for a person, and goes on with the new route.
// The gateway then looks up the host, which does not exist outside.
func TestAgentsAsk(t *testing.T) {
	for _, x := range starts {
		i := slices.IndexFunc(agents, func(a agent) bool { return a.name == x.agent && a.api == x.api })
		a := agents[i]
		if x.host != "" || a.bin == "opencode" && a.api == "openai responses" {
			continue // one run of each agent is enough
		}
		a.with(t, x.template, func(t *testing.T, dir string) {
			testenv.Need(t, "node", "apt-get install nodejs")
			h := newHost(t)
			key := newKey(t)
			h.vars["MY_KEY"] = key
			h.install(dir)
			get := "curl -sS -m 60 http://new.example.com/ || echo NOT-YET"
			steps := []Step{
				{Run: get, Expect: "NOT-YET"},
				{Tool: "egress-allow", Args: map[string]any{"host": "new.example.com", "reason": "the task needs it"}, Expect: "Approved"},
				{Run: get, Expect: "resolve-failed"},
				{Tool: "signal-done", Args: map[string]any{"status": "done", "summary": "it was reached"}, Expect: "taken down"},
			}
			if a.bin == "claude" { // its model must search for the tools of servers
				steps = slices.Insert(steps, 1, Step{Tool: "ToolSearch", Args: map[string]any{"query": "select:mcp__carboy__egress-allow,mcp__carboy__signal-done", "max_results": 5}})
			}
			server := New(t, key, Script{Steps: steps, Final: final})
			h.manifests(t, map[string]string{
				"bottles/js.md": fmt.Sprintf("---\nagent_provider: {template: %s, %s}\negress:\n  routes: [{host: %s, upstream: %q, %s}]\n---\n", x.template, x.provider, a.host, server.Addr, x.route),
				"agents/fix.md": "---\nbottle: js\nmodel: " + x.model + "\n---\n",
			})
			var err error
			if h.client, err = carboy.Open(t.Context(), carboy.Options{Env: h.env, Roots: server.Roots, Resolver: nowhere{}}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { h.client.Close() })
			h.answering(t)
			s, out, said := h.start(t, carboy.StartOptions{Agent: "fix", Headless: true, Prompt: "Reach new.example.com."})
			for _, p := range server.Problems() {
				t.Error(p)
			}
			if !strings.Contains(out, final) {
				t.Error("the agent did not say what the model said last")
			}
			p := s.Receipt.Proposals
			if p == nil || len(p.List) != 1 || p.List[0].Verdict != "approved" || len(p.Signals) != 1 {
				t.Errorf("the receipt: %+v", p)
			}
			if t.Failed() {
				t.Log(said)
			}
		})
	}
}

// answering approves all waiting proposals, like a person elsewhere.
func (h *host) answering(t *testing.T) {
	t.Helper()
	c, err := carboy.Open(t.Context(), carboy.Options{Env: h.env})
	if err != nil {
		t.Fatal(err)
	}
	q, err := c.Proposals()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done, changed := make(chan struct{}), q.Watch(ctx)
	go func() { // ends with the test
		defer close(done)
		for {
			l, err := q.List(ctx, supervise.Query{})
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			for _, e := range l.Entries {
				// An answered proposal may still be listed, so ignore the error.
				_, _ = q.Answer(ctx, supervise.Reply{ID: e.Proposal.ID, Digest: e.Proposal.Digest, Verdict: supervise.Approved, Channel: supervise.ChannelCLI})
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done; q.Close(); c.Close() })
}
