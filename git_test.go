package carboy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottles"
	"github.com/carboy/carboy/internal/gitgate/gittest"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/run/repos"
	"github.com/carboy/carboy/internal/supervise"
	"github.com/carboy/carboy/internal/testenv"
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
func (g *gitWorld) start(o bottles.StartOptions, script string) (*bottles.Started, string, error) {
	g.t.Helper()
	return g.startTelling(o, nil, script, nil)
}

// startTelling does so with somebody who hears events, and something beside it.
func (g *gitWorld) startTelling(o bottles.StartOptions, hear func(plan.Event), script string, beside func(over <-chan struct{})) (*bottles.Started, string, error) {
	g.t.Helper()
	var out, msg bytes.Buffer
	o.Agent, o.Dir, o.Headless, o.Prompt, o.Stdout, o.Stderr = "a", g.ws, true, script, &out, &msg
	o.OnEvent = func(e plan.Event) {
		g.t.Logf("%s %s %s", e.Kind, e.Name, e.Text)
		if hear != nil {
			hear(e)
		}
	}
	over := make(chan struct{})
	var wg sync.WaitGroup
	if beside != nil {
		wg.Go(func() { beside(over) })
	}
	s, err := g.c.Start(context.Background(), o)
	close(over)
	wg.Wait()
	return s, out.String() + msg.String(), err
}

