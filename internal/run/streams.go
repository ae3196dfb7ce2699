package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/store"
)

// streams joins the command's standard streams to the caller's. The command
// gets pipes or a terminal of its own, never the caller's descriptors; what it
// writes is counted, bounded and kept in the run's logs.
type streams struct {
	ends
	budget *budget

	in, out, err *os.File // the bottle's ends

	copies   sync.WaitGroup
	restore  []func(context.Context)
	kept     []*logFile
	passages []*passage
	feed     *os.File // our end of the command's standard input
	ptmx     *os.File // the command's terminal
	screen   screen   // what it has switched on there
	was      *store.KeptTerminal
	audience *audience // who looks on; nil: nobody can
	ours     []*os.File
}

// ends holds the caller's side of the streams.
type ends struct {
	stdin          *os.File
	stdout, stderr io.Writer
	terminal       bool
	logs           string // what the logs' names begin with
	files          bool   // standard output is neither counted nor logged
	leave          func() // ~. was typed
	// pressed gets the keys that a terminal turns into signals. Nil: the bottle's
	// kernel does that, for the first terminal of a bottle.
	pressed func(syscall.Signal)
}

// budget counts the output that all commands of a bottle together may still write.
type budget struct {
	full chan struct{} // closed when it was exceeded
	once sync.Once
	left atomic.Int64
}

func newBudget(n int64) *budget {
	b := &budget{full: make(chan struct{})}
	b.left.Store(n)
	return b
}

// maxLog bounds what is kept of each stream, in bytes.
const maxLog = 32 << 20

func (s *Session) openStreams(e ends) (*streams, error) {
	x := &streams{ends: e, budget: s.budget}
	var err error
	if e.terminal {
		err = x.attach(s)
	} else {
		err = x.pipes(s)
	}
	if err != nil {
		x.close(context.Background())
		return nil, err
	}
	return x, nil
}

func (x *streams) pipes(s *Session) error {
	or, ow, err := os.Pipe()
	if err != nil {
		return err
	}
	x.ours, x.out = append(x.ours, or), ow
	er, ew, err := os.Pipe()
	if err != nil {
		return err
	}
	x.ours, x.err = append(x.ours, er), ew
	ir, iw, err := os.Pipe()
	if err != nil {
		return err
	}
	x.in, x.feed = ir, iw
	if err := x.output(s, or, x.stdout, "stdout"); err != nil {
		return err
	}
	if err := x.output(s, er, x.stderr, "stderr"); err != nil {
		return err
	}
	if x.stdin == nil {
		iw.Close()
		return nil
	}
	return x.pump(x.stdin, func(b []byte) error {
		_, err := iw.Write(b)
		return err
	}, func() { iw.Close() })
}

// output copies from r to w and to a log until the bottle's end is closed.
func (x *streams) output(s *Session, r *os.File, w io.Writer, name string) error {
	var log *logFile // nil: files
	if !x.files || name != "stdout" {
		f, err := s.run.OpenLog(x.logs + name)
		if err != nil {
			return err
		}
		fi, err := f.Stat() // commands of one bottle may share it
		if err != nil {
			f.Close()
			return err
		}
		log = &logFile{f: f, left: maxLog - fi.Size()}
		x.kept = append(x.kept, log)
	}
	raw, err := r.SyscallConn()
	if err != nil {
		return err
	}
	p := &passage{}
	x.passages = append(x.passages, p)
	p.left = func() (n int) {
		raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
		return n
	}
	x.copies.Add(1)
	go func() { // ends with the bottle's end, or when r is closed
		defer x.copies.Done()
		buf := make([]byte, 64<<10)
		for {
			n := 0
			err := raw.Read(func(fd uintptr) bool {
				p.mu.Lock()
				err := error(unix.EINTR)
				for errors.Is(err, unix.EINTR) {
					n, err = unix.Read(int(fd), buf)
				}
				if errors.Is(err, unix.EAGAIN) {
					p.mu.Unlock()
					return false
				}
				return true
			})
			if err != nil {
				return
			}
			// Not in the function above: r could not be closed while w hangs.
			more := n > 0 && x.pass(buf[:n], w, log)
			p.mu.Unlock()
			if !more {
				r.Close() // the command's end breaks
				return
			}
		}
	}()
	return nil
}

// passage holds one output stream. mu is held from the moment when bytes leave the pipe
// until they were passed on.
type passage struct {
	mu   sync.Mutex
	left func() int // bytes in the pipe
}

