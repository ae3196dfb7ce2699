// Package docker makes bottles of containers of a Docker Engine of this machine.
//
// A container has no network of the Engine's, no capability, no new privileges, a
// read-only root of the Engine's, and the guest program (package agent) as its first
// process. carboy itself puts wire and files into it, from outside, before anything else
// runs there (see join.go), so raw packets, names and neighbours have no way but the wire.
// Its system calls are served by the kernel of the host: the class is "container". Where the
// Engine has a runtime with a kernel of its own, bottles are made under that, as kernel.go
// describes: the class is "user-kernel".
//
// Joining a container's namespaces takes root's rights. Where carboy has not got them, a
// helper does it, as helper.go describes. Start reading at Backend.Create.
package docker

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/guest"
	"github.com/carboy/carboy/internal/dockerapi"
	"github.com/carboy/carboy/internal/guest/program"
	"github.com/carboy/carboy/internal/guest/proto"
)

const name = "docker"

// endPatience bounds the wait for the Engine, and that for the processes, when a bottle
// ends; a healthy machine takes a moment.
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

// isolationIn bounds the question to the Engine about its runtimes.
const isolationIn = 10 * time.Second

// Isolation implements bottle.Backend. It asks the Engine each time: a runtime can come and
// go while carboy runs.
func (Backend) Isolation() bottle.Isolation {
	ctx, cancel := context.WithTimeout(context.Background(), isolationIn)
	defer cancel()
	e, err := usable(ctx)
	if err != nil {
		return ""
	}
	return e.isolation()
}

// Capabilities implements bottle.Backend.
func (Backend) Capabilities() bottle.Capabilities {
	return bottle.Capabilities{
		Facts: bottle.FactsNone, ReadWrite: true, LiveMounts: true,
		Why: map[bottle.Capability]string{
			bottle.CapFacts:      "the kernel that serves the system calls is the host's, or that of the Engine's runtime, and tells carboy nothing of them",
			bottle.CapChannels:   "that kernel has the connections, too, and a network card takes packets alone",
			bottle.CapLiveFreeze: "Docker keeps files and no processes",
			bottle.CapDiskLimit:  "a directory on disk has no limit of its own: carboy looks at its size and ends the run",
		},
	}
}

// Check implements bottle.Backend.
func (Backend) Check(ctx context.Context) error {
	_, err := usable(ctx)
	return err
}

// usable returns the Engine, if it and this machine can hold bottles.
func usable(ctx context.Context) (*engine, error) {
	e, err := connect(ctx)
	if err == nil {
		err = e.suitable(ctx)
	}
	if err != nil {
		return nil, err
	}
	e.helps = os.Geteuid() != 0
	return e, nil
}

