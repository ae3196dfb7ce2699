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
)

// Result is how one plan ended.
type Result struct {
	Host    string  `json:"host"`
	Module  string  `json:"module"`
	Commit  string  `json:"commit"`
	Plan    string  `json:"plan"` // its digest
	Outcome Outcome `json:"outcome"`
	Why     string  `json:"why,omitempty"`
	Timing  Timing  `json:"timing"`

	said  bool  // by the host, which has it on record
	noted error // of the audit log, about its steps
}

// order is everything that one host needs, judged. Only [Engine.judge] makes one.
type order struct {
	Made
	all       *hosts.File
	host      *hosts.Host
	compose   []byte
	files     [][]byte
	back      []byte // the previous file, its image by digest
	approvals []approval.Signed
	waves     [][]string
}

// Apply carries out plans of one module and commit, one for each host, wave after
// wave, and stops after a wave that is not healthy everywhere. Results are of those
// plans that reached their host, in order; the error is an [Error] with the first
// outcome that is neither [Applied] nor [Nothing], or matches [ErrUnknown].
//
// Everything is judged before the first connection, and hosts, dates and approvals once
// more before each later wave: those of before may have taken hours. ctx ends the waiting, not what a
// host has begun.
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

// Judge says why Apply would refuse, before any connection; nil when it would begin.
// An error that matches [approval.ErrMismatch] or is [Destructive] can be mended by
// signing: everything else of the plans was judged before.
func (e *Engine) Judge(ctx context.Context, plans [][]byte, approvals []approval.Signed) error {
	_, err := e.judge(ctx, plans, approvals)
	return err
}

// NoteRefusal puts plans that were refused before any connection into the log, as Apply
// does with those that it is given. The error is that of the log.
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
	return e.note(ctx, audit.ShipApply, audit.Refused, p, digest, string(rule), why.Error())
}

// worst is the error that people must hear of first.
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

// judge decides about plans without speaking with any host.
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

// judgeAgain judges of a wave what may be otherwise than when all waves were judged.
func (e *Engine) judgeAgain(ctx context.Context, orders []*order, signed []approval.Signed) error {
	now := time.Now()
	for _, o := range orders {
		if err := e.judgeHost(o, now); err != nil {
			return err
		}
		o.approvals = nil
		if err := e.judgeApprovals(ctx, o, signed, now); err != nil {
			return err
		}
	}
	return nil
}

// judgeHost: the host is allowed, and the one that the plan was made for.
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

// judgeSource: the work tree holds the plan's commit and nothing else, and the plan
// says what that commit says.
func (e *Engine) judgeSource(ctx context.Context, orders []*order) error {
	p := orders[0].Plan
	var commit string
	var clean bool
	var s *source
	var loaded error
	var g errgroup.Group
	g.Go(func() (err error) { commit, clean, err = e.head(ctx); return err })
	g.Go(func() error { s, loaded = e.load(ctx, p.Module, p.Commit); return nil })
	// What it goes back to is judged later, and read meanwhile.
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
	case p.Kind == plan.Rollback:
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

// judgeWaves: no host comes before those of the waves before its own, each of which is
// in the same order or runs this commit by the records here.
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

// agree holds a plan to the commit that it names, field by field: whoever wrote the
// plan decides nothing that the commit does not say. obs is what it saw, before the files
// of what was put there last.
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
	case t.StableFor != int(m.StableFor/time.Second) || t.Health != int(m.Health/time.Second):
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
		// What is removed is what runs.
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

// judgeUse: a plan is carried out once.
func (e *Engine) judgeUse(o *order) error {
	r, err := e.readRecord(o.host.Name, o.Module, o.Digest)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err // what cannot be read may say that it was used
	case r.Outcome.settled():
		return fail(Mismatch, o.host.Name, "carboy ship history "+o.Module+" shows it; make a new plan", "the plan was carried out already, and ended as %s", r.Outcome)
	}
	return nil
}

// verifier judges approvals.
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

// judgeApprovals: as many people as the host asks for have signed exactly this.
func (e *Engine) judgeApprovals(ctx context.Context, o *order, signed []approval.Signed, now time.Time) error {
	if len(o.Changes) == 0 || o.host.FreeUndo && e.undoesLast(o) {
		return nil
	}
	verifier, err := e.verifier()
	if err != nil {
		return err
	}
	var problem error
	people, keys := map[string]bool{}, map[string]bool{}
	timid := false // somebody signed, and not what destroys
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
			timid = true
			continue
		}
		people[a.Approver], keys[a.Key] = true, true
		o.approvals = append(o.approvals, s)
	}
	if len(people) >= o.host.Approvals {
		return nil
	}
	if timid {
		return fail(Destructive, o.host.Name, "carboy ship approve --destructive", "the plan destroys something, and the approval does not say so")
	}
	if problem == nil {
		problem = approval.Mismatch("%d of %d approvals", len(people), o.host.Approvals)
	}
	return &Error{Mismatch, o.host.Name, problem, "carboy ship approve signs a plan"}
}

// undoesLast: the plan goes back to exactly what the last apply replaced, by this
// machine's own record of that.
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

