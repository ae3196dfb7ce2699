package change

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// gitWorld is a world whose workspace is a repository. A bottle works in a copy of it.
type gitWorld struct {
	*world
	in string // the bottle's workspace
}

func gitIn(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := tryGit(dir, args...)
	if err != nil {
		t.Fatalf("git %q in %s: %v\n%s", args, dir, err, out)
	}
	return strings.TrimSpace(out)
}

func tryGit(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=a@b",
		"GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=a@b", "GIT_ALLOW_PROTOCOL=file",
		"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=gc.auto", "GIT_CONFIG_VALUE_0=0", "GIT_CONFIG_KEY_1=maintenance.auto", "GIT_CONFIG_VALUE_1=false"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func writeIn(t testing.TB, dir, name, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(dir+"/"+name), 0o755))
	must(t, os.WriteFile(dir+"/"+name, []byte(text), 0o644))
}

// commitIn writes a file and commits it.
func commitIn(t testing.TB, dir, name, text string) string {
	t.Helper()
	writeIn(t, dir, name, text)
	gitIn(t, dir, "add", "-f", name)
	gitIn(t, dir, "commit", "-q", "-m", "change "+name)
	return gitIn(t, dir, "rev-parse", "HEAD")
}

// newGitWorld makes a repository with one commit, lets setup change it, and begins a run.
func newGitWorld(t testing.TB, setup func(dir string), init ...string) *gitWorld {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Fatal("these tests need git")
	}
	g := &gitWorld{world: &world{t: t, run: fastTemp(t)}, in: realTemp(t) + "/ws"}
	g.ws = fastTemp(t) + "/ws"
	must(t, os.Mkdir(g.ws, 0o755))
	gitIn(t, g.ws, append([]string{"init", "-q", "-b", "main"}, init...)...)
	writeIn(t, g.ws, "b.txt", "b\n")
	gitIn(t, g.ws, "add", ".")
	commitIn(t, g.ws, "a.txt", "one\n")
	if setup != nil {
		setup(g.ws)
	}
	g.begin()
	must(t, os.CopyFS(g.in, os.DirFS(g.ws)))
	return g
}

