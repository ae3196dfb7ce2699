// Package provenance seals what carboy knows of a merged pull request: who worked on it in
// which bottle, what was refused, what the gates said, and what the forge told of people.
//
// The record is an in-toto statement about the merge commit with SLSA provenance, signed
// with the audit log's key. It says of its facts whether carboy observed them, was told
// them or heard them claimed, and names what nobody observed. It never stands on the forge.
//
// Start reading at [Facts], then [Store.Seal] and [Store.Verify].
package provenance

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/forgeservice"
	"github.com/carboy/carboy/internal/safetext"
)

// Bounds of a record. Longer lists are cut, and LeftOut counts what is missing.
const (
	maxTurns      = 100
	maxRuns       = 20 // of one turn
	maxOperations = 1500
	maxReviews    = 500
	maxBottles    = 50
	maxHosts      = 10 // of one run
	maxText       = 200
	maxAddress    = 1000
)

// Facts is all that a record says of a merged pull request. Texts may come from strangers:
// they are made safe to show and cut to 200 bytes, addresses to 1,000.
type Facts struct {
	Forge string `json:"forge"` // its address, such as https://git.example.org
	Owner string `json:"owner"` // on GitLab possibly with slashes
	Repo  string `json:"repo"`
	Issue int64  `json:"issue,omitempty"`
	Pull  int64  `json:"pull"`
	URL   string `json:"url,omitempty"` // of the pull request

	Base   string `json:"base"`           // the branch that it was merged into
	Branch string `json:"branch"`         // that was merged
	Head   string `json:"head,omitempty"` // the branch's commit at the merge, as the forge tells
	// Commit names the commit of the base after the merge, in full.
	Commit string `json:"commit"`
	// Tree is the tree of Commit, read from the git object whose hash is Commit. It is empty
	// if carboy did not read that.
	Tree   string    `json:"tree,omitempty"`
	Merged time.Time `json:"merged"`

	Agent   string   `json:"agent"`
	Bottles []string `json:"bottles"`
	Slug    string   `json:"slug"` // of the last bottle
	Backend string   `json:"backend,omitempty"`

	Turns      []Turn                   `json:"turns"` // the oldest first
	Operations []forgeservice.Operation `json:"operations"`
	Reviews    []Review                 `json:"reviews"`
	// Watchdog says that the watchdog stopped a silent agent.
	Watchdog bool `json:"watchdog_fired"`

	// LeftOut counts what the bounds cut off. Seal sets it.
	LeftOut LeftOut `json:"left_out"`
}

// A Turn is one assignment of the agent.
type Turn struct {
	ID    string    `json:"id"`
	Work  string    `json:"work,omitempty"` // for carboy work show
	Began time.Time `json:"began"`
	Ended time.Time `json:"ended"`
	Exit  int       `json:"exit"` // the agent's
	// Outcome is passed, failed, final or escalated. It is empty if no gate judged.
	Outcome string `json:"outcome,omitempty"`
	Why     string `json:"why,omitempty"` // of an outcome that is not passed
	Verdict string `json:"verdict,omitempty"`
	// VerdictSHA256 is in hexadecimal digits, as are all digests here.
	VerdictSHA256 string `json:"verdict_sha256,omitempty"`
	Commit        string `json:"commit,omitempty"` // that carboy pushed
	// Moved says that somebody else had pushed, so that carboy did not.
	Moved  bool  `json:"moved,omitempty"`
	Tokens int64 `json:"tokens"` // as the models' answers claim
	Runs   []Run `json:"runs"`
}

// A Run is one run of a bottle. RunOf makes one from a receipt.
type Run struct {
	ID string `json:"id"`
	// ReceiptSHA256 is empty if the receipt is gone. What follows is then not known.
	ReceiptSHA256 string `json:"receipt_sha256,omitempty"`
	Exit          int    `json:"exit"`
	Reason        string `json:"reason,omitempty"`
	// Backend held the bottle, and Isolation is the class of its boundary.
	Backend   string `json:"backend,omitempty"`
	Isolation string `json:"isolation,omitempty"`
	Scan      Scan   `json:"scan"`
	Egress    Egress `json:"egress"`
}

