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

// pythonNewline converts all line ends to LF.
var pythonNewline = sync.OnceValue(func() *strings.Replacer { return strings.NewReplacer("\r\n", "\n", "\r", "\n") })

// pythonState is a string, or code in an f-string.
type pythonState struct {
	end   string // the end of a string; empty: code
	codes bool   // of a string: it may hold code
	depth int    // of code: open brackets
}

// pythonCode removes comments, and what strings say, from a text. A line ends where it
// did, unless it ends in a string.
func pythonCode(s string) string {
	r := pythonReader{s: s, out: make([]byte, 0, len(s))}
	for r.i < len(s) {
		switch {
		case s[r.i] == '\n':
			r.newline()
		case r.top().end != "":
			r.inString()
		case s[r.i] == '#':
			n := strings.IndexByte(s[r.i:], '\n')
			if n < 0 {
				return string(r.out)
			}
			r.i += n
		default:
			r.code()
		}
	}
	return string(r.out)
}

// pythonReader reads a text from i on.
type pythonReader struct {
	s   string
	i   int // of the next byte
	out []byte
	in  []pythonState // the innermost last
}

func (r *pythonReader) top() *pythonState {
	if len(r.in) == 0 {
		return &pythonState{}
	}
	return &r.in[len(r.in)-1]
}

func (r *pythonReader) pop() { r.in = r.in[:len(r.in)-1] }

func (r *pythonReader) newline() {
	if at := r.top(); at.end == `"` || at.end == "'" {
		r.pop() // it was an apostrophe, not a string
	}
	if len(r.in) == 0 {
		r.out = append(r.out, '\n')
	}
	r.i++
}

func (r *pythonReader) inString() {
	rest, at := r.s[r.i:], r.top()
	switch {
	case strings.HasPrefix(rest, at.end):
		r.i += len(at.end)
		format := at.end == "}"
		r.pop()
		if format {
			r.pop() // the code that it formats ends with it
		}
	case at.codes && at.end != "}" && strings.HasPrefix(rest, "{{"):
		r.i += 2
	case at.codes && rest[0] == '{':
		r.i++
		r.in = append(r.in, pythonState{})
	case rest[0] == '\\' && !(at.codes && strings.HasPrefix(rest[1:], "{")):
		r.i += 2 // also the end of a line, after which the string goes on
	default:
		r.i++
	}
}

func (r *pythonReader) code() {
	rest, at := r.s[r.i:], r.top()
	quote := ""
	switch {
	case strings.HasPrefix(rest, `"""`), strings.HasPrefix(rest, "'''"):
		quote = rest[:3]
	case rest[0] == '"', rest[0] == '\'':
		quote = rest[:1]
	}
	if quote != "" {
		if len(r.in) == 0 {
			r.out = append(r.out, '"', '"')
		}
		r.in = append(r.in, pythonState{end: quote, codes: pythonStringHasCode(r.s[:r.i])})
		r.i += len(quote)
		return
	}
	r.i++
	if len(r.in) == 0 {
		r.out = append(r.out, rest[0])
		return
	}
	switch rest[0] {
	case '{', '(', '[':
		at.depth++
	case ')', ']':
		at.depth--
	case '}':
		if at.depth--; at.depth < 0 {
			r.pop()
		}
	case ':':
		if at.depth == 0 {
			r.in = append(r.in, pythonState{end: "}", codes: true})
		}
	}
}

// pythonStringHasCode reports whether the prefix of a string literal lets it hold code.
func pythonStringHasCode(before string) bool {
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
	// pythonBinding matches constructs that bind names, except assignments.
	pythonBinding = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`\b(?:import\b.*|as\b\s*\(?[\pL\pM\pN\p{Pc}]+|for\b.*?\bin\b)|[\pL\pM\pN\p{Pc}]+\s*:=`)
	})
	pythonTest   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:^|[\s,(*:;])(test[\pL\pM\pN\p{Pc}]*)`) })
	pythonCoding = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(?:[^\n]*\n)?[ \t\f]*#[^\n]*?coding[:=][ \t]*([-\w.]+)`)
	})
)

