package wire

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/rawfile"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

const (
	// readBatch bounds the packets that one system call reads.
	readBatch = 16

	// writeBatch bounds the packets that one system call writes.
	writeBatch = 64

	// writePatience, in milliseconds, is how long a writer waits for a bottle that
	// does not read. Then it drops the packet, as a network card would, so that a
	// stopped bottle cannot block the gateway's goroutines.
	writePatience = 1000
)

// readSizes are the sizes of the buffers for one packet. Only filled buffers are given
// away, so a short packet holds 2 KiB and not 64. The headers are contiguous in the
// first.
var readSizes = [...]int{2048, 16384, 16384, 32768}

// Filter decides whether a packet from the bottle is delivered to the
// gateway's stack. head holds the beginning of the packet, up to 2048 bytes in
// one piece, size its whole length. head is only valid during the call. The
// filter runs on the reader's goroutine and must not block.
//
// If the wire carries Ethernet frames, the filter sees the packets in them. head is
// empty for a frame that should not exist. Such frames and those for groups are not
// delivered whatever the filter says.
type Filter func(head []byte, size int) (deliver bool)

// Link is the gateway's network card: a stack.LinkEndpoint over the host's end of a
// wire.
//
// It replaces gVisor's fdbased endpoint, which drops what a full socket does not take
// (a download then depends on retransmissions), spins when the peer has died, and
// indexes into packets before it has checked them.
//
// Methods are safe for concurrent use.
type Link struct {
	file   *os.File
	filter Filter
	frames *framing // nil: the wire carries IP packets

	// fdMu keeps the descriptor valid during raw writes: writers hold it shared during
	// a system call, Shutdown exclusively. The reader needs no lock: Shutdown waits
	// for its end first.
	fdMu   sync.RWMutex
	fd     int
	closed bool

	mu         sync.RWMutex
	dispatcher stack.NetworkDispatcher
	started    bool
	ended      bool // no reader may start
	mtu        uint32

	hurry atomic.Bool // set near the end: writers don't wait

	done    chan struct{} // closed when the reader has ended
	readErr error         // valid after done

	stats LinkStats
}

// LinkStats counts packets since the start. Those from the bottle that the stack does
// not see are in Filtered or, if the wire carries Ethernet, in Neighbour when they were
// answered and in Quiet when a kernel sends them by itself.
type LinkStats struct {
	In, Out, Filtered, WriteDropped, WriteWaits, Neighbour, Quiet atomic.Uint64
}

var _ stack.LinkEndpoint = (*Link)(nil)

// ErrPeerClosed says that the bottle's end is gone.
var ErrPeerClosed = errors.New("wire: the bottle's end is closed")

// NewLink returns a card and takes ownership of host. A nil filter delivers nothing.
func NewLink(host *os.File, cfg Config, filter Filter) (*Link, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	raw, err := host.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("wire: link: %w", err)
	}
	l := &Link{file: host, filter: filter, frames: newFraming(cfg), mtu: cfg.MTU, done: make(chan struct{})}
	if err := raw.Control(func(fd uintptr) { l.fd = int(fd) }); err != nil {
		return nil, fmt.Errorf("wire: link: %w", err)
	}
	return l, nil
}

// Stats returns the live counters.
func (l *Link) Stats() *LinkStats { return &l.stats }

// Done returns a channel that is closed when the reader has ended: the bottle's end is
// gone or the link was closed. It stays open until a dispatcher was attached.
func (l *Link) Done() <-chan struct{} { return l.done }

// Err returns why the reader ended; nil before [Link.Done].
func (l *Link) Err() error {
	select {
	case <-l.done:
		return l.readErr
	default:
		return nil
	}
}

// Attach starts the reader. Later calls do not start another. nil detaches: packets
// are then read and dropped.
func (l *Link) Attach(d stack.NetworkDispatcher) {
	l.mu.Lock()
	start := !l.started && !l.ended && d != nil
	l.started = l.started || start
	l.dispatcher = d
	l.mu.Unlock()
	if start {
		go l.readLoop()
	}
}

// IsAttached implements stack.LinkEndpoint.
func (l *Link) IsAttached() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.dispatcher != nil
}

// readLoop delivers packets until the descriptor is closed.
func (l *Link) readLoop() {
	defer close(l.done)
	r := &reader{framed: l.frames != nil}
	defer r.release()
	for {
		n, err := r.recv(l.fd)
		if err != nil {
			l.readErr = err
			return
		}
		for i := range n {
			l.deliver(&r.slots[i], int(r.hdrs[i].Len))
		}
	}
}

