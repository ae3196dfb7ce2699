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
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/testenv"
)

var laneTo = netip.MustParseAddrPort("192.0.2.1:443")

// lab is both sides of lanes. Lanes that the bottle asks for come out of knocks.
type lab struct {
	t      *testing.T
	host   *HostLanes
	bottle *BottleLanes
	knocks chan *Lane
	close  func()
}

func newLab(t *testing.T) *lab {
	t.Helper()
	f, inside, err := NewLanes()
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	x := &lab{t: t, knocks: make(chan *Lane, 4*LaneCount)}
	if x.bottle, err = NewBottleLanes(inside); err != nil {
		t.Fatal(err)
	}
	if x.host, err = NewHostLanes(f, func(l *Lane) { x.knocks <- l }); err != nil {
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

// program is the bottle's side of a connection, with its news.
type program struct {
	*BottleLane
	news *news
}

// news wakes up everybody who waits.
type news struct {
	mu sync.Mutex
	ch chan struct{}
}

func (n *news) next() chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ch
}

func (n *news) tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.ch)
	n.ch = make(chan struct{})
}

func (x *lab) ask() (program, *Lane) {
	x.t.Helper()
	n := &news{ch: make(chan struct{})}
	c := x.bottle.Open(laneTo, n.tell)
	if c == nil {
		x.t.Fatal("no lane is free")
	}
	select {
	case l := <-x.knocks:
		return program{c, n}, l
	case <-time.After(testTimeout):
		x.t.Fatal("nobody was asked")
		panic("")
	}
}

func (x *lab) open() (program, *Lane) {
	x.t.Helper()
	p, l := x.ask()
	l.Accept()
	p.until(x.t, "open", func() bool { answered, open := p.Answer(); return answered && open })
	return p, l
}

// until waits for news until f is true.
func (p program) until(t *testing.T, what string, f func() bool) {
	t.Helper()
	late := time.After(testTimeout)
	for {
		next := p.news.next()
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

func TestLanesCarry(t *testing.T) {
	x := newLab(t)
	p, l := x.open()
	if l.To() != laneTo || l.LocalAddr().String() != laneTo.String() {
		t.Errorf("asked for %v, %v came", laneTo, l.To())
	}
	up, down := noise(3*laneRing+12345), noise(2*laneRing+54321)
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
	p.BottleLane.Close(false)
	l.Close()
	if _, err := l.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read after close: %v", err)
	}
}

// A lane is used again when both sides are done with it, and not before.
func TestLanesAgain(t *testing.T) {
	x := newLab(t)
	type pair struct {
		p program
		l *Lane
	}
	for range 3 {
		var all []pair
		for range LaneCount {
			p, l := x.open()
			p.write(t, []byte("hello"))
			all = append(all, pair{p, l})
		}
		if x.bottle.Open(laneTo, func() {}) != nil {
			t.Fatal("one lane more than there are")
		}
		for i, c := range all {
			b := make([]byte, 5)
			if _, err := io.ReadFull(c.l, b); err != nil || string(b) != "hello" {
				t.Fatalf("lane %d: %q, %v", i, b, err)
			}
			if i%2 == 0 {
				c.l.Close()
				c.p.BottleLane.Close(false)
			} else {
				c.p.BottleLane.Close(false)
				c.l.Close()
			}
		}
	}
	p, l := x.open()
	l.Close()
	p.until(t, "ended", p.Ended)
	q, m := x.open()
	if p.i == q.i {
		t.Error("a lane that the bottle still holds is used again")
	}
	q.BottleLane.Close(false)
	r, n := x.open()
	if r.i == q.i {
		t.Error("a lane that the gateway still holds is used again")
	}
	m.Close()
	n.Close()
}

func TestLaneRefused(t *testing.T) {
	x := newLab(t)
	for range 2 * LaneCount {
		p, l := x.ask()
		l.Refuse()
		p.until(t, "answered", func() bool { answered, _ := p.Answer(); return answered })
		if _, open := p.Answer(); open {
			t.Fatal("a refused connection is open")
		}
		p.BottleLane.Close(true)
	}
	if p, _ := x.open(); p.Reset() {
		t.Error("the next connection begins with a reset")
	}
}

// An end that is not an orderly one does not look like one, in either direction,
// and what came before it arrives.
func TestLaneReset(t *testing.T) {
	x := newLab(t)
	p, l := x.open()
	_, _ = l.Write([]byte("cut o"))
	l.Abort()
	if got := p.readAll(t); string(got) != "cut o" || !p.Reset() {
		t.Errorf("%q, reset %v", got, p.Reset())
	}
	p.BottleLane.Close(false)

	p, l = x.open()
	p.write(t, []byte("cut o"))
	p.BottleLane.Close(true)
	b, err := io.ReadAll(l)
	if string(b) != "cut o" || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%q, %v", b, err)
	}
	l.Close()

	p, l = x.open()
	p.write(t, []byte("all"))
	p.BottleLane.Close(false)
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

func TestLaneDeadlines(t *testing.T) {
	x := newLab(t)
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
	go func() { _, err := l.Read(b); woken <- err }()
	time.Sleep(10 * time.Millisecond)
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
	if n, err := l.Write(make([]byte, 2*laneRing)); n != laneRing || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("write to a program that does not read: %d, %v", n, err)
	}
}

