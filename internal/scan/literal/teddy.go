package literal

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"unicode/utf8"
)

const (
	windowLen = 4  // bytes of a literal that the vector engine looks at
	vectorLen = 32 // bytes that it looks at in one step
	buckets   = 8  // a bit of a byte for each
	groups    = 3  // of buckets
)

// A window is the part of a literal that the vector engine looks for: the bytes
// that fit at each place.
type window struct {
	fits [windowLen][]byte // nil: any
}

func newWindow(l Literal, off int) window {
	var w window
	for i := range w.fits {
		switch {
		case off+i < len(l.Text):
			w.fits[i] = cases(l, off+i)
		case off+i == len(l.Text) && l.Whole:
			w.fits[i] = noAlnum
		}
	}
	return w
}

// noAlnum lists the bytes that may follow a whole word.
var noAlnum = func() (out []byte) {
	for c := range 256 {
		if !isAlnum(byte(c)) {
			out = append(out, byte(c))
		}
	}
	return out
}()

// usual lists bytes by their frequency in programs, text and JSON. The rest counts
// as one byte in a thousand.
const usual = " etaorinslcdupmfhg.\"(,)yb\n_\twv=x0k:1{}/T;SECRAI*P2-NODF8[]L3M46+B75&j9UqzG<>W"

// A bucket is a set of windows as the tables represent it. It fits every mixture of
// their bytes.
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

// shares hold the frequency of bytes by their high half and a set of low halves:
// one table for low halves 0 to 7, one for 8 to 15.
type shares [16][2][256]float64

func (t *shares) add(c byte, share float64) {
	low := c & 15
	for set := range 256 {
		if set>>(low%8)&1 != 0 {
			t[c>>4][low/8][set] += share
		}
	}
}

// newShares returns the shares of ordinary text, of base64 and of runs of NULs, which
// files other than text hold.
func newShares() *[3]shares {
	t := new([3]shares)
	t[2].add(0, 1)
	for rank := range len(usual) {
		t[0].add(usual[rank], 0.1/(1+0.18*float64(rank)))
	}
	for c := range 128 {
		if c := byte(c); c == '+' || c == '/' || '0' <= c && c <= '9' || 'A' <= upper(c) && upper(c) <= 'Z' {
			t[1].add(c, 1./64)
		}
	}
	return t
}

// cost estimates at what share of the places of such texts b fits.
func (b bucket) cost(texts *[3]shares) (cost float64) {
	for n := range texts {
		all := 1.0
		for i := range windowLen {
			sum := 0.001
			for high := b.high[i]; high != 0; high &= high - 1 {
				h := &texts[n][bits.TrailingZeros16(high)]
				sum += h[0][b.low[i]&255] + h[1][b.low[i]>>8]
			}
			all *= sum
		}
		cost += all
	}
	return cost
}

// arrange chooses a window of each literal, and a bucket for it, so that ordinary
// text rarely fits. It is greedy: it places each literal where it costs least,
// beginning with the most expensive. The pairs, if any, get the last bucket.
func arrange(lits []Literal, pairs *Pairs) (in [groups * buckets]bucket, offs []uint8, where []int) {
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
	n := len(in)
	if pairs != nil {
		n--
		in[n] = in[n].with(pairs.window())
	}
	var costs [groups * buckets]float64
	where = make([]int, len(lits))
	for round := range 3 {
		for _, id := range order {
			if round > 0 { // again, now that the others are known
				b := bucket{}
				for _, other := range order {
					if other != id && where[other] == where[id] {
						b = b.with(newWindow(lits[other], int(offs[other])))
					}
				}
				in[where[id]], costs[where[id]] = b, b.cost(t)
			}
			best := math.Inf(1)
			for _, off := range windows[id] {
				w := newWindow(lits[id], off)
				for i := range n {
					if more := in[i].with(w).cost(t) - costs[i]; more < best {
						best, where[id], offs[id] = more, i, uint8(off)
					}
				}
			}
			i := where[id]
			in[i] = in[i].with(newWindow(lits[id], int(offs[id])))
			costs[i] = in[i].cost(t)
		}
	}
	return in, offs, where
}

// window returns a window that fits every pair.
func (p *Pairs) window() (w window) {
	var first, second [256]bool
	for pair := range 1 << 16 {
		if p.has(byte(pair), byte(pair>>8)) {
			first[byte(pair)], second[byte(pair>>8)] = true, true
		}
	}
	for c := range 256 {
		if first[c] {
			w.fits[0] = append(w.fits[0], byte(c))
		}
		if second[c] {
			w.fits[1] = append(w.fits[1], byte(c))
		}
	}
	return w
}

// tables hold for each group of buckets, for each place of the window, for each
// low and each high half of a byte, the set of buckets that fit it. A vector of
// bytes is looked up with one shuffle per half; a bucket that fits in all places
// is a candidate. The layout is known to the assembly; each table is there
// twice, once for each half of the vector.
type tables [groups][windowLen][2][vectorLen]byte

// candidates lists the places at which a literal may stand, after one call of scan.
type candidates [room + vectorLen + 8]uint16

const (
	room = 1000
	most = 1<<16/vectorLen - 1 // blocks in one call
)

func newTables(in [groups * buckets]bucket) *tables {
	t := new(tables)
	for i, b := range in {
		for place := range windowLen {
			for half := range vectorLen {
				t[i/buckets][place][0][half] |= byte(b.low[place]>>(half%16)&1) << (i % buckets)
				t[i/buckets][place][1][half] |= byte(b.high[place]>>(half%16)&1) << (i % buckets)
			}
		}
	}
	return t
}

// exactTables hold for each group, for each place of the window, for each byte of
// ASCII the set of buckets that fit it: not halves of bytes in any mixture, so there
// are fewer candidates. What has other bytes goes through tables.
type exactTables [groups][windowLen][utf8.RuneSelf]byte

func newExactTables(lits []Literal, offs []uint8, where []int) *exactTables {
	t := new(exactTables)
	for id, l := range lits {
		group, bit := where[id]/buckets, byte(1)<<(where[id]%buckets)
		for place, fits := range newWindow(l, int(offs[id])).fits {
			for c := range utf8.RuneSelf {
				if fits == nil || slices.Contains(fits, byte(c)) {
					t[group][place][c] |= bit
				}
			}
		}
	}
	return t
}
