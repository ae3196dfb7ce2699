package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// source is a module's source, parsed and type-checked.
type source struct {
	dir    string // absolute
	module string
	fset   *token.FileSet
	files  []*file // all, in the order of their paths
	pkgs   []*unit // product packages
	tests  []*unit // the packages that tests make of them
	byPath map[string]*unit
	gc     types.Importer // for what is not the module's
	outer  []string       // import paths of that
}

// A file is one Go file below the module's directory, even one that is not
// built for this system.
type file struct {
	path string // relative, with slashes
	test bool
	tree *ast.File
}

// A unit is a set of files that is type-checked together.
type unit struct {
	listed
	files []*ast.File
	types *types.Package
	info  *types.Info
}

// listed is the part of go list's answer that is used.
type listed struct {
	ImportPath, Dir, Name              string
	GoFiles, TestGoFiles, XTestGoFiles []string
	Imports, TestImports, XTestImports []string
}

// wellKnown are packages with interfaces that methods are called through,
// though the package of the method need not import them.
var wellKnown = []string{"encoding", "encoding/json", "encoding/xml", "errors", "flag", "fmt", "io", "io/fs", "log/slog", "net/http", "sort"}

func load(dir string) (*source, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s := &source{dir: dir, fset: token.NewFileSet(), byPath: map[string]*unit{}}
	if err := s.parse(); err != nil {
		return nil, err
	}
	if err := s.list(); err != nil {
		return nil, err
	}
	for _, u := range s.pkgs {
		if _, err := s.Import(u.ImportPath); err != nil {
			return nil, err
		}
	}
	for _, u := range s.pkgs {
		s.checkTests(u)
	}
	return s, nil
}

// parse reads every Go file, except below directories that go ignores.
func (s *source) parse() error {
	return filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, nested := os.Stat(filepath.Join(path, "go.mod"))
			if name := d.Name(); path != s.dir && (nested == nil || name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		tree, err := parser.ParseFile(s.fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		s.files = append(s.files, &file{path: s.rel(path), test: strings.HasSuffix(path, "_test.go"), tree: tree})
		return nil
	})
}

// list asks go for the packages, and for the compiled form of what they import.
func (s *source) list() error {
	out, err := s.goCommand("list", "-json=ImportPath,Dir,Name,GoFiles,TestGoFiles,XTestGoFiles,Imports,TestImports,XTestImports", "./...")
	if err != nil {
		return err
	}
	trees := map[string]*ast.File{}
	for _, f := range s.files {
		trees[f.path] = f.tree
	}
	outer := slices.Clone(wellKnown)
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		u := &unit{}
		if err := dec.Decode(&u.listed); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		for _, name := range u.GoFiles {
			u.files = append(u.files, trees[s.rel(filepath.Join(u.Dir, name))])
		}
		s.pkgs = append(s.pkgs, u)
		s.byPath[u.ImportPath] = u
		outer = append(outer, slices.Concat(u.Imports, u.TestImports, u.XTestImports)...)
	}
	slices.Sort(outer)
	outer = slices.DeleteFunc(slices.Compact(outer), func(path string) bool {
		return s.byPath[path] != nil || path == "unsafe" || path == "C"
	})
	if out, err = s.goCommand("list", "-m"); err != nil {
		return err
	}
	s.module = strings.TrimSpace(string(out))
	out, err = s.goCommand(slices.Concat([]string{"list", "-export", "-f", "{{.ImportPath}}\t{{.Export}}"}, outer)...)
	if err != nil {
		return err
	}
	compiled := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		compiled[path] = name
	}
	s.outer = outer
	s.gc = importer.ForCompiler(s.fset, "gc", func(path string) (io.ReadCloser, error) {
		if compiled[path] == "" {
			return nil, fmt.Errorf("go list has no compiled form of %s", path)
		}
		return os.Open(compiled[path])
	})
	return nil
}

func (s *source) goCommand(args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("go %s: %w\n%s", args[0], err, exit.Stderr)
	}
	return out, err
}

// Import implements types.Importer. All product packages of the module are
// checked once, so that an object of one is the same object in all.
func (s *source) Import(path string) (*types.Package, error) {
	u := s.byPath[path]
	switch {
	case path == "unsafe":
		return types.Unsafe, nil
	case u == nil:
		return s.gc.Import(path)
	case u.types != nil:
		return u.types, nil
	}
	u.info = newInfo()
	var err error
	u.types, err = (&types.Config{Importer: s}).Check(path, s.fset, u.files, u.info)
	return u.types, err
}

// checkTests checks the two packages that the tests of u are in. Errors are
// ignored: where a test's own variant of u meets another package's, types
// differ that are the same when go builds the test. go vet finds real ones.
func (s *source) checkTests(u *unit) {
	variant := u.types
	if len(u.TestGoFiles) > 0 {
		t := &unit{listed: u.listed, files: append(slices.Clone(u.files), s.trees(u, u.TestGoFiles)...), info: newInfo()}
		conf := types.Config{Importer: s, Error: func(error) {}}
		t.types, _ = conf.Check(u.ImportPath, s.fset, t.files, t.info)
		s.tests = append(s.tests, t)
		variant = t.types
	}
	if len(u.XTestGoFiles) > 0 {
		t := &unit{listed: u.listed, files: s.trees(u, u.XTestGoFiles), info: newInfo()}
		conf := types.Config{Importer: variantImporter{s, variant}, Error: func(error) {}}
		t.types, _ = conf.Check(u.ImportPath+"_test", s.fset, t.files, t.info)
		s.tests = append(s.tests, t)
	}
}

// variantImporter imports the package under test as its own tests extend it.
type variantImporter struct {
	*source
	variant *types.Package
}

func (v variantImporter) Import(path string) (*types.Package, error) {
	if path == v.variant.Path() {
		return v.variant, nil
	}
	return v.source.Import(path)
}

func (s *source) trees(u *unit, names []string) (out []*ast.File) {
	for _, f := range s.files {
		if f.test && filepath.Join(s.dir, filepath.Dir(f.path)) == u.Dir && slices.Contains(names, filepath.Base(f.path)) {
			out = append(out, f.tree)
		}
	}
	return out
}

func newInfo() *types.Info {
	return &types.Info{Uses: map[*ast.Ident]types.Object{}, Types: map[ast.Expr]types.TypeAndValue{}}
}

func (s *source) rel(path string) string {
	rel, err := filepath.Rel(s.dir, path)
	if err != nil {
		return path
	}
	return filepath.ToSlash(rel)
}

// at returns the place of pos, with a text.
func (s *source) at(pos token.Pos, text string) place {
	p := s.fset.Position(pos)
	return place{s.rel(p.Filename), p.Line, text}
}
