package gate

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2"
	"github.com/tailscale/hujson"
	"golang.org/x/mod/modfile"
)

// controlFiles are the files of the base that decide what a catalog's signals run.
// Whoever changes one decides how the change is judged. Files of tests are not among
// them: they are what a change may edit.
type controlFiles struct {
	// Most maps hold the name of the signal that a path controls.
	started    map[string]string // by a file of the base that the command names
	candidates map[string]string // by a path where a program looks for a module
	shadowing  map[string]string // by a path where the base has nothing, and a new file would be used
	vendored   map[string]string // by an element of vendorMarks
	settings   map[int]string    // by an index of allSettings
	included   map[string]string // by a pattern that a makefile includes
	nodeSignal string            // the signal that runs JavaScript as Node does

	parsed map[string]makefile // makefiles of the base

	baseParts, changeParts map[settingKey]string // relevant parts of settings on both sides

	installed map[string]bool // names of Node packages that the base has, or a phase opened
	impostors map[string]bool // package.json files that newly take one of these names
}

// settingKey names a file and the entry of allSettings that it matches.
type settingKey struct {
	at   int
	file string
}

// allSettings lists the files that programs obey by themselves, in any directory. A
// program counts as run if a command names it, the format of its tests implies it, or a
// phase was seen to run it.
var allSettings = sync.OnceValue(func() []programSettings {
	return []programSettings{
		{pytestPrograms, []string{"pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "**/*.dist-info/**", "**/*.egg-info/**"}, nil},
		{pytestPrograms, []string{"pyproject.toml"}, tomlPart([]string{"tool", "pytest"})},
		{pytestPrograms, []string{"conftest.py"}, pytestHooks},
		{pytestPrograms, []string{"*.py"}, pytestHookDefs}, // a conftest.py can import hooks from there
		{append([]string{"python*"}, pytestPrograms...), []string{"sitecustomize", "sitecustomize.*", "usercustomize", "usercustomize.*", "**/site-packages/**"}, nil},
		{[]string{"tox"}, []string{"tox.ini", "tox.toml", "setup.cfg"}, nil},
		{[]string{"tox"}, []string{"pyproject.toml"}, tomlPart([]string{"tool", "tox"})},
		{[]string{"nox"}, []string{"noxfile.py"}, nil},
		{[]string{"jest"}, []string{"jest.config.*", "babel.config.*", ".babelrc*"}, nil},
		{[]string{"vitest"}, []string{"vitest.config.*", "vitest.workspace.*", "vitest.projects.*", "vite.config.*"}, nil},
		{[]string{"jest", "vitest", "npx", "npm", "pnpm", "bun", "bunx"}, []string{".npmrc"}, nil},
		{nodePrograms, []string{"**/node_modules/**"}, nil},
		{[]string{"mocha", "_mocha"}, []string{".mocharc*"}, nil},
		{[]string{"ava"}, []string{"ava.config.*"}, nil},
		{[]string{"playwright"}, []string{"playwright.config.*"}, nil},
		{[]string{"pnpm"}, []string{".pnpmfile.*", "pnpm-workspace.yaml"}, nil},
		{[]string{"yarn"}, []string{".yarnrc*", "**/.yarn/**", ".pnp.*"}, nil},
		{[]string{"bun", "bunx"}, []string{"bunfig.toml"}, nil},
		{[]string{"deno"}, []string{"deno.json", "deno.jsonc"}, nil},
		{[]string{"tsx", "ts-node", "bun", "bunx", "deno"}, []string{"tsconfig*.json", "jsconfig.json"}, jsoncPart([]string{"extends"}, []string{"compilerOptions", "paths"}, []string{"compilerOptions", "baseUrl"})},
		{[]string{"jest", "vitest", "mocha", "_mocha", "ava"}, []string{"package.json"}, jsonPart([]string{"jest"}, []string{"babel"}, []string{"vitest"}, []string{"mocha"}, []string{"ava"})},
		{[]string{"npm", "pnpm", "yarn", "bun"}, []string{"package.json"}, jsonPart([]string{"scripts"})},
		{[]string{"cargo"}, []string{"**/.cargo/**", "**/.config/nextest.toml", "rust-toolchain", "rust-toolchain.toml"}, nil},
		{[]string{"cargo"}, []string{"Cargo.toml"}, tomlPart([]string{"lib"}, []string{"bin"}, []string{"test"}, []string{"package", "autotests"}, []string{"package", "autobins"}, []string{"workspace", "members"}, []string{"workspace", "exclude"}, []string{"workspace", "default-members"}, []string{"patch"}, []string{"replace"}, []string{"profile"})},
		{[]string{"go"}, []string{"go.work"}, nil},
		{[]string{"go"}, []string{"go.mod"}, goReplaces},
		{[]string{"make", "gmake"}, append([]string{"*.mk"}, makefiles...), nil},
		{[]string{"just"}, []string{"[jJ][uU][sS][tT][fF][iI][lL][eE]", ".[jJ][uU][sS][tT][fF][iI][lL][eE]", "*.just"}, nil},
		{[]string{"mvn", "mvnw"}, []string{"pom.xml", "**/.mvn/**"}, nil},
		{[]string{"gradle", "gradlew"}, []string{"*.gradle", "*.gradle.kts", "gradle.properties", "**/gradle/**", "**/buildSrc/**"}, nil},
	}
})

type programSettings struct {
	programs, files []string
	part            func([]byte) string
}

// vendorMarks are files that mark a directory of dependencies, which programs use without
// comparing it to the lockfile.
var vendorMarks = map[string][]string{"vendor/modules.txt": {"go"}, ".cargo-checksum.json": {"cargo"}}

// pytestPrograms are programs that run pytest, or may.
var pytestPrograms = []string{"pytest", "py.test*", "pytest-*", "tox", "nox"}

// nodePrograms are programs that run JavaScript as Node does, or may.
var nodePrograms = []string{"node", "npm", "npx", "pnpm", "yarn", "bun", "bunx", "deno", "jest", "vitest", "mocha", "_mocha", "ava", "playwright", "tsx", "ts-node"}

// makefiles are the names that make looks for in a directory, in its order.
var makefiles = []string{"GNUmakefile", "makefile", "Makefile"}

// controlFiles finds the control files of the base.
func (c *Catalog) controlFiles(ctx context.Context, base *Tree, names *linkAliases) (*controlFiles, error) {
	r := &controlFiles{started: map[string]string{}, candidates: map[string]string{}, shadowing: map[string]string{}, vendored: map[string]string{}, settings: map[int]string{}, included: map[string]string{}, installed: map[string]bool{}}
	there := base.names()
	named := map[string]string{}
	for _, s := range c.Signals {
		words, starts := commandWords(s.Command), startedWords(s.Command, there)
		for i, w := range words {
			p := path.Clean(w)
			// A file that is started counts in any directory, also in one of tests.
			if badPath(p) == "" && (!isTestFile(p) || starts[w] && !isTestName(p)) {
				named[p] = s.Name
			}
			if i == 0 || words[i-1] != "-m" && words[i-1] != "-p" || !slices.ContainsFunc(words[:i], isPython) {
				continue
			}
			module := strings.ReplaceAll(w, ".", "/")
			for _, f := range []string{module + ".py", module + "/__init__.py", module + "/__main__.py"} {
				if badPath(f) == "" && !isTestName(f) {
					r.candidates[f] = s.Name
				}
			}
			if top, _, _ := strings.Cut(module, "/"); badPath(top) == "" && !there[top] && !there[top+".py"] {
				r.shadowing[top] = s.Name
			}
		}
		if slices.ContainsFunc(words, isMake) {
			if err := r.addMake(ctx, base, names, there, s.Name, words); err != nil {
				return nil, err
			}
		}
		r.addPrograms(s.Name, append(words, s.format))
	}
	for _, f := range base.Files {
		for _, n := range names.names(f.Path) {
			if s := named[n]; s != "" {
				r.started[f.Path] = s
			}
		}
	}
	return r, nil
}

// addPrograms records that a signal runs programs of these names.
func (r *controlFiles) addPrograms(signal string, names []string) {
	runs := func(programs []string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return n != "" && matches(programs, path.Base(n)) })
	}
	for i, x := range allSettings() {
		if r.settings[i] == "" && runs(x.programs) {
			r.settings[i] = signal
		}
	}
	for mark, programs := range vendorMarks {
		if runs(programs) {
			r.vendored[mark] = signal
		}
	}
	if r.nodeSignal == "" && runs(nodePrograms) {
		r.nodeSignal = signal
	}
}

