package forge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// hub is the part of the API that Gitea took over from GitHub.
type hub struct{}

type hubUser struct {
	ID    int64  `json:"id"`
	Login string `json:"login"`
	Type  string `json:"type"`
	Admin bool   `json:"is_admin"`
	Site  bool   `json:"site_admin"`
}

func (u hubUser) user() User { return User{u.Login, u.Type == "Bot"} }

// hubLabel is a label: an object, or at GitHub sometimes its name.
type hubLabel string

func (l *hubLabel) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, (*string)(l))
	}
	var o struct {
		Name string `json:"name"`
	}
	err := json.Unmarshal(b, &o)
	*l = hubLabel(o.Name)
	return err
}

// hubText holds the fields that issues and pull requests share.
type hubText struct {
	Number    int        `json:"number"`
	Title     string     `json:"title"`
	Body      string     `json:"body"`
	State     string     `json:"state"`
	User      hubUser    `json:"user"`
	Assignees []hubUser  `json:"assignees"`
	Labels    []hubLabel `json:"labels"`
	Updated   time.Time  `json:"updated_at"`
	URL       string     `json:"html_url"`
}

func (t hubText) assignees() (out []string) {
	for _, u := range t.Assignees {
		if u.Login != "" {
			out = append(out, u.Login)
		}
	}
	return out
}

func (t hubText) labels() (out []string) {
	for _, l := range t.Labels {
		if l != "" {
			out = append(out, string(l))
		}
	}
	return out
}

type hubIssue struct {
	hubText
	PullRequest *struct{} `json:"pull_request"`
	Version     *int      `json:"content_version"`
}

func (i hubIssue) issue() Issue {
	return Issue{
		Number: i.Number, Pull: i.PullRequest != nil, Title: i.Title, Body: i.Body, Open: i.State == "open", Author: i.User.user(),
		Assignees: i.assignees(), Labels: i.labels(), Updated: i.Updated, URL: i.URL,
	}
}

type hubBranch struct {
	Ref  string `json:"ref"`
	SHA  string `json:"sha"`
	Repo struct {
		ID int64 `json:"id"`
	} `json:"repo"`
}

type hubPull struct {
	hubText
	Merged    bool       `json:"merged"`
	MergedAt  *time.Time `json:"merged_at"`
	Mergeable *bool      `json:"mergeable"`
	Commit    string     `json:"merge_commit_sha"`
	Base      hubBranch  `json:"base"`
	Head      hubBranch  `json:"head"`
}

func (p hubPull) pull() PullRequest {
	out := PullRequest{
		Number: p.Number, Title: p.Title, Body: p.Body, Open: p.State == "open", Merged: p.Merged || p.MergedAt != nil, Author: p.User.user(),
		Assignees: p.assignees(), Labels: p.labels(), Base: p.Base.Ref, Head: p.Head.Ref, HeadCommit: p.Head.SHA,
		Fork: p.Head.Repo.ID == 0 || p.Head.Repo.ID != p.Base.Repo.ID, Updated: p.Updated, URL: p.URL,
	}
	if out.Merged { // else it is of a trial
		out.MergeCommit = p.Commit
	}
	if out.Open {
		out.Mergeable = p.Mergeable
	}
	return out
}

type hubComment struct {
	ID      int64     `json:"id"`
	User    hubUser   `json:"user"`
	Body    string    `json:"body"`
	Created time.Time `json:"created_at"`
	Updated time.Time `json:"updated_at"`
	URL     string    `json:"html_url"`
}

func (m hubComment) comment() Comment {
	return Comment{m.ID, m.User.user(), m.Body, m.Created, m.Updated, m.URL}
}

func (m hubComment) id() int64 { return m.ID }

func hubPath(repo, more string, n ...any) string {
	return "/repos/" + escaped(repo) + fmt.Sprintf(more, n...)
}

// mapped returns f of each element.
func mapped[A, B any](in []A, err error, f func(A) B) ([]B, error) {
	if err != nil {
		return nil, err
	}
	out := make([]B, len(in))
	for i, x := range in {
		out[i] = f(x)
	}
	return out, nil
}

func (hub) settings(repo string) string { return repo + "/settings/keys" }

func (hub) member(ctx context.Context, c *Client, org, login string) (bool, error) {
	_, err := c.do(ctx, request{
		method: http.MethodGet, path: "/orgs/" + url.PathEscape(org) + "/members/" + url.PathEscape(login),
		ok: []int{http.StatusNoContent, http.StatusOK}, again: true,
	})
	var e *Error
	switch {
	case is(err, http.StatusNotFound):
		return false, nil
	case is(err, http.StatusFound, http.StatusSeeOther) && errors.As(err, &e):
		e.Err = errors.New("the token's account is no member of the organisation, so the forge does not tell it who is: make it one")
	}
	return err == nil, err
}

// accesses are the words for access.
var accesses = map[string]Access{"none": NoAccess, "read": ReadAccess, "triage": ReadAccess, "write": WriteAccess, "maintain": WriteAccess, "admin": AdminAccess, "owner": AdminAccess}

func (hub) access(ctx context.Context, c *Client, repo, login string) (Access, error) {
	var out struct {
		Permission string `json:"permission"`
	}
	path := hubPath(repo, "/collaborators/%s/permission", url.PathEscape(login))
	if err := c.get(ctx, path, &out); err != nil {
		return NoAccess, err
	}
	a, ok := accesses[out.Permission]
	if !ok {
		return NoAccess, fmt.Errorf("%s: GET %s: %.40q is no known permission", c.provider, path, out.Permission)
	}
	return a, nil
}

func (hub) issue(ctx context.Context, c *Client, repo string, at Thread) (Issue, *int, error) {
	var out hubIssue
	err := c.get(ctx, hubPath(repo, "/issues/%d", at.Number), &out)
	return out.issue(), out.Version, err
}

