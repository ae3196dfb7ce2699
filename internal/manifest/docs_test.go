package manifest

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var example = regexp.MustCompile("(?s)`((?:bottles|agents)/[a-z-]+\\.md)`:\n\n```markdown\n(.*?)```")

// The examples of the page are manifests, and its tables have every key.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/bottles.md")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	var agents []string
	for _, m := range example.FindAllSubmatch(page, -1) {
		name, text := string(m[1]), string(m[2])
		files["config/"+name] = text
		kind, file, _ := strings.Cut(name, "/")
		front, _, _, err := split(name, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if bad := schemaOf(t, strings.TrimSuffix(kind, "s")).Check(asJSON(t, front)); len(bad) > 0 {
			t.Errorf("%s: %v", name, bad)
		}
		if kind == "agents" {
			agents = append(agents, strings.TrimSuffix(file, ".md"))
		}
	}
	if len(files) < 3 || len(agents) == 0 {
		t.Fatalf("%d examples", len(files))
	}
	w := newWorld(t, files)
	for _, a := range agents {
		if e := w.mustResolve(a); len(e.Warnings) > 0 || len(e.Egress.Routes) == 0 {
			t.Errorf("%s: %v", a, e.Warnings)
		}
	}
	_, moved, _ := strings.Cut(string(page), "## Coming from bot-bottle")
	moved, _, _ = strings.Cut(moved, "\n## ")
	keysOf, agentsPart, _ := strings.Cut(string(page), "## Keys of an agent")
	_, keysOf, _ = strings.Cut(keysOf, "## Keys of a bottle")
	agentsPart, _, _ = strings.Cut(agentsPart, "\n## ")
	for part, keys := range map[string][]string{keysOf: append(append([]string{}, bottleKeys...), limitKeys...), agentsPart: agentKeys, moved: slices.Sorted(maps.Keys(gone))} {
		for _, k := range keys {
			if !strings.Contains(part, "`"+k+"`") {
				t.Errorf("the page has no %s", k)
			}
		}
	}
}

// loads are fragments of bot-bottle's manifests, by the key of the page's table that they
// hold; what the table calls gone is an error.
var loads = map[string]string{
	"extends": "extends: dev2", "env": "env: {X: , Y: '?what to ask'}", "supervise": "supervise: false", "egress.log": "egress: {log: 2}",
	"agent_provider": "agent_provider: {}", "template": "agent_provider: {template: codex}", "dockerfile": "agent_provider: {dockerfile: Dockerfile}",
	"auth_token": "agent_provider: {auth_token: CLAUDE_TOKEN}", "forward_host_credentials": "agent_provider: {template: codex, forward_host_credentials: true}",
	"startup_args": "agent_provider: {settings: {startup_args: [--model, x]}}",
	"provider":     pi("provider: mine"), "base_url": pi("base_url: 'https://x.example/v1'"), "api": pi("api: openai-completions"), "models": pi("models: [m]"),
	"api_key": pi("api_key: none"), "api_key_env": pi("api_key_env: X_KEY"), "context_window": pi("context_window: 1000"), "max_tokens": pi("max_tokens: 1000"),
	"max_tokens_field": pi("max_tokens_field: max_tokens"), "supports_developer_role": pi("supports_developer_role: false"),
	"git-gate.user": "git-gate: {user: {name: Somebody, email: a@b.example}}",
	"repos":         gitRepo("identity: ~/.ssh/id"), "url": gitRepo("identity: ~/.ssh/id"), "identity": gitRepo("identity: ~/.ssh/id"), "host_key": gitRepo("identity: ~/.ssh/id"),
	"key": gitRepo("key: {provider: static, path: ~/.ssh/id}"), "path": gitRepo("key: {provider: static, path: ~/.ssh/id}"),
	"forge_token_env": gitRepo("key: {provider: gitea, forge_token_env: FORGE}"), "api_url": gitRepo("key: {provider: gitea, forge_token_env: FORGE, api_url: 'https://h.example/api/v1'}"),
	"host": at("git: {}"), "auth_scheme": at("auth_scheme: Bearer, token_env: T"), "token_env": at("auth_scheme: bearer, token_env: T"),
	"matches": at("matches: []"), "paths": at("matches: [{paths: [{value: /x}]}]"), "methods": at("matches: [{methods: [get]}]"), "headers": at("matches: [{headers: [{name: X-A, value: b}]}]"),
	"git: {fetch}": at("git: {fetch: true}"),
	"dlp":          at("dlp: {}"), "outbound_detectors": at("dlp: {outbound_detectors: [token_patterns, known_secrets, entropy]}"),
	"inbound_detectors": at("dlp: {inbound_detectors: [naive_injection_detection]}"), "outbound_on_match": at("dlp: {outbound_on_match: redact}"),
	"runtime": "runtime: x", "ssh": "ssh: {}", "git": "git: {}", "git_user": "git_user: {}",
}

