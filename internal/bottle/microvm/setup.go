package microvm

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/guest"
	"github.com/carboy/carboy/internal/guest/proto"
)

// Paths in the guest's own root. Commands see newRoot alone.
const (
	newRoot  = "/newroot"
	lowerDir = "/lower"
	ownDir   = lowerDir + "/own"
	scratch  = "/scratch"
	upperDir = scratch + "/upper"
	workDir  = scratch + "/work"
)

// disksSetup mounts the machine's disks.
func disksSetup(cached int) *proto.Setup {
	s := &proto.Setup{}
	lowers := []string{"own"}
	for i := range cached {
		lowers = append(lowers, fmt.Sprintf("root%d", i))
	}
	for _, l := range lowers {
		s.Steps = append(s.Steps, guest.Mkdir(lowerDir+"/"+l), guest.Mount("virtio:"+l, lowerDir+"/"+l, "erofs", "", unix.MS_RDONLY|guest.NoSet))
	}
	s.Steps = append(s.Steps,
		guest.Mkdir(scratch), guest.Mount("virtio:scratch", scratch, "ext4", "noinit_itable,discard", guest.NoSet|unix.MS_NOATIME),
		guest.Mkdir(upperDir), guest.Mkdir(workDir))
	return s
}

// rootSetup stacks the layers, mounts the kernel's file systems and configures the rest.
func rootSetup(spec *bottle.Spec, im *images) *proto.Setup {
	layers := []string{ownDir + layerDir}
	for i := len(im.cached) - 1; i >= 0; i-- {
		layers = append(layers, fmt.Sprintf("%s/root%d", lowerDir, i))
	}
	s := &proto.Setup{
		Hostname: spec.Hostname, Root: newRoot, UID: spec.User.UID, GID: spec.User.GID, Upper: scratch, Cgroup: true,
		Limits: proto.Limits{
			Memory: spec.Limits.Memory, Pids: spec.Limits.Pids, CPUs: spec.Limits.CPUs,
			FileSize: spec.Limits.FileSize, OpenFiles: spec.Limits.OpenFiles,
		},
		Net: network(spec),
	}
	s.Steps = append(s.Steps, guest.Mkdir(newRoot),
		guest.Mount("overlay", newRoot, "overlay", fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,xino=auto", strings.Join(layers, ":"), upperDir, workDir), guest.NoSet))
	s.Steps = append(s.Steps, guest.KernelFiles(newRoot)...)
	for _, m := range im.mounts {
		s.Steps = append(s.Steps, guest.Mount(ownDir+m.from, newRoot+m.target, "", "", unix.MS_BIND))
	}
	if spec.Workspace != nil && spec.Workspace.Access == bottle.AccessOverlay {
		// Brings the directory into the upper layer, where Export looks.
		w := im.workspace
		s.Steps = append(s.Steps, proto.Step{Op: "mkdir", Path: newRoot + spec.Workspace.Target, Mode: uint32(w.Mode.Perm()), UID: w.UID, GID: w.GID})
	}
	return s
}

// network configures the machine's card; nil: it has none.
func network(spec *bottle.Spec) *proto.Net {
	n := spec.Net
	if spec.Wire == nil {
		return nil
	}
	return &proto.Net{
		MAC: n.BottleMAC.String(), MTU: n.MTU,
		Addrs: []string{n.Bottle4.String(), n.Bottle6.String()}, Gateways: []string{n.Gateway4.String(), n.Gateway6.String()},
	}
}
