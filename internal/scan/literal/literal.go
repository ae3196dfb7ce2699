// Package literal finds many fixed strings in bytes at once.
//
// It is the first stage of package scan, which must be fast because most bytes are
// part of no literal. It finds exactly the occurrences of the literals, overlapping
// ones too. There are two engines, a vector one in assembly and an automaton in Go;
// the tests run both, and fuzz them against each other and a plain loop.
//
// Start at New, then Matcher.Find.
package literal

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"sync"
)

// Lengths of literals, in bytes.
const (
	minLen = 2
	maxLen = 64
)

// A Literal is a string to find. With Fold, ASCII letters match in both cases. With
// Whole, no letter or digit may follow it; at the end of the searched bytes it is
// found.
type Literal struct {
	Text  string
	Fold  bool
	Whole bool
}

// A Hit is an occurrence of the literal with index ID at Pos.
type Hit struct {
	Pos int
	ID  int
}

// Pairs is a set of two-byte sequences whose first byte is not ASCII. It finds
// characters of certain kinds, which have no fixed text.
type Pairs [1 << 16 / 64]uint64

func (p *Pairs) add(first, second byte) {
	pair := uint(first) | uint(second)<<8
	p[pair/64] |= 1 << (pair % 64)
}

// AddRune adds the first two bytes of a character to the set.
func (p *Pairs) AddRune(r rune) {
	if s := string(r); len(s) > 1 {
		p.add(s[0], s[1])
	}
}

func (p *Pairs) has(first, second byte) bool {
	pair := uint(first) | uint(second)<<8
	return p[pair/64]>>(pair%64)&1 != 0
}

// A Matcher is immutable and may be used concurrently.
type Matcher struct {
	lits    []Literal
	maxLen  int
	folded  []string // all literals in lower case, sorted: for Tail
	entries []entry
	heads   []uint16 // by hash of a window of four bytes: index of an entry, plus one
	shift   uint
	maybe   [1 << 10]uint64 // a bit for each window by a longer hash, to ask without a branch

	two      Pairs                // literals of two bytes, and extra
	three    [1 << 10]uint64      // a bit for each literal of three bytes by its hash
	extra    *Pairs               // that were asked for
	shorts   [256][]short         // the short literals by their first byte
	prefixes [1 << 15 / 64]uint64 // a bit for each beginning of a literal by its hash, for Tail
	tables   *tables              // nil where the processor has no vectors
	exact    *exactTables         // nil where it has none of 64 bytes

	once sync.Once // the automaton is made when it is needed
	auto *automaton
}

// entry is one literal under the hash of its window.
type entry struct {
	id   uint16
	off  uint8 // of the window in the literal
	next uint16
}

type short struct {
	second byte
	id     uint16
}

// New compiles lits. The same text may occur twice. Pairs, which may be nil,
// are found as a literal with the ID len(lits).
func New(lits []Literal, pairs *Pairs) (*Matcher, error) {
	m := &Matcher{lits: slices.Clone(lits), extra: pairs, maxLen: minLen}
	if pairs != nil {
		m.two = *pairs
	}
	if len(lits) >= 1<<15 {
		return nil, fmt.Errorf("literal: %d literals, at most %d", len(lits), 1<<15-1)
	}
	size := 8
	for 1<<size < 8*len(lits) {
		size++
	}
	m.heads, m.shift = make([]uint16, 1<<size), uint(32-size)
	in, offs, where := arrange(lits, pairs)
	for id, l := range m.lits {
		if len(l.Text) < minLen || len(l.Text) > maxLen {
			return nil, fmt.Errorf("literal %d: %d bytes, not between %d and %d", id, len(l.Text), minLen, maxLen)
		}
		m.maxLen = max(m.maxLen, len(l.Text))
		low := lower(l.Text)
		m.folded = append(m.folded, low)
		for n := 1; n < len(low); n++ {
			h := uint32(0)
			for i := n - 1; i >= 0; i-- {
				h = prefixHash(h, low[i])
			}
			m.prefixes[h>>prefixShift/64] |= 1 << (h >> prefixShift % 64)
		}
		if len(l.Text) < windowLen {
			m.addShort(uint16(id), l)
			continue
		}
		w := binary.LittleEndian.Uint32([]byte(low[offs[id]:]))
		bit := filterHash(w, 4)
		m.maybe[bit/64] |= 1 << (bit % 64)
		h := m.hash(binary.LittleEndian.Uint32([]byte(low[offs[id]:])))
		m.entries = append(m.entries, entry{id: uint16(id), off: offs[id], next: m.heads[h]})
		m.heads[h] = uint16(len(m.entries))
	}
	slices.Sort(m.folded)
	m.folded = slices.Compact(m.folded)
	if hasVectors {
		m.tables = newTables(in)
	}
	if hasBytePermutes {
		m.exact = newExactTables(lits, offs, where)
	}
	return m, nil
}

