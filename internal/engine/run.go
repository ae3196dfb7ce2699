package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
)

// ErrStopped is wrapped by the errors of a [Run] that does not go on in this process: it is
// cancelled, the engine closes or its store failed, or the body does not fit its history.
// The body returns. What it returns then is not the outcome of the run.
var ErrStopped = errors.New("the run stops here")

// A StepError is what a step returned as its error. It is recorded like a result: the step
// does not run again.
type StepError struct{ Step, Text string }

func (e *StepError) Error() string { return e.Step + ": " + e.Text }

// A ChildError says how a child ended that is not [Done].
type ChildError struct {
	Key    string
	Status Status
	Text   string // of the error of its body
}

func (e *ChildError) Error() string {
	return strings.TrimSuffix(fmt.Sprintf("%s is %s: %s", e.Key, e.Status, e.Text), ": ")
}

// A Run is one run of a workflow, as its body sees it. It belongs to the goroutine of
// the body.
type Run struct {
	e      *Engine
	stored string
	ctx    dbos.Context
	cancel context.CancelCauseFunc
	within string // the step that runs

	// Under the engine's mutex:
	stopped error
	stuck   string
}

// ID returns the id that Start was given.
func (r *Run) ID() string {
	id, _ := split(r.stored)
	return id
}

// Number returns how often a run of this id was begun by Start: 1 for the first.
func (r *Run) Number() int {
	_, n := split(r.stored)
	return n
}

// run carries out one run of the workflow. The library calls it.
func (k *kind) run(ctx dbos.Context, input json.RawMessage) (json.RawMessage, error) {
	id, err := dbos.GetWorkflowID(ctx)
	if err != nil {
		return nil, err
	}
	r := &Run{e: k.e, stored: id}
	r.ctx, r.cancel = dbos.WithCancelCause(ctx)
	defer r.cancel(nil)
	k.e.mu.Lock()
	k.e.active[r] = struct{}{}
	k.e.mu.Unlock()
	defer func() {
		k.e.mu.Lock()
		delete(k.e.active, r)
		k.e.mu.Unlock()
	}()
	out, err := r.body(k.Body, input)
	if r.isStopped() != nil {
		// The library would record what is returned before its context ends, and after that
		// whatever does not say that it is cancelled.
		<-r.ctx.Done()
		return nil, fmt.Errorf("%w: %w", context.Canceled, context.Cause(r.ctx))
	}
	if err != nil {
		return nil, &failure{err.Error()}
	}
	return out, nil
}

