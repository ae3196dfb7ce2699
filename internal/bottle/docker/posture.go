package docker

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/posture"
	"github.com/carboy/carboy/internal/guest/program"
)

// apart are the kinds of namespaces in which a container must not be where carboy is. A
// user namespace is not among them: Docker gives none.
var apart = []string{"cgroup", "ipc", "mnt", "net", "pid", "uts"}

// role is the first process's in the posture. Every command descends from it.
const role = "guest"

// verify reads the container's first process as it is now, and refuses what is not as it
// must be.
func (x *box) verify(spec *bottle.Spec) (bottle.Posture, error) {
	p, here, err := x.pid.posture()
	if err != nil {
		return bottle.Posture{}, fmt.Errorf("read the container's posture: %w", err)
	}
	if err := judge(p, here, spec); err != nil {
		return bottle.Posture{}, err
	}
	for _, check := range []func() error{x.pid.runsGuest, func() error { return x.pid.checkCards(spec.Wire != nil) }} {
		if err := check(); err != nil {
			return bottle.Posture{}, &bottle.PostureError{Role: role, Reason: err.Error()}
		}
	}
	if h := x.client.Hello(); h.PID != 1 || h.UID != int(spec.User.UID) {
		return bottle.Posture{}, &bottle.PostureError{Role: role, Reason: fmt.Sprintf("says that it is process %d of user %d", h.PID, h.UID)}
	}
	return bottle.Posture{
		Isolation: bottle.IsolationContainer, Backend: name, Build: Backend{}.Build(),
		Processes: []bottle.ProcPosture{p.Record(role, here)},
	}, nil
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

// runsGuest returns an error unless the process runs carboy's program: an image of its
// name can come from anywhere.
func (p *process) runsGuest() error {
	want, err := program.Binary()
	if err != nil {
		return err
	}
	f, err := p.open("exe")
	if err != nil {
		return err
	}
	defer f.Close()
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
