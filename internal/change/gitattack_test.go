package change

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/testenv"
)

// rawObject stores an object that git would not make.
func rawObject(t testing.TB, dir, kind, body string) string {
	t.Helper()
	cmd := exec.Command("git", "hash-object", "-t", kind, "--literally", "-w", "--stdin")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(body)
	out, err := cmd.Output()
	must(t, err)
	return strings.TrimSpace(string(out))
}

// rawTree stores a tree of entries "MODE NAME=ID", in that order.
func rawTree(t testing.TB, dir string, entries ...string) string {
	t.Helper()
	var b bytes.Buffer
	for _, e := range entries {
		i := strings.LastIndexByte(e, '=')
		raw, err := hex.DecodeString(e[i+1:])
		must(t, err)
		b.WriteString(e[:i] + "\x00")
		b.Write(raw)
	}
	return rawObject(t, dir, "tree", b.String())
}

const (
	goodPerson = "A <a@b> 1 +0000"
	badPerson  = "A <a@b 1 +0000" // as old histories have
)

func rawCommit(tree, parent, person, rest string) string {
	return "tree " + tree + "\nparent " + parent + "\nauthor " + person + "\ncommitter " + person + "\n" + rest
}

// hide commits files that the bottle's work tree does not show.
func (g *gitWorld) hide(files map[string]string) string {
	g.t.Helper()
	for name, text := range files {
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			must(g.t, os.MkdirAll(filepath.Dir(g.in+"/"+name), 0o755))
			must(g.t, os.Symlink(target, g.in+"/"+name))
		} else {
			writeIn(g.t, g.in, name, text)
		}
		gitIn(g.t, g.in, "add", "-f", name)
	}
	gitIn(g.t, g.in, "commit", "-q", "-m", "hidden")
	for name := range files {
		gitIn(g.t, g.in, "update-index", "--skip-worktree", name)
		must(g.t, os.Remove(g.in+"/"+name))
	}
	return gitIn(g.t, g.in, "rev-parse", "HEAD")
}

// TestS6HiddenStructure: what only several files of a commit make together is protected in
// commits as well: a bare repository, a link out through another link. Each has the nearest
// harmless commit as its control.
func TestS6HiddenStructure(t *testing.T) {
	for name, c := range map[string]struct {
		rule  string
		files map[string]string
	}{
		"bare repository":     {"git-bare", map[string]string{"x/HEAD": "ref: refs/heads/m\n", "x/objects/k": "", "x/refs/k": "", "x/config": "[core]\n\tfsmonitor = touch owned\n"}},
		"no repository":       {"", map[string]string{"x/HEAD": "a heading\n", "x/config": "x\n"}},
		"link through a link": {"link-out", map[string]string{"q": "-> .", "p": "-> q/../outside"}},
		"plain links":         {"", map[string]string{"q": "-> b.txt", "dir/p": "-> ../a.txt"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGitWorld(t, nil)
			old, tip := g.head(), g.hide(c.files)
			if name == "link through a link" {
				writeIn(t, g.in, "q/f", "the work tree has a directory here\n")
			}
			rep := g.land(g.leave(), LandOptions{})
			w, held := heldBack(rep, "refs/heads/main")
			if c.rule == "" {
				if held || g.head() != tip {
					t.Errorf("control: %+v", rep.Withheld)
				}
				return
			}
			if !held || g.head() != old || !slices.ContainsFunc(w.Reasons, func(r Reason) bool { return r.Rule == c.rule }) {
				t.Errorf("it landed, or for another reason was held: %+v", rep.Withheld)
			}
		})
	}
}

