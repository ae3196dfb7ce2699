package gate

import (
	"slices"
	"strings"
	"testing"
)

// A test that fails runs again alone, twice. One that then passes is flaky: by default a
// person decides, and no policy lets it pass unsaid.
func TestFlaky(t *testing.T) {
	const pass, fail = testPassed, testFailed
	x := tree(t, map[string]string{"go.mod": "module m\n"})
	other := tree(t, map[string]string{"go.mod": "module m\n", "a.go": "package m\n"})
	for _, c := range []struct {
		what, keys string
		runs       []state // of TestA on the change
		want       Outcome
		says       string
		times      int // that the tests ran on the change
	}{
		{"passes", "", []state{pass}, Passed, "", 1},
		{"fails", "", []state{fail, fail, fail}, Failed, "m.TestA: the test fails", 3},
		{"fails once", "", []state{fail, pass, pass}, Escalated, "flaky: it failed, and when it ran again alone it passed (0.0s), passed (0.0s)", 3},
		{"fails twice", "", []state{fail, fail, pass}, Escalated, "it failed (0.0s), passed (0.0s)", 3},
		{"is not there again", "", []state{fail, "", ""}, Failed, "the test fails", 3},
		{"fails once, and is refused", ", flaky: fail", []state{fail, pass, pass}, Failed, "flaky: it failed", 3},
		{"fails once, and is let pass", ", flaky: pass", []state{fail, pass, fail}, Passed, "flaky: it failed", 3},
		{"fails, where flaky ones are let pass", ", flaky: pass", []state{fail, fail, fail}, Failed, "the test fails", 3},
	} {
		n := 0
		var commands [][]string
		g := newGate(t, "version: 1\nsignals:\n  - {name: t, kind: tests, format: go, command: [go, test, -json, ./...]"+c.keys+"}\n", x, other, func(j Job) *Ended {
			st := pass
			if j.On == onChange {
				st = c.runs[min(n, len(c.runs)-1)]
				n++
				commands = append(commands, j.Command)
			}
			out := reporters[0].write([]result{{"TestB", pass}})
			if st != "" {
				out += reporters[0].write([]result{{"TestA", st}})
			}
			e := ok(saw(reporters[0].execs...))
			if st == fail {
				e.Code = 1
			}
			e.Stdout = Output{[]byte(out), int64(len(out))}
			return e
		})
		v := verdict(t, g)
		if v.Outcome != c.want || !strings.Contains(said(v), c.says) || n != c.times {
			t.Errorf("a test %s: %s, want %s with %q; it ran %d times\n%s", c.what, v.Outcome, c.want, c.says, n, said(v))
		}
		for i, words := range commands {
			if want := []string{"go", "test", "-run=^(TestA)$", "-json", "./..."}; i > 0 && !slices.Equal(words, want) {
				t.Errorf("again alone it runs %q, want %q", words, want)
			}
		}
		dirs := map[string]bool{}
		for _, p := range v.Phases {
			if dirs[p.EvidenceOf()] {
				t.Errorf("the evidence of two phases lies in %s", p.EvidenceOf())
			}
			dirs[p.EvidenceOf()] = true
		}
	}
}

// The command runs the failed tests alone where its runner has a way to say so.
func TestAlone(t *testing.T) {
	for _, x := range []struct {
		format  string
		command []string
		ids     []string
		want    string
	}{
		{"go", []string{"go", "test", "./..."}, []string{"m/a.TestA/sub.b", "m/a.TestA", "m.FuzzB/seed#0"}, "go test -run=^(FuzzB|TestA)$ ./..."},
		{"go", []string{"make", "test"}, []string{"m.TestA"}, "make test"},
		{"jest", []string{"npx", "jest", "--ci"}, []string{"a.test.js::more (x) zero"}, `npx jest --ci -t ^(more \(x\) zero)$`},
		{"jest", []string{"npm", "test"}, []string{"a.test.js::zero"}, "npm test"},
		{"pytest", []string{"python3", "-m", "pytest"}, []string{"tests.test_a::test_x[1-2]", "tests.test_a.A::test_y"}, "python3 -m pytest PYTEST_ADDOPTS=-x -k 'test_x or test_y'"},
		{"pytest", []string{"python3", "-m", "pytest"}, []string{"tests.test_a::a b"}, "python3 -m pytest PYTEST_ADDOPTS=-x"},
		{"junit", []string{"mvn", "test"}, []string{"c::a"}, "mvn test"},
	} {
		s := &Signal{Command: x.command}
		if x.format == "pytest" {
			s.Env = []string{"A=1", "PYTEST_ADDOPTS=-x"}
		}
		got := (testsKind{format: x.format}).alone(s, x.ids)
		words := got.Command
		if x.format == "pytest" {
			words = append(slices.Clone(words), got.Env[1])
		}
		if strings.Join(words, " ") != x.want {
			t.Errorf("%s: %q, want %q", x.format, words, x.want)
		}
	}
	for id, one := range map[string]bool{"m.TestA": true, "m": false, "m [m.test]": false, "example.org/m.TestA/x": true} {
		if isOneTest("go", id) != one {
			t.Errorf("%s is a test of Go: %v", id, !one)
		}
	}
	if isOneTest("jest", "a.test.js") || !isOneTest("pytest", "test_a::b") || isOneTest("pytest", "tests.test_a") || !isOneTest("junit", "a") {
		t.Error("files and tests are taken for each other")
	}
}
