package scan

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"regexp/syntax"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/carboy/carboy/internal/scan/literal"
)

// Phrases are matched against the words of a text as it looks, however its letters
// are encoded. Making words and matching phrases costs some fifty times what a
// search for fixed strings does, and nearly no text has a phrase in it. So words are
// made only within windows; outside of these no phrase can be:
//
//   - Every phrase contains a key (see phrases). Keys are whole words: in plain
//     letters, the search for literals finds them in the bytes.
//   - Bytes that may encode letters in another way are odd (see findOdd). The run
//     around an odd byte is made into words, and these are looked up.
//   - A window begins where there may be a key with the first word of one of its
//     phrases before it. It begins early enough to contain the whole phrase, and ends
//     when no phrase is under way.
//   - At the end of the bytes so far, a window holds back what may still become a
//     phrase.
//
// The tests compare this with one window over everything: both find the same.

// A key is one of the strings that phrases contain. It is found by its rarest word.
type key struct {
	words   []string
	rare    int
	phrases uint32 // that have it behind other words, by their bits; 0: one that begins with it
}

// frequent ranks the words of keys that are common in ordinary text.
var frequent = func() map[string]int {
	m := map[string]int{}
	for i, words := range []string{
		"the this that for you are not from file key keys new user never",
		"content contents input message output result run execute dont without access initial original previous secret session system environment",
		"ignore disregard forget everything",
	} {
		for _, w := range strings.Fields(words) {
			m[w] = i
		}
	}
	return m
}()

// addKeys adds the strings that regex matches, which are few, as keys of the phrase
// with this bit, and the first words of the matches of before.
func (p *phraseSet) addKeys(before, regex string, bit uint32) error {
	if p.keyOf == nil {
		p.keyOf, p.begins = map[string]int{}, map[string]uint32{}
	}
	if err := p.addBegins(before, bit); err != nil {
		return err
	}
	if before == "" {
		bit = 0
	}
	re, err := syntax.Parse(regex, syntax.Perl)
	if err != nil {
		return err
	}
	all := spell(re)
	if all == nil {
		return fmt.Errorf("the keys of a phrase are not a few strings: %s", regex)
	}
	for _, s := range all {
		k := key{words: strings.Fields(s), phrases: bit}
		for i, w := range k.words {
			rank := func(w string) int {
				if n, ok := frequent[w]; ok {
					return n
				}
				return len(w)
			}
			if rank(w) >= rank(k.words[k.rare]) {
				k.rare = i
			}
		}
		w := k.words[k.rare]
		id, ok := p.keyOf[w]
		if !ok {
			id = len(p.keys)
			p.keyOf[w] = id
			p.keys = append(p.keys, nil)
			p.keyWords = append(p.keyWords, literal.Literal{Text: w, Fold: true, Whole: true})
		}
		p.keys[id] = append(p.keys[id], k)
	}
	return nil
}

// addBegins adds the first words of the matches of an expression.
func (p *phraseSet) addBegins(regex string, bit uint32) error {
	re, err := syntax.Parse(regex, syntax.Perl)
	if err != nil || regex == "" {
		return err
	}
	parts := []*syntax.Regexp{re}
	if re.Op == syntax.OpConcat {
		parts = flatten(re.Sub)
	}
	for _, s := range spell(parts[0]) {
		w, _, _ := strings.Cut(s, " ")
		if len(w) < 2 {
			return fmt.Errorf("a phrase begins with %q: %s", w, regex)
		}
		p.begins[w] |= bit
		p.pairs[pairOf(w[0], w[1])] |= bit
	}
	if len(p.begins) == 0 {
		return fmt.Errorf("the first words of a phrase are not a few: %s", regex)
	}
	return nil
}

// pairOf returns an index for two letters, ignoring case.
func pairOf(a, b byte) int { return int(a&31)<<5 | int(b&31) }

