package ship

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/hosts"
	"github.com/carboy/carboy/internal/ship/module"
	"github.com/carboy/carboy/internal/ship/plan"
	"github.com/carboy/carboy/internal/ship/remote"
)

// Status describes a module on one host.
type Status struct {
	Host   string `json:"host"`
	Module string `json:"module"`
	// State compares what runs with what was applied last, and then with the checked-out
	// commit. As it was applied: "current" (and as in the commit), "behind" (the commit
	// differs), "exited" (it does not run), "unhealthy". Otherwise: "absent", "drifted" (a
	// file was changed, or what runs is of another plan on record), "unapproved" (no record
	// has what runs), "rollback-failed" (since an apply that could not be taken back),
	// "orphaned" (the commit does not have the module on the host any more). With Error:
	// "unreachable", "unknown".
	State   string    `json:"state"`
	Why     string    `json:"why,omitempty"`  // what is known of it: what runs, who applied it, when
	Next    string    `json:"next,omitempty"` // what to do
	Health  string    `json:"health,omitempty"`
	Applied string    `json:"applied,omitempty"` // the commit that was applied last
	At      time.Time `json:"applied_at,omitzero"`
	By      string    `json:"applied_by,omitempty"`
	// Restarts counts how often Docker has started the service again since it was applied.
	Restarts int           `json:"restarts"`
	Changes  []plan.Change `json:"changes"` // the changes of a plan made now
	Error    string        `json:"error,omitempty"`
	// Err is the error behind Error, an [Error] if it has an outcome.
	Err error `json:"-"`
	// Settled is an interrupted apply that Status completed or rolled back.
	Settled *Entry `json:"settled,omitempty"`
	// Imported is the state that an earlier tool left.
	Imported *Imported `json:"imported,omitempty"`
	// Busy names who is applying now.
	Busy string `json:"busy,omitempty"`
}

// Entry is one entry of a history.
type Entry struct {
	Host      string         `json:"host"`
	Module    string         `json:"module"`
	Plan      string         `json:"plan"`
	Job       string         `json:"job,omitempty"`
	Kind      plan.Operation `json:"kind"`
	Commit    string         `json:"commit"`
	Outcome   Outcome        `json:"outcome"`
	Why       string         `json:"why,omitempty"`
	Began     time.Time      `json:"began"`
	Ended     time.Time      `json:"ended,omitzero"`
	By        string         `json:"by"`
	Approvals []Approved     `json:"approvals"`
	Changes   []plan.Change  `json:"changes"`
	Steps     []string       `json:"steps,omitempty"`
	// Evidence says why it was not applied or not healthy: output of Docker, of the service
	// and its healthcheck.
	Evidence []string `json:"evidence,omitempty"`
}

// Approved describes an approval in a record.
type Approved struct {
	Approver string    `json:"approver"`
	Time     time.Time `json:"time"`
	Purpose  string    `json:"purpose"`
	Digest   string    `json:"digest"`
	// Verified is true if the present allowed_signers accepts the signature. A record that
	// came from a host may name anybody.
	Verified bool `json:"verified"`
	// Review names the review by which it was approved, as a forge told of it then. No key
	// signed it, so it is never Verified. Empty: it is a signature.
	Review string `json:"review,omitempty"`
}

// target loads a module at the checked-out commit.
func (e *Engine) target(ctx context.Context, id string) (*source, error) {
	if err := validModule(id); err != nil {
		return nil, err
	}
	commit, _, err := e.head(ctx)
	if err != nil {
		return nil, err
	}
	return e.load(ctx, id, commit)
}

