package scenario

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// Schemas of the JSON documents. Within version 1 fields are only added.
const (
	schema          = "carboy.dev/gate-trace/v1"
	schemaCodegenie = "carboy.dev/codegenie-trace/v1"
)

// Level rates how completely the slices cover what the program does. The zero Level
// is none.
type Level string

// The levels.
const (
	unavailable Level = "unavailable" // there is no trace
	Low         Level = "low"         // of the start alone, or of nothing that completed
	Medium      Level = "medium"      // one to four scenarios completed
	high        Level = "high"        // five or more
)

var levels = []Level{unavailable, Low, Medium, high}

// enough is the number of completed scenarios for a high coverage.
const enough = 5

// Coverage describes the data behind the slices, and its gaps.
type Coverage struct {
	Level Level `json:"level"`
	// Lowered says why the level is lower than that of the completed scenarios.
	Lowered   []string `json:"lowered"`
	Scenarios int      `json:"scenarios"`
	Completed int      `json:"completed"`
	Failed    int      `json:"failed"`
	TimedOut  int      `json:"timed_out"`
	Skipped   int      `json:"skipped"`
	Facts     uint64   `json:"facts"`
	Dropped   uint64   `json:"dropped"`
	Unkept    uint64   `json:"unkept"`
	// Cut counts the observations that did not fit into the slices.
	Cut int64 `json:"cut"`
}

// coverageOf returns the coverage of results. start says that there were no scenarios, so
// only the start of an image was traced.
func coverageOf(results []Result, seen *Slices, start bool) Coverage {
	c := Coverage{Lowered: []string{}, Scenarios: len(results), Cut: seen.cut()}
	traced, whole := 0, true
	for i := range results {
		r := &results[i]
		switch r.Outcome {
		case Completed:
			c.Completed++
		case timedOut:
			c.TimedOut++
		case Skipped:
			c.Skipped++
		default:
			c.Failed++
		}
		c.Facts, c.Dropped, c.Unkept = c.Facts+r.Facts, c.Dropped+r.Dropped, c.Unkept+r.Unkept
		if r.traced {
			traced++
		}
		// What never began has no facts; what counts as done must have all.
		if r.traced || r.Outcome == Completed || r.Outcome == timedOut {
			whole = whole && r.whole()
		}
	}
	at := 0
	switch {
	case traced == 0:
	case start, c.Completed == 0:
		at = 1
	case c.Completed < enough:
		at = 2
	default:
		at = 3
	}
	lower := func(why string) {
		c.Lowered = append(c.Lowered, why)
		at = max(0, at-1)
	}
	if !whole && traced > 0 {
		lower("facts of a trace are missing")
	}
	if c.Cut > 0 {
		lower("more was observed than the slices hold")
	}
	c.Level = levels[at]
	return c
}

// Target identifies the root file system that was traced.
type Target struct {
	// Kind is host (this machine's tools), directory, image or dockerfile.
	Kind string    `json:"kind"`
	Ref  store.Raw `json:"ref,omitempty"`
	// Built is the digest of the image that was built, or that the caller expects;
	// Traced is that of the image in which all scenarios ran. Empty: there is none.
	Built  string `json:"image_digest_built,omitempty"`
	Traced string `json:"image_digest_traced,omitempty"`
	// Match is nil if one of them is not known.
	Match *bool `json:"image_digest_match,omitempty"`
}

// note sets the traced root file system from the sandboxes' own records.
func (t *Target) note(results []Result) {
	var digests []string
	for i := range results {
		if d := results[i].ImageDigest; d != "" && !slices.Contains(digests, d) {
			digests = append(digests, d)
		}
	}
	if len(digests) == 1 {
		t.Traced = digests[0]
	}
	if t.Built != "" && len(digests) > 0 {
		same := len(digests) == 1 && digests[0] == t.Built
		t.Match = &same
	}
}

// Report holds the result of tracing scenarios.
type Report struct {
	Schema    string        `json:"schema"`
	Build     string        `json:"build"` // of carboy
	Started   time.Time     `json:"started"`
	Took      time.Duration `json:"duration_ns"`
	Isolation string        `json:"isolation"` // what held the sandboxes; empty: there was none
	Target    Target        `json:"target"`
	Coverage  Coverage      `json:"coverage"`
	Scenarios []Result      `json:"scenarios"`
	Slices    *Lists        `json:"slices"`
}

// Fill completes a report from the results of Run.
func (r *Report) Fill(results []Result, seen *Slices, start bool) {
	r.Schema = schema
	r.Scenarios, r.Slices = results, seen.lists()
	r.Coverage = coverageOf(results, seen, start)
	r.Target.note(results)
	for i := range results {
		if x := results[i].isolation; x != "" {
			r.Isolation = x
		}
	}
}

// OK reports whether nothing failed: no scenario failed, there is a trace, and the traced
// image is the built one, if both are known. A skipped scenario is no failure, but lowers
// the coverage.
func (r *Report) OK() bool {
	return r.Coverage.Failed == 0 && r.Coverage.TimedOut == 0 && r.Coverage.Level != unavailable && (r.Target.Match == nil || *r.Target.Match)
}

