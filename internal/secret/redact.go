package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
)

// MinRedacted is the length of the shortest value that a Redactor takes, in bytes: a shorter one would stand in ordinary
// text by chance, and its marks would then spell it out.
const MinRedacted = 6

// Redactor replaces known secret values in text by "[redacted:<name>]": as they are, and as base64, hex and URLs write
// them. All other encodings are the business of package scan. It only ever learns: what was added once is replaced in all
// text that comes later. The zero Redactor knows none and changes nothing. It may be used concurrently.
type Redactor struct {
	add sync.Mutex // held while values are added
	now atomic.Pointer[watched]
}

// watched is an immutable set of the values that a Redactor replaces.
type watched struct {
	entries []entry // longest first
	// by has their numbers by how they begin.
	by map[uint32][]int
	// filter has a bit for the hash of each of the first three windows of four bytes of every entry. A text that holds a
	// value has one of these at a multiple of three, so that most texts are read at every third byte and are done.
	filter [1024]uint64
}

type entry struct {
	value Value
	mark  []byte
}

const window = 4

// NewRedactor knows the given values by their names, which appear in the marks: lower-case letters, digits and "-_." only.
// A value shorter than MinRedacted is an error, for text with it could not be made safe.
func NewRedactor(values map[string]Value) (*Redactor, error) {
	r := &Redactor{}
	return r, r.Add(values)
}

// Add adds values to r: all of them or, with an error, none.
func (r *Redactor) Add(values map[string]Value) error {
	r.add.Lock()
	defer r.add.Unlock()
	next := &watched{by: map[uint32][]int{}}
	if old := r.now.Load(); old != nil {
		next.entries = slices.Clone(old.entries)
	}
	had := map[string]bool{}
	for _, e := range next.entries {
		had[e.value.UnsafeString()] = true
	}
	for name, v := range values {
		if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
			return fmt.Errorf("redact %q: not a name of lower-case letters, digits, dots, dashes and underscores", name)
		}
		if v.Len() < MinRedacted {
			return fmt.Errorf("redact %s: shorter than %d bytes", name, MinRedacted)
		}
		for _, form := range forms(v.bytes()) {
			if len(form) >= MinRedacted && !had[string(form)] {
				had[string(form)] = true
				next.entries = append(next.entries, entry{New(form), []byte("[redacted:" + name + "]")})
			}
		}
	}
	if len(next.entries) == 0 {
		return nil
	}
	// Of two values that start at the same place the longer one is replaced: the shorter would leave its rest readable.
	slices.SortFunc(next.entries, func(a, b entry) int {
		if d := b.value.Len() - a.value.Len(); d != 0 {
			return d
		}
		return bytes.Compare(a.mark, b.mark)
	})
	for i, e := range next.entries {
		b := e.value.bytes()
		first := binary.LittleEndian.Uint32(b)
		next.by[first] = append(next.by[first], i)
		for at := range 3 {
			word, bit := place(b[at:])
			next.filter[word] |= bit
		}
	}
	r.now.Store(next)
	return nil
}

// forms returns a value and its common encodings. Base64 is made for each offset that the value may have in a group,
// without the characters that depend on its neighbours.
func forms(b []byte) [][]byte {
	out := [][]byte{b}
	for n := range 3 {
		out = append(out, Base64At(b, n, base64.StdEncoding), Base64At(b, n, base64.URLEncoding))
	}
	low := hex.EncodeToString(b)
	out = append(out, []byte(low), []byte(strings.ToUpper(low)))
	all := make([]byte, 0, 3*len(b))
	for i := range b {
		all = append(append(all, '%'), low[2*i:2*i+2]...)
	}
	out = append(out, all, bytes.ToUpper(all))
	for _, escaped := range []string{url.QueryEscape(string(b)), url.PathEscape(string(b))} {
		out = append(out, []byte(escaped), []byte(lowerEscapes(escaped)))
	}
	return out
}

// lowerEscapes writes %2F as %2f.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:i+3], bytes.ToLower(b[i+1:i+3]))
			i += 2
		}
	}
	return string(b)
}

// Base64At returns the characters of the base64 of b that depend on b alone, if n bytes precede b.
func Base64At(b []byte, n int, enc *base64.Encoding) []byte {
	t := enc.EncodeToString(append(make([]byte, n), b...))
	return []byte(t[(n*8+5)/6 : (n+len(b))*8/6])
}

// place returns the index in the filter of the window that b begins with.
func place(b []byte) (word int, bit uint64) {
	h := binary.LittleEndian.Uint32(b) * 0x9E3779B1 >> 16
	return int(h >> 6), 1 << (h & 63)
}

// maybe reports whether b may hold a value.
func (w *watched) maybe(b []byte) bool {
	for i := 0; i+window <= len(b); i += 3 {
		if word, bit := place(b[i:]); w.filter[word]&bit != 0 {
			return true
		}
	}
	return false
}

// at returns the length of the longest value that b begins with, 0 for none, and its
// mark. With cut, b may also be the beginning of a value; then the length is that of b.
func (w *watched) at(b []byte, cut bool) (n int, mark []byte) {
	if len(b) < window {
		if cut && len(b) > 0 {
			for _, e := range w.entries {
				if bytes.HasPrefix(e.value.bytes(), b) {
					return len(b), nil
				}
			}
		}
		return 0, nil
	}
	if word, bit := place(b); w.filter[word]&bit == 0 {
		return 0, nil
	}
	for _, i := range w.by[binary.LittleEndian.Uint32(b)] {
		e := &w.entries[i]
		v := e.value.bytes()
		switch {
		case cut && len(v) > len(b) && bytes.HasPrefix(v, b):
			n = len(b)
		case bytes.HasPrefix(b, v):
			return max(n, len(v)), e.mark
		}
	}
	return n, nil
}

// pass returns b, redacted, in new memory. With cut, it also drops an end that may be the
// beginning of a value.
//
// Values may overlap in the text ("abc" and "cde" in "abcde"): everything from the first to the last of a chain is
// replaced, so that no tail of a value stays behind the mark of another.
func (w *watched) pass(b []byte, cut bool) []byte {
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); {
		n, mark := w.at(b[i:], cut)
		if n == 0 {
			out = append(out, b[i])
			i++
			continue
		}
		end := i + n
		for from := i + 1; from < end; from++ {
			m, _ := w.at(b[from:], cut)
			end = max(end, from+m)
		}
		out = append(out, mark...)
		i = end
	}
	return out
}

func (r *Redactor) watched() *watched {
	if r == nil {
		return nil
	}
	return r.now.Load()
}

// String returns s without the known values.
func (r *Redactor) String(s string) string {
	w := r.watched()
	if w == nil || !w.maybe(bytesOf(s)) {
		return s
	}
	return string(w.pass(bytesOf(s), false))
}

// None reports whether r knows no value: then nothing it is given changes.
func (r *Redactor) None() bool { return r.watched() == nil }

// In reports whether s holds a known value.
func (r *Redactor) In(s string) bool {
	w, b := r.watched(), bytesOf(s)
	if w == nil || !w.maybe(b) {
		return false
	}
	for i := range b {
		if n, _ := w.at(b[i:], false); n > 0 {
			return true
		}
	}
	return false
}

// Prefix is String for the beginning of a text that was cut off: it drops an end that may be the beginning of a value.
func (r *Redactor) Prefix(s string) string {
	w := r.watched()
	if w == nil {
		return s
	}
	return string(w.pass(bytesOf(s), true))
}

// bytesOf returns the bytes of s itself, to be read only: a copy would stay in memory.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
