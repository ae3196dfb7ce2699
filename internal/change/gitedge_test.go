package change

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
)

// TestS6UndoWentOn: an undo after the person went on (another branch, commits on top, a
// merge under way) changes nothing and says what to do; done, it works.
func TestS6UndoWentOn(t *testing.T) {
	g := newGitWorld(t, func(dir string) { gitIn(t, dir, "branch", "behind") })
	old := g.head()
	tip := commitIn(t, g.in, "a.txt", "two\n")
	gitIn(t, g.in, "branch", "side")
	s := g.leave()
	landed := LandOptions{Refs: []string{"refs/heads/side"}}
	g.land(s, landed)
	git := func(args ...string) string { t.Helper(); return gitIn(t, g.ws, args...) }
	refused := func(name, path, advice string) {
		t.Helper()
		before := gitState(t, g.ws)
		_, err := Undo(t.Context(), s, UndoOptions{})
		var conflict *ConflictError
		if !errors.As(err, &conflict) || conflict.Op != "undo" || !slices.ContainsFunc(conflict.Conflicts, func(c Conflict) bool { return c.Path == path && strings.Contains(c.Why, advice) }) {
			t.Errorf("%s: %v", name, err)
		}
		if d := diffTrees(before, gitState(t, g.ws)); d != "" {
			t.Errorf("%s: it changed\n%s", name, d)
		}
	}
	git("switch", "-q", "-c", "feature")
	writeIn(t, g.ws, "b.txt", "edited\n")
	refused("another branch, and an edit", ".git/HEAD", "git switch main")
	mine := commitIn(t, g.ws, "mine.txt", "m\n")
	refused("another branch with a commit", ".git/HEAD", "git switch main")
	git("stash", "-q")
	git("switch", "-q", "--detach", "main")
	refused("a detached HEAD", ".git/HEAD", "git switch main")
	git("switch", "-q", "behind")
	refused("an older branch", ".git/HEAD", "git switch main")
	linked := realTemp(t) + "/linked"
	git("worktree", "add", "-q", linked, "side")
	git("switch", "-q", "main")
	refused("a linked work tree", ".git/refs/heads/side", "linked work tree linked has it checked out")
	git("worktree", "remove", linked)
	commitIn(t, g.ws, "top.txt", "top\n")
	refused("a commit on top", ".git/refs/heads/main", "git revert "+old[:10]+".."+tip[:10])
	git("reset", "-q", "--hard", "HEAD~1")
	git("merge", "-q", "--no-commit", "--no-ff", "feature")
	refused("a merge", ".git/HEAD", "a merge is under way")
	git("merge", "--abort")
	git("branch", "-D", "side")
	refused("a removed branch", ".git/refs/heads/side", "git update-ref refs/heads/side "+tip[:10])
	git("update-ref", "refs/heads/side", tip)

	// All done as told: the undo works, and what the person made since is there.
	must(t, second(Undo(t.Context(), s, UndoOptions{})))
	if g.head() != old || git("rev-parse", "feature") != mine {
		t.Errorf("main is %s, feature %s", g.head(), git("rev-parse", "feature"))
	}
	git("stash", "pop", "-q")
	if out := git("status", "--porcelain"); out != "M b.txt" {
		t.Errorf("status: %q", out)
	}
	git("checkout", "-q", "b.txt")
	// A branch that only the landing made would go from under the work tree.
	g.land(s, landed)
	git("switch", "-q", "side")
	refused("the new branch", ".git/HEAD", "refs/heads/side")
}

// amid puts a repository amid something, and ends it.
var amid = map[string]struct {
	begin    func(t *testing.T, dir string)
	held     string // why main stays
	midHeld  string // why mid stays
	dies     string // a step
	end      []string
	rebasing bool // its end moves mid
}{
	"rebase": {begin: func(t *testing.T, dir string) {
		gitIn(t, dir, "checkout", "-q", "main")
		stops(t, dir, "rebase", "-q", "other")
	}, held: "a rebase of it is under way", dies: "rename a.txt", end: []string{"-c", "core.editor=true", "rebase", "--continue"}},
	"rebase --update-refs": {begin: func(t *testing.T, dir string) {
		stops(t, dir, "rebase", "-q", "--update-refs", "other")
	}, held: "a rebase of it is under way", midHeld: "a rebase of it is under way", dies: "journal plan",
		end: []string{"-c", "core.editor=true", "rebase", "--continue"}, rebasing: true},
	"cherry-pick": {begin: func(t *testing.T, dir string) {
		stops(t, dir, "cherry-pick", "other")
	}, held: "a cherry-pick is under way", dies: "journal staged", end: []string{"-c", "core.editor=true", "cherry-pick", "--continue"}},
	"merge": {begin: func(t *testing.T, dir string) {
		stops(t, dir, "merge", "-q", "other")
	}, held: "a merge is under way", dies: "refs ", end: []string{"-c", "core.editor=true", "merge", "--continue"}},
	"bisect": {begin: func(t *testing.T, dir string) {
		gitIn(t, dir, "bisect", "start", "main", "main~2")
	}, dies: "journal commit", end: []string{"bisect", "reset"}},
}

