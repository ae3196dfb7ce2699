package carboy

import (
	"context"
	"sync"
	"sync/atomic"
)

// Event is something worth a line while a run goes on.
type Event struct {
	Kind string // started, published, refused, limit, interrupt, progress
	Text string // a plain sentence of carboy's own
	// Name, Port and Rule are of what was refused. Name comes from inside: make
	// it visible before it is shown.
	Name string
	Port uint16
	Rule string
}

// events carries events from anywhere, the packet path included, to one
// listener that may be slow: what it can't keep up with is counted and dropped.
type events struct {
	ch      chan Event
	done    chan struct{}
	dropped atomic.Int64

	mu     sync.Mutex
	closed bool
}

const maxPendingEvents = 256

func startEvents(f func(Event)) *events {
	e := &events{ch: make(chan Event, maxPendingEvents), done: make(chan struct{})}
	go func() { // ends with close
		defer close(e.done)
		for ev := range e.ch {
			f(ev)
		}
	}()
	return e
}

func (e *events) send(ev Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	select {
	case e.ch <- ev:
	default:
		e.dropped.Add(1)
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
