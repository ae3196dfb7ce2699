package gate

import (
	"bytes"
	"regexp"
	"sync"

	"github.com/carboy/carboy/internal/scan"
)

// Parts of a program's output are shown to people, forges and agents. Half a token, or a
// private key without its first line, cannot be recognized, so secrets are masked before
// anything is cut.

// maxMasked bounds the bytes of a text's beginning, and of its end, that are searched. The
// last of them may be part of a private key, which has at most 16 KiB: the shown text is
// far from there.
const maxMasked = 32 << 10

const unscannedText = "[left out: it could not be searched for tokens]"

// maskSecrets replaces the tokens and private keys in the first and last maxMasked bytes
// of s by asterisks. The length stays the same, unless s could not be searched.
func maskSecrets(s string) string {
	if s == "" {
		return s
	}
	b := []byte(s)
	parts := [][]byte{b}
	if len(b) > 2*maxMasked {
		parts = [][]byte{b[:maxMasked], b[len(b)-maxMasked:]}
	}
	for _, p := range parts {
		maskKeys(p)
		if !maskTokens(p) {
			return unscannedText
		}
	}
	return string(b)
}

// maskTokens masks tokens, and reports whether it could search all of b.
func maskTokens(b []byte) bool {
	rules, err := tokenRules()
	if err != nil {
		return false
	}
	found, err := rules.Check(scan.Options{Place: "output", Action: scan.Report}, b)
	if err != nil {
		return false
	}
	for _, f := range found {
		if !f.Warning {
			at := min(max(f.Offset, 0), int64(len(b)))
			maskLine(b[at:min(at+int64(f.Length), int64(len(b)))])
		}
	}
	return true
}

// maskLine keeps line ends, so that a later cut between lines stays there.
func maskLine(b []byte) {
	for i, c := range b {
		if c != '\n' && c != '\r' {
			b[i] = '*'
		}
	}
}

var keyForms = sync.OnceValue(func() (r struct{ begins, onLine, header, ends *regexp.Regexp }) {
	r.begins = regexp.MustCompile(`(?i)-----BEGIN[ A-Z0-9_-]{0,100}PRIVATE KEY(?: BLOCK)?-----`)
	r.onLine = regexp.MustCompile(`[A-Za-z0-9+/]{40}`)
	r.header = regexp.MustCompile(`^\W*$|^\W*[A-Za-z-]+: `)
	r.ends = regexp.MustCompile(`^\W*[A-Za-z0-9+/]{8,}={0,2}\s*$`)
	return r
})

// maskKeys masks the lines that follow the first line of a private key. The last line may
// not have been printed.
func maskKeys(b []byte) {
	forms := keyForms()
	begun, inside := false, false
	for line := range bytes.Lines(b) {
		if at := forms.begins.FindAllIndex(line, -1); at != nil {
			before, first, last := line[:at[0][0]], line[at[0][1]:], line[at[len(at)-1][1]:]
			if begun && forms.onLine.Match(before) {
				maskLine(before)
			}
			begun, inside = true, forms.onLine.Match(last)
			if forms.onLine.Match(first) {
				maskLine(first)
			}
			continue
		}
		if !begun {
			continue
		}
		whole := forms.onLine.Match(line)
		begun = whole || inside && forms.ends.Match(line) || !inside && forms.header.Match(line)
		if begun {
			maskLine(line)
		}
		begun, inside = begun && (whole || !inside), whole
	}
}
