package pager

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
)

// shown returns the screen of a model after keys, without the last row.
func shown(m *model, keys ...string) []string {
	for _, k := range keys {
		m.press(k)
	}
	rows := strings.Split(m.View().Content, "\n")
	return rows[:len(rows)-1]
}

func TestMoves(t *testing.T) {
	var lines []string
	for i := range 100 {
		lines = append(lines, fmt.Sprint("line ", i+1))
	}
	lines[9] = "\x1b[31m" + strings.Repeat("w", 25) + "\x1b[0m" // three rows
	m := &model{lines: lines, width: 10, height: 6}
	for _, c := range []struct{ keys, first, last string }{
		{"", "line 1", "line 5"},
		{"k", "line 1", "line 5"},
		{"space", "line 6", "\x1b[31mwwwwwwwwww\x1b[0m"},
		{"j j", "line 8", "\x1b[31mwwwww\x1b[0m"},
		{"j j j", "\x1b[31mwwwwwwwwww\x1b[0m", "line 13"},
		{"b", "line 6", "\x1b[31mwwwwwwwwww\x1b[0m"},
		{"d", "line 9", "line 11"},
		{"u", "line 6", "\x1b[31mwwwwwwwwww\x1b[0m"},
		{"shift+g", "line 96", "line 100"},
		{"j space", "line 96", "line 100"},
		{"b", "line 91", "line 95"},
		{"g", "line 1", "line 5"},
	} {
		rows := shown(m, strings.Fields(c.keys)...)
		if len(rows) != 5 || rows[0] != c.first || rows[4] != c.last {
			t.Errorf("after %q: %q, want %q to %q", c.keys, rows, c.first, c.last)
		}
	}
	m.Update(tea.WindowSizeMsg{Width: 4, Height: 3})
	if rows := shown(m); len(rows) != 2 || rows[0] != "line" || rows[1] != " 1" {
		t.Errorf("on a smaller screen: %q", rows)
	}
}

func TestSearch(t *testing.T) {
	m := &model{lines: []string{"a", "Bee", "c", "bee", "d", "e", "f"}, width: 20, height: 4}
	for _, c := range []struct{ keys, top, note string }{
		{"/ b e e enter", "Bee", ""},
		{"n", "bee", ""},
		{"n", "bee", "not found: bee"},
		{"shift+n", "Bee", ""},
		{"/ B e enter", "Bee", "not found: Be"},
		{"g / B x backspace e enter", "Bee", ""},
		{"/ x esc n", "Bee", ""},
		{"/ f enter", "f", ""},
		{"j", "f", ""},
		{"k", "e", ""},
	} {
		for _, k := range strings.Fields(c.keys) {
			key := tea.KeyPressMsg{Text: k, Code: rune(k[0])}
			switch k {
			case "enter":
				key = tea.KeyPressMsg{Code: tea.KeyEnter}
			case "esc":
				key = tea.KeyPressMsg{Code: tea.KeyEscape}
			case "backspace":
				key = tea.KeyPressMsg{Code: tea.KeyBackspace}
			case "shift+n":
				key = tea.KeyPressMsg{Code: 'n', Mod: tea.ModShift, Text: "N"}
			}
			m.Update(key)
		}
		if rows := shown(m); rows[0] != c.top || m.note != c.note {
			t.Errorf("after %q: %q, %q, want %q, %q", c.keys, rows, m.note, c.top, c.note)
		}
	}
}

// Rows join to their lines again, whatever is in them.
func FuzzRows(f *testing.F) {
	f.Add("plain\n\x1b[32m+日本語 naïve\x1b[0m\n\n", 5, 4)
	f.Fuzz(func(t *testing.T, text string, width, height int) {
		m := &model{lines: strings.Split(text, "\n"), width: width % 200, height: height % 100}
		for i, line := range m.lines {
			rows, sgr := m.rows(i)
			if joined := sgr + strings.Join(rows, ""); joined != strings.TrimSuffix(line, reset) && joined != line {
				t.Errorf("%q became %q", line, rows)
			}
		}
		if m.last(); len(shown(m, "shift+g", "b", "space", "j", "d")) != m.page() {
			t.Error("the screen is not full of rows")
		}
	})
}

func TestKeysOfTheTerminal(t *testing.T) {
	m := &model{lines: []string{"a"}, width: 20, height: 3}
	if _, quit := m.Update(tea.KeyPressMsg{Code: 'q', Text: "q"}); quit == nil {
		t.Error("q does not leave")
	}
	if !regexp.MustCompile(`^line 1 of 1: .*q leaves`).MatchString(m.status()) {
		t.Errorf("the last row is %q", m.status())
	}
}
