// Package pager shows a long text in a terminal, a screen at a time, as less does.
//
// It is carboy's own, so that no program of the user's environment starts on a text that a
// bottle wrote.
//
// Start reading at [Show].
package pager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/term"

	"github.com/carboy/carboy/internal/prompt"
	"github.com/carboy/carboy/internal/safetext"
)

// Options configure [Show]. In and Out must be terminals. Color turns colours on.
type Options struct {
	In, Out *os.File
	Color   bool
}

// Show prints the text if it fits on the screen. Otherwise it shows it until the person
// leaves, and then the screen is as before. Each line of the text is plain, or in one
// colour: an SGR sequence, words, and the sequence that ends it. The error is that of the
// context or of the terminal. The caller handles signals, by ending the context.
func Show(ctx context.Context, text string, o Options) error {
	width, height, err := term.GetSize(int(o.Out.Fd()))
	if err != nil {
		return fmt.Errorf("read the terminal's size: %w", err)
	}
	m := &model{lines: strings.Split(strings.TrimSuffix(text, "\n"), "\n"), width: width, height: height}
	if end := m.last(); end == (place{}) {
		_, err := o.Out.WriteString(text)
		return err
	}
	err = prompt.Start(ctx, m, o.In, o.Out, o.Color)
	switch {
	case err == nil || errors.Is(err, tea.ErrInterrupted):
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("show the text: %w", err)
}

// place is a row of the text: one of the rows of a line that is wider than the screen.
type place struct{ line, row int }

type model struct {
	lines         []string
	top           place
	width, height int

	typing bool   // a search is being typed
	search string // "" is none
	note   string // shown instead of the help until the next key
}

func (m *model) Init() tea.Cmd { return nil }

func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
		m.top.row = 0 // lines have other rows now
	case tea.KeyPressMsg:
		m.note = ""
		if m.typing {
			m.typed(msg.Keystroke(), msg.Text)
			return m, nil
		}
		return m, m.press(msg.Keystroke())
	}
	return m, nil
}

// press does what a key says. The keys are those of less.
func (m *model) press(key string) tea.Cmd {
	page := m.page()
	switch key {
	case "q", "shift+q", "ctrl+c", "esc":
		return tea.Quit
	case "j", "down", "enter", "ctrl+n", "ctrl+e":
		m.move(1)
	case "k", "up", "ctrl+p", "ctrl+y":
		m.move(-1)
	case "space", "f", "pgdown", "ctrl+f", "ctrl+v":
		m.move(page)
	case "b", "pgup", "ctrl+b":
		m.move(-page)
	case "d", "ctrl+d":
		m.move((page + 1) / 2)
	case "u", "ctrl+u":
		m.move(-(page + 1) / 2)
	case "g", "home":
		m.top = place{}
	case "shift+g", "end":
		m.top = m.last()
	case "/":
		m.typing, m.search = true, ""
	case "n":
		m.find(1)
	case "shift+n":
		m.find(-1)
	}
	return nil
}

// typed takes a key of a search.
func (m *model) typed(key, text string) {
	switch {
	case key == "enter":
		m.typing = false
		m.find(1)
	case key == "esc" || key == "ctrl+c" || key == "backspace" && m.search == "":
		m.typing, m.search = false, ""
	case key == "backspace":
		r := []rune(m.search)
		m.search = string(r[:len(r)-1])
	default:
		m.search += text
	}
}

// find goes to the next line, or with -1 the one before, that has the searched text. Text
// without capital letters is found in any case.
func (m *model) find(step int) {
	if m.search == "" {
		return
	}
	fold := m.search == strings.ToLower(m.search)
	for i := m.top.line + step; i >= 0 && i < len(m.lines); i += step {
		_, line := split(m.lines[i])
		if fold {
			line = strings.ToLower(line)
		}
		if strings.Contains(line, m.search) {
			m.top = place{line: i}
			return
		}
	}
	m.note = "not found: " + safetext.String(m.search, 200)
}

// page returns the number of rows for the text: the last of the screen is the pager's.
func (m *model) page() int { return max(m.height-1, 1) }

// rows returns the rows of a line, and what colours them.
func (m *model) rows(line int) (rows []string, sgr string) {
	sgr, rest := split(m.lines[line])
	for {
		row := safetext.Fit(rest, max(m.width, 2), "")
		if row == "" {
			row = rest
		}
		rows = append(rows, row)
		if rest = rest[len(row):]; rest == "" {
			return rows, sgr
		}
	}
}

const reset = "\x1b[0m"

// split returns the colour with which a line begins, and its words.
func split(line string) (sgr, words string) {
	if strings.HasPrefix(line, "\x1b[") {
		if i := strings.IndexByte(line, 'm'); i > 0 {
			return line[:i+1], strings.TrimSuffix(line[i+1:], reset)
		}
	}
	return "", line
}

func (p place) before(q place) bool { return p.line < q.line || p.line == q.line && p.row < q.row }

// move goes n rows on, or back, but on no farther than the last screen.
func (m *model) move(n int) {
	for end := m.last(); n > 0 && m.top.before(end); n-- {
		if rows, _ := m.rows(m.top.line); m.top.row+1 < len(rows) {
			m.top.row++
		} else {
			m.top = place{line: m.top.line + 1}
		}
	}
	m.top = m.back(m.top, -n)
}

// back returns the place n rows before p.
func (m *model) back(p place, n int) place {
	for ; n > 0 && p != (place{}); n-- {
		if p.row > 0 {
			p.row--
			continue
		}
		p.line--
		rows, _ := m.rows(p.line)
		p.row = len(rows) - 1
	}
	return p
}

// last returns the place with which the last screen begins.
func (m *model) last() place {
	end := len(m.lines) - 1
	rows, _ := m.rows(end)
	return m.back(place{end, len(rows) - 1}, m.page()-1)
}

func (m *model) View() tea.View {
	var out strings.Builder
	p, left := m.top, m.page()
	for ; p.line < len(m.lines) && left > 0; p = (place{line: p.line + 1}) {
		rows, sgr := m.rows(p.line)
		for ; p.row < len(rows) && left > 0; p.row++ {
			out.WriteString(sgr + rows[p.row])
			if sgr != "" {
				out.WriteString(reset)
			}
			out.WriteByte('\n')
			left--
		}
	}
	out.WriteString(strings.Repeat("\n", left))
	out.WriteString(safetext.Fit(m.status(), max(m.width-1, 1), ""))
	v := tea.NewView(out.String())
	v.AltScreen = true
	return v
}

// status returns the last row of the screen.
func (m *model) status() string {
	switch {
	case m.typing:
		return "/" + safetext.String(m.search, 200)
	case m.note != "":
		return m.note
	}
	return fmt.Sprintf("line %d of %d: space goes on, b back, / searches, q leaves", m.top.line+1, len(m.lines))
}
