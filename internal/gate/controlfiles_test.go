package gate

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
)

// A file that alters what a program reports, without any test being edited, is a control
// file. Its harmless neighbour is not.
func TestT2RunnersObey(t *testing.T) {
	const (
		makeTest  = "build, command: [make, test]"
		makeInSh  = "build, command: [sh, -c, 'cd . && make test']"
		makeIn    = "build, command: [make, -C, src, test]"
		makeCd    = "build, command: [sh, -c, 'cd src; make test']"
		makeFile  = "build, command: [make, -f, run.mak, out/file]"
		script    = "build, command: [sh, -e, tests/run.sh]"
		scriptIn  = "build, command: [sh, -c, 'cd . && tests/run.sh']"
		scriptOwn = "build, command: [./tests/run.sh]"
		scriptOpt = "build, command: [env, A=b, bash, -x, -o, pipefail, tests/run.sh]"
		scriptWar = "build, command: [python3, -W, error, tests/run.py]"
		scriptPyt = "build, command: [python3, -B, /usr/bin/pytest, tests/run.py]"
		scriptPy  = "build, command: [python3, tests/run.py]"
		module    = "build, command: [python3, -m, tests.run]"
		testPy    = "build, command: [python3, tests/test_a.py]"
		pytestOf  = "tests, format: pytest, command: [pytest, tests/run.py]"
		tox       = "build, command: [tox, run]"
		nox       = "build, command: [nox]"
		just      = "build, command: [just, test]"
		bun       = "build, command: [bun, run, test]"
		mvn       = "build, command: [./mvnw, verify]"
		gradle    = "build, command: [./gradlew, check]"
		pytest    = "tests, format: pytest, command: [python3, -m, pytest, --junitxml=r.xml]"
		jest      = "tests, format: jest, command: [npx, --no-install, jest, --json]"
		vitest    = "tests, format: vitest, command: [npx, --no-install, vitest, run]"
		npm       = "build, command: [npm, test]"
		cargo     = "build, command: [cargo, test, --offline]"
		mocha     = "tests, format: junit, command: [npx, --no-install, mocha, -R, xunit]"
		yarn      = "build, command: [yarn, test]"
		pnpm      = "build, command: [pnpm, test]"
		deno      = "build, command: [deno, test]"
		node      = "tests, format: junit, command: [node, --test]"
		golang    = "tests, format: go, command: [go, test, -json, ./...]"
		unittest  = "build, command: [python3, -m, unittest]"
		tool      = "build, command: [python3, -m, tools.check]"
	)
	const makeRules = `
TARGETS := colon-set
colon: = equals
late ?= http://nowhere
check: lint \
  joined $(X) ${Y:%=behind} | order # said
lint quick &:: ; @recipe: only
	inrecipe: not
lint: FLAGS += flags
.PHONY: quick $(MORE)
.PHONY: \
  check
pattern-%: pattern-need
out/target:
README: docs/x
include a.inc \
  b.inc
`
	base := map[string]string{
		"Makefile":              "include rules/all.mk more.inc $(X) # other.inc\n-include late.inc\ntest: all\n\t./run\n" + makeRules,
		"rules/all.mk":          "all:\ninclude rules/in/*.inc\n",
		"rules/in/a.inc":        "out/inner: ;\n",
		"run.mak":               "special:\n",
		"src/Makefile":          "unit:\nabove: ../above\n",
		"tests/run.sh":          "",
		"tests/run.py":          "",
		"tests/test_a.py":       "",
		"more.inc":              "",
		"other.inc":             "",
		"docs/x":                "",
		"tools/check.py":        "",
		"tools/other.py":        "",
		"pyproject.toml":        "[project]\nname = 'm'\n[tool.pytest.ini_options]\naddopts = '-q'\n",
		"conftest.py":           "import pytest\n@pytest.fixture\ndef a(): return 1\n",
		"package.json":          `{"name":"m","version":"1.0.0","scripts":{"test":"jest"},"jest":{"bail":true}}`,
		"Cargo.toml":            "[package]\nname = 'm'\nversion = '0.1.0'\n",
		"go.mod":                "module m\n\ngo 1.24\n\nrequire example.org/check v1.0.0\n",
		"docs/modules.txt":      "",
		"lib/package.json":      `{"name":"m","exports":"./index.js","devDependencies":{"chai":"^4","@org/expect":"1"}}`,
		"examples/package.json": `{"name":"chai"}`,
		"package-lock.json":     `{"packages":{"node_modules/chai":{},"node_modules/chai/node_modules/deep":{}}}`,

		"sub/vendor/modules.txt":                "# example.org/check v1.0.0\n",
		"sub/vendor/example.org/check/check.go": "package check // as it was\n",
		"vendor/check/.cargo-checksum.json":     "{}",
		"vendor/check/src/lib.rs":               "// as it was\n",
	}
	for _, x := range []struct {
		signal, file, text string
		caught             bool
	}{
		{makeTest, "GNUmakefile", "test:\n", true},
		{makeTest, "makefile", "test:\n", true},
		{makeTest, "sub/Makefile", "test:\n", true}, // whatever make it is that runs there
		{makeTest, "src/GNUmakefile", "test:\n", true},
		{makeTest, "sub/Makefile.txt", "test:\n", false},
		{makeTest, "all", "", true}, // it is not asked for by its name
		{makeTest, "lint", "", true},
		{makeTest, "joined", "", true},
		{makeTest, "order/x", "", true},
		{makeTest, "pattern-need", "", true},
		{makeTest, "quick", "", false},
		{makeTest, "check", "", false}, // phony
		{makeTest, "recipe", "", false},
		{makeTest, "inrecipe", "", false},
		{makeTest, "said", "", false},
		{makeTest, "behind", "", false},
		{makeTest, "flags", "", false},
		{makeTest, "colon-set", "", false},
		{makeTest, "equals", "", false},
		{makeTest, "nowhere", "", false},
		{makeTest, "out/target", "", true},
		{makeTest, "out/target/x", "", true},
		{makeTest, "out/other", "", false},
		{makeTest, "out/inner", "", true}, // of a file that an included one includes
		{makeTest, "rules/in/a.inc", "x: ;\n", true},
		{makeTest, "rules/in/b.inc", "x: ;\n", true},
		{makeTest, "rules/in/b.txt", "x\n", false},
		{makeTest, "a.inc", "x: ;\n", true},
		{makeTest, "b.inc", "x: ;\n", true},
		{makeTest, "README/x", "", true},
		{makeTest, "docs/y", "", false},
		{makeTest, "src/unit", "", true},
		{makeTest, "unit", "", false},
		{makeTest, "above", "", true},
		{makeTest, "src/test", "", false},
		{makeIn, "src/test", "", true},
		{makeIn, "src/tests", "", false},
		{makeCd, "src/test", "", true},
		{makeFile, "run.mak", "x:\n", true},
		{makeFile, "special", "", true},
		{makeFile, "out/file", "", true},
		{makeFile, "out/more", "", false},
		{makeTest, "test", "", true},
		{makeTest, "test/data", "", true}, // a directory has the name too
		{makeTest, "testing/data", "", false},
		{makeTest, "late.inc", "test: ;\n", true},
		{makeTest, "more.inc", "test: ;\n", true},
		{makeTest, "other.inc", "x\n", false},
		{makeTest, "rules/all.mk", "test: ;\n", true},
		{makeTest, "docs/x", "y\n", false},
		{makeInSh, "GNUmakefile", "test:\n", true},
		{makeInSh, "test", "", true},
		{makeInSh, "value", "", false},
		{pytest, "pytest.py", "raise SystemExit(0)\n", true},
		{pytest, "pytest/__main__.py", "", true},
		{pytest, "app/pytest.py", "", false},
		{pytest, "pytest.ini", "[pytest]\naddopts = -k nothing\n", true},
		{pytest, "tests/pytest.ini", "", true},
		{pytest, "pytest.toml", "", true},
		{pytest, "tests/.pytest.toml", "", true},
		{pytest, "my-pytest.toml", "", false},
		{pytest, "tox.ini", "[pytest]\n", true},
		{pytest, "setup.cfg", "[tool:pytest]\n", true},
		{pytest, "x.egg-info/entry_points.txt", "[pytest11]\nx = x\n", true},
		{pytest, "sitecustomize.py", "", true},
		{pytest, "customize.py", "", false},
		{pytest, "pyproject.toml", "[project]\nname = 'm'\n[tool.pytest.ini_options]\naddopts = '-p x'\n", true},
		{pytest, "pyproject.toml", "[tool.pytest.ini_options]\naddopts = '-q'\n[project]\nname = 'n'\n", false},
		{pytest, "pyproject.toml", "[tool.pytest\n", true},
		{pytest, "conftest.py", "import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call): pass\n", true},
		{pytest, "tests/conftest.py", "def pytest_collection_modifyitems(items): items.clear()\n", true},
		{pytest, "conftest.py", "import pytest\n@pytest.fixture\ndef a(): return 2\n", false},
		{pytest, "conftest.py", "import pytest_asyncio\nfrom pytest_mock import MockerFixture\n@pytest_asyncio.fixture\nasync def a(): return 1\n", false},
		{pytest, "conftest.py", "from pytest_mock import patch as pytest_bdd_after_step\n", true},
		{pytest, "conftest.py", "pytest_plugins.append('x')\n", true},
		{pytest, "conftest.py", "c.hook.pytest_bdd_after_step._hookimpls.clear()\n", true},
		{pytest, "conftest.py", "pytest_runtest_makereport.__code__ = f.__code__\n", true},
		{pytest, "app/helpers.py", "def pytest_runtest_makereport(item, call): pass\n", true},
		{pytest, "app/helpers.py", "pytest_runtest_call = mine\n", true},
		{pytest, "app/helpers.py", "import pytest_asyncio\n@pytest_asyncio.fixture\ndef a(): return pytest_ok == 1\n", false},
		{pytest, "tests/test_a.py", "pytest_plugins = ['x']\n", true},
		{unittest, "unittest.py", "", true},
		{unittest, "unittest/__main__.py", "", true},
		{unittest, "app/unittest.py", "", false},
		{tool, "tools/check.py", "1\n", true},
		{tool, "tools/__init__.py", "1\n", false},
		{tool, "tools/check/__main__.py", "1\n", true},
		{tool, "tools/other.py", "1\n", false},
		{jest, "jest.config.js", "module.exports = {reporters: ['./mine']}\n", true},
		{jest, "babel.config.json", "{}", true},
		{jest, ".npmrc", "node-options=--require ./x.js\n", true},
		{jest, "node_modules/jest/index.js", "", true},
		{jest, "config.js", "", false},
		{jest, "package.json", `{"name":"m","version":"1.0.0","scripts":{"test":"jest"},"jest":{"reporters":["./mine"]}}`, true},
		{jest, "package.json", `{"name":"m","version":"1.0.1","jest":{"bail":true},"scripts":{"test":"jest","lint":"x"}}`, false},
		{jest, "package.json", `{`, true},
		{vitest, "vitest.config.ts", "", true},
		{vitest, "vite.config.ts", "", true},
		{vitest, "index.config.ts", "", false},
		{npm, "package.json", `{"name":"m","scripts":{"test":"true"}}`, true},
		{npm, "package.json", `{"name":"m","version":"2.0.0","scripts":{"test":"jest"}}`, false},
		{npm, ".npmrc", "script-shell=./x\n", true},
		{cargo, ".cargo/config.toml", "[build]\nrustc-wrapper = './x'\n", true},
		{cargo, "Cargo.toml", "[package]\nname = 'm'\nversion = '0.1.0'\n[lib]\ntest = false\n", true},
		{cargo, "Cargo.toml", "[package]\nname = 'm'\nversion = '0.1.0'\nautotests = false\n", true},
		{cargo, "Cargo.toml", "[package]\nname = 'm'\nversion = '0.2.0'\n", false},
		{script, "tests/run.sh", "exit 0\n", true},
		{scriptIn, "tests/run.sh", "exit 0\n", true},
		{scriptOwn, "tests/run.sh", "exit 0\n", true},
		{scriptPy, "tests/run.py", "exit()\n", true},
		{scriptOpt, "tests/run.sh", "exit 0\n", true},
		{scriptWar, "tests/run.py", "exit()\n", true},
		{scriptPyt, "tests/run.py", "exit()\n", false},
		{module, "tests/run.py", "exit()\n", true},
		{script, "tests/run.py", "exit()\n", false},
		{testPy, "tests/test_a.py", "x\n", false}, // it is what is judged
		{pytestOf, "tests/run.py", "x\n", false},
		{tox, "tox.ini", "[testenv]\n", true},
		{tox, "tox.toml", "", true},
		{tox, "pyproject.toml", "[project]\nname = 'm'\n[tool.pytest.ini_options]\naddopts = '-q'\n[tool.tox]\nenv_list = []\n", true},
		{tox, "pytest.ini", "", true},
		{tox, "noxfile.py", "", false},
		{nox, "noxfile.py", "", true},
		{nox, "conftest.py", "def pytest_runtest_call(): pass\n", true},
		{nox, "tox.toml", "", false},
		{just, "Justfile", "test:\n", true},
		{just, "sub/.justfile", "test:\n", true},
		{just, "more.just", "test:\n", true},
		{just, "adjustfile", "", false},
		{bun, "bunfig.toml", "[test]\npreload = ['./x']\n", true},
		{bun, "package.json", `{"name":"m","scripts":{"test":"true"}}`, true},
		{bun, "fig.toml", "", false},
		{npm, "bunfig.toml", "", false},
		{mvn, "pom.xml", "", true},
		{mvn, "a/pom.xml", "", true},
		{mvn, ".mvn/jvm.config", "", true},
		{mvn, "build.gradle", "", false},
		{gradle, "build.gradle.kts", "", true},
		{gradle, "a/build.gradle", "", true},
		{gradle, "gradle.properties", "", true},
		{gradle, "gradle/libs.versions.toml", "", true},
		{gradle, "pom.xml", "", false},
		{golang, "go.work", "go 1.24\n", true},
		{golang, "go.mod", "module m\n\ngo 1.24\n\nrequire example.org/check v1.0.0\n\nreplace example.org/check => ./mine\n", true},
		{golang, "go.mod", "module m\n\ngo 1.25\n\nrequire example.org/check v1.0.1\n", false},
		{golang, "go.mod", "module m (\n", true},
		{golang, "vendor/example.org/check/check.go", "package check\n", false}, // no modules.txt, so go does not look there
		{golang, "vendor/modules.txt", "# example.org/check v1.0.0\n", true},
		{golang, "sub/vendor/example.org/check/check.go", "package check\n", true},
		{golang, "sub/vendor/example.org/new.go", "package check\n", true},
		{golang, "sub/vendors/new.go", "package check\n", false},
		{golang, "docs/modules.txt", "x\n", false},
		{npm, "sub/vendor/example.org/check/check.go", "package check\n", false},
		{node, "node_modules/chai/index.js", "", true},
		{node, "test/node_modules/chai/index.js", "", true},
		{node, "modules/chai/index.js", "", false},
		{node, "test/package.json", `{"name":"chai","exports":"./ok.js"}`, true}, // which require("chai") is, below
		{node, "test/package.json", `{"name":"chai"}`, true},                     // exports may come later
		{node, "test/package.json", `{"Name":"chai","name":"@org/new"}`, false},
		{node, "packages/new/package.json", `{"name":"@org/new","exports":"./i.js"}`, false},
		{npm, "lib/package.json", `{"name":"@org/expect","exports":{"deep":1}}`, true},
		{npm, "lib/package.json", `{"name":"deep"}`, true}, // what installed ones need
		{npm, "lib/package.json", `{"name":"m","exports":{".":"./index.js","./more":"./more.js"}}`, false},
		{npm, "examples/package.json", `{"name":"chai","private":true,"type":"module"}`, false}, // as it was
		{node, "test/package.json", `{"name":"chai"`, false},                                    // nothing to Node
		{golang, "test/package.json", `{"name":"chai","exports":"./ok.js"}`, false},
		{mocha, ".mocharc.yml", "require: ./ok.js\n", true},
		{mocha, "package.json", `{"name":"m","mocha":{"require":"./ok.js"}}`, true},
		{npm, ".mocharc.yml", "require: ./ok.js\n", false},
		{bun, "tsconfig.json", `{"compilerOptions":{"paths":{"chai":["./ok.js"]}}}`, true},
		{bun, "tsconfig.json", `{"compilerOptions":{"strict":true}}`, false},
		{bun, "tsconfig.json", "{ // as it was\n  \"compilerOptions\": {\"strict\": true,},\n}", false},
		{bun, "tsconfig.json", "{ // as it was not\n  \"compilerOptions\": {\"baseUrl\": \".\",},\n}", true},
		{bun, "tsconfig.json", "{ as it was", true},
		{node, "tsconfig.json", `{"compilerOptions":{"paths":{"chai":["./ok.js"]}}}`, false},
		{yarn, ".yarnrc.yml", "yarnPath: ./ok.js\n", true},
		{yarn, ".yarn/releases/yarn.cjs", "", true},
		{pnpm, ".pnpmfile.cjs", "", true},
		{pnpm, ".yarnrc.yml", "", false},
		{deno, "deno.json", "{}", true},
		{unittest, "src/sitecustomize/__init__.py", "", true},
		{unittest, "usercustomize.so", "", true},
		{unittest, "customize.py", "", false},
		{unittest, ".venv/lib/python3.11/site-packages/six.py", "", true},
		{cargo, "vendor/check/src/lib.rs", "", true},
		{cargo, "vendor/check/src/new.rs", "", true},
		{cargo, "vendor/other/src/new.rs", "", false},
		{cargo, "vendor/new/.cargo-checksum.json", "{}", true},
		{cargo, "Cargo.toml", "[package]\nname = 'm'\nversion = '0.1.0'\n[patch.crates-io]\ncheck = { path = 'mine' }\n", true},
		{cargo, "Cargo.toml", "[package]\nname = 'm'\nversion = '0.1.0'\n[profile.test]\ndebug-assertions = false\n", true},
		{cargo, ".config/nextest.toml", "", true},
		{golang, "work.go", "package m\n", false},
	} {
		for _, free := range []bool{false, true} {
			c, err := ParseCatalog("gate.yaml", []byte("version: 1\nsignals:\n  - {name: policy, kind: policy, protected: allowed, look_alikes: allowed, runners: "+map[bool]string{false: "frozen", true: "may-change"}[free]+"}\n  - {name: s, kind: "+x.signal+"}\n"))
			if err != nil {
				t.Fatal(err)
			}
			change := maps.Clone(base)
			change[x.file] = x.text
			s := c.Signals[0]
			facts, found, err := s.evaluate(t.Context(), &Case{Signal: s, Base: inMemory(base), Change: inMemory(change), g: &Gate{Catalog: c}})
			if err != nil {
				t.Fatal(err)
			}
			found = slices.DeleteFunc(found, func(f Finding) bool { return f.Noted })
			caught := len(found) == 1 && found[0].ID == "runner" && found[0].File == x.file && strings.Contains(found[0].Text, "signal s")
			if want := x.caught && !free; caught != want || facts.Positive() == want || !want && len(found) > 0 {
				t.Errorf("%s: %s %q: %+v", x.signal, x.file, x.text, found)
			}
		}
	}
}

