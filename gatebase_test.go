package carboy

import (
	"bytes"
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/ask"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/gate/judge"
	"github.com/carboy/carboy/internal/supervise"
	"github.com/carboy/carboy/internal/testenv"
)

// baseProject is a small project of a language whose tests ask that add adds.
type baseProject struct {
	name, program, install string
	signal                 string // of the catalog
	files                  map[string]string
	code, test, help       string            // names of files
	same, add              string            // how a test begins an assertion, and names what it tests
	nothing                string            // a statement
	lies                   string            // another help
	renamed                map[string]string // edits after which the base's test can't be built or loaded
}

var baseProjects = []baseProject{
	{
		"node", "node", "apt-get install nodejs", "{name: tests, kind: tests, format: junit, runner: [node], command: [node, --test, --test-reporter=junit, --test-reporter-destination=stdout, --test-reporter=spec, --test-reporter-destination=stderr]}",
		map[string]string{
			"package.json":      `{"name":"m","version":"1.0.0"}`,
			"m.js":              "exports.add = (a, b) => a + b;\n",
			"m.test.js":         nodeTest,
			"__mocks__/same.js": "const assert = require('node:assert');\nmodule.exports = (a, b) => assert.strictEqual(a, b);\n",
		}, "m.js", "m.test.js", "__mocks__/same.js", "same(", "add", "void 0", "module.exports = () => {};\n",
		map[string]string{"m.js": "", "n.js": "exports.add = (a, b) => a + b;\n", "m.test.js": strings.Replace(nodeTest, "./m.js", "./n.js", 1)},
	},
	{
		"go", "go", "https://go.dev/dl", "{name: tests, kind: tests, format: go, command: [go, test, -json, -count=1, ./...], warm: [.cache/go-build], env: {CGO_ENABLED: '0', GOPROXY: 'off', GOTOOLCHAIN: local}}",
		map[string]string{
			"go.mod":       "module example.com/m\n\ngo 1.24\n",
			"m.go":         "package m\n\nfunc Add(a, b int) int { return a + b }\n",
			"m_test.go":    goTestFile,
			"help_test.go": "package m\n\nimport \"testing\"\n\nfunc same(t *testing.T, a, b int) {\n\tif a != b {\n\t\tt.Fatal(a, b)\n\t}\n}\n",
		}, "m.go", "m_test.go", "help_test.go", "same(t, ", "Add", "_ = t", "package m\n\nimport \"testing\"\n\nfunc same(t *testing.T, a, b int) {}\n",
		map[string]string{"m.go": "package m\n\nfunc Sum(a, b int) int { return a + b }\n", "m_test.go": strings.ReplaceAll(goTestFile, " Add(", " Sum(")},
	},
	{
		"python", "py.test-3", "apt-get install python3-pytest", "{name: tests, kind: tests, format: pytest, command: [python3, -m, pytest, -q, -p, 'no:cacheprovider', -o, junit_family=xunit1, --junitxml=.out.xml], results: .out.xml}",
		map[string]string{
			"calc.py":             "def add(a, b):\n    return a + b\n",
			"tests/test_calc.py":  pythonTest,
			"tests/test_other.py": "def test_other():\n    assert 1 + 1 == 2\n",
			"tests/__init__.py":   "", "tests/same.py": "def same(a, b):\n    assert a == b\n",
		}, "calc.py", "tests/test_calc.py", "tests/same.py", "same(", "add", "pass", "def same(a, b):\n    pass\n",
		map[string]string{"calc.py": "def plus(a, b):\n    return a + b\n", "tests/test_calc.py": strings.Replace(pythonTest, "import add", "import plus as add", 1)},
	},
}

const (
	nodeTest   = "const test = require('node:test');\nconst { add } = require('./m.js');\nconst same = require('./__mocks__/same.js');\n\ntest('adds', () => {\n  same(add(1, 2), 3);\n});\n\ntest('zero', () => {\n  same(add(1, 0), 1);\n});\n"
	goTestFile = "package m\n\nimport \"testing\"\n\nfunc TestAdd(t *testing.T) {\n\tsame(t, Add(1, 2), 3)\n}\n\nfunc TestZero(t *testing.T) {\n\tsame(t, Add(1, 0), 1)\n}\n"
	pythonTest = "from calc import add\nfrom tests.same import same\n\n\ndef test_add():\n    same(add(1, 2), 3)\n\n\ndef test_zero():\n    same(add(1, 0), 1)\n"
)

