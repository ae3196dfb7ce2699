// Package bottle is the contract between carboy and a backend, which confines
// the untrusted side. A Backend makes a Bottle from a frozen Spec, the Bottle
// runs processes, and its only way out is the wire in the Spec.
//
// Start reading at Backend. Package bottletest is the test suite of every
// backend; package backends chooses one.
package bottle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/wire"
)

// Access says how a host directory appears inside.
type Access int

// The zero Access is no access, so a Mount must name its access.
const (
	accessNone      Access = iota
	AccessReadOnly         // reads reach the host, writes fail
	AccessReadWrite        // writes reach the host
	// AccessOverlay reads from the host and keeps writes in the bottle, where
	// Export finds them.
	AccessOverlay
)

// Mount is one host path that the bottle may see. Source and Target are
// absolute and clean. The backend opens the source once, when it makes the
// bottle.
type Mount struct {
	Source string
	Target string
	Access Access
	// Dev and Ino, unless Ino is zero, identify Source. A directory that
	// replaced it after the caller looked is refused.
	Dev, Ino uint64
	// Tree, when set, is a detached mount (open_tree) to use in place of
	// Source. The Backend takes ownership of it.
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

// SettingsBy names the host's files by which a file of /etc is shown to a bottle or not.
var SettingsBy = []string{"/var/lib/dpkg/status", "/var/lib/ucf/registry"}

// Root describes the bottle's "/", before workspace and mounts. Nothing else
// exists inside.
type Root struct {
	Dir     string  // the whole root, or empty
	Binds   []Mount // read-only host trees, in order; one without Source is an empty directory
	Entries []Entry // in order, parents first
}

// User is the identity of the command inside.
type User struct {
	UID, GID uint32
	Name     string
	Home     string
}

// Limits bound a bottle. Zero means "no limit" only where stated; Validate
// refuses it elsewhere.
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

// Validate refuses limits that leave a resource unbounded.
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
	// HostUID and HostGID are the host ids of the bottle's user when carboy
	// runs as root; never 0. An ordinary user's bottles run as that user.
	HostUID, HostGID uint32
	Limits           Limits
	Hostname         string
	// Wire is the bottle's end of the only way out, a packet socket as package
	// wire makes it. The Backend takes ownership. Nil: no network at all.
	Wire *os.File
	// Channels carry connections without packets; they need
	// Wire. The Backend takes ownership. The zero value: connections go as
	// packets.
	Channels wire.ChannelFiles
	// Net configures the bottle's network card; required with Wire.
	Net wire.Config
	// Proxy serves the connections that a listener accepts as those of the bottle, as an
	// HTTP and SOCKS5 proxy. It takes ownership of the listener and returns when that or
	// the bottle's network is closed. A backend with Capabilities.ProxyOnly calls it once,
	// beside Wire, which it keeps open for as long as the bottle lives. Others ignore it.
	Proxy func(net.Listener) error
	// Trace is the bottle's end of a SEQPACKET socket. Each datagram on it is a
	// batch of facts as package trace encodes them. The Backend takes
	// ownership. When Pause returns, all facts of what was done before have
	// been sent; a bottle that ends otherwise can lose those of its last 2 ms.
	// A slow reader slows the bottle down. If a reader does not read for two
	// seconds, facts are dropped and counted. Nil: no facts, and no cost.
	// Posture.Trace says whether facts will come: a backend without tracing
	// closes the socket and reports false.
	Trace *os.File
	// Warm was made by a Warmer for the same user, or is nil. Create uses it
	// up.
	Warm Warm
	// Thaw restores a frozen bottle. Everything else must be as it was then,
	// except for files of the host, which may have changed. Nil: a new bottle.
	Thaw *Thaw
	// Upper holds the output of another bottle's ExportAll, whose files this
	// bottle begins with. The Backend takes ownership. Nil: none.
	Upper *os.File
	// Builds gives the commands, whose user must be 0, the capabilities that building an
	// image takes: over files, users and groups inside. They are those of the bottle's own
	// kernel, and nothing on the host. Only a backend with Capabilities.Builds has them.
	Builds bool
	// Scratch is a directory of the caller's in which the backend may keep the
	// overlay's pages; empty: in memory.
	Scratch string
}

// Writable returns the targets through which the bottle writes to the host.
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

// Files returns the descriptors that Create takes ownership of.
func (s *Spec) Files() []*os.File {
	var out []*os.File
	add := func(f *os.File) {
		if f != nil {
			out = append(out, f)
		}
	}
	add(s.Wire)
	for _, f := range s.Channels.Files() {
		add(f)
	}
	add(s.Trace)
	if s.Workspace != nil {
		add(s.Workspace.Tree)
	}
	for _, m := range slices.Concat(s.Mounts, s.Root.Binds) {
		add(m.Tree)
	}
	add(s.Upper)
	return append(out, s.Thaw.files()...)
}

// Command describes one process to start inside.
type Command struct {
	Args []string
	Env  []string // NAME=value, complete: nothing is inherited
	Dir  string
	// Stdin, Stdout and Stderr are pipes or, with Terminal, the same pty
	// replica. The Bottle duplicates them; the caller closes its own.
	Stdin, Stdout, Stderr *os.File
	Terminal              bool
	// Guest marks a command that runs beside the bottle's first one. If it has
	// a terminal, the caller delivers the signals of its keys and of its size
	// (Process.Signal with group); the first command's terminal delivers its
	// own.
	Guest bool
}

