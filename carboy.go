// Package carboy runs commands in sealed bottles and takes home what they
// changed.
//
// It wires the parts under internal together and is what the command line
// uses; there is nothing in the command line that a program could not do with
// this package. Start reading at [Open] and [Client.Run].
//
// A program that uses it calls [Main] first in its main function, because the
// embedded kernel re-executes the program, and is built with CGO_ENABLED=0.
package carboy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/gvisor"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/stamp"
	"github.com/carboy/carboy/internal/store"
)

// Main takes the process over when it was started as an inner process of a
// bottle, and then does not return. Otherwise it returns at once.
func Main() {
	gvisor.Main()
	hostexec.Main()
	// What the caller left open is for this process alone.
	unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
}

// Options configure a Client. The zero value uses the user's own directories.
type Options struct {
	// Env looks up variables that say where state lives; nil: os.Getenv.
	Env func(string) string
	// Config is the configuration directory; empty: the user's own.
	Config string
	// Quick leaves the cleaning up after runs that died to the next Client.
	Quick bool
	// Log receives what is for operators; nil: nothing.
	Log *slog.Logger
	// Resolver looks up the names that routes allow; nil: as the machine does.
	Resolver Resolver
}

// Resolver finds the addresses of a name, outside of bottles. *net.Resolver is
// one. What it finds is judged before it is dialled.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Client is a user's carboy: state, audit log, backends. Its methods may be
// called concurrently.
type Client struct {
	store   *store.Store
	audit   *audit.Log
	env     func(string) string
	log     *slog.Logger
	backend bottle.Backend
	build   string
	config  config
	opened  Options
	lost    []store.Meta
}

// Open opens the user's state, making what is missing, and cleans up after
// runs whose carboy died: nothing of theirs runs any more (the kernel saw to
// that), their records are marked lost. Lost tells which.
func Open(ctx context.Context, o Options) (*Client, error) {
	if o.Env == nil {
		o.Env = os.Getenv
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	conf, err := openConfig(o)
	if err != nil {
		return nil, err
	}
	dir, err := store.StateDir(o.Env)
	if err != nil {
		return nil, err
	}
	s, err := store.Open(dir)
	if err != nil {
		return nil, err
	}
	c := &Client{store: s, env: o.Env, log: o.Log, backend: gvisor.Backend{}, build: Version(), config: conf, opened: o}
	if c.audit, err = audit.Open(ctx, dir+"/audit"); err != nil {
		s.Close()
		return nil, err
	}
	stamp.Mark("state open")
	if o.Quick {
		return c, nil
	}
	if err := c.recover(ctx); err != nil {
		// A full disk must not keep people from looking at what they have.
		c.log.Warn("recovery after an earlier crash is incomplete", "err", err)
	}
	stamp.Mark("recovered")
	return c, nil
}

// Close releases what Open took.
func (c *Client) Close() error {
	return errors.Join(c.audit.Close(), c.store.Close())
}

// Lost returns the runs that Open found to have died with their carboy.
func (c *Client) Lost() []store.Meta { return c.lost }

// StateDir is where everything of this user lies.
func (c *Client) StateDir() string { return c.store.Dir() }

// recover marks and cleans lost runs. What a bottle has outside the state
// directory dies with it: processes and mounts by its namespaces. What is left
// is the control socket and half-taken changes.
func (c *Client) recover(ctx context.Context) error {
	r, err := c.store.Recover(ctx)
	errs := []error{err, c.sweepPool()}
	if n := hostexec.Sweep(); n > 0 {
		c.log.Warn("host commands of a dead carboy were killed", "count", n)
	}
	for _, m := range r.Lost {
		if m.Socket != "" {
			os.Remove(string(m.Socket))
		} else if dir, err := store.RuntimeDir(c.env); err == nil {
			os.Remove(filepath.Join(dir, socketName(m.ID))) // made, and not recorded yet
		}
		if err := c.cleanLost(ctx, m); err != nil {
			errs = append(errs, fmt.Errorf("run %s: %w", m.ID, err))
			continue
		}
		c.lost = append(c.lost, m)
		errs = append(errs, c.store.Cleaned(ctx, m.ID))
	}
	return errors.Join(append(errs, c.recoverLandings(ctx))...)
}

// recoverLandings finishes or takes back landings whose carboy died. One that
// goes on at this moment holds its workspace's lock; it is left to itself.
func (c *Client) recoverLandings(ctx context.Context) error {
	marks, err := filepath.Glob(c.StateDir() + "/runs/*/land")
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range marks {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		rep, err := change.Recover(ctx, filepath.Dir(dir))
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			errs = append(errs, err)
			continue
		}
		if rep != nil && len(rep.Left) > 0 {
			c.log.Warn("old files could not be put back", "run", filepath.Base(filepath.Dir(dir)), "paths", rep.Left)
		}
	}
	return errors.Join(errs...)
}
