package orchestrate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/issues"
	"github.com/carboy/carboy/internal/safetext"
)

// Kinds of entries and notes in the table.
const (
	kindHeard     = "heard"     // posts, by their ids
	kindTurn      = "turn"      // by their numbers
	kindOperation = "operation" // of the agent at the forge
	noteWaiting   = "waiting"   // issues that are not begun, by their keys
	noteFailure   = "failure"   // of looks at what has no record, by issue or repository
	notePolled    = "polled"    // when a repository was looked at as a whole
	maxPost       = 64 << 10    // bytes of one post that the agent is given
	maxLook       = 200         // new comments of a thread in one look
	maxLookSize   = 4 << 20     // bytes of those
	overlap       = time.Hour   // between two readings of comments, for clocks that differ
)

const (
	lookWorkers = 4               // looks at a time
	lookIn      = 5 * time.Minute // bounds a look, with what the forge asks to wait
)

// looks carries out looks until ctx ends.
func (o *Orchestrator) looks(ctx context.Context) {
	for {
		k, deep, ok := o.queue.take(ctx)
		if !ok {
			return
		}
		o.counts.looks.Add(1)
		err := o.look(ctx, k, deep)
		if err != nil {
			o.counts.lookErrors.Add(1)
		}
		if ctx.Err() == nil {
			o.keepFailure(ctx, k, err)
		}
		o.queue.done(k, deep, err)
	}
}

// keepFailure says in the table that a look failed, or that it did not.
func (o *Orchestrator) keepFailure(ctx context.Context, k issues.Key, err error) {
	if err != nil {
		o.Log.Warn("an issue can't be looked at; it is tried again", "issue", k.String(), "error", err)
	}
	uerr := o.table.Update(ctx, k, func(r *issues.Record) error {
		if err == nil && r.Life.Failure == nil {
			return errUnchanged
		}
		r.Life.Failure = failed(r.Life.Failure, err)
		return nil
	})
	if errors.Is(uerr, issues.ErrMissing) {
		uerr = o.noteFailed(ctx, k.String(), err)
	}
	if uerr != nil && !errors.Is(uerr, errUnchanged) {
		o.unwritten(uerr)
	}
}

var errUnconfigured = errors.New("the configuration names no such forge or repository any more")

var errUnchanged = errors.New("nothing changes")

// noteFailed says in the table that something that has no record failed, or that it did not.
func (o *Orchestrator) noteFailed(ctx context.Context, id string, err error) error {
	if err == nil {
		return o.table.SetNote(ctx, noteFailure, id, nil)
	}
	var before *issues.Failure
	notes, nerr := o.table.Notes(ctx, noteFailure)
	for _, n := range notes {
		if n.ID == id {
			nerr = json.Unmarshal(n.Value, &before)
		}
	}
	return errors.Join(nerr, o.table.SetNote(ctx, noteFailure, id, failed(before, err)))
}

// failed counts one more failure. It returns nil if err is nil.
func failed(before *issues.Failure, err error) *issues.Failure {
	if err == nil {
		return nil
	}
	f := issues.Failure{Since: time.Now().UTC()}
	if before != nil {
		f = *before
	}
	f.Error = safetext.String(err.Error(), 600)
	f.Tries++
	return &f
}

// look reads an issue from the forge, and does what follows. A deep look also asks whether the
// branch still merges.
func (o *Orchestrator) look(ctx context.Context, k issues.Key, deep bool) error {
	ctx, cancel := context.WithTimeout(ctx, lookIn)
	defer cancel()
	f := o.forgeOf(k)
	if f == nil {
		return errUnconfigured
	}
	rec, known, err := o.table.Get(ctx, k)
	if err != nil {
		return err
	}
	var r *issues.Record
	if known {
		r = &rec
		if err := o.same(ctx, f, r); err != nil {
			return err
		}
	}
	all, err := o.heard(ctx, k)
	if err != nil {
		return err
	}
	s, read, err := o.read(ctx, f, k, r, all)
	if err != nil {
		return err
	}
	pending := 0
	if r != nil {
		pending = len(waiting(all, r.Life.Turn))
	}
	merges := s.pull == nil || !s.pull.Open || s.pull.Mergeable != nil && *s.pull.Mergeable
	if deep && r != nil && r.Status == issues.Frozen && pending == 0 && !merges {
		if s.conflict, err = o.Bottles.Conflicts(ctx, turnOf(r)); err != nil {
			return fmt.Errorf("ask whether %s merges into %s: %w", r.Life.Branch, r.Life.Base, err)
		}
	}
	for _, a := range decide(r, pending, s) {
		if err := o.act(ctx, f, k, a, read); err != nil {
			return err
		}
	}
	if s.partial {
		o.queue.add(k, deep)
	}
	if r == nil || len(read.since) == 0 {
		return nil
	}
	return unlessUnchanged(o.table.Update(ctx, k, func(r *issues.Record) error {
		if r.Life.Read == nil {
			r.Life.Read = map[string]time.Time{}
		}
		for name, t := range read.since {
			r.Life.Read[name] = t
		}
		return nil
	}))
}

