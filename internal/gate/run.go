package gate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/visible"
)

// Job is one phase, for a Runner.
type Job struct {
	Signal string
	On     string // "base" or "change"
	// Tree is a directory on the host that holds the tree; it is at Workspace inside,
	// and what the phase writes does not reach it.
	Tree               string
	Command, Env       []string
	Network            []string
	Image, ImageDigest string
	Limits             Limits
	// Warm are directories of the host with caches, by their paths in the home inside.
	// What the phase writes there does not reach them. Take, if there is one, gets the
	// bottle's whole upper layer when the phase has ended, and where the home is.
	Warm map[string]string
	Take func(home string, upper io.Reader) error
}

// Ended is what became of a Job.
type Ended struct {
	Run      string        `json:"run"`
	Code     int           `json:"code"`
	Reason   string        `json:"reason"` // as receipts have it; only "exited" is an end by itself
	Error    string        `json:"error,omitempty"`
	Duration time.Duration `json:"duration_ns"`
	// Isolation and Engine are what held it.
	Isolation string `json:"isolation"`
	Engine    string `json:"engine"`
	// Digests of what is kept of it, in hexadecimal digits.
	Receipt string `json:"receipt_sha256,omitempty"`
	Trace   string `json:"trace_sha256,omitempty"`
	// Networked: it could reach something, so that what it did depends on that.
	Networked bool `json:"networked,omitempty"`

	// Evidence are the SHA-256 of what is kept of it beside the verdict, by the file's
	// name, in hexadecimal digits.
	Evidence map[string]string `json:"evidence_sha256,omitempty"`

	// ImageDigest is of the image that it ran on, if it did.
	ImageDigest string `json:"image_digest,omitempty"`
	// Asked is what the gateway was asked for, by name, and what it said.
	Asked []Endpoint `json:"asked,omitempty"`
	// Fetched are the answers that it had from outside, each once, and Unread says why
	// they are not all that it learnt there; empty: they are.
	Fetched []Fetch `json:"fetched,omitempty"`
	Unread  string  `json:"unread,omitempty"`

	Stdout   Output      `json:"-"`
	Stderr   Output      `json:"-"`
	Observed *Observed   `json:"-"` // nil: nothing was recorded
	Changes  *change.Set `json:"-"` // nil: not collected
}

// Fetch is a request that was answered, as the gateway saw both.
type Fetch struct {
	Method string `json:"method"`
	URL    string `json:"url"` // without its query; the phase's own words
	Status int    `json:"status"`
	Digest string `json:"sha256"` // of the answer's body, in hexadecimal digits
}

// MaxFetched bounds the answers that are told apart.
const MaxFetched = 20_000

// Output is the beginning of what a phase printed, and how much that was.
type Output struct {
	Bytes []byte
	Total int64
}

// Whole is all of it; what was cut is not parsed.
func (o *Output) Whole() ([]byte, error) {
	if o.Total != int64(len(o.Bytes)) {
		return nil, fmt.Errorf("it printed %d bytes, of which %d are kept", o.Total, len(o.Bytes))
	}
	return o.Bytes, nil
}

// Runner runs phases, each in a fresh bottle, as many at once as it is asked.
type Runner interface {
	Run(context.Context, Job) (*Ended, error)
}

// Phase is a job that has ended.
type Phase struct {
	Signal  string   `json:"signal"`
	On      string   `json:"on"`
	Command []string `json:"command"`
	// Of is the verdict of the gate in which it ran; empty: this one.
	Of string `json:"of_verdict,omitempty"`
	// Stale is why it began without the caches that are there; nil: it did not.
	Stale *Stale `json:"stale,omitempty"`
	*Ended
}

// Own reports whether it ended by itself.
func (p *Phase) Own() bool { return p.Reason == "exited" }

// Event is progress, for people.
type Event struct {
	Signal string
	Phase  string // empty: the signal is judged
	Result *Result
}

