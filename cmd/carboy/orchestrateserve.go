//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/engine"
	"github.com/carboy/carboy/internal/orchestrate/config"
	"github.com/carboy/carboy/internal/orchestrate/serve"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

const orchestrateServeLong = `Work on the issues of the repositories in orchestrate.yaml until SIGTERM or an interrupt;
then let the bottles freeze and end. What was under way goes on at the next start, also
after a crash. One process at a time serves your state.

It takes webhooks at webhooks.listen, on any path, and polls the forge as well. At the
same address are /healthz, /readyz and /metrics (for Prometheus). Deliveries come over
plain HTTP, so that address is of this machine or a private network; put a proxy that
speaks TLS before it.

What happens to issues is printed on stderr.`

func (a *app) orchestrateServeCmd() *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use: "serve", Short: "work on issues until it is stopped", Long: orchestrateServeLong, Args: noArgs,
		Example: "  carboy orchestrate serve\n  systemctl --user enable --now " + config.UnitFile,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.orchestrateServe(cmd.Context(), quiet) },
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only warnings and errors")
	return cmd
}

func (a *app) orchestrateServe(ctx context.Context, quiet bool) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if _, err := a.orchestrateConfig(); err != nil { // before anything is opened
		return err
	}
	c, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	level := slog.LevelInfo
	switch {
	case a.verbose:
		level = slog.LevelDebug
	case quiet:
		level = slog.LevelWarn
	}
	served := context.AfterFunc(ctx, func() {
		if !quiet {
			a.say(plainText, "stopping: bottles freeze, and go on at the next start")
		}
	})
	err = c.ServeIssues(ctx, carboy.ServeOptions{
		Log: slog.New(&lines{a: a, level: level, mu: &sync.Mutex{}}),
		Ready: func(addr string) {
			switch {
			case quiet:
			case addr == "":
				a.say(greenText, "serving: the forge is polled")
			default:
				a.say(greenText, "serving: webhooks are taken at http://%s", addr)
			}
		},
	})
	served()
	var held *engine.HeldError
	if errors.As(err, &held) {
		return &advisedError{err, "carboy orchestrate serve runs already; end that process first"}
	}
	return err
}

// lines is a handler of logs that prints a line for people.
type lines struct {
	a     *app
	level slog.Level
	more  []slog.Attr
	mu    *sync.Mutex
}

func (l *lines) Enabled(_ context.Context, level slog.Level) bool { return level >= l.level }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(r.Message)
	add := func(x slog.Attr) bool {
		fmt.Fprintf(&b, " %s=%v", x.Key, x.Value)
		return true
	}
	for _, x := range l.more {
		add(x)
	}
	r.Attrs(add)
	l.mu.Lock()
	defer l.mu.Unlock()
	tone := plainText
	if r.Level >= slog.LevelWarn {
		tone = redText
	}
	l.a.say(tone, "%s", safetext.String(b.String(), maxMessage))
	return nil
}

func (l *lines) WithAttrs(more []slog.Attr) slog.Handler {
	with := *l
	with.more = append(append([]slog.Attr{}, l.more...), more...)
	return &with
}

func (l *lines) WithGroup(string) slog.Handler { return l }

func (a *app) orchestrateOrderCmd(order, short, long string) *cobra.Command {
	return &cobra.Command{
		Use: order + " ISSUE", Short: short, Long: long,
		Example: "  carboy orchestrate " + order + " acme/web#7",
		Args:    oneIssue(order), ValidArgsFunction: a.completeIssues,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := a.issueKey(order, args[0])
			if err != nil {
				return err
			}
			state, err := store.StateDir(a.env)
			if err != nil {
				return err
			}
			runtime, err := store.RuntimeDir(a.env)
			if err != nil {
				return err
			}
			if err := serve.Order(cmd.Context(), runtime, state, order, k); err != nil {
				if errors.Is(err, serve.ErrNotServed) {
					return &advisedError{err, "start it: it takes the order, and carries it out"}
				}
				return &advisedError{err, "carboy orchestrate status --all lists the issues"}
			}
			a.say(greenText, "%s: carboy orchestrate status shows what comes of it", order)
			return nil
		},
	}
}

const (
	cancelLong = `Stop the turn of an issue that runs, and freeze its bottle. The issue then waits for a
comment of somebody who may prompt, or for carboy orchestrate retry. Closing the pull
request is what ends the work for good. carboy orchestrate serve must run.`
	retryLong = `Give the agent of an issue another turn, as a comment would, after the one that is under
way. Calls of the forge that fail are tried again by themselves. carboy orchestrate
serve must run.`
)
