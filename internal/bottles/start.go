package bottles

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/agent"
	"github.com/carboy/carboy/internal/backends"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/run/repos"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise/tools"
)

// StartOptions say which agent to start in which bottle. The permissions come from the
// manifests; nothing here adds to them.
type StartOptions struct {
	Agent string
	// Bottles replace the agent's own; later ones win.
	Bottles []string
	// Cwd gives the agent Dir as its workspace, in the mode that the bottle says.
	// Without it the agent has no workspace, and what it writes is lost at the end.
	// The manifests of Dir are read in any case.
	Cwd bool
	Dir string // empty: the current directory
	// Headless makes the agent carry out Prompt and exit. Set both or none.
	Headless bool
	Prompt   string
	// Args are for the agent's program, after those that the bottle says.
	Args []string
	// Manifests is a directory of the user's whose bottles and agents are used, in place of
	// the configuration's and of Dir's; empty: none.
	Manifests string
	// Label is the bottle's name, made unique; empty: the agent's.
	Label string
	Color string // one of [Colors], or empty
	// Env answers the bottle's questions for variables: NAME=VALUE.
	Env []string
	// Ask asks a person for such a value. Nil means that nobody can be asked.
	Ask func(name, words string) (string, error)
	// Confirm is called with what would be started; an error prevents the start. It
	// may be nil.
	Confirm func(*Preflight) error
	// Policy is a file with the user's rules, which answer some proposals in place of a
	// person; empty: none.
	Policy string
	// AskFor bounds the wait for a person's answer; 0: as the bottle says.
	AskFor time.Duration
	// Backend names what holds the bottle, unless a flag or variable says it; empty: as the
	// bottle says.
	Backend string
	// Forge and Alive are as in plan.Options. They are given apart from Env.
	Forge tools.Forge
	Alive func()
	// OnBottle is told the new bottle's name before its agent starts. It may be nil.
	OnBottle func(slug string)
	// Keep keeps the bottle even if its agent succeeds, so that it can be resumed. KeepWork
	// does so if it has changes that nobody has landed, or a conversation.
	Keep, KeepWork bool
	// Repeats says that, if carboy dies, the caller has the agent do all of this again, from
	// what was before: the bottle's files are not copied while it runs.
	Repeats bool

	// As in plan.Options. An agent that is not headless needs Terminal.
	Stdin          *os.File
	Stdout, Stderr io.Writer
	Terminal       bool
	Interrupt      <-chan os.Signal
	OnEvent        func(plan.Event)

	Resume bool              // continue the conversation in the bottle's home
	kept   func(string) bool // as in agent.Options
	Mcp    []agent.MCPServer // to configure for the agent
}

// Colors lists the names of the sixteen terminal colours.
var Colors = []string{
	"black", "red", "green", "yellow", "blue", "magenta", "cyan", "white",
	"bright-black", "bright-red", "bright-green", "bright-yellow", "bright-blue", "bright-magenta", "bright-cyan", "bright-white",
}

// Preflight describes a start before it happens.
type Preflight struct {
	Agent, AgentFile string
	InRepo           bool // the agent is the repository's
	Bottles          []string
	Label, Color     string // empty: none was given
	Template         string
	Command          []string // with words in place of the long texts
	Workspace        string   // empty: none
	Mode             store.Mode
	Routes           []routes.Description
	Env              []string // names
	Mounts           []string
	Files            []string      // made for the agent's home
	Limits           bottle.Limits // zero fields: the machine's default
	Image            string        // empty: this machine's tools
	// ImageDigest is the digest that Image must have. Confirm may set it.
	ImageDigest string
	// Services describes the bottles beside it, in the order in which they start.
	Services []string
	// Repositories lists what the git gate serves, sorted by name.
	Repositories []repos.Repository
	// Backend names what holds the bottle. Lacks lists what it can't give.
	Backend string
	Lacks   []bottle.Lack
	// Resumption is set by Resume only.
	Resumption *Resumption
	// Warnings are about the manifests, Notes about what deviates from them.
	Warnings, Notes []string

	Run   plan.Options
	Grant *plan.Grant

	holder bottle.Backend // of the name Backend
}

