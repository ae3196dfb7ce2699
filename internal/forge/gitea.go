package forge

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/carboy/carboy/internal/gitobject"
)

// gitea implements the API of Gitea and Forgejo, version 1.
type gitea struct{ hub }

func (gitea) api(host string) string { return "https://" + host + "/api/v1" }

func (gitea) sign(h http.Header, token string) { h.Set("Authorization", "token "+token) }

func (gitea) page() (string, int) { return "limit", 50 }

var giteaNeeds = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`required=\[([^\]]+)\]`) })

func (gitea) needs(_ http.Header, body []byte) string {
	if m := giteaNeeds().FindSubmatch(body); m != nil {
		return strings.ReplaceAll(string(m[1]), " ", " or ")
	}
	return ""
}

// account asks for the account. Gitea tells a token's scopes only to one that lacks one, so
// they are unknown here: see lacks.
func (gitea) account(ctx context.Context, c *Client) (Account, error) {
	var u hubUser
	err := c.get(ctx, "/user", &u)
	return Account{Login: u.Login, Admin: u.Admin}, err
}

// lacks sends a request that can change nothing, even if it is allowed: Gitea looks at the
// scopes first, and then finds that there is no issue 0, or that the request says nothing.
func (gitea) lacks(ctx context.Context, c *Client, repo, org string, n Need) (string, error) {
	empty := struct{}{}
	r := map[Need]request{
		ReadIssues:      {method: http.MethodGet, path: hubPath(repo, "/issues?limit=1")},
		WriteIssues:     {method: http.MethodPatch, path: hubPath(repo, "/issues/0"), in: empty},
		ReadRepository:  {method: http.MethodGet, path: hubPath(repo, "/pulls?limit=1")},
		WriteRepository: {method: http.MethodPost, path: hubPath(repo, "/pulls"), in: empty},
		ReadMembers:     {method: http.MethodGet, path: "/orgs/" + url.PathEscape(org) + "/public_members?limit=1"},
		ReadAccount:     {method: http.MethodGet, path: "/user"},
	}[n]
	r.again, r.into = true, new(any)
	_, err := c.do(ctx, r)
	var e *Error
	switch {
	case r.method == "":
		return "", fmt.Errorf("%q is not known", n)
	case errors.As(err, &e) && e.Code == http.StatusForbidden && e.Needs != "":
		return e.Needs, nil
	case r.in != nil && is(err, http.StatusNotFound, http.StatusUnprocessableEntity):
		return "", nil
	}
	return "", err
}

// access asks for the permission of a user. Gitea tells that of others to administrators of
// the repository only. To all readers it tells who may be assigned: everyone who may write,
// and of an organisation's teams some that may read.
func (g gitea) access(ctx context.Context, c *Client, repo, login string) (Access, error) {
	a, err := g.hub.access(ctx, c, repo, login)
	var e *Error
	if !errors.As(err, &e) || e.Code != http.StatusForbidden || e.Needs != "" {
		return a, err
	}
	users, uerr := g.assignable(ctx, c, repo)
	if uerr != nil {
		return NoAccess, uerr
	}
	if !slices.ContainsFunc(users, func(u hubUser) bool { return strings.EqualFold(u.Login, login) }) {
		return NoAccess, nil
	}
	var teams []struct {
		Name       string            `json:"name"`
		Permission string            `json:"permission"`
		Units      map[string]string `json:"units_map"`
	}
	switch terr := c.get(ctx, hubPath(repo, "/teams"), &teams); {
	case is(terr, http.StatusMethodNotAllowed): // its owner is no organisation
	case terr != nil:
		return NoAccess, terr
	}
	for _, t := range teams {
		if accesses[t.Permission] < AdminAccess && accesses[t.Units["repo.code"]] < WriteAccess {
			e.Said = fmt.Sprintf("not all who may be assigned may write (team %.60q may not), and which of them may the forge tells to an administrator of the repository only", t.Name)
			return NoAccess, e
		}
	}
	return WriteAccess, nil
}

func (gitea) assignable(ctx context.Context, c *Client, repo string) ([]hubUser, error) {
	var users []hubUser
	err := c.get(ctx, hubPath(repo, "/assignees"), &users)
	return users, err
}

func (g gitea) commit(ctx context.Context, c *Client, repo, sha string) (Commit, error) {
	out, err := g.hub.commit(ctx, c, repo, sha)
	if err == nil {
		out.Tree, err = g.tree(ctx, c, repo, sha)
	}
	return out, err
}

