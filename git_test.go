package carboy

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/gitgate/gittest"
	"github.com/carboy/carboy/internal/receipt"
)

const (
	gitToken   = "upstream-token-Zq81xkLmP04wT9"
	forgeToken = "forge-token-8Zq1xkLmP04wTy7"
)

// gitWorld is a user with a bottle whose repositories are at an ssh server, for which a
// forge makes deploy keys, at an https server, and on this machine.
type gitWorld struct {
	*world
	base            string
	vars            map[string]string
	sshd            *gittest.SSH
	forge           *gittest.Forge
	app, lib, local string // bare repositories
	webURL          string
}

func newGitWorld(t *testing.T) *gitWorld {
	t.Helper()
	sshd := gittest.StartSSH(t, "AcceptEnv GIT_PROTOCOL")
	top := t.TempDir()
	g := &gitWorld{sshd: sshd, app: filepath.Join(top, "org/app.git"), lib: filepath.Join(top, "org/lib.git"), local: filepath.Join(top, "local.git")}
	gittest.Bare(t, g.app)
	gittest.Bare(t, g.lib)
	gittest.Bare(t, g.local, "--object-format=sha256")
	web := gittest.StartHTTPS(t, top, gitToken)
	g.webURL = web.URL
	g.forge = gittest.NewForge(t, sshd, g.app, forgeToken)
	g.base = t.TempDir()
	g.world = &world{t: t, ws: filepath.Join(g.base, "ws")}
	g.vars = map[string]string{
		"XDG_STATE_HOME": filepath.Join(g.base, "state"), "XDG_RUNTIME_DIR": shortDir(t), "HOME": g.base, "TMPDIR": g.base, "PATH": os.Getenv("PATH"),
		"GIT_TOKEN": gitToken, "FORGE_TOKEN": forgeToken,
	}
	if err := errors.Join(os.Mkdir(g.ws, 0o755), os.Chmod(g.base, 0o755), os.Chmod(filepath.Dir(g.base), 0o755)); err != nil {
		t.Fatal(err)
	}
	g.config("agents/a.md", "---\nbottle: dev\n---\n")
	g.config("bottles/dev.md", `---
agent_provider: {template: command, settings: {command: [/bin/sh, -c, '{prompt}'], resume_command: [/bin/sh, -c, '{prompt}']}}
git-gate:
  user: {name: Bot, email: bot@x.example}
  repos:
    app:
      url: `+sshd.URL(g.app)+`
      host_key: `+strings.TrimSpace(string(ssh.MarshalAuthorizedKey(sshd.HostKey)))+`
      aliases: [forge]
      key: {provider: gitlab, forge_token_env: FORGE_TOKEN, api_url: "`+g.forge.URL+`"}
    lib: {url: "`+web.URL+`/org/lib.git", token_env: GIT_TOKEN}
    local: {url: "file://`+g.local+`"}
---
`)
	c, err := Open(context.Background(), Options{Env: func(n string) string { return g.vars[n] }, Roots: web.Roots})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	g.c = c
	return g
}

func (g *gitWorld) config(name, text string) {
	gittest.Write(g.t, filepath.Join(g.base, ".config/carboy", name), text)
	if err := os.Chmod(filepath.Join(g.base, ".config/carboy", name), 0o600); err != nil {
		g.t.Fatal(err)
	}
}

// start runs a script in a bottle.
func (g *gitWorld) start(o StartOptions, script string) (*Started, string, error) {
	g.t.Helper()
	var out, msg bytes.Buffer
	o.Agent, o.Dir, o.Headless, o.Prompt, o.Stdout, o.Stderr = "a", g.ws, true, script, &out, &msg
	o.OnEvent = func(e Event) { g.t.Logf("%s %s %s", e.Kind, e.Name, e.Text) }
	s, err := g.c.Start(context.Background(), o)
	return s, out.String() + msg.String(), err
}

