package carboy

import (
	"errors"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

// unnamed lists the types in the API that have no name in this package, by the reason.
var unnamed = map[string]string{
	"parts of a result, read through its fields": `
		audit.Finding bottle.Facts bottle.Isolation bottle.Lack bottle.ProcPosture
		change.Bytes change.CommitLine change.RefFile change.Fingerprint change.Identity change.Reason change.Type change.Withheld
		egresslog.Entry forgekey.KeyRecord forgeservice.Operation image.Config store.Candidate store.KeptPart store.KeptTerminal store.Owner store.Process store.Summary
		change.Conflict supervise.By supervise.Detail supervise.Problem supervise.Text supervise.View
		gate.Accepted gate.Entry gate.Finding gate.Override gate.Phase gate.RemovedTests gate.Side gate.Signer gate.WarmUsed
		provenance.Check provenance.LeftOut provenance.Review provenance.Sources provenance.Turn
		receipt.Area receipt.Audit receipt.Changes receipt.Execs receipt.Files receipt.Git receipt.Image receipt.Isolation receipt.Limits receipt.Mount receipt.Network
		receipt.Privileges receipt.Processes receipt.Proposals receipt.Published receipt.Service receipt.Sockets receipt.Trace receipt.Workspace
		routes.DLPDescription routes.GitDescription routes.LimitsDescription routes.MatchDescription routes.OAuthDescription
		scenario.Codegenie scenario.Coverage scenario.Lists scenario.Result scenario.Scenario scenario.Slices scenario.Target
		ship.Approved ship.Imported ship/plan.Change ship/plan.Operation ship/plan.Plan trace.FactLine trace.Flags trace.Op trace.Tail work.File`,
	"set by one stage for the next, not by a program": `
		audit.Log builder.Base change.Policy run/plan.Build run/plan.Grant run/plan.OpenedImage run/plan.Plan secret.Redactor ship/approval.Verifier ship/hosts.Reviews ship/remote.Keys ship/reviews.Forge`,
	"the asking side of the queue, which a run is": `supervise.Asker supervise.AskerOptions`,
	"for package exitcode":                         `exitcode.Class`,
	"an interface, which any type can have":        `gateway.Observer image.Maker supervise/tools.Forge work.Forge`,
}

// TestTypesHaveNames: a program elsewhere can't import what is under internal. Each type
// of a parameter, a result or an exported field of the API has a name in this package, or
// a reason in unnamed why no program needs to write its name.
func TestTypesHaveNames(t *testing.T) {
	loaded, err := packages.Load(&packages.Config{Mode: packages.NeedName | packages.NeedTypes | packages.NeedImports | packages.NeedSyntax | packages.NeedTypesInfo | packages.NeedFiles | packages.NeedExportFile, Env: append(os.Environ(), "CGO_ENABLED=0")}, ".")
	if err != nil || len(loaded) != 1 || len(loaded[0].Errors) > 0 {
		t.Fatal(err, loaded)
	}
	w := &apiWalk{named: map[*types.TypeName]bool{}, seen: map[types.Type]bool{}, found: map[string]string{}}
	scope := loaded[0].Types.Scope()
	var api []types.Object
	for _, name := range scope.Names() {
		o := scope.Lookup(name)
		if !o.Exported() {
			continue
		}
		api = append(api, o)
		if n, ok := types.Unalias(o.Type()).(*types.Named); ok && isType(o) {
			w.named[n.Obj()] = true
		}
	}
	for _, o := range api {
		if n, ok := types.Unalias(o.Type()).(*types.Named); ok && isType(o) {
			w.parts(n, o.Name())
		} else {
			w.walk(o.Type(), o.Name())
		}
	}
	sameNames(t, api)
	out := map[string]bool{}
	for _, list := range unnamed {
		for _, typ := range strings.Fields(list) {
			out[typ] = true
			if w.found[typ] == "" {
				t.Errorf("unnamed has %s, which has a name or is not in the API", typ)
			}
		}
	}
	for typ, at := range w.found {
		if !out[typ] {
			t.Errorf("%s, in %s, has no name in package carboy: give it one in api.go, or a reason in unnamed", typ, at)
		}
	}
	if len(w.seen) < 200 {
		t.Errorf("only %d types were looked at", len(w.seen))
	}
}

// sameNames compares the exported names with testdata/api.txt, so that nobody changes the
// API unseen: go test . -run TestTypesHaveNames -update.
func sameNames(t *testing.T, api []types.Object) {
	t.Helper()
	var names []string
	for _, o := range api {
		names = append(names, o.Name())
		if n, ok := types.Unalias(o.Type()).(*types.Named); ok && isType(o) && n.Obj().Pkg() == o.Pkg() {
			for m := range types.NewMethodSet(types.NewPointer(n)).Methods() {
				if m.Obj().Exported() {
					names = append(names, o.Name()+"."+m.Obj().Name())
				}
			}
		}
	}
	slices.Sort(names)
	const file = "testdata/api.txt"
	got := strings.Join(names, "\n") + "\n"
	if *updateTable {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || got != string(want) {
		t.Errorf("the API's names are not those of %s (%v); if that is meant: go test . -run TestTypesHaveNames -update", file, err)
	}
}

func isType(o types.Object) bool { _, ok := o.(*types.TypeName); return ok }

// apiWalk finds the types of internal packages that the API shows and does not name.
type apiWalk struct {
	named map[*types.TypeName]bool
	seen  map[types.Type]bool
	found map[string]string // a type, and where it is
}

// parts walks what a program sees of a type: its exported fields and methods.
func (w *apiWalk) parts(n *types.Named, at string) {
	w.walk(n.Underlying(), at)
	for m := range n.Methods() {
		if m.Exported() {
			w.walk(m.Type(), at+"."+m.Name())
		}
	}
}

func (w *apiWalk) walk(t types.Type, at string) {
	t = types.Unalias(t)
	if w.seen[t] {
		return
	}
	w.seen[t] = true
	switch t := t.(type) {
	case *types.Named:
		if o := t.Obj(); o.Pkg() != nil && strings.HasPrefix(o.Pkg().Path(), module+"/internal/") && !w.named[o] {
			w.found[strings.TrimPrefix(o.Pkg().Path(), module+"/internal/")+"."+o.Name()] = at
		}
		for a := range t.TypeArgs().Types() {
			w.walk(a, at)
		}
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() {
				w.walk(f.Type(), at+"."+f.Name())
			}
		}
	case *types.Signature:
		w.walk(t.Params(), at)
		w.walk(t.Results(), at)
	case *types.Tuple:
		for v := range t.Variables() {
			w.walk(v.Type(), at)
		}
	case *types.Interface:
		for m := range t.Methods() {
			if m.Exported() {
				w.walk(m.Type(), at+"."+m.Name())
			}
		}
	case *types.Map:
		w.walk(t.Key(), at)
		w.walk(t.Elem(), at)
	case interface{ Elem() types.Type }:
		w.walk(t.Elem(), at)
	}
}

// TestExamplesImport: an example imports what a program elsewhere can import.
func TestExamplesImport(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "example_test.go", nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range f.Imports {
		if path, _ := strconv.Unquote(s.Path.Value); strings.HasPrefix(path, module+"/") {
			t.Errorf("an example imports %s, which a program elsewhere can't", path)
		}
	}
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
