package gate

import (
	"regexp"
	"strings"
	"sync"
)

// code is a text without its comments and without what its strings say, line by line as
// it was. Python and JavaScript are told apart by their comments.
func code(s string, python bool) string {
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); {
		rest := s[i:]
		end := ""
		switch {
		case python && rest[0] == '#', !python && strings.HasPrefix(rest, "//"):
			n := strings.IndexByte(rest, '\n')
			if n < 0 {
				return string(out)
			}
			i += n
			continue
		case !python && strings.HasPrefix(rest, "/*"):
			end = "*/"
			i += 2
		case python && (strings.HasPrefix(rest, `"""`) || strings.HasPrefix(rest, "'''")):
			end = rest[:3]
			out = append(out, '"', '"')
			i += 3
		case rest[0] == '"', rest[0] == '\'', rest[0] == '`' && !python:
			end = rest[:1]
			out = append(out, '"', '"')
			i++
		default:
			out = append(out, rest[0])
			i++
			continue
		}
		for i < len(s) && !strings.HasPrefix(s[i:], end) {
			if s[i] == '\n' {
				out = append(out, '\n')
				if end == `"` || end == "'" {
					break // it was none, but an apostrophe
				}
			} else if s[i] == '\\' && end != "*/" {
				i++
			}
			i++
		}
		if i < len(s) && s[i] != '\n' || len(end) != 1 {
			i += len(end)
		}
		i = min(i, len(s))
	}
	return string(out)
}

var pythonDef = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(\s*)(?:async\s+)?def\s+(test\w*)\s*\(`) })

func pythonBodies(b []byte) map[string]body {
	out := map[string]body{}
	name, indent := "", 0
	dead := -1 // lines that are indented so far or more never run
	see := func(text string) {
		switch {
		case !meansSomething(text):
			out[name] = max(out[name], empty)
		case pythonCheck().MatchString(text):
			out[name] = checks
		default:
			out[name] = max(out[name], runs)
		}
	}
	for line := range strings.Lines(code(string(b), true)) {
		text := strings.TrimSpace(line)
		if text == "" {
			continue
		}
		in := len(line) - len(strings.TrimLeft(line, " \t"))
		if m := pythonDef().FindStringSubmatch(line); m != nil {
			name, indent, dead = m[2], len(m[1]), -1
			_, rest, _ := strings.Cut(text, "):")
			see(strings.TrimSpace(rest))
			continue
		}
		if name == "" {
			continue
		}
		if in <= indent {
			name = ""
			continue
		}
		if dead >= 0 && in >= dead {
			continue
		}
		dead = -1
		if word, rest, _ := strings.Cut(text, " "); text == "return" || word == "return" || word == "break" || word == "continue" {
			dead = in
			see(strings.TrimSpace(rest))
			continue
		}
		if never := pythonNever().FindString(text); never != "" {
			dead = in + 1
			continue
		}
		see(text)
	}
	return out
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

var jsTest = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("(?:^|[^\\w.])(?:it|test)\\s*\\(\\s*(['\"`])((?:[^\\\\]|\\\\.)*?)['\"`]\\s*,\\s*(?:async\\s*)?(?:function\\s*)?(?:\\([^)]*\\)|\\w+)\\s*(?:=>)?\\s*")
})

func jsBodies(b []byte) map[string]body {
	out := map[string]body{}
	all := jsTest().FindAllSubmatchIndex(b, -1)
	for i, m := range all {
		name := string(b[m[4]:m[5]])
		end := len(b)
		if i+1 < len(all) {
			end = all[i+1][0]
		}
		text, block := jsLive(code(string(b[m[1]:end]), false))
		switch {
		case block && strings.TrimSpace(strings.ReplaceAll(text, ";", "")) == "":
			out[name] = max(out[name], empty)
		case jsCheck().MatchString(text):
			out[name] = checks
		default:
			out[name] = max(out[name], runs)
		}
	}
	return out
}

var (
	jsCheck = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?i)(?:expect|assert|should|fail|verify|check)\w*\s*[.(]|\bthrow\b|\bt\.\w+\(`)
	})
	jsNever  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\s*if\s*\(\s*(?:false|0|!1|!true)\s*\)\s*`) })
	jsReturn = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\s*return\b`) })
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
		if in = strings.TrimLeft(in, " \t\r\n;"); in == "" {
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
	depth := 0
	for i := range len(s) {
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
			next := strings.TrimLeft(s[i:], " \t\r\n")
			if depth <= 0 && (next == "" || !strings.Contains(".?:+-*/%&|=,<>)]}", next[:1])) {
				return i + 1
			}
		}
	}
	return len(s)
}
