package orchestrate

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/engine"
	"github.com/carboy/carboy/internal/forgeservice"
	"github.com/carboy/carboy/internal/issues"
	"github.com/carboy/carboy/internal/safetext"
)

var (
	errSilent    = errors.New("the agent was silent for too long")
	errPullEnded = errors.New("the pull request has ended")
)

// turnTries bounds the tries of a turn that carboy or the machine can't carry out.
const turnTries = 3

// running is a turn in this process.
type running struct {
	cancel context.CancelCauseFunc

	mu   sync.Mutex
	last time.Time // sign of life
	kept time.Time // when one was written down
}

func (t *running) sign() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

func (t *running) stop(why error) { t.cancel(why) }

// checkin notes a sign of life, and reports whether it is to be written down.
func (t *running) checkin(every time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = time.Now()
	if t.last.Sub(t.kept) < every {
		return false
	}
	t.kept = t.last
	return true
}

// stopTurn ends the turn of an issue, and reports whether one runs.
func (o *Orchestrator) stopTurn(k issues.Key, why error) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.turns[k]
	if t != nil {
		t.stop(why)
	}
	return t != nil
}

// turn is the body of the workflow of one turn. The engine bounds how many are under way.
func (o *Orchestrator) turn(r *engine.Run, in flow) (struct{}, error) {
	return engine.Step(r, "bottle", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, o.carryOut(ctx, in.Key, in.Turn)
	})
}

// carryOut carries out a turn, and keeps what became of it.
func (o *Orchestrator) carryOut(ctx context.Context, k issues.Key, number int) error {
	e, err := o.entryOf(ctx, k, number)
	if err != nil || e.Result != nil {
		return err
	}
	o.counts.turns.Add(1)
	turnCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	now := &running{cancel: cancel, last: time.Now()}
	o.mu.Lock()
	o.turns[k] = now
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		delete(o.turns, k)
		o.mu.Unlock()
	}()
	var rec issues.Record
	if err := o.table.Update(ctx, k, func(r *issues.Record) error {
		if r.Life.Ending != "" { // it was told when nothing ran
			cancel(errPullEnded)
		}
		r.Life.Waits, r.LastCheckin = "the agent", time.Now()
		rec = *r
		return nil
	}); err != nil {
		return err
	}
	var res *TurnResult
	err = o.finish(turnCtx, k, "see that the repository is the same", func(ctx context.Context) error {
		if f := o.forgeOf(k); f != nil {
			return o.same(ctx, f, &rec)
		}
		return errUnconfigured
	})
	if err == nil {
		now.checkin(0)
		res, err = o.inBottle(turnCtx, rec, e, now)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx) // the next process goes on with it
	}
	return o.keepResult(ctx, k, number, res, err, context.Cause(turnCtx))
}

// inBottle lets the bottles carry out a turn, and tries again what fails.
func (o *Orchestrator) inBottle(ctx context.Context, rec issues.Record, e turnEntry, now *running) (res *TurnResult, err error) {
	for n := range turnTries {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if n > 0 {
			o.Log.Warn("a turn can't be carried out; it is tried again", "issue", rec.Key.String(), "error", err)
			if perr := pause(ctx, backoff(o.pace.first, o.pace.most, n)); perr != nil {
				return nil, perr
			}
		}
		now.checkin(0)
		if res, err = o.once(ctx, rec, e, now); err == nil && res == nil {
			err = errors.New("there is no result")
		}
		if err == nil {
			return res, nil
		}
	}
	return nil, err
}

