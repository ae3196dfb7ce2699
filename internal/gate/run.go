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
	"golang.org/x/sync/semaphore"

	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/secret"
)

// Job describes one phase for a Runner.
type Job struct {
	Signal string
	On     string // which tree: onBase, onChange or onOld
	// Tree is a directory of the host with the tree, which appears at Workspace inside.
	// Writes of the phase do not reach it.
	Tree               string
	Command, Env       []string
	Network            []string
	Image, ImageDigest string
	Limits             PhaseLimits
	// Warm maps paths in the home inside to cache directories of the host. Writes of the
	// phase do not reach these. Take, if set, is called after the phase with the bottle's
	// upper layer, and the path of its home.
	Warm map[string]string
	Take func(home string, upper io.Reader) error
}

// The trees that phases run on.
const (
	onBase   = "base"
	onChange = "change"
	// onOld is the change with the base's tests in place of its own.
	onOld = "old-tests"
)

// sideName returns the name of a tree for people.
func sideName(on string) string {
	if on == onOld {
		return "change with the base's tests"
	}
	return on
}

// Ended is the result of a Job.
type Ended struct {
	Run      string        `json:"run"`
	Code     int           `json:"code"`
	Reason   string        `json:"reason"` // as in receipts; only "exited" means that the command ended by itself
	Error    string        `json:"error,omitempty"`
	Duration time.Duration `json:"duration_ns"`
	// Isolation and Engine name the sandbox that held it.
	Isolation string `json:"isolation"`
	Engine    string `json:"engine"`
	// Digests of the stored receipt and trace, in hexadecimal digits.
	Receipt string `json:"receipt_sha256,omitempty"`
	Trace   string `json:"trace_sha256,omitempty"`
	// Networked: it could reach the network, so its result depends on that.
	Networked bool `json:"networked,omitempty"`

	// Evidence maps the names of files that are stored beside the verdict to their
	// SHA-256, in hexadecimal digits.
	Evidence map[string]string `json:"evidence_sha256,omitempty"`

	// ImageDigest is the digest of the image that it ran on; empty: none.
	ImageDigest string `json:"image_digest,omitempty"`
	// Asked lists the names that the gateway was asked for, and its answers.
	Asked []Endpoint `json:"asked,omitempty"`
	// Fetched lists the answers from outside, each once. Unread says why they are not
	// complete; empty: they are.
	Fetched []Fetch `json:"fetched,omitempty"`
	Unread  string  `json:"unread,omitempty"`

	Stdout   Output      `json:"-"`
	Stderr   Output      `json:"-"`
	Observed *Observed   `json:"-"` // nil: nothing was recorded
	Changes  *change.Set `json:"-"` // nil: not collected
}

// Fetch is a request and its answer, as the gateway saw them.
type Fetch struct {
	Method string `json:"method"`
	URL    string `json:"url"` // without its query; chosen by the phase
	Status int    `json:"status"`
	Digest string `json:"sha256"` // of the answer's body, in hexadecimal digits
}

// MaxFetched bounds the distinct answers of a phase.
const MaxFetched = 20_000

// Output is the beginning of a stream that a phase wrote, and the stream's length in
// bytes.
type Output struct {
	Bytes []byte
	Total int64
}

// whole returns the whole stream. It is an error if only a part was kept.
func (o *Output) whole() ([]byte, error) {
	if o.Total != int64(len(o.Bytes)) {
		return nil, fmt.Errorf("it printed %d bytes, of which %d are kept", o.Total, len(o.Bytes))
	}
	return o.Bytes, nil
}

// Runner runs each phase in a fresh bottle. It is safe for concurrent use.
type Runner interface {
	Run(context.Context, Job) (*Ended, error)
}

// Phase is a job that ended.
type Phase struct {
	Signal string `json:"signal"`
	// On names the tree: base, change, or old-tests for the change with the base's tests.
	// It ends in -alone-1 or -alone-2 if failed tests were run again.
	On      string   `json:"on"`
	Command []string `json:"command"`
	// Of is the id of the verdict for which the phase ran; empty: this one.
	Of string `json:"of_verdict,omitempty"`
	// Stale says why it ran without the caches; nil: it had them, or there were none.
	Stale *Stale `json:"stale,omitempty"`
	*Ended
}

