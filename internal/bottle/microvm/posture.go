package microvm

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/posture"
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

// readPosture reads QEMU's entry in /proc and judges it.
func readPosture(pid int, p *prepared) (bottle.Posture, error) {
	out := bottle.Posture{Isolation: Backend{}.Isolation(), Backend: name, Build: Backend{}.Build()}
	proc, err := posture.Read(pid, ownNamespaces)
	if err != nil {
		return out, fmt.Errorf("read QEMU's posture: %w", err)
	}
	here, err := posture.Here(ownNamespaces)
	if err != nil {
		return out, err
	}
	uid := os.Geteuid()
	if uid == 0 {
		uid = p.m.uid
	}
	rec, err := judge(&proc, here, uid, p.m)
	if err != nil {
		return out, err
	}
	out.Processes = []bottle.ProcPosture{rec}
	return out, nil
}

// judge returns the record of a process that is confined as it must be.
func judge(r *posture.Process, here posture.Place, uid int, m *machine) (bottle.ProcPosture, error) {
	bad := func(format string, a ...any) (bottle.ProcPosture, error) {
		return bottle.ProcPosture{}, &bottle.PostureError{Role: role, Reason: fmt.Sprintf(format, a...)}
	}
	if r.Seccomp != 2 || r.NoNewPrivs != 1 {
		return bad("seccomp mode %d and no_new_privs %d, not 2 and 1", r.Seccomp, r.NoNewPrivs)
	}
	for _, u := range r.UIDs {
		if u != uid {
			return bad("runs as uid %d, not %d", u, uid)
		}
	}
	if caps := r.CapEff | r.CapPrm | r.CapBnd; caps != 0 {
		return bad("has capabilities %#x", caps)
	}
	if k := r.Shares(here, ownNamespaces); k != "" {
		return bad("shares carboy's %s namespace", k)
	}
	if r.Root == here.Root {
		return bad("its root is the host's")
	}
	for _, mount := range r.Mounts {
		if why := badMount(mount, m); why != "" {
			return bad("%s", why)
		}
	}
	out := r.Record(role, here)
	out.FDs = map[string]int{}
	for _, f := range r.FDs {
		kind := kindOf(f, m)
		if kind == "" {
			return bad("holds %s", f.Link)
		}
		out.FDs[kind]++
	}
	return out, nil
}

// badMount says why a mount must not be: each mount but that of a device is
// read-only, and none has devices or set-id programs.
func badMount(x posture.Mount, m *machine) string {
	options := strings.Split(x.Options, ",")
	if x.Point == os.DevNull || x.Point == "/dev/kvm" && !m.emulated {
		return ""
	}
	for _, o := range []string{"ro", "nosuid", "nodev"} {
		if !slices.Contains(options, o) {
			return fmt.Sprintf("its mount at %s is not %s", x.Point, o)
		}
	}
	return ""
}

// kindOf returns the kind of a descriptor; empty: QEMU must not hold it.
func kindOf(f posture.FD, m *machine) string {
	for _, d := range m.disks {
		var st unix.Stat_t
		if unix.Fstat(int(d.file.Fd()), &st) == nil && f.ID == (posture.ID{Dev: uint64(st.Dev), Ino: st.Ino}) {
			return "disk"
		}
	}
	kind, _, _ := strings.Cut(f.Link, ":")
	switch {
	case kind == "socket" || kind == "pipe":
		return kind
	case f.Link == os.DevNull || f.Link == "/null":
		return "null"
	case f.Link == "/dev/kvm" && !m.emulated:
		return "kvm"
	case kind == "anon_inode":
		inner := strings.Trim(strings.TrimPrefix(f.Link, "anon_inode:"), "[]")
		if inner, _, _ := strings.Cut(inner, ":"); slices.Contains([]string{"eventfd", "eventpoll", "signalfd", "timerfd", "io_uring"}, inner) {
			return inner
		}
		if strings.HasPrefix(inner, "kvm-") && !m.emulated {
			return "kvm"
		}
	case strings.HasPrefix(f.Link, "/memfd:"):
		return "memfd"
	}
	return ""
}
