package gvisor

import (
	"crypto/sha256"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/overlay"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/mm"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"
	pb "gvisor.dev/gvisor/pkg/sentry/seccheck/points/points_go_proto"
	syslinux "gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	"github.com/carboy/carboy/internal/trace"
)

// Processes. execve is served here up to the loading of the program. Path,
// arguments and environment are copied once; the file, and a script's
// interpreters, are opened here, and the loader gets the open file. So the
// reported file is the loaded file, whoever swaps names meanwhile. gVisor tells
// its sinks when it was loaded.

//go:linkname parseInterpreterScript gvisor.dev/gvisor/pkg/sentry/loader.parseInterpreterScript
func parseInterpreterScript(ctx context.Context, filename string, fd *vfs.FileDescription, argv []string) (newpath string, newargv []string, err error)

var processCalls = map[string]around{
	"execve": func(w *factWriter, t *kernel.Task, _ uintptr, a arch.SyscallArguments, _ call) (uintptr, *kernel.SyscallControl, error) {
		return w.exec(t, linux.AT_FDCWD, a[0].Pointer(), a[1].Pointer(), a[2].Pointer(), 0)
	},
	"execveat": func(w *factWriter, t *kernel.Task, _ uintptr, a arch.SyscallArguments, _ call) (uintptr, *kernel.SyscallControl, error) {
		return w.exec(t, a[0].Int(), a[1].Pointer(), a[2].Pointer(), a[3].Pointer(), a[4].Int())
	},
	// Wrapped only so that began runs, and even a program that makes no other
	// call is seen.
	"exit":       passOn,
	"exit_group": passOn,
}

func passOn(_ *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, *kernel.SyscallControl, error) {
	return orig(t, no, a)
}

// maxScripts is the number of files that Linux and gVisor look at: one, and
// five that scripts name.
const maxScripts = 6

func (w *factWriter) exec(t *kernel.Task, dirfd int32, addr, argvAddr, envAddr hostarch.Addr, flags int32) (uintptr, *kernel.SyscallControl, error) {
	if flags&^(linux.AT_EMPTY_PATH|linux.AT_SYMLINK_NOFOLLOW) != 0 {
		return 0, nil, linuxerr.EINVAL
	}
	name, err := t.CopyInString(addr, linux.PATH_MAX)
	if err != nil {
		return 0, nil, err
	}
	var argv, env []string
	if argvAddr != 0 {
		if argv, err = t.CopyInVector(argvAddr, syslinux.ExecMaxElemSize, syslinux.ExecMaxTotalSize); err != nil {
			return 0, nil, err
		}
	}
	if envAddr != 0 {
		if env, err = t.CopyInVector(envAddr, syslinux.ExecMaxElemSize, syslinux.ExecMaxTotalSize); err != nil {
			return 0, nil, err
		}
	}
	f := trace.Fact{Op: trace.Exec}
	relative := dirfd != linux.AT_FDCWD && !strings.HasPrefix(name, "/")
	if name == "" && !(relative && flags&linux.AT_EMPTY_PATH != 0) {
		return 0, nil, linuxerr.ENOENT
	}
	p, closes, err := execPlace(t, dirfd, name, relative)
	if err != nil {
		return 0, nil, err
	}
	defer p.release()
	called := name
	if relative {
		called = "/dev/fd/" + strconv.Itoa(int(dirfd))
		if name != "" {
			called += "/" + name
		}
	}
	file, where, err := w.openExec(p, flags&linux.AT_SYMLINK_NOFOLLOW == 0)
	if err != nil {
		if where == nil || !linuxerr.Equals(linuxerr.ENOENT, err) {
			f.Args = argv
		}
		w.reportExecFailed(&f, p, where, err)
		return 0, nil, err
	}
	first, firstFlags := truePath(t, file.VirtualDentry())
	file, argv, err = w.interpreter(t, file, called, argv, closes, flags&linux.AT_SYMLINK_NOFOLLOW == 0)
	if err != nil {
		f.Path, f.Flags, f.Args = first, firstFlags, argv
		f.PID, f.Errno = pidOf(t), errnoOf(err)
		w.emit(&f)
		return 0, nil, err
	}
	w.describe(t, &f, file, first, called)
	f.Args = argv
	w.execs.begin(t, &f, file)
	// The loader finds no script here any more. If the workload turns this file
	// into one right now, "close on exec" makes the loader refuse it.
	return 0, t.Execve(argv, env, flags, called, file, true), nil
}

