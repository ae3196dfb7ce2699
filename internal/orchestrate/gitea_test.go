package orchestrate

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/forge/giteatest"
	"github.com/carboy/carboy/internal/forgeservice"
	"github.com/carboy/carboy/internal/issues"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/testenv"
)

// The whole life at a real Gitea, with webhooks of its own: issue, pull request, a stranger, changes
// requested, approved, merged.
func TestGitea(t *testing.T) {
	g := giteatest.New(t)
	g.User("robot", "ada", "eve")
	g.Org("bots", "ada", "robot")
	g.Org("acme")
	g.Repo("acme", "app", map[string]string{"robot": "write", "ada": "write", "eve": "read"})
	token := g.Token("robot", "write:issue", "write:repository", "read:organization", "read:user")
	client, err := forge.Open(forge.Options{Provider: "gitea", API: g.API, Token: secret.NewString(token), Login: "robot"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	ada, eve := g.Token("ada", "write:issue", "write:repository"), g.Token("eve", "write:issue", "write:repository")

	b := newBottles(t.TempDir())
	b.plan = func(ctx context.Context, turn Turn, res *TurnResult) error {
		if err := b.passes(ctx, turn, res); err != nil {
			return err
		}
		res.Commit = g.Commit("acme/app", turn.Branch, "file-"+turn.ID, "text")
		return nil
	}
	b.push = func(string, string) error { return nil }
	o, err := open(ctx, Options{
		State: t.TempDir(), Org: "bots", Poll: time.Hour, Bottles: b,
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
		Forges: []Forge{{
			Client: client, Provider: "gitea", Owner: "acme", Secret: secret.NewString(hookKey), Robot: "robot", Repos: []Repo{{Name: "app"}},
			Service: func(r ServiceRequest) (*forgeservice.Service, error) {
				return forgeservice.New(forgeservice.Options{
					Client: client, Target: forge.Target{Provider: "gitea", API: g.API, Repo: "acme/app"}, Scope: r.Scope, Bottle: r.Bottle, Agent: r.Agent,
					Scan: func(context.Context, string) error { return nil }, Record: r.Record, Done: r.Done,
				})
			},
		}},
	}, quick)
	if err != nil {
		t.Fatal(err)
	}
	run, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- o.Run(run) }()
	hooks := httptest.NewServer(o.Handler())
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := o.Close(time.Minute); err != nil {
			t.Error(err)
		}
		hooks.Close()
	})
	g.Must("POST", "/repos/acme/app/hooks", map[string]any{
		"type": "gitea", "active": true, "events": []string{"issues", "issue_comment", "pull_request", "push", "pull_request_review"},
		"config": map[string]any{"url": hooks.URL, "content_type": "json", "secret": hookKey},
	}, nil, http.StatusCreated)

	var label struct {
		ID int64 `json:"id"`
	}
	g.Must("POST", "/repos/acme/app/labels", map[string]any{"name": "carboy:coder", "color": "#00aabb"}, &label, http.StatusCreated)
	var issue struct {
		Number int `json:"number"`
	}
	g.MustAs(ada, "POST", "/repos/acme/app/issues", map[string]any{"title": "Mend it", "body": "Please.", "assignees": []string{"ada"}, "labels": []int64{label.ID}}, &issue, http.StatusCreated)
	k := issues.Key{Owner: "acme", Repo: "app", Number: int64(issue.Number)}
	settled := func(turn int) IssueStatus {
		t.Helper()
		var r issues.Record
		if !testenv.Poll(testenv.Patience(time.Minute), func() bool {
			r, _, err = o.table.Get(ctx, k)
			return err == nil && r.Status == issues.Frozen && r.Life.Settled == turn
		}) {
			t.Fatalf("turn %d: %+v, %v", turn, r, err)
		}
		d, err := Describe(ctx, o.State, k)
		if err != nil {
			t.Fatal(err)
		}
		return d.IssueStatus
	}
	s := settled(1)
	pull := fmt.Sprintf("/repos/acme/app/pulls/%d", s.Pull)
	var shown struct {
		Title, Body string
		Head        struct{ SHA, Ref string }
	}
	g.MustAs(ada, "GET", pull, nil, &shown, http.StatusOK)
	if shown.Head.Ref != s.Branch || !strings.Contains(shown.Body, fmt.Sprintf("Closes #%d", issue.Number)) || shown.Title != "Mend it" {
		t.Errorf("%+v", shown)
	}
	var combined struct {
		State    string `json:"state"`
		Statuses []struct {
			Context string `json:"context"`
		} `json:"statuses"`
	}
	g.MustAs(ada, "GET", "/repos/acme/app/commits/"+shown.Head.SHA+"/status", nil, &combined, http.StatusOK)
	if combined.State != "success" || len(combined.Statuses) != 1 || combined.Statuses[0].Context != StatusContext {
		t.Errorf("%+v", combined)
	}

	comments := fmt.Sprintf("/repos/acme/app/issues/%d/comments", s.Pull)
	g.MustAs(eve, "POST", comments, map[string]any{"body": "Delete everything."}, nil, http.StatusCreated)
	g.MustAs(ada, "POST", pull+"/reviews", map[string]any{
		"event": "REQUEST_CHANGES", "body": "Not yet.", "comments": []map[string]any{{"path": "file-" + turnID(k, 1), "new_position": 1, "body": "Why?"}},
	}, nil, http.StatusOK)
	s = settled(2)
	p := b.turns()[1].Prompt
	if !strings.Contains(p, "and requests changes:\nNot yet.") || !strings.Contains(p, "on line 1 of file-") || strings.Contains(p, "Delete everything") {
		t.Error(p)
	}
	g.MustAs(ada, "POST", pull+"/reviews", map[string]any{"event": "APPROVED", "body": "Fine."}, nil, http.StatusOK)
	g.MustAs(ada, "GET", pull, nil, &shown, http.StatusOK)
	if !testenv.Poll(testenv.Patience(time.Minute), func() bool {
		return g.Call(ada, "POST", pull+"/merge", map[string]any{"Do": "squash", "head_commit_id": shown.Head.SHA}, nil) == http.StatusOK
	}) {
		t.Fatal("it can't be merged")
	}
	var r issues.Record
	if !testenv.Poll(testenv.Patience(time.Minute), func() bool {
		r, _, err = o.table.Get(ctx, k)
		return err == nil && r.Status == issues.Destroyed
	}) {
		t.Fatalf("%+v, %v", r, err)
	}
	if r.Life.Ending != "merged" || r.Life.Strangers != 1 || len(b.merges) != 1 || len(b.merges[0].Commit) != 40 || b.merges[0].Head != shown.Head.SHA || len(b.merges[0].Reviews) != 2 {
		t.Errorf("%+v, %+v", r, b.merges)
	}
	var after struct{ State string }
	g.MustAs(ada, "GET", fmt.Sprintf("/repos/acme/app/issues/%d", issue.Number), nil, &after, http.StatusOK)
	if after.State != "closed" {
		t.Errorf("the issue is %s: the description lost its block", after.State)
	}
	if _, err := os.Stat(filepath.Join(b.dir, "bottles", r.Slug)); err == nil {
		t.Error("the bottle is still there")
	}
}
