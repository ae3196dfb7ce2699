package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/testenv"
)

func TestRemoveRefuses(t *testing.T) {
	s, ws := newStore(t), workspace(t)
	r := create(t, s, ws)
	if err := s.Remove(ctx, r.ID(), RemoveOptions{Unlanded: true, Corrupt: true}); !errors.Is(err, ErrLive) {
		t.Errorf("created: %v", err)
	}
	r.Start(ctx, "")
	if err := s.Remove(ctx, r.ID(), RemoveOptions{Unlanded: true, Corrupt: true}); !errors.Is(err, ErrLive) {
		t.Errorf("running: %v", err)
	}
	r.Finish(ctx, 0, Pending)
	if err := s.Remove(ctx, r.ID(), RemoveOptions{}); !errors.Is(err, ErrUnlanded) {
		t.Errorf("unlanded: %v", err)
	}
	if err := s.Remove(ctx, r.ID(), RemoveOptions{Unlanded: true}); !errors.Is(err, ErrLive) {
		t.Errorf("held: %v", err)
	}
	r.Close()
	if err := s.Remove(ctx, r.ID(), RemoveOptions{Unlanded: true}); err != nil {
		t.Error(err)
	}
	if err := s.Remove(ctx, r.ID(), RemoveOptions{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("again: %v", err)
	}
	if err := s.Remove(ctx, "..", RemoveOptions{Unlanded: true, Corrupt: true}); err == nil {
		t.Error("removed ..")
	}
	if _, err := s.Get(".."); err == nil {
		t.Error("read ..")
	}
}

// TestRemoveHostileTree removes what a bottle may leave: deep, wide, unreadable, with links out.
func TestRemoveHostileTree(t *testing.T) {
	s, ws := newStore(t), workspace(t)
	outside := filepath.Join(t.TempDir(), "outside")
	os.MkdirAll(filepath.Join(outside, "dir"), 0o755)
	os.WriteFile(filepath.Join(outside, "file"), []byte("precious"), 0o644)
	id := finished(t, s, ws, NoChanges)
	upper := filepath.Join(s.RunDir(id), upperDir)
	for name, to := range map[string]string{"l1": outside, "l2": outside + "/file", "l3": "/", "l4": "..", "l5": "l5"} {
		if err := os.Symlink(to, filepath.Join(upper, name)); err != nil {
			t.Fatal(err)
		}
	}
	os.WriteFile(filepath.Join(upper, "bad\xff\nname"), nil, 0)
	os.Link(filepath.Join(outside, "file"), filepath.Join(upper, "hard"))
	unix.Mkfifo(filepath.Join(upper, "fifo"), 0o600)
	for i := range 300 {
		d := filepath.Join(upper, fmt.Sprint("d", i), "x")
		os.MkdirAll(d, 0o700)
		os.WriteFile(filepath.Join(d, "f"), nil, 0o400)
		os.Chmod(d, os.FileMode(i)&0o777)
		os.Chmod(filepath.Dir(d), os.FileMode(i*7)&0o777)
	}
	deep(t, upper, 3000)
	u, err := s.usage(ctx, id)
	if err != nil || !u.Partial || u.Files < 300 {
		t.Errorf("usage %+v, %v", u, err)
	}
	var lim unix.Rlimit
	unix.Getrlimit(unix.RLIMIT_NOFILE, &lim)
	low := lim
	low.Cur = 200 // far less than the tree is deep
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	err = s.Remove(ctx, id, RemoveOptions{})
	unix.Setrlimit(unix.RLIMIT_NOFILE, &lim)
	if err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(filepath.Join(s.Dir(), "trash")); len(entries) != 0 {
		t.Errorf("trash holds %v", entries)
	}
	st, err := os.Stat(filepath.Join(outside, "file"))
	if err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("outside was changed: %v %v", st, err)
	}
	if _, err := os.Stat(filepath.Join(outside, "dir")); err != nil {
		t.Error(err)
	}
}

