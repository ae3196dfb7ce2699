package gate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// reporter writes results in one format, as its runner would, and the observations that
// go with them.
type reporter struct {
	format string
	// execs are the programs that run tests, and opened the files of tests.
	execs, opened []string
	write         func(tests []result) string
	// bodies are a file of tests with a test that checks something, and with the same
	// test emptied.
	file, full, empty string
}

type result struct {
	name string
	st   state
}

func jestReport(tests []result) string {
	var l []string
	for _, x := range tests {
		st := map[state]string{testPassed: "passed", testFailed: "failed", testSkipped: "pending"}[x.st]
		l = append(l, fmt.Sprintf(`{"fullName":%q,"status":%q}`, x.name, st))
	}
	return `{"testResults":[{"name":"/workspace/a.test.js","status":"passed","assertionResults":[` + strings.Join(l, ",") + `]}]}`
}

func junitReport(attr string) func([]result) string {
	return func(tests []result) string {
		var b strings.Builder
		b.WriteString(`<testsuites><testsuite name="s">`)
		for _, x := range tests {
			fmt.Fprintf(&b, "<testcase classname=\"c\" name=%q %s>%s</testcase>", x.name, attr, map[state]string{testFailed: `<failure message="m"/>`, testSkipped: "<skipped/>"}[x.st])
		}
		return b.String() + "</testsuite></testsuites>"
	}
}

var reporters = []reporter{
	{"go", []string{"/usr/bin/go", "/tmp/b001/m.test"}, nil, func(tests []result) string {
		var b strings.Builder
		for _, x := range tests {
			fmt.Fprintf(&b, "{\"Action\":%q,\"Package\":\"m\",\"Test\":%q}\n", map[state]string{testPassed: "pass", testFailed: "fail", testSkipped: "skip"}[x.st], x.name)
		}
		return b.String()
	}, "a_test.go", "package m\nfunc TestA(t *T) { check(t) }\n", "package m\nfunc TestA(t *T) {}\n"},
	{"pytest", []string{"/usr/bin/python3.11"}, []string{"test_a.py"}, junitReport(`file="test_a.py"`), "test_a.py", "def test_a():\n    assert f()\n", "def test_a():\n    pass\n"},
	{"jest", []string{"/usr/bin/node"}, []string{"a.test.js"}, jestReport, "a.test.js", "test('a', () => { expect(f()).toBe(1) })\n", "test('a', () => { })\n"},
	{"vitest", []string{"/usr/bin/node"}, []string{"a.test.js"}, jestReport, "a.test.js", "test('a', () => { expect(f()).toBe(1) })\n", "test('a', () => { })\n"},
	{"junit", []string{"/usr/bin/mvn"}, nil, junitReport(""), "src/test_a.py", "def test_a():\n    assert f()\n", "def test_a():\n    pass\n"},
}

