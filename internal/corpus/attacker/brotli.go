package attacker

// Brotli packs s in brotli (RFC 7932): each byte is a symbol of a prefix code, and bits
// are shifted, so nothing of s can be read in the result. It finds no repetitions. A
// library that does adds 0.6 MB to the program for the sake of these attacks alone.
func Brotli(s string) string {
	var w bitWriter
	w.put(0, 1) // window of 64 KiB
	for len(s) > 0 {
		n := min(len(s), 1<<16)
		w.put(0, 1) // not the last block
		w.put(0, 2) // its length has four digits
		w.put(uint64(n-1), 16)
		w.put(0, 1+3+6+2+1+1) // packed; one type of literals, commands, distances; no parameters
		w.put(0, 2)           // literals: a code of lengths, which follow
		w.put(0, 2*10)        // no symbol has a length of 1, 2, 3, 4, 0, 5, 17, 6, 16, 7:
		w.put(1, 2)           // all 256 have 8
		w.put(0, 2*7)         // and none another
		insert := insertCode(n)
		w.put(1, 4)              // commands: one symbol
		w.put(insert.symbol, 10) // it inserts n literals
		w.put(1, 4)              // distances: one symbol
		w.put(0, 6)
		w.put(uint64(n-insert.base), insert.extra)
		for i := range n {
			w.put(uint64(reversed(s[i])), 8)
		}
		s = s[n:]
	}
	w.put(3, 2)         // the last block, and empty
	w.put(0, (8-w.n)%8) // to the end of the byte
	return string(w.out)
}

// bitWriter collects bits, the lowest first.
type bitWriter struct {
	out  []byte
	bits uint64
	n    int
}

func (w *bitWriter) put(v uint64, n int) {
	w.bits |= v << w.n
	for w.n += n; w.n >= 8; w.n -= 8 {
		w.out, w.bits = append(w.out, byte(w.bits)), w.bits>>8
	}
}

// An insert is the command that inserts base literals or more, by as many extra bits.
type insert struct {
	symbol      uint64
	base, extra int
}

func insertCode(n int) (in insert) {
	next := 0
	for code, extra := range []int{0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 7, 8, 9, 10, 12, 14, 24} {
		if next > n {
			break
		}
		in = insert{symbol: []uint64{128, 256, 448}[code/8] + uint64(code%8)<<3, base: next, extra: extra}
		next += 1 << extra
	}
	return in
}

// reversed returns b with its highest bit first, as codes are written.
func reversed(b byte) (out byte) {
	for range 8 {
		out, b = out<<1|b&1, b>>1
	}
	return out
}
