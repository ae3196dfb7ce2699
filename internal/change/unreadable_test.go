package change

import (
	"context"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Why a file of the host can't be compared is said in words, one for each reason.
func TestUnreachable(t *testing.T) {
	for err, want := range map[error]string{unix.EXDEV: "mount", unix.ELOOP: "symbolic link", unix.EIO: "cannot be read"} {
		if got := unreachable(err); !strings.Contains(got, want) {
			t.Errorf("%v: %q", err, got)
		}
	}
}

// What git did not say as it should is an error, not a difference without files.
func TestRawDiff(t *testing.T) {
	one := ":100644 100755 " + strings.Repeat("1", 40) + " " + strings.Repeat("2", 40) + " M\x00a\x00"
	got, err := rawDiff([]byte(one + one))
	if err != nil || len(got) != 2 || string(got[0].Path) != "a" || got[0].Status != "M" {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"x", one + ":", one[:20] + "\x00a\x00", "100644 1 2 3 M\x00a\x00", one[:len(one)-1]} {
		if got, err := rawDiff([]byte(bad)); err == nil {
			t.Errorf("%q is %+v", bad, got)
		}
	}
}

// A repository that carboy made has files and directories only; a store that can't be
// made or read is an error.
func TestMadeNodes(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/objects", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/objects/a", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	nodes, err := madeNodes(dir, func(string) bool { return true })
	if err != nil || len(nodes) != 3 || nodes[2].Mode != 0o444 {
		t.Errorf("%+v, %v", nodes, err)
	}
	if err := os.Symlink("a", dir+"/objects/b"); err != nil {
		t.Fatal(err)
	}
	if nodes, err := madeNodes(dir, func(string) bool { return true }); err == nil {
		t.Errorf("a link is taken: %+v", nodes)
	}
	if _, err := madeNodes(dir+"/none", func(string) bool { return true }); err == nil {
		t.Error("a directory that is not there is a repository")
	}
	if store, err := makeStore(dir + "/none/deeper"); err == nil {
		t.Errorf("a store is made at %s", store)
	}
	s := &Set{dir: dir + "/none", Workspace: Identity{Path: dir}}
	if r, err := openRepository(context.Background(), s, tree{-1}, nil, "", false); err == nil {
		r.close()
		t.Error("a repository is opened without a store")
	}
}
