package main

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Schema names the JSON document.
const Schema = "carboy.dev/bench/v1"

// Report is the JSON document. Ratios are times: above 1 is slower.
type Report struct {
	Schema  string   `json:"schema"`
	Rounds  int      `json:"rounds"`
	Facts   facts    `json:"machine"`
	Skipped []string `json:"skipped"`
	Failed  []string `json:"failed"` // samples that are missing
	Loads   []Result `json:"loads"`
	// Upload is the number of bytes that the load of that name sends.
	Upload int64 `json:"upload_bytes"`
	// Start splits `carboy run -- true`; Idle holds the memory of living peers.
	Start []Phase `json:"start_phases,omitempty"`
	Idle  []Idle  `json:"idle,omitempty"`
	// Traces holds the results of pairs with and without a trace.
	Traces []Traced `json:"traces,omitempty"`
	// Manifests and Many hold measures that are no loads.
	Manifests *Manifests `json:"manifests,omitempty"`
	Many      *Crowd     `json:"many,omitempty"`
	Goals     []Goal     `json:"goals"`
}

// Result holds one line of the table.
type Result struct {
	Load  string       `json:"load"`
	What  string       `json:"what"`
	Peers []PeerResult `json:"peers"`
}

// PeerResult is one peer's part. Whole is the whole process, Inside the load
// alone by a clock in there; each to native, and to bare runsc.
type PeerResult struct {
	Peer          string  `json:"peer"`
	Whole         *Spread `json:"whole_to_native,omitempty"`
	Inside        *Spread `json:"inside_to_native,omitempty"`
	WholeToRunsc  *Spread `json:"whole_to_runsc,omitempty"`
	InsideToRunsc *Spread `json:"inside_to_runsc,omitempty"`
	WholeNS       []int64 `json:"whole_ns"` // one per round
	InsideNS      []int64 `json:"inside_ns,omitempty"`
}

// facts describes the machine.
type facts struct {
	Cores     int     `json:"cores"`
	MemoryGiB int     `json:"memory_gib"`
	Kernel    string  `json:"kernel"`
	Arch      string  `json:"arch"`
	FileSys   string  `json:"file_system"`
	Go        string  `json:"go"`
	GVisor    string  `json:"gvisor"`
	Root      bool    `json:"root"`
	Load      float64 `json:"load_per_core"` // at the start, before the first round
	// Busy is the load per core after each round: its own and what else there was.
	Busy []float64 `json:"load_per_core_after_rounds"`
	// Peers lists the measured peers with their versions.
	Peers []string `json:"peers"`
}

func readFacts(dir string) facts {
	f := facts{Cores: runtime.NumCPU(), Arch: runtime.GOARCH, Go: runtime.Version(), Root: os.Geteuid() == 0}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		f.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) == nil {
		f.MemoryGiB = int((uint64(si.Totalram)*uint64(si.Unit) + 1<<29) >> 30)
	}
	f.Load = loadPerCore()
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) == nil {
		f.FileSys = fileSystem(int64(fs.Type))
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "gvisor.dev/gvisor" {
				f.GVisor = m.Version
			}
		}
	}
	return f
}

// loadPerCore returns the kernel's load average of the last minute, per core.
func loadPerCore() float64 {
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) != nil {
		return 0
	}
	return float64(si.Loads[0]) / 65536 / float64(runtime.NumCPU())
}

func fileSystem(magic int64) string {
	switch magic {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlay"
	}
	return fmt.Sprintf("file system %#x", magic)
}

func (b *bench) report() *Report {
	r := &Report{Schema: Schema, Rounds: b.o.rounds, Facts: b.facts, Skipped: append([]string{}, b.skipped...), Failed: append([]string{}, b.failed...), Start: b.split, Idle: b.idles, Traces: b.traces, Upload: int64(b.o.megabytes/5) * 1_000_000}
	r.Manifests, r.Many = b.manifestReport(), b.crowd
	for _, p := range b.peers[1:] {
		r.Facts.Peers = append(r.Facts.Peers, strings.TrimSpace(p.name+" "+p.version))
	}
	for _, l := range b.loads {
		res := Result{Load: l.name, What: l.what}
		nw, ni := b.times(l.name, "native")
		rw, ri := b.times(l.name, "runsc")
		for _, p := range b.peers {
			w, i := b.times(l.name, p.name)
			if w == nil {
				continue
			}
			pr := PeerResult{Peer: p.name, WholeNS: nanoseconds(w), InsideNS: nanoseconds(i)}
			if p.name != "native" {
				pr.Whole, pr.Inside = spread(w, nw), spread(i, ni)
			}
			if p.name == "carboy" {
				pr.WholeToRunsc, pr.InsideToRunsc = spread(w, rw), spread(i, ri)
			}
			res.Peers = append(res.Peers, pr)
		}
		r.Loads = append(r.Loads, res)
	}
	r.Goals = r.goals()
	return r
}

