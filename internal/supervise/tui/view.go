package tui

import (
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"

	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/supervise"
)

// The screen has a head, a body, and a foot with the possible keys or a question. The body
// shows the list, a proposal, or both side by side. Only visible lines are laid out.

const rowLines = 2

func (m *model) View() tea.View {
	if m.width == 0 {
		return tea.NewView("")
	}
	v := tea.NewView(strings.Join(m.screen(), "\n"))
	v.AltScreen = true
	return v
}

func (m *model) screen() []string {
	foot := m.foot()
	if len(foot) > max(m.height-3, 1) {
		foot = foot[len(foot)-max(m.height-3, 1):]
	}
	room := max(m.height-2-len(foot), 1)
	out := append([]string{m.head()}, m.style.paint(dim, strings.Repeat(m.style.glyph("─", "-"), m.width)))
	out = append(out, m.body(room)...)
	out = append(out, foot...)
	if len(out) > m.height {
		out = out[len(out)-m.height:]
	}
	return out
}

func (m *model) head() string {
	waiting := 0
	for _, r := range m.rows {
		if r.gone == "" {
			waiting++
		}
	}
	count := "nothing waits"
	if waiting > 0 {
		count = fmt.Sprintf("%d waiting", waiting)
	}
	if !m.loaded {
		count = "reading the queue"
	}
	parts := []text{{bold, "carboy supervise"}, {"", "  " + count}}
	if m.find || m.filter != "" {
		cursor := ""
		if m.find {
			cursor = m.style.glyph("▏", "_")
		}
		parts = append(parts, text{cyan, "  /" + m.filter + cursor}, text{dim, fmt.Sprintf(" %d match", len(m.matching()))})
	}
	if m.failed != "" {
		parts = append(parts, text{red, "  the queue can't be read: " + m.failed})
	} else if n := len(m.problems); n > 0 {
		parts = append(parts, text{yellow, fmt.Sprintf("  %d skipped: %s", n, safetext.String(m.problems[0].Error(), 200))})
	}
	return m.style.line(m.width, parts...)
}

// bodyRoom returns the number of lines of the body while no answer is being given.
func (m *model) bodyRoom() int { return max(m.height-3, 1) }

func (m *model) listRoom() int { return max(m.bodyRoom()/rowLines, 1) }

func (m *model) sheetRoom() int {
	n := m.bodyRoom()
	if m.ask != nil {
		n = max(m.height-2-len(m.foot()), 1)
	}
	return max(n-1, 1) // the last line counts the lines below
}

func (m *model) listWidth() int {
	if m.split() {
		return min(46, m.width*2/5)
	}
	return m.width
}

func (m *model) sheetWidth() int {
	if m.split() {
		return m.width - m.listWidth() - 3
	}
	return m.width
}

func (m *model) body(room int) []string {
	switch {
	case m.help:
		return filled(m.helpLines(), room)
	case m.ask != nil && m.ask.edit != nil:
		return filled(m.editLines(room), room)
	case len(m.matching()) == 0 && m.sheet == nil:
		return filled(m.nothing(), room)
	case !m.split() && (m.open || m.ask != nil && m.ask.verdict != supervise.Rejected):
		return filled(m.sheetLines(room), room)
	case !m.split():
		return filled(m.listLines(room), room)
	}
	list, sheet := filled(m.listLines(room), room), filled(m.sheetLines(room), room)
	bar := m.style.paint(dim, m.style.glyph(" │ ", " | "))
	out := make([]string, room)
	for i := range out {
		out[i] = list[i] + strings.Repeat(" ", max(0, m.listWidth()-safetext.Width(withoutColor(list[i])))) + bar + sheet[i]
	}
	return out
}

// withoutColor returns a line without carboy's own colours.
func withoutColor(s string) string {
	for {
		i := strings.Index(s, "\x1b[")
		if i < 0 {
			return s
		}
		j := strings.IndexByte(s[i:], 'm')
		if j < 0 {
			return s[:i]
		}
		s = s[:i] + s[i+j+1:]
	}
}

func filled(lines []string, room int) []string {
	if len(lines) > room {
		return lines[:room]
	}
	for len(lines) < room {
		lines = append(lines, "")
	}
	return lines
}

func (m *model) nothing() []string {
	if !m.loaded {
		return nil
	}
	if m.filter != "" {
		return []string{"", m.style.fit("  nothing that waits has that in it; Esc shows all", m.width)}
	}
	out := []string{""}
	for _, l := range m.style.wrap("Nothing waits for you. What a bottle asks for appears here as it comes.", m.width-4) {
		out = append(out, "  "+l)
	}
	return out
}

