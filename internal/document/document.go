// Package document reads the YAML documents that people write for carboy:
// strictly, and with a position for everything that is wrong in them.
//
// Ambiguous input is refused: unknown and repeated keys,
// anchors, aliases, merge keys, explicit tags, several documents in a file, and
// scalars of another type than asked for ("no" is never a boolean where a string
// is wanted, nor 0o17 a number). All problems are reported at once, up to a
// bound, in the order of the file. Size and depth are bounded, so a document may
// come from anybody.
//
// Start reading at [Parse] and [Value].
package document

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

const (
	// MaxSize bounds a document, in bytes.
	MaxSize = 1 << 20
	// maxDepth bounds how deep mappings and sequences are nested.
	maxDepth = 32
	// maxProblems bounds what is reported of one document.
	maxProblems = 20
)

// Problem is one thing that is wrong. Line and Column count from 1; 0 when the
// problem has no place.
type Problem struct {
	File   string `json:"file"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	Field  string `json:"field,omitempty"` // as in routes[2].host
	What   string `json:"problem"`
	Advice string `json:"advice,omitempty"`
}

func (p Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", p.Line, p.Column)
	}
	b.WriteString(": ")
	if p.Field != "" {
		b.WriteString(p.Field + ": ")
	}
	b.WriteString(p.What)
	if p.Advice != "" {
		b.WriteString("; " + p.Advice)
	}
	return b.String()
}

// Error lists the problems of one document, at least one.
type Error []Problem

func (e Error) Error() string {
	lines := make([]string, len(e))
	for i, p := range e {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives the problems, for errors.As.
func (e Error) Unwrap() []error {
	out := make([]error, len(e))
	for i, p := range e {
		out[i] = p
	}
	return out
}

// Document is a document that is being read. It is for one goroutine.
type Document struct {
	file     string
	problems []Problem
	more     int
}

// Value is a place in a document. Reading an absent place returns the empty value;
// [Value.Present] reports whether it was there.
type Value struct {
	d     *Document
	node  *yaml.Node
	field string
}

// CheckText checks a text before it is parsed: its size, and that it has no byte that
// readers interpret differently. The error is an [Error].
func CheckText(file string, data []byte) error {
	d := &Document{file: file}
	if len(data) > MaxSize {
		d.add(nil, "", fmt.Sprintf("larger than %d KiB", MaxSize>>10), "")
	} else if at := firstInvalid(data); at >= 0 {
		line, col := lineOf(data, at)
		d.problems = append(d.problems, Problem{File: file, Line: line, Column: col, What: "not UTF-8 text, or a control character that editors do not show"})
	}
	return d.Err()
}

// Parse reads one document. file is only its name in messages. The error is an
// [Error]. An empty document is an absent value.
func Parse(file string, data []byte) (*Document, Value, error) {
	d := &Document{file: file}
	root := Value{d: d}
	if err := CheckText(file, data); err != nil {
		d.problems = err.(Error)
		return d, root, err
	}
	var node yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	switch err := dec.Decode(&node); {
	case errors.Is(err, io.EOF):
		return d, root, nil
	case err != nil:
		d.problems = append(d.problems, syntax(file, err))
		return d, root, d.Err()
	}
	var second yaml.Node
	if err := dec.Decode(&second); err == nil {
		d.add(&second, "", "a second document in one file", "keep one, without ---")
		return d, root, d.Err()
	} else if !errors.Is(err, io.EOF) {
		d.problems = append(d.problems, syntax(file, err))
		return d, root, d.Err()
	}
	d.check(&node, "", 0)
	if err := d.Err(); err != nil {
		return d, root, err
	}
	if node.Kind == yaml.DocumentNode && len(node.Content) == 1 {
		root.node = node.Content[0]
	}
	if isNull(root.node) {
		root.node = nil
	}
	return d, root, nil
}

func firstInvalid(data []byte) int {
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && n == 1, r < ' ' && r != '\n' && r != '\r' && r != '\t', 0x7f <= r && r < 0xa0:
			return i
		case r == '\r' && (i+1 == len(data) || data[i+1] != '\n'), r == '\u2028', r == '\u2029':
			return i // YAML ends a line there, and a comment, and editors do not
		case '\u202a' <= r && r <= '\u202e', '\u2066' <= r && r <= '\u2069', r == '\ufeff' && i > 0:
			return i // shown in another order, or not at all
		}
		i += n
	}
	return -1
}

func lineOf(data []byte, at int) (line, col int) {
	before := data[:at]
	last := bytes.LastIndexByte(before, '\n')
	return bytes.Count(before, []byte("\n")) + 1, utf8.RuneCount(before[last+1:]) + 1
}

// syntax converts an error of the YAML library, with its position if it has one.
func syntax(file string, err error) Problem {
	p := Problem{File: file, What: "not YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}
	var le *yaml.LoadError
	if errors.As(err, &le) {
		p.What = "not YAML: " + le.Message
		if m := le.Mark; m.Line > 0 {
			p.Line, p.Column = m.Line, max(m.Column, 1)
		} else if m := le.ContextMark; m.Line > 0 {
			p.Line, p.Column = m.Line, max(m.Column, 1)
		}
	}
	return p
}

// check refuses ambiguous constructs everywhere in the document.
func (d *Document) check(n *yaml.Node, field string, depth int) {
	if depth > maxDepth {
		d.add(n, field, fmt.Sprintf("nested deeper than %d", maxDepth), "")
		return
	}
	if n.Anchor != "" || n.Kind == yaml.AliasNode {
		d.add(n, field, "anchors and aliases are not allowed", "write the value out")
		return
	}
	if n.Style&yaml.TaggedStyle != 0 {
		d.add(n, field, "tags such as "+strconv.Quote(n.Tag)+" are not allowed", "")
		return
	}
	switch n.Kind {
	case yaml.MappingNode:
		seen := map[string]int{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			k, v := n.Content[i], n.Content[i+1]
			if k.Kind != yaml.ScalarNode || k.ShortTag() == "!!null" || k.Value == "<<" {
				d.add(k, field, "a key is a plain word", "")
				continue
			}
			f := join(field, k.Value)
			if line, ok := seen[k.Value]; ok {
				d.add(k, f, fmt.Sprintf("given twice; the first is in line %d", line), "")
				continue
			}
			seen[k.Value] = k.Line
			if k.Anchor != "" || k.Style&yaml.TaggedStyle != 0 {
				d.add(k, f, "anchors and tags are not allowed", "")
			}
			d.check(v, f, depth+1)
		}
	case yaml.SequenceNode:
		for i, v := range n.Content {
			d.check(v, fmt.Sprintf("%s[%d]", field, i), depth+1)
		}
	case yaml.DocumentNode:
		for _, v := range n.Content {
			d.check(v, field, depth)
		}
	}
}

func join(field, key string) string {
	if field == "" {
		return key
	}
	return field + "." + key
}

func isNull(n *yaml.Node) bool {
	return n == nil || n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

func (d *Document) add(n *yaml.Node, field, what, advice string) {
	if len(d.problems) >= maxProblems {
		d.more++
		return
	}
	p := Problem{File: d.file, Field: field, What: what, Advice: advice}
	if n != nil {
		p.Line, p.Column = n.Line, n.Column
	}
	d.problems = append(d.problems, p)
}

// Err returns nil, or an [Error] with all problems so far, in the file's order.
func (d *Document) Err() error {
	if len(d.problems) == 0 {
		return nil
	}
	e := slices.Clone(d.problems)
	slices.SortStableFunc(e, func(a, b Problem) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	if d.more > 0 {
		e = append(e, Problem{File: d.file, What: fmt.Sprintf("and %d more", d.more)})
	}
	return Error(e)
}

// File returns the document's name.
func (v Value) File() string { return v.d.file }

// Present reports whether the value is in the document.
func (v Value) Present() bool { return v.node != nil }

// Line returns the line, from 1, or 0 if the value is absent.
func (v Value) Line() int {
	if v.node == nil {
		return 0
	}
	return v.node.Line
}

// Column returns the column, from 1, or 0 if the value is absent.
func (v Value) Column() int {
	if v.node == nil {
		return 0
	}
	return v.node.Column
}

// IsEmpty reports whether the value is present and an empty mapping or list.
func (v Value) IsEmpty() bool {
	return v.node != nil && (v.node.Kind == yaml.MappingNode || v.node.Kind == yaml.SequenceNode) && len(v.node.Content) == 0
}

// Field returns the path of the value, such as routes[2].host.
func (v Value) Field() string { return v.field }

// Bad reports that something is wrong with the value. advice may be empty.
func (v Value) Bad(what, advice string) { v.d.add(v.node, v.field, what, advice) }

func (v Value) wanted(what string) {
	v.d.add(v.node, v.field, "wanted "+what+", not "+kindOf(v.node), "")
}

func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!null":
		return "nothing"
	case "!!bool":
		return fmt.Sprintf("the boolean %s", clip(n.Value))
	case "!!int", "!!float":
		return fmt.Sprintf("the number %s", clip(n.Value))
	case "!!timestamp":
		return fmt.Sprintf("the time %s", clip(n.Value))
	}
	return fmt.Sprintf("the text %q", clip(n.Value))
}

func clip(s string) string {
	if r := []rune(s); len(r) > 40 {
		return string(r[:40]) + "…"
	}
	return s
}

// Mapping is a value that has keys.
type Mapping struct {
	v      Value
	values map[string]Value
}

// Mapping reads a mapping of which only these keys are known; others are
// reported, with the nearest known one. Of an absent value every key is absent.
func (v Value) Mapping(known ...string) Mapping { return v.MappingWithout(nil, known...) }

// MappingWithout is Mapping where some keys were known once: of these it says what
// to write instead.
func (v Value) MappingWithout(gone map[string]string, known ...string) Mapping {
	m := Mapping{v: v, values: map[string]Value{}}
	if v.node == nil {
		return m
	}
	if v.node.Kind != yaml.MappingNode {
		v.wanted("a mapping")
		return m
	}
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		k := v.node.Content[i]
		if !slices.Contains(known, k.Value) {
			if advice, ok := gone[k.Value]; ok {
				v.d.add(k, join(v.field, k.Value), "this key is not used", advice)
				continue
			}
			advice := "known: " + strings.Join(known, ", ")
			if near := Nearest(k.Value, known); near != "" {
				advice = "did you mean " + near + "? (" + advice + ")"
			}
			v.d.add(k, join(v.field, k.Value), "unknown key", advice)
			continue
		}
		m.values[k.Value] = v.child(v.node.Content[i+1], join(v.field, k.Value))
	}
	return m
}

// Entries reads a mapping with keys of any name, in the file's order.
func (v Value) Entries() (keys []string, values []Value) { return v.entries(v.child) }

// EntriesOrEmpty does what Entries does, but takes a key without a value as the empty
// text.
func (v Value) EntriesOrEmpty() (keys []string, values []Value) {
	return v.entries(func(n *yaml.Node, field string) Value {
		if isNull(n) {
			n = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Line: n.Line, Column: n.Column}
		}
		return Value{d: v.d, node: n, field: field}
	})
}

func (v Value) entries(child func(*yaml.Node, string) Value) (keys []string, values []Value) {
	if v.node == nil {
		return nil, nil
	}
	if v.node.Kind != yaml.MappingNode {
		v.wanted("a mapping")
		return nil, nil
	}
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		k := v.node.Content[i].Value
		keys = append(keys, k)
		values = append(values, child(v.node.Content[i+1], join(v.field, k)))
	}
	return keys, values
}

func (v Value) child(n *yaml.Node, field string) Value {
	if isNull(n) {
		// "key:" with nothing behind it is a person who is not done.
		v.d.add(n, field, "has no value", "")
		n = nil
	}
	return Value{d: v.d, node: n, field: field}
}

// Get returns the value of a key, which must be one of those given to Mapping.
func (m Mapping) Get(key string) Value {
	if v, ok := m.values[key]; ok {
		return v
	}
	return Value{d: m.v.d, field: join(m.v.field, key)}
}

// Need is Get of a required key. An empty document lacks it too; a mapping that may
// itself be left out does not.
func (m Mapping) Need(key string) Value {
	v := m.Get(key)
	if m.v.node == nil && m.v.field == "" {
		m.v.d.add(&yaml.Node{Line: 1, Column: 1}, "", "holds nothing, and needs "+key, "")
	}
	if !v.Present() && m.v.node != nil && m.v.node.Kind == yaml.MappingNode {
		m.v.d.add(m.v.node, m.v.field, "needs "+key, "")
	}
	return v
}

// List reads a sequence. An absent value is empty.
func (v Value) List() []Value {
	if v.node == nil {
		return nil
	}
	if v.node.Kind != yaml.SequenceNode {
		v.wanted("a list")
		return nil
	}
	out := make([]Value, len(v.node.Content))
	for i, n := range v.node.Content {
		out[i] = v.child(n, fmt.Sprintf("%s[%d]", v.field, i))
	}
	return out
}

// Strings reads a list of strings, each at most once.
func (v Value) Strings() []string {
	var out []string
	for _, e := range v.List() {
		s := e.Text()
		if slices.Contains(out, s) {
			e.Bad("given twice", "")
			continue
		}
		out = append(out, s)
	}
	return out
}

// IsList reports whether the value is a sequence.
func (v Value) IsList() bool { return v.node != nil && v.node.Kind == yaml.SequenceNode }

// IsEmptyText reports whether the value is text without a character.
func (v Value) IsEmptyText() bool {
	return v.node != nil && v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!str" && v.node.Value == ""
}

// IsFalse reports whether the value is the boolean false.
func (v Value) IsFalse() bool {
	return v.node != nil && v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!bool" && v.node.Value == "false"
}

// Text reads text. A number, boolean or time without quotes is none.
func (v Value) Text() string {
	if v.node == nil {
		return ""
	}
	if v.node.Kind != yaml.ScalarNode || v.node.ShortTag() != "!!str" {
		v.wanted("text (in quotes where it looks like something else)")
		return ""
	}
	return v.node.Value
}

// Plain returns a scalar's characters, in quotes or not; false: it is none.
func (v Value) Plain() (string, bool) {
	if v.node == nil || v.node.Kind != yaml.ScalarNode {
		return "", false
	}
	return v.node.Value, true
}

// Bool reads true or false, and no other word for them.
func (v Value) Bool(absent bool) bool {
	if v.node == nil {
		return absent
	}
	if v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!bool" && (v.node.Value == "true" || v.node.Value == "false") {
		return v.node.Value == "true"
	}
	v.wanted("true or false")
	return absent
}

// Int reads a decimal number from min to max.
func (v Value) Int(absent, min, max int64) int64 {
	if v.node == nil {
		return absent
	}
	n, err := strconv.ParseInt(v.node.Value, 10, 64)
	if v.node.Kind != yaml.ScalarNode || v.node.ShortTag() != "!!int" || err != nil || strconv.FormatInt(n, 10) != v.node.Value {
		v.wanted("a whole number")
		return absent
	}
	if n < min || n > max {
		limit := fmt.Sprintf("from %d to %d", min, max)
		if max == math.MaxInt64 {
			limit = fmt.Sprintf("of at least %d", min)
		}
		v.Bad("wanted a number "+limit, "")
		return absent
	}
	return n
}

// Size reads a number of bytes above zero: a whole number, or text with a unit, as
// in 8GiB. 0 when it is absent or wrong.
func (v Value) Size() int64 {
	if v.node == nil {
		return 0
	}
	if v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!int" {
		return v.Int(0, 1, math.MaxInt64/4)
	}
	s := v.Text()
	if s == "" {
		return 0
	}
	n, err := ParseSize(s)
	if err != nil {
		v.Bad(err.Error(), "write it as in 8GiB")
	}
	return n
}

// Duration reads a time above zero, as in 30m. 0 when it is absent or wrong.
func (v Value) Duration() time.Duration {
	s := v.Text()
	if s == "" {
		return 0
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		v.Bad(fmt.Sprintf("%q is no time", clip(s)), "write it as in 30m or 1h30m")
		return 0
	case d <= 0:
		v.Bad("must be above zero", "")
		return 0
	}
	return d
}

// OneOf reads one of some words; the first is what an absent value means.
func (v Value) OneOf(words ...string) string {
	if v.node == nil {
		return words[0]
	}
	s := v.Text()
	if slices.Contains(words, s) {
		return s
	}
	if s != "" {
		v.Bad(fmt.Sprintf("%q is none of %s", clip(s), strings.Join(words, ", ")), "")
	}
	return words[0]
}

// OneOfFold is OneOf in any case of letters.
func (v Value) OneOfFold(words ...string) string {
	if v.node != nil && v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!str" {
		for _, w := range words {
			if strings.EqualFold(w, v.node.Value) {
				return w
			}
		}
	}
	return v.OneOf(words...)
}

// Nearest returns the word that s most likely misspells, or "".
func Nearest(s string, words []string) string {
	best, least := "", max(1, len(s)/3)+1
	for _, w := range words {
		if d := distance(s, w); d < least {
			best, least = w, d
		}
	}
	return best
}

// distance returns the number of letters inserted, deleted, replaced or exchanged
// with their neighbour (optimal string alignment).
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return math.MaxInt
	}
	prev2, prev := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], prev2[j-2]+1)
			}
		}
		prev2, prev = prev, row
	}
	return prev[len(b)]
}
