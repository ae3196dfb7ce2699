package safetext

import (
	"io"
	"unicode/utf8"
)

// ASCII returns s, which must be safe already, for a terminal that supports only ASCII. Other characters become escapes as
// in String, and "…" becomes "...". Different results of Path stay different, because Path escapes backslashes.
func ASCII(s string) string {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			out, _ := appendASCII(append(make([]byte, 0, 2*len(s)), s[:i]...), s[i:], true)
			return string(out)
		}
	}
	return s
}

// appendASCII appends s to dst and returns how many bytes of s it used: all, unless s ends within a character and final
// is false.
func appendASCII(dst []byte, s string, final bool) ([]byte, int) {
	var e encoder
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			dst = append(dst, s[i])
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n <= 1:
			if !final && !utf8.FullRuneInString(s[i:]) {
				return dst, i
			}
			dst = e.escape(dst, rune(s[i]), true)
		case string(r) == ellipsis:
			dst = append(dst, "..."...)
		default:
			dst = e.escape(dst, r, false)
		}
		i += n
	}
	return dst, len(s)
}

// ASCIIWriter converts a stream as ASCII does. The stream must be safe already: ASCII bytes, control characters included,
// are not changed, so that colours work. It is not safe for concurrent use.
type ASCIIWriter struct {
	w    io.Writer
	held []byte // the beginning of a character, < utf8.UTFMax bytes
}

// NewASCIIWriter returns a writer that writes to w.
func NewASCIIWriter(w io.Writer) *ASCIIWriter { return &ASCIIWriter{w: w} }

// Write converts p. It returns len(p) unless the underlying writer failed.
func (w *ASCIIWriter) Write(p []byte) (int, error) {
	if err := w.feed(p, false); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close writes an incomplete character. It does not close the underlying writer.
func (w *ASCIIWriter) Close() error { return w.feed(nil, true) }

func (w *ASCIIWriter) feed(p []byte, final bool) error {
	s := string(w.held) + string(p)
	out, n := appendASCII(make([]byte, 0, len(s)), s, final)
	w.held = append(w.held[:0], s[n:]...)
	if len(out) == 0 {
		return nil
	}
	_, err := w.w.Write(out)
	return err
}