// A file that a command names, under any prefix, and that its phase was seen to start is
// a control file.
func TestT2SeenStarted(t *testing.T) {
	base := map[string]string{"tests/run.sh": "exit 1\n", "tests/data.sh": "1\n", "tests/test_a.py": "1\n", "sub/tests/go.sh": "1\n"}
	for _, x := range []struct {
		command, file, started string
		policy                 string
		caught                 bool
	}{
		{"[timeout, '60', tests/run.sh]", "tests/run.sh", "tests/run.sh", "", true},
		{"[nice, -n, '5', xargs, -a, list, ./tests/run.sh]", "tests/run.sh", "tests/run.sh", "", true},
		{"[sh, -c, 'cd sub && env X=1 tests/go.sh']", "sub/tests/go.sh", "sub/tests/go.sh", "", true},
		{"[sh, -c, 'cd tests; flock x ./run.sh']", "tests/run.sh", "tests/run.sh", "", true},
		{"[timeout, '60', tests/run.sh]", "tests/run.sh", "tests/run.sh", ", runners: may-change", false},
		{"[timeout, '60', tests/run.sh]", "tests/data.sh", "tests/run.sh", "", false}, // not what differs
		{"[bats, tests/run.sh]", "tests/run.sh", "tests/data.sh", "", false},          // it was read
		{"[timeout, '60', all]", "tests/run.sh", "tests/run.sh", "", false},           // a script started it
		{"[timeout, '60', tests/test_a.py]", "tests/test_a.py", "tests/test_a.py", "", false},
		{"[env, sh, tests/run.sh]", "tests/run.sh", "tests/run.sh", "", true}, // named once
	} {
		change := maps.Clone(base)
		change[x.file] = "exit 0\n"
		if x.file == x.started { // without a trace nothing passes
			if v := verdict(t, newGate(t, "version: 1\nsignals:\n  - {name: policy, kind: policy}\n  - {name: s, kind: build, command: "+x.command+"}\n", tree(t, base), tree(t, change), func(Job) *Ended { return ok(nil) })); v.Outcome == Passed {
				t.Errorf("%s passes unseen", x.command)
			}
		}
		g := newGate(t, "version: 1\nsignals:\n  - {name: policy, kind: policy"+x.policy+"}\n  - {name: s, kind: build, command: "+x.command+"}\n", tree(t, base), tree(t, change), func(Job) *Ended {
			o := saw("/usr/bin/timeout")
			o.Execs = append(o.Execs, Exec{Path: "/usr/bin/dash", Asked: Workspace + "/" + x.started, Count: 1})
			return ok(o)
		})
		v := verdict(t, g)
		var by []string
		for _, r := range v.Signals {
			for _, f := range r.Findings {
				if f.ID == "runner" && f.File == x.file {
					by = append(by, r.Name)
				}
			}
		}
		if (v.Outcome == Final) != x.caught || (v.Outcome == Passed) == x.caught || (len(by) == 1) != x.caught {
			t.Errorf("%s: %s: %s, by %v", x.command, x.file, v.Outcome, by)
		}
	}
}

