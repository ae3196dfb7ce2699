package run

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/egresslog"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise"
	"github.com/carboy/carboy/internal/supervise/tools"
)

// A bottle's process asks people at the user's queue: about a value that the gateway
// holds back, and about routes, which the agent proposes with its tools. What was
// approved is in force for the bottle's life, also when it was frozen meanwhile, and
// in no other bottle.

// approver passes the questions of a bottle's gateway to the run's approvals.
type approver struct {
	approvals atomic.Pointer[approvals] // nil: there is no run yet, or none any more
	tools     http.Handler
}

func newApprover(build string, forge tools.Forge) *approver {
	p := &approver{}
	if forge != nil {
		forge.Guard(p.mayPost)
	}
	p.tools = tools.New(p, tools.Options{Name: gateway.SuperviseName, Version: build, Forge: forge})
	return p
}

// Ask implements gateway.Asker.
func (p *approver) Ask(ctx context.Context, h gateway.Held) gateway.Answer {
	a := p.approvals.Load()
	if a == nil {
		return gateway.Answer{Message: fault.ErrNobody.Error()}
	}
	return a.value(ctx, h)
}

// Routes implements tools.Host.
func (p *approver) Routes(context.Context) (string, error) {
	a := p.approvals.Load()
	if a == nil {
		return "", fault.ErrNobody
	}
	b, err := a.s.sandbox.gw.Allowlist()
	return string(b), err
}

// Allow implements tools.Host.
func (p *approver) Allow(ctx context.Context, r tools.Route) (tools.Decision, error) {
	a := p.approvals.Load()
	if a == nil {
		return tools.Decision{}, fault.ErrNobody
	}
	return a.allow(ctx, r)
}

// Block implements tools.Host.
func (p *approver) Block(ctx context.Context, r tools.Route) (tools.Decision, error) {
	a := p.approvals.Load()
	if a == nil {
		return tools.Decision{}, fault.ErrNobody
	}
	return a.block(ctx, r)
}

// Done implements tools.Host.
func (p *approver) Done(_ context.Context, status tools.Status, summary string) error {
	a := p.approvals.Load()
	if a == nil {
		return fault.ErrNobody
	}
	return a.signal(status, summary)
}

// mayPost refuses a text that the agent writes to its forge if the gateway would not let it
// leave in a request.
func (p *approver) mayPost(_ context.Context, text string) error {
	a := p.approvals.Load()
	if a == nil {
		return errors.New("the bottle's run is over, so nothing can be scanned for its secrets")
	}
	return a.s.sandbox.gw.CheckText(text, "text for the forge")
}

// approvals holds the proposals of one run and their answers.
type approvals struct {
	s     *Session
	queue *supervise.Queue
	asker *supervise.Asker
	lock  *store.BottleLock // nil: what is decided is gone with the run

	mu      sync.Mutex
	decided decided
	records map[supervise.ID]supervise.Record
	signals []receipt.Signal
	left    int // records that did not fit
	over    bool
	pending sync.WaitGroup // calls of ask that have not returned

	refused, allowed past
}

// decided is the content of decided.json: the decisions in force for the bottle's life.
type decided struct {
	Schema string `json:"schema"`
	// Key keys the digests of values.
	Key     []byte                 `json:"key"`
	Values  []decidedValue         `json:"values,omitempty"`
	Added   []supervise.RouteAdded `json:"added,omitempty"`
	Blocked []routes.Description   `json:"blocked,omitempty"`
}

// decidedValue lets a value pass, or be masked, on one route to one host.
type decidedValue struct {
	Host   string                `json:"host"` // with the port
	Route  string                `json:"route"`
	Digest string                `json:"digest"`
	Action supervise.TokenAction `json:"action"`
}

const (
	decidedKind = "bottle-decided"
	keyBytes    = 32
	maxValues   = 1000
	maxAdded    = 500
)

