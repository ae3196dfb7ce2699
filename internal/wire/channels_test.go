package wire

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/testenv"
)

var testDest = netip.MustParseAddrPort("192.0.2.1:443")

// testWire holds both sides of the channels. Connections that the bottle asks for
// arrive in asked.
type testWire struct {
	t      *testing.T
	host   *HostChannels
	bottle *BottleChannels
	asked  chan *Channel
	close  func()
}

func newTestWire(t *testing.T) *testWire {
	t.Helper()
	f, inside, err := NewChannels()
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	x := &testWire{t: t, asked: make(chan *Channel, 4*ChannelCount)}
	if x.bottle, err = NewBottleChannels(inside); err != nil {
		t.Fatal(err)
	}
	if x.host, err = NewHostChannels(f, func(l *Channel) { x.asked <- l }); err != nil {
		t.Fatal(err)
	}
	listened := make(chan struct{})
	go x.host.Listen()
	go func() { defer close(listened); x.bottle.Listen() }()
	x.close = sync.OnceFunc(func() {
		x.host.Close()
		x.bottle.stop.Store(true)
		x.bottle.own.Close()
		<-listened
		x.bottle.files.Close()
		unix.Munmap(x.bottle.raw)
	})
	t.Cleanup(func() { x.close() })
	return x
}

// program is the bottle's side of a connection and its changes.
type program struct {
	*BottleChannel
	changes *changes
}

// changes wakes everybody who waits for a change.
type changes struct {
	mu sync.Mutex
	ch chan struct{}
}

func (n *changes) next() chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ch
}

func (n *changes) tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.ch)
	n.ch = make(chan struct{})
}

func (x *testWire) ask() (program, *Channel) {
	x.t.Helper()
	n := &changes{ch: make(chan struct{})}
	c := x.bottle.Open(testDest, n.tell)
	if c == nil {
		x.t.Fatal("no channel is free")
	}
	select {
	case l := <-x.asked:
		return program{c, n}, l
	case <-time.After(testTimeout):
		x.t.Fatal("nobody was asked")
		panic("")
	}
}

func (x *testWire) open() (program, *Channel) {
	x.t.Helper()
	p, l := x.ask()
	l.Accept()
	p.until(x.t, "open", func() bool { answered, open := p.Answer(); return answered && open })
	return p, l
}

// until blocks until f is true. It checks f after each change.
func (p program) until(t *testing.T, what string, f func() bool) {
	t.Helper()
	late := time.After(testTimeout)
	for {
		next := p.changes.next()
		if f() {
			return
		}
		select {
		case <-next:
		case <-late:
			t.Fatalf("not %s", what)
		}
	}
}

func (p program) write(t *testing.T, b []byte) {
	t.Helper()
	p.until(t, "written", func() bool {
		n, _ := p.WriteFrom(bytes.NewReader(b), len(b))
		b = b[n:]
		return len(b) == 0
	})
}

func (p program) readAll(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	p.until(t, "ended", func() bool {
		ended := p.Ended()
		_, _ = p.ReadTo(&b, false)
		return ended
	})
	return b.Bytes()
}

func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

func TestChannelsCarry(t *testing.T) {
	x := newTestWire(t)
	p, l := x.open()
	if l.To() != testDest || l.LocalAddr().String() != testDest.String() {
		t.Errorf("asked for %v, %v came", testDest, l.To())
	}
	up, down := noise(3*channelRing+12345), noise(2*channelRing+54321)
	var wg sync.WaitGroup
	wg.Go(func() { p.write(t, up); p.CloseWrite() })
	wg.Go(func() {
		for b := down; len(b) > 0; {
			n, err := l.Write(b[:min(len(b), 99_999)])
			if err != nil {
				t.Error(err)
			}
			b = b[n:]
		}
		_ = l.CloseWrite()
	})
	var got []byte
	wg.Go(func() { got, _ = io.ReadAll(l) })
	if sha256.Sum256(p.readAll(t)) != sha256.Sum256(down) {
		t.Error("what came down is not what was sent")
	}
	wg.Wait()
	if !bytes.Equal(got, up) {
		t.Errorf("up came %d bytes, others than the %d that were sent", len(got), len(up))
	}
	if _, err := l.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write after the end: %v", err)
	}
	p.BottleChannel.Close(false)
	l.Close()
	if _, err := l.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read after close: %v", err)
	}
}

