package remote

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/carboy/carboy/internal/ship/module"
)

// Quote makes one word of s for a POSIX shell, whatever s holds: nothing in it is
// expanded, and it reads back as s. A zero byte, which no shell can hold, is an
// error. It is the only way of a value into a script.
func Quote(s string) (string, error) {
	if strings.IndexByte(s, 0) >= 0 {
		return "", fmt.Errorf("quote: %.40q has a zero byte", s)
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'", nil
}

var variable = module.NewPattern(`^[a-z][a-z0-9_]{0,31}$`)

// Assign gives the variables of a script their values, one line each, in the order
// of the names.
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

// command is all that the login shell over there ever reads: a program that takes as
// many bytes of its input for its script. It has no character that the common shells
// read differently.
func command(script string) string {
	return `exec sh -c 'eval "$(head -c ` + strconv.Itoa(len(script)) + `)"'`
}
