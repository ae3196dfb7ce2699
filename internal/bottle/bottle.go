// Package bottle is the contract between carboy and whatever holds the
// untrusted side: a Backend makes a Bottle from a frozen Spec, the Bottle runs
// processes, and its only way out is the wire in the Spec.
//
// Start reading at Backend. Package bottletest holds the suite that every
// backend runs; package gvisor is the default backend.
package bottle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/carboy/carboy/internal/wire"
)

// Isolation names the strength of a boundary, as it stands in receipts.
type Isolation string

// The zero Isolation is not a claim of any kind.
const (
	// IsolationUserKernel: the command's system calls are served by a kernel in
	// user space, itself confined by namespaces and a seccomp filter.
	IsolationUserKernel Isolation = "user-kernel"
)

// Access says how a host directory appears inside.
type Access int

// The zero Access is no access: a Mount must say what it grants.
const (
	AccessNone      Access = iota
	AccessReadOnly         // reads reach the host, writes fail
	AccessReadWrite        // writes reach the host
	// AccessOverlay reads the host and keeps writes in the bottle, from where
	// Export takes them.
	AccessOverlay
)

// Mount is one host path that the bottle may see. Source and Target are
// absolute and clean; the source is opened once, when the bottle is made.
type Mount struct {
	Source string
	Target string
	Access Access
	// Dev and Ino, when Ino is not zero, are what Source must be: a directory
	// that was put in its place after the caller looked is refused.
	Dev, Ino uint64
	// Tree, when set, is a detached mount (open_tree) that stands for Source.
	// The Backend takes ownership of it.
	Tree *os.File
}

// Entry is a file, directory or symbolic link made for this bottle alone.
type Entry struct {
	Path    string // absolute, inside
	Mode    os.FileMode
	Content []byte // regular files
	Link    string // symbolic links
	Owned   bool   // belongs to the bottle's user rather than to root
}

// Root is what the bottle finds at "/", before workspace and mounts. Nothing
// that is not named here exists inside.
type Root struct {
	Dir     string  // a directory that is the whole root, or empty
	Binds   []Mount // read-only host trees, in order; without Source: an empty directory
	Entries []Entry // in order, parents first
}

// User is the identity of the command inside.
type User struct {
	UID, GID uint32
	Name     string
	Home     string
}

// Limits bound a bottle. Zero means "no limit of ours" only where stated;
// Validate refuses a zero elsewhere.
type Limits struct {
	Timeout time.Duration `json:"timeout_ns"`   // wall clock; 0: none
	Memory  int64         `json:"memory_bytes"` // bytes of the bottle's own memory
	Pids    int64         `json:"pids"`         // processes and threads inside
	Disk    int64         `json:"disk_bytes"`   // bytes written to the overlay
	CPUs    int           `json:"cpus"`
	Output  int64         `json:"output_bytes"` // stdout and stderr together
	// Egress bounds the bytes that leave by the network; 0: none.
	Egress int64 `json:"egress_bytes,omitempty"`
	// FileSize bounds one file written inside, bytes (RLIMIT_FSIZE).
	FileSize int64 `json:"file_size_bytes"`
	// OpenFiles bounds descriptors per process (RLIMIT_NOFILE).
	OpenFiles int64 `json:"open_files"`
}

// Validate refuses limits that would leave something unbounded.
func (l Limits) Validate() error {
	for _, f := range []struct {
		name string
		v    int64
	}{
		{"memory", l.Memory}, {"pids", l.Pids}, {"disk", l.Disk}, {"cpus", int64(l.CPUs)},
		{"output", l.Output}, {"file size", l.FileSize}, {"open files", l.OpenFiles},
	} {
		if f.v <= 0 {
			return fmt.Errorf("limits: %s must be above zero", f.name)
		}
	}
	if l.Timeout < 0 {
		return errors.New("limits: timeout is negative")
	}
	if l.Egress < 0 {
		return errors.New("limits: egress is negative")
	}
	return nil
}

// Spec is the frozen plan of one bottle.
type Spec struct {
	ID        string
	Root      Root
	Workspace *Mount // nil: none
	Mounts    []Mount
	User      User
	// HostUID and HostGID are what the bottle's user is on the host when carboy
	// runs as root; never 0. An ordinary user's bottles run as that user.
	HostUID, HostGID uint32
	Limits           Limits
	Hostname         string
	// Wire is the bottle's end of the only way out, a packet socket as package
	// wire makes it. The Backend takes ownership. Nil: no network at all.
	Wire *os.File
	// Lanes are the wire's fast part, to be used with it alone. The Backend
	// takes ownership. The zero value: connections go as packets.
	Lanes wire.LaneFiles
	// Net says how the bottle's network card is set up; needed with Wire.
	Net wire.Config
	// Trace is the bottle's end of a SEQPACKET socket that carries facts as
	// package trace has them, each datagram a batch. The Backend takes
	// ownership. All facts of what was done before are sent when Pause
	// returns; a bottle that ends otherwise can lose those of its last 2 ms.
	// A reader that is slow slows the bottle down; one that does not read for
	// two seconds loses facts, which are counted. Nil: nobody asked, and the
	// bottle does not pay for it. Posture.Trace says whether facts will come:
	// a backend that can't trace closes the socket and says false.
	Trace *os.File
	// Warm is what a Warmer made for the same user, or nil. Create uses it up.
	Warm Warm
	// Thaw brings back a bottle that was frozen; everything else must be as it was
	// then, but for the files of the host, which can have changed. Nil: a new one.
	Thaw *Thaw
	// Upper is what ExportAll wrote of another bottle: this one begins with its
	// files. The Backend takes ownership. Nil: with none.
	Upper *os.File
	// Scratch is a directory of the caller's in which the backend may keep the
	// overlay's pages; empty: in memory.
	Scratch string
}

