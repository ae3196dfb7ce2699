package forge_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/forge/giteatest"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/testenv"
)

const (
	app = "ada/app"
	org = "bots"
)

// least are the scopes that the package's comment says a token needs.
var least = []string{"write:issue", "write:repository", "read:organization", "read:user"}

// gitea is a Gitea with a repository: ada owns it, bob and the robot may write, eve may read.
// ada and the robot are members of the organisation.
type gitea struct {
	*giteatest.Server
	t *testing.T
}

func newGitea(t *testing.T) *gitea {
	g := &gitea{giteatest.New(t), t}
	g.User("robot", "ada", "bob", "eve", "mallory")
	g.Org(org, "robot", "ada")
	g.Repo("ada", "app", map[string]string{"robot": "write", "bob": "write", "eve": "read"})
	return g
}

func (g *gitea) client(api, login string, scopes ...string) *forge.Client {
	g.t.Helper()
	return g.clientOf(forge.Options{API: api, Token: secret.NewString(g.Token(login, scopes...))})
}

func (g *gitea) clientOf(o forge.Options) *forge.Client {
	g.t.Helper()
	o.Provider = "gitea"
	c, err := forge.Open(o)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(c.Close)
	return c
}

// as calls the API as a person.
func (g *gitea) as(login, method, path string, in, out any, codes ...int) {
	g.t.Helper()
	g.MustAs(login+":"+giteatest.Password(login), method, path, in, out, codes...)
}

func (g *gitea) issue(title, body string) forge.Thread {
	g.t.Helper()
	var out struct {
		Number int `json:"number"`
	}
	g.as("ada", "POST", "/repos/"+app+"/issues", map[string]any{"title": title, "body": body, "assignees": []string{"robot"}}, &out, http.StatusCreated)
	return forge.Thread{Number: out.Number}
}

func (g *gitea) comments(at forge.Thread) (out []string) {
	g.t.Helper()
	var all []struct {
		Body string `json:"body"`
	}
	g.as("ada", "GET", fmt.Sprintf("/repos/%s/issues/%d/comments", app, at.Number), nil, &all, http.StatusOK)
	for _, m := range all {
		out = append(out, m.Body)
	}
	return out
}

func check(t *testing.T, what string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		t.Errorf("%s:\n got %s\nwant %s", what, g, w)
	}
}