// Gate is one judgement. Its fields are not changed while it runs.
type Gate struct {
	Catalog *Catalog
	// CatalogFrom is whose word the catalog is: "base" or "user".
	CatalogFrom  string
	Base, Change *Tree
	Baseline     *Baseline // nil: there is none
	// BaselineBy is who signed it, verified; BaselineWhy why the one that there is
	// does not count.
	BaselineBy, BaselineWhy string
	// Database is a directory with advisories; empty: there is none.
	Database string
	Runner   Runner
	Scratch  string // an empty directory for trees
	Redact   *secret.Redactor
	Progress func(Event) // one at a time; nil: nobody
	// Recording: a baseline is being made of what happens, so none is needed.
	Recording bool
	// Warm keeps caches of the base between gates; nil: there are none. Shape is what,
	// beside base and catalog, decides what comes into them.
	Warm  WarmStore
	Shape map[string]string

	mu     sync.Mutex
	phases []*Phase
	began  time.Time // before the first phase
	trees  map[string]func() (*Tree, error)
	dirs   map[string]func() (string, error)
	kept   map[string]*Phase                 // by signal and side
	ahead  map[string]*Phase                 // so too: they have run already, see Again
	onBase map[string]func() (*Phase, error) // what runs on the base, once for each signal
	slots  *slots

	warmOnce sync.Once
	warm     *Warm // what phases of the change begin with; nil: nothing
	fresh    *Warm // the same, when this gate filled it
	warmErr  error
	warmWhy  error    // why there is none
	filled   []*Phase // of the base, by which the caches came about
}

// Case is what a kind judges from.
type Case struct {
	*Signal
	Base, Change *Tree
	Baseline     *Baseline
	Database     string
	Recording    bool
	g            *Gate
	lostMu       sync.Mutex
	lost         *Phase // a phase that did not end by itself; the change's before the base's
}

// Run judges everything that the catalog asks for. An error means that no verdict
// could be made; whatever is wrong with a signal is in the verdict.
func (g *Gate) Run(ctx context.Context) (*Verdict, error) {
	began := time.Now()
	g.begin()
	if err := errors.Join(g.Base.hash(ctx), g.Change.hash(ctx)); err != nil {
		return nil, err
	}
	results := make([]*Result, len(g.Catalog.Signals))
	done := map[string]chan struct{}{}
	for _, s := range g.Catalog.Signals {
		done[s.Name] = make(chan struct{})
	}
	for _, last := range []bool{false, true} {
		eg, gctx := errgroup.WithContext(ctx)
		for i, s := range g.Catalog.Signals {
			if last != s.Kind.Last {
				continue
			}
			eg.Go(func() error {
				defer close(done[s.Name])
				for _, a := range s.After {
					select {
					case <-done[a]:
					case <-gctx.Done():
						return gctx.Err()
					}
				}
				r := g.signal(gctx, s)
				results[i] = r
				g.mu.Lock()
				defer g.mu.Unlock()
				g.tell(Event{Signal: s.Name, Result: r})
				return gctx.Err()
			})
		}
		if err := eg.Wait(); err != nil {
			return nil, err
		}
	}
	if g.warmErr != nil {
		return nil, g.warmErr
	}
	for _, p := range g.filled {
		if !slices.Contains(g.phases, p) {
			g.phases = append(g.phases, p)
		}
	}
	if r := g.judgesTouched(ctx, results); r != nil {
		r.Duration = time.Since(began)
		r.seal(g.Redact)
		results = append(results, r)
		g.tell(Event{Signal: r.Name, Result: r})
	}
	return g.verdict(ctx, results, began)
}