// A channel is used again only after both sides are done with it.
func TestChannelsAreReused(t *testing.T) {
	x := newTestWire(t)
	type pair struct {
		p program
		l *Channel
	}
	for range 3 {
		var all []pair
		for range ChannelCount {
			p, l := x.open()
			p.write(t, []byte("hello"))
			all = append(all, pair{p, l})
		}
		if x.bottle.Open(testDest, func() {}) != nil {
			t.Fatal("one channel more than there are")
		}
		for i, c := range all {
			b := make([]byte, 5)
			if _, err := io.ReadFull(c.l, b); err != nil || string(b) != "hello" {
				t.Fatalf("channel %d: %q, %v", i, b, err)
			}
			if i%2 == 0 {
				c.l.Close()
				c.p.BottleChannel.Close(false)
			} else {
				c.p.BottleChannel.Close(false)
				c.l.Close()
			}
		}
	}
	p, l := x.open()
	l.Close()
	p.until(t, "ended", p.Ended)
	q, m := x.open()
	if p.i == q.i {
		t.Error("a channel that the bottle still holds is used again")
	}
	q.BottleChannel.Close(false)
	r, n := x.open()
	if r.i == q.i {
		t.Error("a channel that the gateway still holds is used again")
	}
	m.Close()
	n.Close()
}

func TestChannelRefused(t *testing.T) {
	x := newTestWire(t)
	for range 2 * ChannelCount {
		p, l := x.ask()
		l.Refuse()
		p.until(t, "answered", func() bool { answered, _ := p.Answer(); return answered })
		if _, open := p.Answer(); open {
			t.Fatal("a refused connection is open")
		}
		p.BottleChannel.Close(true)
	}
	if p, _ := x.open(); p.Reset() {
		t.Error("the next connection begins with a reset")
	}
}

// A reset does not look like an orderly end, in either direction, and what was sent
// before it arrives.
func TestChannelReset(t *testing.T) {
	x := newTestWire(t)
	p, l := x.open()
	_, _ = l.Write([]byte("cut o"))
	l.Abort()
	if got := p.readAll(t); string(got) != "cut o" || !p.Reset() {
		t.Errorf("%q, reset %v", got, p.Reset())
	}
	p.BottleChannel.Close(false)

	p, l = x.open()
	p.write(t, []byte("cut o"))
	p.BottleChannel.Close(true)
	b, err := io.ReadAll(l)
	if string(b) != "cut o" || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%q, %v", b, err)
	}
	l.Close()

	p, l = x.open()
	p.write(t, []byte("all"))
	p.BottleChannel.Close(false)
	if b, err := io.ReadAll(l); string(b) != "all" || err != nil {
		t.Errorf("an orderly end: %q, %v", b, err)
	}
	if _, err := l.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("write to nobody: %v", err)
	}
	l.Close()

	p, l = x.open()
	p.write(t, []byte("unread"))
	l.Close()
	if p.until(t, "ended", p.Ended); !p.Reset() {
		t.Error("a close over unread bytes is not a reset")
	}
	p, l = x.open()
	l.Close()
	if p.until(t, "ended", p.Ended); p.Reset() {
		t.Error("a close over nothing is a reset")
	}
}

func TestChannelDeadlines(t *testing.T) {
	x := newTestWire(t)
	p, l := x.open()
	b := make([]byte, 8)
	_ = l.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := l.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read: %v", err)
	}
	if _, err := l.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read again: %v", err)
	}
	_ = l.SetReadDeadline(time.Time{})
	woken := make(chan error)
	l.me.wantData.Store(0)
	go func() { _, err := l.Read(b); woken <- err }()
	waitFor(t, "the reader to wait", func() bool { return l.me.wantData.Load() != 0 })
	_ = l.SetDeadline(time.Now().Add(-time.Hour))
	if err := <-woken; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read that waited: %v", err)
	}
	_ = l.SetDeadline(time.Time{})
	p.write(t, []byte("late"))
	if n, err := l.Read(b); string(b[:n]) != "late" || err != nil {
		t.Errorf("after the deadline was taken away: %q, %v", b[:n], err)
	}
	_ = l.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
	if n, err := l.Write(make([]byte, 2*channelRing)); n != channelRing || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("write to a program that does not read: %d, %v", n, err)
	}
}

