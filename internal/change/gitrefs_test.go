package change

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestRefNames(t *testing.T) {
	for name, want := range map[string]bool{
		"refs/heads/main": true, "refs/heads/feature/x-1": true, "refs/tags/v1.0": true, "refs/heads/é": true,
		"main": false, "refs/heads/..": false, "refs/heads/a//b": false, "refs/heads/x.lock": false, "refs/heads/.x": false, "refs/heads/x.": false,
		"refs/heads/a b": false, "refs/heads/a\nb": false, "refs/heads/a@{1}": false, "refs/heads/a^": false, "refs/heads/\"": false, "refs/heads/": false,
		"refs/heads/" + strings.Repeat("x", 1000): false,
	} {
		if refName(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
	for _, name := range []string{"refs/stash", "refs/replace/x", "refs/notes/x", "refs/bisect/bad", "refs/heads/a\nb", "HEAD"} {
		if neverRef(name) == "" {
			t.Errorf("%q can land", name)
		}
	}
}

// TestRefShown: each state of a reference is told in words, and what it holds cannot steer
// a terminal.
func TestRefShown(t *testing.T) {
	w := newWorld(t, nil)
	s := w.collect(w.upper().bytes())
	id := strings.Repeat("0a", 20)
	for want, r := range map[string]RefChange{
		"no such repository":          {Repository: "sub", Name: "refs/heads/x", New: id, Fresh: true, CheckedOut: true, Count: 1},
		"bottle removed":              {Name: "refs/heads/x", Old: id},
		"no such reference":           {Name: "refs/heads/x", New: id},
		"no fast-forward":             {Name: "refs/heads/x", Old: id, New: id, Files: []RefFile{{Path: "\x1b[2J", Status: "M"}}},
		"not the branch":              {Name: "refs/heads/x", Old: id, New: id, Forward: true, Count: 60, Commits: []CommitLine{{id, "a\x1b", "s\n"}}},
		"it shows others":             {Name: "refs/replace/x", New: id, Never: "it shows others"},
		"refs/heads/a -> refs/heads/": {Name: "HEAD", Old: "refs/heads/a", New: "refs/heads/b", Never: "no"},
		"and 3 more files":            {Name: "refs/heads/x", Old: id, New: id, Files: []RefFile{{Path: "a", Status: "A"}}, FileCount: 4},
		"(a submodule: it moves to":   {Name: "refs/heads/x", Old: id, New: id, Files: []RefFile{{Path: "a", Status: "M", mode: "160000", id: id}}},
		"protected (git): danger":     {Name: "refs/heads/x", Old: id, New: id, CheckedOut: true, Forward: true, Protected: []Reason{{"git", "danger"}}},
	} {
		var out strings.Builder
		must(t, second(s.Diff(&out, DiffOptions{Refs: []RefChange{r}})))
		if !strings.Contains(out.String(), want) || strings.Contains(out.String(), "\x1b") {
			t.Errorf("%q is not in %q", want, out.String())
		}
		why, reasons := r.Held(&LandOptions{})
		if why == "" && len(reasons) == 0 {
			t.Errorf("%s: it would land", want)
		}
	}
	r := RefChange{Name: "refs/heads/x", Old: id, New: id, Forward: true, CheckedOut: true}
	if why, reasons := r.Held(&LandOptions{}); why != "" || len(reasons) != 0 {
		t.Error(why, reasons)
	}
	if why, _ := r.Held(&LandOptions{Paths: []string{"x"}}); why == "" {
		t.Error("it would land with a path")
	}
}

// TestLandOddRepositories: what is at work, not a directory or names no commit is held back
// or refused with the reason, and a first commit lands.
func TestLandOddRepositories(t *testing.T) {
	g := newGitWorld(t, nil)
	commitIn(t, g.in, "a.txt", "two\n")
	tree := gitIn(t, g.in, "rev-parse", "HEAD^{tree}")
	writeIn(t, g.in, ".git/refs/heads/tree", tree+"\n")
	gitIn(t, g.in, "tag", "blob", "HEAD:a.txt")
	s := g.leave()
	writeIn(t, g.ws, ".git/index.lock", "")
	var conflict *ConflictError
	if _, err := Land(t.Context(), s, LandOptions{}); !errors.As(err, &conflict) || !strings.Contains(conflict.Conflicts[0].Why, "index.lock") {
		t.Error(err)
	}
	must(t, os.Remove(g.ws+"/.git/index.lock"))
	rep := g.land(s, LandOptions{Refs: []string{"refs/heads/tree", "refs/tags/blob"}})
	for _, id := range []string{"refs/heads/tree", "refs/tags/blob"} {
		if w, ok := heldBack(rep, id); !ok || !strings.Contains(w.Why, "commit") {
			t.Errorf("%s: %+v", id, rep)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Refs(ctx, Policy{}); err == nil {
		t.Error("looked in spite of a cancelled context")
	}

	g = newGitWorld(t, nil)
	commitIn(t, g.in, "a.txt", "two\n")
	s = g.leave()
	must(t, os.Rename(g.ws+"/.git", g.ws+"/.aside"))
	writeIn(t, g.ws, ".git", "gitdir: .aside\n")
	rep = g.land(s, LandOptions{Paths: []string{"a.txt"}})
	if len(rep.Refs) != 0 {
		t.Errorf("%+v", rep)
	}
	if refs, err := s.Refs(t.Context(), Policy{}); err != nil || len(refs) == 0 || !strings.Contains(refs[0].Never, "no directory") {
		t.Errorf("%+v %v", refs, err)
	}

	g = newGitWorld(t, func(dir string) {
		must(t, os.RemoveAll(dir+"/.git"))
		gitIn(t, dir, "init", "-q", "-b", "main", "--object-format=sha256")
	})
	gitIn(t, g.in, "add", ".")
	tip := commitIn(t, g.in, "a.txt", "first\n")
	s = g.leave()
	rep = g.land(s, LandOptions{Refs: []string{"refs/heads/main"}})
	if len(rep.Refs) != 1 || g.head() != tip {
		t.Errorf("%+v", rep)
	}
	g.clean(g.ws)
	must(t, os.RemoveAll(g.ws))
	if _, err := s.Refs(t.Context(), Policy{}); err == nil {
		t.Error("looked at a workspace that is gone")
	}
}

// TestLandRaced: a branch that the host moves at the last moment is not overwritten, and the
// landing is taken back.
func TestLandRaced(t *testing.T) {
	g := newGitWorld(t, func(dir string) {
		commitIn(t, dir, "c.txt", "c\n")
		gitIn(t, dir, "branch", "aside")
	})
	gitIn(t, g.in, "branch", "-q", "-D", "aside")
	commitIn(t, g.in, "a.txt", "two\n")
	s := g.leave()
	raced := ""
	fault := func(step, _ string) error {
		if step == "refs" {
			raced = gitIn(t, g.ws, "commit-tree", "-m", "raced", "-p", "HEAD", "HEAD^{tree}")
			gitIn(t, g.ws, "update-ref", "refs/heads/main", raced)
		}
		return nil
	}
	var conflict *ConflictError
	if _, err := Land(t.Context(), s, LandOptions{fault: fault}); !errors.As(err, &conflict) || g.head() != raced {
		t.Errorf("%v", err)
	}
	if b, _ := os.ReadFile(g.ws + "/a.txt"); string(b) != "one\n" {
		t.Errorf("a.txt is %q", b)
	}
	g.clean(g.ws)
	// Control: without the race it lands, and the removed branch too.
	gitIn(t, g.ws, "update-ref", "refs/heads/main", "main~1")
	if rep := g.land(s, LandOptions{Refs: []string{"refs/heads/aside"}}); len(rep.Refs) != 2 {
		t.Errorf("%+v", rep)
	}
	g.clean(g.ws)
}

// TestLandNewRepositoryAlone: a new repository does not land without its directory, and a
// branch that is checked out is not removed.
func TestLandNewRepositoryAlone(t *testing.T) {
	g := newGitWorld(t, nil)
	must(t, os.MkdirAll(g.in+"/new", 0o755))
	gitIn(t, g.in+"/new", "init", "-q", "-b", "trunk")
	commitIn(t, g.in+"/new", "r.txt", "r\n")
	gitIn(t, g.in, "checkout", "-q", "--detach")
	gitIn(t, g.in, "branch", "-q", "-D", "main")
	writeIn(t, g.in, "a.txt", "two\n")
	s := g.leave()
	rep := g.land(s, LandOptions{Paths: []string{"a.txt"}, Refs: []string{"new/.git/refs/heads/trunk", "refs/heads/main"}})
	if w, ok := heldBack(rep, "new/.git/refs/heads/trunk"); !ok || !strings.Contains(w.Why, "directory") {
		t.Errorf("%+v", rep)
	}
	if rep := g.land(s, LandOptions{}); len(rep.Refs) != 0 {
		t.Errorf("%+v", rep)
	} else if w, ok := heldBack(rep, "refs/heads/main"); !ok || !strings.Contains(w.Why, "checked out") {
		t.Errorf("%+v", rep)
	}
}

// TestListed: of too many files, those that the work tree does not show are listed first.
func TestListed(t *testing.T) {
	files := []RefFile{{Path: "a"}, {Path: "b", Unseen: true}, {Path: "c"}, {Path: "d", Unseen: true}, {Path: "e"}}
	for n, want := range map[int]string{9: "abcde", 5: "abcde", 4: "bdac", 3: "bda", 1: "b"} {
		got := ""
		for _, f := range listed(slices.Clone(files), n) {
			got += string(f.Path)
		}
		if got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}
