package ship

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/ship/hosts"
	"github.com/carboy/carboy/internal/ship/module"
	"github.com/carboy/carboy/internal/ship/plan"
	"github.com/carboy/carboy/internal/ship/remote"
)

// Made is a plan with its encoding.
type Made struct {
	*plan.Plan
	Bytes  []byte
	Digest string
}

// Timing holds how long the steps took.
type Timing struct {
	Source  time.Duration `json:"source_ns"`  // reading the commit and checking plans
	Connect time.Duration `json:"connect_ns"` // connecting and signing in
	Host    time.Duration `json:"host_ns"`    // running the script
}

// PlanOptions configures Plan.
type PlanOptions struct {
	Module string
	// Hosts selects hosts by their names; none: all hosts of the module or, of a rollback
	// without To, those that took part in the last rollout.
	Hosts []string
	// Rollback plans a rollback to the commit To or, if To is empty, to what the last
	// apply replaced. Where something else runs than what was applied last, it leads to
	// that.
	Rollback bool
	To       string
	// Remove plans to remove the service, also if the checked-out commit does not have the
	// module any more.
	Remove bool
	// Timing, if not nil, is filled in for the first host.
	Timing *Timing
}

// Plan queries the module's hosts in parallel and returns one plan for each, in order of
// the waves. It changes nothing there. The error is an [Error] if a policy forbids the plan
// or it cannot be made for a host.
func (e *Engine) Plan(ctx context.Context, o PlanOptions) ([]Made, error) {
	began := time.Now()
	commit, clean, err := e.head(ctx)
	if err != nil {
		return nil, err
	}
	earlier := o.Rollback || o.Remove // the plan is of a commit that was applied before
	switch {
	case o.To != "" && !o.Rollback:
		return nil, errors.New("ship: a commit to go back to is for a rollback")
	case o.Remove && o.Rollback:
		return nil, errors.New("ship: a rollback or a removal, not both")
	case o.To != "":
		if commit = o.To; !plan.ValidCommit(commit) {
			return nil, fail(Refused, "", "git rev-parse prints it", "%.80q is not the whole name of a commit", o.To)
		}
	case !clean && !earlier:
		return nil, e.dirty(ctx, commit)
	}
	s, err := e.load(ctx, o.Module, commit)
	if err != nil && earlier && o.To == "" {
		// The checked-out commit may be the broken one; use the last that was applied.
		if last := e.lastCommit(o.Module); last != "" {
			s, err = e.load(ctx, o.Module, last)
		}
	}
	if err != nil {
		return nil, err
	}
	if o.Timing != nil {
		o.Timing.Source = time.Since(began)
	}
	all, err := e.choose(ctx, o, s)
	if err != nil {
		return nil, err
	}
	g, gctx := errgroup.WithContext(ctx)
	for i, m := range all {
		m.Plan = &plan.Plan{Schema: plan.Schema, Kind: plan.Apply, Module: o.Module, Wave: m.wave, Commit: commit, Clean: clean || earlier, By: e.By}
		timing := o.Timing
		if i > 0 {
			timing = nil
		}
		g.Go(func() error { return e.planOn(gctx, m, o, timing) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if o.Rollback && o.To == "" && len(o.Hosts) == 0 {
		if all, err = e.lastRollout(all); err != nil {
			return nil, err
		}
	}
	var out []Made
	for _, m := range all {
		out = append(out, m.Made)
	}
	return out, nil
}

// making is a plan for one host while it is made.
type making struct {
	Made
	host    string
	wave    int
	source  *source
	undoes  *plan.Plan // what was applied last, of a rollback
	applied time.Time  // when
	astray  bool       // something else is there
	nothing error      // there is nothing to go back to
}

// choose returns the hosts of a plan, in order of the waves: those of the module, or those
// that o selects of them. A removal may be of a host that the module does not have any
// more, by the records here.
func (e *Engine) choose(ctx context.Context, o PlanOptions, s *source) ([]*making, error) {
	var all []*making
	left := slices.Clone(o.Hosts)
	for i, wave := range s.module.Waves {
		for _, name := range wave {
			if n := slices.Index(left, name); n >= 0 || len(o.Hosts) == 0 {
				all = append(all, &making{host: name, wave: i + 1, source: s})
				left = slices.DeleteFunc(left, func(x string) bool { return x == name })
			}
		}
	}
	for _, name := range left {
		last, err := e.lastPlan(name, o.Module)
		if err != nil {
			return nil, err
		}
		if !o.Remove || last == nil {
			return nil, fail(Refused, "", "name a host of modules/"+o.Module+"/module.yaml", "the module %s has no host %.80q at commit %.12s", o.Module, name, s.commit)
		}
		old, err := e.load(ctx, o.Module, last.Commit)
		if err != nil {
			return nil, err
		}
		all = append(all, &making{host: name, wave: last.Wave, source: old})
	}
	return all, nil
}

// lastPlan returns the plan that was applied last of a module to a host, by the records
// here, nil if there is none.
func (e *Engine) lastPlan(host, id string) (*plan.Plan, error) {
	if !module.ValidHost(host) || !module.ValidID(id) {
		return nil, nil
	}
	r, err := e.lastApplied(host, id)
	if r == nil || err != nil {
		return nil, err
	}
	p, _, err := plan.Decode(r.Plan)
	return p, err
}

// lastRollout returns the plans of a rollback for those hosts that took part in the last
// rollout and applied it, and for those where something else runs than what was applied
// last: there, a rollback repairs. Other hosts already are as they were before it.
func (e *Engine) lastRollout(all []*making) ([]*making, error) {
	var newest *making
	for _, m := range all {
		if m.undoes != nil && (newest == nil || m.applied.After(newest.applied)) {
			newest = m
		}
	}
	switch {
	case newest == nil:
		return nil, all[0].nothing
	case newest.nothing != nil:
		return nil, newest.nothing
	}
	return slices.DeleteFunc(all, func(m *making) bool {
		switch {
		case m.nothing != nil:
			e.progress(m.host, "left out", shown(m.nothing.Error()))
		case m.astray || m.undoes.Kind == newest.undoes.Kind && m.undoes.Commit == newest.undoes.Commit:
			return false
		default:
			e.progress(m.host, "left out", fmt.Sprintf("it did not apply commit %.12s, which was rolled out last; --host %s selects it", newest.undoes.Commit, m.host))
		}
		return true
	}), nil
}

// admit returns an error if remote_root is not allowed on a host.
func admit(h *hosts.Host, root string) error {
	if why := h.Admits(root); why != "" {
		return fail(Refused, h.Name, "allowed_roots and sacred_paths of hosts.yaml decide", "remote_root %s %s", root, why)
	}
	return nil
}

// unreached turns a connection error into an [Error] with [Failed]. It is for queries,
// which change nothing on the host.
func unreached(err error) error {
	for _, is := range []error{remote.ErrUnreachable, remote.ErrCut, remote.ErrHostKey} {
		if errors.Is(err, is) {
			return &Error{Failed, "", err, ""}
		}
	}
	return err
}

// planOn fills in m, the plan for one host.
func (e *Engine) planOn(ctx context.Context, m *making, o PlanOptions, timing *Timing) error {
	s := m.source
	all, h, err := e.host(m.host)
	if err != nil {
		return err
	}
	if err := admit(h, s.module.Root); err != nil {
		return err
	}
	began := time.Now()
	c, err := remote.Dial(ctx, all, h, e.Keys)
	if err != nil {
		return unreached(err)
	}
	defer c.Close()
	connected := time.Now()
	l, err := e.query(ctx, c, h, s)
	if err != nil {
		return unreached(err)
	}
	if timing != nil {
		timing.Connect, timing.Host = connected.Sub(began), time.Since(connected)
	}
	switch {
	case o.Remove:
		return e.planRemoval(ctx, c, h, l, m)
	case o.Rollback && o.To == "":
		err := e.planUndo(ctx, c, h, l, m)
		if m.nothing != nil && len(o.Hosts) == 0 {
			return nil // lastRollout decides
		}
		return err
	case o.Rollback:
		m.Kind = plan.Rollback
	}
	return e.finishPlan(ctx, c, h, s, l, &m.Made)
}

// hostState holds a host's answer about a service.
type hostState struct {
	obs     *plan.Observation
	text    string     // of obs
	hash    string     // configuration hash of our compose file
	version string     // of compose
	job     string     // the current job, "" for none
	last    *plan.Plan // its plan
	compose []byte     // its compose file
	applied time.Time  // when it was applied
	by      string     // who applied it
	runs    string     // since when the service runs and from what, if that was asked for
}

// query reads a service's state from a host, and the configuration hash of the compose
// file of s there.
func (e *Engine) query(ctx context.Context, c *remote.Conn, h *hosts.Host, s *source) (*hostState, error) {
	return e.queryWith(ctx, c, h, s, "")
}

// queryWith is query; with tell, it also asks since when the service runs and from what.
func (e *Engine) queryWith(ctx context.Context, c *remote.Conn, h *hosts.Host, s *source, tell string) (*hostState, error) {
	files, err := lines(paths(s.desc.Files))
	if err != nil {
		return nil, err
	}
	binds, err := lines(s.compose.Binds)
	if err != nil {
		return nil, err
	}
	text, err := e.script(scriptVars{mode: "plan", host: h, project: s.module.Project, service: s.module.Service, root: s.module.Root, values: map[string]string{
		"image": s.compose.Image, "files": files, "binds": binds, "size": fmt.Sprint(len(s.compose.Data)), "tell": tell,
	}})
	if err != nil {
		return nil, err
	}
	a, err := e.runScript(ctx, c, h, remote.Script{Text: text, Input: [][]byte{s.compose.Data}, Within: 5*lookTime + e.other()}, nil)
	if err != nil {
		return nil, err
	}
	if _, locked := a.words["@locked"]; locked {
		return nil, fail(Locked, h.Name, "wait until it is done", "an apply is going on: %s", shown(a.words["@locked"]))
	}
	if err := refusal(h, a); err != nil {
		return nil, err
	}
	if u := a.words["@unfinished"]; u != "-" {
		return nil, fail(Failed, h.Name, "carboy ship status "+s.module.ID+" finishes it or takes it back", "an apply was interrupted there")
	}
	l := &hostState{hash: a.words["@hash"], version: shown(a.words["@compose"]), runs: a.words["@runs"]}
	if !supported(l.version) {
		return nil, fail(Failed, h.Name, "install a newer compose plugin of Docker", "docker compose is %q there; %d.%d or newer is needed", l.version, minCompose[0], minCompose[1])
	}
	b, err := base64.StdEncoding.DecodeString(a.words["@observed"])
	if err != nil {
		return nil, fmt.Errorf("%s: its account is damaged", h.Name)
	}
	l.text = string(b)
	if l.obs, err = plan.Observe(l.text); err != nil {
		return nil, err
	}
	if len(l.obs.Containers) > 1 {
		return nil, fail(Refused, h.Name, "docker compose up -d --scale "+s.module.Service+"=1 there", "%d containers of the service are there", len(l.obs.Containers))
	}
	return l, l.readCurrent(a)
}

var (
	jobName = module.NewPattern(`^1[0-9]{5}-[0-9a-f]{64}$`)
	// minCompose is the first version with --progress before the command (July 2023).
	minCompose = [2]int{2, 20}
)

// supported reports whether script.sh works with a version of Compose.
func supported(version string) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &major, &minor); n != 2 {
		return false
	}
	return major > minCompose[0] || major == minCompose[0] && minor >= minCompose[1]
}

// readCurrent reads the current job from the script's output. It ignores a plan whose
// digest is not the one in the job's name.
func (l *hostState) readCurrent(a *scriptOutput) error {
	if l.job = a.words["@current"]; l.job == "" {
		return nil
	}
	if !jobName.MatchString(l.job) {
		return errors.New("host: its account names a job that is none")
	}
	files, err := a.kept()
	if err != nil {
		return err
	}
	_, digest, _ := strings.Cut(l.job, "-")
	p, got, err := plan.Decode(files["plan"])
	if err != nil || got != digest {
		return nil // damaged there; fill may find the copy here
	}
	l.last, l.by = p, p.By
	_, l.applied, _ = result(string(files["result"]))
	if plan.Digest(files["compose"]) == p.Source.Compose.SHA256 {
		l.compose = files["compose"]
	}
	return nil
}

// kept decodes the files in the output, by name.
func (a *scriptOutput) kept() (map[string][]byte, error) {
	out := map[string][]byte{}
	for _, f := range a.files {
		if f[0] != "@file" {
			continue
		}
		name, text, _ := strings.Cut(f[1], " ")
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, errors.New("host: a file of its account is damaged")
		}
		out[name] = b
	}
	return out, nil
}

