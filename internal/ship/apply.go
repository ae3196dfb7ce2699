package ship

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/hosts"
	"github.com/carboy/carboy/internal/ship/module"
	"github.com/carboy/carboy/internal/ship/plan"
	"github.com/carboy/carboy/internal/ship/remote"
	"github.com/carboy/carboy/internal/ship/reviews"
)

// Result is the result of one plan.
type Result struct {
	Host    string  `json:"host"`
	Module  string  `json:"module"`
	Commit  string  `json:"commit"`
	Plan    string  `json:"plan"` // its digest
	Outcome Outcome `json:"outcome"`
	Why     string  `json:"why,omitempty"`
	// Evidence says why it was not applied or not healthy: the last output of Docker, the
	// service and its healthcheck, redacted and bounded.
	Evidence []string `json:"evidence,omitempty"`
	Timing   Timing   `json:"timing"`

	recorded bool  // the host has recorded the outcome
	auditErr error // from auditing its steps
}

// order is a checked plan with everything that its host needs. [Engine.judge] makes it.
type order struct {
	Made
	all       *hosts.File
	host      *hosts.Host
	compose   []byte
	files     [][]byte // contents of Source.Files
	back      []byte   // the previous compose file, with its image by digest
	approvals []approval.Signed
	reviews   []reviews.Approval
	signed    []approval.Signed // all that Apply was given
	waves     [][]string
}

// Apply applies plans of one module and commit, one for each host, wave by wave. It stops
// after a wave in which a plan fails. It returns the results of the plans that it sent to
// their hosts, in order. The error is an [Error] with the most severe outcome of the wave,
// if one is neither [Applied] nor [Nothing], or matches [ErrUnknown].
//
// All plans are checked before the first connection. Hosts, dates and approvals are checked
// again before each later wave, because a wave may take hours. Cancelling ctx ends the
// waiting, but not the work that a host has begun.
func (e *Engine) Apply(ctx context.Context, plans [][]byte, approvals []approval.Signed) ([]Result, error) {
	began := time.Now()
	orders, err := e.judge(ctx, plans, approvals)
	if err != nil {
		return nil, errors.Join(err, e.NoteRefusal(ctx, plans, err))
	}
	source := time.Since(began)
	var results []Result
	for len(orders) > 0 {
		wave := orders[0].Wave
		n := slices.IndexFunc(orders, func(o *order) bool { return o.Wave != wave })
		if n < 0 {
			n = len(orders)
		}
		if len(results) > 0 {
			if err := e.judgeAgain(ctx, orders[:n], approvals); err != nil {
				return results, errors.Join(err, e.NoteRefusal(ctx, [][]byte{orders[0].Bytes}, err))
			}
		}
		done := make([]Result, n)
		errs := make([]error, n)
		var g errgroup.Group
		for i, o := range orders[:n] {
			g.Go(func() error {
				done[i] = Result{Host: o.host.Name, Module: o.Module, Commit: o.Commit, Plan: o.Digest, Timing: Timing{Source: source}}
				errs[i] = e.applyOne(ctx, o, &done[i])
				return nil
			})
		}
		g.Wait()
		results = append(results, done...)
		if err := worst(errs); err != nil {
			return results, err
		}
		orders = orders[n:]
	}
	return results, nil
}

// Judge returns the error with which Apply would refuse the plans before any connection,
// nil if it would begin. Approvals are checked last: if the error matches
// [approval.ErrMismatch] or is [Destructive], another approval can resolve it.
func (e *Engine) Judge(ctx context.Context, plans [][]byte, approvals []approval.Signed) error {
	_, err := e.judge(ctx, plans, approvals)
	return err
}

// NoteRefusal writes the refusal of plans to the audit log, as Apply does. The error is
// from the log.
func (e *Engine) NoteRefusal(ctx context.Context, plans [][]byte, why error) error {
	rule := Refused
	var x *Error
	if errors.As(why, &x) {
		rule = x.Outcome
	}
	if len(plans) == 0 {
		plans = [][]byte{nil}
	}
	p, digest, err := plan.Decode(plans[0])
	if err != nil {
		p, digest = &plan.Plan{Module: "a plan that cannot be read"}, plan.Digest(plans[0])
	}
	return e.auditEvent(ctx, audit.ShipApply, audit.Refused, p, digest, string(rule), why.Error())
}

// worst returns the most severe error, nil if all are nil.
func worst(errs []error) error {
	rank := func(err error) int {
		var x *Error
		switch {
		case err == nil:
			return 0
		case errors.As(err, &x) && x.Outcome == RollbackFailed:
			return 9
		case errors.Is(err, ErrUnknown):
			return 8
		case errors.As(err, &x) && x.Outcome == RolledBack:
			return 7
		case errors.As(err, &x) && x.Outcome == Failed:
			return 6
		}
		return 5
	}
	return slices.MaxFunc(errs, func(a, b error) int { return cmp.Compare(rank(a), rank(b)) })
}