// deep makes a chain of directories whose path no system call would take.
func deep(t *testing.T, dir string, levels int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range levels {
		if err := unix.Mkdirat(at, "deeper", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, "deeper", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(at)
		if err != nil {
			t.Fatal(err)
		}
		at = next
	}
	unix.Close(at)
}

// TestRemoveStopsAtMounts leaves a bind mount of a host directory inside a run, as a crash may.
func TestRemoveStopsAtMounts(t *testing.T) {
	testenv.Root(t)
	s, ws := newStore(t), workspace(t)
	outside := t.TempDir()
	os.WriteFile(filepath.Join(outside, "file"), make([]byte, 1<<20), 0o600)
	id := finished(t, s, ws, NoChanges)
	at := filepath.Join(s.RunDir(id), upperDir, "m")
	os.Mkdir(at, 0o700)
	if err := unix.Mount(outside, at, "", unix.MS_BIND, ""); err != nil {
		testenv.Missing(t, "bind mounts ("+err.Error()+")", "run as root with CAP_SYS_ADMIN")
	}
	mounted := at
	t.Cleanup(func() { unix.Unmount(mounted, unix.MNT_DETACH) })
	if u, err := s.usage(ctx, id); err != nil || u.Bytes >= 1<<20 || !u.Partial {
		t.Errorf("usage looked through a mount: %+v, %v", u, err)
	}
	err := s.Remove(ctx, id, RemoveOptions{})
	if err == nil {
		t.Error("removed through a mount")
	}
	if _, err := os.Stat(filepath.Join(outside, "file")); err != nil {
		t.Fatalf("a file outside is gone: %v", err)
	}
	filepath.WalkDir(filepath.Join(s.Dir(), "trash"), func(p string, d os.DirEntry, err error) error {
		if err == nil && d.Name() == "m" {
			mounted = p
		}
		return nil
	})
	if err := unix.Unmount(mounted, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recover(ctx); err != nil {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(filepath.Join(s.Dir(), "trash")); len(entries) != 0 {
		t.Errorf("trash holds %v", entries)
	}
}

func TestGC(t *testing.T) {
	s, ws := newStore(t), workspace(t)
	wall := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	s.now = func() time.Time { return wall }
	make1 := func(c Changes) ID {
		id := finished(t, s, ws, c)
		os.WriteFile(filepath.Join(s.RunDir(id), LogsDir, "out"), make([]byte, 1<<20), 0o600)
		wall = wall.Add(24 * time.Hour)
		return id
	}
	old, unlanded, landed, unknown := make1(NoChanges), make1(Pending), make1(Landed), make1("")
	live := create(t, s, ws)
	live.Start(ctx, "")
	newest := make1(NoChanges)
	for name, tc := range map[string]struct {
		p    Policy
		want []ID
	}{
		"zero":                         {Policy{}, nil},
		"keep one":                     {Policy{Keep: 1}, []ID{old, landed}},
		"keep many":                    {Policy{Keep: 10}, nil},
		"older than three days":        {Policy{OlderThan: 3 * 24 * time.Hour}, []ID{old}},
		"older, but keep":              {Policy{OlderThan: time.Nanosecond, Keep: 4}, []ID{old}},
		"fits in 4 MB":                 {Policy{MaxBytes: 4<<20 + 1<<19}, []ID{old}},
		"fits":                         {Policy{MaxBytes: 1 << 30}, nil},
		"all":                          {Policy{All: true}, []ID{old, landed, newest}},
		"all, with what nobody landed": {Policy{All: true, Unlanded: true}, []ID{old, unlanded, landed, unknown, newest}},
	} {
		plan, err := s.PlanGC(ctx, tc.p)
		var got []ID
		for _, c := range plan.Remove {
			got = append(got, c.Meta.ID)
			if c.Bytes < 1<<20 || c.Why == "" {
				t.Errorf("%s: %+v", name, c)
			}
		}
		if err != nil || fmt.Sprint(got) != fmt.Sprint(tc.want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, tc.want)
		}
	}
	if _, err := s.PlanGC(ctx, Policy{Keep: -1}); err == nil {
		t.Error("a negative bound")
	}
	plan, err := s.PlanGC(ctx, Policy{All: true})
	if err != nil {
		t.Fatal(err)
	}
	// Between plan and deed a person took back what was landed: it stays.
	if _, err := s.Update(ctx, landed, func(m *Meta) error { m.Changes = Pending; return nil }); err != nil {
		t.Fatal(err)
	}
	removed, err := s.ApplyGC(ctx, plan)
	if fmt.Sprint(removed) != fmt.Sprint([]ID{old, newest}) || !errors.Is(err, ErrUnlanded) {
		t.Errorf("removed %v, %v", removed, err)
	}
	if l, _ := s.List(ctx, Query{}); len(l.Runs) != 4 {
		t.Errorf("left %+v", l.Runs)
	}
	wall = wall.Add(-1000 * 24 * time.Hour) // set back: nothing is old
	if plan, err := s.PlanGC(ctx, Policy{OlderThan: time.Hour, Unlanded: true}); err != nil || len(plan.Remove) != 0 {
		t.Errorf("%+v, %v", plan, err)
	}
}
