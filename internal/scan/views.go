package scan

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/carboy/carboy/internal/scan/literal"
)

// Views decode what hides a text without compressing it. They cost more than the
// search itself, so they run only near triggers: from some bytes before the first
// to some bytes behind the last.
type viewKind uint8

const (
	noView    viewKind = iota
	unescape           // percent, \u, \x, entities, in any mixture
	lookalike          // characters beyond ASCII that look like it, or are invisible
	wide               // UTF-16, where a token may be: a separator or AK and a NUL
	viewKinds

	packed viewKind = viewKinds // base64 of something compressed: a view for each beginning
)

const (
	viewBefore = 256 // bytes of a view before its first trigger
	viewAfter  = 384 // and after its last: longer parts without a trigger are found without it
	maxPacked  = 8
)

type trigger struct {
	text  string
	view  viewKind
	magic decodeKind
}

// triggers returns the strings that start views and decoders. The first stage finds
// them together with the literals of tokens. For those of lookalike see
// callingPairs.
var triggers = sync.OnceValue(func() (out []trigger) {
	for _, s := range []string{`\u`, `\x`, `\U`, `&#`, "%2", "%3", "%4", "%5", "%6", "%7", `\/`, `\0`, `\1`} {
		out = append(out, trigger{text: s, view: unescape})
	}
	for _, s := range []string{"H4sI", "KLUv", "UEsD", "Qlpo", "/Td6WFoA", "N3q8ryc", "BCJNGA", "eJw", "eJx", "eJy", "eJz", "eNo", "eNp", "eNq", "eNr", "eAE", "eAF", "eF4", "eF5", "eF6", "eF7"} {
		out = append(out, trigger{text: s, view: packed})
	}
	for kind, f := range formats {
		for _, s := range f.magic {
			if f.first {
				continue
			}
			out = append(out, trigger{text: s, magic: decodeKind(kind)})
		}
	}
	return out
})

// A view decodes a part of a stream into a stream of its own.
type view struct {
	stream *stream // its output
	// decode appends the decoded bytes of in, which is at position pos of the
	// parent, to out. It returns how many bytes it used, and whether the view ends
	// there.
	decode func(v *view, in []byte, pos int64, end bool) (used int, stop bool)
	out    []byte
	done   int64 // position in the parent up to which it was decoded
	until  int64 // position in the parent where it ends, without a further trigger
	over   bool

	space bool // of words: the last was one
}

func newView(l *stream, kind string, from int64, linear bool) *view {
	v := l.s.takeView()
	v.stream.begin(l.s, l, kind, linear)
	v.done = from
	v.stream.marks, v.stream.origin = append(v.stream.marks, mark{0, from, from}), from
	if linear {
		v.stream.dense = max(0, l.dense-from)
	}
	return v
}

// Most views are short and cost mostly allocation, so a scanner reuses a few.
const (
	maxSpareViews = 4
	maxSpareRoom  = 2 << 10 // bytes of one of their buffers
)

func (s *Scanner) takeView() *view {
	n := len(s.views)
	if n == 0 {
		return &view{stream: &stream{}}
	}
	v := s.views[n-1]
	s.views = s.views[:n-1]
	return v
}

// drop releases v for reuse. The caller must not use it afterwards.
func (s *Scanner) drop(v *view) {
	v.stream.stop()
	if len(s.views) >= maxSpareViews || max(cap(v.out), cap(v.stream.buf), 16*cap(v.stream.marks), 16*cap(v.stream.hits)) > maxSpareRoom {
		return
	}
	v.stream.reset()
	*v = view{stream: v.stream, out: v.out[:0]}
	s.views = append(s.views, v)
}

// at records that the next output byte comes from position pos of the parent.
func (v *view) at(pos int64) {
	own := v.stream.fed() + int64(len(v.out))
	last := &v.stream.marks[len(v.stream.marks)-1]
	if v.stream.linear && last.parent+own-last.own == pos {
		return // the last mark implies it
	}
	if last.own == own && len(v.stream.marks) > 1 {
		last.parent = pos
		return
	}
	v.stream.marks = append(v.stream.marks, mark{own, pos, pos})
}