// Writable lists the targets through which the bottle writes to the host.
func (s *Spec) Writable() []string {
	var out []string
	if s.Workspace != nil && s.Workspace.Access == AccessReadWrite {
		out = append(out, s.Workspace.Target)
	}
	for _, m := range s.Mounts {
		if m.Access == AccessReadWrite {
			out = append(out, m.Target)
		}
	}
	return out
}

// Files returns the descriptors that Create takes over.
func (s *Spec) Files() []*os.File {
	var out []*os.File
	add := func(f *os.File) {
		if f != nil {
			out = append(out, f)
		}
	}
	add(s.Wire)
	for _, f := range s.Lanes.Files() {
		add(f)
	}
	add(s.Trace)
	if s.Workspace != nil {
		add(s.Workspace.Tree)
	}
	for _, m := range append(s.Mounts, s.Root.Binds...) {
		add(m.Tree)
	}
	add(s.Upper)
	return append(out, s.Thaw.Files()...)
}

// Command is one process to start inside.
type Command struct {
	Args []string
	Env  []string // NAME=value, complete: nothing is inherited
	Dir  string
	// Stdin, Stdout, Stderr are pipes or, with Terminal, the same pty replica.
	// The Bottle duplicates them; the caller closes its own.
	Stdin, Stdout, Stderr *os.File
	Terminal              bool
	// Guest is a command beside the one that the bottle was made for. When it
	// has a terminal, signals of its keys and of its size are the caller's to
	// deliver (Process.Signal with group); the first one's terminal sees to that.
	Guest bool
}

// Status is how a process ended. The zero Status did not end.
type Status struct {
	Exited bool
	Code   int            // exit code, when Signal is zero
	Signal syscall.Signal // the signal that ended it, or zero
}

// ExitCode is the shell's convention: 128+n for signal n.
func (s Status) ExitCode() int {
	if s.Signal != 0 {
		return 128 + int(s.Signal)
	}
	return s.Code
}

// Usage is what a bottle uses. It costs little enough to be asked for 50 times
// a second.
type Usage struct {
	// Memory in bytes; with the overlay's pages unless those are in Scratch.
	Memory int64
	// Disk is what the overlay holds in Scratch, in bytes.
	Disk int64
}

// Refusals count what limits refused inside without ending anything.
type Refusals struct {
	Pids int64 // forks and threads
}

// Backend makes bottles. Implementations are safe for concurrent use.
type Backend interface {
	// Name is the backend's name in receipts and --backend.
	Name() string
	// Check says whether bottles can be made here. A nil error is a promise
	// that Create will not fail for want of anything that Check looks at.
	Check(ctx context.Context) error
	// Create makes a bottle whose posture has been read from the live
	// processes and matches; no instruction of the workload has run. On error
	// nothing is left behind.
	Create(ctx context.Context, spec *Spec) (Bottle, error)
}

// Warmer is a Backend that can begin before there is a Spec, while its caller
// writes records.
type Warmer interface {
	// Warm begins for a bottle of this user. It does not wait and does not fail:
	// Create, which gets it, says what went wrong. Close it in any case.
	Warm(u User, hostUID, hostGID uint32) Warm
}

// Warm is a beginning of a bottle.
type Warm interface {
	// Close ends what Create has not taken.
	Close()
}

// Bottle is one sealed machine. All methods are safe for concurrent use.
type Bottle interface {
	// Posture is what was verified before the first instruction.
	Posture() Posture
	// Start begins a command. ErrNotFound and ErrNotExecutable tell why a
	// program could not be started.
	Start(ctx context.Context, cmd *Command) (Process, error)
	// Pause stops every process inside; Export after Pause is a consistent
	// picture, and every fact was sent to Spec.Trace; when some could not be,
	// everything stands still and the error is a FactsLostError. There is no way
	// on from it but a Freezer's: callers destroy next.
	Pause(ctx context.Context) error
	// Export writes the overlay's upper layer, as a tar stream, to w.
	Export(ctx context.Context, w io.Writer) error
	// ExportAll writes all of the upper layer, for Spec.Upper of a later bottle.
	ExportAll(ctx context.Context, w io.Writer) error
	// Usage says what the bottle holds at this moment.
	Usage() (Usage, error)
	// Refusals says what limits refused so far.
	Refusals(ctx context.Context) (Refusals, error)
	// Done is closed when the bottle is gone, for whatever reason.
	Done() <-chan struct{}
	// Close destroys the bottle and returns when no process of it is left.
	// Idempotent.
	Close() error
}

// Process is a started command.
type Process interface {
	// Wait returns when the process has ended, or ErrGone with the bottle.
	Wait(ctx context.Context) (Status, error)
	// Signal delivers sig to the process, or with group to its process group:
	// the foreground one of its terminal when it has one, else its own.
	Signal(sig syscall.Signal, group bool) error
}

// Errors that callers branch on.
var (
	ErrNotFound      = errors.New("command not found in the bottle")
	ErrNotExecutable = errors.New("command cannot be executed in the bottle")
	ErrGone          = errors.New("bottle is gone")
)

// FactsLostError means that a bottle was paused, and that its last facts were
// lost because nobody took them. Nothing on Spec.Trace speaks of these.
type FactsLostError struct{ Untold uint64 }

func (e *FactsLostError) Error() string {
	return fmt.Sprintf("the last %d facts of the bottle were lost", e.Untold)
}

// UnavailableError says what keeps a backend from working here and what to do.
type UnavailableError struct {
	Backend string
	Reason  string
	Advice  string
	Err     error
}

func (e *UnavailableError) Error() string {
	s := e.Backend + ": " + e.Reason
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *UnavailableError) Unwrap() error { return e.Err }
