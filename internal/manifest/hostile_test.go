package manifest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf16"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/testenv"
)

func utf16LE(s string, bom bool) string {
	var b []byte
	if bom {
		b = append(b, 0xff, 0xfe)
	}
	for _, u := range utf16.Encode([]rune(s)) {
		b = append(b, byte(u), byte(u>>8))
	}
	return string(b)
}

// billion is the document that grows when aliases are followed.
func billion() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x, x]\n")
	for i := 1; i < 30; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [*a%d, *a%d]\n", i, i, i-1, i-1)
	}
	return b.String()
}

// TestHostile: what is refused, with the words by which a person finds it, and the
// nearest thing that is taken.
func TestHostile(t *testing.T) {
	const bottle, agent = "config/bottles/dev.md", "repo/.carboy/agents/a.md"
	type files = map[string]string
	nested := func(n int) string {
		return "egress: {routes: [{host: x.example, matches: " + strings.Repeat("[", n) + strings.Repeat("]", n) + "}]}"
	}
	chain := func(n int) files {
		out := files{}
		for i := range n {
			out[fmt.Sprintf("config/bottles/c%d.md", i)] = md(fmt.Sprintf("extends: c%d", i+1))
		}
		out[fmt.Sprintf("config/bottles/c%d.md", n)] = md("")
		out[bottle] = md("extends: c0")
		return out
	}
	for _, x := range []struct {
		name    string
		bad     files
		want    string // of the error
		good    files
		agent   string
		bottles []string
	}{
		{name: "billion aliases", bad: files{bottle: md(billion())}, want: "anchors and aliases are not allowed", good: files{bottle: md("env: {A: x}")}},
		{name: "one alias", bad: files{bottle: md("env: &e {A: x}\nlimits: *e")}, want: "dev.md:2:6: env: anchors and aliases", good: files{bottle: md("env: {A: '&e', B: '*e'}")}},
		{name: "merge key", bad: files{bottle: md("env: {<<: {A: x}}")}, want: "a key is a plain word", good: files{bottle: md("env: {A: '<<'}")}},
		{name: "tag", bad: files{bottle: md("env: {A: !!str 5}")}, want: "tags such as", good: files{bottle: md("env: {A: '5'}")}},
		{name: "tag of a type that runs", bad: files{bottle: md("env: !!python/object/apply:os.system ['id']")}, want: "tags such as", good: files{bottle: md("env: {A: '!!python/object'}")}},
		{name: "key given twice", bad: files{bottle: md("supervise: true\nsupervise: false")}, want: "dev.md:3:1: supervise: given twice; the first is in line 2", good: files{bottle: md("supervise: false")}},
		{name: "variable given twice", bad: files{bottle: md("env: {A: x, A: y}")}, want: "env.A: given twice", good: files{bottle: md("env: {A: x, a: y}")}},
		{name: "second document", bad: files{bottle: "---\nsupervise: true\n...\nsupervise: false\n---\n"}, want: "dev.md:4:", good: files{bottle: md("supervise: true") + "---\nsupervise: false\n---\n"}},
		{name: "unknown key", bad: files{bottle: md("egres: {}")}, want: "dev.md:2:1: egres: unknown key; did you mean egress? (known: extends, env, agent_provider", good: files{bottle: md("egress: {}")}},
		{name: "unknown key, nothing near", bad: files{bottle: md("mounts: [/]")}, want: "mounts: unknown key; known: extends, env,", good: files{bottle: md("")}},
		{name: "circle of one", bad: files{bottle: md("extends: dev")}, want: "extends goes in a circle: dev -> dev (", good: files{bottle: md("extends: []")}},
		{name: "circle of three", bad: files{bottle: md("extends: b"), "config/bottles/b.md": md("extends: c"), "config/bottles/c.md": md("\n\nextends: [dev]")},
			want: "/c.md:4:11: extends[0]: extends goes in a circle: dev -> b (", good: files{"config/bottles/c.md": md("")}},
		{name: "deep chain", bad: chain(64), want: "more than 64 bottles extend one another in a row", good: chain(62)},
		{name: "deep nesting", bad: files{bottle: md(nested(5000))}, want: "", good: files{bottle: md("egress: {routes: [{host: x.example, matches: [{paths: [{value: /}]}]}]}")}},
		{name: "nesting just too deep", bad: files{bottle: md(nested(40))}, want: "nested deeper than", good: files{bottle: md("env: {A: '[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[['}")}},
		{name: "huge", bad: files{bottle: md("env: {A: x}") + strings.Repeat("a\n", document.MaxSize/2+1)}, want: "larger than 1024 KiB", good: files{bottle: md("env: {A: x}") + strings.Repeat("a\n", document.MaxSize/2-40)}},
		{name: "UTF-16 with its mark", bad: files{bottle: utf16LE(md("supervise: false"), true)}, want: "dev.md:1:1: not UTF-8", good: files{bottle: md("supervise: false")}},
		{name: "UTF-16 without", bad: files{bottle: utf16LE(md("supervise: false"), false)}, want: "dev.md:1:2: not UTF-8", good: files{bottle: "\ufeff" + md("supervise: false")}},
		{name: "mark inside", bad: files{bottle: md("env: {A: \ufeffx}")}, want: "dev.md:2:10: not UTF-8 text, or a control character", good: files{bottle: "\ufeff" + md("env: {A: x}")}},
		{name: "not UTF-8", bad: files{bottle: md("env: {A: \xff\xfe}")}, want: "dev.md:2:10: not UTF-8", good: files{bottle: md("env: {A: ÿþ}")}},
		{name: "overlong", bad: files{bottle: md("env: {A: '\xc0\xaf'}")}, want: "not UTF-8", good: files{bottle: md("env: {A: /}")}},
		{name: "NUL", bad: files{bottle: md("env: {A: x\x00}")}, want: "dev.md:2:11: not UTF-8", good: files{bottle: md("env: {A: '\\0'}")}},
		{name: "NUL written out", bad: files{bottle: md(`env: {A: "x\0y"}`)}, want: "env.A: holds a NUL byte", good: files{bottle: md(`env: {A: "x\ty"}`)}},
		{name: "line that only YAML sees", bad: files{bottle: md("# harmless\u2028env: {A: x}")}, want: "not UTF-8 text, or a control", good: files{bottle: md("# harmless\nenv: {A: x}")}},
		{name: "carriage return alone", bad: files{bottle: md("# harmless\renv: {A: x}")}, want: "dev.md:2:11: not UTF-8", good: files{bottle: strings.ReplaceAll(md("# harmless\nenv: {A: x}"), "\n", "\r\n")}},
		{name: "text that is shown turned around", bad: files{agent: "---\nbottle: dev\n---\nDo \u202enot\u202c do it.\n", bottle: md("")}, want: "a.md:4:4: not UTF-8 text, or a control", good: files{agent: "---\nbottle: dev\n---\nעשה זאת، افعلها.\n"}},
		{name: "terminal codes in a prompt", bad: files{agent: "---\nbottle: dev\n---\n\x1b]0;owned\x07\n", bottle: md("")}, want: "a.md:4:1: not UTF-8", good: files{agent: "---\nbottle: dev\n---\n\\x1b]0;\n"}},
		{name: "no front matter", bad: files{bottle: "egress: {}\n"}, want: "dev.md:1:1: has no front matter", good: files{bottle: md("egress: {}")}},
		{name: "front matter that does not end", bad: files{bottle: "---\nenv: {A: x}\n"}, want: "does not end", good: files{bottle: "---\nenv: {A: x}\n---"}},
		{name: "empty file", bad: files{bottle: ""}, want: "has no front matter", good: files{bottle: "---\n---\n"}},
		{name: "name that leads elsewhere", bottles: []string{"../../secret"}, bad: files{"secret.md": md("")}, want: "is no name of a bottle", good: files{bottle: md("")}},
		{name: "name of an agent that leads elsewhere", agent: "../agents/a", bad: files{bottle: md("")}, want: "is no name of an agent", good: files{bottle: md("")}},
		{name: "name with a NUL", bottles: []string{"dev\x00x"}, bad: files{bottle: md("")}, want: "is no name of a bottle", good: files{bottle: md("")}},
		{name: "name that is empty", bottles: []string{""}, bad: files{bottle: md("")}, want: "is no name of a bottle", good: files{bottle: md("")}},
		{name: "name with capitals", bottles: []string{"Dev"}, bad: files{"config/bottles/Dev.md": md(""), bottle: md("")}, want: "is no name of a bottle", good: files{bottle: md("")}},
		{name: "extends what leads elsewhere", bad: files{bottle: md("extends: ../agents/a")}, want: "dev.md:2:10: extends: \"../agents/a\" is no name of a bottle", good: files{bottle: md("extends: base"), "config/bottles/base.md": md("")}},
		{name: "extends what is not there", bad: files{bottle: md("extends: [bsae]"), "config/bottles/base.md": md("")}, want: "dev.md:2: extends[0]: no bottle is called \"bsae\"", good: files{bottle: md("extends: [base]")}},
		{name: "bottle of a repository", bottles: []string{"evil"}, bad: files{bottle: md(""), "repo/.carboy/bottles/evil.md": md("egress: {routes: [{host: '*.evil.example'}]}")},
			want: "which grants itself nothing", good: files{"config/bottles/evil.md": md("")}},
		{name: "bottle of a repository, extended", bad: files{bottle: md("extends: evil"), "repo/.bot-bottle/bottles/evil.md": md("")}, want: "repo/.bot-bottle/bottles/evil.md), which grants itself nothing", good: files{"home/.bot-bottle/bottles/evil.md": md("")}},
		{name: "agent that opens the network", bad: files{agent: md("bottle: dev\negress: {routes: [{host: evil.example}]}"), bottle: md("")}, want: "a.md:3:1: egress: this key is not used; it belongs into a bottle", good: files{agent: md("bottle: dev\nmodel: opus")}},
		{name: "agent that sets variables", bad: files{agent: md("env: {LD_PRELOAD: x}"), bottle: md("")}, want: "env: this key is not used", good: files{agent: md("bottle: dev\ntools: Bash")}},
		{name: "agent that binds the workspace", bad: files{agent: md("workspace: bind"), bottle: md("")}, want: "workspace: this key is not used", good: files{agent: md("bottle: dev\nmemory: project")}},
		{name: "agent that lifts limits", bad: files{agent: md("limits: {memory: 64GiB}"), bottle: md("")}, want: "limits: this key is not used", good: files{agent: md("bottle: dev")}},
		{name: "agent that chooses the program", bad: files{agent: md("agent_provider: {template: command, settings: {command: [sh]}}"), bottle: md("")}, want: "agent_provider: this key is not used", good: files{agent: md("bottle: dev")}},
		{name: "agent that extends", bad: files{agent: md("extends: dev"), bottle: md("")}, want: "extends: this key is not used", good: files{agent: md("bottle: dev")}},
		{name: "agent with repositories", bad: files{agent: md("git-gate: {repos: {x: {url: 'https://evil.example/x'}}}"), bottle: md("")}, want: "git-gate.repos: this key is not used; repositories belong into a bottle", good: files{agent: md("bottle: dev\ngit-gate: {user: {name: X}}")}},
		{name: "the user's own agent that widens", agent: "own", bad: files{"config/agents/own.md": md("supervise: false"), bottle: md("")}, want: "supervise: this key is not used", good: files{"config/agents/own.md": md("bottle: dev")}},
		{name: "skill that leads elsewhere", bad: files{agent: md("skills: [../../.ssh]"), bottle: md("")}, want: "a.md:2:10: skills[0]: \"../../.ssh\" is no name of a skill", good: files{agent: md("bottle: dev\nskills: [ssh]")}},
		{name: "bottle that is a list of evil names", bad: files{agent: md("bottle: [dev, /etc/passwd]"), bottle: md("")}, want: "is no name of a bottle", good: files{agent: md("bottle: [dev]")}},
		{name: "secret by its name", bad: files{bottle: md("env: {GITHUB_TOKEN: abc}")}, want: "dev.md:2:21: env.GITHUB_TOKEN: its name says that it is a secret", good: files{bottle: md("env: {GITHUB_USER: abc}")}},
		{name: "secret by its form", bad: files{bottle: md("env: {X: ghp_" + "0123456789abcdefABCDEF0123456789abcd}")}, want: "env.X: looks like a secret (", good: files{bottle: md("env: {X: ghp_user}")}},
		{name: "secret in an argument", bad: files{bottle: md("agent_provider: {template: command, settings: {command: [x, ghp_" + "0123456789abcdefABCDEF0123456789abcd]}}")}, want: "looks like a secret", good: files{bottle: md("agent_provider: {template: command, settings: {command: [x, y]}}")}},
		{name: "value where a variable's name belongs", bad: files{bottle: md("agent_provider: {auth_token: 'sk-ant-api03-secret'}")}, want: "auth_token: this is no name of an environment variable", good: files{bottle: md("agent_provider: {auth_token: ANTHROPIC_API_KEY}")}},
		{name: "image of the repository", bad: files{bottle: md("agent_provider: {image: 'oci:box'}")}, want: "image: would be looked for in the current directory", good: files{bottle: md("agent_provider: {image: 'oci:/srv/box'}")}},
		{name: "image of the repository, as a path", bad: files{bottle: md("agent_provider: {image: ./box}")}, want: "image: would be looked for in the current directory", good: files{bottle: md("agent_provider: {image: 'ghcr.io/x/box:1'}")}},
		{name: "variable that is none", bad: files{bottle: md("env: {'A=B': x}")}, want: "is no name of a variable", good: files{bottle: md("env: {A_B: x}")}},
		{name: "variable with a line end in its name", bad: files{bottle: md(`env: {"A\nB": x}`)}, want: "is no name of a variable", good: files{bottle: md(`env: {A: "x\ny"}`)}},
		{name: "number where text belongs", bad: files{bottle: md("env: {PORT: 8080}")}, want: "env.PORT: wanted text (in quotes", good: files{bottle: md("env: {PORT: '8080'}")}},
		{name: "no as text", bad: files{bottle: md("supervise: no")}, want: "wanted true or false", good: files{bottle: md("supervise: false")}},
		{name: "line end in an address of git", bad: files{bottle: md(`git-gate: {repos: {x: {url: "https://x.example/a\n[core]"}}}`)}, want: "has a line end in it", good: files{bottle: md(`git-gate: {repos: {x: {url: "https://x.example/a"}}}`)}},
		{name: "option in an address of git", bad: files{bottle: md(`git-gate: {repos: {x: {url: "ssh://-oProxyCommand=id/x"}}}`)}, want: "names no host", good: files{bottle: md(`git-gate: {repos: {x: {url: "ssh://x.example/x", host_key: K}}}`)}},
		{name: "program in an address of git", bad: files{bottle: md(`git-gate: {repos: {x: {url: "ext::sh -c id"}}}`)}, want: "has a character that no address has", good: files{bottle: md(`git-gate: {repos: {x: {url: "git@x.example:x.git", host_key: K}}}`)}},
		{name: "password in an address of git", bad: files{bottle: md(`git-gate: {repos: {x: {url: "https://u:hunter2@x.example/x"}}}`)}, want: "has a password in it", good: files{bottle: md(`git-gate: {repos: {x: {url: "https://u@x.example/x"}}}`)}},
		{name: "name of a repository that leads elsewhere", bad: files{bottle: md(`git-gate: {repos: {'../x': {url: "https://x.example/x"}}}`)}, want: "is no name of a repository", good: files{bottle: md(`git-gate: {repos: {'x.y': {url: "https://x.example/x"}}}`)}},
		{name: "route to everything", bad: files{bottle: md("egress: {routes: [{host: '*'}]}")}, want: "dev.md:2:26: egress.routes[0].host:", good: files{bottle: md("egress: {routes: [{host: '*.example.org'}]}")}},
		{name: "route that never decides", bad: files{bottle: md("egress: {routes: [{host: a.example, private: true}, {host: a.example}]}")}, want: "never decides", good: files{bottle: md("egress: {routes: [{host: a.example, private: true}, {host: b.example}]}")}},
		{name: "too many routes", bad: files{bottle: md("egress:\n  routes:\n" + strings.Repeat("  - {host: a.example}\n", 2001))}, want: "more than 2000 routes", good: files{bottle: md("egress:\n  routes:\n" + strings.Repeat("  - {host: a.example}\n", 2))}},
		{name: "memory that is too much to count", bad: files{bottle: md("limits: {memory: 99999999TiB}")}, want: "limits.memory: too large", good: files{bottle: md("limits: {memory: 1TiB}")}},
		{name: "limit below zero", bad: files{bottle: md("limits: {pids: -1}")}, want: "wanted a number from 1", good: files{bottle: md("limits: {pids: 1}")}},
		{name: "a long wait", bad: files{bottle: md("limits: {approval: 25h}")}, want: "is longer than a day", good: files{bottle: md("limits: {approval: 24h}")}},
		{name: "removed: runtime", bad: files{bottle: md("runtime: runsc")}, want: "dev.md:2:1: runtime: this key is not used; it is backend: NAME now", good: files{bottle: md("")}},
		{name: "removed: ssh", bad: files{bottle: md("ssh: {}")}, want: "ssh: this key is not used; keys and hosts of repositories are git-gate.repos", good: files{bottle: md("")}},
		{name: "removed: git", bad: files{bottle: md("git: {}")}, want: "git: this key is not used; repositories are git-gate.repos", good: files{bottle: md("git-gate: {}")}},
		{name: "removed: git_user", bad: files{bottle: md("git_user: {name: x}")}, want: "git_user: this key is not used; it is git-gate.user", good: files{bottle: md("git-gate: {user: {name: x}}")}},
		{name: "stale bot-bottle.json", bad: files{bottle: md(""), "home/bot-bottle.json": "{}"}, want: "is a manifest of the old form", good: files{"home/.bot-bottle/bottles/x.md": md("")}},
		{name: "bottle given twice", bottles: []string{"dev", "dev"}, bad: files{bottle: md("")}, want: "is given twice", good: files{bottle: md("")}},
	} {
		t.Run(x.name, func(t *testing.T) {
			base := files{agent: agentDev}
			for name, text := range x.bad {
				base[name] = text
			}
			w := newWorld(t, base)
			who := x.agent
			if who == "" {
				who = "a"
			}
			w.refuse(x.want, who, x.bottles...)
			for name, text := range x.good {
				w.write(name, text)
			}
			if strings.Contains(who, "/") {
				who = "a"
			}
			var bottles []string
			for _, b := range x.bottles {
				if validName(b) && len(bottles) == 0 {
					bottles = append(bottles, b)
				}
			}
			w.mustResolve(who, bottles...)
		})
	}
}