// observedPrograms returns the names of programs that a phase was seen to run, and of the
// Python and Node packages that it opened, since some of these are programs.
func (p *Phase) observedPrograms() []string {
	if p.Observed == nil {
		return nil
	}
	names := map[string]bool{}
	for _, x := range p.Observed.Execs {
		names[path.Base(x.Path)] = true
		names[path.Base(x.Asked)] = true
	}
	for _, list := range [][]string{p.Observed.Opened, p.Observed.TreeRead} {
		for _, f := range list {
			for _, in := range []string{"site-packages/", "dist-packages/", inNode} {
				if i := strings.LastIndex(f, in); i >= 0 {
					// A name with a dot holds metadata, or links to programs.
					if name, _, below := strings.Cut(f[i+len(in):], "/"); below && !strings.Contains(name, ".") {
						names[name] = true
					}
				}
			}
		}
	}
	delete(names, ".")
	return slices.Collect(maps.Keys(names))
}

const inNode = "node_modules/"

// addOpenedPackages adds the names of Node packages that a phase opened.
func (p *Phase) addOpenedPackages(names map[string]bool) {
	if p.Observed == nil {
		return
	}
	for _, list := range [][]string{p.Observed.Opened, p.Observed.TreeRead} {
		for _, f := range list {
			i := strings.LastIndex(f, inNode)
			if i < 0 {
				continue
			}
			name := strings.SplitN(f[i+len(inNode):], "/", 3)
			if scoped := strings.HasPrefix(name[0], "@"); scoped && len(name) > 1 {
				names[name[0]+"/"+name[1]] = true
			} else if !scoped {
				names[name[0]] = true
			}
		}
	}
}

