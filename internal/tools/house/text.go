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
	form := regexp.MustCompile(`^// [A-Za-z_.]+( [a-z]+)? ?(is|are|has|was|were) (what|those|how|who|whom|where|when|of|that|as|everything|whether)\b`)
	var places []place
	for _, f := range s.files {
		doc := func(g *ast.CommentGroup) {
			if g != nil && form.MatchString(g.List[0].Text) {
				places = append(places, s.at(g.Pos(), g.List[0].Text))
			}
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.File:
				doc(n.Doc)
			case *ast.FuncDecl:
				doc(n.Doc)
			case *ast.GenDecl:
				doc(n.Doc)
			case *ast.TypeSpec:
				doc(n.Doc)
			case *ast.ValueSpec:
				doc(n.Doc)
			case *ast.Field:
				doc(n.Doc)
			}
			return true
		})
	}
	return len(places), places
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
