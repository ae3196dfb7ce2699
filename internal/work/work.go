package work

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

	"github.com/carboy/carboy/internal/ask"
	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/bottles"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/gate/judge"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/review"
	"github.com/carboy/carboy/internal/run"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise"
	"github.com/carboy/carboy/internal/supervise/tools"
)

// MaxAttempts bounds the attempts of an agent before a person decides.
const MaxAttempts = 3

// WorkOptions say what an agent must do, and how the result is judged.
type WorkOptions struct {
	// Agent and Bottles are as in StartOptions. The agent's workspace is Dir, the top
	// directory of a git work tree.
	Agent   string
	Bottles []string
	Dir     string
	Prompt  string
	// Base and Catalog are as in GateOptions.
	Base, Catalog string
	// Attempts is at most MaxAttempts. 0 means the catalog's number.
	Attempts int
	// A change that passes is pushed through the git gate, as one commit on a new branch,
	// if the bottle declares the repository of a remote of Dir. Worked says where it was
	// pushed, or why not. Push names a certain remote, or a repository by its name in the
	// bottle, and Branch the branch; with either of them, having no destination is an
	// error. Without Branch, carboy chooses a name.
	Push, Branch string
	NoPush       bool // do not push
	// Last is the commit that the branch of Push has, on which the change becomes the next
	// one; empty: the branch is not there, and is made. Tip is the newest commit of the
	// branch that Base is from; empty: Base. A change that has all that came between Base
	// and Tip is judged against Tip, and replaces what is on the branch, as a rebase does.
	// If the branch has another commit than Last, nothing is pushed.
	Last, Tip string
	// Bottle is a kept bottle that worked on Dir, in which the agent goes on; empty: a new
	// one. If it can't, the work ends with ErrBottleGone.
	Bottle string
	// Forge carries out the agent's calls at a forge; nil: it has none. Neither the record
	// of the work nor the bottle's keep it.
	Forge Forge
	// OnBottle is told the name of each bottle before an agent starts in it, and Alive is
	// called at each event of its gateway, from many goroutines. They may be nil.
	OnBottle func(slug string)
	Alive    func()
	// ID names the work; empty: carboy chooses one. Work of this name that began already
	// is resumed, as Continue does.
	ID string
	// MaxAttempts bounds the attempts including those that a person grants. Whenever the
	// attempts are spent, a person is asked for more. 0 means that nobody is asked.
	MaxAttempts int
	// People says how to ask them.
	People ask.Options
	// Policy and AskFor are as in StartOptions.
	Policy string
	AskFor time.Duration
	// Continue names work to resume after it was stopped or its process died. The
	// fields above then come from its record.
	Continue string

	Stdout, Stderr io.Writer
	// Interrupt delivers signals; it may be nil. While an agent runs, signals are as in
	// StartOptions, and the work stops once that agent has ended. At any other time the
	// first one stops the work, and OnStop is called for each.
	Interrupt <-chan os.Signal
	OnStop    func(os.Signal)
	Env       []string
	Ask       func(name, words string) (string, error)
	Confirm   func(*bottles.Preflight) error
	OnEvent   func(plan.Event)
	OnGate    func(gate.Event)
	OnAttempt func(Attempt)

	// Dies ends the work between the two halves of a step if it returns true. Tests use it.
	Dies func(Attempt) bool
}

// A Forge carries out an agent's calls at a forge, and tells the agent of it.
type Forge interface {
	tools.Forge
	// Prompt returns a prompt with words about the forge.
	Prompt(prompt string) string
}

// Errors of work.
var (
	// ErrNoWork means that there is no such work.
	ErrNoWork = errors.New("no such work")
	// ErrBottleGone means that the bottle that WorkOptions.Bottle named can't be resumed.
	ErrBottleGone = errors.New("the bottle in which the agent was to go on is gone")
	// ErrFrozen means that somebody froze the bottle before its agent had ended.
	ErrFrozen = errors.New("the bottle was frozen before its agent had ended")
	// ErrWorkLocked means that another process works on it.
	ErrWorkLocked = exitcode.New(exitcode.AlreadyLocked, "it goes on in another process")
)

// ErrDied is the error of work that WorkOptions.Dies ended.
var ErrDied = errors.New("carboy died here, as a test wanted")

// AttemptState is the state of an attempt. There are only these, in this order.
type AttemptState string

