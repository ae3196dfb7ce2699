package orchestrate

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/forgeservice"
	"github.com/carboy/carboy/internal/issues"
	"github.com/carboy/carboy/internal/safetext"
)

// StatusContext names the commit status with a gate's verdict.
const StatusContext = "carboy/gate"

// Bounds of a pull request's description.
const (
	maxAreas     = 12
	maxAreaFiles = 8
	maxPullTitle = 120
)

// publish tells the forge what became of a commit that a turn pushed: its status, and if the
// gate passed it, the pull request. It sets the pull request in the record.
func (o *Orchestrator) publish(ctx context.Context, rec *issues.Record, e turnEntry) error {
	f := o.forgeOf(rec.Key)
	if f == nil {
		return nil // it was one when the turn began; the look says that it is no more
	}
	repo := repoOf(rec.Key)
	tell := func(what string, do func(context.Context) error) error {
		return o.persist(ctx, rec.Key, what, func(ctx context.Context) error {
			if err := o.same(ctx, f, rec); err != nil {
				return err
			}
			return do(ctx)
		})
	}
	rec.Life.Head = e.Result.Commit
	if err := tell("set the commit's status", func(ctx context.Context) error {
		return f.shipper().SetStatus(ctx, repo, e.Result.Commit, statusOf(e.Result))
	}); err != nil || e.Result.Outcome != "passed" {
		return err
	}
	issue := &forge.Issue{}
	if err := tell("read the issue", func(ctx context.Context) (err error) {
		issue, err = f.Client.Issue(ctx, repo, forge.Thread{Number: int(rec.Number)})
		return err
	}); err != nil {
		return err
	}
	d := describer{forge: f, rec: rec, entry: e}
	var pull *forge.PullRequest
	if err := tell("open the pull request", func(ctx context.Context) (err error) {
		pull, err = o.openPull(ctx, f, rec, forge.NewPullRequest{
			Base: rec.Life.Base, Head: rec.Life.Branch, Title: d.title(issue.Title), Body: forge.Described("", d.block()),
		})
		return err
	}); err != nil {
		return err
	}
	// It was there before if this is not the first turn, or the process died after it.
	return tell("describe the pull request", func(ctx context.Context) error {
		at := forge.Thread{Number: pull.Number, Pull: true}
		now, err := f.Client.Issue(ctx, repo, at)
		if err != nil {
			return err
		}
		return f.writer().UpdateDescription(ctx, repo, at, forge.Text(now.Body), d.block())
	})
}

// openPull opens the pull request of an issue, or returns the one that it has. People may have
// closed or merged that already: it is not opened a second time. The record says so, or
// since when one may have been opened before a process died.
func (o *Orchestrator) openPull(ctx context.Context, f *Forge, rec *issues.Record, p forge.NewPullRequest) (pull *forge.PullRequest, err error) {
	repo := repoOf(rec.Key)
	if rec.PullRequest > 0 {
		return f.shipper().PullRequest(ctx, repo, int(rec.PullRequest))
	}
	before := false
	err = o.table.Update(ctx, rec.Key, func(r *issues.Record) error {
		if before = !r.Life.Opening.IsZero(); !before {
			r.Life.Opening = time.Now().UTC()
		}
		rec.Life.Opening = r.Life.Opening
		return nil
	})
	if err == nil && before {
		pull, err = o.opened(ctx, f, rec)
	}
	if err == nil && pull == nil {
		pull, err = f.shipper().OpenPullRequest(ctx, repo, p)
	}
	if err != nil {
		return nil, err
	}
	rec.PullRequest, rec.Life.PullURL, rec.Life.Opening = int64(pull.Number), safetext.String(pull.URL, 500), time.Time{}
	if !slices.Contains(rec.Life.Pulls, rec.PullRequest) {
		rec.Life.Pulls = append(rec.Life.Pulls, rec.PullRequest)
	}
	o.knowPull(rec.Key, rec.PullRequest)
	return pull, o.table.Update(ctx, rec.Key, func(r *issues.Record) error {
		r.PullRequest, r.Life.PullURL, r.Life.Pulls, r.Life.Opening = rec.PullRequest, rec.Life.PullURL, rec.Life.Pulls, time.Time{}
		return nil
	})
}

// clocks bounds how far the forge's clock may be behind ours.
const clocks = 24 * time.Hour

