package main

import (
	"math"
	"slices"
	"time"
)

// median of xs; NaN for none.
func median(xs []float64) float64 {
	if len(xs) == 0 {
		return math.NaN()
	}
	s := slices.Clone(xs)
	slices.Sort(s)
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// medianTime of ds, rounded down; 0 for none.
func medianTime(ds []time.Duration) time.Duration {
	xs := make([]float64, len(ds))
	for i, d := range ds {
		xs[i] = float64(d)
	}
	if len(xs) == 0 {
		return 0
	}
	return time.Duration(median(xs))
}

// Spread is a set of per-round ratios, which is what survives a noisy machine:
// both halves of a ratio were measured within the same seconds.
type Spread struct {
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Rounds []float64 `json:"rounds"`
}

// spread divides a by b, round by round. Rounds that lack either are left out;
// nil when none is left.
func spread(a, b []time.Duration) *Spread {
	var r []float64
	for i := range min(len(a), len(b)) {
		if a[i] > 0 && b[i] > 0 {
			r = append(r, float64(a[i])/float64(b[i]))
		}
	}
	return spreadOf(r)
}

// spreadOf xs, one per round; nil for none.
func spreadOf(xs []float64) *Spread {
	if len(xs) == 0 {
		return nil
	}
	return &Spread{Median: median(xs), Min: slices.Min(xs), Max: slices.Max(xs), Rounds: xs}
}
