package agenttest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/testenv"
)

// The first argument of this binary in a bottle: run an agent, or request a search of the
// bottle.
const (
	insideArg = "inside-of-bottle"
	askArg    = "look-for-key"
)

func TestMain(m *testing.M) {
	carboy.Main()
	switch {
	case len(os.Args) > 5 && os.Args[1] == insideArg:
		os.Exit(inside(os.Args[2], os.Args[3], os.Args[4], os.Args[5:]))
	case len(os.Args) == 2 && os.Args[1] == askArg:
		os.Exit(ask())
	}
	code := m.Run()
	if programDir != "" {
		_ = os.RemoveAll(programDir)
	}
	os.Exit(code)
}

// patience bounds a run. Only a run that hangs reaches it.
var patience = testenv.Patience(5 * time.Minute)

// agentsEnv names the directory of the installed agents, which install.sh fills.
const agentsEnv = "CARBOY_TEST_AGENTS"

// agent is an agent from npm, and the way to run it without a person.
type agent struct {
	name    string // name of its directory
	pkg     string
	bin     string
	api     string // the vendor's API that it shall use
	host    string
	env     string // the variable that holds its key
	scheme  string // of authentication, as in route files
	command []string
	more    []string // further variables
}

const prompt = "Function add in calc.js subtracts. Fix it, run the tests, and commit."

var agents = []agent{
	{
		name: "pi-coding-agent", pkg: "@mariozechner/pi-coding-agent", bin: "pi", api: "anthropic messages",
		host: "api.anthropic.com", env: "ANTHROPIC_API_KEY", scheme: "auth_scheme: x-api-key",
		command: []string{"--provider", "anthropic", "--model", "claude-sonnet-4-5", "-p", prompt},
		more:    []string{"PI_OFFLINE=1"},
	},
	{
		name: "pi-coding-agent", pkg: "@mariozechner/pi-coding-agent", bin: "pi", api: "openai responses",
		host: "api.openai.com", env: "OPENAI_API_KEY", scheme: "auth_scheme: bearer",
		command: []string{"--provider", "openai", "--model", "gpt-5", "-p", prompt},
		more:    []string{"PI_OFFLINE=1"},
	},
	{
		name: "pi-coding-agent", pkg: "@mariozechner/pi-coding-agent", bin: "pi", api: "chat completions",
		host: "api.groq.com", env: "GROQ_API_KEY", scheme: "auth_scheme: bearer",
		command: []string{"--provider", "groq", "--model", "openai/gpt-oss-120b", "-p", prompt},
		more:    []string{"PI_OFFLINE=1"},
	},
	{
		name: "pi-coding-agent", pkg: "@mariozechner/pi-coding-agent", bin: "pi", api: "gemini",
		host: "generativelanguage.googleapis.com", env: "GEMINI_API_KEY", scheme: "auth_scheme: header, auth_field: x-goog-api-key",
		command: []string{"--provider", "google", "--model", "gemini-2.5-pro", "-p", prompt},
		more:    []string{"PI_OFFLINE=1"},
	},
	{
		name: "claude-code", pkg: "@anthropic-ai/claude-code", bin: "claude", api: "anthropic messages",
		host: "api.anthropic.com", env: "ANTHROPIC_API_KEY", scheme: "auth_scheme: x-api-key",
		command: []string{"-p", "--dangerously-skip-permissions", "--model", "claude-sonnet-4-5", prompt},
		more:    []string{"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1"},
	},
	{
		name: "codex", pkg: "@openai/codex", bin: "codex", api: "openai responses",
		host: "api.openai.com", env: "CODEX_API_KEY", scheme: "auth_scheme: bearer",
		command: []string{"exec", "--dangerously-bypass-approvals-and-sandbox", "-m", "gpt-5-codex", prompt},
	},
	{
		name: "gemini-cli", pkg: "@google/gemini-cli", bin: "gemini", api: "gemini",
		host: "generativelanguage.googleapis.com", env: "GEMINI_API_KEY", scheme: "auth_scheme: header, auth_field: x-goog-api-key",
		command: []string{"--yolo", "--skip-trust", "-m", "gemini-2.5-pro", "-p", prompt},
	},
	{
		name: "opencode-ai", pkg: "opencode-ai", bin: "opencode", api: "anthropic messages",
		host: "api.anthropic.com", env: "ANTHROPIC_API_KEY", scheme: "auth_scheme: x-api-key",
		command: []string{"run", "--auto", "-m", "anthropic/claude-sonnet-4-5", prompt},
		more:    []string{"OPENCODE_DISABLE_AUTOUPDATE=1"},
	},
	{
		name: "opencode-ai", pkg: "opencode-ai", bin: "opencode", api: "openai responses",
		host: "api.openai.com", env: "OPENAI_API_KEY", scheme: "auth_scheme: bearer",
		command: []string{"run", "--auto", "-m", "openai/gpt-5", prompt},
		more:    []string{"OPENCODE_DISABLE_AUTOUPDATE=1"},
	},
}

