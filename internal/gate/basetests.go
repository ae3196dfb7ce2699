package gate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// holdToBase asks for the behaviour that the base's tests ask for. If the change edits
// tests, the base's run on the change's code: each that passed on the base must pass.
// Whether the change's own tests still check anything is then no matter.
func (x *testComparison) holdToBase(ctx context.Context) error {
	c := x.c
	e, err := findTestEdits(ctx, c.Base, c.Change, x.k.isTestFile)
	if err != nil {
		return err
	}
	x.f.TestFiles, x.f.Files = e.total, e.paths[:min(len(e.paths), maxFindings)]
	x.describe(e)
	if len(e.paths) == 0 {
		for _, id := range x.wanted { // these are the base's tests
			if x.now.tests[id] == testPassed || slices.Contains(x.f.FlakyPassed, id) {
				x.f.OldPassed++
			}
		}
		return nil
	}
	x.f.FilesDigest = e.digest
	if len(x.f.Failed) > 0 {
		return nil // it fails its own tests
	}
	t, err := c.Change.withTestsOf(ctx, c.Base, x.k.isTestFile)
	if err != nil {
		return fmt.Errorf("the base's tests can't be put into the change: %w", err)
	}
	s := c.Signal
	if x.k.format == "pytest" { // it would run nothing, if one file can't be loaded
		s = s.withEnv("PYTEST_ADDOPTS", "--continue-on-collection-errors")
	}
	p, err := c.runOld(ctx, s, t)
	if err != nil {
		return err
	}
	return x.judgeOld(ctx, &oldRun{testRun{p: p}, e, t, s})
}

// oldRun is the run of the base's tests on the change.
type oldRun struct {
	testRun
	edits  *testEdits
	tree   *Tree
	signal *Signal
}

// judgeOld fills in what failed of the base's tests.
func (x *testComparison) judgeOld(ctx context.Context, o *oldRun) error {
	words := ""
	if o.inv, o.err = x.k.read(o.p); o.err != nil {
		o.inv, words = newInventory(), o.err.Error()+"\n"
	} else {
		seen, unseen := x.k.observedRunners(o.p, o.inv)
		if seen == 0 && slices.Contains(slices.Collect(maps.Values(o.inv.tests)), testPassed) {
			unseen = append(unseen, x.c.Name)
		}
		for _, u := range unseen {
			if !x.base.files[u] && !x.base.packages[u] && u != x.c.Name {
				continue // what can't be loaded is not of a file of tests
			}
			x.f.Unseen = append(x.f.Unseen, u)
			x.found = append(x.found, Finding{ID: u, Text: "the base's tests are said to have passed on the change, and the kernel inside saw none of them run"})
		}
		if failed := o.inv.failed(); (o.p.Code == 0) != (len(failed) == 0) {
			return &questionError{fmt.Sprintf("with the base's tests, the runner ended with %d, and reports %d failed tests", o.p.Code, len(failed))}
		}
	}
	accepted := x.c.Baseline.changedTests(x.c.Name, o.edits.digest)
	var failed, missing []string
	for _, id := range x.wanted {
		if o.inv.tests[id] == testFailed && x.now.tests[id] != "" && !slices.Contains(accepted, id) {
			failed = append(failed, id)
		}
	}
	again, err := x.runAgain(ctx, o.signal, o.tree, o.p, failed)
	if err != nil {
		return err
	}
	x.settle(failed, again, true)
	for _, id := range x.wanted {
		switch st := o.inv.tests[id]; {
		case again[id] != "" && !slices.Contains(x.f.FlakyPassed, id): // it is reported
		case st == testPassed || again[id] != "":
			x.f.OldPassed++
		case slices.Contains(accepted, id):
			x.f.Accepted++
			x.note(id, "as the base has it, the test does not pass on the change, which the baseline accepts")
		case x.now.tests[id] == "":
			x.note(id, "as the base has it, the test does not pass on the change")
		case st == "":
			missing = append(missing, id)
		default:
			x.gone(o, id, st)
		}
	}
	if len(missing) > 0 {
		x.mustChange(o, missing, words)
	}
	return nil
}

// gone reports a test that as the base has it does not pass on the change.
func (x *testComparison) gone(o *oldRun, id string, st state) {
	verb := "fails"
	if st == testSkipped {
		verb = "is skipped"
	}
	if place := o.edits.place(id, x.k.format, x.c.Base, x.base); place.edited {
		x.f.Asked = append(x.f.Asked, id)
		x.found = append(x.found, Finding{
			ID: id, File: place.file, Text: "the change edits this test. As the base has it, it " + verb + " on the change: behaviour that it asks for is gone. Is that meant?",
			Detail: "the change's edit:\n" + headAndTail(o.edits.diff(place), 900) + "the base's test printed:\n" + headAndTail(strings.Trim(o.inv.output[id], "\n"), 900),
		})
		return
	}
	x.f.Gone = append(x.f.Gone, id)
	x.found = append(x.found, Finding{
		ID: id, Detail: o.inv.detail(id),
		Text: "with the base's test files, the test " + verb + " on the change: behaviour that the base's tests ask for is gone, and what the change did to " + firstOf(o.edits.paths, 5) + " hides it",
	})
}

