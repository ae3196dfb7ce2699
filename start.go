package carboy

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/rootfs"
	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/visible"
)

// StartOptions say which agent to start in which bottle. What the bottle may do its
// manifests say, and nothing here adds to it.
type StartOptions struct {
	Agent string
	// Bottles take the place of the agent's own; later ones win.
	Bottles []string
	// Cwd gives the agent Dir to work on, in the way that the bottle says; without
	// it the agent begins with nothing, and what it writes is gone at the end. The
	// agents of Dir count in any case.
	Cwd bool
	Dir string // empty: the current directory
	// Headless has the agent carry out Prompt and end. Both or none are given.
	Headless bool
	Prompt   string
	// Label is the bottle's name, made unique; empty: the agent's.
	Label string
	Color string // one of [Colors], or empty
	// Backend is what holds the bottle: gvisor, or empty.
	Backend string
	// Env are NAME=VALUE: values of variables that the bottle asks for.
	Env []string
	// Ask asks a person for such a value. Nil: nobody can be asked.
	Ask func(name, words string) (string, error)
	// Confirm is shown what would be started; an error is the end of it. Nil: go
	// ahead.
	Confirm func(*Preflight) error
	// Policy is a file of the user's own that answers some of what people are asked by
	// rule; empty: none.
	Policy string
	// Keep keeps the bottle also when its agent ends well, so that it can be resumed.
	Keep bool

	// As in RunOptions. Terminal is the way to work with an agent that is not
	// headless.
	Stdin          *os.File
	Stdout, Stderr io.Writer
	Terminal       bool
	Interrupt      <-chan os.Signal
	OnEvent        func(Event)

	resume bool        // continue the conversation that the bottle's home has
	mcp    []mcpServer // that the agent is told of
}

// Colors are the sixteen of terminals, by name.
var Colors = []string{
	"black", "red", "green", "yellow", "blue", "magenta", "cyan", "white",
	"bright-black", "bright-red", "bright-green", "bright-yellow", "bright-blue", "bright-magenta", "bright-cyan", "bright-white",
}

// Preflight is what a start would do.
type Preflight struct {
	Agent, AgentFile string
	InRepo           bool // the agent is the repository's
	Bottles          []string
	Label, Color     string // empty: none was given
	Template         string
	Command          []string // with what stands for the prompt
	Workspace        string   // empty: none
	Mode             store.Mode
	Routes           []routes.Description
	Env              []string // names
	Mounts           []string
	Files            []string      // of the agent's home, made for it
	Limits           bottle.Limits // zero fields: the machine's default
	Image            string        // empty: this machine's tools
	// ImageDigest is the digest that Image must have; Confirm may set it.
	ImageDigest string
	// Repositories are served by the git gate, by name.
	Repositories []Repository
	// Resumption is of Resume alone.
	Resumption *Resumption
	// Warnings are about the manifests, Notes about what is not as they say.
	Warnings, Notes []string

	run     RunOptions
	granted *granted
}

// granted is what manifests grant to one run.
type granted struct {
	slug, agent string
	routes      []policy.Route
	files       []rootfs.File // of the home inside
	log         int
	sum         [sha256.Size]byte // of the manifests
	git         *gitGrant         // nil: no repositories
	gitFile     string            // the system's git configuration inside; empty: none
	mount       *gitMount         // of git, while it runs

	lock     *store.BottleLock
	identity *identityKept
	keep     bool // also when the agent ends well
	kept     bool // it was
	resume   *resumption
}

func (g *granted) record() (store.Kind, string) {
	if g == nil {
		return store.KindRun, ""
	}
	return store.KindBottle, g.slug
}

// Started is a bottle whose agent has ended.
type Started struct {
	Slug    string
	Receipt *receipt.Receipt
	// Kept says that the bottle stays: its agent ended badly, it was frozen, or its
	// user wanted that.
	Kept, Frozen bool
}

// AgentError is of an agent that ended badly.
type AgentError struct {
	Agent, Slug string
	Exit        receipt.Exit
}

func (e *AgentError) Error() string {
	return fmt.Sprintf("agent %s in bottle %s ended with exit %d", e.Agent, e.Slug, e.Exit.Code)
}

