package receipt

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"path"
	"slices"
	"strconv"

	"github.com/carboy/carboy/internal/visible"
)

// A run may start thousands of processes, most of them alike. People read a
// tree in which siblings that are alike are one node; what is folded is always
// counted.

// node is a process, or siblings that are alike.
type node struct {
	// procs are its members, in the order in which they started; the first
	// stands for all.
	procs []*Process
	// mixed says that they are the same program with other arguments or
	// another outcome.
	mixed bool
	kids  []*node
	// open says that a page shows the kids at first.
	open bool
	// size is how many processes are in it and below.
	size int64
}

// first stands for the members.
func (n *node) first() *Process { return n.procs[0] }

// failed counts members that did not end well.
func (n *node) failed() int64 {
	var c int64
	for _, p := range n.procs {
		if p.bad() {
			c++
		}
	}
	return c
}

// span is from the first member's start to the last one's end; the end is false
// when one of them did not end before the bottle did.
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

// odd is a process that a reviewer wants to see first.
func (p *Process) odd() bool { return p.bad() || p.UID != p.EUID || p.End == nil }

// few is how many siblings of one kind are shown one by one.
const few = 4

// forest is the list as a tree. With fold, siblings that are alike become one
// node, and their children are siblings in turn.
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
		// Children stand behind their parents, so going backwards finds them done.
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

// mark is a hash of what two processes have in common when they are shown as
// one: everything but numbers and times, or only the programs.
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

// kinds makes one node of many of one kind.
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

// widest is how many children of one node a short tree shows.
const widest = 8

// shorten leaves at most rows nodes in a tree, those near the root first, and
// among siblings those that ended badly. It returns how many processes were cut
// below which node; roots that were cut count below nil.
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

// program names what was loaded. The name that a process goes by (argument 0)
// is its own choice: where it is another, it stands behind in brackets.
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

// line is the program and its arguments, visible.
func (p *Process) line() string {
	s := p.program()
	if len(p.Args) > 1 {
		s += " " + shellLine(p.Args[1:])
	}
	return s
}

// outcome is how a process ended: a code, a signal, or nothing.
func (p *Process) outcome() string {
	switch {
	case p.End == nil:
		return ""
	case p.Signal != "":
		return visible.String(p.Signal, 20)
	}
	return strconv.Itoa(p.Code)
}
