package change

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOwners: an ordinary user's files stay the user's; root lands into
// another user's directory for that user.
func TestOwners(t *testing.T) {
	uid, gid := os.Getuid(), os.Getgid()
	w := newWorld(t, map[string]string{"f": "f", "d/x": "x", "tree/x": "x", "other": "o"})
	otherUID := uid
	if os.Geteuid() == 0 {
		uid, gid, otherUID = 12345, 12346, 23456
		must(t, filepath.WalkDir(w.ws, func(p string, _ os.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(p, uid, gid))
		}))
		must(t, os.Chown(w.ws+"/other", otherUID, gid))
	}
	w.base.Close()
	w.begin()
	u := w.upper().file("f", "bottle", 0o644).file("d/new", "n", 0o644).link("l", "f").opaque("nd", 0o755).file("nd/x", "x", 0o644)
	s := w.collect(u.gone("tree").file("other", "bottle", 0o600).bytes())
	w.land(s, LandOptions{})
	check := func(p string, uid int) {
		t.Helper()
		var st syscall.Stat_t
		must(t, syscall.Lstat(w.ws+"/"+p, &st))
		if int(st.Uid) != uid || int(st.Gid) != gid {
			t.Errorf("%s belongs to %d:%d, want %d:%d", p, st.Uid, st.Gid, uid, gid)
		}
	}
	for _, p := range []string{"f", "d/new", "l", "nd", "nd/x"} {
		check(p, uid)
	}
	check("other", otherUID)
	_, err := Undo(context.Background(), s, UndoOptions{})
	must(t, err)
	for _, p := range []string{"f", "tree", "tree/x"} {
		check(p, uid)
	}
	check("other", otherUID)
}

// TestNoPermission: a directory that may not be written to leaves everything
// as it was. (Root may write everywhere; TestFaults stands for it there.)
func TestNoPermission(t *testing.T) {
	w := newWorld(t, map[string]string{"a/f": "f", "b/f": "f"})
	s := w.collect(w.upper().file("a/f", "bottle", 0o644).file("b/f", "bottle", 0o644).bytes())
	must(t, os.Chmod(w.ws+"/b", 0o555))
	t.Cleanup(func() { os.Chmod(w.ws+"/b", 0o755) })
	before := treeOf(t, w.ws)
	_, err := Land(context.Background(), s, LandOptions{})
	if os.Geteuid() == 0 {
		must(t, err)
		return
	}
	if !errors.Is(err, unix.EACCES) {
		t.Errorf("got %v", err)
	}
	if d := diffTrees(before, treeOf(t, w.ws)); d != "" {
		t.Fatal(d)
	}
	w.land(s, LandOptions{Paths: []string{"a"}})
}

func TestBusy(t *testing.T) {
	w := newWorld(t, map[string]string{"f": "f"})
	s := w.collect(w.upper().file("f", "bottle", 0o644).bytes())
	fd, err := lockWorkspace(context.Background(), s.Workspace)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Land(ctx, s, LandOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := Land(context.Background(), s, LandOptions{}); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
	closeFd(fd)
	w.land(s, LandOptions{})
}

// TestWorkAfterCrash: a landing was killed half-way, and the host worked on
// with what it had put in place. Recovery keeps that work.
func TestWorkAfterCrash(t *testing.T) {
	for _, plain := range []bool{false, true} {
		w := newWorldAt(t, fastTemp(t), fastTemp(t), map[string]string{"f": "f", "z": "z"})
		s := w.collect(w.upper().file("f", "bottle", 0o644).file("new/x", "x", 0o644).file("z", "bottle", 0o644).bytes())
		crash := errors.New("crash")
		dead := false
		_, err := Land(context.Background(), s, LandOptions{plain: plain, fault: func(step, p string) error {
			if dead = dead || step == "swap" && p == "z"; dead {
				return crash
			}
			return nil
		}})
		var rb *rollbackError
		if !errors.As(err, &rb) {
			t.Fatal(err)
		}
		must(t, os.WriteFile(w.ws+"/f", []byte("bottle and mine"), 0o644))
		must(t, os.WriteFile(w.ws+"/new/mine", []byte("mine"), 0o644))
		r, err := Recover(context.Background(), w.run)
		must(t, err)
		now := treeOf(t, w.ws)
		if !strings.HasSuffix(now["f"], "bottle and mine") || now["new/mine"] == "" || now["z"] != "-rw-r--r-- z" {
			t.Error(now)
		}
		if len(r.RolledBack) != 1 || len(r.Left) != 2 || now[r.Left[1]] == "" && now[r.Left[0]] == "" {
			t.Errorf("%+v, %v", r, now)
		}
		if r, err := Recover(context.Background(), w.run); err != nil || len(r.RolledBack) != 0 {
			t.Errorf("again: %+v %v", r, err)
		}
	}
}
