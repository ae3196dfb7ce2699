package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/phases"
)

// Backend makes bottles with the embedded kernel. The zero Backend is ready.
type Backend struct{}

// Name implements bottle.Backend.
func (Backend) Name() string { return name }

// Build implements bottle.Backend.
func (Backend) Build() string { return Build() }

// Isolation implements bottle.Backend.
func (Backend) Isolation() bottle.Isolation { return bottle.IsolationUserKernel }

// Capabilities implements bottle.Backend.
func (Backend) Capabilities() bottle.Capabilities {
	return bottle.Capabilities{Facts: bottle.FactsKernel, Channels: true, LiveFreeze: true, ReadWrite: true, LiveMounts: true, DiskLimit: true, Builds: true}
}

// ImageNames implements bottle.Freezes.
func (Backend) ImageNames() []string {
	return []string{"processes.state", "processes.meta", "processes.pages"}
}

// Create implements bottle.Backend.
func (Backend) Create(ctx context.Context, spec *bottle.Spec) (bottle.Bottle, error) {
	if err := spec.Limits.Validate(); err != nil {
		closeAll(spec.Files())
		return nil, err
	}
	own, err := rootTrees(spec)
	if err != nil {
		closeAll(spec.Files())
		return nil, err
	}
	p, files := newPlan(spec, own)
	defer closeAll(files)
	x, err := shimFor(spec)
	if err != nil {
		return nil, err
	}
	// A hanging shim does not read the plan either.
	stop := context.AfterFunc(ctx, func() { x.cmd.Process.Kill() })
	defer stop()
	var r createReply
	if err := x.cl.call(ctx, callCreate, p, &r, files...); err != nil {
		x.Close()
		return nil, x.explain(fmt.Errorf("make bottle: %w", err))
	}
	phases.Add(r.Phases)
	if x.posture, err = readPosture(r, int(spec.User.UID), spec.Writable()); err != nil {
		x.Close()
		return nil, err
	}
	if want := spec.Trace != nil; x.posture.Trace != want {
		x.Close()
		return nil, &bottle.PostureError{Role: "sandbox", Reason: fmt.Sprintf("sends facts: %v, asked for: %v", x.posture.Trace, want)}
	}
	return x, nil
}

// box is a live bottle, as the supervisor sees it.
type box struct {
	cmd     *exec.Cmd
	cl      *caller
	posture bottle.Posture
	stderr  *tail
	done    chan struct{}
	once    sync.Once
}

// warm is a shim that waits for its plan.
type warm struct {
	user             bottle.User
	hostUID, hostGID uint32
	ready            chan struct{} // closed when x and err are set

	mu  sync.Mutex // held while somebody takes it
	x   *box
	err error
}

// Warm implements bottle.Warmer.
func (Backend) Warm(u bottle.User, hostUID, hostGID uint32) bottle.Warm {
	w := &warm{user: u, hostUID: hostUID, hostGID: hostGID, ready: make(chan struct{})}
	go func() { // ends when the process was started
		defer close(w.ready)
		w.x, w.err = startShim(u, hostUID, hostGID)
	}()
	return w
}

// take returns the shim, once.
func (w *warm) take() (*box, error) {
	<-w.ready
	w.mu.Lock()
	defer w.mu.Unlock()
	x, err := w.x, w.err
	w.x, w.err = nil, nil
	return x, err
}

// Close implements bottle.Warm.
func (w *warm) Close() {
	if x, _ := w.take(); x != nil {
		x.Close()
	}
}

// shimFor returns the shim that waits for this bottle, or a new one.
func shimFor(s *bottle.Spec) (*box, error) {
	w, ok := s.Warm.(*warm)
	if ok && w.user == s.User && w.hostUID == s.HostUID && w.hostGID == s.HostGID {
		if x, err := w.take(); x != nil || err != nil {
			return x, err
		}
	}
	return startShim(s.User, s.HostUID, s.HostGID)
}

// startShim starts the shim in new user, mount, PID, IPC and UTS namespaces.
// The shim dies with us, by PDEATHSIG and by the end of its control socket.
func startShim(u bottle.User, hostUID, hostGID uint32) (*box, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "control")
	defer theirs.Close()
	c, err := newConn(os.NewFile(uintptr(fds[0]), "control"))
	if err != nil {
		return nil, err
	}
	high, err := os.Open("/dev/null")
	if err != nil {
		c.c.Close()
		return nil, err
	}
	defer high.Close()
	extra := make([]*os.File, highFD-3+1)
	extra[controlFD-3], extra[highFD-3] = theirs, high
	x := &box{stderr: &tail{}, done: make(chan struct{})}
	x.cmd = &exec.Cmd{
		Path:       "/proc/self/exe",
		Args:       []string{shimName},
		Env:        []string{},
		Dir:        "/",
		Stderr:     x.stderr,
		ExtraFiles: extra,
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: int(u.UID), HostID: hostID(os.Geteuid(), hostUID), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: int(u.GID), HostID: hostID(os.Getegid(), hostGID), Size: 1}},
			Credential:  &syscall.Credential{Uid: u.UID, Gid: u.GID, NoSetGroups: os.Geteuid() != 0},
			AmbientCaps: allCaps(),
			Pdeathsig:   unix.SIGKILL,
			Setsid:      true,
		},
	}
	if err := hostexec.StartPinned(x.cmd); err != nil {
		c.c.Close()
		return nil, unavailable(err)
	}
	x.cl = newCaller(c)
	go x.reap()
	return x, nil
}

