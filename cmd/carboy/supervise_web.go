//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/supervise"
	"github.com/carboy/carboy/internal/supervise/tui"
	"github.com/carboy/carboy/internal/supervise/web"
)

// addScreens makes the command without a subcommand show the queue: on the terminal or,
// with --web, on a page.
func (a *app) addScreens(cmd *cobra.Command) {
	var page bool
	port := whole{top: 65535, eg: "8080"}
	cmd.Flags().BoolVar(&page, "web", false, "serve a page to one browser on this machine, at an address that works once")
	cmd.Flags().Var(&port, "port", "with --web: this port of 127.0.0.1, instead of any that is free")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("port") && !page {
			return usagef("carboy supervise --web --port 8080", "supervise: --port needs --web")
		}
		if page {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				return queueOf(c, func(q *supervise.Queue) error { return a.servePage(ctx, c, q, int(port.n)) })
			})
		}
		if !isTerminal(a.stdin) || !isTerminal(a.stdout) || a.env("TERM") == "dumb" {
			return usagef("carboy supervise list, show, approve and reject work without one; carboy supervise --web serves a page", "supervise: there is no terminal to show the queue in")
		}
		return a.withQueue(cmd, func(ctx context.Context, q *supervise.Queue) error {
			err := tui.Run(ctx, tui.Options{In: a.stdin, Out: a.stdout.(*os.File), ASCII: !a.utf8(), Color: a.color(a.stdout), Queue: q})
			if errors.Is(err, context.Canceled) {
				return exitcode.Interrupted(syscall.SIGINT, errReported)
			}
			return err
		})
	}
}

// servePage serves the page until ctx is done.
func (a *app) servePage(ctx context.Context, c *carboy.Client, q *supervise.Queue, port int) error {
	dir, err := a.orchestrateDir()
	if err != nil {
		return err
	}
	o := web.Options{Queue: q, Issues: pageIssues{dir, c}, Port: port}
	if a.verbose {
		o.Log = slog.New(slog.NewTextHandler(safetext.NewWriter(a.stderr, safetext.Options{MaxLine: maxMessage}), nil))
	}
	s, err := web.Listen(o)
	if err != nil {
		return fmt.Errorf("supervise: %w", err)
	}
	a.say(plainText, "open this in a browser on this machine; it works once, and only for a short time")
	fmt.Fprintln(a.stdout, s.Link())
	if isTerminal(a.stdin) {
		a.say(dimText, "Enter gives another address, Ctrl-C ends")
		go func() { // to the end of the process: a read of a terminal can't be stopped
			for lines := bufio.NewScanner(a.stdin); lines.Scan() && ctx.Err() == nil; {
				fmt.Fprintln(a.stdout, s.Link())
			}
		}()
	}
	return s.Serve(ctx)
}