// leave collects what the bottle changed in its copy.
func (g *gitWorld) leave() *Set {
	g.t.Helper()
	u := g.upper()
	must(g.t, filepath.WalkDir(g.in, func(p string, d fs.DirEntry, err error) error {
		rel := strings.TrimPrefix(strings.TrimPrefix(p, g.in), "/")
		if err != nil || rel == "" {
			return err
		}
		fi, err := d.Info()
		must(g.t, err)
		was, werr := os.Lstat(g.ws + "/" + rel)
		switch {
		case d.IsDir():
			if werr != nil {
				u.dir(rel, 0o755)
			}
		case fi.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(p)
			if old, _ := os.Readlink(g.ws + "/" + rel); old != target {
				u.link(rel, target)
			}
		default:
			b, err := os.ReadFile(p)
			must(g.t, err)
			old, _ := os.ReadFile(g.ws + "/" + rel)
			if werr != nil || !was.Mode().IsRegular() || string(old) != string(b) {
				u.file(rel, string(b), int64(fi.Mode().Perm()|0o200))
			}
		}
		return nil
	}))
	must(g.t, filepath.WalkDir(g.ws, func(p string, d fs.DirEntry, err error) error {
		rel := strings.TrimPrefix(strings.TrimPrefix(p, g.ws), "/")
		if fi, err := os.Lstat(g.in + "/" + rel); err == nil {
			if d.IsDir() && !fi.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		u.gone(rel)
		if d.IsDir() {
			return fs.SkipDir
		}
		return nil
	}))
	return g.collect(u.bytes())
}

// clean fails unless the host's repository is whole and its work tree as committed.
func (g *gitWorld) clean(dir string) {
	g.t.Helper()
	gitIn(g.t, dir, "fsck", "--strict", "--connectivity-only", "--no-dangling")
	gitIn(g.t, dir, "fsck", "--strict", "--no-dangling")
	if out := gitIn(g.t, dir, "status", "--porcelain"); out != "" {
		g.t.Errorf("git status:\n%s", out)
	}
	if out, err := tryGit(dir, "diff-files", "--quiet"); err != nil {
		g.t.Errorf("the index does not fit the files: %v %s", err, out)
	}
}

func (g *gitWorld) head() string { return gitIn(g.t, g.ws, "rev-parse", "HEAD") }

// gitState describes the repository without its objects, for comparison.
func gitState(t testing.TB, dir string) map[string]string {
	all := treeOf(t, dir)
	for p := range all {
		if strings.HasPrefix(p, ".git/objects") || strings.HasPrefix(p, ".git/logs") || p == ".git/index" || strings.HasPrefix(p, ".git/sharedindex.") {
			delete(all, p)
		}
	}
	all["status"] = gitIn(t, dir, "status", "--porcelain")
	return all
}

func refOf(t testing.TB, refs []RefChange, id string) RefChange {
	t.Helper()
	for _, r := range refs {
		if r.ID() == id {
			return r
		}
	}
	t.Fatalf("no %s among %+v", id, refs)
	return RefChange{}
}

func heldBack(rep *LandReport, id string) (Withheld, bool) {
	i := slices.IndexFunc(rep.Withheld, func(w Withheld) bool { return w.Path == id })
	if i < 0 {
		return Withheld{}, false
	}
	return rep.Withheld[i], true
}

// TestLandCommits: commits land as commits, in loose objects and in packs and of both hashes,
// with files and index fitting; undo takes them back, and they land again.
func TestLandCommits(t *testing.T) {
	for name, c := range map[string]struct {
		init []string
		do   func(in string)
	}{
		"loose":  {nil, func(string) {}},
		"packed": {nil, func(in string) { gitIn(t, in, "gc", "-q", "--prune=now") }},
		"sha256": {[]string{"--object-format=sha256"}, func(string) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGitWorld(t, nil, c.init...)
			before, old := gitState(t, g.ws), g.head()
			writeIn(t, g.in, "dir/c.txt", strings.Repeat("c\n", 1000))
			gitIn(t, g.in, "add", ".")
			gitIn(t, g.in, "rm", "-q", "b.txt")
			commitIn(t, g.in, "a.txt", "two\n")
			tip := commitIn(t, g.in, "a.txt", "three\n")
			c.do(g.in)
			s := g.leave()
			refs, err := s.Refs(t.Context(), Policy{})
			must(t, err)
			r := refOf(t, refs, "refs/heads/main")
			if r.Old != old || r.New != tip || !r.CheckedOut || !r.Forward || r.Count != 2 || len(r.Commits) != 2 || r.Commits[0].Author != "Ada" || r.Commits[0].Subject != "change a.txt" || len(r.Protected) != 0 || r.Never != "" {
				t.Errorf("%+v", r)
			}
			if len(r.Files) != 3 || r.Files[0].Path != "a.txt" || r.Files[1].Status != "D" || r.Files[2].Status != "A" || r.Files[0].Unseen {
				t.Errorf("files: %+v", r.Files)
			}
			rounds := 1
			if name == "loose" {
				rounds = 2
			}
			for range rounds {
				rep := g.land(s, LandOptions{})
				if len(rep.Refs) != 1 || g.head() != tip || len(rep.Withheld) != 0 {
					t.Errorf("%+v", rep)
				}
				g.clean(g.ws)
				if again := g.land(s, LandOptions{}); len(again.Refs) != 0 || again.ID != "" {
					t.Errorf("landing twice: %+v", again)
				}
				if log := gitIn(t, g.ws, "log", "-g", "--format=%gs", "-1", "main"); log != "carboy: landing" {
					t.Errorf("reflog: %q", log)
				}
				u, err := Undo(t.Context(), s, UndoOptions{})
				must(t, err)
				if d := diffTrees(before, gitState(t, g.ws)); d != "" || len(u.Refs) != 1 {
					t.Errorf("undo left %s, %+v", d, u)
				}
				g.clean(g.ws)
			}
			if n, _ := filepath.Glob(g.run + "/upper/" + storePrefix + "*"); len(n) != 0 {
				t.Errorf("left %q", n)
			}
		})
	}
}

