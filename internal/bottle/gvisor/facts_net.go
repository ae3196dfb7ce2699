package gvisor

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/marshal"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/socket"
	syslinux "gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/syserr"

	"github.com/carboy/carboy/internal/trace"
)

// Sockets. An address is copied once; the copy is used and reported.

//go:linkname writeAddress gvisor.dev/gvisor/pkg/sentry/syscalls/linux.writeAddress
func writeAddress(t *kernel.Task, addr linux.SockAddr, addrLen uint32, addrPtr hostarch.Addr, addrLenPtr hostarch.Addr) error

// maxBacklog is gVisor's own bound of listen.
const maxBacklog = 1024

var netCalls = map[string]served{
	"socket": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return w.socket(t, int(a[0].Int()), a[1].Int(), int(a[2].Int()))
	},
	"connect": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.withAddress(t, trace.Connect, a, func(file *vfs.FileDescription, s socket.Socket, b []byte) error {
			blocking := file.StatusFlags()&linux.SOCK_NONBLOCK == 0
			return linuxerr.ConvertIntr(s.Connect(t, b, blocking).ToError(), linuxerr.ERESTARTSYS)
		})
	},
	"bind": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return 0, w.withAddress(t, trace.Bind, a, func(_ *vfs.FileDescription, s socket.Socket, b []byte) error {
			return s.Bind(t, b).ToError()
		})
	},
	"listen": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		file, s, err := socketOf(t, a[0].Int())
		if err != nil {
			return 0, err
		}
		defer file.DecRef(t)
		err = s.Listen(t, int(min(a[1].Uint(), maxBacklog))+1).ToError()
		f := sockFact(t, trace.Listen, s, err)
		f.Path, f.Flags = localAddress(t, s)
		w.emit(&f)
		return 0, err
	},
	"accept": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return w.accept(t, a[0].Int(), a[1].Pointer(), a[2].Pointer(), 0)
	},
	"accept4": func(w *factWriter, t *kernel.Task, a arch.SyscallArguments) (uintptr, error) {
		return w.accept(t, a[0].Int(), a[1].Pointer(), a[2].Pointer(), int(a[3].Int()))
	},
}

func (w *factWriter) socket(t *kernel.Task, family int, stype int32, protocol int) (uintptr, error) {
	if stype & ^(0xf|linux.SOCK_NONBLOCK|linux.SOCK_CLOEXEC) != 0 {
		return 0, linuxerr.EINVAL
	}
	f := trace.Fact{Op: trace.Socket, PID: pidOf(t), A: uint64(uint32(family)), B: uint64(stype & 0xf), C: uint64(uint32(protocol))}
	s, e := socket.New(t, family, linux.SockType(stype&0xf), protocol)
	if e != nil {
		err := e.ToError()
		f.Errno = errnoOf(err)
		w.emit(&f)
		return 0, err
	}
	defer s.DecRef(t)
	w.emit(&f)
	if err := s.SetStatusFlags(t, t.Credentials(), uint32(stype&linux.SOCK_NONBLOCK)); err != nil {
		return 0, err
	}
	fd, err := t.NewFDFrom(0, s, kernel.FDFlags{CloseOnExec: stype&linux.SOCK_CLOEXEC != 0})
	return uintptr(fd), err
}

// socketOf returns the socket of fd, with a reference for the caller.
func socketOf(t *kernel.Task, fd int32) (*vfs.FileDescription, socket.Socket, error) {
	file := t.GetFile(fd)
	if file == nil {
		return nil, nil, linuxerr.EBADF
	}
	s, ok := file.Impl().(socket.Socket)
	if !ok {
		file.DecRef(t)
		return nil, nil, linuxerr.ENOTSOCK
	}
	return file, s, nil
}

func sockFact(t *kernel.Task, op trace.Op, s socket.Socket, err error) trace.Fact {
	family, _, _ := s.Type()
	return trace.Fact{Op: op, PID: pidOf(t), Errno: errnoOf(err), A: uint64(uint32(family))}
}

// withAddress serves connect and bind.
func (w *factWriter) withAddress(t *kernel.Task, op trace.Op, a arch.SyscallArguments, do func(*vfs.FileDescription, socket.Socket, []byte) error) error {
	file, s, err := socketOf(t, a[0].Int())
	if err != nil {
		return err
	}
	defer file.DecRef(t)
	b, err := syslinux.CaptureAddress(t, a[1].Pointer(), a[2].Uint())
	if err != nil {
		return err
	}
	err = do(file, s, b)
	f := sockFact(t, op, s, err)
	f.Path, f.Flags = address(b)
	w.emit(&f)
	return err
}

func (w *factWriter) accept(t *kernel.Task, fd int32, addr, addrLen hostarch.Addr, flags int) (uintptr, error) {
	if flags & ^(linux.SOCK_NONBLOCK|linux.SOCK_CLOEXEC) != 0 {
		return 0, linuxerr.EINVAL
	}
	file, s, err := socketOf(t, fd)
	if err != nil {
		return 0, err
	}
	defer file.DecRef(t)
	blocking := file.StatusFlags()&linux.SOCK_NONBLOCK == 0
	nfd, peer, peerLen, e := s.Accept(t, true, flags, blocking)
	if e != nil {
		err := linuxerr.ConvertIntr(e.ToError(), linuxerr.ERESTARTSYS)
		// A polling server would report "nobody was there" in each round.
		if e != syserr.ErrWouldBlock && e != syserr.ErrInterrupted {
			f := sockFact(t, trace.Accept, s, err)
			f.Path, f.Flags = localAddress(t, s)
			w.emit(&f)
		}
		return 0, err
	}
	f := sockFact(t, trace.Accept, s, nil)
	var fl trace.Flags
	f.Path, f.Flags = localAddress(t, s)
	f.Path2, fl = sockAddress(peer, peerLen)
	f.Flags |= fl
	w.emit(&f)
	if addrLen != 0 {
		if err := writeAddress(t, peer, peerLen, addr, addrLen); linuxerr.Equals(linuxerr.EINVAL, err) {
			return 0, err
		}
	}
	return uintptr(nfd), nil
}

