package gvisor

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/handover"
)

// The supervisor and the shim exchange frames over a Unix stream socket pair: a
// header of three numbers (lengths of the two parts, number of descriptors),
// the descriptors with the header, a head in JSON, and the body. The body is
// JSON too, followed by raw bytes where a call says so. It is not nested in the
// head, because JSON within JSON is encoded and decoded twice. Both ends are
// the same binary, so there is no versioning.

const (
	maxFrame = 64 << 20 // a plan with large entries and environments
	maxFDs   = 250      // SCM_MAX_FD is 253
)

type method string

const (
	callCreate  method = "create"
	callStart   method = "start"
	callWait    method = "wait"
	callSignal  method = "signal"
	callPause   method = "pause"
	callExport  method = "export"
	callUsage   method = "usage"
	callRefused method = "refusals"
	callFreeze  method = "freeze"
	callThawed  method = "thawed"

	callCheckpoint method = "checkpoint"
)

type request struct {
	ID     uint64 `json:"id"`
	Method method `json:"method"`
	body   []byte
}

type response struct {
	ID    uint64 `json:"id"`
	Error string `json:"error,omitempty"`
	Kind  string `json:"kind,omitempty"` // names a sentinel
	body  []byte
}

var kinds = map[string]error{
	"not-found":      bottle.ErrNotFound,
	"not-executable": bottle.ErrNotExecutable,
	"gone":           bottle.ErrGone,
}

func kindOf(err error) string {
	for k, e := range kinds {
		if errors.Is(err, e) {
			return k
		}
	}
	return ""
}

// remoteError carries the shim's message and, through Unwrap, its sentinel.
type remoteError struct {
	text string
	kind error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.kind }

type conn struct {
	c  *net.UnixConn
	wm sync.Mutex
}

func newConn(f *os.File) (*conn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("not a unix socket: %T", c)
	}
	return &conn{c: u}, nil
}

const headSize = 12

func (c *conn) send(head any, body []byte, files []*os.File) error {
	first, err := json.Marshal(head)
	if err != nil {
		return err
	}
	if len(first) > maxFrame || len(body) > maxFrame || len(files) > maxFDs {
		return fmt.Errorf("frame of %d and %d bytes and %d descriptors is too large", len(first), len(body), len(files))
	}
	var sizes [headSize]byte
	for i, n := range []int{len(first), len(body), len(files)} {
		binary.LittleEndian.PutUint32(sizes[4*i:], uint32(n))
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		oob = unix.UnixRights(fds...)
	}
	c.wm.Lock()
	defer c.wm.Unlock()
	if _, _, err := c.c.WriteMsgUnix(sizes[:], oob, nil); err != nil {
		return err
	}
	_, err = (&net.Buffers{first, body}).WriteTo(c.c)
	return err
}

// recv reads one frame; it decodes the first part into head.
func (c *conn) recv(head any) (body []byte, files []*os.File, err error) {
	var sizes [headSize]byte
	oob := make([]byte, unix.CmsgSpace(maxFDs*4))
	n, oobn, flags, _, err := c.c.ReadMsgUnix(sizes[:], oob)
	if err != nil {
		return nil, nil, err
	}
	if files, err = handover.Files(oob[:oobn]); err != nil {
		return nil, nil, err
	}
	fail := func(err error) ([]byte, []*os.File, error) {
		closeAll(files)
		return nil, nil, err
	}
	if n == 0 {
		return fail(io.EOF)
	}
	if flags&unix.MSG_CTRUNC != 0 {
		return fail(errors.New("descriptors were cut off"))
	}
	if n < len(sizes) {
		if _, err := io.ReadFull(c.c, sizes[n:]); err != nil {
			return fail(err)
		}
	}
	first, rest, want := binary.LittleEndian.Uint32(sizes[:]), binary.LittleEndian.Uint32(sizes[4:]), binary.LittleEndian.Uint32(sizes[8:])
	if first > maxFrame || rest > maxFrame || int(want) != len(files) {
		return fail(fmt.Errorf("bad frame: %d and %d bytes, %d of %d descriptors", first, rest, len(files), want))
	}
	both := make([]byte, first+rest)
	if _, err := io.ReadFull(c.c, both); err != nil {
		return fail(err)
	}
	if err := json.Unmarshal(both[:first], head); err != nil {
		return fail(err)
	}
	return both[first:], files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// caller is the supervisor's side: concurrent calls over one conn.
type caller struct {
	*conn
	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan response
	err     error // set when the reader ended
	done    chan struct{}
}

func newCaller(c *conn) *caller {
	cl := &caller{conn: c, waiting: map[uint64]chan response{}, done: make(chan struct{})}
	go cl.read()
	return cl
}

// read returns when the shim closes its end, at the latest with its death.
func (cl *caller) read() {
	for {
		var r response
		body, files, err := cl.recv(&r)
		r.body = body
		closeAll(files) // the shim sends none
		cl.mu.Lock()
		if err != nil {
			cl.err = err
			for _, ch := range cl.waiting {
				close(ch)
			}
			cl.waiting = nil
			cl.mu.Unlock()
			close(cl.done)
			return
		}
		if ch := cl.waiting[r.ID]; ch != nil {
			delete(cl.waiting, r.ID)
			ch <- r
		}
		cl.mu.Unlock()
	}
}

// begin sends a call. The channel yields its response; it is closed without one
// when the shim is gone.
func (cl *caller) begin(m method, in any, files []*os.File) (<-chan response, error) {
	body, err := encode(in)
	if err != nil {
		return nil, err
	}
	ch := make(chan response, 1)
	cl.mu.Lock()
	if cl.waiting == nil {
		cl.mu.Unlock()
		return nil, fmt.Errorf("%s: %w", m, bottle.ErrGone)
	}
	cl.next++
	id := cl.next
	cl.waiting[id] = ch
	cl.mu.Unlock()
	if err := cl.send(request{ID: id, Method: m}, body, files); err != nil {
		cl.mu.Lock()
		delete(cl.waiting, id)
		cl.mu.Unlock()
		return nil, fmt.Errorf("%s: %w: %v", m, bottle.ErrGone, err)
	}
	return ch, nil
}

// encode encodes a call's body.
func encode(in any) ([]byte, error) {
	if p, ok := in.(*plan); ok {
		return p.encode()
	}
	return json.Marshal(in)
}
