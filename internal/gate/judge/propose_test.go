package judge

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/gate"
)

// TestGateInitFinds: gate init proposes signals for each way to pin dependencies, and
// notes the files that no signal uses.
func TestGateInitFinds(t *testing.T) {
	const (
		required = "module m\n\ngo 1.24\n\nrequire example.org/a v1.0.0\n"
		needs    = `{"dependencies":{"a":"1.0.0"},"scripts":{"test":"node --test test/"}}`
		crates   = "version = 3\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"registry+https://github.com/rust-lang/crates.io-index\"\n"
	)
	type files map[string]string
	for _, x := range []struct {
		what    string
		files   files
		signals string // beside policy and secrets
		has     string // in the catalog
		not     string
		notes   string // of which files
	}{
		{"go", files{"go.mod": "module m\n"}, "go-build go-test", "GOPROXY: 'off'", "network", ""},
		{"go, dependencies", files{"go.mod": required, "go.sum": "x"}, "modules go-build go-test", "after: [modules]", "-mod=", ""},
		{"go, unpinned", files{"go.mod": required}, "modules go-build go-test", "", "", "go.sum"},
		{"go, vendored", files{"go.mod": required, "vendor/modules.txt": "#"}, "go-build go-test", "-mod=vendor", "network", ""},
		{"go, of the tree's own", files{"go.mod": required + "replace example.org/a => ./a\n"}, "go-build go-test", "", "network", ""},
		{"go, a workspace alone", files{"go.work": "go 1.24\n", "Makefile": "test:\n"}, "make-test", "", "", "go.work"},
		{"node", files{"package.json": `{"scripts":{"test":"node --test"}}`}, "node-test", "--test-reporter-destination=stderr]", "network", ""},
		{"node, npm", files{"package.json": needs, "package-lock.json": "{}"}, "npm-ci node-test", "--ignore-scripts", "", ""},
		{"node, a shrinkwrap", files{"package.json": needs, "npm-shrinkwrap.json": "{}"}, "npm-ci node-test", "'test/'", "", ""},
		{"node, pnpm", files{"package.json": needs, "pnpm-lock.yaml": "x"}, "node-test", "", "network", "pnpm-lock.yaml"},
		{"node, yarn", files{"package.json": needs, "yarn.lock": "x"}, "node-test", "", "network", "yarn.lock"},
		{"node, unpinned", files{"package.json": needs}, "node-test", "", "network", "package-lock.json"},
		{"node, committed", files{"package.json": needs, "node_modules/a/index.js": ""}, "node-test", "", "network", "package-lock.json"},
		{"node, another runner", files{"package.json": `{"scripts":{"test":"mocha","build":"tsc"}}`}, "npm-build npm-test", "", "", ""},
		{"node, words of a shell", files{"package.json": `{"scripts":{"test":"node --test 'x', 1] # $(y)"}}`}, "npm-test", "", "$(y)", ""},
		{"node, no tests", files{"package.json": `{"scripts":{"test":"echo \"Error: no test specified\" && exit 1"}}`}, "", "", "", ""},
		{"node, no JSON", files{"package.json": `{`}, "", "", "", "package.json"},
		{"python, unittest", files{"setup.py": "x", "tests/test_a.py": ""}, "unittest", "PYTHONSAFEPATH: '1'", "network", ""},
		{"python, no tests", files{"setup.py": "x"}, "", "", "", "tests"},
		{"python, pinned", files{"requirements.txt": "a==1.0 \\\n    --hash=sha256:00\npytest[x] == 7 ; python_version > '3'\n"}, "pip pytest", "-crequirements.txt, -o, pythonpath=., --junitxml=.gate-pytest.xml]\n    results: .gate-pytest.xml\n    env: {PYTHONSAFEPATH: '1', PYTHONPATH: /workspace/.gate/site}", "", ""},
		{"python, unpinned", files{"requirements.txt": "a>=1.0\npytest\n"}, "pytest", "PYTHONSAFEPATH: '1'", "network", "requirements.txt"},
		{"python, no settings of pytest", files{"pyproject.toml": "[project]\ndependencies = ['pytest']\n", "requirements.txt": "pytest\n"}, "pytest", "-cpyproject.toml, -o, pythonpath=.", "network", "requirements.txt"},
		{"python, its conftest.py", files{"conftest.py": "", "setup.py": "x"}, "pytest", "PYTHONSAFEPATH: '1'", "pythonpath", ""},
		{"python, settings of pytest", files{"pytest.ini": "[pytest]\n"}, "pytest", "pythonpath=.", "network", ""},
		{"python, settings in TOML", files{"pytest.toml": "[pytest]\n"}, "pytest", "pythonpath=.", "network", ""},
		{"python, settings that say nothing", files{".pytest.toml": ""}, "pytest", "pythonpath=.", "network", ""},
		{"python, settings of another", files{"setup.py": "x", "my-pytest.toml": ""}, "", "", "pythonpath=.", "tests"},
		{"python, settings that say where", files{"pytest.ini": "[pytest]\npythonpath = src\n"}, "pytest", "PYTHONSAFEPATH", "pythonpath=.", ""},
		{"python, a way elsewhere", files{"requirements.txt": "--index-url https://example.org\na==1\n", "test_a.py": ""}, "unittest", "", "network", "requirements.txt"},
		{"python, another end of a line", files{"requirements.txt": "a==1\n# x\rb>=1\n", "test_a.py": ""}, "unittest", "", "network", "requirements.txt"},
		{"python, other lines behind a hash", files{"requirements.txt": "a==1\n--hash=sha256:00 -r b.txt\n", "test_a.py": ""}, "unittest", "", "network", "requirements.txt"},
		{"python, a comment in other letters", files{"requirements.txt": "# für Tests\na==1\n", "test_a.py": ""}, "pip unittest", "", "", ""},
		{"python, uv", files{"pyproject.toml": "[project]\ndependencies = ['a']\n[tool.pytest.ini_options]\npythonpath = ['src']\n", "uv.lock": "x"}, "pytest", "", "pythonpath=.", "uv.lock"},
		{"python, poetry", files{"pyproject.toml": "[tool.poetry]\n", "poetry.lock": "x", "conftest.py": ""}, "pytest", "", "network", "poetry.lock"},
		{"python, a project", files{"pyproject.toml": "[project]\ndependencies = ['a']\n", "conftest.py": ""}, "pytest", "", "network", "pyproject.toml"},
		{"rust", files{"Cargo.toml": "[package]\n", "Cargo.lock": "version = 3\n"}, "cargo-test", "--locked", "network", ""},
		{"rust, unpinned", files{"Cargo.toml": "[package]\n"}, "cargo-test", "", "", "Cargo.lock"},
		{"rust, crates", files{"Cargo.toml": "[package]\n", "Cargo.lock": crates}, "cargo-test", "", "", "Cargo.lock"},
		{"rust, vendored", files{"Cargo.toml": "[package]\n", "Cargo.lock": crates, ".cargo/config.toml": "[source.crates-io]\nreplace-with = \"vendored-sources\"\n"}, "cargo-test", "", "", ""},
		{"make", files{"Makefile": "all:\n\ncheck: all\n"}, "make-check", "[make, check]", "", ""},
		{"make, of GNU", files{"Makefile": "all:\n", "GNUmakefile": "test:\n"}, "make-test", "", "", ""},
		{"make, a directory by its name", files{"Makefile": "test:\n", "test/x": ""}, "make-test", "[make, -B, test]", "", ""},
		{"make, nothing that tests", files{"Makefile": "install:\n"}, "", "", "", "Makefile"},
	} {
		dir := t.TempDir()
		for name, text := range x.files {
			file := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f, err := Proposals(dir)
		if err != nil {
			t.Errorf("%s: %v", x.what, err)
			continue
		}
		var names []string
		for _, p := range f.List[2:] {
			names = append(names, p.Name)
		}
		text := CatalogText(f.Found, f.List)
		if _, err := gate.ParseCatalog("gate.yaml", []byte(text)); err != nil {
			t.Errorf("%s: %v\n%s", x.what, err, text)
		}
		notes := strings.Join(slices.Sorted(maps.Keys(f.notes)), " ")
		if s := strings.Join(names, " "); s != x.signals || notes != x.notes || !strings.Contains(text, x.has) || x.not != "" && strings.Contains(text, x.not) {
			t.Errorf("%s: %q, notes %q, want %q, %q\n%s", x.what, s, notes, x.signals, x.notes, text)
		}
	}
	if _, err := Proposals(t.TempDir()); err == nil {
		t.Error("something is proposed for nothing")
	}
}