// judgesTouched is a result that fails for good when the change touches what judges, and
// no signal of the base's catalog saw it: what a phase was seen to start by the words of
// its command, and what the programs obey that it was seen to run; and the catalog, which would judge the next change, where no signal looks
// at that. A user's own catalog judges by itself.
func (g *Gate) judgesTouched(ctx context.Context, known []*Result) *Result {
	f := policyFacts{Looked: true}
	r := &Result{Name: "judges", Kind: "policy", Outcome: Final}
	look := func(id, p, text string) {
		g.Base.note(p)
		g.Change.note(p)
		a, had := g.Base.Lookup(p)
		b, has := g.Change.Lookup(p)
		if (had != has || a.Mode != b.Mode || g.Base.sums[p] != g.Change.sums[p]) && !contains(f.Frozen, p) && len(f.Frozen) < 200 {
			f.Frozen = append(f.Frozen, p)
			r.Findings = append(r.Findings, Finding{ID: id, File: p, Text: text})
		}
	}
	policies := slices.DeleteFunc(slices.Clone(g.Catalog.Signals), func(s *Signal) bool { return s.Kind.Name != "policy" })
	if len(policies) == 0 && g.CatalogFrom != "user" {
		for _, t := range []*Tree{g.Base, g.Change} {
			for _, x := range t.Files {
				if matches(alwaysFrozen, x.Path) {
					look("frozen", x.Path, "it judges changes, so no change may touch it")
				}
			}
		}
	}
	if slices.ContainsFunc(policies, func(s *Signal) bool { return s.freezes }) {
		seen := func(name string) bool {
			return slices.ContainsFunc(known, func(r *Result) bool {
				return r.Kind == "policy" && slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.File == name && !f.Noted })
			})
		}
		for _, p := range g.phases {
			for _, name := range p.startedByWord() {
				if !seen(name) {
					look("runner", name, "signal "+p.Signal+" started it, so it judges the change (runners: may-change)")
				}
			}
		}
		touched, err := g.obeyedBySeen(ctx, known)
		if err != nil {
			r.Outcome, r.Why = Unavailable, err.Error()
			return r
		}
		for _, name := range slices.Sorted(maps.Keys(touched)) {
			if !seen(name) {
				look("runner", name, touched[name]+", so it judges the change (runners: may-change)")
			}
		}
	}
	if len(f.Frozen) == 0 {
		return nil
	}
	facts, err := json.Marshal(f)
	if err != nil {
		r.Outcome, r.Why = Unavailable, err.Error()
	}
	r.Facts = facts
	return r
}

// obeyedBySeen are the files of the change that programs obey which phases were seen to
// run, with why. A change that is rejected for its many files is not looked at.
func (g *Gate) obeyedBySeen(ctx context.Context, known []*Result) (map[string]string, error) {
	for _, r := range known {
		if slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.ID == tooMany+"files" }) {
			return nil, nil
		}
	}
	names, err := namesOf(ctx, g.Base)
	if err != nil {
		return nil, err
	}
	diff, err := g.Change.Differences(ctx, g.Base)
	if err != nil {
		return nil, err
	}
	by := &runners{vendor: map[string]string{}, obeyed: map[int]string{}, installed: map[string]bool{}}
	for _, p := range g.phases {
		p.openedPackages(by.installed)
		by.run(p.Signal, p.seenToRun())
	}
	if err := by.read(ctx, diff, g.Base, g.Change, names); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, d := range diff {
		if why := by.why(d, g.Base, g.Change, names.of(d.Path)); why != "" {
			out[d.Path] = why
		}
	}
	return out, nil
}

// begin makes what phases need, once.
func (g *Gate) begin() {
	if g.slots == nil {
		g.began = time.Now()
		g.trees, g.dirs = map[string]func() (*Tree, error){}, map[string]func() (string, error){}
		g.kept, g.ahead = map[string]*Phase{}, map[string]*Phase{}
		g.onBase = map[string]func() (*Phase, error){}
		g.slots = newSlots(g.Catalog.Memory, g.Catalog.Pids)
	}
}

func (g *Gate) tell(e Event) {
	if g.Progress != nil {
		g.Progress(e)
	}
}