// exited reports whether the command ended by itself.
func (p *Phase) exited() bool { return p.Reason == "exited" }

// Event reports progress to people.
type Event struct {
	Signal string
	Phase  string // empty: the signal has a result
	Result *Result
}

// Gate judges one change. Do not change its fields while it runs.
type Gate struct {
	Catalog *Catalog
	// CatalogFrom is the source of the catalog: "base" or "user".
	CatalogFrom  string
	Base, Change *Tree
	Baseline     *Baseline // nil: there is none
	// BaselineBy is the verified signer of the baseline. BaselineWhy says why an existing
	// baseline was rejected.
	BaselineBy, BaselineWhy string
	// Database is a directory with advisories; empty: there is none.
	Database string
	Runner   Runner
	Scratch  string // an empty directory for trees
	Redact   *secret.Redactor
	Progress func(Event) // one call at a time; may be nil
	// Recording: the run records a baseline, so none is needed.
	Recording bool
	// Warm stores caches of the base between gates; nil: there are none. Shape holds
	// everything, beside base and catalog, that decides the content of the caches.
	Warm  WarmStore
	Shape map[string]string

	mu        sync.Mutex
	phases    []*Phase
	began     time.Time // before the first phase
	trees     map[string]func() (*Tree, error)
	dirs      map[string]func() (string, error)
	byKey     map[string]*Phase                 // by signal and side
	ranEarly  map[string]*Phase                 // by signal and side: they ran already, for Again or for the caches
	onBase    map[string]func() (*Phase, error) // runs a signal on the base, once
	resources *resources

	warmOnce sync.Once
	warm     *Warm // the caches that phases of the change start with; nil: none
	fresh    *Warm // the same, if this gate filled them
	warmErr  error
	warmWhy  error    // why there are none
	filled   []*Phase // phases of the base that filled the caches
}

// Case is the input for evaluating one signal.
type Case struct {
	*Signal
	Base, Change *Tree
	Baseline     *Baseline
	Database     string
	Recording    bool
	g            *Gate
	unfinishedMu sync.Mutex
	unfinished   *Phase // a phase that did not end by itself, preferably the change's
}

// Run evaluates all signals of the catalog. An error means that there is no verdict;
// whatever is wrong with a signal is recorded in the verdict.
func (g *Gate) Run(ctx context.Context) (*Verdict, error) {
	began := time.Now()
	g.prepare()
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
				r := g.evaluate(gctx, s)
				results[i] = r
				g.mu.Lock()
				defer g.mu.Unlock()
				g.report(Event{Signal: s.Name, Result: r})
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
	if r := g.controlFilesTouched(ctx, results); r != nil {
		r.Duration = time.Since(began)
		r.seal(g.Redact)
		results = append(results, r)
		g.report(Event{Signal: r.Name, Result: r})
	}
	return g.verdict(ctx, results, began)
}

// controlFilesTouched returns a final failure if the change touches a control file that
// no signal of the catalog reported, or nil. These are files that phases were seen to
// start as their command names them, and settings of programs that they were seen to run;
// and the catalog itself, if no signal checks policies. With a catalog of the user's, the
// repository's does not count.
func (g *Gate) controlFilesTouched(ctx context.Context, known []*Result) *Result {
	f := policyFacts{Looked: true}
	r := &Result{Name: "judges", Kind: "policy", Outcome: Final}
	look := func(id, p, text string) {
		g.Base.noteRead(p)
		g.Change.noteRead(p)
		a, had := g.Base.lookup(p)
		b, has := g.Change.lookup(p)
		if (had != has || a.Mode != b.Mode || g.Base.sums[p] != g.Change.sums[p]) && !slices.Contains(f.Frozen, p) && len(f.Frozen) < 200 {
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
			for _, name := range p.startedFiles() {
				if !seen(name) {
					look("runner", name, "signal "+p.Signal+" started it, so it judges the change (runners: may-change)")
				}
			}
		}
		touched, err := g.touchedSettings(ctx, known)
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

// touchedSettings returns the differing files that programs obey which phases were seen
// to run, each with the reason. It skips a change that was rejected for its number of
// files.
func (g *Gate) touchedSettings(ctx context.Context, known []*Result) (map[string]string, error) {
	for _, r := range known {
		if slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.ID == tooMany+"files" }) {
			return nil, nil
		}
	}
	names, err := readAliases(ctx, g.Base)
	if err != nil {
		return nil, err
	}
	diff, err := g.Change.Differences(ctx, g.Base)
	if err != nil {
		return nil, err
	}
	by := &controlFiles{vendored: map[string]string{}, settings: map[int]string{}, installed: map[string]bool{}}
	for _, p := range g.phases {
		p.addOpenedPackages(by.installed)
		by.addPrograms(p.Signal, p.observedPrograms())
	}
	if err := by.readSettings(ctx, diff, g.Base, g.Change, names); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, d := range diff {
		if why := by.reason(d, g.Base, g.Change, names.names(d.Path)); why != "" {
			out[d.Path] = why
		}
	}
	return out, nil
}