// readDecided returns the decisions of a bottle's earlier runs.
func readDecided(l *store.BottleLock) (d decided, err error) {
	d = decided{Schema: store.Schema(decidedKind), Key: make([]byte, keyBytes)}
	_, _ = rand.Read(d.Key) // never fails
	if l == nil {
		return d, nil
	}
	data, err := l.Decided()
	if err != nil || data == nil {
		return d, err
	}
	d = decided{}
	if err := store.Decode("decided.json", decidedKind, data, &d); err != nil {
		return d, err
	}
	if len(d.Key) != keyBytes {
		return d, errors.New("decided.json: field \"key\" has not 32 bytes")
	}
	if _, err := d.routes(); err != nil {
		return d, fmt.Errorf("decided.json: field \"added\": %w", err)
	}
	return d, nil
}

// routes returns the added routes.
func (d *decided) routes() ([]policy.Route, error) {
	var out []policy.Route
	for _, r := range d.Added {
		rs, err := supervise.EgressAllow{Routes: []supervise.RouteAdded{r}}.Policy()
		if err != nil {
			return nil, err
		}
		for _, r := range rs {
			out = append(out, r.WithRule("approved: "+r.String()))
		}
	}
	return out, nil
}

// over returns base with the added routes and without the blocked ones.
func (d *decided) over(base []policy.Route) ([]policy.Route, error) {
	added, err := d.routes()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(append(slices.Clone(base), added...), func(r policy.Route) bool {
		return slices.ContainsFunc(d.Blocked, func(b routes.Description) bool { return sameRoute(b, routes.Describe(r)) })
	}), nil
}

func sameRoute(a, b routes.Description) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && string(x) == string(y)
}

// openApprovals opens the queue and adds the earlier decisions to the plan.
func (s *Session) openApprovals() error {
	if s.approver == nil {
		return nil
	}
	a := &approvals{s: s, records: map[supervise.ID]supervise.Record{}}
	name := string(s.run.ID())
	var rules *supervise.Policy
	var err error
	if g := s.o.Grant; g != nil {
		a.lock, name = g.Lock, g.Slug
	}
	if a.decided, err = readDecided(a.lock); err != nil {
		return fmt.Errorf("what was decided for bottle %s can't be read: %w; destroy the bottle, and start another", name, err)
	}
	if s.o.Policy != "" {
		conf, err := store.ConfigDir(s.c.Opened.Config, s.c.Env)
		if err != nil {
			return err
		}
		if rules, err = supervise.LoadPolicy(s.o.Policy, conf, string(s.Workspace.Path)); err != nil {
			return err
		}
	}
	if a.queue, err = s.c.OpenQueue(s.Redactor); err != nil {
		return fmt.Errorf("%w; without it nobody can be asked: mend it, or say supervise: false", err)
	}
	a.asker, err = a.queue.Asker(supervise.AskerOptions{Bottle: name, Run: s.run.ID(), Who: s.who(), Timeout: s.o.AskFor, Policy: rules, Waiting: a.waits})
	if err == nil {
		s.Plan.AskKey, s.base = a.decided.Key, s.Plan.Routes
		s.Plan.Routes, err = a.decided.over(s.base)
	}
	if err != nil {
		if a.asker != nil {
			a.asker.Close()
		}
		a.queue.Close()
		return err
	}
	s.approvals = a
	s.cleanup = append(s.cleanup, a.close)
	return nil
}

// close withdraws the open proposals. Idempotent.
func (a *approvals) close() {
	a.mu.Lock()
	over := a.over
	a.over = true
	a.mu.Unlock()
	if over {
		return
	}
	a.s.approver.approvals.CompareAndSwap(a, nil)
	err := a.asker.Close()
	a.pending.Wait()
	if err := errors.Join(err, a.queue.Close()); err != nil {
		a.s.c.Log.Warn("the queue could not be left in order", "err", err)
	}
}

// waits sends the event that a proposal waits for an answer.
func (a *approvals) waits(p supervise.Proposal) {
	a.s.events.send(plan.Event{Kind: "waiting", Text: "waiting for a person: carboy supervise show " + string(p.ID)})
}

