package scan

import (
	"errors"
	"regexp/syntax"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/carboy/carboy/internal/scan/literal"
)

// near is how many characters may lie between a phrase that takes over and one
// that asks for what is secret, for the two to be one injection.
const near = 500

// A phraseClass is what a phrase is for.
type phraseClass uint8

const (
	takesOver phraseClass = iota + 1
	discloses
	phraseClasses
)

// phrases are expressions over words: lower case, one space between any two,
// nothing else (see decodeWords). They are written for texts that talk to a
// model, not for talk about such texts, which no expression can tell from them:
// so one phrase alone only warns.
var phrases = []struct {
	id    string
	class phraseClass
	regex string
}{
	{"ignore-instructions", takesOver, `\b(?:ignore|disregard|forget|override|bypass|neglect|abandon|discard|do not follow|dont follow|stop following|pay no attention to|do not obey|dont obey)(?: [a-z0-9]{1,12}){0,4} (?:instructions?|prompts?|rules|guidelines|directives?|commands|constraints|programming|restrictions|safeguards|policies|training|orders|you were told|told before|said before|came before)\b`},
	{"new-instructions", takesOver, `\b(?:new|updated|real|actual|true|following) (?:system |secret |hidden |priority |highest priority )?(?:instructions?|directives?|orders|prompt|task|objective) (?:follow|below|is|are|for you|from now)\b`},
	{"instead-do", takesOver, `\b(?:instead|from now on|henceforth|starting now) (?:of (?:that|this) )?you (?:will|must|shall|should|are|can|have to|need to)\b`},
	{"no-longer-bound", takesOver, `\byou are (?:now|no longer) (?:in |an? |the |going to be |acting as )?(?:dan|stan|free|unrestricted|unfiltered|jailbroken|uncensored|bound|restricted|limited|required|developer|root|admin|debug|evil|unbound|subject)\b`},
	{"mode", takesOver, `\b(?:developer|debug|god|admin|administrator|sudo|jailbreak|jailbroken|unrestricted|maintenance|dan|opposite|unfiltered) mode(?: is| has been)? (?:now )?(?:enabled|activated|active|on|engaged|unlocked)\b`},
	{"enter-mode", takesOver, `\b(?:enter|enable|activate|switch to|switch into|engage|turn on|go into) (?:the |your )?(?:developer|debug|god|admin|sudo|jailbreak|unrestricted|maintenance|dan|unfiltered) mode\b`},
	{"do-anything-now", takesOver, `\bdo anything now\b`},
	{"no-restrictions", takesOver, `\b(?:pretend|act|behave|respond|answer|operate|imagine|roleplay|speak)(?: [a-z0-9]{1,12}){0,6} (?:no|without|without any|free of|free from|ignoring) (?:restrictions?|rules|guidelines|limits|limitations|filters?|safety|ethical|censorship|moderation|content policy|boundaries)\b`},
	{"system-override", takesOver, `\b(?:system|safety|security|admin|priority|emergency) override\b`},
	{"end-of-prompt", takesOver, `\b(?:end|begin|start) of (?:the )?(?:system|user|previous|new) (?:prompt|instructions?|message|input)\b`},
	{"do-not-tell", takesOver, `\b(?:do not|dont|never|without) (?:tell|telling|inform|informing|mention|mentioning|alert|alerting|notify|notifying|warn|warning|reveal|show|ask|asking)(?: [a-z0-9]{1,10}){0,3} (?:user|users|human|humans|operator|developer|owner|person|anyone)\b`},

	{"disclose-prompt", discloses, `\b(?:reveal|print|show|display|output|repeat|disclose|leak|share|tell|give|list|dump|expose|recite|send|return|write|provide|paste|echo|summarize|translate|read)(?: [a-z0-9]{1,12}){0,4} (?:system prompt|system message|system instructions|initial prompt|initial instructions|hidden prompt|hidden instructions|original prompt|original instructions|secret instructions|your instructions|your prompt|your rules|your guidelines|your configuration|developer message|prompt verbatim|instructions verbatim)\b`},
	{"disclose-secret", discloses, `\b(?:reveal|print|show|display|output|disclose|leak|share|tell|give|list|dump|expose|send|return|write|provide|paste|echo|cat|read|include|append|exfiltrate|upload|post|forward|email|transmit|copy|submit|encode|steal|collect|extract|curl|put|embed)(?: [a-z0-9]{1,14}){0,6} (?:api keys?|api tokens?|access tokens?|auth tokens?|secret keys?|secrets|passwords?|credentials?|environment variables|env vars|env file|dotenv|private keys?|ssh keys?|id rsa|aws credentials|bearer tokens?|session tokens?|cookies|github tokens?|tokens)\b`},
	{"what-is-your-prompt", discloses, `\bwhat (?:is|are|was|were|does|do) (?:in )?your (?:system |initial |original |hidden |secret |full |exact |previous |first )*(?:prompt|instructions?|rules|guidelines|system message)\b`},
	{"repeat-above", discloses, `\b(?:repeat|print|output|recite|copy|return)(?: [a-z0-9]{1,10}){0,3} (?:everything|all|text|words|lines|content|contents|conversation|message|messages)(?: [a-z0-9]{1,10}){0,2} (?:above|before this|so far|verbatim|word for word|up to here)\b`},
	{"environment", discloses, `\b(?:output of|result of|run|execute|contents of|content of) (?:printenv|env|the env|cat env|set|cat etc passwd|etc passwd|etc shadow|proc self environ|ssh id rsa|the ssh directory|aws credentials|the env file|env file)\b`},
}

