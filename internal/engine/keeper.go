package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/carboy/carboy/internal/sqlite"
)

const (
	lookEvery  = time.Second // for runs that others have cancelled
	probeEvery = 10          // looks between two probes of the store

	// orphanAfter counts probes. A run that so many of them see under way in the store, but
	// not in this process, is an orphan. The library tries for half a minute to record an end while others
	// write.
	orphanAfter = 6
)

// keep does what the library leaves out: it tells a step that its run is cancelled, and finds
// out that the store takes no writes, also when no run writes to it.
func (e *Engine) keep() {
	ctx := e.life
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	orphans := map[string]int{}
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := e.tellCancelled(ctx)
		if err == nil && n%probeEvery == 0 {
			if err = e.beat(ctx); err == nil {
				orphans, err = e.probe(ctx, orphans)
			}
		}
		if err != nil && !sqlite.Busy(err) && ctx.Err() == nil {
			e.fail(err)
			return
		}
	}
}

// tellCancelled ends the contexts of runs that the store has as cancelled.
func (e *Engine) tellCancelled(ctx context.Context) error {
	runs := e.runs()
	if len(runs) == 0 {
		return nil
	}
	ids := make([]string, 0, len(runs))
	for _, r := range runs {
		ids = append(ids, r.stored)
	}
	gone, err := e.cancelledOf(ctx, ids)
	if err != nil {
		return err
	}
	for _, r := range runs {
		if slices.Contains(gone, r.stored) {
			r.end(errCancelled)
		}
	}
	return nil
}

// probe returns the runs that are under way in the store, but not here, and how many probes have
// seen them so, before included. One that stays so waits for a process that starts: its end
// could not be recorded.
func (e *Engine) probe(ctx context.Context, before map[string]int) (orphans map[string]int, err error) {
	rows, err := e.running(ctx)
	if err != nil {
		return nil, err
	}
	orphans = map[string]int{}
	here := map[string]bool{}
	for _, r := range e.runs() {
		here[r.stored] = true
	}
	for _, id := range rows {
		if here[id] {
			continue
		}
		orphans[id] = before[id] + 1
		if orphans[id] >= orphanAfter {
			return nil, fmt.Errorf("the end of the run %s could not be recorded", id)
		}
	}
	return orphans, nil
}

func (e *Engine) runs() []*Run {
	e.mu.Lock()
	defer e.mu.Unlock()
	runs := make([]*Run, 0, len(e.active))
	for r := range e.active {
		runs = append(runs, r)
	}
	return runs
}

var errCancelled = errors.New("the run is cancelled")
