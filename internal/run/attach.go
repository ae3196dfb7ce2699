package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/store"
)

// Others can watch a run's command: they get its last and its further output, and where
// it has a terminal, they can type into it. The command never waits for them: a watcher
// that does not read is dropped.

const (
	attachProtocol = "carboy-attach-1"
	attachTerminal = "Carboy-Terminal" // of the answer: the command has one
	// replayed bounds the earlier output that a new watcher gets, in bytes.
	replayed = 64 << 10
	// Bounds of the output that a watcher has not read yet, in bytes and in pieces.
	attachBehind = 1 << 20
	attachPieces = 4096
	maxAttached  = 16
)

// audience holds the attached watchers and the last output.
type audience struct {
	mu     sync.Mutex
	last   []byte // of the output, at most 2*replayed
	of     map[*onlooker]bool
	keys   *os.File // where theirs go; nil: nowhere. Set before anybody is admitted
	screen *screen  // of the command's terminal; nil: it has none. Set with keys
	closed bool
}

type onlooker struct {
	conn net.Conn
	news chan []byte
	left int // bytes that may still be queued; of the audience's lock
}

// write sends b to all watchers.
func (a *audience) write(b []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	if a.last = append(a.last, b...); len(a.last) > 2*replayed {
		a.last = append(a.last[:0], a.last[len(a.last)-replayed:]...)
	}
	for o := range a.of {
		a.give(o, b)
	}
}

func (a *audience) give(o *onlooker, b []byte) {
	if len(b) <= o.left {
		select {
		case o.news <- bytes.Clone(b):
			o.left -= len(b)
			return
		default:
		}
	}
	a.drop(o)
}

func (a *audience) drop(o *onlooker) {
	if a.of[o] {
		delete(a.of, o)
		close(o.news)
	}
}

// admit adds a watcher, who first gets the earlier output.
func (a *audience) admit(conn net.Conn) (*onlooker, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.closed:
		return nil, errNotNow
	case len(a.of) >= maxAttached:
		return nil, fmt.Errorf("%d others are attached already", len(a.of))
	}
	o := &onlooker{conn: conn, news: make(chan []byte, attachPieces), left: attachBehind}
	if a.of == nil {
		a.of = map[*onlooker]bool{}
	}
	a.of[o] = true
	if a.screen != nil {
		a.give(o, []byte(a.screen.enter()))
	}
	if n := min(len(a.last), replayed); n > 0 {
		a.give(o, a.last[len(a.last)-n:])
	}
	return o, nil
}

// serve writes to one watcher until it or the run is gone.
func (a *audience) serve(o *onlooker) {
	defer o.conn.Close()
	for b := range o.news {
		if _, err := o.conn.Write(b); err != nil {
			break
		}
		a.mu.Lock()
		o.left += len(b)
		a.mu.Unlock()
	}
	a.mu.Lock()
	a.drop(o)
	a.mu.Unlock()
	for range o.news { // what was queued for him
	}
}

// close ends the audience: each watcher gets the output queued for it, then end of file.
func (a *audience) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed, a.last = true, nil
	for o := range a.of {
		_ = o.conn.SetWriteDeadline(time.Now().Add(askIn))
		a.drop(o)
	}
}

// serveAttach takes a connection of the control socket over.
func (s *Session) serveAttach(w http.ResponseWriter, r *http.Request) {
	if !s.upgradable(w, r, attachProtocol) {
		return
	}
	ev := s.event(audit.RunAttached, audit.Allowed)
	ev.Sync = true
	if _, err := s.c.Audit.Append(r.Context(), ev); err != nil {
		http.Error(w, "the audit log does not take it", http.StatusConflict)
		return
	}
	terminal := s.audience.keys != nil
	conn, ok := takeOver(w, attachProtocol, fmt.Sprintf("%s: %v\r\n", attachTerminal, terminal))
	if !ok {
		return
	}
	o, err := s.audience.admit(conn)
	if err != nil {
		fmt.Fprintf(conn, "carboy: %v\r\n", err)
		conn.Close()
		return
	}
	go s.audience.serve(o) // ends with the connection or the run
	defer conn.Close()
	if terminal {
		// A screen is drawn again for who has just come.
		s.redraw()
		_, _ = io.Copy(s.audience.keys, conn)
	} else {
		_, _ = io.Copy(io.Discard, conn)
	}
	s.audience.mu.Lock()
	s.audience.drop(o)
	s.audience.mu.Unlock()
}

// redraw signals a new terminal size to the command.
func (s *Session) redraw() {
	s.commandMu.Lock()
	p := s.commandRuns
	s.commandMu.Unlock()
	if p != nil {
		_ = p.Signal(unix.SIGWINCH, true)
	}
}

// AttachOptions sets where the output of a run's command goes, and who sends its keys.
type AttachOptions struct {
	Stdin  *os.File // a terminal, or nil: only look
	Stdout io.Writer
}

// Attach shows the last output of a run's command and follows it. If the command has a
// terminal and Stdin is one, it passes keys on. It ends with the run, with ctx, or when
// "~." is typed at the beginning of a line.
func (c *Runner) Attach(ctx context.Context, m store.Meta, o AttachOptions) error {
	conn, in, resp, err := upgrade(ctx, m, "/v1/attach", attachProtocol)
	if err != nil {
		return err
	}
	defer conn.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return fmt.Errorf("attach to run %s: %s", m.ID, refusal(resp))
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	out := o.Stdout
	if resp.Header.Get(attachTerminal) == "true" {
		if o.Stdin != nil && term.IsTerminal(int(o.Stdin.Fd())) {
			state, err := term.MakeRaw(int(o.Stdin.Fd()))
			if err != nil {
				return fmt.Errorf("set the terminal: %w", err)
			}
			defer term.Restore(int(o.Stdin.Fd()), state)
			x := &streams{}
			esc := escape{line: true}
			if err := x.pump(o.Stdin, func(b []byte) error {
				keys, leave := esc.filter(b)
				_, err := conn.Write(keys)
				if leave {
					conn.Close()
				}
				return err
			}, func() {}); err != nil {
				return err
			}
			defer x.unhook(ctx)
		}
	} else if f, ok := o.Stdout.(*os.File); ok {
		out = tame(f, false)
	}
	if resp.Header.Get(attachTerminal) == "true" {
		seen := &screen{}
		out = io.MultiWriter(out, seen)
		defer func() { _, _ = io.WriteString(o.Stdout, seen.leave()) }()
	}
	_, err = io.Copy(out, in)
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
