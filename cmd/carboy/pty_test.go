package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/testenv"
)

// session is a carboy with a terminal.
type session struct {
	t   *testing.T
	pty *os.File
	cmd *exec.Cmd

	mu   sync.Mutex
	seen bytes.Buffer
	done chan struct{} // closed when nothing more is seen
}

// terminal starts carboy on a terminal of 40 by 100, in a workspace of its own.
func terminal(t *testing.T, args ...string) *session {
	t.Helper()
	return terminalIn(t, newHome(t), args...)
}

// newHome is a home with a workspace, ws, and a runtime directory, run.
func newHome(t *testing.T) string {
	t.Helper()
	home, err := os.MkdirTemp("", "carboy-home-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	ws := filepath.Join(home, "ws")
	if err := errors.Join(os.Chmod(home, 0o755), os.Mkdir(ws, 0o755), os.Mkdir(filepath.Join(home, "run"), 0o700), own(ws)); err != nil {
		t.Fatal(err)
	}
	return home
}

func terminalIn(t *testing.T, home string, args ...string) *session {
	t.Helper()
	return terminalOf(t, home, 100, []string{"TERM=xterm", "NO_COLOR=1"}, args...)
}

func terminalOf(t *testing.T, home string, cols uint16, env []string, args ...string) *session {
	t.Helper()
	cmd := exec.Command("carboy", args...)
	cmd.Dir = filepath.Join(home, "ws")
	cmd.Env = append(append(os.Environ(), "HOME="+home, "XDG_STATE_HOME="+home+"/state", "XDG_RUNTIME_DIR="+home+"/run"), env...)
	f, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: cols})
	if err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, pty: f, cmd: cmd, done: make(chan struct{})}
	go s.read()
	t.Cleanup(func() {
		cmd.Process.Kill()
		f.Close()
		<-s.done
	})
	return s
}

func (s *session) read() {
	defer close(s.done)
	buf := make([]byte, 4096)
	for {
		n, err := s.pty.Read(buf)
		s.mu.Lock()
		s.seen.Write(buf[:n])
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (s *session) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen.String()
}

// patience bounds one step on a loaded machine.
var patience = testenv.Patience(time.Minute)

// await waits until text was seen, counted from after.
func (s *session) await(text string) {
	s.t.Helper()
	if !testenv.Poll(patience, func() bool { return strings.Contains(s.text(), text) }) {
		s.t.Fatalf("%q did not appear on the terminal:\n%s", text, s.text())
	}
}

func (s *session) typed(keys string) {
	s.t.Helper()
	if _, err := io.WriteString(s.pty, keys); err != nil {
		s.t.Fatal(err)
	}
}

// end waits for carboy's exit code.
func (s *session) end() int {
	s.t.Helper()
	over := make(chan error, 1)
	go func() { over <- s.cmd.Wait() }()
	select {
	case err := <-over:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			s.t.Fatal(err)
		}
		<-s.done // what it said last
		return s.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		s.t.Fatalf("carboy did not end:\n%s", s.text())
	}
	return -1
}

// shell has a shell inside show that it has a terminal: its size and a new one,
// and that ^C reaches the foreground job and not the shell.
func (s *session) shell() {
	s.t.Helper()
	s.typed("stty size; [ -t 0 ] && [ -t 1 ] && echo tty-$((40+2))\n")
	s.await("40 100")
	s.await("tty-42")
	if err := pty.Setsize(s.pty, &pty.Winsize{Rows: 25, Cols: 77}); err != nil {
		s.t.Fatal(err)
	}
	s.asked("stty size", "25 77")
	// What writes an old size back, as readline can, does not make it so for long.
	s.typed("stty rows 40 cols 100; echo set-$((1+1))\n")
	s.await("set-2")
	s.asked("echo again-$(stty size)", "again-25 77")
	s.typed("sh -c 'echo up-$((10+1)); exec sleep 1000'\n")
	s.await("up-11")
	s.typed("\x03")
	s.typed("echo code-$?\n")
	s.await("code-130")
}

// asked has the shell say its size until it is the new one: it hears of it in its own time.
func (s *session) asked(command, size string) {
	s.t.Helper()
	for end := time.Now().Add(patience); !strings.Contains(s.text(), size); {
		if time.Now().After(end) {
			s.t.Fatalf("the new size did not arrive:\n%s", s.text())
		}
		s.typed(command + "\n")
		time.Sleep(200 * time.Millisecond)
	}
}

// stop presses ^Z until the shell says that its job is stopped, by itself or, where
// it was back at its prompt before it could, when it is asked. Once is not always
// enough: gVisor drops a stop that comes while a program replaces itself
// (endGroupStopLocked in execve).
func (s *session) stop() {
	s.t.Helper()
	for end := time.Now().Add(patience); !strings.Contains(s.text(), "Stopped"); {
		if time.Now().After(end) {
			s.t.Fatalf("nothing was stopped:\n%s", s.text())
		}
		s.typed("\x1a")
		time.Sleep(time.Second)
		if !strings.Contains(s.text(), "Stopped") {
			s.typed("jobs\n")
			time.Sleep(time.Second)
		}
	}
}

