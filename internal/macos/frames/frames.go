// Package frames carries typed messages over one stream of bytes, such as the standard
// input and output of a program that runs something in a virtual machine. Start reading at
// [Conn].
package frames

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// MaxPayload bounds the payload of one frame, in bytes. An environment and its arguments
// fit: macOS allows both together 1 MiB.
const MaxPayload = 4 << 20

// Chunk is the size of the pieces in which data is sent, in bytes.
const Chunk = 32 << 10

// Kind says what a frame is.
type Kind byte

// Kinds of frames. Those of the first group go to the machine, those of the second come
// from it, and those of the third carry files in either direction.
const (
	Open   Kind = 'o' // what to run, as JSON
	Stdin  Kind = 'i' // standard input
	EOF    Kind = 'e' // standard input has ended
	Size   Kind = 'z' // rows and columns of the terminal, two bytes each
	Signal Kind = 's' // one byte: the number that Linux gives the signal
	Shut   Kind = 'p' // nobody reads the output of this kind, one byte, any more
	Done   Kind = 'd' // the exit code has arrived

	Hello    Kind = 'h' // the first frame of all, as JSON
	Stdout   Kind = '1' // standard output
	Stderr   Kind = '2' // standard error
	Terminal Kind = 't' // output of the terminal
	Credit   Kind = 'c' // four bytes: so much more standard input may be sent
	Exit     Kind = 'x' // four bytes: the exit code
	Fail     Kind = 'f' // why nothing more will come, as text

	Tree    Kind = 'T' // a step with a directory begins, as JSON
	Change  Kind = 'C' // one path that changed, as JSON
	Entries Kind = 'E' // a part of a list of paths, as JSON
	Need    Kind = 'N' // positions in that list whose content is needed, as JSON
	File    Kind = 'G' // the content of this position follows, as JSON
	Data    Kind = 'B' // a piece of a file; empty: its end
	End     Kind = 'Q' // the end of a list
	Result  Kind = 'K' // what became of it, as JSON
)

// Conn sends and receives frames. Send may be called concurrently, Recv from one goroutine
// at a time.
type Conn struct {
	r  *bufio.Reader
	wm sync.Mutex
	w  io.Writer
}

// New returns a Conn that reads r and writes w.
func New(r io.Reader, w io.Writer) *Conn {
	return &Conn{r: bufio.NewReaderSize(r, 2*Chunk), w: w}
}

// head is the kind, and four bytes of length.
const head = 5

// Send writes one frame, and blocks until it is written. A payload over [MaxPayload] is an
// error.
func (c *Conn) Send(k Kind, payload []byte) error {
	if len(payload) > MaxPayload {
		return fmt.Errorf("a message of %d bytes is too long for the machine: at most %d", len(payload), MaxPayload)
	}
	b := make([]byte, head+len(payload))
	b[0] = byte(k)
	binary.BigEndian.PutUint32(b[1:], uint32(len(payload)))
	copy(b[head:], payload)
	c.wm.Lock()
	defer c.wm.Unlock()
	_, err := c.w.Write(b)
	return err
}

// SendJSON sends v as the payload.
func (c *Conn) SendJSON(k Kind, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.Send(k, b)
}

// Recv returns the next frame. The error is [io.EOF] where the stream ends between frames.
func (c *Conn) Recv() (Kind, []byte, error) {
	var h [head]byte
	if _, err := io.ReadFull(c.r, h[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(h[1:])
	if n > MaxPayload {
		return 0, nil, fmt.Errorf("what arrived is no message of carboy's: it begins with %q", h[:])
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(c.r, b); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return Kind(h[0]), b, nil
}

// Receiver returns frames one after the other.
type Receiver interface {
	Recv() (Kind, []byte, error)
}

// Peer sends and receives.
type Peer interface {
	Receiver
	Send(Kind, []byte) error
	SendJSON(Kind, any) error
}

// Expect returns the payload of the next frame, which must be of kind k. A [Fail] becomes an
// error with its text.
func Expect(r Receiver, k Kind) ([]byte, error) {
	have, b, err := r.Recv()
	switch {
	case err != nil:
		return nil, err
	case have == Fail:
		return nil, &FailError{string(b)}
	case have != k:
		return nil, fmt.Errorf("the other side sent %q where %q was due", byte(have), byte(k))
	}
	return b, nil
}

// FailError says why the other side gave up. Its text is not made safe to show.
type FailError struct{ Text string }

func (e *FailError) Error() string { return e.Text }
