package credential

import (
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/policy"
)

// A name says by its last word what a value is, and by those before it of what kind:
// client_secret is a secret, page_token one that is none. So names are judged by their
// words, however they are joined, and not by a list of all names.

// place says in which part of a request a name stands.
type place int

const (
	inHeader place = iota
	inParam        // of the query
	inField        // of a body
)

// set returns the words of a text.
func set(text string) map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(text) {
		m[w] = true
	}
	return m
}

var (
	// heads are the last words of names of credentials.
	heads = set("token key secret password passwd pwd passphrase auth oauth authorization authentication credential credentials apikey jwt bearer cookie signature sig assertion")
	// strong words before a head make it a credential, whatever stands beside them.
	strong = set("access auth oauth refresh bearer api secret private personal session security login subscription")
	// keyed are further words that make a key one.
	keyed = set("app application master admin service client consumer developer dev account function functions write ingest ingestion integration partner merchant root super server shared xi dd")
	// harmless words make a token one that proves nothing about who asks.
	harmless = set(`csrf xsrf forgery antiforgery authenticity verification captcha recaptcha hcaptcha turnstile
		page pages paging pagination next prev previous continuation continue sync cursor resume resumption start starting end first last
		delta skip change changes watch scroll offset position range list search sequence shard iterator progress checkpoint snapshot consistency version
		cancel cancellation fence fencing lock lease idempotency idempotent batch upload payment card device push
		max min num sort stop eos bos pad unk cls sep mask special`)
	// plainKeys are words that make the key in a header's name one that opens nothing.
	plainKeys = set(`websocket idempotency idempotent cache surrogate partition sort primary foreign routing ordering dedup dedupe deduplication
		correlation trace request encryption encrypt customer public object row range hash lookup feature message event group shard lock search prompt`)
	// flags are first words of what is asked about a credential.
	flags = set("has is show use uses require requires required no without with need needs enable disable allow include exclude reset forgot change meta")
	// fillers may follow a head.
	fillers = set("value string raw base64 b64 bin")
)

// maxFiller is the length of the longest one.
const maxFiller = 6

// stems are parts of heads, by their first letters.
var stems = ['z' + 1][]string{
	't': {"tok"}, 'k': {"key"}, 's': {"secret", "sig"}, 'p': {"pass", "pwd"}, 'a': {"auth", "assertion"}, 'c': {"cred", "cookie"}, 'j': {"jwt"}, 'b': {"bearer"},
}

// hasStem reports whether name has a part of a head. Another names no credential. Most
// names of a large body have none, so this is quick.
func hasStem(name string) bool {
	for i := range len(name) {
		c := name[i] | 0x20
		if c > 'z' {
			continue
		}
		for _, s := range stems[c] {
			if len(name)-i >= len(s) && strings.EqualFold(name[i:i+len(s)], s) {
				return true
			}
		}
	}
	return false
}

// namesCredential reports whether a value of this name proves who asks. in is the name of
// the object that holds it; empty: none does.
func namesCredential(in, name string, where place) bool {
	if in != "" && len(name) <= maxFiller && fillers[strings.ToLower(name)] {
		in, name = "", in
	}
	if !hasStem(name) {
		return false
	}
	ws := splitName(name)
	for len(ws) > 1 && (fillers[ws[len(ws)-1]] || strings.Trim(ws[len(ws)-1], "v0123456789") == "") {
		ws = ws[:len(ws)-1]
	}
	if len(ws) == 0 {
		return false
	}
	head, before := ws[len(ws)-1], ws[:len(ws)-1]
	if trimmed := strings.TrimRight(head, "0123456789"); heads[trimmed] {
		head = trimmed // cookie2
	}
	among := func(ws []string, m map[string]bool) bool {
		return slices.ContainsFunc(ws, func(w string) bool { return m[w] })
	}
	of := func(m map[string]bool) bool { return among(before, m) }
	if !heads[head] || of(flags) {
		return false
	}
	switch head {
	case "token":
		around := splitName(in)
		return !slices.Contains(before, "csrf") && !slices.Contains(before, "xsrf") &&
			(of(strong) || !of(harmless) && (among(around, strong) || !among(around, harmless)))
	case "key":
		switch {
		case of(strong):
			return true
		case where == inHeader:
			return !of(plainKeys)
		}
		return of(keyed) || len(before) == 0 && (where == inParam || among(splitName(in), strong))
	case "assertion":
		return slices.Contains(before, "client")
	case "cookie":
		return where == inHeader
	case "signature", "sig", "authentication":
		return where != inField
	}
	return true
}

