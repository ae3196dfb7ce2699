package ship

import (
	"encoding/hex"
	"regexp"
	"strings"
	"sync"

	"github.com/carboy/carboy/internal/scan"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/ship/module"
	"github.com/carboy/carboy/internal/visible"
)

// maxShown bounds a line for people, in bytes.
const maxShown = 2000

// shown makes text of a host safe to show.
func shown(s string) string { return visible.String(s, maxShown) }

// words are names whose value is a secret, in any of the ways that programs write
// them: NAME=value, name: value, "name": "value", --name value.
const secretName = `[A-Za-z0-9_.-]*(?:pass(?:word|wd|phrase)|pass\b|pwd|token|secret|api[-_.]?key|access[-_.]?key|private[-_.]?key|(?:account|encryption|signing|master)[-_.]?key|auth\b|credentials?|authorization|cookie)[A-Za-z0-9_.-]*`

// quote is one, as it stands in a text or, escaped, within another.
const quote = `\\*["']`

var forms = sync.OnceValue(func() []*regexp.Regexp {
	return []*regexp.Regexp{
		regexp.MustCompile(`(?i)(\b(?:authorization|proxy-authorization|cookie|set-cookie)\b(?:` + quote + `)?\s*[:=]\s*(?:` + quote + `)?)[^"'\\\r\n]+`),
		regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}`),
		regexp.MustCompile(`(?i)(\\+["']` + secretName + `\\+["']\s*[:=]\s*(?:\\+["'])?)[^"'\\]+`),
		regexp.MustCompile(`(?i)(["']` + secretName + `["']\s*:\s*")(?:[^"\\]|\\.)*`),
		regexp.MustCompile(`(?i)(["']` + secretName + `["']\s*:\s*')[^']*`),
		regexp.MustCompile(`(?i)(["']` + secretName + `["']\s*:\s*)[^\s"'&,;\[{\]}]+`),
		// A line of its own is all value: words may follow words.
		regexp.MustCompile(`(?i)(^[\s|>-]*` + secretName + `\s*[=:]\s*)[^\s"'\[{][^"'&]*$`),
		regexp.MustCompile(`(?i)((?:^|[^A-Za-z0-9])` + secretName + `\s*[=:]\s*")(?:[^"\\]|\\.)*`),
		regexp.MustCompile(`(?i)((?:^|[^A-Za-z0-9])` + secretName + `\s*[=:]\s*')[^']*`),
		regexp.MustCompile(`(?i)((?:^|[^A-Za-z0-9])` + secretName + `\s*[=:]\s*)[^\s"'&,;\[][^\s"'&,;]*`),
		regexp.MustCompile(`(?i)(\bidentified\s+by\s+["']?)[^"'\s]+`),
		// As sshpass, and as curl, have it.
		regexp.MustCompile(`(\bsshpass\s+-p\s*)\S+`),
		regexp.MustCompile(`((?:^|\s)(?:-u|--user)[\s=]+[^\s:]+:)\S+`),
		regexp.MustCompile(`(?i)(--` + secretName + `\s+)[^\s-][^\s]*`),
		regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>?#]*\?)[^\s"'<>]+`),
		// Of a request, which has no scheme; and of what is no path.
		regexp.MustCompile(`((?:^|[\s"'(])/[^\s"'<>?#]*\?)[^\s"'<>]+`),
		regexp.MustCompile(`(?i)([?&](?:sig|sign|signature|key|code|sid|session|jwt|assertion)=)[^\s"'<>&]+`),
		// A password may have the signs that end it: the last @ counts. After a colon it may
		// be a port; that is given up with it.
		regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://[^/:\s@"']*:)[^\s"']*(@)`),
		regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)[^/\s"']+(@)`),
		// As Go's drivers of databases have it.
		regexp.MustCompile(`((?:^|[^A-Za-z0-9_.-])[A-Za-z0-9_.-]+:)[^\s"']+(@(?:tcp|udp|unix)\b)`),
	}
})

var (
	keyBegins = module.NewPattern(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----`)
	keyEnds   = module.NewPattern(`-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----`)
)

var blockBegins = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)^[\s|>-]*["']?` + secretName + `["']?\s*:\s*[|>][-+0-9]*\s*$`)
})

var valueBelow = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)^[\s|>-]*["']?` + secretName + `["']?\s*[:=]\s*$`)
})

var tokenRules = sync.OnceValues(func() (*scan.Rules, error) { return scan.NewRules(scan.Config{Tokens: true}) })

// redactor takes secrets out of what programs on hosts write, line by line: by the
// name that stands before them, and by their form, as the gateway knows it. It
// remembers that it is inside of a private key, or of a YAML text whose name says that it
// is a secret, and that a line ended before the value of such a name. Not safe for concurrent use.
type redactor struct {
	inKey   bool
	inBlock int // the least indentation of its lines; 0: in none
	awaits  bool
}

// margin stands before a line that is passed on.
const margin = " \t|>"

func indent(s, cut string) int { return len(s) - len(strings.TrimLeft(s, cut)) }

func newRedactor() *redactor { return &redactor{} }

// Line gives a line without what looks like a secret.
func (r *redactor) Line(s string) string {
	if r.inKey || keyBegins.MatchString(s) {
		r.inKey = !keyEnds.MatchString(s)
		return secret.Redacted
	}
	if r.inBlock > 0 && strings.TrimLeft(s, margin) != "" {
		if indent(s, margin) >= r.inBlock {
			return secret.Redacted
		}
		r.inBlock = 0
	}
	if strings.TrimLeft(s, margin) != "" {
		if r.awaits {
			r.awaits = valueBelow().MatchString(s)
			return secret.Redacted
		}
		r.awaits = valueBelow().MatchString(s)
	}
	if blockBegins().MatchString(s) {
		r.inBlock = indent(s, margin+"-") + 1
	}
	for _, f := range forms() {
		s = f.ReplaceAllString(s, "${1}"+secret.Redacted+"${2}") // a group that a form has not is empty
	}
	return tokens(s)
}

// tokens masks what the gateway's scanner finds. A line that it cannot look at is
// not shown.
func tokens(s string) string {
	if s == "" {
		return s
	}
	rules, err := tokenRules()
	if err != nil {
		return secret.NotShown
	}
	sc := rules.NewScanner(scan.Options{Place: "output", Action: scan.Redact})
	defer sc.Close()
	out, err := sc.Push(nil, []byte(s))
	if err == nil {
		out, err = sc.End(out)
	}
	if err != nil {
		return secret.NotShown
	}
	return strings.ToValidUTF8(string(out), "?")
}

func digestOf(s string) (sum [32]byte, ok bool) {
	b, err := hex.DecodeString(s)
	return sum, err == nil && copy(sum[:], b) == len(sum)
}
