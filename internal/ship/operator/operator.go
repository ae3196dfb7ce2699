package operator

import (
	"os"
	"os/user"
	"path/filepath"
	"time"

	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/ship"
	"github.com/carboy/carboy/internal/ship/hosts"
	"github.com/carboy/carboy/internal/ship/remote"
	"github.com/carboy/carboy/internal/ship/reviews"
	"github.com/carboy/carboy/internal/store"
)

// Options name the repository to ship from, and bound the time of each step.
type Options struct {
	// Dir lies in the work tree of the repository.
	Dir string
	// Up bounds docker compose up on a host, Other each other command; 0: five and two
	// minutes.
	Up, Other time.Duration
	// Life bounds the time in which a plan may be applied; 0: a day.
	Life time.Duration
	// Review is the number of a pull request whose reviews can approve, where hosts.yaml
	// says so; 0: none.
	Review int
	// Progress hears what happens, one call at a time; nil: nobody.
	Progress func(ship.Progress)
}

// Ship readies the shipping of modules: start at its Plan. Close the result.
func (c *Operator) Ship(o Options) (*ship.Engine, error) {
	conf, err := store.ConfigDir(c.Opened.Config, c.Env)
	if err != nil {
		return nil, err
	}
	state, err := store.StateDir(c.Env)
	if err != nil {
		return nil, err
	}
	top, err := fault.WorkTree(o.Dir)
	if err != nil {
		return nil, err
	}
	s := &ship.Engine{Config: conf, State: filepath.Join(state, "ship"), Repo: top, By: operator(), Keys: remote.Keys{AgentSocket: c.Env("SSH_AUTH_SOCK")},
		Audit: c.Audit, Up: o.Up, Other: o.Other, Life: o.Life, Progress: o.Progress, Pull: o.Review,
		Forge: func(r *hosts.Reviews) (reviews.Forge, error) { return reviews.Open(r, c.Env) }}
	return s, s.Open()
}

// operator returns USER@HOST for records. No decision depends on it.
func operator() string {
	name := "someone"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		name += "@" + h
	}
	return name
}
