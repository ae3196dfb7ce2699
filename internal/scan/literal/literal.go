// Package literal finds many fixed strings in bytes at once.
//
// It is the first stage of package scan: most bytes hold no literal, and this
// stage decides that at the speed of memory. It promises every occurrence of
// every literal, overlapping ones too, and nothing else; two engines keep the
// promise (a vector one in assembly, an automaton in Go), under one test suite
// and fuzzed against each other and against the obvious loop.
//
// Start at New, then Matcher.Find.
package literal

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
)

// Lengths of literals, in bytes.
const (
	MinLen = 2
	MaxLen = 64
)

// piece is how much is looked at in one go: it stays in the first cache for a
// second pass.
const piece = 8 << 10

// A Literal is a string to find. With Fold, ASCII letters match in both cases.
type Literal struct {
	Text string
	Fold bool
}

// A Hit says that literal ID, by its index, stands at Pos.
type Hit struct {
	Pos int
	ID  int
}

// A Matcher is immutable and may be used concurrently.
type Matcher struct {
	lits    []Literal
	maxLen  int
	folded  []string // all literals in lower case, sorted: for Tail
	first   [256]bool
	entries []entry
	heads   []uint16 // by hash of a window of four bytes: index of an entry, plus one
	shift   uint
	maybe   [1 << 10]uint64 // a bit for each window by a longer hash, to ask without a branch

	pairs  *[1 << 16 / 64]uint64 // the beginnings of literals shorter than a window
	shorts [256][]short          // these literals by their first byte
	begins [1 << 16 / 64]uint64  // the first two bytes of all literals, for Tail
	passes []*teddy              // none where the processor has no AVX2; the first are for shorts
	nshort int

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

// New compiles lits. The same text may occur twice.
func New(lits []Literal) (*Matcher, error) {
	m := &Matcher{lits: slices.Clone(lits)}
	if len(lits) >= 1<<15 {
		return nil, fmt.Errorf("literal: %d literals, at most %d", len(lits), 1<<15-1)
	}
	bits := 8
	for 1<<bits < 8*len(lits) {
		bits++
	}
	m.heads, m.shift = make([]uint16, 1<<bits), uint(32-bits)
	in, short, offs := arrange(lits)
	for id, l := range m.lits {
		if len(l.Text) < MinLen || len(l.Text) > MaxLen {
			return nil, fmt.Errorf("literal %d: %d bytes, not between %d and %d", id, len(l.Text), MinLen, MaxLen)
		}
		m.maxLen = max(m.maxLen, len(l.Text))
		low := lower(l.Text)
		m.folded = append(m.folded, low)
		m.first[low[0]] = true
		m.first[upper(low[0])] = true
		for _, a := range []byte{low[0], upper(low[0])} {
			for _, b := range []byte{low[1], upper(low[1])} {
				m.begins[(uint(a)<<8|uint(b))/64] |= 1 << (b % 64)
			}
		}
		if len(l.Text) < windowLen {
			m.addShort(uint16(id), l)
			continue
		}
		w := binary.LittleEndian.Uint32([]byte(low[offs[id]:]))
		bit := filterHash(w)
		m.maybe[bit/64] |= 1 << (bit % 64)
		h := m.hash(binary.LittleEndian.Uint32([]byte(low[offs[id]:])))
		m.entries = append(m.entries, entry{id: uint16(id), off: offs[id], next: m.heads[h]})
		m.heads[h] = uint16(len(m.entries))
	}
	slices.Sort(m.folded)
	m.folded = slices.Compact(m.folded)
	m.passes, m.nshort = newTeddies(in), short/buckets
	return m, nil
}

// MaxLen is the length of the longest literal.
func (m *Matcher) MaxLen() int { return m.maxLen }

// Len is the length of a literal.
func (m *Matcher) Len(id int) int { return len(m.lits[id].Text) }

func (m *Matcher) addShort(id uint16, l Literal) {
	if m.pairs == nil {
		m.pairs = new([1 << 16 / 64]uint64)
	}
	for _, a := range cases(l, 0) {
		for _, b := range cases(l, 1) {
			m.shorts[a] = append(m.shorts[a], short{b, id})
			pair := uint(a) | uint(b)<<8
			m.pairs[pair/64] |= 1 << (pair % 64)
		}
	}
}

// Find appends to dst the occurrences in b that end after b[:from], in order
// of position, then of literal. What was found before from is the caller's:
// of the bytes before it Find needs the last MaxLen()-1.
func (m *Matcher) Find(dst []Hit, b []byte, from int) []Hit {
	if m.passes == nil {
		return m.findAutomaton(dst, b, from)
	}
	return m.findTeddy(dst, b, from)
}

func (m *Matcher) findTeddy(dst []Hit, b []byte, from int) []Hit {
	old := len(dst)
	start := max(0, from-m.maxLen+1)
	// In pieces that stay in the first cache, since there are several passes.
	for len(b)-start >= vectorLen+windowLen-1 {
		n := min((len(b)-start-(windowLen-1))/vectorLen, piece/vectorLen)
		for i, t := range m.passes {
			dst = m.pass(dst, t, b, b[start:], start, n, from, i < m.nshort)
		}
		start += n * vectorLen
	}
	// The rest is shorter than a vector: its windows may reach into zeros,
	// which compare does not look at.
	if start < len(b) {
		var rest [2*vectorLen + windowLen]byte
		n := copy(rest[:], b[start:])
		for i, t := range m.passes {
			dst = m.pass(dst, t, b, rest[:], start, (n+vectorLen-1)/vectorLen, from, i < m.nshort)
		}
	}
	sortHits(dst[old:])
	if len(m.passes) > 1 {
		dst = dst[:old+len(slices.Compact(dst[old:]))]
	}
	return dst
}

// pass looks at n blocks of part, which is b[at:] or a copy of that. Where the
// tables see a candidate is unpredictable, so until a candidate is nearly certain
// nothing branches on it.
func (m *Matcher) pass(dst []Hit, t *teddy, b, part []byte, at, n, from int, short bool) []Hit {
	var blocks [piece/vectorLen + 1]block
	found := t.scan(part, n, blocks[:])
	var cands [1024 + vectorLen]uint16 // in part
	k := 0
	for i, bl := range blocks[:found] {
		for mask := bl.mask; mask != 0; mask &= mask - 1 {
			cands[k%len(cands)] = uint16(bl.index*vectorLen) + uint16(trailingZeros(mask))
			k++
		}
		if k > len(cands)-vectorLen || i == found-1 {
			if short {
				dst = m.confirmShort(dst, b, part, at, cands[:k], from)
			} else {
				dst = m.confirm(dst, b, part, at, cands[:k], from)
			}
			k = 0
		}
	}
	return dst
}

// confirm appends the literals whose window is at one of cands.
func (m *Matcher) confirm(dst []Hit, b, part []byte, at int, cands []uint16, from int) []Hit {
	k := 0
	last := len(part) - windowLen
	for _, c := range cands {
		if int(c) > last {
			break
		}
		bit := filterHash(binary.LittleEndian.Uint32(part[c:]))
		cands[k] = c
		k += int(m.maybe[bit/64] >> (bit % 64) & 1)
	}
	for _, c := range cands[:k] {
		for i := m.heads[m.hash(binary.LittleEndian.Uint32(part[c:]))]; i != 0; i = m.entries[i-1].next {
			e := &m.entries[i-1]
			dst = m.compare(dst, b, at+int(c)-int(e.off), int(e.id), from)
		}
	}
	return dst
}

// confirmShort is confirm for literals that are shorter than a window.
func (m *Matcher) confirmShort(dst []Hit, b, part []byte, at int, cands []uint16, from int) []Hit {
	k := 0
	last := len(part) - MinLen
	for _, c := range cands {
		if int(c) > last {
			break
		}
		pair := binary.LittleEndian.Uint16(part[c:])
		cands[k] = c
		k += int(m.pairs[pair/64] >> (pair % 64) & 1)
	}
	for _, c := range cands[:k] {
		for _, s := range m.shorts[part[c]] {
			if s.second == part[c+1] {
				dst = m.compare(dst, b, at+int(c), int(s.id), from)
			}
		}
	}
	return dst
}

func filterHash(w uint32) uint32 { return (w | 0x20202020) * 0x85EBCA6B >> 16 }

func (m *Matcher) compare(dst []Hit, b []byte, at, id, from int) []Hit {
	l := &m.lits[id]
	end := at + len(l.Text)
	if at < 0 || end > len(b) || end <= from {
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

// Tail is the length of the longest end of b that begins a literal without
// being all of it: what must be kept until more bytes are known. Case is
// ignored, so that it may be too long, never too short.
func (m *Matcher) Tail(b []byte) int {
	for at := max(0, len(b)-m.maxLen+1); at < len(b); at++ {
		if at+1 < len(b) && m.begins[(uint(b[at])<<8|uint(b[at+1]))/64]>>(b[at+1]%64)&1 == 0 {
			continue
		}
		if m.first[b[at]] && m.isPrefix(b[at:]) {
			return len(b) - at
		}
	}
	return 0
}

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

// hash takes a window in lower case, or rather with the bit of lower case set
// in every byte: that joins a few other bytes too, which compare tells apart.
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

// cases are the bytes that match byte i of l.
func cases(l Literal, i int) []byte {
	c := l.Text[i]
	if low := lowerByte(c); l.Fold && upper(low) != low {
		return []byte{low, upper(low)}
	}
	return []byte{c}
}