// TestLandStaged: what a person staged or edited meanwhile stays as it is, where the commits
// do not touch it; where they do, nothing lands.
func TestLandStaged(t *testing.T) {
	g := newGitWorld(t, func(dir string) {
		writeIn(t, dir, "staged.txt", "s\n")
		gitIn(t, dir, "add", "staged.txt")
		writeIn(t, dir, "b.txt", "edited\n")
	})
	gitIn(t, g.in, "reset", "-q")
	tip := commitIn(t, g.in, "a.txt", "two\n")
	s := g.leave()
	g.land(s, LandOptions{})
	if out := gitIn(t, g.ws, "status", "--porcelain"); g.head() != tip || out != "M b.txt\nA  staged.txt" {
		t.Errorf("%q", out)
	}
	g = newGitWorld(t, nil)
	commitIn(t, g.in, "new.txt", "n\n")
	s = g.leave()
	writeIn(t, g.ws, "x", "staged\n")
	id := gitIn(t, g.ws, "hash-object", "-w", "x")
	must(t, os.Remove(g.ws+"/x"))
	gitIn(t, g.ws, "update-index", "--add", "--cacheinfo", "100644,"+id+",new.txt")
	before := gitState(t, g.ws)
	var conflict *ConflictError
	if _, err := Land(t.Context(), s, LandOptions{}); !errors.As(err, &conflict) || conflict.Conflicts[0].Path != ".git/index" {
		t.Errorf("%v", err)
	}
	if d := diffTrees(before, gitState(t, g.ws)); d != "" {
		t.Error(d)
	}
	gitIn(t, g.ws, "reset", "-q")
	g.land(s, LandOptions{})
	g.clean(g.ws)
}

// TestS6HiddenCommit: what a commit holds and the work tree hides is shown, and is protected
// as in the work tree; also when a later commit removes it. The control is the same attack
// with an ordinary file.
func TestS6HiddenCommit(t *testing.T) {
	for name, hows := range map[string][]string{".envrc": {"skip-worktree", "link"}, ".vscode/tasks.json": {"removed again"}, "plain.txt": {"skip-worktree", "removed again"}} {
		for _, how := range hows {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				g := newGitWorld(t, nil)
				tip := commitIn(t, g.in, name, "touch /tmp/owned\n")
				switch how {
				case "skip-worktree":
					gitIn(t, g.in, "update-index", "--skip-worktree", name)
					must(t, os.Remove(g.in+"/"+name))
				case "removed again":
					gitIn(t, g.in, "rm", "-q", name)
					gitIn(t, g.in, "commit", "-q", "-m", "again")
					tip = gitIn(t, g.in, "rev-parse", "HEAD")
				case "link":
					gitIn(t, g.in, "reset", "-q", "--hard", "HEAD~1")
					must(t, os.Symlink("/etc/passwd", g.in+"/"+"out"))
					gitIn(t, g.in, "add", "out")
					gitIn(t, g.in, "commit", "-q", "-m", "link")
					must(t, os.Remove(g.in+"/out"))
					gitIn(t, g.in, "update-index", "--assume-unchanged", "out")
					tip = gitIn(t, g.in, "rev-parse", "HEAD")
				}
				s, old := g.leave(), g.head()
				refs, err := s.Refs(t.Context(), Policy{})
				must(t, err)
				r := refOf(t, refs, "refs/heads/main")
				if how != "removed again" && (len(r.Files) != 1 || !r.Files[0].Unseen) {
					t.Errorf("not shown: %+v", r.Files)
				}
				var shown strings.Builder
				must(t, second(s.Diff(&shown, DiffOptions{Refs: refs})))
				if how == "skip-worktree" && (!strings.Contains(shown.String(), "+touch /tmp/owned") || !strings.Contains(shown.String(), "other content")) {
					t.Errorf("the diff is\n%s", shown.String())
				}
				rep := g.land(s, LandOptions{})
				w, held := heldBack(rep, "refs/heads/main")
				if name == "plain.txt" {
					if held || g.head() != tip {
						t.Errorf("control: %+v", rep)
					}
					return
				}
				if !held || len(w.Reasons) == 0 || g.head() != old {
					t.Fatalf("landed: %+v", rep)
				}
				gitIn(t, g.ws, "checkout", "-q", "-f", "main")
				if _, err := os.Lstat(g.ws + "/" + name); err == nil {
					t.Errorf("a checkout wrote %s", name)
				}
				if rep := g.land(s, LandOptions{IncludeProtected: true}); len(rep.Refs) != 1 || g.head() != tip {
					t.Errorf("a person includes it: %+v", rep)
				}
			})
		}
	}
}

