package ship

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/module"
	"github.com/carboy/carboy/internal/ship/plan"
	"github.com/carboy/carboy/internal/ship/shiptest"
)

// TestAnswers: each answer of a host has one outcome, and what says nothing of the end leaves it unknown.
func TestAnswers(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	m := p.draw(nil)
	o := &order{Made: m}
	var err error
	if o.all, o.host, err = p.e.host("one"); err != nil {
		t.Fatal(err)
	}
	observed := base64.StdEncoding.EncodeToString([]byte(strings.Replace(m.Seen.Text, "current -", "current "+someJob, 1)))
	for _, x := range []struct {
		result, refused, why string
		want                 Outcome // "": unknown
		says                 string
		late                 bool
	}{
		{result: "applied healthy", want: Applied},
		{result: "nothing", want: Nothing},
		{result: "failed password=hunter2 was wrong", want: Failed, says: "what ran before runs"},
		{result: "failed docker pull " + lateWhy, want: Failed, late: true},
		{result: "rolled-back exited", want: RolledBack, says: "exited; rolled back"},
		{result: "rollback-failed no image", want: RollbackFailed, says: "going back failed"},
		{result: "rollback-failed it " + lateWhy, want: RollbackFailed, late: true},
		{result: "perhaps", says: ErrUnknown.Error()},
		{says: ErrUnknown.Error()},
		{refused: "unrecorded", why: "no space left", says: "no space left"},
		{refused: "stale", want: Stale, says: ": current " + someJob},
		{refused: "compose-changed", why: "6", want: Stale, says: "5 then, 6 now"},
		{refused: "used", want: Mismatch, says: "already"},
		{refused: "settled", want: Locked, says: "somebody else"},
		{refused: "policy", why: "root", want: Refused, says: "root"},
	} {
		a := &scriptOutput{words: map[string]string{"@result": x.result}, refused: x.refused, why: x.why, files: [][2]string{{"@job", "x"}, {"@file", "observed " + observed}}}
		var res Result
		err := p.e.outcome(o, a, &res)
		got := outcomeOf([]Result{res}, err)
		if errors.Is(err, ErrUnknown) {
			got = ""
		}
		if got != x.want || errors.Is(err, ErrUnknown) != (x.want == "") || errors.Is(err, ErrDeadline) != x.late || x.says != "" && !strings.Contains(fmt.Sprint(err), x.says) || strings.Contains(fmt.Sprint(err, res.Why), "hunter2") || res.recorded != (x.result != "") {
			t.Errorf("%q %s: %s (%v), want %q", x.result, x.refused, got, err, x.want)
		}
		if e := (*Error)(nil); errors.As(err, &e) && e.ExitOutcome() != string(x.want) {
			t.Errorf("%q %s: the exit is of %s", x.result, x.refused, e.ExitOutcome())
		}
	}
	damaged := &scriptOutput{words: map[string]string{}, refused: "stale", files: [][2]string{{"@file", "observed %%%"}}}
	if err := p.e.outcome(o, damaged, &Result{}); outcomeOf(nil, err) != Stale {
		t.Errorf("stale, of a damaged account: %v", err)
	}
}

