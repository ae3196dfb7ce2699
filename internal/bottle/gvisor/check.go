package gvisor

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/userns"
)

// Check implements bottle.Backend. It reads files and starts nothing, so it is
// cheap enough for every run; Probe goes further.
func (Backend) Check(ctx context.Context) error {
	if _, ok := initCode[runtime.GOARCH]; !ok || runtime.GOOS != "linux" {
		return &bottle.UnavailableError{Backend: name, Reason: "no support for " + runtime.GOOS + "/" + runtime.GOARCH, Advice: "use Linux on amd64"}
	}
	if err := checkStatic(); err != nil {
		return err
	}
	if err := checkKernel(); err != nil {
		return err
	}
	return checkUserNamespaces()
}

// checkStatic refuses a dynamically linked carboy: the sandbox executes it
// again in a root without a loader.
func checkStatic() error {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return &bottle.UnavailableError{Backend: name, Reason: "carboy's own binary can't be read", Err: err}
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return &bottle.UnavailableError{Backend: name, Reason: "carboy is dynamically linked", Advice: "build it with CGO_ENABLED=0"}
		}
	}
	return nil
}

// Mount attributes on whole trees came with Linux 5.12.
const minMajor, minMinor = 5, 12

func checkKernel() error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	rel := unix.ByteSliceToString(u.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(rel, "%d.%d", &major, &minor); err != nil {
		return nil // an unusual name; what is missing will say so itself
	}
	if major < minMajor || major == minMajor && minor < minMinor {
		return &bottle.UnavailableError{Backend: name, Reason: "Linux " + rel + " is too old", Advice: fmt.Sprintf("use Linux %d.%d or newer", minMajor, minMinor)}
	}
	return nil
}

// checkUserNamespaces reads the known switches that forbid user namespaces.
func checkUserNamespaces() error {
	var f *userns.ForbiddenError
	if errors.As(userns.Check(), &f) {
		return &bottle.UnavailableError{Backend: name, Reason: f.Reason, Advice: f.Advice}
	}
	return nil
}

// Probe makes an empty bottle and destroys it, to find problems that Check
// cannot see by reading.
func (b Backend) Probe(ctx context.Context, spec *bottle.Spec) (bottle.Posture, error) {
	if err := b.Check(ctx); err != nil {
		closeAll(spec.Files())
		return bottle.Posture{}, err
	}
	x, err := b.Create(ctx, spec)
	if err != nil {
		return bottle.Posture{}, err
	}
	return x.Posture(), x.Close()
}

// unavailable explains why the shim could not be started.
func unavailable(err error) error {
	e := &bottle.UnavailableError{Backend: name, Reason: "can't make a user namespace", Err: err}
	switch {
	case userns.AppArmorRestricts():
		e.Reason = "AppArmor forbids user namespaces to programs without a profile"
		e.Advice = "run carboy doctor --fix: it prints the profile and, as root, installs it"
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		e.Advice = "if this is a container, start it with user namespaces allowed (for Docker: --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined)"
	case errors.Is(err, syscall.ENOSPC):
		e.Advice = "the limit on user namespaces is reached: as root, raise user.max_user_namespaces"
	}
	return e
}
