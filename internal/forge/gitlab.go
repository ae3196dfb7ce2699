package forge

import (
	"context"
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
)

// gitlab implements the API of GitLab, version 4. It calls a pull request a merge request, a
// comment a note, and an organisation a group.
type gitlab struct{}

func (gitlab) api(host string) string { return "https://" + host + "/api/v4" }

func (gitlab) settings(repo string) string { return repo + "/-/settings/repository" }

func (gitlab) sign(h http.Header, token string) { h.Set("PRIVATE-TOKEN", token) }

func (gitlab) page() (string, int) { return "per_page", 100 }

var labScope = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`"insufficient_scope".*"scope"\s*:\s*"([a-z_ ]{1,200})"`)
})

func (gitlab) needs(_ http.Header, body []byte) string {
	if m := labScope().FindSubmatch(body); m != nil {
		return strings.ReplaceAll(string(m[1]), " ", " or ")
	}
	return ""
}

func labPath(repo, more string, n ...any) string {
	return "/projects/" + url.PathEscape(repo) + fmt.Sprintf(more, n...)
}

// labThread returns the path of an issue or merge request.
func labThread(repo string, at Thread, more string) string {
	if at.Pull {
		return labPath(repo, "/merge_requests/%d%s", at.Number, more)
	}
	return labPath(repo, "/issues/%d%s", at.Number, more)
}

type labUser struct {
	ID       int64  `json:"id"`
	Username string `json:"username"`
	Admin    bool   `json:"is_admin"`
	Bot      bool   `json:"bot"`
}

// labBot is the form of the names of accounts of project and group tokens.
var labBot = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(project|group)_\d+_bot`) })

func (u labUser) user() User { return User{u.Username, u.Bot || labBot().MatchString(u.Username)} }

type labText struct {
	IID         int       `json:"iid"`
	Title       string    `json:"title"`
	Description string    `json:"description"`
	State       string    `json:"state"`
	Author      labUser   `json:"author"`
	Assignees   []labUser `json:"assignees"`
	Labels      []string  `json:"labels"`
	Updated     time.Time `json:"updated_at"`
	URL         string    `json:"web_url"`
	// Of merge requests alone.
	Base   string `json:"target_branch"`
	Head   string `json:"source_branch"`
	SHA    string `json:"sha"`
	Target int64  `json:"target_project_id"`
	Source int64  `json:"source_project_id"`
	Merge  string `json:"merge_commit_sha"`
	Squash string `json:"squash_commit_sha"`

	Conflicts bool   `json:"has_conflicts"`
	Detailed  string `json:"detailed_merge_status"`
	Merges    string `json:"merge_status"`
}

func (t labText) id() int64 { return int64(t.IID) }

func (t labText) assignees() (out []string) {
	for _, u := range t.Assignees {
		if u.Username != "" {
			out = append(out, u.Username)
		}
	}
	return out
}

func (t labText) issue() Issue {
	return Issue{
		Number: t.IID, Title: t.Title, Body: t.Description, Open: t.State == "opened", Author: t.Author.user(),
		Assignees: t.assignees(), Labels: t.Labels, Updated: t.Updated, URL: t.URL,
	}
}

func (t labText) asPull() Issue {
	i := t.issue()
	i.Pull = true
	return i
}

func (t labText) pull() PullRequest {
	p := PullRequest{
		Number: t.IID, Title: t.Title, Body: t.Description, Open: t.State == "opened", Merged: t.State == "merged", Author: t.Author.user(),
		Assignees: t.assignees(), Labels: t.Labels, Base: t.Base, Head: t.Head, HeadCommit: t.SHA,
		Fork: t.Source == 0 || t.Source != t.Target, Updated: t.Updated, URL: t.URL,
	}
	if p.Open {
		p.Mergeable = t.mergeable()
	}
	switch {
	case !p.Merged:
	case t.Merge != "":
		p.MergeCommit = t.Merge
	case t.Squash != "":
		p.MergeCommit = t.Squash
	default:
		p.MergeCommit = t.SHA // fast-forward
	}
	return p
}

// mergeable tells conflicts from rules that are not met yet, such as a missing approval. The
// detailed status names the first hindrance only, and has_conflicts is also false before
// GitLab has looked.
func (t labText) mergeable() *bool {
	no := t.Conflicts || t.Detailed == "conflict" || t.Detailed == "need_rebase"
	if !no && t.Detailed != "mergeable" && t.Merges != "can_be_merged" {
		return nil
	}
	yes := !no
	return &yes
}

type labNote struct {
	ID       int64     `json:"id"`
	Type     string    `json:"type"`
	Author   labUser   `json:"author"`
	Body     string    `json:"body"`
	System   bool      `json:"system"`
	Created  time.Time `json:"created_at"`
	Updated  time.Time `json:"updated_at"`
	Position struct {
		Head    string `json:"head_sha"`
		OldPath string `json:"old_path"`
		NewPath string `json:"new_path"`
		OldLine int    `json:"old_line"`
		NewLine int    `json:"new_line"`
	} `json:"position"`
}

func (n labNote) id() int64 { return n.ID }

func (n labNote) comment() Comment {
	return Comment{ID: n.ID, Author: n.Author.user(), Body: n.Body, Created: n.Created, Updated: n.Updated}
}

// labCommand finds lines that GitLab would carry out, such as /merge or /close.
var labCommand = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^([\s\p{Cc}\p{Cf}]*)/([A-Za-z_])`) })

