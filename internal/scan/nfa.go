package scan

import (
	"regexp/syntax"
	"slices"
)

// A machine follows one regular expression from a fixed beginning, byte by
// byte, in time linear in the bytes. Package regexp can't stop at the end of the
// input and continue later, nor report that no further input can match. The
// machine works on bytes: what an expression says of characters beyond ASCII holds
// for each of their bytes.
type machine struct {
	insts []inst
	start uint16
	least int // length of the shortest match
	cache *cache
	// head has the set of bytes for each place of a match, up to the length of the
	// shortest: most false beginnings fail there. word reports that a match begins
	// at a word boundary.
	head []*byteSet
	word bool
}

const maxHead = 64

type byteSet [4]uint64

func (s *byteSet) has(c byte) bool { return s[c>>6]>>(c&63)&1 != 0 }
func (s *byteSet) add(c byte)      { s[c>>6] |= 1 << (c & 63) }
func (s *byteSet) count() (n int) {
	for c := range 256 {
		if s.has(byte(c)) {
			n++
		}
	}
	return n
}

type inst struct {
	op       syntax.InstOp
	out, arg uint16
	empty    syntax.EmptyOp
	fit      *byteSet
}

// longest bounds a machine. Expressions are part of the program, so exceeding it
// is a bug.
const longest = 1 << 14

func newMachine(re *syntax.Regexp) (*machine, error) {
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		return nil, err
	}
	if len(prog.Inst) > longest {
		return nil, &syntax.Error{Code: syntax.ErrLarge, Expr: re.String()}
	}
	m := &machine{start: uint16(prog.Start)}
	sets := map[byteSet]*byteSet{}
	for i := range prog.Inst {
		p := &prog.Inst[i]
		in := inst{op: p.Op, out: uint16(p.Out), arg: uint16(p.Arg)}
		switch p.Op {
		case syntax.InstEmptyWidth:
			in.empty = syntax.EmptyOp(p.Arg)
		case syntax.InstCapture:
			in.op = syntax.InstNop
		case syntax.InstRune, syntax.InstRune1, syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
			var s byteSet
			for c := range 256 {
				r := rune(c)
				if c >= 0x80 {
					r = 0x2603 // any that is not ASCII, and no fold of it
				}
				if p.MatchRune(r) {
					s.add(byte(c))
				}
			}
			if sets[s] == nil {
				sets[s] = &s
			}
			in.op, in.fit = syntax.InstRune, sets[s]
		}
		m.insts = append(m.insts, in)
	}
	m.findHead()
	m.cache = newCache(m.insts)
	return m, nil
}

// findHead follows all that can match, to the end of the shortest match.
func (m *machine) findHead() {
	first := &m.insts[m.start]
	for first.op == syntax.InstNop {
		first = &m.insts[first.out]
	}
	m.word = first.op == syntax.InstEmptyWidth && first.empty == syntax.EmptyWordBoundary
	set, sets := []uint16{m.start}, map[byteSet]*byteSet{}
	for at := 0; ; at++ {
		// Every assertion is taken as true, so that nothing is missed.
		var queue sparse
		queue.reset(len(m.insts))
		for _, pc := range set {
			m.follow(&queue, pc, ^syntax.EmptyOp(0))
		}
		fit, next := byteSet{}, []uint16(nil)
		for _, pc := range queue.dense {
			in := &m.insts[pc]
			if in.op == syntax.InstMatch {
				m.least = at
				return
			}
			if in.op == syntax.InstRune {
				for i := range fit {
					fit[i] |= in.fit[i]
				}
				if !slices.Contains(next, in.out) {
					next = append(next, in.out)
				}
			}
		}
		if len(next) == 0 {
			m.least = at
			return
		}
		if len(m.head) < maxHead {
			if sets[fit] == nil {
				sets[fit] = &fit
			}
			m.head = append(m.head, sets[fit])
		}
		set = next
	}
}

