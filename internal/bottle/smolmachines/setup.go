package smolmachines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/guest/proto"
)

// Paths in the machine's own root. Commands see newRoot alone.
const (
	volumesDir = "/carboy/host"    // volumes of the host
	ownDir     = "/carboy/own"     // what was sent
	scratch    = "/carboy/scratch" // what the bottle writes
	upperDir   = scratch + "/upper"
	workDir    = scratch + "/work"
	newRoot    = "/carboy/root"
)

const noSet = unix.MS_NOSUID | unix.MS_NODEV

// statOf returns the result of lstat(2) in info.
func statOf(info fs.FileInfo) (unix.Stat_t, error) {
	sys, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return unix.Stat_t{}, errors.New("the file's owner is unknown")
	}
	return unix.Stat_t{Mode: sys.Mode, Uid: sys.Uid, Gid: sys.Gid}, nil
}

func mkdir(path string) proto.Step { return proto.Step{Op: "mkdir", Path: path, Mode: 0o755} }

func mount(source, path, kind, data string, flags uint64) proto.Step {
	return proto.Step{Op: "mount", Source: source, Path: path, Type: kind, Data: data, Flags: flags}
}

// setUp makes the machine the bottle of the spec.
func (x *box) setUp(ctx context.Context) error {
	limits := x.spec.Limits
	first := &proto.Setup{Steps: []proto.Step{
		mkdir(ownDir), mount("own", ownDir, "tmpfs", fmt.Sprintf("mode=0755,size=%d", x.files.size+x.files.size/8+16*mib), noSet),
		mkdir(scratch), mount("scratch", scratch, "tmpfs", fmt.Sprintf("mode=0755,size=%d", limits.Disk), noSet),
		mkdir(upperDir), mkdir(workDir),
	}}
	if err := x.guest.Setup(ctx, first); err != nil {
		return fmt.Errorf("set up the machine's memory: %w", err)
	}
	if err := x.send(ctx); err != nil {
		return fmt.Errorf("send the bottle's files: %w", err)
	}
	if x.spec.Upper != nil {
		if err := x.guest.Import(ctx, upperDir, x.spec.Upper); err != nil {
			return fmt.Errorf("bring in the files of before: %w", err)
		}
	}
	second := &proto.Setup{
		Hostname: x.spec.Hostname, Root: newRoot, UID: x.files.uid, GID: x.files.gid, Upper: scratch, Cgroup: true,
		Limits: proto.Limits{Memory: limits.Memory, Pids: limits.Pids, CPUs: limits.CPUs, FileSize: limits.FileSize, OpenFiles: limits.OpenFiles},
		Steps:  x.rootSteps(),
	}
	if err := x.guest.Setup(ctx, second); err != nil {
		return fmt.Errorf("set up the machine: %w", err)
	}
	return nil
}

// send streams the bottle's own files into the machine.
func (x *box) send(ctx context.Context) error {
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() { // ends with the stream, or when the reader is gone
		err := x.files.stream(w)
		w.CloseWithError(err)
		sent <- err
	}()
	err := x.guest.Import(ctx, ownDir, r)
	_ = r.CloseWithError(io.ErrClosedPipe)
	if why := <-sent; why != nil && !errors.Is(why, io.ErrClosedPipe) {
		return why
	}
	return err
}

// rootSteps stack the layers and mount what goes into the root.
func (x *box) rootSteps() []proto.Step {
	lower := ownDir + "/" + layerDir
	if x.files.root != "" {
		lower += ":" + x.files.root
	}
	steps := []proto.Step{
		mkdir(newRoot),
		mount("overlay", newRoot, "overlay", fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, upperDir, workDir), noSet),
	}
	for _, b := range x.files.binds {
		if b.source == "" {
			steps = append(steps, mount("empty", newRoot+b.target, "tmpfs", "mode=0555,size=4k", noSet|unix.MS_RDONLY))
			continue
		}
		steps = append(steps,
			mount(b.source, newRoot+b.target, "", "", unix.MS_BIND),
			mount("", newRoot+b.target, "", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|noSet))
	}
	steps = append(steps,
		mount("proc", newRoot+"/proc", "proc", "hidepid=2", noSet|unix.MS_NOEXEC),
		mount("sysfs", newRoot+"/sys", "sysfs", "", noSet|unix.MS_NOEXEC|unix.MS_RDONLY))
	steps = append(steps, devices(newRoot+"/dev")...)
	if w := x.spec.Workspace; w != nil && w.Access == bottle.AccessOverlay {
		// Brings the directory into the upper layer, where Export looks.
		it := x.files.items[x.files.at[layerDir+w.Target]]
		steps = append(steps, proto.Step{Op: "mkdir", Path: newRoot + w.Target, Mode: uint32(it.mode.Perm()), UID: it.uid, GID: it.gid})
	}
	return steps
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
