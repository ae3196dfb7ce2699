package gvisor

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/testenv"
	"github.com/carboy/carboy/internal/trace"
)

// guestSays runs a part of the guest that must succeed.
func (m *made) guestSays(args ...string) string {
	m.t.Helper()
	out, st := m.run(append([]string{factsGuest}, args...)...)
	if st.ExitCode() != 0 {
		m.t.Fatalf("%v ended with %+v: %.2000s", args, st, out)
	}
	return out
}

func count(fs []trace.Fact, ok func(*trace.Fact) bool) (n int) {
	for i := range fs {
		if ok(&fs[i]) {
			n++
		}
	}
	return n
}

// While threads rewrite a path, what is reported of each call that takes one is
// what the call did: counts by effect and by fact agree, for each of two names.
func TestFactsOfRacedPaths(t *testing.T) {
	m, r := makeTraced(t, withGuest(t))
	rounds := 50
	if testing.Short() {
		rounds = 20
	}
	out := m.guestSays("race", strconv.Itoa(rounds))
	ws := m.spec.Workspace.Target
	fs := r.all(t, m.b)
	ops := map[string]func(f *trace.Fact, name string) bool{
		"mkdir":          func(f *trace.Fact, n string) bool { return f.Op == trace.Mkdir && f.Path == n && f.A == 0o700 },
		"rmdir":          func(f *trace.Fact, n string) bool { return f.Op == trace.Rmdir && f.Path == n },
		"unlink":         func(f *trace.Fact, n string) bool { return f.Op == trace.Unlink && f.Path == n },
		"symlink":        func(f *trace.Fact, n string) bool { return f.Op == trace.Symlink && f.Path == n },
		"symlink-target": func(f *trace.Fact, n string) bool { return f.Op == trace.Symlink && ws+"/"+f.Path2 == n },
		"mknod":          func(f *trace.Fact, n string) bool { return f.Op == trace.Mknod && f.Path == n },
		"create":         func(f *trace.Fact, n string) bool { return f.Op == trace.Open && f.Path == n },
		"link":           func(f *trace.Fact, n string) bool { return f.Op == trace.Link && f.Path == n && f.Path2 == ws+"/new" },
		"rename":         func(f *trace.Fact, n string) bool { return f.Op == trace.Rename && f.Path == n && f.Path2 == ws+"/new" },
		"rename-to":      func(f *trace.Fact, n string) bool { return f.Op == trace.Rename && f.Path2 == n },
		"chmod":          func(f *trace.Fact, n string) bool { return f.Op == trace.Chmod && f.Path == n && f.A == 0o640 },
		"truncate":       func(f *trace.Fact, n string) bool { return f.Op == trace.Truncate && f.Path == n && f.A == 5 },
		"utimes":         func(f *trace.Fact, n string) bool { return f.Op == trace.Utimes && f.Path == n },
		"chdir":          func(f *trace.Fact, n string) bool { return f.Op == trace.Chdir && f.Path == n },
		"readlink":       func(f *trace.Fact, n string) bool { return f.Op == trace.Readlink && f.Path == n },
		"access":         func(f *trace.Fact, n string) bool { return f.Op == trace.Access && f.Path == n },
		"bind": func(f *trace.Fact, n string) bool {
			return f.Op == trace.Bind && f.Path == "unix:./"+strings.TrimPrefix(n, ws+"/")
		},
	}
	// Those whose names are removed after each round leave other facts of the
	// same kind about them.
	cleaned := map[string]bool{"unlink": true, "rmdir": true}
	seen := 0
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		var name string
		var did [2]int
		if _, err := fmt.Sscan(line, &name, &did[0], &did[1]); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		seen++
		match := ops[name]
		if match == nil {
			t.Fatalf("no rule for %q", name)
		}
		for i, suffix := range []string{"-a", "-b"} {
			path := ws + "/" + name + suffix
			if name == "bind" {
				path += ".0"
			}
			got := count(fs, func(f *trace.Fact) bool {
				missed := name == "access" && i == 1
				return match(f, path) && (f.Errno == 0) != missed && f.Observed()
			})
			want := did[i]
			if cleaned[name] {
				want = did[0] + did[1] // one by the call or one by the cleaning
			}
			if got != want {
				t.Errorf("%s: %d times by effect, %d times by facts", path, want, got)
			}
			if did[i] == 0 {
				t.Errorf("%s was never hit: nothing raced", path)
			}
		}
	}
	if seen != len(ops) {
		t.Errorf("%d calls raced, want %d", seen, len(ops))
	}
}