// Scan counts what the gateway's scan found in a run's traffic.
type Scan struct {
	Out     int64 `json:"found_out"` // secrets on their way out, and what looks like one
	In      int64 `json:"found_in"`  // injections in what came in
	Blocked int64 `json:"blocked"`   // of both
}

// Egress sums up a run's traffic.
type Egress struct {
	RequestsAllowed    int64 `json:"requests_allowed"`
	RequestsRefused    int64 `json:"requests_refused"`
	ConnectionsAllowed int64 `json:"connections_allowed"`
	ConnectionsRefused int64 `json:"connections_refused"`
	BytesUp            int64 `json:"bytes_up"`
	BytesDown          int64 `json:"bytes_down"`
	// Hosts lists the names that were allowed, at most 10.
	Hosts []string `json:"hosts"`
	// HostsTotal counts all allowed names that the receipt lists.
	HostsTotal int64 `json:"hosts_total"`
}

// A Review is a person's review of the pull request, as the forge told it.
type Review struct {
	By     string    `json:"by"`
	State  string    `json:"state"`
	Commit string    `json:"commit,omitempty"`
	At     time.Time `json:"at"`
}

// LeftOut counts what a record has no room for.
type LeftOut struct {
	Turns      int `json:"turns"`
	Runs       int `json:"runs"`
	Operations int `json:"operations"`
	Reviews    int `json:"reviews"`
	Bottles    int `json:"bottles"`
}

// normal returns a copy of f in the form that is sealed: texts made safe, times in UTC,
// lists within their bounds.
func (f *Facts) normal() (*Facts, error) {
	n := *f
	n.Forge = strings.TrimRight(n.Forge, "/")
	address(&n.Forge, &n.URL)
	text(&n.Base, &n.Branch, &n.Agent, &n.Slug, &n.Backend)
	n.Merged = instant(n.Merged)
	n.Bottles = cut(n.Bottles, maxBottles, &n.LeftOut.Bottles)
	for i := range n.Bottles {
		text(&n.Bottles[i])
	}
	// The newest turns say what was merged.
	if more := len(n.Turns) - maxTurns; more > 0 {
		n.Turns, n.LeftOut.Turns = n.Turns[more:], n.LeftOut.Turns+more
	}
	n.Turns = append([]Turn{}, n.Turns...)
	for i := range n.Turns {
		n.Turns[i].normal(&n.LeftOut)
	}
	n.Operations = fewer(n.Operations, &n.LeftOut.Operations)
	for i := range n.Operations {
		o := &n.Operations[i]
		o.At = instant(o.At)
		text(&o.Operation, &o.Target, (*string)(&o.Outcome), &o.Reason, &o.Digest, &o.Result)
	}
	n.Reviews = cut(n.Reviews, maxReviews, &n.LeftOut.Reviews)
	for i := range n.Reviews {
		r := &n.Reviews[i]
		r.At = instant(r.At)
		text(&r.By, &r.State, &r.Commit)
	}
	return &n, n.check()
}

func (t *Turn) normal(left *LeftOut) {
	t.Began, t.Ended = instant(t.Began), instant(t.Ended)
	text(&t.ID, &t.Work, &t.Outcome, &t.Why, &t.Verdict)
	t.Runs = cut(t.Runs, maxRuns, &left.Runs)
	for i := range t.Runs {
		r := &t.Runs[i]
		text(&r.ID, &r.Reason, &r.Backend, &r.Isolation)
		var more int // HostsTotal counts them
		r.Egress.Hosts = cut(r.Egress.Hosts, maxHosts, &more)
		for j := range r.Egress.Hosts {
			text(&r.Egress.Hosts[j])
		}
	}
}

// fewer returns a copy of the operations within their bound. Reads that were done go first:
// an agent that reads much must not hide what it wrote and what it was refused.
func fewer(all []forgeservice.Operation, left *int) []forgeservice.Operation {
	more := len(all) - maxOperations
	var out []forgeservice.Operation
	for _, o := range all {
		if more > 0 && o.Outcome == forgeservice.Done && strings.HasPrefix(o.Operation, "read_") {
			more--
			*left++
			continue
		}
		out = append(out, o)
	}
	return cut(out, maxOperations, left)
}