// Code is the agent's exit code, or carboy's where it ended the agent.
func (e *AgentError) Code() int { return e.Exit.Code }

// manifests looks where the user, and dir, have bottles and agents.
func (c *Client) manifests(dir string) (*manifest.Set, error) {
	where, err := c.where(dir)
	if err != nil {
		return nil, err
	}
	return manifest.Open(where)
}

func (c *Client) where(dir string) (manifest.Where, error) {
	conf, err := store.ConfigDir(c.opened.Config, c.env)
	return manifest.Where{Config: conf, Home: c.env("HOME"), Repo: dir}, err
}

// Agents are those that can be started in dir, by name.
func (c *Client) Agents(dir string) ([]string, error) {
	s, err := c.manifests(dir)
	if err != nil {
		return nil, err
	}
	return s.Names("agents"), nil
}

// Preflight works out what Start would do, and asks for what is missing.
func (c *Client) Preflight(o StartOptions) (*Preflight, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.Dir == "" {
		var err error
		if o.Dir, err = os.Getwd(); err != nil {
			return nil, fmt.Errorf("find the current directory: %w", err)
		}
	}
	dir := o.Dir
	set, err := c.manifests(dir)
	if err != nil {
		return nil, err
	}
	e, err := set.Resolve(o.Agent, o.Bottles)
	if err != nil {
		return nil, err
	}
	repos, err := c.gitOf(e)
	if err != nil {
		return nil, err
	}
	p := &Preflight{
		Agent: o.Agent, Label: o.Label, Color: o.Color, AgentFile: e.Agent.File, InRepo: e.Agent.InRepo, Template: e.Provider.Template.V, Mode: store.None,
		Limits: bottle.Limits{
			Timeout: e.Limits.Timeout.V, Memory: e.Limits.Memory.V, Pids: e.Limits.Pids.V, Disk: e.Limits.Disk.V, CPUs: int(e.Limits.CPUs.V), Output: e.Limits.Output.V, Egress: e.Limits.EgressBytes.V,
		},
		granted:      &granted{agent: o.Agent, log: e.Egress.Log.V, git: repos, gitFile: gitConfig(e.User, repos)},
		Repositories: repos.described(),
	}
	if p.Image, err = c.imageOf(e, dir); err != nil {
		return nil, err
	}
	for _, w := range e.Warnings {
		p.Warnings = append(p.Warnings, w.Error())
	}
	for _, b := range e.Bottles {
		p.Bottles = append(p.Bottles, b.V)
	}
	if o.Cwd {
		p.Mode = store.Mode(e.Workspace.V)
	}
	if p.Mode != store.None {
		p.Workspace = dir
	} else if !o.Cwd {
		p.Notes = append(p.Notes, "there is no workspace: what the agent writes is gone at the end (--cwd gives it this directory)")
	}
	l, err := c.launch(e, &o)
	if err != nil {
		return nil, err
	}
	env, err := o.variables(e)
	if err != nil {
		return nil, err
	}
	p.granted.sum = sumOf(append(slices.Clone(e.Files), l.read...))
	p.granted.routes, p.granted.files, p.Mounts, p.Notes = l.routes, l.files, l.mounts, append(p.Notes, l.notes...)
	for _, f := range l.files {
		p.Files = append(p.Files, "~/"+f.Path)
	}
	for _, r := range l.routes {
		p.Routes = append(p.Routes, routes.Describe(r))
	}
	maps.Copy(l.env, env)
	var pairs []string
	for _, n := range slices.Sorted(maps.Keys(l.env)) {
		p.Env, pairs = append(p.Env, n), append(pairs, n+"="+l.env[n])
	}
	p.Command = shownCommand(l.command, o.Prompt, e.Agent.Prompt.V)
	p.run = RunOptions{
		Command: l.command, Workspace: dir, Mode: p.Mode, Env: pairs, Mounts: l.mounts, Limits: p.Limits, Image: p.Image,
		Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Terminal: o.Terminal, Interrupt: o.Interrupt, OnEvent: o.OnEvent, granted: p.granted,
		Supervise: e.Supervise.V, Policy: o.Policy,
	}
	return p, nil
}

