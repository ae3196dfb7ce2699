// Package reviews turns approving reviews at a forge into approvals of plans, where the
// operator's hosts.yaml says so.
//
// A review counts only if all of this holds, by what the forge tells now:
//
//   - The branch is protected at least as hosts.yaml demands, and the pull request is open
//     or merged, of that branch and of exactly the plan's commit.
//   - carboy has posted the plan there, and neither that comment nor the review was edited
//     since.
//   - The review approves that commit, is the last word of its author, is neither
//     dismissed nor stale, and the branch's protection counts it. It was submitted after
//     carboy's comment, while the plan was good.
//   - A line of the review is [Line] of the plan.
//   - Its author is one of hosts.yaml's people, and neither a bot, nor the author of the
//     pull request, nor the account of carboy's token.
//
// Whatever is missing or unclear counts for nothing. What a review proves is the forge's
// word and nothing more: nobody's key signs it.
//
// Start reading at [Judge], which decides; [Read] asks the forge, and [Post] posts a plan.
package reviews

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/ship/hosts"
)

// Bounds of what a forge tells.
const (
	maxReviews = 1000     // of one pull request; more are an error
	maxBody    = 64 << 10 // bytes of a review; a longer one does not count
	// slack bounds the difference between a forge's clock and this machine's.
	slack = 5 * time.Minute
)

// Wanted is a plan to be approved.
type Wanted struct {
	Digest           string // SHA-256 of the plan, in hexadecimal digits
	Commit           string // 40 hexadecimal digits
	Created, Expires time.Time
	Destructive      bool
	// Text describes the plan for people. It is the same at each call.
	Text string
}

// Approval is a review that approves a plan, as the forge told of it.
type Approval struct {
	Approver  string    `json:"approver"` // as in hosts.yaml
	Login     string    `json:"login"`    // at the forge
	API       string    `json:"api"`
	Repo      string    `json:"repo"`
	Pull      int       `json:"pull_request"`
	Review    int64     `json:"review"`
	Commit    string    `json:"commit"`
	Submitted time.Time `json:"submitted"` // by the forge's clock
	Asked     time.Time `json:"asked"`     // by this machine's clock
}

func (a Approval) String() string {
	return fmt.Sprintf("review %d of pull request #%d of %s at %s by %s", a.Review, a.Pull, a.Repo, a.API, a.Login)
}

// Same reports whether two approvals are of the same review, whenever it was asked for.
func (a Approval) Same(b Approval) bool {
	a.Asked, b.Asked = time.Time{}, time.Time{}
	submitted := a.Submitted.Equal(b.Submitted)
	a.Submitted, b.Submitted = time.Time{}, time.Time{}
	return submitted && a == b
}

// Forge is the part of a forge that this package asks. *forge.Client implements it.
type Forge interface {
	Account(ctx context.Context) (forge.Account, error)
	PullRequest(ctx context.Context, repo string, n int) (*forge.PullRequest, error)
	Protection(ctx context.Context, repo, branch string) (*forge.Protection, error)
	Reviews(ctx context.Context, repo string, n int) ([]forge.Review, error)
	ReviewTexts(ctx context.Context, repo string, n int, since time.Time) ([]forge.ReviewText, error)
	Comments(ctx context.Context, repo string, at forge.Thread, since time.Time) ([]forge.Comment, bool, error)
	PostOnce(ctx context.Context, repo string, at forge.Thread, key, body string) (*forge.Comment, error)
	Close()
}

// Open returns a client for the forge of r. Its token is in the environment variable that
// r names; env looks one up. Nothing is sent yet. The caller closes the client.
func Open(r *hosts.Reviews, env func(string) string) (Forge, error) {
	token := env(r.TokenEnv)
	if token == "" {
		return nil, fmt.Errorf("the variable %s, for the token of %s, is empty", r.TokenEnv, r.API)
	}
	return forge.Open(forge.Options{Provider: r.Forge, API: r.API, Token: secret.NewString(token)})
}