// Modules returns the names of the modules in the checked-out commit, sorted.
func (e *Engine) Modules(ctx context.Context) ([]string, error) {
	commit, _, err := e.head(ctx)
	if err != nil {
		return nil, err
	}
	all, err := e.list(ctx, commit, "modules")
	if err != nil {
		return nil, err
	}
	var out []string
	for name := range all {
		id, ok := strings.CutPrefix(strings.TrimSuffix(name, "/module.yaml"), "modules/")
		if ok && !strings.Contains(id, "/") && strings.HasSuffix(name, "/module.yaml") {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out, nil
}

// StatusAll returns the states of all modules of the checked-out commit, and of services
// whose module went away; see [Engine.Status].
func (e *Engine) StatusAll(ctx context.Context, only ...string) ([]Status, error) {
	ids, err := e.Modules(ctx)
	if err != nil {
		return nil, err
	}
	names, err := filepath.Glob(filepath.Join(e.State, "records", "*", "*"))
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		if id := filepath.Base(n); module.ValidID(id) && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	out := []Status{}
	for _, id := range ids {
		st, err := e.states(ctx, id, only)
		if gone := (*noModule)(nil); errors.As(err, &gone) {
			continue // it was removed
		}
		if err != nil {
			return nil, err
		}
		out = append(out, st...)
	}
	return out, nil
}

// Status queries each host of a module, or those that are named. It first completes or
// rolls back an interrupted apply there, and changes nothing else. It also returns the
// services of the module on hosts that the checked-out commit does not have it on, by the
// records here.
func (e *Engine) Status(ctx context.Context, id string, only ...string) ([]Status, error) {
	out, err := e.states(ctx, id, only)
	if err == nil && len(out) == 0 && len(only) > 0 {
		err = fail(Refused, "", "name hosts of modules/"+id+"/module.yaml", "the module %s has no host %.200q", id, only)
	}
	return out, err
}

// states is Status; it returns nothing if the module is on none of the named hosts.
func (e *Engine) states(ctx context.Context, id string, only []string) ([]Status, error) {
	s, err := e.target(ctx, id)
	gone := (*noModule)(nil)
	if err != nil && !errors.As(err, &gone) {
		return nil, err
	}
	in, ierr := e.readImported(id)
	if ierr != nil {
		return nil, ierr
	}
	wanted := func(name string) bool { return len(only) == 0 || slices.Contains(only, name) }
	var names []string
	var sources []*source
	if gone == nil {
		for _, name := range slices.Concat(s.module.Waves...) {
			if wanted(name) {
				names, sources = append(names, name), append(sources, s)
			}
		}
	}
	here := len(names)
	orphans, oerr := e.orphans(id, s)
	if oerr != nil {
		return nil, oerr
	}
	for _, name := range slices.Sorted(maps.Keys(orphans)) {
		if wanted(name) {
			names, sources = append(names, name), append(sources, orphans[name])
		}
	}
	if len(orphans) == 0 && gone != nil {
		return nil, err
	}
	out := make([]Status, len(names))
	var g errgroup.Group
	for i, name := range names {
		out[i] = Status{Host: name, Module: id, State: stateUnknown, Changes: []plan.Change{}, Imported: in}
		g.Go(func() error {
			if err := e.statusOn(ctx, sources[i], &out[i]); err != nil {
				if errors.Is(err, remote.ErrUnreachable) || errors.Is(err, remote.ErrCut) {
					out[i].State = stateUnreachable
				}
				out[i].Err, out[i].Error = err, shown(err.Error())
			}
			if i >= here {
				out[i].orphan()
			}
			return nil
		})
	}
	g.Wait()
	return slices.DeleteFunc(out, func(st Status) bool { return st.State == stateRemoved }), nil
}

// orphans returns what was applied last of a module on hosts where the checked-out commit
// does not have it: s is that commit's module, nil for none.
func (e *Engine) orphans(id string, s *source) (map[string]*source, error) {
	dirs, err := os.ReadDir(filepath.Join(e.State, "records"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	out := map[string]*source{}
	for _, d := range dirs {
		if s != nil && slices.Contains(slices.Concat(s.module.Waves...), d.Name()) {
			continue
		}
		r, err := e.lastApplied(d.Name(), id)
		if r == nil || err != nil { // history tells of records that cannot be read
			continue
		}
		p, _, err := plan.Decode(r.Plan)
		if err != nil || p.Target.Absent {
			continue
		}
		if _, _, err := e.host(d.Name()); err != nil { // it is no host of the operator's any more
			continue
		}
		t := &p.Target
		out[d.Name()] = &source{commit: p.Commit, desc: p.Source, compose: &module.Compose{Data: r.Compose, Image: t.Image, Binds: t.Binds},
			module: &module.Module{ID: id, Project: t.Project, Service: t.Service, Root: t.Root}}
	}
	return out, nil
}

// orphan says of a service whose module went away that it is an orphan, if it is still
// there as carboy knows it.
func (st *Status) orphan() {
	switch {
	case st.State == stateAbsent:
		st.State = stateRemoved
	case slices.Contains([]string{stateCurrent, stateBehind, stateExited, stateUnhealthy, stateDrifted}, st.State):
		st.State, st.Changes = stateOrphaned, []plan.Change{}
		st.Why = "the commit does not have the module on this host any more"
		st.Next = fmt.Sprintf("carboy plan %s --remove --host %s -o plans plans to remove it", st.Module, st.Host)
	}
}

func (e *Engine) statusOn(ctx context.Context, s *source, st *Status) error {
	all, h, err := e.host(st.Host)
	if err != nil {
		return err
	}
	if err := admit(h, s.module.Root); err != nil {
		return err
	}
	c, err := remote.Dial(ctx, all, h, e.Keys)
	if err != nil {
		return unreached(err)
	}
	defer c.Close()
	near := &plan.Plan{Module: st.Module, Target: plan.Target{Project: s.module.Project, Service: s.module.Service, Root: s.module.Root}}
	jobs, a, err := e.jobs(ctx, c, h, &near.Target)
	if err != nil {
		return unreached(err)
	}
	if busy, ok := a.words["@locked"]; ok {
		st.Busy = shown(busy)
		return fail(Locked, h.Name, "", "an apply is going on: %s", st.Busy)
	}
	if u := a.words["@unfinished"]; u != "-" && u != "" {
		if !h.Apply {
			return fail(Refused, h.Name, "", "a job was interrupted there, and the host may not be changed")
		}
		r, err := e.settle(ctx, c, h, near)
		if err != nil {
			return err
		}
		st.Settled = e.entry(h.Name, r)
		if jobs, a, err = e.jobs(ctx, c, h, &near.Target); err != nil {
			return unreached(err)
		}
	}
	e.adopt(h, st.Module, jobs, a.words["@current"])
	return unreached(e.compare(ctx, c, h, s, st, jobs))
}

// compare fills in the status by comparing the service with the last applied plan and with
// the commit. jobs are those of the host.
func (e *Engine) compare(ctx context.Context, c *remote.Conn, h *hosts.Host, s *source, st *Status, jobs []*hostJob) error {
	l, err := e.queryWith(ctx, c, h, s, "1")
	if err != nil {
		return err
	}
	l.fill(e, h, s)
	v := &view{l: l, records: e.recordsOf(h.Name, &plan.Target{Project: s.module.Project, Service: s.module.Service}, st.Module), told: func(r *record) string { return e.told(h.Name, r) }}
	v.broken = e.broken(h.Name, jobs, v.records)
	p := &plan.Plan{Source: s.desc, Target: plan.Target{Service: s.module.Service, Image: s.compose.Image, ImageID: l.obs.Image, ConfigHash: l.hash}}
	p.Previous = plan.Previous{State: plan.PreviousKnown, Job: l.job}
	var before []plan.File
	if l.last != nil {
		before = l.last.Source.Files
		st.Applied, st.At, st.By = l.last.Commit, l.applied, shown(l.by)
	}
	if len(l.obs.Containers) > 0 {
		now := l.obs.Containers[0]
		if st.Health = now.Status; now.Health != "none" {
			st.Health += ", " + now.Health
		}
		st.Restarts, _ = strconv.Atoi(now.Restarts)
		if l.last == nil {
			old, _, err := e.takenOver(ctx, c, h, s, l)
			if err != nil {
				return err
			}
			v.takenOver = old != nil
			p.Previous.Unrecorded = !v.takenOver
		} else {
			p.Previous.Unrecorded = !asApplied(l.last, now)
		}
	}
	st.Changes = changes(p, l.obs, s.module, before)
	v.judge(st)
	return nil
}

// adopt writes records for jobs that only the host knows. It removes records with the
// outcome [Sent] whose plan can no longer become a job. Time cannot decide that, because a
// plan may arrive late. But a plan names the job that was current when it was made: once
// another job is current, the host refuses the plan as stale. If the host lists keptJobs
// jobs, it may have more, so nothing is removed.
func (e *Engine) adopt(h *hosts.Host, id string, jobs []*hostJob, current string) {
	all, _ := e.records(h.Name, id) // keep unreadable ones
	for _, r := range all {
		if r.Outcome != Sent || current == "" || len(jobs) >= keptJobs || slices.ContainsFunc(jobs, func(j *hostJob) bool { return j.digest == r.Digest }) {
			continue
		}
		p, _, err := plan.Decode(r.Plan)
		if err != nil {
			continue
		}
		if obs, err := plan.Observe(p.Seen.Text); err == nil && cmp.Or(obs.Current, "-") != current {
			os.Remove(e.recordFile(h.Name, id, r.Digest))
		}
	}
	for _, j := range jobs {
		old, err := e.readRecord(h.Name, j.plan.Module, j.digest)
		if j.outcome == "" || j.plan.Host.Name != h.Name || j.plan.Module != id || err == nil && old.Outcome.settled() && old.Job == j.name {
			continue
		}
		e.writeRecord(h.Name, j.plan.Module, e.merge(h.Name, j)) // on failure, the host still has it
	}
}

// History returns what was applied of a module, newest first, from the records of this
// machine and of the hosts that can be reached. problems has an error for each host that
// could not be queried, an [Error] if it has an outcome, and for unreadable records.
func (e *Engine) History(ctx context.Context, id string) (entries []Entry, problems []error, err error) {
	s, err := e.target(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	for _, w := range s.module.Waves {
		for _, name := range w {
			if err := e.learn(ctx, s, name); err != nil {
				problems = append(problems, err)
			}
		}
	}
	dirs, err := os.ReadDir(filepath.Join(e.State, "records"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, problems, err
	}
	for _, d := range dirs {
		all, err := e.records(d.Name(), id)
		if err != nil {
			problems = append(problems, err)
		}
		for _, r := range all {
			if x := e.entry(d.Name(), r); x != nil {
				entries = append(entries, *x)
			}
		}
	}
	if dirs, err = os.ReadDir(filepath.Join(e.State, "imports")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, problems, err
	}
	for _, d := range dirs {
		all, err := e.imports(d.Name(), id)
		if err != nil {
			problems = append(problems, err)
		}
		entries = append(entries, all...)
	}
	slices.SortStableFunc(entries, func(a, b Entry) int { return b.Began.Compare(a.Began) })
	return entries, problems, nil
}

// learn adopts the jobs of one host.
func (e *Engine) learn(ctx context.Context, s *source, name string) error {
	all, h, err := e.host(name)
	if err != nil {
		return err
	}
	c, err := remote.Dial(ctx, all, h, e.Keys)
	if err != nil {
		return unreached(err)
	}
	defer c.Close()
	jobs, a, err := e.jobs(ctx, c, h, &plan.Target{Project: s.module.Project, Service: s.module.Service, Root: s.module.Root})
	if err != nil {
		return unreached(err)
	}
	if _, busy := a.words["@locked"]; !busy {
		e.adopt(h, s.module.ID, jobs, a.words["@current"])
	}
	return nil
}

func (e *Engine) entry(host string, r *record) *Entry {
	p, _, err := plan.Decode(r.Plan)
	if err != nil {
		return nil
	}
	x := &Entry{Host: host, Module: p.Module, Plan: r.Digest, Job: r.Job, Kind: p.Kind, Commit: p.Commit, Outcome: r.Outcome, Why: r.Why, Began: r.Began, Ended: r.Ended, By: r.By,
		Changes: p.Changes, Steps: r.Steps, Evidence: r.Evidence, Approvals: []Approved{}}
	for _, a := range r.Approvals {
		var s approval.Statement
		if json.Unmarshal(a.Statement, &s) == nil {
			x.Approvals = append(x.Approvals, Approved{shown(s.Approver), s.Time, shown(s.Purpose), a.Digest(), e.verified(a, r.Digest), ""})
		}
	}
	for _, a := range r.Reviews {
		x.Approvals = append(x.Approvals, Approved{Approver: shown(a.Approver), Time: a.Submitted, Review: shown(a.String())})
	}
	return x
}

// verified reports whether an approval covers a plan and is accepted today.
func (e *Engine) verified(a approval.Signed, digest string) bool {
	v, err := e.verifier()
	if err != nil {
		return false
	}
	got, err := v.Verify(context.Background(), a, time.Now())
	return err == nil && slices.Contains(got.Plans, digest)
}