// For each format, lost, skipped and failing tests are reported, and new tests are not. A
// report counts only with the observations that go with it.
func TestInventory(t *testing.T) {
	two := []result{{"TestA", testPassed}, {"TestB", testPassed}}
	for _, r := range reporters {
		for _, x := range []struct {
			what   string
			tests  []result
			code   int
			execs  []string // nil: as it should be
			opened []string
			body   string
			want   Outcome
			says   string
		}{
			{"the same", two, 0, nil, nil, r.full, Passed, ""},
			{"one more", append(slices.Clone(two), result{"TestC", testPassed}), 0, nil, nil, r.full, Passed, ""},
			{"a lost one", two[:1], 0, nil, nil, r.full, Failed, "TestB: the test passed on the base, and is gone"},
			{"a skipped one", []result{two[0], {"TestB", testSkipped}}, 0, nil, nil, r.full, Failed, "TestB: the test passed on the base, and is skipped"},
			{"a failing one", []result{two[0], {"TestB", testFailed}}, 1, nil, nil, r.full, Failed, "TestB: the test fails"},
			{"a renamed one", []result{two[0], {"TestBB", testPassed}}, 0, nil, nil, r.full, Failed, "TestB: the test passed on the base, and is gone"},
			{"an emptied one, and the code is right", two, 0, nil, nil, r.empty, Passed, "assertions, and had 1"},
			{"none", nil, 0, nil, nil, r.full, Failed, ""},
			{"an id that is there twice, and failed once", append(slices.Clone(two), result{"TestB", testFailed}), 1, nil, nil, r.full, Failed, "TestB: the test fails"},
			{"an id that is there twice, and is skipped once", append(slices.Clone(two), result{"TestB", testSkipped}), 0, nil, nil, r.full, Failed, "TestB: the test passed on the base, and is skipped"},
			{"passed, with a code", two, 1, nil, nil, r.full, Escalated, ""},
			{"failed, without a code", []result{two[0], {"TestB", testFailed}}, 0, nil, nil, r.full, Escalated, ""},
			{"passed, and nothing that runs tests was seen", two, 0, []string{"/usr/bin/true"}, nil, r.full, Failed, ""},
			{"passed, and no file of tests was read", two, 0, nil, []string{"other"}, r.full, Failed, ""},
		} {
			if x.opened != nil && r.opened == nil {
				continue
			}
			base := tree(t, map[string]string{r.file: r.full})
			change := tree(t, map[string]string{r.file: x.body})
			catalog := "version: 1\nsignals:\n  - {name: t, kind: tests, format: " + r.format + ", command: [mvn, test]}\n"
			v := verdict(t, newGate(t, catalog, base, change, func(j Job) *Ended {
				tests, code, execs, opened := two, 0, r.execs, r.opened
				if j.On == "change" {
					tests, code = x.tests, x.code
					if x.execs != nil {
						execs = x.execs
					}
					if x.opened != nil {
						opened = x.opened
					}
				}
				o := saw(execs...)
				o.TreeRead = opened
				e, out := ok(o), r.write(tests)
				e.Code, e.Stdout = code, Output{[]byte(out), int64(len(out))}
				return e
			}))
			s := v.Signals[0]
			var said []string
			for _, f := range s.Findings {
				said = append(said, f.ID+": "+f.Text)
			}
			all := strings.Join(said, "\n")
			if v.Outcome != x.want || !strings.Contains(all, x.says) {
				t.Errorf("%s: %s: %s, want %s with %q: %s\n%s", r.format, x.what, v.Outcome, x.want, x.says, s.Why, all)
			}
		}
	}
}

