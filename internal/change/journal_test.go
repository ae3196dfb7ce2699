package change

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDamagedJournal cuts and changes a journal of a landing that was cut
// short. Whatever is left of it, nothing outside the workspace is touched and
// a torn tail is no error.
func TestDamagedJournal(t *testing.T) {
	w := newWorldAt(t, fastTemp(t), fastTemp(t), map[string]string{"f": "f"})
	before := treeOf(t, w.ws)
	s := w.collect(w.upper().file("f", "bottle", 0o644).bytes())
	crash := errors.New("crash")
	dead := false
	_, err := Land(context.Background(), s, LandOptions{fault: func(step, p string) error {
		if dead = dead || step == "journal" && p == "commit"; dead {
			return crash
		}
		return nil
	}})
	if !errors.Is(err, crash) {
		t.Fatal(err)
	}
	name := filepath.Join(w.run, landDir, "000001", journalFile)
	whole, err := os.ReadFile(name)
	must(t, err)
	if n := strings.Count(string(whole), "\n"); n != 2 {
		t.Fatalf("%d records", n)
	}
	// A record that is not what was written is no torn tail.
	bad := []byte(strings.Replace(string(whole), `"path":"f"`, `"path":"g"`, 1))
	must(t, os.WriteFile(name, bad, 0o600))
	if _, err := Recover(context.Background(), w.run); !errors.Is(err, ErrCorrupt) {
		t.Errorf("took a changed record: %v", err)
	}
	must(t, os.WriteFile(name, append(whole, whole[:len(whole)/3]...), 0o600))
	r, err := Recover(context.Background(), w.run)
	must(t, err)
	if len(r.RolledBack) != 1 {
		t.Errorf("%+v", r)
	}
	if d := diffTrees(before, treeOf(t, w.ws)); d != "" {
		t.Error(d)
	}
	for _, rel := range []Bytes{"..", "../x", "/etc/passwd", "a//b", "", "a/../../b"} {
		p := planRecord{Schema: journalSchema, Ops: []op{{Kind: opRemove, Path: rel, Tmp: tmpPrefix + "1", Old: []oldNode{{}}}}}
		if err := p.check(); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%q: %v", rel, err)
		}
	}
	for _, tmp := range []string{"", "x", "../.carboy-", tmpPrefix + "/../x"} {
		p := planRecord{Schema: journalSchema, Ops: []op{{Kind: opRemove, Path: "f", Tmp: tmp, Old: []oldNode{{}}}}}
		if err := p.check(); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%q: %v", tmp, err)
		}
	}
}

// TestTamperedContent: what lies in the pack is checked again on its way out.
func TestTamperedContent(t *testing.T) {
	w := newWorld(t, map[string]string{"f": "f"})
	s := w.collect(w.upper().file("f", "bottle", 0o644).bytes())
	before := treeOf(t, w.ws)
	must(t, os.WriteFile(filepath.Join(w.run, upperDir, packFile), []byte("forged"), 0o600))
	if _, err := Land(context.Background(), s, LandOptions{}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("got %v", err)
	}
	if d := diffTrees(before, treeOf(t, w.ws)); d != "" {
		t.Error(d)
	}
}
