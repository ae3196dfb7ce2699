package gvisor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/trace"
)

// The attacks on facts are parts of this program, which is static and makes its
// system calls itself, run inside a bottle by the name factsGuest.

const factsGuest = "/facts-guest"

// guestMain takes over when this is the program inside. See bottletest.Main for
// the exit.
func guestMain() {
	if filepath.Base(os.Args[0]) != filepath.Base(factsGuest) || len(os.Args) < 2 {
		return
	}
	part := attacks[os.Args[1]]
	if part == nil {
		fmt.Println("no such attack:", os.Args[1])
		syscall.Exit(99)
	}
	if err := part(os.Args[2:]); err != nil {
		fmt.Println(err)
		syscall.Exit(98)
	}
	syscall.Exit(0)
}

// withGuest shows this program inside.
func withGuest(t testing.TB) func(*bottle.Spec) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "facts") // where the bottle's user can go
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	copyProgram(t, exe, dir+"/guest")
	return func(s *bottle.Spec) {
		s.Mounts = append(s.Mounts, bottle.Mount{Source: dir + "/guest", Target: factsGuest, Access: bottle.AccessReadOnly})
		s.Limits.Pids, s.Limits.OpenFiles = 2000, 1<<20
	}
}

func copyProgram(t testing.TB, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

var attacks = map[string]func([]string) error{
	"channels": attackChannels,
	"race":     attackRace,
	"exec":     attackExec,
	"argv":     attackArgv,
	"swap":     attackSwap,
	"fdwrite":  attackDescriptor,
	"spawn":    attackSpawn,
	"self":     attackSelf,
	"long":     attackLong,
	"large":    attackLarge,
	"reuse":    attackReuse,
	"forge":    attackForge,
	"exhaust":  attackExhaust,
	"flood":    attackFlood,
	"reopen":   attackReopen,
	"pids":     attackPIDs,
	"print":    func(a []string) error { fmt.Println(a); return nil },
	"nothing":  func([]string) error { return nil },
	"hardlink": attackHardLink,
}

// flicker is a string in memory that two threads keep changing from one value
// to another of the same length.
type flicker struct {
	buf  []byte
	vals [2][]byte
	stop chan struct{}
	n    int
}

func newFlicker(a, b string) *flicker {
	f := &flicker{vals: [2][]byte{[]byte(a + "\x00"), []byte(b + "\x00")}, stop: make(chan struct{})}
	f.buf = append(make([]byte, 0, 4096), f.vals[0]...)
	for range 2 {
		go func() { // ends with the process, or with stop
			runtime.LockOSThread()
			for {
				select {
				case <-f.stop:
					return
				default:
				}
				for range 64 {
					copy(f.buf, f.vals[0])
					copy(f.buf, f.vals[1])
				}
			}
		}()
	}
	return f
}

// ptr is the address, with the value set to begin with: so that both are seen
// even where no thread ran meanwhile.
func (f *flicker) ptr() uintptr {
	f.n++
	copy(f.buf, f.vals[f.n%2])
	return uintptr(unsafe.Pointer(&f.buf[0]))
}

const atCWD = ^uintptr(99) // AT_FDCWD

func cstr(s string) uintptr {
	b := append([]byte(s), 0)
	kept = append(kept, b)
	return uintptr(unsafe.Pointer(&b[0]))
}

// What system calls are given lies where the collector leaves it.
var (
	kept   [][]byte
	buf    [64]byte
	long77 = [2]unix.Timespec{{Sec: 77}, {Sec: 77}}
)

// attackRace makes each call that takes a path while its path changes between a
// and b, looks at which of the two it was that changed, and prints the counts.
func attackRace(args []string) error {
	rounds, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	size := func(p string) int64 {
		fi, err := os.Lstat(p)
		if err != nil {
			return -1
		}
		return fi.Size()
	}
	there := func(p string) bool { return size(p) >= 0 }
	files := func(a, b string) {
		for _, p := range []string{a, b} {
			must(os.WriteFile(p, []byte("12345678"), 0o600))
		}
	}
	nothing := func(a, b string) {}
	mode := func(p string) os.FileMode {
		fi, err := os.Lstat(p)
		must(err)
		return fi.Mode().Perm()
	}
	var ret, addr uintptr
	call := func(no uintptr, a ...uintptr) func() {
		return func() {
			var x [6]uintptr
			for i, v := range a {
				if v == flick {
					v = addr
				}
				x[i] = v
			}
			r, _, e := syscall.Syscall6(no, x[0], x[1], x[2], x[3], x[4], x[5])
			if ret = r; e != 0 {
				ret = ^uintptr(0)
			}
		}
	}
	hit := func(a, b string, was func(string) bool) int {
		switch x, y := was(a), was(b); {
		case x && !y:
			return 0
		case y && !x:
			return 1
		}
		return -1
	}
	exists := func(a, b string) int { return hit(a, b, there) }
	gone := func(a, b string) int { return hit(a, b, func(p string) bool { return !there(p) }) }
	home, err := os.Getwd()
	must(err)
	mem := uintptr(unsafe.Pointer(&buf[0]))
	for _, r := range []struct {
		name  string
		setUp func(a, b string)
		call  func()
		which func(a, b string) int
	}{
		{"mkdir", nothing, call(unix.SYS_MKDIRAT, atCWD, flick, 0o700), exists},
		{"rmdir", func(a, b string) { must(os.Mkdir(a, 0o700)); must(os.Mkdir(b, 0o700)) }, call(unix.SYS_UNLINKAT, atCWD, flick, unix.AT_REMOVEDIR), gone},
		{"unlink", files, call(unix.SYS_UNLINKAT, atCWD, flick, 0), gone},
		{"symlink", nothing, call(unix.SYS_SYMLINKAT, cstr("to"), atCWD, flick), exists},
		{"symlink-target", nothing, call(unix.SYS_SYMLINKAT, flick, atCWD, cstr("new")), func(a, b string) int {
			to, err := os.Readlink("new")
			must(err)
			return hit(a, b, func(p string) bool { return p == to })
		}},
		{"mknod", nothing, call(unix.SYS_MKNODAT, atCWD, flick, unix.S_IFIFO|0o600, 0), exists},
		{"create", nothing, call(unix.SYS_OPENAT, atCWD, flick, unix.O_CREAT|unix.O_WRONLY, 0o600), func(a, b string) int { unix.Close(int(ret)); return exists(a, b) }},
		{"link", files, call(unix.SYS_LINKAT, atCWD, flick, atCWD, cstr("new"), 0), func(a, b string) int {
			n, err := os.Stat("new")
			must(err)
			return hit(a, b, func(p string) bool { fi, err := os.Stat(p); must(err); return os.SameFile(n, fi) })
		}},
		{"rename", files, call(unix.SYS_RENAMEAT2, atCWD, flick, atCWD, cstr("new"), 0), gone},
		{"rename-to", files, func() {
			must(os.WriteFile("new", []byte("n"), 0o600))
			call(unix.SYS_RENAMEAT2, atCWD, cstr("new"), atCWD, flick, 0)()
		}, func(a, b string) int { return hit(a, b, func(p string) bool { return size(p) == 1 }) }},
		{"chmod", files, call(unix.SYS_FCHMODAT, atCWD, flick, 0o640), func(a, b string) int { return hit(a, b, func(p string) bool { return mode(p) == 0o640 }) }},
		{"truncate", files, call(unix.SYS_TRUNCATE, flick, 5), func(a, b string) int { return hit(a, b, func(p string) bool { return size(p) == 5 }) }},
		{"utimes", files, call(unix.SYS_UTIMENSAT, atCWD, flick, uintptr(unsafe.Pointer(&long77)), 0), func(a, b string) int {
			return hit(a, b, func(p string) bool { fi, err := os.Stat(p); must(err); return fi.ModTime().Unix() == 77 })
		}},
		{"chown", files, call(unix.SYS_FCHOWNAT, atCWD, flick, uintptr(os.Getuid()), ^uintptr(0), 0), nil},
		{"chdir", func(a, b string) { must(os.Mkdir(a, 0o700)); must(os.Mkdir(b, 0o700)) }, call(unix.SYS_CHDIR, flick), func(a, b string) int {
			wd, err := os.Getwd()
			must(err)
			must(unix.Fchdir(homeFD))
			return hit(a, b, func(p string) bool { return wd == home+"/"+p })
		}},
		{"readlink", func(a, b string) { must(os.Symlink("A", a)); must(os.Symlink("B", b)) }, call(unix.SYS_READLINKAT, atCWD, flick, mem, 1), func(a, b string) int { return int(buf[0] - 'A') }},
		{"access", func(a, b string) { must(os.WriteFile(a, nil, 0o600)) }, call(unix.SYS_FACCESSAT, atCWD, flick, 0), func(a, b string) int {
			if ret == 0 {
				return 0
			}
			return 1
		}},
		{"bind", nothing, func() {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			must(err)
			// The family lies before the path: bind takes both.
			call(unix.SYS_BIND, uintptr(fd), flick, 2+uintptr(len("bind-a.0")))()
			unix.Close(fd)
		}, exists},
	} {
		counts := [2]int{}
		a, b := r.name+"-a", r.name+"-b"
		if r.name == "bind" {
			a, b = "bind-a.0", "bind-b.0"
		}
		va, vb := a, b
		if r.name == "bind" {
			va, vb = "\x01\x00"+a, "\x01\x00"+b
		}
		f := newFlicker(va, vb)
		for range rounds {
			r.setUp(a, b)
			addr = f.ptr()
			r.call()
			if r.which != nil {
				switch n := r.which(a, b); n {
				case 0, 1:
					counts[n]++
				default:
					return fmt.Errorf("%s: neither or both (result %d)", r.name, int(ret))
				}
			}
			for _, p := range []string{a, b, "new"} {
				os.RemoveAll(p)
			}
		}
		close(f.stop)
		if r.which != nil {
			fmt.Println(r.name, counts[0], counts[1])
		}
	}
	return nil
}

const flick = ^uintptr(12345) // stands for the changing path

var homeFD = func() int { fd, _ := unix.Open(".", unix.O_RDONLY|unix.O_CLOEXEC, 0); return fd }()

// attackExec executes a path that threads change.
func attackExec([]string) error {
	f := newFlicker("./run-a", "./run-b")
	if os.Getpid()%2 == 0 {
		f.ptr()
	}
	argv := []uintptr{cstr("x"), 0}
	_, _, e := syscall.Syscall(unix.SYS_EXECVE, f.ptr(), uintptr(unsafe.Pointer(&argv[0])), 0)
	return e
}

// attackArgv executes a program whose argument threads change.
func attackArgv([]string) error {
	f := newFlicker("argument-a", "argument-b")
	if os.Getpid()%2 == 0 {
		f.ptr()
	}
	argv := []uintptr{cstr("echo"), f.ptr(), 0}
	_, _, e := syscall.Syscall(unix.SYS_EXECVE, cstr("/bin/echo"), uintptr(unsafe.Pointer(&argv[0])), 0)
	return e
}

// attackSwap reads a link that is swapped between two files.
func attackSwap([]string) error {
	for _, p := range []string{"a", "b"} {
		if err := os.WriteFile("swap-"+p, []byte(p), 0o600); err != nil {
			return err
		}
	}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			os.Symlink([]string{"swap-a", "swap-b"}[i%2], "swap.new")
			os.Rename("swap.new", "swap")
		}
	}()
	n := map[string]int{}
	for i := 0; i < 400; {
		b, err := os.ReadFile("swap")
		if err == nil {
			n[string(b)]++
			i++
		}
	}
	close(stop)
	<-done
	fmt.Println("swap", n["a"], n["b"])
	return nil
}

