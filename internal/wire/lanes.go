package wire

import (
	"errors"
	"fmt"
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
	// laneCount is how many connections have a lane at once. One more goes
	// as packets.
	laneCount = 256
	// laneRing holds the bytes of one direction; a power of two. With both,
	// for all lanes, memory is bounded by 128 MiB.
	laneRing = 256 << 10
	// laneKeep is how many lanes keep their memory when nobody uses them.
	laneKeep = 16
)

// LaneFiles are the descriptors of lanes: the memory, and for each side a
// bell that wakes it up.
type LaneFiles struct{ Mem, ToHost, ToBottle *os.File }

// NewLanes makes them. Whoever takes them closes them.
func NewLanes() (f LaneFiles, err error) {
	defer func() {
		if err != nil {
			_ = f.Close()
			f = LaneFiles{}
		}
	}()
	fd, err := unix.MemfdCreate("carboy-lanes", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return f, fmt.Errorf("wire: memory for lanes: %w", err)
	}
	f.Mem = os.NewFile(uintptr(fd), "lanes")
	if err := unix.Ftruncate(fd, laneSize); err != nil {
		return f, fmt.Errorf("wire: memory for lanes: %w", err)
	}
	// A memory that the other side could shorten would be a way to kill us.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return f, fmt.Errorf("wire: seal the lanes: %w", err)
	}
	for _, to := range []**os.File{&f.ToHost, &f.ToBottle} {
		// It blocks, so that Go's poller does not look at it where it is only
		// passed on or rung; see mapLanes.
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			return f, fmt.Errorf("wire: bell: %w", err)
		}
		*to = os.NewFile(uintptr(fd), "bell")
	}
	return f, nil
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

// Dup makes descriptors of their own of the same lanes.
func (f LaneFiles) Dup() (d LaneFiles, err error) {
	for i, to := range []**os.File{&d.Mem, &d.ToHost, &d.ToBottle} {
		fd, err := unix.FcntlInt(f.Files()[i].Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			_ = d.Close()
			return LaneFiles{}, fmt.Errorf("wire: lanes: %w", err)
		}
		*to = os.NewFile(uintptr(fd), f.Files()[i].Name())
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
	pass atomic.Uint32 // counts what the lane was opened for
	size uint16        // of addr
	port uint16
	addr [16]byte
	_    [128 - 44]byte
}

// laneHost is written by the gateway.
type laneHost struct {
	laneEnds
	answer atomic.Uint32 // the pass that is answered, and the answer
	_      [128 - 24]byte
}

// bell says which lanes have news, and whether somebody must be woken for them.
type bell struct {
	news   [laneCount / 64]atomic.Uint64
	asleep atomic.Uint32
	_      [4096 - laneCount/8 - 4]byte
}

// laneMem is the memory, but for the rings, that follow.
type laneMem struct {
	toHost, toBottle bell
	bottle           [laneCount]laneBottle
	host             [laneCount]laneHost
}

const (
	laneHead = (int64(unsafe.Sizeof(laneMem{})) + 4095) &^ 4095
	laneSize = laneHead + laneCount*2*laneRing
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
	// It fails when the count is at its end, and then it has been rung.
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), 8)
}

// listen calls f for each lane that has news, until stop says so. Whoever makes
// it do so rings the bell.
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
