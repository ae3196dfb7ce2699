package gvisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/bottletest"
	"github.com/carboy/carboy/internal/bottle/posture"
	"github.com/carboy/carboy/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.ReportCoverage(m)
	Main()
	guestMain()
	bottletest.Main()
	testenv.OwnMounts()
	stop, err := testenv.CollectCoverage()
	if err != nil {
		fmt.Fprintln(os.Stderr, "collect coverage:", err)
		os.Exit(1)
	}
	code := m.Run()
	stop()
	os.Exit(code)
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
		{"gofer", "/with space", "rw," + held, true},
		{"gofer", "/rw", "rw,nosuid,relatime", false},
		{"gofer", "/usr", "ro,nodev,relatime", false},
		{"sandbox", "/", "ro,relatime", true},
		{"sandbox", "/proc", "rw,nosuid,nodev,noexec", true},
		{"sandbox", "/rw", "rw," + held, false},
		{"sandbox", "/home", "ro," + held, false},
	} {
		err := judgeMount(x.role, posture.Mount{Point: x.point, Options: x.options}, plan)
		if (err == nil) != x.ok {
			t.Errorf("%s %s %s: %v", x.role, x.point, x.options, err)
		}
	}
}

// TestPostureRefuses: a bottle of which one thing is not as planned is refused,
// and the one beside it, of which all is, is not.
func TestPostureRefuses(t *testing.T) {
	own, err := posture.Here(nsKinds)
	if err != nil {
		t.Fatal(err)
	}
	const uid = 1000
	good := func() createReply {
		var r createReply
		for i, role := range []string{"sandbox", "gofer"} {
			p := rawPosture{role, posture.Process{
				PID: i + 2, UIDs: [4]int{uid, uid, uid, uid}, Seccomp: 2, NoNewPrivs: 1, CapEff: capsAllowed, CapPrm: capsAllowed, CapBnd: capsAllowed,
				Place:  posture.Place{Namespaces: map[string]string{}, Root: posture.ID{Dev: 1, Ino: 1}},
				Mounts: []posture.Mount{{Point: "/", Options: "ro,nosuid,nodev"}},
				FDs:    []posture.FD{{Link: "/dev/null"}, {Link: "socket:[1]"}, {Link: "/memfd:x"}, {Link: "/proc/1/fd"}},
			}}
			for _, k := range nsKinds {
				p.Namespaces[k] = k + ":[1]"
			}
			r.Processes = append(r.Processes, p)
		}
		return r
	}
	if _, err := readPosture(good(), uid, nil); err != nil {
		t.Fatalf("as planned: %v", err)
	}
	for name, spoil := range map[string]func(*rawPosture){
		"no seccomp filter":          func(p *rawPosture) { p.Seccomp = 0 },
		"strict seccomp":             func(p *rawPosture) { p.Seccomp = 1 },
		"may gain privileges":        func(p *rawPosture) { p.NoNewPrivs = 0 },
		"root":                       func(p *rawPosture) { p.UIDs = [4]int{} },
		"root saved":                 func(p *rawPosture) { p.UIDs[2] = 0 },
		"effective capability":       func(p *rawPosture) { p.CapEff |= 1 << unix.CAP_SYS_ADMIN },
		"permitted capability":       func(p *rawPosture) { p.CapPrm |= 1 << unix.CAP_NET_ADMIN },
		"bounding capability":        func(p *rawPosture) { p.CapBnd |= 1 << unix.CAP_SETUID },
		"user namespace":             func(p *rawPosture) { p.Namespaces["user"] = own.Namespaces["user"] },
		"mount namespace":            func(p *rawPosture) { p.Namespaces["mnt"] = own.Namespaces["mnt"] },
		"pid namespace":              func(p *rawPosture) { p.Namespaces["pid"] = own.Namespaces["pid"] },
		"network namespace":          func(p *rawPosture) { p.Namespaces["net"] = own.Namespaces["net"] },
		"ipc namespace":              func(p *rawPosture) { p.Namespaces["ipc"] = own.Namespaces["ipc"] },
		"host name's namespace":      func(p *rawPosture) { p.Namespaces["uts"] = own.Namespaces["uts"] },
		"a namespace not seen":       func(p *rawPosture) { delete(p.Namespaces, "net") },
		"the host's root":            func(p *rawPosture) { p.Root = own.Root },
		"a mount with devices":       func(p *rawPosture) { p.Mounts = []posture.Mount{{Point: "/home", Options: "ro,nosuid"}} },
		"a device":                   func(p *rawPosture) { p.FDs = append(p.FDs, posture.FD{Link: "/dev/kvm"}) },
		"a file of the host's /proc": func(p *rawPosture) { p.FDs = append(p.FDs, posture.FD{Link: "/proc/1/environ"}) },
		"another role":               func(p *rawPosture) { p.Role = "sidecar" },
	} {
		for i := range 2 {
			r := good()
			spoil(&r.Processes[i])
			if _, err := readPosture(r, uid, nil); err == nil {
				t.Errorf("%s of the %s was not refused", name, good().Processes[i].Role)
			}
		}
	}
}