// spell lists all strings that re matches, or nil if they are too many.
func spell(re *syntax.Regexp) []string {
	const most = 400
	switch re.Op {
	case syntax.OpLiteral:
		return []string{string(re.Rune)}
	case syntax.OpEmptyMatch:
		return []string{""}
	case syntax.OpCapture:
		return spell(re.Sub[0])
	case syntax.OpCharClass:
		var out []string
		for i := 0; i < len(re.Rune); i += 2 {
			if re.Rune[i+1]-re.Rune[i] > most {
				return nil
			}
			for r := re.Rune[i]; r <= re.Rune[i+1]; r++ {
				out = append(out, string(r))
			}
		}
		return out
	case syntax.OpQuest:
		if s := spell(re.Sub[0]); s != nil {
			return append(s, "")
		}
	case syntax.OpAlternate:
		var out []string
		for _, sub := range re.Sub {
			s := spell(sub)
			if s == nil {
				return nil
			}
			out = append(out, s...)
		}
		return out
	case syntax.OpConcat:
		out := []string{""}
		for _, sub := range re.Sub {
			s := spell(sub)
			if s == nil || len(s)*len(out) > most {
				return nil
			}
			var longer []string
			for _, a := range out {
				for _, b := range s {
					longer = append(longer, a+b)
				}
			}
			out = longer
		}
		return out
	}
	return nil
}

// feedWords is feed for rules about phrases.
func (l *stream) feedWords(end bool) error {
	p := l.s.rules.phrases
	if p.everyWord {
		if l.words == nil {
			l.openWords(l.base)
		}
		return l.words.advance(l, l.fed(), end)
	}
	const step = 64
	f := keyFinder{l: l, odd: -1}
	for until := int64(0); ; {
		for l.words != nil {
			to := l.words.done + step
			for to = max(to, until); to < l.fed() && !divides(l.buf[to-1-l.base]); {
				to++
			}
			to = min(to, l.fed())
			last := end && to == l.fed()
			if err := l.words.advance(l, to, last); err != nil || last {
				return err
			}
			if l.settled(to) {
				l.quiet = to
				l.s.drop(l.words)
				l.words = nil
			} else if to == l.fed() {
				return nil
			}
		}
		if l.quiet == l.fed() {
			return nil
		}
		from, to := f.next(end)
		if from == to {
			l.quiet, l.restart = l.fed(), l.fed() // behind a bar, if more comes
			return nil
		}
		l.openWords(from)
		until = to
	}
}

func (l *stream) openWords(from int64) {
	l.words = newView(l, "", from, true)
	l.words.stream.isWords = true
	l.words.decode = decodeWords
}

// divides reports whether c separates words whatever is before it: it is not part
// of an escape or a character. Words can be made from behind it as from the
// beginning of a text.
func divides(c byte) bool {
	return wordOf[c] == ' ' || isBar(c)
}

// isBar reports whether c ends every phrase. The brackets of \u{…} do not.
func isBar(c byte) bool { return c == '(' || c == ')' || c == ';' || c == '=' }

// A word of manyLetters is in no phrase, even if its first twelve bytes are an
// escape.
const manyLetters = 32

// settled reports whether the window, which has reached position to, can be closed:
// no phrase is under way, and the next one is too far from the last to count with it
// and will be found from l.restart.
func (l *stream) settled(to int64) bool {
	v := l.words
	if v.done != to || v.stream.clear() != v.stream.fed() {
		return false
	}
	if last := v.stream.lastPhrases; last != nil {
		for _, spans := range last {
			for _, s := range spans {
				if v.stream.fed()-s.to <= near {
					return false
				}
			}
		}
	}
	b := l.buf[:to-l.base]
	if len(b) == 0 || divides(b[len(b)-1]) {
		l.restart = to
		return true
	}
	if len(b) < manyLetters {
		return false
	}
	for _, c := range b[len(b)-manyLetters:] {
		if !isLetter(c) {
			return false
		}
	}
	l.restart = to - manyLetters
	return true
}

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' }

// A keyFinder looks for keys in the new bytes of a stream.
type keyFinder struct {
	l    *stream
	hits []literal.Hit
	from int64 // hits are from here on
	done bool  // they are there
	odd  int   // index in the stream's bytes of the next odd one; -1: not looked for
}

// next returns the range of the next window that is needed, behind l.quiet, or two
// equal positions if none is.
func (f *keyFinder) next(end bool) (from, to int64) {
	l := f.l
	p := l.s.rules.phrases
	b := l.buf
	quiet := int(l.quiet - l.base)
	if !f.done {
		l.hits = p.keyLits.Find(l.hits[:0], b[quiet:], 0)
		f.hits, f.from, f.done = l.hits, l.quiet, true
	}
	if f.odd < quiet {
		f.odd = findOdd(b, quiet)
	}
	for {
		for len(f.hits) > 0 && f.from+int64(f.hits[0].Pos) < l.quiet {
			f.hits = f.hits[1:]
		}
		at := len(b)
		if len(f.hits) > 0 {
			at = int(f.from-l.base) + f.hits[0].Pos
		}
		switch {
		case f.odd < at:
			at := f.odd
			n, phrases := l.oddKey(at)
			if phrases != 0 {
				if from, ok := l.phraseWith(at, phrases); ok {
					return from, l.base + int64(at+n)
				}
			}
			f.odd = findOdd(b, at+n)
		case at < len(b):
			h := f.hits[0]
			f.hits = f.hits[1:]
			n := p.keyLits.Len(h.ID)
			if phrases := l.isKey(p.keys[h.ID], at, at+n); phrases != 0 {
				if from, ok := l.phraseWith(at, phrases); ok {
					return from, l.base + int64(at+n)
				}
			}
		case end:
			return 0, 0 // every phrase is complete
		default:
			return l.phraseFrom(len(b)), l.fed()
		}
	}
}

