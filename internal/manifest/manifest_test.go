package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/routes"
)

// world is a configuration directory, a home and a repository.
type world struct {
	t   testing.TB
	dir string
}

// newWorld writes files whose names begin with config/, home/ or repo/.
func newWorld(t testing.TB, files map[string]string) *world {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t, dir}
	for _, d := range []string{"config", "home", "repo"} {
		w.mkdir(d)
	}
	for name, text := range files {
		w.write(name, text)
	}
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) mkdir(name string) {
	w.t.Helper()
	if err := os.MkdirAll(w.path(name), 0o755); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) write(name, text string) {
	w.t.Helper()
	w.mkdir(filepath.Dir(name))
	if err := os.WriteFile(w.path(name), []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Chmod(w.path(name), 0o644); err != nil { // whatever the umask
		w.t.Fatal(err)
	}
}

func (w *world) where() Where {
	return Where{Config: w.path("config"), Home: w.path("home"), Repo: w.path("repo")}
}

func (w *world) resolve(agent string, bottles ...string) (*Effective, error) {
	s, err := Open(w.where())
	if err != nil {
		return nil, err
	}
	return s.Resolve(agent, bottles)
}

func (w *world) mustResolve(agent string, bottles ...string) *Effective {
	w.t.Helper()
	e, err := w.resolve(agent, bottles...)
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

// refuse holds a resolution to an error that says want.
func (w *world) refuse(want, agent string, bottles ...string) {
	w.t.Helper()
	e, err := w.resolve(agent, bottles...)
	if err == nil {
		w.t.Fatalf("taken: %+v; wanted %q", e.Entries(), want)
	}
	text := err.Error()
	var m *MissingError
	if errors.As(err, &m) {
		text += "; " + m.Advice
	}
	if !strings.Contains(text, want) {
		w.t.Fatalf("%v\nwanted %q", text, want)
	}
}

func md(front string) string { return "---\n" + front + "\n---\n" }

const agentDev = "---\nbottle: dev\n---\nDo it.\n"

func find(t *testing.T, e *Effective, key string) Entry {
	t.Helper()
	for _, x := range e.Entries() {
		if x.Key == key {
			return x
		}
	}
	t.Fatalf("no %s in %v", key, e.Entries())
	return Entry{}
}

// Each key, with the place that it came from.
func TestEveryKey(t *testing.T) {
	w := newWorld(t, map[string]string{
		"config/bottles/base.md": md("env: {CI: '0', LANG: C}\negress: {log: 0}\nlimits: {pids: 9, memory: 1GiB}"),
		"config/bottles/dev.md": md(`extends: [base]
env:
  CI: "1"
  WHO: ?Who are you
agent_provider:
  template: claude
  image: node:22
  auth_token: ANTHROPIC_API_KEY
  settings:
    startup_args: [--verbose]
git-gate:
  user:
    name: Bottle
    email: b@example.org
  repos:
    one:
      url: ssh://git@example.org/one.git
      identity: ~/.ssh/one
      host_key: ssh-ed25519 AAAA
    two:
      url: git@example.org:two.git
      host_key: ssh-ed25519 BBBB
      key: {provider: gitea, forge_token_env: GITEA_TOKEN, api_url: "https://example.org/api/v1"}
egress:
  log: 2
  routes:
    - host: api.anthropic.com
    - host: "*.example.org"
      private: true
supervise: false
limits:
  memory: 2GiB
  disk: 3GiB
  output: 1MiB
  cpus: 2
  timeout: 90m
  approval: 10m
  egress_bytes: 5000
workspace: copy`),
		"config/agents/rev.md": "---\nbottle: dev\nskills: [a-skill, other]\ngit-gate: {user: {name: Rev}}\nname: Reviewer\ndescription: looks\nmodel: opus\ncolor: red\ntools: [Read, Grep]\nmemory: user\n---\n\n\nLook at it.\n\nWell.\n",
	})
	e := w.mustResolve("rev")
	got := map[string]string{}
	for _, x := range e.Entries() {
		v := fmt.Sprint(x.Value)
		if d, ok := x.Value.(routes.Description); ok {
			v = d.Host
		}
		from := strings.TrimPrefix(x.From.String(), w.dir+"/config/")
		for _, o := range x.Over {
			from += " over " + strings.TrimPrefix(o.String(), w.dir+"/config/")
		}
		got[x.Key] = v + " @ " + from
	}
	want := map[string]string{
		"bottle[0]":                            "dev @ agents/rev.md:2",
		"agent_provider.template":              "claude @ bottles/dev.md:7",
		"agent_provider.image":                 "node:22 @ bottles/dev.md:8",
		"agent_provider.auth_token":            "ANTHROPIC_API_KEY @ bottles/dev.md:9",
		"agent_provider.settings.startup_args": "[--verbose] @ bottles/dev.md:11",
		"env.CI":                               "1 @ bottles/dev.md:4 over bottles/base.md:2",
		"env.LANG":                             "C @ bottles/base.md:2",
		"env.WHO":                              "?Who are you @ bottles/dev.md:5",
		"egress.log":                           "2 @ bottles/dev.md:26 over bottles/base.md:3",
		"egress.routes[0]":                     "api.anthropic.com @ bottles/dev.md:28",
		"egress.routes[1]":                     "*.example.org @ bottles/dev.md:29",
		"git-gate.user.name":                   "Rev @ agents/rev.md:4 over bottles/dev.md:14",
		"git-gate.user.email":                  "b@example.org @ bottles/dev.md:15",
		"git-gate.repos.one.url":               "ssh://git@example.org/one.git @ bottles/dev.md:18",
		"git-gate.repos.one.identity":          "~/.ssh/one @ bottles/dev.md:19",
		"git-gate.repos.one.host_key":          "ssh-ed25519 AAAA @ bottles/dev.md:20",
		"git-gate.repos.two.url":               "git@example.org:two.git @ bottles/dev.md:22",
		"git-gate.repos.two.host_key":          "ssh-ed25519 BBBB @ bottles/dev.md:23",
		"git-gate.repos.two.key":               "gitea, token of GITEA_TOKEN, at https://example.org/api/v1 @ bottles/dev.md:24",
		"supervise":                            "false @ bottles/dev.md:31",
		"limits.memory":                        "2147483648 @ bottles/dev.md:33 over bottles/base.md:4",
		"limits.pids":                          "9 @ bottles/base.md:4",
		"limits.disk":                          "3221225472 @ bottles/dev.md:34",
		"limits.cpus":                          "2 @ bottles/dev.md:36",
		"limits.output":                        "1048576 @ bottles/dev.md:35",
		"limits.timeout":                       "1h30m0s @ bottles/dev.md:37",
		"limits.approval":                      "10m0s @ bottles/dev.md:38",
		"limits.egress_bytes":                  "5000 @ bottles/dev.md:39",
		"workspace":                            "copy @ bottles/dev.md:40",
		"skills[0]":                            "a-skill @ agents/rev.md:3",
		"skills[1]":                            "other @ agents/rev.md:3",
		"name":                                 "Reviewer @ agents/rev.md:5",
		"description":                          "looks @ agents/rev.md:6",
		"model":                                "opus @ agents/rev.md:7",
		"color":                                "red @ agents/rev.md:8",
		"tools":                                "Read, Grep @ agents/rev.md:9",
		"memory":                               "user @ agents/rev.md:10",
		"prompt":                               "Look at it.\n\nWell. @ agents/rev.md:14",
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s: %q, wanted %q", k, got[k], v)
		}
	}
	for k, v := range got {
		if _, ok := want[k]; !ok {
			t.Errorf("%s: %q was not expected", k, v)
		}
	}
	if len(e.Files) != 3 || len(e.Warnings) != 0 {
		t.Errorf("files %v, warnings %v", e.Files, e.Warnings)
	}
}

func TestDefaults(t *testing.T) {
	w := newWorld(t, map[string]string{"config/bottles/default.md": md(""), "config/agents/a.md": md("")})
	e := w.mustResolve("a")
	if e.Provider.Template.V != "claude" || !e.Supervise.V || e.Workspace.V != "overlay" || e.Egress.Log.V != routes.DefaultLog || len(e.Egress.Routes) != 0 || len(e.Env) != 0 {
		t.Errorf("%+v", e)
	}
	if from := find(t, e, "supervise").From; !from.IsZero() || from.String() != "default" {
		t.Errorf("a default came from %v", from)
	}
}

// Where things are looked for, and which comes first.
func TestSearchOrder(t *testing.T) {
	bottle := func(who string) string { return md("env: {WHO: " + who + "}") }
	agent := func(who string) string { return "---\nbottle: dev\n---\n" + who + "\n" }
	files := []struct{ name, text string }{
		{"repo/.carboy/agents/a.md", agent("repo-carboy")},
		{"repo/.bot-bottle/agents/a.md", agent("repo-bot-bottle")},
		{"config/agents/a.md", agent("config")},
		{"home/.bot-bottle/agents/a.md", agent("home")},
	}
	all := map[string]string{"config/bottles/dev.md": bottle("config"), "home/.bot-bottle/bottles/dev.md": bottle("home")}
	for _, f := range files {
		all[f.name] = f.text
	}
	w := newWorld(t, all)
	for i, f := range files {
		e := w.mustResolve("a")
		if e.Agent.File != w.path(f.name) || e.Agent.InRepo != (i < 2) || e.Agent.Prompt.V == "" {
			t.Fatalf("%s instead of %s", e.Agent.File, f.name)
		}
		shadowed := slices.ContainsFunc(e.Warnings, func(p document.Problem) bool { return strings.Contains(p.What, "takes the place of your own") })
		if shadowed != (i < 2) {
			t.Errorf("%s: warnings %v", f.name, e.Warnings)
		}
		if e.Env["WHO"].V != "config" {
			t.Errorf("the bottle is %s", e.Env["WHO"].V)
		}
		os.Remove(w.path(f.name))
	}
	w.refuse(`no agent is called "a"`, "a")
	w.write("config/agents/a.md", agent("x"))
	os.Remove(w.path("config/bottles/dev.md"))
	if e := w.mustResolve("a"); e.Env["WHO"].V != "home" {
		t.Errorf("the bottle is %s", e.Env["WHO"].V)
	}
}

func TestNames(t *testing.T) {
	w := newWorld(t, map[string]string{
		"config/agents/b.md": "", "home/.bot-bottle/agents/a.md": "", "repo/.carboy/agents/c.md": "", "repo/.carboy/agents/b.md": "",
		"config/agents/README.md": "", "config/agents/Not_One.md": "", "config/agents/x.txt": "", "repo/.carboy/bottles/no.md": "", "config/bottles/yes.md": "",
	})
	s, err := Open(w.where())
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Names("agents"); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("agents %v", got)
	}
	if got := s.Names("bottles"); !slices.Equal(got, []string{"yes"}) {
		t.Errorf("bottles %v", got)
	}
	if n := len(s.warned); n != 2 { // no.md of the repository, Not_One.md
		t.Errorf("%d warnings: %v", n, s.warned)
	}
}