// prepare creates what phases need, once.
func (g *Gate) prepare() {
	if g.resources == nil {
		g.began = time.Now()
		g.trees, g.dirs = map[string]func() (*Tree, error){}, map[string]func() (string, error){}
		g.byKey, g.ranEarly = map[string]*Phase{}, map[string]*Phase{}
		g.onBase = map[string]func() (*Phase, error){}
		g.resources = newResources(g.Catalog.Memory, g.Catalog.Pids)
	}
}

func (g *Gate) report(e Event) {
	if g.Progress != nil {
		g.Progress(e)
	}
}

// evaluate evaluates a signal. Every error, and a panic, means that it does not pass.
func (g *Gate) evaluate(ctx context.Context, s *Signal) (r *Result) {
	began := time.Now()
	r = &Result{Name: s.Name, Kind: s.Kind.Name, Line: s.Line, Outcome: Unavailable}
	c := &Case{Signal: s, Base: g.Base, Change: g.Change, Baseline: g.Baseline, Database: g.Database, Recording: g.Recording, g: g}
	defer func() {
		if p := recover(); p != nil {
			r.Outcome, r.Why = Unavailable, fmt.Sprintf("carboy failed while it evaluated the signal: %v", p)
		}
		r.Duration = time.Since(began)
		r.seal(g.Redact)
	}()
	facts, found, err := s.evaluate(ctx, c)
	r.Findings = found
	var ask *questionError
	switch {
	case errors.As(err, &ask):
		r.Outcome, r.Why = Escalated, err.Error()
	case c.unfinished != nil:
		r.Outcome, r.Why = Final, fmt.Sprintf("%s on the %s did not end by itself: %s", s.Name, sideName(c.unfinished.On), endReason(c.unfinished))
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

func endReason(p *Phase) string {
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

// questionError means that a person must decide, for example because two sources
// contradict each other.
type questionError struct{ What string }

func (e *questionError) Error() string { return e.What }

// run runs the signal's command on a tree. It is an error if the command does not end by
// itself, or if its trace is incomplete.
func (c *Case) run(ctx context.Context, t *Tree) (*Phase, error) {
	p, err := c.g.run(ctx, c.Signal, t)
	c.noteUnfinished(p)
	return p, err
}

// noteUnfinished keeps a phase that did not end by itself.
func (c *Case) noteUnfinished(p *Phase) {
	if p == nil || p.exited() {
		return
	}
	c.unfinishedMu.Lock()
	defer c.unfinishedMu.Unlock()
	if c.unfinished == nil || p.On == onChange {
		c.unfinished = p
	}
}

// run runs a signal's command on a tree, on the base only once.
func (g *Gate) run(ctx context.Context, s *Signal, t *Tree) (*Phase, error) {
	if t == g.Base && t != g.Change || t == g.Base && g.ran(s.Name, onChange) {
		return g.base(ctx, s)
	}
	return g.phase(ctx, s, t, onChange)
}

func (g *Gate) base(ctx context.Context, s *Signal) (*Phase, error) {
	g.mu.Lock()
	once := g.onBase[s.Name]
	if once == nil {
		once = sync.OnceValues(func() (*Phase, error) { return g.phase(ctx, s, g.Base, onBase) })
		g.onBase[s.Name] = once
	}
	g.mu.Unlock()
	return once()
}

// phase runs a signal's command on a tree, and records the phase.
func (g *Gate) phase(ctx context.Context, s *Signal, t *Tree, on string) (*Phase, error) {
	var w *Warm
	if len(s.Warm) > 0 {
		var err error
		if w, err = g.baseCaches(ctx); err != nil {
			return nil, err
		}
	}
	g.mu.Lock()
	p := g.ranEarly[s.Name+" "+on]
	delete(g.ranEarly, s.Name+" "+on)
	g.mu.Unlock()
	if p == nil {
		var err error
		if p, err = g.start(ctx, s, t, on, w, nil); err != nil {
			return nil, err
		}
		if w != nil && on != onBase && p.exited() && p.Observed.whole() {
			if p, err = g.rerunIfStale(ctx, s, w, p, t); err != nil {
				return nil, err
			}
		}
	}
	g.mu.Lock()
	g.phases = append(g.phases, p)
	g.byKey[s.Name+" "+on] = p
	g.mu.Unlock()
	if !p.exited() {
		return p, fmt.Errorf("%s on the %s did not end by itself: %s", s.Name, sideName(on), endReason(p))
	}
	if !p.Observed.whole() {
		return p, fmt.Errorf("%s on the %s: the trace has gaps (%s)", s.Name, sideName(on), gapsText(p.Observed))
	}
	return p, nil
}

// rerunIfStale runs a phase on t again without caches if it may have taken from them what
// was made of the base's files.
func (g *Gate) rerunIfStale(ctx context.Context, s *Signal, w *Warm, p *Phase, t *Tree) (*Phase, error) {
	base, err := g.withKeptOf(ctx, g.Base, onBase, s.After)
	if err != nil {
		return nil, err
	}
	change, err := g.withKeptOf(ctx, t, p.On, s.After)
	if err != nil {
		return nil, err
	}
	why, err := w.stale(ctx, s, p, base, change)
	if why == nil || err != nil {
		return p, err
	}
	if p, err = g.start(ctx, s, t, p.On, nil, nil); err != nil {
		return nil, err
	}
	p.Stale = why
	return p, nil
}

// start runs a signal's command on a tree, once there are resources for it.
func (g *Gate) start(ctx context.Context, s *Signal, t *Tree, on string, w *Warm, take func(string, io.Reader) error) (*Phase, error) {
	dir, err := g.layOut(ctx, t, on, s.After, w != nil && on != onBase)
	if err != nil {
		return nil, err
	}
	if err := g.resources.acquire(ctx, s.Limits.Memory, s.Limits.Pids); err != nil {
		return nil, err
	}
	defer g.resources.release(s.Limits.Memory, s.Limits.Pids)
	g.mu.Lock()
	g.report(Event{Signal: s.Name, Phase: sideName(on)})
	g.mu.Unlock()
	e, err := g.Runner.Run(ctx, Job{
		Signal: s.Name, On: on, Tree: dir, Command: s.Command, Env: s.Env, Network: s.Network,
		Image: g.Catalog.Image, ImageDigest: g.Catalog.ImageDigest, Limits: s.Limits,
		Warm: w.mounts(s), Take: take,
	})
	if err != nil {
		return nil, fmt.Errorf("run %s on the %s: %w", s.Name, sideName(on), err)
	}
	return &Phase{Signal: s.Name, On: on, Command: s.Command, Ended: e}, nil
}

func (g *Gate) ran(signal, on string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.byKey[signal+" "+on] != nil
}

func gapsText(o *Observed) string {
	if o == nil {
		return "there is none"
	}
	s := strings.Join(o.Gaps, "; ")
	if o.Lost > 0 {
		s = strings.Trim(fmt.Sprintf("%d facts were lost; %s", o.Lost, s), "; ")
	}
	return s
}

// phases returns a signal's phases on the change.
func (c *Case) phases(signal string) []*Phase {
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	var out []*Phase
	for _, p := range c.g.phases {
		if p.Signal == signal && p.On == onChange {
			out = append(out, p)
		}
	}
	return out
}

// withKeptOf returns a hashed tree with the files that earlier signals kept. Each
// combination is made once.
func (g *Gate) withKeptOf(ctx context.Context, t *Tree, on string, after []string) (*Tree, error) {
	key := fmt.Sprintf("%s %p+%s", on, t, strings.Join(after, "+"))
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

// layOut writes a tree, with the files that earlier signals kept, to a directory, once
// for each combination. If the phase starts with a cache, files that differ from the base
// get a time of their own.
func (g *Gate) layOut(ctx context.Context, t *Tree, on string, after []string, cached bool) (string, error) {
	key := fmt.Sprintf("%s %p+%s+%t", on, t, strings.Join(after, "+"), cached)
	g.mu.Lock()
	f := g.dirs[key]
	if f == nil {
		dir := filepath.Join(g.Scratch, fmt.Sprintf("tree%d", len(g.dirs)))
		f = sync.OnceValues(func() (string, error) {
			t, err := g.withKeptOf(ctx, t, on, after)
			if err != nil {
				return "", err
			}
			var base *Tree
			if cached {
				if base, err = g.withKeptOf(ctx, g.Base, onBase, after); err != nil {
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

// withKept adds the files that a signal left below the paths that it keeps. For the base
// the signal runs on the base too, so that nothing of the change gets there. The change
// with the base's tests gets the files of the change.
func (g *Gate) withKept(ctx context.Context, t *Tree, signal, on string) (*Tree, error) {
	s := g.Catalog.Signal(signal)
	switch on {
	case onBase:
		if _, err := g.base(ctx, s); err != nil {
			return nil, err
		}
	case onOld:
		on = onChange
	}
	g.mu.Lock()
	p := g.byKey[signal+" "+on]
	g.mu.Unlock()
	if p == nil || p.Changes == nil || !p.exited() || p.Code != 0 {
		return nil, fmt.Errorf("%s on the %s failed, and another signal needs its files", signal, on)
	}
	set := *p.Changes
	set.Changes = slices.DeleteFunc(slices.Clone(set.Changes), func(x change.Change) bool {
		return x.Type == change.Socket || x.Type == change.Fifo || badPath(string(x.Path)) != "" ||
			!slices.ContainsFunc(s.Keep, func(k string) bool { return below(string(x.Path), k) })
	})
	return WithChanges(t.Name+" with "+signal, "", t, &set)
}

// resources bounds the memory and processes of all phases that run at once.
type resources struct{ memory, pids *semaphore.Weighted }

func newResources(memory, pids int64) *resources {
	return &resources{semaphore.NewWeighted(memory), semaphore.NewWeighted(pids)}
}

// acquire blocks until both amounts are free. Everybody asks for memory first, so two
// phases never wait for each other.
func (r *resources) acquire(ctx context.Context, memory, pids int64) error {
	if err := r.memory.Acquire(ctx, memory); err != nil {
		return err
	}
	err := r.pids.Acquire(ctx, pids)
	if err != nil {
		r.memory.Release(memory)
	}
	return err
}

func (r *resources) release(memory, pids int64) {
	r.memory.Release(memory)
	r.pids.Release(pids)
}

// seal bounds the texts of a result, and removes secrets from them.
func (r *Result) seal(red *secret.Redactor) {
	if red == nil {
		red = new(secret.Redactor)
	}
	clean := func(s string, n int) string { return safetext.Lines(red.String(s), n) }
	r.Why = clean(maskSecrets(r.Why), maxDetail)
	r.Total = len(r.Findings)
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		if a.Noted != b.Noted {
			return cmp.Compare(btoi(a.Noted), btoi(b.Noted))
		}
		return cmp.Compare(a.File, b.File)
	})
	r.Findings = r.Findings[:min(len(r.Findings), maxFindings)]
	for i := range r.Findings {
		f := &r.Findings[i]
		f.ID, f.Text, f.Detail = clean(f.ID, 500), clean(maskSecrets(f.Text), 1000), clean(f.Detail, maxDetail)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
