package gvisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	vfsctx "gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/testenv"
	"github.com/carboy/carboy/internal/trace"
)

// countedDentry is a dentry of no file system that counts its references.
type countedDentry struct {
	vfs.DentryImpl
	vfsd vfs.Dentry
	refs int
}

func (d *countedDentry) IncRef()               { d.refs++ }
func (d *countedDentry) DecRef(vfsctx.Context) { d.refs-- }

func TestNamesAreBounded(t *testing.T) {
	ctx := vfsctx.Background()
	n := names{at: map[*vfs.Dentry]int{}, max: 8}
	all := make([]*countedDentry, 100)
	for i := range all {
		all[i] = &countedDentry{}
		all[i].vfsd.Init(all[i])
		n.keep(ctx, &all[i].vfsd)
		n.keep(ctx, &all[i].vfsd)
	}
	held := 0
	for i, d := range all {
		if d.refs != 0 && d.refs != 1 {
			t.Errorf("dentry %d has %d references", i, d.refs)
		}
		held += d.refs
	}
	if held != n.max || len(n.at) != n.max {
		t.Errorf("%d references in %d entries, wanted %d", held, len(n.at), n.max)
	}
	for _, d := range all {
		n.drop(ctx, &d.vfsd)
		n.drop(ctx, &d.vfsd)
		if d.refs != 0 {
			t.Fatalf("%d references of what was dropped", d.refs)
		}
	}
	if len(n.at) != 0 || len(n.kept) != 0 {
		t.Errorf("%d, %d left", len(n.at), len(n.kept))
	}
}

// TestSweep: of what is kept only the dead go, and only when a name was removed.
func TestSweep(t *testing.T) {
	ctx := vfsctx.Background()
	n := names{at: map[*vfs.Dentry]int{}, max: 8, ctx: ctx}
	var v vfs.VirtualFilesystem
	if err := v.Init(ctx); err != nil {
		t.Fatal(err)
	}
	live, dead := &countedDentry{}, &countedDentry{}
	for _, d := range []*countedDentry{live, dead} {
		d.vfsd.Init(d)
		n.keep(ctx, &d.vfsd)
	}
	v.InvalidateDentry(ctx, &dead.vfsd)
	now := time.Now()
	for _, x := range []struct {
		removed bool
		at      time.Time
		left    int
	}{{false, now, 1}, {true, now, 0}} {
		n.removed = x.removed
		n.sweep(x.at)
		if live.refs != 1 || dead.refs != x.left {
			t.Errorf("removed %v: %d of the live, %d of the dead", x.removed, live.refs, dead.refs)
		}
	}
	late := &countedDentry{}
	late.vfsd.Init(late)
	v.InvalidateDentry(ctx, &late.vfsd)
	if n.keep(ctx, &late.vfsd); late.refs != 0 {
		t.Error("what was dead before it was kept is kept")
	}
}

// TestDeletedIsFree: what was looked up is kept, and its blocks are free
// nevertheless as soon as it has no name: by unlink, by a rename over it, by a
// rename that another thread's gets in the way of, and with its directory.
func TestDeletedIsFree(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	m, _ := makeTraced(t, func(s *bottle.Spec) { s.Limits.Disk, s.Limits.FileSize = 64<<20, 40<<20 })
	if out, st := m.run("/usr/bin/python3", "-c", `
import os, threading
big = b"x" * (1 << 20)
def fill(path):
    with open(path, "wb") as f:
        for _ in range(30): f.write(big)
    os.stat(path); os.lstat(path); os.access(path, os.R_OK)
for i in range(4):
    fill("a"); os.unlink("a")
for i in range(4):
    fill("b"); open("c", "w").close(); os.stat("c"); os.rename("c", "b")
for i in range(4):
    os.mkdir("d"); fill("d/e"); os.unlink("d/e"); os.rmdir("d")
for i in range(30):
    with open("x", "wb") as f: f.write(big * 8)
    os.stat("x")
    open("y", "w").close(); open("z", "w").close(); os.stat("y"); os.stat("z")
    ts = [threading.Thread(target=os.rename, args=(n, "x")) for n in "yz"]
    for t in ts: t.start()
    for t in ts: t.join()
    os.unlink("x")
f = open("held", "w+b", buffering=0)
f.write(big); os.stat("held"); os.unlink("held"); f.write(big); f.seek(0)
assert len(f.read(4 << 20)) == 2 << 20
print("done")
`); st.ExitCode() != 0 || !strings.Contains(out, "done") {
		t.Errorf("%v: %s", st, out)
	}
}

