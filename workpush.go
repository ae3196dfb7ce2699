package carboy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/gitgate"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/visible"
)

// PushTo is where work that passed goes: a branch of a repository that the agent's
// bottle declares. It is settled before the agent begins.
type PushTo struct {
	Repo   string    `json:"repo"` // by its name in the bottle
	URL    store.Raw `json:"url"`  // of upstream
	Branch string    `json:"branch"`
}

// Pushed is what became of it.
type Pushed struct {
	PushTo
	Verdict receipt.PushVerdict `json:"verdict"`
	// Reason says why it was refused or failed; it is visible text.
	Reason string `json:"reason,omitempty"`
	// Commit is the one that was made, whose tree is the one that was judged.
	Commit string `json:"commit,omitempty"`
	// Run is the run that pushed: its receipt says what left.
	Run store.ID `json:"run,omitempty"`
}

// pushTo finds where work goes when it passes, or says why it goes nowhere.
func (w *work) pushTo(ctx context.Context, p *Preflight, repo *gate.Repository) (*PushTo, string, error) {
	o := w.o
	if o.NoPush {
		return nil, "nobody wanted it pushed", nil
	}
	g := p.granted.git
	if g == nil {
		g = &gitGrant{}
	}
	remotes, err := repo.Remotes(ctx)
	if err != nil {
		return nil, "", err
	}
	to, why := g.leadingTo(remotes, o.Push)
	switch {
	case to == nil && o.Push != "":
		return nil, "", &OptionError{Option: "--push", Value: visible.String(o.Push, 100), Reason: "is not where this can be pushed: " + why, Advice: "declare the repository in the bottle's file, under git-gate.repos, or leave --push out"}
	case to == nil && o.Branch != "":
		return nil, "", &OptionError{Option: "--branch", Value: visible.String(o.Branch, 100), Reason: "can't be pushed: " + why, Advice: "declare the repository in the bottle's file, under git-gate.repos"}
	case to == nil:
		return nil, why, nil
	}
	branch := o.Branch
	if branch == "" {
		if branch = "carboy/" + w.label(); !validBranch(branch) {
			branch = "carboy/work-" + w.id[len(w.id)-8:]
		}
	}
	if !validBranch(branch) {
		return nil, "", &OptionError{Option: "--branch", Value: visible.String(branch, 100), Reason: "is no name for a branch", Advice: "use letters, digits and the marks . _ - / between them"}
	}
	return &PushTo{Repo: to.Name, URL: store.Raw(to.URL), Branch: branch}, "", nil
}

// leadingTo finds the repository of g to which a remote of the work tree leads: the one
// that is wanted, by its own name or a remote's, else origin's, else the only one.
func (g *gitGrant) leadingTo(remotes map[string][]string, want string) (*gitRepo, string) {
	if len(g.repos) == 0 {
		return nil, "the bottle declares no repository"
	}
	of := func(remote string) *gitRepo {
		for i := range g.repos {
			known := gitgate.Rewrites(g.repos[i].Repo)
			for _, url := range remotes[remote] {
				if slices.Contains(known, strings.TrimSuffix(url, "/")) {
					return &g.repos[i]
				}
			}
		}
		return nil
	}
	if want != "" {
		for i := range g.repos {
			if g.repos[i].Name == want {
				return &g.repos[i], ""
			}
		}
		if r := of(want); r != nil {
			return r, ""
		}
		return nil, "the bottle declares no repository of this name, and none to which such a remote leads"
	}
	if r := of("origin"); r != nil {
		return r, ""
	}
	var only *gitRepo
	for _, name := range slices.Sorted(maps.Keys(remotes)) {
		switch r := of(name); {
		case r == nil:
		case only != nil && only.Name != r.Name:
			return nil, "several of the bottle's repositories are remotes of this one, and none is origin: --push NAME says which"
		default:
			only = r
		}
	}
	if only == nil {
		return nil, "no remote of the repository leads to one that the bottle declares"
	}
	return only, ""
}

var branchForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A[A-Za-z0-9_][A-Za-z0-9._/-]{0,199}\z`) })

// validBranch admits fewer names than git does.
func validBranch(s string) bool {
	if !branchForm().MatchString(s) || strings.Contains(s, "..") {
		return false
	}
	for part := range strings.SplitSeq(s, "/") {
		if part == "" || strings.HasPrefix(part, ".") || strings.HasPrefix(part, "-") || strings.HasSuffix(part, ".") || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	return true
}

// pushing is a start of the agent that never happens: what it would be granted is.
func (w *work) pushing() StartOptions {
	return StartOptions{Agent: w.task.Agent, Bottles: w.task.Bottles, Dir: w.task.Dir, Headless: true, Prompt: w.task.Prompt, Env: w.o.Env, Ask: w.o.Ask}
}

// Where the pushing bottle has things, and how much of what it says is read.
const (
	pushObjects   = "/run/carboy-objects"
	maxPushOutput = 64 << 10
)

// pushScript makes one commit of the tree that was judged, on the base, and pushes it.
// Its repository is its own: neither hooks nor configuration of the user's are seen. What
// the tree says of its own contents (.gitattributes) changes none of them on their way
// into the commit. It makes the same commit whenever it runs for the same work. The
// lease is on a branch that is not there: one that is, is not moved, not even forward.
const pushScript = `set -eu
export GIT_DIR=/tmp/carboy-push GIT_WORK_TREE="$PWD" GIT_LITERAL_PATHSPECS=1 GIT_TERMINAL_PROMPT=0
export GIT_AUTHOR_DATE="$4" GIT_COMMITTER_DATE="$4"
git init -q --object-format="$3"
printf '%s\n' "$1" >"$GIT_DIR/objects/info/alternates"
mkdir -p "$GIT_DIR/info"
echo '* -text -ident -filter !working-tree-encoding' >"$GIT_DIR/info/attributes"
GIT_AUTHOR_NAME=$(git config user.name) || GIT_AUTHOR_NAME=$5
GIT_AUTHOR_EMAIL=$(git config user.email) || GIT_AUTHOR_EMAIL=$5@carboy.invalid
export GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL GIT_COMMITTER_NAME="$GIT_AUTHOR_NAME" GIT_COMMITTER_EMAIL="$GIT_AUTHOR_EMAIL"
git read-tree "$2"
git -c core.safecrlf=false add -A -f --pathspec-from-file=- --pathspec-file-nul
commit=$(git commit-tree "$(git write-tree)" -p "$2" -m "$6")
printf '%s\n' "$commit"
git push -q --force-with-lease="refs/heads/$8:" "$7" "$commit:refs/heads/$8"
`

// push pushes what passed, from a bottle of its own in which no agent ever was. What
// the user, or upstream, can put right is in its Pushed; an error is a push that was
// not tried.
func (w *work) push(ctx context.Context, a Attempt) (*Pushed, error) {
	out := &Pushed{PushTo: *w.task.Push, Verdict: receipt.PushFailed}
	failed := func(format string, args ...any) (*Pushed, error) {
		out.Reason = visible.String(fmt.Sprintf(format, args...), 500)
		return out, nil
	}
	v, _, err := w.c.Verdict(ctx, a.Verdict)
	if err != nil {
		return nil, err
	}
	g := GateOptions{Dir: w.task.Dir, Base: w.task.Base, Change: string(a.Run), Catalog: w.task.Catalog, waits: w.waits}
	judged, err := w.c.gateWork(ctx, &g)
	if err != nil {
		return nil, err
	}
	defer judged.close()
	tree := judged.g.Change
	if sum, err := tree.Digest(ctx); err != nil {
		return nil, err
	} else if sum != a.Tree {
		// What leaves is what was judged: the workspace has a part in it.
		return failed("the workspace is not as it was when the change was judged; put it back, or judge it again: carboy gate run --change %s", a.Run)
	}
	diff, err := tree.Differences(ctx, judged.g.Base)
	if err != nil {
		return nil, err
	}
	if len(diff) == 0 {
		return failed("there is nothing to push: the change is empty")
	}
	if err := judged.newScratch(); err != nil {
		return nil, err
	}
	dir := filepath.Join(judged.g.Scratch, "push")
	if err := tree.LayOut(ctx, dir, nil); err != nil {
		return nil, err
	}
	var paths bytes.Buffer
	for _, d := range diff {
		paths.WriteString(d.Path + "\x00")
	}
	list := filepath.Join(judged.g.Scratch, "paths")
	if err := os.WriteFile(list, paths.Bytes(), 0o600); err != nil {
		return nil, err
	}
	stdin, err := os.Open(list)
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	o, err := w.pushRun(a, dir, v.At)
	if err != nil {
		return nil, err
	}
	said, complaint := &capped{max: maxPushOutput}, &capped{max: maxPushOutput}
	o.run.Stdin, o.run.Stdout, o.run.Stderr = stdin, said, complaint
	if _, err := w.c.sweepPushes(ctx, w.id); err != nil {
		return nil, err
	}
	s, err := w.c.inOwnBottle(ctx, o, w.label()+pushLabel, w.task.Dir)
	var ended *AgentError
	switch {
	case err != nil && !errors.As(err, &ended):
		return nil, err
	case s == nil || s.Receipt == nil:
		return nil, fmt.Errorf("work %s: the push left no receipt", w.id)
	}
	out.Run = s.Receipt.ID
	out.Commit = visible.String(strings.TrimSpace(string(said.output().Bytes)), 64)
	if s.Receipt.Exit.Code == 0 {
		out.Verdict = receipt.Pushed
		return out, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // it is made once more, and is the same
	}
	if g := s.Receipt.Git; g != nil && len(g.Pushes) > 0 {
		p := g.Pushes[0]
		out.Verdict = p.Verdict
		if p.Verdict == receipt.Pushed {
			out.Verdict = receipt.PushFailed // git itself says otherwise
		}
		return failed("%s", cmp.Or(p.Reason, "upstream did not say why")+refusedFor(p))
	}
	if strings.Contains(string(complaint.output().Bytes), "(stale info)") {
		return failed("upstream has a branch of this name already; begin again with another --branch, or land it and push by hand")
	}
	return failed("git push ended with %d: %s", s.Receipt.Exit.Code, strings.TrimSpace(string(complaint.output().Bytes)))
}

// refusedFor names what a push was refused for.
func refusedFor(p receipt.Push) string {
	var out []string
	for i, f := range p.Found {
		if i == 5 {
			out = append(out, fmt.Sprintf("%d more", p.FoundTotal-5))
			break
		}
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s in %s %s:%d", f.Rule, f.Secret, f.Where, visible.String(string(f.File), 100), f.Line)))
	}
	for _, r := range p.Refs {
		if r.Result != "" && r.Result != "ok" && len(p.Found) == 0 {
			out = append(out, visible.String(r.Result, 200))
		}
	}
	if len(out) == 0 {
		return ""
	}
	return " (" + strings.Join(out, "; ") + ")"
}

// pushRun is what a push runs: the host's git, which gets to one repository and nowhere
// else. The commit is of the time when its tree was judged, however often it is pushed.
func (w *work) pushRun(a Attempt, dir string, judged time.Time) (*Preflight, error) {
	p, err := w.c.Preflight(w.pushing())
	if err != nil {
		return nil, err
	}
	grant := &gitGrant{}
	if p.granted.git != nil {
		for _, r := range p.granted.git.repos {
			if r.Name == w.task.Push.Repo && r.URL == string(w.task.Push.URL) {
				grant.repos = append(grant.repos, r)
			}
		}
	}
	if len(grant.repos) == 0 {
		return nil, &OptionError{Option: "git-gate.repos." + w.task.Push.Repo, Reason: "is not declared any more as it was when the work began", Advice: "put it back, then carboy work --continue " + w.id}
	}
	repo, err := hostexec.FindRepository(w.task.Dir)
	if err != nil {
		return nil, err
	}
	objects := realPath(repo.Objects)
	if strings.Contains(objects, ":") {
		return nil, &OptionError{Option: "--dir", Value: objects, Reason: "has a colon in its name, and can't be shown to a bottle", Advice: "push by hand, or work in a directory of another name"}
	}
	format := "sha1"
	if len(w.task.Base) == 64 {
		format = "sha256"
	}
	subject, _, _ := strings.Cut(w.task.Prompt, "\n")
	message := visible.String(subject, 72) + "\n\nCarboy-Work: " + w.id + "\nCarboy-Run: " + string(a.Run) + "\nCarboy-Verdict: " + a.Verdict + "\n"
	p.Workspace, p.Mode, p.Image, p.ImageDigest = dir, store.Overlay, "", ""
	p.granted = &granted{agent: p.granted.agent, log: p.granted.log, sum: p.granted.sum, git: grant, gitFile: p.granted.gitFile}
	p.run = RunOptions{
		Command: []string{
			"sh", "-c", pushScript, "carboy-push", pushObjects, w.task.Base, format, strconv.FormatInt(judged.Unix(), 10) + " +0000", w.task.Agent, message,
			"http://" + gitgate.Host + "/" + w.task.Push.Repo + ".git", w.task.Push.Branch,
		},
		Workspace: dir, at: gate.Workspace, Mode: store.Overlay, throwaway: true, Mounts: []string{objects + ":" + pushObjects + ":ro"},
		Limits: bottle.Limits{Timeout: p.run.Limits.Timeout}, OnEvent: w.o.OnEvent, granted: p.granted,
		Supervise: p.run.Supervise,
	}
	return p, nil
}

// pushLabel ends the label of a bottle that pushes.
const pushLabel = "-push"

// sweepPushes removes the bottles of pushes of these works that died with their carboy,
// and returns their names. Their runs stay: the receipts say what left. One that may
// have keys at a forge stays, too, until Open has revoked them.
func (c *Client) sweepPushes(ctx context.Context, works ...string) (removed []string, err error) {
	list, _, err := c.store.Bottles(ctx)
	if err != nil {
		return nil, err
	}
	for _, b := range list {
		of := func(id string) bool { return len(id) > 8 && strings.HasSuffix(b.Label, "-"+id[len(id)-8:]+pushLabel) }
		if b.Mode != store.None || !slices.ContainsFunc(works, of) || c.hasKeys(b.Slug) {
			continue
		}
		if busy, berr := c.store.BottleBusy(b.Slug); busy || berr != nil {
			continue // it pushes, or is gone by now
		}
		if _, rerr := c.store.RemoveBottle(ctx, b.Slug); rerr != nil {
			err = errors.Join(err, rerr)
			continue
		}
		removed = append(removed, b.Slug)
	}
	return removed, err
}

// inOwnBottle runs what p says in a bottle that is made for it, and gone after it.
func (c *Client) inOwnBottle(ctx context.Context, p *Preflight, label, workspace string) (*Started, error) {
	ws, err := store.ResolveWorkspace(workspace)
	if err != nil {
		return nil, err
	}
	b, err := c.store.CreateBottle(ctx, store.Bottle{Label: label, Agent: p.Agent, Bottles: p.Bottles, Mode: store.None, Workspace: ws, Build: c.build})
	if err != nil {
		return nil, err
	}
	lock, err := c.store.LockBottle(b.Slug)
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	p.granted.lock = lock
	s, err := c.runBottle(ctx, b, p)
	if !c.hasKeys(b.Slug) { // else its record stays, with what revokes them
		_, rerr := c.store.RemoveBottle(context.WithoutCancel(ctx), b.Slug)
		if rerr != nil {
			err = errors.Join(err, rerr)
		}
	}
	return s, err
}
