package ship

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/ship/plan"
	"github.com/carboy/carboy/internal/ship/shiptest"
)

// TestLastRollout: a rollback is of the hosts that applied what was rolled out last, and of
// those where something else runs.
func TestLastRollout(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	at := time.Date(2026, 11, 28, 10, 0, 0, 0, time.UTC)
	of := func(commit string, kind plan.Operation) *plan.Plan {
		return &plan.Plan{Commit: strings.Repeat(commit, 40), Kind: kind}
	}
	nothing := errors.New("nothing is recorded")
	host := func(name string, undoes *plan.Plan, hours int) *making {
		return &making{host: name, undoes: undoes, applied: at.Add(time.Duration(hours) * time.Hour)}
	}
	for name, x := range map[string]struct {
		all  []*making
		want []string // nil: an error
	}{
		"of all":            {[]*making{host("a", of("2", plan.Apply), 2), host("b", of("2", plan.Apply), 3)}, []string{"a", "b"}},
		"half failed":       {[]*making{host("a", of("2", plan.Apply), 2), host("b", of("1", plan.Apply), 1)}, []string{"a"}},
		"gone back already": {[]*making{host("a", of("1", plan.Rollback), 3), host("b", of("1", plan.Apply), 1)}, []string{"a"}},
		"one astray":        {[]*making{host("a", of("2", plan.Apply), 2), {host: "b", undoes: of("1", plan.Apply), applied: at, astray: true}}, []string{"a", "b"}},
		"one new":           {[]*making{host("a", of("2", plan.Apply), 2), {host: "b", nothing: nothing}}, []string{"a"}},
		"the last unknown":  {[]*making{host("a", of("1", plan.Apply), 1), {host: "b", undoes: of("2", plan.Apply), applied: at.Add(2 * time.Hour), nothing: nothing}}, nil},
		"none applied":      {[]*making{{host: "a", nothing: nothing}}, nil},
	} {
		got, err := p.e.lastRollout(x.all)
		var names []string
		for _, m := range got {
			names = append(names, m.host)
		}
		if !slices.Equal(names, x.want) || (err != nil) != (x.want == nil) {
			t.Errorf("%s: %v %v, want %v", name, names, err, x.want)
		}
	}
}

// TestShallow: a clone without the commit that runs refuses a plan and says what to do; it
// makes no plan that calls an ordinary change destructive.
func TestShallow(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	last := p.draw(nil)
	old := shiptest.Compose("web", "v1", "ok")
	p.repo.Write(t, "modules/web/compose.yaml", shiptest.Compose("web", "v2", "ok"))
	commit := p.repo.Commit(t)
	whole := p.repo.Dir
	shallow := t.TempDir() + "/clone"
	p.repo.Git(t, "clone", "-q", "--depth", "1", "file://"+whole, shallow)
	made := func() (Made, error) {
		l := &hostState{hash: strings.Repeat("3", 64), version: "5", job: "100001-" + last.Digest, last: last.Plan, compose: []byte(old)}
		l.text = "carboy-observed 1\nimage " + someImage + "\n" + container("2") + "\ncurrent " + l.job + "\n"
		var err error
		if l.obs, err = plan.Observe(l.text); err != nil {
			t.Fatal(err)
		}
		_, h, err := p.e.host("one")
		if err != nil {
			t.Fatal(err)
		}
		s, err := p.e.load(p.ctx(), "web", commit)
		if err != nil {
			t.Fatal(err)
		}
		m := Made{Plan: &plan.Plan{Schema: plan.Schema, Kind: plan.Apply, Module: "web", Wave: 1, Commit: commit, Clean: true, By: "tests"}}
		return m, p.e.finishPlan(p.ctx(), nil, h, s, l, &m)
	}
	if m, err := made(); err != nil || m.Destructive() {
		t.Fatalf("with all of history: %+v %v", m.Changes, err)
	}
	p.e.Repo = shallow
	_, err := made()
	var x *Error
	if !errors.As(err, &x) || x.Outcome != Refused || x.Advice != "git fetch --unshallow" || !strings.Contains(err.Error(), last.Commit[:12]) {
		t.Errorf("shallow: %v", err)
	}
	if _, err := p.e.Plan(p.ctx(), PlanOptions{Module: "web", Rollback: true, To: last.Commit}); !errors.Is(err, errShallow) {
		t.Errorf("going back, shallow: %v", err)
	}
	if _, err := p.e.load(p.ctx(), "db", commit); err == nil || errors.Is(err, errShallow) {
		t.Errorf("another error: %v", err)
	}
	if n := p.knocks.Load(); n != 0 {
		t.Errorf("the host was connected to %d times", n)
	}
}

