// Package safetext escapes untrusted text, such as from inside a bottle, for display.
//
// Text of a bottle appears in a terminal, a review or a log line of the host. There it could move the cursor, retitle or
// reprogram the terminal (ANSI, OSC, C1), reorder text (bidirectional controls), hide words (zero-width, tag and filler
// characters), or forge another line (line breaks, a lone carriage return). So every character that is not plainly
// printable is replaced by an escape in Go's notation: \x1b for control characters and for bytes that are not UTF-8,
// \u202e and \U000e0041 for other characters.
//
// Letters, marks, numbers, punctuation, symbols and the ASCII space are allowed; unassigned and private characters are
// not. So a character of a later Unicode version is escaped until Go knows it.
//
// Look-alike letters are not escaped, and a terminal still reorders letters of right-to-left scripts within their line.
//
// Start reading at encoder.next.
package safetext

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxPath bounds the result of Path, in bytes: the longest path of Linux, once.
const maxPath = 4096

const (
	ellipsis = "…"
	// maxMarks bounds the combining marks on one letter. Living scripts use at most a handful; an unbounded number paints
	// over the lines above and below.
	maxMarks = 6
)

// String returns s as one line of at most max bytes. Line breaks and tabs become \n and \t. A longer result is cut and
// ends in "…", which counts towards max; neither a character nor an escape is ever split. If max is not positive, String
// returns "". A backslash of s is not escaped, so the result cannot be decoded, and
// String(String(s, n), n) == String(s, n).
func String(s string, max int) string { return bounded(s, max, false) }

// Bytes is String for bytes.
func Bytes(b []byte, max int) string {
	// One byte of input gives at least one byte of output, so only the first max+1 bytes matter; do not copy more.
	if max >= 0 && len(b) > max+utf8.UTFMax {
		b = b[:max+utf8.UTFMax]
	}
	return bounded(string(b), max, false)
}

// Lines is String for text of several lines: \n and \t stay, \r\n becomes \n, and a lone \r is shown as \r. Whoever
// prints the result between lines of its own should mark each line as the bottle's, as Writer does with Options.Prefix.
func Lines(s string, max int) string { return bounded(s, max, true) }

// Path returns a file name in a form that differs from that of every other name: unchanged if it is plain, else in double
// quotes with quotes, backslashes and unprintable characters escaped. A result longer than MaxPath is cut and ends in "…".
func Path(p []byte) string {
	s := string(p[:min(len(p), maxPath+1)])
	if plainPath(s) && len(s) <= maxPath {
		return s
	}
	e := encoder{quote: true}
	out := []byte{'"'}
	for len(s) > 0 {
		before := len(out)
		var n int
		out, n = e.next(out, s, true)
		if len(out) > maxPath-len(`"`)-len(ellipsis) {
			return string(out[:before]) + `"` + ellipsis
		}
		s = s[n:]
	}
	return string(append(out, '"'))
}

// Clean reports whether s is already one safe line, which String would not change.
func Clean(s string) bool {
	var buf [16]byte
	var e encoder
	for len(s) > 0 {
		out, n := e.next(buf[:0], s, true)
		if string(out) != s[:n] {
			return false
		}
		s = s[n:]
	}
	return true
}

