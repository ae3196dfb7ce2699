package carboy

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Event is something worth a line while a run goes on.
type Event struct {
	Kind string // started, published, refused, found, secret, routes, limit, interrupt, progress
	Text string // a plain sentence of carboy's own
	// Name, Port and Rule are of what was refused. Name comes from inside: make
	// it visible before it is shown.
	Name string
	Port uint16
	Rule string
	// Method and Path are of a request that was refused; from inside, too.
	Method, Path string
}

// events carries events from anywhere, the packet path included, to one
// listener that may be slow: what it can't keep up with is counted and dropped.
type events struct {
	ch      chan told
	done    chan struct{}
	dropped atomic.Int64

	mu     sync.Mutex
	closed bool
}

// told is an event, or the question whether all before it were heard.
type told struct {
	Event
	heard chan struct{}
}

const maxPendingEvents = 256

func startEvents(f func(Event)) *events {
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

func (e *events) send(ev Event) {
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

// settle waits until the listener has heard what was sent, if it is quick.
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