// applyOne carries out one plan on its host.
func (e *Engine) applyOne(ctx context.Context, o *order, res *Result) error {
	if err := e.note(ctx, audit.ShipApply, audit.Allowed, o.Plan, o.Digest, approvers(o.approvals), "approved"); err != nil {
		return err
	}
	r := &Record{Digest: o.Digest, Plan: o.Bytes, Compose: o.compose, Approvals: o.approvals, Outcome: Sent, Began: time.Now().UTC(), By: e.By}
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
		// Not known: the record stays as it is.
		return errors.Join(err, e.note(ctx, audit.ShipOutcome, audit.Noted, o.Plan, o.Digest, "unknown", err.Error()))
	}
	decision, werr := audit.Noted, error(nil)
	switch {
	case res.said && res.Outcome.settled():
		r.Outcome, r.Why, r.Ended = res.Outcome, res.Why, time.Now().UTC()
		werr = e.writeRecord(o.host.Name, o.Module, r)
	case errors.Is(rerr, fs.ErrNotExist):
		// Nothing of it began there: it can be applied still. A record of before stays.
		if werr = os.Remove(e.recordFile(o.host.Name, o.Module, o.Digest)); errors.Is(werr, fs.ErrNotExist) {
			werr = nil
		}
	}
	if x != nil && !res.said {
		decision = audit.Refused
	}
	return errors.Join(err, werr, res.noted, e.note(ctx, audit.ShipOutcome, decision, o.Plan, o.Digest, string(res.Outcome), res.Why))
}

// approvers are for the log; they were verified before.
func approvers(all []approval.Signed) string {
	var out []string
	for _, a := range all {
		var s approval.Statement
		if json.Unmarshal(a.Statement, &s) == nil {
			out = append(out, s.Approver)
		}
	}
	return strings.Join(out, ", ")
}

// send has the host do it, and finds out how it ended, also when the connection is
// cut meanwhile.
func (e *Engine) send(ctx context.Context, o *order, res *Result) error {
	began := time.Now()
	c, err := remote.Dial(ctx, o.all, o.host, e.Keys)
	if err != nil {
		return notBegun(err)
	}
	defer c.Close()
	res.Timing.Connect = time.Since(began)
	defer func() { res.Timing.Host = time.Since(began) - res.Timing.Connect }()
	a, err := e.order(ctx, c, o, "apply")
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
			a, err = e.order(ctx, c, o, "apply")
		}
	}
	switch {
	case errors.Is(err, remote.ErrCut), errors.Is(err, errInterrupted):
		a, err = e.found(ctx, o, err)
	case errors.Is(err, remote.ErrUnreachable):
		return notBegun(err)
	}
	if err != nil {
		return err
	}
	return e.outcome(o, a, res)
}

// notBegun is an error from before the host was asked to carry out a plan.
func notBegun(err error) error {
	var x *Error
	if errors.As(err, &x) {
		return err
	}
	return &Error{Failed, "", fmt.Errorf("%w; nothing was changed", err), ""}
}

// order runs the script for an order.
func (e *Engine) order(ctx context.Context, c *remote.Conn, o *order, mode string) (*account, error) {
	s, err := e.settingsOf(o, mode)
	if err != nil {
		return nil, err
	}
	var input [][]byte
	if mode == "apply" {
		pieces := o.pieces()
		s.values["pieces"], s.values["sums"], s.values["programs"] = pieces.list, pieces.sums, pieces.programs
		input = pieces.data
	}
	text, err := e.text(s)
	if err != nil {
		return nil, err
	}
	var noted error
	n := 0
	a, err := e.tell(ctx, c, o.host, remote.Script{Text: text, Input: input, Within: e.within(o.Plan)}, func(step, text string) {
		if n++; n <= maxNoted && noted == nil {
			noted = e.note(ctx, audit.ShipStep, audit.Noted, o.Plan, o.Digest, step, text)
		}
	})
	a.noted = noted
	return a, err
}

// within is when a host must have ended one way or another.
func (e *Engine) within(p *plan.Plan) time.Duration {
	return 2*e.up() + 2*e.other() + 2*time.Duration(p.Target.Health)*time.Second + 6*lookTime
}

