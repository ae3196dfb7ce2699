package wire

import (
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
)

// BottleLanes is the bottle's side of the lanes.
type BottleLanes struct {
	lanes
	stop atomic.Bool

	mu   sync.Mutex
	used [LaneCount]atomic.Pointer[BottleLane]
}

// NewBottleLanes takes the bottle's side, for as long as the process lives. The
// descriptors stay the caller's.
func NewBottleLanes(f LaneFiles) (*BottleLanes, error) {
	own, err := f.Dup()
	if err != nil {
		return nil, err
	}
	l, err := mapLanes(own, own.ToBottle, own.ToHost)
	if err != nil {
		_ = own.Close()
		return nil, err
	}
	return &BottleLanes{lanes: l}, nil
}

// Listen tells connections of their news. It returns when the process ends.
func (l *BottleLanes) Listen() {
	l.mem.toBottle.listen(l.bell, &l.stop, func(i int) {
		if c := l.used[i].Load(); c != nil {
			c.news()
		}
	})
}

// BottleLane is a connection as the bottle sees it. One goroutine at a time
// reads, one writes; the other methods are safe for concurrent use.
type BottleLane struct {
	l        *BottleLanes
	i        int
	pass     uint32
	me       *laneBottle
	gw       *laneHost
	up, down []byte
	put      uint32 // positions of ours
	taken    atomic.Uint32
	written  atomic.Uint32
	news     func()
}

// Open asks for a connection. It returns nil when there is no lane for it. news
// is called for each change, from a goroutine that it must not hold up.
func (l *BottleLanes) Open(to netip.AddrPort, news func()) *BottleLane {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.used {
		me, gw := &l.mem.bottle[i], &l.mem.host[i]
		pass := me.pass.Load()
		if l.used[i].Load() != nil || gw.answer.Load() != answerOf(pass, laneDone) {
			continue
		}
		pass = (pass + 1) & lanePasses
		c := &BottleLane{l: l, i: i, pass: pass, me: me, gw: gw, up: l.ring(i, 0), down: l.ring(i, 1), news: news}
		me.flags.Store(0)
		me.put.Store(0)
		me.taken.Store(0)
		me.wantData.Store(0)
		me.wantRoom.Store(0)
		me.setDest(to)
		l.used[i].Store(c)
		me.pass.Store(pass)
		c.tell()
		return c
	}
	return nil
}

// LostLane is a lane whose gateway is gone: what was connected through it has been
// broken off.
func LostLane() *BottleLane {
	c := &BottleLane{me: &laneBottle{}, gw: &laneHost{}}
	c.gw.answer.Store(answerOf(0, laneOpen))
	c.gw.flags.Store(laneEnd | laneGone | laneReset)
	return c
}

func (c *BottleLane) tell() { c.l.mem.toHost.tell(c.i, c.l.bellFD) }

// Answer says whether the gateway has answered, and what.
func (c *BottleLane) Answer() (answered, open bool) {
	switch c.gw.answer.Load() {
	case answerOf(c.pass, laneOpen):
		return true, true
	case answerOf(c.pass, laneRefused), answerOf(c.pass, laneDone):
		return true, false
	}
	return false, false
}

// Reset reports whether the gateway broke the connection off.
func (c *BottleLane) Reset() bool { return c.gw.flags.Load()&laneReset != 0 }

// Ended reports whether no more bytes come.
func (c *BottleLane) Ended() bool { return c.gw.flags.Load()&(laneEnd|laneGone) != 0 }

// Deaf reports whether nobody takes bytes any more.
func (c *BottleLane) Deaf() bool { return c.gw.flags.Load()&laneGone != 0 }

// Unread is how many bytes wait to be read.
func (c *BottleLane) Unread() uint32 {
	return min(c.gw.put.Load()-c.taken.Load(), laneRing)
}

// Unsent is how many bytes the gateway has not taken.
func (c *BottleLane) Unsent() uint32 {
	return min(c.written.Load()-c.gw.taken.Load(), laneRing)
}

// Readable is Unread, and makes sure that the next byte is news.
func (c *BottleLane) Readable() uint32 {
	c.me.wantData.Store(1)
	return c.Unread()
}

// Writable reports whether there is room enough for a write to be worth its
// while, and makes sure that there being some is news.
func (c *BottleLane) Writable() bool {
	if laneRing-c.Unsent() >= laneRing/2 {
		return true
	}
	c.me.wantRoom.Store(1)
	return laneRing-c.Unsent() >= laneRing/2
}

// ReadTo writes what is there to w; peek leaves it there. It returns 0, nil when
// there is nothing.
func (c *BottleLane) ReadTo(w io.Writer, peek bool) (n int, err error) {
	at := c.taken.Load()
	for left := c.Readable(); left > 0 && err == nil; {
		m := 0
		m, err = w.Write(span(c.down, at, left))
		at += uint32(m)
		n += m
		left -= uint32(m)
	}
	if peek || n == 0 {
		return n, err
	}
	c.taken.Store(at)
	c.me.taken.Store(at)
	if c.gw.wantRoom.Load() != 0 && laneRing-c.Unread() >= laneRing/2 && c.gw.wantRoom.Swap(0) != 0 {
		c.tell()
	}
	return n, err
}

// WriteFrom takes bytes from r while there is room. It returns 0, nil when there
// is none.
func (c *BottleLane) WriteFrom(r io.Reader, size int) (n int, err error) {
	for n < size && err == nil {
		room := laneRing - c.Unsent()
		if room == 0 {
			c.me.wantRoom.Store(1)
			if room = laneRing - c.Unsent(); room == 0 {
				break
			}
		}
		m := 0
		m, err = r.Read(span(c.up, c.put, min(room, uint32(size-n))))
		if m > 0 {
			c.put += uint32(m)
			c.written.Store(c.put)
			c.me.put.Store(c.put)
			n += m
			if c.gw.wantData.Load() != 0 && c.gw.wantData.Swap(0) != 0 {
				c.tell()
			}
		} else if err == nil {
			break
		}
	}
	return n, err
}

// CloseWrite says that no more bytes follow.
func (c *BottleLane) CloseWrite() {
	c.me.flags.Or(laneEnd)
	if c.l != nil {
		c.tell()
	}
}

// Close gives the lane back. What was written is still taken; with reset, not.
// Nothing of the connection may be used after it.
func (c *BottleLane) Close(reset bool) {
	flags := uint32(laneEnd | laneGone)
	if reset {
		flags |= laneReset
	}
	c.me.flags.Or(flags)
	if c.l == nil {
		return // LostLane
	}
	c.l.used[c.i].Store(nil)
	c.tell()
}
