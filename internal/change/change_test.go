package change

import (
	"bytes"
	"context"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestLife takes one of everything through collect, diff, land, land again,
// undo, land and undo.
func TestLife(t *testing.T) {
	w := newWorld(t, map[string]string{
		"keep": "keep\n", "edit": "one\ntwo\n", "touched": "same\n", "chmod": "x\n",
		"gone": "bye\n", "tree/a": "a", "tree/sub/b": "b", "tree/l": "-> a",
		"link": "-> keep", "swap": "file", "dir/x": "x", "dir/y": "y", "opq/old": "old", "opq/same": "same",
	})
	before := treeOf(t, w.ws)
	u := w.upper()
	u.file("edit", "one\nTWO\n", 0o644)
	u.file("touched", "same\n", 0o644)
	u.file("chmod", "x\n", 0o755)
	u.gone("gone")
	u.gone("tree")
	u.link("link", "edit")
	u.opaque("swap", 0o755)
	u.file("swap/in", "in", 0o600)
	u.file("dir/x", "changed", 0o644)
	u.gone("dir/never")
	u.opaque("opq", 0o755)
	u.file("opq/same", "same", 0o644)
	u.file("opq/new", "new", 0o644)
	u.opaque("fresh", 0o700)
	u.file("fresh/deep/er/f", "f", 0o640)
	u.hard("fresh/again", u.at+"/fresh/deep/er/f")
	u.dir("fresh/empty", 0o755)
	s := w.collect(u.bytes())
	want := `mode file chmod
modify file dir/x
modify file edit
add dir fresh
add file fresh/again
add dir fresh/deep
add dir fresh/deep/er
add file fresh/deep/er/f
add dir fresh/empty
delete file gone
modify symlink link
add file opq/new
delete file opq/old
type dir swap
add file swap/in
delete dir tree
delete file tree/a
delete symlink tree/l
delete dir tree/sub
delete file tree/sub/b
`
	if got := kinds(s); got != want {
		t.Fatalf("got\n%swant\n%s", got, want)
	}
	s, err := OpenSet(w.run)
	must(t, err)
	var out bytes.Buffer
	_, err = s.Diff(&out, DiffOptions{})
	must(t, err)
	if !strings.Contains(out.String(), "-two\n+TWO\n") {
		t.Errorf("diff lacks the edit:\n%s", out.String())
	}
	for round := range 2 {
		r := w.land(s, LandOptions{})
		if len(r.Landed) != len(s.Changes) || len(r.Withheld) != 0 {
			t.Errorf("round %d: landed %d of %d, withheld %v", round, len(r.Landed), len(s.Changes), r.Withheld)
		}
		landed := treeOf(t, w.ws)
		if got, want := landed["fresh/deep/er/f"], "-rw-r----- f"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if _, ok := landed["tree"]; ok {
			t.Error("tree is still there")
		}
		if got := landed["link"]; !strings.HasSuffix(got, "-> edit") {
			t.Errorf("link is %q", got)
		}
		if r := w.land(s, LandOptions{}); len(r.Landed) != 0 {
			t.Errorf("landed again: %v", r.Landed)
		}
		landed, no := treeOf(t, w.ws), errors.New("no")
		var asked UndoReport
		if _, err = Undo(context.Background(), s, UndoOptions{Confirm: func(r UndoReport) error { asked = r; return no }}); err != no {
			t.Errorf("a person said no: %v", err)
		}
		if d := diffTrees(landed, treeOf(t, w.ws)); d != "" {
			t.Fatalf("round %d: not confirmed, and changed:\n%s", round, d)
		}
		undo, err := Undo(context.Background(), s, UndoOptions{Confirm: func(UndoReport) error { return nil }})
		must(t, err)
		if !reflect.DeepEqual(*undo, asked) || len(asked.Restored) == 0 {
			t.Errorf("asked about %+v, did %+v", asked, *undo)
		}
		if d := diffTrees(before, treeOf(t, w.ws)); d != "" {
			t.Fatalf("round %d: after undo:\n%s", round, d)
		}
	}
	if _, err := Undo(context.Background(), s, UndoOptions{Confirm: func(UndoReport) error { t.Error("asked about nothing"); return nil }}); !errors.Is(err, ErrNothingToUndo) {
		t.Errorf("undo of nothing: %v", err)
	}
}

func TestConflictRefusesAll(t *testing.T) {
	w := newWorld(t, map[string]string{"a": "a", "b": "b"})
	u := w.upper()
	u.file("a", "A", 0o644).file("b", "B", 0o644)
	must(t, os.WriteFile(w.ws+"/b", []byte("mine"), 0o644))
	s := w.collect(u.bytes())
	before := treeOf(t, w.ws)
	_, err := Land(context.Background(), s, LandOptions{})
	var ce *ConflictError
	if !errors.As(err, &ce) || len(ce.Conflicts) != 1 || ce.Conflicts[0].Path != "b" {
		t.Fatalf("got %v", err)
	}
	if d := diffTrees(before, treeOf(t, w.ws)); d != "" {
		t.Fatal(d)
	}
	w.land(s, LandOptions{Paths: []string{"a"}}) // the neighbour lands
	if got := treeOf(t, w.ws)["a"]; !strings.HasSuffix(got, " A") {
		t.Error(got)
	}
}
