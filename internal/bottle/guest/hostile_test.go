package guest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/guest/proto"
)

// Kinds of frames, as package proto numbers them.
const (
	hello = iota + 1
	request
	reply
	data
	credit
	eof
	stop
	control
	answer
	exit
	end
)

// liar is a guest that sends what the test says.
type liar struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
}

func frame(kind, stream byte, channel uint32, payload []byte) []byte {
	b := []byte{kind, stream, 0, 0}
	b = binary.BigEndian.AppendUint32(b, channel)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

// next reads the host's next frame.
func (l *liar) next() (kind byte, channel uint32, payload []byte, err error) {
	var h [12]byte
	if _, err := io.ReadFull(l.r, h[:]); err != nil {
		return 0, 0, nil, err
	}
	payload = make([]byte, binary.BigEndian.Uint32(h[8:]))
	_, err = io.ReadFull(l.r, payload)
	return h[0], binary.BigEndian.Uint32(h[4:]), payload, err
}

func (l *liar) write(b ...[]byte) {
	_, _ = l.conn.Write(bytes.Join(b, nil)) // fails once the host has had enough
}

// greet answers the opening with h, whose nonce is the host's unless it has one.
func (l *liar) greet(h proto.Hello) error {
	kind, _, payload, err := l.next()
	if err != nil || kind != hello {
		return errors.Join(err, errors.New("no opening"))
	}
	var o proto.Opening
	if err := json.Unmarshal(payload, &o); err != nil {
		return err
	}
	if h.Nonce == nil {
		h.Nonce = o.Nonce
	}
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	l.write(frame(hello, 0, 0, b))
	return nil
}

// lying connects a client to a guest that greets well and then runs lie.
func lying(t *testing.T, lie func(*liar)) *Client {
	t.Helper()
	ours, theirs := net.Pipe()
	l := &liar{t, theirs, bufio.NewReader(theirs)}
	over := make(chan struct{})
	go func() {
		defer close(over)
		if err := l.greet(proto.Hello{Version: proto.Version}); err == nil {
			lie(l)
		}
	}()
	c, err := Connect(within(t), ours)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); theirs.Close(); <-over })
	return c
}

func TestHelloRefused(t *testing.T) {
	for name, h := range map[string]proto.Hello{
		"another version":   {Version: proto.Version + 1},
		"another nonce":     {Version: proto.Version, Nonce: make([]byte, proto.NonceSize)},
		"a short nonce":     {Version: proto.Version, Nonce: []byte("x")},
		"a long kernel":     {Version: proto.Version, Kernel: strings.Repeat("k", 5000)},
		"a long note":       {Version: proto.Version, Notes: []string{strings.Repeat("n", 5000)}},
		"a thousand cards":  {Version: proto.Version, NICs: make([]proto.NIC, 1000)},
		"a card's long MAC": {Version: proto.Version, NICs: []proto.NIC{{MAC: strings.Repeat("m", 5000)}}},
	} {
		ours, theirs := net.Pipe()
		l := &liar{t, theirs, bufio.NewReader(theirs)}
		go l.greet(h)
		if c, err := Connect(within(t), ours); err == nil {
			c.Close()
			t.Errorf("%s was accepted", name)
		} else if !errors.Is(err, proto.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
		theirs.Close()
	}
	// One that says nothing is waited for as long as the caller wants.
	ours, theirs := net.Pipe()
	defer theirs.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := Connect(ctx, ours); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a silent guest: %v", err)
	}
}