// attackDescriptor writes through a descriptor behind which another thread puts
// one file or the other, each time opened anew, and prints which were written.
func attackDescriptor([]string) error {
	slot, err := unix.Open("/dev/null", unix.O_WRONLY, 0)
	if err != nil {
		return err
	}
	stop, done := make(chan struct{}), make(chan struct{})
	opened := 0
	go func() {
		defer close(done)
		runtime.LockOSThread()
		for ; ; opened++ {
			select {
			case <-stop:
				return
			default:
			}
			fd, err := unix.Open(fmt.Sprintf("slot-%d", opened), unix.O_CREAT|unix.O_WRONLY, 0o600)
			if err != nil {
				return
			}
			unix.Dup3(fd, slot, unix.O_CLOEXEC)
			unix.Close(fd)
		}
	}()
	for range 3000 {
		unix.Write(slot, []byte("x"))
	}
	close(stop)
	<-done
	for i := range opened {
		if fi, err := os.Stat(fmt.Sprintf("slot-%d", i)); err == nil && fi.Size() > 0 {
			fmt.Println(i)
		}
	}
	return nil
}

// attackSpawn starts very many processes that do nothing.
func attackSpawn(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	if err := os.WriteFile("tiny", tinyExit(), 0o755); err != nil {
		return err
	}
	fmt.Println(os.Getpid())
	for range n {
		p, err := os.StartProcess("./tiny", []string{"tiny"}, &os.ProcAttr{})
		if err != nil {
			return err
		}
		st, err := p.Wait()
		if err != nil {
			return err
		}
		fmt.Println(p.Pid, st.ExitCode())
	}
	return nil
}

