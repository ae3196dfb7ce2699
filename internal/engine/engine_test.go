package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/testenv"
)

var ctx = context.Background()

func TestMain(m *testing.M) {
	if mode := os.Getenv(childEnv); mode != "" {
		if err := children[mode](os.Getenv(childDirEnv)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func logTo(w *testenv.Buffer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

func options(path string, ws ...Workflow) Options {
	for i := range ws {
		if ws[i].Attempts == 0 {
			ws[i].Attempts = maxAttempts
		}
	}
	return Options{Path: path, Schema: 1, Workflows: ws, Log: slog.New(slog.DiscardHandler)}
}

// open opens a store until the test ends, or closes the engine itself.
func open(t testing.TB, path string, ws ...Workflow) *Engine {
	t.Helper()
	e, err := Open(ctx, options(path, ws...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, e) })
	return e
}

func shut(t testing.TB, e *Engine) {
	t.Helper()
	if err := errors.Join(e.Close(time.Minute), e.Err()); err != nil {
		t.Error(err)
	}
}

func attach(t *testing.T, path string) *Engine {
	t.Helper()
	e, err := Attach(ctx, path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, e) })
	return e
}

func start(t testing.TB, e *Engine, id, workflow string, input any, how How) bool {
	t.Helper()
	started, err := e.Start(ctx, id, workflow, input, how)
	if err != nil {
		t.Fatal(err)
	}
	return started
}

func storeIn(t testing.TB) string { return filepath.Join(t.TempDir(), "state", "engine.db") }

// await returns the state of a run once it has the status.
func await(t testing.TB, e *Engine, id string, want Status) State {
	t.Helper()
	return until(t, e, id, string(want), func(s State) bool { return s.Status == want })
}

func until(t testing.TB, e *Engine, id, what string, ok func(State) bool) (s State) {
	t.Helper()
	var err error
	if !testenv.Poll(testenv.Patience(2*time.Minute), func() bool {
		s, err = e.State(ctx, id)
		return err == nil && ok(s)
	}) {
		t.Fatalf("%s is not %s: %+v, %v", id, what, s, err)
	}
	return s
}

// waits is a workflow that waits for one signal of the topic "go", and returns what came.
func waits(name string) Workflow {
	return Workflow{Name: name, Body: Typed(func(r *Run, within time.Duration) (string, error) {
		v, ok, err := Receive[string](r, "go", within)
		return fmt.Sprint(v, ok), err
	})}
}

func note[T any](v T) func(context.Context) (T, error) {
	return func(context.Context) (T, error) { return v, nil }
}

type parcel struct {
	Name string
	N    int64
	At   time.Time
}

// A run has its steps, waits, sleeps and children, and others see what it did.
func TestRun(t *testing.T) {
	path := storeIn(t)
	var inBottle, most atomic.Int32
	issue := Workflow{Name: "issue", Body: Typed(func(r *Run, in parcel) (parcel, error) {
		p, err := Step(r, "read", note(parcel{in.Name, in.N + 1, in.At}))
		if err != nil {
			return p, err
		}
		_, err = Step(r, "fail", func(context.Context) (int, error) { return 1, errors.New("the forge says 500") })
		var failed *StepError
		if !errors.As(err, &failed) || *failed != (StepError{"fail", "the forge says 500"}) {
			return p, fmt.Errorf("the step's error is %v", err)
		}
		n, err := Child[int64](r, "bottle-1", "bottle", p.N)
		if err != nil {
			return p, err
		}
		_, err = Child[int64](r, "bottle-2", "bottle", int64(-1))
		var child *ChildError
		if !errors.As(err, &child) || *child != (ChildError{"bottle-2", Failed, "bottle: below 0"}) {
			return p, fmt.Errorf("the child's error is %v", err)
		}
		if err := r.Sleep(time.Millisecond); err != nil {
			return p, err
		}
		at, err := r.Now()
		return parcel{p.Name, n, at}, err
	})}
	bottle := Workflow{Name: "bottle", Slots: 1, Attempts: 3, Body: Typed(func(r *Run, n int64) (int64, error) {
		defer inBottle.Add(-1)
		most.Store(max(most.Load(), inBottle.Add(1)))
		return Step(r, "bottle", func(context.Context) (int64, error) {
			if n < 0 {
				return 0, errors.New("below 0")
			}
			return n << 40, nil
		})
	})}
	e := open(t, path, issue, bottle)
	from := time.Now()
	ids := []string{"o/r#1", "ö/r_%#2", "o/r#3"}
	for _, id := range ids {
		start(t, e, id, "issue", parcel{"x", 1 << 20, from}, Once)
	}
	for _, id := range ids {
		s := await(t, e, id, Done)
		var out parcel
		if err := json.Unmarshal(s.Output, &out); err != nil || out.Name != "x" || out.N != (1<<20+1)<<40 || out.At.Before(from) {
			t.Errorf("%s: %s, %v", id, s.Output, err)
		}
		var names []string
		for _, step := range s.Steps {
			names = append(names, step.Name)
			if strings.HasPrefix(step.Child, id) != (step.Name == "bottle") {
				t.Errorf("%s: %+v", id, step)
			}
		}
		if want := []string{"read", "fail", "bottle", "bottle", "now"}; !slices.Equal(names, want) {
			t.Errorf("%s: steps %q", id, names)
		}
		if s.ID != id || s.Number != 1 || s.Workflow != "issue" || s.Attempts != 1 || s.Schema != 1 || s.Ended.Before(s.Created.Add(-time.Second)) || s.Waits != "" {
			t.Errorf("%+v", s)
		}
		if c, err := e.State(ctx, s.Steps[3].Child); err != nil || c.Status != Failed || c.Error != "bottle: below 0" {
			t.Errorf("%+v, %v", c, err)
		}
	}
	if most.Load() != 1 {
		t.Errorf("%d bottles ran at a time in one slot", most.Load())
	}
	lists := []struct {
		f    Filter
		want string
	}{
		{Filter{}, "o/r#1 ö/r_%#2 o/r#3"},
		{Filter{Workflow: "bottle"}, ""},
		{Filter{Status: []Status{Failed, Running}}, ""},
		{Filter{Parent: "ö/r_%#2"}, "ö/r_%#2~/bottle-1 ö/r_%#2~/bottle-2"},
		{Filter{Parent: "ö/r_%#2", Status: []Status{Failed}}, "ö/r_%#2~/bottle-2"},
	}
	for _, c := range []*Engine{e, attach(t, path)} {
		for _, l := range lists {
			states, err := c.List(ctx, l.f)
			var got []string
			for _, s := range states {
				got = append(got, s.ID)
			}
			if err != nil || strings.Join(got, " ") != l.want {
				t.Errorf("%+v: %q, %v", l.f, got, err)
			}
		}
	}
	if _, err := e.List(ctx, Filter{Parent: "o/r#9"}); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
}

// Starting twice, also at the same time and from elsewhere, is starting once. A run that
// ended begins again when that is asked for, and only then.
func TestStart(t *testing.T) {
	path := storeIn(t)
	var begun atomic.Int32
	fails := Workflow{Name: "fails", Body: Typed(func(r *Run, n int) (int, error) {
		begun.Add(1)
		if r.ID() != "x" || r.Number() == 1 {
			return 0, fmt.Errorf("run %d of %s", r.Number(), r.ID())
		}
		return n, nil
	})}
	e := open(t, path, fails, waits("waits"))
	other := attach(t, path)
	// race starts x from many sides at once, and returns how many of them started it.
	race := func(input int, how How) (n int) {
		var wg sync.WaitGroup
		var started atomic.Int32
		for i := range 10 {
			wg.Go(func() {
				if ok, err := []*Engine{e, other}[i%2].Start(ctx, "x", "fails", input, how); err != nil {
					t.Error(err)
				} else if ok {
					started.Add(1)
				}
			})
		}
		wg.Wait()
		return int(started.Load())
	}
	if n := race(1, Once); n != 1 {
		t.Errorf("started %d times", n)
	}
	if s := await(t, e, "x", Failed); s.Error != "run 1 of x" || begun.Load() != 1 {
		t.Errorf("%+v, begun %d times", s, begun.Load())
	}
	if n := race(2, Once); n != 0 {
		t.Errorf("%d starts of a run that ended", n)
	}
	if !start(t, other, "x", "fails", 3, Again) {
		t.Error("it did not begin again")
	}
	if s := await(t, e, "x", Done); string(s.Output) != "3" || s.Number != 2 || begun.Load() != 2 {
		t.Errorf("%+v, begun %d times", s, begun.Load())
	}
	for n := 3; n <= 12; n++ { // over the tenth, whose number sorts before the second's
		if !start(t, e, "x", "fails", n, Again) {
			t.Fatal("it did not begin again")
		}
		if s := await(t, e, "x", Done); s.Number != n || string(s.Output) != fmt.Sprint(n) {
			t.Fatalf("%+v", s)
		}
	}
	if l, err := e.List(ctx, Filter{}); err != nil || len(l) != 1 || l[0].Number != 12 {
		t.Errorf("%+v, %v", l, err)
	}

	// A live one is left alone.
	start(t, e, "w", "waits", time.Hour, Once)
	if start(t, e, "w", "waits", time.Hour, Again) {
		t.Error("a live run began again")
	}
	if _, err := e.Start(ctx, "w", "fails", 1, Again); err == nil || !strings.Contains(err.Error(), `a run of "waits"`) {
		t.Error(err)
	}
	for _, id := range []string{"", "a~2", "a::b", "a\x00", "a\nb", "\xff", strings.Repeat("x", maxName+1)} {
		if _, err := e.Start(ctx, id, "waits", time.Hour, Once); err == nil {
			t.Errorf("%q is an id", id)
		}
	}
	if _, err := e.Start(ctx, "y", "nothing", 1, Once); err == nil {
		t.Error("a workflow that is not there was started")
	}
	if _, err := e.State(ctx, "y"); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
}

// A signal arrives once, whether it is sent before the wait, during it or twice. The same
// key under another topic is another signal. A signal to an ended run is refused.
func TestSignals(t *testing.T) {
	path := storeIn(t)
	gate := make(chan struct{})
	hears := Workflow{Name: "hears", Body: Typed(func(r *Run, _ int) (heard []string, err error) {
		if _, err := Step(r, "gate", func(ctx context.Context) (int, error) {
			select {
			case <-gate:
			case <-ctx.Done():
			}
			return 0, nil
		}); err != nil {
			return nil, err
		}
		for _, topic := range []string{"a", "b"} {
			for within := time.Hour; ; within = 1500 * time.Millisecond {
				v, ok, err := Receive[*string](r, topic, within)
				if err != nil {
					return nil, err
				}
				if !ok {
					break
				}
				if v == nil {
					v = new(string)
				}
				heard = append(heard, topic+*v)
			}
		}
		slices.Sort(heard) // two signals of one millisecond have no order
		return heard, nil
	})}
	e := open(t, path, hears)
	other := attach(t, path)
	if err := e.Signal(ctx, "x", "a", "1", "early"); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
	start(t, e, "x", "hears", 0, Once)
	signal := func(e *Engine, topic, key string, v any) {
		t.Helper()
		if err := e.Signal(ctx, "x", topic, key, v); err != nil {
			t.Fatal(err)
		}
	}
	// Before the wait; twice, and from elsewhere.
	signal(e, "a", "1", "1")
	signal(e, "a", "1", "1 again")
	signal(other, "a", "1", "1 from elsewhere")
	signal(other, "a", "2", nil)
	close(gate)
	// During the wait for b, whose keys are its own.
	until(t, e, "x", "waiting for b", func(s State) bool { return s.Waits == "b" })
	if s, err := other.State(ctx, "x"); err != nil || s.Waits != "b" {
		t.Errorf("%+v, %v", s, err)
	}
	signal(e, "b", "1", "1")
	if s := await(t, e, "x", Done); string(s.Output) != `["a","a1","b1"]` {
		t.Errorf("%s", s.Output)
	}
	for _, e := range []*Engine{e, other} {
		if err := e.Signal(ctx, "x", "a", "9", "late"); !errors.Is(err, ErrEnded) {
			t.Error(err)
		}
	}
	if err := e.Signal(ctx, "x", "", "9", 1); err == nil {
		t.Error("a signal without a topic was taken")
	}
	if err := e.Signal(ctx, "x", "a", "", 1); err == nil {
		t.Error("a signal without a key was taken")
	}
	// A run that began again hears its own signals, with keys that are used already too.
	start(t, e, "x", "hears", 0, Again)
	signal(e, "a", "1", "new")
	signal(e, "b", "1", "new")
	if s := await(t, e, "x", Done); string(s.Output) != `["anew","bnew"]` || s.Number != 2 {
		t.Errorf("%s", s.Output)
	}
}

func TestReceiveTimesOut(t *testing.T) {
	e := open(t, storeIn(t), waits("waits"))
	start(t, e, "x", "waits", 10*time.Millisecond, Once)
	if s := await(t, e, "x", Done); string(s.Output) != `"false"` {
		t.Errorf("%s", s.Output)
	}
}

// A cancelled run's step hears it by its context, that of a child too, whoever cancels. What it
// returns then is nobody's result. Others go on.
func TestCancelReachesSteps(t *testing.T) {
	for _, from := range []string{"here", "elsewhere"} {
		t.Run(from, func(t *testing.T) {
			path := storeIn(t)
			begun, heard := make(chan string, 4), make(chan string, 4)
			next := func(c <-chan string) string {
				t.Helper()
				select {
				case s := <-c:
					return s
				case <-time.After(testenv.Patience(time.Minute)):
					t.Fatal("nothing came")
					return ""
				}
			}
			var after atomic.Int32
			finish := make(chan struct{})
			bottle := Workflow{Name: "bottle", Attempts: 3, Slots: 4, Body: Typed(func(r *Run, name string) (string, error) {
				v, err := Step(r, "run", func(ctx context.Context) (string, error) {
					begun <- name
					select {
					case <-ctx.Done():
						heard <- name
					case <-finish:
					}
					return "ran", nil
				})
				if err != nil {
					return "", err
				}
				after.Add(1)
				return v, nil
			})}
			issue := Workflow{Name: "issue", Body: Typed(func(r *Run, name string) (string, error) {
				v, err := Child[string](r, "bottle", "bottle", name)
				if errors.Is(err, ErrStopped) {
					heard <- name + "'s parent"
				}
				return v, err
			})}
			e := open(t, path, bottle, issue)
			for _, id := range []string{"x", "y"} {
				start(t, e, id, "issue", id, Once)
			}
			start(t, e, "z", "bottle", "z", Once)
			for range 3 {
				next(begun) // one that only waits for its turn is cancelled without its step
			}
			by := e
			if from == "elsewhere" {
				by = attach(t, path)
			}
			for _, id := range []string{"x", "z"} {
				if err := by.Cancel(ctx, id); err != nil {
					t.Fatal(err)
				}
			}
			got := []string{next(heard), next(heard), next(heard)}
			slices.Sort(got)
			if !slices.Equal(got, []string{"x", "x's parent", "z"}) {
				t.Errorf("heard by %q", got)
			}
			for _, id := range []string{"x", "x" + childSign + "bottle", "z"} {
				await(t, e, id, Cancelled)
			}
			if !testenv.Poll(testenv.Patience(time.Minute), func() bool { return len(e.runs()) == 2 }) {
				t.Errorf("%d runs are under way", len(e.runs()))
			}
			close(finish)
			if s := await(t, e, "y", Done); string(s.Output) != `"ran"` || after.Load() != 1 {
				t.Errorf("%s, %d went on", s.Output, after.Load())
			}
			if err := by.Cancel(ctx, "x"); err != nil {
				t.Errorf("a second time: %v", err)
			}
			if err := by.Cancel(ctx, "y"); err != nil {
				t.Error(err)
			}
			if s := await(t, e, "y", Done); s.Status != Done {
				t.Error("an ended run was cancelled")
			}
			if err := by.Cancel(ctx, "nobody"); !errors.Is(err, ErrUnknown) {
				t.Error(err)
			}
			if err := by.Signal(ctx, "x", "go", "1", 1); !errors.Is(err, ErrEnded) {
				t.Error(err)
			}
		})
	}
}

// A parent hears that its child was cancelled, and goes on.
func TestCancelChild(t *testing.T) {
	parent := Workflow{Name: "parent", Body: Typed(func(r *Run, _ int) (string, error) {
		_, err := Child[string](r, "c", "waits", time.Hour)
		var child *ChildError
		if !errors.As(err, &child) {
			return "", err
		}
		return err.Error(), nil
	})}
	e := open(t, storeIn(t), parent, waits("waits"))
	start(t, e, "x", "parent", 0, Once)
	await(t, e, "x"+childSign+"c", Running)
	if err := e.Cancel(ctx, "x"+childSign+"c"); err != nil {
		t.Fatal(err)
	}
	if s := await(t, e, "x", Done); string(s.Output) != `"c is cancelled"` {
		t.Errorf("%s", s.Output)
	}
}

// What runs while the engine closes goes on when it is opened again, and nothing that is
// recorded happens twice. The end of the context of Open ends no run.
func TestClose(t *testing.T) {
	path := storeIn(t)
	var first, second atomic.Int32
	told := make(chan struct{}, 1)
	w := Workflow{Name: "w", Body: Typed(func(r *Run, _ int) (string, error) {
		a, err := Step(r, "first", func(context.Context) (int32, error) { return first.Add(1), nil })
		if err != nil {
			return "", err
		}
		b, err := Step(r, "second", func(ctx context.Context) (int32, error) {
			if second.Add(1) == 1 {
				<-ctx.Done()
				told <- struct{}{}
			}
			return second.Load(), nil
		})
		return fmt.Sprint(a, b), err
	})}
	opening, end := context.WithCancel(ctx)
	e, err := Open(opening, options(path, w, waits("waits")))
	if err != nil {
		t.Fatal(err)
	}
	start(t, e, "x", "w", 0, Once)
	start(t, e, "y", "waits", time.Hour, Once)
	end()
	until(t, e, "x", "in its second step", func(State) bool { return second.Load() == 1 })
	until(t, e, "y", "waiting", func(s State) bool { return s.Waits == "go" })
	shut(t, e)
	<-told
	if err := e.Close(time.Minute); err != nil {
		t.Errorf("a second time: %v", err)
	}
	a := attach(t, path)
	for _, id := range []string{"x", "y"} {
		if s, err := a.State(ctx, id); err != nil || s.Status != Running {
			t.Errorf("%+v, %v", s, err)
		}
	}
	if err := a.Signal(ctx, "y", "go", "1", "while it is closed "); err != nil {
		t.Fatal(err)
	}
	if !start(t, a, "z", "waits", time.Millisecond, Once) {
		t.Error("not started")
	}
	e = open(t, path, w, waits("waits"))
	if s := await(t, e, "x", Done); string(s.Output) != `"1 2"` || s.Attempts != 2 {
		t.Errorf("%+v", s)
	}
	if s := await(t, e, "y", Done); string(s.Output) != `"while it is closed true"` {
		t.Errorf("%s", s.Output)
	}
	await(t, e, "z", Done)
}

// While a step does not return, nobody else gets the store.
func TestCloseThatHangs(t *testing.T) {
	path := storeIn(t)
	in, out := make(chan struct{}), make(chan struct{})
	w := Workflow{Name: "w", Body: Typed(func(r *Run, _ int) (int, error) {
		return Step(r, "deaf", func(context.Context) (int, error) {
			close(in)
			<-out
			return 1, nil
		})
	})}
	e, err := Open(ctx, options(path, w))
	if err != nil {
		t.Fatal(err)
	}
	start(t, e, "x", "w", 0, Once)
	<-in
	if err := e.Close(time.Millisecond); err == nil || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
	var held *HeldError
	if _, err := Open(ctx, options(path, w)); !errors.As(err, &held) || held.Holder.PID != os.Getpid() {
		t.Error(err)
	}
	close(out)
}

// A panic fails its run alone.
func TestPanic(t *testing.T) {
	var log testenv.Buffer
	o := options(storeIn(t), Workflow{Name: "w", Body: Typed(func(r *Run, in string) (int, error) {
		return Step(r, "s", func(context.Context) (int, error) { panic(in) })
	})}, waits("waits"))
	o.Log = logTo(&log)
	e, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, e)
	start(t, e, "x", "w", "ouch", Once)
	if s := await(t, e, "x", Failed); s.Error != "panic: ouch" || !strings.Contains(log.String(), "a workflow panicked") {
		t.Errorf("%+v: %s", s, log.String())
	}
	start(t, e, "y", "waits", time.Millisecond, Once)
	await(t, e, "y", Done)
}

