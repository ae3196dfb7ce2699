package gvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/posture"
	"github.com/carboy/carboy/internal/phases"
	"github.com/carboy/carboy/internal/reclaim"
)

const controlFD = 3

// highFD is open in the shim because of its number. When a descriptor does not
// fit into a process's table, Linux allocates a larger one and, if threads
// share the table, waits for every CPU: 10 ms and more. A child's table begins
// large enough for its parent's highest descriptor, and gVisor uses numbers up
// to 255 from the start.
const highFD = 511

// shimMain serves one bottle until the supervisor closes the control socket. It
// never returns: its death ends the PID namespace and all in it.
func shimMain() {
	// Children die with the thread that made them (PR_SET_PDEATHSIG), so this
	// thread must live as long as the process.
	runtime.LockOSThread()
	os.Clearenv()
	unix.Umask(0o022) // whatever the caller's is, the bottle's user must read what is made here
	unix.CloseOnExec(highFD)
	signal.Ignore(unix.SIGINT, unix.SIGQUIT, unix.SIGTSTP, unix.SIGTTOU, unix.SIGTTIN, unix.SIGHUP, unix.SIGPIPE)
	c, err := newConn(os.NewFile(controlFD, "control"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "carboy-shim:", err)
		os.Exit(1)
	}
	s := &shim{conn: c}
	s.phases.On()
	s.phases.Mark("shim: main")
	s.procErr = mountProc()
	s.serve()
	if s.c != nil {
		s.c.Sandbox.SignalContainer(s.c.ID, unix.SIGKILL, true)
	}
	os.Exit(0)
}

// shim holds the container. Container is not safe for concurrent use; calls on
// Sandbox are, and only those run concurrently.
type shim struct {
	conn    *conn
	procErr error // of mounting /proc
	phases  phases.Log
	conf    *config.Config
	c       *container.Container

	made     bottle.Limits
	rights   auth.TaskCapabilities // of each command
	exported string                // what Export takes out: the workspace, or ""

	tty sync.Once
	fg  atomic.Int32 // the process that has our controlling terminal
	// terminals holds the processes that have one.
	terminals sync.Map
	guests    sync.Map // commands beside the first one

	meter *meter

	// streams identify the command's standard streams, so that the sandbox can
	// find them.
	streams [3]fileID
	command int32 // the bottle's first process; 0: none yet
	// leaving is true while the sandbox ends because it was frozen.
	leaving atomic.Bool
	thaw    *planThaw
	ended   *os.File // receives the thawed command's exit status

	tracing  bool
	starting sync.Mutex // commands are announced to the trace one at a time

	// ctl is a connection to the sentry's control server from before the
	// workload ran. That server ends when it cannot accept another one, and a
	// workload can cause that by holding all of the sandbox's descriptors.
	ctl *urpc.Client
}

// serve answers calls until the supervisor is gone. It serves Create in order,
// and everything after it in goroutines that end with the process.
func (s *shim) serve() {
	for {
		var r request
		body, files, err := s.conn.recv(&r)
		if err != nil {
			return
		}
		r.body = body
		if r.Method == callCreate {
			s.answer(r, files, s.create)
			continue
		}
		go s.answer(r, files, s.handler(r.Method))
	}
}

type handler func(body []byte, files []*os.File) (any, error)

func (s *shim) handler(m method) handler {
	if s.c == nil {
		return func([]byte, []*os.File) (any, error) { return nil, errors.New("bottle is not created") }
	}
	switch m {
	case callStart:
		return s.start
	case callWait:
		return s.wait
	case callSignal:
		return s.signal
	case callPause:
		return s.pause
	case callExport:
		return s.export
	case callCheckpoint:
		return s.checkpoint
	case callUsage:
		return s.usage
	case callRefused:
		return s.refusals
	case callFreeze:
		return s.freeze
	case callThawed:
		return s.thawed
	}
	return func([]byte, []*os.File) (any, error) { return nil, fmt.Errorf("unknown call %q", m) }
}

func (s *shim) answer(r request, files []*os.File, h handler) {
	defer closeAll(files)
	out := response{ID: r.ID}
	v, err := h(r.body, files)
	if err == nil && v != nil {
		out.body, err = json.Marshal(v)
	}
	if err != nil {
		out.Error, out.Kind = err.Error(), kindOf(err)
	}
	// A supervisor that does not read any more is about to end this process.
	s.conn.send(out, out.body, nil)
}

