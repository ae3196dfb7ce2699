package docker

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/posture"
	"github.com/carboy/carboy/internal/guest/program"
	"github.com/carboy/carboy/internal/safetext"
)

// apart are the kinds of namespaces in which a container must not be where carboy is. A
// user namespace is not among them: Docker gives none.
var apart = []string{"cgroup", "ipc", "mnt", "net", "pid", "uts"}

// role is the first process's in the posture. Every command descends from it.
const role = "guest"

// verify reads the bottle's processes as they are now, and refuses what is not as it must
// be.
func (x *box) verify(ctx context.Context, spec *bottle.Spec) (out bottle.Posture, err error) {
	out = bottle.Posture{Isolation: x.engine.isolation(), Backend: name, Build: Backend{}.Build()}
	if out.Processes, err = x.look(ctx, spec); err != nil {
		return out, err
	}
	h, uid := x.client.Hello(), int(spec.User.UID)
	if x.network != nil {
		uid = 0 // root of the container's own kernel
	}
	if h.PID != 1 || h.UID != uid {
		return out, &bottle.PostureError{Role: role, Reason: fmt.Sprintf("says that it is process %d of user %d", h.PID, h.UID)}
	}
	// The runtime's name does not make it gVisor. Nobody hostile is inside yet.
	if x.network != nil && !strings.HasSuffix(h.Kernel, "-gvisor") {
		return out, &bottle.PostureError{Role: kernelRole, Reason: "is not gVisor's: it calls itself " + safetext.String(h.Kernel, 100)}
	}
	return out, nil
}

// watched names the processes of a bottle: the first of the ordinary container, and those of
// one with a kernel of its own, if there is one.
type watched struct {
	First         seen
	Kernel, Gofer *seen
	Program       string // that the last two must run; empty: any
}

// seen is a process of the container with that id.
type seen struct {
	PID int
	ID  string
}

// look reads and judges the processes. carboy is process number carboy.
func (w *watched) look(p *plan, carboy int) ([]bottle.ProcPosture, error) {
	here, err := posture.Read(carboy, kinds)
	if err != nil {
		return nil, err
	}
	first, err := openProcess(w.First.PID, w.First.ID)
	if err != nil {
		return nil, err
	}
	defer first.fd.Close()
	network, err := first.posture()
	if err != nil {
		return nil, fmt.Errorf("read the container's posture: %w", err)
	}
	if err := judge(network, here.Place, p.User); err != nil {
		return nil, err
	}
	for _, check := range []func() error{first.runsGuest, func() error { return first.checkCards(p.Wired) }} {
		if err := check(); err != nil {
			return nil, &bottle.PostureError{Role: role, Reason: err.Error()}
		}
	}
	if w.Kernel == nil || w.Gofer == nil {
		return []bottle.ProcPosture{network.Record(role, here.Place)}, nil
	}
	out := []bottle.ProcPosture{network.Record(networkRole, here.Place)}
	for role, s := range map[string]*seen{kernelRole: w.Kernel, goferRole: w.Gofer} {
		rec, err := s.look(role, w.Program, network, here.Place)
		if err != nil {
			return nil, err
		}
		out = append(out, rec)
	}
	slices.SortFunc(out[1:], func(a, b bottle.ProcPosture) int { return strings.Compare(b.Role, a.Role) })
	return out, nil
}

// look reads and judges a process of gVisor's.
func (s *seen) look(role, program string, network *posture.Process, here posture.Place) (rec bottle.ProcPosture, err error) {
	pid, err := openProcess(s.PID, s.ID)
	if err != nil {
		return rec, err
	}
	defer pid.fd.Close()
	p, err := pid.posture()
	if err != nil {
		return rec, fmt.Errorf("read the container's posture: %w", err)
	}
	if err := judgeKernel(role, p, network, here); err != nil {
		return rec, err
	}
	if program != "" {
		if err := pid.checkProgram(program); err != nil {
			return rec, &bottle.PostureError{Role: role, Reason: err.Error()}
		}
		if role == kernelRole && p.UIDs[1] == 0 {
			return rec, &bottle.PostureError{Role: role, Reason: "runs as root"}
		}
	}
	return p.Record(role, here), nil
}

// Roles of the processes of a container with a kernel of its own.
const (
	networkRole = "network" // the first process of the other container
	kernelRole  = "sandbox" // the kernel
	goferRole   = "gofer"
)