// TestS6OtherRefs: nothing but the branch that is checked out lands by itself, and what
// changes the meaning of others never does. Each attack is made beside an honest commit,
// which lands.
func TestS6OtherRefs(t *testing.T) {
	evil := func(in string) string {
		gitIn(t, in, "checkout", "-q", "--detach")
		id := commitIn(t, in, "a.txt", "evil\n")
		gitIn(t, in, "checkout", "-q", "main")
		return id
	}
	refs := func(in string) {
		bad := evil(in)
		gitIn(t, in, "replace", "-f", gitIn(t, in, "rev-parse", "main~1"), bad)
		gitIn(t, in, "pack-refs", "--all")
		gitIn(t, in, "replace", "-f", gitIn(t, in, "rev-parse", "main~1:a.txt"), gitIn(t, in, "rev-parse", bad+":a.txt"))
		gitIn(t, in, "notes", "add", "-m", "note")
		gitIn(t, in, "tag", "-f", "v1", bad)
		gitIn(t, in, "branch", "-f", "other", bad)
		gitIn(t, in, "branch", "-D", "gone")
		gitIn(t, in, "update-ref", "refs/remotes/origin/main", bad)
		gitIn(t, in, "worktree", "add", "-q", "wt", "-b", "wt")
		writeIn(t, in, "a.txt", "stashed\n")
		gitIn(t, in, "stash", "-q")
		gitIn(t, in, "checkout", "-q", "-b", "side")
	}
	files := func(in string) {
		bad := evil(in)
		for name, text := range map[string]string{
			"info/grafts": bad, "shallow": bad, "hooks/post-checkout": "#!/bin/sh\ntouch owned", "logs/refs/heads/other": "forged", "objects/info/alternates": "/tmp/evil",
			"objects/info/commit-graph": "forged", "objects/pack/multi-pack-index": "forged", "ORIG_HEAD": bad, "modules/m/config": "[core]", "info/attributes": "* filter=x",
			"config.worktree": "[core]", "rebase-merge/git-rebase-todo": "exec touch owned",
		} {
			writeIn(t, in, ".git/"+name, text+"\n")
		}
		writeIn(t, in, ".git/config", "[core]\n\tfsmonitor = touch owned\n")
		must(t, os.Remove(in+"/.git/index"))
	}
	for name, attack := range map[string]func(in string){"references": refs, "files": files} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGitWorld(t, func(dir string) {
				gitIn(t, dir, "tag", "v1")
				gitIn(t, dir, "branch", "other")
				gitIn(t, dir, "branch", "gone")
				gitIn(t, dir, "pack-refs", "--all")
			})
			list := func() string { return gitIn(t, g.ws, "for-each-ref", "--format=%(objectname) %(refname)") }
			before, old := list(), g.head()
			tip := commitIn(t, g.in, "b.txt", "honest\n")
			gitIn(t, g.in, "update-index", "--assume-unchanged", "b.txt")
			attack(g.in)
			was := treeOf(t, g.ws)
			rep := g.land(g.leave(), LandOptions{IncludeProtected: true})
			if now, want := list(), strings.Replace(before, old+" refs/heads/main", tip+" refs/heads/main", 1); now != want {
				t.Errorf("references are\n%s, not\n%s", now, want)
			}
			for p, v := range treeOf(t, g.ws) {
				rest, git := strings.CutPrefix(p, ".git/")
				if dir, _, _ := strings.Cut(rest, "/"); git && v != was[p] && dir != "refs" && dir != "logs" && rest != "index" && !strings.HasPrefix(rest, "objects/pack/pack-") {
					t.Errorf("%s was copied: %s", p, v)
				}
			}
			if b, _ := os.ReadFile(g.ws + "/.git/logs/refs/heads/other"); strings.Contains(string(b), "forged") {
				t.Error("a log was copied")
			}
			if out := gitIn(t, g.ws, "ls-files", "-v", "b.txt"); out != "H b.txt" || gitIn(t, g.ws, "symbolic-ref", "HEAD") != "refs/heads/main" {
				t.Errorf("%s: the index or HEAD was copied", out)
			}
			listed := []string{".git/hooks/post-checkout", ".git/config"}
			if name == "references" {
				listed = []string{"refs/replace/", "refs/notes/commits", "refs/stash", "refs/tags/v1", "refs/heads/other", "refs/heads/gone", "refs/heads/wt", "refs/heads/side", "refs/remotes/origin/main", "HEAD"}
			}
			for _, id := range listed {
				never := slices.Contains([]string{"refs/replace/", "refs/notes/commits", "refs/stash", "HEAD"}, id)
				if !slices.ContainsFunc(rep.Withheld, func(w Withheld) bool { return strings.HasPrefix(w.Path, id) && !(w.Ref && never) }) {
					t.Errorf("%s is not listed: %+v", id, rep.Withheld)
				}
			}
			gitIn(t, g.ws, "fsck", "--strict", "--no-dangling")
		})
	}
}

