// Package engine runs durable workflows: functions whose steps are recorded in a
// store, so that a process that is killed at any moment goes on where it was when it
// starts again. A caller has five calls, [Engine.Start], [Engine.Signal],
// [Engine.State], [Engine.Cancel] and [Engine.List]; a workflow has what [Run] and the
// functions beside it offer. No type of the library below is in the API, so that
// another engine can take its place. Start reading at [Open], then run.go.
//
// A step happens at least once: a kill between what it does and its record repeats it.
// So what a step does must find what it did before. One process at a time runs the
// workflows of a store; others can [Attach] to it.
package engine

import (
	"context"
	"database/sql"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	_ "github.com/dbos-inc/dbos-transact-golang/dbos/driver/sqlite" // how the library reads errors of SQLite

	"github.com/carboy/carboy/internal/sqlite"
)

const (
	application = "carboy"

	// executor is whose work a starting process takes up. It is one name for all of
	// them, since the lock of the store says that no other lives.
	executor = "serve"

	// pollEvery separates two looks at the queues.
	pollEvery = 200 * time.Millisecond

	maxAttempts = 1_000_000
)

// A Body is what a workflow does. It must make the same calls in the same order
// whenever it is given the same results of them: time, chance and what other systems
// say come from steps. An error of Body ends the run as [Failed]; errors that wrap
// [ErrStopped] must be returned.
type Body func(r *Run, input json.RawMessage) (json.RawMessage, error)

// A Workflow is a kind of run.
type Workflow struct {
	Name string
	Body Body

	// Attempts bounds how often a run begins before it is [Exhausted]: 2 or more. Each
	// restart of the process begins it once more, so a workflow that waits for people
	// needs many, and one that costs a bottle few.
	Attempts int

	// Slots bounds the runs that are under way at a time; the others are [Queued]. 0 sets no
	// limit. A run that waits keeps its slot: what waits has no limit, what it asks for
	// through [Child] has one.
	Slots int
}

// Typed returns the Body that decodes its input for body and encodes what body returns.
func Typed[I, O any](body func(*Run, I) (O, error)) Body {
	return func(r *Run, input json.RawMessage) (json.RawMessage, error) {
		var in I
		if err := json.Unmarshal(input, &in); err != nil {
			return nil, fmt.Errorf("input: %w", err)
		}
		out, err := body(r, in)
		if err != nil {
			return nil, err
		}
		return json.Marshal(out)
	}
}

// Options say how to open a store.
type Options struct {
	Path      string // of the store, which is made if it is missing
	Workflows []Workflow
	Log       *slog.Logger

	// Schema numbers what the bodies of Workflows can continue. It stays while a new body
	// continues old histories, which [Run.Patched] makes possible, and is raised when one
	// can't. Open refuses a store with live runs of another number.
	Schema int

	// Retire lists earlier numbers whose live runs Open cancels, for the caller to start
	// again from its own state.
	Retire []int
}

// An Engine runs the workflows of a store, or is attached to it.
type Engine struct {
	path   string
	schema int
	log    *slog.Logger
	db     *sql.DB
	dbos   dbos.Context
	lock   *lock // nil if attached
	kinds  map[string]*kind

	mu     sync.Mutex
	active map[*Run]struct{}
	err    error

	closing atomic.Bool
	failed  chan struct{}
	life    context.Context // of the keeper
	stop    context.CancelFunc
	keeping sync.WaitGroup
}

// kind is a workflow as the library knows it.
type kind struct {
	Workflow
	e     *Engine
	queue dbos.Queue
}

// ConfigName makes the library tell the kinds apart, which share a method.
func (k *kind) ConfigName() string { return k.Name }

// failure is the error of a body as it is recorded.
type failure struct{ Text string }

func (f *failure) Error() string { return f.Text }

func init() { gob.RegisterName("carboy.failure", &failure{}) }

// Open opens the store and goes on with what runs in it. It fails with a [*HeldError] while
// another process has it. ctx bounds Open alone.
func Open(ctx context.Context, o Options) (_ *Engine, err error) {
	if err := o.valid(); err != nil {
		return nil, err
	}
	e := newEngine(o.Path, o.Log)
	e.schema = o.Schema
	if e.lock, err = take(ctx, o.Path+".lock"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close(time.Minute))
		}
	}()
	if err := e.connect(ctx, false); err != nil {
		return nil, err
	}
	names := make([]string, 0, len(o.Workflows))
	for _, w := range o.Workflows {
		names = append(names, w.Name)
	}
	if err := e.prepare(ctx, names, o.Retire); err != nil {
		return nil, fmt.Errorf("%s: %w", e.path, err)
	}
	for _, w := range o.Workflows {
		k := &kind{Workflow: w, e: e}
		options := []dbos.QueueOption{dbos.WithQueueBasePollingInterval(pollEvery), dbos.WithQueueOnConflict(dbos.QueueConflictAlwaysUpdate)}
		if w.Slots > 0 {
			options = append(options, dbos.WithWorkerConcurrency(w.Slots))
		}
		if k.queue, err = dbos.RegisterQueue(e.dbos, queueOf(w.Name), options...); err != nil {
			return nil, fmt.Errorf("%s: %w", e.path, err)
		}
		// The library counts the beginnings after the first.
		dbos.RegisterWorkflow(e.dbos, k.run, dbos.WithInstance(k), dbos.WithWorkflowName(w.Name), dbos.WithMaxRecoveryAttempts(w.Attempts-1))
		e.kinds[w.Name] = k
	}
	if err := dbos.Launch(e.dbos); err != nil {
		return nil, fmt.Errorf("%s: %w", e.path, err)
	}
	e.keeping.Go(e.keep)
	return e, nil
}

