package orchestrate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/carboy/carboy/internal/engine"
	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/forgeservice"
	"github.com/carboy/carboy/internal/issues"
	"github.com/carboy/carboy/internal/safetext"
)

const (
	topic = "look" // of the signal that the table has something new

	// waitIn bounds one wait of a workflow. Then it looks at the table and waits again.
	waitIn = 30 * 24 * time.Hour
)

// A need names the next thing to do for an issue.
type need string

// Needs.
const (
	needTurn   need = "turn"
	needEnd    need = "end"    // the pull request has ended
	needPrompt need = "prompt" // people have to write something, or merge
	needNone   need = "none"   // there is nothing more
)

// A step records one look at the table.
type step struct {
	Need need `json:"need"`
	Turn int  `json:"turn,omitempty"`
}

// flow is the input of both workflows.
type flow struct {
	Key  issues.Key `json:"key"`
	Turn int        `json:"turn,omitempty"`
}

// life is the body of an issue's workflow. All that it knows is in the table: it does what
// the table asks for, and waits for looks to change it.
func (o *Orchestrator) life(r *engine.Run, in flow) (string, error) {
	for {
		s, err := engine.Step(r, "next", func(ctx context.Context) (step, error) { return o.next(ctx, in.Key) })
		if err != nil {
			return "", err
		}
		switch s.Need {
		case needNone:
			return "ended", nil
		case needEnd:
			_, err := engine.Step(r, "end", func(ctx context.Context) (struct{}, error) { return struct{}{}, o.end(ctx, in.Key) })
			if err != nil {
				return "", err
			}
		case needTurn:
			_, err := engine.Child[struct{}](r, "turn-"+strconv.Itoa(s.Turn), turnFlow, flow{in.Key, s.Turn})
			var lost *engine.ChildError
			if err != nil && !errors.As(err, &lost) {
				return "", err
			}
			_, err = engine.Step(r, "settle", func(ctx context.Context) (struct{}, error) {
				return struct{}{}, o.settle(ctx, in.Key, s.Turn, lost)
			})
			if err != nil {
				return "", err
			}
		default:
			if _, _, err := engine.Receive[string](r, topic, waitIn); err != nil {
				return "", err
			}
		}
	}
}

// wake sees that the workflow of an issue runs, and tells it what the table has for it. Doing
// it again tells it nothing new.
func (o *Orchestrator) wake(ctx context.Context, k issues.Key) error {
	rec, ok, err := o.table.Get(ctx, k)
	if err != nil || !ok {
		return err
	}
	all, err := o.heard(ctx, k)
	if err != nil {
		return err
	}
	reasons := []string{}
	for _, h := range waiting(all, rec.Life.Turn) {
		reasons = append(reasons, h.ID)
	}
	if rec.Life.Ending != "" {
		reasons = append(reasons, rec.Life.Ending+"-"+strconv.FormatInt(rec.PullRequest, 10))
	}
	for range 2 { // a run may end between the two calls
		if _, err := o.engine.Start(ctx, k.String(), issueFlow, flow{Key: k}, engine.Again); err != nil {
			return err
		}
		for _, why := range reasons {
			if err = o.engine.Signal(ctx, k.String(), topic, why, why); err != nil {
				break
			}
		}
		if !errors.Is(err, engine.ErrEnded) {
			return err
		}
	}
	return err
}

// persist calls do until it succeeds, and keeps in the table that it fails. It returns an
// error when ctx ends, or one that wraps errPullEnded when the pull request ends meanwhile.
func (o *Orchestrator) persist(ctx context.Context, k issues.Key, what string, do func(context.Context) error) error {
	return o.try(ctx, k, what, false, do)
}

// finish is persist for what is done also after the end of the pull request.
func (o *Orchestrator) finish(ctx context.Context, k issues.Key, what string, do func(context.Context) error) error {
	return o.try(ctx, k, what, true, do)
}

func (o *Orchestrator) try(ctx context.Context, k issues.Key, what string, late bool, do func(context.Context) error) error {
	var f *issues.Failure
	for n := 0; ; n++ {
		err := do(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", what, err)
			o.Log.Warn("a step fails; it is tried again", "issue", k.String(), "error", err)
		}
		if err != nil || n > 0 {
			f = failed(f, err)
			ended := false
			uerr := o.table.Update(ctx, k, func(r *issues.Record) error {
				r.Life.Stuck = f
				ended = r.Life.Ending != "" && !late
				return nil
			})
			switch {
			case uerr != nil && !errors.Is(uerr, issues.ErrMissing):
				o.unwritten(uerr)
			case ended && err != nil:
				return fmt.Errorf("%w: %w", errPullEnded, err)
			}
		}
		if err == nil {
			return nil
		}
		if perr := pause(ctx, backoff(o.pace.first, o.pace.most, n)); perr != nil {
			return perr
		}
	}
}

