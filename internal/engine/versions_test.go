package engine

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/testenv"
)

// deeds are the steps that happened.
type deeds struct {
	mu   sync.Mutex
	list []string
}

func (d *deeds) add(s string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list = append(d.list, s)
}

func (d *deeds) text() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.list, " ")
}

// edition is a workflow as successive programs have it. The first has the steps a and c,
// with a wait between them.
func edition(did *deeds, name string) Workflow {
	step := func(r *Run, name string) error {
		_, err := Step(r, name, func(context.Context) (int, error) {
			did.add(r.ID() + name)
			return 0, nil
		})
		return err
	}
	return Workflow{Name: "w", Body: Typed(func(r *Run, _ int) (int, error) {
		if err := step(r, "a"); err != nil {
			return 0, err
		}
		switch name {
		case "patched": // right before the place where old runs wait
			if yes, err := r.Patched("b"); err != nil {
				return 0, err
			} else if yes {
				if err := step(r, "b"); err != nil {
					return 0, err
				}
			}
		case "changed":
			if err := step(r, "b"); err != nil {
				return 0, err
			}
		}
		if _, _, err := Receive[int](r, "go", time.Hour); err != nil {
			return 0, err
		}
		if name == "patched" { // behind it
			if yes, err := r.Patched("d"); err != nil {
				return 0, err
			} else if yes {
				if err := step(r, "d"); err != nil {
					return 0, err
				}
			}
		}
		return 0, step(r, "c")
	})}
}

func signalled(t *testing.T, e *Engine, id string) {
	t.Helper()
	if err := e.Signal(ctx, id, "go", "1", 1); err != nil {
		t.Fatal(err)
	}
	await(t, e, id, Done)
}

// An old run goes on in a patched body: it does without the step before its place, and has
// the one after it. A new run has both. Each does so again when it is begun once more.
func TestPatched(t *testing.T) {
	path := storeIn(t)
	var did deeds
	e := open(t, path, edition(&did, "first"))
	start(t, e, "old", "w", 0, Once)
	until(t, e, "old", "waiting", func(s State) bool { return s.Waits == "go" })
	shut(t, e)
	for range 2 {
		e = open(t, path, edition(&did, "patched"))
		start(t, e, "new", "w", 0, Once)
		until(t, e, "new", "waiting", func(s State) bool { return s.Waits == "go" })
		until(t, e, "old", "begun here", func(State) bool { return len(e.runs()) == 2 })
		shut(t, e)
	}
	e = open(t, path, edition(&did, "patched"))
	signalled(t, e, "old")
	signalled(t, e, "new")
	if got := did.text(); got != "olda newa newb oldd oldc newd newc" {
		t.Error(got)
	}
}

// A body that does not fit leaves its run as it is, says so, and fails nothing: with the old
// body it ends well.
func TestChangedBody(t *testing.T) {
	path := storeIn(t)
	var did deeds
	e := open(t, path, edition(&did, "first"))
	start(t, e, "old", "w", 0, Once)
	until(t, e, "old", "waiting", func(s State) bool { return s.Waits == "go" })
	shut(t, e)

	var log testenv.Buffer
	o := options(path, edition(&did, "changed"))
	o.Log = logTo(&log)
	e, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	s := until(t, e, "old", "stuck, and logged", func(s State) bool { return s.Stuck != "" && strings.Contains(log.String(), "run=old") })
	if s.Status != Running || !strings.Contains(s.Stuck, "b") || !strings.Contains(log.String(), "level=ERROR") {
		t.Errorf("%+v: %s", s, log.String())
	}
	// What it hears meanwhile is kept; others, which fit, go on.
	start(t, e, "new", "w", 0, Once)
	signalled(t, e, "new")
	if err := e.Signal(ctx, "old", "go", "1", 1); err != nil {
		t.Fatal(err)
	}
	shut(t, e)

	e = open(t, path, edition(&did, "first"))
	await(t, e, "old", Done)
	if got := did.text(); got != "olda newa newb newc oldc" {
		t.Error(got)
	}
}

// A run that does not fit goes on after an engine closes, however the end of the engine
// reaches what waits for it.
func TestChangedBodyCloses(t *testing.T) {
	path := storeIn(t)
	var did deeds
	ids := make([]string, 50)
	e := open(t, path, edition(&did, "first"))
	for i := range ids {
		ids[i] = fmt.Sprint("old", i)
		start(t, e, ids[i], "w", 0, Once)
	}
	for _, id := range ids {
		until(t, e, id, "waiting", func(s State) bool { return s.Waits == "go" })
	}
	shut(t, e)

	o := options(path, edition(&did, "changed"))
	o.Log = logTo(new(testenv.Buffer))
	e, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		until(t, e, id, "stuck", func(s State) bool { return s.Stuck != "" })
	}
	shut(t, e)

	a := attach(t, path)
	for _, id := range ids {
		if s, err := a.State(ctx, id); err != nil || s.Status != Running {
			t.Errorf("%+v, %v", s, err)
		}
	}
}

// Live runs that a program would not continue keep its engine from opening; ended ones don't.
// Retired, they are cancelled, and begin again from their start.
func TestSchema(t *testing.T) {
	path := storeIn(t)
	var did deeds
	e := open(t, path, edition(&did, "first"), waits("other"))
	for _, id := range []string{"old", "ended", "queued"} {
		start(t, e, id, "w", 0, Once)
	}
	signalled(t, e, "ended")
	until(t, e, "old", "waiting", func(s State) bool { return s.Waits == "go" })
	shut(t, e)

	refused := func(o Options, want ...string) {
		t.Helper()
		e, err := Open(ctx, o)
		if err == nil {
			shut(t, e)
			t.Fatal("opened")
		}
		for _, w := range append(want, path) {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q is not in %v", w, err)
			}
		}
	}
	refused(options(path, waits("other")), `"w"`, "2 live runs")
	o := options(path, edition(&did, "changed"))
	o.Schema = 2
	refused(o, "schema-1", "schema-2", "2 live runs")
	o.Retire = []int{3}
	refused(o, "schema-1", "2 live runs")

	o.Retire = []int{1}
	e, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, e)
	if s := await(t, e, "old", Cancelled); s.Schema != 1 || s.Ended.IsZero() {
		t.Errorf("%+v", s)
	}
	if s := await(t, e, "ended", Done); s.Schema != 1 {
		t.Errorf("%+v", s)
	}
	a := attach(t, path)
	if !start(t, a, "old", "w", 0, Again) {
		t.Error("it did not begin again")
	}
	signalled(t, e, "old")
	if s := await(t, e, "old", Done); s.Schema != 2 || s.Number != 2 {
		t.Errorf("%+v", s)
	}
	if got := did.text(); !strings.HasSuffix(got, " olda oldb oldc") {
		t.Error(got)
	}
}
