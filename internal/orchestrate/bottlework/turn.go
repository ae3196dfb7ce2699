package bottlework

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/gate/judge"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/orchestrate"
	"github.com/carboy/carboy/internal/provenance"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/work"
)

// turnRecord is the record of a turn. It is on disk before the turn's work begins.
type turnRecord struct {
	Schema string    `json:"schema"`
	Turn   string    `json:"turn"`
	Issue  string    `json:"issue"`
	Began  time.Time `json:"began"`
	Work   string    `json:"work"`
	// Repo is the repository's name in the bottle. Base, Last, Tip and Bottle are as in
	// work.WorkOptions.
	Repo   string `json:"repo"`
	Base   string `json:"base"`
	Last   string `json:"last,omitempty"`
	Tip    string `json:"tip"`
	Bottle string `json:"bottle,omitempty"`
	Anew   bool   `json:"anew,omitempty"` // the bottle of the turn before is gone
	// Result and Runs are set when the turn is over.
	Result *orchestrate.TurnResult `json:"result,omitempty"`
	Runs   []provenance.Run        `json:"runs,omitempty"`
}

var turnName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._-]{0,150}\z`) })

func turnFile(dir, id string) string { return filepath.Join(dir, turnsDir, id+".json") }

func (r *turnRecord) write(dir string) error {
	r.Schema = store.Schema(turnKind)
	return store.WriteJSON(turnFile(dir, r.Turn), turnKind, r)
}

// Turn makes the agent carry out a prompt until the gate passes, and pushes the change to
// the turn's branch. When ctx ends while an agent works, the bottle is frozen, and the same
// turn goes on in it when it is asked for again.
func (b *Bottles) Turn(ctx context.Context, t orchestrate.Turn) (*orchestrate.TurnResult, error) {
	fail := func(err error) (*orchestrate.TurnResult, error) {
		return nil, fmt.Errorf("issue %s, turn %s: %w", t.Issue, safetext.String(t.ID, 100), err)
	}
	h := b.o.Host
	switch {
	case !turnName().MatchString(t.ID):
		return fail(errors.New("its id is no name of a file"))
	case !work.ValidBranch(t.Branch) || !work.ValidBranch(t.Base):
		return fail(fmt.Errorf("%q and %q: one is no name for a branch", safetext.String(t.Base, 100), safetext.String(t.Branch, 100)))
	case t.Backend != "" && t.Backend != h.Backend.Name():
		return fail(&fault.OptionError{Option: "backend", Value: safetext.String(t.Backend, 40), Reason: "is not the one that this carboy was started with, " + h.Backend.Name(), Advice: "start another with that backend"})
	}
	dir, err := b.issueDir(&t)
	if err != nil {
		return fail(err)
	}
	rec := &turnRecord{}
	err = store.ReadJSON(turnFile(dir, t.ID), turnKind, rec)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		rec = &turnRecord{Turn: t.ID, Issue: t.Issue.String(), Began: time.Now().UTC()}
		err = b.prepare(ctx, &t, dir, rec, t.Slug)
	case err == nil && rec.Result != nil:
		return rec.Result, nil
	}
	if err != nil {
		return fail(err)
	}
	w, err := b.work(ctx, &t, dir, rec)
	if errors.Is(err, work.ErrBottleGone) {
		// Anew from the branch, with work of another name: that one can't go on.
		if err = b.prepare(ctx, &t, dir, rec, ""); err == nil {
			w, err = b.work(ctx, &t, dir, rec)
		}
	}
	if err != nil {
		return fail(err)
	}
	if err := b.end(ctx, &t, dir, rec, w); err != nil {
		return fail(err)
	}
	return rec.Result, nil
}

// prepare makes what a turn's work begins with: the workspace, with upstream's present
// commits. slug is the bottle of the turn before, or empty. It is resumed if it is there
// and the branch is as carboy left it. Otherwise the issue's bottles are destroyed, and the
// workspace is made anew from the branch.
func (b *Bottles) prepare(ctx context.Context, t *orchestrate.Turn, dir string, rec *turnRecord, slug string) error {
	st, err := readState(dir)
	if err != nil {
		return err
	}
	resume := false
	if slug != "" && st != nil {
		k, err := b.o.Keeper.Kept(slug)
		if err != nil && !errors.Is(err, store.ErrNoBottle) {
			return err
		}
		_, lerr := os.Lstat(filepath.Join(dir, repoDir, ".git"))
		resume = k != nil && lerr == nil
	}
	rec.Bottle, rec.Anew = "", false
	err = b.withUpstream(ctx, t, dir, func(u *upstream) error {
		rec.Repo, rec.Last, rec.Tip = u.repo.Name, u.at, u.tip
		if resume && st.Pushed == u.at {
			rec.Bottle = slug
			return errors.Join(u.update(ctx, dir, st), u.writeRemote(filepath.Join(dir, repoDir), t))
		}
		rec.Anew = t.Slug != ""
		// First, so that no bottle is ever resumed on a workspace that is not its own.
		// The one that fetches just now is this process's own.
		if err := b.destroyBottles(ctx, dir, func(x store.Bottle) bool { return !isFetch(x) }); err != nil {
			return err
		}
		st, err = u.make(ctx, dir, t)
		return err
	})
	if err != nil {
		return err
	}
	if rec.Base, err = mergeBase(ctx, filepath.Join(dir, repoDir), rec.Tip, cmp.Or(rec.Last, st.Head)); err != nil {
		return err
	}
	rec.Work = strings.ToLower(ulid.Make().String())
	return rec.write(dir)
}

// mergeBase returns the commit at which b left a.
func mergeBase(ctx context.Context, top, a, b string) (string, error) {
	r, err := hostexec.New(hostexec.Options{Untrusted: []string{top}})
	if err != nil {
		return "", err
	}
	defer r.Close(context.WithoutCancel(ctx))
	return (&gate.Repository{Dir: top, Runner: r}).MergeBase(ctx, a, b)
}

// work runs the work of a turn.
func (b *Bottles) work(ctx context.Context, t *orchestrate.Turn, dir string, rec *turnRecord) (*work.Worked, error) {
	s := newSigns(t.OnCheckin)
	defer s.end()
	out := &speaking{b.o.Output, s}
	o := work.WorkOptions{
		ID: rec.Work, Agent: t.Agent, Bottles: t.Bottles, Dir: filepath.Join(dir, repoDir), Prompt: t.Prompt, Catalog: b.o.Catalog,
		Attempts: b.o.Attempts, MaxAttempts: b.o.MaxAttempts, People: b.o.People, Policy: b.o.Policy, AskFor: b.o.AskFor,
		Base: rec.Base, Tip: rec.Tip, Last: rec.Last, Bottle: rec.Bottle, Push: rec.Repo, Branch: t.Branch,
		OnBottle: func(slug string) {
			s.in(slug)
			if t.OnBottle != nil {
				t.OnBottle(slug)
			}
		},
		Alive: s.beat, OnAttempt: s.attempt, Dies: b.o.Dies, Stdout: out, Stderr: out,
	}
	if rec.Anew && t.Anew != "" {
		o.Prompt = t.Anew + "\n\n" + t.Prompt
	}
	if t.Forge != nil {
		o.Forge = t.Forge
	}
	if b.o.OnEvent != nil {
		o.OnEvent = func(ev plan.Event) { b.o.OnEvent(t.Issue, ev) }
	}
	wctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	frozen := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(frozen)
		fctx, done := context.WithTimeout(wctx, freezeIn)
		defer done()
		if slug := s.working(); slug != "" {
			if err := b.Freeze(fctx, slug); err != nil {
				b.o.Host.Log.Warn("a bottle could not be frozen, and is stopped", "bottle", slug, "err", err)
			}
		}
		cancel(context.Cause(ctx))
	})
	w, err := b.o.Worker.Work(wctx, o)
	if !stop() {
		<-frozen
	}
	if err != nil && ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return w, err
}

// freezeIn bounds the time in which a bottle is frozen when its turn is called off.
const freezeIn = 2 * time.Minute

// end completes the record of a turn whose work is over, and removes all but its bottle.
func (b *Bottles) end(ctx context.Context, t *orchestrate.Turn, dir string, rec *turnRecord, w *work.Worked) error {
	r := &orchestrate.TurnResult{
		Slug: w.Bottle, Started: rec.Bottle == "", Outcome: string(w.Outcome), Why: safetext.String(w.Why, 2000), Work: w.ID, Began: rec.Began, Ended: time.Now().UTC(),
	}
	for _, a := range w.Attempts {
		if a.Run != "" {
			r.Runs = append(r.Runs, string(a.Run))
		}
		if a.Exit != nil {
			r.Exit = *a.Exit
		}
		if a.Usage != nil && a.Usage.Tokens != nil {
			r.Tokens += a.Usage.Tokens.Input + a.Usage.Tokens.Output
		}
	}
	if w.Verdict != nil {
		text, err := store.ReadDocument(b.o.Judge.GateDir("verdicts", w.Verdict.ID, gate.VerdictFile))
		if err != nil {
			return err
		}
		r.Verdict, r.Digest = w.Verdict.ID, judge.HexSum(text)
	}
	if err := b.pushed(ctx, t, dir, rec, w, r); err != nil {
		return err
	}
	rec.Runs = nil
	for _, id := range r.Runs {
		text, err := store.ReadDocument(filepath.Join(b.o.Host.StateDir(), "runs", id, store.ReceiptFile))
		if err != nil {
			rec.Runs = append(rec.Runs, provenance.Run{ID: id}) // it is gone, and that is said
			continue
		}
		facts, _, err := provenance.RunOf(text)
		if err != nil {
			return fmt.Errorf("receipt of run %s: %w", id, err)
		}
		rec.Runs = append(rec.Runs, facts)
	}
	if err := b.destroyBottles(ctx, dir, func(x store.Bottle) bool { return x.Slug != r.Slug }); err != nil {
		return err
	}
	rec.Result = r
	return rec.write(dir)
}

// pushed takes what came of the push into the result. After one that failed, it asks
// upstream whether somebody else pushed to the branch.
func (b *Bottles) pushed(ctx context.Context, t *orchestrate.Turn, dir string, rec *turnRecord, w *work.Worked, r *orchestrate.TurnResult) error {
	p := w.Pushed
	if p == nil {
		return nil
	}
	if p.Run != "" {
		r.Runs = append(r.Runs, string(p.Run))
	}
	st, err := readState(dir)
	if err != nil || st == nil {
		return errors.Join(err, errors.New("the record of the workspace is gone"))
	}
	if p.Verdict == receipt.PushFailed {
		err := b.withUpstream(ctx, t, dir, func(u *upstream) error {
			r.Moved = u.at != rec.Last
			return nil
		})
		if err != nil {
			return err
		}
		if r.Moved {
			r.Outcome = string(gate.Passed)
		}
	}
	if p.Verdict != receipt.Pushed {
		return nil
	}
	r.Commit = p.Commit
	for _, f := range p.Files {
		r.Files = append(r.Files, orchestrate.File(f))
	}
	st.Pushed = p.Commit
	return st.write(dir)
}

// signs tells of signs of life, at most once in a second. While a gate judges or something
// is pushed it tells each minute: the agent has nothing to say then.
type signs struct {
	tell func()
	over chan struct{}

	mu    sync.Mutex
	last  time.Time
	slug  string
	agent bool // one works
}

func newSigns(tell func()) *signs {
	s := &signs{tell: tell, over: make(chan struct{})}
	go func() {
		t := time.NewTicker(time.Minute)
		defer t.Stop()
		for {
			select {
			case <-s.over:
				return
			case <-t.C:
				if s.working() == "" {
					s.beat()
				}
			}
		}
	}()
	return s
}

func (s *signs) end() { close(s.over) }

func (s *signs) beat() {
	s.mu.Lock()
	again := time.Since(s.last) < time.Second
	if !again {
		s.last = time.Now()
	}
	s.mu.Unlock()
	if !again && s.tell != nil {
		s.tell()
	}
}

func (s *signs) in(slug string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slug, s.agent = slug, true
}

func (s *signs) attempt(a work.Attempt) {
	s.mu.Lock()
	s.agent = s.agent && a.State == work.AttemptRunning
	s.mu.Unlock()
	s.beat()
}

// working returns the bottle in which an agent works, or "".
func (s *signs) working() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.agent {
		return ""
	}
	return s.slug
}

// speaking takes output for a sign of life.
type speaking struct {
	w io.Writer
	s *signs
}

func (w *speaking) Write(p []byte) (int, error) {
	w.s.beat()
	return w.w.Write(p)
}
