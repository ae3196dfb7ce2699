package gate

import (
	"context"
	"encoding/json"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2"
	"golang.org/x/mod/modfile"
)

// runners are the files that decide what a catalog's signals run: whoever changes them
// judges the change. Files of tests are left out: they are what is judged.
type runners struct {
	named  map[string]string // the signal, by a file of the base that its command names
	looked map[string]string // so too, of files that a program looks for: new ones count
	shadow map[string]string // and of paths where the base has nothing, nor below
	vendor map[string]string // the signal, by the file that a directory of dependencies has
	obeyed []obeyedBy
	parsed map[string]makefile // of the base
}

// obeyedBy is a file that the program of a signal obeys by itself.
type obeyedBy struct {
	signal string
	files  []string
	part   func([]byte) string // what of it counts; nil: all
}

// settings are the files that programs obey by themselves, in whatever directory, by the
// words of a command or the format of its tests.
var settings = []struct {
	programs, files []string
	part            func([]byte) string
}{
	{pytests, []string{"pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "**/*.dist-info/**", "**/*.egg-info/**"}, nil},
	{pytests, []string{"pyproject.toml"}, tomlPart([]string{"tool", "pytest"})},
	{pytests, []string{"conftest.py"}, pytestHooks},
	{pytests, []string{"*.py"}, pytestHookDefs}, // a conftest.py can take them from there
	{append([]string{"python*"}, pytests...), []string{"sitecustomize.py", "usercustomize.py"}, nil},
	{[]string{"tox"}, []string{"tox.ini", "tox.toml", "setup.cfg"}, nil},
	{[]string{"tox"}, []string{"pyproject.toml"}, tomlPart([]string{"tool", "tox"})},
	{[]string{"nox"}, []string{"noxfile.py"}, nil},
	{[]string{"jest"}, []string{"jest.config.*", "babel.config.*", ".babelrc*"}, nil},
	{[]string{"vitest"}, []string{"vitest.config.*", "vitest.workspace.*", "vitest.projects.*", "vite.config.*"}, nil},
	{[]string{"jest", "vitest", "npx", "npm", "bun", "bunx"}, []string{".npmrc"}, nil},
	{[]string{"jest", "vitest", "npx", "npm", "pnpm", "yarn", "bun", "bunx", "node", "deno"}, []string{"**/node_modules/**"}, nil},
	{[]string{"bun", "bunx"}, []string{"bunfig.toml"}, nil},
	{[]string{"jest", "vitest"}, []string{"package.json"}, jsonPart("jest", "babel", "vitest")},
	{[]string{"npm", "pnpm", "yarn", "bun"}, []string{"package.json"}, jsonPart("scripts")},
	{[]string{"cargo"}, []string{"**/.cargo/**", "**/.config/nextest.toml", "rust-toolchain", "rust-toolchain.toml"}, nil},
	{[]string{"cargo"}, []string{"Cargo.toml"}, tomlPart([]string{"lib"}, []string{"bin"}, []string{"test"}, []string{"package", "autotests"}, []string{"package", "autobins"}, []string{"workspace", "members"}, []string{"workspace", "exclude"}, []string{"workspace", "default-members"}, []string{"patch"}, []string{"replace"}, []string{"profile"})},
	{[]string{"go"}, []string{"go.work"}, nil},
	{[]string{"go"}, []string{"go.mod"}, goReplaces},
	{[]string{"make", "gmake"}, append([]string{"*.mk"}, makefiles...), nil},
	{[]string{"just"}, []string{"[jJ][uU][sS][tT][fF][iI][lL][eE]", ".[jJ][uU][sS][tT][fF][iI][lL][eE]", "*.just"}, nil},
	{[]string{"mvn", "mvnw"}, []string{"pom.xml", "**/.mvn/**"}, nil},
	{[]string{"gradle", "gradlew"}, []string{"*.gradle", "*.gradle.kts", "gradle.properties", "**/gradle/**", "**/buildSrc/**"}, nil},
}

// vendored are files that make a directory one of dependencies, which programs take from
// the tree without asking whether these are what the lockfile pins.
var vendored = map[string][]string{"vendor/modules.txt": {"go"}, ".cargo-checksum.json": {"cargo"}}

// pytests are programs that run pytest, or may.
var pytests = []string{"pytest", "py.test*", "pytest-*", "tox", "nox"}

// makefiles are what make looks for in a directory, the first before the others.
var makefiles = []string{"GNUmakefile", "makefile", "Makefile"}

// runners finds them in the base.
func (c *Catalog) runners(ctx context.Context, base *Tree, names *aliases) (*runners, error) {
	r := &runners{named: map[string]string{}, looked: map[string]string{}, shadow: map[string]string{}, vendor: map[string]string{}}
	there := map[string]bool{}
	for _, f := range base.Files {
		for p := f.Path; p != "." && !there[p]; p = path.Dir(p) {
			there[p] = true
		}
	}
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
		words = append(words, s.format)
		runs := func(programs []string) bool {
			return slices.ContainsFunc(words, func(w string) bool { return w != "" && matches(programs, path.Base(w)) })
		}
		for _, x := range settings {
			if runs(x.programs) {
				r.obeyed = append(r.obeyed, obeyedBy{s.Name, x.files, x.part})
			}
		}
		for mark, programs := range vendored {
			if runs(programs) {
				r.vendor[mark] = s.Name
			}
		}
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

// why says what a difference decides, by the names that its file can be reached by; empty:
// nothing.
func (r *runners) why(ctx context.Context, d Difference, base, change *Tree, names []string) (string, error) {
	if r == nil {
		return "", nil
	}
	if s := r.named[d.Path]; s != "" {
		return "it is what signal " + s + " runs", nil
	}
	for _, n := range names {
		if s := r.looked[n]; s != "" {
			return "it is what signal " + s + " runs", nil
		}
		for p := n; p != "."; p = path.Dir(p) {
			if s := r.shadow[p]; s != "" {
				return "signal " + s + " takes it for what it is asked to run", nil
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
						return "it is of the dependencies that signal " + s + " takes from the tree", nil
					}
				}
			}
		}
		for _, o := range r.obeyed {
			if !matches(o.files, n) {
				continue
			}
			if o.part != nil {
				was, err := part(ctx, base, d.Path, o.part)
				if err != nil {
					return "", err
				}
				is, err := part(ctx, change, d.Path, o.part)
				if err != nil {
					return "", err
				}
				if was == is {
					continue
				}
			}
			return "what signal " + o.signal + " runs obeys it", nil
		}
	}
	return "", nil
}

// part is what of a file counts; of one that is not there, nothing, and of a link, where
// it leads.
func part(ctx context.Context, t *Tree, p string, of func([]byte) string) (string, error) {
	f, ok := t.Lookup(p)
	if !ok {
		return of(nil), nil
	}
	if f.Mode == Link {
		var to string
		err := t.Each(ctx, func(x File) bool { return x.Path == p }, func(_ File, b []byte) error { to = "link " + string(b); return nil })
		return to, err
	}
	b, err := t.Read(ctx, p)
	if err != nil {
		return "", err
	}
	return of(b), nil
}

// jsonPart takes some keys of an object; of what is none, all.
func jsonPart(keys ...string) func([]byte) string {
	return func(b []byte) string {
		var all map[string]any
		if len(b) > 0 && json.Unmarshal(b, &all) != nil {
			return string(b)
		}
		some := map[string]any{}
		for _, k := range keys {
			if v, ok := all[k]; ok {
				some[k] = v
			}
		}
		return canonical(some, b)
	}
}

// tomlPart takes what some paths of tables lead to; of what is no TOML, all.
func tomlPart(paths ...[]string) func([]byte) string {
	return func(b []byte) string {
		var all map[string]any
		if toml.Unmarshal(b, &all) != nil {
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

var pytestHook = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^.*(?:\bpytest_\w+|hookimpl|_pytest\b).*$`)
})

// pytestHookDefs are the lines of another file that make hooks or name plugins.
func pytestHookDefs(b []byte) string {
	return strings.Join(pytestHookDef().FindAllString(string(b), -1), "\n")
}

var pytestHookDef = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^.*(?:\bdef\s+pytest_\w+|\bpytest_\w+\s*=[^=]|\bhookimpl\b).*$`)
})

// pytestHooks are the lines of a conftest.py that name pytest's hooks, by which it says
// what became of a test. Fixtures are left out.
func pytestHooks(b []byte) string {
	var out []string
	for _, l := range pytestHook().FindAllString(string(b), -1) {
		out = append(out, strings.TrimSpace(l))
	}
	return strings.Join(out, "\n")
}
