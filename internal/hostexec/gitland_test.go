package hostexec

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A landing's forms are whole: nothing can be added to one, and nothing in one can become an
// option or another place.
func TestGitLandForms(t *testing.T) {
	id := strings.Repeat("0a", 20)
	for _, args := range [][]string{
		nil, {""}, {"query"}, {"query", "/o"}, {"query", "o", "log"}, {"query", "/o\n/p", "log"}, {"query", "/o", "push"}, {"query", "/o", "log", "--ext-diff"},
		{"pack", "sound"}, {"pack", "false", "1"}, {"pack", "sound", "-1"}, {"pack", "sound", "1", "o"}, {"pack", "sound", "1", "/o", "/p"},
		{"merge", "/i", id, id}, {"merge", "i", id, id, "/o"}, {"merge", "/i", "--help", id, "/o"}, {"merge", "/i", id, "HEAD", "/o"}, {"merge", "/i", id, id, "o"},
		{"refresh", "x"}, {"update-refs", "--no-deref"}, {"conflicts", id}, {"conflicts", id, "HEAD"}, {"conflicts", "--stdin", id}, {"-c", "x=y", "refresh"}, {"update-ref"},
	} {
		wantReason(t, prepareGitLand(&call{program: "git", args: args, dir: "/tmp", scratch: t.TempDir()}), reasonArgument)
	}
	dir := newRepo(t)
	for _, args := range [][]string{{"merge", "/i", id, id, "/o"}, {"refresh"}, {"update-refs"}} {
		wantReason(t, prepareGitLand(&call{program: "git", args: args, dir: t.TempDir(), scratch: t.TempDir()}), reasonRepository)
	}
	for _, args := range [][]string{
		{"query", "/o", "log"}, {"pack", "sound", "1"}, {"pack", "old", "1000", "/a/objects"}, {"merge", "/i", id, id, "/o"}, {"refresh"}, {"update-refs"}, {"conflicts", id, id},
	} {
		c := &call{program: "git", args: args, dir: dir, scratch: t.TempDir()}
		if err := prepareGitLand(c); err != nil {
			t.Errorf("%q: %v", args, err)
		}
		if !slices.Contains(c.env, "GIT_ALLOW_PROTOCOL=none") || !slices.Contains(c.env, "GIT_CONFIG_GLOBAL=/dev/null") || !slices.Contains(c.env, "GIT_CONFIG_KEY_0=core.hooksPath") {
			t.Errorf("%q: the settings are not forced: %q", args, c.env)
		}
		if args[0] == "merge" && (slices.Contains(c.env, "GIT_INDEX_FILE="+dir+"/.git/index") || !slices.Contains(c.env, "GIT_INDEX_FILE=/i")) {
			t.Errorf("another index: %q", c.env)
		}
	}
	// A merge that is only tried writes no object to the repository.
	tried := &call{program: "git", args: []string{"conflicts", id, id}, dir: dir, scratch: t.TempDir()}
	if err := prepareGitLand(tried); err != nil || slices.Contains(tried.env, "GIT_OBJECT_DIRECTORY="+dir+"/.git/objects") || !slices.Contains(tried.env, "GIT_OBJECT_DIRECTORY="+tried.temp+"/objects") {
		t.Errorf("%v: the repository's objects: %q", err, tried.env)
	}
	// In a sparse checkout git writes files: to an empty directory, not to the work tree.
	mustGit(t, dir, "sparse-checkout", "set", "--no-cone", "/*.txt")
	c := &call{program: "git", args: []string{"merge", "/i", id, id, "/o"}, dir: dir, scratch: t.TempDir()}
	if err := prepareGitLand(c); err != nil || slices.Contains(c.env, "GIT_WORK_TREE="+dir) || !slices.Contains(c.env, "GIT_WORK_TREE="+c.temp+"/files") {
		t.Errorf("%v: another work tree: %q", err, c.env)
	}
}

// TestGitLandRefs: all references move with their logs, or none, and neither hooks nor
// the repository's configuration take part.
func TestGitLandRefs(t *testing.T) {
	dir := newRepo(t)
	marker := filepath.Join(t.TempDir(), "ran")
	write(t, dir+"/.git/hooks/reference-transaction", "#!/bin/sh\ntouch "+marker+"\n")
	if err := os.Chmod(dir+"/.git/hooks/reference-transaction", 0o755); err != nil {
		t.Fatal(err)
	}
	r := newTestRunner(t, Options{})
	r.programs[GitLand] = hostPrograms[GitLand]
	move := func(in string) error {
		_, err := r.Run(t.Context(), Command{Program: GitLand, Args: []string{"update-refs"}, Dir: dir, Timeout: time.Minute, Stdin: []byte(in)})
		return err
	}
	now, old := strings.TrimSpace(mustGit(t, dir, "rev-parse", "main")), strings.TrimSpace(mustGit(t, dir, "rev-parse", "main~1"))
	if err := move("create refs/heads/x " + now + "\nupdate refs/heads/main " + old + " " + old + "\n"); err == nil {
		t.Error("moved from where it was not")
	}
	if out := mustGit(t, dir, "branch", "--list", "x"); out != "" {
		t.Errorf("one of two moved: %s", out)
	}
	if err := move("create refs/heads/x " + now + "\nupdate refs/heads/main " + old + " " + now + "\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(marker); err == nil {
		t.Error("a hook ran")
	}
	if got := mustGit(t, dir, "rev-parse", "main", "x"); got != old+"\n"+now+"\n" {
		t.Errorf("references are %q", got)
	}
	if log := mustGit(t, dir, "log", "-g", "-1", "--format=%gs", "HEAD"); log != "carboy: landing\n" {
		t.Errorf("log: %q", log)
	}
	if err := os.RemoveAll(dir + "/.git/logs"); err != nil {
		t.Fatal(err)
	}
	if err := move("delete refs/heads/x " + now + "\n"); err != nil {
		t.Error(err)
	}
}

// Objects are found in a directory whose name git's lists would split or unquote; the
// control is the same question without it.
func TestGitLandDirectories(t *testing.T) {
	dir, other := newRepo(t), t.TempDir()+`/a:b "c\d`
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	mustGit(t, other, "init", "-q")
	write(t, other+"/x", "only here\n")
	id := strings.TrimSpace(mustGit(t, other, "hash-object", "-w", "x"))
	r := newTestRunner(t, Options{})
	r.programs[GitLand] = hostPrograms[GitLand]
	for objects, found := range map[string]bool{other + "/.git/objects": true, dir + "/.git/objects": false} {
		_, err := r.Run(t.Context(), Command{Program: GitLand, Args: []string{"query", objects, "cat-file", "-e", id}, Dir: dir, Timeout: time.Minute})
		if (err == nil) != found {
			t.Errorf("%s: %v", objects, err)
		}
	}
}
