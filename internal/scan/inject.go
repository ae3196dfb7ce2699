package scan

import (
	"errors"
	"regexp/syntax"
	"slices"
	"sync"

	"github.com/carboy/carboy/internal/scan/literal"
)

// near bounds the characters between a phrase that takes over and one that asks
// for a secret, if the two are to count as one injection.
const near = 500

// A phraseClass is the purpose of a phrase.
type phraseClass uint8

const (
	takesOver phraseClass = iota + 1
	discloses
	phraseClasses
)

// phrases are expressions over words in lower case with one space between any two
// (see decodeWords). They match texts that talk to a model. No expression can tell
// these from texts about such texts, so one phrase alone only warns.
//
// Each has three parts. key matches one of a few strings of whole words; a text
// without a key has no phrase (see windows.go), so key is the part that is rarest in
// ordinary text.
var phrases = []struct {
	id    string
	class phraseClass

	before, key, after string
}{
	{"ignore-instructions", takesOver,
		`(?:ignore|disregard|forget|override|bypass|neglect|abandon|discard|do not follow|dont follow|stop following|pay no attention to|do not obey|dont obey)(?: [a-z0-9]{1,12}){0,4} `,
		`(?:instructions?|prompts?|rules|guidelines|directives?|commands|constraints|programming|restrictions|safeguards|policies|training|orders|you were told|told before|said before|came before)`,
		``},
	{"ignore-the-above", takesOver,
		``,
		`(?:ignore|disregard|forget) (?:the|all|all of the|everything|what was said) above`,
		``},
	{"new-instructions", takesOver,
		`(?:new|updated|real|actual|true|following) (?:system |secret |hidden |priority |highest priority )?`,
		`(?:instructions?|directives?|orders|prompt|task|objective)`,
		` (?:follow|below|is|are|for you|from now)`},
	{"instead-do", takesOver,
		``,
		`(?:instead|from now on|henceforth|starting now) (?:of (?:that|this) )?you`,
		` (?:will|must|shall|should|are|can|have to|need to)`},
	{"no-longer-bound", takesOver,
		``,
		`you are (?:now|no longer)`,
		` (?:in |an? |the |going to be |acting as )?(?:dan|stan|free|unrestricted|unfiltered|jailbroken|uncensored|bound|restricted|limited|required|developer|root|admin|debug|evil|unbound|subject)`},
	{"mode", takesOver,
		``,
		`(?:developer|debug|god|admin|administrator|sudo|jailbreak|jailbroken|unrestricted|maintenance|dan|opposite|unfiltered) mode`,
		`(?: is| has been)? (?:now )?(?:enabled|activated|active|on|engaged|unlocked)`},
	{"enter-mode", takesOver,
		`(?:enter|enable|activate|switch to|switch into|engage|turn on|go into) (?:the |your )?`,
		`(?:developer|debug|god|admin|sudo|jailbreak|unrestricted|maintenance|dan|unfiltered) mode`,
		``},
	{"do-anything-now", takesOver,
		``,
		`do anything now`,
		``},
	{"no-restrictions", takesOver,
		`(?:pretend|act|behave|respond|answer|operate|imagine|roleplay|speak)(?: [a-z0-9]{1,12}){0,6} (?:no|without|without any|free of|free from|ignoring) `,
		`(?:restrictions?|rules|guidelines|limits|limitations|filters?|safety|ethical|censorship|moderation|content policy|boundaries)`,
		``},
	{"system-override", takesOver,
		``,
		`(?:system|safety|security|admin|priority|emergency) override`,
		``},
	{"end-of-prompt", takesOver,
		`(?:end|begin|start) of (?:the )?`,
		`(?:system|user|previous|new) (?:prompt|instructions?|message|input)`,
		``},
	{"do-not-tell", takesOver,
		``,
		`(?:do not|dont|never|without) (?:tell|telling|inform|informing|mention|mentioning|alert|alerting|notify|notifying|warn|warning|reveal|show|ask|asking)`,
		`(?: [a-z0-9]{1,10}){0,3} (?:user|users|human|humans|operator|developer|owner|person|anyone)`},

	{"disclose-prompt", discloses,
		`(?:reveal|print|show|display|output|repeat|disclose|leak|share|tell|give|list|dump|expose|recite|send|return|write|provide|paste|echo|summarize|translate|read)(?: [a-z0-9]{1,12}){0,4} `,
		`(?:system prompt|system message|system instructions|initial prompt|initial instructions|hidden prompt|hidden instructions|original prompt|original instructions|secret instructions|your instructions|your prompt|your rules|your guidelines|your configuration|developer message|prompt verbatim|instructions verbatim)`,
		``},
	{"disclose-secret", discloses,
		`(?:reveal|print|show|display|output|disclose|leak|share|tell|give|list|dump|expose|send|return|write|provide|paste|echo|cat|read|include|append|exfiltrate|upload|post|forward|email|transmit|copy|submit|encode|steal|collect|extract|curl|put|embed)(?: [a-z0-9]{1,14}){0,6} `,
		`(?:api keys?|api tokens?|access tokens?|auth tokens?|secret keys?|secrets|passwords?|credentials?|environment variables|env vars|env file|dotenv|private keys?|ssh keys?|id rsa|aws credentials|bearer tokens?|session tokens?|cookies|github tokens?|(?:the|your|all|any|my|our|their|these|those) tokens)`, // not output_tokens, which models' vendors count
		``},
	{"whose-prompt", discloses,
		`(?:my|your|our|here is the|heres the|this is the|the (?:new|actual|real|current)) (?:own |new |full |actual |real |secret |current |entire |original )?`,
		`(?:system prompt|system message|system instructions|hidden prompt|hidden instructions|secret instructions)`,
		``},
	{"what-is-your-prompt", discloses,
		`what (?:is|are|was|were|does|do) (?:in )?your (?:system |initial |original |hidden |secret |full |exact |previous |first ){0,12}`,
		`(?:prompt|instructions?|rules|guidelines|system message)`,
		``},
	{"repeat-above", discloses,
		`(?:repeat|print|output|recite|copy|return)(?: [a-z0-9]{1,10}){0,3} (?:everything|all|text|words|lines|content|contents|conversation|message|messages)(?: [a-z0-9]{1,10}){0,2} `,
		`(?:above|before this|so far|verbatim|word for word|up to here)`,
		``},
	{"environment", discloses,
		``,
		`(?:output of|result of|run|execute|contents of|content of) (?:printenv|env|the env|cat env|set|cat etc passwd|etc passwd|etc shadow|proc self environ|ssh id rsa|the ssh directory|aws credentials|the env file|env file)`,
		``},
}