// refusal returns the error for a script's refusal, nil if there was none.
func refusal(h *hosts.Host, a *scriptOutput) error {
	switch a.refused {
	case "":
		return nil
	case "policy":
		return fail(Refused, h.Name, "", "%s", a.why)
	case "locked":
		return fail(Locked, h.Name, "wait until it is done", "an apply is going on: %s", a.why)
	case "docker":
		return fail(Failed, h.Name, "can its user run docker ps?", "%s", a.why)
	case "compose":
		return fail(Failed, h.Name, "is the compose plugin there?", "docker compose: %s", a.why)
	case "newer":
		return fail(Failed, h.Name, "use the release of carboy that wrote it, or a later one", "its jobs were written by another carboy: %s", a.why)
	}
	if a.refused == "failed" {
		return fail(Failed, h.Name, "", "%s", a.why)
	}
	return fail(Failed, h.Name, "", "%s: %s", shown(a.refused), a.why)
}

func paths(files []plan.File) (out []string) {
	for _, f := range files {
		out = append(out, f.Path)
	}
	return out
}

func (e *Engine) other() time.Duration {
	if e.Other > 0 {
		return e.Other
	}
	return DefaultOther
}

func (e *Engine) up() time.Duration {
	if e.Up > 0 {
		return e.Up
	}
	return DefaultUp
}

