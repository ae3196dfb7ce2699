package receipt

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"path"
	"slices"
	"strconv"

	"github.com/carboy/carboy/internal/safetext"
)

// A run may start thousands of processes, most of them alike. The tree shows alike
// siblings as one node, with their number.

// node is a process, or several alike siblings.
type node struct {
	// procs are its members, in the order in which they started; the first
	// stands for all.
	procs []*Process
	// mixed reports that they are the same program with different arguments or
	// outcomes.
	mixed bool
	kids  []*node
	// open reports that the page shows the kids at first.
	open bool
	// size counts the processes in it and below.
	size int64
}

// first returns the member that stands for all.
func (n *node) first() *Process { return n.procs[0] }

// failed counts the members that did not succeed.
func (n *node) failed() int64 {
	var c int64
	for _, p := range n.procs {
		if p.bad() {
			c++
		}
	}
	return c
}

// span returns the first member's start and the last one's end, and false if one of
// them did not end before the bottle did.
func (n *node) span() (start, end int64, ended bool) {
	start, ended = n.first().Start, true
	for _, p := range n.procs {
		start = min(start, p.Start)
		if p.End == nil {
			ended = false
			continue
		}
		end = max(end, *p.End)
	}
	return start, max(end, start), ended
}

func (p *Process) bad() bool { return p.End != nil && (p.Code != 0 || p.Signal != "") }

// odd reports whether a reviewer wants to see the process first.
func (p *Process) odd() bool { return p.bad() || p.UID != p.EUID || p.End == nil }

// At most few siblings of one kind are shown one by one.
const few = 4

// forest returns the list as trees. With fold, alike siblings become one node, and
// their children are siblings in turn.
func (p *Processes) forest(fold bool) []*node {
	if p == nil {
		return nil
	}
	kids := make([][]*Process, len(p.List)+1)
	for i := range p.List {
		x := &p.List[i]
		if x.Parent < 0 || x.Parent > int64(i) {
			continue // Validate refuses it
		}
		kids[x.Parent] = append(kids[x.Parent], x)
	}
	f := folder{kids: kids, fold: fold, same: make([]mark, len(p.List)+1), kind: make([]mark, len(p.List)+1)}
	if fold {
		// Children follow their parents, so backwards they are complete.
		for i := len(p.List) - 1; i >= 0; i-- {
			f.same[i+1] = f.mark(&p.List[i], f.same, true)
			f.kind[i+1] = f.mark(&p.List[i], f.kind, false)
		}
	}
	return f.nodes(kids[0])
}

type mark [sha256.Size]byte

type folder struct {
	kids [][]*Process
	fold bool
	// Marks by id. Same ones are alike with all below them; those of one kind
	// differ in arguments and outcomes, as the calls of a compiler do.
	same, kind []mark
}

