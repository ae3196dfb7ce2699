package scan

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"sync"

	"github.com/carboy/carboy/internal/scan/literal"
)

// tokenRule describes the form of a kind of token, found without knowing its value.
type tokenRule struct {
	id      string
	regex   string
	entropy float64  // of the secret: less is an example or a placeholder. Not for a vendor's form
	group   int      // of the expression that holds the secret; 0: the first that is not empty
	allow   []string // expressions of matches that are not secrets
	vendor  bool     // a vendor documents the form: see newForm
}

// notOnWire lists the rules of gitleaks that can't be applied to a stream of bytes.
var notOnWire = map[string]string{
	"anthropic-admin-api-key": "anthropic-api-key finds it",
	"curl-auth-header":        "from the word curl anything may follow for five lines: nothing could be let go meanwhile",
	"curl-auth-user":          "from the word curl anything may follow for five lines: nothing could be let go meanwhile",
	"facebook-access-token":   "no fixed part: digits, a bar, letters; the word facebook may stand anywhere in the file",
	"freemius-secret-key":     "depends on the file's name",
	"generic-api-key":         "any word after key, auth or token: a name of a variable as often as a secret",
	"hashicorp-tf-password":   "depends on the file's name",
	"kubernetes-secret-yaml": "depends on the file's name; what a secret holds is base64, in which the known ones and " +
		"the forms of tokens are found",
	"nuget-config-password": "depends on the file's name",
	"pkcs12-file":           "is a rule about a file's name alone",
}

// ownRules extend the rules of gitleaks for traffic, and to lengths and kinds of a
// vendor's tokens that these do not know.
var ownRules = []tokenRule{
	// These take the place of gitleaks' rules with the same name, and find all that these do.
	{id: "anthropic-api-key", regex: `\b(sk-ant-[\w-]{20,})` + ending, vendor: true, allow: inWords},
	{id: "openai-api-key", regex: `\b(sk-(?:(?:proj|svcacct|admin|service)-[\w-]{20,}|[A-Za-z0-9]{32,}))` + ending, vendor: true, allow: inWords},
	{id: "pypi-upload-token", regex: `\b(pypi-[\w-]{32,})` + ending, vendor: true, allow: inWords},
	{id: "vault-service-token", regex: `\b(hv[sr]\.[\w-]{24,})` + ending, vendor: true, allow: inWords},
	{id: "vault-batch-token", regex: `\b(hvb\.[\w-]{24,})` + ending, vendor: true, allow: inWords},
	{id: "github-fine-grained-pat", regex: `\b(github_pat_\w{40,})` + ending, vendor: true},
	{id: "aws-access-token", regex: `\b((?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16})\b`, vendor: true},

	{id: "vault-old-token", regex: `\b(s\.(?i:[a-z0-9]{24}))` + ending, entropy: 3.5, allow: []string{`s\.[A-Za-z]{24}`}},
	{id: "model-token", regex: `\b(sk-or-v1-[0-9a-f]{32,}|gsk_[A-Za-z0-9]{40,}|xai-[A-Za-z0-9]{60,})` + ending, vendor: true},
	{id: bearerToken, regex: `\b(?:Bearer|bearer|BEARER)[ \t+%20:="']{1,6}([\w.~+/-]{32,}={0,2})` + looseEnding, vendor: true, allow: append([]string{`^carboy-placeholder-`}, inWords...)},
	// A whole key, or else its beginning.
	{id: "private-key", regex: `(?i)-----BEGIN[ A-Z0-9_-]{0,100}PRIVATE KEY(?: BLOCK)?-----(?:[\s\S-]{64,}?KEY(?: BLOCK)?-----|(?:\s|\\[nr]){1,8}[a-z0-9+/=]{40})`, vendor: true, allow: noKey},
}

// inWords matches placeholders and names of variables where a token of any letters
// could stand: at least three words of 2 to 14 letters, with separators between or in
// camel case. Of 15,000 tokens of 24 random characters one is so, of longer ones far fewer.
var inWords = []string{`^(?:(?:sk|pypi)-(?:ant|proj|svcacct|admin|service)?-?(?:[a-z]+\d\d-)?|hv[sbr]\.)?` +
	oneWord + `(?:[-_./]+` + oneWord + `|[A-Z][a-z]{1,13}){2,}$`}

const oneWord = `(?:[a-z]{2,14}|[A-Z]{2,14}|[A-Z][a-z]{1,13})`

// maskedForm matches a vendor's beginning and then x only, as manuals and .env.example
// write it. Such a text tells nothing but its length.
const maskedForm = `^(?:(?:[A-Za-z]{1,9}\d{0,2}[-_.]){0,3}|AKIA|ASIA|AIza)[xX]+(?:[-_.][xX]+)*$`

// noKey matches what has no 24 digits of base64 in a row with a numeral among them, as the
// lines of a key are. A placeholder and two mentions of a key's first line are so.
var noKey = []string{`(?i)\A` + noLine + `(?:[^a-z0-9+/=]+` + noLine + `)*\z`}

