package gate

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// assertionChanges count how tests changed. They say nothing about whether a test is
// still good for something: the base's tests on the change's code do.
type assertionChanges struct {
	tests, removed, added int
	fewer                 []Finding // tests of Go, or else files, with fewer assertions
}

// assertions compares the test files that differ: tests of Go by their syntax trees,
// others by lines that look like assertions.
func (e *testEdits) assertions() assertionChanges {
	var a assertionChanges
	was, is := map[string]goTest{}, map[string]goTest{}
	lost, won := 0, 0
	var fewer []Finding
	for _, p := range e.paths {
		before, after := e.before[p], e.after[p]
		if strings.HasSuffix(p, ".go") {
			b, ok := goTests(p, before)
			n, ok2 := goTests(p, after)
			if ok && ok2 {
				maps.Copy(was, b)
				maps.Copy(is, n)
				continue
			}
		}
		a.tests++
		n := countAssertions(after) - countAssertions(before)
		if n >= 0 {
			won += n
			continue
		}
		lost -= n
		if after != "" {
			fewer = append(fewer, Finding{ID: p, File: p, Text: fmt.Sprintf("it has %s, and had %d", number(countAssertions(after), "assertion", "assertions"), countAssertions(before)), Detail: headAndTail(changedLines(before, after), maxDetail)})
		}
	}
	if lost > won { // else they may have moved from file to file
		a.fewer = fewer
	}
	a.removed, a.added = lost, won
	for name, before := range was {
		after, there := is[name]
		if there && before.text == after.text {
			continue
		}
		a.tests++
		a.removed += max(0, before.assertions-after.assertions)
		a.added += max(0, after.assertions-before.assertions)
		if there && after.assertions < before.assertions {
			a.fewer = append(a.fewer, Finding{
				ID: after.file + "::" + path.Base(name), File: after.file, Text: fmt.Sprintf("the test has %s, and had %d", number(after.assertions, "assertion", "assertions"), before.assertions),
				Detail: headAndTail(changedLines(before.text, after.text), maxDetail),
			})
		}
	}
	for name, after := range is {
		if _, there := was[name]; !there {
			a.tests++
			a.added += after.assertions
		}
	}
	slices.SortFunc(a.fewer, func(a, b Finding) int { return strings.Compare(a.ID, b.ID) })
	return a
}

// goTest is a test of Go, or a helper that is handed one.
type goTest struct {
	file, text string
	assertions int
}

// goTests returns the tests of a file by directory and name, so that a test that moves to
// another file of its package stays the same. It reports false if text is no Go.
func goTests(file, text string) (map[string]goTest, bool) {
	out := map[string]goTest{}
	if text == "" {
		return out, true
	}
	f, err := parser.ParseFile(token.NewFileSet(), "", text, parser.SkipObjectResolution)
	if err != nil {
		return nil, false
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		tests := testParams(fn)
		if tests == nil {
			continue
		}
		name := fn.Name.Name
		if fn.Recv != nil {
			typ, _ := receiver(fn)
			name = typ + "." + name
		}
		x := goTest{file: file, text: text[fn.Pos()-f.FileStart : fn.End()-f.FileStart]}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			if lit, ok := n.(*ast.FuncLit); ok {
				addTestParams(lit.Type, tests)
			}
			if call, ok := n.(*ast.CallExpr); ok && asserts(call, tests) {
				x.assertions++
			}
			return true
		})
		out[path.Join(path.Dir(file), name)] = x
	}
	return out, true
}

// receiver returns the type and the name of a method's receiver.
func receiver(fn *ast.FuncDecl) (typ, name string) {
	if fn.Recv.NumFields() == 0 {
		return "", ""
	}
	of := fn.Recv.List[0]
	ast.Inspect(of.Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && typ == "" {
			typ = id.Name
		}
		return typ == ""
	})
	if len(of.Names) > 0 {
		name = of.Names[0].Name
	}
	return typ, name
}

// testParams returns the names that hold a test in a function; nil: it gets none. A
// method Test… of a suite has its receiver.
func testParams(fn *ast.FuncDecl) map[string]bool {
	tests := map[string]bool{}
	addTestParams(fn.Type, tests)
	if _, name := receiver(fn); fn.Recv != nil && name != "" && strings.HasPrefix(fn.Name.Name, "Test") {
		tests[name] = true
	}
	if len(tests) == 0 {
		return nil
	}
	return tests
}

// addTestParams adds the parameters that are tests, by the names of their types.
func addTestParams(fn *ast.FuncType, tests map[string]bool) {
	for _, p := range fn.Params.List {
		typ := p.Type
		if star, ok := typ.(*ast.StarExpr); ok {
			typ = star.X
		}
		name := ""
		switch x := typ.(type) {
		case *ast.Ident:
			name = x.Name
		case *ast.SelectorExpr:
			name = x.Sel.Name
		}
		if !slices.Contains([]string{"T", "B", "F", "TB", "TestingT", "C"}, name) {
			continue
		}
		for _, id := range p.Names {
			tests[id.Name] = true
		}
	}
}

// asserts reports whether a call can fail a test: a method of the test that does, or a
// function that is handed the test.
func asserts(call *ast.CallExpr, tests map[string]bool) bool {
	isTest := func(x ast.Expr) bool {
		id, ok := x.(*ast.Ident)
		return ok && tests[id.Name]
	}
	if sel, ok := call.Fun.(*ast.SelectorExpr); ok && isTest(sel.X) {
		return !slices.Contains([]string{
			"Run", "Fuzz", "Add", "Log", "Logf", "Helper", "Parallel", "Name", "T", "TempDir", "Chdir", "Setenv", "Context", "Deadline", "Cleanup",
			"Skip", "Skipf", "SkipNow", "Skipped", "Failed",
		}, sel.Sel.Name)
	}
	return slices.ContainsFunc(call.Args, isTest)
}

var assertionLine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)\bassert|\bexpect|\bshould\b|\braises|\brequire[.!]|\bfail(ed|ure)?\(|\bt\.(fail|error|fatal)|\bverify\(|\.(is|not|like|ok|same|equals?|truthy|falsy|throws|rejects|deep_?equals?|strict_?equals?|not_?equals?|does_?not_?throw)\(`)
})

// countAssertions returns the number of lines that look like an assertion, and are no
// comment or import.
func countAssertions(text string) (n int) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		other := slices.ContainsFunc([]string{"#", "//", "*", "import ", "from ", "use "}, func(p string) bool { return strings.HasPrefix(line, p) }) || strings.Contains(line, "require(")
		if !other && assertionLine().MatchString(line) {
			n++
		}
	}
	return n
}
