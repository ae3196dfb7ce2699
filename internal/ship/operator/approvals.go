package operator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/ask"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/ship"
	"github.com/carboy/carboy/internal/ship/approval"
	shipplan "github.com/carboy/carboy/internal/ship/plan"
	"github.com/carboy/carboy/internal/supervise"
)

// shipAsker is the name under which an apply waits at the queue.
const shipAsker = "ship"

// lookEvery is the interval at which AwaitApprovals looks for new signatures.
const lookEvery = 100 * time.Millisecond

// askEvery is the least time between two questions to a forge.
const askEvery = 5 * time.Second

// AwaitApprovals blocks until as many people have approved plans as their hosts require, by
// signatures or by the reviews that s asks a forge for. It returns the signed approvals;
// [ship.Engine.Apply] asks for the reviews itself. What is still missing is told as progress
// of s. Meanwhile the queue shows a proposal, which people can reject
// but not approve there. signed returns the approvals so far; files names the plans for
// people. If signing can't make the plans applicable, AwaitApprovals returns the
// *ship.Error of Apply at once.
func (c *Operator) AwaitApprovals(ctx context.Context, s *ship.Engine, plans [][]byte, files []string, signed func() ([]approval.Signed, error), o ask.Options) ([]approval.Signed, error) {
	have, err := signed()
	if err != nil {
		return nil, err
	}
	missing := s.Judge(ctx, plans, have)
	refused := func(why error) error { return errors.Join(why, s.NoteRefusal(ctx, plans, why)) }
	if missing == nil {
		return have, nil
	}
	if !canSign(missing) {
		return have, refused(missing)
	}
	tell(s, missing)
	p, err := applyOf(plans, files, missing)
	if err != nil {
		return nil, err
	}
	q, err := c.Proposals()
	if err != nil {
		return nil, err
	}
	defer q.Close()
	ao := supervise.AskerOptions{Bottle: shipAsker, Timeout: o.Timeout, Waiting: func(p supervise.Proposal) {
		if o.Waiting != nil {
			o.Waiting(supervise.Entry{Proposal: p})
		}
	}}
	if o.Policy != "" {
		if ao.Policy, err = ask.Rules(ctx, c.Host, o.Policy); err != nil {
			return nil, err
		}
	}
	a, err := q.Asker(ao)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	t, err := a.Propose(ctx, p, supervise.Draft{Tool: "carboy apply"})
	if err != nil {
		return nil, err
	}
	defer t.Close()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	asked := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-t.Done():
			out, err := t.Wait(ctx)
			if err != nil {
				return nil, err
			}
			return nil, refused(&ship.Error{Outcome: ship.Mismatch, Err: fmt.Errorf("%w: %w", ask.NotApproved(out), missing), Advice: p.HowToSign()})
		case <-tick.C:
		}
		now, err := signed()
		if err != nil || slices.EqualFunc(now, have, sameApproval) && (s.Pull == 0 || time.Since(asked) < askEvery) {
			continue // a file that is being written is read again
		}
		before := missing
		have = now
		missing = s.Judge(ctx, plans, have)
		asked = time.Now()
		switch {
		case missing == nil:
			t.Withdraw("signed or reviewed, and applied by that")
			return have, nil
		case !canSign(missing):
			t.Withdraw("it can't be applied any more")
			return nil, refused(missing)
		case missing.Error() != before.Error():
			tell(s, missing)
		}
	}
}

// tell reports what is missing as progress.
func tell(s *ship.Engine, missing error) {
	if s.Progress == nil {
		return
	}
	p := ship.Progress{At: time.Now().UTC(), Step: "waiting", Text: fault.Fit(missing.Error(), 1024)}
	var x *ship.Error
	if errors.As(missing, &x) {
		p.Host, p.Text = x.Host, fault.Fit(x.Err.Error(), 1024)
	}
	s.Progress(p)
}

func sameApproval(a, b approval.Signed) bool {
	return bytes.Equal(a.Statement, b.Statement) && bytes.Equal(a.Signature, b.Signature)
}

// canSign reports whether a signature would resolve err.
func canSign(err error) bool {
	var x *ship.Error
	return errors.Is(err, approval.ErrMismatch) || errors.As(err, &x) && x.Outcome == ship.Destructive
}

// applyOf returns the proposal that shows plans at the queue.
func applyOf(plans [][]byte, files []string, missing error) (supervise.Apply, error) {
	out := supervise.Apply{Missing: fault.Fit(missing.Error(), 1024)}
	for _, f := range files {
		out.Files = append(out.Files, fault.Fit(f, 4096))
	}
	for _, b := range plans {
		p, digest, err := shipplan.Decode(b)
		if err != nil {
			return out, err
		}
		out.Action, out.Module, out.Commit = string(p.Kind), p.Module, p.Commit
		x := supervise.ApplyPlan{Digest: digest, Host: p.Host.Name, Address: fault.Fit(fmt.Sprintf("%s@%s:%d", p.Host.User, p.Host.Address, p.Host.Port), 256), Expires: p.Expires,
			Project: p.Target.Project, Root: fault.Fit(p.Target.Root, 1024), Mounts: fault.Fit(strings.Join(p.Mounts(), ", "), 4096), Back: fault.Fit(p.Back(), 1024)}
		for _, c := range p.Changes {
			x.Changes = append(x.Changes, supervise.ApplyChange{
				What: fault.Fit(c.What, 1024), Action: c.Action, From: fault.Fit(c.From, 1024), To: fault.Fit(c.To, 1024), Why: fault.Fit(c.Why, 1024), Destructive: c.Destructive,
			})
		}
		out.Plans = append(out.Plans, x)
	}
	return out, nil
}