// A side that does not read stops the other; it can make nothing grow.
func TestLaneBackPressure(t *testing.T) {
	x := newLab(t)
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
	p.until(t, "full", func() bool { return p.Readable() == laneRing })
	time.Sleep(20 * time.Millisecond)
	var b bytes.Buffer
	if n, _ := p.ReadTo(&b, true); n != laneRing {
		t.Errorf("peeked at %d bytes", n)
	}
	if n, _ := p.ReadTo(&b, false); n != laneRing {
		t.Errorf("read %d bytes", n)
	}
	p.until(t, "full again", func() bool { return p.Readable() == laneRing })
	l.Close() // with a writer that waits
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the writer: %v", err)
	}
	if n := written.Load(); n != 2*laneRing {
		t.Errorf("%d bytes went into room for %d", n, 2*laneRing)
	}
	n, err := p.WriteFrom(bytes.NewReader(make([]byte, 2*laneRing)), 2*laneRing)
	if n > laneRing || err != nil {
		t.Errorf("the program wrote %d bytes, %v", n, err)
	}
}

// Positions that cannot be end the connection, and nothing else.
func TestLaneRules(t *testing.T) {
	x := newLab(t)
	b := make([]byte, 100)
	for _, put := range []uint32{laneRing + 1, 1 << 31, ^uint32(0)} {
		p, l := x.open()
		p.me.put.Store(put)
		if n, err := l.Read(b); n != 0 || !errors.Is(err, errLane) {
			t.Errorf("%d bytes in a ring: read %d, %v", put, n, err)
		}
		l.Abort()
		p.BottleLane.Close(false)
	}
	for _, taken := range []uint32{1, 1 << 31, ^uint32(0) - laneRing} {
		p, l := x.open()
		p.me.taken.Store(taken)
		if n, err := l.Write(b); n != 0 || !errors.Is(err, errLane) {
			t.Errorf("%d bytes taken of none: wrote %d, %v", taken, n, err)
		}
		l.Abort()
		p.BottleLane.Close(false)
	}
	// The nearest that is allowed: exactly full.
	p, l := x.open()
	p.me.put.Store(laneRing)
	if n, err := l.Read(b); n != len(b) || err != nil {
		t.Errorf("a full ring: %d, %v", n, err)
	}
	// What was asked for does not change while it is open, and there is no
	// second question.
	p.me.setDest(netip.MustParseAddrPort("10.0.0.0:22"))
	p.me.pass.Add(1)
	p.tell()
	time.Sleep(20 * time.Millisecond)
	if l.To() != laneTo || len(x.knocks) != 0 {
		t.Errorf("to %v, %d more", l.To(), len(x.knocks))
	}
	p.me.pass.Store(p.pass)
	l.Abort()
	p.BottleLane.Close(false)
	// An address that is none is refused without a question.
	for _, size := range []uint32{0, 3, 5, 17, 65535} {
		i := LaneCount - 1
		me := &x.bottle.mem.bottle[i]
		me.dest[0].Store(size<<16 | 80)
		me.flags.Store(laneGone)
		pass := me.pass.Add(1)
		x.bottle.mem.toHost.tell(i, x.bottle.bellFD)
		late := time.Now().Add(testTimeout)
		for x.bottle.mem.host[i].answer.Load() != answerOf(pass, laneDone) {
			if time.Now().After(late) {
				t.Fatalf("an address of %d bytes is not refused", size)
			}
			time.Sleep(time.Millisecond)
		}
		if len(x.knocks) != 0 {
			t.Errorf("an address of %d bytes was asked about", size)
		}
	}
}

