package scan

import (
	"encoding/binary"
	"slices"
)

// What stands between the letters and digits of a secret can be anything: separators
// that change, quotes, operators that put strings together, the columns of a dump. So a
// stream's letters and digits are searched once more without all that, for the letters
// and digits of each form of a secret: its joined needles.
//
// A match has at least minPart letters and digits in a row that are in the same order
// in a form of the secret. Between letters of 16 values, as in hex, this happens by
// chance once in 10^19 places, and such a form is a whole only when it has 32 of them;
// between letters of 62 values, once in 10^28. Ordinary text has it only if the secret
// is itself made of ordinary words, or if it quotes the secret.
type joined struct {
	text []byte // the last letters and digits
	end  int64  // of all so far; text ends there
	from int64  // position in the stream up to which they are in text

	probe int64 // the next gram to look at, of the letters and digits
	open  []joinedMatch
}

type joinedMatch struct {
	partial       // its positions count letters and digits
	at, to  int64 // in the stream
}

const (
	joinedPiece = 4 << 10 // bytes of a stream at once
	joinedKeep  = reach + gramLen
	joinedRoom  = 64 // that join may write beyond what it appends
	// A tail that may begin a secret is held back across so many bytes that are no
	// letters or digits. Further ones change nothing about what is found.
	joinedGap = 16
)

var isJoined = func() (t [256]byte) {
	for c := range t {
		if isLetter(byte(c)) {
			t[c] = 1
		}
	}
	return t
}()

// joinInGo appends the letters and digits of b to dst, which has room for all of b.
func joinInGo(dst, b []byte) []byte {
	n := len(dst)
	dst = dst[:n+len(b)]
	for _, c := range b {
		dst[n] = c
		n += int(isJoined[c])
	}
	return dst[:n]
}

func (l *stream) findJoined(k *WatchedSecrets, end bool) error {
	j := &l.joined
	for done := false; !done; {
		stop := min(l.fed(), j.from+joinedPiece)
		piece := l.bytes(j.from, stop)
		done = stop == l.fed()
		if over := len(j.text) - joinedKeep; over > 0 {
			j.text = j.text[:copy(j.text, j.text[over:])]
		}
		j.text = slices.Grow(j.text, len(piece)+joinedRoom)
		old := len(j.text)
		j.text = join(j.text, piece)
		j.end += int64(len(j.text) - old)
		cost, err := l.searchJoined(k, old, piece, end && done)
		if err == nil {
			err = l.s.spend(cost)
		}
		if err != nil {
			return err
		}
		j.from = stop
	}
	return nil
}

// searchJoined looks at j.text[old:], the letters and digits of piece.
func (l *stream) searchJoined(k *WatchedSecrets, old int, piece []byte, end bool) (cost int, err error) {
	j := &l.joined
	base := j.end - int64(len(j.text))
	// place returns where in the stream the letter or digit at is, which is in piece.
	place := func(at int64) int64 {
		n := int(at-base) - old
		for i, c := range piece {
			if isJoined[c] == 1 {
				if n == 0 {
					return j.from + int64(i)
				}
				n--
			}
		}
		return j.from + int64(len(piece))
	}
	live := j.open[:0]
	for _, m := range j.open {
		was := m.partial.end
		more := k.extend(&m.partial, j.text[old:]) && !end
		if m.partial.end > was {
			m.to = place(m.partial.end-1) + 1
			cost += len(piece) / 8
		}
		if more && m.partial.end == j.end {
			live = append(live, m)
		} else if err := l.joinedEnds(k, &m); err != nil {
			return cost, err
		}
	}
	j.open = live
	for {
		at := int(j.probe - base)
		if at+gramLen > len(j.text) {
			return cost, nil
		}
		if n := k.skip(j.text[at:], k.joinedStep); n > 0 {
			j.probe += int64(n)
			continue
		}
		var known []partial
		for i := range j.open {
			known = append(known, j.open[i].partial)
		}
		found := k.seek(nil, j.text, at, j.probe, known, true)
		cost += 4 + 16*len(found)
		for _, p := range found {
			m := joinedMatch{partial: p}
			open := p.end == j.end && p.off+p.length < len(k.needles[p.needle].text) && !end
			if !open && !l.joinedCounts(k, &p) {
				continue
			}
			m.to = place(p.end-1) + 1
			m.at = l.before(m.to, int(p.end-p.start), len(l.buf))
			cost += len(piece) / 4
			if open {
				j.open = append(j.open, m)
			} else if err := l.joinedEnds(k, &m); err != nil {
				return cost, err
			}
		}
		if len(j.open) > maxTrials*4 {
			return cost, &LimitError{"candidates", l.s.opt.Place, l.s.root.fed()}
		}
		j.probe += int64(k.joinedStep)
	}
}