func unlessUnchanged(err error) error {
	if errors.Is(err, errUnchanged) {
		return nil
	}
	return err
}

// same returns an error if the name of the repository belongs to another one now.
func (o *Orchestrator) same(ctx context.Context, f *Forge, r *issues.Record) error {
	id, err := f.identity(ctx, repoOf(r.Key))
	if err != nil {
		return err
	}
	if id != r.Life.RepoID {
		return fmt.Errorf("%s is another repository now (the forge's id %d, not %d): nothing is done to it", repoOf(r.Key), id, r.Life.RepoID)
	}
	return nil
}

func repoOf(k issues.Key) string { return k.Owner + "/" + k.Repo }

// A reading holds what a look found out, for its actions.
type reading struct {
	issue *forge.Issue
	since map[string]time.Time // the newest comment, by thread
	// partial is set if there are more comments than were read.
	partial bool
}

// read reads what is new of an issue.
func (o *Orchestrator) read(ctx context.Context, f *Forge, k issues.Key, r *issues.Record, all []heard) (s seen, out reading, err error) {
	repo := repoOf(k)
	at := forge.Thread{Number: int(k.Number)}
	if out.issue, err = f.Client.Issue(ctx, repo, at); err != nil {
		return s, out, err
	}
	if out.issue.Pull && r == nil {
		return s, out, nil // a pull request with our label is not begun
	}
	if s.trigger, err = o.trigger(ctx, f, out.issue); err != nil {
		return s, out, err
	}
	if r == nil && (!s.trigger.ours || s.trigger.why != "") {
		return s, out, nil
	}
	known := map[string]bool{}
	for _, h := range all {
		known[h.ID] = true
	}
	out.since = map[string]time.Time{}
	posts, err := o.comments(ctx, f, k, r, at, known, &out)
	if err != nil {
		return s, out, err
	}
	assigned := out.issue.Assignees
	if r != nil && r.PullRequest > 0 {
		// The comments come first: what is read with the end was there before it.
		pull := forge.Thread{Number: int(r.PullRequest), Pull: true}
		more, err := o.comments(ctx, f, k, r, pull, known, &out)
		if err != nil {
			return s, out, err
		}
		reviews, err := f.shipper().Reviews(ctx, repo, pull.Number)
		if err != nil {
			return s, out, err
		}
		if s.pull, err = f.shipper().PullRequest(ctx, repo, pull.Number); err != nil {
			return s, out, err
		}
		posts = slices.Concat(posts, more, reviewed(reviews, pull))
		assigned = append(slices.Clone(assigned), s.pull.Assignees...)
	}
	s.posts = slices.DeleteFunc(posts, func(p post) bool { return known[p.ID] })
	s.partial = out.partial
	slices.SortStableFunc(s.posts, func(a, b post) int { return a.At.Compare(b.At) })
	if r == nil {
		return s, out, nil
	}
	return s, out, o.judge(ctx, f, repo, assigned, s.posts)
}

// trigger returns the trigger of an issue. Membership is asked when everything else is there.
func (o *Orchestrator) trigger(ctx context.Context, f *Forge, i *forge.Issue) (trigger, error) {
	t := triggerOf(i, o.Labels)
	if t.why != "" {
		return t, nil
	}
	for _, login := range i.Assignees {
		member, err := f.Client.Member(ctx, o.Org, login)
		if err != nil {
			return t, fmt.Errorf("ask whether %s is a member of %s: %w", safetext.String(login, 100), o.Org, err)
		}
		if member {
			return t, nil
		}
	}
	t.why = "no assignee is a member of " + o.Org
	return t, nil
}

