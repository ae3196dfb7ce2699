package change

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

// tableRows returns the lines of a table below testdata, each with n fields.
func tableRows(t *testing.T, name string, n int) (out [][]string) {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	must(t, err)
	var lines []string
	for line := range strings.Lines(string(b)) {
		if line[0] != '#' {
			lines = append(lines, line)
			out = append(out, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
		}
		if f := out; len(f) > 0 && len(f[len(f)-1]) != n {
			t.Fatalf("%s: %q has not %d fields", name, line, n)
		}
	}
	if !slices.IsSorted(lines) || len(slices.Compact(lines)) != len(out) {
		t.Errorf("%s is not sorted, or has a line twice", name)
	}
	return out
}

// unprotected says which of the names that programs looked for land unasked, and should
// not. A harmless name is data or code of the project, and not run by a mere start, or it
// belongs to a start that asks for just that: make runs a Makefile.
func unprotected(looked, harmless [][]string) (wrong []string) {
	used := map[string]bool{}
	for _, f := range looked {
		start, name, state := f[2], f[3], f[4]
		if state == "nothing" || slices.Contains(strings.Split(name, "/"), ".git") || len(Policy{}.Path(name, Dir)) > 0 {
			continue // no file of .git lands as a file
		}
		i := slices.IndexFunc(harmless, func(h []string) bool {
			ok, _ := path.Match(h[1], name)
			if dir, all := strings.CutSuffix(h[1], "/**"); all {
				ok = strings.HasPrefix(name, dir+"/")
			}
			return ok && (h[0] == start || (h[0] == "data" || h[0] == "code") && state != "executed")
		})
		if i < 0 {
			wrong = append(wrong, fmt.Sprintf("%s: %s %s", start, state, name))
		} else {
			used[harmless[i][0]+harmless[i][1]] = true
		}
	}
	for _, h := range harmless {
		if !used[h[0]+h[1]] {
			wrong = append(wrong, fmt.Sprintf("no program needs that %s is harmless (%s)", h[1], h[0]))
		}
	}
	return wrong
}

// TestLookedFor: what programs run, or take trust from, where somebody starts them is
// protected. testdata/lookedfor.tsv has what traced starts of real programs looked for.
func TestLookedFor(t *testing.T) {
	looked, harmless := tableRows(t, "lookedfor.tsv", 5), tableRows(t, "harmless.tsv", 3)
	for _, w := range unprotected(looked, harmless) {
		t.Error(w)
	}
	packages, ran := map[string]bool{}, map[string]bool{}
	for _, f := range looked {
		packages[f[0]] = true
		if f[4] == "executed" && len(Policy{}.Path(f[3], Dir)) > 0 {
			ran[f[0]] = true
		}
	}
	if len(packages) < 60 || len(ran) < 15 {
		t.Errorf("%d packages, of which %d ran what is protected", len(packages), len(ran))
	}
	// The check can fail.
	for _, row := range [][]string{{"p", "1", "p", ".newrc", "looked"}, {"p", "1", "p", "main.cfg", "executed"}} {
		if got := unprotected([][]string{row}, [][]string{{"data", "*.cfg", "read"}}); !slices.ContainsFunc(got, func(w string) bool { return strings.Contains(w, row[3]) }) {
			t.Errorf("%q passed: %q", row, got)
		}
	}
	// Ordinary names land unasked.
	for _, name := range []string{"README.md", "main.go", "src/x.py", "package.json", "Makefile", "docs/agents.txt", "tsconfig.json", "go.mod"} {
		if got := (Policy{}).Path(name, File); len(got) > 0 {
			t.Errorf("%s is protected: %v", name, got)
		}
	}
}