// ref returns the object that a reference of an upstream names; empty: none.
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
	s, said, err := g.start(bottles.StartOptions{}, `set -e; cd /tmp; exec 2>&1
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
		t.Fatalf("%v %+v\n%s", err, s, said)
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

// TestGitRefuses: what a push adds is read, in every commit of it; what is refused has
// left nowhere and can't be fetched; and nothing inside opens an upstream.
func TestGitRefuses(t *testing.T) {
	testenv.Need(t, "curl", "apt-get install curl")
	g := newGitWorld(t)
	key := "ghp_" + "Zq81xkLmP04wT9aB7cD3eF5gH2jK6nQ0rS1u" // no such token was ever given
	before := g.ref(g.app, "main")
	ready := make(chan struct{})
	people := g.answering(func(p supervise.Proposal) supervise.Reply {
		x := p.Payload.(supervise.GitleaksAllow)
		if f := x.Findings[0]; x.Repository == "app" && f.File == "example" && f.Line == 1 && f.Rule == "github-pat" && strings.Contains(f.Code[0].Text, "gitleaks:allow") && !strings.Contains(fmt.Sprint(x), key) {
			return supervise.Reply{Verdict: supervise.Approved}
		}
		return supervise.Reply{Verdict: supervise.Rejected, Note: "no, take it out"}
	})
	s, said, err := g.startTelling(bottles.StartOptions{}, func(e plan.Event) {
		if e.Kind == "git" && strings.Contains(e.Text, "refs/heads/ready") {
			close(ready)
		}
	}, `set -e; cd /tmp; exec 2>&1
k=ghp_; k=${k}`+strings.TrimPrefix(key, "ghp_")+`
app=`+g.sshd.URL(g.app)+`
refused() { name=$1; shift; if "$@" >/tmp/out 2>&1; then echo "THROUGH $name"; else echo "== $name"; cat /tmp/out; fi; }
git clone -q $app one; cd one
fresh() { git checkout -q -f main; git reset -q --hard origin/main; git clean -qfd; }
echo fine >fine; git add .; git commit -qm fine; git push -q origin HEAD:fine; echo control
echo "key = $k" >secret.txt; git add .; git commit -qm secret; refused file git push origin HEAD:file
git rm -q secret.txt; git commit -qm clean; refused removed git push origin HEAD:removed
lost=$(git rev-parse HEAD~1)
fresh; git commit -q --allow-empty -m "message $k"; refused message git push origin HEAD:message
fresh; git tag -a t -m "tag $k"; refused tag git push origin t
fresh; git notes add -m "note $k"; refused note git push origin refs/notes/commits
fresh; echo x >"$k"; git add .; git commit -qm name; refused name git push origin HEAD:name
fresh; echo "key = $k # gitleaks:allow" >a; git add .; git commit -qm allow; refused allow git push origin HEAD:allow
fresh; echo "key = $k # gitleaks:allow" >example; git add .; git commit -qm example; git push origin HEAD:example >/tmp/out 2>&1 || { echo "THROUGH not"; cat /tmp/out; }
fresh; refused option git push -o "$k" origin HEAD:option
fresh; refused atomic git push origin HEAD:refs/heads/good t
git clone -q $app /tmp/two; refused lost git -C /tmp/two fetch -q origin $lost
git ls-remote origin | cut -f2 | tr '\n' ' '; echo

refused undeclared git clone http://git.carboy.internal/other.git /tmp/u
refused prefix git clone ${app%.git}2 /tmp/p
for p in app.git/config app.git/HEAD app.git/objects/info/packs ../keys/app.key app.git/../../keys app.git/info/lfs/objects/batch; do
	curl -s --path-as-is -o /dev/null -w "%{http_code} " http://git.carboy.internal/$p; done; echo
echo inside; env; git config -l; cat /etc/gitconfig; (grep -rl -e PRIVATE.KEY -e upstream-token -e forge-token /etc /home /root /tmp /run /var $HOME 2>/dev/null || true); tr '\0' '\n' </proc/1/environ || true; echo outside

git -C /tmp clone -q file://`+g.local+` sha; git -C /tmp/sha push -q origin HEAD:refs/heads/ready
while ! git -C /tmp/sha ls-remote --exit-code origin refs/heads/go >/dev/null; do sleep 0.1; done
refused gone git fetch origin; refused gone-clone git clone $app /tmp/g
`, func(over <-chan struct{}) {
		select {
		case <-ready:
		case <-over:
			return
		}
		if err := os.Rename(g.app, g.app+".away"); err != nil {
			t.Error(err)
		}
		gittest.Git(t, g.local, "update-ref", "refs/heads/go", "refs/heads/main")
	})
	if err != nil {
		t.Fatalf("%v %+v\n%s", err, s, said)
	}
	if err := os.Rename(g.app+".away", g.app); err != nil {
		t.Fatal(err)
	}
	part := func(name string) string {
		_, after, _ := strings.Cut(said, "== "+name+"\n")
		before, _, _ := strings.Cut(after, "\n== ")
		return before
	}
	if strings.Contains(said, "THROUGH") || !strings.Contains(said, "control\n") {
		t.Errorf("what is refused: %s", said)
	}
	for name, want := range map[string][]string{
		"file": {"remote:", "secret.txt", "github-pat"}, "removed": {"remote:", "secret.txt", "github-pat"}, "message": {"github-pat"}, "tag": {"github-pat"}, "note": {"github-pat"},
		"name": {"github-pat"}, "allow": {"remote:", "waiting for a person", "Rejected", "no, take it out"}, "option": {"github-pat"}, "atomic": {"github-pat"},
		"undeclared": {"declares no repository"}, "prefix": {"not found"}, "lost": {"fatal"}, "gone": {"fatal"}, "gone-clone": {"fatal"},
	} {
		for _, w := range want {
			if !strings.Contains(part(name), w) {
				t.Errorf("%s: no %q in %s", name, w, part(name))
			}
		}
		if strings.Contains(part(name), "remote:") && strings.Contains(part(name), key) {
			t.Errorf("%s repeats the secret: %s", name, part(name))
		}
	}
	for _, name := range []string{"heads/file", "heads/removed", "heads/message", "tags/t", "notes/commits", "heads/name", "heads/allow", "heads/option", "heads/good"} {
		if g.ref(g.app, "refs/"+name) != "" {
			t.Errorf("upstream has %s", name)
		}
	}
	if k := people.kinds(); k != "gitleaks-allow gitleaks-allow" {
		t.Errorf("people were asked for %s", k)
	}
	if g.ref(g.app, "main") != before || g.ref(g.app, "refs/heads/fine") == "" || g.ref(g.app, "refs/heads/example") == "" {
		t.Error("what is fine did not arrive, or main moved")
	}
	_, inside, _ := strings.Cut(said, "inside\n")
	inside, _, _ = strings.Cut(inside, "outside\n")
	for _, bad := range []string{gitToken, forgeToken, "PRIVATE KEY", "GIT_TOKEN", "FORGE_TOKEN", g.base} {
		if strings.Contains(inside, bad) {
			t.Errorf("%s is inside:\n%s", bad, inside)
		}
	}
	if !strings.Contains(inside, "insteadof") {
		t.Errorf("inside: %s", inside)
	}
	rec := s.Receipt.Git
	if rec == nil || rec.Repos[0].PushesRefused < 9 || rec.Repos[0].Pushes != 2 || rec.Repos[0].FetchesFailed < 2 {
		t.Fatalf("%+v", rec)
	}
	if i := slices.IndexFunc(rec.Pushes, func(p receipt.Push) bool {
		return len(p.Found) == 1 && strings.HasPrefix(p.Found[0].Allow, "approved by ")
	}); i < 0 || rec.Pushes[i].Verdict != receipt.Pushed || rec.Pushes[i].Found[0].File != "example" {
		t.Errorf("who allowed what: %+v", rec.Pushes)
	}
	if p := rec.Pushes[1]; p.Verdict != receipt.PushRefused || len(p.Found) == 0 || p.Found[0].File != "secret.txt" || p.Found[0].Line != 1 || p.Found[0].Rule != "github-pat" || p.Found[0].Commit == "" {
		t.Errorf("%+v", p)
	}
	// Nothing that stays has the secret: log, receipt, audit. What the account of files
	// has are names that the command gave to them.
	if b, err := json.Marshal(rec); err != nil || bytes.Contains(b, []byte(key)) {
		t.Errorf("the receipt has the secret: %s %v", b, err)
	}
	_ = filepath.Walk(g.c.StateDir(), func(path string, fi os.FileInfo, err error) error {
		if err == nil && fi.Mode().IsRegular() && !strings.HasSuffix(path, "/stdout") && !strings.HasSuffix(path, "/receipt.json") {
			if b, _ := os.ReadFile(path); bytes.Contains(b, []byte(key)) || bytes.Contains(b, []byte(gitToken)) || bytes.Contains(b, []byte("PRIVATE KEY")) && !strings.Contains(path, "/ca/") {
				t.Errorf("%s has a secret", path)
			}
		}
		return nil
	})
	audited, err := os.ReadFile(filepath.Join(g.c.AuditDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"kind":"git.push"`, `"kind":"git.fetch"`, `"kind":"git.key"`, "secret.txt:1", "deploy key carboy:a:app"} {
		if !bytes.Contains(audited, []byte(want)) {
			t.Errorf("the audit log has no %s", want)
		}
	}
}