// draft names the agent's tool and its reason for a proposal.
func draft(tool, why string) supervise.Draft { return supervise.Draft{Tool: tool, Why: why} }

// ask proposes p, waits for the answer and calls apply after approval.
func ask[P supervise.Payload](ctx context.Context, a *approvals, p P, d supervise.Draft, apply func(supervise.Approval[P]) error) (supervise.Outcome, error) {
	a.mu.Lock()
	if a.over {
		a.mu.Unlock()
		return supervise.Outcome{}, fault.ErrNobody
	}
	a.pending.Add(1)
	a.mu.Unlock()
	defer a.pending.Done()
	o, err := supervise.Ask(ctx, a.asker, p, d, supervise.EffectFunc[P](func(_ context.Context, ok supervise.Approval[P]) error { return apply(ok) }))
	if o.Proposal.ID != "" {
		e := supervise.Entry{Proposal: o.Proposal}
		switch {
		case err != nil && o.Answer.Verdict == "":
			e.Effect = err.Error()
		case o.Allowed():
			e.Effect = "done"
		}
		if o.Answer.Verdict != "" {
			e.Answer = &o.Answer
		}
		a.record(e)
	}
	return o, err
}

func (a *approvals) record(e supervise.Entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, known := a.records[e.Proposal.ID]; !known && len(a.records) >= receipt.MaxProposals {
		a.left++
		// What was allowed is not to be hidden behind what was not.
		last := supervise.ID("")
		for id, r := range a.records {
			if !r.Verdict.Allows() && id > last {
				last = id
			}
		}
		if last == "" || e.Answer == nil || !e.Answer.Verdict.Allows() {
			return
		}
		delete(a.records, last)
	}
	a.records[e.Proposal.ID] = e.Record()
}

// value decides about a value that the gateway holds back.
func (a *approvals) value(ctx context.Context, h gateway.Held) gateway.Answer {
	key := decidedValue{Host: fmt.Sprintf("%s:%d", h.Host, h.Port), Route: h.Rule, Digest: h.Digest}
	if act, ok := a.remembered(key); ok {
		return gateway.Answer{Ruling: rulings[act]}
	}
	found := h.What
	if h.Secret != "" {
		found += " " + h.Secret
	}
	shown := "not shown"
	if h.Transform != "" && h.Transform != "plain" {
		shown += ", written as " + h.Transform
	}
	p := supervise.EgressTokenAllow{
		Value: h.Digest, Length: h.Length, Shown: fault.Fit(shown, 256), Rule: fault.Fit(found, 128), Place: fault.Fit(h.Place, 256), Host: fault.Fit(key.Host, 300),
		Route: fault.Fit(h.Rule, 1024), Action: supervise.TokenAllow, Method: fault.Fit(h.Method, 64), Path: fault.Fit(h.Path, 4096),
	}
	o, err := ask(ctx, a, p, draft("a request", ""), func(ok supervise.Approval[supervise.EgressTokenAllow]) error {
		key.Action = ok.Payload().Action
		return a.change(func(d *decided) error {
			if len(d.Values) >= maxValues {
				return fmt.Errorf("%d values were decided about, which are all that there may be", maxValues)
			}
			if !slices.ContainsFunc(d.Values, func(v decidedValue) bool {
				return v.Host == key.Host && v.Route == key.Route && v.Digest == key.Digest
			}) {
				d.Values = append(d.Values, key)
			}
			return nil
		})
	})
	if err != nil {
		return gateway.Answer{Message: "nobody could be asked: " + a.told(err.Error())}
	}
	if !o.Allowed() {
		return gateway.Answer{Message: a.message(o)}
	}
	act, _ := a.remembered(key)
	return gateway.Answer{Ruling: rulings[act], Message: a.message(o)}
}

var rulings = map[supervise.TokenAction]gateway.Ruling{supervise.TokenAllow: gateway.RulingPass, supervise.TokenRedact: gateway.RulingMask}