// commandWords returns the words of a command, including those of a script for a shell.
func commandWords(command []string) (out []string) {
	for _, a := range command {
		out = append(out, strings.FieldsFunc(a, func(r rune) bool { return strings.ContainsRune(" \t\n;&|()'\"`", r) })...)
	}
	return out
}

// startedWords returns the words of a command that it starts: programs, and scripts that
// are passed to a shell or another interpreter. there holds the names of the tree.
func startedWords(command []string, there map[string]bool) map[string]bool {
	out := map[string]bool{}
	parts := [][]string{nil}
	for _, a := range command {
		for i, p := range strings.FieldsFunc(a, func(r rune) bool { return strings.ContainsRune("\n;&|()`", r) }) {
			if i > 0 {
				parts = append(parts, nil)
			}
			parts[len(parts)-1] = append(parts[len(parts)-1], commandWords([]string{p})...)
		}
	}
	for _, words := range parts {
		if len(words) > 0 {
			out[words[0]] = true
		}
		for i, w := range words {
			if !matches(interpreters, path.Base(w)) {
				continue
			}
			for i++; i < len(words); i++ {
				was, w := words[i-1], words[i]
				if strings.HasPrefix(w, "-") && w != "--test" || strings.HasPrefix(w, "+") {
					continue
				}
				// The word after an option may be the option's value.
				if strings.HasPrefix(was, "-") && was != "-m" && !path.IsAbs(w) && !there[path.Clean(w)] {
					continue
				}
				out[w] = true
				break
			}
		}
	}
	return out
}

// startedFiles returns the files of the tree that a phase was seen to start, as programs
// or scripts, and that its command names, under any prefix.
func (p *Phase) startedFiles() (out []string) {
	if p.Observed == nil {
		return nil
	}
	var words []string
	for _, w := range commandWords(p.Command) {
		if w = path.Clean(w); badPath(w) == "" {
			words = append(words, w)
		}
	}
	for _, x := range p.Observed.Execs {
		for _, name := range []string{x.Path, x.Asked} {
			rel, ok := inTree(name)
			if ok && !isTestName(rel) && !slices.Contains(out, rel) && slices.ContainsFunc(words, func(w string) bool { return rel == w || strings.HasSuffix(rel, "/"+w) }) {
				out = append(out, rel)
			}
		}
	}
	return out
}

var interpreters = []string{"sh", "*sh", "source", ".", "python*", "pypy*", "node", "deno", "bun", "ruby", "perl", "php", "lua", "Rscript"}

