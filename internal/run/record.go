package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/phases"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/review"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// account completes the receipt's part about the command. cause is the failure,
// or nil.
func (s *Session) account(cause error) {
	if s.Rec.Exit.Reason == "" {
		s.Rec.Exit = failure(cause)
	}
	defer s.endEgressLog() // after the last of the gateway's
	defer s.endServices()  // after the last connection to them
	if s.approvals != nil {
		s.Rec.Proposals = s.approvals.account()
	}
	if s.sandbox != nil {
		s.sandbox.closeGateway()
		sum := s.sandbox.gw.Summary()
		s.Rec.Network = Network(sum)
		s.RedactNetwork()
		s.Rec.Limits.Hit = append(s.Rec.Limits.Hit, gatewayLimits(sum)...)
		s.Rec.Notes = append(s.Rec.Notes, (&plan.Credentials{Of: s.allCredentials}).Warnings()...)
	}
}

func (s *Session) answered() {
	if f, err := os.OpenFile(s.run.Path(review.AnsweredFile), os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
		f.Close()
	}
}

// record writes the receipt, the state and the audit log.
func (s *Session) record() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s.endGit(ctx)
	s.endTrace()
	s.endExecs()
	phases.Mark("trace ended")
	pos, aerr := s.noteEnd(ctx)
	phases.Mark("end noted")
	s.Rec.Audit = pos
	if aerr != nil {
		s.Rec.Notes = append(s.Rec.Notes, "The end of this run could not be recorded in the audit log completely: "+safetext.String(aerr.Error(), 300))
	}
	// While the run is not over, the next command looks for what a dead carboy
	// left; afterwards nobody does.
	derr := s.dropPrivate()
	phases.Mark("nothing left")
	meta, merr := s.settle(ctx)
	s.Rec.Started, s.Rec.Ended = meta.Started, meta.Ended
	err := errors.Join(aerr, derr, merr, s.run.WriteReceipt(ctx, &s.Rec))
	phases.Mark("receipt written")
	if s.o.Answer != nil {
		os.Remove(s.run.Path(review.AnsweredFile))
	}
	return err
}

// dropPrivate ends the bottle and removes what only it needed.
func (s *Session) dropPrivate() error {
	var errs []error
	if s.bottle != nil {
		errs = append(errs, s.bottle.Close())
	}
	if s.closeControl != nil {
		s.closeControl()
	}
	for _, dir := range []string{"scratch", "base", "services", checkpointDir} {
		errs = append(errs, fault.RemoveTree(s.run.Path(dir)))
	}
	return errors.Join(errs...)
}

// RedactNetwork masks secrets in the account. The command chooses the names that it asks
// for, so a name, refused or not, can contain a secret that it was given.
func (s *Session) RedactNetwork() {
	n := &s.Rec.Network
	for i := range n.Names {
		n.Names[i].Name = s.Redactor.String(n.Names[i].Name)
	}
	for i := range n.Connections {
		c := &n.Connections[i]
		c.Name, c.Reason = s.Redactor.String(c.Name), s.Redactor.String(c.Reason)
	}
	for i := range n.Requests {
		r := &n.Requests[i]
		r.Name, r.Reason = s.Redactor.String(r.Name), s.Redactor.String(r.Reason)
	}
	for i := range n.Found {
		f := &n.Found[i]
		// A header's name is the command's own choice, too.
		f.Name, f.Place = s.Redactor.String(f.Name), s.Redactor.String(f.Place)
	}
}

// failure returns the exit of a run in which the command never ran.
func failure(err error) receipt.Exit {
	x := endedBy(receipt.Failed, "")
	if err != nil {
		x.Code, x.Error = exitcode.OfError(exitcode.Runs, err), err.Error()
	}
	return x
}

// endedBy returns the exit of a run that did not end by itself.
func endedBy(why receipt.Reason, text string) receipt.Exit {
	return receipt.Exit{Code: exitcode.OfRun(why), Reason: why, Error: text}
}

// settle moves the run to its last state.
func (s *Session) settle(ctx context.Context) (store.Meta, error) {
	changes := store.NoChanges
	if c := s.Rec.Changes; c.Any() || c != nil && len(c.Incomplete) > 0 {
		changes = store.Pending
	}
	m, err := s.run.Meta()
	if err == nil && m.State == store.Running && s.Rec.Exit.Reason != receipt.Failed {
		return s.run.Finish(ctx, s.Rec.Exit.Code, changes)
	}
	return s.run.Fail(ctx, s.Rec.Exit.Code, s.Rec.Exit.Error, changes)
}

