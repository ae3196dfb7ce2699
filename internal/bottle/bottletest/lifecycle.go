package bottletest

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/testenv"
)

func (s *suite) posture(t *testing.T) {
	b := s.create(t)
	p := b.Posture()
	if p.Isolation == "" || p.Backend == "" || p.Build == "" || len(p.Processes) == 0 {
		t.Fatalf("posture: %+v", p)
	}
	want(t, "backend", p.Backend, s.backend().Name())
	want(t, "build", p.Build, s.backend().Build())
	want(t, "isolation", p.Isolation, s.backend().Isolation())
	for _, x := range p.Processes {
		if x.Role == "" {
			t.Errorf("a process without a role: %+v", x)
		}
		if x.UID == 0 {
			t.Errorf("%s runs as root: %+v", x.Role, x)
		}
		if x.Seccomp != 2 || !x.NoNewPrivs || !x.Chrooted {
			t.Errorf("%s is not confined: %+v", x.Role, x)
		}
	}
	if err := s.backend().Check(b.ctx); err != nil {
		t.Errorf("bottles can be made, and Check says: %v", err)
	}
}

func (s *suite) closeIdempotent(t *testing.T) {
	b := s.create(t)
	p := b.start("/bin/sh", "-c", "echo up; sleep 600")
	p.waitFor("up")
	soon(t, "close", func() {
		for range 3 {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	select {
	case <-b.Done():
	default:
		t.Error("Done is open after Close")
	}
	soon(t, "wait", func() {
		if _, err := p.Wait(b.ctx); !errors.Is(err, bottle.ErrGone) {
			t.Errorf("wait after close: %v, want ErrGone", err)
		}
	})
	p.copied.Wait()
	want(t, "processes left", testenv.Descendants(t, os.Getpid()), []testenv.Process{})
}

func (s *suite) closeConcurrent(t *testing.T) {
	b := s.create(t)
	p := b.start("/bin/sh", "-c", "echo up; sleep 600")
	p.waitFor("up")
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := b.Close(); err != nil {
				t.Error(err)
			}
			if left := testenv.Descendants(t, os.Getpid()); len(left) > 0 {
				t.Errorf("Close returned while %v live", left)
			}
		}()
	}
	soon(t, "close", wg.Wait)
}

// closeDuringStart checks that calls under way end with ErrGone or, if they
// came first, with success; nothing hangs and nothing is left.
func (s *suite) closeDuringStart(t *testing.T) {
	for i := range 4 {
		b := s.create(t)
		var wg sync.WaitGroup
		for range 6 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				p, err := b.command(nil, "/bin/sleep", "600")
				if err == nil {
					_, err = p.Wait(b.ctx)
					p.stdin.Close()
					p.copied.Wait()
				}
				if !errors.Is(err, bottle.ErrGone) {
					t.Errorf("start or wait beside close: %v, want ErrGone", err)
				}
			}()
		}
		for range i * 300 {
			runtime.Gosched()
		}
		soon(t, "close", func() { b.Close() })
		soon(t, "calls beside close", wg.Wait)
	}
	want(t, "processes left", testenv.Descendants(t, os.Getpid()), []testenv.Process{})
}

func (s *suite) closeEndsCalls(t *testing.T) {
	b := s.create(t)
	p := b.start("/bin/sh", "-c", "echo up; sleep 600")
	p.waitFor("up")
	b.Close()
	p.copied.Wait()
	soon(t, "calls after close", func() {
		if err := b.Pause(b.ctx); !errors.Is(err, bottle.ErrGone) {
			t.Errorf("pause: %v", err)
		}
		if err := b.Export(b.ctx, io.Discard); !errors.Is(err, bottle.ErrGone) {
			t.Errorf("export: %v", err)
		}
		if _, err := b.Usage(); !errors.Is(err, bottle.ErrGone) {
			t.Errorf("usage: %v", err)
		}
		if _, err := b.Refusals(b.ctx); !errors.Is(err, bottle.ErrGone) {
			t.Errorf("refusals: %v", err)
		}
		if err := p.Signal(syscall.SIGTERM, false); !errors.Is(err, bottle.ErrGone) {
			t.Errorf("signal: %v", err)
		}
		if _, err := b.command(nil, "true"); !errors.Is(err, bottle.ErrGone) {
			t.Errorf("start: %v", err)
		}
	})
}

func (s *suite) createCancelled(t *testing.T) {
	before := hostState(t)
	for _, d := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond, 120 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		soon(t, "create with a context that ends", func() {
			b, err := s.backend().Create(ctx, s.spec(t))
			if err == nil {
				b.Close()
			}
		})
		cancel()
		want(t, "processes left", testenv.Descendants(t, os.Getpid()), []testenv.Process{})
	}
	before.unchanged(t)
}

