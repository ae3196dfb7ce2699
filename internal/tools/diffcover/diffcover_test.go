package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const first = `package a

func old(x int) int {
	if x > 1 {
		return 1
	}
	return 0
}
`

// second has new lines 3 to 9, and changes line 13.
const second = `package a

func added(x int) int {
	if x > 1 {
		// not covered
		return 2
	}
	return x
}

func old(x int) int {
	if x > 1 {
		return 3
	}
	return 0
}
`

const profile = `mode: set
example.com/m/internal/a/a.go:3.23,4.11 1 1
example.com/m/internal/a/a.go:4.11,7.3 1 0
example.com/m/internal/a/a.go:8.2,8.10 1 1
example.com/m/internal/a/a.go:11.21,12.11 1 1
example.com/m/internal/a/a.go:12.11,14.3 1 0
example.com/m/internal/a/a.go:15.2,15.10 1 1
example.com/m/internal/a/a.go:12.11,14.3 1 2
example.com/m/internal/b/b.go:1.1,2.2 10 0
example.com/other/c.go:1.1,2.2 10 0
`

// repo makes a repository of two commits.
func repo(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"} {
		t.Setenv(name, os.DevNull)
	}
	for _, who := range []string{"AUTHOR", "COMMITTER"} {
		t.Setenv("GIT_"+who+"_NAME", "ada")
		t.Setenv("GIT_"+who+"_EMAIL", "ada@example.com")
	}
	run := func(args ...string) {
		if _, err := git(dir, args...); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir+"/go.mod", "module example.com/m\n")
	write(t, dir+"/internal/a/a.go", first)
	write(t, dir+"/internal/b/b.go", "package b\n")
	run("init", "-q", "-b", "main")
	run("add", ".")
	run("commit", "-qm", "first")
	write(t, dir+"/internal/a/a.go", second)
	run("commit", "-qam", "second")
	write(t, dir+"/cover.out", profile)
	return dir
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestDiffCover(t *testing.T) {
	dir := repo(t)
	write(t, dir+"/empty.out", "mode: set\n")
	write(t, dir+"/bad.out", "mode: set\nexample.com/m/a.go:1.1,x 1 1\n")
	write(t, dir+"/short.out", "mode: set\nexample.com/m/a.go 1\n")
	write(t, dir+"/count.out", "mode: set\nexample.com/m/a.go:1.1,2.2 1 many\n")
	write(t, dir+"/colon.out", "mode: set\nexample.com/m/a.go 1 1\n")
	const cover = "-profile=cover.out"
	for _, c := range []struct {
		args string
		code int
		want []string // parts of what is printed
	}{
		{cover + " internal/a", 1, []string{"not covered: internal/a/a.go:6\n", "new statements: 3 of 4 covered, 75.0%", "internal/a                        83.3% (at least 90%)  TOO LITTLE"}},
		{cover + " -new 75 -floor 80 internal/a", 0, []string{"the commit before HEAD, since there is no merge base with origin/main"}},
		{cover + " -new 76 -floor 80 internal/a", 1, nil},
		{cover + " -new 75 -floor 84 internal/a", 1, nil},
		{cover + " -new 75 -floor 80 internal/a,internal/b", 1, []string{"internal/b                         0.0%"}},
		{cover + " -new 75 -floor 80 internal/...", 1, []string{"internal/b                         0.0%"}},
		{cover + " -floor 0 internal/b", 0, []string{"not covered: internal/a/a.go:6\n", "new statements: 0 of 0 covered, 100.0%"}},
		{cover + " -new 75 -floor 80 internal/a,internal/none", 1, []string{"internal/none                    is not in the profile"}},
		{cover + " -base HEAD -floor 80 internal/a", 0, []string{"the merge base with HEAD", "0 of 0"}},
		{cover + " -base nowhere internal/a", 2, []string{"git merge-base"}},
		{"-profile=none.out internal/a", 2, []string{"none.out"}},
		{"-profile=empty.out internal/a", 2, []string{"no statements"}},
		{"-profile=bad.out internal/a", 2, []string{"bad.out:2: no line of a profile"}},
		{"-profile=short.out internal/a", 2, []string{"short.out:2"}},
		{"-profile=count.out internal/a", 2, []string{"count.out:2"}},
		{"-profile=colon.out internal/a", 2, []string{"colon.out:2"}},
		{"internal/a", 2, []string{"usage"}},
		{cover, 2, []string{"usage"}},
	} {
		var out bytes.Buffer
		args := strings.Fields(strings.ReplaceAll(c.args, "-profile=", "-profile="+dir+"/"))
		if code := run(args, dir, &out, &out); code != c.code {
			t.Errorf("%s: exit code %d, want %d\n%s", c.args, code, c.code, &out)
		}
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s prints\n%s\nwithout %q", c.args, &out, want)
			}
		}
	}
}

