package literal

import (
	"encoding/binary"
	"math/bits"
)

// Gaps finds blocks of BlockLen bytes that may be characters with the same one, two
// or three bytes between any two, or binary digits, which no literal can find. It
// counts repeated bytes, and so finds other blocks too, but few in ordinary text. It
// finds each block that holds
//
//   - sixteen bytes with every other byte the same,
//   - 23 with two of three, or 31 with three of four, or
//   - 24 binary digits.
//
// What is between must be none of the characters, or once in sixteen. It appends to dst the places of such
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
	again2, again3, again4 = 6, 12, 18
	digits                 = 24
)

func gapsInGo(b []byte, n int, out *[256]uint16) (found int) {
	for i := range n {
		var two, three, four, digit int
		block := b[i*BlockLen : (i+1)*BlockLen+BlockReach]
		for at := 0; at < BlockLen; at += 8 {
			w := binary.LittleEndian.Uint64(block[at:])
			m1 := zeros(w ^ binary.LittleEndian.Uint64(block[at+1:]))
			m2 := zeros(w ^ binary.LittleEndian.Uint64(block[at+2:]))
			m3 := zeros(w ^ binary.LittleEndian.Uint64(block[at+3:]))
			m4 := zeros(w ^ binary.LittleEndian.Uint64(block[at+4:]))
			two += bits.OnesCount64(m2 &^ m1) // not in a run of one byte
			three += bits.OnesCount64(m3 &^ (m1 & m2))
			four += bits.OnesCount64(m4 &^ (m1 & m2 & m3))
			digit += bits.OnesCount64(zeros(w&0xfefefefefefefefe ^ 0x3030303030303030))
		}
		if two >= again2 || three >= again3 || four >= again4 || digit >= digits {
			out[found] = uint16(i)
			found++
		}
	}
	return found
}

// zeros returns the highest bit of each byte that is zero in w.
func zeros(w uint64) uint64 {
	const low = 0x7f7f7f7f7f7f7f7f
	return ^((w&low + low) | w | low)
}
