package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
)

// The posture is read from the live processes, not from the configuration: it
// reveals a changed default upstream, a kernel without a feature or a bug of
// ours, and the bottle is refused before the workload's first instruction.

// rawPosture describes one of the shim's children as the shim reads it. The
// shim must read it because an ordinary user may not look into a process of an
// inner user namespace. The supervisor judges it.
type rawPosture struct {
	Role       string
	PID        int // in the shim's PID namespace
	HostPID    int
	UIDs       [4]int // real, effective, saved, file system; as the shim's namespace has them
	Seccomp    int
	NoNewPrivs int
	CapEff     uint64
	CapBnd     uint64
	CapPrm     uint64
	Namespaces map[string]string
	Root       fileID
	Mounts     []mountLine
	FDs        []string // readlink of each
}

// mountLine holds two fields of a line of /proc/PID/mountinfo: mount point
// (still escaped) and options.
type mountLine struct{ Point, Options string }

type fileID struct{ Dev, Ino uint64 }

var nsKinds = []string{"user", "mnt", "pid", "net", "ipc", "uts"}

// capsAllowed are the capabilities that the sandbox and the gofer may hold over
// their own user namespace: for file ownership and modes (gVisor's directfs),
// and for tracing the sandbox's own stubs.
const capsAllowed = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH |
	1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID | 1<<unix.CAP_SYS_PTRACE

// roleCaps adds capabilities for one role: the gofer chroots into the tree that
// it serves.
var roleCaps = map[string]uint64{"gofer": 1 << unix.CAP_SYS_CHROOT}

func readRaw(role string, pid int) (rawPosture, error) {
	r := rawPosture{Role: role, PID: pid, Namespaces: map[string]string{}}
	dir := "/proc/" + strconv.Itoa(pid)
	if err := r.readThreads(dir + "/task"); err != nil {
		return r, err
	}
	var err error
	for _, k := range nsKinds {
		if r.Namespaces[k], err = os.Readlink(dir + "/ns/" + k); err != nil {
			return r, err
		}
	}
	if r.Root, err = statID(dir + "/root"); err != nil {
		return r, err
	}
	mounts, err := os.ReadFile(dir + "/mountinfo")
	if err != nil {
		return r, err
	}
	for _, line := range strings.Split(strings.TrimSpace(string(mounts)), "\n") {
		if f := strings.Fields(line); len(f) > 5 {
			r.Mounts = append(r.Mounts, mountLine{f[4], f[5]})
		}
	}
	fds, err := os.ReadDir(dir + "/fd")
	if err != nil {
		return r, err
	}
	for _, e := range fds {
		to, err := os.Readlink(filepath.Join(dir, "fd", e.Name()))
		if os.IsNotExist(err) {
			continue // closed meanwhile
		}
		if err != nil {
			return r, err
		}
		r.FDs = append(r.FDs, to)
	}
	return r, nil
}

// readThreads combines the worst values of all threads: filters and
// capabilities are per thread.
func (r *rawPosture) readThreads(dir string) error {
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	seen := 0
	for _, task := range tasks {
		path := dir + "/" + task.Name() + "/status"
		status, err := os.ReadFile(path)
		if os.IsNotExist(err) || errors.Is(err, unix.ESRCH) {
			continue // ended meanwhile
		}
		if err != nil {
			return err
		}
		var one rawPosture
		if err := one.parseStatus(string(status)); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if seen++; seen == 1 {
			r.UIDs, r.Seccomp, r.NoNewPrivs = one.UIDs, one.Seccomp, one.NoNewPrivs
		}
		r.worsen(one)
	}
	if seen == 0 {
		return fmt.Errorf("%s: no thread", dir)
	}
	return nil
}

func (r *rawPosture) worsen(o rawPosture) {
	// 2 is a filter, 0 nothing, 1 the strict mode that nothing here uses.
	r.Seccomp = min(r.Seccomp, o.Seccomp)
	r.NoNewPrivs = min(r.NoNewPrivs, o.NoNewPrivs)
	r.CapEff |= o.CapEff
	r.CapPrm |= o.CapPrm
	r.CapBnd |= o.CapBnd
	if o.UIDs != r.UIDs {
		r.UIDs = [4]int{-1, -1, -1, -1} // no single user
	}
}

