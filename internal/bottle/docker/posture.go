package docker

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

// namespaces are the kinds in which a container must not be where carboy is. A user
// namespace is not among them: Docker gives none.
var namespaces = []string{"ipc", "mnt", "net", "pid", "uts"}

// verify reads the container's first process as it is now, and refuses what is not as it
// must be. The process is the guest program, from which every command descends.
func (x *box) verify(spec *bottle.Spec) (bottle.Posture, error) {
	p, err := x.pid.posture()
	if err != nil {
		return bottle.Posture{}, err
	}
	refuse := func(format string, args ...any) (bottle.Posture, error) {
		return bottle.Posture{}, &bottle.PostureError{Role: p.Role, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case p.UID != int(spec.User.UID):
		return refuse("has the user id %d, not %d", p.UID, spec.User.UID)
	case p.Seccomp != 2:
		return refuse("has no seccomp filter")
	case !p.NoNewPrivs:
		return refuse("may gain privileges")
	case p.CapEff != 0 || p.CapBnd != 0:
		return refuse("has capabilities: %x, bounded by %x", p.CapEff, p.CapBnd)
	case !p.Chrooted:
		return refuse("has the host's root")
	}
	for _, kind := range namespaces {
		if !slices.Contains(p.Namespaces, kind) {
			return refuse("is in carboy's own %s namespace", kind)
		}
	}
	for kind := range p.FDs {
		if kind == "directory" || kind == "device" {
			return refuse("holds a %s", kind)
		}
	}
	if err := x.pid.checkCards(spec.Wire != nil); err != nil {
		return refuse("%v", err)
	}
	if h := x.client.Hello(); h.PID != 1 || h.UID != p.UID {
		return refuse("says that it is process %d of user %d", h.PID, h.UID)
	}
	return bottle.Posture{
		Isolation: bottle.IsolationContainer, Backend: name, Build: Backend{}.Build(),
		Processes: []bottle.ProcPosture{p},
	}, nil
}

// posture describes the process.
func (p *process) posture() (bottle.ProcPosture, error) {
	out := bottle.ProcPosture{Role: "guest", PID: p.pid, FDs: map[string]int{}}
	status, err := p.read("status")
	if err != nil {
		return out, err
	}
	uid, err := strconv.Atoi(first(value(status, "Uid")))
	if err != nil {
		return out, fmt.Errorf("the guest's status: %w", err)
	}
	for _, id := range strings.Fields(value(status, "Uid")) {
		if id != strconv.Itoa(uid) {
			return out, &bottle.PostureError{Role: out.Role, Reason: "has several user ids"}
		}
	}
	out.UID = uid
	var errs [3]error
	out.Seccomp, errs[0] = strconv.Atoi(value(status, "Seccomp"))
	out.CapBnd, errs[1] = strconv.ParseUint(value(status, "CapBnd"), 16, 64)
	out.NoNewPrivs = value(status, "NoNewPrivs") == "1"
	// One that it has in any of its sets counts.
	for _, set := range []string{"CapEff", "CapPrm", "CapInh", "CapAmb"} {
		n, err := strconv.ParseUint(value(status, set), 16, 64)
		errs[2] = errors.Join(errs[2], err)
		out.CapEff |= n
	}
	if err := errors.Join(errs[:]...); err != nil {
		return out, fmt.Errorf("the guest's status: %w", err)
	}
	for _, kind := range append([]string{"user", "cgroup"}, namespaces...) {
		theirs, err := os.Readlink(p.path("ns/" + kind))
		if err != nil {
			return out, err
		}
		ours, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return out, err
		}
		if theirs != ours {
			out.Namespaces = append(out.Namespaces, kind)
		}
	}
	slices.Sort(out.Namespaces)
	mounts, err := p.read("mountinfo")
	if err != nil {
		return out, err
	}
	out.Mounts = strings.Count(mounts, "\n")
	if out.Chrooted, err = p.chrooted(); err != nil {
		return out, err
	}
	return out, p.descriptors(out.FDs)
}

// value returns the value of a line of /proc/PID/status.
func value(status, key string) string {
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func first(s string) string {
	f := strings.Fields(s)
	if len(f) == 0 {
		return ""
	}
	return f[0]
}

func (p *process) chrooted() (bool, error) {
	var theirs, ours unix.Stat_t
	if err := errors.Join(unix.Stat(p.path("root"), &theirs), unix.Stat("/", &ours)); err != nil {
		return false, err
	}
	return theirs.Dev != ours.Dev || theirs.Ino != ours.Ino, p.alive()
}

// descriptors counts the open descriptors by kind.
func (p *process) descriptors(out map[string]int) error {
	ents, err := os.ReadDir(p.path("fd"))
	if err != nil {
		return err
	}
	for _, e := range ents {
		path := p.path("fd/" + e.Name())
		to, err := os.Readlink(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // closed meanwhile
		}
		if err != nil {
			return err
		}
		kind, _, named := strings.Cut(to, ":")
		if !named || strings.HasPrefix(to, "/") {
			if kind, err = kindOf(path, to); err != nil {
				return err
			}
		}
		out[kind]++
	}
	return p.alive()
}

func kindOf(path, to string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return "directory", nil
	case unix.S_IFCHR, unix.S_IFBLK:
		if filepath.Base(to) == "null" && st.Rdev == unix.Mkdev(1, 3) {
			return "null", nil
		}
		return "device", nil
	case unix.S_IFIFO:
		return "pipe", nil
	}
	return "file", nil
}

// checkCards returns an error unless the container has the loopback and, with a wire, the
// bottle's card, and nothing else.
func (p *process) checkCards(wired bool) error {
	text, err := p.read("net/dev")
	if err != nil {
		return err
	}
	want := []string{"lo"}
	if wired {
		want = []string{cardName, "lo"}
	}
	var have []string
	for line := range strings.Lines(text) {
		if card, _, ok := strings.Cut(line, ":"); ok {
			have = append(have, strings.TrimSpace(card))
		}
	}
	slices.Sort(have)
	if !slices.Equal(have, want) {
		return fmt.Errorf("has the network cards %q, not %q", have, want)
	}
	return nil
}