// TestFactsOfRacedPrograms checks the same for programs: the path, the arguments,
// and a link that is swapped.
func TestFactsOfRacedPrograms(t *testing.T) {
	m, r := makeTraced(t, withGuest(t), seed(t, map[string]string{"run-a": "#!/bin/echo A\n", "run-b": "#!/bin/echo B\n"}))
	ws := m.spec.Workspace
	for _, p := range []string{"run-a", "run-b"} {
		if err := os.Chmod(ws.Source+"/"+p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n := 60
	if testing.Short() {
		n = 20
	}
	out := m.sh(fmt.Sprintf("i=0; while [ $i -lt %d ]; do %s exec; %s argv; i=$((i+1)); done; %s swap", n, factsGuest, factsGuest, factsGuest))
	fs := r.all(t, m.b)
	for what, c := range map[string]struct {
		out  string
		fact func(f *trace.Fact) bool
	}{
		"run-a": {"A ./run-a\n", func(f *trace.Fact) bool { return f.Op == trace.Exec && f.Path2 == ws.Target+"/run-a" }},
		"run-b": {"B ./run-b\n", func(f *trace.Fact) bool { return f.Op == trace.Exec && f.Path2 == ws.Target+"/run-b" }},
		"argument-a": {"argument-a\n", func(f *trace.Fact) bool {
			return f.Op == trace.Exec && len(f.Args) == 2 && f.Args[1] == "argument-a"
		}},
		"argument-b": {"argument-b\n", func(f *trace.Fact) bool {
			return f.Op == trace.Exec && len(f.Args) == 2 && f.Args[1] == "argument-b"
		}},
	} {
		want := strings.Count(out, c.out)
		got := count(fs, func(f *trace.Fact) bool {
			return c.fact(f) && f.Errno == 0 && f.Observed() && f.Path == "/usr/bin/echo" && len(f.Digest) == sha256.Size && f.Flags&trace.Mutable == 0
		})
		if got != want || want == 0 {
			t.Errorf("%s: %d times by what it printed, %d times by facts", what, want, got)
		}
	}
	var a, b int
	if _, err := fmt.Sscanf(out[strings.Index(out, "swap"):], "swap %d %d", &a, &b); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"swap-a": a, "swap-b": b} {
		got := count(fs, func(f *trace.Fact) bool {
			return f.Op == trace.Open && f.Errno == 0 && f.Path == ws.Target+"/"+name && f.A&unix.O_ACCMODE == unix.O_RDONLY
		})
		if got != want || want == 0 {
			t.Errorf("%s was read %d times through the link and reported %d times", name, want, got)
		}
	}
	// A thread that executes takes its process along: one exit each.
	exits := map[uint32]int{}
	for _, f := range fs {
		if f.Op == trace.Exit {
			exits[f.PID]++
		}
	}
	for _, f := range fs {
		if f.Op == trace.Exec && f.Errno == 0 && exits[f.PID] != 1 {
			t.Errorf("process %d (%s) ended %d times", f.PID, f.Path, exits[f.PID])
		}
	}
}

// No write is hidden by another file that a thread puts behind the descriptor,
// and none is made up.
func TestFactsOfRacedDescriptors(t *testing.T) {
	m, r := makeTraced(t, withGuest(t))
	want := map[string]bool{}
	for _, n := range strings.Fields(m.guestSays("fdwrite")) {
		want[m.spec.Workspace.Target+"/slot-"+n] = true
	}
	got := map[string]int{}
	for _, f := range r.all(t, m.b) {
		if f.Op == trace.Write && f.Observed() && strings.Contains(f.Path, "/slot-") {
			got[f.Path]++
		}
	}
	if len(want) < 2 {
		t.Fatalf("%d files were written: nothing raced", len(want))
	}
	for p := range want {
		if got[p] == 0 {
			t.Errorf("%s was written to, and no fact says so", p)
		}
	}
	for p := range got {
		if !want[p] {
			t.Errorf("a fact says that %s was written to", p)
		}
	}
	t.Logf("%d files were written", len(want))
}

// Memory that the kernel uses again for another open file hides no write, and
// many writes through one open are one fact.
func TestFactsOfFirstWrites(t *testing.T) {
	m, r := makeTraced(t, withGuest(t))
	const n = 3000
	m.guestSays("reuse", strconv.Itoa(n))
	writes := map[string]int{}
	for _, f := range r.all(t, m.b) {
		if f.Op == trace.Write {
			writes[f.Path]++
		}
	}
	for i := range n {
		// It is written by two opens; three writes through the second are one.
		if p := fmt.Sprintf("%s/r%d", m.spec.Workspace.Target, i); writes[p] != 2 {
			t.Fatalf("%s: %d writes, want 2", p, writes[p])
		}
	}
}

// Each way to write is a fact.
func TestFactsOfEveryWayToWrite(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	m, r := makeTraced(t)
	m.sh(`exec python3 -c '
import os, mmap, ctypes
def f(n, extra=0): return os.open(n, os.O_CREAT | os.O_RDWR | extra, 0o600)
src = f("src"); os.write(src, b"x" * 9000)
os.pwrite(f("pwrite"), b"x", 0); os.writev(f("writev"), [b"x"]); os.pwritev(f("pwritev"), [b"x"], 0)
os.sendfile(f("sendfile"), src, 0, 10); os.copy_file_range(src, f("copy_file_range"), 10, 0, 0)
r, w = os.pipe(); os.write(w, b"xx"); os.splice(r, f("splice"), 2)
os.ftruncate(f("ftruncate"), 10); os.posix_fallocate(f("fallocate"), 0, 10)
t = f("mmap"); os.truncate("mmap", 4096); mmap.mmap(t, 4096)[0] = 1
t = f("mprotect"); os.truncate("mprotect", 4096); mmap.mmap(t, 4096, prot=mmap.PROT_READ)
os.write(f("append", os.O_APPEND), b"x")
for call in (lambda n: os.sendfile(f(n), 99, 0, 1), lambda n: os.copy_file_range(os.open("/", os.O_RDONLY), f(n), 1, 0, 0), lambda n: os.sendfile(f(n), src, 100000, 1)):
    try: call("failed")
    except OSError: pass
os.close(f("only-opened")); os.write(f("of-nothing"), b"")
t = f("private"); os.truncate("private", 4096); mmap.mmap(t, 4096, flags=mmap.MAP_PRIVATE)[0] = 1
'`)
	fs := r.all(t, m.b)
	for _, name := range strings.Fields("src pwrite writev pwritev sendfile copy_file_range splice ftruncate fallocate mmap mprotect append only-opened of-nothing private failed") {
		got := count(fs, func(f *trace.Fact) bool {
			return f.Op == trace.Write && f.Path == m.spec.Workspace.Target+"/"+name && f.Flags == 0
		})
		want := 1
		if name == "only-opened" || name == "of-nothing" || name == "private" || name == "failed" {
			want = 0
		}
		if got != want {
			t.Errorf("%s: %d writes, want %d", name, got, want)
		}
	}
}

// A thousand processes and more that do nothing but end: each is there with its parent,
// its program and its end, in this order.
func TestFactsOfShortProcesses(t *testing.T) {
	n := 1000
	if testenv.Exhaustive() {
		n = 10_000
	}
	m, r := makeTraced(t, withGuest(t))
	lines := strings.Split(strings.TrimSpace(m.guestSays("spawn", strconv.Itoa(n))), "\n")
	parent, err := strconv.Atoi(lines[0])
	if err != nil || len(lines) != n+1 {
		t.Fatalf("%d lines, %v", len(lines), err)
	}
	type life struct{ fork, exec, exit uint64 }
	lives := map[uint32]*life{}
	tiny := sha256.Sum256(tinyExit())
	for _, f := range r.all(t, m.b) {
		l := lives[f.PID]
		if l == nil {
			l = &life{}
			lives[f.PID] = l
		}
		switch {
		case f.Op == trace.Fork && f.PPID == uint32(parent) && f.A&unix.CLONE_VFORK != 0:
			l.fork = f.Seq
		case f.Op == trace.Exec && f.PPID == uint32(parent) && f.Path == m.spec.Workspace.Target+"/tiny" && f.Digest == string(tiny[:]):
			l.exec = f.Seq
		case f.Op == trace.Exit && f.A == 7 && f.B == 0:
			l.exit = f.Seq
		}
	}
	for _, line := range lines[1:] {
		var pid uint32
		var code int
		if _, err := fmt.Sscan(line, &pid, &code); err != nil || code != 7 {
			t.Fatalf("%q: %v", line, err)
		}
		if l := lives[pid]; l == nil || l.fork == 0 || l.exec < l.fork || l.exit < l.exec {
			t.Fatalf("process %d: %+v", pid, l)
		}
	}
}

// A number that is given to a second process does not mix the two.
func TestFactsOfReusedPIDs(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: 65,000 threads")
	}
	m, r := makeTraced(t, withGuest(t))
	m.guestSays("pids")
	state := map[uint32]trace.Op{}
	reused, forked := 0, map[uint32]bool{}
	for _, f := range r.all(t, m.b) {
		switch f.Op {
		case trace.Fork:
			if state[f.PID] != 0 && state[f.PID] != trace.Exit {
				t.Fatalf("process %d begins a second time before it ended", f.PID)
			}
			if forked[f.PID] {
				reused++
			}
			forked[f.PID] = true
			state[f.PID] = f.Op
		case trace.Exec, trace.Exit:
			if state[f.PID] == trace.Exit {
				t.Fatalf("process %d: %s after its end", f.PID, f.Op)
			}
			state[f.PID] = f.Op
		}
	}
	if reused == 0 {
		t.Error("no number was given twice: this test looks at nothing")
	}
}

