package orchestrate

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/issues"
)

const (
	// pollBack bounds how far back a look at a repository goes. An issue that was not touched
	// since, and was not ours, is not found.
	pollBack = 30 * 24 * time.Hour
	// pollOverlap is the time that two looks at a repository share.
	pollOverlap = 10 * time.Minute
)

// polled says how far looks at a repository came.
type polled struct {
	At time.Time
	// Newest is the newest change that was seen, by the forge's clock. Ours may differ.
	Newest time.Time
}

// polls looks at all repositories and all issues that live, at once and then again and again.
func (o *Orchestrator) polls(ctx context.Context) {
	var (
		mu    sync.Mutex
		next  = map[string]time.Time{}
		fails = map[string]int{}
	)
	for {
		var all sync.WaitGroup
		slots := make(chan struct{}, lookWorkers)
		for path, f := range o.repos(ctx) {
			if time.Now().Before(next[path]) {
				continue
			}
			all.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				began := time.Now()
				err := o.poll(ctx, f, path)
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					o.counts.pollErrors.Add(1)
					o.Log.Warn("a repository can't be looked at; it is tried again", "repository", path, "error", err)
				}
				if nerr := o.noteFailed(ctx, path, err); nerr != nil {
					o.unwritten(nerr)
				}
				mu.Lock()
				defer mu.Unlock()
				next[path] = began.Add(o.Poll)
				if err == nil {
					delete(fails, path)
					return
				}
				next[path] = began.Add(min(o.Poll, backoff(o.pace.first, o.pace.most, fails[path])))
				fails[path]++
			})
		}
		all.Wait()
		wait := o.Poll
		for _, at := range next {
			wait = min(wait, time.Until(at))
		}
		timer := time.NewTimer(max(wait, o.pace.first))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// repos returns the repositories to look at, with their forges: those that are configured, and
// those of issues.
func (o *Orchestrator) repos(ctx context.Context) map[string]*Forge {
	out := map[string]*Forge{}
	for i := range o.Forges {
		for _, r := range o.Forges[i].Repos {
			out[o.Forges[i].Owner+"/"+r.Name] = &o.Forges[i]
		}
	}
	all, err := o.table.List(ctx)
	if err != nil {
		o.unwritten(err)
	}
	for _, r := range all {
		if f := o.forgeOf(r.Key); f != nil {
			out[repoOf(r.Key)] = f
		}
	}
	return out
}

// poll asks for looks at what changed in a repository, and at its issues that live.
func (o *Orchestrator) poll(ctx context.Context, f *Forge, path string) error {
	ctx, cancel := context.WithTimeout(ctx, lookIn)
	defer cancel()
	began := time.Now().UTC()
	since := began.Add(-pollBack)
	notes, err := o.table.Notes(ctx, notePolled)
	if err != nil {
		return err
	}
	var last polled
	for _, n := range notes {
		if n.ID == path && json.Unmarshal(n.Value, &last) == nil && last.Newest.Add(-pollOverlap).After(since) {
			since = last.Newest.Add(-pollOverlap)
		}
	}
	all, err := o.table.List(ctx)
	if err != nil {
		return err
	}
	known := map[int64]bool{}
	full := false
	want := func(k issues.Key, deep bool) { full = !o.queue.add(k, deep) || full }
	for _, r := range all {
		if repoOf(r.Key) != path {
			continue
		}
		known[r.Number] = true
		if r.Status != issues.Destroyed {
			want(r.Key, true)
		}
	}
	changed, err := f.Client.Changed(ctx, path, since)
	if err != nil {
		return err
	}
	owner, name := splitRepo(path)
	for _, i := range changed {
		if i.Updated.After(last.Newest) {
			last.Newest = i.Updated
		}
		k := issues.Key{Owner: owner, Repo: name, Number: int64(i.Number)}
		if i.Pull {
			if of, ok := o.issueOf(k); ok {
				want(of, false)
			}
			continue
		}
		if known[k.Number] || triggerOf(&i, o.Labels).ours {
			want(k, false)
		}
	}
	if err := o.forget(ctx, path, want); err != nil {
		return err
	}
	if full {
		return errors.New("more issues are to be looked at than are remembered; the rest comes at the next look")
	}
	return o.table.SetNote(ctx, notePolled, path, polled{began, last.Newest})
}

// forget looks again at issues that wait to be begun: their labels may be gone.
func (o *Orchestrator) forget(ctx context.Context, path string, want func(issues.Key, bool)) error {
	notes, err := decoded[waitingNote](o.table.Notes(ctx, noteWaiting))
	for _, n := range notes {
		if repoOf(n.Key) == path {
			want(n.Key, false)
		}
	}
	return err
}

// lookAtPulls asks for looks at the issues of a repository whose pull requests a push may
// have brought into conflict.
func (o *Orchestrator) lookAtPulls(k issues.Key) {
	all, err := o.table.List(o.closed)
	if err != nil {
		o.unwritten(err)
	}
	for _, r := range all {
		if r.Owner == k.Owner && r.Repo == k.Repo && r.PullRequest > 0 && r.Status != issues.Destroyed {
			o.queue.add(r.Key, true)
		}
	}
}

// watches looks at the agents, and stops those that are silent for too long.
func (o *Orchestrator) watches(ctx context.Context) {
	tick := time.NewTicker(o.pace.watch)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		o.mu.Lock()
		for k, t := range o.turns {
			if silent := time.Since(t.sign()); silent > o.Watchdog {
				o.Log.Warn("an agent is silent for too long; it is stopped", "issue", k.String(), "since", t.sign())
				t.stop(errSilent)
			}
		}
		o.mu.Unlock()
	}
}
