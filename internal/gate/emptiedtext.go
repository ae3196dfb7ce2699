package gate

import (
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/text/unicode/norm"
)

// pythonNewline is of what ends a line, and a comment, as LF does.
var pythonNewline = sync.OnceValue(func() *strings.Replacer { return strings.NewReplacer("\r\n", "\n", "\r", "\n") })

// inside is what a place of a text is in: a string, or code that a string has in it.
type inside struct {
	end   string // of a string; empty: it is code
	codes bool   // of a string: it can have code in it
	depth int    // of code: in how many brackets
}

// pythonCode is a text without its comments and without what its strings say. Lines end
// where they did, but for those that end in a string.
func pythonCode(s string) string {
	out := make([]byte, 0, len(s))
	var in []inside
	top := func() *inside {
		if len(in) == 0 {
			return &inside{}
		}
		return &in[len(in)-1]
	}
	for i := 0; i < len(s); {
		rest, at := s[i:], top()
		if s[i] == '\n' {
			if at.end == `"` || at.end == "'" {
				in = in[:len(in)-1] // it was none, but an apostrophe
			}
			if len(in) == 0 {
				out = append(out, '\n')
			}
			i++
			continue
		}
		if at.end != "" {
			switch {
			case strings.HasPrefix(rest, at.end):
				i += len(at.end)
				spec := at.end == "}"
				in = in[:len(in)-1]
				if spec {
					in = in[:len(in)-1] // and what it is the form of
				}
			case at.codes && at.end != "}" && strings.HasPrefix(rest, "{{"):
				i += 2
			case at.codes && rest[0] == '{':
				i++
				in = append(in, inside{})
			case rest[0] == '\\' && !(at.codes && strings.HasPrefix(rest[1:], "{")):
				i += 2 // also a line's end, behind which the string goes on
			default:
				i++
			}
			continue
		}
		quote := ""
		switch {
		case rest[0] == '#':
			n := strings.IndexByte(rest, '\n')
			if n < 0 {
				return string(out)
			}
			i += n
			continue
		case strings.HasPrefix(rest, `"""`), strings.HasPrefix(rest, "'''"):
			quote = rest[:3]
		case rest[0] == '"', rest[0] == '\'':
			quote = rest[:1]
		}
		if quote != "" {
			if len(in) == 0 {
				out = append(out, '"', '"')
			}
			in = append(in, inside{end: quote, codes: formats(s[:i])})
			i += len(quote)
			continue
		}
		i++
		if len(in) == 0 {
			out = append(out, rest[0])
			continue
		}
		switch rest[0] {
		case '{', '(', '[':
			at.depth++
		case ')', ']':
			at.depth--
		case '}':
			if at.depth--; at.depth < 0 {
				in = in[:len(in)-1]
			}
		case ':':
			if at.depth == 0 {
				in = append(in, inside{end: "}", codes: true})
			}
		}
	}
	return string(out)
}

// formats reports whether what stands before a string of Python's says that it has code
// in it.
func formats(before string) bool {
	word := before[max(0, len(before)-3):]
	i := len(word)
	for i > 0 && (word[i-1] == '_' || word[i-1] >= 0x80 || word[i-1]|0x20 >= 'a' && word[i-1]|0x20 <= 'z' || word[i-1] >= '0' && word[i-1] <= '9') {
		i--
	}
	return slices.Contains([]string{"f", "t", "fr", "rf", "tr", "rt"}, strings.ToLower(word[i:]))
}

var (
	pythonDef   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(?:async\s+)?def\s+([^\s(\[]+)`) })
	pythonClass = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^class\s+([^\s(\[:]+)`) })
	// pythonBinding is what has names in it that are bound, beside targets of assignments.
	pythonBinding = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`\b(?:import\b.*|as\b\s*\(?[\pL\pM\pN\p{Pc}]+|for\b.*?\bin\b)|[\pL\pM\pN\p{Pc}]+\s*:=`)
	})
	pythonTest   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:^|[\s,(*:;])(test[\pL\pM\pN\p{Pc}]*)`) })
	pythonCoding = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(?:[^\n]*\n)?[ \t\f]*#[^\n]*?coding[:=][ \t]*([-\w.]+)`)
	})
)

