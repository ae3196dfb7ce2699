package ship

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/plan"
	"github.com/carboy/carboy/internal/ship/shiptest"
	"github.com/carboy/carboy/internal/testenv"
)

func TestMain(m *testing.M) {
	childMain()
	flag.Parse()
	// The tests mostly wait for Docker and healthchecks.
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		f.Value.Set("8")
	}
	code := m.Run()
	for i := range engines {
		if e := engines[i].e; e != nil {
			e.Stop()
		}
	}
	os.Exit(code)
}

// engines are shared by all tests, because each takes a second to start.
var engines [3]struct {
	mu sync.Mutex
	e  *shiptest.Engine
}

func engine(t testing.TB, n int) *shiptest.Engine {
	t.Helper()
	x := &engines[n]
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.e == nil {
		x.e = shiptest.StartEngine(t)
	}
	return x.e
}

// world is an operator with a repository and a host.
type world struct {
	t    testing.TB
	op   *shiptest.Operator
	repo *shiptest.Repo
	host *shiptest.Host
	dk   *shiptest.Engine
	e    *Engine

	mu   sync.Mutex
	said []Progress
	hook func(Progress)
}

func newWorld(t *testing.T, dk *shiptest.Engine, more ...string) *world {
	t.Helper()
	w := &world{t: t, op: shiptest.NewOperator(t), repo: shiptest.NewRepo(t), dk: dk}
	w.host = shiptest.NewHost(t, "one", dk)
	t.Cleanup(func() { dk.Clear(w.host.Root) })
	w.op.Add(t, w.host, more...)
	w.e = w.engine()
	return w
}

// audited opens an audit log for the engine in a new directory, which it returns.
func (w *world) audited() (dir string) {
	w.t.Helper()
	dir = w.t.TempDir() + "/audit"
	log, err := audit.Open(w.ctx(), dir)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { log.Close() })
	w.e.Audit = log
	return dir
}

func (w *world) engine() *Engine {
	e := &Engine{Config: w.op.Config, State: w.op.State, Repo: w.repo.Dir, By: "tests", Progress: w.heard}
	if err := e.Open(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { e.Close() })
	return e
}

func (w *world) heard(p Progress) {
	w.mu.Lock()
	w.said = append(w.said, p)
	hook := w.hook
	w.mu.Unlock()
	if hook != nil {
		hook(p)
	}
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience(5*time.Minute))
	w.t.Cleanup(cancel)
	return ctx
}

// commit writes a module with an image and a mode.
func (w *world) commit(id, v, mode string) string {
	w.t.Helper()
	w.repo.Write(w.t, "modules/"+id+"/module.yaml", shiptest.Module(id, w.host.Root+"/"+id, "one"))
	w.repo.Write(w.t, "modules/"+id+"/compose.yaml", shiptest.Compose(id, v, mode))
	return w.repo.Commit(w.t)
}

func (w *world) plan(id string) Made {
	w.t.Helper()
	m, err := w.e.Plan(w.ctx(), PlanOptions{Module: id})
	if err != nil {
		w.t.Fatal(err)
	}
	return m[0]
}

func (w *world) approve(who string, destructive bool, plans ...Made) approval.Signed {
	w.t.Helper()
	var digests []string
	for _, p := range plans {
		digests = append(digests, p.Digest)
	}
	s, err := approval.Sign(approval.New(digests, plans[0].Commit, plans[0].Module, who+"@example.org", "a test", destructive, time.Now()), w.op.People[who])
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) apply(p Made, a ...approval.Signed) (Outcome, error) {
	w.t.Helper()
	r, err := w.e.Apply(w.ctx(), [][]byte{p.Bytes}, a)
	return outcomeOf(r, err), err
}

func outcomeOf(r []Result, err error) Outcome {
	var x *Error
	switch {
	case errors.As(err, &x):
		return x.Outcome
	case err == nil && len(r) > 0:
		return r[len(r)-1].Outcome
	}
	return ""
}

// ship plans, approves and applies.
func (w *world) ship(id string) Outcome {
	w.t.Helper()
	p := w.plan(id)
	o, err := w.apply(p, w.approve("alice", false, p))
	if err != nil {
		w.t.Log(err)
	}
	return o
}

// runs returns the image of the module's container, and its status.
func (w *world) runs(id string) string {
	w.t.Helper()
	out := w.dk.Run(w.t, "ps", "-a", "--filter", "label=com.docker.compose.project="+id, "--format", "{{.ID}}")
	if out == "" {
		return "nothing"
	}
	var all []string
	for _, c := range strings.Fields(out) {
		all = append(all, w.dk.Run(w.t, "inspect", "--format", `{{index .Config.Labels "mark"}} {{.State.Status}}`, c))
	}
	return strings.Join(all, ", ")
}

