// Package bottlework works on issues in real bottles: it makes the workspace through the git
// gate, has an agent work on it until the gate passes, pushes the branch, and removes what
// is left. It implements what package orchestrate calls Bottles.
//
// Each issue has a directory of its own. It holds the workspace and a record of each turn,
// which names the turn's work: a turn that is asked for again goes on with that work, and
// one that is over returns what it returned. The branch upstream is the record of what was
// done. A bottle that is gone, or a branch to which somebody else pushed, makes the next
// turn begin anew from the branch.
//
// Start reading at [Bottles.Turn], then upstream.go and workspace.go.
package bottlework

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/ask"
	"github.com/carboy/carboy/internal/bottles"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gate/judge"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/issues"
	"github.com/carboy/carboy/internal/orchestrate"
	"github.com/carboy/carboy/internal/run"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/work"
)

// Options configure Bottles. Only the first four fields are required.
type Options struct {
	Host   *host.Host
	Keeper *bottles.Keeper
	Judge  *judge.Judge
	Worker *work.Worker
	// Catalog, Attempts, MaxAttempts, People, Policy and AskFor are as in work.WorkOptions.
	Catalog     string
	Attempts    int
	MaxAttempts int
	People      ask.Options
	Policy      string
	AskFor      time.Duration
	// BundleKey has the meaning that it has in provenance.SealOptions.
	BundleKey string
	// Output gets what agents print, and OnEvent what happens in their bottles. Both are
	// called from many goroutines at once.
	Output  io.Writer
	OnEvent func(issues.Key, plan.Event)

	// Dies ends a turn's work, as work.WorkOptions has it. Tests use it.
	Dies func(work.Attempt) bool
}

var _ orchestrate.Bottles = (*Bottles)(nil)

// Bottles works on issues. Its methods may be called concurrently, for one issue one at a
// time, but for Freeze and Destroy.
type Bottles struct {
	o   Options
	top string // holds the issues' directories
}

// New returns Bottles, which keep the issues' directories in the user's state. It starts
// nothing.
func New(o Options) (*Bottles, error) {
	if o.Host == nil || o.Keeper == nil || o.Judge == nil || o.Worker == nil {
		return nil, errors.New("bottlework: Host, Keeper, Judge and Worker are needed")
	}
	if o.Output == nil {
		o.Output = io.Discard
	}
	top := filepath.Join(o.Host.StateDir(), plan.IssuesDir)
	if err := os.MkdirAll(top, 0o700); err != nil {
		return nil, err
	}
	return &Bottles{o, top}, nil
}

// Names in an issue's directory. What is new or tried is removed if carboy dies.
const (
	repoDir   = plan.IssueRepo // the workspace
	newDir    = "new"
	triedDir  = "tried"
	turnsDir  = "turns"
	stateFile = "issue.json"
)

var noName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[^A-Za-z0-9._-]+`) })

// dir returns the directory of an issue. Its name says which one it is, and is another for
// each issue.
func (b *Bottles) dir(k issues.Key) (string, error) {
	if k.Owner == "" || k.Repo == "" || k.Number < 1 {
		return "", errors.New("an issue has an owner, a repository and a number from 1")
	}
	name := strings.TrimLeft(noName().ReplaceAllString(k.Repo, "-"), ".-")
	return filepath.Join(b.top, fmt.Sprintf("%.60s-%d-%s", name, k.Number, judge.ShortSum(k.String()))), nil
}

// issueState describes an issue's workspace.
type issueState struct {
	Schema string `json:"schema"`
	Issue  string `json:"issue"`
	// Head is the commit that the workspace was made from, and Have are commits that it has
	// with all that leads to them.
	Head string   `json:"head"`
	Have []string `json:"have"`
	// Pushed is the commit that carboy pushed last, or the branch's when the workspace was
	// made from it; empty: the branch was not there.
	Pushed string `json:"pushed,omitempty"`
}

const (
	issueKind = "issue-workspace"
	turnKind  = "issue-turn"
)

// Freeze stops a running bottle and keeps it. It does nothing if it does not run.
func (b *Bottles) Freeze(ctx context.Context, slug string) error {
	_, err := b.o.Keeper.Freeze(ctx, slug)
	if errors.Is(err, run.ErrNotLive) || errors.Is(err, store.ErrNoBottle) {
		return nil
	}
	return err
}

// Destroy ends all bottles of an issue, revokes their deploy keys, and removes the
// workspace and the turns' records. Work that nobody pushed is given up, and logged. It does
// nothing if there is nothing.
func (b *Bottles) Destroy(ctx context.Context, k issues.Key, slug string) error {
	dir, err := b.dir(k)
	if err != nil {
		return err
	}
	if err := b.destroyBottles(ctx, dir, func(store.Bottle) bool { return true }); err != nil {
		return err
	}
	if slug != "" {
		switch left, err := b.o.Host.Store.Bottle(slug); {
		case errors.Is(err, store.ErrNoBottle):
		case err != nil:
			return err
		default:
			return fmt.Errorf("bottle %s works on %s, not on %s: it stays", slug, left.Workspace.Path, k)
		}
	}
	return fault.RemoveTree(dir)
}

// destroyBottles destroys those bottles of an issue's directory that are wanted destroyed.
func (b *Bottles) destroyBottles(ctx context.Context, dir string, wanted func(store.Bottle) bool) error {
	list, _, err := b.o.Host.Store.Bottles(ctx)
	if err != nil {
		return err
	}
	dir = fault.RealPath(dir)
	for _, x := range list {
		at := string(x.Workspace.Path)
		if !wanted(x) || at != dir && !strings.HasPrefix(at, dir+"/") {
			continue
		}
		was, err := b.o.Keeper.Destroy(ctx, x.Slug, bottles.DestroyOptions{Unlanded: true})
		if err != nil {
			return err
		}
		if was {
			b.o.Host.Log.Info("a bottle was destroyed; of what it did, only what was pushed is left", slog.String("bottle", x.Slug), slog.String("directory", dir))
		}
	}
	return nil
}
