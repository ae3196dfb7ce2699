// Package smolmachines makes bottles of virtual machines that the program smolvm runs.
//
// smolvm passes a machine's connections on from a process of the host, and lets it reach
// the addresses that its state database allows. carboy gives each bottle a loopback address
// of its own, makes sure that the database allows that one alone, and serves its gateway
// there as a proxy. There are no packets: programs inside must ask the proxy. The machine
// has no image of smolvm's; the guest program (package agent) makes the bottle's root in
// it, and runs the commands.
//
// It was never run against the real smolvm: its tests use a program that stands in for
// it. Start reading at [Backend.Create].
package smolmachines

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/guest/program"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/kvm"
	"github.com/carboy/carboy/internal/loopback"
	"github.com/carboy/carboy/internal/smolstate"
	"github.com/carboy/carboy/internal/store"
)

const name = "smolmachines"

// ReachableEnv names a variable that lists the ports of this machine at which a program
// listens on all addresses and which bottles may reach, such as "tcp/22,udp/5353".
const ReachableEnv = "CARBOY_SMOLMACHINES_REACHABLE"

// Backend makes bottles of smolvm's machines.
type Backend struct {
	host *host // nil: this machine
}

var (
	_ bottle.Backend = Backend{}
	_ bottle.Prober  = Backend{}
)

// host answers the backend's questions about the machine. Tests have another.
type host struct {
	goos      string
	getenv    func(string) string
	kvm       func() error
	listeners func() ([]loopback.Listener, error)
	// asRoot lets root make bottles. The tests' machines need it.
	asRoot bool
}

func (b Backend) machine() *host {
	if b.host != nil {
		return b.host
	}
	return &host{goos: runtime.GOOS, getenv: os.Getenv, kvm: kvm.Check, listeners: loopback.Listeners}
}

// Name implements bottle.Backend.
func (Backend) Name() string { return name }

// Build implements bottle.Backend: it is that of the program inside.
func (Backend) Build() string {
	d, err := program.Digest()
	if err != nil {
		return "unknown"
	}
	return "guest-" + d[:16]
}

// Isolation implements bottle.Backend. A machine has a kernel of its own, but the process
// that runs it is not confined, and is the only one that keeps it from this machine's
// network. So no more is claimed than of a container.
func (Backend) Isolation() bottle.Isolation { return bottle.IsolationContainer }

// Capabilities implements bottle.Backend.
func (Backend) Capabilities() bottle.Capabilities {
	return bottle.Capabilities{
		Facts: bottle.FactsNone, DiskLimit: true, ProxyOnly: true,
		Why: map[bottle.Capability]string{
			bottle.CapFacts:      "the machine's kernel tells carboy nothing",
			bottle.CapChannels:   "smolvm passes connections on by itself",
			bottle.CapLiveFreeze: "smolvm keeps files and no processes",
			bottle.CapReadWrite:  "the machine has the host's directories read-only",
			bottle.CapLiveMounts: "files are copied into the machine when it starts",
			bottle.CapPackets:    "smolvm passes TCP connections on to a proxy: no UDP, ICMP, DNS of its own or published ports",
		},
	}
}

// Check implements bottle.Backend.
func (b Backend) Check(context.Context) error {
	h := b.machine()
	if os.Geteuid() == 0 && !h.asRoot {
		return &bottle.UnavailableError{
			Backend: name, Reason: "the process that runs a machine would be root's, and nothing confines it",
			Advice: "run carboy as an ordinary user, or use another backend",
		}
	}
	r, err := hostexec.New(hostexec.Options{})
	if err != nil {
		return err
	}
	if _, err := r.Find(hostexec.Smolvm); err != nil {
		return missing(err)
	}
	if err := h.checkKVM(); err != nil {
		return err
	}
	if _, err := smolstate.Path(h.goos, h.getenv); err != nil {
		return &bottle.UnavailableError{Backend: name, Reason: err.Error()}
	}
	_, err = h.shared()
	return err
}

