package orchestrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strconv"
	"time"

	"github.com/carboy/carboy/internal/engine"
	"github.com/carboy/carboy/internal/forgeservice"
	"github.com/carboy/carboy/internal/issues"
	"github.com/carboy/carboy/internal/safetext"
)

// Schemas of the documents.
const (
	StatusSchema      = "carboy.dev/orchestrate-status/v1"
	DescriptionSchema = "carboy.dev/orchestrate-issue/v1"
)

// A StatusReport is what carboy knows of all issues, for JSON.
type StatusReport struct {
	Schema string        `json:"schema"`
	Issues []IssueStatus `json:"issues"`
	// Polled says when each repository was last looked at as a whole.
	Polled map[string]time.Time `json:"polled,omitempty"`
	// Errors say which calls of no single issue fail, by repository.
	Errors map[string]Failure `json:"errors,omitempty"`
}

// A Failure is a call that fails again and again.
type Failure struct {
	Error string    `json:"error"` // safe to show
	Since time.Time `json:"since"`
	Tries int       `json:"tries"`
}

// IssueStatus describes an issue to an operator. Its texts are safe to show.
type IssueStatus struct {
	Issue string `json:"issue"` // owner/repo#number
	Owner string `json:"owner"`
	Repo  string `json:"repo"`
	// Number of the issue.
	Number int64  `json:"number"`
	Title  string `json:"title,omitempty"`
	URL    string `json:"url,omitempty"`
	Agent  string `json:"agent,omitempty"`
	// State is running, frozen, destroyed, or waiting: the issue has one of our labels, and
	// is not begun.
	State    string   `json:"state"`
	Slug     string   `json:"slug,omitempty"`
	Turn     int      `json:"turn,omitempty"`
	Outcome  string   `json:"outcome,omitempty"` // of the newest turn that ended
	Waits    string   `json:"waits,omitempty"`   // what it waits for, in words
	Pull     int64    `json:"pull_request,omitempty"`
	PullURL  string   `json:"pull_request_url,omitempty"`
	Branch   string   `json:"branch,omitempty"`
	Verdict  string   `json:"verdict,omitempty"`
	Digest   string   `json:"provenance,omitempty"` // SHA-256 of the sealed provenance
	Tokens   int64    `json:"tokens"`
	Runs     []string `json:"runs,omitempty"` // ids, the oldest first
	Work     string   `json:"work,omitempty"`
	Watchdog bool     `json:"watchdog_fired,omitempty"`
	// LastCheckin is the last sign of life of the agent.
	LastCheckin *time.Time `json:"last_checkin,omitempty"`
	// Strangers counts comments of people who may not prompt.
	Strangers int `json:"strangers_comments,omitempty"`
	// Pending counts prompts that wait for the next turn.
	Pending int `json:"pending_prompts,omitempty"`
	// Warnings are about texts of people: hidden parts, phrases of prompt injection.
	Warnings []string `json:"warnings,omitempty"`
	Failure  *Failure `json:"failure,omitempty"`
}

// A Description is an issue with all its turns, for JSON.
type Description struct {
	Schema string `json:"schema"`
	IssueStatus
	Turns []TurnStatus `json:"turns"`
	// Steps are the engine's, of the newest run of the workflow.
	Steps    []StepStatus `json:"steps,omitempty"`
	Workflow string       `json:"workflow,omitempty"` // its status in the engine
	Attempts int          `json:"attempts,omitempty"` // how often a process began it
	Stuck    string       `json:"stuck,omitempty"`
}

// TurnStatus is a turn for people.
type TurnStatus struct {
	Number   int        `json:"number"`
	ID       string     `json:"id"`
	Prompts  []string   `json:"prompts"` // what it was for, such as "comment 17 by ada"
	Began    time.Time  `json:"began"`
	Ended    *time.Time `json:"ended,omitempty"`
	Outcome  string     `json:"outcome,omitempty"`
	Why      string     `json:"why,omitempty"`
	Summary  string     `json:"summary,omitempty"` // of the agent
	Commit   string     `json:"commit,omitempty"`
	Verdict  string     `json:"verdict,omitempty"`
	Runs     []string   `json:"runs,omitempty"`
	Work     string     `json:"work,omitempty"`
	Tokens   int64      `json:"tokens"`
	Watchdog bool       `json:"watchdog_fired,omitempty"`
	// Operations of the agent at the forge, and how many of them were refused.
	Operations int `json:"operations"`
	Refused    int `json:"refused"`
}

