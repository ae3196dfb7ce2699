package run

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/store"
)

// screen follows what a program's output has switched on in its terminal, so that a
// terminal on which the program goes on gets it too, and one that it leaves is as before:
// the private modes of xterm's "Control Sequences" (DECSET), and the keyboard flags of
// kitty's protocol. It is safe for concurrent use.
type screen struct {
	mu    sync.Mutex
	modes []int // that differ from their default, in the order in which they were changed
	flags []int // of the keyboard, the last one is in force
	seq   []byte
}

// followed holds the private modes and their defaults: the cursor's keys, the cursor, the
// other screen, the mouse, focus, and pasting in brackets.
var followed = map[int]bool{
	1: false, 25: true, 47: false, 1047: false, 1049: false,
	1000: false, 1002: false, 1003: false, 1004: false, 1005: false, 1006: false, 1015: false, 1016: false, 2004: false,
}

const (
	longestSequence = 64
	deepestKeyboard = 16
)

// Write reads a piece of output. It never fails.
func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range b {
		switch {
		case c == 0x1b:
			s.seq = append(s.seq[:0], c)
		case len(s.seq) == 0:
		case len(s.seq) == 1 && c == '[':
			s.seq = append(s.seq, c)
		case len(s.seq) == 1 && c == 'c': // RIS, a full reset
			s.modes, s.flags, s.seq = nil, nil, s.seq[:0]
		case len(s.seq) == 1 || len(s.seq) >= longestSequence || c < 0x20 || c > 0x7e:
			s.seq = s.seq[:0]
		case c >= 0x40: // the end
			s.take(string(s.seq[2:]), c)
			s.seq = s.seq[:0]
		default:
			s.seq = append(s.seq, c)
		}
	}
	return len(b), nil
}

// take takes a control sequence in.
func (s *screen) take(args string, end byte) {
	kind, rest := "", args
	if args != "" && strings.Contains("?><", args[:1]) {
		kind, rest = args[:1], args[1:]
	}
	switch {
	case kind == "?" && (end == 'h' || end == 'l'):
		for field := range strings.SplitSeq(rest, ";") {
			n, err := strconv.Atoi(field)
			usual, known := followed[n]
			if err != nil || !known {
				continue
			}
			s.modes = slices.DeleteFunc(s.modes, func(m int) bool { return m == n })
			if (end == 'h') != usual {
				s.modes = append(s.modes, n)
			}
		}
	case kind == ">" && end == 'u' && len(s.flags) < deepestKeyboard:
		n, _ := strconv.Atoi(rest)
		s.flags = append(s.flags, n)
	case kind == "<" && end == 'u':
		n, err := strconv.Atoi(rest)
		if err != nil || n < 1 {
			n = 1
		}
		s.flags = s.flags[:max(0, len(s.flags)-n)]
	}
}

// enter returns what puts another terminal into the program's state.
func (s *screen) enter() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out strings.Builder
	for _, m := range s.modes {
		fmt.Fprintf(&out, "\x1b[?%d%s", m, onOff(!followed[m]))
	}
	for _, f := range s.flags {
		fmt.Fprintf(&out, "\x1b[>%du", f)
	}
	return out.String()
}

// leave returns what takes a terminal back out of it.
func (s *screen) leave() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out strings.Builder
	if n := len(s.flags); n > 0 {
		fmt.Fprintf(&out, "\x1b[<%du", n)
	}
	for _, m := range slices.Backward(s.modes) {
		fmt.Fprintf(&out, "\x1b[?%d%s", m, onOff(followed[m]))
	}
	if out.Len() > 0 {
		out.WriteString("\x1b[0m")
	}
	return out.String()
}

func onOff(on bool) string {
	if on {
		return "h"
	}
	return "l"
}

// terminal returns the state of the command's terminal, also after close. It is nil if the
// command has none.
func (x *streams) terminal() *store.KeptTerminal {
	if x == nil || x.ptmx == nil {
		return nil
	}
	if t, err := unix.IoctlGetTermios(int(x.ptmx.Fd()), unix.TCGETS); err == nil {
		x.was = &store.KeptTerminal{Settings: *t}
	}
	if x.was != nil {
		x.was.Screen = x.screen.enter()
	}
	return x.was
}

// goOn gives the command's new terminal the state of the one in which it was frozen.
func (x *streams) goOn(t *store.KeptTerminal) {
	if t == nil || x.ptmx == nil {
		return
	}
	_ = unix.IoctlSetTermios(int(x.ptmx.Fd()), unix.TCSETS, &t.Settings)
	_, _ = x.screen.Write([]byte(t.Screen))
	_, _ = io.WriteString(x.stdout, x.screen.enter())
}
