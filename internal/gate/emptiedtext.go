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

// What ends a line, and a comment, as LF does.
var (
	pythonNewline = sync.OnceValue(func() *strings.Replacer { return strings.NewReplacer("\r\n", "\n", "\r", "\n") })
	jsNewline     = sync.OnceValue(func() *strings.Replacer {
		return strings.NewReplacer("\r\n", "\n", "\r", "\n", "\u2028", "\n", "\u2029", "\n")
	})
)

// inside is what a place of a text is in: a string, or code that a string has in it.
type inside struct {
	end   string // of a string; empty: it is code
	codes bool   // of a string: it can have code in it
	depth int    // of code: in how many brackets
}

// code is a text without its comments and without what its strings say. Lines end where
// they did, but for those of Python's that end in a string. Python and JavaScript are told
// apart by their comments.
func code(s string, python bool) string {
	out := make([]byte, 0, len(s))
	hole := "${"
	if python {
		hole = "{"
	}
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
			if !python || len(in) == 0 {
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
			case at.codes && strings.HasPrefix(rest, hole):
				i += len(hole)
				in = append(in, inside{})
			case rest[0] == '\\' && at.end != "*/" && !(at.codes && strings.HasPrefix(rest[1:], "{")):
				i += 2 // also a line's end, behind which the string goes on
			default:
				i++
			}
			continue
		}
		quote := ""
		switch {
		case python && rest[0] == '#', !python && strings.HasPrefix(rest, "//"):
			n := strings.IndexByte(rest, '\n')
			if n < 0 {
				return string(out)
			}
			i += n
			continue
		case !python && strings.HasPrefix(rest, "/*"):
			in = append(in, inside{end: "*/"})
			i += 2
			continue
		case python && (strings.HasPrefix(rest, `"""`) || strings.HasPrefix(rest, "'''")):
			quote = rest[:3]
		case rest[0] == '"', rest[0] == '\'', rest[0] == '`' && !python:
			quote = rest[:1]
		}
		if quote != "" {
			if len(in) == 0 {
				out = append(out, '"', '"')
			}
			in = append(in, inside{end: quote, codes: quote == "`" || python && formats(s[:i])})
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
			if python && at.depth == 0 {
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
	test   *body // nil: neither a test nor in one
	fn     bool
}

// pythonBodies knows tests by their names and those of what they are in.
func pythonBodies(b []byte) (map[string][]body, error) {
	text := pythonNewline().Replace(strings.TrimPrefix(string(b), "\ufeff"))
	if m := pythonCoding().FindStringSubmatch(text); m != nil && !slices.Contains([]string{"utf-8", "utf8", "ascii", "us-ascii", "latin-1", "latin1", "iso-8859-1"}, strings.ReplaceAll(strings.ToLower(m[1]), "_", "-")) {
		return nil, fmt.Errorf("it says to be in %s, and should be in utf-8", m[1])
	}
	found := map[string][]*body{}
	var in []scope
	dead := -1 // lines that are indented so far or more never run
	// Names are the same for Python that are so in this form.
	for indent, text := range pythonLines(norm.NFKC.String(code(text, true))) {
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
			s := scope{indent, within(m[1]), at.test, true}
			if strings.HasPrefix(m[1], "test") && s.test == nil {
				s.test = new(body)
				found[s.name] = append(found[s.name], s.test)
			}
			s.see(pythonSuite(text))
			in = append(in, s)
			continue
		}
		if m := pythonClass().FindStringSubmatch(text); m != nil {
			in = append(in, scope{indent, within(m[1]), at.test, at.fn})
			continue
		}
		if never := pythonNever().FindString(text); never != "" {
			dead = indent + 1
			continue
		}
		if !at.fn {
			for _, name := range pythonBinds(text) {
				none := empty
				found[within(name)] = append(found[within(name)], &none)
			}
			continue
		}
		if word, rest, _ := strings.Cut(text, " "); text == "return" || word == "return" || word == "break" || word == "continue" {
			dead = indent
			text = strings.TrimSpace(rest)
		}
		at.see(text)
	}
	out := map[string][]body{}
	for name, list := range found {
		for _, b := range list {
			out[name] = append(out[name], *b)
		}
	}
	return out, nil
}