// stops begins what git stops at a conflict.
func stops(t *testing.T, dir string, args ...string) {
	t.Helper()
	if _, err := tryGit(dir, args...); err == nil {
		t.Fatal("no conflict")
	}
}

// TestLandAmid: in a repository that is amid a rebase, cherry-pick, merge or bisect, files and
// other branches land and are undone, whole or not at all where a kill -9 hits a step, and the
// person can end it; the branches that it is about stay, with the reason, although they are
// named. A landing and an undo that nobody kills are the control.
func TestLandAmid(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(amid)) {
		c := amid[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGitWorld(t, func(dir string) {
				gitIn(t, dir, "branch", "other")
				commitIn(t, dir, "c.txt", "main\n")
				gitIn(t, dir, "branch", "mid")
				commitIn(t, dir, "d.txt", "main\n")
				gitIn(t, dir, "switch", "-q", "other")
				commitIn(t, dir, "c.txt", "other\n")
				gitIn(t, dir, "switch", "-q", "main")
				c.begin(t, dir)
			})
			rev := func(name string) string { return gitIn(t, g.ws, "rev-parse", name) }
			gitIn(t, g.in, "branch", "side", "main")
			writeIn(t, g.in, "a.txt", "two\n")
			tips, olds := map[string]string{}, map[string]string{"main": rev("main"), "mid": rev("mid")}
			for b := range olds {
				tips[b] = gitIn(t, g.in, "commit-tree", "-m", "more", "-p", b, b+"^{tree}")
				writeIn(t, g.in, ".git/refs/heads/"+b, tips[b]+"\n")
			}
			s := g.leave()
			opts := LandOptions{Paths: []string{"a.txt"}, Refs: []string{"refs/heads/side", "refs/heads/mid", "refs/heads/main"}}
			before := gitState(t, g.ws)
			rep := g.land(s, opts)
			after := gitState(t, g.ws)
			if b, _ := os.ReadFile(g.ws + "/a.txt"); string(b) != "two\n" || rev("side") != olds["main"] {
				t.Errorf("a.txt is %q; %+v", b, rep)
			}
			for b, why := range map[string]string{"main": c.held, "mid": c.midHeld} {
				w, held := heldBack(rep, "refs/heads/"+b)
				if now := rev(b); held != (why != "") || held && (now != olds[b] || !strings.Contains(w.Why, why)) || !held && now != tips[b] {
					t.Errorf("%s is %s: %+v", b, now, rep)
				}
			}
			for p, v := range after {
				if rest, ok := strings.CutPrefix(p, ".git/"); ok && v != before[p] && !strings.HasPrefix(rest, "refs") {
					t.Errorf("%s was written: %s", p, v)
				}
			}
			undo := func() { t.Helper(); must(t, second(Undo(t.Context(), s, UndoOptions{}))) }
			undo()
			if d := diffTrees(before, gitState(t, g.ws)); d != "" {
				t.Fatalf("the undo left\n%s", d)
			}
			own := func() (all string) { // what is neither the landing's nor in gitState
				for _, name := range []string{"index", "logs/HEAD"} {
					b, err := os.ReadFile(g.ws + "/.git/" + name)
					must(t, err)
					all += string(b)
				}
				return all
			}
			kill := func(what, at string, want map[string]string) {
				t.Helper()
				mine := own()
				killAt(t, g.run, what, at, opts)
				must(t, second(Recover(t.Context(), g.run)))
				if own() != mine {
					t.Errorf("%s killed before %q: the index or the log of HEAD was written", what, at)
				}
				if d := diffTrees(want, gitState(t, g.ws)); d != "" {
					t.Fatalf("%s killed before %q:\n%s", what, at, d)
				}
			}
			early := []string{"journal plan", "journal staged", "swap a.txt", "rename a.txt", "refs ", "journal commit"}
			late := []string{"discard a.txt", "journal done"}
			if testing.Short() {
				early, late = []string{c.dies}, late[:1]
			}
			for _, at := range early {
				kill("land", at, before)
			}
			for _, at := range late {
				kill("land", at, after)
				undo()
			}
			killAt(t, g.run, "land", "journal commit", opts)
			g.land(s, opts) // recovers first
			for _, at := range early {
				kill("undo", at, after)
			}
			for _, at := range late {
				kill("undo", at, before)
				g.land(s, opts)
			}
			killAt(t, g.run, "undo", "journal commit", opts)
			undo()
			g.land(s, opts)
			if d := diffTrees(after, gitState(t, g.ws)); d != "" {
				t.Errorf("landed again:\n%s", d)
			}
			left := "M a.txt"
			if name != "bisect" {
				writeIn(t, g.ws, "c.txt", "both\n")
				gitIn(t, g.ws, "add", ".")
				left = ""
			}
			gitIn(t, g.ws, c.end...)
			if out := gitIn(t, g.ws, "status", "--porcelain"); out != left || gitIn(t, g.ws, "symbolic-ref", "HEAD") != "refs/heads/main" {
				t.Errorf("at the end: %s", out)
			}
			if c.rebasing && rev("mid") != rev("main~1") {
				t.Error("the rebase did not move mid")
			}
			gitIn(t, g.ws, "fsck", "--strict", "--no-dangling")
		})
	}
}