// TestBase: in CI a clone may have a branch beside main, main only, or one
// commit.
func TestBase(t *testing.T) {
	dir := repo(t)
	run := func(args ...string) string {
		t.Helper()
		out, err := git(dir, args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	root, head := run("rev-parse", "HEAD~1"), run("rev-parse", "HEAD")
	check := func(wantCommit, wantHow string) {
		t.Helper()
		if commit, how, err := baseOf(dir, ""); err != nil || commit != wantCommit || how != wantHow {
			t.Errorf("%q, %q, %v; want %q, %q", commit, how, err, wantCommit, wantHow)
		}
	}
	run("update-ref", "refs/remotes/origin/main", root)
	check(root, "the merge base with origin/main")
	run("update-ref", "refs/remotes/origin/main", head)
	check(root, "the commit before HEAD, since HEAD is in origin/main")

	run("checkout", "-q", "--orphan", "alone")
	run("commit", "-qm", "only")
	check("", "since there is no merge base with origin/main, and no commit is before HEAD")
	var out bytes.Buffer
	if ok, err := judge(dir, dir+"/cover.out", "", 90, 80, []string{"internal/a"}, &out); !ok || err != nil || !strings.Contains(out.String(), "new lines are not looked at") {
		t.Errorf("without a base: %v, %v\n%s", ok, err, &out)
	}
	dir = t.TempDir()
	check("", "since git knows no commit here")
}

// Changes in the working tree count as new too, since the profile was made from it.
func TestWorkingTree(t *testing.T) {
	dir := repo(t)
	write(t, dir+"/internal/b/b.go", "package b\n\nfunc f() {\n\tprintln(1)\n\tprintln(`\n+++ b/x.go`)\n}\n")
	got, err := addedLines(dir, "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || strings.Join(got["internal/b/b.go"].ranges(), " ") != "3-6" {
		t.Errorf("%v", got)
	}
	if _, err := addedLines(dir, "nowhere"); err == nil {
		t.Error("a base that is not there")
	}
}

func TestParts(t *testing.T) {
	if got := strings.Join(lines{7, 3, 5, 6, 5}.ranges(), " "); got != "3 5-7" {
		t.Errorf("ranges: %s", got)
	}
	for line, want := range map[string]bool{"\tx++": true, "": false, "\t})": false, "\t// why": false, "\treturn // why": true, "\t},": false} {
		if hasStatement(line) != want {
			t.Errorf("hasStatement(%q) is %v", line, !want)
		}
	}
	for _, hunk := range []string{"", "-1", "-1,2 3,4 @@", "-1 +x @@", "-1 +1,x @@"} {
		if _, _, err := parseHunk(hunk); err == nil {
			t.Errorf("parseHunk(%q) succeeds", hunk)
		}
	}
	if _, err := moduleOf(t.TempDir()); err == nil {
		t.Error("a directory without go.mod has a module")
	}
	dir := t.TempDir()
	write(t, dir+"/go.mod", "go 1.26\n")
	if _, err := moduleOf(dir); err == nil {
		t.Error("a go.mod without a module has one")
	}
}