// pythonBinds are the names of tests that a statement gives to something else.
func pythonBinds(s string) (names []string) {
	parts := pythonBinding().FindAllString(s, -1)
	depth, targets := 0, 0
	for i := range len(s) {
		switch s[i] {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth--
		case '=':
			if depth == 0 && (i == 0 || !strings.Contains("=!<>:", s[i-1:i])) && !strings.HasPrefix(s[i+1:], "=") {
				targets = i
			}
		}
	}
	for _, part := range append(parts, s[:targets]) {
		for _, m := range pythonTest().FindAllStringSubmatch(part, -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// scope is a class or a function of Python's, by how far it is indented.
type scope struct {
	indent int
	name   string
	fn     *pythonFunction // nil: it is in none
}

// pythonFunction is a test, or another function that stands in none: what is done in it,
// and what it calls.
type pythonFunction struct {
	name   string
	test   bool
	is     body
	calls  []string
	skips  bool // and does nothing before
	begins int  // how far its first statement is indented
}

// pythonBodies knows tests by their names and those of what they are in.
func pythonBodies(b []byte) (map[string][]body, error) {
	text := pythonNewline().Replace(strings.TrimPrefix(string(b), "\ufeff"))
	if m := pythonCoding().FindStringSubmatch(text); m != nil && !slices.Contains([]string{"utf-8", "utf8", "ascii", "us-ascii", "latin-1", "latin1", "iso-8859-1"}, strings.ReplaceAll(strings.ToLower(m[1]), "_", "-")) {
		return nil, fmt.Errorf("it says to be in %s, and should be in utf-8", m[1])
	}
	found, all, names := map[string][]*pythonFunction{}, map[string][]*pythonFunction{}, nameSum{of: len(b)}
	var in []scope
	dead := -1 // lines that are indented so far or more never run
	// Names are the same for Python that are so in this form.
	for indent, text := range pythonLines(norm.NFKC.String(pythonCode(text))) {
		for len(in) > 0 && indent <= in[len(in)-1].indent {
			in = in[:len(in)-1]
		}
		if dead >= 0 && indent >= dead {
			continue
		}
		dead = -1
		at := scope{indent: -1}
		if len(in) > 0 {
			at = in[len(in)-1]
		}
		within := func(name string) string { return strings.TrimPrefix(at.name+"."+name, ".") }
		if m := pythonDef().FindStringSubmatch(text); m != nil {
			at.begins(indent)
			s := scope{indent, within(m[1]), at.fn}
			if err := names.add(s.name); err != nil {
				return nil, err
			}
			if test := strings.HasPrefix(m[1], "test"); at.fn == nil || test && !at.fn.test {
				s.fn = &pythonFunction{name: m[1], test: test, begins: -1}
				if test {
					found[s.name] = append(found[s.name], s.fn)
				}
				all[m[1]] = append(all[m[1]], s.fn)
			}
			s.fn.see(indent+1, pythonSuite(text))
			in = append(in, s)
			continue
		}
		if m := pythonClass().FindStringSubmatch(text); m != nil {
			at.begins(indent)
			if err := names.add(within(m[1])); err != nil {
				return nil, err
			}
			in = append(in, scope{indent, within(m[1]), at.fn})
			continue
		}
		if never := pythonNever().FindString(text); never != "" {
			dead = indent + 1
			continue
		}
		if at.fn == nil {
			for _, name := range pythonBinds(text) {
				if err := names.add(within(name)); err != nil {
					return nil, err
				}
				found[within(name)] = append(found[within(name)], &pythonFunction{is: empty})
			}
			continue
		}
		if word, rest, _ := strings.Cut(text, " "); text == "return" || word == "return" || word == "break" || word == "continue" {
			dead = indent
			text = strings.TrimSpace(rest)
		}
		if at.fn.see(indent, text); at.fn.skips && indent <= at.fn.begins {
			dead = indent
		}
	}
	pythonHelped(all)
	out := map[string][]body{}
	for name, list := range found {
		for _, f := range list {
			// One that only skips is no test that passes, unless what skips is something else.
			if !f.skips || f.is > empty {
				out[name] = append(out[name], f.is)
			}
		}
	}
	return out, nil
}

// pythonHelped finds functions that call one of the file's that checks. One of several of
// a name does if all do.
func pythonHelped(all map[string][]*pythonFunction) {
	callers, left := map[string][]*pythonFunction{}, map[string]int{} // that don't
	var next []string
	for name, list := range all {
		for _, f := range list {
			if f.is < checks {
				left[name]++
				for _, c := range f.calls {
					callers[c] = append(callers[c], f)
				}
			}
		}
		if left[name] == 0 {
			next = append(next, name)
		}
	}
	for len(next) > 0 {
		name := next[len(next)-1]
		next = next[:len(next)-1]
		for _, f := range callers[name] {
			if f.is < helped {
				f.is = helped
				if left[f.name]--; left[f.name] == 0 {
					next = append(next, f.name)
				}
			}
		}
	}
}

func (s scope) begins(indent int) {
	if s.fn != nil && s.fn.begins < 0 {
		s.fn.begins = indent
	}
}

// see takes a statement.
func (f *pythonFunction) see(indent int, text string) {
	if f.begins < 0 && text != "" {
		f.begins = indent
	}
	switch {
	case f.skips && indent <= f.begins:
	case f.is <= empty && indent <= f.begins && pythonSkip().MatchString(text):
		f.skips = true
	case !meansSomething(text):
		f.is = max(f.is, empty)
	case pythonCheck().MatchString(text):
		f.is = checks
	default:
		f.is = max(f.is, runs)
		if f.is < checks {
			for _, m := range pythonCall().FindAllStringSubmatch(text, -1) {
				f.calls = append(f.calls, m[1])
			}
		}
	}
}

// pythonSuite is what stands in the line of a function behind its colon.
func pythonSuite(s string) string {
	depth := 0
	for i := range len(s) {
		switch s[i] {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth--
		case ':':
			if depth == 0 {
				return strings.TrimSpace(s[i+1:])
			}
		}
	}
	return ""
}

// pythonLines are statements, by how far they are indented: what stands in brackets, and
// behind a line's backslash, is of the line before.
func pythonLines(s string) iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		var text strings.Builder
		indent, depth, more := 0, 0, false
		for line := range strings.Lines(s + "\n\n") {
			t := strings.TrimSpace(line)
			begins := more && (pythonDef().MatchString(t) || pythonClass().MatchString(t)) // so the brackets before were none
			if text.Len() > 0 && (!more || begins) {
				if !yield(indent, text.String()) {
					return
				}
				text.Reset()
				depth = 0
			}
			if text.Len() == 0 {
				indent = 0
				for _, c := range line[:len(line)-len(strings.TrimLeft(line, " \t\f"))] {
					if indent++; c == '\f' {
						indent = 0
					}
				}
			} else if t != "" {
				text.WriteByte(' ')
			}
			for _, c := range []byte(t) {
				switch c {
				case '(', '[', '{':
					depth++
				case ')', ']', '}':
					depth = max(0, depth-1)
				}
			}
			on := strings.HasSuffix(t, `\`)
			text.WriteString(strings.TrimSpace(strings.TrimSuffix(t, `\`)))
			more = depth > 0 || on
		}
		if text.Len() > 0 {
			yield(indent, text.String())
		}
	}
}

var (
	// pythonCheck is what says that a test failed, by the names that people give it.
	pythonCheck = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?i)\b(?:assert|raise)\b|(?:assert|raises|warns|check|verify|expect|should|fail)\w*\s*\(`)
	})
	// pythonSkip is a statement that lets a test pass for none.
	pythonSkip = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(?:pytest\.skip\(|self\.skipTest\(|raise\s+(?:unittest\.)?SkipTest\b)`)
	})
	pythonCall  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`([\pL\pM\pN\p{Pc}]+)\s*\(`) })
	pythonNever = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(?:el)?(?:if|while)\s*\(?\s*(?:False|0|None|not True)\s*\)?\s*:`)
	})
	pythonAlways = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^assert\b\s*\(?(?:True|1|not False|.*\bor\s+(?:True|1))\)?\s*(?:,.*)?$`)
	})
)

func meansSomething(s string) bool {
	switch {
	case s == "", s == "pass", s == "...", s == "return", s == "return None", s == ")", s == "):", strings.HasPrefix(s, "#"), strings.HasPrefix(s, `"`), strings.HasPrefix(s, "'"):
		return false
	}
	return s != "None" && s != "True" && !pythonAlways().MatchString(s)
}

