package work

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottles"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/gate/judge"
	"github.com/carboy/carboy/internal/gitgate"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/run/repos"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// PushTo is the destination of work that passes: a branch of a repository that the
// agent's bottle declares. It is chosen before the agent starts.
type PushTo struct {
	Repo   string    `json:"repo"` // its name in the bottle
	URL    store.Raw `json:"url"`  // of upstream
	Branch string    `json:"branch"`
}

// Pushed is the result of a push.
type Pushed struct {
	PushTo
	Verdict receipt.PushVerdict `json:"verdict"`
	// Reason says why it was refused or failed, in text that is safe to print.
	Reason string `json:"reason,omitempty"`
	// Commit is the commit that was pushed. Its tree is the one that was judged.
	Commit string `json:"commit,omitempty"`
	// Run is the run that pushed. Its receipt says what left.
	Run store.ID `json:"run,omitempty"`
	// Files lists the files that the commit changes against the base, up to MaxFiles.
	Files []File `json:"files,omitempty"`
}

// File is a file that a change touches. Its path is as it is in the change: print it with
// package safetext.
type File struct {
	Path string `json:"path"`
	// Added and Removed count lines. They are -1 of a binary file.
	Added   int `json:"added"`
	Removed int `json:"removed"`
}

// MaxFiles bounds Pushed.Files.
const MaxFiles = 1000

// pushTo chooses the destination of work that passes, or says why there is none.
func (w *Work) pushTo(ctx context.Context, p *bottles.Preflight, repo *gate.Repository) (*PushTo, string, error) {
	o := w.O
	if o.NoPush {
		return nil, "nobody wanted it pushed", nil
	}
	g := p.Grant.Git
	if g == nil {
		g = &repos.Repos{}
	}
	remotes, err := repo.Remotes(ctx)
	if err != nil {
		return nil, "", err
	}
	to, why := g.LeadingTo(remotes, o.Push)
	switch {
	case to == nil && o.Push != "":
		return nil, "", &fault.OptionError{Option: "--push", Value: safetext.String(o.Push, 100), Reason: "is not where this can be pushed: " + why, Advice: "declare the repository in the bottle's file, under git-gate.repos, or leave --push out"}
	case to == nil && o.Branch != "":
		return nil, "", &fault.OptionError{Option: "--branch", Value: safetext.String(o.Branch, 100), Reason: "can't be pushed: " + why, Advice: "declare the repository in the bottle's file, under git-gate.repos"}
	case to == nil:
		return nil, why, nil
	}
	branch := o.Branch
	if branch == "" {
		if branch = "carboy/" + w.label(); !ValidBranch(branch) {
			branch = "carboy/work-" + w.Id[len(w.Id)-8:]
		}
	}
	if !ValidBranch(branch) {
		return nil, "", &fault.OptionError{Option: "--branch", Value: safetext.String(branch, 100), Reason: "is no name for a branch", Advice: "use letters, digits and the marks . _ - / between them"}
	}
	return &PushTo{Repo: to.Name, URL: store.Raw(to.URL), Branch: branch}, "", nil
}

var branchForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A[A-Za-z0-9_][A-Za-z0-9._/-]{0,199}\z`) })

// ValidBranch reports whether s can be the name of a branch. It allows fewer names than
// git does.
func ValidBranch(s string) bool {
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

// pushing returns options for a Preflight of the agent. Nothing starts with them: a push
// uses a part of what the Preflight grants.
func (w *Work) pushing() bottles.StartOptions {
	return bottles.StartOptions{Agent: w.Task.Agent, Bottles: w.Task.Bottles, Dir: w.Task.Dir, Headless: true, Prompt: w.Task.Prompt, Env: w.O.Env, Ask: w.O.Ask}
}

// pushObjects is the path of the repository's objects in the pushing bottle, and
// maxPushOutput bounds each of its outputs, in bytes.
const (
	pushObjects   = "/run/carboy-objects"
	maxPushOutput = 64 << 10
)

// pushScript commits the tree that was judged on top of the base, and pushes the commit.
// It uses a repository of its own, so that the user's hooks and configuration have no
// effect. The attributes it sets keep .gitattributes of the tree from changing file
// contents. It makes the same commit each time that it runs for the same work. The lease
// demands that the branch has the commit that the work began with, or does not exist: the
// script never moves what somebody else pushed. Where the branch has the commit already, an
// earlier push died after it. Its hooks died with its connection, so a forge may not know of
// the commit, and shows and merges what was there before: the branch goes back once and comes
// again. The script prints the commit and what that changes.
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
commit=$(git commit-tree "$(git write-tree)" -p "$9" -m "$6")
printf '%s\n' "$commit"
git diff-tree -r --no-renames --numstat -z "$2" "$commit"
url=$7 branch=refs/heads/$8 last=${10}
push() { git push -v --porcelain --force-with-lease="$branch:$1" "$url" "$2:$branch"; }
said=$(push "$last" "$commit") || { printf '%s\n' "$said" >&2; exit 1; }
case "$said" in
*"=	$commit:$branch	"*) if push "$commit" "$last" >&2; then push "$last" "$commit" >&2; fi ;;
esac
`