func (w *world) want(id, want string) {
	w.t.Helper()
	if got := w.runs(id); got != want {
		w.t.Errorf("%s: the host runs %q, want %q", id, got, want)
	}
}

func TestShip(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	first := w.commit("web", "v1", "checked")
	w.want("web", "nothing")
	if got := w.ship("web"); got != Applied {
		t.Fatalf("first apply: %s", got)
	}
	w.want("web", "v1 running")
	p := w.plan("web")
	if len(p.Changes) != 0 {
		t.Fatalf("after an apply there is still to do: %+v", p.Changes)
	}
	if o, err := w.apply(p); o != Nothing {
		t.Fatalf("nothing to do: %s %v", o, err)
	}
	w.commit("web", "v2", "checked")
	if got := w.ship("web"); got != Applied {
		t.Fatalf("second apply: %s", got)
	}
	w.want("web", "v2 running")
	for mode, why := range map[string]string{"unhealthy": "its healthcheck fails", "crash": "the container"} {
		w.commit("web", "v3", mode)
		if got := w.ship("web"); got != RolledBack {
			t.Fatalf("%s: %s", mode, got)
		}
		w.want("web", "v2 running")
		if h := w.history("web"); h[0].Outcome != RolledBack || !strings.Contains(h[0].Why, why) || len(h[0].Approvals) != 1 || h[0].Approvals[0].Approver != "alice@example.org" {
			t.Errorf("%s: the record is %+v", mode, h[0])
		}
	}
	if st := w.status("web"); st.State != "behind" || len(st.Changes) != 1 {
		t.Errorf("status %+v, want behind", st)
	}
	w.repo.Git(t, "reset", "-q", "--hard", "HEAD~2")
	if st := w.status("web"); st.State != "current" || st.Health != "running, healthy" {
		t.Errorf("status %+v, want current", st)
	}
	w.dk.Run(t, "rm", "-f", w.container("web"))
	if st := w.status("web"); st.State != "absent" {
		t.Errorf("status %+v, want absent", st)
	}
	m, err := w.e.Plan(w.ctx(), PlanOptions{Module: "web", Rollback: true, To: first})
	if err != nil {
		t.Fatal(err)
	}
	if o, err := w.apply(m[0], w.approve("bob", false, m[0])); o != Applied {
		t.Fatalf("rollback to %s: %s %v", first, o, err)
	}
	w.want("web", "v1 running")
	if got := len(w.history("web")); got != 5 {
		t.Errorf("%d records, want 5", got)
	}
}

func (w *world) history(id string) []Entry {
	w.t.Helper()
	h, problems, err := w.e.History(w.ctx(), id)
	if err != nil || len(problems) > 0 {
		w.t.Fatal(err, problems)
	}
	return h
}

func (w *world) status(id string) Status {
	w.t.Helper()
	st, err := w.e.Status(w.ctx(), id)
	if err != nil || st[0].Error != "" {
		w.t.Fatal(err, st)
	}
	return st[0]
}

func (w *world) container(id string) string {
	return w.dk.Run(w.t, "ps", "-aq", "--filter", "label=com.docker.compose.project="+id)
}

// jobs returns the directories of jobs on the host.
func (w *world) jobs() []string {
	all, err := filepath.Glob(w.host.Home + "/.local/state/carboy/ship/v1/*/jobs/1*")
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// TestStable: without a healthcheck a service is healthy when it has run for long
// enough, and one that restarts is not.
func TestStable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	commit := func(v, mode string) {
		w.commit("sb", v, mode)
		w.repo.Write(t, "modules/sb/compose.yaml", "services:\n  sb: {image: 'app:"+v+"', network_mode: none, restart: always, environment: {MODE: "+mode+"}}\n")
		w.repo.Commit(t)
	}
	commit("v1", "ok")
	if got := w.ship("sb"); got != Applied {
		t.Fatal(got)
	}
	if p := w.plan("sb"); len(p.Changes) != 0 {
		t.Errorf("after an apply there is still to do: %+v", p.Changes)
	}
	commit("v2", "crash")
	if got := w.ship("sb"); got != RolledBack {
		t.Errorf("a service that restarts: %s", got)
	}
	w.want("sb", "v1 running")
	if st := w.status("sb"); st.Health != "running" {
		t.Errorf("status %+v", st)
	}
}

