package agenttest

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/testenv"
)

// TestConversationsGoOn resumes each agent with the arguments of carboy start. It must
// answer in its old conversation, of which only the files named here were kept.
// TestLaunchCommands of package carboy has the same arguments.
func TestConversationsGoOn(t *testing.T) {
	for _, x := range []struct {
		agent, api, model string
		first, next       []string
		sessions          string // in the home
	}{
		{"claude-code", "anthropic messages", "claude-sonnet-4-5", []string{"--dangerously-skip-permissions", "--model", "MODEL", "-p"}, []string{"--dangerously-skip-permissions", "--model", "MODEL", "--continue", "-p"}, ".claude/projects"},
		{"pi-coding-agent", "anthropic messages", "anthropic/claude-sonnet-4-5", []string{"--model", "MODEL", "-p"}, []string{"--model", "MODEL", "--continue", "-p"}, ".pi/agent/sessions"},
		{"codex", "openai responses", "gpt-5-codex", []string{"exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", "MODEL"}, []string{"exec", "resume", "--last", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", "MODEL"}, ".codex/sessions"},
		{"gemini-cli", "gemini", "gemini-2.5-pro", []string{"--yolo", "--skip-trust", "-m", "MODEL", "-p"}, []string{"--yolo", "--skip-trust", "-m", "MODEL", "--resume", "latest", "-p"}, ".gemini/tmp .gemini/projects.json"},
		{"opencode-ai", "anthropic messages", "anthropic/claude-sonnet-4-5", []string{"run", "--auto", "-m", "MODEL"}, []string{"run", "--auto", "-m", "MODEL", "--continue"}, ".local/share/opencode"},
	} {
		a := agents[slices.IndexFunc(agents, func(a agent) bool { return a.name == x.agent && a.api == x.api })]
		a.with(t, x.agent, func(t *testing.T, dir string) {
			testenv.Need(t, "node", "apt-get install nodejs")
			const one, two = "Say which word is in calc.js, asks the first.", "And once more, asks the second."
			h := newHost(t)
			key := newKey(t)
			h.vars[a.env] = key
			play := Script{Steps: []Step{{Run: "cat calc.js", Expect: "a - b"}}, Final: final}
			if a.bin == "gemini" {
				play.Steps = nil // it sends the results twice in a resumed conversation
			}
			server := New(t, key, play)
			routes := filepath.Join(h.base, "routes.yaml")
			write(t, routes, fmt.Sprintf("routes:\n  - {host: %s, upstream: %q, token_env: %s, %s}\n", a.host, server.Addr, a.env, a.scheme))
			h.open(t, server)
			quoted := func(args []string, prompt string) string {
				var out []string
				for _, s := range append(slices.Clone(args), prompt) {
					if s == "MODEL" {
						s = x.model
					}
					out = append(out, "'"+s+"'")
				}
				return "'" + filepath.Join(dir, "node_modules/.bin", a.bin) + "' " + strings.Join(out, " ")
			}
			script := quoted(x.first, one) + " && mkdir /tmp/next && (cd && cp -r --parents " + x.sessions + " /tmp/next) && echo NEXT && HOME=/tmp/next " + quoted(x.next, two)
			var out, msg testenv.Buffer
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			rec, err := h.client.Run(ctx, carboy.RunOptions{
				Command: []string{"sh", "-c", script}, Workspace: h.ws, Routes: routes, Env: a.more, Stdout: &out, Stderr: &msg, Mounts: []string{dir + ":" + dir + ":ro"},
			})
			said := fmt.Sprintf("it said:\n%.4000s\n%.4000s", out.String(), msg.String())
			if err != nil || rec.Exit.Code != 0 {
				t.Fatalf("%v; %s", err, said)
			}
			for _, p := range server.Problems() {
				t.Error(p)
			}
			if _, after, ok := strings.Cut(out.String(), "NEXT"); !ok || !strings.Contains(after, final) {
				t.Error("no answer to the second")
			}
			both := false
			for _, r := range server.Requests() {
				i, j := strings.Index(string(r.Body), one), strings.Index(string(r.Body), two)
				both = both || i >= 0 && j > i
			}
			if !both {
				t.Error("the model was not told of both")
			}
			if t.Failed() {
				t.Log(said)
			}
		})
	}
}