// splitName splits a name at whatever is no letter or digit, at capitals, and where words of
// this file are joined: xAPIKey, x.api-key and xapikey are x, api and key.
func splitName(name string) (out []string) {
	from := 0
	cut := func(to int) {
		if to > from {
			out = append(out, unjoined(strings.ToLower(name[from:to]))...)
		}
		from = to
	}
	lower := func(i int) bool { return i < len(name) && 'a' <= name[i] && name[i] <= 'z' }
	upper := func(i int) bool { return 'A' <= name[i] && name[i] <= 'Z' }
	for i := range len(name) {
		switch {
		case !lower(i) && !upper(i) && (name[i] < '0' || name[i] > '9'):
			cut(i)
			from = i + 1
		case upper(i) && i > from && (!upper(i-1) || lower(i+1)):
			cut(i)
		}
	}
	cut(len(name))
	return out
}

// unjoined splits a word that ends in a head, if all before it are words of this file.
func unjoined(w string) []string {
	if heads[w] {
		return []string{w}
	}
	for h := range heads {
		if rest, ok := strings.CutSuffix(w, h); ok {
			if before := splitKnown(rest); before != nil {
				return append(before, h)
			}
		}
	}
	return []string{w}
}

// splitKnown splits s into words of this file; nil: it is not made of them.
func splitKnown(s string) []string {
	for n := len(s); n > 0; n-- {
		if w := s[:n]; w == "x" || w == "my" || strong[w] || keyed[w] || harmless[w] || plainKeys[w] {
			if n == len(s) {
				return []string{w}
			}
			if more := splitKnown(s[n:]); more != nil {
				return append([]string{w}, more...)
			}
		}
	}
	return nil
}

// Own are the names of credentials that the agent may send itself.
type Own []string

// allows reports whether name is one of them, however it is written.
func (o Own) allows(name string) bool {
	return slices.ContainsFunc(o, func(n string) bool { return policy.SameHeader(n, name) })
}

// ownHeader reports whether the header h is removed: it names a credential, and is not
// allowed.
func (c *Credential) ownHeader(h string, own Own) bool {
	field := "Authorization"
	switch c.scheme {
	case APIKey:
		field = "X-Api-Key"
	case Header:
		field = c.field
	case Query:
		field = ""
	}
	if policy.SameHeader(field, h) {
		return true
	}
	if own.allows(h) {
		return false
	}
	return slices.ContainsFunc(ownHeaders, func(o string) bool { return policy.SameHeader(o, h) }) || c.scheme != AWS && namesCredential("", h, inHeader)
}

// ownParam is ownHeader for a parameter of the query.
func (c *Credential) ownParam(name string, own Own) bool {
	if c.scheme == Query && sameParam(c.field, name) {
		return true
	}
	begin, _, _ := strings.Cut(name, "[")
	begin = strings.Trim(begin, " ?\x00")
	if own.allows(name) || own.allows(begin) {
		return false
	}
	return slices.ContainsFunc(ownParams, func(o string) bool { return sameParam(o, name) }) ||
		c.scheme != AWS && (namesCredential("", name, inParam) || namesCredential("", begin, inParam))
}

// withoutOwn returns the subprotocols of a WebSocket that lists name, but for those in
// which programs send credentials: behind a name, as in api-key.VALUE, or as the next of
// the list.
func withoutOwn(lists []string, own Own) (kept []string) {
	is := func(name string) bool {
		return (namesCredential("", name, inHeader) || namesCredential("", name, inParam)) && !own.allows(name)
	}
	named := false // the last one was a name
	for p := range strings.SplitSeq(strings.Join(lists, ","), ",") {
		p = strings.TrimSpace(p)
		bad := named
		for i := range len(p) {
			bad = bad || p[i] == '.' && is(p[:i])
		}
		if named = !bad && is(p); !bad && !named && p != "" {
			kept = append(kept, p)
		}
	}
	return kept
}