// TestS6ForgedObjects: no forged object, pack, index or file name gives the host other
// content under a name that it knows. The control is an honest commit by the same way.
func TestS6ForgedObjects(t *testing.T) {
	g := newGitWorld(t, func(dir string) { gitIn(t, dir, "gc", "-q") })
	known := gitIn(t, g.ws, "rev-parse", "HEAD:a.txt")
	// A pack that holds evil content, with an index that calls it by the known name.
	writeIn(t, g.in, "evil", "evil\n")
	evil := gitIn(t, g.in, "hash-object", "-w", "evil")
	must(t, os.Remove(g.in+"/evil"))
	loose := g.in + "/.git/objects/" + evil[:2] + "/" + evil[2:]
	b, err := os.ReadFile(loose)
	must(t, err)
	writeIn(t, g.in, ".git/objects/"+known[:2]+"/"+known[2:], string(b))
	packs, _ := filepath.Glob(g.in + "/.git/objects/pack/pack-*")
	for _, p := range packs {
		must(t, os.Chmod(p, 0o644))
		if strings.HasSuffix(p, ".idx") {
			b, err := os.ReadFile(p)
			must(t, err)
			writeIn(t, g.in, strings.TrimPrefix(p, g.in+"/"), strings.ReplaceAll(string(b), "\x00\x00\x00\x0c", "\x00\x00\x00\x7c"))
		}
	}
	// A commit that needs an object under whose name only forged content exists.
	s := g.leave()
	old := g.head()
	rep := g.land(s, LandOptions{})
	if got := gitIn(t, g.ws, "cat-file", "-p", known); got != "one" || g.head() != old {
		t.Errorf("%q under the known name, %+v", got, rep)
	}
	gitIn(t, g.ws, "fsck", "--strict", "--no-dangling")

	g = newGitWorld(t, nil)
	honest := g.head()
	commitIn(t, g.in, "c.txt", "what was reviewed\n")
	id := gitIn(t, g.in, "rev-parse", "HEAD:c.txt")
	writeIn(t, g.in, "evil", "evil\n")
	evil = gitIn(t, g.in, "hash-object", "-w", "evil")
	must(t, os.Remove(g.in+"/evil"))
	b, err = os.ReadFile(g.in + "/.git/objects/" + evil[:2] + "/" + evil[2:])
	must(t, err)
	must(t, os.Remove(g.in+"/.git/objects/"+id[:2]+"/"+id[2:]))
	writeIn(t, g.in, ".git/objects/"+id[:2]+"/"+id[2:], string(b))
	rep = g.land(g.leave(), LandOptions{})
	if w, ok := heldBack(rep, "refs/heads/main"); !ok || !strings.Contains(w.Why, id) || g.head() != honest {
		t.Errorf("%+v", rep)
	}
}

