package gitgate

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// clone gives a work tree with the gate as its origin.
func cloneOf(t testing.TB, url string) string {
	t.Helper()
	dir := t.TempDir()
	git(t, dir, "clone", "-q", url+"/app.git", "c")
	return dir + "/c"
}

func commitFile(t testing.TB, w, path, text string) {
	t.Helper()
	write(t, w+"/"+path, text)
	git(t, w, "add", "-A")
	git(t, w, "commit", "-qm", "change "+path)
}

var awsKey = "AKIA" + "QYLPMN5HHHFPZAM2"

func TestPush(t *testing.T) {
	up := newUpstreamRepo(t)
	var events []Event
	_, url := newGate(t, Config{Repos: []Repo{{Name: "app", URL: up}}, Observe: func(e Event) { events = append(events, e) }})
	w := cloneOf(t, url)
	commitFile(t, w, "b.txt", "fine\n")
	t.Log(git(t, w, "push", "origin", "trunk"))
	if got := git(t, up, "log", "--format=%s", "trunk"); got != "change b.txt\none\n" {
		t.Errorf("upstream has %q", got)
	}
	before := git(t, up, "for-each-ref")
	commitFile(t, w, "src/c.txt", "x\nkey = \""+awsKey+"\"\n")
	out, err := tryGit(t, w, "push", "origin", "trunk")
	t.Log(out)
	if err == nil || !strings.Contains(out, "src/c.txt:2") || !strings.Contains(out, "aws-access-token") {
		t.Errorf("push of a secret: %v", err)
	}
	if got := git(t, up, "for-each-ref"); got != before {
		t.Error("upstream changed")
	}
	git(t, w, "reset", "-q", "--hard", "HEAD~1")
	t.Log(git(t, w, "push", "origin", "trunk:refs/heads/other", "trunk:refs/tags/t"))
	t.Log(git(t, w, "push", "origin", ":refs/heads/other"))
	for _, e := range events {
		t.Logf("%+v", e)
	}
}

func TestAsk(t *testing.T) {
	up := newUpstreamRepo(t)
	var asked []Allow
	var answer error
	_, url := newGate(t, Config{Repos: []Repo{{Name: "app", URL: up}}, Ask: func(_ context.Context, a Allow) error {
		asked = append(asked, a)
		return answer
	}})
	w := cloneOf(t, url)
	commitFile(t, w, "src/c.txt", "x\nkey = \""+awsKey+"\" # gitleaks:allow\n")
	answer = errors.New("rejected by tester: no")
	out, err := tryGit(t, w, "push", "origin", "trunk")
	t.Log(out)
	if err == nil || !strings.Contains(out, "rejected by tester") {
		t.Error("went on")
	}
	answer = nil
	t.Log(git(t, w, "push", "origin", "trunk"))
	t.Logf("%+v", asked)
}
