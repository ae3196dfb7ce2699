package agenttest

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
)

// terminal is a program with a terminal, and the person before it. It answers what programs
// ask of a terminal, as xterm does.
type terminal struct {
	t   *testing.T
	pty *os.File
	cmd *exec.Cmd

	mu      sync.Mutex
	news    chan struct{} // closed when there is more, or nothing more will come
	over    bool
	shown   []byte // without control sequences and spaces: programs move the cursor over them
	from    int    // of shown, what await looks at
	state   byte   // of the sequence under way: 0, ESC, '[', ']', or '\\' for an ESC in a string
	control []byte
	began   time.Time
}

// record adds a line to the file that CARBOY_TEST_RECORD names, in asciinema's format, version
// 2: what a person saw can be played again.
func (s *terminal) record(line any) {
	name := os.Getenv("CARBOY_TEST_RECORD")
	if name == "" {
		return
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err == nil {
		err = errors.Join(json.NewEncoder(f).Encode(line), f.Close())
	}
	if err != nil {
		s.t.Error(err)
	}
}

func openTerminal(t *testing.T, cmd *exec.Cmd, cols uint16) *terminal {
	t.Helper()
	f, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: cols})
	if err != nil {
		t.Fatal(err)
	}
	s := &terminal{t: t, pty: f, cmd: cmd, news: make(chan struct{}), began: time.Now()}
	s.record(map[string]any{"version": 2, "width": cols, "height": 40})
	done := make(chan struct{})
	go func() { defer close(done); s.read() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		f.Close()
		<-done
	})
	return s
}

func (s *terminal) read() {
	buf := make([]byte, 4096)
	for {
		n, err := s.pty.Read(buf)
		if n > 0 {
			s.record([]any{time.Since(s.began).Seconds(), "o", string(buf[:n])})
		}
		s.mu.Lock()
		for _, c := range buf[:n] {
			s.take(c)
		}
		s.over = err != nil
		close(s.news)
		if err == nil {
			s.news = make(chan struct{})
		}
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

const esc = 0x1b

// take takes a byte of output in.
func (s *terminal) take(c byte) {
	switch s.state {
	case 0:
		if c == esc {
			s.state, s.control = esc, nil
		} else if c > ' ' && c != 0x7f {
			s.shown = append(s.shown, c)
		}
	case esc:
		switch {
		case c == '[':
			s.state = '['
		case strings.IndexByte("]PX^_", c) >= 0:
			s.state = ']'
		case c < 0x20 || c > 0x2f:
			s.state = 0
		}
	case '[':
		if s.control = append(s.control, c); c >= 0x40 && c <= 0x7e {
			s.state = 0
			s.answer(string(s.control))
		}
	case ']', '\\':
		switch {
		case c == 0x07 || s.state == '\\' && c == '\\':
			s.state = 0
			s.answer("]" + string(s.control))
		case c == esc:
			s.state = '\\'
		default:
			s.state = ']'
			s.control = append(s.control, c)
		}
	}
}

// answer answers a program's question: where the cursor is, what this terminal is, which
// keys it reports, and its colours.
func (s *terminal) answer(control string) {
	said, ok := map[string]string{
		"6n": "\x1b[1;1R", "c": "\x1b[?62;22c", "0c": "\x1b[?62;22c", "?u": "\x1b[?0u",
		"]10;?": "\x1b]10;rgb:ffff/ffff/ffff\x1b\\", "]11;?": "\x1b]11;rgb:0000/0000/0000\x1b\\",
	}[control]
	if ok {
		_, _ = io.WriteString(s.pty, said)
	}
}

// await waits until text was shown, counted from what the last await found.
func (s *terminal) await(text string) {
	s.t.Helper()
	want := strings.ReplaceAll(text, " ", "")
	late := time.After(patience)
	for {
		s.mu.Lock()
		at, over, news := strings.Index(string(s.shown[s.from:]), want), s.over, s.news
		if at >= 0 {
			s.from += at + len(want)
		}
		s.mu.Unlock()
		switch {
		case at >= 0:
			return
		case over:
			s.t.Fatalf("%q did not appear, and it ended:\n%s", text, s.last())
		}
		select {
		case <-news:
		case <-late:
			s.t.Fatalf("%q did not appear:\n%s", text, s.last())
		}
	}
}

// last returns what was shown last.
func (s *terminal) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.shown[max(0, len(s.shown)-4000):])
}

func (s *terminal) typed(keys string) {
	s.t.Helper()
	if _, err := io.WriteString(s.pty, keys); err != nil {
		s.t.Fatal(err)
	}
}

// ask types a prompt, and Enter once it is on the screen. For gemini, an Enter within 30 ms
// of another key is a new line of something pasted, so it comes as late as a person's.
func (s *terminal) ask(prompt string) {
	s.t.Helper()
	s.typed(prompt)
	s.await(prompt)
	time.Sleep(200 * time.Millisecond)
	s.typed("\r")
}

// end waits for the program's exit code.
func (s *terminal) end() int {
	s.t.Helper()
	over := make(chan error, 1)
	go func() { over <- s.cmd.Wait() }()
	select {
	case <-over:
	case <-time.After(patience):
		s.t.Fatalf("it did not end:\n%s", s.last())
	}
	return s.cmd.ProcessState.ExitCode()
}