// The states. Each is on disk and in the audit log before the next one begins.
const (
	AttemptPending  AttemptState = "pending"  // it has not started
	AttemptRunning  AttemptState = "running"  // the agent works
	AttemptJudging  AttemptState = "judging"  // the agent has ended
	AttemptRecorded AttemptState = "recorded" // its outcome is known
	AttemptPushing  AttemptState = "pushing"  // it passed, and its branch is being pushed
	AttemptPushed   AttemptState = "pushed"   // the result of the push is known
	AttemptGranted  AttemptState = "granted"  // a person allowed more attempts
)

// Attempt is the record of one step of an attempt.
type Attempt struct {
	Schema string       `json:"schema"`
	Work   string       `json:"work"`
	Seq    int          `json:"seq"` // from 0
	Number int          `json:"number"`
	State  AttemptState `json:"state"`
	At     time.Time    `json:"at"`
	// Task is set in the first step only.
	Task *Task `json:"task,omitempty"`

	Bottle  string   `json:"bottle,omitempty"`
	Run     store.ID `json:"run,omitempty"`
	Exit    *int     `json:"exit,omitempty"` // of the agent
	Verdict string   `json:"verdict,omitempty"`
	// Tree is the SHA-256 of the tree that was judged, in hexadecimal digits. An override
	// of the verdict is for this tree, and only this tree is pushed.
	Tree     string       `json:"tree_sha256,omitempty"`
	Outcome  gate.Outcome `json:"outcome,omitempty"`
	Failing  string       `json:"failing,omitempty"`
	Feedback string       `json:"feedback,omitempty"`
	// Base is the commit that the change was judged against, if that is not the task's base
	// but its tip.
	Base string `json:"base,omitempty"`
	// Usage holds the agent's use of models, network and time. Pushed is set in the last step only.
	Usage  *AttemptUsage `json:"usage,omitempty"`
	Pushed *Pushed       `json:"pushed,omitempty"`
	// Granted is set in state AttemptGranted.
	Granted *gate.Attempts `json:"granted,omitempty"`
	// Previous is the SHA-256 of the previous step, in hexadecimal digits.
	Previous string `json:"previous,omitempty"`
}

