package orchestrate

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/issues"
)

func TestF3Trigger(t *testing.T) {
	for _, c := range []struct {
		labels, assigned string
		closed           bool
		ours             bool
		agent, bottles   string
		why              string
	}{
		{labels: "carboy:coder", assigned: "ada", ours: true, agent: "coder"},
		{labels: "bot-bottle:coder", assigned: "ada", ours: true, agent: "coder"},
		{labels: "bug carboy:coder bot-bottle:coder", assigned: "ada", ours: true, agent: "coder"},
		{labels: "carboy:coder carboy-bottle:b bot-bottle-bottle:a", assigned: "ada bob", ours: true, agent: "coder", bottles: "b a"},
		{labels: "carboy:a carboy:b", assigned: "ada", ours: true, why: "2 labels name agents"},
		{labels: "carboy:a", ours: true, agent: "a", why: "nobody is assigned"},
		{labels: "carboy:a", assigned: "ada", closed: true, ours: true, agent: "a", why: "closed"},
		{labels: "carboy: carboy-bottle: Carboy:a xcarboy:a carboy", assigned: "ada", why: "no label"},
		{assigned: "ada", why: "no label"},
	} {
		got := triggerOf(&forge.Issue{Open: !c.closed, Labels: strings.Fields(c.labels), Assignees: strings.Fields(c.assigned)}, DefaultLabels())
		if got.ours != c.ours || got.agent != c.agent || strings.Join(got.bottles, " ") != c.bottles || !strings.Contains(got.why, c.why) || (got.why == "") != (c.why == "") {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

func TestDecide(t *testing.T) {
	record := func(status issues.Status, change func(*issues.Record)) *issues.Record {
		r := &issues.Record{Key: issues.Key{Owner: "o", Repo: "r", Number: 1}, Status: status, PullRequest: 2}
		if change != nil {
			change(r)
		}
		return r
	}
	good := trigger{ours: true, agent: "a"}
	gone := trigger{why: "no label names an agent"}
	mine := post{ID: "comment-1", By: "ada", Text: "x", may: true}
	theirs := post{ID: "comment-2", By: "eve", Text: "x"}
	open := &forge.PullRequest{Number: 2, Open: true, HeadCommit: "abc"}
	closed := &forge.PullRequest{Number: 2}
	merged := &forge.PullRequest{Number: 2, Merged: true}
	for name, c := range map[string]struct {
		rec     *issues.Record
		pending int
		seen    seen
		want    string
	}{
		"not ours":                      {nil, 0, seen{trigger: gone}, "forget"},
		"ours, and waits":               {nil, 0, seen{trigger: trigger{ours: true, why: "nobody"}}, "wait nobody"},
		"ours":                          {nil, 0, seen{trigger: good}, "begin, wake"},
		"ours, with many words":         {nil, 0, seen{trigger: good, posts: []post{mine}, partial: true}, "pass comment-1"},
		"closed, with many words":       {record(issues.Frozen, nil), 0, seen{trigger: good, pull: closed, posts: []post{mine}, partial: true}, "hear comment-1, wake"},
		"ours, with words from before":  {nil, 0, seen{trigger: good, posts: []post{mine}}, "pass comment-1, begin, wake"},
		"it runs":                       {record(issues.Running, nil), 0, seen{trigger: good}, "wake"},
		"a comment while it runs":       {record(issues.Running, nil), 0, seen{trigger: good, posts: []post{mine, theirs}}, "hear comment-1, pass comment-2 stranger, wake"},
		"a comment":                     {record(issues.Frozen, nil), 0, seen{trigger: good, pull: open, posts: []post{mine}}, "hear comment-1, wake"},
		"a comment without a label":     {record(issues.Frozen, nil), 0, seen{trigger: gone, pull: open, posts: []post{mine}}, "hear comment-1, wake"},
		"a stranger":                    {record(issues.Frozen, nil), 0, seen{trigger: good, pull: open, posts: []post{theirs}}, "pass comment-2 stranger"},
		"nothing":                       {record(issues.Frozen, nil), 0, seen{trigger: good, pull: open}, ""},
		"the issue is closed":           {record(issues.Frozen, nil), 0, seen{trigger: trigger{ours: true, why: "the issue is closed"}, pull: open}, ""},
		"a wake was lost":               {record(issues.Frozen, nil), 1, seen{trigger: good, pull: open}, "wake"},
		"closed":                        {record(issues.Frozen, nil), 1, seen{trigger: good, pull: closed, posts: []post{mine}}, "pass comment-1, drop, end closed, wake"},
		"closed while it runs":          {record(issues.Running, nil), 0, seen{trigger: good, pull: closed}, "drop, end closed, wake"},
		"merged":                        {record(issues.Frozen, nil), 0, seen{trigger: good, pull: merged}, "drop, end merged, wake"},
		"it ends":                       {record(issues.Frozen, func(r *issues.Record) { r.Life.Ending = "closed" }), 0, seen{trigger: good, pull: closed}, "wake"},
		"a comment while it ends":       {record(issues.Frozen, func(r *issues.Record) { r.Life.Ending = "closed" }), 0, seen{trigger: good, pull: closed, posts: []post{mine}}, "hear comment-1, wake"},
		"ended":                         {record(issues.Destroyed, nil), 0, seen{trigger: good, pull: closed}, ""},
		"a comment after the end":       {record(issues.Destroyed, nil), 0, seen{trigger: good, pull: closed, posts: []post{mine}}, "hear comment-1, anew, wake"},
		"a stranger after the end":      {record(issues.Destroyed, nil), 0, seen{trigger: good, pull: closed, posts: []post{theirs}}, "pass comment-2 stranger"},
		"it came while it ended":        {record(issues.Destroyed, nil), 1, seen{trigger: good, pull: closed}, "anew, wake"},
		"after the end, no longer ours": {record(issues.Destroyed, nil), 1, seen{trigger: gone, pull: closed, posts: []post{mine}}, "pass comment-1, drop"},
		"a conflict":                    {record(issues.Frozen, nil), 0, seen{trigger: good, pull: open, conflict: true}, "hear conflict-abc, wake"},
		"a conflict, and a comment":     {record(issues.Frozen, nil), 0, seen{trigger: good, pull: open, conflict: true, posts: []post{mine}}, "hear comment-1, wake"},
		"conflicts without people":      {record(issues.Frozen, func(r *issues.Record) { r.Life.Alone = maxAlone }), 0, seen{trigger: good, pull: open, conflict: true}, ""},
	} {
		var got []string
		for _, a := range decide(c.rec, c.pending, c.seen) {
			got = append(got, strings.TrimSpace(strings.Join(slices.DeleteFunc([]string{string(a.do), a.post.ID, a.why}, func(s string) bool { return s == "" }), " ")))
			if a.do == doPass && (a.post.Text != "" || a.post.Prompt || a.post.Turn != -1) || a.do == doHear && (!a.post.Prompt || a.post.Turn != 0) {
				t.Errorf("%s: %+v", name, a)
			}
		}
		if s := strings.Join(got, ", "); s != c.want {
			t.Errorf("%s: %s, want %s", name, s, c.want)
		}
	}
}

func TestNeedOf(t *testing.T) {
	r := func(turn, settled int, ending string, status issues.Status) issues.Record {
		return issues.Record{Status: status, Life: issues.Life{Turn: turn, Settled: settled, Ending: ending}}
	}
	for _, c := range []struct {
		r       issues.Record
		known   bool
		prompts int
		want    step
	}{
		{r(0, 0, "", issues.Running), false, 0, step{Need: needNone}},
		{r(0, 0, "", issues.Running), true, 0, step{needTurn, 1}},
		{r(1, 0, "", issues.Running), true, 5, step{needTurn, 1}},
		{r(1, 1, "", issues.Frozen), true, 0, step{Need: needPrompt}},
		{r(1, 1, "", issues.Frozen), true, 2, step{needTurn, 2}},
		{r(2, 1, "merged", issues.Running), true, 2, step{Need: needEnd}},
		{r(2, 2, "merged", issues.Destroyed), true, 2, step{Need: needNone}},
	} {
		if got := needOf(c.r, c.known, make([]heard, c.prompts)); got != c.want {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

// However often an issue is added, it is looked at once more; one that fails holds up no other.
func TestQueue(t *testing.T) {
	q := newQueue(time.Millisecond, 4*time.Millisecond)
	a, b := issues.Key{Owner: "o", Repo: "r", Number: 1}, issues.Key{Owner: "o", Repo: "r", Number: 2}
	for range 10_000 {
		q.add(a, false)
	}
	q.add(a, true)
	k, deep, ok := q.take(ctx)
	if k != a || !deep || !ok || len(q.items) != 1 {
		t.Fatalf("%v, %v, %v", k, deep, ok)
	}
	q.add(a, false) // while it is looked at
	q.add(b, false)
	if k, deep, _ := q.take(ctx); k != b || deep {
		t.Errorf("%v, %v", k, deep)
	}
	q.done(b, true, ctx.Err())
	q.done(a, true, errUnchanged)
	if k, deep, _ := q.take(ctx); k != a || !deep {
		t.Errorf("%v, %v", k, deep)
	}
	q.done(a, false, nil)
	for n := int64(3); ; n++ {
		if !q.add(issues.Key{Owner: "o", Repo: "r", Number: n}, false) {
			break
		}
		if n > 2*maxQueue {
			t.Fatal("the queue has no bound")
		}
	}
	if got := []time.Duration{backoff(1, 8, 0), backoff(1, 8, 2), backoff(1, 8, 3), backoff(1, 8, 1_000_000)}; !slices.Equal(got, []time.Duration{1, 4, 8, 8}) {
		t.Errorf("%v", got)
	}
}
