package forge

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// github implements the REST API of GitHub and GitHub Enterprise Server.
type github struct{ hub }

func (github) api(host string) string {
	if host == "github.com" {
		return "https://api.github.com"
	}
	return "https://" + host + "/api/v3"
}

func (github) sign(h http.Header, token string) {
	h.Set("Authorization", "Bearer "+token)
	h.Set("Accept", "application/vnd.github+json")
	h.Set("X-GitHub-Api-Version", "2022-11-28")
}

func (github) page() (string, int) { return "per_page", 100 }

func (github) needs(h http.Header, _ []byte) string {
	if need := h.Get("X-Accepted-GitHub-Permissions"); need != "" {
		return need
	}
	has := strings.Split(strings.ReplaceAll(h.Get("X-OAuth-Scopes"), " ", ""), ",")
	need := strings.Split(strings.ReplaceAll(h.Get("X-Accepted-OAuth-Scopes"), " ", ""), ",")
	if h.Get("X-OAuth-Scopes") == "" || need[0] == "" || slices.ContainsFunc(need, func(s string) bool { return slices.Contains(has, s) }) {
		return ""
	}
	return strings.Join(need, " or ")
}

func (github) account(ctx context.Context, c *Client) (Account, error) {
	if c.app != nil {
		own, err := c.app.jwt(time.Now())
		if err != nil {
			return Account{}, err
		}
		var app struct {
			Slug string `json:"slug"`
		}
		if _, err := c.do(ctx, request{method: http.MethodGet, path: "/app", into: &app, again: true, token: own}); err != nil {
			return Account{}, err
		}
		if _, err := c.current(ctx); err != nil {
			return Account{}, err
		}
		c.app.mu.Lock()
		defer c.app.mu.Unlock()
		a := Account{Scopes: slices.Clone(c.app.granted), Expires: c.app.until}
		if app.Slug != "" {
			a.Login = app.Slug + "[bot]"
		}
		return a, nil
	}
	var u hubUser
	h, err := c.do(ctx, request{method: http.MethodGet, path: "/user", into: &u, again: true})
	if err != nil {
		return Account{}, err
	}
	a := Account{Login: u.Login, Admin: u.Site}
	if scopes := h.Get("X-OAuth-Scopes"); scopes != "" {
		a.Scopes = strings.Split(strings.ReplaceAll(scopes, " ", ""), ",")
	}
	a.Expires, _ = time.Parse("2006-01-02 15:04:05 MST", h.Get("GitHub-Authentication-Token-Expiration"))
	return a, nil
}

// lacks knows what an app's token was granted, and what a classic token may do. A
// fine-grained token tells of what it lacks only when it is used, so that what it may write
// can't be known before.
func (github) lacks(ctx context.Context, c *Client, repo, org string, n Need) (string, error) {
	reads := map[Need]string{
		ReadIssues: hubPath(repo, "/issues?per_page=1"), ReadRepository: hubPath(repo, "/pulls?per_page=1"),
		ReadMembers: "/orgs/" + url.PathEscape(org) + "/members?per_page=1",
	}
	grants := map[Need][]string{
		ReadIssues: {"issues:read"}, WriteIssues: {"issues:write"}, ReadRepository: {"pull_requests:read"},
		WriteRepository: {"pull_requests:write", "statuses:write"}, ReadMembers: {"members:read"},
	}
	if c.app != nil {
		if _, err := c.current(ctx); err != nil {
			return "", err
		}
		var lacks []string
		for _, g := range grants[n] {
			if !c.app.grants(g) {
				lacks = append(lacks, g)
			}
		}
		return strings.Join(lacks, " and "), nil
	}
	if path, ok := reads[n]; ok {
		err := c.get(ctx, path, nil)
		if is(err, http.StatusForbidden, http.StatusNotFound) {
			return strings.Join(grants[n], " and "), nil
		}
		return "", err
	}
	a, err := c.vendor.account(ctx, c)
	switch {
	case err != nil || n == ReadAccount:
		return "", err
	case a.Scopes == nil:
		return "", errUnknown
	case !slices.Contains(a.Scopes, "repo") && !slices.Contains(a.Scopes, "public_repo"):
		return "repo", nil
	}
	return "", nil
}

func (github) comments(ctx context.Context, c *Client, repo string, at Thread, since time.Time, each func(Comment) bool) (left, error) {
	return walk(ctx, c, hubPath(repo, "/issues/%d/comments", at.Number), hubSince(since), nil, hubComment.id, func(m hubComment) bool { return each(m.comment()) })
}