// Told holds the answers of a forge about a pull request at one time.
type Told struct {
	Robot      string // the login of carboy's token
	Pull       forge.PullRequest
	Protection forge.Protection
	Reviews    []forge.Review
	Texts      []forge.ReviewText
	Comments   []forge.Comment
	Asked      time.Time // when the first question was sent
}

// Read asks the forge for everything that [Judge] needs about pull request n. since is when
// the first plan was made: older comments are left out.
func Read(ctx context.Context, f Forge, r *hosts.Reviews, n int, since time.Time) (*Told, error) {
	since = since.Add(-slack)
	t := &Told{Asked: time.Now().UTC()}
	a, err := f.Account(ctx)
	if err != nil {
		return nil, err
	}
	t.Robot = a.Login
	if t.Reviews, err = f.Reviews(ctx, r.Repo, n); err != nil {
		return nil, err
	}
	if len(t.Reviews) > maxReviews {
		return nil, fmt.Errorf("pull request #%d of %s has more than %d reviews", n, r.Repo, maxReviews)
	}
	if t.Texts, err = f.ReviewTexts(ctx, r.Repo, n, since); err != nil {
		return nil, err
	}
	var more bool
	if t.Comments, more, err = f.Comments(ctx, r.Repo, forge.Thread{Number: n, Pull: true}, since); err != nil {
		return nil, err
	}
	if more {
		return nil, fmt.Errorf("the comments at pull request #%d of %s are too long to be read", n, r.Repo)
	}
	// Ask last for what the reviews are worth: a change meanwhile is then seen.
	p, err := f.PullRequest(ctx, r.Repo, n)
	if err != nil {
		return nil, err
	}
	b, err := f.Protection(ctx, r.Repo, r.Branch)
	if err != nil {
		return nil, err
	}
	t.Pull, t.Protection = *p, *b
	return t, nil
}

// Line returns the line with which a review approves a plan.
func Line(w Wanted) string {
	if w.Destructive {
		return "plan " + w.Digest + " destructive"
	}
	return "plan " + w.Digest
}

// key marks carboy's comment of a plan.
func key(w Wanted) string { return "plan:" + w.Digest }

// comment returns the text of carboy's comment of a plan. The plan's own text is an
// indented block, which nothing in it can end.
func comment(w Wanted) string {
	var b strings.Builder
	b.WriteString("carboy is asked to apply this plan:\n\n")
	for l := range strings.Lines(w.Text) {
		b.WriteString("    " + safetext.String(strings.TrimRight(l, "\n"), 500) + "\n")
	}
	fmt.Fprintf(&b, "\nTo approve it until %s, submit an approving review of commit %s whose text has this line, as it is:\n\n    %s\n\n", w.Expires.UTC().Format(time.RFC3339), w.Commit, Line(w))
	b.WriteString("A new push, an edit of the review or of this comment, or a dismissal ends the approval.")
	return b.String()
}

// Post posts a plan to pull request n, unless it is there. It posts nothing if the pull
// request or the branch's protection does not suit; the error then says why.
func Post(ctx context.Context, f Forge, r *hosts.Reviews, n int, w Wanted) error {
	p, err := f.PullRequest(ctx, r.Repo, n)
	if err != nil {
		return err
	}
	b, err := f.Protection(ctx, r.Repo, r.Branch)
	if err != nil {
		return err
	}
	if err := errors.Join(weaker(r, b), other(r, p, w)); err != nil {
		return err
	}
	_, err = f.PostOnce(ctx, r.Repo, forge.Thread{Number: n, Pull: true}, key(w), comment(w))
	return err
}