func fine(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestGitea(t *testing.T) {
	g := newGitea(t)
	c := g.client(g.API+"/", "robot", least...)
	ctx := t.Context()

	a, err := c.Account(ctx)
	fine(t, err)
	check(t, "account", []any{a.Login, a.Admin}, []any{"robot", false})
	for login, want := range map[string]bool{"ada": true, "robot": true, "eve": false} {
		ok, err := c.Member(ctx, org, login)
		if err != nil || ok != want {
			t.Errorf("%s is a member: %v %v", login, ok, err)
		}
	}
	if ok, err := g.client(g.API, "bob", "read:organization").Member(ctx, org, "ada"); ok || err == nil || !strings.Contains(err.Error(), "no member of the organisation") {
		t.Errorf("asked by one who is no member: %v %v", ok, err)
	}

	// More than a page of issues.
	begin := time.Now().Add(-time.Minute)
	first := g.issue("Broken", "")
	for i := range 55 {
		g.issue(fmt.Sprint("Issue ", i), "text")
	}
	var label struct {
		ID int64 `json:"id"`
	}
	g.as("ada", "POST", "/repos/"+app+"/labels", map[string]any{"name": "bot-bottle:coder", "color": "#00aabb"}, &label, http.StatusCreated)
	g.as("ada", "POST", fmt.Sprintf("/repos/%s/issues/%d/labels", app, first.Number), map[string]any{"labels": []int64{label.ID}}, nil, http.StatusOK)
	i, err := c.Issue(ctx, app, first)
	fine(t, err)
	check(t, "issue", []any{i.Number, i.Pull, i.Title, i.Body, i.Open, i.Author.Login, i.Assignees, i.Labels}, []any{first.Number, false, "Broken", "", true, "ada", []string{"robot"}, []string{"bot-bottle:coder"}})
	all, err := c.Changed(ctx, app, begin)
	fine(t, err)
	check(t, "changed", len(all), 56)
	later, err := c.Changed(ctx, app, time.Now().Add(time.Hour))
	fine(t, err)
	check(t, "changed later", len(later), 0)

	m, err := c.PostOnce(ctx, app, first, "run-1/start", "I begin.")
	fine(t, err)
	again, err := c.PostOnce(ctx, app, first, "run-1/start", "I begin.")
	fine(t, err)
	if m.ID != again.ID || m.Author.Login != "robot" || len(g.comments(first)) != 1 {
		t.Errorf("%+v and %+v: %q", m, again, g.comments(first))
	}
	g.as("eve", "POST", fmt.Sprintf("/repos/%s/issues/%d/comments", app, first.Number), map[string]any{"body": "x\n\n<!-- carboy:run-1/end -->"}, nil, http.StatusCreated)
	_, err = c.PostOnce(ctx, app, first, "run-1/end", "I end.")
	fine(t, err)
	list, more, err := c.Comments(ctx, app, first, time.Time{})
	fine(t, err)
	check(t, "comments", []any{more, len(list), list[0].Author.Login, list[1].Author.Login, list[2].Author.Login}, []any{false, 3, "robot", "eve", "robot"})
	list, more, err = c.Comments(ctx, app, first, time.Now().Add(time.Hour))
	fine(t, err)
	check(t, "comments since", []any{len(list), more}, []any{0, false})

	g.pulls(ctx, c, first)
	g.conflict(ctx, c)
	g.guard(ctx, c)
	g.renamed(ctx, c, first)
}

// treeOf asks git for a commit's tree.
func (g *gitea) treeOf(commit string) string {
	t := g.t
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", args...)
		cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0"}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	dir := t.TempDir()
	git("-c", "http.extraHeader=Authorization: token "+g.Token("robot", "read:repository"), "clone", "--quiet", "--bare", g.URL+"/"+app+".git", dir)
	return git("-C", dir, "rev-parse", commit+"^{tree}")
}

// renamed has somebody rename the repository, and make another of its name.
func (g *gitea) renamed(ctx context.Context, c *forge.Client, first forge.Thread) {
	t := g.t
	old, err := c.Repository(ctx, "ADA/App")
	fine(t, err)
	check(t, "repository", []any{old.ID > 0, old.FullName, old.DefaultBranch, old.Private, old.Archived}, []any{true, app, "main", true, false})

	// Nothing is followed, and the error says where it is.
	g.as("ada", "PATCH", "/repos/"+app, map[string]any{"name": "renamed"}, nil, http.StatusOK)
	_, err = c.Issue(ctx, app, first)
	_, err2 := c.Repository(ctx, app)
	_, err3 := c.PostOnce(ctx, app, first, "renamed", "x")
	_, err4 := c.OpenPullRequest(ctx, app, forge.NewPullRequest{Base: "main", Head: "x", Title: "x"})
	for _, err := range []error{err, err2, err3, err4} {
		if err == nil || !strings.Contains(err.Error(), "/repos/ada/renamed") {
			t.Errorf("renamed: %v", err)
		}
	}
	// The control: by its new name it is there, and is the same.
	_, err = c.Issue(ctx, "ada/renamed", first)
	fine(t, err)
	moved, err := c.Repository(ctx, "ada/renamed")
	fine(t, err)
	check(t, "renamed", []any{moved.ID, moved.FullName}, []any{old.ID, "ada/renamed"})

	g.Repo("ada", "app", map[string]string{"robot": "write"})
	other, err := c.Repository(ctx, app)
	fine(t, err)
	if other.ID == old.ID || other.FullName != app {
		t.Errorf("another of its name: %+v", other)
	}
	g.as("ada", "PATCH", "/repos/"+app, map[string]any{"archived": true, "private": false}, nil, http.StatusOK)
	other, err = c.Repository(ctx, app)
	fine(t, err)
	check(t, "archived", []any{other.Archived, other.Private}, []any{true, false})
	// Nobody may write to an archived one, and the error is the forge's.
	if _, err := c.PostOnce(ctx, app, first, "archived", "x"); err == nil || strings.Contains(err.Error(), "may have arrived") {
		t.Errorf("archived: %v", err)
	}
}

// conflict makes two branches change one line, and merges one of them.
func (g *gitea) conflict(ctx context.Context, c *forge.Client) {
	t := g.t
	mergeable := func(n int, want bool) bool {
		return testenv.Poll(testenv.Patience(time.Minute), func() bool {
			p, err := c.PullRequest(ctx, app, n)
			fine(t, err)
			return p.Mergeable != nil && *p.Mergeable == want
		})
	}
	var numbers []int
	for _, path := range []string{"same/z", "same.a", "same0", "ä ö"} { // whose order git has its own ideas of
		g.Commit(app, "main", path, "x")
	}
	for _, head := range []string{"one", "two"} {
		g.Commit(app, head, "same.txt", head+"\n")
		p, err := c.OpenPullRequest(ctx, app, forge.NewPullRequest{Base: "main", Head: head, Title: head})
		fine(t, err)
		numbers = append(numbers, p.Number)
		if !mergeable(p.Number, true) {
			t.Fatalf("%s never merges", head)
		}
	}
	g.as("ada", "POST", fmt.Sprintf("/repos/%s/pulls/%d/merge", app, numbers[0]), map[string]any{"Do": "merge"}, nil, http.StatusOK)
	if !mergeable(numbers[1], false) {
		t.Error("it still merges, though the base has the same line")
	}
	p, err := c.PullRequest(ctx, app, numbers[0])
	fine(t, err)
	if p.Mergeable != nil {
		t.Errorf("one that is merged: %+v", p)
	}
	// The merge, read back: its tree, and both parents.
	m, err := c.Commit(ctx, app, p.MergeCommit)
	fine(t, err)
	if m.SHA != p.MergeCommit || len(m.Tree) != 40 || m.Tree == m.SHA || len(m.Parents) != 2 || m.Parents[1] != p.HeadCommit {
		t.Errorf("%+v of %+v", m, p)
	}
	check(t, "the tree", m.Tree, g.treeOf(m.SHA))
	head, err := c.Commit(ctx, app, p.HeadCommit)
	fine(t, err)
	if head.Tree != m.Tree || len(head.Parents) != 1 || head.Parents[0] != m.Parents[0] {
		t.Errorf("%+v is not merged by %+v", head, m)
	}
	if _, err := c.Commit(ctx, app, strings.Repeat("0", 39)+"1"); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("one that there is not: %v", err)
	}
}