// phraseFrom returns a position from which words can be made. Every phrase that
// begins before it ends before l.buf[end:].
func (l *stream) phraseFrom(end int) int64 {
	b := l.buf
	n, run := 0, 0
	for i := end; i > int(l.restart-l.base); i-- {
		c := b[i-1]
		switch k := wordOf[c]; {
		case isBar(c):
			return l.base + int64(i)
		case k == ' ':
			if run > 0 {
				n++ // for the space
			}
			if run = 0; n >= l.s.rules.phrases.longest {
				return l.base + int64(i)
			}
		case k != 0 && k != '|':
			n++
			if run++; run >= manyLetters {
				return l.base + int64(i-1)
			}
		case c == '\\': // some of the letters may be of an escape
			n, run = n-12, 0
		default:
			run = 0
		}
	}
	return l.restart
}

// phraseWith returns where a window must begin for one of these phrases, the key of
// which is at l.buf[at:], and whether the first word of one may stand before it.
func (l *stream) phraseWith(at int, phrases uint32) (from int64, ok bool) {
	from = l.phraseFrom(at)
	if phrases == anyPhrase {
		return from, true
	}
	p := l.s.rules.phrases
	b := l.buf
	var word [manyLetters]byte
	for i := int(from - l.base); i < at; {
		n := 0
	letters:
		for ; i < at; i++ {
			switch k := wordOf[b[i]]; {
			case k != 0 && isLetter(k):
				if n < len(word) {
					word[n] = k
				}
				n++
			case b[i] != '\'':
				break letters
			}
		}
		if 2 <= n && n <= len(word) && p.pairs[pairOf(word[0], word[1])]&phrases != 0 && p.begins[string(word[:n])]&phrases != 0 {
			return from, true
		}
		if i == at {
			break
		}
		switch c := b[i]; {
		case c >= utf8.RuneSelf:
			r, n := utf8.DecodeRune(b[i:])
			if !noLetter(r, b[i:i+n]) {
				return from, true // it may be anything
			}
			i += n
		case c != '\\':
			i++
		case i+1 == at || isOdd(' ', c, b[i+1]):
			return from, true
		case isSpaceEscape(b[i+1]):
			i += 2
		default:
			i++
		}
	}
	return 0, false
}

const anyPhrase = ^uint32(0)

// isKey returns the phrases that the word at l.buf[from:to], the rare word of keys,
// may be in.
func (l *stream) isKey(keys []key, from, to int) (phrases uint32) {
	b := l.buf
	if to < len(b) && isLetter(b[to]) || !wordBegins(b, from) {
		return 0
	}
	for i := range keys {
		k := &keys[i]
		if phrases|k.phrases == phrases && k.phrases != 0 || !l.neighbours(k, from, to) {
			continue
		}
		if k.phrases == 0 {
			return anyPhrase
		}
		phrases |= k.phrases
	}
	return phrases
}

// wordBegins reports whether a word may begin at b[at:]. Behind a letter none does,
// except behind the letter of an escape such as \n.
func wordBegins(b []byte, at int) bool {
	if at == 0 || !isLetter(b[at-1]) {
		return true
	}
	return at >= 2 && b[at-2] == '\\' && isSpaceEscape(b[at-1])
}

// isSpaceEscape reports whether a backslash and c are a line break or a tab.
func isSpaceEscape(c byte) bool { return c == 'n' || c == 'r' || c == 't' }

// neighbours reports whether the other words of k may stand around its rare word at
// l.buf[from:to]. Bytes that are not plain may be anything.
func (l *stream) neighbours(k *key, from, to int) bool {
	return followedBy(l.buf, to, k.words[k.rare+1:]) && precededBy(l.buf, from, k.words[:k.rare])
}

