// Package docker makes bottles of containers of a Docker Engine of this machine.
//
// A container has no network of the Engine's, no capability, no new privileges, a
// read-only root of the Engine's, and the guest program (package agent) as its first
// process. carboy itself puts wire and files into it, from outside, before anything else
// runs there (see join.go), so raw packets, names and neighbours have no way but the wire.
// Its system calls are served by the kernel of the host: the class is "container".
//
// It needs root: the thread that joins the container's namespaces does. Start reading at
// Backend.Create.
package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/guest"
	"github.com/carboy/carboy/internal/guest/program"
	"github.com/carboy/carboy/internal/guest/proto"
)

const name = "docker"

// endPatience bounds the removal of a container; a healthy Engine takes a moment.
const endPatience = 2 * time.Minute

// Backend makes bottles of containers.
type Backend struct{}

var (
	_ bottle.Backend = Backend{}
	_ bottle.Prober  = Backend{}
)

// Name implements bottle.Backend.
func (Backend) Name() string { return name }

// Build implements bottle.Backend: it is that of the program inside.
func (Backend) Build() string {
	d, err := program.Digest()
	if err != nil {
		return "unknown"
	}
	return "guest-" + d[:16]
}

// Isolation implements bottle.Backend.
func (Backend) Isolation() bottle.Isolation { return bottle.IsolationContainer }

// Capabilities implements bottle.Backend.
func (Backend) Capabilities() bottle.Capabilities {
	return bottle.Capabilities{
		Facts: bottle.FactsNone, ReadWrite: true, LiveMounts: true,
		Why: map[bottle.Capability]string{
			bottle.CapFacts:      "the kernel of the host serves the system calls, and tells carboy nothing of them",
			bottle.CapChannels:   "the kernel of the host has the connections, and knows packets only",
			bottle.CapLiveFreeze: "Docker keeps files and no processes",
			bottle.CapDiskLimit:  "a directory on disk has no limit of its own: carboy looks at its size and ends the run",
		},
	}
}

// Check implements bottle.Backend.
func (Backend) Check(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return &bottle.UnavailableError{
			Backend: name, Reason: "only root can put wire and files into a container",
			Advice: "run carboy with sudo, or use the backend gvisor, which needs no root and is the stronger boundary",
		}
	}
	e, err := connect(ctx)
	if err != nil {
		return err
	}
	return e.suitable(ctx)
}

// suitable reports why this Engine cannot hold bottles.
func (e *engine) suitable(ctx context.Context) error {
	var info struct {
		OSType          string
		Runtimes        map[string]any
		SecurityOptions []string
	}
	if err := e.call(ctx, "GET", "/info", nil, nil, &info); err != nil {
		return e.unreachable(err)
	}
	refuse := func(reason, advice string) error {
		return &bottle.UnavailableError{Backend: name, Reason: reason, Advice: advice}
	}
	seccomp := false
	for _, o := range info.SecurityOptions {
		switch {
		case o == "name=rootless":
			return refuse("the Engine at "+e.socket+" is a rootless one, which root's carboy does not use", "set DOCKER_HOST to the system's Engine")
		case o == "name=userns":
			return refuse("the Engine at "+e.socket+" maps users (userns-remap), so files of the host would change hands", "use an Engine without userns-remap, or the backend gvisor")
		case len(o) >= 12 && o[:12] == "name=seccomp":
			seccomp = true
		}
	}
	switch {
	case info.OSType != "linux":
		return refuse("the Engine at "+e.socket+" is not one for Linux", "use Docker on Linux")
	case info.Runtimes[runtimeName] == nil:
		return refuse("the Engine at "+e.socket+" has no runtime "+runtimeName, "install runc")
	case !seccomp:
		return refuse("the Engine at "+e.socket+" has no seccomp filters", "use a kernel and an Engine with seccomp")
	}
	return nil
}

// Probe implements bottle.Prober.
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

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// Create implements bottle.Backend.
func (b Backend) Create(ctx context.Context, spec *bottle.Spec) (bottle.Bottle, error) {
	// What is used further on is duplicated.
	defer closeAll(spec.Files())
	if err := refuseSpec(spec); err != nil {
		return nil, err
	}
	if err := b.Check(ctx); err != nil {
		return nil, err
	}
	t, err := openTrees(spec)
	if err != nil {
		return nil, err
	}
	defer t.close()
	e, err := connect(ctx)
	if err == nil {
		err = e.sweep(ctx)
	}
	var image string
	if err == nil {
		image, err = e.guestImage(ctx)
	}
	x := &box{engine: e, done: make(chan struct{}), scratch: t.scratchName}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		x.id, err = e.create(ctx, spec, image)
	}
	if err == nil {
		err = x.begin(ctx, spec, t)
	}
	if err != nil {
		return nil, errors.Join(err, x.destroy())
	}
	return x, nil
}

func refuseSpec(spec *bottle.Spec) error {
	if err := spec.Limits.Validate(); err != nil {
		return err
	}
	if spec.User.UID == 0 || spec.User.GID == 0 {
		return errors.New("docker: a bottle's user must not be root")
	}
	if spec.Thaw != nil {
		return errors.New("docker: processes cannot be brought back: Docker keeps files only")
	}
	if spec.Wire != nil {
		return spec.Net.Validate()
	}
	return nil
}

// box is a live bottle.
type box struct {
	engine  *engine
	id      string // of the container
	pid     *process
	client  *guest.Client
	pump    *pump
	layers  []layer
	meter   *meter
	posture bottle.Posture
	scratch string // a directory to be removed; empty: none

	once    sync.Once
	closing chan struct{} // closed when the end begins
	done    chan struct{}
	err     error // of the end

	mu     sync.Mutex // held while files are read, and when they are closed
	closed bool
}

