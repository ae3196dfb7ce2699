package gvisor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/fd"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"
	pb "gvisor.dev/gvisor/pkg/sentry/seccheck/points/points_go_proto"
)

// Facts are what the kernel itself did, taken from its own objects: which file
// was opened, looked at, looked for in vain, removed or renamed, and which
// program was executed. They leave the sentry in batches over a SEQPACKET
// socket of the supervisor's.
//
// Each datagram is the number of facts dropped so far (8 bytes) and facts, each
//
//	size    2  of the whole fact, little-endian like all numbers
//	op      1
//	flags   1
//	seq     8  counts all facts, those dropped too: a gap is a loss
//	pid     4  in the bottle's PID namespace
//	errno   4  of the call, 0 when it succeeded
//	len     2  and the path
//	rest       the second path (rename: new name; readlink: target)

type factOp byte

const (
	factOpen factOp = 1 + iota
	factStat
	factAccess
	factReadlink
	factUnlink
	factRename
	factExec
	factExit
)

const (
	// factAsked: the path is the one that was asked for, because no object
	// exists that has another. The kernel used these very bytes.
	factAsked byte = 1 << iota
	// factMiss: the name was not in the directory that the path begins with.
	factMiss
	// factOther: the object is on another file system than the bottle's root;
	// its path holds mount points, which the bottle may be able to choose.
	factOther
)

type fact struct {
	op          factOp
	flags       byte
	seq         uint64
	pid         uint32
	errno       uint32
	path, path2 string
}

const (
	factHead    = 8
	factFixed   = 22
	factBatch   = 32 << 10
	factLinger  = 2 * time.Millisecond
	factPatient = 2000 // tries of a millisecond before a batch is dropped
)

func (f *fact) append(b []byte) []byte {
	const most = 1<<16 - 1 - factFixed
	p, p2 := f.path, f.path2
	if len(p) > most/2 {
		p = p[:most/2]
	}
	if len(p2) > most/2 {
		p2 = p2[:most/2]
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(factFixed+len(p)+len(p2)))
	b = append(b, byte(f.op), f.flags)
	b = binary.LittleEndian.AppendUint64(b, f.seq)
	b = binary.LittleEndian.AppendUint32(b, f.pid)
	b = binary.LittleEndian.AppendUint32(b, f.errno)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(p)))
	return append(append(b, p...), p2...)
}

// parseFacts reads one datagram.
func parseFacts(b []byte) (dropped uint64, facts []fact, err error) {
	if len(b) < factHead {
		return 0, nil, errors.New("facts: short datagram")
	}
	dropped, b = binary.LittleEndian.Uint64(b), b[factHead:]
	for len(b) > 0 {
		if len(b) < factFixed {
			return dropped, facts, errors.New("facts: short fact")
		}
		size, plen := int(binary.LittleEndian.Uint16(b)), int(binary.LittleEndian.Uint16(b[20:]))
		if size > len(b) || factFixed+plen > size {
			return dropped, facts, errors.New("facts: bad lengths")
		}
		facts = append(facts, fact{
			op: factOp(b[2]), flags: b[3], seq: binary.LittleEndian.Uint64(b[4:]),
			pid: binary.LittleEndian.Uint32(b[12:]), errno: binary.LittleEndian.Uint32(b[16:]),
			path: string(b[factFixed : factFixed+plen]), path2: string(b[factFixed+plen : size]),
		})
		b = b[size:]
	}
	return dropped, facts, nil
}

// factWriter batches facts. A reader that is slow slows the bottle down; one
// that has stopped loses facts, which are counted.
type factWriter struct {
	mu      sync.Mutex
	fd      int
	buf     []byte
	n       uint64 // facts in buf
	seq     uint64
	dropped uint64
	armed   bool
}

// facts is where to; nil: nobody asked, and every wrapper is a plain call.
var facts atomic.Pointer[factWriter]

func (w *factWriter) emit(f fact) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	f.seq = w.seq
	if len(w.buf) == 0 {
		w.buf = append(w.buf, make([]byte, factHead)...)
	}
	w.buf = f.append(w.buf)
	w.n++
	if len(w.buf) >= factBatch {
		w.flushLocked()
	} else if !w.armed {
		w.armed = true
		time.AfterFunc(factLinger, w.flush)
	}
}

func (w *factWriter) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed = false
	w.flushLocked()
}

func (w *factWriter) flushLocked() {
	if w.n == 0 {
		return
	}
	binary.LittleEndian.PutUint64(w.buf, w.dropped)
	for try := 0; ; try++ {
		_, err := unix.Write(w.fd, w.buf)
		if err == nil {
			break
		}
		if err == unix.EINTR || err == unix.EAGAIN && try < factPatient {
			time.Sleep(time.Millisecond)
			continue
		}
		w.dropped += w.n
		break
	}
	w.buf, w.n = w.buf[:0], 0
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

// factSession adds facts to the session that gVisor makes at start.
func factSession(s *seccheck.SessionConfig) {
	s.Sinks = append(s.Sinks, seccheck.SinkConfig{Name: factSinkName})
	s.Points = append(s.Points,
		seccheck.PointConfig{Name: "sentry/execve"},
		seccheck.PointConfig{Name: "sentry/exit_notify_parent", ContextFields: []string{"group_id"}},
	)
}

func newFactSink(_ map[string]any, end *fd.FD) (seccheck.Sink, error) {
	if end == nil {
		return nil, errors.New("facts: no descriptor")
	}
	if err := unix.SetNonblock(end.FD(), true); err != nil {
		return nil, fmt.Errorf("facts: %w", err)
	}
	w := &factWriter{fd: end.Release()}
	facts.Store(w)
	return &factSink{w: w}, nil
}

// factSink takes what gVisor's own points say better than a wrapped call
// could: the program comes from the file that was loaded.
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

// Execve implements seccheck.Sink.
func (s *factSink) Execve(ctx context.Context, _ seccheck.FieldSet, i *pb.ExecveInfo) error {
	f := fact{op: factExec, path: i.BinaryPath}
	if t := kernel.TaskFromContext(ctx); t != nil {
		f.pid = uint32(t.TGIDInRoot())
	}
	s.w.emit(f)
	return nil
}

// ExitNotifyParent implements seccheck.Sink.
func (s *factSink) ExitNotifyParent(_ context.Context, _ seccheck.FieldSet, i *pb.ExitNotifyParentInfo) error {
	s.w.emit(fact{op: factExit, pid: uint32(i.GetContextData().GetThreadGroupId()), errno: uint32(i.ExitStatus)})
	return nil
}
