package gate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/carboy/carboy/internal/document"
)

func init() {
	register(SignalKind{Name: "tests", Summary: "no test fails, each that passed on the base is there and passes, and passes as the base has it", Runs: true, Keys: []string{"format", "results", "runner", "accept", "test_files", "weakened", "flaky"}}, func(s *Signal, m document.Mapping) Judge[testFacts] {
		k := testsKind{
			format: m.Need("format").OneOf("go", "junit", "pytest", "jest", "vitest"), results: m.Get("results").Text(),
			runner: m.Get("runner").Strings(), accept: m.Get("accept").Strings(), files: m.Get("test_files").Strings(),
			asksWeakened: m.Get("weakened").OneOf("note", "ask") == "ask", flaky: m.Get("flaky").OneOf("ask", "fail", "pass"),
		}
		s.format = k.format
		for _, pat := range k.files {
			if _, err := path.Match(pat, "x"); err != nil || pat == "" {
				m.Get("test_files").Bad("has an invalid pattern: "+pat, "")
			}
		}
		if k.results == "" {
			k.results = "stdout"
		}
		if k.format == "go" && len(s.Warm) > 0 && !slices.ContainsFunc(s.Command, func(a string) bool { return strings.HasPrefix(strings.TrimLeft(a, "-"), "count=") }) {
			m.Get("warm").Bad("keeps results of tests, too", "a result of before is no run: add -count=1 to the command")
		}
		if k.results != "stdout" && badPath(k.results) != "" {
			m.Get("results").Bad("is no path of the tree", "name the file that the runner writes, or stdout")
		}
		if len(k.runner) == 0 {
			switch k.format {
			case "go":
			case "pytest":
				k.runner = []string{"python*"}
			case "jest", "vitest":
				k.runner = []string{"node"}
			default:
				if len(s.Command) > 0 {
					k.runner = []string{path.Base(s.Command[0])}
				}
			}
		}
		return k.evaluate
	})
}

// testsKind compares the tests that ran on the base with those that ran on the change.
// The ids and results of tests are the runner's claims; that the runner ran, and its exit
// code, are observed.
type testsKind struct {
	format, results string
	runner          []string // programs, one of which must have run
	accept          []string // ids that may be missing, by the catalog
	files           []string // patterns of test files; empty: the defaults
	asksWeakened    bool     // fewer assertions are a question
	flaky           string   // what a test is that fails only sometimes: ask, fail, pass
}

// LostTests returns the tests that are missing on the change, by signal.
func (v *Verdict) LostTests() map[string][]string {
	out := map[string][]string{}
	for _, r := range v.Signals {
		var f testFacts
		if r.Kind == "tests" && json.Unmarshal(r.Facts, &f) == nil && len(f.Lost) > 0 {
			out[r.Name] = f.Lost
		}
	}
	return out
}

// ChangedTests returns the tests about which a verdict asks, since the change edits them,
// by signal, each list with the digest of the change's test files.
func (v *Verdict) ChangedTests() map[string]RemovedTests {
	out := map[string]RemovedTests{}
	for _, r := range v.Signals {
		var f testFacts
		if r.Kind != "tests" || json.Unmarshal(r.Facts, &f) != nil {
			continue
		}
		if list := slices.Concat(f.Asked, f.MustChange, f.Weakened); len(list) > 0 {
			slices.Sort(list)
			out[r.Name] = RemovedTests{r.Name, slices.Compact(list), f.FilesDigest}
		}
	}
	return out
}

type testFacts struct {
	BasePassed int      `json:"base_passed"`
	Passed     int      `json:"passed"`
	Failed     []string `json:"failed,omitempty"`
	Lost       []string `json:"lost,omitempty"`
	Skipped    []string `json:"newly_skipped,omitempty"`
	Added      int      `json:"added"`
	Code       int      `json:"exit_code"`
	// Unseen lists packages or files whose tests are reported as passed although nothing
	// was seen to run them.
	Unseen []string `json:"unseen,omitempty"`
	// Shadowing lists modules of the change that tests may load instead of those that the
	// base's tests loaded from this machine or from what was installed.
	Shadowing []string `json:"stand_before,omitempty"`
	Seen      int      `json:"runners_seen"`

	// OldPassed counts the tests that passed on the base and pass on the change as the
	// base has them; Accepted those that a person lets go or change.
	OldPassed int `json:"base_tests_passed"`
	Accepted  int `json:"accepted"`
	// Gone lists tests that as the base has them fail on the change, though the change
	// does not edit them. Asked lists those whose file it does edit. MustChange lists those
	// that can't be built or loaded.
	Gone       []string `json:"behaviour_gone,omitempty"`
	Asked      []string `json:"behaviour_changed,omitempty"`
	MustChange []string `json:"tests_must_change,omitempty"`
	// Flaky lists tests that failed, and passed when they were run again alone; FlakyPassed
	// lists those that the catalog lets pass.
	Flaky       []string `json:"flaky,omitempty"`
	FlakyPassed []string `json:"flaky_passed,omitempty"`
	// Weakened lists tests, or files of them, with fewer assertions, if the catalog asks.
	Weakened []string `json:"weakened,omitempty"`

	// Files lists test files that differ, and FilesDigest is a SHA-256 over the change's
	// version of them.
	Files        []string `json:"test_files_changed,omitempty"`
	FilesDigest  string   `json:"test_files_sha256,omitempty"`
	TestFiles    int      `json:"test_files"`
	TestsChanged int      `json:"tests_changed"`
	Fewer        int      `json:"assertions_removed"`
	More         int      `json:"assertions_added"`
}

