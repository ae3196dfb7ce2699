package gvisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/trace"
)

// factReader collects what a bottle's sentry says.
type factReader struct {
	mu      sync.Mutex
	facts   []trace.Fact
	dropped uint64
	err     error
	done    chan struct{}
}

// factPair makes the socket and reads it until the bottle is gone.
func factPair(t testing.TB) (*os.File, *factReader) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	r := &factReader{done: make(chan struct{})}
	in := os.NewFile(uintptr(fds[0]), "facts")
	t.Cleanup(func() { in.Close() })
	go func() {
		defer close(r.done)
		buf := make([]byte, trace.MaxBatch)
		for {
			n, err := unix.Read(fds[0], buf)
			if err == unix.EINTR {
				continue
			}
			if n <= 0 || err != nil {
				return
			}
			r.mu.Lock()
			r.dropped, err = trace.ParseBatch(buf[:n], func(f *trace.Fact) { r.facts = append(r.facts, *f) })
			if err != nil {
				r.err = err
			}
			r.mu.Unlock()
		}
	}()
	return os.NewFile(uintptr(fds[1]), "facts"), r
}

// all closes the bottle and returns everything that it said.
func (r *factReader) all(t testing.TB, b bottle.Bottle) []trace.Fact {
	t.Helper()
	if err := b.Pause(context.Background()); err != nil {
		t.Fatal(err)
	}
	b.Close()
	<-r.done
	if r.err != nil {
		t.Fatal(r.err)
	}
	if r.dropped != 0 {
		t.Errorf("%d facts were dropped", r.dropped)
	}
	for i, f := range r.facts {
		if f.Seq != uint64(i+1) {
			t.Fatalf("fact %d has number %d", i+1, f.Seq)
		}
	}
	return r.facts
}

func makeTraced(t testing.TB, tune ...func(*bottle.Spec)) (*made, *factReader) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	s := testSpec(t)
	for _, f := range tune {
		f(s)
	}
	end, r := factPair(t)
	s.Trace = end
	b, err := Backend{}.Create(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return &made{t, ctx, s, b}, r
}

func has(fs []trace.Fact, op trace.Op, flags trace.Flags, path string) bool {
	for _, f := range fs {
		if f.Op == op && f.Flags == flags && f.Path == path {
			return true
		}
	}
	return false
}

func TestFacts(t *testing.T) {
	m, r := makeTraced(t, seed(t, map[string]string{"d/real": "x", "old": "o", "dead": "d"}))
	ws := m.spec.Workspace.Target
	m.sh(`
ln -s d dl; ln -s real d/link
cat dl/link > /dev/null
cat dl/absent 2>/dev/null || true
test -e dl/nothing || true
stat dl/../dl/real > /dev/null
readlink d/link
rm dead
mv old dl/new
mkdir e; rmdir e
`)
	out, st := m.run("python3", "-c", odd)
	if st.ExitCode() != 0 {
		t.Fatal(out)
	}
	fs := r.all(t, m.b)
	for _, w := range []struct {
		op    trace.Op
		flags trace.Flags
		path  string
	}{
		{trace.Open, 0, ws + "/d/real"},
		{trace.Open, trace.Miss, ws + "/d/absent"},
		{trace.Stat, 0, ws + "/d/real"},
		{trace.Readlink, 0, ws + "/d/link"},
		{trace.Unlink, 0, ws + "/dead"},
		{trace.Unlink, 0, ws + "/e"},
		{trace.Open, 0, ws + "/made-by-link"},
		{trace.Open, trace.Asked, ws + "/none/x"},
	} {
		if !has(fs, w.op, w.flags, w.path) {
			t.Errorf("no fact %+v", w)
		}
	}
	renamed, cat := false, false
	for _, f := range fs {
		if f.Op == trace.Rename && f.Errno == 0 && f.Path == ws+"/old" && f.Path2 == ws+"/d/new" {
			renamed = true
		}
		if f.Op == trace.Exec && strings.HasSuffix(f.Path, "/bin/cat") {
			cat = true
		}
	}
	if !renamed || !cat {
		t.Errorf("rename seen: %v, exec seen: %v", renamed, cat)
	}
	t.Logf("%d facts", len(fs))
}

