package gvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"gvisor.dev/gvisor/pkg/fd"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
)

// The side channel is a socket pair over which the shim calls our code inside
// the sentry. gVisor's own control server accepts no further services. But it
// offers trace sinks: one is made inside the sentry, before its seccomp filter
// is installed, with a descriptor from the parent. So ours registers as a sink.
// Only the shim holds the other end. The calls have the form of gVisor's
// control server, so the filter needs no exception.

const (
	sideSink = "carboy"
	thawing  = "thaw" // in its configuration: the bottle is restored from an image
)

// sideEnd is the shim's end of the pair that setupSide made last. A shim makes
// one bottle.
var sideEnd *unet.Socket

// sideMu is held for each call on sideEnd: it carries one at a time.
var sideMu sync.Mutex

var registerSide = sync.OnceFunc(func() {
	seccheck.RegisterSink(seccheck.SinkDesc{Name: sideSink, Setup: setupSide, New: newSide})
})

// setupSide runs in the shim; gVisor calls it while it starts the sandbox.
func setupSide(map[string]any) (*os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("side channel: %w", err)
	}
	if sideEnd, err = unet.NewSocket(fds[0]); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fds[1]), "side channel"), nil
}

// newSide runs in the sentry.
func newSide(config map[string]any, end *fd.FD) (seccheck.Sink, error) {
	if end == nil {
		return nil, errors.New("side channel: no descriptor")
	}
	if config[thawing] != nil {
		closeGate()
	}
	sock, err := unet.NewSocket(end.Release())
	if err != nil {
		return nil, err
	}
	side := &Side{}
	// As many as one call needs, in case the workload holds all others.
	for range 4 {
		if n, err := unix.FcntlInt(uintptr(sock.FD()), unix.F_DUPFD_CLOEXEC, 3); err == nil {
			side.spare = append(side.spare, n)
		}
	}
	srv := urpc.NewServer()
	srv.Register(side)
	srv.StartHandling(sock)       // ends with the shim
	go growDescriptors(sock.FD()) // ends at once
	return &sink{}, nil
}

// growDescriptors enlarges the descriptor table to the size that a workload
// with many files needs, at a time when nobody waits for it (see highFD). It
// runs after gVisor has dropped its capabilities, to which each thread must
// respond, and uses a call that the seccomp filters allow, since they may be
// installed by then.
func growDescriptors(any int) {
	if unix.Dup3(any, manyFDs-1, unix.O_CLOEXEC) == nil {
		unix.Close(manyFDs - 1)
	}
}

const manyFDs = 16384

// writeSideConfig writes the file for gVisor's pod-init-config flag.
func writeSideConfig(path string, thaw bool) error {
	registerSide()
	side := seccheck.SinkConfig{Name: sideSink}
	if thaw {
		side.Config = map[string]any{thawing: true}
	}
	session := seccheck.SessionConfig{Name: seccheck.DefaultSessionName, Sinks: []seccheck.SinkConfig{side}}
	if factsEnd != nil {
		registerFacts()
		factSession(&session)
	}
	b, err := json.Marshal(boot.InitConfig{TraceSession: session})
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

// sink represents us to gVisor inside the sentry.
type sink struct{ seccheck.SinkDefaults }

// Name implements seccheck.Sink.
func (*sink) Name() string { return sideSink }

// sentryKernel is the kernel of this sandbox, known from the first calls
// inside.
var sentryKernel atomic.Pointer[kernel.Kernel]

// Side is the service inside the sentry. urpc requires the exported names.
type Side struct {
	spare []int
	last  map[uint64]stamp // what the files were at the last checkpoint
}

// Release frees the descriptors that were reserved for an export. The workload
// must be paused, or it could take them.
func (s *Side) Release(_, _ *struct{}) error {
	for _, n := range s.spare {
		unix.Close(n)
	}
	s.spare = nil
	return nil
}

// FlushReply is the answer of Side.Flush. Untold is the number of lost facts
// that no batch has reported.
type FlushReply struct {
	Tracing bool
	Untold  uint64
}

// Flush sends the buffered facts, and reports whether the sentry traces at all.
func (*Side) Flush(_ *struct{}, r *FlushReply) error {
	if w := facts.Load(); w != nil {
		r.Tracing = true
		r.Untold = w.settle()
	}
	return nil
}

// BeginArgs are the arguments of Side.Begin.
type BeginArgs struct{ Args []string }

// Begin announces that a command is about to be started. The sentry's own
// tracing does not report it.
func (*Side) Begin(a *BeginArgs, _ *struct{}) error {
	if w := facts.Load(); w != nil && len(a.Args) > 0 {
		w.begin(a.Args)
	}
	return nil
}

// StartedArgs are the arguments of Side.Started.
type StartedArgs struct{ PID int32 }

// Started reports the result of the start that Begin announced; PID 0: it
// failed.
func (*Side) Started(a *StartedArgs, _ *struct{}) error {
	if w := facts.Load(); w != nil {
		w.started(uint32(a.PID))
	}
	return nil
}

// initPatience bounds the wait for init's first call, which follows its start.
const initPatience = 5 * time.Second

// AwaitInit waits for init's first call, from which Export learns the kernel. A
// running command's calls come after it. If no command could be started, the
// bottle is paused next, and a paused init makes no call.
func (*Side) AwaitInit(_, _ *struct{}) error {
	for deadline := time.Now().Add(initPatience); sentryKernel.Load() == nil && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	return nil
}

// callSide makes one of the calls above, or Export. A nil args or reply: none.
func callSide(call string, args, reply any) error {
	if sideEnd == nil {
		return errors.New("no side channel")
	}
	if args == nil {
		args = &struct{}{}
	}
	sideMu.Lock()
	defer sideMu.Unlock()
	return urpc.NewClient(sideEnd).Call("Side."+call, args, reply)
}

// ExportArgs are the arguments of Side.Export; the file is the destination.
type ExportArgs struct {
	Prefix string
	urpc.FilePayload
}

// ExportReply is the answer of Side.Export.
type ExportReply struct{ Files int64 }

// Export writes the upper layer below Prefix to the file.
func (*Side) Export(a *ExportArgs, r *ExportReply) (err error) {
	if len(a.Files) != 1 {
		return fmt.Errorf("export needs 1 file, got %d", len(a.Files))
	}
	k := sentryKernel.Load()
	if k == nil {
		return errors.New("the bottle has not started")
	}
	// A panic of the exporter must not end the sandbox: then nothing could be
	// saved by other means either.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("exporter: %v", p)
		}
	}()
	r.Files, err = exportUpper(k, a.Prefix, a.Files[0], nil)
	return err
}

// exportVia asks the sentry for the upper layer below prefix ("" or "/": all).
func exportVia(prefix string, to *os.File) error {
	if prefix != "" && !strings.HasPrefix(prefix, "/") {
		return fmt.Errorf("export: %q is not absolute", prefix)
	}
	if err := callSide("Release", nil, nil); err != nil {
		return err
	}
	return callSide("Export", &ExportArgs{Prefix: prefix, FilePayload: urpc.FilePayload{Files: []*os.File{to}}}, &ExportReply{})
}
