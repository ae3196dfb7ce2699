package orchestrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/engine"
	"github.com/carboy/carboy/internal/issues"
)

// Files in the state directory.
const (
	tableFile  = "issues.db"
	engineFile = "engine.db"
)

// schema numbers what the bodies of the workflows can continue.
const schema = 1

// Workflows. issueAttempts counts the starts of the process while an issue lives; turnAttempts
// those within one turn, since a turn that ends carboy each time must end, too.
const (
	issueFlow     = "issue"
	turnFlow      = "turn"
	issueAttempts = 1_000_000
	turnAttempts  = 1000
)

// An Orchestrator leads the issues of its forges. It may be used concurrently.
type Orchestrator struct {
	Options
	pace      pace
	table     *issues.Table
	engine    *engine.Engine
	queue     *queue
	hooks     chan struct{}
	delivered *recent
	counts    counts

	mu      sync.Mutex
	turns   map[issues.Key]*running
	pulls   map[issues.Key]issues.Key // the issues of pull requests
	closed  context.Context           // ends with Close
	closing func()
}

// pace says how soon things are tried again.
type pace struct {
	gap      time.Duration // between two looks at one issue
	first    time.Duration // before a second try
	most     time.Duration // before any try
	watch    time.Duration // between two looks at the agents
	checkins time.Duration // between two writes of signs of life
}

var usualPace = pace{gap: time.Second, first: time.Second, most: 5 * time.Minute, watch: time.Minute, checkins: 10 * time.Second}

// Open opens the state, and goes on with the issues in it. It fails with an
// [*engine.HeldError] while another process has the state. ctx bounds Open alone.
func Open(ctx context.Context, options Options) (*Orchestrator, error) {
	return open(ctx, options, usualPace)
}

func open(ctx context.Context, options Options, p pace) (_ *Orchestrator, err error) {
	options.defaults()
	if err := options.valid(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(options.State, 0o700); err != nil {
		return nil, err
	}
	o := &Orchestrator{
		Options: options, pace: p,
		queue: newQueue(p.gap, p.most), hooks: make(chan struct{}, maxHooks), delivered: newRecent(maxDeliveries),
		turns: map[issues.Key]*running{}, pulls: map[issues.Key]issues.Key{},
	}
	o.closed, o.closing = context.WithCancel(context.Background())
	if o.table, err = issues.Open(ctx, filepath.Join(options.State, tableFile)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.Close(time.Second))
		}
	}()
	all, err := o.table.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		for _, n := range r.Life.Pulls {
			o.knowPull(r.Key, n)
		}
	}
	o.Log.Info("members of this organisation may assign agents", "org", options.Org)
	o.engine, err = engine.Open(ctx, engine.Options{
		Path: filepath.Join(options.State, engineFile), Log: options.Log, Schema: schema,
		Workflows: []engine.Workflow{
			{Name: issueFlow, Body: engine.Typed(o.life), Attempts: issueAttempts},
			{Name: turnFlow, Body: engine.Typed(o.turn), Attempts: turnAttempts, Slots: options.Slots},
		},
	})
	if err != nil {
		return nil, err
	}
	return o, nil
}

// Run looks at what webhooks and polling tell, and watches the agents, until ctx ends. It
// returns an error when the store failed: nothing is recorded from then on, and the caller
// closes the orchestrator and ends.
func (o *Orchestrator) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(o.closed, cancel)()
	var all sync.WaitGroup
	for range lookWorkers {
		all.Go(func() { o.looks(ctx) })
	}
	all.Go(func() { o.polls(ctx) })
	all.Go(func() { o.watches(ctx) })
	select {
	case <-ctx.Done():
	case <-o.engine.Failed():
		cancel()
	}
	all.Wait()
	return o.engine.Err()
}

// Close stops Run and the engine. Turns are told by their contexts, and have the time of grace
// to return; they go on when the state is opened again. If one does not return, Close
// returns an error, and the state stays locked until this process ends.
func (o *Orchestrator) Close(grace time.Duration) error {
	o.closing()
	var err error
	if o.engine != nil {
		err = o.engine.Close(grace)
	}
	return errors.Join(err, o.table.Close())
}

// forgeOf returns the forge of an issue, or nil.
func (o *Orchestrator) forgeOf(k issues.Key) *Forge {
	for i := range o.Forges {
		if f := &o.Forges[i]; f.Owner == k.Owner {
			if _, ok := f.repo(k.Repo); ok {
				return f
			}
		}
	}
	return nil
}

// knowPull remembers of which issue a pull request is.
func (o *Orchestrator) knowPull(k issues.Key, pull int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pulls[issues.Key{Owner: k.Owner, Repo: k.Repo, Number: pull}] = k
}

// issueOf returns the issue of a pull request, and reports whether it is one of ours.
func (o *Orchestrator) issueOf(pull issues.Key) (issues.Key, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	k, ok := o.pulls[pull]
	return k, ok
}

// ParseKey reads the name of an issue: owner/repo#7.
func ParseKey(s string) (issues.Key, error) {
	path, digits, ok := strings.Cut(s, "#")
	owner, repo := splitRepo(path)
	n, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || n < 1 || owner == "" || repo == "" {
		return issues.Key{}, fmt.Errorf("%.100q is not the name of an issue, such as owner/repo#7", s)
	}
	return issues.Key{Owner: owner, Repo: repo, Number: n}, nil
}
