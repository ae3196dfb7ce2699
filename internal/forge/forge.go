// Package forge reads and writes issues and pull requests on a forge: Gitea or Forgejo,
// GitHub and GitLab.
//
// A [Client] calls one forge with one token. Each call is bounded in time, size and pages.
// Redirects are refused, so the token reaches the forge's own address only, and plain HTTP
// is used for private addresses alone. What a forge answers is somebody else's text: a
// missing or null field is empty, and a field of a wrong type is an error.
//
// A request is sent again after a failure only where a second one changes nothing more.
// [Client.PostOnce], [Client.OpenPullRequest] and [Client.UpdateDescription] look at the
// forge before and after a try that may have arrived, so that a caller may call them again
// after any error. Two callers at the same moment are not told apart, nor is a request that
// the forge carries out after the next call has looked.
//
// The least that a token may do, for all calls but those of deploy keys:
//
//   - Gitea: scopes write:issue, write:repository, read:organization, read:user (only if
//     [Options].Login is empty), of a user with write access to the repository.
//   - GitHub: permissions issues, pull_requests and statuses: write; members (of the
//     organisation): read; contents and metadata: read.
//   - GitLab: scope api (read_api without writes), role Developer.
//
// Deploy keys need an administrator of the repository; on GitLab, a Maintainer.
//
// Start reading at [Client]. Each forge is one file that implements vendor; Gitea and GitHub
// share hub.go. The client of each call is client.go, and hook.go reads webhooks.
package forge

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/secret"
)

// Target is a repository at a forge.
type Target struct {
	Provider string `json:"provider"`
	API      string `json:"api_url"` // without a final slash
	Repo     string `json:"path"`    // owner/name; on GitLab possibly with more parts
	// Settings is the page where a person can remove a deploy key.
	Settings string `json:"settings_url"`
}

// Options configure a Client.
type Options struct {
	Provider string // gitea, github or gitlab
	API      string // the address of the API
	Token    secret.Value
	// App makes installation tokens, in place of Token. Only GitHub has it.
	App *App
	// Login is the name of the token's account. If it is empty, the forge is asked.
	Login string
	// Roots verify the forge's certificate. nil means the roots of this machine.
	Roots *x509.CertPool
	// Timeout bounds one request. Zero means 30 s.
	Timeout time.Duration
	// Resolver resolves the forge's name. nil means the resolver of this machine.
	Resolver Resolver
}

// Thread is an issue or a pull request. On GitLab the two are numbered apart.
type Thread struct {
	Number int
	Pull   bool
}

func (t Thread) String() string {
	if t.Pull {
		return "pull request #" + strconv.Itoa(t.Number)
	}
	return "issue #" + strconv.Itoa(t.Number)
}

// User is an account.
type User struct {
	Login string // empty if the account is gone
	Bot   bool   // as far as the forge says so
}

// Issue is an issue, or a pull request that is read as one.
type Issue struct {
	Number      int
	Pull        bool
	Title, Body string
	Open        bool
	Author      User
	Assignees   []string
	Labels      []string
	Updated     time.Time
	URL         string
}

// PullRequest is a pull request.
type PullRequest struct {
	Number      int
	Title, Body string
	Open        bool
	Merged      bool
	MergeCommit string // empty unless it is merged
	Author      User
	Assignees   []string
	Labels      []string
	Base, Head  string // branches
	HeadCommit  string
	Fork        bool // the head is not in the repository itself
	// Mergeable reports whether an open one merges into its base without a conflict. nil means
	// that the forge does not say, or not yet. Gitea also says false of a draft, and for a
	// moment after each push: ask again before doing something about it.
	Mergeable *bool
	Updated   time.Time
	URL       string
}

// Repository is a repository as the forge knows it.
type Repository struct {
	// ID is the forge's own number of it. A renamed one keeps it, and another that takes its
	// name has another.
	ID            int64
	FullName      string // owner/name, as the forge writes it
	DefaultBranch string
	Private       bool // not everybody may read it
	Archived      bool // nobody may write to it
	URL           string
}

// Commit is a commit of a repository.
type Commit struct {
	SHA string
	// Tree names the tree of its files. It is empty on GitLab, which does not say it, and on
	// Gitea where the name of a file at the top is not UTF-8.
	Tree    string
	Parents []string // in git's order; of a first commit there are none
}

// Comment is a comment on an issue or a pull request.
type Comment struct {
	ID      int64
	Author  User
	Body    string
	Created time.Time
	Updated time.Time
	URL     string
}

// ReviewState names what a review says.
type ReviewState string

// The states of reviews.
const (
	Approved         ReviewState = "approved"
	ChangesRequested ReviewState = "changes requested"
	Commented        ReviewState = "commented"
)

