// Package prompt asks questions in a terminal: for one item of a list, for several items in
// an order, or for a short text. Items may come from a repository, so they are escaped with
// package safetext. Typed text is accepted only if it is printable.
//
// One program asks all questions, so keys typed ahead go to the next question. After Run
// the terminal is as before, without the questions.
//
// Start reading at [Run], then at the questions: [One], [Ordered], [Text].
package prompt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"

	"github.com/carboy/carboy/internal/safetext"
)

// ErrGivenUp means that the person pressed Ctrl-C or Esc, or that the terminal was closed.
var ErrGivenUp = errors.New("given up")

// Terminal describes the terminal to ask in. In and Out must be terminals.
type Terminal struct {
	In, Out *os.File
	// ASCII: the terminal supports only ASCII. Color: the user wants colours.
	ASCII, Color bool
}

// Question is one question. It contains the answer when it is done.
type Question interface {
	// press handles a key or typed text, and reports whether the question is answered.
	press(key, typed string) (done bool)
	// lines returns the display, at most height lines.
	lines(s style, height int) []string
}

// Run asks the questions. It calls each function when the previous question is answered; if
// the function returns nil, the question is skipped.
func Run(ctx context.Context, t Terminal, questions ...func() Question) error {
	m := &model{t: t, rest: questions}
	if m.next(); m.now == nil {
		return nil
	}
	err := Start(ctx, m, t.In, t.Out, t.Color)
	switch {
	case errors.Is(err, tea.ErrInterrupted), errors.Is(err, tea.ErrProgramKilled), err == nil && m.now != nil:
		return ErrGivenUp
	case err != nil:
		return fmt.Errorf("ask in the terminal: %w", err)
	}
	return nil
}

// Start runs a model of Bubble Tea in a terminal until it ends. The error is the library's.
func Start(ctx context.Context, m tea.Model, in, out *os.File, color bool) error {
	profile := colorprofile.Ascii
	if color {
		profile = colorprofile.ANSI
	}
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out),
		// The caller cancels ctx on a signal. Bubble Tea's own handler would then block
		// forever on sending to a finished loop.
		tea.WithoutSignalHandler(),
		// Otherwise it would detect the profile from the environment, and start tmux for
		// that.
		tea.WithColorProfile(profile),
		// With SSH_TTY set it does not query the terminal, whose late answer would become
		// input of the next program.
		tea.WithEnvironment([]string{"TERM=xterm", "SSH_TTY=/dev/tty"})).Run()
	return err
}

// model is the Bubble Tea model that asks the questions one by one.
type model struct {
	t      Terminal
	rest   []func() Question
	now    Question // nil when all are answered
	width  int
	height int
}

// next advances to the next question that is not skipped.
func (m *model) next() {
	m.now = nil
	for len(m.rest) > 0 && m.now == nil {
		m.now, m.rest = m.rest[0](), m.rest[1:]
	}
}

func (m *model) Init() tea.Cmd { return nil }

// maxPaste bounds the accepted part of a paste, in bytes.
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

// style formats lines.
type style struct {
	width        int
	ascii, color bool
}

// line cuts text, which must be escaped already, to the terminal's width.
func (s style) line(text string) string {
	if s.ascii {
		text = safetext.ASCII(text)
	}
	if safetext.Width(text) <= s.width {
		return text
	}
	n := 0
	for i, r := range text {
		if n += safetext.Width(string(r)); n >= s.width {
			return text[:i]
		}
	}
	return text
}

// paint colours a line with an SGR code. The line must be cut already.
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

// glyph returns nice, or plain if the terminal supports only ASCII.
func (s style) glyph(nice, plain string) string {
	if s.ascii {
		return plain
	}
	return nice
}