// TestUndo: the last apply can be taken back without an approval where the host's
// entry says so, and only it, and only exactly.
func TestUndo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0), "undo_without_approval: true")
	w.commit("un", "v1", "ok")
	if got := w.ship("un"); got != Applied {
		t.Fatal(got)
	}
	w.commit("un", "v2", "ok")
	p := w.plan("un")
	if o, _ := w.apply(p); o != Mismatch {
		t.Fatalf("an apply without an approval: %s", o)
	}
	if o, err := w.apply(p, w.approve("alice", false, p)); o != Applied {
		t.Fatal(o, err)
	}
	undo := func() Made {
		m, err := w.e.Plan(w.ctx(), PlanOptions{Module: "un", Rollback: true})
		if err != nil {
			t.Fatal(err)
		}
		return m[0]
	}
	back := undo()
	// Also when what is checked out is broken.
	w.repo.Write(t, "modules/un/compose.yaml", "services: {un: {image: x, privileged: true}}\n")
	w.repo.Commit(t)
	if got := undo(); got.Commit != back.Commit {
		t.Errorf("undoing, amid something broken, goes to %s, want %s", got.Commit, back.Commit)
	}
	// A plan that says it undoes, and goes elsewhere.
	forged := *back.Plan
	forged.Undoes = "100001-" + strings.Repeat("0", 64)
	b, err := forged.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if o, _ := w.apply(Made{&forged, b, plan.Digest(b)}); o != Mismatch {
		t.Errorf("a plan that only says that it undoes the last apply: %s", o)
	}
	w.want("un", "v2 running")
	if o, err := w.apply(back); o != Applied {
		t.Fatal(o, err)
	}
	w.want("un", "v1 running")
}

// TestUndoFirst: undoing what was put where nothing was removes it, which takes an
// approval that says so, whatever the host's entry says.
func TestUndoFirst(t *testing.T) {
	t.Parallel()
	other := newWorld(t, engine(t, 0), "undo_without_approval: true")
	other.commit("gone", "v1", "ok")
	if got := other.ship("gone"); got != Applied {
		t.Fatal(got)
	}
	m, err := other.e.Plan(other.ctx(), PlanOptions{Module: "gone", Rollback: true})
	if err != nil {
		t.Fatal(err)
	}
	if !m[0].Destructive() || m[0].Action() != plan.Remove {
		t.Fatalf("undoing a first apply: %+v", m[0].Changes)
	}
	if o, _ := other.apply(m[0]); o != Mismatch {
		t.Errorf("removing without an approval: %s", o)
	}
	if o, _ := other.apply(m[0], other.approve("alice", false, m[0])); o != Destructive {
		t.Errorf("removing with a timid approval: %s", o)
	}
	other.want("gone", "v1 running")
	if o, err := other.apply(m[0], other.approve("alice", true, m[0])); o != Applied {
		t.Errorf("removing: %s %v", o, err)
	}
	other.want("gone", "nothing")
}

// TestP1Stale: a host that is not as the plan saw it is not touched.
func TestP1Stale(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	w.commit("st", "v1", "ok")
	w.repo.Write(t, "modules/st/files/app.conf", "one\n")
	w.repo.Commit(t)
	if got := w.ship("st"); got != Applied {
		t.Fatal(got)
	}
	w.repo.Write(t, "modules/st/files/app.conf", "two\n")
	w.repo.Commit(t)
	conf := w.host.Root + "/st/app.conf"
	p := w.plan("st")
	a := w.approve("alice", false, p)
	for name, drift := range map[string]func() (undo func()){
		"file": func() func() {
			os.WriteFile(conf, []byte("by hand\n"), 0o644)
			return func() { os.WriteFile(conf, []byte("one\n"), 0o644) }
		},
		"container": func() func() {
			w.dk.Run(t, "stop", "-t", "1", w.container("st"))
			return func() {}
		},
	} {
		undo := drift()
		before := len(w.jobs())
		if o, err := w.apply(p, a); o != Stale {
			t.Errorf("%s: a stale plan: %s %v", name, o, err)
		}
		if len(w.jobs()) != before {
			t.Errorf("%s: a stale plan became a job", name)
		}
		undo()
	}
	if b, _ := os.ReadFile(conf); string(b) != "one\n" {
		t.Errorf("a stale plan changed a file: %q", b)
	}
	p = w.plan("st")
	if o, err := w.apply(p, w.approve("alice", false, p)); o != Applied {
		t.Fatalf("a new plan: %s %v", o, err)
	}
	if b, _ := os.ReadFile(conf); string(b) != "two\n" {
		t.Errorf("the file is %q", b)
	}
}