// signal judges one. Whatever goes wrong in it is no pass.
func (g *Gate) signal(ctx context.Context, s *Signal) (r *Result) {
	began := time.Now()
	r = &Result{Name: s.Name, Kind: s.Kind.Name, Line: s.Line, Outcome: Unavailable}
	c := &Case{Signal: s, Base: g.Base, Change: g.Change, Baseline: g.Baseline, Database: g.Database, Recording: g.Recording, g: g}
	defer func() {
		if p := recover(); p != nil {
			r.Outcome, r.Why = Unavailable, fmt.Sprintf("carboy failed while it judged: %v", p)
		}
		r.Duration = time.Since(began)
		r.seal(g.Redact)
	}()
	facts, found, err := s.judge(ctx, c)
	r.Findings = found
	var split *DisagreementError
	switch {
	case errors.As(err, &split):
		r.Outcome, r.Why = Escalated, err.Error()
	case c.lost != nil:
		r.Outcome, r.Why = Final, fmt.Sprintf("%s on the %s did not end by itself: %s", s.Name, c.lost.On, lostWhy(c.lost))
	case err != nil:
		r.Why = err.Error()
	case facts == nil:
		r.Why = "it has no facts"
	case facts.Positive() && !slices.ContainsFunc(found, func(f Finding) bool { return !f.Noted }):
		r.Outcome = Passed
	case s.Kind.Final:
		r.Outcome = Final
	default:
		r.Outcome = Failed
	}
	if facts != nil {
		if r.Facts, err = json.Marshal(facts); err != nil {
			r.Outcome, r.Why, r.Facts = Unavailable, "its facts can't be written: "+err.Error(), nil
		} else if _, err = s.Kind.decode(r.Facts); err != nil {
			r.Outcome, r.Why, r.Facts = Unavailable, err.Error(), nil
		}
	}
	return r
}

func lostWhy(p *Phase) string {
	switch p.Reason {
	case "timeout":
		return "out of time"
	case "memory":
		return "out of memory"
	case "output":
		return "it printed more than it may"
	}
	return strings.TrimSpace(p.Reason + " " + p.Error)
}

// DisagreementError is of two witnesses that do not say the same: a person decides.
type DisagreementError struct{ What string }

func (e *DisagreementError) Error() string { return e.What }

// Run runs the signal's command on a tree. An error means that it did not come to an
// end by itself, or that its trace is not whole.
func (c *Case) Run(ctx context.Context, t *Tree) (*Phase, error) {
	p, err := c.g.run(ctx, c.Signal, t)
	if p != nil && !p.Own() {
		c.lostMu.Lock()
		defer c.lostMu.Unlock()
		if c.lost == nil || p.On == "change" {
			c.lost = p
		}
	}
	return p, err
}

// run runs a signal's command on a tree; on the base once, whoever asks for it.
func (g *Gate) run(ctx context.Context, s *Signal, t *Tree) (*Phase, error) {
	if t == g.Base && t != g.Change || t == g.Base && g.ran(s.Name, "change") {
		return g.base(ctx, s)
	}
	return g.phase(ctx, s, t, "change")
}

func (g *Gate) base(ctx context.Context, s *Signal) (*Phase, error) {
	g.mu.Lock()
	once := g.onBase[s.Name]
	if once == nil {
		once = sync.OnceValues(func() (*Phase, error) { return g.phase(ctx, s, g.Base, "base") })
		g.onBase[s.Name] = once
	}
	g.mu.Unlock()
	return once()
}

