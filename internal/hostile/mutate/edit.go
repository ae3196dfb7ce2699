package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

// change is one edit of the source. Text is looked for in the nodes of Dir's
// syntax trees that kind selects, without its white space, and must be in
// exactly one of them, or be exactly one of them: line breaks and file names don't
// matter.
type change struct {
	dir  string
	kind kind
	text string
	new  string // of swap: the expression that is evaluated instead
}

type kind int

const (
	// off makes a condition that contains the text false.
	off kind = iota
	// on makes a condition that contains the text true.
	on
	// drop leaves out a statement that contains the text: a call, an assignment,
	// an increment, or an if whose own statement (if err := f(); …) contains it.
	drop
	// swap evaluates another expression instead of the one that the text is.
	swap
)

func (k kind) String() string {
	return [...]string{"condition", "condition", "statement", "expression"}[k]
}

// switchSource is a package that is added to the tree for a mutated build. A
// test binary is the mutant that it is named after. It is not a variable of the
// environment, because carboy starts its inner processes without one.
const switchSource = `package mutation

import (
	"os"
	"path/filepath"
	"strings"
)

var active = func() string {
	exe, _ := os.Readlink("/proc/self/exe")
	return strings.TrimSuffix(filepath.Base(exe), ".test")
}()

func On(name string) bool { return active == name }

func Pick[T any](name string, mutated, original T) T {
	if active == name {
		return mutated
	}
	return original
}
`

const switchImport = "github.com/carboy/carboy/internal/hostile/mutation"