func (f testFacts) Positive() bool {
	return f.BasePassed+f.Added > 0 && f.Passed > 0 && (f.Code == 0 || len(f.FlakyPassed) > 0) && f.Seen > 0 &&
		f.OldPassed+f.Accepted >= f.BasePassed && !f.refused() && !f.asks()
}

// refused reports whether something is wrong that another change can mend.
func (f testFacts) refused() bool {
	return len(f.Failed)+len(f.Lost)+len(f.Skipped)+len(f.Unseen)+len(f.Shadowing)+len(f.Gone) > 0 || f.Seen == 0
}

// asks reports whether there is something that only a person can decide.
func (f testFacts) asks() bool {
	return len(f.Asked)+len(f.MustChange)+len(f.Flaky)+len(f.Weakened) > 0
}

// testRun is the result of running the tests on one tree.
type testRun struct {
	inv *inventory
	p   *Phase
	err error
}

func (k testsKind) evaluate(ctx context.Context, c *Case) (testFacts, []Finding, error) {
	base, now := k.run(ctx, c)
	switch {
	case now.err != nil:
		var found []Finding
		if now.p != nil {
			found = exitFinding(now.p)
		}
		return testFacts{}, found, now.err
	case base.err != nil:
		return testFacts{}, nil, fmt.Errorf("the tests of the base can't be compared with: %w", base.err)
	}
	x := testComparison{c: c, k: k, base: base.inv, now: now.inv, f: testFacts{Code: now.p.Code}}
	x.compare(c.Baseline.removedTests(c.Name))
	x.f.Seen, x.f.Unseen = k.observedRunners(now.p, now.inv)
	for _, u := range x.f.Unseen {
		x.found = append(x.found, Finding{ID: u, Text: "its tests are said to have passed, and the kernel inside saw none of them run"})
	}
	shadowed, err := findShadowingModules(ctx, c.Base, c.Change, base.p, now.p)
	if err != nil {
		return x.f, x.found, err
	}
	for _, mod := range slices.Sorted(maps.Keys(shadowed)) {
		x.f.Shadowing = append(x.f.Shadowing, mod)
		x.found = append(x.found, Finding{ID: "stands-before", File: mod, Text: "tests can be given it where those of the base were given " + shadowed[mod] + ": " + shadowingAdvice(mod)})
	}
	failed := now.inv.failed()
	if (x.f.Code == 0) != (len(failed) == 0) {
		for _, id := range failed {
			x.report(&x.f.Failed, id, "the test fails")
		}
		return x.f, x.found, &questionError{fmt.Sprintf("the runner ended with %d, and reports %d failed tests", x.f.Code, len(failed))}
	}
	again, err := x.runAgain(ctx, c.Signal, c.Change, now.p, failed)
	if err != nil {
		return x.f, x.found, err
	}
	for _, id := range x.settle(failed, again, false) {
		x.report(&x.f.Failed, id, "the test fails")
	}
	if err := x.holdToBase(ctx); err != nil {
		return x.f, x.found, err
	}
	if x.f.asks() && !x.f.refused() {
		return x.f, x.found, &questionError{x.f.question()}
	}
	return x.f, x.found, nil
}

// run runs the tests on base and change, at once unless both are one tree.
func (k testsKind) run(ctx context.Context, c *Case) (base, now testRun) {
	on := func(t *Tree) (r testRun) {
		if r.p, r.err = c.run(ctx, t); r.err == nil {
			r.inv, r.err = k.read(r.p)
		}
		return r
	}
	if c.Base == c.Change { // a baseline is being recorded
		now = on(c.Change)
		return now, now
	}
	var wg sync.WaitGroup
	wg.Go(func() { base = on(c.Base) })
	now = on(c.Change)
	wg.Wait()
	return base, now
}

