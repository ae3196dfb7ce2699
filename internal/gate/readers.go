package gate

import (
	"cmp"
	"context"
	"maps"
	"path"
	"slices"

	"github.com/carboy/carboy/internal/trace"
	"github.com/carboy/carboy/internal/visible"
)

// Readers are the programs that looked at names of the tree.
type Readers struct {
	Paths []string `json:"paths"`
	By    []Reader `json:"by"`
}

// Reader is what one process looked at between two execs, or others just as it.
type Reader struct {
	Program string `json:"program"`
	// Made: it, or one that it comes from, was a program that the phase could write.
	Made bool `json:"made,omitempty"`
	// Forked: it made processes. Compilers mostly do not, and what runs them does.
	Forked bool  `json:"forked,omitempty"`
	Looked []int `json:"looked"` // sorted indices of Paths
}

// maxLooks bounds the looks of all processes at names that they had not looked at.
const maxLooks = 5 * maxObserved

// readers follows processes; nil follows none.
type readers struct {
	now   map[uint32]*reading
	all   []*reading
	paths map[string]int
	looks int
}

type reading struct {
	program      string
	made, forked bool
	looked       map[int]bool
}

func (r *readers) of(pid uint32) *reading {
	p := r.now[pid]
	if p == nil {
		p = &reading{}
		r.now[pid] = p
	}
	return p
}

func (r *readers) add(f *trace.Fact) {
	if r == nil {
		return
	}
	switch f.Op {
	case trace.Fork:
		parent := r.of(f.PPID)
		parent.forked = true
		r.now[f.PID] = &reading{program: parent.program, made: parent.made}
	case trace.Exec:
		if f.Errno == 0 {
			r.now[f.PID] = &reading{program: f.Path, made: r.of(f.PID).made || f.Flags&trace.Mutable != 0}
			r.look(f.PID, f.Path2)
		} else {
			r.look(f.PID, f.Path)
		}
	case trace.Open, trace.Stat, trace.Access, trace.Readlink, trace.List, trace.Load:
		r.look(f.PID, f.Path)
	case trace.Rename, trace.Link:
		r.look(f.PID, f.Path)
		r.look(f.PID, f.Path2)
	}
}

func (r *readers) look(pid uint32, name string) {
	rel, ok := inTree(name)
	if !ok || r.looks > maxLooks {
		return
	}
	i, ok := r.paths[rel]
	if !ok {
		i = len(r.paths)
		r.paths[rel] = i
	}
	p := r.of(pid)
	if p.looked == nil {
		p.looked = map[int]bool{}
		r.all = append(r.all, p)
	}
	if !p.looked[i] {
		p.looked[i] = true
		r.looks++
	}
}

func (r *readers) end() *Readers {
	if r == nil || r.looks > maxLooks {
		return nil
	}
	out := &Readers{Paths: make([]string, len(r.paths))}
	for p, i := range r.paths {
		out.Paths[i] = p
	}
	for _, p := range r.all {
		out.By = append(out.By, Reader{p.program, p.made, p.forked, slices.Sorted(maps.Keys(p.looked))})
	}
	less := func(a, b Reader) int {
		return cmp.Or(cmp.Compare(a.Program, b.Program), cmp.Compare(btoi(a.Made), btoi(b.Made)), cmp.Compare(btoi(a.Forked), btoi(b.Forked)), slices.Compare(a.Looked, b.Looked))
	}
	slices.SortFunc(out.By, less)
	out.By = slices.CompactFunc(out.By, func(a, b Reader) bool { return less(a, b) == 0 })
	return out
}

// Stale is a name of the tree, and who looked at it on the base.
type Stale struct {
	Path    string `json:"path"`
	Program string `json:"program"`
	// Moved: its directory was given another name while a phase ran.
	Moved bool `json:"moved,omitempty"`
}

func (s *Stale) why() string {
	switch {
	case s.Path == "":
		return "what its phase looked at is too much to be compared with the base's"
	case s.Moved:
		return visible.Path([]byte(s.Path)) + " is not the base's, and a phase gave its directory another name"
	case s.Program == "":
		return visible.Path([]byte(s.Path)) + " is a link that is not the base's, or was one there"
	}
	return visible.Path([]byte(s.Path)) + " is not the base's, where " + path.Base(s.Program) + " looked at it, and that did not run so again"
}

