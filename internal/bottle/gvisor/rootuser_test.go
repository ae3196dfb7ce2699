package gvisor

import (
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
		if err == nil {
			err = ownByUser(f, path, spec)
		}
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil || [2]uint32{st.Uid, st.Gid} != want {
			t.Errorf("%s belongs to %d:%d, not %v; %v", path, st.Uid, st.Gid, want, err)
		}
		f.Close()
	}
}
