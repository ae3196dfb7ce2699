package carboy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/stamp"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/visible"
)

// account completes what the receipt says of the command. cause is what failed,
// if anything did.
func (s *session) account(cause error) {
	if s.rec.Exit.Reason == "" {
		s.rec.Exit = failure(cause)
	}
	defer s.endNetLog() // after the last of the gateway's
	if s.asks != nil {
		s.rec.Proposals = s.asks.account()
	}
	if s.vessel != nil {
		s.vessel.closeGateway()
		sum := s.vessel.gw.Summary()
		s.rec.Network = network(sum)
		s.redactNetwork()
		s.rec.Limits.Hit = append(s.rec.Limits.Hit, gatewayLimits(sum)...)
		s.rec.Notes = append(s.rec.Notes, (&credentials{of: s.had}).warnings()...)
	}
}

// answeredFile is in the directory of a run whose caller knows how it ended,
// while its records are being completed. Who asks for them then waits.
const answeredFile = ".answered"

func (s *session) answered() {
	if f, err := os.OpenFile(s.run.Path(answeredFile), os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
		f.Close()
	}
}

// settleIn bounds the wait for the records of a run that was answered: audit
// log, receipt, the end of the bottle.
const settleIn = 30 * time.Second

// settled is m, or, when its run has been answered for and is being recorded, m
// as it is after that.
func (c *Client) settled(ctx context.Context, m store.Meta) (store.Meta, error) {
	if m.State.Over() {
		return m, nil
	}
	if _, err := os.Lstat(filepath.Join(c.store.RunDir(m.ID), answeredFile)); err != nil {
		return m, nil
	}
	ctx, cancel := context.WithTimeout(ctx, settleIn)
	defer cancel()
	if err := c.store.Await(ctx, m.ID); err != nil {
		return m, fmt.Errorf("wait for the records of run %s: %w", m.ID, err)
	}
	return c.store.Get(m.ID)
}

// record writes what happened: receipt, state, audit log.
func (s *session) record() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s.endGit(ctx)
	s.endTrace()
	s.endExecs()
	stamp.Mark("trace ended")
	pos, aerr := s.noteEnd(ctx)
	stamp.Mark("end noted")
	s.rec.Audit = pos
	if aerr != nil {
		s.rec.Notes = append(s.rec.Notes, "The end of this run could not be recorded in the audit log completely: "+visible.String(aerr.Error(), 300))
	}
	// While the run is not over, the next command looks for what a dead carboy
	// left; afterwards nobody does.
	derr := s.dropPrivate()
	stamp.Mark("nothing left")
	meta, merr := s.settle(ctx)
	s.rec.Started, s.rec.Ended = meta.Started, meta.Ended
	err := errors.Join(aerr, derr, merr, s.run.WriteReceipt(ctx, &s.rec))
	stamp.Mark("receipt written")
	if s.o.Answer != nil {
		os.Remove(s.run.Path(answeredFile))
	}
	return err
}

// dropPrivate ends the bottle and removes what only it needed.
func (s *session) dropPrivate() error {
	var errs []error
	if s.bottle != nil {
		errs = append(errs, s.bottle.Close())
	}
	if s.closeControl != nil {
		s.closeControl()
	}
	for _, dir := range []string{"scratch", "base"} {
		errs = append(errs, removeTree(s.run.Path(dir)))
	}
	return errors.Join(errs...)
}

