package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/guest/agent"
	"github.com/carboy/carboy/internal/guest/proto"
	"github.com/carboy/carboy/internal/testenv"
)

// The test binary is also the program inside: it starts itself under these names.
const asAgent = "guest-agent"

func TestMain(m *testing.M) {
	if os.Args[0] == asAgent || os.Args[0] == "carboy-stage" {
		agent.Main(os.Args)
	}
	os.Exit(m.Run())
}

const patience = time.Minute

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// live starts the program as an ordinary process, on a socket.
func live(t *testing.T, setup *proto.Setup) *Client {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "guest")
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{asAgent, "fd", "3"}, Stderr: os.Stderr, ExtraFiles: []*os.File{theirs}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	if err := unix.SetNonblock(fds[0], true); err != nil {
		t.Fatal(err)
	}
	c, err := Connect(within(t), os.NewFile(uintptr(fds[0]), "host"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the program ended with %v", err)
		}
	})
	if setup != nil {
		if err := c.Setup(within(t), setup); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// plain is a setup without rights: as root, commands become nobody.
func plain() *proto.Setup { return &proto.Setup{UID: 65534, GID: 65534} }

// ran is a command whose output is collected.
type ran struct {
	bottle.Process
	t        *testing.T
	in       *os.File
	out, err testenv.Buffer
	copied   sync.WaitGroup
}

func try(t *testing.T, c *Client, tune func(*bottle.Command), args ...string) (*ran, error) {
	t.Helper()
	r := &ran{t: t}
	var ends [6]*os.File
	for i := 0; i < 6; i += 2 {
		a, b, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		ends[i], ends[i+1] = a, b
	}
	r.in = ends[1]
	cmd := &bottle.Command{Args: args, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/", Stdin: ends[0], Stdout: ends[3], Stderr: ends[5]}
	if tune != nil {
		tune(cmd)
	}
	for i, to := range []*testenv.Buffer{&r.out, &r.err} {
		from := ends[2+2*i]
		r.copied.Add(1)
		go func() { defer r.copied.Done(); io.Copy(to, from); from.Close() }()
	}
	var err error
	r.Process, err = c.Start(within(t), cmd)
	for _, f := range []*os.File{ends[0], ends[3], ends[5]} {
		f.Close()
	}
	if err != nil {
		r.in.Close()
		r.copied.Wait()
	}
	return r, err
}

func start(t *testing.T, c *Client, args ...string) *ran {
	t.Helper()
	r, err := try(t, c, nil, args...)
	if err != nil {
		t.Fatalf("start %q: %v", args, err)
	}
	return r
}

func (r *ran) end() bottle.Status {
	r.t.Helper()
	r.in.Close()
	st, err := r.Wait(within(r.t))
	if err != nil {
		r.t.Fatal(err)
	}
	r.copied.Wait()
	return st
}

func sh(t *testing.T, c *Client, script string) string {
	t.Helper()
	r := start(t, c, "/bin/sh", "-c", script)
	if st := r.end(); st.ExitCode() != 0 {
		t.Fatalf("%q: %+v %s", script, st, r.err.String())
	}
	return r.out.String()
}

func TestCommands(t *testing.T) {
	c := live(t, plain())
	if h := c.Hello(); h.Version != proto.Version || h.Kernel == "" || h.PID == 0 {
		t.Errorf("hello: %+v", h)
	}
	for _, code := range []int{0, 1, 127, 255} {
		if st := start(t, c, "/bin/sh", "-c", fmt.Sprint("exit ", code)).end(); st != (bottle.Status{Exited: true, Code: code}) {
			t.Errorf("exit %d: %+v", code, st)
		}
	}
	if st := start(t, c, "sh", "-c", "kill -9 $$").end(); st.Signal != syscall.SIGKILL {
		t.Errorf("killed: %+v", st)
	}
	for args, want := range map[string]error{"no-such": bottle.ErrNotFound, "/no/such": bottle.ErrNotFound, "/etc/passwd": bottle.ErrNotExecutable, "/etc": bottle.ErrNotExecutable, "/etc/passwd/x": bottle.ErrNotExecutable} {
		if _, err := try(t, c, nil, args); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", args, err, want)
		}
	}
	if _, err := try(t, c, func(cmd *bottle.Command) { cmd.Dir = "/no/such" }, "true"); err == nil || errors.Is(err, bottle.ErrNotFound) {
		t.Errorf("a missing working directory: %v", err)
	}
	r, err := try(t, c, func(cmd *bottle.Command) { cmd.Env = []string{"A=\xff\n", "B="} }, "/usr/bin/env", "-0")
	if err != nil {
		t.Fatal(err)
	}
	if r.end(); r.out.String() != "A=\xff\n\x00B=\x00" {
		t.Errorf("environment: %q", r.out.String())
	}
	if _, err := try(t, c, nil, "/bin/true", strings.Repeat("z", 8<<20)); err == nil {
		t.Error("an argument of 8 MiB was taken")
	}
	big := strings.Repeat("a", 100_000)
	if got := sh(t, c, "echo "+big); strings.TrimSpace(got) != big {
		t.Error("a long argument came in pieces")
	}
}

func TestStreams(t *testing.T) {
	c := live(t, plain())
	r := start(t, c, "/bin/sh", "-c", "cat; echo done >&2")
	text := strings.Repeat("0123456789abcdef", 1<<16)
	if _, err := r.in.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if r.end(); r.out.String() != text || r.err.String() != "done\n" {
		t.Errorf("%d bytes came back, and %q", len(r.out.String()), r.err.String())
	}
	if got := sh(t, c, `head -c 20000000 /dev/zero | tr '\0' x`); len(got) != 20000000 {
		t.Errorf("%d bytes of 20 MB", len(got))
	}
	// What reads no input does not hinder its end.
	r = start(t, c, "true")
	if st, err := r.Wait(within(t)); err != nil || st.Code != 0 {
		t.Errorf("%+v %v", st, err)
	}
	r.in.Close()
	r.copied.Wait()
	// Nobody reads: the writer ends.
	pr, pw, _ := os.Pipe()
	r, err := try(t, c, func(cmd *bottle.Command) { cmd.Stdout.Close(); cmd.Stdout = pw }, "/bin/sh", "-c", "yes; echo status $? >&2")
	if err != nil {
		t.Fatal(err)
	}
	pw.Close()
	pr.Close()
	if r.end(); !strings.Contains(r.err.String(), "status") {
		t.Errorf("a writer without a reader: %q", r.err.String())
	}
	// A slow reader of one command holds up no other.
	slow, err := try(t, c, func(cmd *bottle.Command) {
		a, b, _ := os.Pipe()
		t.Cleanup(func() { a.Close() })
		cmd.Stdout.Close()
		cmd.Stdout = b
	}, "yes")
	if err != nil {
		t.Fatal(err)
	}
	if got := sh(t, c, "echo quick"); got != "quick\n" {
		t.Errorf("%q", got)
	}
	if err := slow.Signal(syscall.SIGKILL, false); err != nil {
		t.Error(err)
	}
	if st, err := slow.Wait(within(t)); err != nil || st.Signal != syscall.SIGKILL {
		t.Errorf("%+v %v", st, err)
	}
}

func TestSignals(t *testing.T) {
	c := live(t, plain())
	r := start(t, c, "/bin/sh", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done")
	waitFor(t, r, "up")
	if err := r.Signal(syscall.SIGTERM, false); err != nil {
		t.Fatal(err)
	}
	if st := r.end(); st.Code != 7 {
		t.Errorf("%+v", st)
	}
	if err := r.Signal(syscall.SIGTERM, false); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("a signal to a process that has ended: %v", err)
	}
	r = start(t, c, "/bin/sh", "-c", "sleep 611 & sleep 612 & echo up; wait")
	waitFor(t, r, "up")
	if err := r.Signal(syscall.SIGKILL, true); err != nil {
		t.Fatal(err)
	}
	r.end()
	if err := r.Signal(0, false); err == nil {
		t.Error("signal 0 was sent")
	}
}

func waitFor(t *testing.T, r *ran, text string) {
	t.Helper()
	if !testenv.Poll(patience, func() bool { return strings.Contains(r.out.String(), text) }) {
		t.Fatalf("no %q in %.200q", text, r.out.String())
	}
}

func TestTerminal(t *testing.T) {
	c := live(t, plain())
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer ptmx.Close()
	if err := pty.Setsize(ptmx, &pty.Winsize{Rows: 31, Cols: 97}); err != nil {
		t.Fatal(err)
	}
	// noflsh: else the terminal drops what is written between ^C's signal and its flush.
	p, err := c.Start(within(t), &bottle.Command{
		Args: []string{"/bin/sh", "-c", `test -t 0 && test -t 2 && stty size; stty noflsh; trap 'stty size' WINCH; trap 'echo caught; exit 9' INT; echo up; while :; do sleep 0.05; done`},
		Env:  []string{"PATH=/usr/bin:/bin"}, Dir: "/", Stdin: tty, Stdout: tty, Stderr: tty, Terminal: true,
	})
	tty.Close()
	if err != nil {
		t.Fatal(err)
	}
	var out testenv.Buffer
	go io.Copy(&out, ptmx)
	expect := func(text string) {
		t.Helper()
		if !testenv.Poll(patience, func() bool { return strings.Contains(out.String(), text) }) {
			t.Fatalf("no %q on the terminal: %q", text, out.String())
		}
	}
	expect("31 97")
	expect("up")
	if err := pty.Setsize(ptmx, &pty.Winsize{Rows: 50, Cols: 132}); err != nil {
		t.Fatal(err)
	}
	expect("50 132")
	if _, err := ptmx.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	if st, err := p.Wait(within(t)); err != nil || st.Code != 9 {
		t.Errorf("%+v %v", st, err)
	}
	expect("caught")
}

// TestCloseFullTerminal: a terminal that a command floods and nobody reads holds up nobody.
func TestCloseFullTerminal(t *testing.T) {
	c := live(t, plain())
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	r, err := try(t, c, func(cmd *bottle.Command) { cmd.Terminal, cmd.Stdin, cmd.Stdout, cmd.Stderr = true, tty, tty, tty }, "cat", "/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	// It is full when its reader's side gets no more. Whether one could write says less: the
	// kernel moves bytes on, and wakes no writer then.
	held, same := 0, 0
	if !testenv.Poll(patience, func() bool {
		n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCINQ)
		if err != nil || n == 0 || n != held {
			held, same = n, 0
		}
		same++
		return same == 50
	}) {
		t.Fatalf("the terminal does not fill: %d bytes", held)
	}
	closed := make(chan struct{})
	go func() { c.Close(); close(closed) }()
	select {
	case <-closed:
	case <-within(t).Done():
		t.Error("the client waits for a reader of the terminal")
	}
	tty.Close()
	master.Close()
	r.in.Close()
	r.copied.Wait()
}

// When the stream ends, so does every process, however it hides.
func TestEndOfStream(t *testing.T) {
	c := live(t, plain())
	r := start(t, c, "/bin/sh", "-c", "setsid sleep 611 & setsid sh -c 'setsid sleep 612 & wait' & echo up; wait")
	waitFor(t, r, "up")
	c.Close()
	if _, err := r.Wait(within(t)); !errors.Is(err, bottle.ErrGone) {
		t.Errorf("wait: %v", err)
	}
	if err := r.Signal(syscall.SIGTERM, false); !errors.Is(err, bottle.ErrGone) {
		t.Errorf("signal: %v", err)
	}
	if _, err := try(t, c, nil, "true"); !errors.Is(err, bottle.ErrGone) {
		t.Errorf("start: %v", err)
	}
	r.in.Close()
	r.copied.Wait()
	// The program itself is waited for at the test's end.
	if !testenv.Poll(patience, func() bool {
		left := testenv.Descendants(t, os.Getpid())
		return len(left) == 0 || len(left) == 1 && left[0].Zombie
	}) {
		t.Errorf("left: %v", testenv.Descendants(t, os.Getpid()))
	}
}

func TestLimits(t *testing.T) {
	s := plain()
	s.Limits, s.Filter = proto.Limits{FileSize: 1 << 20, OpenFiles: 64}, true
	c := live(t, s)
	if got := sh(t, c, "ulimit -n; ulimit -Hn; ulimit -c"); got != "64\n64\n0\n" {
		t.Errorf("limits: %q", got)
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if st := start(t, c, "/bin/sh", "-c", "head -c 2000000 /dev/zero >/proc/self/cwd/dev/null; exec head -c 2000000 /dev/zero >"+dir+"/big").end(); st.ExitCode() == 0 {
		t.Error("a file of 2 MB was written with a limit of 1 MiB")
	}
	status := sh(t, c, "cat /proc/self/status; id -u")
	if !strings.Contains(status, "NoNewPrivs:\t1") {
		t.Error("a command may gain rights")
	}
	if !strings.Contains(status, "Seccomp:\t2") {
		t.Error("a command's system calls are not filtered")
	}
	if os.Geteuid() == 0 {
		for _, line := range []string{"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "Groups:\t65534"} {
			if !strings.Contains(status, line) {
				t.Errorf("no %q in %s", line, status)
			}
		}
		if !strings.HasSuffix(status, "\n65534\n") {
			t.Error("the command is not the user that it was to be")
		}
	}
}

func TestSetup(t *testing.T) {
	c := live(t, nil)
	if _, err := try(t, c, nil, "true"); err == nil {
		t.Error("a command was started before the set-up")
	}
	dir := filepath.Join(t.TempDir(), "a/b")
	s := plain()
	s.Steps = []proto.Step{
		{Op: "mkdir", Path: dir, Mode: 0o1777, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())},
		{Op: "symlink", Path: dir + "/l", Source: "f", UID: uint32(os.Getuid()), GID: uint32(os.Getgid())},
	}
	if err := c.Setup(within(t), s); err != nil {
		t.Fatal(err)
	}
	if to, err := os.Readlink(dir + "/l"); err != nil || to != "f" {
		t.Errorf("%q %v", to, err)
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("%v %v", fi, err)
	}
	if err := c.Setup(within(t), plain()); err != nil {
		t.Errorf("a second set-up before any command: %v", err)
	}
	// What a bottle left must not lead a step elsewhere.
	outside := t.TempDir()
	if err := os.Symlink(outside, dir+"/out"); err != nil {
		t.Fatal(err)
	}
	for _, step := range []proto.Step{{Op: "mkdir", Path: dir + "/out", Mode: 0o777}, {Op: "mount", Source: "x", Type: "tmpfs", Path: dir + "/out"}} {
		if err := c.Setup(within(t), &proto.Setup{Steps: []proto.Step{step}}); err == nil || !strings.Contains(err.Error(), "symbolic links") {
			t.Errorf("%s through a link: %v", step.Op, err)
		}
	}
	if fi, err := os.Stat(outside); err != nil || fi.Mode().Perm() == 0o777 {
		t.Errorf("outside: %v %v", fi, err)
	}
	sh(t, c, "true")
	if err := c.Setup(within(t), plain()); err == nil {
		t.Error("the set-up was changed under running commands")
	}
	if _, err := c.Stats(within(t)); err != nil {
		t.Error(err)
	}
	if err := c.Freeze(within(t)); err == nil {
		t.Error("commands without a cgroup were frozen")
	}
}

// TestFiles packs a directory and unpacks it elsewhere.
func TestFiles(t *testing.T) {
	c := live(t, plain())
	from, to := t.TempDir(), t.TempDir()
	for name, content := range map[string]string{"a": "1", "d/e/f": "2", "odd\n\xff": "3"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(from, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(from, name), []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	sparse, err := os.Create(from + "/sparse")
	if err == nil {
		_, err = sparse.WriteAt([]byte("end"), 50<<20)
		sparse.Close()
	}
	if err = errors.Join(err, os.Link(from+"/a", from+"/b"), os.Symlink("/etc/shadow", from+"/l"), unix.Mkfifo(from+"/p", 0o600)); err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	if err := c.Export(within(t), []proto.Layer{{Dir: from, At: "/"}}, 0, &stream); err != nil {
		t.Fatal(err)
	}
	if stream.Len() > 1<<20 {
		t.Errorf("a hole became %d bytes", stream.Len())
	}
	if err := c.Import(within(t), to, &stream); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"a": "1", "b": "1", "d/e/f": "2", "odd\n\xff": "3"} {
		if b, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(b) != content {
			t.Errorf("%q: %q %v", name, b, err)
		}
	}
	if l, err := os.Readlink(to + "/l"); err != nil || l != "/etc/shadow" {
		t.Errorf("%q %v", l, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(to+"/a", &st); err != nil || st.Nlink != 2 || st.Mode&0o777 != 0o640 {
		t.Errorf("%+v %v", st, err)
	}
	if err := unix.Stat(to+"/sparse", &st); err != nil || st.Size != 50<<20+3 || st.Blocks > 64 {
		t.Errorf("sparse: %+v %v", st, err)
	}
	if err := c.Export(within(t), []proto.Layer{{Dir: "/no/such", At: "/"}}, 0, io.Discard); err == nil {
		t.Error("a directory that is not there was exported")
	}
}

var errReader = errors.New("the reader gave up")

type broken struct{ left int }

func (b *broken) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, errReader
	}
	return len(p), nil
}

func TestExportBrokenReader(t *testing.T) {
	c := live(t, plain())
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/big", bytes.Repeat([]byte("x"), 5<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := c.Export(within(t), []proto.Layer{{Dir: dir, At: "/"}}, 0, &broken{left: 1 << 20}); !errors.Is(err, errReader) {
		t.Errorf("%v", err)
	}
	if got := sh(t, c, "echo alive"); got != "alive\n" {
		t.Errorf("%q", got)
	}
}

// TestExportBounded: a guest that sends more than its files can take is not read on.
func TestExportBounded(t *testing.T) {
	var b strings.Builder
	w := &bounded{w: &b, left: 10}
	if n, err := w.Write([]byte("0123456789")); n != 10 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := w.Write([]byte("x")); n != 0 || err == nil || b.Len() != 10 {
		t.Errorf("beyond: %d, %v, %q", n, err, b.String())
	}
}

// pipes joins the program's standard streams into one.
type pipes struct{ in, out *os.File }

func (p *pipes) Read(b []byte) (int, error)  { return p.out.Read(b) }
func (p *pipes) Write(b []byte) (int, error) { return p.in.Write(b) }
func (p *pipes) Close() error                { return errors.Join(p.in.Close(), p.out.Close()) }

// TestStandardStreams speaks with a program that has two pipes, which commands do not get.
func TestStandardStreams(t *testing.T) {
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{asAgent, "stdio"}, Stdin: inR, Stdout: outW, Stderr: os.Stderr}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	inR.Close()
	outW.Close()
	c, err := Connect(within(t), &pipes{inW, outR})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		c.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the program ended with %v", err)
		}
	}()
	if err := c.Setup(within(t), plain()); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, c, "echo through; ls /proc/self/fd"); got != "through\n0\n1\n2\n3\n" { // 3 is ls's own
		t.Errorf("%q", got)
	}
}

func TestDial(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	shut, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	shut.Close()
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{asAgent, "dial", l.Addr().String(), shut.Addr().String()}}
	out, err := cmd.Output()
	if want := l.Addr().String() + " open\n" + shut.Addr().String() + " closed\n"; err != nil || string(out) != want {
		t.Errorf("%q, %v; want %q", out, err, want)
	}
	cmd = &exec.Cmd{Path: "/proc/self/exe", Args: []string{asAgent, "dial", "nonsense"}}
	if out, err := cmd.Output(); err == nil {
		t.Errorf("an address that is none: %q", out)
	}
}