// A side that does not read stops the other, and memory stays bounded.
func TestChannelBackPressure(t *testing.T) {
	x := newTestWire(t)
	p, l := x.open()
	var written atomic.Int64
	done := make(chan error)
	go func() {
		for {
			n, err := l.Write(make([]byte, 1000))
			written.Add(int64(n))
			if err != nil {
				done <- err
				return
			}
		}
	}()
	p.until(t, "full", func() bool { return p.ArmRead() == channelRing })
	waitFor(t, "the writer to wait", func() bool { return l.me.wantRoom.Load() != 0 })
	var b bytes.Buffer
	if n, _ := p.ReadTo(&b, true); n != channelRing {
		t.Errorf("peeked at %d bytes", n)
	}
	if n, _ := p.ReadTo(&b, false); n != channelRing {
		t.Errorf("read %d bytes", n)
	}
	p.until(t, "full again", func() bool { return p.ArmRead() == channelRing })
	l.Close() // while a writer waits
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the writer: %v", err)
	}
	if n := written.Load(); n != 2*channelRing {
		t.Errorf("%d bytes went into room for %d", n, 2*channelRing)
	}
	n, err := p.WriteFrom(bytes.NewReader(make([]byte, 2*channelRing)), 2*channelRing)
	if n > channelRing || err != nil {
		t.Errorf("the program wrote %d bytes, %v", n, err)
	}
}

// Impossible positions end their connection and no other.
func TestChannelRules(t *testing.T) {
	x := newTestWire(t)
	b := make([]byte, 100)
	for _, put := range []uint32{channelRing + 1, 1 << 31, ^uint32(0)} {
		p, l := x.open()
		p.me.put.Store(put)
		if n, err := l.Read(b); n != 0 || !errors.Is(err, errChannel) {
			t.Errorf("%d bytes in a ring: read %d, %v", put, n, err)
		}
		l.Abort()
		p.BottleChannel.Close(false)
	}
	for _, taken := range []uint32{1, 1 << 31, ^uint32(0) - channelRing} {
		p, l := x.open()
		p.me.taken.Store(taken)
		if n, err := l.Write(b); n != 0 || !errors.Is(err, errChannel) {
			t.Errorf("%d bytes taken of none: wrote %d, %v", taken, n, err)
		}
		l.Abort()
		p.BottleChannel.Close(false)
	}
	// The limit: exactly full.
	p, l := x.open()
	p.me.put.Store(channelRing)
	if n, err := l.Read(b); n != len(b) || err != nil {
		t.Errorf("a full ring: %d, %v", n, err)
	}
	// The destination does not change during a connection, and no second one is asked
	// for.
	p.me.setDest(netip.MustParseAddrPort("10.0.0.0:22"))
	p.me.generation.Add(1)
	p.notify()
	// One goroutine listens, and it takes several changes at a time. So the change
	// is handled when a second connection was asked for after it.
	for range 2 {
		other, ol := x.open()
		ol.Close()
		other.BottleChannel.Close(false)
	}
	if l.To() != testDest || len(x.asked) != 0 {
		t.Errorf("to %v, %d more", l.To(), len(x.asked))
	}
	p.me.generation.Store(p.generation)
	l.Abort()
	p.BottleChannel.Close(false)
	// A malformed address is refused without asking.
	for _, size := range []uint32{0, 3, 5, 17, 65535} {
		i := ChannelCount - 1
		me := &x.bottle.mem.bottle[i]
		me.dest[0].Store(size<<16 | 80)
		me.flags.Store(flagGone)
		generation := me.generation.Add(1)
		x.bottle.mem.toHost.notify(i, x.bottle.bellFD)
		waitFor(t, fmt.Sprintf("an address of %d bytes to be refused", size), func() bool {
			return x.bottle.mem.host[i].answer.Load() == answerOf(generation, answerDone)
		})
		if len(x.asked) != 0 {
			t.Errorf("an address of %d bytes was asked about", size)
		}
	}
}