// TestBreaches sends what no guest may send. Each ends the stream, and the command that
// was waited for is gone.
func TestBreaches(t *testing.T) {
	ok := []byte("{}")
	for name, lie := range map[string][]byte{
		"an unknown kind":         frame(99, 0, 1, nil),
		"kind 0":                  frame(0, 0, 1, nil),
		"a fourth stream":         frame(data, 3, 1, []byte("x")),
		"a second hello":          frame(hello, 0, 0, ok),
		"a request":               frame(request, 0, 7, ok),
		"a control":               frame(control, 0, 1, ok),
		"another channel":         frame(data, 1, 2, []byte("x")),
		"channel 0":               frame(end, 0, 0, nil),
		"its own input":           frame(data, 0, 1, []byte("x")),
		"empty data":              frame(data, 1, 1, nil),
		"data after the end":      append(frame(eof, 1, 1, nil), frame(data, 1, 1, []byte("x"))...),
		"a second reply":          frame(reply, 0, 1, ok),
		"no JSON":                 frame(exit, 0, 1, []byte("x")),
		"an impossible code":      frame(exit, 0, 1, []byte(`{"code":300}`)),
		"an impossible signal":    frame(exit, 0, 1, []byte(`{"signal":-9}`)),
		"two exits":               append(frame(exit, 0, 1, ok), frame(exit, 0, 1, ok)...),
		"an answer to nothing":    frame(answer, 0, 1, []byte(`{"seq":1}`)),
		"too much credit":         frame(credit, 0, 1, []byte{0, 0, 0, 1}),
		"credit of nothing":       frame(credit, 0, 1, []byte{0, 0, 0, 0}),
		"credit of half a number": frame(credit, 0, 1, []byte{0, 0}),
		"credit for its stream":   frame(credit, 1, 1, []byte{0, 0, 0, 1}),
		"a stop with bytes":       frame(stop, 0, 1, []byte("x")),
		"a reserved byte":         {data, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 'x'},
		"a frame that goes on":    {data, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 'x'},
		"a huge frame":            {data, 1, 0, 0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff},
		"more than its credit":    bytes.Repeat(frame(data, 1, 1, make([]byte, proto.MaxPayload)), proto.Window/proto.MaxPayload*3),
	} {
		t.Run(name, func(t *testing.T) {
			c := lying(t, func(l *liar) {
				for {
					kind, ch, _, err := l.next()
					if err != nil {
						return
					}
					if kind == request {
						l.write(frame(reply, 0, ch, ok), lie)
					}
				}
			})
			// Nobody reads the output, so that credit is not given back.
			r, err := try(t, c, func(cmd *bottle.Command) { cmd.Stdout = cmd.Stdin }, "true")
			if err == nil {
				if _, err = r.Wait(within(t)); err == nil && strings.Contains(name, "exit") {
					<-c.Done() // the first of them counts
					err = bottle.ErrGone
				}
			}
			if !errors.Is(err, bottle.ErrGone) {
				t.Errorf("the command: %v", err)
			}
			select {
			case <-c.Done():
			case <-within(t).Done():
				t.Error("the stream goes on")
			}
			if !errors.Is(c.Err(), proto.ErrProtocol) {
				t.Errorf("the stream ended with %v", c.Err())
			}
			c.Close()
			if r != nil {
				r.in.Close()
				r.copied.Wait()
			}
		})
	}
}

