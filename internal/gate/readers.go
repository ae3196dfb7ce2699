package gate

import (
	"cmp"
	"context"
	"maps"
	"path"
	"slices"

	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/trace"
)

// Readers records which programs looked at which names of the tree.
type Readers struct {
	Paths []string `json:"paths"`
	By    []Reader `json:"by"`
}

// Reader records what one process looked at between two execs. Processes with equal
// records are listed once.
type Reader struct {
	Program string `json:"program"`
	// Made: the process, or one that it descends from, ran a program that the phase could
	// write.
	Made bool `json:"made,omitempty"`
	// Forked: the process created others. Build tools do; compilers mostly do not.
	Forked bool  `json:"forked,omitempty"`
	Looked []int `json:"looked"` // sorted indices of Paths
}

// maxLooks bounds the number of pairs of process and name.
const maxLooks = 5 * maxObserved

// readTracker follows processes through a trace; nil follows none.
type readTracker struct {
	current map[uint32]*processReads
	all     []*processReads
	paths   map[string]int
	looks   int
}

type processReads struct {
	program      string
	made, forked bool
	looked       map[int]bool
}

func (r *readTracker) process(pid uint32) *processReads {
	p := r.current[pid]
	if p == nil {
		p = &processReads{}
		r.current[pid] = p
	}
	return p
}