// TestT2BaseTestsInBottles: with real runners, a change that breaks what the base's tests
// ask for does not pass, whatever it does to the tests; honest ones pass, or are asked
// about once, with the edit and what the base's test says.
func TestT2BaseTestsInBottles(t *testing.T) {
	for _, x := range baseProjects {
		if x.name != "node" && (os.Getenv("CARBOY_TEST_LANGUAGES") != "1" || testenv.Look(x.program) == "") {
			t.Logf("%s is NOT tested, which takes longer: install %s, then CARBOY_TEST_LANGUAGES=1", x.name, x.program)
			continue
		}
		t.Run(x.name, func(t *testing.T) {
			testenv.Need(t, x.program, x.install)
			files := maps.Clone(x.files)
			files[gate.CatalogPath] = "version: 1\nsignals:\n  - " + x.signal + "\n"
			p := newProject(t, files)
			base := p.git("rev-parse", "HEAD")
			call := func(a, is string) string { return x.same + x.add + "(1, " + a + "), " + is + ")" }
			// asking returns the test with other assertions.
			asking := func(three, one string) string {
				return strings.NewReplacer(call("2", "3"), three, call("0", "1"), one).Replace(files[x.test])
			}
			broken := strings.Replace(files[x.code], "a + b", "a * b", 1)
			for _, c := range []struct {
				what  string
				short bool
				files map[string]string
				want  gate.Outcome // empty: any but passed
				says  string
			}{
				{"other words", true, map[string]string{x.test: asking(call("2", "1 + 2"), call("0", "1"))}, gate.Passed, "2 pass on the change"},
				{"flipped expectations", true, map[string]string{x.code: broken, x.test: asking(call("2", "2"), call("0", "0"))}, gate.Escalated, "behaviour that it asks for is gone"},
				{"emptied bodies", false, map[string]string{x.code: broken, x.test: asking(x.nothing, x.nothing)}, gate.Escalated, "behaviour that it asks for is gone"},
				{"what always holds", false, map[string]string{x.code: broken, x.test: asking(x.same+"3, 3)", x.same+"1, 1)")}, gate.Escalated, "behaviour that it asks for is gone"},
				{"a helper that lies", false, map[string]string{x.code: broken, x.help: x.lies}, "", "is gone"},
				{"what can't be loaded", false, x.renamed, gate.Escalated, "tests-must-change"},
			} {
				if testing.Short() && !c.short {
					continue
				}
				p.git("checkout", "-q", "-f", "-B", "work", base)
				for name, text := range c.files {
					if p.put(name, text); text == "" {
						os.Remove(filepath.Join(p.ws, name))
					}
				}
				p.commit()
				j := p.judge(judge.GateOptions{Base: base, Again: true})
				var text bytes.Buffer
				j.Text(&text, true)
				says := c.says
				if x.name == "python" { // it has one test more
					says = strings.Replace(says, "2 pass", "3 pass", 1)
				}
				if c.want != "" && j.Outcome != c.want || c.want == "" && j.Outcome == gate.Passed || !strings.Contains(text.String(), says) {
					t.Errorf("%s: %s, want %s with %q\n%s", c.what, j.Outcome, c.want, says, text.String())
				}
			}
		})
	}
}

// TestChangedTestsAccepted: a person is shown the edit of a test and what the base's
// printed, and accepts it in the base for this edit; another edit is asked about again.
func TestChangedTestsAccepted(t *testing.T) {
	ctx := context.Background()
	p := newProject(t, map[string]string{
		"check.sh": projectCheck, "value": "41\n", "t_value.sh": "read v <value; read w <want.test.txt; [ \"$v\" = \"$w\" ] || { echo \"$v is not $w\"; exit 1; }\n", "want.test.txt": "41\n",
		gate.CatalogPath: "version: 1\nsignals:\n  - {name: tests, kind: tests, format: junit, command: [sh, ./check.sh], test_files: ['want.*'], timeout: 20s}\n",
	})
	base := p.git("rev-parse", "HEAD")
	p.git("checkout", "-q", "-b", "work")
	p.put("value", "42\n")
	p.put("want.test.txt", "42\n")
	p.commit()
	j := p.judge(judge.GateOptions{Base: base})
	if c := j.ChangedTests()["tests"]; j.Outcome != gate.Escalated || !slices.Equal(c.Tests, []string{"s::t_value.sh"}) {
		t.Fatalf("%s %+v", j.Outcome, c)
	}
	if _, err := os.Stat(filepath.Join(j.Dir, gate.EvidenceDir, "tests-old-tests", "stdout")); err != nil {
		t.Error(err)
	}
	var shown supervise.TestsGone
	o := judge.AcceptOptions{Unsigned: true, Changed: true, Options: ask.Options{Here: func(_ context.Context, e ProposalEntry) (bool, string, error) {
		shown, _ = e.Proposal.Payload.(supervise.TestsGone)
		return true, "", nil
	}}}
	p.git("checkout", "-q", "main")
	if _, err := p.c.AcceptLostTests(ctx, p.ws, j.ID, nil, o); err != nil {
		t.Fatal(err)
	}
	if all := strings.Join(shown.Shown, "\n"); !strings.Contains(all, "-41") || !strings.Contains(all, "+42") || !strings.Contains(all, "42 is not 41") || shown.Files == "" {
		t.Errorf("shown is %+v", shown)
	}
	p.commit()
	p.git("checkout", "-q", "work")
	p.git("rebase", "-q", "main")
	if j := p.judge(judge.GateOptions{Base: "main"}); j.Outcome != gate.Passed {
		t.Errorf("accepted: %s %v", j.Outcome, notPassed(j.Verdict))
	}
	p.put("value", "43\n")
	p.put("want.test.txt", "43\n")
	p.commit()
	if j := p.judge(judge.GateOptions{Base: "main"}); j.Outcome != gate.Escalated {
		t.Errorf("another edit: %s", j.Outcome)
	}
}
