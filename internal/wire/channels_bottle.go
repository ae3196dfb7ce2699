package wire

import (
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
)

// BottleChannels is the bottle's side of all channels.
type BottleChannels struct {
	channels
	stop atomic.Bool

	mu   sync.Mutex
	used [ChannelCount]atomic.Pointer[BottleChannel]
}

// NewBottleChannels maps the bottle's side, for the life of the process. The caller keeps
// the descriptors.
func NewBottleChannels(f ChannelFiles) (*BottleChannels, error) {
	own, err := f.dup()
	if err != nil {
		return nil, err
	}
	l, err := mapChannels(own, own.ToBottle, own.ToHost)
	if err != nil {
		_ = own.Close()
		return nil, err
	}
	return &BottleChannels{channels: l}, nil
}

// Listen calls the notification functions of connections. It returns when the process
// ends.
func (l *BottleChannels) Listen() {
	l.mem.toBottle.listen(l.bell, &l.stop, func(i int) {
		if c := l.used[i].Load(); c != nil {
			c.changed()
		}
	})
}

// BottleChannel is the bottle's side of a connection. One goroutine at a time may read
// and one may write; the other methods are safe for concurrent use.
type BottleChannel struct {
	l          *BottleChannels
	i          int
	generation uint32
	me         *channelBottle
	gw         *channelHost
	up, down   []byte
	put        uint32 // this side's positions
	taken      atomic.Uint32
	written    atomic.Uint32
	changed    func()
}

// Open asks for a connection. It returns nil if no channel is free. changed is called
// after each change, from a goroutine that it must not block.
func (l *BottleChannels) Open(to netip.AddrPort, changed func()) *BottleChannel {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.used {
		me, gw := &l.mem.bottle[i], &l.mem.host[i]
		generation := me.generation.Load()
		if l.used[i].Load() != nil || gw.answer.Load() != answerOf(generation, answerDone) {
			continue
		}
		generation = (generation + 1) & maxGeneration
		c := &BottleChannel{l: l, i: i, generation: generation, me: me, gw: gw, up: l.ring(i, 0), down: l.ring(i, 1), changed: changed}
		me.reset()
		me.setDest(to)
		l.used[i].Store(c)
		me.generation.Store(generation)
		c.notify()
		return c
	}
	return nil
}

// LostChannel returns a channel whose gateway is gone: its connection is reset.
func LostChannel() *BottleChannel {
	c := &BottleChannel{me: &channelBottle{}, gw: &channelHost{}}
	c.gw.answer.Store(answerOf(0, answerOpen))
	c.gw.flags.Store(flagEnd | flagGone | flagReset)
	return c
}

func (c *BottleChannel) notify() { c.l.mem.toHost.notify(c.i, c.l.bellFD) }

// Answer reports whether the gateway has answered, and whether it accepted.
func (c *BottleChannel) Answer() (answered, open bool) {
	switch c.gw.answer.Load() {
	case answerOf(c.generation, answerOpen):
		return true, true
	case answerOf(c.generation, answerRefused), answerOf(c.generation, answerDone):
		return true, false
	}
	return false, false
}

// Reset reports whether the gateway reset the connection.
func (c *BottleChannel) Reset() bool { return c.gw.flags.Load()&flagReset != 0 }

// Ended reports whether the gateway sends no more bytes.
func (c *BottleChannel) Ended() bool { return c.gw.flags.Load()&(flagEnd|flagGone) != 0 }

// PeerClosed reports whether the gateway takes no more bytes.
func (c *BottleChannel) PeerClosed() bool { return c.gw.flags.Load()&flagGone != 0 }

// Unread returns how many bytes can be read.
func (c *BottleChannel) Unread() uint32 {
	return min(c.gw.put.Load()-c.taken.Load(), channelRing)
}

// Unsent returns how many bytes the gateway has not taken yet.
func (c *BottleChannel) Unsent() uint32 {
	return min(c.written.Load()-c.gw.taken.Load(), channelRing)
}

// ArmRead returns Unread and re-arms the notification for new bytes.
func (c *BottleChannel) ArmRead() uint32 {
	c.me.wantData.Store(1)
	return c.Unread()
}

// ArmWrite reports whether at least half of the ring is free. If not, it arms the
// notification for room.
func (c *BottleChannel) ArmWrite() bool {
	if channelRing-c.Unsent() >= channelRing/2 {
		return true
	}
	c.me.wantRoom.Store(1)
	return channelRing-c.Unsent() >= channelRing/2
}

// ReadTo writes the available bytes to w, and consumes them unless peek is set. It
// returns 0, nil if there are none.
func (c *BottleChannel) ReadTo(w io.Writer, peek bool) (n int, err error) {
	at := c.taken.Load()
	for left := c.ArmRead(); left > 0 && err == nil; {
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
	if c.gw.wantRoom.Load() != 0 && channelRing-c.Unread() >= channelRing/2 && c.gw.wantRoom.Swap(0) != 0 {
		c.notify()
	}
	return n, err
}

// WriteFrom copies bytes from r while there is room. It returns 0, nil if there is
// none.
func (c *BottleChannel) WriteFrom(r io.Reader, size int) (n int, err error) {
	for n < size && err == nil {
		room := channelRing - c.Unsent()
		if room == 0 {
			c.me.wantRoom.Store(1)
			if room = channelRing - c.Unsent(); room == 0 {
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
				c.notify()
			}
		} else if err == nil {
			break
		}
	}
	return n, err
}

// CloseWrite ends the stream to the gateway.
func (c *BottleChannel) CloseWrite() {
	c.me.flags.Or(flagEnd)
	if c.l != nil {
		c.notify()
	}
}

// Close releases the channel. The gateway still takes what was written, unless reset
// is set. The connection must not be used after it.
func (c *BottleChannel) Close(reset bool) {
	flags := uint32(flagEnd | flagGone)
	if reset {
		flags |= flagReset
	}
	c.me.flags.Or(flags)
	if c.l == nil {
		return // made by LostChannel
	}
	c.l.used[c.i].Store(nil)
	c.notify()
}
