package policy

import (
	"errors"
	"fmt"
	"strings"
)

// errAmbiguous refuses a path that two servers may read as two paths.
var errAmbiguous = errors.New("ambiguous path")

// NormalPath returns the spelling of a request's path that rules compare (RFC 3986
// section 6.2.2): percent-encoded letters, digits and -._~ are decoded, and the other
// encodings get upper-case digits. path comes from the request line, without the
// query.
//
// If servers disagree about a path, it is refused, not repaired: the rule would apply
// to one path and the server would serve another. That covers dot segments in any
// spelling, empty segments, encoded slashes and backslashes, backslashes, control
// characters, and bytes that should have been encoded.
func NormalPath(path string) (string, error) {
	if !strings.HasPrefix(path, "/") {
		return "", fmt.Errorf("%w: it does not begin with a slash", errAmbiguous)
	}
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		c := path[i]
		if c != '%' {
			if c <= ' ' || c >= 0x7f || strings.IndexByte("\\\"<>^`{|}#?[]", c) >= 0 {
				return "", fmt.Errorf("%w: %q must be percent-encoded", errAmbiguous, rune(c))
			}
			b.WriteByte(c)
			continue
		}
		if i+2 >= len(path) || unhex(path[i+1]) < 0 || unhex(path[i+2]) < 0 {
			return "", fmt.Errorf("%w: %q is no percent-encoding", errAmbiguous, path[i:min(i+3, len(path))])
		}
		v := byte(unhex(path[i+1])<<4 | unhex(path[i+2]))
		switch {
		case v == '/' || v == '\\' || v < ' ' || v == 0x7f:
			return "", fmt.Errorf("%w: %%%02X", errAmbiguous, v)
		case unreserved(v):
			b.WriteByte(v)
		default:
			fmt.Fprintf(&b, "%%%02X", v)
		}
		i += 2
	}
	out := b.String()
	for rest := out; ; {
		_, after, found := strings.Cut(rest, "%25")
		if !found {
			break
		}
		if len(after) >= 2 && unhex(after[0]) >= 0 && unhex(after[1]) >= 0 {
			return "", fmt.Errorf("%w: encoded twice", errAmbiguous)
		}
		rest = after
	}
	segments := strings.Split(out[1:], "/")
	for i, s := range segments {
		// Some servers first remove parameters (RFC 3986 section 3.3).
		bare, _, _ := strings.Cut(s, ";")
		bare, _, _ = strings.Cut(bare, "%3B")
		switch {
		case bare == "." || bare == "..":
			return "", fmt.Errorf("%w: a dot segment", errAmbiguous)
		case s == "" && i < len(segments)-1:
			return "", fmt.Errorf("%w: an empty segment", errAmbiguous)
		}
	}
	return out, nil
}

func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
