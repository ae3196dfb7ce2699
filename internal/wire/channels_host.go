package wire

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// HostChannels is the gateway's side of all channels.
type HostChannels struct {
	channels
	open func(*Channel)
	stop atomic.Bool
	once sync.Once
	done chan struct{}

	mu     sync.Mutex
	last   [ChannelCount]uint32 // the generation of the last connection
	used   [ChannelCount]*Channel
	closed bool // the memory is unmapped, the descriptors are closed
}

// NewHostChannels maps the gateway's side and takes ownership of the descriptors. open
// is called for each connection that the bottle asks for, from the goroutine that
// listens: it must not block, and must have the channel accepted or refused.
func NewHostChannels(f ChannelFiles, open func(*Channel)) (*HostChannels, error) {
	m, err := mapChannels(f, f.ToHost, f.ToBottle)
	if err != nil {
		return nil, err
	}
	return &HostChannels{channels: m, open: open, done: make(chan struct{})}, nil
}

// Listen serves the channels until Close.
func (l *HostChannels) Listen() {
	defer close(l.done)
	l.mem.toHost.listen(l.bell, &l.stop, l.changed)
}

// Close ends Listen, which must have been started, and resets all connections.
func (l *HostChannels) Close() { l.once.Do(l.close) }

func (l *HostChannels) close() {
	l.stop.Store(true)
	// Ringing the doorbell would not do: the bottle can suppress it.
	_ = l.own.Close()
	<-l.done
	for i := range l.used {
		l.mu.Lock()
		c := l.used[i]
		l.mu.Unlock()
		if c != nil {
			c.Abort()
		}
	}
	// Other goroutines check closed, or l.closed, before they touch the memory.
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	_ = l.files.Close()
	_ = unix.Munmap(l.raw)
}

func (l *HostChannels) changed(i int) {
	l.mu.Lock()
	c := l.used[i]
	me, bottle := &l.mem.host[i], &l.mem.bottle[i]
	if c != nil {
		l.mu.Unlock()
		c.wake()
		l.mu.Lock()
		l.freeLocked(c)
		l.mu.Unlock()
		return
	}
	generation := bottle.generation.Load() & maxGeneration
	if generation == l.last[i] {
		l.mu.Unlock()
		return
	}
	l.last[i] = generation
	c = &Channel{
		l: l, i: i, generation: generation, me: me, bottle: bottle, up: l.ring(i, 0), down: l.ring(i, 1),
		readable: make(chan struct{}, 1), writable: make(chan struct{}, 1), closed: make(chan struct{}),
		readBy: newDeadline(), writeBy: newDeadline(),
	}
	c.to = bottle.getDest()
	me.reset()
	l.used[i] = c
	l.mu.Unlock()
	if !c.to.IsValid() {
		c.Refuse()
		return
	}
	l.open(c)
}

// freeLocked releases a channel once both sides are done with it.
func (l *HostChannels) freeLocked(c *Channel) {
	if l.used[c.i] != c || !c.done || c.bottle.flags.Load()&flagGone == 0 {
		return
	}
	l.used[c.i] = nil
	if c.i >= channelKeep && (c.put != 0 || c.taken != 0) {
		_ = unix.Fallocate(l.memFD, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, ringAt(c.i, 0), 2*channelRing)
	}
	c.me.answer.Store(answerOf(c.generation, answerDone))
}

// Channel is a connection from the bottle: a net.Conn whose other side is hostile. Its
// methods are safe for concurrent use.
type Channel struct {
	l          *HostChannels
	i          int
	generation uint32
	to         netip.AddrPort
	me         *channelHost
	bottle     *channelBottle
	up, down   []byte

	readMu  sync.Mutex // held while reading
	taken   uint32
	writeMu sync.Mutex // held while writing
	put     uint32
	ended   bool // CloseWrite was called

	readable, writable chan struct{}
	readBy, writeBy    *deadline
	once               sync.Once
	closed             chan struct{}
	done               bool // guarded by l.mu: closed, and nobody uses the memory
}

var _ net.Conn = (*Channel)(nil)

// To returns the address that the bottle wants to connect to.
func (c *Channel) To() netip.AddrPort { return c.to }

func (c *Channel) notify() { c.l.mem.toBottle.notify(c.i, c.l.bellFD) }

// Accept accepts the connection.
func (c *Channel) Accept() { c.answer(answerOpen) }

// Refuse refuses the connection.
func (c *Channel) Refuse() {
	c.answer(answerRefused)
	c.finish(flagReset)
}

func (c *Channel) answer(a uint32) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	select {
	case <-c.closed: // the memory may be unmapped
		return
	default:
	}
	c.me.answer.Store(answerOf(c.generation, a))
	c.notify()
}