func (m *model) listLines(room int) []string {
	list := m.matching()
	n := max(room/rowLines, 1)
	at := m.place()
	if at < m.top {
		m.top = at
	}
	if at >= m.top+n {
		m.top = at - n + 1
	}
	m.top = max(0, min(m.top, len(list)-n))
	var out []string
	width := m.listWidth()
	now := m.now()
	for i := m.top; i < min(m.top+n, len(list)); i++ {
		r := list[i]
		p := r.entry.Proposal
		lead, tone, under := "  ", "", dim
		if i == at && p.ID == m.at {
			lead, tone = m.style.glyph("▌ ", "> "), bold
			if m.open || m.ask != nil {
				lead = m.style.glyph("│ ", "> ")
			}
		}
		time := left(p.Expires, now)
		if r.gone != "" {
			time, tone, under = "gone", dim, dim
		}
		warn := text{}
		if p.Payload.Warn() != "" && r.gone == "" {
			warn = text{yellow, m.style.glyph("▲ ", "! ")}
		}
		out = append(out,
			m.style.line(width, text{cyan, lead}, warn, text{tone, r.title}),
			m.style.line(width, text{"", "  "}, text{under, fmt.Sprintf("%s  %s  %s", time, p.Kind, p.From())}))
	}
	return out
}

func (m *model) sheetLines(room int) []string {
	if m.sheet == nil {
		return nil
	}
	if m.ask != nil && m.ask.changed != nil {
		return m.ask.changed.laid(m.style, m.sheetWidth())
	}
	lines := m.sheet.laid(m.style, m.sheetWidth())
	room = max(room-1, 1)
	m.scroll = max(0, min(m.scroll, len(lines)-room))
	to := min(m.scroll+room, len(lines))
	// A line counts as seen only if all lines above it were.
	if m.scroll <= m.sheet.seen {
		m.sheet.seen = max(m.sheet.seen, to)
	}
	out := append([]string(nil), lines[m.scroll:to]...)
	if below := len(lines) - to; below > 0 {
		for len(out) < room {
			out = append(out, "")
		}
		how := "J"
		if m.open {
			how = "j, Space"
		}
		out = append(out, m.style.line(m.sheetWidth(), text{yellow, fmt.Sprintf("%s%d more lines below (%s)", m.style.glyph("↓ ", ""), below, how)}))
	}
	return out
}

// foot returns the possible keys, the question, or the error.
func (m *model) foot() []string {
	if m.ask != nil {
		return m.askLines()
	}
	if m.said != "" {
		tone := green
		if m.bad {
			tone = red
		}
		return []string{m.style.line(m.width, text{tone, m.said})}
	}
	if m.help {
		return []string{m.style.line(m.width, text{dim, "any key goes back"})}
	}
	r := m.row(m.at)
	if r != nil && r.gone != "" {
		return []string{m.style.line(m.width, text{red, "gone: " + r.gone}, text{dim, "  j, k go on"})}
	}
	var parts []text
	switch {
	case r == nil:
	case m.seen() && !m.isSettled():
		parts = append(parts, text{dim, m.style.glyph("…", "...") + "  "})
	case m.seen():
		parts = append(parts, text{bold, "a"}, text{dim, " approve  "}, text{bold, "r"}, text{dim, " reject  "}, text{bold, "m"}, text{dim, " modify  "})
	default:
		parts = append(parts, text{bold, "Enter"}, text{dim, " open  "}, text{bold, "r"}, text{dim, " reject  "})
	}
	parts = append(parts, text{bold, "?"}, text{dim, " help  "}, text{bold, "q"})
	if m.open {
		parts = append(parts, text{dim, " back"})
	} else {
		parts = append(parts, text{dim, " leave"})
	}
	return []string{m.style.line(m.width, parts...)}
}