// TestLandSparse: commits land in sparse checkouts and split indexes: what is not checked out
// stays so and is not taken for deleted, after a landing and after its undo.
func TestLandSparse(t *testing.T) {
	for name, c := range map[string]struct {
		host, bottle [][]string
		hidden       bool // what the commit adds outside is not checked out on the host
	}{
		"no cone":      {[][]string{{"sparse-checkout", "set", "--no-cone", "/in/", "/*.txt"}}, nil, true},
		"sparse index": {[][]string{{"sparse-checkout", "set", "--cone", "--sparse-index", "in"}}, nil, true},
		"split":        {[][]string{{"config", "core.splitIndex", "true"}, {"update-index", "--split-index"}}, nil, false},
		"bottle alone": {nil, [][]string{{"sparse-checkout", "set", "in"}, {"update-index", "--split-index"}}, false},
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

// TestLandConverted: where git converts files (ends of lines, Git LFS), a work tree that
// shows the commit raises no alarm. Beside each, a hidden content does.
func TestLandConverted(t *testing.T) {
	pointer := func(content string) string {
		sum := sha256.Sum256([]byte(content))
		return fmt.Sprintf(lfsPointer, hex.EncodeToString(sum[:]), len(content))
	}
	// A filter like that of LFS, without the program.
	clean := `sed -e 's/^content.*/` + strings.ReplaceAll(strings.TrimSuffix(strings.ReplaceAll(pointer("content 1\n"), "/", `\/`), "\n"), "\n", `\n`) + `/'`
	g := newGitWorld(t, func(dir string) {
		gitIn(t, dir, "config", "core.autocrlf", "true")
		gitIn(t, dir, "config", "filter.lfs.clean", clean)
		gitIn(t, dir, "config", "filter.lfs.required", "true")
		writeIn(t, dir, ".gitattributes", "*.bat text eol=crlf\n*.big filter=lfs -text\n*.raw -text\n")
		writeIn(t, dir, "a.txt", "one\r\n")
		gitIn(t, dir, "add", ".")
		gitIn(t, dir, "commit", "-q", "-m", "attributes")
	})
	before := gitState(t, g.ws)
	files := map[string]string{"a.txt": "one\r\ntwo\r\n", "lf.txt": "lf\n", "x.bat": "x\r\ny\r\n", "1.big": "content 1\n", "r.raw": "\r\n"}
	for name, text := range files {
		writeIn(t, g.in, name, text)
	}
	gitIn(t, g.in, "add", ".")
	if b := gitIn(t, g.in, "cat-file", "-p", ":1.big"); b+"\n" != pointer("content 1\n") {
		t.Fatalf("the filter made %q", b)
	}
	gitIn(t, g.in, "commit", "-q", "-m", "converted")
	s := g.leave()
	refs, err := s.Refs(t.Context(), Policy{})
	must(t, err)
	if r := refOf(t, refs, "refs/heads/main"); len(r.Files) != len(files) || len(r.Unseen()) != 0 {
		t.Errorf("%+v", r.Files)
	}
	rep := g.land(s, LandOptions{})
	if out := gitIn(t, g.ws, "status", "--porcelain"); len(rep.Refs) != 1 || out != "" {
		t.Errorf("%+v; status: %q", rep, out)
	}
	must(t, second(Undo(t.Context(), s, UndoOptions{})))
	if d := diffTrees(before, gitState(t, g.ws)); d != "" {
		t.Error(d)
	}
	// Hidden behind the same: another content, lines that differ in more than their ends.
	for name, text := range map[string]string{"a.txt": "one\ntwo \n", "x.bat": "x\ny", "1.big": pointer("content 2\n"), "r.raw": "\n\n"} {
		writeIn(t, g.in, "hidden", text)
		id := gitIn(t, g.in, "hash-object", "-w", "--no-filters", "hidden")
		gitIn(t, g.in, "update-index", "--cacheinfo", "100644,"+id+","+name)
	}
	must(t, os.Remove(g.in+"/hidden"))
	gitIn(t, g.in, "commit", "-q", "-m", "hidden")
	refs, err = g.leave().Refs(t.Context(), Policy{})
	must(t, err)
	if r := refOf(t, refs, "refs/heads/main"); len(r.Unseen()) != 4 {
		t.Errorf("%+v", r.Files)
	}
}

// TestLandRecoded: a file that git keeps in another encoding (working-tree-encoding) raises no
// alarm, its commit's text is shown, and it lands, as a file and as a commit, and is undone.
// The control is a commit with another text.
func TestLandRecoded(t *testing.T) {
	wide := func(text string) string {
		b := []byte{0xff, 0xfe}
		for _, u := range utf16.Encode([]rune(text)) {
			b = append(b, byte(u), byte(u>>8))
		}
		return string(b)
	}
	g := newGitWorld(t, func(dir string) {
		writeIn(t, dir, ".gitattributes", "*.rc text working-tree-encoding=UTF-16 eol=crlf\n")
		writeIn(t, dir, "w.rc", wide("one\r\n"))
		gitIn(t, dir, "add", ".")
		gitIn(t, dir, "commit", "-q", "-m", "wide")
	})
	before := gitState(t, g.ws)
	now := wide("one\r\nzwölf 𝄞\r\n")
	tip := commitIn(t, g.in, "w.rc", now)
	s := g.leave()
	refs, err := s.Refs(t.Context(), Policy{})
	must(t, err)
	if r := refOf(t, refs, "refs/heads/main"); len(r.Unseen()) != 0 || !strings.Contains(string(r.Patch), "+zwölf 𝄞") || r.Never != "" || len(r.Protected) != 0 {
		t.Errorf("%+v", r)
	}
	for _, opts := range []LandOptions{{}, {Paths: []string{"w.rc"}}} {
		rep := g.land(s, opts)
		b, _ := os.ReadFile(g.ws + "/w.rc")
		if commits := len(opts.Paths) == 0; string(b) != now || (g.head() == tip) != commits || (gitIn(t, g.ws, "status", "--porcelain") == "") != commits {
			t.Errorf("%q, %+v", b, rep)
		}
		must(t, second(Undo(t.Context(), s, UndoOptions{})))
		if d := diffTrees(before, gitState(t, g.ws)); d != "" {
			t.Error(d)
		}
	}
	writeIn(t, g.in, "hidden", "other\n")
	gitIn(t, g.in, "update-index", "--cacheinfo", "100644,"+gitIn(t, g.in, "hash-object", "-w", "hidden")+",w.rc")
	must(t, os.Remove(g.in+"/hidden"))
	gitIn(t, g.in, "commit", "-q", "-m", "hidden")
	refs, err = g.leave().Refs(t.Context(), Policy{})
	must(t, err)
	if r := refOf(t, refs, "refs/heads/main"); len(r.Unseen()) != 1 {
		t.Errorf("control: %+v", r.Files)
	}
}
