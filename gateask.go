package carboy

import (
	"context"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise"
	"github.com/carboy/carboy/internal/visible"
)

// What gates and shipping ask people: at the same queue as bottles do, so that who
// approved what stands in one log, and an answer is bound to what was shown.

// AskOptions say how a person is asked for what no gate decides.
type AskOptions struct {
	// Timeout is how long is waited for an answer; 0: five minutes, at most a day. No
	// answer is a refusal.
	Timeout time.Duration
	// Policy is a file of the user's own that answers some of it by rule; empty: none.
	Policy string
	// Waiting is told what waits; nil: nobody.
	Waiting func(ProposalEntry)
	// Here asks whoever runs this process; nil: somebody answers elsewhere. Saying no
	// rejects, and an error leaves it waiting.
	Here func(context.Context, ProposalEntry) (approve bool, note string, err error)
}

// NotApprovedError means that a person, or nobody, did not approve what was asked for.
type NotApprovedError struct {
	Proposal string // its id
	Verdict  string // rejected, expired or withdrawn
	By, Note string // visible
}

func (e *NotApprovedError) Error() string {
	s := fmt.Sprintf("proposal %s was not approved: %s by %s", e.Proposal, e.Verdict, e.By)
	if e.Note != "" {
		s += ": " + e.Note
	}
	return s
}

// askPeople has somebody decide about p. carry runs when it was approved, once.
func askPeople[P supervise.Payload](ctx context.Context, c *Client, name string, run store.ID, p P, tool string, o AskOptions, carry func(supervise.Approval[P]) error) error {
	q, err := c.Proposals()
	if err != nil {
		return err
	}
	defer q.Close()
	ao := supervise.AskerOptions{Bottle: name, Run: run, Timeout: o.Timeout}
	if o.Policy != "" {
		if ao.Policy, err = c.rules(ctx, o.Policy); err != nil {
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
			c.log.Info("the answer did not count", "proposal", p.ID, "err", err)
		}
	}
	a, err := q.Asker(ao)
	if err != nil {
		return err
	}
	defer a.Close()
	out, err := supervise.Ask(ctx, a, p, supervise.Draft{Tool: tool}, supervise.EffectFunc[P](func(_ context.Context, ok supervise.Approval[P]) error { return carry(ok) }))
	if err != nil || out.Allowed() {
		return err
	}
	return notApproved(out)
}

func notApproved(o supervise.Outcome) error {
	return &NotApprovedError{string(o.Proposal.ID), string(o.Answer.Verdict), o.Answer.By.String(), visible.String(o.Answer.Note, supervise.MaxNote)}
}

// rules are those of a policy file, which lies in no workspace that carboy knows of.
func (c *Client) rules(ctx context.Context, file string) (*supervise.Policy, error) {
	conf, err := store.ConfigDir(c.opened.Config, c.env)
	if err != nil {
		return nil, err
	}
	l, err := c.List(ctx, store.Query{})
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

// gateAsker is the name under which gates ask.
const gateAsker = "gate"

// failuresOf are a verdict's for people, bounded.
func failuresOf(v *gate.Verdict) (out []string) {
	const most, bytes = 100, 48 << 10
	left := bytes
	add := func(s string) {
		s = fit(s, 2000)
		if len(out) < most && left >= len(s) {
			out, left = append(out, s), left-len(s)
		}
	}
	for _, r := range v.Untold().Signals {
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
				add(strings.Join(strings.Fields(at+" "+f.ID), " ") + ": " + f.Text)
			}
		}
	}
	return out
}

// runOf is the run whose change a verdict is about, as the queue takes it.
func runOf(v *gate.Verdict) store.ID { return store.ID(v.Change.Run) }

// OverrideVerdict lets a change go on against its verdict, when a person approves that
// at the queue: it stands in the verdict, its attestation and the audit log. What was
// found stays as it was.
func (c *Client) OverrideVerdict(ctx context.Context, ref, reason string, o AskOptions) (*gate.Verdict, error) {
	if len(reason) < 10 || !visible.Clean(reason) || len(reason) > 500 {
		return nil, &OptionError{Option: "--reason", Value: visible.String(reason, 80), Reason: "is no reason", Advice: "say in a sentence why the change may go on: at least 10 characters, on one line"}
	}
	v, _, err := c.Verdict(ctx, ref)
	if err != nil {
		return nil, err
	}
	if v.Allowed() {
		return nil, &OptionError{Option: "verdict", Value: v.ID, Reason: "lets the change go on already", Advice: "there is nothing to override"}
	}
	digest, err := v.Digest()
	if err != nil {
		return nil, err
	}
	p := supervise.GateOverride{
		Gate: fit(v.Catalog, 256), Repository: fit(v.Repository, 4096), Commit: v.Change.Commit, Tree: v.Change.Digest,
		Verdict: digest, ID: v.ID, Reason: reason, Failures: failuresOf(v),
	}
	var out *gate.Verdict
	err = askPeople(ctx, c, gateAsker, runOf(v), p, "carboy gate override", o, func(ok supervise.Approval[supervise.GateOverride]) error {
		out, err = c.override(ctx, ok)
		return err
	})
	return out, err
}

// override puts an approval into its verdict, if that is still the one it is about.
func (c *Client) override(ctx context.Context, ok supervise.Approval[supervise.GateOverride]) (*gate.Verdict, error) {
	p, a := ok.Payload(), ok.Outcome()
	_, dir, err := c.Verdict(ctx, p.ID)
	if err != nil {
		return nil, err
	}
	hold, err := waitVerdict(ctx, dir)
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
	return v, c.putVerdict(ctx, v.ID, b, audit.Event{
		Kind: audit.GateOverride, Actor: audit.ByUser(a.Answer.By.UID), Decision: audit.Allowed, Subject: audit.Redact(none, v.ID),
		Digests: []audit.Digest{{Of: verdictOf, Sum: sha256.Sum256(b)}, {Of: "proposal", Sum: a.Proposal.Digest}}, Text: audit.Redact(none, p.Reason),
	})
}
