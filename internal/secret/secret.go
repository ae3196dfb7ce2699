// Package secret holds values that must not be seen: types that do not print, marshal or compare by accident, and a
// Redactor that takes known values out of text.
//
// It promises that a Value gives "[redacted]" (or an error) to every verb of fmt, to slog, and to the encoders of the
// standard library, also as a field of another type and behind any number of pointers; that == does not compile; and
// that the one way to the bytes, UnsafeReveal, is easy to find in a review. Not promised: protection from code in this
// process that means to read memory, nor that no copy remains: the runtime moves and copies as it likes.
//
// Start reading at Value, then Redactor.
package secret

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// Redacted replaces a value wherever it would be shown.
const Redacted = "[redacted]"

// errMarshal is returned to encoders. Encoding a secret is always a mistake, and "[redacted]" in its place would be
// stored and believed.
var errMarshal = errors.New("marshal secret: refused")

// Value is a secret. The zero Value holds nothing. Copies share the bytes: Destroy empties all of them. A Value may be
// used concurrently, Destroy excepted.
type Value struct {
	_ [0]func() // not comparable: == would leak by its timing, and as a map key it would be printed
	// The bytes lie behind a func: printers and encoders that walk unexported fields by reflection, which no method can
	// stop, see an address of code, and can't call it.
	get func() *[]byte
}

// New copies b, which the caller should clear.
func New(b []byte) Value {
	own := append([]byte(nil), b...)
	return Value{get: func() *[]byte { return &own }}
}

// NewString is New for a string, which can't be cleared: prefer New where the bytes are read from a file or pipe.
func NewString(s string) Value { return New([]byte(s)) }

func (v Value) bytes() []byte {
	if v.get == nil {
		return nil
	}
	return *v.get()
}

// UnsafeReveal calls f with the secret bytes. f must not keep or change them.
func (v Value) UnsafeReveal(f func([]byte)) { f(v.bytes()) }

// UnsafeString returns the secret as a string, which can never be cleared.
func (v Value) UnsafeString() string { return string(v.bytes()) }

// Empty reports whether v holds nothing or was destroyed.
func (v Value) Empty() bool { return len(v.bytes()) == 0 }

// Len returns the length in bytes.
func (v Value) Len() int { return len(v.bytes()) }

// Equal compares in a time that depends on no content, not even on the lengths. Empty values equal nothing, not even one
// another: an unset secret must not match an unset header.
func (v Value) Equal(o Value) bool { return v.EqualBytes(o.bytes()) }

// EqualBytes is Equal for bytes from elsewhere, such as a request.
func (v Value) EqualBytes(b []byte) bool {
	x, y := sha256.Sum256(v.bytes()), sha256.Sum256(b)
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1 && !v.Empty()
}

// Destroy overwrites the bytes, for all copies of v. Best effort: the runtime may have made copies of its own.
func (v Value) Destroy() {
	if v.get == nil {
		return
	}
	p := v.get()
	clear(*p)
	*p = nil
}

// Format implements fmt.Formatter for every verb and flag.
func (v Value) Format(s fmt.State, _ rune) { io.WriteString(s, Redacted) }

// String implements fmt.Stringer for printers that know no Formatter.
func (v Value) String() string { return Redacted }

// GoString implements fmt.GoStringer.
func (v Value) GoString() string { return Redacted }

// LogValue implements slog.LogValuer.
func (v Value) LogValue() slog.Value { return slog.StringValue(Redacted) }

// MarshalJSON refuses.
func (v Value) MarshalJSON() ([]byte, error) { return nil, errMarshal }

// MarshalText refuses; it covers XML, and maps and encoders that fall back to text.
func (v Value) MarshalText() ([]byte, error) { return nil, errMarshal }

// MarshalBinary refuses.
func (v Value) MarshalBinary() ([]byte, error) { return nil, errMarshal }

// GobEncode refuses.
func (v Value) GobEncode() ([]byte, error) { return nil, errMarshal }

// MarshalYAML refuses.
func (v Value) MarshalYAML() (any, error) { return nil, errMarshal }