// pulls opens a pull request and has it reviewed.
func (g *gitea) pulls(ctx context.Context, c *forge.Client, issue forge.Thread) {
	t := g.t
	head := fmt.Sprintf("carboy/%d-mend", issue.Number)
	g.Commit(app, head, "main.go", "package main\n\nfunc main() {}\n")
	want := forge.NewPullRequest{Base: "main", Head: head, Title: "Mend it", Body: forge.Described("I mended it.", fmt.Sprintf("Closes #%d", issue.Number))}
	p, err := c.OpenPullRequest(ctx, app, want)
	fine(t, err)
	again, err := c.OpenPullRequest(ctx, app, want)
	fine(t, err)
	if p.Number != again.Number || !p.Open || p.Merged || p.Fork || p.Base != "main" || p.Head != head || len(p.HeadCommit) != 40 || p.Author.Login != "robot" {
		t.Errorf("%+v\n%+v", p, again)
	}
	at := forge.Thread{Number: p.Number, Pull: true}
	i, err := c.Issue(ctx, app, at)
	fine(t, err)
	check(t, "as an issue", []any{i.Pull, i.Title}, []any{true, "Mend it"})

	fine(t, c.UpdateDescription(ctx, app, at, "Another text.\n<!-- carboy:end -->", ""))
	p, err = c.PullRequest(ctx, app, p.Number)
	fine(t, err)
	if p.Body != forge.Described("Another text.\n<!-- carboy:end -->", fmt.Sprintf("Closes #%d", issue.Number)) {
		t.Errorf("%q", p.Body)
	}

	g.as("ada", "POST", fmt.Sprintf("/repos/%s/pulls/%d/reviews", app, p.Number), map[string]any{
		"event": "REQUEST_CHANGES", "body": "Not yet.", "commit_id": p.HeadCommit,
		"comments": []any{map[string]any{"path": "main.go", "body": "Why?", "new_position": 3}},
	}, nil, http.StatusOK)
	g.as("bob", "POST", fmt.Sprintf("/repos/%s/pulls/%d/reviews", app, p.Number), map[string]any{"event": "APPROVED", "body": "Fine.", "commit_id": p.HeadCommit}, nil, http.StatusOK)
	g.as("eve", "POST", fmt.Sprintf("/repos/%s/pulls/%d/reviews", app, p.Number), map[string]any{"event": "APPROVED", "body": "Me too.", "commit_id": p.HeadCommit}, nil, http.StatusOK)
	reviews := func() (out []string) {
		t.Helper()
		all, err := c.Reviews(ctx, app, p.Number)
		fine(t, err)
		for _, v := range all {
			s := fmt.Sprint(v.Author.Login, " ", v.State, " ", v.Void, " ", v.Commit == p.HeadCommit)
			for _, l := range v.Comments {
				s += fmt.Sprint(" ", l.Path, ":", l.Line, " ", l.Old, " ", l.Body)
			}
			out = append(out, s)
		}
		return out
	}
	check(t, "reviews", strings.Join(reviews(), "\n"), "ada changes requested false true main.go:3 false Why?\nbob approved false true\neve approved true true")
	g.Commit(app, head, "more.go", "package main\n")
	if !testenv.Poll(testenv.Patience(time.Minute), func() bool { return strings.Contains(strings.Join(reviews(), "\n"), "bob approved true true") }) {
		t.Errorf("a push left the approval as it was: %q", reviews())
	}

	for range 2 {
		fine(t, c.SetStatus(ctx, app, p.HeadCommit, forge.Status{State: "failure", Context: "carboy/gate", Description: "two tests fail", URL: "https://carboy.example/1"}))
	}
	fine(t, c.SetStatus(ctx, app, p.HeadCommit, forge.Status{State: "success", Context: "carboy/gate"}))
	var status struct {
		State    string `json:"state"`
		Statuses []any  `json:"statuses"`
	}
	g.as("ada", "GET", "/repos/"+app+"/commits/"+p.HeadCommit+"/status", nil, &status, http.StatusOK)
	check(t, "status", []any{status.State, len(status.Statuses)}, []any{"success", 1})

	// Closed, it is not the one that is asked for any more.
	g.as("ada", "PATCH", fmt.Sprintf("/repos/%s/pulls/%d", app, p.Number), map[string]any{"state": "closed"}, nil, http.StatusCreated)
	second, err := c.OpenPullRequest(ctx, app, want)
	fine(t, err)
	third, err := c.OpenPullRequest(ctx, app, want)
	fine(t, err)
	if second.Number == p.Number || third.Number != second.Number {
		t.Errorf("%d, %d, %d", p.Number, second.Number, third.Number)
	}
	p, err = c.PullRequest(ctx, app, p.Number)
	fine(t, err)
	check(t, "closed", []any{p.Open, p.Merged}, []any{false, false})
	merge := func() bool { // Gitea works out for a while whether it can be merged
		return g.Call("ada:"+giteatest.Password("ada"), "POST", fmt.Sprintf("/repos/%s/pulls/%d/merge", app, second.Number), map[string]any{"Do": "squash"}, nil) == http.StatusOK
	}
	if !testenv.Poll(testenv.Patience(time.Minute), merge) {
		t.Fatal("not merged")
	}
	merged, err := c.PullRequest(ctx, app, second.Number)
	fine(t, err)
	if merged.Open || !merged.Merged || len(merged.MergeCommit) != 40 {
		t.Errorf("%+v", merged)
	}
}

