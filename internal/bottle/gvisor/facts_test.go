package gvisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gvisor.dev/gvisor/pkg/sentry/kernel"
	syslinux "gvisor.dev/gvisor/pkg/sentry/syscalls/linux"

	"errors"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/testenv"
	"github.com/carboy/carboy/internal/trace"
	"os/exec"
	"syscall"
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
	t.Cleanup(func() { testenv.AwaitReports(); b.Close() })
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
	testenv.Need(t, "python3", "apt-get install python3")
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
		{trace.Rmdir, 0, ws + "/e"},
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

// raw makes each call that is served anew, and those that are wrapped, with
// arguments that a library would not let through.
const raw = `
import ctypes, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
AT, EMPTY, NOF, FOLLOW = -100, 0x1000, 0x100, 0x400
nr = dict(zip(sys.argv[1::2], map(int, sys.argv[2::2])))
def s(name, *a, quiet=False):
    if name not in nr: return
    r = libc.syscall(nr[name], *[ctypes.c_long(x) if isinstance(x, int) else x for x in a])
    e = ctypes.get_errno() if r == -1 else 0
    print(name, [x if isinstance(x, (int, bytes)) and x != BAD else "?" for x in a], "ok" if quiet and r != -1 else r, e)
    return r
BAD = 0x7000_0000_0000
buf = ctypes.create_string_buffer(4096)
base, turn, open_fds = os.open(".", os.O_RDONLY), 0, []
def fresh():
    "a new directory with the same things in it, and descriptors of them"
    global turn, fd, ro, dfd, pfd, ap, pr, pw, open_fds
    for x in open_fds: os.close(x)
    os.fchdir(base); turn += 1; os.mkdir("w%d" % turn); os.chdir("w%d" % turn)
    open("f", "w").write("hello"); os.mkdir("dir"); open("dir/in", "w").close(); os.symlink("f", "lnk"); os.symlink("nowhere", "dang"); os.symlink("lo", "lo")
    fd = os.open("f", os.O_RDWR); ro = os.open("f", os.O_RDONLY); dfd = os.open("dir", os.O_RDONLY); pfd = os.open("f", os.O_PATH); ap = os.open("f", os.O_WRONLY | os.O_APPEND)
    pr, pw = os.pipe(); os.set_blocking(pr, False); os.set_blocking(pw, False)
    open_fds = [fd, ro, dfd, pfd, ap, pr, pw]
def tree(): print(sorted((d, sorted(ds), sorted(fs)) for d, ds, fs in os.walk(".")), [oct(os.stat(x).st_mode) for x in ("f", ".") if os.path.exists(x)])
paths = [b"f", b"f/", b"dir", b"dir/", b"lnk", b"dang", b"lo", b"none", b"none/", b"none/x", b"f/x", b"", b".", b"..", b"/", b"dir/..", b"n" * 256, b"p/" * 2100, BAD, 0]
for p in paths:
    for d in (AT, dfd if turn else AT, 7777, -1):
        fresh()
        for fl in (0, EMPTY, NOF, 0x8000): s("newfstatat", d, p, buf, fl); s("faccessat2", d, p, 4, fl)
        for fl in (0, EMPTY, FOLLOW, NOF): s("linkat", d, p, AT, b"f", fl); s("linkat", d, p, AT, b"l%d" % fl, fl)
        s("openat", d, p, 0, quiet=True); s("openat", d, p, 0o200000, quiet=True); s("openat", d, p, 0x20000, quiet=True)
        s("readlinkat", d, p, buf, 10); s("readlinkat", d, p, buf, 0)
        s("fchmodat", d, p, 0o755); s("fchownat", d, p, -1, -1, EMPTY); s("fchownat", d, p, 12345, -1, 0); s("utimensat", d, p, 0, EMPTY); s("utimensat", d, p, BAD, 0); s("futimesat", d, p, 0)
        s("symlinkat", b"t", d, p); s("mkdirat", d, p, 0o755); s("mknodat", d, p, 0o100644, 0); s("mknodat", d, p, 0o020644, 0x103)
        for fl in (0, 1, 2, 4): s("renameat2", d, p, d, b"f", fl); tree(); s("renameat2", AT, b"dir/in", d, p, fl)
        s("unlinkat", d, p, 4); s("unlinkat", d, p, 0); s("unlinkat", d, p, 0x200); tree()
    fresh()
    s("symlink", b"", p); s("symlink", p, b"f"); s("truncate", p, 5); s("truncate", p, -1); s("chdir", p); os.fchdir(base); os.chdir("w%d" % turn)
    for f in (0, 1, 4): s("setxattr", p, b"user.x", b"v", 1, f)
    s("lsetxattr", p, b"user.x", b"v", 1, 0); s("setxattr", p, b"", b"v", 1, 0); s("setxattr", p, b"u" * 300, b"v", 1, 0); s("setxattr", p, b"user.y", BAD, 9, 0); s("removexattr", p, b"user.x"); s("lremovexattr", p, b"user.none")
    s("chroot", p); s("mount", b"none", p, b"tmpfs", 0, 0); s("umount2", p, 0); s("utime", p, 0); s("utimes", p, BAD); s("lchown", p, -1, -1); s("creat", p, 0o600, quiet=True)
    s("execve", p, 0, 0); s("execveat", dfd, p, 0, 0, 0); s("execveat", AT, p, 0, 0, 7); s("rename", p, b"moved"); tree(); s("rmdir", p); s("unlink", p); s("mkdir", p, 0o700); tree()
    fresh()
    for how in ((0, 0, 0), (0, 1, 0), (0, 0, 8), (0, 0, 16), (0, 0, 24), (0, 0, 1 << 40), (0o100, 0o7777777, 0), (0o200000 | 0o100, 0, 0), (0, 0, 4), (0, 0, 2), (0, 0, 1), (0, 0, 0x20), (0o101, 0o600, 8)):
        for d in (AT, dfd): s("openat2", d, p, struct.pack("QQQ", *how), 24, quiet=True)
    s("openat2", AT, p, buf, 8); s("openat2", AT, p, buf, 5000); s("openat2", AT, p, BAD, 24); tree()
fresh()
iov = struct.pack("QQ", ctypes.addressof(buf), 3)
big = struct.pack("QQ", ctypes.addressof(buf), 1 << 63)
for d in (fd, ro, dfd, pfd, ap, pw, pr, 999):
    s("write", d, b"abc", 3); s("write", d, BAD, 3); s("write", d, b"", 0); s("write", d, b"x", -1)
    for off in (0, -1, 1 << 62): s("pwrite64", d, b"abc", 3, off); s("pwritev", d, iov, 1, off); s("pwritev2", d, iov, 1, off, 0, 0); s("pwritev2", d, iov, 1, off, 0, 64)
    s("writev", d, iov, 1); s("writev", d, iov, -1); s("writev", d, big, 1); s("writev", d, BAD, 1); s("writev", d, iov, 2000)
    for n in (3, -1, 1 << 62): s("ftruncate", d, n)
    s("fallocate", d, 0, 0, 10); s("fallocate", d, 1, 0, 10); s("fallocate", d, 0, -1, 10); s("fallocate", d, 0, 0, 1 << 62)
    s("getdents64", d, buf, 4096); s("getdents64", d, buf, 19); s("getdents64", d, buf, 24); s("getdents", d, buf, 4096); s("getdents64", d, BAD, 4096)
    s("fchmod", d, 0o644); s("fchown", d, -1, -1); s("fchown", d, 12345, 0); s("fsetxattr", d, b"user.x", b"v", 1, 0); s("fremovexattr", d, b"user.q"); s("utimensat", d, 0, 0, 0); s("fchdir", d); os.fchdir(base); os.chdir("w%d" % turn)
    s("sendfile", d, ro, 0, 4); s("sendfile", d, pr, 0, 4); s("splice", pr, 0, d, 0, 2, 2); s("copy_file_range", ro, 0, d, 0, 2, 0); s("copy_file_range", ro, 0, d, 0, 2, 1)
    s("mmap", 0, 4096, 3, 1, d, 0, quiet=True); s("mmap", 0, 4096, 1, 1, d, 0, quiet=True); s("mmap", 0, 4096, 3, 3, d, 0, quiet=True)
    s("execveat", d, b"", 0, 0, EMPTY); s("io_submit", 77, 1, BAD); s("io_submit", 77, -1, 0); s("pidfd_getfd", d, 0, 0); s("setns", d, 0)
    for c in ("connect", "bind"): s(c, d, b"\x01\0f\0", 4); s(c, d, BAD, 4); s(c, d, buf, 4000)
    s("listen", d, 1); s("accept4", d, 0, 0, 0); s("accept4", d, 0, 0, 1)
os.lseek(dfd, 0, 0); print(s("getdents64", dfd, buf, 4096), buf.raw[18:64]); os.lseek(dfd, 0, 0); print(s("getdents", dfd, buf, 4096), buf.raw[16:64])
for fam in range(0, 46):
    for typ in (1, 2, 3, 5, 0x800 | 1, 0x10000): s("socket", fam, typ, 0, quiet=True)
u = socket.socket(socket.AF_UNIX); us = u.fileno(); un = lambda b: b"\x01\0" + b
for a in (b"f", b"none/x", b"sock", b"sock", b"\0abs", b"", b"q" * 200): s("bind", us, un(a), len(a) + 2); u.close(); u = socket.socket(socket.AF_UNIX); us = u.fileno()
for a in (b"f", b"none", b"sock", b"\0nobody", b""): s("connect", us, un(a), len(a) + 2)
i = socket.socket(); s("connect", i.fileno(), struct.pack("=HHI8x", 2, 0x900, 0x100007f), 16); s("connect", i.fileno(), struct.pack("=HHI8x", 2, 0x900, 0x100007f), 8); s("connect", i.fileno(), b"\x02", 1); s("connect", i.fileno(), struct.pack("=HHI8x", 77, 0, 0), 16)
s("memfd_create", b"m", 0, quiet=True); s("memfd_create", b"m" * 250, 0); s("memfd_create", b"m", 0x100); s("memfd_create", BAD, 0)
for n in ("setuid", "setgid", "setresuid", "setresgid", "setreuid", "setregid"): s(n, 0, 0, 0); s(n, -1, -1, -1)
s("setgroups", 1, buf); s("unshare", 0x20000000); s("unshare", 1 << 20); s("capset", buf, buf); s("prctl", 24, 5); s("prctl", 24, 99); s("prctl", 8, 1); s("prctl", 8, 7)
s("ptrace", 16, 1, 0, 0); s("ptrace", 16, 99999, 0, 0); s("ptrace", 0x4206, os.getpid(), 0, 0); s("kill", 1, 0); s("kill", 99999, 0); s("kill", os.getpid(), 0); s("kill", 0, 0); s("kill", -99999, 0); s("kill", 1, 99)
s("tkill", 1, 0); s("tgkill", 1, 1, 0); s("tgkill", -1, 1, 0); s("process_vm_readv", 1, iov, 1, iov, 1, 0); s("process_vm_writev", 99999, iov, 1, iov, 1, 0); s("pivot_root", b".", b".")
for n in ("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "keyctl", "add_key", "request_key", "init_module", "finit_module", "delete_module", "kexec_load", "reboot", "swapon", "acct", "quotactl", "iopl", "ioperm", "modify_ldt", "open_by_handle_at", "name_to_handle_at", "fanotify_init", "fspick", "vhangup", "syslog", "settimeofday", "adjtimex", "sethostname", "kcmp", "setfsuid", "mount_setattr", "memfd_secret", "open_tree", "fsopen", "fsmount", "move_mount"):
    s(n, 0, 0, 0, 0, 0)
`