// execPlace returns the place of a program's path. closes means that its
// directory, or the file itself, is named by a descriptor that is closed on
// exec.
func execPlace(t *kernel.Task, dirfd int32, name string, relative bool) (p *place, closes bool, err error) {
	if !relative {
		p, err = placeAt(t, linux.AT_FDCWD, name, strings.HasPrefix(name, "/"))
		return p, false, err
	}
	dir, fl := t.FDTable().Get(dirfd)
	if dir == nil {
		return nil, false, linuxerr.EBADF
	}
	defer dir.DecRef(t)
	p = &place{t: t, raw: name, root: t.FSContext().RootDirectory(), start: dir.VirtualDentry(), creds: t.Credentials()}
	p.start.IncRef()
	return p, fl.CloseOnExec, nil
}

// openExec opens a program as the loader does.
func (w *factWriter) openExec(p *place, follow bool) (file *vfs.FileDescription, where *place, err error) {
	where, err = p.try(func(q *place) (err error) {
		file, err = q.t.Kernel().VFS().OpenAt(q.t, q.creds, q.pop(follow), &vfs.OpenOptions{Flags: linux.O_RDONLY, FileExec: true})
		return err
	})
	if err == nil {
		w.seen(p.t, file.VirtualDentry())
	}
	return file, where, err
}

func (w *factWriter) reportExecFailed(f *trace.Fact, p, where *place, err error) {
	f.UID, f.EUID = ids(p.t)
	w.report(f, p, where, vfs.VirtualDentry{}, err)
}

// interpreter follows scripts from file to a program, as the loader would, and
// returns the program with its arguments. It takes ownership of file.
func (w *factWriter) interpreter(t *kernel.Task, file *vfs.FileDescription, name string, argv []string, closes, follow bool) (*vfs.FileDescription, []string, error) {
	for range maxScripts {
		var magic [4]byte
		_, err := file.ReadFull(t, usermem.BytesIOSequence(magic[:]), 0)
		if err == io.EOF {
			err = linuxerr.ENOEXEC
		}
		if err != nil && err != io.ErrUnexpectedEOF {
			file.DecRef(t)
			return nil, argv, err
		}
		if string(magic[:]) == "\x7fELF" {
			return file, argv, nil
		}
		if string(magic[:2]) != "#!" {
			file.DecRef(t)
			return nil, argv, linuxerr.ENOEXEC
		}
		if closes {
			file.DecRef(t)
			return nil, argv, linuxerr.ENOENT
		}
		name, argv, err = parseInterpreterScript(t, name, file, argv)
		file.DecRef(t)
		if err != nil {
			return nil, argv, err
		}
		q, err := placeAt(t, linux.AT_FDCWD, name, strings.HasPrefix(name, "/"))
		if err != nil {
			return nil, argv, err
		}
		var where *place
		file, where, err = w.openExec(q, follow)
		if err != nil {
			// Report the missing interpreter.
			w.reportExecFailed(&trace.Fact{Op: trace.Exec}, q, where, err)
			q.release()
			return nil, argv, err
		}
		q.release()
	}
	file.DecRef(t)
	return nil, argv, linuxerr.ELOOP
}

func ids(t *kernel.Task) (uid, euid uint32) {
	c := t.Credentials()
	return uint32(c.RealKUID), uint32(c.EffectiveKUID)
}

// describe fills in f's description of a program. first is the file that was
// named, if known, and called its name.
func (w *factWriter) describe(t *kernel.Task, f *trace.Fact, file *vfs.FileDescription, first, called string) {
	f.PID = pidOf(t)
	f.UID, f.EUID = ids(t)
	if parent := t.Parent(); parent != nil {
		f.PPID = pidOf(parent)
	}
	f.Path, f.Flags = truePath(t, file.VirtualDentry())
	switch {
	case first != "" && first != f.Path:
		f.Path2 = first
	case called != f.Path:
		f.Path2 = called
	}
	var mutable bool
	f.Digest, mutable = w.digests.of(t, file)
	if mutable {
		f.Flags |= trace.Mutable
	}
}

const (
	// digestMost bounds the file that is read at each exec because the workload
	// can write to it; digestMostFixed bounds one that the workload cannot
	// write to, which is read once.
	digestMost      = 64 << 20
	digestMostFixed = 512 << 20
	digestEntries   = 4096
	// digestSettled is the age below which a changed file may change again
	// without a new modification time.
	digestSettled = 2 * time.Second
)

