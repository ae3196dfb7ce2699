package gate

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	goconstant "go/constant"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// maxTestText bounds a test file that is compared, in bytes.
const maxTestText = 8 << 20

// testKey identifies a test in a file. A runner knows a test by scope and name; file,
// full and leaf tell apart tests that are the same to a runner. They are empty for Go,
// where a package has one function of a name.
type testKey struct{ scope, name, file, full, leaf string }

// runnerKey returns the part of a key that a runner knows.
func (t testKey) runnerKey() testKey { return testKey{scope: t.scope, name: t.name} }

// testTexts holds the bodies of tests. Several may share a key; the text does not tell
// which one runs.
type testTexts map[testKey]*bodyCounts

// onlyHere returns the tests that others lack at the same place, by runner key.
func (all testTexts) onlyHere(others testTexts) testTexts {
	out := testTexts{}
	for t, s := range all {
		if others[t] != nil {
			continue
		}
		k := t.runnerKey()
		if out[k] == nil {
			out[k] = &bodyCounts{}
		}
		for b, n := range s.bodies {
			if n > 0 {
				out[k].bodies[b] += n
				out[k].file[b] = max(out[k].file[b], s.file[b])
			}
		}
	}
	return out
}

type bodyCounts struct {
	bodies [bodyChecks + 1]int    // how many bodies there are of each kind
	file   [bodyChecks + 1]string // the file of the last one
}

// atMost returns how many bodies are of kind b or a weaker one.
func (s *bodyCounts) atMost(b bodyKind) (n int) {
	for i := bodyEmpty; i <= b; i++ {
		n += s.bodies[i]
	}
	return n
}

func (s *bodyCounts) best() bodyKind {
	for b := bodyChecks; b > 0; b-- {
		if s.bodies[b] > 0 {
			return b
		}
	}
	return 0
}

