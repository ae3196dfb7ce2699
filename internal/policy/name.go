package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/net/idna"
)

// idnaProfile maps names as browsers do, so that a route written by a person matches
// the names that programs ask for.
var idnaProfile = idna.New(idna.MapForLookup(), idna.Transitional(false), idna.StrictDomainName(false))

var errEmptyHost = errors.New("host is empty")

// CanonicalName returns the spelling of a host name that is used in comparisons:
// ASCII, lower case, no trailing dot. It refuses anything else than host names: empty
// or over-long labels, characters other than letters, digits, hyphen and underscore,
// and all spellings that some program reads as an IPv4 address (0x7f.1, 2130706433,
// 010.0.0.1).
func CanonicalName(s string) (string, error) {
	name := strings.TrimSuffix(s, ".")
	if name == "" {
		return "", errEmptyHost
	}
	if len(name) > 4*253 {
		return "", errors.New("host name is too long")
	}
	if !isASCII(name) {
		ascii, err := idnaProfile.ToASCII(name)
		if err != nil {
			return "", fmt.Errorf("host name %.80q: %w", s, err)
		}
		// Full-width dots become dots, so a trailing one can appear here.
		name = strings.TrimSuffix(ascii, ".")
	}
	name = strings.ToLower(name)
	if len(name) > 253 {
		return "", errors.New("host name is longer than 253 characters")
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		if err := checkLabel(label); err != nil {
			return "", fmt.Errorf("host name %.80q: %w", s, err)
		}
		last = label
	}
	// URL parsers treat such a host as an IPv4 address (WHATWG URL, "ends in a
	// number").
	if isNumber(last) {
		return "", fmt.Errorf("host %.80q: looks like an ipv4 address in an unusual spelling; write four decimal numbers", s)
	}
	return name, nil
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

func checkLabel(label string) error {
	switch {
	case label == "":
		return errors.New("empty label")
	case len(label) > 63:
		return errors.New("label is longer than 63 characters")
	case label[0] == '-' || label[len(label)-1] == '-':
		return fmt.Errorf("label %q begins or ends with a hyphen", label)
	}
	for i := range len(label) {
		c := label[i]
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_' {
			continue
		}
		return fmt.Errorf("character %q is not allowed", rune(c))
	}
	return nil
}

// isNumber reports whether a URL parser would read the label as a number.
func isNumber(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// parseLiteral parses an IP address in its usual spelling. ok is false for anything
// else, including every spelling that netip refuses.
func parseLiteral(s string, bracketed bool) (addr netip.Addr, ok bool) {
	addr, err := netip.ParseAddr(s)
	if err != nil || addr.Is6() != bracketed {
		return netip.Addr{}, false
	}
	return addr, true
}

// ServiceName reports whether a server beside a bottle can have the name: one lower-case
// label, which is no name of carboy's own.
func ServiceName(name string) bool {
	return checkLabel(name) == nil && !strings.Contains(name, "_") && name[0] >= 'a' && name[0] <= 'z' && name != "localhost" && name != hostname
}

// hostname holds the name by which a bottle calls itself.
const hostname = "carboy"
