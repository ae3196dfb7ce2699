package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/guest"
	"github.com/carboy/carboy/internal/guest/proto"
)

// Where the Engine has a runtime with a kernel of its own (runsc, or carboy's), a bottle is
// two containers. That kernel takes over the network cards that it finds when it starts, so
// the first container, an ordinary one with the guest program alone, has the network, into
// which carboy puts the wire. The second joins that network and has the kernel, in which the
// guest program is root and becomes the bottle's user for each command. All files that the
// kernel sees are opened for it by a process on the host, the gofer: carboy mounts the
// bottle's root where that looks.

// Paths in the kernel's container.
const (
	// volumePath names a volume, whose files the kernel looks up again each time: what was
	// mounted there after the start is seen, and what the host writes later.
	volumePath = "/.carboy"
	// goferRoot holds the container's root, in the gofer's mount namespace.
	goferRoot = "/root"
)

// goferName is argv[0] of a gofer.
const goferName = "runsc-gofer"

// kernelMemory is added to the limit on memory, for the kernel's own and its gofer's.
const kernelMemory = 256 << 20

// insideCaps lists what the guest program has of rights over the container's own kernel, none
// of them over the host: to mount that kernel's file systems, and to become the user.
var insideCaps = []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "MKNOD", "SETGID", "SETPCAP", "SETUID", "SYS_ADMIN", "SYS_CHROOT"}

// networkOf returns the container that has the network of a bottle with a kernel.
func networkOf(spec *bottle.Spec, image string) *containerConfig {
	c := configOf(spec, image)
	c.HostConfig.Memory = 64 << 20
	c.HostConfig.MemorySwap = c.HostConfig.Memory
	c.HostConfig.PidsLimit = 2 * guestPids
	return c
}

// kernelConfig returns the container with a kernel, in another one's network.
func kernelConfig(spec *bottle.Spec, image, runtime, network string) *containerConfig {
	c := configOf(spec, image)
	c.Entrypoint = []string{guestPath, "stdio"}
	c.User = "0:0"                            // of the container's own kernel
	c.Hostname, c.NetworkDisabled = "", false // these are the other one's
	c.AttachStdin, c.AttachStdout, c.OpenStdin, c.StdinOnce = true, true, true, true
	c.Volumes = map[string]struct{}{volumePath: {}}
	h := &c.HostConfig
	h.NetworkMode, h.Runtime, h.CapAdd = "container:"+network, runtime, insideCaps
	h.Memory += kernelMemory
	h.MemorySwap = h.Memory
	// Of threads on the host, of which the kernel has many for each inside. The bottle's
	// limit is kept by the kernel.
	h.PidsLimit = 16*spec.Limits.Pids + 1024
	return c
}

// beginKernel makes the bottle of two containers.
func (x *box) beginKernel(ctx context.Context, spec *bottle.Spec, t *trees, image string) (err error) {
	config := networkOf(spec, image)
	if x.networkID, err = x.engine.create(ctx, config); err != nil {
		return err
	}
	if x.network, err = x.engine.start(ctx, x.networkID, config); err != nil {
		return fmt.Errorf("the bottle's network: %w", err)
	}
	j, err := x.joinAs(ctx, joinNetwork, x.network, x.networkID, spec, nil)
	if err != nil {
		return err
	}
	x.held = j.stream // the container ends with it
	if err := x.startPump(j.tun, spec); err != nil {
		return err
	}
	stream, err := x.startKernel(ctx, spec, image)
	if err != nil {
		return err
	}
	if x.meter, err = openMeter(x.pid, x.scratch); err == nil {
		x.gofer, err = x.meter.find(goferName)
	}
	if err == nil {
		j, err = x.joinAs(ctx, joinGofer, x.gofer, x.id, spec, t)
	}
	if err != nil {
		stream.Close()
		return err
	}
	x.layers = j.layers
	if err := x.greet(ctx, stream); err != nil {
		return err
	}
	l := spec.Limits
	return x.client.Setup(ctx, &proto.Setup{
		Root: stageRoot, UID: spec.User.UID, GID: spec.User.GID, Steps: guest.KernelFiles(stageRoot),
		Limits: proto.Limits{Pids: l.Pids, FileSize: l.FileSize, OpenFiles: l.OpenFiles},
	})
}

// startKernel starts the second container, and returns the stream to the guest program in it.
func (x *box) startKernel(ctx context.Context, spec *bottle.Spec, image string) (stream io.ReadWriteCloser, err error) {
	config := kernelConfig(spec, image, x.engine.kernel.name, x.networkID)
	if x.id, err = x.engine.create(ctx, config); err != nil {
		return nil, err
	}
	if stream, err = x.engine.attach(ctx, x.id); err != nil {
		return nil, err
	}
	if x.pid, err = x.engine.start(ctx, x.id, config); err != nil {
		stream.Close()
		return nil, fmt.Errorf("the bottle's kernel (runtime %s): %w", x.engine.kernel.name, err)
	}
	return stream, nil
}

// find returns the process of the container whose argv[0] is name.
func (m *meter) find(name string) (*process, error) {
	text, err := read(m.pids + "/cgroup.procs")
	if err != nil {
		return nil, err
	}
	for _, f := range strings.Fields(text) {
		pid, err := strconv.Atoi(f)
		if err != nil || pid <= 1 {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // ended meanwhile
		}
		p := &process{pid, os.NewFile(uintptr(fd), "pidfd")}
		line, err := p.read("cmdline")
		groups, gerr := p.read("cgroup")
		if first, _, _ := strings.Cut(line, "\x00"); err == nil && gerr == nil && first == name && strings.Contains(groups, filepath.Base(m.pids)) {
			return p, nil
		}
		p.fd.Close()
	}
	return nil, fmt.Errorf("docker: the container's runtime has no process %s: it is not gVisor's, or one of another kind", name)
}

// enterGofer puts the bottle's root where the gofer looks.
func (j *joined) enterGofer(ctx context.Context, gofer *process, spec *bottle.Spec, t *trees) (err error) {
	if err := enterMounts(gofer); err != nil {
		return err
	}
	if err := errors.Join(unix.Chroot(goferRoot), unix.Chdir("/")); err != nil {
		return fmt.Errorf("enter the container's root: %w", err)
	}
	f, err := os.Open(guestPath)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := isGuest(f); err != nil {
		return &bottle.PostureError{Role: role, Reason: err.Error()}
	}
	j.layers, err = buildRoot(ctx, spec, t, false)
	return err
}

// noSegments has the card's packets come in the size of its MTU. gVisor would otherwise send
// larger ones with checksums left to the kernel at places where only Ethernet has them.
func noSegments(card string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return ethtool(fd, card, ethtoolSetGSO, 0)
}

// checkProgram returns an error unless the process runs the program of carboy's runtime.
func (p *process) checkProgram(path string) error {
	var want, have unix.Stat_t
	if err := unix.Stat(path, &want); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if err := unix.Stat(p.path("exe"), &have); err != nil {
		return &os.PathError{Op: "stat", Path: p.path("exe"), Err: err}
	}
	if want.Dev != have.Dev || want.Ino != have.Ino {
		return fmt.Errorf("runs another program than %s: was carboy replaced meanwhile?", path)
	}
	return p.alive()
}