// findWeakenedTests finds tests that could fail on the base and cannot on the change. It
// compares the text of test files that differ. There are many more ways to weaken a test;
// the policy signal lists the test files that a change touches. passed lists the ids of
// tests that passed on both sides.
func findWeakenedTests(ctx context.Context, base, change *Tree, format string, passed []string) ([]Finding, error) {
	same, err := change.sameAs(ctx, base)
	if err != nil {
		return nil, err
	}
	asBase, err := base.sameAs(ctx, change)
	if err != nil {
		return nil, err
	}
	was, unread, err := readTestTexts(ctx, base, asBase, format, passed)
	if err != nil {
		return nil, err
	}
	is, out, err := readTestTexts(ctx, change, same, format, passed)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{} // files that can't be compared
	for _, f := range out {
		known[f.File] = true
	}
	for _, f := range unread {
		if _, there := change.lookup(f.File); there && !known[f.File] {
			f.Text = "on the base " + f.Text
			out = append(out, f)
		}
	}
	compare := func(is, was testTexts) {
		for t, s := range is {
			before := was[t]
			if before == nil {
				continue
			}
			name := t.name
			if t.full != "" {
				name = t.full
			}
			say := func(b bodyKind, what string) {
				out = append(out, Finding{ID: s.file[b] + "::" + name, File: s.file[b], Text: what})
			}
			// It is weaker if there are more such bodies than before, or none is better:
			// a further test of the name may be there for show.
			less := func(b, from bodyKind) bool {
				return before.best() >= from && s.atMost(b) > 0 && (s.atMost(b) > before.atMost(b) || s.best() <= b)
			}
			switch {
			case less(bodyEmpty, bodyRuns) && strings.HasSuffix(s.file[bodyEmpty], ".go") && !(strings.HasSuffix(s.file[bodyEmpty], "_test.go") && goTestName(t.name)):
				say(bodyEmpty, "tests are handed to it, and it has nothing any more that could fail them")
			case less(bodyEmpty, bodyRuns):
				say(bodyEmpty, "the test had a body on the base, and has none that could fail")
			case less(bodyRuns, bodyChecks) && s.bodies[bodyRuns] > 0:
				say(bodyRuns, "the test checked something on the base, and nothing in it says that it failed any more")
			}
		}
	}
	compare(is, was)
	compare(is.onlyHere(was), was.onlyHere(is))
	left, err := findRemovedTests(ctx, was, is, change, format, passed, known)
	if err != nil {
		return nil, err
	}
	for id, t := range left {
		file := was[t].file[bodyChecks]
		out = append(out, Finding{ID: id, File: file, Text: "the test is no longer in the text of its file, and passes there: nothing shows what it checks. If it does, put this id into accept"})
	}
	slices.SortStableFunc(out, func(a, b Finding) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// readTestTexts reads the test files of a tree that differ from the other tree, and
// returns findings for those that it can't compare. Files that are the same count as
// inputs.
func readTestTexts(ctx context.Context, t *Tree, same func(File) bool, format string, passed []string) (testTexts, []Finding, error) {
	out := testTexts{}
	ran := goPackageRan(t, format, passed)
	var unread []Finding
	why := func(f File, what string) {
		unread = append(unread, Finding{ID: f.Path, File: f.Path, Text: what + ", so its tests can't be compared"})
	}
	err := t.Each(ctx, func(f File) bool {
		switch {
		case bodyParser(f.Path) == nil:
		case isGoHelperFile(f.Path):
			// Tests in Go may use helpers of any file. A file that no phase opened holds
			// none of them, so it need not be an input.
			return f.Mode != Link && !same(f)
		case same(f):
			t.noteRead(f.Path)
		case f.Mode == Link:
			t.noteRead(f.Path)
			why(f, "it is a link")
		case f.Size > maxTestText:
			t.noteRead(f.Path)
			why(f, fmt.Sprintf("it has %d bytes, and may have %d", f.Size, maxTestText))
		default:
			return true
		}
		return false
	}, func(f File, b []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		found, err := bodyParser(f.Path)(b)
		if err != nil {
			if !strings.HasSuffix(f.Path, ".go") || !goIgnores(f.Path) && (isGoHelperFile(f.Path) || ran(f.Path)) {
				why(f, err.Error())
			}
			return nil
		}
		// A runner knows a Go test by its package, so moving it between files is no
		// change. JUnit reports may not name files at all.
		in := f.Path
		switch {
		case strings.HasSuffix(f.Path, ".go"):
			in = path.Dir(f.Path)
		case format == "junit":
			in = path.Ext(f.Path)
			if in != ".py" {
				in = ".js"
			}
		}
		for name, list := range found {
			x := testKey{in, name, f.Path, strings.ReplaceAll(name, "\x00", " "), name[strings.LastIndexAny(name, ".\x00")+1:]}
			switch path.Ext(f.Path) {
			case ".go":
				x = testKey{scope: in, name: name}
			case ".py":
			default: // the names of enclosing blocks come first; JUnit reports may lack them
				x.leaf = name[strings.LastIndexByte(name, 0)+1:]
				if x.name = x.full; format == "junit" {
					x.name = x.leaf
				}
			}
			if out[x] == nil {
				out[x] = &bodyCounts{}
			}
			for _, b := range list {
				out[x].bodies[b]++
				out[x].file[b] = f.Path
			}
		}
		return nil
	})
	return out, unread, err
}

// bodyKind classifies the text of a test, from weak to strong.
type bodyKind int

const (
	bodyEmpty      bodyKind = iota + 1 // it cannot fail
	bodyRuns                           // statements, but no check
	bodyCallsCheck                     // a call of a function in the same file that checks
	bodyChecks                         // an assertion, a failure, or a call that gets the test as an argument
)

// bodyParser returns the function that finds the tests of a file, and the kinds of their
// bodies by name; nil: it is no known test file.
func bodyParser(p string) func([]byte) (map[string][]bodyKind, error) {
	base := path.Base(p)
	switch {
	case isGoHelperFile(p):
		return func(b []byte) (map[string][]bodyKind, error) {
			if !importsTesting(b) {
				return nil, nil
			}
			return goBodies(b)
		}
	case strings.HasSuffix(base, "_test.go"):
		return goBodies
	case !isTestName(p) && jsFile().MatchString(base) && slices.ContainsFunc(strings.Split(path.Dir(p), "/"), func(e string) bool {
		return slices.Contains([]string{"fixtures", "__fixtures__", "testdata"}, e)
	}):
		return nil // test data
	case strings.HasSuffix(base, ".py") && isTestFile(p):
		return pythonBodies
	case isTestFile(p) && jsFile().MatchString(base):
		return jsBodies
	}
	return nil
}

// goIgnores reports whether Go ignores a directory when it looks for packages.
func goIgnores(p string) bool {
	return slices.ContainsFunc(strings.Split(p, "/"), func(e string) bool { return e == "testdata" || e[0] == '_' || e[0] == '.' })
}

// goPackageRan returns a function that reports whether tests of a file's package may have
// passed, by their ids. A file of a package without such tests need not be valid Go: it
// may be a template.
func goPackageRan(t *Tree, format string, passed []string) func(p string) bool {
	switch format {
	case "pytest", "jest", "vitest":
		return func(string) bool { return false } // nor does it run any
	case "go":
	default:
		return func(string) bool { return true }
	}
	ran := sync.OnceValue(func() map[string]bool { // ends of packages' names
		out := map[string]bool{}
		for _, id := range passed {
			i := strings.LastIndexByte(id, '.')
			if i < 0 || !goTestName(id[i+1:]) || strings.Contains(id[i:], "/") {
				continue // a part of one
			}
			for pkg, more := id[:i], true; more && !out[pkg]; _, pkg, more = strings.Cut(pkg, "/") {
				out[pkg] = true
			}
		}
		return out
	})
	return func(p string) bool {
		dir := path.Dir(p)
		module := dir
		for module != "." {
			if _, ok := t.lookup(path.Join(module, "go.mod")); ok {
				break
			}
			module = path.Dir(module)
		}
		// A package is named after its directory, below the module's path. Go test calls
		// a package that is given as files command-line-arguments.
		rel := dir
		if module != "." {
			rel = strings.TrimPrefix(dir, module+"/")
		}
		return len(ran()) > 0 && (dir == module || ran()[rel] || ran()["command-line-arguments"])
	}
}

// isGoHelperFile reports whether a Go file is no test file. It may hold functions that
// tests call.
func isGoHelperFile(p string) bool {
	return strings.HasSuffix(p, ".go") && !strings.HasSuffix(p, "_test.go")
}

var jsFile = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\.[cm]?[jt]sx?$`) })

// importsTesting reports whether a Go file imports package testing.
func importsTesting(b []byte) bool {
	f, err := parser.ParseFile(token.NewFileSet(), "", b, parser.ImportsOnly)
	return err == nil && slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool {
		name, err := strconv.Unquote(i.Path.Value)
		return err == nil && name == "testing"
	})
}

func goBodies(b []byte) (map[string][]bodyKind, error) {
	if len(b) > maxTestText {
		return nil, fmt.Errorf("it has %d bytes, and may have %d", len(b), maxTestText)
	}
	out := map[string][]bodyKind{}
	f, err := parser.ParseFile(token.NewFileSet(), "", b, parser.SkipObjectResolution)
	if err != nil {
		return nil, errors.New("it is not valid Go")
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		prune(fn.Type, fn.Body)
		name := fn.Name.Name
		if fn.Recv != nil {
			typ, _ := receiver(fn)
			name = typ + "." + name
		}
		switch {
		case goTest(fn):
			out[name] = append(out[name], goBodyKind(fn))
		case fn.Recv != nil && goTestName(name) && !takesTest(fn):
			// A suite can run a method that has results. Other runners ignore it, on both
			// sides.
			out[name] = append(out[name], bodyEmpty)
		case takesTest(fn) && goCanFail(fn):
			// The check may be in a function that this one calls, so a helper with fewer
			// checks is not weaker.
			out[name] = append(out[name], bodyRuns)
		case takesTest(fn):
			out[name] = append(out[name], bodyEmpty)
		}
	}
	return out, nil
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

// goTestName reports whether a function or method has the name of a test. Suites have
// methods.
func goTestName(name string) bool {
	name = name[strings.LastIndexByte(name, '.')+1:]
	return slices.ContainsFunc([]string{"Test", "Fuzz", "Example"}, func(p string) bool { return strings.HasPrefix(name, p) })
}

// goTest reports whether a function may be run as a test, or a method by its suite.
func goTest(fn *ast.FuncDecl) bool {
	if !goTestName(fn.Name.Name) || fn.Type.Results.NumFields() > 0 {
		return false
	}
	switch fn.Type.Params.NumFields() {
	case 0:
		return fn.Recv != nil || strings.HasPrefix(fn.Name.Name, "Example")
	case 1:
		p := fn.Type.Params.List[0]
		_, pointer := p.Type.(*ast.StarExpr)
		return (pointer || isTestParam(p)) && !strings.HasPrefix(fn.Name.Name, "Example")
	}
	return takesTest(fn)
}

// isTestParam reports whether a parameter is a test, by the name of its type.
func isTestParam(p *ast.Field) bool {
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
	return slices.Contains([]string{"T", "B", "F", "M", "C", "TB", "TestingT"}, name)
}

// takesTest reports whether a function has a parameter of a type such as testing.T.
func takesTest(fn *ast.FuncDecl) bool {
	return slices.ContainsFunc(fn.Type.Params.List, func(f *ast.Field) bool {
		typ := f.Type
		if star, ok := typ.(*ast.StarExpr); ok {
			typ = star.X
		}
		sel, ok := typ.(*ast.SelectorExpr)
		return ok && slices.Contains([]string{"T", "B", "F", "TB"}, sel.Sel.Name)
	})
}

// prune removes code that never runs, as far as the text alone shows. It visits each
// statement at most twice, however deep it is.
func prune(typ *ast.FuncType, b *ast.BlockStmt) { pruner{}.function(typ, b) }

// pruner holds, by name, whether a variable in scope is a test.
type pruner map[string]bool

func (p pruner) function(typ *ast.FuncType, b *ast.BlockStmt) {
	type outside struct {
		name string
		test bool
	}
	var hidden []outside
	for _, f := range typ.Params.List {
		for _, id := range f.Names {
			hidden = append(hidden, outside{id.Name, p[id.Name]})
			p[id.Name] = isTestParam(f)
		}
	}
	p.list(&b.List)
	ast.Inspect(b, func(n ast.Node) bool {
		f, ok := n.(*ast.FuncLit)
		if ok {
			p.function(f.Type, f.Body)
		}
		return !ok
	})
	for _, h := range slices.Backward(hidden) {
		p[h.name] = h.test
	}
}

// list removes what never runs from a list of statements. It reports whether the rest
// never gets to its end.
func (p pruner) list(list *[]ast.Stmt) (leaves bool) {
	var out []ast.Stmt
	for _, s := range *list {
		label, labelled := s.(*ast.LabeledStmt)
		if leaves && !labelled {
			continue
		}
		leaves = false
		if labelled && label.Stmt != nil {
			s = label.Stmt // gotos and loops can get here
		}
		if neverRuns(s) {
			continue
		}
		switch x := s.(type) {
		case *ast.ReturnStmt, *ast.BranchStmt:
			leaves = true
		case *ast.ExprStmt:
			leaves = p.neverReturns(x.X)
		case *ast.BlockStmt:
			leaves = p.list(&x.List)
		case *ast.IfStmt:
			if s, leaves = p.ifStmt(x); s == nil {
				continue
			}
		case *ast.ForStmt:
			p.list(&x.Body.List)
		case *ast.RangeStmt:
			p.list(&x.Body.List)
		}
		out = append(out, s)
	}
	*list = out
	return leaves
}

// ifStmt returns what is left of a statement, or nil if that is nothing, and whether the
// rest never gets to its end.
func (p pruner) ifStmt(x *ast.IfStmt) (left ast.Stmt, leaves bool) {
	yes, known := constant(x.Cond)
	switch {
	case known && yes:
		leaves = p.list(&x.Body.List)
		return x.Body, leaves
	case known && x.Else == nil:
		return nil, false
	case known:
		one := []ast.Stmt{x.Else}
		leaves = p.list(&one)
		return &ast.BlockStmt{List: one}, leaves
	}
	leaves = p.list(&x.Body.List)
	if x.Else == nil {
		if len(x.Body.List) == 0 && x.Init == nil && !calls(x.Cond) {
			return nil, false
		}
		return x, false
	}
	one := []ast.Stmt{x.Else}
	leaves = p.list(&one) && leaves
	x.Else = &ast.BlockStmt{List: one}
	return x, leaves
}

// neverRuns reports whether a statement is a loop without a turn, or a function that
// nobody can call.
func neverRuns(s ast.Stmt) bool {
	switch x := s.(type) {
	case *ast.ForStmt:
		yes, known := constant(x.Cond)
		return known && !yes
	case *ast.RangeStmt:
		switch over := x.X.(type) {
		case *ast.CompositeLit:
			return len(over.Elts) == 0
		case *ast.BasicLit:
			return over.Value == "0"
		}
	case *ast.AssignStmt:
		if id, ok := x.Lhs[0].(*ast.Ident); ok && id.Name == "_" && len(x.Lhs) == 1 {
			_, ok := x.Rhs[0].(*ast.FuncLit)
			return ok
		}
	}
	return false
}

// callsOrIsFunc reports whether an expression has a call, or is a function with
// statements.
func callsOrIsFunc(x ast.Expr) bool {
	f, ok := x.(*ast.FuncLit)
	return ok && len(f.Body.List) > 0 || calls(x)
}

func calls(x ast.Expr) (found bool) {
	ast.Inspect(x, func(n ast.Node) bool {
		_, call := n.(*ast.CallExpr)
		_, fn := n.(*ast.FuncLit)
		found = found || call
		return !found && !fn
	})
	return found
}

// neverReturns reports whether nothing runs after a call. Calls that fail the test do not
// count, since they check something.
func (p pruner) neverReturns(x ast.Expr) bool {
	call, ok := x.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	id, ok := sel.X.(*ast.Ident)
	return isSkip(sel) && (ok && p[id.Name] || isSuiteT(sel.X)) || ok && (id.Name == "runtime" && sel.Sel.Name == "Goexit" || id.Name == "os" && sel.Sel.Name == "Exit")
}

// isSkip reports whether a selector has the name of a method that skips a test. Other
// types have such methods, too.
func isSkip(sel *ast.SelectorExpr) bool {
	return slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name)
}

// isSuiteT reports whether an expression is a call such as s.T(), by which a suite
// returns its test.
func isSuiteT(x ast.Expr) bool {
	call, ok := x.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "T" && len(call.Args) == 0
}

// maxConstant bounds literals that are compared, in bytes: evaluating numbers takes
// quadratic time.
const maxConstant = 100

// constant evaluates a condition, and reports whether its value is known.
func constant(x ast.Expr) (yes, known bool) {
	switch x := x.(type) {
	case *ast.ParenExpr:
		return constant(x.X)
	case *ast.Ident:
		return x.Name == "true", x.Name == "true" || x.Name == "false"
	case *ast.UnaryExpr:
		yes, known = constant(x.X)
		return !yes, known && x.Op == token.NOT
	case *ast.BinaryExpr:
		a, aKnown := constant(x.X)
		b, bKnown := constant(x.Y)
		switch x.Op {
		case token.LAND:
			if aKnown && !a || bKnown && !b {
				return false, true
			}
			return a && b, aKnown && bKnown
		case token.LOR:
			if aKnown && a || bKnown && b {
				return true, true
			}
			return a || b, aKnown && bKnown
		}
		l, lok := x.X.(*ast.BasicLit)
		r, rok := x.Y.(*ast.BasicLit)
		if lok && rok && max(len(l.Value), len(r.Value)) <= maxConstant && l.Kind == r.Kind && l.Kind != token.IMAG && slices.Contains([]token.Token{token.EQL, token.NEQ, token.LSS, token.LEQ, token.GTR, token.GEQ}, x.Op) {
			return goconstant.Compare(goconstant.MakeFromLiteral(l.Value, l.Kind, 0), x.Op, goconstant.MakeFromLiteral(r.Value, r.Kind, 0)), true
		}
	}
	return false, false
}

// goBodyKind classifies the body of a test. An example checks by what it prints.
func goBodyKind(fn *ast.FuncDecl) bodyKind {
	if !goCanFail(fn) {
		return bodyEmpty
	}
	if strings.HasPrefix(fn.Name.Name, "Example") {
		return bodyChecks
	}
	w := goBodyWalk{kind: bodyRuns, params: map[string]bool{}, tests: map[string]bool{}}
	if fn.Recv != nil {
		_, w.suite = receiver(fn)
	}
	ast.Inspect(fn, w.visit)
	return w.kind
}

// goBodyWalk looks for a check in the body of a test.
type goBodyWalk struct {
	kind   bodyKind
	params map[string]bool // names of parameters
	tests  map[string]bool // names that hold a test
	// suite is the receiver's name, if there is one. A suite has assertions of its own,
	// of any name.
	suite string
}

// ofSuite reports whether a name is the suite or a parameter of its method.
func (w *goBodyWalk) ofSuite(name string) bool {
	return w.suite != "" && (name == w.suite || w.params[name])
}

// isTest reports whether a value is a test, as far as its name says.
func (w *goBodyWalk) isTest(x ast.Expr) bool {
	id, named := x.(*ast.Ident)
	field, ok := x.(*ast.SelectorExpr)
	has := ok && slices.Contains([]string{"T", "t", "TB", "tb"}, field.Sel.Name) || isSuiteT(x)
	root := rootOf(x)
	return named && w.tests[id.Name] || has && (w.suite != "" && root == w.suite || w.params[root])
}

// forget drops a name that now holds another test, whose calls do not count for this one.
func (w *goBodyWalk) forget(name string) {
	delete(w.params, name)
	delete(w.tests, name)
}

func (w *goBodyWalk) bind(name string, x ast.Expr) {
	switch {
	case makesTest(x):
		w.forget(name)
	case w.isTest(x):
		w.params[name], w.tests[name] = true, true
	}
}

// visit handles a node for ast.Inspect. It does not enter values that are assigned to _.
func (w *goBodyWalk) visit(n ast.Node) bool {
	switch x := n.(type) {
	case *ast.FuncType:
		for _, p := range x.Params.List {
			for _, id := range p.Names {
				w.params[id.Name] = true
				w.tests[id.Name] = w.tests[id.Name] || isTestParam(p)
			}
		}
	case *ast.AssignStmt:
		unused := true
		for i, l := range x.Lhs {
			id, ok := l.(*ast.Ident)
			if ok && i < len(x.Rhs) {
				w.bind(id.Name, x.Rhs[i])
			}
			unused = unused && ok && id.Name == "_"
		}
		return !unused || slices.ContainsFunc(x.Rhs, calls)
	case *ast.ValueSpec:
		unused, other := true, len(x.Values) == 0 && x.Type != nil && makesTest(x.Type)
		for i, id := range x.Names {
			switch {
			case i < len(x.Values):
				w.bind(id.Name, x.Values[i])
			case other:
				w.forget(id.Name)
			}
			unused = unused && id.Name == "_"
		}
		return !unused || slices.ContainsFunc(x.Values, calls)
	case *ast.CompositeLit:
		for _, e := range x.Elts {
			if kv, ok := e.(*ast.KeyValueExpr); ok {
				e = kv.Value
			}
			if id, ok := e.(*ast.Ident); w.isTest(e) || ok && w.suite != "" && id.Name == w.suite {
				w.kind = bodyChecks
			}
		}
	case *ast.CallExpr:
		if w.callChecks(x) || slices.ContainsFunc(x.Args, w.handsTest) {
			w.kind = bodyChecks
		}
	}
	return true
}

// callChecks reports whether a call can fail the test by itself.
func (w *goBodyWalk) callChecks(x *ast.CallExpr) bool {
	switch f := x.Fun.(type) {
	case *ast.Ident:
		return f.Name == "panic"
	case *ast.SelectorExpr:
		if slices.Contains([]string{"Run", "Fuzz"}, f.Sel.Name) {
			// A subtest that is written here is visited itself.
			if len(x.Args) > 0 {
				if _, ok := ast.Unparen(x.Args[len(x.Args)-1]).(*ast.FuncLit); ok {
					return false
				}
			}
			return w.isTest(f.X) || w.ofSuite(rootOf(f.X))
		}
		id, named := f.X.(*ast.Ident)
		return named && w.params[id.Name] && slices.Contains([]string{"Error", "Errorf", "Fatal", "Fatalf", "Fail", "FailNow"}, f.Sel.Name) ||
			w.ofSuite(rootOf(f.X)) && !slices.Contains([]string{"T", "Name", "Log", "Logf", "Helper", "Parallel", "TempDir", "Setenv", "Context", "Deadline", "Cleanup"}, f.Sel.Name)
	}
	return false
}

// handsTest reports whether an argument hands the test on.
func (w *goBodyWalk) handsTest(a ast.Expr) bool {
	id, named := a.(*ast.Ident)
	call, called := a.(*ast.CallExpr)
	return named && (w.params[id.Name] || id.Name == w.suite) || called && w.suite != "" && rootOf(call) == w.suite
}

// rootOf returns the first name of a chain of at most 100 calls and fields.
func rootOf(x ast.Expr) string {
	for range 100 {
		switch e := x.(type) {
		case *ast.Ident:
			return e.Name
		case *ast.SelectorExpr:
			x = e.X
		case *ast.CallExpr:
			x = e.Fun
		}
	}
	return ""
}

// makesTest reports whether an expression makes another testing.T, B or F.
func makesTest(x ast.Expr) bool {
	found := false
	ast.Inspect(x, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		id, named := (*ast.Ident)(nil), false
		if ok {
			id, named = sel.X.(*ast.Ident)
		}
		found = found || named && id.Name == "testing" && slices.Contains([]string{"T", "B", "F"}, sel.Sel.Name)
		_, fn := n.(*ast.FuncLit)
		return !found && !fn
	})
	return found
}

// returnsValue reports whether a function returns a value for tests to use, other than a
// bool or an error.
func returnsValue(fn *ast.FuncDecl) bool {
	return fn.Type.Results != nil && slices.ContainsFunc(fn.Type.Results.List, func(f *ast.Field) bool {
		id, ok := f.Type.(*ast.Ident)
		return !ok || id.Name != "bool" && id.Name != "error"
	})
}

// isFixedValue reports whether an expression is a value that needs no computation and is
// no parameter (a key of got).
func isFixedValue(x ast.Expr, got map[string]bool) bool {
	if and, ok := x.(*ast.UnaryExpr); ok {
		x = and.X
	}
	switch x := x.(type) {
	case *ast.CompositeLit:
		return true
	case *ast.BasicLit:
		return x.Kind == token.STRING && len(x.Value) > len(`""`)
	case *ast.Ident, *ast.SelectorExpr:
		name := rootOf(x)
		_, is := got[name]
		return !is && !slices.Contains([]string{"", "nil", "true", "false"}, name)
	}
	return false
}

// goCanFail reports whether a pruned function has a statement that could fail the test or
// compute something for it: one that does more than return, log or skip.
func goCanFail(fn *ast.FuncDecl) bool {
	tests := map[string]bool{} // whether a parameter is a test
	for _, p := range fn.Type.Params.List {
		for _, id := range p.Names {
			tests[id.Name] = isTestParam(p)
		}
	}
	for _, s := range fn.Body.List {
		switch x := s.(type) {
		case *ast.ReturnStmt:
			gives := returnsValue(fn)
			return slices.ContainsFunc(x.Results, func(x ast.Expr) bool { return callsOrIsFunc(x) || gives && isFixedValue(x, tests) }) // nothing after it runs
		case *ast.EmptyStmt:
			continue
		case *ast.ExprStmt:
			if call, ok := x.X.(*ast.CallExpr); ok {
				if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
					switch sel.Sel.Name {
					case "Log", "Logf", "Parallel", "Helper":
						continue
					}
					id, named := sel.X.(*ast.Ident)
					if isSkip(sel) && (isSuiteT(sel.X) || named && tests[id.Name]) {
						return false
					}
				}
			}
		case *ast.AssignStmt:
			if id, ok := x.Lhs[0].(*ast.Ident); ok && len(x.Lhs) == 1 && id.Name == "_" {
				if _, ok := x.Rhs[0].(*ast.Ident); ok {
					continue
				}
			}
		}
		return true
	}
	return false
}