func (c *Channel) wake() {
	for _, ch := range []chan struct{}{c.readable, c.writable} {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// errChannel reports positions that are impossible.
var errChannel = errors.New("wire: the bottle broke the rules of its channel")

func channelError(op string, err error) error { return &net.OpError{Op: op, Net: "wire", Err: err} }

// Read implements net.Conn. What it returns was copied: the bottle can't change
// it any more.
func (c *Channel) Read(p []byte) (int, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	for waited := false; ; waited = true {
		if c.readBy.passed() {
			return 0, channelError("read", os.ErrDeadlineExceeded)
		}
		select {
		case <-c.closed:
			return 0, channelError("read", net.ErrClosed)
		default:
		}
		if len(p) == 0 {
			return 0, nil
		}
		if waited {
			c.me.wantData.Store(1)
		}
		// In this order: bytes written before the end are visible once the end is.
		flags := c.bottle.flags.Load()
		n := c.bottle.put.Load() - c.taken
		if n > channelRing {
			return 0, channelError("read", errChannel)
		}
		if n > 0 {
			return c.take(p, n), nil
		}
		if flags&flagReset != 0 {
			return 0, channelError("read", syscall.ECONNRESET)
		}
		if flags&flagEnd != 0 {
			return 0, io.EOF
		}
		if !waited {
			continue
		}
		select {
		case <-c.readable:
		case <-c.readBy.wait():
		case <-c.closed:
		}
	}
}

func (c *Channel) take(p []byte, n uint32) int {
	n = min(n, uint32(min(len(p), channelRing)))
	m := copy(p[:n], span(c.up, c.taken, n))
	copy(p[m:n], c.up)
	c.taken += n
	c.me.taken.Store(c.taken)
	left := c.bottle.put.Load() - c.taken
	if c.bottle.wantRoom.Load() != 0 && left <= channelRing/2 && c.bottle.wantRoom.Swap(0) != 0 {
		c.notify()
	}
	return int(n)
}

// Write implements net.Conn. It waits for a bottle that does not read.
func (c *Channel) Write(p []byte) (total int, err error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	for waited := false; len(p) > 0; waited = true {
		if c.writeBy.passed() {
			return total, channelError("write", os.ErrDeadlineExceeded)
		}
		select {
		case <-c.closed:
			return total, channelError("write", net.ErrClosed)
		default:
		}
		if c.ended {
			return total, channelError("write", syscall.EPIPE)
		}
		if c.bottle.flags.Load()&(flagGone|flagReset) != 0 {
			return total, channelError("write", syscall.ECONNRESET)
		}
		if waited {
			c.me.wantRoom.Store(1)
		}
		used := c.put - c.bottle.taken.Load()
		if used > channelRing {
			return total, channelError("write", errChannel)
		}
		if n := min(channelRing-used, uint32(min(len(p), channelRing))); n > 0 {
			m := copy(span(c.down, c.put, n), p[:n])
			copy(c.down, p[m:n])
			c.put += n
			c.me.put.Store(c.put)
			p, total, waited = p[n:], total+int(n), false
			if c.bottle.wantData.Load() != 0 && c.bottle.wantData.Swap(0) != 0 {
				c.notify()
			}
			continue
		}
		if !waited {
			continue
		}
		select {
		case <-c.writable:
		case <-c.writeBy.wait():
		case <-c.closed:
		}
	}
	return total, nil
}

// CloseWrite ends the stream to the bottle, after all that was written.
func (c *Channel) CloseWrite() error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	select {
	case <-c.closed:
		return channelError("close", net.ErrClosed)
	default:
	}
	c.ended = true
	c.me.flags.Or(flagEnd)
	c.notify()
	return nil
}

// Close implements net.Conn. Over bytes that nobody read it is a reset.
func (c *Channel) Close() error {
	c.finish(flagEnd)
	return nil
}

// Ended reports whether the bottle has ended its side or is gone.
func (c *Channel) Ended() bool {
	if !c.writeMu.TryLock() {
		return false // a writer is active and will notice
	}
	defer c.writeMu.Unlock()
	select {
	case <-c.closed: // the memory may be unmapped
		return true
	default:
	}
	return c.bottle.flags.Load()&(flagEnd|flagGone|flagReset) != 0
}

// Abort resets the connection.
func (c *Channel) Abort() { c.finish(flagReset) }

func (c *Channel) finish(flags uint32) {
	c.once.Do(func() {
		close(c.closed)
		// Readers and writers end now. The flags come after them, because the next
		// connection may use the memory once they are set.
		c.readMu.Lock()
		c.writeMu.Lock()
		defer c.readMu.Unlock()
		defer c.writeMu.Unlock()
		c.readBy.stop()
		c.writeBy.stop()
		// Once over is set, the channel may be given to another connection, and the
		// memory unmapped. So do everything under the lock.
		c.l.mu.Lock()
		defer c.l.mu.Unlock()
		if c.l.closed {
			return
		}
		if c.bottle.put.Load() != c.taken {
			flags |= flagReset
		}
		c.me.flags.Or(flags | flagGone)
		c.done = true
		c.notify()
		c.l.freeLocked(c)
	})
}

type channelAddr struct{ netip.AddrPort }

func (channelAddr) Network() string { return "tcp" }

// LocalAddr implements net.Conn: what the bottle connected to.
func (c *Channel) LocalAddr() net.Addr { return channelAddr{c.to} }

// RemoteAddr implements net.Conn.
func (c *Channel) RemoteAddr() net.Addr { return channelAddr{} }

// SetDeadline implements net.Conn.
func (c *Channel) SetDeadline(t time.Time) error {
	c.readBy.set(t)
	c.writeBy.set(t)
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *Channel) SetReadDeadline(t time.Time) error { c.readBy.set(t); return nil }

// SetWriteDeadline implements net.Conn.
func (c *Channel) SetWriteDeadline(t time.Time) error { c.writeBy.set(t); return nil }

// deadline is a channel that is closed once a time has passed.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	ch    chan struct{}
}

func newDeadline() *deadline { return &deadline{ch: make(chan struct{})} }

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.ch // the timer's function is about to close it
	}
	d.timer = nil
	fired := false
	select {
	case <-d.ch:
		fired = true
	default:
	}
	if t.IsZero() || time.Until(t) > 0 {
		if fired {
			d.ch = make(chan struct{})
		}
		if !t.IsZero() {
			ch := d.ch
			d.timer = time.AfterFunc(time.Until(t), func() { close(ch) })
		}
		return
	}
	if !fired {
		close(d.ch)
	}
}

func (d *deadline) stop() { d.set(time.Time{}) }

func (d *deadline) wait() chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ch
}

func (d *deadline) passed() bool {
	select {
	case <-d.wait():
		return true
	default:
		return false
	}
}