// overlay writes, below dir, the files of the tree at root with all mutants in
// them, each behind its switch, and the list of these files for go's -overlay.
func overlay(root, dir string, ms []mutant) (string, error) {
	b := builder{root: root, fset: token.NewFileSet(), dirs: map[string][]*source{}}
	for _, m := range ms {
		for _, c := range m.Changes {
			if err := b.add(m.Name, c); err != nil {
				return "", fmt.Errorf("%s: %w", m.Name, err)
			}
		}
	}
	replace := map[string]string{}
	write := func(path, text string) error {
		to := filepath.Join(dir, fmt.Sprint(len(replace), ".go"))
		replace[filepath.Join(root, path)] = to
		return os.WriteFile(to, []byte(text), 0o644)
	}
	if err := write(strings.TrimPrefix(switchImport, "github.com/carboy/carboy/")+"/mutation.go", switchSource); err != nil {
		return "", err
	}
	for _, files := range b.dirs {
		for _, f := range files {
			if len(f.inserts) == 0 {
				continue
			}
			text := f.mutated(b.fset)
			if _, err := parser.ParseFile(token.NewFileSet(), f.path, text, parser.SkipObjectResolution); err != nil {
				return "", fmt.Errorf("after the changes: %w", err)
			}
			if err := write(f.path, text); err != nil {
				return "", err
			}
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, list, 0o644)
}

type builder struct {
	root string
	fset *token.FileSet
	dirs map[string][]*source
}

// source is a file and what is inserted into it.
type source struct {
	path    string
	text    []byte
	tree    *ast.File
	inserts []insert
}

type insert struct {
	at   int
	text string
}

// add finds the node of a change and inserts its switch around it.
func (b *builder) add(name string, c change) error {
	files, err := b.load(c.dir)
	if err != nil {
		return err
	}
	var found []node
	for _, f := range files {
		found = append(found, f.find(b.fset, c)...)
	}
	if slices.ContainsFunc(found, node.isWhole) {
		found = slices.DeleteFunc(found, func(n node) bool { return !n.whole })
	}
	if len(found) != 1 {
		return fmt.Errorf("%s: %q is in %d %ss, not in one: the code has changed; say anew where the defence is", c.dir, c.text, len(found), c.kind)
	}
	in, at := found[0].in, found[0].Node
	before, after := "", ")"
	switch c.kind {
	case off:
		before = fmt.Sprintf("!mutation.On(%q) && (", name)
	case on:
		before = fmt.Sprintf("mutation.On(%q) || (", name)
	case swap:
		before = fmt.Sprintf("mutation.Pick(%q, %s, ", name, c.new)
	case drop:
		before, after = fmt.Sprintf("if !mutation.On(%q) { ", name), " }"
	}
	in.inserts = append(in.inserts,
		insert{b.fset.Position(at.Pos()).Offset, before},
		insert{b.fset.Position(at.End()).Offset, after})
	return nil
}

// load parses the files of a directory that are built here, but for tests.
func (b *builder) load(dir string) ([]*source, error) {
	if files, ok := b.dirs[dir]; ok {
		return files, nil
	}
	names, err := filepath.Glob(filepath.Join(b.root, dir, "*.go"))
	if err != nil || len(names) == 0 {
		return nil, fmt.Errorf("no Go files in %s", dir)
	}
	var files []*source
	for _, name := range names {
		match, err := build.Default.MatchFile(filepath.Split(name))
		if err != nil || !match || strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		tree, err := parser.ParseFile(b.fset, name, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, &source{path: filepath.Join(dir, filepath.Base(name)), text: text, tree: tree})
	}
	b.dirs[dir] = files
	return files, nil
}

// node is one that a change may be about.
type node struct {
	ast.Node
	in    *source
	whole bool // the text is all of it
}

func (n node) isWhole() bool { return n.whole }

// find returns the nodes that contain a change's text.
func (f *source) find(fset *token.FileSet, c change) (found []node) {
	want := tight(c.text)
	try := func(n, around ast.Node) {
		text := tight(string(f.text[fset.Position(n.Pos()).Offset:fset.Position(n.End()).Offset]))
		if text == want || c.kind != swap && strings.Contains(text, want) {
			found = append(found, node{around, f, text == want})
		}
	}
	ast.Inspect(f.tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			if c.kind == off || c.kind == on {
				try(n.Cond, n.Cond)
			} else if c.kind == drop && n.Init != nil {
				try(n.Init, n)
			}
		case *ast.ForStmt:
			if (c.kind == off || c.kind == on) && n.Cond != nil {
				try(n.Cond, n.Cond)
			}
		case *ast.SwitchStmt:
			for _, clause := range n.Body.List {
				if n.Tag == nil && (c.kind == off || c.kind == on) {
					for _, cond := range clause.(*ast.CaseClause).List {
						try(cond, cond)
					}
				}
			}
		case *ast.BlockStmt:
			f.statements(n.List, c.kind, try)
		case *ast.CaseClause:
			f.statements(n.Body, c.kind, try)
		case ast.Expr:
			if c.kind == swap {
				try(n, n)
			}
		}
		return true
	})
	return found
}

// statements tries those of a list that can be left out.
func (f *source) statements(list []ast.Stmt, k kind, try func(n, around ast.Node)) {
	for _, s := range list {
		assign, isAssign := s.(*ast.AssignStmt)
		_, isCall := s.(*ast.ExprStmt)
		_, isInc := s.(*ast.IncDecStmt)
		if k == drop && (isCall || isInc || isAssign && assign.Tok != token.DEFINE) {
			try(s, s)
		}
	}
}

// mutated returns the file's text with the switches. They all stand in the lines
// that were there, so that what a compiler or test says of a line holds.
func (f *source) mutated(fset *token.FileSet) string {
	inserts := append([]insert{{fset.Position(f.tree.Name.End()).Offset, fmt.Sprintf("; import mutation %q", switchImport)}}, f.inserts...)
	slices.SortStableFunc(inserts, func(a, b insert) int { return a.at - b.at })
	var out strings.Builder
	at := 0
	for _, i := range inserts {
		out.Write(f.text[at:i.at])
		out.WriteString(i.text)
		at = i.at
	}
	out.Write(f.text[at:])
	return out.String()
}

// tight returns text without white space, as which gofmt's choices don't matter.
func tight(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, text)
}
