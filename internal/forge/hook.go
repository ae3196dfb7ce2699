package forge

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/carboy/carboy/internal/secret"
)

// Event is a webhook's hint that something may have changed. What holds is read
// from the forge. A forge delivers events late, twice, in another order, or not at all, so a
// delivery's name tells no repeats apart.
type Event struct {
	Delivery string
	Kind     EventKind
	Action   string // in the forge's own words
	Repo     string
	At       Thread // number 0: none
	Comment  int64  // 0: none
	Sender   User
	Commit   string // "": none
}

// EventKind names the thing that an event is about.
type EventKind string

// The kinds of events.
const (
	IssueEvent   EventKind = "issue"
	PullEvent    EventKind = "pull request"
	CommentEvent EventKind = "comment"
	ReviewEvent  EventKind = "review"
	PushEvent    EventKind = "push"
	OtherEvent   EventKind = "other"
)

// ErrNotSigned means that a delivery does not prove that it comes from the forge.
var ErrNotSigned = errors.New("the delivery is not signed with the webhook's secret")

// ParseHook verifies a delivery by the webhook's secret, and reads it. The caller bounds the
// body.
func ParseHook(provider string, key secret.Value, h http.Header, body []byte) (*Event, error) {
	v, err := vendorOf(provider)
	if err != nil {
		return nil, err
	}
	if key.Empty() || !v.verify(h, body, key) {
		return nil, ErrNotSigned
	}
	e, err := v.event(h, body)
	if err != nil {
		return nil, err
	}
	if e.Repo != "" {
		if err := checkRepo(provider, e.Repo); err != nil {
			return nil, err
		}
	}
	if e.At.Number < 0 || e.Comment < 0 {
		return nil, errNotHook
	}
	return &e, nil
}

var errNotHook = errors.New("the delivery is not what the forge documents (is the webhook's content type application/json?)")

// only returns the value of a header that is there once, or "".
func only(h http.Header, name string) string {
	if v := h.Values(name); len(v) == 1 {
		return v[0]
	}
	return ""
}

// signed reports whether sig is the HMAC of body in hex.
func signed(sig string, body []byte, key secret.Value) bool {
	got, err := hex.DecodeString(sig)
	if err != nil {
		return false
	}
	var want []byte
	key.UnsafeReveal(func(k []byte) {
		m := hmac.New(sha256.New, k)
		m.Write(body)
		want = m.Sum(nil)
	})
	return hmac.Equal(got, want)
}

func (gitea) verify(h http.Header, body []byte, key secret.Value) bool {
	return signed(only(h, "X-Gitea-Signature"), body, key)
}

func (github) verify(h http.Header, body []byte, key secret.Value) bool {
	sig, ok := strings.CutPrefix(only(h, "X-Hub-Signature-256"), "sha256=")
	return ok && signed(sig, body, key)
}

// verify compares the secret itself: GitLab sends it, and signs nothing.
func (gitlab) verify(h http.Header, _ []byte, key secret.Value) bool {
	return key.EqualBytes([]byte(only(h, "X-Gitlab-Token")))
}

func (gitea) event(h http.Header, body []byte) (Event, error) {
	return hubEvent(only(h, "X-Gitea-Event"), only(h, "X-Gitea-Delivery"), body)
}

func (github) event(h http.Header, body []byte) (Event, error) {
	return hubEvent(only(h, "X-GitHub-Event"), only(h, "X-GitHub-Delivery"), body)
}

var hubEvents = map[string]EventKind{
	"issues": IssueEvent, "issue_comment": CommentEvent, "pull_request": PullEvent, "push": PushEvent,
	"pull_request_review": ReviewEvent, "pull_request_review_comment": ReviewEvent, "pull_request_review_thread": ReviewEvent,
	"pull_request_approved": ReviewEvent, "pull_request_rejected": ReviewEvent, "pull_request_comment": ReviewEvent, // Gitea's
}

func hubEvent(name, delivery string, body []byte) (Event, error) {
	var p struct {
		Action string `json:"action"`
		Repo   struct {
			Name string `json:"full_name"`
		} `json:"repository"`
		Sender hubUser `json:"sender"`
		Issue  *struct {
			Number int       `json:"number"`
			Pull   *struct{} `json:"pull_request"`
		} `json:"issue"`
		IsPull bool `json:"is_pull"`
		Pull   *struct {
			Number int       `json:"number"`
			Head   hubBranch `json:"head"`
		} `json:"pull_request"`
		Comment struct {
			ID int64 `json:"id"`
		} `json:"comment"`
		After string `json:"after"`
	}
	if json.Unmarshal(body, &p) != nil {
		return Event{}, errNotHook
	}
	e := Event{Delivery: delivery, Kind: hubEvents[name], Action: p.Action, Repo: p.Repo.Name, Sender: p.Sender.user(), Comment: p.Comment.ID}
	switch {
	case p.Issue != nil:
		e.At = Thread{p.Issue.Number, p.IsPull || p.Issue.Pull != nil}
	case p.Pull != nil:
		e.At, e.Commit = Thread{p.Pull.Number, true}, p.Pull.Head.SHA
	}
	switch e.Kind {
	case "":
		e.Kind = OtherEvent
	case PushEvent:
		e.Commit = p.After
	}
	return e, nil
}

type labNumber struct {
	IID int `json:"iid"`
}

func (gitlab) event(h http.Header, body []byte) (Event, error) {
	var p struct {
		Kind    string  `json:"object_kind"`
		User    labUser `json:"user"`
		Pusher  string  `json:"user_username"`
		Project struct {
			Path string `json:"path_with_namespace"`
		} `json:"project"`
		Object struct {
			ID     int64  `json:"id"`
			IID    int    `json:"iid"`
			Action string `json:"action"`
			Last   struct {
				ID string `json:"id"`
			} `json:"last_commit"`
		} `json:"object_attributes"`
		Issue *labNumber `json:"issue"`
		Merge *labNumber `json:"merge_request"`
		After string     `json:"checkout_sha"`
	}
	if json.Unmarshal(body, &p) != nil {
		return Event{}, errNotHook
	}
	e := Event{Delivery: only(h, "X-Gitlab-Event-UUID"), Kind: OtherEvent, Action: p.Object.Action, Repo: p.Project.Path, Sender: p.User.user()}
	switch p.Kind {
	case "issue":
		e.Kind, e.At = IssueEvent, Thread{p.Object.IID, false}
	case "merge_request":
		e.Kind, e.At, e.Commit = PullEvent, Thread{p.Object.IID, true}, p.Object.Last.ID
		if strings.HasSuffix(p.Object.Action, "approved") || strings.HasSuffix(p.Object.Action, "approval") {
			e.Kind = ReviewEvent
		}
	case "note":
		e.Kind, e.Comment = CommentEvent, p.Object.ID
		switch {
		case p.Issue != nil:
			e.At = Thread{p.Issue.IID, false}
		case p.Merge != nil:
			e.At = Thread{p.Merge.IID, true}
		}
	case "push":
		e.Kind, e.Commit, e.Sender = PushEvent, p.After, User{Login: p.Pusher, Bot: labBot().MatchString(p.Pusher)}
	}
	return e, nil
}
