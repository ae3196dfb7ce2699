// Package kvm tells whether this machine can run virtual machines at the processor's
// speed, and what to do if it can't.
//
// Start reading at [Check].
package kvm

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Error says why KVM can't be used.
type Error struct {
	Reason string // what was found
	Advice string // what to do
	Err    error  // of the call that failed, or nil
}

func (e *Error) Error() string {
	if e.Err != nil {
		return e.Reason + ": " + e.Err.Error()
	}
	return e.Reason
}

func (e *Error) Unwrap() error { return e.Err }

const (
	devicePath = "/dev/kvm"
	apiVersion = 12 // the only one since Linux 2.6.22 (Documentation/virt/kvm/api.rst)

	// rounds of a loop of two instructions take a processor microseconds. Where KVM
	// emulates them they took 11 ms and more, and loopLimit tells the two apart.
	rounds    = 2000
	loopLimit = 2 * time.Millisecond

	// attempts bounds the runs of the loop before it counts as slow: another process can
	// take the processor in the middle of one.
	attempts = 5
)

// Check returns nil if KVM works here, or an [*Error]. It makes a virtual machine of
// four pages, so it takes some milliseconds; the first answer that is nil is remembered.
// It is safe for concurrent use.
func Check() error {
	known.Lock()
	defer known.Unlock()
	if known.good {
		return nil
	}
	err := check(system{})
	known.good = err == nil
	return err
}

var known struct {
	sync.Mutex
	good bool
}

// host answers check's questions about the machine. Tests answer in its place.
type host interface {
	// open opens /dev/kvm.
	open() (device, error)
}

// device is an open /dev/kvm.
type device interface {
	close()
	// version returns the version of the interface.
	version() (int, error)
	// machine makes a virtual machine.
	machine() (vm, error)
}

// vm is a virtual machine.
type vm interface {
	close()
	// load puts a loop of n rounds into the machine's memory, for the privileged mode
	// in which a kernel runs, and makes its processor.
	load(n int) error
	// run runs the loop from its beginning and returns how long it took.
	run() (time.Duration, error)
}

func check(h host) error {
	d, err := h.open()
	if err != nil {
		return openError(err)
	}
	defer d.close()
	v, err := d.version()
	if err != nil {
		return &Error{Reason: devicePath + " does not answer as KVM does", Advice: "look at what " + devicePath + " is on this system", Err: err}
	}
	if v != apiVersion {
		return &Error{Reason: fmt.Sprintf("KVM here has version %d of its interface, not %d", v, apiVersion), Advice: "use Linux 2.6.22 or newer"}
	}
	m, err := d.machine()
	if err != nil {
		return machineError(err)
	}
	defer m.close()
	if err := m.load(rounds); err != nil {
		return &Error{Reason: "KVM makes a virtual machine that can't be set up", Advice: "the kernel's log (sudo dmesg) may say why", Err: err}
	}
	best := time.Duration(-1)
	for range attempts {
		took, err := m.run()
		if err != nil {
			return &Error{Reason: "KVM makes a virtual machine that does not run", Advice: "the kernel's log (sudo dmesg) may say why", Err: err}
		}
		if took <= loopLimit {
			return nil
		}
		if best < 0 || took < best {
			best = took
		}
	}
	return &Error{
		Reason: fmt.Sprintf("KVM here emulates guest kernels (PVM or similar): %d rounds of a loop took %v, so a micro-VM would take minutes to boot", rounds, best.Round(time.Microsecond)),
		Advice: "use another backend here; hardware virtualisation, or nested virtualisation of the host, would run it",
	}
}

func openError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return &Error{
			Reason: "this system has no " + devicePath, Err: err,
			Advice: "load the module (sudo modprobe kvm-intel, or kvm-amd) and switch virtualisation on in the firmware's settings; in a virtual machine, its host must allow nested virtualisation; in a container, it must be given " + devicePath,
		}
	case errors.Is(err, fs.ErrPermission):
		return &Error{
			Reason: "this user may not open " + devicePath, Err: err,
			Advice: `sudo usermod -aG kvm "$USER" and log in again; or, until the next boot: sudo setfacl -m u:"$USER":rw ` + devicePath,
		}
	}
	return &Error{Reason: devicePath + " can't be opened", Advice: "look at what " + devicePath + " is on this system", Err: err}
}

// machineError explains the errors of KVM_CREATE_VM.
func machineError(err error) error {
	e := &Error{Reason: "KVM makes no virtual machine", Advice: "the kernel's log (sudo dmesg) may say why", Err: err}
	switch {
	case errors.Is(err, unix.EBUSY):
		e.Reason = "another hypervisor uses the processor's virtualisation"
		e.Advice = "end it (VirtualBox and VMware have their own modules: sudo modprobe -r vboxdrv, or vmmon), and try again"
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EIO):
		e.Reason = "the processor's virtualisation is switched off, or is not there"
		e.Advice = "switch it on in the firmware's settings; in a virtual machine, its host must allow nested virtualisation"
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		e.Reason = "the system has no room for another virtual machine"
		e.Advice = "end other virtual machines or programs, and try again"
	}
	return e
}