// TestFactsOfNamelessPrograms runs programs whose file has no name any more, or never had
// one.
func TestFactsOfNamelessPrograms(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	m, r := makeTraced(t, withGuest(t))
	ws := m.spec.Workspace.Target
	m.sh("mkdir d; cp " + factsGuest + " d/facts-guest; d/facts-guest self")
	m.sh(`exec python3 -c '
import os
fd = os.memfd_create("ghost")
os.write(fd, open("` + factsGuest + `", "rb").read())
os.execve(fd, ["` + factsGuest + `", "nothing"], {})
'`)
	fs := r.all(t, m.b)
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(program)
	for _, c := range []struct {
		path   string
		with   trace.Flags
		digest bool
	}{
		{ws + "/d/facts-guest", trace.Mutable, true},
		{ws + "/d/facts-guest", trace.Mutable | trace.Deleted, true},
		{"/memfd:ghost", trace.Mutable | trace.Deleted | trace.Foreign, true},
	} {
		if count(fs, func(f *trace.Fact) bool {
			return f.Op == trace.Exec && f.Errno == 0 && f.Path == c.path && f.Flags == c.with && f.Digest == string(sum[:])
		}) != 1 {
			t.Errorf("no program %s with flags %b and its digest", c.path, c.with)
		}
	}
	if !has(fs, trace.Unlink, 0, ws+"/d/facts-guest") || !has(fs, trace.Memfd, 0, "ghost") {
		t.Error("neither removed nor made")
	}
}

