package orchestrate

import (
	"context"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/issues"
)

// maxQueue bounds the issues that wait to be looked at.
const maxQueue = 10_000

// A queue holds the issues to look at. However often one is added before its look begins, it
// is looked at once; and once more if it is added meanwhile.
type queue struct {
	gap  time.Duration // between two looks at one issue
	most time.Duration // the longest wait before another try

	mu    sync.Mutex
	items map[issues.Key]*item
	ready chan struct{}
}

type item struct {
	due   time.Time
	want  bool // a look is wanted
	deep  bool // with what is dear
	busy  bool
	fails int
}

func newQueue(gap, most time.Duration) *queue {
	return &queue{gap: gap, most: most, items: map[issues.Key]*item{}, ready: make(chan struct{}, 1)}
}

// add asks for a look, and reports whether there was room. A deep one also asks what a hint
// does not touch.
func (q *queue) add(k issues.Key, deep bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := q.items[k]
	if i == nil {
		if len(q.items) >= maxQueue {
			return false
		}
		i = &item{}
		q.items[k] = i
	}
	i.want = true
	i.deep = i.deep || deep
	q.poke()
	return true
}

func (q *queue) poke() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// take blocks until a look is due, and returns its issue. It reports false when ctx ends. The
// caller calls done.
func (q *queue) take(ctx context.Context) (k issues.Key, deep, ok bool) {
	for {
		wait := time.Hour
		q.mu.Lock()
		now := time.Now()
		for key, i := range q.items {
			if i.busy {
				continue
			}
			left := i.due.Sub(now)
			switch {
			case left > 0 && i.want:
				wait = min(wait, left)
			case left > 0:
			case !i.want:
				delete(q.items, key) // it was kept for the gap
			case !ok:
				k, deep, ok = key, i.deep, true
				i.busy, i.want, i.deep = true, false, false
			default:
				q.poke() // another worker takes it
			}
		}
		q.mu.Unlock()
		if ok {
			return k, deep, true
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return k, false, false
		case <-q.ready:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// done says how a look went. One that failed comes again.
func (q *queue) done(k issues.Key, deep bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := q.items[k]
	i.busy = false
	wait := q.gap
	if err == nil {
		i.fails = 0
	} else {
		wait = backoff(q.gap, q.most, i.fails)
		i.fails++
		i.want = true
		i.deep = i.deep || deep
	}
	i.due = time.Now().Add(wait)
	q.poke()
}

// backoff returns first, doubled n times, and at most most.
func backoff(first, most time.Duration, n int) time.Duration {
	for ; n > 0 && first < most; n-- {
		first *= 2
	}
	return min(first, most)
}
