package gitgate

import (
	"slices"
	"strings"
	"time"
)

// Verdict is how an exchange ended. The zero Verdict is none.
type Verdict string

const (
	Done    Verdict = "done"    // upstream did what was asked
	Refused Verdict = "refused" // by the gate; upstream has not seen it
	Failed  Verdict = "failed"  // by upstream, or on the way
)

// An Event tells of one exchange that is over. Its text is visible and holds no
// secret: of a finding it says what was found, not the value.
type Event struct {
	Start    time.Time
	Duration time.Duration
	Repo     string
	Op       string // "list" (of references), "fetch" or "push"
	Verdict  Verdict
	Reason   string // why it was refused or failed
	In, Out  int64  // bytes from the bottle, and to it

	// Of a push:
	Refs     []RefUpdate
	Commits  []string // that are new, by their names, the first 1,000
	New      int      // commits in all
	Objects  int
	Scanned  int64         // bytes of objects that were read
	Reading  time.Duration // how long that took, the wait for what was on its way included
	Options  []string
	Findings []Finding
}

// RefUpdate is one reference that a push changes. An Old or New of zeros is none: the
// reference is made or deleted.
type RefUpdate struct {
	Name, Old, New string
	Result         string // "ok", or why not; "" while nobody has said
}

// A Finding is what was found in a push, and where.
type Finding struct {
	Rule      string
	Secret    string // the name of a known secret
	Transform string // how it was written, as in package scan
	Object    string
	Commit    string // one in which it is; "" where it is in none
	Where     string // "file", "commit", "tag", "tree", "note", "reference", "option"
	File      string // visible
	Line      int    // from 1; 0 where it has none
	Allow     string // "approved by", and who did; or why not, where a person was asked
}

func joined(s []string) string {
	s = slices.Clone(s)
	slices.Sort(s)
	if len(s) > 20 {
		s = append(s[:20], "…")
	}
	return strings.Join(s, ", ")
}