// before returns the position of the n-th letter or digit before position to, or the
// earliest that is known: of what is there, and behind no gap of more than most bytes.
func (l *stream) before(to int64, n, most int) int64 {
	first := to
	for i := int(to-l.base) - 1; i >= 0 && n > 0; i-- {
		if isJoined[l.buf[i]] == 1 {
			first = l.base + int64(i)
			n--
		} else if int(first-l.base)-i > most {
			break
		}
	}
	return first
}

// joinedCounts reports whether m is more than the start of a match that ended.
func (l *stream) joinedCounts(k *WatchedSecrets, m *partial) bool {
	from, to := k.span(&k.needles[m.needle], m.off, m.length)
	return m.length >= minPart || l.s.opt.Coverage != nil && to-from >= minPiece
}

func (l *stream) joinedEnds(k *WatchedSecrets, m *joinedMatch) error {
	n := &k.needles[m.needle]
	whole := m.to-m.at == int64(m.length)
	if whole && !n.onlyJoined {
		return nil // the search of all bytes has it
	}
	f := Finding{Rule: "known-secret", Secret: k.secrets[n.secret].name, Transform: n.transform}
	switch {
	case whole:
	case n.transform == "plain":
		f.Transform = "spaced"
	default:
		f.Transform = "spaced > " + n.transform
	}
	// Where the letters of a form belong in the secret is rounded twice.
	from, to := k.span(n, m.off, m.length)
	if s := &k.secrets[n.secret]; m.length >= minPart && to-max(from, s.public) >= s.part-1 {
		return l.s.found(l, f, m.at, m.to)
	}
	if l.s.opt.Coverage == nil || to-from < minPiece || !l.s.opt.Coverage.add(k, n.secret, from, to) {
		return nil
	}
	f.Rule, f.Sealed = "pieces-of-secret", true
	return l.s.found(l, f, m.at, m.to)
}

// joinedClear returns the position before which no letters and digits can become part of
// a finding, except for the finding's first seven.
func (l *stream) joinedClear(k *WatchedSecrets) int64 {
	j, to := &l.joined, l.fed()
	for i := range j.open {
		to = min(to, j.open[i].at)
	}
	if len(j.text) < gramLen || !k.maybe(binary.LittleEndian.Uint64(j.text[len(j.text)-gramLen:])) {
		return to
	}
	line := false
	for i := len(l.buf) - 1; i >= 0 && isJoined[l.buf[i]] == 0; i-- {
		c := l.buf[i]
		if line && c == '\n' || len(l.buf)-i > joinedGap {
			return to // an empty line, as at the end of an event
		}
		line = c == '\n' || line && c == '\r'
	}
	longest := 0
	for _, m := range k.seek(nil, j.text, len(j.text)-gramLen, j.end-gramLen, nil, true) {
		if m.off+m.length < len(k.needles[m.needle].text) {
			longest = max(longest, m.length)
		}
	}
	// Fewer binary digits than are looked up may begin a secret.
	for n := 1; len(k.bits) > 0 && n < min(bitsLen, len(j.text)+1) && j.text[len(j.text)-n]&^1 == '0'; n++ {
		longest = max(longest, n)
	}
	if longest == 0 {
		return to
	}
	return min(to, l.before(l.fed(), longest, joinedGap))
}
