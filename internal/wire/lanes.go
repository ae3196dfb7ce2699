package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Lanes are the wire's fast part: connections of the bottle as pairs of ring
// buffers in memory that both sides map, so that a byte is copied in once and
// out once, and TCP is spoken outside alone. A lane carries one connection at a
// time: the bottle asks for an address and port, the gateway answers.
//
// The memory is as hostile as packets are. Each side writes fields of its own,
// keeps its own positions to itself as well, and believes of the other's what a
// check allows; what is judged is copied out first. A bottle that breaks the
// rules breaks its own connections. There is nothing else in the memory, its
// size is sealed, and no descriptor crosses for a connection.
const (
	// LaneCount is how many connections have a lane at once. One more goes
	// as packets.
	LaneCount = 256
	// laneRing holds the bytes of one direction; a power of two. With both,
	// for all lanes, memory is bounded by 128 MiB.
	laneRing = 256 << 10
	// laneKeep is how many lanes keep their memory when nobody uses them.
	laneKeep = 16
)

// LaneFiles are one side's descriptors of lanes: the memory, and for each side a
// bell that wakes it up.
//
// A descriptor that both sides have is as hostile as the memory: who has it can
// read and write it, and switch for both whether that blocks. So the bell to the
// bottle is the gateway's alone; the bottle gets an epoll instance in which it is,
// through which it can be waited for and not touched. Of the bell to the gateway,
// which the bottle rings, the gateway does nothing but wait for it: it never reads
// or writes it, and never needs it to be rung.
type LaneFiles struct{ Mem, ToHost, ToBottle *os.File }

// NewLanes makes them, for the gateway and for the bottle. Whoever takes them
// closes them.
func NewLanes() (host, bottle LaneFiles, err error) {
	defer func() {
		if err != nil {
			_ = host.Close()
			_ = bottle.Close()
			host, bottle = LaneFiles{}, LaneFiles{}
		}
	}()
	fd, err := unix.MemfdCreate("carboy-lanes", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return host, bottle, fmt.Errorf("wire: memory for lanes: %w", err)
	}
	host.Mem = os.NewFile(uintptr(fd), "lanes")
	if err := unix.Ftruncate(fd, laneSize); err != nil {
		return host, bottle, fmt.Errorf("wire: memory for lanes: %w", err)
	}
	// A memory that the other side could shorten would be a way to kill us.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return host, bottle, fmt.Errorf("wire: seal the lanes: %w", err)
	}
	for _, to := range []**os.File{&host.ToHost, &host.ToBottle} {
		// It blocks, so that Go's poller does not look at it where it is only
		// passed on or rung; see mapLanes.
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			return host, bottle, fmt.Errorf("wire: bell: %w", err)
		}
		*to = os.NewFile(uintptr(fd), "bell")
	}
	for from, to := range map[*os.File]**os.File{host.Mem: &bottle.Mem, host.ToHost: &bottle.ToHost} {
		if *to, err = dup(from); err != nil {
			return host, bottle, err
		}
	}
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return host, bottle, fmt.Errorf("wire: bell: %w", err)
	}
	bottle.ToBottle = os.NewFile(uintptr(ep), "bell")
	const edge = 1 << 31 // EPOLLET: each time it is rung is told of
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, int(host.ToBottle.Fd()), &unix.EpollEvent{Events: unix.EPOLLIN | edge}); err != nil {
		return host, bottle, fmt.Errorf("wire: bell: %w", err)
	}
	return host, bottle, nil
}

func dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("wire: lanes: %w", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// Files are the descriptors in the order that [LaneFilesOf] takes them.
func (f LaneFiles) Files() []*os.File { return []*os.File{f.Mem, f.ToHost, f.ToBottle} }

// LaneFilesOf is the inverse of [LaneFiles.Files].
func LaneFilesOf(files []*os.File) (LaneFiles, error) {
	if len(files) != 3 {
		return LaneFiles{}, fmt.Errorf("wire: lanes are 3 descriptors, not %d", len(files))
	}
	return LaneFiles{files[0], files[1], files[2]}, nil
}

// Dup makes descriptors of their own of the same.
func (f LaneFiles) Dup() (d LaneFiles, err error) {
	for i, to := range []**os.File{&d.Mem, &d.ToHost, &d.ToBottle} {
		if *to, err = dup(f.Files()[i]); err != nil {
			_ = d.Close()
			return LaneFiles{}, err
		}
	}
	return d, nil
}

// Close closes them.
func (f LaneFiles) Close() error {
	return errors.Join(closeFile(f.Mem), closeFile(f.ToHost), closeFile(f.ToBottle))
}

// What a side says about a lane, in its flags.
const (
	laneEnd   = 1 << iota // no more bytes follow what is in the ring
	laneReset             // the end is not an orderly one
	laneGone              // and nothing is taken any more
)

// What the gateway answers, in the low bits of laneHost.answer.
const (
	laneDone    = iota // nothing is going on
	laneOpen           // connected
	laneRefused        // refused
	laneAnswers = 2    // bits
	lanePasses  = 1<<(32-laneAnswers) - 1
)

func answerOf(pass, answer uint32) uint32 { return pass<<laneAnswers | answer }

// laneEnds is what both sides' parts of a lane have in common. Positions count
// bytes since the lane was opened, modulo 2^32.
type laneEnds struct {
	flags    atomic.Uint32
	put      atomic.Uint32 // bytes written, by this side
	taken    atomic.Uint32 // bytes read, by this side
	wantData atomic.Uint32 // this side waits for bytes
	wantRoom atomic.Uint32 // this side waits for room
}

// laneBottle is written by the bottle.
type laneBottle struct {
	laneEnds
	pass atomic.Uint32    // counts what the lane was opened for
	dest [5]atomic.Uint32 // the address's length and the port, and the address
	_    [128 - 44]byte
}

// setDest writes where the lane is to lead.
func (b *laneBottle) setDest(to netip.AddrPort) {
	addr := to.Addr().AsSlice()
	b.dest[0].Store(uint32(len(addr))<<16 | uint32(to.Port()))
	for i := 0; i < len(addr); i += 4 {
		b.dest[1+i/4].Store(binary.BigEndian.Uint32(addr[i:]))
	}
}

// getDest reads each word once. An address that is none is not valid.
func (b *laneBottle) getDest() netip.AddrPort {
	head := b.dest[0].Load()
	var addr [16]byte
	for i := range 4 {
		binary.BigEndian.PutUint32(addr[4*i:], b.dest[1+i].Load())
	}
	switch port := uint16(head); head >> 16 {
	case 4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(addr[:4])), port)
	case 16:
		return netip.AddrPortFrom(netip.AddrFrom16(addr), port)
	}
	return netip.AddrPort{}
}

