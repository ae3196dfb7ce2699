package trace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/secret"
)

// Collector receives the facts of one bottle: it removes known secrets from
// them, counts them in a Summary and writes them to the run's file.
//
// The bottle waits for the reader of the socket. So one goroutine only reads
// into a bounded queue, and another compresses and writes.
type Collector struct {
	conn    *net.UnixConn
	queue   chan []byte
	free    chan []byte
	done    chan struct{} // closed when the last fact is in the file
	readErr error         // why reading ended; after queue was closed
	early   atomic.Bool   // the caller stopped waiting for the end
	untold  atomic.Uint64 // facts lost at the very end, see Sent
	told    atomic.Bool   // Sent was called

	redact  *secret.Redactor
	sum     *Summary
	file    *Writer // nil: it could not be made
	fileErr error
	unkept  Counts
	lost    uint64
	bad     int // malformed datagrams
	kept    Kept
}

const (
	// queued bounds the batches that wait to be written; the bottle's kernel
	// sends batches of about 32 KiB.
	queued = 64
	// flushEvery bounds the time until a fact can be read from the file.
	flushEvery = 500 * time.Millisecond
)

// Options configure a Collector.
type Options struct {
	Path string // of the file
	Run  string
	Max  int64 // bytes of the file; 0: DefaultMax
	View View
	// Redact removes secrets from paths and arguments. Nil: none.
	Redact *secret.Redactor
}

// Collect reads facts from conn, the supervisor's end of the socket, which it
// then owns, until the other end is closed. [Collector.End] returns the
// account. Failure to make the file is reported in the account, not as an
// error.
func Collect(conn *os.File, o Options) (*Collector, error) {
	c, err := net.FileConn(conn)
	conn.Close()
	if err != nil {
		return nil, fmt.Errorf("collect facts: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("collect facts: not a unix socket")
	}
	x := &Collector{
		conn: u, queue: make(chan []byte, queued), free: make(chan []byte, queued), done: make(chan struct{}),
		redact: o.Redact, sum: NewSummary(o.View),
	}
	x.file, x.fileErr = createFile(o.Path, o.Run, o.Max)
	for range queued {
		x.free <- nil // made when it is needed
	}
	go x.receive()
	go x.process()
	return x, nil
}

// receive returns when the socket ends: the bottle is gone, or End stopped
// waiting.
func (c *Collector) receive() {
	defer close(c.queue)
	defer c.conn.Close()
	for {
		b := <-c.free
		if b == nil {
			b = make([]byte, MaxBatch)
		}
		n, _, flags, _, err := c.conn.ReadMsgUnix(b[:MaxBatch], nil)
		switch {
		case errors.Is(err, io.EOF) || err == nil && n == 0:
			return
		case err != nil:
			c.readErr = err
			return
		case flags&unix.MSG_TRUNC != 0:
			n = 0 // no batch is that long; it will not parse
		}
		c.queue <- b[:n]
	}
}

// process returns when receive has, and everything is in the file.
func (c *Collector) process() {
	defer close(c.done)
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case b, more := <-c.queue:
			if !more {
				c.finish()
				return
			}
			c.batch(b)
			c.free <- b
		case <-tick.C:
			if c.file != nil {
				c.file.Flush()
			}
		}
	}
}

func (c *Collector) batch(b []byte) {
	lost, err := ParseBatch(b, c.fact)
	if err != nil {
		c.bad++ // the facts lost with it show as a gap
		return
	}
	c.lost = max(c.lost, lost)
	if c.file != nil {
		c.file.dropped(c.lost)
	}
}

func (c *Collector) fact(f *Fact) {
	f.redact(c.redact)
	c.sum.Add(f)
	if c.file != nil {
		c.file.add(f)
	} else {
		c.unkept[kindIndex[f.Op]]++
	}
}

// redact removes known secrets from f. If a text was cut, it also removes an
// end that may be the beginning of a secret.
func (f *Fact) redact(r *secret.Redactor) {
	if r.None() {
		return
	}
	clean := func(s string, full bool) string {
		if full && f.Flags&Cut != 0 {
			return r.Prefix(s)
		}
		if r.In(s) {
			return r.String(s)
		}
		return s
	}
	f.Path, f.Path2 = clean(f.Path, len(f.Path) == MaxPath), clean(f.Path2, len(f.Path2) == MaxPath)
	for i, a := range f.Args {
		f.Args[i] = clean(a, i == len(f.Args)-1)
	}
}

func (c *Collector) finish() {
	if c.file == nil {
		c.kept = Kept{Unkept: c.unkept, Err: c.fileErr}
		return
	}
	if n := c.untold.Load(); n > 0 {
		c.file.dropped(c.lost + n)
	}
	reason := ""
	if c.readErr != nil || c.early.Load() {
		reason = "the bottle's facts could not be read to the end"
	}
	c.kept = c.file.Close(reason)
}

// Account says what happened to a run's facts. The caller owns its Summary.
type Account struct {
	*Summary
	Kept
	// Dropped is the number of facts that never arrived.
	Dropped uint64
	// Told means that the bottle said at its end what it had sent and lost.
	Told bool
	// Incomplete holds sentences on why something is missing.
	Incomplete []string
}

// errNoEnd means that the account of a trace was not complete in time.
var errNoEnd = errors.New("the trace did not come to its end")

// Sent tells c that the bottle has sent everything, except for untold facts
// that it lost at the end. c reads the rest of the socket and completes the
// file in the background.
func (c *Collector) Sent(untold uint64) {
	c.untold.Store(untold)
	c.told.Store(true)
	c.conn.CloseRead()
}

// End waits until the facts of a closed bottle are in the file, and returns the
// account. When ctx ends first, it gives up what was not sent yet, and the
// account says so.
func (c *Collector) End(ctx context.Context) (*Account, error) {
	select {
	case <-c.done:
	case <-ctx.Done():
		// Another process still holds the other end, or the disk hangs. Keep
		// what has arrived.
		c.early.Store(true)
		c.conn.CloseRead()
		select {
		case <-c.done:
		case <-time.After(endIn):
			return nil, errNoEnd
		}
	}
	a := &Account{Summary: c.sum, Kept: c.kept, Dropped: max(c.lost+c.untold.Load(), c.sum.lost()), Told: c.told.Load()}
	say := func(format string, args ...any) { a.Incomplete = append(a.Incomplete, fmt.Sprintf(format, args...)) }
	if a.Dropped > 0 {
		say("%d facts were lost on their way out of the bottle", a.Dropped)
	}
	if c.bad > 0 {
		say("%d messages of the kernel inside made no sense", c.bad)
	}
	switch {
	case c.early.Load():
		say("the bottle did not end its trace in time")
	case c.readErr != nil:
		say("the trace could not be read to the end: %v", c.readErr)
	}
	if c.kept.Err != nil {
		say("the trace file could not be written to the end: %v", c.kept.Err)
	}
	return a, nil
}

// endIn bounds the wait for a collector that was told to stop.
const endIn = 10 * time.Second