// Started is the result of a bottle whose agent has ended.
type Started struct {
	Slug    string
	Receipt *receipt.Receipt
	// Kept means that the bottle stays: its agent failed, it was frozen, or its user
	// wanted that.
	Kept, Frozen bool
	// Resumable means that Resume can go on with it. Of one that was kept for its records
	// alone it can't.
	Resumable bool
	// Until is when a bottle that Resume can go on with is forgotten. Zero: never.
	Until time.Time
	// Forgotten lists older bottles that can't be resumed any more: see Keeper.Expire.
	Forgotten []string
}

// AgentError means that the agent exited with a code other than 0.
type AgentError struct {
	Agent, Slug string
	Exit        receipt.Exit
}

func (e *AgentError) Error() string {
	return fmt.Sprintf("agent %s in bottle %s ended with exit %d", e.Agent, e.Slug, e.Exit.Code)
}

// Code returns the agent's exit code, or carboy's if that ended the agent.
func (e *AgentError) Code() int { return e.Exit.Code }

// Agents returns the sorted names of the agents that can be started in dir.
func (c *Keeper) Agents(dir string) ([]string, error) {
	s, err := c.Manifests(dir)
	if err != nil {
		return nil, err
	}
	return s.Names("agents"), nil
}

// Preflight works out what Start would do. It asks for missing values.
func (c *Keeper) Preflight(o StartOptions) (*Preflight, error) {
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
	set, err := c.manifests(&o)
	if err != nil {
		return nil, err
	}
	e, err := set.Resolve(o.Agent, o.Bottles)
	if err != nil {
		return nil, err
	}
	declared, err := repos.Read(c.Host, e)
	if err != nil {
		return nil, err
	}
	p := &Preflight{
		Agent: o.Agent, Label: o.Label, Color: o.Color, AgentFile: e.Agent.File, InRepo: e.Agent.InRepo, Template: e.Provider.Template.V, Mode: store.None,
		Limits: bottle.Limits{
			Timeout: e.Limits.Timeout.V, Memory: e.Limits.Memory.V, Pids: e.Limits.Pids.V, Disk: e.Limits.Disk.V, CPUs: int(e.Limits.CPUs.V), Output: e.Limits.Output.V, Egress: e.Limits.EgressBytes.V,
		},
		Grant:        &plan.Grant{Agent: o.Agent, Log: e.Egress.Log.V, Git: declared, GitFile: repos.GitConfig(e.User, declared)},
		Repositories: declared.Described(),
	}
	if p.holder, err = c.backendOf(&o, e); err != nil {
		return nil, err
	}
	p.Backend, p.Lacks = p.holder.Name(), p.holder.Capabilities().Missing()
	if v := e.Isolation; v.IsSet() {
		p.Grant.Floor = bottle.Floor{Least: bottle.Isolation(v.V), From: v.From.String()}
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
	askFor := cmp.Or(o.AskFor, e.Limits.Approval.V)
	l, err := agent.New(c.Host, e, &agent.Options{AskFor: askFor, Dir: o.Dir, Cwd: o.Cwd, Headless: o.Headless, Prompt: o.Prompt, Resume: o.Resume, Kept: o.kept, MCP: o.Mcp, Args: o.Args, Proposed: o.Manifests != ""})
	if err != nil {
		return nil, err
	}
	env, services, err := o.variables(e)
	if err != nil {
		return nil, err
	}
	p.Grant.Services, p.Services = services, fault.Mapped(services, describe)
	p.Grant.Sum = sumOf(append(slices.Clone(e.Files), l.Read...))
	p.Grant.Routes, p.Grant.Files, p.Mounts, p.Notes = l.Routes, l.Files, l.Mounts, append(p.Notes, l.Notes...)
	p.Grant.Talks = len(l.Sessions) > 0
	for _, f := range l.Files {
		p.Files = append(p.Files, "~/"+f.Path)
	}
	for _, r := range l.Routes {
		p.Routes = append(p.Routes, routes.Describe(r))
	}
	maps.Copy(l.Env, env)
	var pairs []string
	for _, n := range slices.Sorted(maps.Keys(l.Env)) {
		p.Env, pairs = append(p.Env, n), append(pairs, n+"="+l.Env[n])
	}
	p.Command = shownCommand(l.Command, o.Prompt, e.Agent.Prompt.V)
	p.Run = plan.Options{
		Command: l.Command, Workspace: dir, Mode: p.Mode, Env: pairs, Mounts: l.Mounts, Limits: p.Limits, Image: p.Image,
		Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Terminal: o.Terminal, Interrupt: o.Interrupt, OnEvent: o.OnEvent, Grant: p.Grant, Repeats: o.Repeats,
		Supervise: e.Supervise.V, Policy: o.Policy, AskFor: askFor, Forge: o.Forge, Alive: o.Alive, Backend: p.Backend,
	}
	return p, nil
}

// manifests returns the manifests of which o's agent is one.
func (c *Keeper) manifests(o *StartOptions) (*manifest.Set, error) {
	if o.Manifests != "" {
		return manifest.Open(manifest.Where{Config: o.Manifests})
	}
	return c.Manifests(o.Dir)
}

// backendOf returns what holds a bottle: what the user named for this command, else what o
// says, else what the bottle's files say, else the default.
func (c *Keeper) backendOf(o *StartOptions, e *manifest.Effective) (bottle.Backend, error) {
	switch v := e.Backend; {
	case c.Opened.Backend != "":
		return c.Backend, nil
	case o.Backend != "":
		return backends.ByName(o.Backend)
	case v.IsSet():
		b, err := backends.ByName(v.V)
		if err != nil {
			err = fmt.Errorf("%s: backend: %w", v.From, err)
		}
		return b, err
	}
	return c.Backend, nil
}

// check refuses invalid options and combinations of options.
func (o *StartOptions) check() error {
	bad := func(option, value, why, advice string) error {
		return &fault.OptionError{Option: option, Value: value, Reason: why, Advice: advice}
	}
	switch {
	case o.Headless && o.Prompt == "":
		return bad("--headless", "", "needs a prompt", "name the agent's task: --headless --prompt 'fix the tests'")
	case !o.Headless && o.Prompt != "":
		return bad("--prompt", safetext.String(o.Prompt, 80), "needs --headless", "add --headless, or leave the prompt out")
	case o.Color != "" && !slices.Contains(Colors, o.Color):
		return bad("--color", o.Color, "is none of the sixteen", "there are "+strings.Join(Colors, ", "))
	case strings.ContainsRune(o.Prompt, 0):
		return bad("--prompt", "", "holds a NUL byte", "")
	case !ValidLabel(o.Label):
		return bad("--label", safetext.String(o.Label, 100), "is too long, or has characters that are not shown", "use a few words")
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

// variables returns the bottle's variables and its services with theirs, with an answer for
// each one that is asked for. What several ask for by one name is asked once.
func (o *StartOptions) variables(e *manifest.Effective) (map[string]string, []plan.Service, error) {
	given := map[string]string{}
	for _, pair := range o.Env {
		name, value, ok := strings.Cut(pair, "=")
		switch {
		case !ok:
			return nil, nil, &fault.OptionError{Option: "--env", Value: secret.NameOrHidden(name), Reason: "has no value", Advice: "write NAME=VALUE"}
		case !asksFor(e, name):
			return nil, nil, &fault.OptionError{Option: "--env", Value: secret.NameOrHidden(name), Reason: "is not asked for by the bottle", Advice: "variables are the bottle's: env: {" + secret.NameOrHidden(name) + ": VALUE} in its file, or ?WORDS to be asked"}
		}
		given[name] = value
	}
	value := func(v manifest.Value[string], name string) (string, error) {
		words, asked := manifest.Asked(v.V)
		answer, has := given[name]
		switch {
		case !asked:
			return v.V, nil
		case has:
			return answer, nil
		case o.Ask == nil || o.Headless:
			return "", &fault.OptionError{Option: v.From.String(), Value: name, Reason: "is asked for at the start, and nobody can be asked", Advice: "say --env " + name + "=VALUE"}
		}
		answer, err := o.Ask(name, strings.TrimSpace(words))
		given[name] = answer
		return answer, err
	}
	out := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(e.Env)) {
		var err error
		if out[name], err = value(e.Env[name], name); err != nil {
			return nil, nil, err
		}
	}
	services, err := servicesOf(e, value)
	return out, services, err
}

// asksFor reports whether the bottle or one of its services asks for a variable.
func asksFor(e *manifest.Effective, name string) bool {
	_, asked := manifest.Asked(e.Env[name].V)
	for _, s := range e.Services.By {
		_, its := manifest.Asked(s.Env[name].V)
		asked = asked || its
	}
	return asked
}

// shownCommand returns command with words in place of the prompt and the agent's text,
// which may be long.
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

// Start starts an agent in a new bottle and blocks until it ends. The bottle's record is
// removed at the end, unless the agent fails ([AgentError]), the bottle was frozen, or
// Keep is set. If Start returns an error without a Started, nothing was started.
func (c *Keeper) Start(ctx context.Context, o StartOptions) (*Started, error) {
	p, err := c.Preflight(o)
	if err != nil {
		return nil, err
	}
	if o.Confirm != nil {
		if err := o.Confirm(p); err != nil {
			return nil, err
		}
	}
	b := store.Bottle{Label: o.Label, Color: o.Color, Agent: o.Agent, Bottles: p.Bottles, Mode: p.Mode, Build: c.Build, Backend: p.Backend, Manifests: store.Raw(o.Manifests), Services: len(p.Services)}
	if b.Label == "" {
		b.Label = o.Agent
	}
	if p.Template == "command" {
		b.Args = store.Raws(o.Args)
	}
	if p.Workspace != "" {
		if b.Workspace, err = store.ResolveWorkspace(p.Workspace); err != nil {
			return nil, err
		}
	}
	if !o.Repeats {
		if err := c.bury(ctx, b.Label); err != nil {
			return nil, err
		}
	}
	if b, err = c.Store.CreateBottle(ctx, b); err != nil {
		return nil, err
	}
	lock, err := c.Store.LockBottle(b.Slug)
	if err != nil {
		return nil, err // another process already destroys it
	}
	defer lock.Unlock()
	if o.OnBottle != nil {
		o.OnBottle(b.Slug)
	}
	p.Grant.Lock, p.Grant.Keep, p.Grant.KeepWork, p.Run.ImageDigest = lock, o.Keep, o.KeepWork, p.ImageDigest
	s, err := c.RunBottle(ctx, b, p)
	if s == nil {
		if repos.HasKeys(c.Host, b.Slug) {
			return nil, err // its record stays, because revoking the keys needs it
		}
		_, rerr := c.Store.RemoveBottle(context.WithoutCancel(ctx), b.Slug)
		return nil, errors.Join(err, rerr)
	}
	return s, err
}

// RunBottle runs a bottle once. The caller holds its lock. If it returns no Started,
// nothing ran.
func (c *Keeper) RunBottle(ctx context.Context, b store.Bottle, p *Preflight) (*Started, error) {
	g := p.Grant
	g.Slug = b.Slug
	var err error
	if g.Identity, err = plan.ReadIdentity(g.Lock, b.Slug); err != nil {
		return nil, err
	}
	if g.Git != nil {
		if g.Mount, err = repos.Open(ctx, c.Host, g.Git, g.Lock, b.Slug, p.Workspace, p.Run.Supervise); err != nil {
			return nil, err
		}
	}
	rec, err := c.runs.Run(ctx, p.Run)
	if g.Mount != nil {
		g.Mount.End(context.WithoutCancel(ctx)) // even if nothing was recorded
		if len(g.Mount.Left) > 0 {
			err = errors.Join(err, &repos.KeysLeftError{Bottle: b.Slug, Left: g.Mount.Left})
		}
	}
	if rec == nil {
		return nil, err
	}
	s := &Started{Slug: b.Slug, Receipt: rec, Frozen: rec.Exit.Reason == receipt.Frozen}
	if g.Resume != nil {
		err = errors.Join(err, c.supersede(context.WithoutCancel(ctx), g.Resume.Kept.Run, rec))
	}
	if err == nil && rec.Exit.Code == 0 && !g.Kept {
		_, err = c.Store.RemoveBottle(context.WithoutCancel(ctx), b.Slug)
		return s, err
	}
	s.Kept = true
	if k, _, kerr := c.Store.Kept(b.Slug); kerr == nil && k != nil {
		s.Resumable, s.Until = true, c.until(k)
		var xerr error
		if s.Forgotten, xerr = c.Expire(context.WithoutCancel(ctx), b.Slug); xerr != nil {
			c.Log.Warn("old bottles can't be forgotten", "error", xerr)
		}
	}
	if rec.Exit.Code != 0 && !s.Frozen && repos.OnlyKeysLeft(err) {
		err = errors.Join(&AgentError{Agent: b.Agent, Slug: b.Slug, Exit: rec.Exit}, err)
	}
	return s, err
}

// DestroyOptions say what Destroy may give up.
type DestroyOptions struct {
	Unlanded bool // discard changes that nobody has landed
	// LeaveKeys forgets deploy keys that cannot be revoked, because somebody has removed
	// them at the forge.
	LeaveKeys bool
}

// Destroy polls a bottle that it told to end every destroyLook, for at most destroyIn.
const (
	destroyIn   = 2 * time.Minute
	destroyLook = 100 * time.Millisecond
)

// Destroy ends a bottle and removes its record, the records of its runs, and what was
// kept of it. It reports whether the bottle was there; one that another call destroys
// meanwhile was not, which is no error. Changes that were not landed are an error and
// stay, unless o says otherwise.
func (c *Keeper) Destroy(ctx context.Context, slug string, o DestroyOptions) (was bool, err error) {
	fail := func(err error) (bool, error) { return false, fmt.Errorf("destroy bottle %s: %w", slug, err) }
	lock, err := c.seize(ctx, slug)
	if errors.Is(err, store.ErrNoBottle) {
		return false, nil
	}
	if err != nil {
		return fail(err)
	}
	defer lock.Unlock()
	b, err := c.Store.Bottle(slug)
	if err != nil {
		return false, err
	}
	runs, err := c.Store.RunsOf(ctx, b)
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
		err := c.Store.Remove(ctx, m.ID, store.RemoveOptions{Unlanded: true}) // the caller wants that, or there are no changes
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return fail(err)
		}
		if err := c.review.NoteDestroyed(ctx, m, slug); err != nil {
			return false, err
		}
	}
	if err := repos.RevokeLeft(ctx, c.Host, lock, slug, o.LeaveKeys); err != nil {
		return fail(err)
	}
	return c.Store.RemoveBottle(ctx, slug)
}

