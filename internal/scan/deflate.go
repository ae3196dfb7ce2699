package scan

import (
	"encoding/binary"
	"math/bits"
)

// isZlibHead reports whether two bytes may begin a zlib stream: the method deflate, a
// window, no preset dictionary, and a check of both.
func isZlibHead(cmf, flg byte) bool {
	return cmf&15 == 8 && cmf>>4 < 8 && flg&0x20 == 0 && (int(cmf)<<8|int(flg))%31 == 0
}

// zlibHeads lists the heads that are looked for everywhere: those of the usual window,
// and of the others those that don't stand in text. The rest count only at the beginning
// of a stream, or all would be slower.
var zlibHeads = func() (out []string) {
	for cmf := range 1 << 8 {
		for flg := range 1 << 8 {
			if (cmf == 0x78 || flg >= 0x80) && isZlibHead(byte(cmf), byte(flg)) {
				out = append(out, string([]byte{byte(cmf), byte(flg)}))
			}
		}
	}
	return out
}()

// zlibLook bounds the bytes behind the head of a zlib stream that mayInflate looks at.
const zlibLook = 64

// mayInflate reports whether b may begin what deflate made. The heads of zlib streams
// stand in many texts, where this is false nearly always and costs little. With fewer
// than zlibLook bytes it says less.
func mayInflate(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	switch b[0] >> 1 & 3 {
	case 0: // stored: a length and its complement
		return len(b) < 5 || b[1]^b[3] == 0xff && b[2]^b[4] == 0xff
	case 1:
		return mayBeFixed(b)
	case 2:
		return mayBeDynamic(b)
	}
	return false
}

// A bitReader reads numbers from the lowest bit on. Behind the end it reads zeros.
type bitReader struct {
	b  []byte
	at int
}

func (r *bitReader) take(n int) (v int) {
	for i := range n {
		if at := r.at + i; at/8 < len(r.b) {
			v |= int(r.b[at/8]>>(at%8)&1) << i
		}
	}
	r.at += n
	return v
}

func (r *bitReader) over() bool { return r.at > 8*len(r.b) }

// mayBeDynamic reads the codes that a block begins with. Each must use all of its space,
// and there must be one for the end of the block. Other decoders refuse a block without
// that; the one in use here goes on for ever.
func mayBeDynamic(b []byte) bool {
	r := &bitReader{b, 3}
	literals, distances := r.take(5)+257, r.take(5)+1
	if literals > 286 || distances > 30 {
		return false
	}
	var lengths [19]int
	for _, i := range []int{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}[:r.take(4)+4] {
		lengths[i] = r.take(3)
	}
	if r.over() {
		return true
	}
	if !isWhole(lengths[:]) {
		return false
	}
	var all []int
	for len(all) < literals+distances {
		code, first, sym := 0, 0, -1
		for n := 1; n <= 7 && sym < 0; n++ {
			code = code<<1 | r.take(1)
			first <<= 1
			for i, l := range lengths {
				if l == n {
					if code == first {
						sym = i
					}
					first++
				}
			}
		}
		repeat, value := 1, sym
		switch sym {
		case -1:
			return false
		case 16:
			if len(all) == 0 {
				return false
			}
			repeat, value = 3+r.take(2), all[len(all)-1]
		case 17:
			repeat, value = 3+r.take(3), 0
		case 18:
			repeat, value = 11+r.take(7), 0
		}
		if r.over() {
			return true
		}
		for range repeat {
			all = append(all, value)
		}
	}
	return len(all) == literals+distances && all[256] > 0 && isWhole(all[:literals])
}

// isWhole reports whether codes of these lengths use all of their space, or are one
// code of one bit.
func isWhole(lengths []int) bool {
	const longest = 15
	sum, used := 0, 0
	for _, n := range lengths {
		if n > 0 {
			sum += 1 << (longest - n)
			used++
		}
	}
	return sum == 1<<longest || used == 1 && sum == 1<<(longest-1)
}

// mayBeFixed follows a block in the fixed code up to its first repetition, which must
// repeat something.
func mayBeFixed(b []byte) bool {
	var room [zlibLook + 8]byte
	n := 8 * copy(room[:zlibLook], b)
	made := 0
	for at := 3; at+9 <= n; {
		w := binary.LittleEndian.Uint64(room[at/8:]) >> (at % 8)
		long := bits.Reverse8(uint8(w))
		short := long >> 1
		sym, width := 256+int(short), 7
		switch {
		case short > 0x17 && long < 0xc0: // a byte below 144
			made, at = made+1, at+8
			continue
		case long >= 0xc8: // another byte
			made, at = made+1, at+9
			continue
		case short > 0x17:
			sym, width = 280+int(long-0xc0), 8
		}
		if sym == 256 {
			return true // the end of the block
		}
		if sym > 285 {
			return false
		}
		if sym >= 265 && sym < 285 {
			width += (sym - 261) / 4
		}
		if at+width+5 > n {
			return true
		}
		d := int(bits.Reverse8(uint8(w>>width)) >> 3)
		return d < 4 && d+1 <= made || d >= 4 && d < 30 && (2+d&1)<<(d/2-1)+1 <= made
	}
	return true
}