// Settings of a program count if the program was seen to run, even if no word of the
// command names it.
func TestT2SeenToRun(t *testing.T) {
	base := map[string]string{"conftest.py": "x = 1\n", "jest.config.js": "1\n", "pytest.ini": "1\n", "go.work": "1\n", "a.c": "1\n"}
	const site = "/usr/lib/python3/dist-packages/"
	for _, x := range []struct {
		file     string
		observed Observed
		policy   string
		caught   bool
	}{
		{"jest.config.js", Observed{Execs: []Exec{{Path: "/usr/bin/node", Asked: Workspace + "/node_modules/.bin/jest"}}}, "", true},
		{"jest.config.js", Observed{Execs: []Exec{{Path: "/usr/bin/node"}}}, "", false},
		{"jest.config.js", Observed{TreeRead: []string{"sub/node_modules/jest/index.js"}}, "", true},
		{"jest.config.js", Observed{TreeRead: []string{"node_modules/jest"}}, "", false}, // the directory alone
		{"jest.config.js", Observed{Execs: []Exec{{Path: "/usr/bin/jest"}}}, ", runners: may-change", false},
		{"pytest.ini", Observed{Opened: []string{site + "pytest/__init__.py"}}, "", true},
		{"pytest.ini", Observed{Opened: []string{site + "pytest-7.2.dist-info/METADATA"}}, "", false},
		{"pytest.ini", Observed{Opened: []string{"/src/pytest/__init__.py"}}, "", false},
		{"pytest.ini", Observed{Execs: []Exec{{Path: "/usr/bin/python3", Asked: "/usr/bin/pytest"}}}, "", true},
		{"conftest.py", Observed{Execs: []Exec{{Path: "/usr/bin/python3", Asked: "/usr/bin/pytest"}}}, "", true},
		{"go.work", Observed{Execs: []Exec{{Path: "/usr/lib/go/bin/go"}}}, "", true},
		{"a.c", Observed{Execs: []Exec{{Path: "/usr/lib/go/bin/go"}}}, "", false},
		{"test/package.json", Observed{Execs: []Exec{{Path: "/usr/bin/node"}}, TreeRead: []string{"node_modules/@o/chai/index.js"}}, "", true},
		{"test/package.json", Observed{Execs: []Exec{{Path: "/usr/bin/node"}}, TreeRead: []string{"node_modules/chai/index.js"}}, "", false},
	} {
		change := maps.Clone(base)
		change[x.file] = "def pytest_runtest_makereport(): pass\n"
		if strings.HasSuffix(x.file, ".json") {
			change[x.file] = `{"name":"@o/chai","exports":"./ok.js"}`
		}
		g := newGate(t, "version: 1\nsignals:\n  - {name: policy, kind: policy"+x.policy+"}\n  - {name: s, kind: build, command: [check]}\n", tree(t, base), tree(t, change), func(Job) *Ended {
			o := saw("/usr/bin/check")
			o.Execs, o.Opened, o.TreeRead = append(o.Execs, x.observed.Execs...), x.observed.Opened, x.observed.TreeRead
			return ok(o)
		})
		v := verdict(t, g)
		judges := v.Signals[len(v.Signals)-1]
		named := judges.Name == "judges" && len(judges.Findings) == 1 && judges.Findings[0].File == x.file && strings.Contains(judges.Findings[0].Text, "signal s runs ")
		if named != x.caught || (v.Outcome == Passed) == x.caught || (v.Outcome == Final) != x.caught {
			t.Errorf("%s, %+v: %s %+v", x.file, x.observed, v.Outcome, judges)
		}
	}
}

