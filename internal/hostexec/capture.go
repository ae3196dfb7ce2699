package hostexec

import (
	"fmt"
	"io"
	"slices"
)

// Bounds on what is kept of one stream, in bytes.
const (
	defaultHead = 1 << 20
	defaultTail = 64 << 10
	MaxKeep     = 256 << 20
)

// Keep says how many bytes of a stream are kept from its start and from its
// end. The zero value means DefaultHead and DefaultTail; the sum is at most
// MaxKeep. Run reads a stream to its end whatever it keeps.
type Keep struct {
	Head int
	Tail int
}

func (k Keep) orDefault() Keep {
	if k == (Keep{}) {
		return Keep{Head: defaultHead, Tail: defaultTail}
	}
	return k
}

func (k Keep) valid() bool {
	return k.Head >= 0 && k.Tail >= 0 && k.Head <= MaxKeep && k.Tail <= MaxKeep-k.Head
}

// Capture holds the kept part of one stream: its first bytes, its last bytes,
// and the number of bytes between them that were discarded.
type Capture struct {
	Head    []byte
	Tail    []byte
	Omitted int64
	Total   int64
}

// truncated reports whether any bytes were discarded.
func (c *Capture) truncated() bool { return c.Omitted > 0 }

// Complete returns the whole stream, or ErrTruncated. Code that parses output
// must use it: the marker that Text inserts is for people.
func (c *Capture) Complete() ([]byte, error) {
	if c.Omitted > 0 {
		return nil, fmt.Errorf("%w: %d of %d bytes kept", ErrTruncated, len(c.Head)+len(c.Tail), c.Total)
	}
	return append(c.Head[:len(c.Head):len(c.Head)], c.Tail...), nil
}

// Text returns the stream for people, with a marker line where bytes were
// discarded. It is not safe for a terminal: the bytes are the program's own.
func (c *Capture) Text() []byte {
	out := append([]byte(nil), c.Head...)
	if c.Omitted > 0 {
		out = fmt.Appendf(out, "\n[… %d bytes omitted …]\n", c.Omitted)
	}
	return append(out, c.Tail...)
}

// end returns the last bytes, at most a bounded number.
func (c *Capture) end() []byte {
	if len(c.Tail) > 0 {
		return c.Tail
	}
	return c.Head
}

// capture is a Writer of constant memory: it stops growing once Head and the
// ring of Tail bytes are full.
type capture struct {
	keep  Keep
	head  []byte
	ring  []byte
	next  int // where the next byte goes once the ring is full
	total int64
}

func (c *capture) Write(p []byte) (int, error) {
	n := len(p)
	c.total += int64(n)
	if room := c.keep.Head - len(c.head); room > 0 {
		k := min(room, len(p))
		if k > cap(c.head)-len(c.head) { // append would grow a large slice in small steps, copying it each time
			c.head = slices.Grow(c.head, max(k, min(room, len(c.head))))
		}
		c.head = append(c.head, p[:k]...)
		p = p[k:]
	}
	if len(p) > c.keep.Tail { // only the end can be kept
		p = p[len(p)-c.keep.Tail:]
	}
	for len(p) > 0 {
		if len(c.ring) < c.keep.Tail {
			k := min(c.keep.Tail-len(c.ring), len(p))
			c.ring = append(c.ring, p[:k]...)
			p = p[k:]
			continue
		}
		k := copy(c.ring[c.next:], p)
		c.next = (c.next + k) % len(c.ring)
		p = p[k:]
	}
	return n, nil
}

func (c *capture) result() Capture {
	tail := make([]byte, 0, len(c.ring))
	tail = append(tail, c.ring[c.next:]...)
	tail = append(tail, c.ring[:c.next]...)
	return Capture{
		Head: c.head, Tail: tail, Total: c.total,
		Omitted: c.total - int64(len(c.head)) - int64(len(tail)),
	}
}

// drain reads r to its end through one buffer.
func (c *capture) drain(r io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		_, _ = c.Write(buf[:n])
		if err != nil {
			return
		}
	}
}
