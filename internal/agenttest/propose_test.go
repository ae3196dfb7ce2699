package agenttest

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/propose"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/testenv"
)

// TestProposed plays a script with each agent from npm as one word starts it: the manifests
// are those that carboy proposes, and the arguments are the user's.
func TestProposed(t *testing.T) {
	for _, template := range propose.Templates() {
		i := slices.IndexFunc(agents, func(a agent) bool { return a.bin == template })
		if i < 0 {
			t.Fatal(template, "is no agent of this test")
		}
		a := agents[i]
		a.with(t, template, func(t *testing.T, dir string) {
			testenv.Need(t, "node", "apt-get install nodejs")
			h := newHost(t)
			key := newKey(t)
			h.vars[a.env] = key
			h.install(dir)
			calc := h.ws + "/calc.js"
			server := New(t, key, Script{
				Steps: repair(calc),
				Final: final,
			})
			ws, err := store.ResolveWorkspace(h.ws)
			if err != nil {
				t.Fatal(err)
			}
			p, err := propose.For(template, ws, h.base+"/config/carboy", h.env)
			if err == nil {
				err = p.Write()
			}
			if err != nil {
				t.Fatal(err)
			}
			h.upstream(t, p.Dir+"/bottles/"+template+".md", a.host, server.Addr)
			h.open(t, server)
			own := []string{"--dangerously-skip-permissions", "--dangerously-bypass-approvals-and-sandbox", "--yolo", "--skip-trust", "--auto"}
			args := slices.DeleteFunc(slices.Clone(a.command), func(s string) bool { return slices.Contains(own, s) })
			_, out, said := h.start(t, carboy.StartOptions{Agent: template, Manifests: p.Dir, Args: args})
			for _, p := range server.Problems() {
				t.Error(p)
			}
			if !strings.Contains(out, final) {
				t.Error("the agent did not say what the model said last: ", said)
			}
			for _, r := range server.Requests() {
				if !r.Key || strings.Contains(string(r.Body), key) {
					t.Errorf("%s %s%s: the key was there: %v, or came inside", r.Method, r.Host, r.Path, r.Key)
				}
			}
		})
	}
}

// upstream sends a proposed bottle's requests for a host to another address.
func (h *host) upstream(t *testing.T, file, host, addr string) {
	t.Helper()
	text := read(t, file)
	to := "host: " + host + ", upstream: \"" + addr + "\""
	switch {
	case strings.Contains(text, "{host: "+host+","):
		text = strings.Replace(text, "host: "+host, to, 1)
	case strings.Contains(text, "  routes:\n"):
		text = strings.Replace(text, "  routes:\n", "  routes:\n    - {"+to+"}\n", 1)
		text = strings.Replace(text, "    []\n", "", 1)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
