package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gitgate"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise"
)

// WatchedSecrets implements repos.User.
func (s *Session) WatchedSecrets() map[string]secret.Value {
	known, _ := s.inside.Watched()
	return known
}

// AllowPush implements repos.User.
func (s *Session) AllowPush(ctx context.Context, a gitgate.Allow) (by string, err error) {
	if s.approvals == nil {
		return "", fault.ErrNobody
	}
	o, err := ask(ctx, s.approvals, supervise.GitleaksAllow{
		Repository: a.Repo, Refs: []string{fault.Fit(a.Ref, 1024)},
		Findings: []supervise.GitFinding{{
			Commit: a.Commit, File: fault.Fit(a.File, 4096), Line: a.Line, Rule: fault.Fit(a.Rule, 128), Value: supervise.Fingerprint([32]byte(s.Plan.AskKey), a.Code),
			Code: []supervise.CodeLine{{Number: a.Line, Text: fault.Fit(a.Text, 1024)}},
		}},
	}, draft("git push", ""), func(supervise.Approval[supervise.GitleaksAllow]) error { return nil })
	switch {
	case err != nil:
		return "", fmt.Errorf("nobody could be asked: %s", s.approvals.told(err.Error()))
	case !o.Allowed():
		return "", errors.New(s.approvals.message(o))
	}
	return o.Answer.By.String(), nil
}

// gitLog names the log with a line for each exchange with an upstream.
const gitLog = "git"

// maxGitLog bounds that log, in bytes.
const maxGitLog = 8 << 20

// gitAccount records what a run does through the git gate.
type gitAccount struct {
	mu    sync.Mutex
	rec   *receipt.Git
	index map[string]int // of repositories in rec
	notes *egressNotes   // takes out what spells a secret
	log   *os.File       // nil: nothing happened yet, or it can't be written
	left  int64          // of the log, in bytes
	over  bool
}

// openGit begins the account of a run that has a gate.
func (s *Session) openGit() {
	g := s.o.Grant
	if g == nil || g.Mount == nil {
		return
	}
	a := &gitAccount{rec: &receipt.Git{}, index: map[string]int{}, left: maxGitLog, notes: &egressNotes{s: s}}
	for _, r := range g.Git.Repos {
		if len(a.rec.Repos) < receipt.MaxGitRepos {
			a.index[r.Name] = len(a.rec.Repos)
			a.rec.Repos = append(a.rec.Repos, receipt.GitRepo{Name: r.Name, URL: store.Raw(r.URL)})
		}
	}
	s.git = a
	g.Mount.Use(s)
}

// GitDone records one exchange. It may be called from any goroutine.
func (s *Session) GitDone(ev gitgate.Event) {
	a := s.git
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return
	}
	ev = a.clean(ev)
	a.count(ev)
	subject := ev.Repo
	if ev.Op == opPush {
		subject += " " + shownRefs(ev.Refs)
	}
	decision, kind := audit.Allowed, audit.GitFetch
	if ev.Verdict == gitgate.Refused {
		decision = audit.Refused
	} else if ev.Verdict == gitgate.Failed {
		decision = audit.Noted
	}
	text := string(ev.Verdict)
	if ev.Reason != "" {
		text += ": " + oneLine(ev.Reason)
	}
	if ev.Op == opPush {
		kind = audit.GitPush
		text += fmt.Sprintf("; %d commits, %d objects, %d bytes looked through", ev.New, ev.Objects, ev.Scanned)
		for i, f := range ev.Findings {
			if i == 5 {
				text += fmt.Sprintf("; and %d findings more", len(ev.Findings)-i)
				break
			}
			text += "; " + shownFinding(f)
		}
	}
	a.line(s, ev, subject, text)
	if ev.Op != opPush && ev.Verdict == gitgate.Done {
		return // summed up at the end
	}
	s.note(kind, decision, subject, "git-gate.repos."+ev.Repo, text)
	s.events.send(gitEvent(ev))
}

const opPush = "push"

// gitEvent returns the event to show for a push, or for an exchange that failed.
func gitEvent(ev gitgate.Event) plan.Event {
	what := map[gitgate.Verdict]string{gitgate.Done: "done", gitgate.Refused: "refused", gitgate.Failed: "failed"}[ev.Verdict]
	out := plan.Event{Kind: "git", Name: ev.Repo, Rule: "git-gate.repos." + ev.Repo}
	why := ev.Reason
	if ev.Op == opPush && ev.Verdict == gitgate.Done {
		why = shownRefs(ev.Refs)
	}
	if ev.Verdict == gitgate.Refused {
		out.Kind = "refused"
	}
	out.Text = ev.Op + " " + what + ": " + oneLine(why)
	return out
}