// Network returns the receipt's account of what the gateway saw, refusals first.
func Network(g gateway.Summary) receipt.Network {
	n := receipt.Network{
		NamesTotal: int64(len(g.Names)), ConnectionsTotal: int64(len(g.Conns)),
		Totals: receipt.Totals{BytesUp: g.BytesUp, BytesDown: g.BytesDown, Dropped: int64(g.Packets.Lost)},
	}
	for _, c := range g.Packets.Refused {
		n.Totals.Dropped += int64(c)
	}
	for _, x := range g.Names {
		fault.Count(x.Allowed, int64(x.Count), &n.Totals.NamesAllowed, &n.Totals.NamesRefused)
		n.Names = append(n.Names, receipt.Name{Name: x.Name, Verdict: verdict(x.Allowed), Rule: rule(x.Rule, x.Reason), Count: int64(x.Count)})
	}
	for _, x := range g.Conns {
		fault.Count(x.Allowed, int64(x.Count), &n.Totals.ConnectionsAllowed, &n.Totals.ConnectionsRefused)
		n.Connections = append(n.Connections, receipt.Connection{
			Name: x.Name, Port: x.Port, Proto: x.Protocol, Verdict: verdict(x.Allowed), Rule: x.Rule,
			Reason: because(x.Reason, x.Detail), Count: int64(x.Count), BytesUp: x.Up, BytesDown: x.Down,
		})
	}
	n.Requests, n.RequestsTotal = []receipt.Request{}, int64(len(g.Requests))
	used := map[string]int64{}
	for _, x := range g.Requests {
		fault.Count(x.Allowed, int64(x.Count), &n.Totals.RequestsAllowed, &n.Totals.RequestsRefused)
		if x.Credential != "" {
			used[x.Credential] += int64(x.Count)
		}
		r := receipt.Request{
			Name: x.Name, Port: x.Port, Verdict: verdict(x.Allowed), Rule: x.Rule, Reason: because(x.Reason, x.Detail),
			Credential: x.Credential, Count: int64(x.Count), Failed: int64(x.Failed), BytesUp: x.Up, BytesDown: x.Down,
		}
		if x.Told > 0 {
			r.Tokens = &receipt.Tokens{Answers: int64(x.Told), Input: x.Tokens.Input, Cached: x.Tokens.Cached, Output: x.Tokens.Output}
		}
		n.Requests = append(n.Requests, r)
	}
	n.CredentialsTotal = int64(len(used))
	for _, name := range slices.Sorted(maps.Keys(used)) {
		n.Credentials = append(n.Credentials, receipt.Credential{Name: name, Requests: used[name]})
	}
	n.FoundTotal = int64(len(g.Found))
	for _, x := range g.Found {
		if x.Inbound {
			n.Totals.FoundIn += int64(x.Count)
		} else {
			n.Totals.FoundOut += int64(x.Count)
		}
		n.Found = append(n.Found, receipt.Found{
			Name: x.Name, Port: x.Port, Inbound: x.Inbound, What: x.What, Secret: x.Secret, Transform: x.Transform, Place: x.Place,
			Rule: x.Rule, Action: receipt.Action(x.Action), Count: int64(x.Count),
		})
	}
	// What did not fit in the gateway's own bounds was asked for too.
	n.NamesTotal += int64(g.NamesDropped)
	n.ConnectionsTotal += int64(g.ConnsDropped)
	n.RequestsTotal += int64(g.RequestsDropped)
	n.FoundTotal += int64(g.FoundDropped)
	slices.SortStableFunc(n.Names, func(a, b receipt.Name) int { return refusedFirst(a.Verdict, b.Verdict) })
	slices.SortStableFunc(n.Connections, func(a, b receipt.Connection) int { return refusedFirst(a.Verdict, b.Verdict) })
	n.Names = fault.Cut(n.Names, receipt.MaxNames)
	n.Connections = fault.Cut(n.Connections, receipt.MaxConnections)
	slices.SortStableFunc(n.Requests, func(a, b receipt.Request) int { return refusedFirst(a.Verdict, b.Verdict) })
	slices.SortStableFunc(n.Found, func(a, b receipt.Found) int { return blockedFirst(a.Action, b.Action) })
	n.Requests = fault.Cut(n.Requests, receipt.MaxRequests)
	n.Credentials = fault.Cut(n.Credentials, receipt.MaxCredentials)
	n.Found = fault.Cut(n.Found, receipt.MaxFound)
	return n
}

func because(r gateway.Reason, detail string) string {
	if detail != "" {
		return fmt.Sprintf("%s: %s", r, detail)
	}
	return string(r)
}

func verdict(allowed bool) receipt.Verdict {
	if allowed {
		return receipt.Allowed
	}
	return receipt.Refused
}

func refusedFirst(a, b receipt.Verdict) int {
	switch {
	case a == b:
		return 0
	case a == receipt.Refused:
		return -1
	}
	return 1
}

func blockedFirst(a, b receipt.Action) int {
	rank := func(a receipt.Action) int {
		return slices.Index([]receipt.Action{receipt.Blocked, receipt.Masked, receipt.Reported}, a)
	}
	return cmp.Compare(rank(a), rank(b))
}

func gatewayLimits(g gateway.Summary) []receipt.Hit {
	var out []receipt.Hit
	for _, l := range g.Limits {
		out = append(out, receipt.Hit{Limit: string(l.Limit), Count: int64(l.Count)})
	}
	return out
}

// rule returns the rule that decided, or the reason when no route matched.
func rule(rule string, why gateway.Reason) string {
	if rule != "" {
		return rule
	}
	return string(why)
}