// TestS6HarmfulTrees: a tree that git calls harmful never lands, not even with protected
// paths and behind a fault that people wave through. TestLandFsck is the control: the fault
// alone lands when a person includes it.
func TestS6HarmfulTrees(t *testing.T) {
	g := newGitWorld(t, nil)
	old := g.head()
	blob := gitIn(t, g.in, "rev-parse", "HEAD:a.txt")
	hook := rawTree(t, g.in, "100755 post-checkout="+blob)
	trees := map[string][]string{
		"up": {"40000 ..=" + hook}, "here": {"40000 .=" + hook}, "empty": {"100644 =" + blob}, "slash": {"100644 x/../../y=" + blob},
		"git": {"40000 .git=" + hook}, "case": {"40000 .GiT=" + hook}, "ntfs": {"40000 git~1=" + hook}, "hfs": {"40000 .g\u200cit=" + hook},
		"twice":              {"100644 a=" + blob, "100644 a=" + blob},
		"link and directory": {"120000 a=" + blob, "40000 a=" + hook},
		"modules":            {"100644 .gitmodules=" + rawObject(t, g.in, "blob", "[submodule \"x\"]\n\tpath = x\n\turl = --upload-pack=touch\n")},
	}
	var ids []string
	for name, entries := range trees {
		bad := rawObject(t, g.in, "commit", rawCommit(rawTree(t, g.in, "40000 d="+rawTree(t, g.in, entries...)), old, badPerson, "\nold fault\n"))
		if name == "modules" {
			bad = rawObject(t, g.in, "commit", rawCommit(rawTree(t, g.in, entries...), old, badPerson, "\nold fault\n"))
		}
		gitIn(t, g.in, "update-ref", "refs/heads/"+strings.ReplaceAll(name, " ", "-"), bad)
		ids = append(ids, "refs/heads/"+strings.ReplaceAll(name, " ", "-"))
	}
	tip := commitIn(t, g.in, "a.txt", "honest\n")
	s := g.leave()
	rep := g.land(s, LandOptions{Refs: ids, IncludeProtected: true})
	for _, id := range ids {
		if w, ok := heldBack(rep, id); !ok || w.Why == "" {
			t.Errorf("%s: %+v", id, w)
		}
	}
	if len(rep.Refs) != 1 || g.head() != tip {
		t.Errorf("the honest branch: %+v", rep)
	}
	gitIn(t, g.ws, "fsck", "--strict")
}

// TestS6ShownIsWhatLands: no trick of the bottle keeps a hidden file of the branch that goes
// forward out of what people are shown.
func TestS6ShownIsWhatLands(t *testing.T) {
	for name, c := range map[string]struct {
		host func(dir string)
		do   func(g *gitWorld)
	}{
		"plain":          {nil, func(*gitWorld) {}},
		"attributes":     {func(dir string) { commitIn(t, dir, ".gitattributes", "* -diff\n") }, func(*gitWorld) {}},
		"HEAD elsewhere": {nil, func(g *gitWorld) { writeIn(t, g.in, ".git/HEAD", "ref: refs/heads/other\n") }},
		"two hundred others": {nil, func(g *gitWorld) {
			var in strings.Builder
			for i := range 201 {
				fmt.Fprintf(&in, "%s refs/heads/a%d\n", strings.Repeat("0a", 20), i)
			}
			writeIn(t, g.in, ".git/packed-refs", in.String())
		}},
		"a broken one": {nil, func(g *gitWorld) {
			tree := rawTree(t, g.in, "40000 .git="+gitIn(t, g.in, "rev-parse", "main^{tree}"))
			gitIn(t, g.in, "update-ref", "refs/heads/a", rawObject(t, g.in, "commit", rawCommit(tree, gitIn(t, g.in, "rev-parse", "main"), goodPerson, "\nx\n")))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGitWorld(t, c.host)
			tip := g.hide(map[string]string{"zz/Makefile": "all:; touch owned\n"})
			c.do(g)
			s := g.leave()
			refs, err := s.Refs(t.Context(), Policy{})
			must(t, err)
			r := refOf(t, refs, "refs/heads/main")
			var out strings.Builder
			must(t, second(s.Diff(&out, DiffOptions{Refs: refs})))
			rep := g.land(s, LandOptions{})
			if len(rep.Refs) != 1 || g.head() != tip {
				t.Fatalf("it did not land: %+v", rep.Withheld)
			}
			if u := r.Unseen(); len(u) != 1 || u[0].Path != "zz/Makefile" || !strings.Contains(out.String(), "+all:; touch owned") {
				t.Errorf("landed and not shown: %+v\n%s", r, out.String())
			}
		})
	}
}

