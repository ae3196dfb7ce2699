//go:build !amd64

package literal

const hasVectors = false

func (t *tables) scan([]byte, int, *candidates) (blocks, found int) {
	panic("literal: no vector engine for this processor")
}
