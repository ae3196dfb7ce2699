package scan

import "sync"

// Coverage remembers, for a bottle, which parts of the known secrets have left
// it, so that a secret in pieces is found when enough of them are together, in
// whatever order, requests and places they go; from then on each further piece is,
// the one that was refused among them, for it would be sent again. A piece is a gram: what is
// smaller is not told from chance. It may be used concurrently.
type Coverage struct {
	mu   sync.Mutex
	seen map[string]*byteMap // by the secret's name
}

type byteMap struct {
	bits  []uint64
	count int
}

// NewCoverage begins a bottle.
func NewCoverage() *Coverage { return &Coverage{seen: map[string]*byteMap{}} }

// add notes that bytes [from, to) of a secret were seen, and reports whether the
// secret is together.
func (c *Coverage) add(k *Known, secret, from, to int) (together bool) {
	s := &k.secrets[secret]
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.seen[s.name]
	if m == nil || len(m.bits) != (s.length+63)/64 {
		m = &byteMap{bits: make([]uint64, (s.length+63)/64)} // new, or another value
		c.seen[s.name] = m
	}
	for i := max(from, s.public); i < to; i++ {
		if m.bits[i/64]>>(i%64)&1 == 0 {
			m.bits[i/64] |= 1 << (i % 64)
			m.count++
		}
	}
	return m.count >= s.part
}