func TestMergeOrder(t *testing.T) {
	w := newWorld(t, map[string]string{
		"config/bottles/a.md": md("env: {X: a, A: a}\nworkspace: bind"),
		"config/bottles/b.md": md("extends: a\nenv: {X: b, B: b}"),
		"config/bottles/c.md": md("extends: [a]\nenv: {C: c}"),
		"config/bottles/d.md": md("extends: [b, c]"),
		"config/bottles/e.md": md("extends: [c, b]\nworkspace: none"),
		"config/agents/x.md":  md("bottle: [d]"),
	})
	env := func(e *Effective) string {
		var out []string
		for _, x := range e.Entries() {
			if n, ok := strings.CutPrefix(x.Key, "env."); ok {
				out = append(out, n+"="+x.Value.(string))
			}
		}
		return strings.Join(out, " ")
	}
	// c is all that c comes to, so what it has from a is over b's.
	if got := env(w.mustResolve("x")); got != "A=a B=b C=c X=a" {
		t.Errorf("d: %s", got)
	}
	if got := env(w.mustResolve("x", "e")); got != "A=a B=b C=c X=b" {
		t.Errorf("e: %s", got)
	}
	// The command line's take the place of the agent's own.
	if got := env(w.mustResolve("x", "a")); got != "A=a X=a" {
		t.Errorf("a: %s", got)
	}
	e := w.mustResolve("x", "e", "b")
	if e.Workspace.V != "bind" || e.Workspace.From.File != w.path("config/bottles/a.md") {
		t.Errorf("%+v", e.Workspace)
	}
	if e := w.mustResolve("x", "b", "e"); e.Workspace.V != "none" {
		t.Errorf("%+v", e.Workspace)
	}
}