// Served anew or by gVisor, the bottle sees the same answers.
func TestFactsChangeNoAnswer(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	setUp := func(s *bottle.Spec) {
		seed(t, map[string]string{"d/real": "x"})(s)
		for _, l := range [][2]string{{"d", "dl"}, {"real", "d/link"}} {
			if err := os.Symlink(l[0], filepath.Join(s.Workspace.Source, l[1])); err != nil {
				t.Fatal(err)
			}
		}
	}
	numbers := []string{"python3", "-c", raw}
	for name, no := range callNumbers() {
		numbers = append(numbers, name, strconv.Itoa(int(no)))
	}
	for name, cmd := range map[string][]string{"library": {"python3", "-c", odd}, "raw": numbers} {
		t.Run(name, func(t *testing.T) {
			plain := makeBottle(t, setUp)
			want, st := plain.run(cmd...)
			if st.ExitCode() != 0 {
				t.Fatal(want)
			}
			traced, _ := makeTraced(t, setUp)
			got, st := traced.run(cmd...)
			a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
			if st.ExitCode() != 0 || len(a) != len(b) {
				t.Fatalf("exit %v, %d lines with facts, %d without:\n%s", st, len(b), len(a), got)
			}
			for i := range a {
				if a[i] != b[i] {
					t.Errorf("with facts    %s\nwithout facts %s", b[i], a[i])
				}
			}
			t.Logf("%d answers", len(a))
		})
	}
}

