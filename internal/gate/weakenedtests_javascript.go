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

// jsText is a JavaScript text and its code.
type jsText struct {
	raw string
	// code has each byte of code at its place in the text. It has spaces instead of
	// comments and of the contents of strings, templates and regular expressions, which
	// all have the same quotes.
	code string
	// ends maps an opening bracket or quote to the closing one; 0: there is none.
	ends []int32
}

// jsTemplateState is a template, or code in one.
type jsTemplateState struct {
	template  bool
	at, depth int // its first byte, and how many braces are open in the code
}

// readJS separates code from comments, strings, templates and regular expressions. It
// takes time and memory in proportion to the text, whatever that is. A bracket without
// its counterpart is taken for text, as in the words of a JSX element; braces decide
// before other brackets, since such words have none.
func readJS(b []byte) *jsText {
	s := jsNewline().Replace(string(b))
	r := jsReader{s: s, code: []byte(strings.Repeat(" ", len(s))), ends: make([]int32, len(s)), last: -1, noRegexp: -1}
	for r.i = 0; r.i < len(s); r.i++ {
		if len(r.in) > 0 && r.in[len(r.in)-1].template {
			r.inTemplate()
		} else if !r.skipped() && !r.quoted() && !r.regexp() {
			r.bracket()
		}
	}
	return &jsText{s, string(r.code), r.ends}
}

// jsReader reads a text from i on. Its methods leave i at the last byte that they read.
type jsReader struct {
	s    string
	i    int
	code []byte  // as in jsText
	ends []int32 // as in jsText

	in       []jsTemplateState // the innermost last
	open     []int32           // brackets that are open
	braces   int               // how many of them are braces
	last     int               // the last byte of code so far
	noRegexp int               // no regular expression begins before it
}

// word returns the word that ends at the last byte of code.
func (r *jsReader) word() string {
	i := r.last
	for i >= 0 && r.last-i < 12 && wordByte(r.s[i]) {
		i--
	}
	return r.s[i+1 : r.last+1]
}

// literal records a string, a template or a regular expression.
func (r *jsReader) literal(from, to int) {
	if len(r.in) == 0 {
		r.code[from], r.code[to], r.ends[from] = '"', '"', int32(to)
	}
	r.last = to
}

func (r *jsReader) inTemplate() {
	switch {
	case r.s[r.i] == '\\':
		r.i++
	case r.s[r.i] == '`':
		at := r.in[len(r.in)-1].at
		r.in = r.in[:len(r.in)-1]
		r.literal(at, r.i)
	case strings.HasPrefix(r.s[r.i:], "${"):
		r.i++
		r.in = append(r.in, jsTemplateState{at: r.i})
		r.last = r.i
	}
}

// skipped takes spaces and comments.
func (r *jsReader) skipped() bool {
	switch c, rest := r.s[r.i], r.s[r.i:]; {
	case c == '\n':
		if len(r.in) == 0 {
			r.code[r.i] = c
		}
	case strings.IndexByte(" \t\f\v", c) >= 0:
	case strings.HasPrefix(rest, "//"):
		n := strings.IndexByte(rest, '\n')
		if n < 0 {
			n = len(rest)
		}
		r.i += n - 1
	case strings.HasPrefix(rest, "/*"):
		n := strings.Index(rest[2:], "*/")
		if n < 0 {
			n = len(r.s)
		}
		for end := min(len(r.s)-1, r.i+2+n+1); r.i < end; r.i++ {
			if r.s[r.i] == '\n' && len(r.in) == 0 {
				r.code[r.i] = '\n'
			}
		}
	default:
		return false
	}
	return true
}

// quoted takes strings, and the first byte of a template.
func (r *jsReader) quoted() bool {
	c := r.s[r.i]
	switch {
	case c == '`':
		r.in = append(r.in, jsTemplateState{template: true, at: r.i})
		return true
	case c != '\'' && c != '"':
		return false
	}
	if w := r.word(); w != "" && r.last == r.i-1 && !jsBefore(w) {
		r.last = r.i // an apostrophe
		return true
	}
	end := r.i + 1
	for end < len(r.s) && r.s[end] != c && r.s[end] != '\n' {
		if r.s[end] == '\\' {
			end++
		}
		end++
	}
	if end < len(r.s) && r.s[end] == c {
		r.literal(r.i, end)
		r.i = end
	} else {
		r.i = min(end, len(r.s)) - 1 // an apostrophe, not a string
	}
	return true
}

