package ship

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aymanbagabas/go-udiff"

	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/plan"
	"github.com/carboy/carboy/internal/ship/shiptest"
	"github.com/carboy/carboy/internal/store"
)

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	good := Engine{Config: p.op.Config, State: p.op.State, Repo: p.repo.Dir}
	for name, change := range map[string]func(*Engine){
		"a relative directory": func(e *Engine) { e.Config = "config" },
		"no directory":         func(e *Engine) { e.State = "" },
		"no repository":        func(e *Engine) { e.Repo += "/missing" },
		"a negative deadline":  func(e *Engine) { e.Up = -time.Second },
		"a long deadline":      func(e *Engine) { e.Other = maxCommand + 1 },
		"a link to nothing": func(e *Engine) {
			e.State = t.TempDir() + "/link"
			if err := os.Symlink("/nowhere/at/all", e.State); err != nil {
				t.Fatal(err)
			}
		},
		"a file as state": func(e *Engine) {
			e.State = t.TempDir() + "/file"
			if err := os.WriteFile(e.State, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		e := Engine{Config: good.Config, State: good.State, Repo: good.Repo}
		change(&e)
		if err := e.Open(); err == nil {
			e.Close()
			t.Errorf("%s: opened", name)
		}
	}
}

// TestPlanRefuses: what is asked for wrongly, or cannot be read from the commit, is refused
// before the host is connected to.
func TestPlanRefuses(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	if m, err := p.e.Modules(p.ctx()); err != nil || !slices.Equal(m, []string{"web"}) {
		t.Errorf("modules %v %v", m, err)
	}
	for name, o := range map[string]PlanOptions{
		"a commit without a rollback": {Module: "web", To: strings.Repeat("a", 40)},
		"a branch to go back to":      {Module: "web", Rollback: true, To: "main"},
		"a commit that is not there":  {Module: "web", Rollback: true, To: strings.Repeat("a", 40)},
		"a module that is not there":  {Module: "db"},
		"a path as a module":          {Module: "../web"},
	} {
		if m, err := p.e.Plan(p.ctx(), o); err == nil {
			t.Errorf("%s: planned %v", name, m)
		}
	}
	compose := func(text string) func() { return func() { p.repo.Write(t, "modules/web/compose.yaml", text) } }
	for name, write := range map[string]func(){
		"another compose file": func() {
			p.repo.Write(t, "modules/web/module.yaml", strings.Replace(shiptest.Module("web", "/srv/web", "one"), "compose.yaml", "missing.yaml", 1))
		},
		"a broken module":      func() { p.repo.Write(t, "modules/web/module.yaml", "kind: Pod\n") },
		"a broken compose":     compose("services: [\n"),
		"an image with blanks": compose("services:\n  web: {image: 'a b'}\n"),
		"a name that is no path": func() {
			p.repo.Write(t, "modules/web/module.yaml", strings.Replace(shiptest.Module("web", "/srv/web", "one"), "sync: none", "sync: files", 1))
			p.repo.Write(t, "modules/web/files/a b", "x")
		},
		"many files": func() {
			p.repo.Write(t, "modules/web/module.yaml", strings.Replace(shiptest.Module("web", "/srv/web", "one"), "sync: none", "sync: files", 1))
			for i := range plan.MaxFiles + 1 {
				p.repo.Write(t, fmt.Sprintf("modules/web/files/%d", i), "x")
			}
		},
		"another host": func() { p.repo.Write(t, "modules/web/module.yaml", shiptest.Module("web", "/srv/web", "two")) },
		"another root": func() { p.repo.Write(t, "modules/web/module.yaml", shiptest.Module("web", "/etc/web", "one")) },
	} {
		write()
		p.repo.Commit(t)
		var x *Error
		if _, err := p.e.Plan(p.ctx(), PlanOptions{Module: "web"}); !errors.As(err, &x) || x.Outcome != Refused {
			t.Errorf("%s: %v", name, err)
		}
		if st, err := p.e.Status(p.ctx(), "web"); err == nil && st[0].Error == "" {
			t.Errorf("%s: status %+v", name, st)
		}
		p.repo.Git(t, "reset", "-q", "--hard", "HEAD~1")
	}
	p.repo.Write(t, "modules/web/more", "x")
	var x *Error
	if _, err := p.e.Plan(p.ctx(), PlanOptions{Module: "web"}); !errors.As(err, &x) || x.Outcome != Refused || !strings.Contains(err.Error(), "modules/web/more") {
		t.Errorf("a work tree that is not clean: %v", err)
	}
	if n := p.knocks.Load(); n != 0 {
		t.Errorf("the host was connected to %d times", n)
	}
	// A host that cannot be reached has an outcome, and one problem in a history.
	var timing Timing
	if _, err := p.e.Plan(p.ctx(), PlanOptions{Module: "web", Rollback: true, Timing: &timing}); !errors.As(err, &x) || x.Outcome != Failed || timing.Source == 0 {
		t.Errorf("%v after %v", err, timing)
	}
	if h, problems, err := p.e.History(p.ctx(), "web"); err != nil || len(problems) != 1 || len(h) != 0 {
		t.Errorf("history %v, %v, %v", h, problems, err)
	}
	fresh := shiptest.NewRepo(t)
	p.e.Repo = fresh.Dir
	for name, err := range map[string]error{
		"plan":    second(p.e.Plan(p.ctx(), PlanOptions{Module: "web"})),
		"modules": second(p.e.Modules(p.ctx())),
		"status":  second(p.e.Status(p.ctx(), "web")),
		"no name": second(p.e.Status(p.ctx(), "../web")),
	} {
		if !errors.As(err, &x) || x.Outcome != Refused {
			t.Errorf("%s without a commit: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestDiffOfPlan: people see how the compose file differs from the one that runs.
func TestDiffOfPlan(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	known := func(compose string) func(*plan.Plan) {
		return func(d *plan.Plan) {
			d.Previous = plan.Previous{State: plan.PreviousKnown, Commit: d.Commit, Compose: compose, Image: "app:v0", ImageID: someImage, Ran: true}
		}
	}
	now := shiptest.Compose("web", "v1", "ok")
	before := strings.Replace(now, "app:v1", "app:v0", 1)
	for name, x := range map[string]struct {
		m    Made
		want []string
	}{
		"nothing ran":  {p.draw(nil), nil},
		"the same ran": {p.draw(known(now)), nil},
		"another ran":  {p.draw(known(before)), []string{"-", "app:v0", "+", "app:v1", "modules/web/compose.yaml as it runs"}},
	} {
		got, err := p.e.Diff(p.ctx(), x.m.Bytes)
		if err != nil || (got == "") != (x.want == nil) {
			t.Errorf("%s: %q %v", name, got, err)
		}
		for _, want := range x.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: no %q in %s", name, want, got)
			}
		}
	}
	// Files that change, by what is known of what is there.
	p.repo.Write(t, "modules/web/files/a.conf", "colour: red\npassword: hunter2\n")
	p.repo.Write(t, "modules/web/files/b.bin", "a\x00b")
	earlier := p.repo.Commit(t)
	p.repo.Write(t, "modules/web/files/a.conf", "colour: blue\npassword: hunter3\n")
	p.repo.Write(t, "modules/web/files/b.bin", "c\x00d")
	p.repo.Write(t, "modules/web/files/c.conf", "fresh\n")
	p.repo.Commit(t)
	for name, x := range map[string]struct {
		there string
		want  []string
		not   string
	}{
		"as it was applied": {"colour: red\npassword: hunter2\n", []string{"-colour: red\n", "+colour: blue\n", "-password: [redacted]\n", "+password: [redacted]\n", "no text: 3 bytes, then 3", "+fresh\n"}, "not known"},
		"changed by hand":   {"colour: green\n", []string{"content that is not known", "+colour: blue\n"}, "-colour"},
	} {
		m := p.draw(func(d *plan.Plan) {
			known(now)(d)
			d.Previous.Commit = earlier
			p.see(d, container("3"), "file "+plan.Digest([]byte(x.there))+" a.conf", "file "+plan.Digest([]byte("a\x00b"))+" b.bin", "file - c.conf", "current -")
		})
		got, err := p.e.Diff(p.ctx(), m.Bytes)
		if err != nil || strings.Contains(got, "hunter") || strings.Contains(got, x.not) {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
		for _, want := range x.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: no %q in\n%s", name, want, got)
			}
		}
	}
	var x *Error
	if _, err := p.e.Diff(p.ctx(), []byte("{}")); !errors.As(err, &x) || x.Outcome != Mismatch {
		t.Errorf("of no plan: %v", err)
	}
	lost := p.draw(func(d *plan.Plan) { known(before)(d); d.Commit = strings.Repeat("a", 40) })
	if _, err := p.e.Diff(p.ctx(), lost.Bytes); err == nil {
		t.Error("of a commit that is not there")
	}
}

// TestDiffRedacts: who approves sees that a secret changes, and not which it is, wherever a
// hunk begins.
func TestDiffRedacts(t *testing.T) {
	t.Parallel()
	var filler strings.Builder
	for i := range 20 {
		fmt.Fprintf(&filler, "      LINE_%d: x\n", i)
	}
	text := func(v, secret, colour string) string {
		return "services:\n  web:\n    image: app:" + v + "\n    environment:\n      DB_PASSWORD: " + secret + "\n      KEY: |\n        -----BEGIN PRIVATE KEY-----\n        hunterline1\n        hunterline2\n        hunterline3\n        hunterline4" + secret + "\n        -----END PRIVATE KEY-----\n" + filler.String() + "      COLOUR: " + colour + "\n" + filler.String() + "      TOKEN: " + secret + "\n      LAST: " + colour
	}
	old, now := text("v1", "hunter2", "red"), text("v2", "hunter3", "blue")
	got := diff("old", "new", old, now)
	for _, want := range []string{"--- old\n+++ new\n@@ ", "-    image: app:v1\n", "+    image: app:v2\n", "-      DB_PASSWORD: [redacted]\n", "+      TOKEN: [redacted]\n", "-      COLOUR: red\n+      COLOUR: blue\n", "+      LAST: blue\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "hunter") || strings.Contains(got, "[not shown]") {
		t.Errorf("a secret, or nothing, is shown:\n%s", got)
	}
	for _, x := range [][2]string{{"", "a\nb\n"}, {"a\nb\n", ""}, {"a", "b"}, {"same\n", "same\n"}, {"a\r\n", "b\r\n"}, {strings.Repeat("x\n", 30), "y\n" + strings.Repeat("x\n", 15) + "z\n" + strings.Repeat("x\n", 14)}} {
		if got, want := diff("old", "new", x[0], x[1]), udiff.Unified("old", "new", x[0], x[1]); got != want {
			t.Errorf("%q: %q, want %q", x, got, want)
		}
	}
}

// TestApproveRefuses: what apply would refuse for its plans alone is not signed either.
func TestApproveRefuses(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	good := p.draw(nil)
	destroys := p.draw(func(d *plan.Plan) { d.Changes[0].Destructive = true })
	other := p.draw(func(d *plan.Plan) { d.Commit = strings.Repeat("a", 40) })
	for name, x := range map[string]struct {
		o    ApproveOptions
		want Outcome
	}{
		"no plan":         {ApproveOptions{}, Refused},
		"not a plan":      {ApproveOptions{Plans: [][]byte{[]byte("{}")}}, Mismatch},
		"of two commits":  {ApproveOptions{Plans: [][]byte{good.Bytes, other.Bytes}}, Refused},
		"what destroys":   {ApproveOptions{Plans: [][]byte{destroys.Bytes}}, Destructive},
		"without a key":   {ApproveOptions{Plans: [][]byte{good.Bytes}, Key: "/nowhere"}, ""},
		"without purpose": {ApproveOptions{Plans: [][]byte{good.Bytes}, Key: p.op.Key, Approver: "alice@example.org"}, ""},
	} {
		s, err := p.e.Approve(p.ctx(), x.o)
		var e *Error
		if err == nil || s.Statement != nil || errors.As(err, &e) != (x.want != "") || e != nil && e.Outcome != x.want {
			t.Errorf("%s: %v, want %q", name, err, x.want)
		}
	}
	s, err := p.e.Approve(p.ctx(), ApproveOptions{Plans: [][]byte{destroys.Bytes}, Key: p.op.Key, Approver: "alice@example.org", Purpose: "a test", Destructive: true})
	if err != nil || !strings.Contains(string(s.Statement), destroys.Digest) {
		t.Errorf("%s %v", s.Statement, err)
	}
}

// TestJudge: Judge says what Apply would, and asks a verifier of its caller's.
func TestJudge(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	m := p.draw(nil)
	if err := p.e.Judge(p.ctx(), [][]byte{m.Bytes}, nil); !errors.Is(err, approval.ErrMismatch) {
		t.Errorf("without an approval: %v", err)
	}
	p.e.Verifier = verifier{m.Plan, m.Digest}
	if err := p.e.Judge(p.ctx(), [][]byte{m.Bytes}, []approval.Signed{{}}); err != nil {
		t.Errorf("with one: %v", err)
	}
	p.e.Verifier = nil
	p.op.Write(t, approval.SignersFile, "nonsense\n")
	if err := p.e.Judge(p.ctx(), [][]byte{m.Bytes}, []approval.Signed{{}}); outcomeOf(nil, err) != Mismatch {
		t.Errorf("with a damaged %s: %v", approval.SignersFile, err)
	}
	if n := p.knocks.Load(); n != 0 {
		t.Errorf("the host was connected to %d times", n)
	}
}

// verifier accepts everything as an approval of a plan.
type verifier struct {
	p      *plan.Plan
	digest string
}

func (v verifier) Verify(context.Context, approval.Signed, time.Time) (*approval.Approval, error) {
	return &approval.Approval{Statement: approval.Statement{Plans: []string{v.digest}, Commit: v.p.Commit, Module: v.p.Module, Approver: "forge", Time: time.Now()}, Key: "forge"}, nil
}

// TestWorst: of several errors the most severe one is returned.
func TestWorst(t *testing.T) {
	errs := []error{nil, fail(Stale, "", "", "stale"), fail(Failed, "", "", "failed"), fail(RolledBack, "", "", "rolled back"),
		fmt.Errorf("one: %w", ErrUnknown), fail(RollbackFailed, "", "", "rollback failed")}
	for n := range errs {
		some := slices.Clone(errs[:n+1])
		if got := worst(some); got != errs[n] {
			t.Errorf("of %v: %v", some, got)
		}
		slices.Reverse(some)
		if got := worst(some); got != errs[n] {
			t.Errorf("of %v: %v", some, got)
		}
	}
}

// TestDamagedRecords: an unreadable record is reported and left alone, and hides no other
// record.
func TestDamagedRecords(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	if got := p.e.lastCommit("web"); got != "" {
		t.Errorf("last commit %s", got)
	}
	m := p.draw(nil)
	write := func(m Made, o Outcome) {
		t.Helper()
		if err := p.e.writeRecord("one", "web", &record{Digest: m.Digest, Plan: m.Bytes, Approvals: []approval.Signed{}, Outcome: o, Began: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	write(m, Applied)
	if got := p.e.lastCommit("web"); got != m.Commit {
		t.Errorf("last commit %s, want %s", got, m.Commit)
	}
	if got := p.e.lastCommit("../web"); got != "" {
		t.Errorf("last commit of a path: %s", got)
	}
	other := p.draw(func(d *plan.Plan) { d.By = "other" })
	dir := p.e.recordDir("one", "web")
	for name, text := range map[string]string{strings.Repeat("e", 64) + ".json": "{", ".hidden.json": "{", "notes.txt": "hello"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	wrong := &record{Schema: store.Schema(recordKind), Digest: m.Digest, Plan: m.Bytes, Approvals: []approval.Signed{}}
	if err := store.WriteJSON(p.e.recordFile("one", "web", other.Digest), recordKind, wrong); err != nil {
		t.Fatal(err)
	}
	all, err := p.e.records("one", "web")
	if len(all) != 1 || all[0].Digest != m.Digest || err == nil || !strings.Contains(err.Error(), "not the record of its name") {
		t.Errorf("%d records, %v", len(all), err)
	}
	h, problems, err := p.e.History(p.ctx(), "web")
	if err != nil || len(h) != 1 || len(problems) != 2 { // one of them is that the host cannot be reached
		t.Errorf("history %v, %v, %v", h, problems, err)
	}
	if err := p.e.Judge(p.ctx(), [][]byte{other.Bytes}, nil); err == nil || strings.Contains(err.Error(), "approval") {
		t.Errorf("judged a plan whose record cannot be read: %v", err)
	}
}

// TestImported: the file of an earlier tool is hostile input.
func TestImported(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	commit := strings.Repeat("a", 40)
	name := ".platform/state/modules/web.status.json"
	if in, err := p.e.readImported("web"); in != nil || err != nil {
		t.Errorf("none: %+v %v", in, err)
	}
	for text, want := range map[string]string{
		`{"last_apply_sha":"` + commit + `"}`:                                                        "<nil> 0001",
		`{"last_apply_sha":"` + commit + `","last_apply_pr":12,"applied_at":"2026-01-02T03:04:05Z"}`: "12 2026",
		`{"last_apply_sha":"` + commit + `","last_apply_pr":"x\u001b[2J","applied_at":"soon"}`:       `x\u001b[2J 0001`,
		`{"last_apply_sha":"HEAD"}`:                                                                  "",
		`[`:                                                                                          "",
		strings.Repeat(" ", maxImported) + `{"a":"b"}`:                                               "",
	} {
		p.repo.Write(t, name, text)
		in, err := p.e.readImported("web")
		got := ""
		if err == nil {
			got = fmt.Sprint(in.Pull, " ", in.At.Year())
			want = strings.Replace(want, "0001", "1", 1)
		}
		if got != want || in != nil && in.Commit != commit {
			t.Errorf("%.80s: %q %v, want %q", text, got, err, want)
		}
	}
	in := &Imported{Commit: commit, Pull: "12"}
	p.repo.Write(t, name, `{"last_apply_sha":"`+commit+`"}`)
	if s, got, err := p.e.imported(p.ctx(), "web"); s != nil || got != nil || err != nil {
		t.Errorf("a commit that is not there: %v %v %v", s, got, err)
	}
	for range 2 { // once
		if err := p.e.recordImport(p.ctx(), "one", "web", in); err != nil {
			t.Fatal(err)
		}
	}
	dir := p.e.importDir("one", "web")
	for name, text := range map[string]string{strings.Repeat("b", 40) + ".json": "{", "notes.json": "{"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := p.e.imports("one", "web")
	if len(all) != 1 || err == nil || all[0].Commit != commit || all[0].Outcome != TookOver || !strings.Contains(all[0].Why, "pull request 12") || all[0].Began.IsZero() {
		t.Errorf("%+v %v", all, err)
	}
	if all, err := p.e.imports("two", "web"); all != nil || err != nil {
		t.Errorf("%+v %v", all, err)
	}
}

// TestJobsOfAHost: what a host tells of its jobs counts only where it agrees with itself.
func TestJobsOfAHost(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	m := p.draw(nil)
	b64 := base64.StdEncoding.EncodeToString
	job := "100001-" + m.Digest
	out := &scriptOutput{files: [][2]string{
		{"@file", "plan.json " + b64(m.Bytes)}, // before any job
		{"@job", job},
		{"@file", "plan.json %%%"},
		{"@file", "plan.json " + b64(m.Bytes)},
		{"@file", "approvals.json " + b64([]byte("[]"))},
		{"@file", "result " + b64([]byte("rolled-back 1700000000 password: hunter2\n"))},
		{"@file", "steps " + b64([]byte("one\ntwo\x1b[2J\n"))},
		{"@job", "100002-" + strings.Repeat("f", 64)}, // not the plan of its name
		{"@file", "plan.json " + b64(m.Bytes)},
		{"@job", "100003-" + m.Digest},
	}}
	jobs := out.jobs()
	if len(jobs) != 1 || jobs[0].name != job || jobs[0].outcome != RolledBack || jobs[0].ended.Unix() != 1700000000 || len(jobs[0].steps) != 2 || strings.Contains(jobs[0].why+jobs[0].steps[1], "hunter2") || strings.Contains(jobs[0].steps[1], "\x1b") {
		t.Errorf("%+v", jobs)
	}
	for s, want := range map[string]Outcome{"applied 1": Applied, "failed 1 why": Failed, "applied": "", "": "", "nothing 1 x": "", "refused 1 x": ""} {
		if got, _, _ := result(s); got != want {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
	}
	if _, err := (&scriptOutput{files: [][2]string{{"@file", "plan %%%"}}}).kept(); err == nil {
		t.Error("a damaged file was taken")
	}
	for code, want := range map[string]Outcome{"policy": Refused, "locked": Locked, "docker": Failed, "compose": Failed, "newer": Failed, "failed": Failed, "else": Failed} {
		_, h, err := p.e.host("one")
		if err != nil {
			t.Fatal(err)
		}
		if got := outcomeOf(nil, refusal(h, &scriptOutput{refused: code, why: "x"})); got != want {
			t.Errorf("refused as %s: %s, want %s", code, got, want)
		}
	}
}