// phraseForms are the phrases and their matcher, made on first use.
var phraseForms = sync.OnceValues(func() (*phraseSet, error) {
	p := &phraseSet{forms: &forms{}, class: map[string]phraseClass{}}
	index := map[string]int{}
	var errs []error
	for _, r := range phrases {
		re, err := syntax.Parse(r.regex, syntax.Perl)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		f := &form{tokenRule: tokenRule{id: r.id, regex: r.regex}, re: re, anchors: anchors(re), window: window, whole: true}
		f.machine = sync.OnceValue(func() *machine {
			m, err := newMachine(re)
			if err != nil {
				panic(err) // a test makes all of them
			}
			return m
		})
		if f.anchors == nil {
			errs = append(errs, errors.New("phrase "+r.id+": no literal at its beginning"))
		}
		p.class[r.id] = r.class
		p.forms.list = append(p.forms.list, f)
		for _, a := range f.anchors {
			if _, ok := index[a.text]; !ok {
				index[a.text] = len(p.forms.lits)
				p.forms.lits = append(p.forms.lits, literal.Literal{Text: a.text})
				p.kinds = append(p.kinds, litKind{})
			}
			k := &p.kinds[index[a.text]]
			k.forms = append(k.forms, formAt{f, a.lo, a.hi})
		}
	}
	if errs != nil {
		return nil, errors.Join(errs...)
	}
	var err error
	p.lits, err = literal.New(p.forms.lits, nil)
	return p, err
})

type phraseSet struct {
	forms *forms
	kinds []litKind
	lits  *literal.Matcher
	class map[string]phraseClass
}

// NewInjections returns rules for text that enters: phrases by which a text
// takes over a model, and such by which it asks for what is secret. A Scanner
// with them blocks where one of each is near, and reports one alone.
func NewInjections() (*Rules, error) {
	p, err := phraseForms()
	if err != nil {
		return nil, err
	}
	return &Rules{phrases: p, lits: p.lits, kinds: p.kinds}, nil
}

// phrase notes a phrase of rule id, found in lane l at [from, to) of its words,
// and reports whether with another it is an injection.
func (s *Scanner) phrase(l *lane, id string, from, to int64) bool {
	class := s.rules.phrases.class[id]
	if l.lastPhrases == nil {
		l.lastPhrases = new([phraseClasses][]span)
	}
	// Several of the last ones, for a long phrase may be known after a later one.
	mine := &l.lastPhrases[class]
	if *mine = append(*mine, span{from, to}); len(*mine) > 8 {
		*mine = append((*mine)[:0], (*mine)[1:]...)
	}
	return slices.ContainsFunc(l.lastPhrases[takesOver+discloses-class], func(o span) bool {
		return from-o.to <= near && o.from-to <= near
	})
}