func isPython(w string) bool {
	b := path.Base(w)
	return strings.HasPrefix(b, "python") || strings.HasPrefix(b, "pypy")
}

// readSettings reads the relevant parts of the files that differ.
func (r *controlFiles) readSettings(ctx context.Context, diff []Difference, base, change *Tree, names *linkAliases) error {
	if err := r.readPackages(ctx, diff, base, change); err != nil {
		return err
	}
	r.baseParts, r.changeParts = map[settingKey]string{}, map[settingKey]string{}
	want := map[string][]int{}
	for _, d := range diff {
		known := names.names(d.Path)
		for at := range r.settings {
			if x := allSettings()[at]; x.part != nil && slices.ContainsFunc(known, func(n string) bool { return matches(x.files, n) }) {
				want[d.Path] = append(want[d.Path], at)
				none := x.part(nil)
				r.baseParts[settingKey{at, d.Path}], r.changeParts[settingKey{at, d.Path}] = none, none
			}
		}
	}
	for t, parts := range map[*Tree]map[settingKey]string{base: r.baseParts, change: r.changeParts} {
		err := t.Each(ctx, func(x File) bool { return want[x.Path] != nil }, func(x File, b []byte) error {
			for _, at := range want[x.Path] {
				if x.Mode == Link {
					parts[settingKey{at, x.Path}] = "link " + string(b)
				} else {
					parts[settingKey{at, x.Path}] = allSettings()[at].part(b)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// nodePackage is the file that names a Node package. Files below it import the package
// itself by that name, in preference to an installed one (Node, "Self-referencing a
// package using its name").
const nodePackage = "package.json"

// readPackages finds files of the change that give their package the name of an installed
// one.
func (r *controlFiles) readPackages(ctx context.Context, diff []Difference, base, change *Tree) error {
	changed := map[string]bool{}
	for _, d := range diff {
		if path.Base(d.Path) == nodePackage && d.Change != nil {
			changed[d.Path] = true
		}
	}
	if r.nodeSignal == "" || len(changed) == 0 {
		return nil
	}
	r.impostors = map[string]bool{}
	was := map[string]string{}
	err := base.Each(ctx, func(x File) bool {
		return path.Base(x.Path) == nodePackage || x.Path == "package-lock.json"
	}, func(x File, b []byte) error {
		var p struct {
			Name                                                                            any
			Dependencies, DevDependencies, PeerDependencies, OptionalDependencies, Packages map[string]any
		}
		if json.Unmarshal(b, &p) != nil {
			return nil
		}
		if path.Base(x.Path) == nodePackage {
			was[x.Path], _ = p.Name.(string)
		}
		for _, list := range []map[string]any{p.Dependencies, p.DevDependencies, p.PeerDependencies, p.OptionalDependencies, p.Packages} {
			for name := range list {
				if i := strings.LastIndex(name, inNode); i >= 0 {
					name = name[i+len(inNode):]
				}
				r.installed[name] = true
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return change.Each(ctx, func(x File) bool { return changed[x.Path] }, func(x File, b []byte) error {
		var p map[string]any
		if json.Unmarshal(b, &p) != nil {
			return nil // Node refuses it
		}
		name, _ := p["name"].(string)
		r.impostors[x.Path] = r.installed[name] && was[x.Path] != name
		return nil
	})
}

// reason says which signal a difference controls, and how; empty: none. names are all
// names of the file. Call readSettings first.
func (r *controlFiles) reason(d Difference, base, change *Tree, names []string) string {
	if r == nil {
		return ""
	}
	if s := r.started[d.Path]; s != "" {
		return "it is what signal " + s + " runs"
	}
	if r.impostors[d.Path] {
		return "what signal " + r.nodeSignal + " runs takes it for the installed package of its name"
	}
	for _, n := range names {
		if s := r.candidates[n]; s != "" {
			return "it is what signal " + s + " runs"
		}
		for p := n; p != "."; p = path.Dir(p) {
			if s := r.shadowing[p]; s != "" {
				return "signal " + s + " takes it for what it is asked to run"
			}
			for mark, s := range r.vendored {
				// A mark either names its directory, too, or counts in any.
				of := path.Dir(mark)
				if of != "." && of != path.Base(p) {
					continue
				}
				for _, t := range []*Tree{base, change} {
					_, marked := t.lookup(path.Join(p, path.Base(mark)))
					if l, ok := t.lookup(p); marked || ok && l.Mode == Link && of != "." {
						return "it is of the dependencies that signal " + s + " takes from the tree"
					}
				}
			}
		}
		for pattern, s := range r.included {
			if match(pattern, n) {
				return "what signal " + s + " runs obeys it"
			}
		}
		for at, x := range allSettings() {
			s, key := r.settings[at], settingKey{at, d.Path}
			if s != "" && matches(x.files, n) && (x.part == nil || r.baseParts[key] != r.changeParts[key]) {
				return "what signal " + s + " runs obeys it"
			}
		}
	}
	return ""
}

// jsonPart returns a function that extracts some paths of a JSON object. For what is no
// object it returns all of the text.
func jsonPart(paths ...[]string) func([]byte) string {
	return partOf(func(b []byte, v any) error {
		if len(b) == 0 {
			return nil
		}
		return json.Unmarshal(b, v)
	}, paths)
}

// jsoncPart is jsonPart for JSON with comments and trailing commas, as TypeScript reads
// it.
func jsoncPart(paths ...[]string) func([]byte) string {
	return func(b []byte) string {
		if plain, err := hujson.Standardize(bytes.Clone(b)); err == nil {
			b = plain
		}
		return jsonPart(paths...)(b)
	}
}

// tomlPart returns a function that extracts some paths of tables. For what is no TOML it
// returns all of the text.
func tomlPart(paths ...[]string) func([]byte) string { return partOf(toml.Unmarshal, paths) }

func partOf(unmarshal func([]byte, any) error, paths [][]string) func([]byte) string {
	return func(b []byte) string {
		var all map[string]any
		if unmarshal(b, &all) != nil {
			return string(b)
		}
		some := map[string]any{}
		for _, keys := range paths {
			var v any = all
			for _, k := range keys {
				m, _ := v.(map[string]any)
				v = m[k]
			}
			if v != nil {
				some[strings.Join(keys, ".")] = v
			}
		}
		return canonical(some, b)
	}
}

// goReplaces returns the replace directives of go.mod.
func goReplaces(b []byte) string {
	f, err := modfile.Parse("go.mod", b, nil)
	if err != nil {
		return string(b)
	}
	var out []string
	for _, r := range f.Replace {
		out = append(out, r.Old.String()+" => "+r.New.String())
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// canonical encodes v so that equal values have equal texts.
func canonical(v map[string]any, whole []byte) string {
	b, err := json.Marshal(v)
	if err != nil {
		return string(whole) // NaN or infinity, which TOML allows
	}
	return string(b)
}

var (
	pytestHook = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`\bpytest_\w+|hookimpl|_pytest\b`)
	})
	// pytestModule matches the name of a plugin's module, or of something in it.
	pytestModule = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^\s*(?:import|from)\s+pytest_\w+|(?:^|[^.\w])pytest_\w+\.\w`)
	})
	pytestOwn = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`pytest_(?:plugin|addhooks|addoption|configure|unconfigure|cmdline|load|collect|ignore|itemcollected|deselected|make|pyc|pyfunc|generate|runtest|report|fixture|session|assert|terminal|warning|markeval|internalerror|keyboard|exception|enter|leave)`)
	})
)

// pytestHookDefs returns the lines that define hooks or name plugins, in files other than
// conftest.py.
func pytestHookDefs(b []byte) string {
	return strings.Join(pytestHookDef().FindAllString(string(b), -1), "\n")
}

var pytestHookDef = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^.*(?:\bdef\s+pytest_\w+|\bpytest_\w+\s*=[^=]|\bhookimpl\b).*$`)
})

// pytestHooks returns the lines of a conftest.py that name pytest's hooks, which can
// alter a test's result. It leaves out fixtures and plugin modules.
func pytestHooks(b []byte) string {
	var out []string
	for l := range strings.Lines(string(b)) {
		l = strings.TrimSpace(l)
		hooks := pytestModule().ReplaceAllStringFunc(l, func(s string) string {
			if pytestOwn().MatchString(s) {
				return s
			}
			return ""
		})
		if pytestHook().MatchString(hooks) {
			out = append(out, l)
		}
	}
	return strings.Join(out, "\n")
}
