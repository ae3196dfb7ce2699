package scan

import (
	"regexp/syntax"
	"slices"
	"strings"
)

// An anchor is a literal that every match of a rule holds, between lo and hi
// bytes after the match's beginning: where it is found, and only there, the
// rule is tried.
type anchor struct {
	text   string
	fold   bool
	lo, hi int
}

// Bounds of the first stage's literals: shorter ones would be found everywhere,
// longer ones would find nothing more.
const (
	anchorMin  = 2
	anchorMax  = 20
	anchorsMax = 40 // of one rule
	anchorBack = 48 // bytes of a match before its anchor
)

// anchors returns literals one of which is in every match of re, or nil if none is
// at a known distance from the beginning.
func anchors(re *syntax.Regexp) []anchor {
	for re.Op == syntax.OpCapture {
		re = re.Sub[0]
	}
	if re.Op == syntax.OpAlternate {
		var all []anchor
		for _, sub := range re.Sub {
			a := anchors(sub)
			if a == nil {
				return nil
			}
			all = append(all, a...)
		}
		return trim(all)
	}
	parts := []*syntax.Regexp{re}
	if re.Op == syntax.OpConcat {
		parts = flatten(re.Sub)
	}
	var best []anchor
	lo, hi := 0, 0
	for i, p := range parts {
		var strs []str
		strs = append(strs, str{exact: true})
		for _, q := range parts[i:] {
			more := beginnings(q)
			strs = cross(strs, more)
			if strs == nil || !slices.ContainsFunc(strs, func(s str) bool { return s.exact }) {
				break
			}
		}
		if found := asAnchors(strs, lo, hi); better(found, best) {
			best = found
		}
		a, b, ok := width(p)
		if lo, hi = lo+a, hi+b; !ok || hi > anchorBack || hi-lo > 2 {
			break
		}
	}
	return best
}

func flatten(subs []*syntax.Regexp) (out []*syntax.Regexp) {
	for _, s := range subs {
		for s.Op == syntax.OpCapture {
			s = s.Sub[0]
		}
		if s.Op == syntax.OpConcat {
			out = append(out, flatten(s.Sub)...)
		} else {
			out = append(out, s)
		}
	}
	return out
}

// better prefers longer literals; a longer one further in must be worth it.
func better(a, b []anchor) bool {
	if a == nil || b == nil {
		return a != nil
	}
	score := func(as []anchor) int {
		n := 8
		for _, a := range as {
			n = min(n, len(a.text))
		}
		if n >= 4 {
			n += 2
		}
		if as[0].hi > 0 {
			n -= 3
		}
		return n
	}
	return score(a) > score(b)
}

// str is a prefix of a match of an expression; exact means that it is the whole.
type str struct {
	text  string
	fold  bool
	exact bool
}

// beginnings enumerates prefixes of the matches of re.
func beginnings(re *syntax.Regexp) []str {
	switch re.Op {
	case syntax.OpLiteral:
		var s str
		for _, r := range re.Rune {
			if r > 0x7f {
				return []str{s}
			}
			s.text += string(r)
		}
		s.fold = re.Flags&syntax.FoldCase != 0 && s.text != strings.ToUpper(s.text) || re.Flags&syntax.FoldCase != 0 && s.text != strings.ToLower(s.text)
		s.exact = true
		return []str{s}
	case syntax.OpCapture:
		return beginnings(re.Sub[0])
	case syntax.OpConcat:
		out := []str{{exact: true}}
		for _, sub := range re.Sub {
			out = cross(out, beginnings(sub))
		}
		return out
	case syntax.OpAlternate:
		var out []str
		for _, sub := range re.Sub {
			out = append(out, beginnings(sub)...)
		}
		return out
	case syntax.OpQuest:
		return append([]str{{exact: true}}, beginnings(re.Sub[0])...)
	case syntax.OpCharClass:
		return class(re)
	case syntax.OpWordBoundary, syntax.OpNoWordBoundary, syntax.OpBeginText, syntax.OpEmptyMatch:
		return []str{{exact: true}}
	case syntax.OpRepeat, syntax.OpPlus:
		if re.Op == syntax.OpPlus || re.Min > 0 {
			out := beginnings(re.Sub[0])
			for i := range out {
				out[i].exact = out[i].exact && re.Op == syntax.OpRepeat && re.Min == 1 && re.Max == 1
			}
			return out
		}
	}
	return []str{{}}
}

