package change

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
)

// TestLastMoment: the host edits between our last look at a file and our
// rename. Its edit survives, and all the rest is taken back.
func TestLastMoment(t *testing.T) {
	files := map[string]string{"f": "f", "gone": "gone", "tree/x": "x", "tree/sub/y": "y", "l": "-> f", "sw": "sw", "d/x": "x"}
	replace := func(p string) func(ws string) error {
		return func(ws string) error {
			return errors.Join(os.WriteFile(ws+"/.swp", []byte("mine"), 0o644), os.Rename(ws+"/.swp", ws+"/"+p))
		}
	}
	for name, c := range map[string]struct {
		at   string
		edit func(ws string) error
	}{
		"replace modified":  {"f", replace("f")},
		"write modified":    {"f", func(ws string) error { return os.WriteFile(ws+"/f", []byte("mine"), 0o644) }},
		"delete modified":   {"f", func(ws string) error { return os.Remove(ws + "/f") }},
		"replace removed":   {"gone", replace("gone")},
		"write removed":     {"gone", func(ws string) error { return os.WriteFile(ws+"/gone", []byte("mine"), 0o644) }},
		"delete removed":    {"gone", func(ws string) error { return os.Remove(ws + "/gone") }},
		"create added":      {"new", func(ws string) error { return os.WriteFile(ws+"/new", []byte("mine"), 0o644) }},
		"mkdir added":       {"new", func(ws string) error { return os.Mkdir(ws+"/new", 0o700) }},
		"link added":        {"new", func(ws string) error { return os.Symlink("/etc", ws+"/new") }},
		"create in tree":    {"tree", func(ws string) error { return os.WriteFile(ws+"/tree/sub/z", []byte("mine"), 0o644) }},
		"write in tree":     {"tree", func(ws string) error { return os.WriteFile(ws+"/tree/sub/y", []byte("mine"), 0o644) }},
		"replace in tree":   {"tree", replace("tree/x")},
		"delete in tree":    {"tree", func(ws string) error { return os.Remove(ws + "/tree/x") }},
		"replace link":      {"l", replace("l")},
		"replace by dir":    {"f", func(ws string) error { return errors.Join(os.Remove(ws+"/f"), os.Mkdir(ws+"/f", 0o700)) }},
		"replace retyped":   {"sw", replace("sw")},
		"create in retyped": {"d", func(ws string) error { return os.WriteFile(ws+"/d/mine", []byte("mine"), 0o644) }},
	} {
		for _, plain := range []bool{false, true} {
			t.Run(strings.ReplaceAll(name, " ", "-")+map[bool]string{true: "-plain"}[plain], func(t *testing.T) {
				w := newWorldAt(t, fastTemp(t), fastTemp(t), files)
				u := w.upper().file("f", "bottle", 0o644).gone("gone").file("new", "bottle", 0o644).gone("tree").link("l", "d")
				s := w.collect(u.opaque("sw", 0o755).file("sw/in", "in", 0o644).file("d", "now a file", 0o644).bytes())
				var edited map[string]string
				fault := func(step, p string) error {
					if step == "rename" && p == c.at && edited == nil {
						must(t, c.edit(w.ws))
						edited = map[string]string{}
					}
					return nil
				}
				before := treeOf(t, w.ws)
				_, err := Land(context.Background(), s, LandOptions{fault: fault, plain: plain})
				if edited == nil {
					t.Fatal("the moment did not come")
				}
				var rb *rollbackError
				if err == nil || errors.As(err, &rb) {
					t.Fatalf("got %v", err)
				}
				now := treeOf(t, w.ws)
				w2 := newWorldAt(t, fastTemp(t), fastTemp(t), files)
				must(t, c.edit(w2.ws))
				want := treeOf(t, w2.ws)
				if d := diffTrees(want, now); d != "" {
					t.Fatalf("%v, and then:\n%s", err, d)
				}
				_ = before
			})
		}
	}
}
