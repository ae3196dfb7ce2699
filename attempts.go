package carboy

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise"
)

// MaxAttempts is how often an agent may try before a person decides.
const MaxAttempts = 3

// WorkOptions say what an agent is to do, and what judges it.
type WorkOptions struct {
	// Agent and Bottles are as in StartOptions; the agent works on Dir, which is the top
	// of a git work tree.
	Agent   string
	Bottles []string
	Dir     string
	Prompt  string
	// Base and Catalog are as in GateOptions.
	Base, Catalog string
	// Attempts is at most MaxAttempts; 0: the catalog's.
	Attempts int
	// What passes is pushed as one commit to a new branch by the git gate, when the
	// bottle declares the repository to which a remote of Dir leads; Worked says which,
	// or why not. Push names another remote, or a repository by its name in the bottle;
	// then there must be one. Branch is the branch's name; empty: one is made.
	Push, Branch string
	NoPush       bool // it stays here
	// MaxAttempts is up to how many there may be when a person grants more, each time
	// that those are spent which there were; 0: nobody is asked.
	MaxAttempts int
	// People say how they are asked.
	People AskOptions
	// Continue names work that carboy's death has ended; the other fields but those
	// below come from its record then.
	Continue string

	Stdout, Stderr io.Writer
	// Interrupt: while an agent runs, signals are as in StartOptions, and the work stops
	// once that agent has ended. At any other time the first one stops it; OnStop is
	// told of each of those. Nil: none.
	Interrupt <-chan os.Signal
	OnStop    func(os.Signal)
	Env       []string
	Ask       func(name, words string) (string, error)
	Confirm   func(*Preflight) error
	OnEvent   func(Event)
	OnGate    func(GateEvent)
	OnAttempt func(Attempt)

	// dies is of tests: carboy dies between the two halves of a step.
	dies func(Attempt) bool
}

// Errors of work.
var (
	// ErrNoWork is returned for work that is not there.
	ErrNoWork = errors.New("no such work")
	// ErrWorkLocked: another process goes on with this work.
	ErrWorkLocked = errors.New("it goes on in another process")
)

var errDied = errors.New("carboy died here, as a test wanted")

// AttemptState is how far an attempt is. Only these steps exist, in this order.
type AttemptState string

// The states. Each is on disk and on record before what follows it begins.
const (
	AttemptPending  AttemptState = "pending"  // it will be made
	AttemptRunning  AttemptState = "running"  // the agent works
	AttemptJudging  AttemptState = "judging"  // the agent has ended
	AttemptRecorded AttemptState = "recorded" // its outcome is known
	AttemptPushing  AttemptState = "pushing"  // it passed, and its branch is being pushed
	AttemptPushed   AttemptState = "pushed"   // what became of that is known
	AttemptGranted  AttemptState = "granted"  // a person let there be more
)

// Attempt is one step of one attempt, as the ledger has it.
type Attempt struct {
	Schema string       `json:"schema"`
	Work   string       `json:"work"`
	Seq    int          `json:"seq"` // from 0
	Number int          `json:"number"`
	State  AttemptState `json:"state"`
	At     time.Time    `json:"at"`
	// Task stands in the first step.
	Task *Task `json:"task,omitempty"`

	Bottle  string   `json:"bottle,omitempty"`
	Run     store.ID `json:"run,omitempty"`
	Exit    *int     `json:"exit,omitempty"` // of the agent
	Verdict string   `json:"verdict,omitempty"`
	// Tree is the SHA-256 of the tree that was judged, in hexadecimal digits: a person's
	// word on that verdict is for it, and it alone is pushed.
	Tree     string       `json:"tree_sha256,omitempty"`
	Outcome  gate.Outcome `json:"outcome,omitempty"`
	Failing  string       `json:"failing,omitempty"`
	Feedback string       `json:"feedback,omitempty"`
	// Usage is what the agent used; Pushed stands in the last step alone.
	Usage  *AttemptUsage `json:"usage,omitempty"`
	Pushed *Pushed       `json:"pushed,omitempty"`
	// Granted is of AttemptGranted.
	Granted *gate.Attempts `json:"granted,omitempty"`
	// Previous is the SHA-256 of the step before, in hexadecimal digits.
	Previous string `json:"previous,omitempty"`
}

