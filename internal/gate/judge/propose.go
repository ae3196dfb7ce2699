package judge

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2"
	"golang.org/x/mod/modfile"

	"github.com/carboy/carboy/internal/gate"
)

// finder proposes signals for the projects in a directory.
type finder struct {
	root  *os.Root
	Found []string
	List  []Proposal
	notes map[string]string // by file: why it is not used, and what to do
}

// maxManifest bounds what is read of a project's files, in bytes.
const maxManifest = 16 << 20

// Proposals finds the projects in dir, and proposes signals that build and test them.
func Proposals(dir string) (*finder, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f := &finder{root: root, notes: map[string]string{}}
	f.add("policy", "policy", "")
	f.add("secrets", "secrets", "")
	f.golang()
	f.node()
	f.python()
	f.rust()
	f.make()
	if len(f.Found) == 0 {
		return nil, fmt.Errorf("%s has no go.mod, package.json, pyproject.toml, Cargo.toml or Makefile: write %s by hand, docs/gates.md shows how: %w", dir, gate.CatalogPath, ErrNoCatalog)
	}
	return f, nil
}

func (f *finder) add(name, kind, rest string) {
	if kind == "tests" {
		rest = "    weakened: ask\n" + rest
	}
	f.List = append(f.List, Proposal{name, "  - name: " + name + "\n    kind: " + kind + "\n" + rest, strings.Contains(rest, "command:")})
}

// read returns the text of a file; empty if it can't be read or is over maxManifest.
func (f *finder) read(name string) string {
	fi, err := f.root.Stat(name)
	if err != nil || !fi.Mode().IsRegular() || fi.Size() > maxManifest {
		return ""
	}
	r, err := f.root.Open(name)
	if err != nil {
		return ""
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, maxManifest))
	if err != nil {
		return ""
	}
	return string(b)
}

func (f *finder) has(name string) bool {
	_, err := f.root.Lstat(name)
	return err == nil
}

func (f *finder) hasAny(patterns ...string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		m, err := fs.Glob(f.root.FS(), p)
		return err == nil && len(m) > 0
	})
}

// note records why no signal uses a file, and what to do.
func (f *finder) note(name, what string) { f.notes[name] = what }

const installByHand = ", or write an install signal for it by hand, with an image: that has the program"

func (f *finder) golang() {
	mod := f.read("go.mod")
	if mod == "" {
		if f.has("go.work") {
			f.note("go.work", "there is no go.mod beside it: run carboy gate init in each module (--dir), or write its signals by hand, with go build DIR/... for each")
		}
		return
	}
	f.Found = append(f.Found, "go")
	rest := ""
	m, err := modfile.Parse("go.mod", []byte(mod), nil)
	switch {
	case f.has("vendor/modules.txt"):
		rest = "    env: {GOFLAGS: -mod=vendor}\n"
	case err == nil && slices.ContainsFunc(m.Require, func(r *modfile.Require) bool { return !local(m, r) }):
		if !f.has("go.sum") {
			f.note("go.sum", "it is not there, so nothing pins what go.mod asks for: run go mod tidy, and commit it")
		}
		f.add("modules", "install", "    command: [go, mod, download]\n    env: {GOPROXY: 'https://proxy.golang.org', GOMODCACHE: /workspace/.gate/mod, GOFLAGS: -modcacherw}\n    network: [proxy.golang.org, sum.golang.org]\n    keep: [.gate/mod]\n")
		rest = "    env: {GOMODCACHE: /workspace/.gate/mod}\n    after: [modules]\n"
	}
	rest += "    warm: [.cache/go-build]\n"
	f.add("go-build", "build", "    command: [go, build, ./...]\n"+rest)
	f.add("go-test", "tests", "    format: go\n    command: [go, test, -json, -count=1, ./...]\n"+rest)
}

// local reports whether a module is one of the tree's directories.
func local(m *modfile.File, r *modfile.Require) bool {
	return slices.ContainsFunc(m.Replace, func(x *modfile.Replace) bool {
		return x.Old.Path == r.Mod.Path && (x.Old.Version == "" || x.Old.Version == r.Mod.Version) && x.New.Version == ""
	})
}

