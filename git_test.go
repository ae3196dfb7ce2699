package carboy

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/gittest"
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
	sshd            *gittest.SSHD
	forge           *gittest.Forge
	app, lib, local string // bare repositories
}

func newGitWorld(t *testing.T) *gitWorld {
	t.Helper()
	sshd := gittest.NewSSHD(t)
	top := t.TempDir()
	g := &gitWorld{sshd: sshd, app: filepath.Join(top, "org/app.git"), lib: filepath.Join(top, "org/lib.git"), local: filepath.Join(top, "local.git")}
	gittest.Bare(t, g.app)
	gittest.Bare(t, g.lib)
	gittest.Bare(t, g.local, "--object-format=sha256")
	web, roots := gittest.NewHTTPS(t, top, "x-access-token", gitToken)
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
      host_key: `+sshd.HostKey+`
      aliases: [forge]
      key: {provider: gitlab, forge_token_env: FORGE_TOKEN, api_url: "`+g.forge.URL+`"}
    lib: {url: "`+web+`/org/lib.git", token_env: GIT_TOKEN}
    local: {url: "file://`+g.local+`"}
---
`)
	c, err := Open(context.Background(), Options{Env: func(n string) string { return g.vars[n] }, Roots: roots})
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
	s, said, err := g.start(StartOptions{}, `set -e; cd /tmp; exec 2>&1
git clone -q `+g.sshd.URL(g.app)+` one
git clone -q ssh://`+g.sshd.User+`@127.0.0.1/`+path+` two
git clone -q `+g.sshd.User+`@forge:`+g.app+` three
git clone -q https://127.0.0.1/`+strings.TrimSuffix(path, ".git")+` four
git clone -q http://git.carboy.internal/app.git five
for d in one two three four five; do grep -q two $d/README; done; echo cloned
git -C one remote -v | grep -c git.carboy.internal
git config --system user.name
test "$(git -C one symbolic-ref HEAD)" = refs/heads/main
`)
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	if s.Kept || !strings.Contains(said, "cloned\n2\nBot\n") {
		t.Errorf("%+v\n%s", s, said)
	}
	rec := s.Receipt.Git
	if rec == nil || len(rec.Repos) != 3 || rec.Repos[0].Fetches < 10 || len(rec.Keys) != 1 || rec.Keys[0].State != receipt.KeyRevoked {
		t.Errorf("%+v", rec)
	}
	if k := g.forge.Keys(); len(k) != 0 {
		t.Errorf("the forge has %+v", k)
	}
}
