package macos

import (
	"strings"

	"github.com/carboy/carboy/internal/macos/start"
)

// Command is one start of a program, as a person could type it.
type Command struct {
	Program start.Program
	Args    []string
	Input   string // the file that is its standard input; empty: none
}

// String returns the command as a line for a shell.
func (c Command) String() string {
	words := []string{string(c.Program)}
	for _, a := range c.Args {
		words = append(words, quote(a))
	}
	line := strings.Join(words, " ")
	if c.Input != "" {
		line += " <" + quote(c.Input)
	}
	return line
}

// plain are the characters that no shell treats in a special way.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,+@%"

// quote returns s as one word of a shell. Control characters are written as escapes.
func quote(s string) string {
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	special := strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
	if !special {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	var b strings.Builder
	b.WriteString("$'")
	for i := range len(s) {
		switch c := s[i]; {
		case c == '\'' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c == 0x7f:
			const digits = "01234567"
			b.WriteString(`\` + string(digits[c>>6]) + string(digits[c>>3&7]) + string(digits[c&7]))
		default:
			b.WriteByte(c)
		}
	}
	return b.String() + "'"
}
