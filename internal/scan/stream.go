package scan

import (
	"slices"

	"github.com/carboy/carboy/internal/scan/literal"
)

// A stream is one text that is searched: the scanner's input, or the output of a
// view or decoder over a part of another stream.
type stream struct {
	s          *Scanner
	parent     *stream
	via        string // how it was decoded, for findings
	depth      int
	linear     bool  // each position in it maps to one in parent
	within     uint  // the kinds of views it came through, since the last decoder
	origin     int64 // where in parent it begins
	coding     bool  // it is only decoded, not searched: see coding.go
	codingName string
	told       bool // its bytes are for Options.Decoded

	buf   []byte
	base  int64  // position of buf[0]
	marks []mark // where its positions are in parent

	probe   int64 // the next gram to look at
	dense   int64 // up to here every gram is looked at: see dense
	seen    int64 // literals that end up to here were found
	watched []partial
	joined  joined
	trials  []liveTrial
	spare   [][]uint16
	hits    []literal.Hit
	queue   sparse

	runs        run // of token characters, for the entropy
	views       [viewKinds]*view
	packed      []*view
	words       *view // of rules about phrases: the window that is open, see windows.go
	isWords     bool
	quiet       int64 // before it no phrase is under way
	restart     int64 // from here words may be made for one that begins behind quiet
	lastPhrases *[phraseClasses][]span
	decodes     []*decode
	zip         *zipState
	begun       bool // its first bytes were looked at
	ending      bool
	undecided   []int64 // zlib streams may begin there

	wide int64 // NULs before it were looked at
	half int64 // a character that may call for a view and is not complete, or -1
}

// A mark maps position own of a stream to position parent of its parent. The bytes
// before it end at end in the parent, which is earlier if the view left something
// out in between.
type mark struct{ own, parent, end int64 }

type liveTrial struct {
	trial
	form   *form
	start  int64
	before context
}

// maxTrials bounds the trials that a stream follows at once: each byte costs a
// step of each.
const maxTrials = 128

func newStream(s *Scanner, parent *stream, via string, linear bool) *stream {
	l := &stream{}
	l.begin(s, parent, via, linear)
	return l
}

// begin initializes l, which is new or was reset.
func (l *stream) begin(s *Scanner, parent *stream, via string, linear bool) {
	l.s, l.parent, l.via, l.linear, l.half, l.dense = s, parent, via, linear, -1, dense
	if parent != nil {
		l.depth = parent.depth + 1
		switch {
		case via == "":
			l.via = parent.via
		case parent.via != "":
			l.via = parent.via + " > " + via
		}
	}
}

// reset clears l and keeps its buffers.
func (l *stream) reset() {
	clear(l.buf[:cap(l.buf)])
	clear(l.joined.text[:cap(l.joined.text)])
	*l = stream{
		buf: l.buf[:0], marks: l.marks[:0], watched: l.watched[:0], trials: l.trials[:0], spare: l.spare, hits: l.hits[:0],
		joined: joined{text: l.joined.text[:0], open: l.joined.open[:0]}, queue: l.queue, undecided: l.undecided[:0], packed: l.packed[:0], decodes: l.decodes[:0],
	}
}

// stop ends the running decoders.
func (l *stream) stop() {
	for _, v := range l.views {
		if v != nil {
			v.stream.stop()
		}
	}
	for _, v := range l.packed {
		v.stream.stop()
	}
	for _, d := range l.decodes {
		d.stop()
	}
	l.views, l.packed, l.decodes = [viewKinds]*view{}, l.packed[:0], l.decodes[:0]
}

func (l *stream) fed() int64 { return l.base + int64(len(l.buf)) }

// bytes returns [from, to), which must not have been trimmed.
func (l *stream) bytes(from, to int64) []byte { return l.buf[from-l.base : to-l.base] }

// toParent translates a position in l to one in its parent.
func (l *stream) toParent(at int64) int64 {
	i, _ := slices.BinarySearchFunc(l.marks, at, func(m mark, at int64) int {
		if m.own <= at {
			return -1
		}
		return 1
	})
	if i == 0 {
		if len(l.marks) > 0 {
			return l.marks[0].parent
		}
		return 0
	}
	m := l.marks[i-1]
	if !l.linear {
		return m.parent
	}
	return m.parent + at - m.own
}