// guard protects the main branch, and asks who may do what.
func (g *gitea) guard(ctx context.Context, c *forge.Client) {
	t := g.t
	before, err := c.Protection(ctx, app, "main")
	fine(t, err)
	check(t, "unprotected", []any{before.Protected, *before.MayPush, *before.MayMerge, before.Approvals, before.Checks}, []any{false, true, true, 0, []string(nil)})
	g.as("ada", "POST", "/repos/"+app+"/branch_protections", map[string]any{
		"rule_name": "main", "enable_push": false, "required_approvals": 1, "enable_merge_whitelist": true, "merge_whitelist_usernames": []string{"ada"},
		"enable_status_check": true, "status_check_contexts": []string{"carboy/gate"}, "dismiss_stale_approvals": true,
	}, nil, http.StatusCreated)
	p, err := c.Protection(ctx, app, "main")
	fine(t, err)
	check(t, "to the robot", []any{p.Protected, *p.MayPush, *p.MayMerge, p.Approvals, p.Checks, p.Mergers, p.DismissStale}, []any{true, false, false, 1, []string{"carboy/gate"}, []string(nil), (*bool)(nil)})
	p, err = g.client(g.API, "ada", "read:repository").Protection(ctx, app, "main")
	fine(t, err)
	check(t, "to the owner", []any{*p.MayMerge, p.Mergers, *p.DismissStale}, []any{true, []string{"ada"}, true})

	access := func(c *forge.Client, repo string, want map[string]forge.Access) {
		t.Helper()
		for login, a := range want {
			if got, err := c.Access(ctx, repo, login); got != a || err != nil && a != forge.NoAccess {
				t.Errorf("%s at %s: %v %v, want %v", login, repo, got, err, a)
			}
		}
	}
	// The owner's token is told exactly; a writer's only who may write.
	access(g.client(g.API, "ada", "read:repository"), app, map[string]forge.Access{"ada": forge.AdminAccess, "bob": forge.WriteAccess, "eve": forge.ReadAccess, "mallory": forge.NoAccess})
	access(c, app, map[string]forge.Access{"robot": forge.WriteAccess, "ada": forge.WriteAccess, "bob": forge.WriteAccess, "eve": forge.NoAccess, "mallory": forge.NoAccess, "nobody": forge.NoAccess})

	// A repository of an organisation.
	g.Repo(org, "tool", map[string]string{"robot": "write", "eve": "read"})
	g.Team(org, "writers", map[string]string{"repo.code": "write", "repo.issues": "write", "repo.pulls": "write"}, "bob")
	g.Team(org, "readers", map[string]string{"repo.code": "read", "repo.issues": "read", "repo.pulls": "read"}, "mallory")
	g.Must("PUT", "/repos/"+org+"/tool/teams/writers", nil, nil, http.StatusNoContent)
	access(c, org+"/tool", map[string]forge.Access{"robot": forge.WriteAccess, "bob": forge.WriteAccess, "eve": forge.NoAccess, "mallory": forge.NoAccess})
	g.Must("PUT", "/repos/"+org+"/tool/teams/readers", nil, nil, http.StatusNoContent)
	if got, err := c.Access(ctx, org+"/tool", "mallory"); got != forge.NoAccess || err == nil || !strings.Contains(err.Error(), `team "readers" may not`) {
		t.Errorf("a reader whom the forge lets be assigned: %v %v", got, err)
	}
	access(c, org+"/tool", map[string]forge.Access{"eve": forge.NoAccess})
}