// pythonExplains reports whether a class of a text has a test of that name from another
// one in it that checks, or is made by what has one.
func pythonExplains(b []byte, class, name string, bodies map[string][]body) bool {
	text := norm.NFKC.String(pythonCode(pythonNewline().Replace(string(b))))
	class = class[strings.LastIndexByte(class, '.')+1:]
	bases := map[string][]string{}
	for _, m := range pythonBases().FindAllStringSubmatch(text, -1) {
		bases[m[1]] = append(bases[m[1]], pythonWord().FindAllString(m[2], -1)...)
	}
	checked := map[string]bool{} // classes, by their own names
	for full, list := range bodies {
		if i := strings.LastIndexByte(full, '.'); i >= 0 && full[i+1:] == name && slices.Max(list) >= helped {
			checked[full[strings.LastIndexByte(full[:i], '.')+1:i]] = true
		}
	}
	seen := map[string]bool{class: true}
	for next := bases[class]; len(next) > 0; {
		c := next[0]
		next = next[1:]
		if checked[c] {
			return true
		}
		if !seen[c] {
			seen[c] = true
			next = append(next, bases[c]...)
		}
	}
	return false
}

var (
	pythonBases = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?m)^[ \t]*class\s+([\pL\pM\pN\p{Pc}]+)\s*\(([^()]*)`)
	})
	pythonWord = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[\pL\pM\pN\p{Pc}]+`) })
)
