package change

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestCheckWorkspace(t *testing.T) {
	dir := realTemp(t)
	home := filepath.Join(dir, "home", "u")
	must(t, os.MkdirAll(filepath.Join(home, "project"), 0o755))
	t.Setenv("HOME", home)
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, os.Symlink(home, filepath.Join(dir, "tohome")))
	must(t, os.Symlink(filepath.Join(home, "project"), filepath.Join(dir, "toproject")))
	for _, c := range []struct {
		dir  string
		want error
	}{
		{"/", ErrWorkspaceRoot},
		{"/..", ErrWorkspaceRoot},
		{home, errWorkspaceHome},
		{home + "/project/..", errWorkspaceHome},
		{filepath.Dir(home), errWorkspaceHome},
		{dir, errWorkspaceHome},
		{filepath.Join(dir, "tohome"), errWorkspaceHome},
		{filepath.Join(dir, "none"), ErrWorkspaceMissing},
		{"", ErrWorkspaceMissing},
		{"a\x00b", ErrWorkspaceMissing},
		{file, errWorkspaceNotDir},
		{file + "/x", errWorkspaceNotDir},
		{filepath.Join(home, "project"), nil},
		{filepath.Join(dir, "toproject"), nil},
	} {
		got, err := CheckWorkspace(c.dir)
		if !errors.Is(err, c.want) {
			t.Errorf("CheckWorkspace(%q): %v, want %v", c.dir, err, c.want)
		}
		if c.want == nil && got != filepath.Join(home, "project") {
			t.Errorf("CheckWorkspace(%q) = %q", c.dir, got)
		}
		var we *WorkspaceError
		if c.want != nil && (!errors.As(err, &we) || we.Advice == "" || strings.Contains(err.Error(), "\n")) {
			t.Errorf("CheckWorkspace(%q): no advice in %v", c.dir, err)
		}
	}
	if os.Geteuid() != 0 {
		shut := filepath.Join(home, "shut")
		must(t, os.Mkdir(shut, 0o300))
		if _, err := CheckWorkspace(shut); !errors.Is(err, errWorkspaceUnreadable) {
			t.Errorf("unreadable: %v", err)
		}
	}
}

func TestReplacedWorkspace(t *testing.T) {
	w := newWorld(t, map[string]string{"a": "a"})
	s := w.collect(w.upper().file("a", "b", 0o644).bytes())
	must(t, os.Rename(w.ws, w.ws+".moved"))
	must(t, os.Mkdir(w.ws, 0o755))
	must(t, os.WriteFile(w.ws+"/a", []byte("a"), 0o644))
	if _, err := Land(context.Background(), s, LandOptions{}); !errors.Is(err, ErrWorkspaceReplaced) {
		t.Errorf("other directory: %v", err)
	}
	must(t, os.RemoveAll(w.ws))
	must(t, os.Symlink(w.ws+".moved", w.ws))
	if _, err := Land(context.Background(), s, LandOptions{}); err == nil {
		t.Error("landed through a link in the workspace's place")
	}
	must(t, os.Remove(w.ws))
	must(t, os.Rename(w.ws+".moved", w.ws))
	w.land(s, LandOptions{})
}

