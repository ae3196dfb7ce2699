package manifest

import (
	"fmt"
	"strings"
	"testing"
)

// many is an agent whose bottle comes of 200 files.
func many(t testing.TB) *world {
	files := map[string]string{"config/agents/a.md": md("bottle: all")}
	var all []string
	for i := range 199 {
		name := fmt.Sprintf("b%d", i)
		var routes strings.Builder
		for r := range 5 {
			fmt.Fprintf(&routes, "    - {host: h%d-%d.example.org, matches: [{paths: [{value: /v1}], methods: [GET, POST]}]}\n", i, r)
		}
		parent := ""
		if i%10 != 0 {
			parent = fmt.Sprintf("extends: b%d\n", i-1)
		} else {
			all = append(all, name)
		}
		if i%10 == 9 || i == 198 {
			all = append(all, name)
		}
		files["config/bottles/"+name+".md"] = md(fmt.Sprintf("%senv: {E%d: value-number-%d}\negress:\n  routes:\n%slimits: {pids: %d}", parent, i, i, routes.String(), i+1))
	}
	files["config/bottles/all.md"] = md("extends: [" + strings.Join(all, ", ") + "]")
	return newWorld(t, files)
}

// BenchmarkExplain200 is explain over 200 manifests: open, read, put together, list.
func BenchmarkExplain200(b *testing.B) {
	w := many(b)
	e := w.mustResolve("a")
	if len(e.Files) != 201 || len(e.Egress.Routes) != 995 || len(e.Env) != 199 {
		b.Fatal(len(e.Files), len(e.Egress.Routes), len(e.Env))
	}
	b.ReportAllocs()
	for b.Loop() {
		w.mustResolve("a").Entries()
	}
}

// BenchmarkExplainOne is its neighbour: an agent and one bottle.
func BenchmarkExplainOne(b *testing.B) {
	w := newWorld(b, map[string]string{"config/agents/a.md": md("bottle: dev"), "config/bottles/dev.md": md("env: {A: value-number-1}\negress: {routes: [{host: x.example}]}")})
	b.ReportAllocs()
	for b.Loop() {
		w.mustResolve("a").Entries()
	}
}