// inCI lists the agents that each CI run installs. docs/agents.md tells when the others
// were tested.
var inCI = []string{"pi-coding-agent", "claude-code"}

// TestAgents plays the script with every installed agent.
func TestAgents(t *testing.T) {
	for i, a := range agents {
		again := slices.ContainsFunc(agents[:i], func(b agent) bool { return a.name == b.name })
		a.with(t, a.name+"/"+a.api, func(t *testing.T, dir string) {
			if again && testing.Short() {
				t.Skip("-short: one API for each agent")
			}
			testenv.Need(t, "node", "apt-get install nodejs")
			a.play(t, dir)
		})
	}
}

// repair returns the first steps of a script: the agent reads calc.js, mends it, and runs its
// test.
func repair(calc string) []Step {
	return []Step{
		{Read: calc, Expect: "a - b"},
		{Edit: &Edit{Path: calc, Old: wrong, New: right}},
		{Run: "node test.js", Expect: "all tests pass"},
	}
}

// with runs a test with an installed agent. If CI could not install it, .ci/run has
// reported that.
func (a agent) with(t *testing.T, name string, f func(t *testing.T, dir string)) {
	t.Helper()
	dir, how := a.installed()
	if dir == "" && testenv.CI() && (!slices.Contains(inCI, a.name) || os.Getenv(agentsEnv) == "") {
		t.Logf("NOT RUN here: %s: %s", a.name, how)
		return
	}
	t.Run(name, func(t *testing.T) {
		if dir == "" {
			testenv.Missing(t, a.name, how)
		}
		f(t, dir)
	})
}

// installed returns an agent's directory, or how to install it.
func (a agent) installed() (dir, how string) {
	if dir = os.Getenv(agentsEnv); dir != "" {
		dir = filepath.Join(dir, a.name)
		if fi, err := os.Stat(dir + "/node_modules"); err == nil && fi.IsDir() {
			return dir, ""
		}
	}
	return "", "internal/agenttest/install.sh DIRECTORY " + a.name + ", then run the test with " + agentsEnv + "=DIRECTORY"
}

func (a agent) version(t *testing.T, dir string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "node_modules", a.pkg, "package.json"))
	if err != nil {
		t.Fatal(err)
	}
	var p struct{ Version string }
	if err := json.Unmarshal(b, &p); err != nil {
		t.Fatal(err)
	}
	return p.Version
}

const (
	wrong = "exports.add = (a, b) => a - b;"
	right = "exports.add = (a, b) => a + b;"
	final = "Fixed add, and the tests pass."
)