// What is wrong is never repeated where it may be the secret.
func TestValuesAreNotRepeated(t *testing.T) {
	const secret = "hunter2-correct-horse"
	for _, front := range []string{
		"agent_provider: {auth_token: " + secret + "}",
		"agent_provider: {template: pi, settings: {api_key_env: " + secret + "}}",
		"env: {MY_PASSWORD: " + secret + "}",
		"git-gate: {repos: {x: {url: 'https://u:" + secret + "@x.example/x'}}}",
		"git-gate: {repos: {x: {url: 'https://x.example/x', key: {provider: gitea, forge_token_env: " + secret + "}}}}",
		"egress: {routes: [{host: x.example, token_env: " + secret + "}]}",
	} {
		w := newWorld(t, map[string]string{"config/bottles/dev.md": md(front), "config/agents/a.md": agentDev})
		_, err := w.resolve("a")
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", front, err)
		}
	}
}

// A file of bot-bottle's that was valid there is taken, with a warning; and the
// explanation does not show the value.
func TestLegacySecrets(t *testing.T) {
	const text = "env: {MY_PASSWORD: hunter2-correct, PLAIN: x}\nagent_provider: {settings: {startup_args: [--key=ghp_0123456789abcdefABCDEF0123456789abcd]}}"
	w := newWorld(t, map[string]string{"home/.bot-bottle/bottles/dev.md": md(text), "config/agents/a.md": agentDev})
	e := w.mustResolve("a")
	if len(e.Warnings) != 2 || e.Env["MY_PASSWORD"].V != "hunter2-correct" {
		t.Errorf("%v", e.Warnings)
	}
	if all := fmt.Sprint(e.Entries(), e.Warnings); strings.Contains(all, "hunter2") || strings.Contains(all, "ghp_") || !strings.Contains(all, "PLAIN") {
		t.Error(all)
	}
	w.write("config/bottles/dev.md", md(text))
	w.refuse("its name says that it is a secret", "a")
}