func plainPath(s string) bool {
	return s != "" && Clean(s) && !strings.ContainsAny(s, `"\`) &&
		s[0] != ' ' && s[len(s)-1] != ' ' && !strings.Contains(s, ellipsis)
}

func bounded(s string, max int, multi bool) string {
	if max <= 0 {
		return ""
	}
	e := encoder{multi: multi}
	out := make([]byte, 0, min(len(s), max))
	fits := 0 // the longest prefix of out that leaves room for the ellipsis
	for len(s) > 0 {
		var n int
		out, n = e.next(out, s, true)
		s = s[n:]
		if len(out) > max {
			if max < len(ellipsis) {
				return ""
			}
			return string(out[:fits]) + ellipsis
		}
		if len(out) <= max-len(ellipsis) {
			fits = len(out)
		}
	}
	return string(out)
}

// encoder escapes text, and holds the state that depends on earlier text. The zero value is for one line.
type encoder struct {
	multi bool // \n and \t stay
	quote bool // double quotes, backslashes and … are escaped: the result can be decoded
	base  bool // a visible letter precedes, to which a combining mark can belong
	marks int  // combining marks since that letter
}

// next appends the escaped form of the first unit of s to dst and returns the unit's length in s. It returns 0 only if s
// may be an incomplete unit and final is false.
func (e *encoder) next(dst []byte, s string, final bool) ([]byte, int) {
	r, n := utf8.DecodeRuneInString(s)
	switch {
	case r == utf8.RuneError && n <= 1:
		if !final && !utf8.FullRuneInString(s) {
			return dst, 0
		}
		return e.escape(dst, rune(s[0]), true), 1
	case e.multi && (r == '\n' || r == '\t'):
		e.base = false
		return append(dst, byte(r)), n
	case e.multi && r == '\r':
		if len(s) == 1 && !final {
			return dst, 0
		}
		if len(s) > 1 && s[1] == '\n' {
			e.base = false
			return append(dst, '\n'), 2
		}
	case e.quote && (r == '"' || r == '\\'):
		e.base = false
		return append(dst, '\\', byte(r)), n
	case e.quote && r == '…':
		// As it is, it stands for what was cut.
		return e.escape(dst, r, false), n
	}
	if !e.keep(r) {
		return e.escape(dst, r, false), n
	}
	return append(dst, s[:n]...), n
}

// keep reports whether r may be shown unescaped after the text so far.
func (e *encoder) keep(r rune) bool {
	if r < utf8.RuneSelf {
		e.base, e.marks = r > ' ' && r < 0x7f, 0
		return r >= ' ' && r < 0x7f
	}
	if !unicode.IsPrint(r) || unicode.In(r, hidden...) {
		return false
	}
	if !unicode.Is(unicode.M, r) {
		e.base, e.marks = true, 0
		return true
	}
	// A mark without a letter would change the host's text before it.
	e.marks++
	return e.base && e.marks <= maxMarks
}

// hidden lists characters that are letters, marks or symbols but invisible.
var hidden = []*unicode.RangeTable{
	unicode.Other_Default_Ignorable_Code_Point, // Hangul fillers, combining grapheme joiner, Khmer inherent vowels
	unicode.Variation_Selector,                 // enough of them to carry a hidden text
	{
		R16: []unicode.Range16{{Lo: 0x2800, Hi: 0x2800, Stride: 1}}, // empty Braille pattern
		R32: []unicode.Range32{
			{Lo: 0x16fe4, Hi: 0x16fe4, Stride: 1}, // Khitan filler
			{Lo: 0x1d159, Hi: 0x1d159, Stride: 1}, // musical null notehead
		},
	},
}

func (e *encoder) escape(dst []byte, r rune, raw bool) []byte {
	const hex = "0123456789abcdef"
	e.base = false
	digits := 0
	switch {
	case r == '\n':
		return append(dst, '\\', 'n')
	case r == '\r':
		return append(dst, '\\', 'r')
	case r == '\t':
		return append(dst, '\\', 't')
	case raw || r < utf8.RuneSelf:
		dst, digits = append(dst, '\\', 'x'), 2
	case r > 0xffff:
		dst, digits = append(dst, '\\', 'U'), 8
	default:
		dst, digits = append(dst, '\\', 'u'), 4
	}
	for shift := (digits - 1) * 4; shift >= 0; shift -= 4 {
		dst = append(dst, hex[(r>>shift)&0xf])
	}
	return dst
}

// Word returns s as one word of a POSIX shell, which expands nothing in it. s must have no zero byte. The result is not
// safe to show.
func Word(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