// play lets the agent do the task with a key that it never has.
func (a agent) play(t *testing.T, dir string) {
	secret := make([]byte, 24)
	if _, err := rand.Read(secret); err != nil {
		t.Fatal(err)
	}
	key := "sk-real-" + hex.EncodeToString(secret)
	h := newHost(t)
	h.vars[a.env] = key

	calc := h.ws + "/calc.js"
	placeholder := newNeedle(a.env + "=carboy-placeholder-")
	server := New(t, key, Script{
		Steps: append(repair(calc), []Step{
			{Run: guestPath + " " + askArg, Expect: "the key is nowhere"},
			{Run: "git commit -qam 'calc: add adds' && git log --oneline", Expect: "calc: add adds"},
		}...),
		Final: final,
	})
	var outside *search
	server.OnStep = func(n int) {
		if n == 4 && os.Geteuid() == 0 && outside == nil { // only root reads the memory of others
			outside = newSearch(newNeedle(key), placeholder)
			for _, p := range testenv.Living(t, os.Getpid()) {
				outside.process(p.PID, true, true)
				outside.descriptors(p.PID)
			}
		}
	}
	routes := filepath.Join(h.base, "routes.yaml")
	write(t, routes, fmt.Sprintf("routes:\n  - {host: %s, upstream: %q, token_env: %s, %s}\n", a.host, server.Addr, a.env, a.scheme))

	var err error
	h.client, err = carboy.Open(t.Context(), carboy.Options{Env: h.env, Roots: server.Roots})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.client.Close() })
	var out, msg testenv.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	began := time.Now()
	rec, err := h.client.Run(ctx, carboy.RunOptions{
		Command: append([]string{
			guestPath, insideArg, newNeedle(key).String(), placeholder.String(), dir,
			filepath.Join(dir, "node_modules/.bin", a.bin),
		}, a.command...),
		Workspace: h.ws, Routes: routes, Env: a.more, Stdout: &out, Stderr: &msg,
		Limits: bottle.Limits{Timeout: patience}, // defaults for the rest
		Mounts: []string{dir + ":" + dir + ":ro", guestFile(t, h.base) + ":" + guestPath + ":ro"},
	})
	said := fmt.Sprintf("it said:\n%.4000s\n%.4000s", out.String(), msg.String())
	if err != nil || rec == nil {
		t.Fatalf("the run: %v; %s", err, said)
	}
	defer func() {
		if t.Failed() {
			t.Logf("%s", said)
			t.Logf("network: %+v", rec.Network)
		}
	}()
	if rec.Exit.Reason != receipt.Exited || rec.Exit.Code != 0 {
		t.Errorf("the agent ended with %+v", rec.Exit)
	}
	for _, p := range server.Problems() {
		t.Error(p)
	}
	if !strings.Contains(out.String(), final) {
		t.Error("the agent did not say what the model said last")
	}
	asked := server.Requests()
	for _, r := range asked {
		if !r.Key || r.Host != a.host {
			t.Errorf("%s %s%s: the key was there: %v", r.Method, r.Host, r.Path, r.Key)
		}
	}

	// Nothing is in the workspace yet, and all of it after landing.
	if got := read(t, calc); got != wrong+"\n" {
		t.Errorf("calc.js changed before landing: %q", got)
	}
	if _, err := h.client.Land(t.Context(), rec.ID, change.LandOptions{IncludeProtected: true}); err != nil {
		t.Errorf("land: %v", err)
	}
	if got := read(t, calc); got != right+"\n" {
		t.Errorf("calc.js after landing: %q", got)
	}
	if log := read(t, h.ws+"/.git/logs/HEAD"); !strings.Contains(log, "carboy: landing") {
		t.Errorf("no commit landed: %s", log)
	}

	// The key is in no file that is kept, and in no memory of the bottle. The placeholder
	// is found, so the search works.
	kept := newSearch(newNeedle(key), placeholder)
	kept.tree(h.base, h.base+"/guest")
	kept.stream("output", strings.NewReader(out.String()))
	kept.stream("messages", strings.NewReader(msg.String()))
	if len(kept.found[0]) > 0 {
		t.Errorf("the key is in %v", kept.found[0])
	}
	looked := ""
	for _, r := range asked {
		if _, after, ok := bytes.Cut(r.Body, []byte("looked at ")); ok {
			looked, _, _ = strings.Cut(string(after), ";")
			break
		}
	}
	if os.Geteuid() == 0 {
		switch {
		case outside == nil || len(outside.found[0]) > 0:
			t.Errorf("the memory of the bottle, from outside: %+v", outside)
		case !strings.Contains(fmt.Sprint(outside.found[1]), "memfd:"):
			t.Errorf("from outside the placeholder is not found in the bottle's memory, where it is: %v", outside.found[1])
		}
		if outside != nil {
			looked += fmt.Sprintf("; outside at %d MB of memory", outside.bytes>>20)
		}
	}
	t.Logf("%s %s, %s: %d requests, %.1f s; looked inside at %s", a.bin, a.version(t, dir), a.api, len(asked), time.Since(began).Seconds(), looked)
	for _, n := range rec.Network.Names {
		if n.Verdict == receipt.Refused {
			t.Logf("refused: %s", n.Name)
		}
	}
}

const guestPath = "/carboy-guest"

// guestFile returns a copy of this binary that the bottle's user can read.
func guestFile(t testing.TB, base string) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(base+"/guest", 0o755); err != nil {
		t.Fatal(err)
	}
	path := base + "/guest/guest"
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// host is a user's machine: a state directory, and a workspace with a repository.
type host struct {
	base, ws string
	client   *carboy.Client
	vars     map[string]string
}

const nobody = 65534

func newHost(t testing.TB) *host {
	t.Helper()
	base, err := os.MkdirTemp("", "ca-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	h := &host{base: base, ws: base + "/ws", vars: map[string]string{
		"XDG_STATE_HOME": base + "/state", "XDG_RUNTIME_DIR": base + "/run", "XDG_CONFIG_HOME": base + "/config",
		"HOME": base + "/home", "PATH": os.Getenv("PATH"),
	}}
	for _, d := range []string{h.ws, base + "/run", base + "/home"} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(t, h.ws+"/calc.js", wrong+"\n")
	write(t, h.ws+"/test.js", "const {add} = require('./calc.js');\nif (add(2, 3) !== 5) { console.error('add(2, 3) is ' + add(2, 3)); process.exit(1); }\nconsole.log('all tests pass');\n")
	repository(t, h.ws)
	h.give(t)
	return h
}

// give makes the workspace belong to the bottle's user.
func (h *host) give(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 { // a command in a bottle is never root
		return
	}
	err := filepath.WalkDir(h.ws, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, nobody, nobody)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (h *host) env(name string) string { return h.vars[name] }

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}
