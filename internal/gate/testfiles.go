package gate

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	udiff "github.com/aymanbagabas/go-udiff"
)

// defaultTestFiles are patterns of test files, and of files that only tests use: helpers,
// fixtures, snapshots, settings of runners.
var defaultTestFiles = append(slices.Clone(testNames),
	"*-test.*", "test-*.*", "*Tests.java", "*Test.kt", "*_spec.rb", "*_test.rb", "*Test.php",
	"**/test/**", "**/tests/**", "**/__tests__/**", "**/__mocks__/**", "**/__fixtures__/**", "**/__snapshots__/**", "**/testdata/**",
	"pytest.ini", "pytest.toml", ".pytest.ini", ".pytest.toml", "jest.config.*", "vitest.config.*", ".mocharc*",
)

// dependencyDirs hold other projects, whose tests are not this one's.
var dependencyDirs = []string{"node_modules", "vendor", "site-packages"}

// isTestFile reports whether a path belongs to the tests, as far as the signal's patterns
// say.
func (k testsKind) isTestFile(p string) bool {
	if len(k.files) > 0 {
		return matches(k.files, p)
	}
	return matches(defaultTestFiles, p) && !matches(dependencyDirs, path.Dir(p))
}

// filesText names the patterns of test files for people.
func (k testsKind) filesText() string {
	if len(k.files) > 0 {
		return "test_files of the catalog"
	}
	return "the default patterns"
}

// withTestsOf returns t with its test files taken out and those of base put in.
func (t *Tree) withTestsOf(ctx context.Context, base *Tree, isTest func(string) bool) (*Tree, error) {
	if err := errors.Join(t.hash(ctx), base.hash(ctx)); err != nil {
		return nil, err
	}
	out := &Tree{Name: t.Name + " with the tests of " + base.Name, Run: t.Run, sums: map[string][sha256.Size]byte{}}
	src := exchangedSource{own: t.contents(), base: base.contents(), isTest: isTest}
	take := func(from *Tree, tests bool) {
		for _, f := range from.Files {
			if isTest(f.Path) == tests {
				out.Files = append(out.Files, f)
				out.sums[f.Path] = from.sums[f.Path]
			}
		}
	}
	take(t, false)
	take(base, true)
	out.src = src
	return out.validate()
}

// exchangedSource reads test files from a base, and the others from another source.
type exchangedSource struct {
	own, base source
	isTest    func(string) bool
}

func (s exchangedSource) each(ctx context.Context, files []File, f func(File, []byte) error) error {
	var own, base []File
	for _, x := range files {
		if s.isTest(x.Path) {
			base = append(base, x)
		} else {
			own = append(own, x)
		}
	}
	for _, part := range []struct {
		from  source
		files []File
	}{{s.own, own}, {s.base, base}} {
		if len(part.files) == 0 {
			continue
		}
		if err := part.from.each(ctx, part.files, f); err != nil {
			return err
		}
	}
	return nil
}

// maxTestText bounds a test file that is compared, in bytes.
const maxTestText = 1 << 20

// testEdits are the test files that differ between base and change.
type testEdits struct {
	paths []string
	// digest is a SHA-256 over the change's version of all of them, in hexadecimal digits.
	// A person's approval of changed tests is for one version.
	digest string
	// Texts by path, of files that are not too large. A file that is missing has none.
	before, after map[string]string
	total         int // test files of the base
}

