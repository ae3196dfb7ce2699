package change

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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

// TestPlanCheck: no field of a journaled plan leads to another file than a
// landing would touch.
func TestPlanCheck(t *testing.T) {
	good := op{Kind: opSwap, Path: "f", Tmp: tmpPrefix + "1", Old: []oldNode{{}, {Rel: "x"}}, New: []node{{}, {Rel: "y"}}}
	if err := (&planRecord{Schema: journalSchema, Ops: []op{good}}).check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(p *planRecord, o *op){
		"another schema":    func(p *planRecord, _ *op) { p.Schema = "carboy.dev/landing/v2" },
		"nothing old":       func(_ *planRecord, o *op) { o.Old = nil },
		"nothing new":       func(_ *planRecord, o *op) { o.New = nil },
		"an old path above": func(_ *planRecord, o *op) { o.Old[1].Rel = "../x" },
		"a new path above":  func(_ *planRecord, o *op) { o.New[1].Rel = "a/../../x" },
	} {
		o := good
		o.Old, o.New = append([]oldNode(nil), o.Old...), append([]node(nil), o.New...)
		p := &planRecord{Schema: journalSchema}
		change(p, &o)
		p.Ops = []op{o}
		if err := p.check(); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRecoverMarkers: what a crash leaves after the last record of a journal
// is completed, whichever step it came after.
func TestRecoverMarkers(t *testing.T) {
	w := newWorldAt(t, fastTemp(t), fastTemp(t), map[string]string{"f": "f"})
	s := w.collect(w.upper().file("f", "bottle", 0o644).bytes())
	w.land(s, LandOptions{})
	_, err := Undo(context.Background(), s, UndoOptions{})
	must(t, err)
	land, undo := filepath.Join(w.run, landDir, "000001"), filepath.Join(w.run, landDir, "000002"+undoSuffix)
	// As if it was killed after the record of the undo, before the markers.
	for _, name := range []string{land + "/" + undoneMarker, undo + "/" + doneMarker, land + "/" + doneMarker} {
		must(t, os.Remove(name))
	}
	must(t, os.WriteFile(land+"/pre-1", []byte("f"), 0o600))
	// A journal that was made, and never written.
	empty := filepath.Join(w.run, landDir, "000003")
	must(t, os.Mkdir(empty, 0o700))
	must(t, os.WriteFile(empty+"/"+journalFile, nil, 0o600))
	bare := filepath.Join(w.run, landDir, "000004")
	must(t, os.Mkdir(bare, 0o700))
	// Recover itself finds nothing to do with the workspace; the next landing
	// tidies up under its lock.
	rep, err := Recover(context.Background(), w.run)
	must(t, err)
	if len(rep.RolledBack)+len(rep.Finished)+len(rep.Left) != 0 {
		t.Errorf("%+v", rep)
	}
	if _, err := Undo(context.Background(), s, UndoOptions{}); !errors.Is(err, ErrNothingToUndo) {
		t.Errorf("undid twice: %v", err)
	}
	for _, name := range []string{empty, bare, land + "/pre-1"} {
		if _, err := os.Lstat(name); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there", name)
		}
	}
	for _, name := range []string{land + "/" + undoneMarker, land + "/" + doneMarker, undo + "/" + doneMarker} {
		if _, err := os.Lstat(name); err != nil {
			t.Error(err)
		}
	}
	must(t, os.Remove(land+"/"+doneMarker))
	must(t, os.WriteFile(land+"/"+journalFile, []byte("00000000 {}\n00000000 {}\n"), 0o600))
	if _, err := Recover(context.Background(), w.run); !errors.Is(err, ErrCorrupt) {
		t.Errorf("recovered from a damaged journal: %v", err)
	}
	if _, err := Land(context.Background(), s, LandOptions{}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("landed beside a damaged journal: %v", err)
	}
}

// TestLandFailures: whatever keeps a landing from being written leaves the
// workspace as it was.
func TestLandFailures(t *testing.T) {
	type state struct {
		w *world
		s *Set
	}
	for name, c := range map[string]struct {
		damage func(t *testing.T, x state)
		fault  func(x state, step, p string) error
		err    error
	}{
		"a short pack": {damage: func(t *testing.T, x state) {
			must(t, os.Truncate(filepath.Join(x.w.run, upperDir, packFile), 2))
		}, err: io.ErrUnexpectedEOF},
		"no place for journals": {damage: func(t *testing.T, x state) {
			must(t, os.WriteFile(filepath.Join(x.w.run, landDir), nil, 0o600))
		}, err: syscall.ENOTDIR},
		"a pack that is no file": {damage: func(t *testing.T, x state) {
			must(t, errors.Join(os.Remove(filepath.Join(x.w.run, upperDir, packFile)), os.Symlink("pack", filepath.Join(x.w.run, upperDir, packFile))))
		}, err: syscall.ELOOP},
		"another workspace": {damage: func(t *testing.T, x state) {
			must(t, errors.Join(os.Rename(x.w.ws, x.w.ws+".old"), os.CopyFS(x.w.ws, os.DirFS(x.w.ws+".old"))))
		}, err: ErrWorkspaceReplaced},
		"deleted while it is saved": {fault: func(x state, step, p string) error {
			if step == "pre-image" {
				return os.Remove(x.w.ws + "/d/f")
			}
			return nil
		}, err: os.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldAt(t, fastTemp(t), fastTemp(t), map[string]string{"d/f": "f"})
			x := state{w, w.collect(w.upper().file("d/f", "bottle", 0o644).bytes())}
			if c.damage != nil {
				c.damage(t, x)
			}
			before := treeOf(t, w.ws)
			o := LandOptions{}
			if c.fault != nil {
				delete(before, "d/f")
				o.fault = func(step, p string) error { return c.fault(x, step, p) }
			}
			if _, err := Land(context.Background(), x.s, o); !errors.Is(err, c.err) {
				t.Errorf("got %v, want %v", err, c.err)
			}
			if d := diffTrees(before, treeOf(t, w.ws)); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestStranded: the host moves a directory away for good while a landing
// fails. The landing says where the old files lie, and later ones still work.
func TestStranded(t *testing.T) {
	w := newWorldAt(t, fastTemp(t), fastTemp(t), map[string]string{"a/f": "old", "b/f": "old", "m": "m"})
	s := w.collect(w.upper().file("a/f", "bottle", 0o644).file("b/f", "bottle", 0o644).file("m", "m", 0o755).bytes())
	boom := errors.New("boom")
	_, err := Land(context.Background(), s, LandOptions{fault: func(step, p string) error {
		if step == "swap" && p == "m" {
			return errors.Join(os.Rename(w.ws+"/a", w.ws+"/away"), boom)
		}
		return nil
	}})
	var stranded *strandedError
	if !errors.As(err, &stranded) || !errors.Is(err, boom) || len(stranded.Left) != 1 {
		t.Fatalf("got %v", err)
	}
	old, err := os.ReadFile(w.ws + "/away/" + filepath.Base(string(stranded.Left[0])))
	must(t, err)
	if string(old) != "old" || !strings.HasPrefix(string(stranded.Left[0]), "a/") {
		t.Errorf("%s holds %q", stranded.Left[0], old)
	}
	if got := treeOf(t, w.ws)["b/f"]; got != "-rw-r--r-- old" {
		t.Errorf("b/f is %q", got)
	}
	_, err = Recover(context.Background(), w.run)
	must(t, err)
	w.land(s, LandOptions{Paths: []string{"b"}})
}

// TestUnchmod: rolling a change of mode back leaves a file alone that the host
// has replaced or changed since.
func TestUnchmod(t *testing.T) {
	for name, edit := range map[string]func(f string) error{
		"nothing":   func(string) error { return nil },
		"replaced":  func(f string) error { return errors.Join(os.Remove(f), os.WriteFile(f, []byte("mine"), 0o600)) },
		"deleted":   os.Remove,
		"its modes": func(f string) error { return os.Chmod(f, 0o640) },
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{"m": "m", "z": "z"}
			w := newWorldAt(t, fastTemp(t), fastTemp(t), files)
			s := w.collect(w.upper().file("m", "m", 0o755).file("z", "Z", 0o644).bytes())
			boom := errors.New("boom")
			_, err := Land(context.Background(), s, LandOptions{fault: func(step, p string) error {
				if step == "swap" && p == "z" {
					return errors.Join(edit(w.ws+"/m"), boom)
				}
				return nil
			}})
			if !errors.Is(err, boom) {
				t.Fatal(err)
			}
			want := newWorldAt(t, fastTemp(t), fastTemp(t), files)
			must(t, edit(want.ws+"/m"))
			if d := diffTrees(treeOf(t, want.ws), treeOf(t, w.ws)); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestResolve(t *testing.T) {
	links := map[string]string{"loop": "loop2", "loop2": "loop", "up": "..", "d/l": "../x", "abs": "/ws/x/y", "chain": "abs/z", "home": "/etc/passwd",
		"tricky": "/ws/d/../../etc", "long": strings.Repeat("x/", 3000)}
	at := func(rel string) (Type, string) {
		if to, ok := links[rel]; ok {
			return Symlink, to
		}
		return Dir, ""
	}
	for rel, want := range map[string]string{"d/l": "x", "abs": "x/y", "chain": "x/y/z", "loop": "!", "up": "!", "home": "!", "tricky": "!", "long": "!"} {
		end, ok := Resolve(at, "/ws", rel, links[rel])
		if !ok {
			end = "!"
		}
		if end != want {
			t.Errorf("%s leads to %q, want %q", rel, end, want)
		}
	}
}