// unwritten logs that something could not be kept. What it was is found again.
func (o *Orchestrator) unwritten(err error) {
	if !errors.Is(err, context.Canceled) {
		o.Log.Error("the table of issues can't be used", "error", err)
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// next returns what an issue needs, and begins its next turn if it needs one.
func (o *Orchestrator) next(ctx context.Context, k issues.Key) (s step, err error) {
	err = o.persist(ctx, k, "begin the next turn", func(ctx context.Context) error {
		rec, ok, err := o.table.Get(ctx, k)
		if err != nil {
			return err
		}
		all, err := o.heard(ctx, k)
		if err != nil {
			return err
		}
		if s = needOf(rec, ok, waiting(all, rec.Life.Turn)); s.Need != needTurn || s.Turn == rec.Life.Turn {
			return nil
		}
		s, err = o.beginTurn(ctx, rec, s.Turn, all)
		return err
	})
	if errors.Is(err, errPullEnded) && ctx.Err() == nil {
		return step{Need: needEnd}, nil
	}
	return s, err
}

// needOf returns what an issue needs by its record.
func needOf(r issues.Record, known bool, prompts []heard) step {
	switch {
	case !known || r.Status == issues.Destroyed:
		return step{Need: needNone}
	case r.Life.Ending != "":
		return step{Need: needEnd}
	case r.Life.Turn > r.Life.Settled:
		return step{needTurn, r.Life.Turn}
	case r.Life.Turn == 0 || len(prompts) > 0:
		return step{needTurn, r.Life.Turn + 1}
	}
	return step{Need: needPrompt}
}

// A turnEntry is a turn as it is kept.
type turnEntry struct {
	Number   int       `json:"number"`
	ID       string    `json:"id"`
	Prompt   string    `json:"prompt"`
	Anew     string    `json:"anew,omitempty"`
	For      []string  `json:"for"` // what was written by whom, in words
	Began    time.Time `json:"began"`
	Watchdog bool      `json:"watchdog,omitempty"`
	Silent   bool      `json:"silent,omitempty"` // that is why
	Stopped  bool      `json:"stopped,omitempty"`
	// Status and Summary are the agent's last report.
	Status  string      `json:"status,omitempty"`
	Summary string      `json:"summary,omitempty"`
	Result  *TurnResult `json:"result,omitempty"` // nil: it has not ended
	// Broken says why carboy could not carry it out, or is empty.
	Broken string `json:"broken,omitempty"`
}

// turnID names a turn. Owners and repositories may hold what separates them from a number.
func turnID(k issues.Key, turn int) string {
	sum := sha256.Sum256([]byte(k.String()))
	return fmt.Sprintf("issue-%d-%s-turn-%d", k.Number, hex.EncodeToString(sum[:5]), turn)
}

// beginTurn keeps a turn with its prompt. It can be done again until the record counts the
// turn, which is the last of it.
func (o *Orchestrator) beginTurn(ctx context.Context, rec issues.Record, turn int, all []heard) (step, error) {
	k := rec.Key
	f := o.forgeOf(k)
	if f == nil {
		return step{}, errUnconfigured
	}
	if err := o.same(ctx, f, &rec); err != nil {
		return step{}, err
	}
	issue, err := f.Client.Issue(ctx, repoOf(k), forge.Thread{Number: int(k.Number)})
	if err != nil {
		return step{}, err
	}
	if rec.Life.Turn == 0 {
		// Between the look and now, people may have changed their minds.
		t, err := o.trigger(ctx, f, issue)
		if err != nil {
			return step{}, err
		}
		if t.why != "" {
			o.Log.Info("an issue is not begun after all", "issue", k.String(), "why", t.why)
			o.queue.add(k, false)
			return step{Need: needNone}, o.table.Delete(ctx, k)
		}
		rec.Agent, rec.Bottles = t.agent, t.bottles
	}
	p := promptOf{rec: rec, issue: issue}
	if rec.PullRequest > 0 {
		pull, err := f.shipper().PullRequest(ctx, repoOf(k), int(rec.PullRequest))
		if err != nil {
			return step{}, err
		}
		p.moved = rec.Life.Head != "" && pull.HeadCommit != rec.Life.Head
		p.head = pull.HeadCommit
	}
	p.posts = slices.DeleteFunc(slices.Clone(all), func(h heard) bool { return !h.Prompt || h.Turn != 0 && h.Turn != turn })
	e := p.turn(turn)
	if err := o.table.Set(ctx, k, kindTurn, strconv.Itoa(turn), e); err != nil {
		return step{}, err
	}
	alone := len(p.posts) > 0
	for _, h := range p.posts {
		alone = alone && h.Alone
		h.Turn = turn
		if err := o.table.Set(ctx, k, kindHeard, h.ID, h); err != nil {
			return step{}, err
		}
	}
	s := step{needTurn, turn}
	return s, o.table.Update(ctx, k, func(r *issues.Record) error {
		if r.Life.Ending != "" {
			s = step{Need: needEnd}
			return nil
		}
		r.Agent, r.Bottles = rec.Agent, rec.Bottles
		r.Status, r.Life.Turn, r.Life.Waits = issues.Running, turn, "a free slot"
		r.Life.Watchdog = false
		r.Life.Alone++
		if !alone {
			r.Life.Alone = 0
		}
		for _, w := range p.warnings {
			if !slices.Contains(r.Life.Warnings, w) && len(r.Life.Warnings) < maxWarnings {
				r.Life.Warnings = append(r.Life.Warnings, w)
			}
		}
		return nil
	})
}

// maxWarnings bounds the warnings that are kept of an issue.
const maxWarnings = 20

// turnOf returns what all turns of an issue have in common.
func turnOf(r *issues.Record) Turn {
	return Turn{
		Issue: r.Key, Agent: r.Agent, Bottles: r.Bottles, Backend: r.Backend, Slug: r.Slug,
		Base: r.Life.Base, Branch: r.Life.Branch, Pull: int(r.PullRequest),
	}
}

// entryOf returns a turn.
func (o *Orchestrator) entryOf(ctx context.Context, k issues.Key, turn int) (e turnEntry, err error) {
	all, err := decoded[turnEntry](o.table.Entries(ctx, k, kindTurn))
	if err != nil {
		return e, err
	}
	i := slices.IndexFunc(all, func(e turnEntry) bool { return e.Number == turn })
	if i < 0 {
		return e, fmt.Errorf("%v: turn %d is not in the table", k, turn)
	}
	return all[i], nil
}

// settle does what follows from a turn: the commit's status, the pull request, its
// description, and what the issue waits for. lost is how the engine lost the turn, or nil.
func (o *Orchestrator) settle(ctx context.Context, k issues.Key, turn int, lost *engine.ChildError) error {
	var e turnEntry
	var rec issues.Record
	err := o.persist(ctx, k, "read what became of a turn", func(ctx context.Context) (err error) {
		if e, err = o.entryOf(ctx, k, turn); err == nil {
			rec, _, err = o.table.Get(ctx, k)
		}
		return err
	})
	if err == nil && e.Result == nil {
		e.Result = &TurnResult{Slug: rec.Slug}
		e.Broken = "the engine lost the turn"
		if lost != nil {
			e.Broken = safetext.String(lost.Error(), 600)
		}
		err = o.persist(ctx, k, "keep what became of a turn", func(ctx context.Context) error {
			return o.table.Set(ctx, k, kindTurn, strconv.Itoa(turn), e)
		})
	}
	if err == nil && e.Result.Commit != "" && rec.Life.Ending == "" {
		err = o.publish(ctx, &rec, e)
	}
	if errors.Is(err, errPullEnded) {
		err = nil
	}
	if err != nil {
		return err
	}
	if e.Result.Moved && rec.Life.Alone < maxAlone {
		p := post{ID: "moved-" + strconv.Itoa(turn), At: time.Now().UTC()}
		err := o.persist(ctx, k, "ask for another turn", func(ctx context.Context) error {
			_, err := o.table.Add(ctx, k, kindHeard, p.ID, heard{post: p, Prompt: true, Alone: true})
			return err
		})
		if err != nil && !errors.Is(err, errPullEnded) {
			return err
		}
	}
	waits := ""
	err = o.finish(ctx, k, "end the turn", func(ctx context.Context) error {
		return o.table.Update(ctx, k, func(r *issues.Record) error {
			r.Life.Head = rec.Life.Head
			r.Life.Settled, r.Life.Outcome = turn, e.Result.Outcome
			if r.Slug == "" {
				r.Slug = e.Result.Slug
			}
			if e.Result.Verdict != "" {
				r.Life.Verdict = e.Result.Verdict
			}
			waits = waitsFor(r, e)
			r.Status, r.Life.Waits = issues.Frozen, waits
			return nil
		})
	})
	if err == nil {
		o.Log.Info("a turn has ended", "issue", k.String(), "turn", turn, "pull", rec.PullRequest, "waits for", waits)
	}
	return err
}

// waitsFor says what an issue waits for after a turn.
func waitsFor(r *issues.Record, e turnEntry) string {
	res := e.Result
	why := ""
	if res.Why != "" {
		why = " (" + safetext.String(res.Why, 200) + ")"
	}
	switch {
	case e.Broken != "":
		return "a comment: carboy could not carry out the turn (" + e.Broken + ")"
	case e.Silent:
		return "a comment: the agent was silent for too long, and was stopped"
	case e.Stopped:
		return "a comment or a retry: an operator stopped it"
	case res.Outcome == "":
		return "a comment: the agent ended without a report"
	case res.Moved:
		return "a turn on the branch's new state: somebody pushed to it"
	case res.Outcome != "passed":
		return "a comment: the gate " + outcomeWords(res.Outcome) + why
	case r.PullRequest == 0:
		return "a comment: the agent changed nothing"
	case e.Status == string(forgeservice.Blocked) || e.Status == string(forgeservice.Failed):
		return "a comment or a review: the agent reports that it is " + e.Status
	}
	return "a review, a comment or the merge"
}

func outcomeWords(outcome string) string {
	switch outcome {
	case "failed":
		return "did not pass"
	case "final":
		return "refuses the change for good"
	case "escalated":
		return "asks for a person's judgement"
	}
	return "says " + safetext.String(outcome, 40)
}

// end does what follows from the end of the pull request.
func (o *Orchestrator) end(ctx context.Context, k issues.Key) error {
	var rec issues.Record
	if err := o.finish(ctx, k, "read the record", func(ctx context.Context) (err error) {
		rec, _, err = o.table.Get(ctx, k)
		return err
	}); err != nil {
		return err
	}
	if rec.Life.Ending == "merged" {
		err := o.finish(ctx, k, "seal the provenance", func(ctx context.Context) error {
			m, err := o.merge(ctx, rec)
			if err != nil {
				return err
			}
			rec.Life.Digest, err = o.Bottles.Seal(ctx, m)
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := o.finish(ctx, k, "destroy the bottle", func(ctx context.Context) error {
		return o.Bottles.Destroy(ctx, k, rec.Slug)
	}); err != nil {
		return err
	}
	err := o.finish(ctx, k, "keep it", func(ctx context.Context) error {
		return o.table.Update(ctx, k, func(r *issues.Record) error {
			r.Status, r.Life.Digest, r.Life.Waits = issues.Destroyed, rec.Life.Digest, ""
			r.Life.Settled = r.Life.Turn
			return nil
		})
	})
	o.queue.add(k, false) // for comments that came meanwhile
	return err
}

// merge returns what is known of a pull request that was merged.
func (o *Orchestrator) merge(ctx context.Context, rec issues.Record) (m Merge, err error) {
	f := o.forgeOf(rec.Key)
	if f == nil {
		return m, errUnconfigured
	}
	if err := o.same(ctx, f, &rec); err != nil {
		return m, err
	}
	pull, err := f.shipper().PullRequest(ctx, repoOf(rec.Key), int(rec.PullRequest))
	if err != nil {
		return m, err
	}
	reviews, err := f.shipper().Reviews(ctx, repoOf(rec.Key), int(rec.PullRequest))
	if err != nil {
		return m, err
	}
	m = Merge{
		Issue: rec.Key, Pull: pull.Number, URL: pull.URL, Base: pull.Base, Branch: pull.Head, Head: pull.HeadCommit, Commit: pull.MergeCommit,
		Agent: rec.Agent, Bottles: rec.Bottles, Slug: rec.Slug, Merged: pull.Updated,
	}
	for _, r := range reviews {
		m.Reviews = append(m.Reviews, Review{By: r.Author.Login, State: string(r.State), Commit: r.Commit, At: r.Submitted})
	}
	turns, err := decoded[turnEntry](o.table.Entries(ctx, rec.Key, kindTurn))
	if err != nil {
		return m, err
	}
	for _, e := range turns {
		if e.Result != nil {
			m.Turns = append(m.Turns, *e.Result)
		}
		m.WatchdogFired = m.WatchdogFired || e.Watchdog
	}
	ops, err := o.table.Entries(ctx, rec.Key, kindOperation)
	if err != nil {
		return m, err
	}
	for _, e := range ops {
		var op forgeservice.Operation
		if err := json.Unmarshal(e.Value, &op); err != nil {
			return m, err
		}
		m.Operations = append(m.Operations, op)
	}
	return m, nil
}