// planUndo plans a rollback to what the last apply replaced or, if something else is there
// than what that applied, to that. If there is nothing to go back to, m says so.
func (e *Engine) planUndo(ctx context.Context, c *remote.Conn, h *hosts.Host, l *hostState, m *making) error {
	m.Kind = plan.Rollback
	l.fill(e, h, m.source)
	if l.last == nil {
		m.nothing = fail(Refused, h.Name, "name a commit with --to", "nothing is recorded that could be undone")
		return m.nothing
	}
	m.undoes, m.applied, m.astray = l.last, l.applied, !l.inForce()
	prev := l.last.Previous
	m.Undoes = l.job
	switch {
	case m.astray && l.last.Target.Absent:
		return fail(Refused, h.Name, "look at it there, and remove it: docker rm -f "+l.obs.Containers[0].ID[:12], "what was applied last removed the service, and one runs that no record has")
	case m.astray:
		prev, m.Undoes, m.Commit = plan.Previous{}, "", l.last.Commit
	case prev.State == plan.PreviousNone:
		m.Commit = l.last.Commit
	case prev.State == plan.PreviousKnown && plan.ValidCommit(prev.Commit):
		m.Commit = prev.Commit
	default:
		m.nothing = fail(Refused, h.Name, "name a commit with --to", "it is not recorded from which commit the service ran before")
		return m.nothing
	}
	m.Target.Absent = prev.State == plan.PreviousNone
	return e.finishAt(ctx, c, h, m)
}

