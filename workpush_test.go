package carboy

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/gitgate"
	"github.com/carboy/carboy/internal/gitgate/gittest"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run/repos"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/work"
)

// pusher is a worker whose bottle declares the repository that its origin is.
func pusher(t *testing.T, script string, files map[string]string) (p *project, upstream string) {
	t.Helper()
	top := t.TempDir()
	upstream = filepath.Join(top, "up.git")
	gittest.Bare(t, upstream)
	if err := os.Chmod(filepath.Dir(top), 0o755); err != nil {
		t.Fatal(err)
	}
	bottle := strings.Replace(agentBottle(script), "---\n", "---\ngit-gate: {user: {name: Worker, email: w@x.example}, repos: {app: {url: \"file://"+upstream+"\"}}}\n", 1)
	w := agents(t, nil, map[string]string{".config/carboy/bottles/default.md": bottle, ".config/carboy/agents/a.md": "---\n---\n"})
	p = &project{w, t}
	for name, text := range files {
		p.put(name, text)
	}
	p.git("init", "-q")
	p.commit()
	p.git("remote", "add", "origin", upstream)
	return p, upstream
}

func (p *project) work(o work.WorkOptions) *work.Worked {
	p.t.Helper()
	var out bytes.Buffer
	if o.Continue == "" {
		o.Agent, o.Prompt, o.Dir = "a", "make it pass\nand more", p.ws
	}
	o.Stdout, o.Stderr = &out, &out
	w, err := p.c.Work(context.Background(), o)
	if err != nil {
		p.t.Fatalf("%v\n%s", err, out.String())
	}
	return w
}

// TestWorkPushes: what passed, and nothing else, is one commit on the base in a new
// branch upstream, its receipt says so, and it is the same however often carboy dies.
func TestWorkPushes(t *testing.T) {
	p, up := pusher(t, readsFeedback+`
`, needsFeedback)
	main := gittest.Git(t, up, "rev-parse", "main")
	// What the user's repository would run, and files that it ignores, stay out of it.
	p.put(".git/hooks/pre-push", "#!/bin/sh\nexit 1\n")
	if err := os.Chmod(filepath.Join(p.ws, ".git/hooks/pre-push"), 0o755); err != nil {
		t.Fatal(err)
	}
	// carboy dies when it has pushed, and nothing says so yet: it is done once more.
	var out bytes.Buffer
	var first work.Attempt
	if _, err := p.c.Work(context.Background(), work.WorkOptions{Agent: "a", Prompt: "make it pass\nand more", Dir: p.ws, Stdout: &out, Stderr: &out, Dies: func(a work.Attempt) bool {
		first = a
		return a.State == work.AttemptPushed
	}}); !errors.Is(err, work.ErrDied) || first.Pushed == nil || first.Pushed.Verdict != receipt.Pushed {
		t.Fatalf("%v\n%s", err, out.String())
	}
	// So does the bottle that pushed, when carboy dies during the push. Others stay.
	left := func(label string) string {
		t.Helper()
		b, err := p.c.host.Store.CreateBottle(context.Background(), store.Bottle{Label: label, Agent: "a", Mode: store.None})
		if err != nil {
			t.Fatal(err)
		}
		return b.Slug
	}
	dead := "a-" + first.Work[len(first.Work)-8:] + work.PushLabel
	slug := left(dead)
	neighbours := []string{left("a" + work.PushLabel), left(dead + "-not")}
	w := p.work(work.WorkOptions{Continue: first.Work})
	if _, err := p.c.host.Store.Bottle(slug); !errors.Is(err, store.ErrNoBottle) {
		t.Errorf("the bottle of the push that died is still there: %v", err)
	}
	slug = left(dead)
	lock, err := p.c.host.Store.LockBottle(slug)
	if err != nil {
		t.Fatal(err)
	}
	if g, err := p.c.SweepSandboxes(context.Background()); err != nil || slices.Contains(g.Removed, "bottle "+slug) {
		t.Errorf("a bottle that pushes was swept: %+v %v", g, err)
	}
	lock.Unlock()
	if g, err := p.c.SweepSandboxes(context.Background()); err != nil || !slices.Contains(g.Removed, "bottle "+slug) {
		t.Errorf("%+v %v", g, err)
	}
	for _, n := range neighbours {
		if was, err := p.c.host.Store.RemoveBottle(context.Background(), n); err != nil || !was {
			t.Errorf("bottle %s was swept: %v", n, err)
		}
	}
	if w.Outcome != gate.Passed || w.Pushed == nil || w.Pushed.Verdict != receipt.Pushed || len(w.Attempts) != 2 || w.Pushed.Commit != first.Pushed.Commit || w.Pushed.Run == first.Pushed.Run {
		t.Fatalf("%+v %+v", w, w.Pushed)
	}
	branch := "refs/heads/" + w.Pushed.Branch
	git := func(args ...string) string { return strings.TrimSpace(gittest.Git(t, up, args...)) }
	if !strings.HasPrefix(w.Pushed.Branch, "carboy/a-") || git("rev-parse", branch) != w.Pushed.Commit || git("rev-parse", branch+"^") != p.git("rev-parse", "HEAD") {
		t.Errorf("%+v: %s", w.Pushed, git("log", "--format=%H %P", branch))
	}
	if got := git("show", "--format=%an %ce|%s", "--name-status", branch); got != "Worker w@x.example|make it pass\n\nA\tanswer" {
		t.Errorf("%q", got)
	}
	if git("rev-parse", "main") != strings.TrimSpace(main) {
		t.Error("main was moved")
	}
	if m := git("show", "-s", "--format=%b", branch); !strings.Contains(m, "Carboy-Work: "+w.ID) || !strings.Contains(m, "Carboy-Verdict: "+w.Verdict.ID) {
		t.Errorf("%q", m)
	}
	r, err := p.c.Receipt(context.Background(), first.Pushed.Run) // the second found it there
	if err != nil || r.Git == nil || len(r.Git.Pushes) != 1 || r.Git.Pushes[0].Verdict != receipt.Pushed || r.Git.Pushes[0].Refs[0].New != w.Pushed.Commit {
		t.Fatalf("%v %+v", err, r)
	}
	// A push that dies ends a forge's hooks, so the next one moves the branch once more.
	r, err = p.c.Receipt(context.Background(), w.Pushed.Run)
	if err != nil || r.Git == nil || len(r.Git.Pushes) != 2 || r.Git.Pushes[0].Refs[0].Old != w.Pushed.Commit || r.Git.Pushes[1].Refs[0].New != w.Pushed.Commit {
		t.Errorf("the push that found its commit there: %v %+v", err, r)
	}
	if list, _, err := p.c.Bottles(context.Background()); err != nil || len(list) != 1 {
		t.Errorf("bottles: %+v %v", list, err)
	}
	// Going on with what is over does nothing.
	if again := p.work(work.WorkOptions{Continue: w.ID}); again.Pushed.Run != w.Pushed.Run {
		t.Errorf("pushed twice: %+v", again.Pushed)
	}
	if n := git("rev-list", "--count", "--all", "--not", "main", p.git("rev-parse", "HEAD")); n != "1" {
		t.Errorf("%s commits left", n)
	}
	a, err := p.c.WorkAccount(context.Background(), w.ID[:12])
	if err != nil || a.State != work.WorkOver || a.Outcome != gate.Passed || a.Pushed.Commit != w.Pushed.Commit || len(a.Attempts) != 2 || !a.Resumable || a.Attempts[0].Usage == nil {
		t.Errorf("%+v %v", a, err)
	}
	if r, err := p.c.AuditVerify(context.Background(), ""); err != nil || r.Status != audit.Intact {
		t.Errorf("%+v %v", r, err)
	}
}