// pythonBinds returns the names of tests that a statement binds to something else.
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

// pythonScope is a class or a function, by its indentation.
type pythonScope struct {
	indent int
	name   string
	fn     *pythonFunction // the function that it is or belongs to; nil: none
}

// pythonFunction is a test, or another function outside of tests.
type pythonFunction struct {
	name   string
	test   bool
	kind   bodyKind
	calls  []string
	skips  bool // it skips the test before it does anything
	begins int  // indentation of its first statement
}

// pythonBodies returns the bodies of a file's tests by name. Before the name stand those
// of the classes and functions that hold the test, joined by dots.
func pythonBodies(b []byte) (map[string][]bodyKind, error) {
	text := pythonNewline().Replace(strings.TrimPrefix(string(b), "\ufeff"))
	if m := pythonCoding().FindStringSubmatch(text); m != nil && !slices.Contains([]string{"utf-8", "utf8", "ascii", "us-ascii", "latin-1", "latin1", "iso-8859-1"}, strings.ReplaceAll(strings.ToLower(m[1]), "_", "-")) {
		return nil, fmt.Errorf("it says to be in %s, and should be in utf-8", m[1])
	}
	p := pythonParser{tests: map[string][]*pythonFunction{}, all: map[string][]*pythonFunction{}, names: nameBudget{textSize: len(b)}, dead: -1}
	// Python takes names for the same that are equal in this normal form.
	for indent, line := range pythonLines(norm.NFKC.String(pythonCode(text))) {
		if err := p.statement(indent, line); err != nil {
			return nil, err
		}
	}
	markPythonHelpers(p.all)
	out := map[string][]bodyKind{}
	for name, list := range p.tests {
		for _, f := range list {
			// A test that only skips does not pass, unless what skips is something else.
			if !f.skips || f.kind > bodyEmpty {
				out[name] = append(out[name], f.kind)
			}
		}
	}
	return out, nil
}

// pythonParser collects the functions of a file, statement by statement.
type pythonParser struct {
	tests map[string][]*pythonFunction // by full name
	all   map[string][]*pythonFunction // by their own name
	names nameBudget
	in    []pythonScope // the innermost last
	dead  int           // lines indented so far or more never run; negative: none
}

func (p *pythonParser) statement(indent int, text string) error {
	for len(p.in) > 0 && indent <= p.in[len(p.in)-1].indent {
		p.in = p.in[:len(p.in)-1]
	}
	if p.dead >= 0 && indent >= p.dead {
		return nil
	}
	p.dead = -1
	at := pythonScope{indent: -1}
	if len(p.in) > 0 {
		at = p.in[len(p.in)-1]
	}
	if m := pythonDef().FindStringSubmatch(text); m != nil {
		return p.def(at, indent, m[1], text)
	}
	if m := pythonClass().FindStringSubmatch(text); m != nil {
		at.begins(indent)
		p.in = append(p.in, pythonScope{indent, at.within(m[1]), at.fn})
		return p.names.add(at.within(m[1]))
	}
	if never := pythonNever().FindString(text); never != "" {
		p.dead = indent + 1
		return nil
	}
	if at.fn == nil {
		for _, name := range pythonBinds(text) {
			full := at.within(name)
			if err := p.names.add(full); err != nil {
				return err
			}
			p.tests[full] = append(p.tests[full], &pythonFunction{kind: bodyEmpty})
		}
		return nil
	}
	if word, rest, _ := strings.Cut(text, " "); slices.Contains([]string{"return", "break", "continue"}, word) {
		p.dead = indent
		text = strings.TrimSpace(rest)
	}
	if at.fn.addStatement(indent, text); at.fn.skips && indent <= at.fn.begins {
		p.dead = indent
	}
	return nil
}

