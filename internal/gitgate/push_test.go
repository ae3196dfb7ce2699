package gitgate

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/gitgate/gittest"
)

// cloneOf returns a work tree with the gate as its origin.
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
	git(t, w, "commit", "-qm", "change a file") // the message must not hold the name, which may be the secret
}

var awsKey = "AKIA" + "QYLPMN5HHHFPZAM2"

// goes, as says of pushes, expects that the push goes on.
const goes = "goes"

// pushes pushes a file with each text as a commit through a gate of cfg. It fails the test
// unless the push goes on, if says is goes, or else is refused with that text.
func pushes(t *testing.T, cfg Config, says, file string, texts ...string) {
	t.Helper()
	_, url := newGate(t, cfg)
	w := cloneOf(t, url)
	for _, text := range texts {
		commitFile(t, w, file, text)
	}
	out, err := tryGit(t, w, "push", "origin", "trunk")
	if went := err == nil; went != (says == goes) || !went && !strings.Contains(out, says) {
		t.Errorf("went on: %v\n%s", went, out)
	}
}

// An event of a push reports references, commits, findings and the result.
func TestPush(t *testing.T) {
	t.Parallel()
	up := newUpstreamRepo(t)
	cfg := Config{Repos: []Repo{{Name: "app", URL: up}}}
	events := record(&cfg)
	_, url := newGate(t, cfg)
	w := cloneOf(t, url)
	if e := events.last("fetch"); e.Verdict != Done || e.Repo != "app" || e.Out == 0 || e.In == 0 {
		t.Errorf("a fetch: %+v", e)
	}
	commitFile(t, w, "b.txt", "fine\n")
	git(t, w, "push", "-q", "origin", "trunk")
	id := strings.TrimSpace(git(t, w, "rev-parse", "HEAD"))
	e := events.last("push")
	if e.Verdict != Done || len(e.Refs) != 1 || e.Refs[0].New != id || e.Refs[0].Result != "ok" || len(e.Commits) != 1 || e.Commits[0] != id || e.New != 1 || e.Objects != 3 || e.Scanned == 0 {
		t.Errorf("a push: %+v", e)
	}
	commitFile(t, w, "src/c.txt", "x\nkey = \""+awsKey+"\"\n")
	refusedPush(t, w, "src/c.txt:2", "aws-access-token")
	e = events.last("push")
	if len(e.Findings) != 1 {
		t.Fatalf("a refused push: %+v", e)
	}
	f := e.Findings[0]
	if e.Verdict != Refused || strings.Contains(e.Reason, awsKey) || f.File != "src/c.txt" || f.Line != 2 || f.Rule != "aws-access-token" || f.Commit != strings.TrimSpace(git(t, w, "rev-parse", "HEAD")) {
		t.Errorf("a refused push: %+v", e)
	}
}

// Several references change all or none, whether or not the client asked for atomic.
func TestAtomic(t *testing.T) {
	t.Parallel()
	for name, goes := range map[string]bool{"one of two is refused": false, "neighbour": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := newUpstreamRepo(t)
			_, url := newGate(t, Config{Repos: []Repo{{Name: "app", URL: up}}})
			w := cloneOf(t, url)
			commitFile(t, w, "b.txt", "b\n")
			if !goes {
				// Upstream changes after the client has read its references, so the push of
				// trunk is outdated.
				git(t, up, "config", "receive.denyNonFastForwards", "true")
				git(t, w, "commit", "-q", "--amend", "-m", "x")
				git(t, w, "push", "-q", "origin", "trunk")
				git(t, w, "commit", "-q", "--amend", "-m", "y")
			}
			before := git(t, up, "for-each-ref")
			out, err := tryGit(t, w, "push", "origin", "+trunk", "+trunk:refs/heads/more")
			if (err == nil) != goes {
				t.Fatalf("pushed: %v\n%s", err == nil, out)
			}
			if changed := git(t, up, "for-each-ref") != before; changed != goes {
				t.Errorf("changed: %v", changed)
			}
		})
	}
}

// A fetch shows nothing of a refused push.
func TestRefusedLeavesNothing(t *testing.T) {
	t.Parallel()
	up := newUpstreamRepo(t)
	git(t, up, "config", "uploadpack.allowAnySHA1InWant", "true")
	_, url := newGate(t, Config{Repos: []Repo{{Name: "app", URL: up}}})
	w := cloneOf(t, url)
	commitFile(t, w, "fine.txt", "fine\n")
	git(t, w, "push", "-q", "origin", "trunk")
	fine := strings.TrimSpace(git(t, w, "rev-parse", "HEAD"))
	commitFile(t, w, "k.txt", awsKey+"\n")
	refusedPush(t, w, "k.txt:1")
	bad := strings.TrimSpace(git(t, w, "rev-parse", "HEAD"))
	other := cloneOf(t, url)
	git(t, other, "fetch", "-q", "origin", fine)
	if out, err := tryGit(t, other, "fetch", "origin", bad); err == nil {
		t.Errorf("the refused commit can be fetched: %s", out)
	}
}

