package forge

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/secret"
)

const hookKey = "hook-secret-7Fq2"

func mac(key, body string) string {
	m := hmac.New(sha256.New, []byte(key))
	m.Write([]byte(body))
	return hex.EncodeToString(m.Sum(nil))
}

// hookHeaders returns the headers of a delivery that is signed with key.
func hookHeaders(provider, key, event, body string) http.Header {
	h := http.Header{}
	switch provider {
	case "gitea":
		h.Set("X-Gitea-Event", event)
		h.Set("X-Gitea-Delivery", "d-1")
		h.Set("X-Gitea-Signature", mac(key, body))
	case "github":
		h.Set("X-GitHub-Event", event)
		h.Set("X-GitHub-Delivery", "d-1")
		h.Set("X-Hub-Signature-256", "sha256="+mac(key, body))
	case "gitlab":
		h.Set("X-Gitlab-Event", event)
		h.Set("X-Gitlab-Event-UUID", "d-1")
		h.Set("X-Gitlab-Token", key)
	}
	return h
}

func TestHooks(t *testing.T) {
	const from = `"repository":{"full_name":"org/app"},"sender":{"login":"ada","type":"User"}`
	const lab = `"user":{"username":"ada"},"project":{"path_with_namespace":"org/sub/app"}`
	ev := func(kind EventKind, action string, at Thread, more ...func(*Event)) Event {
		e := Event{Delivery: "d-1", Kind: kind, Action: action, Repo: "org/app", At: at, Sender: ada}
		for _, f := range more {
			f(&e)
		}
		return e
	}
	comment := func(e *Event) { e.Comment = 5 }
	head := func(e *Event) { e.Commit = headSHA }
	sub := func(e *Event) { e.Repo = "org/sub/app" }
	for _, v := range []struct {
		provider, event, body string
		want                  Event
	}{
		{"gitea", "issues", `{"action":"label_updated","number":7,"issue":{"number":7,"pull_request":null},` + from + `}`, ev(IssueEvent, "label_updated", issue7)},
		{"gitea", "issue_comment", `{"action":"created","issue":{"number":7},"comment":{"id":5,"body":"x"},"is_pull":false,` + from + `}`, ev(CommentEvent, "created", issue7, comment)},
		{"gitea", "issue_comment", `{"action":"created","issue":{"number":8},"comment":{"id":5},"is_pull":true,` + from + `}`, ev(CommentEvent, "created", pull8, comment)},
		{"gitea", "pull_request", `{"action":"synchronized","number":8,"pull_request":{"number":8,"labels":[],"head":{"sha":"` + headSHA + `"}},` + from + `}`, ev(PullEvent, "synchronized", pull8, head)},
		{"gitea", "pull_request_rejected", `{"action":"reviewed","pull_request":{"number":8,"head":{"sha":"` + headSHA + `"}},"review":{"type":"pull_request_review_rejected"},` + from + `}`, ev(ReviewEvent, "reviewed", pull8, head)},
		{"gitea", "push", `{"ref":"refs/heads/main","after":"` + headSHA + `",` + from + `}`, ev(PushEvent, "", Thread{}, head)},
		{"gitea", "repository", `{"action":"deleted",` + from + `}`, ev(OtherEvent, "deleted", Thread{})},
		{"github", "issues", `{"action":"assigned","issue":{"number":7},` + from + `}`, ev(IssueEvent, "assigned", issue7)},
		{"github", "issue_comment", `{"action":"created","issue":{"number":8,"pull_request":{"url":"x"}},"comment":{"id":5},` + from + `}`, ev(CommentEvent, "created", pull8, comment)},
		{"github", "pull_request_review", `{"action":"submitted","review":{"id":1,"state":"approved"},"pull_request":{"number":8,"head":{"sha":"` + headSHA + `","repo":null}},` + from + `}`, ev(ReviewEvent, "submitted", pull8, head)},
		{"github", "ping", `{"zen":"x","hook_id":1}`, Event{Delivery: "d-1", Kind: OtherEvent}},
		{"github", "issues", `{"action":"opened","issue":null,"repository":null,"sender":null}`, Event{Delivery: "d-1", Kind: IssueEvent, Action: "opened"}},
		{"gitlab", "Issue Hook", `{"object_kind":"issue","object_attributes":{"id":99,"iid":7,"action":"update","updated_at":"2026-11-01 10:00:00 UTC"},` + lab + `}`, ev(IssueEvent, "update", issue7, sub)},
		{"gitlab", "Note Hook", `{"object_kind":"note","object_attributes":{"id":5,"noteable_type":"Issue"},"issue":{"iid":7,"labels":[{"id":1,"title":"x"}]},` + lab + `}`, ev(CommentEvent, "", issue7, sub, comment)},
		{"gitlab", "Note Hook", `{"object_kind":"note","object_attributes":{"id":5,"action":"create"},"merge_request":{"iid":8},` + lab + `}`, ev(CommentEvent, "create", pull8, sub, comment)},
		{"gitlab", "Merge Request Hook", `{"object_kind":"merge_request","object_attributes":{"iid":8,"action":"close","last_commit":{"id":"` + headSHA + `"}},` + lab + `}`, ev(PullEvent, "close", pull8, sub, head)},
		{"gitlab", "Merge Request Hook", `{"object_kind":"merge_request","object_attributes":{"iid":8,"action":"unapproved","last_commit":{"id":"` + headSHA + `"}},` + lab + `}`, ev(ReviewEvent, "unapproved", pull8, sub, head)},
		{"gitlab", "Push Hook", `{"object_kind":"push","user_username":"ada","checkout_sha":"` + headSHA + `","project":{"path_with_namespace":"org/sub/app"}}`, ev(PushEvent, "", Thread{}, sub, head)},
		{"gitlab", "Pipeline Hook", `{"object_kind":"pipeline",` + lab + `}`, ev(OtherEvent, "", Thread{}, sub)},
	} {
		got, err := ParseHook(v.provider, secret.NewString(hookKey), hookHeaders(v.provider, hookKey, v.event, v.body), []byte(v.body))
		if err != nil {
			t.Errorf("%s %s: %v", v.provider, v.body, err)
			continue
		}
		same(t, v.provider+" "+v.event, *got, v.want)
	}
}