// comments returns the comments of a thread that are not known as posts, and remembers in
// out how far it came. There may be more of them than one look takes.
func (o *Orchestrator) comments(ctx context.Context, f *Forge, k issues.Key, r *issues.Record, at forge.Thread, known map[string]bool, out *reading) (posts []post, err error) {
	name := at.String()
	var from time.Time
	if r != nil && !r.Life.Read[name].IsZero() {
		from = r.Life.Read[name].Add(-overlap)
		out.since[name] = r.Life.Read[name]
	}
	size, full := 0, false
	more, err := f.Client.EachComment(ctx, repoOf(k), at, from, func(c forge.Comment) bool {
		id := "comment-" + strconv.FormatInt(c.ID, 10)
		if full = len(posts) >= maxLook || size > maxLookSize; full && !known[id] {
			return false
		}
		// Not when it was changed: others that were made before that may follow.
		if c.Created.After(out.since[name]) {
			out.since[name] = c.Created
		}
		if !known[id] {
			p := newPost(id, at, c.Author, c.Created, c.Body)
			size += len(p.Text)
			posts = append(posts, p)
		}
		return true
	})
	// What the forge leaves out each time, as it is too large, is no reason to look again.
	if full || more && len(posts) > 0 {
		out.partial = true
	}
	return posts, err
}

func newPost(id string, at forge.Thread, by forge.User, when time.Time, text string) post {
	p := post{ID: id, Thread: at, By: by.Login, At: when.UTC(), Text: text, bot: by.Bot}
	if len(p.Text) > maxPost {
		p.Text = strings.Clone(strings.ToValidUTF8(p.Text[:maxPost], "")) // the rest is not kept
		p.Cut = len(text) - len(p.Text)
	}
	return p
}

// reviewed returns reviews as posts. An approval asks for nothing.
func reviewed(reviews []forge.Review, at forge.Thread) (out []post) {
	for _, v := range reviews {
		if v.State == forge.Approved {
			continue
		}
		id := fmt.Sprintf("review-%d", v.ID)
		if v.State == forge.ChangesRequested {
			// A reviewer of GitLab has one review, which comes again.
			id += "-changes-" + strconv.FormatInt(v.Submitted.Unix(), 10)
		}
		if p := newPost(id, at, v.Author, v.Submitted, v.Body); strings.TrimSpace(v.Body) != "" || v.State == forge.ChangesRequested {
			p.Changes = v.State == forge.ChangesRequested
			out = append(out, p)
		}
		for _, l := range v.Comments {
			p := newPost("line-"+strconv.FormatInt(l.ID, 10), at, l.Author, v.Submitted, l.Body)
			p.Path, p.Line, p.Old = l.Path, l.Line, l.Old
			out = append(out, p)
		}
	}
	return out
}

// judge asks the forge which of the posts are of people who may prompt: assignees, and who
// may write to the repository. The robot never may, and a bot only if it is listed.
func (o *Orchestrator) judge(ctx context.Context, f *Forge, repo string, assigned []string, posts []post) error {
	same := func(login string) func(string) bool {
		return func(s string) bool { return strings.EqualFold(s, login) }
	}
	asked := map[string]bool{}
	for i := range posts {
		p := &posts[i]
		switch {
		case p.By == "", strings.EqualFold(p.By, f.Robot), p.bot && !slices.ContainsFunc(f.Bots, same(p.By)):
			continue
		case slices.ContainsFunc(assigned, same(p.By)):
			p.may = true
			continue
		}
		may, known := asked[p.By]
		if !known {
			a, err := f.shipper().Access(ctx, repo, p.By)
			var e *forge.Error
			switch {
			case errors.As(err, &e) && e.Code == 404: // the forge knows no such collaborator
			case err != nil:
				return fmt.Errorf("ask whether %s may write: %w", safetext.String(p.By, 100), err)
			}
			may = err == nil && a >= forge.WriteAccess
			asked[p.By] = may
		}
		p.may = may
	}
	return nil
}

// heard returns what was heard of an issue.
func (o *Orchestrator) heard(ctx context.Context, k issues.Key) ([]heard, error) {
	return decoded[heard](o.table.Entries(ctx, k, kindHeard))
}

// decoded decodes the values of entries.
func decoded[T any](list []issues.Entry, err error) ([]T, error) {
	if err != nil {
		return nil, err
	}
	out := make([]T, len(list))
	for i, e := range list {
		if err := json.Unmarshal(e.Value, &out[i]); err != nil {
			return nil, fmt.Errorf("%s %s: %w", e.Kind, e.ID, err)
		}
	}
	return out, nil
}

// waiting returns the prompts that none of the turns took, the oldest first. One that was given
// to a later turn waits, too: a process died before that turn began.
func waiting(all []heard, turns int) (out []heard) {
	for _, h := range all {
		if h.Prompt && (h.Turn == 0 || h.Turn > turns) {
			out = append(out, h)
		}
	}
	slices.SortStableFunc(out, func(a, b heard) int { return cmp.Or(a.At.Compare(b.At), strings.Compare(a.ID, b.ID)) })
	return out
}