// skip records that [from, to) of the parent has no output.
func (v *view) skip(from, to int64) {
	own := v.stream.fed() + int64(len(v.out))
	if last := &v.stream.marks[len(v.stream.marks)-1]; last.own == own && len(v.stream.marks) > 1 {
		last.parent = to
		return
	}
	v.stream.marks = append(v.stream.marks, mark{own, to, from})
}

// advance decodes l up to position to; end reports that the view ends there.
func (v *view) advance(l *stream, to int64, end bool) error {
	if v.over || to < v.done {
		return nil
	}
	in := l.bytes(v.done, to)
	v.out = v.out[:0]
	used, stop := v.decode(v, in, v.done, end)
	v.done += int64(used)
	v.over = stop || end
	if err := l.s.spend(used/2 + 1); err != nil {
		return err
	}
	return v.stream.feed(v.out, v.over)
}

// clear returns the position in the parent up to which the output is clear.
func (v *view) clear() int64 {
	if v.over {
		return v.done
	}
	if own := v.stream.clear(); own < v.stream.fed() {
		return min(v.done, v.stream.toParent(own))
	}
	return v.done
}

// runViews starts the views and decoders that the new hits trigger, and feeds the
// new bytes of l to all that run.
func (l *stream) runViews(end bool) error {
	if at := l.half; at >= 0 {
		l.half = -1
		if err := l.looksAlike(at); err != nil {
			return err
		}
	}
	if err := l.runFirst(end); err != nil {
		return err
	}
	for _, h := range l.hits {
		kind := &l.s.rules.kinds[h.ID]
		at := l.base + int64(h.Pos)
		var err error
		switch {
		case kind.view == lookalike:
			err = l.looksAlike(at)
		case !l.mayBegin(kind.view, at):
		case kind.magic != 0 && l.within>>wide&1 != 0:
			// Without its NULs, something compressed looks broken.
		case kind.magic != 0:
			err = l.beginDecode(kind.magic, at)
		case kind.view == packed:
			err = l.beginPacked(at)
		case kind.view != noView:
			err = l.called(kind.view, at)
		}
		if err != nil {
			return err
		}
	}
	for l.wide = max(l.wide, l.base); ; {
		i := bytes.IndexByte(l.buf[l.wide-l.base:], 0)
		if i < 0 {
			l.wide = l.fed()
			break
		}
		at := l.wide + int64(i)
		// Only the first NUL of a run stands behind a character.
		for l.wide = at + 1; l.wide < l.fed() && l.buf[l.wide-l.base] == 0; l.wide++ {
		}
		b := l.buf[:at-l.base]
		if n := len(b); n > 0 && (b[n-1] == '-' || b[n-1] == '_' || b[n-1] == '.' || bytes.HasSuffix(b, []byte("A\x00K"))) && l.mayBegin(wide, at) {
			if err := l.called(wide, at); err != nil {
				return err
			}
		}
	}
	for i, v := range l.views {
		if v == nil {
			continue
		}
		over := end || l.fed() > v.until
		if err := v.advance(l, min(l.fed(), v.until), over); err != nil {
			return err
		}
		if over {
			l.s.drop(v)
			l.views[i] = nil
		}
	}
	return l.runDecodes(end)
}

// runFirst starts the decoders whose magic counts only at the beginning of l, and those
// for which there were too few bytes.
func (l *stream) runFirst(end bool) error {
	l.ending = end
	if again := l.undecided; len(again) > 0 {
		l.undecided = nil
		for _, at := range again {
			if err := l.beginDecode(isZlib, at); err != nil {
				return err
			}
		}
	}
	const longest = 3
	if l.begun || l.parent != nil && l.linear || len(l.buf) < longest && !end {
		return nil
	}
	l.begun = true
	if len(l.buf) >= 2 && isZlibHead(l.buf[0], l.buf[1]) && !slices.Contains(zlibHeads, string(l.buf[:2])) {
		return l.beginDecode(isZlib, 0)
	}
	for kind, f := range formats {
		if f.first && strings.HasPrefix(string(l.buf[:min(longest, len(l.buf))]), f.magic[0]) {
			return l.beginDecode(decodeKind(kind), 0)
		}
	}
	return nil
}