// phase runs a signal's command on a tree.
func (g *Gate) phase(ctx context.Context, s *Signal, t *Tree, on string) (*Phase, error) {
	var w *Warm
	if len(s.Warm) > 0 {
		var err error
		if w, err = g.warmed(ctx); err != nil {
			return nil, err
		}
	}
	g.mu.Lock()
	p := g.ahead[s.Name+" "+on]
	delete(g.ahead, s.Name+" "+on)
	g.mu.Unlock()
	if p == nil {
		var err error
		if p, err = g.start(ctx, s, t, on, w, nil); err != nil {
			return nil, err
		}
		if w != nil && on == "change" && p.Own() && p.Observed.Whole() {
			if p, err = g.unstale(ctx, s, w, p); err != nil {
				return nil, err
			}
		}
	}
	g.mu.Lock()
	g.phases = append(g.phases, p)
	g.kept[s.Name+" "+on] = p
	g.mu.Unlock()
	if !p.Own() {
		return p, fmt.Errorf("%s on the %s did not end by itself: %s", s.Name, on, lostWhy(p))
	}
	if !p.Observed.Whole() {
		return p, fmt.Errorf("%s on the %s: the trace has gaps (%s)", s.Name, on, gaps(p.Observed))
	}
	return p, nil
}

// unstale runs a phase again without caches, where what it took from them may have been
// made of other files than the change's.
func (g *Gate) unstale(ctx context.Context, s *Signal, w *Warm, p *Phase) (*Phase, error) {
	base, err := g.with(ctx, g.Base, "base", s.After)
	if err != nil {
		return nil, err
	}
	change, err := g.with(ctx, g.Change, "change", s.After)
	if err != nil {
		return nil, err
	}
	why, err := w.stale(ctx, s, p, base, change)
	if why == nil || err != nil {
		return p, err
	}
	if p, err = g.start(ctx, s, g.Change, "change", nil, nil); err != nil {
		return nil, err
	}
	p.Stale = why
	return p, nil
}

// start runs a signal's command on a tree, when there is room for it.
func (g *Gate) start(ctx context.Context, s *Signal, t *Tree, on string, w *Warm, take func(string, io.Reader) error) (*Phase, error) {
	dir, err := g.layOut(ctx, t, on, s.After, w != nil && on == "change")
	if err != nil {
		return nil, err
	}
	if err := g.slots.take(ctx, s.Limits.Memory, s.Limits.Pids); err != nil {
		return nil, err
	}
	defer g.slots.give(s.Limits.Memory, s.Limits.Pids)
	g.mu.Lock()
	g.tell(Event{Signal: s.Name, Phase: on})
	g.mu.Unlock()
	e, err := g.Runner.Run(ctx, Job{
		Signal: s.Name, On: on, Tree: dir, Command: s.Command, Env: s.Env, Network: s.Network,
		Image: g.Catalog.Image, ImageDigest: g.Catalog.ImageDigest, Limits: s.Limits,
		Warm: w.mounts(s), Take: take,
	})
	if err != nil {
		return nil, fmt.Errorf("run %s on the %s: %w", s.Name, on, err)
	}
	return &Phase{Signal: s.Name, On: on, Command: s.Command, Ended: e}, nil
}

func (g *Gate) ran(signal, on string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.kept[signal+" "+on] != nil
}

func gaps(o *Observed) string {
	if o == nil {
		return "there is none"
	}
	s := strings.Join(o.Gaps, "; ")
	if o.Lost > 0 {
		s = strings.Trim(fmt.Sprintf("%d facts were lost; %s", o.Lost, s), "; ")
	}
	return s
}

// Phases are those of a signal that have ended, on the change unless there is none.
func (c *Case) Phases(signal string) []*Phase {
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	var out []*Phase
	for _, p := range c.g.phases {
		if p.Signal == signal && p.On == "change" {
			out = append(out, p)
		}
	}
	return out
}

// with is a tree with what earlier signals kept, hashed, once.
func (g *Gate) with(ctx context.Context, t *Tree, on string, after []string) (*Tree, error) {
	key := on + "+" + strings.Join(after, "+")
	g.mu.Lock()
	f := g.trees[key]
	if f == nil {
		f = sync.OnceValues(func() (*Tree, error) {
			t := t
			for _, a := range after {
				var err error
				if t, err = g.withKept(ctx, t, a, on); err != nil {
					return nil, err
				}
			}
			return t, t.hash(ctx)
		})
		g.trees[key] = f
	}
	g.mu.Unlock()
	return f()
}

