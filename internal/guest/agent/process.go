package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/guest/proto"
)

// proc is a running command.
type proc struct {
	pid    int
	ended  chan struct{} // closed with status
	status syscall.WaitStatus
	pty    *os.File // the terminal's master, or nil

	mu     sync.Mutex // held while a signal is sent: the pid is not reused then
	reaped bool
}

// start starts a command and stays until it has ended and its output has been sent.
func (a *agent) start(ch *proto.Channel, s *proto.Start) {
	defer ch.End()
	p, ends, err := a.spawn(s)
	if err != nil {
		_ = ch.SendReply(failure(err))
		return
	}
	if ch.SendReply(proto.Reply{}) != nil {
		ends.close()
		return
	}
	ch.Handle(func(c proto.Control) { _ = ch.SendAnswer(p.control(c)) })
	var sent sync.WaitGroup
	if p.pty != nil {
		p.serveTerminal(ch, &sent)
	} else {
		go feed(ends.in, ch.Reader(proto.In))
		for i, r := range []*os.File{ends.out, ends.err} {
			sent.Add(1)
			go func() { defer sent.Done(); drain(ch.Writer(proto.Out+i), r) }()
		}
	}
	<-p.ended
	if p.pty != nil {
		// What the command wrote last comes before its end.
		sent.Wait()
	}
	e := proto.Exit{Code: p.status.ExitStatus()}
	if p.status.Signaled() {
		e = proto.Exit{Signal: int(p.status.Signal())}
	}
	_ = ch.SendExit(e)
	_ = ch.Reader(proto.In).Close()
	sent.Wait()
}

// feed writes the stream to the command's standard input.
func feed(w *os.File, r *proto.Reader) {
	defer w.Close()
	if _, err := io.Copy(w, r); err != nil {
		_ = r.Close()
	}
}

// drain sends what comes from r, until nobody writes to it or nobody reads the stream.
func drain(w *proto.Writer, r *os.File) {
	gone := make(chan struct{})
	defer close(gone)
	go func() {
		select {
		case <-w.Stopped():
			// The command's next write fails, also while it writes nothing now.
			r.Close()
		case <-gone:
		}
	}()
	_, _ = io.CopyBuffer(onlyWriter{w}, onlyReader{r}, make([]byte, proto.MaxPayload))
	r.Close()
	_ = w.Close()
}

// onlyReader and onlyWriter hide what would make io.CopyBuffer ignore its buffer.
type onlyReader struct{ io.Reader }
type onlyWriter struct{ io.Writer }

// serveTerminal copies between the stream and the terminal. sent is done when the command
// has ended and what it wrote has been sent.
func (p *proc) serveTerminal(ch *proto.Channel, sent *sync.WaitGroup) {
	go func() {
		_, _ = io.Copy(p.pty, ch.Reader(proto.In))
		_ = ch.Reader(proto.In).Close()
	}()
	go func() {
		<-p.ended
		// Jobs in the background keep the terminal open. Then the end of the output
		// is where nothing comes for a moment.
		_ = p.pty.SetReadDeadline(time.Now().Add(terminalGrace))
	}()
	sent.Add(1)
	go func() {
		defer sent.Done()
		w := ch.Writer(proto.Out)
		buf := make([]byte, proto.MaxPayload)
		for {
			n, err := p.pty.Read(buf)
			if _, werr := w.Write(buf[:n]); werr != nil && n > 0 {
				break
			}
			if err != nil {
				break
			}
			select {
			case <-p.ended:
				_ = p.pty.SetReadDeadline(time.Now().Add(terminalGrace))
			default:
			}
		}
		_ = w.Close()
		_ = ch.Writer(proto.Err).Close()
		p.pty.Close()
	}()
}

// terminalGrace bounds the silence after which the output of a terminal whose command has
// ended counts as complete.
const terminalGrace = 50 * time.Millisecond

// control sends a signal, or sets the terminal's size.
func (p *proc) control(c proto.Control) proto.Answer {
	err := func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.reaped {
			return os.ErrProcessDone
		}
		if c.Signal == 0 {
			return p.resize(c.Rows, c.Cols)
		}
		to := p.pid
		if c.Group {
			to = -p.group()
		}
		return unix.Kill(to, unix.Signal(c.Signal))
	}()
	a := proto.Answer{Seq: c.Seq}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

func (p *proc) resize(rows, cols uint16) error {
	if p.pty == nil {
		return errors.New("the command has no terminal")
	}
	var err error
	if cerr := onFD(p.pty, func(fd int) {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	}); cerr != nil {
		return cerr
	}
	return err
}

// group returns the foreground group of the command's terminal, or its own.
func (p *proc) group() int {
	group := p.pid
	if p.pty != nil {
		_ = onFD(p.pty, func(fd int) {
			if n, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err == nil && n > 1 {
				group = n
			}
		})
	}
	return group
}

func onFD(f *os.File, do func(int)) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { do(int(fd)) })
}

// ends are this side's ends of a command's pipes.
type ends struct{ in, out, err *os.File }

func (e *ends) close() {
	for _, f := range []*os.File{e.in, e.out, e.err} {
		if f != nil {
			f.Close()
		}
	}
}

