package hostexec

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Each command runs under a supervisor: this binary again, for that command
// alone. Reasons:
//
//   - Only a child subreaper gets every orphaned descendant back, and the flag
//     applies to a whole process. In carboy itself it would hand other libraries'
//     orphans to code that does not expect them, and waiting for any child would
//     steal theirs.
//   - When wait(2) answers ECHILD in a subreaper, the kernel itself proves that no
//     descendant is left. Process groups and sessions prove nothing: setsid leaves
//     both.
//   - It outlives carboy by a moment. The end of the control socket, which the
//     kernel closes when carboy dies of anything, kill -9 included, is the order to
//     kill. Pdeathsig on the supervisor would be worse: it would kill the one
//     process that can find the others, and it fires when a thread ends, which a Go
//     program does not control.
//
// The command itself has Pdeathsig, set by a locked thread, in case the
// supervisor is killed. Its leftovers are then found by their mark (sweep.go).

const (
	supervisorArg0 = "carboy-hostexec"
	controlFD      = 3
)

// A supervisor takes over before main: it needs nothing that the rest of the
// program initialises, which takes longer than most commands. Every program
// that imports this package knows the role, tests too.
func init() {
	if len(os.Args) == 1 && os.Args[0] == supervisorArg0 {
		// os.Exit would let the race detector sleep a second.
		syscall.Exit(supervise())
	}
}

// order is sent once by carboy over the control socket. After it, the end of
// the stream means: kill everything.
type order struct {
	Path         string
	Argv         []string // argv[0] included
	Env          []string
	Dir          string
	Timeout      time.Duration // 0: none
	Keep         bool          // see Command.Keep
	AddressSpace uint64
	Temp         string // directory to remove at the end, or ""
}

// report is sent back by the supervisor when nothing is left, and before that once with
// Kept when the command has ended and its descendants go on.
type report struct {
	Kept   bool
	Failed string        // operation that failed before the command ran, or ""
	Errno  syscall.Errno // its cause
	Ended  ended
	Status syscall.WaitStatus
	Strays int // processes that had to be killed besides the command
}

type ended uint8

const (
	endedItself ended = iota + 1
	endedOrdered
	endedDeadline
)

func supervise() int {
	runtime.LockOSThread() // no_new_privs and Pdeathsig belong to this thread
	unix.CloseOnExec(controlFD)
	ctl := os.NewFile(controlFD, "control")
	dec := json.NewDecoder(ctl)
	var o order
	if err := dec.Decode(&o); err != nil {
		return 1 // carboy died first, or this is not a supervisor's start
	}
	rep := runOrder(&o, io.MultiReader(dec.Buffered(), ctl), func() {
		_ = json.NewEncoder(ctl).Encode(report{Kept: true}) // a carboy that is gone has closed ctl
	})
	if o.Temp != "" {
		_ = os.RemoveAll(o.Temp) // best effort; it lies in our own state
	}
	if err := json.NewEncoder(ctl).Encode(rep); err != nil {
		return 1 // nobody is left to tell
	}
	return 0
}

// runOrder runs the command until nothing is left of it. It calls kept when the command
// has ended with 0 and its descendants are to go on.
func runOrder(o *order, ctl io.Reader, kept func()) report {
	// Before the fork: a signal must not end the supervisor while a child
	// lives.
	sigs := make(chan os.Signal, 1)
	signal.Notify(sigs, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	stop := make(chan struct{})
	go func() { // ends with the control stream, or with the process
		_, _ = io.Copy(io.Discard, ctl)
		close(stop)
	}()
	pid, fail := spawn(o)
	if fail != nil {
		return *fail
	}
	f := newFamily(pid)
	r := report{Ended: f.awaitEnd(o, stop, sigs, kept)}
	select {
	case <-f.commandGone: // it was first, whatever else is ready
		r.Ended = endedItself
	default:
	}
	r.Strays = f.killAll()
	r.Status = f.status
	return r
}

// spawn prepares this process and starts the command.
func spawn(o *order) (int, *report) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, failed("set child subreaper", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, failed("set no_new_privs", err)
	}
	if err := closeInherited(controlFD); err != nil {
		return 0, failed("mark descriptors close-on-exec", err)
	}
	// A core file would hold the program's memory.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return 0, failed("set core limit", err)
	}
	unix.Umask(0o077)
	pid, err := syscall.ForkExec(o.Path, o.Argv, &syscall.ProcAttr{
		Dir: o.Dir, Env: o.Env, Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return 0, failed("start "+o.Path, err)
	}
	if o.AddressSpace > 0 {
		// After the exec: on the supervisor it would bound the Go runtime too.
		_ = unix.Prlimit(pid, unix.RLIMIT_AS, &unix.Rlimit{Cur: o.AddressSpace, Max: o.AddressSpace}, nil)
	}
	releaseStreams()
	return pid, nil
}

func failed(op string, err error) *report {
	r := &report{Failed: op, Errno: syscall.EINVAL}
	errors.As(err, &r.Errno)
	return r
}

