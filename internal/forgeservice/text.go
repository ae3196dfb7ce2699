package forgeservice

import (
	"html"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"github.com/carboy/carboy/internal/forge"
)

// What an agent posts is read by people, by the forge, and by other programs there. A
// reference to another issue writes to that issue, too: a mention stands in its history, and
// behind a word such as "Closes" it ends the issue. Which words close is a setting of the
// forge, so no list of them is complete. Therefore each reference to a number outside the
// scope gets a space that can be seen (a no-break space, which makes no heading of a line)
// between sign and number. That holds wherever it stands, in code too: to leave code alone,
// carboy would have to read Markdown exactly as each forge does.

const gap = "\u00a0"

// clean returns text without what no page shows. It comes before the scan: nothing that the
// scan did not see is put together later.
func clean(text string) string {
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r == '\u200d' { // the last one joins signs to one
			return r
		}
		if unicode.In(r, unicode.Cc, unicode.Cf) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "�")))
}

var patterns = sync.OnceValue(func() (p struct{ ref, hub, lab, path, entity, hidden *regexp.Regexp }) {
	p.ref = regexp.MustCompile(`([\w./~%+-]*)([#!])([0-9]+)`)
	p.hub = regexp.MustCompile(`(?i)(?:^|[^a-z0-9])GH\\?-()([0-9]+)`)
	p.lab = regexp.MustCompile(`(?i)\[(?:issue|work_item|merge_request|epic):()`)
	p.path = regexp.MustCompile(`(?i)/\\?(?:issues?|pulls?|merge\\?_requests|work\\?_items|epics)\\?/\\?()([0-9]+)`)
	p.entity = regexp.MustCompile(`&()(?:#[0-9]+|#[xX][0-9a-fA-F]+|[A-Za-z][A-Za-z0-9]*;);?`)
	p.hidden = regexp.MustCompile(`<()[!?]`)
	return p
})

// where tells an agent's own references from others.
type where struct {
	repo  string
	hosts []string // of the forge, in lower case
	web   string   // the address of the repository's page, in lower case
	scope Scope
	apart bool
}

func newWhere(t forge.Target, scope Scope, apart bool) where {
	w := where{repo: t.Repo, scope: scope, apart: apart}
	for _, s := range []string{t.API, t.Settings} {
		if u, err := url.Parse(s); err == nil && u.Hostname() != "" {
			w.hosts = append(w.hosts, strings.TrimPrefix(strings.ToLower(u.Hostname()), "api."))
			w.web = strings.ToLower(u.Scheme + "://" + u.Host + "/" + t.Repo)
		}
	}
	return w
}

// own reports whether a number in digits is one of the scope. pull is meant only where
// issues and pull requests are numbered apart.
func (w where) own(digits string, pull bool) bool {
	n, err := strconv.Atoi(digits)
	return err == nil && strconv.Itoa(n) == digits && w.scope.has(forge.Thread{Number: n, Pull: pull}, w.apart)
}

// inert returns text whose references outside the scope refer to nothing, and these
// references. It only puts in characters, so it makes no secret of what was none.
func (w where) inert(text string) (string, []string) {
	p := patterns()
	in := map[int]string{} // what to put in, by place
	var broken []string
	other := func(at int, sign, digits string) {
		in[at] = gap
		if r := sign + digits; !slices.Contains(broken, r) {
			broken = append(broken, r)
		}
	}
	for _, m := range p.ref.FindAllStringSubmatchIndex(text, -1) {
		before, sign, digits := text[m[2]:m[3]], text[m[4]:m[5]], text[m[6]:m[7]]
		coded := m[0] == m[4] && m[0] > 0 && text[m[0]-1] == '&' // of an entity
		if coded || before != "" && !strings.EqualFold(before, w.repo) || !w.own(digits, sign == "!") {
			other(m[6], sign, digits)
		}
	}
	for _, m := range p.hub.FindAllStringSubmatchIndex(text, -1) {
		if digits := text[m[4]:m[5]]; !w.own(digits, false) {
			other(m[2], "GH-", digits)
		}
	}
	for _, m := range p.path.FindAllStringSubmatchIndex(text, -1) {
		if digits := text[m[4]:m[5]]; !w.fine(text, m[0], m[4], digits) {
			other(m[2], "/", digits)
		}
	}
	for _, m := range p.lab.FindAllStringSubmatchIndex(text, -1) {
		in[m[2]] = gap
	}
	// An entity is decoded before the page is searched for references.
	for _, m := range p.entity.FindAllStringSubmatchIndex(text, -1) {
		if strings.ContainsFunc(html.UnescapeString(text[m[0]:m[1]]), func(r rune) bool {
			return r < 0x80 && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("#!-/\\_:[]", r))
		}) && html.UnescapeString(text[m[0]:m[1]]) != text[m[0]:m[1]] {
			in[m[2]] = "amp;"
		}
	}
	// Comments of HTML hide text from people, and could look like carboy's own marks.
	for _, m := range p.hidden.FindAllStringSubmatchIndex(text, -1) {
		in[m[2]] = `\`
	}
	return insert(text, in), broken
}

// Inert returns a text for a thread of the scope whose references to others refer to nothing,
// and which hides nothing: as what an agent posts.
func Inert(t forge.Target, s Scope, apart bool, text string) string {
	text, _ = newWhere(t, s, apart).inert(clean(text))
	return text
}

func insert(text string, in map[int]string) string {
	places := make([]int, 0, len(in))
	for at := range in {
		places = append(places, at)
	}
	slices.Sort(places)
	var b strings.Builder
	from := 0
	for _, at := range places {
		b.WriteString(text[from:at])
		b.WriteString(in[at])
		from = at
	}
	b.WriteString(text[from:])
	return b.String()
}

// fine reports whether an address refers to the scope, or to a server that is not this forge.
// from is where its path of an issue begins, to where the number does.
func (w where) fine(text string, from, to int, digits string) bool {
	begin := 1 + strings.LastIndexFunc(text[:from], func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune("<>()[]\"'`|*,;", r) })
	address := strings.ToLower(strings.ReplaceAll(html.UnescapeString(text[begin:from]), `\`, ""))
	if base, _ := strings.CutSuffix(address, "/-"); base == w.web {
		kind := strings.ToLower(text[from:to])
		return w.own(digits, strings.Contains(kind, "pull") || strings.Contains(kind, "merge"))
	}
	return (strings.HasPrefix(address, "https://") || strings.HasPrefix(address, "http://")) && !strings.ContainsRune(address, '%') &&
		!slices.ContainsFunc(w.hosts, func(h string) bool { return strings.Contains(address, h) })
}
