package hostexec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// proc is one command between its start and the supervisor's report.
type proc struct {
	id      uint64
	program string
	mark    string
	timeout time.Duration
	grace   time.Duration

	cmd      *exec.Cmd // the supervisor
	ctl      *os.File
	out, err *os.File
	in       *os.File // or nil
	streams  sync.WaitGroup
	stdout   capture
	stderr   capture

	stopOnce sync.Once
	why      Outcome // why we ordered the end; set in stopOnce
	stopped  chan struct{}

	kept   chan struct{} // closed when the command has ended and its descendants go on
	done   chan struct{} // closed when unregistered; what follows is then valid
	report report
	lost   bool
}

// start spawns the supervisor and sends it the order. After success, the
// goroutines that it started end with the command, and finish unregisters it.
func (r *Runner) start(cmd Command, s *spec, loc *location, c *call, env []string) (*proc, error) {
	mark, err := newMark()
	if err != nil {
		return nil, err
	}
	p := &proc{
		program: s.name, mark: mark, timeout: cmd.Timeout, grace: r.grace,
		stdout: capture{keep: cmd.Stdout}, stderr: capture{keep: cmd.Stderr},
		stopped: make(chan struct{}), kept: make(chan struct{}), done: make(chan struct{}),
	}
	// Register before the spawn: Close must not overlook it.
	if p.id, err = r.register(s.name, cmd.Dir, p.stop); err != nil {
		return nil, err
	}
	if err := p.spawn(&cmd); err != nil {
		r.unregister(p.id)
		return nil, fmt.Errorf("hostexec: start supervisor for %s: %w", s.name, err)
	}
	o := order{
		Path: loc.path, Argv: append([]string{loc.path}, c.argv...), Env: append(env, mark),
		Dir: cmd.Dir, Timeout: cmd.Timeout, Keep: cmd.Keep, AddressSpace: s.addressSpace, Temp: c.temp,
	}
	p.streams.Go(func() { p.stdout.drain(p.out) })
	p.streams.Go(func() { p.stderr.drain(p.err) })
	go p.finish(r, &o, cmd.Stdin)
	return p, nil
}

