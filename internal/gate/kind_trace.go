package gate

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/carboy/carboy/internal/document"
)

func init() {
	register(SignalKind{Name: "trace", Summary: "phases do what the baseline allows, as the kernel inside saw it", Last: true, Final: true, Keys: []string{"of", "watch"}}, func(s *Signal, m document.Mapping) Judge[traceFacts] {
		t := traceKind{of: m.Need("of").Strings()}
		if m.Get("of").Present() && len(t.of) == 0 {
			m.Get("of").Bad("names no signal", "name signals that run something: of: [tests]")
		}
		all := []string{"execs", "shells", "endpoints", "reads", "writes", "rights"}
		t.watch = m.Get("watch").Strings()
		for _, w := range t.watch {
			if !slices.Contains(all, w) {
				m.Get("watch").Bad("has "+w+", which is not recorded", "there are execs, shells, endpoints, reads, writes and rights")
			}
		}
		if len(t.watch) == 0 {
			t.watch = all
		}
		return t.evaluate
	})
}

type traceKind struct{ of, watch []string }

type traceFacts struct {
	Phases    int      `json:"phases"`
	Wanted    int      `json:"phases_wanted"`
	Baseline  string   `json:"baseline_sha256,omitempty"`
	Recording bool     `json:"recording,omitempty"`
	Missing   []string `json:"without_baseline,omitempty"`
	Stale     []string `json:"of_other_dependencies,omitempty"` // the baseline was recorded with another image or other lockfiles
	Drifted   []string `json:"drifted,omitempty"`
	Facts     uint64   `json:"facts"`
	Lost      uint64   `json:"lost"`
}

func (f traceFacts) Positive() bool {
	return f.Wanted > 0 && f.Phases >= f.Wanted && f.Lost == 0 && f.Facts > 0 &&
		(f.Recording || len(f.Missing)+len(f.Stale)+len(f.Drifted) == 0)
}

func (t traceKind) evaluate(ctx context.Context, c *Case) (traceFacts, []Finding, error) {
	f := traceFacts{Wanted: len(t.of), Recording: c.Recording}
	if c.Baseline != nil {
		f.Baseline = c.Baseline.digest
	}
	locks, err := c.Change.lockfilesDigest(ctx)
	if err != nil {
		return f, nil, err
	}
	image := cmp.Or(c.g.Catalog.ImageDigest, "host")
	var found []Finding
	for _, name := range t.of {
		phases := c.phases(name)
		if len(phases) == 0 {
			return f, found, fmt.Errorf("%s has run nothing on the change, so there is no trace of it", name)
		}
		for _, p := range phases {
			if p.Observed == nil {
				return f, found, fmt.Errorf("%s on the change: there is no trace of it", name)
			}
			if len(p.Observed.Gaps) > 0 {
				return f, found, fmt.Errorf("%s on the change: its trace proves nothing (%s)", name, gapsText(p.Observed))
			}
		}
		f.Phases++
		want := c.Baseline.entry(name)
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
			for _, d := range want.drift(newEntry(name, image, locks, p.Observed)) {
				if !slices.Contains(t.watch, d.What) {
					continue
				}
				// A command that fails reads what it needs to say so: messages, sources.
				// Its own signal fails already, and asks for another attempt.
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

// RecordBaseline returns a baseline of what the phases did. A phase that failed read what it
// needed to say so, so its entry keeps the reads of the old baseline.
func (g *Gate) RecordBaseline(ctx context.Context) (*Baseline, error) {
	locks, err := g.Change.lockfilesDigest(ctx)
	if err != nil {
		return nil, err
	}
	b := &Baseline{Schema: baselineSchema, Entries: []*Entry{}}
	for _, p := range g.phases {
		if p.On != onChange || b.entry(p.Signal) != nil {
			continue
		}
		if !p.Observed.whole() {
			return nil, fmt.Errorf("%s: its trace has gaps (%s), so it cannot be a baseline", p.Signal, gapsText(p.Observed))
		}
		e := newEntry(p.Signal, cmp.Or(g.Catalog.ImageDigest, "host"), locks, p.Observed)
		if p.Code != 0 {
			e.Reads = []string{}
			if was := g.Baseline.entry(p.Signal); was != nil {
				e.Reads = was.Reads
			}
		}
		b.Entries = append(b.Entries, e)
	}
	return b, nil
}