// MaxLen returns the length of the longest literal.
func (m *Matcher) MaxLen() int { return m.maxLen }

// Len returns the length of a literal.
func (m *Matcher) Len(id int) int {
	if id == len(m.lits) {
		return 2
	}
	return len(m.lits[id].Text)
}

func (m *Matcher) addShort(id uint16, l Literal) {
	for _, a := range cases(l, 0) {
		for _, b := range cases(l, 1) {
			m.shorts[a] = append(m.shorts[a], short{b, id})
			if len(l.Text) == 2 {
				m.two.add(a, b)
				continue
			}
			bit := filterHash(uint32(a)|uint32(b)<<8|uint32(l.Text[2])<<16, 3)
			m.three[bit/64] |= 1 << (bit % 64)
		}
	}
}

// Find appends to dst the occurrences in b that end after b[:from], in order of
// position, then of literal. It does not report occurrences that end in b[:from];
// of those bytes it needs the last MaxLen()-1.
func (m *Matcher) Find(dst []Hit, b []byte, from int) []Hit {
	if m.tables == nil {
		return m.findAutomaton(dst, b, from)
	}
	return m.findVector(dst, b, from)
}

func (m *Matcher) findVector(dst []Hit, b []byte, from int) []Hit {
	old := len(dst)
	start := max(0, from-m.maxLen+1)
	var cands candidates
	// Text that is not ASCII goes through tables, in runs that double in length.
	other := 4
	for len(b)-start >= vectorLen+windowLen-1 {
		n := (len(b) - start - (windowLen - 1)) / vectorLen
		if m.exact != nil && n >= 2 {
			blocks, found := m.exact.scan(b[start:], n/2, &cands)
			if blocks > 0 {
				dst = m.confirm(dst, b, b[start:], start, cands[:found], from)
				start += blocks * 2 * vectorLen
				other = 4
				continue
			}
			n = min(n, other)
			other *= 2
		}
		blocks, found := m.tables.scan(b[start:], n, &cands)
		dst = m.confirm(dst, b, b[start:], start, cands[:found], from)
		start += blocks * vectorLen
	}
	// The rest is shorter than a vector and a window: windows reach into zeros,
	// which compare does not look at.
	if start < len(b) {
		var rest [2*vectorLen + windowLen]byte
		n := copy(rest[:], b[start:])
		_, found := m.tables.scan(rest[:], (n+vectorLen-1)/vectorLen, &cands)
		dst = m.confirm(dst, b, rest[:], start, cands[:found], from)
	}
	sortHits(dst[old:])
	return dst
}

// confirm appends the literals whose window is at one of cands in part, which is
// b[at:] or a copy of that. Few candidates are literals, but which is unpredictable:
// so the first pass filters them without branches.
func (m *Matcher) confirm(dst []Hit, b, part []byte, at int, cands []uint16, from int) []Hit {
	k := 0
	for _, c := range cands {
		w := binary.LittleEndian.Uint32(part[c:])
		four, three, two := filterHash(w, 4), filterHash(w, 3), w&0xffff
		cands[k] = c
		k += int((m.maybe[four/64]>>(four%64) | m.three[three/64]>>(three%64) | m.two[two/64]>>(two%64)) & 1)
	}
	for _, c := range cands[:k] {
		w := binary.LittleEndian.Uint32(part[c:])
		for i := m.heads[m.hash(w)]; i != 0; i = m.entries[i-1].next {
			e := &m.entries[i-1]
			dst = m.compare(dst, b, at+int(c)-int(e.off), int(e.id), from)
		}
		for _, s := range m.shorts[byte(w)] {
			if s.second == byte(w>>8) {
				dst = m.compare(dst, b, at+int(c), int(s.id), from)
			}
		}
		if m.extra != nil && m.extra.has(byte(w), byte(w>>8)) && at+int(c)+2 <= len(b) && at+int(c)+2 > from {
			dst = append(dst, Hit{Pos: at + int(c), ID: len(m.lits)})
		}
	}
	return dst
}