// simpleScript matches a script without shell syntax.
var simpleScript = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_./=@ -]+$`) })

func (f *finder) node() {
	text := f.read("package.json")
	if text == "" {
		return
	}
	f.Found = append(f.Found, "node")
	var p struct {
		Scripts                                             map[string]string
		Dependencies, DevDependencies, OptionalDependencies map[string]string
	}
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		f.note("package.json", "it is no package.json: "+err.Error())
		return
	}
	rest := ""
	if len(p.Dependencies)+len(p.DevDependencies)+len(p.OptionalDependencies) > 0 {
		switch {
		case f.has("package-lock.json"), f.has("npm-shrinkwrap.json"):
			f.add("npm-ci", "install", "    command: [npm, ci, --ignore-scripts, --no-audit, --no-fund]\n    network: [registry.npmjs.org]\n    keep: [node_modules]\n")
			rest = "    after: [npm-ci]\n"
		case f.has("node_modules") && !f.hasAny("yarn.lock", "pnpm-lock.yaml", "bun.lock", "bun.lockb"):
			f.note("package-lock.json", "it is not there, so the packages are taken from node_modules as it lies here: commit it, or pin them with npm install --package-lock-only")
		default:
			other := false
			for _, lock := range []string{"pnpm-lock.yaml", "yarn.lock", "bun.lock", "bun.lockb"} {
				if f.has(lock) {
					other = true
					f.note(lock, "carboy gate init installs from package-lock.json only: commit one (npm install --package-lock-only)"+installByHand)
				}
			}
			if !other {
				f.note("package-lock.json", "it is not there, so nothing pins what package.json asks for: npm install --package-lock-only, and commit it")
			}
		}
	}
	if p.Scripts["build"] != "" {
		f.add("npm-build", "build", "    command: [npm, run, build]\n"+rest)
	}
	switch test := p.Scripts["test"]; {
	case strings.HasPrefix(test, "node --test") && simpleScript().MatchString(test) && !strings.Contains(test, "--test-reporter"):
		var more string
		for _, w := range strings.Fields(test)[2:] {
			more += ", '" + w + "'"
		}
		f.add("node-test", "tests", "    format: junit\n    runner: [node]\n    command: [node, --test, --test-reporter=junit, --test-reporter-destination=stdout, --test-reporter=spec, --test-reporter-destination=stderr"+more+"]\n"+rest)
	case strings.Contains(test, "vitest"):
		f.add("vitest", "tests", "    format: vitest\n    command: [npx, --no-install, vitest, run, --reporter=json, --outputFile=.gate-vitest.json]\n    results: .gate-vitest.json\n"+rest)
	case strings.Contains(test, "jest"):
		f.add("jest", "tests", "    format: jest\n    command: [npx, --no-install, jest, --ci, --cacheDirectory=/workspace/.gate-jest, --json, --outputFile=.gate-jest.json]\n    results: .gate-jest.json\n"+rest)
	case test != "" && !strings.Contains(test, "no test specified"):
		f.add("npm-test", "build", "    command: [npm, test]\n"+rest)
	}
}

// pytestOwn lists the files that hold only settings of pytest.
var pytestOwn = []string{"pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini"}

func (f *finder) python() {
	project, reqs := f.read("pyproject.toml"), f.read("requirements.txt")
	settings := project + f.read("setup.cfg") + f.read("tox.ini")
	for _, name := range pytestOwn {
		settings += f.read(name)
	}
	alone := f.hasAny(pytestOwn...) // counts when it is empty, too
	if settings+reqs+f.read("setup.py") == "" && !alone {
		return
	}
	f.Found = append(f.Found, "python")
	// The runner is loaded before what lies beside it: else a file pytest.py would be it.
	// Then pytest has to be told of modules that lie there, which a conftest.py does, too.
	// Paths are those of its settings: where it has none, a file that could have them is
	// named, in one word with -c, since what else it says is no judge.
	safe := "PYTHONSAFEPATH: '1'"
	own := alone || strings.Contains(project, "[tool.pytest") || strings.Contains(f.read("tox.ini"), "[pytest]") || strings.Contains(f.read("setup.cfg"), "[tool:pytest]")
	where, rest := "", ""
	var env []string
	pinned, err := gate.Requirements([]byte(reqs))
	switch {
	case err != nil:
		f.note("requirements.txt", err.Error()+"; nothing is installed from it: pip-compile --generate-hashes writes one that pins each package"+installByHand)
	case len(pinned) > 0:
		f.add("pip", "install", "    command: [python3, -m, pip, install, --no-deps, '--only-binary=:all:', --no-compile, --no-cache-dir, --target, .gate/site, -r, requirements.txt]\n    env: {PYTHONSAFEPATH: '1', PIP_DISABLE_PIP_VERSION_CHECK: '1'}\n    network: [pypi.org, files.pythonhosted.org]\n    keep: [.gate/site]\n")
		env = append(env, "PYTHONPATH: /workspace/.gate/site")
		rest = "    after: [pip]\n"
	default:
		noted := false
		for _, x := range [][2]string{{"uv.lock", "uv export --frozen -o requirements.txt"}, {"poetry.lock", "poetry export -o requirements.txt"}, {"pdm.lock", "pdm export -o requirements.txt"}, {"Pipfile.lock", "pipenv requirements --hash > requirements.txt"}} {
			if f.has(x[0]) {
				noted = true
				f.note(x[0], "carboy gate init installs from requirements.txt only: commit one ("+x[1]+")"+installByHand)
			}
		}
		var p struct {
			Project struct{ Dependencies []string }
		}
		if err := toml.Unmarshal([]byte(project), &p); err != nil {
			f.note("pyproject.toml", "it is no TOML: "+err.Error())
		} else if len(p.Project.Dependencies) > 0 && !noted {
			f.note("pyproject.toml", "nothing pins the dependencies that it asks for: pip-compile --generate-hashes -o requirements.txt, and commit it")
		}
	}
	variables := "    env: {" + strings.Join(append([]string{safe}, env...), ", ") + "}\n"
	switch {
	case strings.Contains(settings+reqs, "pytest") || alone || f.has("conftest.py"):
		switch {
		case strings.Contains(settings, "pythonpath"), f.has("conftest.py"):
		case own:
			where = ", -o, pythonpath=."
		default:
			for _, name := range []string{"pyproject.toml", "setup.cfg", "tox.ini", "requirements.txt"} {
				if f.read(name) != "" {
					where = ", -c" + name + ", -o, pythonpath=."
					break
				}
			}
		}
		f.add("pytest", "tests", "    format: pytest\n    command: [python3, -m, pytest, -q, -p, no:cacheprovider, -o, junit_family=xunit1"+where+", --junitxml=.gate-pytest.xml]\n    results: .gate-pytest.xml\n"+variables+rest)
	case f.hasAny("test*.py", "*/test*.py", "*/*/test*.py"):
		f.add("unittest", "build", "    command: [python3, -B, -m, unittest]\n"+variables+rest)
	default:
		f.note("tests", "no test*.py was found, so no signal runs tests of Python")
	}
}

func (f *finder) rust() {
	text := f.read("Cargo.toml")
	if text == "" {
		return
	}
	f.Found = append(f.Found, "rust")
	lock := f.read("Cargo.lock")
	var l struct {
		Package []struct{ Source string }
	}
	switch err := toml.Unmarshal([]byte(lock), &l); {
	case lock == "":
		f.note("Cargo.lock", "it is not there, so nothing pins what Cargo.toml asks for: cargo generate-lockfile, and commit it")
	case err != nil:
		f.note("Cargo.lock", "it is no TOML: "+err.Error())
	case slices.ContainsFunc(l.Package, func(p struct{ Source string }) bool { return p.Source != "" }) && !strings.Contains(f.read(".cargo/config.toml")+f.read(".cargo/config"), "replace-with"):
		f.note("Cargo.lock", "it asks for crates from outside, and carboy gate init fetches none: cargo vendor --locked, and commit vendor and .cargo/config.toml as it says"+installByHand)
	}
	f.add("cargo-test", "build", "    command: [cargo, test, --offline, --locked]\n    timeout: 30m\n")
}

func (f *finder) make() {
	for _, name := range []string{"GNUmakefile", "makefile", "Makefile"} {
		mk := f.read(name)
		if mk == "" {
			continue
		}
		f.Found = append(f.Found, "make")
		for _, target := range []string{"test", "check", "all"} {
			if !strings.Contains("\n"+mk, "\n"+target+":") {
				continue
			}
			always := ""
			if f.has(target) {
				always = "-B, " // what has the target's name would be taken for it
			}
			f.add("make-"+target, "build", "    command: [make, "+always+target+"]\n")
			return
		}
		f.note(name, "it has no target test, check or all: write a signal with the target that tests")
		return
	}
}