// Review is a review of a pull request that was submitted.
type Review struct {
	ID     int64 // on GitLab, of the reviewer
	Author User
	State  ReviewState
	Body   string
	// Commit is the head that was reviewed. GitLab does not say it.
	Commit string
	// Void means that the forge no longer counts it: it was dismissed, or a push came after.
	Void bool
	// Official, Stale and Dismissed are Gitea's own words; the other forges leave them false.
	// Official: the branch's protection counts the reviewer's latest word. Stale: a push
	// changed what was reviewed.
	Official, Stale, Dismissed bool
	Submitted                  time.Time
	Comments                   []LineComment
}

// ReviewText is the text of a submitted review as its page shows it now. After an edit it
// differs from [Review].Body, which keeps the text that was submitted.
type ReviewText struct {
	Review  int64 // its ID
	Author  User
	Body    string
	Created time.Time // when the review was submitted, in whole seconds
	Updated time.Time // another time if the text was edited later, in whole seconds
}

// LineComment is a comment on a line of a change.
type LineComment struct {
	ID     int64
	Author User
	Body   string
	Path   string
	Line   int  // 0 if the line is no longer part of the change
	Old    bool // Line counts in the file before the change
	Commit string
}

// NewPullRequest is a pull request to open, from one branch of a repository to another.
type NewPullRequest struct{ Base, Head, Title, Body string }

// Status says something about a commit. Each Context has one.
type Status struct {
	State       string // pending, success, failure or error
	Context     string
	Description string // cut to 140 characters
	URL         string
}

// Access orders what a user may do at a repository.
type Access int

// The levels of access.
const (
	NoAccess Access = iota
	ReadAccess
	WriteAccess
	AdminAccess
)

// Account is the account of a token.
type Account struct {
	Login string
	Admin bool // of the whole forge
	// Scopes name what the token may do. nil means that the forge does not say.
	Scopes  []string
	Expires time.Time // zero if it doesn't, or the forge does not say
}

// Protection describes the rules of a branch. A nil pointer means that the forge does not tell it to
// this token.
type Protection struct {
	Protected bool
	// MayPush and MayMerge report whether the token's own account may push to the branch and
	// merge into it.
	MayPush, MayMerge *bool
	// Mergers are the users and teams who alone may merge. nil: all who may write, or unknown.
	// MergerTeams holds the teams among them.
	Mergers     []string
	MergerTeams []string
	Approvals   int // how many a merge needs
	// DismissStale reports whether a push ends older approvals.
	DismissStale *bool
	// Checks are the contexts of statuses that a merge needs; "*" is all that there are.
	Checks []string
}

// DeployKey is a key as a forge lists it.
type DeployKey struct{ ID, Title, Key string }

// Need is something that a token should be able to do.
type Need string

// What can be needed of a token.
const (
	ReadIssues      Need = "read issues"
	WriteIssues     Need = "write issues"
	ReadRepository  Need = "read pull requests"
	WriteRepository Need = "write pull requests and statuses"
	ReadMembers     Need = "read members"
	ReadAccount     Need = "read its account"
)

// vendor holds the differences between forges: addresses, names of fields and answers. What
// may be retried, and what must not be doubled, is decided in [Client].
type vendor interface {
	// api returns the base URL of the API of a forge on host.
	api(host string) string
	// settings returns the path of the page with a repository's deploy keys.
	settings(repo string) string
	sign(h http.Header, token string)
	// page returns the parameter for the size of a page, and the largest size.
	page() (param string, size int)
	// needs returns the scope or permission that an answer says is missing, or "".
	needs(h http.Header, body []byte) string

	account(ctx context.Context, c *Client) (Account, error)
	// lacks returns the name of the scope that the token lacks for a need, or "".
	lacks(ctx context.Context, c *Client, repo, org string, n Need) (string, error)
	member(ctx context.Context, c *Client, org, login string) (bool, error)
	access(ctx context.Context, c *Client, repo, login string) (Access, error)

	// issue also returns the version of its text, where the forge has one.
	issue(ctx context.Context, c *Client, repo string, at Thread) (Issue, *int, error)
	repository(ctx context.Context, c *Client, repo string) (Repository, error)
	commit(ctx context.Context, c *Client, repo, sha string) (Commit, error)
	pull(ctx context.Context, c *Client, repo string, n int) (PullRequest, error)
	changed(ctx context.Context, c *Client, repo string, since time.Time) ([]Issue, error)
	// comments calls each for each comment, the oldest first, until it returns false. It
	// returns what it left out.
	comments(ctx context.Context, c *Client, repo string, at Thread, since time.Time, each func(Comment) bool) (left, error)
	reviews(ctx context.Context, c *Client, repo string, n int) ([]Review, error)
	protection(ctx context.Context, c *Client, repo, branch string) (Protection, error)

	comment(ctx context.Context, c *Client, repo string, at Thread, body string) (Comment, error)
	describe(ctx context.Context, c *Client, repo string, at Thread, body string, version *int) error
	pulls(ctx context.Context, c *Client, repo, base, head string) ([]PullRequest, error)
	open(ctx context.Context, c *Client, repo string, p NewPullRequest) (PullRequest, error)
	status(ctx context.Context, c *Client, repo, commit string, s Status) error

	keys(ctx context.Context, c *Client, repo string) ([]DeployKey, error)
	addKey(ctx context.Context, c *Client, repo, title, public string) (DeployKey, error)
	removeKey(ctx context.Context, c *Client, repo, id string) error

	// event reads a verified delivery. verify reports whether it is signed by key.
	verify(h http.Header, body []byte, key secret.Value) bool
	event(h http.Header, body []byte) (Event, error)
}

