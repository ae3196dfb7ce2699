package carboy

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/store"
)

// ResumeOptions say how a bottle that was frozen, or kept, goes on. Which agent it
// is, on which workspace, its record says; what it may do its manifests say as they
// are now.
type ResumeOptions struct {
	Slug string
	// Headless gives Prompt to the agent in its old conversation. Both or none.
	Headless bool
	Prompt   string
	// FilesOnly begins with the files also where the processes could go on.
	FilesOnly bool
	Keep      bool   // as in StartOptions
	Policy    string // as in StartOptions

	// As in StartOptions; Preflight.Resumption says what is not as it was.
	Env            []string
	Ask            func(name, words string) (string, error)
	Confirm        func(*Preflight) error
	Stdin          *os.File
	Stdout, Stderr io.Writer
	Terminal       bool
	Interrupt      <-chan os.Signal
	OnEvent        func(Event)
}

// Resumption is what a Preflight of Resume says beside.
type Resumption struct {
	// Live: its processes go on. Else Why says why not, and its agent begins anew
	// with its files and, where it can, its conversation.
	Live bool
	Why  string
	At   time.Time // when it was kept
	// Changed: its manifests are not those that it had.
	Changed bool
}

// ErrNotKept is of a bottle from which nothing can go on.
var ErrNotKept = errors.New("nothing of it is kept")

// Freeze stops a bottle that runs and keeps it: its processes where that can be done,
// and its files. Its Start or Resume returns. It waits for that.
func (c *Client) Freeze(ctx context.Context, slug string) (*store.Kept, error) {
	fail := func(err error) (*store.Kept, error) { return nil, fmt.Errorf("freeze bottle %s: %w", slug, err) }
	b, err := c.store.Bottle(slug)
	if err != nil {
		return nil, err
	}
	runs, err := c.store.RunsOf(ctx, b)
	if err != nil {
		return nil, err
	}
	for _, m := range runs {
		if m.State.Over() || m.Socket == "" {
			continue
		}
		if err := c.askFreeze(ctx, m); err != nil {
			return fail(err)
		}
		if err := c.store.Await(ctx, m.ID); err != nil {
			return fail(err)
		}
		lock, err := c.store.AwaitBottle(ctx, slug)
		if err != nil {
			return fail(err)
		}
		lock.Unlock()
		k, _, err := c.store.Kept(slug)
		if err != nil {
			return nil, err
		}
		if k == nil || k.Run != m.ID || !k.Frozen {
			return fail(errors.New("it ended before it could be frozen"))
		}
		return k, nil
	}
	return fail(ErrNotLive)
}

// Kept says what a bottle can be resumed from; nil: nothing.
func (c *Client) Kept(slug string) (*store.Kept, error) {
	k, _, err := c.store.Kept(slug)
	return k, err
}

// Resume goes on with a bottle that was frozen or kept, and waits for its end, as
// Start does. An error without a Started means that nothing was started, and that
// what was kept is still there.
func (c *Client) Resume(ctx context.Context, o ResumeOptions) (*Started, error) {
	lock, err := c.store.LockBottle(o.Slug)
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()
	b, err := c.store.Bottle(o.Slug)
	if err != nil {
		return nil, err
	}
	k, dir, err := c.store.Kept(o.Slug)
	if err != nil {
		return nil, err
	}
	if k == nil {
		return nil, fmt.Errorf("resume bottle %s: %w", o.Slug, ErrNotKept)
	}
	p, err := c.Preflight(StartOptions{
		Agent: b.Agent, Bottles: b.Bottles, Cwd: b.Mode != store.None, Dir: string(b.Workspace.Path),
		Headless: o.Headless, Prompt: o.Prompt, Keep: o.Keep, Policy: o.Policy, Env: o.Env, Ask: o.Ask, resume: true,
		Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Terminal: o.Terminal, Interrupt: o.Interrupt, OnEvent: o.OnEvent,
	})
	if err != nil {
		return nil, err
	}
	r := &resumption{kept: k, dir: dir}
	p.Resumption = &Resumption{At: k.At, Changed: k.Manifests != hex.EncodeToString(p.granted.sum[:])}
	if p.Resumption.Why, err = c.whyNotLive(&o, k, p); err != nil {
		return nil, err
	}
	r.live = p.Resumption.Why == ""
	p.Resumption.Live = r.live
	if o.Confirm != nil {
		if err := o.Confirm(p); err != nil {
			return nil, err
		}
	}
	p.granted.lock, p.granted.keep, p.granted.resume, p.run.ImageDigest = lock, o.Keep, r, p.ImageDigest
	return c.runBottle(ctx, b, p)
}

