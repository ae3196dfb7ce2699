package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/handover"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// ExecOptions describes a command to run in a live bottle. It runs as the same user
// inside, within the same limits, and on the same network.
type ExecOptions struct {
	Command []string
	// Env lists NAME=VALUE, or NAME for the caller's value. A name that says
	// "secret" is refused: records of the run would not know what to leave out.
	Env                   []string
	Stdin, Stdout, Stderr *os.File // nil: the null device
	Terminal              bool
	// Interrupt: the first signal goes to the command, the second kills it. The
	// bottle goes on. Resize: the terminal has another size. Nil: none.
	Interrupt <-chan os.Signal
	Resize    <-chan os.Signal

	files bool // see execAsk
}

// ErrExecRefused means that the bottle did not take the command.
var ErrExecRefused = errors.New("the command was not started")

// maxGuests bounds the commands that run beside a bottle's own at once.
const maxGuests = 64

// The frames of an exec: ask with three descriptors, then reply, news any number
// of times, done.
type (
	execAsk struct {
		Command  []string
		Env      []string // NAME=VALUE, asked for
		Host     []string // NAME=VALUE, of those that a bottle always gets
		Terminal bool
		// Files says that standard output carries copied files. It does not count
		// as output of the run and is not logged; the copy has bounds of its own.
		Files bool `json:",omitempty"`
	}
	execReply struct {
		Error string `json:",omitempty"` // refused
	}
	execNews struct {
		Signal int // SIGWINCH: the terminal has another size
	}
	execDone struct {
		Exit receipt.Exit
	}
)

// hostEnv returns the variables of the host that every command may get.
func hostEnv(lookup func(string) string) []string {
	var out []string
	for _, n := range append(append([]string{"PATH"}, plan.PassEnv...), plan.TermEnv...) {
		if v := lookup(n); v != "" {
			out = append(out, n+"="+v)
		}
	}
	return out
}

// Exec runs a command in the bottle of a run that goes on, and waits for its
// end. An error says why it was not started.
func (c *Runner) Exec(ctx context.Context, m store.Meta, o ExecOptions) (receipt.Exit, error) {
	ask := execAsk{Command: o.Command, Host: hostEnv(c.Env), Terminal: o.Terminal, Files: o.files}
	for _, e := range o.Env {
		name, _, given := strings.Cut(e, "=")
		if plan.SecretName(name) {
			return receipt.Exit{}, &fault.OptionError{Option: "--env", Value: name, Reason: "looks like a secret", Advice: "give it to the run itself (carboy run --env), whose records then leave it out"}
		}
		if !given {
			v := c.Env(name)
			if v == "" {
				return receipt.Exit{}, fault.NotSet(name)
			}
			e = name + "=" + v
		}
		ask.Env = append(ask.Env, e)
	}
	conn, err := c.openExec(ctx, m)
	if err != nil {
		return receipt.Exit{}, err
	}
	defer conn.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return receipt.Exit{}, err
	}
	defer null.Close()
	if err := conn.Send(ask, cmp.Or(o.Stdin, null), cmp.Or(o.Stdout, null), cmp.Or(o.Stderr, null)); err != nil {
		return receipt.Exit{}, fmt.Errorf("%w: %v", ErrExecRefused, err)
	}
	over := make(chan struct{})
	defer close(over)
	go func() { // ends with Exec
		for {
			var s os.Signal
			select {
			case s = <-o.Interrupt:
			case s = <-o.Resize:
			case <-over:
				return
			}
			if n, ok := s.(syscall.Signal); ok {
				conn.Send(execNews{Signal: int(n)})
			}
		}
	}()
	// Returning closes the connection, which also ends a command that is started
	// later.
	conn.Deadline(time.Now().Add(startedIn))
	var r execReply
	if _, err := conn.Recv(&r); errors.Is(err, os.ErrDeadlineExceeded) {
		return receipt.Exit{}, fmt.Errorf("run %s: %w: its carboy does not answer", m.ID, ErrExecRefused)
	} else if err != nil {
		return receipt.Exit{}, fmt.Errorf("run %s: %w: the run is over", m.ID, ErrExecRefused)
	}
	conn.Deadline(time.Time{})
	if r.Error != "" {
		return receipt.Exit{}, fmt.Errorf("run %s: %w: %s", m.ID, ErrExecRefused, r.Error)
	}
	var d execDone
	if _, err := conn.Recv(&d); err != nil {
		err := errors.New("the carboy that held the bottle died")
		return endedBy(receipt.Failed, err.Error()), err
	}
	return d.Exit, nil
}

