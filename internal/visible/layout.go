package visible

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

// Width is how many columns a terminal needs for s, which is visible already.
func Width(s string) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

// wider says whether s needs more columns than room, without looking at all of a
// long s.
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

// Wrap breaks s, which is visible already, into lines of at most room columns: at spaces where it can and within words
// where it must, never between a letter and its marks, because a line that starts with a mark would change what stands
// before it. A room of 8 holds a letter with the most marks that String keeps; with less, such a letter may stand out.
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

// wordFits says whether the word that s begins with is worth a line of its own.
func wordFits(s string, room int) bool {
	if i := strings.IndexByte(s, ' '); i >= 0 {
		s = s[:i]
	}
	return !wider(s, room)
}

// letter is how long the first letter of s is with its marks, in bytes.
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

// Fit cuts s, which is visible already, to room columns and ends what it cut in end, such as "…". It never cuts between
// a letter and its marks. A room that does not hold end gives "".
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
