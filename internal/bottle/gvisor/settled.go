package gvisor

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// settled spares gVisor's sandbox and gofer a second start of this program.
//
// If its parent is not root, gVisor waits until somebody has written the map of
// the new user namespace, takes its user id in one thread, and then executes
// itself again, since the other threads still have the old id. In a bottle the
// map exists before the first execution (it has exactly one id, the parent's
// own, and Go writes it between fork and exec), so all threads have the right
// ids already. Without the three flags gVisor proceeds as it does under root:
// it drops its capabilities in every thread, unmounts /proc itself instead of
// starting a helper for that, and installs its filters.
//
// If an id differs from the expected one, settled changes nothing. The result
// is read from every thread of the live processes (posture.go) before the
// command runs.
func settled(args []string, uid, gid int) (out []string, syncFD int) {
	syncFD = -1
	wantUID, wantGID := 0, 0
	for _, a := range args {
		name, val, ok := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if !ok || !strings.HasPrefix(a, "--") {
			out = append(out, a)
			continue
		}
		var to *int
		switch name {
		case "sync-userns-fd":
			to = &syncFD
		case "uid":
			to = &wantUID
		case "gid":
			to = &wantGID
		default:
			out = append(out, a)
			continue
		}
		n, err := strconv.Atoi(val)
		if err != nil {
			return args, -1
		}
		*to = n
	}
	if syncFD < 0 || uid != wantUID || gid != wantGID {
		return args, -1
	}
	return out, syncFD
}

// settle applies settled to this process.
func settle() {
	uid, euid, suid := unix.Getresuid()
	gid, egid, sgid := unix.Getresgid()
	if uid != euid || uid != suid || gid != egid || gid != sgid {
		return
	}
	args, fd := settled(os.Args, uid, gid)
	if fd < 0 {
		return
	}
	os.Args = args
	unix.Close(fd) // nobody writes to it: closing it is the message
}