// planRemoval plans to remove the service that was applied last.
func (e *Engine) planRemoval(ctx context.Context, c *remote.Conn, h *hosts.Host, l *hostState, m *making) error {
	l.fill(e, h, m.source)
	if l.last == nil {
		return fail(Refused, h.Name, "remove it by hand, or apply a plan that adopts it", "nothing is recorded that could be removed")
	}
	m.Kind, m.Commit, m.Target.Absent = plan.Removal, l.last.Commit, true
	return e.finishAt(ctx, c, h, m)
}

// finishAt finishes a plan for the module at the plan's commit, which was applied before.
func (e *Engine) finishAt(ctx context.Context, c *remote.Conn, h *hosts.Host, m *making) error {
	old, err := e.load(ctx, m.Module, m.Commit)
	if err != nil {
		return err
	}
	l, err := e.query(ctx, c, h, old)
	if err != nil {
		return err
	}
	for i, wave := range old.module.Waves {
		if slices.Contains(wave, h.Name) {
			m.Wave = i + 1
		}
	}
	return e.finishPlan(ctx, c, h, old, l, &m.Made)
}

// fill adds the current job's plan and compose file from the records here, if the host has
// lost them. When it was applied, and by whom, the records here say better than the host.
func (l *hostState) fill(e *Engine, h *hosts.Host, s *source) {
	if l.last != nil && l.compose != nil {
		if r, err := e.readRecord(h.Name, s.module.ID, l.job[strings.Index(l.job, "-")+1:]); err == nil && r.Outcome == Applied && !r.Learned {
			l.applied, l.by = r.Ended, r.By
		}
		return
	}
	r, err := e.lastApplied(h.Name, s.module.ID)
	if r == nil || err != nil { // an unreadable record may be a later one
		return
	}
	p, digest, err := plan.Decode(r.Plan)
	if err != nil || l.job != "" && !strings.HasSuffix(l.job, "-"+digest) || p.Target.Project != s.module.Project || p.Target.Service != s.module.Service {
		return
	}
	l.last, l.applied, l.by = p, r.Ended, r.By
	if plan.Digest(r.Compose) == p.Source.Compose.SHA256 {
		l.compose = r.Compose
	}
}

