package gate

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestT2RunnersObey: what makes a program that judges say something else, without a test
// that differs, is a change to a judge; the harmless neighbour of each is none.
func TestT2RunnersObey(t *testing.T) {
	const (
		makeTest = "build, command: [make, test]"
		makeInSh = "build, command: [sh, -c, 'cd . && make test']"
		pytest   = "tests, format: pytest, command: [python3, -m, pytest, --junitxml=r.xml]"
		jest     = "tests, format: jest, command: [npx, --no-install, jest, --json]"
		vitest   = "tests, format: vitest, command: [npx, --no-install, vitest, run]"
		npm      = "build, command: [npm, test]"
		cargo    = "build, command: [cargo, test, --offline]"
		golang   = "tests, format: go, command: [go, test, -json, ./...]"
		unittest = "build, command: [python3, -m, unittest]"
		tool     = "build, command: [python3, -m, tools.check]"
	)
	base := map[string]string{
		"Makefile":       "include rules/all.mk more.inc $(X) # other.inc\n-include late.inc\ntest: all\n\t./run\n",
		"rules/all.mk":   "all:\n",
		"more.inc":       "",
		"other.inc":      "",
		"docs/x":         "",
		"tools/check.py": "",
		"tools/other.py": "",
		"pyproject.toml": "[project]\nname = 'm'\n[tool.pytest.ini_options]\naddopts = '-q'\n",
		"conftest.py":    "import pytest\n@pytest.fixture\ndef a(): return 1\n",
		"package.json":   `{"name":"m","version":"1.0.0","scripts":{"test":"jest"},"jest":{"bail":true}}`,
		"Cargo.toml":     "[package]\nname = 'm'\nversion = '0.1.0'\n",
	}
	for _, x := range []struct {
		signal, file, text string
		caught             bool
	}{
		{makeTest, "GNUmakefile", "test:\n", true},
		{makeTest, "makefile", "test:\n", true},
		{makeTest, "sub/Makefile", "test:\n", false},
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
		{golang, "go.work", "go 1.24\n", true},
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
			facts, found, err := s.judge(t.Context(), &Case{Signal: s, Base: inMemory(base), Change: inMemory(change), g: &Gate{Catalog: c}})
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

// inMemory is a tree that lies nowhere.
func inMemory(files map[string]string) *Tree {
	t := &Tree{Name: "x", src: memory(files)}
	for _, p := range slices.Sorted(maps.Keys(files)) {
		t.Files = append(t.Files, File{Path: p, Mode: Regular, Size: int64(len(files[p]))})
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

// TestT2InstalledByLockfile: nothing that the change brings along is taken for what was
// installed.
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