// Scripts that name scripts, what could not be executed, and what was started.
func TestFactsOfPrograms(t *testing.T) {
	m, r := makeTraced(t, withGuest(t), seed(t, map[string]string{
		"one": "#!./two  with space\n", "two": "#!/bin/sh\nexit 5\n", "bad": "neither\n", "lost": "#!/no/such/shell\n", "plain": "#!/bin/sh\n",
	}))
	ws := m.spec.Workspace
	for _, p := range []string{"one", "two", "bad", "lost"} {
		if err := os.Chmod(ws.Source+"/"+p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]int{"./one": 5, "./bad": 127, "./lost": 127, "./plain": 126, "./absent": 127} {
		_, st := m.run("/usr/bin/env", path, "arg")
		if st.ExitCode() != want {
			t.Errorf("%s: %v, want %d", path, st, want)
		}
	}
	fs := r.all(t, m.b)
	dash, err := os.ReadFile("/usr/bin/dash")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(dash)
	for what, ok := range map[string]func(f *trace.Fact) bool{
		"the chain of scripts": func(f *trace.Fact) bool {
			return f.Errno == 0 && f.Path == "/usr/bin/dash" && f.Path2 == ws.Target+"/one" && f.Digest == string(sum[:]) && f.Flags == 0 &&
				strings.Join(f.Args, "|") == "/bin/sh|./two|with space|./one|arg" && f.UID == m.spec.User.UID && f.EUID == m.spec.User.UID
		},
		"what is no program": func(f *trace.Fact) bool { return f.Errno == uint32(unix.ENOEXEC) && f.Path == ws.Target+"/bad" },
		"the script":         func(f *trace.Fact) bool { return f.Errno == uint32(unix.ENOENT) && f.Path == ws.Target+"/lost" },
		"its interpreter":    func(f *trace.Fact) bool { return f.Errno == uint32(unix.ENOENT) && f.Path == "/no/such/shell" },
		"what is not executable": func(f *trace.Fact) bool {
			return f.Errno == uint32(unix.EACCES) && f.Path == ws.Target+"/plain" && f.Flags == trace.Asked && len(f.Args) == 2
		},
		"what is absent": func(f *trace.Fact) bool {
			return f.Errno == uint32(unix.ENOENT) && f.Path == ws.Target+"/absent" && f.Flags == trace.Miss
		},
		"what was started": func(f *trace.Fact) bool {
			return f.Errno == 0 && f.Path == "/usr/bin/env" && f.PPID == 0 && strings.Join(f.Args, "|") == "/usr/bin/env|./one|arg" && len(f.Digest) == 32
		},
	} {
		if count(fs, func(f *trace.Fact) bool { return f.Op == trace.Exec && ok(f) }) == 0 {
			t.Errorf("no fact of %s", what)
		}
	}
}

// Long names and large arguments are cut and say so; the facts after them are
// whole.
func TestFactsOfLargeThings(t *testing.T) {
	m, r := makeTraced(t, withGuest(t))
	m.guestSays("long")
	m.guestSays("large")
	ws := m.spec.Workspace.Target
	fs := r.all(t, m.b)
	if !has(fs, trace.Stat, 0, ws+"/longest") {
		t.Error("the file is not reported by its name but by that which was asked for")
	}
	if count(fs, func(f *trace.Fact) bool {
		return f.Op == trace.Write && f.Flags == trace.Cut && len(f.Path) == trace.MaxPath && strings.HasPrefix(f.Path, ws+"/ddd")
	}) != 1 {
		t.Error("no write to a file whose name is too long for a fact")
	}
	bytesCut := count(fs, func(f *trace.Fact) bool {
		n := 0
		for _, a := range f.Args {
			n += len(a)
		}
		return f.Op == trace.Exec && f.Path == factsGuest && f.Flags&trace.Cut != 0 && n == trace.MaxArgs && f.Args[1] == "nothing"
	})
	numberCut := count(fs, func(f *trace.Fact) bool {
		return f.Op == trace.Exec && f.Flags&trace.Cut != 0 && len(f.Args) == trace.MaxArgc && f.Args[2] == "0"
	})
	if bytesCut != 1 || numberCut != 1 {
		t.Errorf("cut by size: %d, by number: %d, want 1 and 1", bytesCut, numberCut)
	}
}

// Other names for a file: those of /proc are not its name, a hard link is one.
func TestFactsOfOtherNames(t *testing.T) {
	m, r := makeTraced(t, withGuest(t))
	ws := m.spec.Workspace.Target
	m.guestSays("reopen")
	m.guestSays("hardlink")
	fs := r.all(t, m.b)
	if n := count(fs, func(f *trace.Fact) bool {
		return f.Op == trace.Open && f.Errno == 0 && f.Path == ws+"/hidden" && f.A&unix.O_ACCMODE == unix.O_WRONLY && f.A&unix.O_CREAT == 0 && f.Flags == 0
	}); n != 5 {
		t.Errorf("%d opens by names of /proc were reported by the file's name, want 5", n)
	}
	if n := count(fs, func(f *trace.Fact) bool { return f.Op == trace.Write && f.Path == ws+"/hidden" }); n != 6 {
		t.Errorf("%d writes, want 6", n)
	}
	if count(fs, func(f *trace.Fact) bool {
		return f.Op == trace.Link && f.Path == ws+"/real-name" && f.Path2 == ws+"/other-name" && f.Errno == 0
	}) != 1 || !has(fs, trace.Open, 0, ws+"/other-name") {
		t.Error("the second name of a file, or what was done by it, is missing")
	}
}

// Whatever a workload prints or sends, it is not in the trace.
func TestFactsAreNotTheWorkloads(t *testing.T) {
	m, r := makeTraced(t, withGuest(t))
	m.guestSays("forge")
	fs := r.all(t, m.b)
	if n := count(fs, func(f *trace.Fact) bool { return f.Path == "/forged" }); n != 0 {
		t.Errorf("%d forged facts", n)
	}
	// It did send something, to a name of its own choice.
	if count(fs, func(f *trace.Fact) bool { return f.Op == trace.Socket && f.B == unix.SOCK_SEQPACKET }) == 0 {
		t.Error("nothing was forged")
	}
}

// A workload that holds every descriptor which the kernel below has to give goes
// on being traced. It runs in a process of its own, which has few.
func TestFactsWithoutDescriptors(t *testing.T) {
	const child = "CARBOY_TEST_FEW_DESCRIPTORS"
	if os.Getenv(child) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestFactsWithoutDescriptors$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS")) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 2000, Max: 2000}); err != nil {
		t.Fatal(err)
	}
	m, r := makeTraced(t, withGuest(t))
	out := m.guestSays("exhaust")
	if !strings.Contains(out, "too many open files") {
		t.Errorf("descriptors did not run out: %s", out)
	}
	if n := count(r.all(t, m.b), func(f *trace.Fact) bool {
		return f.Op == trace.Stat && f.Errno != 0 && f.Path == m.spec.Workspace.Target+"/after"
	}); n != 20 {
		t.Errorf("%d facts after the descriptors were gone, want 20", n)
	}
	t.Log(out)
}