// inert returns text without commands: it reads the same on the page. A token that may
// comment may merge by a comment, and an agent writes these texts.
func inert(text string) string { return labCommand().ReplaceAllString(text, `$1\/$2`) }

func (gitlab) account(ctx context.Context, c *Client) (Account, error) {
	var u labUser
	if err := c.get(ctx, "/user", &u); err != nil {
		return Account{}, err
	}
	a := Account{Login: u.Username, Admin: u.Admin}
	var t struct {
		Scopes  []string `json:"scopes"`
		Expires string   `json:"expires_at"`
	}
	switch err := c.get(ctx, "/personal_access_tokens/self", &t); {
	case is(err, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusBadRequest): // another kind of token
	case err != nil:
		return Account{}, err
	default:
		a.Scopes = t.Scopes
		a.Expires, _ = time.Parse(time.DateOnly, t.Expires)
	}
	return a, nil
}

func (g gitlab) lacks(ctx context.Context, c *Client, _, _ string, n Need) (string, error) {
	a, err := g.account(ctx, c)
	var e *Error
	switch {
	case errors.As(err, &e) && e.Needs != "":
		return e.Needs, nil
	case err != nil:
		return "", err
	case a.Scopes == nil:
		return "", errUnknown
	case slices.Contains(a.Scopes, "api"):
		return "", nil
	case n == WriteIssues || n == WriteRepository:
		return "api", nil
	case slices.Contains(a.Scopes, "read_api") || n == ReadAccount && slices.Contains(a.Scopes, "read_user"):
		return "", nil
	}
	return "read_api", nil
}

// level returns the level of access of a user in a project or group; 0 is none.
func (gitlab) level(ctx context.Context, c *Client, path, login string) (int, error) {
	var users []labUser
	if err := c.get(ctx, "/users?username="+url.QueryEscape(login), &users); err != nil {
		return 0, err
	}
	i := slices.IndexFunc(users, func(u labUser) bool { return u.ID > 0 && strings.EqualFold(u.Username, login) })
	if i < 0 {
		return 0, nil
	}
	var m struct {
		Level int    `json:"access_level"`
		State string `json:"state"`
	}
	switch err := c.get(ctx, path+"/members/all/"+strconv.FormatInt(users[i].ID, 10), &m); {
	case is(err, http.StatusNotFound):
		// Also what there is to say of a project that the token may not see.
		return 0, c.get(ctx, path, nil)
	case err != nil:
		return 0, err
	case m.State != "active":
		return 0, nil
	}
	return m.Level, nil
}

