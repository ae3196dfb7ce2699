package scan

import (
	"sync"

	"github.com/carboy/carboy/internal/scan/literal"
)

// matchers caches the matchers of the first stage. None depends on the secrets.
var matchers matcherCache

// matcherKind says which token rules a matcher has: all, those in any case, or none.
type matcherKind struct{ tokens, anyCase bool }

type matcherCache struct {
	mu   sync.Mutex
	made map[matcherKind]*literal.Matcher
}

func (c *matcherCache) get(kind matcherKind, lits []literal.Literal) (*literal.Matcher, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.made[kind]; m != nil {
		return m, nil
	}
	m, err := literal.New(lits, callingPairs())
	if err == nil {
		if c.made == nil {
			c.made = map[matcherKind]*literal.Matcher{}
		}
		c.made[kind] = m
	}
	return m, err
}