// TestRemoval: a service goes by a plan that destroys, also when its module has gone from
// the repository, and until then it stands in the status as an orphan.
func TestRemoval(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	w.commit("keep", "v1", "ok")
	w.commit("rm", "v1", "ok")
	if a, b := w.ship("rm"), w.ship("keep"); a != Applied || b != Applied {
		t.Fatal(a, b)
	}
	if _, err := w.e.Plan(w.ctx(), PlanOptions{Module: "rm", Remove: true, Hosts: []string{"two"}}); outcomeOf(nil, err) != Refused {
		t.Errorf("on a host that never had it: %v", err)
	}
	if err := os.RemoveAll(w.repo.Dir + "/modules/rm"); err != nil {
		t.Fatal(err)
	}
	w.repo.Commit(t)
	all := func() string {
		t.Helper()
		st, err := w.e.StatusAll(w.ctx())
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, s := range st {
			out = append(out, s.Module+" "+s.State)
		}
		return strings.Join(out, ", ")
	}
	if got := all(); got != "keep current, rm orphaned" {
		t.Errorf("status: %s", got)
	}
	if st := w.status("rm"); st.State != stateOrphaned || !strings.Contains(st.Next, "carboy plan rm --remove --host one") {
		t.Errorf("%+v", st)
	}
	m, err := w.e.Plan(w.ctx(), PlanOptions{Module: "rm", Remove: true})
	if err != nil {
		t.Fatal(err)
	}
	if m[0].Kind != plan.Removal || m[0].Action() != plan.Remove || !m[0].Destructive() {
		t.Fatalf("%+v", m[0].Changes)
	}
	if o, _ := w.apply(m[0], w.approve("alice", false, m[0])); o != Destructive {
		t.Errorf("without the word: %s", o)
	}
	w.want("rm", "v1 running")
	if o, err := w.apply(m[0], w.approve("alice", true, m[0])); o != Applied {
		t.Fatal(o, err)
	}
	w.want("rm", "nothing")
	w.want("keep", "v1 running")
	if got := all(); got != "keep current" {
		t.Errorf("status: %s", got)
	}
	if m, err = w.e.Plan(w.ctx(), PlanOptions{Module: "rm", Remove: true}); err != nil || len(m[0].Changes) != 0 {
		t.Errorf("once more: %+v %v", m, err)
	}
}

// TestP1Removal: a plan that only says that it removes is none.
func TestP1Removal(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	d := *p.draw(nil).Plan
	d.Kind = plan.Removal
	if _, err := d.Encode(); err == nil {
		t.Error("a removal that leaves the service there")
	}
	now := shiptest.Compose("web", "v1", "ok")
	removal := func(change func(*plan.Plan)) Made {
		return p.draw(func(d *plan.Plan) {
			d.Kind, d.Target.Absent = plan.Removal, true
			d.Previous = plan.Previous{State: plan.PreviousKnown, Job: someJob, Commit: d.Commit, Compose: now, Image: "app:v1", ImageID: someImage, Ran: true}
			if change != nil {
				change(d)
			}
			p.see(d, container("2"), "current "+someJob)
		})
	}
	m := removal(nil)
	p.reaches("a removal", m, p.approve("alice", true, m))
	p.refused("without the word", Destructive, [][]byte{m.Bytes}, p.approve("alice", false, m))
	m = removal(func(d *plan.Plan) { d.Previous.Compose += "    command: [/other]\n" })
	p.refused("with another file to remove by", Mismatch, [][]byte{m.Bytes}, p.approve("alice", true, m))
	m = removal(func(d *plan.Plan) { d.Previous = plan.Previous{State: plan.PreviousUnknown} })
	p.refused("of what nobody knows", Refused, [][]byte{m.Bytes}, p.approve("alice", true, m))
	p.repo.Write(t, "README", "later")
	p.repo.Commit(t)
	m = removal(func(d *plan.Plan) { d.Commit = p.repo.Git(t, "rev-parse", "HEAD~1"); d.Previous.Commit = d.Commit })
	p.reaches("of a commit that was applied before", m, p.approve("alice", true, m))
}

