package ship

import (
	"encoding/hex"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/scan"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/ship/module"
)

// maxShown bounds a displayed line, in bytes.
const maxShown = 2000

// shown escapes and cuts text of a host for display.
func shown(s string) string { return safetext.String(s, maxShown) }

// secretName matches names whose value is a secret. Programs write them as NAME=value,
// name: value, "name": "value" or --name value.
const secretName = `[A-Za-z0-9_.-]*(?:pass(?:word|wd|phrase)|pass\b|pwd|token|secret|api[-_.]?key|access[-_.]?key|private[-_.]?key|(?:account|encryption|signing|master)[-_.]?key|auth\b|otp\b|passcode|credentials?|authorization|cookie)[A-Za-z0-9_.-]*`

// quote matches a quotation mark, also one that is escaped within another text.
const quote = `\\*["']`

var forms = sync.OnceValue(func() []*regexp.Regexp {
	return []*regexp.Regexp{
		regexp.MustCompile(`(?i)(\b(?:authorization|proxy-authorization|cookie|set-cookie)\b(?:` + quote + `)?\s*[:=]\s*(?:` + quote + `)?)[^"'\\\r\n]+`),
		regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}`),
		regexp.MustCompile(`(?i)(\\+["']` + secretName + `\\+["']\s*[:=]\s*(?:\\+["'])?)[^"'\\]+`),
		regexp.MustCompile(`(?i)(["']` + secretName + `["']\s*:\s*")(?:[^"\\]|\\.)*`),
		regexp.MustCompile(`(?i)(["']` + secretName + `["']\s*:\s*')[^']*`),
		regexp.MustCompile(`(?i)(["']` + secretName + `["']\s*:\s*)[^\s"'&,;\[{\]}]+`),
		// On a line of its own, the value extends to the end of the line.
		regexp.MustCompile(`(?i)(^[\s|>-]*` + secretName + `\s*[=:]\s*)[^\s"'\[{][^"'&]*$`),
		regexp.MustCompile(`(?i)((?:^|[^A-Za-z0-9])` + secretName + `\s*[=:]\s*")(?:[^"\\]|\\.)*`),
		regexp.MustCompile(`(?i)((?:^|[^A-Za-z0-9])` + secretName + `\s*[=:]\s*')[^']*`),
		regexp.MustCompile(`(?i)((?:^|[^A-Za-z0-9])` + secretName + `\s*[=:]\s*)[^\s"'&,;\[][^\s"'&,;]*`),
		regexp.MustCompile(`(?i)(\bidentified\s+by\s+["']?)[^"'\s]+`),
		// Elements of XML, lists of arguments, and what is said to be for a name.
		regexp.MustCompile(`(?i)(<` + secretName + `(?:\s[^<>]*)?>\s*)[^<\s][^<]*`),
		regexp.MustCompile(`(?i)(["']` + secretName + `["']\s*,\s*")(?:[^"\\]|\\.)*`),
		regexp.MustCompile(`(?i)(["']` + secretName + `["']\s*,\s*')[^']*`),
		regexp.MustCompile(`(?i)(")[^"]+("\s+(?:for|as)\s+["']?` + secretName + `)`),
		regexp.MustCompile(`(?i)(')[^']+('\s+(?:for|as)\s+["']?` + secretName + `)`),
		// Options of sshpass, curl and MySQL's programs.
		regexp.MustCompile(`(\bsshpass\s+-p\s*)\S+`),
		regexp.MustCompile(`(\b(?:mysql|mariadb)[a-z_-]*\b[^|;&]*\s-p)[^\s"']+`),
		regexp.MustCompile(`((?:^|\s)(?:-u|--user)[\s=]+[^\s:]+:)\S+`),
		regexp.MustCompile(`(?i)(--` + secretName + `\s+)[^\s-][^\s]*`),
		regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>?#]*\?)[^\s"'<>]+`),
		// Query strings without a scheme, and parameters outside of URLs.
		regexp.MustCompile(`((?:^|[\s"'(])/[^\s"'<>?#]*\?)[^\s"'<>]+`),
		regexp.MustCompile(`(?i)([?&](?:sig|sign|signature|key|code|sid|session|jwt|assertion)=)[^\s"'<>&]+`),
		// A password may contain / and @, so it extends to the last @. A port after the
		// colon is lost with it.
		regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://[^/:\s@"']*:)[^\s"']*(@)`),
		regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)[^/\s"']+(@)`),
		// Data source names of Go's database drivers.
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

// sentence matches a secret and the word after it, such as: my password is X, token X.
var sentence = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(?:pass(?:word|wd|phrase|code)|token|secret|otp|api[ _-]?key)\s+((?:is|was)\s+(?:now\s+)?)?["'` + "`" + `]?([^\s"'` + "`" + `,;]+)`)
})

// sayings are the words that follow "password is" where no password does.
var sayings = strings.Fields("a absent accepted already an bad being blank correct denied disabled empty enabled expired for given good in incorrect invalid malformed missing needed never no none not null of ok old on only optional present read rejected required revoked set short still stored the to too undefined unknown unset unused used valid weak wrong")

// said replaces secrets in sentences: what a password is said to be unless it is a common
// word, and what follows a token's name if it has a digit.
func said(s string) string {
	var b strings.Builder
	from := 0
	for _, m := range sentence().FindAllStringSubmatchIndex(s, -1) {
		word := s[m[4]:m[5]]
		plain := strings.ToLower(strings.Trim(word, ".:!?()"))
		if m[2] >= 0 && slices.Contains(sayings, plain) || m[2] < 0 && (len(plain) < 6 || !strings.ContainsAny(plain, "0123456789")) {
			continue
		}
		b.WriteString(s[from:m[4]] + secret.Redacted)
		from = m[5]
	}
	return b.String() + s[from:]
}

var tokenRules = sync.OnceValues(func() (*scan.Rules, error) { return scan.NewRules(scan.Config{Tokens: true}) })

// redactor removes secrets from the output of programs, line by line: values after a
// secretName, and tokens that the gateway's scanner knows. Between lines it remembers
// whether it is inside a private key or a YAML block of a secretName, or whether the value
// of a secretName is still to come. It is not safe for concurrent use.
type redactor struct {
	inKey   bool
	inBlock int  // the least indentation of the block's lines; 0 outside of a block
	awaits  bool // the next line is a value
}

// margin holds the characters that may precede the text of a line.
const margin = " \t|>"

func indent(s, cut string) int { return len(s) - len(strings.TrimLeft(s, cut)) }

func newRedactor() *redactor { return &redactor{} }

// Line returns a line without secrets.
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
		s = f.ReplaceAllString(s, "${1}"+secret.Redacted+"${2}") // a missing group is empty
	}
	return tokens(said(s))
}

// tokens removes the tokens that the gateway's scanner finds. It returns secret.NotShown
// for a line that cannot be scanned.
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
