package main

import (
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
