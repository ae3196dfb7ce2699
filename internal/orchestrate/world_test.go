package orchestrate

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/forge/forgetest"
	"github.com/carboy/carboy/internal/forgeservice"
	"github.com/carboy/carboy/internal/issues"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/testenv"
)

var ctx = context.Background()

const hookKey = "webhook-secret-of-the-test"

var quick = pace{gap: 5 * time.Millisecond, first: 5 * time.Millisecond, most: 40 * time.Millisecond, watch: 10 * time.Millisecond}

// bottles stands in for real ones. What they did is in files, so that it outlives a process:
// a turn that ended, and a bottle that is there. plan says what an agent does.
type bottles struct {
	dir  string
	push func(branch, commit string) error // to the forge
	plan func(ctx context.Context, t Turn, res *TurnResult) error

	mu        sync.Mutex
	now       map[issues.Key]int // turns under way
	seen      []Turn
	merges    []Merge
	conflicts bool
	frozen    []string
	destroyed []string
	failing   map[string]error
}

func newBottles(dir string) *bottles {
	return &bottles{dir: dir, now: map[issues.Key]int{}, failing: map[string]error{}}
}

func (b *bottles) fail(what string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.failing[what]
	delete(b.failing, what)
	return err
}

// write writes a file whole or not at all.
func write(path string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func commitOf(id string) string {
	sum := sha1.Sum([]byte(id))
	return hex.EncodeToString(sum[:])
}

func (b *bottles) Turn(ctx context.Context, t Turn) (*TurnResult, error) {
	b.mu.Lock()
	b.now[t.Issue]++
	if b.now[t.Issue] > 1 {
		defer b.mu.Unlock()
		return nil, fmt.Errorf("two turns of %v at a time", t.Issue)
	}
	b.seen = append(b.seen, t)
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.now[t.Issue]--
	}()
	if err := b.fail("turn"); err != nil {
		return nil, err
	}
	done := filepath.Join(b.dir, "turns", t.ID)
	if text, err := os.ReadFile(done); err == nil {
		res := new(TurnResult)
		return res, json.Unmarshal(text, res)
	}
	res := &TurnResult{Slug: t.Slug, Began: time.Now().UTC()}
	if _, err := os.Stat(filepath.Join(b.dir, "bottles", t.Slug)); t.Slug == "" || err != nil {
		res.Started = true
		res.Slug = "bottle-" + t.ID
	}
	if err := write(filepath.Join(b.dir, "bottles", res.Slug), t.ID); err != nil {
		return nil, err
	}
	t.OnBottle(res.Slug)
	t.OnCheckin()
	if err := b.plan(ctx, t, res); err != nil {
		return nil, err
	}
	res.Ended = time.Now().UTC()
	return res, write(done, res)
}

// passes is the plan of an agent that does its work: it posts a comment, and the gate passes.
func (b *bottles) passes(ctx context.Context, t Turn, res *TurnResult) error {
	for try := 1; ; try++ { // an agent is told to try again
		_, err := t.Forge.PostComment(ctx, int(t.Issue.Number), "", "I work on "+t.ID)
		if err == nil {
			break
		}
		if try == 10 {
			return err
		}
	}
	if _, err := t.Forge.SignalDone(ctx, "success", "It is done, and closes #99 too.\n\nReally."); err != nil {
		return err
	}
	res.Outcome, res.Commit, res.Verdict, res.Digest = "passed", commitOf(t.ID), "verdict-"+t.ID, strings.Repeat("ab", 32)
	res.Files = []File{{"cmd/main.go", 3, 1}, {"README.md", 1, 0}, {"logo.png", -1, -1}}
	res.Runs, res.Work, res.Tokens = []string{"run-" + t.ID}, "work-"+t.ID, 1000
	return b.push(t.Branch, res.Commit)
}