// feedWords is feed for rules about phrases: what is looked at is the words.
func (l *lane) feedWords(end bool) error {
	if l.words == nil {
		l.words = newView(l, "", l.base, true)
		l.words.lane.isWords = true
		l.words.decode = decodeWords
	}
	return l.words.advance(l, l.fed(), end)
}

// decodeWords makes words of text: letters in lower case and as they look,
// digits, and one space for everything between, or a bar where that has a bracket
// or such, or a colon between two words, as programs do: no phrase goes on behind it. Escapes of JSON for line
// breaks are such, apostrophes are nothing.
func decodeWords(v *view, in []byte, pos int64, end bool) (used int, stop bool) {
	space := func(i int) {
		if v.lastWord() == ' ' {
			return
		}
		v.at(pos + int64(i))
		v.out = append(v.out, ' ')
	}
	letter := func(i int, c byte) {
		v.at(pos + int64(i))
		v.out = append(v.out, c)
	}
	i := 0
loop:
	for i < len(in) {
		c := in[i]
		switch k := wordOf[c]; {
		case k == ' ' && v.lastWord() == ' ':
			i++
		case k != 0:
			// One byte for each, so that where the first is tells it of all.
			v.at(pos + int64(i))
			for last := byte(0); i < len(in); i++ {
				k := wordOf[in[i]]
				if k == 0 || k == ' ' && last == ' ' {
					break
				}
				v.out = append(v.out, k)
				last = k
			}
		case c == '\'':
			v.skip(pos+int64(i), pos+int64(i)+1)
			i++
		case c == ':' && i+1 == len(in) && !end:
			break loop
		case c == ':' && i+1 < len(in) && isWord(in[i+1]): // display:none, host:port
			v.at(pos + int64(i))
			v.out = append(v.out, '|')
			i++
		case c == ':':
			space(i)
			i++
		case c == '\\':
			n, text, more := escape(in[i:])
			if more && !end {
				break loop
			}
			if n == 0 || text == `\` {
				space(i)
				i++
				break
			}
			for _, r := range text {
				wordRune(r, []byte(string(r)), func(c byte) { letter(i, c) }, func() { space(i) })
			}
			i += n
		default:
			if !utf8.FullRune(in[i:]) && !end {
				break loop
			}
			r, n := utf8.DecodeRune(in[i:])
			before := len(v.out)
			wordRune(r, in[i:i+n], func(c byte) { letter(i, c) }, func() { space(i) })
			if len(v.out) == before {
				v.skip(pos+int64(i), pos+int64(i+n))
			}
			i += n
			v.at(pos + int64(i))
		}
	}
	if len(v.out) > 0 {
		v.space = v.out[len(v.out)-1] == ' '
	}
	v.at(pos + int64(i))
	return i, false
}

// wordOf is what one byte becomes by itself; 0: that needs a closer look.
var wordOf = func() (t [256]byte) {
	for c := range byte(utf8.RuneSelf) {
		switch {
		case 'a' <= c|0x20 && c|0x20 <= 'z':
			t[c] = c | 0x20
		case '0' <= c && c <= '9':
			t[c] = c
		case c == '(' || c == ')' || c == '{' || c == '}' || c == ';' || c == '=':
			t[c] = '|'
		case c != '\'' && c != '\\' && c != ':':
			t[c] = ' '
		}
	}
	return t
}()

// lastWord is what the words end with; at their beginning, as if with a space.
func (v *view) lastWord() byte {
	switch n := len(v.out); {
	case n > 0:
		return v.out[n-1]
	case v.space || v.lane.fed() == 0:
		return ' '
	}
	return '|'
}

func wordRune(r rune, raw []byte, letter func(byte), space func()) {
	if r == '\u2019' || invisible(r) {
		return
	}
	var buf [16]byte
	for _, c := range appendSkeleton(buf[:0], r, raw) {
		switch {
		case 'a' <= c|0x20 && c|0x20 <= 'z':
			letter(c | 0x20)
		case '0' <= c && c <= '9':
			letter(c)
		case c < utf8.RuneSelf:
			space()
		default:
			letter('?') // of another script: part of a word
			return
		}
	}
}