// odd calls everything that is served anew with arguments at the edges. Each
// line of output is one answer.
const odd = `
import os
def t(f, *a):
    try: f(*a)
    except OSError as e: print(type(e).__name__, *a)
    else: print("ok", *a)
t(os.stat, "a.txt/"); t(os.stat, "dl/"); t(os.lstat, "dl"); t(os.stat, ""); t(os.stat, "/"); t(os.stat, "//"); t(os.stat, "..")
t(os.rmdir, "."); t(os.rmdir, "d/.."); t(os.rmdir, "/"); t(os.unlink, "d"); t(os.unlink, "a.txt/"); t(os.mkdir, "q"); t(os.rmdir, "q/")
os.symlink("loop", "loop"); t(os.stat, "loop"); t(os.open, "a.txt", os.O_DIRECTORY); t(os.open, "dl", os.O_NOFOLLOW)
os.symlink("made-by-link", "ml"); t(os.open, "ml", os.O_CREAT|os.O_RDWR); t(os.stat, "made-by-link")
t(os.open, "none/x", os.O_CREAT); t(os.open, "a.txt", os.O_CREAT|os.O_EXCL); t(os.stat, "x"*300); t(os.stat, "y/"*3000)
t(os.stat, "/proc/self/fd/0"); t(os.stat, "/proc/self/exe"); t(os.readlink, "/proc/self/exe"); t(os.readlink, "a.txt")
t(os.access, "a.txt", os.R_OK); t(os.open, "/dev/null", os.O_RDWR); t(os.rename, "d", "d/sub"); t(os.rename, "nope", "x")
fd = os.open("d", os.O_RDONLY); os.stat("real", dir_fd=fd); os.fstat(fd); t(os.stat, fd)
print(os.stat("a.txt").st_size, os.stat("a.txt").st_uid == os.getuid())
`

// Served anew or by gVisor, the bottle sees the same answers.
func TestFactsChangeNoAnswer(t *testing.T) {
	setUp := func(s *bottle.Spec) {
		seed(t, map[string]string{"d/real": "x"})(s)
		for _, l := range [][2]string{{"d", "dl"}, {"real", "d/link"}} {
			if err := os.Symlink(l[0], filepath.Join(s.Workspace.Source, l[1])); err != nil {
				t.Fatal(err)
			}
		}
	}
	plain := makeBottle(t, setUp)
	want, st := plain.run("python3", "-c", odd)
	if st.ExitCode() != 0 {
		t.Fatal(want)
	}
	traced, _ := makeTraced(t, setUp)
	got, st := traced.run("python3", "-c", odd)
	if got != want || st.ExitCode() != 0 {
		t.Errorf("exit %v, with facts:\n%s\nwithout:\n%s", st, got, want)
	}
}

// BenchmarkFacts is the cost of facts on calls that name files. On a busy
// machine compare the CPU time of the whole, not the time that it took.
func BenchmarkFacts(b *testing.B) {
	for _, c := range []struct{ name, call string }{
		{"stat", `os.stat("a/b/c/f")`},
		{"miss", `os.path.exists("a/b/c/none")`},
		{"open", `os.close(os.open("a/b/c/f", 0))`},
	} {
		script := `
import os
os.makedirs("a/b/c", exist_ok=True); open("a/b/c/f", "w").close()
for _ in range(20000): ` + c.call
		for _, traced := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/facts=%v", c.name, traced), func(b *testing.B) {
				var m *made
				if traced {
					m, _ = makeTraced(b)
				} else {
					m = makeBottle(b)
				}
				for b.Loop() {
					if out, st := m.run("python3", "-c", script); st.ExitCode() != 0 {
						b.Fatal(out)
					}
				}
				b.StopTimer()
				m.b.Close()
			})
		}
	}
}