// TestP1Replay: a plan is carried out once, whichever copy of the records is lost.
func TestP1Replay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	w.commit("re", "v1", "ok")
	p := w.plan("re")
	a := w.approve("alice", false, p)
	if o, err := w.apply(p, a); o != Applied {
		t.Fatal(o, err)
	}
	w.dk.Run(t, "rm", "-f", w.container("re")) // the host is as the plan saw it, but for the job
	if o, _ := w.apply(p, a); o != Mismatch {
		t.Errorf("applied twice: %s", o)
	}
	if err := os.RemoveAll(w.op.State); err != nil {
		t.Fatal(err)
	}
	os.Mkdir(w.op.State, 0o700)
	if o, _ := w.apply(p, a); o != Mismatch {
		t.Errorf("applied twice, the records here lost: %s", o)
	}
	if h := w.history("re"); len(h) != 1 || h[0].Outcome != Applied || len(h[0].Approvals) != 1 {
		t.Errorf("the history from the host's copy: %+v", h)
	}
	if err := os.RemoveAll(w.host.Home + "/.local"); err != nil {
		t.Fatal(err)
	}
	if o, _ := w.apply(p, a); o != Mismatch {
		t.Errorf("applied twice, the host's records lost: %s", o)
	}
	if h := w.history("re"); len(h) != 1 || h[0].Outcome != Applied {
		t.Errorf("the history from the copy here: %+v", h)
	}
	w.want("re", "nothing")
	if got := w.ship("re"); got != Applied {
		t.Errorf("a new plan: %s", got)
	}
	w.want("re", "v1 running")
}

// TestP2Race: of two applies at once, one succeeds.
func TestP2Race(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	w.commit("ra", "v1", "ok")
	p, q := w.plan("ra"), w.plan("ra")
	q.Plan.By = "somebody else"
	var err error
	if q.Bytes, err = q.Plan.Encode(); err != nil {
		t.Fatal(err)
	}
	q.Digest = plan.Digest(q.Bytes)
	a := w.approve("alice", false, p, q)
	got := make([]Outcome, 2)
	var g sync.WaitGroup
	for i, m := range []Made{p, q} {
		e := w.engine()
		g.Go(func() {
			r, err := e.Apply(w.ctx(), [][]byte{m.Bytes}, []approval.Signed{a})
			got[i] = outcomeOf(r, err)
		})
	}
	g.Wait()
	slices.Sort(got)
	if got[0] != Applied || got[1] != Locked && got[1] != Stale {
		t.Errorf("two applies at once: %v, want one applied and one locked or stale", got)
	}
	w.want("ra", "v1 running")
	if len(w.jobs()) != 1 {
		t.Errorf("%d jobs, want 1", len(w.jobs()))
	}
}

// at runs f once, when a step is heard.
func (w *world) at(step string, f func()) {
	var once sync.Once
	w.mu.Lock()
	w.hook = func(p Progress) {
		if p.Step == step {
			once.Do(f)
		}
	}
	w.mu.Unlock()
}

// TestP4Cut: the host goes on when the connection is cut, and we learn how it ended;
// when its own shell is killed, what it began is finished or taken back.
func TestP4Cut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	w.commit("cu", "v1", "ok")
	if got := w.ship("cu"); got != Applied {
		t.Fatal(got)
	}
	n := 1
	for i, x := range []struct {
		step string
		do   func()
		want []Outcome
	}{
		{"applying", func() { w.host.Cut(t) }, []Outcome{Applied}},
		{"watch", func() { w.host.Cut(t) }, []Outcome{Applied}},
		{"applying", func() { w.host.Kill(t) }, []Outcome{Applied, Failed}},
		{"compose", func() { w.host.Kill(t) }, []Outcome{Applied, Failed}},
		{"watch", func() { w.host.Kill(t) }, []Outcome{Applied}},
	} {
		v := "v" + string('1'+rune((i+1)%2))
		before, after := w.runs("cu"), v+" running"
		w.commit("cu", v, "ok")
		if before == after {
			continue
		}
		w.at(x.step, x.do)
		got := w.ship("cu")
		n++
		if !slices.Contains(x.want, got) {
			t.Errorf("%d, at %s: %s, want %v", i, x.step, got, x.want)
		}
		if got == Applied {
			w.want("cu", after)
		} else {
			w.want("cu", before)
		}
		h := w.history("cu")
		if len(h) != n || h[0].Outcome != got {
			t.Errorf("%d, at %s: %d records, the last %s, want %d and %s", i, x.step, len(h), h[0].Outcome, n, got)
		}
	}
}