// layOut writes a tree once, with what earlier signals kept. Where the phase begins with
// a cache, files that are not the base's have another time.
func (g *Gate) layOut(ctx context.Context, t *Tree, on string, after []string, cached bool) (string, error) {
	key := fmt.Sprintf("%s+%s+%t", on, strings.Join(after, "+"), cached)
	g.mu.Lock()
	f := g.dirs[key]
	if f == nil {
		dir := filepath.Join(g.Scratch, fmt.Sprintf("tree%d", len(g.dirs)))
		f = sync.OnceValues(func() (string, error) {
			t, err := g.with(ctx, t, on, after)
			if err != nil {
				return "", err
			}
			var base *Tree
			if cached {
				if base, err = g.with(ctx, g.Base, "base", after); err != nil {
					return "", err
				}
			}
			return dir, t.LayOut(ctx, dir, base)
		})
		g.dirs[key] = f
	}
	g.mu.Unlock()
	return f()
}

// withKept adds what a signal left below the paths that it keeps. What the change left
// is not there when the base runs: for that, the signal runs on the base too.
func (g *Gate) withKept(ctx context.Context, t *Tree, signal, on string) (*Tree, error) {
	s := g.Catalog.Signal(signal)
	if on == "base" {
		if _, err := g.base(ctx, s); err != nil {
			return nil, err
		}
	}
	g.mu.Lock()
	p := g.kept[signal+" "+on]
	g.mu.Unlock()
	if p == nil || p.Changes == nil || !p.Own() || p.Code != 0 {
		return nil, fmt.Errorf("%s on the %s did not end well, and is needed", signal, on)
	}
	set := *p.Changes
	set.Changes = slices.DeleteFunc(slices.Clone(set.Changes), func(x change.Change) bool {
		return x.Type == change.Socket || x.Type == change.Fifo || badPath(string(x.Path)) != "" ||
			!slices.ContainsFunc(s.Keep, func(k string) bool { return below(string(x.Path), k) })
	})
	return WithChanges(t.Name+" with "+signal, "", t, &set)
}

// slots bound phases that run side by side by what they may use together.
type slots struct {
	mu           sync.Mutex
	memory, pids int64
	waiting      []chan struct{}
}

func newSlots(memory, pids int64) *slots { return &slots{memory: memory, pids: pids} }

func (s *slots) take(ctx context.Context, memory, pids int64) error {
	for {
		s.mu.Lock()
		if s.memory >= memory && s.pids >= pids {
			s.memory, s.pids = s.memory-memory, s.pids-pids
			s.mu.Unlock()
			return nil
		}
		wake := make(chan struct{})
		s.waiting = append(s.waiting, wake)
		s.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *slots) give(memory, pids int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory, s.pids = s.memory+memory, s.pids+pids
	for _, w := range s.waiting {
		close(w)
	}
	s.waiting = nil
}

// seal bounds what a result says, and takes secrets out of it.
func (r *Result) seal(red *secret.Redactor) {
	if red == nil {
		red = new(secret.Redactor)
	}
	clean := func(s string, n int) string { return visible.Lines(red.String(s), n) }
	r.Why = clean(masked(r.Why), maxDetail)
	r.Total = len(r.Findings)
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		if a.Noted != b.Noted {
			return cmp.Compare(btoi(a.Noted), btoi(b.Noted))
		}
		return cmp.Compare(a.File, b.File)
	})
	r.Findings = r.Findings[:min(len(r.Findings), MaxFindings)]
	for i := range r.Findings {
		f := &r.Findings[i]
		f.ID, f.Text, f.Detail = clean(f.ID, 500), clean(masked(f.Text), 1000), clean(f.Detail, maxDetail)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
