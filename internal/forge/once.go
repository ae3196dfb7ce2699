package forge

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Account asks whose token it is, and what it may do.
func (c *Client) Account(ctx context.Context) (Account, error) {
	a, err := c.vendor.account(ctx, c)
	if err == nil && a.Login == "" {
		err = fmt.Errorf("%s: the forge does not say whose token it is", c.provider)
	}
	return a, err
}

// errUnknown means that the forge does not tell a need before it is used.
var errUnknown = errors.New("unknown")

// Lacks returns the scopes or permissions that the token lacks for needs, and the needs of
// which the forge does not tell before they are used. It changes nothing.
func (c *Client) Lacks(ctx context.Context, repo, org string, needs ...Need) (lacks []string, unknown []Need, err error) {
	if err := errors.Join(checkRepo(c.provider, repo), checkNames(org)); err != nil {
		return nil, nil, err
	}
	for _, n := range needs {
		s, err := c.vendor.lacks(ctx, c, repo, org, n)
		switch {
		case errors.Is(err, errUnknown):
			unknown = append(unknown, n)
		case err != nil:
			return nil, nil, err
		case s != "" && !slices.Contains(lacks, s):
			lacks = append(lacks, s)
		}
	}
	return lacks, unknown, nil
}

// Member reports whether a user is a member of an organisation.
func (c *Client) Member(ctx context.Context, org, login string) (bool, error) {
	if login == "" {
		return false, nil // an account that is gone
	}
	if err := checkNames(login); err != nil {
		return false, err
	}
	if err := checkNames(strings.Split(org, "/")...); err != nil {
		return false, err
	}
	return c.vendor.member(ctx, c, org, login)
}

// Access returns what a user may do at a repository. An error is no access, too.
func (c *Client) Access(ctx context.Context, repo, login string) (Access, error) {
	if login == "" {
		return NoAccess, nil // an account that is gone
	}
	if err := errors.Join(checkRepo(c.provider, repo), checkNames(login)); err != nil {
		return NoAccess, err
	}
	return c.vendor.access(ctx, c, repo, login)
}

// wrong reports that an answer is about something else than what was asked for.
func (c *Client) wrong(repo string, at Thread, got int) error {
	if got == at.Number {
		return nil
	}
	return fmt.Errorf("%s: asked for %s of %s, the forge answers with number %d", c.provider, at, repo, got)
}

// Issue reads an issue, or a pull request as one.
func (c *Client) Issue(ctx context.Context, repo string, at Thread) (*Issue, error) {
	if err := checkRepo(c.provider, repo); err != nil {
		return nil, err
	}
	i, _, err := c.vendor.issue(ctx, c, repo, at)
	if err == nil {
		err = c.wrong(repo, at, i.Number)
	}
	if err != nil {
		return nil, err
	}
	return &i, nil
}

// PullRequest reads a pull request.
func (c *Client) PullRequest(ctx context.Context, repo string, n int) (*PullRequest, error) {
	if err := checkRepo(c.provider, repo); err != nil {
		return nil, err
	}
	p, err := c.vendor.pull(ctx, c, repo, n)
	if err == nil {
		err = c.wrong(repo, Thread{n, true}, p.Number)
	}
	if err != nil {
		return nil, err
	}
	return &p, nil
}

// Changed lists the issues and pull requests, open and closed, that changed since a time.
func (c *Client) Changed(ctx context.Context, repo string, since time.Time) ([]Issue, error) {
	if err := checkRepo(c.provider, repo); err != nil {
		return nil, err
	}
	return c.vendor.changed(ctx, c, repo, since)
}

// Repository reads what a repository is. Its ID tells whether another has taken its name.
func (c *Client) Repository(ctx context.Context, repo string) (Repository, error) {
	if err := checkRepo(c.provider, repo); err != nil {
		return Repository{}, err
	}
	r, err := c.vendor.repository(ctx, c, repo)
	switch {
	case err != nil:
		return Repository{}, err
	case r.ID <= 0 || !strings.EqualFold(r.FullName, repo):
		return Repository{}, fmt.Errorf("%s: asked for the repository %s, the forge answers with number %d, %.100q", c.provider, repo, r.ID, r.FullName)
	}
	return r, nil
}

