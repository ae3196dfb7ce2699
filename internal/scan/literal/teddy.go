package literal

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

const (
	windowLen = 4  // bytes of a literal that the vector engine looks at
	vectorLen = 32 // bytes that it looks at in one step
	buckets   = 8  // of one pass
	crowded   = 48 // literals for which one pass would find too much
)

// A window is what of a literal the vector engine looks for: for each of its
// places the bytes that fit.
type window struct {
	fits [windowLen][]byte // nil: any
}

func newWindow(l Literal, off int) window {
	var w window
	for i := range w.fits {
		if off+i < len(l.Text) {
			w.fits[i] = cases(l, off+i)
		}
	}
	return w
}

// usual are bytes in the order in which programs, text and JSON have them. The
// rest counts as one byte in a thousand.
const usual = " etaorinslcdupmfhg.\"(,)yb\n_\twv=x0k:1{}/T;SECRAI*P2-NODF8[]L3M46+B75&j9UqzG<>W"

// A bucket is a set of windows as the tables see it: any mixture of theirs.
type bucket struct {
	low, high [windowLen]uint16
}

func (b bucket) with(w window) bucket {
	for i, fits := range w.fits {
		for _, c := range fits {
			b.low[i] |= 1 << (c & 15)
			b.high[i] |= 1 << (c >> 4)
		}
		if fits == nil {
			b.low[i], b.high[i] = 1<<16-1, 1<<16-1
		}
	}
	return b
}

// shares say how often ordinary text has a byte with a given high half and a low
// half among a set, of which one table has the first and one the second eight.
type shares [16][2][256]float64

func newShares() *shares {
	t := new(shares)
	for rank := range len(usual) {
		c := usual[rank]
		low, share := c&15, 0.1/(1+0.18*float64(rank))
		for set := range 256 {
			if set>>(low%8)&1 != 0 {
				t[c>>4][low/8][set] += share
			}
		}
	}
	return t
}

// cost is how often ordinary text fits b, as a share of its places.
func (b bucket) cost(t *shares) float64 {
	all := 1.0
	for i := range windowLen {
		sum := 0.001
		for high := b.high[i]; high != 0; high &= high - 1 {
			h := &t[bits.TrailingZeros16(high)]
			sum += h[0][b.low[i]&255] + h[1][b.low[i]>>8]
		}
		all *= sum
	}
	return all
}

// arrange chooses a window of each literal, and a bucket for it, so that
// ordinary text fits little: one by one, each where it costs least, beginning
// with those that cost most.
//
// The first short of the buckets are for literals shorter than a window: these
// fit much and stay among themselves.
func arrange(lits []Literal) (in []bucket, short int, offs []uint8) {
	t := newShares()
	windows := make([][]int, len(lits)) // of each literal, the few best
	alone := make([]float64, len(lits))
	order := make([]int, len(lits))
	for id, l := range lits {
		costs := map[int]float64{}
		for off := 0; off == 0 || off+windowLen <= len(l.Text); off++ {
			costs[off] = bucket{}.with(newWindow(l, off)).cost(t)
			windows[id] = append(windows[id], off)
		}
		slices.SortFunc(windows[id], func(a, b int) int { return cmp.Or(cmp.Compare(costs[a], costs[b]), a-b) })
		windows[id] = windows[id][:min(3, len(windows[id]))]
		alone[id], order[id] = costs[windows[id][0]], id
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(alone[b], alone[a]) })

	offs = make([]uint8, len(lits))
	long := 0
	for _, l := range lits {
		if len(l.Text) >= windowLen {
			long++
		}
	}
	if long < len(lits) {
		short = buckets
	}
	n := short + min(long, 1)*buckets
	if long > crowded {
		n += buckets
	}
	in = make([]bucket, n)
	costs := make([]float64, n)
	for _, id := range order {
		best, where := math.Inf(1), 0
		lo, hi := short, n
		if len(lits[id].Text) < windowLen {
			lo, hi = 0, short
		}
		for _, off := range windows[id] {
			w := newWindow(lits[id], off)
			for i := lo; i < hi; i++ {
				if more := in[i].with(w).cost(t) - costs[i]; more < best {
					best, where, offs[id] = more, i, uint8(off)
				}
			}
		}
		in[where] = in[where].with(newWindow(lits[id], int(offs[id])))
		costs[where] = in[where].cost(t)
	}
	return in, short, offs
}

// A teddy holds for each place of the window, for each low and each high half
// of a byte, the set of buckets that fit it. A vector of bytes is looked up
// with one shuffle per half; a bucket that fits in all of them is a candidate.
// The layout is known to the assembly: low and high of place 0, of place 1 …,
// each table twice, once for each half of the vector.
type teddy struct {
	tables [windowLen][2][vectorLen]byte
}

// block is a step in which a candidate was found: a bit for each place.
type block struct {
	index uint32
	mask  uint32
}

func (t *teddy) fill(in []bucket) {
	for i, b := range in {
		for place := range windowLen {
			for half := range vectorLen {
				t.tables[place][0][half] |= byte(b.low[place]>>(half%16)&1) << i
				t.tables[place][1][half] |= byte(b.high[place]>>(half%16)&1) << i
			}
		}
	}
}

func trailingZeros(mask uint32) int { return bits.TrailingZeros32(mask) }
