package receipt

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/carboy/carboy/internal/store"
)

// forestOf is a list of processes with few differences, so that many are alike.
func forestOf(rng *rand.Rand, n int) *Processes {
	p := &Processes{Total: int64(n)}
	for i := range n {
		x := Process{ID: int64(i + 1), Parent: rng.Int64N(int64(i + 1)), Path: store.Raw([]string{"/bin/a", "/bin/b", ""}[rng.IntN(3)]), Start: int64(i)}
		x.Args = []store.Raw{"x", store.Raw([]string{"1", "2", "3"}[rng.IntN(3)])}
		if rng.IntN(3) == 0 {
			x.Parent = max(int64(i)-1, 0) // chains
		}
		if rng.IntN(10) > 0 {
			x.End = ptr(int64(i) + rng.Int64N(100))
			x.Code = rng.IntN(20) / 19
		}
		p.List = append(p.List, x)
	}
	return p
}

// Folding and cutting lose nobody: each process is in one node or is counted.
func TestForestCountsEverybody(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		p := forestOf(rng, rng.IntN(200))
		for _, fold := range []bool{false, true} {
			var ids []int64
			rows := int64(0)
			var walk func(above *node, nodes []*node)
			walk = func(above *node, nodes []*node) {
				for _, n := range nodes {
					rows++
					if !fold && len(n.procs) != 1 {
						t.Fatalf("%d processes in a node that is not folded", len(n.procs))
					}
					for _, x := range n.procs {
						ids = append(ids, x.ID)
						if x.Path != n.first().Path || x.UID != n.first().UID {
							t.Fatal("a node of different programs")
						}
						if above == nil && x.Parent != 0 || above != nil && !slices.ContainsFunc(above.procs, func(y *Process) bool { return y.ID == x.Parent }) {
							t.Fatalf("process %d is not below its parent", x.ID)
						}
					}
					walk(n, n.kids)
				}
			}
			roots := p.forest(fold)
			walk(nil, roots)
			slices.Sort(ids)
			if len(ids) != len(p.List) || len(slices.Compact(ids)) != len(p.List) {
				t.Fatalf("fold %t: %d processes in the tree, want %d", fold, len(ids), len(p.List))
			}
			kept, cut := shorten(roots, shortTree)
			ids, rows = nil, 0
			walk(nil, kept)
			total := int64(len(ids))
			for _, n := range cut {
				total += n
			}
			if total != int64(len(p.List)) || rows > shortTree {
				t.Fatalf("fold %t: %d processes are shown or counted in %d rows, want %d in %d", fold, total, rows, len(p.List), shortTree)
			}
		}
	}
}

// Of many siblings those that ended badly are shown.
func TestShortTreeShowsFailures(t *testing.T) {
	p := &Processes{Total: 41}
	p.List = append(p.List, Process{ID: 1, Path: "/bin/sh", End: ptr(int64(99))})
	for i := range 40 {
		p.List = append(p.List, Process{ID: int64(i + 2), Parent: 1, Path: store.Raw("/bin/p" + number(int64(i))), End: ptr(int64(50))})
	}
	p.List[35].Signal = "SIGSEGV"
	kept, cut := shorten(p.forest(true), shortTree)
	root := kept[0]
	if len(root.kids) != widest || cut[root] != 40-widest || !slices.ContainsFunc(root.kids, func(n *node) bool { return n.first().Signal != "" }) {
		t.Errorf("%d children, %d cut", len(root.kids), cut[root])
	}
}
