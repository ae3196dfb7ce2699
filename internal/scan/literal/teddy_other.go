//go:build !amd64

package literal

func newTeddies([]bucket) []*teddy { return nil }

func (t *teddy) scan([]byte, int, []block) (found int) {
	panic("literal: no vector engine for this processor")
}