// push pushes a change that passed, from a new bottle in which no agent has run. A
// failure that the user or upstream can fix is in the Pushed. An error means that no push
// was tried.
func (w *Work) push(ctx context.Context, a Attempt) (*Pushed, error) {
	out := &Pushed{PushTo: *w.Task.Push, Verdict: receipt.PushFailed}
	failed := func(format string, args ...any) (*Pushed, error) {
		out.Reason = safetext.String(fmt.Sprintf(format, args...), 500)
		return out, nil
	}
	v, _, err := w.C.judge.Verdict(ctx, a.Verdict)
	if err != nil {
		return nil, err
	}
	base, parent := cmp.Or(a.Base, w.Task.Base), cmp.Or(a.Base, w.Task.Last, w.Task.Base)
	g := judge.GateOptions{Dir: w.Task.Dir, Base: base, Change: string(a.Run), Catalog: w.Task.Catalog, Waits: w.waits}
	judged, err := w.C.judge.GateWork(ctx, &g)
	if err != nil {
		return nil, err
	}
	defer judged.Close()
	tree := judged.G.Change
	if sum, err := tree.Digest(ctx); err != nil {
		return nil, err
	} else if sum != a.Tree {
		// Only the tree that was judged may leave, and the workspace is a part of it.
		return failed("the workspace is not as it was when the change was judged; put it back, or judge it again: carboy gate run --change %s", a.Run)
	}
	diff, err := tree.Differences(ctx, judged.G.Base)
	if err != nil {
		return nil, err
	}
	if len(diff) == 0 && parent == base {
		return failed("there is nothing to push: the change is empty")
	}
	if has, err := w.branchHas(ctx, judged, parent); err != nil {
		return nil, err
	} else if has {
		out.Verdict, out.Commit = receipt.Pushed, parent
		return out, nil
	}
	dir, stdin, err := layOut(ctx, judged, diff)
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	o, err := w.pushRun(a, dir, v.At, base, parent)
	if err != nil {
		return nil, err
	}
	said, complaint := &judge.Capped{Max: maxPushOutput}, &judge.Capped{Max: maxPushOutput}
	o.Run.Stdin, o.Run.Stdout, o.Run.Stderr = stdin, said, complaint
	if _, err := w.C.SweepPushes(ctx, w.Id); err != nil {
		return nil, err
	}
	s, err := w.C.inOwnBottle(ctx, o, w.label()+PushLabel, w.Task.Dir)
	var ended *bottles.AgentError
	switch {
	case err != nil && !errors.As(err, &ended):
		return nil, err
	case s == nil || s.Receipt == nil:
		return nil, fmt.Errorf("work %s: the push left no receipt", w.Id)
	}
	out.Run = s.Receipt.ID
	out.Commit, out.Files = pushedFiles(said.Output())
	if s.Receipt.Exit.Code == 0 {
		out.Verdict = receipt.Pushed
		return out, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // the next try makes the same commit
	}
	if g := s.Receipt.Git; g != nil && len(g.Pushes) > 0 {
		p := g.Pushes[0]
		out.Verdict = p.Verdict
		if p.Verdict == receipt.Pushed {
			out.Verdict = receipt.PushFailed // git reported a failure
		}
		return failed("%s", cmp.Or(p.Reason, "upstream did not say why")+refusedFor(p))
	}
	if strings.Contains(string(complaint.Output().Bytes), "(stale info)") {
		if w.Task.Last != "" {
			return failed("somebody else pushed to the branch since this work began: begin again from what is there")
		}
		return failed("upstream has a branch of this name already; begin again with another --branch, or land it and push by hand")
	}
	return failed("git push ended with %d: %s", s.Receipt.Exit.Code, strings.TrimSpace(string(complaint.Output().Bytes)))
}

