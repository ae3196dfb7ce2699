package change

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	udiff "github.com/aymanbagabas/go-udiff"
)

// FuzzCollect feeds any bytes as a stream, lands all that lands, and undoes
// it: nothing outside the workspace changes, nothing protected or special
// appears, and undo restores everything.
func FuzzCollect(f *testing.F) {
	seed := func(build func(u *upper)) {
		u := &upper{t: f, at: "./w", seen: map[string]bool{"./w": true}}
		u.tw = tar.NewWriter(&u.buf)
		u.raw(tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755})
		u.raw(tar.Header{Name: "./w/", Typeflag: tar.TypeDir, Mode: 0o755})
		build(u)
		f.Add(u.bytes())
	}
	seed(func(u *upper) { u.file("f", "x", 0o755).gone("d").gone("l") })
	seed(func(u *upper) { u.opaque("d", 0o700).file("d/y", "y", 0o644).hard("d/z", "./w/d/y") })
	seed(func(u *upper) { u.link("l", "../out").link("m", "/etc").file(".git/hooks/x", "x", 0o755) })
	seed(func(u *upper) { u.file("d", "file", 0o4755).opaque("f", 0o755).file("f/in", "x", 0) })
	seed(func(u *upper) {
		u.raw(tar.Header{Name: "./o", Typeflag: tar.TypeReg, Size: 0})
		u.hard("x", "./o").raw(tar.Header{Name: "./w/../out/f", Typeflag: tar.TypeReg})
	})
	f.Fuzz(func(t *testing.T, stream []byte) {
		if len(stream) > 1<<16 {
			return
		}
		dir := fastTemp(t)
		w := newWorldAt(t, dir, filepath.Join(dir, "run"), map[string]string{"f": "f", "d/x": "x", "d/s/y": "y", "l": "-> f"})
		must(t, os.MkdirAll(dir+"/out", 0o755))
		must(t, os.WriteFile(dir+"/out/f", []byte("safe"), 0o644))
		outside, before := treeOf(t, dir+"/out"), treeOf(t, w.ws)
		s, err := Collect(context.Background(), bytes.NewReader(stream), CollectOptions{
			Baseline: w.base, Prefix: "/w", MaxBytes: 1 << 20, MaxLogical: 1 << 24, MaxEntries: 1000})
		if err != nil && s == nil {
			t.Fatal(err)
		}
		for i := range s.Changes {
			c := &s.Changes[i]
			must(t, checkRel(string(c.Path)))
			if i > 0 && pathCompare(string(s.Changes[i-1].Path), string(c.Path)) >= 0 {
				t.Fatalf("%q is not after %q", c.Path, s.Changes[i-1].Path)
			}
		}
		s2, err := OpenSet(w.run)
		must(t, err)
		if kinds(s2) != kinds(s) {
			t.Fatalf("read back:\n%s\nwritten:\n%s", kinds(s2), kinds(s))
		}
		var out bytes.Buffer
		if _, err := s2.Diff(&out, DiffOptions{}); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(out.String(), "\x1b\r\x00") {
			t.Fatal("control characters in the diff")
		}
		_, err = Land(context.Background(), s2, LandOptions{AllowIncomplete: true})
		if err != nil {
			if d := diffTrees(before, treeOf(t, w.ws)); d != "" {
				t.Fatalf("%v, but:\n%s", err, d)
			}
		}
		for p, v := range treeOf(t, w.ws) {
			if v != before[p] && (len((Policy{}).Path(p, "")) > 0 || !strings.ContainsRune("-dL", rune(v[0])) && v[0] != 't') {
				t.Fatalf("landed %q %q", p, v)
			}
		}
		if _, err := Undo(context.Background(), s2, UndoOptions{}); err != nil && !errors.Is(err, ErrNothingToUndo) {
			t.Fatal(err)
		}
		if d := diffTrees(before, treeOf(t, w.ws)); d != "" {
			t.Fatalf("after undo:\n%s", d)
		}
		if d := diffTrees(outside, treeOf(t, dir+"/out")); d != "" {
			t.Fatalf("outside:\n%s", d)
		}
	})
}

// FuzzHunks compares our hunks with the library's, which is slow but known.
func FuzzHunks(f *testing.F) {
	f.Add("a\nb\nc\n", "a\nB\nc\n")
	f.Add("", "new")
	f.Add("old", "")
	f.Add(strings.Repeat("x\n", 30), "y\n"+strings.Repeat("x\n", 30)+"z")
	f.Add("1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n", "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n11\n")
	f.Fuzz(func(t *testing.T, a, b string) {
		want := udiff.Unified("a", "b", a, b)
		var got strings.Builder
		if edits := udiff.Lines(a, b); len(edits) > 0 {
			got.WriteString("--- a\n+++ b\n")
			for _, h := range hunksOf(a, edits) {
				got.WriteString("@@ -" + span(h.from, h.old) + " +" + span(h.to, h.new) + " @@\n")
				for _, l := range h.lines {
					got.WriteString(string(l.kind) + l.text)
					if !strings.HasSuffix(l.text, "\n") {
						got.WriteString("\n\\ No newline at end of file\n")
					}
				}
			}
		}
		// The headers of empty sides differ in form only.
		if body(got.String()) != body(want) {
			t.Errorf("got\n%s\nwant\n%s", got.String(), want)
		}
	})
}

func body(s string) string {
	var b strings.Builder
	for l := range strings.Lines(s) {
		if !strings.HasPrefix(l, "@@") {
			b.WriteString(l)
		}
	}
	return b.String()
}
