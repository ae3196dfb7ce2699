package scan

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
)

// A cache remembers of a machine what a byte leads to from threads that were seen
// before: most text begins a phrase, or a token, in one of few ways. It changes
// nothing but the time: what it says, costs included, is what simulate said once.
// All scanners of a process share it.
type cache struct {
	// class of each byte: those of one class are alike to every instruction.
	class   [256]uint8
	classes int

	// begins are the states of a machine's start, by their context.
	begins [8]atomic.Pointer[state]

	mu     sync.Mutex
	states map[string]*state
}

// state is a machine's threads between two bytes, with what an assertion asks of
// the first.
type state struct {
	threads []uint16
	before  context
	next    []atomic.Pointer[edge] // by class
}

// An edge is the transition of a state for one class of bytes.
type edge struct {
	to      *state // nil: no thread lives on
	matched bool   // before the byte
	cost    int
}

// maxStates bounds what all machines remember, of which a state is less than a
// kilobyte: a text that is made to need many is as slow as without.
const maxStates = 8 << 10

var statesMade atomic.Int64

func newCache(insts []inst) *cache {
	c := &cache{states: map[string]*state{}}
	known := map[string]uint8{}
	var sets []*byteSet
	for i := range insts {
		if insts[i].fit != nil {
			sets = append(sets, insts[i].fit)
		}
	}
	for b := range 256 {
		sign := make([]byte, 0, len(sets)+2)
		for _, s := range sets {
			sign = append(sign, truth(s.has(byte(b))))
		}
		sign = append(sign, truth(isWord(byte(b))), truth(b == '\n'))
		id, ok := known[string(sign)]
		if !ok {
			id = uint8(len(known))
			known[string(sign)] = id
		}
		c.class[b] = id
	}
	c.classes = len(known)
	return c
}

func truth(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func (c context) bits() byte { return truth(c.word) | truth(c.line)<<1 | truth(c.begin)<<2 }

// begin is at, for the start alone.
func (c *cache) begin(threads []uint16, before context) *state {
	at := &c.begins[before.bits()]
	s := at.Load()
	if s == nil {
		if s = c.at(threads, before); s != nil {
			at.Store(s)
		}
	}
	return s
}

// at returns the state of these threads, or nil when no more are remembered.
func (c *cache) at(threads []uint16, before context) *state {
	var space [256]byte
	key := append(space[:0], before.bits())
	for _, pc := range threads {
		key = binary.LittleEndian.AppendUint16(key, pc)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.states[string(key)]; s != nil {
		return s
	}
	if statesMade.Load() >= maxStates {
		return nil
	}
	statesMade.Add(1)
	s := &state{threads: append([]uint16(nil), threads...), before: before, next: make([]atomic.Pointer[edge], c.classes)}
	c.states[string(key)] = s
	return s
}

// learn finds out what b does in s, and remembers it. nil: no more is remembered.
func (m *machine) learn(s *state, q *sparse, b byte) *edge {
	t := trial{threads: append([]uint16(nil), s.threads...), matched: -1}
	e := &edge{cost: m.simulate(&t, q, []byte{b}, s.before, false), matched: t.matched == 0}
	if len(t.threads) > 0 {
		if e.to = m.cache.at(t.threads, context{word: isWord(b), line: b == '\n'}); e.to == nil {
			return nil
		}
	}
	s.next[m.cache.class[b]].Store(e)
	return e
}

// step goes on over b, of which before is the byte before it, and reports what
// it cost. eof says that nothing follows b. In the end t has no threads, or b
// is used up.
func (m *machine) step(t *trial, q *sparse, b []byte, before context, eof bool) (cost int) {
	if len(b) == 0 || len(t.threads) == 0 {
		return m.simulate(t, q, b, before, eof)
	}
	i, find := 0, m.cache.at
	if t.length == 0 {
		find = m.cache.begin
	}
	s := find(t.threads, before)
	if s == nil {
		return m.simulate(t, q, b, before, eof)
	}
	for i < len(b) {
		e := s.next[m.cache.class[b[i]]].Load()
		if e == nil {
			if e = m.learn(s, q, b[i]); e == nil {
				break
			}
		}
		cost += e.cost
		if e.matched {
			t.matched = t.length
		}
		t.length++
		i++
		if e.to == nil {
			t.threads = t.threads[:0]
			return cost
		}
		s = e.to
	}
	t.threads = append(t.threads[:0], s.threads...)
	return cost + m.simulate(t, q, b[i:], s.before, eof)
}
