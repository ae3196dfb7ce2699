package carboy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// streams joins the command's standard streams to the caller's. The command
// gets pipes or a terminal of its own, never the caller's descriptors; what it
// writes is counted, bounded and kept in the run's logs.
type streams struct {
	in, out, err *os.File // the bottle's ends

	full chan struct{} // closed when the output passed its limit

	left    atomic.Int64
	once    sync.Once
	copies  sync.WaitGroup
	restore []func()
	logs    []*logFile
	stdin   *os.File // our end of the command's standard input
	ours    []*os.File
}

// maxLog bounds what is kept of each stream, in bytes.
const maxLog = 32 << 20

func (s *session) openStreams() (*streams, error) {
	x := &streams{full: make(chan struct{})}
	x.left.Store(s.limits.Output)
	var err error
	if s.o.Terminal {
		err = x.terminal(s)
	} else {
		err = x.pipes(s)
	}
	if err != nil {
		x.close(context.Background())
		return nil, err
	}
	return x, nil
}

func (x *streams) pipes(s *session) error {
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
	x.in, x.stdin = ir, iw
	if err := x.output(s, or, s.o.Stdout, "stdout"); err != nil {
		return err
	}
	if err := x.output(s, er, s.o.Stderr, "stderr"); err != nil {
		return err
	}
	if s.o.Stdin == nil {
		iw.Close()
		return nil
	}
	go func() { // ends with stdin or, at the latest, with the process
		io.Copy(iw, s.o.Stdin)
		iw.Close()
	}()
	return nil
}

// output copies from r to w and to a log until the bottle's end is closed.
func (x *streams) output(s *session, r *os.File, w io.Writer, name string) error {
	f, err := s.run.OpenLog(name)
	if err != nil {
		return err
	}
	log := &logFile{f: f, left: maxLog}
	x.logs = append(x.logs, log)
	x.copies.Add(1)
	go func() {
		defer x.copies.Done()
		buf := make([]byte, 64<<10)
		for {
			n, err := r.Read(buf)
			if n > 0 && !x.pass(buf[:n], w, log) {
				r.Close() // the command's end breaks
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return nil
}

// pass hands b on, up to the limit, and says whether to go on. A full log does
// not stop the command.
func (x *streams) pass(b []byte, w io.Writer, log *logFile) bool {
	left := x.left.Add(-int64(len(b)))
	if left < 0 {
		if n := int64(len(b)) + left; n > 0 {
			w.Write(b[:n])
			log.Write(b[:n])
		}
		x.once.Do(func() { close(x.full) })
		return false
	}
	_, err := w.Write(b)
	log.Write(b)
	// A reader that went away, as head(1) does, is the command's to notice: its
	// end of the pipe breaks too.
	return !errors.Is(err, unix.EPIPE)
}

// logFile keeps the first bytes of a stream and says when it stopped.
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

// terminal gives the command a pty and joins it to the caller's terminal.
func (x *streams) terminal(s *session) error {
	if s.o.Stdin == nil || !term.IsTerminal(int(s.o.Stdin.Fd())) {
		return &OptionError{Option: "-t", Value: "", Reason: "needs a terminal as standard input", Advice: "leave out -t, or run in a terminal"}
	}
	ptmx, tty, err := pty.Open()
	if err != nil {
		return fmt.Errorf("open a terminal: %w", err)
	}
	x.in, x.out, x.err = tty, tty, tty
	x.ours = append(x.ours, ptmx)
	if err := x.output(s, ptmx, s.o.Stdout, "terminal"); err != nil {
		return err
	}
	pty.InheritSize(s.o.Stdin, ptmx)
	state, err := term.MakeRaw(int(s.o.Stdin.Fd()))
	if err != nil {
		return fmt.Errorf("set the terminal: %w", err)
	}
	x.restore = append(x.restore, func() { term.Restore(int(s.o.Stdin.Fd()), state) })
	resize := make(chan os.Signal, 1)
	signal.Notify(resize, unix.SIGWINCH)
	x.restore = append(x.restore, func() { signal.Stop(resize); close(resize) })
	go func() { // ends with close
		for range resize {
			pty.InheritSize(s.o.Stdin, ptmx)
		}
	}()
	return x.keyboard(s.o.Stdin, ptmx, s.destroy)
}

// keyboard copies what is typed until close. The terminal is read through a
// poll, so that no read is left behind to swallow the shell's next key.
func (x *streams) keyboard(in *os.File, ptmx *os.File, destroy func()) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	done := make(chan struct{})
	x.restore = append(x.restore, func() { w.Close(); <-done; r.Close() })
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		esc := escape{line: true}
		fds := []unix.PollFd{{Fd: int32(in.Fd()), Events: unix.POLLIN}, {Fd: int32(r.Fd()), Events: unix.POLLIN}}
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
			n, err := unix.Read(int(in.Fd()), buf)
			if n <= 0 && !errors.Is(err, unix.EINTR) {
				return
			}
			if n > 0 {
				keys, leave := esc.filter(buf[:n])
				if leave {
					destroy()
				}
				ptmx.Write(keys)
			}
		}
	}()
	return nil
}

// escape finds what ssh(1) has too: at the beginning of a line, "~." leaves, and
// "~~" is one tilde. A terminal in raw mode has no other way to reach carboy.
type escape struct {
	line, tilde bool
	out         []byte
}

// filter returns what is for the command, valid until the next call, and
// whether to leave.
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

// started closes the bottle's ends here: they are duplicated there.
func (x *streams) started() {
	for _, f := range []*os.File{x.in, x.out, x.err} {
		if f != nil {
			f.Close()
		}
	}
	x.in, x.out, x.err = nil, nil, nil
}

// close restores the terminal and waits for output that is on its way, until
// ctx ends: whoever reads it may have stopped reading. It is called when the
// bottle is gone, so that no process of it holds a stream open.
func (x *streams) close(ctx context.Context) {
	for i := len(x.restore) - 1; i >= 0; i-- {
		x.restore[i]()
	}
	x.restore = nil
	x.started()
	if x.stdin != nil {
		x.stdin.Close()
	}
	passed := make(chan struct{})
	go func() { x.copies.Wait(); close(passed) }() // ends with the last reader
	select {
	case <-passed:
	case <-ctx.Done():
	}
	for _, f := range x.ours {
		f.Close()
	}
	for _, l := range x.logs {
		l.f.Close()
	}
}