// clean returns ev with secrets masked in all texts. The command chooses the names of
// references and files, so it could write the secret there that its push was refused for.
func (a *gitAccount) clean(ev gitgate.Event) gitgate.Event {
	ev.Refs, ev.Findings, ev.Options = slices.Clone(ev.Refs), slices.Clone(ev.Findings), nil
	texts := []*string{&ev.Reason}
	for i := range ev.Refs {
		texts = append(texts, &ev.Refs[i].Name, &ev.Refs[i].Result)
	}
	for i := range ev.Findings {
		texts = append(texts, &ev.Findings[i].File, &ev.Findings[i].Allow)
	}
	for i, t := range texts {
		switch {
		case *t == "":
		case i > maxCleaned:
			*t = plan.NotShown
		default:
			*t = a.notes.cleaned(*t)
		}
	}
	return ev
}

// maxCleaned bounds the texts of one push that are searched for secrets. Later texts are
// not shown; the receipt's lists end before them.
const maxCleaned = 2*receipt.MaxPushRefs + 2*receipt.MaxPushFindings + 50

// oneLine joins the first two lines of a text.
func oneLine(s string) string {
	lines := strings.Split(strings.ReplaceAll(s, `\n`, "\n"), "\n") // also made visible
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines[:min(len(lines), 2)], ", ")
}

// count adds an exchange to the receipt.
func (a *gitAccount) count(ev gitgate.Event) {
	i, ok := a.index[ev.Repo]
	if !ok {
		return
	}
	r := &a.rec.Repos[i]
	r.BytesUp += ev.In
	r.BytesDown += ev.Out
	switch {
	case ev.Op != opPush && ev.Verdict == gitgate.Done:
		r.Fetches++
	case ev.Op != opPush:
		r.FetchesFailed++
	case ev.Verdict == gitgate.Done:
		r.Pushes++
	case ev.Verdict == gitgate.Refused:
		r.PushesRefused++
	default:
		r.PushesFailed++
	}
	if ev.Op != opPush {
		return
	}
	a.rec.PushesTotal++
	if len(a.rec.Pushes) == receipt.MaxPushes {
		// Refused and failed pushes must not hide a push that left.
		i := lastBelow(a.rec.Pushes, ev.Verdict)
		if i < 0 {
			return
		}
		a.rec.Pushes = slices.Delete(a.rec.Pushes, i, i+1)
	}
	a.rec.Pushes = append(a.rec.Pushes, pushOf(ev))
}

// lastBelow returns the index of the last push that is less important than one with
// verdict v: a refused push counts least, then a failed one. It returns -1 if there is
// none.
func lastBelow(list []receipt.Push, v gitgate.Verdict) int {
	for _, less := range []receipt.PushVerdict{receipt.PushRefused, receipt.PushFailed} {
		if v == gitgate.Refused || v == gitgate.Failed && less == receipt.PushFailed {
			break
		}
		for i, p := range slices.Backward(list) {
			if p.Verdict == less {
				return i
			}
		}
	}
	return -1
}

func pushOf(ev gitgate.Event) receipt.Push {
	verdict, ok := map[gitgate.Verdict]receipt.PushVerdict{gitgate.Done: receipt.Pushed, gitgate.Refused: receipt.PushRefused}[ev.Verdict]
	if !ok {
		verdict = receipt.PushFailed
	}
	p := receipt.Push{
		Repo: ev.Repo, Verdict: verdict, Reason: safetext.String(oneLine(ev.Reason), 500), RefsTotal: int64(len(ev.Refs)), CommitsTotal: max(int64(ev.New), int64(len(ev.Commits))),
		Objects: int64(ev.Objects), Scanned: ev.Scanned, FoundTotal: int64(len(ev.Findings)), Bytes: ev.In,
		Commits: append([]string(nil), fault.Cut(ev.Commits, receipt.MaxPushCommits)...),
	}
	for _, r := range fault.Cut(ev.Refs, receipt.MaxPushRefs) {
		p.Refs = append(p.Refs, receipt.PushRef{Name: store.Raw(r.Name), Old: objectName(r.Old), New: objectName(r.New), Result: safetext.String(r.Result, 200)})
	}
	for _, f := range fault.Cut(ev.Findings, receipt.MaxPushFindings) {
		p.Found = append(p.Found, receipt.PushFound{
			Rule: f.Rule, Secret: f.Secret, Transform: f.Transform, Commit: f.Commit, Where: f.Where, File: store.Raw(f.File), Line: int64(f.Line), Allow: safetext.String(f.Allow, 200),
		})
	}
	return p
}