// act does what decide decided. Each action can be repeated.
func (o *Orchestrator) act(ctx context.Context, f *Forge, k issues.Key, a action, read reading) error {
	switch a.do {
	case doForget:
		return o.table.SetNote(ctx, noteWaiting, k.String(), nil)
	case doWait:
		o.Log.Info("an issue with our label waits", "issue", k.String(), "for", a.why)
		return o.table.SetNote(ctx, noteWaiting, k.String(), waitingNote{k, a.why, safetext.String(read.issue.Title, 200), read.issue.URL, time.Now().UTC()})
	case doHear:
		_, err := o.table.Add(ctx, k, kindHeard, a.post.ID, a.post)
		return err
	case doPass:
		added, err := o.table.Add(ctx, k, kindHeard, a.post.ID, a.post)
		if err != nil || !added || a.why != stranger || strings.EqualFold(a.post.By, f.Robot) {
			return err
		}
		return o.table.Update(ctx, k, func(r *issues.Record) error { r.Life.Strangers++; return nil })
	case doDrop:
		return o.drop(ctx, k)
	case doBegin:
		return o.begin(ctx, f, k, read)
	case doAnew:
		return o.anew(ctx, f, k, read)
	case doEnd:
		return o.endPull(ctx, k, a.why)
	case doWake:
		return o.wake(ctx, k)
	}
	return fmt.Errorf("%q is no action", a.do)
}

// waitingNote is an issue that is not begun.
type waitingNote struct {
	Key        issues.Key
	Why        string
	Title, URL string
	At         time.Time
}

// drop takes the prompts that wait out of the next turn.
func (o *Orchestrator) drop(ctx context.Context, k issues.Key) error {
	rec, _, err := o.table.Get(ctx, k)
	if err != nil {
		return err
	}
	all, err := o.heard(ctx, k)
	if err != nil {
		return err
	}
	for _, h := range waiting(all, rec.Life.Turn) {
		h.Turn = -1
		if err := o.table.Set(ctx, k, kindHeard, h.ID, h); err != nil {
			return err
		}
	}
	return nil
}

// begin makes the record of an issue.
func (o *Orchestrator) begin(ctx context.Context, f *Forge, k issues.Key, read reading) error {
	t := triggerOf(read.issue, o.Labels)
	repo, _ := f.repo(k.Repo)
	rec := issues.Record{
		Key: k, Agent: t.agent, Bottles: t.bottles, Backend: repo.Backend, GitUser: f.Robot, Status: issues.Running,
		Life: issues.Life{
			Title: safetext.String(read.issue.Title, 200), URL: read.issue.URL, Base: repo.Base,
			Branch: branchOf(k, read.issue.Title), Since: time.Now().UTC(), Waits: "its first turn",
		},
	}
	var err error
	if rec.Life.RepoID, err = f.identity(ctx, repoOf(k)); err != nil {
		return err
	}
	o.Log.Info("an issue is begun", "issue", k.String(), "agent", t.agent, "branch", rec.Life.Branch)
	if err := o.table.Put(ctx, rec); err != nil {
		return err
	}
	return errors.Join(o.table.SetNote(ctx, noteWaiting, k.String(), nil), o.table.SetNote(ctx, noteFailure, k.String(), nil))
}

// anew lets an issue that has ended go on, from its branch.
func (o *Orchestrator) anew(ctx context.Context, f *Forge, k issues.Key, read reading) error {
	t := triggerOf(read.issue, o.Labels)
	o.Log.Info("an issue is begun anew", "issue", k.String(), "agent", t.agent)
	return unlessUnchanged(o.table.Update(ctx, k, func(r *issues.Record) error {
		if r.Status != issues.Destroyed {
			return errUnchanged
		}
		r.Status, r.Agent, r.Bottles, r.GitUser = issues.Running, t.agent, t.bottles, f.Robot
		r.PullRequest, r.Life.PullURL, r.Life.Ending, r.Life.Alone, r.Life.Waits = 0, "", "", 0, "its next turn"
		return nil
	}))
}

// endPull keeps that the pull request has ended, and ends the turn that runs.
func (o *Orchestrator) endPull(ctx context.Context, k issues.Key, how string) error {
	err := o.table.Update(ctx, k, func(r *issues.Record) error {
		if r.Status == issues.Destroyed || r.Life.Ending != "" {
			return errUnchanged
		}
		r.Life.Ending, r.Life.Waits = how, ""
		return nil
	})
	if err == nil {
		o.Log.Info("a pull request has ended", "issue", k.String(), "how", how)
		o.stopTurn(k, errPullEnded)
	}
	return unlessUnchanged(err)
}