// tree returns the name of a commit's tree. Gitea says the commit's own name for it, so it is
// made of the entries, as git makes it.
func (gitea) tree(ctx context.Context, c *Client, repo, sha string) (string, error) {
	type entry struct {
		Path string `json:"path"`
		Mode string `json:"mode"`
		SHA  string `json:"sha"`
	}
	var all []entry
	path := hubPath(repo, "/git/trees/%s", sha)
	for page := 1; ; page++ {
		var out struct {
			Tree  []entry `json:"tree"`
			More  bool    `json:"truncated"`
			Total int     `json:"total_count"`
		}
		if err := c.get(ctx, path+"?per_page=1000&page="+strconv.Itoa(page), &out); err != nil {
			return "", err
		}
		all = append(all, out.Tree...)
		if out.More && page < maxPages {
			continue
		}
		if len(all) != out.Total {
			return "", fmt.Errorf("%s: GET %s: the forge lists %d of %d entries", c.provider, path, len(all), out.Total)
		}
		break
	}
	// git sorts a directory as if its name ended with a slash.
	key := func(e entry) string {
		if e.Mode == "040000" {
			return e.Path + "/"
		}
		return e.Path
	}
	slices.SortFunc(all, func(a, b entry) int { return strings.Compare(key(a), key(b)) })
	var body []byte
	for _, e := range all {
		id, err := hex.DecodeString(e.SHA)
		if err != nil || len(e.SHA) != len(sha) || e.Path == "" || e.Mode == "" {
			return "", fmt.Errorf("%s: GET %s: the forge lists an entry without a name", c.provider, path)
		}
		if strings.ContainsRune(e.Path, utf8.RuneError) {
			return "", nil // JSON has lost what the name was
		}
		body = append(body, strings.TrimLeft(e.Mode, "0")+" "+e.Path+"\x00"...)
		body = append(body, id...)
	}
	return gitobject.Name("tree", body, len(sha)), nil
}

// comments asks for all at once, as Gitea has no pages of them. If they are too many, the
// timeline has them, in pages and among all else that happened. Events that nobody is shown
// leave pages there empty although more follow, so it goes on until it has seen as many as
// there are.
func (gitea) comments(ctx context.Context, c *Client, repo string, at Thread, since time.Time, each func(Comment) bool) (left, error) {
	var all []hubComment
	path := hubPath(repo, "/issues/%d/comments", at.Number)
	if q := hubSince(since); len(q) > 0 {
		path += "?" + q.Encode()
	}
	h, err := c.do(ctx, request{method: http.MethodGet, path: path, into: &all, again: true, most: c.pageSize})
	switch {
	case err == nil:
		for _, m := range all {
			if m.ID <= 0 {
				return left{}, c.noID(path)
			}
			if !each(m.comment()) {
				break
			}
		}
		return left{}, nil
	case !errors.As(err, new(tooLargeError)):
		return left{}, err
	}
	total, terr := strconv.Atoi(h.Get("X-Total-Count"))
	if terr != nil {
		return left{}, err
	}
	type happened struct {
		hubComment
		Type string `json:"type"`
	}
	seen, stopped := 0, false
	// What was left out may have been another event than a comment, so that one still follows.
	over := func(large, empty int) bool { return seen >= total || seen+large >= total && empty > 3 }
	l, err := walk(ctx, c, hubPath(repo, "/issues/%d/timeline", at.Number), hubSince(since), over, func(m happened) int64 { return m.ID }, func(m happened) bool {
		if m.Type == "comment" {
			seen++
			stopped = !each(m.comment())
		}
		return !stopped
	})
	l.rest = l.rest && seen+l.large < total
	return l, err
}

type giteaReview struct {
	ID        int64     `json:"id"`
	User      hubUser   `json:"user"`
	State     string    `json:"state"`
	Body      string    `json:"body"`
	Commit    string    `json:"commit_id"`
	Stale     bool      `json:"stale"`
	Official  bool      `json:"official"`
	Dismissed bool      `json:"dismissed"`
	Submitted time.Time `json:"submitted_at"`
	Comments  int       `json:"comments_count"`
}