// mayBegin reports whether the trigger at position at may start something. In a
// view, a trigger that the view passed on unchanged was handled in its parent; only
// views of another kind may still start there.
func (l *stream) mayBegin(kind viewKind, at int64) bool {
	if !l.linear || l.parent == nil || (kind == unescape || kind == lookalike) && l.within>>kind&1 == 0 {
		return true
	}
	const near = 8 // the longest trigger, or a word
	for i := len(l.marks) - 1; i > 0 && l.marks[i].own >= at; i-- {
		if l.marks[i].own <= at+near {
			return true
		}
	}
	return false
}

// runeTail returns how many bytes at the end of b are an incomplete character.
func runeTail(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if c := b[len(b)-n]; c >= 0xc2 {
			if !utf8.FullRune(b[len(b)-n:]) {
				return n
			}
			return 0
		} else if c < 0x80 {
			return 0
		}
	}
	return 0
}

// calls reports whether r triggers the view lookalike.
func calls(r rune) bool {
	_, ok := homoglyphs()[r]
	return ok || invisible(r) || 0xff00 <= r && r < 0xfff0 || 0x1d400 <= r && r < 0x1d800 || 0x2460 <= r && r < 0x2500 ||
		0x1f100 <= r && r < 0x1f200
}

// callingPairs returns the first two bytes of all characters for which calls is
// true.
var callingPairs = sync.OnceValue(func() *literal.Pairs {
	p := new(literal.Pairs)
	for _, span := range [][2]rune{{0x80, 0x2500}, {0xa000, 0xac00}, {0xfe00, 0x10000}, {0x1d400, 0x1d800}, {0x1f100, 0x1f200}, {0xe0000, 0xe0200}} {
		for r := span[0]; r < span[1]; r++ {
			if calls(r) {
				p.AddRune(r)
			}
		}
	}
	return p
})

// looksAlike triggers the view lookalike if calls is true for the character at
// position at. If its last bytes have not come yet, l.half remembers it.
func (l *stream) looksAlike(at int64) error {
	b := l.bytes(at, l.fed())
	if !utf8.FullRune(b) {
		l.half = at
		return nil
	}
	if r, _ := utf8.DecodeRune(b); !calls(r) || !l.mayBegin(lookalike, at) {
		return nil
	}
	return l.called(lookalike, at)
}

// called starts or extends a view for the trigger at position at.
func (l *stream) called(kind viewKind, at int64) error {
	v := l.views[kind]
	if v != nil && at > v.until {
		if err := v.advance(l, v.until, true); err != nil {
			return err
		}
		l.s.drop(v)
		v, l.views[kind] = nil, nil
	}
	if v == nil {
		if l.depth >= l.s.opt.Depth || kind == lookalike && !l.isText(at) {
			return nil
		}
		switch kind {
		case unescape:
			v = newView(l, "unescape", max(l.base, at-viewBefore), true)
			v.decode = decodeEscapes
		case lookalike:
			v = newView(l, "lookalike", max(l.base, at-viewBefore), true)
			v.decode = decodeLookalikes
		case wide:
			v = newView(l, "utf-16", max(l.base, at-viewBefore), true)
			v.decode = decodeWide
		}
		v.stream.within = l.within | 1<<kind
		l.views[kind] = v
	}
	v.until = at + viewAfter
	return nil
}