// A bottle that writes arbitrary values into the memory ends its own connections. The
// gateway keeps running, and can close.
func TestChannelsScribbled(t *testing.T) {
	x := newTestWire(t)
	var wg sync.WaitGroup
	var stop atomic.Bool
	wg.Go(func() { // serves every connection
		for l := range x.asked {
			l.Accept()
			wg.Go(func() {
				defer l.Close()
				_ = l.SetDeadline(time.Now().Add(50 * time.Millisecond))
				_, _ = io.CopyN(io.Discard, l, 10*channelRing)
			})
			wg.Go(func() {
				defer l.Close()
				for range 50 {
					if _, err := l.Write(make([]byte, 70_000)); err != nil {
						return
					}
				}
			})
		}
	})
	var enough sync.WaitGroup
	for seed := range uint64(2) {
		enough.Add(1)
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1))
			for n := 0; !stop.Load(); n++ {
				if n == 300_000 {
					enough.Done()
				}
				// Everything before the rings, the gateway's fields included.
				at := r.Int64N(channelHead/4) * 4
				word := x.bottle.raw[at : at+4]
				switch r.IntN(3) {
				case 0:
					clear(word)
				case 1:
					word[r.IntN(4)] ^= byte(1 << r.IntN(8))
				default:
					for i := range word {
						word[i] = byte(r.Uint32())
					}
				}
				x.bottle.mem.toHost.notify(r.IntN(ChannelCount), x.bottle.bellFD)
			}
		})
	}
	enough.Wait()
	closed := make(chan struct{})
	go func() { x.host.Close(); close(closed) }() // while the memory is scribbled on
	select {
	case <-closed:
	case <-time.After(testTimeout):
		t.Fatal("the gateway's side does not end")
	}
	stop.Store(true)
	close(x.asked)
	wg.Wait()
}