// check refuses options that mean nothing together.
func (o *StartOptions) check() error {
	bad := func(option, value, why, advice string) error {
		return &OptionError{Option: option, Value: value, Reason: why, Advice: advice}
	}
	switch {
	case o.Headless && o.Prompt == "":
		return bad("--headless", "", "needs a prompt", "say what the agent shall do: --headless --prompt 'fix the tests'")
	case !o.Headless && o.Prompt != "":
		return bad("--prompt", visible.String(o.Prompt, 80), "is for an agent that nobody sits in front of", "add --headless, or leave the prompt out")
	case o.Backend != "" && o.Backend != "gvisor":
		return bad("--backend", o.Backend, "is not here yet", "gvisor is; leave it out (or unset BOT_BOTTLE_BACKEND)")
	case o.Color != "" && !slices.Contains(Colors, o.Color):
		return bad("--color", o.Color, "is none of the sixteen", "there are "+strings.Join(Colors, ", "))
	case strings.ContainsRune(o.Prompt, 0):
		return bad("--prompt", "", "holds a NUL byte", "")
	case !ValidLabel(o.Label):
		return bad("--label", visible.String(o.Label, 100), "is too long, or has characters that are not shown", "use a few words")
	}
	return nil
}

func sumOf(files []manifest.File) [sha256.Size]byte {
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%q %x\n", f.Path, f.Sum)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// variables are the bottle's, with the answers to what it asks for.
func (o *StartOptions) variables(e *manifest.Effective) (map[string]string, error) {
	given := map[string]string{}
	for _, pair := range o.Env {
		name, value, ok := strings.Cut(pair, "=")
		v, known := e.Env[name]
		_, asked := manifest.Asked(v.V)
		switch {
		case !ok:
			return nil, &OptionError{Option: "--env", Value: secret.NameOrHidden(name), Reason: "has no value", Advice: "write NAME=VALUE"}
		case !known || !asked:
			return nil, &OptionError{Option: "--env", Value: secret.NameOrHidden(name), Reason: "is not asked for by the bottle", Advice: "variables are the bottle's: env: {" + secret.NameOrHidden(name) + ": VALUE} in its file, or ?WORDS to be asked"}
		}
		given[name] = value
	}
	out := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(e.Env)) {
		v := e.Env[name]
		words, asked := manifest.Asked(v.V)
		answer, has := given[name]
		switch {
		case !asked:
			out[name] = v.V
		case has:
			out[name] = answer
		case o.Ask == nil || o.Headless:
			return nil, &OptionError{Option: v.From.String(), Value: name, Reason: "is asked for at the start, and nobody can be asked", Advice: "say --env " + name + "=VALUE"}
		default:
			answer, err := o.Ask(name, strings.TrimSpace(words))
			if err != nil {
				return nil, err
			}
			out[name] = answer
		}
	}
	return out, nil
}

// shownCommand is command with words for the texts, which may be long.
func shownCommand(command []string, prompt, body string) []string {
	out := make([]string, len(command))
	for i, a := range command {
		switch {
		case prompt != "" && a == prompt:
			a = "PROMPT"
		case body != "" && a == body:
			a = "TEXT-OF-THE-AGENT"
		case prompt != "" && body != "" && strings.Contains(a, prompt):
			a = "TEXT-AND-PROMPT"
		case prompt != "" && (a == "--prompt="+prompt || a == " "+prompt):
			a = "PROMPT"
		}
		out[i] = a
	}
	return out
}

