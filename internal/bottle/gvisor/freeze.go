package gvisor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/container"

	"github.com/carboy/carboy/internal/bottle"
)

// Freezing uses gVisor's checkpoint, which is made for containers whose
// workload is init. Ours is executed beside init, which gVisor takes for a
// debugging session: it drops the session's streams and kills the session when
// the container is restored. So before the checkpoint the command and its
// descendants become init's children, and their streams become restorable
// (freeze_side.go).
//
// A thawed bottle's processes go on as soon as gVisor has read them, before
// their posture can be read: the same call installs gVisor's filters. So all
// their system calls wait until Thawed.

// Freeze implements bottle.Freezer.
func (x *box) Freeze(ctx context.Context, image []*os.File) (bottle.Frozen, error) {
	var f bottle.Frozen
	if err := x.cl.call(ctx, callFreeze, nil, &f, image...); err != nil {
		return f, x.explain(fmt.Errorf("freeze: %w", err))
	}
	return f, nil
}

// Thawed implements bottle.Freezer.
func (x *box) Thawed(ctx context.Context) (bottle.Process, error) {
	var r startReply
	if err := x.cl.call(ctx, callThawed, nil, &r); err != nil {
		return nil, x.explain(fmt.Errorf("thaw: %w", err))
	}
	p := &process{x: x, pid: r.PID, over: make(chan struct{})}
	go p.await()
	return p, nil
}

// identify returns the device and inode of f.
func identify(f *os.File) (fileID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fileID{}, fmt.Errorf("identify a stream: %w", err)
	}
	return fileID{st.Dev, st.Ino}, nil
}

func (s *shim) freeze(_ []byte, files []*os.File) (any, error) {
	if len(files) != 3 {
		return nil, fmt.Errorf("freeze needs 3 descriptors, got %d", len(files))
	}
	if s.command == 0 {
		return nil, errors.New("no command was started")
	}
	if err := callSide("Release", nil, nil); err != nil {
		return nil, err
	}
	args := PrepareArgs{PID: s.command, Streams: s.streams}
	s.guests.Range(func(pid, _ any) bool {
		args.Guests = append(args.Guests, pid.(int32))
		return true
	})
	var r PrepareReply
	if err := callSide("Prepare", &args, &r); err != nil {
		return nil, err
	}
	_, terminal := s.terminals.Load(s.command)
	s.leaving.Store(true)
	opts := control.SaveOpts{
		Metadata: statefile.CompressionLevelNone.ToMetadata(), HavePagesFile: true, AppMFExcludeCommittedZeroPages: true,
		FilePayload: urpc.FilePayload{Files: files},
	}
	if err := s.ctl.Call(boot.ContMgrCheckpoint, &opts, nil); err != nil {
		s.leaving.Store(false)
		return nil, fmt.Errorf("write the image: %w", err)
	}
	return bottle.Frozen{ID: s.c.ID, PID: s.command, Limits: s.made, Terminal: terminal, Streams: r.Streams}, nil
}

// thawStreams maps the command's streams to the numbers that Prepare gave them.
func thawStreams(p *plan, files []*os.File) (map[int]*os.File, error) {
	if p.Thaw == nil {
		return nil, nil
	}
	out := map[int]*os.File{}
	for i, names := range p.Thaw.Streams {
		for _, n := range names {
			f, err := donated(files, p.Thaw.Stdio[i])
			if err == nil && (f == nil || n < firstStream || n >= firstStream+maxStreams || out[n] != nil) {
				err = fmt.Errorf("stream %d of the image has no file", n)
			}
			if err != nil {
				closeMap(out)
				return nil, err
			}
			out[n] = f
		}
	}
	return out, nil
}

func closeMap(files map[int]*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// restore makes the sandbox read the image. Its processes go on with their
// first system call after thawed.
func (s *shim) restore(c *container.Container, t *planThaw, files []*os.File) error {
	var image []*os.File
	defer func() { closeAll(image) }()
	for _, n := range t.Image {
		f, err := donated(files, n)
		if err == nil && f == nil {
			err = errors.New("a file of the image is missing")
		}
		if err != nil {
			return err
		}
		image = append(image, f)
	}
	cl, err := client.ConnectTo(c.Sandbox.GetControlSocketPath())
	if err != nil {
		return fmt.Errorf("connect to the sandbox: %w", err)
	}
	defer cl.Close()
	if err := cl.Call(boot.ContMgrRestore, &boot.RestoreOpts{FilePayload: urpc.FilePayload{Files: image}, HavePagesFile: true}, nil); err != nil {
		return fmt.Errorf("read the image: %w", err)
	}
	s.thaw, s.command = t, t.PID
	for i, n := range t.Stdio {
		if s.streams[i], err = identify(files[n-1]); err != nil {
			return err
		}
	}
	if t.Terminal {
		s.terminals.Store(t.PID, true)
		s.fg.Store(t.PID)
		s.takeTerminal(files[t.Stdio[0]-1])
	}
	return nil
}

func (s *shim) thawed([]byte, []*os.File) (any, error) {
	if s.thaw == nil || s.ended != nil {
		return nil, errors.New("the bottle was not frozen, or goes on already")
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	s.ended = r
	if err := callSide("Adopt", &AdoptArgs{PID: s.thaw.PID, FilePayload: urpc.FilePayload{Files: []*os.File{w}}}, nil); err != nil {
		return nil, err
	}
	return startReply{PID: s.thaw.PID}, nil
}

// awaitThawed blocks until the thawed command has ended. Call it once.
func (s *shim) awaitThawed() (any, error) {
	var b [4]byte
	if _, err := io.ReadFull(s.ended, b[:]); err != nil {
		return nil, fmt.Errorf("%w: %v", bottle.ErrGone, err)
	}
	ws := unix.WaitStatus(binary.LittleEndian.Uint32(b[:]))
	return statusOf(ws), nil
}

func statusOf(ws unix.WaitStatus) bottle.Status {
	if ws.Signaled() {
		return bottle.Status{Exited: true, Signal: ws.Signal()}
	}
	return bottle.Status{Exited: true, Code: ws.ExitStatus()}
}
