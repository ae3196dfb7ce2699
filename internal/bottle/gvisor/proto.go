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
)

// The supervisor and the shim speak frames over a Unix stream socket pair: an
// eight-byte header (length, number of descriptors), the descriptors with the
// header, then JSON. Both ends are the same binary, so there is no versioning.

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
)

type request struct {
	ID     uint64          `json:"id"`
	Method method          `json:"method"`
	Body   json.RawMessage `json:"body,omitempty"`
}

type response struct {
	ID    uint64          `json:"id"`
	Error string          `json:"error,omitempty"`
	Kind  string          `json:"kind,omitempty"` // names a sentinel
	Body  json.RawMessage `json:"body,omitempty"`
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

// remoteError carries the shim's words and, through Unwrap, its sentinel.
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

func (c *conn) send(v any, files []*os.File) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(body) > maxFrame || len(files) > maxFDs {
		return fmt.Errorf("frame of %d bytes and %d descriptors is too large", len(body), len(files))
	}
	var head [8]byte
	binary.LittleEndian.PutUint32(head[:], uint32(len(body)))
	binary.LittleEndian.PutUint32(head[4:], uint32(len(files)))
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
	if _, _, err := c.c.WriteMsgUnix(head[:], oob, nil); err != nil {
		return err
	}
	_, err = c.c.Write(body)
	return err
}

func (c *conn) recv(v any) ([]*os.File, error) {
	var head [8]byte
	oob := make([]byte, unix.CmsgSpace(maxFDs*4))
	n, oobn, flags, _, err := c.c.ReadMsgUnix(head[:], oob)
	if err != nil {
		return nil, err
	}
	files, err := parseFDs(oob[:oobn])
	if err != nil {
		return nil, err
	}
	fail := func(err error) ([]*os.File, error) {
		closeAll(files)
		return nil, err
	}
	if n == 0 {
		return fail(io.EOF)
	}
	if flags&unix.MSG_CTRUNC != 0 {
		return fail(errors.New("descriptors were cut off"))
	}
	if n < len(head) {
		if _, err := io.ReadFull(c.c, head[n:]); err != nil {
			return fail(err)
		}
	}
	size, want := binary.LittleEndian.Uint32(head[:]), binary.LittleEndian.Uint32(head[4:])
	if size > maxFrame || int(want) != len(files) {
		return fail(fmt.Errorf("bad frame: %d bytes, %d of %d descriptors", size, len(files), want))
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(c.c, body); err != nil {
		return fail(err)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fail(err)
	}
	return files, nil
}

func parseFDs(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			closeAll(files)
			return nil, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "donated"))
		}
	}
	return files, nil
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

// read ends when the shim closes its end, at the latest with its death.
func (cl *caller) read() {
	for {
		var r response
		files, err := cl.recv(&r)
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

// begin sends a call; the channel yields its response and is closed without
// one when the shim is gone.
func (cl *caller) begin(m method, in any, files []*os.File) (<-chan response, error) {
	body, err := json.Marshal(in)
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
	if err := cl.send(request{ID: id, Method: m, Body: body}, files); err != nil {
		cl.mu.Lock()
		delete(cl.waiting, id)
		cl.mu.Unlock()
		return nil, fmt.Errorf("%s: %w: %v", m, bottle.ErrGone, err)
	}
	return ch, nil
}
