package carboy

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestTypesHaveNames: a program elsewhere can't import what is under internal: whatever it gives or gets
// has a name in this package.
func TestTypesHaveNames(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	named, used := map[string]bool{}, map[string]token.Position{}
	fset := token.NewFileSet()
	for _, name := range files {
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if name == "example_test.go" {
			for _, s := range f.Imports {
				if path, _ := strconv.Unquote(s.Path.Value); strings.HasPrefix(path, module+"/") {
					t.Errorf("an example imports %s, which a program elsewhere can't", path)
				}
			}
		}
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		internal := map[string]bool{}
		for _, s := range f.Imports {
			if path, _ := strconv.Unquote(s.Path.Value); strings.HasPrefix(path, module+"/internal/") {
				internal[filepath.Base(path)] = true
			}
		}
		of := func(e ast.Expr) (string, bool) {
			s, ok := e.(*ast.SelectorExpr)
			if !ok {
				return "", false
			}
			pkg, ok := s.X.(*ast.Ident)
			return pkg.Name + "." + s.Sel.Name, ok && internal[pkg.Name]
		}
		use := func(n ast.Node) {
			ast.Inspect(n, func(n ast.Node) bool {
				if field, ok := n.(*ast.Field); ok && len(field.Names) > 0 && !field.Names[0].IsExported() {
					return false
				}
				if e, ok := n.(ast.Expr); ok {
					if typ, ok := of(e); ok {
						used[typ] = fset.Position(n.Pos())
					}
				}
				return true
			})
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if !d.Name.IsExported() || d.Recv != nil && !exported(d.Recv.List[0].Type) {
					continue
				}
				for _, list := range []*ast.FieldList{d.Type.Params, d.Type.Results} {
					if list == nil {
						continue
					}
					for _, field := range list.List {
						use(field.Type)
					}
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					ts, ok := s.(*ast.TypeSpec)
					if !ok || !ts.Name.IsExported() {
						continue
					}
					if typ, ok := of(ts.Type); ok && ts.Assign.IsValid() {
						named[typ] = true
						continue
					}
					use(ts.Type)
				}
			}
		}
	}
	for typ, at := range used {
		if !named[typ] {
			t.Errorf("%s: %s has no name in package carboy: give it one in api.go", at, typ)
		}
	}
	if len(used) < 20 {
		t.Errorf("only %d types were looked at", len(used))
	}
}

func exported(receiver ast.Expr) bool {
	if p, ok := receiver.(*ast.StarExpr); ok {
		receiver = p.X
	}
	name, ok := receiver.(*ast.Ident)
	return ok && name.IsExported()
}

// TestBackendByName: a client opens with each backend by its name, and refuses another
// name with those that there are.
func TestBackendByName(t *testing.T) {
	env := func(n string) string { return map[string]string{"XDG_STATE_HOME": t.TempDir(), "HOME": t.TempDir()}[n] }
	for _, name := range append(Backends(), "") {
		c, err := Open(t.Context(), Options{Env: env, Backend: name, Quick: true})
		if err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		c.Close()
	}
	var bad *OptionError
	if _, err := Open(t.Context(), Options{Env: env, Backend: "vmware"}); !errors.As(err, &bad) || !strings.Contains(bad.Advice, Backends()[0]) {
		t.Errorf("another name: %v", err)
	}
}
