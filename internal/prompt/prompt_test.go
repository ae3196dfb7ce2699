package prompt

import (
	"errors"
	"slices"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"

	"github.com/carboy/carboy/internal/safetext"
)

var keys = map[string]tea.KeyPressMsg{
	"up": {Code: tea.KeyUp}, "down": {Code: tea.KeyDown}, "enter": {Code: tea.KeyEnter}, "esc": {Code: tea.KeyEscape},
	"space": {Code: tea.KeySpace, Text: " "}, "backspace": {Code: tea.KeyBackspace}, "pgdown": {Code: tea.KeyPgDown}, "end": {Code: tea.KeyEnd},
	"ctrl+c": {Code: 'c', Mod: tea.ModCtrl}, "ctrl+u": {Code: 'u', Mod: tea.ModCtrl}, "shift+up": {Code: tea.KeyUp, Mod: tea.ModShift}, "shift+down": {Code: tea.KeyDown, Mod: tea.ModShift},
}

// asked is a model with questions and an 80 by 24 terminal.
func asked(t Terminal, questions ...Question) *model {
	m := &model{t: t}
	for _, q := range questions {
		m.rest = append(m.rest, func() Question { return q })
	}
	m.next()
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	return m
}

// press types keys by name, else as text. It reports whether the program would end.
func (m *model) typed(pressed ...string) (over bool) {
	for _, k := range pressed {
		msgs := []tea.Msg{}
		if key, ok := keys[k]; ok {
			msgs = append(msgs, key)
		} else {
			for _, r := range k {
				msgs = append(msgs, tea.KeyPressMsg{Code: r, Text: string(r)})
			}
		}
		for _, msg := range msgs {
			_, cmd := m.Update(msg)
			over = cmd != nil
		}
	}
	return over
}

func (m *model) screen() string { return m.View().Content }

func TestOne(t *testing.T) {
	items := []Item{{Name: "coder", Description: "writes code"}, {Name: "reviewer", Description: "reads code"}, {Name: "writer", Description: "prose"}}
	for _, x := range []struct {
		from  string
		typed []string
		want  string
	}{
		{"", []string{"enter"}, "coder"},
		{"writer", []string{"enter"}, "writer"},
		{"gone", []string{"enter"}, "coder"},
		{"", []string{"down", "enter"}, "reviewer"},
		{"", []string{"down", "down", "down", "enter"}, "writer"},
		{"", []string{"up", "enter"}, "coder"},
		{"", []string{"end", "up", "enter"}, "reviewer"},
		{"", []string{"pro", "enter"}, "writer"},
		{"", []string{"CODE", "down", "enter"}, "reviewer"},
		{"", []string{"zzz", "enter", "ctrl+u", "enter"}, "coder"},
		{"", []string{"prx", "enter", "backspace", "enter"}, "writer"},
		{"", []string{"down", "rev", "enter"}, "reviewer"},
	} {
		q := &One{Title: "which?", Items: items, Chosen: x.from}
		m := asked(Terminal{}, q)
		if !m.typed(x.typed...) || q.Chosen != x.want || m.now != nil {
			t.Errorf("%q %v: %q, want %q", x.from, x.typed, q.Chosen, x.want)
		}
	}
	q := &One{Title: "which?", Items: items}
	m := asked(Terminal{}, q)
	m.typed("zzz")
	if s := m.screen(); !strings.Contains(s, "which?  zzz") || !strings.Contains(s, "nothing has that in it") || strings.Contains(s, "coder") {
		t.Errorf("%q", s)
	}
	if m.typed("enter") {
		t.Error("nothing was chosen, and it ended")
	}
}

func TestOrdered(t *testing.T) {
	for _, x := range []struct {
		from  []string
		typed []string
		want  []string
	}{
		{[]string{"b"}, []string{"enter"}, []string{"b"}},
		{[]string{"c", "a"}, []string{"enter"}, []string{"c", "a"}},
		// c, a are chosen; b, d are not.
		{[]string{"c", "a"}, []string{"+", "enter"}, []string{"a", "c"}},
		{[]string{"c", "a"}, []string{"shift+down", "enter"}, []string{"a", "c"}},
		{[]string{"c", "a"}, []string{"-", "enter"}, []string{"c", "a"}},
		{[]string{"c", "a"}, []string{"down", "-", "enter"}, []string{"a", "c"}},
		{[]string{"c", "a"}, []string{"down", "shift+up", "enter"}, []string{"a", "c"}},
		{[]string{"c", "a"}, []string{"down", "+", "enter"}, []string{"c", "a"}},
		{[]string{"c", "a"}, []string{"down", "down", "space", "enter"}, []string{"c", "a", "b"}},
		{[]string{"c", "a"}, []string{"down", "down", "space", "-", "-", "-", "enter"}, []string{"b", "c", "a"}},
		{[]string{"c", "a"}, []string{"down", "down", "-", "+", "enter"}, []string{"c", "a"}},
		{[]string{"c", "a"}, []string{"space", "enter"}, []string{"a"}},
		{[]string{"c", "a"}, []string{"space", "space", "enter"}, []string{"a", "c"}},
		{nil, []string{"enter", "space", "enter"}, []string{"a"}},
	} {
		q := &Ordered{Title: "which?", Items: []Item{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}}, Chosen: x.from}
		before := slices.Clone(x.from)
		m := asked(Terminal{}, q)
		if !m.typed(x.typed...) || !slices.Equal(q.Chosen, x.want) {
			t.Errorf("%v %v: %v, want %v", x.from, x.typed, q.Chosen, x.want)
		}
		if !slices.Equal(before, x.from) {
			t.Error("the caller's list was changed")
		}
	}
	q := &Ordered{Title: "which?", Items: []Item{{Name: "a"}, {Name: "b"}}}
	m := asked(Terminal{}, q)
	if m.typed("enter") || !strings.Contains(m.screen(), "choose one at least") {
		t.Errorf("none is taken: %q", m.screen())
	}
	m.typed("down", "space", "down", "space")
	if s := m.screen(); !strings.Contains(s, "[1] b") || !strings.Contains(s, "[2] a") {
		t.Errorf("%q", s)
	}
	if m := asked(Terminal{}, &Ordered{}); m.typed("space", "+", "up", "enter") {
		t.Error("nothing was chosen of nothing")
	}
}

