package judge

import (
	"context"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/carboy/carboy/internal/ask"
	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise"
)

// GateAsker is the name under which gates ask at the queue.
const GateAsker = "gate"

// FailuresOf returns the failures of a verdict for people, cut to fit a proposal: one line
// each, and for what a person must decide the output and the difference that belong to it.
func FailuresOf(v *gate.Verdict) (out []string) {
	const most, bytes = 100, 48 << 10
	left := bytes
	add := func(s string) {
		s = fault.Fit(s, 4000)
		if len(out) < most && left >= len(s) {
			out, left = append(out, s), left-len(s)
		}
	}
	for _, r := range v.Masked().Signals {
		if r.Outcome == gate.Passed {
			continue
		}
		add(strings.TrimSuffix(fmt.Sprintf("%s: %s: %s", r.Name, r.Outcome, r.Why), ": "))
		for _, f := range r.Findings {
			if !f.Noted {
				at := f.File
				if f.Line > 0 {
					at = fmt.Sprintf("%s:%d", at, f.Line)
				}
				text := strings.Join(strings.Fields(at+" "+f.ID), " ") + ": " + f.Text
				if r.Outcome == gate.Escalated && f.Detail != "" {
					text += "\n" + f.Detail
				}
				add(text)
			}
		}
	}
	return out
}

// runOf returns the run whose change a verdict judges; empty if it judges no run.
func runOf(v *gate.Verdict) store.ID { return store.ID(v.Change.Run) }

// OverrideVerdict lets a change pass against its verdict, if a person approves that at the
// queue. The verdict, its attestation and the audit log say so; the findings stay.
func (c *Judge) OverrideVerdict(ctx context.Context, ref, reason string, o ask.Options) (*gate.Verdict, error) {
	if len(reason) < 10 || !safetext.Clean(reason) || len(reason) > 500 {
		return nil, &fault.OptionError{Option: "--reason", Value: safetext.String(reason, 80), Reason: "is no reason", Advice: "say in a sentence why the change may go on: at least 10 characters, on one line"}
	}
	v, _, err := c.Verdict(ctx, ref)
	if err != nil {
		return nil, err
	}
	if v.Allowed() {
		return nil, &fault.OptionError{Option: "verdict", Value: v.ID, Reason: "lets the change go on already", Advice: "there is nothing to override"}
	}
	digest, err := v.Digest()
	if err != nil {
		return nil, err
	}
	p := supervise.GateOverride{
		Gate: fault.Fit(v.Catalog, 256), Repository: fault.Fit(v.Repository, 4096), Commit: v.Change.Commit, Tree: v.Change.Digest,
		Verdict: digest, ID: v.ID, Reason: reason, Failures: FailuresOf(v),
	}
	var out *gate.Verdict
	err = ask.ForApproval(ctx, c.Host, GateAsker, runOf(v), p, "carboy gate override", o, func(ok supervise.Approval[supervise.GateOverride]) error {
		out, err = c.Override(ctx, ok)
		return err
	})
	return out, err
}

// Override writes an approval into its verdict, if the verdict has not changed since.
func (c *Judge) Override(ctx context.Context, ok supervise.Approval[supervise.GateOverride]) (*gate.Verdict, error) {
	p, a := ok.Payload(), ok.Outcome()
	_, dir, err := c.Verdict(ctx, p.ID)
	if err != nil {
		return nil, err
	}
	hold, err := WaitVerdict(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer hold.Close()
	v, err := c.readVerdict(filepath.Base(dir))
	if err != nil {
		return nil, err
	}
	switch digest, err := v.Digest(); {
	case err != nil:
		return nil, err
	case digest != p.Verdict:
		return nil, fmt.Errorf("verdict %s is not the one that was approved: %w", v.ID, ErrLedger)
	}
	v.Override = &gate.Override{
		By: a.Answer.By.String(), At: a.Answer.At, Reason: p.Reason, Proposal: string(a.Proposal.ID), Digest: a.Proposal.Digest.String(),
	}
	b, err := v.Encode()
	if err != nil {
		return nil, err
	}
	none := new(secret.Redactor)
	return v, c.PutVerdict(ctx, v.ID, b, audit.Event{
		Kind: audit.GateOverride, Actor: audit.ByUser(a.Answer.By.UID), Decision: audit.Allowed, Subject: audit.Redact(none, v.ID),
		Digests: []audit.Digest{{Of: verdictOf, Sum: sha256.Sum256(b)}, {Of: "proposal", Sum: a.Proposal.Digest}}, Text: audit.Redact(none, p.Reason),
	})
}