const noLine = `(?:[a-z0-9+/=]{0,23}|[a-z+/=]{24,})`

// examples are the values that vendors print in their manuals. In pieces, because
// others look for such values in sources.
var examples = map[string]bool{
	"AKIA" + "IOSFODNN7EXAMPLE": true, "AKIA" + "I44QH8DHBEXAMPLE": true, "ASIA" + "IOSFODNN7EXAMPLE": true,
	"sk_test_" + "4eC39HqLyjWDarjtT1zdp7dc": true, "sk_test_" + "BQokikJOvBiI2HlWgH4olfQ2": true,
	"gho_" + "16C7e42F292c6912E7710c838347Ae178B4a": true, "ghu_" + "16C7e42F292c6912E7710c838347Ae178B4a": true,
}

// forWire rewrites the parts of which gitleaks builds rules for a service's name
// and a value assigned to it. On the wire the text may be in a JSON string, where
// quotes have backslashes; and the text before the name does not matter.
var forWire = strings.NewReplacer(
	`[\w.-]{0,50}?`, ``,
	`[\s'"]{0,3}`, `(?:[\s'"]|\\["'nrt]){0,3}`,
	`[\x60'"\s=]{0,5}`, `(?:[\x60'"\s=]|\\["'nrt]){0,5}`,
	`|sgp_[a-fA-F0-9]{40}|[a-fA-F0-9]{40})`, `|sgp_[a-fA-F0-9]{40})`, // 40 hexadecimal digits are a commit
)

// gitleaks wants a quote or a space after a token; on the wire it need not be one.
// A name followed by a call is still not a token.
const (
	ending      = `(?:[\x60'"\s;]|\\[nr]|$)`
	looseEnding = `(?:[^\w(-]|$)`
)

// form is a compiled tokenRule.
type form struct {
	tokenRule
	re      *syntax.Regexp
	anchors []anchor
	window  int  // bytes in which a match must end
	assigns bool // after the anchor a value must be assigned: see assignment
	whole   bool // the match is what is found: nothing in it is a secret

	machine func() *machine       // made when first needed
	full    func() *regexp.Regexp // the same, for the groups
	allowed func() *regexp.Regexp
}

// forms holds all compiled rules and the literals of their anchors.
type forms struct {
	list   []*form
	lits   []literal.Literal
	of     [][]formAt // by literal
	window int
	back   int // bytes that a match may begin before its anchor
}

type formAt struct {
	form   *form
	lo, hi int
}

// Windows of rules whose matches have no longest length. A longer token is still
// found by its beginning: it is cut, not let through.
const (
	window      = 2 << 10
	windowOfKey = 16 << 10 // a private key in full
)

var (
	allForms    = sync.OnceValues(func() (*forms, error) { return makeForms(false) })
	vendorForms = sync.OnceValues(func() (*forms, error) { return makeForms(true) })
)