func (a *approvals) remembered(key decidedValue) (supervise.TokenAction, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, v := range a.decided.Values {
		if v.Host == key.Host && v.Route == key.Route && v.Digest == key.Digest {
			return v.Action, true
		}
	}
	return "", false
}

// change decides something more, for the bottle's life: it is on disk before it is
// in force.
func (a *approvals) change(f func(*decided) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return fault.ErrNobody
	}
	d := a.decided
	d.Values, d.Added, d.Blocked = slices.Clone(d.Values), slices.Clone(d.Added), slices.Clone(d.Blocked)
	if err := f(&d); err != nil {
		return err
	}
	if a.lock != nil {
		data, err := store.Encode(decidedKind, &d)
		if err == nil {
			err = a.lock.WriteDecided(data)
		}
		if err != nil {
			return fmt.Errorf("keep what was decided: %w", err)
		}
	}
	a.decided = d
	return nil
}

// told returns s as it may be shown inside: masked and safe to print.
func (a *approvals) told(s string) string { return safetext.String(a.s.Redactor.String(s), 600) }

// message returns the outcome as a message to the agent.
func (a *approvals) message(o supervise.Outcome) string {
	var w string
	switch o.Answer.Verdict {
	case supervise.Approved:
		w = "Approved."
	case supervise.Modified:
		w = "Approved in another form than was proposed."
	case supervise.Expired:
		w = "Nobody answered in time, which is a refusal. Go on without."
	case supervise.Withdrawn:
		w = "It was withdrawn, which is a refusal."
	default:
		w = "Rejected. Go on without."
	}
	if n := o.Answer.Note; n != "" && (o.Answer.Verdict.Allows() || o.Answer.Verdict == supervise.Rejected) {
		w += " Whoever decided says: “" + a.told(n) + "”."
	}
	return w
}

// ownNames is the domain of carboy's own names.
const ownNames = "carboy.internal"

// wanted returns the routes that the agent asks for.
func (a *approvals) wanted(r tools.Route) ([]policy.Route, error) {
	text := []byte(r.YAML)
	if r.YAML == "" {
		type match struct {
			Paths   []routes.ValueDescription `json:"paths,omitempty"`
			Methods []string                  `json:"methods,omitempty"`
		}
		want := map[string]any{"host": r.Host}
		if len(r.Paths)+len(r.Methods) > 0 {
			m := match{Methods: r.Methods}
			for _, p := range r.Paths {
				m.Paths = append(m.Paths, routes.ValueDescription{Type: "prefix", Value: p})
			}
			want["matches"] = []match{m}
		}
		var err error
		if text, err = json.Marshal(map[string]any{"routes": []any{want}}); err != nil {
			return nil, err
		}
	}
	f, err := routes.Parse("egress-allow", text)
	if err != nil {
		return nil, errors.New(a.told(err.Error()))
	}
	for _, r := range f.Routes {
		if name := r.Host(); name == ownNames || strings.HasSuffix(name, "."+ownNames) {
			return nil, fmt.Errorf("%s is a name of carboy's own, of which no route speaks", safetext.String(name, 260))
		}
	}
	return f.Routes, nil
}

