// Package handover passes a request and its file descriptors from one process
// of a user to another over a Unix socket: a command to a waiting bottle, or to
// a bottle in which a command already runs.
//
// Both ends are processes of the same user: the kernel is asked before a byte
// is sent. A frame arrives whole, with all of its descriptors, or not at all.
// Descriptors never leak, neither into programs that are started meanwhile nor
// when a frame is refused. Start reading at Conn.
package handover

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of one frame. Arguments and environment of a process are at most a few
// MiB (execve(2)).
const (
	maxFrame = 8 << 20
	maxFiles = 8
)

// errStranger means that the process at the other end belongs to another user.
var errStranger = errors.New("the socket is another user's")

// Conn carries frames: JSON documents with descriptors. Send may be called
// concurrently, Recv from one goroutine at a time.
type Conn struct {
	c  *net.UnixConn
	wm sync.Mutex
}

// Dial connects to the socket at path.
func Dial(path string) (*Conn, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return New(c)
}

// New returns a Conn over c, which it then owns. It returns ErrStranger if
// another user's process is at the other end.
func New(c *net.UnixConn) (*Conn, error) {
	if err := Own(c); err != nil {
		c.Close()
		return nil, err
	}
	return &Conn{c: c}, nil
}

// Own asks the kernel whether the process at the other end of c belongs to this
// user. It returns ErrStranger if not, or if the kernel does not say.
func Own(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return errors.Join(errStranger, err)
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err != nil || cerr != nil {
		return errors.Join(errStranger, err, cerr)
	}
	if cred.Uid != uint32(os.Geteuid()) {
		return errStranger
	}
	return nil
}

// Close ends the connection. A waiting Recv returns.
func (c *Conn) Close() error { return c.c.Close() }

// Deadline sets the deadline of later sends and receives; zero removes it.
func (c *Conn) Deadline(t time.Time) error { return c.c.SetDeadline(t) }

// Send sends v with files. The caller keeps the files.
func (c *Conn) Send(v any, files ...*os.File) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(body) > maxFrame || len(files) > maxFiles {
		return fmt.Errorf("frame of %d bytes and %d descriptors is too large", len(body), len(files))
	}
	frame := make([]byte, 8, 8+len(body))
	binary.LittleEndian.PutUint32(frame, uint32(len(body)))
	binary.LittleEndian.PutUint32(frame[4:], uint32(len(files)))
	frame = append(frame, body...)
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			raw, err := f.SyscallConn()
			if err != nil {
				return err
			}
			// Fd would make the description blocking for every process that
			// shares it.
			if err := raw.Control(func(fd uintptr) { fds[i] = int(fd) }); err != nil {
				return err
			}
		}
		oob = unix.UnixRights(fds...)
	}
	c.wm.Lock()
	defer c.wm.Unlock()
	n, _, err := c.c.WriteMsgUnix(frame, oob, nil)
	if err == nil && n < len(frame) {
		_, err = c.c.Write(frame[n:])
	}
	return err
}

// Recv reads one frame into v. The caller closes the files.
func (c *Conn) Recv(v any) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			files = nil
		}
	}()
	var head [8]byte
	oob := make([]byte, unix.CmsgSpace(maxFiles*4))
	// Go sets the flag that makes received descriptors close-on-exec at once.
	n, oobn, flags, _, err := c.c.ReadMsgUnix(head[:], oob)
	if err != nil {
		return nil, err
	}
	if files, err = Files(oob[:oobn]); err != nil {
		return files, err
	}
	if n == 0 {
		return files, io.EOF
	}
	if flags&unix.MSG_CTRUNC != 0 {
		return files, errors.New("descriptors were cut off")
	}
	if _, err := io.ReadFull(c.c, head[n:]); err != nil {
		return files, err
	}
	size, want := binary.LittleEndian.Uint32(head[:]), binary.LittleEndian.Uint32(head[4:])
	if size > maxFrame || int(want) != len(files) {
		return files, fmt.Errorf("bad frame: %d bytes, %d of %d descriptors", size, len(files), want)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(c.c, body); err != nil {
		return files, err
	}
	return files, json.Unmarshal(body, v)
}

// Files returns the descriptors in the control messages of a Unix socket, close-on-exec. If
// one is malformed, it closes those before it.
func Files(oob []byte) (files []*os.File, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			return nil, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "handed over"))
		}
	}
	return files, nil
}