// seize takes a bottle's lock from its holder: it stops the runs of the bottle,
// including those that start while it waits.
func (c *Keeper) seize(ctx context.Context, slug string) (*store.BottleLock, error) {
	ctx, cancel := context.WithTimeout(ctx, destroyIn)
	defer cancel()
	asked := map[store.ID]bool{}
	for {
		lock, err := c.Store.LockBottle(slug)
		if !errors.Is(err, store.ErrBottleBusy) {
			return lock, err
		}
		if b, err := c.Store.Bottle(slug); err == nil {
			runs, err := c.Store.RunsOf(ctx, b)
			if err != nil {
				return nil, err
			}
			for _, m := range runs {
				if !asked[m.ID] && !m.State.Over() && m.Socket != "" {
					asked[m.ID] = c.runs.Stop(ctx, m) == nil
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

// holdsChanges reports whether removing m would lose changes.
func (c *Keeper) holdsChanges(m store.Meta) bool {
	if m.Changes.Settled() {
		return false
	}
	if m.State != store.Lost && m.State != store.Failed {
		return true
	}
	_, err := c.review.Changes(m.ID) // a run that died often has none
	return err == nil
}

// ended stops a run that is still going and waits for its end.
func (c *Keeper) ended(ctx context.Context, m store.Meta) (store.Meta, error) {
	ctx, cancel := context.WithTimeout(ctx, destroyIn)
	defer cancel()
	for asked := false; ; {
		over, err := c.runs.Over(ctx, m.ID)
		if errors.Is(err, store.ErrNotFound) {
			m.State, m.Changes = store.Finished, store.NoChanges
			return m, nil
		}
		if err != nil {
			return m, err
		}
		if over {
			m, err := c.Store.Get(m.ID)
			if err != nil {
				return m, err
			}
			return c.review.Settled(ctx, m)
		}
		if now, err := c.Store.Get(m.ID); err == nil && !asked && now.Socket != "" {
			asked = c.runs.Stop(ctx, now) == nil
		}
		select {
		case <-ctx.Done():
			return m, fmt.Errorf("run %s does not end: %w", m.ID, store.ErrLive)
		case <-time.After(destroyLook):
		}
	}
}