// TestGiteaScopes checks each call with the least scope, and that the message of one that
// fails with less names it.
func TestGiteaScopes(t *testing.T) {
	g := newGitea(t)
	ctx := t.Context()
	at := g.issue("Broken", "text")
	sha := g.Commit(app, "carboy/1-x", "a.go", "package a\n")
	p, err := g.client(g.API, "robot", least...).OpenPullRequest(ctx, app, forge.NewPullRequest{Base: "main", Head: "carboy/1-x", Title: "x"})
	fine(t, err)
	n := 0
	for _, v := range []struct {
		name, scope, less string
		do                func(c *forge.Client) error
	}{
		{"Account", "read:user", "read:notification", func(c *forge.Client) error { _, err := c.Account(ctx); return err }},
		{"Member", "read:organization", "read:user", func(c *forge.Client) error { _, err := c.Member(ctx, org, "ada"); return err }},
		{"Access", "read:repository", "write:issue", func(c *forge.Client) error { _, err := c.Access(ctx, app, "bob"); return err }},
		{"Issue", "read:issue", "write:repository", func(c *forge.Client) error { _, err := c.Issue(ctx, app, at); return err }},
		{"Issue of a pull request", "read:issue", "write:repository", func(c *forge.Client) error {
			_, err := c.Issue(ctx, app, forge.Thread{Number: p.Number, Pull: true})
			return err
		}},
		{"Changed", "read:issue", "write:repository", func(c *forge.Client) error {
			_, err := c.Changed(ctx, app, time.Time{}.AddDate(2000, 0, 0))
			return err
		}},
		{"Comments", "read:issue", "write:repository", func(c *forge.Client) error {
			_, _, err := c.Comments(ctx, app, at, time.Time{})
			return err
		}},
		{"PullRequest", "read:repository", "write:issue", func(c *forge.Client) error { _, err := c.PullRequest(ctx, app, p.Number); return err }},
		{"Reviews", "read:repository", "write:issue", func(c *forge.Client) error { _, err := c.Reviews(ctx, app, p.Number); return err }},
		{"Repository", "read:repository", "write:issue", func(c *forge.Client) error { _, err := c.Repository(ctx, app); return err }},
		{"Commit", "read:repository", "write:issue", func(c *forge.Client) error { _, err := c.Commit(ctx, app, sha); return err }},
		{"Protection", "read:repository", "write:issue", func(c *forge.Client) error { _, err := c.Protection(ctx, app, "main"); return err }},
		{"PostOnce", "write:issue", "read:issue", func(c *forge.Client) error {
			n++
			_, err := c.PostOnce(ctx, app, at, fmt.Sprint("k", n), "x")
			return err
		}},
		{"UpdateDescription", "write:issue", "read:issue", func(c *forge.Client) error { n++; return c.UpdateDescription(ctx, app, at, fmt.Sprint("x", n), "") }},
		{"UpdateDescription of a pull request", "write:issue", "read:issue", func(c *forge.Client) error {
			n++
			return c.UpdateDescription(ctx, app, forge.Thread{Number: p.Number, Pull: true}, fmt.Sprint("x", n), "")
		}},
		{"OpenPullRequest", "write:repository", "read:repository", func(c *forge.Client) error {
			n++
			head := fmt.Sprint("carboy/n-", n)
			g.Commit(app, head, fmt.Sprint("f", n, ".go"), "package a\n")
			_, err := c.OpenPullRequest(ctx, app, forge.NewPullRequest{Base: "main", Head: head, Title: "x"})
			return err
		}},
		{"SetStatus", "write:repository", "read:repository", func(c *forge.Client) error {
			return c.SetStatus(ctx, app, sha, forge.Status{State: "pending", Context: "carboy/gate"})
		}},
	} {
		client := func(scope string) *forge.Client {
			return g.clientOf(forge.Options{API: g.API, Token: secret.NewString(g.Token("robot", scope)), Login: "robot"})
		}
		if err := v.do(client(v.scope)); err != nil {
			t.Errorf("%s with %s: %v", v.name, v.scope, err)
		}
		err := v.do(client(v.less))
		if err == nil || !strings.Contains(err.Error(), "403 Forbidden (the token needs "+v.scope+")") {
			t.Errorf("%s with %s: %v", v.name, v.less, err)
		}
	}

	needs := map[forge.Need]string{
		forge.ReadIssues: "read:issue", forge.WriteIssues: "write:issue", forge.ReadRepository: "read:repository", forge.WriteRepository: "write:repository",
		forge.ReadMembers: "read:organization", forge.ReadAccount: "read:user",
	}
	for need, scope := range needs {
		lacks, unknown, err := g.client(g.API, "robot", scope).Lacks(ctx, app, org, need)
		if err != nil || lacks != nil || unknown != nil {
			t.Errorf("%s with %s: %q %q %v", need, scope, lacks, unknown, err)
		}
		lacks, unknown, err = g.client(g.API, "robot", "read:notification").Lacks(ctx, app, org, need)
		if err != nil || !slices.Equal(lacks, []string{scope}) || unknown != nil {
			t.Errorf("%s without %s: %q %q %v", need, scope, lacks, unknown, err)
		}
	}
	if got := g.comments(at); len(got) != 1 {
		t.Errorf("asking what a token lacks has written: %q", got)
	}
	_, err = g.clientOf(forge.Options{API: g.API, Token: secret.NewString("0123456789012345678901234567890123456789")}).Account(ctx)
	if err == nil || !strings.Contains(err.Error(), "401 Unauthorized (the token is not valid there)") {
		t.Errorf("a bad token: %v", err)
	}
	_, err = g.client(g.API, "mallory", least...).Issue(ctx, app, at)
	var e *forge.Error
	if !errors.As(err, &e) || e.Code != http.StatusNotFound {
		t.Errorf("a repository that one may not see: %v", err)
	}
}