func (s *shim) create(body []byte, files []*os.File) (any, error) {
	if s.c != nil {
		return nil, errors.New("bottle exists already")
	}
	p, err := decodePlan(body)
	if err != nil {
		return nil, err
	}
	s.phases.Mark("shim: plan")
	if s.procErr != nil {
		return nil, s.procErr
	}
	if err := pinCPUs(p.Limits.CPUs); err != nil {
		return nil, err
	}
	l, err := buildRoot(p, files)
	if err != nil {
		return nil, err
	}
	s.phases.Mark("shim: root")
	if s.conf, err = newConfig(p, l); err != nil {
		return nil, err
	}
	if err := writeSpec(p, l); err != nil {
		return nil, err
	}
	if err := limitDescriptors(s.conf); err != nil {
		return nil, err
	}
	if p.NoSetID {
		if err := refuseSetID(); err != nil {
			return nil, err
		}
	}
	if err := s.boot(p, l, files); err != nil {
		return nil, err
	}
	s.phases.Mark("shim: sandbox started")
	var r createReply
	for _, c := range []struct {
		role string
		pid  int
	}{{"sandbox", s.c.Sandbox.Getpid()}, {"gofer", s.c.GoferPid.Load()}} {
		p, err := posture.Read(c.pid, nsKinds)
		if err != nil {
			return nil, fmt.Errorf("read posture of the %s: %w", c.role, err)
		}
		r.Processes = append(r.Processes, rawPosture{c.role, p})
	}
	var flushed FlushReply
	if err := callSide("Flush", nil, &flushed); err != nil {
		return nil, fmt.Errorf("ask the sandbox about facts: %w", err)
	}
	r.Trace, s.tracing = flushed.Tracing, flushed.Tracing
	s.phases.Mark("shim: posture read")
	reclaim.After(reclaim.Patience) // ends with the process
	if p.Phases {
		r.Phases = s.phases.Points()
	}
	return r, nil
}

// mountProc replaces the outer /proc by one of our PID namespace. gVisor names
// its children by PID in /proc; with the outer one it would reach strangers.
func mountProc() error {
	err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if err != nil {
		return &bottle.UnavailableError{Backend: name, Reason: "mount /proc", Err: err}
	}
	return nil
}

func pinCPUs(n int) error {
	var set, want unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return fmt.Errorf("read cpu affinity: %w", err)
	}
	if n <= 0 || n >= set.Count() {
		return nil
	}
	for cpu, left := 0, n; left > 0 && cpu < 1024; cpu++ {
		if set.IsSet(cpu) {
			want.Set(cpu)
			left--
		}
	}
	// Affinity is per thread. New threads inherit it from the thread that
	// starts them.
	ents, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, e := range ents {
		var tid int
		if _, err := fmt.Sscan(e.Name(), &tid); err != nil {
			continue
		}
		if err := unix.SchedSetaffinity(tid, &want); err != nil && err != unix.ESRCH {
			return fmt.Errorf("set cpu affinity: %w", err)
		}
	}
	return nil
}

// limitDescriptors raises our own soft limit, which the sentry inherits: it
// holds a descriptor for each open file of the workload. It also keeps up to
// three for each cached name, so the cache must leave room: otherwise a "find
// /usr" would leave the workload unable to open anything.
func limitDescriptors(conf *config.Config) error {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return err
	}
	r.Cur = r.Max
	conf.DCache = int(min(uint64(conf.DCache), max(r.Max/6, 100)))
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &r)
}