// git keeps a push apart until it has checked it, and removes it when it refuses. It must
// have the time to.
func TestRefusedByUpstreamLeavesNothing(t *testing.T) {
	t.Parallel()
	up := newUpstreamRepo(t)
	_, url := newGate(t, Config{Repos: []Repo{{Name: "app", URL: up}}})
	w := cloneOf(t, url)
	for i := range 90 { // git stores them one by one
		write(t, fmt.Sprintf("%s/%d.txt", w, i), fmt.Sprint(i))
	}
	git(t, w, "add", ".")
	git(t, w, "commit", "-qm", "many")
	ids := strings.Fields(git(t, w, "rev-list", "--objects", "--no-object-names", "HEAD~1..HEAD"))
	tree := strings.TrimSpace(git(t, w, "rev-parse", "HEAD^{tree}"))
	push := func(ids []string) string {
		pack := pipeGitRaw(t, w, strings.Join(ids, "\n")+"\n", "pack-objects", "--stdout", "-q")
		_, out := post(t, url+"/app.git/git-receive-pack", receivePack, line(zeroID+" "+ids[0]+" refs/heads/many\x00 report-status side-band-64k")+"0000"+string(pack))
		return out
	}
	without := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return id == tree })
	if out := push(without); !strings.Contains(out, "ng refs/heads/many upstream: missing necessary objects") {
		t.Errorf("a push without a tree: %q", out)
	}
	if left, _ := filepath.Glob(up + "/objects/tmp_objdir-*/*"); len(left) > 0 {
		t.Errorf("upstream keeps of it: %q", left)
	}
	if out := push(ids); !strings.Contains(out, "ok refs/heads/many") {
		t.Errorf("its neighbour: %q", out)
	}
}

// There are more concurrent clones than sessions on a connection to sshd.
func TestManyClones(t *testing.T) {
	t.Parallel()
	s := gittest.StartSSH(t, "AcceptEnv GIT_PROTOCOL", "MaxSessions 3")
	_, url := newGate(t, Config{Repos: []Repo{overSSHTo(s, newUpstreamRepo(t))}})
	done := make(chan error)
	const many = 12
	dir := t.TempDir()
	for i := range many {
		go func() {
			_, err := tryGit(t, dir, "clone", "-q", url+"/app.git", string(rune('a'+i)))
			done <- err
		}()
	}
	for range many {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// A push waits for a person, while upstream sees nothing. Then it goes on, or fails with
// the person's text.
func TestAsk(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{"approved": nil, "rejected": errors.New("rejected by somebody: \x1b[2Jno")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := newUpstreamRepo(t)
			asked, decide := make(chan Allow), make(chan error)
			_, url := newGate(t, Config{Repos: []Repo{{Name: "app", URL: up}}, Ask: func(ctx context.Context, a Allow) (string, error) {
				select {
				case asked <- a:
				case <-ctx.Done():
					return "", ctx.Err()
				}
				return "me (web)", <-decide
			}})
			w := cloneOf(t, url)
			commitFile(t, w, "k.py", awsKey+" # gitleaks:allow\n")
			before := git(t, up, "for-each-ref")
			type end struct {
				out string
				err error
			}
			ended := make(chan end, 1)
			go func() {
				out, err := tryGit(t, w, "push", "origin", "trunk")
				ended <- end{out, err}
			}()
			select {
			case <-asked:
			case e := <-ended:
				t.Fatalf("nobody was asked: %v\n%s", e.err, e.out)
			}
			if git(t, up, "for-each-ref") != before {
				t.Error("upstream changed before anybody decided")
			}
			// Other pushes go on meanwhile.
			git(t, cloneOf(t, url), "push", "-q", "origin", "trunk:refs/heads/meanwhile")
			decide <- answer
			e := <-ended
			if (e.err == nil) != (answer == nil) || !strings.Contains(e.out, "waiting for a person") || strings.Contains(strings.ReplaceAll(e.out, "\x1b[K", ""), "\x1b") {
				t.Errorf("pushed: %v\n%q", e.err == nil, e.out)
			}
			if answer != nil && !strings.Contains(e.out, `rejected by somebody: \x1b[2Jno`) {
				t.Errorf("git does not say why: %s", e.out)
			}
		})
	}
}
