package microvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/guest"
	"github.com/carboy/carboy/internal/guest/proto"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/wire"
)

// ownMemory, in MiB, goes to the machine's kernel and the guest program, beside the bottle's
// memory.
const ownMemory = 192

// box is a live bottle.
type box struct {
	spec    *bottle.Spec
	layers  []proto.Layer // of Export
	posture bottle.Posture
	vm      *hostexec.SealedProcess
	guest   *guest.Client
	copies  bottle.WholeCopies
	done    chan struct{}
	once    sync.Once
}

// Create implements bottle.Backend.
func (Backend) Create(ctx context.Context, spec *bottle.Spec) (bottle.Bottle, error) {
	defer closeAll(spec.Files())
	k, err := suitable()
	if err != nil {
		return nil, err
	}
	if err := admit(spec); err != nil {
		return nil, err
	}
	p, err := prepare(ctx, spec, k)
	if err != nil {
		return nil, err
	}
	defer p.close()
	x, err := p.boot(ctx)
	if err != nil {
		return nil, err
	}
	if err := x.setUp(ctx, p); err != nil {
		x.Close()
		return nil, x.explain(err)
	}
	return x, nil
}

// admit refuses what this backend can't give.
func admit(spec *bottle.Spec) error {
	if err := spec.Limits.Validate(); err != nil {
		return err
	}
	if spec.Thaw != nil {
		return &bottle.UnavailableError{Backend: name, Reason: "frozen processes can't be restored", Advice: "resume without them: the files are kept"}
	}
	if spec.Wire != nil {
		if err := spec.Net.Validate(); err != nil {
			return err
		}
		if spec.Net.BottleMAC == (wire.MAC{}) {
			return errors.New("microvm: the wire carries IP packets, and a virtual machine sends Ethernet frames")
		}
	}
	return nil
}

// prepared is a machine that can be started.
type prepared struct {
	spec   *bottle.Spec
	runner *hostexec.Runner
	m      *machine
	im     *images
	ours   net.Conn // our end of the guest program's stream; nil once it is given away
	files  []*os.File
}

func (p *prepared) close() {
	closeAll(p.files)
	if p.ours != nil {
		p.ours.Close()
	}
}

// own makes p close f.
func (p *prepared) own(f *os.File) *os.File {
	p.files = append(p.files, f)
	return f
}

// prepare makes what the machine needs: images, disks and the stream.
func prepare(ctx context.Context, spec *bottle.Spec, k *kernel) (_ *prepared, err error) {
	p := &prepared{spec: spec}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	c, err := openCache()
	if err != nil {
		return nil, err
	}
	var untrusted []string
	if spec.Workspace != nil && spec.Workspace.Source != "" {
		untrusted = append(untrusted, spec.Workspace.Source)
	}
	if p.runner, err = hostexec.New(hostexec.Options{Untrusted: untrusted, Scratch: c.dir}); err != nil {
		return nil, err
	}
	own, err := scratchFile(spec, "image")
	if err != nil {
		return nil, err
	}
	p.own(own)
	if p.im, err = makeImages(ctx, spec, c, own); err != nil {
		return nil, err
	}
	readable, err := forReading(own)
	if err != nil {
		return nil, err
	}
	p.own(readable)
	scratch, err := scratchDisk(ctx, c, p.runner, spec)
	if err != nil {
		return nil, err
	}
	p.own(scratch)
	p.m = &machine{
		kernel: k.path, memory: (spec.Limits.Memory+mib-1)/mib + ownMemory, cpus: min(spec.Limits.CPUs, runtime.NumCPU()),
		emulated: emulated(), uid: int(spec.HostUID), gid: int(spec.HostGID),
		disks: []disk{{"own", readable, false}, {"scratch", scratch, true}},
	}
	if p.m.initrd, err = c.initramfs(ctx, k); err != nil {
		return nil, err
	}
	for i, path := range p.im.cached {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		p.m.disks = append(p.m.disks, disk{fmt.Sprintf("root%d", i), p.own(f), false})
	}
	if spec.Wire != nil {
		p.m.wire, p.m.mac, p.m.mtu = spec.Wire, spec.Net.BottleMAC.String(), spec.Net.MTU
	}
	return p, p.stream()
}

// stream makes the socket pair between carboy and the guest program.
func (p *prepared) stream() error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	p.m.control = p.own(os.NewFile(uintptr(fds[1]), "control"))
	ours := os.NewFile(uintptr(fds[0]), "control")
	defer ours.Close()
	p.ours, err = net.FileConn(ours)
	return err
}