func (o Options) valid() error {
	if o.Schema < 1 || slices.Contains(o.Retire, o.Schema) {
		return fmt.Errorf("schema %d, retired %d: not two numbers from 1", o.Schema, o.Retire)
	}
	seen := map[string]bool{}
	for _, w := range o.Workflows {
		switch {
		case checkName(w.Name) != nil:
			return fmt.Errorf("workflow %q: %w", w.Name, checkName(w.Name))
		case seen[w.Name]:
			return fmt.Errorf("workflow %q is there twice", w.Name)
		case w.Body == nil, w.Attempts < 2, w.Attempts > maxAttempts, w.Slots < 0:
			return fmt.Errorf("workflow %q: it needs a body, 2 to %d attempts, and no slots below 0", w.Name, maxAttempts)
		}
		seen[w.Name] = true
	}
	return nil
}

// Attach connects to the store that an engine uses or has used, for the five calls. It runs
// nothing. It needs no lock, so it works beside the engine.
func Attach(ctx context.Context, path string, log *slog.Logger) (_ *Engine, err error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: nothing has run with this store yet", err)
	}
	e := newEngine(path, log)
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close(time.Minute))
		}
	}()
	if err := e.connect(ctx, true); err != nil {
		return nil, err
	}
	names, err := e.recall(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, name := range names {
		e.kinds[name] = &kind{Workflow: Workflow{Name: name}, e: e}
	}
	return e, nil
}

func newEngine(path string, log *slog.Logger) *Engine {
	e := &Engine{path: path, log: log, kinds: map[string]*kind{}, active: map[*Run]struct{}{}, failed: make(chan struct{})}
	e.life, e.stop = context.WithCancel(context.Background())
	return e
}

// connect opens the store and makes the library use it. The library is told all that it
// would otherwise take from the environment or work out.
func (e *Engine) connect(ctx context.Context, attach bool) (err error) {
	if e.db, err = sqlite.Open(ctx, e.path); err != nil {
		return err
	}
	clearEnvironment()
	// The root of the library's contexts ends by Close alone: it takes the end of another
	// for a wish to cancel what runs, and records that.
	e.dbos, err = dbos.NewContext(context.WithoutCancel(ctx), dbos.Config{
		AppName:            application,
		SQLiteSystemDB:     e.db,
		Logger:             slog.New(handler{e.log.Handler(), &e.closing}),
		ApplicationVersion: version(e.schema),
		ExecutorID:         executor,
		SkipMigrations:     attach,
	})
	if err != nil {
		return fmt.Errorf("%s: %w", e.path, err)
	}
	return nil
}

// clearEnvironment removes the variables through which the library would take another
// version or executor, and talk to its maker.
func clearEnvironment() {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "DBOS_") {
			os.Unsetenv(name)
		}
	}
}

const versionPrefix = "schema-"

func version(schema int) string      { return versionPrefix + strconv.Itoa(schema) }
func queueOf(workflow string) string { return application + "-" + workflow }

// Failed returns a channel that is closed when the store no longer takes what is written
// to it. Nothing is recorded from then on, so the caller closes the engine. [Engine.Err]
// says why.
func (e *Engine) Failed() <-chan struct{} { return e.failed }

// Err returns why the engine failed, or nil.
func (e *Engine) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

func (e *Engine) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil && !e.closing.Load() {
		e.err = fmt.Errorf("%s: %w", e.path, err)
		e.log.Error("the store of the workflows failed", "error", e.err)
		close(e.failed)
	}
}

// Close stops the engine. What runs stays [Running] in the store, for the next [Open]:
// steps are told by their context, and have the time of grace to return. If one
// does not, Close returns an error, and the store stays locked until this process ends,
// so that nobody begins that step a second time beside it.
func (e *Engine) Close(grace time.Duration) error {
	if e.closing.Swap(true) {
		return nil
	}
	e.stop()
	e.keeping.Wait()
	var err error
	if e.dbos != nil {
		if err = dbos.Shutdown(e.dbos, max(grace, time.Second)); err != nil {
			return fmt.Errorf("%s: %w; it stays locked until this process ends", e.path, err)
		}
	}
	if e.db != nil {
		err = e.db.Close()
	}
	if e.lock != nil {
		err = errors.Join(err, e.lock.release())
	}
	return err
}