// spawn starts the stage, which becomes the command, and returns when it has.
func (a *agent) spawn(s *proto.Start) (*proc, *ends, error) {
	a.setupMu.Lock()
	setup, cgroup := a.setup, a.cgroup
	a.begun = setup != nil
	a.setupMu.Unlock()
	if setup == nil {
		return nil, nil, errors.New("a command was started before the guest was set up")
	}
	p := &proc{ended: make(chan struct{})}
	mine := &ends{}
	files, err := p.streams(s, setup, mine)
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if err != nil {
		mine.close()
		return nil, nil, err
	}
	orderR, orderW, err := os.Pipe()
	if err != nil {
		mine.close()
		return nil, nil, err
	}
	failR, failW, err := os.Pipe()
	if err != nil {
		mine.close()
		return nil, nil, errors.Join(err, orderR.Close(), orderW.Close())
	}
	files = append(files, orderR, failW)
	err = a.fork(p, files, s.Terminal)
	if err == nil {
		err = order(orderW, &stageOrder{Start: s, Root: setup.Root, UID: setup.UID, GID: setup.GID, Limits: setup.Limits, Filter: setup.Filter, Cgroup: cgroup, Drop: os.Geteuid() == 0})
		orderR.Close()
		failW.Close()
		err = errors.Join(err, outcome(failR))
	}
	failR.Close()
	orderW.Close()
	if err != nil {
		mine.close()
		if p.pty != nil {
			p.pty.Close()
		}
		return nil, nil, err
	}
	return p, mine, nil
}

// fork starts the stage with its five descriptors.
func (a *agent) fork(p *proc, files []*os.File, terminal bool) error {
	fds := make([]uintptr, len(files))
	for i, f := range files {
		fds[i] = f.Fd() // blocking, as the command expects them
	}
	attr := &syscall.ProcAttr{Dir: "/", Env: []string{}, Files: fds, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: terminal, Ctty: 0}}
	a.mu.Lock()
	defer a.mu.Unlock()
	pid, err := syscall.ForkExec("/proc/self/exe", []string{stageName}, attr)
	if err != nil {
		return fmt.Errorf("start a process: %w", err)
	}
	p.pid = pid
	a.procs[pid] = p
	return nil
}

// order writes what the stage is to do. It can be more than a pipe holds; a stage that
// ended does not read it.
func order(w *os.File, o *stageOrder) error {
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if _, err := w.Write(b); err != nil && !errors.Is(err, unix.EPIPE) {
		return err
	}
	return w.Close()
}

// outcome waits until the stage has become the command, or returns why it could not.
func outcome(r *os.File) error {
	b, err := io.ReadAll(io.LimitReader(r, 16<<10))
	if err != nil || len(b) == 0 {
		return err
	}
	var f stageFailure
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	return &codeError{f.Code, errors.New(f.Text)}
}

// streams makes the command's standard streams: it returns the three that the command
// gets, and keeps the others in mine or p.
func (p *proc) streams(s *proto.Start, setup *proto.Setup, mine *ends) (files []*os.File, err error) {
	if s.Terminal {
		master, peer, err := openTerminal(s, setup)
		if err != nil {
			return nil, err
		}
		p.pty = master
		return []*os.File{peer, peer, peer}, nil
	}
	for i, to := range []**os.File{&mine.in, &mine.out, &mine.err} {
		r, w, err := os.Pipe()
		if err != nil {
			return files, err
		}
		if i == 0 {
			r, w = w, r
		}
		*to = r
		files = append(files, w)
	}
	return files, nil
}

func openTerminal(s *proto.Start, setup *proto.Setup) (master, peer *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	master = os.NewFile(uintptr(fd), "terminal")
	err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Cols})
	}
	var other int
	if err == nil {
		other, err = openPeer(fd)
	}
	if err == nil && os.Geteuid() == 0 {
		err = unix.Fchown(other, int(setup.UID), int(setup.GID))
	}
	if err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("open a terminal: %w", err)
	}
	return master, os.NewFile(uintptr(other), "terminal"), nil
}

// openPeer opens the other end of a terminal, whatever is at its name.
func openPeer(master int) (int, error) {
	n, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if e != 0 {
		return -1, e
	}
	return int(n), nil
}

// reap takes the status of every process that ends: the commands', and those of orphans,
// which are children of the first process.
func (a *agent) reap() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	for range ended {
		a.reapAll()
	}
}

func (a *agent) reapAll() {
	for {
		// WNOWAIT first: the process still has its pid while it is marked, so that
		// no signal reaches another one.
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err == unix.EINTR {
			continue
		}
		pid := siginfoPID(&info)
		if err != nil || pid == 0 {
			return
		}
		a.mu.Lock()
		p := a.procs[pid]
		delete(a.procs, pid)
		a.mu.Unlock()
		if p != nil {
			p.mu.Lock()
			p.reaped = true
			p.mu.Unlock()
		}
		var ws syscall.WaitStatus
		for {
			if _, err = syscall.Wait4(pid, &ws, 0, nil); err != syscall.EINTR {
				break
			}
		}
		if p != nil {
			p.status = ws
			close(p.ended)
		}
	}
}

// endAll kills every process below this one and waits for them. Nothing starts new ones:
// the stream has ended.
func (a *agent) endAll() {
	if os.Getpid() == 1 {
		_ = unix.Kill(-1, unix.SIGKILL) // the namespace or machine ends with this process
		return
	}
	for {
		kids := children()
		if len(kids) == 0 {
			return
		}
		for _, pid := range kids {
			_ = unix.Kill(-pid, unix.SIGKILL)
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(time.Millisecond) // the reaper takes them
	}
}

// children returns the children of this process.
func children() (out []int) {
	self := os.Getpid()
	ents, _ := os.ReadDir("/proc")
	for _, e := range ents {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// The name in parentheses may hold anything.
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(f) > 1 && f[0] != "Z" && f[1] == strconv.Itoa(self) {
			out = append(out, pid)
		}
	}
	return out
}