// TestForgedHooks has deliveries that are signed wrongly, and well signed ones that are odd.
func TestForgedHooks(t *testing.T) {
	const body = `{"action":"opened","object_kind":"issue","issue":{"number":7},"object_attributes":{"iid":7},"repository":{"full_name":"org/app"},"project":{"path_with_namespace":"org/app"}}`
	key := secret.NewString(hookKey)
	for _, p := range Providers() {
		name := map[string]string{"gitea": "X-Gitea-Signature", "github": "X-Hub-Signature-256", "gitlab": "X-Gitlab-Token"}[p]
		good := func() http.Header { return hookHeaders(p, hookKey, "issues", body) }
		if e, err := ParseHook(p, key, good(), []byte(body)); err != nil || e.At != issue7 || e.Repo != repo {
			t.Fatalf("%s: the control: %+v %v", p, e, err)
		}
		right := good().Get(name)
		forged := map[string]func(h http.Header){
			"none":            func(h http.Header) { h.Del(name) },
			"empty":           func(h http.Header) { h.Set(name, "") },
			"of another key":  func(h http.Header) { h.Set(name, hookHeaders(p, "guess", "issues", body).Get(name)) },
			"of an empty key": func(h http.Header) { h.Set(name, hookHeaders(p, "", "issues", body).Get(name)) },
			"cut":             func(h http.Header) { h.Set(name, right[:len(right)-2]) },
			"longer":          func(h http.Header) { h.Set(name, right+"00") },
			"twice":           func(h http.Header) { h.Add(name, right) },
			"one of two":      func(h http.Header) { h.Set(name, "x"); h.Add(name, right) },
			"no hex":          func(h http.Header) { h.Set(name, strings.Repeat("z", len(right))) },
			"SHA-1 alone":     func(h http.Header) { h.Del(name); h.Set("X-Hub-Signature", "sha1=00") },
			"another vendor's": func(h http.Header) {
				h.Del(name)
				for _, o := range Providers() {
					if o != p {
						for k, v := range hookHeaders(o, hookKey, "issues", body) {
							h[k] = v
						}
					}
				}
			},
		}
		for what, forge := range forged {
			h := good()
			forge(h)
			if e, err := ParseHook(p, key, h, []byte(body)); !errors.Is(err, ErrNotSigned) {
				t.Errorf("%s, %s: %+v %v", p, what, e, err)
			}
		}
		if p != "gitlab" { // which signs nothing
			if _, err := ParseHook(p, key, good(), []byte(strings.Replace(body, "7", "8", 1))); !errors.Is(err, ErrNotSigned) {
				t.Errorf("%s: another body: %v", p, err)
			}
		}
		if _, err := ParseHook(p, secret.Value{}, hookHeaders(p, "", "issues", body), []byte(body)); !errors.Is(err, ErrNotSigned) {
			t.Errorf("%s: no secret here: %v", p, err)
		}
		for _, odd := range []string{"", "null x", "[]", `"x"`, "payload=%7B%7D", `{"issue":7,"object_attributes":7}`, `{"repository":{"full_name":"../../x"},"project":{"path_with_namespace":"a/../x"}}`,
			`{"issue":{"number":-1},"object_kind":"issue","object_attributes":{"iid":-1}}`, `{"issue":{"number":1e99},"object_attributes":{"iid":1e99}}`, strings.Repeat("[", 100000)} {
			if e, err := ParseHook(p, key, hookHeaders(p, hookKey, "issues", odd), []byte(odd)); err == nil {
				t.Errorf("%s: %.60q: %+v", p, odd, e)
			}
		}
		if e, err := ParseHook(p, key, hookHeaders(p, hookKey, "issues", "null"), []byte("null")); err != nil || e.Repo != "" {
			t.Errorf("%s: null: %+v %v", p, e, err)
		}
	}
	if _, err := ParseHook("bitbucket", key, nil, nil); err == nil {
		t.Error("an unknown forge")
	}
}