// asApplied reports whether a container is of the image and configuration of a plan.
func asApplied(p *plan.Plan, now plan.Container) bool {
	t := &p.Target
	return !t.Absent && now.Hash == t.ConfigHash && (t.ImageID == "-" || now.Image == t.ImageID)
}

// inForce reports whether the host has what was applied there last, or nothing if that was
// removed.
func (l *hostState) inForce() bool {
	if l.last.Target.Absent || len(l.obs.Containers) == 0 {
		return l.last.Target.Absent && len(l.obs.Containers) == 0
	}
	return asApplied(l.last, l.obs.Containers[0]) && differs(l) == ""
}

// finishPlan compares the module with the host's state and encodes the plan.
func (e *Engine) finishPlan(ctx context.Context, c *remote.Conn, h *hosts.Host, s *source, l *hostState, m *Made) error {
	l.fill(e, h, s)
	p, mod := m.Plan, s.module
	p.Host = plan.Host{Name: h.Name, Address: h.Address, Port: h.Port, User: h.User, Keys: h.Fingerprints()}
	p.Source = s.desc
	p.Seen = plan.Seen{Text: l.text, SHA256: plan.Digest([]byte(l.text))}
	p.Target = plan.Target{Project: mod.Project, Service: mod.Service, Root: mod.Root, Binds: s.compose.Binds, Volumes: s.compose.Volumes, Image: s.compose.Image, ImageID: l.obs.Image, ConfigHash: l.hash,
		ComposeVersion: l.version, Absent: p.Target.Absent, StableFor: int(mod.StableFor / time.Second), StableChecked: int(mod.StableChecked / time.Second), Health: int(mod.Health / time.Second)}
	if p.Target.Binds == nil {
		p.Target.Binds = []string{}
	}
	if !p.Target.Absent && l.obs.Image == "-" && !s.compose.Pinned {
		return fail(Refused, h.Name, "write the image with its digest, name@sha256:…, or have it there before", "the image %s is not there, and its name does not say which it is", s.compose.Image)
	}
	var err error
	if len(l.obs.Containers) > 0 {
		if err := sameRoot(p, l.last, l.obs.Containers[0]); err != nil {
			return err
		}
	}
	if p.Previous, err = e.previous(ctx, c, h, s, l); err != nil {
		return err
	}
	// A previous state that Apply would reject counts as unknown.
	old, err := e.judgeBack(p, l.obs, s, func() (*source, error) { return e.load(ctx, p.Module, p.Previous.Commit) })
	if x := (*Error)(nil); errors.As(err, &x) && x.Outcome == Mismatch {
		p.Previous = plan.Previous{State: plan.PreviousUnknown}
	} else if err != nil {
		return err
	}
	if err := withinReach(p, l.obs); err != nil {
		return err
	}
	p.Changes = changes(p, l.obs, mod, old.files())
	life := e.Life
	if life == 0 {
		life = plan.DefaultLife
	}
	p.Created = time.Now().UTC().Truncate(time.Second)
	p.Expires = p.Created.Add(life)
	if m.Bytes, err = p.Encode(); err != nil {
		return err
	}
	m.Digest = plan.Digest(m.Bytes)
	return e.auditEvent(ctx, audit.ShipPlan, audit.Noted, p, m.Digest, string(p.Kind), fmt.Sprintf("%d changes", len(p.Changes)))
}