// ref is what a reference of an upstream names; empty: nothing.
func (g *gitWorld) ref(repo, name string) string {
	out, err := gittest.TryGit(repo, "rev-parse", "-q", "--verify", name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(out)
}

// TestGitBottle does what people do with git, from inside a bottle, with three kinds of
// upstream: every form of address leads to the gate, what git can do it can do here, and
// all of it is accounted for.
func TestGitBottle(t *testing.T) {
	g := newGitWorld(t)
	path := strings.TrimPrefix(g.app, "/")
	gittest.Write(t, filepath.Join(g.app, "hooks/post-receive"), "#!/bin/sh\necho got $GIT_PUSH_OPTION_COUNT $GIT_PUSH_OPTION_0\n")
	if err := os.Chmod(filepath.Join(g.app, "hooks/post-receive"), 0o755); err != nil {
		t.Fatal(err)
	}
	s, said, err := g.start(StartOptions{}, `set -e; cd /tmp; exec 2>&1
git clone -q `+g.sshd.URL(g.app)+` one
git clone -q ssh://`+g.sshd.User+`@127.0.0.1/`+path+` two
git clone -q `+g.sshd.User+`@forge:`+g.app+` three
git clone -q https://127.0.0.1/`+strings.TrimSuffix(path, ".git")+` four
git clone -q http://git.carboy.internal/app.git five
git clone -q file://`+g.local+` sha
for d in one two three four five sha; do grep -q two $d/README; done; echo cloned
git -C one remote -v | grep -c git.carboy.internal
git config --system user.name
test "$(git -C one symbolic-ref HEAD)" = refs/heads/main

cd one
echo more >>README; git commit -qam second; git push -q
git checkout -qb topic; echo x >x; git add x; git commit -qm x
git tag -a v1 -m 'first version'; git notes add -m 'a note'
git push -q -o ci.skip --atomic origin topic v1 refs/notes/commits
git commit -q --amend -m y; git push -q 2>&1 | grep -q rejected || git push -q origin topic 2>&1 | grep -q rejected; git push -q --force origin topic
git push -q origin HEAD:gone; git push -q origin :gone
git worktree add -q ../tree main; cd ../tree; echo t >t; git add t; git commit -qm tree; git push -q origin HEAD:main
cd ../two; git pull -q; grep -q more README; git fetch -q --tags origin refs/notes/*:refs/notes/*; git show -s --format=%N v1~0^{} >/dev/null; echo pulled

cd /tmp/sha; echo s >s; git add s; git commit -qm sha; git push -q; git rev-parse --show-object-format; cd ..
git clone -q --depth 1 `+g.sshd.URL(g.app)+` shallow; git -C shallow log --oneline | wc -l; git -C shallow fetch -q --unshallow
cd shallow; echo z >z; git add z; git commit -qm z; git push -q origin HEAD:refs/heads/z; cd ..
git clone -q --filter=blob:none --no-checkout `+g.sshd.URL(g.app)+` partial; git -C partial rev-list --objects --missing=print main | grep -q '^?'; git -C partial checkout -q main; echo partial
cd two; git submodule add -q `+strings.TrimSuffix(g.webURL, "/")+`/org/lib.git sub; git commit -qam sub; git push -q
git clone -q --recurse-submodules `+g.sshd.URL(g.app)+` ../deep; grep -q two ../deep/sub/README; echo deep
cd ../deep/sub; git checkout -q main; echo l >l; git add l; git commit -qm l; git push -q
echo done
`)
	if err != nil {
		t.Fatalf("%v %+v\n%s", err, s.Receipt.Exit, said)
	}
	if s.Kept || !strings.HasPrefix(said, "cloned\n2\nBot\n") || !strings.HasSuffix(said, "done\n") || !strings.Contains(said, "got 1 ci.skip") {
		t.Errorf("%+v\n%s", s, said)
	}
	for _, want := range []string{"pulled\nsha256\n1\n", "\npartial\n", "\ndeep\n"} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in\n%s", want, said)
		}
	}
	for name, there := range map[string]bool{"refs/heads/topic": true, "refs/tags/v1": true, "refs/notes/commits": true, "refs/heads/z": true, "refs/heads/gone": false} {
		if (g.ref(g.app, name) != "") != there {
			t.Errorf("upstream's %s: %q", name, g.ref(g.app, name))
		}
	}
	if out := gittest.Git(t, g.app, "log", "-1", "--format=%an %ce", "topic"); out != "Bot bot@x.example" {
		t.Errorf("%s", out)
	}
	rec := s.Receipt.Git
	if rec == nil || len(rec.Repos) != 3 || rec.Repos[0].Fetches < 10 || rec.Repos[0].Pushes != 8 || rec.Repos[1].Pushes != 1 || rec.Repos[2].Pushes != 1 || rec.PushesTotal != 10 {
		t.Fatalf("%+v", rec)
	}
	if len(rec.Keys) != 1 || rec.Keys[0].State != receipt.KeyRevoked || rec.Keys[0].Title != "carboy:a:app" {
		t.Errorf("%+v", rec.Keys)
	}
	if p := rec.Pushes[1]; p.Verdict != receipt.Pushed || p.RefsTotal != 3 || p.CommitsTotal != 2 || len(p.Refs) != 3 || p.Refs[0].Result != "ok" {
		t.Errorf("%+v", p)
	}
	if k := g.forge.Keys(); len(k) != 0 {
		t.Errorf("the forge has %+v", k)
	}
}
