package gate

import (
	"bytes"
	"compress/zlib"
	"context"
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

// A test that keeps its name and checks nothing any more is reported, wherever it moves.
// A rewritten test is not.
func TestT2EmptiedInOtherWays(t *testing.T) {
	const helpers = "package x\nimport \"testing\"\nfunc Check(t testing.TB, a int) { if a != 1 { t.Fatal(a) } }\n"
	const was = "package a\nfunc TestA(t *testing.T) {\n\tif f() != 1 {\n\t\tt.Fatal(1)\n\t}\n}\n"
	for _, x := range []struct {
		what         string
		base, change map[string]string
		caught       bool
	}{
		{"moved, and emptied on the way", map[string]string{"a_test.go": was}, map[string]string{"b_test.go": "package a\nfunc TestA(t *testing.T) {}\n"}, true},
		{"moved", map[string]string{"a_test.go": was}, map[string]string{"b_test.go": was}, false},
		{"what failed it is gone", map[string]string{"a_test.go": was}, map[string]string{"a_test.go": "package a\nfunc TestA(t *testing.T) {\n\tf()\n}\n"}, true},
		{"what failed it never runs", map[string]string{"a_test.go": was}, map[string]string{"a_test.go": "package a\nfunc TestA(t *testing.T) {\n\tif false {\n\t\tt.Fatal(1)\n\t}\n\tf()\n}\n"}, true},
		{"a helper does it", map[string]string{"a_test.go": was}, map[string]string{"a_test.go": "package a\nfunc TestA(t *testing.T) {\n\tcheck(t, f(), 1)\n}\n"}, false},
		{"a library of helpers, emptied", map[string]string{"x/check.go": helpers}, map[string]string{"x/check.go": strings.Replace(helpers, "t.Fatal(a)", "", 1)}, true},
		{"a library of helpers, otherwise", map[string]string{"x/check.go": helpers}, map[string]string{"x/check.go": strings.Replace(helpers, "t.Fatal(a)", "log(a)", 1)}, false},
		{"a library of helpers, by another one", map[string]string{"x/check.go": helpers}, map[string]string{"x/check.go": strings.Replace(helpers, "{ if a != 1 { t.Fatal(a) } }", "bool { t.Helper(); return Equal(t, a, 1) }", 1)}, false},
		{"a library of helpers, to call", map[string]string{"x/check.go": helpers}, map[string]string{"x/check.go": strings.Replace(helpers, "{ if a != 1 { t.Fatal(a) } }", "func() { return func() { t.Fatal(a) } }", 1)}, false},
		{"a library of helpers that gives what it got", map[string]string{"x/check.go": helpers}, map[string]string{"x/check.go": strings.Replace(helpers, "{ if a != 1 { t.Fatal(a) } }", "int { return a }", 1)}, true},
		{"not one of tests", map[string]string{"x/check.go": strings.Replace(helpers, "testing.TB", "other.T2", 1)}, map[string]string{"x/check.go": "package x\nimport \"testing\"\nfunc Check(t other.T2, a int) {}\n"}, false},
		{"in a subtest", map[string]string{"a_test.go": was}, map[string]string{"a_test.go": "package a\nfunc TestA(t *testing.T) {\n\tt.Run(\"x\", func(t *testing.T) {\n\t\tif f() != 1 {\n\t\t\tt.Error(1)\n\t\t}\n\t})\n}\n"}, false},
		{"Python without its assertion", map[string]string{"test_a.py": "def test_a():\n    x = f()\n    assert x == 1\n"}, map[string]string{"test_a.py": "def test_a():\n    x = f()\n"}, true},
		{"Python with another", map[string]string{"test_a.py": "def test_a():\n    x = f()\n    assert x == 1\n"}, map[string]string{"test_a.py": "def test_a():\n    check_all(f())\n"}, false},
		{"JavaScript without its expectation", map[string]string{"a.test.js": "test('a', () => { expect(f()).toBe(1) })\ntest('b', () => { expect(1) })\n"}, map[string]string{"a.test.js": "test('a', () => { f() // expect(f())\n})\ntest('b', () => { expect(1) })\n"}, true},
		{"JavaScript with another", map[string]string{"a.test.js": "test('a', () => { expect(f()).toBe(1) })\n"}, map[string]string{"a.test.js": "test('a', () => { assert.equal(f(), 1) })\n"}, false},
	} {
		got, err := findWeakenedTests(t.Context(), tree(t, x.base), tree(t, x.change), "", nil)
		if err != nil || (len(got) > 0) != x.caught {
			t.Errorf("%s: %v %v", x.what, got, err)
		}
	}
}

// An assertion in code that never runs does not count. Similar code that does run counts.
func TestT2NeverRuns(t *testing.T) {
	const (
		goFails = "if f() != 1 { t.Fatal(1) }"
		goRest  = "\n}\nfunc check(t *testing.T, a int) {\n\tif a != 1 { t.Fatal(a) }\n}\n"
		goHead  = "package a\nfunc TestA(t *testing.T) {\n"
		pyHead  = "def test_a():\n    x = f()\n"
	)
	for _, x := range []struct {
		file, was string
		caught    map[bool][]string
	}{
		{"a_test.go", goHead + goFails + goRest, map[bool][]string{
			true: {
				goHead + "f()\nreturn\n" + goFails + goRest,
				goHead + "if true { return }\n" + goFails + goRest,
				goHead + "if 1 < 2 { f(); return }\n" + goFails + goRest,
				goHead + "f()\nif 1 == 2 { t.Fatal(1) }" + goRest,
				goHead + "if f() != 1 && false { t.Fatal(1) }" + goRest,
				goHead + "f()\nfor range 0 { t.Fatal(1) }" + goRest,
				goHead + "f()\nfor false { t.Fatal(1) }" + goRest,
				goHead + "for _, x := range []int{} { if f() != x { t.Fatal(1) } }" + goRest,
				goHead + "t = &testing.T{}\n" + goFails + goRest,
				goHead + "{ t := new(testing.T)\n" + goFails + "}" + goRest,
				goHead + "f()\n_ = func() { t.Fatal(1) }" + goRest,
				goHead + "goto end\n" + goFails + "\nend:" + goRest,
				goHead + "os.Exit(0)\n" + goFails + goRest,
				goHead + "switch { default: return }\n" + goRest,
				goHead + "t.Run(\"x\", func(t *testing.T) { t.Skip()\n" + goFails + "})" + goRest,
				goHead + "s.T().Skip()\n" + goFails + goRest,
				goHead + "f()\n_ = harness{t: t}" + goRest,
				goHead + "f()\n_, _ = t, harness{t}\nvar _ = harness{t}" + goRest,
				goHead + "{ var t testing.T\n" + goFails + "}" + goRest,
				goHead + "h := harness{t: new(testing.T)}\nh.equal(f(), 1)" + goRest,
				goHead + "t.Run(\"x\", func(t *testing.T) { f() })" + goRest,
				goHead + "t.Run(\"x\", (func(*testing.T) { f() }))" + goRest,
				goHead + "cmd.Run(f())" + goRest,
				goHead + "u := t\nu.Log(f())" + goRest,
				goHead + "if 1 == 2 { t.Fatal(1) }\nf()" + goRest,
				goHead + goFails + "\n}\nfunc check(t *testing.T, a int) {\n}\n", // the helper
				goHead + goFails + "\n}\nfunc check(t *testing.T, a int) { t.Helper(); return; check(t, 1) }\n",
			},
			false: {
				goHead + "if f() == 1 { return }\nt.Fatal(1)" + goRest,
				goHead + "if true { if f() != 1 { t.Fatal(1) } }" + goRest,
				goHead + "if false { f() } else { check(t, f()) }" + goRest,
				goHead + "for _, x := range []int{1} { if f() != x { t.Fatal(1) } }" + goRest,
				goHead + "for { if f() == 1 { break }\nt.Fatal(1) }" + goRest,
				goHead + "again:\n" + goFails + "\nif g() { goto again }" + goRest,
				goHead + "do := func() { t.Fatal(1) }\nif f() != 1 { do() }" + goRest,
				goHead + "if testing.Short() { t.Skip() }\n" + goFails + goRest,
				goHead + "t.Cleanup(func() { return; })\n" + goFails + goRest,
				goHead + "if 2 < 1 || f() != 1 { t.Fatal(1) }" + goRest,
				goHead + "if 2i < 1i || f() != 1 { t.Fatal(1) }" + goRest,              // which does not compile
				goHead + "if 1e999999999 < 1 || f() != 1 { t.Fatal(1) }" + goRest,      // nor does this
				goHead + goFails + "\n}\nfunc check(t *testing.T, a int) { log(a) }\n", // a helper that fails less
				goHead + "check(t, f())" + goRest,
				goHead + "t.Run(\"one\", testOne)" + goRest,
				goHead + "for _, tc := range f() { t.Run(tc.name, tc.run) }" + goRest,
				goHead + "h := harness{t: t}\nh.equal(f(), 1)" + goRest,
				goHead + "(&harness{t}).equal(f(), 1)" + goRest,
				goHead + "for _, h := range []harness{{t: t}} { h.equal(f(), 1) }" + goRest,
				goHead + "u := t\nif f() != 1 { u.Fatal(1) }" + goRest,
				goHead + "var u testing.TB = t\nif f() != 1 { u.Fatal(1) }" + goRest,
				goHead + "it.Skip()\n" + goFails + goRest,
				goHead + "dec.Skip()\nvisit(func(it *iter) { it.Skip(); check(t, it) })" + goRest,
				goHead + "t.Run(\"x\", func(t *testing.T) { dec.Skip(); " + goFails + "})" + goRest,
				goHead + "p.t.Skip()\n" + goFails + goRest,
				goHead + "visit(func(t *tokens) { t.Skip(); " + goFails + "})" + goRest,
				goHead + "if " + strings.Repeat("7", maxConstant) + "1 == 2 || f() != 1 { t.Fatal(1) }" + goRest,
				goHead + goFails + "\n}\nfunc check(t *testing.T, a int) { it.Skip(); log(a) }\n",
			},
		}},
		{"test_a.py", pyHead + "    assert x == 1\n", map[bool][]string{
			true: {
				pyHead + "    return\n    assert x == 1\n",
				pyHead + "    if x:\n        pass\n    return x\n    assert x == 1\n",
				pyHead + "    if False:\n        assert x == 1\n",
				pyHead + "    if (0):\n        y = 1\n        assert x == 1\n",
				pyHead + "    while not True:\n        assert x == 1\n",
				pyHead + "    assert True\n",
				pyHead + "    assert x == 1 or True, 'wrong'\n",
				pyHead + "    \"\"\"\n    assert x == 1\n    \"\"\"\n",
				pyHead + "    y = '''\n    assert x == 1\n    '''\n",
				pyHead + "    y = 'assert x' # assert x == 1\n",
			},
			false: {
				pyHead + "    if x == 2:\n        return\n    assert x == 1\n",
				pyHead + "    if False:\n        pass\n    assert x == 1\n",
				pyHead + "    if False:\n        pass\n    else:\n        assert x == 1\n",
				pyHead + "    for y in x:\n        if y: continue\n        assert y == 1\n",
				pyHead + "    y = 'don\\'t \"\"\" #'; assert x == y\n",
				pyHead + "    y = '''\n    words\n'''\n    assert x == y\n",
				pyHead + "    # don't\n    assert x == 1\n",
				pyHead + "    assert x == 1, 'or True'\n",
				pyHead + "    return check(x)\n",
			},
		}},
		{"a.test.js", "test('a', () => { expect(f()).toBe(1) })\n", map[bool][]string{
			true: {
				"test('a', () => { return; expect(f()).toBe(1) })\n",
				"test('a', () => { f()\n return\n expect(f()).toBe(1) })\n",
				"test('a', () => { f()\n\f\n\freturn\n expect(f()).toBe(1) })\n",
				"test('a', () => { // words\rreturn\n expect(f()).toBe(1) })\n",
				"test('a', () => { // words\u2028return\n expect(f()).toBe(1) })\n",
				"test('a', () => { f(); if (false) expect(f()).toBe(1) })\n",
				"test('a', () => { f(); if ( 0 ) { g({}); expect(f()).toBe(1) } })\n",
				"test('a', () => { f(); /* expect(f()).toBe(1)\n */ })\n",
				"test('a', () => { f('expect(1)'); `expect(${1})`; })\n",
				"test('a', () => { f() })\nfunction g() { expect(1) }\n",
				"test('a', () => { ; })\n",
			},
			false: {
				"test('a', () => { return expect(f()).resolves.toBe(1) })\n",
				"test('a', () => {\n return f()\n  .then((x) => { expect(x).toBe(1) }) })\n",
				"test('a', () => { return new Promise((done) => {\n f((x) => { expect(x).toBe(1); done() }) }) })\n",
				"test('a', () => { if (f() == 2) return; expect(f()).toBe(1) })\n",
				"test('a', () => { if (false) { g() } expect(f()).toBe(1) })\n",
				"test('a', () => { const s = \"don't // \"; expect(f()).toBe(s) })\n",
				"test('a', () => check(f()))\n",
				"test('a', () => { f(/[{]/); expect(f()).toBe(1) })\n", // it has no end
			},
		}},
	} {
		for caught, list := range x.caught {
			for _, is := range list {
				got, err := findWeakenedTests(t.Context(), tree(t, map[string]string{x.file: x.was}), tree(t, map[string]string{x.file: is}), "", nil)
				if err != nil || (len(got) > 0) != caught {
					t.Errorf("%v %v, want %t of\n%s", got, err, caught, is)
				}
				for i := range is { // whatever is cut off
					bodyParser(x.file)([]byte(is[:i]))
				}
			}
		}
	}
}

// A weakened test is reported even if another test has its name. A rewritten or
// duplicated one is not.
func TestT2EmptiedBehindAnother(t *testing.T) {
	const (
		py    = "def test_a():\n    assert f()\n"
		class = "class A:\n    def test_a(self):\n        assert f()\n"
		js    = "it('a', () => { expect(f()).toBe(1) })\n"
		suite = "package a\ntype S struct{ suite.Suite }\nfunc (s *S) TestA() {\n\tx := f()\n\ts.Equal(1, x)\n}\n"
		goA   = "package a\nimport \"testing\"\nfunc TestA(t *testing.T) { if f() != 1 { t.Fatal(1) } }\n"
		goNot = "package a\nimport \"testing\"\nfunc TestA(t *testing.T) {}\n"

		fixture = "package x\nimport \"testing\"\nfunc newServer(t *testing.T, name string) *Server { s := open(t); return s }\n"
	)
	type files = map[string]string
	for _, x := range []struct {
		what, format string
		base, change files
		passed       string // an id, on both sides
		caught       string // findings, or none
	}{
		// One of the name is there for show.
		{"a function before", "pytest", files{"test_a.py": py}, files{"test_a.py": py + "def test_a():\n    pass\n"}, "test_a::test_a", "test_a.py::test_a"},
		{"a function behind", "pytest", files{"test_a.py": py}, files{"test_a.py": "def test_a():\n    pass\n" + py}, "test_a::test_a", "test_a.py::test_a"},
		{"a class for show", "pytest", files{"test_a.py": py}, files{"test_a.py": "def test_a():\n    pass\n" + strings.Replace(class, "A", "Show", 1)}, "test_a::test_a", "test_a.py::test_a"},
		{"a method", "pytest", files{"test_a.py": class}, files{"test_a.py": strings.Replace(class, "assert f()", "f()", 1) + py}, "test_a.A::test_a", "test_a.py::A.test_a"},
		{"a function within", "pytest", files{"test_a.py": py}, files{"test_a.py": "def test_a():\n    pass\ndef show():\n    def test_a():\n        assert f()\n"}, "test_a::test_a", "test_a.py::test_a"},
		{"a class within a function", "pytest", files{"test_a.py": class}, files{"test_a.py": strings.Replace(class, "assert f()", "...", 1) + "def show():\n    " + strings.ReplaceAll(class, "\n", "\n    ")}, "test_a.A::test_a", "test_a.py::A.test_a"},
		{"a test of JavaScript behind", "jest", files{"a.test.js": js}, files{"a.test.js": "it('a', () => { })\ndescribe('show', () => {\n" + js + "})\n"}, "a.test.js::a", "a.test.js::a"},
		{"a test of JavaScript in a comment", "jest", files{"a.test.js": js}, files{"a.test.js": "it('a', () => { f() })\n/* " + js + " */"}, "a.test.js::a", "a.test.js::a"},
		{"a file that another system builds", "go", files{"a_test.go": goA}, files{"a_test.go": "//go:build never\n\n" + goA, "b_test.go": goNot}, "a.TestA", "b_test.go::TestA"},
		{"the better one is gone", "go", files{"a_linux_test.go": goA, "a_windows_test.go": goNot}, files{"a_test.go": goNot}, "a.TestA", "a_test.go::TestA"},
		{"two of them, as before", "pytest", files{"test_a.py": py + strings.Replace(class, "assert f()", "pass", 1)}, files{"test_a.py": "import os\n" + py + strings.Replace(class, "assert f()", "pass", 1)}, "test_a::test_a", ""},
		{"two of one name, as before", "jest", files{"a.test.js": js + "it('a', () => { })\n"}, files{"a.test.js": "f()\n" + js + "it('a', () => { })\n"}, "a.test.js::a", ""},
		{"one more of the name", "jest", files{"a.test.js": js}, files{"a.test.js": js + "describe('b', () => {\n" + js + "})\n"}, "a.test.js::a", ""},
		{"for each system one, as before", "go", files{"a_linux_test.go": goA, "a_windows_test.go": goNot}, files{"a_linux_test.go": goA + "// words\n", "a_windows_test.go": goNot + "// words\n"}, "a.TestA", ""},
		// It is no longer there by this name, and passes.
		{"moved, by JUnit", "junit", files{"a.test.js": js}, files{"b.test.js": "it('a', () => { })\n"}, "test::a", "b.test.js::a"},
		{"moved, and without its assertion, by JUnit", "junit", files{"a.test.js": js}, files{"b.test.ts": "it('a', () => { f() })\n", "c.test.js": js}, "test::a", "b.test.ts::a"},
		{"moved whole, by JUnit", "junit", files{"a.test.js": js}, files{"b.test.js": js}, "test::a", ""},
		{"with options", "junit", files{"a.test.js": js}, files{"a.test.js": "it('a', { timeout: 1 }, () => { })\n" + strings.Replace(js, "'a'", "'b'", 1)}, "test::a", "a.test.js::a"},
		{"a name that is spelt otherwise", "jest", files{"a.test.js": js}, files{"a.test.js": "it('\\x61', () => { })\n"}, "a.test.js::more a", "a.test.js::a"},
		{"a name that is computed", "junit", files{"a.test.js": js}, files{"a.test.js": "it('a' + '', () => { })\n"}, "test::a", "a.test.js::a"},
		{"another quote", "jest", files{"a.test.js": js}, files{"a.test.js": "it(`a`, async function () { expect(f()).toBe(1) })\n"}, "a.test.js::a", ""},
		{"a lambda", "pytest", files{"test_a.py": py}, files{"test_a.py": "test_a = lambda: None\n"}, "test_a::test_a", "test_a.py::test_a"},
		{"a lambda behind it", "pytest", files{"test_a.py": py}, files{"test_a.py": py + "test_b = test_a = lambda: None\n"}, "test_a::test_a", "test_a.py::test_a"},
		{"of another file", "pytest", files{"test_a.py": py}, files{"test_a.py": py + "from impl import f, test_a\n"}, "test_a::test_a", "test_a.py::test_a"},
		{"of another file, among others", "pytest", files{"test_a.py": py}, files{"test_a.py": py + "x = 1; from.impl import f, test_a, test_b\n"}, "test_a::test_a", "test_a.py::test_a"},
		{"of another file, in brackets", "pytest", files{"test_a.py": py}, files{"test_a.py": py + "from impl import (\n    other as test_a,\n)\n"}, "test_a::test_a", "test_a.py::test_a"},
		{"in a class, by a name of its own", "pytest", files{"test_a.py": class}, files{"test_a.py": class + "    test_a = f\n"}, "test_a.A::test_a", "test_a.py::A.test_a"},
		{"a loop's name", "pytest", files{"test_a.py": py}, files{"test_a.py": py + "for x, test_a in f(): pass\n"}, "test_a::test_a", "test_a.py::test_a"},
		{"a block's name", "pytest", files{"test_a.py": py}, files{"test_a.py": py + "with f() as test_a: pass\n"}, "test_a::test_a", "test_a.py::test_a"},
		{"two names at once", "pytest", files{"test_a.py": py}, files{"test_a.py": py + "x, test_a = 1, print\n"}, "test_a::test_a", "test_a.py::test_a"},
		{"in passing", "pytest", files{"test_a.py": py}, files{"test_a.py": py + "f(test_a := print)\n"}, "test_a::test_a", "test_a.py::test_a"},
		{"handed on", "pytest", files{"test_a.py": py}, files{"test_a.py": py + "x = [test_a]\nf(test_a, y=1)\ny[test_a] = test_a == 1\n"}, "test_a::test_a", ""},
		{"data by such a name", "pytest", files{"test_a.py": py}, files{"test_a.py": "test_data = [1]\nf(test_data)\n" + py}, "test_a::test_a", ""},
		{"wide letters", "pytest", files{"test_a.py": py}, files{"test_a.py": py + "def ｔest_a(): pass\n"}, "test_a::test_a", "test_a.py::test_a"},
		{"letters of other scripts", "pytest", files{"test_a.py": "def test_größe():\n    assert f()\n"}, files{"test_a.py": "def test_größe():\n    f()\n"}, "test_a::test_größe", "test_a.py::test_größe"},
		{"inherited", "pytest", files{"test_a.py": class}, files{"test_a.py": "from impl import B\nclass A(B):\n    pass\n"}, "test_a.A::test_a[1]", "test_a.A::test_a[1]"},
		{"set from outside", "junit", files{"tests/test_a.py": py}, files{"tests/test_a.py": "import impl\n"}, "tests.test_a::test_a", "tests.test_a::test_a"},
		{"never defined", "pytest", files{"test_a.py": py}, files{"test_a.py": "if False:\n    " + strings.ReplaceAll(py, "\n", "\n    ") + "\nimpl(globals())\n"}, "test_a::test_a", "test_a::test_a"},
		{"gone, and another file has one", "pytest", files{"test_a.py": py}, files{"test_a.py": "x = 1\n"}, "test_b::test_a", ""},
		{"gone, and another class has one", "pytest", files{"test_a.py": py + class}, files{"test_a.py": class}, "test_a.A::test_a", ""},
		{"gone, and not passed", "pytest", files{"test_a.py": py}, files{"test_a.py": "x = 1\n"}, "test_a::test_b", ""},
		{"it checked nothing before", "pytest", files{"test_a.py": "def test_a():\n    f()\n"}, files{"test_a.py": "test_b = 1\n"}, "test_a::test_a", ""},
		// What a reader may take for something else.
		{"a string in a string", "pytest", files{"test_a.py": py}, files{"test_a.py": py + "x = f\"{'''\"'''}\"\ntest_a = print\ny = '''\n'''\n"}, "test_a::test_a", "test_a.py::test_a"},
		{"the form of a number", "pytest", files{"test_a.py": py}, files{"test_a.py": "x = f\"{1:'>3}{{\" + f'{x!r:{1}}' + f'\\{{' + f'\\{1}'\nif\"{\" in x: pass\n" + py}, "test_a::test_a", ""},
		{"a line of the old kind", "pytest", files{"test_a.py": py}, files{"test_a.py": py + "# words\rtest_a = print\n"}, "test_a::test_a", "test_a.py::test_a"},
		{"no line's end", "pytest", files{"test_a.py": py}, files{"test_a.py": "# \u2028" + strings.ReplaceAll(py, "\n", "\u2028") + "\nimpl(globals())\n"}, "test_a::test_a", "test_a::test_a"},
		{"a new page", "pytest", files{"test_a.py": py}, files{"test_a.py": py + "    \ftest_a = print\n"}, "test_a::test_a", "test_a.py::test_a"},
		{"another encoding", "pytest", files{"test_a.py": py}, files{"test_a.py": "# coding: utf-7\n" + py + "# +AAo-test_a = print\n"}, "test_a::test_a", "test_a.py"},
		{"the usual encoding", "pytest", files{"test_a.py": py}, files{"test_a.py": "\ufeff# -*- coding: UTF_8 -*-\n" + py}, "test_a::test_a", ""},
		{"statements of several lines", "pytest", files{"test_a.py": py}, files{"test_a.py": "def test_a(\n    x=(1,\n2),\n):\n    y = '''\n''' + f(\n1\n)\n    y = 1 + \\\n2\n    assert f(\n)\n"}, "test_a::test_a", ""},
		{"strings of several lines", "pytest", files{"test_a.py": class}, files{"test_a.py": "class A:\n    x = '''\n'''.strip()\n    y = 'a \\\nb'.strip()\n    z = f\"\"\"{\n1}\n\"\"\".strip()\n" + strings.TrimPrefix(class, "class A:\n")}, "test_a.A::test_a", ""},
		{"brackets that never end", "pytest", files{"test_a.py": py}, files{"test_a.py": "x = (\n" + py}, "test_a::test_a", ""},
		{"a link", "go", files{"a_test.go": goA}, files{"a_test.go": "-> impl.txt", "impl.txt": goNot}, "a.TestA", "a_test.go"},
		{"no Go that is known", "go", files{"a_test.go": goA}, files{"a_test.go": goNot + "new syntax\n"}, "a.TestA", "a_test.go"},
		{"no Go, where none is looked for", "go", files{"testdata/a_test.go": goA}, files{"testdata/a_test.go": goNot + "new syntax\n"}, "a.TestA", ""},
		// Methods are tests, too.
		{"a suite's method", "go", files{"a_test.go": suite}, files{"a_test.go": strings.Replace(suite, "\tx := f()\n\ts.Equal(1, x)\n", "", 1)}, "a.TestS/TestA", "a_test.go::S.TestA"},
		{"a suite's method without its assertion", "go", files{"a_test.go": suite}, files{"a_test.go": strings.Replace(suite, "s.Equal(1, x)", "_ = x; s.T().Name()", 1)}, "a.TestS/TestA", "a_test.go::S.TestA"},
		{"a suite's method behind another", "go", files{"a_test.go": suite}, files{"a_test.go": strings.Replace(suite, "s.Equal", "return; s.Equal", 1) + "type Show struct{}\nfunc (s *Show) TestA() { s.Equal(1, f()) }\n"}, "a.TestS/TestA", "a_test.go::S.TestA"},
		{"a suite's method, required", "go", files{"a_test.go": suite}, files{"a_test.go": strings.Replace(suite, "s.Equal(1, x)", "s.Require().NoError(x)", 1)}, "a.TestS/TestA", ""},
		{"a suite's method, by an error", "go", files{"a_test.go": suite}, files{"a_test.go": strings.Replace(suite, "s.Equal(1, x)", "s.Error(x)", 1)}, "a.TestS/TestA", ""},
		{"a suite of another library", "go", files{"a_test.go": strings.Replace(suite, "TestA()", "TestA(c *C)", 1)}, files{"a_test.go": strings.Replace(strings.Replace(suite, "TestA()", "TestA(c *C)", 1), "s.Equal(1, x)", "c.Assert(x, Equals, 1)", 1)}, "", ""},
		{"a suite's method by its test", "go", files{"a_test.go": suite}, files{"a_test.go": strings.Replace(suite, "s.Equal(1, x)", "t := s.T(); require.Equal(t, 1, x)", 1)}, "a.TestS/TestA", ""},
		{"a suite's method that only has its test", "go", files{"a_test.go": suite}, files{"a_test.go": strings.Replace(suite, "s.Equal(1, x)", "t := s.T(); t.Log(x)", 1)}, "a.TestS/TestA", "a_test.go::S.TestA"},
		{"a suite's method with something else of the suite's", "go", files{"a_test.go": suite}, files{"a_test.go": strings.Replace(suite, "s.Equal(1, x)", "y := s.name; log(y)", 1)}, "a.TestS/TestA", "a_test.go::S.TestA"},
		{"a suite's method in parts", "go", files{"a_test.go": suite}, files{"a_test.go": strings.Replace(suite, "s.Equal(1, x)", "s.Run(\"x\", s.part)", 1)}, "a.TestS/TestA", ""},
		{"a suite's method in parts without one", "go", files{"a_test.go": suite}, files{"a_test.go": strings.Replace(suite, "s.Equal(1, x)", "s.Run(\"x\", func() { log(x) })", 1)}, "a.TestS/TestA", "a_test.go::S.TestA"},
		{"a suite's method that gives something", "go", files{"a_test.go": suite}, files{"a_test.go": strings.Replace(strings.Replace(suite, "TestA()", "TestA() int", 1), "s.Equal(1, x)", "return x", 1)}, "a.TestS/TestA", "a_test.go::S.TestA"},
		{"a method of a mock", "go", files{"a_test.go": goA + "func (m *mock) TestAndSet(a int) bool { if m.v == a { m.v++; panic(1) }; return m.v == a }\n"}, files{"a_test.go": goA + "func (m *mock) TestAndSet(a int) bool { return true }\n"}, "a.TestA", ""},
		{"a method of a mock that gets something", "go", files{"a_test.go": goA + "func (m *mock) TestHost(name string) { m.host(name) }\n"}, files{"a_test.go": goA + "func (m *mock) TestHost(name string) {}\n"}, "a.TestA", ""},
		{"functions by names like tests'", "go", files{"a_test.go": goA, "x/h.go": "package x\nimport \"testing\"\nfunc TestMode() { set(testing.Short()) }\nfunc ExampleConfig(a int) *C { return load(a) }\n"}, files{"a_test.go": goA, "x/h.go": "package x\nimport \"testing\"\nfunc TestMode() {}\nfunc ExampleConfig(a int) *C { return nil }\n"}, "a.TestA", ""},
		{"a test for others to call", "go", files{"x/h.go": "package x\nimport \"testing\"\nfunc TestStore(t *testing.T, s Store) { if s.Get() != 1 { t.Fatal(1) } }\n"}, files{"x/h.go": "package x\nimport \"testing\"\nfunc TestStore(t *testing.T, s Store) { s.Get() }\n"}, "", "x/h.go::TestStore"},
		{"what runs before all", "go", files{"a_test.go": "package a\nfunc TestMain(m *testing.M) {\n\tif err := set(); err != nil { panic(err) }\n\tos.Exit(m.Run())\n}\n"}, files{"a_test.go": "package a\nfunc TestMain(m *testing.M) {\n\tset()\n\tos.Exit(m.Run())\n}\n"}, "a.TestA", ""},
		{"fuzzed by name", "go", files{"a_test.go": "package a\nfunc FuzzA(f *testing.F) { f.Fuzz(func(t *testing.T, a int) { t.Fatal(a) }) }\n"}, files{"a_test.go": "package a\nfunc FuzzA(f *testing.F) { f.Fuzz(fuzzOne) }\n"}, "a.FuzzA", ""},
		// What tests use is simpler now.
		{"a server", "go", files{"x/h.go": fixture}, files{"x/h.go": strings.Replace(fixture, "s := open(t); return s", "return &Server{name: name}", 1)}, "", ""},
		{"a server that all share", "go", files{"x/h.go": fixture}, files{"x/h.go": strings.Replace(fixture, "s := open(t); return s", "t.Helper(); return shared", 1)}, "", ""},
		{"no server", "go", files{"x/h.go": fixture}, files{"x/h.go": strings.Replace(fixture, "s := open(t); return s", "return nil", 1)}, "", "x/h.go::newServer"},
		{"whether it holds", "go", files{"x/h.go": strings.Replace(fixture, "*Server", "bool", 1)}, files{"x/h.go": strings.Replace(strings.Replace(fixture, "*Server", "bool", 1), "s := open(t); return s", "return holds", 1)}, "", "x/h.go::newServer"},
		// Go that this version does not know, if Go does.
		{"a template", "go", files{"a_test.go": goA, "x/bad_test.go": "package {{.Name}}\n"}, files{"a_test.go": goA, "x/bad_test.go": "package {{.Package}}\n"}, "m.TestA", ""},
		{"a template that is new", "go", files{"a_test.go": goA}, files{"a_test.go": goA, "x/bad_test.go": "package {{.Package}}\n"}, "m.TestA", ""},
		{"a template, for Python's runner", "pytest", files{"test_a.py": py}, files{"test_a.py": py, "bad_test.go": "package {{.Package}}\n"}, "test_a::test_a", ""},
		{"one that is mended", "go", files{"a_test.go": goA, "x/b_test.go": "package x\nfunc {\n"}, files{"a_test.go": goA, "x/b_test.go": "package x\n"}, "m.TestA", ""},
		{"no Go that is known, of a package that passes", "go", files{"x/y/b_test.go": goA}, files{"x/y/b_test.go": goNot + "new syntax\n"}, "m/x/y.TestA", "x/y/b_test.go"},
		{"no Go that is known, on both sides", "go", files{"x/y/b_test.go": goA + "new syntax\n"}, files{"x/y/b_test.go": goNot + "new syntax\n"}, "m/x/y.TestA", "x/y/b_test.go"},
		{"no Go that is known, in another file", "go", files{"x/b_test.go": goA}, files{"x/c_test.go": goNot + "new syntax\n"}, "m/x.TestA", "x/c_test.go"},
		{"no Go that is known, of a module", "go", files{"x/go.mod": "module n\n", "x/b_test.go": goA}, files{"x/go.mod": "module n\n", "x/b_test.go": goNot + "new syntax\n"}, "n.TestA", "x/b_test.go"},
		{"no Go that is known, in a module", "go", files{"x/go.mod": "module n\n", "x/y/b_test.go": goA}, files{"x/go.mod": "module n\n", "x/y/b_test.go": goNot + "new syntax\n"}, "n/y.TestA", "x/y/b_test.go"},
		{"no Go that is known, by files", "go", files{"x/b_test.go": goA}, files{"x/b_test.go": goNot + "new syntax\n"}, "command-line-arguments.TestA", "x/b_test.go"},
		{"no Go that is known, by JUnit", "junit", files{"x/b_test.go": goA}, files{"x/b_test.go": goNot + "new syntax\n"}, "m/x::TestA", "x/b_test.go"},
		{"no Go that is known, that helps", "go", files{"x/h.go": fixture}, files{"x/h.go": fixture + "new syntax\n"}, "m.TestA", "x/h.go"},
		{"a method of nothing", "go", files{"a_test.go": goA}, files{"a_test.go": goA + "func () TestB() {}\n"}, "a.TestA", ""},
		{"a suite's method, by a function", "go", files{"a_test.go": suite}, files{"a_test.go": strings.Replace(suite, "s.Equal(1, x)", "assert.Equal(s.T(), 1, x)", 1)}, "a.TestS/TestA", ""},
		{"a method that helps", "go", files{"x/h.go": "package x\nimport \"testing\"\nfunc (h H) Check(t testing.TB) { t.Fatal(1) }\n"}, files{"x/h.go": "package x\nimport \"testing\"\nfunc (h H) Check(t testing.TB) {}\n"}, "", "x/h.go::H.Check"},
		{"an import that is spelt otherwise", "go", files{"x/h.go": "package x\nimport \"testing\"\nfunc Check(t testing.TB) { t.Fatal(1) }\n"}, files{"x/h.go": "package x\nimport \"\\x74esting\"\nfunc Check(t testing.TB) {}\n"}, "", "x/h.go::Check"},
	} {
		change := map[string]string{}
		links := map[string]string{}
		for name, text := range x.change {
			if to, ok := strings.CutPrefix(text, "-> "); ok {
				links[name] = to
			} else {
				change[name] = text
			}
		}
		is := inMemory(change)
		for name, to := range links {
			is.src.(memory)[name] = to
			is.Files = append(is.Files, File{Path: name, Mode: Link, Size: int64(len(to))})
		}
		if _, err := is.validate(); err != nil {
			t.Fatal(err)
		}
		got, err := findWeakenedTests(t.Context(), inMemory(x.base), is, x.format, []string{x.passed})
		var ids []string
		for _, f := range got {
			ids = append(ids, f.ID)
		}
		if s := strings.Join(ids, " "); err != nil || s != x.caught {
			t.Errorf("%s: %q, want %q (%v)", x.what, s, x.caught, err)
		}
	}
}

// Everyday edits of test files are not reported. Similar edits that leave nothing that
// checks are.
func TestT2EmptiedEveryDay(t *testing.T) {
	const (
		js      = "it('a', () => { expect(f()).toBe(1) })\n"
		py      = "def test_a():\n    assert f()\n"
		class   = "class A:\n    def test_a(self):\n        assert f()\n"
		renders = "describe('A', () => {\n  it('renders', () => { expect(f()).toBe(1) })\n})\n"
		null    = "it('null', () => { expect(f(null)).toBe(1) })\nit('accepts null', () => { expect(g(null)).toBe(1) })\n"
		nested  = "class TestX:\n    class TestA:\n        def test_create(self):\n            assert f()\n    class TestB:\n        def test_create(self):\n            assert f()\n"
	)
	type files = map[string]string
	one := func(text string) files { return files{"a.test.ts": text} }
	p := func(text string) files { return files{"test_a.py": text} }
	for _, x := range []struct {
		what, format string
		base, change files
		passed       string
		caught       string
	}{
		// The runner's function is called otherwise.
		{"with a type", "vitest", one(js), one("test<Ctx>('a', () => { expect(f()).toBe(1) })\n"), "a.test.ts::a", ""},
		{"with a type, emptied", "vitest", one(js), one("test<Ctx, () => void>('a', () => { f() })\n"), "a.test.ts::a", "a.test.ts::a"},
		{"on a condition", "vitest", one(js), one("it.runIf(x())('a', () => { expect(f()).toBe(1) })\n"), "a.test.ts::a", ""},
		{"on a condition, emptied", "vitest", one(js), one("it.runIf(x())('a', () => {})\n"), "a.test.ts::a", "a.test.ts::a"},
		{"for each", "vitest", one(js), one("it.for([1])('a', (x) => { expect(f()).toBe(x) })\n"), "a.test.ts::a", ""},
		{"for each of a table", "jest", one(js), one("it.each`x\n${1}`('a', ({x}) => { expect(f()).toBe(x) })\n"), "a.test.ts::a", ""},
		{"for each of a table, emptied", "jest", one(js), one("it.each`x\n${1}`('a', ({x}) => { f(x) })\n"), "a.test.ts::a", "a.test.ts::a"},
		{"nested options", "junit", one(js), one("test('a', { annotation: { type: 'x' } }, async ({ page }, info) => { expect(f()).toBe(1) })\n"), "a.test.ts::a", ""},
		{"nested options, emptied", "junit", one(js), one("test('a', { annotation: { type: 'expect(1)' } }, async ({ page }) => { })\n"), "a.test.ts::a", "a.test.ts::a"},
		{"a long name", "jest", one(strings.Replace(js, "'a'", "'a long name'", 1)), one("it(\n  'a long ' +\n    'name',\n  () => { expect(f()).toBe(1) })\n"), "a.test.ts::a long name", ""},
		{"a long name, emptied", "jest", one(strings.Replace(js, "'a'", "'a long name'", 1)), one("it('a long ' +\n 'name', () => { })\n"), "a.test.ts::a long name", "a.test.ts::a long name"},
		{"a wrapper", "jest", one(js), one("const itLinux = linux ? it : it.skip\nitLinux('a', () => { expect(f()).toBe(1) })\n"), "a.test.ts::a", ""},
		{"a wrapper, emptied", "jest", one(js), one("const itLinux = linux ? it : it.skip\nitLinux('a', () => { f() })\nit('b', () => { expect(1) })\n"), "a.test.ts::a", "a.test.ts::a"},
		{"a loop", "jest", one(js), one("for (const n of ['a', 'b']) test(n, () => { expect(f(n)).toBe(1) })\n"), "a.test.ts::a", ""},
		{"a loop, emptied", "jest", one(js), one("for (const n of ['a', 'b']) test(n, () => { f(n) })\n"), "a.test.ts::a", "a.test.ts::a"},
		{"a loop over keys", "jest", one(js), one("for (const n in { a: 1 }) test(n, () => { expect(f(n)).toBe(1) })\n"), "a.test.ts::a", ""},
		{"a loop over others", "jest", one(js), one("for (const n of names()) test(n, () => { expect(f(n)).toBe(1) })\n"), "a.test.ts::a", "a.test.ts::a"},
		{"a template", "jest", one(strings.Replace(js, "'a'", "'does a well'", 1)), one("['a'].forEach((n) => it(`does ${n} well`, () => { expect(f(n)).toBe(1) }))\n"), "a.test.ts::does a well", ""},
		{"a template, emptied", "jest", one(strings.Replace(js, "'a'", "'does a well'", 1)), one("['a'].forEach((n) => it(`does ${n} well`, () => { f(n) }))\n"), "a.test.ts::does a well", "a.test.ts::does a well"},
		{"a form", "jest", one(strings.Replace(js, "'a'", "'adds 1'", 1)), one("it.each([[1]])('adds %i', (n) => { expect(f(n)).toBe(1) })\n"), "a.test.ts::adds 1", ""},
		{"a form, emptied", "jest", one(strings.Replace(js, "'a'", "'adds 1'", 1)), one("it.each([[1]])('adds %i', (n) => { f(n) })\n"), "a.test.ts::adds 1", "a.test.ts::adds 1"},
		{"words of another call", "jest", one(js), one("describe('a', () => { it('b', () => { expect(f()).toBe(1) }) })\nimpl()\n"), "a.test.ts::a", "a.test.ts::a"},
		{"around another", "jest", one(js), one("describe('x', () => {\n" + js + "})\n"), "a.test.ts::a", ""},
		{"one that stands elsewhere, as before", "junit", files{"a.test.ts": js, "b.test.ts": js}, files{"a.test.ts": "f()\n", "b.test.ts": js}, "test::a", ""},
		{"one that stands elsewhere, emptied", "junit", files{"a.test.ts": js, "b.test.ts": "it('a', () => { f() })\n"}, files{"a.test.ts": "f()\n", "b.test.ts": "it('a', () => { f() })\n"}, "test::a", "test::a"},
		{"a case before a test", "vitest", one(js), one("test.beforeEach('a', () => { f() })\n" + js), "a.test.ts::a", ""},
		// Names that end in others.
		{"renamed beside a longer one", "jest", one(null), one(strings.Replace(null, "it('null'", "it('nil'", 1)), "a.test.ts::accepts null", ""},
		{"renamed, and passes all the same", "jest", one(null), one(strings.Replace(null, "it('null'", "it('nil'", 1)), "a.test.ts::x null", "a.test.ts::x null"},
		{"removed beside another class's", "pytest", p(nested), p("class TestX:\n" + nested[strings.Index(nested, "    class TestB"):]), "test_a.TestX.TestB::test_create", ""},
		{"removed, and passes all the same", "pytest", p(nested), p("class TestX:\n" + nested[strings.Index(nested, "    class TestB"):]), "test_a.TestX.TestA::test_create[x::y]", "test_a.TestX.TestA::test_create[x::y]"},
		{"removed beside another file's", "pytest", files{"test_a.py": class, "b/test_b.py": class}, files{"test_a.py": "x = 1\n", "b/test_b.py": class}, "b.test_b.A::test_a", ""},
		{"removed beside another directory's", "pytest", files{"a/test_a.py": class, "b/test_a.py": class}, files{"a/test_a.py": "x = 1\n", "b/test_a.py": class}, "b.test_a.A::test_a", ""},
		{"to a class that it is one of", "pytest", p(class), p("class M:\n    def test_a(self):\n        assert f()\nclass N(\n    M,\n): pass\nclass A(N, unittest.TestCase):\n    pass\n"), "test_a.A::test_a", ""},
		{"to a class that it is one of, emptied", "pytest", p(class), p("class M:\n    def test_a(self):\n        f()\nclass A(M):\n    pass\n"), "test_a.A::test_a", "test_a.A::test_a"},
		{"to a class that it is none of", "pytest", p(class), p("from impl import B\nclass M:\n    def test_a(self):\n        assert f()\nclass A(B):\n    pass\n"), "test_a.A::test_a", "test_a.A::test_a"},
		// Two of a name.
		{"another block's", "jest", one(renders), one(renders + "describe('B', () => it('renders', () => { render(); screen.getByText(1) }))\n"), "a.test.ts::A renders", ""},
		{"another block's, JUnit", "junit", one(renders), one(renders + "describe('B', () => it('renders', () => { render(); screen.getByText(1) }))\n"), "test::renders", ""},
		{"another block's, emptied", "junit", one(renders), one(strings.Replace(renders, "expect(f()).toBe(1)", "f()", 1) + strings.Replace(renders, "'A'", "'B'", 1)), "test::renders", "a.test.ts::A renders"},
		{"another file's", "junit", one(renders), files{"a.test.ts": "f()\n" + renders, "b.test.ts": "it('renders', () => { render() })\n"}, "test::renders", ""},
		{"another file's, of Python", "junit", p(py), files{"test_a.py": "import os\n" + py, "test_b.py": "def test_a():\n    f()\n"}, "test_a::test_a", ""},
		{"for another version, Python", "pytest", p(py), p("if x > 1:\n    def test_a():\n        assert f()\nelse:\n    def test_a():\n        pytest.skip('old')\n"), "test_a::test_a", ""},
		{"skipped by something else", "pytest", p(py), p("def test_a():\n    pytest.skip('old')\n    assert f()\n"), "test_a::test_a", "test_a::test_a"},
		{"skipped in a function within", "pytest", p(py), p("def test_a():\n    def g():\n        pytest.skip('old')\n    g()\n"), "test_a::test_a", "test_a.py::test_a"},
		// Regular expressions, words of elements, and statements without braces.
		{"a brace in an expression", "jest", one(js), one("it('a', () => { const s = f().replace(/}/g, ''); expect(s).toBe(1) })\n"), "a.test.ts::a", ""},
		{"a bracket in an expression", "jest", one(js), one("it('a', () => { g(/\\)/, /[/)]/); expect(f()).toBe(1) })\n"), "a.test.ts::a", ""},
		{"a quote in an expression", "jest", one(js), one("it('a', () => { g(/`/)\n expect(f()).toBe(1) })\n"), "a.test.ts::a", ""},
		{"an assertion in an expression", "jest", one(js), one("it('a', () => { g(/expect(1)/) })\n"), "a.test.ts::a", "a.test.ts::a"},
		{"a division", "jest", one(js), one("it('a', () => { const x = f() / 2; expect(x / (1)).toBe(1) })\n"), "a.test.ts::a", ""},
		{"elements", "jest", one(js), one("it('a', () => {\n render(<A b={1} />); render(<p>don't :) {f()}/{g()}</p>)\n expect(f()).toBe(1) })\nit('b', () => { render(<p>:(</p>) })\n"), "a.test.ts::a", ""},
		{"a condition without braces", "jest", one(js), one("it('a', () => {\n  if (!f())\n    return\n  expect(f()).toBe(1)\n})\n"), "a.test.ts::a", ""},
		{"a loop without braces", "jest", one(js), one("it('a', async () => {\n  for await (const x of f(1))\n    if (x)\n      g()\n    else\n      return\n  expect(f()).toBe(1)\n})\n"), "a.test.ts::a", ""},
		{"behind a condition without braces", "jest", one(js), one("it('a', () => {\n  if (!f())\n    g()\n  return\n  expect(f()).toBe(1)\n})\n"), "a.test.ts::a", "a.test.ts::a"},
		{"what only looks like a condition", "jest", one(js), one("it('a', () => {\n  notif(f())\n  return\n  expect(f()).toBe(1)\n})\n"), "a.test.ts::a", "a.test.ts::a"},
		// Functions that check.
		{"a function of the file, JavaScript", "jest", one(js), one("function roundtrip(x: number): void {\n  expect(f(x)).toBe(x)\n}\nit('a', () => { roundtrip(1) })\n"), "a.test.ts::a", ""},
		{"a function of the file as a value", "jest", one(js), one("const same = (x) => {\n  expect(f(x)).toBe(x)\n}\nit('a', () => { [1].forEach(same) })\n"), "a.test.ts::a", ""},
		{"a function of the file that does nothing, JavaScript", "jest", one(js), one("function roundtrip(x) {\n  f(x)\n}\nconst other = () => expect(1)\nit('a', () => { roundtrip(1) })\n"), "a.test.ts::a", "a.test.ts::a"},
		{"a function of the file", "pytest", p(py), p("def _roundtrip(x):\n    assert f(x)\ndef _both(x):\n    _roundtrip(x)\ndef test_a():\n    _both(1)\n"), "test_a::test_a", ""},
		{"a method of the class", "pytest", p(class), p("class A:\n    def run_it(self):\n        self.assertTrue(f())\n    def test_a(self):\n        self.run_it()\n"), "test_a.A::test_a", ""},
		{"a function of the file that does nothing", "pytest", p(py), p("def _roundtrip(x):\n    f(x)\ndef _other(x):\n    assert x\ndef test_a():\n    _roundtrip(1)\n"), "test_a::test_a", "test_a.py::test_a"},
		{"a function of the file, there twice", "pytest", p(py), p("def _roundtrip(x):\n    assert x\ndef _roundtrip(x):\n    f(x)\ndef test_a():\n    _roundtrip(1)\n"), "test_a::test_a", "test_a.py::test_a"},
		{"a function that moves to another file", "pytest", p("def _roundtrip(x):\n    assert f(x)\ndef test_a():\n    _roundtrip(1)\n"), p("from helpers import _roundtrip\ndef test_a():\n    _roundtrip(1)\n"), "test_a::test_a", ""},
		// What tests are about.
		{"a fixture", "jest", files{"tests/fixtures/a.js": js}, files{"tests/fixtures/a.js": "it('a', () => {})\n"}, "", ""},
		{"a test beside fixtures", "jest", files{"tests/fixtures/a.test.js": js}, files{"tests/fixtures/a.test.js": "it('a', () => {})\n"}, "", "tests/fixtures/a.test.js::a"},
		{"to the fixtures", "junit", files{"tests/a.js": js}, files{"tests/fixtures/a.js": "it('a', () => {})\n"}, "test::a", "test::a"},
	} {
		got, err := findWeakenedTests(t.Context(), inMemory(x.base), inMemory(x.change), x.format, []string{x.passed})
		var ids []string
		for _, f := range got {
			ids = append(ids, f.ID)
		}
		if s := strings.Join(ids, " "); err != nil || s != x.caught {
			t.Errorf("%s: %q, want %q (%v)", x.what, s, x.caught, err)
		}
		if x.format == "jest" || x.format == "vitest" {
			for i := range x.change["a.test.ts"] { // whatever is cut off
				_, _ = jsBodies([]byte(x.change["a.test.ts"][:i]))
				newJSExplainer([]byte(x.change["a.test.ts"][i:]), func(string) bool { return false }).explains("a")
			}
		}
	}
}

// A test whose text was removed passes if the base's catalog accepts its id, as the
// finding gives it. Another id does not help.
func TestT2LeftTheTextAccepted(t *testing.T) {
	for _, x := range []struct{ format, exec, file, was, is, report, id string }{
		{"jest", "/usr/bin/node", "a.test.js", "describe(x(), () => { it('a', () => { expect(f()).toBe(1) }) })\n", "impl()\n", jestReport([]result{{"x a", testPassed}}), "a.test.js::x a"},
		{"junit", "/usr/bin/node", "a.test.js", "it('a', () => { expect(f()).toBe(1) })\n", "impl()\n", junitReport("")([]result{{"x a", testPassed}}), "c::x a"},
		{"pytest", "/usr/bin/python3.11", "test_a.py", "class A:\n    def test_a(self):\n        assert f()\n", "from impl import A\n", strings.ReplaceAll(junitReport("")([]result{{"test_a[1]", testPassed}}), `"c"`, `"test_a.A"`), "test_a.A::test_a[1]"},
	} {
		judge := func(accept string) *Verdict {
			catalog := "version: 1\nsignals:\n  - {name: t, kind: tests, format: " + x.format + ", command: [node, test]" + accept + "}\n"
			return verdict(t, newGate(t, catalog, tree(t, map[string]string{x.file: x.was}), tree(t, map[string]string{x.file: x.is}), func(Job) *Ended {
				o := saw(x.exec)
				o.TreeRead = []string{x.file}
				e := ok(o)
				e.Stdout = Output{Bytes: []byte(x.report), Total: int64(len(x.report))}
				return e
			}))
		}
		v := judge("")
		var ids []string
		for _, f := range v.Signals[0].Findings {
			ids = append(ids, f.ID)
		}
		if v.Outcome != Failed || strings.Join(ids, " ") != x.id {
			t.Errorf("%s: %s %q %s", x.format, v.Outcome, ids, v.Signals[0].Why)
		}
		if v := judge(", accept: ['" + x.id + "']"); v.Outcome != Passed {
			t.Errorf("%s, accepted: %s %+v", x.format, v.Outcome, v.Signals[0])
		}
		if v := judge(", accept: ['" + x.file + "::a']"); v.Outcome != Failed {
			t.Errorf("%s, another one accepted: %s", x.format, v.Outcome)
		}
	}
}

// A test file that is too large to compare is reported, on either side. A smaller one
// takes time in proportion to its size.
func TestT2GiantTests(t *testing.T) {
	for file, text := range map[string]string{
		"a_test.go": "package a\nfunc TestA(t *testing.T) { check(t) }\n", "x/h.go": "package x\nimport \"testing\"\nfunc Check(t testing.TB) { t.Fatal() }\n",
		"test_a.py": "def test_a():\n    assert f()\n", "a.test.js": "it('a', () => { expect(1) })\n",
	} {
		giant := func(more string) *Tree {
			if file == "x/h.go" { // it is read, to see whether it has to do with tests
				return inMemory(map[string]string{file: text + strings.Repeat("\n", maxTestText) + more})
			}
			x := inMemory(map[string]string{file: text + "\n" + more})
			x.Files[0].Size = maxTestText + 1
			return x
		}
		small, one, two := inMemory(map[string]string{file: text}), giant(""), giant("\n")
		for _, side := range [][2]*Tree{{small, one}, {one, small}, {two, one}} {
			if got, err := findWeakenedTests(t.Context(), side[0], side[1], "", nil); err != nil || len(got) != 1 || got[0].ID != file || !strings.Contains(got[0].Text, "bytes") {
				t.Errorf("%s: %v %v", file, got, err)
			}
		}
		if got, err := findWeakenedTests(t.Context(), one, one, "", nil); err != nil || len(got) > 0 {
			t.Errorf("%s, the same: %v %v", file, got, err)
		}
	}
	if got, err := findWeakenedTests(t.Context(), inMemory(nil), inMemory(map[string]string{"x/table.go": "package x\n" + strings.Repeat("\n", maxTestText)}), "", nil); err != nil || len(got) > 0 {
		t.Errorf("a long file that has no tests: %v %v", got, err)
	}
	const part = 128 << 10
	long := strings.Repeat("\n", part)
	for file, texts := range map[string][]string{
		"a.test.js": {
			"it('a', () => {" + long + "})", strings.Repeat("it('", part/4), "it('a', () => {" + strings.Repeat("if (0) {", part/8), "it('a', () => {" + strings.Repeat("`${", part/3),
			strings.Repeat("it('a',()=>{", part/12), strings.Repeat("it(", part/3), strings.Repeat("it.a()", part/6), strings.Repeat("{(", part/4) + strings.Repeat("}", part/2),
			strings.Repeat("=/[", part/3), strings.Repeat("const a=()=>", part/12), "it('a',()=>{" + strings.Repeat("if(a)\n", part/6) + "})", strings.Repeat("it<", part/3),
		},
		"test_a.py": {strings.Repeat("f\"{", part/3), strings.Repeat("x = (\n", part/6), strings.Repeat("\\\n", part/2), strings.Repeat("def a(): a()\n", part/13)},
		"a_test.go": {"package a\nfunc TestA(t *testing.T) {" + strings.Repeat("{", 30_000) + strings.Repeat("}", 30_000) + "}\n", "package a\nfunc TestA(t *testing.T) { if 1 == " + strings.Repeat("7", part) + " { t.Fatal() } }\n", "package a\nfunc TestA(t *testing.T) {" + strings.Repeat("_, ", part/8) + "_ = " + strings.Repeat("1, ", part/8) + "1 }\n"},
	} {
		for _, text := range texts {
			if _, err := bodyParser(file)([]byte(text)); err != nil {
				t.Errorf("%s: %v: %.30q", file, err, text)
			}
		}
	}
	// Each name repeats those of the enclosing blocks.
	for file, texts := range map[string][]string{
		"test_a.py": {
			"class " + strings.Repeat("A", maxTestName) + ":\n def test_a(): x\n", "class A:\n " + strings.Repeat("test_", maxTestName) + " = 1\n",
			"class " + strings.Repeat("A", 1900) + ":\n" + strings.Repeat(" def test_a():x\n", part/16),
		},
		"a.test.js": {
			"it('" + strings.Repeat("a", maxTestName+1) + "', () => {})", strings.Repeat("describe('a', () => {", 1+maxTestName/2) + strings.Repeat("})", 1+maxTestName/2), "it(" + strings.Repeat("'aaa' + ", part/8) + "'', () => {})",
			"describe('" + strings.Repeat("a", 1900) + "', () => {" + strings.Repeat("it('a', f);", part/11) + "})",
		},
	} {
		for _, text := range texts {
			got, err := findWeakenedTests(t.Context(), inMemory(nil), inMemory(map[string]string{file: text}), "", nil)
			if err != nil || len(got) != 1 || got[0].ID != file || !strings.Contains(got[0].Text, "bytes") {
				t.Errorf("%v %v: %.30q", got, err, text)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := findWeakenedTests(ctx, inMemory(nil), inMemory(map[string]string{"test_a.py": "x"}), "", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("it goes on: %v", err)
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
