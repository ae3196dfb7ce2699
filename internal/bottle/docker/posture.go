package docker

import (
	"bytes"
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
func (x *box) verify(spec *bottle.Spec) (bottle.Posture, error) {
	out := bottle.Posture{Isolation: x.engine.isolation(), Backend: Backend{}.Name(), Build: Backend{}.Build()}
	first, name, uid := x.pid, role, int(spec.User.UID)
	if x.network != nil {
		first, name, uid = x.network, networkRole, 0 // root of the container's own kernel
	}
	p, here, err := first.posture()
	if err != nil {
		return out, fmt.Errorf("read the container's posture: %w", err)
	}
	if err := judge(p, here, spec); err != nil {
		return out, err
	}
	for _, check := range []func() error{first.runsGuest, func() error { return first.checkCards(spec.Wire != nil) }} {
		if err := check(); err != nil {
			return out, &bottle.PostureError{Role: role, Reason: err.Error()}
		}
	}
	h := x.client.Hello()
	if h.PID != 1 || h.UID != uid {
		return out, &bottle.PostureError{Role: role, Reason: fmt.Sprintf("says that it is process %d of user %d", h.PID, h.UID)}
	}
	out.Processes = []bottle.ProcPosture{p.Record(name, here)}
	if x.network == nil {
		return out, nil
	}
	// The runtime's name does not make it gVisor. Nobody hostile is inside yet.
	if !strings.HasSuffix(h.Kernel, "-gvisor") {
		return out, &bottle.PostureError{Role: kernelRole, Reason: "is not gVisor's: it calls itself " + safetext.String(h.Kernel, 100)}
	}
	more, err := x.verifyKernel(p, here)
	out.Processes = append(out.Processes, more...)
	return out, err
}

// Roles of the processes of a container with a kernel of its own.
const (
	networkRole = "network" // the first process of the other container
	kernelRole  = "sandbox" // the kernel
	goferRole   = "gofer"
)

// fileCaps are those that gVisor's processes may have on the host: without them they could
// not give files to their owners. carboy's runtime leaves them to the gofer.
const fileCaps = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID

// verifyKernel judges the processes of the container's kernel, whose network is that of the
// process network.
func (x *box) verifyKernel(network *posture.Process, here posture.Place) (out []bottle.ProcPosture, err error) {
	for _, w := range []struct {
		role string
		pid  *process
	}{{kernelRole, x.pid}, {goferRole, x.gofer}} {
		p, _, err := w.pid.posture()
		if err != nil {
			return nil, fmt.Errorf("read the container's posture: %w", err)
		}
		if err := judgeKernel(w.role, p, network, here); err != nil {
			return nil, err
		}
		if k := x.engine.kernel; k.ours() {
			if err := w.pid.checkProgram(k.path); err != nil {
				return nil, &bottle.PostureError{Role: w.role, Reason: err.Error()}
			}
			if w.role == kernelRole && p.UIDs[1] == 0 {
				return nil, &bottle.PostureError{Role: w.role, Reason: "runs as root"}
			}
		}
		out = append(out, p.Record(w.role, here))
	}
	return out, nil
}

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

// posture returns the kernel's account of the process, and carboy's own place.
func (p *process) posture() (*posture.Process, posture.Place, error) {
	kinds := append([]string{"user"}, apart...)
	here, err := posture.Here(kinds)
	if err != nil {
		return nil, here, err
	}
	x, err := posture.Read(p.pid, kinds)
	if err == nil {
		err = p.alive()
	}
	return &x, here, err
}

// judge returns an error if the process is not confined.
func judge(p *posture.Process, here posture.Place, spec *bottle.Spec) error {
	bad := func(format string, a ...any) error {
		return &bottle.PostureError{Role: role, Reason: fmt.Sprintf(format, a...)}
	}
	uid, gid := int(spec.User.UID), int(spec.User.GID)
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
