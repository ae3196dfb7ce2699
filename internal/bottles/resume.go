package bottles

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/backends"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise/tools"
)

// ResumeOptions say how to resume a frozen or kept bottle. The agent and the workspace
// come from the bottle's record, its permissions from the manifests as they are now.
type ResumeOptions struct {
	Slug string
	// Headless gives Prompt to the agent in its old conversation. Set both or none.
	Headless bool
	Prompt   string
	// FilesOnly restores the files, even if the processes could be restored too.
	FilesOnly bool
	Keep      bool   // as in StartOptions
	KeepWork  bool   // as in StartOptions
	Repeats   bool   // as in StartOptions
	Policy    string // as in StartOptions
	AskFor    time.Duration
	Forge     tools.Forge // as in StartOptions, and not kept with the bottle
	Alive     func()      // as in StartOptions

	// As in StartOptions. Preflight.Resumption says what has changed.
	Env            []string
	Ask            func(name, words string) (string, error)
	Confirm        func(*Preflight) error
	Stdin          *os.File
	Stdout, Stderr io.Writer
	Terminal       bool
	Interrupt      <-chan os.Signal
	OnEvent        func(plan.Event)
}

// Resumption is the part of a Preflight that only Resume sets.
type Resumption struct {
	// Live means that its processes continue. Otherwise Why says why not, and the agent
	// starts again with its files and, if it can, its conversation.
	Live bool
	Why  string
	At   time.Time // when it was kept
	// Changed means that its manifests have changed since.
	Changed bool
}

// ErrNotKept means that nothing of a bottle is kept, so that it cannot be resumed.
var ErrNotKept = errors.New("nothing of it is kept")

// Freeze stops a running bottle and keeps its files and, if possible, its processes. It
// blocks until the Start or Resume of that bottle has returned.
func (c *Keeper) Freeze(ctx context.Context, slug string) (*store.Kept, error) {
	fail := func(err error) (*store.Kept, error) { return nil, fmt.Errorf("freeze bottle %s: %w", slug, err) }
	b, err := c.Store.Bottle(slug)
	if err != nil {
		return nil, err
	}
	runs, err := c.Store.RunsOf(ctx, b)
	if err != nil {
		return nil, err
	}
	for _, m := range runs {
		if m.State.Over() || m.Socket == "" {
			continue
		}
		if err := c.runs.AskFreeze(ctx, m); err != nil {
			return fail(err)
		}
		if err := c.Store.Await(ctx, m.ID); err != nil {
			return fail(err)
		}
		lock, err := c.Store.AwaitBottle(ctx, slug)
		if err != nil {
			return fail(err)
		}
		lock.Unlock()
		k, _, err := c.Store.Kept(slug)
		if err != nil {
			return nil, err
		}
		if k == nil || k.Run != m.ID || !k.Frozen {
			return fail(errors.New("it ended before it could be frozen"))
		}
		return k, nil
	}
	return fail(run.ErrNotLive)
}

// FreezeLoses says what Freeze would not keep of a bottle, in sentences. There are none if
// nothing is known of it.
func (c *Keeper) FreezeLoses(slug string) (out []string) {
	b, err := c.Store.Bottle(slug)
	if err != nil {
		return nil
	}
	if b.Services > 0 {
		out = append(out, "its services end, and what they hold is lost: resume starts them anew")
	}
	held, err := backends.ByName(b.Backend)
	if err != nil {
		return out
	}
	if why, missing := held.Capabilities().Lacks(bottle.CapLiveFreeze); missing {
		out = append(out, "only its files will be kept, and its processes end: "+cmp.Or(why, "the backend "+held.Name()+" can't keep them"))
	}
	return out
}

// Kept returns what a bottle can be resumed from, or nil.
func (c *Keeper) Kept(slug string) (*store.Kept, error) {
	k, _, err := c.Store.Kept(slug)
	return k, err
}

// Resume continues a frozen or kept bottle and blocks until it ends, as Start does. If
// it returns an error without a Started, nothing was started, and what was kept is still
// there.
func (c *Keeper) Resume(ctx context.Context, o ResumeOptions) (*Started, error) {
	lock, err := c.Store.LockBottle(o.Slug)
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	b, err := c.Store.Bottle(o.Slug)
	if err != nil {
		return nil, err
	}
	k, dir, err := c.Store.Kept(o.Slug)
	if err != nil {
		return nil, err
	}
	if k == nil {
		return nil, fmt.Errorf("resume bottle %s: %w", o.Slug, ErrNotKept)
	}
	var args []string
	for _, a := range b.Args {
		args = append(args, string(a))
	}
	p, err := c.Preflight(StartOptions{
		kept: func(path string) bool { return hasFile(filepath.Join(dir, k.Files.Name), path) },
		Args: args, Agent: b.Agent, Bottles: b.Bottles, Cwd: b.Mode != store.None, Dir: string(b.Workspace.Path),
		Manifests: string(b.Manifests), Backend: k.Backend, Headless: o.Headless, Prompt: o.Prompt, Keep: o.Keep, Repeats: o.Repeats, Policy: o.Policy, AskFor: o.AskFor, Forge: o.Forge, Alive: o.Alive, Env: o.Env, Ask: o.Ask, Resume: true,
		Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Terminal: o.Terminal, Interrupt: o.Interrupt, OnEvent: o.OnEvent,
	})
	if err != nil {
		return nil, err
	}
	r := &plan.Resumption{Kept: k, Dir: dir}
	p.Resumption = &Resumption{At: k.At, Changed: k.Manifests != hex.EncodeToString(p.Grant.Sum[:])}
	if p.Resumption.Why, err = c.whyNotLive(&o, k, p); err != nil {
		return nil, err
	}
	r.Live = p.Resumption.Why == ""
	p.Resumption.Live = r.Live
	if o.Confirm != nil {
		if err := o.Confirm(p); err != nil {
			return nil, err
		}
	}
	p.Grant.Lock, p.Grant.Keep, p.Grant.KeepWork, p.Grant.Resume, p.Run.ImageDigest = lock, o.Keep, o.KeepWork, r, p.ImageDigest
	return c.RunBottle(ctx, b, p)
}

