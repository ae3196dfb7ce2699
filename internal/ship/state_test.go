package ship

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/plan"
	"github.com/carboy/carboy/internal/ship/shiptest"
	"github.com/carboy/carboy/internal/testenv"
)

// TestState: what runs is compared with what was applied last before it is compared with
// the commit, and each state says what is known and what to do.
func TestState(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	const other = "sha256:6666666666666666666666666666666666666666666666666666666666666666"
	hash := func(digit string) string { return strings.Repeat(digit, 64) }
	inForce := p.draw(func(d *plan.Plan) { d.By = "alice@desk" })
	older := p.draw(func(d *plan.Plan) { d.By, d.Target.ConfigHash = "bob@desk", hash("4") })
	tried := p.draw(func(d *plan.Plan) { d.By, d.Target.ConfigHash, d.Target.ImageID = "carol@desk", hash("5"), other })
	gone := p.draw(func(d *plan.Plan) { d.By, d.Target.Absent = "alice@desk", true })
	at := time.Date(2026, 11, 28, 10, 0, 0, 0, time.UTC)
	ended := func(m Made, o Outcome) *record {
		return &record{Digest: m.Digest, Plan: m.Bytes, Approvals: []approval.Signed{p.approve("alice", false, m)}, Outcome: o, Why: "so it was", Began: at, Ended: at, By: m.By}
	}
	records := []*record{ended(older, Applied), ended(inForce, Applied), ended(tried, RolledBack)}
	runs := func(digit, image, status, health string) []plan.Container {
		return []plan.Container{{ID: someContainer, Image: image, Hash: hash(digit), Status: status, Health: health, Restarts: "0"}}
	}
	asIs := runs("2", someImage, "running", "healthy")
	todo := []plan.Change{{What: "compose.service.web", Action: plan.Update}}
	adopt := []plan.Change{{What: "compose.service.web", Action: plan.Adopt}}
	for name, x := range map[string]struct {
		last       *plan.Plan
		containers []plan.Container
		file       string // digest on the host of a synced file
		changes    []plan.Change
		broken     bool
		takenOver  bool
		want       string
		says, next string
	}{
		"as applied, and as the commit":    {last: inForce.Plan, containers: asIs, want: "current"},
		"as applied":                       {last: inForce.Plan, containers: asIs, changes: todo, want: "behind", next: "carboy plan web"},
		"with a file changed":              {last: inForce.Plan, containers: asIs, file: hash("0"), want: "drifted", says: "the file a.conf", next: "carboy rollback web"},
		"stopped":                          {last: inForce.Plan, containers: runs("2", someImage, "exited", "none"), changes: todo, want: "exited", says: "is exited", next: "docker logs"},
		"restarting":                       {last: inForce.Plan, containers: runs("2", someImage, "restarting", "none"), changes: todo, want: "exited", says: "is restarting"},
		"ill":                              {last: inForce.Plan, containers: runs("2", someImage, "running", "unhealthy"), want: "unhealthy", says: "its healthcheck fails"},
		"removed":                          {last: inForce.Plan, changes: todo, want: "absent", says: "its container is gone", next: "carboy plan web"},
		"never applied":                    {changes: todo, want: "absent"},
		"removed by us":                    {last: gone.Plan, changes: todo, want: "absent"},
		"an older version":                 {last: inForce.Plan, containers: runs("4", someImage, "running", "none"), changes: todo, want: "drifted", says: "applied at 2026-11-28T10:00:00Z by bob@desk, approved by alice@example.org", next: "carboy rollback web"},
		"what was rolled back":             {last: inForce.Plan, containers: runs("5", other, "running", "none"), changes: adopt, want: "drifted", says: "rolled-back at 2026-11-28T10:00:00Z by carol@desk"},
		"by hand, as the commit":           {last: inForce.Plan, containers: runs("7", someImage, "running", "none"), changes: adopt, want: "unapproved", says: "image app:evil, since 2026-11-28T11:12:13Z, from /home/mallory/compose.yaml", next: "to adopt what runs"},
		"by hand, the same file":           {last: inForce.Plan, containers: runs("2", other, "running", "none"), changes: adopt, want: "unapproved", next: "carboy rollback web"},
		"by hand, where we removed it":     {last: gone.Plan, containers: asIs, changes: adopt, want: "drifted"}, // a record has it, though it is not in force
		"by hand, where nothing was":       {containers: runs("7", someImage, "running", "none"), changes: adopt, want: "unapproved", next: "look at it on the host"},
		"what another tool put there":      {containers: runs("7", someImage, "running", "none"), takenOver: true, want: "current"},
		"what it put there, and is behind": {containers: runs("7", someImage, "running", "none"), takenOver: true, changes: todo, want: "behind"},
		"broken":                           {last: inForce.Plan, containers: runs("5", other, "running", "unhealthy"), broken: true, changes: adopt, want: "rollback-failed", says: "rollback-failed at 2026-11-28T10:00:00Z by carol@desk, approved by alice@example.org (so it was)", next: "act now"},
		"broken, and gone":                 {last: inForce.Plan, broken: true, changes: todo, want: "rollback-failed", next: "carboy rollback web"},
		"broken, and ill":                  {last: inForce.Plan, containers: runs("2", someImage, "running", "unhealthy"), broken: true, want: "rollback-failed"},
		"broken, and repaired":             {last: inForce.Plan, containers: asIs, broken: true, want: "current"},
		"broken at first, and removed":     {broken: true, changes: todo, want: "absent"},
	} {
		l := &hostState{obs: &plan.Observation{Containers: x.containers}, runs: "2026-11-28T11:12:13.5Z app:evil /home/mallory/compose.yaml"}
		if x.last != nil {
			last := *x.last
			if x.file != "" {
				last.Source.Files = []plan.File{{Path: "a.conf", SHA256: hash("1")}}
				l.obs.Files = map[string]string{"a.conf": x.file}
			}
			l.last = &last
		}
		v := &view{l: l, records: records, takenOver: x.takenOver, told: func(r *record) string { return p.e.told("one", r) }}
		if x.broken {
			v.broken = ended(tried, RollbackFailed)
		}
		st := Status{Module: "web", Changes: x.changes}
		v.judge(&st)
		if st.State != x.want || !strings.Contains(st.Why, x.says) || !strings.Contains(st.Next, x.next) || (st.Next == "") != (x.want == "current") {
			t.Errorf("%s: %s, because %q, next %q; want %s, %q, %q", name, st.State, st.Why, st.Next, x.want, x.says, x.next)
		}
	}
	job := func(o Outcome) *hostJob {
		return &hostJob{name: "100001-" + tried.Digest, digest: tried.Digest, plan: tried.Plan, planBytes: tried.Bytes, outcome: o}
	}
	for name, x := range map[string]struct {
		jobs    []*hostJob
		records []*record
		want    bool
	}{
		"none":                         {nil, nil, false},
		"on the host":                  {[]*hostJob{job(Failed), job(RollbackFailed), job(Applied)}, nil, true},
		"applied since":                {[]*hostJob{job(Applied), job(RollbackFailed)}, []*record{ended(tried, RollbackFailed)}, false},
		"the host lost its jobs":       {nil, []*record{ended(older, Applied), ended(tried, RollbackFailed), ended(tried, RolledBack)}, true},
		"the host lost them, and went": {nil, []*record{ended(tried, RollbackFailed), ended(older, Applied)}, false},
	} {
		if got := p.e.broken("one", x.jobs, x.records); (got != nil) != x.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestByHand: what somebody deploys over SSH is never called current, a plan adopts it, and
// a rollback leads to what was applied last.
func TestByHand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	w.commit("bh", "v1", "ok")
	if got := w.ship("bh"); got != Applied {
		t.Fatal(got)
	}
	before := time.Now().Add(-time.Minute)
	if st := w.status("bh"); st.State != stateCurrent || st.At.Before(before) || st.By != "tests" || st.Restarts != 0 {
		t.Errorf("after an apply: %+v", st)
	}
	w.commit("bh", "v2", "ok")
	first := w.plan("bh")
	if o, err := w.apply(first, w.approve("alice", false, first)); o != Applied {
		t.Fatal(o, err)
	}
	third := w.commit("bh", "v3", "ok")
	hand := t.TempDir() + "/compose.yaml"
	if err := os.WriteFile(hand, []byte(readFile(t, w.repo.Dir+"/modules/bh/compose.yaml")), 0o644); err != nil {
		t.Fatal(err)
	}
	w.host.Compose(t, "-p", "bh", "--project-directory", w.host.Root+"/bh", "-f", hand, "up", "-d", "--no-deps", "bh")
	w.want("bh", "v3 running")
	// What runs is what the commit says, and nobody approved it.
	st := w.status("bh")
	if st.State != stateUnapproved || !strings.Contains(st.Why, hand) || st.Applied != first.Commit {
		t.Errorf("by hand: %+v", st)
	}
	m, err := w.e.Plan(w.ctx(), PlanOptions{Module: "bh", Rollback: true})
	if err != nil {
		t.Fatal(err)
	}
	if m[0].Commit != first.Commit || m[0].Undoes != "" {
		t.Errorf("rolling back leads to %.12s, want %.12s, which is in force", m[0].Commit, first.Commit)
	}
	p := w.plan("bh")
	if p.Action() != plan.Adopt || p.Destructive() {
		t.Fatalf("a plan of what runs by hand: %+v", p.Changes)
	}
	id := w.container("bh")
	if o, err := w.apply(p); o != Mismatch {
		t.Errorf("adopted without an approval: %s %v", o, err)
	}
	if o, err := w.apply(p, w.approve("alice", false, p)); o != Applied {
		t.Errorf("adopting: %s %v", o, err)
	}
	if w.container("bh") != id {
		t.Error("adopting started another container")
	}
	if st := w.status("bh"); st.State != stateCurrent || st.Applied != third {
		t.Errorf("adopted: %+v", st)
	}
	// Somebody goes back by hand to what was applied before, and kills it then.
	old := strings.Replace(readFile(t, hand), "app:v3", "app:v2", 1)
	if err := os.WriteFile(hand, []byte(old), 0o644); err != nil {
		t.Fatal(err)
	}
	w.host.Compose(t, "-p", "bh", "--project-directory", w.host.Root+"/bh", "-f", hand, "up", "-d", "--no-deps", "bh")
	if st := w.status("bh"); st.State != stateDrifted || !strings.Contains(st.Why, first.Commit[:12]) {
		t.Errorf("an older version by hand: %+v", st)
	}
	if m, err = w.e.Plan(w.ctx(), PlanOptions{Module: "bh", Rollback: true}); err != nil || m[0].Commit != third {
		t.Fatalf("%+v %v, want what is in force", m, err)
	}
	if o, err := w.apply(m[0], w.approve("alice", false, m[0])); o != Applied {
		t.Fatal(o, err)
	}
	w.want("bh", "v3 running")
	w.dk.Run(t, "kill", w.container("bh"))
	if st := w.status("bh"); st.State != stateExited {
		t.Errorf("killed: %+v", st)
	}
	// What is in force but does not run is undone like any other.
	if m, err = w.e.Plan(w.ctx(), PlanOptions{Module: "bh", Rollback: true}); err != nil || m[0].Undoes == "" {
		t.Errorf("%+v %v, want an undo", m, err)
	}
}

// TestBroken: after a rollback that failed, status says so until somebody has acted, and
// the way back leads to what was applied last.
func TestBroken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	first := w.commit("br", "v1", "ok")
	if got := w.ship("br"); got != Applied {
		t.Fatal(got)
	}
	w.commit("br", "v2", "unhealthy")
	// What goes back is not started.
	tried := w.host.Dir + "/tried"
	w.host.Program(t, "docker", `case "$*" in *" up "*) [ ! -e `+tried+` ] || exit 1; : >`+tried+` ;; esac
exec `+testenv.Look("docker")+` "$@"`)
	p := w.plan("br")
	r, err := w.e.Apply(w.ctx(), [][]byte{p.Bytes}, []approval.Signed{w.approve("alice", false, p)})
	if outcomeOf(r, err) != RollbackFailed {
		t.Fatalf("%+v %v", r, err)
	}
	if len(r[0].Evidence) == 0 || !strings.HasPrefix(r[0].Evidence[0], "healthcheck: exit 1") {
		t.Errorf("the evidence: %q", r[0].Evidence)
	}
	os.Remove(w.host.Dir + "/bin/docker")
	w.want("br", "v2 running")
	for range 2 {
		st := w.status("br")
		if st.State != stateRollbackFailed || !strings.Contains(st.Why, "approved by alice@example.org") || st.Next == "" {
			t.Errorf("%+v", st)
		}
	}
	m, err := w.e.Plan(w.ctx(), PlanOptions{Module: "br", Rollback: true})
	if err != nil || m[0].Commit != first {
		t.Fatalf("%+v %v, want what is in force", m, err)
	}
	if o, err := w.apply(m[0], w.approve("alice", false, m[0])); o != Applied {
		t.Fatal(o, err)
	}
	w.want("br", "v1 running")
	if st := w.status("br"); st.State != stateBehind {
		t.Errorf("gone back: %+v", st)
	}
}