// vendors maps the names of forges to their implementations.
var vendors = map[string]vendor{"gitea": gitea{}, "github": github{}, "gitlab": gitlab{}}

// Providers returns the names of the supported forges.
func Providers() []string {
	out := make([]string, 0, len(vendors))
	for name := range vendors {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func vendorOf(provider string) (vendor, error) {
	v, ok := vendors[provider]
	if !ok {
		return nil, fmt.Errorf("%.40q is not a known forge: there are %s", provider, strings.Join(Providers(), ", "))
	}
	return v, nil
}

// Resolve returns the Target for an upstream's address. If apiURL is empty, it uses the
// upstream's host. An apiURL that names no API is the forge's own address, below which the
// API has its usual place.
func Resolve(provider, upstream, apiURL string) (Target, error) {
	v, err := vendorOf(provider)
	if err != nil {
		return Target{}, err
	}
	host, path, err := split(upstream)
	if err != nil {
		return Target{}, err
	}
	if checkRepo(provider, path) != nil {
		return Target{}, fmt.Errorf("its path is not OWNER/NAME, by which %s calls a repository", provider)
	}
	base := apiURL
	if base == "" {
		base = v.api(host)
	}
	u, err := parseAPI(base)
	if err != nil {
		return Target{}, err
	}
	if apiURL != "" && !slices.Contains(strings.Split(u.Path, "/"), "api") && !strings.HasPrefix(u.Hostname(), "api.") {
		usual, err := url.Parse(v.api(u.Hostname()))
		if err != nil {
			return Target{}, err
		}
		if usual.Hostname() != u.Hostname() { // as of github.com
			u.Host = usual.Host
		}
		u = u.JoinPath(usual.Path)
	}
	web := &url.URL{Scheme: u.Scheme, Host: u.Host}
	if apiURL == "" || provider == "github" && u.Hostname() == "api.github.com" {
		web = &url.URL{Scheme: "https", Host: host}
	}
	return Target{Provider: provider, API: strings.TrimRight(u.String(), "/"), Repo: path, Settings: web.String() + "/" + v.settings(path)}, nil
}

func parseAPI(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("api_url is no address of a forge, such as https://gitea.example.org/api/v1")
	}
	return u, nil
}

// split returns the host and the path of an upstream's address: ssh://, scp-like or
// https://.
func split(upstream string) (host, path string, err error) {
	if !strings.Contains(upstream, "://") {
		at, rest, ok := strings.Cut(upstream, ":")
		if !ok {
			return "", "", errors.New("its host is not a known forge")
		}
		host, path = at[strings.LastIndexByte(at, '@')+1:], rest
	} else {
		u, err := url.Parse(upstream)
		if err != nil || u.Hostname() == "" {
			return "", "", errors.New("its host is not a known forge")
		}
		host, path = u.Hostname(), u.Path
	}
	switch {
	case host == "ssh.github.com":
		host = "github.com" // ssh.github.com is ssh on port 443
	case strings.Contains(host, ":"):
		host = "[" + host + "]"
	}
	return host, strings.TrimSuffix(strings.Trim(path, "/"), ".git"), nil
}

// checkRepo refuses a path that no repository has. Others may have chosen it: it becomes
// part of an address.
func checkRepo(provider, repo string) error {
	parts := strings.Split(repo, "/")
	if len(parts) < 2 || len(parts) > 2 && provider != "gitlab" {
		return fmt.Errorf("%.100q is not OWNER/NAME", repo)
	}
	return checkNames(parts...)
}

// checkNames refuses what can't be one part of an address.
func checkNames(names ...string) error {
	for _, s := range names {
		if s == "" || s == "." || s == ".." || len(s) > 255 || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return fmt.Errorf("%.100q is not a name at a forge", s)
		}
	}
	return nil
}

// escaped returns a repository's path for a URL, with its slashes.
func escaped(repo string) string {
	parts := strings.Split(repo, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return strings.Join(parts, "/")
}
