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

// Collector takes the facts of one bottle: it takes known secrets out of them,
// counts them in a Summary and keeps them in the file of the run.
//
// The bottle waits for whoever reads the socket. So one goroutine does nothing
// but read into a bounded queue, and another packs and writes.
type Collector struct {
	conn    *net.UnixConn
	queue   chan []byte
	free    chan []byte
	done    chan struct{} // closed when the last fact is in the file
	readErr error         // why reading ended; after queue was closed
	early   atomic.Bool   // somebody gave up waiting for the end
	untold  atomic.Uint64 // lost at the very end, see Sent
	told    atomic.Bool   // Sent was called

	redact  *secret.Redactor
	sum     *Summary
	file    *Writer // nil: it could not be made
	fileErr error
	unkept  Counts
	lost    uint64
	bad     int // datagrams that were no batch
	kept    Kept
}

const (
	// queued bounds the batches that wait to be written; the kernel inside
	// makes them of about 32 KiB.
	queued = 64
	// flushEvery is how long a fact may wait before others can read it.
	flushEvery = 500 * time.Millisecond
)

// Options say what to do with facts.
type Options struct {
	Path string // of the file
	Run  string
	Max  int64 // bytes of the file; 0: DefaultMax
	View View
	// Redact takes values out of paths and arguments. Nil: none.
	Redact *secret.Redactor
}

// Collect reads facts from conn, the supervisor's end of the socket, and takes
// conn over. It goes on until the other end is closed, and then [Collector.End]
// has the account. A file that can't be made is part of the account, no error.
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
	x.file, x.fileErr = CreateFile(o.Path, o.Run, o.Max)
	for range queued {
		x.free <- nil // made when it is needed
	}
	go x.receive()
	go x.process()
	return x, nil
}

// receive ends with the socket: when the bottle is gone, or End gives up.
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
			n = 0 // no batch is as long; it will not parse
		}
		c.queue <- b[:n]
	}
}

// process ends when receive has, and everything is in the file.
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
		c.bad++ // what was lost with it shows as a gap
		return
	}
	c.lost = max(c.lost, lost)
	if c.file != nil {
		c.file.Dropped(c.lost)
	}
}

func (c *Collector) fact(f *Fact) {
	f.redact(c.redact)
	c.sum.Add(f)
	if c.file != nil {
		c.file.Add(f)
	} else {
		c.unkept[kindIndex[f.Op]]++
	}
}

// redact takes known secrets out of f. Of a text that was cut, an end that may
// be the beginning of one goes too.
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
		c.file.Dropped(c.lost + n)
	}
	reason := ""
	if c.readErr != nil || c.early.Load() {
		reason = "the bottle's facts could not be read to the end"
	}
	c.kept = c.file.Close(reason)
}

// Account is what became of a run's facts. Its Summary is the caller's.
type Account struct {
	*Summary
	Kept
	// Dropped is how many facts never arrived.
	Dropped uint64
	// Told: the bottle said at its end what it had sent and lost.
	Told bool
	// Incomplete are sentences on why something is missing.
	Incomplete []string
}

// ErrNoEnd means that the account of a trace could not be had in time.
var ErrNoEnd = errors.New("the trace did not come to its end")

// Sent says that the bottle has sent all that it will, but for the untold facts
// that it lost at the end: what is in the socket is read, and the file
// completed, while the caller does something else.
func (c *Collector) Sent(untold uint64) {
	c.untold.Store(untold)
	c.told.Store(true)
	c.conn.CloseRead()
}

// End waits until the facts of a bottle that was closed are in the file, and
// gives the account. When ctx ends first, what was not sent yet is given up, and
// the account says so.
func (c *Collector) End(ctx context.Context) (*Account, error) {
	select {
	case <-c.done:
	case <-ctx.Done():
		// Somebody still holds the other end, or the disk hangs. What has come
		// is still read.
		c.early.Store(true)
		c.conn.CloseRead()
		select {
		case <-c.done:
		case <-time.After(endIn):
			return nil, ErrNoEnd
		}
	}
	a := &Account{Summary: c.sum, Kept: c.kept, Dropped: max(c.lost+c.untold.Load(), c.sum.Lost()), Told: c.told.Load()}
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
