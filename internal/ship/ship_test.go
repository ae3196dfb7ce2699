package ship

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/shiptest"
	"github.com/carboy/carboy/internal/testenv"
)

func TestMain(m *testing.M) {
	hostexec.Main()
	os.Exit(m.Run())
}

// world is an operator with a repository and a host.
type world struct {
	t    *testing.T
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
	w.op.Add(t, w.host, more...)
	w.e = w.engine()
	return w
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
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience(2*time.Minute))
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

// runs is the image of the module's container, and its status.
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
	w := newWorld(t, shiptest.StartEngine(t))
	w.commit("web", "v1", "ok")
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
	w.commit("web", "v2", "ok")
	if got := w.ship("web"); got != Applied {
		t.Fatalf("second apply: %s", got)
	}
	w.want("web", "v2 running")
	w.commit("web", "v3", "unhealthy")
	if got := w.ship("web"); got != RolledBack {
		t.Fatalf("unhealthy: %s", got)
	}
	w.want("web", "v2 running")
	for _, p := range w.said {
		t.Log(p.Step, p.Text)
	}
	h, problems, err := w.e.History(w.ctx(), "web")
	t.Log(len(h), problems, err)
	for _, x := range h {
		t.Log(x.Outcome, x.Why, x.Commit, x.Job, x.Approvals)
	}
	st, err := w.e.Status(w.ctx(), "web")
	t.Logf("%+v %v", st, err)
}
