package gvisor

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() {
	attacks["gocalls"], attacks["clock"] = guestGoCalls, guestClock
}

// TestGoCalls: the system calls of a Go program are replaced by jumps, and work: with six
// arguments, on many threads that are signalled, when they are made again after a signal,
// and in programs that it starts.
func TestGoCalls(t *testing.T) {
	if code, err := syscall6(); err != nil || code != goCall {
		t.Fatalf("outside, the call is %x, %v", code, err) // the control
	}
	m, _ := makeTraced(t, withGuest(t))
	if out, st := m.run(factsGuest, "gocalls"); st.Code != 0 || st.Signal != 0 {
		t.Errorf("%+v: %s", st, out)
	}
}

// TestClock: soon after its start a program reads the clock without a system call, and
// it never goes back.
func TestClock(t *testing.T) {
	m, _ := makeTraced(t, withGuest(t))
	if out, st := m.run(factsGuest, "clock"); st.Code != 0 || st.Signal != 0 {
		t.Errorf("%+v: %s", st, out)
	}
}

// syscall6 returns what this process has in place of Go's call. It begins with another two
// moves, mov %rsi,%r10; mov %rdi,%rdx.
func syscall6() (code [8]byte, err error) {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return code, err
	}
	defer f.Close()
	whole := append([]byte{0x49, 0x89, 0xf2, 0x48, 0x89, 0xfa}, goCall[:]...)
	for _, p := range f.Progs {
		if p.Type != elf.PT_LOAD || p.Flags&elf.PF_X == 0 {
			continue
		}
		text, err := io.ReadAll(p.Open())
		if err != nil {
			return code, err
		}
		if i := bytes.Index(text, whole); i >= 0 {
			at := uintptr(p.Vaddr) + uintptr(i+len(whole)-len(code))
			copy(code[:], unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), len(code)))
			return code, nil
		}
	}
	return code, errors.New("the program has no Syscall6")
}

func guestGoCalls([]string) error {
	code, err := syscall6()
	if err != nil || code[0] != 0x90 || code[1] != 0xff {
		return fmt.Errorf("the call was not replaced: %x, %v", code, err)
	}
	f, err := os.CreateTemp(".", "calls")
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(1 << 20); err != nil {
		return err
	}
	if _, err := f.WriteAt([]byte("second page"), 4096); err != nil {
		return err
	}
	b, err := unix.Mmap(int(f.Fd()), 4096, 11, unix.PROT_READ, unix.MAP_PRIVATE) // six arguments
	if err != nil || string(b) != "second page" {
		return fmt.Errorf("mmap: %q, %v", b, err)
	}

	seen := make(chan os.Signal, 1)
	signal.Notify(seen, syscall.SIGUSR1)
	var calls, others sync.WaitGroup
	stop := make(chan struct{})
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				syscall.Kill(os.Getpid(), syscall.SIGUSR1)
				runtime.Gosched()
			}
		}
	})
	faults := make(chan error, 100)
	for n := range 8 {
		calls.Go(func() { faults <- seekAndRead(n) })
	}
	for range 4 {
		calls.Go(func() { faults <- exec.Command("/bin/sh", "-c", "exit 7").Run() })
	}
	calls.Wait()
	close(stop)
	others.Wait()
	for range 12 {
		err := <-faults
		var status *exec.ExitError
		if err != nil && !(errors.As(err, &status) && status.ExitCode() == 7) {
			return err
		}
	}
	if len(seen) == 0 {
		return errors.New("no signal came")
	}
	return again()
}

// seekAndRead makes calls whose results are known.
func seekAndRead(n int) error {
	f, err := os.CreateTemp(".", "seek")
	if err != nil {
		return err
	}
	defer f.Close()
	for i := range int64(3000) {
		to := i*8 + int64(n)
		if at, err := syscall.Seek(int(f.Fd()), to, 0); err != nil || at != to {
			return fmt.Errorf("seek to %d: %d, %v", to, at, err)
		}
	}
	var p [2]int
	if err := syscall.Pipe(p[:]); err != nil {
		return err
	}
	for i := range 1000 {
		out, in := []byte{byte(i)}, []byte{0}
		if k, err := syscall.Write(p[1], out); k != 1 || err != nil {
			return fmt.Errorf("write: %d, %v", k, err)
		}
		if k, err := syscall.Read(p[0], in); k != 1 || err != nil || in[0] != out[0] {
			return fmt.Errorf("read: %d, %x, not %x, %v", k, in, out, err)
		}
	}
	return nil
}

// again blocks a thread in a read, signals it, and then lets it read: the kernel makes the
// call again after each signal.
func again() error {
	var p [2]int
	if err := syscall.Pipe(p[:]); err != nil {
		return err
	}
	thread, got := make(chan int), make(chan error)
	go func() {
		runtime.LockOSThread()
		thread <- syscall.Gettid()
		b := make([]byte, 8)
		n, err := syscall.Read(p[0], b)
		if n != 5 || string(b[:n]) != "again" {
			got <- fmt.Errorf("read after signals: %q, %v", b[:max(n, 0)], err)
		}
		got <- nil
	}()
	tid := <-thread
	for range 500 {
		if err := unix.Tgkill(os.Getpid(), tid, unix.SIGUSR1); err != nil {
			return err
		}
		runtime.Gosched()
	}
	if _, err := syscall.Write(p[1], []byte("again")); err != nil {
		return err
	}
	return <-got
}

// guestClock compares readings of the clock with system calls, until they are faster. By
// itself gVisor gets there after a second.
func guestClock([]string) error {
	const n = 100
	var clock, calls time.Duration
	for range 5 {
		began := time.Now()
		for range n {
			syscall.Getppid()
		}
		last := time.Now()
		calls, began = last.Sub(began), last
		for range n {
			now := time.Now()
			if now.Before(last) {
				return fmt.Errorf("the clock went back from %v to %v", last, now)
			}
			last = now
		}
		if clock = last.Sub(began); clock < calls/2 {
			return nil
		}
	}
	return fmt.Errorf("%d readings took %v, as many system calls %v", n, clock, calls)
}
