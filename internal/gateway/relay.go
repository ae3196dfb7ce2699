package gateway

import (
	"context"
	"io"
	"net"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/carboy/carboy/internal/wire"
)

// relayBuffer is what one direction of a connection holds, in bytes, besides
// the windows of its two TCP connections. Two full segments (of IPv6, the
// smaller ones): a write of 64 KiB would be a full one and a tiny one, which
// costs as much.
const relayBuffer = 2 * (wire.MTU - header.IPv6MinimumSize - header.TCPMinimumSize)

var relayBuffers = sync.Pool{New: func() any { return new([relayBuffer]byte) }}

// relay copies both ways until both ended or one failed. An end of stream
// passes on as one (half-close); a failure resets both sides. A side that does
// not read stops the other from being read.
//
// The readers are the two connections, perhaps with something in between.
func relay(f *flow, up net.Conn, fromBottle, fromUpstream io.Reader) {
	stop := context.AfterFunc(f.ctx, func() {
		reset(up)
		f.conn.Abort()
	})
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		oneWay(f, up, fromBottle, up)
	}()
	oneWay(f, f.conn, fromUpstream, up)
	<-done
	_ = up.Close()
	_ = f.conn.Close()
}

type halfCloser interface{ CloseWrite() error }

// oneWay copies one direction; failure of either side ends the flow.
func oneWay(f *flow, dst io.Writer, src io.Reader, up net.Conn) {
	buf := relayBuffers.Get().(*[relayBuffer]byte)
	defer relayBuffers.Put(buf)
	for {
		n, err := src.Read(buf[:])
		if n > 0 {
			if _, werr := dst.Write(buf[:n]); werr != nil {
				fail(f, up, werr)
				return
			}
		}
		if err == io.EOF {
			if c, ok := dst.(halfCloser); ok {
				_ = c.CloseWrite()
			}
			return
		}
		if err != nil {
			fail(f, up, err)
			return
		}
	}
}

func fail(f *flow, up net.Conn, err error) {
	reset(up)
	if isReset(err) {
		f.abort(ReasonReset, "")
		return
	}
	f.abort(ReasonReset, err.Error())
}

// reset closes a connection so that its peer sees a reset and not an orderly
// end, which would pass a cut-off body for a whole one.
func reset(c net.Conn) {
	if t, ok := c.(interface{ SetLinger(int) error }); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}