// TestP4Restart: Docker restarts while a service is watched. It is waited for, and a
// service that starts again with it is healthy.
func TestP4Restart(t *testing.T) {
	t.Parallel()
	dk := shiptest.StartOwnEngine(t)
	defer dk.Stop()
	w := newWorld(t, dk)
	w.commit("rs", "v1", "ok")
	w.repo.Write(t, "modules/rs/module.yaml", strings.Replace(readFile(t, w.repo.Dir+"/modules/rs/module.yaml"), "stable_for: 1s", "stable_for: 3s", 1))
	w.repo.Write(t, "modules/rs/compose.yaml", readFile(t, w.repo.Dir+"/modules/rs/compose.yaml")+"    restart: always\n")
	w.repo.Commit(t)
	restarted := make(chan struct{})
	w.at("watch", func() {
		go func() {
			defer close(restarted)
			dk.Restart(t)
		}()
	})
	p := w.plan("rs")
	r, err := w.e.Apply(w.ctx(), [][]byte{p.Bytes}, []approval.Signed{w.approve("alice", false, p)})
	<-restarted
	if outcomeOf(r, err) != Applied {
		t.Errorf("%+v %v", r, err)
	}
	said := ""
	for _, p := range w.said {
		said += p.Step + " " + p.Text + "\n"
	}
	if !strings.Contains(said, "docker does not answer") {
		t.Errorf("that Docker restarted was not noticed:\n%s", said)
	}
	w.want("rs", "v1 running")
}
