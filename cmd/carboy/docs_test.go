package main

import (
	"bytes"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

var update = flag.Bool("update", false, "rewrite docs/reference and the man pages")

// The reference and the man pages are generated from the flags, and committed for
// readers and for the program.
func TestReferenceIsCurrent(t *testing.T) {
	for have, generate := range map[string]func(*cobra.Command, string) error{
		"../../docs/reference": doc.GenMarkdownTree,
		"man":                  manTree,
	} {
		root := newApp(nil, nil, nil, func(string) string { return "" }).root()
		root.DisableAutoGenTag = true // the date would make it differ each time
		dir := t.TempDir()
		if err := generate(root, dir); err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.RemoveAll(have); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(have, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
		}
		want, is := pages(t, dir), pages(t, have)
		for name, text := range want {
			if !bytes.Equal(is[name], text) {
				t.Errorf("%s/%s is not current: go test ./cmd/carboy -run Reference -update", have, name)
			}
		}
		for name := range is {
			if _, ok := want[name]; !ok {
				t.Errorf("%s/%s describes no command", have, name)
			}
		}
	}
}

// manTree writes the man pages without a date, which would make them differ each
// month.
func manTree(root *cobra.Command, dir string) error {
	never := time.Unix(0, 0).UTC()
	if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Date: &never, Source: "carboy", Manual: "carboy"}, dir); err != nil {
		return err
	}
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	for _, name := range names {
		text, rerr := os.ReadFile(name)
		if rerr == nil {
			rerr = os.WriteFile(name, bytes.Replace(text, []byte(`"Jan 1970"`), []byte(`""`), 1), 0o644)
		}
		err = errors.Join(err, rerr)
	}
	return err
}

var (
	link    = regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	noSlug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// slug returns the anchor of a heading.
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
	names, err := filepath.Glob(filepath.Join(dir, "*"))
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
