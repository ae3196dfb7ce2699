package literal

import "encoding/binary"

// automaton is the engine for processors without the vectors: Aho and
// Corasick's, with every transition written out over classes of bytes, so that
// a byte costs one look-up whatever it is. It runs at four places at once,
// because each look-up waits for the one before.
type automaton struct {
	class  [256]uint8
	width  uint32
	next   []uint32 // by state times width plus class; states come times width
	out    []int32  // by state: index into ends, or -1
	ends   []end
	maxLen int
}

// end is a literal that ends in a state, and the next one that does.
type end struct {
	id   int32
	next int32
}

func newAutomaton(lits []Literal, maxLen int) *automaton {
	a := &automaton{maxLen: maxLen}
	n := uint8(1) // class 0: bytes of no literal
	for _, l := range lits {
		for _, c := range []byte(lower(l.Text)) {
			if a.class[c] == 0 {
				a.class[c] = n
				a.class[upper(c)] = n
				n++
			}
		}
	}
	a.width = uint32(n)
	grow := func() uint32 {
		for range n {
			a.next = append(a.next, 0)
		}
		a.out = append(a.out, -1)
		return uint32(len(a.out)-1) * a.width
	}
	grow()
	for id, l := range lits {
		s := uint32(0)
		for _, c := range []byte(lower(l.Text)) {
			to := &a.next[s+uint32(a.class[c])]
			if *to == 0 {
				t := grow() // moves a.next
				a.next[s+uint32(a.class[c])] = t
				s = t
			} else {
				s = *to
			}
		}
		a.ends = append(a.ends, end{int32(id), a.out[s/a.width]})
		a.out[s/a.width] = int32(len(a.ends) - 1)
	}
	a.complete()
	return a
}

// complete adds the transitions of each state's longest proper suffix, level
// by level, and chains the literals that end in it.
func (a *automaton) complete() {
	fail := make([]uint32, len(a.out))
	var queue []uint32
	for c := range a.width {
		if s := a.next[c]; s != 0 {
			queue = append(queue, s)
		}
	}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		f := fail[s/a.width]
		if more := a.out[f/a.width]; more >= 0 {
			last := &a.out[s/a.width]
			for *last >= 0 {
				last = &a.ends[*last].next
			}
			*last = more
		}
		for c := range a.width {
			to := &a.next[s+c]
			if *to == 0 {
				*to = a.next[f+c]
				continue
			}
			fail[*to/a.width] = a.next[f+c]
			queue = append(queue, *to)
		}
	}
}

func (m *Matcher) findAutomaton(dst []Hit, b []byte, from int) []Hit {
	m.once.Do(func() { m.auto = newAutomaton(m.lits, m.maxLen) })
	old := len(dst)
	dst = m.auto.find(m, dst, b, from)
	if m.extra != nil {
		dst = m.findPairs(dst, b, from)
	}
	sortHits(dst[old:])
	return dst
}

// findPairs passes over ASCII eight bytes at once.
func (m *Matcher) findPairs(dst []Hit, b []byte, from int) []Hit {
	for at := max(0, from-1); at+1 < len(b); at++ {
		for at+9 < len(b) && binary.LittleEndian.Uint64(b[at:])&0x8080808080808080 == 0 {
			at += 8
		}
		if m.extra.has(b[at], b[at+1]) {
			dst = append(dst, Hit{Pos: at, ID: len(m.lits)})
		}
	}
	return dst
}

func (a *automaton) find(m *Matcher, dst []Hit, b []byte, from int) []Hit {
	start := max(0, from-m.maxLen+1)
	report := func(state uint32, at, since int) {
		for e := a.out[state/a.width]; e >= 0; e = a.ends[e].next {
			id := int(a.ends[e].id)
			dst = m.compare(dst, b, at+1-len(m.lits[id].Text), id, since)
		}
	}
	// Each of four runs begins early enough to know what ends in its part.
	const least = 4 << 10
	if part := (len(b) - start) / 4; part >= least {
		var s0, s1, s2, s3 uint32
		warm := func(at int) (s uint32) {
			for _, c := range b[max(start, at-a.maxLen+1):at] {
				s = a.next[s+uint32(a.class[c])]
			}
			return s
		}
		p1, p2, p3 := start+part, start+2*part, start+3*part
		s1, s2, s3 = warm(p1), warm(p2), warm(p3)
		b0, b1, b2, b3 := b[start:p1], b[p1:p2], b[p2:p3], b[p3:p3+part]
		for i := range b0 {
			s0 = a.next[s0+uint32(a.class[b0[i]])]
			s1 = a.next[s1+uint32(a.class[b1[i]])]
			s2 = a.next[s2+uint32(a.class[b2[i]])]
			s3 = a.next[s3+uint32(a.class[b3[i]])]
			if a.out[s0/a.width]&a.out[s1/a.width]&a.out[s2/a.width]&a.out[s3/a.width] != -1 {
				report(s0, start+i, from)
				report(s1, p1+i, from)
				report(s2, p2+i, from)
				report(s3, p3+i, from)
			}
		}
		for i := p3 + part; i < len(b); i++ {
			s3 = a.next[s3+uint32(a.class[b[i]])]
			report(s3, i, from)
		}
		return dst
	}
	s := uint32(0)
	for i := start; i < len(b); i++ {
		s = a.next[s+uint32(a.class[b[i]])]
		if a.out[s/a.width] >= 0 {
			report(s, i, from)
		}
	}
	return dst
}
