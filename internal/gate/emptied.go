package gate

import (
	"bytes"
	"context"
	"go/ast"
	goconstant "go/constant"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// emptied finds tests that had a body on the base and have none that could fail on the
// change. It looks at the text of files of tests that differ; a test can be made to
// prove less in many more ways, which the policy signal names the files of.
func emptied(ctx context.Context, base, change *Tree) ([]Finding, error) {
	same, err := change.sameAs(ctx, base)
	if err != nil {
		return nil, err
	}
	asBase, err := base.sameAs(ctx, change)
	if err != nil {
		return nil, err
	}
	// What tests are handed to can be anywhere in Go: of these the files that differ.
	// One that no phase opened is none of them, so it need not be an input.
	pick := func(same func(File) bool) func(File) bool {
		return func(f File) bool {
			return f.Mode != Link && bodiesOf(f.Path) != nil && (!helpsTests(f.Path) || !same(f))
		}
	}
	// By the file's directory too: runners know a test of Go by its package, so one that
	// moves to another file is the same.
	type test struct{ in, name string }
	place := func(p, name string) test {
		if strings.HasSuffix(p, ".go") {
			return test{path.Dir(p), name}
		}
		return test{p, name}
	}
	was := map[test]body{}
	if err := base.Each(ctx, pick(asBase), func(f File, b []byte) error {
		for name, full := range bodiesOf(f.Path)(b) {
			was[place(f.Path, name)] = max(was[place(f.Path, name)], full)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	var out []Finding
	err = change.Each(ctx, pick(same), func(f File, b []byte) error {
		for name, full := range bodiesOf(f.Path)(b) {
			switch before := was[place(f.Path, name)]; {
			case before > empty && full == empty && strings.HasSuffix(f.Path, ".go") && !(strings.HasSuffix(f.Path, "_test.go") && goTestName(name)):
				out = append(out, Finding{ID: f.Path + "::" + name, File: f.Path, Text: "tests are handed to it, and it has nothing any more that could fail them"})
			case before > empty && full == empty:
				out = append(out, Finding{ID: f.Path + "::" + name, File: f.Path, Text: "the test had a body on the base, and has none that could fail"})
			case before == checks && full == runs:
				out = append(out, Finding{ID: f.Path + "::" + name, File: f.Path, Text: "the test checked something on the base, and nothing in it says that it failed any more"})
			}
		}
		return nil
	})
	return out, err
}

// body is what a test's text has in it.
type body int

const (
	empty  body = iota + 1 // nothing that could fail
	runs                   // something, and nothing that says of itself that it failed
	checks                 // an assertion, a failure, or a call that is handed the test
)

// bodiesOf chooses how to find the tests of a file: by name, and whether there is
// anything in them. Nil: it is no file of tests that is known.
func bodiesOf(p string) func([]byte) map[string]body {
	base := path.Base(p)
	switch {
	case helpsTests(p):
		return func(b []byte) map[string]body {
			if !bytes.Contains(b, []byte(`"testing"`)) {
				return nil
			}
			return goBodies(b)
		}
	case strings.HasSuffix(base, "_test.go"):
		return goBodies
	case strings.HasSuffix(base, ".py") && isTestFile(p):
		return pythonBodies
	case isTestFile(p) && regexpMatch(jsFile(), base):
		return jsBodies
	}
	return nil
}

// helpsTests reports whether a file is no file of tests, and can have what they call.
func helpsTests(p string) bool {
	return strings.HasSuffix(p, ".go") && !strings.HasSuffix(p, "_test.go")
}

func regexpMatch(r *regexp.Regexp, s string) bool { return r.MatchString(s) }

var jsFile = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\.[cm]?[jt]sx?$`) })

func goBodies(b []byte) map[string]body {
	out := map[string]body{}
	f, err := parser.ParseFile(token.NewFileSet(), "", b, parser.SkipObjectResolution)
	if err != nil {
		return out // it does not build, which another signal says
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || fn.Body == nil {
			continue
		}
		prune(&fn.Body.List)
		switch name := fn.Name.Name; {
		case goTestName(name):
			out[name] = goBody(fn)
		case handedTest(fn) && goHasBody(fn.Body):
			// What fails a test may be in what it calls. One that fails less may be right.
			out[name] = runs
		case handedTest(fn):
			out[name] = empty
		}
	}
	return out
}

func goTestName(name string) bool {
	return slices.ContainsFunc([]string{"Test", "Fuzz", "Example"}, func(p string) bool { return strings.HasPrefix(name, p) })
}

// handedTest reports whether a function gets a test, or a part of one.
func handedTest(fn *ast.FuncDecl) bool {
	return slices.ContainsFunc(fn.Type.Params.List, func(f *ast.Field) bool {
		typ := f.Type
		if star, ok := typ.(*ast.StarExpr); ok {
			typ = star.X
		}
		sel, ok := typ.(*ast.SelectorExpr)
		return ok && slices.Contains([]string{"T", "B", "F", "TB"}, sel.Sel.Name)
	})
}

// prune takes out what never runs, as far as the text alone says so, and reports whether
// what is left never gets to its end.
func prune(list *[]ast.Stmt) (leaves bool) { return pruneOnce(list, map[*ast.FuncLit]bool{}) }

func pruneOnce(list *[]ast.Stmt, done map[*ast.FuncLit]bool) (leaves bool) {
	var out []ast.Stmt
	for _, s := range *list {
		label, labelled := s.(*ast.LabeledStmt)
		if leaves && !labelled {
			continue
		}
		leaves = false
		if labelled && label.Stmt != nil {
			s = label.Stmt // gotos and loops come here
		}
		switch x := s.(type) {
		case *ast.ReturnStmt, *ast.BranchStmt:
			leaves = true
		case *ast.ExprStmt:
			leaves = neverReturns(x.X)
		case *ast.BlockStmt:
			leaves = pruneOnce(&x.List, done)
		case *ast.IfStmt:
			yes, known := constant(x.Cond)
			switch {
			case known && yes:
				leaves = pruneOnce(&x.Body.List, done)
				s = x.Body
			case known && x.Else == nil:
				continue
			case known:
				one := []ast.Stmt{x.Else}
				leaves = pruneOnce(&one, done)
				s = &ast.BlockStmt{List: one}
			default:
				leaves = pruneOnce(&x.Body.List, done)
				if x.Else == nil && len(x.Body.List) == 0 && x.Init == nil && !calls(x.Cond) {
					leaves = false
					continue
				}
				if x.Else == nil {
					leaves = false
					break
				}
				one := []ast.Stmt{x.Else}
				leaves = pruneOnce(&one, done) && leaves
				x.Else = &ast.BlockStmt{List: one}
			}
		case *ast.ForStmt:
			if yes, known := constant(x.Cond); known && !yes {
				continue
			}
			pruneOnce(&x.Body.List, done)
		case *ast.RangeStmt:
			if over, ok := x.X.(*ast.CompositeLit); ok && len(over.Elts) == 0 {
				continue
			}
			if over, ok := x.X.(*ast.BasicLit); ok && over.Value == "0" {
				continue
			}
			pruneOnce(&x.Body.List, done)
		case *ast.AssignStmt:
			if id, ok := x.Lhs[0].(*ast.Ident); ok && id.Name == "_" && len(x.Lhs) == 1 {
				if _, ok := x.Rhs[0].(*ast.FuncLit); ok {
					continue // nobody can call it
				}
			}
		}
		ast.Inspect(s, func(n ast.Node) bool {
			if f, ok := n.(*ast.FuncLit); ok {
				if !done[f] { // each block around it comes by
					done[f] = true
					pruneOnce(&f.Body.List, done)
				}
				return false
			}
			return true
		})
		out = append(out, s)
	}
	*list = out
	return leaves
}

func calls(x ast.Expr) (found bool) {
	ast.Inspect(x, func(n ast.Node) bool {
		_, call := n.(*ast.CallExpr)
		found = found || call
		return !found
	})
	return found
}

// neverReturns is a call behind which nothing runs. What fails a test is none: it says
// what has to be known of it.
func neverReturns(x ast.Expr) bool {
	call, ok := x.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	id, ok := sel.X.(*ast.Ident)
	return ok && (slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name) || id.Name == "runtime" && sel.Sel.Name == "Goexit" || id.Name == "os" && sel.Sel.Name == "Exit")
}

// constant is what a condition always is.
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
		if lok && rok && l.Kind == r.Kind && l.Kind != token.IMAG && slices.Contains([]token.Token{token.EQL, token.NEQ, token.LSS, token.LEQ, token.GTR, token.GEQ}, x.Op) {
			return goconstant.Compare(goconstant.MakeFromLiteral(l.Value, l.Kind, 0), x.Op, goconstant.MakeFromLiteral(r.Value, r.Kind, 0)), true
		}
	}
	return false, false
}

// goBody looks at what a test does. An example checks by what it prints.
func goBody(fn *ast.FuncDecl) body {
	if !goHasBody(fn.Body) {
		return empty
	}
	if strings.HasPrefix(fn.Name.Name, "Example") {
		return checks
	}
	found := runs
	params := map[string]bool{}
	ast.Inspect(fn, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.FuncType:
			for _, p := range x.Params.List {
				for _, id := range p.Names {
					params[id.Name] = true
				}
			}
		case *ast.AssignStmt:
			// A test that is another says nothing of this one.
			for i, l := range x.Lhs {
				if id, ok := l.(*ast.Ident); ok && i < len(x.Rhs) && another(x.Rhs[i]) {
					delete(params, id.Name)
				}
			}
		case *ast.CallExpr:
			switch f := x.Fun.(type) {
			case *ast.Ident:
				if f.Name == "panic" {
					found = checks
				}
			case *ast.SelectorExpr:
				switch f.Sel.Name {
				case "Error", "Errorf", "Fatal", "Fatalf", "Fail", "FailNow":
					if id, ok := f.X.(*ast.Ident); ok && params[id.Name] {
						found = checks
					}
				}
			}
			for _, a := range x.Args {
				if id, ok := a.(*ast.Ident); ok && params[id.Name] {
					found = checks
				}
			}
		}
		return true
	})
	return found
}

// another is a test that is made in a test.
func another(x ast.Expr) bool {
	found := false
	ast.Inspect(x, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		id, named := (*ast.Ident)(nil), false
		if ok {
			id, named = sel.X.(*ast.Ident)
		}
		found = found || named && id.Name == "testing" && slices.Contains([]string{"T", "B", "F"}, sel.Sel.Name)
		return !found
	})
	return found
}

// goHasBody reports whether a statement could fail the test: one that is not only a
// return, a log line or a skip.
func goHasBody(b *ast.BlockStmt) bool {
	for _, s := range b.List {
		switch x := s.(type) {
		case *ast.ReturnStmt:
			return false // nothing behind it runs
		case *ast.EmptyStmt:
			continue
		case *ast.ExprStmt:
			if call, ok := x.X.(*ast.CallExpr); ok {
				if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
					switch sel.Sel.Name {
					case "Log", "Logf", "Parallel", "Helper":
						continue
					case "Skip", "Skipf", "SkipNow":
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
