package change

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestLandSparse: commits land in sparse checkouts and split indexes: what is not checked out
// stays so and is not taken for deleted, after a landing and after its undo.
func TestLandSparse(t *testing.T) {
	for name, c := range map[string]struct {
		host, bottle [][]string
		hidden       bool // what the commit adds outside is not checked out on the host
	}{
		"cone":         {[][]string{{"sparse-checkout", "set", "--cone", "in"}}, nil, true},
		"no cone":      {[][]string{{"sparse-checkout", "set", "--no-cone", "/in/", "/*.txt"}}, nil, true},
		"sparse index": {[][]string{{"sparse-checkout", "set", "--cone", "--sparse-index", "in"}}, nil, true},
		"bottle alone": {nil, [][]string{{"sparse-checkout", "set", "in"}}, false},
		"split":        {[][]string{{"config", "core.splitIndex", "true"}, {"update-index", "--split-index"}}, nil, false},
		"split inside": {nil, [][]string{{"update-index", "--split-index"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGitWorld(t, func(dir string) {
				writeIn(t, dir, "in/x.txt", "x\n")
				writeIn(t, dir, "out/y.txt", "y\n")
				gitIn(t, dir, "add", ".")
				gitIn(t, dir, "commit", "-q", "-m", "dirs")
				for _, args := range c.host {
					gitIn(t, dir, args...)
				}
			})
			for _, args := range c.bottle {
				gitIn(t, g.in, args...)
			}
			before, index := gitState(t, g.ws), gitIn(t, g.ws, "ls-files", "-t")
			writeIn(t, g.in, "in/x.txt", "x2\n")
			writeIn(t, g.in, "in/new.txt", "n\n")
			writeIn(t, g.in, "out/new.txt", "n\n")
			gitIn(t, g.in, "add", "--sparse", ".")
			gitIn(t, g.in, "commit", "-q", "-m", "change")
			if c.hidden {
				must(t, os.RemoveAll(g.in+"/out"))
			}
			tip := gitIn(t, g.in, "rev-parse", "HEAD")
			s := g.leave()
			if i := slices.IndexFunc(s.Changes, func(c Change) bool { return strings.Contains(string(c.Path), "sharedindex") && len(c.Protected) > 0 }); i >= 0 {
				t.Errorf("a false alarm: %+v", s.Changes[i])
			}
			rep := g.land(s, LandOptions{})
			if len(rep.Refs) != 1 || g.head() != tip {
				t.Fatalf("%+v", rep)
			}
			g.clean(g.ws)
			if out := gitIn(t, g.ws, "ls-files", "-t", "out/new.txt"); strings.HasPrefix(out, "S ") != c.hidden {
				t.Error(out)
			}
			must(t, second(Undo(t.Context(), s, UndoOptions{})))
			if d := diffTrees(before, gitState(t, g.ws)); d != "" {
				t.Error(d)
			}
			if now := gitIn(t, g.ws, "ls-files", "-t"); now != index {
				t.Errorf("the index has\n%s, not\n%s", now, index)
			}
		})
	}
}