// drain waits until all output of a paused bottle was passed on: nobody writes any more,
// though processes hold the pipes open. It stops reading the caller's input. It returns
// false if output may be left.
func (x *streams) drain(ctx context.Context) bool {
	if x.ptmx != nil {
		return false // what a terminal holds can't be counted
	}
	x.unhook(ctx)
	return x.flush(ctx)
}

// flush waits until all readable output was passed on. It returns false if that can't be
// determined.
func (x *streams) flush(ctx context.Context) bool {
	for _, p := range x.passages {
		for wait := 20 * time.Microsecond; ; wait = min(2*wait, 5*time.Millisecond) {
			if p.mu.TryLock() {
				n := p.left()
				p.mu.Unlock()
				if n == 0 {
					break
				}
			}
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return false
			}
		}
	}
	return true
}

// pass writes b up to the limit, and reports whether to go on. A full log does not stop
// the command.
func (x *streams) pass(b []byte, w io.Writer, log *logFile) bool {
	if log == nil {
		_, err := w.Write(b)
		return err == nil
	}
	left := x.budget.left.Add(-int64(len(b)))
	if left < 0 {
		if n := int64(len(b)) + left; n > 0 {
			w.Write(b[:n])
			log.Write(b[:n])
		}
		x.budget.once.Do(func() { close(x.budget.full) })
		return false
	}
	_, err := w.Write(b)
	log.Write(b)
	if x.ptmx != nil {
		x.screen.Write(b)
	}
	if x.audience != nil {
		x.audience.write(b)
	}
	// A reader that went away, as head(1) does, is the command's to notice: its
	// end of the pipe breaks too.
	return !errors.Is(err, unix.EPIPE)
}

// logFile keeps the first bytes of a stream and marks where it was cut.
type logFile struct {
	f    *os.File
	left int64
}

const logCut = "\n[carboy: the log ends here, the output went on]\n"

func (l *logFile) Write(b []byte) (int, error) {
	if l.left <= 0 {
		return len(b), nil
	}
	n := min(int64(len(b)), l.left)
	l.f.Write(b[:n])
	if l.left -= n; l.left <= 0 {
		l.f.WriteString(logCut)
	}
	return len(b), nil
}

// attach gives the command a pty and joins it to the caller's terminal.
func (x *streams) attach(s *Session) error {
	if x.stdin == nil || !term.IsTerminal(int(x.stdin.Fd())) {
		return &fault.OptionError{Option: "-t", Value: "", Reason: "needs a terminal as standard input", Advice: "leave out -t, or run in a terminal"}
	}
	ptmx, tty, err := pty.Open()
	if err != nil {
		return fmt.Errorf("open a terminal: %w", err)
	}
	x.in, x.out, x.err, x.ptmx = tty, tty, tty, ptmx
	x.ours = append(x.ours, ptmx)
	if err := x.output(s, ptmx, x.stdout, "terminal"); err != nil {
		return err
	}
	x.resize()
	state, err := term.MakeRaw(int(x.stdin.Fd()))
	if err != nil {
		return fmt.Errorf("set the terminal: %w", err)
	}
	x.restore = append(x.restore, func(context.Context) {
		_, _ = io.WriteString(x.stdout, x.screen.leave())
		term.Restore(int(x.stdin.Fd()), state)
	})
	if x.pressed == nil {
		resize := make(chan os.Signal, 1)
		signal.Notify(resize, unix.SIGWINCH)
		x.restore = append(x.restore, func(context.Context) { signal.Stop(resize); close(resize) })
		go func() { // ends with close
			for range resize {
				x.resize()
			}
		}()
	}
	esc := escape{line: true}
	return x.pump(x.stdin, func(b []byte) error {
		keys, leave := esc.filter(b)
		if leave {
			x.leave()
		}
		if x.pressed != nil {
			x.press(keys)
		}
		x.resize()
		ptmx.Write(keys)
		return nil
	}, func() {})
}

// resize makes the command's terminal as large as the caller's. Doing so at the signal is
// not enough: shells that use readline read the size and write it back at each prompt,
// and may write the old one. And a carboy in the background gets no signal.
func (x *streams) resize() {
	if x.ptmx != nil {
		pty.InheritSize(x.stdin, x.ptmx)
	}
}