// TestHostInodes: a file of the host's has the host's number by every call that
// tells one, as long as it is the host's; what the bottle made has another; and
// files of two devices are never one.
func TestHostInodes(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	m, r := makeTraced(t, seed(t, map[string]string{"d/real": "x", "copied": "c"}), func(s *bottle.Spec) {
		if err := os.Link(filepath.Join(s.Workspace.Source, "d/real"), filepath.Join(s.Workspace.Source, "hard")); err != nil {
			t.Fatal(err)
		}
	})
	ino := func(path string) (n, dev uint64) {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino, uint64(st.Dev)
	}
	ws := m.spec.Workspace.Source
	real, dev := ino(filepath.Join(ws, "d/real"))
	copied, _ := ino(filepath.Join(ws, "copied"))
	program, sysdev := ino("/usr/bin/env")
	out, st := m.run("/usr/bin/python3", "-c", fmt.Sprintf(`
import os
def all(path):
    fd = os.open(path, os.O_RDONLY)
    sts = [os.stat(path), os.lstat(path), os.fstat(fd), os.stat(os.path.basename(path), dir_fd=os.open(os.path.dirname(path) or ".", 0))]
    ids = {(s.st_dev, s.st_ino) for s in sts}
    assert len(ids) == 1, (path, ids)
    os.close(fd)
    return ids.pop()
fd = os.open("d/real", os.O_RDONLY)
before = os.fstat(fd)
real, hard, program = all("d/real"), all("hard"), all("/usr/bin/env")
assert (before.st_dev, before.st_ino) == real
assert real[1] == %d and hard == real, (real, hard)
assert program[1] == %d, program
assert (program[0] == real[0]) == %s, (program, real)
c = all("copied")
assert c[1] == %d, c
open("copied", "a").write("more")
assert all("copied") != c
open("new", "w").close()
assert all("new") not in (real, c, program)
assert all("new")[0] != real[0]
assert os.stat("d").st_dev == os.stat(".").st_dev
print("done")
`, real, program, map[bool]string{true: "True", false: "False"}[dev == sysdev], copied))
	if st.ExitCode() != 0 || !strings.Contains(out, "done") {
		t.Errorf("%v: %s", st, out)
	}
	r.all(t, m.b)
}

// TestGitTrustsItsIndex: the first status in a bottle reads no file that git on
// the host has noted. A file that was changed is read.
func TestGitTrustsItsIndex(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("SKIPPED: root's files belong to an id of their own inside; an ordinary user's run has this")
	}
	m, r := makeTraced(t, func(s *bottle.Spec) {
		seedRepository(t, s.Workspace.Source)
		// git reads a file that is as young as the index in any case.
		time.Sleep(1100 * time.Millisecond)
		cmd := exec.Command("git", "update-index", "--force-write-index")
		cmd.Dir = s.Workspace.Source
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git: %v: %s", err, out)
		}
		if err := os.WriteFile(filepath.Join(s.Workspace.Source, "d1/e1/1"), []byte("y"), 0o644); err != nil {
			t.Fatal(err)
		}
	})
	ws := m.spec.Workspace.Target
	if out, st := m.run("/usr/bin/git", "--no-optional-locks", "status", "--porcelain"); st.ExitCode() != 0 || strings.TrimSpace(out) != "M d1/e1/1" {
		t.Errorf("%v: %q", st, out)
	}
	read := map[string]bool{}
	for _, f := range r.all(t, m.b) {
		if f.Op == trace.Open && f.Errno == 0 && strings.HasPrefix(f.Path, ws+"/d") && filepath.Ext(f.Path) == "" {
			if fi, err := os.Stat(filepath.Join(m.spec.Workspace.Source, strings.TrimPrefix(f.Path, ws))); err == nil && fi.Mode().IsRegular() {
				read[strings.TrimPrefix(f.Path, ws+"/")] = true
			}
		}
	}
	if len(read) != 1 || !read["d1/e1/1"] {
		t.Errorf("git read %d files: %v", len(read), read)
	}
}