// A reader that has stopped does not stop the bottle. What it loses is counted,
// and what was sent and what was lost are all that there was.
func TestFactsLostAreCounted(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	m := makeBottle(t, withGuest(t), func(s *bottle.Spec) { s.Trace = os.NewFile(uintptr(fds[1]), "trace") })
	m.guestSays("flood", "100000")
	buf := make([]byte, trace.MaxBatch)
	var got, last, dropped uint64
	read := func() {
		for {
			n, _, err := unix.Recvfrom(fds[0], buf, unix.MSG_DONTWAIT)
			if err == unix.EINTR {
				continue
			}
			if err != nil || n == 0 {
				return
			}
			d, err := trace.ParseBatch(buf[:n], func(f *trace.Fact) {
				if f.Seq <= last {
					t.Fatalf("fact %d after fact %d", f.Seq, last)
				}
				got, last = got+1, f.Seq
			})
			if err != nil {
				t.Fatal(err)
			}
			dropped = d
		}
	}
	read()
	// The reader is back, and so are the facts.
	before := last
	m.guestSays("flood", "10")
	if err := m.b.Pause(m.ctx); err != nil {
		t.Fatal(err)
	}
	read()
	if dropped == 0 || got+dropped != last || last < 100_000 || last == before {
		t.Errorf("%d read, %d counted as lost, the last has number %d", got, dropped, last)
	}
	t.Logf("%d read, %d lost", got, dropped)
}

// What is lost at the very end, when no batch can tell of it any more, is what
// Pause tells of.
func TestFactsLostAtTheEndAreTold(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	m := makeBottle(t, withGuest(t), func(s *bottle.Spec) { s.Trace = os.NewFile(uintptr(fds[1]), "trace") })
	m.guestSays("flood", "100000")
	err = m.b.Pause(m.ctx)
	var lost *bottle.FactsLostError
	if !errors.As(err, &lost) || lost.Untold == 0 {
		t.Fatalf("Pause says %v, want how many facts were lost", err)
	}
	buf := make([]byte, trace.MaxBatch)
	var got, told uint64
	for {
		n, _, err := unix.Recvfrom(fds[0], buf, unix.MSG_DONTWAIT)
		if err != nil || n == 0 {
			break
		}
		if told, err = trace.ParseBatch(buf[:n], func(*trace.Fact) { got++ }); err != nil {
			t.Fatal(err)
		}
	}
	if got == 0 || got+told+lost.Untold < 100_000 {
		t.Errorf("%d read, %d told as lost, %d at the end: less than there were", got, told, lost.Untold)
	}
}

// TestFactsOfRights: each request for a right, another process or a socket is a fact,
// also a refused one.
func TestFactsOfRights(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	m, r := makeTraced(t)
	m.sh(`exec python3 -c '
import ctypes, os, socket, subprocess, time
libc = ctypes.CDLL(None, use_errno=True)
for no in (321, 298, 323, 425, 250, 248, 175, 313, 246, 169, 167, 163, 172, 304, 442): libc.syscall(no, 0, 0, 0, 0, 0)
libc.mount(b"none", b"/tmp", b"tmpfs", 5, 0); libc.umount2(b"/proc", 2); libc.chroot(b"/tmp")
libc.setuid(0); libc.setresuid(-1, os.getuid(), -1); libc.unshare(0x40000000); libc.ptrace(16, 1, 0, 0); libc.prctl(8, 1)
p = subprocess.Popen(["sleep", "60"]); p.terminate(); p.wait(); os.kill(os.getpid(), 0)
for a in ((17, 3), (16, 3), (40, 1), (2, 3)):
    try: socket.socket(*a)
    except OSError: pass
s = socket.socket(socket.AF_UNIX); s.bind("sock"); s.listen(3)
c = socket.socket(socket.AF_UNIX); c.connect("sock"); s.accept()
n = socket.socket(); n.connect_ex(("127.0.0.1", 9)); n = socket.socket(socket.AF_INET6); n.connect_ex(("::1", 80))
'`)
	fs := r.all(t, m.b)
	refused := map[string]bool{}
	for _, f := range fs {
		if f.Op == trace.Refused && f.Errno != 0 {
			refused[f.Path] = true
		}
	}
	for _, name := range strings.Fields("bpf perf_event_open userfaultfd io_uring_setup add_key init_module finit_module kexec_load reboot swapon acct iopl open_by_handle_at mount_setattr") {
		if !refused[name] {
			t.Errorf("no fact of a refused %s", name)
		}
	}
	uid := m.spec.User.UID
	eperm := uint32(unix.EPERM)
	for what, ok := range map[string]func(f *trace.Fact) bool{
		"mount": func(f *trace.Fact) bool {
			return f.Op == trace.Mount && f.Errno == eperm && f.Path == "/tmp" && f.Path2 == "none" && f.Args[0] == "tmpfs" && f.A == 5 && !f.Observed()
		},
		"umount": func(f *trace.Fact) bool { return f.Op == trace.Umount && f.Errno == eperm && f.Path == "/proc" },
		"chroot": func(f *trace.Fact) bool { return f.Op == trace.Chroot && f.Errno == eperm && f.Path == "/tmp" },
		"setuid": func(f *trace.Fact) bool {
			return f.Op == trace.SetID && f.Errno == eperm && f.UID == uid && f.EUID == uid
		},
		"setresuid": func(f *trace.Fact) bool { return f.Op == trace.SetID && f.Errno == 0 && f.UID == uid && f.EUID == uid },
		"unshare":   func(f *trace.Fact) bool { return f.Op == trace.Caps && f.Path == "unshare" && f.A == unix.CLONE_NEWNET },
		"prctl": func(f *trace.Fact) bool {
			return f.Op == trace.Caps && f.Path == "prctl" && f.A == unix.PR_SET_KEEPCAPS
		},
		"ptrace": func(f *trace.Fact) bool {
			return f.Op == trace.Ptrace && f.A == unix.PTRACE_ATTACH && f.B == 1 && f.Errno != 0
		},
		"kill": func(f *trace.Fact) bool {
			return f.Op == trace.Kill && f.A == uint64(unix.SIGTERM) && f.Errno == 0 && f.B > 2
		},
		"killed":  func(f *trace.Fact) bool { return f.Op == trace.Exit && f.B == uint64(unix.SIGTERM) },
		"packet":  func(f *trace.Fact) bool { return f.Op == trace.Socket && f.A == unix.AF_PACKET && f.Errno != 0 },
		"netlink": func(f *trace.Fact) bool { return f.Op == trace.Socket && f.A == unix.AF_NETLINK && f.Errno == 0 },
		"vsock":   func(f *trace.Fact) bool { return f.Op == trace.Socket && f.A == unix.AF_VSOCK && f.Errno != 0 },
		"raw": func(f *trace.Fact) bool {
			return f.Op == trace.Socket && f.A == unix.AF_INET && f.B == unix.SOCK_RAW && f.Errno != 0
		},
		"bind": func(f *trace.Fact) bool {
			return f.Op == trace.Bind && f.Path == "unix:./sock" && f.Flags == trace.Asked && f.Errno == 0
		},
		"listen": func(f *trace.Fact) bool { return f.Op == trace.Listen && f.A == unix.AF_UNIX && f.Errno == 0 },
		"connect": func(f *trace.Fact) bool {
			return f.Op == trace.Connect && f.Path == "unix:./sock" && f.Flags == trace.Asked && f.Errno == 0
		},
		"accept": func(f *trace.Fact) bool { return f.Op == trace.Accept && f.A == unix.AF_UNIX && f.Errno == 0 },
		"tcp4":   func(f *trace.Fact) bool { return f.Op == trace.Connect && f.Path == "127.0.0.1:9" && f.Errno != 0 },
		"tcp6":   func(f *trace.Fact) bool { return f.Op == trace.Connect && f.Path == "[::1]:80" && f.Errno != 0 },
	} {
		if count(fs, ok) == 0 {
			t.Errorf("no fact of %s", what)
		}
	}
	if count(fs, func(f *trace.Fact) bool { return f.Op == trace.Kill && f.B == uint64(f.PID) }) != 0 {
		t.Error("a signal to oneself is nobody else's business")
	}
}

