package literal

import "golang.org/x/sys/cpu"

// hasVectors is false where the processor lacks an instruction of the vector engine.
var hasVectors = cpu.X86.HasAVX2 && cpu.X86.HasBMI1 && cpu.X86.HasPOPCNT

// scan looks for candidates in n blocks of b, or in as many as fit into out, and
// writes their places. b must reach three bytes beyond the blocks: the last window
// of a block ends there.
func (t *tables) scan(b []byte, n int, out *candidates) (blocks, found int) {
	n = min(n, most)
	_ = b[n*vectorLen+windowLen-2]
	return scanAVX2(t, &b[0], n, &out[0], room)
}

//go:noescape
func scanAVX2(t *tables, b *byte, n int, out *uint16, room int) (blocks, found int)

// hasBytePermutes is false where the processor can't look 128 bytes up at once.
var hasBytePermutes = hasVectors && cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VBMI

// scan is the same for n blocks of 64 bytes, as far as these are ASCII.
func (t *exactTables) scan(b []byte, n int, out *candidates) (blocks, found int) {
	n = min(n, most/2)
	_ = b[n*2*vectorLen+windowLen-2]
	return scanVBMI(t, &b[0], n, &out[0], room-vectorLen)
}

//go:noescape
func scanVBMI(t *exactTables, b *byte, n int, out *uint16, room int) (blocks, found int)
