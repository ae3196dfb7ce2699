package microvm

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
	"github.com/carboy/carboy/internal/guest/proto"
	"github.com/carboy/carboy/internal/safetext"
)

// role is QEMU's in the posture.
const role = "monitor"

// ownNamespaces must all differ from carboy's.
var ownNamespaces = []string{"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"}

// checkHello compares what the guest program says of its machine with the plan: its
// nonce was checked already. It is the machine's word alone, but before the workload's
// first instruction nobody hostile is in it.
func checkHello(h proto.Hello, spec *bottle.Spec) error {
	bad := func(format string, a ...any) error {
		return &bottle.PostureError{Role: "machine", Reason: fmt.Sprintf(format, a...)}
	}
	if h.PID != 1 || h.UID != 0 {
		return bad("the guest program is process %d of user %d, not the first process", h.PID, h.UID)
	}
	var macs []string
	for _, n := range h.NICs {
		macs = append(macs, safetext.String(n.MAC, 40))
	}
	var want []string
	if spec.Wire != nil {
		want = []string{spec.Net.BottleMAC.String()}
	}
	if !slices.Equal(macs, want) {
		return bad("it has the network cards %q, not %q%s", macs, want, notes(h))
	}
	return nil
}

// notes returns the guest program's account of its start, for people.
func notes(h proto.Hello) string {
	if len(h.Notes) == 0 {
		return ""
	}
	return " (" + safetext.String(strings.Join(h.Notes, "; "), 1000) + ")"
}

func withNotes(err error, h proto.Hello) error {
	if n := notes(h); n != "" {
		return fmt.Errorf("%w%s", err, n)
	}
	return err
}

// process holds the host kernel's account of a live process.
type process struct {
	pid        int
	uids       [4]int
	seccomp    int
	noNewPrivs int
	capEff     uint64
	capPrm     uint64
	capBnd     uint64
	namespaces map[string]string
	rooted     bool // its root is not the host's
	mounts     []string
	fds        []openFile
}

type openFile struct {
	link string
	dev  uint64
	ino  uint64
}

// readPosture reads QEMU's entry in /proc and judges it.
func readPosture(pid int, p *prepared) (bottle.Posture, error) {
	out := bottle.Posture{Isolation: Backend{}.Isolation(), Backend: name, Build: Backend{}.Build()}
	proc, err := readProcess(pid)
	if err != nil {
		return out, fmt.Errorf("read QEMU's posture: %w", err)
	}
	own := map[string]string{}
	for _, k := range ownNamespaces {
		if own[k], err = os.Readlink("/proc/self/ns/" + k); err != nil {
			return out, err
		}
	}
	uid := os.Geteuid()
	if uid == 0 {
		uid = p.m.uid
	}
	rec, err := judge(proc, own, uid, p.m)
	if err != nil {
		return out, err
	}
	out.Processes = []bottle.ProcPosture{rec}
	return out, nil
}

// judge returns the record of a process that is confined as it must be.
func judge(r process, own map[string]string, uid int, m *machine) (bottle.ProcPosture, error) {
	bad := func(format string, a ...any) (bottle.ProcPosture, error) {
		return bottle.ProcPosture{}, &bottle.PostureError{Role: role, Reason: fmt.Sprintf(format, a...)}
	}
	out := bottle.ProcPosture{
		Role: role, PID: r.pid, UID: r.uids[1], Seccomp: r.seccomp, NoNewPrivs: r.noNewPrivs == 1,
		CapEff: r.capEff, CapBnd: r.capBnd, Mounts: len(r.mounts), Chrooted: r.rooted, FDs: map[string]int{},
	}
	if r.seccomp != 2 || r.noNewPrivs != 1 {
		return bad("seccomp mode %d and no_new_privs %d, not 2 and 1", r.seccomp, r.noNewPrivs)
	}
	for _, u := range r.uids {
		if u != uid {
			return bad("runs as uid %d, not %d", u, uid)
		}
	}
	if caps := r.capEff | r.capPrm | r.capBnd; caps != 0 {
		return bad("has capabilities %#x", caps)
	}
	for _, k := range ownNamespaces {
		if r.namespaces[k] == "" || r.namespaces[k] == own[k] {
			return bad("shares carboy's %s namespace", k)
		}
		out.Namespaces = append(out.Namespaces, k)
	}
	if !r.rooted {
		return bad("its root is the host's")
	}
	for _, line := range r.mounts {
		if why := badMount(line, m); why != "" {
			return bad("%s", why)
		}
	}
	for _, f := range r.fds {
		kind := kindOf(f, m)
		if kind == "" {
			return bad("holds %s", f.link)
		}
		out.FDs[kind]++
	}
	return out, nil
}

// badMount says why a line of mountinfo must not be: each mount but that of a device is
// read-only, and none has devices or set-id programs.
func badMount(line string, m *machine) string {
	f := strings.Fields(line)
	if len(f) < 6 {
		return fmt.Sprintf("its mounts can't be read: %.100q", line)
	}
	point, options := f[4], strings.Split(f[5], ",")
	if point == os.DevNull || point == "/dev/kvm" && !m.emulated {
		return ""
	}
	for _, o := range []string{"ro", "nosuid", "nodev"} {
		if !slices.Contains(options, o) {
			return fmt.Sprintf("its mount at %s is not %s", point, o)
		}
	}
	return ""
}

