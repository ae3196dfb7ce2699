package gate

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// language is a runner of small tests: a line of a test file such as "func TestA(): value
// is 1" passes if the program has value=1.
type language struct {
	name, format string
	execs        []string
	test, moved  string // test files
	helper, data string // files that only tests use
	hook         string // a file of that name, among tests, has all of them pass
	// place: its reports tell in which file a test stands.
	place bool
}

var languages = []language{
	{"Go", "go", []string{"/usr/bin/go", "/tmp/b001/m.test"}, "a_test.go", "b_test.go", "help_test.go", "testdata/data", "main_test.go", true},
	{"Node", "jest", []string{"/usr/bin/node"}, "a.test.js", "b.test.js", "test/help.js", "test/data", "__mocks__/hook.js", true},
	{"Python", "pytest", []string{"/usr/bin/python3.11"}, "tests/test_a.py", "tests/test_b.py", "tests/help.py", "tests/data", "conftest.py", true},
	{"Rust", "junit", []string{"/usr/bin/cargo"}, "tests/a.rs", "tests/b.rs", "tests/help/mod.rs", "tests/data", "tests/hook/mod.rs", false},
}

func (l language) files() map[string]string {
	return map[string]string{
		"prog": "value=1\napi add\n", l.helper: "compares\n", l.data: "1\n",
		l.test: "load add\n\nfunc TestA(): value is 1\n  assert a\n\nfunc TestB(): helped value is 1\n\nfunc TestC(): value is data\n",
	}
}

// run runs the tests of a tree as laid out.
func (l language) run(t *testing.T, dir string) *Ended {
	t.Helper()
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return ""
		}
		return string(b)
	}
	has := func(line string) bool { return strings.Contains(read("prog"), line+"\n") }
	o := saw(l.execs...)
	var out strings.Builder
	code := 0
	for _, file := range []string{l.test, l.moved} {
		text := read(file)
		if text == "" {
			continue
		}
		o.TreeRead = append(o.TreeRead, file)
		api, _, _ := strings.Cut(strings.TrimPrefix(text, "load "), "\n")
		if strings.HasPrefix(text, "load ") && !has("api "+api) {
			code = 1
			o.Execs = o.Execs[:1] // no test is built
			l.broken(&out, file, "there is no "+api)
			continue
		}
		for line := range strings.Lines(text) {
			name, want, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "func "), "(): ")
			if !ok {
				continue
			}
			st := testPassed
			what, helped := strings.CutPrefix(want, "helped ")
			value, compares := strings.CutPrefix(what, "value is ")
			value, not := strings.CutPrefix(value, "not ")
			if value == "data" {
				value = strings.TrimSpace(read(l.data))
			}
			switch {
			case read(l.hook) != "", helped && read(l.helper) != "compares\n":
			case what == "skip":
				st = testSkipped
			case compares && has("value="+value) == not:
				st, code = testFailed, 1
			}
			l.report(&out, file, name, st)
		}
	}
	slices.Sort(o.TreeRead)
	e := ok(o)
	text := out.String()
	switch l.format {
	case "jest":
		text = `{"testResults":[` + strings.TrimSuffix(text, ",") + "]}"
	case "junit", "pytest":
		text = "<testsuite>" + text + "</testsuite>"
	}
	if l.name == "Rust" && code == 1 && strings.Contains(text, "there is no") { // cargo builds all or nothing
		text = ""
		e.Stderr = Output{Bytes: []byte("error[E0432]: there is no add\n"), Total: 30}
	}
	e.Code, e.Stdout = code, Output{[]byte(text), int64(len(text))}
	return e
}

func (l language) report(out *strings.Builder, file, name string, st state) {
	switch l.format {
	case "go":
		word := map[state]string{testPassed: "pass", testFailed: "fail", testSkipped: "skip"}[st]
		fmt.Fprintf(out, "{\"Action\":\"output\",\"Package\":\"m\",\"Test\":%q,\"Output\":\"it is another value\\n\"}\n{\"Action\":%q,\"Package\":\"m\",\"Test\":%q}\n", name, word, name)
	case "jest":
		word := map[state]string{testPassed: "passed", testFailed: "failed", testSkipped: "pending"}[st]
		fmt.Fprintf(out, `{"name":"/workspace/%s","status":"passed","assertionResults":[{"fullName":%q,"status":%q,"failureMessages":["it is another value"]}]},`, file, name, word)
	default:
		attr := ""
		if l.place {
			attr = fmt.Sprintf(" file=%q", file)
		}
		fmt.Fprintf(out, "<testcase classname=\"c\" name=%q%s>%s</testcase>", name, attr, map[state]string{testFailed: `<failure message="it is another value"/>`, testSkipped: "<skipped/>"}[st])
	}
}