// A new module that can be loaded instead of the one that the base's tests had is
// reported, whatever else is read beside it. A new module that replaces nothing is not.
func TestStandsBefore(t *testing.T) {
	const site = "/usr/lib/python3/dist-packages/"
	files := func(names ...string) map[string]string {
		out := map[string]string{"test_a.py": "x", "old.py": "x", "impl/__init__.py": "x", "pkg/__init__.py": "x", "pkg/a.py": "x", "src/a.py": "x"}
		for _, n := range names {
			out[n] = "y"
		}
		return out
	}
	phase := func(read, opened []string) *Phase {
		slices.Sort(read)
		slices.Sort(opened)
		return &Phase{Ended: &Ended{Observed: &Observed{TreeRead: read, Opened: opened}}}
	}
	base := inMemory(files())
	was := phase([]string{"test_a.py", ".gate/site/checks/__init__.py", "old.py", "made/one.py"}, []string{site + "hamcrest/__init__.py", site + "one.py", "/usr/lib/python3.11/colorsys.py", "/usr/lib/python3.11/lib-dynload/_json.cpython-311-x86_64-linux-gnu.so", "/usr/lib/python3.11/email/utils.py", "/etc/conf.py"})
	for _, x := range []struct {
		file   string // new, and read
		want   string
		beside bool // also when both are loaded
		more   []string
	}{
		{"hamcrest.py", site + "hamcrest/__init__.py", true, nil},
		{"hamcrest/__init__.py", site + "hamcrest/__init__.py", true, nil},
		{"hamcrest.pyc", site + "hamcrest/__init__.py", true, nil},
		{"__pycache__/hamcrest.cpython-311.pyc", site + "hamcrest/__init__.py", true, nil},
		{"hamcrest.cpython-311-x86_64-linux-gnu.so", site + "hamcrest/__init__.py", true, nil},
		{"src/one.py", site + "one.py", true, nil},
		{"colorsys.py", "/usr/lib/python3.11/colorsys.py", true, nil},
		{"colorsys.py", "/usr/lib/python3.11/colorsys.py", true, []string{"__init__.py"}}, // the top is no package
		{"src/one.py", site + "one.py", true, []string{"src/__init__.py"}},                // nor what was none
		{"src/one.py", site + "one.py", true, []string{"zz/one.py", "zz/__init__.py"}},    // there is another one
		{"_json.py", "/usr/lib/python3.11/lib-dynload/_json.cpython-311-x86_64-linux-gnu.so", true, nil},
		{"checks.py", Workspace + "/.gate/site/checks/__init__.py", true, nil},
		{"pkg/one.py", site + "one.py", false, nil},
		{"new/one.py", site + "one.py", false, []string{"new/__init__.py"}},
		{"new/one.py", site + "one.py", true, nil},
		{"utils.py", "", false, nil}, // of a package
		{"conf.py", "", false, nil},
		{"new.py", "", false, nil},
		{"hamcrest.txt", "", false, nil},
		{"hamcrest/matchers.py", "", false, nil},
		{"sub/other/__init__.py", "", false, nil},
	} {
		change := inMemory(files(append(x.more, x.file)...))
		for _, beside := range []bool{false, true} {
			read, opened, want := []string{"test_a.py", x.file}, []string(nil), x.want
			if beside {
				read, opened = append(read, was.Observed.TreeRead...), was.Observed.Opened
				if !x.beside {
					want = ""
				}
			}
			got, err := findShadowingModules(t.Context(), base, change, was, phase(read, opened))
			if err != nil || len(got) > 1 || got[x.file] != want {
				t.Errorf("%s stands before %q, want %q, with %q, beside the other one: %t (%v)", x.file, got, want, x.more, beside, err)
			}
		}
	}
	// What to do about one is said, and does it.
	for file, says := range map[string]string{"one.py": "or put it into a package", "src/one.py": "src/__init__.py makes", "src/one/__init__.py": "src/__init__.py makes"} {
		if got := shadowingAdvice(file); !strings.Contains(got, says) || (file == "one.py") != strings.HasSuffix(got, says) {
			t.Errorf("%s: %s", file, got)
		}
	}
	before := inMemory(files("src/__init__.py"))
	if got, err := findShadowingModules(t.Context(), before, inMemory(files("src/__init__.py", "src/one.py")), was, phase(append([]string{"src/one.py"}, was.Observed.TreeRead...), was.Observed.Opened)); err != nil || len(got) > 0 {
		t.Errorf("in what was made a package before: %q %v", got, err)
	}
	// Python opens what it compiled of a module, and looks at the module itself alone.
	change := inMemory(files("one.py", "__pycache__/one.cpython-311.pyc"))
	if got, err := findShadowingModules(t.Context(), base, change, was, phase([]string{"__pycache__/one.cpython-311.pyc"}, was.Observed.Opened)); err != nil || len(got) != 1 {
		t.Errorf("compiled: %q %v", got, err)
	}
	// What is not of the change's tree is what is installed, or made as on the base.
	for _, f := range []string{"old.py", "made/one.py", ".gate/site/new/colorsys.py", ".gate/site/new/email.py", "made/__pycache__/one.cpython-311.pyc"} {
		if got, err := findShadowingModules(t.Context(), base, base, was, phase([]string{f}, was.Observed.Opened)); err != nil || len(got) > 0 {
			t.Errorf("%s: %q %v", f, got, err)
		}
	}
	// A link is a module by its own name, wherever it leads.
	for link, stands := range map[string]bool{"hamcrest": true, "hamcrest.py": true, "colorsys": true, "src/one": true, "hamcrest.md": false, "pkg/one": false, "other": false} {
		for _, to := range []string{"impl", "/workspace/impl", "hop"} {
			linked := inMemory(files())
			linked.src.(memory)[link] = to
			linked.Files = append(linked.Files, File{Path: link, Mode: Link, Size: int64(len(to))})
			if _, err := linked.validate(); err != nil {
				t.Fatal(err)
			}
			got, err := findShadowingModules(t.Context(), base, linked, was, phase(append([]string{"impl/__init__.py"}, was.Observed.TreeRead...), was.Observed.Opened))
			if err != nil || (len(got) > 0) != stands {
				t.Errorf("%s -> %s stands before %q (%v)", link, to, got, err)
			}
			if got, err := findShadowingModules(t.Context(), linked, linked, was, phase([]string{"impl/__init__.py"}, nil)); err != nil || len(got) > 0 {
				t.Errorf("the base's own %s: %q %v", link, got, err)
			}
		}
	}
}

