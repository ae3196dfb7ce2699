package supervise

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// field is a field of a payload, with its maximal length in bytes.
type field struct {
	name, value string
	max         int
}

// bounds returns an error for the first field that is too long or not UTF-8. JSON would
// change bytes that are not UTF-8.
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

// needed is like bounds, and also refuses empty fields.
func needed(fields ...field) error {
	for _, f := range fields {
		if f.value == "" {
			return fmt.Errorf("field %q: is missing", f.name)
		}
	}
	return bounds(fields...)
}

// join joins the parts that are not empty with spaces.
func join(parts ...string) string {
	var out []string
	for _, p := range parts {
		if p != "" {
			out = append(out, p)
		}
	}
	return strings.Join(out, " ")
}