// allow proposes the routes that the agent asks for and that are not in force. It may
// repeat those that are, in the form in which it sees them.
func (a *approvals) allow(ctx context.Context, r tools.Route) (tools.Decision, error) {
	rs, err := a.wanted(r)
	if err != nil {
		return tools.Decision{}, err
	}
	table, before := a.inForce()
	rs = slices.DeleteFunc(rs, func(r policy.Route) bool {
		return slices.ContainsFunc(table.Routes(), func(b policy.Route) bool {
			return sameRoute(routes.Describe(b), routes.Describe(r)) || sameRoute(gateway.Shown(b), routes.Describe(r))
		})
	})
	if len(rs) == 0 {
		return tools.Decision{Message: "This route is in force already."}, nil
	}
	p, err := supervise.NewEgressAllow(rs, before, a.wouldAllow(table, rs))
	if err != nil {
		return tools.Decision{}, errors.New(a.told(err.Error()))
	}
	var now []string
	o, err := ask(ctx, a, p, draft("egress-allow", r.Reason), func(ok supervise.Approval[supervise.EgressAllow]) error {
		added := ok.Payload().Routes
		for _, r := range added {
			now = append(now, r.Host)
		}
		return a.reroute(ok.Outcome(), func(d *decided) error {
			for _, r := range added {
				rs, err := supervise.EgressAllow{Routes: []supervise.RouteAdded{r}}.Policy()
				if err != nil {
					return err
				}
				desc := routes.Describe(rs[0])
				d.Blocked = slices.DeleteFunc(d.Blocked, func(b routes.Description) bool { return sameRoute(b, desc) })
				have := slices.ContainsFunc(d.Added, func(x supervise.RouteAdded) bool {
					return sameRoute(routes.Description{Host: x.Host, Matches: x.Matches, Git: x.Git}, desc)
				})
				if !have {
					d.Added = append(d.Added, r)
				}
			}
			if len(d.Added) > maxAdded {
				return fmt.Errorf("%d routes were added, which are all that there may be", maxAdded)
			}
			return nil
		})
	})
	return a.decision(o, err, "The request can be made again now: "+strings.Join(now, ", ")+" may be reached.")
}

// block proposes to remove the routes to hosts.
func (a *approvals) block(ctx context.Context, r tools.Route) (tools.Decision, error) {
	hosts := []string{r.Host}
	if r.YAML != "" {
		hosts = nil
		rs, err := a.wanted(r)
		if err != nil {
			return tools.Decision{}, err
		}
		for _, r := range rs {
			hosts = append(hosts, r.String())
		}
	}
	table, before := a.inForce()
	var gone []routes.Description
	rules := map[string]bool{}
	for _, host := range hosts {
		n := len(gone)
		for i, b := range before {
			if strings.EqualFold(b.Host, strings.TrimSpace(host)) && !slices.ContainsFunc(gone, func(g routes.Description) bool { return sameRoute(g, b) }) {
				gone = append(gone, b)
				rules[table.Routes()[i].Rule()] = true
			}
		}
		if len(gone) == n && !slices.ContainsFunc(gone, func(g routes.Description) bool { return strings.EqualFold(g.Host, host) }) {
			return tools.Decision{}, fmt.Errorf("no route in force has the host %s; list-egress-routes tells those that are", strconv.Quote(safetext.String(host, 100)))
		}
	}
	o, err := ask(ctx, a, supervise.EgressBlock{Routes: gone, Before: before, Past: a.didAllow(rules)}, draft("egress-block", r.Reason), func(ok supervise.Approval[supervise.EgressBlock]) error {
		return a.reroute(ok.Outcome(), func(d *decided) error {
			for _, r := range ok.Payload().Routes {
				d.Added = slices.DeleteFunc(d.Added, func(x supervise.RouteAdded) bool {
					return sameRoute(routes.Description{Host: x.Host, Matches: x.Matches, Git: x.Git}, r)
				})
				if !slices.ContainsFunc(d.Blocked, func(b routes.Description) bool { return sameRoute(b, r) }) {
					d.Blocked = append(d.Blocked, r)
				}
			}
			return nil
		})
	})
	return a.decision(o, err, "It may not be reached any more.")
}

func (a *approvals) decision(o supervise.Outcome, err error, done string) (tools.Decision, error) {
	if err != nil {
		return tools.Decision{}, errors.New("nothing was decided: " + a.told(err.Error()))
	}
	d := tools.Decision{Proposal: string(o.Proposal.ID), Verdict: string(o.Answer.Verdict), Message: a.message(o)}
	if o.Allowed() {
		d.Message += " " + a.told(done)
	}
	return d, nil
}

// inForce returns the routes in force.
func (a *approvals) inForce() (*policy.Table, []routes.Description) {
	in := &a.s.inside
	in.mu.Lock()
	defer in.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	rs, err := a.decided.over(a.s.base)
	if err != nil {
		return nil, nil
	}
	table, err := policy.Compile(rs...)
	if err != nil {
		return nil, nil
	}
	var out []routes.Description
	for _, r := range rs {
		out = append(out, routes.Describe(r))
	}
	return table, out
}

