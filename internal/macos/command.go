package macos

import (
	"strings"

	"github.com/carboy/carboy/internal/macos/start"
	"github.com/carboy/carboy/internal/safetext"
)

// Command is one start of a program, as a person could type it.
type Command struct {
	Program start.Program
	Args    []string
	Input   string // the file that is its standard input; empty: none
}

// String returns the command as a line for a shell. It is not safe to show.
func (c Command) String() string {
	line := string(c.Program)
	for _, a := range c.Args {
		line += " " + word(a)
	}
	if c.Input != "" {
		line += " <" + word(c.Input)
	}
	return line
}

// plain are the characters that no shell treats in a special way.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,+@%"

// word returns s as one word of a shell, without quotes where it needs none.
func word(s string) string {
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return safetext.Word(s)
}
