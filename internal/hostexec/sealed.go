package hostexec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A sealed program runs for as long as its user wants, so it has no supervisor that
// counts its time. Its own PID namespace takes the supervisor's place: when the program
// ends or is killed, the kernel ends everything in it, and Pdeathsig kills it when
// carboy dies.

// sealedArg0 is this binary on its way to become a sealed program.
const sealedArg0 = "carboy-sealed"

// Sealed describes a program that runs in namespaces of its own: of users, mounts,
// processes, IPC, host names, networks and control groups. It has no capabilities and
// can't gain any, and a filter keeps from it the system calls by which programs attack a
// kernel. It finds the system's programs and libraries at "/", without settings that can
// hold credentials, /dev/null, the binds, and nothing else, all of it read-only. It inherits
// Files and no other descriptor.
type Sealed struct {
	Program Program
	Args    []string
	// UID and GID are the host's ids of the process if carboy is root, and never 0;
	// else it runs as this user.
	UID, GID int
	// Files become its descriptors 3, 4 and so on. They stay the caller's.
	Files []*os.File
	// Binds are further files, directories and devices.
	Binds  []Bind
	Limits SealedLimits
}

// SealedLimits bound what a sealed program takes of this machine. All but FileSize must be
// above zero.
type SealedLimits struct {
	Memory   uint64 // of its address space, bytes
	FileSize uint64 // up to which it can make a file, bytes
	Files    uint64 // descriptors
	Threads  uint64
}

// Bind is a path of this machine that a sealed program finds at another one.
type Bind struct {
	Source, Target string // absolute and clean
	// Device says that the source is a device that the program may use.
	Device bool
}

// sealedID is the program's user and group, as it sees them.
const sealedID = 65534

// systemDirs hold programs and libraries; where one is a link, the link is made again.
var systemDirs = []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store", "/gnu/store", "/etc/ld.so.cache"}

// sealedOrder goes from StartSealed to the process that becomes the program.
type sealedOrder struct {
	Path   string
	Argv   []string
	Env    []string
	Binds  []sealedBind
	Files  int // the program's own, from descriptor 3 on
	Limits SealedLimits
}

type sealedBind struct {
	Bind
	Link string // for a symbolic link: where it leads
	FD   int    // an opened tree; 0: the process opens Source itself
}

// SealedProcess is a running sealed program. Its methods are safe for concurrent use.
type SealedProcess struct {
	mu     sync.Mutex // held until cmd is started
	cmd    *exec.Cmd
	output *tailBuffer
	done   chan struct{}
}

// StartSealed starts the program. The error is a refusal or the system's. What fails
// after that, such as making the namespace's mounts, ends the process, and Output says
// it. Close of the Runner kills it.
func (r *Runner) StartSealed(ctx context.Context, s Sealed) (*SealedProcess, error) {
	spec, loc, c, err := r.admitSealed(&s)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("hostexec: start %s: %w", spec.name, err)
	}
	own := s.Binds
	if !slices.ContainsFunc(systemDirs, func(d string) bool { return strings.HasPrefix(loc.path, d+"/") }) {
		own = append(slices.Clone(own), Bind{Source: loc.path, Target: loc.path})
	}
	binds, opened, err := sealedBinds(own)
	defer closeAll(opened)
	if err != nil {
		return nil, fmt.Errorf("hostexec: start %s: %w", spec.name, err)
	}
	files := slices.Concat(s.Files, opened)
	next := 3 + len(s.Files)
	for i := range binds {
		if len(opened) > 0 && binds[i].Link == "" {
			binds[i].FD = next
			next++
		}
	}
	env, _ := chooseEnv(spec, nil, c.env)
	text, err := json.Marshal(sealedOrder{
		Path: loc.path, Argv: append([]string{loc.path}, c.argv...), Env: env, Binds: binds, Files: len(s.Files), Limits: s.Limits,
	})
	if err != nil {
		return nil, err
	}
	p := &SealedProcess{output: &tailBuffer{}, done: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	id, err := r.register(spec.name, "/", func(Outcome) { p.Kill() })
	if err != nil {
		return nil, err
	}
	if err := p.start(&s, text, files); err != nil {
		r.unregister(id)
		return nil, fmt.Errorf("hostexec: start %s: %w", spec.name, err)
	}
	go func() { // ends with the process
		_ = p.cmd.Wait()
		r.unregister(id)
		close(p.done)
	}()
	return p, nil
}

// admitSealed makes the checks that Run makes for its commands.
func (r *Runner) admitSealed(s *Sealed) (*spec, *location, *call, error) {
	name := s.Program.String()
	if r == nil || r.programs == nil {
		return nil, nil, nil, refuse(name, reasonClosed, "runner was not made by New")
	}
	spec := r.programs[s.Program]
	if spec == nil || !spec.sealed || spec.prepare == nil || isNever(spec.name) {
		return nil, nil, nil, refuse(name, reasonProgram, "not in the closed set of sealed programs")
	}
	if os.Geteuid() == 0 && (s.UID <= 0 || s.GID <= 0) {
		return nil, nil, nil, refuse(name, reasonArgument, "a sealed program does not run as root")
	}
	if l := s.Limits; l.Memory == 0 || l.Files == 0 || l.Threads == 0 {
		return nil, nil, nil, refuse(name, reasonArgument, "a sealed program has limits")
	}
	for _, a := range s.Args {
		if strings.IndexByte(a, 0) >= 0 {
			return nil, nil, nil, refuse(name, reasonArgument, "zero byte in an argument")
		}
	}
	for _, b := range s.Binds {
		if !cleanAbsolute(b.Source) || !cleanAbsolute(b.Target) || b.Target == "/" {
			return nil, nil, nil, refuse(name, reasonDirectory, "a bind is not from one clean absolute path to another")
		}
	}
	loc, err := r.locate(s.Program, spec, "/")
	if err != nil {
		return nil, nil, nil, err
	}
	c := &call{program: spec.name, args: slices.Clone(s.Args), dir: "/", scratch: r.opt.Scratch}
	if err := spec.prepare(c); err != nil {
		return nil, nil, nil, err
	}
	return spec, loc, c, nil
}