func (hub) pull(ctx context.Context, c *Client, repo string, n int) (PullRequest, error) {
	var out hubPull
	err := c.get(ctx, hubPath(repo, "/pulls/%d", n), &out)
	return out.pull(), err
}

func (hub) repository(ctx context.Context, c *Client, repo string) (Repository, error) {
	var out struct {
		ID       int64  `json:"id"`
		Name     string `json:"full_name"`
		Branch   string `json:"default_branch"`
		Private  bool   `json:"private"`
		Internal bool   `json:"internal"` // Gitea: only accounts may read it
		Archived bool   `json:"archived"`
		URL      string `json:"html_url"`
	}
	err := c.get(ctx, hubPath(repo, ""), &out)
	return Repository{out.ID, out.Name, out.Branch, out.Private || out.Internal, out.Archived, out.URL}, err
}

type hubSHA struct {
	SHA string `json:"sha"`
}

func (s hubSHA) sha() string { return s.SHA }

// commit leaves out what Gitea would add by itself: the list of files has no bound. As the
// tree, Gitea says the commit's own name, so that is not read.
func (hub) commit(ctx context.Context, c *Client, repo, sha string) (Commit, error) {
	var out struct {
		hubSHA
		Tree    hubSHA   `json:"tree"`
		Parents []hubSHA `json:"parents"`
	}
	path := hubPath(repo, "/git/commits/%s", sha)
	if c.provider == "gitea" {
		path += "?stat=false&verification=false&files=false"
	}
	err := c.get(ctx, path, &out)
	parents, err := mapped(out.Parents, err, hubSHA.sha)
	return Commit{out.SHA, out.Tree.SHA, parents}, err
}

func (hub) changed(ctx context.Context, c *Client, repo string, since time.Time) ([]Issue, error) {
	q := url.Values{"state": {"all"}, "since": {since.UTC().Format(time.RFC3339)}}
	out, err := list(ctx, c, hubPath(repo, "/issues"), q, func(i hubIssue) int64 { return int64(i.Number) })
	return mapped(out, err, hubIssue.issue)
}

// hubSince returns the parameters of a list of comments.
func hubSince(since time.Time) url.Values {
	q := url.Values{}
	if !since.IsZero() {
		q.Set("since", since.UTC().Format(time.RFC3339))
	}
	return q
}

func (hub) comment(ctx context.Context, c *Client, repo string, at Thread, body string) (Comment, error) {
	in := struct {
		Body string `json:"body"`
	}{body}
	var out hubComment
	_, err := c.do(ctx, request{method: http.MethodPost, path: hubPath(repo, "/issues/%d/comments", at.Number), in: in, into: &out, ok: []int{http.StatusCreated}})
	return out.comment(), err
}

func (hub) describe(ctx context.Context, c *Client, repo string, at Thread, body string, version *int) error {
	in := struct {
		Body    string `json:"body"`
		Version *int   `json:"content_version,omitempty"`
	}{body, version}
	_, err := c.do(ctx, request{method: http.MethodPatch, path: hubPath(repo, "/issues/%d", at.Number), in: in, ok: []int{http.StatusOK, http.StatusCreated}})
	return err
}

func (hub) open(ctx context.Context, c *Client, repo string, p NewPullRequest) (PullRequest, error) {
	in := struct {
		Base  string `json:"base"`
		Head  string `json:"head"`
		Title string `json:"title"`
		Body  string `json:"body"`
	}(p)
	var out hubPull
	_, err := c.do(ctx, request{method: http.MethodPost, path: hubPath(repo, "/pulls"), in: in, into: &out, ok: []int{http.StatusCreated}})
	return out.pull(), err
}

func (hub) status(ctx context.Context, c *Client, repo, commit string, s Status) error {
	in := struct {
		State       string `json:"state"`
		Context     string `json:"context"`
		Description string `json:"description"`
		URL         string `json:"target_url,omitempty"`
	}(s)
	_, err := c.do(ctx, request{method: http.MethodPost, path: hubPath(repo, "/statuses/%s", commit), in: in, ok: []int{http.StatusCreated}})
	return err
}

// keyAnswer is the JSON of a deploy key. All forges use the same.
type keyAnswer struct {
	ID    int64  `json:"id"`
	Title string `json:"title"`
	Key   string `json:"key"`
}

func (a keyAnswer) id() int64 { return a.ID }

func (a keyAnswer) key() DeployKey {
	k := DeployKey{Title: a.Title, Key: a.Key}
	if a.ID > 0 {
		k.ID = strconv.FormatInt(a.ID, 10)
	}
	return k
}

func (hub) keys(ctx context.Context, c *Client, repo string) ([]DeployKey, error) {
	out, err := list(ctx, c, hubPath(repo, "/keys"), nil, keyAnswer.id)
	return mapped(out, err, keyAnswer.key)
}

func (hub) addKey(ctx context.Context, c *Client, repo, title, public string) (DeployKey, error) {
	in := struct {
		Title    string `json:"title"`
		Key      string `json:"key"`
		ReadOnly bool   `json:"read_only"`
	}{title, public, false}
	var out keyAnswer
	_, err := c.do(ctx, request{method: http.MethodPost, path: hubPath(repo, "/keys"), in: in, into: &out, ok: []int{http.StatusCreated}})
	return out.key(), err
}

func (hub) removeKey(ctx context.Context, c *Client, repo, id string) error {
	_, err := c.do(ctx, request{method: http.MethodDelete, path: hubPath(repo, "/keys/%s", url.PathEscape(id)), ok: []int{http.StatusNoContent, http.StatusOK}})
	return err
}