// isText reports whether the bytes before at are text, rather than, say, an image.
// For text that begins behind such bytes, its next trigger starts the view.
func (l *stream) isText(at int64) bool {
	b := l.bytes(max(l.base, at-8), at)
	for i := 0; i < 3 && len(b) > 0 && !utf8.RuneStart(b[0]); i++ {
		b = b[1:]
	}
	for _, c := range b {
		if c < ' ' && c != '\n' && c != '\t' && c != '\r' || c == 0x7f {
			return false
		}
	}
	return utf8.Valid(b)
}

func decodeWide(v *view, in []byte, pos int64, end bool) (used int, stop bool) {
	for i, c := range in {
		if c != 0 {
			v.at(pos + int64(i))
			v.out = append(v.out, c)
		}
	}
	v.at(pos + int64(len(in)))
	return len(in), false
}

// special marks the bytes that begin an escape.
var special = [256]bool{'%': true, '\\': true, '&': true}

func decodeEscapes(v *view, in []byte, pos int64, end bool) (used int, stop bool) {
	for i := 0; i < len(in); {
		run := i
		for run < len(in) && !special[in[run]] {
			run++
		}
		v.out = append(v.out, in[i:run]...)
		if i = run; i == len(in) {
			break
		}
		n, text, more := escape(in[i:])
		if more && !end {
			return i, false
		}
		if n == 0 {
			v.out = append(v.out, in[i])
			i++
			continue
		}
		v.at(pos + int64(i))
		v.out = append(v.out, text...)
		i += n
		v.at(pos + int64(i))
	}
	return len(in), false
}

// escape decodes the escape that b begins with; n is its length, 0 if there is
// none. more reports that b may be the beginning of one.
func escape(b []byte) (n int, text string, more bool) {
	switch b[0] {
	case '%':
		if len(b) < 3 {
			return 0, "", len(b) < 2 || hexDigit(b[1]) >= 0
		}
		if h := hexByte(b[1:]); h >= 0 {
			return 3, string([]byte{byte(h)}), false
		}
	case '&':
		return entity(b)
	case '\\':
		if len(b) < 2 {
			return 0, "", true
		}
		switch c := b[1]; c {
		case 'n':
			return 2, "\n", false
		case 't':
			return 2, "\t", false
		case 'r':
			return 2, "\r", false
		case '"', '\'', '\\', '/':
			return 2, string(c), false
		case 'x':
			if len(b) < 4 {
				return 0, "", true
			}
			if h := hexByte(b[2:]); h >= 0 {
				return 4, string([]byte{byte(h)}), false
			}
		case 'u', 'U':
			if len(b) > 2 && b[2] == '{' {
				stop := bytes.IndexByte(b[:min(len(b), 12)], '}')
				if stop < 0 {
					return 0, "", len(b) < 12
				}
				return codePoint(b[3:stop], 16, stop+1)
			}
			digits := 4
			if c == 'U' {
				digits = 8
			}
			if len(b) < 2+digits {
				return 0, "", true
			}
			return codePoint(b[2:2+digits], 16, 2+digits)
		case '0', '1', '2', '3':
			if len(b) < 4 {
				return 0, "", true
			}
			if r, err := strconv.ParseUint(string(b[1:4]), 8, 8); err == nil {
				return 4, string([]byte{byte(r)}), false
			}
		}
	}
	return 0, "", false
}

func codePoint(digits []byte, base, n int) (int, string, bool) {
	r := rune(0)
	for _, c := range digits {
		d := hexDigit(c)
		if d < 0 || d >= base {
			return 0, "", false
		}
		if r = r*rune(base) + rune(d); r > utf8.MaxRune {
			return 0, "", false
		}
	}
	if len(digits) == 0 {
		return 0, "", false
	}
	if r < utf8.RuneSelf {
		return n, ascii[r : r+1], false
	}
	return n, string(r), false
}

// ascii holds each character at its own index: a slice of it allocates nothing.
var ascii = func() string {
	var b [utf8.RuneSelf]byte
	for i := range b {
		b[i] = byte(i)
	}
	return string(b[:])
}()

