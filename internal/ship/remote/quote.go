package remote

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/ship/module"
)

// Quote returns s as one word of a POSIX shell, which expands nothing in it. It returns an
// error if s has a zero byte, which shells do not support. Every value in a script must go
// through Quote.
func Quote(s string) (string, error) {
	if strings.IndexByte(s, 0) >= 0 {
		return "", fmt.Errorf("quote: %.40q has a zero byte", s)
	}
	return safetext.Word(s), nil
}

var variable = module.NewPattern(`^[a-z][a-z0-9_]{0,31}$`)

// Assign returns shell assignments of the named variables, one per line, in the order of
// names.
func Assign(names []string, values map[string]string) (string, error) {
	var b strings.Builder
	for _, n := range names {
		v, ok := values[n]
		if !ok || !variable.MatchString(n) {
			return "", fmt.Errorf("script: no value for variable %q", n)
		}
		q, err := Quote(v)
		if err != nil {
			return "", fmt.Errorf("script: variable %s: %w", n, err)
		}
		b.WriteString(n + "=" + q + "\n")
	}
	return b.String(), nil
}

// command returns the command line for the host's login shell: it reads the script from
// its standard input, by length, and evaluates it with sh. All common shells parse this
// line alike.
func command(script string) string {
	return `exec sh -c 'eval "$(head -c ` + strconv.Itoa(len(script)) + `)"'`
}
