package main

import (
	"maps"
	"os"
	"testing"
)

// Each way in which a process can look for a name counts for the directory that it is in
// then; what it makes for itself, and what is elsewhere, does not.
func TestParse(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"t.7": `execve("/usr/bin/sh", ["sh"], 0x7ffe /* 9 vars */) = 0
openat(AT_FDCWD</w/1a/up/here>, ".missing", O_RDONLY) = -1 ENOENT (No such file or directory)
openat(AT_FDCWD</w/1a/up/here>, "there", O_RDONLY|O_CLOEXEC) = 3</w/1a/up/here/there>
access("sub/name", F_OK) = -1 ENOENT (No such file or directory)
newfstatat(AT_FDCWD</w/1a/up/here>, "../above", 0x7ffd, 0) = -1 ENOENT (No such file or directory)
newfstatat(AT_FDCWD</w/1a/up/here>, "HERE", 0x7ffd, 0) = -1 ENOENT (No such file or directory)
openat(AT_FDCWD</w/1a/up/here>, "tmp-4711", O_RDWR|O_CREAT|O_EXCL, 0600) = 4</w/1a/up/here/tmp-4711>
symlink("there", "/w/1a/up/here/link-4711") = 0
lstat("link-4711", {st_mode=S_IFLNK|0777}) = 0
access("/etc/elsewhere", F_OK) = 0
chdir("sub") = 0
clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|SIGCHLD) = 8
`,
		"t.8": `readlink("quo\"ted", 0x7ffd, 4096) = -1 EINVAL (Invalid argument)
execve("./run", ["./run"], 0x55d0 /* 9 vars */) = 0
fchdir(5</w/1a/up>) = 0
access("later", R_OK) = 0
`} {
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]int{".missing": looked, "there": opened, "sub/name": looked, "above": looked, "sub": looked, `sub/quo"ted`: looked, "sub/run": executed, "later": looked}
	if got := parse(dir, "/w/1a"); !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

// The tables are whole: each start is made of a package, and each payload leaves a mark.
func TestTables(t *testing.T) {
	for _, f := range rows(startsText) {
		if len(f) != 3 {
			t.Errorf("%q: not a package, a setup and a start", f)
		}
	}
	for _, f := range rows(payloadsText) {
		if len(f) != 2 && len(f) != 3 {
			t.Errorf("%q: not a name, a content and a mark", f)
		}
	}
}