// judge checks plans without connecting to any host, and returns them in order of waves.
func (e *Engine) judge(ctx context.Context, plans [][]byte, signed []approval.Signed) ([]*order, error) {
	if len(plans) == 0 || len(plans) > approval.MaxPlans {
		return nil, fail(Refused, "", "", "between 1 and %d plans can be applied at once", approval.MaxPlans)
	}
	var orders []*order
	for _, b := range plans {
		p, digest, err := plan.Decode(b)
		if err != nil {
			return nil, &Error{Mismatch, "", err, "make a new plan"}
		}
		orders = append(orders, &order{Made: Made{p, b, digest}})
	}
	one := orders[0]
	var allHosts []string
	for _, o := range orders {
		switch {
		case o.Module != one.Module:
			return nil, fail(Refused, "", "apply them one after another", "plans of several modules: %s and %s", one.Module, o.Module)
		case o.Commit != one.Commit || o.Kind != one.Kind:
			return nil, fail(Refused, "", "make new plans", "plans of several commits or kinds")
		case slices.Contains(allHosts, o.Host.Name):
			return nil, fail(Refused, "", "", "two plans for %s", o.Host.Name)
		}
		allHosts = append(allHosts, o.Host.Name)
	}
	slices.SortStableFunc(orders, func(a, b *order) int { return cmp.Compare(a.Wave, b.Wave) })
	now := time.Now()
	for _, o := range orders {
		if err := e.judgeHost(o, now); err != nil {
			return nil, err
		}
	}
	if err := e.judgeSource(ctx, orders); err != nil {
		return nil, err
	}
	if err := e.judgeWaves(orders); err != nil {
		return nil, err
	}
	for _, o := range orders {
		if err := e.judgeUse(o); err != nil {
			return nil, err
		}
		if err := e.judgeApprovals(ctx, o, signed, now); err != nil {
			return nil, err
		}
	}
	return orders, nil
}

// judgeAgain checks, for a later wave, what may have changed since all were checked.
func (e *Engine) judgeAgain(ctx context.Context, orders []*order, signed []approval.Signed) error {
	now := time.Now()
	for _, o := range orders {
		if err := e.judgeHost(o, now); err != nil {
			return err
		}
		if err := e.judgeApprovals(ctx, o, signed, now); err != nil {
			return err
		}
	}
	return nil
}

// judgeHost checks that the host is allowed and is the one that the plan was made for, and
// that the plan is valid now.
func (e *Engine) judgeHost(o *order, now time.Time) error {
	var err error
	if o.all, o.host, err = e.host(o.Host.Name); err != nil {
		return err
	}
	h := o.host
	if !h.Apply {
		return fail(Refused, h.Name, "write apply: true into its entry of "+o.all.Path, "the host may be looked at, and not changed")
	}
	if why := o.Host.Same(h.Address, h.Port, h.User, h.Keys); why != "" {
		return fail(Stale, h.Name, "make a new plan", "%s", why)
	}
	if err := admit(h, o.Target.Root); err != nil {
		return err
	}
	if now.After(o.Expires) {
		return fail(Stale, h.Name, "make a new plan", "the plan was good until %s", o.Expires.Format(time.RFC3339))
	}
	if o.Created.After(now.Add(5 * time.Minute)) {
		return fail(Mismatch, h.Name, "make a new plan", "the plan is from %s, which is still to come", o.Created.Format(time.RFC3339))
	}
	return nil
}