func (b *bottles) Conflicts(context.Context, Turn) (bool, error) {
	if err := b.fail("conflicts"); err != nil {
		return false, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.conflicts, nil
}

func (b *bottles) Freeze(_ context.Context, slug string) error {
	if err := b.fail("freeze"); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.frozen = append(b.frozen, slug)
	return nil
}

func (b *bottles) Destroy(_ context.Context, _ issues.Key, slug string) error {
	if err := b.fail("destroy"); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.destroyed = append(b.destroyed, slug)
	if err := os.Remove(filepath.Join(b.dir, "bottles", slug)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (b *bottles) Seal(_ context.Context, m Merge) (string, error) {
	if err := b.fail("seal"); err != nil {
		return "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.merges = append(b.merges, m)
	return commitOf("seal") + commitOf("seal")[:24], write(filepath.Join(b.dir, "seals", fmt.Sprint(m.Issue.Number)), m)
}

func (b *bottles) turns() []Turn {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.seen)
}

// world is a forge, and an orchestrator that can be ended and opened again.
type world struct {
	t       *testing.T
	forge   *forgetest.Server
	repo    *forgetest.Repo
	bottles *bottles
	options Options
	o       *Orchestrator
	hooks   *httptest.Server
	stop    func() error
	n       int
}

func newWorld(t *testing.T, change ...func(*Options)) *world {
	t.Helper()
	w := &world{t: t, forge: forgetest.New(t), bottles: newBottles(t.TempDir())}
	w.repo = w.forge.Repo("org/app")
	w.bottles.plan = w.bottles.passes
	w.bottles.push = func(branch, commit string) error { w.repo.Push(branch, commit); return nil }
	w.options = optionsFor(w.forge.Client(5*time.Second), w.forge.API, t.TempDir(), w.bottles)
	w.options.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	for _, c := range change {
		c(&w.options)
	}
	w.start()
	t.Cleanup(func() { w.end() })
	return w
}

// optionsFor returns options for a forge of package forgetest.
func optionsFor(client *forge.Client, api, state string, b Bottles) Options {
	return Options{
		State: state, Org: "bots", Poll: time.Second, Bottles: b, Log: slog.New(slog.DiscardHandler),
		Forges: []Forge{{
			Client: client, Provider: "gitea", Owner: "org", Secret: secret.NewString(hookKey), Robot: forgetest.Robot, Bots: []string{"helper-bot"},
			Repos: []Repo{{Name: "app"}},
			Service: func(r ServiceRequest) (*forgeservice.Service, error) {
				return forgeservice.New(forgeservice.Options{
					Client: client, Target: forge.Target{Provider: "gitea", API: api, Repo: r.Issue.Owner + "/" + r.Issue.Repo}, Scope: r.Scope, Bottle: r.Bottle, Agent: r.Agent,
					Scan: func(context.Context, string) error { return nil }, Record: r.Record, Done: r.Done,
				})
			},
		}},
	}
}

func (w *world) start() {
	w.t.Helper()
	o, err := open(ctx, w.options, quick)
	if err != nil {
		w.t.Fatal(err)
	}
	w.o = o
	w.hooks = httptest.NewServer(o.Handler())
	run, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- o.Run(run) }()
	w.stop = func() error {
		w.hooks.Close()
		cancel()
		return errors.Join(<-ended, o.Close(time.Minute))
	}
}

// end ends the orchestrator, as SIGTERM does.
func (w *world) end() {
	w.t.Helper()
	if w.stop == nil {
		return
	}
	if err := w.stop(); err != nil {
		w.t.Error(err)
	}
	w.stop = nil
}

// hook delivers a webhook about a thread, and returns the code of the answer.
func (w *world) hook(event string, n int, pull bool) int {
	w.t.Helper()
	w.n++
	h, body := forgetest.Hook(event, "x", "org/app", n, pull, "ada", fmt.Sprintf("delivery-%d", w.n), hookKey)
	return w.deliver(h, body)
}

func (w *world) deliver(h http.Header, body []byte) int {
	w.t.Helper()
	req, err := http.NewRequest(http.MethodPost, w.hooks.URL+"/any", bytes.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header = h
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode
}

// issue opens an issue that is ours.
func (w *world) issue() int {
	n := w.repo.Issue("ada", "Mend the parser", "It is **broken**.", []string{"bug", "carboy:coder"}, []string{"ada"})
	w.hook("issues", n, false)
	return n
}

// status returns the status of an issue.
func (w *world) status(n int) IssueStatus {
	w.t.Helper()
	all, err := Status(ctx, w.options.State)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, s := range all.Issues {
		if s.Number == int64(n) {
			return s
		}
	}
	return IssueStatus{}
}

// waits blocks until the status of an issue is as ok wants it.
func (w *world) waits(n int, what string, ok func(IssueStatus) bool) IssueStatus {
	w.t.Helper()
	var s IssueStatus
	if !testenv.Poll(testenv.Patience(time.Minute), func() bool { s = w.status(n); return ok(s) }) {
		text, _ := json.MarshalIndent(s, "", " ")
		w.t.Fatalf("%s: it does not happen: %s", what, text)
	}
	return s
}

// settled blocks until a turn is over and all is done that follows.
func (w *world) settled(n, turn int) IssueStatus {
	w.t.Helper()
	if !testenv.Poll(testenv.Patience(time.Minute), func() bool {
		r, _, err := w.o.table.Get(ctx, w.key(n))
		return err == nil && r.Status == issues.Frozen && r.Life.Settled == turn && r.Life.Turn == turn
	}) {
		text, _ := json.MarshalIndent(w.status(n), "", " ")
		w.t.Fatalf("turn %d does not end: %s", turn, text)
	}
	return w.status(n)
}

func (w *world) key(n int) issues.Key { return issues.Key{Owner: "org", Repo: "app", Number: int64(n)} }

func testPoll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if !testenv.Poll(testenv.Patience(time.Minute), ok) {
		t.Fatalf("%s: it does not happen", what)
	}
}

// removeEngine removes the store of the engine.
func removeEngine(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, engineFile+"*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, f := range files {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
}
