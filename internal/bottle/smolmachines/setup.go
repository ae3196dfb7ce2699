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
	"github.com/carboy/carboy/internal/bottle/guest"
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

// statOf returns the result of lstat(2) in info.
func statOf(info fs.FileInfo) (unix.Stat_t, error) {
	sys, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return unix.Stat_t{}, errors.New("the file's owner is unknown")
	}
	return unix.Stat_t{Mode: sys.Mode, Uid: sys.Uid, Gid: sys.Gid}, nil
}

// setUp makes the machine the bottle of the spec.
func (x *box) setUp(ctx context.Context) error {
	limits := x.spec.Limits
	first := &proto.Setup{Steps: []proto.Step{
		guest.Mkdir(ownDir), guest.Mount("own", ownDir, "tmpfs", fmt.Sprintf("mode=0755,size=%d", x.files.size+x.files.size/8+16*mib), guest.NoSet),
		guest.Mkdir(scratch), guest.Mount("scratch", scratch, "tmpfs", fmt.Sprintf("mode=0755,size=%d", limits.Disk), guest.NoSet),
		guest.Mkdir(upperDir), guest.Mkdir(workDir),
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
		guest.Mkdir(newRoot),
		guest.Mount("overlay", newRoot, "overlay", fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, upperDir, workDir), guest.NoSet),
	}
	for _, b := range x.files.binds {
		if b.source == "" {
			steps = append(steps, guest.Mount("empty", newRoot+b.target, "tmpfs", "mode=0555,size=4k", guest.NoSet|unix.MS_RDONLY))
			continue
		}
		steps = append(steps,
			guest.Mount(b.source, newRoot+b.target, "", "", unix.MS_BIND),
			guest.Mount("", newRoot+b.target, "", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|guest.NoSet))
	}
	steps = append(steps, guest.KernelFiles(newRoot)...)
	if w := x.spec.Workspace; w != nil && w.Access == bottle.AccessOverlay {
		// Brings the directory into the upper layer, where Export looks.
		it := x.files.items[x.files.at[layerDir+w.Target]]
		steps = append(steps, proto.Step{Op: "mkdir", Path: newRoot + w.Target, Mode: uint32(it.mode.Perm()), UID: it.uid, GID: it.gid})
	}
	return steps
}
