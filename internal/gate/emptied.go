package gate

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	goconstant "go/constant"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// maxTestText bounds a file of tests that is compared, in bytes.
const maxTestText = 8 << 20

// inText is a test as a file has it: what its runner knows it by beside its name, and that;
// and where it is, which two of one file or of several can differ in that a runner does not
// tell apart. Of Go's, that is nowhere: a package has one of a name.
type inText struct{ in, name, file, full, leaf string }

// asKnown is it as far as its runner knows.
func (t inText) asKnown() inText { return inText{in: t.in, name: t.name} }

// texts are bodies of tests by their text. There can be several of one name, of which the
// text alone does not say which one runs.
type texts map[inText]*sameName

// elsewhere are tests that others have not in the same place, as their runner knows them.
func (all texts) elsewhere(others texts) texts {
	out := texts{}
	for t, s := range all {
		if others[t] != nil {
			continue
		}
		k := t.asKnown()
		if out[k] == nil {
			out[k] = &sameName{}
		}
		for b, n := range s.bodies {
			if n > 0 {
				out[k].bodies[b] += n
				out[k].file[b] = max(out[k].file[b], s.file[b])
			}
		}
	}
	return out
}

type sameName struct {
	bodies [checks + 1]int    // how many there are of each
	file   [checks + 1]string // and where the last one is
}

// below is how many have no more in them than that.
func (s *sameName) below(b body) (n int) {
	for i := empty; i <= b; i++ {
		n += s.bodies[i]
	}
	return n
}

func (s *sameName) best() body {
	for b := checks; b > 0; b-- {
		if s.bodies[b] > 0 {
			return b
		}
	}
	return 0
}

