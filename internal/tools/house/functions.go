package main

import (
	"fmt"
	"go/ast"
	"go/token"
)

// longFunctions counts product functions by their lines, from func to }.
func longFunctions(s *source) (int, []place) {
	return s.functions(maxLines, func(n ast.Node) int {
		return s.fset.Position(n.End()).Line - s.fset.Position(n.Pos()).Line + 1
	})
}

// complexFunctions counts product functions by gocyclo's measure.
func complexFunctions(s *source) (int, []place) { return s.functions(maxComplexity, complexity) }

// functions returns the functions whose measure is over limit. A literal counts
// as part of the function that it is in, or by itself in a variable.
func (s *source) functions(limit int, measure func(ast.Node) int) (int, []place) {
	var places []place
	add := func(pos token.Pos, name string, body ast.Node) {
		if n := measure(body); n > limit {
			places = append(places, s.at(pos, fmt.Sprintf("%s: %d", name, n)))
		}
	}
	for _, f := range s.files {
		if f.test {
			continue
		}
		for _, d := range f.tree.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				// A doc comment is no line of the function.
				add(fn.Type.Pos(), declName(d), &ast.FuncDecl{Recv: fn.Recv, Name: fn.Name, Type: fn.Type, Body: fn.Body})
				continue
			}
			ast.Inspect(d, func(n ast.Node) bool {
				lit, ok := n.(*ast.FuncLit)
				if ok {
					add(lit.Pos(), "a literal in "+declName(d), lit)
				}
				return !ok
			})
		}
	}
	return len(places), places
}

// complexity is one and the number of places where the flow forks.
func complexity(fn ast.Node) int {
	total := 1
	ast.Inspect(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt:
			total++
		case *ast.CaseClause:
			if n.List != nil {
				total++
			}
		case *ast.CommClause:
			if n.Comm != nil {
				total++
			}
		case *ast.BinaryExpr:
			if n.Op == token.LAND || n.Op == token.LOR {
				total++
			}
		}
		return true
	})
	return total
}