func TestTerminalShell(t *testing.T) {
	s := terminal(t, "run", "-it", "--", "bash", "--norc", "-i")
	s.shell()

	// ^Z stops it, and job control brings it back.
	s.typed("sh -c 'echo up-$((20+2)); exec sleep 1000'\n")
	s.await("up-22")
	s.stop()
	s.typed("fg; echo job-$?\n")
	time.Sleep(200 * time.Millisecond) // ^C before fg would be the shell's, to the same end
	s.typed("\x03")
	s.typed("\necho last-$?\n")
	s.await("last-")

	s.typed("exit 9\n")
	if code := s.end(); code != 9 {
		t.Errorf("exit code %d, want the shell's 9", code)
	}
	if !strings.Contains(s.text(), "carboy: exit 9") {
		t.Errorf("no summary:\n%s", s.text())
	}
}

// The user's terminal is as before, however the run ended.
func TestTerminalIsRestored(t *testing.T) {
	for name, command := range map[string][]string{
		"exit":    {"bash", "-c", "stty raw -echo; exit 3"},
		"missing": {"no-such-program"},
		"timeout": {"sleep", "1000"},
	} {
		t.Run(name, func(t *testing.T) {
			ptmx, tty, err := pty.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer ptmx.Close()
			defer tty.Close()
			before := stty(t, tty)
			home := newHome(t)
			go io.Copy(io.Discard, ptmx) // ends when ptmx is closed
			cmd := exec.Command("carboy", append([]string{"run", "-t", "--timeout", "5s", "--"}, command...)...)
			cmd.Dir = filepath.Join(home, "ws")
			cmd.Env = append(os.Environ(), "HOME="+home, "XDG_STATE_HOME="+home+"/state", "XDG_RUNTIME_DIR="+home+"/run", "TERM=xterm")
			cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
			if err := cmd.Run(); err == nil {
				t.Fatal("the run should have failed")
			}
			if after := stty(t, tty); after != before {
				t.Errorf("terminal was\n%s\nand is\n%s", before, after)
			}
		})
	}
}

func stty(t *testing.T, tty *os.File) string {
	t.Helper()
	cmd := exec.Command("stty", "-a")
	cmd.Stdin = tty
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// Landing asks, shows what it asks about, and takes silence and anything but
// yes for no.
func TestLandAsks(t *testing.T) {
	s := terminal(t, "run", "--", "sh", "-c", "echo x >made")
	if code := s.end(); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, s.text())
	}
	home := filepath.Dir(s.cmd.Dir)
	made := filepath.Join(s.cmd.Dir, "made")
	for _, c := range []struct {
		answer string
		lands  bool
		code   int
	}{
		{"\n", false, 0}, {"n\n", false, 0}, {"\x04", false, 0}, {"yeah\n", false, 0}, {"\x03", false, 1}, {"y\n", true, 0},
	} {
		s := terminalIn(t, home, "land")
		s.await("[y/N]")
		if !strings.Contains(s.text(), "A  made") {
			t.Errorf("it asked without showing what:\n%s", s.text())
		}
		s.typed(c.answer)
		if code := s.end(); code != c.code {
			t.Errorf("answer %q: exit code %d, want %d:\n%s", c.answer, code, c.code, s.text())
		}
		if _, err := os.Stat(made); (err == nil) != c.lands {
			t.Errorf("answer %q: landed %t, want %t", c.answer, err == nil, c.lands)
		}
	}
}