// endInParent translates the end of a match in l to one in its parent.
func (l *stream) endInParent(to int64) int64 {
	if i, ok := slices.BinarySearchFunc(l.marks, to, func(m mark, to int64) int { return int(m.own - to) }); ok && i > 0 {
		return l.marks[i].end
	}
	return l.toParent(to)
}

// feed searches p, the next bytes of the stream; end reports that they are the
// last.
func (l *stream) feed(p []byte, end bool) error {
	if l.told && len(p) > 0 && l.s.opt.Decoded != nil {
		if err := l.s.opt.Decoded(p); err != nil {
			return err
		}
	}
	l.buf = append(l.buf, p...)
	if l.coding {
		return l.feedCoding(end)
	}
	if l.s.rules.phrases != nil && !l.isWords {
		if err := l.feedWords(end); err != nil {
			return err
		}
		return l.forgetCleared()
	}
	if k := l.s.rules.watched; k != nil {
		if err := l.findWatched(k, end); err != nil {
			return err
		}
		if err := l.findJoined(k, end); err != nil {
			return err
		}
	}
	if err := l.findLiterals(end); err != nil {
		return err
	}
	if e := l.s.rules.random; e != nil {
		if err := l.findRandom(e, p, end); err != nil {
			return err
		}
	}
	if !l.isWords && !l.s.plain {
		if err := l.runViews(end); err != nil && (l.parent != nil || l.s.goOn(err) != nil) {
			return err
		}
	}
	return l.forgetCleared()
}

// forgetCleared trims a derived stream. The scanner trims the root stream when it
// returns bytes.
func (l *stream) forgetCleared() error {
	if l.parent != nil && len(l.buf) >= 2*history {
		l.trim(l.clear())
	}
	return nil
}

// clear returns the position up to which nothing can still become a finding.
func (l *stream) clear() int64 {
	to := l.fed()
	if l.coding {
		if len(l.decodes) == 0 {
			return to // it ended well
		}
		return min(to, l.decodes[0].clear())
	}
	if l.s.rules.phrases != nil && !l.isWords {
		if l.words == nil {
			return to
		}
		return l.words.clear()
	}
	// The beginning of a literal, or of something that triggers a view.
	begun := l.s.rules.lits.Tail(l.buf)
	if !l.isWords {
		begun = max(begun, runeTail(l.buf))
	}
	to -= int64(begun)
	if k := l.s.rules.watched; k != nil {
		unseen := l.fed() - l.probe + stride - 1
		to = min(to, l.fed()-int64(k.tail(l.buf, int(unseen))))
		if begun > 0 {
			// Before a trigger, the beginning of a secret may stand unencoded.
			rest := l.buf[:len(l.buf)-begun]
			to = min(to, l.base+int64(len(rest)-k.tail(rest, minPart)))
		}
		if k.short != nil {
			to = min(to, l.fed()-int64(k.short.Tail(l.buf)))
		}
		for i := range l.watched {
			to = min(to, l.watched[i].start)
		}
		to = min(to, l.joinedClear(k))
	}
	if n := l.s.rules.back; n > 0 {
		at := len(l.buf)
		for at > max(0, len(l.buf)-n) && isToken(l.buf[at-1]) {
			at--
		}
		to = min(to, l.base+int64(at))
	}
	for i := range l.trials {
		to = min(to, l.trials[i].start)
	}
	if l.s.rules.random != nil {
		to = min(to, l.runs.holds(l.fed()))
	}
	for _, v := range l.views {
		if v != nil {
			to = min(to, v.clear())
		}
	}
	for _, v := range l.packed {
		to = min(to, v.clear())
	}
	for _, d := range l.decodes {
		to = min(to, d.clear())
	}
	if len(l.undecided) > 0 {
		to = min(to, l.undecided[0])
	}
	return max(to, l.base)
}