// TestP4Recover: what nobody waited for is settled by whoever looks next.
func TestP4Recover(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	w.commit("rec", "v1", "ok")
	if got := w.ship("rec"); got != Applied {
		t.Fatal(got)
	}
	w.commit("rec", "v2", "ok")
	p := w.plan("rec")
	a := w.approve("alice", false, p)
	ctx, cancel := context.WithCancel(w.ctx())
	w.at("watch", func() { w.host.Kill(t); cancel() })
	if _, err := w.e.Apply(ctx, [][]byte{p.Bytes}, []approval.Signed{a}); !errors.Is(err, ErrUnknown) {
		t.Fatalf("nobody waits: %v, want an unknown outcome", err)
	}
	w.at("", func() {})
	if _, err := w.e.Plan(w.ctx(), PlanOptions{Module: "rec"}); err == nil {
		t.Error("a plan was made on top of what was interrupted")
	}
	st := w.status("rec")
	if st.Settled == nil || st.Settled.Outcome != Applied || st.State != "current" {
		t.Errorf("status %+v, want what was interrupted finished", st)
	}
	if h := w.history("rec"); len(h) != 2 || h[0].Outcome != Applied {
		t.Errorf("history %+v", h)
	}
	if st := w.status("rec"); st.Settled != nil {
		t.Error("settled twice")
	}
}

// TestP4Again: applying once more what was interrupted finishes it.
func TestP4Again(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	w.commit("ag", "v1", "checked")
	p := w.plan("ag")
	a := w.approve("alice", false, p)
	ctx, cancel := context.WithCancel(w.ctx())
	w.at("watch", func() { w.host.Kill(t); cancel() })
	if _, err := w.e.Apply(ctx, [][]byte{p.Bytes}, []approval.Signed{a}); !errors.Is(err, ErrUnknown) {
		t.Fatalf("nobody waits: %v, want an unknown outcome", err)
	}
	w.at("", func() {})
	if o, err := w.apply(p, a); o != Applied {
		t.Errorf("once more: %s %v", o, err)
	}
	if o, err := w.apply(p, a); o != Mismatch {
		t.Errorf("a third time: %s %v", o, err)
	}
	if h := w.history("ag"); len(h) != 1 || h[0].Outcome != Applied || len(w.jobs()) != 1 {
		t.Errorf("history %+v, %d jobs", h, len(w.jobs()))
	}
	w.want("ag", "v1 running")
}

// TestP4Docker: Docker goes on stopping a container when all who asked for it are gone.
// Whoever looks next waits for that, and does not say that what ran before runs.
func TestP4Docker(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	commit := func(v string) {
		w.commit("in", v, "slow")
		w.repo.Write(t, "modules/in/compose.yaml", strings.Replace(shiptest.Compose("in", v, "slow"), "period: 1s", "period: 10s", 1)) // longer than we take to look
		w.repo.Commit(t)
	}
	commit("v1")
	if got := w.ship("in"); got != Applied {
		t.Fatal(got)
	}
	old := w.container("in")
	commit("v2")
	p := w.plan("in")
	stops, dies := w.dk.Event(t, old, "kill"), w.dk.Event(t, old, "die")
	ctx, cancel := context.WithCancel(w.ctx())
	w.at("compose", func() {
		go func() {
			<-stops
			w.host.KillAll(t)
			cancel()
		}()
	})
	if _, err := w.e.Apply(ctx, [][]byte{p.Bytes}, []approval.Signed{w.approve("alice", false, p)}); !errors.Is(err, ErrUnknown) {
		t.Fatalf("nobody waits: %v, want an unknown outcome", err)
	}
	st := w.status("in")
	if st.Settled == nil || st.Settled.Outcome != Failed {
		t.Errorf("status %+v, want what was interrupted taken back", st)
	}
	<-dies
	w.want("in", "v1 running")
	if st := w.status("in"); st.State != "behind" {
		t.Errorf("status %+v", st)
	}
}