// cut returns a copy of at most n elements, never nil, and adds the number of others to left.
func cut[T any](list []T, n int, left *int) []T {
	*left += max(0, len(list)-n)
	return append([]T{}, list[:min(len(list), n)]...)
}

func text(list ...*string) {
	for _, s := range list {
		*s = safetext.String(*s, maxText)
	}
}

func address(list ...*string) {
	for _, s := range list {
		*s = safetext.String(*s, maxAddress)
	}
}

func instant(t time.Time) time.Time { return t.UTC().Round(0) }

// check returns an error that names the first field that a record can't have.
func (f *Facts) check() error {
	if u, err := url.Parse(f.Forge); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("field forge: %q is no plain http or https address", f.Forge)
	}
	if err := checkRepo(f.Owner, f.Repo); err != nil {
		return err
	}
	switch {
	case !isCommit(f.Commit):
		return fmt.Errorf("field commit: %q is no full name of a commit", safetext.String(f.Commit, 80))
	case f.Tree != "" && (!isCommit(f.Tree) || len(f.Tree) != len(f.Commit)):
		return fmt.Errorf("field tree: %q is no full name of a tree of the same repository", safetext.String(f.Tree, 80))
	case f.Head != "" && !isCommit(f.Head):
		return fmt.Errorf("field head: %q is no full name of a commit", safetext.String(f.Head, 80))
	case f.Pull < 1 || f.Issue < 0:
		return errors.New("fields pull and issue: they are no numbers of a pull request and an issue")
	case f.Merged.IsZero():
		return errors.New("field merged: it is missing")
	case f.Agent == "" || f.Base == "":
		return errors.New("fields agent and base: one is missing")
	}
	return errors.Join(f.checkTurns(), f.checkTimes())
}

func (f *Facts) checkTurns() error {
	for i, t := range f.Turns {
		if t.Commit != "" && !isCommit(t.Commit) {
			return fmt.Errorf("field turns[%d].commit: %q is no full name of a commit", i, safetext.String(t.Commit, 80))
		}
		if t.VerdictSHA256 != "" && !isSHA256(t.VerdictSHA256) || (t.Verdict == "") != (t.VerdictSHA256 == "") {
			return fmt.Errorf("field turns[%d].verdict_sha256: a verdict has a name and a SHA-256", i)
		}
		for j, r := range t.Runs {
			if r.ID == "" || r.ReceiptSHA256 != "" && !isSHA256(r.ReceiptSHA256) {
				return fmt.Errorf("field turns[%d].runs[%d]: a run has an id, and its receipt a SHA-256", i, j)
			}
		}
	}
	return nil
}

// checkTimes refuses years that JSON can't hold.
func (f *Facts) checkTimes() error {
	all := []time.Time{f.Merged}
	for _, t := range f.Turns {
		all = append(all, t.Began, t.Ended)
	}
	for _, o := range f.Operations {
		all = append(all, o.At)
	}
	for _, r := range f.Reviews {
		all = append(all, r.At)
	}
	if i := slices.IndexFunc(all, func(t time.Time) bool { return t.Year() < 0 || t.Year() > 9999 }); i >= 0 {
		return errors.New("a time is of a year that is not from 0 to 9999")
	}
	return nil
}

// maxParts bounds the parts of a repository's name: GitLab allows 20 groups in each other.
const maxParts = 21

// checkRepo returns an error unless owner and repo can be names of directories, and none of
// them leads elsewhere.
func checkRepo(owner, repo string) error {
	parts := append(strings.Split(owner, "/"), repo)
	if len(parts) > maxParts {
		return fmt.Errorf("field owner: it has more than %d parts", maxParts-1)
	}
	for _, p := range parts {
		if p == "" || p == "." || p == ".." || len(p) > 255 || strings.Trim(p, nameLetters) != "" {
			return fmt.Errorf("fields owner and repo: %q is no name of a repository: its parts have letters, digits, dots, dashes and underscores", safetext.String(owner+"/"+repo, maxText))
		}
	}
	return nil
}

const (
	hexDigits   = "0123456789abcdef"
	nameLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
)

// isCommit reports whether s is a full name of a git object, of either hash.
func isCommit(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, hexDigits) == ""
}

func isSHA256(s string) bool { return len(s) == 64 && strings.Trim(s, hexDigits) == "" }
