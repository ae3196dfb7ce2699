// Package handover passes a piece of work, with the descriptors that it needs,
// from one process of a user to another over a Unix socket: a command to a
// bottle that waits for one, or to one in which a command runs already.
//
// It promises that both ends are processes of the same user (the kernel is
// asked, before a byte is sent), that a frame arrives whole with all of its
// descriptors or not at all, and that descriptors never leak: not into programs
// that are started meanwhile, and not when a frame is refused.
//
// Start reading at Conn.
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

// ErrStranger means that another user's process is at the other end.
var ErrStranger = errors.New("the socket is another user's")

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

// New makes a Conn of c, unless a stranger is at its other end. It owns c from
// then on.
func New(c *net.UnixConn) (*Conn, error) {
	if err := Own(c); err != nil {
		c.Close()
		return nil, err
	}
	return &Conn{c: c}, nil
}

// Own asks the kernel whether one of this user's processes is at the other end of
// c; if not, or if it does not say, the error is ErrStranger.
func Own(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return errors.Join(ErrStranger, err)
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err != nil || cerr != nil {
		return errors.Join(ErrStranger, err, cerr)
	}
	if cred.Uid != uint32(os.Geteuid()) {
		return ErrStranger
	}
	return nil
}

// Close ends the connection; a Recv that waits returns.
func (c *Conn) Close() error { return c.c.Close() }

// Deadline bounds what is sent and received from now on; zero lifts it.
func (c *Conn) Deadline(t time.Time) error { return c.c.SetDeadline(t) }

// Send sends v with files, which stay the caller's.
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
			// Not Fd, which would make the description blocking, for every
			// process that shares it.
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

// Recv reads one frame into v. The files are the caller's to close.
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
	// The flag is Go's own: descriptors are close-on-exec from the beginning.
	n, oobn, flags, _, err := c.c.ReadMsgUnix(head[:], oob)
	if err != nil {
		return nil, err
	}
	if files, err = received(oob[:oobn]); err != nil {
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

func received(oob []byte) (files []*os.File, err error) {
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
			return files, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "handed over"))
		}
	}
	return files, nil
}