// findTestEdits compares the test files of base and change. All of them are inputs.
func findTestEdits(ctx context.Context, base, change *Tree, isTest func(string) bool) (*testEdits, error) {
	e := &testEdits{before: map[string]string{}, after: map[string]string{}}
	for _, f := range base.Files {
		if isTest(f.Path) {
			e.total++
		}
	}
	var err error
	if e.paths, err = differingFiles(ctx, base, change, isTest); err != nil {
		return nil, err
	}
	h := sha256.New()
	for _, p := range e.paths {
		f, ok := change.lookup(p)
		fmt.Fprintf(h, "%q %t %o %x\n", p, ok, f.Mode, change.sums[p])
	}
	e.digest = hex.EncodeToString(h.Sum(nil))
	for t, texts := range map[*Tree]map[string]string{base: e.before, change: e.after} {
		err := t.Each(ctx, func(f File) bool {
			_, differs := slices.BinarySearch(e.paths, f.Path)
			return differs && f.Mode != Link && f.Size <= maxTestText
		}, func(f File, b []byte) error {
			if bytes.IndexByte(b, 0) < 0 {
				texts[f.Path] = string(b)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return e, nil
}

// testPlace is a test's file in the base and its name there. edited: the change edits the
// file. If nobody knows the file, it is empty and the test counts as edited.
type testPlace struct {
	file, name string
	edited     bool
}

func (e *testEdits) place(id, format string, base *Tree, inv *inventory) testPlace {
	if format == "go" {
		return e.goPlace(id, base, inv)
	}
	name := id
	if i := strings.LastIndex(id, "::"); i >= 0 {
		name = id[i+2:]
	}
	name, _, _ = strings.Cut(name, "[") // its parameters
	file := inv.fileOf[id]
	if _, there := base.lookup(file); !there {
		return testPlace{"", name, true}
	}
	_, edited := slices.BinarySearch(e.paths, file)
	return testPlace{file, name, edited}
}

// goPlace is place for a test of Go. Its id has its package, not its file.
func (e *testEdits) goPlace(id string, base *Tree, inv *inventory) testPlace {
	pkg := ""
	for p := range inv.packages {
		if len(p) > len(pkg) && strings.HasPrefix(id, p+".") {
			pkg = p
		}
	}
	names := strings.Split(strings.TrimPrefix(id, pkg+"."), "/")
	for _, p := range e.paths {
		dir := path.Dir(p)
		_, module := base.lookup(path.Join(dir, "go.mod"))
		if dir != "." && !module && path.Base(dir) != path.Base(pkg) && pkg != "command-line-arguments" {
			continue
		}
		for _, n := range names { // that of a suite's method follows the suite's
			if strings.Contains(e.before[p], "func "+n+"(") || strings.Contains(e.before[p], ") "+n+"(") {
				return testPlace{p, n, true}
			}
		}
	}
	return testPlace{"", names[0], false}
}

// diff returns what changed about a test: of its part of the file, or else of the file. If
// nobody knows the file, each that differs may be it.
func (e *testEdits) diff(t testPlace) string {
	paths := []string{t.file}
	if t.file == "" {
		paths = e.paths
	}
	var part, whole strings.Builder
	for _, p := range paths {
		head := ""
		if t.file == "" {
			head = p + ":\n"
		}
		before, after := e.before[p], e.after[p]
		if b, a := blockOf(before, t.name), blockOf(after, t.name); b != "" && a != "" && b != a {
			part.WriteString(head + changedLines(b, a))
		}
		whole.WriteString(head + changedLines(before, after))
	}
	return cmp.Or(part.String(), whole.String())
}

// blockOf returns the lines of text from the first that has a name up to the next line
// that is indented no more; empty: none has it. Closing brackets are part of it. Runners
// put the names of enclosing blocks before a name.
func blockOf(text, name string) string {
	for name != "" && !strings.Contains(text, name) {
		_, name, _ = strings.Cut(name, " ")
	}
	if name == "" {
		return ""
	}
	start := strings.LastIndexByte(text[:strings.Index(text, name)], '\n') + 1
	indent := func(line string) int { return len(line) - len(strings.TrimLeft(line, " \t")) }
	end, depth, first := start, 0, true
	for line := range strings.Lines(text[start:]) {
		word := strings.TrimSpace(line)
		switch {
		case first:
			depth, first = indent(line), false
		case word == "" || indent(line) > depth || strings.ContainsAny(word[:1], ")]}"):
		default:
			return strings.TrimRight(text[start:end], "\n") + "\n"
		}
		end += len(line)
	}
	return text[start:end]
}

// changedLines returns the lines that differ between two texts, those of before marked
// with "-" and those of after with "+".
func changedLines(before, after string) string {
	var b strings.Builder
	add := func(mark, text string) {
		for line := range strings.Lines(text) {
			if b.Len() < 4*maxDetail {
				b.WriteString(mark + strings.TrimRight(line, "\n") + "\n")
			}
		}
	}
	for _, x := range udiff.Lines(before, after) {
		add("-", before[x.Start:x.End])
		add("+", x.New)
	}
	return b.String()
}