// Makefiles count also if they are links, or in a directory that is a link.
func TestT2RunnersObeyByLinks(t *testing.T) {
	links := map[string]string{"Makefile": "b/main.make", "b": "build"}
	files := map[string]string{"build/main.make": "test: unit\ninclude b/more.inc\n", "build/more.inc": "late:\n"}
	treeOf := func(more map[string]string) *Tree {
		all := maps.Clone(files)
		maps.Copy(all, links)
		maps.Copy(all, more)
		x := inMemory(all)
		for i, f := range x.Files {
			if links[f.Path] != "" {
				x.Files[i].Mode = Link
			}
		}
		return x
	}
	c, err := ParseCatalog("gate.yaml", []byte("version: 1\nsignals:\n  - {name: policy, kind: policy}\n  - {name: s, kind: build, command: [sh, -c, 'make test; go test']}\n"))
	if err != nil {
		t.Fatal(err)
	}
	// A directory of dependencies that is a link to another.
	for _, name := range []string{"vendor", "sub/vendor", "vendors"} {
		links[name] = "others"
		change := treeOf(map[string]string{name: "others"})
		delete(links, name)
		_, found, err := c.Signals[0].evaluate(t.Context(), &Case{Signal: c.Signals[0], Base: treeOf(nil), Change: change, g: &Gate{Catalog: c}})
		if got := len(found) == 1 && found[0].ID == "runner" && found[0].File == name; err != nil || got != (name != "vendors") {
			t.Errorf("%s: %+v %v", name, found, err)
		}
	}
	for file, caught := range map[string]bool{"unit": true, "late": true, "build/more.inc": true, "build/main.make": true, "build/unit": false, "build/other.inc": false} {
		s := c.Signals[0]
		_, found, err := s.evaluate(t.Context(), &Case{Signal: s, Base: treeOf(nil), Change: treeOf(map[string]string{file: "x: ;\n"}), g: &Gate{Catalog: c}})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(found) == 1 && found[0].ID == "runner" && found[0].File == file; got != caught || !caught && len(found) > 0 {
			t.Errorf("%s: %+v", file, found)
		}
	}
}

