package bottletest

import (
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/creack/pty"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/testenv"
)

// session is a command on a terminal.
type session struct {
	bottle.Process
	b    *box
	ptmx *os.File
	out  testenv.Buffer
	done sync.WaitGroup
	seen int
}

func (b *box) terminal(rows, cols uint16, args ...string) *session {
	b.t.Helper()
	x, tty := openTerminal(b.t, rows, cols)
	env := append([]string{"TERM=dumb", "PS1=ready> "}, environ...)
	p, err := b.Start(b.ctx, &bottle.Command{Args: args, Env: env, Dir: b.spec.Workspace.Target, Stdin: tty, Stdout: tty, Stderr: tty, Terminal: true})
	tty.Close()
	if err != nil {
		b.t.Fatalf("start %q on a terminal: %v", args, err)
	}
	x.on(b, p)
	return x
}

// openTerminal returns a session without a command, and the replica for one.
func openTerminal(t testing.TB, rows, cols uint16) (x *session, tty *os.File) {
	t.Helper()
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := pty.Setsize(ptmx, &pty.Winsize{Rows: rows, Cols: cols}); err != nil {
		t.Fatal(err)
	}
	x = &session{ptmx: ptmx}
	x.done.Add(1)
	go func() { // ends with the last writer, or with on's cleanup
		defer x.done.Done()
		buf := make([]byte, 4096)
		for {
			n, err := ptmx.Read(buf)
			x.out.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	return x, tty
}

// on sets the command that has the terminal.
func (x *session) on(b *box, p bottle.Process) {
	x.b, x.Process = b, p
	b.t.Cleanup(func() {
		b.Close()
		x.ptmx.Close()
		x.done.Wait()
	})
}

func (x *session) keys(s string) {
	x.b.t.Helper()
	if _, err := x.ptmx.WriteString(s); err != nil {
		x.b.t.Fatal(err)
	}
}

// expect waits for text that was not expected before.
func (x *session) expect(text string) {
	x.b.t.Helper()
	var all string
	at := -1
	found := func() bool {
		all = x.out.String()
		at = strings.Index(all[x.seen:], text)
		return at >= 0
	}
	if !testenv.Poll(patience, found) {
		x.b.t.Fatalf("no %q on the terminal: %.2000q", text, all)
	}
	x.seen += at + len(text)
}

func (x *session) end() bottle.Status {
	x.b.t.Helper()
	st, err := x.Wait(x.b.ctx)
	if err != nil {
		x.b.t.Fatalf("wait: %v (terminal: %.2000q)", err, x.out.String())
	}
	return st
}

func (s *suite) terminal(t *testing.T) {
	b := s.create(t)
	x := b.terminal(31, 97, "/bin/sh", "-c", "test -t 0 && test -t 1 && test -t 2 && echo is-a-terminal; stty size; read line; echo got-$line; exit 5")
	x.expect("is-a-terminal")
	x.expect("31 97")
	x.keys("typed\n")
	x.expect("got-typed")
	want(t, "exit code", x.end().Code, 5)
	// Without Command.Terminal there is no terminal.
	b2 := s.create(t)
	want(t, "without a terminal", b2.sh("test -t 0 || test -t 1 || echo none"), "none\n")
}

func (s *suite) terminalResize(t *testing.T) {
	b := s.create(t)
	x := b.terminal(24, 80, "/bin/sh", "-c", "trap 'stty size; echo resized' WINCH; echo up; while :; do sleep 0.1; done")
	x.expect("up")
	if err := pty.Setsize(x.ptmx, &pty.Winsize{Rows: 50, Cols: 132}); err != nil {
		t.Fatal(err)
	}
	x.expect("50 132")
	x.expect("resized")
}

func (s *suite) terminalInterrupt(t *testing.T) {
	b := s.create(t)
	x := b.terminal(24, 80, "/bin/sh", "-c", "trap 'echo interrupted; exit 9' INT; echo up; while :; do sleep 0.1; done")
	x.expect("up")
	x.keys("\x03")
	x.expect("interrupted")
	want(t, "exit code", x.end().Code, 9)

	// In raw mode ^C is an ordinary key.
	b = s.create(t)
	x = b.terminal(24, 80, "/bin/sh", "-c", `stty raw -echo; echo up; head -c 1 | od -An -tx1; stty sane; exit 0`)
	x.expect("up")
	x.keys("\x03")
	x.expect("03")
	want(t, "exit code", x.end().Code, 0)
}

func (s *suite) terminalJobs(t *testing.T) {
	b := s.create(t)
	x := b.terminal(24, 80, "/bin/bash", "--norc", "--noprofile", "-i")
	x.expect("ready> ")
	x.keys("sleep 611; echo code-$?\n")
	x.expect("echo code-$?")
	b.waitCmdline("sleep 611")
	x.keys("\x03")
	x.expect("ready> ")
	x.keys("echo still-here\n")
	x.expect("still-here\r\n")
	x.expect("ready> ")

	x.keys("sleep 612\n")
	b.waitCmdline("sleep 612")
	x.keys("\x1a")
	x.expect("Stopped")
	x.expect("ready> ")
	x.keys("jobs\n")
	x.expect("sleep 612")
	x.expect("ready> ")
	x.keys("fg\n")
	x.expect("sleep 612\r\n")
	b.waitRunning("sleep 612")
	x.keys("\x03")
	x.expect("ready> ")
	x.keys("\x04")
	x.expect("exit")
	x.end()
}

// waitCmdline waits until a process with this command line runs inside.
func (b *box) waitCmdline(line string) {
	b.t.Helper()
	b.waitProcess(line, "true")
}

// waitRunning waits until that process is no longer stopped.
func (b *box) waitRunning(line string) {
	b.t.Helper()
	b.waitProcess(line, "! grep -q '^State:.T' $p/status")
}

// waitProcess waits until a process has this command line and meets a condition of
// the shell, in which $p is its directory in /proc.
func (b *box) waitProcess(line, condition string) {
	b.t.Helper()
	p, err := b.command(func(c *bottle.Command) { c.Guest = true }, "/bin/sh", "-c",
		`for i in $(seq 600); do for p in /proc/[0-9]*; do test "$(tr '\0' ' ' < $p/cmdline 2>/dev/null)" = "`+line+` " && `+condition+` && exit 0; done; sleep 0.1; done; exit 1`)
	if err != nil {
		b.t.Fatal(err)
	}
	if st := p.end(); st.ExitCode() != 0 {
		b.t.Fatalf("no process %q: %+v", line, st)
	}
}
