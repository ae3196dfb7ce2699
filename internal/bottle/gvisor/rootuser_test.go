package gvisor

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/testenv"
)

// TestIDMap: a directory of root's is shown as the bottle's user's, one of another is not.
func TestIDMap(t *testing.T) {
	testenv.Root(t) // who alone maps other ids than its own
	spec := &bottle.Spec{HostUID: 65534, HostGID: 65533}
	for path, want := range map[string][2]uint32{"/etc": {65534, 65533}, t.TempDir(): {12345, 12346}} {
		if path != "/etc" {
			if err := unix.Chown(path, 12345, 12346); err != nil {
				t.Fatal(err)
			}
		}
		f, err := openTree(path)
		roots := false
		if err == nil {
			roots, err = ownByUser(f, path, spec)
		}
		if err != nil || roots != (path == "/etc") {
			t.Fatal(path, roots, err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil || [2]uint32{st.Uid, st.Gid} != want {
			t.Errorf("%s belongs to %d:%d, not %v; %v", path, st.Uid, st.Gid, want, err)
		}
		f.Close()
	}
}

// TestRefuseSetID: in a directory of root's that a bottle may write to, its files are root's on
// the host, and no way to make one gives it a set-user-id or set-group-id bit.
func TestRefuseSetID(t *testing.T) {
	testenv.Root(t)
	testenv.Need(t, "python3", "apt-get install python3")
	for _, roots := range []bool{true, false} {
		m, _ := makeTraced(t, func(s *bottle.Spec) {
			s.Workspace.Access = bottle.AccessReadWrite
			if !roots { // the user's own directory: the control
				if err := os.Chown(s.Workspace.Source, int(s.HostUID), int(s.HostGID)); err != nil {
					t.Fatal(err)
				}
			}
		})
		m.run("/usr/bin/python3", "-c", `
import os, socket
def attempt(f):
    try: f()
    except OSError: pass
for n in "chmod", "fchmod", "fd": open(n, "w").close()
os.chmod("chmod", 0o711)
attempt(lambda: os.chmod("chmod", 0o6711))
attempt(lambda: os.fchmod(os.open("fchmod", os.O_RDWR), 0o6711))
attempt(lambda: os.chmod("/proc/self/fd/%d" % os.open("fd", os.O_RDWR), 0o6711))
attempt(lambda: os.open("open", os.O_CREAT|os.O_WRONLY, 0o6711))
attempt(lambda: os.mknod("mknod", 0o106711))
attempt(lambda: os.mkdir("dir", 0o2711))
attempt(lambda: os.chmod("dir", 0o2711))
attempt(lambda: socket.socket(socket.AF_UNIX).bind("socket"))
attempt(lambda: os.chmod("socket", 0o6711))
`)
		left, set := 0, 0
		err := filepath.WalkDir(m.spec.Workspace.Source, func(path string, d os.DirEntry, err error) error {
			var st unix.Stat_t
			if err == nil {
				err = unix.Lstat(path, &st)
			}
			if st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
				set++
				if roots {
					t.Errorf("%s has mode %o and belongs to %d", path, st.Mode, st.Uid)
				}
			}
			if filepath.Base(path) == "chmod" && (st.Uid == 0) == roots && st.Mode&0o777 == 0o711 {
				left++
			}
			return err
		})
		if err != nil || left != 1 || !roots && set == 0 {
			t.Errorf("root's %v: %d files, %d with a bit, %v: nothing was tried", roots, left, set, err)
		}
	}
}