func (l language) broken(out *strings.Builder, file, why string) {
	switch l.format {
	case "go":
		fmt.Fprintf(out, "{\"Action\":\"build-output\",\"ImportPath\":\"m [m.test]\",\"Output\":\"%s: %s\\n\"}\n{\"Action\":\"build-fail\",\"ImportPath\":\"m [m.test]\"}\n{\"Action\":\"fail\",\"Package\":\"m\"}\n", file, why)
	case "jest":
		fmt.Fprintf(out, `{"name":"/workspace/%s","status":"failed","message":%q,"assertionResults":[]},`, file, why)
	default:
		fmt.Fprintf(out, "<testcase classname=\"\" name=\"load\"><error message=%q/></testcase>", why)
	}
}

// judge judges a change of the language's project. It returns the trees on which the
// tests ran, too.
func (l language) judge(t *testing.T, keys string, edit map[string]string, baseline *Baseline) (*Verdict, []string) {
	t.Helper()
	change := l.files()
	maps.Copy(change, edit)
	maps.DeleteFunc(change, func(_, text string) bool { return text == "" })
	var on []string
	catalog := "version: 1\nsignals:\n  - {name: t, kind: tests, format: " + l.format + ", command: [cargo, test]" + keys + "}\n"
	g := newGate(t, catalog, tree(t, l.files()), tree(t, change), nil)
	g.Baseline = baseline
	g.Catalog.Pids = 512 // one phase at a time
	g.resources = nil
	g.Runner = fakeRunner{func(j Job) *Ended {
		on = append(on, j.On)
		return l.run(t, j.Tree)
	}}
	v := verdict(t, g)
	return v, on
}

func said(v *Verdict) string {
	var b strings.Builder
	v.Text(&b, true)
	return b.String()
}

// A change that breaks what the base's tests ask for does not pass, whatever it does to
// the tests: a person is asked where it edits the very test, else it is told what is
// gone. Each cheat is tried in each language.
func TestT2BaseTestsAsk(t *testing.T) {
	type files = map[string]string
	for _, l := range languages {
		was := l.files()[l.test]
		edited := func(old, new string) string {
			if !strings.Contains(was, old) {
				t.Fatalf("%q is not in the test file", old)
			}
			return strings.ReplaceAll(was, old, new)
		}
		for _, x := range []struct {
			what string
			edit files
			want string // asked, gone, lost, must
		}{
			{"flipped expectations", files{l.test: edited("is 1", "is 2"), l.data: "2\n"}, "asked"},
			{"emptied bodies", files{l.test: edited("value is 1", "nothing"), l.data: "2\n"}, "asked"},
			{"assertions that always hold", files{l.test: edited("value is 1", "1 is 1"), l.data: "2\n"}, "asked"},
			{"looser ones", files{l.test: edited("value is 1", "value is not 3"), l.data: "2\n"}, "asked"},
			{"a comment instead", files{l.test: "load add\n\nfunc TestA(): # value is 1\n\nfunc TestB(): # helped\n\nfunc TestC(): # data\n"}, "asked"},
			{"an early end", files{l.test: edited("value is 1", "return; value is 1"), l.data: "2\n"}, "asked"},
			{"a helper that lies, and other tests edited", files{l.helper: "agrees\n", l.test: edited("TestA(): value is 1", "TestA(): value is 2"), l.data: "2\n"}, "asked"},
			{"a hook", files{l.hook: "all pass\n"}, "gone"},
			{"another fixture, and the rest by a hook", files{l.data: "2\n", l.hook: "all pass\n"}, "gone"},
			{"moved with less in it", files{l.test: "", l.moved: edited("value is 1", "nothing"), l.data: "2\n"}, map[bool]string{true: "asked", false: "lost"}[l.format != "jest"]},
			{"removed", files{l.test: "load add\n\nfunc TestA(): value is 2\n"}, "lost"},
			{"renamed", files{l.test: "load add\n\nfunc TestX(): value is 2\n\nfunc TestY(): value is 2\n\nfunc TestZ(): value is 2\n"}, "lost"},
			{"skipped", files{l.test: edited("value is 1", "skip"), l.data: "2\n"}, "lost"},
			{"so that nothing can be loaded", files{"prog": "value=2\napi sum\n", l.test: "load sum\n\nfunc TestA(): value is 2\n\nfunc TestB(): value is 2\n\nfunc TestC(): value is 2\n"}, "must"},
		} {
			edit := files{"prog": "value=2\napi add\n"}
			maps.Copy(edit, x.edit)
			v, on := l.judge(t, "", edit, nil)
			var f testFacts
			if err := decodeAny(v.Signals[0].Facts, &f); err != nil {
				t.Fatal(err)
			}
			want, outcome := x.want, Failed
			if want == "gone" && !l.place {
				want = "asked" // nobody knows which test the change edits
			}
			got := map[string]bool{"asked": len(f.Asked) > 0, "gone": len(f.Gone) > 0, "lost": len(f.Lost)+len(f.Skipped) > 0, "must": len(f.MustChange) == 3}
			if want == "asked" || want == "must" {
				outcome = Escalated
			}
			if !got[want] || v.Outcome != outcome || v.Allowed() {
				t.Errorf("%s, %s: %s, want %s\n%s", l.name, x.what, v.Outcome, want, said(v))
			}
			if !slices.Contains(on, onOld) {
				t.Errorf("%s, %s: the base's tests did not run on the change: %v", l.name, x.what, on)
			}
			if want == "must" && (!strings.Contains(said(v), "tests-must-change") || !strings.Contains(said(v), "there is no add")) {
				t.Errorf("%s, %s: what the compiler says is not shown\n%s", l.name, x.what, said(v))
			}
			if x.what == "flipped expectations" && (!strings.Contains(said(v), "+func TestA(): value is 2") || !strings.Contains(said(v), "-func TestA(): value is 1") || !strings.Contains(said(v), "it is another value")) {
				t.Errorf("%s: the edit, or what the base's test printed, is not shown\n%s", l.name, said(v))
			}
		}
	}
}

