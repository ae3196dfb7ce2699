package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A channel is the wire's fast path for a connection of the bottle: a pair of ring
// buffers in memory that both sides map. Each byte is copied in once and out once, and
// TCP is spoken only outside. A channel carries one connection at a time: the bottle
// asks for an address and port, the gateway answers.
//
// The memory is as hostile as packets are. Each side has its own fields and keeps
// private copies of its own positions. It checks the other side's fields before it
// believes them, and copies data out before it looks at it. A bottle that breaks the
// rules breaks only its own connections. The memory holds nothing else, its size is
// sealed, and no descriptor is passed for a connection.
const (
	// ChannelCount is the number of channels. Further connections go as packets.
	ChannelCount = 256
	// channelRing is the size of the ring for one direction, in bytes; a power of two.
	// All rings together use at most 128 MiB.
	channelRing = 256 << 10
	// channelKeep is the number of channels that keep their memory while unused.
	channelKeep = 16
)

// ChannelFiles holds the descriptors of one side: the memory, and for each side a
// doorbell that wakes it up.
//
// A descriptor that both sides have is as hostile as the memory: each side can read
// and write it, and can change for both whether that blocks. So only the gateway has
// the doorbell to the bottle. The bottle gets an epoll instance that contains the
// doorbell: it can wait for it but not touch it. The bottle rings the doorbell to the
// gateway. The gateway only waits for that one: it never reads or writes it, and never
// depends on it being rung.
type ChannelFiles struct{ Mem, ToHost, ToBottle *os.File }

// NewChannels creates the channels and returns the descriptors for both sides. The
// receiver of each closes them.
func NewChannels() (host, bottle ChannelFiles, err error) {
	defer func() {
		if err != nil {
			_ = host.Close()
			_ = bottle.Close()
			host, bottle = ChannelFiles{}, ChannelFiles{}
		}
	}()
	fd, err := unix.MemfdCreate("carboy-channels", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return host, bottle, fmt.Errorf("wire: memory for channels: %w", err)
	}
	host.Mem = os.NewFile(uintptr(fd), "channels")
	if err := unix.Ftruncate(fd, channelSize); err != nil {
		return host, bottle, fmt.Errorf("wire: memory for channels: %w", err)
	}
	// If the other side could shrink the memory, access to it would kill this process.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return host, bottle, fmt.Errorf("wire: seal the channels: %w", err)
	}
	for _, to := range []**os.File{&host.ToHost, &host.ToBottle} {
		// Blocking, so that Go's poller ignores it where it is only passed on or rung;
		// see mapChannels.
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			return host, bottle, fmt.Errorf("wire: doorbell: %w", err)
		}
		*to = os.NewFile(uintptr(fd), "doorbell")
	}
	for from, to := range map[*os.File]**os.File{host.Mem: &bottle.Mem, host.ToHost: &bottle.ToHost} {
		if *to, err = dup(from); err != nil {
			return host, bottle, err
		}
	}
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return host, bottle, fmt.Errorf("wire: doorbell: %w", err)
	}
	bottle.ToBottle = os.NewFile(uintptr(ep), "doorbell")
	const edge = 1 << 31 // EPOLLET: report each ring
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, int(host.ToBottle.Fd()), &unix.EpollEvent{Events: unix.EPOLLIN | edge}); err != nil {
		return host, bottle, fmt.Errorf("wire: doorbell: %w", err)
	}
	return host, bottle, nil
}

func dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("wire: channels: %w", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// Files returns the descriptors in the order that [ChannelFilesOf] takes.
func (f ChannelFiles) Files() []*os.File { return []*os.File{f.Mem, f.ToHost, f.ToBottle} }

// ChannelFilesOf is the inverse of [ChannelFiles.Files].
func ChannelFilesOf(files []*os.File) (ChannelFiles, error) {
	if len(files) != 3 {
		return ChannelFiles{}, fmt.Errorf("wire: channels are 3 descriptors, not %d", len(files))
	}
	return ChannelFiles{files[0], files[1], files[2]}, nil
}

// dup duplicates the descriptors.
func (f ChannelFiles) dup() (d ChannelFiles, err error) {
	for i, to := range []**os.File{&d.Mem, &d.ToHost, &d.ToBottle} {
		if *to, err = dup(f.Files()[i]); err != nil {
			_ = d.Close()
			return ChannelFiles{}, err
		}
	}
	return d, nil
}

// Close closes the descriptors.
func (f ChannelFiles) Close() error {
	return errors.Join(closeFile(f.Mem), closeFile(f.ToHost), closeFile(f.ToBottle))
}

// Flags of a side of a channel.
const (
	flagEnd   = 1 << iota // no more bytes follow those in the ring
	flagReset             // the connection was reset
	flagGone              // this side takes no more bytes
)

// The gateway's answers, in the low bits of channelHost.answer.
const (
	answerDone    = iota // no connection
	answerOpen           // connected
	answerRefused        // refused
	answerBits    = 2    // bits for the answer
	maxGeneration = 1<<(32-answerBits) - 1
)

func answerOf(generation, answer uint32) uint32 { return generation<<answerBits | answer }

// channelSide holds the fields that each side of a channel has. Positions count bytes
// since the channel was opened, modulo 2^32.
type channelSide struct {
	flags    atomic.Uint32
	put      atomic.Uint32 // bytes written, by this side
	taken    atomic.Uint32 // bytes read, by this side
	wantData atomic.Uint32 // this side waits for bytes; the other clears it
	wantRoom atomic.Uint32 // this side waits for room; the other clears it
}

// reset prepares the side for another connection.
func (s *channelSide) reset() {
	s.flags.Store(0)
	s.put.Store(0)
	s.taken.Store(0)
	s.wantData.Store(0)
	s.wantRoom.Store(0)
}

// channelBottle is the part that the bottle writes.
type channelBottle struct {
	channelSide
	generation atomic.Uint32    // counts the connections of this channel
	dest       [5]atomic.Uint32 // length of the address and port, then the address
	_          [128 - 44]byte
}

// setDest writes the destination.
func (b *channelBottle) setDest(to netip.AddrPort) {
	addr := to.Addr().AsSlice()
	b.dest[0].Store(uint32(len(addr))<<16 | uint32(to.Port()))
	for i := 0; i < len(addr); i += 4 {
		b.dest[1+i/4].Store(binary.BigEndian.Uint32(addr[i:]))
	}
}

// getDest reads each word once. For a malformed address it returns an invalid
// AddrPort.
func (b *channelBottle) getDest() netip.AddrPort {
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

// channelHost is the part that the gateway writes.
type channelHost struct {
	channelSide
	answer atomic.Uint32 // the generation that is answered, and the answer
	_      [128 - 24]byte
}

// doorbell marks the channels with changes for one side, and whether that side sleeps
// and must be woken.
type doorbell struct {
	pending [ChannelCount / 64]atomic.Uint64
	asleep  atomic.Uint32
	_       [4096 - ChannelCount/8 - 4]byte
}

// channelMem is the layout of the memory. The rings follow it.
type channelMem struct {
	toHost, toBottle doorbell
	bottle           [ChannelCount]channelBottle
	host             [ChannelCount]channelHost
}

const (
	channelHead = (int64(unsafe.Sizeof(channelMem{})) + 4095) &^ 4095
	channelSize = channelHead + ChannelCount*2*channelRing
)

// The layout is a protocol: it must not change by accident.
var _ = [1]struct{}{}[unsafe.Sizeof(channelBottle{})-128]
var _ = [1]struct{}{}[unsafe.Sizeof(channelHost{})-128]
var _ = [1]struct{}{}[unsafe.Sizeof(doorbell{})-4096]

// channels is one side's view of all channels.
type channels struct {
	mem    *channelMem
	raw    []byte
	memFD  int
	files  ChannelFiles
	bellFD int // rings for the other side
	bell   syscall.RawConn
	own    *os.File // keeps the descriptor of bell open
}

// mapChannels maps the memory for one side, which waits for mine and rings yours.
func mapChannels(f ChannelFiles, mine, yours *os.File) (channels, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Mem.Fd()), &st); err != nil {
		return channels{}, fmt.Errorf("wire: channels: %w", err)
	}
	if st.Size != channelSize {
		return channels{}, fmt.Errorf("wire: channels have %d bytes, not %d", st.Size, channelSize)
	}
	fd, err := unix.FcntlInt(mine.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return channels{}, fmt.Errorf("wire: doorbell: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return channels{}, fmt.Errorf("wire: doorbell: %w", err)
	}
	own := os.NewFile(uintptr(fd), "doorbell")
	bell, err := own.SyscallConn()
	if err != nil {
		_ = own.Close()
		return channels{}, fmt.Errorf("wire: doorbell: %w", err)
	}
	raw, err := unix.Mmap(int(f.Mem.Fd()), 0, int(channelSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		_ = own.Close()
		return channels{}, fmt.Errorf("wire: map the channels: %w", err)
	}
	return channels{
		mem: (*channelMem)(unsafe.Pointer(&raw[0])), raw: raw, memFD: int(f.Mem.Fd()), files: f,
		bellFD: int(yours.Fd()), bell: bell, own: own,
	}, nil
}

func ringAt(i, direction int) int64 { return channelHead + int64(2*i+direction)*channelRing }

// ring returns the memory of one direction: 0 is towards the gateway, 1 towards the
// bottle.
func (l *channels) ring(i, direction int) []byte {
	at := ringAt(i, direction)
	return l.raw[at : at+channelRing : at+channelRing]
}

// notify marks channel i as changed, and wakes the other side if it sleeps.
func (b *doorbell) notify(i int, fd int) {
	b.pending[i/64].Or(1 << (i % 64))
	if b.asleep.Load() != 0 && b.asleep.Swap(0) != 0 {
		ringBell(fd)
	}
}

func ringBell(fd int) {
	one := [8]byte{1}
	// The write never blocks. Only the gateway can ring the doorbell to the bottle,
	// once per change; a bottle that fills its own doorbell harms only itself.
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), 8)
}

// listen calls f for each channel with changes. It returns when c is closed, or at the
// next ring after stop is set.
//
// It never reads the doorbell's count: Go's poller reports each ring anyway, and
// reading would be one more event for it.
func (b *doorbell) listen(c syscall.RawConn, stop *atomic.Bool, f func(i int)) {
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

func (b *doorbell) any() bool {
	for w := range b.pending {
		if b.pending[w].Load() != 0 {
			return true
		}
	}
	return false
}

func (b *doorbell) deliver(f func(i int)) (any bool) {
	for w := range b.pending {
		if b.pending[w].Load() == 0 {
			continue
		}
		for set := b.pending[w].Swap(0); set != 0; set &= set - 1 {
			any = true
			f(w*64 + bits.TrailingZeros64(set))
		}
	}
	return any
}

// span returns the contiguous piece of a ring that starts at a position, at most n
// bytes.
func span(ring []byte, at, n uint32) []byte {
	at %= channelRing
	return ring[at:min(at+n, channelRing)]
}
