package run

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestBranchOf(t *testing.T) {
	for text, want := range map[string]string{"ref: refs/heads/topic/a\n": "topic/a", "0123456789012345678901234567890123456789\n": "", "": ""} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, ".git"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, ".git/HEAD"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := branchOf(dir); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
	// What an agent may have put there blocks nobody and leads nowhere.
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, ".git"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, ".git/HEAD"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := branchOf(dir); got != "" {
		t.Errorf("a pipe: %q", got)
	}
	outside := filepath.Join(t.TempDir(), "HEAD")
	if err := os.WriteFile(outside, []byte("ref: refs/heads/outside\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, ".git/HEAD")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, ".git/HEAD")); err != nil {
		t.Fatal(err)
	}
	if got := branchOf(dir); got != "" {
		t.Errorf("a link that leads out: %q", got)
	}
}
