package main

import (
	"bytes"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

var (
	link    = regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	noSlug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// slug is how a heading is linked to.
func slug(s string) string {
	return strings.ReplaceAll(noSlug.ReplaceAllString(strings.ToLower(s), ""), " ", "-")
}

// A page that is named is there, and so is the part of it.
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
			to := name
			if len(m[1]) > 0 {
				to = filepath.Join(filepath.Dir(name), string(m[1]))
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s, which is not there", name, m[1])
				continue
			}
			if len(m[2]) == 0 {
				continue
			}
			page, err := os.ReadFile(to)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(heading.FindAllSubmatch(page, -1), func(h [][]byte) bool { return slug(string(h[1])) == string(m[2]) }) {
				t.Errorf("%s links to %s, which has no part %q", name, to, m[2])
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