// AttemptUsage is what an agent used in one attempt, as the gateway and the supervisor
// saw it.
type AttemptUsage struct {
	// ModelCalls are the requests that were sent on with a credential: those to models,
	// where the bottle has no others. ModelFailed of them were not answered well.
	ModelCalls  int64         `json:"model_calls"`
	ModelFailed int64         `json:"model_failed,omitempty"`
	BytesUp     int64         `json:"bytes_up"` // of those
	BytesDown   int64         `json:"bytes_down"`
	Duration    time.Duration `json:"duration_ns"`
	// Tokens is what the answers of models said that they took; nil: none said it. It
	// is upstream's word, and decides nothing.
	Tokens *receipt.Tokens `json:"tokens,omitempty"`
}

func usageOf(r *receipt.Receipt) *AttemptUsage {
	u := &AttemptUsage{Duration: r.Duration}
	for _, x := range r.Network.Requests {
		if x.Verdict != receipt.Allowed || x.Credential == "" {
			continue
		}
		u.ModelCalls += x.Count
		u.ModelFailed += x.Failed
		u.BytesUp += x.BytesUp
		u.BytesDown += x.BytesDown
		if t := x.Tokens; t != nil {
			if u.Tokens == nil {
				u.Tokens = &receipt.Tokens{}
			}
			u.Tokens.Answers += t.Answers
			u.Tokens.Input += t.Input
			u.Tokens.Cached += t.Cached
			u.Tokens.Output += t.Output
		}
	}
	return u
}

// Task is what was asked for.
type Task struct {
	Agent    string   `json:"agent"`
	Bottles  []string `json:"bottles,omitempty"`
	Dir      string   `json:"dir"`
	Prompt   string   `json:"prompt"`
	Base     string   `json:"base"`
	Catalog  string   `json:"catalog,omitempty"`
	Attempts int      `json:"attempts"`
	// Push is where what passes goes. Nil: it stays, and Stays says why.
	Push  *PushTo `json:"push,omitempty"`
	Stays string  `json:"stays,omitempty"`
}

// failingLost is of an attempt of which nothing is known: carboy died in it, or its bottle
// could not be read at its end.
const failingLost = "lost"

const attemptSchema = "carboy.dev/attempt/v1"

// Worked is how work ended: passed, final or escalated.
type Worked struct {
	ID       string
	Outcome  gate.Outcome
	Attempts []Attempt // as they were recorded
	Why      string
	Verdict  *gate.Verdict // the last
	Run      store.ID      // whose changes it is about
	Bottle   string        // kept, for whoever goes on
	// Pushed is what became of the branch; nil: none was pushed, and Stays says why.
	Pushed *Pushed
	Stays  string

	spent bool // it is escalated since there are no more attempts
}

// attemptPrefix begins the name of each step's file in a work's directory, and
// attemptOf is what its digest is called in the audit log.
const (
	attemptPrefix = "attempt-"
	attemptOf     = "attempt"
)

func attemptNumber(file string) string {
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), attemptPrefix), ".json")
}

// work is a loop that goes on.
type work struct {
	c     *Client
	o     *WorkOptions
	id    string
	dir   string
	task  Task
	steps []Attempt
	last  string // digest of the last step
	lock  *os.File
	again bool // a push that failed was tried once more
	relay relay
}

// Work has an agent carry out a prompt until the gate passes: at most three times, then a
// person decides. The agent's bottle is kept between attempts, and it is told what
// failed. Each step is on disk before the next begins, so that Continue goes on after
// carboy has died at any moment, or was stopped, which is a StoppedError.
func (c *Client) Work(ctx context.Context, o WorkOptions) (*Worked, error) {
	w := &work{c: c, o: &o}
	defer func() {
		if w.lock != nil {
			w.lock.Close()
		}
	}()
	if most := MaxAttempts + supervise.MaxMoreAttempts; o.MaxAttempts < 0 || o.MaxAttempts > most {
		return nil, &OptionError{Option: "--max-attempts", Value: fmt.Sprint(o.MaxAttempts), Reason: fmt.Sprintf("is not from 1 to %d", most), Advice: "a person grants what is beyond those that the catalog gives"}
	}
	ctx, unlisten := w.relay.listen(ctx, o.Interrupt, o.OnStop)
	defer unlisten()
	r, err := w.all(ctx)
	if s := w.relay.heard(); s != nil && err != nil && !errors.Is(err, ErrLedger) {
		return nil, w.stopped(s, err)
	}
	return r, err
}