// Commit reads a commit by its full name.
func (c *Client) Commit(ctx context.Context, repo, commit string) (Commit, error) {
	if err := errors.Join(checkRepo(c.provider, repo), checkCommit(commit)); err != nil {
		return Commit{}, err
	}
	out, err := c.vendor.commit(ctx, c, repo, commit)
	if err != nil {
		return Commit{}, err
	}
	if out.SHA != commit {
		return Commit{}, fmt.Errorf("%s: asked for the commit %s of %s, the forge answers with %.80q", c.provider, commit, repo, out.SHA)
	}
	names := slices.Clone(out.Parents)
	if out.Tree != "" || c.provider == "github" {
		names = append(names, out.Tree)
	}
	for _, name := range names {
		if checkCommit(name) != nil {
			return Commit{}, fmt.Errorf("%s: the commit %s of %s has %.80q for its tree or a parent", c.provider, commit, repo, name)
		}
	}
	return out, nil
}

// checkCommit refuses what is not the full name of a commit.
func checkCommit(s string) error {
	if len(s) != 40 && len(s) != 64 || strings.Trim(s, "0123456789abcdef") != "" {
		return fmt.Errorf("%.80q is not a commit", s)
	}
	return nil
}

// EachComment calls each for the comments that were made or changed since a time, the oldest
// first, until it returns false. The zero time means all. more reports whether some were left
// out, since one has more than 8 MB or they are too many: about 10,000, on Gitea those of more
// than 8 MB together in about 25,000 events.
func (c *Client) EachComment(ctx context.Context, repo string, at Thread, since time.Time, each func(Comment) bool) (more bool, err error) {
	if err := checkRepo(c.provider, repo); err != nil {
		return false, err
	}
	l, err := c.vendor.comments(ctx, c, repo, at, since, each)
	return l.rest || l.large > 0, err
}

// Comments lists the comments that EachComment shows, the oldest first, of at most 16 MB.
// more reports whether some were left out: who asks again since the last one's Updated gets
// those that follow, and [Client.EachComment] has no bound of its own.
func (c *Client) Comments(ctx context.Context, repo string, at Thread, since time.Time) (list []Comment, more bool, err error) {
	size, full := 0, false
	more, err = c.EachComment(ctx, repo, at, since, func(m Comment) bool {
		size += len(m.Body)
		if full = size > c.textSize && len(list) > 0; !full {
			list = append(list, m)
		}
		return !full
	})
	if err != nil {
		return nil, false, err
	}
	return list, more || full, nil
}

// Reviews lists the reviews of a pull request that were submitted, the oldest first.
func (c *Client) Reviews(ctx context.Context, repo string, n int) ([]Review, error) {
	if err := checkRepo(c.provider, repo); err != nil {
		return nil, err
	}
	return c.vendor.reviews(ctx, c, repo, n)
}

// ReviewTexts lists the texts of the submitted reviews of a pull request that were made or
// edited since a time, the oldest first. Only Gitea tells them.
func (c *Client) ReviewTexts(ctx context.Context, repo string, n int, since time.Time) ([]ReviewText, error) {
	v, ok := c.vendor.(interface {
		reviewTexts(ctx context.Context, c *Client, repo string, n int, since time.Time) ([]ReviewText, error)
	})
	if !ok {
		return nil, fmt.Errorf("%s: the forge is not asked whether a review was edited", c.provider)
	}
	if err := checkRepo(c.provider, repo); err != nil {
		return nil, err
	}
	return v.reviewTexts(ctx, c, repo, n, since)
}

// Protection reads what guards a branch.
func (c *Client) Protection(ctx context.Context, repo, branch string) (*Protection, error) {
	if err := errors.Join(checkRepo(c.provider, repo), checkNames(branch)); err != nil {
		return nil, err
	}
	p, err := c.vendor.protection(ctx, c, repo, branch)
	if err != nil {
		return nil, err
	}
	return &p, nil
}

