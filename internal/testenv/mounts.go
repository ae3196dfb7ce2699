package testenv

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// OwnMounts gives the test's process a mount namespace of its own, so that a
// test that compares the machine's mounts does not see those of other tests. A
// TestMain calls it after its inner processes' mains. Only root may have one:
// for another user, and for a process that go test did not start, OwnMounts
// does nothing. The process executes itself again, for a namespace is a
// thread's.
func OwnMounts() {
	if os.Geteuid() != 0 || len(os.Args) < 2 || !strings.HasPrefix(os.Args[1], "-test.") {
		return
	}
	mine, err1 := os.Readlink("/proc/self/ns/mnt")
	others, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid()))
	if errors.Join(err1, err2) != nil || mine != others {
		return
	}
	runtime.LockOSThread()
	err := unix.Unshare(unix.CLONE_NEWNS)
	if errors.Is(err, unix.EPERM) { // root of a container
		runtime.UnlockOSThread()
		return
	}
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	if err == nil {
		err = unix.Exec("/proc/self/exe", os.Args, os.Environ())
	}
	fmt.Fprintln(os.Stderr, "testenv: a mount namespace of its own:", err)
	os.Exit(1)
}

// Mounts returns the mounts of this process's namespace, as proc_pid_mountinfo(5)
// has them.
func Mounts(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