func (l *Link) deliver(s *slot, size int) {
	l.stats.In.Add(1)
	if l.frames != nil {
		if size = l.openFrame(s, size); size == 0 {
			return
		}
	}
	head := s.views[0].AsSlice()[:min(size, readSizes[0])]
	if l.filter == nil || !l.filter(head, size) {
		l.stats.Filtered.Add(1)
		return
	}
	var proto tcpip.NetworkProtocolNumber
	switch head[0] >> 4 {
	case header.IPv4Version:
		proto = header.IPv4ProtocolNumber
	case header.IPv6Version:
		proto = header.IPv6ProtocolNumber
	default:
		l.stats.Filtered.Add(1)
		return
	}
	l.mu.RLock()
	d := l.dispatcher
	l.mu.RUnlock()
	if d == nil {
		return
	}
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: s.take(size)})
	pkt.NetworkProtocolNumber = proto
	// The bytes came through memory, not over a line. The sender left the checksum to
	// us (TX offload); a wrong one would hurt only itself.
	pkt.RXChecksumValidated = true
	d.DeliverNetworkPacket(proto, pkt)
	pkt.DecRef()
}

// slot holds the buffers for one packet.
type slot struct {
	frame [frameHeader]byte
	views [len(readSizes)]*buffer.View
	iovs  [1 + len(readSizes)]unix.Iovec // of frame and of views
}

func (s *slot) fill() {
	for i, v := range s.views {
		if v == nil {
			s.views[i] = buffer.NewViewSize(readSizes[i])
			s.iovs[1+i].Base = s.views[i].BasePtr()
			s.iovs[1+i].SetLen(readSizes[i])
		}
	}
}

// buffers returns where a packet goes or, if framed, a frame.
func (s *slot) buffers(framed bool) []unix.Iovec {
	if !framed {
		return s.iovs[1:]
	}
	s.iovs[0].Base = &s.frame[0]
	s.iovs[0].SetLen(frameHeader)
	return s.iovs[:]
}

// take removes and returns the buffers that hold n bytes.
func (s *slot) take(n int) buffer.Buffer {
	var b buffer.Buffer
	for i, v := range s.views {
		if n <= 0 {
			break
		}
		if v.Size() > n {
			v.CapLength(n)
		}
		n -= v.Size()
		s.views[i] = nil
		_ = b.Append(v)
	}
	return b
}

type reader struct {
	framed bool
	slots  [readBatch]slot
	hdrs   [readBatch]rawfile.MMsgHdr
}

func (r *reader) release() {
	for i := range r.slots {
		for _, v := range r.slots[i].views {
			if v != nil {
				v.Release()
			}
		}
	}
}

// recv blocks until packets arrive and returns how many slots it filled.
//
// It polls itself. Go's poller would also watch the descriptor for writing, and so
// wake this process for every packet that the bottle takes.
func (r *reader) recv(fd int) (int, error) {
	for i := range r.slots {
		r.slots[i].fill()
		r.hdrs[i].Len = 0
		iovs := r.slots[i].buffers(r.framed)
		r.hdrs[i].Msg.Iov = &iovs[0]
		r.hdrs[i].Msg.SetIovlen(len(iovs))
	}
	var n int
	for {
		got, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&r.hdrs[0])), readBatch, unix.MSG_DONTWAIT, 0, 0)
		if errno == unix.EAGAIN {
			p := rawfile.PollEvent{FD: int32(fd), Events: unix.POLLIN}
			_, errno = rawfile.BlockingPoll(&p, 1, nil)
			if errno == 0 {
				continue
			}
		}
		switch errno {
		case 0:
		case unix.EINTR:
			continue
		case unix.ECONNRESET, unix.EPIPE:
			return 0, ErrPeerClosed
		default:
			return 0, fmt.Errorf("wire: read: %w", errno)
		}
		n = int(got)
		break
	}
	// The end of a SEQPACKET stream reads as endless empty messages. A bottle that
	// sends an empty one harms only its own wire.
	for i := range n {
		if r.hdrs[i].Len == 0 {
			if i == 0 {
				return 0, ErrPeerClosed
			}
			return i, nil
		}
	}
	return n, nil
}

// WritePackets implements stack.LinkEndpoint. It waits a bounded time for a
// slow bottle, which is what makes back-pressure reach the upstream server.
func (l *Link) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	slice := pkts.AsSlice()
	if len(slice) == 1 {
		var arr [8]unix.Iovec
		return l.writeOne(arr[:0], slice[0])
	}
	sent := 0
	for len(slice) > 0 {
		batch := slice[:min(len(slice), writeBatch)]
		n, err := l.writeBatch(batch)
		sent += n
		if err != nil {
			return sent, err
		}
		slice = slice[len(batch):]
	}
	return sent, nil
}

func (l *Link) appendIovecs(iovs []unix.Iovec, pkt *stack.PacketBuffer) []unix.Iovec {
	for _, b := range pkt.AsSlices() {
		if len(b) == 0 {
			continue
		}
		if l.frames != nil && len(iovs) == 0 {
			iovs = append(iovs, l.frames.iovec(b[0]))
		}
		v := unix.Iovec{Base: &b[0]}
		v.SetLen(len(b))
		iovs = append(iovs, v)
	}
	return iovs
}

func (l *Link) writeOne(iovs []unix.Iovec, pkt *stack.PacketBuffer) (int, tcpip.Error) {
	iovs = l.appendIovecs(iovs, pkt)
	var hdr [1]rawfile.MMsgHdr
	hdr[0].Msg.Iov = &iovs[0]
	hdr[0].Msg.SetIovlen(len(iovs))
	return l.send(hdr[:])
}