// makeForms compiles the rules; anyCase: those of vendors, for texts that may have
// lost the case of their letters.
func makeForms(anyCase bool) (*forms, error) {
	fs := &forms{}
	index := map[literal.Literal]int{}
	var errs []error
	own := map[string]bool{}
	for _, r := range ownRules {
		own[r.id] = true
	}
	for i, r := range append(gitleaksRules[:len(gitleaksRules):len(gitleaksRules)], ownRules...) {
		if notOnWire[r.id] != "" || own[r.id] && i < len(gitleaksRules) {
			continue
		}
		f, err := newForm(r)
		if err == nil && anyCase {
			if !f.vendor {
				continue
			}
			r.regex, r.vendor, r.allow = "(?i)"+strings.ReplaceAll(r.regex, "(?-i:", "(?:"), true, f.allow
			f, err = newForm(r)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		fs.list = append(fs.list, f)
		fs.window = max(fs.window, f.window)
		for _, a := range f.anchors {
			fs.back = max(fs.back, a.hi)
			l := literal.Literal{Text: a.text, Fold: a.fold}
			if a.fold {
				l.Text = strings.ToLower(l.Text)
			}
			if _, ok := index[l]; !ok {
				index[l] = len(fs.lits)
				fs.lits, fs.of = append(fs.lits, l), append(fs.of, nil)
			}
			fs.of[index[l]] = append(fs.of[index[l]], formAt{f, a.lo, a.hi})
		}
	}
	return fs, errors.Join(errs...)
}

func newForm(r tokenRule) (*form, error) {
	text := strings.ReplaceAll(forWire.Replace(r.regex), ending, looseEnding)
	re, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("rule %s: %w", r.id, err)
	}
	if slices.ContainsFunc(anchors(re), func(a anchor) bool { return len(a.text) < 3 }) {
		text = forWire.Replace(r.regex) // s.aMethodWithAVeryLongName)
		re, err = syntax.Parse(text, syntax.Perl)
		if err != nil {
			return nil, fmt.Errorf("rule %s: %w", r.id, err)
		}
	}
	f := &form{tokenRule: r, re: re, anchors: anchors(re), window: window}
	f.assigns = strings.Contains(r.regex, `)(?:[ \t\w.-]{0,20})[\s'"]{0,3}(?:=|>`) && !strings.Contains(r.regex, `|\b(`)
	if f.anchors == nil {
		return nil, fmt.Errorf("rule %s: no literal at a known place of a match: %s", r.id, text)
	}
	// Nobody writes a beginning with a separator in it by chance, nor these few. Then
	// neither entropy nor a list of words says that it is no token.
	few := []string{"gcp-api-key", "databricks-api-token", "gitlab-rrt"}
	f.vendor = r.vendor || slices.Contains(few, r.id) || !slices.ContainsFunc(f.anchors, func(a anchor) bool {
		return len(a.text) < 3 || a.lo > 0 || !strings.ContainsAny(a.text, "-_.~") || strings.HasPrefix(a.text, "---")
	})
	if f.vendor && !r.vendor {
		f.allow = nil
	}
	if f.assigns {
		// What stands behind a service's name in a list is often a name of a program's.
		f.allow = append(f.allow[:len(f.allow):len(f.allow)], inWords...)
	}
	if r.id == "private-key" {
		f.window = windowOfKey
	}
	f.machine = sync.OnceValue(func() *machine {
		m, err := newMachine(re)
		if err != nil {
			panic(fmt.Sprintf("rule %s: %v", r.id, err)) // a test makes all of them
		}
		return m
	})
	f.full = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A(?:` + text + `)`) })
	f.allowed = sync.OnceValue(func() *regexp.Regexp {
		all := append(gitleaksAllowed[:len(gitleaksAllowed):len(gitleaksAllowed)], f.allow...)
		if f.vendor {
			all = append(f.allow[:len(f.allow):len(f.allow)], maskedForm)
		}
		return regexp.MustCompile(strings.Join(all, "|"))
	})
	return f, nil
}

// assignment reports whether b, which follows a service's name, may go on with
// an assignment. Most mentions of a name don't, and end here.
func assignment(b []byte) bool {
	i := 0
	for i < len(b) && i < 24 && (isWord(b[i]) || b[i] == ' ' || b[i] == '\t' || b[i] == '.' || b[i] == '-') {
		i++
	}
	for n := 0; i < len(b) && n < 8; n++ {
		switch c := b[i]; {
		case c == '=' || c == '>' || c == ':' || c == '|' || c == '?' || c == ',':
			return true
		case c == '\'' || c == '"' || c == '\\' || c|0x20 == 'n' || c|0x20 == 'r' || c|0x20 == 't' || c == ' ' || '\t' <= c && c <= '\r':
			i++
		default:
			return false
		}
	}
	return i == len(b)
}

// secretIn returns where in a match the secret is, and false if the match has too
// little entropy or is on the allow list.
func (f *form) secretIn(match []byte) (from, to int, ok bool) {
	from, to = 0, len(match)
	if f.whole {
		return from, to, true
	}
	// On the match alone the expression may end earlier or, without the text before
	// it, not match at all; then the whole match is taken.
	if g := f.full().FindSubmatchIndex(match); g != nil {
		if f.group > 0 {
			if g[2*f.group] >= 0 {
				from, to = g[2*f.group], g[2*f.group+1]
			}
		} else {
			for i := 2; i < len(g); i += 2 {
				if g[i] >= 0 && g[i+1] > g[i] {
					from, to = g[i], g[i+1]
					break
				}
			}
		}
	}
	secret := match[from:to]
	if f.vendor {
		return from, to, !examples[string(secret)] && !f.allowed().Match(secret) && !(f.id == bearerToken && isKnownForm(secret))
	}
	if f.entropy > 0 && entropy(secret) <= f.entropy {
		return 0, 0, false
	}
	low := strings.ToLower(string(secret))
	for _, w := range gitleaksStopwords {
		if strings.Contains(low, w) {
			return 0, 0, false
		}
	}
	return from, to, !f.allowed().Match(secret)
}

const bearerToken = "bearer-token"

// isKnownForm reports whether a more telling rule than bearerToken finds b.
func isKnownForm(b []byte) bool {
	fs, err := allForms()
	return err == nil && slices.ContainsFunc(fs.list, func(f *form) bool {
		if f.assigns || f.id == bearerToken || !slices.ContainsFunc(f.anchors, func(a anchor) bool {
			return a.lo == 0 && len(b) >= len(a.text) && strings.EqualFold(string(b[:len(a.text)]), a.text)
		}) || !f.full().Match(b) {
			return false
		}
		_, _, ok := f.secretIn(b)
		return ok
	})
}

// entropy returns the Shannon entropy of b in bits per byte.
func entropy(b []byte) (bits float64) {
	var counts [256]int
	for _, c := range b {
		counts[c]++
	}
	for _, n := range counts {
		if n > 0 {
			p := float64(n) / float64(len(b))
			bits -= p * math.Log2(p)
		}
	}
	return bits
}
