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
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/testenv"
)

type start struct {
	template, agent, api string
	model                string
	provider             string // further keys of agent_provider
	route                string // further keys of the vendor's route
	host                 string // empty for the vendor's host
}

// starts lists the bottles for TestStart. The keys are under names of the user's own.
var starts = []start{
	{"claude", "claude-code", "anthropic messages", "claude-sonnet-4-5", "auth_token: MY_KEY", "", ""},
	{"codex", "codex", "openai responses", "gpt-5-codex", "", "token_env: MY_KEY, auth_scheme: bearer", ""},
	{"pi", "pi-coding-agent", "anthropic messages", "anthropic/claude-sonnet-4-5", "", "token_env: MY_KEY, auth_scheme: x-api-key", ""},
	// A user's own model server.
	{"pi", "pi-coding-agent", "chat completions", "inherit", "settings: {base_url: 'https://models.example.com/v1', models: [large], api_key_env: MY_KEY, max_tokens: 4096}", "", "models.example.com"},
	{"gemini", "gemini-cli", "gemini", "gemini-2.5-pro", "", "token_env: MY_KEY, auth_scheme: header, auth_field: x-goog-api-key", ""},
	{"opencode", "opencode-ai", "anthropic messages", "anthropic/claude-sonnet-4-5", "", "token_env: MY_KEY, auth_scheme: x-api-key", ""},
	{"opencode", "opencode-ai", "openai responses", "openai/gpt-5", "", "token_env: MY_KEY, auth_scheme: bearer", ""},
}

// TestStart plays the script with carboy start and each agent from npm, from manifests:
// with the agent's text, and with a skill.
func TestStart(t *testing.T) {
	for _, x := range starts {
		i := slices.IndexFunc(agents, func(a agent) bool { return a.name == x.agent && a.api == x.api })
		a := agents[i]
		if x.host != "" {
			a.host = x.host
		}
		a.with(t, x.template+"/"+x.api, func(t *testing.T, dir string) {
			testenv.Need(t, "node", "apt-get install nodejs")
			h := newHost(t)
			key := newKey(t)
			h.vars["MY_KEY"] = key
			h.install(dir)
			calc := h.ws + "/calc.js"
			server := New(t, key, Script{
				Steps: append(repair(calc), []Step{
					{Run: "env; find $HOME -type f | xargs grep -l skill-of-the-user", Expect: "house-style/SKILL.md"},
					{Run: "git commit -qam 'calc: add adds' && git log --format='%an %s'", Expect: "Worker calc: add adds"},
				}...),
				Final: final,
			})
			route := fmt.Sprintf("{host: %s, upstream: %q, %s}", a.host, server.Addr, x.route)
			h.manifests(t, map[string]string{
				"bottles/js.md":                fmt.Sprintf("---\nagent_provider: {template: %s, %s}\ngit-gate: {user: {name: Worker, email: w@example.org}}\negress:\n  routes: [%s]\n---\n", x.template, x.provider, route),
				"agents/fix.md":                "---\nbottle: js\nmodel: " + x.model + "\nskills: [house-style]\n---\nBe brief, says the agent's text.\n",
				"skills/house-style/SKILL.md":  "---\nname: house-style\ndescription: skill-of-the-user how to format\n---\nUse tabs.\n",
				"skills/house-style/format.sh": "#!/bin/sh\necho formatted\n",
			})
			h.open(t, server)
			s, out, said := h.start(t, carboy.StartOptions{Agent: "fix", Headless: true, Prompt: prompt})
			if s.Kept {
				t.Fatal(said)
			}
			for _, p := range server.Problems() {
				t.Error(p)
			}
			if !strings.Contains(out, final) {
				t.Error("the agent did not say what the model said last: ", said)
			}
			text, skill := false, false
			for _, r := range server.Requests() {
				if !r.Key || r.Host != a.host {
					t.Errorf("%s %s%s: the key was there: %v", r.Method, r.Host, r.Path, r.Key)
				}
				text = text || strings.Contains(string(r.Body), "Be brief, says the agent's text.")
				skill = skill || strings.Contains(string(r.Body), "skill-of-the-user how to format")
				if strings.Contains(string(r.Body), key) {
					t.Error("the key came inside")
				}
			}
			if !text {
				t.Error("the agent's text did not reach the model")
			}
			if !skill {
				t.Error("the model was not told of the skill")
			}
			for _, n := range s.Receipt.Network.Names {
				if n.Verdict == receipt.Refused {
					t.Logf("refused: %s", n.Name)
				}
			}
			if _, err := h.client.Land(t.Context(), s.Receipt.ID, change.LandOptions{IncludeProtected: true}); err != nil {
				t.Errorf("land: %v", err)
			}
			if got := read(t, calc); got != right+"\n" {
				t.Errorf("calc.js after landing: %q", got)
			}
			if t.Failed() {
				t.Log(said)
			}
		})
	}
}

func newKey(t *testing.T) string {
	t.Helper()
	secret := make([]byte, 24)
	if _, err := rand.Read(secret); err != nil {
		t.Fatal(err)
	}
	return "sk-real-" + hex.EncodeToString(secret)
}

// install puts the agent of dir on the host's PATH, and sets the host's home to h's.
func (h *host) install(dir string) {
	h.vars["PATH"] = filepath.Join(dir, "node_modules/.bin") + ":" + os.Getenv("PATH")
	h.vars["HOME"] = h.base
}

// manifests writes a user's files.
func (h *host) manifests(t *testing.T, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(h.base, ".bot-bottle", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, path, text)
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func (h *host) open(t *testing.T, server *Server) {
	t.Helper()
	var err error
	if h.client, err = carboy.Open(t.Context(), carboy.Options{Env: h.env, Roots: server.Roots}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.client.Close() })
}

// start starts an agent on the workspace, and returns its output.
func (h *host) start(t *testing.T, o carboy.StartOptions) (s *carboy.Started, out, said string) {
	t.Helper()
	var stdout, stderr testenv.Buffer
	o.Cwd, o.Dir, o.Stdout, o.Stderr = true, h.ws, &stdout, &stderr
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := h.client.Start(ctx, o)
	said = fmt.Sprintf("it said:\n%.4000s\n%.4000s", stdout.String(), stderr.String())
	if err != nil || s == nil {
		if s != nil {
			t.Logf("network: %+v", s.Receipt.Network)
		}
		t.Fatalf("%v; %s", err, said)
	}
	return s, stdout.String(), said
}