// times returns a peer's rounds, zero where it failed. It returns nil if nothing was
// measured, such as inside for loads without a clock inside.
func (b *bench) times(load, peer string) (whole, inside []time.Duration) {
	var anyWhole, anyInside bool
	for _, s := range b.samples[key{load, peer}] {
		whole, inside = append(whole, s.whole), append(inside, s.inside)
		anyWhole, anyInside = anyWhole || s.whole > 0, anyInside || s.inside > 0
	}
	if !anyWhole {
		whole = nil
	}
	if !anyInside {
		inside = nil
	}
	return whole, inside
}

func nanoseconds(ds []time.Duration) []int64 {
	var out []int64
	for _, d := range ds {
		out = append(out, d.Nanoseconds())
	}
	return out
}

// markdown returns the table of docs/benchmarks.md. It has only ratios: absolute times of
// another machine tell a reader nothing.
func (r *Report) markdown() string {
	var w strings.Builder
	f := r.Facts
	who := "root (loads as an ordinary user)"
	if !f.Root {
		who = "an ordinary user"
	}
	fmt.Fprintf(&w, "%d rounds by %s; %d cores, %d GiB, %s, Linux %s, %s, %s, gVisor %s. Beside native: %s. Load per core %.1f at the start, %s after each round.\n",
		r.Rounds, who, f.Cores, f.MemoryGiB, f.Arch, f.Kernel, f.FileSys, f.Go, f.GVisor, strings.Join(f.Peers, ", "), f.Load, figures(f.Busy))
	for _, s := range r.Skipped {
		fmt.Fprintf(&w, "\n**Skipped:** %s\n", s)
	}
	if n := len(r.Failed); n > 0 {
		fmt.Fprintf(&w, "\n**Failed:** %d samples are missing; the first: %s\n", n, r.Failed[0])
	}
	r.goalTable(&w)
	fmt.Fprint(&w, "\n**Starting**: the whole process, from its start to its end, as a multiple of native (medians; `-json` has every round).\n\n")
	r.table(&w, bareLoad, func(p *PeerResult) map[string]*Spread {
		return map[string]*Spread{p.Peer: p.Whole, "carboy ÷ runsc": p.WholeToRunsc}
	})
	fmt.Fprint(&w, "\n**Work**, the command alone by a clock inside, as a multiple of native. *Whole*: with start, end and taking out the changes.\n\n")
	r.table(&w, func(load string) bool { return !bareLoad(load) }, func(p *PeerResult) map[string]*Spread {
		cells := map[string]*Spread{p.Peer: p.Inside, "carboy ÷ runsc": p.InsideToRunsc}
		if p.Peer == "carboy" {
			cells["carboy, whole"], cells["whole ÷ runsc"] = p.Whole, p.WholeToRunsc
		}
		return cells
	})
	if len(r.Traces) > 0 {
		fmt.Fprint(&w, "\n**The trace**: the same load in bottles with and without one, in pairs; with ÷ without.\n\n| | time | processor time | and the reader's | facts | dropped |\n| --- | --- | --- | --- | --- | --- |\n")
		for _, t := range r.Traces {
			fmt.Fprintf(&w, "| %s | %s | %s | %s | %d | %d |\n", t.What, t.Time.fine(), t.Bottle.fine(), t.All.fine(), t.Facts, t.Dropped)
		}
	}
	if len(r.Start) > 0 {
		fmt.Fprintf(&w, "\n**The start, split**: how much of `carboy run -- true` had gone when this was reached (median; only steps of 2 %% and more): %s.\n", split(r.Start))
	}
	if len(r.Idle) > 0 {
		fmt.Fprint(&w, "\n**Memory of one that waits** (PSS of all its processes, what they share counted once):")
		for i, x := range r.Idle {
			fmt.Fprintf(&w, "%s %s %d MiB in %d processes", []string{"", ";"}[min(i, 1)], x.Peer, x.PSS>>20, x.Processes)
			if x.Own > 0 {
				fmt.Fprintf(&w, " (without the one that watches it %d MiB)", (x.PSS-x.Own)>>20)
			}
		}
		fmt.Fprint(&w, ".\n")
	}
	if r.Many != nil {
		fmt.Fprintf(&w, "\n%s\n", r.Many)
	}
	if m := r.Manifests; m != nil {
		fmt.Fprintf(&w, "\n**Manifests**: an agent in %d bottles, and what is done with their files, as a multiple of reading them and parsing their YAML alone; and `carboy start` of an agent in one bottle, as a multiple of `carboy run` of the same.\n\n", manyManifests)
		fmt.Fprintf(&w, "| explain ÷ parse | preflight ÷ parse | start ÷ run |\n| --- | --- | --- |\n| %s | %s | %s |\n", m.Explain.fine(), m.Preflight.fine(), m.Start.fine())
		fmt.Fprintf(&w, "\n**Freezing**: an agent that is a shell, until its first word; all as a multiple of `carboy start`. What is kept of it has %d KiB.\n\n", m.Image>>10)
		fmt.Fprintf(&w, "| freeze ÷ start | resume ÷ start |\n| --- | --- |\n| %s | %s |\n", m.Freeze.fine(), m.Resume.fine())
	}
	return w.String()
}

