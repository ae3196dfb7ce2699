package main

import (
	"bytes"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra/doc"
)

var update = flag.Bool("update", false, "rewrite docs/reference")

const reference = "../../docs/reference"

// The reference is generated from the flags, and committed for readers.
func TestReferenceIsCurrent(t *testing.T) {
	root := newApp(nil, nil, nil, func(string) string { return "" }).root()
	root.DisableAutoGenTag = true
	dir := t.TempDir()
	if err := doc.GenMarkdownTree(root, dir); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.RemoveAll(reference); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(reference, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
	}
	want, have := pages(t, dir), pages(t, reference)
	for name, text := range want {
		if !bytes.Equal(have[name], text) {
			t.Errorf("docs/reference/%s is not current: go test ./cmd/carboy -run Reference -update", name)
		}
	}
	for name := range have {
		if _, ok := want[name]; !ok {
			t.Errorf("docs/reference/%s describes no command", name)
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)

// A page that is named is there.
func TestLinksLeadSomewhere(t *testing.T) {
	const top = "../.."
	names := []string{filepath.Join(top, "README.md")}
	err := filepath.WalkDir(filepath.Join(top, "docs"), func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".md") {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllSubmatch(b, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), string(m[1]))); err != nil {
				t.Errorf("%s links to %s, which is not there", name, m[1])
			}
		}
	}
}

func pages(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(name)] = b
	}
	return out
}
