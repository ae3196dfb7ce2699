package prompt

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/carboy/carboy/internal/safetext"
)

// Item is one choice.
type Item struct {
	Name        string
	Description string // untrusted
	SGR         string // colour of the name, "" for none
}

// Bounds of the texts, in bytes.
const (
	maxName        = 100
	maxDescription = 300
	maxTyped       = 100 // of a filter or a text
)

// One asks for one item of a list. Typing filters the list.
type One struct {
	Title string
	Items []Item
	// Chosen is the initial selection and then the answer.
	Chosen string

	filter string
	at     int // index among the filtered items
	begun  bool
}

// left returns the items that match the typed filter.
func (q *One) left() []Item {
	if q.filter == "" {
		return q.Items
	}
	var out []Item
	for _, x := range q.Items {
		if has(x.Name, q.filter) || has(x.Description, q.filter) {
			out = append(out, x)
		}
	}
	return out
}

func has(s, part string) bool { return strings.Contains(strings.ToLower(s), strings.ToLower(part)) }

func (q *One) begin() {
	if !q.begun {
		q.begun = true
		q.at = max(0, slices.IndexFunc(q.Items, func(x Item) bool { return x.Name == q.Chosen }))
	}
}

func (q *One) press(key, typed string) (done bool) {
	q.begin()
	left := q.left()
	switch key {
	case "enter":
		if len(left) == 0 {
			return false
		}
		q.Chosen = left[q.at].Name
		return true
	case "backspace", "ctrl+u":
		q.filter, q.at = erased(q.filter, key), 0
	default:
		if at, ok := moved(key, q.at, len(left)); ok {
			q.at = at
		} else if f := added(q.filter, typed); f != q.filter {
			q.filter, q.at = f, 0
		}
	}
	return false
}

func (q *One) lines(s style, height int) []string {
	q.begin()
	left := q.left()
	head := q.Title
	if q.filter != "" {
		head += "  " + q.filter
	}
	out := []string{s.paint(bold, s.line(head))}
	from, to := window(q.at, len(left), height-2)
	for i, x := range left[from:to] {
		out = append(out, s.item(x, from+i == q.at, "", longest(left)))
	}
	if len(left) == 0 {
		out = append(out, s.line("  nothing has that in it"))
	}
	return append(out, s.paint(dim, s.line(s.glyph("↑↓", "up, down:")+" choose   letters: find   Enter: take   Esc: end")))
}

// Ordered asks for one or more items in an order.
type Ordered struct {
	Title string
	Items []Item
	// Chosen is the initial choice and then the answer, with at least one item.
	Chosen []string

	at    int
	begun bool
	wrong string
}

// begin sorts the items before the first display.
func (q *Ordered) begin() {
	if q.begun {
		return
	}
	q.begun = true
	q.Items = slices.Clone(q.Items)
	q.Chosen = slices.Clone(q.Chosen)
	q.sort()
}

// sort puts the chosen items first, in their order, then the others by name.
func (q *Ordered) sort() {
	place := func(x Item) int {
		if i := slices.Index(q.Chosen, x.Name); i >= 0 {
			return i
		}
		return len(q.Chosen)
	}
	slices.SortStableFunc(q.Items, func(a, b Item) int {
		if d := place(a) - place(b); d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	})
}

func (q *Ordered) press(key, _ string) (done bool) {
	q.begin()
	q.wrong = ""
	if key == "enter" {
		if len(q.Chosen) == 0 {
			q.wrong = "choose one at least"
			return false
		}
		return true
	}
	if len(q.Items) == 0 {
		return false
	}
	name := q.Items[q.at].Name
	i := slices.Index(q.Chosen, name)
	to := i
	switch key {
	case "space":
		if i >= 0 {
			q.Chosen = slices.Delete(q.Chosen, i, i+1)
		} else {
			q.Chosen = append(q.Chosen, name)
		}
	case "shift+up", "-":
		to = i - 1
	case "shift+down", "+":
		to = i + 1
	default:
		q.at, _ = moved(key, q.at, len(q.Items))
		return false
	}
	if to != i && i >= 0 && to >= 0 && to < len(q.Chosen) {
		q.Chosen[i], q.Chosen[to] = q.Chosen[to], q.Chosen[i]
	}
	q.sort()
	q.at = slices.IndexFunc(q.Items, func(x Item) bool { return x.Name == name })
	return false
}