// tinyExit is a program that makes one system call, without a library.
func tinyExit() []byte {
	b, err := initELF()
	if err != nil {
		return nil
	}
	// mov eax, 60; mov edi, 7; syscall
	copy(b[64+56:], []byte{0xb8, 60, 0, 0, 0, 0xbf, 7, 0, 0, 0, 0x0f, 0x05})
	return b
}

// attackSelf is executed, deletes its file, and is executed once more by the
// name that the kernel keeps for it.
func attackSelf(args []string) error {
	if len(args) > 0 {
		return nil
	}
	me, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	if err := os.Remove(me); err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", []string{factsGuest, "self", "again"}, nil)
}

// attackLong opens files with very long names, and files by very long paths.
func attackLong([]string) error {
	if err := os.WriteFile("longest", nil, 0o600); err != nil {
		return err
	}
	asked := strings.Repeat("./", (4095-len("longest"))/2)
	asked += strings.Repeat("/", 4095-len("longest")-len(asked)) + "longest"
	if _, err := os.Stat(asked); err != nil {
		return fmt.Errorf("%d bytes: %w", len(asked), err)
	}
	if _, err := os.Stat("/" + asked + "/"); !errors.Is(err, unix.ENAMETOOLONG) {
		return fmt.Errorf("more than a path may have: %v", err)
	}
	for range 25 {
		d := strings.Repeat("d", 200)
		if err := unix.Mkdir(d, 0o700); err != nil {
			return err
		}
		if err := unix.Chdir(d); err != nil {
			return err
		}
	}
	fd, err := unix.Open("deepest", unix.O_CREAT|unix.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte("x"))
	return err
}