func (s scope) see(text string) {
	switch {
	case s.test == nil:
	case !meansSomething(text):
		*s.test = max(*s.test, empty)
	case pythonCheck().MatchString(text):
		*s.test = checks
	default:
		*s.test = max(*s.test, runs)
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

// jsTest takes a test's name in one of three kinds of quotes, and what may stand before
// its body.
var jsTest = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:^|[^\w.])(?:it|test)(?:\.(?:only|concurrent|sequential|serial))*\s*\(\s*` +
		"(?:'((?:[^'\\\\\\n]|\\\\.)*)'|\"((?:[^\"\\\\\\n]|\\\\.)*)\"|`((?:[^`\\\\]|\\\\.)*)`)" +
		`\s*,\s*(?:\{[^{}]*\}\s*,\s*)?(?:async\s*)?(?:function\s*)?(?:\([^)]*\)|\w+)\s*(?:=>)?\s*`)
})

func jsBodies(b []byte) (map[string][]body, error) {
	out := map[string][]body{}
	b = []byte(jsNewline().Replace(string(b)))
	all := jsTest().FindAllSubmatchIndex(b, -1)
	for i, m := range all {
		name := ""
		for q := 2; q < len(m); q += 2 {
			if m[q] >= 0 {
				name = string(b[m[q]:m[q+1]])
			}
		}
		end := len(b)
		if i+1 < len(all) {
			end = all[i+1][0]
		}
		text, block := jsLive(code(string(b[m[1]:end]), false))
		is := runs
		switch {
		case block && strings.TrimSpace(strings.ReplaceAll(text, ";", "")) == "":
			is = empty
		case jsCheck().MatchString(text):
			is = checks
		}
		out[name] = append(out[name], is)
	}
	return out, nil
}

var (
	jsCheck = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?i)(?:expect|assert|should|fail|verify|check)\w*\s*[.(]|\bthrow\b|\bt\.\w+\(`)
	})
	jsNever  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^if\s*\(\s*(?:false|0|!1|!true)\s*\)\s*`) })
	jsReturn = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^return\b`) })
)

// jsLive is what a function's block does, as far as the text alone says: neither what
// stands behind its return, nor under what is never true. Of a body that is no block, or
// has no end, it is all.
func jsLive(s string) (live string, block bool) {
	if !strings.HasPrefix(s, "{") {
		return s, false
	}
	whole := jsEnd(s, 0)
	if whole < 0 {
		return s, false
	}
	var out strings.Builder
	for in := s[1 : whole-1]; ; {
		if in = strings.TrimLeft(in, " \t\r\n\f\v;"); in == "" {
			break
		}
		if never := jsNever().FindString(in); never != "" {
			in = in[len(never):]
			n := jsEnd(in, 0)
			if n < 0 {
				n = jsStatement(in)
			}
			in = in[n:]
			continue
		}
		n := jsStatement(in)
		if at := jsReturn().FindString(in); at != "" {
			out.WriteString(in[len(at):n])
			break
		}
		out.WriteString(in[:n])
		in = in[n:]
	}
	return out.String(), true
}

// jsEnd is where a block ends that begins at the beginning; negative: none begins, or it
// has no end.
func jsEnd(s string, depth int) int {
	if !strings.HasPrefix(s, "{") {
		return -1
	}
	for i := range len(s) {
		switch s[i] {
		case '{', '(', '[':
			depth++
		case '}', ')', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return -1
}

// jsStatement is where a statement ends, or a line of one: that is enough to find what
// begins one.
func jsStatement(s string) int {
	depth, line := 0, -1 // where a line ended last, behind which only spaces were
	for i := range len(s) {
		if line >= 0 && !strings.Contains(" \t\r\n\f\v", s[i:i+1]) {
			if depth <= 0 && !strings.Contains(".?:+-*/%&|=,<>)]}", s[i:i+1]) {
				return line + 1
			}
			line = -1
		}
		switch s[i] {
		case '{', '(', '[':
			depth++
		case '}', ')', ']':
			depth--
		case ';':
			if depth <= 0 {
				return i + 1
			}
		case '\n':
			if line < 0 {
				line = i
			}
		}
	}
	return len(s)
}
