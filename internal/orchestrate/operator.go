package orchestrate

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/carboy/carboy/internal/issues"
)

var errStopped = errors.New("an operator stopped it")

// Counters count what happened since the process began.
type Counters struct {
	Hooks      int64 `json:"hooks"`      // deliveries that were taken
	Refused    int64 `json:"refused"`    // not signed, not understood, or too large
	Duplicates int64 `json:"duplicates"` // of those that were taken
	Overloaded int64 `json:"overloaded"` // too many at a time
	Looks      int64 `json:"looks"`
	LookErrors int64 `json:"look_errors"`
	PollErrors int64 `json:"poll_errors"`
	Turns      int64 `json:"turns"` // that began, or began again
}

type counts struct {
	hooks, refused, duplicates, overloaded, looks, lookErrors, pollErrors, turns atomic.Int64
}

// Counters returns the counters.
func (o *Orchestrator) Counters() Counters {
	c := &o.counts
	return Counters{
		c.hooks.Load(), c.refused.Load(), c.duplicates.Load(), c.overloaded.Load(),
		c.looks.Load(), c.lookErrors.Load(), c.pollErrors.Load(), c.turns.Load(),
	}
}

// Cancel stops the turn of an issue that runs, and freezes its bottle. The issue waits for a
// comment or for [Orchestrator.Retry] then. The error wraps [issues.ErrMissing] if there is no
// record of the issue.
func (o *Orchestrator) Cancel(ctx context.Context, k issues.Key) error {
	if _, ok, err := o.table.Get(ctx, k); err != nil || !ok {
		return errors.Join(err, missing(k, ok))
	}
	if !o.stopTurn(k, errStopped) {
		return fmt.Errorf("%v: no turn of it runs", k)
	}
	return nil
}

// Retry asks for another turn of an issue, as a comment would. The error wraps
// [issues.ErrMissing] if there is no record of the issue.
func (o *Orchestrator) Retry(ctx context.Context, k issues.Key) error {
	if _, ok, err := o.table.Get(ctx, k); err != nil || !ok {
		return errors.Join(err, missing(k, ok))
	}
	now := time.Now().UTC()
	p := post{ID: retryPrefix + strconv.FormatInt(now.UnixNano(), 10), By: "the operator", At: now, Text: "Go on with the work."}
	if _, err := o.table.Add(ctx, k, kindHeard, p.ID, heard{post: p, Prompt: true}); err != nil {
		return err
	}
	o.queue.add(k, false)
	return nil
}

const retryPrefix = "retry-"

func isRetry(h heard) bool { return strings.HasPrefix(h.ID, retryPrefix) }

func missing(k issues.Key, known bool) error {
	if known {
		return nil
	}
	return fmt.Errorf("%v: %w", k, issues.ErrMissing)
}
