package gate

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

var jsNewline = sync.OnceValue(func() *strings.Replacer {
	return strings.NewReplacer("\r\n", "\n", "\r", "\n", "\u2028", "\n", "\u2029", "\n")
})

// jsText is a text of JavaScript, and what of it is code.
type jsText struct {
	raw string
	// code has each byte of the text where it was, but spaces for comments and for what
	// strings, templates and regular expressions say, whose quotes are all the same.
	code string
	// ends are, for a bracket or quote that opens, where its other one is; 0: nowhere.
	ends []int32
}

// jsIn is a template, or code that stands in one.
type jsIn struct {
	template  bool
	at, depth int // where it begins, and in how many brackets the code is
}

// readJS takes time and memory by the size of the text, whatever it says. A bracket that
// does not fit is none, as in the words of an element; braces go before others, since words
// have none.
func readJS(b []byte) *jsText {
	s := jsNewline().Replace(string(b))
	code, ends := []byte(strings.Repeat(" ", len(s))), make([]int32, len(s))
	var in []jsIn
	var open []int32
	braces, last, noRegexp := 0, -1, -1
	word := func() string { // that stands before
		i := last
		for i >= 0 && last-i < 12 && wordByte(s[i]) {
			i--
		}
		return s[i+1 : last+1]
	}
	literal := func(from, to int) {
		if len(in) == 0 {
			code[from], code[to], ends[from] = '"', '"', int32(to)
		}
		last = to
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if len(in) > 0 && in[len(in)-1].template {
			switch {
			case c == '\\':
				i++
			case c == '`':
				at := in[len(in)-1].at
				in = in[:len(in)-1]
				literal(at, i)
			case strings.HasPrefix(s[i:], "${"):
				i++
				in = append(in, jsIn{at: i})
				last = i
			}
			continue
		}
		switch {
		case c == '\n':
			if len(in) == 0 {
				code[i] = c
			}
			continue
		case strings.IndexByte(" \t\f\v", c) >= 0:
			continue
		case strings.HasPrefix(s[i:], "//"):
			n := strings.IndexByte(s[i:], '\n')
			if n < 0 {
				n = len(s) - i
			}
			i += n - 1
			continue
		case strings.HasPrefix(s[i:], "/*"):
			n := strings.Index(s[i+2:], "*/")
			if n < 0 {
				n = len(s)
			}
			for end := min(len(s)-1, i+2+n+1); i < end; i++ {
				if s[i] == '\n' && len(in) == 0 {
					code[i] = '\n'
				}
			}
			continue
		case c == '`':
			in = append(in, jsIn{template: true, at: i})
			continue
		case c == '\'' || c == '"':
			if w := word(); w != "" && last == i-1 && !jsBefore(w) {
				last = i // an apostrophe
				continue
			}
			end := i + 1
			for end < len(s) && s[end] != c && s[end] != '\n' {
				if s[end] == '\\' {
					end++
				}
				end++
			}
			if end < len(s) && s[end] == c {
				literal(i, end)
				i = end
			} else {
				i = min(end, len(s)) - 1 // it was none, but an apostrophe
			}
			continue
		case c == '/' && i > noRegexp && jsRegexpBefore(s, last, word()) && !(last >= 0 && s[last] == '}' && strings.HasPrefix(s[i:], "/>")):
			end, class := i+1, false
			for end < len(s) && s[end] != '\n' && (class || s[end] != '/') {
				switch s[end] {
				case '\\':
					end++
				case '[':
					class = true
				case ']':
					class = false
				}
				end++
			}
			if end < len(s) && s[end] == '/' {
				literal(i, end)
				i = end
				continue
			}
			noRegexp = end
		}
		last = i
		if len(in) > 0 {
			switch at := &in[len(in)-1]; c {
			case '{':
				at.depth++
			case '}':
				if at.depth--; at.depth < 0 {
					in = in[:len(in)-1]
				}
			}
			continue
		}
		code[i] = c
		switch c {
		case '{', '(', '[':
			if c == '{' {
				braces++
			}
			open = append(open, int32(i))
		case '}':
			for braces > 0 {
				at := open[len(open)-1]
				open = open[:len(open)-1]
				if code[at] == '{' {
					ends[at] = int32(i)
					braces--
					break
				}
			}
		case ')', ']':
			if n := len(open) - 1; n >= 0 && (c == ')' && code[open[n]] == '(' || c == ']' && code[open[n]] == '[') {
				ends[open[n]] = int32(i)
				open = open[:n]
			}
		}
	}
	return &jsText{s, string(code), ends}
}

