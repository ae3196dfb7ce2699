// Package supervisetest provides a queue in memory, for tests and benchmarks of user
// interfaces. It follows the rules of package supervise for answers, and stores nothing.
package supervisetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/supervise"
)

// Queue is an in-memory queue. It is safe for concurrent use. The zero value is empty.
type Queue struct {
	mu       sync.Mutex
	entries  []supervise.Entry
	watchers []chan struct{}
	last     int
	replies  []supervise.Reply
	problems []supervise.Problem
	fail     error
}

// Add puts a proposal in the queue that waits for five minutes. It panics if the payload is
// not valid.
func (q *Queue) Add(bottle, why string, p supervise.Payload) supervise.Proposal {
	if err := p.Check(); err != nil {
		panic(err)
	}
	d, err := supervise.DigestOf(bottle, p)
	if err != nil {
		panic(err)
	}
	q.mu.Lock()
	q.last++
	now := time.Now()
	out := supervise.Proposal{
		ID: supervise.ID(fmt.Sprintf("01k0000000000000000000%04d", q.last)), Bottle: bottle, Run: "01k1run", Kind: p.Kind(), Payload: p, Digest: d,
		Why: why, Tool: "egress-allow", Created: now, Expires: now.Add(supervise.DefaultTimeout),
	}
	q.entries = append(q.entries, supervise.Entry{Proposal: out})
	q.mu.Unlock()
	q.tell()
	return out
}

// AddMany adds n proposals of routes, to hosts numbered from 0.
func (q *Queue) AddMany(n int) {
	for i := range n {
		q.Add(fmt.Sprintf("bottle-%d", i%20), "the tests need it", Route(fmt.Sprintf("host-%03d.example.com", i)))
	}
}

// Route returns a payload that allows to GET the paths below /api of a host.
func Route(host string) supervise.EgressAllow {
	return supervise.EgressAllow{
		Routes: []supervise.RouteAdded{{Host: host, Matches: []routes.MatchDescription{{Paths: []routes.ValueDescription{{Type: "prefix", Value: "/api"}}, Methods: []string{"GET"}}}}},
		Before: []routes.Description{{Host: "proxy.golang.org"}, {Host: "registry.npmjs.org"}},
		Past:   []supervise.PastRequest{{What: "GET https://" + host + "/api/v1/users", Count: 3}},
	}
}

// AnyRoute returns a payload that allows all of a host; it has a warning.
func AnyRoute(host string) supervise.EgressAllow {
	return supervise.EgressAllow{Routes: []supervise.RouteAdded{{Host: host}}, Before: []routes.Description{{Host: "proxy.golang.org"}}}
}

// End ends a proposal with v, as if from another process.
func (q *Queue) End(id supervise.ID, v supervise.Verdict) {
	q.mu.Lock()
	for i := range q.entries {
		if e := &q.entries[i]; e.Proposal.ID == id && e.Answer == nil {
			e.Answer = &supervise.Answer{ID: id, Digest: e.Proposal.Digest, Verdict: v, By: supervise.By{User: "someone", Channel: supervise.ChannelCLI}, At: time.Now()}
		}
	}
	q.mu.Unlock()
	q.tell()
}

// Apply returns a payload that a signature approves.
func Apply(host string) supervise.Apply {
	return supervise.Apply{
		Action: "apply", Module: "web", Commit: strings.Repeat("c", 40), Files: []string{"plans/web.plan.json"}, Missing: "0 of 1 approvals",
		Plans: []supervise.ApplyPlan{{Digest: strings.Repeat("e", 64), Host: host, Expires: time.Now().Add(time.Hour), Changes: []supervise.ApplyChange{
			{What: "compose.service.web", Action: "update", From: "app:v1", To: "app:v2", Why: "its configuration is another one"},
		}}},
	}
}

