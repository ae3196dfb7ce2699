package wire

import (
	"errors"
	"io"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func trailing(v uint64) int { return bits.TrailingZeros64(v) }

// HostLanes is the gateway's side of the lanes.
type HostLanes struct {
	lanes
	knock func(*Lane)
	stop  atomic.Bool
	once  sync.Once
	done  chan struct{}

	mu     sync.Mutex
	seen   [LaneCount]uint32 // the last pass
	used   [LaneCount]*Lane
	closed bool // the memory and the descriptors are gone
}

// NewHostLanes takes the gateway's side and the descriptors. knock is called for
// each connection that the bottle asks for, from the one goroutine that listens:
// it must not wait, and sees to it that the lane is accepted or refused.
func NewHostLanes(f LaneFiles, knock func(*Lane)) (*HostLanes, error) {
	m, err := mapLanes(f, f.ToHost, f.ToBottle)
	if err != nil {
		return nil, err
	}
	return &HostLanes{lanes: m, knock: knock, done: make(chan struct{})}, nil
}

// Listen serves the lanes until Close.
func (l *HostLanes) Listen() {
	defer close(l.done)
	l.mem.toHost.listen(l.bell, &l.stop, l.news)
}

// Close ends Listen, which must have been started, and what is open still.
func (l *HostLanes) Close() { l.once.Do(l.close) }

func (l *HostLanes) close() {
	l.stop.Store(true)
	// Not by ringing: the bottle can see to it that nobody hears that.
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
	// Whoever still has a lane finds it closed, or us, before it looks at the
	// memory.
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	_ = l.files.Close()
	_ = unix.Munmap(l.raw)
}

func (l *HostLanes) news(i int) {
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
	pass := bottle.pass.Load() & lanePasses
	if pass == l.seen[i] {
		l.mu.Unlock()
		return
	}
	l.seen[i] = pass
	c = &Lane{
		l: l, i: i, pass: pass, me: me, bottle: bottle, up: l.ring(i, 0), down: l.ring(i, 1),
		readable: make(chan struct{}, 1), writable: make(chan struct{}, 1), closed: make(chan struct{}),
		readBy: newDeadline(), writeBy: newDeadline(),
	}
	c.to = bottle.getDest()
	me.flags.Store(0)
	me.put.Store(0)
	me.taken.Store(0)
	me.wantData.Store(0)
	me.wantRoom.Store(0)
	l.used[i] = c
	l.mu.Unlock()
	if !c.to.IsValid() {
		c.Refuse()
		return
	}
	l.knock(c)
}

// freeLocked gives a lane back when both sides are done with it, once.
func (l *HostLanes) freeLocked(c *Lane) {
	if l.used[c.i] != c || !c.over || c.bottle.flags.Load()&laneGone == 0 {
		return
	}
	l.used[c.i] = nil
	if c.i >= laneKeep && (c.put != 0 || c.taken != 0) {
		_ = unix.Fallocate(l.memFD, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, ringAt(c.i, 0), 2*laneRing)
	}
	c.me.answer.Store(answerOf(c.pass, laneDone))
}

// Lane is a connection from the bottle: a net.Conn whose other side is hostile.
// Its methods are safe for concurrent use.
type Lane struct {
	l        *HostLanes
	i        int
	pass     uint32
	to       netip.AddrPort
	me       *laneHost
	bottle   *laneBottle
	up, down []byte

	readMu  sync.Mutex // held by who reads
	taken   uint32
	writeMu sync.Mutex // held by who writes
	put     uint32
	ended   bool // CloseWrite was called

	readable, writable chan struct{}
	readBy, writeBy    *deadline
	once               sync.Once
	closed             chan struct{}
	over               bool // under l.mu: closed, and nobody uses the memory
}

var _ net.Conn = (*Lane)(nil)

// To is where the bottle wants to connect to.
func (c *Lane) To() netip.AddrPort { return c.to }

func (c *Lane) tell() { c.l.mem.toBottle.tell(c.i, c.l.bellFD) }

// Accept connects it.
func (c *Lane) Accept() { c.answer(laneOpen) }

// Refuse ends it before there was a connection.
func (c *Lane) Refuse() {
	c.answer(laneRefused)
	c.finish(laneReset)
}

func (c *Lane) answer(a uint32) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	select {
	case <-c.closed: // and the memory may be gone
		return
	default:
	}
	c.me.answer.Store(answerOf(c.pass, a))
	c.tell()
}

