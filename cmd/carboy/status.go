//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/prompt"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise"
)

const statusLong = `Show what waits for you: questions that bottles ask, what runs, bottles that can go on,
and changes that nobody has landed, each with the command that takes it up. carboy alone
in a terminal shows the same to choose from.

--line prints it as a few words, and nothing if nothing waits, for a prompt or for tmux:
  set -g status-right '#(carboy status --line)'`

// waiting is something that waits for a person.
type waiting struct {
	Kind string   `json:"kind"` // question, running, kept, changes
	Args []string `json:"args"` // of the carboy command that takes it up
	What string   `json:"what"` // in words
}

func (w waiting) command() string { return "carboy " + strings.Join(w.Args, " ") }

func (a *app) statusCmd() *cobra.Command {
	var line, asJSON bool
	cmd := &cobra.Command{
		Use: "status", Short: "show what runs and what waits for you", Long: statusLong, GroupID: "look", Args: noArgs,
		Example: "  carboy status\n  carboy status --line\n  carboy status --json | jq -r '.[].what'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				list, err := a.waiting(ctx, c)
				switch {
				case err != nil:
					return err
				case asJSON:
					return a.printJSON(list)
				case line:
					if s := statusLine(list); s != "" {
						fmt.Fprintln(a.stdout, s)
					}
					return nil
				case len(list) == 0:
					a.say(plainText, "nothing runs, and nothing waits for you")
					return nil
				}
				rows := make([][]string, len(list))
				for i, w := range list {
					rows[i] = []string{w.Kind, w.command(), w.What}
				}
				return printTable(a.stdout, columns(a.stdout), !a.utf8(), []string{"KIND", "COMMAND", "WHAT"}, rows, 2, func(int, int) tone { return plainText })
			})
		},
	}
	cmd.Flags().BoolVar(&line, "line", false, "print a few words, for a prompt or tmux")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print an array of kind, args, what")
	return cmd
}

// statusLine counts what waits: "1 asks, 2 run, 3 kept, 1 to land".
func statusLine(list []waiting) string {
	n := map[string]int{}
	for _, w := range list {
		n[w.Kind]++
	}
	var parts []string
	for _, k := range [][2]string{{"question", "asks"}, {"running", "run"}, {"kept", "kept"}, {"changes", "to land"}} {
		if n[k[0]] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[k[0]], k[1]))
		}
	}
	return strings.Join(parts, ", ")
}

// maxLookedAt bounds the runs, newest first, among which changes are looked for.
const maxLookedAt = 200

// waiting returns what waits for the user, the most urgent first.
func (a *app) waiting(ctx context.Context, c *carboy.Client) ([]waiting, error) {
	list := []waiting{}
	err := queueOf(c, func(q *supervise.Queue) error {
		l, err := q.List(ctx, supervise.Query{})
		for _, e := range l.Entries {
			p := e.Proposal
			list = append(list, waiting{"question", []string{"supervise"}, fmt.Sprintf("%s asks: %s", p.From(), p.Title())})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	bottles, err := a.bottles(ctx, c)
	if err != nil {
		return nil, err
	}
	runs, err := c.List(ctx, store.Query{Limit: maxLookedAt})
	if err != nil {
		return nil, err
	}
	var kept, changes []waiting
	for _, b := range bottles {
		what := safetext.String(b.Agent, 40) + a.in(b.Mode, b.Workspace)
		if b.Since != nil {
			what += ", since " + b.Since.Local().Format(time.DateTime)
		}
		switch b.State {
		case carboy.BottleRunning:
			list = append(list, waiting{"running", []string{"attach", b.Slug}, what})
		case carboy.BottleFrozen, carboy.BottleKept:
			kept = append(kept, waiting{"kept", []string{"resume", b.Slug}, what})
		}
	}
	seen := map[store.Raw]bool{} // the newest of each directory
	for _, m := range runs.Runs {
		switch {
		case !m.State.Over() && m.Name == "":
			list = append(list, waiting{"running", []string{"attach", string(m.ID)}, commandOf(m) + a.in(m.Mode, m.Workspace)})
		case unlandedRun(m) && !seen[m.Workspace.Path] && !onlyIgnored(ctx, c, m.ID):
			changes = append(changes, waiting{"changes", []string{"diff", string(m.ID)}, commandOf(m) + a.in(m.Mode, m.Workspace)})
			seen[m.Workspace.Path] = true
		}
	}
	return append(append(list, kept...), changes...), nil
}

// unlandedRun reports whether the changes of a run that is over wait for a person.
func unlandedRun(m store.Meta) bool {
	return m.State.Over() && m.Changes != "" && !m.Changes.Settled()
}

// onlyIgnored reports whether a run changed nothing but paths that git ignores, which wait
// for nobody.
func onlyIgnored(ctx context.Context, c *carboy.Client, id store.ID) bool {
	r, err := c.Receipt(ctx, id)
	return err == nil && r.Changes.OnlyIgnored()
}

// in says in which directory something works.
func (a *app) in(mode store.Mode, w store.Workspace) string {
	if mode == store.None {
		return ""
	}
	return " in " + safetext.String(a.tilde(string(w.Path)), 60)
}

// alone is carboy without a command: a choice of what waits, or the help.
func (a *app) alone(cmd *cobra.Command) error {
	if !isTerminal(a.stdin) || !isTerminal(a.stdout) || !isTerminal(a.stderr) || a.env("TERM") == "dumb" {
		return cmd.Help()
	}
	var list []waiting
	err := a.withClient(cmd, func(ctx context.Context, c *carboy.Client) (err error) {
		list, err = a.waiting(ctx, c)
		return err
	})
	if err != nil || len(list) == 0 {
		return cmd.Help() // it is asked for where nothing is set up, too
	}
	q := &prompt.One{Title: "What next? " + statusLine(list) + "."}
	args := map[string][]string{}
	for _, w := range append(list, waiting{"", []string{"help"}, "what carboy can do"}) {
		if args[w.command()] == nil {
			q.Items = append(q.Items, prompt.Item{Name: w.command(), Description: w.What})
			args[w.command()] = w.Args
		}
	}
	err = prompt.Run(cmd.Context(), prompt.Terminal{In: a.stdin, Out: a.stderr.(*os.File), ASCII: !a.utf8(), Color: a.color(a.stderr)},
		func() prompt.Question { return q })
	if errors.Is(err, prompt.ErrGivenUp) {
		return nil
	}
	if err != nil {
		return err
	}
	next := a.root()
	next.SetArgs(args[q.Chosen])
	return next.ExecuteContext(cmd.Context())
}
