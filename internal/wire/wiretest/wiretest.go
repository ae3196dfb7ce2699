// Package wiretest provides blocking connections over the bottle's side of channels,
// for tests. In a bottle the embedded kernel's sockets do this.
package wiretest

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/wire"
)

// Channels creates channels and returns the host's descriptors and the bottle's side,
// which is served for the life of the process.
func Channels(t testing.TB) (wire.ChannelFiles, *wire.BottleChannels) {
	t.Helper()
	host, bottle, err := wire.NewChannels()
	if err != nil {
		t.Fatal(err)
	}
	defer bottle.Close()
	b, err := wire.NewBottleChannels(bottle)
	if err != nil {
		t.Fatal(err)
	}
	go b.Listen()
	return host, b
}

// Conn is a connection that waits. What it reports is what a program sees:
// io.EOF, ECONNRESET, EPIPE, os.ErrDeadlineExceeded.
type Conn struct {
	Channel *wire.BottleChannel

	mu       sync.Mutex
	changed  chan struct{} // closed at the next change
	deadline time.Time

	use    sync.Mutex // held while Channel is used, once it is open
	closed bool       // Channel may be another connection's
}

var _ net.Conn = (*Conn)(nil)

// Dial opens a connection and waits for the answer until the deadline. If no channel
// is free, it returns nil, nil.
func Dial(l *wire.BottleChannels, to netip.AddrPort, deadline time.Time) (*Conn, error) {
	c := &Conn{changed: make(chan struct{}), deadline: deadline}
	c.mu.Lock()
	c.Channel = l.Open(to, c.wake)
	c.mu.Unlock()
	if c.Channel == nil {
		return nil, nil
	}
	for {
		wait := c.next()
		if answered, open := c.Channel.Answer(); open {
			return c, nil
		} else if answered {
			c.Close()
			return nil, syscall.ECONNREFUSED
		}
		if err := c.wait(wait); err != nil {
			c.abort()
			return nil, err
		}
	}
}

func (c *Conn) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.changed)
	c.changed = make(chan struct{})
}

// next returns a channel that is closed at the next change.
func (c *Conn) next() chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

func (c *Conn) wait(news chan struct{}) error {
	c.mu.Lock()
	left := time.Until(c.deadline)
	if c.deadline.IsZero() {
		left = time.Hour
	}
	c.mu.Unlock()
	t := time.NewTimer(left)
	defer t.Stop()
	select {
	case <-news:
		return nil
	case <-t.C:
		return os.ErrDeadlineExceeded
	}
}

type sliceWriter struct{ to []byte }

func (w *sliceWriter) Write(p []byte) (int, error) {
	n := copy(w.to, p)
	w.to = w.to[n:]
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	for {
		wait := c.next()
		if n, err := c.tryRead(p); n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		if err := c.wait(wait); err != nil {
			return 0, err
		}
	}
}

func (c *Conn) tryRead(p []byte) (int, error) {
	c.use.Lock()
	defer c.use.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	ended := c.Channel.Ended()
	if n, _ := c.Channel.ReadTo(&sliceWriter{p}, false); n > 0 {
		return n, nil
	}
	switch {
	case c.Channel.Reset():
		return 0, syscall.ECONNRESET
	case ended:
		return 0, io.EOF
	}
	return 0, nil
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (total int, err error) {
	for len(p) > 0 {
		wait := c.next()
		n, err := c.tryWrite(p)
		p, total = p[n:], total+n
		if err != nil {
			return total, err
		}
		if n > 0 {
			continue
		}
		if err := c.wait(wait); err != nil {
			return total, err
		}
	}
	return total, nil
}

func (c *Conn) tryWrite(p []byte) (int, error) {
	c.use.Lock()
	defer c.use.Unlock()
	switch {
	case c.closed:
		return 0, net.ErrClosed
	case c.Channel.Reset():
		return 0, syscall.ECONNRESET
	case c.Channel.PeerClosed():
		return 0, syscall.EPIPE
	}
	n, _ := c.Channel.WriteFrom(bytes.NewReader(p), len(p))
	return n, nil
}

// CloseWrite ends the stream to the gateway.
func (c *Conn) CloseWrite() error {
	c.use.Lock()
	defer c.use.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.Channel.CloseWrite()
	return nil
}

// Close implements net.Conn.
func (c *Conn) Close() error { c.end(false); return nil }

// abort closes with a reset.
func (c *Conn) abort() { c.end(true) }

func (c *Conn) end(reset bool) {
	c.use.Lock()
	ended := c.closed
	if !ended {
		c.closed = true
		c.Channel.Close(reset || c.Channel.Unread() > 0)
	}
	c.use.Unlock()
	if !ended {
		c.wake() // wakes waiting readers and writers, which find it closed
	}
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return &net.TCPAddr{} }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return &net.TCPAddr{} }

// SetDeadline implements net.Conn; it holds from the next call on.
func (c *Conn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.SetDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.SetDeadline(t) }
