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
	was := map[string]map[string]bool{}
	if err := base.Each(ctx, pick, func(f File, b []byte) error { was[f.Path] = bodiesOf(f.Path)(b); return nil }); err != nil {
		return nil, err
	}
	var out []Finding
	err := change.Each(ctx, pick, func(f File, b []byte) error {
		for name, full := range bodiesOf(f.Path)(b) {
			if !full && was[f.Path][name] {
				out = append(out, Finding{ID: f.Path + "::" + name, File: f.Path, Text: "the test had a body on the base, and has none that could fail"})
			}
		}
		return nil
	})
	return out, err
}

// bodiesOf chooses how to find the tests of a file: by name, and whether there is
// anything in them. Nil: it is no file of tests that is known.
func bodiesOf(p string) func([]byte) map[string]bool {
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

func goBodies(b []byte) map[string]bool {
	out := map[string]bool{}
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
				out[fn.Name.Name] = goHasBody(fn.Body)
			}
		}
	}
	return out
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

func pythonBodies(b []byte) map[string]bool {
	out := map[string]bool{}
	name, indent := "", 0
	for _, raw := range bytes.Split(b, []byte("\n")) {
		line := string(raw)
		text := strings.TrimSpace(line)
		in := len(line) - len(strings.TrimLeft(line, " \t"))
		if m := pythonDef().FindStringSubmatch(line); m != nil {
			name, indent = m[2], len(m[1])
			if _, rest, ok := strings.Cut(text, "):"); ok && meansSomething(strings.TrimSpace(rest)) {
				out[name] = true
			} else if _, ok := out[name]; !ok {
				out[name] = false
			}
			continue
		}
		if name == "" || text == "" {
			continue
		}
		if in <= indent {
			name = ""
			continue
		}
		if meansSomething(text) {
			out[name] = true
		}
	}
	return out
}

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

func jsBodies(b []byte) map[string]bool {
	out := map[string]bool{}
	for _, m := range jsTest().FindAllSubmatch(b, -1) {
		out[string(m[2])] = len(m[3]) == 0
	}
	return out
}