func TestMergeRoutes(t *testing.T) {
	w := newWorld(t, map[string]string{
		"config/bottles/a.md":       md("egress: {routes: [{host: same.example}, {host: a.example}, {host: kind.example}, {host: paths.example, matches: [{paths: [{value: /a}]}]}]}"),
		"config/bottles/b.md":       md("egress: {routes: [{host: b.example}, {host: same.example}, {host: kind.example, inspect: false}, {host: paths.example, matches: [{paths: [{value: /b}]}]}]}"),
		"config/bottles/private.md": md("egress: {routes: [{host: a.example, private: true}]}"),
		"config/bottles/nothing.md": md("egress: {routes: []}\nenv: {}"),
		"config/agents/x.md":        md("bottle: [a, b]"),
	})
	hosts := func(list []Route) string {
		var out []string
		for _, r := range list {
			s := r.Route.String()
			for _, m := range r.Options().Matches {
				s += m.Paths[0].Value()
			}
			out = append(out, s)
		}
		return strings.Join(out, " ")
	}
	e := w.mustResolve("x")
	// Later ones first, since the first that a request meets decides.
	if got := hosts(e.Egress.Routes); got != "b.example same.example kind.example paths.example/b a.example paths.example/a" {
		t.Errorf("routes %s", got)
	}
	if got := hosts(e.Egress.Replaced); got != "kind.example" || e.Egress.Replaced[0].By.File != w.path("config/bottles/b.md") {
		t.Errorf("replaced %s", got)
	}
	table, err := policy.Compile(func() (rs []policy.Route) {
		for _, r := range e.Egress.Routes {
			rs = append(rs, r.Route)
		}
		return rs
	}()...)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/a", "/b"} {
		if v := table.DecideRequest("paths.example", 443, &policy.Request{Method: "GET", Path: path}); !v.Allowed {
			t.Errorf("%s is refused: composing took something away", path)
		}
	}
	if v := table.DecideRequest("paths.example", 443, &policy.Request{Method: "GET", Path: "/c"}); v.Allowed {
		t.Error("/c is allowed: composing added something")
	}
	if e := w.mustResolve("x", "b", "a"); hosts(e.Egress.Replaced) != "kind.example" || e.Egress.Replaced[0].From.File != w.path("config/bottles/b.md") {
		t.Errorf("replaced %v", hosts(e.Egress.Replaced))
	}
	// Empty lists take nothing away.
	if e := w.mustResolve("x", "b", "a", "nothing"); hosts(e.Egress.Routes) != "same.example a.example kind.example paths.example/a b.example paths.example/b" {
		t.Errorf("routes %s", hosts(e.Egress.Routes))
	}
	if e := w.mustResolve("x", "a", "private"); !strings.HasPrefix(hosts(e.Egress.Routes), "a.example same.example") || !e.Egress.Routes[0].Private() {
		t.Errorf("routes %s", hosts(e.Egress.Routes))
	}
	if e := w.mustResolve("x", "private", "a"); e.Egress.Routes[1].Private() {
		t.Error("a later bottle says that the host is not private, and it is")
	}
}