// Honest work passes, with no more phases than it takes.
func TestT2BaseTestsLetPass(t *testing.T) {
	type files = map[string]string
	for _, l := range languages {
		was := l.files()[l.test]
		for _, x := range []struct {
			what string
			edit files
			old  bool // the base's tests run on the change
		}{
			{"nothing", nil, false},
			{"code", files{"prog": "value=1\napi add\napi sum\n"}, false},
			{"a test more", files{l.test: was + "\nfunc TestD(): value is 1\n"}, true},
			{"a file of tests more", files{l.moved: "func TestD(): value is 1\n"}, true},
			{"other words", files{l.test: strings.Replace(was, "helped ", "", 1)}, true},
			{"another helper", files{l.helper: "compares\n# words\n", l.test: strings.Replace(was, "helped ", "", 1)}, true},
			{"code, and a test for it", files{"prog": "value=1\napi add\napi sum\n", l.moved: "load sum\n\nfunc TestD(): value is 1\n"}, true},
		} {
			v, on := l.judge(t, "", x.edit, nil)
			if v.Outcome != Passed || slices.Contains(on, onOld) != x.old || len(on) > 3 {
				t.Errorf("%s, %s: %s, on %v\n%s", l.name, x.what, v.Outcome, on, said(v))
			}
		}
	}
}