// hasFile reports whether the kept files of a bottle have one below a path of its home. It
// reads names alone, which decide nothing but how the agent begins; what is restored from
// the files is checked first.
func hasFile(kept, path string) bool {
	f, err := os.OpenFile(kept, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return false
	}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err != nil {
			return false
		}
		if h.Typeflag == tar.TypeReg && strings.Contains(h.Name, "/"+path+"/") {
			return true
		}
	}
}

// whyNotLive says why the processes cannot continue. It returns "" if they can.
func (c *Keeper) whyNotLive(o *ResumeOptions, k *store.Kept, p *Preflight) (string, error) {
	switch {
	case len(k.Live) == 0 && k.WhyNot != "":
		return k.WhyNot, nil
	case len(k.Live) == 0:
		return "its agent had ended", nil
	case o.Headless:
		return "a prompt is for an agent that begins", nil
	case o.FilesOnly:
		return "only its files were asked for", nil
	case k.Backend != p.Backend:
		return fmt.Sprintf("it was frozen by the backend %s, and this is %s", k.Backend, p.Backend), nil
	case k.BackendBuild != "" && k.BackendBuild != p.holder.Build(): // older records have none
		return fmt.Sprintf("it was frozen by %s %s, and this is %s", k.Backend, k.BackendBuild, p.holder.Build()), nil
	case k.Build != c.Build:
		return fmt.Sprintf("it was frozen by carboy %s, and this is %s", k.Build, c.Build), nil
	case k.Arch != runtime.GOARCH:
		return fmt.Sprintf("it was frozen on %s, and this is %s", k.Arch, runtime.GOARCH), nil
	}
	var f bottle.Frozen
	if err := json.Unmarshal(k.Thaw, &f); err != nil {
		return "", &run.TamperedError{File: "kept.json", Err: err}
	}
	if f.Terminal && !p.Run.Terminal {
		return "", &fault.OptionError{Option: o.Slug, Reason: "has an agent on a terminal", Advice: "resume it in a terminal, or give it its next task: --headless --prompt 'go on'"}
	}
	p.Run.Terminal = f.Terminal
	return "", nil
}

// supersede discards the changes of the run that another run continued: the later
// changes contain them. If the later ones are incomplete, both stay.
func (c *Keeper) supersede(ctx context.Context, old store.ID, by *receipt.Receipt) error {
	if by.Changes == nil || len(by.Changes.Incomplete) > 0 || by.Exit.Reason == receipt.Failed {
		return nil
	}
	m, err := c.Store.Get(old)
	if errors.Is(err, store.ErrNotFound) || err == nil && m.Changes != store.Pending {
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.review.NoteReview(ctx, audit.Discard, audit.Allowed, m, "run "+string(by.ID)+", which went on from it, has its changes"); err != nil {
		return err
	}
	return c.review.SetChanges(ctx, old, store.Discarded)
}

// BottleState is the state of a bottle.
type BottleState string

// The states.
const (
	BottleRunning BottleState = "running" // a process starts, runs or destroys it
	BottleFrozen  BottleState = "frozen"  // Resume continues it
	BottleKept    BottleState = "kept"    // its agent ended; Resume starts it with its files
	BottleOver    BottleState = "over"    // only its records are left
)

// NamedBottle is a bottle's record and its present state.
type NamedBottle struct {
	store.Bottle
	State BottleState `json:"state"`
	// Live means that its processes are kept too.
	Live bool `json:"live,omitempty"`
	// Since is the time at which it was frozen or kept.
	Since *time.Time `json:"since,omitempty"`
}

// Bottles returns all named bottles, sorted by name, and an error for each record that
// cannot be read.
func (c *Keeper) Bottles(ctx context.Context) ([]NamedBottle, []*store.CorruptError, error) {
	list, corrupt, err := c.Store.Bottles(ctx)
	if err != nil {
		return nil, corrupt, err
	}
	out := make([]NamedBottle, 0, len(list))
	for _, b := range list {
		n, err := c.stateOf(b)
		var bad *store.CorruptError
		switch {
		case errors.As(err, &bad):
			corrupt = append(corrupt, bad)
		case errors.Is(err, store.ErrNoBottle): // meanwhile removed
		case err != nil:
			return nil, corrupt, err
		default:
			out = append(out, n)
		}
	}
	return out, corrupt, nil
}

func (c *Keeper) stateOf(b store.Bottle) (NamedBottle, error) {
	n := NamedBottle{Bottle: b, State: BottleOver}
	k, _, err := c.Store.Kept(b.Slug)
	if err != nil {
		return n, err
	}
	if k != nil {
		n.State, n.Since, n.Live = BottleKept, &k.At, len(k.Live) > 0
		if k.Frozen {
			n.State = BottleFrozen
		}
	}
	busy, err := c.Store.BottleBusy(b.Slug)
	if busy {
		n.State, n.Since, n.Live = BottleRunning, nil, false
	}
	return n, err
}