// TestGiteaTorn cuts the connection to a real Gitea after each write that it carried out,
// or before, and writes again.
func TestGiteaTorn(t *testing.T) {
	g := newGitea(t)
	ctx := t.Context()
	target, err := url.Parse(g.URL)
	fine(t, err)
	var cut atomic.Int32 // 1: before, 2: after the next write
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ModifyResponse = func(res *http.Response) error {
		if res.Request.Method != http.MethodGet && cut.CompareAndSwap(2, 0) {
			panic(http.ErrAbortHandler)
		}
		return nil
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && cut.CompareAndSwap(1, 0) {
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r)
	}))
	defer srv.Close()
	c := g.client(srv.URL+"/api/v1", "robot", least...)
	at := g.issue("Broken", "text")
	sha := g.Commit(app, "carboy/1-x", "a.go", "package a\n")
	for i, when := range []string{"before", "after"} {
		post := func() error { _, err := c.PostOnce(ctx, app, at, when, "x"); return err }
		describe := func() error { return c.UpdateDescription(ctx, app, at, "text "+when, "Closes #1") }
		status := func() error { return c.SetStatus(ctx, app, sha, forge.Status{State: "success", Context: when}) }
		head := "carboy/2-" + when
		g.Commit(app, head, when+".go", "package a\n")
		open := func() error {
			_, err := c.OpenPullRequest(ctx, app, forge.NewPullRequest{Base: "main", Head: head, Title: when})
			return err
		}
		for name, do := range map[string]func() error{"comment": post, "description": describe, "status": status, "pull request": open} {
			cut.Store(int32(i + 1))
			if err := do(); err != nil && (when == "after" || name == "description" || name == "status") {
				t.Errorf("%s, cut %s: %v", name, when, err)
			}
			if cut.Load() != 0 {
				t.Errorf("%s, cut %s: nothing was cut", name, when)
			}
			if err := do(); err != nil {
				t.Errorf("%s, cut %s, again: %v", name, when, err)
			}
		}
	}
	check(t, "comments", strings.Join(g.comments(at), "|"), "x\n\n<!-- carboy:before -->|x\n\n<!-- carboy:after -->")
	var pulls []struct {
		Title string `json:"title"`
	}
	g.as("ada", "GET", "/repos/"+app+"/pulls?state=all", nil, &pulls, http.StatusOK)
	check(t, "pull requests", len(pulls), 2)
	i, err := c.Issue(ctx, app, at)
	fine(t, err)
	check(t, "description", i.Body, forge.Described("text after", "Closes #1"))
}

// TestGiteaHangs has the forge keep its answer to each write that it has carried out. Each
// call ends within its bound, and a second one doubles nothing.
func TestGiteaHangs(t *testing.T) {
	g := newGitea(t)
	ctx := t.Context()
	target, err := url.Parse(g.URL)
	fine(t, err)
	var hangs atomic.Bool
	var busy atomic.Int32
	proxy := httputil.NewSingleHostReverseProxy(target)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := httptest.NewRecorder()
		busy.Add(1)
		proxy.ServeHTTP(answer, r.Clone(context.WithoutCancel(r.Context())))
		busy.Add(-1)
		if hangs.Load() && (r.Method != http.MethodGet || strings.HasSuffix(r.URL.Path, app)) {
			<-r.Context().Done()
			return
		}
		w.WriteHeader(answer.Code)
		w.Write(answer.Body.Bytes())
	}))
	defer srv.Close()
	at := g.issue("Broken", "text")
	sha := g.Commit(app, "carboy/1-x", "a.go", "package a\n")
	token := secret.NewString(g.Token("robot", least...))
	c := g.clientOf(forge.Options{API: srv.URL + "/api/v1", Token: token, Login: "robot", Timeout: time.Second})
	patient := g.clientOf(forge.Options{API: srv.URL + "/api/v1", Token: token, Login: "robot"})
	for name, do := range map[string]func(c *forge.Client) error{
		"comment":     func(c *forge.Client) error { _, err := c.PostOnce(ctx, app, at, "k", "x"); return err },
		"description": func(c *forge.Client) error { return c.UpdateDescription(ctx, app, at, "new", "") },
		"pull request": func(c *forge.Client) error {
			_, err := c.OpenPullRequest(ctx, app, forge.NewPullRequest{Base: "main", Head: "carboy/1-x", Title: "x"})
			return err
		},
		"status": func(c *forge.Client) error {
			return c.SetStatus(ctx, app, sha, forge.Status{State: "success", Context: "x"})
		},
		"read": func(c *forge.Client) error { _, err := c.Repository(ctx, app); return err },
	} {
		hangs.Store(true)
		// What can be looked for may be found after all.
		if err := do(c); err == nil && (name == "status" || name == "read") || err != nil && !strings.Contains(err.Error(), "the forge did not answer within 1s") {
			t.Errorf("%s: %v", name, err)
		}
		if !testenv.Poll(testenv.Patience(time.Minute), func() bool { return busy.Load() == 0 }) {
			t.Fatal("the forge has not ended")
		}
		hangs.Store(false)
		for range 2 {
			if err := do(patient); err != nil {
				t.Errorf("%s, again: %v", name, err)
			}
		}
	}
	check(t, "comments", len(g.comments(at)), 1)
}