// AttemptUsage counts what an agent used in one attempt, as the gateway and the
// supervisor saw it.
type AttemptUsage struct {
	// ModelCalls counts the requests that were forwarded with a credential: those to
	// models, if the bottle has no other credentials. ModelFailed counts those that failed.
	ModelCalls  int64         `json:"model_calls"`
	ModelFailed int64         `json:"model_failed,omitempty"`
	BytesUp     int64         `json:"bytes_up"` // of those
	BytesDown   int64         `json:"bytes_down"`
	Duration    time.Duration `json:"duration_ns"`
	// Tokens is the sum of what models' answers reported, or nil if none did. Upstream
	// claims it, so that nothing depends on it.
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

// Task is the assignment of work.
type Task struct {
	Agent    string   `json:"agent"`
	Bottles  []string `json:"bottles,omitempty"`
	Dir      string   `json:"dir"`
	Prompt   string   `json:"prompt"`
	Base     string   `json:"base"`
	Catalog  string   `json:"catalog,omitempty"`
	Attempts int      `json:"attempts"`
	// Push is the destination of a change that passes. If it is nil, Stays says why.
	Push  *PushTo `json:"push,omitempty"`
	Stays string  `json:"stays,omitempty"`
	// Last, Tip and Bottle are as in WorkOptions.
	Last   string `json:"last,omitempty"`
	Tip    string `json:"tip,omitempty"`
	Bottle string `json:"bottle,omitempty"`
}

// FailingLost is Attempt.Failing of an attempt whose result is lost: carboy died, or the
// bottle could not be read at the end.
const FailingLost = "lost"

// AttemptSchema is Attempt.Schema.
const AttemptSchema = "carboy.dev/attempt/v1"

// Worked is the result of work: passed, final or escalated.
type Worked struct {
	ID       string
	Outcome  gate.Outcome
	Attempts []Attempt // as they were recorded
	Why      string
	Verdict  *gate.Verdict // the last one
	Run      store.ID      // the run whose changes were judged
	Bottle   string        // kept for whoever continues
	// Pushed is the result of the push. If it is nil, Stays says why.
	Pushed *Pushed
	Stays  string

	spent bool // it is escalated because all attempts are spent
}

// Work is one work in progress.
type Work struct {
	C     *Worker
	O     *WorkOptions
	Id    string
	Dir   string
	Task  Task
	Steps []Attempt
	last  string // digest of the last step
	lock  *os.File
	again bool // a failed push was tried once more
	relay Relay
}

// Work makes an agent carry out a prompt until the gate passes: at most three times, then
// a person decides. The agent's bottle is kept between attempts, and the agent is told
// what failed. Each step is on disk before the next one begins, so that
// WorkOptions.Continue can resume the work, even if carboy died at any moment. Work that
// a signal stopped returns a StoppedError.
func (c *Worker) Work(ctx context.Context, o WorkOptions) (*Worked, error) {
	w := &Work{C: c, O: &o}
	defer func() {
		if w.lock != nil {
			w.lock.Close()
		}
	}()
	if most := MaxAttempts + supervise.MaxMoreAttempts; o.MaxAttempts < 0 || o.MaxAttempts > most {
		return nil, &fault.OptionError{Option: "--max-attempts", Value: fmt.Sprint(o.MaxAttempts), Reason: fmt.Sprintf("is not from 1 to %d", most), Advice: "a person grants what is beyond those that the catalog gives"}
	}
	ctx, unlisten := w.relay.Listen(ctx, o.Interrupt, o.OnStop)
	defer unlisten()
	r, err := w.all(ctx)
	if s := w.relay.Heard(); s != nil && err != nil && !errors.Is(err, judge.ErrLedger) {
		return nil, w.Stopped(s, err)
	}
	return r, err
}

func (w *Work) all(ctx context.Context) (*Worked, error) {
	if id := w.O.ID; id != "" && w.O.Continue == "" {
		if _, err := ulid.ParseStrict(id); err != nil || id != strings.ToLower(id) {
			return nil, fmt.Errorf("%q is no id of work: it is a ULID in small letters", safetext.String(id, 40))
		}
		if steps, err := store.Glob(w.C.judge.GateDir("work", id), judge.AttemptPrefix+"*.json"); err != nil {
			return nil, err
		} else if len(steps) > 0 {
			w.O.Continue = id
		}
	}
	if w.O.Continue != "" {
		err := w.reopen(w.O.Continue)
		if errors.Is(err, ErrNoWork) && w.O.ID != "" { // carboy died in its first step
			w.lock.Close()
			w.lock, w.O.Continue = nil, ""
			err = w.begin(ctx)
		}
		if err != nil {
			return nil, err
		}
	} else if err := w.begin(ctx); err != nil {
		return nil, err
	}
	return w.loop(ctx)
}

// take locks the work for this process. The kernel unlocks it when the process ends.
func (w *Work) take() (err error) {
	for range 20 { // WorkBusy holds it for a moment
		if w.lock, err = judge.LockFile(filepath.Join(w.Dir, WorkLock)); !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("work %s: %w", w.Id, ErrWorkLocked)
	}
	return err
}

// WorkLock is the name of the lock file in a work's directory.
const WorkLock = "lock"

func (w *Work) begin(ctx context.Context) error {
	o := w.O
	if o.Attempts < 0 || o.Attempts > MaxAttempts {
		return &fault.OptionError{Option: "--attempts", Value: fmt.Sprint(o.Attempts), Reason: "is not from 1 to 3", Advice: "after three attempts a person decides"}
	}
	if o.Prompt == "" {
		return &fault.OptionError{Option: "--prompt", Reason: "is empty", Advice: "say what the agent is to do"}
	}
	ws, err := store.ResolveWorkspace(o.Dir)
	if err != nil {
		return err
	}
	// Find out whether the change can be judged before the agent starts, and fix the
	// base, so that it cannot move meanwhile.
	g := judge.GateOptions{Dir: string(ws.Path), Base: o.Base, Change: ".", Catalog: o.Catalog}
	probe, err := w.C.judge.GateWork(ctx, &g)
	if err != nil {
		return err
	}
	defer func() {
		if probe != nil {
			probe.Close()
		}
	}()
	base, attempts := probe.G.Base.Commit, probe.G.Catalog.Attempts
	if o.Attempts != 0 {
		attempts = min(o.Attempts, MaxAttempts)
	}
	w.Id = cmp.Or(o.ID, strings.ToLower(ulid.Make().String()))
	w.Dir = w.C.judge.GateDir("work", w.Id)
	w.Task = Task{Agent: o.Agent, Bottles: o.Bottles, Dir: string(ws.Path), Prompt: o.Prompt, Base: base, Catalog: o.Catalog, Attempts: attempts, Last: o.Last, Tip: o.Tip, Bottle: o.Bottle}
	if o.Catalog != "" {
		if w.Task.Catalog, err = filepath.Abs(o.Catalog); err != nil {
			return err
		}
	}
	// The destination is chosen as early, so that the agent cannot influence it.
	start := w.pushing()
	start.Cwd = true
	p, err := w.C.bottles.Preflight(start)
	if err != nil {
		return err
	}
	if err := keepsApart(p); err != nil {
		return err
	}
	if w.Task.Push, w.Task.Stays, err = w.pushTo(ctx, p, probe.Repo); err != nil {
		return err
	}
	probe.Close()
	probe = nil
	if err := os.MkdirAll(w.Dir, 0o700); err != nil {
		return err
	}
	if err := w.take(); err != nil {
		return err
	}
	return w.Step(ctx, Attempt{Number: 1, State: AttemptPending, Task: &w.Task, Bottle: o.Bottle})
}

// Step writes the next step to disk, then to the audit log. The step counts once both
// are done. Step ignores that ctx is cancelled: what has happened must be recorded.
func (w *Work) Step(ctx context.Context, a Attempt) error {
	ctx = context.WithoutCancel(ctx)
	a.Schema, a.Work, a.Seq, a.At, a.Previous = AttemptSchema, w.Id, len(w.Steps), time.Now().UTC(), w.last
	b, err := json.MarshalIndent(&a, "", "  ")
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%s%03d.json", judge.AttemptPrefix, a.Seq)
	if err := store.WriteFile(filepath.Join(w.Dir, name), b, 0o600); err != nil {
		return err
	}
	if w.O.Dies != nil && w.O.Dies(a) {
		return ErrDied
	}
	none := new(secret.Redactor)
	_, err = w.C.Audit.Append(ctx, audit.Event{
		Kind: audit.GateAttempt, Actor: audit.ByCarboy, Decision: audit.Noted, Subject: audit.Redact(none, w.Id+"/"+judge.AttemptNumber(name)),
		Digests: []audit.Digest{{Of: judge.AttemptOf, Sum: sha256.Sum256(b)}}, Text: audit.Redact(none, fmt.Sprintf("attempt %d: %s %s", a.Number, a.State, a.Outcome)),
	})
	if err != nil {
		return err
	}
	w.Steps, w.last = append(w.Steps, a), judge.HexSum(b)
	if w.O.OnAttempt != nil {
		w.O.OnAttempt(a)
	}
	return nil
}

// reopen locks the work and reads its steps. It removes the newest one if the audit log
// does not have it: that step did not happen.
func (w *Work) reopen(ref string) error {
	dir, err := w.C.workDir(ref)
	if err != nil {
		return err
	}
	w.Dir, w.Id = dir, filepath.Base(dir)
	if err := w.take(); err != nil {
		return err
	}
	loose, err := w.Read(dir)
	if err != nil {
		return err
	}
	if loose != "" {
		if err := os.Remove(loose); err != nil {
			return err
		}
	}
	if len(w.Steps) == 0 {
		return fmt.Errorf("work %s never began, so that there is nothing to go on with: %w", w.Id, ErrNoWork)
	}
	return nil
}

// workDir returns the directory of work, given its id or a prefix of that.
func (c *Worker) workDir(ref string) (string, error) {
	dirs, err := store.Glob(c.judge.GateDir("work"), strings.ToLower(ref)+"*")
	if err != nil || len(dirs) != 1 || strings.ContainsAny(ref, "*?[/\\.") {
		return "", fmt.Errorf("work %q: %d ids begin with it: %w", plan.NameOrHidden(ref), len(dirs), ErrNoWork)
	}
	return dirs[0], nil
}

// Read reads the steps in dir and checks them against the audit log. loose is the file of
// the newest step if the log does not have it.
func (w *Work) Read(dir string) (loose string, err error) {
	w.Dir, w.Id = dir, filepath.Base(dir)
	files, recorded, err := StepsIn(dir, func() (map[string][]string, error) {
		sums := map[string][]string{} // by the step's number
		return sums, w.C.judge.AuditRecords(func(r *audit.Record) {
			n, ours := strings.CutPrefix(r.Subject, w.Id+"/")
			for _, d := range r.Digests {
				if ours && r.Kind == audit.GateAttempt && d.Of == judge.AttemptOf {
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
		switch sums := recorded[judge.AttemptNumber(f)]; {
		case len(sums) == 0 && i == len(files)-1:
			loose = f
			continue
		case len(sums) == 0:
			return "", fmt.Errorf("%s: %w", f, judge.ErrUnrecorded)
		case len(sums) > 1:
			return "", fmt.Errorf("%s: %w: it was recorded %d times", f, judge.ErrLedger, len(sums))
		case sums[0] != judge.HexSum(b):
			return "", fmt.Errorf("%s: %w: its text was changed", f, judge.ErrLedger)
		}
		var a Attempt
		if err := json.Unmarshal(b, &a); err != nil || a.Schema != AttemptSchema || a.Work != w.Id || a.Seq != i || a.Previous != w.last {
			return "", fmt.Errorf("%s: %w", f, judge.ErrLedger)
		}
		w.Steps, w.last = append(w.Steps, a), judge.HexSum(b)
	}
	// Each step is on disk before it is in the log, so that none can be missing here.
	if len(recorded) != len(w.Steps) {
		return "", fmt.Errorf("work %s: %w: %d steps were recorded, and %d are there", w.Id, judge.ErrLedger, len(recorded), len(w.Steps))
	}
	if len(w.Steps) > 0 {
		if w.Steps[0].Task == nil {
			return "", fmt.Errorf("work %s: %w: its first step says no task", w.Id, judge.ErrLedger)
		}
		w.Task = *w.Steps[0].Task
	}
	return loose, nil
}

// MaxLooks bounds the tries of StepsIn to see the same steps twice.
const MaxLooks = 50

// StepsIn returns the files of the steps in dir, in order, and what records returns.
// Work that is running adds to both. So StepsIn reads them until the files were the same
// before and after reading the records. After MaxLooks tries it returns what it has.
func StepsIn(dir string, records func() (map[string][]string, error)) (files []string, recorded map[string][]string, err error) {
	look := func() ([]string, error) {
		all, err := store.Glob(dir, judge.AttemptPrefix+"*.json")
		slices.SortFunc(all, func(a, b string) int { // from 1000 on, numbers are longer
			return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
		})
		return all, err
	}
	if files, err = look(); err != nil {
		return nil, nil, err
	}
	for i := range MaxLooks {
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

func (w *Work) loop(ctx context.Context) (*Worked, error) {
	for {
		if w.relay.Heard() != nil {
			return nil, run.ErrInterrupted
		}
		last := w.Steps[len(w.Steps)-1]
		var err error
		switch last.State {
		case AttemptPending:
			err = w.run(ctx, last)
		case AttemptRunning:
			// carboy died in this attempt, perhaps after the agent had ended.
			var done *Attempt
			if done, err = w.whole(ctx, last); err != nil {
				break
			}
			if done != nil {
				err = w.Step(ctx, *done)
				break
			}
			// The agent's result is lost. The attempt counts.
			err = w.Step(ctx, Attempt{Number: last.Number, State: AttemptRecorded, Bottle: last.Bottle, Outcome: gate.Unavailable, Failing: FailingLost, Feedback: w.feedback()})
		case AttemptJudging:
			err = w.Judge(ctx, last)
		case AttemptGranted:
			err = w.Step(ctx, Attempt{Number: last.Number + 1, State: AttemptPending, Bottle: last.Bottle})
		case AttemptRecorded:
			done, werr := w.after(ctx, last)
			if done != nil || werr != nil {
				return done, werr
			}
		case AttemptPushing:
			var p *Pushed
			if p, err = w.push(ctx, last); err == nil {
				last.State, last.Pushed = AttemptPushed, p
				err = w.Step(ctx, last)
			}
		case AttemptPushed:
			if last.Pushed == nil {
				return nil, fmt.Errorf("work %s: %w: its last step says nothing of the push", w.Id, judge.ErrLedger)
			}
			if last.Pushed.Verdict == receipt.Pushed || w.O.Continue == "" || w.again {
				return w.after(ctx, last)
			}
			// Whoever resumes the work has removed the obstacle.
			w.again = true
			last.State, last.Pushed = AttemptPushing, nil
			err = w.Step(ctx, last)
		default:
			err = fmt.Errorf("work %s: %w: state %q", w.Id, judge.ErrLedger, last.State)
		}
		if err != nil {
			return nil, err
		}
	}
}

// whole returns the judging step of an attempt whose agent ended, and whose bottle was
// kept, before carboy died. It returns nil if there is none.
func (w *Work) whole(ctx context.Context, a Attempt) (*Attempt, error) {
	list, _, err := w.C.Store.Bottles(ctx)
	if err != nil {
		return nil, err
	}
	for _, b := range list {
		if a.Bottle != "" && b.Slug != a.Bottle || a.Bottle == "" && (b.Label != w.label() || b.Created.Before(a.At)) {
			continue
		}
		k, err := w.C.bottles.Kept(b.Slug)
		if err != nil || k == nil || k.At.Before(a.At) || k.Frozen {
			continue
		}
		r, err := w.C.review.Receipt(ctx, k.Run)
		if err != nil || r.Ended == nil || r.Exit.Reason == receipt.Lost || r.Exit.Reason == receipt.Running {
			continue
		}
		return &Attempt{Number: a.Number, State: AttemptJudging, Bottle: b.Slug, Run: k.Run, Exit: &r.Exit.Code, Usage: usageOf(r)}, nil
	}
	return nil, nil
}

// label returns the label of this work's bottles, by which whole finds them.
func (w *Work) label() string { return w.Task.Agent + "-" + w.Id[len(w.Id)-8:] }

// feedback returns the newest feedback on record, or "".
func (w *Work) feedback() string {
	for _, a := range slices.Backward(w.Steps) {
		if a.State == AttemptRecorded && a.Feedback != "" {
			return a.Feedback
		}
	}
	return ""
}

// bottle returns the bottle in which the agent continues, or "" for a new one.
func (w *Work) bottle() string {
	for _, a := range slices.Backward(w.Steps) {
		if a.Bottle != "" || a.State == AttemptRecorded {
			return a.Bottle
		}
	}
	return ""
}

// run runs the agent for one attempt.
func (w *Work) run(ctx context.Context, a Attempt) error {
	prompt := w.Task.Prompt
	if w.O.Forge != nil {
		prompt = w.O.Forge.Prompt(prompt)
	}
	if f := w.feedback(); f != "" {
		var err error
		if prompt, err = gate.Fence(prompt, f); err != nil {
			return err
		}
	}
	slug := w.bottle()
	if slug != "" {
		if k, err := w.C.bottles.Kept(slug); err != nil || k == nil {
			slug = "" // it was lost when carboy died
		}
	}
	if slug == "" && w.Task.Bottle != "" { // a new one would lack what the agent did there
		return fmt.Errorf("work %s: %w", w.Id, ErrBottleGone)
	}
	if err := w.Step(ctx, Attempt{Number: a.Number, State: AttemptRunning, Bottle: slug}); err != nil {
		return err
	}
	var s *bottles.Started
	var err error
	signals, over := w.relay.Begins()
	var calls tools.Forge
	if w.O.Forge != nil {
		calls = w.O.Forge
	}
	if slug != "" {
		if w.O.OnBottle != nil {
			w.O.OnBottle(slug)
		}
		s, err = w.C.bottles.Resume(ctx, bottles.ResumeOptions{
			Slug: slug, Headless: true, Prompt: prompt, FilesOnly: true, Keep: true, Repeats: true, Forge: calls, Alive: w.O.Alive, Policy: w.O.Policy, AskFor: w.O.AskFor, Env: w.O.Env, Ask: w.O.Ask, Confirm: w.confirm,
			Stdout: w.O.Stdout, Stderr: w.O.Stderr, Interrupt: signals, OnEvent: w.O.OnEvent,
		})
	} else {
		s, err = w.C.bottles.Start(ctx, bottles.StartOptions{
			Agent: w.Task.Agent, Bottles: w.Task.Bottles, Cwd: true, Dir: w.Task.Dir, Headless: true, Prompt: prompt, Keep: true, Repeats: true, Label: w.label(),
			Forge: calls, Alive: w.O.Alive, OnBottle: w.O.OnBottle, Policy: w.O.Policy, AskFor: w.O.AskFor,
			Env: w.O.Env, Ask: w.O.Ask, Confirm: w.confirm, Stdout: w.O.Stdout, Stderr: w.O.Stderr, Interrupt: signals, OnEvent: w.O.OnEvent,
		})
	}
	over()
	switch began := !NeverBegan(s, err); {
	case began:
	case slug != "" && Spoiled(s, err, ctx.Err() != nil || w.relay.Heard() != nil):
		// The attempt counts, and the next one gets a bottle in which an agent can start.
		if w.O.OnEvent != nil {
			w.O.OnEvent(plan.Event{Kind: "progress", Text: fmt.Sprintf("attempt %d is lost: no agent begins in bottle %s any more (%v)", a.Number, slug, err)})
		}
		code := s.Receipt.Exit.Code
		return w.Step(ctx, Attempt{Number: a.Number, State: AttemptRecorded, Exit: &code, Outcome: gate.Unavailable, Failing: FailingLost, Feedback: w.feedback()})
	default: // the attempt is still to be made
		err = cmp.Or(err, errors.New("the agent left no receipt"))
		a.Task = nil
		return errors.Join(fmt.Errorf("work %s, attempt %d: the agent never began: %w", w.Id, a.Number, err), w.Step(ctx, a))
	}
	var ended *bottles.AgentError
	if err != nil && !errors.As(err, &ended) {
		return fmt.Errorf("work %s, attempt %d: %w", w.Id, a.Number, err)
	}
	code := s.Receipt.Exit.Code
	if s.Frozen {
		// The attempt is still to be made, in this bottle, by whoever resumes the work.
		frozen := Attempt{Number: a.Number, State: AttemptPending, Bottle: s.Slug, Run: s.Receipt.ID, Exit: &code, Usage: usageOf(s.Receipt)}
		return errors.Join(fmt.Errorf("work %s, attempt %d: bottle %s: %w", w.Id, a.Number, s.Slug, ErrFrozen), w.Step(ctx, frozen))
	}
	return w.Step(ctx, Attempt{Number: a.Number, State: AttemptJudging, Bottle: s.Slug, Run: s.Receipt.ID, Exit: &code, Usage: usageOf(s.Receipt)})
}

// keepsApart refuses a workspace mode that leaves no change to judge.
func keepsApart(p *bottles.Preflight) error {
	bad := &fault.OptionError{Option: "workspace", Value: string(p.Mode), Advice: "say workspace: overlay (or copy) in the bottle's file, or take another bottle: --bottle NAME"}
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

func (w *Work) confirm(p *bottles.Preflight) error {
	err := keepsApart(p) // the bottle's file may have changed
	if err == nil && w.O.Confirm != nil {
		err = w.O.Confirm(p)
	}
	return err
}

// gate judges the change of an attempt. Nobody can remove the verdict until hold is
// closed; by then a step refers to it.
func (w *Work) gate(ctx context.Context, a Attempt) (j *judge.Judged, hold *os.File, err error) {
	for {
		j, err = w.C.judge.Gate(ctx, judge.GateOptions{Dir: w.Task.Dir, Base: cmp.Or(a.Base, w.Task.Base), Change: string(a.Run), Catalog: w.Task.Catalog, OnEvent: w.O.OnGate, Granted: w.grants(), Exact: true, Waits: w.waits})
		if err != nil {
			return nil, nil, err
		}
		if hold, err = judge.WaitVerdict(ctx, j.Dir); err == nil {
			if _, _, err = w.C.judge.Verdict(ctx, j.ID); err == nil {
				return j, hold, nil
			}
			hold.Close()
		}
		if !errors.Is(err, judge.ErrNoVerdict) { // else somebody removed it at once
			return nil, nil, err
		}
	}
}

// Judge runs the gate on the changes of an attempt. What the agent claims does not count.
func (w *Work) Judge(ctx context.Context, a Attempt) error {
	var j *judge.Judged
	var hold *os.File
	var err error
	if a.Base, err = w.rebasedOn(ctx, a); err == nil {
		j, hold, err = w.gate(ctx, a)
	}
	if err == nil {
		defer hold.Close()
	}
	var bad *gate.ChangeError
	switch {
	case errors.As(err, &bad) && bad.Tree == "run "+string(a.Run):
		// The agent caused it, and can fix it.
		a.Outcome, a.Failing, a.Feedback = gate.Failed, bad.Failing(), bad.Feedback()
	case errors.Is(err, review.ErrNoChanges):
		// They could not be read from the bottle.
		a.Outcome, a.Failing, a.Feedback = gate.Unavailable, FailingLost, w.feedback()
	case err != nil:
		return fmt.Errorf("work %s, attempt %d: %w", w.Id, a.Number, err)
	default:
		a.Verdict, a.Tree, a.Outcome, a.Failing = j.ID, j.Change.Digest, j.Outcome, j.Failing()
		if a.Feedback, err = j.Feedback(nil); err != nil {
			return err
		}
	}
	a.State = AttemptRecorded
	return w.Step(ctx, a)
}

// waits tells the user why nothing happens.
func (w *Work) waits() {
	if w.O.OnEvent != nil {
		w.O.OnEvent(plan.Event{Kind: "progress", Text: "another gate works on " + w.Task.Dir + ": waiting until it is over"})
	}
}

// after decides what follows an attempt: nothing, the next, a push, or a person.
func (w *Work) after(ctx context.Context, a Attempt) (*Worked, error) {
	r, err := w.Ended(ctx, a)
	if err != nil {
		return nil, err
	}
	switch {
	case r.Outcome == gate.Passed && w.Task.Push != nil && a.Pushed == nil:
		a.State, a.Feedback, a.Usage = AttemptPushing, "", nil // the previous step has them
		return nil, w.Step(ctx, a)
	case r.spent:
		return w.spent(ctx, a, r)
	case r.Outcome == gate.Failed || r.Outcome == gate.Unavailable:
		return nil, w.Step(ctx, Attempt{Number: a.Number + 1, State: AttemptPending, Bottle: a.Bottle})
	}
	return r, nil
}

// Ended returns the result after a step with an outcome. The work is over if that is
// passed, final or escalated.
func (w *Work) Ended(ctx context.Context, a Attempt) (*Worked, error) {
	r := &Worked{ID: w.Id, Outcome: a.Outcome, Run: a.Run, Bottle: a.Bottle, Pushed: a.Pushed, Stays: w.Task.Stays}
	same := 0
	for _, s := range w.Steps {
		switch s.State {
		case AttemptGranted:
			same = 0
		case AttemptRecorded:
			r.Attempts = append(r.Attempts, s)
			if s.Failing == a.Failing && a.Failing != FailingLost {
				same++
			}
		}
	}
	if a.Verdict != "" {
		v, _, err := w.C.judge.Verdict(ctx, a.Verdict)
		if err != nil {
			return nil, err
		}
		// A person has overridden the verdict for this tree.
		if r.Verdict = v; v.Override != nil && v.Change.Digest == a.Tree {
			r.Outcome = gate.Passed
		}
	}
	switch {
	case r.Outcome == gate.Passed && a.Pushed != nil && a.Pushed.Verdict != receipt.Pushed:
		// The change passed and cannot be pushed: a person decides.
		how := "failed"
		if a.Pushed.Verdict == receipt.PushRefused {
			how = "was refused by the git gate"
		}
		r.Outcome, r.Why = gate.Escalated, "the change passed, and its push "+how+": "+a.Pushed.Reason
	case r.Outcome == gate.Passed:
	case r.Outcome == gate.Final:
		r.Why = "what failed is nothing that another attempt is for"
	case r.Outcome == gate.Escalated:
		r.Why = "exit code and report disagree"
	case same >= 3:
		r.Outcome, r.Why, r.spent = gate.Escalated, "the same failed three times", true
	case a.Number >= w.limit():
		r.Outcome, r.Why, r.spent = gate.Escalated, fmt.Sprintf("all %d attempts are spent", w.limit()), true
	}
	return r, nil
}

// grants returns the attempts that people have granted.
func (w *Work) grants() (out []gate.Attempts) {
	for _, s := range w.Steps {
		if s.State == AttemptGranted && s.Granted != nil {
			out = append(out, *s.Granted)
		}
	}
	return out
}

// limit returns the number of attempts allowed.
func (w *Work) limit() int {
	for _, s := range slices.Backward(w.Steps) {
		if s.State == AttemptGranted && s.Granted != nil {
			return s.Number + s.Granted.More
		}
	}
	return w.Task.Attempts
}

// spent asks a person for more attempts if the user wants that. It returns nil if the
// person grants them. Otherwise the work stays escalated.
func (w *Work) spent(ctx context.Context, a Attempt, r *Worked) (*Worked, error) {
	more := min(w.O.MaxAttempts-a.Number, supervise.MaxMoreAttempts)
	if w.O.MaxAttempts > 0 && more <= 0 {
		r.Why += fmt.Sprintf("; nobody was asked for more, since --max-attempts %d is not above the %d that were made", w.O.MaxAttempts, a.Number)
	}
	if more > 0 {
		p := supervise.GateAttempts{Gate: gate.CatalogPath, Repository: fault.Fit(w.Task.Dir, 4096), Work: w.Id, Step: w.last, Made: a.Number, More: more}
		if r.Verdict != nil {
			p.Gate, p.Failures = fault.Fit(r.Verdict.Catalog, 256), judge.FailuresOf(r.Verdict)
		} else if a.Failing != "" {
			p.Failures = []string{fault.Fit(a.Failing, 2000)}
		}
		err := ask.ForApproval(ctx, w.C.Host, judge.GateAsker, a.Run, p, "carboy work --max-attempts", w.O.People, func(ok supervise.Approval[supervise.GateAttempts]) error {
			return w.grant(ctx, a, ok)
		})
		var no *ask.NotApprovedError
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

// grant records the approved attempts. The approval must be for the newest step.
func (w *Work) grant(ctx context.Context, a Attempt, ok supervise.Approval[supervise.GateAttempts]) error {
	p, o := ok.Payload(), ok.Outcome()
	if p.Work != w.Id || p.Step != w.last {
		return fmt.Errorf("work %s: what was approved is of another step: %w", w.Id, judge.ErrLedger)
	}
	return w.Step(ctx, Attempt{Number: a.Number, State: AttemptGranted, Bottle: a.Bottle, Granted: &gate.Attempts{
		Work: w.Id, More: p.More, By: o.Answer.By.String(), At: o.Answer.At, Proposal: string(o.Proposal.ID), Digest: o.Proposal.Digest.String(),
	}})
}