func (s *shim) boot(p *plan, l *layout, files []*os.File) error {
	log.SetTarget(log.GoogleEmitter{Writer: &log.Writer{Next: discard{}}})
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	// Init's own standard streams.
	os.Stdin, os.Stdout, os.Stderr = null, null, null
	spec, err := readSpec(l)
	if err != nil {
		return err
	}
	if factsEnd, err = donated(files, p.Trace); err != nil {
		return err
	}
	s.conf.PodInitConfig = l.bundle + "/side.json"
	if err := writeSideConfig(s.conf.PodInitConfig, p.Thaw != nil); err != nil {
		return err
	}
	pass, err := thawStreams(p, files)
	if err != nil {
		return err
	}
	c, err := container.New(s.conf, container.Args{ID: p.ID, Spec: spec, BundleDir: l.bundle, Attached: true, PassFiles: pass})
	closeMap(pass)
	if err != nil {
		return fmt.Errorf("create sandbox: %w", err)
	}
	s.phases.Mark("shim: sandbox made")
	if p.Wire > 0 {
		if p.Wire > len(files) {
			return errors.New("the wire is missing")
		}
		if err := plugWire(c, files[p.Wire-1], p.Net); err != nil {
			return fmt.Errorf("plug the wire: %w", err)
		}
		if err := plugChannels(p.Channels, files); err != nil {
			return fmt.Errorf("plug the channels: %w", err)
		}
	}
	if p.Thaw != nil {
		if err := s.restore(c, p.Thaw, files); err != nil {
			return err
		}
	} else {
		started := *s.conf
		started.Network = config.NetworkHost // the network is configured: nothing to scrape
		if err := c.Start(&started); err != nil {
			return fmt.Errorf("start sandbox: %w", err)
		}
	}
	if upper, err := donated(files, p.Upper); err != nil {
		return err
	} else if upper != nil {
		err := importVia(upper)
		upper.Close()
		if err != nil {
			return err
		}
	}
	if err := limitPids(c, p.ID, p.Limits.Pids); err != nil {
		return err
	}
	if s.ctl, err = client.ConnectTo(c.Sandbox.GetControlSocketPath()); err != nil {
		return fmt.Errorf("connect to the sandbox: %w", err)
	}
	if err := s.endWithGofer(int(c.GoferPid.Load())); err != nil {
		return err
	}
	if s.meter, err = openMeter(c.Sandbox.Getpid(), int(c.GoferPid.Load()), l.scratch != ""); err != nil {
		return fmt.Errorf("open the meters: %w", err)
	}
	s.c, s.exported, s.made = c, p.Exported, p.made()
	if p.Builds {
		s.rights = buildRights()
	}
	return nil
}

// donated returns a copy of the n-th descriptor of the frame, nil when n is 0.
func donated(files []*os.File, n int) (*os.File, error) {
	if n == 0 {
		return nil, nil
	}
	if n > len(files) {
		return nil, errors.New("a descriptor is missing")
	}
	fd, err := unix.FcntlInt(files[n-1].Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), files[n-1].Name()), nil
}

// endWithGofer ends the bottle when the gofer ends. The sandbox does so too,
// but not always: with files already open it can go on for a while.
func (s *shim) endWithGofer(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("watch the gofer: %w", err)
	}
	go func() { // ends with the process
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for {
			if n, err := unix.Poll(fds, -1); n > 0 || err != nil && err != unix.EINTR {
				if s.leaving.Load() {
					return // the supervisor ends us when it has its answer
				}
				os.Exit(1)
			}
		}
	}()
	return nil
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// limitPids bounds processes and threads with the sentry's own cgroup, at one
// more than n, because init counts too.
func limitPids(c *container.Container, id string, n int64) error {
	f := control.CgroupControlFile{Controller: "pids", Path: "/" + id, Name: "pids.max"}
	if err := c.Sandbox.CgroupsWriteControlFile(f, fmt.Sprint(n+1)); err != nil {
		return fmt.Errorf("limit processes: %w", err)
	}
	return nil
}

func (s *shim) start(body []byte, files []*os.File) (any, error) {
	var a startArgs
	if err := json.Unmarshal(body, &a); err != nil {
		return nil, err
	}
	if len(files) != 3 {
		return nil, fmt.Errorf("start needs 3 descriptors, got %d", len(files))
	}
	u := s.c.Spec.Annotations
	var uid, gid uint32
	if _, err := fmt.Sscan(u[annotUID], &uid); err != nil {
		return nil, err
	}
	if _, err := fmt.Sscan(u[annotGID], &gid); err != nil {
		return nil, err
	}
	if a.Terminal && !a.Guest {
		s.takeTerminal(files[0])
	}
	if s.tracing {
		s.starting.Lock()
		defer s.starting.Unlock()
		if err := callSide("Begin", &BeginArgs{a.Args}, nil); err != nil {
			return nil, fmt.Errorf("announce the command: %w", err)
		}
	}
	pid, err := s.c.Sandbox.Execute(s.conf, &control.ExecArgs{
		Argv: a.Args, Envv: a.Env, WorkingDirectory: a.Dir, ContainerID: s.c.ID,
		KUID: auth.KUID(uid), KGID: auth.KGID(gid),
		NoNewPrivileges: true,
		Capabilities:    &s.rights,
		StdioIsPty:      a.Terminal,
		FilePayload:     control.NewFilePayload(map[int]*os.File{0: files[0], 1: files[1], 2: files[2]}, nil),
	})
	if err != nil {
		pid = 0
	}
	if s.tracing {
		if err := callSide("Started", &StartedArgs{pid}, nil); err != nil {
			return nil, fmt.Errorf("announce the command: %w", err)
		}
	}
	if err != nil {
		return nil, startError(err)
	}
	if a.Guest {
		s.guests.Store(pid, true)
	} else {
		s.command = pid
		for i, f := range files {
			if s.streams[i], err = identify(f); err != nil {
				return nil, err
			}
		}
	}
	if a.Terminal {
		s.terminals.Store(pid, true)
		if !a.Guest {
			s.fg.Store(pid)
		}
	}
	return startReply{PID: pid}, nil
}