// TestLandOddNames: names of references that git, a shell or a terminal would take for
// something else do not land, also when they are named; others do.
func TestLandOddNames(t *testing.T) {
	g := newGitWorld(t, func(dir string) { gitIn(t, dir, "branch", "dir") })
	id := gitIn(t, g.in, "rev-parse", "HEAD")
	packed := ""
	odd := []string{"refs/heads/-x", "refs/tags/--help", "refs/heads/HEAD", "refs/tags/HEAD", "refs/heads/\xff", "refs/heads/a\x1b[2J", "refs/heads/ma\u200bin", "refs/heads/" + strings.Repeat("a", 40), "refs/tags/x.lock/y"}
	for _, name := range append(slices.Clone(odd), "refs/heads/x-1") {
		packed += id + " " + name + "\n"
	}
	writeIn(t, g.in, ".git/packed-refs", packed)
	must(t, os.Remove(g.in+"/.git/refs/heads/dir"))
	writeIn(t, g.in, ".git/refs/heads/dir/file", id+"\n")
	s := g.leave()
	rep := g.land(s, LandOptions{Refs: append(slices.Clone(odd), "refs/heads/x-1")})
	for _, name := range odd {
		if w, ok := heldBack(rep, name); !ok || w.Why == "" {
			t.Errorf("%q: %+v", name, w)
		}
	}
	if len(rep.Refs) != 1 || gitIn(t, g.ws, "rev-parse", "x-1") != id {
		t.Errorf("control: %+v", rep.Refs)
	}
	before := gitState(t, g.ws)
	var conflict *ConflictError
	if _, err := Land(t.Context(), s, LandOptions{Refs: []string{"refs/heads/dir/file"}}); !errors.As(err, &conflict) {
		t.Errorf("a branch below a branch: %v", err)
	}
	if d := diffTrees(before, gitState(t, g.ws)); d != "" {
		t.Error(d)
	}
}

// TestLandUnderWay: while the host has a merge under way, its branch stays and the files
// land; what the bottle resolved is then committed on the host.
func TestLandUnderWay(t *testing.T) {
	g := newGitWorld(t, func(dir string) {
		gitIn(t, dir, "checkout", "-q", "-b", "side")
		commitIn(t, dir, "a.txt", "side\n")
		gitIn(t, dir, "checkout", "-q", "main")
		commitIn(t, dir, "a.txt", "main\n")
		if out, err := tryGit(dir, "merge", "-q", "side"); err == nil {
			t.Fatalf("no conflict: %s", out)
		}
	})
	old := g.head()
	commitIn(t, g.in, "a.txt", "resolved\n")
	s := g.leave()
	rep := g.land(s, LandOptions{})
	if w, ok := heldBack(rep, "refs/heads/main"); !ok || !strings.Contains(w.Why, "merge") || g.head() != old {
		t.Errorf("%+v", rep)
	}
	commitIn(t, g.ws, "a.txt", "resolved\n")
	g.clean(g.ws)
	if two := gitIn(t, g.ws, "rev-parse", "HEAD^2"); two != gitIn(t, g.ws, "rev-parse", "side") {
		t.Errorf("the merge's second parent is %s", two)
	}
}