// startedIn bounds the wait for a command's start, which takes milliseconds.
const startedIn = 30 * time.Second

const execProtocol = "carboy-exec-1"

// openExec opens a control connection of the run and upgrades it to one that carries
// descriptors.
func (c *Runner) openExec(ctx context.Context, m store.Meta) (*handover.Conn, error) {
	// The other end sends nothing after its answer until it was asked.
	u, _, resp, err := upgrade(ctx, m, "/v1/exec", execProtocol)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer u.Close()
		if resp.StatusCode == http.StatusConflict {
			return nil, fmt.Errorf("run %s: %w: %s", m.ID, ErrExecRefused, refusal(resp))
		}
		return nil, fmt.Errorf("run %s: %w: its carboy is another version", m.ID, ErrExecRefused)
	}
	h, err := handover.New(u)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w: %v", m.ID, ErrNotLive, err)
	}
	return h, nil
}

// execs holds the commands that run beside the session's own.
type execs struct {
	mu   sync.Mutex
	open bool
	live int
	rec  *receipt.Execs
	wg   sync.WaitGroup
	ctx  context.Context // ends with the bottle's own command
	stop context.CancelFunc
}

// openExecs admits other commands, now that the run's own has started.
func (s *Session) openExecs() {
	x := &s.execs
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ctx, x.stop = context.WithCancel(context.Background())
	x.open = true
}

// closeExecs admits no more commands: the bottle is about to be destroyed.
func (s *Session) closeExecs() {
	x := &s.execs
	x.mu.Lock()
	x.open = false
	x.mu.Unlock()
	if x.stop != nil {
		x.stop()
	}
}

// endExecs adds the commands to the receipt. The bottle is gone, so all have ended.
func (s *Session) endExecs() {
	s.closeExecs()
	over := make(chan struct{})
	go func() { s.execs.wg.Wait(); close(over) }() // ends with the last of them
	select {
	case <-over:
	case <-time.After(execsIn):
		s.c.Log.Warn("the end of a command beside the run's is not in its receipt")
	}
	s.execs.mu.Lock()
	defer s.execs.mu.Unlock()
	if s.execs.rec != nil {
		rec := *s.execs.rec
		s.Rec.Execs = &rec
	}
}

// execsIn bounds the wait for commands whose bottle is gone: only their output is still
// to be passed on.
const execsIn = 10 * time.Second

var errNotNow = errors.New("its command does not run")

// enter admits one more command and returns its place in the receipt.
func (s *Session) enter(command []store.Raw) (place *receipt.Exec, err error) {
	x := &s.execs
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case !x.open:
		return nil, errNotNow
	case x.live >= maxGuests:
		return nil, fmt.Errorf("%d other commands run in it already", x.live)
	}
	if x.rec == nil {
		x.rec = &receipt.Execs{}
	}
	x.live++
	x.rec.Total++
	x.wg.Add(1)
	place = &receipt.Exec{Command: command, By: uint32(os.Getuid()), Start: s.run.Elapsed()}
	return place, nil
}

// leave records how a command ended.
func (s *Session) leave(p *receipt.Exec, e receipt.Exit) {
	x := &s.execs
	x.mu.Lock()
	defer x.mu.Unlock()
	p.Duration, p.Exit = max(0, s.run.Elapsed()-p.Start), e
	x.live--
	if len(x.rec.List) < receipt.MaxExecs {
		x.rec.List = append(x.rec.List, *p)
	}
	x.wg.Done()
}