func TestMergeRepos(t *testing.T) {
	w := newWorld(t, map[string]string{
		"config/bottles/a.md":     md("git-gate: {user: {name: A, email: a@x}, repos: {one: {url: 'ssh://x.example/one', host_key: K}, two: {url: 'ssh://x.example/two', host_key: K, identity: /k}}}"),
		"config/bottles/b.md":     md("extends: a\ngit-gate: {user: {name: B}, repos: {one: {identity: /i}, three: {url: 'file:///srv/three'}}}"),
		"config/bottles/none.md":  md("extends: a\ngit-gate: {repos: {}}"),
		"config/bottles/key.md":   md("extends: a\ngit-gate: {repos: {two: {key: {provider: static, path: /k2}}}}"),
		"config/bottles/lost.md":  md("git-gate: {repos: {four: {identity: /i}}}"),
		"config/bottles/again.md": md("extends: none\ngit-gate: {repos: {five: {url: 'https://x.example/five'}}}"),
		"config/agents/x.md":      md("git-gate: {user: {email: agent@x}}"),
	})
	e := w.mustResolve("x", "b")
	one := e.Git.Repos["one"]
	if one.URL.V != "ssh://x.example/one" || one.HostKey.V != "K" || one.Identity.V != "/i" || one.URL.From.File != w.path("config/bottles/a.md") || len(e.Git.Repos) != 3 {
		t.Errorf("%+v", e.Git.Repos)
	}
	if e.User.Name.V != "B" || e.User.Email.V != "agent@x" || len(e.User.Email.Over) != 1 {
		t.Errorf("%+v", e.User)
	}
	if e := w.mustResolve("x", "none"); len(e.Git.Repos) != 0 || e.User.Name.V != "A" {
		t.Errorf("%+v", e.Git)
	}
	if e := w.mustResolve("x", "again"); len(e.Git.Repos) != 1 {
		t.Errorf("%+v", e.Git)
	}
	if two := w.mustResolve("x", "key").Git.Repos["two"]; two.Identity.IsSet() || two.Key.V.Path != "/k2" {
		t.Errorf("%+v", two)
	}
	w.refuse("lost.md:2:26: git-gate.repos.four: needs url", "x", "lost")
	for i, c := range []struct{ repo, want string }{
		{"url: 'git@x.example:a.git'", "needs host_key"},
		{"url: 'ssh://x.example/a', host_key: K, token_env: A_TOKEN", "token_env is for https"},
		{"url: 'https://x.example/a', identity: /k", "identity is for ssh"},
		{"url: 'https://x.example/a', key: {provider: static, path: /k}", "key is for ssh"},
		{"url: 'https://x.example/a', host_key: K", "host_key is for ssh"},
		{"url: 'https://x.example/a', token_user: me", "token_user needs token_env"},
		{"url: 'https://x.example/a', token_env: 'not a name'", "no name of an environment variable"},
		{"url: 'https://x.example/a', token_env: A_TOKEN, token_user: 'a:b'", "no user's name"},
		{"url: 'ssh://x.example/a', host_key: K, aliases: ['a/b']", "is no name of a host"},
		{"url: 'file:///srv/a', aliases: [x]", "aliases are of a host"},
		{"url: 'http://x.example/a'", "nothing that says who answers"},
		{"url: 'git://x.example/a'", "nothing that says who answers"},
		{"url: 'git@x.example:a.git', host_key: K, key: {provider: gitae, forge_token_env: T}", "did you mean gitea?"},
		{"url: 'https://x.example/a'}, b: {url: 'https://x.example/a'", "is the address of a, too"},
		{"url: 'https://x.example/a'}, b.git-x: {url: 'https://x.example/b'", "no name of a repository"},
	} {
		name := fmt.Sprintf("bad-%d", i)
		w.write("config/bottles/"+name+".md", md("git-gate: {repos: {a: {"+c.repo+"}}}"))
		w.refuse(c.want, "x", name)
	}
	w.write("config/bottles/good.md", md("git-gate: {repos: {a: {url: 'https://x.example/a', token_env: A_TOKEN, token_user: me}, b: {url: 'git@x.example:b.git', host_key: K, key: {provider: github, forge_token_env: T}}, c: {url: 'file:///srv/c'}, d: {url: 'ssh://git@x.example/d', host_key: K, aliases: [forge, x]}}}"))
	e = w.mustResolve("x", "good")
	if e.Git.Repos["a"].Transport() != overHTTPS || e.Git.Repos["b"].Transport() != OverSSH || e.Git.Repos["c"].Transport() != overFile || e.Git.Repos["a"].TokenUser.V != "me" || len(e.Git.Repos["d"].Aliases.V) != 2 {
		t.Errorf("%+v", e.Git.Repos)
	}
	// bot-bottle took such a one, and served nothing of it.
	w.write("home/.bot-bottle/bottles/old.md", md("git-gate: {repos: {a: {url: 'git@x.example:a.git', identity: /k}}}"))
	if e := w.mustResolve("x", "old"); len(e.Warnings) != 1 || !strings.Contains(e.Warnings[0].Error(), "neither fetched from nor pushed to") {
		t.Errorf("%v", e.Warnings)
	}
}