// On the smallest terminal, one without UTF-8 and one without colour, what is
// laid out fits, and nothing is shown that the terminal does not know.
func TestPlainTerminals(t *testing.T) {
	s := terminal(t, "run", "--", "sh", "-c", `printf 'gr\303\274\303\237e \033[1m\n'; echo x >'na\303\257ve-日本語-and-a-name-that-is-longer'; touch \u202e; false`)
	if code := s.end(); code != 1 {
		t.Fatalf("exit code %d:\n%s", code, s.text())
	}
	home := filepath.Dir(s.cmd.Dir)
	for _, c := range []struct {
		name string
		cols uint16
		env  []string
		// what of the terminal's is used
		color, utf8 bool
	}{
		{"plain", 20, []string{"TERM=xterm", "NO_COLOR=1", "LC_ALL=C"}, false, false},
		{"dumb", 20, []string{"TERM=dumb", "NO_COLOR=", "LC_ALL=", "LC_CTYPE=", "LANG="}, false, false},
		{"small", 20, []string{"TERM=xterm", "NO_COLOR=", "LC_ALL=C.UTF-8"}, true, true},
		{"usual", 80, []string{"TERM=xterm", "NO_COLOR=", "LC_ALL=C.UTF-8"}, true, true},
		{"wide", 300, []string{"TERM=xterm", "NO_COLOR=", "LC_ALL=", "LC_CTYPE=", "LANG=de_DE.utf8"}, true, true},
	} {
		colored, beyond := false, false
		for _, args := range [][]string{{"receipt"}, {"receipt", "--all"}, {"list"}, {"logs"}, {"diff"}, {"diff", "--stat"}, {"trace"}} {
			s := terminalOf(t, home, c.cols, c.env, args...)
			if code := s.end(); code != 0 {
				t.Fatalf("%s: %v: exit code %d:\n%s", c.name, args, code, s.text())
			}
			for line := range strings.SplitSeq(s.text(), "\r\n") {
				bare := sgr.ReplaceAllString(line, "")
				colored = colored || bare != line
				if !safetext.Clean(bare) && args[0] != "diff" {
					t.Errorf("%s: %v: not safe to show: %q", c.name, args, line)
				}
				if args[0] != "logs" && args[0] != "diff" && args[0] != "trace" && safetext.Width(bare) > int(c.cols) {
					t.Errorf("%s: %v: %d columns: %q", c.name, args, safetext.Width(bare), line)
				}
				beyond = beyond || strings.ContainsFunc(bare, func(r rune) bool { return r > '~' })
			}
		}
		if s := terminalOf(t, home, c.cols, c.env, "receipt", "--html"); s.end() != 2 || strings.Contains(s.text(), "<html") {
			t.Errorf("%s: a page was written to the terminal", c.name)
		}
		if colored != c.color {
			t.Errorf("%s: colour %t, want %t", c.name, colored, c.color)
		}
		if beyond != c.utf8 {
			t.Errorf("%s: other than ASCII %t, want %t", c.name, beyond, c.utf8)
		}
	}
}

var sgr = regexp.MustCompile("\x1b\\[[0-9;]*m")

// Output of a command without a terminal of its own does nothing to the user's.
func TestOutputIsTamed(t *testing.T) {
	s := terminal(t, "run", "--", "printf", `\033]0;owned\007text\n`)
	s.end()
	if text := s.text(); strings.Contains(text, "\x1b") || !strings.Contains(text, `\x1b]0;owned\x07text`) {
		t.Errorf("terminal got %q", text)
	}
	s = terminal(t, "run", "-t", "--", "printf", `\033[1mbold\n`)
	s.end()
	if text := s.text(); !strings.Contains(text, "\x1b[1mbold") {
		t.Errorf("with -t the terminal must get the bytes, got %q", text)
	}
}

// In a terminal a long diff is shown a screen at a time, and a short one is printed.
func TestDiffPages(t *testing.T) {
	s := terminal(t, "run", "--", "sh", "-c", "seq -f 'number %g' 1000 >long; echo x >short")
	if code := s.end(); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, s.text())
	}
	home := filepath.Dir(s.cmd.Dir)
	s = terminalIn(t, home, "diff")
	s.await("space goes on")
	if text := s.text(); !strings.Contains(text, "number 20") || strings.Contains(text, "number 100") {
		t.Errorf("the first screen:\n%q", text)
	}
	s.typed("/NUMBER\r")
	s.await("not found: NUMBER")
	s.typed("q")
	if code := s.end(); code != 0 || !strings.Contains(s.text(), "\x1b[?1049l") {
		t.Errorf("exit code %d, or the screen is not as before:\n%q", code, s.text())
	}
	for _, args := range [][]string{{"diff", "short"}, {"diff", "--no-pager"}, {"diff", "--stat"}} {
		s = terminalIn(t, home, args...)
		if code := s.end(); code != 0 || strings.Contains(s.text(), "\x1b") || !strings.Contains(s.text(), "short") {
			t.Errorf("%v: exit code %d:\n%q", args, code, s.text())
		}
	}
}

// A reader that goes away is no reason to die in the middle of a run, and no error of what
// is shown.
func TestClosedPipe(t *testing.T) {
	s := terminal(t, "version") // for its directories
	s.end()
	home := filepath.Dir(s.cmd.Dir)
	out := fmt.Sprintf("carboy run -- sh -c 'seq 100000 | tee made' | head -n 1; carboy diff 2>&1 | head -n 1 | grep -v ^carboy: >&2; [ ${PIPESTATUS[0]} = 0 ]; HOME=%s carboy receipt --json", home)
	cmd := exec.Command("bash", "-c", out)
	cmd.Dir = s.cmd.Dir
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_STATE_HOME="+home+"/state", "XDG_RUNTIME_DIR="+home+"/run")
	b, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	if !bytes.Contains(b, []byte(`"schema": "carboy.dev/receipt/v1"`)) || bytes.Contains(b, []byte(`"reason": "lost"`)) {
		t.Errorf("the run was not recorded to its end:\n%s", b)
	}
}