// TestChanges: the state of the service and its files decides what a plan changes, and
// which changes are destructive.
func TestChanges(t *testing.T) {
	t.Parallel()
	sha, other := strings.Repeat("a", 64), strings.Repeat("b", 64)
	const image = "sha256:7777777777777777777777777777777777777777777777777777777777777777"
	running := plan.Container{ID: strings.Repeat("c", 64), Image: someImage, Hash: "h", Status: "running", Health: "none"}
	for name, x := range map[string]struct {
		change func(p *plan.Plan, now *plan.Container, obs *plan.Observation)
		want   string
	}{
		"as planned": {func(*plan.Plan, *plan.Container, *plan.Observation) {}, ""},
		"absent":     {func(_ *plan.Plan, _ *plan.Container, o *plan.Observation) { o.Containers = nil }, "create service"},
		"removed":    {func(p *plan.Plan, _ *plan.Container, _ *plan.Observation) { p.Target.Absent = true }, "remove service!"},
		"configured": {func(_ *plan.Plan, c *plan.Container, _ *plan.Observation) { c.Hash = "other" }, "update service"},
		"image":      {func(_ *plan.Plan, c *plan.Container, _ *plan.Observation) { c.Image = image }, "recreate service"},
		"exited":     {func(_ *plan.Plan, c *plan.Container, _ *plan.Observation) { c.Status = "exited" }, "recreate service"},
		"exited, of unknown origin": {func(p *plan.Plan, c *plan.Container, _ *plan.Observation) {
			c.Status, p.Previous.State = "exited", plan.PreviousUnknown
		}, "recreate service!"},
		"by hand":           {func(p *plan.Plan, _ *plan.Container, _ *plan.Observation) { p.Previous.Unrecorded = true }, "adopt service"},
		"its files by hand": {func(p *plan.Plan, _ *plan.Container, _ *plan.Observation) { p.Previous.Job = someJob }, "adopt file.f, recreate service"},
		"file":              {func(_ *plan.Plan, _ *plan.Container, o *plan.Observation) { o.Files["f"] = other }, "update file.f, recreate service"},
		"no file":           {func(_ *plan.Plan, _ *plan.Container, o *plan.Observation) { o.Files["f"] = "-" }, "create file.f, recreate service"},
		"a pipe":            {func(_ *plan.Plan, _ *plan.Container, o *plan.Observation) { o.Files["f"] = "other" }, "update file.f!, recreate service"},
	} {
		now := running
		obs := &plan.Observation{Image: someImage, Files: map[string]string{"f": sha}}
		p := &plan.Plan{Target: plan.Target{Service: "web", ConfigHash: "h", ImageID: someImage}, Source: plan.Source{Files: []plan.File{{Path: "f", SHA256: sha}}}, Previous: plan.Previous{State: plan.PreviousKnown}}
		obs.Containers = []plan.Container{now}
		x.change(p, &obs.Containers[0], obs)
		var got []string
		for _, c := range changes(p, obs, &module.Module{}, nil) {
			text := c.Action + " " + strings.Replace(c.What, "compose.service.web", "service", 1)
			if c.Destructive {
				text += "!"
			}
			got = append(got, text)
		}
		if s := strings.Join(got, ", "); s != x.want {
			t.Errorf("%s: %s, want %s", name, s, x.want)
		}
		l := &hostState{obs: obs, last: p}
		if got, want := differs(l), obs.Files["f"] != sha; (got == "f") != want {
			t.Errorf("%s: %q differs", name, got)
		}
	}
}

