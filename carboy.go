// Package carboy runs commands in sealed bottles and lands their changes.
//
// It connects the packages under internal. The command line runs, reviews, judges and ships
// through it, and any program can do the same; docs/architecture.md lists what the command
// line does besides. Start reading at [Open] and [Client.Run].
//
// A program that uses this package must be built with CGO_ENABLED=0, and must call [Main]
// first in its main function, because a backend may re-execute the program.
package carboy

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/backends"
	"github.com/carboy/carboy/internal/bottles"
	"github.com/carboy/carboy/internal/builder"
	"github.com/carboy/carboy/internal/doctor"
	"github.com/carboy/carboy/internal/gate/judge"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/phases"
	"github.com/carboy/carboy/internal/review"
	"github.com/carboy/carboy/internal/run"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/ship/operator"
	"github.com/carboy/carboy/internal/tracing"
	"github.com/carboy/carboy/internal/work"
)

// Main runs the inner process of a bottle if the process was started as one, and then
// does not return. Otherwise it returns at once.
func Main() {
	backends.Main()
	builder.Main()
	// No child may inherit the files that the caller left open.
	unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
}

// Options configure a Client. The zero value uses the user's own directories.
type Options struct {
	// Env looks up environment variables, such as those that say where state lives. Nil
	// means os.Getenv.
	Env func(string) string
	// Config is the configuration directory; empty: the user's own.
	Config string
	// Backend names what holds the bottles; empty: what a bottle's files name, else the
	// default.
	Backend string
	// Quick leaves it to the next Client to clean up after runs that died.
	Quick bool
	// Ahead is the run that the caller will start next, or nil. Open starts the first
	// process of its bottle while it opens the state.
	Ahead *plan.Options
	// Log receives messages for operators. Nil means none.
	Log *slog.Logger
	// Resolver looks up the names that routes allow. Nil means the machine's resolver.
	Resolver host.Resolver
	// Roots are the certificate authorities of servers. Nil means those that this
	// machine trusts.
	Roots *x509.CertPool

	// dial connects to an address that the routes allow. Nil means the network; tests
	// replace it.
	dial func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
}

// Backends returns the names that Options.Backend may have, the default first.
func Backends() []string { return backends.Names() }

// Client gives access to one user's state and bottles. Its methods may be called
// concurrently.
type Client struct {
	opened   Options // as Open got them, completed
	host     *host.Host
	review   *review.Reviewer
	runs     *run.Runner
	bottles  *bottles.Keeper
	judge    *judge.Judge
	tracer   *tracing.Tracer
	worker   *work.Worker
	operator *operator.Operator
	doctor   *doctor.Doctor
}

// Open opens the user's state and creates what is missing. It also cleans up after runs
// whose carboy died: the kernel has ended their processes, and Open marks their records
// lost. [Client.Lost] returns them.
func Open(ctx context.Context, o Options) (*Client, error) {
	backend, err := backends.ByName(o.Backend)
	if err != nil {
		return nil, err
	}
	ahead := run.Begin(backend, o.Ahead)
	if o.Env == nil {
		o.Env = os.Getenv
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	h, err := host.Open(ctx, host.Options{Env: o.Env, Config: o.Config, Backend: o.Backend, Log: o.Log, Resolver: o.Resolver, Roots: o.Roots, Dial: o.dial}, backend)
	if err != nil {
		ahead.Drop()
		return nil, err
	}
	phases.Mark("state open")
	c := &Client{opened: o, host: h, review: review.New(h), operator: operator.New(h)}
	c.runs = run.New(h, c.review, ahead)
	h.Maker = &builder.Builder{Runs: c.runs}
	c.bottles = bottles.New(h, c.review, c.runs)
	c.judge = judge.New(h, c.review, c.runs)
	c.tracer = tracing.New(h, c.review, c.runs)
	c.worker = work.New(h, c.review, c.runs, c.bottles, c.judge)
	c.doctor = doctor.New(h, c.review, c.runs, c.judge, c.worker)
	if o.Quick {
		return c, nil
	}
	if err := c.runs.Recover(ctx); err != nil {
		// With a full disk, people must still be able to look at their runs.
		h.Log.Warn("recovery after an earlier crash is incomplete", "err", err)
	}
	phases.Mark("recovered")
	return c, nil
}

// Close releases what Open acquired.
func (c *Client) Close() error {
	c.runs.Close()
	return c.host.Close()
}

// Lost returns the runs that Open found to have died with their carboy.
func (c *Client) Lost() []RunMeta { return c.runs.Lost() }
