package carboy

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

// WorkState is how work stands.
type WorkState string

// The states.
const (
	WorkRunning WorkState = "running" // a carboy goes on with it
	WorkStopped WorkState = "stopped" // no carboy does, and it is not over
	WorkOver    WorkState = "over"
)

// WorkAccount is all that is on record of work: what a person needs to decide how it
// goes on. Its texts are as they were recorded: show them through package visible.
type WorkAccount struct {
	ID    string    `json:"id"`
	State WorkState `json:"state"`
	Began time.Time `json:"began"`
	// Last is when its newest step was recorded, and Step which that is.
	Last time.Time    `json:"last"`
	Step AttemptState `json:"step"`
	// Number is the attempt of that step, and Limit how many there may be.
	Number int  `json:"number"`
	Limit  int  `json:"limit"`
	Task   Task `json:"task"`
	// Outcome and Why are as in Worked; empty while it is not over.
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
	// Failing are the signals of that verdict that did not pass, with what they found.
	Failing []*gate.Result `json:"failing,omitempty"`
}

// WorkAccount reads what is on record of work, by its id or the beginning of one. It
// changes nothing; a record that was changed is ErrLedger.
func (c *Client) WorkAccount(ctx context.Context, ref string) (*WorkAccount, error) {
	dir, err := c.workDir(ref)
	if err != nil {
		return nil, err
	}
	return c.workAccount(ctx, dir)
}

func (c *Client) workAccount(ctx context.Context, dir string) (*WorkAccount, error) {
	w := &work{c: c}
	busy, err := workBusy(dir)
	if err != nil {
		return nil, err
	}
	if _, err := w.read(dir); err != nil {
		return nil, err
	}
	a := &WorkAccount{ID: w.id, State: WorkStopped, Task: w.task, Attempts: []Attempt{}}
	if busy {
		a.State = WorkRunning
	}
	if len(w.steps) == 0 {
		return a, nil
	}
	last := w.steps[len(w.steps)-1]
	a.Began, a.Last, a.Step, a.Bottle = w.steps[0].At, last.At, last.State, w.bottle()
	a.Number, a.Limit = last.Number, w.limit()
	for _, s := range w.steps {
		if s.State == AttemptRecorded {
			a.Attempts, a.Verdict = append(a.Attempts, s), s.Verdict
		}
		if s.Run != "" {
			a.Run = s.Run
		}
	}
	if last.State == AttemptRecorded || last.State == AttemptPushed {
		r, err := w.ended(ctx, last)
		if err != nil {
			return nil, err
		}
		a.Pushed = r.Pushed
		pushes := r.Outcome == gate.Passed && w.task.Push != nil && r.Pushed == nil
		if !busy && !pushes && r.Outcome != gate.Failed && r.Outcome != gate.Unavailable {
			a.State, a.Outcome, a.Why, a.Spent = WorkOver, r.Outcome, r.Why, r.spent
		}
	}
	if a.Verdict != "" {
		v, _, err := c.Verdict(ctx, a.Verdict)
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
		k, err := c.Kept(a.Bottle)
		a.Resumable = err == nil && k != nil
	}
	return a, nil
}

// workBusy reports whether a process goes on with the work in dir.
func workBusy(dir string) (bool, error) {
	f, err := os.OpenFile(filepath.Join(dir, workLock), os.O_RDONLY|unix.O_NOFOLLOW, 0)
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

// WorkAccounts are the newest of all work, at most n. What can't be read is beside, by
// its id; AuditVerify says what is wrong with it.
func (c *Client) WorkAccounts(ctx context.Context, n int) (list []*WorkAccount, broken []string, err error) {
	dirs, err := store.Glob(c.gateDir("work"), "*")
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
