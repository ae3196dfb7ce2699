package agenttest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/testenv"
)

// TestStart has carboy start play the script with Claude Code as npm installs it:
// from manifests, with its key under a name of the user's own.
func TestStart(t *testing.T) {
	i := slices.IndexFunc(agents, func(a agent) bool { return a.name == "claude-code" })
	a := agents[i]
	dir, how := a.installed()
	if dir == "" {
		if testenv.CI() && os.Getenv(where) == "" {
			t.Logf("NOT RUN here: %s: %s", a.name, how) // .ci/run has said so
			return
		}
		testenv.Missing(t, a.name, how)
	}
	testenv.Need(t, "node", "apt-get install nodejs")
	secret := make([]byte, 24)
	if _, err := rand.Read(secret); err != nil {
		t.Fatal(err)
	}
	key := "sk-real-" + hex.EncodeToString(secret)
	h := newHost(t)
	h.vars["MY_CLAUDE"] = key
	h.vars["PATH"] = filepath.Join(dir, "node_modules/.bin") + ":" + os.Getenv("PATH")
	h.vars["HOME"] = h.base
	calc := h.ws + "/calc.js"
	server := New(t, key, Script{
		Steps: []Step{
			{Read: calc, Expect: "a - b"},
			{Edit: &Edit{Path: calc, Old: wrong, New: right}},
			{Run: "node test.js", Expect: "all tests pass"},
			{Run: "env; git commit -qam 'calc: add adds' && git log --format='%an %s'", Expect: "Worker calc: add adds"},
		},
		Final: final,
	})
	for name, text := range map[string]string{
		"bottles/js.md": fmt.Sprintf("---\nagent_provider: {auth_token: MY_CLAUDE}\ngit-gate: {user: {name: Worker, email: w@example.org}}\negress:\n  routes: [{host: api.anthropic.com, upstream: %q}]\n---\n", server.Addr),
		"agents/fix.md": "---\nbottle: js\nmodel: claude-sonnet-4-5\n---\nBe brief, says the agent's text.\n",
	} {
		path := filepath.Join(h.base, ".bot-bottle", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, path, text)
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	h.client, err = carboy.Open(t.Context(), carboy.Options{Env: h.env, Roots: server.Roots})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.client.Close() })
	var out, msg safeBuffer
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := h.client.Start(ctx, carboy.StartOptions{Agent: "fix", Dir: h.ws, Cwd: true, Headless: true, Prompt: prompt, Stdout: &out, Stderr: &msg})
	said := fmt.Sprintf("it said:\n%.4000s\n%.4000s", out.String(), msg.String())
	if err != nil || s == nil || s.Kept {
		t.Fatalf("%v; %s", err, said)
	}
	for _, p := range server.Problems() {
		t.Error(p)
	}
	if !strings.Contains(out.String(), final) {
		t.Error("the agent did not say what the model said last: ", said)
	}
	text := false
	for _, r := range server.Requests() {
		if !r.Key || r.Host != a.host {
			t.Errorf("%s %s%s: the key was there: %v", r.Method, r.Host, r.Path, r.Key)
		}
		text = text || strings.Contains(string(r.Body), "Be brief, says the agent's text.")
		if strings.Contains(string(r.Body), key) {
			t.Error("the key came inside")
		}
	}
	if !text {
		t.Error("the agent's text did not reach the model")
	}
	if _, err := h.client.Land(t.Context(), s.Receipt.ID, change.LandOptions{IncludeProtected: true}); err != nil {
		t.Errorf("land: %v", err)
	}
	if got := read(t, calc); got != right+"\n" {
		t.Errorf("calc.js after landing: %q", got)
	}
}
