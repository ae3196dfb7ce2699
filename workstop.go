package carboy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/receipt"
)

// StoppedError is of work that a signal has stopped; Continue goes on with it.
type StoppedError struct {
	Work   string // empty: it had not begun
	Signal os.Signal
	Err    error // what that broke off
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

// stopped is what work ends with when a signal was heard and err came of it, or beside it.
func (w *work) stopped(s os.Signal, err error) *StoppedError {
	e := &StoppedError{Signal: s, Err: err}
	if len(w.steps) > 0 || w.o.Continue != "" && !errors.Is(err, ErrNoWork) {
		e.Work = w.id
	}
	return e
}

// brokenOff reports whether an error says nothing but that something was stopped.
func brokenOff(err error) bool {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !brokenOff(err) })
	case interface{ Unwrap() error }:
		return brokenOff(e.Unwrap())
	}
	return err == ErrInterrupted || err == context.Canceled
}

func (e *StoppedError) Unwrap() error { return e.Err }

// listensWithin is how soon a run takes a signal. One that does not has not begun, or has
// ended.
const listensWithin = time.Second

// relay hands signals to whom they concern: to the agent while one runs, which decides
// what they mean; else they stop the work. After the first one no other agent begins.
type relay struct {
	mu    sync.Mutex
	first os.Signal
	agent *listener // nil: none runs
}

// listener is one agent's end of a relay. No signal waits in it for another agent.
type listener struct {
	signals chan os.Signal
	over    chan struct{}
}

// listen starts the relay: what it returns ends with the first signal that is no agent's.
// stopping is told of each of those. It ends with the returned function.
func (r *relay) listen(ctx context.Context, signals <-chan os.Signal, stopping func(os.Signal)) (context.Context, func()) {
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
				stop(ErrInterrupted)
			case <-done:
				return
			}
		}
	}()
	return ctx, func() { close(done); <-over; stop(nil) }
}

// pass gives a signal to the agent that runs.
func (r *relay) pass(s os.Signal, done <-chan struct{}) bool {
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

// begins makes an agent the one that signals are for, until the returned function is
// called.
func (r *relay) begins() (<-chan os.Signal, func()) {
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

// heard is the first signal; nil: there was none.
func (r *relay) heard() os.Signal {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first
}

// neverBegan reports whether a start came to its end before there was an agent.
func neverBegan(s *Started, err error) bool {
	if s == nil || s.Receipt == nil {
		return true
	}
	return s.Receipt.Exit.Reason == receipt.Failed && (s.Receipt.Started == nil || errors.Is(err, bottle.ErrNotFound) || errors.Is(err, bottle.ErrNotExecutable))
}

// spoiled reports whether no agent began in a bottle that was resumed since the one before
// may have seen to that: what it removed, or made otherwise, is asked for in vain each time.
// stopped: nothing more was to begin.
func spoiled(s *Started, err error, stopped bool) bool {
	if s == nil || s.Receipt == nil {
		return false // it was refused before anything of the bottle was looked at
	}
	return !stopped || errors.Is(err, bottle.ErrNotFound) || errors.Is(err, bottle.ErrNotExecutable)
}

// gateLockLook is how often who waits for a gate looks whether it is over.
const gateLockLook = 100 * time.Millisecond

// awaitGateLock is gateLock, and waits for another gate when it has somebody to tell.
func (c *Client) awaitGateLock(ctx context.Context, dir string, waits func()) (func(), error) {
	unlock, err := c.gateLock(dir)
	if waits == nil || !errors.Is(err, ErrGateLocked) {
		return unlock, err
	}
	waits()
	for errors.Is(err, ErrGateLocked) {
		select {
		case <-time.After(gateLockLook):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		unlock, err = c.gateLock(dir)
	}
	return unlock, err
}