// Start starts an agent in a bottle of its own and waits for its end. The bottle's
// record is there while it runs, and stays when the agent ends badly, which is an
// [AgentError], when the bottle was frozen, and with Keep. An error without a Started
// means that nothing was started.
func (c *Client) Start(ctx context.Context, o StartOptions) (*Started, error) {
	p, err := c.Preflight(o)
	if err != nil {
		return nil, err
	}
	if o.Confirm != nil {
		if err := o.Confirm(p); err != nil {
			return nil, err
		}
	}
	b := store.Bottle{Label: o.Label, Color: o.Color, Agent: o.Agent, Bottles: p.Bottles, Mode: p.Mode, Build: c.build}
	if b.Label == "" {
		b.Label = o.Agent
	}
	if p.Workspace != "" {
		if b.Workspace, err = store.ResolveWorkspace(p.Workspace); err != nil {
			return nil, err
		}
	}
	if b, err = c.store.CreateBottle(ctx, b); err != nil {
		return nil, err
	}
	lock, err := c.store.LockBottle(b.Slug)
	if err != nil {
		return nil, err // somebody destroys it already
	}
	defer lock.Unlock()
	p.granted.lock, p.granted.keep, p.run.ImageDigest = lock, o.Keep, p.ImageDigest
	s, err := c.runBottle(ctx, b, p)
	if s == nil {
		if c.hasKeys(b.Slug) {
			return nil, err // which says that its record stays, with what revokes them
		}
		_, rerr := c.store.RemoveBottle(context.WithoutCancel(ctx), b.Slug)
		return nil, errors.Join(err, rerr)
	}
	return s, err
}

// runBottle is one run of a bottle that the caller has locked. Without a Started
// nothing has run.
func (c *Client) runBottle(ctx context.Context, b store.Bottle, p *Preflight) (*Started, error) {
	g := p.granted
	g.slug = b.Slug
	var err error
	if g.identity, err = identityOf(g.lock, b.Slug); err != nil {
		return nil, err
	}
	if g.git != nil {
		if g.mount, err = c.mountGit(ctx, g.git, g.lock, b.Slug, p.Workspace, p.run.Supervise); err != nil {
			return nil, err
		}
	}
	rec, err := c.Run(ctx, p.run)
	if g.mount != nil {
		g.mount.end(context.WithoutCancel(ctx)) // also when nothing was recorded
		if len(g.mount.left) > 0 {
			err = errors.Join(err, &KeysLeftError{b.Slug, g.mount.left})
		}
	}
	if rec == nil {
		return nil, err
	}
	s := &Started{Slug: b.Slug, Receipt: rec, Frozen: rec.Exit.Reason == receipt.Frozen}
	if g.resume != nil {
		err = errors.Join(err, c.supersede(context.WithoutCancel(ctx), g.resume.kept.Run, rec))
	}
	if err == nil && rec.Exit.Code == 0 && !g.kept {
		_, err = c.store.RemoveBottle(context.WithoutCancel(ctx), b.Slug)
		return s, err
	}
	s.Kept = true
	if rec.Exit.Code != 0 && !s.Frozen && onlyKeysLeft(err) {
		err = errors.Join(&AgentError{Agent: b.Agent, Slug: b.Slug, Exit: rec.Exit}, err)
	}
	return s, err
}

// beginsWithin is how long after its record a bottle has its run.
const beginsWithin = time.Hour

// forgetBottles removes the records of bottles of which nothing is left.
func (c *Client) forgetBottles(ctx context.Context) error {
	list, _, err := c.store.Bottles(ctx)
	for _, b := range list {
		if err != nil {
			return err
		}
		k, _, kerr := c.store.Kept(b.Slug)
		if c.hasKeys(b.Slug) {
			continue
		}
		if kerr != nil || k != nil || time.Since(b.Created) < beginsWithin {
			continue
		}
		var runs []store.Meta
		if runs, err = c.store.RunsOf(ctx, b); err == nil && len(runs) == 0 {
			_, err = c.store.RemoveBottle(ctx, b.Slug)
		}
	}
	return err
}

// DestroyOptions say what Destroy may take with it.
type DestroyOptions struct {
	Unlanded bool // changes that nobody has landed
	// LeaveKeys gives up deploy keys that can't be revoked: somebody has removed them
	// at the forge.
	LeaveKeys bool
}

// Bounds of the wait for a bottle that was told to end.
const (
	destroyIn   = 2 * time.Minute
	destroyLook = 100 * time.Millisecond
)

