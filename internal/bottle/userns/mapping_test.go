package userns

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/guest/program"
	"github.com/carboy/carboy/internal/testenv"
)

func TestMain(m *testing.M) {
	if os.Args[0] == HoldName {
		for {
			_ = unix.Pause()
		}
	}
	os.Exit(m.Run())
}

// TestMapping: both ways of keeping a user namespace alive make one in which the ids on
// disk are others, and leave no process.
func TestMapping(t *testing.T) {
	testenv.Root(t) // who alone maps other ids than its own
	sleeper, err := program.Binary()
	if err != nil {
		t.Fatal(err)
	}
	before := len(testenv.Descendants(t, os.Getpid()))
	for name, code := range map[string][]byte{"a file without a name": sleeper, "this program": nil} {
		ns, release, err := Mapping(code, Pair{Shown: [2]uint32{65534, 65533}})
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
	if ns, release, err := mapBy("/nonexistent", []Pair{{Shown: [2]uint32{65534, 65534}}}); err == nil {
		release()
		t.Errorf("no program, but a namespace: %v", ns)
	}
	if n := len(testenv.Descendants(t, os.Getpid())); n != before {
		t.Errorf("%d processes are left", n-before)
	}
}