// mustChange reports tests of the base that can't be built or loaded with the change, with
// the words of the compiler or the runner.
func (x *testComparison) mustChange(o *oldRun, missing []string, words string) {
	x.f.MustChange = missing
	var causes []string
	failed := o.inv.failed()
	for _, id := range failed {
		compiled := slices.ContainsFunc(failed, func(other string) bool { return strings.HasPrefix(other, id+" [") })
		if x.base.tests[id] == "" && !compiled { // else the compiler's words are the other's
			causes = append(causes, id)
		}
	}
	if len(causes) == 0 {
		causes = []string{x.c.Name}
	}
	for i, id := range causes {
		f := Finding{ID: id, Text: "tests-must-change: the base's tests can't be built or loaded with the change", Detail: o.inv.detail(id)}
		if i == 0 {
			f.Text += fmt.Sprintf(", so %s did not run: %s", number(len(missing), "test", "tests"), firstOf(missing, 10))
		}
		if f.Detail == "" || len(f.Detail) < 300 && x.k.format != "go" {
			f.Detail = headAndTail(words+f.Detail+"\n"+firstErrors(o.p), maxDetail)
		}
		x.found = append(x.found, f)
	}
}

func number(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// firstOf joins the first n of a list.
func firstOf(list []string, n int) string {
	if len(list) > n {
		return strings.Join(list[:n], ", ") + fmt.Sprintf(" and %d more", len(list)-n)
	}
	return strings.Join(list, ", ")
}

// describe notes which files are tests, and how those that differ changed.
func (x *testComparison) describe(e *testEdits) {
	text := number(e.total, "file", "files") + " of the base by " + x.k.filesText()
	if len(e.paths) > 0 {
		text += fmt.Sprintf("; these differ: %s", firstOf(e.paths, 20))
	}
	x.note("test-files", text)
	for f := range x.base.files {
		if _, there := x.c.Base.lookup(f); there && !x.k.isTestFile(f) {
			x.found = append(x.found, Finding{ID: "test-files", File: f, Noted: true, Text: "tests were reported of it, and it is judged as the change has it, since no pattern of test files covers it (test_files)"})
		}
	}
	a := e.assertions()
	x.f.TestsChanged, x.f.Fewer, x.f.More = a.tests, a.removed, a.added
	accepted := x.c.Baseline.changedTests(x.c.Name, e.digest)
	for _, f := range a.fewer {
		if f.Noted = !x.k.asksWeakened || slices.Contains(accepted, f.ID); !f.Noted {
			x.f.Weakened = append(x.f.Weakened, f.ID)
		}
		x.found = append(x.found, f)
	}
}

// question says what a person must decide.
func (f testFacts) question() string {
	var parts []string
	for _, p := range []struct {
		list []string
		text string
	}{
		{f.Asked, "the change edits tests that fail as the base has them (%d)"},
		{f.MustChange, "tests-must-change: tests of the base can't be built or loaded with the change (%d)"},
		{f.Flaky, "tests fail only sometimes (%d)"},
		{f.Weakened, "tests have fewer assertions (%d)"},
	} {
		if len(p.list) > 0 {
			parts = append(parts, fmt.Sprintf(p.text, len(p.list)))
		}
	}
	return strings.Join(parts, "; ")
}

// summary says in one line how tests changed; empty: they did not.
func (f testFacts) summary() string {
	if len(f.Files) == 0 {
		return ""
	}
	s := fmt.Sprintf("test files changed: %d, tests changed: %d, assertions removed: %d, added: %d", len(f.Files), f.TestsChanged, f.Fewer, f.More)
	if len(f.Failed) == 0 {
		s += fmt.Sprintf("; of the base's %d tests, %d pass on the change", f.BasePassed, f.OldPassed)
	}
	return s
}

// runOld runs a signal's command on the change with the base's tests.
func (c *Case) runOld(ctx context.Context, s *Signal, t *Tree) (*Phase, error) {
	p, err := c.g.phase(ctx, s, t, onOld)
	c.noteUnfinished(p)
	return p, err
}

// withEnv returns a copy of the signal with words added to a variable.
func (s *Signal) withEnv(name, words string) *Signal {
	x := *s
	x.Env = slices.Clone(s.Env)
	for i, v := range slices.Backward(x.Env) {
		if strings.HasPrefix(v, name+"=") {
			x.Env[i] = v + " " + words
			return &x
		}
	}
	x.Env = append(x.Env, name+"="+words)
	return &x
}