func (l *Link) writeBatch(batch []*stack.PacketBuffer) (int, tcpip.Error) {
	hdrs := make([]rawfile.MMsgHdr, len(batch))
	for i, pkt := range batch {
		iovs := l.appendIovecs(make([]unix.Iovec, 0, 8), pkt)
		hdrs[i].Msg.Iov = &iovs[0]
		hdrs[i].Msg.SetIovlen(len(iovs))
	}
	return l.send(hdrs)
}

// Inject writes one IP packet.
func (l *Link) Inject(packet []byte) {
	if len(packet) == 0 {
		return
	}
	v := [2]unix.Iovec{1: {Base: &packet[0]}}
	v[1].SetLen(len(packet))
	iovs := v[1:]
	if l.frames != nil {
		v[0] = l.frames.iovec(packet[0])
		iovs = v[:]
	}
	var hdr [1]rawfile.MMsgHdr
	hdr[0].Msg.Iov = &iovs[0]
	hdr[0].Msg.SetIovlen(len(iovs))
	_, _ = l.send(hdr[:])
}

// send writes messages. It waits at most writePatience each time the socket is full.
func (l *Link) send(hdrs []rawfile.MMsgHdr) (int, tcpip.Error) {
	l.fdMu.RLock()
	defer l.fdMu.RUnlock()
	if l.closed {
		return 0, &tcpip.ErrClosedForSend{}
	}
	sent := 0
	for sent < len(hdrs) {
		n, errno := rawfile.NonBlockingSendMMsg(l.fd, hdrs[sent:])
		switch errno {
		case 0:
			sent += n
			l.stats.Out.Add(uint64(n))
		case unix.EINTR:
		case unix.EAGAIN, unix.ENOBUFS:
			l.stats.WriteWaits.Add(1)
			if l.hurry.Load() || !waitWritable(l.fd) {
				l.stats.WriteDropped.Add(uint64(len(hdrs) - sent))
				return sent, &tcpip.ErrNoBufferSpace{}
			}
		default:
			return sent, &tcpip.ErrClosedForSend{}
		}
	}
	return sent, nil
}

func waitWritable(fd int) bool {
	p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	for {
		n, err := unix.Poll(p[:], writePatience)
		if err == unix.EINTR {
			continue
		}
		return err == nil && n == 1
	}
}

// Hurry makes writers drop what a full socket does not take, from now on. It is called
// before the end, so that a bottle that does not read can't delay it.
func (l *Link) Hurry() { l.hurry.Store(true) }

// Shutdown ends both directions and waits for the reader. It may be called more than
// once.
func (l *Link) Shutdown() {
	l.mu.Lock()
	l.ended = true
	started := l.started
	l.mu.Unlock()
	l.fdMu.RLock()
	if !l.closed {
		// Wake the reader and waiting writers.
		_ = unix.Shutdown(l.fd, unix.SHUT_RDWR)
	}
	l.fdMu.RUnlock()
	if started {
		<-l.done
	}
	l.fdMu.Lock()
	if !l.closed {
		l.closed = true
		_ = l.file.Close()
	}
	l.fdMu.Unlock()
}

// Close implements stack.LinkEndpoint: the stack calls it when the card is
// removed, from where the reader must not be waited for.
func (l *Link) Close() {}

// Wait implements stack.LinkEndpoint. [Link.Shutdown] is what ends the reader.
func (l *Link) Wait() {}

// MTU implements stack.LinkEndpoint.
func (l *Link) MTU() uint32 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mtu
}

// SetMTU implements stack.LinkEndpoint.
func (l *Link) SetMTU(mtu uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mtu = mtu
}

// Capabilities implements stack.LinkEndpoint. A virtual machine's kernel verifies
// checksums, so the stack must compute them for it.
func (l *Link) Capabilities() stack.LinkEndpointCapabilities {
	if l.frames != nil {
		return stack.CapabilityRXChecksumOffload
	}
	return stack.CapabilityRXChecksumOffload | stack.CapabilityTXChecksumOffload
}

// MaxHeaderLength implements stack.LinkEndpoint: the stack leaves no room for a link
// header. An Ethernet header is a message's first piece.
func (l *Link) MaxHeaderLength() uint16 { return 0 }

// LinkAddress implements stack.LinkEndpoint: there is none, so the stack asks for no
// neighbours.
func (l *Link) LinkAddress() tcpip.LinkAddress { return "" }

// SetLinkAddress implements stack.LinkEndpoint.
func (l *Link) SetLinkAddress(tcpip.LinkAddress) {}

// ARPHardwareType implements stack.LinkEndpoint.
func (l *Link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }

// AddHeader implements stack.LinkEndpoint.
func (l *Link) AddHeader(*stack.PacketBuffer) {}

// ParseHeader implements stack.LinkEndpoint.
func (l *Link) ParseHeader(*stack.PacketBuffer) bool { return true }

// SetOnCloseAction implements stack.LinkEndpoint.
func (l *Link) SetOnCloseAction(func()) {}
