// Package ask asks a person to approve something that no gate and no rule decides.
//
// Gates and shipping ask at the same queue as bottles do. So one log says who approved
// what, and each answer is bound to what was shown.
package ask

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise"
)

// Options control how a person is asked.
type Options struct {
	// Timeout bounds the wait for an answer; 0 means five minutes, the maximum is a day.
	// A proposal that times out is refused.
	Timeout time.Duration
	// Policy names a file, outside of every workspace, with rules that answer some
	// proposals. Empty means that no rule answers.
	Policy string
	// Waiting is called with each proposal that waits for an answer. It may be nil.
	Waiting func(supervise.Entry)
	// Here asks the person who runs this process. Approve false rejects the proposal; an
	// error leaves it waiting. If Here is nil, the answer comes from another process.
	Here func(context.Context, supervise.Entry) (approve bool, note string, err error)
}

// NotApprovedError reports a proposal that was rejected, expired or withdrawn.
type NotApprovedError struct {
	Proposal string // its id
	Verdict  string // rejected, expired or withdrawn
	By, Note string // without control characters: safe to print
}

// ExitClass lets package exitcode choose the exit code: nobody decided, or a person said no.
func (e *NotApprovedError) ExitClass() exitcode.Class {
	if e.Verdict == string(supervise.Rejected) {
		return exitcode.TurnedDown
	}
	return exitcode.Undecided
}

func (e *NotApprovedError) Error() string {
	s := fmt.Sprintf("proposal %s was not approved: %s by %s", e.Proposal, e.Verdict, e.By)
	if e.Note != "" {
		s += ": " + e.Note
	}
	return s
}

// ForApproval proposes p under name, waits for the answer, and calls apply once if it is an
// approval. It returns a *NotApprovedError if it is not.
func ForApproval[P supervise.Payload](ctx context.Context, h *host.Host, name string, run store.ID, p P, tool string, o Options, apply func(supervise.Approval[P]) error) error {
	q, err := h.Proposals()
	if err != nil {
		return err
	}
	defer q.Close()
	ao := supervise.AskerOptions{Bottle: name, Run: run, Timeout: o.Timeout}
	if o.Policy != "" {
		if ao.Policy, err = Rules(ctx, h, o.Policy); err != nil {
			return err
		}
	}
	ao.Waiting = func(p supervise.Proposal) {
		if o.Waiting != nil {
			o.Waiting(supervise.Entry{Proposal: p})
		}
		if o.Here == nil {
			return
		}
		yes, note, err := o.Here(ctx, supervise.Entry{Proposal: p})
		if err != nil {
			return
		}
		v := supervise.Rejected
		if yes {
			v = supervise.Approved
		}
		if _, err := q.Answer(ctx, supervise.Reply{ID: p.ID, Digest: p.Digest, Verdict: v, Note: note, Channel: supervise.ChannelCLI}); err != nil {
			h.Log.Info("the answer did not count", "proposal", p.ID, "err", err)
		}
	}
	a, err := q.Asker(ao)
	if err != nil {
		return err
	}
	defer a.Close()
	out, err := supervise.Ask(ctx, a, p, supervise.Draft{Tool: tool}, supervise.EffectFunc[P](func(_ context.Context, ok supervise.Approval[P]) error { return apply(ok) }))
	if err != nil || out.Allowed() {
		return err
	}
	return NotApproved(out)
}

// NotApproved returns the *NotApprovedError for an outcome that is no approval.
func NotApproved(o supervise.Outcome) error {
	return &NotApprovedError{string(o.Proposal.ID), string(o.Answer.Verdict), o.Answer.By.String(), safetext.String(o.Answer.Note, supervise.MaxNote)}
}

// Rules loads a policy file. It refuses a file in the workspace of any run on record,
// since an agent could have written it.
func Rules(ctx context.Context, h *host.Host, file string) (*supervise.Policy, error) {
	conf, err := store.ConfigDir(h.Opened.Config, h.Env)
	if err != nil {
		return nil, err
	}
	l, err := h.Store.List(ctx, store.Query{})
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, m := range l.Runs {
		if m.Workspace.Path != "" {
			dirs = append(dirs, filepath.Clean(string(m.Workspace.Path)))
		}
	}
	slices.Sort(dirs)
	return supervise.LoadPolicy(file, conf, slices.Compact(dirs)...)
}