// TestGitKeys: a deploy key is there while its bottle runs and not after, whatever the
// forge does; one that is left is said, keeps its bottle, and goes when it can.
func TestGitKeys(t *testing.T) {
	g := newGitWorld(t)
	ctx := context.Background()
	g.forge.Down(true)
	if s, said, err := g.start(bottles.StartOptions{}, "echo ran"); s != nil || err == nil || !strings.Contains(err.Error(), "503") {
		t.Fatalf("a forge that is down: %+v %v %s", s, err, said)
	}
	g.forge.Down(false)
	// It may have made a key before it went down: the record stays, and is put in order.
	for slug := range map[string]bool{"a": true} {
		if _, err := g.c.Destroy(ctx, slug, bottles.DestroyOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	gone := false
	s, said, err := g.startTelling(bottles.StartOptions{}, func(e plan.Event) {
		if e.Kind == "git" && strings.Contains(e.Text, "refs/heads/ready") && !gone {
			gone = true
			if k := g.forge.Keys(); len(k) != 1 || k[0].Title != "carboy:a:app" {
				t.Errorf("while it runs: %+v", k)
			}
			g.forge.Down(true)
		}
	}, "set -e; cd /tmp; git clone -q "+g.sshd.URL(g.app)+" x; cd x; git push -q origin HEAD:refs/heads/ready; exit 3", nil)
	var left *repos.KeysLeftError
	var ended *bottles.AgentError
	if !errors.As(err, &left) || !errors.As(err, &ended) || ended.Code() != 3 || !s.Kept || !strings.Contains(left.Advice(), "carboy destroy a") || !strings.Contains(left.Advice(), "/-/settings/repository") {
		t.Fatalf("%v %+v %s", err, s, said)
	}
	if k := s.Receipt.Git.Left(); len(k) != 1 || k[0].ID != "1" || k[0].RemoveAt == "" || len(s.Receipt.Notes) == 0 {
		t.Errorf("%+v %q", s.Receipt.Git, s.Receipt.Notes)
	}
	if _, err := g.c.Destroy(ctx, "a", bottles.DestroyOptions{}); !errors.As(err, &left) {
		t.Errorf("destroyed with a key left: %v", err)
	}
	if b, err := g.c.host.Store.Bottle("a"); err != nil {
		t.Errorf("%+v %v", b, err)
	}
	// Whoever opens the state next finds it.
	g.forge.Down(false)
	c, err := Open(ctx, reopen(g.c.host.Opened))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if k := g.forge.Keys(); len(k) != 0 {
		t.Errorf("the forge has %+v", k)
	}
	if was, err := g.c.Destroy(ctx, "a", bottles.DestroyOptions{}); err != nil || !was {
		t.Errorf("%t %v", was, err)
	}

	// Frozen, it has none; resumed, another.
	pushed, froze := g.hook("post-receive", ""), make(chan error, 1)
	s, said, err = g.startTelling(bottles.StartOptions{}, nil, "cd /tmp; git clone -q "+g.sshd.URL(g.app)+" x; git -C x push -q origin HEAD:refs/heads/freeze; while :; do sleep 1; done", func(over <-chan struct{}) {
		select {
		case <-pushed:
		case <-over:
			return
		}
		_, err := g.c.Freeze(ctx, "a")
		froze <- err
	})
	if err != nil || !s.Frozen {
		t.Fatalf("%v %+v %s", err, s, said)
	}
	if err := <-froze; err != nil {
		t.Fatal(err)
	}
	if k := g.forge.Keys(); len(k) != 0 {
		t.Errorf("frozen, the forge has %+v", k)
	}
	var out bytes.Buffer
	r, err := g.c.Resume(ctx, bottles.ResumeOptions{Slug: "a", Headless: true, Prompt: "cd /tmp/x && echo y >y && git add y && git commit -qm y && git push origin HEAD:refs/heads/again", Stdout: &out, Stderr: &out})
	if err != nil || r.Receipt.Git == nil || r.Receipt.Git.Repos[0].Pushes != 1 || len(g.forge.Keys()) != 0 || g.ref(g.app, "refs/heads/again") == "" {
		t.Errorf("%v %+v %s", err, r, out.String())
	}

	// What a person can get wrong is said before anything is asked or started.
	for name, c := range map[string]struct{ old, new, want string }{
		"unset token":      {"forge_token_env: FORGE_TOKEN", "forge_token_env: NOT_SET_HERE", "needs NOT_SET_HERE, which is not set here"},
		"unset https":      {"token_env: GIT_TOKEN", "token_env: NOT_SET_HERE", "names NOT_SET_HERE, which is not set here"},
		"not a host key":   {"host_key: ssh-ed25519 ", "host_key: ssh-ed25519 x", "is no public key"},
		"key in workspace": {"key: {provider: gitlab, forge_token_env: FORGE_TOKEN,", "key: {provider: static, path: " + g.ws + "/key} #", "lies where the command can read it"},
		"key of others":    {"key: {provider: gitlab, forge_token_env: FORGE_TOKEN,", "key: {provider: static, path: " + g.base + "/open} #", "can be read by others"},
		"nothing opens it": {"key: {provider: gitlab, forge_token_env: FORGE_TOKEN,", "#", "nothing opens it"},
		"relative key":     {"key: {provider: gitlab, forge_token_env: FORGE_TOKEN,", "key: {provider: static, path: key} #", "names no file in full"},
		"no key":           {"key: {provider: gitlab, forge_token_env: FORGE_TOKEN,", "key: {provider: static, path: " + g.base + "/.config/carboy/agents/a.md} #", "is no private key"},
	} {
		whole, err := os.ReadFile(filepath.Join(g.base, ".config/carboy/bottles/dev.md"))
		if err != nil {
			t.Fatal(err)
		}
		gittest.Key(t, filepath.Join(g.ws, "key"))
		gittest.Key(t, filepath.Join(g.base, "open"))
		if err := os.Chmod(filepath.Join(g.base, "open"), 0o644); err != nil {
			t.Fatal(err)
		}
		asked := len(g.forge.Keys())
		g.config("bottles/dev.md", strings.Replace(string(whole), c.old, c.new, 1))
		if s, _, err := g.start(bottles.StartOptions{Cwd: true}, "true"); err == nil || s != nil {
			t.Errorf("%s: it is taken", name)
		} else if !strings.Contains(err.Error(), c.want) || len(g.forge.Keys()) != asked {
			t.Errorf("%s: refused for another reason, or too late: %v", name, err)
		}
		g.config("bottles/dev.md", string(whole))
	}
}

// victimEnv has the test binary start a bottle in a world's place, to be killed.
const victimEnv = "CARBOY_TEST_GIT_VICTIM"

// gitVictim runs as that process.
func gitVictim() {
	file := os.Getenv(victimEnv)
	if file == "" {
		return
	}
	var v struct {
		Vars        map[string]string
		Dir, Script string
	}
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	var c *Client
	if err == nil {
		c, err = Open(context.Background(), Options{Env: func(n string) string { return v.Vars[n] }})
	}
	if err == nil {
		_, err = c.Start(context.Background(), bottles.StartOptions{Agent: "a", Dir: v.Dir, Headless: true, Prompt: v.Script, Stdout: os.Stdout, Stderr: os.Stderr})
	}
	fmt.Fprintln(os.Stderr, "the victim lives:", err)
	os.Exit(1)
}

// hook gives the upstream repository a hook that ends with script. The channel is closed
// when the hook runs first.
func (g *gitWorld) hook(name, script string) <-chan struct{} {
	g.t.Helper()
	fifo, file := filepath.Join(g.t.TempDir(), "fifo"), filepath.Join(g.app, "hooks", name)
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		g.t.Fatal(err)
	}
	f, err := os.OpenFile(fifo, os.O_RDWR, 0) // for writing too, so that neither side waits to open it
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { f.Close() })
	gittest.Write(g.t, file, "#!/bin/sh\necho >"+fifo+"\n"+script+"\n")
	if err := os.Chmod(file, 0o755); err != nil {
		g.t.Fatal(err)
	}
	ran := make(chan struct{})
	go func() { // ends with f at the latest
		if _, err := f.Read(make([]byte, 1)); err == nil {
			close(ran)
		}
	}()
	return ran
}