// A bottle that writes whatever it likes wherever it can ends its own
// connections; the gateway goes on, and ends when it wants to.
func TestLanesScribbled(t *testing.T) {
	x := newLab(t)
	var wg sync.WaitGroup
	var stop atomic.Bool
	wg.Go(func() { // serves whatever comes
		for l := range x.knocks {
			l.Accept()
			wg.Go(func() {
				defer l.Close()
				_ = l.SetDeadline(time.Now().Add(50 * time.Millisecond))
				_, _ = io.CopyN(io.Discard, l, 10*laneRing)
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
	for seed := range uint64(2) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1))
			for !stop.Load() {
				// Everything before the rings, the gateway's part too.
				at := r.Int64N(laneHead/4) * 4
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
				x.bottle.mem.toHost.tell(r.IntN(LaneCount), x.bottle.bellFD)
			}
		})
	}
	time.Sleep(400 * time.Millisecond)
	closed := make(chan struct{})
	go func() { x.host.Close(); close(closed) }() // while it goes on
	select {
	case <-closed:
	case <-time.After(testTimeout):
		t.Fatal("the gateway's side does not end")
	}
	stop.Store(true)
	close(x.knocks)
	wg.Wait()
}

// The memory keeps its size: a shorter one would kill who looks at it.
func TestLanesSealed(t *testing.T) {
	x := newLab(t)
	fd := int(x.bottle.files.Mem.Fd())
	for _, size := range []int64{0, laneSize - 1, laneSize + 1} {
		if err := unix.Ftruncate(fd, size); err != unix.EPERM {
			t.Errorf("ftruncate to %d: %v", size, err)
		}
	}
	if err := unix.Fallocate(fd, 0, laneSize, 4096); err != unix.EPERM {
		t.Errorf("fallocate behind the end: %v", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err != unix.EPERM {
		t.Errorf("another seal: %v", err)
	}
	if err := unix.Ftruncate(fd, laneSize); err != nil {
		t.Errorf("ftruncate to the same size: %v", err)
	}
	short, inside, err := NewLanes()
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
	if _, err := NewHostLanes(short, nil); err == nil {
		t.Error("a memory of another size is taken")
	}
}

// Lanes that nobody uses give their memory back, but for a few.
func TestLanesGiveMemoryBack(t *testing.T) {
	x := newLab(t)
	var ps []program
	var ls []*Lane
	for range LaneCount {
		p, l := x.open()
		_, _ = l.Write(make([]byte, laneRing))
		ps, ls = append(ps, p), append(ls, l)
	}
	used := func() int64 {
		var st unix.Stat_t
		if err := unix.Fstat(x.host.memFD, &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	if n := used(); n < LaneCount*laneRing {
		t.Fatalf("%d bytes are used: this test looks in the wrong place", n)
	}
	for i := range ps {
		ls[i].Close()
		ps[i].BottleLane.Close(false)
	}
	late := time.Now().Add(testTimeout)
	for used() > laneHead+laneKeep*2*laneRing {
		if time.Now().After(late) {
			t.Fatalf("%d bytes are kept", used())
		}
		time.Sleep(time.Millisecond)
	}
}

// spoil does to a descriptor of the bottle's what the bottle may: fills it,
// empties it, has it block, and takes out what it waits for.
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

// A bottle does what it likes to the descriptors that it has. The gateway rings,
// collects garbage, keeps its deadlines and closes all the same.
func TestLanesSpoilt(t *testing.T) {
	for _, early := range []bool{false, true} {
		x := newLab(t)
		p, l := x.open()
		for _, f := range x.bottle.files.Files()[1:] {
			spoil(t, f)
		}
		done := make(chan error, 1)
		go func() {
			for range 100 {
				x.bottle.mem.toBottle.asleep.Store(1)
				l.tell()
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
			x.close = func() {} // that would hang, too
			t.Fatal("the gateway hangs")
		}
		_ = p
		x.close()
	}
}

// The bell to the bottle can be waited for there, and only waited for: it is not
// among the bottle's descriptors.
func TestLanesBellIsOurs(t *testing.T) {
	host, bottle, err := NewLanes()
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

// Connections end while the gateway closes, and the bottle has given all of them
// up: nobody looks at memory that is gone.
func TestLanesEndWhileClosing(t *testing.T) {
	for round := range 150 {
		x := newLab(t)
		var ls []*Lane
		for range 32 {
			_, l := x.open()
			ls = append(ls, l)
		}
		var stop atomic.Bool
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range 32 {
				x.bottle.mem.bottle[i].flags.Store(laneGone)
			}
			for !stop.Load() {
				for i := range 32 {
					x.bottle.mem.toHost.tell(i, x.bottle.bellFD)
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
		time.Sleep(time.Duration(round%10) * 50 * time.Microsecond)
		x.host.Close()
		stop.Store(true)
		wg.Wait()
		x.close()
	}
}