// once lets the bottles carry out a turn.
func (o *Orchestrator) once(ctx context.Context, rec issues.Record, e turnEntry, now *running) (*TurnResult, error) {
	k := rec.Key
	f := o.forgeOf(k)
	if f == nil {
		return nil, errUnconfigured
	}
	var pulls []int
	if rec.PullRequest > 0 {
		pulls = append(pulls, int(rec.PullRequest))
	}
	scope, err := forgeservice.NewScope(int(k.Number), pulls...)
	if err != nil {
		return nil, err
	}
	began := strconv.FormatInt(time.Now().UnixNano(), 36) // operations of two tries have the same numbers
	service, err := f.Service(ServiceRequest{
		Issue: k, Scope: scope, Bottle: e.ID, Agent: rec.Agent,
		Record: func(op forgeservice.Operation) error {
			id := fmt.Sprintf("%s-%s-%d-%s", e.ID, began, op.Number, op.Outcome)
			return o.table.Set(context.WithoutCancel(ctx), k, kindOperation, id, op)
		},
		Done: func(_ context.Context, s forgeservice.Status, summary string) error {
			return o.reported(context.WithoutCancel(ctx), k, e.Number, s, summary)
		},
	})
	if err != nil {
		return nil, err
	}
	t := turnOf(&rec)
	t.ID, t.Prompt, t.Anew, t.Forge = e.ID, e.Prompt, e.Anew, service
	t.OnCheckin = func() { o.checkin(ctx, k, now) }
	t.OnBottle = func(slug string) {
		o.checkin(ctx, k, now)
		if err := o.table.Update(context.WithoutCancel(ctx), k, func(r *issues.Record) error { r.Slug = slug; return nil }); err != nil {
			o.unwritten(err)
		}
	}
	return o.Bottles.Turn(ctx, t)
}

// checkin takes a sign of life.
func (o *Orchestrator) checkin(ctx context.Context, k issues.Key, t *running) {
	if !t.checkin(o.pace.checkins) {
		return
	}
	err := o.table.Update(context.WithoutCancel(ctx), k, func(r *issues.Record) error { r.LastCheckin = t.sign(); return nil })
	if err != nil {
		o.unwritten(err)
	}
}

// reported keeps the agent's report of a turn. The last one counts.
func (o *Orchestrator) reported(ctx context.Context, k issues.Key, number int, s forgeservice.Status, summary string) error {
	o.mu.Lock()
	now := o.turns[k]
	o.mu.Unlock()
	if now != nil {
		o.checkin(ctx, k, now)
	}
	e, err := o.entryOf(ctx, k, number)
	if err != nil {
		return err
	}
	e.Status, e.Summary = string(s), summary
	return o.table.Set(ctx, k, kindTurn, strconv.Itoa(number), e)
}

// keepResult keeps what became of a turn. why is what stopped it, if something did.
func (o *Orchestrator) keepResult(ctx context.Context, k issues.Key, number int, res *TurnResult, failed, why error) error {
	stopped := errors.Is(why, errSilent) || errors.Is(why, errPullEnded) || errors.Is(why, errStopped)
	var slug string
	if stopped {
		err := o.finish(ctx, k, "freeze the bottle", func(ctx context.Context) error {
			rec, _, err := o.table.Get(ctx, k)
			if slug = rec.Slug; err != nil || slug == "" {
				return err
			}
			return o.Bottles.Freeze(ctx, slug)
		})
		if err != nil {
			return err
		}
	}
	return o.finish(ctx, k, "keep what became of a turn", func(ctx context.Context) error {
		e, err := o.entryOf(ctx, k, number)
		if err != nil {
			return err
		}
		e.Result = res
		if e.Result == nil {
			e.Result = &TurnResult{Slug: slug, Began: e.Began, Ended: time.Now().UTC()}
			if failed != nil && !stopped {
				e.Broken = safetext.String(failed.Error(), 600)
			}
		}
		// An agent that ends without a report is incomplete, as a silent one is.
		e.Silent, e.Stopped = errors.Is(why, errSilent), errors.Is(why, errStopped)
		e.Watchdog = e.Silent || !stopped && e.Broken == "" && e.Result.Outcome == ""
		if err := o.table.Set(ctx, k, kindTurn, strconv.Itoa(number), e); err != nil {
			return err
		}
		return o.table.Update(ctx, k, func(r *issues.Record) error {
			r.Status, r.Life.Watchdog, r.Life.Waits = issues.Frozen, e.Watchdog, "carboy: it tells the forge how the turn ended"
			if e.Result.Slug != "" {
				r.Slug = e.Result.Slug
			}
			return nil
		})
	})
}
