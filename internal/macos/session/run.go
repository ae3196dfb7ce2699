package session

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/macos/frames"
	"github.com/carboy/carboy/internal/macos/mirror"
	"github.com/carboy/carboy/internal/safetext"
)

// Options describe one command line.
type Options struct {
	Args      []string          // without the program
	Dir, Home string            // absolute
	Env       map[string]string // what carboy in the machine sees, in its memory only
	UID, GID  int               // who owns the copies of directories
	Trees     []Tree

	In, Out, Err Stream
	Stdin        io.Reader // nil if In is None
	Stdout       io.Writer
	Stderr       io.Writer
	// Screen gets the terminal's output, if a stream is a Terminal.
	Screen io.Writer
	// Size returns the size of the terminal, and Signals has the signals to pass on. A
	// SIGWINCH sends the size.
	Size    func() Size
	Signals <-chan os.Signal
	// Started is called when the command line begins to take input.
	Started func()
	// Say shows a line to the user.
	Say func(string)
}

// Run runs a command line over conn, and returns its exit code. It blocks until carboy in
// the machine has ended and its output is written. A [*NoSessionError] means that nothing
// ran.
func Run(ctx context.Context, r io.Reader, w io.Writer, o Options) (int, error) {
	c := &client{Conn: frames.New(r, w), o: o, over: make(chan struct{})}
	c.more = sync.NewCond(&c.mu)
	if err := c.greet(); err != nil {
		return 0, &NoSessionError{err}
	}
	if err := c.SendJSON(frames.Open, order{
		Version: version, Args: o.Args, Dir: o.Dir, Home: o.Home, Env: o.Env, In: o.In, Out: o.Out, Err: o.Err,
		Size: o.Size(), UID: o.UID, GID: o.GID, Trees: o.Trees,
	}); err != nil {
		return 0, &NoSessionError{err}
	}
	var wait sync.WaitGroup
	wait.Go(c.signals)
	if o.In != None {
		go c.input() // ends with the input, or when this process does: a read can't be ended
	}
	code, err := c.serve(ctx)
	close(c.over)
	wait.Wait()
	switch {
	case err == nil:
		if code == 0 && c.kept > 0 {
			err = fmt.Errorf("%d of the files that the command changed had changed here, too", c.kept)
		}
		c.Send(frames.Done, nil) // if it does not arrive, the end of the connection does
	case c.ended != 0:
		err = exitcode.Interrupted(c.ended, err)
	}
	return code, err
}

type client struct {
	*frames.Conn
	o     Options
	over  chan struct{}
	ended syscall.Signal // the last that asked for the end
	kept  int            // files that the command changed, and that stayed as they were here

	mu      sync.Mutex
	more    *sync.Cond
	room    int // bytes of standard input that may be sent
	started bool
}

func (c *client) greet() error {
	b, err := frames.Expect(c, frames.Hello)
	if err != nil {
		return err
	}
	var h hello
	if err := json.Unmarshal(b, &h); err != nil || h.Schema != helloSchema || h.Version != version {
		return fmt.Errorf("it said %q", safetext.Bytes(b, 200))
	}
	return nil
}

// serve does what the machine asks for, until the command line has ended.
func (c *client) serve(ctx context.Context) (int, error) {
	for {
		k, b, err := c.Recv()
		if err != nil {
			return 0, fmt.Errorf("the connection to the machine broke, so how the command ended is not known: %w", err)
		}
		switch k {
		case frames.Stdout:
			err = c.write(c.o.Stdout, k, b)
		case frames.Stderr:
			err = c.write(c.o.Stderr, k, b)
		case frames.Terminal:
			err = c.write(c.o.Screen, k, b)
		case frames.Credit:
			c.grant(b)
		case frames.Tree:
			err = c.tree(ctx, b)
		case frames.Fail:
			return 0, &frames.FailError{Text: safetext.Lines(string(b), 4000)}
		case frames.Exit:
			if len(b) != 4 {
				return 0, errors.New("the machine sent an exit code that is none")
			}
			return int(binary.BigEndian.Uint32(b)) & 0xff, nil
		default:
			err = fmt.Errorf("the machine sent %q, which means nothing", byte(k))
		}
		if err != nil {
			return 0, err
		}
	}
}

