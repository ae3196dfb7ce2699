package ship

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/forge/giteatest"
	"github.com/carboy/carboy/internal/ship/hosts"
	"github.com/carboy/carboy/internal/ship/plan"
	"github.com/carboy/carboy/internal/ship/reviews"
	"github.com/carboy/carboy/internal/testenv"
)

// trial is a paper world whose reviews are at a real Gitea. The robot administers the
// repository there, ann opens pull requests, alice and bob are people who may approve, carol
// is not.
type trial struct {
	*paper
	g      *giteatest.Server
	tokens map[string]string
	n      int
}

const trialRepo = "acme/web"

func newTrial(t *testing.T) *trial {
	t.Helper()
	x := &trial{paper: newPaper(t), g: giteatest.New(t), tokens: map[string]string{}}
	x.g.User("acme", "robot", "ann", "alice", "bob", "carol")
	x.g.Repo("acme", "web", map[string]string{"robot": "admin", "ann": "write", "alice": "write", "bob": "write", "carol": "write"})
	x.tokens["robot"] = x.g.Token("robot", "read:repository", "write:issue", "read:user")
	x.tokens["writer"] = x.g.Token("ann", "read:repository", "write:issue", "read:user")
	x.g.Must("POST", "/repos/"+trialRepo+"/branch_protections", map[string]any{
		"rule_name": "main", "enable_push": false, "required_approvals": 1, "dismiss_stale_approvals": true,
		"enable_merge_whitelist": true, "merge_whitelist_usernames": []string{"alice"},
	}, nil, http.StatusCreated)
	x.op.Write(t, "hosts.yaml", "reviews:\n  team:\n    forge: gitea\n    api: "+x.g.API+"\n    repo: "+trialRepo+"\n    branch: main\n    token_env: TOKEN\n"+
		"    people: {alice: alice@example.org, bob: bob@example.org, robot: carol@example.org}\n    protection: {mergers: [alice]}\n"+
		strings.Replace(x.entry, "apply: true", "apply: true\n    reviews: team", 1))
	x.as("robot")
	// The history begins with that of the forge.
	x.repo.Git(t, "fetch", "-q", x.remote("acme"), "main")
	x.repo.Git(t, "reset", "-q", "--soft", "FETCH_HEAD")
	return x
}

// as lets carboy use a token.
func (x *trial) as(token string) {
	x.e.Forge = func(r *hosts.Reviews) (reviews.Forge, error) {
		return reviews.Open(r, func(string) string { return x.tokens[token] })
	}
}

func (x *trial) remote(login string) string {
	return strings.Replace(x.g.URL, "://", "://"+login+":"+giteatest.Password(login)+"@", 1) + "/" + trialRepo + ".git"
}

// by calls the API of the repository as a person.
func (x *trial) by(login, method, path string, in, out any, codes ...int) {
	x.t.Helper()
	x.g.MustAs(login+":"+giteatest.Password(login), method, "/repos/"+trialRepo+path, in, out, codes...)
}

// open makes a commit, a pull request of it by a person, and a plan.
func (x *trial) open(by string) Made {
	x.t.Helper()
	x.n++
	x.repo.Git(x.t, "checkout", "-q", "-B", fmt.Sprint("change-", x.n))
	x.repo.Write(x.t, "modules/web/note", fmt.Sprint(x.n))
	x.repo.Commit(x.t)
	x.push(by)
	var out struct {
		Number int `json:"number"`
	}
	x.by(by, "POST", "/pulls", map[string]any{"base": "main", "head": fmt.Sprint("change-", x.n), "title": "Ship it"}, &out, http.StatusCreated)
	x.e.Pull = out.Number
	return x.draw(nil)
}

func (x *trial) push(by string) {
	x.t.Helper()
	x.repo.Git(x.t, "push", "-q", "-f", x.remote(by), fmt.Sprint("HEAD:refs/heads/change-", x.n))
}

// pull returns the path of the pull request.
func (x *trial) pull(more string, args ...any) string {
	return fmt.Sprintf("/pulls/%d", x.e.Pull) + fmt.Sprintf(more, args...)
}

// review submits a review and returns its id.
func (x *trial) review(by string, event string, m Made, body string) int64 {
	x.t.Helper()
	var out struct {
		ID int64 `json:"id"`
	}
	x.by(by, "POST", x.pull("/reviews"), map[string]any{"event": event, "commit_id": m.Commit, "body": body}, &out, http.StatusOK)
	return out.ID
}

