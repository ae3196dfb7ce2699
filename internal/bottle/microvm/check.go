package microvm

import (
	"context"
	"errors"
	"runtime"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/userns"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/kvm"
)

// Check implements bottle.Backend. Each thing that can be missing has a message of its
// own, with what to do about it. Without KVM nothing is emulated: that would be slow, and
// no boundary.
func (Backend) Check(context.Context) error {
	_, err := suitable()
	return err
}

// suitable returns the kernel for machines here, or an UnavailableError.
func suitable() (k *kernel, err error) {
	err = checks{
		arch: runtime.GOARCH, emulated: emulated(), kvm: kvm.Check, find: find, namespaces: userns.Check,
		kernel: func() (err error) { k, err = findKernel(); return err },
	}.run()
	return k, err
}

// checks are the questions of Check; tests answer them.
type checks struct {
	arch       string
	emulated   bool
	kvm        func() error
	find       func(hostexec.Program) error
	kernel     func() error
	namespaces func() error
}

func (c checks) run() error {
	if c.arch != "amd64" {
		return &bottle.UnavailableError{Backend: name, Reason: "no support for " + c.arch, Advice: "use another backend, or a machine with an amd64 processor"}
	}
	if !c.emulated {
		if err := c.kvm(); err != nil {
			return kvmError(err)
		}
	}
	if err := c.find(hostexec.Qemu); err != nil {
		return &bottle.UnavailableError{
			Backend: name, Reason: "QEMU is missing", Err: err,
			Advice: "install it: sudo apt-get install --no-install-recommends qemu-system-x86 (Fedora: sudo dnf install qemu-system-x86-core)",
		}
	}
	if err := c.find(hostexec.Mke2fs); err != nil {
		return &bottle.UnavailableError{Backend: name, Reason: "mke2fs is missing", Advice: "install it: sudo apt-get install e2fsprogs (Fedora: sudo dnf install e2fsprogs)", Err: err}
	}
	if err := c.kernel(); err != nil {
		return err
	}
	return namespaceError(c.namespaces())
}

// kvmError says what package kvm found, as the contract's error.
func kvmError(err error) error {
	var k *kvm.Error
	if !errors.As(err, &k) {
		return &bottle.UnavailableError{Backend: name, Reason: "KVM can't be judged", Err: err}
	}
	return &bottle.UnavailableError{Backend: name, Reason: k.Reason, Advice: k.Advice, Err: k.Err}
}

func namespaceError(err error) error {
	if err == nil {
		return nil
	}
	e := &bottle.UnavailableError{Backend: name, Reason: err.Error()}
	var f *userns.ForbiddenError
	if errors.As(err, &f) {
		e.Advice = f.Advice
	}
	return e
}

// find reports whether a program is installed and may be started.
func find(p hostexec.Program) error {
	r, err := hostexec.New(hostexec.Options{})
	if err != nil {
		return err
	}
	_, err = r.Find(p)
	return err
}

// Probe implements bottle.Prober.
func (b Backend) Probe(ctx context.Context, spec *bottle.Spec) (bottle.Posture, error) {
	x, err := b.Create(ctx, spec)
	if err != nil {
		return bottle.Posture{}, err
	}
	return x.Posture(), x.Close()
}