// Change gives a proposal another payload under the same id, which a real queue never does.
func (q *Queue) Change(id supervise.ID, p supervise.Payload) {
	q.mu.Lock()
	for i := range q.entries {
		if e := &q.entries[i]; e.Proposal.ID == id {
			e.Proposal.Payload = p
			e.Proposal.Digest, _ = supervise.DigestOf(e.Proposal.Bottle, p)
		}
	}
	q.mu.Unlock()
	q.tell()
}

// Fail lets the queue fail with err, until a call with nil.
func (q *Queue) Fail(err error, problems ...supervise.Problem) {
	q.mu.Lock()
	q.fail, q.problems = err, problems
	q.mu.Unlock()
	q.tell()
}

// Replies returns all answers given, including the refused ones.
func (q *Queue) Replies() []supervise.Reply {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.replies)
}

// Entry returns a proposal in its present state.
func (q *Queue) Entry(id supervise.ID) supervise.Entry {
	e, _ := q.Find(context.Background(), string(id))
	return e
}

func (q *Queue) tell() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, w := range q.watchers {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// List implements the method of supervise.Queue.
func (q *Queue) List(_ context.Context, query supervise.Query) (supervise.Listing, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fail != nil {
		return supervise.Listing{}, q.fail
	}
	out := supervise.Listing{Problems: q.problems}
	for _, e := range q.entries {
		if e.Answer == nil || query.Archived {
			out.Entries = append(out.Entries, e)
		}
	}
	return out, nil
}

// Find implements the method of supervise.Queue.
func (q *Queue) Find(_ context.Context, prefix string) (supervise.Entry, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range q.entries {
		if strings.HasPrefix(string(e.Proposal.ID), prefix) {
			return e, nil
		}
	}
	return supervise.Entry{}, supervise.ErrNotFound
}

// Answer implements the method of supervise.Queue.
func (q *Queue) Answer(_ context.Context, r supervise.Reply) (supervise.Answer, error) {
	q.mu.Lock()
	a, err := q.answer(r)
	q.mu.Unlock()
	q.tell()
	return a, err
}

func (q *Queue) answer(r supervise.Reply) (supervise.Answer, error) {
	q.replies = append(q.replies, r)
	if len(r.Note) > supervise.MaxNote {
		return supervise.Answer{}, fmt.Errorf("note of %d bytes, at most %d", len(r.Note), supervise.MaxNote)
	}
	for i := range q.entries {
		e := &q.entries[i]
		switch {
		case e.Proposal.ID != r.ID:
			continue
		case e.Answer != nil && e.Answer.Verdict == supervise.Withdrawn:
			return supervise.Answer{}, supervise.ErrGone
		case e.Answer != nil && e.Answer.Verdict == supervise.Expired:
			return supervise.Answer{}, supervise.ErrExpired
		case e.Answer != nil:
			return supervise.Answer{}, &supervise.AnsweredError{ID: r.ID, Answer: *e.Answer}
		case e.Proposal.Digest != r.Digest:
			return supervise.Answer{}, supervise.ErrDigest
		}
		if _, ok := e.Proposal.Payload.(supervise.Signed); ok && r.Verdict.Allows() {
			return supervise.Answer{}, supervise.ErrSigned
		}
		a := supervise.Answer{ID: r.ID, Digest: r.Digest, Verdict: r.Verdict, Note: r.Note, At: time.Now(), By: supervise.By{User: "me", Channel: r.Channel}, Payload: r.Payload}
		e.Answer = &a
		return a, nil
	}
	return supervise.Answer{}, supervise.ErrNotFound
}

// Watch implements the method of supervise.Queue.
func (q *Queue) Watch(ctx context.Context) <-chan struct{} {
	c := make(chan struct{}, 1)
	q.mu.Lock()
	q.watchers = append(q.watchers, c)
	q.mu.Unlock()
	context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.watchers = slices.DeleteFunc(q.watchers, func(w chan struct{}) bool { return w == c })
		close(c)
	})
	return c
}
