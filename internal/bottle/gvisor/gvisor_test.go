package gvisor

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/bottletest"
)

func TestMain(m *testing.M) {
	Main()
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

func TestRun(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s := testSpec(t)
	t0 := time.Now()
	b, err := Backend{}.Create(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Log("create", time.Since(t0))
	defer b.Close()
	r, w, _ := os.Pipe()
	in, inw, _ := os.Pipe()
	inw.Close()
	p, err := b.Start(ctx, &bottle.Command{Args: []string{"sh", "-c", "id; pwd; ls -la / .; echo x >> a.txt; rm -f zz; mkdir d; mv a.txt d/; ps ax; cat /proc/self/status | head -40; mount; exit 3"}, Env: []string{"PATH=/usr/bin:/bin", "HOME=/home/carboy"}, Dir: s.Workspace.Target, Stdin: in, Stdout: w, Stderr: w})
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	go func() { io.Copy(os.Stderr, r) }()
	st, err := p.Wait(ctx)
	t.Log(st, err, time.Since(t0))
	if err := b.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	f, _ := os.Create("/tmp/spike/up.tar")
	if err := b.Export(ctx, f); err != nil {
		t.Fatal(err)
	}
	t.Log(time.Since(t0))
	m, err := b.Usage()
	t.Log(m, err)
}

func TestPosture(t *testing.T) {
	b, err := Backend{}.Create(context.Background(), testSpec(t))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, p := range b.Posture().Processes {
		t.Logf("%+v", p)
	}
}

func BenchmarkOverlay(b *testing.B) {
	for _, scratch := range []bool{false, true} {
		b.Run(fmt.Sprintf("dir=%v", scratch), func(b *testing.B) {
			for range b.N {
				s := testSpec(b)
				if scratch {
					s.Scratch = b.TempDir()
					if s.HostUID != 0 {
						os.Chown(s.Scratch, int(s.HostUID), int(s.HostGID))
					}
				}
				s.Limits.Disk = 4 << 30
				x, err := Backend{}.Create(context.Background(), s)
				if err != nil {
					b.Fatal(err)
				}
				r, _, _ := os.Pipe()
				p, err := x.Start(context.Background(), &bottle.Command{Args: []string{"sh", "-c", os.Getenv("CMD")}, Env: []string{"PATH=/usr/local/go/bin:/usr/bin:/bin", "HOME=/home/carboy"}, Dir: s.Workspace.Target, Stdin: r, Stdout: os.Stderr, Stderr: os.Stderr})
				if err != nil {
					b.Fatal(err)
				}
				if st, err := p.Wait(context.Background()); err != nil || st.Code != 0 {
					b.Fatal(st, err)
				}
				x.Close()
			}
		})
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
