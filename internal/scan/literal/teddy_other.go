//go:build !amd64

package literal

const hasVectors, hasBytePermutes = false, false

func (t *tables) scan([]byte, int, *candidates) (blocks, found int) {
	panic("literal: no vector engine for this processor")
}

func (t *exactTables) scan([]byte, int, *candidates) (blocks, found int) {
	panic("literal: no vector engine for this processor")
}
