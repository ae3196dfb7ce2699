package carboy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/bottles"
	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/forgeservice"
	"github.com/carboy/carboy/internal/gitgate/gittest"
	"github.com/carboy/carboy/internal/issues"
	"github.com/carboy/carboy/internal/orchestrate"
	"github.com/carboy/carboy/internal/orchestrate/bottlework"
	"github.com/carboy/carboy/internal/provenance"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/testenv"
	"github.com/carboy/carboy/internal/work"
)

// issueWorld is a gitWorld whose upstream has a gate: the change must have a file answer.
type issueWorld struct {
	*gitWorld
	b     *bottlework.Bottles
	out   testenv.Buffer
	clone string // of a person
}

const issueBranch = "carboy/7-answer"

var issueKey = issues.Key{Owner: "org", Repo: "app", Number: 7}

func newIssueWorld(t *testing.T) *issueWorld {
	t.Helper()
	w := &issueWorld{gitWorld: newGitWorld(t), clone: filepath.Join(t.TempDir(), "person")}
	gittest.Git(t, "/", "clone", "-q", w.app, w.clone)
	w.person("main", map[string]string{
		"check.sh":          "[ -s answer ] || { echo no answer >&2; exit 1; }\n",
		"shared":            "one\ntwo\nthree\n",
		".carboy/gate.yaml": "version: 1\nsignals:\n  - {name: build, kind: build, command: [sh, ./check.sh]}\n",
	})
	w.b = w.open(w.c)
	return w
}