func pi(s string) string { return "agent_provider: {template: pi, settings: {" + s + "}}" }
func at(s string) string { return "egress: {routes: [{host: x.example, " + s + "}]}" }
func gitRepo(s string) string {
	return "git-gate: {repos: {r: {url: 'ssh://git@h.example/r.git', host_key: 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJKmEJzT5Bz4Dd8B1qX8l7Wv3kq0m0Zr8gQ0Y2cT3n4V', " + s + "}}}"
}

// elsewhere are files of carboy that hold what the table names beside keys of bottles.
var elsewhere = map[string]string{
	"--bottle": "cmd/carboy/start.go", "BOT_BOTTLE_BACKEND": "cmd/carboy/backend.go", "BOT_BOTTLE_DRY_RUN": "cmd/carboy/start.go",
	"EGRESS_TOKEN_ALLOW_TIMEOUT_SECONDS": "cmd/carboy/askfor.go", "SUPERVISE_RESPONSE_TIMEOUT_SECONDS": "cmd/carboy/askfor.go",
	"http://_egress.local/allowlist": "internal/gateway/egress.go", "routes_yaml": "internal/supervise/tools/tools.go", "justification": "internal/supervise/tools/tools.go",
	"bottle": "internal/manifest/bottle.go", "skills": "internal/manifest/bottle.go",
}

// TestBotBottleTable: the table of what each key of bot-bottle has become says what the loader
// does, key by key, and leaves none out that it knows.
func TestBotBottleTable(t *testing.T) {
	page, err := os.ReadFile("../../docs/bottles.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| bot-bottle | Here |")
	table, _, _ = strings.Cut(table, "\n\n")
	seen := map[string]bool{}
	for line := range strings.SplitSeq(table, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || strings.HasPrefix(cells[1], " ---") {
			continue
		}
		for i, k := range strings.Split(cells[1], "`") {
			if i%2 == 0 {
				continue
			}
			seen[k] = true
			if file, ok := elsewhere[k]; ok {
				text, err := os.ReadFile("../../" + file)
				if err != nil || !strings.Contains(string(text), strings.TrimPrefix(strings.TrimSuffix(strings.TrimPrefix(k, "http://"), "/allowlist"), "--")) {
					t.Errorf("%s has no %s: %v", file, k, err)
				}
				continue
			}
			front, ok := loads[k]
			if !ok {
				t.Errorf("the table names %s, which this test does not know", k)
				continue
			}
			w := newWorld(t, map[string]string{theirs + "/bottles/dev.md": md(front), theirs + "/bottles/dev2.md": md(""), theirs + "/bottles/Dockerfile": "FROM x", "config/agents/a.md": agentDev})
			_, err := w.resolve("a")
			if is := strings.HasPrefix(cells[2], " gone"); is != (err != nil) || is && !strings.Contains(err.Error(), gone[k]) {
				t.Errorf("%s: the table says%s; %v", front, cells[2], err)
			}
		}
	}
	for k := range loads {
		if !seen[k] {
			t.Errorf("the table has no %s", k)
		}
	}
	for k := range gone {
		if !seen[k] {
			t.Errorf("the table has no %s, which is gone", k)
		}
	}
}
