package gateway

import (
	"context"
	"io"
	"net"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/carboy/carboy/internal/wire"
)

// relayBuffer is the buffer of one direction of a connection, in bytes, besides the
// windows of its two TCP connections. It holds two full segments (of IPv6, whose are
// smaller). A write of 64 KiB would be a full segment and a tiny one, which costs as
// much.
const relayBuffer = 2 * (wire.MTU - header.IPv6MinimumSize - header.TCPMinimumSize)

var relayBuffers = sync.Pool{New: func() any { return new([relayBuffer]byte) }}

// relay copies in both directions until both have ended or one has failed. It forwards
// an end of stream as a half-close; a failure resets both sides. A side that does not
// read stops the other from being read.
//
// fromBottle and fromUpstream read from the two connections, perhaps through a
// wrapper.
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

// oneWay copies one direction. A failure of either side ends the flow.
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
		f.abort(reasonReset, "")
		return
	}
	f.abort(reasonReset, err.Error())
}

// reset closes a connection so that its peer sees a reset. After an orderly end the
// peer would take a truncated body for a complete one.
func reset(c net.Conn) {
	if t, ok := c.(interface{ SetLinger(int) error }); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}