// serveExec takes a connection of the control socket over.
func (s *Session) serveExec(w http.ResponseWriter, r *http.Request) {
	if !s.upgradable(w, r, execProtocol) {
		return
	}
	u, ok := takeOver(w, execProtocol, "")
	if !ok {
		return
	}
	h, err := handover.New(u)
	if err != nil {
		return
	}
	defer h.Close()
	h.Deadline(time.Now().Add(askIn))
	var ask execAsk
	files, err := h.Recv(&ask)
	if err != nil {
		return
	}
	defer closeFiles(files)
	h.Deadline(time.Time{})
	if len(files) != 3 || len(ask.Command) == 0 || ask.Command[0] == "" {
		h.Send(execReply{Error: "no command, or no streams"})
		return
	}
	if err := unstoppable(files); err != nil {
		h.Send(execReply{Error: err.Error()})
		return
	}
	s.guest(h, &ask, files)
}

// guest runs one command beside the session's own.
func (s *Session) guest(h *handover.Conn, ask *execAsk, files []*os.File) {
	place, err := s.enter(store.Raws(s.redacted(ask.Command)))
	if err != nil {
		h.Send(execReply{Error: err.Error()})
		return
	}
	exit, err := s.runGuest(h, ask, files)
	if err != nil {
		exit = failure(err)
		s.leave(place, exit)
		h.Send(execReply{Error: err.Error()})
		return
	}
	s.leave(place, exit)
	h.Send(execDone{Exit: exit})
}

func (s *Session) runGuest(h *handover.Conn, ask *execAsk, files []*os.File) (exit receipt.Exit, _ error) {
	ctx := s.execs.ctx
	host := map[string]string{}
	for _, e := range ask.Host {
		k, v, _ := strings.Cut(e, "=")
		host[k] = v
	}
	env, leave, err := s.inside.Admit(s.Plan, func(n string) string { return host[n] }, ask.Terminal, ask.Command, ask.Env)
	if err != nil {
		return receipt.Exit{}, err
	}
	defer leave()
	ev := s.event(audit.RunExec, audit.Allowed)
	ev.Subject, ev.Sync = s.text(strings.Join(ask.Command, " ")), true
	if _, err := s.c.Audit.Append(ctx, ev); err != nil {
		return receipt.Exit{}, err
	}
	g := &guest{kill: make(chan struct{})}
	e := ends{stdin: files[0], stdout: tame(files[1], ask.Terminal), stderr: tame(files[2], ask.Terminal), terminal: ask.Terminal, logs: "exec-", leave: g.destroy, files: ask.Files && !ask.Terminal}
	if ask.Terminal {
		e.pressed = func(sig syscall.Signal) { g.signal(sig) }
	}
	std, err := s.openStreams(e)
	if err != nil {
		return receipt.Exit{}, err
	}
	defer func() {
		if g.finish(ctx, std) || exit.Reason == receipt.Killed {
			return
		}
		// The exit code may refer to the output that was lost.
		exit = endedBy(receipt.Killed, "its output was not all passed on")
	}()
	p, err := s.bottle.Start(ctx, &bottle.Command{
		Args: ask.Command, Env: env, Dir: s.Dir(), Terminal: ask.Terminal, Guest: true,
		Stdin: std.in, Stdout: std.out, Stderr: std.err,
	})
	std.started()
	switch {
	case errors.Is(err, bottle.ErrNotFound), errors.Is(err, bottle.ErrNotExecutable):
		h.Send(execReply{})
		return failure(err), nil
	case err != nil:
		return receipt.Exit{}, err
	}
	g.started(p)
	if err := h.Send(execReply{}); err != nil {
		g.destroy()
	}
	go g.hear(h, std) // ends with the connection
	return g.wait(ctx, s, p), nil
}

// tame keeps a command without a terminal of its own from driving the user's.
func tame(f *os.File, terminal bool) io.Writer {
	if fd, err := descriptor(f); terminal || err != nil || !term.IsTerminal(fd) {
		return f
	}
	return safetext.NewWriter(f, safetext.Options{})
}