// What can't be a set of workflows is refused before anything is made.
func TestOptions(t *testing.T) {
	path := storeIn(t)
	good := func() Options { return options(path, waits("waits")) }
	for what, change := range map[string]func(*Options){
		"no schema":           func(o *Options) { o.Schema = 0 },
		"its own retired":     func(o *Options) { o.Retire = []int{1} },
		"one attempt":         func(o *Options) { o.Workflows[0].Attempts = 1 },
		"no body":             func(o *Options) { o.Workflows[0].Body = nil },
		"slots below 0":       func(o *Options) { o.Workflows[0].Slots = -1 },
		"two of a name":       func(o *Options) { o.Workflows = append(o.Workflows, o.Workflows[0]) },
		"a name that is none": func(o *Options) { o.Workflows[0].Name = "a~b" },
	} {
		o := good()
		change(&o)
		if e, err := Open(ctx, o); err == nil {
			shut(t, e)
			t.Errorf("%s: opened", what)
		}
		if _, err := os.Stat(filepath.Dir(path)); err == nil {
			t.Fatalf("%s: something was made", what)
		}
	}
	if _, err := Attach(ctx, path, good().Log); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("attached to nothing: %v", err)
	}
	e, err := Open(ctx, good())
	if err != nil {
		t.Fatal(err)
	}
	shut(t, e)
}