// TestAdopt: what a host tells of its jobs is recorded here, but changes no outcome that is on record, and what was sent
// is forgotten only when it can no longer come.
func TestAdopt(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	_, h, err := p.e.host("one")
	if err != nil {
		t.Fatal(err)
	}
	by := func(who string) Made { return p.draw(func(d *plan.Plan) { d.By = who }) }
	put := func(m Made, o Outcome) {
		t.Helper()
		if err := p.e.writeRecord("one", "web", &record{Digest: m.Digest, Plan: m.Bytes, Approvals: []approval.Signed{}, Outcome: o, Began: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	job := func(m Made, o Outcome) *hostJob {
		return &hostJob{name: "100001-" + m.Digest, digest: m.Digest, plan: m.Plan, planBytes: m.Bytes, outcome: o, why: "so it says", steps: []string{"one"}}
	}
	failed, sent, fresh, going := by("failed"), by("sent"), by("new"), by("going")
	put(failed, Failed)
	put(sent, Sent)
	elsewhere := p.draw(func(d *plan.Plan) { d.Host.Name = "two" })
	jobs := []*hostJob{job(failed, Applied), job(fresh, RolledBack), job(going, ""), job(elsewhere, Applied)}
	outcome := func(m Made) string {
		r, err := p.e.readRecord("one", "web", m.Digest)
		if err != nil {
			return "none"
		}
		return fmt.Sprint(r.Outcome, " ", r.Learned)
	}
	p.e.adopt(h, "web", jobs, "-")
	for name, x := range map[string]struct {
		m    Made
		want string
	}{
		"settled here": {failed, "failed false"}, "sent": {sent, "sent false"}, "new": {fresh, "rolled-back true"},
		"not ended": {going, "none"}, "of another host": {elsewhere, "none"},
	} {
		if got := outcome(x.m); got != x.want {
			t.Errorf("%s: %s, want %s", name, got, x.want)
		}
	}
	p.e.adopt(h, "web", nil, "") // a host that does not say which job is in force
	p.e.adopt(h, "web", make([]*hostJob, 0, 1), "-")
	if got := outcome(sent); got != "sent false" {
		t.Errorf("what may still come: %s", got)
	}
	p.e.adopt(h, "web", jobs, someJob)
	if got := outcome(sent); got != "none" {
		t.Errorf("what can come no more: %s", got)
	}
}

// TestSourceRefuses: a commit with links, and a repository that has lost an object, ship nothing.
func TestSourceRefuses(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	commit, _, err := p.e.head(p.ctx())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.e.load(p.ctx(), "web", commit); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", p.repo.Dir+"/modules/web/more"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.e.load(p.ctx(), "web", p.repo.Commit(t)); outcomeOf(nil, err) != Refused || !strings.Contains(err.Error(), "modules/web/more") {
		t.Errorf("a link: %v", err)
	}
	p.repo.Write(t, "modules/web/compose.yaml", shiptest.Compose("web", "v2", "ok"))
	os.Remove(p.repo.Dir + "/modules/web/more")
	commit = p.repo.Commit(t)
	oid, err := p.e.git(p.ctx(), nil, 1<<10, "rev-parse", commit+":modules/web/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(p.repo.Dir, ".git/objects", string(oid[:2]), strings.TrimSpace(string(oid[2:])))); err != nil {
		t.Fatal(err)
	}
	if s, err := p.e.load(p.ctx(), "web", commit); err == nil || !strings.Contains(err.Error(), "git has no file modules/web/compose.yaml") {
		t.Errorf("a lost object: %+v %v", s, err)
	}
}

// TestScriptTakesOnlyItsVariables: no value that the shell would read otherwise gets into the script.
func TestScriptTakesOnlyItsVariables(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	_, h, err := p.e.host("one")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"image": "", "PATH": "no variable PATH"} {
		_, err := p.e.script(scriptVars{mode: "plan", host: h, values: map[string]string{name: "x"}})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for path, ok := range map[string]bool{"a/b.conf": true, "/srv/web/a": true, "a b": false, "../a": false, "a\nb": false, "$(a)": false} {
		if _, err := lines([]string{path}); (err == nil) != ok {
			t.Errorf("%q: %v", path, err)
		}
	}
}

// TestUndoNeedsARecord: an undo is planned only to what is on record.
func TestUndoNeedsARecord(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	commit, _, err := p.e.head(p.ctx())
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.source(commit)
	if err != nil {
		t.Fatal(err)
	}
	_, h, err := p.e.host("one")
	if err != nil {
		t.Fatal(err)
	}
	unknown := p.draw(nil)
	unknown.Previous = plan.Previous{State: plan.PreviousUnknown}
	now := plan.Container{ID: someContainer, Image: someImage, Hash: unknown.Target.ConfigHash, Status: "running", Health: "none"}
	for says, l := range map[string]*hostState{"nothing is recorded": {}, "from which commit": {last: unknown.Plan, compose: []byte("x"), obs: &plan.Observation{Containers: []plan.Container{now}}}} {
		m := &making{Made: Made{Plan: &plan.Plan{Module: "web"}}, source: s}
		if err := p.e.planUndo(p.ctx(), nil, h, l, m); outcomeOf(nil, err) != Refused || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}