func (c *Lane) wake() {
	for _, ch := range []chan struct{}{c.readable, c.writable} {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// errLane says that the bottle wrote positions that cannot be.
var errLane = errors.New("wire: the bottle broke the rules of its lane")

func laneError(op string, err error) error { return &net.OpError{Op: op, Net: "wire", Err: err} }

// Read implements net.Conn. What it returns was copied: the bottle can't change
// it any more.
func (c *Lane) Read(p []byte) (int, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	for waited := false; ; waited = true {
		if c.readBy.passed() {
			return 0, laneError("read", os.ErrDeadlineExceeded)
		}
		select {
		case <-c.closed:
			return 0, laneError("read", net.ErrClosed)
		default:
		}
		if len(p) == 0 {
			return 0, nil
		}
		if waited {
			c.me.wantData.Store(1)
		}
		// In this order: what was written before the end is there when the
		// end is.
		flags := c.bottle.flags.Load()
		n := c.bottle.put.Load() - c.taken
		if n > laneRing {
			return 0, laneError("read", errLane)
		}
		if n > 0 {
			return c.take(p, n), nil
		}
		if flags&laneReset != 0 {
			return 0, laneError("read", syscall.ECONNRESET)
		}
		if flags&laneEnd != 0 {
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

func (c *Lane) take(p []byte, n uint32) int {
	n = min(n, uint32(min(len(p), laneRing)))
	m := copy(p[:n], span(c.up, c.taken, n))
	copy(p[m:n], c.up)
	c.taken += n
	c.me.taken.Store(c.taken)
	left := c.bottle.put.Load() - c.taken
	if c.bottle.wantRoom.Load() != 0 && left <= laneRing/2 && c.bottle.wantRoom.Swap(0) != 0 {
		c.tell()
	}
	return int(n)
}

// Write implements net.Conn. It waits for a bottle that does not read.
func (c *Lane) Write(p []byte) (total int, err error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	for waited := false; len(p) > 0; waited = true {
		if c.writeBy.passed() {
			return total, laneError("write", os.ErrDeadlineExceeded)
		}
		select {
		case <-c.closed:
			return total, laneError("write", net.ErrClosed)
		default:
		}
		if c.ended {
			return total, laneError("write", syscall.EPIPE)
		}
		if c.bottle.flags.Load()&(laneGone|laneReset) != 0 {
			return total, laneError("write", syscall.ECONNRESET)
		}
		if waited {
			c.me.wantRoom.Store(1)
		}
		used := c.put - c.bottle.taken.Load()
		if used > laneRing {
			return total, laneError("write", errLane)
		}
		if n := min(laneRing-used, uint32(min(len(p), laneRing))); n > 0 {
			m := copy(span(c.down, c.put, n), p[:n])
			copy(c.down, p[m:n])
			c.put += n
			c.me.put.Store(c.put)
			p, total, waited = p[n:], total+int(n), false
			if c.bottle.wantData.Load() != 0 && c.bottle.wantData.Swap(0) != 0 {
				c.tell()
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

// CloseWrite ends what the bottle reads, after all that was written.
func (c *Lane) CloseWrite() error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	select {
	case <-c.closed:
		return laneError("close", net.ErrClosed)
	default:
	}
	c.ended = true
	c.me.flags.Or(laneEnd)
	c.tell()
	return nil
}

// Close implements net.Conn. Over bytes that nobody read it is a reset.
func (c *Lane) Close() error {
	c.finish(laneEnd)
	return nil
}

// Ended reports whether the bottle has said its last on it, or is gone.
func (c *Lane) Ended() bool {
	if !c.writeMu.TryLock() {
		return false // somebody writes, and is told
	}
	defer c.writeMu.Unlock()
	select {
	case <-c.closed: // and the memory may be gone
		return true
	default:
	}
	return c.bottle.flags.Load()&(laneEnd|laneGone|laneReset) != 0
}

// Abort resets the connection.
func (c *Lane) Abort() { c.finish(laneReset) }

func (c *Lane) finish(flags uint32) {
	c.once.Do(func() {
		close(c.closed)
		// Who reads or writes ends now; the memory is the next
		// connection's when the flags are set.
		c.readMu.Lock()
		c.writeMu.Lock()
		defer c.readMu.Unlock()
		defer c.writeMu.Unlock()
		c.readBy.stop()
		c.writeBy.stop()
		// With the last word the lane may be another connection's, and with
		// that one's the memory gone: so all of it at once.
		c.l.mu.Lock()
		defer c.l.mu.Unlock()
		if c.l.closed {
			return
		}
		if c.bottle.put.Load() != c.taken {
			flags |= laneReset
		}
		c.me.flags.Or(flags | laneGone)
		c.over = true
		c.tell()
		c.l.freeLocked(c)
	})
}

type laneAddr struct{ netip.AddrPort }

func (laneAddr) Network() string { return "tcp" }

// LocalAddr implements net.Conn: what the bottle connected to.
func (c *Lane) LocalAddr() net.Addr { return laneAddr{c.to} }

// RemoteAddr implements net.Conn.
func (c *Lane) RemoteAddr() net.Addr { return laneAddr{} }

// SetDeadline implements net.Conn.
func (c *Lane) SetDeadline(t time.Time) error {
	c.readBy.set(t)
	c.writeBy.set(t)
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *Lane) SetReadDeadline(t time.Time) error { c.readBy.set(t); return nil }

// SetWriteDeadline implements net.Conn.
func (c *Lane) SetWriteDeadline(t time.Time) error { c.writeBy.set(t); return nil }

// deadline is a channel that is closed while a time has passed.
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