// TestHostEdits: each kind of edit by the host during the run, or between
// collecting and landing, refuses the landing; the neighbour lands.
func TestHostEdits(t *testing.T) {
	files := map[string]string{"f": "content", "other": "o", "d/x": "x", "d/y": "y", "l": "-> f"}
	edits := map[string]func(ws string) error{
		"write":    func(ws string) error { return os.WriteFile(ws+"/f", []byte("CONTENT"), 0o644) },
		"truncate": func(ws string) error { return os.Truncate(ws+"/f", 0) },
		"chmod":    func(ws string) error { return os.Chmod(ws+"/f", 0o755) },
		"delete":   func(ws string) error { return os.Remove(ws + "/f") },
		"save by rename": func(ws string) error {
			return errors.Join(os.WriteFile(ws+"/.f.swp", []byte("cONTENT"), 0o644), os.Rename(ws+"/.f.swp", ws+"/f"))
		},
		"old file moved in": func(ws string) error { return os.Rename(ws+"/other", ws+"/f") },
		"to directory":      func(ws string) error { return errors.Join(os.Remove(ws+"/f"), os.Mkdir(ws+"/f", 0o755)) },
		"to link":           func(ws string) error { return errors.Join(os.Remove(ws+"/f"), os.Symlink("other", ws+"/f")) },
		"write, old times": func(ws string) error {
			fi, err := os.Stat(ws + "/f")
			return errors.Join(err, os.WriteFile(ws+"/f", []byte("CONTENT"), 0o644), os.Chtimes(ws+"/f", fi.ModTime(), fi.ModTime()))
		},
	}
	for name, edit := range edits {
		for _, when := range []string{"during", "after"} {
			t.Run(name+" "+when, func(t *testing.T) {
				w := newWorldAt(t, fastTemp(t), fastTemp(t), files)
				stream := w.upper().file("f", "bottle", 0o644).file("d/x", "bottle", 0o644).bytes()
				if when == "during" {
					must(t, edit(w.ws))
				}
				s := w.collect(stream)
				if when == "after" {
					must(t, edit(w.ws))
				}
				before := treeOf(t, w.ws)
				_, err := Land(context.Background(), s, LandOptions{})
				var ce *ConflictError
				if !errors.As(err, &ce) || len(ce.Conflicts) != 1 || ce.Conflicts[0].Path != "f" {
					t.Fatalf("got %v", err)
				}
				if d := diffTrees(before, treeOf(t, w.ws)); d != "" {
					t.Fatal(d)
				}
				w.land(s, LandOptions{Paths: []string{"d"}})
			})
		}
	}
}

// TestHostEditsOfTrees: the bottle removed or replaced a directory in which
// the host worked.
func TestHostEditsOfTrees(t *testing.T) {
	files := map[string]string{"d/x": "x", "d/sub/y": "y", "n": "n"}
	for name, edit := range map[string]func(ws string) error{
		"add":      func(ws string) error { return os.WriteFile(ws+"/d/new", []byte("mine"), 0o644) },
		"add deep": func(ws string) error { return os.WriteFile(ws+"/d/sub/new", []byte("mine"), 0o644) },
		"edit":     func(ws string) error { return os.WriteFile(ws+"/d/sub/y", []byte("mine"), 0o644) },
	} {
		for _, how := range []string{"removed", "file", "opaque"} {
			for _, when := range []string{"during", "after"} {
				t.Run(name+" "+how+" "+when, func(t *testing.T) {
					w := newWorldAt(t, fastTemp(t), fastTemp(t), files)
					u := w.upper().file("n", "bottle", 0o644)
					switch how {
					case "removed":
						u.gone("d")
					case "file":
						u.file("d", "a file", 0o644)
					case "opaque":
						u.opaque("d", 0o755).file("d/z", "z", 0o644)
					}
					if when == "during" {
						must(t, edit(w.ws))
					}
					s := w.collect(u.bytes())
					if when == "after" {
						must(t, edit(w.ws))
					}
					before := treeOf(t, w.ws)
					_, err := Land(context.Background(), s, LandOptions{})
					var ce *ConflictError
					if how == "opaque" && name == "add" {
						// The directory stays; the host's new file is no
						// business of the bottle's.
						must(t, err)
						if now := treeOf(t, w.ws); now["d/new"] == "" || now["d/x"] != "" {
							t.Fatal(now)
						}
						return
					}
					if !errors.As(err, &ce) {
						t.Fatalf("got %v\n%s", err, kinds(s))
					}
					if d := diffTrees(before, treeOf(t, w.ws)); d != "" {
						t.Fatal(d)
					}
					w.land(s, LandOptions{Paths: []string{"n"}})
				})
			}
		}
	}
}

// TestAgreement: where host and bottle did the same there is no conflict.
func TestAgreement(t *testing.T) {
	w := newWorld(t, map[string]string{"f": "old", "gone": "x", "gd/x": "x"})
	stream := w.upper().file("f", "new", 0o644).gone("gone").gone("gd").file("add", "add", 0o644).bytes()
	must(t, os.WriteFile(w.ws+"/f", []byte("new"), 0o644))
	must(t, os.WriteFile(w.ws+"/add", []byte("add"), 0o644))
	must(t, os.Remove(w.ws+"/gone"))
	must(t, os.RemoveAll(w.ws+"/gd"))
	if s := w.collect(stream); len(s.Changes) != 0 {
		t.Errorf("changes:\n%s", kinds(s))
	}
}

