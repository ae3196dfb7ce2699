package guest

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/guest/proto"
)

// local is this side's copy of one of the caller's descriptors: a pipe, a terminal, a
// file. It is waited for by poll(2), beside a wake-up that ends the wait.
type local struct {
	mu     sync.RWMutex // held shared while fd is used
	fd     int
	closed bool
	chunk  int // bytes that one write can take without blocking, once poll says so
}

func duplicate(f *os.File) (*local, error) {
	if f == nil {
		return nil, errors.New("is missing")
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	l := &local{fd: -1}
	var dupErr error
	if err := raw.Control(func(fd uintptr) { l.fd, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3) }); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, dupErr
	}
	var st unix.Stat_t
	if err := unix.Fstat(l.fd, &st); err != nil {
		l.close()
		return nil, err
	}
	l.chunk = proto.MaxPayload
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && !l.unblock(kind) {
		l.chunk = pipeBuf
	}
	return l, nil
}

// unblock reports whether reads and writes don't block. A copy shares its flags with the
// caller's descriptor, where they must stay as they are and may change, so it opens a pipe or
// terminal once more. Otherwise a full one that nobody reads would hold up the bottle's end.
func (l *local) unblock(kind uint32) bool {
	flags, err := unix.FcntlInt(uintptr(l.fd), unix.F_GETFL, 0)
	if err != nil {
		return false
	}
	if _, err := unix.IoctlGetTermios(l.fd, unix.TCGETS); err != nil && kind != unix.S_IFIFO {
		return flags&unix.O_NONBLOCK != 0
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", l.fd), flags&unix.O_ACCMODE|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return flags&unix.O_NONBLOCK != 0
	}
	unix.Close(l.fd)
	l.fd = fd
	return true
}

// pipeBuf is PIPE_BUF: a pipe that poll calls writable takes as much without blocking.
const pipeBuf = 4096

func (l *local) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		unix.Close(l.fd)
	}
}

// wakeup is a descriptor that becomes readable when a channel is closed.
type wakeup struct {
	fd   int
	gone chan struct{}
	done chan struct{}
}

func newWakeup(ends ...<-chan struct{}) (*wakeup, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	w := &wakeup{fd: fd, gone: make(chan struct{}), done: make(chan struct{})}
	var other <-chan struct{}
	if len(ends) > 1 {
		other = ends[1]
	}
	go func() {
		defer close(w.done)
		select {
		case <-ends[0]:
		case <-other:
		case <-w.gone:
			return
		}
		_, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}()
	return w, nil
}

func (w *wakeup) close() {
	close(w.gone)
	<-w.done
	unix.Close(w.fd)
}

// wait blocks until fd is ready for events, or reports false when the wake-up came.
func (l *local) wait(events int16, w *wakeup) bool {
	p := []unix.PollFd{{Fd: int32(l.fd), Events: events}, {Fd: int32(w.fd), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(p, -1)
		if err == unix.EINTR {
			continue
		}
		return err == nil && p[1].Revents == 0
	}
}

// send reads the descriptor to its end and writes it to the stream, until the command has
// ended or reads no more.
func (l *local) send(w *proto.Writer, exited <-chan struct{}) {
	defer w.Close()
	wake, err := newWakeup(exited, w.Stopped())
	if err != nil {
		return
	}
	defer wake.close()
	buf := make([]byte, proto.MaxPayload)
	for l.wait(unix.POLLIN, wake) {
		n, err := unix.Read(l.fd, buf)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if n <= 0 || err != nil {
			return
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return
		}
	}
}

// deliver writes the stream to the descriptor until its end. When nobody reads there any
// more, the guest's writer is told.
func (l *local) deliver(r *proto.Reader, done <-chan struct{}) {
	defer r.Close()
	wake, err := newWakeup(done)
	if err != nil {
		return
	}
	defer wake.close()
	buf := make([]byte, proto.MaxPayload)
	for {
		n, err := r.Read(buf)
		if n == 0 || err != nil {
			return
		}
		for b := buf[:n]; len(b) > 0; {
			if !l.wait(unix.POLLOUT, wake) {
				return
			}
			m, err := unix.Write(l.fd, b[:min(len(b), l.chunk)])
			if err == unix.EINTR || err == unix.EAGAIN {
				continue
			}
			if err != nil {
				return
			}
			b = b[m:]
		}
	}
}

// size returns the size of a terminal.
func (l *local) size() (rows, cols uint16, ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return 0, 0, false
	}
	w, err := unix.IoctlGetWinsize(l.fd, unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, false
	}
	return w.Row, w.Col, true
}

// restore gives a terminal its old settings.
func (l *local) restore(t *unix.Termios) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if !l.closed {
		_ = unix.IoctlSetTermios(l.fd, unix.TCSETS, t)
	}
}