// me returns the name of the token's account.
func (c *Client) me(ctx context.Context) (string, error) {
	c.mu.Lock()
	login := c.login
	c.mu.Unlock()
	if login != "" {
		return login, nil
	}
	a, err := c.Account(ctx)
	if err != nil {
		return "", fmt.Errorf("find out whose token it is: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.login = a.Login
	return a.Login, nil
}

// once does what must be done only once. look finds it; do does it. If do fails although
// it may have arrived, it looks again for a while, and does nothing more: the next call
// looks first.
func once[T any](ctx context.Context, c *Client, look, do func() (*T, error)) (*T, error) {
	if found, err := look(); found != nil || err != nil {
		return found, err
	}
	made, err := do()
	if err == nil {
		return made, nil
	}
	looks := 3
	if declined(err) {
		looks = 1 // it may be there all the same: another did it meanwhile
	}
	for i := range looks {
		if i > 0 && c.pause(ctx, c.backoff<<i) != nil {
			break
		}
		found, lerr := look()
		if lerr != nil {
			break
		}
		if found != nil {
			return found, nil
		}
	}
	if !declined(err) {
		err = fmt.Errorf("%w (it may have arrived; a second call will find it)", err)
	}
	return nil, err
}

const mark = "<!-- carboy:"

// maxPost bounds a comment in bytes, so that its page can always be read again.
const maxPost = 1 << 20

// unmarked returns text of others without our marks. They are not shown on a page.
func unmarked(text string) string { return strings.ReplaceAll(text, mark, "<!- carboy:") }

// Marked returns the text of the comment that [Client.PostOnce] posts. Without a body it is
// the mark, with which the comment ends.
func Marked(key, body string) string {
	return strings.TrimSpace(strings.TrimSpace(body) + "\n\n" + mark + key + " -->")
}

// PostOnce posts a comment unless the token's account has posted one with this key there. It
// returns the comment, new or old. key is of letters, digits and "._/:" and single dashes;
// it ends the comment, where a page does not show it. body has at most 1 MB. It posts nothing
// where there are too many comments to look at all of them; see [Client.EachComment].
func (c *Client) PostOnce(ctx context.Context, repo string, at Thread, key, body string) (*Comment, error) {
	if key == "" || len(key) > 200 || strings.Contains(key, "--") || strings.Trim(key, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._/:-") != "" {
		return nil, fmt.Errorf("%.100q can't mark a comment", key)
	}
	if len(body) > maxPost {
		return nil, fmt.Errorf("a comment of %d bytes is too large: %d may be posted", len(body), maxPost)
	}
	if err := checkRepo(c.provider, repo); err != nil {
		return nil, err
	}
	me, err := c.me(ctx)
	if err != nil {
		return nil, err
	}
	// Our mark is the last line, so one in an agent's text is none.
	tail := Marked(key, "")
	look := func() (*Comment, error) {
		var found *Comment
		l, err := c.vendor.comments(ctx, c, repo, at, time.Time{}, func(m Comment) bool {
			if strings.EqualFold(m.Author.Login, me) && strings.HasSuffix(strings.TrimSpace(m.Body), tail) {
				found = &m
			}
			return found == nil
		})
		if err == nil && found == nil && l.rest { // one that is too large is not ours
			err = fmt.Errorf("%s: %s of %s has too many comments to tell whether one is already there", c.provider, at, repo)
		}
		return found, err
	}
	return once(ctx, c, look, func() (*Comment, error) {
		m, err := c.vendor.comment(ctx, c, repo, at, Marked(key, body))
		if err == nil && m.ID <= 0 {
			err = fmt.Errorf("%s: the forge answers without the comment's id", c.provider)
		}
		return &m, err
	})
}

// OpenPullRequest opens a pull request unless there is an open one of these branches. It
// returns the pull request, new or old. One from a fork is another's.
func (c *Client) OpenPullRequest(ctx context.Context, repo string, p NewPullRequest) (*PullRequest, error) {
	if err := errors.Join(checkRepo(c.provider, repo), checkNames(p.Base, p.Head)); err != nil {
		return nil, err
	}
	if strings.Contains(p.Head, ":") {
		return nil, fmt.Errorf("%.100q is not a branch of the repository", p.Head)
	}
	look := func() (*PullRequest, error) {
		all, err := c.vendor.pulls(ctx, c, repo, p.Base, p.Head)
		i := slices.IndexFunc(all, func(x PullRequest) bool { return x.Open && !x.Fork && x.Base == p.Base && x.Head == p.Head })
		if err != nil || i < 0 {
			return nil, err
		}
		return &all[i], nil
	}
	return once(ctx, c, look, func() (*PullRequest, error) {
		x, err := c.vendor.open(ctx, c, repo, p)
		if err == nil && (x.Number <= 0 || x.Base != p.Base || x.Head != p.Head) {
			err = fmt.Errorf("%s: the forge answers with another pull request than was asked for", c.provider)
		}
		return &x, err
	})
}

const (
	blockBegin = mark + "begin -->"
	blockEnd   = mark + "end -->"
)

// Described returns a description: text of others, and above it a block that
// [Client.UpdateDescription] keeps. Below it, a code fence or a comment that the text leaves
// open would swallow it.
func Described(text, block string) string {
	text = strings.TrimSpace(unmarked(text))
	if block == "" {
		return text
	}
	return strings.TrimSpace(blockBegin + "\n" + strings.TrimSpace(unmarked(block)) + "\n" + blockEnd + "\n\n" + text)
}

// blockOf returns the block of a description, or "".
func blockOf(body string) string {
	_, rest, _ := strings.Cut(body, blockBegin)
	block, _, ok := strings.Cut(rest, blockEnd)
	if !ok {
		return ""
	}
	return strings.TrimSpace(block)
}

// Text returns a description without its block.
func Text(body string) string {
	body = strings.ReplaceAll(body, "\r\n", "\n")
	if blockOf(body) == "" {
		return body
	}
	before, rest, _ := strings.Cut(body, blockBegin)
	_, after, _ := strings.Cut(rest, blockEnd)
	return strings.TrimSpace(strings.TrimSpace(before) + "\n\n" + strings.TrimSpace(after))
}

// UpdateDescription replaces the description of an issue or pull request by text. Above it
// stays the block that is there, or block if that is not empty.
func (c *Client) UpdateDescription(ctx context.Context, repo string, at Thread, text, block string) error {
	if err := checkRepo(c.provider, repo); err != nil {
		return err
	}
	var last error
	for try := range maxTries {
		if try > 0 && c.pause(ctx, c.backoff<<try) != nil {
			break
		}
		now, version, err := c.vendor.issue(ctx, c, repo, at)
		if err == nil {
			err = c.wrong(repo, at, now.Number)
		}
		if err != nil {
			return errors.Join(last, err)
		}
		keep := block
		if keep == "" {
			keep = blockOf(strings.ReplaceAll(now.Body, "\r\n", "\n"))
		}
		body := Described(text, keep)
		if strings.TrimSpace(strings.ReplaceAll(now.Body, "\r\n", "\n")) == body {
			return nil
		}
		last = c.vendor.describe(ctx, c, repo, at, body, version)
		// 409: somebody else changed it since it was read.
		if last == nil || declined(last) && !is(last, http.StatusConflict) {
			return last
		}
	}
	return last
}

// SetStatus says something about a commit. The last status of a context is the one that
// counts.
func (c *Client) SetStatus(ctx context.Context, repo, commit string, s Status) error {
	if err := checkRepo(c.provider, repo); err != nil {
		return err
	}
	if err := checkCommit(commit); err != nil {
		return err
	}
	if r := []rune(s.Description); len(r) > 140 {
		s.Description = string(r[:139]) + "…"
	}
	var err error
	for try := range maxTries {
		if try > 0 && c.pause(ctx, c.backoff<<try) != nil {
			break
		}
		err = c.vendor.status(ctx, c, repo, commit, s)
		var e *Error
		if declined(err) || !errors.As(err, &e) || e.Method != http.MethodPost {
			break
		}
	}
	return err
}

// DeployKeys lists the deploy keys of a repository.
func (c *Client) DeployKeys(ctx context.Context, repo string) ([]DeployKey, error) {
	if err := checkRepo(c.provider, repo); err != nil {
		return nil, err
	}
	return c.vendor.keys(ctx, c, repo)
}

// AddDeployKey adds a deploy key that may push.
func (c *Client) AddDeployKey(ctx context.Context, repo, title, public string) (DeployKey, error) {
	if err := checkRepo(c.provider, repo); err != nil {
		return DeployKey{}, err
	}
	return c.vendor.addKey(ctx, c, repo, title, public)
}

// RemoveDeployKey removes a deploy key.
func (c *Client) RemoveDeployKey(ctx context.Context, repo, id string) error {
	if err := errors.Join(checkRepo(c.provider, repo), checkNames(id)); err != nil {
		return err
	}
	return c.vendor.removeKey(ctx, c, repo, id)
}