func (w *work) all(ctx context.Context) (*Worked, error) {
	if w.o.Continue != "" {
		if err := w.reopen(w.o.Continue); err != nil {
			return nil, err
		}
	} else if err := w.begin(ctx); err != nil {
		return nil, err
	}
	return w.loop(ctx)
}

// take makes this process the only one that goes on with the work. Death gives it up.
func (w *work) take() (err error) {
	for range 20 { // who only looks has it for a moment
		if w.lock, err = lockFile(filepath.Join(w.dir, workLock)); !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("work %s: %w", w.id, ErrWorkLocked)
	}
	return err
}

const workLock = "lock"

func (w *work) begin(ctx context.Context) error {
	o := w.o
	if o.Attempts < 0 || o.Attempts > MaxAttempts {
		return &OptionError{Option: "--attempts", Value: fmt.Sprint(o.Attempts), Reason: "is not from 1 to 3", Advice: "after three attempts a person decides"}
	}
	if o.Prompt == "" {
		return &OptionError{Option: "--prompt", Reason: "is empty", Advice: "say what the agent is to do"}
	}
	ws, err := store.ResolveWorkspace(o.Dir)
	if err != nil {
		return err
	}
	// That it can be judged is seen before the agent works. The base is pinned: it must
	// not move while the agent does.
	g := GateOptions{Dir: string(ws.Path), Base: o.Base, Change: ".", Catalog: o.Catalog}
	probe, err := w.c.gateWork(ctx, &g)
	if err != nil {
		return err
	}
	defer func() {
		if probe != nil {
			probe.close()
		}
	}()
	base, attempts := probe.g.Base.Commit, probe.g.Catalog.Attempts
	if o.Attempts != 0 {
		attempts = min(o.Attempts, MaxAttempts)
	}
	w.id = strings.ToLower(ulid.Make().String())
	w.dir = w.c.gateDir("work", w.id)
	w.task = Task{Agent: o.Agent, Bottles: o.Bottles, Dir: string(ws.Path), Prompt: o.Prompt, Base: base, Catalog: o.Catalog, Attempts: attempts}
	if o.Catalog != "" {
		if w.task.Catalog, err = filepath.Abs(o.Catalog); err != nil {
			return err
		}
	}
	// Where it goes is settled as early: the agent must not have a say in that.
	start := w.pushing()
	start.Cwd = true
	p, err := w.c.Preflight(start)
	if err != nil {
		return err
	}
	if err := keepsApart(p); err != nil {
		return err
	}
	if w.task.Push, w.task.Stays, err = w.pushTo(ctx, p, probe.repo); err != nil {
		return err
	}
	probe.close()
	probe = nil
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		return err
	}
	if err := w.take(); err != nil {
		return err
	}
	return w.step(ctx, Attempt{Number: 1, State: AttemptPending, Task: &w.task})
}