// removeTree removes a copy of a workspace, in which directories may be
// read-only.
func removeTree(dir string) error {
	if os.RemoveAll(dir) == nil {
		return nil
	}
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			os.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// redactNetwork takes out of the account what the command put into it: a name
// that was asked for, refused or not, may spell a secret that it was given.
func (s *session) redactNetwork() {
	n := &s.rec.Network
	for i := range n.Names {
		n.Names[i].Name = s.redactor.String(n.Names[i].Name)
	}
	for i := range n.Connections {
		c := &n.Connections[i]
		c.Name, c.Reason = s.redactor.String(c.Name), s.redactor.String(c.Reason)
	}
	for i := range n.Requests {
		r := &n.Requests[i]
		r.Name, r.Reason = s.redactor.String(r.Name), s.redactor.String(r.Reason)
	}
	for i := range n.Found {
		f := &n.Found[i]
		// A header's name is the command's own choice, too.
		f.Name, f.Place = s.redactor.String(f.Name), s.redactor.String(f.Place)
	}
}

// failure is the exit of a run in which the command never ran.
func failure(err error) receipt.Exit {
	x := receipt.Exit{Code: exitcode.Refused, Reason: receipt.Failed}
	if err != nil {
		x.Error = err.Error()
	}
	switch {
	case errors.Is(err, bottle.ErrNotFound):
		x.Code = exitcode.NotFound
	case errors.Is(err, bottle.ErrNotExecutable):
		x.Code = exitcode.NotExecutable
	}
	return x
}

// settle moves the run to its last state.
func (s *session) settle(ctx context.Context) (store.Meta, error) {
	changes := store.NoChanges
	if s.rec.Changes != nil && (s.rec.Changes.Total > 0 || len(s.rec.Changes.Incomplete) > 0) {
		changes = store.Pending
	}
	m, err := s.run.Meta()
	if err == nil && m.State == store.Running && s.rec.Exit.Reason != receipt.Failed {
		return s.run.Finish(ctx, s.rec.Exit.Code, changes)
	}
	return s.run.Fail(ctx, s.rec.Exit.Code, s.rec.Exit.Error, changes)
}

// summarize is the receipt's account of a set of changes.
func summarize(set *change.Set) *receipt.Changes {
	c := &receipt.Changes{Total: int64(len(set.Changes)), Incomplete: set.Incomplete}
	for i := range set.Changes {
		ch := &set.Changes[i]
		switch ch.Kind {
		case change.Add:
			c.Added++
		case change.Modify:
			c.Modified++
		case change.Delete:
			c.Deleted++
		case change.Mode:
			c.Mode++
		case change.Retype:
			c.Retyped++
		}
		if len(ch.Protected) > 0 {
			c.Protected++
		}
		if ch.BaseMoved != "" {
			c.BaseMoved++
		}
		if ch.Unlandable != "" {
			c.Unlandable++
		}
		c.List = append(c.List, oneChange(ch))
	}
	// What git keeps for itself comes last: people look for their own files.
	slices.SortStableFunc(c.List, func(a, b receipt.Change) int {
		return cmp.Compare(rank(a), rank(b))
	})
	c.List = cut(c.List, receipt.MaxChanges)
	return c
}

// rank orders the receipt's list: what needs a person's eye, files, git's own.
func rank(c receipt.Change) int {
	switch {
	case len(c.Protected) > 0 || c.BaseMoved != "":
		return 0
	case c.Path == ".git" || strings.HasPrefix(string(c.Path), ".git/"):
		return 2
	}
	return 1
}

func oneChange(ch *change.Change) receipt.Change {
	out := receipt.Change{
		Path: store.Raw(ch.Path), Kind: string(ch.Kind), Type: string(ch.Type), Size: ch.Size,
		BaseMoved: ch.BaseMoved, Unlandable: ch.Unlandable,
	}
	for _, r := range ch.Protected {
		out.Protected = append(out.Protected, r.Why)
	}
	return out
}

// network is the receipt's account of what the gateway saw: refused first.
func network(g gateway.Summary) receipt.Network {
	n := receipt.Network{
		NamesTotal: int64(len(g.Names)), ConnectionsTotal: int64(len(g.Conns)),
		Totals: receipt.Totals{BytesUp: g.BytesUp, BytesDown: g.BytesDown, Dropped: int64(g.Packets.Lost)},
	}
	for _, c := range g.Packets.Refused {
		n.Totals.Dropped += int64(c)
	}
	for _, x := range g.Names {
		count(x.Allowed, int64(x.Count), &n.Totals.NamesAllowed, &n.Totals.NamesRefused)
		n.Names = append(n.Names, receipt.Name{Name: x.Name, Verdict: verdict(x.Allowed), Rule: rule(x.Rule, x.Reason), Count: int64(x.Count)})
	}
	for _, x := range g.Conns {
		count(x.Allowed, int64(x.Count), &n.Totals.ConnectionsAllowed, &n.Totals.ConnectionsRefused)
		n.Connections = append(n.Connections, receipt.Connection{
			Name: x.Name, Port: x.Port, Proto: x.Protocol, Verdict: verdict(x.Allowed), Rule: x.Rule,
			Reason: because(x.Reason, x.Detail), Count: int64(x.Count), BytesUp: x.Up, BytesDown: x.Down,
		})
	}
	n.Requests, n.RequestsTotal = []receipt.Request{}, int64(len(g.Requests))
	used := map[string]int64{}
	for _, x := range g.Requests {
		count(x.Allowed, int64(x.Count), &n.Totals.RequestsAllowed, &n.Totals.RequestsRefused)
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
	n.Names = cut(n.Names, receipt.MaxNames)
	n.Connections = cut(n.Connections, receipt.MaxConnections)
	slices.SortStableFunc(n.Requests, func(a, b receipt.Request) int { return refusedFirst(a.Verdict, b.Verdict) })
	slices.SortStableFunc(n.Found, func(a, b receipt.Found) int { return blockedFirst(a.Action, b.Action) })
	n.Requests = cut(n.Requests, receipt.MaxRequests)
	n.Credentials = cut(n.Credentials, receipt.MaxCredentials)
	n.Found = cut(n.Found, receipt.MaxFound)
	return n
}

func because(r gateway.Reason, detail string) string {
	if detail != "" {
		return fmt.Sprintf("%s: %s", r, detail)
	}
	return string(r)
}

func count(allowed bool, n int64, yes, no *int64) {
	if allowed {
		*yes += n
	} else {
		*no += n
	}
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

func cut[T any](s []T, n int) []T { return s[:min(len(s), n)] }

func gatewayLimits(g gateway.Summary) []receipt.Hit {
	var out []receipt.Hit
	for _, l := range g.Limits {
		out = append(out, receipt.Hit{Limit: string(l.Limit), Count: int64(l.Count)})
	}
	return out
}

// rule is what decided: the route's own words, or why there was none.
func rule(rule string, why gateway.Reason) string {
	if rule != "" {
		return rule
	}
	return string(why)
}