func TestMergeProvider(t *testing.T) {
	w := newWorld(t, map[string]string{
		"config/bottles/claude.md":  md("agent_provider: {template: claude, auth_token: T_TOKEN, image: i, settings: {startup_args: [-a]}}"),
		"config/bottles/codex.md":   md("extends: claude\nagent_provider: {template: codex, forward_host_credentials: true}"),
		"config/bottles/token.md":   md("extends: claude\nagent_provider: {auth_token: OTHER_TOKEN, dockerfile: d}"),
		"config/bottles/noword.md":  md("agent_provider: {auth_token: T_TOKEN}"),
		"config/bottles/codex2.md":  md("extends: noword\nagent_provider: {template: codex}"),
		"config/bottles/wrong.md":   md("extends: claude\nagent_provider: {forward_host_credentials: true}"),
		"config/bottles/pi.md":      md("agent_provider: {template: pi, settings: {provider: own, api: openai-completions, base_url: 'http://h:1/v1', models: [m], api_key_env: K_KEY, context_window: 8192, max_tokens: 100, max_tokens_field: max_tokens}}"),
		"config/bottles/pikey.md":   md("extends: pi\nagent_provider: {settings: {api_key: ollama}}"),
		"config/bottles/command.md": md("agent_provider: {template: command, settings: {command: [aider, '{prompt}']}}"),
		"config/agents/x.md":        md("{}"),
	})
	p := w.mustResolve("x", "codex").Provider
	if p.Template.V != "codex" || p.AuthToken.IsSet() || p.Settings.StartupArgs.IsSet() || p.Image.V != "i" || len(p.Template.Over) != 1 {
		t.Errorf("%+v", p)
	}
	p = w.mustResolve("x", "token").Provider
	if p.AuthToken.V != "OTHER_TOKEN" || p.Image.IsSet() || p.Dockerfile.V != "d" || p.Settings.StartupArgs.V[0] != "-a" {
		t.Errorf("%+v", p)
	}
	if p = w.mustResolve("x", "codex2").Provider; p.AuthToken.IsSet() {
		t.Errorf("%+v", p)
	}
	if p = w.mustResolve("x", "pikey").Provider; p.Settings.Pi.APIKeyEnv.IsSet() || p.Settings.Pi.APIKey.V != "ollama" || p.Settings.Pi.ContextWindow.V != 8192 {
		t.Errorf("%+v", p)
	}
	if p = w.mustResolve("x", "command").Provider; !slices.Equal(p.Settings.Command.V, []string{"aider", "{prompt}"}) {
		t.Errorf("%+v", p)
	}
	w.refuse("forward_host_credentials: belongs to the template codex, and this is claude", "x", "wrong")
}

