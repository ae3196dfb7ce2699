package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/guest/proto"
	"github.com/carboy/carboy/internal/safetext"
)

const (
	// answerPatience bounds the wait for an answer where the caller has no context. A
	// guest that does not give it is broken or hostile.
	answerPatience = time.Minute
	// sizeInterval separates two looks at the size of a terminal. Nothing tells of its
	// changes, since its foreground is not on this machine.
	sizeInterval = 100 * time.Millisecond
)

// process is a command in the guest.
type process struct {
	client   *Client
	ch       *proto.Channel
	terminal bool

	in, out, err *local // in and out are the same terminal; err is nil then
	rows, cols   uint16
	restore      *unix.Termios

	// drained is closed when all output up to the command's end was delivered.
	drained chan struct{}
	once    sync.Once
}

// take duplicates the command's descriptors.
func (p *process) take(cmd *bottle.Command, s *proto.Start) (err error) {
	if p.in, err = duplicate(cmd.Stdin); err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	if p.out, err = duplicate(cmd.Stdout); err != nil {
		return fmt.Errorf("standard output: %w", err)
	}
	if !cmd.Terminal {
		if p.err, err = duplicate(cmd.Stderr); err != nil {
			return fmt.Errorf("standard error: %w", err)
		}
		return nil
	}
	w, err := unix.IoctlGetWinsize(p.in.fd, unix.TIOCGWINSZ)
	if err != nil {
		return fmt.Errorf("the command's terminal: %w", err)
	}
	p.rows, p.cols = w.Row, w.Col
	s.Rows, s.Cols = w.Row, w.Col
	return p.rawMode()
}

// rawMode makes the caller's end pass every byte as it is: the terminal inside has the
// line discipline.
func (p *process) rawMode() error {
	t, err := unix.IoctlGetTermios(p.in.fd, unix.TCGETS)
	if err != nil {
		return fmt.Errorf("the command's terminal: %w", err)
	}
	old := *t
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	t.Cflag = t.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(p.in.fd, unix.TCSETS, t); err != nil {
		return fmt.Errorf("the command's terminal: %w", err)
	}
	p.restore = &old
	return nil
}

// join starts to copy. It reports false if the client is closed.
func (p *process) join() bool {
	if !p.client.enter() {
		return false
	}
	var all, output sync.WaitGroup
	run := func(f func()) {
		all.Add(1)
		go func() { defer all.Done(); f() }()
	}
	run(func() { p.in.send(p.ch.Writer(proto.In), p.ch.Exited()) })
	outs := []*local{p.out, p.err}
	for i, l := range outs {
		if l == nil {
			continue
		}
		output.Add(1)
		run(func() {
			defer output.Done()
			l.deliver(p.ch.Reader(proto.Out+i), p.client.Done())
			l.close() // the caller's reader sees the end
		})
	}
	go func() { output.Wait(); close(p.drained) }()
	if p.terminal && p.client.enter() {
		// By itself: a guest that does not answer must not keep the terminal.
		go func() { defer p.client.running.Done(); p.watchSize() }()
	}
	go func() {
		defer p.client.running.Done()
		all.Wait()
		p.close()
	}()
	return true
}

func (p *process) close() {
	p.once.Do(func() {
		if p.restore != nil && p.in != nil {
			p.in.restore(p.restore)
		}
		for _, l := range []*local{p.in, p.out, p.err} {
			if l != nil {
				l.close()
			}
		}
	})
}

// watchSize tells the guest each new size of the terminal.
func (p *process) watchSize() {
	tick := time.NewTicker(sizeInterval)
	defer tick.Stop()
	for {
		select {
		case <-p.ch.Exited():
			return
		case <-tick.C:
		}
		rows, cols, ok := p.in.size()
		if !ok || rows == p.rows && cols == p.cols {
			continue
		}
		p.rows, p.cols = rows, cols
		if _, err := p.ch.Control(proto.Control{Rows: rows, Cols: cols}); err != nil {
			return
		}
	}
}

// Wait implements bottle.Process. With a terminal, what the command wrote has been
// delivered when it returns.
func (p *process) Wait(ctx context.Context) (bottle.Status, error) {
	select {
	case <-p.ch.Exited():
	case <-ctx.Done():
		return bottle.Status{}, ctx.Err()
	}
	e, err := p.ch.Exit()
	if err != nil {
		return bottle.Status{}, bottle.ErrGone
	}
	if p.terminal {
		select {
		case <-p.drained:
		case <-ctx.Done():
			return bottle.Status{}, ctx.Err()
		}
	}
	return status(e), nil
}

// Signal implements bottle.Process.
func (p *process) Signal(sig syscall.Signal, group bool) error {
	if sig <= 0 || sig > 64 {
		return fmt.Errorf("signal %d does not exist", int(sig))
	}
	select {
	case <-p.ch.Exited():
		if _, err := p.ch.Exit(); err != nil {
			return bottle.ErrGone
		}
		return os.ErrProcessDone
	default:
	}
	type answer struct {
		a   proto.Answer
		err error
	}
	got := make(chan answer, 1)
	go func() {
		a, err := p.ch.Control(proto.Control{Signal: int(sig), Group: group})
		got <- answer{a, err}
	}()
	select {
	case r := <-got:
		switch {
		case errors.Is(r.err, proto.ErrEnded):
			if _, err := p.ch.Exit(); err == nil {
				return os.ErrProcessDone
			}
			return bottle.ErrGone
		case r.err != nil:
			return p.client.gone(r.err)
		case r.a.Error != "":
			return fmt.Errorf("the guest says: %s", safetext.String(r.a.Error, maxText))
		}
		return nil
	case <-time.After(answerPatience):
		return p.client.breach("no answer to a signal")
	}
}
