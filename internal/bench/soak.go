package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// vitals count the memory, goroutines and descriptors of a process at one moment.
type vitals struct {
	Resident    int64 `json:"resident_bytes"`
	Goroutines  int   `json:"goroutines"`
	Descriptors int   `json:"descriptors"`
}

// vitals reads the vitals of the gateway. Only carboy reports its goroutines.
func (s *system) vitals() (v vitals, err error) {
	m, err := memoryOf(s.gateway)
	if err != nil {
		return v, err
	}
	v.Resident = m.Resident
	ents, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.gateway))
	if err != nil {
		return v, err
	}
	v.Descriptors = len(ents)
	if s.control == "" {
		return v, nil
	}
	r, err := controlClient(s.control).Get("http://supervisor/goroutines")
	if err != nil {
		return v, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return v, err
	}
	v.Goroutines, err = strconv.Atoi(string(b))
	return v, err
}

// Growth is the change of one of the vitals in the second half of a soak, when everything
// that is kept for later is there.
type Growth struct {
	What string `json:"what"`
	// Grown is the rise of the line through the second half.
	Grown float64 `json:"grown"`
	Bound float64 `json:"bound"`
	Last  float64 `json:"last"`
}

func (g Growth) ok() bool { return g.Grown <= g.Bound }

// judge says of a soak's vitals, one per second, how much each grew. The bounds are
// for what a steady load may do: a heap between two collections, connections that
// come and go.
func judge(vs []vitals) []Growth {
	half := vs[len(vs)/2:]
	grown := func(what string, bound float64, of func(vitals) float64) Growth {
		ys := make([]float64, len(half))
		for i, v := range half {
			ys[i] = of(v)
		}
		g := Growth{What: what, Grown: slope(ys) * float64(len(ys)-1), Bound: bound}
		if len(ys) > 0 {
			g.Last = ys[len(ys)-1]
		}
		return g
	}
	return []Growth{
		grown("resident memory, MiB", 8, func(v vitals) float64 { return float64(v.Resident) / (1 << 20) }),
		grown("goroutines", 20, func(v vitals) float64 { return float64(v.Goroutines) }),
		grown("descriptors", 10, func(v vitals) float64 { return float64(v.Descriptors) }),
	}
}

// slope returns the Theil-Sen estimate: the median of the slopes of all pairs, which
// single peaks do not change. Long rows are thinned to at most 600.
func slope(ys []float64) float64 {
	step := 1 + len(ys)/600
	var all []float64
	for i := 0; i < len(ys); i += step {
		for j := i + step; j < len(ys); j += step {
			all = append(all, (ys[j]-ys[i])/float64(j-i))
		}
	}
	if len(all) == 0 {
		return 0
	}
	return median(all)
}

// Soak is the document of one.
type Soak struct {
	Schema string           `json:"schema"`
	Took   time.Duration    `json:"took"`
	Mix    map[string]int64 `json:"mix"`
	Growth []Growth         `json:"growth"`
	Vitals []vitals         `json:"vitals"`
}

// soakSettle is left out at the start: connections, caches, the heap's first size.
const soakSettle = 5 * time.Second

// soak keeps one gateway busy with a bit of everything and watches its process.
func soak(ctx context.Context, o *options, stdout, stderr io.Writer) (err error) {
	g, err := newGatewayBench(ctx, o, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	s, err := g.system(ctx, soaked, 0, o.leak)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	r := Soak{Schema: "carboy.dev/bench-soak/v1"}
	type result struct {
		outcome
		err error
	}
	over := make(chan result, 1)
	go func() { // ends with the client
		out, err := s.ask(task{Do: "soak", For: o.soak + soakSettle, Bytes: 8 << 20})
		over <- result{out, err}
	}()
	var done result
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n, going := 0, true; going; n++ {
		select {
		case done = <-over:
			going = false
		case <-tick.C:
			v, err := s.vitals()
			if err != nil {
				return err
			}
			if time.Duration(n)*time.Second >= soakSettle {
				r.Vitals = append(r.Vitals, v)
			}
			if n%60 == 0 {
				fmt.Fprintf(stderr, "%4d s: %d MiB, %d goroutines, %d descriptors\n", n, v.Resident>>20, v.Goroutines, v.Descriptors)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if done.err != nil {
		return fmt.Errorf("soak: after %v: %w", done.Took.Round(time.Second), done.err)
	}
	r.Took, r.Mix, r.Growth = done.Took, done.Mix, judge(r.Vitals)
	if o.json {
		err = json.NewEncoder(stdout).Encode(r)
	} else {
		_, err = io.WriteString(stdout, r.String())
	}
	if err != nil {
		return err
	}
	return r.verdict()
}

// verdict is an error when something grew that should not, or nothing was seen.
func (r *Soak) verdict() error {
	if len(r.Vitals) < 10 {
		return fmt.Errorf("soak: %d seconds are too few to judge", len(r.Vitals))
	}
	for what, n := range r.Mix {
		if n == 0 {
			return fmt.Errorf("soak: not once was done: %s", what)
		}
	}
	var errs []error
	for _, g := range r.Growth {
		if !g.ok() {
			errs = append(errs, fmt.Errorf("soak: %s: grew by %.1f in the second half, more than %.0f", g.What, g.Grown, g.Bound))
		}
	}
	return errors.Join(errs...)
}

func (r *Soak) String() string {
	var w strings.Builder
	fmt.Fprintf(&w, "%v of", r.Took.Round(time.Second))
	for i, k := range slices.Sorted(maps.Keys(r.Mix)) {
		fmt.Fprintf(&w, "%s %d × %s", []string{"", ","}[min(i, 1)], r.Mix[k], k)
	}
	fmt.Fprint(&w, "\n")
	for _, g := range r.Growth {
		fmt.Fprintf(&w, "%-22s %8.1f at the end; the second half grew by %.2f, bound %.0f\n", g.What, g.Last, g.Grown, g.Bound)
	}
	return w.String()
}
