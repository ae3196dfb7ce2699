package carboy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/gate/judge"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/work"
)

// judgedBadly is a project with a verdict that a person may set aside.
func judgedBadly(t *testing.T) (*project, *judge.Judged) {
	p := newProject(t, map[string]string{"a": "x", gate.CatalogPath: "version: 1\nsignals:\n  - {name: policy, kind: policy}\n"})
	p.put("b", "\x00")
	p.commit()
	j := p.judge(judge.GateOptions{Base: "HEAD^"})
	if j.Outcome != gate.Final {
		t.Fatalf("%+v", j.Verdict)
	}
	return p, j
}

func (p *project) intact(what string) {
	p.t.Helper()
	if r, err := p.c.AuditVerify(p.t.Context(), ""); err != nil || r.Status != audit.Intact {
		p.t.Errorf("%s: audit verify says %s, %+v, %v", what, r.Status, r.Findings, err)
	}
}

// TestA1VerdictExchanged: what lies under the name of one verdict is not read as another's,
// whatever it says of itself.
func TestA1VerdictExchanged(t *testing.T) {
	ctx := t.Context()
	p, bad := judgedBadly(t)
	good := p.judge(judge.GateOptions{Base: "HEAD", Change: "HEAD"})
	if good.Outcome != gate.Passed {
		t.Fatalf("%+v", good.Verdict)
	}
	p.intact("as it was")
	file := filepath.Join(bad.Dir, judge.VerdictFile)
	was, err := os.ReadFile(file)
	passed, err2 := os.ReadFile(filepath.Join(good.Dir, judge.VerdictFile))
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{judge.VerdictFile, judge.NextFile} {
		if err := os.WriteFile(filepath.Join(bad.Dir, name), passed, 0o600); err != nil {
			t.Fatal(err)
		}
		if name == judge.NextFile {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
		if v, _, err := p.c.Verdict(ctx, bad.ID); err == nil {
			t.Errorf("%s: verdict %s, which is %s, is read as %s: %s", name, bad.ID, bad.Outcome, v.ID, v.Outcome)
		} else if name == judge.VerdictFile && !errors.Is(err, judge.ErrLedger) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := p.c.AttestVerdict(ctx, bad.ID, io.Discard); err == nil {
			t.Errorf("%s: it is attested", name)
		}
		if r, err := p.c.AuditVerify(ctx, ""); err != nil || r.Status != audit.Tampered {
			t.Errorf("%s: audit verify says %s, %v", name, r.Status, err)
		}
		if list, err := p.c.Verdicts(ctx, 10); err != nil || len(list) != 1 || list[0].ID != good.ID {
			t.Errorf("%s: listed are %+v, %v", name, list, err)
		}
		if err := os.WriteFile(file, was, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if v, _, err := p.c.Verdict(ctx, bad.ID); err != nil || v.Outcome != gate.Final {
		t.Errorf("put back: %+v, %v", v, err)
	}
	p.intact("put back")
}

// TestH2DiedWhileWriting: whoever reads first after a death between the text of a verdict,
// its record and its name finds the verdict that is on record: new, or with an override.
func TestH2DiedWhileWriting(t *testing.T) {
	ctx := t.Context()
	p, j := judgedBadly(t)
	file, next := filepath.Join(j.Dir, judge.VerdictFile), filepath.Join(j.Dir, judge.NextFile)
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if o, err := p.c.OverrideVerdict(ctx, j.ID, whyNot, saysYes); err != nil || o.Override == nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(file)
	if err != nil || bytes.Equal(before, after) {
		t.Fatal(err)
	}
	died := "7" + j.ID[1:] // the newest, had it come on record
	readers := map[string]func() error{
		"by its id": func() error {
			v, _, err := p.c.Verdict(ctx, j.ID)
			if err == nil && v.Override == nil {
				err = errors.New("the override is gone")
			}
			return err
		},
		"the newest": func() error {
			v, _, err := p.c.Verdict(ctx, "")
			if err == nil && (v.ID != j.ID || v.Override == nil) {
				err = fmt.Errorf("it is %s, %+v", v.ID, v.Override)
			}
			return err
		},
		"the list": func() error {
			l, err := p.c.Verdicts(ctx, 10)
			if err == nil && (len(l) != 1 || l[0].ID != j.ID || l[0].Override == nil) {
				err = fmt.Errorf("it has %+v", l)
			}
			return err
		},
		"audit verify": func() error {
			r, err := p.c.AuditVerify(ctx, "")
			if err == nil && r.Status != audit.Intact {
				err = fmt.Errorf("%s: %+v", r.Status, r.Findings)
			}
			return err
		},
	}
	write := func(text, pending []byte) {
		t.Helper()
		for name, b := range map[string][]byte{file: text, next: pending} {
			os.Remove(name)
			if b == nil {
				continue
			}
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for what, x := range map[string]struct{ text, pending []byte }{
		"a verdict before its name":                           {nil, after},
		"an override before its name":                         {before, after},
		"an override before its record":                       {after, bytes.Replace(after, []byte(whyNot), []byte("because of something else"), 1)},
		"an override before its text is whole":                {after, after[:20]},
		"an override before its record, of one with its name": {after, before},
	} {
		for who, read := range readers {
			for _, lives := range []bool{true, false} {
				write(x.text, x.pending)
				if lives {
					// Whoever writes is not dead: nothing is taken away from them.
					hold, err := judge.HoldVerdict(j.Dir)
					if err != nil {
						t.Fatal(err)
					}
					if err := read(); err != nil && x.text != nil {
						t.Errorf("%s, %s, of one that lives: %v", what, who, err)
					}
					if b, err := os.ReadFile(next); err != nil || !bytes.Equal(b, x.pending) {
						t.Errorf("%s, %s: it was taken away from whoever writes it: %v", what, who, err)
					}
					if err := hold.Close(); err != nil {
						t.Fatal(err)
					}
				}
				if err := read(); err != nil {
					t.Errorf("%s, %s: %v", what, who, err)
				}
				b, err := os.ReadFile(file)
				if _, none := os.Lstat(next); err != nil || !bytes.Equal(b, after) || !errors.Is(none, fs.ErrNotExist) {
					t.Errorf("%s, %s: it is not settled: %v", what, who, err)
				}
			}
		}
	}
	// One that never was on record is as none.
	dir := p.c.judge.GateDir("verdicts", died)
	for who, read := range readers {
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, judge.NextFile), bytes.ReplaceAll(before, []byte(j.ID), []byte(died)), 0o600)); err != nil {
			t.Fatal(err)
		}
		if err := read(); err != nil {
			t.Errorf("a verdict before its record, %s: %v", who, err)
		}
	}
	// What the next one writes does not lose what is on record.
	write(before, after)
	if _, err := p.c.OverrideVerdict(ctx, j.ID, whyNot, saysYes); err == nil {
		t.Error("it is overridden twice")
	}
	write(before, after)
	hold, err := judge.HoldVerdict(j.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if err := p.c.judge.PutVerdict(canceled, j.ID, before, audit.Event{}); err == nil {
		t.Error("it was put on record though that was cancelled")
	}
	if b, err := os.ReadFile(file); err != nil || !bytes.Equal(b, after) {
		t.Errorf("what was on record is lost: %v", err)
	}
}

// TestSweepGates: what a killed gate left goes: its evidence, and the runs of its phases;
// what a gate still needs, or somebody took a verdict out of, stays.
func TestSweepGates(t *testing.T) {
	ctx := t.Context()
	p, j := judgedBadly(t)
	long := time.Now().Add(-time.Hour)
	verdict := func(id string) string {
		dir := p.c.judge.GateDir("verdicts", id)
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, gate.EvidenceDir, "b-change"), 0o700), os.WriteFile(filepath.Join(dir, gate.EvidenceDir, "b-change", "stdout"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	old := func(dir string) string {
		if err := os.Chtimes(dir, long, long); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	dead, pending, live, young := verdict("7dead"), verdict("7pending"), verdict("7live"), verdict("7young")
	if err := os.WriteFile(filepath.Join(pending, judge.NextFile), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	hold, err := judge.HoldVerdict(live)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{dead, live} {
		old(dir)
	}
	old(j.Dir)
	// The phase of a gate that died, and of one that lives.
	scratch := p.c.judge.GateDir("scratch")
	phase := func(name string) *Receipt {
		tree := filepath.Join(scratch, name, "trees", "t")
		if err := os.MkdirAll(tree, 0o755); err != nil {
			t.Fatal(err)
		}
		r, err := p.c.Run(ctx, plan.Options{Command: []string{"true"}, Workspace: tree, At: gate.Workspace, Mode: store.Overlay})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	killed, goesOn := phase("g1"), phase("g2")
	for _, name := range []string{"g1", "g2"} {
		f, err := judge.LockFile(filepath.Join(scratch, name, "lock"))
		if err != nil {
			t.Fatal(err)
		}
		old(filepath.Join(scratch, name))
		if name == "g2" {
			defer f.Close()
		} else if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	other, _ := p.ok("true")
	sweep := func() []string {
		t.Helper()
		g, err := p.c.SweepSandboxes(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return slices.Sorted(slices.Values(g.Removed))
	}
	want := slices.Sorted(slices.Values([]string{dead, p.c.host.Store.RunDir(killed.ID)}))
	if got := sweep(); !slices.Equal(got, want) {
		t.Errorf("removed were %q, want %q", got, want)
	}
	for _, r := range []*Receipt{goesOn, other} {
		if _, err := p.c.Receipt(ctx, r.ID); err != nil {
			t.Errorf("run %s: %v", r.ID, err)
		}
	}
	if _, err := p.c.Receipt(ctx, killed.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the phase of a killed gate stays: %v", err)
	}
	p.intact("swept")
	if err := hold.Close(); err != nil {
		t.Fatal(err)
	}
	old(pending)
	old(live)
	if err := os.Chtimes(young, time.Time{}, time.Now()); err != nil { // what ran meanwhile may have taken long
		t.Fatal(err)
	}
	// A verdict that was taken away leaves what shows it.
	if err := os.Rename(filepath.Join(j.Dir, judge.VerdictFile), filepath.Join(t.TempDir(), "v")); err != nil {
		t.Fatal(err)
	}
	old(j.Dir)
	want = []string{live, pending}
	if got := sweep(); !slices.Equal(got, want) {
		t.Errorf("removed were %q, want %q", got, want)
	}
	if _, err := os.Stat(young); err != nil {
		t.Error(err)
	}
	if r, err := p.c.AuditVerify(ctx, ""); err != nil || r.Status != audit.Tampered {
		t.Errorf("a verdict was taken away: %s, %v", r.Status, err)
	}
}

// TestGivenLast: without an id, that verdict is shown that a gate gave last, also when it
// was one of before.
func TestGivenLast(t *testing.T) {
	p, bad := judgedBadly(t)
	p.git("rm", "-q", "b")
	p.put("c", "fine")
	p.commit()
	good := p.judge(judge.GateOptions{Base: "HEAD"})
	shown := func(what, want string) {
		t.Helper()
		if v, _, err := p.c.Verdict(t.Context(), ""); err != nil || v.ID != want {
			t.Errorf("%s: %v is shown, not %s: %v", what, v, want, err)
		}
	}
	shown("the newest", good.ID)
	again := p.judge(judge.GateOptions{Base: "HEAD~2", Change: "HEAD^"})
	if !again.Cached || again.ID != bad.ID {
		t.Fatalf("%s: %s", again.ID, again.Miss)
	}
	shown("one that was given again", bad.ID)
	if again := p.judge(judge.GateOptions{Base: "HEAD"}); !again.Cached || again.ID != good.ID {
		t.Fatalf("%s: %s", again.ID, again.Miss)
	}
	shown("the newest, given again", good.ID)
	p.judge(judge.GateOptions{Base: "HEAD~2", Change: "HEAD^"})
	anew := p.judge(judge.GateOptions{Base: "HEAD", Again: true})
	shown("one that was judged since", anew.ID)
	if v, _, err := p.c.Verdict(t.Context(), bad.ID); err != nil || v.ID != bad.ID {
		t.Errorf("%v, %v", v, err)
	}
	p.judge(judge.GateOptions{Base: "HEAD~2", Change: "HEAD^"})
	if err := os.RemoveAll(bad.Dir); err != nil {
		t.Fatal(err)
	}
	shown("the newest, when the last was removed", anew.ID)
}

// TestRemoveVerdict: a verdict goes with its evidence, which the audit log says; what
// somebody took away, edited, or put back does not pass for that, nor does death on the way.
func TestRemoveVerdict(t *testing.T) {
	ctx := t.Context()
	p, bad := judgedBadly(t)
	good := p.judge(judge.GateOptions{Base: "HEAD", Change: "HEAD"})
	list := func(want ...string) {
		t.Helper()
		l, err := p.c.Verdicts(ctx, 10)
		var ids []string
		for _, v := range l {
			ids = append(ids, v.ID)
		}
		if err != nil || !slices.Equal(ids, want) {
			t.Errorf("there are %q, want %q: %v", ids, want, err)
		}
	}
	save := filepath.Join(t.TempDir(), "v")
	if err := os.CopyFS(save, os.DirFS(bad.Dir)); err != nil {
		t.Fatal(err)
	}
	// What is not as it was recorded stays.
	file := filepath.Join(bad.Dir, judge.VerdictFile)
	was, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(was, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.c.RemoveVerdict(ctx, bad.ID); !errors.Is(err, judge.ErrLedger) {
		t.Errorf("an edited verdict is removed: %v", err)
	}
	if err := os.WriteFile(file, was, 0o600); err != nil {
		t.Fatal(err)
	}
	var option *fault.OptionError
	if _, err := p.c.RemoveVerdict(ctx, ""); !errors.As(err, &option) {
		t.Errorf("nobody's verdict is removed: %v", err)
	}
	// So does what work refers to.
	step := p.c.judge.GateDir("work", "w", judge.AttemptPrefix+"001.json")
	if err := errors.Join(os.MkdirAll(filepath.Dir(step), 0o700), os.WriteFile(step, []byte(`{"verdict":"`+bad.ID+`"}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.c.RemoveVerdict(ctx, bad.ID); !errors.As(err, &option) {
		t.Errorf("a verdict that work refers to is removed: %v", err)
	}
	if err := os.RemoveAll(filepath.Dir(step)); err != nil {
		t.Fatal(err)
	}
	// Death before its record leaves it, and death after that does not.
	mark := p.c.judge.GateDir("verdicts", judge.RemovingFile)
	if err := os.WriteFile(mark, []byte(bad.ID), 0o600); err != nil {
		t.Fatal(err)
	}
	list(good.ID, bad.ID)
	p.intact("before the record")
	if id, err := p.c.RemoveVerdict(ctx, bad.ID); err != nil || id != bad.ID {
		t.Fatal(id, err)
	}
	list(good.ID)
	p.intact("removed")
	if left, err := os.ReadDir(p.c.judge.GateDir("verdicts")); err != nil || len(left) != 1 {
		t.Errorf("%v %v", left, err)
	}
	if kept, err := store.Glob(p.c.judge.GateDir("cache"), "*/"+bad.ID+".json"); err != nil || len(kept) != 0 {
		t.Errorf("it is given again by %q, %v", kept, err)
	}
	if err := errors.Join(os.CopyFS(bad.Dir, os.DirFS(save)), os.WriteFile(mark, []byte(bad.ID), 0o600)); err != nil {
		t.Fatal(err)
	}
	list(good.ID)
	p.intact("after the record")
	if _, err := p.c.RemoveVerdict(ctx, bad.ID); !errors.Is(err, judge.ErrNoVerdict) {
		t.Errorf("it is removed twice: %v", err)
	}
	// The same, with what was left of it before.
	if err := errors.Join(os.CopyFS(bad.Dir, os.DirFS(save)), os.WriteFile(mark, []byte(bad.ID), 0o600)); err != nil {
		t.Fatal(err)
	}
	if v, _, err := p.c.Verdict(ctx, bad.ID); !errors.Is(err, judge.ErrNoVerdict) {
		t.Errorf("after the record: %+v %v", v, err)
	}
	if b, err := os.ReadFile(p.c.judge.GateDir("verdicts", judge.GonePrefix+bad.ID, judge.VerdictFile)); err != nil || !bytes.Equal(b, was) {
		t.Errorf("what was left of it: %v", err)
	}
	p.intact("while it goes")
	if g, err := p.c.SweepSandboxes(ctx); err != nil || len(g.Removed) != 1 {
		t.Errorf("%+v %v", g, err)
	}
	// What was removed is not put back, and what nobody removed is missed.
	if err := errors.Join(os.RemoveAll(bad.Dir), os.CopyFS(bad.Dir, os.DirFS(save))); err != nil {
		t.Fatal(err)
	}
	if v, _, err := p.c.Verdict(ctx, bad.ID); !errors.Is(err, judge.ErrLedger) {
		t.Errorf("a removed verdict that was put back is read: %+v %v", v, err)
	}
	list(good.ID)
	tampered := func(what string) {
		t.Helper()
		if r, err := p.c.AuditVerify(ctx, ""); err != nil || r.Status != audit.Tampered {
			t.Errorf("%s: audit verify says %s, %v", what, r.Status, err)
		}
	}
	tampered("put back")
	if err := errors.Join(os.RemoveAll(bad.Dir), os.RemoveAll(good.Dir)); err != nil {
		t.Fatal(err)
	}
	tampered("removed by hand")
}

// TestRemoveVerdictBeside: who reads or verifies verdicts beside whoever removes them finds
// each as it was, or none.
func TestRemoveVerdictBeside(t *testing.T) {
	ctx := t.Context()
	p, first := judgedBadly(t)
	var ids []string
	other := "z" // than what the first one's id has there
	if first.ID[23:24] == other {
		other = "y"
	}
	for i := range 12 {
		v := *first.Verdict
		v.ID = fmt.Sprintf("%s%s%02d", first.ID[:23], other, i)
		dir := p.c.judge.GateDir("verdicts", v.ID)
		if err := errors.Join(os.CopyFS(dir, os.DirFS(first.Dir)), p.c.judge.RecordVerdict(ctx, &v)); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, v.ID)
	}
	p.intact("all are there")
	removed := make(chan error, 1)
	go func() {
		var errs []error
		for _, id := range ids {
			_, err := p.c.RemoveVerdict(ctx, id)
			errs = append(errs, err)
		}
		removed <- errors.Join(errs...)
	}()
	for rounds := 1; ; rounds++ {
		p.intact("beside")
		for _, ref := range append(ids, "") {
			if _, _, err := p.c.Verdict(ctx, ref); err != nil && (ref == "" || !errors.Is(err, judge.ErrNoVerdict)) {
				t.Errorf("%q is read: %v", ref, err)
			}
		}
		select {
		case err := <-removed:
			if err != nil || t.Failed() {
				t.Errorf("round %d: %v", rounds, err)
			}
			if l, err := p.c.Verdicts(ctx, 100); err != nil || len(l) != 1 || l[0].ID != first.ID {
				t.Errorf("%+v %v", l, err)
			}
			return
		default:
		}
	}
}

// TestRemoveVerdictWaits: who removes a verdict waits for those who read it, and who was
// given one, for whether it stays.
func TestRemoveVerdictWaits(t *testing.T) {
	p, j := judgedBadly(t)
	release, err := p.c.judge.KeepVerdicts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	removed := make(chan error, 1)
	remove := func() {
		_, err := p.c.RemoveVerdict(ctx, j.ID)
		removed <- err
	}
	held := func() bool {
		f, err := judge.HoldVerdict(j.Dir)
		if err == nil {
			f.Close()
		}
		return errors.Is(err, unix.EWOULDBLOCK)
	}
	go remove()
	for kept := []string{""}; len(kept) > 0 || !held(); time.Sleep(time.Millisecond) { // it is about to go
		if kept, err = store.Glob(p.c.judge.GateDir("cache"), "*/"+j.ID+".json"); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := p.c.Verdict(ctx, j.ID); err != nil {
		t.Error(err)
	}
	p.intact("about to go")
	cancel()
	if err := <-removed; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	p.intact("it stays")
	release()
	// A second one that waits for the first is told that there is none.
	hold, err := judge.HoldVerdict(j.Dir)
	if err != nil {
		t.Fatal(err)
	}
	waits := make(chan error, 1)
	go func() {
		_, err := judge.WaitVerdict(t.Context(), j.Dir)
		waits <- err
	}()
	if err := errors.Join(p.c.judge.DropVerdict(j.ID), hold.Close()); err != nil {
		t.Fatal(err)
	}
	if err := <-waits; !errors.Is(err, judge.ErrNoVerdict) {
		t.Error(err)
	}
}

// TestWorkKeepsItsVerdict: a verdict that somebody removes after work was given it, and
// before work refers to it, is not the one by which the attempt ended.
func TestWorkKeepsItsVerdict(t *testing.T) {
	ctx := t.Context()
	p := newProject(t, map[string]string{"a": "x", gate.CatalogPath: "version: 1\nsignals:\n  - {name: policy, kind: policy}\n"})
	r, err := p.c.Run(ctx, plan.Options{Command: []string{"touch", "b"}, Workspace: p.ws, Mode: store.Overlay})
	if err != nil {
		t.Fatal(err)
	}
	base := p.git("rev-parse", "HEAD")
	first := p.judge(judge.GateOptions{Base: base, Change: string(r.ID)})
	newest := p.judge(judge.GateOptions{Base: base, Change: base})
	hold, err := judge.HoldVerdict(first.Dir)
	if err != nil {
		t.Fatal(err)
	}
	w := &work.Work{C: p.c.worker, O: &work.WorkOptions{}, Id: "w", Dir: p.c.judge.GateDir("work", "w"), Task: work.Task{Dir: p.ws, Base: base}}
	if err := os.MkdirAll(w.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	judged := make(chan error, 1)
	go func() { judged <- w.Judge(ctx, work.Attempt{Number: 1, Run: r.ID}) }()
	for want := []byte(first.ID + " " + newest.ID); ; time.Sleep(time.Millisecond) { // it is given the first again
		if b, err := os.ReadFile(p.c.judge.GateDir(judge.GivenFile)); err == nil && bytes.HasPrefix(b, want) {
			break
		}
		if len(judged) > 0 {
			break
		}
	}
	none := new(secret.Redactor)
	_, err = p.c.host.Audit.Append(ctx, audit.Event{
		Kind: audit.GateRemoved, Actor: audit.ByUser(os.Getuid()), Decision: audit.Allowed, Subject: audit.Redact(none, first.ID), Sync: true,
	})
	if err := errors.Join(err, p.c.judge.DropVerdict(first.ID), hold.Close(), <-judged); err != nil {
		t.Fatal(err)
	}
	if len(w.Steps) != 1 {
		t.Fatalf("%+v", w.Steps)
	}
	id := w.Steps[0].Verdict
	if v, _, err := p.c.Verdict(ctx, id); err != nil || v.Outcome != w.Steps[0].Outcome || id == first.ID {
		t.Errorf("the attempt ended by %s, of which there is %+v: %v", id, v, err)
	}
	var option *fault.OptionError
	if _, err := p.c.RemoveVerdict(ctx, id); !errors.As(err, &option) {
		t.Errorf("a verdict that work refers to is removed: %v", err)
	}
}