// followedBy reports whether words may stand at b[to:], behind a word.
func followedBy(b []byte, to int, words []string) bool {
	for _, w := range words {
		for to < len(b) && (wordOf[b[to]] == ' ' || b[to] == '\\' && to+1 < len(b) && !isOdd(' ', '\\', b[to+1])) {
			if b[to] == '\\' && isSpaceEscape(b[to+1]) {
				to++
			}
			to++
		}
		if to == len(b) || b[to] == '\'' || b[to] == '\\' || b[to] >= utf8.RuneSelf || b[to] == ':' {
			return true
		}
		n := 0
		for n < len(w) && to+n < len(b) && b[to+n]|0x20 == w[n] {
			n++
		}
		if to+n == len(b) {
			return true
		}
		if n < len(w) {
			return b[to+n] == '\'' || b[to+n] == '\\' || b[to+n] >= utf8.RuneSelf
		}
		if to += n; isLetter(b[to]) {
			return false
		}
	}
	return true
}

// precededBy reports whether words may stand at the end of b[:from], before a word.
func precededBy(b []byte, from int, words []string) bool {
	for _, w := range slices.Backward(words) {
		for from > 0 && (wordOf[b[from-1]] == ' ' || b[from-1] == '\\' || isLetter(b[from-1]) && wordBegins(b, from)) {
			from--
		}
		n := 0
		for n < len(w) && from-n > 0 && b[from-n-1]|0x20 == w[len(w)-1-n] {
			n++
		}
		if from-n == 0 {
			return true
		}
		if n < len(w) {
			// The letter of \n, a bracket of an escape, or what is not plain.
			c := b[from-n-1]
			return c == '\'' || c == '\\' || c == '}' || c == ':' || c >= utf8.RuneSelf || isLetter(c) && endsEscape(b[:from-n])
		}
		if from -= n; !wordBegins(b, from) {
			return endsEscape(b[:from])
		}
	}
	return true
}

// endsEscape reports whether b may end in an escape.
func endsEscape(b []byte) bool {
	b = b[max(0, len(b)-12):]
	i := bytes.LastIndexByte(b, '\\')
	return i >= 0 && (i+1 == len(b) || isOdd(' ', '\\', b[i+1]) || wordBegins(b, len(b)))
}

// findOdd returns the index of the next byte at or behind b[from] that may encode a
// letter or be ignored within a word: one that is not ASCII, an apostrophe in a
// word, or a backslash before a numeric escape. It may find others too.
func findOdd(b []byte, from int) int {
	at := from
	for at < len(b) {
		if at > 0 {
			if n := (len(b) - at - 1) / oddLen; n > 0 {
				block, mask := oddBlocks(b[at-1:], n)
				at += block * oddLen
				if block < n {
					return at + bits.TrailingZeros32(mask)
				}
			}
		}
		for stop := min(at+oddLen, len(b)); at < stop; at++ {
			before, after := byte('x'), byte('x')
			if at > 0 {
				before = b[at-1]
			}
			if at+1 < len(b) {
				after = b[at+1]
			}
			if isOdd(before, b[at], after) || b[at] == '\\' && at+1 == len(b) {
				return at
			}
		}
	}
	return len(b)
}

// oddLen is the length in bytes of a block of oddBlocks.
const oddLen = 32

func isOdd(before, c, after byte) bool {
	switch {
	case c >= utf8.RuneSelf:
		return true
	case c == '\'':
		return (before > '/' || before == '\'') && (after > '/' || after == '\'')
	case c == '\\':
		return after|0x20 == 'u' || after|0x20 == 'x' || after&^3 == '0'
	}
	return false
}

// oddInGo returns the first of n blocks of b[1:] that has an odd byte, and a bit for
// each odd byte in it; or n. It reads one byte before and one behind the blocks.
func oddInGo(b []byte, n int) (block int, mask uint32) {
	for ; block < n; block++ {
		part := b[block*oddLen:][:oddLen+2]
		for i := 1; i <= oddLen; i += 8 {
			w := binary.LittleEndian.Uint64(part[i:])
			if w&0x8080808080808080|hasZero(w^0x2727272727272727)|hasZero(w^0x5c5c5c5c5c5c5c5c) == 0 {
				continue
			}
			for j := i; j < i+8; j++ {
				if isOdd(part[j-1], part[j], part[j+1]) {
					mask |= 1 << (j - 1)
				}
			}
		}
		if mask != 0 {
			return block, mask
		}
	}
	return n, 0
}

// hasZero returns 0 if no byte of w is 0.
func hasZero(w uint64) uint64 { return (w - 0x0101010101010101) &^ w & 0x8080808080808080 }

