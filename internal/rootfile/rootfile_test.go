package rootfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A file is replaced as a whole or not at all, and nothing stays beside it.
func TestReplace(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, d := range []string{"sub", "full/inner"} {
		if err := root.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(root.WriteFile("sub/old", []byte("old"), 0o600), os.Symlink(outside, filepath.Join(dir, "out")), os.WriteFile(filepath.Join(outside, "x"), []byte("theirs"), 0o600), os.Symlink(filepath.Join(outside, "x"), filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	text := func(s string) func(string) error {
		return func(tmp string) error { return root.WriteFile(tmp, []byte(s), 0o600) }
	}
	for _, c := range []struct {
		path string
		make func(string) error
		want string // empty: an error
	}{
		{"sub/new", text("a"), "a"},
		{"sub/old", text("b"), "b"},
		{"link", text("c"), "c"}, // the link, not what it leads to
		{"out/x", text("d"), ""},
		{"full", text("e"), ""},
		{"missing/x", text("f"), ""},
		{"sub/none", func(tmp string) error { return errors.Join(text("g")(tmp), broken) }, ""},
		{"sub/nothing", func(string) error { return broken }, ""},
	} {
		err := Replace(root, c.path, c.make)
		if (err == nil) != (c.want != "") {
			t.Errorf("%s: %v", c.path, err)
		}
		if b, _ := root.ReadFile(c.path); c.want != "" && string(b) != c.want {
			t.Errorf("%s is %q", c.path, b)
		}
	}
	if b, err := os.ReadFile(filepath.Join(outside, "x")); string(b) != "theirs" {
		t.Errorf("outside: %q, %v", b, err)
	}
	left, err := filepath.Glob(dir + "/*/.carboy-*")
	more, _ := filepath.Glob(dir + "/.carboy-*")
	if err != nil || len(left)+len(more) > 0 {
		t.Errorf("left: %q %q, %v", left, more, err)
	}
}
