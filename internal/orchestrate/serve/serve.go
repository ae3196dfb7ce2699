// Package serve runs carboy orchestrate serve: the orchestrator with the operator's
// configuration, the listener for webhooks, and the pages for those who watch over it.
//
// Start reading at [Run].
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/net/netutil"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/forgeservice"
	"github.com/carboy/carboy/internal/orchestrate"
	"github.com/carboy/carboy/internal/orchestrate/config"
	"github.com/carboy/carboy/internal/secret"
)

// Bounds of the listener and of the end.
const (
	maxConnections = 256
	headersIn      = 10 * time.Second
	idleFor        = time.Minute
	answersIn      = time.Minute
	lastAnswers    = 5 * time.Second
	defaultGrace   = 4 * time.Minute
)

// StateDir returns the directory of the orchestrator's state in that of the user.
func StateDir(state string) string { return filepath.Join(state, "orchestrate") }

// Options say what is served.
type Options struct {
	Config  *config.Config
	State   string // of the user
	Runtime string // the user's private directory for sockets
	// Bottles returns what works on the issues of a repository.
	Bottles func(config.Repository) (orchestrate.Bottles, error)
	Log     *slog.Logger
	// Ready is told when issues are worked on, with the address of the listener; "": there
	// is none.
	Ready func(addr string)
	// Grace bounds the wait for bottles to freeze at the end. 0: four minutes.
	Grace time.Duration
}

// Run works on issues until ctx ends, then lets the bottles freeze and returns nil. The error
// is an *engine.HeldError while another process serves the same state.
func Run(ctx context.Context, o Options) (err error) {
	if o.Grace == 0 {
		o.Grace = defaultGrace
	}
	c := &connections{conf: o.Config, services: map[string]*forge.Client{}}
	defer c.close()
	forges, err := c.forges()
	if err != nil {
		return err
	}
	b := &byRepository{conf: o.Config, of: map[string]orchestrate.Bottles{}}
	for _, r := range o.Config.Repositories {
		if b.of[r.Path()], err = o.Bottles(r); err != nil {
			return err
		}
	}
	// The listener comes first: an address that is taken stops nothing that was begun.
	var l net.Listener
	if w := o.Config.Webhooks; w != nil {
		if l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", w.Listen); err != nil {
			return fmt.Errorf("%s: webhooks.listen: %w", o.Config.File, err)
		}
		defer l.Close()
	}
	orc, err := orchestrate.Open(ctx, orchestrate.Options{
		State: StateDir(o.State), Forges: forges, Org: o.Config.Organisation, Labels: o.Config.Labels, Watchdog: o.Config.Watchdog, Poll: o.Config.Poll,
		Slots: o.Config.Slots, Bottles: b, Log: o.Log,
	})
	if err != nil {
		return err
	}
	endOrders, err := control(o.Runtime, o.State, orc)
	if err != nil {
		return errors.Join(err, orc.Close(o.Grace))
	}
	defer endOrders()
	p := &pages{dir: StateDir(o.State), hooks: orc.Handler(), counters: orc.Counters}
	if l != nil {
		defer p.serve(l, o.Log)()
	}
	p.ready.Store(true)
	if o.Ready != nil {
		addr := ""
		if l != nil {
			addr = l.Addr().String()
		}
		o.Ready(addr)
	}
	err = orc.Run(ctx)
	p.ready.Store(false)
	return errors.Join(err, orc.Close(o.Grace))
}

// connections holds the clients of the forge.
type connections struct {
	conf *config.Config
	all  []*forge.Client
	// services are the clients of agents, by repository.
	services map[string]*forge.Client
}

func (c *connections) close() {
	for _, x := range c.all {
		x.Close()
	}
}

func (c *connections) client(role config.Role, repo string) (*forge.Client, error) {
	x, err := c.conf.Client(role, repo)
	if err == nil {
		c.all = append(c.all, x)
	}
	return x, err
}

// forges returns the repositories of the configuration, by their owners. Each credential is
// read here, so that a missing one stops serve at its start.
func (c *connections) forges() ([]orchestrate.Forge, error) {
	var out []orchestrate.Forge
	var signs secret.Value
	if c.conf.Webhooks != nil {
		var err error
		if signs, err = c.conf.Secret(); err != nil {
			return nil, err
		}
	}
	var clients [3]*forge.Client
	for i, role := range []config.Role{config.Orchestrator, config.Shipper, config.Service} {
		var err error
		if clients[i], err = c.client(role, ""); err != nil {
			return nil, err
		}
	}
	scan := forgeservice.Scan(c.conf.Secrets)
	for _, r := range c.conf.Repositories {
		own, err := c.client(config.Service, r.Path())
		if err != nil {
			return nil, err
		}
		c.services[r.Path()] = own
		i := slices.IndexFunc(out, func(f orchestrate.Forge) bool { return f.Owner == r.Owner })
		if i < 0 {
			i = len(out)
			out = append(out, orchestrate.Forge{
				Client: clients[0], Shipper: clients[1], Writer: clients[2], Provider: c.conf.Provider, Owner: r.Owner, Secret: signs, Robot: c.conf.Login, Bots: c.conf.Bots,
				Service: c.service(scan),
			})
		}
		out[i].Repos = append(out[i].Repos, orchestrate.Repo{Name: r.Name, Base: r.Base})
	}
	return out, nil
}

// service makes the service of a turn.
func (c *connections) service(scan func(context.Context, string) error) func(orchestrate.ServiceRequest) (*forgeservice.Service, error) {
	return func(q orchestrate.ServiceRequest) (*forgeservice.Service, error) {
		repo := q.Issue.Owner + "/" + q.Issue.Repo
		client, ok := c.services[repo]
		if !ok {
			return nil, fmt.Errorf("%s is not in %s", repo, c.conf.File)
		}
		return forgeservice.New(forgeservice.Options{
			Client: client, Target: forge.Target{Provider: c.conf.Provider, API: c.conf.API, Repo: repo}, Scope: q.Scope, Bottle: q.Bottle, Agent: q.Agent,
			Scan: scan, Record: q.Record, Done: q.Done,
		})
	}
}

// serve serves the pages on a listener; the function that it returns ends that.
func (p *pages) serve(l net.Listener, log *slog.Logger) (end func()) {
	s := &http.Server{
		Handler: p.handler(), ReadHeaderTimeout: headersIn, IdleTimeout: idleFor, WriteTimeout: answersIn, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	done := make(chan struct{})
	go func() { // ends with the listener
		defer close(done)
		if err := s.Serve(netutil.LimitListener(l, maxConnections)); !errors.Is(err, http.ErrServerClosed) {
			log.Error("webhooks are no longer taken; the forge is polled", "err", err)
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), lastAnswers)
		defer cancel()
		if s.Shutdown(ctx) != nil {
			s.Close()
		}
		<-done
	}
}