func (g gitlab) member(ctx context.Context, c *Client, org, login string) (bool, error) {
	n, err := g.level(ctx, c, "/groups/"+url.PathEscape(org), login)
	return n > 0, err
}

func (g gitlab) access(ctx context.Context, c *Client, repo, login string) (Access, error) {
	n, err := g.level(ctx, c, labPath(repo, ""), login)
	switch {
	case err != nil || n <= 0:
		return NoAccess, err
	case n >= 40: // Maintainer
		return AdminAccess, nil
	case n >= 30: // Developer
		return WriteAccess, nil
	}
	return ReadAccess, nil
}

func (gitlab) issue(ctx context.Context, c *Client, repo string, at Thread) (Issue, *int, error) {
	var out labText
	err := c.get(ctx, labThread(repo, at, ""), &out)
	if at.Pull {
		return out.asPull(), nil, err
	}
	return out.issue(), nil, err
}

func (gitlab) pull(ctx context.Context, c *Client, repo string, n int) (PullRequest, error) {
	var out labText
	err := c.get(ctx, labPath(repo, "/merge_requests/%d", n), &out)
	return out.pull(), err
}

func (gitlab) repository(ctx context.Context, c *Client, repo string) (Repository, error) {
	var out struct {
		ID         int64  `json:"id"`
		Name       string `json:"path_with_namespace"`
		Branch     string `json:"default_branch"`
		Visibility string `json:"visibility"`
		Archived   bool   `json:"archived"`
		URL        string `json:"web_url"`
	}
	err := c.get(ctx, labPath(repo, ""), &out)
	return Repository{out.ID, out.Name, out.Branch, out.Visibility != "public", out.Archived, out.URL}, err
}

func (gitlab) commit(ctx context.Context, c *Client, repo, sha string) (Commit, error) {
	var out struct {
		ID      string   `json:"id"`
		Parents []string `json:"parent_ids"`
	}
	err := c.get(ctx, labPath(repo, "/repository/commits/%s?stats=false", sha), &out)
	return Commit{SHA: out.ID, Parents: out.Parents}, err
}

func (gitlab) changed(ctx context.Context, c *Client, repo string, since time.Time) ([]Issue, error) {
	q := func() url.Values {
		return url.Values{"scope": {"all"}, "state": {"all"}, "updated_after": {since.UTC().Format(time.RFC3339)}}
	}
	list1, err := list(ctx, c, labPath(repo, "/issues"), q(), labText.id)
	issues, err := mapped(list1, err, labText.issue)
	if err != nil {
		return nil, err
	}
	list2, err := list(ctx, c, labPath(repo, "/merge_requests"), q(), labText.id)
	pulls, err := mapped(list2, err, labText.asPull)
	return append(issues, pulls...), err
}

func (g gitlab) notes(ctx context.Context, c *Client, repo string, at Thread) ([]labNote, error) {
	return list(ctx, c, labThread(repo, at, "/notes"), labOldest(), labNote.id)
}

func labOldest() url.Values { return url.Values{"sort": {"asc"}, "order_by": {"created_at"}} }

func (gitlab) comments(ctx context.Context, c *Client, repo string, at Thread, since time.Time, each func(Comment) bool) (left, error) {
	return walk(ctx, c, labThread(repo, at, "/notes"), labOldest(), nil, labNote.id, func(n labNote) bool {
		return n.System || n.Type == "DiffNote" || n.Updated.Before(since) || each(n.comment())
	})
}

func (gitlab) comment(ctx context.Context, c *Client, repo string, at Thread, body string) (Comment, error) {
	in := struct {
		Body string `json:"body"`
	}{inert(body)}
	var out labNote
	_, err := c.do(ctx, request{method: http.MethodPost, path: labThread(repo, at, "/notes"), in: in, into: &out, ok: []int{http.StatusCreated}})
	return out.comment(), err
}

