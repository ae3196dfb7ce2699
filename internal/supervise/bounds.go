package supervise

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// field is one of a payload, with how many bytes it may have.
type field struct {
	name, value string
	max         int
}

// bounds reports the first field that is too long or not UTF-8: JSON would hold other
// bytes than were proposed.
func bounds(fields ...field) error {
	for _, f := range fields {
		if len(f.value) > f.max {
			return fmt.Errorf("field %q: %d bytes, at most %d", f.name, len(f.value), f.max)
		}
		if !utf8.ValidString(f.value) {
			return fmt.Errorf("field %q: is not UTF-8; quote it", f.name)
		}
	}
	return nil
}

// needed is bounds for fields that must not be empty.
func needed(fields ...field) error {
	for _, f := range fields {
		if f.value == "" {
			return fmt.Errorf("field %q: is missing", f.name)
		}
	}
	return bounds(fields...)
}

// join puts a space between what is not empty.
func join(parts ...string) string {
	var out []string
	for _, p := range parts {
		if p != "" {
			out = append(out, p)
		}
	}
	return strings.Join(out, " ")
}