// layOut lays the judged tree out in a directory, and lists the paths that differ from the
// base in a file.
func layOut(ctx context.Context, judged *judge.GateWork, diff []gate.Difference) (dir string, list *os.File, err error) {
	if err := judged.NewScratch(); err != nil {
		return "", nil, err
	}
	dir = filepath.Join(judged.G.Scratch, "push")
	if err := judged.G.Change.LayOut(ctx, dir, nil); err != nil {
		return "", nil, err
	}
	var paths bytes.Buffer
	for _, d := range diff {
		paths.WriteString(d.Path + "\x00")
	}
	name := filepath.Join(judged.G.Scratch, "paths")
	if err := os.WriteFile(name, paths.Bytes(), 0o600); err != nil {
		return "", nil, err
	}
	list, err = os.Open(name)
	return dir, list, err
}

// branchHas reports whether the branch has the judged tree already, so that there is
// nothing to add to it.
func (w *Work) branchHas(ctx context.Context, judged *judge.GateWork, parent string) (bool, error) {
	if parent != w.Task.Last {
		return false, nil
	}
	last, err := judged.Repo.Tree(ctx, parent)
	if err != nil {
		return false, err
	}
	more, err := judged.G.Change.Differences(ctx, last)
	return err == nil && len(more) == 0, err
}

// pushedFiles reads what the script printed: the commit's name, and git's --numstat -z.
func pushedFiles(said gate.Output) (commit string, files []File) {
	name, rest, _ := strings.Cut(string(said.Bytes), "\n")
	commit = safetext.String(name, 64)
	rest = rest[:strings.LastIndexByte(rest, 0)+1] // the last name may be cut
	for line := range strings.SplitSeq(rest, "\x00") {
		w := strings.SplitN(line, "\t", 3)
		if len(w) != 3 || len(files) == MaxFiles {
			break
		}
		f := File{w[2], -1, -1}
		if w[0] != "-" {
			f.Added, _ = strconv.Atoi(w[0])
			f.Removed, _ = strconv.Atoi(w[1])
		}
		files = append(files, f)
	}
	return commit, files
}

// rebasedOn returns the task's tip if the change of an attempt has all that came between
// base and tip, and otherwise "". Of each file that came it must have what tip has, or
// something that neither base has nor the branch had: there somebody put two changes
// together. Only the trees count. What the agent's git says of its commits does not.
func (w *Work) rebasedOn(ctx context.Context, a Attempt) (string, error) {
	if w.Task.Tip == "" || w.Task.Tip == w.Task.Base {
		return "", nil
	}
	g := judge.GateOptions{Dir: w.Task.Dir, Base: w.Task.Base, Change: string(a.Run), Catalog: w.Task.Catalog, Waits: w.waits}
	judged, err := w.C.judge.GateWork(ctx, &g)
	if err != nil {
		return "", err
	}
	defer judged.Close()
	tip, err := judged.Repo.Tree(ctx, w.Task.Tip)
	if err != nil {
		return "", err
	}
	came, err := tip.Differences(ctx, judged.G.Base)
	if err != nil {
		return "", err
	}
	others := []*gate.Tree{judged.G.Base}
	if w.Task.Last != "" {
		last, err := judged.Repo.Tree(ctx, w.Task.Last)
		if err != nil {
			return "", err
		}
		others = append(others, last)
	}
	differs := func(from *gate.Tree) (map[string]bool, error) {
		list, err := judged.G.Change.Differences(ctx, from)
		paths := map[string]bool{}
		for _, d := range list {
			paths[d.Path] = true
		}
		return paths, err
	}
	lacks, err := differs(tip)
	if err != nil {
		return "", err
	}
	for _, from := range others {
		new, err := differs(from)
		if err != nil {
			return "", err
		}
		for _, d := range came {
			if lacks[d.Path] && !new[d.Path] {
				return "", nil
			}
		}
	}
	return w.Task.Tip, nil
}

// refusedFor lists the reasons for which a push was refused.
func refusedFor(p receipt.Push) string {
	var out []string
	for i, f := range p.Found {
		if i == 5 {
			out = append(out, fmt.Sprintf("%d more", p.FoundTotal-5))
			break
		}
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s in %s %s:%d", f.Rule, f.Secret, f.Where, safetext.String(string(f.File), 100), f.Line)))
	}
	for _, r := range p.Refs {
		if r.Result != "" && r.Result != "ok" && len(p.Found) == 0 {
			out = append(out, safetext.String(r.Result, 200))
		}
	}
	if len(out) == 0 {
		return ""
	}
	return " (" + strings.Join(out, "; ") + ")"
}