// step writes the next step, then puts it on record. It counts when both are done, and
// what has happened is recorded also when nothing more is to happen.
func (w *work) step(ctx context.Context, a Attempt) error {
	ctx = context.WithoutCancel(ctx)
	a.Schema, a.Work, a.Seq, a.At, a.Previous = attemptSchema, w.id, len(w.steps), time.Now().UTC(), w.last
	b, err := json.MarshalIndent(&a, "", "  ")
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%s%03d.json", attemptPrefix, a.Seq)
	if err := store.WriteFile(filepath.Join(w.dir, name), b, 0o600); err != nil {
		return err
	}
	if w.o.dies != nil && w.o.dies(a) {
		return errDied
	}
	none := new(secret.Redactor)
	_, err = w.c.audit.Append(ctx, audit.Event{
		Kind: audit.GateAttempt, Actor: audit.ByCarboy, Decision: audit.Noted, Subject: audit.Redact(none, w.id+"/"+attemptNumber(name)),
		Digests: []audit.Digest{{Of: attemptOf, Sum: sha256.Sum256(b)}}, Text: audit.Redact(none, fmt.Sprintf("attempt %d: %s %s", a.Number, a.State, a.Outcome)),
	})
	if err != nil {
		return err
	}
	w.steps, w.last = append(w.steps, a), hexSum(b)
	if w.o.OnAttempt != nil {
		w.o.OnAttempt(a)
	}
	return nil
}

// reopen reads the steps of work that carboy's death has ended. The newest is removed
// when it never came on record: it did not happen.
func (w *work) reopen(ref string) error {
	dir, err := w.c.workDir(ref)
	if err != nil {
		return err
	}
	w.dir, w.id = dir, filepath.Base(dir)
	if err := w.take(); err != nil {
		return err
	}
	loose, err := w.read(dir)
	if err != nil {
		return err
	}
	if loose != "" {
		if err := os.Remove(loose); err != nil {
			return err
		}
	}
	if len(w.steps) == 0 {
		return fmt.Errorf("work %s never began, so that there is nothing to go on with: %w", w.id, ErrNoWork)
	}
	return nil
}

// workDir finds work by its id, or the beginning of one.
func (c *Client) workDir(ref string) (string, error) {
	dirs, err := store.Glob(c.gateDir("work"), strings.ToLower(ref)+"*")
	if err != nil || len(dirs) != 1 || strings.ContainsAny(ref, "*?[/\\.") {
		return "", fmt.Errorf("work %q: %d are called so: %w", NameOrHidden(ref), len(dirs), ErrNoWork)
	}
	return dirs[0], nil
}

// read reads the steps on record in dir. loose is the newest one's file, where that
// never came on record.
func (w *work) read(dir string) (loose string, err error) {
	w.dir, w.id = dir, filepath.Base(dir)
	files, recorded, err := stepsIn(dir, func() (map[string][]string, error) {
		sums := map[string][]string{} // by the step's number
		return sums, w.c.auditRecords(func(r *audit.Record) {
			n, ours := strings.CutPrefix(r.Subject, w.id+"/")
			for _, d := range r.Digests {
				if ours && r.Kind == audit.GateAttempt && d.Of == attemptOf {
					sums[n] = append(sums[n], d.SHA256)
				}
			}
		})
	})
	if err != nil {
		return "", err
	}
	for i, f := range files {
		b, err := store.ReadDocument(f)
		if err != nil {
			return "", err
		}
		switch sums := recorded[attemptNumber(f)]; {
		case len(sums) == 0 && i == len(files)-1:
			loose = f
			continue
		case len(sums) == 0:
			return "", fmt.Errorf("%s: %w", f, errUnrecorded)
		case len(sums) > 1:
			return "", fmt.Errorf("%s: %w: it was recorded %d times", f, ErrLedger, len(sums))
		case sums[0] != hexSum(b):
			return "", fmt.Errorf("%s: %w: its text was changed", f, ErrLedger)
		}
		var a Attempt
		if err := json.Unmarshal(b, &a); err != nil || a.Schema != attemptSchema || a.Work != w.id || a.Seq != i || a.Previous != w.last {
			return "", fmt.Errorf("%s: %w", f, ErrLedger)
		}
		w.steps, w.last = append(w.steps, a), hexSum(b)
	}
	// Each is on disk before it is on record, so that none of those is missing.
	if len(recorded) != len(w.steps) {
		return "", fmt.Errorf("work %s: %w: %d steps were recorded, and %d are there", w.id, ErrLedger, len(recorded), len(w.steps))
	}
	if len(w.steps) > 0 {
		if w.steps[0].Task == nil {
			return "", fmt.Errorf("work %s: %w: its first step says no task", w.id, ErrLedger)
		}
		w.task = *w.steps[0].Task
	}
	return loose, nil
}