// filterHash hashes the first n bytes of w, ignoring case.
func filterHash(w uint32, n int) uint32 { return (w | 0x20202020) << (32 - 8*n) * 0x85EBCA6B >> 16 }

func (m *Matcher) compare(dst []Hit, b []byte, at, id, from int) []Hit {
	l := &m.lits[id]
	end := at + len(l.Text)
	if at < 0 || end > len(b) || end <= from || l.Whole && end < len(b) && isAlnum(b[end]) {
		return dst
	}
	if l.Fold {
		for i := 0; i < len(l.Text); i++ {
			if lowerByte(b[at+i]) != lowerByte(l.Text[i]) {
				return dst
			}
		}
	} else if string(b[at:end]) != l.Text {
		return dst
	}
	return append(dst, Hit{Pos: at, ID: id})
}

// Tail returns the length of the longest suffix of b that is a proper prefix of a
// literal: the caller must keep these bytes until more come. It ignores case, so it
// may be too long, never too short.
func (m *Matcher) Tail(b []byte) int {
	// Which ends of b may be beginnings, by a hash that grows to the left.
	var maybe uint64
	h := uint32(0)
	most := min(m.maxLen-1, len(b))
	for n := 1; n <= most; n++ {
		h = prefixHash(h, lowerByte(b[len(b)-n]))
		maybe |= m.prefixes[h>>prefixShift/64] >> (h >> prefixShift % 64) & 1 << n
	}
	for maybe != 0 {
		n := bits.Len64(maybe) - 1
		if m.isPrefix(b[len(b)-n:]) {
			return n
		}
		maybe &^= 1 << n
	}
	return 0
}

// prefixHash extends the hash h of a text to the left by byte c.
func prefixHash(h uint32, c byte) uint32 { return (h + uint32(c)) * 0x9E3779B1 }

const prefixShift = 32 - 15

func (m *Matcher) isPrefix(b []byte) bool {
	lo, hi := 0, len(m.folded)
	for i := range b {
		c := lowerByte(b[i])
		// Those in [lo, hi) agree up to i. The ones that end here are complete.
		for lo < hi && len(m.folded[lo]) <= i {
			lo++
		}
		n, _ := slices.BinarySearchFunc(m.folded[lo:hi], c, func(s string, c byte) int { return int(s[i]) - int(c) })
		lo += n
		n, _ = slices.BinarySearchFunc(m.folded[lo:hi], c, func(s string, c byte) int {
			if s[i] <= c {
				return -1
			}
			return 1
		})
		hi = lo + n
		if lo == hi {
			return false
		}
	}
	return slices.ContainsFunc(m.folded[lo:hi], func(s string) bool { return len(s) > len(b) })
}

// hash hashes a window with the bit of lower case set in every byte. That joins a
// few other bytes too, which compare tells apart.
func (m *Matcher) hash(w uint32) uint32 { return (w | 0x20202020) * 0x9E3779B1 >> m.shift }

func sortHits(h []Hit) {
	less := func(a, b Hit) int {
		if a.Pos != b.Pos {
			return a.Pos - b.Pos
		}
		return a.ID - b.ID
	}
	if !slices.IsSortedFunc(h, less) {
		slices.SortFunc(h, less)
	}
}

func isAlnum(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

func lowerByte(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c | 0x20
	}
	return c
}

func upper(c byte) byte {
	if 'a' <= c && c <= 'z' {
		return c &^ 0x20
	}
	return c
}

func lower(s string) string {
	b := []byte(s)
	for i := range b {
		b[i] = lowerByte(b[i])
	}
	return string(b)
}

// cases returns the bytes that match byte i of l.
func cases(l Literal, i int) []byte {
	c := l.Text[i]
	if low := lowerByte(c); l.Fold && upper(low) != low {
		return []byte{low, upper(low)}
	}
	return []byte{c}
}
