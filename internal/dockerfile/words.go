package dockerfile

import (
	"errors"
	"fmt"
	"strings"
)

// split splits a text into words, at spaces outside of quotes. It keeps quotes and escapes.
func split(text string, escape byte) (out []string, err error) {
	var b strings.Builder
	var quote byte
	flush := func() {
		if b.Len() > 0 {
			out = append(out, b.String())
			b.Reset()
		}
	}
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == escape && quote != '\'' && i+1 < len(text):
			b.WriteByte(c)
			i++
			b.WriteByte(text[i])
			continue
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case quote == 0 && (c == ' ' || c == '\t'):
			flush()
			continue
		}
		b.WriteByte(c)
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote %c does not end", quote)
	}
	flush()
	return out, nil
}

// Expand replaces the variables of a word as a shell does, and removes its quotes. lookup
// reports whether a variable is set.
func (s *Step) Expand(word string, lookup func(name string) (string, bool)) (string, error) {
	x := &expander{text: word, escape: s.escape, lookup: lookup}
	out, err := x.until(0)
	if errors.Is(err, errPattern) {
		return "", s.foreign("%.80q: %v", word, err)
	}
	if err != nil {
		return "", s.Bad("%.80q: %v", word, err)
	}
	return out, nil
}

var errPattern = errors.New("patterns in variables are not known here")

type expander struct {
	text   string
	at     int
	depth  int
	escape byte
	lookup func(string) (string, bool)
}

// until expands up to the byte end, which it skips; 0: all.
func (x *expander) until(end byte) (string, error) {
	var b strings.Builder
	quoted := false
	for x.at < len(x.text) {
		c := x.text[x.at]
		x.at++
		switch {
		case c == end && end != 0 && !quoted:
			return b.String(), nil
		case c == x.escape:
			if x.at == len(x.text) {
				b.WriteByte(c)
				continue
			}
			next := x.text[x.at]
			x.at++
			if quoted && next != '"' && next != '$' && next != x.escape {
				b.WriteByte(c)
			}
			b.WriteByte(next)
		case c == '"':
			quoted = !quoted
		case c == '\'' && !quoted:
			i := strings.IndexByte(x.text[x.at:], '\'')
			if i < 0 {
				return "", errors.New("a quote does not end")
			}
			b.WriteString(x.text[x.at : x.at+i])
			x.at += i + 1
		case c == '$':
			v, err := x.variable()
			if err != nil {
				return "", err
			}
			b.WriteString(v)
		default:
			b.WriteByte(c)
		}
	}
	switch {
	case quoted:
		return "", errors.New("a quote does not end")
	case end != 0:
		return "", errors.New("a brace is not closed")
	}
	return b.String(), nil
}

// maxDepth bounds variables within the defaults of variables.
const maxDepth = 20

// variable expands what follows a dollar sign.
func (x *expander) variable() (string, error) {
	if x.at == len(x.text) || x.text[x.at] != '{' {
		name := x.name()
		if name == "" {
			return "$", nil
		}
		v, _ := x.lookup(name)
		return v, nil
	}
	x.at++
	name := x.name()
	if name == "" || x.at == len(x.text) {
		return "", errors.New("${ has no name, or is not closed")
	}
	if x.depth++; x.depth > maxDepth {
		return "", errors.New("variables are nested too deeply")
	}
	defer func() { x.depth-- }()
	v, set := x.lookup(name)
	c := x.text[x.at]
	x.at++
	if c == '}' {
		return v, nil
	}
	if c == ':' {
		if set = v != ""; x.at == len(x.text) {
			return "", errors.New("a brace is not closed")
		}
		c = x.text[x.at]
		x.at++
	}
	if strings.IndexByte("-+?", c) < 0 {
		return "", errPattern
	}
	other, err := x.until('}')
	switch {
	case err != nil:
		return "", err
	case c == '+' && set, c == '-' && !set:
		return other, nil
	case c == '+':
		return "", nil
	case c == '?' && !set:
		return "", fmt.Errorf("%s is not set: %s", name, other)
	}
	return v, nil
}

// name returns the name of a variable that comes next.
func (x *expander) name() string {
	from := x.at
	for x.at < len(x.text) {
		c := x.text[x.at]
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (x.at == from || c < '0' || c > '9') {
			break
		}
		x.at++
	}
	return x.text[from:x.at]
}