// TestP3Links: a link on the host leads nothing out of its root.
func TestP3Links(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	w.commit("li", "v1", "ok")
	w.repo.Write(t, "modules/li/files/etc/app.conf", "ours\n")
	w.repo.Commit(t)
	outside := t.TempDir()
	if err := os.MkdirAll(w.host.Root+"/li", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, w.host.Root+"/li/etc"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.e.Plan(w.ctx(), PlanOptions{Module: "li"}); outcomeOf(nil, err) != Refused {
		t.Errorf("a directory that is a link: %v", err)
	}
	os.Remove(w.host.Root + "/li/etc")
	p := w.plan("li")
	a := w.approve("alice", false, p)
	os.Symlink(outside, w.host.Root+"/li/etc")
	if o, err := w.apply(p, a); o != Refused {
		t.Errorf("a directory that became a link: %s %v", o, err)
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("a file went out through a link: %v", left)
	}
	os.Remove(w.host.Root + "/li/etc")
	if o, err := w.apply(p, a); o != Applied {
		t.Errorf("without the link: %s %v", o, err)
	}
	if b, _ := os.ReadFile(w.host.Root + "/li/etc/app.conf"); string(b) != "ours\n" {
		t.Errorf("the file is %q", b)
	}
}

// TestP4FilesBack: files are put back with the service, also when they alone broke it.
func TestP4FilesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	w.commit("fi", "v1", "ok")
	w.repo.Write(t, "modules/fi/files/a.conf", "one\n")
	w.repo.Commit(t)
	if got := w.ship("fi"); got != Applied {
		t.Fatal(got)
	}
	conf := w.host.Root + "/fi/a.conf"
	owner := os.Getuid()
	if owner == 0 {
		owner = 1234
	}
	if err := errors.Join(os.Chown(conf, owner, -1), os.Chmod(conf, 0o660)); err != nil {
		t.Fatal(err)
	}
	asItWas := func(when string) {
		t.Helper()
		fi, err := os.Stat(conf)
		if err != nil || fi.Mode().Perm() != 0o660 || int(fi.Sys().(*syscall.Stat_t).Uid) != owner {
			t.Errorf("%s, the file is %v of %+v %v", when, fi.Mode(), fi.Sys(), err)
		}
	}
	w.commit("fi", "v2", "unhealthy")
	w.repo.Write(t, "modules/fi/files/a.conf", "two\n")
	w.repo.Write(t, "modules/fi/files/b.conf", "new\n")
	w.repo.Commit(t)
	w.at("watch", func() {
		if b, _ := os.ReadFile(w.host.Root + "/fi/a.conf"); string(b) != "two\n" {
			t.Errorf("while it is tried, the file is %q", b)
		}
	})
	if got := w.ship("fi"); got != RolledBack {
		t.Fatal(got)
	}
	if b, _ := os.ReadFile(w.host.Root + "/fi/a.conf"); string(b) != "one\n" {
		t.Errorf("after rolling back the file is %q", b)
	}
	if _, err := os.Stat(w.host.Root + "/fi/b.conf"); err == nil {
		t.Error("a new file stayed after rolling back")
	}
	asItWas("after rolling back")
	w.want("fi", "v1 running")
	// Image and configuration stay the same, so that Compose alone sees nothing to go back to.
	w.commit("fi", "v1", "checked")
	w.repo.Write(t, "modules/fi/compose.yaml", shiptest.Compose("fi", "v1", "checked")+"    volumes: ['./data:/data:ro']\n")
	w.repo.Write(t, "modules/fi/files/a.conf", "one\n")
	w.repo.Git(t, "rm", "-q", "modules/fi/files/b.conf")
	w.repo.Write(t, "modules/fi/files/data/fine", "\n")
	w.repo.Commit(t)
	if got := w.ship("fi"); got != Applied {
		t.Fatal(got)
	}
	asItWas("of which an apply changes nothing")
	w.repo.Write(t, "modules/fi/files/data/broken", "\n")
	if err := os.Chmod(w.repo.Dir+"/modules/fi/files/a.conf", 0o755); err != nil {
		t.Fatal(err)
	}
	w.repo.Commit(t)
	if got := w.ship("fi"); got != RolledBack {
		t.Errorf("a file alone that breaks it: %s", got)
	}
	if _, err := os.Stat(w.host.Root + "/fi/data/broken"); err == nil {
		t.Error("the file that broke it stayed")
	}
	asItWas("after a change that only made it a program")
	if health := w.dk.Run(t, "inspect", "--format", "{{.State.Health.Status}}", w.container("fi")); health != "healthy" {
		t.Errorf("after going back it is %s", health)
	}
}

// TestP4DiskFull: a full disk, for records or for files, changes nothing.
func TestP4DiskFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	w.commit("fu", "v1", "ok")
	if got := w.ship("fu"); got != Applied {
		t.Fatal(got)
	}
	full := func(dir string, f func()) {
		t.Helper()
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=32k"); err != nil {
			testenv.Missing(t, "mounting a small disk: "+err.Error(), "CAP_SYS_ADMIN")
		}
		defer syscall.Unmount(dir, syscall.MNT_DETACH)
		f()
	}
	w.commit("fu", "v2", "ok")
	w.repo.Write(t, "modules/fu/files/big", strings.Repeat("x", 100<<10))
	w.repo.Commit(t)
	p := w.plan("fu")
	full(w.host.Root+"/fu", func() {
		if o, err := w.apply(p, w.approve("alice", false, p)); o != Failed {
			t.Errorf("no room for files: %s %v", o, err)
		}
		if left, _ := os.ReadDir(w.host.Root + "/fu"); slices.ContainsFunc(left, func(e os.DirEntry) bool { return e.Name() != "jobs" }) {
			t.Errorf("half a file was left: %v", left)
		}
	})
	w.want("fu", "v1 running")
	jobs := filepath.Dir(filepath.Dir(w.jobs()[0]))
	p = w.plan("fu")
	keep := t.TempDir()
	if err := os.CopyFS(keep, os.DirFS(jobs)); err != nil {
		t.Fatal(err)
	}
	n := len(w.jobs())
	full(jobs, func() {
		if err := os.CopyFS(jobs, os.DirFS(keep)); err != nil && !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		if o, err := w.apply(p, w.approve("alice", false, p)); o == Applied || o == RolledBack {
			t.Errorf("no room for a record: %s %v", o, err)
		}
	})
	w.want("fu", "v1 running")
	if len(w.jobs()) != n {
		t.Errorf("%d jobs, want %d", len(w.jobs()), n)
	}
	if got := w.ship("fu"); got != Applied {
		t.Errorf("with room: %s", got)
	}
}

