package gvisor

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/posture"
)

// The posture is read from the live processes, not from the configuration: it
// reveals a changed default upstream, a kernel without a feature or a bug of
// ours, and the bottle is refused before the workload's first instruction.

// rawPosture describes one of the shim's children as the shim reads it. The
// shim must read it because an ordinary user may not look into a process of an
// inner user namespace. The supervisor judges it.
type rawPosture struct {
	Role string
	posture.Process
}

var nsKinds = []string{"user", "mnt", "pid", "net", "ipc", "uts"}

// capsAllowed are the capabilities that the sandbox and the gofer may hold over
// their own user namespace: for file ownership and modes (gVisor's directfs),
// and for tracing the sandbox's own stubs.
const capsAllowed = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH |
	1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID | 1<<unix.CAP_SYS_PTRACE

// roleCaps adds capabilities for one role: the gofer chroots into the tree that
// it serves.
var roleCaps = map[string]uint64{"gofer": 1 << unix.CAP_SYS_CHROOT}

// judge returns an error if the process is not confined. writable are the
// targets that the plan lets the bottle write to.
func judge(r *rawPosture, here posture.Place, uid int, writable []string) error {
	bad := func(format string, a ...any) error {
		return &bottle.PostureError{Role: r.Role, Reason: fmt.Sprintf(format, a...)}
	}
	if r.Seccomp != 2 {
		return bad("seccomp mode is %d, not 2 (filter)", r.Seccomp)
	}
	if r.NoNewPrivs != 1 {
		return bad("no_new_privs is not set")
	}
	for _, u := range r.UIDs {
		if u != uid {
			return bad("runs as uid %d, not %d", u, uid)
		}
	}
	for _, c := range []struct {
		name string
		set  uint64
	}{{"effective", r.CapEff}, {"permitted", r.CapPrm}, {"bounding", r.CapBnd}} {
		if extra := c.set &^ (capsAllowed | roleCaps[r.Role]); extra != 0 {
			return bad("%s capabilities %#x are too many", c.name, extra)
		}
	}
	if k := r.Shares(here, nsKinds); k != "" {
		return bad("shares carboy's %s namespace", k)
	}
	if r.Root == here.Root {
		return bad("its root is the host's")
	}
	for _, m := range r.Mounts {
		if err := judgeMount(r.Role, m, writable); err != nil {
			return bad("%v", err)
		}
	}
	for _, fd := range r.FDs {
		if why := badFD(fd.Link); why != "" {
			return bad("holds %s: %s", fd.Link, why)
		}
	}
	return nil
}

// sandboxMounts are the mounts of the sentry's own empty root.
var sandboxMounts = map[string]bool{"/": true, "/proc": true, "/proc/sandbox-proc": true}

// judgeMount returns an error for a mount that must not be there: in the
// sandbox, any outside its empty root; in the gofer, one that is writable
// though the plan does not say so, or that honours set-user-id or devices.
func judgeMount(role string, m posture.Mount, writable []string) error {
	options := strings.Split(m.Options, ",")
	if role == "sandbox" {
		if !sandboxMounts[m.Point] {
			return fmt.Errorf("has a mount at %q", m.Point)
		}
		return nil
	}
	for _, want := range []string{"nosuid", "nodev"} {
		if !slices.Contains(options, want) {
			return fmt.Errorf("its mount at %q is not %s", m.Point, want)
		}
	}
	if slices.Contains(options, "ro") {
		return nil
	}
	for _, w := range writable {
		if m.Point == w || strings.HasPrefix(m.Point, w+"/") {
			return nil
		}
	}
	return fmt.Errorf("can write to its mount at %q", m.Point)
}

// badFD says why a descriptor must not be open in the sandbox or the gofer; ""
// means that it may. Directories are those of the small root; memfds, sockets,
// pipes and event descriptors are the process's own.
func badFD(link string) string {
	if strings.HasPrefix(link, "/dev/") && link != "/dev/null" && !strings.HasPrefix(link, "/dev/pts/") {
		return "a device"
	}
	if strings.HasPrefix(link, "/proc/") && !procAllowed(link) {
		return "a file of the host's /proc"
	}
	return ""
}

// procAllowed reports whether gVisor keeps this file of /proc open: the gofer
// reopens its own descriptors there.
func procAllowed(link string) bool {
	rest := strings.TrimPrefix(link, "/proc/")
	_, rest, _ = strings.Cut(rest, "/")
	return rest == "fd"
}

// readPosture judges the shim's report and returns the record of it.
func readPosture(r createReply, uid int, writable []string) (bottle.Posture, error) {
	p := bottle.Posture{Isolation: Backend{}.Isolation(), Backend: name, Build: Build(), Trace: r.Trace}
	if r.Trace {
		p.Facts = bottle.FactsKernel
	}
	here, err := posture.Here(nsKinds)
	if err != nil {
		return p, fmt.Errorf("posture: %w", err)
	}
	roles := map[string]bool{}
	for _, raw := range r.Processes {
		if err := judge(&raw, here, uid, writable); err != nil {
			return p, err
		}
		roles[raw.Role] = true
		p.Processes = append(p.Processes, raw.Record(raw.Role, here))
	}
	for _, role := range []string{"sandbox", "gofer"} {
		if !roles[role] {
			return p, &bottle.PostureError{Role: role, Reason: "was not seen"}
		}
	}
	return p, nil
}