// TestLandTexts: commits with signatures, merge tags, other encodings and control characters
// land byte for byte, and nothing of them reaches a terminal.
func TestLandTexts(t *testing.T) {
	g := newGitWorld(t, nil)
	tree, tip := gitIn(t, g.in, "rev-parse", "HEAD^{tree}"), g.head()
	for _, c := range []struct{ person, rest string }{
		{"\x1b]0;owned\x07\u202eA\u200b <a@b> 1 +0000", "\n\x1b[2J\rsubject\u2066\x9b\nbody\n"},
		{goodPerson, "encoding ISO-8859-1\n\nsch\xf6n\x1b[31m\n"},
		{goodPerson, "encoding UTF-7\n\n+ABs-[2J+AAo-second line\n"},
		{goodPerson, "encoding no-such\x1b\n\nx\n"},
		{goodPerson, "gpgsig -----BEGIN PGP SIGNATURE-----\n \n iQ\x1b\n -----END PGP SIGNATURE-----\n\nsigned\n"},
		{goodPerson, "mergetag object " + tip + "\n type commit\n tag v1\n tagger " + goodPerson + "\n \n \x1b[2J\n\nmerge\n"},
	} {
		tip = rawObject(t, g.in, "commit", rawCommit(tree, tip, c.person, c.rest))
	}
	gitIn(t, g.in, "update-ref", "refs/heads/main", tip)
	s := g.leave()
	refs, err := s.Refs(t.Context(), Policy{})
	must(t, err)
	var out strings.Builder
	must(t, second(s.Diff(&out, DiffOptions{Refs: refs})))
	if r := refOf(t, refs, "refs/heads/main"); len(r.Commits) != 6 || strings.ContainsAny(out.String(), "\x1b\r\x07\u202e\u200b\u2066\u009b") || !utf8.ValidString(out.String()) || !strings.Contains(out.String(), "signed") {
		t.Errorf("%+v\n%q", r, out.String())
	}
	if rep := g.land(s, LandOptions{}); len(rep.Refs) != 1 || g.head() != tip {
		t.Errorf("%+v", rep)
	}
	two := rawObject(t, g.in, "commit", "tree "+tree+"\nparent "+tip+"\nauthor "+goodPerson+"\nauthor "+goodPerson+"\ncommitter "+goodPerson+"\n\ntwo authors\n")
	gitIn(t, g.in, "update-ref", "refs/heads/main", two)
	rep := g.land(g.leave(), LandOptions{})
	if w, ok := heldBack(rep, "refs/heads/main"); !ok || len(w.Reasons) == 0 || g.head() != tip {
		t.Errorf("two authors: %+v", rep)
	}
}

