package gvisor

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/testenv"
)

// Both ways of keeping a user namespace alive make one in which root is
// somebody else, and leave no process.
func TestIDMap(t *testing.T) {
	testenv.Root(t) // who alone maps other ids than its own
	sleeper, err := sleeperFile()
	if err != nil {
		t.Fatal(err)
	}
	defer sleeper.Close()
	for name, program := range map[string]string{
		"a file without a name": fmt.Sprintf("/proc/self/fd/%d", sleeper.Fd()),
		"this program":          "/proc/self/exe",
	} {
		ns, release, err := idmapBy(program, 65534, 65533)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, "/etc", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		release()
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Uid != 65534 || st.Gid != 65533 {
			t.Errorf("%s: root's directory belongs to %d:%d, %v", name, st.Uid, st.Gid, err)
		}
		unix.Close(fd)
	}
	if ns, release, err := idmapBy("/nonexistent", 65534, 65534); err == nil {
		release()
		t.Errorf("no program, but a namespace: %v", ns)
	}
}