func (r *readTracker) add(f *trace.Fact) {
	if r == nil {
		return
	}
	switch f.Op {
	case trace.Fork:
		parent := r.process(f.PPID)
		parent.forked = true
		r.current[f.PID] = &processReads{program: parent.program, made: parent.made}
	case trace.Exec:
		if f.Errno == 0 {
			r.current[f.PID] = &processReads{program: f.Path, made: r.process(f.PID).made || f.Flags&trace.Mutable != 0}
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

func (r *readTracker) look(pid uint32, name string) {
	rel, ok := inTree(name)
	if !ok || r.looks > maxLooks {
		return
	}
	i, ok := r.paths[rel]
	if !ok {
		i = len(r.paths)
		r.paths[rel] = i
	}
	p := r.process(pid)
	if p.looked == nil {
		p.looked = map[int]bool{}
		r.all = append(r.all, p)
	}
	if !p.looked[i] {
		p.looked[i] = true
		r.looks++
	}
}

func (r *readTracker) end() *Readers {
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
	slices.SortStableFunc(out.By, less)
	out.By = slices.CompactFunc(out.By, func(a, b Reader) bool { return less(a, b) == 0 })
	return out
}

// Stale says why a phase ran without a cache: a name of the tree that differs from the
// base, and the program that looked at it there.
type Stale struct {
	Path    string `json:"path"`
	Program string `json:"program"`
	// Moved: a phase renamed the directory of the file.
	Moved bool `json:"moved,omitempty"`
}

func (s *Stale) reason() string {
	switch {
	case s.Path == "":
		return "what its phase looked at is too much to be compared with the base's"
	case s.Moved:
		return safetext.Path([]byte(s.Path)) + " is not the base's, and a phase gave its directory another name"
	case s.Program == "":
		return safetext.Path([]byte(s.Path)) + " is a link that is not the base's, or was one there"
	}
	return safetext.Path([]byte(s.Path)) + " is not the base's, where " + path.Base(s.Program) + " looked at it, and that did not run so again"
}

// stale returns a name for which the change's phase may have taken from the cache what
// was made of the base's file, or nil when there is none. Compilers name their cache
// entries after what they hash, which is less than what they read: Go's assembler
// includes files of other directories, and ccache does not hash that a header was
// missing. So each process of the base's phases that looked at a name which differs on
// the change needs a counterpart in the change's phase: the same program, which looked
// at the same other names. A process that forked (it runs compilers, and reads what it
// hashes) looks at less when it finds what it made, so there it is enough that its
// program looked at that name.
func (w *Warm) stale(ctx context.Context, s *Signal, p *Phase, base, change *Tree) (*Stale, error) {
	same, err := change.sameAs(ctx, base)
	if err != nil {
		return nil, err
	}
	c := staleCheck{base, change, same}
	if l := c.changedLink(); l != nil {
		return l, nil
	}
	if p.Observed.Readers == nil {
		return &Stale{}, nil
	}
	// A rename is a look at everything below the name.
	handled := slices.Clone(p.Observed.Handled)
	for _, b := range w.Phases {
		handled = append(handled, b.Observed.Handled...)
	}
	if moved := c.changedBelow(handled); moved != nil {
		return moved, nil
	}
	now := indexReaders(p.Observed.Readers)
	for _, b := range w.Phases {
		if b.Observed.Readers == nil {
			return &Stale{}, nil
		}
		for _, r := range b.Observed.Readers.By {
			if differs, need := c.reads(b.Observed.Readers, r); differs != "" && !now.has(r, need) {
				return &Stale{Path: differs, Program: r.Program}, nil
			}
		}
		if b.Signal == s.Name {
			break // later phases found what this one left in the cache
		}
	}
	return nil, nil
}

// staleCheck compares a change with the base that a cache was made of.
type staleCheck struct {
	base, change *Tree
	same         func(File) bool // whether the base has a file of the change
}

// changed reports whether the change lacks a file of either tree, or has another one.
func (c staleCheck) changed(f File) bool {
	x, ok := c.change.lookup(f.Path)
	return !ok || !c.same(x)
}

// changedLink returns a link that differs. A read through a link is recorded under the
// name that it leads to, so nothing tells who used the link.
func (c staleCheck) changedLink() *Stale {
	for _, t := range []*Tree{c.base, c.change} {
		for _, f := range t.Files {
			if f.Mode == Link && c.changed(f) {
				return &Stale{Path: f.Path}
			}
		}
	}
	return nil
}

// changedBelow returns a file that differs at or below one of some names.
func (c staleCheck) changedBelow(names []string) (moved *Stale) {
	for _, name := range names {
		for _, t := range []*Tree{c.base, c.change} {
			t.below(name, func(f File) {
				if c.changed(f) {
					moved = &Stale{Path: f.Path, Moved: true}
				}
			})
		}
	}
	return moved
}

// reads returns the first name that a process of the base looked at and that differs on
// the change, and the files that its counterpart would look at again.
func (c staleCheck) reads(all *Readers, r Reader) (differs string, need []string) {
	for _, i := range r.Looked {
		name := all.Paths[i]
		x, has := c.change.lookup(name)
		_, had := c.base.lookup(name)
		unlike := has != had || has && !c.same(x) || !has && c.change.hasDir(name) != c.base.hasDir(name)
		if unlike {
			differs = cmp.Or(differs, name)
		}
		if has && (!r.Forked || unlike) {
			need = append(need, name)
		}
	}
	return differs, need
}

// readerIndex holds what a phase's processes looked at, by program.
type readerIndex struct {
	each map[string][]map[string]bool // of each process
	all  map[string]map[string]bool   // of all processes together
}

func indexReaders(r *Readers) readerIndex {
	x := readerIndex{map[string][]map[string]bool{}, map[string]map[string]bool{}}
	for _, p := range r.By {
		key, looked := p.key(), map[string]bool{}
		if x.all[key] == nil {
			x.all[key] = map[string]bool{}
		}
		for _, i := range p.Looked {
			looked[r.Paths[i]] = true
			x.all[key][r.Paths[i]] = true
		}
		x.each[key] = append(x.each[key], looked)
	}
	return x
}

// has reports whether the phase had a counterpart of r that looked at all of need.
func (x readerIndex) has(r Reader, need []string) bool {
	like := func(looked map[string]bool) bool {
		return !slices.ContainsFunc(need, func(n string) bool { return !looked[n] })
	}
	if r.Forked {
		return like(x.all[r.key()])
	}
	return len(need) > 0 && slices.ContainsFunc(x.each[r.key()], like)
}

// key identifies the program of a reader. A program that a phase made lies in a directory
// with a random name.
func (r Reader) key() string {
	if r.Made {
		return path.Base(r.Program)
	}
	return r.Program
}

// below calls f for the files at or below p.
func (t *Tree) below(p string, f func(File)) {
	i := 0
	if p != "." {
		i, _ = slices.BinarySearchFunc(t.Files, p+"/", func(f File, p string) int { return cmp.Compare(f.Path, p) })
	}
	for ; i < len(t.Files) && (p == "." || below(t.Files[i].Path, p)); i++ {
		f(t.Files[i])
	}
}

// hasDir reports whether p is a directory of the tree.
func (t *Tree) hasDir(p string) bool {
	if p == "." {
		return true
	}
	i, _ := slices.BinarySearchFunc(t.Files, p+"/", func(f File, p string) int { return cmp.Compare(f.Path, p) })
	return i < len(t.Files) && below(t.Files[i].Path, p)
}
