package literal

import (
	"encoding/binary"
	"math/bits"
)

// Gaps says which blocks of BlockLen bytes may be characters with the same one,
// two or three bytes between any two, or binary digits: what is no literal and
// yet has to be seen. It is a count, and so finds more than that, which is little
// of ordinary text; it finds each block that holds
//
//   - sixteen bytes with every other byte the same,
//   - 23 with two of three, or 31 with three of four, or
//   - 24 binary digits and spaces.
//
// Bytes that are all the same are none. It appends to dst the places of such
// blocks among b[:BlockLen], b[BlockLen:2*BlockLen], … and returns how many blocks
// it looked at: all that BlockReach bytes follow.
func Gaps(dst []int, b []byte) (found []int, blocks int) {
	n := max(0, (len(b)-BlockReach)/BlockLen)
	for blocks < n {
		var out [256]uint16
		part := b[blocks*BlockLen:]
		m := min(n-blocks, len(out)-1)
		for _, i := range out[:findGaps(part, m, &out)] {
			dst = append(dst, (blocks+int(i))*BlockLen)
		}
		blocks += m
	}
	return dst, n
}

const (
	BlockLen   = vectorLen
	BlockReach = 4
)

// How many bytes of a block must come again after two, three, four bytes, and
// how many must be binary digits. The assembly has the same numbers.
const (
	again2, again3, again4 = 7, 12, 18
	digits                 = 24
)

func gapsInGo(b []byte, n int, out *[256]uint16) (found int) {
	for i := range n {
		var two, three, four, digit int
		block := b[i*BlockLen : (i+1)*BlockLen+BlockReach]
		for at := 0; at < BlockLen; at += 8 {
			w := binary.LittleEndian.Uint64(block[at:])
			two += zeros(w ^ binary.LittleEndian.Uint64(block[at+2:]))
			three += zeros(w ^ binary.LittleEndian.Uint64(block[at+3:]))
			four += zeros(w ^ binary.LittleEndian.Uint64(block[at+4:]))
			digit += zeros(w&0xeeeeeeeeeeeeeeee ^ 0x2020202020202020)
		}
		if (two >= again2 || three >= again3 || four >= again4 || digit >= digits) && two+three < 2*BlockLen {
			out[found] = uint16(i)
			found++
		}
	}
	return found
}

// zeros counts the bytes of w that are zero.
func zeros(w uint64) int {
	const low = 0x7f7f7f7f7f7f7f7f
	return bits.OnesCount64(^((w&low + low) | w | low))
}