// Codegenie holds a report with the slices at the top, under codegenie's names.
type Codegenie struct {
	Schema    string   `json:"schema"`
	Tracer    string   `json:"tracer"` // carboy and its build
	Isolation string   `json:"isolation"`
	Traced    string   `json:"image_digest_traced"`
	Built     string   `json:"image_digest_built"`
	Match     *bool    `json:"image_digest_match,omitempty"`
	Coverage  Level    `json:"trace_coverage_confidence"`
	Dropped   uint64   `json:"events_dropped"`
	Scenarios []Result `json:"scenarios"`
	*Lists
}

// Codegenie returns the report in codegenie's form.
func (r *Report) Codegenie() *Codegenie {
	return &Codegenie{
		Schema: schemaCodegenie, Tracer: "carboy " + r.Build, Isolation: r.Isolation, Traced: r.Target.Traced, Built: r.Target.Built, Match: r.Target.Match,
		Coverage: r.Coverage.Level, Dropped: r.Coverage.Dropped + r.Coverage.Unkept, Scenarios: r.Scenarios, Lists: r.Slices,
	}
}

// maxShown bounds the entries of each slice in the text for people; JSON has all.
const maxShown = 30

// Text writes the report for people; with all, with every entry of every slice.
func (r *Report) Text(w io.Writer, all bool) error {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	if r.Target.Kind != "host" {
		line("%s %s", r.Target.Kind, safetext.String(string(r.Target.Ref), 300))
	}
	if r.Target.Traced != "" {
		line("image traced  %s", safetext.String(r.Target.Traced, 100))
	}
	if r.Target.Built != "" {
		same := ""
		if r.Target.Match != nil && !*r.Target.Match {
			same = "  NOT what was traced"
		}
		line("image built   %s%s", safetext.String(r.Target.Built, 100), same)
	}
	for i := range r.Scenarios {
		x := &r.Scenarios[i]
		text := strings.ReplaceAll(string(x.Outcome), "_", " ")
		if x.Detail != "" {
			text += ": " + x.Detail
		} else if x.Reason != "" {
			text += ": " + string(x.Reason)
		}
		line("%-24s %8s  %s", x.Name, x.Elapsed.Round(time.Millisecond), text)
	}
	c := &r.Coverage
	line("coverage      %s (%d of %d completed; %d facts, %d missing)", c.Level, c.Completed, c.Scenarios, c.Facts, c.Dropped+c.Unkept)
	for _, why := range c.Lowered {
		line("              lowered: %s", why)
	}
	path := func(p store.Raw) string { return safetext.Path([]byte(p)) }
	s := r.Slices
	section(&b, all, "binaries executed", s.Binaries, func(x Binary) string {
		out := path(x.Path)
		if x.Digest != "" {
			out += "  " + x.Digest[:min(16, len(x.Digest))]
		}
		var marks []string
		if x.Nameless {
			marks = append(marks, "without a file")
		}
		if x.SameAs != "" {
			marks = append(marks, "is "+path(x.SameAs))
		}
		if x.Mutable {
			marks = append(marks, "mutable")
		}
		if x.UID != x.EUID {
			marks = append(marks, fmt.Sprintf("uid %d, euid %d", x.UID, x.EUID))
		}
		if len(marks) > 0 {
			out += "  [" + strings.Join(marks, ", ") + "]"
		}
		return out
	})
	section(&b, all, "binaries refused", s.Refused, func(x Refusal) string { return path(x.Path) + "  " + x.Errno })
	section(&b, all, "shared libraries loaded", s.Libraries, func(x Library) string { return path(x.Path) })
	section(&b, all, "certificates read", s.Certs, func(x Cert) string { return strings.TrimSpace(path(x.Path) + "  " + x.Errno) })
	section(&b, all, "files read", s.Files, func(x File) string { return path(x.Path) })
	section(&b, all, "shells", s.Shells, func(x ShellRun) string {
		words := make([]string, len(x.Args))
		for i, a := range x.Args {
			words[i] = string(a)
		}
		return path(x.Path) + ": " + safetext.String(strings.Join(words, " "), 200)
	})
	section(&b, all, "network endpoints touched", s.Endpoints, func(x Touched) string {
		return strings.TrimSpace(fmt.Sprintf("%s %s %s  %s%s", x.What, x.Family, safetext.String(string(x.Address), 300), x.Errno, x.Verdict))
	})
	section(&b, all, "privileges attempted", s.Privileges, func(x Privilege) string {
		return strings.TrimSpace(x.What + " " + safetext.String(string(x.Detail), 300) + "  " + x.Errno)
	})
	_, err := io.WriteString(w, b.String())
	return err
}

func section[T any](b *strings.Builder, all bool, title string, entries []T, show func(T) string) {
	if len(entries) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s (%d)\n", title, len(entries))
	n := len(entries)
	if !all {
		n = min(n, maxShown)
	}
	for _, x := range entries[:n] {
		fmt.Fprintf(b, "  %s\n", show(x))
	}
	if n < len(entries) {
		fmt.Fprintf(b, "  and %d more: --all or --format json\n", len(entries)-n)
	}
}
