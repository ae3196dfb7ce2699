package secret

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unsafe"
)

// MinRedacted is the length of the shortest value that a Redactor takes, in bytes: a shorter one would stand in ordinary
// text by chance, and its marks would then spell it out.
const MinRedacted = 6

// Redactor replaces known secret values in text by "[redacted:<name>]". Only the values as they are: encodings of them
// are the business of package scan. The zero Redactor knows none and changes nothing. It is not changed after NewRedactor
// and may be used concurrently.
type Redactor struct {
	entries []entry // longest first
	first   [256]bool
	longest int
}

type entry struct {
	value Value
	mark  []byte
}

// NewRedactor knows the given values by their names, which appear in the marks: lower-case letters, digits and "-_." only.
// A value shorter than MinRedacted is an error, for text with it could not be made safe.
func NewRedactor(values map[string]Value) (*Redactor, error) {
	r := &Redactor{}
	for name, v := range values {
		if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
			return nil, fmt.Errorf("redact %q: not a name of lower-case letters, digits, dots, dashes and underscores", name)
		}
		if v.Len() < MinRedacted {
			return nil, fmt.Errorf("redact %s: shorter than %d bytes", name, MinRedacted)
		}
		r.entries = append(r.entries, entry{New(v.bytes()), []byte("[redacted:" + name + "]")})
		r.first[v.bytes()[0]] = true
		r.longest = max(r.longest, v.Len())
	}
	// Of two values that start at the same place the longer one is replaced: the shorter would leave its rest readable.
	slices.SortFunc(r.entries, func(a, b entry) int {
		if d := b.value.Len() - a.value.Len(); d != 0 {
			return d
		}
		return bytes.Compare(a.mark, b.mark)
	})
	return r, nil
}

// String returns s without the known values.
func (r *Redactor) String(s string) string { return string(r.Bytes([]byte(s))) }

// None reports whether r knows no value: then nothing it is given changes.
func (r *Redactor) None() bool { return r == nil || len(r.entries) == 0 }

// In reports whether s holds a known value. It is many times faster than String, for the many texts that hold none.
func (r *Redactor) In(s string) bool {
	if r == nil {
		return false
	}
	for _, e := range r.entries {
		v := e.value.bytes()
		if strings.Contains(s, unsafe.String(unsafe.SliceData(v), len(v))) { // a string of its own would be a copy that stays
			return true
		}
	}
	return false
}

// Prefix is String for the beginning of a longer text that was cut off: its last bytes, in which a value may begin whose
// rest is gone, are dropped.
func (r *Redactor) Prefix(s string) string {
	if r.None() {
		return s
	}
	out, _ := r.pass(nil, []byte(s), max(r.longest-1, 1))
	return string(out)
}

// Bytes returns b without the known values, in new memory.
func (r *Redactor) Bytes(b []byte) []byte {
	out, _ := r.pass(nil, b, 0)
	return out
}

// pass appends b, redacted, to dst, and returns what of b it left because a value might begin there. With keep 0 nothing
// is left; else the last keep bytes are, as far as they may be the beginning of a value.
//
// Values may overlap in the text ("abc" and "cde" in "abcde"): everything from the first to the last of a chain is
// replaced, so that no tail of a value stays behind the mark of another.
func (r *Redactor) pass(dst, b []byte, keep int) (out, rest []byte) {
	for i := 0; i < len(b); {
		if len(b)-i <= keep {
			return dst, b[i:]
		}
		n, mark := r.at(b[i:])
		if n == 0 {
			dst = append(dst, b[i])
			i++
			continue
		}
		end, from := i+n, i+1
		for ; from < end; from++ {
			if keep > 0 && len(b)-from <= keep {
				return dst, b[i:] // the chain may go on in what is still to come
			}
			if m, _ := r.at(b[from:]); from+m > end {
				end = from + m
			}
		}
		dst = append(dst, mark...)
		i = end
	}
	return dst, nil
}

// at returns the length of the longest value that b begins with, 0 for none.
func (r *Redactor) at(b []byte) (int, []byte) {
	if r == nil || len(b) == 0 || !r.first[b[0]] {
		return 0, nil
	}
	for _, e := range r.entries {
		if v := e.value.bytes(); bytes.HasPrefix(b, v) {
			return len(v), e.mark
		}
	}
	return 0, nil
}

// maxHeld bounds a chain of overlapping values in a stream.
const maxHeld = 1 << 20

// ErrChain ends a stream whose values overlap without an end: it can't be passed on safely in bounded memory.
var ErrChain = errors.New("redact stream: overlapping secrets without an end")

// Writer redacts a stream and passes it on. It holds back as many bytes as the longest value has, less one, so that a
// value is found wherever the stream is cut; Close gives those out. Not for concurrent use.
type Writer struct {
	r    *Redactor
	w    io.Writer
	held []byte
	err  error
}

// Writer returns a Writer that passes on to w.
func (r *Redactor) Writer(w io.Writer) *Writer { return &Writer{r: r, w: w} }

// Write reports len(p) unless the underlying writer failed; that error is then final.
func (w *Writer) Write(p []byte) (int, error) {
	const chunk = 64 << 10
	for off := 0; off < len(p); off += chunk {
		if err := w.feed(p[off:min(off+chunk, len(p))], max(w.longest()-1, 0)); err != nil {
			return 0, err
		}
	}
	return len(p), w.err
}

// Close gives out what was held back. It does not close the underlying writer.
func (w *Writer) Close() error { return w.feed(nil, 0) }

func (w *Writer) longest() int {
	if w.r == nil {
		return 0
	}
	return w.r.longest
}

func (w *Writer) feed(p []byte, keep int) error {
	if w.err != nil {
		return w.err
	}
	in := append(w.held, p...)
	out, rest := w.r.pass(nil, in, keep)
	if len(rest) > maxHeld {
		w.err = ErrChain
		return w.err
	}
	if len(out) > 0 {
		_, w.err = w.w.Write(out)
	}
	w.held = append([]byte(nil), rest...)
	clear(in)
	return w.err
}