// spawn opens the channels and starts this binary as a supervisor.
func (p *proc) spawn(c *Command) (err error) {
	var ours, theirs []*os.File
	defer func() {
		if err != nil {
			closeAll(ours)
		}
		closeAll(theirs)
	}()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	// Non-blocking before NewFile, so that Close ends a Read.
	if err := unix.SetNonblock(pair[0], true); err != nil {
		_, _ = unix.Close(pair[0]), unix.Close(pair[1])
		return err
	}
	p.ctl = os.NewFile(uintptr(pair[0]), "control")
	ctlTheirs := os.NewFile(uintptr(pair[1]), "control")
	ours, theirs = append(ours, p.ctl), append(theirs, ctlTheirs)

	pipe := func() (r, w *os.File) {
		if err != nil {
			return nil, nil
		}
		r, w, err = os.Pipe()
		return r, w
	}
	var outW, errW, inR *os.File
	p.out, outW = pipe()
	p.err, errW = pipe()
	if c.Stdin != nil {
		inR, p.in = pipe()
	}
	ours, theirs = append(ours, p.out, p.err, p.in), append(theirs, outW, errW, inR)
	if err != nil {
		return err
	}
	p.cmd = &exec.Cmd{
		// Not os.Executable: the file may have been replaced by an upgrade.
		Path: "/proc/self/exe", Args: []string{supervisorArg0}, Env: []string{}, Dir: "/",
		Stdout: outW, Stderr: errW, ExtraFiles: []*os.File{ctlTheirs},
		// Its own session: the terminal's signals are for carboy.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	switch {
	case inR != nil:
		p.cmd.Stdin = inR
	case c.Input != nil:
		p.cmd.Stdin = c.Input
	}
	if c.Output != nil {
		p.cmd.Stdout = c.Output
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	// Only the command holds them now, so their other ends close with it.
	closeAll([]*os.File{c.Input, c.Output})
	return nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// stop orders the end; the first reason counts. It may be called before the
// supervisor exists.
func (p *proc) stop(why Outcome) {
	p.stopOnce.Do(func() {
		p.why = why
		close(p.stopped)
	})
}

// command sends the order and later, if asked, the order to kill. Half-closing
// the socket has the same effect on the supervisor as carboy's death, so that
// path is used every day. command returns after over is closed, and closes ctl.
func (p *proc) command(o *order, over <-chan struct{}) {
	if err := json.NewEncoder(p.ctl).Encode(o); err != nil {
		return
	}
	select {
	case <-over:
		return
	case <-p.stopped:
	}
	if conn, err := p.ctl.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
}

// finish serves the supervisor until it ends, then releases everything and
// unregisters the command. Each command has one such goroutine; it ends when
// the supervisor has ended, which happens once no descendant is left.
func (p *proc) finish(r *Runner, o *order, stdin []byte) {
	over := make(chan struct{})
	var feeds sync.WaitGroup
	feeds.Go(func() { p.command(o, over) })
	if p.in != nil {
		feeds.Go(func() {
			_, _ = p.in.Write(stdin) // a command need not read it: EPIPE is fine
			_ = p.in.Close()
		})
	}
	reports := json.NewDecoder(p.ctl)
	err := reports.Decode(&p.report)
	if err == nil && p.report.Kept {
		close(p.kept)
		p.report = report{}
		err = reports.Decode(&p.report)
	}
	p.lost = err != nil
	_ = p.cmd.Wait() // the report counts, not the supervisor's status
	close(over)
	_ = p.ctl.Close()
	if p.lost {
		own := p.mark[len(markName)+1:]
		sweep(func(mark string) bool { return mark == own })
		if o.Temp != "" {
			_ = os.RemoveAll(o.Temp)
		}
	}
	if p.in != nil {
		_ = p.in.Close()
	}
	feeds.Wait()
	// No writer is left, so the streams end by themselves. Only after a loss
	// may a process that removed its mark hold them open.
	if p.lost {
		soon := time.Now().Add(time.Second)
		_, _ = p.out.SetReadDeadline(soon), p.err.SetReadDeadline(soon)
	}
	p.streams.Wait()
	closeAll([]*os.File{p.out, p.err})
	r.unregister(p.id)
	close(p.done)
}

// await blocks until the command has ended. It orders the end when the context
// or the timeout says so.
func (r *Runner) await(ctx context.Context, p *proc) (Result, error) {
	// The supervisor keeps the timeout. This one covers a supervisor that was
	// stopped or starved.
	var late <-chan time.Time
	if p.timeout > 0 {
		timer := time.NewTimer(p.timeout + p.grace/2)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-p.done:
		return p.result()
	case <-p.stopped: // by Close
	case <-late:
		p.stop(deadline)
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			p.stop(deadline)
		} else {
			p.stop(canceled)
		}
	}
	grace := time.NewTimer(p.grace)
	defer grace.Stop()
	select {
	case <-p.done:
		return p.result()
	case <-grace.C:
		return Result{Outcome: unkilled, ExitCode: -1}, fmt.Errorf("%w: %s", ErrUnkilled, p.program)
	}
}

// result reads the report. done must be closed.
func (p *proc) result() (Result, error) {
	res := Result{ExitCode: -1, Strays: p.report.Strays, Stdout: p.stdout.result(), Stderr: p.stderr.result()}
	if p.lost {
		res.Outcome = lost
		return res, fmt.Errorf("%w: %s", errLost, p.program)
	}
	if p.report.Failed != "" {
		return res, fmt.Errorf("hostexec: %s: %w", p.report.Failed, p.report.Errno)
	}
	ws := p.report.Status
	switch p.report.Ended {
	case endedDeadline:
		res.Outcome = deadline
	case endedOrdered:
		res.Outcome = canceled // also when someone signalled the supervisor
		select {
		case <-p.stopped:
			res.Outcome = p.why
		default:
		}
	default:
		if ws.Exited() {
			res.Outcome, res.ExitCode = Exited, ws.ExitStatus()
		} else {
			res.Outcome, res.Signal = signaled, int(ws.Signal())
		}
	}
	if res.Outcome == Exited && res.ExitCode == 0 {
		return res, nil
	}
	return res, &FailedError{
		Program: p.program, Outcome: res.Outcome, Code: res.ExitCode,
		Signal: syscall.Signal(res.Signal).String(), Stderr: line(res.Stderr.end()),
	}
}