// Status says how a process ended. The zero Status means that it has not ended.
type Status struct {
	Exited bool
	Code   int            // exit code, when Signal is zero
	Signal syscall.Signal // the signal that ended it, or zero
}

// ExitCode returns the code by the shell's convention: 128+n for signal n.
func (s Status) ExitCode() int {
	if s.Signal != 0 {
		return exitcode.Signal(s.Signal)
	}
	return s.Code
}

// Usage holds the resources in use. Reading it is cheap enough for 50 times a
// second.
type Usage struct {
	// Memory in bytes; includes the overlay's pages unless those are in
	// Scratch.
	Memory int64
	// Disk is the size of the overlay in Scratch, in bytes.
	Disk int64
}

// Refusals count the operations that limits refused inside without ending
// anything.
type Refusals struct {
	Pids int64 // forks and threads
}

// DebugEnv names a variable of carboy's own environment, for developers: a directory in
// which a backend writes what it does. A bottle that was prepared earlier has not.
const DebugEnv = "CARBOY_BACKEND_DEBUG"

// Prober is implemented by a Backend that can try itself: Probe makes an empty bottle from
// spec, verifies its posture and destroys it.
type Prober interface {
	Probe(ctx context.Context, spec *Spec) (Posture, error)
}

// Backend makes bottles. Implementations are safe for concurrent use.
type Backend interface {
	// Name returns the backend's name in receipts and --backend.
	Name() string
	// Build returns the backend's version, in receipts and in keys of caches
	// whose entries another version must not use.
	Build() string
	// Isolation returns the class of boundary that a bottle has which is made here
	// now. It may look at the machine, and remembers what it found; it is empty
	// where no bottle can be made. Create fails if the posture does not bear it out.
	Isolation() Isolation
	// Capabilities says what this backend's bottles can do, without looking at the
	// machine.
	Capabilities() Capabilities
	// Check reports why bottles cannot be made here. nil promises that Create
	// will not fail for lack of anything that Check looks at.
	Check(ctx context.Context) error
	// Create makes a bottle and verifies its posture on the live processes. No
	// instruction of the workload has run when it returns. On error it leaves
	// nothing behind.
	Create(ctx context.Context, spec *Spec) (Bottle, error)
}

// Warmer is implemented by a Backend that can start work before there is a
// Spec, while its caller prepares one.
type Warmer interface {
	// Warm starts the work for a bottle of this user. It does not wait and does
	// not fail: Create, which receives the result, reports the error. Always
	// close the Warm.
	Warm(u User, hostUID, hostGID uint32) Warm
}

// Warm is a bottle whose creation has begun.
type Warm interface {
	// Close ends the work unless Create has taken it.
	Close()
}

// Bottle is one sealed machine. All methods are safe for concurrent use.
type Bottle interface {
	// Posture returns what was verified before the workload's first
	// instruction.
	Posture() Posture
	// Start starts a command. ErrNotFound and ErrNotExecutable say why a
	// program could not be started.
	Start(ctx context.Context, cmd *Command) (Process, error)
	// Pause stops every process inside, so that Export is consistent, and sends
	// every fact to Spec.Trace. If some facts could not be sent, the bottle is
	// paused all the same and the error is a FactsLostError. It cannot go on,
	// except through a Freezer: callers close it next.
	Pause(ctx context.Context) error
	// Export writes the overlay's upper layer, as a tar stream, to w.
	Export(ctx context.Context, w io.Writer) error
	// ExportAll writes all of the upper layer, for Spec.Upper of a later bottle.
	ExportAll(ctx context.Context, w io.Writer) error
	// Checkpoint pauses all processes inside, writes what ExportAll would to w, and lets
	// them go on. The contents of regular files that have not changed since the last
	// Checkpoint without an error may be missing, as package checkpoint describes.
	Checkpoint(ctx context.Context, o CheckpointOptions, w io.Writer) (Checkpointed, error)
	// Usage returns the resources that the bottle uses now.
	Usage() (Usage, error)
	// Refusals returns the number of operations that limits refused so far.
	Refusals(ctx context.Context) (Refusals, error)
	// Done is closed when the bottle is gone, for whatever reason.
	Done() <-chan struct{}
	// Close destroys the bottle and returns when no process of it is left. It
	// is idempotent.
	Close() error
}

// Process is a started command.
type Process interface {
	// Wait blocks until the process has ended. It returns ErrGone if the bottle
	// ends first.
	Wait(ctx context.Context) (Status, error)
	// Signal sends sig to the process, or with group to its process group: the
	// foreground group of its terminal if it has one, else its own.
	Signal(sig syscall.Signal, group bool) error
}

// Errors that callers branch on.
var (
	ErrNotFound      = exitcode.New(exitcode.Missing, "command not found in the bottle")
	ErrNotExecutable = exitcode.New(exitcode.Unexecutable, "command cannot be executed in the bottle")
	ErrGone          = errors.New("bottle is gone")
)

// FactsLostError means that Pause stopped the bottle, but nobody read its last
// facts, which were lost. No batch on Spec.Trace counts these.
type FactsLostError struct{ Untold uint64 }

func (e *FactsLostError) Error() string {
	return fmt.Sprintf("the last %d facts of the bottle were lost", e.Untold)
}

// UnavailableError says why a backend cannot work here and what to do.
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