// laneHost is written by the gateway.
type laneHost struct {
	laneEnds
	answer atomic.Uint32 // the pass that is answered, and the answer
	_      [128 - 24]byte
}

// bell says which lanes have news, and whether somebody must be woken for them.
type bell struct {
	news   [LaneCount / 64]atomic.Uint64
	asleep atomic.Uint32
	_      [4096 - LaneCount/8 - 4]byte
}

// laneMem is the memory, but for the rings, that follow.
type laneMem struct {
	toHost, toBottle bell
	bottle           [LaneCount]laneBottle
	host             [LaneCount]laneHost
}

const (
	laneHead = (int64(unsafe.Sizeof(laneMem{})) + 4095) &^ 4095
	laneSize = laneHead + LaneCount*2*laneRing
)

// The layout is a protocol.
var _ = [1]struct{}{}[unsafe.Sizeof(laneBottle{})-128]
var _ = [1]struct{}{}[unsafe.Sizeof(laneHost{})-128]
var _ = [1]struct{}{}[unsafe.Sizeof(bell{})-4096]

// lanes is one side's view.
type lanes struct {
	mem    *laneMem
	raw    []byte
	memFD  int
	files  LaneFiles
	bellFD int // to the other side
	bell   syscall.RawConn
	own    *os.File // behind bell
}

// mapLanes takes one side: it is woken by mine and rings yours.
func mapLanes(f LaneFiles, mine, yours *os.File) (lanes, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Mem.Fd()), &st); err != nil {
		return lanes{}, fmt.Errorf("wire: lanes: %w", err)
	}
	if st.Size != laneSize {
		return lanes{}, fmt.Errorf("wire: lanes have %d bytes, not %d", st.Size, laneSize)
	}
	fd, err := unix.FcntlInt(mine.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return lanes{}, fmt.Errorf("wire: bell: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return lanes{}, fmt.Errorf("wire: bell: %w", err)
	}
	own := os.NewFile(uintptr(fd), "bell")
	bell, err := own.SyscallConn()
	if err != nil {
		_ = own.Close()
		return lanes{}, fmt.Errorf("wire: bell: %w", err)
	}
	raw, err := unix.Mmap(int(f.Mem.Fd()), 0, int(laneSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		_ = own.Close()
		return lanes{}, fmt.Errorf("wire: map the lanes: %w", err)
	}
	return lanes{
		mem: (*laneMem)(unsafe.Pointer(&raw[0])), raw: raw, memFD: int(f.Mem.Fd()), files: f,
		bellFD: int(yours.Fd()), bell: bell, own: own,
	}, nil
}

func ringAt(i, direction int) int64 { return laneHead + int64(2*i+direction)*laneRing }

// ring is the memory of one direction: 0 is up, 1 down.
func (l *lanes) ring(i, direction int) []byte {
	at := ringAt(i, direction)
	return l.raw[at : at+laneRing : at+laneRing]
}

// tell says that lane i has news.
func (b *bell) tell(i int, fd int) {
	b.news[i/64].Or(1 << (i % 64))
	if b.asleep.Load() != 0 && b.asleep.Swap(0) != 0 {
		ringBell(fd)
	}
}

func ringBell(fd int) {
	one := [8]byte{1}
	// It never waits: a bell to the bottle can only be rung by the gateway, once
	// for each piece of news; and what a bottle makes of its own is its own harm.
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), 8)
}

// listen calls f for each lane that has news, until c is closed or, at the next
// ring, stop says so.
//
// The count of the bell is never read: Go's poller is told of each time it is
// rung, and reading would be told to it as well.
func (b *bell) listen(c syscall.RawConn, stop *atomic.Bool, f func(i int)) {
	for !stop.Load() {
		for !stop.Load() && b.deliver(f) {
		}
		woken := false
		err := c.Read(func(uintptr) bool {
			if woken {
				return true
			}
			woken = true
			b.asleep.Store(1)
			return b.any() || stop.Load()
		})
		b.asleep.Store(0)
		if err != nil {
			return
		}
	}
}

func (b *bell) any() bool {
	for w := range b.news {
		if b.news[w].Load() != 0 {
			return true
		}
	}
	return false
}

func (b *bell) deliver(f func(i int)) (any bool) {
	for w := range b.news {
		if b.news[w].Load() == 0 {
			continue
		}
		for set := b.news[w].Swap(0); set != 0; set &= set - 1 {
			any = true
			f(w*64 + trailing(set))
		}
	}
	return any
}

// span is the piece of a ring from a position on that lies in one piece, at
// most n bytes.
func span(ring []byte, at, n uint32) []byte {
	at %= laneRing
	return ring[at:min(at+n, laneRing)]
}