func wordByte(c byte) bool {
	return c == '_' || c == '$' || c >= 0x80 || c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9'
}

// jsBefore is of words behind which a value stands.
func jsBefore(w string) bool {
	return slices.Contains([]string{"return", "typeof", "case", "in", "of", "delete", "void", "throw", "else", "do", "await", "yield", "from", "import", "export", "default", "new", "instanceof", "as"}, w)
}

// jsRegexpBefore reports whether a slash begins a regular expression behind that.
func jsRegexpBefore(s string, last int, word string) bool {
	if last < 0 {
		return true
	}
	return strings.IndexByte("(,=:[!&|?{};+-*%~^", s[last]) >= 0 || s[last] == '>' && last > 0 && s[last-1] == '=' || jsBefore(word)
}

func (t *jsText) skip(i int) int {
	for i < len(t.code) && strings.IndexByte(" \t\r\n\f\v", t.code[i]) >= 0 {
		i++
	}
	return i
}

func (t *jsText) at(i int) byte {
	if i < len(t.code) {
		return t.code[i]
	}
	return 0
}

// args is where a call has its arguments, behind a name and the names that follow it, with
// what these are handed: it.each(x)(…), test<T>(…). Negative: it is no call.
func (t *jsText) args(i int) (open int, words []string) {
	for range 20 {
		i = t.skip(i)
		switch t.at(i) {
		case '.':
			from := t.skip(i + 1)
			i = from
			for wordByte(t.at(i)) {
				i++
			}
			words = append(words, t.code[from:i])
		case '<':
			depth, from := 0, i
			for ; i < len(t.code) && i-from < 400; i++ {
				if t.code[i] == '<' {
					depth++
				} else if t.code[i] == '>' && t.code[i-1] != '=' {
					if depth--; depth == 0 {
						break
					}
				}
			}
			i++
			if depth > 0 {
				return -1, nil
			}
		case '"':
			if len(words) == 0 {
				return -1, nil
			}
			i = int(t.ends[i]) + 1
		case '(':
			end := int(t.ends[i])
			if next := t.skip(end + 1); end == 0 || len(words) == 0 || t.at(next) != '(' {
				return i, words
			}
			i = end + 1
		default:
			return -1, nil
		}
	}
	return -1, nil
}

// end is where a call's arguments end, or all.
func (t *jsText) end(open int) int {
	if e := int(t.ends[open]); e > 0 {
		return e
	}
	return len(t.code)
}

// name is a call's first argument: the parts of it that are known. Between two of them
// anything may stand. next is where the argument ends.
func (t *jsText) name(open int) (parts []string, next int) {
	parts = []string{""}
	add := func(s string) {
		if p := &parts[len(parts)-1]; len(*p) <= maxTestName { // more of it is too long, too
			*p += s
		}
	}
	hole := func() { parts = append(parts, "") }
	i, end := open+1, t.end(open)
	literal, other := -1, false
	piece := func() {
		switch {
		case other || literal < 0 || t.raw[literal] == '/':
			hole()
		case t.raw[literal] != '`':
			add(jsUnquote(t.raw[literal+1 : t.ends[literal]]))
		default:
			s := t.raw[literal+1 : t.ends[literal]]
			for {
				n := strings.Index(s, "${")
				if n < 0 {
					break
				}
				add(jsUnquote(s[:n]))
				hole()
				depth := 0
				for n += 1; n < len(s); n++ {
					if s[n] == '{' {
						depth++
					} else if s[n] == '}' {
						if depth--; depth == 0 {
							break
						}
					}
				}
				s = s[min(len(s), n+1):]
			}
			add(jsUnquote(s))
		}
		literal, other = -1, false
	}
	for ; i < end; i++ {
		switch c := t.code[i]; c {
		case ' ', '\t', '\n', '\f', '\v':
		case '"':
			other = other || literal >= 0
			literal = i
			i = int(t.ends[i])
		case '(', '[', '{':
			other = true
			e := int(t.ends[i])
			if e == 0 {
				piece()
				return parts, i
			}
			i = e
		case '+':
			piece()
		case ',':
			piece()
			return parts, i
		default:
			other = true
		}
	}
	piece()
	return parts, end
}