// pushRun returns the run of a push: it starts the host's git, which can reach one
// repository and nothing else. The commit has the time at which its tree was judged, so
// that every push makes the same one.
func (w *Work) pushRun(a Attempt, dir string, judged time.Time, base, parent string) (*bottles.Preflight, error) {
	p, err := w.C.bottles.Preflight(w.pushing())
	if err != nil {
		return nil, err
	}
	grant := &repos.Repos{}
	if p.Grant.Git != nil {
		for _, r := range p.Grant.Git.Repos {
			if r.Name == w.Task.Push.Repo && r.URL == string(w.Task.Push.URL) {
				grant.Repos = append(grant.Repos, r)
			}
		}
	}
	if len(grant.Repos) == 0 {
		return nil, &fault.OptionError{Option: "git-gate.repos." + w.Task.Push.Repo, Reason: "is not declared any more as it was when the work began", Advice: "put it back, then carboy work --continue " + w.Id}
	}
	repo, err := hostexec.FindRepository(w.Task.Dir)
	if err != nil {
		return nil, err
	}
	objects := fault.RealPath(repo.Objects)
	if strings.Contains(objects, ":") {
		return nil, &fault.OptionError{Option: "--dir", Value: objects, Reason: "has a colon in its name, and can't be shown to a bottle", Advice: "push by hand, or work in a directory of another name"}
	}
	format := "sha1"
	if len(w.Task.Base) == 64 {
		format = "sha256"
	}
	subject, _, _ := strings.Cut(w.Task.Prompt, "\n")
	message := safetext.String(subject, 72) + "\n\nCarboy-Work: " + w.Id + "\nCarboy-Run: " + string(a.Run) + "\nCarboy-Verdict: " + a.Verdict + "\n"
	p.Workspace, p.Mode, p.Image, p.ImageDigest = dir, store.Overlay, "", ""
	p.Grant = &plan.Grant{Agent: p.Grant.Agent, Log: p.Grant.Log, Sum: p.Grant.Sum, Git: grant, GitFile: p.Grant.GitFile, Floor: p.Grant.Floor}
	p.Run = plan.Options{
		Command: []string{
			"sh", "-c", pushScript, "carboy-push", pushObjects, base, format, strconv.FormatInt(judged.Unix(), 10) + " +0000", w.Task.Agent, message,
			"http://" + gitgate.Host + "/" + w.Task.Push.Repo + ".git", w.Task.Push.Branch, parent, w.Task.Last,
		},
		Workspace: dir, At: gate.Workspace, Mode: store.Overlay, Throwaway: true, Mounts: []string{objects + ":" + pushObjects + ":ro"},
		Limits: bottle.Limits{Timeout: p.Run.Limits.Timeout}, OnEvent: w.O.OnEvent, Grant: p.Grant,
		Supervise: p.Run.Supervise, Backend: p.Backend,
	}
	return p, nil
}

// PushLabel is the suffix of the label of a bottle that pushes.
const PushLabel = "-push"

// SweepPushes removes the bottles of the works' pushes whose process died, and returns
// their names. Their runs stay: the receipts say what left. A bottle that may have keys
// at a forge stays, too, until Open has revoked them.
func (c *Worker) SweepPushes(ctx context.Context, works ...string) (removed []string, err error) {
	list, _, err := c.Store.Bottles(ctx)
	if err != nil {
		return nil, err
	}
	for _, b := range list {
		of := func(id string) bool { return len(id) > 8 && strings.HasSuffix(b.Label, "-"+id[len(id)-8:]+PushLabel) }
		if b.Mode != store.None || !slices.ContainsFunc(works, of) || repos.HasKeys(c.Host, b.Slug) {
			continue
		}
		if busy, berr := c.Store.BottleBusy(b.Slug); busy || berr != nil {
			continue // it is pushing, or another process removed it
		}
		if _, rerr := c.Store.RemoveBottle(ctx, b.Slug); rerr != nil {
			err = errors.Join(err, rerr)
			continue
		}
		removed = append(removed, b.Slug)
	}
	return removed, err
}

// inOwnBottle runs p in a new bottle and removes the bottle afterwards.
func (c *Worker) inOwnBottle(ctx context.Context, p *bottles.Preflight, label, workspace string) (*bottles.Started, error) {
	ws, err := store.ResolveWorkspace(workspace)
	if err != nil {
		return nil, err
	}
	b, err := c.Store.CreateBottle(ctx, store.Bottle{Label: label, Agent: p.Agent, Bottles: p.Bottles, Mode: store.None, Workspace: ws, Build: c.Build, Backend: p.Backend})
	if err != nil {
		return nil, err
	}
	lock, err := c.Store.LockBottle(b.Slug)
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	p.Grant.Lock = lock
	s, err := c.bottles.RunBottle(ctx, b, p)
	if !repos.HasKeys(c.Host, b.Slug) { // else revoking them needs its record
		_, rerr := c.Store.RemoveBottle(context.WithoutCancel(ctx), b.Slug)
		if rerr != nil {
			err = errors.Join(err, rerr)
		}
	}
	return s, err
}
