package gateway

import (
	"encoding/binary"
	"errors"
	"io"
	"mime"
	"strings"

	"github.com/carboy/carboy/internal/scan"
)

// A streaming gRPC client waits for the answer to one message before it sends the
// next. Bytes that the scanner holds back at the end of a message, because a match
// could still follow, would be held for ever. So each message is scanned as a stream
// of its own, like a WebSocket message.

// isGRPC reports whether a body of this type, if its length is not known, is a stream of
// gRPC messages.
func isGRPC(contentType string) bool {
	t, _, err := mime.ParseMediaType(contentType)
	return err == nil && (t == "application/grpc" || strings.HasPrefix(t, "application/grpc+"))
}

// codedScan is a messageScan of messages that may be encoded.
type codedScan interface {
	messageScan
	// Coded says how the next message is encoded.
	Coded(codings []string)
}

// grpcHead is the size of the head of a message: the compression flag and the length.
const grpcHead = 5

var errNoGRPC = errors.New("the body is said to be of gRPC and is not")

// grpcBody reads a stream of gRPC messages through a scanner.
type grpcBody struct {
	src  io.Reader
	scan codedScan
	// coding is the coding of messages with the compression flag.
	coding string
	head   [grpcHead]byte
	have   int    // bytes of the head that were read
	left   uint32 // bytes of the message to come
	buf    []byte
	out    []byte // may be read; the unread rest of all
	all    []byte
	err    error
}

func newGRPCBody(src io.Reader, m codedScan, coding string) *grpcBody {
	return &grpcBody{src: src, scan: m, coding: coding, buf: make([]byte, 16<<10)}
}

func (g *grpcBody) Read(p []byte) (int, error) {
	for len(g.out) == 0 {
		if g.err != nil {
			return 0, g.err
		}
		n, err := g.src.Read(g.buf)
		g.out = g.all[:0]
		if serr := g.step(g.buf[:n]); serr != nil {
			g.out, g.err = nil, serr
			return 0, serr
		}
		if err == io.EOF && g.have == grpcHead {
			// The stream was cut off amid a message. Upstream sees that too.
			if g.out, g.err = g.scan.End(g.out); g.err != nil {
				return 0, g.err
			}
		}
		g.all, g.err = g.out, err
	}
	n := copy(p, g.out)
	g.out = g.out[n:]
	return n, nil
}

// step scans b and appends what may pass to g.out.
func (g *grpcBody) step(b []byte) (err error) {
	for len(b) > 0 {
		if g.have < grpcHead {
			n := copy(g.head[g.have:], b)
			g.have += n
			b = b[n:]
			if g.have < grpcHead {
				return nil
			}
			if g.head[0] > 1 {
				return &scan.DecodeError{Coding: "grpc", Place: "body", Err: errNoGRPC}
			}
			g.scan.Coded(nil)
			if g.head[0] == 1 {
				g.scan.Coded([]string{g.coding})
			}
			g.left = binary.BigEndian.Uint32(g.head[1:])
			g.out = append(g.out, g.head[:]...)
		}
		n := min(int64(len(b)), int64(g.left))
		if g.out, err = g.scan.Push(g.out, b[:n]); err != nil {
			return err
		}
		b = b[n:]
		if g.left -= uint32(n); g.left == 0 {
			if g.out, err = g.scan.End(g.out); err != nil {
				return err
			}
			g.have = 0
		}
	}
	return nil
}