// previous returns the state that the host can go back to.
func (e *Engine) previous(ctx context.Context, c *remote.Conn, h *hosts.Host, s *source, l *hostState) (plan.Previous, error) {
	if len(l.obs.Containers) == 0 {
		return plan.Previous{State: plan.PreviousNone}, nil
	}
	now := l.obs.Containers[0]
	v := plan.Previous{State: plan.PreviousKnown, Ran: ran(now), ImageID: now.Image}
	switch {
	case l.last != nil && l.compose != nil && !l.last.Target.Absent:
		v.Job, v.Commit, v.Compose, v.Image = l.job, l.last.Commit, string(l.compose), l.last.Target.Image
		v.Unrecorded = !asApplied(l.last, now)
		if now.Hash != l.last.Target.ConfigHash {
			if v.ImageID = l.last.Target.ImageID; v.ImageID == "-" { // it drifted, and the id of the pulled image is not recorded
				return plan.Previous{State: plan.PreviousUnknown}, nil
			}
		}
	case now.Hash == l.hash && l.hash != "":
		v.Commit, v.Compose, v.Image = s.commit, string(s.compose.Data), s.compose.Image
		old, _, err := e.takenOver(ctx, c, h, s, l)
		if err != nil {
			return v, err
		}
		v.Unrecorded = old == nil || l.last != nil
	default:
		old, in, err := e.takenOver(ctx, c, h, s, l)
		if err != nil {
			return v, err
		}
		if old == nil {
			return plan.Previous{State: plan.PreviousUnknown}, nil
		}
		if err := e.recordImport(ctx, h.Name, s.module.ID, in); err != nil {
			return v, err
		}
		v.Commit, v.Compose, v.Image = old.commit, string(old.compose.Data), old.compose.Image
	}
	// A compose file from a host or a record must pass the same checks as one of a commit.
	if _, err := module.ParseCompose("previous compose file", s.module.Service, s.module.Root, []byte(v.Compose)); err != nil {
		return plan.Previous{State: plan.PreviousUnknown}, nil
	}
	return v, nil
}

// takenOver returns the module at the commit that an earlier tool applied, if that is what
// runs, else nil.
func (e *Engine) takenOver(ctx context.Context, c *remote.Conn, h *hosts.Host, s *source, l *hostState) (*source, *Imported, error) {
	old, in, err := e.imported(ctx, s.module.ID)
	if err != nil || old == nil || old.module.Project != s.module.Project || old.module.Service != s.module.Service || old.module.Root != s.module.Root {
		return nil, nil, err
	}
	hash := l.hash
	if !bytes.Equal(old.compose.Data, s.compose.Data) {
		was, err := e.query(ctx, c, h, old)
		if err != nil {
			return nil, nil, err
		}
		hash = was.hash
	}
	if hash != l.obs.Containers[0].Hash {
		return nil, nil, nil
	}
	return old, in, nil
}

// withinReach returns an error if a file or mount of the plan is in a directory that the
// running service can write to: the service could replace a directory there by a link
// during the apply. An unknown service may be able to write anywhere.
func withinReach(p *plan.Plan, obs *plan.Observation) error {
	switch {
	case p.Target.Absent || p.Previous.State == plan.PreviousNone || len(p.Source.Files) == 0 && len(p.Target.Binds) == 0:
		return nil
	case p.Previous.State != plan.PreviousKnown && len(obs.Containers) > 0:
		return fail(Refused, p.Host.Name, "look at it there, and remove it: docker rm -f "+obs.Containers[0].ID[:12],
			"it is not known from which file the service runs, and so not whether it can write where files and mounts of the new one go")
	case p.Previous.State != plan.PreviousKnown:
		return fail(Mismatch, p.Host.Name, "make a new plan", "what runs is not known, and nothing was seen to run")
	}
	now, err := module.ParseCompose("previous compose file", p.Target.Service, p.Target.Root, []byte(p.Previous.Compose))
	if err != nil {
		return &Error{Refused, p.Host.Name, err, "make a new plan"}
	}
	for _, w := range now.Writable {
		for _, f := range p.Source.Files {
			if at := p.Target.Root + "/" + f.Path; at == w || strings.HasPrefix(at, w+"/") {
				return fail(Refused, p.Host.Name, "ship a version without that mount first", "the file %s lies in %s, which what runs now can write to", f.Path, w)
			}
		}
		for _, b := range p.Target.Binds {
			if strings.HasPrefix(b, w+"/") {
				return fail(Refused, p.Host.Name, "ship a version without that mount first", "the mount %s lies in %s, which what runs now can write to", b, w)
			}
		}
	}
	return nil
}