// closeInherited keeps from the program any descriptor from the first on that carboy
// inherited without close-on-exec from its own parent.
func closeInherited(first int) error {
	err := unix.CloseRange(uint(first), ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= first {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// releaseStreams closes the supervisor's copies of the command's streams, so
// that they end with the command, and a crash of the supervisor is not read as
// its output.
func releaseStreams() {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	for fd := range 3 {
		if err != nil {
			_ = unix.Close(fd)
			continue
		}
		_ = unix.Dup3(null, fd, 0)
	}
	if err == nil {
		_ = unix.Close(null)
	}
}

// family is the command and all its descendants. Reaping and killing exclude
// each other: an unreaped direct child keeps its number, so a number read under
// the lock cannot have passed to another process.
type family struct {
	command     int
	commandGone chan struct{}
	empty       chan struct{} // closed when the kernel says: no children

	mu     sync.Mutex
	status syscall.WaitStatus // valid once commandGone is closed
	killed map[int]bool
}

// awaitEnd blocks until the command ends, and with o.Keep until its descendants do, unless
// it is ordered to end first or its time is over.
func (f *family) awaitEnd(o *order, stop <-chan struct{}, sigs <-chan os.Signal, kept func()) ended {
	var over <-chan time.Time
	if o.Timeout > 0 {
		over = time.After(o.Timeout)
	}
	gone, empty := f.commandGone, make(chan struct{})
	for {
		select {
		case <-gone:
			if !o.Keep || !f.exitedWell() {
				return endedItself
			}
			kept()
			gone, empty, over = nil, f.empty, nil
		case <-empty:
			return endedItself
		case <-stop:
			return endedOrdered
		case <-sigs:
			return endedOrdered
		case <-over:
			return endedDeadline
		}
	}
}

// exitedWell reports whether the command, which has ended, ended with 0.
func (f *family) exitedWell() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status.Exited() && f.status.ExitStatus() == 0
}

func newFamily(command int) *family {
	f := &family{
		command: command, commandGone: make(chan struct{}), empty: make(chan struct{}),
		killed: map[int]bool{},
	}
	go f.reap()
	return f
}

// reap collects children until none is left, then closes empty and ends.
func (f *family) reap() {
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT|unix.WALL, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil: // ECHILD
			close(f.empty)
			return
		}
		f.mu.Lock()
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG|unix.WALL, nil)
		if err == nil && pid == f.command {
			f.status = ws
			close(f.commandGone)
		}
		f.mu.Unlock()
	}
}

// killAll kills until the kernel says that no child is left, and counts its
// kills besides the command. Descendants that fork meanwhile cannot escape:
// when a process dies its children become ours, and direct children are killed
// in the instant in which they are listed.
func (f *family) killAll() int {
	pause := time.Duration(0)
	for round := 0; ; round++ {
		select {
		case <-f.empty:
			return f.strays()
		default:
		}
		f.killChildren()
		if round%8 == 0 {
			f.killDeep()
		}
		if round > 200 { // something does not die at once: D state, or many
			pause = min(pause+time.Millisecond, 50*time.Millisecond)
		}
		select {
		case <-f.empty:
		case <-time.After(pause):
		}
	}
}

func (f *family) strays() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.killed, f.command)
	return len(f.killed)
}

// killChildren kills the direct children.
func (f *family) killChildren() {
	f.mu.Lock()
	defer f.mu.Unlock()
	files, _ := filepath.Glob("/proc/self/task/*/children")
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, s := range bytes.Fields(b) {
			if pid, err := strconv.Atoi(string(s)); err == nil && unix.Kill(pid, unix.SIGKILL) == nil {
				f.killed[pid] = true
			}
		}
	}
}

// killDeep kills every descendant that /proc shows. It bounds the time that
// deep or wide trees take, and is the only way on kernels without "children"
// files. Below the first generation numbers can be reused, so those processes
// are killed through a descriptor, after a check that the process is still the
// listed one.
func (f *family) killDeep() {
	f.mu.Lock()
	defer f.mu.Unlock()
	self := os.Getpid()
	table := processes()
	for pid, p := range table {
		if !descends(table, pid, self) {
			continue
		}
		if p.parent == self {
			if unix.Kill(pid, unix.SIGKILL) == nil {
				f.killed[pid] = true
			}
		} else if killExactly(pid, p.start) {
			f.killed[pid] = true
		}
	}
}

// process holds the parent and start time of /proc/PID/stat; start is in clock
// ticks since boot.
type process struct {
	parent int
	start  uint64
}

// processes lists all visible processes except zombies.
func processes() map[int]process {
	table := map[int]process{}
	for _, pid := range pids() {
		if p, ok := readProcess(pid); ok {
			table[pid] = p
		}
	}
	return table
}

// pids lists the numbers of all processes.
func pids() (all []int) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

func readProcess(pid int) (process, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, false
	}
	return parseStat(string(b))
}

// parseStat returns the parent and the start of a process that is not a zombie.
// The process chooses its own name in parentheses, which may hold anything,
// parentheses included: so fields count from the last one.
func parseStat(s string) (process, bool) {
	i := strings.LastIndexByte(s, ')')
	if i < 0 {
		return process{}, false
	}
	fields := strings.Fields(s[i+1:])
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return process{}, false
	}
	parent, err1 := strconv.Atoi(fields[1])
	start, err2 := strconv.ParseUint(fields[19], 10, 64)
	return process{parent, start}, err1 == nil && err2 == nil
}

// descends reports whether ancestor is above pid. The table is not a snapshot,
// so the walk is bounded.
func descends(table map[int]process, pid, ancestor int) bool {
	for range len(table) {
		p, ok := table[pid]
		if !ok {
			return false
		}
		if p.parent == ancestor {
			return true
		}
		pid = p.parent
	}
	return false
}

// killExactly kills pid if it is still the process that started at start.
func killExactly(pid int, start uint64) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	// The number belonged to the process when it was listed and does now, so it
	// did when the descriptor was opened.
	if p, ok := readProcess(pid); !ok || p.start != start {
		return false
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}