func (q *Ordered) lines(s style, height int) []string {
	q.begin()
	out := []string{s.paint(bold, s.line(q.Title))}
	from, to := window(q.at, len(q.Items), height-2)
	for i, x := range q.Items[from:to] {
		mark := "[ ] "
		if n := slices.Index(q.Chosen, x.Name); n >= 0 {
			mark = "[" + strconv.Itoa(n+1) + "] "
		}
		out = append(out, s.item(x, from+i == q.at, mark, longest(q.Items)))
	}
	if q.wrong != "" {
		return append(out, s.line(q.wrong))
	}
	return append(out, s.paint(dim, s.line(s.glyph("↑↓", "up, down:")+" choose   Space: take or leave   - +: earlier, later   Enter: done   Esc: end")))
}

// Text asks for a short text.
type Text struct {
	Title string
	// Value is the initial text and then the answer.
	Value string
	// Check, if not nil, returns an error for an invalid answer.
	Check func(string) error

	wrong string
}

func (q *Text) press(key, typed string) (done bool) {
	q.wrong = ""
	switch key {
	case "enter":
		q.Value = strings.TrimSpace(q.Value)
		if q.Check != nil {
			if err := q.Check(q.Value); err != nil {
				q.wrong = safetext.String(err.Error(), maxDescription)
				return false
			}
		}
		return true
	case "backspace", "ctrl+u":
		q.Value = erased(q.Value, key)
	default:
		q.Value = added(q.Value, typed)
	}
	return false
}

func (q *Text) lines(s style, _ int) []string {
	out := []string{s.paint(bold, s.line(q.Title)), s.line(s.glyph("› ", "> ") + q.Value)}
	if q.wrong != "" {
		return append(out, s.line(q.wrong))
	}
	return append(out, s.paint(dim, s.line("Enter: take   Esc: end")))
}

// item returns the line of an item in a list; wide is the width of the column of names.
func (s style) item(x Item, here bool, mark string, wide int) string {
	at := "  "
	if here {
		at = s.glyph("› ", "> ")
	}
	name := safetext.String(x.Name, maxName)
	words := safetext.String(strings.Join(strings.Fields(x.Description), " "), maxDescription)
	lead := s.line(at + mark + name)
	// Cut first: colour codes have no width.
	whole := s.line(strings.TrimRight(at+mark+name+strings.Repeat(" ", max(0, wide-safetext.Width(name)))+"  "+words, " "))
	rest := strings.TrimPrefix(whole, lead)
	sgr := x.SGR
	if here {
		sgr = strings.TrimPrefix(sgr+";"+bold, ";")
	}
	return s.paint(sgr, lead) + rest
}

// longest returns the width of the widest name.
func longest(items []Item) (n int) {
	for _, x := range items {
		n = max(n, safetext.Width(safetext.String(x.Name, maxName)))
	}
	return min(n, 30)
}

// moved returns the new position in a list of n items after a key; ok reports whether the
// key moves.
func moved(key string, at, n int) (to int, ok bool) {
	const page = 10
	switch key {
	case "up":
		at--
	case "down", "tab":
		at++
	case "pgup":
		at -= page
	case "pgdown":
		at += page
	case "home":
		at = 0
	case "end":
		at = n
	default:
		return at, false
	}
	return max(0, min(at, n-1)), true
}

// window returns which of n lines are shown around line at, with room for so many.
func window(at, n, room int) (from, to int) {
	room = max(1, room)
	from = max(0, min(at-room/2, n-room))
	return from, min(n, from+room)
}

// added returns s with the typed text appended, or s if that is unprintable or too long.
func added(s, typed string) string {
	if typed == "" || !safetext.Clean(typed) || len(s)+len(typed) > maxTyped {
		return s
	}
	return s + typed
}

func erased(s, key string) string {
	if key == "ctrl+u" {
		return ""
	}
	_, n := utf8.DecodeLastRuneInString(s)
	return s[:len(s)-n]
}
