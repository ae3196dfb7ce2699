// Package pick has a person choose in a terminal: one thing of a list, several in an
// order, a short text. What is chosen of may come from a repository, so it is shown as
// package visible shows it and as nothing else; what is typed is taken only when it is
// plain.
//
// Questions are asked one after the other by one program, so that keys typed ahead are
// the next question's. After Run the terminal is as before, and the questions are gone
// from it. Start reading at [Run], then at the questions: [One], [Ordered], [Text].
package pick

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"

	"github.com/carboy/carboy/internal/visible"
)

// ErrGivenUp is the end of a person who pressed Ctrl-C or Esc, or whose terminal went
// away.
var ErrGivenUp = errors.New("given up")

// Terminal is where a person sits. In and Out must be terminals.
type Terminal struct {
	In, Out *os.File
	// ASCII: it shows nothing else. Color: its user wants colours.
	ASCII, Color bool
}

// Question asks for one thing. Its answer is in it when it is done.
type Question interface {
	// press is a key or what was typed. done: it is answered.
	press(key, typed string) (done bool)
	// lines are what is shown, in at most height lines.
	lines(s style, height int) []string
}

// Run asks the questions. Each is made when the one before it is answered; nil: it
// need not be asked.
func Run(ctx context.Context, t Terminal, questions ...func() Question) error {
	m := &model{t: t, rest: questions}
	if m.next(); m.now == nil {
		return nil
	}
	profile := colorprofile.Ascii
	if t.Color {
		profile = colorprofile.ANSI
	}
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(t.In), tea.WithOutput(t.Out),
		// The caller ends ctx on a signal. Its own handler would then send to a loop that
		// is over, and wait for good.
		tea.WithoutSignalHandler(),
		// Else it looks for what the terminal can do in the environment, and to that
		// end starts tmux.
		tea.WithColorProfile(profile),
		// Over SSH it asks the terminal for nothing, so that no late answer is typed
		// into what comes next.
		tea.WithEnvironment([]string{"TERM=xterm", "SSH_TTY=/dev/tty"})).Run()
	switch {
	case errors.Is(err, tea.ErrInterrupted), errors.Is(err, tea.ErrProgramKilled), err == nil && m.now != nil:
		return ErrGivenUp
	case err != nil:
		return fmt.Errorf("ask in the terminal: %w", err)
	}
	return nil
}

// model is the program: its questions one after the other.
type model struct {
	t      Terminal
	rest   []func() Question
	now    Question // nil: all are answered
	width  int
	height int
}

// next goes on to the next question that is to be asked.
func (m *model) next() {
	m.now = nil
	for len(m.rest) > 0 && m.now == nil {
		m.now, m.rest = m.rest[0](), m.rest[1:]
	}
}

func (m *model) Init() tea.Cmd { return nil }

// maxPaste bounds what is taken of a paste, in bytes.
const maxPaste = 1000

func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.PasteMsg:
		m.press("", msg.Content[:min(len(msg.Content), maxPaste)])
	case tea.KeyPressMsg:
		if key := msg.Keystroke(); key == "ctrl+c" || key == "esc" {
			return m, tea.Quit
		} else {
			m.press(key, msg.Text)
		}
	}
	if m.now == nil {
		return m, tea.Quit
	}
	return m, nil
}

func (m *model) press(key, typed string) {
	if m.now != nil && m.now.press(key, typed) {
		m.next()
	}
}

func (m *model) View() tea.View {
	if m.now == nil || m.width == 0 {
		return tea.NewView("")
	}
	s := style{width: m.width, ascii: m.t.ASCII, color: m.t.Color}
	return tea.NewView(strings.Join(m.now.lines(s, max(m.height-1, 4)), "\n"))
}

// style is how lines are made.
type style struct {
	width        int
	ascii, color bool
}

// line is text that is plain already, cut to the terminal's width.
func (s style) line(text string) string {
	if s.ascii {
		text = visible.ASCII(text)
	}
	if visible.Width(text) <= s.width {
		return text
	}
	n := 0
	for i, r := range text {
		if n += visible.Width(string(r)); n >= s.width {
			return text[:i]
		}
	}
	return text
}

// paint puts a line that is cut already into a colour, as SGR has it.
func (s style) paint(sgr, line string) string {
	if !s.color || sgr == "" {
		return line
	}
	return "\x1b[" + sgr + "m" + line + "\x1b[0m"
}

const (
	bold = "1"
	dim  = "2"
)

// glyph is one that has a plain stand-in.
func (s style) glyph(nice, plain string) string {
	if s.ascii {
		return plain
	}
	return nice
}