// mayBegin reports whether a match may begin with b, which before precedes, and
// the number of steps that the answer took.
func (m *machine) mayBegin(b []byte, before context) (ok bool, n int) {
	if m.word && len(b) > 0 && !before.begin && before.word == isWord(b[0]) {
		return false, 1
	}
	for i, fit := range m.head[:min(len(m.head), len(b))] {
		if !fit.has(b[i]) {
			return false, 1 + i/8
		}
	}
	return true, len(m.head)
}

// sparse is a set of instructions in the order of insertion.
type sparse struct {
	dense []uint16
	at    []uint16
}

func (s *sparse) reset(n int) {
	if cap(s.at) < n {
		s.at = make([]uint16, n)
		s.dense = make([]uint16, 0, n)
	}
	s.at, s.dense = s.at[:n], s.dense[:0]
}

func (s *sparse) add(pc uint16) bool {
	if i := s.at[pc]; int(i) < len(s.dense) && s.dense[i] == pc {
		return false
	}
	s.at[pc] = uint16(len(s.dense))
	s.dense = append(s.dense, pc)
	return true
}

// follow adds pc and all instructions reachable from it without a byte, in order of
// preference. Its recursion is as deep as the expression.
func (m *machine) follow(q *sparse, pc uint16, flags syntax.EmptyOp) {
	for q.add(pc) {
		in := &m.insts[pc]
		switch in.op {
		case syntax.InstAlt, syntax.InstAltMatch:
			m.follow(q, in.out, flags)
			pc = in.arg
		case syntax.InstEmptyWidth:
			if in.empty&^flags != 0 {
				return
			}
			pc = in.out
		case syntax.InstNop:
			pc = in.out
		default:
			return
		}
	}
}

// A trial is one machine at one beginning. It is over when it has no threads.
type trial struct {
	threads []uint16
	length  int // bytes seen
	matched int // length of the best match, or -1
}

func (m *machine) begin(dst []uint16) trial {
	return trial{threads: append(dst[:0], m.start), matched: -1}
}

// simulate is step, thread by thread.
func (m *machine) simulate(t *trial, q *sparse, b []byte, before context, eof bool) (cost int) {
	for i := 0; len(t.threads) > 0; i++ {
		if i == len(b) && !eof {
			return cost
		}
		flags := before.flags()
		var c byte
		if i < len(b) {
			c = b[i]
			if before.word != isWord(c) {
				flags |= syntax.EmptyWordBoundary
			} else {
				flags |= syntax.EmptyNoWordBoundary
			}
			if c == '\n' {
				flags |= syntax.EmptyEndLine
			}
		} else {
			flags |= syntax.EmptyEndText | syntax.EmptyEndLine
			if before.word {
				flags |= syntax.EmptyWordBoundary
			} else {
				flags |= syntax.EmptyNoWordBoundary
			}
		}
		q.reset(len(m.insts))
		for _, pc := range t.threads {
			m.follow(q, pc, flags)
		}
		cost += len(q.dense) + 1
		t.threads = t.threads[:0]
		for _, pc := range q.dense {
			in := &m.insts[pc]
			if in.op == syntax.InstMatch {
				t.matched = t.length
				break // what comes after is less preferred
			}
			if in.op == syntax.InstRune && i < len(b) && in.fit.has(c) {
				t.threads = append(t.threads, in.out)
			}
		}
		if i == len(b) {
			t.threads = t.threads[:0]
			return cost
		}
		t.length++
		before = context{word: isWord(c), line: c == '\n'}
	}
	return cost
}

// context describes the byte before a position, for assertions.
type context struct {
	word, line, begin bool
}

func (c context) flags() (f syntax.EmptyOp) {
	if c.begin {
		f |= syntax.EmptyBeginText | syntax.EmptyBeginLine
	}
	if c.line {
		f |= syntax.EmptyBeginLine
	}
	return f
}

func isWord(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}
