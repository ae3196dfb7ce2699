package orchestrate

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/issues"
)

// operatorPost begins the ids of reasons for a turn that the operator gave.
const operatorPost = "operator-"

// Cancel ends the work on an issue for the operator: its turn is stopped, its bottle destroyed,
// and prompts that wait go nowhere. The pull request stays as it is. A later comment of
// somebody who may prompt, or Retry, begins anew. It does nothing if the work has ended. The
// error wraps [issues.ErrMissing] if there is no record of the issue.
func (o *Orchestrator) Cancel(ctx context.Context, k issues.Key) error {
	if err := o.known(ctx, k); err != nil {
		return err
	}
	if err := o.drop(ctx, k); err != nil {
		return err
	}
	if err := o.endPull(ctx, k, "cancelled"); err != nil {
		return err
	}
	return o.wake(ctx, k)
}

// Retry gives the agent of an issue another turn for the operator, now or after the one that
// is under way. A second call before that turn does nothing. The error wraps
// [issues.ErrMissing] if there is no record of the issue.
func (o *Orchestrator) Retry(ctx context.Context, k issues.Key) error {
	if err := o.known(ctx, k); err != nil {
		return err
	}
	all, err := o.heard(ctx, k)
	if err != nil {
		return err
	}
	asked := slices.ContainsFunc(waiting(all), func(h heard) bool { return strings.HasPrefix(h.ID, operatorPost) })
	if !asked {
		now := time.Now().UTC()
		p := post{ID: operatorPost + strconv.FormatInt(now.UnixNano(), 10), Thread: forge.Thread{Number: int(k.Number)}, At: now}
		if _, err := o.table.Add(ctx, k, kindHeard, p.ID, heard{post: p, Prompt: true, Alone: true}); err != nil {
			return err
		}
	}
	o.queue.add(k, false)
	return nil
}

// known returns an error if there is no record of an issue.
func (o *Orchestrator) known(ctx context.Context, k issues.Key) error {
	_, ok, err := o.table.Get(ctx, k)
	if err == nil && !ok {
		err = fmt.Errorf("%v: %w", k, issues.ErrMissing)
	}
	return err
}
