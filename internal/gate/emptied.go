package gate

import (
	"bytes"
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"strings"
	"sync"
)

// emptied finds tests that had a body on the base and have none that could fail on the
// change. It looks at the text of files of tests that differ; a test can be made to
// prove less in many more ways, which the policy signal names the files of.
func emptied(ctx context.Context, base, change *Tree) ([]Finding, error) {
	pick := func(f File) bool { return f.Mode != Link && bodiesOf(f.Path) != nil }
	// By the file's directory too: runners know a test of Go by its package, so one that
	// moves to another file is the same.
	type test struct{ in, name string }
	place := func(p, name string) test {
		if strings.HasSuffix(p, "_test.go") {
			return test{path.Dir(p), name}
		}
		return test{p, name}
	}
	was := map[test]body{}
	if err := base.Each(ctx, pick, func(f File, b []byte) error {
		for name, full := range bodiesOf(f.Path)(b) {
			was[place(f.Path, name)] = max(was[place(f.Path, name)], full)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	var out []Finding
	err := change.Each(ctx, pick, func(f File, b []byte) error {
		for name, full := range bodiesOf(f.Path)(b) {
			switch before := was[place(f.Path, name)]; {
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
	case strings.HasSuffix(base, "_test.go"):
		return goBodies
	case strings.HasSuffix(base, ".py") && isTestFile(p):
		return pythonBodies
	case isTestFile(p) && regexpMatch(jsFile(), base):
		return jsBodies
	}
	return nil
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
		for _, prefix := range []string{"Test", "Fuzz", "Example"} {
			if strings.HasPrefix(fn.Name.Name, prefix) {
				out[fn.Name.Name] = goBody(fn)
			}
		}
	}
	return out
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
		case *ast.BlockStmt:
			return !neverRuns(x)
		case *ast.IfStmt:
			if id, ok := x.Cond.(*ast.Ident); ok && id.Name == "false" && x.Else == nil {
				return false
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

// neverRuns is a block that is left at its first statement.
func neverRuns(b *ast.BlockStmt) bool {
	if len(b.List) == 0 {
		return true
	}
	_, ok := b.List[0].(*ast.ReturnStmt)
	return ok
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

var pythonDef = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(\s*)(?:async\s+)?def\s+(test\w*)\s*\(`) })

func pythonBodies(b []byte) map[string]body {
	out := map[string]body{}
	name, indent := "", 0
	see := func(text string) {
		switch {
		case !meansSomething(text):
			out[name] = max(out[name], empty)
		case pythonCheck().MatchString(text):
			out[name] = checks
		default:
			out[name] = max(out[name], runs)
		}
	}
	for _, raw := range bytes.Split(b, []byte("\n")) {
		line := string(raw)
		text := strings.TrimSpace(line)
		in := len(line) - len(strings.TrimLeft(line, " \t"))
		if m := pythonDef().FindStringSubmatch(line); m != nil {
			name, indent = m[2], len(m[1])
			_, rest, _ := strings.Cut(text, "):")
			see(strings.TrimSpace(rest))
			continue
		}
		if name == "" || text == "" {
			continue
		}
		if in <= indent {
			name = ""
			continue
		}
		see(text)
	}
	return out
}

// pythonCheck is what says that a test failed, by the names that people give it.
var pythonCheck = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(?:assert|raise)\b|(?:assert|raises|warns|check|verify|expect|should|fail)\w*\s*\(`)
})

func meansSomething(s string) bool {
	switch {
	case s == "", s == "pass", s == "...", s == "return", s == "return None", s == ")", s == "):", strings.HasPrefix(s, "#"), strings.HasPrefix(s, `"`), strings.HasPrefix(s, "'"):
		return false
	}
	return s != "assert True" && s != "True"
}

var jsTest = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("(?:^|[^\\w.])(?:it|test)\\s*\\(\\s*(['\"`])((?:[^\\\\]|\\\\.)*?)['\"`]\\s*,\\s*(?:async\\s*)?(?:function\\s*)?(?:\\([^)]*\\)|\\w+)\\s*(?:=>)?\\s*(\\{\\s*(?:return;?\\s*)?\\})?")
})

func jsBodies(b []byte) map[string]body {
	out := map[string]body{}
	all := jsTest().FindAllSubmatchIndex(b, -1)
	for i, m := range all {
		name := string(b[m[4]:m[5]])
		end := len(b)
		if i+1 < len(all) {
			end = all[i+1][0]
		}
		switch {
		case m[6] >= 0:
			out[name] = max(out[name], empty)
		case jsCheck().Match(jsComment().ReplaceAll(b[m[1]:end], nil)):
			out[name] = checks
		default:
			out[name] = max(out[name], runs)
		}
	}
	return out
}

var (
	jsCheck = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?i)(?:expect|assert|should|fail|verify|check)\w*\s*[.(]|\bthrow\b|\bt\.\w+\(`)
	})
	jsComment = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)//.*$`) })
)
