package engine

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"

	"github.com/carboy/carboy/internal/sqlite"
)

var (
	// ErrUnknown says that no run has the id.
	ErrUnknown = errors.New("no run has this id")

	// ErrEnded says that a run has ended, so a signal would reach nobody.
	ErrEnded = errors.New("the run has ended")
)

// A Status is where a run is in its life.
type Status string

// The last four are ends.
const (
	Queued    Status = "queued"    // waits for its turn
	Running   Status = "running"   // goes on, now or when an engine opens the store
	Done      Status = "done"      // its body returned
	Failed    Status = "failed"    // its body returned an error, or panicked
	Cancelled Status = "cancelled" // by Cancel, or since its schema is retired
	Exhausted Status = "exhausted" // was begun as often as its workflow may be
)

var statuses = map[dbos.WorkflowStatusType]Status{
	dbos.WorkflowStatusEnqueued:                    Queued,
	dbos.WorkflowStatusDelayed:                     Queued,
	dbos.WorkflowStatusPending:                     Running,
	dbos.WorkflowStatusSuccess:                     Done,
	dbos.WorkflowStatusError:                       Failed,
	dbos.WorkflowStatusCancelled:                   Cancelled,
	dbos.WorkflowStatusMaxRecoveryAttemptsExceeded: Exhausted,
}

// A State is what is known of a run. [Engine.List] leaves out what only one run is asked for.
type State struct {
	ID       string
	Number   int // of the run with this id, from 1
	Workflow string
	Status   Status
	Attempts int // how often it was begun
	Schema   int
	Created  time.Time
	Updated  time.Time
	Ended    time.Time // zero if it has not

	// Not in lists.
	Error  string          // of a run that failed
	Output json.RawMessage // of one that is done
	Steps  []StepState
	Waits  string // the topic that it waits for

	// Stuck says why the run does not go on in this engine, although it runs: its workflow
	// does not fit its history.
	Stuck string
}

// A StepState is what is recorded of a step.
type StepState struct {
	Name    string
	Started time.Time
	Ended   time.Time
	Child   string // the id of the child that it began
}

// A How says what Start does with an id that it knows.
type How int

const (
	// Once leaves an id alone that was started before, also if the run has ended.
	Once How = iota
	// Again begins a new run if that of the id has ended, however it ended. The earlier
	// ones stay in the store.
	Again
)

// Start starts a run, and reports whether it did. Doing it a second time does nothing.
func (e *Engine) Start(ctx context.Context, id, workflow string, input any, how How) (started bool, err error) {
	if err := checkName(id); err != nil {
		return false, fmt.Errorf("id %q: %w", id, err)
	}
	if e.kinds[workflow] == nil {
		return false, fmt.Errorf("there is no workflow %q", workflow)
	}
	in, err := json.Marshal(input)
	if err != nil {
		return false, err
	}
	err = e.update(ctx, func(tx *sql.Tx) error {
		r, err := newest(ctx, tx, id)
		switch {
		case err != nil:
			return err
		case r.number > 0 && r.workflow != workflow:
			return fmt.Errorf("%s is a run of %q", id, r.workflow)
		case r.number > 0 && (how == Once || isLive(r.status)):
			return nil
		}
		started = true
		_, err = dbos.Enqueue[json.RawMessage](e.dbos, queueOf(workflow), workflow, json.RawMessage(in),
			dbos.WithEnqueueWorkflowID(stored(id, r.number+1)), dbos.WithEnqueueConfigName(workflow),
			dbos.WithEnqueueApplicationVersion(version(e.schema)), dbos.WithEnqueueTransaction(tx))
		return err
	})
	return started && err == nil, err
}

// Signal sends a value to the newest run of the id, which gets it from [Receive]. A second signal with
// the same topic and key does nothing. The error is [ErrUnknown] or [ErrEnded] if nobody
// would get it. A run may end later without having asked for it.
func (e *Engine) Signal(ctx context.Context, id, topic, key string, value any) error {
	if topic == "" || key == "" {
		return errors.New("a signal needs a topic and a key")
	}
	v, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return e.update(ctx, func(tx *sql.Tx) error {
		r, err := newest(ctx, tx, id)
		switch {
		case err != nil:
			return err
		case r.number == 0:
			return fmt.Errorf("%s: %w", id, ErrUnknown)
		case !isLive(r.status):
			return fmt.Errorf("%s: %w", id, ErrEnded)
		}
		// For the library a key is of all topics together.
		return dbos.Send(e.dbos, stored(id, r.number), json.RawMessage(v), topic,
			dbos.WithIdempotencyKey(strconv.Quote(topic)+key), dbos.WithSendTransaction(tx))
	})
}