// startError restores the type of errors that crossed gVisor's RPC as text.
func startError(err error) error {
	t := err.Error()
	switch {
	case strings.Contains(t, "no such file or directory"), strings.Contains(t, "executable file not found"), strings.Contains(t, "not found in $PATH"):
		return fmt.Errorf("%w", bottle.ErrNotFound)
	case strings.Contains(t, "permission denied"), strings.Contains(t, "exec format error"), strings.Contains(t, "is a directory"), strings.Contains(t, "not a directory"):
		return fmt.Errorf("%w", bottle.ErrNotExecutable)
	}
	return err
}

// takeTerminal makes the pty our controlling terminal, so that the host's line
// discipline has somebody to signal when ^C, ^\ or ^Z is typed or the window
// changes. It forwards these signals to the sandbox's foreground process group.
func (s *shim) takeTerminal(tty *os.File) {
	s.tty.Do(func() {
		if _, err := unix.Setsid(); err != nil && err != unix.EPERM {
			return
		}
		if err := unix.IoctlSetInt(int(tty.Fd()), unix.TIOCSCTTY, 0); err != nil {
			return
		}
		ch := make(chan os.Signal, 16)
		signal.Notify(ch, unix.SIGINT, unix.SIGQUIT, unix.SIGTSTP, unix.SIGWINCH, unix.SIGHUP)
		go func() { // ends with the process
			for sig := range ch {
				s.deliver(s.fg.Load(), sig.(syscall.Signal), boot.DeliverToForegroundProcessGroup)
			}
		}()
	})
}

func (s *shim) wait(body []byte, _ []*os.File) (any, error) {
	var a waitArgs
	if err := json.Unmarshal(body, &a); err != nil {
		return nil, err
	}
	if s.thaw != nil && a.PID == s.thaw.PID {
		return s.awaitThawed()
	}
	ws, err := s.c.Sandbox.WaitPID(s.c.ID, a.PID)
	if s.fg.Load() != a.PID {
		s.terminals.Delete(a.PID)
	}
	if err != nil {
		return nil, err
	}
	s.guests.Delete(a.PID)
	return statusOf(ws), nil
}

func (s *shim) signal(body []byte, _ []*os.File) (any, error) {
	var a signalArgs
	if err := json.Unmarshal(body, &a); err != nil {
		return nil, err
	}
	sig := syscall.Signal(a.Signal)
	mode := boot.DeliverToProcess
	_, terminal := s.terminals.Load(a.PID)
	switch {
	case a.Group && terminal:
		mode = boot.DeliverToForegroundProcessGroup
	case a.Group:
		// A command is started as the leader of a process group of its own.
		mode = boot.DeliverToProcessGroup
	}
	return nil, s.deliver(a.PID, sig, mode)
}

func (s *shim) deliver(pid int32, sig syscall.Signal, mode boot.SignalDeliveryMode) error {
	if s.thaw != nil && pid == s.thaw.PID && mode == boot.DeliverToForegroundProcessGroup {
		return callSide("Foreground", &ForegroundArgs{PID: pid, Signal: int32(sig)}, nil)
	}
	return s.ctl.Call(boot.ContMgrSignal, &boot.SignalArgs{CID: s.c.ID, Signo: int32(sig), PID: pid, Mode: mode}, nil)
}

func (s *shim) pause([]byte, []*os.File) (any, error) {
	if err := callSide("AwaitInit", nil, nil); err != nil {
		return nil, fmt.Errorf("wait for init: %w", err)
	}
	if err := s.ctl.Call(boot.ContMgrPause, nil, nil); err != nil {
		return nil, err
	}
	var r FlushReply
	if err := callSide("Flush", nil, &r); err != nil {
		return nil, fmt.Errorf("send the last facts: %w", err)
	}
	return pauseReply{Untold: r.Untold}, nil
}

func (s *shim) export(body []byte, files []*os.File) (any, error) {
	var a exportArgs
	if err := json.Unmarshal(body, &a); err != nil {
		return nil, err
	}
	if len(files) != 1 {
		return nil, fmt.Errorf("export needs 1 descriptor, got %d", len(files))
	}
	prefix := s.exported
	if a.All {
		prefix = ""
	}
	return nil, exportVia(prefix, files[0])
}