func (gitea) reviews(ctx context.Context, c *Client, repo string, n int) ([]Review, error) {
	all, err := list(ctx, c, hubPath(repo, "/pulls/%d/reviews", n), nil, func(r giteaReview) int64 { return r.ID })
	if err != nil {
		return nil, err
	}
	var out []Review
	for _, r := range all {
		state, ok := map[string]ReviewState{"APPROVED": Approved, "REQUEST_CHANGES": ChangesRequested, "COMMENT": Commented}[r.State]
		if !ok {
			continue // asked for, or not submitted
		}
		// An approval that is not official is of somebody whose approval the branch's
		// protection does not count.
		v := Review{
			ID: r.ID, Author: r.User.user(), State: state, Body: r.Body, Commit: r.Commit, Submitted: r.Submitted,
			Void:     r.Stale || r.Dismissed || state == Approved && !r.Official,
			Official: r.Official, Stale: r.Stale, Dismissed: r.Dismissed,
		}
		if r.Comments > 0 {
			var lines []struct {
				ID     int64   `json:"id"`
				User   hubUser `json:"user"`
				Body   string  `json:"body"`
				Path   string  `json:"path"`
				Commit string  `json:"commit_id"`
				New    int     `json:"position"`
				Old    int     `json:"original_position"`
			}
			if err := c.get(ctx, hubPath(repo, "/pulls/%d/reviews/%d/comments", n, r.ID), &lines); err != nil {
				return nil, err
			}
			for _, l := range lines {
				m := LineComment{ID: l.ID, Author: l.User.user(), Body: l.Body, Path: l.Path, Line: l.New, Commit: l.Commit}
				if l.New == 0 && l.Old > 0 {
					m.Line, m.Old = l.Old, true
				}
				v.Comments = append(v.Comments, m)
			}
		}
		out = append(out, v)
	}
	return out, nil
}

// reviewTexts reads the timeline without pages: with them, Gitea counts only what one page
// has, and leaves out entries of a page.
func (gitea) reviewTexts(ctx context.Context, c *Client, repo string, n int, since time.Time) ([]ReviewText, error) {
	var all []struct {
		Type    string    `json:"type"`
		Review  int64     `json:"review_id"`
		User    hubUser   `json:"user"`
		Body    string    `json:"body"`
		Created time.Time `json:"created_at"`
		Updated time.Time `json:"updated_at"`
	}
	q := url.Values{"since": {since.UTC().Format(time.RFC3339)}}
	if err := c.get(ctx, hubPath(repo, "/issues/%d/timeline?", n)+q.Encode(), &all); err != nil {
		return nil, err
	}
	var out []ReviewText
	for _, x := range all {
		if x.Type == "review" && x.Review > 0 {
			out = append(out, ReviewText{x.Review, x.User.user(), x.Body, x.Created, x.Updated})
		}
	}
	return out, nil
}

func (gitea) pulls(ctx context.Context, c *Client, repo, base, head string) ([]PullRequest, error) {
	// GET pulls/{base}/{head} would be one request, but finds only the oldest of the two,
	// though it be closed.
	out, err := list(ctx, c, hubPath(repo, "/pulls"), url.Values{"state": {"open"}, "base_branch": {base}}, func(p hubPull) int64 { return int64(p.Number) })
	return mapped(out, err, hubPull.pull)
}

func (gitea) protection(ctx context.Context, c *Client, repo, branch string) (Protection, error) {
	var b struct {
		Protected bool     `json:"protected"`
		Approvals int      `json:"required_approvals"`
		Checked   bool     `json:"enable_status_check"`
		Checks    []string `json:"status_check_contexts"`
		Push      bool     `json:"user_can_push"`
		Merge     bool     `json:"user_can_merge"`
		Rule      string   `json:"effective_branch_protection_name"`
	}
	if err := c.get(ctx, hubPath(repo, "/branches/%s", url.PathEscape(branch)), &b); err != nil {
		return Protection{}, err
	}
	out := Protection{Protected: b.Protected, MayPush: &b.Push, MayMerge: &b.Merge, Approvals: b.Approvals}
	if b.Checked {
		out.Checks = b.Checks
	}
	if b.Rule == "" { // the name is told to administrators only, as the rest is
		return out, nil
	}
	var rule struct {
		Merge   bool     `json:"enable_merge_whitelist"`
		Users   []string `json:"merge_whitelist_usernames"`
		Teams   []string `json:"merge_whitelist_teams"`
		Dismiss bool     `json:"dismiss_stale_approvals"`
	}
	if err := c.get(ctx, hubPath(repo, "/branch_protections/%s", url.PathEscape(b.Rule)), &rule); err != nil {
		return Protection{}, err
	}
	out.DismissStale = &rule.Dismiss
	if rule.Merge {
		out.Mergers = append([]string{}, slices.Concat(rule.Users, rule.Teams)...)
		out.MergerTeams = rule.Teams
	}
	return out, nil
}