// Probe implements bottle.Prober.
func (b Backend) Probe(ctx context.Context, spec *bottle.Spec) (bottle.Posture, error) {
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
func (Backend) Create(ctx context.Context, spec *bottle.Spec) (bottle.Bottle, error) {
	// What is used further on is duplicated.
	defer closeAll(spec.Files())
	if err := refuseSpec(spec); err != nil {
		return nil, err
	}
	e, err := usable(ctx)
	if err != nil {
		return nil, err
	}
	t := &trees{}
	if !e.helps { // else the helper does
		if t, err = openTrees(spec, asked{kernel: e.kernel.name != ""}); err != nil {
			return nil, err
		}
	}
	defer t.close()
	x := &box{engine: e, scratch: t.scratchName, closing: make(chan struct{}), done: make(chan struct{})}
	if err := x.begin(ctx, spec, t); err != nil {
		return nil, errors.Join(err, x.destroy())
	}
	go x.watch()
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
	engine *engine
	id     string // of the container
	pid    *process
	// Under a runtime with a kernel of its own, pid is that kernel, gofer opens its files,
	// and network is the first process of the container that has the network. held keeps
	// that one alive.
	gofer, network *process
	networkID      string
	held           *os.File

	client  *guest.Client
	pump    *pump
	layers  []layer
	scratch string // a directory to be removed; empty: none
	meter   *meter
	paused  atomic.Bool // the container may be
	copies  bottle.WholeCopies
	posture bottle.Posture

	once    sync.Once
	closing chan struct{} // closed when the end begins
	done    chan struct{}
	err     error // of the end

	mu     sync.RWMutex // held while layers are used, and alone when they are closed
	closed bool
}

// begin makes the containers, makes them a bottle, and verifies it. If it returns an error, a
// part of them may exist, which the caller destroys.
func (x *box) begin(ctx context.Context, spec *bottle.Spec, t *trees) error {
	if err := x.engine.sweep(ctx); err != nil {
		return err
	}
	image, err := x.engine.guestImage(ctx)
	if err != nil {
		return err
	}
	if x.engine.kernel.name != "" {
		err = x.beginKernel(ctx, spec, t, image)
	} else {
		err = x.beginShared(ctx, spec, t, image)
	}
	if err != nil {
		return err
	}
	x.posture, err = x.verify(ctx, spec)
	return err
}

// beginShared makes the bottle of one container, with the kernel of the host.
func (x *box) beginShared(ctx context.Context, spec *bottle.Spec, t *trees, image string) (err error) {
	config := configOf(spec, image)
	if x.id, err = x.engine.create(ctx, config); err != nil {
		return err
	}
	if x.pid, err = x.engine.start(ctx, x.id, config); err != nil {
		return err
	}
	j, err := x.joinAs(ctx, joinWhole, x.pid, x.id, spec, t)
	if err != nil {
		return err
	}
	x.layers = j.layers
	if err := x.startPump(j.tun, spec); err != nil {
		j.stream.Close()
		return err
	}
	if err := x.greet(ctx, j.stream); err != nil {
		return err
	}
	l := spec.Limits
	if err := x.client.Setup(ctx, &proto.Setup{Filter: true, Limits: proto.Limits{FileSize: l.FileSize, OpenFiles: l.OpenFiles}}); err != nil {
		return err
	}
	x.meter, err = openMeter(x.pid, x.scratch)
	return err
}

// startPump takes tun, which is nil without a wire.
func (x *box) startPump(tun *os.File, spec *bottle.Spec) (err error) {
	if tun != nil {
		x.pump, err = startPump(tun, spec.Wire)
	}
	return err
}

// greet takes the stream to the guest program.
func (x *box) greet(ctx context.Context, stream io.ReadWriteCloser) (err error) {
	ctx, cancel := context.WithTimeout(ctx, beginPatience)
	defer cancel()
	x.client, err = guest.Connect(ctx, stream)
	return err
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

// destroy ends the containers and returns when no process of them is left. What is already
// gone is no error.
func (x *box) destroy() error {
	ctx, cancel := context.WithTimeout(context.Background(), endPatience)
	defer cancel()
	var errs []error
	processes := slices.DeleteFunc([]*process{x.pid, x.gofer, x.network}, func(p *process) bool { return p == nil })
	for _, p := range processes {
		// It ends even if the Engine does not answer; unless it is paused, at once.
		_ = unix.PidfdSendSignal(int(p.fd.Fd()), unix.SIGKILL, nil, 0)
	}
	for _, id := range []string{x.id, x.networkID} {
		if id == "" {
			continue
		}
		err := x.engine.remove(ctx, id, id == x.id && x.paused.Load())
		if answer := (*dockerapi.Error)(nil); err != nil && !errors.As(err, &answer) && len(processes) > 0 {
			// The Engine has ended or hangs. It is enough that the processes end; what
			// it remembers of the container is removed by the next carboy.
			x.meter.thaw()
			err = nil
		}
		errs = append(errs, err)
	}
	if x.client != nil {
		_ = x.client.Close()
	}
	if x.held != nil {
		x.held.Close()
	}
	if x.pump != nil {
		x.pump.close()
	}
	for _, p := range processes {
		errs = append(errs, p.await(endPatience))
		p.fd.Close()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
	for _, l := range x.layers {
		l.dir.Close()
	}
	if x.scratch != "" {
		errs = append(errs, os.RemoveAll(x.scratch))
	}
	return errors.Join(errs...)
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
	x.paused.Store(true) // also if the answer does not come
	err := x.engine.call(ctx, "POST", container(x.id, "/pause"), nil, nil, nil)
	if err != nil && x.over() {
		return bottle.ErrGone
	}
	return err
}

// Checkpoint implements bottle.Bottle.
func (x *box) Checkpoint(ctx context.Context, o bottle.CheckpointOptions, w io.Writer) (bottle.Checkpointed, error) {
	goOn := func(ctx context.Context) error {
		err := x.engine.call(ctx, "POST", container(x.id, "/unpause"), nil, nil, nil)
		x.paused.Store(err != nil)
		return err
	}
	return x.copies.Checkpoint(ctx, x.Pause, goOn, x.ExportAll, o, w)
}

// Export implements bottle.Bottle.
func (x *box) Export(ctx context.Context, w io.Writer) error {
	for i, l := range x.layers {
		if l.workspace {
			return x.export(ctx, w, x.layers[i:i+1])
		}
	}
	return x.export(ctx, w, nil)
}

// ExportAll implements bottle.Bottle.
func (x *box) ExportAll(ctx context.Context, w io.Writer) error {
	return x.export(ctx, w, x.layers)
}

// Usage implements bottle.Bottle.
func (x *box) Usage() (u bottle.Usage, err error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.closed || x.over() {
		return u, bottle.ErrGone
	}
	if u.Memory, err = x.meter.used(); err == nil {
		u.Disk, err = x.meter.diskUsage()
	}
	return u, err
}

// Refusals implements bottle.Bottle. A kernel of the container's own counts none.
func (x *box) Refusals(context.Context) (bottle.Refusals, error) {
	if x.over() {
		return bottle.Refusals{}, bottle.ErrGone
	}
	if x.gofer != nil {
		return bottle.Refusals{}, nil
	}
	return x.meter.refusals()
}
