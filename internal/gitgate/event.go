package gitgate

import (
	"slices"
	"strings"
	"time"
)

// Verdict is the end of an exchange. The zero Verdict is invalid.
type Verdict string

const (
	Done    Verdict = "done"    // upstream did the request
	Refused Verdict = "refused" // the gate refused it; upstream has not seen it
	Failed  Verdict = "failed"  // upstream refused it, or something failed on the way
)

// Event describes an exchange that is over. Its text is visible and holds no secret: a
// finding names its kind, not its value.
type Event struct {
	Start    time.Time
	Duration time.Duration
	Repo     string
	Op       string // "list" (of references), "fetch" or "push"
	Verdict  Verdict
	Reason   string // why it was refused or failed
	In, Out  int64  // bytes from the bottle, and to it

	// The fields below are set for a push.
	Refs     []RefUpdate
	Commits  []string // ids of the new ones, the first 1,000
	New      int      // number of new commits
	Objects  int
	Scanned  int64         // bytes of objects that were read
	Reading  time.Duration // time spent reading, including the wait for data
	Options  []string
	Findings []Finding
}

// RefUpdate is one reference that a push changes. An Old of zeros creates the reference,
// and a New of zeros deletes it.
type RefUpdate struct {
	Name, Old, New string
	Result         string // "ok", or why not; "" while unknown
}

// Finding is a secret found in a push, and its place.
type Finding struct {
	Rule      string
	Secret    string // the name of a known secret
	Transform string // how it was written, as in package scan
	Object    string
	Commit    string // a commit that has it, or ""
	Where     string // "file", "note", "commit", "tag", "name", "submodule", "object", "reference", "id", "option"
	File      string // visible
	Line      int    // from 1; 0 if it has none
	Allow     string // if a person was asked: "approved by" and who did, or why not
}

func joined(s []string) string {
	s = slices.Clone(s)
	slices.Sort(s)
	if len(s) > 20 {
		s = append(s[:20], "…")
	}
	return strings.Join(s, ", ")
}
