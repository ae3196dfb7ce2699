package session

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/macos/frames"
)

const (
	// patience is between the signals to a command whose other side is gone: SIGHUP, which
	// carboy answers by destroying the bottle, SIGTERM and SIGKILL.
	patience = 20 * time.Second
	// drain bounds the wait for output that a process left behind still holds open.
	drain = 2 * time.Second
)

// child is the command line that runs.
type child struct {
	cmd     *exec.Cmd
	send    func(frames.Kind, []byte) error
	screen  *os.File // the terminal's other end; nil: there is none
	in      *queue
	outputs map[frames.Kind]*os.File
	pumps   sync.WaitGroup
	over    chan struct{} // closed when the process has ended
}

// start starts the command line. Its variables reach it through a descriptor, so that they
// are not in the environment that other processes of the machine can read.
func start(s *server, o *order) (c *child, err error) {
	c = &child{send: s.Send, outputs: map[frames.Kind]*os.File{}, over: make(chan struct{})}
	var theirs []*os.File // the command's ends
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
		if err != nil {
			c.close()
		}
	}()
	c.cmd = &exec.Cmd{
		// Not os.Executable: the file may have been replaced by an upgrade.
		Path: "/proc/self/exe", Args: append([]string{"carboy"}, o.Args...), Dir: o.Dir,
		Env:         []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + o.Home, variablesName + "=3"},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGHUP},
	}
	var tty *os.File
	files := make([]*os.File, 3)
	for i, kind := range []Stream{o.In, o.Out, o.Err} {
		if kind == Terminal && tty == nil {
			if c.screen, tty, err = openTerminal(); err != nil {
				return nil, err
			}
			theirs = append(theirs, tty)
			setSize(c.screen, o.Size)
			c.cmd.SysProcAttr.Setctty, c.cmd.SysProcAttr.Ctty = true, i
			c.pump(c.screen, frames.Terminal)
		}
		if kind == Terminal {
			files[i] = tty
			continue
		}
		if files[i], err = c.stream(i, kind); err != nil {
			return nil, err
		}
		theirs = append(theirs, files[i])
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	theirs = append(theirs, r)
	c.cmd.ExtraFiles = []*os.File{r}
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = files[0], files[1], files[2]
	if err = c.cmd.Start(); err != nil {
		w.Close()
		return nil, err
	}
	vars := map[string]string{}
	for k, v := range o.Env {
		vars[k] = v
	}
	vars["XDG_STATE_HOME"] = s.places.State
	go func() { // ends when the command has read it, or has ended
		json.NewEncoder(w).Encode(vars)
		w.Close()
	}()
	return c, nil
}

// stream returns the command's end of a standard stream that is no terminal.
func (c *child) stream(i int, kind Stream) (*os.File, error) {
	if kind == None {
		return os.OpenFile(os.DevNull, os.O_RDWR, 0)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	if i == 0 {
		c.feed(w)
		return r, nil
	}
	c.pump(r, []frames.Kind{0, frames.Stdout, frames.Stderr}[i])
	return w, nil
}

// pump sends what comes from f until it ends.
func (c *child) pump(f *os.File, k frames.Kind) {
	c.outputs[k] = f
	if k == frames.Terminal {
		c.feed(f)
	}
	c.pumps.Go(func() {
		b := make([]byte, frames.Chunk)
		for {
			n, err := f.Read(b)
			if n > 0 && c.send(k, b[:n]) != nil {
				// Nobody receives it; the command must not block on it meanwhile.
				io.Copy(io.Discard, f)
				return
			}
			if err != nil {
				return
			}
		}
	})
}

// feed writes standard input to f, and gives the other side room for as much again.
func (c *child) feed(f *os.File) {
	if c.in != nil {
		return
	}
	c.in = newQueue()
	in := c.in
	go func() { // ends with the input, or when the command has ended
		for {
			b, ok := in.next()
			if !ok {
				break
			}
			f.Write(b) // a command that does not read it does not need it
			c.room(len(b))
		}
		if f != c.screen {
			f.Close()
		}
	}()
}

func (c *child) room(n int) {
	c.send(frames.Credit, binary.BigEndian.AppendUint32(nil, uint32(n)))
}

// receive takes what the other side sends for the command.
func (c *child) receive(k frames.Kind, b []byte) {
	switch {
	case k == frames.Signal && len(b) == 1:
		c.signal(syscall.Signal(b[0]))
	case k == frames.Size && len(b) == 4 && c.screen != nil:
		setSize(c.screen, Size{binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])})
	case k == frames.Shut && len(b) == 1 && b[0] != byte(frames.Terminal) && c.outputs[frames.Kind(b[0])] != nil:
		c.outputs[frames.Kind(b[0])].Close()
	case (k == frames.Stdin || k == frames.EOF) && c.in != nil:
		c.in.add(b, k == frames.EOF)
	}
}

func (c *child) signal(n syscall.Signal) { c.cmd.Process.Signal(n) }

func (c *child) close() {
	if c.in != nil {
		c.in.add(nil, true)
	}
	for _, f := range c.outputs {
		f.Close()
	}
}

// wait blocks until the command has ended and its output is sent, and returns its exit
// code. If the other side goes, it ends the command.
func (c *child) wait(gone <-chan struct{}) int {
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		c.endIf(gone)
	}()
	c.cmd.Wait()
	close(c.over)
	<-watched
	for _, f := range c.outputs {
		if f.SetReadDeadline(time.Now().Add(drain)) != nil {
			f.Close()
		}
	}
	c.pumps.Wait()
	c.close()
	ws, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return c.cmd.ProcessState.ExitCode()
}

// endIf ends the command when gone is closed.
func (c *child) endIf(gone <-chan struct{}) {
	select {
	case <-c.over:
		return
	case <-gone:
	}
	for _, n := range []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM} {
		c.signal(n)
		select {
		case <-c.over:
			return
		case <-time.After(patience):
		}
	}
	syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
	<-c.over
}

// queue holds standard input that the command has not taken yet. The window bounds it.
type queue struct {
	mu    sync.Mutex
	more  *sync.Cond
	bytes []byte
	last  bool
}

func newQueue() *queue {
	q := &queue{}
	q.more = sync.NewCond(&q.mu)
	return q
}

// add appends b. What exceeds the window is dropped: the other side breaks its promise.
func (q *queue) add(b []byte, last bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.bytes = append(q.bytes, b[:min(len(b), window-len(q.bytes))]...)
	q.last = q.last || last
	q.more.Signal()
}

// next blocks until there is input, and returns all of it; false: it has ended.
func (q *queue) next() ([]byte, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.bytes) == 0 && !q.last {
		q.more.Wait()
	}
	b := q.bytes
	q.bytes = nil
	return b, len(b) > 0
}

// openTerminal makes a terminal: the end that we read and write, and the command's.
func openTerminal() (screen, tty *os.File, err error) {
	screen, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a terminal: %w", err)
	}
	n := 0
	if err = control(screen, func(fd int) error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		n, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		return err
	}); err == nil {
		tty, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("make a terminal: %w", err), screen.Close())
	}
	return screen, tty, nil
}

// setSize sets the size of a terminal, which tells the command by SIGWINCH.
func setSize(screen *os.File, z Size) {
	if z.Rows > 0 && z.Cols > 0 {
		control(screen, func(fd int) error {
			return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: z.Rows, Col: z.Cols})
		})
	}
}

// control calls f with the descriptor of a file, which stays non-blocking: its reads have
// a deadline.
func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(cerr, err)
}