// State returns the state of the newest run of the id. The error is [ErrUnknown] if there is none.
func (e *Engine) State(ctx context.Context, id string) (State, error) {
	number, err := e.number(ctx, id)
	if err != nil {
		return State{}, err
	}
	is := stored(id, number)
	c, done := e.bound(ctx)
	defer done()
	rows, err := dbos.ListWorkflows(c, dbos.WithFilterWorkflowIDs(is), dbos.WithFilterLoadInput(false), dbos.WithFilterLoadOutput(true))
	if err != nil {
		return State{}, e.wrap(err)
	}
	if len(rows) == 0 {
		return State{}, fmt.Errorf("%s: %w", id, ErrUnknown)
	}
	s := stateOf(rows[0])
	if rows[0].Error != nil {
		s.Error = rows[0].Error.Error()
	}
	if s.Status == Done {
		h, err := dbos.RetrieveWorkflow[json.RawMessage](c, is)
		if err == nil {
			s.Output, err = h.GetResult()
		}
		if err != nil {
			return State{}, e.wrap(err)
		}
	}
	if s.Steps, s.Waits, err = e.steps(c, is); err != nil {
		return State{}, e.wrap(err)
	}
	if s.Status != Running {
		s.Waits = ""
		return s, nil
	}
	for _, r := range e.runs() {
		if r.stored == is {
			e.mu.Lock()
			s.Stuck = r.stuck
			e.mu.Unlock()
		}
	}
	return s, nil
}

// steps returns the steps of a run, and the topic that it waits for if it does. What the
// library records for itself is left out.
func (e *Engine) steps(c dbos.Context, stored string) (steps []StepState, waits string, err error) {
	infos, err := dbos.GetWorkflowSteps(c, stored, dbos.WithStepsLoadOutput(false))
	if err != nil {
		return nil, "", err
	}
	for _, s := range infos {
		if s.StepName != "DBOS.sleep" {
			waits, _ = strings.CutPrefix(s.StepName, receivePrefix)
			if waits == s.StepName {
				waits = ""
			}
		}
		if strings.HasPrefix(s.StepName, "DBOS.") {
			continue
		}
		steps = append(steps, StepState{s.StepName, s.StartedAt, s.CompletedAt, s.ChildWorkflowID})
	}
	return steps, waits, nil
}

// Cancel ends the newest run of the id and its children, and tells the steps that are running by
// their contexts. It does nothing if the run has ended. The error is [ErrUnknown] if there is none.
func (e *Engine) Cancel(ctx context.Context, id string) error {
	number, err := e.number(ctx, id)
	if err != nil {
		return err
	}
	c, done := e.bound(ctx)
	defer done()
	if err := dbos.CancelWorkflow(c, stored(id, number), dbos.WithCancelChildren()); err != nil {
		return e.wrap(err)
	}
	if e.lock == nil {
		return nil // the engine that runs it looks
	}
	return e.tellCancelled(ctx)
}

// A Filter says which runs List returns. Its zero value is the newest runs of all ids that
// were started, without their children.
type Filter struct {
	Workflow string
	Status   []Status
	Parent   string // the id of the run whose children are wanted
}

// List returns the newest runs that the filter lets through, the oldest first.
func (e *Engine) List(ctx context.Context, f Filter) ([]State, error) {
	options := []dbos.ListWorkflowsOption{dbos.WithFilterLoadInput(false), dbos.WithFilterLoadOutput(false)}
	if f.Workflow != "" {
		options = append(options, dbos.WithFilterName(f.Workflow))
	}
	if f.Parent == "" {
		options = append(options, dbos.WithFilterHasParent(false))
	} else {
		number, err := e.number(ctx, f.Parent)
		if err != nil {
			return nil, err
		}
		options = append(options, dbos.WithFilterParentWorkflowID(stored(f.Parent, number)))
	}
	c, done := e.bound(ctx)
	defer done()
	rows, err := dbos.ListWorkflows(c, options...)
	if err != nil {
		return nil, e.wrap(err)
	}
	last := map[string]int{}
	for _, r := range rows {
		id, n := split(r.ID)
		last[id] = max(last[id], n)
	}
	var states []State
	for _, r := range rows {
		if s := stateOf(r); s.Number == last[s.ID] && (len(f.Status) == 0 || slices.Contains(f.Status, s.Status)) {
			states = append(states, s)
		}
	}
	return states, nil
}

func stateOf(w dbos.WorkflowStatus) State {
	s := State{
		Workflow: w.Name, Status: statuses[w.Status], Attempts: w.Attempts,
		Created: w.CreatedAt, Updated: w.UpdatedAt, Ended: w.CompletedAt,
	}
	s.ID, s.Number = split(w.ID)
	s.Schema, _ = strconv.Atoi(strings.TrimPrefix(w.ApplicationVersion, versionPrefix))
	return s
}

// number returns the number of the newest run of id.
func (e *Engine) number(ctx context.Context, id string) (int, error) {
	r, err := newest(ctx, e.db, id)
	if err == nil && r.number == 0 {
		err = ErrUnknown
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", id, e.wrap(err))
	}
	return r.number, nil
}

func (e *Engine) update(ctx context.Context, do func(*sql.Tx) error) error {
	return e.wrap(sqlite.Update(ctx, e.db, do))
}

// wrap names the store in an error that is not about a run.
func (e *Engine) wrap(err error) error {
	if err == nil || errors.Is(err, ErrUnknown) || errors.Is(err, ErrEnded) {
		return err
	}
	return fmt.Errorf("%s: %w", e.path, err)
}

// bound returns the library's context for a call that ctx bounds.
func (e *Engine) bound(ctx context.Context) (c dbos.Context, done func()) {
	c, cancel := dbos.WithCancelCause(e.dbos)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	return c, func() { stop(); cancel(nil) }
}