// unstoppable keeps another process's terminal from stopping this process. SIGTTIN and
// SIGTTOU stop a background process that reads or sets its terminal, and a stopped
// supervisor enforces no limits. So both are ignored: then a read fails and a write
// succeeds. A terminal that this process is in the background of is refused as standard
// input, since it could not be read.
func unstoppable(files []*os.File) error {
	for i, f := range files {
		fd, err := descriptor(f)
		if err != nil || !term.IsTerminal(fd) {
			continue
		}
		signal.Ignore(unix.SIGTTIN, unix.SIGTTOU)
		// It fails for a terminal that is not the one we were started in.
		if fg, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); i == 0 && err == nil && fg != unix.Getpgrp() {
			return errOwnTerminal
		}
	}
	return nil
}

var errOwnTerminal = errors.New("its carboy runs in the background of this terminal; use another terminal, or leave out -i and -t")

// guestDrain bounds the wait for output that a terminal has not made readable yet.
const guestDrain = 200 * time.Millisecond

// finish passes on all output of a command that has ended. It waits for a slow reader
// until the reader is gone, the command was killed, or the run ends. It does not wait
// for output of other processes that still hold the streams. It returns false if output
// may be lost.
func (g *guest) finish(run context.Context, std *streams) bool {
	ctx, cancel := context.WithCancel(run)
	defer cancel()
	over := make(chan struct{})
	defer close(over)
	go func() { // ends with finish
		select {
		case <-g.kill:
			cancel()
		case <-over:
		}
	}()
	soon, cancelSoon := context.WithTimeout(context.Background(), guestDrain)
	defer cancelSoon()
	std.unhook(soon)
	whole := std.flush(ctx)
	if whole && std.ptmx != nil {
		soon, cancel := context.WithTimeout(ctx, guestDrain)
		std.settle(soon)
		cancel()
		whole = std.flush(ctx)
	}
	last, cancelLast := context.WithTimeout(context.Background(), guestDrain)
	defer cancelLast()
	std.close(last)
	return whole
}

// guest holds one command that runs beside the session's own.
type guest struct {
	mu   sync.Mutex
	p    bottle.Process
	once sync.Once
	kill chan struct{} // closed when it has to end
}

func (g *guest) started(p bottle.Process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.p = p
}

func (g *guest) signal(sig syscall.Signal) {
	g.mu.Lock()
	p := g.p
	g.mu.Unlock()
	if p != nil {
		p.Signal(sig, true)
	}
}

func (g *guest) destroy() { g.once.Do(func() { close(g.kill) }) }

// hear passes the caller's signals to the command, and kills it when the caller's
// process is gone.
func (g *guest) hear(h *handover.Conn, std *streams) {
	defer g.destroy()
	interrupts := 0
	for {
		var n execNews
		if _, err := h.Recv(&n); err != nil {
			return
		}
		switch sig := syscall.Signal(n.Signal); sig {
		case unix.SIGWINCH:
			std.resize()
			g.signal(sig)
		case unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT:
			if interrupts++; interrupts > 1 {
				return
			}
			g.signal(sig)
		}
	}
}

// killedIn bounds the wait for a command that was killed.
const killedIn = 2 * time.Second

func (g *guest) wait(ctx context.Context, s *Session, p bottle.Process) receipt.Exit {
	over := endOf(p)
	gone := endedBy(receipt.Killed, "the run is over")
	select {
	case e := <-over:
		if e.err != nil || ctx.Err() != nil {
			return gone
		}
		x, err := s.exitOf(e)
		if err != nil {
			return gone
		}
		return x
	case <-ctx.Done():
		return gone
	case <-g.kill:
		p.Signal(unix.SIGKILL, true)
		p.Signal(unix.SIGKILL, false)
		select {
		case <-over:
		case <-ctx.Done():
		case <-time.After(killedIn):
		}
		return endedBy(receipt.Killed, "")
	}
}