// TestOneProject: modules of one project are applied beside each other, and Compose calls
// neither an orphan.
func TestOneProject(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	for _, id := range []string{"pa", "pb"} {
		w.commit(id, "v1", "ok")
		w.repo.Write(t, "modules/"+id+"/module.yaml", shiptest.Module(id, w.host.Root+"/"+id, "one")+"    project: pshop\n")
		w.repo.Commit(t)
		if got := w.ship(id); got != Applied {
			t.Fatal(id, got)
		}
	}
	w.want("pshop", "v1 running, v1 running")
	for _, p := range w.said {
		if strings.Contains(strings.ToLower(p.Text), "orphan") {
			t.Errorf("%s %s", p.Step, p.Text)
		}
	}
}

// TestP4Limits: what hangs on a host is ended within two seconds of the time that was asked
// for.
func TestP4Limits(t *testing.T) {
	t.Parallel()
	w, _ := newHut(t)
	m, a := w.lairPlan()
	deaf := "trap '' TERM; while :; do sleep 600; done"
	w.host.Program(t, "docker", `case "$*" in *" up "*) `+deaf+` ;; esac
`+fakeDocker(m))
	w.e.Up, w.e.Other = 2*time.Second, 2*time.Second
	if o, err := w.apply(m, a); o != Failed || !errors.Is(err, ErrDeadline) {
		t.Fatalf("%s %v", o, err)
	}
	var ran, ended time.Time
	for _, p := range w.said {
		switch {
		case p.Step == "run" && ran.IsZero():
			ran = p.At
		case p.Step == "deadline":
			ended = p.At
		}
	}
	if took := ended.Sub(ran); ran.IsZero() || took < 2*time.Second || took > 4*time.Second {
		t.Errorf("docker compose up was ended after %v, want 2 to 4 s", took)
	}
	// Looking too is one of the other commands.
	w.host.Program(t, "docker", `case "$*" in ps*) `+deaf+` ;; esac
`+fakeDocker(m))
	began := time.Now()
	if _, err := w.e.Plan(w.ctx(), PlanOptions{Module: "web"}); outcomeOf(nil, err) != Failed || !strings.Contains(err.Error(), "docker does not answer") {
		t.Errorf("a Docker that hangs: %v", err)
	}
	if took := time.Since(began); took > lookTime/2 {
		t.Errorf("it was waited for %v", took)
	}
}

// TestP4Damaged: an old job on the host that is damaged is in the way of nothing; the
// newest is.
func TestP4Damaged(t *testing.T) {
	t.Parallel()
	w, jobs := newHut(t)
	m, a := w.lairPlan()
	w.host.Program(t, "docker", fakeDocker(m))
	put := func(n string, files map[string]string) {
		dir := jobs + n + "-" + strings.Repeat(n[5:], 64)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if err := os.WriteFile(dir+"/"+name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	const good = "carboy.dev/ship-job/v1\n"
	put("100001", nil)
	put("100002", map[string]string{"schema": good, "plan.json": "{", "steps": "x"})
	put("100003", map[string]string{"schema": "", "result": ""})
	put("100004", map[string]string{"schema": "\x00\x00", "result": "failed 1700000000 x\n"})
	put("100005", map[string]string{"schema": good, "result": "failed 1700000000 x\n"})
	if o, err := w.apply(m, a); o != Applied {
		t.Errorf("behind damaged jobs: %s %v", o, err)
	}
	if st := w.status("web"); st.Settled != nil || st.State != stateCurrent {
		t.Errorf("%+v", st)
	}
	put("100009", map[string]string{"schema": "", "result": "failed 1700000000 x\n"})
	if st, err := w.e.Status(w.ctx(), "web"); err != nil || !strings.Contains(st[0].Error, "damaged") {
		t.Errorf("the newest is damaged: %+v %v", st, err)
	}
}
