package proto

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"sync"
)

// Conn is one end of the byte stream. All methods are safe for concurrent use, except
// that Serve is called once.
type Conn struct {
	rw   io.ReadWriteCloser
	host bool // this end is the host's

	wmu sync.Mutex
	out []byte // the frame that is being written

	// openMu orders the first frames of channels by their numbers.
	openMu sync.Mutex

	mu       sync.Mutex
	channels map[uint32]*Channel
	last     uint32 // the highest channel that was opened
	err      error
	dead     bool
	done     chan struct{}
}

// NewConn returns an end of rw, which it owns. host is true on the host's side.
func NewConn(rw io.ReadWriteCloser, host bool) *Conn {
	return &Conn{rw: rw, host: host, channels: map[uint32]*Channel{}, done: make(chan struct{})}
}

// Done is closed when the stream has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns why the stream ended, or nil while it has not.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the stream and every channel.
func (c *Conn) Close() error {
	c.fail(io.ErrClosedPipe)
	return nil
}

func (c *Conn) fail(err error) {
	c.mu.Lock()
	if c.dead {
		c.mu.Unlock()
		return
	}
	c.dead, c.err = true, err
	open := c.channels
	c.channels = map[uint32]*Channel{}
	c.mu.Unlock()
	_ = c.rw.Close()
	for _, ch := range open {
		ch.abort()
	}
	close(c.done)
}

func (c *Conn) send(f *frame) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.out = appendFrame(c.out[:0], f)
	if _, err := c.rw.Write(c.out); err != nil {
		c.fail(err)
		return err
	}
	return nil
}

func (c *Conn) sendJSON(k kind, channel uint32, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > MaxPayload {
		return breach("message of %d bytes", len(b))
	}
	return c.send(&frame{kind: k, channel: channel, payload: b})
}

func (c *Conn) sendParts(k kind, channel uint32, b []byte) error {
	for {
		n := min(len(b), MaxPayload)
		if err := c.send(&frame{kind: k, channel: channel, more: n < len(b), payload: b[:n]}); err != nil {
			return err
		}
		if b = b[n:]; len(b) == 0 {
			return nil
		}
	}
}

// Greet opens the stream from the host's side and returns the guest's checked answer.
func (c *Conn) Greet(nonce []byte) (Hello, error) {
	var h Hello
	if err := c.sendJSON(kindHello, 0, Opening{Version, nonce}); err != nil {
		return h, err
	}
	if err := c.readHello(&h); err != nil {
		return h, err
	}
	return h, h.Check(nonce)
}

// Answer waits for the host's opening and answers with h.
func (c *Conn) Answer(h Hello) error {
	var o Opening
	if err := c.readHello(&o); err != nil {
		return err
	}
	if o.Version != Version || len(o.Nonce) != NonceSize {
		return breach("version %d, not %d", o.Version, Version)
	}
	h.Version, h.Nonce = Version, o.Nonce
	return c.sendJSON(kindHello, 0, h)
}

func (c *Conn) readHello(v any) error {
	f, err := readFrame(c.rw, make([]byte, MaxPayload))
	if err != nil {
		return err
	}
	if f.kind != kindHello || f.channel != 0 || f.more {
		return breach("the stream does not begin with a hello")
	}
	if err := json.Unmarshal(f.payload, v); err != nil {
		return breach("hello: %v", err)
	}
	return nil
}

// Serve reads frames until the stream ends, and returns why. On the guest's side, accept
// is called for each request, and must return soon; on the host's it is nil.
func (c *Conn) Serve(accept func(*Channel, []byte)) error {
	r := bufio.NewReaderSize(c.rw, MaxPayload+headerSize)
	buf := make([]byte, MaxPayload)
	for {
		f, err := readFrame(r, buf)
		if err == nil {
			err = c.take(&f, accept)
		}
		if err != nil {
			c.fail(err)
			return c.Err()
		}
	}
}

// fromGuest and fromHost say which kinds each side may send after the hello.
var (
	fromGuest = [kinds]bool{kindReply: true, kindData: true, kindCredit: true, kindEOF: true, kindStop: true, kindAnswer: true, kindExit: true, kindEnd: true}
	fromHost  = [kinds]bool{kindRequest: true, kindData: true, kindCredit: true, kindEOF: true, kindStop: true, kindControl: true}
)

func (c *Conn) take(f *frame, accept func(*Channel, []byte)) error {
	allowed := &fromHost
	if c.host {
		allowed = &fromGuest
	}
	if !allowed[f.kind] {
		return breach("frame of kind %d from this side", f.kind)
	}
	if f.more && f.kind != kindRequest {
		return breach("a frame of kind %d goes on", f.kind)
	}
	if f.kind == kindRequest {
		return c.request(f, accept)
	}
	c.mu.Lock()
	ch, last := c.channels[f.channel], c.last
	c.mu.Unlock()
	if ch == nil {
		if !c.host && f.channel <= last {
			return nil // it crossed the channel's end
		}
		return breach("frame of kind %d on channel %d, which is not open", f.kind, f.channel)
	}
	return ch.take(f)
}

func (c *Conn) request(f *frame, accept func(*Channel, []byte)) error {
	c.mu.Lock()
	ch := c.channels[f.channel]
	if ch == nil {
		if f.channel <= c.last || len(c.channels) >= MaxChannels {
			c.mu.Unlock()
			return breach("channel %d cannot be opened", f.channel)
		}
		ch = newChannel(c, f.channel, In)
		c.channels[f.channel], c.last = ch, f.channel
	}
	c.mu.Unlock()
	if ch.asked {
		return breach("a second request on channel %d", f.channel)
	}
	if len(ch.text)+len(f.payload) > MaxRequest {
		return breach("a request of more than %d bytes", MaxRequest)
	}
	ch.text = append(ch.text, f.payload...)
	if !f.more {
		text := ch.text
		ch.asked, ch.text = true, nil
		accept(ch, text)
	}
	return nil
}

// ErrTooLong means that a request does not fit; nothing was sent.
var ErrTooLong = errors.New("the command is too long")

// Open sends a request on a new channel, from the host's side.
func (c *Conn) Open(r *Request) (*Channel, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if len(b) > MaxRequest {
		return nil, ErrTooLong
	}
	c.openMu.Lock()
	defer c.openMu.Unlock()
	c.mu.Lock()
	if c.dead {
		defer c.mu.Unlock()
		return nil, c.err
	}
	if len(c.channels) >= MaxChannels || c.last == 1<<32-1 {
		c.mu.Unlock()
		return nil, errors.New("too many commands at a time")
	}
	c.last++
	ch := newChannel(c, c.last, r.Op.output()...)
	c.channels[ch.id] = ch
	c.mu.Unlock()
	return ch, c.sendParts(kindRequest, ch.id, b)
}

func (c *Conn) forget(ch *Channel) {
	c.mu.Lock()
	delete(c.channels, ch.id)
	c.mu.Unlock()
}