// press finds the keys that the terminal, as the command has set it, turns into signals.
// The terminal itself does the rest, such as echo.
func (x *streams) press(keys []byte) {
	t, err := unix.IoctlGetTermios(int(x.ptmx.Fd()), unix.TCGETS)
	if err != nil || t.Lflag&unix.ISIG == 0 {
		return
	}
	for _, k := range keys {
		switch k {
		case 0: // a key that is switched off
		case t.Cc[unix.VINTR]:
			x.pressed(unix.SIGINT)
		case t.Cc[unix.VQUIT]:
			x.pressed(unix.SIGQUIT)
		case t.Cc[unix.VSUSP]:
			x.pressed(unix.SIGTSTP)
		}
	}
}

// pump passes the caller's input on until close. It polls before it reads, so that no
// pending read takes input that is meant for the next program.
func (x *streams) pump(in *os.File, take func([]byte) error, end func()) error {
	fd, err := descriptor(in)
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	done := make(chan struct{})
	x.restore = append(x.restore, func(ctx context.Context) {
		w.Close()
		if x.feed != nil {
			x.feed.Close() // a command that reads nothing more
		}
		// It may hang in a read, when another program took what the poll saw, or
		// in a write to a terminal that nobody reads. It then ends after that.
		select {
		case <-done:
		case <-ctx.Done():
		case <-time.After(askIn):
		}
	})
	go func() { // ends when w is closed
		defer close(done)
		defer r.Close()
		defer end()
		buf := make([]byte, 32<<10)
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(r.Fd()), Events: unix.POLLIN}}
		for {
			if _, err := unix.Poll(fds, -1); err != nil {
				if errors.Is(err, unix.EINTR) {
					continue
				}
				return
			}
			if fds[1].Revents != 0 {
				return
			}
			n, err := unix.Read(fd, buf)
			switch {
			case n > 0:
				if take(buf[:n]) != nil {
					return
				}
			case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			default:
				return
			}
		}
	}()
	return nil
}

// descriptor returns f's descriptor, valid while f is open. It does not call f.Fd, which
// would change how f is read, also by other programs that share it.
func descriptor(f *os.File) (n int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	err = raw.Control(func(fd uintptr) { n = int(fd) })
	return n, err
}

// escape finds what ssh(1) has too: at the beginning of a line, "~." leaves, and
// "~~" is one tilde. A terminal in raw mode has no other way to reach carboy.
type escape struct {
	line, tilde bool
	out         []byte
}

// filter returns the input for the command, valid until the next call, and whether to
// leave.
func (e *escape) filter(keys []byte) (out []byte, leave bool) {
	e.out = e.out[:0]
	for _, k := range keys {
		switch {
		case e.tilde && k == '.':
			leave = true
			e.tilde, e.line = false, true
			continue
		case e.tilde && k != '~':
			e.out = append(e.out, '~', k)
		case e.line && k == '~' && !e.tilde:
			e.tilde = true
			continue
		default:
			e.out = append(e.out, k)
		}
		e.tilde = false
		e.line = k == '\r' || k == '\n'
	}
	return e.out, leave
}

// started closes this process's copies of the bottle's ends, after the bottle has
// duplicated them.
func (x *streams) started() {
	for _, f := range []*os.File{x.in, x.out, x.err} {
		if f != nil {
			f.Close()
		}
	}
	x.in, x.out, x.err = nil, nil, nil
}

// unhook stops reading the caller's input and restores the terminal. It waits for the
// reader no longer than ctx.
func (x *streams) unhook(ctx context.Context) {
	for i := len(x.restore) - 1; i >= 0; i-- {
		x.restore[i](ctx)
	}
	x.restore = nil
}

// close restores the terminal and waits for output that is on its way, until
// ctx ends: whoever reads it may have stopped reading. It is called when the
// bottle is gone, so that no process of it holds a stream open.
func (x *streams) close(ctx context.Context) {
	x.unhook(ctx)
	x.started()
	if x.feed != nil {
		x.feed.Close()
	}
	x.settle(ctx)
	x.terminal()
	for _, f := range x.ours {
		f.Close()
	}
	for _, l := range x.kept {
		l.f.Close()
	}
}

// settle waits until the last end of the bottle is closed and all was passed on.
func (x *streams) settle(ctx context.Context) {
	passed := make(chan struct{})
	go func() { x.copies.Wait(); close(passed) }() // ends with the last reader
	select {
	case <-passed:
	case <-ctx.Done():
	}
}