// fileKey identifies a file that the workload cannot write to.
type fileKey struct {
	fs           *vfs.Filesystem
	major, minor uint32
	ino, size    uint64
	sec          int64
	nsec         uint32
}

type digests struct {
	mu    sync.Mutex
	known map[fileKey]string
}

// of returns the SHA-256 of file, or "" if it is too large or unreadable.
// mutable means that the workload can write to it, so it may have differed when
// it was loaded, or differ by now.
func (d *digests) of(t *kernel.Task, file *vfs.FileDescription) (sum string, mutable bool) {
	mutable = !fixed(t, file)
	st, err := file.Stat(t, vfs.StatOptions{Mask: linux.STATX_TYPE | linux.STATX_INO | linux.STATX_SIZE | linux.STATX_CTIME})
	if err != nil || st.Mode&linux.S_IFMT != linux.S_IFREG {
		return "", mutable
	}
	if mutable {
		return digest(t, file, st.Size, digestMost), true
	}
	k := fileKey{file.Mount().Filesystem(), st.DevMajor, st.DevMinor, st.Ino, st.Size, st.Ctime.Sec, st.Ctime.Nsec}
	d.mu.Lock()
	sum, ok := d.known[k]
	d.mu.Unlock()
	if ok {
		return sum, false
	}
	sum = digest(t, file, st.Size, digestMostFixed)
	if !fixed(t, file) {
		// The workload gained write access during the read.
		return "", true
	}
	if time.Since(time.Unix(k.sec, int64(k.nsec))) < digestSettled {
		return sum, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil || len(d.known) >= digestEntries {
		d.known = map[fileKey]string{}
	}
	d.known[k] = sum
	return sum, false
}

// fixed reports whether nothing inside can write to file at this moment. A
// read-only mount alone proves nothing: the workload can make one of its own
// files.
func fixed(t *kernel.Task, file *vfs.FileDescription) bool {
	r := learnRoot(t)
	if r == nil {
		return false
	}
	if fs := file.Mount().Filesystem(); fs != r.fs {
		return r.fixed[fs]
	}
	return overlay.IsOnLower(file.Dentry()) && !overlay.IsCopiedUp(file.Dentry())
}

var digestBufs = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

func digest(t *kernel.Task, file *vfs.FileDescription, size uint64, most int64) string {
	if size > uint64(most) {
		return ""
	}
	buf := digestBufs.Get().(*[]byte)
	defer digestBufs.Put(buf)
	h := sha256.New()
	var off int64
	for {
		n, err := file.PRead(t, usermem.BytesIOSequence(*buf), off, vfs.ReadOptions{})
		h.Write((*buf)[:n])
		if off += n; off > most {
			return ""
		}
		if err == io.EOF || err == nil && n == 0 {
			return string(h.Sum(nil))
		}
		if err != nil {
			return ""
		}
	}
}

// execs holds the programs that tasks are about to become. A program is
// reported when the task has become it: even after gVisor has loaded it, a kill
// or another thread's exec can still abandon it.
type execs struct {
	n  atomic.Int32 // len(of)
	mu sync.Mutex
	of map[*kernel.Task]*loading
}

// loading is one such program. It holds no reference to file, which would keep
// a mount busy; the kernel holds one while the program is loaded and runs.
type loading struct {
	fact   trace.Fact
	file   *vfs.FileDescription
	dentry *vfs.Dentry
	loaded bool
}

func (e *execs) begin(t *kernel.Task, f *trace.Fact, file *vfs.FileDescription) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.of[t] = &loading{fact: *f, file: file, dentry: file.Dentry()}
	e.n.Store(int32(len(e.of)))
}

