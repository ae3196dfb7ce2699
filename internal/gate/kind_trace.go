package gate

import (
	"cmp"
	"context"
	"fmt"

	"github.com/carboy/carboy/internal/document"
)

func init() {
	Register(Kind{Name: "trace", Summary: "phases do what the baseline allows, as the kernel inside saw it", Last: true, Final: true, Keys: []string{"of", "watch"}}, func(s *Signal, m document.Mapping) Judge[traceFacts] {
		t := traceKind{of: m.Need("of").Strings()}
		if m.Get("of").Present() && len(t.of) == 0 {
			m.Get("of").Bad("names no signal", "name signals that run something: of: [tests]")
		}
		all := []string{"execs", "shells", "endpoints", "reads", "writes", "rights"}
		t.watch = m.Get("watch").Strings()
		for _, w := range t.watch {
			if !contains(all, w) {
				m.Get("watch").Bad("has "+w+", which is not recorded", "there are execs, shells, endpoints, reads, writes and rights")
			}
		}
		if len(t.watch) == 0 {
			t.watch = all
		}
		return t.judge
	})
}

func contains(l []string, s string) bool {
	for _, x := range l {
		if x == s {
			return true
		}
	}
	return false
}

type traceKind struct{ of, watch []string }

type traceFacts struct {
	Phases    int      `json:"phases"`
	Wanted    int      `json:"phases_wanted"`
	Baseline  string   `json:"baseline_sha256,omitempty"`
	Recording bool     `json:"recording,omitempty"`
	Missing   []string `json:"without_baseline,omitempty"`
	Stale     []string `json:"of_other_dependencies,omitempty"` // the baseline is of another image, or of other lockfiles
	Drifted   []string `json:"drifted,omitempty"`
	Facts     uint64   `json:"facts"`
	Lost      uint64   `json:"lost"`
}

func (f traceFacts) Positive() bool {
	return f.Wanted > 0 && f.Phases >= f.Wanted && f.Lost == 0 && f.Facts > 0 &&
		(f.Recording || len(f.Missing)+len(f.Stale)+len(f.Drifted) == 0)
}

func (t traceKind) judge(ctx context.Context, c *Case) (traceFacts, []Finding, error) {
	f := traceFacts{Wanted: len(t.of), Recording: c.Recording}
	if c.Baseline != nil {
		f.Baseline = c.Baseline.digest
	}
	locks, err := c.Change.lockfiles(ctx)
	if err != nil {
		return f, nil, err
	}
	image := cmp.Or(c.g.Catalog.ImageDigest, "host")
	var found []Finding
	for _, name := range t.of {
		phases := c.Phases(name)
		if len(phases) == 0 {
			return f, found, fmt.Errorf("%s has run nothing on the change, so there is no trace of it", name)
		}
		for _, p := range phases {
			if p.Observed == nil {
				return f, found, fmt.Errorf("%s on the change: there is no trace of it", name)
			}
		}
		f.Phases++
		want := c.Baseline.Entry(name)
		switch {
		case c.Recording:
		case want == nil:
			f.Missing = append(f.Missing, name)
			text := "the baseline has nothing of " + name + ": carboy gate baseline record, look at it, and commit it"
			if c.g.BaselineWhy != "" {
				text = "the baseline does not count: " + c.g.BaselineWhy
			}
			found = append(found, Finding{ID: name, Text: text})
			continue
		case want.Image != image || want.Lockfiles != locks:
			f.Stale = append(f.Stale, name)
			found = append(found, Finding{ID: name, Text: "the baseline of " + name + " was recorded with another image or other lockfiles: carboy gate baseline diff shows what is new"})
		}
		for _, p := range phases {
			f.Facts += p.Observed.Facts
			f.Lost += p.Observed.Lost
			if want == nil {
				continue
			}
			for _, d := range want.drift(entryOf(name, image, locks, p.Observed)) {
				if !contains(t.watch, d.What) {
					continue
				}
				// Who fails reads what it says so from: messages, sources. Its own signal
				// does not pass, and the next attempt is for that.
				noted := p.Code != 0 && d.What == "reads"
				if !noted {
					f.Drifted = append(f.Drifted, name)
				}
				for _, n := range d.New {
					found = append(found, Finding{ID: name + "." + d.What, Text: "new: " + n, Noted: noted})
				}
			}
		}
	}
	return f, found, nil
}

// Record makes a baseline of what the phases did that the catalog's trace signals are
// about. What one read that failed is no example: it read what it says so from, which is no
// drift, and its entry has the reads that were allowed before.
func (g *Gate) Record(ctx context.Context) (*Baseline, error) {
	locks, err := g.Change.lockfiles(ctx)
	if err != nil {
		return nil, err
	}
	b := &Baseline{Schema: BaselineSchema, Entries: []*Entry{}}
	for _, p := range g.phases {
		if p.On != "change" || b.Entry(p.Signal) != nil {
			continue
		}
		if !p.Observed.Whole() {
			return nil, fmt.Errorf("%s: its trace has gaps (%s), so it is no baseline", p.Signal, gaps(p.Observed))
		}
		e := entryOf(p.Signal, cmp.Or(g.Catalog.ImageDigest, "host"), locks, p.Observed)
		if p.Code != 0 {
			e.Reads = []string{}
			if was := g.Baseline.Entry(p.Signal); was != nil {
				e.Reads = was.Reads
			}
		}
		b.Entries = append(b.Entries, e)
	}
	return b, nil
}
