package gvisor

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
)

// Check implements bottle.Backend. It looks only at what can be read without
// starting anything, so it costs next to nothing before each run; Probe goes
// further.
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
// again where there is no loader.
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

func readSysctl(path string) string {
	b, err := os.ReadFile("/proc/sys/" + path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// checkUserNamespaces reads the switches that are known to forbid them.
func checkUserNamespaces() error {
	if os.Geteuid() == 0 {
		return nil
	}
	if readSysctl("user/max_user_namespaces") == "0" {
		return &bottle.UnavailableError{Backend: name, Reason: "user namespaces are switched off (user.max_user_namespaces is 0)", Advice: "as root: sysctl user.max_user_namespaces=15000"}
	}
	if readSysctl("kernel/unprivileged_userns_clone") == "0" {
		return &bottle.UnavailableError{Backend: name, Reason: "user namespaces are reserved for root (kernel.unprivileged_userns_clone is 0)", Advice: "as root: sysctl kernel.unprivileged_userns_clone=1"}
	}
	return nil
}

// Probe makes an empty bottle and destroys it: what Check can't see by reading
// shows here.
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

// AppArmorProfile lets this binary make user namespaces where AppArmor forbids
// them to programs without a profile (Ubuntu from 23.10).
func AppArmorProfile(exe string) string {
	return `abi <abi/4.0>,
include <tunables/global>

# carboy confines itself; this profile only lets it make user namespaces.
profile carboy "` + exe + `" flags=(unconfined) {
  userns,

  include if exists <local/carboy>
}
`
}

// AppArmorRestricts reports whether this system reserves user namespaces for
// programs with a profile.
func AppArmorRestricts() bool {
	return readSysctl("kernel/apparmor_restrict_unprivileged_userns") == "1"
}

// unavailable explains why the shim could not be started.
func unavailable(err error) error {
	e := &bottle.UnavailableError{Backend: name, Reason: "can't make a user namespace", Err: err}
	switch {
	case AppArmorRestricts():
		e.Reason = "AppArmor forbids user namespaces to programs without a profile"
		e.Advice = "run carboy doctor --fix: it prints the profile and, as root, installs it"
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		e.Advice = "if this is a container, start it with user namespaces allowed (for Docker: --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined)"
	case errors.Is(err, syscall.ENOSPC):
		e.Advice = "the limit on user namespaces is reached: as root, raise user.max_user_namespaces"
	}
	return e
}