// judgeSource checks that the plans' commit is checked out without further changes, and
// that the plans follow from that commit.
func (e *Engine) judgeSource(ctx context.Context, orders []*order) error {
	p := orders[0].Plan
	var commit string
	var clean bool
	var s *source
	var loaded error
	var g errgroup.Group
	g.Go(func() (err error) { commit, clean, err = e.head(ctx); return err })
	g.Go(func() error { s, loaded = e.load(ctx, p.Module, p.Commit); return nil })
	// Load the previous commits at the same time; they are checked below.
	earlier := map[string]loader{}
	for _, o := range orders {
		if c := o.Previous.Commit; c != "" && c != p.Commit && earlier[c] == nil {
			f := sync.OnceValues(func() (*source, error) { return e.load(ctx, p.Module, c) })
			earlier[c] = f
			g.Go(func() error { f(); return nil })
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	switch {
	case p.Kind != plan.Apply: // of a commit that was applied before
	case commit != p.Commit:
		return fail(Refused, "", "git checkout it, or make a new plan", "the plan is of commit %.12s, and %.12s is checked out", p.Commit, commit)
	case !clean || !p.Clean:
		return e.dirty(ctx, commit)
	}
	if loaded != nil {
		return loaded
	}
	for _, o := range orders {
		obs, err := plan.Observe(o.Seen.Text)
		if err != nil {
			return &Error{Mismatch, o.Host.Name, err, "make a new plan"}
		}
		old, err := e.judgeBack(o.Plan, obs, s, earlier[o.Previous.Commit])
		if err != nil {
			return err
		}
		if err := o.agree(s, obs, old.files()); err != nil {
			return err
		}
		o.waves = s.module.Waves
	}
	return nil
}

// judgeWaves checks that all hosts of earlier waves are planned here too, or run this
// commit by the records of this machine.
func (e *Engine) judgeWaves(orders []*order) error {
	for _, o := range orders {
		if o.Kind != plan.Apply {
			continue
		}
		for _, name := range slices.Concat(o.waves[:o.Wave-1]...) {
			if slices.ContainsFunc(orders, func(b *order) bool { return b.Host.Name == name }) {
				continue
			}
			r, err := e.lastApplied(name, o.Module)
			if err != nil {
				return fail(Refused, o.host.Name, "", "of %s, of a wave before, it is not known what it runs: %w", name, err)
			}
			if r != nil {
				if p, _, err := plan.Decode(r.Plan); err == nil && p.Commit == o.Commit {
					continue
				}
			}
			return fail(Refused, o.host.Name, "apply the plan for "+name+" first, or with this one", "it is of wave %d, and %s, of one before, does not run commit %.12s", o.Wave, name, o.Commit)
		}
	}
	return nil
}

// agree checks that every field of a plan follows from the commit that it names, because
// the plan's author is not trusted. It fills in the order's files. obs is the observation
// in the plan, before lists the files that were applied last.
func (o *order) agree(s *source, obs *plan.Observation, before []plan.File) error {
	t, m := &o.Target, s.module
	wave := 0
	for i, w := range m.Waves {
		if slices.Contains(w, o.Host.Name) {
			wave = i + 1
		}
	}
	no := func(what string) error {
		return fail(Mismatch, o.Host.Name, "make a new plan", "%s is not what commit %.12s says", what, o.Commit)
	}
	switch {
	case wave != o.Wave && o.Kind == plan.Apply, wave == 0:
		return no("the host or its wave")
	case t.Project != m.Project || t.Service != m.Service:
		return no("the service")
	case t.Root != m.Root:
		return no("remote_root")
	case t.StableFor != int(m.StableFor/time.Second) || t.StableChecked != int(m.StableChecked/time.Second) || t.Health != int(m.Health/time.Second):
		return no("a time")
	case t.Image != s.compose.Image || t.ImageID == "-" && !s.compose.Pinned && !t.Absent:
		return no("the image")
	case !slices.Equal(t.Binds, s.compose.Binds) && len(t.Binds)+len(s.compose.Binds) > 0, !slices.Equal(t.Volumes, s.compose.Volumes):
		return no("what the service sees")
	}
	if a, b := o.Source, s.desc; a.Module != b.Module || a.Compose != b.Compose || !slices.Equal(a.Files, b.Files) {
		return no("a file")
	}
	if t.ImageID != obs.Image || !slices.Equal(o.Changes, changes(o.Plan, obs, m, before)) {
		return fail(Mismatch, o.Host.Name, "make a new plan", "the changes are not those that follow from what was seen")
	}
	o.compose = s.compose.Data
	if t.Absent {
		// Removing needs the compose file of the running service.
		if o.Previous.State != plan.PreviousKnown {
			return fail(Refused, o.Host.Name, "remove it by hand", "it is not known from which file the service runs")
		}
		o.compose = []byte(o.Previous.Compose)
	}
	for _, f := range o.Source.Files {
		o.files = append(o.files, s.text["modules/"+o.Module+"/"+module.FilesDir+"/"+f.Path])
	}
	if err := withinReach(o.Plan, obs); err != nil {
		return err
	}
	if o.Previous.State == plan.PreviousKnown {
		var err error
		if o.back, err = backFile(o.Plan); err != nil {
			return &Error{Refused, o.Host.Name, fmt.Errorf("the previous file: %w", err), "make a new plan"}
		}
	}
	return nil
}

// judgeUse returns an error if the plan was applied before.
func (e *Engine) judgeUse(o *order) error {
	r, err := e.readRecord(o.host.Name, o.Module, o.Digest)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err // the unreadable record may say that it was applied
	case r.Outcome.settled():
		return fail(Mismatch, o.host.Name, "carboy ship history "+o.Module+" shows it; make a new plan", "the plan was carried out already, and ended as %s", r.Outcome)
	}
	return nil
}

// verifier returns the verifier of approvals.
func (e *Engine) verifier() (approval.Verifier, error) {
	if e.Verifier != nil {
		return e.Verifier, nil
	}
	name := filepath.Join(e.Config, approval.SignersFile)
	b, err := hosts.ReadTrusted(name, 1<<20)
	if err != nil {
		return nil, &Error{Mismatch, "", err, "who may approve stands there, one line each: NAME KEYTYPE KEY"}
	}
	s, err := approval.ParseSigners(name, b)
	if err != nil {
		return nil, &Error{Mismatch, "", err, ""}
	}
	return s, nil
}

// judgeApprovals checks that as many different people as the host requires have approved
// exactly this plan, by signatures or, where the host allows that, by reviews. It sets the
// order's approvals and reviews. If the signatures suffice, no forge is asked.
func (e *Engine) judgeApprovals(ctx context.Context, o *order, signed []approval.Signed, now time.Time) error {
	o.approvals, o.reviews, o.signed = nil, nil, signed
	if len(o.Changes) == 0 || o.host.FreeUndo && e.undoesLast(o) {
		return nil
	}
	people, problem := e.signers(ctx, o, signed, now)
	var x *Error
	switch {
	case errors.As(problem, &x) && x.Outcome != Destructive: // who may sign is not known
		return problem
	case len(people) >= o.host.Approvals:
		return nil
	case e.Pull > 0:
		why := e.reviewers(ctx, o, people, now)
		if why == nil {
			return nil
		}
		if problem == nil {
			problem = why
		} else if x == nil {
			problem = approval.Mismatch("%v; %v", problem, why)
		}
	}
	switch {
	case x != nil:
		return x
	case problem == nil:
		problem = approval.Mismatch("%d of %d approvals", len(people), o.host.Approvals)
	}
	return &Error{Mismatch, o.host.Name, problem, "carboy ship approve signs a plan"}
}

// signers returns the people whose signatures approve a plan, and adds the signatures to the
// order. The error says what is wrong with others.
func (e *Engine) signers(ctx context.Context, o *order, signed []approval.Signed, now time.Time) (map[string]bool, error) {
	people, keys := map[string]bool{}, map[string]bool{}
	if len(signed) == 0 && e.Pull > 0 {
		return people, nil // nobody needs allowed_signers
	}
	verifier, err := e.verifier()
	if err != nil {
		return people, err
	}
	var problem error
	lacksDestructive := false // an approval does not allow destructive changes
	for _, s := range signed {
		a, err := verifier.Verify(ctx, s, now)
		switch {
		case err != nil:
			problem = err
			continue
		case !slices.Contains(a.Plans, o.Digest):
			problem = approval.Mismatch("the approval of %s is of another plan", a.Approver)
			continue
		case a.Commit != o.Commit || a.Module != o.Module:
			problem = approval.Mismatch("the approval of %s is of another commit or module", a.Approver)
			continue
		case a.Time.Before(o.Created.Add(-5*time.Minute)) || a.Time.After(o.Expires):
			problem = approval.Mismatch("the approval of %s was not given while the plan was good", a.Approver)
			continue
		case people[a.Approver] || keys[a.Key]:
			continue
		}
		if o.Destructive() && !slices.Contains(a.Allow, approval.Destructive) {
			lacksDestructive = true
			continue
		}
		people[a.Approver], keys[a.Key] = true, true
		o.approvals = append(o.approvals, s)
	}
	if lacksDestructive {
		problem = fail(Destructive, o.host.Name, "carboy ship approve --destructive", "the plan destroys something, and the approval does not say so")
	}
	return people, problem
}

// undoesLast reports whether the plan restores exactly what the last apply replaced, by
// this machine's own record of that apply.
func (e *Engine) undoesLast(o *order) bool {
	_, digest, ok := strings.Cut(o.Undoes, "-")
	if o.Kind != plan.Rollback || !ok || o.Destructive() {
		return false
	}
	obs, err := plan.Observe(o.Seen.Text)
	if err != nil || obs.Current != o.Undoes {
		return false
	}
	r, err := e.readRecord(o.host.Name, o.Module, digest)
	if err != nil || r.Outcome != Applied || r.Learned {
		return false
	}
	last, _, err := plan.Decode(r.Plan)
	return err == nil && last.Previous.State == plan.PreviousKnown && last.Previous.Commit == o.Commit &&
		plan.Digest([]byte(last.Previous.Compose)) == o.Source.Compose.SHA256 && last.Previous.ImageID == o.Target.ImageID
}

// applyOne applies one plan on its host and records the result.
func (e *Engine) applyOne(ctx context.Context, o *order, res *Result) error {
	if err := e.auditEvent(ctx, audit.ShipApply, audit.Allowed, o.Plan, o.Digest, approvers(o), "approved"); err != nil {
		return err
	}
	if err := e.auditReviews(ctx, o); err != nil {
		return err
	}
	r := &record{Digest: o.Digest, Plan: o.Bytes, Compose: o.compose, Approvals: o.approvals, Reviews: o.reviews, Outcome: Sent, Began: time.Now().UTC(), By: e.By}
	_, rerr := e.readRecord(o.host.Name, o.Module, o.Digest)
	if len(o.Changes) > 0 {
		if err := e.writeRecord(o.host.Name, o.Module, r); err != nil {
			return err
		}
	}
	err := e.send(ctx, o, res)
	var x *Error
	if errors.As(err, &x) {
		res.Outcome = x.Outcome
		res.Why = cmp.Or(res.Why, shown(x.Err.Error()))
	}
	if res.Outcome == "" {
		// Unknown: keep the record as it is.
		return errors.Join(err, e.auditEvent(ctx, audit.ShipOutcome, audit.Noted, o.Plan, o.Digest, "unknown", err.Error()))
	}
	decision, werr := audit.Noted, error(nil)
	switch {
	case res.recorded && res.Outcome.settled():
		r.Outcome, r.Why, r.Evidence, r.Ended = res.Outcome, res.Why, res.Evidence, time.Now().UTC()
		werr = e.writeRecord(o.host.Name, o.Module, r)
	case errors.Is(rerr, fs.ErrNotExist):
		// The host did not begin it, so it can still be applied. Keep an earlier record.
		if werr = os.Remove(e.recordFile(o.host.Name, o.Module, o.Digest)); errors.Is(werr, fs.ErrNotExist) {
			werr = nil
		}
	}
	if x != nil && !res.recorded {
		decision = audit.Refused
	}
	return errors.Join(err, werr, res.auditErr, e.auditEvent(ctx, audit.ShipOutcome, decision, o.Plan, o.Digest, string(res.Outcome), res.Why))
}

// approvers returns the names of who approved an order, for the audit log. They were
// verified before.
func approvers(o *order) string {
	var out []string
	for _, a := range o.approvals {
		var s approval.Statement
		if json.Unmarshal(a.Statement, &s) == nil {
			out = append(out, s.Approver)
		}
	}
	for _, a := range o.reviews {
		out = append(out, a.Approver+" (by review)")
	}
	return strings.Join(out, ", ")
}

// send sends the order to its host and waits for the outcome, also if the connection ends
// meanwhile.
func (e *Engine) send(ctx context.Context, o *order, res *Result) error {
	began := time.Now()
	c, err := remote.Dial(ctx, o.all, o.host, e.Keys)
	if err != nil {
		return notBegun(err)
	}
	defer c.Close()
	res.Timing.Connect = time.Since(began)
	defer func() { res.Timing.Host = time.Since(began) - res.Timing.Connect }()
	a, err := e.begin(ctx, c, o)
	if err == nil && a.refused == "unfinished" {
		if _, digest, _ := strings.Cut(a.why, "-"); digest == o.Digest {
			err = errInterrupted
		} else {
			if _, err := e.settle(ctx, c, o.host, o.Plan); err != nil {
				var x *Error
				if errors.As(err, &x) {
					return err
				}
				return fail(Failed, o.host.Name, "carboy ship status "+o.Module, "what was interrupted there could not be settled: %v; nothing of this plan was begun", err)
			}
			a, err = e.begin(ctx, c, o)
		}
	}
	switch {
	case errors.Is(err, remote.ErrCut), errors.Is(err, errInterrupted):
		before := a
		if a, err = e.awaitOutcome(ctx, o, err); err == nil && before != nil && len(a.evidence.sections) == 0 {
			a.evidence = before.evidence // it came before the cut
		}
	case errors.Is(err, remote.ErrUnreachable):
		return notBegun(err)
	}
	if err != nil {
		return err
	}
	return e.outcome(o, a, res)
}

// begin runs the script that applies an order, after a last look at its reviews.
func (e *Engine) begin(ctx context.Context, c *remote.Conn, o *order) (*scriptOutput, error) {
	if err := e.reviewedStill(ctx, o); err != nil {
		return nil, err
	}
	return e.runOrder(ctx, c, o, "apply")
}

// notBegun returns the error for a plan that was not sent to its host.
func notBegun(err error) error {
	var x *Error
	if errors.As(err, &x) {
		return err
	}
	return &Error{Failed, "", fmt.Errorf("%w; nothing was changed", err), ""}
}

// runOrder runs the script for an order; mode is "apply" or "recover".
func (e *Engine) runOrder(ctx context.Context, c *remote.Conn, o *order, mode string) (*scriptOutput, error) {
	s, err := e.varsOf(o, mode)
	if err != nil {
		return nil, err
	}
	var input [][]byte
	if mode == "apply" {
		pieces := o.pieces()
		s.values["pieces"], s.values["sums"], s.values["programs"] = pieces.list, pieces.sums, pieces.programs
		input = pieces.data
	}
	text, err := e.script(s)
	if err != nil {
		return nil, err
	}
	var auditErr error
	n := 0
	a, err := e.runScript(ctx, c, o.host, remote.Script{Text: text, Input: input, Within: e.within(o.Plan)}, func(step, text string) {
		if n++; n <= maxAuditedSteps && auditErr == nil {
			auditErr = e.auditEvent(ctx, audit.ShipStep, audit.Noted, o.Plan, o.Digest, step, text)
		}
	})
	a.auditErr = auditErr
	return a, err
}

// within returns the time within which a host completes or rolls back a plan. Each command
// and each watching may be followed by waiting for a Docker that does not answer.
func (e *Engine) within(p *plan.Plan) time.Duration {
	return 2*e.up() + 2*e.other() + 6*time.Duration(p.Target.Health)*time.Second + 10*lookTime
}

func (e *Engine) varsOf(o *order, mode string) (scriptVars, error) {
	t := &o.Target
	files, err := lines(paths(o.Source.Files))
	if err != nil {
		return scriptVars{}, err
	}
	binds, err := lines(t.Binds)
	if err != nil {
		return scriptVars{}, err
	}
	var wanted []string
	for _, f := range o.Source.Files {
		wanted = append(wanted, f.SHA256+"  "+f.Path)
	}
	v := map[string]string{
		"files": files, "binds": binds, "image": t.Image, "job": o.Digest, "observed": o.Seen.SHA256, "action": o.Action(), "wanted": strings.Join(wanted, "\n"),
		"prev": o.Previous.State, "want_image": t.ImageID, "want_hash": t.ConfigHash, "pull": "never",
		"stable": strconv.Itoa(t.StableFor), "stable_checked": strconv.Itoa(t.StableChecked), "health_within": strconv.Itoa(t.Health),
	}
	if t.ImageID == "-" {
		v["pull"] = "missing"
	}
	if o.Previous.State == plan.PreviousKnown {
		v["prev_ref"], v["prev_image"] = o.Previous.Image, o.Previous.ImageID
	}
	if o.Previous.Ran {
		v["prev_ran"] = "1"
	}
	if slices.ContainsFunc(o.Changes, func(c plan.Change) bool { return strings.HasPrefix(c.What, "file.") }) {
		v["force"] = "--force-recreate"
	}
	return scriptVars{mode, o.host, t.Project, t.Service, t.Root, v}, nil
}

// pieces holds the files of a job, in the form that script.sh receives.
type pieces struct {
	list, sums, programs string
	data                 [][]byte
}

func (o *order) pieces() pieces {
	var p pieces
	add := func(name string, b []byte) {
		p.list += fmt.Sprintf("%d %s\n", len(b), name)
		p.sums += plan.Digest(b) + "  " + name + "\n"
		p.data = append(p.data, b)
	}
	add("plan.json", o.Bytes)
	signed, err := json.Marshal(o.approvals)
	if err != nil || o.approvals == nil {
		signed = []byte("[]")
	}
	add("approvals.json", signed)
	if len(o.reviews) > 0 {
		told, err := json.Marshal(o.reviews)
		if err != nil {
			told = []byte("[]")
		}
		add("reviews.json", told)
	}
	add("compose.yaml", o.compose)
	if o.back != nil {
		add("prev.yaml", []byte(o.Previous.Compose))
		add("back.yaml", o.back)
	}
	for i, b := range o.files {
		name := fmt.Sprintf("f/%d", i)
		add(name, b)
		if o.Source.Files[i].Exec {
			p.programs += name + "\n"
		}
	}
	p.sums = strings.TrimSuffix(p.sums, "\n")
	return p
}

// outcome fills in a result from the script's output, and returns its error.
func (e *Engine) outcome(o *order, a *scriptOutput, res *Result) error {
	said, why, _ := strings.Cut(a.words["@result"], " ")
	res.Why = shown(newRedactor().Line(why))
	res.recorded, res.auditErr = said != "", a.auditErr
	if got := Outcome(said); got != Applied && got != Nothing {
		res.Evidence = a.evidence.lines()
	}
	advice := "carboy ship history " + o.Module + " shows what happened"
	switch got := Outcome(said); got {
	case Applied, Nothing:
		if res.Outcome = got; got == Nothing {
			res.Why = o.Ailing()
		}
		return nil
	case Failed:
		return late(fail(got, o.host.Name, advice, "%s; what ran before runs", res.Why), res.Why)
	case RolledBack:
		return fail(got, o.host.Name, advice, "not healthy: %s; rolled back", res.Why)
	case RollbackFailed:
		return late(fail(got, o.host.Name, "act now: look at the service on the host; "+advice, "%s; and going back failed", res.Why), res.Why)
	}
	switch a.refused {
	case "":
		return fmt.Errorf("%s: %w", o.host.Name, ErrUnknown)
	case "stale":
		return fail(Stale, o.host.Name, "make a new plan", "the host is not as the plan saw it%s", o.difference(a))
	case "compose-changed":
		return fail(Stale, o.host.Name, "make a new plan", "its compose reads the file otherwise than when the plan was made (%s then, %s now)", shown(o.Target.ComposeVersion), a.why)
	case "used":
		return fail(Mismatch, o.host.Name, "make a new plan", "the plan was carried out there already")
	case "unrecorded":
		return fmt.Errorf("%s: its disk took no record (%s): %w", o.host.Name, a.why, ErrUnknown)
	case "settled":
		return fail(Locked, o.host.Name, "look again", "somebody else has finished what was interrupted")
	}
	return refusal(o.host, a)
}

// lateWhy is the end of script.sh's reason if a command exceeded its deadline.
const lateWhy = "was ended at its deadline"

// deadlineError adds a match for [ErrDeadline] to an error.
type deadlineError struct{ error }

func (d deadlineError) Unwrap() []error { return []error{d.error, ErrDeadline} }

// late makes err match [ErrDeadline] if why says that a command exceeded its deadline.
func late(err error, why string) error {
	var x *Error
	if strings.HasSuffix(why, lateWhy) && errors.As(err, &x) {
		x.Err = deadlineError{x.Err}
	}
	return err
}

// difference returns the first line of the host's state that differs from the plan's.
func (o *order) difference(a *scriptOutput) string {
	kept, err := a.kept()
	if err != nil {
		return ""
	}
	was := strings.Split(o.Seen.Text, "\n")
	for _, l := range strings.Split(string(kept["observed"]), "\n") {
		if !slices.Contains(was, l) {
			return ": " + shown(l)
		}
	}
	return ""
}

// How often a host is asked for the outcome after a connection was cut, and the first
// delay, which doubles.
const (
	tries    = 6
	tryAgain = time.Second
)

var (
	errInterrupted = errors.New("it was interrupted")
	errElsewhere   = errors.New("somebody else settles it")
	errNoJob       = errors.New("the host has no job of it, and what was sent may still arrive")
)

// awaitOutcome connects again and asks for the outcome of a plan that may have begun. Any
// answer but an outcome leaves it unknown: a refusal only concerns the question.
func (e *Engine) awaitOutcome(ctx context.Context, o *order, why error) (*scriptOutput, error) {
	text := "the connection was cut; asking how it ended"
	if !errors.Is(why, remote.ErrCut) {
		text = "it was interrupted; asking how it ended"
	}
	missing := 0
	for i := range tries {
		wait := time.NewTimer(tryAgain << i / 2)
		select {
		case <-ctx.Done():
			wait.Stop()
			return nil, fmt.Errorf("%s: %w: %w", o.host.Name, ErrUnknown, why)
		case <-wait.C:
		}
		e.progress(o.host.Name, "again", text)
		a, err := e.ask(ctx, o)
		if err == nil {
			return a, nil
		}
		why = err
		if errors.Is(err, errNoJob) {
			missing++
		}
		if missing > 1 || errors.Is(err, ErrUnknown) || errors.Is(err, remote.ErrHostKey) {
			break
		}
	}
	if errors.Is(why, ErrUnknown) {
		return nil, why
	}
	return nil, fmt.Errorf("%s: %w: %w", o.host.Name, ErrUnknown, why)
}

// ask waits on a new connection for the end of an order that was sent. The error matches
// [ErrUnknown] if asking again is useless.
func (e *Engine) ask(ctx context.Context, o *order) (*scriptOutput, error) {
	c, err := remote.Dial(ctx, o.all, o.host, e.Keys)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	s, err := e.varsOf(o, "await")
	if err != nil {
		return nil, err
	}
	s.values["health_within"] = strconv.Itoa(int(e.within(o.Plan) / time.Second))
	text, err := e.script(s)
	if err != nil {
		return nil, err
	}
	a, err := e.runScript(ctx, c, o.host, remote.Script{Text: text, Within: e.within(o.Plan) + lookTime}, nil)
	if err != nil {
		return nil, err
	}
	switch used := a.words["@used"]; {
	case a.refused != "":
		return nil, o.unknown(a)
	case used == "" || used == "-":
		return nil, errNoJob
	case used == a.words["@unfinished"]:
		a, err = e.runOrder(ctx, c, o, "recover")
		switch {
		case err != nil:
			return nil, err
		case a.refused == "locked" || a.refused == "settled":
			return nil, errElsewhere
		case a.words["@result"] == "":
			return nil, o.unknown(a)
		}
		return a, nil
	}
	kept, err := a.kept()
	if err != nil {
		return nil, err
	}
	got, _, why := result(string(kept["result"]))
	a.words["@result"] = string(got) + " " + why
	return a, nil
}

// unknown returns the error for a host that does not report the outcome of a plan.
func (o *order) unknown(a *scriptOutput) error {
	return fmt.Errorf("%s: %w: %s", o.host.Name, ErrUnknown, cmp.Or(a.why, "it does not say"))
}

// settle completes or rolls back a job whose shell has died, by the plan that the host
// kept, and records the outcome.
func (e *Engine) settle(ctx context.Context, c *remote.Conn, h *hosts.Host, near *plan.Plan) (*record, error) {
	jobs, a, err := e.jobs(ctx, c, h, &near.Target)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(jobs, func(j *hostJob) bool {
		return j.name == a.words["@unfinished"] && j.plan.Target.Project == near.Target.Project && j.plan.Target.Service == near.Target.Service && j.plan.Host.Name == h.Name
	})
	if i < 0 {
		return nil, fail(Failed, h.Name, "look at ~/.local/state/carboy/ship there", "a job was interrupted, and its plan is damaged")
	}
	j := jobs[i]
	all, _, err := e.host(h.Name)
	if err != nil {
		return nil, err
	}
	o := &order{Made: Made{j.plan, j.planBytes, j.digest}, all: all, host: h, approvals: j.approvals}
	if err := admit(h, o.Target.Root); err != nil {
		return nil, err
	}
	got, err := e.runOrder(ctx, c, o, "recover")
	if err != nil {
		return nil, err
	}
	var res Result
	oerr := e.outcome(o, got, &res)
	var x *Error
	if errors.As(oerr, &x) {
		res.Outcome = x.Outcome
	}
	if !res.recorded || !res.Outcome.settled() { // a refusal settles nothing
		return nil, oerr
	}
	r := e.merge(h.Name, j)
	r.Outcome, r.Why, r.Evidence, r.Ended = res.Outcome, res.Why, res.Evidence, time.Now().UTC()
	return r, errors.Join(res.auditErr, e.writeRecord(h.Name, j.plan.Module, r), e.auditEvent(ctx, audit.ShipOutcome, audit.Noted, j.plan, j.digest, string(r.Outcome), "after an interruption: "+r.Why))
}

// merge returns the record of a host's job, completed from the record here.
func (e *Engine) merge(host string, j *hostJob) *record {
	r, err := e.readRecord(host, j.plan.Module, j.digest)
	if err != nil {
		r = &record{Digest: j.digest, Plan: j.planBytes, Approvals: j.approvals, Reviews: j.reviews, Outcome: Sent, Began: j.plan.Created, By: j.plan.By, Learned: true}
	}
	if j.outcome != "" && !r.Outcome.settled() { // a host cannot change an outcome recorded here
		r.Outcome, r.Why, r.Ended = j.outcome, j.why, j.ended
	}
	r.Job, r.Steps = j.name, j.steps
	return r
}

// jobs returns the jobs that a host keeps of a service.
func (e *Engine) jobs(ctx context.Context, c *remote.Conn, h *hosts.Host, t *plan.Target) ([]*hostJob, *scriptOutput, error) {
	text, err := e.script(scriptVars{mode: "history", host: h, project: t.Project, service: t.Service, root: t.Root})
	if err != nil {
		return nil, nil, err
	}
	a, err := e.runScript(ctx, c, h, remote.Script{Text: text, Within: 2 * lookTime}, nil)
	if err != nil {
		return nil, nil, err
	}
	return a.jobs(), a, refusal(h, a)
}

// serial returns f with a mutex: one call at a time.
func serial(f func(Progress)) func(Progress) {
	if f == nil {
		return nil
	}
	var mu sync.Mutex
	return func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		f(p)
	}
}