// fileCaps lists those that gVisor's processes may have on the host: without them they could
// not give files to their owners. carboy's runtime leaves them to the gofer.
const fileCaps = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID

// judgeKernel returns an error if a process of gVisor's is not confined.
func judgeKernel(role string, p, network *posture.Process, here posture.Place) error {
	bad := func(format string, a ...any) error {
		return &bottle.PostureError{Role: role, Reason: fmt.Sprintf(format, a...)}
	}
	allowed := uint64(fileCaps)
	if role == goferRole {
		allowed |= 1 << unix.CAP_SYS_CHROOT // to the container's root
	} else if p.Namespaces["net"] != network.Namespaces["net"] {
		return bad("is not in the bottle's network")
	}
	switch {
	case p.Seccomp != 2:
		return bad("has no seccomp filter")
	case p.NoNewPrivs != 1:
		return bad("may gain privileges")
	case (p.CapInh|p.CapPrm|p.CapEff|p.CapBnd|p.CapAmb)&^allowed != 0:
		return bad("has capabilities: %x, bounded by %x", p.CapInh|p.CapPrm|p.CapEff|p.CapAmb, p.CapBnd)
	case p.Root == here.Root:
		return bad("has the host's root")
	}
	if k := p.Shares(here, []string{"ipc", "mnt", "net", "pid", "uts"}); k != "" {
		return bad("is in carboy's own %s namespace", k)
	}
	for _, f := range p.FDs {
		if f.Kind() == "device" && f.Link != "/dev/kvm" {
			return bad("holds %s: a device", f.Link)
		}
	}
	return nil
}

// kinds are the namespaces that are looked at.
var kinds = append([]string{"user"}, apart...)

// posture returns the kernel's account of the process.
func (p *process) posture() (*posture.Process, error) {
	x, err := posture.Read(p.pid, kinds)
	if err == nil {
		err = p.alive()
	}
	return &x, err
}

// judge returns an error if the process is not confined.
func judge(p *posture.Process, here posture.Place, user bottle.User) error {
	bad := func(format string, a ...any) error {
		return &bottle.PostureError{Role: role, Reason: fmt.Sprintf(format, a...)}
	}
	uid, gid := int(user.UID), int(user.GID)
	for i := range p.UIDs {
		if p.UIDs[i] != uid || p.GIDs[i] != gid {
			return bad("runs as %d:%d, not %d:%d", p.UIDs[i], p.GIDs[i], uid, gid)
		}
	}
	switch {
	case slices.ContainsFunc(p.Groups, func(g int) bool { return g != gid }):
		return bad("is in the groups %d", p.Groups)
	case p.Seccomp != 2:
		return bad("has no seccomp filter")
	case p.NoNewPrivs != 1:
		return bad("may gain privileges")
	case p.CapInh|p.CapPrm|p.CapEff|p.CapBnd|p.CapAmb != 0:
		return bad("has capabilities: %x, bounded by %x", p.CapInh|p.CapPrm|p.CapEff|p.CapAmb, p.CapBnd)
	case p.Root == here.Root:
		return bad("has the host's root")
	}
	if k := p.Shares(here, apart); k != "" {
		return bad("is in carboy's own %s namespace", k)
	}
	for _, f := range p.FDs {
		if kind := f.Kind(); slices.Contains([]string{"directory", "device", "unknown"}, kind) {
			return bad("holds %s: %s", f.Link, kind)
		}
	}
	return nil
}

// runsGuest returns an error unless the process runs carboy's program.
func (p *process) runsGuest() error {
	f, err := p.open("exe")
	if err != nil {
		return err
	}
	defer f.Close()
	return isGuest(f)
}

// isGuest returns an error unless the file has carboy's program: an image of its name can
// come from anywhere.
func isGuest(f io.Reader) error {
	want, err := program.Binary()
	if err != nil {
		return err
	}
	have, err := io.ReadAll(io.LimitReader(f, int64(len(want))+1))
	if err == nil && !bytes.Equal(have, want) {
		err = fmt.Errorf("runs a program that is not carboy's: remove the image (docker rmi $(docker images -q %s)), and carboy makes it again", imageName)
	}
	return err
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
		return fmt.Errorf("has the network cards %q, not %q; tunnels that each network gets by itself are kept away by sysctl net.core.fb_tunnels_only_for_init_net=2", have, want)
	}
	return nil
}
