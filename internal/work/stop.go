package work

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottles"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run"
)

// StoppedError means that a signal stopped work. WorkOptions.Continue resumes it.
type StoppedError struct {
	Work   string // empty: it had not begun
	Signal os.Signal
	Err    error // of what was interrupted
}

// ExitSignal lets package exitcode choose the exit code.
func (e *StoppedError) ExitSignal() syscall.Signal {
	s, _ := e.Signal.(syscall.Signal)
	return s
}

func (e *StoppedError) Error() string {
	text := fmt.Sprintf("work %s was stopped by a signal (%s)", e.Work, e.Signal)
	if e.Work == "" {
		text = fmt.Sprintf("stopped by a signal (%s) before the work began", e.Signal)
	}
	if e.Err != nil && !brokenOff(e.Err) {
		text += ": " + e.Err.Error()
	}
	return text
}

// Stopped returns the error of work that received signal s and ended with err.
func (w *Work) Stopped(s os.Signal, err error) *StoppedError {
	e := &StoppedError{Signal: s, Err: err}
	if len(w.Steps) > 0 || w.O.Continue != "" && !errors.Is(err, ErrNoWork) {
		e.Work = w.Id
	}
	return e
}

// brokenOff reports whether an error says only that something was interrupted.
func brokenOff(err error) bool {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !brokenOff(err) })
	case interface{ Unwrap() error }:
		return brokenOff(e.Unwrap())
	}
	return err == run.ErrInterrupted || err == context.Canceled
}

func (e *StoppedError) Unwrap() error { return e.Err }

// listensWithin bounds the time in which a run takes a signal. A run that takes none has
// not started yet, or has ended.
const listensWithin = time.Second

// Relay delivers signals. While an agent runs, they go to the agent, which decides what
// they mean. Otherwise they stop the work. After the first signal no other agent starts.
type Relay struct {
	mu    sync.Mutex
	first os.Signal
	agent *listener // nil: none runs
}

// listener is one agent's end of a relay. Its channel has no buffer, so that no signal can
// wait there for the next agent.
type listener struct {
	signals chan os.Signal
	over    chan struct{}
}

// Listen starts the relay. It cancels the returned context at the first signal that no
// agent takes, and calls stopping for each of those. The returned function ends the relay.
func (r *Relay) Listen(ctx context.Context, signals <-chan os.Signal, stopping func(os.Signal)) (context.Context, func()) {
	ctx, stop := context.WithCancelCause(ctx)
	done, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for {
			select {
			case s := <-signals:
				if r.pass(s, done) {
					continue
				}
				if stopping != nil {
					stopping(s)
				}
				stop(run.ErrInterrupted)
			case <-done:
				return
			}
		}
	}()
	return ctx, func() { close(done); <-over; stop(nil) }
}

// pass offers a signal to the running agent and reports whether that took it.
func (r *Relay) pass(s os.Signal, done <-chan struct{}) bool {
	r.mu.Lock()
	if r.first == nil {
		r.first = s
	}
	a := r.agent
	r.mu.Unlock()
	if a == nil {
		return false
	}
	select {
	case a.signals <- s:
		return true
	case <-a.over:
	case <-done:
	case <-time.After(listensWithin):
	}
	return false
}

// Begins returns a channel with the signals for a new agent. They go there until the
// returned function is called.
func (r *Relay) Begins() (<-chan os.Signal, func()) {
	a := &listener{make(chan os.Signal), make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.agent = a
	return a.signals, func() {
		r.mu.Lock()
		r.agent = nil
		r.mu.Unlock()
		close(a.over)
	}
}

// Heard returns the first signal, or nil.
func (r *Relay) Heard() os.Signal {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first
}

// NeverBegan reports whether a start ended before its agent started.
func NeverBegan(s *bottles.Started, err error) bool {
	if s == nil || s.Receipt == nil {
		return true
	}
	return s.Receipt.Exit.Reason == receipt.Failed && (s.Receipt.Started == nil || errors.Is(err, bottle.ErrNotFound) || errors.Is(err, bottle.ErrNotExecutable))
}

// Spoiled reports whether no agent can start in a resumed bottle any more, perhaps because
// the last one removed or changed what every agent needs. It takes the result of Resume;
// stopped means that nothing was meant to start.
func Spoiled(s *bottles.Started, err error, stopped bool) bool {
	if s == nil || s.Receipt == nil {
		return false // it was refused before anything in the bottle mattered
	}
	return !stopped || errors.Is(err, bottle.ErrNotFound) || errors.Is(err, bottle.ErrNotExecutable)
}