// A step can't make durable calls: a later run would not make them at the same place.
func TestStepInStep(t *testing.T) {
	w := Workflow{Name: "w", Body: Typed(func(r *Run, _ int) (int, error) {
		return Step(r, "outer", func(context.Context) (int, error) {
			_, err := Step(r, "inner", note(1))
			return 0, err
		})
	})}
	e := open(t, storeIn(t), w)
	start(t, e, "x", "w", 0, Once)
	until(t, e, "x", "stuck", func(s State) bool { return strings.Contains(s.Stuck, `"outer"`) })
	if err := e.Cancel(ctx, "x"); err != nil {
		t.Fatal(err)
	}
	await(t, e, "x", Cancelled)
}

// A run that is under way in the store alone is found, but not while its end may yet be recorded.
func TestOrphan(t *testing.T) {
	e := open(t, storeIn(t), waits("waits"))
	start(t, e, "honest", "waits", time.Hour, Once)
	until(t, e, "honest", "waiting", func(s State) bool { return s.Waits == "go" })
	start(t, e, "x", "waits", time.Millisecond, Once)
	await(t, e, "x", Done)
	if _, err := e.db.Exec("UPDATE workflow_status SET status = 'PENDING' WHERE workflow_uuid = 'x'"); err != nil {
		t.Fatal(err)
	}
	var seen map[string]int
	var err error
	for n := 1; n < orphanAfter; n++ {
		if seen, err = e.probe(ctx, seen); err != nil || len(seen) != 1 || seen["x"] != n {
			t.Fatalf("%v, %v", seen, err)
		}
	}
	if _, err := e.probe(ctx, seen); err == nil || !strings.Contains(err.Error(), "run x") {
		t.Error(err)
	}
	if _, err := e.db.Exec("UPDATE workflow_status SET status = 'SUCCESS' WHERE workflow_uuid = 'x'"); err != nil {
		t.Fatal(err)
	}
	if seen, err := e.probe(ctx, seen); err != nil || len(seen) > 0 {
		t.Errorf("%v, %v", seen, err)
	}
}