// What a person accepted of a test's edit holds for that edit, of that test, and for no
// other.
func TestT2ChangedTestsAccepted(t *testing.T) {
	type files = map[string]string
	for _, l := range languages {
		edit := files{"prog": "value=2\napi add\n", l.data: "2\n", l.test: strings.ReplaceAll(l.files()[l.test], "is 1", "is 2")}
		v, _ := l.judge(t, "", edit, nil)
		asked := v.ChangedTests()["t"]
		if v.Outcome != Escalated || len(asked.Tests) != 3 || len(asked.Files) != 64 {
			t.Fatalf("%s: %s %+v\n%s", l.name, v.Outcome, asked, said(v))
		}
		var none *Baseline
		accepted := none.WithChangedTests("t", asked.Tests, asked.Files)
		b, err := accepted.Encode()
		if err == nil {
			accepted, err = ParseBaseline(b)
		}
		if err != nil || len(accepted.Lines()) != 3 {
			t.Fatal(err, accepted.Lines())
		}
		if v, _ := l.judge(t, "", edit, accepted); v.Outcome != Passed || len(v.ChangedTests()) != 0 {
			t.Errorf("%s, accepted: %s\n%s", l.name, v.Outcome, said(v))
		}
		if v, _ := l.judge(t, "", edit, none.WithChangedTests("t", asked.Tests[:2], asked.Files)); v.Outcome != Escalated || !slices.Equal(v.ChangedTests()["t"].Tests, asked.Tests[2:]) {
			t.Errorf("%s, two of three accepted: %s %v", l.name, v.Outcome, v.ChangedTests())
		}
		if v, _ := l.judge(t, "", edit, none.WithChangedTests("other", asked.Tests, asked.Files)); v.Outcome != Escalated {
			t.Errorf("%s, accepted of another signal: %s", l.name, v.Outcome)
		}
		edit["prog"], edit[l.test] = "value=3\napi add\n", strings.ReplaceAll(l.files()[l.test], "value is 1", "nothing")
		edit[l.data] = "3\n"
		if v, _ := l.judge(t, "", edit, accepted); v.Outcome != Escalated {
			t.Errorf("%s, another edit: %s\n%s", l.name, v.Outcome, said(v))
		}
	}
	for _, bad := range []string{`{"signal":"t","tests":["a"]}`, `{"signal":"","tests":["a"],"test_files_sha256":"` + strings.Repeat("a", 64) + `"}`, `{"signal":"t","tests":[],"test_files_sha256":"` + strings.Repeat("a", 64) + `"}`} {
		if _, err := ParseBaseline([]byte(`{"schema":"carboy.dev/gate-baseline/v1","entries":[],"changed":[` + bad + `]}`)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

// The catalog says which files are tests; what it does not name is judged as the change
// has it.
func TestT2TestFiles(t *testing.T) {
	l := languages[0]
	edit := map[string]string{"prog": "value=2\napi add\n", l.data: "2\n", l.test: strings.ReplaceAll(l.files()[l.test], "is 1", "is 2")}
	for keys, want := range map[string]Outcome{
		"": Escalated, ", test_files: ['*_test.go', testdata]": Escalated, ", test_files: ['a_*.go']": Escalated, ", test_files: [other]": Passed,
	} {
		v, _ := l.judge(t, keys, edit, nil)
		if v.Outcome != want || !strings.Contains(said(v), "test-files: ") {
			t.Errorf("%q: %s\n%s", keys, v.Outcome, said(v))
		}
	}
	if _, err := ParseCatalog("g", []byte("version: 1\nsignals:\n  - {name: t, kind: tests, format: go, command: [go], test_files: ['[']}\n")); err == nil {
		t.Error("any pattern is taken")
	}
	k := testsKind{}
	for p, want := range map[string]bool{
		"a_test.go": true, "x/testdata/f": true, "a.go": false, "test/help.js": true, "src/a.spec.ts": true, "src/a.ts": false, "tests/data.csv": true, "pkg/conftest.py": true,
		"jest.config.js": true, "node_modules/a/test/b.js": false, "vendor/m/a_test.go": false, "x/__snapshots__/a.snap": true, "src/contest.py": false, "latest/a.go": false,
	} {
		if k.isTestFile(p) != want {
			t.Errorf("%s is a test file: %v", p, !want)
		}
	}
}

// All test files are inputs of a verdict, on both sides, also those that no phase opened.
func TestT4TestFilesAreInputs(t *testing.T) {
	l := languages[0]
	base, change := l.files(), l.files()
	change[l.test] = strings.Replace(change[l.test], "helped ", "", 1)
	g := newGate(t, "version: 1\nsignals:\n  - {name: t, kind: tests, format: go, command: [go, test]}\n", tree(t, base), tree(t, change), nil)
	g.Runner = fakeRunner{func(j Job) *Ended { return l.run(t, j.Tree) }}
	v, given := verdict(t, g), map[string]string{"carboy": "1"}
	in, err := g.Inputs(t.Context(), v, given)
	if err != nil || v.Outcome != Passed || len(v.Phases) != 3 {
		t.Fatalf("%s, %d phases: %v", v.Outcome, len(v.Phases), err)
	}
	miss := func() string {
		why, err := in.Miss(t.Context(), tree(t, base), tree(t, change), given)
		if err != nil {
			t.Fatal(err)
		}
		return why
	}
	if why := miss(); why != "" {
		t.Errorf("nothing differs, and it says %q", why)
	}
	for _, x := range []struct {
		side map[string]string
		file string
	}{{base, l.helper}, {base, l.test}, {base, l.data}, {change, l.helper}, {change, l.data}} {
		was := x.side[x.file]
		x.side[x.file] = "X" + was[1:]
		if why := miss(); !strings.Contains(why, x.file) {
			t.Errorf("%s differs, and it says %q", x.file, why)
		}
		x.side[x.file] = was
	}
	base["prog"] = "vAlue=1\napi add\n" // of the base, no phase opened it
	if why := miss(); why != "" {
		t.Errorf("a file that nobody opened counts: %q", why)
	}
}

// With the base's tests, the change's tree has the base's test files and nothing else of
// the base. A tree that can't be made so is an error.
func TestWithTestsOf(t *testing.T) {
	isTest := testsKind{}.isTestFile
	base, change := inMemory(map[string]string{"a.go": "1", "a_test.go": "2", "testdata/x": "3", "gone.go": "4"}), inMemory(map[string]string{"a.go": "5", "a_test.go": "6", "b_test.go": "7", "new.go": "8"})
	x, err := change.withTestsOf(t.Context(), base, isTest)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	err = x.each(t.Context(), func(File) bool { return true }, func(f File, b []byte) error { got[f.Path] = string(b); return nil })
	if want := map[string]string{"a.go": "5", "a_test.go": "2", "testdata/x": "3", "new.go": "8"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, want %v (%v)", got, want, err)
	}
	if _, err := inMemory(map[string]string{"a_test.go/b/product": "1"}).withTestsOf(t.Context(), base, func(p string) bool { return p == "a_test.go" }); err == nil {
		t.Error("a file is a directory, too")
	}
}

// Fewer assertions are noted, and asked about if the catalog says so, unless as many are
// new elsewhere.
func TestAssertions(t *testing.T) {
	const (
		goWas = "package a\nimport \"testing\"\nfunc TestA(t *testing.T) {\n\tif f() != 1 {\n\t\tt.Fatal(1)\n\t}\n\tt.Run(\"x\", func(t *testing.T) { check(t, f()) })\n\trequire.Equal(t, 1, f())\n}\nfunc (s *S) TestB() { s.Equal(1, f()) }\nfunc helper(a int) {}\n"
		pyWas = "def test_a():\n    x = f()\n    assert x == 1\n    # assert nothing\n"
		jsWas = "const assert = require('assert')\ntest('a', () => { expect(f()).toBe(1) })\ntest('b', () => {\n  assert.equal(f(), 1)\n})\n"
	)
	type files = map[string]string
	for _, x := range []struct {
		what                  string
		before, after         files
		tests, removed, added int
		fewer                 string
	}{
		{"nothing of Go", files{"a_test.go": goWas}, files{"a_test.go": goWas + "\n// words\n"}, 0, 0, 0, ""},
		{"one of Go less", files{"a_test.go": goWas}, files{"a_test.go": strings.Replace(goWas, "t.Fatal(1)", "t.Log(1)", 1)}, 1, 1, 0, "a_test.go::TestA"},
		{"a method of a suite", files{"a_test.go": goWas}, files{"a_test.go": strings.Replace(goWas, "s.Equal(1, f())", "f()", 1)}, 1, 1, 0, "a_test.go::S.TestB"},
		{"moved", files{"a_test.go": goWas}, files{"b_test.go": goWas}, 0, 0, 0, ""},
		{"moved with less", files{"a_test.go": goWas}, files{"b_test.go": strings.Replace(goWas, "check(t, f())", "f()", 1)}, 1, 1, 0, "b_test.go::TestA"},
		{"one of Go more", files{"a_test.go": goWas}, files{"a_test.go": goWas + "func TestC(t *testing.T) { t.Error() }\n"}, 1, 0, 1, ""},
		{"no Go", files{"a_test.go": goWas}, files{"a_test.go": "package {{\n"}, 1, 3, 0, "a_test.go"},
		{"one of Python less", files{"test_a.py": pyWas}, files{"test_a.py": strings.Replace(pyWas, "    assert x == 1\n", "", 1)}, 1, 1, 0, "test_a.py"},
		{"commented out", files{"test_a.py": pyWas}, files{"test_a.py": strings.Replace(pyWas, "    assert", "    # assert", 1)}, 1, 1, 0, "test_a.py"},
		{"to another file", files{"test_a.py": pyWas, "test_b.py": ""}, files{"test_a.py": "import a\n", "test_b.py": pyWas}, 2, 1, 1, ""},
		{"two of JavaScript less", files{"a.test.js": jsWas}, files{"a.test.js": "const assert = require('assert')\ntest('a', () => { f() })\n"}, 1, 2, 0, "a.test.js"},
	} {
		e := &testEdits{before: x.before, after: x.after}
		for p := range x.before {
			e.paths = append(e.paths, p)
		}
		for p := range x.after {
			e.paths = append(e.paths, p)
		}
		slices.Sort(e.paths)
		e.paths = slices.Compact(e.paths)
		a := e.assertions()
		var ids []string
		for _, f := range a.fewer {
			ids = append(ids, f.ID)
		}
		if strings.Join(ids, " ") != x.fewer || a.tests != x.tests || a.removed != x.removed || a.added != x.added {
			t.Errorf("%s: %+v, want %d %d %d %q", x.what, a, x.tests, x.removed, x.added, x.fewer)
		}
	}
	l := languages[2]
	edit := map[string]string{l.test: strings.Replace(l.files()[l.test], "  assert a\n", "", 1)}
	for keys, want := range map[string]Outcome{"": Passed, ", weakened: note": Passed, ", weakened: ask": Escalated} {
		v, _ := l.judge(t, keys, edit, nil)
		if v.Outcome != want || !strings.Contains(said(v), "tests changed: 1, assertions removed: 1") || !strings.Contains(said(v), "-  assert a") {
			t.Errorf("%q: %s\n%s", keys, v.Outcome, said(v))
		}
		var none *Baseline
		if c := v.ChangedTests()["t"]; want == Escalated {
			if v, _ := l.judge(t, keys, edit, none.WithChangedTests("t", c.Tests, c.Files)); v.Outcome != Passed {
				t.Errorf("accepted: %s\n%s", v.Outcome, said(v))
			}
		}
	}
}

// The part of a file that belongs to a test is found by its indentation.
func TestBlockOf(t *testing.T) {
	const js = "describe('more', () => {\n  it('zero', () => {\n    expect(1)\n  });\n  it('one', f);\n});\n"
	const py = "def test_a(\n    x,\n):\n    assert x\n\ndef test_b():\n    pass\n"
	for _, x := range []struct{ text, name, want string }{
		{js, "more zero", "  it('zero', () => {\n    expect(1)\n  });\n"},
		{js, "one", "  it('one', f);\n});\n"},
		{py, "test_a", "def test_a(\n    x,\n):\n    assert x\n"},
		{py, "test_b", "def test_b():\n    pass\n"},
		{py, "test_c", ""}, {py, "", ""}, {"", "x", ""},
	} {
		if got := blockOf(x.text, x.name); got != x.want {
			t.Errorf("%q: %q, want %q", x.name, got, x.want)
		}
	}
}

// A verdict in which no test ran begins with that. Where only an exit code tells, it says
// so.
func TestNoTestsRan(t *testing.T) {
	const none, byCode = "NO TESTS RAN", "no test was counted"
	for _, x := range []struct{ signals, want string }{
		{"{name: policy, kind: policy}", none},
		{"{name: typecheck, kind: build, command: [tsc]}", none},
		{"{name: npm-test, kind: build, command: [npm, test]}", byCode},
		{"{name: t, kind: tests, format: go, command: [go, test]}", none},
		{"{name: t, kind: tests, format: junit, command: [cargo, test]}", ""},
	} {
		l := languages[3]
		c := tree(t, l.files())
		g := newGate(t, "version: 1\nsignals:\n  - "+x.signals+"\n", c, c, func(j Job) *Ended { return l.run(t, j.Tree) })
		v := verdict(t, g)
		var page strings.Builder
		if err := v.HTML(&page); err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(said(v), "\n")
		if x.want != "" && (!strings.HasPrefix(first, x.want) || !strings.Contains(page.String(), x.want)) || x.want == "" && !strings.HasPrefix(first, "PASSED") {
			t.Errorf("%s: it begins with %q", x.signals, first)
		}
		if runs := g.Catalog.RunsTests(); runs == (strings.Contains(x.signals, "policy") || strings.Contains(x.signals, "typecheck")) {
			t.Errorf("%s: it runs tests: %v", x.signals, runs)
		}
	}
}