// phraseForms compiles the phrases and their matcher on first use.
var phraseForms = sync.OnceValues(func() (*phraseSet, error) {
	p := &phraseSet{forms: &forms{}, class: map[string]phraseClass{}}
	index := map[string]int{}
	var errs []error
	for n, r := range phrases {
		regex := `\b` + r.before + r.key + r.after + `\b`
		re, err := syntax.Parse(regex, syntax.Perl)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, p.addKeys(r.before, r.key, 1<<n))
		_, longest, bounded := width(re)
		if p.longest = max(p.longest, longest); !bounded {
			errs = append(errs, errors.New("phrase "+r.id+": it has no longest match"))
		}
		f := &form{tokenRule: tokenRule{id: r.id, regex: regex}, re: re, anchors: anchors(re), window: window, whole: true}
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
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var err error
	if p.lits, err = literal.New(p.forms.lits, nil); err != nil {
		return nil, err
	}
	p.keyLits, err = literal.New(p.keyWords, nil)
	return p, err
})

type phraseSet struct {
	forms *forms
	kinds []litKind
	lits  *literal.Matcher
	class map[string]phraseClass

	longest   int // words, in bytes, from the beginning of a phrase to its end
	keys      [][]key
	keyOf     map[string]int // by word: index in keys
	keyWords  []literal.Literal
	keyLits   *literal.Matcher
	begins    map[string]uint32 // the first words of phrases before their keys, with the bits of these
	pairs     [1 << 10]uint32   // the same by the first two letters
	everyWord bool              // for tests: words are made of all text, and not only around keys
}

// NewInjections returns rules for incoming text: phrases by which a text takes
// over a model, and phrases by which it asks for secrets. A Scanner with them
// blocks if one of each is near the other, and reports one alone.
func NewInjections() (*Rules, error) {
	p, err := phraseForms()
	if err != nil {
		return nil, err
	}
	return &Rules{phrases: p, lits: p.lits, kinds: p.kinds}, nil
}

// phrase records a phrase of rule id, found at [from, to) of the words in l, and
// reports whether it is an injection together with another.
func (s *Scanner) phrase(l *stream, id string, from, to int64) bool {
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