func localAddress(t *kernel.Task, s socket.Socket) (string, trace.Flags) {
	addr, n, e := s.GetSockName(t)
	if e != nil {
		return "", 0
	}
	return sockAddress(addr, n)
}

func sockAddress(addr linux.SockAddr, n uint32) (string, trace.Flags) {
	m, ok := addr.(marshal.Marshallable)
	if !ok || addr == nil {
		return "", 0
	}
	b := make([]byte, m.SizeBytes())
	m.MarshalUnsafe(b)
	return address(b[:min(int(n), len(b))])
}

// address returns a sockaddr as text, or in hexadecimal if it has no textual
// form. The path of a Unix socket is Asked: only the call knows where it led
// through which root, directory and links. A relative path begins with "./", so
// that it cannot look like an abstract name.
func address(b []byte) (string, trace.Flags) {
	if len(b) < 2 {
		return fmt.Sprintf("%x", b), 0
	}
	port := func() uint16 { return uint16(b[2])<<8 | uint16(b[3]) }
	switch family := int(hostarch.ByteOrder.Uint16(b)); {
	case family == linux.AF_INET && len(b) >= 8:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port()).String(), 0
	case family == linux.AF_INET6 && len(b) >= 24:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), port()).String(), 0
	case family == linux.AF_UNIX && len(b) == 2:
		return "unix:", 0
	case family == linux.AF_UNIX && b[2] == 0:
		return "unix:@" + string(b[3:]), 0
	case family == linux.AF_UNIX:
		name, _, _ := bytes.Cut(b[2:], []byte{0})
		path := string(name)
		if !strings.HasPrefix(path, "/") {
			path = "./" + path
		}
		return "unix:" + path, trace.Asked
	case family == linux.AF_UNSPEC:
		return "none", 0
	case family == linux.AF_NETLINK:
		return "netlink", 0
	default:
		return fmt.Sprintf("family %d: %x", family, b[2:]), 0
	}
}

// Messages that carry a destination. The address is copied separately from the
// call, so it is claimed: the gateway itself sees what leaves the bottle. Only
// the first packet of a process to an address is a fact.
var sendCalls = map[string]around{
	"sendto": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		if a[4].Pointer() == 0 {
			return orig(t, no, a)
		}
		b, cerr := syslinux.CaptureAddress(t, a[4].Pointer(), a[5].Uint())
		r, c, err := orig(t, no, a)
		if cerr == nil {
			w.sent(t, a[0].Int(), b, err)
		}
		return r, c, err
	},
	"sendmsg": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		b := messageAddress(t, a[1].Pointer())
		r, c, err := orig(t, no, a)
		w.sent(t, a[0].Int(), b, err)
		return r, c, err
	},
	"sendmmsg": func(w *factWriter, t *kernel.Task, no uintptr, a arch.SyscallArguments, orig call) (uintptr, sysControl, error) {
		var to [][]byte
		for i := range uint64(min(a[2].Uint(), linux.UIO_MAXIOV)) {
			at, ok := a[1].Pointer().AddLength(i * messageStep)
			if !ok {
				break
			}
			if b := messageAddress(t, at); b != nil {
				to = append(to, b)
			}
		}
		r, c, err := orig(t, no, a)
		for _, b := range to {
			w.sent(t, a[0].Int(), b, err)
		}
		return r, c, err
	},
}

// messageStep is the size of struct mmsghdr on 64-bit machines.
const messageStep = 64

// messageAddress copies the address of a message, or returns nil.
func messageAddress(t *kernel.Task, at hostarch.Addr) []byte {
	var m syslinux.MessageHeader64
	if _, err := m.CopyIn(t, at); err != nil || m.Name == 0 || m.NameLen == 0 {
		return nil
	}
	b, err := syslinux.CaptureAddress(t, hostarch.Addr(m.Name), m.NameLen)
	if err != nil {
		return nil
	}
	return b
}

func (w *factWriter) sent(t *kernel.Task, fd int32, to []byte, err error) {
	if len(to) == 0 || linuxerr.Equals(linuxerr.ErrWouldBlock, err) {
		return
	}
	file, s, serr := socketOf(t, fd)
	if serr != nil {
		return
	}
	defer file.DecRef(t)
	f := sockFact(t, trace.Send, s, err)
	if !w.sends.first(f.PID, f.Errno, to) {
		return
	}
	f.Path, f.Flags = address(to)
	f.Flags |= trace.Claimed
	w.emit(&f)
}

// sends remembers the addresses to which living processes have sent. When it is
// full, each further message is a fact.
type sends struct {
	mu sync.Mutex
	n  int
	of map[uint32]map[string]bool
}

const maxSends = 4096

func (s *sends) first(pid, errno uint32, to []byte) bool {
	key := string(to) + string(rune(errno))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[pid][key] {
		return false
	}
	if s.n < maxSends {
		if s.of == nil {
			s.of = map[uint32]map[string]bool{}
		}
		if s.of[pid] == nil {
			s.of[pid] = map[string]bool{}
		}
		s.of[pid][key] = true
		s.n++
	}
	return true
}

func (s *sends) forget(pid uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n -= len(s.of[pid])
	delete(s.of, pid)
}
