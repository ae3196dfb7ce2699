package trace

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Filter chooses facts. The zero Filter chooses all.
type Filter struct {
	Kinds  []Kind
	Paths  []Glob // any of them
	Denied bool   // only what was not permitted
	PIDs   []uint32
}

// Match reports whether f is chosen.
func (x *Filter) Match(f *Fact) bool {
	return (len(x.Kinds) == 0 || slices.Contains(x.Kinds, f.Op.Kind())) && (len(x.PIDs) == 0 || slices.Contains(x.PIDs, f.PID)) &&
		(!x.Denied || f.Denied()) && (len(x.Paths) == 0 || x.path(f))
}

func (x *Filter) path(f *Fact) bool {
	for _, g := range x.Paths {
		if g.Match(f.Path) || f.Path2 != "" && g.Match(f.Path2) {
			return true
		}
	}
	return false
}

// Denied reports whether f is something that was not permitted.
func (f *Fact) Denied() bool {
	switch unix.Errno(f.Errno) {
	case unix.EACCES, unix.EPERM, unix.EROFS:
		return true
	}
	return f.Op == Refused && f.Errno != 0
}

// Glob is a pattern for paths. See ParseGlob.
type Glob struct {
	re   *regexp.Regexp
	base bool
}

// ParseGlob reads a pattern: * stands for anything but slashes, ** for anything,
// ? for one character, [a-z] for one of those. Without a slash it is for the last
// element alone. What it names, and what lies below it, matches.
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

// Match reports whether p is meant.
func (g Glob) Match(p string) bool {
	if g.base {
		p = p[strings.LastIndexByte(p, '/')+1:]
	}
	return g.re.MatchString(p)
}
