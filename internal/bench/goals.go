package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Goal holds a limit and the measurement that must keep it. The median decides.
type Goal struct {
	What string `json:"what"`
	// Limit is the most, or with AtLeast the least, in Unit (empty: a ratio).
	Limit   float64 `json:"limit"`
	AtLeast bool    `json:"at_least,omitempty"`
	Unit    string  `json:"unit,omitempty"`
	Got     *Spread `json:"got"` // nil: not measured
	// Also holds the same value in another unit.
	Also string `json:"also,omitempty"`
}

func (g *Goal) met() string {
	switch {
	case g.Got == nil:
		return "**not measured**"
	case g.AtLeast && g.Got.Median >= g.Limit, !g.AtLeast && g.Got.Median <= g.Limit:
		return "yes"
	}
	return "**no**"
}

// goals returns the goals in the document's order. The goal of a missing peer or load is
// in the table as not measured.
func (r *Report) goals() []Goal {
	start := func(other string) *Spread {
		return spread(r.whole("start", "carboy"), r.whole("start", other))
	}
	inside := func(load, other string) *Spread {
		return spread(r.inside(load, "carboy"), r.inside(load, other))
	}
	version := func(load string) string {
		s := spread(r.whole(load, "carboy"), r.whole("version", "native"))
		if s == nil {
			return ""
		}
		return s.String() + " × `carboy version`"
	}
	milliseconds := func(load string) *Spread {
		var ms []float64
		for _, d := range r.whole(load, "carboy") {
			if d > 0 {
				ms = append(ms, float64(d)/float64(time.Millisecond))
			}
		}
		return spreadOf(ms)
	}
	gs := []Goal{
		{What: "start ÷ `runsc do`", Limit: 0.8, Got: start("runsc")},
		{What: "start ÷ srt", Limit: 0.2, Got: start("srt")},
		{What: "`carboy exec -- true`", Limit: 25, Unit: "ms", Got: milliseconds("exec"), Also: version("exec")},
		{What: "`carboy run --pool 1 -- true`", Limit: 30, Unit: "ms", Got: milliseconds("pool"), Also: version("pool")},
	}
	for _, x := range []struct {
		load  string
		limit float64
	}{{"clone", 1}, {"untar", 1}, {"gobuild", 1.4}, {"gowarm", 2}, {"npm", 1.2}, {"gitstatus", 3}, {"gitfresh", 3}, {"true300", 5}} {
		i := slices.IndexFunc(loads, func(l load) bool { return l.name == x.load })
		gs = append(gs, Goal{What: loads[i].what + ", inside ÷ native", Limit: x.limit, Got: inside(x.load, "native")})
	}
	var speeds []float64
	for _, d := range r.inside("upload", "carboy") {
		if d > 0 {
			speeds = append(speeds, float64(r.Upload)/1e6/d.Seconds())
		}
	}
	var worst, drops *Spread
	var dropped uint64
	for _, t := range r.Traces {
		if t.All != nil && (worst == nil || t.All.Median > worst.Median) {
			worst = t.All
		}
		dropped += t.Dropped
		drops = spreadOf([]float64{float64(dropped)})
	}
	gs = append(gs,
		Goal{What: "download, bytes per second inside ÷ runsc with the host's network", Limit: 0.9, AtLeast: true,
			Got: spread(r.inside("download", "runsc"), r.inside("download", "carboy"))},
		Goal{What: "upload, inside", Limit: 100, AtLeast: true, Unit: "MB/s", Got: spreadOf(speeds)},
		Goal{What: "traced ÷ untraced, processor time with the reader's, of the worst load", Limit: 1.1, Got: worst},
		Goal{What: "facts dropped", Limit: 0, Got: drops},
	)
	idle := Goal{What: "memory of a bottle that waits (PSS)", Limit: 45, Unit: "MB"}
	for _, x := range r.Idle {
		if x.Peer == "carboy" {
			idle.Got = spreadOf([]float64{float64(x.PSS-x.Own) / 1e6})
			idle.Also = fmt.Sprintf("%.0f with the carboy that watches it", float64(x.PSS)/1e6)
		}
	}
	crowd := Goal{What: fmt.Sprintf("memory of %d bottles that wait (PSS)", crowdGoal), Limit: 4, Unit: "GiB"}
	if m := r.Many; m != nil {
		crowd.Got = spreadOf([]float64{float64(m.PSS) / float64(m.Bottles) * crowdGoal / (1 << 30)})
		if m.Bottles != crowdGoal {
			crowd.Also = fmt.Sprintf("as %d take; -idle %d measures it", m.Bottles, crowdGoal)
		}
	}
	return append(gs, idle, crowd)
}

// crowdGoal is the number of bottles that should wait at once.
const crowdGoal = 90

// whole and inside return one peer's rounds, with zeros where it failed.
func (r *Report) whole(load, peer string) []time.Duration {
	return durations(r.peer(load, peer).WholeNS)
}

func (r *Report) inside(load, peer string) []time.Duration {
	return durations(r.peer(load, peer).InsideNS)
}

func (r *Report) peer(load, peer string) PeerResult {
	for _, l := range r.Loads {
		for _, p := range l.Peers {
			if l.Load == load && p.Peer == peer {
				return p
			}
		}
	}
	return PeerResult{}
}

func durations(ns []int64) []time.Duration {
	out := make([]time.Duration, len(ns))
	for i, n := range ns {
		out[i] = time.Duration(n)
	}
	return out
}

func (r *Report) goalTable(w *strings.Builder) { goalRows(w, r.Goals) }

func goalRows(w *strings.Builder, goals []Goal) {
	fmt.Fprint(w, "\n**Goals.** The median of the rounds decides.\n\n| Goal | wanted | measured | met |\n| --- | --- | --- | --- |\n")
	for _, g := range goals {
		sign, unit := "≤", ""
		if g.AtLeast {
			sign = "≥"
		}
		if g.Unit != "" {
			unit = " " + g.Unit
		}
		got := "–"
		if g.Got != nil {
			got = g.Got.shown() + unit
		}
		if g.Also != "" {
			got += ", " + g.Also
		}
		fmt.Fprintf(w, "| %s | %s %v%s | %s | %s |\n", g.What, sign, g.Limit, unit, got, g.met())
	}
}

// shown formats values with their range, which it leaves out for a single value.
func (s *Spread) shown() string {
	f := func(x float64) string {
		if x >= 9.95 || x == 0 {
			return fmt.Sprintf("%.0f", x)
		}
		return fmt.Sprintf("%.2f", x)
	}
	if len(s.Rounds) < 2 {
		return f(s.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", f(s.Median), f(s.Min), f(s.Max))
}