// Destroy ends a bottle and removes its record with those of its runs, and what was
// kept of it. One that is not there, or that another call destroys meanwhile, is no
// error: was is false. Changes that were not landed are an error, and stay, unless o
// says otherwise.
func (c *Client) Destroy(ctx context.Context, slug string, o DestroyOptions) (was bool, err error) {
	fail := func(err error) (bool, error) { return false, fmt.Errorf("destroy bottle %s: %w", slug, err) }
	lock, err := c.seize(ctx, slug)
	if errors.Is(err, store.ErrNoBottle) {
		return false, nil
	}
	if err != nil {
		return fail(err)
	}
	defer lock.Unlock()
	b, err := c.store.Bottle(slug)
	if err != nil {
		return false, err
	}
	runs, err := c.store.RunsOf(ctx, b)
	if err != nil {
		return false, err
	}
	for i, m := range runs {
		if runs[i], err = c.ended(ctx, m); err != nil {
			return fail(err)
		}
		if !o.Unlanded && c.holdsChanges(runs[i]) {
			return fail(fmt.Errorf("run %s: %w", m.ID, store.ErrUnlanded))
		}
	}
	for _, m := range runs {
		err := c.store.Remove(ctx, m.ID, store.RemoveOptions{Unlanded: true}) // asked for, or there are none
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return fail(err)
		}
		if err := c.noteDestroyed(ctx, m, slug); err != nil {
			return false, err
		}
	}
	if err := c.revokeLeft(ctx, lock, slug, o.LeaveKeys); err != nil {
		return fail(err)
	}
	return c.store.RemoveBottle(ctx, slug)
}

// seize takes a bottle's lock from whoever has it: what runs is told to end, also
// what begins to run while this waits.
func (c *Client) seize(ctx context.Context, slug string) (*store.BottleLock, error) {
	ctx, cancel := context.WithTimeout(ctx, destroyIn)
	defer cancel()
	asked := map[store.ID]bool{}
	for {
		lock, err := c.store.LockBottle(slug)
		if !errors.Is(err, store.ErrBottleBusy) {
			return lock, err
		}
		if b, err := c.store.Bottle(slug); err == nil {
			runs, err := c.store.RunsOf(ctx, b)
			if err != nil {
				return nil, err
			}
			for _, m := range runs {
				if !asked[m.ID] && !m.State.Over() && m.Socket != "" {
					asked[m.ID] = c.Stop(ctx, m) == nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(destroyLook):
		}
	}
}

// holdsChanges reports whether somebody's work would go with m.
func (c *Client) holdsChanges(m store.Meta) bool {
	if m.Changes.Settled() {
		return false
	}
	if m.State != store.Lost && m.State != store.Failed {
		return true
	}
	_, err := c.Changes(m.ID) // of one that broke off, often none were taken
	return err == nil
}

// ended asks for a run's end, if it goes on, and waits for it.
func (c *Client) ended(ctx context.Context, m store.Meta) (store.Meta, error) {
	ctx, cancel := context.WithTimeout(ctx, destroyIn)
	defer cancel()
	for asked := false; ; {
		over, err := c.Over(ctx, m.ID)
		if errors.Is(err, store.ErrNotFound) {
			m.State, m.Changes = store.Finished, store.NoChanges
			return m, nil
		}
		if err != nil {
			return m, err
		}
		if over {
			m, err := c.store.Get(m.ID)
			if err != nil {
				return m, err
			}
			return c.settled(ctx, m)
		}
		if now, err := c.store.Get(m.ID); err == nil && !asked && now.Socket != "" {
			asked = c.Stop(ctx, now) == nil
		}
		select {
		case <-ctx.Done():
			return m, fmt.Errorf("run %s does not end: %w", m.ID, store.ErrLive)
		case <-time.After(destroyLook):
		}
	}
}

// programOf finds a program as a shell would, but not where the repository decides
// what stands there: in directories that are not absolute, and in those of the
// directory to work on, which tools put on PATH. What it finds is shown inside, and a
// link leads anywhere.
func (c *Client) programOf(name, work string) (string, error) {
	work = realPath(work)
	for _, dir := range filepath.SplitList(c.env("PATH")) {
		if !filepath.IsAbs(dir) || within(filepath.Clean(dir), work) || within(realPath(dir), work) {
			continue
		}
		path := filepath.Join(dir, name)
		if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not installed here: no directory of PATH has it", name)
}
