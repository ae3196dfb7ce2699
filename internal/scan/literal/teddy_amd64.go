package literal

import "golang.org/x/sys/cpu"

// newTeddies returns nothing where the processor lacks the instructions.
func newTeddies(in []bucket) (out []*teddy) {
	if !cpu.X86.HasAVX2 {
		return nil
	}
	for ; len(in) > 0; in = in[min(buckets, len(in)):] {
		t := new(teddy)
		t.fill(in[:min(buckets, len(in))])
		out = append(out, t)
	}
	return out
}

// scan looks at n blocks of b, of which out must be longer. b must
// reach three bytes beyond them: the last window of a block ends there.
func (t *teddy) scan(b []byte, n int, out []block) (found int) {
	_, _ = b[n*vectorLen+windowLen-2], out[n]
	return scanAVX2(t, &b[0], n, &out[0])
}

//go:noescape
func scanAVX2(t *teddy, b *byte, n int, out *block) (found int)