// TestLandKinds: histories on the host that are not whole, and repositories within
// repositories: commits land as they should, or stay with a reason that says why.
func TestLandKinds(t *testing.T) {
	origin := func() string {
		dir := realTemp(t) + "/origin"
		gitIn(t, "/", "init", "-q", "-b", "main", dir)
		for _, text := range []string{"1\n", "2\n", "3\n"} {
			commitIn(t, dir, "deep/x.txt", text)
		}
		gitIn(t, dir, "config", "uploadpack.allowFilter", "true")
		return dir
	}
	become := func(dir string, clone ...string) {
		must(t, os.RemoveAll(dir))
		gitIn(t, "/", append(append([]string{"clone", "-q"}, clone...), "file://"+origin(), dir)...)
	}
	t.Run("shallow host", func(t *testing.T) {
		g := newGitWorld(t, func(dir string) { become(dir, "--depth=1") })
		tip := commitIn(t, g.in, "deep/x.txt", "4\n")
		if rep := g.land(g.leave(), LandOptions{}); len(rep.Refs) != 1 || g.head() != tip {
			t.Errorf("%+v", rep)
		}
		g.clean(g.ws)
	})
	t.Run("partial host", func(t *testing.T) {
		g := newGitWorld(t, func(dir string) { become(dir, "--filter=blob:none") })
		tip := commitIn(t, g.in, "deep/y.txt", "4\n")
		if rep := g.land(g.leave(), LandOptions{}); len(rep.Refs) != 1 || g.head() != tip {
			t.Errorf("%+v", rep)
		}
		gitIn(t, g.ws, "status")
		// A commit that needs a blob which only the promisor has.
		tree := gitIn(t, g.in, "rev-parse", "HEAD~2^{tree}")
		gitIn(t, g.in, "update-ref", "refs/heads/main", rawObject(t, g.in, "commit", rawCommit(rawTree(t, g.in, "40000 again="+strings.Fields(gitIn(t, g.in, "ls-tree", tree))[2]), tip, goodPerson, "\nback\n")))
		rep := g.land(g.leave(), LandOptions{})
		if w, ok := heldBack(rep, "refs/heads/main"); !ok || !strings.Contains(w.Why, "whole") && !strings.Contains(w.Why, "partial") {
			t.Errorf("%+v", rep)
		}
	})
	t.Run("nested", func(t *testing.T) {
		var before string
		g := newGitWorld(t, func(dir string) {
			gitIn(t, "/", "init", "-q", "-b", "main", dir+"/in/ner")
			before = commitIn(t, dir+"/in/ner", "n.txt", "1\n")
			writeIn(t, dir, ".gitignore", "in/\n")
			gitIn(t, dir, "add", ".gitignore")
			gitIn(t, dir, "commit", "-q", "-m", "ignore")
		})
		tip := commitIn(t, g.in+"/in/ner", "n.txt", "2\n")
		s := g.leave()
		rep := g.land(s, LandOptions{})
		if len(rep.Refs) != 1 || gitIn(t, g.ws+"/in/ner", "rev-parse", "HEAD") != tip {
			t.Errorf("%+v", rep)
		}
		g.clean(g.ws + "/in/ner")
		must(t, second(Undo(t.Context(), s, UndoOptions{})))
		if gitIn(t, g.ws+"/in/ner", "rev-parse", "HEAD") != before {
			t.Error("undo")
		}
	})
	t.Run("submodule", func(t *testing.T) {
		var before string
		g := newGitWorld(t, func(dir string) {
			gitIn(t, dir, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "file://"+origin(), "sub")
			gitIn(t, dir, "commit", "-q", "-m", "submodule")
			before = gitIn(t, dir+"/sub", "rev-parse", "HEAD")
		})
		commitIn(t, g.in+"/sub", "deep/x.txt", "4\n")
		gitIn(t, g.in, "add", "sub")
		gitIn(t, g.in, "commit", "-q", "-m", "forward")
		tip := gitIn(t, g.in, "rev-parse", "HEAD")
		s := g.leave()
		refs, err := s.Refs(t.Context(), Policy{})
		must(t, err)
		var out strings.Builder
		must(t, second(s.Diff(&out, DiffOptions{Refs: refs})))
		if !strings.Contains(out.String(), "sub  (a submodule") {
			t.Errorf("not shown:\n%s", out.String())
		}
		rep := g.land(s, LandOptions{})
		if len(rep.Refs) != 1 || g.head() != tip || gitIn(t, g.ws+"/sub", "rev-parse", "HEAD") != before {
			t.Errorf("%+v", rep)
		}
		if b, _ := os.ReadFile(g.ws + "/sub/deep/x.txt"); string(b) != "4\n" {
			t.Errorf("the submodule's file is %q", b)
		}
		if !slices.ContainsFunc(rep.Withheld, func(w Withheld) bool { return strings.HasPrefix(w.Path, ".git/modules/sub") }) {
			t.Errorf("not listed: %+v", rep.Withheld)
		}
	})
	t.Run("work tree of another repository", func(t *testing.T) {
		main := origin()
		g := newGitWorld(t, func(dir string) {
			must(t, os.RemoveAll(dir))
			gitIn(t, main, "worktree", "add", "-q", "-b", "wt", dir)
		})
		// The bottle puts a repository of its own in the place of the file.
		must(t, os.Remove(g.in+"/.git"))
		gitIn(t, g.in, "init", "-q", "-b", "wt")
		gitIn(t, g.in, "add", ".")
		commitIn(t, g.in, "deep/x.txt", "4\n")
		old := g.head()
		s := g.leave()
		refs, err := s.Refs(t.Context(), Policy{})
		must(t, err)
		if r := refOf(t, refs, "refs/heads/wt"); !strings.Contains(r.Never, "linked work trees") {
			t.Errorf("%+v", r)
		}
		rep := g.land(s, LandOptions{Refs: []string{"refs/heads/wt"}})
		if b, _ := os.ReadFile(g.ws + "/deep/x.txt"); len(rep.Refs) != 0 || g.head() != old || string(b) != "4\n" {
			t.Errorf("%+v", rep)
		}
	})
	t.Run("file in the place of the repository", func(t *testing.T) {
		g := newGitWorld(t, nil)
		commitIn(t, g.in, "a.txt", "two\n")
		must(t, os.Rename(g.in+"/.git", g.in+"/elsewhere"))
		writeIn(t, g.in, ".git", "gitdir: elsewhere\n")
		old := g.head()
		rep := g.land(g.leave(), LandOptions{Paths: []string{"a.txt", ".git"}, IncludeProtected: true})
		if fi, err := os.Lstat(g.ws + "/.git"); err != nil || !fi.IsDir() || g.head() != old {
			t.Errorf("%+v", rep)
		}
	})
	t.Run("detached", func(t *testing.T) {
		g := newGitWorld(t, func(dir string) { gitIn(t, dir, "checkout", "-q", "--detach") })
		commitIn(t, g.in, "a.txt", "two\n")
		rep := g.land(g.leave(), LandOptions{})
		if w, ok := heldBack(rep, "HEAD"); !ok || !strings.Contains(w.Why, "branch") {
			t.Errorf("%+v", rep)
		}
	})
	t.Run("reftable", func(t *testing.T) {
		g := newGitWorld(t, nil)
		commitIn(t, g.in, "a.txt", "two\n")
		s := g.leave()
		writeIn(t, g.ws, ".git/config", "[core]\n\trepositoryformatversion = 1\n[extensions]\n\trefStorage = reftable\n")
		writeIn(t, g.ws, ".git/HEAD", "ref: refs/heads/.invalid\n")
		refs, err := s.Refs(t.Context(), Policy{})
		must(t, err)
		if len(refs) == 0 || !strings.Contains(refs[0].Never, "storage") {
			t.Errorf("%+v", refs)
		}
	})
}

