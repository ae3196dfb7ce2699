package gvisor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"reflect"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/checkpoint"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/host"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/urpc"
)

// Numbers under which an image stores the command's streams.
const (
	firstStream = 1000
	maxStreams  = 16 // several open files can be one stream
)

// PrepareArgs are the arguments of Side.Prepare.
type PrepareArgs struct {
	PID     int32     // the command
	Guests  []int32   // commands that end with the freeze
	Streams [3]fileID // the command's, as identified on the host
}

// PrepareReply is the answer of Side.Prepare.
type PrepareReply struct{ Streams [3][]int }

// Prepare makes the inside ready for a checkpoint. The kernel is paused.
func (*Side) Prepare(a *PrepareArgs, r *PrepareReply) (err error) {
	k := sentryKernel.Load()
	if k == nil {
		return errors.New("the bottle has not started")
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("prepare: %v", p)
		}
	}()
	ns := k.RootPIDNamespace()
	command := ns.ThreadGroupWithID(kernel.ThreadID(a.PID))
	if command == nil || command.Leader() == nil {
		return errors.New("the command has ended")
	}
	guests := map[*kernel.Task]bool{}
	for _, pid := range a.Guests {
		if tg := ns.ThreadGroupWithID(kernel.ThreadID(pid)); tg != nil {
			guests[tg.Leader()] = true
		}
	}
	if err := adoptByInit(k.GlobalInit().Leader(), command.Leader(), ns.Tasks(), guests); err != nil {
		return err
	}
	return keepStreams(k, ns.Tasks(), k.ContainerName(command.Leader().ContainerID()), a.Streams, &r.Streams)
}

// adoptByInit makes the command a child of init. All processes except guests
// become ordinary ones.
func adoptByInit(init, command *kernel.Task, tasks []*kernel.Task, guests map[*kernel.Task]bool) error {
	if command.Parent() == nil {
		parent, err := reach[*kernel.Task](command, "parent")
		if err != nil {
			return err
		}
		children, err := reach[map[*kernel.Task]struct{}](init, "children")
		if err != nil {
			return err
		}
		*parent = init
		if *children == nil {
			*children = map[*kernel.Task]struct{}{}
		}
		(*children)[command] = struct{}{}
	}
	for _, t := range tasks {
		top := t.ThreadGroup().Leader()
		for p := top.Parent(); p != nil && p != init; p = p.Parent() {
			top = p.ThreadGroup().Leader()
		}
		if t.Origin == kernel.OriginExec && !guests[top] {
			t.Origin = kernel.OriginUnknown
		}
	}
	return nil
}

// keepStreams gives each open file that is one of streams a name under which a
// thawed bottle finds its new one. All other files of the host get none: their
// users then get EBADF.
func keepStreams(k *kernel.Kernel, tasks []*kernel.Task, container string, streams [3]fileID, out *[3][]int) error {
	named, seen, failed := map[*int]bool{}, map[*kernel.FDTable]bool{}, error(nil)
	keep := func(_ int32, f *vfs.FileDescription, _ kernel.FDFlags) bool {
		if t := reflect.TypeOf(f.Impl()); t != hostTTY && t.String() != "*host.fileDescription" {
			return true
		}
		fd, err := reach[int](f.Impl(), "inode", "hostFD")
		if err != nil {
			failed = err
			return false
		}
		var st unix.Stat_t
		if named[fd] || unix.Fstat(*fd, &st) != nil {
			return true
		}
		for i, s := range streams {
			if s != (fileID{st.Dev, st.Ino}) {
				continue
			}
			if len(named) == maxStreams {
				failed = errors.New("too many open files are the command's streams")
				return false
			}
			n := firstStream + len(named)
			named[fd] = true
			key, err := reach[checkpoint.ResourceID](f.Impl(), "inode", "restoreKey")
			if err == nil {
				var able *bool
				if able, err = reach[bool](f.Impl(), "inode", "restorable"); err == nil {
					*key, *able = host.MakeResourceID(container, n), true
				}
			}
			failed = err
			out[i] = append(out[i], n)
			break
		}
		return failed == nil
	}
	for _, t := range tasks {
		fds := t.FDTable()
		if fds == nil || seen[fds] {
			continue
		}
		seen[fds] = true
		fds.ForEach(k.SupervisorContext(), keep)
		if failed != nil {
			return failed
		}
	}
	return nil
}

var hostTTY = reflect.TypeFor[*host.TTYFileDescription]()

// gate is closed when a thawed bottle's system calls may be served; nil: the
// bottle was not frozen.
var gate chan struct{}

var openGate = sync.OnceFunc(func() { close(gate) })

// closeGate makes every system call wait. It runs before there is a kernel.
func closeGate() {
	gate = make(chan struct{})
	for _, t := range kernel.SyscallTables() {
		for no, sc := range t.Table {
			if fn := sc.Fn; fn != nil {
				sc.Fn = gated(fn)
				t.Table[no] = sc
			}
		}
		if missing := t.Missing; missing != nil {
			t.Missing = func(task *kernel.Task, no uintptr, a arch.SyscallArguments) (uintptr, error) {
				pass(task)
				return missing(task, no, a)
			}
		}
		t.Init()
	}
}

func gated(fn kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, no uintptr, a arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		pass(t)
		return fn(t, no, a)
	}
}

func pass(t *kernel.Task) {
	select {
	case <-gate:
	default:
		learn(t)
		<-gate
	}
}

// AdoptArgs are the arguments of Side.Adopt. The process's exit status is
// written to the file: four bytes, little endian.
type AdoptArgs struct {
	PID int32
	urpc.FilePayload
}

// Adopt lets a thawed bottle go on.
func (*Side) Adopt(a *AdoptArgs, _ *struct{}) error {
	if len(a.Files) != 1 || gate == nil {
		return errors.New("adopt needs a file, and a bottle that was frozen")
	}
	for deadline := time.Now().Add(initPatience); sentryKernel.Load() == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return errors.New("init has not gone on")
		}
	}
	tg := sentryKernel.Load().RootPIDNamespace().ThreadGroupWithID(kernel.ThreadID(a.PID))
	if tg == nil {
		return errors.New("the command is not in the image, or was ended by a signal at once")
	}
	fd, err := unix.Dup(int(a.Files[0].Fd())) // a call that the filters allow
	if err != nil {
		return err
	}
	go func() { // ends with the command or the process
		tg.WaitExited()
		_, _ = unix.Write(fd, binary.LittleEndian.AppendUint32(nil, uint32(tg.ExitStatus())))
		unix.Close(fd)
	}()
	openGate()
	return nil
}

// ForegroundArgs are the arguments of Side.Foreground.
type ForegroundArgs struct {
	PID    int32
	Signal int32
}

// Foreground signals the foreground process group of a thawed command's
// terminal, as gVisor does for commands that it has started itself.
func (*Side) Foreground(a *ForegroundArgs, _ *struct{}) error {
	k := sentryKernel.Load()
	if k == nil {
		return errors.New("the bottle has not started")
	}
	tg := k.RootPIDNamespace().ThreadGroupWithID(kernel.ThreadID(a.PID))
	if tg == nil {
		return os.ErrProcessDone
	}
	info := &linux.SignalInfo{Signo: a.Signal}
	if tty := tg.TTY(); tty != nil {
		if owner := tty.ThreadGroup(); owner != nil {
			if pg, _ := owner.ForegroundProcessGroup(tty); pg != nil {
				return k.SendExternalSignalProcessGroup(pg, info)
			}
		}
	}
	return k.SendExternalSignalThreadGroup(tg, info)
}
