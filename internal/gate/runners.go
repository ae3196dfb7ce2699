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

// runners are the files that decide what a catalog's signals run: whoever changes them
// judges the change. Files of tests are left out: they are what is judged.
type runners struct {
	named  map[string]string // the signal, by a file of the base that its command names
	looked map[string]string // so too, of files that a program looks for: new ones count
	shadow map[string]string // and of paths where the base has nothing, nor below
	vendor map[string]string // the signal, by the file that a directory of dependencies has
	obeyed map[int]string    // the signal, by the place in settings

	node     string              // the signal that runs JavaScript as Node does
	included map[string]string   // the signal, by a pattern that a Makefile includes
	parsed   map[string]makefile // of the base

	was, is map[setting]string // what counts of the files of settings, on base and change

	installed map[string]bool // packages of Node that the base has, or a phase opened, by name
	poses     map[string]bool // files that say to be one of these, and did not on the base
}

// setting is a file by its place in settings.
type setting struct {
	at   int
	file string
}

// settings are the files that programs obey by themselves, in whatever directory, by the
// words of a command, the format of its tests, or what was seen to run. part is what of a
// file counts; nil: all.
var settings = sync.OnceValue(func() []programSettings {
	return []programSettings{
		{pytests, []string{"pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "**/*.dist-info/**", "**/*.egg-info/**"}, nil},
		{pytests, []string{"pyproject.toml"}, tomlPart([]string{"tool", "pytest"})},
		{pytests, []string{"conftest.py"}, pytestHooks},
		{pytests, []string{"*.py"}, pytestHookDefs}, // a conftest.py can take them from there
		{append([]string{"python*"}, pytests...), []string{"sitecustomize", "sitecustomize.*", "usercustomize", "usercustomize.*", "**/site-packages/**"}, nil},
		{[]string{"tox"}, []string{"tox.ini", "tox.toml", "setup.cfg"}, nil},
		{[]string{"tox"}, []string{"pyproject.toml"}, tomlPart([]string{"tool", "tox"})},
		{[]string{"nox"}, []string{"noxfile.py"}, nil},
		{[]string{"jest"}, []string{"jest.config.*", "babel.config.*", ".babelrc*"}, nil},
		{[]string{"vitest"}, []string{"vitest.config.*", "vitest.workspace.*", "vitest.projects.*", "vite.config.*"}, nil},
		{[]string{"jest", "vitest", "npx", "npm", "pnpm", "bun", "bunx"}, []string{".npmrc"}, nil},
		{nodes, []string{"**/node_modules/**"}, nil},
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

// vendored are files that make a directory one of dependencies, which programs take from
// the tree without asking whether these are what the lockfile pins.
var vendored = map[string][]string{"vendor/modules.txt": {"go"}, ".cargo-checksum.json": {"cargo"}}

// pytests are programs that run pytest, or may.
var pytests = []string{"pytest", "py.test*", "pytest-*", "tox", "nox"}

// nodes are programs that run JavaScript as Node does, or may.
var nodes = []string{"node", "npm", "npx", "pnpm", "yarn", "bun", "bunx", "deno", "jest", "vitest", "mocha", "_mocha", "ava", "playwright", "tsx", "ts-node"}

// makefiles are what make looks for in a directory, the first before the others.
var makefiles = []string{"GNUmakefile", "makefile", "Makefile"}

// runners finds them in the base.
func (c *Catalog) runners(ctx context.Context, base *Tree, names *aliases) (*runners, error) {
	r := &runners{named: map[string]string{}, looked: map[string]string{}, shadow: map[string]string{}, vendor: map[string]string{}, obeyed: map[int]string{}, included: map[string]string{}, installed: map[string]bool{}}
	there := base.names()
	named := map[string]string{}
	for _, s := range c.Signals {
		words, starts := wordsOf(s.Command), started(s.Command, there)
		for i, w := range words {
			p := path.Clean(w)
			// What is started judges, in whatever directory it lies.
			if badPath(p) == "" && (!isTestFile(p) || starts[w] && !isTestName(p)) {
				named[p] = s.Name
			}
			if i == 0 || words[i-1] != "-m" && words[i-1] != "-p" || !slices.ContainsFunc(words[:i], isPython) {
				continue
			}
			module := strings.ReplaceAll(w, ".", "/")
			for _, f := range []string{module + ".py", module + "/__init__.py", module + "/__main__.py"} {
				if badPath(f) == "" && !isTestName(f) {
					r.looked[f] = s.Name
				}
			}
			if top, _, _ := strings.Cut(module, "/"); badPath(top) == "" && !there[top] && !there[top+".py"] {
				r.shadow[top] = s.Name
			}
		}
		if slices.ContainsFunc(words, isMake) {
			if err := r.make(ctx, base, names, there, s.Name, words); err != nil {
				return nil, err
			}
		}
		r.run(s.Name, append(words, s.format))
	}
	for _, f := range base.Files {
		for _, n := range names.of(f.Path) {
			if s := named[n]; s != "" {
				r.named[f.Path] = s
			}
		}
	}
	return r, nil
}

// run takes that a signal runs programs of these names, if some are such.
func (r *runners) run(signal string, names []string) {
	runs := func(programs []string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return n != "" && matches(programs, path.Base(n)) })
	}
	for i, x := range settings() {
		if r.obeyed[i] == "" && runs(x.programs) {
			r.obeyed[i] = signal
		}
	}
	for mark, programs := range vendored {
		if runs(programs) {
			r.vendor[mark] = signal
		}
	}
	if r.node == "" && runs(nodes) {
		r.node = signal
	}
}

// seenToRun are the names of what a phase was seen to run: programs, and the packages of
// Python and of Node that it opened, of which some are programs.
func (p *Phase) seenToRun() []string {
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
					// One with a dot has metadata, or links to programs.
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

// openedPackages takes the names of packages of Node that a phase opened.
func (p *Phase) openedPackages(names map[string]bool) {
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

// wordsOf are the words of a command, also of one that a shell gets.
func wordsOf(command []string) (out []string) {
	for _, a := range command {
		out = append(out, strings.FieldsFunc(a, func(r rune) bool { return strings.ContainsRune(" \t\n;&|()'\"`", r) })...)
	}
	return out
}

// started are the words of a command that it starts: programs, and the scripts that a
// shell or another interpreter gets. there are the names of the tree.
func started(command []string, there map[string]bool) map[string]bool {
	out := map[string]bool{}
	parts := [][]string{nil}
	for _, a := range command {
		for i, p := range strings.FieldsFunc(a, func(r rune) bool { return strings.ContainsRune("\n;&|()`", r) }) {
			if i > 0 {
				parts = append(parts, nil)
			}
			parts[len(parts)-1] = append(parts[len(parts)-1], wordsOf([]string{p})...)
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
				// What stands behind an option may be its own.
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

// startedByWord are files of the tree that a phase's program was, or the script that it
// was given to, where the command names them: whatever stands before them there.
func (p *Phase) startedByWord() (out []string) {
	if p.Observed == nil {
		return nil
	}
	var words []string
	for _, w := range wordsOf(p.Command) {
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

// read takes what counts of the files that differ.
func (r *runners) read(ctx context.Context, diff []Difference, base, change *Tree, names *aliases) error {
	if err := r.readPackages(ctx, diff, base, change); err != nil {
		return err
	}
	r.was, r.is = map[setting]string{}, map[setting]string{}
	want := map[string][]int{}
	for _, d := range diff {
		known := names.of(d.Path)
		for at := range r.obeyed {
			if x := settings()[at]; x.part != nil && slices.ContainsFunc(known, func(n string) bool { return matches(x.files, n) }) {
				want[d.Path] = append(want[d.Path], at)
				none := x.part(nil)
				r.was[setting{at, d.Path}], r.is[setting{at, d.Path}] = none, none
			}
		}
	}
	for t, parts := range map[*Tree]map[setting]string{base: r.was, change: r.is} {
		err := t.Each(ctx, func(x File) bool { return want[x.Path] != nil }, func(x File, b []byte) error {
			for _, at := range want[x.Path] {
				if x.Mode == Link {
					parts[setting{at, x.Path}] = "link " + string(b)
				} else {
					parts[setting{at, x.Path}] = settings()[at].part(b)
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

// nodePackage is the file that gives a package of Node its name. What lies below imports
// the package itself by it, before one that is installed (Node, "Self-referencing a
// package using its name").
const nodePackage = "package.json"

// readPackages finds files of the change that take the names of what is installed.
func (r *runners) readPackages(ctx context.Context, diff []Difference, base, change *Tree) error {
	changed := map[string]bool{}
	for _, d := range diff {
		if path.Base(d.Path) == nodePackage && d.Change != nil {
			changed[d.Path] = true
		}
	}
	if r.node == "" || len(changed) == 0 {
		return nil
	}
	r.poses = map[string]bool{}
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
		r.poses[x.Path] = r.installed[name] && was[x.Path] != name
		return nil
	})
}

// why says what a difference decides, by the names that its file can be reached by; empty:
// nothing. What differs was read.
func (r *runners) why(d Difference, base, change *Tree, names []string) string {
	if r == nil {
		return ""
	}
	if s := r.named[d.Path]; s != "" {
		return "it is what signal " + s + " runs"
	}
	if r.poses[d.Path] {
		return "what signal " + r.node + " runs takes it for the installed package of its name"
	}
	for _, n := range names {
		if s := r.looked[n]; s != "" {
			return "it is what signal " + s + " runs"
		}
		for p := n; p != "."; p = path.Dir(p) {
			if s := r.shadow[p]; s != "" {
				return "signal " + s + " takes it for what it is asked to run"
			}
			for mark, s := range r.vendor {
				// A mark names its directory, too, or is in any.
				of := path.Dir(mark)
				if of != "." && of != path.Base(p) {
					continue
				}
				for _, t := range []*Tree{base, change} {
					_, marked := t.Lookup(path.Join(p, path.Base(mark)))
					if l, ok := t.Lookup(p); marked || ok && l.Mode == Link && of != "." {
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
		for at, x := range settings() {
			s, key := r.obeyed[at], setting{at, d.Path}
			if s != "" && matches(x.files, n) && (x.part == nil || r.was[key] != r.is[key]) {
				return "what signal " + s + " runs obeys it"
			}
		}
	}
	return ""
}

// jsonPart takes what some paths of objects lead to; of what is none, all.
func jsonPart(paths ...[]string) func([]byte) string {
	return partOf(func(b []byte, v any) error {
		if len(b) == 0 {
			return nil
		}
		return json.Unmarshal(b, v)
	}, paths)
}

// jsoncPart is jsonPart with comments and commas at ends, as TypeScript has them.
func jsoncPart(paths ...[]string) func([]byte) string {
	return func(b []byte) string {
		if plain, err := hujson.Standardize(bytes.Clone(b)); err == nil {
			b = plain
		}
		return jsonPart(paths...)(b)
	}
}

// tomlPart takes what some paths of tables lead to; of what is no TOML, all.
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

// goReplaces are what go.mod puts in the place of modules.
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

// canonical is the same for what means the same.
func canonical(v map[string]any, whole []byte) string {
	b, err := json.Marshal(v)
	if err != nil {
		return string(whole) // a number that is none, as TOML has them
	}
	return string(b)
}

var (
	pytestHook = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`\bpytest_\w+|hookimpl|_pytest\b`)
	})
	// pytestModule is where a plugin's module is named, or something of it.
	pytestModule = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^\s*(?:import|from)\s+pytest_\w+|(?:^|[^.\w])pytest_\w+\.\w`)
	})
	pytestOwn = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`pytest_(?:plugin|addhooks|addoption|configure|unconfigure|cmdline|load|collect|ignore|itemcollected|deselected|make|pyc|pyfunc|generate|runtest|report|fixture|session|assert|terminal|warning|markeval|internalerror|keyboard|exception|enter|leave)`)
	})
)

// pytestHookDefs are the lines of another file that make hooks or name plugins.
func pytestHookDefs(b []byte) string {
	return strings.Join(pytestHookDef().FindAllString(string(b), -1), "\n")
}

var pytestHookDef = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^.*(?:\bdef\s+pytest_\w+|\bpytest_\w+\s*=[^=]|\bhookimpl\b).*$`)
})

// pytestHooks are the lines of a conftest.py that name pytest's hooks, by which it says
// what became of a test. Fixtures are left out, and modules of plugins.
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
