package serve

import (
	"context"
	"io"
	"log/slog"

	"github.com/carboy/carboy/internal/ask"
	"github.com/carboy/carboy/internal/bottles"
	"github.com/carboy/carboy/internal/gate/judge"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/issues"
	"github.com/carboy/carboy/internal/orchestrate"
	"github.com/carboy/carboy/internal/orchestrate/bottlework"
	"github.com/carboy/carboy/internal/orchestrate/config"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/work"
)

// Stages do the work on issues.
type Stages struct {
	Host   *host.Host
	Keeper *bottles.Keeper
	Judge  *judge.Judge
	Worker *work.Worker
}

// IssuesOptions configure Issues. The zero value says nothing to anybody.
type IssuesOptions struct {
	// Log gets what happens to issues. nil: the user's own log.
	Log *slog.Logger
	// Output gets what agents print, and OnEvent what happens in the bottle of an issue,
	// such as acme/web#7. Both are called from many goroutines at once, and may be nil.
	Output  io.Writer
	OnEvent func(issue string, e plan.Event)
	// Ready is told the address at which webhooks are taken, "" for none, once issues are
	// worked on. It may be nil.
	Ready func(addr string)
}

// Issues works on the issues of the repositories that the user's orchestrate.yaml names, in
// real bottles, as [Run] does.
func Issues(ctx context.Context, s Stages, o IssuesOptions) error {
	h := s.Host
	dir, err := store.ConfigDir(h.Opened.Config, h.Env)
	if err != nil {
		return err
	}
	conf, err := config.Load(dir, h.Env)
	if err != nil {
		return err
	}
	runtime, err := store.RuntimeDir(h.Env)
	if err != nil {
		return err
	}
	if o.Log == nil {
		o.Log = h.Log
	}
	var event func(issues.Key, plan.Event)
	if o.OnEvent != nil {
		event = func(k issues.Key, e plan.Event) { o.OnEvent(k.String(), e) }
	}
	return Run(ctx, Options{
		Config: conf, State: h.StateDir(), Runtime: runtime, Log: o.Log, Ready: o.Ready,
		Bottles: func(r config.Repository) (orchestrate.Bottles, error) {
			return bottlework.New(bottlework.Options{
				Host: h, Keeper: s.Keeper, Judge: s.Judge, Worker: s.Worker, Catalog: r.Gate, Attempts: conf.Attempts, MaxAttempts: conf.People.MaxAttempts,
				People: ask.Options{Timeout: conf.People.Wait, Policy: conf.People.Policy}, Policy: conf.People.Policy, AskFor: conf.People.Wait,
				BundleKey: conf.BundleKey, Output: o.Output, OnEvent: event,
			})
		},
	})
}