func (github) reviews(ctx context.Context, c *Client, repo string, n int) ([]Review, error) {
	type review struct {
		ID        int64     `json:"id"`
		User      hubUser   `json:"user"`
		State     string    `json:"state"`
		Body      string    `json:"body"`
		Commit    string    `json:"commit_id"`
		Submitted time.Time `json:"submitted_at"`
	}
	type line struct {
		ID      int64   `json:"id"`
		Review  int64   `json:"pull_request_review_id"`
		User    hubUser `json:"user"`
		Body    string  `json:"body"`
		Path    string  `json:"path"`
		Commit  string  `json:"commit_id"`
		Line    int     `json:"line"`
		Side    string  `json:"side"`
		Subject string  `json:"subject_type"`
	}
	all, err := list(ctx, c, hubPath(repo, "/pulls/%d/reviews", n), nil, func(r review) int64 { return r.ID })
	if err != nil {
		return nil, err
	}
	lines, err := list(ctx, c, hubPath(repo, "/pulls/%d/comments", n), nil, func(l line) int64 { return l.ID })
	if err != nil {
		return nil, err
	}
	of := map[int64][]LineComment{}
	for _, l := range lines {
		of[l.Review] = append(of[l.Review], LineComment{ID: l.ID, Author: l.User.user(), Body: l.Body, Path: l.Path, Line: l.Line, Old: l.Side == "LEFT", Commit: l.Commit})
	}
	var out []Review
	for _, r := range all {
		state, ok := map[string]ReviewState{"APPROVED": Approved, "CHANGES_REQUESTED": ChangesRequested, "COMMENTED": Commented, "DISMISSED": Commented}[r.State]
		if !ok {
			continue // not submitted
		}
		out = append(out, Review{
			ID: r.ID, Author: r.User.user(), State: state, Body: r.Body, Commit: r.Commit, Void: r.State == "DISMISSED", Submitted: r.Submitted, Comments: of[r.ID],
		})
	}
	return out, nil
}

func (github) pulls(ctx context.Context, c *Client, repo, base, head string) ([]PullRequest, error) {
	owner, _, _ := strings.Cut(repo, "/")
	q := url.Values{"state": {"open"}, "base": {base}, "head": {owner + ":" + head}}
	out, err := list(ctx, c, hubPath(repo, "/pulls"), q, func(p hubPull) int64 { return int64(p.Number) })
	return mapped(out, err, hubPull.pull)
}

// protection reads the rules that everybody may read, and the classic protection, which
// needs the permission administration: read.
func (github) protection(ctx context.Context, c *Client, repo, branch string) (Protection, error) {
	var b struct {
		Protected bool `json:"protected"`
	}
	path := hubPath(repo, "/branches/%s", url.PathEscape(branch))
	if err := c.get(ctx, path, &b); err != nil {
		return Protection{}, err
	}
	out := Protection{Protected: b.Protected}
	var rules []struct {
		Type       string `json:"type"`
		Parameters struct {
			Approvals int  `json:"required_approving_review_count"`
			Dismiss   bool `json:"dismiss_stale_reviews_on_push"`
			Checks    []struct {
				Context string `json:"context"`
			} `json:"required_status_checks"`
		} `json:"parameters"`
	}
	if err := c.get(ctx, hubPath(repo, "/rules/branches/%s?per_page=100", url.PathEscape(branch)), &rules); err != nil {
		return Protection{}, err
	}
	dismiss, known := false, !b.Protected
	for _, r := range rules {
		switch r.Type {
		case "pull_request":
			out.Protected, known = true, true
			out.Approvals, dismiss = max(out.Approvals, r.Parameters.Approvals), dismiss || r.Parameters.Dismiss
		case "required_status_checks":
			out.Protected = true
			for _, check := range r.Parameters.Checks {
				out.Checks = append(out.Checks, check.Context)
			}
		}
	}
	type named struct {
		Login string `json:"login"`
		Slug  string `json:"slug"`
	}
	var classic struct {
		Reviews struct {
			Approvals int  `json:"required_approving_review_count"`
			Dismiss   bool `json:"dismiss_stale_reviews"`
		} `json:"required_pull_request_reviews"`
		Checks struct {
			Contexts []string `json:"contexts"`
		} `json:"required_status_checks"`
		Restrictions *struct{ Users, Teams, Apps []named } `json:"restrictions"`
	}
	switch err := c.get(ctx, path+"/protection", &classic); {
	case is(err, http.StatusForbidden, http.StatusNotFound):
	case err != nil:
		return Protection{}, err
	default:
		known = true
		out.Approvals, dismiss = max(out.Approvals, classic.Reviews.Approvals), dismiss || classic.Reviews.Dismiss
		out.Checks = append(out.Checks, classic.Checks.Contexts...)
		if r := classic.Restrictions; r != nil {
			out.Mergers = []string{}
			for _, n := range slices.Concat(r.Users, r.Teams, r.Apps) {
				out.Mergers = append(out.Mergers, max(n.Login, n.Slug))
			}
		}
	}
	if known {
		out.DismissStale = &dismiss
	}
	return out, nil
}