// TestHostMade: a whiteout or an opaque directory of the bottle's never
// removes what the host made meanwhile.
func TestHostMade(t *testing.T) {
	w := newWorld(t, map[string]string{"d/x": "x"})
	u := w.upper().gone("tmpfile").gone("d/t").opaque("fresh", 0o755)
	stream := u.file("fresh/f", "f", 0o644).bytes()
	w.write(map[string]string{"tmpfile": "host", "d/t": "host", "fresh/host": "host"})
	s := w.collect(stream)
	if got, want := kinds(s), "add file fresh/f\n"; got != want {
		t.Fatalf("got %s", got)
	}
	w.land(s, LandOptions{})
	now := treeOf(t, w.ws)
	for _, p := range []string{"tmpfile", "d/t", "fresh/host", "fresh/f"} {
		if now[p] == "" {
			t.Errorf("%s is gone", p)
		}
	}
}

func TestClockSetBack(t *testing.T) {
	w := newWorld(t, map[string]string{"f": "f"})
	// As if the clock had been set back by an hour since, and the host had
	// edited after that: its ctime lies before the marker.
	w.base.marker.At += int64(time.Hour)
	w.base.marker.Offset += int64(time.Hour)
	stream := w.upper().file("f", "bottle", 0o644).bytes()
	must(t, os.WriteFile(w.ws+"/f", []byte("mine"), 0o644))
	s := w.collect(stream)
	if len(s.Changes) != 1 || s.Changes[0].BaseMoved == "" {
		t.Errorf("an edit after a clock jump went unnoticed:\n%s", kinds(s))
	}
	if len(s.Notes) == 0 {
		t.Error("no note")
	}
}

func TestMarkerSplitsTime(t *testing.T) {
	dir := realTemp(t)
	w := &world{t: t, ws: dir + "/ws", run: realTemp(t)}
	must(t, os.Mkdir(w.ws, 0o755))
	for i := range 20 {
		name := fmt.Sprintf("%s/%d", w.ws, i)
		must(t, os.WriteFile(name, nil, 0o644))
		fd, _, err := openRoot(w.ws)
		must(t, err)
		m, err := takeMarker(context.Background(), fd, w.run)
		must(t, err)
		unix.Close(fd)
		st, err := os.Stat(name)
		must(t, err)
		if c := ctimeOf(st); c >= m.At {
			t.Fatalf("written before, but %d ≥ %d", c, m.At)
		}
		must(t, os.WriteFile(name, []byte("x"), 0o644))
		st, err = os.Stat(name)
		must(t, err)
		if c := ctimeOf(st); c < m.At {
			t.Fatalf("written after, but %d < %d", c, m.At)
		}
	}
	ents, err := os.ReadDir(w.run)
	must(t, err)
	if len(ents) != 0 {
		t.Errorf("left %v", ents)
	}
}

func ctimeOf(fi os.FileInfo) int64 {
	st := fi.Sys().(*syscall.Stat_t)
	return syscall.TimespecToNsec(st.Ctim)
}

func TestUndoRefusesEdited(t *testing.T) {
	files := map[string]string{"f": "f", "gone": "gone", "m": "m"}
	for name, edit := range map[string]func(ws string) error{
		"edited":  func(ws string) error { return os.WriteFile(ws+"/f", []byte("FFFFFF"), 0o644) },
		"chmod":   func(ws string) error { return os.Chmod(ws+"/f", 0o700) },
		"deleted": func(ws string) error { return os.Remove(ws + "/f") },
		"in new directory": func(ws string) error {
			return os.WriteFile(ws+"/new/mine", nil, 0o644)
		},
		"in place of a deleted one": func(ws string) error { return os.WriteFile(ws+"/gone", nil, 0o644) },
		"mode put back":             func(ws string) error { return os.Chmod(ws+"/m", 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldAt(t, fastTemp(t), fastTemp(t), files)
			before := treeOf(t, w.ws)
			s := w.collect(w.upper().file("f", "bottle", 0o644).gone("gone").file("new/x", "x", 0o644).file("m", "m", 0o755).bytes())
			w.land(s, LandOptions{})
			landed := treeOf(t, w.ws)
			must(t, edit(w.ws))
			edited := treeOf(t, w.ws)
			_, err := Undo(context.Background(), s, UndoOptions{})
			var ce *ConflictError
			if !errors.As(err, &ce) || len(ce.Conflicts) != 1 || !strings.Contains(err.Error(), ce.Conflicts[0].Path) {
				t.Fatalf("got %v", err)
			}
			if d := diffTrees(edited, treeOf(t, w.ws)); d != "" {
				t.Fatal(d)
			}
			_, _ = landed, before
		})
	}
	t.Run("touched but equal", func(t *testing.T) {
		w := newWorld(t, files)
		before := treeOf(t, w.ws)
		s := w.collect(w.upper().file("f", "bottle", 0o644).bytes())
		w.land(s, LandOptions{})
		must(t, os.WriteFile(w.ws+"/f", []byte("bottle"), 0o644))
		if _, err := Undo(context.Background(), s, UndoOptions{}); err != nil {
			t.Fatal(err)
		}
		if d := diffTrees(before, treeOf(t, w.ws)); d != "" {
			t.Fatal(d)
		}
	})
}