// trim drops the bytes before to, except for the history.
func (l *stream) trim(to int64) {
	// In steps, so that bytes are not moved for each small piece.
	drop := min(to, l.fed()) - history - l.base
	if drop < history {
		return
	}
	l.buf = l.buf[:copy(l.buf, l.buf[drop:])]
	l.base += drop
	if len(l.marks) > 1 {
		i := 0
		for i+1 < len(l.marks) && l.marks[i+1].own <= l.base {
			i++
		}
		l.marks = l.marks[:copy(l.marks, l.marks[i:])]
	}
}

// In the first dense bytes of a stream every gram is looked up, so that smaller
// pieces are found as well: requests are small.
const dense = 16 << 10

func (l *stream) findWatched(k *WatchedSecrets, end bool) error {
	// Extend the open matches first.
	live := l.watched[:0]
	for i := range l.watched {
		m := l.watched[i]
		if k.extend(&m, l.bytes(m.end, l.fed())) && !end {
			live = append(live, m)
		} else if err := l.watchedEnds(k, &m); err != nil {
			return err
		}
	}
	l.watched = live
	cost := 0
	for b := l.buf; ; {
		at := int(l.probe - l.base)
		if at+gramLen > len(b) {
			break
		}
		// The fast path: nine bytes a step, behind the dense part.
		if l.probe >= l.dense {
			if n := k.skip(b[at:], stride); n > 0 {
				l.probe += int64(n)
				continue
			}
		} else {
			// No further than the last gram that begins in the dense part.
			part := b[at:min(int64(len(b)), l.dense-l.base+gramLen-1)]
			if n := k.skip(part, 1); n > 0 {
				l.probe += int64(n)
				continue
			}
		}
		found := k.seek(nil, b, at, l.probe, l.watched, false)
		cost += 4 + 16*len(found)
		for i := range found {
			m := found[i]
			if m.end == l.fed() && m.off+m.length < len(k.needles[m.needle].text) && !end || l.mayGoOn(k, &m) && !end {
				l.watched = append(l.watched, m)
			} else if err := l.watchedEnds(k, &m); err != nil {
				return err
			}
		}
		if len(l.watched) > maxTrials*4 {
			return &LimitError{"candidates", l.s.opt.Place, l.s.root.fed()}
		}
		l.step()
	}
	if k.short != nil {
		from := int(max(0, l.seen-l.base))
		l.hits = k.short.Find(l.hits[:0], l.buf, from)
		for _, h := range l.hits {
			n := &k.needles[k.shortIDs[h.ID]]
			if !k.enough(n, 0, len(n.text)) {
				continue
			}
			at := l.base + int64(h.Pos)
			f := Finding{Rule: "known-secret", Secret: k.secrets[n.secret].name, Transform: n.transform}
			if err := l.s.found(l, f, at, at+int64(len(n.text))); err != nil {
				return err
			}
		}
	}
	return l.s.spend(cost)
}

func (l *stream) step() {
	if l.probe < l.dense {
		l.probe++
		return
	}
	l.probe += stride
}

// mayGoOn reports whether m, which ended before the end of the buffer, ended in
// the middle of a possible line break.
func (l *stream) mayGoOn(k *WatchedSecrets, m *partial) bool {
	rest := l.bytes(m.end, l.fed())
	return len(rest) < 6 && k.extend(&partial{needle: m.needle, off: m.off, length: m.length}, rest)
}

func (l *stream) watchedEnds(k *WatchedSecrets, m *partial) error {
	n := &k.needles[m.needle]
	if k.unchanged(m) {
		return nil // the plain needle reports it
	}
	if k.enough(n, m.off, m.length) {
		f := Finding{Rule: "known-secret", Secret: k.secrets[n.secret].name, Transform: n.transform}
		return l.s.found(l, f, m.start, m.end)
	}
	if l.s.opt.Coverage == nil {
		return nil
	}
	from, to := k.span(n, m.off, m.length)
	if to-from < minPiece || !l.s.opt.Coverage.add(k, n.secret, from, to) {
		return nil
	}
	f := Finding{Rule: "pieces-of-secret", Secret: k.secrets[n.secret].name, Transform: n.transform, Sealed: true}
	return l.s.found(l, f, m.start, m.end)
}

