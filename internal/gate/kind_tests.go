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
	Register(Kind{Name: "tests", Summary: "no test fails, and each that passed on the base is there and passes", Runs: true, Keys: []string{"format", "results", "runner", "accept"}}, func(s *Signal, m document.Mapping) Judge[testFacts] {
		k := testsKind{
			format: m.Need("format").OneOf("go", "junit", "pytest", "jest", "vitest"), results: m.Get("results").Text(),
			runner: m.Get("runner").Strings(), accept: m.Get("accept").Strings(),
		}
		s.format = k.format
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
		return k.judge
	})
}

// testsKind compares what ran on the base with what ran on the change. Ids and states
// are the runner's claims; that it ran, and how it ended, is observed.
type testsKind struct {
	format, results string
	runner          []string // programs one of which must have run
	accept          []string // ids that may be lost, which a person put into the catalog
}

// LostTests are those that a verdict misses, by signal.
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

type testFacts struct {
	BasePassed int      `json:"base_passed"`
	Passed     int      `json:"passed"`
	Failed     []string `json:"failed,omitempty"`
	Lost       []string `json:"lost,omitempty"`
	Skipped    []string `json:"newly_skipped,omitempty"`
	Emptied    []string `json:"emptied,omitempty"`
	Added      int      `json:"added"`
	Code       int      `json:"exit_code"`
	// Unseen are packages or files whose tests are said to have passed, and whose
	// binary was not seen to run.
	Unseen []string `json:"unseen,omitempty"`
	// Stands are modules of the change's that tests can be given where the base's were given
	// this machine's, or what was installed.
	Stands []string `json:"stand_before,omitempty"`
	Seen   int      `json:"runners_seen"`
}

func (f testFacts) Positive() bool {
	return f.BasePassed+f.Added > 0 && f.Passed > 0 && f.Code == 0 && f.Seen > 0 &&
		len(f.Failed)+len(f.Lost)+len(f.Skipped)+len(f.Emptied)+len(f.Unseen)+len(f.Stands) == 0
}

