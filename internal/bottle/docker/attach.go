package docker

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/url"
)

// attach returns a stream that writes the standard input of a container's first process and
// reads its standard output. Call it before the container starts.
func (e *engine) attach(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	q := url.Values{"stream": {"1"}, "stdin": {"1"}, "stdout": {"1"}}
	conn, err := e.client.Upgrade(ctx, e.api+container(id, "/attach")+"?"+q.Encode())
	if err != nil {
		return nil, fmt.Errorf("attach to the container: %w", err)
	}
	return &attached{WriteCloser: conn, from: bufio.NewReader(conn)}, nil
}

// attached reads standard output of what the Engine sends: frames, each with the number of
// the stream and its length.
type attached struct {
	io.WriteCloser
	from *bufio.Reader
	left uint32 // bytes of the frame
}

const (
	stdout = 1 // the stream's number
	// maxFrame bounds a frame, bytes; the Engine's own have up to 32 KiB.
	maxFrame = 16 << 20
)

// Read implements io.Reader.
func (a *attached) Read(p []byte) (int, error) {
	for a.left == 0 {
		var head [8]byte // stream, three zeros, length
		if _, err := io.ReadFull(a.from, head[:]); err != nil {
			return 0, err
		}
		if a.left = binary.BigEndian.Uint32(head[4:]); head[0] != stdout || a.left > maxFrame {
			return 0, errors.New("the Engine's stream is not one of standard output")
		}
	}
	n, err := a.from.Read(p[:min(len(p), int(a.left))])
	a.left -= uint32(n)
	return n, err
}
