package supervise

import (
	"context"
	"fmt"
)

// Outcome is the end of a proposal, as its Asker sees it. The zero Outcome refuses.
type Outcome struct {
	Proposal Proposal
	Answer   Answer
}

// Allowed reports whether the proposal was approved, as proposed or modified.
func (o Outcome) Allowed() bool { return o.Answer.Verdict.Allows() }

// Approval proves that somebody approved a payload. Only [ApprovalOf] makes one that is not
// empty.
type Approval[P Payload] struct {
	payload P
	outcome Outcome
}

// Payload returns the approved payload: the modified one, if the answer modified it. It
// leaves out the fields that were only shown.
func (a Approval[P]) Payload() P { return a.payload }

// Outcome returns the proposal and its answer.
func (a Approval[P]) Outcome() Outcome { return a.outcome }

// ApprovalOf returns the approval in o. It reports false if o approves nothing, or a
// payload of another type than P.
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

// Ask proposes p and waits for the answer. After an approval it applies effect, and keeps
// the result with the proposal. If several callers ask for the same at a time, effect is
// applied once. effect may be nil.
//
// An error comes from the asking or from the effect. With an error, nothing is approved.
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
		default: // another caller still waits for it
			o.Proposal = t.w.p
		}
		return o, err
	}
	approval, ok := ApprovalOf[P](o)
	if !ok || effect == nil {
		return o, nil
	}
	// Several callers may share the approval. One of them applies it.
	t.w.effect.Do(func() {
		t.w.failed = effect.Apply(ctx, approval)
		_ = t.record(t.w.failed) // the audit log has the approval
	})
	if t.w.failed != nil {
		return Outcome{Proposal: o.Proposal}, fmt.Errorf("apply proposal %s: %w", o.Proposal.ID, t.w.failed)
	}
	return o, nil
}
