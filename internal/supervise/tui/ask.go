package tui

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/supervise"
)

// ask is an answer to one proposal that the person is giving.
type ask struct {
	of      *row
	digest  supervise.Digest // of what was on the screen
	verdict supervise.Verdict
	since   time.Time // when the proposal came on the screen

	payload supervise.Editable
	edit    *editor // not nil: the payload is being edited
	changed *sheet  // the edited payload

	note    field
	warning string // to be confirmed; visible
	warned  bool   // and asked about
	yes     field
	unseen  int // lines of the proposal that were never on the screen

	wrong string // visible
	sent  bool
}

// payloadOf returns the edited payload, or nil if the proposal is approved as it is.
func (a *ask) payloadOf() supervise.Payload {
	if a.changed == nil {
		return nil
	}
	return a.changed.entry.Proposal.Payload
}

// line returns the input line that gets the keys.
func (a *ask) line() *field {
	if a.warned {
		return &a.yes
	}
	return &a.note
}

func (a *ask) paste(s string) {
	switch {
	case a.sent || a.of.gone != "":
	case a.edit != nil:
		a.edit.paste(s)
	default:
		a.line().press("", strings.Join(strings.Fields(s), " "))
	}
}

// field is an input line, edited at its end. It takes printable text only.
type field struct{ s string }

func (f *field) press(key, typed string) {
	switch key {
	case "backspace", "ctrl+h":
		f.s = cutLast(f.s)
	case "ctrl+u":
		f.s = ""
	case "ctrl+w":
		s := strings.TrimRight(f.s, " ")
		f.s = s[:strings.LastIndexByte(s, ' ')+1]
	default:
		if typed != "" && safetext.Clean(typed) && len(f.s)+len(typed) <= supervise.MaxNote {
			f.s += typed
		}
	}
}

func cutLast(s string) string {
	_, n := utf8.DecodeLastRuneInString(s)
	return s[:len(s)-n]
}

// editor edits a text of several lines. The lines are made visible.
type editor struct {
	lines    [][]rune
	row, col int
	top      int
}

// maxEdited bounds the text, in characters: twice the maximum of any kind.
const maxEdited = 256 << 10

func newEditor(text string) *editor {
	e := &editor{}
	for l := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		e.lines = append(e.lines, []rune(l))
	}
	return e
}

func (e *editor) text() string {
	var b strings.Builder
	for _, l := range e.lines {
		b.WriteString(string(l))
		b.WriteByte('\n')
	}
	return b.String()
}

func (e *editor) size() (n int) {
	for _, l := range e.lines {
		n += len(l) + 1
	}
	return n
}

func (e *editor) press(key, typed string) {
	line := e.lines[e.row]
	switch key {
	case "up":
		e.row--
	case "down":
		e.row++
	case "left":
		if e.col--; e.col < 0 && e.row > 0 {
			e.row--
			e.col = len(e.lines[e.row])
		}
	case "right":
		if e.col++; e.col > len(line) && e.row < len(e.lines)-1 {
			e.row, e.col = e.row+1, 0
		}
	case "home", "ctrl+a":
		e.col = 0
	case "end", "ctrl+e":
		e.col = len(line)
	case "pgup":
		e.row -= 10
	case "pgdown":
		e.row += 10
	case "enter":
		rest := append([]rune(nil), line[e.col:]...)
		e.lines[e.row] = line[:e.col:e.col]
		e.lines = append(e.lines[:e.row+1], append([][]rune{rest}, e.lines[e.row+1:]...)...)
		e.row, e.col = e.row+1, 0
	case "backspace", "ctrl+h":
		switch {
		case e.col > 0:
			e.lines[e.row] = append(line[:e.col-1:e.col-1], line[e.col:]...)
			e.col--
		case e.row > 0:
			e.col = len(e.lines[e.row-1])
			e.lines[e.row-1] = append(e.lines[e.row-1], line...)
			e.lines = append(e.lines[:e.row], e.lines[e.row+1:]...)
			e.row--
		}
	case "delete":
		switch {
		case e.col < len(line):
			e.lines[e.row] = append(line[:e.col:e.col], line[e.col+1:]...)
		case e.row < len(e.lines)-1:
			e.lines[e.row] = append(line, e.lines[e.row+1]...)
			e.lines = append(e.lines[:e.row+1], e.lines[e.row+2:]...)
		}
	case "ctrl+k":
		e.lines[e.row] = line[:e.col]
	case "tab":
		e.insert("  ")
	default:
		if safetext.Clean(typed) {
			e.insert(typed)
		}
	}
	e.row = max(0, min(e.row, len(e.lines)-1))
	e.col = max(0, min(e.col, len(e.lines[e.row])))
}

func (e *editor) insert(s string) {
	r := []rune(s)
	if len(r) == 0 || e.size()+len(r) > maxEdited {
		return
	}
	line := e.lines[e.row]
	e.lines[e.row] = append(line[:e.col:e.col], append(r, line[e.col:]...)...)
	e.col += len(r)
}

// paste inserts the printable text of s, line by line.
func (e *editor) paste(s string) {
	for i, l := range strings.Split(strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n"), "\n") {
		if i > 0 {
			e.press("enter", "")
		}
		e.press("", l)
	}
}