// The memory can't be resized: access past the end of a smaller one would kill the
// process.
func TestChannelsSealed(t *testing.T) {
	x := newTestWire(t)
	fd := int(x.bottle.files.Mem.Fd())
	for _, size := range []int64{0, channelSize - 1, channelSize + 1} {
		if err := unix.Ftruncate(fd, size); err != unix.EPERM {
			t.Errorf("ftruncate to %d: %v", size, err)
		}
	}
	if err := unix.Fallocate(fd, 0, channelSize, 4096); err != unix.EPERM {
		t.Errorf("fallocate behind the end: %v", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err != unix.EPERM {
		t.Errorf("another seal: %v", err)
	}
	if err := unix.Ftruncate(fd, channelSize); err != nil {
		t.Errorf("ftruncate to the same size: %v", err)
	}
	short, inside, err := NewChannels()
	if err != nil {
		t.Fatal(err)
	}
	defer short.Close()
	defer inside.Close()
	other, err := unix.MemfdCreate("short", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	short.Mem.Close()
	short.Mem = os.NewFile(uintptr(other), "short")
	if _, err := NewHostChannels(short, nil); err == nil {
		t.Error("a memory of another size is taken")
	}
}

// Unused channels release their memory, except for a few.
func TestChannelsReleaseMemory(t *testing.T) {
	x := newTestWire(t)
	var ps []program
	var ls []*Channel
	for range ChannelCount {
		p, l := x.open()
		_, _ = l.Write(make([]byte, channelRing))
		ps, ls = append(ps, p), append(ls, l)
	}
	used := func() int64 {
		var st unix.Stat_t
		if err := unix.Fstat(x.host.memFD, &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	if n := used(); n < ChannelCount*channelRing {
		t.Fatalf("%d bytes are used: this test looks in the wrong place", n)
	}
	for i := range ps {
		ls[i].Close()
		ps[i].BottleChannel.Close(false)
	}
	waitFor(t, "the memory to be released", func() bool { return used() <= channelHead+channelKeep*2*channelRing })
}

// spoil does to one of the bottle's descriptors what a bottle can do: it fills and
// empties it, makes it block, and removes what it polls.
func spoil(t *testing.T, f *os.File) {
	t.Helper()
	fd := int(f.Fd())
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags|unix.O_NONBLOCK)
	var b [8]byte
	_, _ = unix.Read(fd, b[:])
	for n := ^uint64(0) - 1; n > 0; {
		binary.NativeEndian.PutUint64(b[:], n)
		if _, err := unix.Write(fd, b[:]); err != nil {
			n /= 2
		}
	}
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags&^unix.O_NONBLOCK)
	for other := range 64 {
		_ = unix.EpollCtl(fd, unix.EPOLL_CTL_DEL, other, nil)
	}
}

// Whatever a bottle does to its descriptors, the gateway rings, collects garbage,
// keeps its deadlines and closes.
func TestChannelsSpoilt(t *testing.T) {
	for _, early := range []bool{false, true} {
		x := newTestWire(t)
		p, l := x.open()
		for _, f := range x.bottle.files.Files()[1:] {
			spoil(t, f)
		}
		done := make(chan error, 1)
		go func() {
			for range 100 {
				x.bottle.mem.toBottle.asleep.Store(1)
				l.notify()
				runtime.GC()
			}
			_ = l.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			_, err := l.Read(make([]byte, 1))
			if early {
				l.Abort()
			}
			x.host.Close()
			done <- err
		}()
		select {
		case err := <-done:
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error(err)
			}
		case <-time.After(testTimeout):
			x.close = func() {} // it would hang too
			t.Fatal("the gateway hangs")
		}
		_ = p
		x.close()
	}
}

// The bottle can wait for its doorbell, but can't do anything else to it: the doorbell
// is not among its descriptors.
func TestDoorbellIsTheGateways(t *testing.T) {
	host, bottle, err := NewChannels()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	defer bottle.Close()
	id := func(f *os.File) string {
		b, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", f.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, ok := strings.Cut(string(b), "eventfd-id:")
		if !ok {
			return ""
		}
		return strings.Fields(rest)[0]
	}
	ours := id(host.ToBottle)
	if ours == "" {
		testenv.Missing(t, "a kernel that tells one eventfd from another", "Linux 5.2 or later")
	}
	for _, f := range bottle.Files() {
		if id(f) == ours {
			t.Errorf("%s is the gateway's own bell", f.Name())
		}
	}
	if id(bottle.ToHost) != id(host.ToHost) {
		t.Error("what the bottle rings is not what the gateway hears")
	}
	out, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(out)
	if err := unix.EpollCtl(out, unix.EPOLL_CTL_ADD, int(bottle.ToBottle.Fd()), &unix.EpollEvent{Events: unix.EPOLLIN | 1<<31}); err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		ringBell(int(host.ToBottle.Fd()))
		var e [1]unix.EpollEvent
		if n, err := unix.EpollWait(out, e[:], int(testTimeout.Milliseconds())); n != 1 {
			t.Fatalf("ring %d was not heard: %d, %v", i, n, err)
		}
	}
}

// Connections that end while the gateway closes, after the bottle has released them
// all, never access unmapped memory.
func TestChannelsEndWhileClosing(t *testing.T) {
	for round := range 150 {
		x := newTestWire(t)
		var ls []*Channel
		for range 32 {
			_, l := x.open()
			ls = append(ls, l)
		}
		var stop atomic.Bool
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range 32 {
				x.bottle.mem.bottle[i].flags.Store(flagGone)
			}
			for !stop.Load() {
				for i := range 32 {
					x.bottle.mem.toHost.notify(i, x.bottle.bellFD)
				}
				runtime.Gosched()
			}
		})
		for _, l := range ls {
			wg.Go(func() {
				_ = l.CloseWrite()
				l.Abort()
			})
		}
		for range round % 10 * 20 { // let the others get further each time
			runtime.Gosched()
		}
		x.host.Close()
		stop.Store(true)
		wg.Wait()
		x.close()
	}
}