// approved opens a pull request, posts the plan and approves it.
func (x *trial) approved(by string) (Made, int64) {
	x.t.Helper()
	m := x.open("ann")
	x.post(m)
	id := x.review(by, "APPROVED", m, "Fine.\n\n"+reviews.Line(wanted(m))+"\n")
	return m, id
}

// edit changes the text of a comment or a review of the pull request, by who may.
func (x *trial) edit(kind string, change func(string) string) {
	x.t.Helper()
	var all []struct {
		ID   int64  `json:"id"`
		Type string `json:"type"`
		Body string `json:"body"`
	}
	x.by("acme", "GET", fmt.Sprintf("/issues/%d/timeline", x.e.Pull), nil, &all, http.StatusOK)
	for _, c := range all {
		if c.Type == kind {
			x.by("acme", "PATCH", fmt.Sprintf("/issues/comments/%d", c.ID), map[string]any{"body": change(c.Body)}, nil, http.StatusOK)
			return
		}
	}
	x.t.Fatalf("no %s in %+v", kind, all)
}

// no is refused, with a reason that says what is wrong.
func (x *trial) no(name string, m Made, says string) {
	x.t.Helper()
	before := x.knocks.Load()
	r, err := x.e.Apply(x.ctx(), [][]byte{m.Bytes}, nil)
	if got := outcomeOf(r, err); got != Mismatch || !strings.Contains(err.Error(), says) || x.knocks.Load() != before {
		x.t.Errorf("%s: %s (%v) after %d connections, want %q", name, got, err, x.knocks.Load()-before, says)
	}
}

// settled waits until Gitea, which works on a push for a while after it, tells something, and
// then it is refused.
func (x *trial) settled(name string, m Made, says string) {
	x.t.Helper()
	testenv.Poll(testenv.Patience(time.Minute), func() bool {
		err := x.e.Judge(x.ctx(), [][]byte{m.Bytes}, nil)
		return err != nil && strings.Contains(err.Error(), says)
	})
	x.no(name, m, says)
}

// nextSecond waits until Gitea's clock, which counts seconds, shows another one.
func (x *trial) nextSecond() {
	now := time.Now().Unix()
	testenv.Poll(testenv.Patience(time.Minute), func() bool { return time.Now().Unix() > now })
}

// merge merges the pull request with its very commit. Gitea takes a while to find out that
// it can.
func (x *trial) merge(m Made) {
	x.t.Helper()
	code := 0
	testenv.Poll(testenv.Patience(time.Minute), func() bool {
		code = x.g.Call("alice:"+giteatest.Password("alice"), "POST", "/repos/"+trialRepo+x.pull("/merge"), map[string]any{"Do": "fast-forward-only", "head_commit_id": m.Commit}, nil)
		return code == http.StatusOK
	})
	if code != http.StatusOK {
		x.t.Fatalf("merge: %d", code)
	}
}