// Find returns the path of a program, or why it can't be used.
func (r *Runner) Find(p Program) (string, error) {
	s := r.programs[p]
	if s == nil {
		return "", refuse(p.String(), reasonProgram, "not in the closed set")
	}
	loc, err := r.locate(p, s, "/")
	if err != nil {
		return "", err
	}
	return loc.path, nil
}

// sealedBinds adds the system's directories to the caller's binds. Root opens all of
// them here, since the program's user may not reach them by path.
func sealedBinds(own []Bind) (out []sealedBind, opened []*os.File, err error) {
	for _, dir := range systemDirs {
		fi, err := os.Lstat(dir)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			return nil, nil, err
		case fi.Mode()&os.ModeSymlink != 0:
			to, err := os.Readlink(dir)
			if err != nil {
				return nil, nil, err
			}
			out = append(out, sealedBind{Bind: Bind{Target: dir}, Link: to})
		default:
			out = append(out, sealedBind{Bind: Bind{Source: dir, Target: dir}})
		}
	}
	for _, b := range append([]Bind{{Source: os.DevNull, Target: os.DevNull, Device: true}}, own...) {
		out = append(out, sealedBind{Bind: b})
	}
	if os.Geteuid() != 0 {
		return out, nil, nil
	}
	for _, b := range out {
		if b.Link != "" {
			continue
		}
		f, err := cloneTree(b.Source)
		if err != nil {
			return nil, opened, err
		}
		opened = append(opened, f)
	}
	return out, opened, nil
}

// cloneTree returns a detached copy of the mounts at path.
func cloneTree(path string) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_NO_AUTOMOUNT)
	if err != nil {
		return nil, &os.PathError{Op: "open_tree", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func (p *SealedProcess) start(s *Sealed, order []byte, files []*os.File) error {
	in, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	defer w.Close()
	if len(order) > maxOrder {
		return errOrderTooLong
	}
	if _, err := w.Write(order); err != nil {
		return err
	}
	root := os.Geteuid() == 0
	uid, gid := os.Geteuid(), os.Getegid()
	if root {
		uid, gid = s.UID, s.GID
	}
	p.cmd = &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{sealedArg0}, Env: []string{}, Dir: "/",
		Stdin: in, Stdout: p.output, Stderr: p.output, ExtraFiles: files,
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC |
				unix.CLONE_NEWUTS | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: sealedID, HostID: uid, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: sealedID, HostID: gid, Size: 1}},
			// A user keeps his groups, among them the one that may use /dev/kvm.
			GidMappingsEnableSetgroups: root,
			Credential:                 &syscall.Credential{Uid: sealedID, Gid: sealedID, NoSetGroups: !root},
			AmbientCaps:                allCaps(),
			Pdeathsig:                  unix.SIGKILL,
			Setsid:                     true,
		},
	}
	return StartPinned(p.cmd)
}

func allCaps() []uintptr {
	var out []uintptr
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		out = append(out, c)
	}
	return out
}

// pinned starts processes from one thread that never ends: Pdeathsig follows the
// parent's thread, and Go's threads come and go.
var pinned = sync.OnceValue(func() chan<- func() {
	ch := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range ch {
			f()
		}
	}()
	return ch
})

// StartPinned is cmd.Start for a process with a Pdeathsig: it makes the signal follow
// this process.
func StartPinned(cmd *exec.Cmd) error {
	errc := make(chan error, 1)
	pinned() <- func() { errc <- cmd.Start() }
	return <-errc
}

// PID returns the process's id on the host.
func (p *SealedProcess) PID() int { return p.cmd.Process.Pid }

// Done is closed when no process of the program is left.
func (p *SealedProcess) Done() <-chan struct{} { return p.done }

// Kill ends the program and everything that it started. It does not wait.
func (p *SealedProcess) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil && p.cmd.Process != nil {
		_ = p.cmd.Process.Kill()
	}
}

// Output returns the end of what the program wrote to its standard streams. It is not
// to be trusted.
func (p *SealedProcess) Output() string { return p.output.String() }

// tailBuffer keeps the last bytes that a process wrote.
type tailBuffer struct {
	mu sync.Mutex
	b  []byte
}

const tailSize = 16 << 10

func (t *tailBuffer) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if extra := len(t.b) - tailSize; extra > 0 {
		t.b = append(t.b[:0], t.b[extra:]...)
	}
	return len(b), nil
}

func (t *tailBuffer) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}

func cleanAbsolute(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && !strings.ContainsAny(path, "\x00\n")
}

// CheckArgs returns why arguments are refused for a program of the closed set.
func CheckArgs(p Program, args []string) error {
	s := hostPrograms[p]
	if s == nil {
		return refuse(p.String(), reasonProgram, "not in the closed set")
	}
	c := &call{program: s.name, args: slices.Clone(args), dir: "/", scratch: os.TempDir()}
	defer c.discard()
	return s.prepare(c)
}