// Execve implements seccheck.Sink: a program has been loaded for an exec. An
// error abandons it.
func (s *factSink) Execve(ctx context.Context, _ seccheck.FieldSet, i *pb.ExecveInfo) error {
	t := kernel.TaskFromContext(ctx)
	// From here on gVisor discards pending stop signals, which on Linux outlive
	// an exec: a ^Z or a kill -STOP during the load would be lost. So t stops
	// first, and then makes the call again.
	if t != nil && t.PendingSignals()&^t.SignalMask()&kernel.StopSignals != 0 {
		return linuxerr.ERESTARTNOINTR
	}
	e := &s.w.execs
	e.mu.Lock()
	if l := e.of[t]; l != nil && !l.loaded {
		l.loaded = true
		l.fact.UID, l.fact.EUID = ids(t)
		// The file was fixed when it was read and is not any more: the mapped
		// bytes may be either version.
		if l.fact.Flags&trace.Mutable == 0 && overlay.IsCopiedUp(l.dentry) {
			l.fact.Flags |= trace.Mutable
			l.fact.Digest = ""
		}
		e.mu.Unlock()
		s.w.wakeLingerer()
		return nil
	}
	e.mu.Unlock()
	// This program was not loaded through exec above.
	f := trace.Fact{Op: trace.Exec, Flags: trace.Claimed, Path: i.BinaryPath, Args: i.Argv}
	if t != nil {
		f.PID = pidOf(t)
	}
	s.w.emit(&f)
	return nil
}

// became runs before every call of t, and at its end: it reports the program
// that t has become. An exec that the loader refused, or that a task abandoned
// before it went on, has returned an error and is not reported.
func (w *factWriter) became(t *kernel.Task) {
	if w.execs.n.Load() != 0 {
		w.reportExec(t, true)
	}
}

// settleExecs does the same for tasks that make no calls.
func (w *factWriter) settleExecs() {
	if w.execs.n.Load() == 0 {
		return
	}
	w.execs.mu.Lock()
	var ts []*kernel.Task
	for t := range w.execs.of {
		ts = append(ts, t)
	}
	w.execs.mu.Unlock()
	for _, t := range ts {
		w.reportExec(t, false)
	}
}

// reportExec reports the program of t, if it runs. own means that t itself asks,
// so that it runs now or never. The lock is held meanwhile, and the count of
// programs that are not reported falls last, so that facts of the program's
// actions come later.
func (w *factWriter) reportExec(t *kernel.Task, own bool) {
	e := &w.execs
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.of[t]
	if l == nil {
		return
	}
	runs := l.loaded && executes(t, l.file)
	if !runs && !own {
		return
	}
	delete(e.of, t)
	defer func() { e.n.Store(int32(len(e.of))) }()
	if l.loaded {
		if !runs {
			l.fact.Errno = uint32(linuxerr.EINTR.Errno())
		} else {
			// It has the ids gained by the exec only now.
			l.fact.UID, l.fact.EUID = ids(t)
		}
		w.emit(&l.fact)
	}
}

// executes reports whether file is the program of t.
func executes(t *kernel.Task, file *vfs.FileDescription) bool {
	var m *mm.MemoryManager
	t.WithMuLocked(func(t *kernel.Task) { m = t.MemoryManager() })
	if m == nil {
		return false
	}
	exe := m.Executable()
	if exe == nil {
		return false
	}
	defer exe.DecRef(t.Kernel().SupervisorContext())
	return exe == file
}

// taskCounts tracks living tasks: the trace point of a task's end does not say
// whether it was the last of its process, nor whether the task ever ran.
type taskCounts struct {
	mu   sync.Mutex
	born map[*kernel.Task]bool       // by a reported clone
	live map[*kernel.ThreadGroup]int // number of tasks; absent: one task, started from outside
}

func (p *taskCounts) birth(t *kernel.Task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	tg := t.ThreadGroup()
	n, ok := p.live[tg]
	if !ok && t != tg.Leader() {
		n = 1
	}
	p.born[t], p.live[tg] = true, n+1
}

// death reports whether t was the last task of its process. A task that a clone
// made and then abandoned dies too; it never counted.
func (p *taskCounts) death(t *kernel.Task) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	tg := t.ThreadGroup()
	if !p.born[t] && (t != tg.Leader() || t.Parent() != nil) {
		return false
	}
	delete(p.born, t)
	n, ok := p.live[tg]
	if ok && n > 1 {
		p.live[tg] = n - 1
		return false
	}
	delete(p.live, tg)
	return true
}

// newSpaces are the flags of clone that ask for namespaces.
const newSpaces = linux.CLONE_NEWNS | linux.CLONE_NEWCGROUP | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC | linux.CLONE_NEWUSER | linux.CLONE_NEWPID | linux.CLONE_NEWNET