// TestWorkPushRefused: a change that passed its gate does not leave with a secret in it,
// nor over what upstream has, nor when the workspace is another than was judged. A person
// is told why, and can go on.
func TestWorkPushRefused(t *testing.T) {
	token := "ghp_" + "Zq81xkLmP04wT9aB7cD3eF5gH2jK6nQ0rS1u" // no such token was ever given
	p, up := pusher(t, "k=ghp_; k=${k}"+strings.TrimPrefix(token, "ghp_")+`
case "$1" in *secret*) echo "key = $k" >config;; *) printf 'fin\351\n' >config; printf 'a\r\n$Id: x$\n' >crlf; printf '* text ident\nconfig working-tree-encoding=ISO-8859-1\n' >.gitattributes;; esac
exit 0`, map[string]string{
		"check.sh":       "exit 0\n",
		gate.CatalogPath: "version: 1\nsignals:\n  - {name: build, kind: build, command: [sh, ./check.sh]}\n",
	})
	ctx := context.Background()
	var out bytes.Buffer
	o := work.WorkOptions{Agent: "a", Prompt: "put the secret in", Dir: p.ws, Branch: "topic", Stdout: &out, Stderr: &out}
	w, err := p.c.Work(ctx, o)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if w.Outcome != gate.Escalated || w.Pushed == nil || w.Pushed.Verdict != receipt.PushRefused || !strings.Contains(w.Why, "refused by the git gate") || !strings.Contains(w.Why, "github-pat") {
		t.Fatalf("%+v %+v", w, w.Pushed)
	}
	if strings.Contains(w.Why, token) {
		t.Error("the reason has the secret")
	}
	if refs := gittest.Git(t, up, "for-each-ref"); strings.Contains(refs, "topic") {
		t.Error(refs)
	}
	a, err := p.c.WorkAccount(ctx, w.ID)
	if err != nil || a.Outcome != gate.Escalated || a.Why != w.Why || a.Bottle == "" || !a.Resumable || a.Task.Prompt != o.Prompt {
		t.Errorf("%+v %v", a, err)
	}
	// The neighbour goes through, once nothing stands where it goes.
	p.git("push", "-q", up, "HEAD:refs/heads/topic") // from where it could be moved forward
	o.Prompt = "do what is fine"
	if w, err = p.c.Work(ctx, o); err != nil || w.Outcome != gate.Escalated || w.Pushed.Verdict != receipt.PushFailed {
		t.Fatalf("a branch that stood upstream was moved: %+v %v", w, err)
	}
	if at := strings.TrimSpace(gittest.Git(t, up, "rev-parse", "topic")); at != p.git("rev-parse", "HEAD") || !strings.Contains(w.Why, "already") {
		t.Errorf("it is at %s; %s", at, w.Why)
	}
	commit := w.Pushed.Commit
	gittest.Git(t, up, "update-ref", "-d", "refs/heads/topic")
	p.put("other", "of the user's, since\n")
	if w = p.work(work.WorkOptions{Continue: w.ID}); w.Outcome != gate.Escalated || !strings.Contains(w.Why, "is not as it was") {
		t.Fatalf("what nobody judged was pushed: %+v", w)
	}
	if err := os.Remove(filepath.Join(p.ws, "other")); err != nil {
		t.Fatal(err)
	}
	if w = p.work(work.WorkOptions{Continue: w.ID}); w.Outcome != gate.Passed || w.Pushed.Verdict != receipt.Pushed || len(w.Attempts) != 1 {
		t.Errorf("%+v", w)
	}
	if commit == "" || w.Pushed.Commit != commit {
		t.Errorf("what is pushed again is commit %s, and was %s", w.Pushed.Commit, commit)
	}
	// What the change says of how its files are to be written changes none of them.
	for name, want := range map[string]string{"config": "fin\xe9", "crlf": "a\r\n$Id: x$"} {
		if got := gittest.Git(t, up, "show", "topic:"+name); got != want {
			t.Errorf("%s was pushed as %q", name, got)
		}
	}
	for _, o := range []work.WorkOptions{{Push: "nowhere"}, {Branch: "a..b"}, {Branch: "-x"}, {Branch: "refs/../x"}, {Branch: "x.lock"}} {
		var bad *fault.OptionError
		o.Agent, o.Prompt, o.Dir = "a", "x", p.ws
		if _, err := p.c.Work(ctx, o); !errors.As(err, &bad) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestPushesWhere: which of a bottle's repositories a work tree's remotes lead to.
func TestPushesWhere(t *testing.T) {
	repo := func(name, url string) repos.Repo { return repos.Repo{Repo: gitgate.Repo{Name: name, URL: url}} }
	g := &repos.Repos{Repos: []repos.Repo{repo("app", "ssh://git@x.example/org/app.git"), repo("lib", "https://x.example/org/lib")}}
	for _, x := range []struct {
		remotes    map[string]string
		want, repo string
	}{
		{map[string]string{"origin": "git@x.example:org/app"}, "", "app"},
		{map[string]string{"origin": "https://x.example/org/app.git/"}, "", "app"},
		{map[string]string{"origin": "https://x.example/org/other", "fork": "https://x.example/org/lib.git"}, "", "lib"},
		{map[string]string{"a": "git@x.example:org/app", "b": "https://x.example/org/lib.git"}, "", ""},
		{map[string]string{"a": "git@x.example:org/app", "b": "https://x.example/org/lib.git"}, "b", "lib"},
		{map[string]string{"a": "git@x.example:org/app"}, "lib", "lib"},
		{map[string]string{"origin": "git@x.example:org/app"}, "other", ""},
		{map[string]string{"origin": "git@x.example.org:org/app"}, "", ""},
		{map[string]string{"origin": "git@y.example:org/app"}, "", ""},
		{map[string]string{"origin": "https://x.example/org/app2"}, "", ""},
		{nil, "", ""},
	} {
		remotes := map[string][]string{}
		for n, u := range x.remotes {
			remotes[n] = []string{u}
		}
		r, why := g.LeadingTo(remotes, x.want)
		got := ""
		if r != nil {
			got = r.Name
		}
		if got != x.repo || (got == "") != (why != "") {
			t.Errorf("%v %q: %q %q", x.remotes, x.want, got, why)
		}
	}
	if r, why := (&repos.Repos{}).LeadingTo(nil, ""); r != nil || why == "" {
		t.Error(r, why)
	}
	if slices.ContainsFunc([]string{"", "a b", "-a", "a/-b", "a//b", "a/", ".a", "a/.b", "a.lock", "a..b", "a@{1}", "a\n", "ä", strings.Repeat("a", 300)}, work.ValidBranch) || !work.ValidBranch("carboy/a-01.x_y") {
		t.Error("names of branches")
	}
}