// begin starts the container, makes it a bottle and verifies it.
func (x *box) begin(ctx context.Context, spec *bottle.Spec, t *trees) error {
	if err := x.engine.start(ctx, x.id); err != nil {
		return err
	}
	c, err := x.engine.inspect(ctx, x.id)
	if err != nil {
		return err
	}
	if x.pid, err = openProcess(c.State.Pid); err != nil {
		return err
	}
	// The number was the container's if it still runs with it now.
	if c, err = x.engine.inspect(ctx, x.id); err != nil {
		return err
	}
	if !c.State.Running || c.State.Pid != x.pid.pid {
		return errors.New("docker: the container ended at once")
	}
	if err := c.check(spec); err != nil {
		return err
	}
	j, err := join(ctx, x.pid, spec, t)
	if err != nil {
		return err
	}
	x.layers = j.layers
	if x.client, err = guest.Connect(ctx, j.stream); err != nil {
		if j.tun != nil {
			j.tun.Close()
		}
		return err
	}
	if j.tun != nil {
		if x.pump, err = startPump(j.tun, spec.Wire); err != nil {
			return err
		}
	}
	l := spec.Limits
	if err := x.client.Setup(ctx, &proto.Setup{Filter: true, Limits: proto.Limits{FileSize: l.FileSize, OpenFiles: l.OpenFiles}}); err != nil {
		return err
	}
	if x.meter, err = openMeter(x.pid, x.scratch); err != nil {
		return err
	}
	if x.posture, err = x.verify(spec); err != nil {
		return err
	}
	x.closing = make(chan struct{})
	go x.watch()
	return nil
}

// watch ends the bottle when its stream ends.
func (x *box) watch() {
	select {
	case <-x.client.Done():
	case <-x.closing:
	}
	x.err = x.destroy()
	close(x.done)
}

// destroy ends the container and returns when no process of it is left. What is already
// gone is no error.
func (x *box) destroy() error {
	ctx, cancel := context.WithTimeout(context.Background(), endPatience)
	defer cancel()
	var errs []error
	if x.pid != nil {
		// It ends even if the Engine does not answer; unless it is paused, at once.
		_ = unix.PidfdSendSignal(int(x.pid.fd.Fd()), unix.SIGKILL, nil, 0)
	}
	var engineErr error
	if x.id != "" {
		engineErr = x.engine.remove(ctx, x.id)
	}
	if x.client != nil {
		_ = x.client.Close()
	}
	if x.pump != nil {
		x.pump.close()
	}
	if x.pid != nil {
		if err := x.pid.await(ctx); err != nil {
			errs = append(errs, err)
		} else if e := (*engineError)(nil); !errors.As(engineErr, &e) {
			// The Engine has ended, and so has every process. What it remembers of
			// the container is removed by the next carboy.
			engineErr = nil
		}
		x.pid.fd.Close()
	}
	errs = append(errs, engineErr)
	x.mu.Lock()
	x.closed = true
	for _, l := range x.layers {
		l.dir.Close()
	}
	x.mu.Unlock()
	if x.scratch != "" {
		errs = append(errs, os.RemoveAll(x.scratch))
	}
	return errors.Join(errs...)
}

// await blocks until the process has ended.
func (p *process) await(ctx context.Context) error {
	polls := []unix.PollFd{{Fd: int32(p.fd.Fd()), Events: unix.POLLIN}}
	for ctx.Err() == nil {
		n, err := unix.Poll(polls, 100)
		if err != nil && err != unix.EINTR {
			return err
		}
		if n > 0 {
			return nil
		}
	}
	return fmt.Errorf("process %d of the container has not ended: %w", p.pid, ctx.Err())
}

// Posture implements bottle.Bottle.
func (x *box) Posture() bottle.Posture { return x.posture }

// Done implements bottle.Bottle.
func (x *box) Done() <-chan struct{} { return x.done }

// Close implements bottle.Bottle.
func (x *box) Close() error {
	x.once.Do(func() { close(x.closing) })
	<-x.done
	return x.err
}

// over reports whether the bottle's end has begun.
func (x *box) over() bool {
	select {
	case <-x.closing:
		return true
	case <-x.client.Done():
		return true
	default:
		return false
	}
}

// Start implements bottle.Bottle.
func (x *box) Start(ctx context.Context, cmd *bottle.Command) (bottle.Process, error) {
	return x.client.Start(ctx, cmd)
}

// Pause implements bottle.Bottle.
func (x *box) Pause(ctx context.Context) error {
	if x.over() {
		return bottle.ErrGone
	}
	err := x.engine.call(ctx, "POST", "/containers/"+x.id+"/pause", nil, nil, nil)
	if err != nil && x.over() {
		return bottle.ErrGone
	}
	return err
}

// Export implements bottle.Bottle.
func (x *box) Export(ctx context.Context, w io.Writer) error {
	for _, l := range x.layers[1:] { // the first is the root's
		if l.workspace {
			return x.export(ctx, w, []layer{l})
		}
	}
	return x.export(ctx, w, nil)
}

// ExportAll implements bottle.Bottle.
func (x *box) ExportAll(ctx context.Context, w io.Writer) error {
	return x.export(ctx, w, x.layers)
}

// Usage implements bottle.Bottle.
func (x *box) Usage() (bottle.Usage, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed || x.over() {
		return bottle.Usage{}, bottle.ErrGone
	}
	return x.meter.usage()
}

// Refusals implements bottle.Bottle.
func (x *box) Refusals(context.Context) (bottle.Refusals, error) {
	if x.over() {
		return bottle.Refusals{}, bottle.ErrGone
	}
	return x.meter.refusals()
}