// reroute stores a decision about routes and puts the new routes in force.
func (a *approvals) reroute(o supervise.Outcome, f func(*decided) error) error {
	s := a.s
	in := &s.inside
	in.mu.Lock()
	defer in.mu.Unlock()
	var table *policy.Table
	err := a.change(func(d *decided) error {
		if err := f(d); err != nil {
			return err
		}
		rs, err := d.over(s.base)
		if err == nil {
			table, err = policy.Compile(rs...)
		}
		return err
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), host.AppendIn)
	defer cancel()
	ev := s.event(audit.Routes, audit.Allowed)
	ev.Actor = audit.ByUser(o.Answer.By.UID)
	ev.Subject = s.text(string(o.Proposal.Kind))
	ev.Text = s.text(fmt.Sprintf("%d routes, by proposal %s", len(table.Routes()), o.Proposal.ID))
	ev.Digests = []audit.Digest{{Of: "proposal", Sum: o.Proposal.Digest}}
	ev.Sync = true
	if _, err := s.c.Audit.Append(ctx, ev); err != nil {
		return err
	}
	s.sandbox.gw.SetRoutes(table, in.Creds.Of, in.Secrets)
	s.egressLog.Put(egresslog.Entry{Time: now(), Kind: egresslog.Routes, Detail: fmt.Sprintf("%d routes, by proposal %s", len(table.Routes()), o.Proposal.ID)})
	s.events.send(plan.Event{Kind: "routes", Text: fmt.Sprintf("%d routes are in force, by proposal %s", len(table.Routes()), o.Proposal.ID)})
	return nil
}

// decidedOver compiles base with the decisions about routes. inside.mu is held.
func (s *Session) decidedOver(base []policy.Route) (*policy.Table, error) {
	if s.approvals != nil {
		s.approvals.mu.Lock()
		defer s.approvals.mu.Unlock()
		var err error
		if base, err = s.approvals.decided.over(base); err != nil {
			return nil, err
		}
	}
	return policy.Compile(base...)
}

// signal records the agent's own report of its work.
func (a *approvals) signal(status tools.Status, summary string) error {
	s := a.s
	summary = s.Redactor.String(summary)
	a.mu.Lock()
	full := len(a.signals) >= receipt.MaxSignals
	if !full {
		a.signals = append(a.signals, receipt.Signal{Status: string(status), Summary: safetext.String(summary, receipt.MaxSummary), At: now()})
	}
	a.mu.Unlock()
	if full {
		return fmt.Errorf("%d were taken down, which are all that there may be", receipt.MaxSignals)
	}
	s.note(audit.Signal, audit.Noted, "signal-done", string(status), safetext.String(summary, 300))
	s.events.send(plan.Event{Kind: "signal", Text: "the agent says that its work is " + string(status) + ": " + safetext.String(summary, 300)})
	return nil
}

// account closes a and returns the receipt's part.
func (a *approvals) account() *receipt.Proposals {
	a.close()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.records)+len(a.signals) == 0 {
		return nil
	}
	p := &receipt.Proposals{Total: int64(len(a.records) + a.left), List: []receipt.Proposal{}, Signals: a.signals}
	for _, id := range slices.Sorted(maps.Keys(a.records)) {
		r := a.records[id]
		one := receipt.Proposal{
			ID: string(r.ID), Kind: string(r.Kind), Title: r.Title, Digest: r.Digest.String(), Created: r.Created, Verdict: string(r.Verdict), Note: r.Note, Effect: r.Effect,
		}
		if r.By != nil {
			one.By = r.By.String()
		}
		if !r.At.IsZero() {
			at := r.At
			one.At = &at
		}
		if r.Modified != (supervise.Digest{}) {
			one.Modified = r.Modified.String()
		}
		p.List = append(p.List, one)
	}
	return p
}