// askLines returns the lines of the answer being given.
func (m *model) askLines() []string {
	a := m.ask
	s := m.style
	rule := s.paint(dim, strings.Repeat(s.glyph("─", "-"), m.width))
	verb := map[supervise.Verdict]string{supervise.Approved: "Approve", supervise.Rejected: "Reject", supervise.Modified: "Approve as modified"}[a.verdict]
	p := a.of.entry.Proposal
	out := []string{rule, s.line(m.width, text{bold, verb + ": "}, text{"", a.of.title}),
		s.line(m.width, text{dim, fmt.Sprintf("  %s, %s, digest %.12s", p.Kind, p.From(), a.digest)})}
	switch {
	case a.of.gone != "":
		return append(out, s.line(m.width, text{red, "gone meanwhile: " + a.of.gone}), s.line(m.width, text{bold, "Esc"}, text{dim, " goes back"}))
	case a.sent:
		return append(out, s.line(m.width, text{dim, "answering" + s.glyph("…", "...")}))
	case a.edit != nil:
		out = append(out[:1], s.line(m.width, text{bold, "Modify: "}, text{"", a.of.title}))
		if a.wrong != "" {
			for _, l := range s.wrap(a.wrong, m.width) {
				out = append(out, s.paint(red, l))
			}
		}
		return append(out, s.line(m.width, text{bold, "Ctrl-S"}, text{dim, " goes on to approve it  "}, text{bold, "Esc"}, text{dim, " goes back"}))
	}
	if a.unseen > 0 {
		out = append(out, s.line(m.width, text{yellow, fmt.Sprintf("%d lines of it were not on the screen", a.unseen)}))
	}
	cursor := s.glyph("▏", "_")
	do := " approves  "
	if a.verdict == supervise.Rejected {
		do = " rejects  "
	}
	if a.warned {
		for _, l := range s.wrap(a.warning, m.width) {
			out = append(out, s.paint(yellow, l))
		}
		out = append(out, s.line(m.width, text{bold, "type yes: "}, text{"", a.yes.s + cursor}))
	} else {
		out = append(out, s.line(m.width, text{bold, "Note (may stay empty): "}, text{"", tail(a.note.s, m.width-26) + cursor}))
		if a.warning != "" {
			do = " goes on  "
		}
	}
	if a.wrong != "" {
		out = append(out, s.line(m.width, text{red, a.wrong}))
	}
	return append(out, s.line(m.width, text{bold, "Enter"}, text{dim, do}, text{bold, "Esc"}, text{dim, " goes back"}))
}

// tail returns the end of the typed text that has room.
func tail(s string, room int) string {
	for safetext.Width(s) > max(room, 8) {
		_, s, _ = cutFirst(s)
	}
	return s
}

func cutFirst(s string) (first, rest string, ok bool) {
	for i := range s {
		if i > 0 {
			return s[:i], s[i:], true
		}
	}
	return s, "", s != ""
}

func (m *model) editLines(room int) []string {
	e := m.ask.edit
	if e.row < e.top {
		e.top = e.row
	}
	if e.row >= e.top+room {
		e.top = e.row - room + 1
	}
	var out []string
	for i := e.top; i < min(e.top+room, len(e.lines)); i++ {
		lead := "  "
		l := safetext.String(string(e.lines[i]), maxPaste)
		if i == e.row {
			lead = m.style.glyph("▌ ", "> ")
			before := safetext.String(string(e.lines[i][:e.col]), maxPaste)
			l = tail(before, m.width-12) + m.style.glyph("▏", "_") + safetext.String(string(e.lines[i][e.col:]), maxPaste)
		}
		out = append(out, m.style.line(m.width, text{cyan, lead}, text{"", l}))
	}
	return out
}

var helpText = [][2]string{
	{"j k, arrows", "next, one before; in an open proposal: scroll"},
	{"Space b", "a page on, a page back"},
	{"g G", "first, last"},
	{"Enter", "open the proposal; Esc goes back"},
	{"n p", "next proposal, one before, also when one is open"},
	{"f", "show long words whole, or cut again"},
	{"J K", "scroll the proposal beside the list"},
	{"a", "approve what is on the screen, with a note"},
	{"r", "reject it, with a note"},
	{"m", "approve it in another form"},
	{"/", "find: only what has these letters; Esc shows all"},
	{"q", "leave; whatever waits goes on waiting"},
}

func (m *model) helpLines() []string {
	out := []string{""}
	for _, h := range helpText {
		if m.width < 60 {
			out = append(out, m.style.line(m.width, text{bold, h[0]}))
			for _, l := range m.style.wrap(h[1], m.width-2) {
				out = append(out, "  "+l)
			}
			continue
		}
		out = append(out, m.style.line(m.width, text{bold, fmt.Sprintf("  %-12s  ", h[0])}, text{"", h[1]}))
	}
	out = append(out, "")
	for _, l := range m.style.wrap("A note goes to the agent and into the record. A proposal that nobody answers in time is refused. An answer is for exactly what was shown: its digest is in it.", m.width-4) {
		out = append(out, m.style.paint(dim, "  "+l))
	}
	return out
}
