// Package host opens what every stage of carboy shares: the user's state, audit log,
// configuration and environment, and the backend that makes bottles.
package host

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/image"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/store"
)

// Options configure a Host.
type Options struct {
	Env      func(string) string // looks up a variable of the user's environment
	Config   string              // the configuration directory; empty: the user's
	Backend  string              // as a person named it for this command; empty: nobody did
	Log      *slog.Logger
	Resolver Resolver
	Roots    *x509.CertPool
	// Dial connects to an address that the policy allows. Nil connects directly; tests
	// set it.
	Dial func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
}

// Resolver looks up the addresses of a name, outside of bottles. *net.Resolver implements
// it. The policy checks each address before it is dialled.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Host holds what every stage shares. Its methods may be called concurrently.
type Host struct {
	Store   *store.Store
	Audit   *audit.Log
	Env     func(string) string // looks up a variable of the user's environment
	Log     *slog.Logger        // for operators
	Backend bottle.Backend
	Build   string // the build of carboy, as records name it
	Config  Config
	Opened  Options // as Open got them
	// Maker builds images in bottles; nil: nobody does. Set after Open, since it runs them.
	Maker image.Maker
}

// Open opens the user's state and creates the directories that are missing.
func Open(ctx context.Context, o Options, backend bottle.Backend) (_ *Host, err error) {
	h := &Host{Env: o.Env, Log: o.Log, Backend: backend, Build: Version(), Opened: o}
	if h.Config, err = OpenConfig(o); err != nil {
		return nil, err
	}
	dir, err := store.StateDir(o.Env)
	if err != nil {
		return nil, err
	}
	if h.Store, err = store.Open(dir); err != nil {
		return nil, err
	}
	if h.Audit, err = audit.Open(ctx, dir+"/audit"); err != nil {
		h.Store.Close()
		return nil, err
	}
	return h, nil
}

// Close closes the audit log and the store.
func (h *Host) Close() error { return errors.Join(h.Audit.Close(), h.Store.Close()) }

// StateDir returns the directory that holds this user's state.
func (h *Host) StateDir() string { return h.Store.Dir() }

// AppendIn bounds the time to append one record to the audit log, which a stopped process
// may have locked.
const AppendIn = time.Minute

// AuditDir returns the directory of the audit log.
func (h *Host) AuditDir() string { return h.StateDir() + "/audit" }

// Manifests opens the bottles and agents of the user and of the repository in dir.
func (h *Host) Manifests(dir string) (*manifest.Set, error) {
	where, err := h.Where(dir)
	if err != nil {
		return nil, err
	}
	return manifest.Open(where)
}

// Where returns the directories in which Manifests looks.
func (h *Host) Where(dir string) (manifest.Where, error) {
	conf, err := store.ConfigDir(h.Opened.Config, h.Env)
	return manifest.Where{Config: conf, Home: h.Env("HOME"), Repo: dir}, err
}
