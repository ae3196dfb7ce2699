package gvisor

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
)

// buildRights returns the capabilities of a bottle that builds an image: those that packages
// need to set owners and modes and to become other users. The kernel inside grants them over
// its own files and processes. None lets it make devices, mounts or raw packets.
func buildRights() auth.TaskCapabilities {
	set := auth.CapabilitySetOfMany([]linux.Capability{
		linux.CAP_CHOWN, linux.CAP_DAC_OVERRIDE, linux.CAP_FOWNER, linux.CAP_FSETID, linux.CAP_KILL, linux.CAP_SETGID,
		linux.CAP_SETUID, linux.CAP_SETPCAP, linux.CAP_SETFCAP, linux.CAP_NET_BIND_SERVICE, linux.CAP_SYS_CHROOT,
	})
	return auth.TaskCapabilities{PermittedCaps: set, EffectiveCaps: set, BoundingCaps: set}
}