// whyNotLive says why the processes can't go on; empty: they can.
func (c *Client) whyNotLive(o *ResumeOptions, k *store.Kept, p *Preflight) (string, error) {
	switch {
	case len(k.Live) == 0 && k.WhyNot != "":
		return k.WhyNot, nil
	case len(k.Live) == 0:
		return "its agent had ended", nil
	case o.Headless:
		return "a prompt is for an agent that begins", nil
	case o.FilesOnly:
		return "only its files were asked for", nil
	case k.Build != c.build:
		return fmt.Sprintf("it was frozen by carboy %s, and this is %s", k.Build, c.build), nil
	case k.Arch != runtime.GOARCH:
		return fmt.Sprintf("it was frozen on %s, and this is %s", k.Arch, runtime.GOARCH), nil
	}
	var f bottle.Frozen
	if err := json.Unmarshal(k.Thaw, &f); err != nil {
		return "", &TamperedError{File: "kept.json", Err: err}
	}
	if f.Terminal && !p.run.Terminal {
		return "", &OptionError{Option: o.Slug, Reason: "has an agent on a terminal", Advice: "resume it in a terminal, or give it its next task: --headless --prompt 'go on'"}
	}
	p.run.Terminal = f.Terminal
	return "", nil
}

// supersede gives up the changes of the run from which another one went on: that
// one's hold them all. Where they could not be taken, both stay.
func (c *Client) supersede(ctx context.Context, old store.ID, by *receipt.Receipt) error {
	if by.Changes == nil || len(by.Changes.Incomplete) > 0 || by.Exit.Reason == receipt.Failed {
		return nil
	}
	m, err := c.store.Get(old)
	if errors.Is(err, store.ErrNotFound) || err == nil && m.Changes != store.Pending {
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.noteReview(ctx, audit.Discard, audit.Allowed, m, "run "+string(by.ID)+", which went on from it, has its changes"); err != nil {
		return err
	}
	return c.setChanges(ctx, old, store.Discarded)
}

// BottleState says how a bottle stands.
type BottleState string

// The states.
const (
	BottleRunning BottleState = "running" // a carboy starts, runs or destroys it
	BottleFrozen  BottleState = "frozen"  // Resume goes on with it
	BottleKept    BottleState = "kept"    // its agent ended; Resume begins with its files
	BottleOver    BottleState = "over"    // nothing but its records is there
)

// NamedBottle is a bottle's record, and how it stands at this moment.
type NamedBottle struct {
	store.Bottle
	State BottleState `json:"state"`
	// Live: its processes are kept too, of a frozen one.
	Live bool `json:"live,omitempty"`
	// Since is when it was frozen or kept.
	Since *time.Time `json:"since,omitempty"`
}

// Bottles are all bottles with a name, by name. A record that can't be read is
// reported beside.
func (c *Client) Bottles(ctx context.Context) ([]NamedBottle, []*store.CorruptError, error) {
	list, corrupt, err := c.store.Bottles(ctx)
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

func (c *Client) stateOf(b store.Bottle) (NamedBottle, error) {
	n := NamedBottle{Bottle: b, State: BottleOver}
	k, _, err := c.store.Kept(b.Slug)
	if err != nil {
		return n, err
	}
	if k != nil {
		n.State, n.Since, n.Live = BottleKept, &k.At, len(k.Live) > 0
		if k.Frozen {
			n.State = BottleFrozen
		}
	}
	busy, err := c.store.BottleBusy(b.Slug)
	if busy {
		n.State, n.Since, n.Live = BottleRunning, nil, false
	}
	return n, err
}
