package supervise

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"github.com/carboy/carboy/internal/visible"
)

// Text is text that a face may show as it is: one or several lines that package
// visible has made safe. Only this package makes one. The zero Text is empty.
type Text struct{ s string }

func (t Text) String() string { return t.s }

// Detail is what a person is shown of a proposal, in the order in which it matters.
// Faces lay it out; they add nothing to it and leave nothing out.
type Detail struct {
	Title    Text
	Warning  Text   // why to think twice; may be empty
	Notices  []Text // what the text tried to hide, in our words
	Sections []Section

	full bool
}

// Section is a part of a Detail: fields, or lines.
type Section struct {
	Title  string // ours
	Fields []Field
	Lines  []Line
	// Theirs means that the lines are somebody's words from inside the bottle: faces
	// set them off from carboy's own.
	Theirs bool
	// Cut is how many bytes of the lines are not shown. Detail(true) shows all.
	Cut int
}

// Field is a name and what it is.
type Field struct {
	Name  string // ours
	Value Text
}

// Line is a line of a diff (Mark '+', '-', '@', '\\'), the line of code that matters
// ('>'), one that says what is left out ('~'), or other text (' ').
type Line struct {
	Mark byte
	Text Text
}

// cutText bounds a text that Detail(false) shows, in bytes as they stand in the proposal.
const cutText = 2 << 10

// maxTitle bounds the line of a list, in bytes.
const maxTitle = 400

// Section begins a part; title is the program's own.
func (d *Detail) Section(title string) {
	d.Sections = append(d.Sections, Section{Title: title})
}

func (d *Detail) last() *Section {
	if len(d.Sections) == 0 {
		d.Section("")
	}
	return &d.Sections[len(d.Sections)-1]
}

// Field adds a field, whole, unless it is empty. What does not show is made visible
// and pointed out.
func (d *Detail) Field(name, value string) {
	if value == "" {
		return
	}
	s := d.last()
	if strings.ContainsFunc(value, func(r rune) bool { return r >= utf8.RuneSelf && unicode.IsLetter(r) }) {
		d.notice(fmt.Sprintf("%s: holds letters other than a to z, which can look like those", name))
	}
	s.Fields = append(s.Fields, Field{name, d.show(name, value)})
}

// Words adds somebody's words. Where they are long the middle is left out and
// counted, except of Detail(true).
func (d *Detail) Words(text string) {
	s := d.last()
	s.Theirs = true
	head, tail := text, ""
	left := 0
	if !d.full && len(text) > cutText {
		h, t := cutText/2, len(text)-cutText/2
		for h > 0 && !utf8.RuneStart(text[h]) {
			h--
		}
		for t < len(text) && !utf8.RuneStart(text[t]) {
			t++
		}
		head, tail, left = text[:h], text[t:], t-h
		s.Cut += left
		d.look(s.Title, text[h:t])
	}
	d.lines(s, head)
	if left > 0 {
		s.Lines = append(s.Lines, Line{'~', Text{fmt.Sprintf("[%d bytes are left out here]", left)}})
		d.lines(s, tail)
	}
}

func (d *Detail) lines(s *Section, text string) {
	for l := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		s.Lines = append(s.Lines, Line{' ', d.line(s.Title, strings.TrimSuffix(l, "\r"))})
	}
}

// Change adds what differs between two texts, every line of it: it is the change.
func (d *Detail) Change(before, after string) {
	s := d.last()
	unified := udiff.Unified("before", "after", ended(before), ended(after))
	// The first two lines name the texts; lines of content that look like those stay.
	lines := strings.Split(strings.TrimSuffix(unified, "\n"), "\n")
	lines = lines[min(2, len(lines)):]
	show := d.line
	if alike(lines) {
		// Only what does not show differs, so that is shown.
		show = d.show
	}
	for _, l := range lines {
		if l == "" {
			continue
		}
		s.Lines = append(s.Lines, Line{l[0], show(s.Title, l[1:])})
	}
}

// alike reports whether a line that goes and one that comes differ in white space
// alone.
func alike(lines []string) bool {
	gone := map[string]bool{}
	for _, l := range lines {
		if strings.HasPrefix(l, "-") {
			gone[strings.Join(strings.Fields(l[1:]), " ")] = true
		}
	}
	for _, l := range lines {
		if strings.HasPrefix(l, "+") && gone[strings.Join(strings.Fields(l[1:]), " ")] {
			return true
		}
	}
	return false
}

func ended(s string) string {
	if s != "" && !strings.HasSuffix(s, "\n") {
		s += "\n"
	}
	return s
}

// Say adds a line of the program's own.
func (d *Detail) Say(line string) {
	s := d.last()
	s.Lines = append(s.Lines, Line{' ', Text{visible.String(line, maxTitle)}})
}

// Code adds a line of a file; the one that matters is marked.
func (d *Detail) Code(number int, text string, here bool) {
	s := d.last()
	mark := byte(' ')
	if here {
		mark = '>'
	}
	s.Lines = append(s.Lines, Line{mark, Text{fmt.Sprintf("%5d  ", number) + d.line("the code", text).s}})
}

// line is show for a line of a text, in which tabs are no surprise.
func (d *Detail) line(where, text string) Text {
	return d.show(where, strings.ReplaceAll(text, "\t", "    "))
}

// show makes text visible, whole: payloads are bounded. What did not show by itself is
// pointed out. White space at the end is written out.
func (d *Detail) show(where, text string) Text {
	d.look(where, text)
	v := visible.String(text, 16*len(text)+16)
	if kept := strings.TrimRight(v, " "); kept != v {
		v = kept + strings.Repeat(`\x20`, len(v)-len(kept))
	}
	return Text{v}
}

// plainBreaks are the characters that lines are made of.
var plainBreaks = strings.NewReplacer("\n", " ", "\t", " ", "\r\n", " ")

func (d *Detail) look(where, text string) {
	if !visible.Clean(plainBreaks.Replace(text)) {
		d.hidden(where)
	}
}

func (d *Detail) hidden(where string) {
	d.notice(fmt.Sprintf("%s: holds characters that do not show, or that change how text is shown; they are written out, as in \\u202e", first(where, "the text")))
}

func (d *Detail) notice(s string) {
	for _, n := range d.Notices {
		if n.s == s {
			return
		}
	}
	d.Notices = append(d.Notices, Text{s})
}

func first(s ...string) string {
	for _, x := range s {
		if x != "" {
			return x
		}
	}
	return ""
}