// oddKey returns the phrases that the word around the odd byte l.buf[at] may be in
// as a word of a key, and how many bytes that covers.
func (l *stream) oddKey(at int) (n int, phrases uint32) {
	b := l.buf
	if b[at] >= utf8.RuneSelf {
		if !utf8.FullRune(b[at:]) {
			return len(b) - at, 0 // the window of the end has it
		}
		r, n := utf8.DecodeRune(b[at:])
		if noLetter(r, b[at:at+n]) {
			return n, 0
		}
	}
	// The run without a divider around it.
	const most = 128
	from, to := at, at
	for from > int(l.restart-l.base) && !divides(b[from-1]) {
		if from--; at-from > most {
			return 1, anyPhrase
		}
	}
	for ; to < len(b) && !divides(b[to]); to++ {
		if to-at > most {
			return 1, anyPhrase
		}
	}
	if to == len(b) {
		return to - at, 0 // the window of the end has it
	}
	p := l.s.rules.phrases
	if word, plain := unapostrophed(b[from:to]); plain {
		return to - at, p.keysOf(word)
	}
	v := newView(l, "", l.base+int64(from), true)
	decodeWords(v, b[from:to], l.base+int64(from), true)
	for rest := v.out; len(rest) > 0; {
		n := 0
		for n < len(rest) && isLetter(rest[n]) {
			n++
		}
		if _, ok := p.keyOf[string(rest[:n])]; ok {
			phrases = anyPhrase // its first word may be hidden here too
		}
		rest = rest[min(n+1, len(rest)):]
	}
	l.s.drop(v)
	return to - at, phrases
}

// keysOf returns the phrases that have a key with this rare word.
func (p *phraseSet) keysOf(word string) (phrases uint32) {
	id, ok := p.keyOf[word]
	if !ok {
		return 0
	}
	for _, k := range p.keys[id] {
		if k.phrases == 0 {
			return anyPhrase
		}
		phrases |= k.phrases
	}
	return phrases
}

// unapostrophed returns b without apostrophes, and whether the rest are letters, as
// most odd bytes in sentences are apostrophes. Of a long word it returns the
// beginning.
func unapostrophed(b []byte) (word string, plain bool) {
	var letters [manyLetters]byte
	n := 0
	for len(b) > 0 {
		switch c := wordOf[b[0]]; {
		case c != 0 && isLetter(c):
			if n < len(letters) {
				letters[n] = c
				n++
			}
			b = b[1:]
		case b[0] == '\'':
			b = b[1:]
		case bytes.HasPrefix(b, []byte("\u2019")):
			b = b[len("\u2019"):]
		default:
			return "", false
		}
	}
	return string(letters[:n]), true
}

// unlike caches noLetter for the characters up to U+FFFF, in blocks of 64.
var unlike [1 << 16 / 64]struct {
	known atomic.Bool
	runes atomic.Uint64
}

// noLetter reports whether r looks neither like a letter or digit nor like nothing,
// so that it can't be within a word of a phrase.
func noLetter(r rune, raw []byte) bool {
	if r >= 1<<16 || r < utf8.RuneSelf {
		return findNoLetter(r, raw)
	}
	block := &unlike[r/64]
	if !block.known.Load() {
		var set uint64
		for i := range rune(64) {
			if r := r&^63 + i; findNoLetter(r, utf8.AppendRune(nil, r)) {
				set |= 1 << i
			}
		}
		block.runes.Store(set)
		block.known.Store(true)
	}
	return block.runes.Load()>>(r%64)&1 != 0
}

func findNoLetter(r rune, raw []byte) bool {
	words, letters := 0, 0
	wordRune(r, raw, func(c byte) {
		if words++; c != '?' {
			letters++
		}
	}, func() { words++ })
	return words > 0 && letters == 0
}

// decodeWords turns text into words: letters in lower case and as they look, and
// digits. Everything between becomes one space, or a bar, which ends every phrase,
// if it has a bracket, a semicolon, or a colon before a word, as in programs. Escapes
// are decoded, apostrophes dropped.
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
			// One byte for one, so that one mark locates all.
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

// wordOf maps each byte that decodeWords can handle alone to its output; 0: the byte
// needs a closer look.
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

// lastWord returns the last byte of the words, and a space at their beginning.
func (v *view) lastWord() byte {
	switch n := len(v.out); {
	case n > 0:
		return v.out[n-1]
	case v.space || v.stream.fed() == 0:
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
