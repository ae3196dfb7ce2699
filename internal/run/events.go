package run

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carboy/carboy/internal/run/plan"
)

// events passes events from any goroutine, the packet path included, to one listener.
// If the listener is slow, events are counted and dropped.
type events struct {
	ch      chan told
	done    chan struct{}
	dropped atomic.Int64

	mu     sync.Mutex
	closed bool
}

// told is an event, or a request to confirm that all earlier ones were delivered.
type told struct {
	plan.Event
	heard chan struct{}
}

const maxPendingEvents = 256

func startEvents(f func(plan.Event)) *events {
	e := &events{ch: make(chan told, maxPendingEvents), done: make(chan struct{})}
	go func() { // ends with close
		defer close(e.done)
		for ev := range e.ch {
			if ev.heard != nil {
				close(ev.heard)
				continue
			}
			f(ev.Event)
		}
	}()
	return e
}

func (e *events) send(ev plan.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	select {
	case e.ch <- told{Event: ev}:
	default:
		e.dropped.Add(1)
	}
}

// settleEvents bounds the wait for a listener before its run is answered for.
const settleEvents = 100 * time.Millisecond

// settle waits up to settleEvents until the listener has seen all events sent before.
func (e *events) settle() {
	heard := make(chan struct{})
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	select {
	case e.ch <- told{heard: heard}:
	default:
		close(heard) // it is slow
	}
	e.mu.Unlock()
	select {
	case <-heard:
	case <-time.After(settleEvents):
	}
}

// close waits until the listener has seen what was sent, or ctx has ended. What
// is sent later is dropped.
func (e *events) close(ctx context.Context) {
	e.mu.Lock()
	e.closed = true
	close(e.ch)
	e.mu.Unlock()
	select {
	case <-e.done:
	case <-ctx.Done():
	}
}