// TestLandOtherBranch: a branch, a tag and a branch that is no fast-forward land when they
// are named, and undo takes them back.
func TestLandOtherBranch(t *testing.T) {
	g := newGitWorld(t, func(dir string) {
		gitIn(t, dir, "branch", "gone")
		gitIn(t, dir, "tag", "v1")
	})
	before := gitState(t, g.ws)
	gitIn(t, g.in, "checkout", "-q", "-b", "feature/x")
	tip := commitIn(t, g.in, "f.txt", "f\n")
	gitIn(t, g.in, "tag", "-f", "-a", "-m", "two", "v1")
	gitIn(t, g.in, "branch", "-q", "-D", "gone")
	gitIn(t, g.in, "checkout", "-q", "main")
	gitIn(t, g.in, "commit", "-q", "--amend", "-m", "amended")
	s := g.leave()
	rep := g.land(s, LandOptions{})
	for _, id := range []string{"refs/heads/feature/x", "refs/heads/main", "refs/heads/gone", "refs/tags/v1"} {
		if w, ok := heldBack(rep, id); !ok || w.Why == "" || !w.Ref {
			t.Errorf("%s: %+v", id, rep.Withheld)
		}
	}
	if _, err := Land(t.Context(), s, LandOptions{Refs: []string{"refs/heads/none"}}); !errors.Is(err, ErrNoSuchChange) {
		t.Error(err)
	}
	rep = g.land(s, LandOptions{Refs: []string{"refs/heads/feature/x", "refs/tags/v1", "refs/heads/gone", "refs/heads/main"}})
	if len(rep.Refs) != 4 || gitIn(t, g.ws, "rev-parse", "feature/x") != tip || gitIn(t, g.ws, "log", "-1", "--format=%s", "main") != "amended" {
		t.Errorf("%+v", rep)
	}
	if gitIn(t, g.ws, "cat-file", "-t", "v1") != "tag" || gitIn(t, g.ws, "branch", "--list", "gone") != "" {
		t.Error("the tag or the removed branch")
	}
	g.clean(g.ws)
	_, err := Undo(t.Context(), s, UndoOptions{})
	must(t, err)
	if d := diffTrees(before, gitState(t, g.ws)); d != "" {
		t.Error(d)
	}
}

// TestLandMoved: a branch that both moved is held back; one that only the host moved is no
// change; an undo of a branch that was moved since refuses.
func TestLandMoved(t *testing.T) {
	g := newGitWorld(t, nil)
	commitIn(t, g.in, "c.txt", "bottle\n")
	s := g.leave()
	host := commitIn(t, g.ws, "h.txt", "host\n")
	rep := g.land(s, LandOptions{})
	if w, ok := heldBack(rep, "refs/heads/main"); !ok || !strings.Contains(w.Why, "fast-forward") || g.head() != host {
		t.Errorf("%+v", rep)
	}
	if b, _ := os.ReadFile(g.ws + "/c.txt"); string(b) != "bottle\n" {
		t.Error("the file did not land")
	}

	g = newGitWorld(t, nil)
	gitIn(t, g.in, "gc", "-q")
	s = g.leave()
	commitIn(t, g.ws, "h.txt", "host\n")
	if refs, err := s.Refs(t.Context(), Policy{}); err != nil || len(refs) != 0 {
		t.Errorf("%+v %v", refs, err)
	}

	g = newGitWorld(t, nil)
	commitIn(t, g.in, "c.txt", "bottle\n")
	s = g.leave()
	g.land(s, LandOptions{})
	host = commitIn(t, g.ws, "h.txt", "host\n")
	var conflict *ConflictError
	if _, err := Undo(t.Context(), s, UndoOptions{}); !errors.As(err, &conflict) || g.head() != host {
		t.Errorf("%v", err)
	}
	gitIn(t, g.ws, "reset", "-q", "--hard", "HEAD~1")
	if _, err := Undo(t.Context(), s, UndoOptions{}); err != nil {
		t.Error(err)
	}
	g.clean(g.ws)
}