// objectName returns s, or "" for the zero object name.
func objectName(s string) string {
	if strings.Trim(s, "0") == "" {
		return ""
	}
	return s
}

// shownRefs lists the references that a push changes.
func shownRefs(refs []gitgate.RefUpdate) string {
	const shown = 5
	var parts []string
	for i, r := range refs {
		if i == shown {
			parts = append(parts, fmt.Sprintf("%d more", len(refs)-i))
			break
		}
		name := safetext.String(r.Name, 120)
		was, is := objectName(r.Old), objectName(r.New)
		switch {
		case is == "":
			name += " deleted"
		case was == "":
			name += " new " + short(is)
		default:
			name += " " + short(was) + ".." + short(is)
		}
		parts = append(parts, name)
	}
	return strings.Join(parts, ", ")
}

func short(object string) string { return fault.CutText(safetext.String(object, 64), 12) }

func shownFinding(f gitgate.Finding) string {
	s := f.Rule
	if f.Secret != "" {
		s += " " + f.Secret
	}
	s += " in " + f.Where
	if f.File != "" {
		s += " " + safetext.String(f.File, 200)
	}
	if f.Line > 0 {
		s += fmt.Sprintf(":%d", f.Line)
	}
	if f.Commit != "" {
		s += " of commit " + short(f.Commit)
	}
	if f.Allow != "" {
		s += " (asked: " + safetext.String(f.Allow, 120) + ")"
	}
	return s
}

// line writes one line of the log. If it can't be written, the receipt still counts the
// exchange.
func (a *gitAccount) line(s *Session, ev gitgate.Event, subject, text string) {
	if a.log == nil && a.left == maxGitLog {
		f, err := s.run.OpenLog(gitLog)
		if err != nil {
			a.left = 0
			return
		}
		a.log = f
	}
	line := fmt.Sprintf("%s %-5s %s: %s (%d bytes up, %d down, %s)\n", ev.Start.UTC().Format(time.RFC3339Nano), ev.Op,
		safetext.String(subject, 600), safetext.String(text, 1000), ev.In, ev.Out, ev.Duration.Round(time.Millisecond))
	if a.left -= int64(len(line)); a.left < 0 || a.log == nil {
		return
	}
	if _, err := a.log.WriteString(line); err != nil {
		a.left = 0
	}
}

// endGit ends the gate of a run, revokes its keys and completes the account. The bottle
// can send no more requests.
func (s *Session) endGit(ctx context.Context) {
	a := s.git
	if a == nil {
		return
	}
	m := s.o.Grant.Mount
	m.End(context.WithoutCancel(ctx))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	if a.log != nil {
		a.log.Close()
	}
	m.Mu.Lock()
	a.rec.Keys = append([]receipt.GitKey(nil), m.Made...)
	m.Mu.Unlock()
	s.Rec.Git = a.rec
	for _, l := range m.Left {
		s.Rec.Notes = append(s.Rec.Notes, fault.Sentence(safetext.String(l.Error()+"; "+l.Advice(), 600)))
		s.events.send(plan.Event{Kind: "git", Text: safetext.String(l.Error(), 300)})
	}
}

// fetched sums up the fetches of each repository for the audit log.
func (s *Session) fetched() (out []audit.Event) {
	if s.Rec.Git == nil {
		return nil
	}
	for _, r := range s.Rec.Git.Repos {
		if r.Fetches == 0 {
			continue
		}
		ev := s.event(audit.GitFetch, audit.Allowed)
		ev.Actor, ev.Subject, ev.Rule = audit.ByBottle, s.text(r.Name), s.text("git-gate.repos."+r.Name)
		ev.Text = s.text(fmt.Sprintf("%d answers of %s, %d bytes down", r.Fetches, r.URL, r.BytesDown))
		out = append(out, ev)
	}
	return out
}