// Links: those of a repository lead nowhere, those of the user where the user says,
// but not to where the repository decides.
func TestLinks(t *testing.T) {
	w := newWorld(t, map[string]string{
		"config/bottles/dev.md": md(""), "config/agents/own.md": agentDev,
		"key": "---\nbottle: dev\n---\nPRIVATE KEY\n", "elsewhere/dev.md": md("env: {A: x}"), "repo/trap.md": md("egress: {routes: [{host: evil.example}]}"),
		"repo/real/a.md": agentDev,
	})
	link := func(to, from string) {
		t.Helper()
		w.mkdir(filepath.Dir(from))
		os.RemoveAll(w.path(from))
		if err := os.Symlink(to, w.path(from)); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct{ to, from string }{
		{w.path("key"), "repo/.carboy/agents/a.md"}, {"../../../key", "repo/.carboy/agents/a.md"}, {"../../real/a.md", "repo/.carboy/agents/a.md"},
		{"/proc/self/root" + w.path("key"), "repo/.carboy/agents/a.md"},
	} {
		link(x.to, x.from)
		w.refuse("a.md: is a symbolic link or lies behind one", "a")
		os.RemoveAll(w.path("repo/.carboy"))
	}
	for _, x := range []struct{ to, from string }{{"../real", "repo/.carboy/agents"}, {w.path("elsewhere"), "repo/.carboy"}} {
		link(x.to, x.from)
		w.refuse("lies behind one", "a")
		os.RemoveAll(w.path("repo/.carboy"))
	}
	// One that leads nowhere, and one that turns in a circle.
	link("nowhere", "repo/.bot-bottle/agents/a.md")
	w.refuse("is a symbolic link", "a")
	link("a.md", "repo/.bot-bottle/agents/a.md")
	w.refuse("is a symbolic link", "a")
	os.RemoveAll(w.path("repo/.bot-bottle"))
	w.write("repo/.bot-bottle/agents/a.md", agentDev)
	w.mustResolve("a")

	link(w.path("elsewhere/dev.md"), "config/bottles/dev.md")
	if e := w.mustResolve("own"); e.Env["A"].V != "x" {
		t.Error("a link of the user's own is not followed")
	}
	link(w.path("repo/trap.md"), "config/bottles/dev.md")
	w.refuse("where an agent may have written it", "own")
	os.RemoveAll(w.path("config/bottles"))
	w.write("repo/dotfiles/dev.md", md("egress: {routes: [{host: evil.example}]}"))
	link(w.path("repo/dotfiles"), "config/bottles")
	w.refuse("where an agent may have written it", "own")
	// Two links, the second of them in the repository.
	os.RemoveAll(w.path("config/bottles"))
	link(w.path("elsewhere/dev.md"), "repo/hop.md")
	link(w.path("repo/hop.md"), "config/bottles/dev.md")
	if e := w.mustResolve("own"); e.Env["A"].V != "x" {
		t.Error("what is read lies outside of the repository")
	}
	link("nowhere", "config/bottles/dev.md")
	w.refuse("is a link that leads nowhere", "own")
}

// Somebody works in the home directory: its .bot-bottle is the user's, under
// whichever name.
func TestHomeIsTheRepository(t *testing.T) {
	w := newWorld(t, map[string]string{"home/.bot-bottle/bottles/dev.md": md(""), "home/.bot-bottle/agents/a.md": agentDev})
	where := w.where()
	where.Repo = where.Home
	s, err := Open(where)
	if err != nil {
		t.Fatal(err)
	}
	e, err := s.Resolve("a", nil)
	if err != nil || e.Agent.InRepo || len(e.Warnings) != 0 {
		t.Fatalf("%v, %+v", err, e)
	}
}

// What is no file does not hang, and is no manifest.
func TestNoRegularFiles(t *testing.T) {
	w := newWorld(t, map[string]string{"config/bottles/dev.md": md(""), "config/agents/own.md": agentDev})
	for _, name := range []string{"config/bottles/dev.md", "repo/.carboy/agents/own.md"} {
		w.mkdir(filepath.Dir(name))
		os.Remove(w.path(name))
		if err := unix.Mkfifo(w.path(name), 0o644); err != nil {
			t.Fatal(err)
		}
		w.refuse("is not a regular file", "own")
		os.Remove(w.path(name))
		if err := os.Mkdir(w.path(name), 0o755); err != nil {
			t.Fatal(err)
		}
		w.refuse("is not a regular file", "own")
		os.Remove(w.path(name))
		w.write(name, map[bool]string{true: agentDev, false: md("")}[strings.Contains(name, "agents")])
		w.mustResolve("own")
	}
	os.RemoveAll(w.path("config/bottles"))
	w.write("config/bottles", "x")
	w.refuse("config/bottles: is not a directory", "own")
}

// Whoever else can write to a manifest would grant.
func TestOthersCanWrite(t *testing.T) {
	w := newWorld(t, map[string]string{"config/bottles/dev.md": md(""), "home/.bot-bottle/agents/a.md": agentDev})
	for _, name := range []string{"config/bottles/dev.md", "config/bottles", "config", "home/.bot-bottle", "home/.bot-bottle/agents", "home/.bot-bottle/agents/a.md"} {
		fi, err := os.Stat(w.path(name))
		if err != nil {
			t.Fatal(err)
		}
		for _, bits := range []os.FileMode{0o020, 0o002} {
			if err := os.Chmod(w.path(name), fi.Mode().Perm()|bits); err != nil {
				t.Fatal(err)
			}
			w.refuse(name+": can be written by others", "a")
		}
		os.Chmod(w.path(name), fi.Mode().Perm())
		w.mustResolve("a")
	}
	// A repository may belong to anybody: it grants nothing.
	w.write("repo/.carboy/agents/b.md", agentDev)
	os.Chmod(w.path("repo/.carboy/agents/b.md"), 0o666)
	w.mustResolve("b")
}

// A manifest that another user owns is that user's word.
func TestOfAnotherUser(t *testing.T) {
	testenv.Root(t)
	w := newWorld(t, map[string]string{"config/bottles/dev.md": md(""), "config/agents/a.md": agentDev})
	if err := os.Chown(w.path("config/bottles/dev.md"), 65534, 65534); err != nil {
		t.Fatal(err)
	}
	w.refuse("belongs to user 65534", "a")
}

// A repository can have as many bottles and odd names as it likes: what it causes is
// bounded, and nothing of it is taken.
func TestRepositoryIsBounded(t *testing.T) {
	w := newWorld(t, map[string]string{"config/bottles/dev.md": md(""), "config/agents/a.md": agentDev})
	for i := range 300 {
		w.write(fmt.Sprintf("repo/.carboy/bottles/b%d.md", i), md(""))
	}
	w.write("repo/.bot-bottle/bottles/\x1b[2J\n.md", md(""))
	w.write("repo/bot-bottle.json", "{}")
	e := w.mustResolve("a")
	if n := len(e.Warnings); n < maxIgnored || n > maxWarned {
		t.Errorf("%d warnings", n)
	}
	if !strings.Contains(e.Warnings[0].Error(), "a bottle in a repository is ignored") {
		t.Error(e.Warnings[0])
	}
}

// One wrong bottle that nobody asked for is in nobody's way.
func TestUnusedFilesAreNotRead(t *testing.T) {
	w := newWorld(t, map[string]string{"config/bottles/dev.md": md(""), "config/bottles/broken.md": "\xff", "config/agents/a.md": agentDev})
	if e := w.mustResolve("a"); len(e.Files) != 2 {
		t.Error(e.Files)
	}
	w.refuse("broken.md:1:1: not UTF-8", "a", "dev", "broken")
}

// All that is wrong in a file is said at once.
func TestAllProblems(t *testing.T) {
	w := newWorld(t, map[string]string{"config/bottles/dev.md": md("supervise: maybe\nenv: {A: 1}\nlimits: {pids: x}\nworkspace: hostt"), "config/agents/a.md": agentDev})
	_, err := w.resolve("a")
	var e document.Error
	if !errors.As(err, &e) || len(e) != 4 {
		t.Fatalf("%v", err)
	}
}