// TestMarkSet: the address of a file description is forgotten when it is reused, whatever
// else its set holds.
func TestMarkSet(t *testing.T) {
	w := newFactWriter(-1)
	defer close(w.wake)
	m := &w.marks
	files := make([]vfs.FileDescription, 100_000)
	added := 0
	for i := range files {
		if m.add(&files[i], false) {
			added++
		}
	}
	if added != len(files) {
		t.Errorf("%d of %d were not known, want all", added, len(files))
	}
	last := &files[len(files)-1]
	if m.add(last, false) {
		t.Error("the last one was not remembered")
	}
	m.forget(last)
	if !m.add(last, true) || m.add(last, true) {
		t.Error("what was forgotten is remembered, or a claim is not")
	}
	if !m.add(last, false) || m.add(last, false) || m.add(last, true) {
		t.Error("what is observed after it was claimed is news, once")
	}
	m.add(&files[0], true)
	m.forget(last)
	if !m.add(last, true) {
		t.Error("what was forgotten is remembered")
	}
}

// A command that is started from outside is reported once, also when it makes
// one call only, or none.
func TestFactsOfStartedCommands(t *testing.T) {
	m, r := makeTraced(t)
	crash := tinyExit()
	copy(crash[64+56:], []byte{0x0f, 0x0b}) // ud2
	for name, code := range map[string][]byte{"one-call": tinyExit(), "no-call": crash} {
		if err := os.WriteFile(m.spec.Workspace.Source+"/"+name, code, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ws := m.spec.Workspace.Target
	for name, want := range map[string]int{"one-call": 7, "no-call": 128 + int(unix.SIGILL)} {
		for range 3 {
			if _, st := m.run(ws + "/" + name); st.ExitCode() != want {
				t.Fatalf("%s: %+v, want %d", name, st, want)
			}
		}
	}
	fs := r.all(t, m.b)
	for name, fl := range map[string]trace.Flags{"one-call": 0, "no-call": 0} {
		if n := count(fs, func(f *trace.Fact) bool {
			return f.Op == trace.Exec && f.Path == ws+"/"+name && f.Flags == fl && f.PID != 0 && f.Args[0] == ws+"/"+name
		}); n != 3 {
			t.Errorf("%s was started 3 times, and %d facts say so", name, n)
		}
	}
	if n := count(fs, func(f *trace.Fact) bool { return f.Op == trace.Exec }); n != 6 {
		t.Errorf("%d programs, want 6", n)
	}
}

// A mount that the workload makes read-only itself makes no digest fixed: it can
// still change the file by the other way to it, in memory that it shares.
func TestFactsOfOwnReadOnlyMounts(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	m, r := makeTraced(t)
	ws := m.spec.Workspace.Target
	m.sh(`mkdir d e; cp /bin/echo d/prog
unshare -Urm sh -c '
set -e
mount --bind d e; mount -o remount,bind,ro e
sleep 2.1
e/prog before
exec python3 -c "
import mmap, os, subprocess
f = os.open(\"d/prog\", os.O_RDWR); x = mmap.mmap(f, 0)
x[len(x)-1] ^= 1
subprocess.check_call([\"e/prog\", \"after\"])
"'`)
	fs := r.all(t, m.b)
	digests := map[string]bool{}
	n := count(fs, func(f *trace.Fact) bool {
		is := f.Op == trace.Exec && f.Errno == 0 && f.Path == ws+"/d/prog" && f.Flags&trace.Mutable != 0
		if is {
			digests[f.Digest] = true
		}
		return is
	})
	if n != 2 || len(digests) != 2 {
		t.Errorf("%d programs with %d digests that may change, want 2 and 2", n, len(digests))
	}
}

// What the plan shows read-only does have a digest that stays, and so does what
// lies below the overlay until it is written to.
func TestFactsOfFixedPrograms(t *testing.T) {
	m, r := makeTraced(t, withGuest(t), func(s *bottle.Spec) { copyProgram(t, "/bin/echo", s.Workspace.Source+"/p") })
	ws := m.spec.Workspace.Target
	m.guestSays("nothing")
	m.sh("./p 1; : >> p; ./p 2; printf x >> p; ./p 3")
	fs := r.all(t, m.b)
	if count(fs, func(f *trace.Fact) bool {
		return f.Op == trace.Exec && f.Path == factsGuest && f.Flags == trace.Foreign && len(f.Digest) == sha256.Size
	}) != 1 {
		t.Error("a program that the plan shows read-only has no digest that stays")
	}
	var flags []trace.Flags
	for _, f := range fs {
		if f.Op == trace.Exec && f.Path == ws+"/p" {
			flags = append(flags, f.Flags)
		}
	}
	if fmt.Sprint(flags) != fmt.Sprint([]trace.Flags{0, trace.Mutable, trace.Mutable}) {
		t.Errorf("flags %v", flags)
	}
}

// Each process ends once: one that its parent traces, one whose parent ends
// before it was waited for, one with threads. A clone that is given up is no
// process, and no end of its maker.
func TestFactsOfEnds(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	m, r := makeTraced(t)
	out := m.sh(`exec python3 -c '
import ctypes, os, signal, struct, threading, time
libc = ctypes.CDLL(None, use_errno=True)
traced = os.fork()
if traced == 0:
    libc.ptrace(0, 0, 0, 0)
    os._exit(11)
os.waitpid(traced, 0)
r, w = os.pipe()
middle = os.fork()
if middle == 0:
    zombie = os.fork()
    if zombie == 0: os._exit(12)
    os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
    os.write(w, str(zombie).encode())
    os._exit(13)
os.waitpid(middle, 0)
zombie = int(os.read(r, 20))
threaded = os.fork()
if threaded == 0:
    for i in range(20): threading.Thread(target=time.sleep, args=(60,)).start()
    os._exit(14)
os.waitpid(threaded, 0)
# CLONE_PIDFD to nowhere: the clone is given up after it was made.
CLONE3 = 435
for flags in (0x1000, 0x1000 | 0x10000 | 0x800 | 0x100):
    args = struct.pack("11Q", flags, 8, 0, 0, 0 if flags & 0x10000 else 17, 0, 0, 0, 0, 0, 0)
    if libc.syscall(CLONE3, args, 88) >= 0: os._exit(99)
print(traced, middle, zombie, threaded, os.getpid())
'`)
	var traced, middle, zombie, threaded, self uint32
	if _, err := fmt.Sscan(out, &traced, &middle, &zombie, &threaded, &self); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	exits := map[uint32][]uint64{}
	forks := map[uint32]int{}
	fs := r.all(t, m.b)
	for _, f := range fs {
		switch f.Op {
		case trace.Exit:
			exits[f.PID] = append(exits[f.PID], f.A)
		case trace.Fork:
			forks[f.PID]++
		}
	}
	for pid, want := range map[uint32]uint64{traced: 11, zombie: 12, middle: 13, threaded: 14, self: 0} {
		if len(exits[pid]) != 1 || exits[pid][0] != want {
			t.Errorf("process %d ended with %v, want %d once", pid, exits[pid], want)
		}
	}
	for pid := range exits {
		if pid != self && forks[pid] != 1 {
			t.Errorf("process %d ended, and was made %d times", pid, forks[pid])
		}
	}
}

// A path that begins at a root of the workload's own is said behind that root; a
// name that may not be used, in the directory where it is.
func TestFactsOfOwnRoots(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	m, r := makeTraced(t)
	ws := m.spec.Workspace.Target
	m.sh(`mkdir -p jail/etc shut/in; touch shut/in/x shut/plain; ln -s shut sl; chmod 0 shut/in
exec python3 -c '
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
def no(f, *a):
    try: f(*a)
    except OSError: pass
    else: raise SystemExit("%s %s succeeded" % (f, a))
no(os.open, "sl/in/x", os.O_RDONLY)
no(os.open, "sl/in", os.O_RDONLY)
no(os.chown, "sl/plain", 0, 0)
d = os.open("jail", os.O_RDONLY)
if libc.syscall(437, d, b"/etc/none", struct.pack("QQQ", 0, 0, 16), 24) >= 0: raise SystemExit("openat2")
if libc.unshare(0x10000000) != 0: raise SystemExit("unshare")
if libc.chroot(b"jail") != 0: raise SystemExit("chroot")
os.chdir("/")
no(os.open, "/etc/none/deeper", os.O_RDONLY)
'`)
	fs := r.all(t, m.b)
	for _, path := range []string{"/shut/in", "/jail/etc/none", "/jail/etc/none/deeper"} {
		if !has(fs, trace.Open, trace.Asked, ws+path) {
			t.Errorf("no fact of %s", ws+path)
		}
	}
	if !has(fs, trace.Chown, 0, ws+"/shut/plain") {
		t.Error("no fact of the chown")
	}
	if count(fs, func(f *trace.Fact) bool { return strings.HasPrefix(f.Path, "/etc/none") }) != 0 {
		t.Error("a path below the workload's root looks like one of the bottle's")
	}
}

// A file by the name of a device is a file that was written, and a device is none.
func TestFactsOfFalseDevices(t *testing.T) {
	m, r := makeTraced(t)
	m.sh(`echo x >/dev/null; echo x >/dev/zero; mkfifo p; (exec 3<>p; echo x >p)
exec unshare -Urm sh -c 'set -e; mount -t tmpfs none /dev; echo kept >/dev/null; read x </dev/null; test "$x" = kept; chmod 600 /dev/null'`)
	s := trace.NewSummary(trace.View{Workspace: m.spec.Workspace.Target})
	for _, f := range r.all(t, m.b) {
		s.Add(&f)
	}
	var got []string
	for _, w := range s.Written(100) {
		if !strings.Contains(w.Path, "/proc/") { // unshare writes there
			got = append(got, fmt.Sprint(w.Path, w.How))
		}
	}
	want := []string{"(unreachable)/dev/null[truncate write mode]", m.spec.Workspace.Target + "/p[make]"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("written: %q, want %q", got, want)
	}
}

// TestFactsOfNamespaces: a clone into other namespaces is recorded as a request for
// rights.
func TestFactsOfNamespaces(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	m, r := makeTraced(t)
	m.sh(`exec python3 -c '
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
def clone(n, *a):
    pid = libc.syscall(n, *a)
    if pid == 0: os._exit(0)
    if pid > 0: os.waitpid(pid, 0)
    return pid
args = lambda flags: struct.pack("11Q", flags, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)
print(clone(435, args(0x10000000), 88) > 0, clone(435, args(0x20000000), 88), clone(435, args(0), 88) > 0)
'`)
	fs := r.all(t, m.b)
	for what, ok := range map[string]func(f *trace.Fact) bool{
		"that succeeded": func(f *trace.Fact) bool { return f.A == unix.CLONE_NEWUSER && f.Errno == 0 && f.Observed() },
		"that failed":    func(f *trace.Fact) bool { return f.A == unix.CLONE_NEWPID && f.Errno == uint32(unix.EPERM) },
	} {
		if n := count(fs, func(f *trace.Fact) bool { return f.Op == trace.Caps && f.Path == "clone" && ok(f) }); n != 1 {
			t.Errorf("%d facts of a clone %s, want 1", n, what)
		}
	}
	if n := count(fs, func(f *trace.Fact) bool { return f.Op == trace.Caps && f.Path == "clone" }); n != 2 {
		t.Errorf("%d facts of clones, want 2", n)
	}
}

// A program that makes no call at all is reported while it runs.
func TestFactsOfSilentPrograms(t *testing.T) {
	m, r := makeTraced(t)
	spin := tinyExit()
	copy(spin[64+56:], []byte{0xeb, 0xfe}) // jmp to itself
	if err := os.WriteFile(m.spec.Workspace.Source+"/spin", spin, 0o755); err != nil {
		t.Fatal(err)
	}
	m.sh("./spin > /dev/null 2>&1 & while [ \"$(readlink /proc/$!/exe)\" != $PWD/spin ]; do :; done")
	if n := count(r.all(t, m.b), func(f *trace.Fact) bool {
		return f.Op == trace.Exec && f.Errno == 0 && f.Path == m.spec.Workspace.Target+"/spin" && len(f.Digest) == sha256.Size
	}); n != 1 {
		t.Errorf("%d facts of a program that makes no call, want 1", n)
	}
}

// A signal that stops a process does so also when it comes while the process
// becomes another program. This one does so for most of its time: the file is
// the workload's own and large, and is read anew each time.
func TestStopDuringExec(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	m, r := makeTraced(t, seed(t, map[string]string{"again": "printf x >>times; exec ./big again\n"}))
	const rounds = 20
	out := m.sh(fmt.Sprintf(`cp /bin/sh big; truncate -s 20M big; exec python3 -c '
import os, signal, sys
p = os.fork()
if p == 0: os.execv("./big", ["./big", "again"])
times = lambda: os.path.exists("times") and os.path.getsize("times")
for i in range(%d):
    sent, sig = times(), (signal.SIGSTOP, signal.SIGTSTP)[i %% 2]
    os.kill(p, sig)
    while True:
        q, st = os.waitpid(p, os.WUNTRACED | os.WNOHANG)
        if q: break
        if times() > sent + 10:
            print("it went on after signal", sig); os.kill(p, 9); sys.exit()
    if not os.WIFSTOPPED(st) or os.WSTOPSIG(st) != sig: print("status", st)
    os.kill(p, signal.SIGCONT)
    while i and times() == sent: pass
# A program that is killed while it begins has failed; one that stands still is in none.
os.kill(p, signal.SIGSTOP); os.waitpid(p, os.WUNTRACED)
os.kill(p, 9)
print("stopped")
'`, rounds))
	if out != "stopped\n" {
		t.Errorf("%s", out)
	}
	// An exec that was given up for that is none.
	fs := r.all(t, m.b)
	if n := count(fs, func(f *trace.Fact) bool { return f.Op == trace.Exec && f.Errno != 0 }); n != 0 {
		t.Errorf("%d programs are said to have failed", n)
	}
}
