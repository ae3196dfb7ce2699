package carboy

import (
	"context"
	"io"
	"log/slog"

	"github.com/carboy/carboy/internal/bottlework"
	"github.com/carboy/carboy/internal/issues"
	"github.com/carboy/carboy/internal/orchestrate"
	"github.com/carboy/carboy/internal/orchestrate/config"
	"github.com/carboy/carboy/internal/orchestrate/serve"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
)

// ServeOptions configure ServeIssues. The zero value says nothing to anybody.
type ServeOptions struct {
	// Log gets what happens to issues. nil: the Client's own log.
	Log *slog.Logger
	// Output gets what agents print, and OnEvent what happens in the bottle of an issue,
	// such as acme/web#7. Both are called from many goroutines at once, and may be nil.
	Output  io.Writer
	OnEvent func(issue string, e Event)
	// Ready is told the address at which webhooks are taken, "" for none, once issues are
	// worked on. It may be nil.
	Ready func(addr string)
}

// ServeIssues works on the issues of the repositories that the operator's orchestrate.yaml
// names, until ctx ends. Then it lets bottles freeze, which may take minutes, and returns
// nil. One process at a time serves a user's state.
func (c *Client) ServeIssues(ctx context.Context, o ServeOptions) error {
	dir, err := store.ConfigDir(c.host.Opened.Config, c.host.Env)
	if err != nil {
		return err
	}
	conf, err := config.Load(dir, c.host.Env)
	if err != nil {
		return err
	}
	runtime, err := store.RuntimeDir(c.host.Env)
	if err != nil {
		return err
	}
	if o.Log == nil {
		o.Log = c.host.Log
	}
	var event func(issues.Key, plan.Event)
	if o.OnEvent != nil {
		event = func(k issues.Key, e plan.Event) { o.OnEvent(k.String(), e) }
	}
	return serve.Run(ctx, serve.Options{
		Config: conf, State: c.StateDir(), Runtime: runtime, Log: o.Log, Ready: o.Ready,
		Bottles: func(r config.Repository) (orchestrate.Bottles, error) {
			return bottlework.New(bottlework.Options{
				Host: c.host, Keeper: c.bottles, Judge: c.judge, Worker: c.worker, Catalog: r.Gate, Attempts: conf.Attempts, MaxAttempts: conf.People.MaxAttempts,
				People: AskOptions{Timeout: conf.People.Wait, Policy: conf.People.Policy}, Policy: conf.People.Policy, AskFor: conf.People.Wait,
				BundleKey: conf.BundleKey, Output: o.Output, OnEvent: event,
			})
		},
	})
}