// maxLooks bounds how often steps are looked at until they stay the same.
const maxLooks = 50

// stepsIn are the files of the steps in dir, in their order, and what is on record of
// them. Work that goes on meanwhile adds to both, so they count as they were at one
// moment: the files were the same before the records were read and after. Those that
// are another each time are judged as they are.
func stepsIn(dir string, records func() (map[string][]string, error)) (files []string, recorded map[string][]string, err error) {
	look := func() ([]string, error) {
		all, err := store.Glob(dir, attemptPrefix+"*.json")
		slices.SortFunc(all, func(a, b string) int { // from 1000 on numbers are longer
			return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
		})
		return all, err
	}
	if files, err = look(); err != nil {
		return nil, nil, err
	}
	for i := range maxLooks {
		time.Sleep(time.Duration(i) * time.Millisecond)
		if recorded, err = records(); err != nil {
			return nil, nil, err
		}
		before := files
		if files, err = look(); err != nil {
			return nil, nil, err
		}
		if slices.Equal(before, files) {
			break
		}
	}
	return files, recorded, nil
}

func (w *work) loop(ctx context.Context) (*Worked, error) {
	for {
		if w.relay.heard() != nil {
			return nil, ErrInterrupted
		}
		last := w.steps[len(w.steps)-1]
		var err error
		switch last.State {
		case AttemptPending:
			err = w.run(ctx, last)
		case AttemptRunning:
			// carboy died in this attempt, perhaps after all of it was done.
			var done *Attempt
			if done, err = w.whole(ctx, last); err != nil {
				break
			}
			if done != nil {
				err = w.step(ctx, *done)
				break
			}
			// What the agent did is lost with its bottle, or kept with the one of
			// before. The attempt counts.
			err = w.step(ctx, Attempt{Number: last.Number, State: AttemptRecorded, Bottle: last.Bottle, Outcome: gate.Unavailable, Failing: failingLost, Feedback: w.feedback()})
		case AttemptJudging:
			err = w.judge(ctx, last)
		case AttemptGranted:
			err = w.step(ctx, Attempt{Number: last.Number + 1, State: AttemptPending, Bottle: last.Bottle})
		case AttemptRecorded:
			done, werr := w.after(ctx, last)
			if done != nil || werr != nil {
				return done, werr
			}
		case AttemptPushing:
			var p *Pushed
			if p, err = w.push(ctx, last); err == nil {
				last.State, last.Pushed = AttemptPushed, p
				err = w.step(ctx, last)
			}
		case AttemptPushed:
			if last.Pushed == nil {
				return nil, fmt.Errorf("work %s: %w: its last step says nothing of the push", w.id, ErrLedger)
			}
			if last.Pushed.Verdict == receipt.Pushed || w.o.Continue == "" || w.again {
				return w.after(ctx, last)
			}
			// Whoever goes on has put right what was in the way.
			w.again = true
			last.State, last.Pushed = AttemptPushing, nil
			err = w.step(ctx, last)
		default:
			err = fmt.Errorf("work %s: %w: state %q", w.id, ErrLedger, last.State)
		}
		if err != nil {
			return nil, err
		}
	}
}

// whole finds the run of an attempt whose agent came to its end, and was kept, before
// carboy died; nil: there is none.
func (w *work) whole(ctx context.Context, a Attempt) (*Attempt, error) {
	list, _, err := w.c.store.Bottles(ctx)
	if err != nil {
		return nil, err
	}
	for _, b := range list {
		if a.Bottle != "" && b.Slug != a.Bottle || a.Bottle == "" && (b.Label != w.label() || b.Created.Before(a.At)) {
			continue
		}
		k, err := w.c.Kept(b.Slug)
		if err != nil || k == nil || k.At.Before(a.At) {
			continue
		}
		r, err := w.c.Receipt(ctx, k.Run)
		if err != nil || r.Ended == nil || r.Exit.Reason == receipt.Lost || r.Exit.Reason == receipt.Running {
			continue
		}
		return &Attempt{Number: a.Number, State: AttemptJudging, Bottle: b.Slug, Run: k.Run, Exit: &r.Exit.Code, Usage: usageOf(r)}, nil
	}
	return nil, nil
}

