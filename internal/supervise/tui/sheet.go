package tui

import (
	"fmt"
	"time"

	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/supervise"
)

// sheet is the text of a shown proposal.
type sheet struct {
	id      supervise.ID
	digest  supervise.Digest
	entry   supervise.Entry
	detail  supervise.Detail
	warning string
	full    bool // nothing is cut

	lines []string // laid out for width; nil: not yet
	width int
	seen  int // lines, counted from the first, that were on the screen
}

func newSheet(e supervise.Entry, full bool) *sheet {
	d := e.Proposal.Detail(full)
	return &sheet{id: e.Proposal.ID, digest: e.Proposal.Digest, entry: e, detail: d, warning: d.Warning.String(), full: full}
}

// laid returns the lines for width columns. It lays them out anew only if the width has
// changed.
func (sh *sheet) laid(s style, width int) []string {
	if sh.lines != nil && sh.width == width {
		return sh.lines
	}
	if sh.lines != nil {
		sh.seen = 0
	}
	sh.width = width
	l := layout{style: s, width: width}
	p := sh.entry.Proposal
	l.text(bold, "", sh.detail.Title.String())
	l.text(dim, "", fmt.Sprintf("%s, asked by %s", p.Kind, p.From()))
	if sh.warning != "" {
		l.gap()
		l.text(yellow, s.glyph("▲ ", "! "), sh.warning)
	}
	for _, n := range sh.detail.Notices {
		l.gap()
		l.text(red, s.glyph("▲ ", "! "), n.String())
	}
	for _, sec := range sh.detail.Sections {
		l.section(sec)
	}
	l.gap()
	l.text(dim, "", fmt.Sprintf("id %s  digest %s", p.ID, p.Digest))
	sh.lines = l.out
	return sh.lines
}

type layout struct {
	style style
	width int
	out   []string
}

func (l *layout) gap() {
	if n := len(l.out); n > 0 && l.out[n-1] != "" {
		l.out = append(l.out, "")
	}
}

// text adds text in a colour, with lead before each line.
func (l *layout) text(sgr, lead, text string) {
	for _, w := range l.style.wrap(text, l.width-safetext.Width(lead)) {
		l.out = append(l.out, l.style.paint(sgr, l.style.fit(lead+w, l.width)))
	}
}

func (l *layout) section(sec supervise.Section) {
	if len(sec.Fields) == 0 && len(sec.Lines) == 0 {
		return
	}
	l.gap()
	if sec.Title != "" {
		l.text(bold, "", sec.Title)
	}
	wide := 0
	for _, f := range sec.Fields {
		wide = max(wide, len(f.Name))
	}
	for _, f := range sec.Fields {
		if l.width < 60 {
			l.text(dim, "", f.Name)
			l.text("", "  ", f.Value.String())
			continue
		}
		for i, w := range l.style.wrap(f.Value.String(), l.width-wide-2) {
			name := f.Name
			if i > 0 {
				name = ""
			}
			l.out = append(l.out, l.style.line(l.width, text{dim, fmt.Sprintf("%-*s  ", wide, name)}, text{"", w}))
		}
	}
	for _, x := range sec.Lines {
		switch {
		case x.Mark == '+':
			l.text(green, "+ ", x.Text.String())
		case x.Mark == '-':
			l.text(red, "- ", x.Text.String())
		case x.Mark == '@':
			l.text(cyan, "@", x.Text.String())
		case x.Mark == '>':
			l.text(bold, "> ", x.Text.String())
		case x.Mark == '~':
			l.text(yellow, l.style.glyph("┊ ", ": "), x.Text.String())
		case sec.Theirs:
			l.text("", l.style.glyph("│ ", "| "), x.Text.String())
		default:
			l.text("", "  ", x.Text.String())
		}
	}
}

// left returns the remaining time as a short text.
func left(until, now time.Time) string {
	d := until.Sub(now).Round(time.Second)
	switch {
	case d <= 0:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
}