// Clone implements seccheck.Sink.
func (s *factSink) Clone(ctx context.Context, _ seccheck.FieldSet, i *pb.CloneInfo) error {
	t := kernel.TaskFromContext(ctx)
	if t != nil {
		s.w.began(t)
		if n := t.Kernel().RootPIDNamespace().TaskWithID(kernel.ThreadID(i.CreatedThreadId)); n != nil {
			s.w.tasks.birth(n)
		}
		if i.Flags&newSpaces != 0 {
			s.w.emit(&trace.Fact{Op: trace.Caps, PID: pidOf(t), Path: "clone", A: i.Flags})
		}
	}
	if i.Flags&linux.CLONE_THREAD != 0 {
		return nil
	}
	f := trace.Fact{Op: trace.Fork, PID: uint32(i.CreatedThreadGroupId), A: i.Flags}
	if t != nil {
		parent := t
		if i.Flags&linux.CLONE_PARENT != 0 {
			parent = t.Parent()
		}
		if parent != nil {
			f.PPID = pidOf(parent)
		}
	}
	// From here on the number belongs to another process.
	s.w.forget(f.PID, nil)
	s.w.emit(&f)
	return nil
}

// TaskExit implements seccheck.Sink. It runs on the task's own exit path, with
// no lock held and the program still there.
func (s *factSink) TaskExit(ctx context.Context, _ seccheck.FieldSet, i *pb.TaskExit) error {
	t := kernel.TaskFromContext(ctx)
	if t == nil || t.ThreadGroup() == t.Kernel().GlobalInit() {
		return nil
	}
	s.w.became(t)
	if !s.w.tasks.death(t) {
		return nil
	}
	s.w.began(t)
	f := trace.Fact{Op: trace.Exit, PID: pidOf(t)}
	if st := linux.WaitStatus(i.ExitStatus); st.Signaled() {
		f.B = uint64(st.TerminationSignal())
	} else {
		f.A = uint64(st.ExitStatus())
	}
	s.w.forget(f.PID, t.ThreadGroup())
	s.w.emit(&f)
	return nil
}

// A command that is started from outside makes no execve. Its first wrapped
// call reports it, or its end does. If it makes neither, the next query reports
// it.

// start is a command being started; the shim starts them one after the other.
type start struct {
	args []string
	pid  uint32 // set once it is known
}

// begin announces that a command is about to be started.
func (w *factWriter) begin(args []string) {
	w.startMu.Lock()
	defer w.startMu.Unlock()
	w.settleLocked()
	w.starting.Store(&start{args: args})
}

// started reports the result; pid 0: the command was not started.
func (w *factWriter) started(pid uint32) {
	w.startMu.Lock()
	defer w.startMu.Unlock()
	if s := w.starting.Load(); s == nil || pid == 0 {
		w.starting.Store(nil)
	} else {
		w.starting.Store(&start{args: s.args, pid: pid})
	}
}

// settleLocked reports a command that was started and has not been seen.
func (w *factWriter) settleLocked() {
	if s := w.starting.Swap(nil); s != nil && s.pid != 0 {
		w.settled[s.pid] = true
		w.emit(&trace.Fact{Op: trace.Exec, Flags: trace.Asked, PID: s.pid, Path: s.args[0], Args: s.args})
	}
}

// forget drops everything that is remembered about a process number.
func (w *factWriter) forget(pid uint32, tg *kernel.ThreadGroup) {
	w.sends.forget(pid)
	w.startMu.Lock()
	defer w.startMu.Unlock()
	delete(w.settled, pid)
	if tg != nil {
		delete(w.announced, tg)
	}
}

// began runs before every call. t may have become another program. While a
// command is being started, t may belong to it.
func (w *factWriter) began(t *kernel.Task) {
	w.became(t)
	if w.starting.Load() != nil {
		w.announce(t)
	}
}

func (w *factWriter) announce(t *kernel.Task) {
	if t.Origin != kernel.OriginExec || t.Parent() != nil {
		return
	}
	w.startMu.Lock()
	defer w.startMu.Unlock()
	s, pid := w.starting.Load(), pidOf(t)
	if s == nil || s.pid != 0 && s.pid != pid || w.announced[t.ThreadGroup()] {
		return
	}
	w.announced[t.ThreadGroup()] = true
	if w.settled[pid] {
		delete(w.settled, pid)
		return
	}
	f := trace.Fact{Op: trace.Exec, Args: s.args}
	if exe := t.MemoryManager().Executable(); exe != nil {
		w.describe(t, &f, exe, "", s.args[0])
		exe.DecRef(t)
	} else {
		f.Path, f.PID, f.Flags = s.args[0], pid, trace.Asked
	}
	w.starting.Store(nil)
	w.emit(&f)
}