// StepStatus is a step of the workflow.
type StepStatus struct {
	Name  string     `json:"name"`
	Began time.Time  `json:"began"`
	Ended *time.Time `json:"ended,omitempty"`
}

// Status returns what is known of all issues in a state directory, those that live first. It
// reads files alone, beside the process that serves them or without one. A directory in which
// nothing was served yet has no issues.
func Status(ctx context.Context, dir string) (*StatusReport, error) {
	out := &StatusReport{Schema: StatusSchema, Issues: []IssueStatus{}}
	t, err := issues.OpenReadOnly(ctx, filepath.Join(dir, tableFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return out, nil
	case err != nil:
		return nil, err
	}
	defer t.Close()
	list, err := t.List(ctx)
	if err != nil {
		return nil, err
	}
	var ended []IssueStatus
	for _, r := range list {
		s, _, err := statusOfIssue(ctx, t, r)
		if err != nil {
			return nil, err
		}
		if r.Status == issues.Destroyed {
			ended = append(ended, s)
			continue
		}
		out.Issues = append(out.Issues, s)
	}
	if err := out.notes(ctx, t); err != nil {
		return nil, err
	}
	out.Issues = append(out.Issues, ended...)
	return out, nil
}

// notes adds what belongs to no issue that was begun.
func (s *StatusReport) notes(ctx context.Context, t *issues.Table) error {
	failures := map[string]Failure{}
	list, err := t.Notes(ctx, noteFailure)
	if err != nil {
		return err
	}
	for _, n := range list {
		var f issues.Failure
		if err := json.Unmarshal(n.Value, &f); err != nil {
			return fmt.Errorf("note of %s: %w", n.ID, err)
		}
		failures[n.ID] = Failure(f)
	}
	waiting, err := decoded[waitingNote](t.Notes(ctx, noteWaiting))
	if err != nil {
		return err
	}
	for _, w := range waiting {
		i := IssueStatus{Issue: w.Key.String(), Owner: w.Key.Owner, Repo: w.Key.Repo, Number: w.Key.Number, Title: w.Title, URL: w.URL, State: "waiting", Waits: w.Why}
		if f, ok := failures[i.Issue]; ok {
			i.Failure = &f
			delete(failures, i.Issue)
		}
		s.Issues = append(s.Issues, i)
	}
	if len(failures) > 0 {
		s.Errors = failures
	}
	if list, err = t.Notes(ctx, notePolled); err != nil {
		return err
	}
	for _, n := range list {
		var p polled
		if err := json.Unmarshal(n.Value, &p); err != nil {
			return fmt.Errorf("note of %s: %w", n.ID, err)
		}
		if s.Polled == nil {
			s.Polled = map[string]time.Time{}
		}
		s.Polled[n.ID] = p.At
	}
	return nil
}

// statusOfIssue returns the status of an issue, and its turns.
func statusOfIssue(ctx context.Context, t *issues.Table, r issues.Record) (IssueStatus, []turnEntry, error) {
	turns, err := decoded[turnEntry](t.Entries(ctx, r.Key, kindTurn))
	if err != nil {
		return IssueStatus{}, nil, err
	}
	all, err := decoded[heard](t.Entries(ctx, r.Key, kindHeard))
	if err != nil {
		return IssueStatus{}, nil, err
	}
	l := r.Life
	s := IssueStatus{
		Issue: r.Key.String(), Owner: r.Owner, Repo: r.Repo, Number: r.Number, Title: l.Title, URL: l.URL, Agent: r.Agent, State: string(r.Status),
		Slug: r.Slug, Turn: l.Turn, Outcome: l.Outcome, Waits: l.Waits, Pull: r.PullRequest, PullURL: l.PullURL, Branch: l.Branch, Verdict: l.Verdict,
		Digest: l.Digest, Watchdog: l.Watchdog, Strangers: l.Strangers, Pending: len(waiting(all, l.Turn)), Warnings: l.Warnings,
	}
	for _, e := range turns {
		if e.Result != nil {
			s.Tokens += e.Result.Tokens
			s.Runs = append(s.Runs, e.Result.Runs...)
			s.Work = e.Result.Work
		}
	}
	if !r.LastCheckin.IsZero() {
		at := r.LastCheckin.UTC()
		s.LastCheckin = &at
	}
	// What is done for an issue says more than a look at it.
	for _, f := range []*issues.Failure{l.Failure, l.Stuck} {
		if f != nil {
			f := Failure(*f)
			s.Failure = &f
		}
	}
	return s, turns, nil
}

// Describe returns all that is known of an issue in a state directory. The error wraps
// [issues.ErrMissing] if there is no record of it.
func Describe(ctx context.Context, dir string, k issues.Key) (*Description, error) {
	t, err := issues.OpenReadOnly(ctx, filepath.Join(dir, tableFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%v: %w: nothing was served from %s yet", k, issues.ErrMissing, dir)
	}
	if err != nil {
		return nil, err
	}
	defer t.Close()
	r, ok, err := t.Get(ctx, k)
	if err == nil && !ok {
		err = fmt.Errorf("%v: %w", k, issues.ErrMissing)
	}
	if err != nil {
		return nil, err
	}
	d := &Description{Schema: DescriptionSchema, Turns: []TurnStatus{}}
	var turns []turnEntry
	if d.IssueStatus, turns, err = statusOfIssue(ctx, t, r); err != nil {
		return nil, err
	}
	for _, e := range turns {
		s, err := statusOfTurn(ctx, t, k, e)
		if err != nil {
			return nil, err
		}
		d.Turns = append(d.Turns, s)
	}
	return d, d.steps(ctx, dir, k)
}

// statusOfTurn returns the status of a turn.
func statusOfTurn(ctx context.Context, t *issues.Table, k issues.Key, e turnEntry) (TurnStatus, error) {
	s := TurnStatus{Number: e.Number, ID: e.ID, Prompts: e.For, Began: e.Began, Summary: safetext.Lines(e.Summary, 4000), Watchdog: e.Watchdog, Why: e.Broken}
	if r := e.Result; r != nil {
		if !r.Ended.IsZero() {
			s.Ended = &r.Ended
		}
		s.Outcome, s.Commit, s.Verdict, s.Runs, s.Work, s.Tokens = r.Outcome, r.Commit, r.Verdict, r.Runs, r.Work, r.Tokens
		if r.Why != "" {
			s.Why = safetext.String(r.Why, 600)
		}
	}
	ops, err := t.Entries(ctx, k, kindOperation)
	if err != nil {
		return s, err
	}
	for _, o := range ops {
		var op forgeservice.Operation
		if err := json.Unmarshal(o.Value, &op); err != nil {
			return s, fmt.Errorf("%v: operation %s: %w", k, o.ID, err)
		}
		if len(o.ID) <= len(e.ID) || o.ID[:len(e.ID)+1] != e.ID+"-" || op.Outcome == forgeservice.Begun {
			continue
		}
		s.Operations++
		if op.Outcome == forgeservice.Refused {
			s.Refused++
		}
	}
	return s, nil
}

// steps adds what the engine knows.
func (d *Description) steps(ctx context.Context, dir string, k issues.Key) error {
	e, err := engine.Attach(ctx, filepath.Join(dir, engineFile), slog.New(slog.DiscardHandler))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer e.Close(time.Second)
	s, err := e.State(ctx, k.String())
	if errors.Is(err, engine.ErrUnknown) {
		return nil
	}
	if err != nil {
		return err
	}
	d.Workflow, d.Attempts, d.Stuck = string(s.Status), s.Attempts, s.Stuck
	if s.Error != "" && d.Failure == nil {
		d.Failure = &Failure{Error: safetext.String(s.Error, 600), Since: s.Updated, Tries: s.Number}
	}
	for i, x := range s.Steps {
		if i < len(s.Steps)-maxSteps {
			continue
		}
		st := StepStatus{Name: x.Name, Began: x.Started}
		if x.Child != "" {
			st.Name += " " + strconv.Quote(x.Child)
		}
		if !x.Ended.IsZero() {
			st.Ended = &x.Ended
		}
		d.Steps = append(d.Steps, st)
	}
	return nil
}

// maxSteps bounds the steps of a description: the newest are shown.
const maxSteps = 200
