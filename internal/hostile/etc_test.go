package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/testenv"
)

// TestS1EditedSettings: a credential that somebody wrote into a package's configuration
// file does not enter. The same file as shipped does, and so does another one beside it.
func TestS1EditedSettings(t *testing.T) {
	testenv.Root(t)
	testenv.Need(t, "dpkg-query", "Debian or Ubuntu")
	mine, err1 := os.Readlink("/proc/self/ns/mnt")
	others, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid()))
	if err1 != nil || err2 != nil || mine == others { // see testenv.OwnMounts
		testenv.Missing(t, "a mount namespace of its own", "a system where root may make one")
	}
	const settings, other, secret = "/etc/debconf.conf", "/etc/pam.conf", "password = hunter2-of-this-machine"
	shipped, err := os.ReadFile(settings)
	if err != nil {
		t.Fatal(err)
	}
	look := func() string {
		return newHost(t).sh(nil, "cat "+settings+"; test -s "+other+" && echo another; grep -r hunter2-of /etc || true").out
	}
	if out := look(); out != string(shipped)+"another\n" {
		t.Fatalf("as shipped, the bottle has %.500q", out)
	}
	edited := filepath.Join(t.TempDir(), "edited")
	if err := os.WriteFile(edited, append(shipped, secret...), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(edited, settings, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(settings, unix.MNT_DETACH)
	if b, err := os.ReadFile(settings); err != nil || !strings.Contains(string(b), secret) {
		t.Fatalf("the machine has no edited file: %v", err)
	}
	if out := look(); out != "another\n" {
		t.Errorf("edited, the bottle has %.500q", out)
	}
}