// changes returns the differences between a plan's target and the observation, files
// first, in the order of applying. before lists the files that were applied last: the
// observation has their contents, but not whether they are executable.
func changes(p *plan.Plan, obs *plan.Observation, m *module.Module, before []plan.File) []plan.Change {
	out := []plan.Change{}
	t := &p.Target
	add := func(what, action, from, to, why string) {
		out = append(out, plan.Change{What: what, Action: action, From: from, To: to, Why: why,
			Destructive: action == plan.Remove || slices.Contains(m.Destructive, action)})
	}
	service := "compose.service." + t.Service
	if t.Absent {
		if len(obs.Containers) > 0 {
			add(service, plan.Remove, obs.Containers[0].Image, "-", "")
		}
		return out
	}
	for _, f := range p.Source.Files {
		switch have := obs.Files[f.Path]; have {
		case f.SHA256:
			if slices.Contains(before, plan.File{Path: f.Path, SHA256: f.SHA256, Size: f.Size, Exec: !f.Exec}) {
				add("file."+f.Path, plan.Update, have, f.SHA256, "whether it can be executed is another one")
			} else if v := &p.Previous; v.Job != "" && !slices.ContainsFunc(before, func(b plan.File) bool { return b.Path == f.Path && b.SHA256 == f.SHA256 }) {
				add("file."+f.Path, plan.Adopt, have, f.SHA256, "it is there already, and was not applied")
			}
		case "-":
			add("file."+f.Path, plan.Create, "-", f.SHA256, "")
		case "other":
			add("file."+f.Path, plan.Update, have, f.SHA256, "what is there is no file, and could not be brought back")
			out[len(out)-1].Destructive = true
		default:
			add("file."+f.Path, plan.Update, have, f.SHA256, "")
		}
	}
	files := len(out) > 0
	to := t.Image + " (" + t.ImageID + ")"
	if len(obs.Containers) == 0 {
		add(service, plan.Create, "-", to, "")
		return out
	}
	now := obs.Containers[0]
	from := now.Image
	switch {
	case now.Hash != t.ConfigHash:
		add(service, plan.Update, from, to, "its configuration is another one")
	case t.ImageID != "-" && now.Image != t.ImageID:
		add(service, plan.Recreate, from, to, "its image is another one")
	case files:
		add(service, plan.Recreate, from, to, "it reads its files anew")
	case now.Status != "running":
		add(service, plan.Recreate, from, to, "it is "+now.Status)
	case p.Previous.Unrecorded:
		add(service, plan.Adopt, from, to, "it runs already, and no record has it")
	default:
		return out
	}
	if p.Previous.State == plan.PreviousUnknown {
		last := &out[len(out)-1]
		last.Destructive, last.Why = true, last.Why+"; what runs now was not put there by carboy and could not be brought back"
	}
	return out
}

// backFile returns the previous compose file with its image by digest, for a rollback. It
// must pass the same checks as the file of a commit.
func backFile(p *plan.Plan) ([]byte, error) {
	c, err := module.ParseCompose("previous compose file", p.Target.Service, p.Target.Root, []byte(p.Previous.Compose))
	if err != nil {
		return nil, err
	}
	b, err := c.WithImage(p.Previous.ImageID)
	if err != nil {
		return nil, err
	}
	if bytes.IndexByte(b, 0) >= 0 {
		return nil, errors.New("previous compose file: zero byte")
	}
	again, err := module.ParseCompose("previous compose file with its image by digest", p.Target.Service, p.Target.Root, b)
	if err != nil {
		return nil, err
	}
	if again.Image != p.Previous.ImageID || !slices.Equal(again.Binds, c.Binds) || !slices.Equal(again.Volumes, c.Volumes) || !slices.Equal(again.Writable, c.Writable) {
		return nil, errors.New("previous compose file: it means something else with its image by digest")
	}
	return b, nil
}
