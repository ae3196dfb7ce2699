package orchestrate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/issues"
)

// A trigger says whether an issue's labels and assignees begin it.
type trigger struct {
	ours    bool // a label has one of our prefixes
	agent   string
	bottles []string
	why     string // it is not begun; empty: it is
}

// triggerOf reads the trigger of an issue, but for its assignees' membership.
func triggerOf(i *forge.Issue, prefixes []string) trigger {
	var t trigger
	var agents []string
	for _, l := range i.Labels {
		for _, p := range prefixes {
			if bottle, ok := strings.CutPrefix(l, strings.TrimSuffix(p, ":")+"-bottle:"); ok && bottle != "" {
				t.bottles = append(t.bottles, bottle)
			} else if agent, ok := strings.CutPrefix(l, p); ok && agent != "" && !slices.Contains(agents, agent) {
				agents = append(agents, agent)
			}
		}
	}
	t.ours = len(agents) > 0
	switch {
	case !i.Open:
		t.why = "the issue is closed"
	case len(agents) == 0:
		t.why = "no label names an agent"
	case len(agents) > 1:
		t.why = fmt.Sprintf("%d labels name agents: leave one of them", len(agents))
	case len(i.Assignees) == 0:
		t.why = "nobody is assigned"
	}
	if len(agents) == 1 {
		t.agent = agents[0]
	}
	return t
}

// A post is something that somebody wrote: a comment, a review, or a comment on a line.
type post struct {
	ID     string       `json:"id"` // comment-17, review-3, line-9
	Thread forge.Thread `json:"thread"`
	By     string       `json:"by"`
	At     time.Time    `json:"at"`
	Text   string       `json:"text"`
	Cut    int          `json:"cut,omitempty"` // bytes that are left out of Text
	// Of a review, and of a comment on a line.
	Changes bool   `json:"changes_requested,omitempty"`
	Path    string `json:"path,omitempty"`
	Line    int    `json:"line,omitempty"`
	Old     bool   `json:"old,omitempty"` // Line counts in the file before the change

	bot bool // as far as the forge says
	may bool // its author may prompt
}

// heard is a post, or a reason of carboy's own for a turn, as it is kept.
type heard struct {
	post
	// Prompt is set if it goes to the agent.
	Prompt bool `json:"prompt"`
	// Turn is the turn that it went to. 0: none yet; -1: none ever.
	Turn int `json:"turn"`
	// Alone is set if no person wrote it.
	Alone bool `json:"alone,omitempty"`
}

// seen holds what a look found out, for decide.
type seen struct {
	trigger trigger            // its why is complete
	pull    *forge.PullRequest // of the record; nil: none
	posts   []post             // that were not heard before
	// conflict reports that the branch does not merge into its base.
	conflict bool
	// partial is set if there are more posts than were read.
	partial bool
}

// A verb is something that a look does.
type verb string

const (
	doBegin  verb = "begin"  // make a record, and start the workflow
	doWait   verb = "wait"   // say why it is not begun
	doForget verb = "forget" // say nothing about it any more
	doHear   verb = "hear"   // keep a post as a prompt
	doPass   verb = "pass"   // keep a post so that it is not judged again
	doEnd    verb = "end"    // the pull request has ended
	doDrop   verb = "drop"   // prompts that wait go nowhere
	doAnew   verb = "anew"   // begin again after the end
	doWake   verb = "wake"   // see that the workflow runs and looks at the table
)

// An action is a verb with what it is about.
type action struct {
	do   verb
	why  string // of wait, end, pass
	post heard  // of hear, pass
}

// stranger marks a post whose author may not prompt.
const stranger = "stranger"

// maxAlone bounds the turns in a row that no person asked for.
const maxAlone = 3

// decide returns what follows from what is known of an issue and what was read. rec is nil if
// it was not begun; pending counts the prompts that wait for a turn.
func decide(rec *issues.Record, pending int, s seen) []action {
	if rec == nil {
		switch {
		case !s.trigger.ours:
			return []action{{do: doForget}}
		case s.trigger.why != "":
			return []action{{do: doWait, why: s.trigger.why}}
		case s.partial:
			return passed(s.posts)
		}
		out := passed(s.posts) // the agent can read what was there before
		return append(out, action{do: doBegin}, action{do: doWake})
	}
	if s.partial {
		s.pull = nil // what was read with its end has to be known whole
	}
	live := rec.Status != issues.Destroyed
	switch {
	case live && rec.Life.Ending == "" && s.pull != nil && !s.pull.Open:
		// A comment that is found together with the end belongs to it.
		out := append(passed(s.posts), action{do: doDrop})
		why := "closed"
		if s.pull.Merged {
			why = "merged"
		}
		return append(out, action{do: doEnd, why: why}, action{do: doWake})
	case !live && s.trigger.why != "":
		out := passed(s.posts)
		if pending > 0 {
			out = append(out, action{do: doDrop})
		}
		return out
	}
	out := judged(s.posts)
	prompts := pending
	for _, a := range out {
		if a.do == doHear {
			prompts++
		}
	}
	switch {
	case !live && prompts > 0:
		out = append(out, action{do: doAnew}, action{do: doWake})
	case !live:
	case s.conflict && prompts == 0 && rec.Status == issues.Frozen && rec.Life.Ending == "" && rec.Life.Alone < maxAlone && s.pull != nil:
		p := post{ID: "conflict-" + s.pull.HeadCommit, Thread: forge.Thread{Number: s.pull.Number, Pull: true}}
		out = append(out, action{do: doHear, post: heard{post: p, Prompt: true, Alone: true}}, action{do: doWake})
	case prompts > 0 || rec.Status == issues.Running || rec.Life.Ending != "":
		out = append(out, action{do: doWake})
	}
	return out
}

// passed keeps posts without giving them to anybody.
func passed(posts []post) (out []action) {
	for _, p := range posts {
		out = append(out, action{do: doPass, post: heard{post: p.bare(), Turn: -1}})
	}
	return out
}

// judged makes prompts of the posts of those who may write one.
func judged(posts []post) (out []action) {
	for _, p := range posts {
		if p.may {
			out = append(out, action{do: doHear, post: heard{post: p, Prompt: true}})
			continue
		}
		out = append(out, action{do: doPass, why: stranger, post: heard{post: p.bare(), Turn: -1}})
	}
	return out
}

// bare returns the post without its text, which is not needed.
func (p post) bare() post { return post{ID: p.ID, Thread: p.Thread, By: p.By, At: p.At} }