func (r *jsReader) regexp() bool {
	s := r.s
	if s[r.i] != '/' || r.i <= r.noRegexp || !jsRegexpBefore(s, r.last, r.word()) || r.last >= 0 && s[r.last] == '}' && strings.HasPrefix(s[r.i:], "/>") {
		return false
	}
	end, class := r.i+1, false
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
		r.literal(r.i, end)
		r.i = end
		return true
	}
	r.noRegexp = end
	return false
}

// bracket takes a byte of code, and finds the counterpart of a bracket.
func (r *jsReader) bracket() {
	c := r.s[r.i]
	r.last = r.i
	if len(r.in) > 0 {
		switch at := &r.in[len(r.in)-1]; c {
		case '{':
			at.depth++
		case '}':
			if at.depth--; at.depth < 0 {
				r.in = r.in[:len(r.in)-1]
			}
		}
		return
	}
	r.code[r.i] = c
	switch c {
	case '{', '(', '[':
		if c == '{' {
			r.braces++
		}
		r.open = append(r.open, int32(r.i))
	case '}':
		for r.braces > 0 {
			at := r.open[len(r.open)-1]
			r.open = r.open[:len(r.open)-1]
			if r.code[at] == '{' {
				r.ends[at] = int32(r.i)
				r.braces--
				break
			}
		}
	case ')', ']':
		if n := len(r.open) - 1; n >= 0 && (c == ')' && r.code[r.open[n]] == '(' || c == ']' && r.code[r.open[n]] == '[') {
			r.ends[r.open[n]] = int32(r.i)
			r.open = r.open[:n]
		}
	}
}

func wordByte(c byte) bool {
	return c == '_' || c == '$' || c >= 0x80 || c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9'
}

// jsBefore reports whether a value may follow a word.
func jsBefore(w string) bool {
	return slices.Contains([]string{"return", "typeof", "case", "in", "of", "delete", "void", "throw", "else", "do", "await", "yield", "from", "import", "export", "default", "new", "instanceof", "as"}, w)
}

// jsRegexpBefore reports whether a slash after the byte at last begins a regular
// expression.
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