// There is no second table of calls by which to get around the first: the
// 32-bit entry, io_uring and openat2 answer ENOSYS.
func TestNoOtherEntry(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the 32-bit entry is amd64's")
	}
	m, _ := makeTraced(t)
	if out, st := m.run("python3", "-c", `
import ctypes, mmap
m = mmap.mmap(-1, 4096, prot=7)
m.write(b"\xb8\x14\0\0\0\xcd\x80\xc3")  # mov eax, 20 (getpid); int 0x80; ret
f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))
print("answered", f())
`); st.ExitCode() != 0 || out != "answered -38\n" {
		t.Errorf("int 0x80: %v, %s", st, out)
	}
	out, _ := m.run("python3", "-c", `
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
for no in (425, 437, 0x40000000 + 2, 0x40000000 + 257):  # io_uring_setup, openat2, open and openat by the x32 entry
    r = libc.syscall(no, 4, b"/etc/passwd", 0, 0)
    print(r, errno.errorcode[ctypes.get_errno()])
`)
	if out != strings.Repeat("-1 ENOSYS\n", 4) {
		t.Errorf("other calls: %s", out)
	}
}

const forger = `
import ctypes, os, threading, sys
sys.setswitchinterval(1e-5)
libc = ctypes.CDLL(None, use_errno=True)
a, b = b"decoy1\0", b"secret\0"
buf = ctypes.create_string_buffer(64)
stop = False
def flip():
    while not stop:
        ctypes.memmove(buf, a, 7); ctypes.memmove(buf, b, 7)
th = [threading.Thread(target=flip) for _ in range(2)]
for t in th: t.start()
opened = {}
for i in range(1000):
    fd = libc.open(buf, os.O_RDONLY)
    if fd < 0: continue
    c = os.read(fd, 16).decode(); os.close(fd)
    opened[c] = opened.get(c, 0) + 1
stop = True
for t in th: t.join()
for k, v in sorted(opened.items()): print(k, v)
`

// While other threads rewrite the path argument, each open is reported as the
// file that was in fact opened: the counts by content and by fact agree.
func TestFactsCannotBeForged(t *testing.T) {
	m, r := makeTraced(t, seed(t, map[string]string{"decoy1": "D", "secret": "S"}))
	if err := os.WriteFile(filepath.Join(m.spec.Workspace.Source, "forger.py"), []byte(forger), 0o644); err != nil {
		t.Fatal(err)
	}
	out, st := m.run("python3", "forger.py")
	if st.ExitCode() != 0 {
		t.Fatal(out)
	}
	count := map[string]int{}
	for _, f := range r.all(t, m.b) {
		if f.Op == trace.Open && f.Errno == 0 {
			switch f.Path {
			case m.spec.Workspace.Target + "/decoy1":
				count["D"]++
			case m.spec.Workspace.Target + "/secret":
				count["S"]++
			}
		}
	}
	var want string
	for _, k := range []string{"D", "S"} {
		if count[k] > 0 {
			want += fmt.Sprintf("%s %d\n", k, count[k])
		}
	}
	if out != want {
		t.Errorf("opened by content:\n%sby facts:\n%s", out, want)
	}
	t.Logf("%q", out)
}

// A reader that is gone costs facts, and the loss is counted.
func TestFactsDropped(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	w := newFactWriter(fds[1])
	unix.Close(fds[0])
	for range 10 {
		w.emit(&trace.Fact{Op: trace.Open, Path: "/x"})
	}
	w.flush()
	if w.dropped != 10 || w.seq != 10 {
		t.Errorf("dropped %d of %d", w.dropped, w.seq)
	}
	close(w.wake)
	unix.Close(fds[1])
}
