package change

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// ignoredPaths returns the paths that a set marks.
func ignoredPaths(s *Set) (out []string) {
	for _, c := range s.Changes {
		if c.Ignored {
			out = append(out, string(c.Path))
		}
	}
	return out
}

// TestIgnored: what programs make again is one number in a review and stays behind, unless a
// person asks for it.
func TestIgnored(t *testing.T) {
	w := newWorld(t, map[string]string{"src/a.go": "old"})
	w.begin()
	s := w.collect(w.upper().file(".gitignore", "dist/\n*.log\n!keep.log\n", 0o644).
		file("dist/app.js", "x", 0o644).file("keep.log", "x", 0o644).file("now.log", "x", 0o644).
		file("node_modules/p/.vscode/settings.json", "{}", 0o644).file("src/.gitignore", "/made\n", 0o644).file("src/a.go", "new", 0o644).file("src/made", "x", 0o644).
		file("src/py/__pycache__/a.pyc", "x", 0o644).file("target/CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55", 0o644).file("target/out", "x", 0o644).
		file("ve/pyvenv.cfg", "home = /usr", 0o644).bytes())
	want := []string{"dist", "dist/app.js", "node_modules", "node_modules/p", "node_modules/p/.vscode", "node_modules/p/.vscode/settings.json", "now.log", "src/made",
		"src/py/__pycache__", "src/py/__pycache__/a.pyc", "target", "target/CACHEDIR.TAG", "target/out", "ve", "ve/pyvenv.cfg"}
	if got := ignoredPaths(s); !slices.Equal(got, want) {
		t.Fatalf("%q", got)
	}
	var out strings.Builder
	stat, err := s.Diff(&out, DiffOptions{})
	must(t, err)
	if stat.Ignored != len(want) || !strings.Contains(out.String(), "not shown: 15 ignored paths") || strings.Contains(out.String(), "app.js") {
		t.Errorf("%+v\n%s", stat, out.String())
	}
	if rep := w.land(s, LandOptions{}); rep.Ignored != len(want) || len(rep.Withheld) > 0 || !slices.Equal(rep.Landed, []string{".gitignore", "keep.log", "src/.gitignore", "src/a.go", "src/py"}) {
		t.Errorf("%+v", rep)
	}
	// A path that holds nothing else is asked for; one that holds more is not.
	if rep := w.land(s, LandOptions{Paths: []string{"dist", "src"}}); rep.Ignored != 3 || !slices.Equal(rep.Landed, []string{"dist", "dist/app.js"}) {
		t.Errorf("%+v", rep)
	}
	rep := w.land(s, LandOptions{IncludeIgnored: true})
	if rep.Ignored != 0 || len(rep.Withheld) != 2 || rep.Withheld[1].Path != "node_modules/p/.vscode/settings.json" || !slices.Contains(rep.Landed, "ve/pyvenv.cfg") {
		t.Errorf("%+v", rep)
	}
}

// TestIgnoredHidesNothing: a pattern that the bottle writes hides no change of what the host
// has, nor a name among a project's own files. The control: the same patterns of the host do
// ignore what its git ignores.
func TestIgnoredHidesNothing(t *testing.T) {
	for _, repo := range []bool{true, false} {
		w := newWorld(t, map[string]string{
			"Makefile": "all:", "dist/tracked": "x", "node_modules/own/index.js": "x", "cache/made": "x", ".gitignore": "/cache\n",
		})
		if repo {
			for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}, {"-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"}} {
				if out, err := exec.Command("git", append([]string{"-C", w.ws}, args...)...).CombinedOutput(); err != nil {
					t.Fatal(err, string(out))
				}
			}
		}
		w.begin()
		s := w.collect(w.upper().file(".gitignore", "*\n", 0o644).file("Makefile", "all: evil", 0o644).file("cache/made", "y", 0o644).file("dist/fresh", "x", 0o644).
			file("dist/tracked", "y", 0o644).file("node_modules/own/index.js", "y", 0o644).file("node_modules/own/more.js", "y", 0o644).bytes())
		want := []string{"cache/made", "dist/fresh"}
		if !repo {
			// Without a repository nobody can say what belongs to the project: the name decides.
			want = []string{"dist/fresh", "node_modules/own/index.js", "node_modules/own/more.js"}
		}
		if got := ignoredPaths(s); !slices.Equal(got, want) {
			t.Errorf("repository %v: %q", repo, got)
		}
	}
	w := newWorld(t, map[string]string{"node_modules/own/index.js": "x"})
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}} {
		must(t, exec.Command("git", append([]string{"-C", w.ws}, args...)...).Run())
	}
	w.begin()
	s := w.collect(w.upper().file("node_modules/own/index.js", "y", 0o644).file("node_modules/own/more.js", "y", 0o644).bytes())
	if got := ignoredPaths(s); len(got) > 0 {
		t.Errorf("node_modules that the project keeps: %q", got)
	}
}

// TestIgnoredRepository: a repository in an ignored directory has its own rules: what it
// commits lands with its files.
func TestIgnoredRepository(t *testing.T) {
	w := newWorld(t, map[string]string{".gitignore": "in/\n", "in/repo/.git/HEAD": "ref: refs/heads/main\n"})
	w.begin()
	s := w.collect(w.upper().file("in/loose", "x", 0o644).file("in/repo/.gitignore", "*.o\n", 0o644).file("in/repo/a.o", "x", 0o644).file("in/repo/deep/b.o", "x", 0o644).file("in/repo/deep/file", "x", 0o644).bytes())
	if got := ignoredPaths(s); !slices.Equal(got, []string{"in/loose", "in/repo/a.o", "in/repo/deep/b.o"}) {
		t.Errorf("%q", got)
	}
}

// TestIgnoredBound: patterns of a hostile bottle take bounded work, and what they did not get
// to is shown.
func TestIgnoredBound(t *testing.T) {
	w := newWorld(t, nil)
	w.begin()
	u := w.upper().file(".gitignore", strings.Repeat("*a*a*a*a*b\n", 5000)+"*.tmp\n", 0o644)
	for i := range 30 {
		u.file(strings.Repeat("a", 200)+string(rune('A'+i))+".tmp", "x", 0o644)
	}
	g := &ignorer{s: w.collect(u.bytes()), t: tree{w.base.root}, rules: map[string][]ignoreRule{}, work: maxIgnoreWork - 10*maxIgnoreRules}
	n := 0
	for _, c := range g.s.Changes {
		if n++; g.matches(string(c.Path), false) {
			t.Error("a pattern beyond the bound counted")
		}
	}
	if n != 31 || g.work < maxIgnoreWork {
		t.Error(n, g.work)
	}
}