// label is what the bottles of this work are called, so that they are found again.
func (w *work) label() string { return w.task.Agent + "-" + w.id[len(w.id)-8:] }

// feedback is the last that was recorded.
func (w *work) feedback() string {
	for _, a := range slices.Backward(w.steps) {
		if a.State == AttemptRecorded && a.Feedback != "" {
			return a.Feedback
		}
	}
	return ""
}

// bottle is where the agent goes on; empty: in a fresh one.
func (w *work) bottle() string {
	for _, a := range slices.Backward(w.steps) {
		if a.Bottle != "" || a.State == AttemptRecorded {
			return a.Bottle
		}
	}
	return ""
}

// run has the agent work.
func (w *work) run(ctx context.Context, a Attempt) error {
	prompt := w.task.Prompt
	if f := w.feedback(); f != "" {
		var err error
		if prompt, err = gate.Fence(prompt, f); err != nil {
			return err
		}
	}
	slug := w.bottle()
	if slug != "" {
		if k, err := w.c.Kept(slug); err != nil || k == nil {
			slug = "" // it died with its carboy
		}
	}
	if err := w.step(ctx, Attempt{Number: a.Number, State: AttemptRunning, Bottle: slug}); err != nil {
		return err
	}
	var s *Started
	var err error
	signals, over := w.relay.begins()
	if slug != "" {
		s, err = w.c.Resume(ctx, ResumeOptions{
			Slug: slug, Headless: true, Prompt: prompt, FilesOnly: true, Keep: true, Env: w.o.Env, Ask: w.o.Ask, Confirm: w.confirm,
			Stdout: w.o.Stdout, Stderr: w.o.Stderr, Interrupt: signals, OnEvent: w.o.OnEvent,
		})
	} else {
		s, err = w.c.Start(ctx, StartOptions{
			Agent: w.task.Agent, Bottles: w.task.Bottles, Cwd: true, Dir: w.task.Dir, Headless: true, Prompt: prompt, Keep: true, Label: w.label(),
			Env: w.o.Env, Ask: w.o.Ask, Confirm: w.confirm, Stdout: w.o.Stdout, Stderr: w.o.Stderr, Interrupt: signals, OnEvent: w.o.OnEvent,
		})
	}
	over()
	switch began := !neverBegan(s, err); {
	case began:
	case slug != "" && spoiled(s, err, ctx.Err() != nil || w.relay.heard() != nil):
		// The attempt counts, and the next one has a bottle in which an agent can begin.
		if w.o.OnEvent != nil {
			w.o.OnEvent(Event{Kind: "progress", Text: fmt.Sprintf("attempt %d is lost: no agent begins in bottle %s any more (%v)", a.Number, slug, err)})
		}
		code := s.Receipt.Exit.Code
		return w.step(ctx, Attempt{Number: a.Number, State: AttemptRecorded, Exit: &code, Outcome: gate.Unavailable, Failing: failingLost, Feedback: w.feedback()})
	default: // it is still to be made
		err = cmp.Or(err, errors.New("the agent left no receipt"))
		a.Task = nil
		return errors.Join(fmt.Errorf("work %s, attempt %d: the agent never began: %w", w.id, a.Number, err), w.step(ctx, a))
	}
	var ended *AgentError
	if err != nil && !errors.As(err, &ended) {
		return fmt.Errorf("work %s, attempt %d: %w", w.id, a.Number, err)
	}
	code := s.Receipt.Exit.Code
	return w.step(ctx, Attempt{Number: a.Number, State: AttemptJudging, Bottle: s.Slug, Run: s.Receipt.ID, Exit: &code, Usage: usageOf(s.Receipt)})
}

// keepsApart refuses a bottle that would leave nothing to judge.
func keepsApart(p *Preflight) error {
	bad := &OptionError{Option: "workspace", Value: string(p.Mode), Advice: "say workspace: overlay (or copy) in the bottle's file, or take another bottle: --bottle NAME"}
	switch p.Mode {
	case store.Overlay, store.Copy:
		return nil
	case store.Bind:
		bad.Reason = "has the agent write to the directory at once, so that there is no change to judge"
	default:
		bad.Reason = "keeps no change that could be judged"
	}
	return bad
}

