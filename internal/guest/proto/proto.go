// Package proto is the language between carboy and the program inside a container or
// virtual machine: frames on one byte stream, channels with credit, and messages.
//
// Both sides use it, so it imports next to nothing. Neither side trusts a number of the
// other: each length, channel and count has a bound, and a breach ends the stream. Start
// reading at [Conn]; the messages are in messages.go.
package proto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Bounds of the protocol.
const (
	// MaxPayload bounds one frame, bytes.
	MaxPayload = 32 << 10
	// Window is the credit of a stream at its start and at most, bytes.
	Window = 256 << 10
	// MaxRequest bounds a request, which can span frames; bytes.
	MaxRequest = 4 << 20
	// MaxChannels bounds the channels that are open at a time.
	MaxChannels = 4096
	// Streams is the number of streams of a channel: one to the guest, two from it.
	Streams = 3

	headerSize = 12
)

// The streams of a channel.
const (
	In  = 0 // to the guest
	Out = 1 // from the guest
	Err = 2 // from the guest
)

// kind says what a frame is.
type kind uint8

const (
	_           kind = iota
	kindHello        // both ways, first, on channel 0
	kindRequest      // to the guest; opens the channel
	kindReply        // from the guest; one for each request
	kindData         // bytes of a stream
	kindCredit       // the receiver took bytes of a stream
	kindEOF          // the sender of a stream has no more
	kindStop         // the receiver of a stream wants no more
	kindControl      // to the guest: a signal or size for what runs on the channel
	kindAnswer       // from the guest; one for each control
	kindExit         // from the guest: the command has ended
	kindEnd          // from the guest: the last frame of the channel
	kinds
)

// frame is one unit on the byte stream.
type frame struct {
	kind    kind
	stream  uint8
	more    bool // a request goes on in the next frame
	channel uint32
	payload []byte
}

// ErrProtocol is matched by every breach of the protocol by the other side.
var ErrProtocol = errors.New("guest protocol")

func breach(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// appendFrame encodes f.
func appendFrame(b []byte, f *frame) []byte {
	var more byte
	if f.more {
		more = 1
	}
	b = append(b, byte(f.kind), f.stream, more, 0)
	b = binary.BigEndian.AppendUint32(b, f.channel)
	b = binary.BigEndian.AppendUint32(b, uint32(len(f.payload)))
	return append(b, f.payload...)
}

// readFrame reads one frame. The payload is in buf, which holds MaxPayload bytes, and is
// valid until the next call.
func readFrame(r io.Reader, buf []byte) (frame, error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return frame{}, err
	}
	f := frame{kind: kind(h[0]), stream: h[1], more: h[2] == 1, channel: binary.BigEndian.Uint32(h[4:])}
	size := binary.BigEndian.Uint32(h[8:])
	switch {
	case f.kind == 0 || f.kind >= kinds:
		return f, breach("frame of kind %d", h[0])
	case f.stream >= Streams:
		return f, breach("stream %d", f.stream)
	case h[2] > 1 || h[3] != 0:
		return f, breach("reserved bytes are set")
	case size > MaxPayload:
		return f, breach("frame of %d bytes, more than %d", size, MaxPayload)
	}
	f.payload = buf[:size]
	if _, err := io.ReadFull(r, f.payload); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return f, err
	}
	return f, nil
}
