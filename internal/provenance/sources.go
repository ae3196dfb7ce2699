package provenance

import (
	"fmt"

	"github.com/carboy/carboy/internal/forgeservice"
)

// Sources says in sentences where a record's facts come from, and what nobody observed.
type Sources struct {
	Observed []string `json:"observed"` // by carboy itself
	Told     []string `json:"told_by_the_forge"`
	Claimed  []string `json:"claimed_by_agent_or_model"`
	Not      []string `json:"not_observed"`
}

// maxSentences bounds each list of Sources, and maxSentence a sentence in bytes.
const (
	maxSentences = 30
	maxSentence  = 500
)

// sources returns the sentences for f.
func (f *Facts) sources() Sources {
	return Sources{Observed: f.observed(), Told: f.told(), Claimed: f.claimed(), Not: f.notObserved()}
}

func (f *Facts) observed() (s []string) {
	add := func(format string, a ...any) { s = append(s, fmt.Sprintf(format, a...)) }
	runs, _, verdicts := f.counts()
	if runs > 0 {
		add("runs of bottles: %d, each with its exit code and the digest of its receipt", runs)
		add("what their traffic was, what of it was refused, and what the scan for secrets and injections found, in what the gateway could read")
	}
	if verdicts > 0 {
		add("verdicts of gates: %d, by name and digest", verdicts)
	}
	refused := 0
	for _, o := range f.Operations {
		if o.Outcome == forgeservice.Refused {
			refused++
		}
	}
	add("records of what the agent asked of the forge: %d, of which %d were refused", len(f.Operations), refused)
	if c := f.pushed(); c != "" {
		add("what carboy pushed to the branch: last commit %s", c)
	}
	if f.Tree != "" {
		add("the tree of commit %s, read from the commit itself", f.Commit)
	}
	if f.Watchdog {
		add("that the watchdog stopped a silent agent")
	} else {
		add("that the watchdog did not have to stop the agent")
	}
	return s
}

func (f *Facts) told() (s []string) {
	s = append(s, fmt.Sprintf("that pull request #%d was merged into its base as commit %s, and when", f.Pull, f.Commit))
	if f.Head != "" {
		s = append(s, fmt.Sprintf("that its branch was at commit %s then", f.Head))
	}
	return append(s, fmt.Sprintf("reviews: %d, each with its author, state, commit and time", len(f.Reviews)))
}

func (f *Facts) claimed() (s []string) {
	var tokens int64
	for _, t := range f.Turns {
		tokens += t.Tokens
	}
	return append(s,
		fmt.Sprintf("tokens used: %d, by the models' answers", tokens),
		"what the agent wrote in its commits and at the forge")
}

func (f *Facts) notObserved() (s []string) {
	add := func(format string, a ...any) { s = append(s, fmt.Sprintf(format, a...)) }
	add("the merge: who or what made it, and how commit %s came from the branch and its base; no gate judged that commit", f.Commit)
	switch pushed := f.pushed(); {
	case pushed == "":
		add("how the branch came to be as it was merged: carboy pushed nothing to it")
	case f.Head == "":
		add("whether others pushed to the branch after carboy: the forge did not tell its last commit")
	case f.Head != pushed:
		add("what others pushed to the branch: it was merged at %s, and carboy had pushed %s; no gate of carboy judged the difference", f.Head, pushed)
	default:
		add("whether others pushed to the branch and took it back before the merge")
	}
	add("the people behind the forge's accounts, and why they reviewed as they did")
	add("the forge's own checks and settings at the time of the merge")
	add("what the model's servers did")
	if f.Tree == "" {
		add("the content of the merge commit: carboy did not read it")
	}
	if _, without, _ := f.counts(); without > 0 {
		add("what was in runs without a receipt: %d", without)
	}
	if l := f.LeftOut; l != (LeftOut{}) {
		add("left out of this record for want of room: %d turns, %d runs, %d operations, %d reviews, %d bottles", l.Turns, l.Runs, l.Operations, l.Reviews, l.Bottles)
	}
	return s
}

// counts returns the numbers of runs, of those without a receipt, and of verdicts.
func (f *Facts) counts() (runs, without, verdicts int) {
	for _, t := range f.Turns {
		for _, r := range t.Runs {
			runs++
			if r.ReceiptSHA256 == "" {
				without++
			}
		}
		if t.Verdict != "" {
			verdicts++
		}
	}
	return runs, without, verdicts
}

// pushed returns the commit that carboy pushed last, or "".
func (f *Facts) pushed() (commit string) {
	for _, t := range f.Turns {
		if t.Commit != "" {
			commit = t.Commit
		}
	}
	return commit
}
