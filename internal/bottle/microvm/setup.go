package microvm

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
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

const noSet = unix.MS_NOSUID | unix.MS_NODEV

func mkdir(path string) proto.Step { return proto.Step{Op: "mkdir", Path: path, Mode: 0o755} }

func mount(source, path, kind, data string, flags uint64) proto.Step {
	return proto.Step{Op: "mount", Source: source, Path: path, Type: kind, Data: data, Flags: flags}
}

// disksSetup mounts the machine's disks.
func disksSetup(cached int) *proto.Setup {
	s := &proto.Setup{}
	lowers := []string{"own"}
	for i := range cached {
		lowers = append(lowers, fmt.Sprintf("root%d", i))
	}
	for _, l := range lowers {
		s.Steps = append(s.Steps, mkdir(lowerDir+"/"+l), mount("virtio:"+l, lowerDir+"/"+l, "erofs", "", unix.MS_RDONLY|noSet))
	}
	s.Steps = append(s.Steps,
		mkdir(scratch), mount("virtio:scratch", scratch, "ext4", "noinit_itable,discard", noSet|unix.MS_NOATIME),
		mkdir(upperDir), mkdir(workDir))
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
	s.Steps = append(s.Steps, mkdir(newRoot),
		mount("overlay", newRoot, "overlay", fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,xino=auto", strings.Join(layers, ":"), upperDir, workDir), noSet),
		mount("proc", newRoot+"/proc", "proc", "hidepid=2", noSet|unix.MS_NOEXEC),
		mount("sysfs", newRoot+"/sys", "sysfs", "", noSet|unix.MS_NOEXEC|unix.MS_RDONLY))
	s.Steps = append(s.Steps, devices(newRoot+"/dev")...)
	for _, m := range im.mounts {
		s.Steps = append(s.Steps, mount(ownDir+m.from, newRoot+m.target, "", "", unix.MS_BIND))
	}
	if spec.Workspace != nil && spec.Workspace.Access == bottle.AccessOverlay {
		// Brings the directory into the upper layer, where Export looks.
		w := im.workspace
		s.Steps = append(s.Steps, proto.Step{Op: "mkdir", Path: newRoot + spec.Workspace.Target, Mode: uint32(w.Mode.Perm()), UID: w.UID, GID: w.GID})
	}
	return s
}

// devices makes the few device files that programs expect.
func devices(dev string) []proto.Step {
	out := []proto.Step{mount("dev", dev, "tmpfs", "mode=0755,size=64k", unix.MS_NOSUID|unix.MS_NOEXEC)}
	for _, d := range []struct {
		name         string
		major, minor uint32
	}{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}} {
		out = append(out, proto.Step{Op: "node", Path: dev + "/" + d.name, Mode: unix.S_IFCHR | 0o666, Flags: unix.Mkdev(d.major, d.minor)})
	}
	for _, l := range [][2]string{{"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"}, {"ptmx", "pts/ptmx"}} {
		out = append(out, proto.Step{Op: "symlink", Path: dev + "/" + l[0], Source: l[1]})
	}
	return append(out,
		mkdir(dev+"/pts"), mount("/dev/pts", dev+"/pts", "", "", unix.MS_BIND),
		mkdir(dev+"/shm"), mount("shm", dev+"/shm", "tmpfs", "mode=1777", noSet))
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