// Judge returns the reviews that approve a plan, sorted by approver, one for each person.
// If fewer people than the operator demands have approved, it returns none, and an error
// that says what is missing. The error also says why reviews by people do not count.
func Judge(r *hosts.Reviews, t *Told, w Wanted, now time.Time) ([]Approval, error) {
	if err := errors.Join(weaker(r, &t.Protection), other(r, &t.Pull, w)); err != nil {
		return nil, err
	}
	posted, err := posting(t, w)
	if err != nil {
		return nil, err
	}
	last, err := lastWords(r, t)
	if err != nil {
		return nil, err
	}
	var out []Approval
	var why []error
	for _, login := range slices.Sorted(maps.Keys(last)) {
		v := last[login]
		submitted, err := counts(t, v, w, posted, now)
		if err != nil {
			why = append(why, fmt.Errorf("the review of %s: %w", shown(v.Author.Login), err))
			continue
		}
		out = append(out, Approval{r.People[login], v.Author.Login, r.API, r.Repo, t.Pull.Number, v.ID, v.Commit, submitted, t.Asked})
	}
	if len(out) < r.AtLeast {
		why = append(why, fmt.Errorf("%d of %d approving reviews of pull request #%d of %s name the plan", len(out), r.AtLeast, t.Pull.Number, r.Repo))
		return nil, errors.Join(why...)
	}
	slices.SortFunc(out, func(a, b Approval) int { return strings.Compare(a.Approver, b.Approver) })
	return out, nil
}

// weaker returns an error if a branch's protection is weaker than demanded, or if the forge
// does not tell how strong it is.
func weaker(r *hosts.Reviews, b *forge.Protection) error {
	says := func(format string, args ...any) error {
		return fmt.Errorf("branch %s of %s: %s", r.Branch, r.Repo, fmt.Sprintf(format, args...))
	}
	switch {
	case !b.Protected:
		return says("is not protected")
	case b.Approvals < r.Approvals:
		return says("its protection requires %d approvals, and hosts.yaml demands %d", b.Approvals, r.Approvals)
	case b.DismissStale == nil:
		return says("the forge does not tell its protection: the token's user must be an administrator of the repository")
	case r.DismissStale && !*b.DismissStale:
		return says("its protection does not dismiss approvals after a push")
	case len(b.Mergers) == 0:
		return says("its protection does not say who may merge")
	case len(b.MergerTeams) > 0:
		return says("its protection lets team %s merge; hosts.yaml names people", shown(b.MergerTeams[0]))
	}
	for _, m := range b.Mergers {
		if !slices.Contains(r.Mergers, strings.ToLower(m)) {
			return says("its protection lets %s merge, whom hosts.yaml does not name", shown(m))
		}
	}
	return nil
}

// other returns an error if a pull request is not of the branch and the plan's commit.
func other(r *hosts.Reviews, p *forge.PullRequest, w Wanted) error {
	says := func(format string, args ...any) error {
		return fmt.Errorf("pull request #%d of %s: %s", p.Number, r.Repo, fmt.Sprintf(format, args...))
	}
	switch {
	case !p.Open && !p.Merged:
		return says("is closed and not merged")
	case p.Base != r.Branch:
		return says("is into %s, and not into %s", shown(p.Base), r.Branch)
	case p.HeadCommit != w.Commit:
		return says("is of commit %.12s, and the plan of %.12s", shown(p.HeadCommit), w.Commit)
	case p.Author.Login == "":
		return says("its author is gone")
	}
	return nil
}

// posting returns when carboy posted a plan, as it stands there now.
func posting(t *Told, w Wanted) (time.Time, error) {
	want := forge.Marked(key(w), comment(w))
	for _, m := range t.Comments {
		if !strings.EqualFold(m.Author.Login, t.Robot) || !strings.HasSuffix(strings.TrimSpace(m.Body), forge.Marked(key(w), "")) {
			continue
		}
		if strings.TrimSpace(strings.ReplaceAll(m.Body, "\r\n", "\n")) != want || !m.Updated.Equal(m.Created) {
			return time.Time{}, fmt.Errorf("carboy's comment %d with the plan was edited, and nobody knows what reviewers saw: delete it, and the plan is posted again", m.ID)
		}
		return m.Created, nil
	}
	return time.Time{}, fmt.Errorf("the plan is not posted at pull request #%d", t.Pull.Number)
}

