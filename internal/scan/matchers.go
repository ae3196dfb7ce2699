package scan

import (
	"sync"

	"github.com/carboy/carboy/internal/scan/literal"
)

// matchers caches the matchers of the first stage: one with the token rules, one
// without. Neither depends on the secrets.
var matchers matcherCache

type matcherCache struct {
	mu   sync.Mutex
	made map[bool]*literal.Matcher
}

func (c *matcherCache) get(tokens bool, lits []literal.Literal) (*literal.Matcher, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.made[tokens]; m != nil {
		return m, nil
	}
	m, err := literal.New(lits, callingPairs())
	if err == nil {
		if c.made == nil {
			c.made = map[bool]*literal.Matcher{}
		}
		c.made[tokens] = m
	}
	return m, err
}
