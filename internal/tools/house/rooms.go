package main

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// A room is a product file of the root package, or a folder directly below
// internal/ or cmd/ with all that is in it.
func room(path string) string {
	parts := strings.Split(path, "/")
	switch {
	case len(parts) == 1:
		return path
	case (parts[0] == "internal" || parts[0] == "cmd") && len(parts) > 2:
		return parts[0] + "/" + parts[1]
	}
	return parts[0]
}

// A graph has an arrow from each room to those whose declarations it uses.
type graph map[string]map[string]place

// arrows returns the graph of the product's rooms. Each arrow has the first use
// that makes it. In it, name may rename rooms to put some together.
func (s *source) arrows(name func(room string) string) graph {
	g := graph{}
	for _, u := range s.pkgs {
		for id, obj := range u.info.Uses {
			if obj.Pkg() == nil || s.byPath[obj.Pkg().Path()] == nil || !obj.Pos().IsValid() {
				continue
			}
			use, decl := s.at(id.Pos(), id.Name), s.at(obj.Pos(), "")
			from, to := name(room(use.file)), name(room(decl.file))
			if from == to {
				continue
			}
			if g[from] == nil {
				g[from] = map[string]place{}
			}
			use.text = from + " uses " + id.Name + " of " + to
			if old, ok := g[from][to]; !ok || byPlace(use, old) < 0 {
				g[from][to] = use
			}
		}
	}
	return g
}

// backArrows counts the arrows between rooms that are on a circle together. If
// the rooms are laid out from top to bottom along the arrows, each circle as
// one storey, all other arrows run down.
func backArrows(s *source) (int, []place) {
	g := s.arrows(func(room string) string { return room })
	var places []place
	for _, circle := range g.circles() {
		for _, from := range circle {
			for to, use := range g[from] {
				if slices.Contains(circle, to) {
					places = append(places, use)
				}
			}
		}
	}
	slices.SortFunc(places, byPlace)
	return len(places), places
}

// circles counts the sets of folders that use each other. The root counts as one
// folder. Go forbids circles of packages, but not of folders: internal/a may use
// internal/b, and internal/b/c use internal/a.
func circles(s *source) (int, []place) {
	g := s.arrows(func(room string) string {
		if strings.Contains(room, "/") {
			return room
		}
		return "."
	})
	var places []place
	for _, circle := range g.circles() {
		places = append(places, place{circle[0], 0, strings.Join(circle, ", ")})
	}
	return len(places), places
}

// circles returns the strongly connected components of more than one room, by
// Tarjan's algorithm.
func (g graph) circles() (out [][]string) {
	var stack []string
	index, low, on := map[string]int{}, map[string]int{}, map[string]bool{}
	var visit func(string)
	visit = func(v string) {
		index[v] = len(index) + 1
		low[v] = index[v]
		stack, on[v] = append(stack, v), true
		for _, w := range slices.Sorted(maps.Keys(g[v])) {
			if index[w] == 0 {
				visit(w)
				low[v] = min(low[v], low[w])
			} else if on[w] {
				low[v] = min(low[v], index[w])
			}
		}
		if low[v] != index[v] {
			return
		}
		i := slices.Index(stack, v)
		part := slices.Sorted(slices.Values(stack[i:]))
		stack = stack[:i]
		for _, w := range part {
			on[w] = false
		}
		if len(part) > 1 {
			out = append(out, part)
		}
	}
	for _, v := range slices.Sorted(maps.Keys(g)) {
		if index[v] == 0 {
			visit(v)
		}
	}
	slices.SortFunc(out, func(a, b []string) int { return cmp.Compare(a[0], b[0]) })
	return out
}
