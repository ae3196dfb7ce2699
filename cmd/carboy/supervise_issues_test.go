package main

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/browsertest"
	"github.com/carboy/carboy/internal/issues"
	"github.com/carboy/carboy/internal/orchestrate"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise/supervisetest"
	"github.com/carboy/carboy/internal/supervise/web"
	"github.com/carboy/carboy/internal/testenv"
)

// issueTable makes the table of a state directory, with an issue whose first turn had a run.
func issueTable(t *testing.T, dir, run string) {
	t.Helper()
	table, err := issues.Open(t.Context(), filepath.Join(dir, "issues.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	k := issues.Key{Owner: "acme", Repo: "web", Number: 7}
	began := time.Now().Add(-time.Hour)
	turn := map[string]any{"number": 1, "id": "t1", "for": []string{"the issue by ada"}, "began": began, "summary": "mended\x1b[2J", "result": orchestrate.TurnResult{Outcome: "passed", Runs: []string{run}, Tokens: 4321, Began: began, Ended: time.Now()}}
	for _, err := range []error{
		table.Put(t.Context(), issues.Record{Key: k, Agent: "coder", Slug: "web-7", PullRequest: 12, Status: issues.Frozen, Life: issues.Life{
			Title: "Mend the login", URL: "https://git.example.org/acme/web/issues/7", PullURL: "https://git.example.org/acme/web/pulls/12", Turn: 1, Waits: "a review", Strangers: 3, Watchdog: true,
		}}),
		table.Set(t.Context(), k, "turn", "1", turn),
		table.SetNote(t.Context(), "waiting", "acme/web#8", map[string]any{"key": issues.Key{Owner: "acme", Repo: "web", Number: 8}, "title": "Write docs", "why": "nobody is assigned"}),
		table.SetNote(t.Context(), "failure", "acme/other", issues.Failure{Error: "404", Since: began, Tries: 3}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestSuperviseIssues: the page shows what the state directory holds, and the receipt that
// carboy receipt --html writes, with its script.
func TestSuperviseIssues(t *testing.T) {
	o := newOrchestrated(t, "http://127.0.0.1:1/api/v1")
	var stderr testenv.Buffer
	a := newApp(nil, &stderr, &stderr, func(name string) string { return o.env[name] })
	client, err := a.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	dir, err := a.orchestrateDir()
	if err != nil {
		t.Fatal(err)
	}
	p := pageIssues{dir, client}
	if l, err := p.List(t.Context()); err != nil || len(l.Issues)+len(l.Failing) != 0 {
		t.Fatalf("nothing was served: %+v %v", l, err)
	}

	runs, err := store.Open(filepath.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	run, err := runs.Create(t.Context(), store.Spec{Kind: store.KindRun, Workspace: store.Workspace{Path: store.Raw(t.TempDir())}, Mode: store.Overlay, Command: []string{"go", "test", "<b>./...</b>"}})
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	issueTable(t, dir, string(run.ID()))

	l, err := p.List(t.Context())
	if err != nil || len(l.Issues) != 2 || len(l.Failing) != 1 || !strings.HasPrefix(l.Failing[0], "acme/other: 404 (since ") {
		t.Fatalf("%+v %v", l, err)
	}
	if i := l.Issues[0]; i.Name != "acme/web#7" || i.Agent != "coder" || i.State != "frozen" || i.Ended || i.Turn != 1 || i.Pull != 12 || i.PullURL == "" || i.Waits != "a review" || i.Tokens != 4321 || len(i.Warnings) != 2 {
		t.Errorf("%+v", i)
	}
	i, err := p.Issue(t.Context(), "acme/web#7")
	if err != nil || len(i.Turns) != 1 || !slices.Equal(i.Turns[0].Runs, []string{string(run.ID())}) || i.Turns[0].Ended.IsZero() || i.Turns[0].For[0] != "the issue by ada" {
		t.Errorf("%+v %v", i, err)
	}
	if i, err := p.Issue(t.Context(), "acme/web#8"); err != nil || i.Waits != "nobody is assigned" || len(i.Turns) != 0 {
		t.Errorf("%+v %v", i, err)
	}
	for _, name := range []string{"acme/web#9", "acme/web", "", "../../x#1"} {
		if _, err := p.Issue(t.Context(), name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, id := range []string{"", "../" + string(run.ID()), strings.ToUpper(string(run.ID())), "01k9x3m7000000000000000000"} {
		if _, err := p.Receipt(t.Context(), id); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", id, err)
		}
	}
	if r, err := p.Receipt(t.Context(), string(run.ID())); err != nil || r.Policy != receipt.Policy() || strings.Contains(string(r.HTML), "<b>./") {
		t.Errorf("%v %s", err, r.HTML)
	}
	t.Run("in a browser", func(t *testing.T) { lookAtIssues(t, p) })
}

// lookAtIssues goes from the list to a receipt.
func lookAtIssues(t *testing.T, i web.Issues) {
	b := browsertest.Start(t)
	s, err := web.Listen(web.Options{Queue: &supervisetest.Queue{}, Issues: i})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	p := b.Open(t, s.Link(), browsertest.View{Width: 1280, Height: 800})
	p.Until(`location.pathname.startsWith("/s/") && document.querySelector("#issues")`)
	p.Loads(func() { p.Click("#issues") })
	p.Loads(func() { p.Click("#issues tbody a") })
	p.Until(`document.querySelector("#live:not([hidden]):not(.off)")`)
	p.Screenshot("supervise-issue", false)
	p.Loads(func() { p.Click(".runs a") })
	// A style of the receipt is in force, and its text is text.
	if got := browsertest.Eval[[]string](p, `[document.querySelector("h1").textContent, getComputedStyle(document.querySelector(".skip")).position, origin]`); len(got) != 3 || !strings.Contains(got[0], "<b>./...</b>") || got[1] == "static" || got[2] != "null" {
		t.Errorf("the receipt: %q", got)
	}
	p.Screenshot("supervise-receipt", false)
	p.Quiet(func(string) bool { return true })
}
