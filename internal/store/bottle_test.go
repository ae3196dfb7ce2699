package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSlugs(t *testing.T) {
	for label, want := range map[string]string{
		"reviewer": "reviewer", "Night: shift!": "night-shift", "  A  B  ": "a-b", "2fast": "b-2fast", "": "b", "äöü": "b", "../../x": "x", "a/../b": "a-b",
		strings.Repeat("x", 100): strings.Repeat("x", 40), "-": "b", "x\x00y": "x-y", "Ünïcode name": "n-code-name", "01k9x3m7": "b-01k9x3m7",
	} {
		if got := SlugOf(label); got != want || !ValidSlug(got) {
			t.Errorf("%q: %q, wanted %q", label, got, want)
		}
	}
	for _, s := range []string{"", ".", "..", "a/b", "A", "1", "a\x00", "a.b", strings.Repeat("a", 50), "-a", "ä"} {
		if ValidSlug(s) {
			t.Errorf("%q is a name", s)
		}
	}
}

func TestBottles(t *testing.T) {
	s := newStore(t)
	ws := workspace(t)
	var names []string
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			b, err := s.CreateBottle(ctx, Bottle{Label: "One", Agent: "a", Workspace: ws, Mode: Overlay})
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			names = append(names, b.Slug)
		})
	}
	wg.Wait()
	slices.Sort(names)
	if !slices.Equal(names, []string{"one", "one-2", "one-3", "one-4", "one-5"}) {
		t.Errorf("%q", names)
	}
	if was, err := s.RemoveBottle(ctx, "one-3"); !was || err != nil {
		t.Error(was, err)
	}
	if was, err := s.RemoveBottle(ctx, "one-3"); was || err != nil {
		t.Error(was, err)
	}
	if b, err := s.CreateBottle(ctx, Bottle{Label: "one", Mode: None}); err != nil || b.Slug != "one-3" {
		t.Error(b, err)
	}
	if _, err := s.Bottle("two"); !errors.Is(err, ErrNoBottle) {
		t.Error(err)
	}
	for _, name := range []string{"../runs", "", "x/y"} {
		if was, err := s.RemoveBottle(ctx, name); was || err != nil {
			t.Errorf("%q: %t %v", name, was, err)
		}
		if _, err := s.Bottle(name); !errors.Is(err, ErrNoBottle) {
			t.Errorf("%q: %v", name, err)
		}
	}

	// What can't be read is told, and is in nobody's way.
	file := filepath.Join(s.Dir(), "bottles", "one-2", metaFile)
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	os.Symlink("/etc", filepath.Join(s.Dir(), "bottles", "link"))
	list, corrupt, err := s.Bottles(ctx)
	if err != nil || len(list) != 4 || len(corrupt) != 2 {
		t.Errorf("%v %v %v", list, corrupt, err)
	}
	for _, name := range []string{"one-2", "link"} {
		if was, err := s.RemoveBottle(ctx, name); !was || err != nil {
			t.Error(was, err)
		}
	}
	if _, err := os.Stat("/etc/passwd"); err != nil {
		t.Fatal("a link was followed")
	}
}

// Runs are a bottle's by their name, and not those of an earlier one.
func TestRunsOf(t *testing.T) {
	s := newStore(t)
	ws := workspace(t)
	run := func(name string) ID {
		t.Helper()
		r, err := s.Create(ctx, Spec{Kind: KindBottle, Name: name, Workspace: ws, Mode: Overlay})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		return r.ID()
	}
	run("one")
	b, err := s.CreateBottle(ctx, Bottle{Label: "one", Workspace: ws, Mode: Overlay})
	if err != nil {
		t.Fatal(err)
	}
	first := run("one")
	run("two")
	create(t, s, ws)
	second := run("one")
	got, err := s.RunsOf(ctx, b)
	if err != nil || len(got) != 2 || got[0].ID != second || got[1].ID != first {
		t.Errorf("%v %v", got, err)
	}
	if m, err := s.Find(ctx, "one", Workspace{}); err != nil || m.ID != second {
		t.Errorf("%v %v", m.ID, err)
	}
	if m, err := s.Find(ctx, string(first), Workspace{}); err != nil || m.ID != first {
		t.Errorf("%v %v", m.ID, err)
	}
	if _, err := s.Find(ctx, "three", Workspace{}); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// Each system call of a bottle's record fails in turn, once or for good: it is there
// whole, or not at all, and what is left of a try goes.
func TestBottleSyscallsFail(t *testing.T) {
	for _, crash := range []bool{false, true} {
		for at := 0; ; at++ {
			name := fmt.Sprintf("call %d, crash %v", at, crash)
			dir := filepath.Join(t.TempDir(), "carboy")
			f := &faults{at: at, crash: crash, err: unix.ENOSPC}
			made, removed := false, false
			life := func() error {
				s, err := open(dir, f)
				if err != nil {
					return err
				}
				defer s.Close()
				if _, err := s.CreateBottle(ctx, Bottle{Label: "one", Mode: None}); err != nil {
					return err
				}
				made = true
				_, err = s.RemoveBottle(ctx, "one")
				removed = err == nil
				return err
			}
			err := life()
			if f.calls <= at {
				if err != nil {
					t.Errorf("without a fault: %v", err)
				}
				break
			}
			s, err := Open(dir)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			list, corrupt, err := s.Bottles(ctx)
			if err != nil || len(corrupt) > 0 || removed && len(list) > 0 {
				t.Errorf("%s: made %t, removed %t: %v %v %v", name, made, removed, list, corrupt, err)
			}
			if _, err := s.Recover(ctx); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for _, sub := range []string{"bottles", "trash"} {
				entries, _ := os.ReadDir(filepath.Join(dir, sub))
				for _, e := range entries {
					if e.Name() != "one" || removed {
						t.Errorf("%s: %s/%s is left", name, sub, e.Name())
					}
				}
			}
			s.Close()
		}
	}
}
