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
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
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
	// Ahead is the run that will be asked for next: the first process of its
	// bottle starts while the state is being opened. Nil: none.
	Ahead *RunOptions
	// Log receives what is for operators; nil: nothing.
	Log *slog.Logger
	// Resolver looks up the names that routes allow; nil: as the machine does.
	Resolver Resolver
	// Roots are whom the certificates of servers must come from; nil: whom this
	// machine trusts.
	Roots *x509.CertPool

	// dial connects to an address that was judged; nil: to that address.
	dial func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
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
	ahead   atomic.Pointer[ahead] // nil: none, or a run has it
}

// Open opens the user's state, making what is missing, and cleans up after
// runs whose carboy died: nothing of theirs runs any more (the kernel saw to
// that), their records are marked lost. Lost tells which.
func Open(ctx context.Context, o Options) (_ *Client, err error) {
	c := &Client{backend: gvisor.Backend{}, build: Version()}
	c.begin(o.Ahead)
	defer func() {
		if err != nil {
			c.dropAhead()
		}
	}()
	if o.Env == nil {
		o.Env = os.Getenv
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	c.env, c.log, c.opened = o.Env, o.Log, o
	if c.config, err = openConfig(o); err != nil {
		return nil, err
	}
	dir, err := store.StateDir(o.Env)
	if err != nil {
		return nil, err
	}
	if c.store, err = store.Open(dir); err != nil {
		return nil, err
	}
	if c.audit, err = audit.Open(ctx, dir+"/audit"); err != nil {
		c.store.Close()
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
	c.dropAhead()
	return errors.Join(c.audit.Close(), c.store.Close())
}

// ahead is a bottle that has begun before its run was asked for. It holds
// nothing yet but who it is for.
type ahead struct {
	id   identity
	warm bottle.Warm
}

// begin starts what a run with o needs in any case. Whatever is wrong with o is
// said when the run is asked for.
func (c *Client) begin(o *RunOptions) {
	w, ok := c.backend.(bottle.Warmer)
	if o == nil || !ok {
		return
	}
	dir := o.Workspace
	switch {
	case o.Mode == store.None:
		dir = ""
	case dir == "":
		dir = "."
	}
	id, err := whoami(dir)
	if err == nil {
		c.ahead.Store(&ahead{id, w.Warm(id.user, id.hostUID, id.hostGID)})
	}
}

// dropAhead ends what no run has taken.
func (c *Client) dropAhead() {
	if a := c.ahead.Swap(nil); a != nil {
		a.warm.Close()
	}
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
	c.recoverKeys(ctx)
	return errors.Join(append(errs, c.recoverLandings(ctx))...)
}

// recoverLandings finishes or takes back landings whose carboy died. One that
// goes on at this moment holds its workspace's lock; it is left to itself.
func (c *Client) recoverLandings(ctx context.Context) error {
	marks, err := store.Glob(c.StateDir(), "runs/*/land")
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
