// Package microvm makes bottles that are virtual machines: a kernel of their own on the
// processor's own virtualisation, run by QEMU, which is itself confined by namespaces and
// a filter of system calls.
//
// Inside, the guest program is the first process (package agent). It mounts read-only
// images of the bottle's files under an overlay on a scratch disk, and runs the command as
// an ordinary user. All that leads out are three descriptors that QEMU inherits: the wire,
// which carries Ethernet frames, the guest program's stream, and the disks.
//
// Another monitor than QEMU would be one file beside qemu.go: it gets a machine and
// returns a process. Start reading at [Backend.Create].
package microvm

import (
	"os"
	"runtime"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/guest/program"
	"github.com/carboy/carboy/internal/kvm"
)

const name = "microvm"

// Variables of carboy's own environment.
const (
	// KernelEnv names the path of a kernel to use in place of the distribution's. Its
	// modules are in ../lib/modules beside its directory or in /lib/modules.
	KernelEnv = "CARBOY_MICROVM_KERNEL"
	// EmulateEnv, if it is 1, has the processor emulated in software. That is for tests:
	// it is slow, and QEMU promises no boundary then. The bottles' class is emulated-vm.
	EmulateEnv = "CARBOY_MICROVM_EMULATE"
)

// Backend makes bottles that are virtual machines. The zero Backend is ready.
type Backend struct{}

var (
	_ bottle.Backend = Backend{}
	_ bottle.Prober  = Backend{}
)

// Name implements bottle.Backend.
func (Backend) Name() string { return name }

// format is part of Build: it changes with the images and the way a machine is set up.
const format = "2"

// Build implements bottle.Backend.
func (Backend) Build() string {
	digest, err := program.Digest()
	if err != nil {
		digest = "unreadable program"
	}
	return "qemu." + format + "." + digest[:12]
}

func emulated() bool { return os.Getenv(EmulateEnv) == "1" }

// Isolation implements bottle.Backend.
func (Backend) Isolation() bottle.Isolation {
	switch {
	case runtime.GOARCH != "amd64":
		return ""
	case emulated():
		return bottle.IsolationEmulatedVM
	case kvm.Check() != nil:
		return ""
	}
	return bottle.IsolationHardwareVM
}

// Capabilities implements bottle.Backend.
func (Backend) Capabilities() bottle.Capabilities {
	return bottle.Capabilities{
		Facts:     bottle.FactsNone,
		DiskLimit: true,
		Frames:    true,
		Why: map[bottle.Capability]string{
			bottle.CapFacts:      "the machine's own kernel serves system calls, and tells nobody of them",
			bottle.CapChannels:   "a virtual machine's network card takes frames alone",
			bottle.CapLiveFreeze: "the machine's memory is not saved",
			bottle.CapReadWrite:  "the machine has copies of the host's files, not the files",
			bottle.CapLiveMounts: "the machine has copies of the host's files from its start",
		},
	}
}
