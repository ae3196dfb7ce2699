package gvisor

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"gvisor.dev/gvisor/pkg/fd"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"

	"github.com/carboy/carboy/internal/trace"
)

// Facts (package trace) report what the kernel itself did, from its own
// objects. They leave the sentry in batches over the socket of
// bottle.Spec.Trace.

const (
	factBatch   = 32 << 10 // a longer batch is sent at once
	factLinger  = 2 * time.Millisecond
	factPatient = 2 * time.Second
	factRetell  = 100 * time.Millisecond
	// factSettle bounds a Pause's wait for a reader to take the rest.
	factSettle = 4 * time.Second
)

// factWriter numbers facts and batches them. mu is held while a batch is sent,
// so a slow reader slows the bottle down instead of filling memory.
type factWriter struct {
	mu      sync.Mutex
	fd      int
	buf     []byte
	n       uint64 // facts in buf
	seq     uint64
	dropped uint64
	told    uint64 // how many of those a batch has reported
	// stalled means that the last batch was dropped. No later batch is waited
	// for until one is read, or a dead reader would stop the bottle for good.
	stalled bool
	gone    bool          // the reader has closed its end
	wake    chan struct{} // wakes the lingerer; holds one

	names   names
	marks   markSet
	digests digests

	execs execs
	tasks taskCounts
	sends sends

	startMu   sync.Mutex
	starting  atomic.Pointer[start]
	announced map[*kernel.ThreadGroup]bool // commands; who starts them bounds it
	settled   map[uint32]bool              // those that were reported before they were seen
}

// facts is the writer; nil: tracing is off, and every wrapper is a plain call.
var facts atomic.Pointer[factWriter]

func newFactWriter(fd int) *factWriter {
	w := &factWriter{fd: fd, buf: trace.NewBatch(make([]byte, 0, factBatch+trace.MaxFact)), wake: make(chan struct{}, 1), names: newNames(),
		announced: map[*kernel.ThreadGroup]bool{}, settled: map[uint32]bool{}}
	w.execs.of = map[*kernel.Task]*loading{}
	w.tasks.born, w.tasks.live = map[*kernel.Task]bool{}, map[*kernel.ThreadGroup]int{}
	go w.linger()
	return w
}

// linger sends facts that have waited long enough. It ends with the process.
func (w *factWriter) linger() {
	for range w.wake {
		time.Sleep(factLinger)
		w.settleExecs()
		w.names.sweep(time.Now())
		// Report a loss even if nothing happens after it.
		for !w.flush() {
			time.Sleep(factRetell)
		}
	}
}

// emit adds f's number and time and sends it.
func (w *factWriter) emit(f *trace.Fact) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	f.Seq, f.Time = w.seq, time.Now().UnixNano()
	w.buf = f.Append(w.buf)
	w.n++
	if len(w.buf) >= factBatch {
		w.flushLocked()
	} else if w.n == 1 {
		w.wakeLingerer()
	}
}

// wakeLingerer wakes the lingerer.
func (w *factWriter) wakeLingerer() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// settle sends everything, and returns the number of lost facts that no batch
// has reported. The caller must report them, since nothing follows.
func (w *factWriter) settle() (untold uint64) {
	w.startMu.Lock()
	w.settleLocked()
	w.startMu.Unlock()
	w.settleExecs()
	for end := time.Now().Add(factSettle); !w.flush() && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dropped - w.told
}

// flush sends the batch and reports whether the reader knows of all losses, or
// can no longer be told.
func (w *factWriter) flush() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flushLocked()
	return w.told == w.dropped || w.gone
}

func (w *factWriter) flushLocked() {
	if w.n == 0 && w.told == w.dropped {
		return
	}
	trace.SetDropped(w.buf, w.dropped)
	if w.send() {
		w.stalled, w.told = false, w.dropped
	} else {
		w.stalled = true
		w.dropped += w.n
	}
	w.buf, w.n = trace.NewBatch(w.buf), 0
}

func (w *factWriter) send() bool {
	var since time.Time
	for {
		_, err := unix.Write(w.fd, w.buf)
		switch {
		case err == nil:
			return true
		case err == unix.EINTR:
			continue
		case err == unix.EPIPE || err == unix.ECONNRESET || err == unix.ENOTCONN:
			w.gone = true
			return false
		case err != unix.EAGAIN && err != unix.ENOBUFS && err != unix.ENOMEM:
			return false
		case w.stalled:
			return false
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > factPatient:
			return false
		}
		time.Sleep(time.Millisecond)
	}
}

const factSinkName = "carboy-facts"

// factsEnd is the socket that the supervisor gave to the shim.
var factsEnd *os.File

var registerFacts = sync.OnceFunc(func() {
	seccheck.RegisterSink(seccheck.SinkDesc{
		Name:  factSinkName,
		Setup: func(map[string]any) (*os.File, error) { return factsEnd, nil },
		New:   newFactSink,
	})
})

// factSession adds facts to the trace session that gVisor makes at start.
func factSession(s *seccheck.SessionConfig) {
	s.Sinks = append(s.Sinks, seccheck.SinkConfig{Name: factSinkName})
	s.Points = append(s.Points,
		seccheck.PointConfig{Name: "sentry/clone"},
		seccheck.PointConfig{Name: "sentry/execve"},
		// exit_notify_parent does not serve: it is left out for a process that
		// its parent traces, and comes twice for one whose parent ends first.
		seccheck.PointConfig{Name: "sentry/task_exit"},
	)
}

func newFactSink(_ map[string]any, end *fd.FD) (seccheck.Sink, error) {
	if end == nil {
		return nil, errors.New("facts: no descriptor")
	}
	if err := unix.SetNonblock(end.FD(), true); err != nil {
		return nil, fmt.Errorf("facts: %w", err)
	}
	// The host's limit is enough for several batches.
	if err := unix.SetsockoptInt(end.FD(), unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<20); err != nil {
		return nil, fmt.Errorf("facts: %w", err)
	}
	w := newFactWriter(end.Release())
	facts.Store(w)
	return &factSink{w: w}, nil
}

// factSink receives gVisor's own trace points where they know more than a
// wrapped call: the program comes from the file that was loaded.
type factSink struct {
	seccheck.SinkDefaults
	w *factWriter
}

// Name implements seccheck.Sink.
func (*factSink) Name() string { return factSinkName }

// Status implements seccheck.Sink.
func (s *factSink) Status() seccheck.SinkStatus {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return seccheck.SinkStatus{DroppedCount: s.w.dropped}
}