// argsStart finds the argument list of a call whose name ends at i, past further names
// and arguments, as in it.each(x)(…) and test<T>(…). words are these names. A negative
// result means that it is no call.
func (t *jsText) argsStart(i int) (open int, words []string) {
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

// end returns where a call's arguments end, or the end of the text.
func (t *jsText) end(open int) int {
	if e := int(t.ends[open]); e > 0 {
		return e
	}
	return len(t.code)
}

// callName returns the known parts of a call's first argument, between which anything may
// stand, and where the argument ends.
func (t *jsText) callName(open int) (parts []string, next int) {
	parts = []string{""}
	add := func(s string) {
		if p := &parts[len(parts)-1]; len(*p) <= maxTestName { // it is too long already
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

// jsUnquote evaluates the escapes of a string.
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

// matchesParts reports whether a name consists of the known parts with anything between.
func matchesParts(parts []string, name string) bool {
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

// callBody returns the body of the function among a call's arguments, or the rest of the
// arguments up to limit. block reports that it is the whole block of a function.
func (t *jsText) callBody(from, end, limit int) (text string, block bool) {
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

// jsTestCall is a call that defines a test.
type jsTestCall struct {
	chain     string   // names of enclosing blocks, each followed by a NUL
	parts     []string // parts of its name
	next, end int      // bounds of its other arguments
	limit     int      // where the next test begins
	open      int
}

var (
	jsHead = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?:^|[^\w.$])((?:it|test|describe|context|suite)\b)`)
	})
	// jsNoTest matches names in calls that define no test, such as test.beforeEach(…).
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
		open, words := t.argsStart(m[3])
		if open < 0 || slices.ContainsFunc(words, jsNoTest().MatchString) {
			continue
		}
		for len(in) > 0 && m[2] > in[len(in)-1].end {
			in = in[:len(in)-1]
		}
		parts, next := t.callName(open)
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

// classify returns the kind of a test's body. helpers are functions of the file that
// check.
func (t *jsText) classify(c jsTestCall, helpers map[string]bool) bodyKind {
	text, block := t.callBody(c.next, c.end, c.limit)
	switch {
	case block && strings.TrimSpace(strings.ReplaceAll(text, ";", "")) == "":
		return bodyEmpty
	case jsCheck().MatchString(text):
		return bodyChecks
	case len(helpers) > 0 && slices.ContainsFunc(jsWord().FindAllString(text, -1), func(w string) bool { return helpers[w] }):
		return bodyCallsCheck
	}
	return bodyRuns
}

// helpers returns the functions of the file that check by themselves.
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

// jsBodies returns the bodies of a file's tests by name. Before the name stand those of
// enclosing blocks, each followed by a NUL.
func jsBodies(b []byte) (map[string][]bodyKind, error) {
	t := readJS(b)
	calls, err := t.tests()
	if err != nil {
		return nil, err
	}
	helpers := t.helpers()
	out, names := map[string][]bodyKind{}, nameBudget{textSize: len(b)}
	for _, c := range calls {
		if len(c.parts) > 1 || c.next >= c.end {
			continue // its name is computed, or it has no body
		}
		name := c.chain + c.parts[0]
		if err := names.add(name); err != nil {
			return nil, err
		}
		out[name] = append(out[name], t.classify(c, helpers))
	}
	return out, nil
}

// jsExplainer tells whether a text may define a test of a name although it has no such
// call: by a wrapper around the runner's function, from parts, or from a table, with
// something that checks. A test that was there before explains only itself.
type jsExplainer struct {
	*jsText
	had     func(full string) bool
	helpers map[string]bool
	calls   []jsTestCall // calls with a name, or parts of one
	static  int          // how many of calls are tests with a whole name; these come first
	did     map[int]bool
	spelt   map[string]bool // strings and keys
	looks   int             // bytes that may still be examined
	fits    int             // parts of names that may still be compared
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
		parts, next := e.callName(open)
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
		if !matchesParts(c.parts, name) || i < e.static && e.had(strings.ReplaceAll(c.chain, "\x00", " ")+name) || len(c.parts) > 1 && strings.Join(c.parts, "") == "" && !e.spelt[name] {
			continue
		}
		did, known := e.did[c.open]
		if !known {
			e.looks -= c.end - c.open
			did = e.looks > 0 && e.jsText.classify(c, e.helpers) >= bodyCallsCheck
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
	// jsWrapper matches names of wrappers around the runner's function.
	jsWrapper  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(?:it|test)[A-Z_]|(?:It|Test|_it|_test)$`) })
	jsFormat   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`%[a-zA-Z#$]|\$[\w.]+`) })
	jsFunction = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`\bfunction\s*\*?\s*([\w$]+)\s*\(|\b(?:const|let|var)\s+([\w$]+)\s*=\s*(?:async\s*)?(?:function\s*)?(?:\(|[\w$]+\s*=>)`)
	})
	// jsHeader matches what stands before the parentheses of a condition or loop.
	jsHeader = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:^|[^\w.$])(?:if|for|while|for\s+await)\s*$`) })
)

// jsLive returns the statements of a block that can run: not those after a return, or
// under a condition that is never true.
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

// jsEnd returns where the block ends that s begins with; negative: there is none, or it
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

// jsStatement returns where a statement ends, or a line of it: that is enough to find the
// beginning of the next. A statement under a condition or in a loop belongs to that.
func jsStatement(s string) int {
	depth, line := 0, -1 // line: the last line end, if only spaces follow
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

// maxTestName bounds a test's name with those of enclosing blocks, in bytes. Ids are
// shorter.
const maxTestName = 2 * maxTestID

var errLongName = fmt.Errorf("a name in it is longer than %d bytes", maxTestName)

// nameBudget bounds the total size of a text's full names, since each repeats the names
// of enclosing blocks.
type nameBudget struct{ textSize, sum int }

func (n *nameBudget) add(name string) error {
	if len(name) > maxTestName {
		return errLongName
	}
	if n.sum += len(name); n.sum > 8*n.textSize+1<<16 {
		return fmt.Errorf("names of its tests have more than %d bytes together", 8*n.textSize+1<<16)
	}
	return nil
}
