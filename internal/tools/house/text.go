package main

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// sleepsFile lists the sleeps in tests that are meant, one a line:
//
//	FILE FUNCTION REASON
//
// FILE is relative to the module's directory; FUNCTION is the outermost one.
const sleepsFile = "internal/tools/house/sleeps.txt"

// rootLines counts the lines of the root package's product files.
func rootLines(s *source) (total int, places []place) {
	for _, f := range s.files {
		if !f.test && !strings.Contains(f.path, "/") {
			n := s.fset.File(f.tree.Pos()).LineCount()
			total += n
			places = append(places, place{f.path, 0, fmt.Sprint(n)})
		}
	}
	return total, places
}

// openings counts doc comments that say what a thing is by another sentence:
// "X is what …", where "returns" or a noun would do.
func openings(s *source) (int, []place) {
	form := regexp.MustCompile(`^// [A-Za-z_.]+( [a-z]+)? ?(is|are|has|was|were) (what|those|how|who|whom|where|when|of|that|as|everything|whether|why|for|in|on|only)\b`)
	var places []place
	s.docs(func(_ *file, g *ast.CommentGroup, _ ast.Node, _ []*ast.Ident) {
		if form.MatchString(g.List[0].Text) {
			places = append(places, s.at(g.Pos(), g.List[0].Text))
		}
	})
	return len(places), places
}

// misnamed counts doc comments that begin with another identifier than the one that
// they document: an old name, mostly. Any word with a capital inside counts as an
// identifier, and any first word about an exported function outside of tests.
func misnamed(s *source) (int, []place) {
	first := regexp.MustCompile(`^// (\w+)`)
	camel := regexp.MustCompile(`[a-z0-9][A-Z]`)
	var places []place
	s.docs(func(f *file, g *ast.CommentGroup, n ast.Node, names []*ast.Ident) {
		word := first.FindStringSubmatch(g.List[0].Text)
		if word == nil || len(names) == 0 || slices.ContainsFunc(names, func(id *ast.Ident) bool { return id.Name == word[1] }) {
			return
		}
		_, function := n.(*ast.FuncDecl)
		if camel.MatchString(word[1]) || function && !f.test && names[0].IsExported() {
			places = append(places, s.at(g.Pos(), names[0].Name+": "+g.List[0].Text))
		}
	})
	return len(places), places
}

// docs calls visit with each doc comment, its declaration, and the names that it declares.
func (s *source) docs(visit func(f *file, g *ast.CommentGroup, n ast.Node, names []*ast.Ident)) {
	for _, f := range s.files {
		doc := func(g *ast.CommentGroup, n ast.Node, names ...*ast.Ident) {
			if g != nil {
				visit(f, g, n, names)
			}
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.File:
				doc(n.Doc, n)
			case *ast.FuncDecl:
				doc(n.Doc, n, n.Name)
			case *ast.GenDecl:
				doc(n.Doc, n, declared(n)...)
			case *ast.TypeSpec:
				doc(n.Doc, n, n.Name)
			case *ast.ValueSpec:
				doc(n.Doc, n, n.Names...)
			case *ast.Field:
				doc(n.Doc, n, n.Names...)
			}
			return true
		})
	}
}

// declared returns the names of the specifications of d.
func declared(d *ast.GenDecl) (names []*ast.Ident) {
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			names = append(names, spec.Name)
		case *ast.ValueSpec:
			names = append(names, spec.Names...)
		}
	}
	return names
}

// words counts as wc -w does.
func words(s *source) (total int, places []place) {
	pages, _ := filepath.Glob(filepath.Join(s.dir, "docs", "*.md"))
	for _, page := range append([]string{filepath.Join(s.dir, "README.md")}, pages...) {
		b, err := os.ReadFile(page)
		if err != nil {
			continue
		}
		n := len(bytes.Fields(b))
		total += n
		places = append(places, place{s.rel(page), 0, fmt.Sprint(n)})
	}
	return total, places
}

// sleeps counts calls of time.Sleep in test files that the list does not have,
// and lines of the list that allow nothing.
func sleeps(s *source) (int, []place) {
	allowed, places := s.allowedSleeps()
	used := map[string]bool{}
	for _, f := range s.files {
		if !f.test {
			continue
		}
		for _, d := range f.tree.Decls {
			key := f.path + " " + declName(d)
			ast.Inspect(d, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && isSleep(call.Fun) {
					if allowed[key] == 0 {
						places = append(places, s.at(call.Pos(), "in "+declName(d)))
					}
					used[key] = true
				}
				return true
			})
		}
	}
	for key, line := range allowed {
		if !used[key] {
			places = append(places, place{sleepsFile, line, "allows a sleep that is not there: " + key})
		}
	}
	slices.SortFunc(places, byPlace)
	return len(places), places
}

// allowedSleeps returns the list, "FILE FUNCTION" to its line, and the places
// of lines that it can't read.
func (s *source) allowedSleeps() (map[string]int, []place) {
	allowed := map[string]int{}
	var bad []place
	b, _ := os.ReadFile(filepath.Join(s.dir, sleepsFile))
	lines := bufio.NewScanner(bytes.NewReader(b))
	for n := 1; lines.Scan(); n++ {
		f := strings.Fields(lines.Text())
		switch {
		case len(f) == 0 || strings.HasPrefix(f[0], "#"):
		case len(f) < 3:
			bad = append(bad, place{sleepsFile, n, "not FILE FUNCTION REASON"})
		default:
			allowed[f[0]+" "+f[1]] = n
		}
	}
	return allowed, bad
}

func isSleep(fun ast.Expr) bool {
	sel, ok := fun.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != "Sleep" {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == "time"
}

// declName is Func, Type.Method, or the first name of a declaration of
// variables.
func declName(d ast.Decl) string {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv != nil && len(d.Recv.List) > 0 {
			return receiver(d.Recv.List[0].Type) + "." + d.Name.Name
		}
		return d.Name.Name
	case *ast.GenDecl:
		if d.Tok == token.VAR {
			return d.Specs[0].(*ast.ValueSpec).Names[0].Name
		}
	}
	return ""
}

func receiver(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.StarExpr:
		return receiver(x.X)
	case *ast.IndexExpr:
		return receiver(x.X)
	case *ast.IndexListExpr:
		return receiver(x.X)
	case *ast.Ident:
		return x.Name
	}
	return "?"
}

func byPlace(a, b place) int {
	return cmp.Or(strings.Compare(a.file, b.file), a.line-b.line, strings.Compare(a.text, b.text))
}