// emptied finds tests that had a body on the base and have none that could fail on the
// change. It looks at the text of files of tests that differ; a test can be made to
// prove less in many more ways, which the policy signal names the files of. Which tests
// passed on both sides is what their runner says, by ids.
func emptied(ctx context.Context, base, change *Tree, format string, passed []string) ([]Finding, error) {
	same, err := change.sameAs(ctx, base)
	if err != nil {
		return nil, err
	}
	asBase, err := base.sameAs(ctx, change)
	if err != nil {
		return nil, err
	}
	was, unread, err := textsOf(ctx, base, asBase, format, passed)
	if err != nil {
		return nil, err
	}
	is, out, err := textsOf(ctx, change, same, format, passed)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{} // to be not known
	for _, f := range out {
		known[f.File] = true
	}
	for _, f := range unread {
		if _, there := change.Lookup(f.File); there && !known[f.File] {
			f.Text = "on the base " + f.Text
			out = append(out, f)
		}
	}
	compare := func(is, was texts) {
		for t, s := range is {
			before := was[t]
			if before == nil {
				continue
			}
			name := t.name
			if t.full != "" {
				name = t.full
			}
			say := func(b body, what string) {
				out = append(out, Finding{ID: s.file[b] + "::" + name, File: s.file[b], Text: what})
			}
			// More of them than before, or nothing better: another one of the name may be
			// there for show.
			less := func(b, from body) bool {
				return before.best() >= from && s.below(b) > 0 && (s.below(b) > before.below(b) || s.best() <= b)
			}
			switch {
			case less(empty, runs) && strings.HasSuffix(s.file[empty], ".go") && !(strings.HasSuffix(s.file[empty], "_test.go") && goTestName(t.name)):
				say(empty, "tests are handed to it, and it has nothing any more that could fail them")
			case less(empty, runs):
				say(empty, "the test had a body on the base, and has none that could fail")
			case less(runs, checks) && s.bodies[runs] > 0:
				say(runs, "the test checked something on the base, and nothing in it says that it failed any more")
			}
		}
	}
	compare(is, was)
	compare(is.elsewhere(was), was.elsewhere(is))
	left, err := leftText(ctx, was, is, change, format, passed, known)
	if err != nil {
		return nil, err
	}
	for id, t := range left {
		file := was[t].file[checks]
		out = append(out, Finding{ID: id, File: file, Text: "the test is no longer in the text of its file, and passes there: nothing shows what it checks. If it does, put this id into accept"})
	}
	slices.SortFunc(out, func(a, b Finding) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// textsOf reads a tree's files of tests that the other one has not so, and says of which
// it can't. Others need not be read, and decide by being the same.
func textsOf(ctx context.Context, t *Tree, same func(File) bool, format string, passed []string) (texts, []Finding, error) {
	out := texts{}
	ran := goRan(t, format, passed)
	var unread []Finding
	why := func(f File, what string) {
		unread = append(unread, Finding{ID: f.Path, File: f.Path, Text: what + ", so what its tests have in them can't be compared"})
	}
	err := t.Each(ctx, func(f File) bool {
		switch {
		case bodiesOf(f.Path) == nil:
		case helpsTests(f.Path):
			// What tests are handed to can be anywhere in Go. One that no phase opened is
			// none of it, so it need not be an input.
			return f.Mode != Link && !same(f)
		case same(f):
			t.note(f.Path)
		case f.Mode == Link:
			t.note(f.Path)
			why(f, "it is a link")
		case f.Size > maxTestText:
			t.note(f.Path)
			why(f, fmt.Sprintf("it has %d bytes, and may have %d", f.Size, maxTestText))
		default:
			return true
		}
		return false
	}, func(f File, b []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		found, err := bodiesOf(f.Path)(b)
		if err != nil {
			if !strings.HasSuffix(f.Path, ".go") || !goIgnores(f.Path) && (helpsTests(f.Path) || ran(f.Path)) {
				why(f, err.Error())
			}
			return nil
		}
		// By the file's directory too: runners know a test of Go by its package, so one that
		// moves to another file is the same. JUnit's need not know files at all.
		in := f.Path
		switch {
		case strings.HasSuffix(f.Path, ".go"):
			in = path.Dir(f.Path)
		case format == "junit":
			in = path.Ext(f.Path)
			if in != ".py" {
				in = ".js"
			}
		}
		for name, list := range found {
			x := inText{in, name, f.Path, strings.ReplaceAll(name, "\x00", " "), name[strings.LastIndexAny(name, ".\x00")+1:]}
			switch path.Ext(f.Path) {
			case ".go":
				x = inText{in: in, name: name}
			case ".py":
			default: // before its own name stand those of what it is in, which JUnit need not have
				x.leaf = name[strings.LastIndexByte(name, 0)+1:]
				if x.name = x.full; format == "junit" {
					x.name = x.leaf
				}
			}
			if out[x] == nil {
				out[x] = &sameName{}
			}
			for _, b := range list {
				out[x].bodies[b]++
				out[x].file[b] = f.Path
			}
		}
		return nil
	})
	return out, unread, err
}

// body is what a test's text has in it.
type body int

const (
	empty  body = iota + 1 // nothing that could fail
	runs                   // something, and nothing that says of itself that it failed
	helped                 // a call of what checks, in the same file
	checks                 // an assertion, a failure, or a call that is handed the test
)

// bodiesOf chooses how to find the tests of a file: by name, and what is in each of that
// name. Nil: it is no file of tests that is known.
func bodiesOf(p string) func([]byte) (map[string][]body, error) {
	base := path.Base(p)
	switch {
	case helpsTests(p):
		return func(b []byte) (map[string][]body, error) {
			if !importsTesting(b) {
				return nil, nil
			}
			return goBodies(b)
		}
	case strings.HasSuffix(base, "_test.go"):
		return goBodies
	case !isTestName(p) && jsFile().MatchString(base) && slices.ContainsFunc(strings.Split(path.Dir(p), "/"), func(e string) bool {
		return slices.Contains([]string{"fixtures", "__fixtures__", "testdata"}, e)
	}):
		return nil // what tests are about
	case strings.HasSuffix(base, ".py") && isTestFile(p):
		return pythonBodies
	case isTestFile(p) && jsFile().MatchString(base):
		return jsBodies
	}
	return nil
}

// goIgnores is of what lies where Go looks for no packages by itself.
func goIgnores(p string) bool {
	return slices.ContainsFunc(strings.Split(p, "/"), func(e string) bool { return e == "testdata" || e[0] == '_' || e[0] == '.' })
}

// goRan gives what reports whether tests of a file's package may have passed, as far as ids
// say it. Where none did Go need not know the file either: it may be a template.
func goRan(t *Tree, format string, passed []string) func(p string) bool {
	switch format {
	case "pytest", "jest", "vitest":
		return func(string) bool { return false } // nor does it run any
	case "go":
	default:
		return func(string) bool { return true }
	}
	ran := sync.OnceValue(func() map[string]bool { // ends of packages' names
		out := map[string]bool{}
		for _, id := range passed {
			i := strings.LastIndexByte(id, '.')
			if i < 0 || !goTestName(id[i+1:]) || strings.Contains(id[i:], "/") {
				continue // a part of one
			}
			for pkg, more := id[:i], true; more && !out[pkg]; _, pkg, more = strings.Cut(pkg, "/") {
				out[pkg] = true
			}
		}
		return out
	})
	return func(p string) bool {
		dir := path.Dir(p)
		module := dir
		for module != "." {
			if _, ok := t.Lookup(path.Join(module, "go.mod")); ok {
				break
			}
			module = path.Dir(module)
		}
		// Packages are called by their directories, behind what their module says. What go
		// test was given by files is called by none.
		rel := dir
		if module != "." {
			rel = strings.TrimPrefix(dir, module+"/")
		}
		return len(ran()) > 0 && (dir == module || ran()[rel] || ran()["command-line-arguments"])
	}
}

// helpsTests reports whether a file is no file of tests, and can have what they call.
func helpsTests(p string) bool {
	return strings.HasSuffix(p, ".go") && !strings.HasSuffix(p, "_test.go")
}

var jsFile = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\.[cm]?[jt]sx?$`) })

// importsTesting reports whether a file has anything to do with tests, however it writes
// that.
func importsTesting(b []byte) bool {
	f, err := parser.ParseFile(token.NewFileSet(), "", b, parser.ImportsOnly)
	return err == nil && slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool {
		name, err := strconv.Unquote(i.Path.Value)
		return err == nil && name == "testing"
	})
}

func goBodies(b []byte) (map[string][]body, error) {
	if len(b) > maxTestText {
		return nil, fmt.Errorf("it has %d bytes, and may have %d", len(b), maxTestText)
	}
	out := map[string][]body{}
	f, err := parser.ParseFile(token.NewFileSet(), "", b, parser.SkipObjectResolution)
	if err != nil {
		return nil, errors.New("it is no Go that this version knows")
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		prune(fn.Type, fn.Body)
		name := fn.Name.Name
		if fn.Recv != nil {
			typ, _ := receiver(fn)
			name = typ + "." + name
		}
		switch {
		case goTest(fn):
			out[name] = append(out[name], goBody(fn))
		case fn.Recv != nil && goTestName(name) && !handedTest(fn):
			// A suite can run one that gives something. Of others it always has as little.
			out[name] = append(out[name], empty)
		case handedTest(fn) && goHasBody(fn):
			// What fails a test may be in what it calls. One that fails less may be right.
			out[name] = append(out[name], runs)
		case handedTest(fn):
			out[name] = append(out[name], empty)
		}
	}
	return out, nil
}

// receiver is the type that a method is of, and what it calls that itself.
func receiver(fn *ast.FuncDecl) (typ, name string) {
	if fn.Recv.NumFields() == 0 {
		return "", ""
	}
	of := fn.Recv.List[0]
	ast.Inspect(of.Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && typ == "" {
			typ = id.Name
		}
		return typ == ""
	})
	if len(of.Names) > 0 {
		name = of.Names[0].Name
	}
	return typ, name
}

// goTestName is of a function, or of a method behind its type: suites have such.
func goTestName(name string) bool {
	name = name[strings.LastIndexByte(name, '.')+1:]
	return slices.ContainsFunc([]string{"Test", "Fuzz", "Example"}, func(p string) bool { return strings.HasPrefix(name, p) })
}

// goTest reports whether a function may be run as a test, by its suite if it is a method.
func goTest(fn *ast.FuncDecl) bool {
	if !goTestName(fn.Name.Name) || fn.Type.Results.NumFields() > 0 {
		return false
	}
	switch fn.Type.Params.NumFields() {
	case 0:
		return fn.Recv != nil || strings.HasPrefix(fn.Name.Name, "Example")
	case 1:
		p := fn.Type.Params.List[0]
		_, pointer := p.Type.(*ast.StarExpr)
		return (pointer || isTest(p)) && !strings.HasPrefix(fn.Name.Name, "Example")
	}
	return handedTest(fn)
}

// isTest is of parameters that are a test, as far as their type's name says.
func isTest(p *ast.Field) bool {
	typ := p.Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	name := ""
	switch x := typ.(type) {
	case *ast.Ident:
		name = x.Name
	case *ast.SelectorExpr:
		name = x.Sel.Name
	}
	return slices.Contains([]string{"T", "B", "F", "M", "C", "TB", "TestingT"}, name)
}

// handedTest reports whether a function gets a test, or a part of one.
func handedTest(fn *ast.FuncDecl) bool {
	return slices.ContainsFunc(fn.Type.Params.List, func(f *ast.Field) bool {
		typ := f.Type
		if star, ok := typ.(*ast.StarExpr); ok {
			typ = star.X
		}
		sel, ok := typ.(*ast.SelectorExpr)
		return ok && slices.Contains([]string{"T", "B", "F", "TB"}, sel.Sel.Name)
	})
}

// prune takes out what never runs, as far as the text alone says so, of a function and of
// those in it. Each statement is come by twice, however deep it is.
func prune(typ *ast.FuncType, b *ast.BlockStmt) { pruner{}.function(typ, b) }

// pruner knows which names are tests where it is.
type pruner map[string]bool

func (p pruner) function(typ *ast.FuncType, b *ast.BlockStmt) {
	type outside struct {
		name string
		test bool
	}
	var hidden []outside
	for _, f := range typ.Params.List {
		for _, id := range f.Names {
			hidden = append(hidden, outside{id.Name, p[id.Name]})
			p[id.Name] = isTest(f)
		}
	}
	p.list(&b.List)
	ast.Inspect(b, func(n ast.Node) bool {
		f, ok := n.(*ast.FuncLit)
		if ok {
			p.function(f.Type, f.Body)
		}
		return !ok
	})
	for _, h := range slices.Backward(hidden) {
		p[h.name] = h.test
	}
}

// list reports whether what is left never gets to its end.
func (p pruner) list(list *[]ast.Stmt) (leaves bool) {
	var out []ast.Stmt
	for _, s := range *list {
		label, labelled := s.(*ast.LabeledStmt)
		if leaves && !labelled {
			continue
		}
		leaves = false
		if labelled && label.Stmt != nil {
			s = label.Stmt // gotos and loops come here
		}
		switch x := s.(type) {
		case *ast.ReturnStmt, *ast.BranchStmt:
			leaves = true
		case *ast.ExprStmt:
			leaves = p.neverReturns(x.X)
		case *ast.BlockStmt:
			leaves = p.list(&x.List)
		case *ast.IfStmt:
			yes, known := constant(x.Cond)
			switch {
			case known && yes:
				leaves = p.list(&x.Body.List)
				s = x.Body
			case known && x.Else == nil:
				continue
			case known:
				one := []ast.Stmt{x.Else}
				leaves = p.list(&one)
				s = &ast.BlockStmt{List: one}
			default:
				leaves = p.list(&x.Body.List)
				if x.Else == nil && len(x.Body.List) == 0 && x.Init == nil && !calls(x.Cond) {
					leaves = false
					continue
				}
				if x.Else == nil {
					leaves = false
					break
				}
				one := []ast.Stmt{x.Else}
				leaves = p.list(&one) && leaves
				x.Else = &ast.BlockStmt{List: one}
			}
		case *ast.ForStmt:
			if yes, known := constant(x.Cond); known && !yes {
				continue
			}
			p.list(&x.Body.List)
		case *ast.RangeStmt:
			if over, ok := x.X.(*ast.CompositeLit); ok && len(over.Elts) == 0 {
				continue
			}
			if over, ok := x.X.(*ast.BasicLit); ok && over.Value == "0" {
				continue
			}
			p.list(&x.Body.List)
		case *ast.AssignStmt:
			if id, ok := x.Lhs[0].(*ast.Ident); ok && id.Name == "_" && len(x.Lhs) == 1 {
				if _, ok := x.Rhs[0].(*ast.FuncLit); ok {
					continue // nobody can call it
				}
			}
		}
		out = append(out, s)
	}
	*list = out
	return leaves
}

// does reports whether a value is what something called gives, or something to call.
func does(x ast.Expr) bool {
	f, ok := x.(*ast.FuncLit)
	return ok && len(f.Body.List) > 0 || calls(x)
}

func calls(x ast.Expr) (found bool) {
	ast.Inspect(x, func(n ast.Node) bool {
		_, call := n.(*ast.CallExpr)
		_, fn := n.(*ast.FuncLit)
		found = found || call
		return !found && !fn
	})
	return found
}

// neverReturns is a call behind which nothing runs. What fails a test is none: it says
// what has to be known of it.
func (p pruner) neverReturns(x ast.Expr) bool {
	call, ok := x.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	id, ok := sel.X.(*ast.Ident)
	return isSkip(sel) && (ok && p[id.Name] || givesTest(sel.X)) || ok && (id.Name == "runtime" && sel.Sel.Name == "Goexit" || id.Name == "os" && sel.Sel.Name == "Exit")
}

// isSkip is of what skips a test, if it is one's. Parsers have such, too.
func isSkip(sel *ast.SelectorExpr) bool {
	return slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name)
}

// givesTest is of what a suite gives its test by.
func givesTest(x ast.Expr) bool {
	call, ok := x.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "T" && len(call.Args) == 0
}

// maxConstant bounds what is compared in conditions, in bytes: numbers take time by the
// square of that.
const maxConstant = 100

// constant is what a condition always is.
func constant(x ast.Expr) (yes, known bool) {
	switch x := x.(type) {
	case *ast.ParenExpr:
		return constant(x.X)
	case *ast.Ident:
		return x.Name == "true", x.Name == "true" || x.Name == "false"
	case *ast.UnaryExpr:
		yes, known = constant(x.X)
		return !yes, known && x.Op == token.NOT
	case *ast.BinaryExpr:
		a, aKnown := constant(x.X)
		b, bKnown := constant(x.Y)
		switch x.Op {
		case token.LAND:
			if aKnown && !a || bKnown && !b {
				return false, true
			}
			return a && b, aKnown && bKnown
		case token.LOR:
			if aKnown && a || bKnown && b {
				return true, true
			}
			return a || b, aKnown && bKnown
		}
		l, lok := x.X.(*ast.BasicLit)
		r, rok := x.Y.(*ast.BasicLit)
		if lok && rok && max(len(l.Value), len(r.Value)) <= maxConstant && l.Kind == r.Kind && l.Kind != token.IMAG && slices.Contains([]token.Token{token.EQL, token.NEQ, token.LSS, token.LEQ, token.GTR, token.GEQ}, x.Op) {
			return goconstant.Compare(goconstant.MakeFromLiteral(l.Value, l.Kind, 0), x.Op, goconstant.MakeFromLiteral(r.Value, r.Kind, 0)), true
		}
	}
	return false, false
}

// goBody looks at what a test does. An example checks by what it prints.
func goBody(fn *ast.FuncDecl) body {
	if !goHasBody(fn) {
		return empty
	}
	if strings.HasPrefix(fn.Name.Name, "Example") {
		return checks
	}
	found := runs
	params, tests := map[string]bool{}, map[string]bool{}
	suite := "" // what a method is of has assertions of its own, by whatever name
	if fn.Recv != nil {
		_, suite = receiver(fn)
	}
	test := func(x ast.Expr) bool {
		id, named := x.(*ast.Ident)
		field, ok := x.(*ast.SelectorExpr)
		has := ok && slices.Contains([]string{"T", "t", "TB", "tb"}, field.Sel.Name) || givesTest(x)
		root := rootOf(x)
		return named && tests[id.Name] || has && (suite != "" && root == suite || params[root])
	}
	forget := func(name string) { // another test says nothing of this one
		delete(params, name)
		delete(tests, name)
	}
	binds := func(name string, x ast.Expr) {
		switch {
		case another(x):
			forget(name)
		case test(x):
			params[name], tests[name] = true, true
		}
	}
	ast.Inspect(fn, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.FuncType:
			for _, p := range x.Params.List {
				for _, id := range p.Names {
					params[id.Name] = true
					tests[id.Name] = tests[id.Name] || isTest(p)
				}
			}
		case *ast.AssignStmt:
			unused := true
			for i, l := range x.Lhs {
				id, ok := l.(*ast.Ident)
				if ok && i < len(x.Rhs) {
					binds(id.Name, x.Rhs[i])
				}
				unused = unused && ok && id.Name == "_"
			}
			return !unused || slices.ContainsFunc(x.Rhs, calls)
		case *ast.ValueSpec:
			unused, other := true, len(x.Values) == 0 && x.Type != nil && another(x.Type)
			for i, id := range x.Names {
				switch {
				case i < len(x.Values):
					binds(id.Name, x.Values[i])
				case other:
					forget(id.Name)
				}
				unused = unused && id.Name == "_"
			}
			return !unused || slices.ContainsFunc(x.Values, calls)
		case *ast.CompositeLit:
			for _, e := range x.Elts {
				if kv, ok := e.(*ast.KeyValueExpr); ok {
					e = kv.Value
				}
				if id, ok := e.(*ast.Ident); test(e) || ok && suite != "" && id.Name == suite {
					found = checks
				}
			}
		case *ast.CallExpr:
			switch f := x.Fun.(type) {
			case *ast.Ident:
				if f.Name == "panic" {
					found = checks
				}
			case *ast.SelectorExpr:
				id, named := f.X.(*ast.Ident)
				root := rootOf(f.X)
				switch {
				case slices.Contains([]string{"Run", "Fuzz"}, f.Sel.Name):
					// A part that is written here is looked at itself.
					part := false
					if len(x.Args) > 0 {
						_, part = ast.Unparen(x.Args[len(x.Args)-1]).(*ast.FuncLit)
					}
					if !part && (test(f.X) || suite != "" && (root == suite || params[root])) {
						found = checks
					}
				case named && params[id.Name] && slices.Contains([]string{"Error", "Errorf", "Fatal", "Fatalf", "Fail", "FailNow"}, f.Sel.Name),
					suite != "" && (root == suite || params[root]) && !slices.Contains([]string{"T", "Name", "Log", "Logf", "Helper", "Parallel", "TempDir", "Setenv", "Context", "Deadline", "Cleanup"}, f.Sel.Name):
					found = checks
				}
			}
			for _, a := range x.Args {
				id, named := a.(*ast.Ident)
				call, called := a.(*ast.CallExpr)
				if named && (params[id.Name] || id.Name == suite) || called && suite != "" && rootOf(call) == suite {
					found = checks
				}
			}
		}
		return true
	})
	return found
}

// rootOf is the name that a chain of calls and fields begins with, unless it is longer than
// people make them.
func rootOf(x ast.Expr) string {
	for range 100 {
		switch e := x.(type) {
		case *ast.Ident:
			return e.Name
		case *ast.SelectorExpr:
			x = e.X
		case *ast.CallExpr:
			x = e.Fun
		}
	}
	return ""
}

// another is a test that is made in a test.
func another(x ast.Expr) bool {
	found := false
	ast.Inspect(x, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		id, named := (*ast.Ident)(nil), false
		if ok {
			id, named = sel.X.(*ast.Ident)
		}
		found = found || named && id.Name == "testing" && slices.Contains([]string{"T", "B", "F"}, sel.Sel.Name)
		_, fn := n.(*ast.FuncLit)
		return !found && !fn
	})
	return found
}

// fixes reports whether a function gives something that tests can use, and not only
// whether anything holds.
func fixes(fn *ast.FuncDecl) bool {
	return fn.Type.Results != nil && slices.ContainsFunc(fn.Type.Results.List, func(f *ast.Field) bool {
		id, ok := f.Type.(*ast.Ident)
		return !ok || id.Name != "bool" && id.Name != "error"
	})
}

// given is a value that is something without that anything is done, and not what its
// function got.
func given(x ast.Expr, got map[string]bool) bool {
	if and, ok := x.(*ast.UnaryExpr); ok {
		x = and.X
	}
	switch x := x.(type) {
	case *ast.CompositeLit:
		return true
	case *ast.BasicLit:
		return x.Kind == token.STRING && len(x.Value) > len(`""`)
	case *ast.Ident, *ast.SelectorExpr:
		name := rootOf(x)
		_, is := got[name]
		return !is && !slices.Contains([]string{"", "nil", "true", "false"}, name)
	}
	return false
}

// goHasBody reports whether a statement could fail the test, or gives it something: one
// that is not only a return, a log line or a skip. It is for what is pruned.
func goHasBody(fn *ast.FuncDecl) bool {
	tests := map[string]bool{} // of parameters
	for _, p := range fn.Type.Params.List {
		for _, id := range p.Names {
			tests[id.Name] = isTest(p)
		}
	}
	for _, s := range fn.Body.List {
		switch x := s.(type) {
		case *ast.ReturnStmt:
			gives := fixes(fn)
			return slices.ContainsFunc(x.Results, func(x ast.Expr) bool { return does(x) || gives && given(x, tests) }) // nothing behind it runs
		case *ast.EmptyStmt:
			continue
		case *ast.ExprStmt:
			if call, ok := x.X.(*ast.CallExpr); ok {
				if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
					switch sel.Sel.Name {
					case "Log", "Logf", "Parallel", "Helper":
						continue
					}
					id, named := sel.X.(*ast.Ident)
					if isSkip(sel) && (givesTest(sel.X) || named && tests[id.Name]) {
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