func (l *stream) findLiterals(end bool) error {
	cost := 0
	for i := range l.trials {
		t := &l.trials[i]
		n, err := l.follow(t, end)
		if cost += n; err != nil {
			return err
		}
	}
	l.reap()
	from := int(max(0, l.seen-l.base))
	l.hits = l.s.rules.lits.Find(l.hits[:0], l.buf, from)
	l.seen = l.fed()
	for _, h := range l.hits {
		kind := &l.s.rules.kinds[h.ID]
		for _, fa := range kind.forms {
			if fa.form.assigns && !assignment(l.buf[min(len(l.buf), h.Pos+l.s.rules.lits.Len(h.ID)):]) {
				cost++
				continue
			}
			for off := fa.lo; off <= fa.hi; off++ {
				n, err := l.try(fa.form, h.Pos-off, end)
				if cost += n; err != nil {
					return err
				}
			}
		}
		if cost > 1<<16 {
			if err := l.s.spend(cost); err != nil {
				return err
			}
			cost = 0
		}
	}
	l.reap()
	return l.s.spend(cost)
}

// try begins form at buf[at:].
func (l *stream) try(f *form, at int, end bool) (cost int, err error) {
	if at < 0 {
		return 0, nil
	}
	m := f.machine()
	before := l.contextAt(at)
	if ok, n := m.mayBegin(l.buf[at:], before); !ok {
		return n, nil
	}
	t := liveTrial{form: f, start: l.base + int64(at), before: before}
	for i := range l.trials {
		if o := &l.trials[i]; o.form == f && o.start == t.start {
			return 1, nil
		}
	}
	var spare []uint16
	if n := len(l.spare); n > 0 {
		spare, l.spare = l.spare[n-1], l.spare[:n-1]
	}
	t.trial = m.begin(spare)
	cost, err = l.follow(&t, end)
	if len(t.threads) == 0 {
		l.spare = append(l.spare, t.threads)
		return cost, err
	}
	if l.trials = append(l.trials, t); len(l.trials) > maxTrials {
		return cost, &LimitError{"candidates", l.s.opt.Place, l.s.root.fed()}
	}
	return cost, err
}

func (l *stream) follow(t *liveTrial, end bool) (cost int, err error) {
	from := t.start + int64(t.length)
	to := min(l.fed(), t.start+int64(t.form.window))
	before := t.before
	if t.length > 0 {
		c := l.buf[from-1-l.base]
		before = context{word: isWord(c), line: c == '\n'}
	}
	cost = t.form.machine().step(&t.trial, &l.queue, l.bytes(from, to), before, end && to == l.fed())
	if len(t.threads) > 0 && t.length < t.form.window {
		return cost, nil
	}
	cut := len(t.threads) > 0
	t.threads = t.threads[:0]
	if t.matched < 0 {
		return cost, nil
	}
	a, b, ok := t.form.secretIn(l.bytes(t.start, t.start+int64(t.matched)))
	if !ok {
		return cost + t.matched, nil
	}
	return cost + t.matched, l.s.found(l, Finding{Rule: t.form.id, Cut: cut}, t.start+int64(a), t.start+int64(b))
}

func (l *stream) reap() {
	live := l.trials[:0]
	for _, t := range l.trials {
		if len(t.threads) > 0 {
			live = append(live, t)
		} else {
			l.spare = append(l.spare, t.threads)
		}
	}
	l.trials = live
}

// contextAt returns the context before buf[at:]. The n of an escaped line break in
// a JSON string is not a letter of a word.
func (l *stream) contextAt(at int) context {
	if at == 0 {
		return context{begin: l.base == 0}
	}
	c := l.buf[at-1]
	if at >= 2 && l.buf[at-2] == '\\' {
		switch c {
		case 'n', 'r', 't', 'b', 'f':
			return context{line: c == 'n'}
		}
	}
	return context{word: isWord(c), line: c == '\n'}
}

func isToken(c byte) bool { return isWord(c) || c == '-' || c == '.' || c == '~' }