func (w *issueWorld) open(c *Client) *bottlework.Bottles {
	w.t.Helper()
	b, err := bottlework.New(bottlework.Options{Host: c.host, Keeper: c.bottles, Judge: c.judge, Worker: c.worker, Output: &w.out})
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// person commits files to a branch of upstream, as a person does.
func (w *issueWorld) person(branch string, files map[string]string) string {
	w.t.Helper()
	gittest.Git(w.t, w.clone, "fetch", "-q", "origin")
	gittest.Git(w.t, w.clone, "checkout", "-q", "--detach", "origin/"+branch)
	for name, text := range files {
		gittest.Write(w.t, filepath.Join(w.clone, name), text)
	}
	gittest.Git(w.t, w.clone, "add", "-A", "-f")
	gittest.Git(w.t, w.clone, "commit", "-qm", "of a person")
	gittest.Git(w.t, w.clone, "push", "-q", "origin", "HEAD:refs/heads/"+branch)
	return strings.TrimSpace(gittest.Git(w.t, w.clone, "rev-parse", "HEAD"))
}

// aTurn returns a turn whose prompt is the script that the agent runs.
func aTurn(id, slug, script string) orchestrate.Turn {
	return orchestrate.Turn{ID: id, Issue: issueKey, Agent: "a", Slug: slug, Prompt: script + "\nexit 0\n", Base: "main", Branch: issueBranch}
}

func (w *issueWorld) turn(t orchestrate.Turn) *orchestrate.TurnResult {
	w.t.Helper()
	r, err := w.b.Turn(context.Background(), t)
	if err != nil {
		w.t.Fatalf("%v\n%s", err, w.out.String())
	}
	return r
}

// passed has a turn pass and be pushed.
func (w *issueWorld) passed(t orchestrate.Turn) *orchestrate.TurnResult {
	w.t.Helper()
	r := w.turn(t)
	if r.Outcome != "passed" || r.Commit == "" || r.Commit != w.ref(w.app, issueBranch) || r.Verdict == "" || len(r.Digest) != 64 || r.Work == "" || len(r.Runs) == 0 {
		w.t.Fatalf("%+v\n%s", r, w.out.String())
	}
	w.tidy(r.Slug)
	return r
}

// tidy demands that an issue has no more than one bottle, and no key at the forge.
func (w *issueWorld) tidy(slug string) {
	w.t.Helper()
	if k := w.forge.Keys(); len(k) != 0 {
		w.t.Errorf("keys left: %+v", k)
	}
	list, _, err := w.c.Bottles(context.Background())
	if err != nil || len(list) > 1 || len(list) == 1 && list[0].Slug != slug {
		w.t.Errorf("bottles: %+v %v", list, err)
	}
}

func (w *issueWorld) git(args ...string) string {
	w.t.Helper()
	return strings.TrimSpace(gittest.Git(w.t, w.app, args...))
}

// TestIssueTurns: the first turn makes the branch, the next ones go on in the same bottle
// and add to it; a turn that is asked for again does nothing more; and at the end nothing
// is left but the branch.
func TestIssueTurns(t *testing.T) {
	w := newIssueWorld(t)
	main := w.git("rev-parse", "main")
	var slugs []string
	var signs int
	var mu sync.Mutex
	first := aTurn("7-1", "", "git log -1 --format=HEAD:%s; git status --short; git symbolic-ref HEAD; echo one >answer; mkdir -p src; echo x >src/new; rm README")
	first.OnBottle = func(s string) { slugs = append(slugs, s) }
	first.OnCheckin = func() { mu.Lock(); signs++; mu.Unlock() }
	r := w.passed(first)
	if len(slugs) != 1 || slugs[0] != r.Slug || !r.Started || signs == 0 || w.git("rev-parse", issueBranch+"^") != main {
		t.Errorf("%q %d %+v", slugs, signs, r)
	}
	if said := w.out.String(); !strings.Contains(said, "HEAD:of a person\nrefs/heads/"+issueBranch) {
		t.Errorf("the workspace is no clean clone: %s", said)
	}
	files := fmt.Sprint(r.Files)
	if files != "[{README 0 2} {answer 1 0} {src/new 1 0}]" {
		t.Error(files)
	}
	again, err := w.open(w.c).Turn(context.Background(), first)
	if err != nil || again.Work != r.Work || again.Commit != r.Commit || w.git("rev-list", "--count", issueBranch, "^main") != "1" {
		t.Errorf("%+v %v", again, err)
	}
	// What is only in the bottle is there in the next turn.
	second := w.passed(aTurn("7-2", r.Slug, "set -e; grep -q one answer; git rev-parse -q --verify origin/"+issueBranch+"; echo two >>answer"))
	if second.Started || second.Slug != r.Slug || w.git("rev-parse", issueBranch+"^") != r.Commit || w.git("show", issueBranch+":answer") != "one\ntwo" {
		t.Errorf("%+v %s", second, w.git("log", "--stat", issueBranch))
	}
	// A turn that changes nothing, such as an answer to a question, pushes nothing.
	third := w.passed(aTurn("7-3", r.Slug, "cat answer"))
	if third.Commit != second.Commit {
		t.Errorf("%+v", third)
	}
	if bad, err := w.b.Conflicts(context.Background(), first); err != nil || bad {
		t.Error(bad, err)
	}
	dirs, _ := filepath.Glob(filepath.Join(w.c.host.StateDir(), "issues", "app-7-*"))
	if len(dirs) != 1 {
		t.Fatalf("%q", dirs)
	}
	w.sealed(r, second)
	for range 2 {
		if err := w.b.Destroy(context.Background(), issueKey, r.Slug); err != nil {
			t.Fatal(err)
		}
		if err := w.b.Freeze(context.Background(), r.Slug); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(dirs[0]); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	w.tidy("")
	if bad, err := w.b.Conflicts(context.Background(), first); err != nil || bad {
		t.Error(bad, err)
	}
	w.tidy("")
}

// sealed seals the provenance of two turns after their merge, and of a commit that upstream
// does not have.
func (w *issueWorld) sealed(turns ...*orchestrate.TurnResult) {
	w.t.Helper()
	gittest.Git(w.t, w.clone, "fetch", "-q", "origin")
	gittest.Git(w.t, w.clone, "checkout", "-q", "--detach", "origin/main")
	gittest.Git(w.t, w.clone, "merge", "-q", "--no-ff", "-m", "merge", "origin/"+issueBranch)
	gittest.Git(w.t, w.clone, "push", "-q", "origin", "HEAD:refs/heads/main")
	merged := w.git("rev-parse", "main")
	w.person("main", map[string]string{"later": "of main\n"})
	m := orchestrate.Merge{
		Issue: issueKey, Pull: 12, URL: "https://git.example.org/org/app/pulls/12", Base: "main", Branch: issueBranch, Head: turns[1].Commit, Commit: merged,
		Agent: "a", Bottles: []string{"dev"}, Slug: turns[0].Slug, Turns: []orchestrate.TurnResult{*turns[0], *turns[1]}, Merged: time.Now(),
	}
	digest, err := w.b.Seal(context.Background(), m)
	if err != nil || len(digest) != 64 {
		w.t.Fatalf("%q %v", digest, err)
	}
	w.tidy(turns[1].Slug)
	// The forge tells other things later; the record stays as it is.
	later := m
	later.Merged, later.Reviews = m.Merged.Add(time.Hour), []orchestrate.Review{{By: "ada", State: "approved"}}
	if again, err := w.b.Seal(context.Background(), later); err != nil || again != digest {
		w.t.Errorf("%q %v", again, err)
	}
	later.Pull++
	if _, err := w.b.Seal(context.Background(), later); !errors.Is(err, provenance.ErrOther) {
		w.t.Errorf("another pull request of the same commit: %v", err)
	}
	read := func(commit string) *provenance.Report {
		r, err := w.c.VerifyProvenance(context.Background(), provenance.VerifyOptions{Commit: commit, WorkTree: w.clone})
		if err != nil || r.Record == nil {
			w.t.Fatalf("%+v %v", r, err)
		}
		return r
	}
	r := read(merged)
	runs := 0
	for _, t := range r.Record.Turns {
		for _, x := range t.Runs {
			if x.ReceiptSHA256 != "" {
				runs++
			}
		}
	}
	if f := r.Record; f.Tree != w.git("rev-parse", merged+"^{tree}") || f.Forge != "https://git.example.org" || f.Backend == "" || f.Turns[0].VerdictSHA256 != turns[0].Digest || runs != len(turns[0].Runs)+len(turns[1].Runs) {
		w.t.Errorf("%+v", f)
	}
	if said := fmt.Sprint(r.Sources.Observed); !strings.Contains(said, "the tree of commit "+merged) {
		w.t.Error(said)
	}
	m.Pull, m.Commit = 13, strings.Repeat("1", 40)
	if _, err := w.b.Seal(context.Background(), m); err != nil {
		w.t.Fatal(err)
	}
	if r := read(m.Commit); r.Record.Tree != "" || !strings.Contains(fmt.Sprint(r.Sources.Not), "carboy did not read it") {
		w.t.Errorf("%+v %+v", r.Record, r.Sources)
	}
}

// TestIssueBranchMoves: a branch to which somebody else pushed is never overwritten. A turn
// goes on from what is there, anew, as it does when its bottle is gone, and says so.
func TestIssueBranchMoves(t *testing.T) {
	w := newIssueWorld(t)
	r := w.passed(aTurn("7-1", "", "echo one >answer"))
	// While the agent works.
	var theirs string
	during := aTurn("7-2", r.Slug, "echo two >answer")
	during.OnBottle = func(string) { theirs = w.person(issueBranch, map[string]string{"note": "of a person\n"}) }
	moved := w.turn(during)
	if !moved.Moved || moved.Commit != "" || moved.Outcome != "passed" || moved.Started || w.ref(w.app, issueBranch) != theirs {
		t.Fatalf("%+v", moved)
	}
	w.tidy(r.Slug)
	// The next one begins from there.
	next := aTurn("7-3", moved.Slug, "set -e; grep -q person note; grep -q one answer; echo three >answer")
	next.Anew = "echo began anew"
	n := w.passed(next)
	if !n.Started || w.git("rev-parse", issueBranch+"^") != theirs || w.git("show", issueBranch+":answer") != "three" || !strings.Contains(w.out.String(), "began anew\n") {
		t.Errorf("%+v %s", n, w.out.String())
	}
	// So it does without its bottle, and the base's new commits do not hinder.
	w.person("main", map[string]string{"other": "of main\n"})
	if was, err := w.c.Destroy(context.Background(), n.Slug, bottles.DestroyOptions{Unlanded: true}); err != nil || !was {
		t.Fatal(was, err)
	}
	gone := w.passed(aTurn("7-4", n.Slug, "set -e; grep -q three answer; [ ! -e other ]; echo four >answer"))
	if !gone.Started || w.git("rev-parse", issueBranch+"^") != n.Commit || w.git("rev-list", "--count", issueBranch, "^main") != "4" {
		t.Errorf("%+v %s", gone, w.git("log", "--oneline", issueBranch))
	}
}

// TestIssueRebase: a branch that conflicts is found, and one whose agent has put both
// together takes the old one's place, if nobody else pushed. One whose agent has not is
// only added to.
func TestIssueRebase(t *testing.T) {
	w := newIssueWorld(t)
	r := w.passed(aTurn("7-1", "", "echo one >answer; printf 'one\\nours\\nthree\\n' >shared"))
	main := w.person("main", map[string]string{"shared": "one\ntheirs\nthree\n", "other": "of main\n"})
	turn := aTurn("7-2", r.Slug, "echo two >answer")
	if bad, err := w.b.Conflicts(context.Background(), turn); err != nil || !bad {
		t.Fatal(bad, err)
	}
	w.tidy(r.Slug)
	lazy := w.passed(turn)
	if w.git("rev-parse", issueBranch+"^") != r.Commit {
		t.Errorf("%+v", lazy)
	}
	if w.git("show", issueBranch+":shared") != "one\nours\nthree" {
		t.Error("the change of the base was taken back, or taken over")
	}
	done := w.passed(aTurn("7-3", r.Slug, `set -e
git add -A; git commit -qm mine
git fetch -q origin
git rebase -q origin/main && exit 9
printf 'one\nboth\nthree\n' >shared; git add shared; GIT_EDITOR=true git rebase --continue >&2
cat other`))
	if p := w.git("rev-parse", issueBranch+"^"); p != main || done.Started {
		t.Errorf("its parent is %s, not %s: %+v", p, main, done)
	}
	if w.git("show", issueBranch+":shared") != "one\nboth\nthree" || w.git("diff", "--name-only", "main", issueBranch) != "answer\nshared" || len(done.Files) != 2 {
		t.Errorf("%+v %s", done.Files, w.git("diff", "main", issueBranch))
	}
	if bad, err := w.b.Conflicts(context.Background(), turn); err != nil || bad {
		t.Error(bad, err)
	}
	// A person who pushes just then is not overwritten by a rebase either.
	w.person("main", map[string]string{"shared": "one\nmore\nthree\n"})
	var theirs string
	late := aTurn("7-4", r.Slug, "printf 'one\\nboth and more\\nthree\\n' >shared")
	late.OnBottle = func(string) { theirs = w.person(issueBranch, map[string]string{"note": "wait\n"}) }
	if m := w.turn(late); !m.Moved || w.ref(w.app, issueBranch) != theirs {
		t.Errorf("%+v", m)
	}
}

// TestIssueGateFails: what fails is not pushed, and the next turn goes on with it. It also
// removes what a fetch left whose carboy died.
func TestIssueGateFails(t *testing.T) {
	w := newIssueWorld(t)
	r := w.turn(aTurn("7-1", "", "echo draft >work"))
	if r.Outcome != "escalated" || r.Commit != "" || r.Why == "" || w.ref(w.app, issueBranch) != "" || r.Slug == "" {
		t.Fatalf("%+v", r)
	}
	w.tidy(r.Slug)
	dirs, _ := filepath.Glob(filepath.Join(w.c.host.StateDir(), "issues", "app-7-*"))
	ws, err := store.ResolveWorkspace(dirs[0])
	if err == nil {
		_, err = w.c.host.Store.CreateBottle(context.Background(), store.Bottle{Label: "a-7-fetch", Agent: "a", Bottles: []string{"dev"}, Mode: store.None, Workspace: ws})
	}
	if err != nil {
		t.Fatal(err)
	}
	next := w.passed(aTurn("7-2", r.Slug, "set -e; cp work answer"))
	if next.Started || w.git("show", issueBranch+":answer") != "draft" {
		t.Errorf("%+v", next)
	}
}

// TestIssueTurnCalledOff: the end of its context freezes the bottle, and the same turn goes
// on in it.
func TestIssueTurnCalledOff(t *testing.T) {
	w := newIssueWorld(t)
	ctx, cancel := context.WithCancel(context.Background())
	turn := aTurn("7-1", "", `if [ -e begun ]; then echo again >answer; rm begun; exit 0; fi
echo x >begun; echo now; sleep 1000`)
	var slug string
	turn.OnBottle = func(s string) { slug = s }
	done, now := make(chan struct{}), w.out.Await("now\n")
	go func() { // ends with the turn at the latest
		defer cancel()
		select {
		case <-done:
		case <-now:
		}
	}()
	_, err := w.b.Turn(ctx, turn)
	close(done)
	if !errors.Is(err, context.Canceled) || !errors.Is(err, work.ErrFrozen) {
		t.Fatalf("%v\n%s", err, w.out.String())
	}
	w.tidy(slug)
	r := w.passed(turn)
	if r.Slug != slug || w.git("show", issueBranch+":answer") != "again" {
		t.Errorf("%+v", r)
	}
}

const forgeRobot = "forge-robot-8Zq1xkLmP04wT9"

// commentHub speaks as Gitea does about issue 7, and keeps comments.
type commentHub struct {
	mu       sync.Mutex
	comments []string
	patches  int
}

func (h *commentHub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var in struct{ Body string }
	_ = json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&in)
	of := func(i int) map[string]any {
		return map[string]any{"id": i + 1, "body": h.comments[i], "user": map[string]any{"login": "robot"}}
	}
	var out any
	switch path := strings.TrimPrefix(r.URL.Path, "/api/v1/repos/org/app/issues/7"); {
	case r.Header.Get("Authorization") != "token "+forgeRobot:
		w.WriteHeader(http.StatusUnauthorized)
		return
	case path == "" && r.Method == http.MethodPatch:
		h.patches++
		w.WriteHeader(http.StatusCreated)
		out = map[string]any{"number": 7, "title": "An answer", "body": in.Body, "state": "open", "user": map[string]any{"login": "ada"}}
	case path == "":
		out = map[string]any{"number": 7, "title": "An answer", "body": "is wanted", "state": "open", "user": map[string]any{"login": "ada"}}
	case path == "/comments" && r.Method == http.MethodPost:
		h.comments = append(h.comments, in.Body)
		w.WriteHeader(http.StatusCreated)
		out = of(len(h.comments) - 1)
	case path == "/comments":
		list := []any{}
		for i := range h.comments {
			list = append(list, of(i))
		}
		out = list
	default:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	_ = json.NewEncoder(w).Encode(out)
}

func (h *commentHub) patched() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.patches
}

func (h *commentHub) said() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.comments)
}