// TestP5Gitea: reviews at a real Gitea approve a plan, until something about them changes.
func TestP5Gitea(t *testing.T) {
	x := newTrial(t)
	protect := func(more map[string]any) {
		t.Helper()
		x.by("acme", "PATCH", "/branch_protections/main", more, nil, http.StatusOK)
	}

	m := x.open("ann")
	x.no("before it is posted", m, "is not posted")
	x.post(m, m)
	x.no("before a review", m, "0 of 1 approving reviews")
	x.review("alice", "APPROVED", m, "Fine.")
	x.no("without the digest", m, "has no line")
	x.review("alice", "COMMENT", m, reviews.Line(wanted(m)))
	x.no("as a comment only", m, "has no line")
	x.review("carol", "APPROVED", m, reviews.Line(wanted(m)))
	x.no("by one whom hosts.yaml does not name", m, "has no line")
	x.review("robot", "APPROVED", m, reviews.Line(wanted(m)))
	x.no("by carboy's account", m, "carboy's token")
	x.review("alice", "APPROVED", m, reviews.Line(wanted(m)))
	x.reaches("approved", m)
	x.refused("another plan of the same commit", Mismatch, [][]byte{x.draw(func(d *plan.Plan) { d.By = "somebody else" }).Bytes})
	x.review("bob", "REQUEST_CHANGES", m, "No.")
	x.no("beside a person who asks for changes", m, "bob asks for changes")
	x.review("bob", "APPROVED", m, "Now it is fine.")
	x.reaches("asked for no longer", m)

	// The protection becomes weaker after the approval, and is mended.
	for name, v := range map[string]struct {
		weak, strong map[string]any
		says         string
	}{
		"no approvals are required": {map[string]any{"required_approvals": 0}, map[string]any{"required_approvals": 1}, "requires 0 approvals"},
		"stale approvals stay":      {map[string]any{"dismiss_stale_approvals": false}, map[string]any{"dismiss_stale_approvals": true}, "does not dismiss"},
		"all writers may merge":     {map[string]any{"enable_merge_whitelist": false}, map[string]any{"enable_merge_whitelist": true, "merge_whitelist_usernames": []string{"alice"}}, "who may merge"},
		"the robot may merge":       {map[string]any{"merge_whitelist_usernames": []string{"alice", "robot"}}, map[string]any{"merge_whitelist_usernames": []string{"alice"}}, "lets robot merge"},
	} {
		protect(v.weak)
		x.no(name, m, v.says)
		protect(v.strong)
		x.reaches(name+" no longer", m)
	}
	x.as("writer")
	x.no("to a token that may not read the protection", m, "does not tell its protection")
	if err := x.e.PostPlans(x.ctx(), [][]byte{m.Bytes}, nil); outcomeOf(nil, err) != Mismatch {
		t.Errorf("posted with a token that may not read the protection: %v", err)
	}
	x.as("robot")
	x.reaches("to one that may", m)

	m, id := x.approved("bob")
	x.reaches("by another person", m)
	x.by("acme", "POST", x.pull("/reviews/%d/dismissals", id), map[string]any{"message": "no"}, nil, http.StatusOK)
	x.no("dismissed", m, "dismissed")

	m, _ = x.approved("alice")
	x.nextSecond()
	x.edit("review", func(s string) string { return "No, wait." })
	x.no("a review that says something else now", m, "edited after")
	x.edit("review", func(string) string { return "Fine.\n\n" + reviews.Line(wanted(m)) + "\n" })
	x.no("a review that was edited back", m, "edited after")

	m = x.open("ann")
	x.post(m)
	x.review("alice", "APPROVED", m, "Fine.")
	x.edit("review", func(s string) string { return s + "\n\n" + reviews.Line(wanted(m)) })
	x.no("a line that another added", m, "edited after")

	m, _ = x.approved("alice")
	x.edit("comment", func(s string) string { return strings.Replace(s, "apply web on one", "apply web on two", 1) })
	x.no("a posted plan that says something else now", m, "was edited")

	m, _ = x.approved("alice")
	x.by("acme", "PATCH", x.pull(""), map[string]any{"state": "closed"}, nil, http.StatusCreated)
	x.no("closed", m, "closed and not merged")
	x.by("acme", "PATCH", x.pull(""), map[string]any{"state": "open"}, nil, http.StatusCreated)
	x.reaches("open again", m)
	x.by("acme", "POST", "/branches", map[string]any{"new_branch_name": "other"}, nil, http.StatusCreated)
	x.by("acme", "PATCH", x.pull(""), map[string]any{"base": "other"}, nil, http.StatusCreated)
	x.no("into another branch", m, "into other")

	// A push after the approval, and then a push of the same commit again.
	m, _ = x.approved("alice")
	x.repo.Write(t, "modules/web/note", "more")
	x.repo.Commit(t)
	x.push("ann")
	x.repo.Git(t, "reset", "-q", "--hard", m.Commit)
	x.settled("the push arrives", m, "is of commit")
	x.push("ann")
	x.settled("the same commit is pushed again", m, "dismissed")

	// The author approves their own change.
	m = x.open("alice")
	x.post(m)
	x.by("alice", "POST", x.pull("/reviews"), map[string]any{"event": "APPROVED", "commit_id": m.Commit, "body": reviews.Line(wanted(m))}, nil, http.StatusUnprocessableEntity)
	x.no("by its author", m, "0 of 1 approving reviews")

	m, _ = x.approved("alice")
	x.merge(m)
	x.reaches("merged as it is", m)
}
