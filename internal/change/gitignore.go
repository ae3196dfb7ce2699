package change

import (
	"bytes"
	"path"
	"strings"
)

// ignoreRule is one pattern of a .gitignore, see gitignore(5).
type ignoreRule struct {
	parts    []string // "**" stands for any number of directories
	anchored bool     // the pattern is of the whole path, else of its last name
	negated  bool
	dirOnly  bool
}

// maxIgnoreRules bounds the patterns of one file.
const maxIgnoreRules = 1000

// parseIgnore reads a .gitignore. Patterns that it can't read match nothing.
func parseIgnore(text []byte) []ignoreRule {
	var rules []ignoreRule
	for line := range bytes.SplitSeq(bytes.TrimPrefix(text, []byte("\ufeff")), []byte("\n")) {
		if r, ok := parseIgnoreLine(string(line)); ok && len(rules) < maxIgnoreRules {
			rules = append(rules, r)
		}
	}
	return rules
}

func parseIgnoreLine(s string) (r ignoreRule, ok bool) {
	if strings.HasPrefix(s, "#") {
		return r, false
	}
	s = trimSpaces(strings.TrimSuffix(s, "\r"))
	s, r.negated = strings.CutPrefix(s, "!")
	s, r.dirOnly = strings.CutSuffix(s, "/")
	r.anchored = strings.Contains(s, "/")
	s = strings.TrimPrefix(s, "/")
	if s == "" {
		return r, false
	}
	for part := range strings.SplitSeq(s, "/") {
		for strings.Contains(part, "***") {
			part = strings.ReplaceAll(part, "***", "**")
		}
		if part != "**" {
			for strings.Contains(part, "**") {
				part = strings.ReplaceAll(part, "**", "*")
			}
			part = strings.ReplaceAll(part, "[!", "[^")
		}
		r.parts = append(r.parts, part)
	}
	return r, true
}

// trimSpaces removes spaces at the end that no backslash precedes.
func trimSpaces(s string) string {
	t := strings.TrimRight(s, " ")
	slashes := len(t) - len(strings.TrimRight(t, `\`))
	if slashes%2 == 1 && len(t) < len(s) {
		t += " "
	}
	return t
}

// matches reports whether the rule is about a path, relative to the rule's file.
func (r *ignoreRule) matches(names []string, isDir bool) bool {
	if r.dirOnly && !isDir {
		return false
	}
	if !r.anchored {
		names = names[len(names)-1:]
	}
	return matchParts(r.parts, names)
}

// matchParts matches names with parts. at[i] says that the parts so far match the first i
// names, so that no pattern takes more than their product.
func matchParts(parts, names []string) bool {
	at := make([]bool, len(names)+1)
	at[0] = true
	for k, part := range parts {
		next := make([]bool, len(names)+1)
		switch {
		case part != "**":
			for i, name := range names {
				if at[i] {
					next[i+1], _ = path.Match(part, name)
				}
			}
		case k == len(parts)-1 && k > 0: // all inside, not the directory itself
			for i := 1; i <= len(names); i++ {
				next[i] = next[i-1] || at[i-1]
			}
		default:
			for i := range next {
				next[i] = at[i] || i > 0 && next[i-1]
			}
		}
		at = next
	}
	return at[len(names)]
}