// What the routes of an explanation say is what a route file would.
func TestRoutesRoundTrip(t *testing.T) {
	const text = `
routes:
  - host: api.example.com
  - host: 10.1.2.3:5432/tcp
  - host: "[2001:db8::1]:443"
  - {host: "*.x.example:8443", private: true, limits: {bytes_in: 5, bytes_out: 6, requests_per_minute: 7}}
  - {host: a.example, inspect: false, limits: {bytes_out: 1}}
  - host: b.example
    auth_scheme: header
    auth_field: X-Key
    token_env: B_KEY
    insecure: true
    git: {fetch: true}
    upstream: http://127.0.0.1:80
    matches:
      - paths: [{value: /v1}, {type: exact, value: /e}, {type: regex, value: "/r[0-9]"}]
        methods: [GET, POST]
        headers: [{name: accept, value: x}, {name: x-y, type: regex, value: "z+"}]
    dlp: {outbound_detectors: [known_secrets, entropy], inbound_detectors: false, outbound_on_match: redact}
  - {host: c.example, dlp: {outbound_detectors: false, inbound_on_match: report}}
  - host: d.example
    auth_scheme: oauth2
    oauth: {token_url: "https://t.example/", client_id: i, client_secret_env: S_SECRET, refresh_token_file: /f, scopes: [a, b], client_auth: body}
`
	f, err := routes.Parse("r", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var list []routes.Description
	for _, r := range f.Routes {
		list = append(list, routes.Describe(r))
	}
	b, err := json.Marshal(map[string]any{"routes": list})
	if err != nil {
		t.Fatal(err)
	}
	again, err := routes.Parse("again", b)
	if err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	for i, r := range f.Routes {
		if !reflect.DeepEqual(r.WithRule(""), again.Routes[i].WithRule("")) {
			t.Errorf("%s is not what it was: %+v", r, list[i])
		}
	}
}

// TestBackendAndIsolation: the later backend counts, and the strongest isolation.
func TestBackendAndIsolation(t *testing.T) {
	w := newWorld(t, map[string]string{
		"config/agents/a.md":         md(""),
		"config/bottles/base.md":     md("backend: docker\nisolation: container"),
		"config/bottles/strong.md":   md("extends: base\nisolation: user-kernel"),
		"config/bottles/weak.md":     md("isolation: container\nbackend: microvm"),
		"config/bottles/silent.md":   md(""),
		"config/bottles/emulated.md": md("isolation: emulated-vm"),
	})
	for _, x := range []struct {
		bottles            []string
		backend, isolation string
		line               string
	}{
		{[]string{"silent"}, "", "", "default"},
		{[]string{"base"}, "docker", "container", "base.md:3"},
		{[]string{"strong"}, "docker", "user-kernel", "strong.md:3"},
		{[]string{"strong", "weak"}, "microvm", "user-kernel", "strong.md:3"},
		{[]string{"weak", "strong"}, "docker", "user-kernel", "strong.md:3"},
		{[]string{"weak", "emulated", "silent"}, "microvm", "emulated-vm", "emulated.md:2"},
	} {
		e, err := w.resolve("a", x.bottles...)
		if err != nil {
			t.Fatal(err)
		}
		if e.Backend.V != x.backend || e.Isolation.V != x.isolation || !strings.HasSuffix(e.Isolation.From.String(), x.line) {
			t.Errorf("%v: backend %q, isolation %q of %s", x.bottles, e.Backend.V, e.Isolation.V, e.Isolation.From)
		}
	}
}