func (w *work) confirm(p *Preflight) error {
	err := keepsApart(p) // the bottle's file may be another by now
	if err == nil && w.o.Confirm != nil {
		err = w.o.Confirm(p)
	}
	return err
}

// gate gives a verdict that stays until hold is closed: nobody removes one that a step
// refers to.
func (w *work) gate(ctx context.Context, a Attempt) (j *Judged, hold *os.File, err error) {
	for {
		j, err = w.c.Gate(ctx, GateOptions{Dir: w.task.Dir, Base: w.task.Base, Change: string(a.Run), Catalog: w.task.Catalog, OnEvent: w.o.OnGate, granted: w.granted(), exact: true, waits: w.waits})
		if err != nil {
			return nil, nil, err
		}
		if hold, err = waitVerdict(ctx, j.Dir); err == nil {
			if _, _, err = w.c.Verdict(ctx, j.ID); err == nil {
				return j, hold, nil
			}
			hold.Close()
		}
		if !errors.Is(err, ErrNoVerdict) { // else it was removed as soon as it was given
			return nil, nil, err
		}
	}
}

// judge runs the gate on what the agent left. What the agent says of it counts for
// nothing.
func (w *work) judge(ctx context.Context, a Attempt) error {
	j, hold, err := w.gate(ctx, a)
	if err == nil {
		defer hold.Close()
	}
	var bad *gate.ChangeError
	switch {
	case errors.As(err, &bad) && bad.Tree == "run "+string(a.Run):
		// The agent made it so, and can make it otherwise.
		a.Outcome, a.Failing, a.Feedback = gate.Failed, bad.Failing(), bad.Feedback()
	case errors.Is(err, ErrNoChanges):
		// Its bottle would not give them out.
		a.Outcome, a.Failing, a.Feedback = gate.Unavailable, failingLost, w.feedback()
	case err != nil:
		return fmt.Errorf("work %s, attempt %d: %w", w.id, a.Number, err)
	default:
		a.Verdict, a.Tree, a.Outcome, a.Failing = j.ID, j.Change.Digest, j.Outcome, j.Failing()
		if a.Feedback, err = j.Feedback(nil); err != nil {
			return err
		}
	}
	a.State = AttemptRecorded
	return w.step(ctx, a)
}

// waits tells people why nothing happens.
func (w *work) waits() {
	if w.o.OnEvent != nil {
		w.o.OnEvent(Event{Kind: "progress", Text: "another gate works on " + w.task.Dir + ": waiting until it is over"})
	}
}

// after decides what follows an attempt: nothing, the next, a push, or a person.
func (w *work) after(ctx context.Context, a Attempt) (*Worked, error) {
	r, err := w.ended(ctx, a)
	if err != nil {
		return nil, err
	}
	switch {
	case r.Outcome == gate.Passed && w.task.Push != nil && a.Pushed == nil:
		a.State, a.Feedback, a.Usage = AttemptPushing, "", nil // the step before says them
		return nil, w.step(ctx, a)
	case r.spent:
		return w.spent(ctx, a, r)
	case r.Outcome == gate.Failed || r.Outcome == gate.Unavailable:
		return nil, w.step(ctx, Attempt{Number: a.Number + 1, State: AttemptPending, Bottle: a.Bottle})
	}
	return r, nil
}