// TestLandManyRepositories: only so many repositories are looked at; the others are named
// and stay.
func TestLandManyRepositories(t *testing.T) {
	g := newGitWorld(t, nil)
	for i := range 120 {
		writeIn(t, g.in, fmt.Sprintf("r%03d/.git/refs/heads/m", i), strings.Repeat("0a", 20)+"\n")
	}
	refs, err := g.leave().Refs(t.Context(), Policy{})
	must(t, err)
	if len(refs) != 120 {
		t.Fatalf("%d references", len(refs))
	}
	for i, r := range refs {
		if many := strings.Contains(r.Never, "repositories"); r.Never == "" || many != (i >= 100) {
			t.Errorf("%d: %+v", i, r)
		}
	}
}

// TestLandFaultyLeft: objects that git finds fault with and that a person did not take are
// not left where a later landing would take them for the host's.
func TestLandFaultyLeft(t *testing.T) {
	g := newGitWorld(t, nil)
	bad := rawObject(t, g.in, "commit", rawCommit(gitIn(t, g.in, "rev-parse", "HEAD^{tree}"), g.head(), badPerson, "\nfault\n"))
	gitIn(t, g.in, "branch", "good", gitIn(t, g.in, "commit-tree", "-m", "good", "-p", "HEAD", "HEAD^{tree}"))
	gitIn(t, g.in, "update-ref", "refs/heads/main", bad)
	s := g.leave()
	if rep := g.land(s, LandOptions{Refs: []string{"refs/heads/good"}}); len(rep.Refs) != 1 {
		t.Errorf("%+v", rep)
	}
	if _, err := tryGit(g.ws, "cat-file", "-e", bad); err == nil {
		t.Error("the faulty commit is in the host's repository")
	}
	if rep := g.land(s, LandOptions{}); len(rep.Refs) != 0 {
		t.Errorf("it landed unasked: %+v", rep)
	}
	if rep := g.land(s, LandOptions{IncludeProtected: true}); len(rep.Refs) != 1 || g.head() != bad {
		t.Errorf("control: %+v", rep)
	}
}