// attackLarge executes with megabytes of arguments and environment.
func attackLarge([]string) error {
	big := strings.Repeat("A", 120<<10)
	argv := []string{factsGuest, "nothing"}
	var env []string
	for range 8 {
		argv = append(argv, big)
		env = append(env, "E="+big)
	}
	many := make([]string, 0, 3000)
	for i := range 3000 {
		many = append(many, strconv.Itoa(i))
	}
	for _, a := range [][]string{argv, append([]string{factsGuest, "nothing"}, many...)} {
		p, err := os.StartProcess(factsGuest, a, &os.ProcAttr{Env: env})
		if err != nil {
			return err
		}
		if st, err := p.Wait(); err != nil || st.ExitCode() != 0 {
			return fmt.Errorf("%v %v", st, err)
		}
	}
	return nil
}

// attackReuse writes to very many files, one after the other, so that the kernel reuses
// the memory of one file's data for another's.
func attackReuse(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	for i := range n {
		if err := os.WriteFile(fmt.Sprintf("r%d", i), []byte("x"), 0o600); err != nil {
			return err
		}
		fd, err := unix.Open(fmt.Sprintf("r%d", i), unix.O_RDWR, 0)
		if err != nil {
			return err
		}
		for range 3 {
			if _, err := unix.Pwrite(fd, []byte("y"), 0); err != nil {
				return err
			}
		}
		unix.Close(fd)
	}
	return nil
}