func (gitlab) describe(ctx context.Context, c *Client, repo string, at Thread, body string, _ *int) error {
	in := struct {
		Description string `json:"description"`
	}{inert(body)}
	_, err := c.do(ctx, request{method: http.MethodPut, path: labThread(repo, at, ""), in: in})
	return err
}

// reviews makes a review of what each reviewer said, and of the line comments of others.
// GitLab binds no approval to a commit.
func (g gitlab) reviews(ctx context.Context, c *Client, repo string, n int) ([]Review, error) {
	var reviewers []struct {
		User    labUser   `json:"user"`
		State   string    `json:"state"`
		Created time.Time `json:"created_at"`
	}
	if err := c.get(ctx, labPath(repo, "/merge_requests/%d/reviewers", n), &reviewers); err != nil {
		return nil, err
	}
	notes, err := g.notes(ctx, c, repo, Thread{n, true})
	if err != nil {
		return nil, err
	}
	var out []Review
	of := map[int64]int{}
	for _, r := range reviewers {
		state, ok := map[string]ReviewState{"approved": Approved, "requested_changes": ChangesRequested, "reviewed": Commented}[r.State]
		if !ok || r.User.ID <= 0 {
			continue
		}
		of[r.User.ID] = len(out)
		out = append(out, Review{ID: r.User.ID, Author: r.User.user(), State: state, Submitted: r.Created})
	}
	var approvals struct {
		By []struct {
			User labUser   `json:"user"`
			At   time.Time `json:"approved_at"`
		} `json:"approved_by"`
	}
	if err := c.get(ctx, labPath(repo, "/merge_requests/%d/approvals", n), &approvals); err != nil {
		return nil, err
	}
	for _, a := range approvals.By {
		if _, ok := of[a.User.ID]; !ok && a.User.ID > 0 {
			of[a.User.ID] = len(out)
			out = append(out, Review{ID: a.User.ID, Author: a.User.user(), State: Approved, Submitted: a.At})
		}
	}
	for _, l := range notes {
		if l.System || l.Type != "DiffNote" {
			continue
		}
		i, ok := of[l.Author.ID]
		if !ok {
			i = len(out)
			of[l.Author.ID] = i
			out = append(out, Review{ID: l.Author.ID, Author: l.Author.user(), State: Commented, Submitted: l.Created})
		}
		m := LineComment{ID: l.ID, Author: l.Author.user(), Body: l.Body, Path: l.Position.NewPath, Line: l.Position.NewLine, Commit: l.Position.Head}
		if m.Line == 0 && l.Position.OldLine > 0 {
			m.Path, m.Line, m.Old = l.Position.OldPath, l.Position.OldLine, true
		}
		out[i].Comments = append(out[i].Comments, m)
	}
	return out, nil
}

func (gitlab) pulls(ctx context.Context, c *Client, repo, base, head string) ([]PullRequest, error) {
	q := url.Values{"state": {"opened"}, "target_branch": {base}, "source_branch": {head}}
	out, err := list(ctx, c, labPath(repo, "/merge_requests"), q, labText.id)
	return mapped(out, err, labText.pull)
}

func (gitlab) open(ctx context.Context, c *Client, repo string, p NewPullRequest) (PullRequest, error) {
	in := struct {
		Base  string `json:"target_branch"`
		Head  string `json:"source_branch"`
		Title string `json:"title"`
		Body  string `json:"description"`
	}{p.Base, p.Head, p.Title, inert(p.Body)}
	var out labText
	_, err := c.do(ctx, request{method: http.MethodPost, path: labPath(repo, "/merge_requests"), in: in, into: &out, ok: []int{http.StatusCreated}})
	return out.pull(), err
}

