package tui

import (
	"strings"

	"github.com/carboy/carboy/internal/visible"
)

// style is how lines are made for one terminal.
type style struct{ ascii, color bool }

// The colours, as SGR has them.
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
)

// plain is text that is visible already, as this terminal can show it.
func (s style) plain(text string) string {
	if s.ascii {
		return visible.ASCII(text)
	}
	return text
}

// fit is text that is visible already, cut to room columns.
func (s style) fit(text string, room int) string {
	return visible.Fit(s.plain(text), max(room, 0), s.glyph("…", "..."))
}

// wrap is text that is visible already, in lines of room columns.
func (s style) wrap(text string, room int) []string {
	return visible.Wrap(s.plain(text), max(room, 8))
}

// paint puts what is cut already into a colour.
func (s style) paint(sgr, text string) string {
	if !s.color || sgr == "" || text == "" {
		return text
	}
	return "\x1b[" + sgr + "m" + text + "\x1b[0m"
}

// glyph is one that has a plain stand-in.
func (s style) glyph(nice, plain string) string {
	if s.ascii {
		return plain
	}
	return nice
}

// text is one part of a line, in a colour.
type text struct{ sgr, s string }

// line are parts of a line in room columns: what has no room is cut.
func (s style) line(room int, parts ...text) string {
	var b strings.Builder
	for _, p := range parts {
		if room <= 0 {
			break
		}
		t := s.fit(p.s, room)
		room -= visible.Width(t)
		b.WriteString(s.paint(p.sgr, t))
		if t != s.plain(p.s) {
			break
		}
	}
	return b.String()
}