// createFails checks that an impossible mount is an error that leaves nothing
// behind.
func (s *suite) createFails(t *testing.T) {
	before := hostState(t)
	dir := t.TempDir()
	if err := syscall.Mkfifo(dir+"/pipe", 0o666); err != nil {
		t.Fatal(err)
	}
	for name, tune := range map[string]func(*bottle.Spec){
		"missing source": func(sp *bottle.Spec) {
			sp.Mounts = []bottle.Mount{{Source: dir + "/none", Target: "/m", Access: bottle.AccessReadOnly}}
		},
		"missing workspace": func(sp *bottle.Spec) { sp.Workspace.Source = dir + "/none" },
		"a pipe": func(sp *bottle.Spec) {
			sp.Mounts = []bottle.Mount{{Source: dir + "/pipe", Target: "/m", Access: bottle.AccessReadOnly}}
		},
		"a device": func(sp *bottle.Spec) {
			sp.Mounts = []bottle.Mount{{Source: "/dev/null", Target: "/m", Access: bottle.AccessReadOnly}}
		},
		"missing root":    func(sp *bottle.Spec) { sp.Root = bottle.Root{Dir: dir + "/none"} },
		"missing scratch": func(sp *bottle.Spec) { sp.Scratch = dir + "/none" },
	} {
		spec := s.spec(t)
		tune(spec)
		soon(t, name, func() {
			if b, err := s.backend().Create(context.Background(), spec); err == nil {
				b.Close()
				t.Errorf("%s: a bottle was made", name)
			}
		})
	}
	want(t, "processes left", testenv.Descendants(t, os.Getpid()), []testenv.Process{})
	before.unchanged(t)
}

// noLeaks checks that after Close the host is as it was before.
func (s *suite) noLeaks(t *testing.T) {
	s.cycle(t) // objects made once per process stay: threads, pools
	before := hostState(t)
	var seen []testenv.Process
	for range 3 {
		seen = append(seen, s.cycle(t)...)
	}
	if len(seen) == 0 {
		t.Error("no process of a living bottle was seen: this test looks in the wrong place")
	}
	for _, p := range seen {
		if p.Exists() {
			t.Errorf("process %+v outlived its bottle", p)
		}
	}
	before.unchanged(t)
}

// cycle runs one bottle's whole life and returns the processes that it had.
func (s *suite) cycle(t *testing.T) []testenv.Process {
	t.Helper()
	b := s.create(t)
	b.sh("echo x > f; (sleep 600 >/dev/null 2>&1 &) ; (setsid sleep 601 >/dev/null 2>&1 &)")
	p := b.start("/bin/sh", "-c", "echo up; sleep 600")
	p.waitFor("up")
	live := b.processes()
	if err := b.Pause(b.ctx); err != nil {
		t.Error(err)
	}
	if err := b.Export(b.ctx, io.Discard); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	p.stdin.Close()
	p.copied.Wait()
	return live
}

// processes returns the bottle's processes on the host: this process's descendants, and
// those of the posture, which a service may have started. A posture may have numbers of
// another namespace: what is older than this process is none of the bottle's.
func (b *box) processes() []testenv.Process {
	b.t.Helper()
	out := testenv.Descendants(b.t, os.Getpid())
	self, _ := testenv.ReadProcess(os.Getpid())
	for _, p := range b.Posture().Processes {
		if x, ok := testenv.ReadProcess(p.PID); ok && len(x.Start) >= len(self.Start) && x.Start > self.Start { // clock ticks since the boot
			out = append(out, x)
			out = append(out, testenv.Descendants(b.t, p.PID)...)
		}
	}
	return out
}

// state records what a bottle could leave behind on the host.
type state struct {
	fds, mounts string
	goroutines  int
}

func hostState(t testing.TB) state {
	t.Helper()
	runtime.GC() // files that are garbage are closed by their finalizers
	return state{fds: strings.Join(openFiles(t), "\n"), mounts: testenv.Mounts(t), goroutines: runtime.NumGoroutine()}
}

// openFiles lists this process's descriptors by their targets.
func openFiles(t testing.TB) []string {
	t.Helper()
	ents, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range ents {
		to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err != nil || strings.HasPrefix(to, "/proc/") {
			continue // the directory that is being read
		}
		kind, _, _ := strings.Cut(to, ":")
		if kind == "anon_inode" {
			kind = to
		}
		out = append(out, kind)
	}
	sort.Strings(out)
	return out
}

// within reports whether each line of now is in before, as often: what an earlier test left
// may close meanwhile.
func within(now, before string) bool {
	left := map[string]int{}
	for line := range strings.Lines(before + "\n") {
		left[line]++
	}
	for line := range strings.Lines(now + "\n") {
		if left[line]--; left[line] < 0 {
			return false
		}
	}
	return true
}

// unchanged fails the test if something is there that was not before. It allows
// a moment for what ends by itself.
func (before state) unchanged(t testing.TB) {
	t.Helper()
	var now state
	same := func() bool {
		now = hostState(t)
		return within(now.fds, before.fds) && now.mounts == before.mounts && now.goroutines <= before.goroutines
	}
	if testenv.Poll(testenv.Patience(10*time.Second), same) {
		return
	}
	if now.mounts != before.mounts {
		t.Errorf("mounts changed:\n%s\nbefore:\n%s", now.mounts, before.mounts)
	}
	if !within(now.fds, before.fds) {
		t.Errorf("open files are\n%s\nand were\n%s", now.fds, before.fds)
	}
	if now.goroutines > before.goroutines {
		buf := make([]byte, 1<<20)
		t.Errorf("%d goroutines, before %d:\n%s", now.goroutines, before.goroutines, buf[:runtime.Stack(buf, true)])
	}
}
