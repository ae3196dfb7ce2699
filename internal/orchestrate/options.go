package orchestrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/forgeservice"
	"github.com/carboy/carboy/internal/issues"
	"github.com/carboy/carboy/internal/secret"
)

// Defaults of [Options].
const (
	DefaultOrg      = "bot-bottle"
	DefaultWatchdog = 30 * time.Minute
	DefaultPoll     = 5 * time.Minute
	DefaultSlots    = 2
)

// DefaultLabels returns the prefixes of labels that name an agent.
func DefaultLabels() []string { return []string{"carboy:", "bot-bottle:"} }

// Options configure an [Orchestrator].
type Options struct {
	// State is the directory of the table of issues and of the engine's store. It is made
	// if it is missing. One process at a time uses it.
	State string
	// Forges are one or more. No two have the same Owner.
	Forges []Forge
	// Org is the organisation whose members may assign an agent. Empty: DefaultOrg.
	Org string
	// Labels are the prefixes of labels that name an agent, each with a final colon. nil:
	// DefaultLabels.
	Labels []string
	// Watchdog bounds the silence of an agent. 0: DefaultWatchdog.
	Watchdog time.Duration
	// Poll separates two looks for what no webhook told. 0: DefaultPoll.
	Poll time.Duration
	// Slots bounds the turns that are under way at a time. 0: DefaultSlots.
	Slots   int
	Bottles Bottles
	Log     *slog.Logger
}

// A Forge is an owner's repositories at one forge.
type Forge struct {
	// Client reads issues, comments and members. Clients are not closed.
	Client *forge.Client
	// Shipper reads and opens pull requests, sets statuses, and asks who may write. nil: Client.
	Shipper *forge.Client
	// Writer edits the descriptions of pull requests. nil: Client.
	Writer   *forge.Client
	Provider string // as [forge.Providers] names it
	Owner    string // user, organisation or group, spelled as the forge spells it
	// Secret signs webhooks. Empty: no webhook is accepted, and what changes is found by
	// looking.
	Secret secret.Value
	// Robot is the login of Client's account. Its comments are no prompts.
	Robot string
	// Bots are the logins of bots whose comments count like a person's with the same rights.
	Bots []string
	// Repos are the repositories that are looked at.
	Repos []Repo
	// Others, if it is not nil, is for each repository of Owner that is not in Repos. Those
	// are known by their webhooks alone until there is an issue of ours.
	Others *Repo
	// Identity returns the forge's own id of a repository, which stays when it is renamed.
	// nil: Shipper asks for it.
	Identity func(ctx context.Context, repo string) (int64, error)
	// Service makes the service through which an agent reaches the forge. The caller of
	// the orchestrator chooses its token and its scan.
	Service func(ServiceRequest) (*forgeservice.Service, error)
}

// A Repo is a repository with its settings.
type Repo struct {
	Name    string // without the owner; empty in [Forge].Others
	Base    string // the branch that changes are for; empty: main
	Backend string // of bottles; empty: the default
}

// A ServiceRequest says for what a service is made. Its fields go to the ones of
// [forgeservice.Options] with the same name.
type ServiceRequest struct {
	Issue  issues.Key
	Scope  forgeservice.Scope
	Bottle string // unique for a turn
	Agent  string
	Record func(forgeservice.Operation) error
	Done   func(ctx context.Context, s forgeservice.Status, summary string) error
}

func (o *Options) defaults() {
	if o.Org == "" {
		o.Org = DefaultOrg
	}
	if o.Labels == nil {
		o.Labels = DefaultLabels()
	}
	if o.Watchdog == 0 {
		o.Watchdog = DefaultWatchdog
	}
	if o.Poll == 0 {
		o.Poll = DefaultPoll
	}
	if o.Slots == 0 {
		o.Slots = DefaultSlots
	}
}

func (o *Options) valid() error {
	switch {
	case !filepath.IsAbs(o.State):
		return fmt.Errorf("the state directory %q is not an absolute path", o.State)
	case len(o.Forges) == 0:
		return errors.New("there is no forge: name one, and its owner")
	case o.Bottles == nil || o.Log == nil:
		return errors.New("an orchestrator needs bottles and a log")
	case len(o.Labels) == 0:
		return errors.New("no prefix of labels names an agent")
	case o.Watchdog < time.Minute || o.Poll < time.Second || o.Slots < 1:
		return fmt.Errorf("watchdog %v, poll %v, slots %d: at least 1m, 1s and 1", o.Watchdog, o.Poll, o.Slots)
	}
	for _, p := range o.Labels {
		if len(p) < 2 || !strings.HasSuffix(p, ":") {
			return fmt.Errorf("the prefix %q of labels has no colon at its end", p)
		}
	}
	owners := map[string]bool{}
	for i, f := range o.Forges {
		if err := f.valid(); err != nil {
			return fmt.Errorf("forge %d (%s): %w", i+1, f.Owner, err)
		}
		if owners[strings.ToLower(f.Owner)] {
			return fmt.Errorf("two forges have the owner %q: use two state directories, with a process each", f.Owner)
		}
		owners[strings.ToLower(f.Owner)] = true
	}
	return nil
}

func (f Forge) valid() error {
	switch {
	case f.Client == nil || f.Service == nil:
		return errors.New("it needs a client, and services for agents")
	case !slices.Contains(forge.Providers(), f.Provider):
		return fmt.Errorf("%q is no forge: there are %s", f.Provider, strings.Join(forge.Providers(), ", "))
	case f.Owner == "" || f.Robot == "":
		return errors.New("it needs an owner, and the login of the robot")
	case len(f.Repos) == 0 && f.Others == nil:
		return errors.New("it has no repository")
	}
	for _, r := range f.Repos {
		if r.Name == "" || strings.Contains(r.Name, "/") {
			return fmt.Errorf("%q is not the name of a repository without its owner", r.Name)
		}
	}
	return nil
}

func (f *Forge) shipper() *forge.Client { return cmp.Or(f.Shipper, f.Client) }

// identity returns the forge's own id of a repository.
func (f *Forge) identity(ctx context.Context, repo string) (int64, error) {
	if f.Identity != nil {
		return f.Identity(ctx, repo)
	}
	r, err := f.shipper().Repository(ctx, repo)
	return r.ID, err
}

func (f *Forge) writer() *forge.Client { return cmp.Or(f.Writer, f.Client) }

// repo returns the settings of a repository, and reports whether it is one of ours.
func (f *Forge) repo(name string) (Repo, bool) {
	r, ok := Repo{}, false
	for _, x := range f.Repos {
		if strings.EqualFold(x.Name, name) {
			r, ok = x, true
		}
	}
	if !ok && f.Others != nil && name != "" {
		r, ok = *f.Others, true
		r.Name = name
	}
	if r.Base == "" {
		r.Base = "main"
	}
	return r, ok
}
