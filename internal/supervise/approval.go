package supervise

import (
	"context"
	"fmt"
)

// Outcome is how a proposal ended, as its Asker sees it. The zero Outcome refuses.
type Outcome struct {
	Proposal Proposal
	Answer   Answer
}

// Allowed reports whether it was approved, as it was or modified.
func (o Outcome) Allowed() bool { return o.Answer.Verdict.Allows() }

// Approval is a payload that somebody approved. Only [ApprovalOf] makes one that
// holds anything.
type Approval[P Payload] struct {
	payload P
	outcome Outcome
}

// Payload is what was approved: the modified one, where it was modified, and without
// what was only shown.
func (a Approval[P]) Payload() P { return a.payload }

// Outcome is what was proposed and decided.
func (a Approval[P]) Outcome() Outcome { return a.outcome }

// ApprovalOf is the approval that is in o, if o is one of a P.
func ApprovalOf[P Payload](o Outcome) (Approval[P], bool) {
	if !o.Allowed() || checkSigned(o.Proposal.Payload, o.Answer.Verdict) != nil {
		return Approval[P]{}, false
	}
	p := o.Proposal.Payload
	if o.Answer.Verdict == Modified {
		p = o.Answer.Payload
	}
	if p == nil {
		return Approval[P]{}, false
	}
	bare, ok := p.Bare().(P)
	if !ok {
		return Approval[P]{}, false
	}
	return Approval[P]{bare, o}, true
}

// Ask proposes, waits and, when it was approved, has effect carried out, once for all
// who ask for the same at a time; what became of that is kept with the proposal.
// effect may be nil. The error is of the asking or of the effect: with one, nothing is
// approved.
func Ask[P Payload](ctx context.Context, a *Asker, p P, d Draft, effect Effect[P]) (Outcome, error) {
	t, err := a.Propose(ctx, p, d)
	if err != nil {
		return Outcome{}, err
	}
	defer t.Close()
	o, err := t.Wait(ctx)
	if err != nil {
		t.Close()
		select {
		case <-t.Done():
			o = t.w.outcome
		default: // somebody else still waits for it
			o.Proposal = t.w.p
		}
		return o, err
	}
	approval, ok := ApprovalOf[P](o)
	if !ok || effect == nil {
		return o, nil
	}
	// Of several who asked for the same, one carries it out.
	t.w.effect.Do(func() {
		t.w.failed = effect.Carry(ctx, approval)
		_ = t.Record(t.w.failed) // the audit log has the approval
	})
	if t.w.failed != nil {
		return Outcome{Proposal: o.Proposal}, fmt.Errorf("carry out proposal %s: %w", o.Proposal.ID, t.w.failed)
	}
	return o, nil
}
