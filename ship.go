package carboy

import (
	"errors"
	"os"
	"os/user"
	"path/filepath"
	"time"

	"github.com/carboy/carboy/internal/ship"
	"github.com/carboy/carboy/internal/ship/remote"
	"github.com/carboy/carboy/internal/store"
)

// ShipOptions say from where a module is shipped, and how long that may take.
type ShipOptions struct {
	// Dir lies in the work tree of the repository.
	Dir string
	// Up bounds docker compose up on a host, Other each other command; 0: five and two
	// minutes.
	Up, Other time.Duration
	// Life is how long a plan may be applied; 0: a day.
	Life time.Duration
	// Progress hears what happens, one call at a time; nil: nobody.
	Progress func(ShipProgress)
}

// ErrNoRepository means that a directory lies in no work tree.
var ErrNoRepository = errors.New("not in a git repository")

// Ship readies the shipping of modules: start at its Plan. Close the result.
func (c *Client) Ship(o ShipOptions) (*Shipper, error) {
	conf, err := store.ConfigDir(c.opened.Config, c.env)
	if err != nil {
		return nil, err
	}
	state, err := store.StateDir(c.env)
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	top, err := workTree(dir)
	if err != nil {
		return nil, err
	}
	s := &ship.Engine{Config: conf, State: filepath.Join(state, "ship"), Repo: top, By: operator(), Keys: remote.Keys{AgentSocket: c.env("SSH_AUTH_SOCK")},
		Audit: c.audit, Up: o.Up, Other: o.Other, Life: o.Life, Progress: o.Progress}
	return s, s.Open()
}

// workTree is the directory above dir that holds .git.
func workTree(dir string) (string, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Lstat(filepath.Join(d, ".git")); err == nil {
			return d, nil
		}
		if d == "/" {
			return "", ErrNoRepository
		}
	}
}

// operator is for records: it decides nothing.
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