func bareLoad(name string) bool {
	return slices.ContainsFunc(loads, func(l load) bool { return l.name == name && l.bare })
}

// split lists the steps of a start that took at least 2 % of it, and the last.
func split(ps []Phase) string {
	var out []string
	last := 0.0
	for i, p := range ps {
		if p.Share-last >= 0.02 || i == len(ps)-1 {
			out = append(out, fmt.Sprintf("%s %.0f %%", p.Reached, 100*p.Share))
		}
		last = p.Share
	}
	return strings.Join(out, ", ")
}

// table writes the columns that have values. The absent peers are listed above it.
func (r *Report) table(w *strings.Builder, which func(load string) bool, ofPeer func(*PeerResult) map[string]*Spread) {
	columns := append(slices.Clone(peerNames[1:]), "carboy ÷ runsc", "carboy, whole", "whole ÷ runsc")
	used := make([]bool, len(columns))
	type row struct {
		what  string
		cells []string
	}
	var rows []row
	for _, l := range r.Loads {
		if !which(l.Load) {
			continue
		}
		cells, any := make([]string, len(columns)), false
		for _, p := range l.Peers {
			for name, s := range ofPeer(&p) {
				if i := slices.Index(columns, name); i >= 0 && s != nil {
					cells[i], used[i], any = figure(s.Median), true, true
				}
			}
		}
		if any {
			rows = append(rows, row{l.What, cells})
		}
	}
	line := func(first string, cells []string, empty string) {
		fmt.Fprintf(w, "| %s", first)
		for i, c := range cells {
			if used[i] {
				fmt.Fprintf(w, " | %s", cmp.Or(c, empty))
			}
		}
		fmt.Fprint(w, " |\n")
	}
	if len(rows) == 0 {
		fmt.Fprint(w, "Not measured.\n")
		return
	}
	line("", columns, "")
	line("---", make([]string, len(columns)), "---")
	for _, x := range rows {
		line(x.what, x.cells, "–")
	}
}

// String formats a ratio for the table.
func (s *Spread) String() string {
	return fmt.Sprintf("%s (%s–%s)", figure(s.Median), figure(s.Min), figure(s.Max))
}

// fine formats ratios near 1, which were measured in pairs.
func (s *Spread) fine() string {
	if s == nil {
		return "–"
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", s.Median, s.Min, s.Max)
}

func figures(xs []float64) string {
	var out []string
	for _, x := range xs {
		out = append(out, fmt.Sprintf("%.1f", x))
	}
	return cmp.Or(strings.Join(out, ", "), "not known")
}

// figure formats two significant digits: a noisy ratio has no more.
func figure(x float64) string {
	switch {
	case x >= 9.95:
		return fmt.Sprintf("%.0f", x)
	case x >= 0.095:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}