// TestP4Deadline: a command that hangs on the host is ended there, and said to be, however
// much it writes, and whatever it says of the outcome.
func TestP4Deadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	w.commit("dl", "v1", "ok")
	if got := w.ship("dl"); got != Applied {
		t.Fatal(got)
	}
	w.commit("dl", "v2", "ok")
	p := w.plan("dl")
	mark := w.host.Dir + "/hung"
	w.host.Program(t, "docker", `for a in "$@"; do if [ "$a" = up ] && [ ! -e `+mark+` ]; then
	: >`+mark+`; echo 'pulling with password=hunter2hunter2'; echo '@result applied by itself'; yes "@result applied" | head -c 1000000; exec sleep 600
fi; done
exec `+testenv.Look("docker")+` "$@"
`)
	w.e.Up = time.Second
	if o, err := w.apply(p, w.approve("alice", false, p)); o != Failed || !errors.Is(err, ErrDeadline) {
		t.Errorf("a command that hangs: %s %v", o, err)
	}
	if h := w.history("dl"); h[0].Why != "docker compose up was ended at its deadline" {
		t.Errorf("the record says %q", h[0].Why)
	}
	w.want("dl", "v1 running")
	said := ""
	for _, p := range w.said {
		said += p.Step + " " + p.Text + "\n"
	}
	if !strings.Contains(said, "deadline") {
		t.Errorf("the deadline is not told, among much else:\n%.300s\n%s", said, said[max(0, len(said)-300):])
	}
	if strings.Contains(said, "hunter2") || !strings.Contains(said, "pulling with") {
		t.Errorf("the output is not redacted, or not shown:\n%.300s", said)
	}
}