// kindOf returns the kind of a descriptor; empty: QEMU must not hold it.
func kindOf(f openFile, m *machine) string {
	for _, d := range m.disks {
		var st unix.Stat_t
		if unix.Fstat(int(d.file.Fd()), &st) == nil && uint64(st.Dev) == f.dev && st.Ino == f.ino {
			return "disk"
		}
	}
	kind, _, _ := strings.Cut(f.link, ":")
	switch {
	case kind == "socket" || kind == "pipe":
		return kind
	case f.link == os.DevNull || f.link == "/null":
		return "null"
	case f.link == "/dev/kvm" && !m.emulated:
		return "kvm"
	case kind == "anon_inode":
		inner := strings.Trim(strings.TrimPrefix(f.link, "anon_inode:"), "[]")
		if inner, _, _ := strings.Cut(inner, ":"); slices.Contains([]string{"eventfd", "eventpoll", "signalfd", "timerfd", "io_uring"}, inner) {
			return inner
		}
		if strings.HasPrefix(inner, "kvm-") && !m.emulated {
			return "kvm"
		}
	case strings.HasPrefix(f.link, "/memfd:"):
		return "memfd"
	}
	return ""
}

func readProcess(pid int) (process, error) {
	r := process{pid: pid, namespaces: map[string]string{}}
	dir := fmt.Sprintf("/proc/%d", pid)
	if err := r.readThreads(dir + "/task"); err != nil {
		return r, err
	}
	for _, k := range ownNamespaces {
		to, err := os.Readlink(dir + "/ns/" + k)
		if err != nil {
			return r, err
		}
		r.namespaces[k] = to
	}
	var inside, host unix.Stat_t
	if err := errors.Join(unix.Stat(dir+"/root", &inside), unix.Stat("/", &host)); err != nil {
		return r, err
	}
	r.rooted = inside.Dev != host.Dev || inside.Ino != host.Ino
	mounts, err := os.ReadFile(dir + "/mountinfo")
	if err != nil {
		return r, err
	}
	r.mounts = strings.Split(strings.TrimSpace(string(mounts)), "\n")
	fds, err := os.ReadDir(dir + "/fd")
	if err != nil {
		return r, err
	}
	for _, e := range fds {
		path := filepath.Join(dir, "fd", e.Name())
		to, err := os.Readlink(path)
		var st unix.Stat_t
		if err == nil {
			err = unix.Stat(path, &st)
		}
		if errors.Is(err, os.ErrNotExist) {
			continue // closed meanwhile
		}
		if err != nil {
			return r, err
		}
		r.fds = append(r.fds, openFile{to, uint64(st.Dev), st.Ino})
	}
	return r, nil
}

// readThreads combines the worst values of all threads: filters and capabilities are per
// thread.
func (r *process) readThreads(dir string) error {
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	seen := 0
	for _, task := range tasks {
		status, err := os.ReadFile(filepath.Join(dir, task.Name(), "status"))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // ended meanwhile
		}
		if err != nil {
			return err
		}
		one, err := parseStatus(string(status))
		if err != nil {
			return fmt.Errorf("%s/%s: %w", dir, task.Name(), err)
		}
		if seen++; seen == 1 {
			r.uids, r.seccomp, r.noNewPrivs = one.uids, one.seccomp, one.noNewPrivs
		}
		r.seccomp, r.noNewPrivs = min(r.seccomp, one.seccomp), min(r.noNewPrivs, one.noNewPrivs)
		r.capEff, r.capPrm, r.capBnd = r.capEff|one.capEff, r.capPrm|one.capPrm, r.capBnd|one.capBnd
		if r.uids != one.uids {
			r.uids = [4]int{-1, -1, -1, -1} // no single user
		}
	}
	if seen == 0 {
		return fmt.Errorf("%s: no thread", dir)
	}
	return nil
}

func parseStatus(text string) (r process, err error) {
	seen := 0
	for line := range strings.Lines(text) {
		key, v, _ := strings.Cut(strings.TrimSpace(line), ":")
		v = strings.TrimSpace(v)
		var e error
		switch key {
		case "Uid":
			_, e = fmt.Sscan(v, &r.uids[0], &r.uids[1], &r.uids[2], &r.uids[3])
		case "Seccomp":
			r.seccomp, e = strconv.Atoi(v)
		case "NoNewPrivs":
			r.noNewPrivs, e = strconv.Atoi(v)
		case "CapEff":
			r.capEff, e = strconv.ParseUint(v, 16, 64)
		case "CapPrm":
			r.capPrm, e = strconv.ParseUint(v, 16, 64)
		case "CapBnd":
			r.capBnd, e = strconv.ParseUint(v, 16, 64)
		default:
			continue
		}
		if e != nil {
			return r, fmt.Errorf("%s: %w", key, e)
		}
		seen++
	}
	if seen != 6 {
		return r, fmt.Errorf("%d of 6 lines found", seen)
	}
	return r, nil
}