// forgeOfIssue is the service of issue 7, and what it recorded.
type forgeOfIssue struct {
	hub     *commentHub
	service *forgeservice.Service

	mu         sync.Mutex
	operations []forgeservice.Operation
	reports    []string
}

func newForgeOfIssue(t *testing.T) *forgeOfIssue {
	t.Helper()
	f := &forgeOfIssue{hub: &commentHub{}}
	srv := httptest.NewServer(f.hub)
	t.Cleanup(srv.Close)
	client, err := forge.Open(forge.Options{Provider: "gitea", API: srv.URL + "/api/v1", Token: secret.NewString(forgeRobot), Login: "robot"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	scope, err := forgeservice.NewScope(7)
	if err != nil {
		t.Fatal(err)
	}
	f.service, err = forgeservice.New(forgeservice.Options{
		Client: client, Target: forge.Target{Provider: "gitea", API: srv.URL + "/api/v1", Repo: "org/app"}, Scope: scope, Bottle: "7", Agent: "a",
		Scan: func(context.Context, string) error { return nil },
		Record: func(o forgeservice.Operation) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.operations = append(f.operations, o)
			return nil
		},
		Done: func(_ context.Context, s forgeservice.Status, summary string) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.reports = append(f.reports, string(s)+" "+summary)
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// kept returns what was recorded and reported.
func (f *forgeOfIssue) kept() ([]forgeservice.Operation, []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.operations), slices.Clone(f.reports)
}

// TestF1IssueForgeTools: an agent reaches its issue by tools, in a new bottle and in a resumed
// one, and nothing of the forge is inside: no token, no address, no variable, no route. A
// bottle without a forge has the same in it, and no word of one.
func TestF1IssueForgeTools(t *testing.T) {
	testenv.Need(t, "curl", "apt-get install curl")
	w := newIssueWorld(t)
	f := newForgeOfIssue(t)
	hub, service := f.hub, f.service
	// The parts of the token and the address are apart here, and together nowhere.
	script := callTool + `echo "<<"; env | grep -v ^PWD | sort
call list-egress-routes '{}'; echo; find ~ -type f | sort; cat /etc/hosts /etc/gitconfig; echo ">>"
a=forge-robot-8Zq1; b=xkLmP04wT9
all=$(env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n')
case "$all" in *"$a$b"*) echo FOUND in a process;; esac
case "$all" in *insteadOf*|*supervise.carboy.internal*) echo searched;; esac
grep -rlF -e "$a$b" ~ /etc /run /tmp . 2>/dev/null && echo FOUND file
echo more >>answer
`
	with := aTurn("7-1", "", script+`call read_issue '{"number":7}'; call post_comment '{"number":7,"body":"It is on its way."}'
call post_comment '{"number":8,"body":"elsewhere"}'; call signal_done '{"status":"success","summary":"answered"}'`)
	with.Forge = service
	r := w.passed(with)
	said := w.out.String()
	if !strings.Contains(said, "is wanted") || !strings.Contains(said, "It is done.") || !strings.Contains(said, "write to #8 denied") || !strings.Contains(said, "\nsearched\n") || strings.Contains(said, "FOUND") {
		t.Error(said)
	}
	if c := hub.said(); len(c) != 1 || !strings.Contains(c[0], "It is on its way.") {
		t.Errorf("%q", c)
	}
	again := aTurn("7-2", r.Slug, script+`call post_comment '{"number":7,"body":"And more."}'`)
	again.Forge = service
	w.passed(again)
	if c := hub.said(); len(c) != 2 || strings.Contains(w.out.String(), "FOUND") {
		t.Errorf("%q", c)
	}
	operations, reports := f.kept()
	if len(reports) != 1 || reports[0] != "success answered" || !slices.ContainsFunc(operations, func(o forgeservice.Operation) bool { return o.Outcome == forgeservice.Refused && o.Target == "#8" }) {
		t.Errorf("%q %+v", reports, operations)
	}
	// Without: the same inside, no tool, and the prompt byte for byte.
	if err := w.b.Destroy(context.Background(), issueKey, r.Slug); err != nil {
		t.Fatal(err)
	}
	gittest.Git(t, w.app, "update-ref", "-d", "refs/heads/"+issueBranch)
	inside := func(said string) string {
		_, rest, _ := strings.Cut(said, "<<\n")
		in, _, _ := strings.Cut(rest, ">>\n")
		return in
	}
	before := inside(said)
	w.out.Reset()
	without := aTurn("7-1", "", script+`call read_issue '{"number":7}'; tr '\0' '\n' </proc/$$/cmdline >prompt; cksum <prompt`)
	w.passed(without)
	if after := inside(w.out.String()); before == "" || after != before {
		t.Errorf("with a forge:\n%s\nwithout:\n%s", before, after)
	}
	if !strings.Contains(w.out.String(), "read_issue") || strings.Contains(w.out.String(), "is wanted") {
		t.Error(w.out.String())
	}
	if got := w.git("show", issueBranch+":prompt"); got != strings.TrimSpace("/bin/sh\n-c\n"+without.Prompt) {
		t.Errorf("the prompt was %q", got)
	}
}

// TestIssueForgeSecrets: what an agent writes to the forge is searched for the secrets that
// its own bottle's run watches, as what leaves by the network is. Nothing of a text that has
// one arrives, the refusal is recorded, and the agent is told why. Other texts arrive.
func TestIssueForgeSecrets(t *testing.T) {
	testenv.Need(t, "curl", "apt-get install curl")
	w := newIssueWorld(t)
	f := newForgeOfIssue(t)
	half := len(gitToken) / 2
	// The secrets are apart here: carboy refuses a command that has one.
	script := callTool + fmt.Sprintf("a='%s'; b='%s'; c='%s'; d='%s'\n", gitToken[:half], gitToken[half:], forgeToken[:half], forgeToken[half:]) + `
post() { call "$1" "{\"number\":7,\"body\":\"$2\"}"; echo; }
post post_comment "the key is $a$b"
post update_description "the key is $c$d"
post post_comment "$(printf %s "$a$b" | base64 -w0)"
call signal_done "{\"status\":\"success\",\"summary\":\"it is $a$b\"}"; echo
post post_comment "one part: $c"
post post_comment "another part: $d"
post post_comment "harmless-token-Xy72nQrTvB38zK"
call signal_done '{"status":"success","summary":"answered"}'; echo
echo yes >answer
`
	turn := aTurn("7-1", "", script)
	turn.Forge = f.service
	r := w.passed(turn)
	if got := f.hub.said(); len(got) != 2 || !strings.Contains(got[0], "one part: "+forgeToken[:half]) || !strings.Contains(got[1], "harmless-token-Xy72nQrTvB38zK") {
		t.Errorf("posted %q", got)
	}
	if f.hub.patched() != 0 {
		t.Error("the description was changed")
	}
	ops, reports := f.kept()
	if len(reports) != 1 || reports[0] != "success answered" {
		t.Errorf("reports %q", reports)
	}
	refused := map[string]int{}
	for _, o := range ops {
		if o.Outcome == forgeservice.Refused {
			refused[o.Operation]++
			if !strings.Contains(o.Reason, "secret: ") || !strings.Contains(o.Reason, "in text for the forge") {
				t.Errorf("%+v", o)
			}
		}
		if strings.Contains(fmt.Sprint(o), gitToken) || strings.Contains(fmt.Sprint(o), forgeToken) {
			t.Errorf("the record has the secret: %+v", o)
		}
	}
	if refused["post_comment"] != 3 || refused["update_description"] != 1 || refused["signal_done"] != 1 {
		t.Errorf("refused: %v\n%s", refused, w.out.String())
	}
	for _, says := range []string{"known secret", "written as base64", "pieces", "leave it out"} {
		if !strings.Contains(w.out.String(), says) {
			t.Errorf("the agent is not told %q: %s", says, w.out.String())
		}
	}
	rec, err := w.c.Receipt(context.Background(), store.ID(r.Runs[0]))
	if err != nil || len(rec.Network.Found) == 0 || rec.Network.Found[0].Name != "supervise.carboy.internal" {
		t.Errorf("%v: the receipt does not tell of it: %+v", err, rec)
	}
}

// issueVictimEnv has the test binary work on an issue in a world's place, to be killed.
const issueVictimEnv = "CARBOY_TEST_ISSUE_VICTIM"

// issueVictim runs as that process.
func issueVictim() {
	file := os.Getenv(issueVictimEnv)
	if file == "" {
		return
	}
	var v struct {
		Vars map[string]string
		ID   string
		Slug string
		Text string
	}
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	var c *Client
	if err == nil {
		c, err = Open(context.Background(), Options{Env: func(n string) string { return v.Vars[n] }})
	}
	var w *bottlework.Bottles
	if err == nil {
		w, err = bottlework.New(bottlework.Options{Host: c.host, Keeper: c.bottles, Judge: c.judge, Worker: c.worker})
	}
	if err == nil {
		t := aTurn(v.ID, v.Slug, v.Text)
		t.OnBottle = func(s string) { fmt.Println("bottle", s) }
		_, err = w.Turn(context.Background(), t)
	}
	fmt.Fprintln(os.Stderr, "the victim lives:", err)
	os.Exit(1)
}

// killed runs a turn in a process that is killed as soon as the channel is closed.
func (w *issueWorld) killed(id, slug, script string, at <-chan struct{}) {
	w.t.Helper()
	kill(w.t, issueVictimEnv, map[string]any{"Vars": w.vars, "ID": id, "Slug": slug, "Text": script}, at, func() {})
}

// TestF2IssueTurnKilled kills carboy where upstream's hooks see it: while a push is on its way,
// when it has arrived, and while an agent works that pushes itself. The same turn then ends
// with one commit and one verdict, and leaves no bottle and no key.
func TestF2IssueTurnKilled(t *testing.T) {
	for _, at := range []string{"pre-receive", "post-update"} {
		t.Run(at, func(t *testing.T) {
			w := newIssueWorld(t)
			script := "echo one >answer"
			w.killed("7-1", "", script, w.hook(at, "sleep 1"))
			if err := os.Remove(filepath.Join(w.app, "hooks", at)); err != nil {
				t.Fatal(err)
			}
			w.reopened()
			r := w.passed(aTurn("7-1", "", script))
			if n := w.git("rev-list", "--count", issueBranch, "^main"); n != "1" {
				t.Errorf("%s commits: %+v", n, r)
			}
			w.oneVerdict()
			// And a turn in a bottle that goes on.
			script = "git fetch -q origin; echo two >>answer; git push -q origin HEAD:refs/heads/beside; sleep 2; exit 0"
			w.killed("7-2", r.Slug, script, w.hook("post-receive", "sleep 1"))
			if err := os.Remove(filepath.Join(w.app, "hooks/post-receive")); err != nil {
				t.Fatal(err)
			}
			w.reopened()
			n := w.passed(aTurn("7-2", r.Slug, script))
			if w.git("rev-parse", issueBranch+"^") != r.Commit || w.git("show", issueBranch+":answer") != "one\ntwo" || n.Slug != r.Slug {
				t.Errorf("%+v %s", n, w.git("log", "-p", issueBranch))
			}
		})
	}
}

func (w *issueWorld) oneVerdict() {
	w.t.Helper()
	if all, err := w.c.Verdicts(context.Background(), 10); err != nil || len(all) != 1 {
		w.t.Errorf("verdicts: %d %v", len(all), err)
	}
}

// reopened opens the state as the next process does, and has that work on.
func (w *issueWorld) reopened() {
	w.t.Helper()
	c, err := Open(context.Background(), reopen(w.c.host.Opened))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	w.c, w.gitWorld.world.c, w.b = c, c, w.open(c)
}

// TestIssueTurnDied: a turn whose carboy died between any two of its steps goes on.
func TestIssueTurnDied(t *testing.T) {
	w := newIssueWorld(t)
	r := &orchestrate.TurnResult{}
	for i, id := range []string{"7-1", "7-2"} {
		for _, state := range []work.AttemptState{work.AttemptPending, work.AttemptJudging, work.AttemptRecorded, work.AttemptPushing, work.AttemptPushed} {
			died := false
			b, err := bottlework.New(bottlework.Options{Host: w.c.host, Keeper: w.c.bottles, Judge: w.c.judge, Worker: w.c.worker, Output: &w.out, Dies: func(a work.Attempt) bool {
				died = died || a.State == state
				return a.State == state
			}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := b.Turn(context.Background(), aTurn(id, r.Slug, "echo x >>answer")); !errors.Is(err, work.ErrDied) || !died {
				t.Fatalf("%s at %s: %v", id, state, err)
			}
		}
		r = w.passed(aTurn(id, r.Slug, "echo x >>answer"))
		if n := w.git("rev-list", "--count", issueBranch, "^main"); n != fmt.Sprint(i+1) {
			t.Errorf("%s commits after %s", n, id)
		}
	}
	if got := w.git("show", issueBranch+":answer"); got != "x\nx" {
		t.Errorf("%q", got)
	}
	rec, err := w.c.Receipt(context.Background(), store.ID(r.Runs[len(r.Runs)-1]))
	if err != nil || rec.Git == nil || len(rec.Git.Pushes) > 0 && rec.Git.Pushes[0].Verdict != receipt.Pushed {
		t.Errorf("%v %+v", err, rec)
	}
}
