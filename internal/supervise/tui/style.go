package tui

import (
	"strings"

	"github.com/carboy/carboy/internal/safetext"
)

// style says what one terminal can show.
type style struct{ ascii, color bool }

// Colours, as SGR parameters.
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
)

// plain returns visible text in the characters of this terminal.
func (s style) plain(text string) string {
	if s.ascii {
		return safetext.ASCII(text)
	}
	return text
}

// fit returns visible text, cut to room columns.
func (s style) fit(text string, room int) string {
	return safetext.Fit(s.plain(text), max(room, 0), s.glyph("…", "..."))
}

// wrap returns visible text, in lines of room columns.
func (s style) wrap(text string, room int) []string {
	return safetext.Wrap(s.plain(text), max(room, 8))
}

// paint colours a text. The text must be cut already.
func (s style) paint(sgr, text string) string {
	if !s.color || sgr == "" || text == "" {
		return text
	}
	return "\x1b[" + sgr + "m" + text + "\x1b[0m"
}

// glyph returns nice, or plain for a terminal with ASCII only.
func (s style) glyph(nice, plain string) string {
	if s.ascii {
		return plain
	}
	return nice
}

// text is one part of a line, in a colour.
type text struct{ sgr, s string }

// line joins parts to a line of room columns, and cuts the rest.
func (s style) line(room int, parts ...text) string {
	var b strings.Builder
	for _, p := range parts {
		if room <= 0 {
			break
		}
		t := s.fit(p.s, room)
		room -= safetext.Width(t)
		b.WriteString(s.paint(p.sgr, t))
		if t != s.plain(p.s) {
			break
		}
	}
	return b.String()
}