// stale is a name for which the change's phase may have taken from the cache what was
// made of the base's; nil: there is none. Caches of compilers are named after what they
// hash, which is less than what they read: Go's assembler includes files of other
// directories, and ccache does not hash that a header was not there. So each process of
// the base's phases that looked at a name which is not the same on the change must have
// had its like in the change's phase, by its program and by what else it looked at. Of
// one that made others (it runs compilers, and reads what it hashes) only that its
// program looked at that name, since it looks at less when it finds what it made.
func (w *Warm) stale(ctx context.Context, s *Signal, p *Phase, base, change *Tree) (*Stale, error) {
	same, err := change.sameAs(ctx, base)
	if err != nil {
		return nil, err
	}
	for _, t := range []*Tree{base, change} {
		for _, f := range t.Files {
			// What is read through a link is known by the name that it leads to.
			if x, ok := change.Lookup(f.Path); f.Mode == Link && (!ok || !same(x)) {
				return &Stale{Path: f.Path}, nil
			}
		}
	}
	if p.Observed.Readers == nil {
		return &Stale{}, nil
	}
	// What was given another name was looked at by that.
	handled := slices.Clone(p.Observed.Handled)
	for _, b := range w.Phases {
		handled = append(handled, b.Observed.Handled...)
	}
	var moved *Stale
	for _, name := range handled {
		for _, t := range []*Tree{base, change} {
			t.below(name, func(f File) {
				if x, ok := change.Lookup(f.Path); !ok || !same(x) {
					moved = &Stale{Path: f.Path, Moved: true}
				}
			})
		}
	}
	if moved != nil {
		return moved, nil
	}
	now := map[string][]map[string]bool{} // what processes looked at, by program
	all := map[string]map[string]bool{}   // so, of all of a program
	kind := func(r Reader) string {
		if r.Made {
			return path.Base(r.Program) // it lies in a directory by a random name
		}
		return r.Program
	}
	for _, r := range p.Observed.Readers.By {
		looked := map[string]bool{}
		if all[kind(r)] == nil {
			all[kind(r)] = map[string]bool{}
		}
		for _, i := range r.Looked {
			looked[p.Observed.Readers.Paths[i]] = true
			all[kind(r)][p.Observed.Readers.Paths[i]] = true
		}
		now[kind(r)] = append(now[kind(r)], looked)
	}
	for _, b := range w.Phases {
		if b.Observed.Readers == nil {
			return &Stale{}, nil
		}
		for _, r := range b.Observed.Readers.By {
			var differ string
			var need []string // files that it would look at again
			for _, i := range r.Looked {
				name := b.Observed.Readers.Paths[i]
				x, has := change.Lookup(name)
				_, had := base.Lookup(name)
				unlike := has != had || has && !same(x) || !has && change.hasDir(name) != base.hasDir(name)
				if unlike {
					differ = cmp.Or(differ, name)
				}
				if has && (!r.Forked || unlike) {
					need = append(need, name)
				}
			}
			if differ == "" {
				continue
			}
			like := func(looked map[string]bool) bool {
				return !slices.ContainsFunc(need, func(n string) bool { return !looked[n] })
			}
			if r.Forked && like(all[kind(r)]) || !r.Forked && len(need) > 0 && slices.ContainsFunc(now[kind(r)], like) {
				continue
			}
			return &Stale{Path: differ, Program: r.Program}, nil
		}
		if b.Signal == s.Name {
			break // later ones found what this one had left
		}
	}
	return nil, nil
}

// below gives the files below a name.
func (t *Tree) below(p string, f func(File)) {
	i := 0
	if p != "." {
		i, _ = slices.BinarySearchFunc(t.Files, p+"/", func(f File, p string) int { return cmp.Compare(f.Path, p) })
	}
	for ; i < len(t.Files) && (p == "." || below(t.Files[i].Path, p)); i++ {
		f(t.Files[i])
	}
}

// hasDir reports whether a file lies below a name.
func (t *Tree) hasDir(p string) bool {
	if p == "." {
		return true
	}
	i, _ := slices.BinarySearchFunc(t.Files, p+"/", func(f File, p string) int { return cmp.Compare(f.Path, p) })
	return i < len(t.Files) && below(t.Files[i].Path, p)
}