// status looks first: GitLab refuses a status that is there already.
func (gitlab) status(ctx context.Context, c *Client, repo, commit string, s Status) error {
	state := s.State
	if state == "failure" || state == "error" {
		state = "failed"
	}
	var now []struct {
		Name        string `json:"name"`
		Status      string `json:"status"`
		Description string `json:"description"`
		URL         string `json:"target_url"`
	}
	if err := c.get(ctx, labPath(repo, "/repository/commits/%s/statuses?name=%s", commit, url.QueryEscape(s.Context)), &now); err != nil {
		return err
	}
	for _, n := range now {
		if n.Name == s.Context && n.Status == state && n.Description == s.Description && n.URL == s.URL {
			return nil
		}
	}
	in := struct {
		State       string `json:"state"`
		Name        string `json:"name"`
		Description string `json:"description"`
		URL         string `json:"target_url,omitempty"`
	}{state, s.Context, s.Description, s.URL}
	_, err := c.do(ctx, request{method: http.MethodPost, path: labPath(repo, "/statuses/%s", commit), in: in, ok: []int{http.StatusCreated}})
	return err
}

func (g gitlab) protection(ctx context.Context, c *Client, repo, branch string) (Protection, error) {
	var b struct {
		Protected bool `json:"protected"`
		Push      bool `json:"can_push"`
		Merge     bool `json:"developers_can_merge"`
	}
	if err := c.get(ctx, labPath(repo, "/repository/branches/%s", url.PathEscape(branch)), &b); err != nil {
		return Protection{}, err
	}
	var p struct {
		Pipeline    bool `json:"only_allow_merge_if_pipeline_succeeds"`
		Permissions struct {
			Project struct {
				Level int `json:"access_level"`
			} `json:"project_access"`
			Group struct {
				Level int `json:"access_level"`
			} `json:"group_access"`
		} `json:"permissions"`
	}
	if err := c.get(ctx, labPath(repo, ""), &p); err != nil {
		return Protection{}, err
	}
	level := max(p.Permissions.Project.Level, p.Permissions.Group.Level)
	merge := level >= 30 && (!b.Protected || b.Merge) || level >= 40
	out := Protection{Protected: b.Protected, MayPush: &b.Push, MayMerge: &merge}
	if p.Pipeline {
		out.Checks = []string{"*"}
	}
	var rules struct {
		Approvals int   `json:"approvals_before_merge"`
		Reset     *bool `json:"reset_approvals_on_push"`
	}
	switch err := c.get(ctx, labPath(repo, "/approvals"), &rules); {
	case is(err, http.StatusForbidden, http.StatusNotFound): // not in every edition, nor for every role
	case err != nil:
		return Protection{}, err
	default:
		out.Approvals, out.DismissStale = rules.Approvals, rules.Reset
	}
	return out, nil
}

func (gitlab) keys(ctx context.Context, c *Client, repo string) ([]DeployKey, error) {
	out, err := list(ctx, c, labPath(repo, "/deploy_keys"), nil, keyAnswer.id)
	return mapped(out, err, keyAnswer.key)
}

func (gitlab) addKey(ctx context.Context, c *Client, repo, title, public string) (DeployKey, error) {
	in := struct {
		Title   string `json:"title"`
		Key     string `json:"key"`
		CanPush bool   `json:"can_push"`
	}{title, public, true}
	var out keyAnswer
	_, err := c.do(ctx, request{method: http.MethodPost, path: labPath(repo, "/deploy_keys"), in: in, into: &out, ok: []int{http.StatusCreated}})
	return out.key(), err
}

func (gitlab) removeKey(ctx context.Context, c *Client, repo, id string) error {
	_, err := c.do(ctx, request{method: http.MethodDelete, path: labPath(repo, "/deploy_keys/%s", url.PathEscape(id)), ok: []int{http.StatusNoContent, http.StatusOK, http.StatusAccepted}})
	return err
}