var entities = map[string]string{"amp": "&", "lt": "<", "gt": ">", "quot": `"`, "apos": "'", "sol": "/", "plus": "+", "equals": "=",
	"lowbar": "_", "hyphen": "-", "period": ".", "colon": ":", "num": "#", "commat": "@", "excl": "!", "dollar": "$", "percnt": "%", "bsol": `\`,
	"ast": "*", "comma": ",", "semi": ";", "quest": "?", "lpar": "(", "rpar": ")", "lsqb": "[", "rsqb": "]", "lcub": "{", "rcub": "}", "vert": "|",
	"Hat": "^", "grave": "`", "Tab": "\t", "NewLine": "\n"}

func entity(b []byte) (n int, text string, more bool) {
	const longest = 12
	stop := bytes.IndexByte(b[:min(len(b), longest)], ';')
	if stop < 0 {
		return 0, "", len(b) < longest
	}
	name := string(b[1:stop])
	if len(name) > 1 && name[0] == '#' {
		if name[1]|0x20 == 'x' {
			return codePoint(b[3:stop], 16, stop+1)
		}
		return codePoint(b[2:stop], 10, stop+1)
	}
	if t, ok := entities[name]; ok {
		return stop + 1, t, false
	}
	return 0, "", false
}

func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

func hexByte(b []byte) int {
	h, l := hexDigit(b[0]), hexDigit(b[1])
	if h < 0 || l < 0 {
		return -1
	}
	return h<<4 | l
}

// homoglyphs maps letters to the ASCII ones they look like. Compatibility characters
// (full width, mathematical …) are not in it: normalisation maps those.
var homoglyphs = sync.OnceValue(func() map[rune]byte {
	m := map[rune]byte{}
	for _, p := range []struct{ like, runes string }{
		{"a", "аɑα"}, {"A", "АΑᎪ"}, {"B", "ВΒᏴ"}, {"b", "ЬƄ"}, {"c", "сϲⅽ"}, {"C", "СϹᏟ"}, {"d", "ԁⅾ"}, {"D", "Ꭰ"}, {"e", "еҽ"}, {"E", "ЕΕᎬ"},
		{"g", "ɡց"}, {"G", "ԌᏀ"}, {"h", "һհ"}, {"H", "НΗᎻ"}, {"i", "іιɩ"}, {"I", "ІΙӀ"}, {"j", "јϳ"}, {"J", "ЈᎫ"}, {"k", "κк"}, {"K", "КΚᏦ"},
		{"l", "ӏǀⅼ"}, {"L", "Ꮮ"}, {"m", "мⅿ"}, {"M", "МΜᎷ"}, {"n", "ոп"}, {"N", "Ν"}, {"o", "оοօσ"}, {"O", "ОΟՕ"}, {"p", "рρ"}, {"P", "РΡᏢ"},
		{"q", "ԛզ"}, {"r", "гᴦ"}, {"s", "ѕꜱ"}, {"S", "ЅᏚՏ"}, {"t", "тτ"}, {"T", "ТΤᎢ"}, {"u", "υսц"}, {"U", "Ս"}, {"v", "ѵν"}, {"V", "ѴᏙ"},
		{"w", "ԝѡ"}, {"W", "ԜᎳ"}, {"x", "хχ"}, {"X", "ХΧ"}, {"y", "уγү"}, {"Y", "ҮΥ"}, {"z", "ᴢ"}, {"Z", "ΖᏃ"}, {"3", "ЗӠ"}, {"6", "б"},
		{"-", "‐‑‒–—−"}, {"_", "‗"}, {".", "․"}, {"/", "⁄∕"}, {":", "։"},
	} {
		for _, r := range p.runes {
			m[r] = p.like[0]
		}
	}
	return m
})

// invisible reports whether r shows nothing by itself.
func invisible(r rune) bool {
	return r == 0xad || r == 0x34f || r == 0x61c || r == 0x180e || 0x200b <= r && r <= 0x200f || 0x202a <= r && r <= 0x202e ||
		0x2060 <= r && r <= 0x206f || r == 0xfeff || 0xfe00 <= r && r <= 0xfe0f || 0x300 <= r && r <= 0x36f || 0xe0000 <= r && r <= 0xe01ef
}

func decodeLookalikes(v *view, in []byte, pos int64, end bool) (used int, stop bool) {
	for i := 0; i < len(in); {
		if in[i] < utf8.RuneSelf {
			v.out = append(v.out, in[i])
			i++
			continue
		}
		if !utf8.FullRune(in[i:]) && !end {
			return i, false
		}
		r, n := utf8.DecodeRune(in[i:])
		v.at(pos + int64(i))
		before := len(v.out)
		if v.out = appendSkeleton(v.out, r, in[i:i+n]); len(v.out) == before {
			v.skip(pos+int64(i), pos+int64(i+n))
		}
		i += n
		v.at(pos + int64(i))
	}
	return len(in), false
}

// appendSkeleton appends the ASCII characters that r looks like, or r if there are none.
func appendSkeleton(dst []byte, r rune, raw []byte) []byte {
	if c, ok := homoglyphs()[r]; ok {
		return append(dst, c)
	}
	if invisible(r) {
		return dst
	}
	if d := norm.NFKC.Properties(raw).Decomposition(); d != nil {
		for _, r := range string(d) {
			if c, ok := homoglyphs()[r]; ok {
				dst = append(dst, c)
			} else if !invisible(r) {
				dst = utf8.AppendRune(dst, r)
			}
		}
		return dst
	}
	return append(dst, raw...)
}

// beginPacked starts a view of base64 at the position of a trigger.
func (l *stream) beginPacked(at int64) error {
	if l.depth >= l.s.opt.Depth {
		return nil
	}
	if len(l.packed) >= maxPacked {
		return &LimitError{"decoders", l.s.opt.Place, l.s.root.fed()}
	}
	v := newView(l, "base64", at, false)
	v.decode = decodeBase64
	// Try a little at once, so that a false start neither counts nor costs.
	const little = 64
	if err := v.advance(l, min(l.fed(), at+little), false); err != nil {
		return err
	}
	if l.packed = append(l.packed, v); len(l.packed) > maxPacked/2 {
		return l.runPacked(false)
	}
	return nil
}

// packs reports whether something compressed may be under way in l.
func (l *stream) packs() bool { return len(l.decodes) > 0 || len(l.undecided) > 0 }

func (l *stream) runPacked(end bool) error {
	live := l.packed[:0]
	for _, v := range l.packed {
		if !v.over && (v.stream.packs() || v.stream.fed() <= 16) {
			if err := v.advance(l, l.fed(), end); err != nil {
				return err
			}
		}
		if !v.over && v.stream.fed() > 16 && !v.stream.packs() {
			v.over = true // nothing compressed
		}
		if v.over {
			l.s.drop(v)
		} else {
			live = append(live, v)
		}
	}
	l.packed = live
	return nil
}

func decodeBase64(v *view, in []byte, pos int64, end bool) (used int, stop bool) {
	var four [4]byte
	n, from := 0, 0
	for i := 0; i < len(in); {
		c := in[i]
		switch {
		case c == '-':
			c = '+'
		case c == '_':
			c = '/'
		}
		if 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' || c == '+' || c == '/' {
			four[n] = c
			n++
			i++
			if n == 4 {
				var three [3]byte
				base64.StdEncoding.Decode(three[:], four[:]) // its alphabet was checked
				v.out = append(v.out, three[:]...)
				n, from = 0, i
			}
			continue
		}
		w, more := breakAt(in[i:])
		if more && !end {
			break
		}
		if w == 0 {
			end, stop = true, true
			break
		}
		i += w
	}
	if end && n > 1 {
		var three [3]byte
		m, _ := base64.RawStdEncoding.Decode(three[:], four[:n])
		v.out = append(v.out, three[:m]...)
		from = len(in)
	}
	v.at(pos + int64(from))
	return from, stop
}