// grant notes that so much more standard input may be sent.
func (c *client) grant(b []byte) {
	if len(b) != 4 {
		return
	}
	c.mu.Lock()
	c.room = min(c.room+int(binary.BigEndian.Uint32(b)), window)
	first := !c.started
	c.started = true
	c.mu.Unlock()
	c.more.Signal()
	if first && c.o.Started != nil {
		c.o.Started()
	}
}

// write writes output. That nobody reads it is for the command to know, as without a machine.
func (c *client) write(w io.Writer, k frames.Kind, b []byte) error {
	if w == nil {
		return nil
	}
	_, err := w.Write(b)
	if errors.Is(err, syscall.EPIPE) {
		c.Send(frames.Shut, []byte{byte(k)})
		return nil
	}
	return err
}

// tree does one step with a directory.
func (c *client) tree(ctx context.Context, b []byte) error {
	var s step
	if err := json.Unmarshal(b, &s); err != nil || s.Tree < 0 || s.Tree >= len(c.o.Trees) {
		return errors.New("the machine names a directory that is not part of the command")
	}
	t := c.o.Trees[s.Tree]
	if !s.Back {
		return mirror.Give(ctx, c, t.Path, t.Keep, func(files int, bytes int64) {
			if bytes >= 64<<20 {
				c.o.Say(fmt.Sprintf("copying %d files (%d MiB) of %s into the machine", files, bytes>>20, t.Path))
			}
		})
	}
	if t.Copy != Workspace {
		return errors.New("the machine wants to change a directory that only goes in")
	}
	taken, err := mirror.Take(c, t.Path, t.Aside)
	if taken != nil {
		if s.Over {
			c.kept += len(taken.Kept)
		}
		for i, k := range taken.Kept {
			if i == 20 {
				c.o.Say(fmt.Sprintf("and %d more", len(taken.Kept)-i))
				break
			}
			c.o.Say(fmt.Sprintf("%s changed here and in the machine; yours stays", safetext.String(k, 300)))
		}
		if taken.Aside != "" {
			c.o.Say("the machine's versions are in " + taken.Aside)
		}
	}
	return err
}

// signals passes signals on until the command has ended.
func (c *client) signals() {
	for {
		select {
		case s := <-c.o.Signals:
			if s == syscall.SIGWINCH {
				z := c.o.Size()
				b := binary.BigEndian.AppendUint16(nil, z.Rows)
				c.Send(frames.Size, binary.BigEndian.AppendUint16(b, z.Cols))
				continue
			}
			if n, ok := linuxSignal(s); ok {
				if s != syscall.SIGUSR1 && s != syscall.SIGUSR2 {
					c.ended = s.(syscall.Signal)
				}
				c.Send(frames.Signal, []byte{n})
			}
		case <-c.over:
			return
		}
	}
}

// input sends standard input, as far as the machine has room for it.
func (c *client) input() {
	b := make([]byte, frames.Chunk)
	for {
		c.mu.Lock()
		for c.room <= 0 {
			c.more.Wait()
		}
		room := min(c.room, len(b))
		c.mu.Unlock()
		n, err := c.o.Stdin.Read(b[:room])
		c.mu.Lock()
		c.room -= n
		c.mu.Unlock()
		if n > 0 && c.Send(frames.Stdin, b[:n]) != nil {
			return
		}
		if err != nil {
			c.Send(frames.EOF, nil)
			return
		}
	}
}

// linuxSignal returns the number that Linux gives a signal, which for some differs from
// macOS's. Only those that a user sends are passed on.
func linuxSignal(s os.Signal) (byte, bool) {
	switch s {
	case syscall.SIGHUP:
		return 1, true
	case syscall.SIGINT:
		return 2, true
	case syscall.SIGQUIT:
		return 3, true
	case syscall.SIGUSR1:
		return 10, true
	case syscall.SIGUSR2:
		return 12, true
	case syscall.SIGTERM:
		return 15, true
	}
	return 0, false
}