// attackForge prints what a trace consists of, to all that it can write to.
func attackForge([]string) error {
	b := trace.NewBatch(nil)
	f := trace.Fact{Seq: 1, Time: 1, Op: trace.Exec, PID: 1, Path: "/forged"}
	for range 100 {
		b = f.Append(b)
	}
	text := `{"op":"exec","path":"/forged","pid":1}` + "\n1 exec fl=0 pid=1 /forged\n"
	for fd := range 64 {
		if fd == 1 {
			continue // Go's own, and the answer goes there
		}
		unix.Write(fd, b)
		unix.Write(fd, []byte(text))
		unix.Sendto(fd, b, unix.MSG_DONTWAIT, nil)
	}
	for _, typ := range []int{unix.SOCK_SEQPACKET, unix.SOCK_DGRAM} {
		s, err := unix.Socket(unix.AF_UNIX, typ, 0)
		if err != nil {
			continue
		}
		for _, name := range []string{"@carboy-facts", "@facts", "facts", "trace", "/trace"} {
			unix.Sendto(s, b, unix.MSG_DONTWAIT, &unix.SockaddrUnix{Name: name})
		}
	}
	return nil
}

// attackExhaust opens files of the host until there is no descriptor left for
// another one, and goes on.
func attackExhaust([]string) error {
	n, last := 0, error(nil)
	filepath.WalkDir("/usr/share", func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
				last = err
				return filepath.SkipAll
			}
			return nil
		}
		if _, last = unix.Open(path, unix.O_RDONLY, 0); last != nil && last != unix.EACCES {
			return filepath.SkipAll
		}
		n++
		return nil
	})
	for range 20 {
		os.Stat("after")
		time.Sleep(5 * time.Millisecond) // the next is in another batch
	}
	fmt.Println(n, last)
	return nil
}

// attackFlood makes facts as fast as it can.
func attackFlood(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	var st unix.Stat_t
	for range n {
		unix.Stat("none", &st)
	}
	return nil
}

// attackReopen reaches a file by the names that /proc has for it.
func attackReopen([]string) error {
	if err := os.WriteFile("hidden", []byte("h"), 0o600); err != nil {
		return err
	}
	fd, err := unix.Open("hidden", unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	for _, p := range []string{
		fmt.Sprintf("/proc/self/fd/%d", fd), "/proc/self/cwd/hidden", "/proc/self/root" + wd + "/hidden",
		fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), fmt.Sprintf("/proc/thread-self/fd/%d", fd),
	} {
		w, err := unix.Open(p, unix.O_WRONLY, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if _, err := unix.Write(w, []byte("w")); err != nil {
			return err
		}
		unix.Close(w)
	}
	fmt.Println(5)
	return nil
}

// attackPIDs has the kernel give every number away once, and begin anew.
func attackPIDs([]string) error {
	if err := os.WriteFile("tiny", tinyExit(), 0o755); err != nil {
		return err
	}
	spawn := func() error {
		for range 50 {
			p, err := os.StartProcess("./tiny", []string{"tiny"}, &os.ProcAttr{})
			if err != nil {
				return err
			}
			if _, err := p.Wait(); err != nil {
				return err
			}
		}
		return nil
	}
	if err := spawn(); err != nil {
		return err
	}
	for range 1<<16 - 100 {
		done := make(chan struct{})
		go func() { // takes its thread with it
			defer close(done)
			runtime.LockOSThread()
		}()
		<-done
	}
	return spawn()
}

func attackHardLink([]string) error {
	if err := os.WriteFile("real-name", []byte("x"), 0o600); err != nil {
		return err
	}
	if err := os.Link("real-name", "other-name"); err != nil {
		return err
	}
	b, err := os.ReadFile("other-name")
	if err == nil && !bytes.Equal(b, []byte("x")) {
		err = errors.New("other content")
	}
	return err
}
