// Package userns tells whether this system lets programs make user namespaces, which every
// backend without root needs, and what allows it. For root, it makes those of ID-mapped
// mounts: see [Mapping].
package userns

import (
	"os"
	"strings"
)

// AppArmorProfile returns a profile that lets the binary exe make user namespaces where
// AppArmor otherwise forbids them (Ubuntu from 23.10).
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

// AppArmorRestricts reports whether this system reserves user namespaces for programs with
// a profile.
func AppArmorRestricts() bool {
	return Sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1"
}

// Sysctl returns the kernel setting at path below /proc/sys; empty: there is none.
func Sysctl(path string) string {
	b, err := os.ReadFile("/proc/sys/" + path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// ForbiddenError says which setting forbids user namespaces, and what to do.
type ForbiddenError struct{ Reason, Advice string }

func (e *ForbiddenError) Error() string { return e.Reason }

// Check reads the known switches that forbid user namespaces. The error is a
// ForbiddenError; root is not concerned.
func Check() error {
	if os.Geteuid() == 0 {
		return nil
	}
	if Sysctl("user/max_user_namespaces") == "0" {
		return &ForbiddenError{"user namespaces are switched off (user.max_user_namespaces is 0)", "as root: sysctl user.max_user_namespaces=15000"}
	}
	if Sysctl("kernel/unprivileged_userns_clone") == "0" {
		return &ForbiddenError{"user namespaces are reserved for root (kernel.unprivileged_userns_clone is 0)", "as root: sysctl kernel.unprivileged_userns_clone=1"}
	}
	return nil
}