// TestGiteaHooks reads what a real Gitea delivers.
func TestGiteaHooks(t *testing.T) {
	g := newGitea(t)
	ctx := t.Context()
	key := secret.NewString("hook-secret-7Fq2")
	deliveries := g.Hook(app, key.UnsafeString())
	c := g.client(g.API, "robot", least...)
	at := g.issue("Broken", "text")
	m, err := c.PostOnce(ctx, app, at, "k", "x")
	fine(t, err)
	g.Commit(app, "carboy/1-x", "a.go", "package a\n")
	p, err := c.OpenPullRequest(ctx, app, forge.NewPullRequest{Base: "main", Head: "carboy/1-x", Title: "x"})
	fine(t, err)
	pull := forge.Thread{Number: p.Number, Pull: true}
	mp, err := c.PostOnce(ctx, app, pull, "k", "x")
	fine(t, err)
	g.as("ada", "POST", fmt.Sprintf("/repos/%s/pulls/%d/reviews", app, p.Number), map[string]any{"event": "REQUEST_CHANGES", "body": "Not yet.", "commit_id": p.HeadCommit}, nil, http.StatusOK)
	fine(t, c.SetStatus(ctx, app, p.HeadCommit, forge.Status{State: "success", Context: "carboy/gate"}))
	g.as("ada", "PATCH", fmt.Sprintf("/repos/%s/pulls/%d", app, p.Number), map[string]any{"state": "closed"}, nil, http.StatusCreated)

	want := map[string]bool{
		fmt.Sprintf("issue opened %v ada 0", at):                false,
		fmt.Sprintf("issue assigned %v ada 0", at):              false,
		fmt.Sprintf("comment created %v robot %d", at, m.ID):    false,
		fmt.Sprintf("comment created %v robot %d", pull, mp.ID): false,
		fmt.Sprintf("pull request opened %v robot 0", pull):     false,
		fmt.Sprintf("pull request closed %v ada 0", pull):       false,
		fmt.Sprintf("review reviewed %v ada 0", pull):           false,
		fmt.Sprintf("push  %v root-admin 0", forge.Thread{}):    false,
	}
	ctx, cancel := context.WithTimeout(ctx, testenv.Patience(time.Minute))
	defer cancel()
	var seen []string
	for left := len(want); left > 0; {
		select {
		case <-ctx.Done():
			t.Fatalf("not all were delivered: %v\nseen %q", want, seen)
		case d := <-deliveries:
			e, err := forge.ParseHook("gitea", key, d.Header, d.Body)
			if err != nil {
				t.Fatalf("%v: %s", err, d.Body)
			}
			if e.Repo != app || e.Delivery == "" || e.At.Pull && e.Kind == forge.PullEvent && e.Commit != p.HeadCommit {
				t.Errorf("%+v", e)
			}
			s := fmt.Sprint(string(e.Kind), " ", e.Action, " ", e.At, " ", e.Sender.Login, " ", e.Comment)
			seen = append(seen, s)
			if done, ok := want[s]; ok && !done {
				want[s] = true
				left--
			}
			if _, err := forge.ParseHook("gitea", secret.NewString("guess"), d.Header, d.Body); !errors.Is(err, forge.ErrNotSigned) {
				t.Errorf("signed by another: %v", err)
			}
		}
	}
}

