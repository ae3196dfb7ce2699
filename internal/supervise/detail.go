package supervise

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"github.com/carboy/carboy/internal/safetext"
)

// Text is text that a user interface may show as it is: one or several lines that package
// safetext has made safe. Only this package makes a Text. The zero Text is empty.
type Text struct{ s string }

func (t Text) String() string { return t.s }

// Detail holds all that a person sees of a proposal, the most important first. A user
// interface lays it out. It must not add anything or leave anything out.
type Detail struct {
	Title    Text
	Warning  Text   // why to think twice; may be empty
	Notices  []Text // what the text tried to hide, in carboy's words
	Sections []Section

	full bool
}

// Section is a part of a Detail: fields, or lines.
type Section struct {
	Title  string // carboy's own text
	Fields []Field
	Lines  []Line
	// Theirs means that the lines come from inside the bottle. A user interface must set
	// them apart from carboy's own text.
	Theirs bool
	// Cut is the number of bytes of the lines that are not shown. Detail(true) shows all.
	Cut int
}

// Field is a name and its value.
type Field struct {
	Name  string // carboy's own text
	Value Text
}

// Line is one line. Mark is '+', '-', '@' or '\\' in a diff, '>' for the line of code that
// the proposal is about, '~' for a line that says how much is left out, and ' ' for other
// text.
type Line struct {
	Mark byte
	Text Text
}

// cutText bounds a text that Detail(false) shows, in bytes as they are in the proposal.
const cutText = 2 << 10

// maxTitle bounds a line of a list, in bytes.
const maxTitle = 400

// section begins a section. title must be carboy's own text.
func (d *Detail) section(title string) {
	d.Sections = append(d.Sections, Section{Title: title})
}

func (d *Detail) last() *Section {
	if len(d.Sections) == 0 {
		d.section("")
	}
	return &d.Sections[len(d.Sections)-1]
}

// field adds a field with its whole value, unless that is empty. It makes invisible
// characters visible, and adds a notice about them.
func (d *Detail) field(name, value string) {
	if value == "" {
		return
	}
	s := d.last()
	if strings.ContainsFunc(value, func(r rune) bool { return r >= utf8.RuneSelf && unicode.IsLetter(r) }) {
		d.notice(fmt.Sprintf("%s: holds letters other than a to z, which can look like those", name))
	}
	s.Fields = append(s.Fields, Field{name, d.show(name, value)})
}

// quote adds text from inside the bottle. It leaves out the middle of a long text and
// counts the bytes left out, unless for Detail(true).
func (d *Detail) quote(text string) {
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

// change adds the whole difference between two texts.
func (d *Detail) change(before, after string) {
	s := d.last()
	unified := udiff.Unified("before", "after", ended(before), ended(after))
	// The first two lines name the texts; lines of content that look like those stay.
	lines := strings.Split(strings.TrimSuffix(unified, "\n"), "\n")
	lines = lines[min(2, len(lines)):]
	show := d.line
	if alike(lines) {
		// The texts differ only in invisible characters, so show those.
		show = d.show
	}
	for _, l := range lines {
		if l == "" {
			continue
		}
		s.Lines = append(s.Lines, Line{l[0], show(s.Title, l[1:])})
	}
}

// alike reports whether some added line equals a removed one but for white space.
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

// say adds a line of carboy's own text.
func (d *Detail) say(line string) {
	s := d.last()
	s.Lines = append(s.Lines, Line{' ', Text{safetext.String(line, maxTitle)}})
}

// code adds a line of a file. here marks the line that the proposal is about.
func (d *Detail) code(number int, text string, here bool) {
	s := d.last()
	mark := byte(' ')
	if here {
		mark = '>'
	}
	s.Lines = append(s.Lines, Line{mark, Text{fmt.Sprintf("%5d  ", number) + d.line("the code", text).s}})
}

// line is like show, for a line of a text, where tabs are not worth a notice.
func (d *Detail) line(where, text string) Text {
	return d.show(where, strings.ReplaceAll(text, "\t", "    "))
}

// show makes a whole text visible; a payload is bounded. It adds a notice about invisible
// characters, and writes out white space at the end.
func (d *Detail) show(where, text string) Text {
	d.look(where, text)
	v := safetext.String(text, 16*len(text)+16)
	if kept := strings.TrimRight(v, " "); kept != v {
		v = kept + strings.Repeat(`\x20`, len(v)-len(kept))
	}
	return Text{v}
}

// plainBreaks replaces the characters that separate lines and words.
var plainBreaks = strings.NewReplacer("\n", " ", "\t", " ", "\r\n", " ")

func (d *Detail) look(where, text string) {
	if !safetext.Clean(plainBreaks.Replace(text)) {
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