func TestText(t *testing.T) {
	q := &Text{Title: "a label?", Check: func(s string) error {
		if s == "bad" {
			return errors.New("that is \x1b[31mbad")
		}
		return nil
	}}
	m := asked(Terminal{}, q)
	if m.typed("bad", "enter") || !strings.Contains(m.screen(), `that is \x1b[31mbad`) {
		t.Errorf("%q", m.screen())
	}
	m.Update(tea.PasteMsg{Content: "\x1b]0;owned\x07"})
	m.Update(tea.PasteMsg{Content: "two\nlines"})
	if !m.typed("backspace", "ckup  x", "space", "é", "backspace", "enter") || q.Value != "backup  x" {
		t.Errorf("%q", q.Value)
	}
	q = &Text{}
	m = asked(Terminal{}, q)
	m.typed(strings.Repeat("x", 500), "ctrl+u", strings.Repeat("y", 500), "enter")
	if q.Value != strings.Repeat("y", maxTyped) {
		t.Errorf("%d bytes were taken", len(q.Value))
	}
}

// TestNextQuestion: keys that were typed ahead go to the next question. A question that
// need not be asked is left out. A question may depend on the answer before it.
func TestNextQuestion(t *testing.T) {
	a, b, c := &One{Items: []Item{{Name: "a"}, {Name: "b"}}}, &Text{}, &Text{}
	m := &model{rest: []func() Question{
		func() Question { return a },
		func() Question { b.Value = a.Chosen; return b },
		func() Question { return nil },
		func() Question { return c },
	}}
	m.next()
	if m.typed("down", "enter", "x", "enter", "y") || b.Value != "bx" || c.Value != "y" {
		t.Errorf("%q %q", b.Value, c.Value)
	}
	if !m.typed("enter") || m.now != nil || m.screen() != "" {
		t.Error("it goes on")
	}
	for _, key := range []string{"esc", "ctrl+c"} {
		m := asked(Terminal{}, &Text{}, &Text{})
		m.typed("x", "enter", "y")
		if !m.typed(key) || m.now == nil {
			t.Errorf("%s does not end it", key)
		}
	}
}

// TestHostileDescriptions: what a repository's manifest says of itself draws nothing and is
// never wider or longer than the terminal.
func TestHostileDescriptions(t *testing.T) {
	hostile := "\x1b[2J\x1b]0;owned\x07\u202eevil\u200b\r\n\x9b31m" + strings.Repeat("wide 漢字 ", 200)
	var items []Item
	for range 100 {
		items = append(items, Item{Name: "agent", Description: hostile}, Item{Name: hostile, Description: hostile})
	}
	for _, term := range []Terminal{{}, {ASCII: true}, {Color: true}} {
		for _, size := range [][2]int{{80, 24}, {20, 6}, {3, 1}, {200, 60}} {
			for _, q := range []Question{&One{Title: "which?", Items: items, Chosen: "agent"}, &Ordered{Title: "which?", Items: items, Chosen: []string{hostile}}} {
				m := asked(term, q)
				m.Update(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
				m.typed("down", "down", "pgdown")
				s := m.screen()
				for _, sgr := range []string{"\x1b[0m", "\x1b[1m", "\x1b[2m"} {
					if term.Color {
						s = strings.ReplaceAll(s, sgr, "")
					}
				}
				lines := strings.Split(s, "\n")
				if len(lines) > max(size[1]-1, 4) {
					t.Errorf("%v %v: %d lines", term, size, len(lines))
				}
				for _, l := range lines {
					if !safetext.Clean(l) || safetext.Width(l) > size[0] {
						t.Fatalf("%v %v: %q", term, size, l)
					}
					if term.ASCII && strings.ContainsFunc(l, func(r rune) bool { return r > 126 }) {
						t.Fatalf("not plain: %q", l)
					}
				}
			}
		}
	}
}