// callNumbers are this architecture's, by name.
func callNumbers() map[string]uintptr {
	out := map[string]uintptr{"mount_setattr": 442, "memfd_secret": 447}
	for _, table := range []*kernel.SyscallTable{syslinux.AMD64, syslinux.ARM64} {
		if table.Arch.String() != runtime.GOARCH {
			continue
		}
		for no, sc := range table.Table {
			out[sc.Name] = no
		}
	}
	return out
}

// There is no second table of calls by which to get around the first: the
// 32-bit entry, the x32 numbers and io_uring answer ENOSYS.
func TestNoOtherEntry(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	if runtime.GOARCH != "amd64" {
		t.Skip("the 32-bit entry is amd64's")
	}
	m, _ := makeTraced(t)
	const int80 = `
import ctypes, mmap
m = mmap.mmap(-1, 4096, prot=7)
m.write(b"\xb8\x14\0\0\0\xcd\x80\xc3")  # mov eax, 20 (getpid); int 0x80; ret
f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))
print("answered", f())
`
	// On a host whose kernel has no 32-bit entry the instruction faults, natively too.
	var native *exec.ExitError
	faults := errors.As(exec.Command("python3", "-c", int80).Run(), &native) && native.Sys().(syscall.WaitStatus).Signal() == syscall.SIGSEGV
	out, st := m.run("python3", "-c", int80)
	if faults && (out != "" || st.Signal != syscall.SIGSEGV) || !faults && (out != "answered -38\n" || st.ExitCode() != 0) {
		t.Errorf("int 0x80, which natively faults: %v: %v, %s", faults, st, out)
	}
	out, _ = m.run("python3", "-c", `
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
for no in (425, 427, 0x40000000 + 2, 0x40000000 + 257):  # io_uring_setup and register, open and openat by the x32 entry
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
	testenv.Need(t, "python3", "apt-get install python3")
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
	fds := factSockets(t)
	w := newFactWriter(fds[1])
	defer close(w.wake)
	unix.Close(fds[0])
	for range 10 {
		w.emit(&trace.Fact{Op: trace.Open, Path: "/x"})
	}
	w.flush()
	if w.dropped != 10 || w.seq != 10 {
		t.Errorf("dropped %d of %d", w.dropped, w.seq)
	}
}

// The last loss is told too: there need not be a fact after it.
func TestFactsLastLossIsTold(t *testing.T) {
	fds := factSockets(t)
	defer unix.Close(fds[0])
	w := newFactWriter(fds[1])
	defer close(w.wake)
	for w.dropped == 0 {
		for range 1000 {
			w.emit(&trace.Fact{Op: trace.Open, Path: strings.Repeat("x", 1000)})
		}
	}
	w.flush()
	w.mu.Lock()
	last := w.seq
	w.mu.Unlock()
	wait := unix.NsecToTimeval(testenv.Patience(time.Minute).Nanoseconds())
	if err := unix.SetsockoptTimeval(fds[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		t.Fatal(err)
	}
	var got, dropped uint64
	buf := make([]byte, trace.MaxBatch)
	for got+dropped < last {
		n, err := unix.Read(fds[0], buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatalf("nothing tells of the last loss: %d read, %d lost, of %d: %v", got, dropped, last, err)
		}
		if dropped, err = trace.ParseBatch(buf[:n], func(*trace.Fact) { got++ }); err != nil {
			t.Fatal(err)
		}
	}
	if got+dropped != last || dropped == 0 {
		t.Errorf("%d read, %d lost, of %d", got, dropped, last)
	}
}

// factSockets are a reader's blocking end and a sender's that does not block.
func factSockets(t *testing.T) [2]int {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fds[1], true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[1]) })
	return fds
}
