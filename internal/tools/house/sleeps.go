package main

import (
	"bufio"
	"bytes"
	"go/ast"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// sleepsFile lists the sleeps in tests that are meant, one a line:
//
//	FILE FUNCTION REASON
//
// FILE is relative to the module's directory; FUNCTION is the outermost one.
const sleepsFile = "internal/tools/house/sleeps.txt"

// sleeps counts waits for time in the code of tests that the list does not have, and lines
// of the list that allow nothing.
func sleeps(s *source) (int, []place) {
	allowed, places := s.allowedSleeps()
	used := map[string]bool{}
	helpers := s.testHelpers()
	for _, f := range s.files {
		if !f.test && !helpers[path.Dir(f.path)] {
			continue
		}
		for _, d := range f.tree.Decls {
			key := f.path + " " + declName(d)
			for _, pos := range waits(d) {
				if allowed[key] == 0 {
					places = append(places, s.at(pos, "in "+declName(d)))
				}
				used[key] = true
			}
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

// testHelpers returns the directories of the packages that only tests need: neither the
// root package nor a program below cmd imports them. Other programs are a developer's.
func (s *source) testHelpers() map[string]bool {
	helpers := map[string]bool{}
	dir := func(u *unit) string { return s.rel(u.Dir) }
	for _, u := range s.pkgs {
		helpers[dir(u)] = u.Name != "main"
	}
	var product func(*unit)
	product = func(u *unit) {
		if u == nil || !helpers[dir(u)] {
			return // of another module, or visited
		}
		helpers[dir(u)] = false
		for _, name := range u.Imports {
			product(s.byPath[name])
		}
	}
	for _, u := range s.pkgs {
		if d := dir(u); d == "." || strings.HasPrefix(d, "cmd/") {
			helpers[d] = true
			product(u)
		}
	}
	return helpers
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

// waits returns the places in d that wait for time: calls of time.Sleep, and receives from
// a timer or ticker. The clause of a select that ends a test, or returns, is a time-out of
// another wait, and so is left out.
func waits(d ast.Decl) (all []token.Pos) {
	clocks, timeouts := map[string]bool{}, map[ast.Node]bool{}
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, x := range n.Rhs {
				if id, ok := n.Lhs[i].(*ast.Ident); ok && ofTime(x, "After", "Tick", "NewTimer", "NewTicker") {
					clocks[id.Name] = true
				}
			}
		case *ast.CommClause:
			if x, ok := n.Comm.(*ast.ExprStmt); ok && slices.ContainsFunc(n.Body, leaves) {
				timeouts[x.X] = true
			}
		}
		return true
	})
	clock := func(x ast.Expr) bool {
		if sel, ok := x.(*ast.SelectorExpr); ok && sel.Sel.Name == "C" {
			x = sel.X
		}
		id, ok := x.(*ast.Ident)
		return ok && clocks[id.Name] || ofTime(x, "After", "Tick", "NewTimer", "NewTicker")
	}
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if ofTime(n, "Sleep") {
				all = append(all, n.Pos())
			}
		case *ast.RangeStmt:
			if clock(n.X) {
				all = append(all, n.Pos())
			}
		case *ast.UnaryExpr:
			if n.Op == token.ARROW && clock(n.X) && !timeouts[n] {
				all = append(all, n.Pos())
			}
		}
		return true
	})
	return all
}

// ofTime reports whether x calls one of these functions of package time.
func ofTime(x ast.Expr, names ...string) bool {
	call, ok := x.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains(names, sel.Sel.Name) {
		return false
	}
	pkg, ok := sel.X.(*ast.Ident)
	return ok && pkg.Name == "time"
}

// failures lists the functions that report a failure or end a test.
var failures = []string{"Error", "Errorf", "Fatal", "Fatalf", "FailNow", "Skip", "Skipf", "Exit", "panic"}

// leaves reports whether x ends the statements around it or reports a failure.
func leaves(x ast.Stmt) bool {
	switch x := x.(type) {
	case *ast.ReturnStmt:
		return true
	case *ast.BranchStmt:
		return x.Label != nil
	case *ast.ExprStmt:
		if call, ok := x.X.(*ast.CallExpr); ok {
			switch f := call.Fun.(type) {
			case *ast.Ident:
				return slices.Contains(failures, f.Name)
			case *ast.SelectorExpr:
				return slices.Contains(failures, f.Sel.Name)
			}
		}
	}
	return false
}