// jsUnquote is what a string says, as far as escapes are such as others have.
func jsUnquote(s string) string {
	if !strings.Contains(s, `\`) {
		return strings.ReplaceAll(s, "\x00", "")
	}
	var out strings.Builder
	for len(s) > 0 {
		n := strings.IndexByte(s, '\\')
		if n < 0 || n+1 == len(s) {
			out.WriteString(s)
			break
		}
		out.WriteString(s[:n])
		s = s[n+1:]
		_, size := utf8.DecodeRuneInString(s)
		hex := ""
		switch {
		case s[0] == 'x' && len(s) >= 3:
			hex, size = s[1:3], 3
		case strings.HasPrefix(s, "u{") && strings.IndexByte(s, '}') > 0:
			size = strings.IndexByte(s, '}') + 1
			hex = s[2 : size-1]
		case s[0] == 'u' && len(s) >= 5:
			hex, size = s[1:5], 5
		}
		switch i := strings.IndexByte("ntrbfv", s[0]); {
		case hex != "":
			if r, err := strconv.ParseUint(hex, 16, 32); err == nil && r <= utf8.MaxRune {
				out.WriteRune(rune(r))
			}
		case i >= 0:
			out.WriteByte("\n\t\r\b\f\v"[i])
		case s[0] != '\n':
			out.WriteString(s[:size])
		}
		s = s[size:]
	}
	return strings.ReplaceAll(out.String(), "\x00", "")
}

// fits reports whether parts of a name may be of that one.
func fits(parts []string, name string) bool {
	n := len(parts) - 1
	if n == 0 {
		return parts[0] == name
	}
	rest, ok := strings.CutPrefix(name, parts[0])
	if !ok {
		return false
	}
	for _, p := range parts[1:n] {
		i := strings.Index(rest, p)
		if i < 0 {
			return false
		}
		rest = rest[i+len(p):]
	}
	return strings.HasSuffix(rest, parts[n])
}

// body is what is done in a function among a call's arguments, or all that follows, up to a
// limit; block: it is a function's block, and all of it.
func (t *jsText) body(from, end, limit int) (text string, block bool) {
	start := from
	for i := from; i < end; i++ {
		switch c := t.code[i]; {
		case c == '(', c == '[', c == '{':
			if t.ends[i] == 0 {
				i = end
			} else {
				i = int(t.ends[i])
			}
		case strings.HasPrefix(t.code[i:], "=>"):
			start = t.skip(i + 2)
			i = end
		case strings.HasPrefix(t.code[i:], "function") && !wordByte(t.code[i-1]) && !wordByte(t.at(i+8)):
			for i += 8; i < end && t.code[i] != '{'; i++ {
				if e := int(t.ends[i]); e > 0 {
					i = e
				}
			}
			start = i
			i = end
		}
	}
	if t.at(start) == '{' && int(t.ends[start]) > 0 && int(t.ends[start]) <= limit {
		return jsLive(t.code[start+1 : t.ends[start]]), true
	}
	if start >= limit {
		return "", false
	}
	return t.code[start:min(end, limit)], false
}

// jsTestCall is a call that makes a test.
type jsTestCall struct {
	chain     string   // names of what it is in, each with a zero behind it
	parts     []string // of its name
	next, end int      // where its other arguments are
	limit     int      // where the next one begins
	open      int
}

var (
	jsHead = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?:^|[^\w.$])((?:it|test|describe|context|suite)\b)`)
	})
	// jsNoTest are of calls such as test.beforeEach(…).
	jsNoTest = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(?:step|use|extend|info|mock|set\w*|before\w*|after\w*)$`)
	})
)

func (t *jsText) tests() (out []jsTestCall, err error) {
	type block struct {
		end   int
		chain string
	}
	var in []block
	for _, m := range jsHead().FindAllStringSubmatchIndex(t.code, -1) {
		open, words := t.args(m[3])
		if open < 0 || slices.ContainsFunc(words, jsNoTest().MatchString) {
			continue
		}
		for len(in) > 0 && m[2] > in[len(in)-1].end {
			in = in[:len(in)-1]
		}
		parts, next := t.name(open)
		chain := ""
		if len(in) > 0 {
			chain = in[len(in)-1].chain
		}
		if head := t.code[m[2]:m[3]]; head != "it" && head != "test" || slices.Contains(words, "describe") {
			name := parts[0]
			if len(parts) > 1 { // as it is written
				name = strings.TrimSpace(t.raw[open+1 : next])
			}
			if chain += name + "\x00"; len(chain) > maxTestName {
				return nil, errLongName
			}
			if t.ends[open] > 0 {
				in = append(in, block{int(t.ends[open]), chain})
			}
			continue
		}
		if len(out) > 0 {
			out[len(out)-1].limit = m[2]
		}
		out = append(out, jsTestCall{chain, parts, next, t.end(open), len(t.code), open})
	}
	return out, nil
}

// does is what a test's text has in it. helpers are functions of the file that check.
func (t *jsText) does(c jsTestCall, helpers map[string]bool) body {
	text, block := t.body(c.next, c.end, c.limit)
	switch {
	case block && strings.TrimSpace(strings.ReplaceAll(text, ";", "")) == "":
		return empty
	case jsCheck().MatchString(text):
		return checks
	case len(helpers) > 0 && slices.ContainsFunc(jsWord().FindAllString(text, -1), func(w string) bool { return helpers[w] }):
		return helped
	}
	return runs
}

// helpers are functions of the file, each of which checks by itself.
func (t *jsText) helpers() map[string]bool {
	at := jsCheck().FindAllStringIndex(t.code, -1)
	out := map[string]bool{}
	for _, m := range jsFunction().FindAllStringSubmatchIndex(t.code, -1) {
		name := ""
		for q := 2; q < len(m); q += 2 {
			if m[q] >= 0 {
				name = t.code[m[q]:m[q+1]]
			}
		}
		i := m[1] - 1 // its bracket, or the end of its arrow
		if t.at(i) == '(' {
			i = int(t.ends[i])
		}
		for n := 0; i > 0 && i < len(t.code) && t.code[i] != '{' && !strings.HasPrefix(t.code[i:], "=>") && n < 400; n++ {
			i++
		}
		if i > 0 && i < len(t.code) && strings.HasPrefix(t.code[i:], "=>") {
			i = t.skip(i + 2)
		}
		end := i
		if t.at(i) == '{' {
			end = int(t.ends[i])
		} else if i > 0 && i < len(t.code) {
			end = i + jsStatement(t.code[i:min(len(t.code), i+400)])
		}
		n, _ := slices.BinarySearchFunc(at, i, func(x []int, i int) int { return cmp.Compare(x[0], i) })
		is, known := out[name]
		out[name] = (is || !known) && n < len(at) && at[n][0] < end
	}
	return out
}

// jsBodies knows tests by their names, and before them those of what they are in, each with
// a zero behind it.
func jsBodies(b []byte) (map[string][]body, error) {
	t := readJS(b)
	calls, err := t.tests()
	if err != nil {
		return nil, err
	}
	helpers := t.helpers()
	out, names := map[string][]body{}, nameSum{of: len(b)}
	for _, c := range calls {
		if len(c.parts) > 1 || c.next >= c.end {
			continue // what it is called shows when it runs, or it does nothing
		}
		name := c.chain + c.parts[0]
		if err := names.add(name); err != nil {
			return nil, err
		}
		out[name] = append(out[name], t.does(c, helpers))
	}
	return out, nil
}

// jsExplainer says whether a text that has no test of a name may make it all the same,
// with something that checks: by a function around the runner's, from parts, or from a
// table. Tests that were there before explain only themselves.
type jsExplainer struct {
	*jsText
	had     func(full string) bool
	helpers map[string]bool
	calls   []jsTestCall // that have a name, or parts of one
	static  int          // how many of them are tests by a whole name
	did     map[int]bool
	spelt   map[string]bool // strings and keys
	looks   int             // bytes that may be looked at yet
	fits    int             // and parts of names
}

func newJSExplainer(b []byte, had func(string) bool) *jsExplainer {
	e := &jsExplainer{jsText: readJS(b), had: had, did: map[int]bool{}, spelt: map[string]bool{}, fits: 1 << 27}
	calls, err := e.tests()
	if err != nil {
		return e
	}
	e.helpers, e.looks = e.jsText.helpers(), 4*len(b)
	own := map[int]bool{}
	var tables []jsTestCall
	for _, c := range calls {
		if own[c.open] = true; len(c.parts) > 1 {
			tables = append(tables, c)
			continue
		}
		e.calls = append(e.calls, c)
		if parts := jsFormat().Split(c.parts[0], -1); len(parts) > 1 {
			c.parts = parts
			tables = append(tables, c)
		}
	}
	e.static = len(e.calls)
	e.calls = append(e.calls, tables...)
	for _, m := range jsCall().FindAllStringSubmatchIndex(e.code, -1) {
		open := m[1] - 1
		callee := e.code[m[2]:m[3]]
		if own[open] || slices.Contains([]string{"describe", "context", "suite"}, callee) {
			continue
		}
		parts, next := e.name(open)
		if next < e.end(open) && (strings.Join(parts, "") != "" || jsWrapper().MatchString(callee)) {
			e.calls = append(e.calls, jsTestCall{"", parts, next, e.end(open), e.end(open), open})
		}
	}
	for i := 0; i < len(e.code); i++ {
		if to := int(e.ends[i]); to > 0 && e.code[i] == '"' {
			e.spelt[jsUnquote(e.raw[i+1:to])] = true
			i = to
		}
	}
	for _, m := range jsKey().FindAllStringSubmatch(e.code, -1) {
		e.spelt[m[1]] = true
	}
	return e
}

func (e *jsExplainer) explains(name string) bool {
	for i, c := range e.calls {
		if e.fits -= len(c.parts); e.fits < 0 {
			return false
		}
		if !fits(c.parts, name) || i < e.static && e.had(strings.ReplaceAll(c.chain, "\x00", " ")+name) || len(c.parts) > 1 && strings.Join(c.parts, "") == "" && !e.spelt[name] {
			continue
		}
		did, known := e.did[c.open]
		if !known {
			e.looks -= c.end - c.open
			did = e.looks > 0 && e.jsText.does(c, e.helpers) >= helped
			e.did[c.open] = did
		}
		if did {
			return true
		}
	}
	return false
}

var (
	jsCheck = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?i)(?:expect|assert|should|fail|verify|check)\w*\s*[.(]|\bthrow\b|\bt\.\w+\(`)
	})
	jsNever  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^if\s*\(\s*(?:false|0|!1|!true)\s*\)\s*`) })
	jsReturn = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^return\b`) })
	jsWord   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[\w$]+`) })
	jsKey    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`([\w$]+)\s*:`) })
	jsCall   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`([\w$]+)\s*\(`) })
	// jsWrapper is what a function around the runner's is called.
	jsWrapper  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(?:it|test)[A-Z_]|(?:It|Test|_it|_test)$`) })
	jsFormat   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`%[a-zA-Z#$]|\$[\w.]+`) })
	jsFunction = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`\bfunction\s*\*?\s*([\w$]+)\s*\(|\b(?:const|let|var)\s+([\w$]+)\s*=\s*(?:async\s*)?(?:function\s*)?(?:\(|[\w$]+\s*=>)`)
	})
	// jsHeader is what ends before the statement that it is about.
	jsHeader = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:^|[^\w.$])(?:if|for|while|for\s+await)\s*$`) })
)

// jsLive is what a function's block does, as far as the text alone says: neither what
// stands behind its return, nor under what is never true.
func jsLive(in string) string {
	var out strings.Builder
	for {
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
	return out.String()
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
// begins one. A statement under a condition or in a loop is a part of that.
func jsStatement(s string) int {
	depth, line := 0, -1 // where a line ended last, behind which only spaces were
	open, end, last := -1, -1, -1
	header := func() bool {
		if end >= 0 && last == end {
			return jsHeader().MatchString(s[max(0, open-20):open])
		}
		return last >= 3 && s[last-3:last+1] == "else" && (last == 3 || !wordByte(s[last-4]))
	}
	for i := range len(s) {
		space := strings.IndexByte(" \t\r\n\f\v", s[i]) >= 0
		if line >= 0 && !space {
			if depth <= 0 && strings.IndexByte(".?:+-*/%&|=,<>)]}", s[i]) < 0 && !header() {
				return line + 1
			}
			line = -1
		}
		switch s[i] {
		case '{', '(', '[':
			if depth == 0 && s[i] == '(' {
				open = i
			}
			depth++
		case '}', ')', ']':
			if depth--; depth == 0 && s[i] == ')' {
				end = i
			}
		case ';':
			if depth <= 0 {
				return i + 1
			}
		case '\n':
			if line < 0 {
				line = i
			}
		}
		if !space {
			last = i
		}
	}
	return len(s)
}

// maxTestName bounds a test's name with those of what it is in, in bytes. Ids may have fewer.
const maxTestName = 2 * maxTestID

var errLongName = fmt.Errorf("a name in it is longer than %d bytes", maxTestName)

// nameSum bounds what names of a text's tests take together: each has those of what it is
// in again.
type nameSum struct{ of, sum int }

func (n *nameSum) add(name string) error {
	if len(name) > maxTestName {
		return errLongName
	}
	if n.sum += len(name); n.sum > 8*n.of+1<<16 {
		return fmt.Errorf("names of its tests have more than %d bytes together", 8*n.of+1<<16)
	}
	return nil
}
