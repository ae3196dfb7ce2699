package safetext

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

// Width returns the number of columns that a terminal needs for s, which must be safe already.
func Width(s string) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

// wider reports whether s needs more columns than room. It does not read all of a long s.
func wider(s string, room int) bool {
	for _, r := range s {
		if room -= runeWidth(r); room < 0 {
			return true
		}
	}
	return false
}

func runeWidth(r rune) int {
	if r < 0x300 {
		return 1
	}
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// Wrap breaks s, which must be safe already, into lines of at most room columns. It breaks at spaces if it can and within
// words if it must, but never between a letter and its combining marks: a mark at the start of a line would change the
// text before it. A letter with the most marks that String keeps needs a room of 8; with less it may be wider than room.
func Wrap(s string, room int) []string {
	var lines []string
	for wider(s, room) {
		cut, space, at := 0, -1, 0
		for i, r := range s {
			if !unicode.Is(unicode.M, r) {
				cut = i
			}
			at += runeWidth(r)
			if at > room {
				break
			}
			if r == ' ' {
				space = i
			}
		}
		if cut == 0 {
			cut = letter(s)
		}
		if cut < len(s) && s[cut] == ' ' {
			space = cut
		}
		if space > 0 && (space >= cut/2 || wordFits(s[space+1:], room)) {
			lines = append(lines, strings.TrimRight(s[:space], " "))
			s = strings.TrimLeft(s[space:], " ")
			continue
		}
		lines = append(lines, s[:cut])
		s = s[cut:]
	}
	return append(lines, s)
}

// wordFits reports whether the first word of s fits on a line of its own.
func wordFits(s string, room int) bool {
	if i := strings.IndexByte(s, ' '); i >= 0 {
		s = s[:i]
	}
	return !wider(s, room)
}

// letter returns the length of the first letter of s with its combining marks, in bytes.
func letter(s string) int {
	_, n := utf8.DecodeRuneInString(s)
	for n < len(s) {
		r, m := utf8.DecodeRuneInString(s[n:])
		if !unicode.Is(unicode.M, r) {
			break
		}
		n += m
	}
	return n
}

// Fit cuts s, which must be safe already, to room columns. If it cuts, the result ends in end, such as "…". It never cuts
// between a letter and its combining marks. If room is less than the width of end, it returns "".
func Fit(s string, room int, end string) string {
	if !wider(s, room) {
		return s
	}
	room -= Width(end)
	if room < 0 {
		return ""
	}
	at := 0
	for i := 0; i < len(s); {
		n := letter(s[i:])
		if at += Width(s[i : i+n]); at > room {
			return s[:i] + end
		}
		i += n
	}
	return s
}

// Tilde shortens a path below the directory home, as shells write it. It makes nothing safe.
func Tilde(path, home string) string {
	if len(home) > 1 && strings.HasPrefix(path, home+"/") {
		return "~" + path[len(home):]
	}
	return path
}