// TestLandNewRepository: a repository that was made inside is made by the host, from its
// commits alone, when its branch is named.
func TestLandNewRepository(t *testing.T) {
	for name, dir := range map[string]string{"top": "", "new directory": "sub/new", "old directory": "old"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, map[string]string{"old/x": "x"})
			g := &gitWorld{world: w, in: fastTemp(t) + "/ws"}
			must(t, os.CopyFS(g.in, os.DirFS(g.ws)))
			before := treeOf(t, g.ws)
			at := filepath.Join(g.in, dir)
			must(t, os.MkdirAll(at, 0o755))
			gitIn(t, at, "init", "-q", "-b", "trunk")
			gitIn(t, at, "add", ".")
			tip := commitIn(t, at, "r.txt", "r\n")
			gitIn(t, at, "config", "core.fsmonitor", "touch owned")
			writeIn(t, at, ".git/hooks/post-checkout", "#!/bin/sh\ntouch owned")
			s := g.leave()
			id := filepath.Join(dir, ".git/refs/heads/trunk")
			if dir == "" {
				id = "refs/heads/trunk"
			}
			rep := g.land(s, LandOptions{})
			if _, err := os.Lstat(filepath.Join(g.ws, dir, ".git")); err == nil {
				t.Fatalf("it landed unasked: %+v", rep)
			}
			if _, ok := heldBack(rep, id); !ok {
				t.Errorf("%s is not listed: %+v", id, rep.Withheld)
			}
			_, err := Undo(t.Context(), s, UndoOptions{})
			must(t, err)
			rep = g.land(s, LandOptions{Refs: []string{id}})
			host := filepath.Join(g.ws, dir)
			if len(rep.Refs) != 1 || gitIn(t, host, "rev-parse", "trunk") != tip || gitIn(t, host, "symbolic-ref", "HEAD") != "refs/heads/trunk" {
				t.Errorf("%+v", rep)
			}
			g.clean(host)
			if _, err := os.Lstat(host + "/.git/hooks/post-checkout"); err == nil {
				t.Error("a hook landed")
			}
			if b, _ := os.ReadFile(host + "/.git/config"); strings.Contains(string(b), "fsmonitor") {
				t.Error("the configuration landed")
			}
			_, err = Undo(t.Context(), s, UndoOptions{})
			must(t, err)
			if d := diffTrees(before, treeOf(t, g.ws)); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestLandMissing: shallow and partial histories, borrowed objects, submodules and linked work
// trees are refused with the reason, and the files land.
func TestLandMissing(t *testing.T) {
	for name, c := range map[string]struct {
		host, bottle func(dir string)
		why          string
	}{
		"shallow": {nil, func(in string) {
			other := realTemp(t) + "/o"
			gitIn(t, "/", "clone", "-q", in, other)
			commitIn(t, other, "x", "1")
			commitIn(t, other, "x", "2")
			gitIn(t, in, "fetch", "-q", "--depth=1", "file://"+other, "+main:refs/heads/tmp")
			gitIn(t, in, "reset", "-q", "--hard", "tmp")
		}, "shallow"},
		"borrowed": {nil, func(in string) {
			other := realTemp(t) + "/o"
			gitIn(t, "/", "clone", "-q", in, other)
			tip := commitIn(t, other, "x", "1")
			writeIn(t, in, ".git/objects/info/alternates", other+"/.git/objects\n")
			gitIn(t, in, "reset", "-q", "--hard", tip)
		}, "borrows"},
		"worktree": {func(dir string) { gitIn(t, dir, "worktree", "add", "-q", realTemp(t)+"/wt", "-b", "side") }, func(in string) {
			gitIn(t, in, "update-ref", "refs/heads/side", commitIn(t, in, "x", "1"))
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGitWorld(t, c.host)
			c.bottle(g.in)
			writeIn(t, g.in, "free.txt", "f")
			s := g.leave()
			old := g.head()
			if c.why == "" {
				rep := g.land(s, LandOptions{Refs: []string{"refs/heads/side"}})
				if w, ok := heldBack(rep, "refs/heads/side"); !ok || !strings.Contains(w.Why, "linked work tree") || len(rep.Refs) != 1 {
					t.Errorf("%+v", rep)
				}
				return
			}
			rep := g.land(s, LandOptions{})
			if w, ok := heldBack(rep, "refs/heads/main"); !ok || !strings.Contains(w.Why, c.why) || g.head() != old {
				t.Errorf("%+v", rep)
			}
			if b, _ := os.ReadFile(g.ws + "/free.txt"); string(b) != "f" {
				t.Error("a file did not land")
			}
		})
	}
}

// TestLandFsck: git's own check of an object asks, and does not refuse for good.
func TestLandFsck(t *testing.T) {
	g := newGitWorld(t, nil)
	tree := gitIn(t, g.in, "rev-parse", "HEAD^{tree}")
	writeIn(t, g.in, "c", "tree "+tree+"\nparent "+g.head()+"\nauthor A <a@b> 1 +0000\ncommitter A <a@b 1 +0000\n\nbad\n")
	bad := gitIn(t, g.in, "hash-object", "-t", "commit", "--literally", "-w", "c")
	must(t, os.Remove(g.in+"/c"))
	gitIn(t, g.in, "update-ref", "refs/heads/main", bad)
	s, old := g.leave(), g.head()
	rep := g.land(s, LandOptions{})
	if w, ok := heldBack(rep, "refs/heads/main"); !ok || len(w.Reasons) != 1 || !strings.Contains(w.Reasons[0].Why, "fsck") || g.head() != old {
		t.Fatalf("%+v", rep)
	}
	g.land(s, LandOptions{IncludeProtected: true})
	if g.head() != bad {
		t.Error("a person can't include it")
	}
}

// TestGitCrash: after a death before any step about references, of a landing or an undo,
// Recover leaves references, index and files as before or as after. So it does when git
// itself died amid them, with some moved.
func TestGitCrash(t *testing.T) {
	errDied := errors.New("died")
	for _, undo := range []bool{false, true} {
		for _, death := range []string{"journal plan", "refs ", "journal commit", "discard a.txt", "journal commit, one moved"} {
			at, _, amid := strings.Cut(death, ",")
			g := newGitWorld(t, nil)
			commitIn(t, g.in, "a.txt", "two\n")
			gitIn(t, g.in, "branch", "side")
			s := g.leave()
			if undo {
				g.land(s, LandOptions{Refs: []string{"refs/heads/side"}})
			}
			before, died := gitState(t, g.ws), false
			fault := func(step, path string) error {
				if died {
					return errDied
				}
				if died = step+" "+path == at; !died {
					return nil
				}
				if tip := before[".git/refs/heads/side"]; amid && undo {
					gitIn(t, g.ws, "update-ref", "refs/heads/side", strings.Fields(tip)[1])
				} else if amid {
					gitIn(t, g.ws, "update-ref", "-d", "refs/heads/side")
				}
				return errDied
			}
			if undo {
				_, _ = Undo(t.Context(), s, UndoOptions{fault: fault})
			} else {
				_, _ = Land(t.Context(), s, LandOptions{Refs: []string{"refs/heads/side"}, fault: fault})
			}
			_, err := Recover(context.Background(), g.run)
			must(t, err)
			now := gitState(t, g.ws)
			if !died || now["status"] != "" || !wholeStep(before, now) || (now["a.txt"] == before["a.txt"]) != (at != "discard a.txt") {
				t.Errorf("undo %v, death before %q (%v): %s", undo, death, died, diffTrees(before, now))
			}
		}
	}
}

// wholeStep reports whether files and references changed together.
func wholeStep(before, now map[string]string) bool {
	file := before["a.txt"] != now["a.txt"]
	ref := before[".git/refs/heads/main"] != now[".git/refs/heads/main"]
	side := before[".git/refs/heads/side"] != now[".git/refs/heads/side"]
	return file == ref && ref == side
}