// ended is how work stands after a step with an outcome: passed, final and escalated
// are ends, all else is not.
func (w *work) ended(ctx context.Context, a Attempt) (*Worked, error) {
	r := &Worked{ID: w.id, Outcome: a.Outcome, Run: a.Run, Bottle: a.Bottle, Pushed: a.Pushed, Stays: w.task.Stays}
	same := 0
	for _, s := range w.steps {
		switch s.State {
		case AttemptGranted:
			same = 0
		case AttemptRecorded:
			r.Attempts = append(r.Attempts, s)
			if s.Failing == a.Failing && a.Failing != failingLost {
				same++
			}
		}
	}
	if a.Verdict != "" {
		v, _, err := w.c.Verdict(ctx, a.Verdict)
		if err != nil {
			return nil, err
		}
		// A person let one tree go on.
		if r.Verdict = v; v.Override != nil && v.Change.Digest == a.Tree {
			r.Outcome = gate.Passed
		}
	}
	switch {
	case r.Outcome == gate.Passed && a.Pushed != nil && a.Pushed.Verdict != receipt.Pushed:
		// The change may go on, and can't: whoever declared the repository decides.
		how := "failed"
		if a.Pushed.Verdict == receipt.PushRefused {
			how = "was refused by the git gate"
		}
		r.Outcome, r.Why = gate.Escalated, "the change passed, and its push "+how+": "+a.Pushed.Reason
	case r.Outcome == gate.Passed:
	case r.Outcome == gate.Final:
		r.Why = "what failed is nothing that another attempt is for"
	case r.Outcome == gate.Escalated:
		r.Why = "witnesses disagree"
	case same >= 3:
		r.Outcome, r.Why, r.spent = gate.Escalated, "the same failed three times", true
	case a.Number >= w.limit():
		r.Outcome, r.Why, r.spent = gate.Escalated, fmt.Sprintf("all %d attempts are spent", w.limit()), true
	}
	return r, nil
}

// granted are the attempts that people let there be.
func (w *work) granted() (out []gate.Attempts) {
	for _, s := range w.steps {
		if s.State == AttemptGranted && s.Granted != nil {
			out = append(out, *s.Granted)
		}
	}
	return out
}

// limit is how many attempts there may be.
func (w *work) limit() int {
	for _, s := range slices.Backward(w.steps) {
		if s.State == AttemptGranted && s.Granted != nil {
			return s.Number + s.Granted.More
		}
	}
	return w.task.Attempts
}

// spent asks a person for more attempts, where the user wants that; else, or when that
// is refused, the work stays escalated.
func (w *work) spent(ctx context.Context, a Attempt, r *Worked) (*Worked, error) {
	more := min(w.o.MaxAttempts-a.Number, supervise.MaxMoreAttempts)
	if w.o.MaxAttempts > 0 && more <= 0 {
		r.Why += fmt.Sprintf("; nobody was asked for more, since --max-attempts %d is not above the %d that were made", w.o.MaxAttempts, a.Number)
	}
	if more > 0 {
		p := supervise.GateAttempts{Gate: gate.CatalogPath, Repository: fit(w.task.Dir, 4096), Work: w.id, Step: w.last, Made: a.Number, More: more}
		if r.Verdict != nil {
			p.Gate, p.Failures = fit(r.Verdict.Catalog, 256), failuresOf(r.Verdict)
		} else if a.Failing != "" {
			p.Failures = []string{fit(a.Failing, 2000)}
		}
		err := askPeople(ctx, w.c, gateAsker, a.Run, p, "carboy work --max-attempts", w.o.People, func(ok supervise.Approval[supervise.GateAttempts]) error {
			return w.grant(ctx, a, ok)
		})
		var no *NotApprovedError
		switch {
		case err == nil:
			return nil, nil
		case !errors.As(err, &no):
			return nil, err
		}
		r.Why += "; " + no.Error()
	}
	return r, nil
}

// grant takes down what was approved, if it was for what has happened so far.
func (w *work) grant(ctx context.Context, a Attempt, ok supervise.Approval[supervise.GateAttempts]) error {
	p, o := ok.Payload(), ok.Outcome()
	if p.Work != w.id || p.Step != w.last {
		return fmt.Errorf("work %s: what was approved is of another step: %w", w.id, ErrLedger)
	}
	return w.step(ctx, Attempt{Number: a.Number, State: AttemptGranted, Bottle: a.Bottle, Granted: &gate.Attempts{
		Work: w.id, More: p.More, By: o.Answer.By.String(), At: o.Answer.At, Proposal: string(o.Proposal.ID), Digest: o.Proposal.Digest.String(),
	}})
}