// TestWaves: a rollout to hosts of networks of their own goes on through a wave that is
// healthy everywhere, and stops after one that is not.
func TestWaves(t *testing.T) {
	t.Parallel()
	w := &world{t: t, op: shiptest.NewOperator(t), repo: shiptest.NewRepo(t)}
	root := t.TempDir() // the same path on all of them
	os.Chmod(root, 0o755)
	var all []*shiptest.Host
	for i, name := range []string{"canary", "a", "b"} {
		h := shiptest.NewFarHost(t, name, engine(t, i))
		w.op.Add(t, h)
		w.op.Write(t, "hosts.yaml", strings.ReplaceAll(readFile(t, w.op.Config+"/hosts.yaml"), h.Root, root))
		all = append(all, h)
	}
	hosts := readFile(t, w.op.Config+"/hosts.yaml")
	for _, h := range all {
		hosts = strings.ReplaceAll(hosts, h.Root, root)
	}
	w.op.Write(t, "hosts.yaml", hosts)
	w.e = w.engine()
	plans := func(v, mode string) []Made {
		w.repo.Write(t, "modules/wa/module.yaml", strings.Replace(shiptest.Module("wa", root+"/wa", "one"), "host: one", "waves: [[canary], [a, b]]", 1))
		w.repo.Write(t, "modules/wa/compose.yaml", shiptest.Compose("wa", v, mode))
		w.repo.Commit(t)
		m, err := w.e.Plan(w.ctx(), PlanOptions{Module: "wa"})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	apply := func(m ...Made) ([]Result, error) {
		var b [][]byte
		for _, x := range slices.Backward(m) {
			b = append(b, x.Bytes)
		}
		return w.e.Apply(w.ctx(), b, []approval.Signed{w.approve("alice", false, m...)})
	}
	want := func(want ...string) {
		t.Helper()
		for n, v := range want {
			dk := engine(t, n)
			if got := dk.Run(t, "inspect", "--format", `{{index .Config.Labels "mark"}}`, dk.Run(t, "ps", "-q", "--filter", "label=com.docker.compose.project=wa")); got != v {
				t.Errorf("%s runs %s, want %s", all[n].Name, got, v)
			}
		}
	}
	// The network of one is gone for a while, in the midst.
	w.hook = func(p Progress) {
		if p.Host == "b" && p.Step == "compose" {
			all[2].Link(t, false)
			time.AfterFunc(time.Second, func() { all[2].Link(t, true) })
		}
	}
	if r, err := apply(plans("v1", "ok")...); err != nil || len(r) != 3 || r[0].Host != "canary" {
		t.Fatalf("%+v %v", r, err)
	}
	w.hook = nil
	want("v1", "v1", "v1")
	m := plans("v2", "unhealthy")
	if r, err := apply(m...); outcomeOf(r, err) != RolledBack || len(r) != 1 {
		t.Errorf("an unhealthy first wave: %+v %v", r, err)
	}
	if r, err := apply(m[1:]...); outcomeOf(r, err) != Refused || len(r) != 0 {
		t.Errorf("the second wave after it: %+v %v", r, err)
	}
	want("v1", "v1", "v1")
	// A rollout that fails on one host: a rollback is of the others, and one approval does.
	all[2].Program(t, "docker", `case "$*" in *" up "*) exit 1 ;; esac
exec `+testenv.Look("docker")+` "$@"`)
	if r, err := apply(plans("v3", "ok")...); outcomeOf(r, err) != Failed || len(r) != 3 {
		t.Errorf("a rollout that fails on one host: %+v %v", r, err)
	}
	os.Remove(all[2].Dir + "/bin/docker")
	want("v3", "v3", "v1")
	back := func(hosts ...string) []Made {
		m, err := w.e.Plan(w.ctx(), PlanOptions{Module: "wa", Rollback: true, Hosts: hosts})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	if m = back(); len(m) != 2 || m[0].Host.Name != "canary" || m[1].Host.Name != "a" {
		t.Fatalf("a rollback of it: %d plans", len(m))
	}
	if r, err := apply(m...); err != nil || len(r) != 2 {
		t.Errorf("going back: %+v %v", r, err)
	}
	want("v1", "v1", "v1")
	if m = back("b"); len(m) != 1 || m[0].Host.Name != "b" {
		t.Errorf("of one host: %d plans", len(m))
	}
	if st, err := w.e.Status(w.ctx(), "wa", "a", "canary"); err != nil || len(st) != 2 || st[0].Host != "canary" || st[1].State != stateBehind {
		t.Errorf("status of two: %+v %v", st, err)
	}
	if _, err := w.e.Status(w.ctx(), "wa", "c"); outcomeOf(nil, err) != Refused {
		t.Errorf("status of none: %v", err)
	}
}

func readFile(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestImport: what an earlier tool applied is believed when the host agrees, and is
// then what rolling back leads to.
func TestImport(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	old := w.commit("im", "v1", "ok")
	if got := w.ship("im"); got != Applied {
		t.Fatal(got)
	}
	// As if it had been put there by another tool.
	os.RemoveAll(w.host.Home + "/.local")
	os.RemoveAll(w.op.State)
	os.Mkdir(w.op.State, 0o700)
	w.commit("im", "v2", "unhealthy")
	p := w.plan("im")
	if p.Previous.State != plan.PreviousUnknown || !p.Destructive() {
		t.Fatalf("what nobody knows can not be gone back to: %+v", p.Previous)
	}
	if o, _ := w.apply(p, w.approve("alice", false, p)); o != Destructive {
		t.Errorf("%s", o)
	}
	w.repo.Write(t, ".platform/state/modules/im.status.json", `{"last_apply_sha":"`+old+`","last_apply_pr":12,"applied_at":"2026-01-02T03:04:05Z"}`)
	w.repo.Commit(t)
	for range 2 {
		p = w.plan("im")
	}
	if p.Previous.State != plan.PreviousKnown || p.Previous.Commit != old || p.Destructive() {
		t.Fatalf("what was imported: %+v", p.Previous)
	}
	if h := w.history("im"); len(h) != 1 || h[0].Outcome != TookOver || h[0].Commit != old || h[0].Host != "one" || !strings.HasSuffix(h[0].Why, "pull request 12") || h[0].Began.Year() != 2026 {
		t.Errorf("the history: %+v, want what was imported, once", h)
	}
	if o, err := w.apply(p, w.approve("alice", false, p)); o != RolledBack {
		t.Errorf("%s %v", o, err)
	}
	w.want("im", "v1 running")
	if h := w.history("im"); len(h) != 2 {
		t.Errorf("the history: %+v", h)
	}
}