func (k testsKind) judge(ctx context.Context, c *Case) (testFacts, []Finding, error) {
	type side struct {
		inv *inventory
		p   *Phase
		err error
	}
	run := func(t *Tree) (s side) {
		if s.p, s.err = c.Run(ctx, t); s.err == nil {
			s.inv, s.err = k.read(s.p)
		}
		return s
	}
	var now, base side
	if c.Base == c.Change { // a baseline is being made of what there is
		now = run(c.Change)
		base = now
	} else {
		var wg sync.WaitGroup
		wg.Go(func() { base = run(c.Base) })
		now = run(c.Change)
		wg.Wait()
	}
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
	f := testFacts{Code: now.p.Code}
	var found []Finding
	say := func(list *[]string, id, what string) {
		*list = append(*list, id)
		found = append(found, Finding{ID: id, Text: what, Detail: ends(strings.Trim(now.inv.output[id], "\n"), maxDetail)})
	}
	var stay []string // passed on both sides, and are to
	for _, id := range slices.Sorted(maps.Keys(base.inv.tests)) {
		if base.inv.tests[id] != testPassed {
			continue
		}
		f.BasePassed++
		accepts := ""
		if slices.Contains(k.accept, id) {
			accepts = "the catalog"
		} else if slices.Contains(c.Baseline.GoneTests(c.Name), id) {
			accepts = "the baseline"
		}
		switch st := now.inv.tests[id]; {
		case st == "" && accepts != "":
			found = append(found, Finding{ID: id, Noted: true, Text: "the test is gone, which " + accepts + " accepts"})
		case st == "":
			say(&f.Lost, id, "the test passed on the base, and is gone")
		case st == testSkipped:
			say(&f.Skipped, id, "the test passed on the base, and is skipped")
		case st == testPassed && accepts == "":
			stay = append(stay, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(now.inv.tests)) {
		switch now.inv.tests[id] {
		case testPassed:
			f.Passed++
			if base.inv.tests[id] == "" {
				f.Added++
			}
		case testFailed:
			say(&f.Failed, id, "the test fails")
		}
	}
	f.Seen, f.Unseen = k.seen(now.p, now.inv)
	for _, u := range f.Unseen {
		found = append(found, Finding{ID: u, Text: "its tests are said to have passed, and the kernel inside saw none of them run"})
	}
	stands, err := standBefore(ctx, c.Base, c.Change, base.p, now.p)
	if err != nil {
		return f, found, err
	}
	for _, mod := range slices.Sorted(maps.Keys(stands)) {
		f.Stands = append(f.Stands, mod)
		found = append(found, Finding{ID: "stands-before", File: mod, Text: "tests can be given it where those of the base were given " + stands[mod] + ": " + insteadOf(mod)})
	}
	empty, err := emptied(ctx, c.Base, c.Change, k.format, stay)
	if err != nil {
		return f, found, err
	}
	for _, e := range empty {
		f.Emptied = append(f.Emptied, e.ID)
		found = append(found, e)
	}
	if (f.Code == 0) != (len(f.Failed) == 0) {
		return f, found, &DisagreementError{fmt.Sprintf("the runner ended with %d, and reports %d failed tests", f.Code, len(f.Failed))}
	}
	return f, found, nil
}

// pyModule is a module of Python by what it is imported as, from where it lies.
type pyModule struct{ dir, name string }

// moduleOf is what a file may be imported as: its own name, or its directory's.
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

// standBefore finds modules of Python that are new, and can be what is loaded in the place
// of one of their name that lies elsewhere: what asserts may be such. They are given with
// what they stand before, which the base's tests had. That the other one was looked at,
// too, says nothing in favour of a module that lies where modules are found: whoever
// stands before another can open it. Of the modules of packages it does: they have the
// package's name before theirs.
func standBefore(ctx context.Context, was, is *Tree, base, now *Phase) (map[string]string, error) {
	out := map[string]string{}
	if base == nil || now == nil || base == now {
		return out, nil
	}
	same, err := is.sameAs(ctx, was)
	if err != nil {
		return nil, err
	}
	had, dirs := map[pyModule]bool{}, map[string]bool{}
	for _, f := range was.Files {
		if m, ok := moduleOf(f.Path); ok {
			had[m], dirs[path.Dir(f.Path)] = true, true
		}
	}
	for _, f := range base.Observed.TreeRead {
		if m, ok := moduleOf(f); ok {
			had[m] = true // one that its phase made, or was given
		}
	}
	type candidate struct {
		file  string
		found bool // where modules are found by their name alone
	}
	news := map[string][]candidate{}
	inPackage := func(dir string) bool {
		_, ok := is.Lookup(path.Join(dir, "__init__.py"))
		_, before := was.Lookup(path.Join(dir, "__init__.py"))
		return ok && dir != "." && (before || !dirs[dir])
	}
	own := map[pyModule]string{}
	for _, f := range is.Files {
		m, ok := moduleOf(f.Path)
		if f.Mode == Link && path.Ext(f.Path) == "" {
			m, ok = moduleOf(f.Path + "/__init__.py") // what it leads to may be a package
		}
		switch {
		case !ok:
		case f.Mode == Link && !same(f): // it is opened by another name
			news[m.name] = append(news[m.name], candidate{f.Path, !inPackage(m.dir)})
		case !had[m]:
			own[m] = f.Path
		}
	}
	for _, f := range now.Observed.TreeRead {
		if m, ok := moduleOf(f); ok && !had[m] {
			at, here := own[m]
			if !here {
				at = f // it was made in the phase, or came with what is installed
			}
			news[m.name] = append(news[m.name], candidate{at, here && !inPackage(m.dir)})
		}
	}
	look := func(list, then []string, shown string) {
		for _, f := range list {
			m, ok := moduleOf(f)
			// Where modules lie that are not a package's.
			if top := path.Base(m.dir); !ok || !slices.Contains([]string{"site-packages", "dist-packages", "lib-dynload", "site"}, top) && !strings.HasPrefix(top, "python3") {
				continue
			}
			_, both := slices.BinarySearch(then, f)
			for _, c := range news[m.name] {
				if out[c.file] == "" && (c.found || !both) {
					out[c.file] = shown + f
				}
			}
		}
	}
	look(base.Observed.Opened, now.Observed.Opened, "")
	look(base.Observed.TreeRead, now.Observed.TreeRead, Workspace+"/")
	return out, nil
}

// insteadOf says what to do about a module that stands before another.
func insteadOf(file string) string {
	m, _ := moduleOf(file)
	if m.dir == "." || m.dir == "" {
		return "call it otherwise, or put it into a package"
	}
	return "call it otherwise, or put it into a package: " + path.Join(m.dir, "__init__.py") + " makes this directory one when the base has it, too, or had no Python here (let a change go before that adds only the file)"
}

// read gets the reporter's account of a phase.
func (k testsKind) read(p *Phase) (*inventory, error) {
	var b []byte
	var err error
	if k.results == "stdout" {
		b, err = p.Stdout.Whole()
	} else {
		b, err = wrote(p, k.results)
	}
	if err == nil {
		var inv *inventory
		if inv, err = parsers[k.format](b); err == nil {
			return inv, nil
		}
	}
	return nil, fmt.Errorf("%s on the %s gave no results in %s's form: %w", p.Signal, p.On, k.format, err)
}

// wrote is a file that a phase wrote.
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

// seen looks in the trace for what runs tests.
func (k testsKind) seen(p *Phase, inv *inventory) (n int, unseen []string) {
	ran := map[string]bool{}
	binaries := map[string]map[string]bool{} // of Go's tests: paths by name
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
	// Packages of one name have binaries of one name, each in a directory of its own.
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