func (e *Engine) settingsOf(o *order, mode string) (settings, error) {
	t := &o.Target
	files, err := lines(paths(o.Source.Files))
	if err != nil {
		return settings{}, err
	}
	binds, err := lines(t.Binds)
	if err != nil {
		return settings{}, err
	}
	var wanted []string
	for _, f := range o.Source.Files {
		wanted = append(wanted, f.SHA256+"  "+f.Path)
	}
	v := map[string]string{
		"files": files, "binds": binds, "image": t.Image, "job": o.Digest, "observed": o.Seen.SHA256, "action": o.Action(), "wanted": strings.Join(wanted, "\n"),
		"prev": o.Previous.State, "want_image": t.ImageID, "want_hash": t.ConfigHash, "pull": "never",
		"stable": strconv.Itoa(t.StableFor), "health_within": strconv.Itoa(t.Health),
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
	return settings{mode, o.host, t.Project, t.Service, t.Root, v}, nil
}

// pieces are the files of a job.
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

// outcome turns an account into a result.
func (e *Engine) outcome(o *order, a *account, res *Result) error {
	said, why, _ := strings.Cut(a.words["@result"], " ")
	res.Why = shown(newRedactor().Line(why))
	res.said, res.noted = said != "", a.noted
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

// lateWhy ends the reason of a job that script.sh ended at a command's deadline.
const lateWhy = "was ended at its deadline"

// deadlineError is an error that matches [ErrDeadline] as well, and reads the same.
type deadlineError struct{ error }

func (d deadlineError) Unwrap() []error { return []error{d.error, ErrDeadline} }

// late has an error match [ErrDeadline] when that is why.
func late(err error, why string) error {
	var x *Error
	if strings.HasSuffix(why, lateWhy) && errors.As(err, &x) {
		x.Err = deadlineError{x.Err}
	}
	return err
}

// difference says what is not as it was.
func (o *order) difference(a *account) string {
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

// How often a host is asked again after a connection was cut, and how long between.
const (
	tries    = 6
	tryAgain = time.Second
)

var (
	errInterrupted = errors.New("it was interrupted")
	errElsewhere   = errors.New("somebody else settles it")
	errNoJob       = errors.New("the host has no job of it, and what was sent may still arrive")
)

// found connects anew and asks how a plan ended that may have begun. Whatever the host
// says, but how it ended, leaves that unknown: a refusal is of the question.
func (e *Engine) found(ctx context.Context, o *order, why error) (*account, error) {
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

// ask waits for the end of an order that was sent, on a new connection. An error matches
// [ErrUnknown] where asking again is of no use.
func (e *Engine) ask(ctx context.Context, o *order) (*account, error) {
	c, err := remote.Dial(ctx, o.all, o.host, e.Keys)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	s, err := e.settingsOf(o, "await")
	if err != nil {
		return nil, err
	}
	s.values["health_within"] = strconv.Itoa(int(e.within(o.Plan) / time.Second))
	text, err := e.text(s)
	if err != nil {
		return nil, err
	}
	a, err := e.tell(ctx, c, o.host, remote.Script{Text: text, Within: e.within(o.Plan) + lookTime}, nil)
	if err != nil {
		return nil, err
	}
	switch used := a.words["@used"]; {
	case a.refused != "":
		return nil, o.unknown(a)
	case used == "" || used == "-":
		return nil, errNoJob
	case used == a.words["@unfinished"]:
		a, err = e.order(ctx, c, o, "recover")
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

// unknown is that a host does not say how a plan ended.
func (o *order) unknown(a *account) error {
	return fmt.Errorf("%s: %w: %s", o.host.Name, ErrUnknown, cmp.Or(a.why, "it does not say"))
}

// settle finishes or takes back a job whose shell is gone, by the plan that the host
// kept of it, and records how.
func (e *Engine) settle(ctx context.Context, c *remote.Conn, h *hosts.Host, near *plan.Plan) (*Record, error) {
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
	got, err := e.order(ctx, c, o, "recover")
	if err != nil {
		return nil, err
	}
	var res Result
	oerr := e.outcome(o, got, &res)
	var x *Error
	if errors.As(oerr, &x) {
		res.Outcome = x.Outcome
	}
	if !res.said || !res.Outcome.settled() { // a refusal settles nothing
		return nil, oerr
	}
	r := e.merge(h.Name, j)
	r.Outcome, r.Why, r.Ended = res.Outcome, res.Why, time.Now().UTC()
	return r, errors.Join(res.noted, e.writeRecord(h.Name, j.plan.Module, r), e.note(ctx, audit.ShipOutcome, audit.Noted, j.plan, j.digest, string(r.Outcome), "after an interruption: "+r.Why))
}

// merge is the record of a host's job, with what is known here.
func (e *Engine) merge(host string, j *hostJob) *Record {
	r, err := e.readRecord(host, j.plan.Module, j.digest)
	if err != nil {
		r = &Record{Digest: j.digest, Plan: j.planBytes, Approvals: j.approvals, Outcome: Sent, Began: j.plan.Created, By: j.plan.By, Learned: true}
	}
	if j.outcome != "" && !r.Outcome.settled() { // what is written here nobody changes from there
		r.Outcome, r.Why, r.Ended = j.outcome, j.why, j.ended
	}
	r.Job, r.Steps = j.name, j.steps
	return r
}

// jobs are those that a host keeps of a service.
func (e *Engine) jobs(ctx context.Context, c *remote.Conn, h *hosts.Host, t *plan.Target) ([]*hostJob, *account, error) {
	text, err := e.text(settings{mode: "history", host: h, project: t.Project, service: t.Service, root: t.Root})
	if err != nil {
		return nil, nil, err
	}
	a, err := e.tell(ctx, c, h, remote.Script{Text: text, Within: 2 * lookTime}, nil)
	if err != nil {
		return nil, nil, err
	}
	return a.jobs(), a, refusal(h, a)
}

// serial has progress heard one call at a time.
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