// testComparison compares the reports of base and change.
type testComparison struct {
	c         *Case
	k         testsKind
	base, now *inventory
	wanted    []string // ids that passed on the base, and that nobody lets go
	f         testFacts
	found     []Finding
}

func (x *testComparison) report(list *[]string, id, what string) {
	*list = append(*list, id)
	x.found = append(x.found, Finding{ID: id, Text: what, Detail: x.now.detail(id)})
}

func (x *testComparison) note(id, text string) {
	x.found = append(x.found, Finding{ID: id, Noted: true, Text: text})
}

// compare fills in the tests that were lost, or are skipped now. Tests that the catalog
// accepts, and removed, of the baseline, may be lost.
func (x *testComparison) compare(removed []string) {
	for _, id := range slices.Sorted(maps.Keys(x.base.tests)) {
		if x.base.tests[id] != testPassed {
			continue
		}
		x.f.BasePassed++
		accepts := ""
		if slices.Contains(x.k.accept, id) {
			accepts = "the catalog"
		} else if slices.Contains(removed, id) {
			accepts = "the baseline"
		}
		if accepts == "" {
			x.wanted = append(x.wanted, id)
		} else {
			x.f.Accepted++
		}
		switch st := x.now.tests[id]; {
		case st == "" && accepts != "":
			x.note(id, "the test is gone, which "+accepts+" accepts")
		case st == "":
			x.report(&x.f.Lost, id, "the test passed on the base, and is gone")
		case st == testSkipped:
			x.report(&x.f.Skipped, id, "the test passed on the base, and is skipped")
		}
	}
	for id, st := range x.now.tests {
		if st == testPassed {
			x.f.Passed++
			if x.base.tests[id] == "" {
				x.f.Added++
			}
		}
	}
}

// pyModule is a Python module, by its directory and the name that imports it.
type pyModule struct{ dir, name string }

// moduleOf returns the module that a file can be imported as, by its own name or its
// directory's.
func moduleOf(f string) (pyModule, bool) {
	dir, file := path.Split(f)
	dir = path.Clean(dir)
	if ext := path.Ext(file); !slices.Contains([]string{".py", ".pyc", ".so"}, ext) {
		return pyModule{}, false
	}
	name, _, _ := strings.Cut(file, ".")
	if path.Base(dir) == "__pycache__" {
		dir = path.Dir(dir)
	}
	if name == "__init__" {
		dir, name = path.Split(dir)
		dir = path.Clean(dir)
	}
	return pyModule{dir, name}, name != ""
}

// findShadowingModules finds new Python modules that can be loaded in place of a module of
// the same name elsewhere, which the base's tests were given: it may be the one that has
// the assertions. The result maps each to the file that it can replace.
//
// A module that is found by its name alone is reported even if the other file was opened
// as well, since the module itself can open it. A module of a package is not: its full
// name begins with the package's.
func findShadowingModules(ctx context.Context, was, is *Tree, base, now *Phase) (map[string]string, error) {
	out := map[string]string{}
	if base == nil || now == nil || base == now {
		return out, nil
	}
	same, err := is.sameAs(ctx, was)
	if err != nil {
		return nil, err
	}
	news := newModules(was, is, same, base.Observed.TreeRead, now.Observed.TreeRead)
	look := func(list, then []string, prefix string) {
		for _, f := range list {
			m, ok := moduleOf(f)
			if !ok || !isModuleDir(path.Base(m.dir)) {
				continue
			}
			_, both := slices.BinarySearch(then, f)
			for _, c := range news[m.name] {
				if out[c.file] == "" && (c.found || !both) {
					out[c.file] = prefix + f
				}
			}
		}
	}
	look(base.Observed.Opened, now.Observed.Opened, "")
	look(base.Observed.TreeRead, now.Observed.TreeRead, Workspace+"/")
	return out, nil
}

// isModuleDir reports whether Python looks for top-level modules in directories of a name.
func isModuleDir(name string) bool {
	return slices.Contains([]string{"site-packages", "dist-packages", "lib-dynload", "site"}, name) || strings.HasPrefix(name, "python3")
}

// newModule is a file that can be imported and was not there on the base.
type newModule struct {
	file  string
	found bool // Python finds it by its name alone: it is in no package
}