// A report without end is refused.
func TestGiantReports(t *testing.T) {
	x := tree(t, map[string]string{"go.mod": "module m\n"})
	many := func(r reporter, n int) string {
		list := make([]result, n)
		for i := range list {
			list[i] = result{fmt.Sprintf("T%d", i), testPassed}
		}
		return r.write(list)
	}
	for _, r := range reporters {
		if _, err := parsers[r.format]([]byte(many(r, maxTests+1))); err == nil {
			t.Errorf("%s: more than %d tests are taken", r.format, maxTests)
		}
		if inv, err := parsers[r.format]([]byte(many(r, 1000))); err != nil || len(inv.tests) != 1000 {
			t.Errorf("%s: %v", r.format, err)
		}
		if _, err := parsers[r.format]([]byte(r.write([]result{{strings.Repeat("x", maxTestID), testPassed}}))); err == nil {
			t.Errorf("%s: an id of any length is taken", r.format)
		}
		out := many(r, 1000)
		g := newGate(t, "version: 1\nsignals:\n  - {name: t, kind: tests, format: "+r.format+", command: [mvn, test]}\n", x, x, func(Job) *Ended {
			o := saw(r.execs...)
			o.TreeRead = r.opened
			e := ok(o)
			e.Stdout = Output{[]byte(out), 1 << 40} // the beginning of it
			return e
		})
		if v := verdict(t, g); v.Outcome != Unavailable || !strings.Contains(v.Signals[0].Why, "it printed") {
			t.Errorf("%s: the beginning of a report counts: %s %s", r.format, v.Outcome, v.Signals[0].Why)
		}
	}
	if err := deep(); err == nil {
		t.Error("XML of any depth is taken")
	}
	if s := slices.Sorted(maps.Keys(parsers)); len(s) != len(reporters) {
		t.Errorf("formats without a test: %v", s)
	}
}

// Any file is read within bounds or refused, with the same result twice. Appending text
// turns no failed test into a passed one.
func FuzzReports(f *testing.F) {
	for _, r := range reporters {
		f.Add(r.format, r.write([]result{{"TestA", testPassed}, {"TestB", testFailed}, {"TestC", testSkipped}}))
	}
	f.Add("junit", "<testsuite><testcase name='a'><failure/><testcase name='b'/></testcase></testsuite>")
	f.Add("junit", "<a:testsuite xmlns:a='x'><testcase/><failure message='m'/></a:testsuite>")
	f.Add("go", "{\"Action\":\"run\",\"Package\":\"p\",\"Test\":\"T\"}\n{\"Action\":\"fail\"}\n")
	f.Add("jest", "x {\"testResults\":[{\"name\":\"\",\"status\":\"failed\"}]}")
	f.Fuzz(func(t *testing.T, format, text string) {
		parse := parsers[format]
		if parse == nil {
			return
		}
		a, err := parse([]byte(text))
		b, again := parse([]byte(text))
		if (err == nil) != (again == nil) {
			t.Fatal(err, again)
		}
		if err != nil {
			return
		}
		if !maps.Equal(a.tests, b.tests) || len(a.tests) > maxTests {
			t.Fatal("it is read otherwise")
		}
		for id, s := range a.tests {
			if id == "" || len(id) > maxTestID || s != testPassed && s != testFailed && s != testSkipped {
				t.Fatalf("%q: %q", id, s)
			}
		}
		for _, o := range a.output {
			if len(o) > 4*maxMasked {
				t.Fatalf("%d bytes are kept of one output", len(o))
			}
		}
		if format == "go" { // a line more
			for id, s := range a.tests {
				if more, err := parse([]byte(text + "\n{\"Action\":\"pass\",\"Package\":\"p\",\"Test\":\"T\"}\n")); err == nil && s == testFailed && id != "p.T" && more.tests[id] != testFailed {
					t.Fatalf("%q failed, and passes by another's line", id)
				}
			}
		}
	})
}

func deep() error {
	_, err := parsers["junit"]([]byte(strings.Repeat("<testsuite>", 1000) + strings.Repeat("</testsuite>", 1000)))
	return err
}