func class(re *syntax.Regexp) []str {
	var low []byte
	n := 0
	for i := 0; i < len(re.Rune); i += 2 {
		for r := re.Rune[i]; r <= re.Rune[i+1] && n < 16; r++ {
			if r > 0x7f {
				continue
			}
			n++
			if c := strings.ToLower(string(r))[0]; !slices.Contains(low, c) {
				low = append(low, c)
			}
		}
	}
	if n > 6 || n == 0 || re.Rune[len(re.Rune)-1] > 0x7f && re.Rune[len(re.Rune)-1] != 'ſ' && re.Rune[len(re.Rune)-1] != '\u212a' {
		return []str{{}}
	}
	var out []str
	for _, c := range low {
		// A letter in one case is taken in both: the rule decides later.
		out = append(out, str{text: string(c), fold: 'a' <= c && c <= 'z', exact: true})
	}
	if n == 1 {
		out[0] = str{text: string(re.Rune[0]), exact: true}
	}
	return out
}

func cross(a, b []str) []str {
	var out []str
	for _, x := range a {
		if !x.exact || len(x.text) >= anchorMax {
			x.exact = false
			out = append(out, x)
			continue
		}
		for _, y := range b {
			out = append(out, str{text: x.text + y.text, fold: x.fold || y.fold, exact: y.exact})
		}
	}
	if len(out) > anchorsMax {
		// Too many: the prefixes so far are still right, if not exact.
		out = slices.Clone(a)
		for i := range out {
			out[i].exact = false
		}
	}
	return out
}

func asAnchors(strs []str, lo, hi int) (out []anchor) {
	for _, s := range strs {
		if len(s.text) < anchorMin {
			return nil
		}
		out = append(out, anchor{text: s.text[:min(len(s.text), anchorMax)], fold: s.fold, lo: lo, hi: hi})
	}
	return trim(out)
}

// trim drops the anchors that another one finds as well.
func trim(as []anchor) (out []anchor) {
	for i, a := range as {
		covered := false
		for j, b := range as {
			if i == j || a.lo != b.lo || a.hi != b.hi {
				continue
			}
			at, bt := a.text, b.text
			if b.fold {
				at, bt = strings.ToLower(at), strings.ToLower(bt)
			}
			if strings.HasPrefix(at, bt) && (b.fold || !a.fold) && (len(at) > len(bt) || a.fold != b.fold || j < i) {
				covered = true
			}
		}
		if !covered {
			out = append(out, a)
		}
	}
	return out
}

// width returns the least and the largest number of bytes that re matches.
func width(re *syntax.Regexp) (lo, hi int, ok bool) {
	switch re.Op {
	case syntax.OpLiteral:
		return len(re.Rune), len(re.Rune), true
	case syntax.OpCharClass, syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return 1, 1, true
	case syntax.OpWordBoundary, syntax.OpNoWordBoundary, syntax.OpBeginText, syntax.OpEndText, syntax.OpEmptyMatch:
		return 0, 0, true
	case syntax.OpCapture:
		return width(re.Sub[0])
	case syntax.OpQuest:
		_, hi, ok = width(re.Sub[0])
		return 0, hi, ok
	case syntax.OpRepeat:
		lo, hi, ok = width(re.Sub[0])
		return lo * re.Min, hi * re.Max, ok && re.Max >= 0
	case syntax.OpConcat:
		for _, s := range re.Sub {
			a, b, fine := width(s)
			if !fine {
				return 0, 0, false
			}
			lo, hi = lo+a, hi+b
		}
		return lo, hi, true
	case syntax.OpAlternate:
		lo = 1 << 20
		for _, s := range re.Sub {
			a, b, fine := width(s)
			if !fine {
				return 0, 0, false
			}
			lo, hi = min(lo, a), max(hi, b)
		}
		return lo, hi, true
	}
	return 0, 0, false
}
