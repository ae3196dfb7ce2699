package gitgate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/secret"
)

// TestG1OldFaults: faults of old histories that hurt nobody who clones them go to a person,
// once for each kind, and not at all if upstream has them. What does harm, or is a secret, is
// refused beside them without a question.
func TestG1OldFaults(t *testing.T) {
	t.Parallel()
	up := newUpstreamRepo(t)
	git(t, up, "config", "uploadpack.allowFilter", "true")
	git(t, up, "config", "uploadpack.allowAnySHA1InWant", "true")
	var asked []Allow
	var answer error
	cfg := Config{
		Repos: []Repo{{Name: "app", URL: up}},
		Secrets: func() map[string]secret.Value {
			return map[string]secret.Value{"deploy-token": secret.NewString(knownSecret)}
		},
	}
	alone := cfg
	cfg.Ask = func(_ context.Context, a Allow) (string, error) {
		asked = append(asked, a)
		return "me", answer
	}
	events := record(&cfg)
	_, url := newGate(t, cfg)
	_, deaf := newGate(t, alone)
	w := cloneOf(t, url)
	start := strings.TrimSpace(git(t, w, "rev-parse", "HEAD"))
	const bad, padded = "A <a@b> 1 +0000\ncommitter A <a@b> 1 0\n", "git fsck zeroPaddedFilemode"
	push := func(name, to string, goes bool, says string, questions int) {
		t.Helper()
		asked = nil
		out, err := tryGit(t, w, "push", to+"/app.git", "trunk:refs/heads/"+name)
		if (err == nil) != goes || !strings.Contains(out, says) || len(asked) != questions {
			t.Errorf("%s: %v, %d questions: %+v\n%s", name, err, len(asked), asked, out)
		}
	}
	dirs := func() string {
		return entry("040000", "old", pipeGit(t, w, "100644 blob "+blob(t, w, "x")+"\tx", "mktree"))
	}

	literalCommit(t, w, "author "+bad)
	literalCommit(t, w, "author "+bad)
	rawTree(t, w, entry("100644", "f.txt", blob(t, w, "x")), dirs())
	push("nobody", deaf, false, "needs a person to approve it", 0)
	answer = errors.New("not these")
	push("rejected", url, false, "not these", 1)
	answer = nil
	push("approved", url, true, "and 1 more git fsck badTimezone: invalid author/committer line", 2)
	if len(asked) == 2 {
		if a := asked[0]; a.Rule != "git fsck badTimezone" || a.Line != 1 || len(a.Commit) != 40 || !strings.HasSuffix(a.File, " and 1 more") || !strings.Contains(a.Text, "bad time zone") {
			t.Errorf("%+v", a)
		}
		if a := asked[1]; a.Rule != padded || a.Commit != strings.TrimSpace(git(t, w, "rev-parse", "HEAD")) || !strings.HasPrefix(a.File, "tree ") {
			t.Errorf("%+v", a)
		}
	}
	if e := events.last("push"); len(e.Findings) != 2 || e.Findings[0].Allow != "approved by me" {
		t.Errorf("%+v", e)
	}
	if got := git(t, cloneOf(t, url), "rev-parse", "origin/approved"); got != git(t, w, "rev-parse", "HEAD") {
		t.Errorf("a clone has %s", got)
	}

	// Upstream has the fault, and the bottle's git can't know.
	git(t, w, "reset", "-q", "--hard", start)
	literalCommit(t, w, "author B <a@b 2 +0000\ncommitter B <a@b> 2 +0000\n")
	old := strings.TrimSpace(git(t, w, "rev-parse", "HEAD"))
	git(t, w, "push", "-q", up, "HEAD:refs/heads/x")
	git(t, up, "update-ref", "refs/heads/x", strings.TrimSpace(git(t, up, "commit-tree", "-p", old, "-m", "on top", old+"^{tree}")))
	commitFile(t, w, "new.txt", "n\n")
	push("had", url, true, "", 0)

	// Beside a fault: harm, also of a file that only upstream has, and secrets.
	modules := "[submodule \"x\"]\n\tpath = x\n\turl = %s\n"
	good, evil := blob(t, w, fmt.Sprintf(modules, "https://e.org/x")), blob(t, w, fmt.Sprintf(modules, "-u./payload"))
	git(t, w, "reset", "-q", "--hard", start)
	rawTree(t, w, entry("100644", "evil.txt", evil), entry("100644", "good.txt", good))
	push("before", url, true, "", 0)
	before := strings.TrimSpace(git(t, w, "rev-parse", "HEAD"))
	x := blob(t, w, "x")
	for name, c := range map[string]struct {
		goes    bool
		says    string
		asked   int
		entries []string
	}{
		"dot-git":   {false, "hasDotgit", 0, []string{entry("040000", ".git", emptyTree(t, w))}},
		"up":        {false, "hasDotdot", 0, []string{entry("040000", "..", emptyTree(t, w))}},
		"slash":     {false, "fullPathname", 0, []string{entry("100644", "a/../../x", x), dirs()}},
		"url":       {false, "gitmodulesUrl", 0, []string{entry("100644", ".gitmodules", evil), dirs()}},
		"link":      {false, "gitmodulesSymlink", 0, []string{entry("120000", ".gitmodules", x), dirs()}},
		"in-padded": {false, "deploy-token", 0, []string{entry("040000", "old", pipeGit(t, w, "100644 blob "+blob(t, w, knownSecret+"\n")+"\tx", "mktree"))}},
		"modules":   {true, padded, 1, []string{entry("100644", ".gitmodules", good), dirs()}},
	} {
		git(t, w, "update-ref", "refs/heads/trunk", before)
		rawTree(t, w, c.entries...)
		push(name, url, c.goes, c.says, c.asked)
	}
}

// TestG1FsckLines: each line of git fsck is understood, or the push is refused.
func TestG1FsckLines(t *testing.T) {
	t.Parallel()
	id, other := strings.Repeat("0a", 20), strings.Repeat("0b", 20)
	ours := map[string]bool{id: true}
	for text, c := range map[string]struct {
		ours            map[string]bool
		says            string
		faults, missing int
	}{
		"notice: No default references\n":                                       {nil, "", 0, 0},
		"warning in commit " + id + ": badDate: x\n":                            {nil, "", 1, 0},
		"warning in tag " + id + ": missingTaggerEntry: no tagger, as of old\n": {nil, "", 0, 0},
		"error in commit " + id + ": badDate: x\n":                              {nil, "(badDate)", 0, 0},
		"error in tree " + id + ": hasDotgit: x\n":                              {ours, "(hasDotgit)", 0, 0},
		"error in tree " + other + ": hasDotgit: x\n":                           {ours, "", 0, 0},
		"error in blob " + id + ": gitmodulesMissing: x\n":                      {nil, "", 0, 1},
		"error in unknown " + id + ": gitmodulesMissing: x\n":                   {ours, "(gitmodulesMissing)", 0, 0},
		"error: packed " + id + " from x is corrupt\n":                          {nil, "git rejects the objects", 0, 0},
		"anything else\n": {ours, "git rejects the objects", 0, 0},
	} {
		q := &quarantine{missing: []string{"x"}}
		err := q.note([]byte(text), c.ours)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) || len(q.faults) != c.faults || len(q.missing) != c.missing {
			t.Errorf("%q: %v, %+v", text, err, q)
		}
	}
}