// TestSilence checks that a guest that answers nothing holds up nobody who closes the
// client or whose context ends.
func TestSilence(t *testing.T) {
	c := lying(t, func(l *liar) {
		for {
			if _, _, _, err := l.next(); err != nil {
				return
			}
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Stats(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("statistics: %v", err)
	}
	if err := c.Freeze(within(t)); !errors.Is(err, bottle.ErrGone) {
		t.Errorf("a call that was given up ends the stream, since nobody knows the guest's state: %v", err)
	}

	c = lying(t, func(l *liar) {
		for {
			kind, ch, _, err := l.next()
			if err != nil {
				return
			}
			if kind == request {
				l.write(frame(reply, 0, ch, []byte("{}")))
			}
		}
	})
	r := start(t, c, "true")
	signalled := make(chan error, 1)
	go func() { signalled <- r.Signal(syscall.SIGTERM, false) }()
	go c.Close()
	if err := <-signalled; !errors.Is(err, bottle.ErrGone) {
		t.Errorf("a signal: %v", err)
	}
	if _, err := r.Wait(within(t)); !errors.Is(err, bottle.ErrGone) {
		t.Errorf("wait: %v", err)
	}
	r.in.Close()
	r.copied.Wait()
}

// TestDeaf checks that a guest that reads nothing holds up no call beyond its context.
func TestDeaf(t *testing.T) {
	for name, call := range map[string]func(context.Context, *Client) error{
		"statistics": func(ctx context.Context, c *Client) error { _, err := c.Stats(ctx); return err },
		"a command": func(ctx context.Context, c *Client) error {
			_, err := c.Start(ctx, silent(t))
			return err
		},
	} {
		c := lying(t, func(*liar) {})
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		if err := call(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		if err := c.Freeze(within(t)); !errors.Is(err, bottle.ErrGone) {
			t.Errorf("after %s: %v", name, err)
		}
	}
}

// silent is a command with nothing to read and nobody to write to.
func silent(t *testing.T) *bottle.Command {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { null.Close() })
	return &bottle.Command{Args: []string{"true"}, Stdin: null, Stdout: null, Stderr: null}
}

// TestUnasked checks that a guest can't fill memory through channels of calls: it may send
// no bytes that nobody asked for, and must end a channel that it has answered.
func TestUnasked(t *testing.T) {
	answering := func(lie func(ch uint32) []byte) *Client {
		return lying(t, func(l *liar) {
			for {
				kind, ch, _, err := l.next()
				if err != nil {
					return
				}
				if kind == request {
					l.write(lie(ch))
				}
			}
		})
	}
	stats := []byte(`{"stats":{}}`)
	c := answering(func(ch uint32) []byte { return append(frame(data, 1, ch, []byte("x")), frame(reply, 0, ch, stats)...) })
	if _, err := c.Stats(within(t)); !errors.Is(err, proto.ErrProtocol) {
		t.Errorf("bytes beside statistics: %v", err)
	}
	c = answering(func(ch uint32) []byte { return append(frame(reply, 0, ch, stats), frame(eof, 2, ch, nil)...) })
	if _, err := c.Stats(within(t)); err != nil && !errors.Is(err, proto.ErrProtocol) {
		t.Errorf("an end of what was not asked for: %v", err)
	}
	<-c.Done()
	for name, answer := range map[string]string{"statistics": `{"stats":{}}`, "a refusal": `{"error":"no"}`} {
		c = answering(func(ch uint32) []byte { return frame(reply, 0, ch, []byte(answer)) })
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		var err error
		if name == "statistics" {
			_, err = c.Stats(ctx)
		} else {
			_, err = c.Start(ctx, silent(t))
		}
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s on a channel that stays open: %v", name, err)
		}
	}
}

// TestUnansweredSize checks that a guest that does not answer a new size keeps no terminal.
func TestUnansweredSize(t *testing.T) {
	c := lying(t, func(l *liar) {
		for {
			kind, ch, _, err := l.next()
			switch {
			case err != nil:
				return
			case kind == request:
				l.write(frame(reply, 0, ch, []byte("{}")))
			case kind == control:
				l.write(frame(eof, 1, ch, nil), frame(exit, 0, ch, []byte("{}")))
			}
		}
	})
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	p, err := c.Start(within(t), &bottle.Command{Args: []string{"true"}, Terminal: true, Stdin: tty, Stdout: tty, Stderr: tty})
	tty.Close()
	if err != nil {
		t.Fatal(err)
	}
	if err := pty.Setsize(master, &pty.Winsize{Rows: 7, Cols: 77}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(within(t)); err != nil {
		t.Fatal(err)
	}
	gone := make(chan error, 1)
	go func() { _, err := master.Read(make([]byte, 1)); gone <- err }()
	select {
	case err := <-gone:
		if err == nil {
			t.Error("the terminal of a command that has ended says something")
		}
	case <-within(t).Done():
		t.Error("the terminal is held after the command's end")
	}
}

// TestLies checks texts and numbers of a guest.
func TestLies(t *testing.T) {
	text := "\x1b[31m" + strings.Repeat("e", 3000)
	b, _ := json.Marshal(proto.Reply{Error: text, Code: proto.CodeNotFound})
	answers := [][]byte{b, []byte(`{"stats":{"memory":-1}}`)}
	c := lying(t, func(l *liar) {
		for {
			kind, ch, _, err := l.next()
			if err != nil || len(answers) == 0 {
				return
			}
			if kind == request {
				l.write(frame(reply, 0, ch, answers[0]), frame(end, 0, ch, nil))
				answers = answers[1:]
			}
		}
	})
	_, err := try(t, c, nil, "true")
	if !errors.Is(err, bottle.ErrNotFound) || strings.Contains(err.Error(), "\x1b") || len(err.Error()) > 1000 {
		t.Errorf("%.200q", err)
	}
	if _, err := c.Stats(within(t)); !errors.Is(err, bottle.ErrGone) {
		t.Errorf("memory below zero: %v", err)
	}
	for _, s := range []proto.Stats{{Memory: -1}, {Refused: -1}, {Disk: -1}, {Memory: 1 << 62, Disk: 1 << 62}} {
		if s.Check() == nil {
			t.Errorf("%+v are statistics", s)
		}
	}
}

// FuzzStream reads anything as a guest's frames.
func FuzzStream(f *testing.F) {
	f.Add(frame(reply, 0, 1, []byte("{}")))
	f.Add(frame(data, 1, 1, []byte("x")))
	f.Add(append(frame(reply, 0, 1, []byte(`{"stats":{}}`)), frame(end, 0, 1, nil)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := lying(t, func(l *liar) {
			if _, _, _, err := l.next(); err == nil {
				l.write(b)
				l.conn.Close()
			}
		})
		_, _ = c.Stats(within(t)) // ends, whatever it returns
		c.Close()
	})
}