// TestLandLocked: a lock that a dead git left stops a landing and an undo whole, and the
// message names it; without it they work.
func TestLandLocked(t *testing.T) {
	g := newGitWorld(t, nil)
	commitIn(t, g.in, "a.txt", "two\n")
	s := g.leave()
	lock := ".git/refs/heads/main.lock"
	for _, do := range []func() error{
		func() error { return second(Land(t.Context(), s, LandOptions{})) },
		func() error { return second(Undo(t.Context(), s, UndoOptions{})) },
	} {
		before := gitState(t, g.ws)
		writeIn(t, g.ws, lock, "")
		var conflict *ConflictError
		if err := do(); !errors.As(err, &conflict) || conflict.Conflicts[0].Path != lock {
			t.Errorf("%v", err)
		}
		must(t, os.Remove(g.ws+"/"+lock))
		if d := diffTrees(before, gitState(t, g.ws)); d != "" {
			t.Error(d)
		}
		must(t, do())
		g.clean(g.ws)
	}
}

// TestGitKill kills landings and undos of commits at steps and at moments: references,
// index and files are then all before or all after, and the next one works.
func TestGitKill(t *testing.T) {
	// The git of a killed landing becomes a child of this process, to be waited for.
	must(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	g := newGitWorld(t, nil)
	old := g.head()
	tip := commitIn(t, g.in, "a.txt", "two\n")
	s := g.leave()
	state := func() map[string]string {
		all := gitState(t, g.ws)
		for p := range all {
			if strings.HasSuffix(p, ".lock") { // of a git that was killed too
				must(t, os.Remove(g.ws+"/"+p))
				delete(all, p)
			}
		}
		return all
	}
	before := state()
	began := time.Now()
	g.land(s, LandOptions{})
	took := time.Since(began)
	after := state()
	rng := rand.New(rand.NewSource(3))
	killed := 0
	rounds := 24
	if testing.Short() {
		rounds = 8
	}
	for round := range rounds {
		what, step := "land", 0
		if g.head() == tip {
			what = "undo"
		}
		if round%2 == 0 {
			step = 1 + rng.Intn(20)
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "CHANGE_TEST_CHILD="+what, "CHANGE_TEST_RUN="+g.run, "CHANGE_TEST_STEP="+fmt.Sprint(step))
		must(t, cmd.Start())
		if step == 0 {
			timer := time.AfterFunc(time.Duration(rng.Int63n(int64(took))), func() { cmd.Process.Kill() })
			defer timer.Stop()
		}
		if err := cmd.Wait(); err != nil {
			killed++
		}
		testenv.AllGone(t, "a killed landing", testenv.Living(t, os.Getpid()), testenv.Patience(time.Minute))
		if h := g.head(); h != old && h != tip {
			t.Fatalf("round %d: main is %s", round, h)
		}
		must(t, second(Recover(t.Context(), g.run)))
		now := state()
		if d, e := diffTrees(before, now), diffTrees(after, now); d != "" && e != "" {
			t.Fatalf("round %d, step %d of %s: neither before:\n%s\nnor after:\n%s", round, step, what, d, e)
		}
	}
	if killed < rounds/3 {
		t.Errorf("only %d of %d were killed", killed, rounds)
	}
	if g.head() == old {
		g.land(s, LandOptions{})
	}
	g.clean(g.ws)
}

// TestLandDiskFull: when a pack can't be written, its commits stay behind with git's reason
// and the files land; with room they land too.
func TestLandDiskFull(t *testing.T) {
	g := newGitWorld(t, nil)
	old := g.head()
	big := make([]byte, 1<<20)
	rand.New(rand.NewSource(1)).Read(big)
	commitIn(t, g.in, "big", string(big))
	must(t, os.Remove(g.in+"/big"))
	gitIn(t, g.in, "rm", "-q", "big")
	tip := commitIn(t, g.in, "a.txt", "two\n")
	s := g.leave()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CHANGE_TEST_CHILD=land", "CHANGE_TEST_RUN="+g.run, "CHANGE_TEST_FSIZE=300000")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "refs/heads/main") || !strings.Contains(string(out), "size limit") {
		t.Fatalf("%v %s", err, out)
	}
	if b, _ := os.ReadFile(g.ws + "/a.txt"); g.head() != old || string(b) != "two\n" {
		t.Errorf("main is %s, a.txt %q", g.head(), b)
	}
	if rep := g.land(s, LandOptions{}); len(rep.Refs) != 1 || g.head() != tip {
		t.Errorf("with room: %+v", rep)
	}
	g.clean(g.ws)
}