// The files of each side can be passed on one by one, and duplicated.
func TestChannelFiles(t *testing.T) {
	host, bottle, err := NewChannels()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	again, err := ChannelFilesOf(bottle.Files())
	if err != nil || again != bottle {
		t.Errorf("%v, %v: other files than %v", again, err, bottle)
	}
	if _, err := ChannelFilesOf(bottle.Files()[1:]); err == nil {
		t.Error("two files are accepted")
	}
	dup, err := bottle.dup()
	if err != nil {
		t.Fatal(err)
	}
	bottle.Close()
	b, err := NewBottleChannels(dup)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b.raw)
	defer b.own.Close()
	defer b.files.Close()
	dup.Close()
	if _, err := dup.dup(); err == nil {
		t.Error("closed files were duplicated")
	}
	if _, err := NewBottleChannels(dup); err == nil {
		t.Error("closed files are accepted")
	}
	if err := dup.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if _, err := NewHostChannels(dup, nil); err == nil {
		t.Error("the gateway accepts closed files")
	}
	dup.Mem = host.Mem
	if _, err := NewHostChannels(dup, nil); err == nil {
		t.Error("the gateway accepts a closed doorbell")
	}
	if err := (ChannelFiles{}).Close(); err != nil {
		t.Error(err)
	}
}

// A connection whose gateway is gone is reset, and can be closed.
func TestLostChannel(t *testing.T) {
	c := LostChannel()
	if answered, open := c.Answer(); !answered || !open {
		t.Errorf("answered %v, open %v", answered, open)
	}
	if !c.Reset() || !c.Ended() || !c.PeerClosed() || c.Unread() != 0 || c.Unsent() != 0 {
		t.Error("the connection looks alive")
	}
	c.CloseWrite()
	c.Close(true)
}

// TestChannelState: each side sees when the other is done.
func TestChannelState(t *testing.T) {
	x := newTestWire(t)
	p, l := x.open()
	if l.RemoteAddr().Network() != "tcp" || l.LocalAddr().Network() != "tcp" {
		t.Errorf("networks %q, %q", l.RemoteAddr().Network(), l.LocalAddr().Network())
	}
	if n, err := l.Read(nil); n != 0 || err != nil {
		t.Errorf("empty read: %d, %v", n, err)
	}
	if l.Ended() || p.Ended() || p.PeerClosed() || !p.ArmWrite() {
		t.Error("a new connection is not open for both")
	}
	for p.ArmWrite() {
		if n, err := p.WriteFrom(bytes.NewReader(make([]byte, 1000)), 1000); n != 1000 || err != nil {
			t.Fatal(n, err)
		}
	}
	if n := p.Unsent(); n <= channelRing/2 {
		t.Errorf("not writable with %d bytes unsent", n)
	}
	if _, err := io.CopyN(io.Discard, l, int64(p.Unsent())); err != nil {
		t.Fatal(err)
	}
	p.until(t, "writable", p.ArmWrite)
	failing := errors.New("no more")
	if n, err := p.WriteFrom(iotest.ErrReader(failing), 10); n != 0 || err != failing {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := p.WriteFrom(strings.NewReader(""), 0); n != 0 || err != nil {
		t.Errorf("nothing to write: %d, %v", n, err)
	}
	p.CloseWrite()
	if !l.Ended() {
		t.Error("the end of the bottle's side is not seen")
	}
	l.Close()
	p.until(t, "deaf", p.PeerClosed)
	if !l.Ended() {
		t.Error("a closed connection has not ended")
	}
	if err := l.CloseWrite(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("CloseWrite after Close: %v", err)
	}
	if _, err := l.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write after Close: %v", err)
	}
	l.Accept() // too late, and harmless
}

// While a writer waits for room, the writer itself reports that the bottle is gone.
func TestChannelEndedWhileWriting(t *testing.T) {
	x := newTestWire(t)
	p, l := x.open()
	done := make(chan error)
	go func() { _, err := l.Write(make([]byte, 2*channelRing)); done <- err }()
	p.until(t, "full", func() bool { return p.ArmRead() == channelRing })
	if l.Ended() {
		t.Error("ended during a write")
	}
	p.BottleChannel.Close(false)
	if err := <-done; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the writer: %v", err)
	}
	l.Close()
}
