package gvisor

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/bottletest"
)

func TestMain(m *testing.M) {
	Main()
	guestMain()
	bottletest.Main()
	os.Exit(m.Run())
}

func testSpec(t testing.TB) *bottle.Spec {
	ws := t.TempDir()
	if err := os.WriteFile(filepath.Join(ws, "a.txt"), []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	uid, gid := os.Getuid(), os.Getgid()
	var hu, hg uint32
	if uid == 0 {
		uid, gid = 1000, 1000
		hu, hg = 1_907_000_001, 1_907_000_001
	}
	s := &bottle.Spec{
		ID:       "t1",
		Hostname: "carboy", HostUID: hu, HostGID: hg,
		User:      bottle.User{UID: uint32(uid), GID: uint32(gid), Name: "carboy", Home: "/home/carboy"},
		Limits:    bottle.Limits{Memory: 1 << 30, Pids: 200, Disk: 1 << 30, CPUs: 2, Output: 1 << 20, FileSize: 1 << 28, OpenFiles: 4096},
		Workspace: &bottle.Mount{Source: ws, Target: ws, Access: bottle.AccessOverlay},
	}
	for _, d := range []string{"/usr", "/bin", "/lib", "/lib64", "/sbin"} {
		fi, err := os.Lstat(d)
		if err != nil {
			continue
		}
		if fi.Mode()&os.ModeSymlink != 0 {
			to, _ := os.Readlink(d)
			s.Root.Entries = append(s.Root.Entries, bottle.Entry{Path: d, Mode: os.ModeSymlink, Link: to})
		} else {
			s.Root.Binds = append(s.Root.Binds, bottle.Mount{Source: d, Target: d, Access: bottle.AccessReadOnly})
		}
	}
	for _, d := range []string{"/etc", "/tmp", "/home", "/home/carboy", "/proc", "/dev", "/sys"} {
		s.Root.Entries = append(s.Root.Entries, bottle.Entry{Path: d, Mode: os.ModeDir | 0o755})
	}
	return s
}

func TestPosture(t *testing.T) {
	b, err := Backend{}.Create(context.Background(), testSpec(t))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	p := b.Posture()
	if p.Isolation != bottle.IsolationUserKernel || p.Backend != name || len(p.Processes) != 2 {
		t.Errorf("posture: %+v", p)
	}
	for _, x := range p.Processes {
		if x.Seccomp != 2 || !x.NoNewPrivs || !x.Chrooted || len(x.Namespaces) != len(nsKinds) {
			t.Errorf("%s: %+v", x.Role, x)
		}
	}
}

func memoryOf(b bottle.Bottle) (int64, error) {
	u, err := b.Usage()
	return u.Memory, err
}

// TestJudgeMounts: what would be refused, beside what a bottle has.
func TestJudgeMounts(t *testing.T) {
	const held = "nosuid,nodev,relatime"
	plan := []string{"/rw", "/with space"}
	for _, x := range []struct {
		role, point, options string
		ok                   bool
	}{
		{"gofer", "/", "ro," + held, true},
		{"gofer", "/usr", "ro," + held, true},
		{"gofer", "/usr", "rw," + held, false},
		{"gofer", "/", "rw," + held, false},
		{"gofer", "/rw", "rw," + held, true},
		{"gofer", "/rw/below", "rw," + held, true},
		{"gofer", "/rwx", "rw," + held, false},
		{"gofer", `/with\040space`, "rw," + held, true},
		{"gofer", "/rw", "rw,nosuid,relatime", false},
		{"gofer", "/usr", "ro,nodev,relatime", false},
		{"sandbox", "/", "ro,relatime", true},
		{"sandbox", "/proc", "rw,nosuid,nodev,noexec", true},
		{"sandbox", "/rw", "rw," + held, false},
		{"sandbox", "/home", "ro," + held, false},
	} {
		err := judgeMount(x.role, mountLine{x.point, x.options}, plan)
		if (err == nil) != x.ok {
			t.Errorf("%s %s %s: %v", x.role, x.point, x.options, err)
		}
	}
}
