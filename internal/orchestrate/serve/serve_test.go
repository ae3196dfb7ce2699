package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/engine"
	"github.com/carboy/carboy/internal/forge/forgetest"
	"github.com/carboy/carboy/internal/issues"
	"github.com/carboy/carboy/internal/orchestrate"
	"github.com/carboy/carboy/internal/orchestrate/config"
)

const hookKey = "a-secret-for-deliveries"

// worker stands in for bottles: each turn pushes a commit, unless it is told to block.
type worker struct {
	repo *forgetest.Repo

	mu        sync.Mutex
	turns     []orchestrate.Turn
	destroyed []string
	block     chan struct{} // nil: nothing blocks
	begun     chan struct{}
}

func (w *worker) Turn(ctx context.Context, t orchestrate.Turn) (*orchestrate.TurnResult, error) {
	w.mu.Lock()
	w.turns = append(w.turns, t)
	n, block := len(w.turns), w.block
	w.mu.Unlock()
	t.OnBottle("coder")
	w.begun <- struct{}{}
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	commit := fmt.Sprintf("%040d", n)
	w.repo.Push(t.Branch, commit)
	if _, err := t.Forge.SignalDone(ctx, "success", "it is done"); err != nil {
		return nil, err
	}
	now := time.Now()
	return &orchestrate.TurnResult{Slug: "coder", Started: true, Outcome: "passed", Verdict: "v1", Digest: strings.Repeat("a", 64), Commit: commit, Tokens: 12, Began: now, Ended: now}, nil
}

func (w *worker) Conflicts(context.Context, orchestrate.Turn) (bool, error) { return false, nil }
func (w *worker) Freeze(context.Context, string) error                      { return nil }
func (w *worker) Seal(context.Context, orchestrate.Merge) (string, error)   { return "", nil }
func (w *worker) Destroy(_ context.Context, _ issues.Key, slug string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.destroyed = append(w.destroyed, slug)
	return nil
}

// served is a running serve.
type served struct {
	t      *testing.T
	forge  *forgetest.Server
	o      Options
	repo   *forgetest.Repo
	worker *worker
	addr   string
	stop   func() error
}

// freePort returns an address of the loopback on which nobody listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func newServed(t *testing.T, more string) *served {
	t.Helper()
	f := forgetest.New(t)
	s := &served{t: t, forge: f, repo: f.Repo("org/app"), addr: freePort(t)}
	f.Member("ada", true)
	s.worker = &worker{repo: s.repo, begun: make(chan struct{}, 100)}
	text := fmt.Sprintf("forge: {provider: gitea, api: '%s', login: %s}\norganisation: bots\nrepositories: {org/app: {agents: [coder], bottles: [node]}}\ntokens: {service: {env: A}, shipper: {env: B}, orchestrator: {env: C}}\npoll: 10s\nwebhooks: {listen: '%s', secret: {env: HOOK}}\n%s", f.API, forgetest.Robot, s.addr, more)
	conf, err := config.Parse("orchestrate.yaml", []byte(text), func(name string) string {
		return map[string]string{"A": forgetest.Token, "B": forgetest.Token, "C": forgetest.Token, "HOOK": hookKey}[name]
	})
	if err != nil {
		t.Fatal(err)
	}
	runtime, err := os.MkdirTemp("", "cb-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(runtime) })
	s.o = Options{
		Config: conf, State: t.TempDir(), Runtime: runtime, Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})), Grace: time.Minute,
		Bottles: func(config.Repository) (orchestrate.Bottles, error) { return s.worker, nil },
	}
	return s
}

// start runs serve until the test ends or stop is called.
func (s *served) start() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan string, 1), make(chan error, 1)
	o := s.o
	o.Ready = func(addr string) { ready <- addr }
	go func() { ended <- Run(ctx, o) }()
	select {
	case addr := <-ready:
		if addr != s.addr {
			s.t.Errorf("listens at %s, want %s", addr, s.addr)
		}
	case err := <-ended:
		cancel()
		s.t.Fatal(err)
	}
	s.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	s.t.Cleanup(func() {
		if err := s.stop(); err != nil {
			s.t.Error(err)
		}
	})
}