// kill runs the test binary as a victim in world, waits for at, calls alive and kills it. The
// variable env names the file that world is written to.
func kill(t testing.TB, env string, world map[string]any, at <-chan struct{}, alive func()) {
	t.Helper()
	b, err := json.Marshal(world)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "world")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	victim := exec.Command("/proc/self/exe")
	victim.Env = append(os.Environ(), env+"="+file)
	var said testenv.Buffer
	victim.Stdout, victim.Stderr = &said, &said
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = victim.Wait(); close(ended) }()
	select {
	case <-at:
	case <-ended:
		t.Fatalf("it ended: %s", said.String())
	}
	alive()
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
}

// TestGitKilled kills carboy while a push that was read goes on to upstream: upstream has
// all of it or nothing, and the next command revokes the key and leaves nothing behind.
func TestGitKilled(t *testing.T) {
	g := newGitWorld(t)
	// Upstream's own hook runs when all objects are there and before any reference moves.
	arrived := g.hook("pre-receive", "sleep 1")
	before := gittest.Git(t, g.app, "for-each-ref")
	kill(t, victimEnv, map[string]any{"Vars": g.vars, "Dir": g.ws, "Script": "cd /tmp; git clone -q " + g.sshd.URL(g.app) +
		" x; cd x; echo 1 >1; git add 1; git commit -qm 1; git push --atomic origin HEAD:refs/heads/one HEAD:refs/heads/two; sleep 100"}, arrived, func() {
		if k := g.forge.Keys(); len(k) != 1 {
			t.Errorf("while it runs: %+v", k)
		}
	})
	c, err := Open(context.Background(), reopen(g.c.host.Opened))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if k := g.forge.Keys(); len(k) != 0 {
		t.Errorf("the forge has %+v", k)
	}
	gittest.Git(t, g.app, "fsck", "--strict")
	one, two := g.ref(g.app, "refs/heads/one"), g.ref(g.app, "refs/heads/two")
	if one != two || one == "" && gittest.Git(t, g.app, "for-each-ref") != before {
		t.Errorf("upstream has a part of it: %q %q", one, two)
	}
	if was, err := c.Destroy(context.Background(), "a", bottles.DestroyOptions{Unlanded: true}); err != nil || !was {
		t.Errorf("%t %v", was, err)
	}
	if left, err := os.ReadDir(filepath.Join(c.StateDir(), "bottles")); err != nil || len(left) != 0 {
		t.Errorf("left: %v %v", left, err)
	}
}
