package proto

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"sync"
)

// Reader is the receiving end of a stream. It holds at most Window bytes, however they were
// cut into frames.
type Reader struct {
	ch     *Channel
	stream uint8

	mu      sync.Mutex
	wake    *sync.Cond
	held    bytes.Buffer
	room    int // bytes that the sender may still send
	taken   int // bytes read and not yet given back as credit
	eof     bool
	closed  bool // by this side
	aborted bool
}

func newReader(ch *Channel, stream uint8) *Reader {
	r := &Reader{ch: ch, stream: stream, room: Window}
	r.wake = sync.NewCond(&r.mu)
	return r
}

// push takes a frame's bytes, or refuses them.
func (r *Reader) push(b []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.eof:
		return breach("bytes after the end of stream %d", r.stream)
	case len(b) == 0:
		return breach("an empty frame on stream %d", r.stream)
	case len(b) > r.room:
		return breach("%d bytes on stream %d, where %d are allowed", len(b), r.stream, r.room)
	}
	r.room -= len(b)
	if r.closed || r.aborted {
		return nil // without new credit the sender soon stops
	}
	r.held.Write(b)
	r.wake.Broadcast()
	return nil
}

func (r *Reader) finish() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.eof = true
	r.wake.Broadcast()
	return nil
}

func (r *Reader) abort() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.aborted, r.held = true, bytes.Buffer{}
	r.wake.Broadcast()
}

// Read blocks until there are bytes. It returns io.EOF at the end, and ErrEnded when the
// byte stream has ended before.
func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	r.mu.Lock()
	for r.held.Len() == 0 && !r.eof && !r.closed && !r.aborted {
		r.wake.Wait()
	}
	if r.held.Len() == 0 {
		defer r.mu.Unlock()
		if r.eof {
			return 0, io.EOF
		}
		return 0, ErrEnded
	}
	n, _ := r.held.Read(p)
	if r.held.Len() == 0 {
		r.held = bytes.Buffer{} // an idle stream holds no memory
	}
	r.taken += n
	give := 0
	if r.taken >= Window/4 || r.held.Len() == 0 {
		give, r.taken = r.taken, 0
		r.room += give
	}
	over := r.eof
	r.mu.Unlock()
	if give > 0 && !over {
		// An error ends the whole stream; what was read is good all the same.
		_ = r.ch.conn.send(&frame{kind: kindCredit, stream: r.stream, channel: r.ch.id, payload: binary.BigEndian.AppendUint32(nil, uint32(give))})
	}
	return n, nil
}

// Close says that nobody reads any more: the sender's writes fail.
func (r *Reader) Close() error {
	r.mu.Lock()
	tell := !r.closed && !r.eof && !r.aborted
	r.closed, r.held = true, bytes.Buffer{}
	r.wake.Broadcast()
	r.mu.Unlock()
	if !tell {
		return nil
	}
	return r.ch.conn.send(&frame{kind: kindStop, stream: r.stream, channel: r.ch.id})
}

// Writer is the sending end of a stream.
type Writer struct {
	ch     *Channel
	stream uint8

	mu      sync.Mutex
	wake    *sync.Cond
	left    int // credit
	stopped bool
	closed  bool
	over    chan struct{} // closed when nobody reads any more
}

func newWriter(ch *Channel, stream uint8) *Writer {
	w := &Writer{ch: ch, stream: stream, left: Window, over: make(chan struct{})}
	w.wake = sync.NewCond(&w.mu)
	return w
}

// Stopped is closed when nobody reads the stream any more.
func (w *Writer) Stopped() <-chan struct{} { return w.over }

// ErrStopped means that nobody reads the stream any more.
var ErrStopped = errors.New("nobody reads the stream")

func (w *Writer) credit(b []byte) error {
	n := binary.BigEndian.Uint32(b)
	w.mu.Lock()
	defer w.mu.Unlock()
	if n == 0 || n > Window || w.left+int(n) > Window {
		return breach("credit of %d bytes beside %d", n, w.left)
	}
	w.left += int(n)
	w.wake.Broadcast()
	return nil
}

func (w *Writer) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped {
		w.stopped = true
		close(w.over)
	}
	w.wake.Broadcast()
}

// Write blocks until the receiver has room. It returns ErrStopped when nobody reads.
func (w *Writer) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		w.mu.Lock()
		for w.left == 0 && !w.stopped && !w.closed {
			w.wake.Wait()
		}
		if w.stopped || w.closed {
			w.mu.Unlock()
			return done, ErrStopped
		}
		n := min(len(p)-done, w.left, MaxPayload)
		w.left -= n
		w.mu.Unlock()
		if err := w.ch.conn.send(&frame{kind: kindData, stream: w.stream, channel: w.ch.id, payload: p[done : done+n]}); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// Close says that there is no more.
func (w *Writer) Close() error {
	w.mu.Lock()
	tell := !w.closed && !w.stopped
	w.closed = true
	w.wake.Broadcast()
	w.mu.Unlock()
	if !tell {
		return nil
	}
	return w.ch.conn.send(&frame{kind: kindEOF, stream: w.stream, channel: w.ch.id})
}