// mark hashes the fields that are equal in processes shown as one node: everything
// but numbers and times, or only the programs.
func (f *folder) mark(x *Process, below []mark, exact bool) mark {
	h := sha256.New()
	str := func(s string) {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	num := func(v ...int64) {
		for _, v := range v {
			var n [8]byte
			binary.LittleEndian.PutUint64(n[:], uint64(v))
			h.Write(n[:])
		}
	}
	str(string(x.Path))
	num(int64(x.UID), int64(x.EUID))
	if exact {
		ended := int64(0)
		if x.End != nil {
			ended = 1
		}
		str(x.Digest)
		str(x.Signal)
		num(int64(x.Code), ended, int64(len(x.Args)))
		for _, a := range x.Args {
			str(string(a))
		}
	}
	num(int64(len(f.kids[x.ID])))
	for _, k := range f.kids[x.ID] {
		h.Write(below[k.ID][:])
	}
	return mark(h.Sum(nil))
}

// nodes makes nodes of siblings. Its depth is that of the tree, at most
// MaxProcesses.
func (f *folder) nodes(siblings []*Process) []*node {
	var out []*node
	if !f.fold {
		for _, x := range siblings {
			out = append(out, &node{procs: []*Process{x}})
		}
		return f.below(out)
	}
	alike := map[mark]*node{}
	for _, x := range siblings {
		n := alike[f.same[x.ID]]
		if n == nil {
			n = &node{}
			alike[f.same[x.ID]] = n
			out = append(out, n)
		}
		n.procs = append(n.procs, x)
	}
	return f.below(f.kinds(out))
}

// kinds joins nodes of one kind if they are many.
func (f *folder) kinds(in []*node) []*node {
	kind := func(n *node) mark { return f.kind[n.first().ID] }
	count := map[mark]int{}
	for _, n := range in {
		count[kind(n)]++
	}
	var out []*node
	merged := map[mark]*node{}
	for _, n := range in {
		k := kind(n)
		if count[k] <= few || n.first().Path == "" {
			out = append(out, n)
			continue
		}
		m := merged[k]
		if m == nil {
			m = &node{mixed: true}
			merged[k] = m
			out = append(out, m)
		}
		m.procs = append(m.procs, n.procs...)
	}
	for _, m := range merged {
		slices.SortFunc(m.procs, func(a, b *Process) int { return cmp.Compare(a.ID, b.ID) })
	}
	return out
}

// below gives nodes their children.
func (f *folder) below(nodes []*node) []*node {
	for _, n := range nodes {
		var kids []*Process
		for _, x := range n.procs {
			kids = append(kids, f.kids[x.ID]...)
		}
		n.kids = f.nodes(kids)
		n.size = int64(len(n.procs))
		for _, k := range n.kids {
			n.size += k.size
		}
	}
	return nodes
}

// A short tree shows at most widest children of a node.
const widest = 8

// shorten cuts a tree to at most rows nodes. It prefers nodes near the root, and
// among siblings those that failed. It returns the number of processes cut below
// each node; nil counts the roots.
func shorten(roots []*node, rows int) (kept []*node, cut map[*node]int64) {
	cut = map[*node]int64{}
	take := func(of *node, nodes []*node) []*node {
		n := min(len(nodes), widest, rows)
		rows -= n
		if n == len(nodes) {
			return nodes
		}
		order := make([]int, len(nodes))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int { return oddFirst(nodes[a]) - oddFirst(nodes[b]) })
		for _, i := range order[n:] {
			cut[of] += nodes[i].size
		}
		order = order[:n]
		slices.Sort(order)
		out := make([]*node, 0, n)
		for _, i := range order {
			out = append(out, nodes[i])
		}
		return out
	}
	kept = take(nil, roots)
	for level := kept; len(level) > 0; {
		var next []*node
		for _, n := range level {
			n.kids = take(n, n.kids)
			next = append(next, n.kids...)
		}
		level = next
	}
	return kept, cut
}

func oddFirst(n *node) int {
	if slices.ContainsFunc(n.procs, (*Process).odd) {
		return 0
	}
	return 1
}

// usual are directories whose programs need no path to be recognised.
var usual = []string{"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"}

// program names the loaded file. Argument 0 is the process's own choice: if it is
// different, it follows in brackets.
func (p *Process) program() string {
	if p.Path == "" {
		return "(fork)"
	}
	file := string(p.Path)
	name := file
	if slices.Contains(usual, path.Dir(file)) {
		name = path.Base(file)
	}
	name = word(name)
	if len(p.Args) > 0 {
		if said := string(p.Args[0]); said != file && path.Base(said) != path.Base(file) {
			if slices.Contains(usual, path.Dir(said)) {
				said = path.Base(said)
			}
			name += " (" + word(said) + ")"
		}
	}
	return name
}

// line returns the program and its arguments as visible text.
func (p *Process) line() string {
	s := p.program()
	if len(p.Args) > 1 {
		s += " " + shellLine(p.Args[1:])
	}
	return s
}

// outcome describes the end of a process: a code, a signal, or nothing.
func (p *Process) outcome() string {
	switch {
	case p.End == nil:
		return ""
	case p.Signal != "":
		return safetext.String(p.Signal, 20)
	}
	return strconv.Itoa(p.Code)
}