func (s *served) get(path string) (int, string) {
	s.t.Helper()
	res, err := http.Get("http://" + s.addr + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// hook delivers a webhook about the first issue, and returns the code.
func (s *served) hook(delivery, key string) int {
	s.t.Helper()
	h, body := forgetest.Hook("issues", "labeled", "org/app", 1, false, "ada", delivery, key)
	req, err := http.NewRequest(http.MethodPost, "http://"+s.addr+"/any/path", bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header = h
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode
}

// until waits until the issue's status is as wanted.
func (s *served) until(what string, ok func(orchestrate.IssueStatus) bool) {
	s.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	over := time.After(time.Minute)
	for {
		r, err := orchestrate.Status(context.Background(), StateDir(s.o.State))
		if err != nil {
			s.t.Fatal(err)
		}
		if len(r.Issues) == 1 && ok(r.Issues[0]) {
			return
		}
		select {
		case <-tick.C:
		case <-over:
			s.t.Fatalf("not %s: %+v", what, r.Issues)
		}
	}
}

func (s *served) issue(label string) {
	s.repo.Issue("ada", "Mend it", "It is broken.", []string{label}, []string{"ada"})
}

// TestServe: a webhook begins the work, the pages tell about it, and the end ends well.
func TestServe(t *testing.T) {
	s := newServed(t, "")
	s.start()
	if code, text := s.get("/healthz"); code != 200 || text != "ok\n" {
		t.Errorf("healthz: %d %s", code, text)
	}
	if code, _ := s.get("/readyz"); code != 200 {
		t.Errorf("readyz: %d", code)
	}
	if code := s.hook("d1", "another secret of somebody"); code != http.StatusUnauthorized {
		t.Errorf("a forged delivery: %d", code)
	}
	s.issue("carboy:coder")
	for range 2 {
		if code := s.hook("d2", hookKey); code != http.StatusNoContent {
			t.Errorf("a delivery: %d", code)
		}
	}
	s.until("with a pull request", func(i orchestrate.IssueStatus) bool { return i.State == "frozen" && i.PullURL != "" })
	if p := s.repo.Pulls(); len(p) != 1 {
		t.Errorf("%d pull requests", len(p))
	}
	if turn := s.worker.turns[0]; !slices.Equal(turn.Bottles, []string{"node"}) || turn.Agent != "coder" {
		t.Errorf("%+v", turn)
	}
	code, text := s.get("/metrics")
	for _, want := range []string{`carboy_issues{state="frozen"} 1`, `carboy_issues{state="running"} 0`, `carboy_hooks_total{result="taken"} 2`, `carboy_hooks_total{result="duplicate"} 1`, `carboy_hooks_total{result="refused"} 1`, "carboy_turns_total 1", "carboy_looks_failed_total 0", "carboy_tokens 12", "carboy_failing 0", "# TYPE carboy_hooks_total counter"} {
		if code != 200 || !strings.Contains(text, want+"\n") {
			t.Errorf("%d, no %q in\n%s", code, want, text)
		}
	}
	if strings.Contains(text, forgetest.Token) || strings.Contains(text, hookKey) {
		t.Error("a secret is in the metrics")
	}
	// Another one does not get the state.
	held := s.o
	held.Config = newServed(t, "").o.Config // at another address
	if err := Run(t.Context(), held); !errors.As(err, new(*engine.HeldError)) {
		t.Errorf("a second process: %v", err)
	}
	if err := s.stop(); err != nil {
		t.Errorf("the end: %v", err)
	}
	if _, err := http.Get("http://" + s.addr + "/healthz"); err == nil {
		t.Error("it listens after its end")
	}
}

// TestOrders: the operator stops and retries a turn from another process.
func TestOrders(t *testing.T) {
	s := newServed(t, "")
	k := issues.Key{Owner: "org", Repo: "app", Number: 1}
	order := func(what string, k issues.Key) error { return Order(t.Context(), s.o.Runtime, s.o.State, what, k) }
	if err := order(Cancel, k); !errors.Is(err, ErrNotServed) {
		t.Errorf("nobody serves: %v", err)
	}
	if err := os.WriteFile(controlSocket(s.o.Runtime, s.o.State), nil, 0o600); err != nil { // of one that died
		t.Fatal(err)
	}
	s.worker.block = make(chan struct{})
	s.start()
	if err := order(Cancel, k); !errors.Is(err, issues.ErrMissing) {
		t.Errorf("an issue that is not known: %v", err)
	}
	s.issue("carboy:coder")
	s.hook("d1", hookKey)
	<-s.worker.begun
	if err := order(Cancel, k); err != nil {
		t.Fatal(err)
	}
	s.until("stopped", func(i orchestrate.IssueStatus) bool { return i.State == "frozen" && i.PullURL == "" })
	if err := order(Cancel, k); err == nil || !strings.Contains(err.Error(), "no turn of it runs") {
		t.Errorf("nothing runs: %v", err)
	}
	s.worker.mu.Lock()
	s.worker.block = nil
	s.worker.mu.Unlock()
	if err := order(Retry, k); err != nil {
		t.Fatal(err)
	}
	s.until("with a pull request", func(i orchestrate.IssueStatus) bool { return i.State == "frozen" && i.PullURL != "" })
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if err := order(Retry, k); !errors.Is(err, ErrNotServed) {
		t.Errorf("after the end: %v", err)
	}
}

// TestAgentsOfARepository: a label names no agent that the configuration does not allow there.
func TestAgentsOfARepository(t *testing.T) {
	s := newServed(t, "")
	s.start()
	s.issue("carboy:other")
	s.hook("d1", hookKey)
	s.until("refused", func(i orchestrate.IssueStatus) bool { return i.Outcome == "final" })
	if len(s.worker.turns) != 0 {
		t.Errorf("%+v", s.worker.turns)
	}
	d, err := orchestrate.Describe(t.Context(), StateDir(s.o.State), issues.Key{Owner: "org", Repo: "app", Number: 1})
	if err != nil || len(d.Turns) == 0 || !strings.Contains(d.Turns[0].Why, "may not name the agent") {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestAnotherRepository: a repository that takes the name of a renamed one gets nothing of
// what was begun in that one, and the status says why.
func TestAnotherRepository(t *testing.T) {
	s := newServed(t, "")
	s.start()
	s.issue("carboy:coder")
	s.hook("d1", hookKey)
	s.until("with a pull request", func(i orchestrate.IssueStatus) bool { return i.State == "frozen" && i.PullURL != "" })
	s.forge.Rename(s.repo, "org/moved")
	other := s.forge.Repo("org/app")
	other.Issue("ada", "Another", "Of another repository.", []string{"carboy:coder"}, []string{"ada"})
	other.Comment(1, "ada", "Please go on.")
	s.hook("d2", hookKey)
	s.until("stopped, with the reason", func(i orchestrate.IssueStatus) bool {
		return i.Failure != nil && strings.Contains(i.Failure.Error, "is another repository now")
	})
	s.worker.mu.Lock()
	turns := len(s.worker.turns)
	s.worker.mu.Unlock()
	if turns != 1 || len(other.Pulls()) != 0 || len(other.Pushes()) != 0 || len(other.Comments(1)) != 1 || len(other.Statuses()) != 0 {
		t.Errorf("%d turns, pull requests %v, comments %v", turns, other.Pulls(), other.Comments(1))
	}
}

// TestGoesOn: an end in the middle of a turn loses nothing.
func TestGoesOn(t *testing.T) {
	s := newServed(t, "")
	s.worker.block = make(chan struct{})
	s.start()
	s.issue("carboy:coder")
	s.hook("d1", hookKey)
	<-s.worker.begun
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	close(s.worker.block)
	s.start()
	s.until("with a pull request", func(i orchestrate.IssueStatus) bool { return i.State == "frozen" && i.PullURL != "" })
	if p := s.repo.Pulls(); len(p) != 1 {
		t.Errorf("%d pull requests", len(p))
	}
}

// TestRefusesToStart: what is missing is said before anything begins.
func TestRefusesToStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, x := range []struct {
		name   string
		change func(*served)
		says   string
	}{
		{"no token", func(s *served) { s.o.Config.Tokens[config.Shipper] = config.Source{Env: "NONE"} }, "$NONE is not set"},
		{"no secret", func(s *served) { s.o.Config.Webhooks.Secret = config.Source{File: filepath.Join(s.o.State, "none")} }, "no such file"},
		{"an address that is taken", func(s *served) { s.o.Config.Webhooks.Listen = taken.Addr().String() }, "webhooks.listen"},
		{"no bottles", func(s *served) {
			s.o.Bottles = func(config.Repository) (orchestrate.Bottles, error) { return nil, errors.New("no bottles here") }
		}, "no bottles here"},
	} {
		s := newServed(t, "")
		x.change(s)
		if err := Run(t.Context(), s.o); err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v, want an error that says %q", x.name, err, x.says)
		}
	}
}