// hostID returns the host's id for the bottle's user: our own or, when we are
// root, the plan's, so that root's rights stay outside.
func hostID(own int, want uint32) int {
	if own == 0 {
		return int(want)
	}
	return own
}

func allCaps() []uintptr {
	var out []uintptr
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		out = append(out, c)
	}
	return out
}

// reap waits for the shim. Nothing of the bottle runs any more then: the kernel
// kills a PID namespace before its PID 1 can be waited for.
func (x *box) reap() {
	x.cmd.Wait()
	<-x.cl.done
	x.cl.c.Close()
	close(x.done)
}

// explain adds the shim's last output, which shows a crash.
func (x *box) explain(err error) error {
	if s := x.stderr.String(); s != "" && errors.Is(err, bottle.ErrGone) {
		return fmt.Errorf("%w: %s", err, s)
	}
	return err
}

// Posture implements bottle.Bottle.
func (x *box) Posture() bottle.Posture { return x.posture }

// Done implements bottle.Bottle.
func (x *box) Done() <-chan struct{} { return x.done }

// Close implements bottle.Bottle.
func (x *box) Close() error {
	x.once.Do(func() { x.cmd.Process.Kill() })
	<-x.done
	return nil
}

// Start implements bottle.Bottle.
func (x *box) Start(ctx context.Context, c *bottle.Command) (bottle.Process, error) {
	if err := checkText(c); err != nil {
		return nil, err
	}
	var r startReply
	in := startArgs{Args: c.Args, Env: c.Env, Dir: c.Dir, Terminal: c.Terminal, Guest: c.Guest}
	if err := x.cl.call(ctx, callStart, in, &r, c.Stdin, c.Stdout, c.Stderr); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Args[0], err)
	}
	p := &process{x: x, pid: r.PID, over: make(chan struct{})}
	go p.await()
	return p, nil
}

// checkText refuses strings that gVisor's own calls, which are JSON, would
// alter on the way: they could name another file.
func checkText(c *bottle.Command) error {
	for _, list := range [][]string{c.Args, c.Env, {c.Dir}} {
		for _, s := range list {
			if !utf8.ValidString(s) {
				return fmt.Errorf("start %.100q: %.100q is not UTF-8, and can't be passed on exactly", c.Args[0], s)
			}
		}
	}
	return nil
}

// Pause implements bottle.Bottle.
func (x *box) Pause(ctx context.Context) error {
	var r pauseReply
	if err := x.cl.call(ctx, callPause, nil, &r); err != nil {
		return err
	}
	if r.Untold > 0 {
		return &bottle.FactsLostError{Untold: r.Untold}
	}
	return nil
}

// Export implements bottle.Bottle.
func (x *box) Export(ctx context.Context, w io.Writer) error {
	return x.export(ctx, callExport, exportArgs{}, nil, w)
}

// ExportAll implements bottle.Bottle.
func (x *box) ExportAll(ctx context.Context, w io.Writer) error {
	return x.export(ctx, callExport, exportArgs{All: true}, nil, w)
}

// export makes a call that writes to a file, and passes on to w what is written.
func (x *box) export(ctx context.Context, m method, in, out any, w io.Writer) error {
	r, pw, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The bottle holds the writing end too, and may never close it.
	stop := context.AfterFunc(ctx, func() { r.Close() })
	defer stop()
	errc := make(chan error, 1)
	go func() {
		defer pw.Close()
		errc <- x.cl.call(ctx, m, in, out, pw)
	}()
	// With a larger pipe the sandbox waits less for its reader.
	unix.FcntlInt(pw.Fd(), unix.F_SETPIPE_SZ, exportPipe)
	_, cerr := io.CopyBuffer(w, struct{ io.Reader }{r}, make([]byte, exportPipe))
	if cerr != nil {
		r.Close() // the sentry's writes fail from here on
		cancel()
	}
	if err := <-errc; err != nil && cerr == nil {
		return fmt.Errorf("export changes: %w", err)
	}
	if cerr != nil {
		return fmt.Errorf("export changes: %w", cerr)
	}
	return nil
}

const exportPipe = 256 << 10

// Usage implements bottle.Bottle.
func (x *box) Usage() (bottle.Usage, error) {
	var u bottle.Usage
	err := x.cl.call(context.Background(), callUsage, nil, &u)
	return u, err
}

// Refusals implements bottle.Bottle.
func (x *box) Refusals(ctx context.Context) (bottle.Refusals, error) {
	var r bottle.Refusals
	err := x.cl.call(ctx, callRefused, nil, &r)
	return r, err
}

// process waits once for all callers: the kernel inside returns a status only
// once.
type process struct {
	x      *box
	pid    int32
	over   chan struct{} // closed when status and err are set
	status bottle.Status
	err    error
}

// await returns when the process or the bottle has ended.
func (p *process) await() {
	defer close(p.over)
	p.err = p.x.cl.call(context.Background(), callWait, waitArgs{p.pid}, &p.status)
}

// Wait implements bottle.Process.
func (p *process) Wait(ctx context.Context) (bottle.Status, error) {
	select {
	case <-p.over:
		return p.status, p.err
	case <-ctx.Done():
		return bottle.Status{}, fmt.Errorf("wait: %w", ctx.Err())
	}
}

// Signal implements bottle.Process.
func (p *process) Signal(sig syscall.Signal, group bool) error {
	return p.x.cl.call(context.Background(), callSignal, signalArgs{p.pid, int(sig), group}, nil)
}

// tail keeps the last bytes that a process wrote.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailMax = 4096

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if len(t.b) > tailMax {
		t.b = append(t.b[:0], t.b[len(t.b)-tailMax:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}