// newModules returns the modules that the change has and the base has not, by name.
// baseRead and nowRead are files of the tree that the phases opened.
func newModules(was, is *Tree, same func(File) bool, baseRead, nowRead []string) map[string][]newModule {
	had, dirs := map[pyModule]bool{}, map[string]bool{}
	for _, f := range was.Files {
		if m, ok := moduleOf(f.Path); ok {
			had[m], dirs[path.Dir(f.Path)] = true, true
		}
	}
	for _, f := range baseRead {
		if m, ok := moduleOf(f); ok {
			had[m] = true // the phase made it, or an earlier signal kept it
		}
	}
	inPackage := func(dir string) bool {
		_, ok := is.lookup(path.Join(dir, "__init__.py"))
		_, before := was.lookup(path.Join(dir, "__init__.py"))
		return ok && dir != "." && (before || !dirs[dir])
	}
	news := map[string][]newModule{}
	own := map[pyModule]string{}
	for _, f := range is.Files {
		m, ok := moduleOf(f.Path)
		if f.Mode == Link && path.Ext(f.Path) == "" {
			m, ok = moduleOf(f.Path + "/__init__.py") // the link may lead to a package
		}
		switch {
		case !ok:
		case f.Mode == Link && !same(f): // it is opened by another name
			news[m.name] = append(news[m.name], newModule{f.Path, !inPackage(m.dir)})
		case !had[m]:
			own[m] = f.Path
		}
	}
	for _, f := range nowRead {
		if m, ok := moduleOf(f); ok && !had[m] {
			at, here := own[m]
			if !here {
				at = f // the phase made it, or it was installed
			}
			news[m.name] = append(news[m.name], newModule{at, here && !inPackage(m.dir)})
		}
	}
	return news
}

// shadowingAdvice says what to do about a module that can be loaded in place of another.
func shadowingAdvice(file string) string {
	m, _ := moduleOf(file)
	if m.dir == "." || m.dir == "" {
		return "call it otherwise, or put it into a package"
	}
	return "call it otherwise, or put it into a package: " + path.Join(m.dir, "__init__.py") + " makes this directory one when the base has it, too, or had no Python here (let a change go before that adds only the file)"
}

// read parses the test report of a phase.
func (k testsKind) read(p *Phase) (*inventory, error) {
	var b []byte
	var err error
	if k.results == "stdout" {
		b, err = p.Stdout.whole()
	} else {
		b, err = wrote(p, k.results)
	}
	if err == nil {
		var inv *inventory
		if inv, err = parsers[k.format](b); err == nil {
			return inv, nil
		}
	}
	return nil, fmt.Errorf("%s on the %s gave no results in %s's form: %w", p.Signal, sideName(p.On), k.format, err)
}

// wrote returns the content of a file that a phase wrote.
func wrote(p *Phase, name string) ([]byte, error) {
	if p.Changes == nil {
		return nil, errors.New("what it wrote was not kept")
	}
	c, ok := p.Changes.Lookup(name)
	if !ok || c.Type != "file" {
		return nil, fmt.Errorf("it wrote no file %s", name)
	}
	if c.Size > maxReport {
		return nil, fmt.Errorf("its file %s has %d bytes; results may have %d", name, c.Size, maxReport)
	}
	r, err := p.Changes.Content(c)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(r, maxReport))
	return b, errors.Join(err, r.Close())
}

// observedRunners counts the test runners in the trace, and returns packages and files
// with passed tests that nothing was seen to run.
func (k testsKind) observedRunners(p *Phase, inv *inventory) (n int, unseen []string) {
	ran := map[string]bool{}
	binaries := map[string]map[string]bool{} // of Go tests: paths by base name
	for _, x := range p.Observed.Execs {
		if base := path.Base(x.Path); k.format == "go" && strings.HasSuffix(base, ".test") {
			ran[base] = true
			if binaries[base] == nil {
				binaries[base] = map[string]bool{}
			}
			binaries[base][x.Path] = true
		}
		for _, name := range []string{x.Path, x.Asked} {
			base := path.Base(name)
			for _, pat := range k.runner {
				if ok, _ := path.Match(pat, base); ok {
					ran[base] = true
				}
			}
		}
	}
	// Packages of the same name have test binaries of the same name, each in its own
	// directory.
	named := map[string]int{}
	for pkg := range inv.packages {
		named[goBinary(pkg)]++
	}
	for pkg := range inv.packages {
		if b := goBinary(pkg); k.format == "go" && len(binaries[b]) < named[b] {
			unseen = append(unseen, pkg)
		}
	}
	for f := range inv.files {
		if _, ok := slices.BinarySearch(p.Observed.TreeRead, f); !ok && badPath(f) == "" {
			unseen = append(unseen, f)
		}
	}
	slices.Sort(unseen)
	return len(ran), unseen
}