// inMemory is a source that holds a tree in memory.
func inMemory(files map[string]string) *Tree {
	t := &Tree{Name: "x", src: memory(files)}
	for _, p := range slices.Sorted(maps.Keys(files)) {
		t.Files = append(t.Files, File{Path: p, Mode: regular, Size: int64(len(files[p]))})
	}
	return t
}

type memory map[string]string

func (m memory) each(_ context.Context, files []File, f func(File, []byte) error) error {
	for _, x := range files {
		if err := f(x, []byte(m[x.Path])); err != nil {
			return err
		}
	}
	return nil
}

// No file of the change can pass for an installed one.
func TestT2InstalledByLockfile(t *testing.T) {
	const catalog = "version: 1\nsignals:\n  - {name: deps, kind: install, command: [go, mod, download], keep: [.gate/mod]}\n"
	base := map[string]string{"go.mod": "module m\n", ".gate/mod/here/before": "x"}
	for _, x := range []struct {
		file, text string
		caught     bool
	}{
		{".gate/mod/dep@v1.0.0/dep.go", "package dep\n", true},
		{".gate/mod/here/before", "y", true},
		{".gate", "a file in its place", true},
		{".gate/other", "x", false},
		{"mod/dep.go", "package dep\n", false},
	} {
		change := maps.Clone(base)
		if x.file == ".gate" {
			delete(change, ".gate/mod/here/before")
		}
		change[x.file] = x.text
		ran := false
		v := verdict(t, newGate(t, catalog, tree(t, base), tree(t, change), func(Job) *Ended { ran = true; return ok(saw("/usr/bin/go")) }))
		if (v.Outcome != Passed) != x.caught || ran == x.caught {
			t.Errorf("%s: %s, ran %t: %+v", x.file, v.Outcome, ran, v.Signals[0].Findings)
		}
	}
}
