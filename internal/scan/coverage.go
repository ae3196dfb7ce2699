package scan

import "sync"

// Coverage records, for a bottle, which parts of the watched secrets have left it.
// A secret sent in pieces is found once enough of them have left, in any order,
// request and place. From then on every further piece is found, the refused one
// too if it is sent again. The smallest piece is a gram: anything smaller may be
// chance. It may be used concurrently.
type Coverage struct {
	mu   sync.Mutex
	seen map[string]*byteMap // by the secret's name
}

type byteMap struct {
	bits  []uint64
	count int
}

// NewCoverage returns an empty Coverage, for a new bottle.
func NewCoverage() *Coverage { return &Coverage{seen: map[string]*byteMap{}} }

// add records that bytes [from, to) of a secret left, and reports whether enough
// of it has left.
func (c *Coverage) add(k *WatchedSecrets, secret, from, to int) (together bool) {
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