// TestPartialLandings: pieces land one by one; undo takes back the newest or
// all.
func TestPartialLandings(t *testing.T) {
	w := newWorld(t, map[string]string{"a": "a", "b": "b", "d/x": "x", "d/y": "y"})
	before := treeOf(t, w.ws)
	u := w.upper().file("a", "A", 0o644).file("b", "B", 0o644).gone("d")
	s := w.collect(u.opaque("new", 0o755).file("new/one", "1", 0o644).file("new/sub/two", "2", 0o644).bytes())
	w.land(s, LandOptions{Paths: []string{"a"}})
	r := w.land(s, LandOptions{Paths: []string{"new/one"}})
	if len(r.Implied) != 1 || r.Implied[0] != "new" {
		t.Errorf("implied %v", r.Implied)
	}
	w.land(s, LandOptions{Paths: []string{"d/x"}})
	mid := treeOf(t, w.ws)
	w.land(s, LandOptions{})
	all := treeOf(t, w.ws)
	if all["d"] != "" || all["new/sub/two"] == "" || all["b"] != "-rw-r--r-- B" {
		t.Fatal(all)
	}
	if _, err := Undo(context.Background(), s, UndoOptions{Last: true}); err != nil {
		t.Fatal(err)
	}
	if d := diffTrees(mid, treeOf(t, w.ws)); d != "" {
		t.Fatal(d)
	}
	w.land(s, LandOptions{})
	if _, err := Undo(context.Background(), s, UndoOptions{}); err != nil {
		t.Fatal(err)
	}
	if d := diffTrees(before, treeOf(t, w.ws)); d != "" {
		t.Fatal(d)
	}
	for _, bad := range []string{"nothing", "../x", "/etc/passwd", "", "new/on", "a/"} {
		_, err := Land(context.Background(), s, LandOptions{Paths: []string{bad}})
		if bad == "a/" {
			must(t, err)
		} else if !errors.Is(err, ErrNoSuchChange) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	w.land(s, LandOptions{Paths: []string{w.ws + "/b", "./new/../new/sub/"}})
}

func TestHostChanges(t *testing.T) {
	w := newWorld(t, map[string]string{"a": "a", "b": "b", "c": "c", "d/x": "x", "d/y": "y", "gone/z": "z", "t": "t"})
	if got, notes, err := HostChanges(context.Background(), w.base, 0); err != nil || len(got) != 0 || len(notes) != 0 {
		t.Fatalf("%v %v %v", got, notes, err)
	}
	must(t, os.WriteFile(w.ws+"/a", []byte("A"), 0o644))
	must(t, os.Chmod(w.ws+"/b", 0o755))
	must(t, os.Remove(w.ws+"/d/x"))
	must(t, os.RemoveAll(w.ws+"/gone"))
	must(t, errors.Join(os.Remove(w.ws+"/t"), os.Mkdir(w.ws+"/t", 0o755)))
	w.write(map[string]string{"new/deep/f": "f", "t/in": "in"})
	got, _, err := HostChanges(context.Background(), w.base, 0)
	must(t, err)
	var b bytes.Buffer
	for _, c := range got {
		fmt.Fprintf(&b, "%s %s %s\n", c.Kind, c.Type, c.Path)
	}
	want := "modify file a\nmodify file b\ndelete file d/x\ndelete dir gone\nadd dir new\nadd dir new/deep\nadd file new/deep/f\ntype dir t\nadd file t/in\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}