// def adds a function. Functions in a test are a part of it, and so are those that are no
// tests in another function.
func (p *pythonParser) def(at pythonScope, indent int, name, text string) error {
	at.begins(indent)
	s := pythonScope{indent, at.within(name), at.fn}
	if err := p.names.add(s.name); err != nil {
		return err
	}
	if test := strings.HasPrefix(name, "test"); at.fn == nil || test && !at.fn.test {
		s.fn = &pythonFunction{name: name, test: test, begins: -1}
		if test {
			p.tests[s.name] = append(p.tests[s.name], s.fn)
		}
		p.all[name] = append(p.all[name], s.fn)
	}
	s.fn.addStatement(indent+1, pythonSuite(text))
	p.in = append(p.in, s)
	return nil
}

// within returns the full name of something in s.
func (s pythonScope) within(name string) string { return strings.TrimPrefix(s.name+"."+name, ".") }

// markPythonHelpers marks functions that call a function of the file that checks. If
// several have the called name, all of them must check.
func markPythonHelpers(all map[string][]*pythonFunction) {
	callers, left := map[string][]*pythonFunction{}, map[string]int{} // functions of the name that do not check
	var next []string
	for name, list := range all {
		for _, f := range list {
			if f.kind < bodyChecks {
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
			if f.kind < bodyCallsCheck {
				f.kind = bodyCallsCheck
				if left[f.name]--; left[f.name] == 0 {
					next = append(next, f.name)
				}
			}
		}
	}
}

func (s pythonScope) begins(indent int) {
	if s.fn != nil && s.fn.begins < 0 {
		s.fn.begins = indent
	}
}

// addStatement classifies one statement.
func (f *pythonFunction) addStatement(indent int, text string) {
	if f.begins < 0 && text != "" {
		f.begins = indent
	}
	switch {
	case f.skips && indent <= f.begins:
	case f.kind <= bodyEmpty && indent <= f.begins && pythonSkip().MatchString(text):
		f.skips = true
	case !pythonStatementActs(text):
		f.kind = max(f.kind, bodyEmpty)
	case pythonCheck().MatchString(text):
		f.kind = bodyChecks
	default:
		f.kind = max(f.kind, bodyRuns)
		if f.kind < bodyChecks {
			for _, m := range pythonCall().FindAllStringSubmatch(text, -1) {
				f.calls = append(f.calls, m[1])
			}
		}
	}
}

// pythonSuite returns the statements after the colon in the line of a def.
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

// pythonLines yields logical lines with their indentation. A line that ends in brackets
// or with a backslash continues in the next.
func pythonLines(s string) iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		var text strings.Builder
		indent, depth, more := 0, 0, false
		for line := range strings.Lines(s + "\n\n") {
			t := strings.TrimSpace(line)
			begins := more && (pythonDef().MatchString(t) || pythonClass().MatchString(t)) // so the brackets before were not code
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
	// pythonCheck matches checks, by the names that people give them.
	pythonCheck = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?i)\b(?:assert|raise)\b|(?:assert|raises|warns|check|verify|expect|should|fail)\w*\s*\(`)
	})
	// pythonSkip matches statements that skip the test.
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

func pythonStatementActs(s string) bool {
	switch {
	case s == "", s == "pass", s == "...", s == "return", s == "return None", s == ")", s == "):", strings.HasPrefix(s, "#"), strings.HasPrefix(s, `"`), strings.HasPrefix(s, "'"):
		return false
	}
	return s != "None" && s != "True" && !pythonAlways().MatchString(s)
}

// pythonExplains reports whether a class inherits a test of that name that checks, from
// another class of the text.
func pythonExplains(b []byte, class, name string, bodies map[string][]bodyKind) bool {
	text := norm.NFKC.String(pythonCode(pythonNewline().Replace(string(b))))
	class = class[strings.LastIndexByte(class, '.')+1:]
	bases := map[string][]string{}
	for _, m := range pythonBases().FindAllStringSubmatch(text, -1) {
		bases[m[1]] = append(bases[m[1]], pythonWord().FindAllString(m[2], -1)...)
	}
	checked := map[string]bool{} // classes, by their own names
	for full, list := range bodies {
		if i := strings.LastIndexByte(full, '.'); i >= 0 && full[i+1:] == name && slices.Max(list) >= bodyCallsCheck {
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
