package manifest

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/carboy/carboy/internal/receipt/receipttest"
)

func schemaOf(t testing.TB, name string) receipttest.Schema {
	t.Helper()
	b, err := Schema(name)
	if err != nil {
		t.Fatal(err)
	}
	s, err := receipttest.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// asJSON returns the document that an editor compares with a schema.
func asJSON(t testing.TB, text []byte) any {
	t.Helper()
	var v, out any
	if err := yaml.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	if v == nil {
		v = map[string]any{}
	}
	b, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// The schema of a manifest and its reader know the same keys.
func TestSchemaKeys(t *testing.T) {
	for name, keys := range map[string][]string{"bottle": bottleKeys, "agent": agentKeys} {
		s := schemaOf(t, name)
		got := slices.Sorted(maps.Keys(s.Properties(s.Root())))
		want := slices.Clone(keys)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: the schema has %v, the reader %v", name, got, want)
		}
	}
	s := schemaOf(t, "bottle")
	limits := s.Properties(s.Root())["limits"].(map[string]any)
	got, want := slices.Sorted(maps.Keys(s.Properties(limits))), slices.Clone(limitKeys)
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("limits: %v, %v", got, want)
	}
	if _, err := Schema("../bottle"); err == nil {
		t.Error("a schema of any name")
	}
}

// TestSchemaAgrees: the schema and the reader accept the same bottles.
func TestSchemaAgrees(t *testing.T) {
	for _, x := range []struct {
		schema, front string
		ok            bool
	}{
		{"bottle", "", true},
		{"bottle", "extends: a", true}, {"bottle", "extends: [a, b]", true}, {"bottle", "extends: [A]", false}, {"bottle", "extends: {a: b}", false},
		{"bottle", "env: {A: x}", true}, {"bottle", "env: {A: 1}", false}, {"bottle", "env: {'A-B': x}", false},
		{"bottle", "agent_provider: {template: claude, auth_token: A_B, settings: {startup_args: [x]}}", true},
		{"bottle", "agent_provider: {template: cloud}", false}, {"bottle", "agent_provider: {auth_token: a-b}", false}, {"bottle", "agent_provider: {settings: {commands: [x]}}", false},
		{"bottle", "agent_provider: {template: command, settings: {command: [x]}}", true}, {"bottle", "agent_provider: {template: command, settings: {command: []}}", false},
		{"bottle", "git-gate: {repos: {x: {url: 'https://x.example/x'}}}", true}, {"bottle", "git-gate: {repos: {'/': {url: 'https://x.example/x'}}}", false}, {"bottle", "git-gate: {repos: {}}", true},
		{"bottle", "git-gate: {repos: {x: {url: 'https://x.example/x', key: {path: /x}}}}", false},
		{"bottle", "egress: {log: 2, routes: [{host: x.example}]}", true}, {"bottle", "egress: {log: 3}", false}, {"bottle", "egress: {routes: [{hots: x}]}", false},
		{"bottle", "egress: {routes: [{host: x.example, matches: []}]}", false},
		{"bottle", "supervise: false", true}, {"bottle", "supervise: 'no'", false},
		{"bottle", "limits: {memory: 2GiB, pids: 5}", true}, {"bottle", "limits: {memory: 67108864}", true}, {"bottle", "limits: {pids: 0}", false}, {"bottle", "limits: {ram: 1}", false},
		{"bottle", "workspace: bind", true}, {"bottle", "workspace: host", false}, {"bottle", "runtime: x", false},
		{"bottle", "backend: docker", true}, {"bottle", "backend: vmware", false}, {"bottle", "isolation: user-kernel", true}, {"bottle", "isolation: strong", false}, {"agent", "backend: docker", false}, {"agent", "isolation: container", false},
		{"agent", "bottle: dev\nskills: [a-b]\ntools: Read, Grep\nmodel: opus", true}, {"agent", "tools: [Read]", true}, {"agent", "skills: [a_b]", false},
		{"agent", "env: {A: x}", false}, {"agent", "git-gate: {repos: {}}", false}, {"agent", "git-gate: {user: {name: x}}", true}, {"agent", "bottle: Dev", false},
	} {
		if got := len(schemaOf(t, x.schema).Check(asJSON(t, []byte(x.front)))) == 0; got != x.ok {
			t.Errorf("schema of %s, %q: %t", x.schema, x.front, got)
		}
		files := map[string]string{"config/agents/a.md": md(""), "config/bottles/default.md": md(""), "config/bottles/a.md": md(""), "config/bottles/b.md": md(""), "config/bottles/dev.md": md("")}
		files[map[string]string{"bottle": "config/bottles/default.md", "agent": "config/agents/a.md"}[x.schema]] = md(x.front)
		if _, err := newWorld(t, files).resolve("a"); (err == nil) != x.ok {
			t.Errorf("reader of %s, %q: %v", x.schema, x.front, err)
		}
	}
}

func FuzzManifest(f *testing.F) {
	for _, s := range []string{
		"", "env: {A: x}", "extends: [a, dev]", "egress: {routes: [{host: x.example, token_env: A_B}]}", "agent_provider: {template: pi, settings: {api_key: x}}",
		"git-gate: {user: {name: x}, repos: {x: {url: 'a@b:c', key: {provider: static, path: /x}}}}", "limits: {memory: 1GiB, timeout: 1m}", "a: &a [*a]", "? x\n: y", "env: |\n  ---\n  x",
		"bottle: dev\nskills: [x]\ntools: [a, b]", "--- x", "...", "%YAML 1.1",
	} {
		f.Add([]byte(md(s)), []byte(md(s)+"text\n"))
	}
	f.Add([]byte("\ufeff---\r\nenv: {A: x}\r\n---\r\n"), []byte("---\n---"))
	w := newWorld(f, map[string]string{"config/bottles/a.md": md("env: {Z: z}"), "config/bottles/default.md": md("")})
	f.Fuzz(func(t *testing.T, bottle, agent []byte) {
		w := &world{t, w.dir}
		w.write("home/.bot-bottle/bottles/dev.md", string(bottle))
		w.write("repo/.carboy/agents/x.md", string(agent))
		for _, bottles := range [][]string{nil, {"dev"}} {
			e, err := w.resolve("x", bottles...)
			if (e == nil) == (err == nil) {
				t.Fatal("neither or both")
			}
			if err != nil {
				if len(err.Error()) > 1<<20 {
					t.Fatal("unbounded")
				}
				continue
			}
			for _, v := range e.Entries() {
				if v.From.File == "" && v.From.Line != 0 || v.From.Line < 0 {
					t.Fatalf("%+v", v)
				}
			}
			// Whatever the repository's agent says, the bottle is the user's.
			if bottles != nil && (e.Provider.Template.From.File == e.Agent.File || e.Workspace.From.File == e.Agent.File || len(e.Env) > 0 && fromAgent(e)) {
				t.Fatal("the agent granted")
			}
			if _, err := json.Marshal(e.Entries()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func fromAgent(e *Effective) bool {
	for _, v := range e.Env {
		if v.From.File == e.Agent.File {
			return true
		}
	}
	return false
}