// body calls b, and makes an error of its panic.
func (r *Run) body(b Body, input json.RawMessage) (out json.RawMessage, err error) {
	defer func() {
		if p := recover(); p != nil {
			r.e.log.Error("a workflow panicked", "run", r.stored, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return b(r, input)
}

// end ends the context of the run.
func (r *Run) end(why error) {
	r.halt(why)
	r.cancel(why)
}

func (r *Run) isStopped() error {
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	return r.stopped
}

// ready says why a durable call can't be made.
func (r *Run) ready() error {
	if err := r.isStopped(); err != nil {
		return err
	}
	if r.within != "" {
		return r.halt(errMisfit{fmt.Sprintf("the step %q uses its run", r.within)})
	}
	return nil
}

// errMisfit says that the body does not fit the history of the run.
type errMisfit struct{ text string }

func (e errMisfit) Error() string { return e.text }

// halt stops the run because a durable call has failed, and returns what the body gets.
// The library would take an error of a changed body or of a full disk for the run's
// outcome, which is final. Here the run waits for the next process instead.
func (r *Run) halt(err error) error {
	r.e.mu.Lock()
	if r.stopped != nil {
		defer r.e.mu.Unlock()
		return r.stopped
	}
	if r.ctx.Err() != nil {
		err = context.Cause(r.ctx)
	}
	var misfit errMisfit
	var lib *dbos.Error
	gone := err == errCancelled || errors.Is(err, dbos.ErrWorkflowCancelled) || errors.Is(err, dbos.ErrConflictingWorkflowID)
	odd := errors.As(err, &misfit) || errors.Is(err, dbos.ErrStepNondeterminism) || errors.Is(err, dbos.ErrUnexpectedWorkflow) ||
		errors.As(err, &lib) && errors.Is(err, &dbos.Error{Code: dbos.ErrorCodeUnexpectedStep})
	if odd {
		r.stuck = err.Error()
	}
	r.stopped = fmt.Errorf("%w: %w", ErrStopped, err)
	stopped, over := r.stopped, r.ctx.Err() != nil
	r.e.mu.Unlock()
	switch {
	case gone:
		r.cancel(errCancelled)
	case odd:
		r.e.log.Error("a workflow does not fit the history of its run, which waits for one that does", "run", r.stored, "error", err)
	case !over:
		r.e.fail(err)
	}
	return stopped
}

// outcome is a step's result as it is recorded.
type outcome struct {
	Value json.RawMessage `json:"value,omitempty"`
	Error *string         `json:"error,omitempty"`
}

// Step calls do, records its result under name, and returns it. Later, when the run goes on
// in another process, it returns what is recorded. The error is a [*StepError] if do
// returned one. The context of do ends when the run is cancelled or the engine closes; what
// do returns from then on is not recorded.
func Step[T any](r *Run, name string, do func(context.Context) (T, error)) (v T, err error) {
	if err := r.ready(); err != nil {
		return v, err
	}
	out, err := dbos.RunAsStep(r.ctx, func(ctx context.Context) (outcome, error) {
		r.within = name
		defer func() { r.within = "" }()
		v, err := do(ctx)
		if ctx.Err() != nil {
			return outcome{}, context.Cause(ctx)
		}
		var b []byte
		if err == nil {
			b, err = json.Marshal(v)
		}
		if err != nil {
			text := err.Error()
			return outcome{Error: &text}, nil
		}
		return outcome{Value: b}, nil
	}, dbos.WithStepName(name))
	if err != nil {
		return v, r.halt(err)
	}
	if out.Error != nil {
		return v, &StepError{name, *out.Error}
	}
	return decode[T](r, name, out.Value)
}

// decode decodes what is recorded, so that a run sees the same when it is recorded and when
// it is read back.
func decode[T any](r *Run, what string, b json.RawMessage) (v T, err error) {
	if err := json.Unmarshal(b, &v); err != nil {
		return v, r.halt(errMisfit{what + ": " + err.Error()})
	}
	return v, nil
}

// receivePrefix begins the name of the record that a run waits for a topic. It is there
// before the wait begins: without it a new body could put a patch or a step in the place where
// an old run waits already.
const receivePrefix = "receive "

// Receive waits for a signal of the topic, and reports whether one came within the time. The
// time counts from the first call, also over restarts.
func Receive[T any](r *Run, topic string, within time.Duration) (v T, ok bool, err error) {
	if _, err := Step(r, receivePrefix+topic, func(context.Context) (struct{}, error) { return struct{}{}, nil }); err != nil {
		return v, false, err
	}
	raw, err := dbos.Recv[json.RawMessage](r.ctx, topic, within)
	switch {
	case err == nil && raw == nil, err != nil && r.ctx.Err() == nil && errors.Is(err, dbos.ErrTimeout):
		return v, false, nil
	case err != nil:
		return v, false, r.halt(err)
	}
	v, err = decode[T](r, receivePrefix+topic, raw)
	return v, err == nil, err
}

// Child runs a workflow for this run, and returns what it returned. key is the child's name in
// the run. The error is a [*ChildError] if the child did not end well. A child is cancelled
// with its run.
func Child[T any](r *Run, key, workflow string, input any) (v T, err error) {
	if err := r.ready(); err != nil {
		return v, err
	}
	k := r.e.kinds[workflow]
	if k == nil || checkName(key) != nil {
		return v, r.halt(errMisfit{fmt.Sprintf("there is no workflow %q, or a child can't be called %q", workflow, key)})
	}
	in, err := json.Marshal(input)
	if err != nil {
		return v, r.halt(errMisfit{key + ": " + err.Error()})
	}
	h, err := dbos.RunWorkflow(r.ctx, k.run, in, dbos.WithRunInstance(k), dbos.WithQueue(k.queue), dbos.WithWorkflowID(r.stored+childSign+key))
	if err != nil {
		return v, r.halt(err)
	}
	for {
		// The library waits with a context that nothing ends.
		raw, err := h.GetResult(dbos.WithHandleTimeout(lookEvery), dbos.WithHandlePollingInterval(pollEvery))
		var failed *failure
		switch {
		case r.ctx.Err() != nil:
			return v, r.halt(err)
		case err == nil:
			return decode[T](r, key, raw)
		case errors.As(err, &failed):
			return v, &ChildError{key, Failed, failed.Text}
		case errors.Is(err, dbos.ErrAwaitedWorkflowCancelled):
			return v, &ChildError{key, Cancelled, ""}
		case errors.Is(err, dbos.ErrDeadLetterQueue):
			return v, &ChildError{key, Exhausted, ""}
		case !errors.Is(err, dbos.ErrTimeout):
			return v, r.halt(err)
		}
	}
}

// Now returns the time at which it was first called.
func (r *Run) Now() (time.Time, error) {
	return Step(r, "now", func(context.Context) (time.Time, error) { return time.Now(), nil })
}

// Sleep returns after d, counted from the first call, also over restarts.
func (r *Run) Sleep(d time.Duration) error {
	if err := r.ready(); err != nil {
		return err
	}
	if _, err := dbos.Sleep(r.ctx, d); err != nil {
		return r.halt(err)
	}
	return nil
}

// Patched reports whether the run has not passed this place before the patch called name was
// added to the body. A new step, wait or child goes behind it; the old ones stay for runs for which
// Patched is false.
func (r *Run) Patched(name string) (bool, error) {
	if err := r.ready(); err != nil {
		return false, err
	}
	patched, err := dbos.Patch(r.ctx, name)
	if err != nil {
		return false, r.halt(err)
	}
	return patched, nil
}