func statID(path string) (fileID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileID{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return fileID{uint64(st.Dev), st.Ino}, nil
}

func (r *rawPosture) parseStatus(s string) error {
	seen := 0
	for _, line := range strings.Split(s, "\n") {
		key, val, _ := strings.Cut(line, ":")
		f := strings.Fields(val)
		if len(f) == 0 {
			continue
		}
		var err error
		switch key {
		case "Uid":
			_, err = fmt.Sscan(val, &r.UIDs[0], &r.UIDs[1], &r.UIDs[2], &r.UIDs[3])
		case "Seccomp":
			r.Seccomp, err = strconv.Atoi(f[0])
		case "NoNewPrivs":
			r.NoNewPrivs, err = strconv.Atoi(f[0])
		case "CapEff":
			r.CapEff, err = strconv.ParseUint(f[0], 16, 64)
		case "CapPrm":
			r.CapPrm, err = strconv.ParseUint(f[0], 16, 64)
		case "CapBnd":
			r.CapBnd, err = strconv.ParseUint(f[0], 16, 64)
		default:
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		seen++
	}
	if seen != 6 {
		return fmt.Errorf("%d of 6 lines found", seen)
	}
	return nil
}

// ownPosture holds the supervisor's own values, for comparison.
type ownPosture struct {
	namespaces map[string]string
	root       fileID
}

func readOwn() (ownPosture, error) {
	o := ownPosture{namespaces: map[string]string{}}
	var err error
	for _, k := range nsKinds {
		if o.namespaces[k], err = os.Readlink("/proc/self/ns/" + k); err != nil {
			return o, err
		}
	}
	o.root, err = statID("/")
	return o, err
}

// judge returns an error if the process is not confined. writable are the
// targets that the plan lets the bottle write to.
func (o ownPosture) judge(r rawPosture, uid int, writable []string) error {
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
	for _, k := range nsKinds {
		if r.Namespaces[k] == "" || r.Namespaces[k] == o.namespaces[k] {
			return bad("shares carboy's %s namespace", k)
		}
	}
	if r.Root == o.root {
		return bad("its root is the host's")
	}
	for _, m := range r.Mounts {
		if err := judgeMount(r.Role, m, writable); err != nil {
			return bad("%v", err)
		}
	}
	for _, fd := range r.FDs {
		if why := badFD(fd); why != "" {
			return bad("holds %s: %s", fd, why)
		}
	}
	return nil
}

// sandboxMounts are the mounts of the sentry's own empty root.
var sandboxMounts = map[string]bool{"/": true, "/proc": true, "/proc/sandbox-proc": true}

// judgeMount returns an error for a mount that must not be there: in the
// sandbox, any outside its empty root; in the gofer, one that is writable
// though the plan does not say so, or that honours set-user-id or devices.
func judgeMount(role string, m mountLine, writable []string) error {
	point := unescapeMount(m.Point)
	options := strings.Split(m.Options, ",")
	if role == "sandbox" {
		if !sandboxMounts[point] {
			return fmt.Errorf("has a mount at %q", point)
		}
		return nil
	}
	for _, want := range []string{"nosuid", "nodev"} {
		if !slices.Contains(options, want) {
			return fmt.Errorf("its mount at %q is not %s", point, want)
		}
	}
	if slices.Contains(options, "ro") {
		return nil
	}
	for _, w := range writable {
		if point == w || strings.HasPrefix(point, w+"/") {
			return nil
		}
	}
	return fmt.Errorf("can write to its mount at %q", point)
}

// unescapeMount undoes the octal escapes of mountinfo (proc_pid_mountinfo(5)).
func unescapeMount(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
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

func kindOfFD(link string) string {
	switch {
	case strings.HasPrefix(link, "socket:"):
		return "socket"
	case strings.HasPrefix(link, "pipe:"):
		return "pipe"
	case strings.HasPrefix(link, "anon_inode:"):
		return strings.Trim(strings.TrimPrefix(link, "anon_inode:"), "[]")
	case strings.HasPrefix(link, "/memfd:"):
		return "memfd"
	case strings.HasPrefix(link, "/dev/pts/"):
		return "terminal"
	case link == "/dev/null":
		return "null"
	}
	return "file"
}

// readPosture judges the shim's report and returns the record of it.
func readPosture(r createReply, uid int, writable []string) (bottle.Posture, error) {
	p := bottle.Posture{Isolation: Backend{}.Isolation(), Backend: name, Build: Build(), Trace: r.Trace}
	if r.Trace {
		p.Facts = bottle.FactsKernel
	}
	own, err := readOwn()
	if err != nil {
		return p, fmt.Errorf("posture: %w", err)
	}
	roles := map[string]bool{}
	for _, raw := range r.Processes {
		if err := own.judge(raw, uid, writable); err != nil {
			return p, err
		}
		roles[raw.Role] = true
		p.Processes = append(p.Processes, own.record(raw))
	}
	for _, role := range []string{"sandbox", "gofer"} {
		if !roles[role] {
			return p, &bottle.PostureError{Role: role, Reason: "was not seen"}
		}
	}
	return p, nil
}

func (o ownPosture) record(r rawPosture) bottle.ProcPosture {
	out := bottle.ProcPosture{
		Role: r.Role, PID: r.PID, UID: r.UIDs[1], Seccomp: r.Seccomp, NoNewPrivs: r.NoNewPrivs == 1,
		CapEff: r.CapEff, CapBnd: r.CapBnd, Mounts: len(r.Mounts), Chrooted: r.Root != o.root, FDs: map[string]int{},
	}
	for _, k := range nsKinds {
		if r.Namespaces[k] != o.namespaces[k] {
			out.Namespaces = append(out.Namespaces, k)
		}
	}
	slices.Sort(out.Namespaces)
	for _, fd := range r.FDs {
		out.FDs[kindOfFD(fd)]++
	}
	return out
}
