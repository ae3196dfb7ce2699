package trace

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Filter selects facts. The zero Filter selects all.
type Filter struct {
	Kinds  []FactKind
	Paths  []Glob // any of them
	Denied bool   // only refused operations
	PIDs   []uint32
}

// Match reports whether f is selected.
func (x *Filter) Match(f *Fact) bool {
	return (len(x.Kinds) == 0 || slices.Contains(x.Kinds, f.Op.Kind())) && (len(x.PIDs) == 0 || slices.Contains(x.PIDs, f.PID)) &&
		(!x.Denied || f.Denied()) && (len(x.Paths) == 0 || x.path(f))
}

func (x *Filter) path(f *Fact) bool {
	for _, g := range x.Paths {
		if g.match(f.Path) || f.Path2 != "" && g.match(f.Path2) {
			return true
		}
	}
	return false
}

// Denied reports whether f is an operation that was not permitted.
func (f *Fact) Denied() bool {
	switch unix.Errno(f.Errno) {
	case unix.EACCES, unix.EPERM, unix.EROFS:
		return true
	}
	return f.Op == Refused && f.Errno != 0
}

// Glob is a pattern for paths, see ParseGlob.
type Glob struct {
	re   *regexp.Regexp
	base bool
}

// ParseGlob parses a pattern: * matches anything but slashes, ** anything, ?
// one character, [a-z] one of these. A pattern without a slash matches the last
// element alone. A pattern matches what it names and everything below.
func ParseGlob(s string) (Glob, error) {
	if s == "" {
		return Glob{}, fmt.Errorf("the pattern is empty")
	}
	if _, err := path.Match(s, ""); err != nil {
		return Glob{}, fmt.Errorf("%q is not a pattern: a bracket or a backslash stands alone", s)
	}
	var b strings.Builder
	b.WriteString("(?s)^")
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case strings.HasPrefix(s[i:], "**"):
			b.WriteString(".*")
			i++
		case c == '*':
			b.WriteString("[^/]*")
		case c == '?':
			b.WriteString("[^/]")
		case c == '[':
			end := i + 1 + strings.IndexByte(s[i+1:], ']')
			b.WriteString(s[i : end+1])
			i = end
		case c == '\\' && i+1 < len(s):
			i++
			b.WriteString(regexp.QuoteMeta(s[i : i+1]))
		default:
			b.WriteString(regexp.QuoteMeta(s[i : i+1]))
		}
	}
	g := Glob{base: !strings.Contains(s, "/")}
	end := "$"
	if !g.base {
		end = "(/.*)?$"
	}
	var err error
	if g.re, err = regexp.Compile(strings.TrimSuffix(b.String(), "/") + end); err != nil {
		return Glob{}, fmt.Errorf("%q is not a pattern", s)
	}
	return g, nil
}

// match reports whether g matches p.
func (g Glob) match(p string) bool {
	if g.base {
		p = p[strings.LastIndexByte(p, '/')+1:]
	}
	return g.re.MatchString(p)
}