// boot starts the machine and waits for the guest program.
func (p *prepared) boot(ctx context.Context) (*box, error) {
	vm, err := p.m.start(ctx, p.runner)
	if err != nil {
		return nil, err
	}
	x := &box{spec: p.spec, vm: vm, done: make(chan struct{})}
	// QEMU has its copies now. Without ours, its end is the end of the stream and wire.
	p.m.control.Close()
	conn := p.ours
	p.ours = nil
	stop := make(chan struct{})
	go func() { // ends the greeting with the machine
		select {
		case <-vm.Done():
			conn.Close()
		case <-stop:
		}
	}()
	x.guest, err = guest.Connect(ctx, conn)
	close(stop)
	if err != nil {
		vm.Kill()
		<-vm.Done()
		return nil, x.explain(fmt.Errorf("boot the micro-VM: %w", err))
	}
	go x.reap()
	return x, nil
}

// reap ends the bottle when the machine or its stream ends.
func (x *box) reap() {
	select {
	case <-x.vm.Done():
	case <-x.guest.Done():
		x.vm.Kill()
		<-x.vm.Done()
	}
	_ = x.guest.Close()
	close(x.done)
}

// explain adds the machine's last words to an error of its end.
func (x *box) explain(err error) error {
	select {
	case <-x.vm.Done():
	default:
		return err
	}
	if out := safetext.String(x.vm.Output(), 2000); out != "" {
		return fmt.Errorf("%w: QEMU and the machine's kernel say: %s", err, out)
	}
	return err
}

// setUp verifies the posture, and makes the machine the bottle of the spec.
func (x *box) setUp(ctx context.Context, p *prepared) error {
	if err := checkHello(x.guest.Hello(), x.spec); err != nil {
		return err
	}
	if err := x.guest.Setup(ctx, disksSetup(len(p.im.cached))); err != nil {
		return fmt.Errorf("set up the micro-VM's disks: %w", withNotes(err, x.guest.Hello()))
	}
	if x.spec.Upper != nil {
		if err := x.guest.Import(ctx, upperDir, x.spec.Upper); err != nil {
			return fmt.Errorf("bring in the files of before: %w", err)
		}
	}
	if err := x.guest.Setup(ctx, rootSetup(x.spec, p.im)); err != nil {
		return fmt.Errorf("set up the micro-VM: %w", withNotes(err, x.guest.Hello()))
	}
	if w := x.spec.Workspace; w != nil && w.Access == bottle.AccessOverlay {
		x.layers = []proto.Layer{{Dir: upperDir, At: w.Target}}
	}
	var err error
	x.posture, err = readPosture(x.vm.PID(), p)
	return err
}

// Posture implements bottle.Bottle.
func (x *box) Posture() bottle.Posture { return x.posture }

// Done implements bottle.Bottle.
func (x *box) Done() <-chan struct{} { return x.done }

// Close implements bottle.Bottle.
func (x *box) Close() error {
	x.once.Do(x.vm.Kill)
	<-x.done
	return nil
}

// Start implements bottle.Bottle.
func (x *box) Start(ctx context.Context, c *bottle.Command) (bottle.Process, error) {
	p, err := x.guest.Start(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Args[0], err)
	}
	return p, nil
}

// Pause implements bottle.Bottle.
func (x *box) Pause(ctx context.Context) error { return x.guest.Freeze(ctx) }

// Checkpoint implements bottle.Bottle.
func (x *box) Checkpoint(ctx context.Context, o bottle.CheckpointOptions, w io.Writer) (bottle.Checkpointed, error) {
	return x.copies.Checkpoint(ctx, x.guest.Freeze, x.guest.Thaw, x.ExportAll, o, w)
}

// Export implements bottle.Bottle. The stream comes from the machine as it is: whoever
// reads it trusts none of it.
func (x *box) Export(ctx context.Context, w io.Writer) error {
	return x.guest.Export(ctx, x.layers, x.spec.Limits.Disk, w)
}

// ExportAll implements bottle.Bottle.
func (x *box) ExportAll(ctx context.Context, w io.Writer) error {
	return x.guest.Export(ctx, []proto.Layer{{Dir: upperDir, At: "/"}}, x.spec.Limits.Disk, w)
}

// Usage implements bottle.Bottle.
func (x *box) Usage() (bottle.Usage, error) { return x.guest.Usage(x.spec.Scratch != "") }

// Refusals implements bottle.Bottle.
func (x *box) Refusals(ctx context.Context) (bottle.Refusals, error) { return x.guest.Refusals(ctx) }