// missing says how smolvm is installed, and what does without it.
func missing(err error) error {
	e := &bottle.UnavailableError{
		Backend: name, Reason: "smolvm can't be used", Err: err,
		Advice: "install it again, or use --backend docker",
	}
	if hostexec.NotInstalled(err) {
		e.Reason, e.Err = "the program smolvm is not installed", nil
		e.Advice = "install it: curl -sSL https://smolmachines.com/install.sh | bash (docs/smolmachines.md has packages of distributions), or use --backend docker, which needs no virtual machine"
	}
	return e
}

// checkKVM reports why machines can't run here. macOS has no KVM, and needs none.
func (h *host) checkKVM() error {
	if h.goos != "linux" {
		return nil
	}
	err := h.kvm()
	var k *kvm.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &k):
		return &bottle.UnavailableError{Backend: name, Reason: k.Reason, Advice: k.Advice, Err: k.Err}
	}
	return &bottle.UnavailableError{Backend: name, Reason: "KVM can't be judged", Err: err}
}

// shared returns what listens on all addresses of this machine, and so on each bottle's
// too. Unless the user allows each port of it, that is an error: smolvm's rule is about
// addresses, not about ports.
func (h *host) shared() ([]loopback.Listener, error) {
	all, err := h.listeners()
	if err != nil {
		return nil, &bottle.UnavailableError{Backend: name, Reason: "what listens on this machine can't be listed", Err: err}
	}
	allowed := strings.FieldsFunc(h.getenv(ReachableEnv), func(r rune) bool { return r == ',' || r == ' ' })
	var shared []loopback.Listener
	var refused []string
	for _, l := range all {
		if !l.Everywhere() {
			continue
		}
		shared = append(shared, l)
		if port := fmt.Sprintf("%s/%d", l.Network, l.Addr.Port()); !slices.Contains(allowed, port) && !slices.Contains(refused, port) {
			refused = append(refused, port)
		}
	}
	if len(refused) > 0 {
		return shared, &bottle.UnavailableError{
			Backend: name, Reason: "a bottle would reach what listens here on all addresses: " + strings.Join(refused, ", "),
			Advice: "let these programs listen on the addresses that need them, or accept it: " + ReachableEnv + "=" + strings.Join(refused, ",") + "; or use another backend",
		}
	}
	return shared, nil
}

// Probe implements bottle.Prober.
func (b Backend) Probe(ctx context.Context, spec *bottle.Spec) (bottle.Posture, error) {
	x, err := b.Create(ctx, spec)
	if err != nil {
		return bottle.Posture{}, err
	}
	defer x.Close()
	return x.Posture(), nil
}

// stateDir returns the directory of this backend's files.
func (h *host) stateDir() (string, error) {
	dir, err := store.StateDir(h.getenv)
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, name), nil
}

// guestProgram returns the directory with the guest program, which machines have
// read-only. It is made once for each version.
func (h *host) guestProgram() (dir string, err error) {
	state, err := h.stateDir()
	if err != nil {
		return "", err
	}
	digest, err := program.Digest()
	if err != nil {
		return "", err
	}
	b, err := program.Binary()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(state, "guest-"+digest[:16])
	// smolvm alone keeps machines from writing to it.
	switch have, err := os.ReadFile(filepath.Join(dir, filepath.Base(hostexec.SmolvmGuest))); {
	case bytes.Equal(have, b):
		return dir, nil
	case !errors.Is(err, os.ErrNotExist):
		return "", errors.Join(fmt.Errorf("the guest program in %s is not as it was written there: when no bottle runs, remove it", dir), err)
	}
	if err := os.MkdirAll(state, 0o700); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(state, ".guest-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	f, err := os.OpenFile(filepath.Join(tmp, filepath.Base(hostexec.SmolvmGuest)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o700)
	if err != nil {
		return "", err
	}
	_, err = f.Write(b)
	if err == nil {
		err = errors.Join(f.Chmod(0o755), f.Sync())
	}
	if err = errors.Join(err, f.Close(), os.Chmod(tmp, 0o755)); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return dir, nil
}
