package work

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/store"
)

// WorkState is the state of work.
type WorkState string

// The states.
const (
	WorkRunning WorkState = "running" // a process works on it
	WorkStopped WorkState = "stopped" // no process does, and it is not over
	WorkOver    WorkState = "over"
)

// WorkAccount holds the records of one work, for a person who decides how it
// continues. Its texts are as they were recorded: print them with package safetext.
type WorkAccount struct {
	ID    string    `json:"id"`
	State WorkState `json:"state"`
	Began time.Time `json:"began"`
	// Last is the time of its newest step, and Step the state in that step.
	Last time.Time    `json:"last"`
	Step AttemptState `json:"step"`
	// Number is the attempt of that step, from 1, and Limit the number of attempts allowed.
	Number int  `json:"number"`
	Limit  int  `json:"limit"`
	Task   Task `json:"task"`
	// Outcome and Why are as in Worked, and empty until it is over.
	Outcome  gate.Outcome `json:"outcome,omitempty"`
	Why      string       `json:"why,omitempty"`
	Spent    bool         `json:"spent,omitempty"` // escalated, and more attempts may be granted
	Attempts []Attempt    `json:"attempts"`        // as they were recorded
	Pushed   *Pushed      `json:"pushed,omitempty"`
	// Verdict is the last recorded attempt's, empty where that has none; Run is the last
	// run whose changes are known, and Bottle where the agent can go on, of which Resumable
	// says whether it is still there.
	Verdict   string   `json:"verdict,omitempty"`
	Run       store.ID `json:"run,omitempty"`
	Bottle    string   `json:"bottle,omitempty"`
	Resumable bool     `json:"resumable"`
	// Failing lists the signals of that verdict that did not pass, with their findings.
	Failing []*gate.Result `json:"failing,omitempty"`
}

// WorkAccount reads the records of work, given its id or a prefix of that. It changes
// nothing. A record that was changed is an error that matches ErrLedger.
func (c *Worker) WorkAccount(ctx context.Context, ref string) (*WorkAccount, error) {
	dir, err := c.workDir(ref)
	if err != nil {
		return nil, err
	}
	return c.workAccount(ctx, dir)
}

func (c *Worker) workAccount(ctx context.Context, dir string) (*WorkAccount, error) {
	w := &Work{C: c}
	busy, err := WorkBusy(dir)
	if err != nil {
		return nil, err
	}
	if _, err := w.Read(dir); err != nil {
		return nil, err
	}
	a := &WorkAccount{ID: w.Id, State: WorkStopped, Task: w.Task, Attempts: []Attempt{}}
	if busy {
		a.State = WorkRunning
	}
	if len(w.Steps) == 0 {
		return a, nil
	}
	last := w.Steps[len(w.Steps)-1]
	a.Began, a.Last, a.Step, a.Bottle = w.Steps[0].At, last.At, last.State, w.bottle()
	a.Number, a.Limit = last.Number, w.limit()
	for _, s := range w.Steps {
		if s.State == AttemptRecorded {
			a.Attempts, a.Verdict = append(a.Attempts, s), s.Verdict
		}
		if s.Run != "" {
			a.Run = s.Run
		}
	}
	if last.State == AttemptRecorded || last.State == AttemptPushed {
		r, err := w.Ended(ctx, last)
		if err != nil {
			return nil, err
		}
		a.Pushed = r.Pushed
		pushes := r.Outcome == gate.Passed && w.Task.Push != nil && r.Pushed == nil
		if !busy && !pushes && r.Outcome != gate.Failed && r.Outcome != gate.Unavailable {
			a.State, a.Outcome, a.Why, a.Spent = WorkOver, r.Outcome, r.Why, r.spent
		}
	}
	if a.Verdict != "" {
		v, _, err := c.judge.Verdict(ctx, a.Verdict)
		if err != nil {
			return nil, err
		}
		for _, r := range v.Signals {
			if r.Outcome != gate.Passed {
				a.Failing = append(a.Failing, r)
			}
		}
	}
	if a.Bottle != "" {
		k, err := c.bottles.Kept(a.Bottle)
		a.Resumable = err == nil && k != nil
	}
	return a, nil
}

// WorkBusy reports whether a process is running the work in dir.
func WorkBusy(dir string) (bool, error) {
	f, err := os.OpenFile(filepath.Join(dir, WorkLock), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// WorkAccounts returns the newest n works, newest first. Those that cannot be read count
// too: broken has their ids, and AuditVerify says what is wrong with them.
func (c *Worker) WorkAccounts(ctx context.Context, n int) (list []*WorkAccount, broken []string, err error) {
	dirs, err := store.Glob(c.judge.GateDir("work"), "*")
	if err != nil {
		return nil, nil, err
	}
	for _, d := range slices.Backward(dirs) { // ids sort by time
		if len(list)+len(broken) == n {
			break
		}
		a, err := c.workAccount(ctx, d)
		switch {
		case err != nil:
			broken = append(broken, filepath.Base(d))
		case !a.Began.IsZero(): // else it never began
			list = append(list, a)
		}
	}
	return list, broken, ctx.Err()
}