// TestAdministration checks that deploy keys need an administrator of the repository. A
// robot that may write is refused, whatever its token may do.
func TestAdministration(t *testing.T) {
	g := newGitea(t)
	ctx := t.Context()
	line := publicKey(t)
	c := g.client(g.API, "ada", "write:repository")
	k, err := c.AddDeployKey(ctx, app, "carboy:x:app", line)
	fine(t, err)
	if _, err := c.AddDeployKey(ctx, app, "carboy:x:app", line); err == nil || !strings.Contains(err.Error(), "422") {
		t.Errorf("twice: %v", err)
	}
	all, err := c.DeployKeys(ctx, app)
	fine(t, err)
	if len(all) != 1 || all[0].ID != k.ID || k.Title != "carboy:x:app" || !strings.HasPrefix(line, all[0].Key) && !strings.HasPrefix(all[0].Key, line) {
		t.Errorf("%+v %+v", k, all)
	}

	for _, scopes := range [][]string{least, {"all"}} {
		robot := g.clientOf(forge.Options{API: g.API, Token: secret.NewString(g.Token("robot", scopes...)), Login: "robot"})
		_, err := robot.AddDeployKey(ctx, app, "x", publicKey(t))
		_, err2 := robot.DeployKeys(ctx, app)
		err3 := robot.RemoveDeployKey(ctx, app, k.ID)
		for what, err := range map[string]error{"adds": err, "lists": err2, "removes": err3} {
			if err == nil || !strings.Contains(err.Error(), "403 Forbidden (the token or its user may not do this)") {
				t.Errorf("a robot with %v %s a key: %v", scopes, what, err)
			}
		}
		// Nor may it change what guards the branch, or who may write.
		token := g.Token("robot", scopes...)
		for path, in := range map[string]any{
			"/branch_protections":     map[string]any{"rule_name": "main"},
			"/collaborators/mallory":  map[string]any{"permission": "write"},
			"/hooks":                  map[string]any{"type": "gitea", "config": map[string]any{"url": "http://127.0.0.1:1", "content_type": "json"}},
			"/collaborators/ada/none": nil,
		} {
			method := "POST"
			if strings.HasPrefix(path, "/collaborators") {
				method = "PUT"
			}
			if code := g.Call(token, method, "/repos/"+app+path, in, nil); code < 400 {
				t.Errorf("a robot with %v: %s %s: %d", scopes, method, path, code)
			}
		}
	}
	// An administrator's token that may only read is refused, and told what it lacks.
	if _, err := g.client(g.API, "ada", "read:repository").AddDeployKey(ctx, app, "x", publicKey(t)); err == nil || !strings.Contains(err.Error(), "the token needs write:repository") {
		t.Errorf("with a token that may read: %v", err)
	}
	// Made an administrator, the robot may: its place at the repository decides.
	g.Must("PUT", "/repos/"+app+"/collaborators/robot", map[string]any{"permission": "admin"}, nil, http.StatusNoContent)
	robot := g.client(g.API, "robot", "write:repository")
	access, err := robot.Access(ctx, app, "robot")
	fine(t, err)
	check(t, "access", access, forge.AdminAccess)
	if _, err := robot.AddDeployKey(ctx, app, "by the robot", publicKey(t)); err != nil {
		t.Errorf("an administrator: %v", err)
	}

	for range 2 { // a key that is gone is no error there
		fine(t, c.RemoveDeployKey(ctx, app, k.ID))
	}
	all, err = c.DeployKeys(ctx, app)
	fine(t, err)
	if len(all) != 1 || all[0].Title != "by the robot" {
		t.Errorf("keys left: %+v", all)
	}
}

func publicKey(t *testing.T) string {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	fine(t, err)
	authorized, err := ssh.NewPublicKey(public)
	fine(t, err)
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(authorized)))
}

// TestGiteaFlood has a stranger comment until an issue's comments are more than is read at
// once. What people write is still found, and carboy still writes once.
func TestGiteaFlood(t *testing.T) {
	g := newGitea(t)
	ctx := t.Context()
	c := g.client(g.API, "robot", least...)
	at := g.issue("Broken", "text")
	say := func(login, body string) {
		t.Helper()
		g.as(login, "POST", fmt.Sprintf("/repos/%s/issues/%d/comments", app, at.Number), map[string]any{"body": body}, nil, http.StatusCreated)
	}
	_, err := c.PostOnce(ctx, app, at, "before", "First.")
	fine(t, err)
	say("ada", "Please mend it.")
	begin := time.Now()
	for i := range 30 { // more than a page of other events
		g.as("ada", "PATCH", fmt.Sprintf("/repos/%s/issues/%d", app, at.Number), map[string]any{"title": fmt.Sprint("Broken ", i)}, nil, http.StatusCreated)
	}
	// In full it takes minutes, as Gitea looks long at such a text.
	size := 1 << 10
	if testenv.Exhaustive() {
		size = 1 << 20
	} else {
		c.SetBounds(8 << 10)
	}
	for range 33 {
		say("eve", strings.Repeat("<", size)) // six bytes each, in JSON
	}
	say("eve", strings.Repeat("x", 9*size)) // one that is too large by itself
	say("ada", "Still broken.")

	var authors []string
	more, err := c.EachComment(ctx, app, at, time.Time{}, func(m forge.Comment) bool {
		if m.Author.Login != "eve" {
			authors = append(authors, m.Author.Login+" "+strings.SplitN(m.Body, "\n", 2)[0])
		}
		return true
	})
	if err != nil || !more {
		t.Errorf("more: %v, %v", more, err)
	}
	check(t, "the others' comments", authors, []string{"robot First.", "ada Please mend it.", "ada Still broken."})

	first, more, err := c.Comments(ctx, app, at, time.Time{})
	fine(t, err)
	if n := len(first); !more || n < 10 || n > 20 || first[0].Author.Login != "robot" || first[1].Author.Login != "ada" {
		t.Errorf("%d comments, more: %v", n, more)
	}
	for range 2 {
		_, err := c.PostOnce(ctx, app, at, "before", "First.")
		fine(t, err)
		_, err = c.PostOnce(ctx, app, at, "after", "Second.")
		fine(t, err)
	}
	since, more, err := c.Comments(ctx, app, at, begin.Add(time.Hour))
	check(t, "later", []any{len(since), more, err}, []any{0, false, nil})
	ours := 0
	_, err = c.EachComment(ctx, app, at, time.Time{}, func(m forge.Comment) bool {
		if m.Author.Login == "robot" {
			ours++
		}
		return true
	})
	fine(t, err)
	check(t, "ours", ours, 2)
}
