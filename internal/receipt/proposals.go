package receipt

import (
	"time"

	"github.com/carboy/carboy/internal/safetext"
)

// Bounds of the lists of Proposals, and of a summary's bytes.
const (
	MaxProposals = 300
	MaxSignals   = 20
	MaxSummary   = 4 << 10
)

// Proposals reports the questions to people during the run, and the agent's own
// reports about its work.
type Proposals struct {
	Total   int64      `json:"total"`
	List    []Proposal `json:"list"` // by when they were made; where there are more, what was allowed comes before the rest
	Signals []Signal   `json:"signals,omitempty"`
}

// Proposal is one question, with the answer. Its texts are visible.
type Proposal struct {
	ID      string    `json:"id"`
	Kind    string    `json:"kind"`
	Title   string    `json:"title"`
	Digest  string    `json:"digest"` // SHA-256 of what exactly was proposed
	Created time.Time `json:"created"`
	// Verdict is approved, modified, rejected, expired or withdrawn; empty: it could
	// not be asked.
	Verdict string     `json:"verdict,omitempty"`
	By      string     `json:"by,omitempty"`
	Note    string     `json:"note,omitempty"`
	At      *time.Time `json:"at,omitempty"`
	// Modified is the digest of the version that was approved instead.
	Modified string `json:"modified,omitempty"`
	// Effect is "done", or the reason why the approved change could not be made.
	Effect string `json:"effect,omitempty"`
}

// Signal is the agent's own report about its work. It is not verified.
type Signal struct {
	Status  string    `json:"status"` // done, failed, blocked
	Summary string    `json:"summary"`
	At      time.Time `json:"at"`
}

func (x *Proposal) allowed() bool { return x.Verdict == "approved" || x.Verdict == "modified" }

// word returns the outcome for people.
func (x *Proposal) word() string {
	if x.Verdict == "" {
		return "not asked"
	}
	return safetext.String(x.Verdict, 20)
}

// text describes the proposal in a line.
func (x *Proposal) text() string {
	s := safetext.String(x.Title, maxShown)
	if x.By != "" {
		s += ", by " + safetext.String(x.By, maxShown)
	}
	if x.Note != "" {
		s += ": " + safetext.String(x.Note, maxShown)
	}
	if x.Effect != "" && x.Effect != "done" {
		s += " (" + safetext.String(x.Effect, maxShown) + ")"
	}
	return s
}

// proposals prints the section on the terminal.
func (p *printer) proposals(x *Proposals) {
	if x == nil {
		return
	}
	if len(x.List) > 0 {
		p.section("Asked", "what people decided during the run")
		shown := p.list(len(x.List), func(i int) {
			c := green
			if !x.List[i].allowed() {
				c = red
			}
			p.item(c, x.List[i].word(), plain, x.List[i].text())
		})
		p.more(shown, x.Total, "")
	}
	if len(x.Signals) > 0 {
		p.section("Said", "the agent's own words about its work")
		shown := p.list(len(x.Signals), func(i int) {
			p.item(plain, safetext.String(x.Signals[i].Status, 12), plain, safetext.String(x.Signals[i].Summary, maxShown))
		})
		p.more(shown, int64(len(x.Signals)), "")
	}
}

// proposalTables returns the section's tables for the page.
func proposalTables(x *Proposals) []table {
	asked := table{Caption: "What people decided during the run", Head: []string{"Answer", "What", "By", "Note", "Effect"}}
	words := table{Caption: "The agent's own words about its work", Head: []string{"Status", "Summary"}}
	if x == nil {
		return nil
	}
	for i := range x.List {
		q, class := &x.List[i], "bad"
		if q.allowed() {
			class = ""
		}
		asked.Rows = append(asked.Rows, line{class, []cell{said(q.word()), insideCell(q.Title), said(q.By), insideCell(q.Note), insideCell(q.Effect)}})
	}
	for _, s := range x.Signals {
		words.Rows = append(words.Rows, line{"", []cell{insideCell(s.Status), insideCell(s.Summary)}})
	}
	return []table{asked, words}
}