// lastWords returns the last review that approves or asks for changes of each of the
// people, by login. It returns an error if one of them asks for changes.
func lastWords(r *hosts.Reviews, t *Told) (map[string]forge.Review, error) {
	last := map[string]forge.Review{}
	for _, v := range t.Reviews {
		login := strings.ToLower(v.Author.Login)
		if r.People[login] == "" || v.State != forge.Approved && v.State != forge.ChangesRequested {
			continue
		}
		if was, ok := last[login]; !ok || v.ID > was.ID {
			last[login] = v
		}
	}
	for _, login := range slices.Sorted(maps.Keys(last)) {
		v := last[login]
		if v.State == forge.ChangesRequested && !v.Dismissed {
			return nil, fmt.Errorf("%s asks for changes in review %d of pull request #%d", shown(v.Author.Login), v.ID, t.Pull.Number)
		}
	}
	return last, nil
}

// counts returns when a review was submitted, or an error if it does not count for the plan.
func counts(t *Told, v forge.Review, w Wanted, posted, now time.Time) (time.Time, error) {
	var none time.Time
	switch {
	case v.State != forge.Approved:
		return none, errors.New("does not approve")
	case v.Author.Bot:
		return none, errors.New("is a bot's")
	case strings.EqualFold(v.Author.Login, t.Pull.Author.Login):
		return none, errors.New("is of the author of the pull request")
	case strings.EqualFold(v.Author.Login, t.Robot):
		return none, errors.New("is of the account of carboy's token")
	case v.Dismissed:
		return none, errors.New("was dismissed")
	case v.Stale:
		return none, errors.New("is stale: a push came after it")
	case !v.Official:
		return none, errors.New("is not counted by the branch's protection")
	case v.Void:
		return none, errors.New("does not count at the forge")
	case v.Commit != w.Commit:
		return none, fmt.Errorf("is of commit %.12s, and the plan of %.12s", shown(v.Commit), w.Commit)
	}
	text, err := textOf(t, v)
	if err != nil {
		return none, err
	}
	at := text.Created
	switch {
	case !hasLine(v.Body, Line(w)):
		return none, fmt.Errorf("has no line %q", Line(w))
	case at.Before(posted):
		return none, errors.New("is older than carboy's comment with the plan")
	case at.Before(w.Created.Add(-slack)) || at.After(w.Expires) || at.After(now.Add(slack)):
		return none, errors.New("was not submitted while the plan was good")
	}
	return at.UTC(), nil
}

// textOf returns the text of a review, which nobody may have edited or removed.
func textOf(t *Told, v forge.Review) (*forge.ReviewText, error) {
	var found *forge.ReviewText
	for i, x := range t.Texts {
		if x.Review != v.ID {
			continue
		}
		if found != nil {
			return nil, errors.New("has two texts")
		}
		found = &t.Texts[i]
	}
	switch {
	case found == nil:
		return nil, errors.New("has no text any more, or is older than the plan")
	case found.Body != v.Body || !found.Updated.Equal(found.Created) || !strings.EqualFold(found.Author.Login, v.Author.Login):
		return nil, errors.New("was edited after it was submitted: submit a new one")
	case len(v.Body) > maxBody:
		return nil, fmt.Errorf("has more than %d bytes", maxBody)
	}
	return found, nil
}

// hasLine reports whether a text has a line, apart from blanks around it.
func hasLine(text, line string) bool {
	for l := range strings.Lines(text) {
		if strings.TrimSpace(l) == line {
			return true
		}
	}
	return false
}

func shown(s string) string { return safetext.String(s, 100) }
