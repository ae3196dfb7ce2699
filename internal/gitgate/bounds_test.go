package gitgate

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// A few bytes of a pack must not cause unbounded work.

// The references of all commits are computed in one walk. With a thousand references and as
// many findings, a walk for each would take too long.
func TestRefsOfHistory(t *testing.T) {
	h := newHistory("sha1")
	const chain, sides = 5000, 500
	id := func(n int) string { return fmt.Sprintf("%040x", n+1) }
	text := func(parents ...string) []byte {
		s := "tree " + id(0) + "\n"
		for _, p := range parents {
			s += "parent " + p + "\n"
		}
		return []byte(s + "author A <a@b> 1 +0000\n\nparent " + id(1<<20) + "\n")
	}
	add := func(n int, parents ...string) {
		t.Helper()
		if err := h.add(object{id: id(n), kind: "commit"}, text(parents...)); err != nil {
			t.Fatal(err)
		}
	}
	add(0)
	for n := 1; n < chain; n++ {
		add(n, id(n-1))
	}
	updates := []RefUpdate{{Name: "refs/heads/first", New: id(chain / 2)}}
	for n := range sides {
		add(chain+n, id(chain-1), id(chain/2))
		updates = append(updates, RefUpdate{Name: fmt.Sprintf("refs/heads/%d", n), New: id(chain + n)})
	}
	tag := object{id: id(1 << 21), kind: "tag"}
	if err := h.add(tag, []byte("object "+id(7)+"\ntype commit\n")); err != nil {
		t.Fatal(err)
	}
	updates = append(updates, RefUpdate{Name: "refs/tags/t", New: tag.id})
	refs := h.refs(updates)
	for n := range chain + sides {
		want := "refs/heads/first"
		switch {
		case n >= chain:
			want = fmt.Sprintf("refs/heads/%d", n-chain)
		case n > chain/2:
			want = "refs/heads/0"
		}
		if got := refs[id(n)]; got != want {
			t.Fatalf("commit %d is of %q, want %q", n, got, want)
		}
	}
	if got := refs[tag.id]; got != "refs/tags/t" {
		t.Errorf("the tag is of %q", got)
	}
	if got := refs[id(1<<22)]; got != "" {
		t.Errorf("what no reference leads to is of %q", got)
	}

	// Parents cost next to nothing in a pack, so they are bounded.
	h.links = maxParents - 1
	add(1<<22, id(1))
	var no *refusedError
	if err := h.add(object{id: id(1<<22 + 1), kind: "commit"}, text(id(1), id(2))); !errors.As(err, &no) {
		t.Errorf("more parents than there may be: %v", err)
	}
}

// A name longer than any system has is refused. A long but usual one is not.
func TestLongNames(t *testing.T) {
	t.Parallel()
	up := newUpstreamRepo(t)
	_, url := newGate(t, Config{Repos: []Repo{{Name: "app", URL: up}}})
	w := cloneOf(t, url)
	rawTree(t, w, entry("100644", strings.Repeat("n", maxName+1), blob(t, w, "x\n")))
	refusedPush(t, w, "has a name of more than 4096 bytes")
	git(t, w, "reset", "-q", "--soft", "HEAD~1")
	commitFile(t, w, strings.Repeat("d/", 100)+strings.Repeat("n", 200), "x\n")
	git(t, w, "push", "-q", "origin", "trunk")
}

// Making upstream's messages visible takes time linear in their length.
func TestProgress(t *testing.T) {
	if got, want := progress([]byte("a\r\x1b[2Jb\n\u202ec")), "a\r\\x1b[2Jb\n\\u202ec"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	lines := strings.Repeat("\n", 60_000)
	if n := testing.AllocsPerRun(1, func() { progress([]byte(lines)) }); n > 1000 {
		t.Errorf("%d lines take %v allocations", len(lines), n)
	}
}

// A push in another object format than upstream's is refused, and does not affect later
// pushes.
func TestOtherFormat(t *testing.T) {
	t.Parallel()
	up := newUpstreamRepo(t)
	git(t, up, "config", "uploadpack.allowAnySHA1InWant", "true")
	direct := t.TempDir() + "/d"
	git(t, up, "clone", "-q", up, direct)
	commitFile(t, direct, ".gitmodules", "[submodule \"x\"]\n\tpath = x\n\turl = https://example.org/x\n")
	git(t, direct, "push", "-q", "origin", "trunk")
	_, url := newGate(t, Config{Repos: []Repo{{Name: "app", URL: up}}})

	other := t.TempDir()
	git(t, other, "init", "-q", "--object-format=sha256", other)
	tree := pipeGit(t, other, "100644 blob "+strings.Repeat("ab", 32)+"\t.gitmodules\n", "mktree", "--missing")
	head := pipeGit(t, other, "", "commit-tree", "-m", "x", tree)
	pack := pipeGitRaw(t, other, head+"\n"+tree+"\n", "pack-objects", "--stdout", "-q")
	body := line(strings.Repeat("0", 64)+" "+head+" refs/heads/other\x00 report-status side-band-64k object-format=sha256") + "0000" + string(pack)
	if _, out := post(t, url+"/app.git/git-receive-pack", receivePack, body); !strings.Contains(out, "objects are of the format sha1") {
		t.Errorf("not refused for its format: %q", out)
	}

	w := cloneOf(t, url)
	commitFile(t, w, "more.txt", "x\n")
	git(t, w, "push", "-q", "origin", "trunk")
}

// TestBaseKept: the gate bounds the kept objects that pushes make it fetch.
func TestBaseKept(t *testing.T) {
	t.Parallel()
	up := newUpstreamRepo(t)
	git(t, up, "config", "uploadpack.allowAnySHA1InWant", "true")
	direct := t.TempDir() + "/d"
	git(t, up, "clone", "-q", up, direct)
	commitFile(t, direct, ".gitmodules", "[submodule \"x\"]\n\tpath = x\n\turl = https://example.org/x\n")
	git(t, direct, "push", "-q", "origin", "trunk")
	commitFile(t, direct, ".gitattributes", "*.txt text\n")
	git(t, direct, "push", "-q", "origin", "HEAD~1:refs/heads/old", "trunk")
	g, url := newGate(t, Config{Repos: []Repo{{Name: "app", URL: up}}})
	w := cloneOf(t, url)
	git(t, w, "reset", "-q", "--hard", "origin/old")
	commitFile(t, w, "one.txt", "x\n")
	git(t, w, "push", "-q", "origin", "HEAD:refs/heads/one")
	b := &g.repos["app"].base
	if b.size == 0 {
		t.Fatal("nothing was fetched for it, or it does not count")
	}
	b.size = maxBaseKept
	// Objects that are here are not requested again.
	commitFile(t, w, "two.txt", "x\n")
	git(t, w, "push", "-q", "origin", "HEAD:refs/heads/two")
	git(t, w, "reset", "-q", "--hard", "origin/trunk")
	commitFile(t, w, "three.txt", "x\n")
	refusedPush(t, w, "all that are kept while the bottle runs")
}
