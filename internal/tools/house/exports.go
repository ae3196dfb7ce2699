package main

import (
	"go/types"
	"slices"
	"strings"
)

// unusedExports counts exported package-level names, and exported methods of
// exported types, that no other package of the module uses. A package's own
// tests are no other package. Not counted are programs (package main), packages
// outside internal/, which are for other modules, methods that implement an
// interface, and types of values that other packages hold without naming the type.
func unusedExports(s *source) (int, []place) {
	used := map[types.Object]bool{}
	for _, u := range slices.Concat(s.pkgs, s.tests) {
		u.marks(used)
	}
	s.markImplementations(used)
	var places []place
	for _, u := range s.pkgs {
		if u.Name == "main" || !strings.Contains(u.ImportPath+"/", "/internal/") {
			continue
		}
		report := func(o types.Object, name string) {
			if o.Exported() && !used[o] {
				places = append(places, s.at(o.Pos(), u.Name+"."+name))
			}
		}
		scope := u.types.Scope()
		for _, name := range scope.Names() {
			o := scope.Lookup(name)
			report(o, name)
			for m := range methods(o) {
				if o.Exported() {
					report(m, name+"."+m.Name())
				}
			}
		}
	}
	slices.SortFunc(places, byPlace)
	return len(places), places
}

// marks marks the objects of other packages that u uses.
func (u *unit) marks(used map[types.Object]bool) {
	mark := func(o types.Object) {
		if o.Pkg() != nil && o.Pkg().Path() != u.ImportPath {
			used[o] = true
		}
	}
	for _, o := range u.info.Uses {
		if fn, ok := o.(*types.Func); ok {
			o = fn.Origin()
		}
		mark(o)
	}
	for _, tv := range u.info.Types {
		t := tv.Type
		for t != nil {
			switch x := t.(type) {
			case *types.Alias:
				mark(x.Obj())
				t = x.Rhs()
			case *types.Named:
				mark(x.Origin().Obj())
				t = nil
			case interface{ Elem() types.Type }: // pointers, slices, arrays, maps, channels
				t = x.Elem()
			default:
				t = nil
			}
		}
	}
}

// methods returns the methods that are declared on the type o.
func methods(o types.Object) func(func(*types.Func) bool) {
	return func(yield func(*types.Func) bool) {
		named, ok := namedType(o)
		for i := 0; ok && i < named.NumMethods(); i++ {
			if !yield(named.Method(i)) {
				return
			}
		}
		if !ok {
			return
		}
		// The methods of an interface are names too.
		if in, is := named.Underlying().(*types.Interface); is {
			for m := range in.ExplicitMethods() {
				if !yield(m) {
					return
				}
			}
		}
	}
}

func namedType(o types.Object) (*types.Named, bool) {
	tn, ok := o.(*types.TypeName)
	if !ok || tn.IsAlias() {
		return nil, false
	}
	named, ok := tn.Type().(*types.Named)
	return named, ok
}

// markImplementations marks the methods by which a type of the module
// implements an interface: of the module, of a package that it imports, or
// without a name.
func (s *source) markImplementations(used map[types.Object]bool) {
	byMethod := map[string][]*types.Interface{} // by the interface's first method
	seen := map[*types.Interface]bool{}
	add := func(t types.Type) {
		in, ok := t.Underlying().(*types.Interface)
		if ok && !seen[in] && in.NumMethods() > 0 {
			seen[in] = true
			byMethod[in.Method(0).Name()] = append(byMethod[in.Method(0).Name()], in)
		}
	}
	addScope := func(p *types.Package) {
		for _, name := range p.Scope().Names() {
			if tn, ok := p.Scope().Lookup(name).(*types.TypeName); ok {
				add(tn.Type())
			}
		}
	}
	add(types.Universe.Lookup("error").Type())
	for _, path := range s.outer {
		if p, err := s.gc.Import(path); err == nil {
			addScope(p)
		}
	}
	for _, u := range slices.Concat(s.pkgs, s.tests) {
		addScope(u.types)
		for _, tv := range u.info.Types {
			if tv.IsType() {
				add(tv.Type)
			}
		}
	}
	for _, u := range s.pkgs {
		for _, name := range u.types.Scope().Names() {
			if named, ok := namedType(u.types.Scope().Lookup(name)); ok {
				implementations(named, byMethod, used)
			}
		}
	}
}

// byReflection are methods that errors and fmt look for by their names.
var byReflection = []string{"As", "Is", "Unwrap"}

func implementations(named *types.Named, byMethod map[string][]*types.Interface, used map[types.Object]bool) {
	set := types.NewMethodSet(types.NewPointer(named))
	generic := named.TypeParams().Len() > 0
	for sel := range set.Methods() {
		if slices.Contains(byReflection, sel.Obj().Name()) {
			used[origin(sel.Obj())] = true
		}
		for _, in := range byMethod[sel.Obj().Name()] {
			// An instance may implement it; which is not looked up.
			if !generic && !types.Implements(named, in) && !types.Implements(types.NewPointer(named), in) {
				continue
			}
			for m := range in.Methods() {
				if o := set.Lookup(m.Pkg(), m.Name()); o != nil {
					used[origin(o.Obj())] = true
				}
			}
		}
	}
	if types.IsInterface(named) {
		// Its methods are what its implementations are called by.
		for m := range named.Underlying().(*types.Interface).Methods() {
			used[m] = true
		}
	}
}

func origin(o types.Object) types.Object {
	if fn, ok := o.(*types.Func); ok {
		return fn.Origin()
	}
	return o
}
