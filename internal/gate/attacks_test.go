package gate

import (
	"bytes"
	"compress/zlib"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/testenv"
)

// clone is a repository that a test attacks.
type clone struct {
	*Repository
	t testing.TB
}

func newClone(t testing.TB, files map[string]string) *clone {
	t.Helper()
	testenv.Need(t, "git", "apt-get install git")
	dir := laid(t, files)
	r, err := hostexec.New(hostexec.Options{Untrusted: []string{dir}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(t.Context()) })
	c := &clone{&Repository{Dir: dir, Runner: r}, t}
	c.run("init", "-q", "-b", "main")
	c.commit()
	return c
}

// run runs git with the user's own environment and configuration.
func (c *clone) run(args ...string) string {
	c.t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.org"}, args...)...)
	cmd.Dir = c.Dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (c *clone) put(name, text string) {
	c.t.Helper()
	p := filepath.Join(c.Dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *clone) commit() string {
	c.t.Helper()
	c.run("add", "-A")
	c.run("commit", "-q", "--allow-empty", "-m", "x")
	return c.run("rev-parse", "HEAD")
}

func (c *clone) tree(rev string) *Tree {
	c.t.Helper()
	t, err := c.Tree(c.t.Context(), rev)
	if err != nil {
		c.t.Fatal(err)
	}
	return t
}

func (c *clone) read(rev, name string) string {
	c.t.Helper()
	b, err := c.tree(rev).Read(c.t.Context(), name)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(b)
}

// overwrite stores an object under another object's name.
func (c *clone) overwrite(id, kind string, body []byte) {
	c.t.Helper()
	var z bytes.Buffer
	w := zlib.NewWriter(&z)
	fmt.Fprintf(w, "%s %d\x00%s", kind, len(body), body)
	w.Close()
	p := filepath.Join(c.Dir, ".git/objects", id[:2], id[2:])
	if err := errors.Join(os.Remove(p), os.WriteFile(p, z.Bytes(), 0o444)); err != nil {
		c.t.Fatal(err)
	}
}

// Nothing in a repository, beside its objects, can make git show another tree or base
// than the one that is judged. Each attack has a harmless counterpart.
func TestT3RepositoriesThatLie(t *testing.T) {
	files := map[string]string{"a.txt": "true\n", "d/b.txt": "deep\n"}
	t.Run("replaced objects", func(t *testing.T) {
		c := newClone(t, files)
		first := c.run("rev-parse", "HEAD")
		c.put("a.txt", "fals\n")
		second := c.commit()
		c.run("replace", c.run("rev-parse", first+":a.txt"), c.run("rev-parse", second+":a.txt"))
		if c.run("cat-file", "-p", first+":a.txt") != "fals" {
			t.Fatal("the attack does nothing to git itself")
		}
		if got := c.read(first, "a.txt"); got != "true\n" {
			t.Errorf("a replacement is judged: %q", got)
		}
	})
	t.Run("grafts and shallow histories", func(t *testing.T) {
		c := newClone(t, files)
		first := c.run("rev-parse", "HEAD")
		c.put("a.txt", "2\n")
		second := c.commit()
		c.run("checkout", "-q", "-b", "work", first)
		c.put("c", "3\n")
		third := c.commit()
		if b, err := c.MergeBase(t.Context(), second, third); err != nil || b != first {
			t.Fatalf("%s %v", b, err)
		}
		if err := os.WriteFile(filepath.Join(c.Dir, ".git/info/grafts"), []byte(third+" "+second+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if b, err := c.MergeBase(t.Context(), second, third); err != nil || b != first {
			t.Errorf("a graft moves the base: %s %v", b, err)
		}
		if b, err := c.Parent(t.Context(), third); err != nil || b != first {
			t.Errorf("a graft moves the commit before it: %s %v", b, err)
		}
		os.Remove(filepath.Join(c.Dir, ".git/info/grafts"))
		if err := os.WriteFile(filepath.Join(c.Dir, ".git/shallow"), []byte(third+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if b, err := c.MergeBase(t.Context(), second, third); !errors.Is(err, errUnrelated) {
			t.Errorf("a history that was cut has a base: %q %v", b, err)
		}
	})
	t.Run("a graph of commits that lies", func(t *testing.T) {
		c := newClone(t, files)
		first := c.run("rev-parse", "HEAD")
		c.commit()
		// Of what it is asked for by name, git reads the commit itself.
		third := c.commit()
		c.run("commit-graph", "write", "--reachable")
		graph := filepath.Join(c.Dir, ".git/objects/info/commit-graph")
		b, err := os.ReadFile(graph)
		if err != nil {
			t.Fatal(err)
		}
		// The root's parent is said to be none; the other's too.
		raw, _ := hex.DecodeString(c.run("rev-parse", third+"^{tree}"))
		for at := bytes.Index(b, raw); at >= 0; {
			copy(b[at+20:], []byte{0x70, 0, 0, 0})
			next := bytes.Index(b[at+1:], raw)
			if next < 0 {
				break
			}
			at += 1 + next
		}
		os.Chmod(graph, 0o644)
		if err := os.WriteFile(graph, b, 0o644); err != nil {
			t.Fatal(err)
		}
		if got := c.run("rev-list", "--count", third); got != "1" {
			t.Fatalf("the attack does nothing to git itself: %s commits", got)
		}
		if got, err := c.MergeBase(t.Context(), first, third); err != nil || got != first {
			t.Errorf("the graph is believed: %q %v", got, err)
		}
	})
	t.Run("a tag that is called like a branch", func(t *testing.T) {
		c := newClone(t, files)
		main := c.run("rev-parse", "HEAD")
		if got, err := c.Commit(t.Context(), "main"); err != nil || got != main {
			t.Fatalf("%q %v", got, err)
		}
		c.run("checkout", "-q", "-b", "work")
		work := c.commit()
		c.run("tag", "main", work)
		if c.run("rev-parse", "main") == main {
			t.Fatal("the attack does nothing to git itself")
		}
		// What was known before, still is what it was.
		if got, err := c.Commit(t.Context(), "main"); err != nil || got != main {
			t.Errorf("%q %v", got, err)
		}
		c.run("tag", main[:8], work)
		c.run("tag", "fine", work)
		blob := c.run("rev-parse", "HEAD:a.txt")
		c.run("branch", "odd")
		c.run("tag", "odd", blob)
		names := []string{"main", "main~0", "main^{commit}", "main^", main[:8], "odd"}
		clear := map[string]string{"refs/heads/main": main, "fine": work, work[:8]: work, "HEAD~1": main, main: main}
		for _, how := range []string{"one by one", "at once"} {
			c.Repository = &Repository{Dir: c.Dir, Runner: c.Runner}
			if how == "at once" {
				if err := c.Resolve(t.Context(), append(slices.Collect(maps.Keys(clear)), append(names, "nobody", "^main", "fine:a.txt")...)...); err != nil {
					t.Fatal(err)
				}
				if c.known["fine"] == "" || c.known[work[:8]] == "" {
					t.Error("nothing was looked up at once")
				}
			}
			for _, name := range names {
				if got, err := c.Commit(t.Context(), name); !errors.Is(err, ErrAmbiguous) {
					t.Errorf("%s: %s is %q: %v", how, name, got, err)
				}
			}
			for name, want := range clear {
				if got, err := c.Commit(t.Context(), name); err != nil || got != want {
					t.Errorf("%s: %s is %q: %v", how, name, got, err)
				}
			}
			for _, name := range []string{"nobody", "^" + main, "fine:a.txt"} {
				if got, err := c.Commit(t.Context(), name); !errors.Is(err, ErrNoRevision) {
					t.Errorf("%s: %s is %q: %v", how, name, got, err)
				}
			}
		}
	})
	t.Run("objects under others' names", func(t *testing.T) {
		for _, x := range []struct {
			what, rev, kind string
		}{{"a file's", ":a.txt", "blob"}, {"a directory's", ":d", "tree"}, {"the root's", "^{tree}", "tree"}, {"a commit's", "", "commit"}} {
			c := newClone(t, files)
			first := c.run("rev-parse", "HEAD")
			c.put("a.txt", "fals\n")
			c.put("d/b.txt", "DEEP\n")
			second := c.commit()
			cmd := exec.Command("git", "cat-file", x.kind, second+x.rev)
			cmd.Dir = c.Dir
			forged, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			look := func() error {
				tree, err := c.Tree(t.Context(), first)
				if err == nil {
					_, err = tree.Digest(t.Context())
				}
				return err
			}
			if err := look(); err != nil {
				t.Fatalf("an honest tree: %v", err)
			}
			honest, err := c.tree(first).Digest(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			c.tree(second)
			hints := c.Hints()
			if len(hints.Commits) != 2 || len(hints.Blobs) != 4 || len(hints.Lists) != 2 {
				t.Fatalf("what was asked for: %+v", hints)
			}
			c.Repository = &Repository{Dir: c.Dir, Runner: c.Runner} // one that has seen nothing
			c.overwrite(c.run("rev-parse", first+x.rev), x.kind, forged)
			// Of some git itself sees it.
			if err := look(); err == nil {
				t.Errorf("%s name stands for another's content: %v", x.what, err)
			}
			c.Repository = &Repository{Dir: c.Dir, Runner: c.Runner}
			err = c.Resolve(t.Context(), "HEAD", first)
			if err == nil {
				err = c.Load(t.Context(), first, second)
			}
			if err == nil {
				t.Errorf("%s name stands for another's content, read at once", x.what)
			}
			if len(c.files) > 0 && c.files[first] != nil && x.kind != "blob" {
				t.Errorf("%s: the tree counts as read", x.what)
			}
			c.Repository = &Repository{Dir: c.Dir, Runner: c.Runner}
			c.SetHints(hints)
			if err = c.Resolve(t.Context(), "HEAD", first); err == nil {
				err = look()
			}
			if err == nil {
				t.Errorf("%s name stands for another's content, which was expected", x.what)
			}
			// With the list that git gave before, the trees between are not read: what is
			// judged is what the commit names, or nothing.
			c.Repository = &Repository{Dir: c.Dir, Runner: c.Runner}
			c.SetHints(hints)
			if err = c.Resolve(t.Context(), "HEAD", first); err == nil {
				err = c.Load(t.Context(), first, second)
			}
			if err == nil {
				var tree *Tree
				if tree, err = c.Tree(t.Context(), first); err == nil {
					var got string
					if got, err = tree.Digest(t.Context()); err == nil && (got != honest || x.kind != "tree") {
						t.Errorf("%s name stands for another's content, and is loaded as it was expected", x.what)
					}
				}
			}
		}
	})
	t.Run("a history that hides what came and went", func(t *testing.T) {
		for _, x := range []struct {
			what string
			hide func(c *clone, middle, tip string)
		}{
			{"nothing", func(*clone, string, string) {}},
			{"a directory's name", func(c *clone, middle, _ string) {
				c.overwrite(c.run("rev-parse", middle+"^{tree}"), "tree", nil)
			}},
			{"an end of the history", func(c *clone, _, tip string) {
				if err := os.WriteFile(filepath.Join(c.Dir, ".git/shallow"), []byte(tip+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}},
		} {
			c := newClone(t, files)
			base := c.run("rev-parse", "HEAD")
			c.put("secret.txt", "hunter2\n")
			middle := c.commit()
			secret := c.run("rev-parse", middle+":secret.txt")
			c.run("rm", "-q", "secret.txt")
			tip := c.commit()
			x.hide(c, middle, tip)
			found := false
			err := c.tree(tip).history(t.Context(), c.tree(base), func(p HistoryObject, b []byte) error {
				found = found || p.ID == secret && string(b) == "hunter2\n"
				return nil
			})
			if honest := x.what == "nothing"; honest != (err == nil) || honest && !found {
				t.Errorf("%s hides what came and went: found %t, %v", x.what, found, err)
			}
		}
	})
	t.Run("what is expected is another's", func(t *testing.T) {
		c := newClone(t, files)
		first := c.run("rev-parse", "HEAD")
		blob := c.run("rev-parse", "HEAD:a.txt")
		want, err := c.tree(first).Digest(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c.put("a.txt", "fals\n")
		second := c.commit()
		gone := strings.Repeat("0", 40)
		ls := func(commit string) string {
			b, err := c.list(t.Context(), commit)
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		list, other, sizes := ls(first), ls(second), regexp.MustCompile(` [0-9]+\t`)
		blobs := []string{blob}
		for _, f := range c.tree(first).Files {
			if f.id != blob {
				blobs = append(blobs, f.id)
			}
		}
		lists := func(s string) map[string][]byte { return map[string][]byte{first: []byte(s)} }
		asked := 0
		defer func() {
			if asked != 1 {
				t.Errorf("%d lists were taken as they were expected, want the true one alone", asked)
			}
		}()
		for _, h := range []Hints{
			{Commits: []string{first}, Blobs: []string{blob}},
			{Commits: []string{first, second}},
			{Commits: []string{second, gone}, Blobs: []string{gone, blob, gone}},
			{Commits: []string{"HEAD", "--help"}, Blobs: []string{"HEAD", "HEAD:a.txt\nx", ""}},
			{Blobs: []string{second, c.run("rev-parse", second+"^{tree}"), blob}},
			{Commits: []string{first, second, first}},
			// Lists: the true one, another commit's, another content's, another name, mode
			// and size, what is no list, and what has nothing to compare its sizes with.
			{Commits: []string{first}, Blobs: blobs, Lists: lists(list)},
			{Commits: []string{first}, Blobs: blobs, Lists: lists(other)},
			{Commits: []string{first}, Blobs: blobs, Lists: lists(strings.Replace(list, blob, blobs[1], 1))},
			{Commits: []string{first}, Blobs: blobs, Lists: lists(strings.Replace(list, "a.txt", "b.txt", 1))},
			{Commits: []string{first}, Blobs: blobs, Lists: lists(strings.Replace(list, "100644", "100755", 1))},
			{Commits: []string{first}, Blobs: blobs, Lists: lists(sizes.ReplaceAllString(list, " 1\t"))},
			{Commits: []string{first}, Blobs: blobs, Lists: lists("x\x00")},
			{Commits: []string{first}, Blobs: blobs, Lists: lists(list[:strings.IndexByte(list, 0)+1])},
			{Commits: []string{first}, Blobs: []string{blob}, Lists: lists(sizes.ReplaceAllString(list, " 1\t"))},
		} {
			r := &Repository{Dir: c.Dir, Runner: c.Runner}
			r.SetHints(h)
			if err := r.Resolve(t.Context(), first, "HEAD", "nobody"); err != nil {
				t.Fatalf("%q: %v", h, err)
			}
			if slices.Contains(h.Blobs, blob) != (len(r.blobs) > 0) {
				t.Errorf("%q: %d contents are held", h, len(r.blobs))
			}
			if r.useHintedList(t.Context(), first) {
				asked++
			}
			if err := r.Load(t.Context(), first); err != nil {
				t.Fatalf("%q: %v", h, err)
			}
			tree, err := r.Tree(t.Context(), first)
			if err != nil {
				t.Fatalf("%q: %v", h, err)
			}
			if got, err := tree.Digest(t.Context()); err != nil || got != want {
				t.Errorf("%q: another tree: %v", h, err)
			}
			if _, err := r.Commit(t.Context(), "nobody"); !errors.Is(err, ErrNoRevision) {
				t.Errorf("%q: %v", h, err)
			}
		}
		// Another commit's list of files.
		r := &Repository{Dir: c.Dir, Runner: c.Runner}
		if err := r.Resolve(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if r.listed[first], err = r.list(t.Context(), second); err != nil {
			t.Fatal(err)
		}
		var bad *TreeError
		if err := r.Load(t.Context(), first); !errors.As(err, &bad) {
			t.Errorf("another commit's list of files is believed: %v", err)
		}
	})
	t.Run("filters, attributes, hooks and flags of the index", func(t *testing.T) {
		c := newClone(t, files)
		ran := filepath.Join(t.TempDir(), "ran")
		for _, kv := range [][2]string{{"filter.x.smudge", "touch " + ran}, {"filter.x.clean", "touch " + ran}, {"diff.x.textconv", "touch " + ran}, {"core.fsmonitor", "touch " + ran}, {"core.hooksPath", "hooks"}, {"core.attributesFile", filepath.Join(c.Dir, "attr")}} {
			c.run("config", kv[0], kv[1])
		}
		for _, name := range []string{"post-checkout", "post-index-change", "reference-transaction"} {
			c.put("hooks/"+name, "#!/bin/sh\ntouch "+ran+"\n")
			os.Chmod(filepath.Join(c.Dir, "hooks", name), 0o755)
		}
		c.put(".git/info/attributes", "* filter=x diff=x text eol=crlf ident export-subst\n")
		if err := os.WriteFile(filepath.Join(c.Dir, ".git/info/exclude"), []byte("new.txt\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		c.run("update-index", "--assume-unchanged", "a.txt")
		c.run("update-index", "--skip-worktree", "d/b.txt")
		os.Remove(ran)
		c.put("a.txt", "$Id$ other\n")
		c.put("d/b.txt", "other\n")
		w, err := c.WorkTree(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		diff, err := w.Differences(t.Context(), c.tree("HEAD"))
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, d := range diff {
			seen[d.Path] = true
		}
		if !seen["a.txt"] || !seen["d/b.txt"] {
			t.Errorf("flags of the index hide what differs: %v", seen)
		}
		if b, _ := w.Read(t.Context(), "a.txt"); string(b) != "$Id$ other\n" {
			t.Errorf("an attribute changes what is judged: %q", b)
		}
		if _, err := os.Stat(ran); err == nil {
			t.Error("the repository's own program was run")
		}
	})
	t.Run("submodules, and names that lead into git's files", func(t *testing.T) {
		c := newClone(t, files)
		head := c.run("rev-parse", "HEAD")
		for _, x := range []struct{ mode, id, name string }{
			{"160000", head, "sub"}, {"100644", c.run("rev-parse", "HEAD:a.txt"), "x/.GIT\u200c/config"},
		} {
			c.run("read-tree", "HEAD")
			cmd := exec.Command("git", "-c", "core.protectHFS=false", "-c", "core.protectNTFS=false", "update-index", "--index-info")
			cmd.Dir, cmd.Stdin = c.Dir, strings.NewReader(x.mode+" "+x.id+"\t"+x.name+"\n")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", x.name, err, out)
			}
			commit := c.run("commit-tree", "-m", "x", c.run("write-tree"))
			var bad *TreeError
			if _, err := c.Tree(t.Context(), commit); !errors.As(err, &bad) {
				t.Errorf("%s is judged: %v", x.name, err)
			}
		}
		other := &Tree{Name: "x", Files: []File{{Path: "a", Mode: Link}, {Path: "a-b"}, {Path: "a/c"}}}
		if _, err := other.validate(); err == nil {
			t.Error("a link is a directory too")
		}
	})
}

const staticCatalog = "version: 1\nsignals:\n  - {name: policy, kind: policy, frozen: [\"judge/**\"]}\n  - {name: secrets, kind: secrets}\n"

// aToken is put together at run time, so that scanners do not report this file.
var aToken = "ghp_" + "1234567890abcdefghijABCDEFGHIJ123456"

// Changes that hide their effect from signals that run nothing.
func TestT2StaticAttacks(t *testing.T) {
	base := map[string]string{
		"run.sh": "exit 0\n", "impl/check.sh": "exit 0\n", "old/fixture.txt": "key " + aToken + "\n", "Doc.md": "x\n",
	}
	c := newClone(t, base)
	if err := os.Symlink("../impl", filepath.Join(c.Dir, "old/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("impl", filepath.Join(c.Dir, "judge")); err != nil {
		t.Fatal(err)
	}
	link := func(name, to string) {
		at := filepath.Join(c.Dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.Symlink(to, at)); err != nil {
			t.Fatal(err)
		}
	}
	link("by/way", "../impl/../Doc.md")
	link("out", "../elsewhere")
	link("in/.envrc", "../conf/env")
	first := c.commit()
	catalog := staticCatalog + "  - {name: b, kind: build, command: [sh, ./run.sh]}\n"
	for _, x := range []struct {
		what   string
		do     func()
		caught string
		says   string
	}{
		{"nothing", func() {}, "", ""},
		{"a link to what is frozen, followed", func() { c.put("impl/check.sh", "true\n") }, "policy", "frozen"},
		{"a file beside it", func() { c.put("impl2/check.sh", "true\n") }, "", ""},
		{"what the catalog runs", func() { c.put("run.sh", "true\n") }, "policy", "runner"},
		{"a script beside it", func() { c.put("other.sh", "true\n") }, "", ""},
		{"a secret that came and went", func() { c.put("k", aToken[:8]+"x"+aToken[9:]); c.commit(); os.Remove(filepath.Join(c.Dir, "k")) }, "secrets", "on the way"},
		{"a file that came and went", func() { c.put("k", "words"); c.commit(); os.Remove(filepath.Join(c.Dir, "k")) }, "", ""},
		{"a secret in a commit's text", func() { c.run("commit", "-q", "--allow-empty", "-m", "see "+aToken[:8]+"y"+aToken[9:]) }, "secrets", "text of commit"},
		{"a secret as a file's name", func() { c.put(aToken[:8]+"z"+aToken[9:], "") }, "secrets", "name"},
		{"a known secret that moves", func() { c.run("mv", "old/fixture.txt", "fixture.txt") }, "", ""},
		{"a binary with a long head of text", func() { c.put("img", strings.Repeat("text\n", 4000)+"\x00\x01") }, "policy", "binary"},
		{"a long text", func() { c.put("img", strings.Repeat("text\n", 4000)) }, "", ""},
		{"a name that differs in case", func() { c.put("doc.MD", "y\n") }, "policy", "look-alike"},
		{"a name that differs in what is not seen", func() { c.put("Doc\u200b.md", "y\n") }, "policy", "look-alike"},
		{"a directory that differs in case", func() { link("OLD", "impl") }, "policy", "look-alike"},
		{"a file in one", func() { c.put("Old/other", "y\n") }, "policy", "look-alike"},
		{"a directory of its own", func() { c.put("older/fixture.txt", "y\n") }, "", ""},
		{"a link out", func() { link("t", "old/../../.ssh/id_rsa") }, "policy", "out of the tree"},
		{"a link out by way of another", func() { link("d/e/s", "../.."); link("t", "d/e/s/../.ssh/id_rsa") }, "policy", "out of the tree"},
		{"links that stay", func() { link("d/e/s", "../.."); link("t", "d/e/s/old/../impl/check.sh") }, "", ""},
		{"a link as it was, that a new one lets out", func() { c.run("mv", "impl", "x"); link("impl", ".") }, "policy", "by/way"},
		{"a link as it was, that still stays", func() { link("older/x", ".") }, "", ""},
		{"attributes in capitals", func() { c.put("impl/.GitAttributes", "*.sh -diff\n") }, "policy", "hides"},
		{"a CI file", func() { c.put(".github/workflows/x.yml", "on: push\n") }, "policy", "workflows"},
		{"a setting that a host obeys", func() { c.put("sub/.envrc", "x\n") }, "policy", "direnv"},
		{"where a link of such a name leads", func() { c.put("conf/env", "x\n") }, "policy", "direnv"},
		{"a submodule's setting alone", func() { c.put(".gitmodules", "[submodule \"x\"]\n\tpath = x\n\turl = ext::sh\n") }, "policy", "repositories"},
		{"attributes that hide differences", func() { c.put(".gitattributes", "*.sh -diff\n") }, "policy", "hides"},
	} {
		c.run("checkout", "-q", "-f", "-B", "main", first)
		c.run("clean", "-fdq")
		x.do()
		change := c.commit()
		v := verdict(t, newGate(t, catalog, c.tree(first), c.tree(change), func(Job) *Ended { return ok(saw("/bin/sh")) }))
		var got []string
		var text bytes.Buffer
		v.Text(&text, true)
		for _, r := range v.Signals {
			if r.Outcome != Passed {
				got = append(got, r.Name)
			}
		}
		if s := strings.Join(got, " "); s != x.caught || !strings.Contains(text.String(), x.says) {
			t.Errorf("%s: caught by %q, want %q and %q\n%s", x.what, s, x.caught, x.says, text.String())
		}
	}
}

// Secrets beyond the number that is compared with the base, or listed, count as new.
func TestT2ManySecrets(t *testing.T) {
	tokens := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "\n\nkey %s%08d\n", aToken[:len(aToken)-8], i)
		}
		return b.String()
	}
	look := func(base, change map[string]string) (secretFacts, []Finding) {
		f, found, err := findSecrets(t.Context(), &Case{Base: tree(t, base), Change: tree(t, change)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return f, found
	}
	if f, found := look(map[string]string{"a": tokens(maxBaseSecrets)}, map[string]string{"b": tokens(maxBaseSecrets)}); f.Found != 0 || len(found) != 0 {
		t.Errorf("those of the base: %+v", f)
	}
	if f, _ := look(map[string]string{"a": tokens(maxBaseSecrets + 10)}, map[string]string{"b": tokens(maxBaseSecrets + 10)}); f.Found != 10 {
		t.Errorf("more than are compared: %+v", f)
	}
	many := map[string]string{}
	for i := range maxHits/500 + 1 {
		many[fmt.Sprintf("b%02d", i)] = tokens(500)
	}
	f, found := look(map[string]string{"a": ""}, many)
	if f.Found != maxHits+500 || len(found) != maxHits || found[7].Line != 24 || found[maxHits-1].Line != 3*500 {
		t.Errorf("more than are told: %+v, %d, %+v", f, len(found), found[7])
	}
}

// A change cannot edit the catalog, even if that has no policy signal.
func TestT3JudgesWithoutPolicy(t *testing.T) {
	only := "version: 1\nsignals:\n  - {name: b, kind: build, command: [make]}\n"
	base := tree(t, map[string]string{"a": "x", CatalogPath: only})
	run := func(change map[string]string) *Verdict {
		return verdict(t, newGate(t, only, base, tree(t, change), func(Job) *Ended { return ok(saw("/usr/bin/make")) }))
	}
	if v := run(map[string]string{"a": "y", CatalogPath: only}); v.Outcome != Passed || len(v.Signals) != 1 {
		t.Errorf("%+v", v)
	}
	for what, change := range map[string]map[string]string{
		"edited":   {"a": "x", CatalogPath: only + "# x\n"},
		"removed":  {"a": "x"},
		"baseline": {"a": "x", CatalogPath: only, BaselinePath: "{}"},
	} {
		if v := run(change); v.Outcome != Final {
			t.Errorf("%s: %s", what, v.Outcome)
		}
	}
}

// If a file is replaced between two reads, judging fails; only the hashed content is laid
// out, read or copied.
func TestT2TreesThatChange(t *testing.T) {
	dir := laid(t, map[string]string{"a": "aaaa", "b": "bbbb"})
	x, err := DirTree("x", dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Digest(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := x.LayOut(t.Context(), filepath.Join(t.TempDir(), "before"), nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("AAAA"), 0o644); err != nil {
		t.Fatal(err)
	}
	var bad *TreeError
	if err := x.LayOut(t.Context(), filepath.Join(t.TempDir(), "after"), nil); !errors.As(err, &bad) || bad.Path != "a" {
		t.Errorf("what was exchanged is laid out: %v", err)
	}
	if b, err := x.Read(t.Context(), "a"); !errors.As(err, &bad) {
		t.Errorf("%q %v", b, err)
	}
	if b, err := x.Read(t.Context(), "b"); err != nil || string(b) != "bbbb" {
		t.Errorf("%q %v", b, err)
	}
	over := overlaySource{x.contents(), map[string]func() (io.ReadCloser, error){}}
	if err := over.each(t.Context(), x.Files, func(File, []byte) error { return nil }); !errors.As(err, &bad) {
		t.Errorf("what was exchanged is part of a run's tree: %v", err)
	}
}

// The packages that are looked up are the ones that are fetched in the end.
func TestT2LockfilesThatLie(t *testing.T) {
	db := laid(t, map[string]string{"go/b.json": `{"id":"GO-1","summary":"bad","affected":[{"package":{"ecosystem":"Go","name":"example.org/evil"},"ranges":[{"type":"SEMVER","events":[{"introduced":"0"}]}]}]}`})
	const mod = "module x\n\ngo 1.26\n\nrequire example.org/m v1.0.0\n"
	lock := `{"lockfileVersion":3,"packages":{"":{"name":"x"}}}`
	for _, x := range []struct {
		what   string
		change map[string]string
		link   bool
		want   Outcome
	}{
		{"none", map[string]string{"go.mod": mod}, false, Passed},
		{"replaced", map[string]string{"go.mod": mod + "replace example.org/m => example.org/evil v1.0.0\n"}, false, Failed},
		{"replaced, behind one that never counts", map[string]string{"go.mod": mod + "replace example.org/m v1.0.0 => example.org/evil v1.0.0\nreplace example.org/m v1.9.9 => example.org/fine v1.0.0\n"}, false, Failed},
		{"replaced by a directory", map[string]string{"go.mod": mod + "replace example.org/m => ./m\n"}, false, Passed},
		{"replaced by the workspace", map[string]string{"go.mod": mod, "go.work": "go 1.26\n\nuse .\n\nreplace example.org/m => example.org/evil v1.0.0\n"}, false, Failed},
		{"a workspace", map[string]string{"go.mod": mod, "go.work": "go 1.26\n\nuse .\n"}, false, Passed},
		{"a lockfile that is a link", map[string]string{"go.mod": mod, "locks/a": lock}, true, Unavailable},
	} {
		dir := laid(t, x.change)
		if x.link {
			if err := os.Symlink("locks/a", filepath.Join(dir, "package-lock.json")); err != nil {
				t.Fatal(err)
			}
		}
		change, err := DirTree("change", dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		g := newGate(t, "version: 1\nsignals:\n  - {name: v, kind: vulnerabilities}\n", tree(t, map[string]string{"go.mod": mod}), change, nil)
		g.Database = db
		if v := verdict(t, g); v.Outcome != x.want {
			t.Errorf("%s: %s, want %s: %+v", x.what, v.Outcome, x.want, v.Signals[0])
		}
	}
}