// opened returns the pull request that was opened for the record's head, whatever became of
// it, or nil.
func (o *Orchestrator) opened(ctx context.Context, f *Forge, rec *issues.Record) (*forge.PullRequest, error) {
	changed, err := f.Client.Changed(ctx, repoOf(rec.Key), rec.Life.Opening.Add(-clocks))
	if err != nil {
		return nil, err
	}
	for _, i := range changed {
		if !i.Pull || !strings.EqualFold(i.Author.Login, f.Robot) || slices.Contains(rec.Life.Pulls, int64(i.Number)) {
			continue
		}
		p, err := f.shipper().PullRequest(ctx, repoOf(rec.Key), i.Number)
		if err != nil {
			return nil, err
		}
		if p.Head == rec.Life.Branch && p.Base == rec.Life.Base && !p.Fork {
			return p, nil
		}
	}
	return nil, nil
}

// statusOf returns the status of the commit of a turn.
func statusOf(r *TurnResult) forge.Status {
	s := forge.Status{Context: StatusContext, State: "failure", Description: "the gate " + outcomeWords(r.Outcome)}
	switch {
	case r.Outcome == "passed":
		s.State, s.Description = "success", "the gate passed it"
	case r.Outcome == "":
		s.State, s.Description = "error", "nothing was judged"
	}
	if r.Verdict != "" {
		s.Description += "; verdict " + safetext.String(r.Verdict, 80)
	}
	return s
}

// describer writes title and description of a pull request. Whatever an agent or a stranger
// wrote refers to nothing there, so that it closes no issue.
type describer struct {
	forge *Forge
	rec   *issues.Record
	entry turnEntry
}

func (d describer) inert(s string) string {
	scope, err := forgeservice.NewScope(int(d.rec.Number))
	if err != nil {
		return ""
	}
	return forgeservice.Inert(forge.Target{Repo: repoOf(d.rec.Key)}, scope, d.forge.Client.NumbersApart(), s)
}

func (d describer) title(issue string) string {
	title := strings.TrimSpace(d.inert(safetext.String(issue, maxPullTitle)))
	if title == "" {
		title = fmt.Sprintf("Issue %d", d.rec.Number)
	}
	return title
}

// block returns carboy's own part of the description.
func (d describer) block() string {
	res := d.entry.Result
	var b strings.Builder
	fmt.Fprintf(&b, "Closes #%d\n", d.rec.Number)
	if d.entry.Summary != "" {
		fmt.Fprintf(&b, "\n**Summary, by the agent `%s` in a carboy bottle:**\n\n", plain(d.rec.Agent))
		for line := range strings.Lines(d.entry.Summary) {
			b.WriteString("> " + strings.TrimRight(line, "\n") + "\n")
		}
	}
	if len(res.Files) > 0 {
		b.WriteString("\n**Changed files:**\n\n" + d.inert(areas(res.Files)) + "\n")
	}
	pointer := "carboy judged nothing here."
	if res.Verdict != "" {
		pointer = fmt.Sprintf("Gate verdict `%s`, SHA-256 `%s`.", plain(res.Verdict), plain(res.Digest))
	}
	fmt.Fprintf(&b, "\n%s This is a pointer, not the record: after the merge, `carboy provenance verify COMMIT` checks the signed provenance.\n", pointer)
	return b.String()
}

// plain returns a name for a code span.
func plain(s string) string {
	return strings.ReplaceAll(safetext.String(s, 100), "`", "'")
}

// areas lists files by the directory at the top.
func areas(files []File) string {
	by := map[string][]File{}
	for _, f := range files {
		top, _, below := strings.Cut(path.Clean(f.Path), "/")
		if !below {
			top = "."
		}
		by[top] = append(by[top], f)
	}
	names := make([]string, 0, len(by))
	for n := range by {
		names = append(names, n)
	}
	slices.Sort(names)
	var b strings.Builder
	for i, n := range names {
		if i == maxAreas {
			fmt.Fprintf(&b, "- and %d more directories\n", len(names)-i)
			break
		}
		added, removed := 0, 0
		var list []string
		for j, f := range by[n] {
			added, removed = added+max(f.Added, 0), removed+max(f.Removed, 0)
			if j < maxAreaFiles {
				list = append(list, "`"+plain(f.Path)+"`")
			}
		}
		more := ""
		if k := len(by[n]) - len(list); k > 0 {
			more = fmt.Sprintf(" and %d more", k)
		}
		fmt.Fprintf(&b, "- `%s` (+%d −%d): %s%s\n", plain(n), added, removed, strings.Join(list, ", "), more)
	}
	return strings.TrimRight(b.String(), "\n")
}
